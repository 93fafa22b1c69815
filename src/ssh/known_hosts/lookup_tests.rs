use super::*;
use std::os::unix::fs::MetadataExt;

const ED25519: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";
const STALE: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPeUZeo5M2R/hRnGwYbPcvGg5JK13FZHJwqf0NXspmaA";
const ECDSA: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBLX50GNDa6HmeaqWsDv024Sp4DS/Dx5smjvf5n+Of6qQFczfGcVNsmNXkBFNYbOlPhaay5vHMpfwXdQpY4egAwE=";

/// `ED25519` with a comment.
const COMMENTED: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ somebody's comment";

fn key(text: &str) -> PublicKey {
    PublicKey::from_openssh(text).unwrap()
}

fn known(text: &str) -> KnownHosts {
    KnownHosts::from_text(Path::new("kh"), text.to_owned())
}

/// The status of ED25519 for gpu01 at port 22, in one word.
fn status(text: &str) -> &'static str {
    word(&known(text).check_key(&HostName::new("gpu01", 22, None), &key(ED25519)))
}

fn status_at(text: &str, port: u16) -> &'static str {
    word(&known(text).check_key(&HostName::new("gpu01", port, None), &key(ED25519)))
}

fn word(status: &HostKeyStatus) -> &'static str {
    match status {
        HostKeyStatus::Known => "known",
        HostKeyStatus::Unknown(_) => "unknown",
        HostKeyStatus::Changed(_) => "changed",
        HostKeyStatus::Revoked(_) => "revoked",
    }
}

#[test]
fn a_revocation_overrides_a_plain_line() {
    for text in [
        format!("gpu01 {ED25519}\n@revoked gpu01 {ED25519}\n"),
        format!("@revoked * {ED25519}\ngpu01 {ED25519}\n"),
        format!("gpu01 {ED25519}\n@revoked\t*\t{ED25519}\n"),
        format!("gpu01 {ED25519}\n  @revoked  *  {}\n", ED25519.replace(' ', "\t")),
    ] {
        assert_eq!(status(&text), "revoked", "{text}");
    }
    assert_eq!(status(&format!("gpu01 {ED25519}\n@revoked gpu01 {STALE}\n")), "known");
    assert_eq!(status(&format!("gpu01 {ED25519}\n@revoked gpu02 {ED25519}\n")), "known");
}

#[test]
fn a_revocation_with_an_unreadable_key_refuses_its_host() {
    for line in
        ["@revoked gpu01", "@revoked gpu* ssh-ed25519 AAAA", "@revoked gpu01 sk-future AAAA", "@revoked |1|x|y z"]
    {
        assert_eq!(status(&format!("gpu01 {ED25519}\n{line}\n")), "revoked", "{line}");
    }
    assert_eq!(status(&format!("gpu01 {ED25519}\n@revoked gpu02 ssh-ed25519 AAAA\n")), "known");
}

#[test]
fn a_key_of_another_type_counts_as_changed() {
    let known = known(&format!("gpu01 {ECDSA}\n"));
    let name = HostName::new("gpu01", 22, None);
    assert_eq!(word(&known.check_key(&name, &key(ED25519))), "changed");
    assert_eq!(word(&known.check_key(&name, &key(ECDSA))), "known");
    assert_eq!(known.key_types(&name), [key(ECDSA).algorithm()]);
}

#[test]
fn any_of_several_lines_may_match() {
    assert_eq!(status(&format!("gpu01 {STALE}\ngpu01 {ED25519}\n")), "known");
    assert_eq!(status(&format!("gpu01 {STALE}\n")), "changed");
}

#[test]
fn wildcards_negation_tabs_and_leading_blanks_are_supported() {
    assert_eq!(status(&format!("gpu* {ED25519}\n")), "known");
    assert_eq!(status(&format!("gpu*,!gpu01 {ED25519}\n")), "unknown");
    assert_eq!(status(&format!(" \tgpu01\t{}\n", ED25519.replace(' ', "\t\t"))), "known");
}

#[test]
fn malformed_lines_are_skipped() {
    assert_eq!(status(&format!("gpu01 ssh-ed25519 AAAA\ngpu01\ngpu01 {ED25519}\n")), "known");
    assert_eq!(status("gpu01 ssh-ed25519 AAAA\n"), "unknown");
    assert_eq!(status(&format!("|1|broken {ED25519}\n")), "unknown");
}

