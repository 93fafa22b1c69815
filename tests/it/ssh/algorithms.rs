//! The algorithms that the ssh configuration names: the built-in client takes those that ssh would take, or leaves the
//! host to ssh.

use super::configurations::{by, ssh_works, way, write};
use crate::sshd::Sshd;
use gpufleet::config::{Backend, HostConfig};
use gpufleet::ssh::{SshError, SshErrorKind};
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

/// A server that says what was agreed on, known by all its keys, and its configuration of a host `gpu`.
fn server(added: &[&str]) -> (Sshd, String) {
    let mut lines = vec!["LogLevel DEBUG1"];
    lines.extend(added);
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &lines);
    let known: String = ["ed25519", "ecdsa", "rsa"].iter().map(|kind| sshd.known_hosts_line(kind)).collect();
    fs::write(sshd.known_hosts(), known).unwrap();
    let way = way(&sshd);
    (sshd, way)
}

/// What follows these words in the last line of the server's that has them, up to the next space.
fn said(log: &str, words: &str) -> String {
    let line =
        log.lines().rev().find_map(|line| line.split_once(words)).unwrap_or_else(|| panic!("no {words} in\n{log}"));
    line.1.split_whitespace().next().unwrap().to_owned()
}

async fn natively(config: &Path) -> Result<(), SshError> {
    let host = HostConfig { backend: Backend::Native, ..HostConfig::named("gpu") };
    assert_eq!(by(config).run(&host, "echo in").await?.stdout, "in\n");
    Ok(())
}

#[tokio::test]
async fn order_and_exclusion_are_those_of_ssh() {
    let (sshd, way) = server(&["Ciphers +aes128-cbc"]);
    let cases = [
        ("KexAlgorithms ecdh-sha2-nistp384,curve25519-sha256", "kex: algorithm: ", "ecdh-sha2-nistp384"),
        ("KexAlgorithms -curve25519*,sntrup*,mlkem*", "kex: algorithm: ", "ecdh-sha2-nistp256"),
        ("KexAlgorithms ^diffie-hellman-group14-sha256", "kex: algorithm: ", "diffie-hellman-group14-sha256"),
        ("Ciphers aes256-ctr,aes128-gcm@openssh.com", "client->server cipher: ", "aes256-ctr"),
        ("Ciphers -chacha20*", "client->server cipher: ", "aes128-ctr"),
        ("Ciphers aes128-ctr\n MACs hmac-sha2-512,hmac-sha2-256-etm@openssh.com", " MAC: ", "hmac-sha2-512"),
        ("Ciphers aes128-ctr\n MACs -umac*,hmac-sha2-256*", " MAC: ", "hmac-sha2-512-etm@openssh.com"),
        ("HostKeyAlgorithms rsa-sha2-256", "kex: host key algorithm: ", "rsa-sha2-256"),
        ("HostKeyAlgorithms ecdsa-sha2-nistp256,ssh-ed25519", "kex: host key algorithm: ", "ecdsa-sha2-nistp256"),
        ("HostKeyAlgorithms ^rsa-sha2-512", "kex: host key algorithm: ", "rsa-sha2-512"),
    ];
    for (lines, words, expected) in cases {
        let config = write(&sshd, "config", &format!("Host gpu\n {lines}\n{way}"));
        assert!(ssh_works(&config, "gpu"), "{lines}");
        let theirs = said(&sshd.log(), words);
        natively(&config).await.unwrap_or_else(|error| panic!("{lines}: {error:?}"));
        assert_eq!((theirs.as_str(), said(&sshd.log(), words).as_str()), (expected, expected), "{lines}");
    }
    // A type that is left out is not used, whatever is known of the host.
    fs::write(sshd.known_hosts(), sshd.known_hosts_line("ed25519")).unwrap();
    let config = write(&sshd, "config", &format!("Host gpu\n HostKeyAlgorithms ecdsa-sha2-nistp256\n{way}"));
    assert!(!ssh_works(&config, "gpu"));
    let error = natively(&config).await.unwrap_err();
    assert!(matches!(error.kind, SshErrorKind::HostKeyUnknown | SshErrorKind::HostKeyChanged), "{error:?}");
}

#[tokio::test]
async fn what_we_have_nothing_of_is_left_to_ssh() {
    let (sshd, way) = server(&["Ciphers +aes128-cbc", "HostKeyAlgorithms +ssh-rsa"]);
    for (lines, setting) in [
        ("KexAlgorithms sntrup761x25519-sha512@openssh.com", "KexAlgorithms"),
        ("Ciphers aes128-cbc", "Ciphers"),
        ("Ciphers aes128-ctr\n MACs umac-64@openssh.com", "MACs"),
        ("HostKeyAlgorithms ssh-rsa", "HostKeyAlgorithms"),
    ] {
        let config = write(&sshd, "config", &format!("Host gpu\n {lines}\n{way}"));
        assert_eq!(
            natively(&config).await.unwrap_err(),
            SshError::new(
                SshErrorKind::Unsupported,
                format!("the built-in client cannot do {setting}, which the ssh configuration asks for")
            )
            .with_hint("backend = \"system\" in hosts.toml uses the ssh program")
        );
        assert!(ssh_works(&config, "gpu"), "{lines}");
        let finished = by(&config).run(&HostConfig::named("gpu"), "echo in").await.unwrap();
        assert_eq!(finished.stdout, "in\n", "{lines}");
    }
}

#[tokio::test]
async fn a_key_signs_as_the_configuration_lets_it() {
    let (sshd, way) = server(&[]);
    // The server's own RSA key does as a person's, too.
    let rsa = sshd.file("host_rsa");
    let both = ["client.pub", "host_rsa.pub"].map(|name| fs::read_to_string(sshd.file(name)).unwrap()).concat();
    fs::write(sshd.file("authorized_keys"), both).unwrap();
    let keys = format!(" IdentitiesOnly yes\n IdentityFile {}\n{way}", rsa.display());
    for (list, used) in [
        ("rsa-sha2-256", "rsa-sha2-256"),
        ("rsa-sha2-512", "rsa-sha2-512"),
        ("-rsa-sha2-512", "rsa-sha2-256"),
        ("ssh-ed25519", "ssh-ed25519"),
        ("-rsa*", "ssh-ed25519"),
    ] {
        let config = write(&sshd, "config", &format!("Host gpu\n PubkeyAcceptedAlgorithms {list}\n{keys}"));
        for by_us in [false, true] {
            let before = sshd.log().len();
            if by_us {
                natively(&config).await.unwrap_or_else(|error| panic!("{list}: {error:?}"));
            } else {
                assert!(ssh_works(&config, "gpu"), "{list}");
            }
            let log = sshd.log();
            let offered: Vec<_> = log[before..].split(" pkalg ").skip(1).map(|rest| rest.split(' ').next()).collect();
            assert!(!offered.is_empty() && offered.iter().all(|name| *name == Some(used)), "{list}: {offered:?}");
        }
    }
    let config = write(&sshd, "config", &format!("Host gpu\n PubkeyAcceptedAlgorithms ecdsa-sha2-nistp256\n{keys}"));
    assert!(!ssh_works(&config, "gpu"));
    let error = natively(&config).await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::Authentication);
    let left_out = format!("{} (RSA) was not offered: PubkeyAcceptedAlgorithms excludes it", rsa.display());
    assert!(error.message.contains(&left_out), "{error}");
}
