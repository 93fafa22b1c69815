//! Certificates of users and of hosts, beside the real ssh.

use super::harness::{host, person, person_with, secret};
use super::host_keys::ssh_accepts;
use super::logins::SshAgent;
use crate::sshd::{PASSPHRASE, Sshd};
use gpufleet::ssh::{Interaction, SshErrorKind};
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

fn keygen(arguments: &[&str], file: &Path) {
    let output = Command::new("ssh-keygen").arg("-q").args(arguments).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A certificate authority in a folder of its own.
struct Authority {
    folder: tempfile::TempDir,
}

impl Authority {
    fn new() -> Self {
        let authority = Self { folder: tempfile::tempdir().unwrap() };
        keygen(&["-t", "ed25519", "-N", "", "-f"], &authority.key());
        authority
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("ca")
    }

    fn public(&self) -> String {
        let text = fs::read_to_string(self.key().with_extension("pub")).unwrap();
        text.split(' ').take(2).collect::<Vec<_>>().join(" ")
    }

    /// Signs `key.pub`; the certificate lies beside it as `key-cert.pub`.
    fn sign(&self, key: &Path, names: &str, validity: &str, kind: &[&str]) {
        let ca = self.key();
        let mut arguments = vec!["-s", ca.to_str().unwrap(), "-I", "test", "-n", names, "-V", validity];
        arguments.extend(kind);
        keygen(&arguments, &key.with_extension("pub"));
    }
}

/// A server that trusts the authority, and no key alone.
fn server_of(authority: &Authority) -> Sshd {
    let trusted = format!("TrustedUserCAKeys {}", authority.key().with_extension("pub").display());
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &[&trusted]);
    fs::write(sshd.file("authorized_keys"), "").unwrap();
    sshd
}

#[tokio::test]
async fn a_certificate_beside_its_key_opens_whatever_the_key_is() {
    let authority = Authority::new();
    let sshd = server_of(&authority);
    for kind in ["ed25519", "ecdsa", "rsa"] {
        let key = sshd.file(&format!("user_{kind}"));
        keygen(&["-t", kind, "-N", "", "-f"], &key);
        let mut host = host(&sshd);
        host.identity_file = Some(key.clone());
        let error = person(Interaction::Refuse).open(&host, "true").await.unwrap_err();
        assert_eq!(error.kind, SshErrorKind::Authentication, "the key alone opens");
        authority.sign(&key, &sshd.user(), "+1h", &[]);
        assert_eq!(person(Interaction::Refuse).run(&host, "echo in").await.unwrap().stdout, "in\n", "{kind}");
    }
}

#[tokio::test]
async fn a_certificate_whose_key_is_locked_or_in_the_agent() {
    let authority = Authority::new();
    let sshd = server_of(&authority);
    let key = sshd.locked_key();
    authority.sign(&key, &sshd.user(), "+1h", &[]);
    let mut host = host(&sshd);
    host.identity_file = Some(key.clone());
    let mut person = person(Interaction::Ask);
    let opening = person.spawn(&host, "echo in");
    let prompt = person.asked().await;
    person.context.answer(prompt.id, secret(PASSPHRASE));
    assert_eq!(opening.await.unwrap().unwrap().stdout, "in\n");

    // The agent has the key alone; the certificate is named by the configuration.
    let other = sshd.file("held");
    keygen(&["-t", "rsa", "-N", "", "-f"], &other);
    authority.sign(&other, &sshd.user(), "+1h", &[]);
    let elsewhere = sshd.file("elsewhere.pub");
    fs::rename(sshd.file("held-cert.pub"), &elsewhere).unwrap();
    let agent = SshAgent::start(sshd.file(".").as_path());
    agent.add(&other);
    let config = sshd.file("config");
    fs::write(&config, format!("CertificateFile {}\n", elsewhere.display())).unwrap();
    let person = person_with(Interaction::Refuse, |options| {
        options.agent_socket = Some(agent.socket.clone());
        options.ssh_config = Some(config);
    });
    host.identity_file = None;
    assert_eq!(person.run(&host, "echo in").await.unwrap().stdout, "in\n");
}