#[test]
fn a_key_of_the_name_without_port_is_accepted_but_never_makes_a_key_changed() {
    assert_eq!(status_at(&format!("gpu01 {ED25519}\n"), 2222), "known");
    assert_eq!(status_at(&format!("gpu01 {STALE}\n"), 2222), "unknown");
    assert_eq!(status_at(&format!("[gpu01]:2222 {ED25519}\n"), 2222), "known");
    assert_eq!(status_at(&format!("[gpu01]:2222 {STALE}\ngpu01 {ED25519}\n"), 2222), "changed");
    assert_eq!(status_at(&format!("[gpu01]:2222 {ED25519}\n"), 22), "unknown");
    assert_eq!(status_at(&format!("[gpu01]:2222 {ED25519}\n@revoked gpu01 {ED25519}\n"), 2222), "revoked");
}

#[test]
fn an_authority_line_is_not_a_host_key() {
    let text = format!("@cert-authority gpu* {ED25519}\n");
    assert_eq!(status(&text), "unknown");
    let name = HostName::new("gpu01", 22, None);
    assert!(known(&text).has_authorities(&name));
    assert!(!known(&format!("@cert-authority db* {ED25519}\n")).has_authorities(&name));
    assert!(known(&text).key_types(&name).is_empty());
}

#[test]
fn an_alias_replaces_name_and_port() {
    let name = HostName::new("gpu01", 2222, Some("cluster"));
    assert_eq!(known(&format!("cluster {ED25519}\n")).check_key(&name, &key(ED25519)), HostKeyStatus::Known);
    assert_eq!(word(&known(&format!("gpu01 {ED25519}\n")).check_key(&name, &key(ED25519))), "unknown");
}

#[test]
fn unknown_keys_list_other_names_and_changed_keys_the_line() {
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
fn a_missing_file_is_empty_and_an_unreadable_file_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    assert!(KnownHosts::read([&missing]).is_ok());
    let unreadable = directory.path().to_owned();
    let error = KnownHosts::read([&missing, &unreadable]).unwrap_err();
    assert_eq!(error.kind, SshErrorKind::KnownHosts);
    assert_eq!(
        error.message,
        format!("reading the known host keys in {} failed: Is a directory", unreadable.display())
    );
}

#[test]
fn a_new_key_is_appended_once_to_a_private_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ssh/known_hosts");
    let name = HostName::new("GPU01", 2222, None);
    append_host_key(&path, &name, &key(COMMENTED), false).unwrap();
    append_host_key(&path, &name, &key(COMMENTED), false).unwrap();
    let line = "[gpu01]:2222 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ\n";
    assert_eq!(fs::read_to_string(&path).unwrap(), line);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
    fs::write(&path, "# no end").unwrap();
    append_host_key(&path, &name, &key(COMMENTED), false).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("# no end\n{line}"));
}

#[test]
fn a_lock_that_another_process_keeps_is_reported_and_a_released_one_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("known_hosts");
    let name = HostName::new("gpu01", 22, None);
    let append_within = |limit| append(&path, &name, &key(COMMENTED), false, limit);
    // `flock` keeps the lock until the end of `cat`, so until its standard input is closed.
    let mut holder = std::process::Command::new("flock");
    let mut holder = holder.arg(&path).arg("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while !path.exists() || File::open(&path).unwrap().try_lock().is_ok() {
        assert!(std::time::Instant::now() < deadline, "flock takes the lock");
        std::thread::yield_now();
    }
    let error = append_error(&path, &append_within(Duration::from_millis(50)).unwrap_err());
    let pid = holder.id();
    assert_eq!(
        error,
        SshError::new(
            SshErrorKind::KnownHosts,
            format!(
                "writing the host key to {} failed: flock (pid {pid}) has kept it locked for 0.05 s",
                path.display()
            )
        )
        .with_hint(format!("ps -fp {pid}   # end it or wait for its end, then connect again (r)"))
    );
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| append_within(Duration::from_secs(10)));
        drop(holder.stdin.take());
        waiting.join().unwrap().unwrap();
    });
    holder.wait().unwrap();
    assert_eq!(KnownHosts::read([&path]).unwrap().check_key(&name, &key(ED25519)), HostKeyStatus::Known);
}

