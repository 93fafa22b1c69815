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

/// A certificate of key 1 by authority 2 for gpu01, an hour around now, changed by `change`.
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
fn a_known_authority_vouches_for_its_hosts() {
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
fn each_fault_has_its_words() {
    let ca = line("@cert-authority", "*", 2);
    let bad = |certificate: &Certificate| match check_certificate(&ca, &gpu01(), certificate) {
        CertificateCheck::Invalid(why) => why,
        other => panic!("{other:?}"),
    };
    let user = signed(|builder| {
        builder.cert_type(CertType::User).unwrap();
        for_gpu01(builder);
    });
    assert_eq!(bad(&user), "it is not a host's certificate");
    let other = certificate(|builder| {
        builder.valid_principal("gpu02").unwrap();
    });
    assert_eq!(bad(&other), "it is for gpu02, not for gpu01");
    let anybody = certificate(|builder| {
        builder.all_principals_valid().unwrap();
    });
    assert_eq!(bad(&anybody), "it is for nobody, not for gpu01");
    let wildcard = certificate(|builder| {
        builder.valid_principal("gpu*").unwrap();
    });
    assert_eq!(bad(&wildcard), "it is for gpu*, not for gpu01");
    let restricted = certificate(|builder| {
        builder.critical_option("future", "").unwrap();
        for_gpu01(builder);
    });
    assert_eq!(bad(&restricted), "it has critical options that are not known");
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
fn a_forged_signature_is_found() {
    let good = certificate(for_gpu01);
    let mut bytes = good.to_bytes().unwrap();
    let at = bytes.windows(5).position(|window| window == b"gpu01").unwrap();
    bytes[at + 4] = b'2';
    let forged = Certificate::from_bytes(&bytes).unwrap();
    let ca = line("@cert-authority", "*", 2);
    assert_eq!(
        check_certificate(&ca, &HostName::new("gpu02", 22, None), &forged),
        CertificateCheck::Invalid("its signature is not its authority's".into())
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
