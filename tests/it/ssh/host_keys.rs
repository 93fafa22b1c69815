//! Host keys against a real sshd: known, unknown, changed and revoked, compared with the real ssh.

use super::client::{client, host};
use crate::sshd::Sshd;
use gpufleet::ssh::{Answer, Interaction, PromptKind, SshError, SshErrorKind};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::fs;
use std::process::Command;

fn shown(sshd: &Sshd) -> String {
    format!("ssh-ed25519 {}", sshd.fingerprint("ed25519"))
}

/// Whether the server has logged an authentication attempt.
fn was_approached(sshd: &Sshd) -> bool {
    let log = sshd.log();
    log.contains("Accepted") || log.contains("Failed") || log.contains("Postponed")
}

#[tokio::test]
async fn unknown_key_is_refused_without_prompts() {
    let sshd = Sshd::start();
    let client = client(Interaction::Refuse);
    fs::remove_file(sshd.known_hosts()).unwrap();
    let (user, port) = (sshd.user(), sshd.port());
    assert_eq!(
        client.open(&host(&sshd), "true").await.unwrap_err(),
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
async fn trust_once_lasts_for_the_process_and_writes_no_line() {
    let sshd = Sshd::start();
    let mut client = client(Interaction::Ask);
    fs::write(sshd.known_hosts(), format!("elsewhere {}\n", sshd.host_key("ed25519"))).unwrap();
    let host = host(&sshd);
    let login = client.spawn(&host, "echo in");
    let prompt = client.next_prompt().await;
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
    client.context.answer(prompt.id, Answer::TrustOnce);
    assert_eq!(login.await.unwrap().unwrap().stdout, "in\n");
    assert_eq!(client.run(&host, "echo again").await.unwrap().stdout, "again\n");
    assert!(fs::read_to_string(sshd.known_hosts()).unwrap().starts_with("elsewhere "));
}

#[tokio::test]
async fn trust_and_save_asks_two_hosts_once_and_writes_one_line() {
    let sshd = Sshd::start();
    let mut client = client(Interaction::Ask);
    fs::remove_file(sshd.known_hosts()).unwrap();
    let first = host(&sshd);
    let mut second = first.clone();
    second.name = "gpu02".into();
    let login = [client.spawn(&first, "echo in"), client.spawn(&second, "echo in")];
    let mut prompt = client.next_prompt().await;
    while prompt.hosts.len() < 2 {
        prompt = client.next_prompt().await;
    }
    client.context.answer(prompt.id, Answer::TrustAndSave);
    for one in login {
        assert_eq!(one.await.unwrap().unwrap().stdout, "in\n");
    }
    assert_eq!(fs::read_to_string(sshd.known_hosts()).unwrap(), sshd.known_hosts_line("ed25519"));
    // A new process and the real ssh accept the key now.
    let other = super::client::client(Interaction::Refuse);
    assert_eq!(other.run(&first, "echo in").await.unwrap().stdout, "in\n");
    assert!(ssh_accepts(&sshd));
}

#[tokio::test]
async fn declined_key_ends_the_attempt() {
    let sshd = Sshd::start();
    let mut client = client(Interaction::Ask);
    fs::remove_file(sshd.known_hosts()).unwrap();
    let login = client.spawn(&host(&sshd), "true");
    let prompt = client.next_prompt().await;
    client.context.answer(prompt.id, Answer::Decline);
    assert_eq!(
        login.await.unwrap().unwrap_err(),
        SshError::new(SshErrorKind::Declined, format!("the host key {} was not trusted", sshd.fingerprint("ed25519")))
    );
}

#[tokio::test]
async fn changed_key_stops_the_login_before_authentication() {
    let mut sshd = Sshd::start();
    let client = client(Interaction::Ask);
    let known = sshd.fingerprint("ed25519");
    sshd.change_host_keys();
    sshd.restart();
    let (port, file) = (sshd.port(), sshd.known_hosts());
    assert_eq!(
        client.open(&host(&sshd), "true").await.unwrap_err(),
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
async fn revoked_key_stops_the_login_before_authentication() {
    let sshd = Sshd::start();
    let client = client(Interaction::Ask);
    let file = sshd.known_hosts();
    let revoked = sshd.host_key("ed25519").replace(' ', "\t");
    fs::write(&file, format!("{}@revoked\t*\t{revoked}\n", sshd.known_hosts_line("ed25519"))).unwrap();
    assert_eq!(
        client.open(&host(&sshd), "true").await.unwrap_err(),
        SshError::new(
            SshErrorKind::HostKeyRevoked,
            format!("the host key {} is revoked by {}:2; nothing was sent to the server", shown(&sshd), file.display())
        )
        .with_hint("the server must get a new host key; ask its administrator")
    );
    assert!(!was_approached(&sshd), "{}", sshd.log());
}

#[tokio::test]
async fn known_key_types_are_negotiated_first() {
    let sshd = Sshd::start();
    let client = client(Interaction::Refuse);
    for kind in ["rsa", "ecdsa"] {
        fs::write(sshd.known_hosts(), sshd.known_hosts_line(kind)).unwrap();
        assert_eq!(client.run(&host(&sshd), "echo in").await.unwrap().stdout, "in\n", "{kind}");
    }
}

#[tokio::test]
async fn unreadable_known_hosts_file_is_an_error() {
    let sshd = Sshd::start();
    let client = client(Interaction::Ask);
    let mut host = host(&sshd);
    host.known_hosts = Some(sshd.file("."));
    let error = client.open(&host, "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::KnownHosts);
    assert_eq!(
        error.message,
        format!("reading the known host keys in {} failed: Is a directory", sshd.file(".").display())
    );
}

#[tokio::test]
async fn known_hosts_files_accept_no_more_than_ssh_accepts() {
    let sshd = Sshd::start();
    let client = client(Interaction::Refuse);
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
    // Each file, and whether gpufleet is stricter than ssh on purpose.
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
        let ours = client.run(&host(&sshd), "true").await;
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

/// The number of files to compare: ten times as many in a long run.
fn files() -> u32 {
    if std::env::var_os("GPUFLEET_TESTS_ALL").is_some() { 500 } else { 50 }
}

/// Host fields that match the server at `[127.0.0.1]:port`, match it partly, or match another server.
fn hosts(port: u16) -> impl Strategy<Value = String> {
    let exact = format!("[127.0.0.1]:{port}");
    let others = ["127.0.0.1", "127.0.0.2", "[127.0.0.1]:1", "*", "127.0.0.?", "[*]:*", "*.0.1", "gpu01", ""];
    let one = prop_oneof![
        6 => Just(exact.clone()),
        3 => prop::sample::select(others.to_vec()).prop_map(str::to_owned),
        1 => prop::sample::select(vec![exact.clone(), "127.0.0.1".to_owned(), "gpu*".to_owned()])
            .prop_map(|name| format!("!{name}")),
    ];
    prop_oneof![
        5 => prop::collection::vec(one, 1..3).prop_map(|names| names.join(",")),
        2 => prop::sample::select(vec![exact, "127.0.0.1".to_owned(), "gpu01".to_owned()]).prop_map(|name| hashed(&name)),
        1 => prop::sample::select(vec!["|1|", "|1|AAAA|AAAA", "|2|a|b", "|"]).prop_map(str::to_owned),
    ]
}

/// Hashes the name with `ssh-keygen -H`.
fn hashed(name: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("known_hosts");
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";
    fs::write(&path, format!("{name} {key}\n")).unwrap();
    assert!(Command::new("ssh-keygen").arg("-qHf").arg(&path).output().unwrap().status.success());
    let text = fs::read_to_string(&path).unwrap();
    text.split(' ').next().unwrap().to_owned()
}

/// Whole lines; `own` are the keys of the server, `other` is a different key.
fn line(port: u16, own: &[String], other: &str) -> impl Strategy<Value = String> + use<> {
    let ed25519 = own[0].clone();
    let keys = vec![
        ed25519.clone(),
        ed25519.clone(),
        own[1].clone(),
        own[2].clone(),
        other.to_owned(),
        other.to_owned(),
        ed25519.replace(' ', "\t"),
        format!("{ed25519} a comment"),
        format!("{ed25519}\r"),
        ed25519.replace("ssh-ed25519", "ssh-rsa"),
        ed25519[..ed25519.len() - 8].to_owned(),
        "ssh-ed25519 AAAA".to_owned(),
        "ssh-future AAAAC3NzaC1lZDI1NTE5".to_owned(),
        String::new(),
    ];
    let lead = prop::sample::select(vec!["", "", "", "", " ", "\t", "# "]);
    let marker =
        prop::sample::select(vec!["", "", "", "", "", "@revoked ", "@revoked\t", "@cert-authority ", "@odd ", "@"]);
    let blank = prop::sample::select(vec![" ", " ", "  ", "\t", " \t"]);
    (lead, marker, hosts(port), blank, prop::sample::select(keys))
        .prop_map(|(lead, marker, hosts, blank, key)| format!("{lead}{marker}{hosts}{blank}{key}"))
}

#[tokio::test]
async fn generated_known_hosts_files_never_accept_what_ssh_refuses() {
    let sshd = Sshd::start();
    let client = client(Interaction::Refuse);
    let own = ["ed25519", "ecdsa", "rsa"].map(|kind| sshd.host_key(kind));
    let other = fs::read_to_string(sshd.file("stranger.pub")).unwrap().trim().to_owned();
    let ends = prop::sample::select(vec!["\n", "\n", ""]);
    // With only malformed lines ssh would accept few files.
    let good = Just(format!("[127.0.0.1]:{} {}", sshd.port(), own[0]));
    let line = prop_oneof![4 => line(sshd.port(), &own, &other), 1 => good];
    let strategy = (prop::collection::vec(line, 0..5), ends);
    let mut runner = TestRunner::default();
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..files() {
        let (lines, end) = strategy.new_tree(&mut runner).unwrap().current();
        let text = lines.join("\n") + end;
        fs::write(sshd.known_hosts(), &text).unwrap();
        let ours = client.run(&host(&sshd), "true").await;
        let theirs = ssh_accepts(&sshd);
        assert!(ours.is_err() || theirs, "accepted what ssh refuses:\n{text}");
        // gpufleet is stricter on purpose: it obeys a revocation that ssh cannot parse or that lacks the port.
        assert!(ours.is_ok() || !theirs || text.contains("@revoked"), "refused what ssh accepts:\n{text}\n{ours:?}");
        *(if theirs { &mut accepted } else { &mut refused }) += 1;
    }
    assert!(accepted > 4 && refused > 4, "the generated files are too uniform: {accepted} accepted, {refused} refused");
}
