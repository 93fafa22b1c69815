//! Host keys: what is known, unknown, changed and revoked, beside a real sshd and a real ssh.

use super::harness::{host, person};
use crate::sshd::Sshd;
use gpufleet::ssh::{Answer, Interaction, PromptKind, SshError, SshErrorKind};
use std::fs;
use std::process::Command;

fn shown(sshd: &Sshd) -> String {
    format!("ssh-ed25519 {}", sshd.fingerprint("ed25519"))
}

/// Whether the server has seen any attempt to log in.
fn was_approached(sshd: &Sshd) -> bool {
    let log = sshd.log();
    log.contains("Accepted") || log.contains("Failed") || log.contains("Postponed")
}

#[tokio::test]
async fn an_unknown_key_is_refused_when_nobody_can_be_asked() {
    let sshd = Sshd::start();
    let person = person(Interaction::Refuse);
    fs::remove_file(sshd.known_hosts()).unwrap();
    let (user, port) = (sshd.user(), sshd.port());
    assert_eq!(
        person.open(&host(&sshd), "true").await.unwrap_err(),
        SshError::new(
            SshErrorKind::HostKeyUnknown,
            format!("the host key of [127.0.0.1]:{port} is not known ({}), and no prompt is possible", shown(&sshd))
        )
        .with_hint(format!(
            "ssh -o UserKnownHostsFile={} -p {port} {user}@127.0.0.1 true   \
             # compare the fingerprint with the administrator's, then say yes",
            sshd.known_hosts().display()
        ))
    );
    assert!(!was_approached(&sshd), "{}", sshd.log());
    assert!(!sshd.known_hosts().exists());
}

#[tokio::test]
async fn trust_once_lasts_for_the_process_and_writes_nothing() {
    let sshd = Sshd::start();
    let mut person = person(Interaction::Ask);
    fs::write(sshd.known_hosts(), format!("elsewhere {}\n", sshd.host_key("ed25519"))).unwrap();
    let host = host(&sshd);
    let opening = person.spawn(&host, "echo in");
    let prompt = person.asked().await;
    assert_eq!(prompt.hosts, ["gpu01"]);
    assert_eq!(
        prompt.kind,
        PromptKind::HostKey {
            target: format!("127.0.0.1 (127.0.0.1 port {})", sshd.port()),
            key_type: "ssh-ed25519".into(),
            fingerprint: sshd.fingerprint("ed25519"),
            known_hosts: sshd.known_hosts().display().to_string(),
            also_known_as: vec!["elsewhere".into()],
        }
    );
    assert!(!was_approached(&sshd), "{}", sshd.log());
    person.context.answer(prompt.id, Answer::TrustOnce);
    assert_eq!(opening.await.unwrap().unwrap().stdout, "in\n");
    assert_eq!(person.run(&host, "echo again").await.unwrap().stdout, "again\n");
    assert!(fs::read_to_string(sshd.known_hosts()).unwrap().starts_with("elsewhere "));
}

#[tokio::test]
async fn trust_and_save_asks_two_hosts_once_and_writes_one_line() {
    let sshd = Sshd::start();
    let mut person = person(Interaction::Ask);
    fs::remove_file(sshd.known_hosts()).unwrap();
    let first = host(&sshd);
    let mut second = first.clone();
    second.name = "gpu02".into();
    let opening = [person.spawn(&first, "echo in"), person.spawn(&second, "echo in")];
    let mut prompt = person.asked().await;
    while prompt.hosts.len() < 2 {
        prompt = person.asked().await;
    }
    person.context.answer(prompt.id, Answer::TrustAndSave);
    for one in opening {
        assert_eq!(one.await.unwrap().unwrap().stdout, "in\n");
    }
    assert_eq!(fs::read_to_string(sshd.known_hosts()).unwrap(), sshd.known_hosts_line("ed25519"));
    // Another process, and the real ssh, know it now.
    let other = super::harness::person(Interaction::Refuse);
    assert_eq!(other.run(&first, "echo in").await.unwrap().stdout, "in\n");
    assert!(ssh_accepts(&sshd));
}

#[tokio::test]
async fn a_declined_key_ends_the_attempt() {
    let sshd = Sshd::start();
    let mut person = person(Interaction::Ask);
    fs::remove_file(sshd.known_hosts()).unwrap();
    let opening = person.spawn(&host(&sshd), "true");
    let prompt = person.asked().await;
    person.context.answer(prompt.id, Answer::Decline);
    assert_eq!(
        opening.await.unwrap().unwrap_err(),
        SshError::new(SshErrorKind::Declined, format!("the host key {} was not trusted", sshd.fingerprint("ed25519")))
    );
}

#[tokio::test]
async fn a_changed_key_stops_before_anything_is_sent() {
    let mut sshd = Sshd::start();
    let person = person(Interaction::Ask);
    let known = sshd.fingerprint("ed25519");
    sshd.change_host_keys();
    sshd.restart();
    let (port, file) = (sshd.port(), sshd.known_hosts());
    assert_eq!(
        person.open(&host(&sshd), "true").await.unwrap_err(),
        SshError::new(
            SshErrorKind::HostKeyChanged,
            format!(
                "the host key has changed: the server shows {}, but {}:1 has ssh-ed25519 {known}; nothing was sent to it",
                shown(&sshd),
                file.display()
            )
        )
        .with_hint(format!(
            "ssh-keygen -f {} -R '[127.0.0.1]:{port}'   # only if the administrator confirms the new key",
            file.display()
        ))
    );
    assert!(!was_approached(&sshd), "{}", sshd.log());
}

