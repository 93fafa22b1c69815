//! The remote script with different login shells, home directories and PAM rules on a real sshd. The tests need root.

use super::client::{client_with, secret};
use super::servers::{Account, AccountServer, Home};
use crate::lab::{HostWatcher, gpufleet, has_root, is_snapshot, no_update};
use crate::sshd::{Sshd, TIMEOUT};
use gpufleet::collect::Command as HostCommand;
use gpufleet::config::{Backend, HostConfig};
use gpufleet::fleet::{HostId, HostUpdate, LinkErrorKind};
use gpufleet::ssh::{Interaction, PromptKind, SshErrorKind};
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The part of the `gpufleet doctor` report about one host.
fn host_part<'a>(report: &'a str, host: &str) -> &'a str {
    let begin = report.find(&format!("{host}\n  ")).unwrap_or_else(|| panic!("no {host} in:\n{report}"));
    let rest = &report[begin..];
    let end = rest.match_indices('\n').find(|(at, _)| rest[at + 1..].starts_with(|next: char| next != ' '));
    &rest[..end.map_or(rest.len(), |(at, _)| at)]
}

fn is_live(part: &str) -> bool {
    !part.contains("FAIL") && part.contains("first snapshot")
}

/// The path of the probe that was started.
fn probe_path(part: &str) -> &str {
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
fn every_login_shell_and_home_works_or_reports_what_is_wrong() {
    if !has_root() {
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
    let server = AccountServer::start(&accounts, "size=32m", &[]);
    let names: Vec<&str> = accounts.iter().map(|account| account.name).collect();
    let hosts = server.hosts_toml(&names, "");
    let report = doctor(&hosts);
    println!("{report}");
    for name in ["in-bash", "in-dash", "in-zsh", "in-fish", "in-tcsh", "noisy"] {
        let part = host_part(&report, name);
        assert!(is_live(part), "{part}");
        let cache = server.home(name).join(".cache/gpufleet");
        assert!(probe_path(part).starts_with(&*cache.to_string_lossy()), "{part}");
    }
    for (name, expected) in [
        ("reading", "the remote shell did not answer within 10 s"),
        ("nobody-in", "the account has no login shell (exit status 1: This account is currently not available.)"),
        ("forced", "the login ended before /bin/sh answered (exit status 3: only backups here)"),
        ("sftp-only", "the account may only use sftp (exit status 1: This service allows sftp connections only.)"),
        ("hung", "the remote shell did not answer within 10 s"),
        (
            "hung-cache",
            &format!("the remote script hung at {}/.cache/gpufleet within 10 s", server.home("hung-cache").display()),
        ),
    ] {
        let part = host_part(&report, name);
        assert!(part.contains("FAIL") && part.contains(expected), "{name}:\n{part}");
        assert!(part.contains("hint: "), "{name}:\n{part}");
    }
    for (name, why) in [
        ("noexec", "programs may not be run there"),
        ("read-only", "Read-only file system"),
        ("full", "No space left on device"),
        ("homeless", "Permission denied"),
    ] {
        let part = host_part(&report, name);
        let cache = server.home(name).join(".cache/gpufleet");
        assert!(part.contains(&format!("not {}: {why}", cache.display())), "{name}:\n{part}");
        assert!(is_live(part) && probe_path(part).starts_with("/tmp/gpufleet-"), "{name}:\n{part}");
    }
    // The second run finds the probe of the first one.
    let again = doctor(&hosts);
    for name in ["in-zsh", "in-fish", "in-tcsh", "noexec", "homeless"] {
        assert_eq!(probe_path(host_part(&again, name)), probe_path(host_part(&report, name)));
        assert!(!host_part(&again, name).contains("probe uploaded"), "{again}");
    }
}

#[test]
fn each_unusable_probe_directory_is_named_with_its_reason() {
    if !has_root() {
        return;
    }
    let accounts = [
        Account::new("noexec", "/bin/bash", Home::Mounted("noexec")),
        Account::new("full", "/usr/bin/tcsh", Home::Mounted("size=64k")),
    ];
    let server = AccountServer::start(&accounts, "noexec", &[]);
    let report = doctor(&server.hosts_toml(&["noexec", "full"], ""));
    println!("{report}");
    for (name, why) in [("noexec", "programs may not be run there"), ("full", "No space left on device")] {
        let part = host_part(&report, name);
        let cache = server.home(name).join(".cache/gpufleet");
        let begin = format!("no directory for the probe: {}: {why}; /tmp/gpufleet-", cache.display());
        let directories = part.split(&begin).nth(1).unwrap_or_else(|| panic!("{name}:\n{part}"));
        assert!(directories.lines().next().unwrap().ends_with(": programs may not be run there"), "{part}");
        // gpufleet falls back to nvidia-smi, which does not exist here; the host itself is live.
        assert!(is_live(part), "{part}");
    }
}

/// The names of the files in a folder.
fn entries(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn concurrent_controllers_share_one_probe_file_and_users_do_not() {
    if !has_root() {
        return;
    }
    let accounts = [
        Account::new("ann", "/bin/bash", Home::Usual),
        Account::new("bob", "/bin/bash", Home::Missing),
        Account::new("eve", "/bin/bash", Home::Missing),
    ];
    let server = AccountServer::start(&accounts, "size=32m", &[]);
    let hosts = server.hosts_toml(&["ann", "bob", "eve"], "");
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
    let cache = server.home("ann").join(".cache/gpufleet");
    let [name] = &entries(&cache)[..] else { panic!("{:?}", entries(&cache)) };
    let file = fs::metadata(cache.join(name)).unwrap();
    assert_eq!((file.mode() & 0o7777, file.nlink()), (0o700, 1));
    // Each account without a home gets its own directory in /tmp.
    let report = doctor(&hosts);
    let [bob, eve] = ["bob", "eve"].map(|name| probe_path(host_part(&report, name)).to_owned());
    assert_ne!(Path::new(&bob).parent(), Path::new(&eve).parent());
}

#[test]
fn files_planted_by_another_user_are_never_run() {
    if !has_root() {
        return;
    }
    let accounts = [Account::new("ann", "/bin/sh", Home::Missing), Account::new("eve", "/bin/sh", Home::Missing)];
    let server = AccountServer::start(&accounts, "size=32m", &[]);
    let hosts = server.hosts_toml(&["ann"], "");
    // Find out the file name of the probe.
    let first = doctor(&hosts);
    let path = probe_path(host_part(&first, "ann")).to_owned();
    let name = path.rsplit('/').next().unwrap();
    assert!(String::from_utf8(gpufleet(&["clean", &hosts]).stdout).unwrap().contains("removed "));
    let planted = format!(
        "cd /tmp; mkdir -m 777 gpufleet-aaaaaaaa && printf '#!/bin/sh\\ntouch /tmp/owned\\n' >gpufleet-aaaaaaaa/{name} && \
         chmod 777 gpufleet-aaaaaaaa/{name}; mkdir -m 777 theirs && cp gpufleet-aaaaaaaa/{name} theirs && \
         ln -s /tmp/theirs gpufleet-bbbbbbbb; mkfifo -m 777 gpufleet-cccccccc; : >gpufleet-dddddddd; ls -ld /tmp/gpufleet-*"
    );
    let eve = server.hosts_toml(&["eve"], "");
    assert!(eve.ends_with("hosts.toml"));
    let listing = ssh(&server, "eve", &planted);
    assert_eq!(listing.lines().count(), 4, "{listing}");
    let report = doctor(&server.hosts_toml(&["ann"], ""));
    println!("{report}");
    let path = probe_path(host_part(&report, "ann"));
    assert!(is_live(host_part(&report, "ann")) && path.starts_with("/tmp/gpufleet-"), "{report}");
    for planted in ["aaaaaaaa", "bbbbbbbb", "cccccccc", "dddddddd"] {
        assert!(!path.contains(planted), "{path}");
    }
    let listed = ssh(&server, "ann", &format!("stat -c '%U %a' {path} $(dirname {path}); ls /tmp/owned 2>/dev/null"));
    assert_eq!(listed, "ann 700\nann 700\n");
    // Another user cannot write to the probe, and no home directory was created.
    assert_eq!(ssh(&server, "eve", &format!("echo evil >>{path} || echo refused")), "refused\n");
    assert!(fs::set_permissions(server.sshd.file("home"), fs::Permissions::from_mode(0o755)).is_err());
}

/// Runs a command as one of the accounts with the ssh program.
fn ssh(server: &AccountServer, account: &str, command: &str) -> String {
    let sshd = &server.sshd;
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

const ANN: Account = Account::new("ann", "/bin/sh", Home::Usual);

/// The message of pam_slurm_adopt.
const NO_JOB: &str = "Access denied by pam_slurm_adopt: you have no active jobs on this node";

/// Writes a PAM configuration that refuses accounts unless the file `job` exists, and accepts each of `codes` once.
fn write_pam(folder: &Path) {
    fs::create_dir(folder.join("pam.d")).unwrap();
    let at = folder.display();
    let script = |name: &str, text: &str| {
        fs::write(folder.join(name), format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    };
    script("account", &format!("[ -e {at}/job ] || {{ echo '{NO_JOB}'; exit 1; }}"));
    script(
        "code",
        &format!("code=$(tr -d '\\0'); grep -qx -- \"$code\" {at}/codes && sed -i \"/^$code$/d\" {at}/codes"),
    );
    fs::write(
        folder.join("pam.d/sshd"),
        format!(
            "auth required pam_permit.so\nauth required pam_exec.so quiet expose_authtok {at}/code\n\
             account required pam_exec.so quiet stdout {at}/account\nsession required pam_permit.so\n"
        ),
    )
    .unwrap();
}

fn start(added: &[&str]) -> AccountServer {
    let mut lines = vec!["UsePAM yes"];
    lines.extend(added);
    AccountServer::start_with(&[ANN], "size=32m", &lines, write_pam)
}

fn host(server: &AccountServer) -> HostConfig {
    HostConfig { user: Some("ann".into()), ..super::client::host(&server.sshd) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pam_refusal_is_shown_and_the_account_is_retried() {
    if !has_root() {
        return;
    }
    let server = start(&[]);
    let mut watcher = HostWatcher::start(vec![host(&server)]);
    let is_down = |update: &HostUpdate| matches!(update, HostUpdate::Down { .. });
    let (_, update) = watcher.wait_until("the refusal", is_down, is_snapshot).await;
    let HostUpdate::Down { error, retry_at, .. } = update else { unreachable!() };
    assert_eq!(
        (error.kind, error.message.to_string()),
        (LinkErrorKind::Refusal, format!("no job of ann runs here; the server says: {NO_JOB}")),
        "{}",
        server.sshd.log()
    );
    let again = retry_at.expect("a time").since(watcher.clock.now());
    assert!(again > Duration::from_secs(290) && again < Duration::from_secs(331), "{again:?}");
    let output = gpufleet(&["status", &server.hosts_toml(&["ann"], "")]);
    assert_eq!(output.status.code(), Some(3));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        table.starts_with(&format!("ann  refused: no job of ann runs here; the server says: {NO_JOB}\n")),
        "{table}"
    );
    // A job starts and the user retries by hand.
    fs::write(server.sshd.file("job"), "").unwrap();
    assert!(watcher.host_tasks.command(HostId(0), HostCommand::Retry));
    watcher.wait_live().await;
    // The job ends: Slurm kills all of its processes, and the probe.
    fs::remove_file(server.sshd.file("job")).unwrap();
    kill_probes_of(&server.sshd);
    let (_, update) = watcher.wait_until("the end", is_down, no_update).await;
    let HostUpdate::Down { error, .. } = update else { unreachable!() };
    assert_eq!(error.message, "the probe was killed (9)");
    let refused =
        |update: &HostUpdate| matches!(update, HostUpdate::Down { error, .. } if error.kind == LinkErrorKind::Refusal);
    let (soon, _) = watcher.wait_until("the refusal", refused, is_snapshot).await;
    assert!(soon < Duration::from_secs(10), "{soon:?}");
}

/// Kills the probes below a server.
fn kill_probes_of(sshd: &Sshd) {
    let mut killed = 0;
    for pid in sshd.descendants() {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if name.starts_with("gpufleet-probe") {
            crate::pty::signal(pid, "KILL");
            killed += 1;
        }
    }
    assert_eq!(killed, 1, "probes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_pam_code_at_a_jump_host_opens_all_hosts_behind_it() {
    if !has_root() {
        return;
    }
    let bastion = start(&["KbdInteractiveAuthentication yes", "AuthenticationMethods keyboard-interactive"]);
    fs::write(bastion.sshd.file("job"), "").unwrap();
    fs::write(bastion.sshd.file("codes"), "111111\n222222\n").unwrap();
    let behind = Sshd::start_at(Ipv4Addr::new(127, 0, 0, 2), &[]);
    let config = behind.file("ssh_config");
    fs::write(
        &config,
        format!(
            "Host gpu*\n HostName {}\n Port {}\n User {}\n IdentityFile {}\n UserKnownHostsFile {}\n ProxyJump \
             bastion\nHost bastion\n HostName 127.0.0.1\n Port {}\n User ann\n UserKnownHostsFile {}\n",
            behind.ip(),
            behind.port(),
            behind.user(),
            behind.client_key().display(),
            behind.known_hosts().display(),
            bastion.sshd.port(),
            bastion.sshd.known_hosts().display()
        ),
    )
    .unwrap();
    let mut client = client_with(Interaction::Ask, |options| {
        options.ssh_config = Some(config);
        options.limits.answer = Duration::from_millis(300);
    });
    let named = |name: &str| HostConfig { backend: Backend::Native, ..HostConfig::named(name) };
    let login: Vec<_> = (0..8).map(|number| client.spawn(&named(&format!("gpu{number}")), "echo in")).collect();
    let prompt = client.next_prompt().await;
    let PromptKind::Secret { text, failures: 0, .. } = &prompt.kind else { panic!("{prompt:?}") };
    assert!(text.contains("Password"), "{text}");
    // Without an answer the client closes the connection before the server does, and opens a new one only on an answer.
    let prompt = client.next_prompt_after(prompt.id).await;
    let PromptKind::Secret { text, .. } = &prompt.kind else { panic!("{prompt:?}") };
    assert_eq!(text, "Press Enter to log in to bastion:");
    let connections = || bastion.sshd.log().matches("Connection from").count();
    assert_eq!(connections(), 1);
    client.context.answer(prompt.id, secret(""));
    let prompt = client.next_prompt().await;
    client.context.answer(prompt.id, secret("111111"));
    for one in login {
        let finished = tokio::time::timeout(TIMEOUT, one).await.unwrap().unwrap().unwrap();
        assert_eq!(finished.stdout, "in\n");
    }
    assert_eq!(connections(), 2, "{}", bastion.sshd.log());
    assert_eq!(fs::read_to_string(bastion.sshd.file("codes")).unwrap(), "222222\n");
    assert!(client.prompts.try_recv().is_err(), "only one login prompts");
}

#[tokio::test]
async fn wrong_or_used_pam_code_prompts_again() {
    if !has_root() {
        return;
    }
    let server = start(&["KbdInteractiveAuthentication yes", "AuthenticationMethods keyboard-interactive"]);
    fs::write(server.sshd.file("job"), "").unwrap();
    fs::write(server.sshd.file("codes"), "111111\n222222\n").unwrap();
    let mut client = client_with(Interaction::Ask, |_| {});
    for answers in [&["111111"][..], &["111111", "222222"]] {
        let login = client.spawn(&host(&server), "echo in");
        for answer in answers {
            let prompt = client.next_prompt().await;
            client.context.answer(prompt.id, secret(answer));
        }
        assert_eq!(login.await.unwrap().unwrap().stdout, "in\n");
    }
    // A key, followed by a code.
    let both = start(&["KbdInteractiveAuthentication yes", "AuthenticationMethods publickey,keyboard-interactive"]);
    fs::write(both.sshd.file("job"), "").unwrap();
    fs::write(both.sshd.file("codes"), "333333\n").unwrap();
    let login = client.spawn(&host(&both), "echo in");
    let prompt = client.next_prompt().await;
    client.context.answer(prompt.id, secret("333333"));
    assert_eq!(login.await.unwrap().unwrap().stdout, "in\n");
    // PAM refuses the account after the code was accepted: the error names the account, not the code.
    fs::remove_file(both.sshd.file("job")).unwrap();
    fs::write(both.sshd.file("codes"), "444444\n").unwrap();
    let login = client.spawn(&host(&both), "echo in");
    let prompt = client.next_prompt().await;
    client.context.answer(prompt.id, secret("444444"));
    let error = login.await.unwrap().unwrap_err();
    assert_eq!(error.kind, SshErrorKind::SessionRefused, "{error:?}");
    assert!(error.message.ends_with(NO_JOB), "{error}");
}
