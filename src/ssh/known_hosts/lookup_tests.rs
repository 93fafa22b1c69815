use super::*;

const ED25519: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";
const STALE: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPeUZeo5M2R/hRnGwYbPcvGg5JK13FZHJwqf0NXspmaA";
const ECDSA: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBLX50GNDa6HmeaqWsDv024Sp4DS/Dx5smjvf5n+Of6qQFczfGcVNsmNXkBFNYbOlPhaay5vHMpfwXdQpY4egAwE=";

fn key(text: &str) -> PublicKey {
    PublicKey::from_openssh(text).unwrap()
}

fn known(text: &str) -> KnownHosts {
    KnownHosts::from_text(Path::new("kh"), text.to_owned())
}

/// The verdict on ED25519 for gpu01 at port 22, in one word.
fn verdict(text: &str) -> &'static str {
    word(&known(text).check_key(&HostName::new("gpu01", 22, None), &key(ED25519)))
}

fn verdict_at(text: &str, port: u16) -> &'static str {
    word(&known(text).check_key(&HostName::new("gpu01", port, None), &key(ED25519)))
}

fn word(verdict: &HostKeyStatus) -> &'static str {
    match verdict {
        HostKeyStatus::Known => "known",
        HostKeyStatus::Unknown(_) => "unknown",
        HostKeyStatus::Changed(_) => "changed",
        HostKeyStatus::Revoked(_) => "revoked",
    }
}

#[test]
fn a_revoked_key_is_refused_beside_a_plain_line() {
    for text in [
        format!("gpu01 {ED25519}\n@revoked gpu01 {ED25519}\n"),
        format!("@revoked * {ED25519}\ngpu01 {ED25519}\n"),
        format!("gpu01 {ED25519}\n@revoked\t*\t{ED25519}\n"),
        format!("gpu01 {ED25519}\n  @revoked  *  {}\n", ED25519.replace(' ', "\t")),
    ] {
        assert_eq!(verdict(&text), "revoked", "{text}");
    }
    assert_eq!(verdict(&format!("gpu01 {ED25519}\n@revoked gpu01 {STALE}\n")), "known");
    assert_eq!(verdict(&format!("gpu01 {ED25519}\n@revoked gpu02 {ED25519}\n")), "known");
}

#[test]
fn a_revocation_that_cannot_be_read_refuses_its_host() {
    for line in
        ["@revoked gpu01", "@revoked gpu* ssh-ed25519 AAAA", "@revoked gpu01 sk-future AAAA", "@revoked |1|x|y z"]
    {
        assert_eq!(verdict(&format!("gpu01 {ED25519}\n{line}\n")), "revoked", "{line}");
    }
    assert_eq!(verdict(&format!("gpu01 {ED25519}\n@revoked gpu02 ssh-ed25519 AAAA\n")), "known");
}

#[test]
fn another_type_alone_is_a_changed_key_and_is_asked_for_first() {
    let known = known(&format!("gpu01 {ECDSA}\n"));
    let name = HostName::new("gpu01", 22, None);
    assert_eq!(word(&known.check_key(&name, &key(ED25519))), "changed");
    assert_eq!(word(&known.check_key(&name, &key(ECDSA))), "known");
    assert_eq!(known.key_types(&name), [key(ECDSA).algorithm()]);
}

#[test]
fn the_second_of_two_lines_of_one_type_counts() {
    assert_eq!(verdict(&format!("gpu01 {STALE}\ngpu01 {ED25519}\n")), "known");
    assert_eq!(verdict(&format!("gpu01 {STALE}\n")), "changed");
}

#[test]
fn wildcards_negation_tabs_and_leading_blanks() {
    assert_eq!(verdict(&format!("gpu* {ED25519}\n")), "known");
    assert_eq!(verdict(&format!("gpu*,!gpu01 {ED25519}\n")), "unknown");
    assert_eq!(verdict(&format!(" \tgpu01\t{}\n", ED25519.replace(' ', "\t\t"))), "known");
}

