//! A real sshd with PAM: accounts that are refused after a good key, one-time codes.

use super::harness::{person_with, secret};
use super::machine::{Account, Home, Machine};
use crate::lab::gpufleet;
use crate::left_out::have_root;
use crate::sshd::{DEADLINE, Sshd};
use crate::watching::{Watch, is_snapshot, nothing};
use gpufleet::collect::Command;
use gpufleet::config::{Backend, HostConfig};
use gpufleet::fleet::{HostId, HostUpdate, LinkErrorKind};
use gpufleet::ssh::{Interaction, PromptKind, SshErrorKind};
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

const ANN: Account = Account::new("ann", "/bin/sh", Home::Usual);

/// What pam_slurm_adopt says.
const NO_JOB: &str = "Access denied by pam_slurm_adopt: you have no active jobs on this node";

/// Refuses the account unless a file `job` is in the folder; takes each line of `codes` once.
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

fn start(added: &[&str]) -> Machine {
    let mut lines = vec!["UsePAM yes"];
    lines.extend(added);
    Machine::start_with(&[ANN], "size=32m", &lines, write_pam)
}

fn host(machine: &Machine) -> HostConfig {
    HostConfig { user: Some("ann".into()), ..super::harness::host(&machine.sshd) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_is_refused_after_a_good_key_is_told_in_pams_words_and_looked_at_again() {
    if !have_root() {
        return;
    }
    let machine = start(&[]);
    let mut watch = Watch::start(vec![host(&machine)]);
    let is_down = |update: &HostUpdate| matches!(update, HostUpdate::Down { .. });
    let (_, update) = watch.until("the refusal", is_down, is_snapshot).await;
    let HostUpdate::Down { error, retry_at, .. } = update else { unreachable!() };
    assert_eq!(
        (error.kind, error.message.to_string()),
        (LinkErrorKind::Refusal, format!("no job of ann runs here; the server says: {NO_JOB}")),
        "{}",
        machine.sshd.log()
    );
    let again = retry_at.expect("a time").since(watch.clock.now());
    assert!(again > Duration::from_secs(290) && again < Duration::from_secs(331), "{again:?}");
    let output = gpufleet(&["status", &machine.hosts_toml(&["ann"], "")]);
    assert_eq!(output.status.code(), Some(3));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        table.starts_with(&format!("ann  refused: no job of ann runs here; the server says: {NO_JOB}\n")),
        "{table}"
    );
    // A job begins, and somebody does not want to wait.
    fs::write(machine.sshd.file("job"), "").unwrap();
    assert!(watch.collector.command(HostId(0), Command::Retry));
    watch.live().await;
    // It ends: Slurm kills what runs in it, the probe too.
    fs::remove_file(machine.sshd.file("job")).unwrap();
    kill_probes_of(&machine.sshd);
    let (_, update) = watch.until("the end", is_down, nothing).await;
    let HostUpdate::Down { error, .. } = update else { unreachable!() };
    assert_eq!(error.message, "the probe was killed (9)");
    let refused =
        |update: &HostUpdate| matches!(update, HostUpdate::Down { error, .. } if error.kind == LinkErrorKind::Refusal);
    let (soon, _) = watch.until("the refusal", refused, is_snapshot).await;
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
async fn one_code_at_a_real_jump_host_opens_every_host_behind_it() {
    if !have_root() {
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
    let mut person = person_with(Interaction::Ask, |options| {
        options.ssh_config = Some(config);
        options.limits.answer = Duration::from_millis(300);
    });
    let named = |name: &str| HostConfig { backend: Backend::Native, ..HostConfig::named(name) };
    let opening: Vec<_> = (0..8).map(|number| person.spawn(&named(&format!("gpu{number}")), "echo in")).collect();
    let prompt = person.asked().await;
    let PromptKind::Secret { text, failures: 0, .. } = &prompt.kind else { panic!("{prompt:?}") };
    assert!(text.contains("Password"), "{text}");
    // Nobody is there: the connection is given up before the server does so, and none is made until somebody comes.
    let prompt = person.asked_anew(prompt.id).await;
    let PromptKind::Secret { text, .. } = &prompt.kind else { panic!("{prompt:?}") };
    assert_eq!(text, "Press Enter to log in to bastion:");
    let connections = || bastion.sshd.log().matches("Connection from").count();
    assert_eq!(connections(), 1);
    person.context.answer(prompt.id, secret(""));
    let prompt = person.asked().await;
    person.context.answer(prompt.id, secret("111111"));
    for one in opening {
        let finished = tokio::time::timeout(DEADLINE, one).await.unwrap().unwrap().unwrap();
        assert_eq!(finished.stdout, "in\n");
    }
    assert_eq!(connections(), 2, "{}", bastion.sshd.log());
    assert_eq!(fs::read_to_string(bastion.sshd.file("codes")).unwrap(), "222222\n");
    assert!(person.prompts.try_recv().is_err(), "nobody is asked twice");
}

#[tokio::test]
async fn a_wrong_code_is_asked_for_again_and_a_used_one_is_wrong() {
    if !have_root() {
        return;
    }
    let machine = start(&["KbdInteractiveAuthentication yes", "AuthenticationMethods keyboard-interactive"]);
    fs::write(machine.sshd.file("job"), "").unwrap();
    fs::write(machine.sshd.file("codes"), "111111\n222222\n").unwrap();
    let mut person = person_with(Interaction::Ask, |_| {});
    for answers in [&["111111"][..], &["111111", "222222"]] {
        let opening = person.spawn(&host(&machine), "echo in");
        for answer in answers {
            let prompt = person.asked().await;
            person.context.answer(prompt.id, secret(answer));
        }
        assert_eq!(opening.await.unwrap().unwrap().stdout, "in\n");
    }
    // A key and then a code.
    let both = start(&["KbdInteractiveAuthentication yes", "AuthenticationMethods publickey,keyboard-interactive"]);
    fs::write(both.sshd.file("job"), "").unwrap();
    fs::write(both.sshd.file("codes"), "333333\n").unwrap();
    let opening = person.spawn(&host(&both), "echo in");
    let prompt = person.asked().await;
    person.context.answer(prompt.id, secret("333333"));
    assert_eq!(opening.await.unwrap().unwrap().stdout, "in\n");
    // Refused after the code: it is the account, not the code.
    fs::remove_file(both.sshd.file("job")).unwrap();
    fs::write(both.sshd.file("codes"), "444444\n").unwrap();
    let opening = person.spawn(&host(&both), "echo in");
    let prompt = person.asked().await;
    person.context.answer(prompt.id, secret("444444"));
    let error = opening.await.unwrap().unwrap_err();
    assert_eq!(error.kind, SshErrorKind::SessionRefused, "{error:?}");
    assert!(error.message.ends_with(NO_JOB), "{error}");
}