#[tokio::test]
async fn an_expired_certificate_says_when_it_expired() {
    let authority = Authority::new();
    let sshd = server_of(&authority);
    let key = sshd.client_key();
    authority.sign(&key, &sshd.user(), "20200101000000Z:20200102030400Z", &[]);
    let error = person(Interaction::Refuse).open(&host(&sshd), "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::Authentication);
    let said = format!("the certificate {}-cert.pub expired at 2020-01-02 03:04 UTC", key.display());
    assert!(error.message.ends_with(&said), "{error}");
}

#[tokio::test]
async fn a_hosts_certificate_is_taken_where_ssh_takes_it() {
    let authority = Authority::new();
    let ca = authority.public();
    let stranger = Authority::new().public();
    // Names, validity, and the known_hosts file for it; KEY and NAME are the server's.
    let cases = [
        ("127.0.0.1", "+1h", format!("@cert-authority * {ca}\n")),
        ("127.0.0.1", "+1h", format!("@cert-authority 127.0.0.1 {ca}\n")),
        ("127.0.0.1", "+1h", format!("@cert-authority NAME {ca}\n")),
        ("127.0.0.1", "+1h", format!("@cert-authority gpu01 {ca}\n")),
        ("127.0.0.1", "+1h", format!("@cert-authority * {stranger}\n")),
        ("127.0.0.1", "+1h", format!("* {ca}\n")),
        ("gpu01", "+1h", format!("@cert-authority * {ca}\n")),
        ("gpu01,127.0.0.1", "+1h", format!("@cert-authority * {ca}\n")),
        ("*", "+1h", format!("@cert-authority * {ca}\n")),
        ("gpu01", "+1h", format!("@cert-authority * {ca}\nNAME KEY\n")),
        ("127.0.0.1", "20200101:20210101", format!("@cert-authority * {ca}\n")),
        ("127.0.0.1", "20200101:20210101", format!("@cert-authority * {ca}\nNAME KEY\n")),
        ("127.0.0.1", "+1h", format!("@cert-authority * {ca}\n@revoked * {ca}\n")),
        ("127.0.0.1", "+1h", format!("@cert-authority * {ca}\n@revoked * KEY\n")),
        ("127.0.0.1", "+1h", format!("@cert-authority * {ca}\n@revoked * {stranger}\n")),
        ("127.0.0.1", "+1h", "NAME KEY\n".to_owned()),
    ];
    let mut taken = 0;
    for (names, validity, text) in cases {
        // Made before the server starts, since it reads its certificate then.
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("host");
        keygen(&["-t", "ed25519", "-N", "", "-f"], &key);
        authority.sign(&key, names, validity, &["-h"]);
        let lines = [format!("HostKey {}", key.display()), format!("HostCertificate {}-cert.pub", key.display())];
        let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &[&lines[0], &lines[1]]);
        let public = fs::read_to_string(key.with_extension("pub")).unwrap();
        let public = public.split(' ').take(2).collect::<Vec<_>>().join(" ");
        let name = format!("[127.0.0.1]:{}", sshd.port());
        fs::write(sshd.known_hosts(), text.replace("KEY", &public).replace("NAME", &name)).unwrap();
        let ours = person(Interaction::Refuse).run(&host(&sshd), "true").await;
        assert_eq!(ours.is_ok(), ssh_accepts(&sshd), "{names} {validity}\n{text}\n{ours:?}");
        taken += u32::from(ours.is_ok());
    }
    assert_eq!(taken, 8, "of sixteen");
}

#[tokio::test]
async fn a_hosts_certificate_for_another_name_says_so() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("host");
    keygen(&["-t", "ed25519", "-N", "", "-f"], &key);
    authority.sign(&key, "gpu02", "+1h", &["-h"]);
    let lines = [format!("HostKey {}", key.display()), format!("HostCertificate {}-cert.pub", key.display())];
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &[&lines[0], &lines[1]]);
    fs::write(sshd.known_hosts(), format!("@cert-authority * {}\n", authority.public())).unwrap();
    let error = person(Interaction::Ask).open(&host(&sshd), "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::HostKeyUnknown);
    assert!(
        error.message.ends_with("is not valid: it is for gpu02, not for 127.0.0.1; nothing was sent to the server"),
        "{error}"
    );
    assert!(!sshd.log().contains("Accepted"), "{}", sshd.log());
}
