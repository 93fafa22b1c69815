//! Verifies host certificates.
//!
//! russh verifies only that the server holds the key in the certificate. Everything else is verified here, as in
//! `sshkey_cert_check_host` of OpenSSH 9.2: the authority and its signature, the type, the principals, the validity period
//! and the critical options. Stricter than OpenSSH: a certificate without principals is valid for no host.

use super::lookup::{HostName, KnownHosts, KnownHostsEntry};
use russh::keys::ssh_key::certificate::CertType;
use russh::keys::{Algorithm, Certificate, HashAlg};

/// The result of verifying a host certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CertificateCheck {
    /// A known authority signed it, and it is valid for the host.
    Valid,
    /// No authority that is known for the host signed it: its key alone decides.
    UnknownAuthority,
    /// A known authority signed it, but it is not valid, with the reason.
    Invalid(String),
    /// Its key or that of its authority is revoked.
    Revoked(KnownHostsEntry),
}

impl KnownHosts {
    /// Verifies a certificate at `now`, in Unix seconds.
    pub(crate) fn check_certificate(&self, name: &HostName, certificate: &Certificate, now: u64) -> CertificateCheck {
        for key in [certificate.public_key(), certificate.signature_key()] {
            if let Some(entry) = self.revoked(name, key) {
                return CertificateCheck::Revoked(entry);
            }
        }
        if !self.has_authority(name, certificate.signature_key()) {
            return CertificateCheck::UnknownAuthority;
        }
        match certificate_error(certificate, name.principal(), now) {
            None => CertificateCheck::Valid,
            Some(reason) => CertificateCheck::Invalid(reason),
        }
    }
}

/// Why a certificate is not valid for this host.
fn certificate_error(certificate: &Certificate, host: &str, now: u64) -> Option<String> {
    if certificate.cert_type() != CertType::Host {
        return Some("it is not a host certificate".to_owned());
    }
    if matches!(certificate.signature().algorithm(), Algorithm::Rsa { hash: None } | Algorithm::Dsa) {
        return Some("it is signed with SHA-1".to_owned());
    }
    if !certificate.critical_options().is_empty() {
        return Some("it has unknown critical options".to_owned());
    }
    if now < certificate.valid_after() {
        return Some(format!("it is not valid before {}", format_utc(certificate.valid_after())));
    }
    if now >= certificate.valid_before() {
        return Some(format!("it expired at {}", format_utc(certificate.valid_before())));
    }
    if !certificate.valid_principals().iter().any(|principal| principal == host) {
        let names = certificate.valid_principals().join(", ");
        let names = if names.is_empty() { "no host".to_owned() } else { names };
        return Some(format!("it is for {names}, not for {host}"));
    }
    // Last, because it costs the most. It also checks the time and the authority again.
    let authority = certificate.signature_key().fingerprint(HashAlg::Sha256);
    let is_signed = certificate.validate_at(now, [&authority]).is_ok();
    (!is_signed).then(|| "its signature is not valid".to_owned())
}

