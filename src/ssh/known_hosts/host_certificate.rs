//! Host certificates: whether an authority of ours vouches for a server.
//!
//! russh checks only that the server holds the key inside the certificate. All else is checked here: that the authority
//! is known for this host, that it signed, the type, the names, the time and the options, after `sshkey_cert_check_host`
//! of OpenSSH 9.2. Stricter than it in one thing: a certificate that names no host is good for none.

use super::lookup::{HostName, KnownHosts, KnownHostsEntry};
use russh::keys::ssh_key::certificate::CertType;
use russh::keys::{Algorithm, Certificate, HashAlg};

/// What the files say of a certificate that a host showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CertificateCheck {
    /// An authority that is known for the host vouches for its key.
    Valid,
    /// No authority that is known for the host has signed it: its key counts alone.
    UnknownAuthority,
    /// One has, but the certificate is not good; the reason in words.
    Invalid(String),
    /// Its key or its authority's must not be accepted.
    Revoked(KnownHostsEntry),
}

impl KnownHosts {
    /// Judges a certificate at this time, in seconds since 1970.
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
            Some(fault) => CertificateCheck::Invalid(fault),
        }
    }
}

/// What is wrong with a certificate for this host.
fn certificate_error(certificate: &Certificate, host: &str, now: u64) -> Option<String> {
    if certificate.cert_type() != CertType::Host {
        return Some("it is not a host's certificate".to_owned());
    }
    if matches!(certificate.signature().algorithm(), Algorithm::Rsa { hash: None } | Algorithm::Dsa) {
        return Some("it is signed with SHA-1".to_owned());
    }
    if !certificate.critical_options().is_empty() {
        return Some("it has critical options that are not known".to_owned());
    }
    if now < certificate.valid_after() {
        return Some(format!("it is not valid before {}", format_utc(certificate.valid_after())));
    }
    if now >= certificate.valid_before() {
        return Some(format!("it expired at {}", format_utc(certificate.valid_before())));
    }
    if !certificate.valid_principals().iter().any(|principal| principal == host) {
        let names = certificate.valid_principals().join(", ");
        let names = if names.is_empty() { "nobody".to_owned() } else { names };
        return Some(format!("it is for {names}, not for {host}"));
    }
    // Last, since it costs the most; it looks at the time and the authority once more.
    let authority = certificate.signature_key().fingerprint(HashAlg::Sha256);
    let is_signed = certificate.validate_at(now, [&authority]).is_ok();
    (!is_signed).then(|| "its signature is not its authority's".to_owned())
}

/// Seconds since 1970 for people, in UTC.
fn format_utc(seconds: u64) -> String {
    let timestamp = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    timestamp.map_or_else(|| "the end of time".to_owned(), |timestamp| timestamp.strftime("%F %R UTC").to_string())
}

#[cfg(test)]
#[path = "host_certificate_tests.rs"]
mod tests;
