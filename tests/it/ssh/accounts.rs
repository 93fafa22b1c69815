//! The remote script under the shells and in the homes that accounts have, by a real sshd.

use super::machine::{Account, Home, Machine};
use crate::lab::gpufleet;
use crate::left_out::have_root;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// What `gpufleet doctor` says of one host.
fn part<'a>(report: &'a str, host: &str) -> &'a str {
    let begin = report.find(&format!("{host}\n  ")).unwrap_or_else(|| panic!("no {host} in:\n{report}"));
    let rest = &report[begin..];
    let end = rest.match_indices('\n').find(|(at, _)| rest[at + 1..].starts_with(|next: char| next != ' '));
    &rest[..end.map_or(rest.len(), |(at, _)| at)]
}

fn is_live(part: &str) -> bool {
    !part.contains("FAIL") && part.contains("first snapshot")
}

/// The path of the probe that was started.
fn probe(part: &str) -> &str {
    let rest = part.split("the probe is ").nth(1).unwrap_or_else(|| panic!("no probe in:\n{part}"));
    rest.lines().next().unwrap()
}

fn doctor(hosts: &str) -> String {
    String::from_utf8(gpufleet(&["doctor", hosts]).stdout).unwrap()
}

const NOISE: &[(&str, &str)] =
    &[(".bashrc", "echo Welcome to the lab; echo 'quota: 97%' >&2; yes noise | head -n 200; stty sane\n")];
const READS: &[(&str, &str)] = &[(".bashrc", "cat >/dev/null\n")];

#[test]
fn every_shell_and_every_home_works_or_says_what_is_wrong_with_it() {
    if !have_root() {
        return;
    }
    let usual = |name, shell| Account::new(name, shell, Home::Usual);
    let with = |name, home| Account::new(name, "/bin/sh", home);
    let accounts = [
        usual("in-bash", "/bin/bash"),
        usual("in-dash", "/bin/dash"),
        usual("in-zsh", "/usr/bin/zsh"),
        usual("in-fish", "/usr/bin/fish"),
        usual("in-tcsh", "/usr/bin/tcsh"),
        usual("noisy", "/bin/bash").files(NOISE),
        usual("reading", "/bin/bash").files(READS),
        usual("nobody-in", "/usr/sbin/nologin"),
        usual("forced", "/bin/sh").forced("echo only backups here; exit 3"),
        usual("sftp-only", "/bin/sh").forced("internal-sftp"),
        with("noexec", Home::Mounted("noexec")),
        with("read-only", Home::Mounted("ro")),
        with("full", Home::Mounted("size=64k")),
        with("homeless", Home::Missing),
        with("hung", Home::Hung),
        with("hung-cache", Home::HungCache),
    ];
    for account in &accounts {
        assert!(Path::new(account.shell).exists(), "these tests need {}: tests/run installs it", account.shell);
    }
    let machine = Machine::start(&accounts, "size=32m", &[]);
    let names: Vec<&str> = accounts.iter().map(|account| account.name).collect();
    let hosts = machine.hosts_toml(&names, "");
    let report = doctor(&hosts);
    println!("{report}");
    for name in ["in-bash", "in-dash", "in-zsh", "in-fish", "in-tcsh", "noisy"] {
        let part = part(&report, name);
        assert!(is_live(part), "{part}");
        let cache = machine.home(name).join(".cache/gpufleet");
        assert!(probe(part).starts_with(&*cache.to_string_lossy()), "{part}");
    }
    for (name, words) in [
        ("reading", "the remote shell did not answer within 10 s"),
        ("nobody-in", "the account has no login shell (exit status 1: This account is currently not available.)"),
        ("forced", "the login ended before /bin/sh answered (exit status 3: only backups here)"),
        ("sftp-only", "the account may only use sftp (exit status 1: This service allows sftp connections only.)"),
        ("hung", "the remote shell did not answer within 10 s"),
        (
            "hung-cache",
            &format!("the remote script hung at {}/.cache/gpufleet within 10 s", machine.home("hung-cache").display()),
        ),
    ] {
        let part = part(&report, name);
        assert!(part.contains("FAIL") && part.contains(words), "{name}:\n{part}");
        assert!(part.contains("hint: "), "{name}:\n{part}");
    }
    for (name, why) in [
        ("noexec", "programs may not be run there"),
        ("read-only", "Read-only file system"),
        ("full", "No space left on device"),
        ("homeless", "Permission denied"),
    ] {
        let part = part(&report, name);
        let cache = machine.home(name).join(".cache/gpufleet");
        assert!(part.contains(&format!("not {}: {why}", cache.display())), "{name}:\n{part}");
        assert!(is_live(part) && probe(part).starts_with("/tmp/gpufleet-"), "{name}:\n{part}");
    }
    // The probe of another run is found where it was put.
    let again = doctor(&hosts);
    for name in ["in-zsh", "in-fish", "in-tcsh", "noexec", "homeless"] {
        assert_eq!(probe(part(&again, name)), probe(part(&report, name)));
        assert!(!part(&again, name).contains("bytes sent"), "{again}");
    }
}