#[test]
fn a_bad_line_is_skipped() {
    assert_eq!(verdict(&format!("gpu01 ssh-ed25519 AAAA\ngpu01\ngpu01 {ED25519}\n")), "known");
    assert_eq!(verdict("gpu01 ssh-ed25519 AAAA\n"), "unknown");
    assert_eq!(verdict(&format!("|1|broken {ED25519}\n")), "unknown");
}

#[test]
fn the_name_without_port_is_good_for_every_port_but_never_makes_a_key_changed() {
    assert_eq!(verdict_at(&format!("gpu01 {ED25519}\n"), 2222), "known");
    assert_eq!(verdict_at(&format!("gpu01 {STALE}\n"), 2222), "unknown");
    assert_eq!(verdict_at(&format!("[gpu01]:2222 {ED25519}\n"), 2222), "known");
    assert_eq!(verdict_at(&format!("[gpu01]:2222 {STALE}\ngpu01 {ED25519}\n"), 2222), "changed");
    assert_eq!(verdict_at(&format!("[gpu01]:2222 {ED25519}\n"), 22), "unknown");
    assert_eq!(verdict_at(&format!("[gpu01]:2222 {ED25519}\n@revoked gpu01 {ED25519}\n"), 2222), "revoked");
}

#[test]
fn a_certificate_authority_is_no_host_key() {
    let text = format!("@cert-authority gpu* {ED25519}\n");
    assert_eq!(verdict(&text), "unknown");
    let name = HostName::new("gpu01", 22, None);
    assert!(known(&text).has_authorities(&name));
    assert!(!known(&format!("@cert-authority db* {ED25519}\n")).has_authorities(&name));
    assert!(known(&text).key_types(&name).is_empty());
}

#[test]
fn an_alias_stands_for_name_and_port() {
    let name = HostName::new("gpu01", 2222, Some("cluster"));
    assert_eq!(known(&format!("cluster {ED25519}\n")).check_key(&name, &key(ED25519)), HostKeyStatus::Known);
    assert_eq!(word(&known(&format!("gpu01 {ED25519}\n")).check_key(&name, &key(ED25519))), "unknown");
}

#[test]
fn unknown_keys_tell_their_other_names_and_changed_ones_their_place() {
    let text = format!("gpu02,10.0.0.2 {ED25519}\n|1|x|y {ED25519}\n[gpu03]:22 {ED25519}\n");
    assert_eq!(
        known(&text).check_key(&HostName::new("gpu01", 22, None), &key(ED25519)),
        HostKeyStatus::Unknown(vec!["gpu02,10.0.0.2".into(), "(hashed name)".into(), "[gpu03]:22".into()])
    );
    let text = format!("# one\n\ngpu01 {STALE}\n");
    assert_eq!(
        known(&text).check_key(&HostName::new("gpu01", 22, None), &key(ED25519)),
        HostKeyStatus::Changed(KnownHostsEntry {
            file: "kh".into(),
            line: 3,
            key_type: Some("ssh-ed25519".into()),
            fingerprint: Some(key(STALE).fingerprint(HashAlg::Sha256).to_string()),
        })
    );
}

#[test]
fn a_missing_file_is_empty_and_an_unreadable_one_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    assert!(KnownHosts::read([&missing]).is_ok());
    let unreadable = folder.path().to_owned();
    let error = KnownHosts::read([&missing, &unreadable]).unwrap_err();
    assert_eq!(error.kind, SshErrorKind::KnownHosts);
    assert_eq!(
        error.message,
        format!("reading the known host keys in {} failed: Is a directory", unreadable.display())
    );
}

