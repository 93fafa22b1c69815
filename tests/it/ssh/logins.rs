//! Keys, agents, passphrases, passwords and questions.

use super::harness::{host, person, person_with, secret};
use super::server::{CODE, PASSWORD, Server, Way};
use crate::sshd::{PASSPHRASE, Sshd, fingerprint};
use gpufleet::config::{Backend, HostConfig};
use gpufleet::ssh::{Answer, Interaction, PromptKind, SshError, SshErrorKind};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running ssh-agent; killed when dropped.
pub(super) struct SshAgent {
    process: Child,
    pub(super) socket: PathBuf,
}

impl SshAgent {
    pub(super) fn start(folder: &Path) -> Self {
        let socket = folder.join("agent");
        let mut command = Command::new("ssh-agent");
        command.arg("-D").arg("-a").arg(&socket).stdout(Stdio::piped());
        // Who is asked to confirm a use says no.
        let mut process = command.env("SSH_ASKPASS", "false").env("SSH_ASKPASS_REQUIRE", "force").spawn().unwrap();
        // It names its socket once it listens there.
        let mut said = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.starts_with("SSH_AUTH_SOCK="), "ssh-agent says {said:?}");
        Self { process, socket }
    }

    pub(super) fn add(&self, key: &Path) {
        self.add_with("-q", key);
    }

    /// With an option of ssh-add's.
    fn add_with(&self, option: &str, key: &Path) {
        let mut command = Command::new("ssh-add");
        let status = command.args(["-q", option]).arg(key).env("SSH_AUTH_SOCK", &self.socket).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for SshAgent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What may help where no key was offered.
fn hint_without_a_key(sshd: &Sshd) -> String {
    let (user, port) = (sshd.user(), sshd.port());
    format!("ssh-copy-id -p {port} {user}@127.0.0.1   # after ssh-keygen -t ed25519, if there is no key yet")
}

#[tokio::test]
async fn one_passphrase_opens_two_hosts_and_a_wrong_one_is_asked_again() {
    let sshd = Sshd::start();
    let mut person = person(Interaction::Ask);
    let mut first = host(&sshd);
    first.identity_file = Some(sshd.locked_key());
    let mut second = first.clone();
    second.name = "gpu02".into();
    let opening = [person.spawn(&first, "echo in"), person.spawn(&second, "echo in")];
    for (failures, answer) in [(0, "wrong"), (1, PASSPHRASE)] {
        let mut prompt = person.asked().await;
        while prompt.hosts.len() < 2 {
            prompt = person.asked().await;
        }
        assert_eq!(
            prompt.kind,
            PromptKind::Passphrase {
                path: sshd.locked_key().display().to_string(),
                fingerprint: Some(fingerprint(&sshd.file("locked.pub"))),
                failures,
            }
        );
        person.context.answer(prompt.id, secret(answer));
    }
    for one in opening {
        assert_eq!(one.await.unwrap().unwrap().stdout, "in\n");
    }
    // No one is asked again.
    assert_eq!(person.run(&first, "echo in").await.unwrap().stdout, "in\n");
    assert!(person.prompts.try_recv().is_err());
}

#[tokio::test]
async fn three_wrong_passphrases_and_a_refusal() {
    let sshd = Sshd::start();
    let mut person = person(Interaction::Ask);
    let mut host = host(&sshd);
    host.identity_file = Some(sshd.locked_key());
    let path = sshd.locked_key().display().to_string();
    let opening = person.spawn(&host, "true");
    for _ in 0..3 {
        let prompt = person.asked().await;
        person.context.answer(prompt.id, secret("wrong"));
    }
    assert_eq!(
        opening.await.unwrap().unwrap_err(),
        SshError::new(SshErrorKind::IdentityFile, format!("three passphrases for {path} were wrong"))
            .with_hint(format!("ssh-add {path}"))
    );
    let opening = person.spawn(&host, "true");
    let prompt = person.asked().await;
    person.context.answer(prompt.id, Answer::Decline);
    assert_eq!(
        opening.await.unwrap().unwrap_err(),
        SshError::new(SshErrorKind::Declined, format!("no passphrase was given for {path}"))
            .with_hint(format!("ssh-add {path}"))
    );
}

#[tokio::test]
async fn a_passphrase_is_asked_for_only_if_the_server_would_take_the_key() {
    let sshd = Sshd::start();
    let mut person = person(Interaction::Ask);
    fs::write(sshd.file("authorized_keys"), fs::read(sshd.file("client.pub")).unwrap()).unwrap();
    let mut host = host(&sshd);
    host.identity_file = Some(sshd.locked_key());
    let error = person.open(&host, "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::Authentication, "{error:?}");
    assert!(person.prompts.try_recv().is_err());
}

#[tokio::test]
async fn a_locked_key_with_nobody_to_ask() {
    let sshd = Sshd::start();
    let person = person(Interaction::Refuse);
    let mut host = host(&sshd);
    host.identity_file = Some(sshd.locked_key());
    let path = sshd.locked_key().display().to_string();
    assert_eq!(
        person.open(&host, "true").await.unwrap_err(),
        SshError::new(
            SshErrorKind::IdentityFile,
            format!(
                "the server refused the login as {}; it accepts publickey; there was no key to offer; \
                 {path} has a passphrase, and no prompt is possible",
                sshd.user()
            )
        )
        .with_hint(format!("ssh-add {path}"))
    );
}

#[tokio::test]
async fn an_agents_key_of_each_type_opens() {
    let sshd = Sshd::start();
    for kind in ["ed25519", "ecdsa", "rsa"] {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        let made = Command::new("ssh-keygen").args(["-qN", "", "-t", kind, "-f"]).arg(&key).status().unwrap();
        assert!(made.success());
        fs::copy(folder.path().join("key.pub"), sshd.file("authorized_keys")).unwrap();
        let agent = SshAgent::start(folder.path());
        agent.add(&sshd.stranger_key());
        agent.add(&key);
        let person = person_with(Interaction::Refuse, |options| options.agent_socket = Some(agent.socket.clone()));
        let mut host = host(&sshd);
        host.identity_file = None;
        assert_eq!(person.run(&host, "echo in").await.unwrap().stdout, "in\n", "{kind} in the agent");
        // The same key from its file.
        host.identity_file = Some(key);
        let alone = super::harness::person(Interaction::Refuse);
        assert_eq!(alone.run(&host, "echo in").await.unwrap().stdout, "in\n", "{kind} in a file");
    }
}

#[tokio::test]
async fn an_agent_that_does_not_sign_is_told() {
    let sshd = Sshd::start();
    let folder = tempfile::tempdir().unwrap();
    let agent = SshAgent::start(folder.path());
    agent.add_with("-c", &sshd.client_key());
    let person = person_with(Interaction::Refuse, |options| options.agent_socket = Some(agent.socket.clone()));
    let mut host = host(&sshd);
    host.identity_file = None;
    let user = sshd.user();
    assert_eq!(
        person.open(&host, "true").await.unwrap_err(),
        SshError::new(
            SshErrorKind::Authentication,
            format!(
                "the server refused the login as {user}; it accepts publickey; there was no key to offer; \
                 ed25519 (ED25519, agent) was not used: the agent did not sign: Agent failure"
            )
        )
        .with_hint(hint_without_a_key(&sshd))
    );
}

#[tokio::test]
async fn the_own_key_is_offered_before_an_agent_full_of_others() {
    let sshd = Sshd::start_at(std::net::Ipv4Addr::LOCALHOST, &["MaxAuthTries 2"]);
    let agent = SshAgent::start(&sshd.file("."));
    for number in 0..8 {
        let key = sshd.file(&format!("other{number}"));
        assert!(
            Command::new("ssh-keygen").args(["-qN", "", "-t", "ed25519", "-f"]).arg(&key).status().unwrap().success()
        );
        agent.add(&key);
    }
    let person = person_with(Interaction::Refuse, |options| options.agent_socket = Some(agent.socket.clone()));
    let mut host = host(&sshd);
    assert_eq!(person.run(&host, "echo in").await.unwrap().stdout, "in\n");
    host.identity_file = None;
    let error = person.open(&host, "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::Authentication, "{error:?}");
    assert!(error.message.ends_with("then it closed the connection: Too many authentication failures"), "{error}");
    assert_eq!(error.hint.as_deref(), Some("`identity_file` in hosts.toml names the key that is offered first"));
}

#[tokio::test]
async fn a_wrong_key() {
    let sshd = Sshd::start();
    let person = person(Interaction::Refuse);
    let mut host = host(&sshd);
    host.identity_file = Some(sshd.stranger_key());
    let (user, port) = (sshd.user(), sshd.port());
    assert_eq!(
        person.open(&host, "true").await.unwrap_err(),
        SshError::new(
            SshErrorKind::Authentication,
            format!(
                "the server refused the login as {user}; it accepts publickey; it was offered {} (ED25519)",
                sshd.stranger_key().display()
            )
        )
        .with_hint(format!(
            "ssh-copy-id -p {port} {user}@127.0.0.1   # or name the right key: `identity_file` in hosts.toml"
        ))
    );
}

#[tokio::test]
async fn a_key_file_that_is_missing_or_too_open() {
    let sshd = Sshd::start();
    let person = person(Interaction::Refuse);
    let mut host = host(&sshd);
    host.identity_file = Some(sshd.file("missing"));
    let user = sshd.user();
    let refused = format!("the server refused the login as {user}; it accepts publickey; there was no key to offer");
    assert_eq!(
        person.open(&host, "true").await.unwrap_err(),
        SshError::new(
            SshErrorKind::IdentityFile,
            format!("{refused}; {} does not exist", sshd.file("missing").display())
        )
        .with_hint(hint_without_a_key(&sshd))
    );
    let key = sshd.client_key();
    assert!(Command::new("chmod").arg("644").arg(&key).status().unwrap().success());
    host.identity_file = Some(key.clone());
    assert_eq!(
        person.open(&host, "true").await.unwrap_err(),
        SshError::new(
            SshErrorKind::IdentityFile,
            format!("{refused}; {} is not used: its permissions 0644 are too open", key.display())
        )
        .with_hint(format!("chmod 600 {}", key.display()))
    );
}

fn host_of(server: &Server, folder: &Path) -> HostConfig {
    let known_hosts = folder.join("known_hosts");
    fs::write(&known_hosts, server.known_hosts_line()).unwrap();
    let mut host = HostConfig::named("gpu01");
    host.address = Some("127.0.0.1".into());
    host.port = Some(server.port);
    host.user = Some("bob".into());
    host.known_hosts = Some(known_hosts);
    host.backend = Backend::Native;
    host
}

#[tokio::test]
async fn a_password_is_asked_for_between_connections() {
    let server = Server::start(Way::Password).await;
    let mut person = person(Interaction::Ask);
    let host = host_of(&server, person.home.path());
    let opening = person.spawn(&host, "true");
    for (failures, answer) in [(0, "wrong"), (1, PASSWORD)] {
        let prompt = person.asked().await;
        assert_eq!(
            prompt.kind,
            PromptKind::Secret {
                text: "bob@127.0.0.1's password:".into(),
                instruction: String::new(),
                echo: false,
                failures
            }
        );
        person.context.answer(prompt.id, secret(answer));
    }
    assert_eq!(opening.await.unwrap().unwrap().stdout, "in\n");
}

#[tokio::test]
async fn three_wrong_passwords() {
    let server = Server::start(Way::Password).await;
    let mut person = person(Interaction::Ask);
    let host = host_of(&server, person.home.path());
    let opening = person.spawn(&host, "true");
    for _ in 0..3 {
        let prompt = person.asked().await;
        person.context.answer(prompt.id, secret("wrong"));
    }
    let error = opening.await.unwrap().unwrap_err();
    assert_eq!(error.kind, SshErrorKind::Authentication);
    assert_eq!(
        error.message,
        "the server refused the login as bob; it accepts password; the password was wrong 3 times"
    );
}

#[tokio::test]
async fn questions_are_asked_one_after_the_other() {
    let server = Server::start(Way::Questions).await;
    let mut person = person(Interaction::Ask);
    let host = host_of(&server, person.home.path());
    let opening = person.spawn(&host, "true");
    for (text, echo, failures, answer) in
        [("Password: ", false, 0, "wrong"), ("Password: ", false, 1, PASSWORD), ("Verification code: ", true, 1, CODE)]
    {
        let prompt = person.asked().await;
        assert_eq!(
            prompt.kind,
            PromptKind::Secret { text: text.into(), instruction: "Two steps.".into(), echo, failures }
        );
        person.context.answer(prompt.id, secret(answer));
    }
    assert_eq!(opening.await.unwrap().unwrap().stdout, "in\n");
}

#[tokio::test]
async fn a_prompt_takes_no_time_from_the_login() {
    let server = Server::start(Way::Questions).await;
    let mut person = person_with(Interaction::Ask, |options| options.limits.login = Duration::from_millis(400));
    let host = host_of(&server, person.home.path());
    let opening = person.spawn(&host, "true");
    for answer in [PASSWORD, CODE] {
        let prompt = person.asked().await;
        // Somebody who thinks for longer than the whole login may take.
        tokio::time::sleep(Duration::from_millis(500)).await;
        person.context.answer(prompt.id, secret(answer));
    }
    assert_eq!(opening.await.unwrap().unwrap().stdout, "in\n");
}

#[tokio::test]
async fn a_server_that_wants_no_proof() {
    let server = Server::start(Way::None).await;
    let person = person(Interaction::Refuse);
    let host = host_of(&server, person.home.path());
    assert_eq!(person.run(&host, "true").await.unwrap().stdout, "in\n");
}

#[tokio::test]
async fn a_servers_own_words_are_passed_on() {
    let server = Server::start(Way::Never).await;
    let person = person(Interaction::Refuse);
    let host = host_of(&server, person.home.path());
    let error = person.open(&host, "true").await.unwrap_err();
    assert_eq!(
        error.message,
        "the server refused the login as bob; it accepts publickey; there was no key to offer; \
         the server says: no job of yours runs here"
    );
}