#[test]
fn without_a_place_for_programs_each_is_named_with_its_reason() {
    if !have_root() {
        return;
    }
    let accounts = [
        Account::new("noexec", "/bin/bash", Home::Mounted("noexec")),
        Account::new("full", "/usr/bin/tcsh", Home::Mounted("size=64k")),
    ];
    let machine = Machine::start(&accounts, "noexec", &[]);
    let report = doctor(&machine.hosts_toml(&["noexec", "full"], ""));
    println!("{report}");
    for (name, why) in [("noexec", "programs may not be run there"), ("full", "No space left on device")] {
        let part = part(&report, name);
        let cache = machine.home(name).join(".cache/gpufleet");
        let begin = format!("no directory for the probe: {}: {why}; /tmp/gpufleet-", cache.display());
        let told = part.split(&begin).nth(1).unwrap_or_else(|| panic!("{name}:\n{part}"));
        assert!(told.lines().next().unwrap().ends_with(": programs may not be run there"), "{part}");
        // `nvidia-smi` is asked then, and there is none.
        assert!(is_live(part), "{part}");
    }
}

/// The probes in a folder.
fn entries(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn controllers_at_once_and_users_at_once_each_get_a_probe_of_their_own() {
    if !have_root() {
        return;
    }
    let accounts = [
        Account::new("ann", "/bin/bash", Home::Usual),
        Account::new("bob", "/bin/bash", Home::Missing),
        Account::new("eve", "/bin/bash", Home::Missing),
    ];
    let machine = Machine::start(&accounts, "size=32m", &[]);
    let hosts = machine.hosts_toml(&["ann", "bob", "eve"], "");
    let state = tempfile::tempdir().unwrap();
    let running: Vec<_> = (0..4)
        .map(|number| {
            Command::new(env!("CARGO_BIN_EXE_gpufleet"))
                .args(["status", "--json", &hosts])
                .env_remove("SSH_AUTH_SOCK")
                .env("XDG_STATE_HOME", state.path().join(number.to_string()))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for one in running {
        let output = one.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let cache = machine.home("ann").join(".cache/gpufleet");
    let [name] = &entries(&cache)[..] else { panic!("{:?}", entries(&cache)) };
    let file = fs::metadata(cache.join(name)).unwrap();
    assert_eq!((file.mode() & 0o7777, file.nlink()), (0o700, 1));
    // Those without a home have a directory each in /tmp, and nobody else may enter it.
    let report = doctor(&hosts);
    let [bob, eve] = ["bob", "eve"].map(|name| probe(part(&report, name)).to_owned());
    assert_ne!(Path::new(&bob).parent(), Path::new(&eve).parent());
}

#[test]
fn what_another_user_plants_is_never_run() {
    if !have_root() {
        return;
    }
    let accounts = [Account::new("ann", "/bin/sh", Home::Missing), Account::new("eve", "/bin/sh", Home::Missing)];
    let machine = Machine::start(&accounts, "size=32m", &[]);
    let hosts = machine.hosts_toml(&["ann"], "");
    // Which name is it that the probe gets?
    let first = doctor(&hosts);
    let path = probe(part(&first, "ann")).to_owned();
    let name = path.rsplit('/').next().unwrap();
    assert!(String::from_utf8(gpufleet(&["clean", &hosts]).stdout).unwrap().contains("removed "));
    let planted = format!(
        "cd /tmp; mkdir -m 777 gpufleet-aaaaaaaa && printf '#!/bin/sh\\ntouch /tmp/owned\\n' >gpufleet-aaaaaaaa/{name} && \
         chmod 777 gpufleet-aaaaaaaa/{name}; mkdir -m 777 theirs && cp gpufleet-aaaaaaaa/{name} theirs && \
         ln -s /tmp/theirs gpufleet-bbbbbbbb; mkfifo -m 777 gpufleet-cccccccc; : >gpufleet-dddddddd; ls -ld /tmp/gpufleet-*"
    );
    let eve = machine.hosts_toml(&["eve"], "");
    assert!(eve.ends_with("hosts.toml"));
    let done = ssh(&machine, "eve", &planted);
    assert_eq!(done.lines().count(), 4, "{done}");
    let report = doctor(&machine.hosts_toml(&["ann"], ""));
    println!("{report}");
    let path = probe(part(&report, "ann"));
    assert!(is_live(part(&report, "ann")) && path.starts_with("/tmp/gpufleet-"), "{report}");
    for not in ["aaaaaaaa", "bbbbbbbb", "cccccccc", "dddddddd"] {
        assert!(!path.contains(not), "{path}");
    }
    let listed = ssh(&machine, "ann", &format!("stat -c '%U %a' {path} $(dirname {path}); ls /tmp/owned 2>/dev/null"));
    assert_eq!(listed, "ann 700\nann 700\n");
    // Nor is anything planted where nobody but its owner could: its own cache, by the account itself.
    assert_eq!(ssh(&machine, "eve", &format!("echo evil >>{path} || echo refused")), "refused\n");
    assert!(fs::set_permissions(machine.sshd.file("home"), fs::Permissions::from_mode(0o755)).is_err());
}

/// Runs a command as one of the accounts, with the plain `ssh`.
fn ssh(machine: &Machine, account: &str, command: &str) -> String {
    let sshd = &machine.sshd;
    let output = Command::new("ssh")
        .args(["-F", "/dev/null", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "GlobalKnownHostsFile=none"])
        .arg("-o")
        .arg(format!("UserKnownHostsFile={}", sshd.known_hosts().display()))
        .arg("-i")
        .arg(sshd.client_key())
        .args(["-p", &sshd.port().to_string(), "-l", account, "127.0.0.1", command])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}