mod against_openssh {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};
    use std::process::Command;

    /// The names that lines carry and that are asked for.
    const NAMES: [&str; 5] = ["gpu01", "gpu02.lab", "10.0.0.1", "[gpu01]:2222", "[10.0.0.1]:22022"];

    fn hosts() -> impl Strategy<Value = String> {
        let one = prop_oneof![
            4 => prop::sample::select(NAMES.to_vec()).prop_map(str::to_owned),
            1 => prop::sample::select(vec!["GPU01", "gpu*", "gpu0?", "*", "[*]:2222", "10.0.0.?", "*.lab", "[gpu0?]:*", ""])
                .prop_map(str::to_owned),
            1 => prop::sample::select(NAMES.to_vec()).prop_map(|name| format!("!{name}")),
        ];
        prop_oneof![
            4 => prop::collection::vec(one, 1..4).prop_map(|names| names.join(",")),
            1 => (prop::array::uniform20(any::<u8>()), prop::sample::select(NAMES.to_vec()))
                .prop_map(|(salt, name)| pattern::hashed_field(&salt, name).unwrap()),
            1 => prop::sample::select(vec!["|1|", "|1|AAAA|AAAA", "|2|a|b", "|"]).prop_map(str::to_owned),
        ]
    }

    fn line() -> impl Strategy<Value = String> {
        let marker = prop::sample::select(vec!["", "", "", "", "@revoked ", "@cert-authority ", "@revoked  ", "@odd "]);
        let blank = prop::sample::select(vec![" ", " ", "  ", "\t", " \t"]);
        let key = prop::sample::select(vec![
            ED25519.to_owned(),
            STALE.to_owned(),
            ECDSA.to_owned(),
            ED25519.replace(' ', "\t"),
            format!("{ED25519} comment here"),
            format!("{ED25519}\r"),
            "ssh-ed25519 AAAA".to_owned(),
            "ssh-ed25519".to_owned(),
            ED25519.replace("ssh-ed25519", "ssh-rsa"),
            String::new(),
        ]);
        let lead = prop::sample::select(vec!["", "", "", " ", "\t", "# "]);
        (lead, marker, hosts(), blank, key)
            .prop_map(|(lead, marker, hosts, blank, key)| format!("{lead}{marker}{hosts}{blank}{key}"))
    }

    /// What `ssh-keygen -F` finds: line number, marker, and the key where it prints one.
    fn found_by_openssh(path: &Path, name: &str) -> Vec<(usize, String)> {
        let output = Command::new("ssh-keygen").arg("-F").arg(name).arg("-f").arg(path).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut lines = text.lines();
        let mut found = Vec::new();
        while let Some(comment) = lines.next() {
            let Some(number) = comment.strip_prefix("# Host ").and_then(|rest| rest.split(" found: line ").nth(1))
            else {
                continue;
            };
            let (number, marker) = number.split_once(' ').unwrap_or((number, ""));
            let _key = lines.next();
            found.push((number.parse().unwrap(), marker.trim().to_owned()));
        }
        found
    }

    /// What our reading finds. `ssh-keygen -F` does not read keys, it only wants something in their place.
    fn found_by_us(text: &str, name: &str) -> Vec<(usize, String)> {
        known(text)
            .lines(name)
            .filter(|(_, line, matched)| *matched == Match::Yes && !line.key_text().is_empty())
            .map(|((_, number), line, _)| {
                let marker = match line.marker {
                    Marker::None => "",
                    Marker::CertAuthority => "CA",
                    Marker::Revoked => "REVOKED",
                };
                (number, marker.to_owned())
            })
            .collect()
    }

    /// How many files are compared: ten times as many in a long run.
    fn cases() -> u32 {
        if std::env::var_os("GPUFLEET_TESTS_ALL").is_some() { 10_000 } else { 1000 }
    }

    #[test]
    fn a_thousand_files_are_read_as_ssh_keygen_reads_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("known_hosts");
        let mut runner = TestRunner::new(Config { cases: cases(), failure_persistence: None, ..Config::default() });
        let files = (prop::collection::vec(line(), 1..12), prop::sample::select(NAMES.to_vec()));
        runner
            .run(&files, |(lines, name)| {
                let text = lines.join("\n") + "\n";
                std::fs::write(&path, &text).unwrap();
                prop_assert_eq!(found_by_us(&text, name), found_by_openssh(&path, name), "{}\n{}", name, text);
                Ok(())
            })
            .unwrap();
    }
}