#[tokio::test]
async fn a_revoked_key_stops_before_anything_is_sent() {
    let sshd = Sshd::start();
    let person = person(Interaction::Ask);
    let file = sshd.known_hosts();
    let revoked = sshd.host_key("ed25519").replace(' ', "\t");
    fs::write(&file, format!("{}@revoked\t*\t{revoked}\n", sshd.known_hosts_line("ed25519"))).unwrap();
    assert_eq!(
        person.open(&host(&sshd), "true").await.unwrap_err(),
        SshError::new(
            SshErrorKind::HostKeyRevoked,
            format!("the host key {} is revoked by {}:2; nothing was sent to the server", shown(&sshd), file.display())
        )
        .with_hint("the server must get a new host key; ask its administrator")
    );
    assert!(!was_approached(&sshd), "{}", sshd.log());
}

#[tokio::test]
async fn the_known_type_is_asked_for_first() {
    let sshd = Sshd::start();
    let person = person(Interaction::Refuse);
    for kind in ["rsa", "ecdsa"] {
        fs::write(sshd.known_hosts(), sshd.known_hosts_line(kind)).unwrap();
        assert_eq!(person.run(&host(&sshd), "echo in").await.unwrap().stdout, "in\n", "{kind}");
    }
}

#[tokio::test]
async fn an_unreadable_file_is_an_error() {
    let sshd = Sshd::start();
    let person = person(Interaction::Ask);
    let mut host = host(&sshd);
    host.known_hosts = Some(sshd.file("."));
    let error = person.open(&host, "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::KnownHosts);
    assert_eq!(
        error.message,
        format!("reading the known host keys in {} failed: Is a directory", sshd.file(".").display())
    );
}

#[tokio::test]
async fn whatever_the_file_says_we_accept_what_ssh_accepts_and_no_more() {
    let sshd = Sshd::start();
    let person = person(Interaction::Refuse);
    let key = sshd.host_key("ed25519");
    let tabs = key.replace(' ', "\t");
    let other = {
        let text = fs::read_to_string(sshd.file("client.pub")).unwrap();
        text.split(' ').take(2).collect::<Vec<_>>().join(" ")
    };
    let name = format!("[127.0.0.1]:{}", sshd.port());
    let port = sshd.port();
    let mut hashed = sshd.known_hosts_line("ed25519");
    fs::write(sshd.file("hashed"), &hashed).unwrap();
    assert!(Command::new("ssh-keygen").arg("-qHf").arg(sshd.file("hashed")).output().unwrap().status.success());
    hashed = fs::read_to_string(sshd.file("hashed")).unwrap();
    // Each file, and whether we are stricter than ssh on purpose.
    let files = [
        (format!("{name} {key}\n"), false),
        (format!("127.0.0.1 {key}\n"), false),
        (format!("[127.0.0.1]:1 {key}\n"), false),
        (format!("*.0.0.1 {key}\n"), false),
        (format!("[127.0.0.?]:{port} {key}\n"), false),
        (format!("!{name},* {key}\n"), false),
        (format!("!127.0.0.1,*:{port} {key}\n"), false),
        (format!("  \t{name}\t{tabs}\tcomment\n"), false),
        (format!("{name} {other}\n{name} {key}\n"), false),
        (format!("{name} {other}\n"), false),
        (format!("{name} {other}\n127.0.0.1 {key}\n"), false),
        (format!("127.0.0.1 {other}\n"), false),
        (format!("{name} ssh-ed25519 AAAA\n{name} {key}\n"), false),
        (format!("{name}\n{name} {key} # comment"), false),
        (format!("{name} {key}\n@revoked * {key}\n"), false),
        (format!("{name} {key}\n@revoked 127.0.0.1 {key}\n"), true),
        (format!("127.0.0.1 {key}\n@revoked 127.0.0.1 {key}\n"), false),
        (format!("{name} {key}\n@revoked * {other}\n"), false),
        (format!("{name} {key}\n@revoked\t* {key}\n"), true),
        (format!("{name} {key}\n@revoked * ssh-ed25519 AAAA\n"), true),
        (format!("{name} {key}\n@Revoked * {key}\n"), false),
        (format!("@cert-authority * {key}\n"), false),
        (format!("@cert-authority * {other}\n{name} {key}\n"), false),
        (format!("{name} {key}\r\n"), false),
        (format!("# {name} {key}\n"), false),
        (hashed.clone(), false),
        (format!("|1|bad {key}\n{hashed}"), false),
        (format!("{name} {}\n", key.replace("ssh-ed25519", "ssh-rsa")), false),
        (String::new(), false),
    ];
    for (text, stricter) in files {
        fs::write(sshd.known_hosts(), &text).unwrap();
        let ours = person.run(&host(&sshd), "true").await;
        let theirs = ssh_accepts(&sshd);
        if stricter {
            assert!(ours.is_err() && theirs, "no longer stricter than ssh on:\n{text}\n{ours:?}");
        } else {
            assert_eq!(ours.is_ok(), theirs, "{text}\n{ours:?}");
        }
    }
}

/// Whether the real ssh connects with the server's own known_hosts file.
pub(super) fn ssh_accepts(sshd: &Sshd) -> bool {
    let status = Command::new("ssh")
        .args(["-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "IdentitiesOnly=yes"])
        .args(["-o", "GlobalKnownHostsFile=/dev/null", "-o", "IdentityAgent=none", "-o", "UpdateHostKeys=no"])
        .arg("-o")
        .arg(format!("UserKnownHostsFile={}", sshd.known_hosts().display()))
        .arg("-i")
        .arg(sshd.client_key())
        .args(["-p", &sshd.port().to_string(), "-l", &sshd.user(), &sshd.ip(), "true"])
        .output()
        .unwrap()
        .status;
    status.success()
}
