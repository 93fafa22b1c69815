//! Generated known_hosts files: the built-in client beside the real ssh, against one real sshd.

use super::harness::{host, person};
use super::host_keys::ssh_accepts;
use crate::sshd::Sshd;
use gpufleet::ssh::Interaction;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::fs;
use std::process::Command;

/// How many files are compared: ten times as many in a long run.
fn files() -> u32 {
    if std::env::var_os("GPUFLEET_TESTS_ALL").is_some() { 500 } else { 50 }
}

/// Host fields that name the server at `[127.0.0.1]:port`, name it in part, or name another.
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

/// The name as `ssh-keygen -H` hashes it.
fn hashed(name: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("known_hosts");
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";
    fs::write(&path, format!("{name} {key}\n")).unwrap();
    assert!(Command::new("ssh-keygen").arg("-qHf").arg(&path).output().unwrap().status.success());
    let text = fs::read_to_string(&path).unwrap();
    text.split(' ').next().unwrap().to_owned()
}

/// Whole lines; `own` are keys of the server, `other` is a stranger's.
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
async fn no_generated_file_makes_us_accept_what_ssh_refuses() {
    let sshd = Sshd::start();
    let person = person(Interaction::Refuse);
    let own = ["ed25519", "ecdsa", "rsa"].map(|kind| sshd.host_key(kind));
    let other = fs::read_to_string(sshd.file("stranger.pub")).unwrap().trim().to_owned();
    let ends = prop::sample::select(vec!["\n", "\n", ""]);
    // Of the odd lines alone ssh would accept few.
    let good = Just(format!("[127.0.0.1]:{} {}", sshd.port(), own[0]));
    let line = prop_oneof![4 => line(sshd.port(), &own, &other), 1 => good];
    let strategy = (prop::collection::vec(line, 0..5), ends);
    let mut runner = TestRunner::default();
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..files() {
        let (lines, end) = strategy.new_tree(&mut runner).unwrap().current();
        let text = lines.join("\n") + end;
        fs::write(sshd.known_hosts(), &text).unwrap();
        let ours = person.run(&host(&sshd), "true").await;
        let theirs = ssh_accepts(&sshd);
        assert!(ours.is_err() || theirs, "accepted what ssh refuses:\n{text}");
        // Stricter on purpose: a revocation that ssh cannot read, or that names the host without its port.
        assert!(ours.is_ok() || !theirs || text.contains("@revoked"), "refused what ssh accepts:\n{text}\n{ours:?}");
        *(if theirs { &mut accepted } else { &mut refused }) += 1;
    }
    assert!(accepted > 4 && refused > 4, "the files tell nothing: {accepted} accepted, {refused} refused");
}