/// Formats Unix seconds in UTC.
fn format_utc(seconds: u64) -> String {
    let timestamp = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    timestamp.map_or_else(|| "the end of time".to_owned(), |timestamp| timestamp.strftime("%F %R UTC").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use russh::keys::PrivateKey;
    use russh::keys::ssh_key::certificate::Builder;
    use russh::keys::ssh_key::private::Ed25519Keypair;
    use std::path::Path;

    const NOW: u64 = 1_800_000_000;

    fn key(seed: u8) -> PrivateKey {
        PrivateKey::from(Ed25519Keypair::from_seed(&[seed; 32]))
    }

    fn line(marker: &str, hosts: &str, seed: u8) -> String {
        format!("{marker} {hosts} {}\n", key(seed).public_key().to_openssh().unwrap())
    }

    /// A host certificate of key 1 by authority 2, valid for an hour before and after `NOW`, changed by `change`.
    fn certificate(change: impl FnOnce(&mut Builder)) -> Certificate {
        signed(|builder| {
            builder.cert_type(CertType::Host).unwrap();
            change(builder);
        })
    }

    fn signed(change: impl FnOnce(&mut Builder)) -> Certificate {
        let subject = key(1);
        let mut builder = Builder::new(vec![7; 32], subject.public_key().clone(), NOW - 3600, NOW + 3600).unwrap();
        change(&mut builder);
        builder.sign(&key(2)).unwrap()
    }

    fn for_gpu01(builder: &mut Builder) {
        builder.valid_principal("gpu01").unwrap();
    }

    fn check_certificate(files: &str, name: &HostName, certificate: &Certificate) -> CertificateCheck {
        KnownHosts::from_text(Path::new("kh"), files.to_owned()).check_certificate(name, certificate, NOW)
    }

    fn gpu01() -> HostName {
        HostName::new("gpu01", 22, None)
    }

    #[test]
    fn a_certificate_of_a_known_authority_is_valid() {
        let good = certificate(for_gpu01);
        let ca = line("@cert-authority", "gpu*", 2);
        assert_eq!(check_certificate(&ca, &gpu01(), &good), CertificateCheck::Valid);
        assert_eq!(
            check_certificate(&ca, &HostName::new("gpu01", 2222, None), &good),
            CertificateCheck::Valid,
            "the name without its port"
        );
        assert_eq!(
            check_certificate(&ca, &HostName::new("10.0.0.1", 22, Some("gpu01")), &good),
            CertificateCheck::Valid,
            "the alias"
        );
        assert_eq!(
            check_certificate(&line("@cert-authority", "db*", 2), &gpu01(), &good),
            CertificateCheck::UnknownAuthority
        );
        assert_eq!(
            check_certificate(&line("@cert-authority", "gpu*", 3), &gpu01(), &good),
            CertificateCheck::UnknownAuthority
        );
        assert_eq!(
            check_certificate(&line("", "gpu*", 2), &gpu01(), &good),
            CertificateCheck::UnknownAuthority,
            "a plain line is no authority"
        );
    }

    #[test]
    fn an_invalid_certificate_gives_the_reason() {
        let ca = line("@cert-authority", "*", 2);
        let bad = |certificate: &Certificate| match check_certificate(&ca, &gpu01(), certificate) {
            CertificateCheck::Invalid(reason) => reason,
            other => panic!("{other:?}"),
        };
        let user = signed(|builder| {
            builder.cert_type(CertType::User).unwrap();
            for_gpu01(builder);
        });
        assert_eq!(bad(&user), "it is not a host certificate");
        let other = certificate(|builder| {
            builder.valid_principal("gpu02").unwrap();
        });
        assert_eq!(bad(&other), "it is for gpu02, not for gpu01");
        let any_host = certificate(|builder| {
            builder.all_principals_valid().unwrap();
        });
        assert_eq!(bad(&any_host), "it is for no host, not for gpu01");
        let wildcard = certificate(|builder| {
            builder.valid_principal("gpu*").unwrap();
        });
        assert_eq!(bad(&wildcard), "it is for gpu*, not for gpu01");
        let restricted = certificate(|builder| {
            builder.critical_option("future", "").unwrap();
            for_gpu01(builder);
        });
        assert_eq!(bad(&restricted), "it has unknown critical options");
        let known = KnownHosts::from_text(Path::new("kh"), ca.clone());
        let good = certificate(for_gpu01);
        assert_eq!(
            known.check_certificate(&gpu01(), &good, NOW + 3600),
            CertificateCheck::Invalid("it expired at 2027-01-15 09:00 UTC".into())
        );
        assert_eq!(
            known.check_certificate(&gpu01(), &good, NOW - 3601),
            CertificateCheck::Invalid("it is not valid before 2027-01-15 07:00 UTC".into())
        );
    }

    #[test]
    fn a_forged_signature_is_detected() {
        let good = certificate(for_gpu01);
        let mut bytes = good.to_bytes().unwrap();
        let at = bytes.windows(5).position(|window| window == b"gpu01").unwrap();
        bytes[at + 4] = b'2';
        let forged = Certificate::from_bytes(&bytes).unwrap();
        let ca = line("@cert-authority", "*", 2);
        assert_eq!(
            check_certificate(&ca, &HostName::new("gpu02", 22, None), &forged),
            CertificateCheck::Invalid("its signature is not valid".into())
        );
    }

    #[test]
    fn a_revoked_key_or_authority_is_refused() {
        let good = certificate(for_gpu01);
        for seed in [1, 2] {
            let files = line("@cert-authority", "*", 2) + &line("@revoked", "*", seed);
            assert!(matches!(check_certificate(&files, &gpu01(), &good), CertificateCheck::Revoked(_)), "{seed}");
        }
    }
}