#[test]
fn names_are_hashed_on_request() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("known_hosts");
    let name = HostName::new("gpu01", 22, None);
    append_host_key(&path, &name, &key(COMMENTED), true).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("|1|") && !text.contains("gpu01"), "{text}");
    let known = KnownHosts::read([&path]).unwrap();
    assert_eq!(known.check_key(&name, &key(ED25519)), HostKeyStatus::Known);
}

#[test]
fn a_directory_that_cannot_be_created_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let path = file.join("known_hosts");
    let error = append_host_key(&path, &HostName::new("gpu01", 22, None), &key(COMMENTED), false).unwrap_err();
    assert_eq!(error.kind, SshErrorKind::KnownHosts);
    assert_eq!(error.message, format!("writing the host key to {} failed: File exists", path.display()));
}

mod against_openssh {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};
    use std::process::Command;

    /// The names in the lines and in the lookups.
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
                .prop_map(|(salt, name)| line::hashed_field(&salt, name).unwrap()),
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

    /// The lines that `ssh-keygen -F` finds: line number and marker.
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

    /// The lines that `KnownHosts` finds. `ssh-keygen -F` does not parse keys, but skips lines without one.
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

    /// The number of generated files.
    fn cases() -> u32 {
        if std::env::var_os("GPUFLEET_TESTS_ALL").is_some() { 10_000 } else { 1000 }
    }

    #[test]
    fn lookup_agrees_with_ssh_keygen() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("known_hosts");
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

fn error_with_path(error: &SshError, path: &Path) -> String {
    error.message.replace(&path.display().to_string(), "PATH")
}

#[test]
fn special_and_large_files_are_refused_and_dev_null_is_empty() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("known_hosts");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let (name, key) = (HostName::new("gpu01", 22, None), key(ED25519));
    for path in [path.clone(), "/dev/zero".into()] {
        let error = KnownHosts::read([&path]).unwrap_err();
        assert_eq!(
            error_with_path(&error, &path),
            "reading the known host keys in PATH failed: it is not a regular file"
        );
        let error = append_host_key(&path, &name, &key, false).unwrap_err();
        assert_eq!(error_with_path(&error, &path), "writing the host key to PATH failed: it is not a regular file");
    }
    fs::remove_file(&path).unwrap();
    File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
    let error = KnownHosts::read([&path]).unwrap_err();
    assert_eq!(
        error_with_path(&error, &path),
        "reading the known host keys in PATH failed: it is larger than 16384 KiB"
    );
    let null = PathBuf::from("/dev/null");
    assert_eq!(word(&KnownHosts::read([&null]).unwrap().check_key(&name, &key)), "unknown");
    append_host_key(&null, &name, &key, false).unwrap();
}

#[test]
fn what_a_failed_write_left_is_removed_unless_another_program_wrote_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("known_hosts");
    let line = format!("gpu01 {ED25519}\n");
    for (left, expected) in [
        (line.as_str(), "first\n".to_owned()),
        ("gpu01 ssh-ed", "first\n".to_owned()),
        ("", "first\n".to_owned()),
        ("gpu01 ssh-edgpu02 other\n", "first\ngpu01 ssh-edgpu02 other\n".to_owned()),
    ] {
        fs::write(&path, format!("first\n{left}")).unwrap();
        let mut file = OpenOptions::new().read(true).append(true).open(&path).unwrap();
        undo_append(&mut file, 6, line.as_bytes()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    }
}

/// A directory on which a file system is mounted.
struct Mounted(tempfile::TempDir);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_leaves_no_half_line() {
    if !rustix::process::getuid().is_root() {
        return;
    }
    let disk = Mounted(tempfile::tempdir().unwrap());
    let mut mount = std::process::Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=4k", "tmpfs"]).arg(disk.0.path());
    if !mount.status().unwrap().success() {
        // Root of a container may not mount.
        return;
    }
    let path = disk.0.path().join("known_hosts");
    let before = format!("{}\n", "#".repeat(4080));
    fs::write(&path, &before).unwrap();
    let error = append_host_key(&path, &HostName::new("gpu01", 22, None), &key(ED25519), false).unwrap_err();
    assert_eq!(error_with_path(&error, &path), "writing the host key to PATH failed: No space left on device");
    assert_eq!(fs::read_to_string(&path).unwrap(), before);
}
