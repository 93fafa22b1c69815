//! Authentication: keys, agents, passphrases, passwords, keyboard-interactive questions and certificates.

use super::client::{client, client_with, host, secret};
use super::host_keys::ssh_accepts;
use super::servers::{CODE, LoginMethod, PASSWORD, Server};
use crate::lab::has_root;
use crate::pty::Pty;
use crate::sshd::{PASSPHRASE, Sshd, TIMEOUT, fingerprint};
use gpufleet::config::{Backend, HostConfig};
use gpufleet::ssh::{Answer, Interaction, PromptKind, SshError, SshErrorKind};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running ssh-agent; killed when dropped.
pub(crate) struct SshAgent {
    process: Child,
    pub(crate) socket: PathBuf,
}

impl SshAgent {
    pub(crate) fn start(folder: &Path) -> Self {
        let socket = folder.join("agent");
        let mut command = Command::new("ssh-agent");
        command.arg("-D").arg("-a").arg(&socket).stdout(Stdio::piped());
        // Every confirmation (ssh-add -c) is refused.
        let mut process = command.env("SSH_ASKPASS", "false").env("SSH_ASKPASS_REQUIRE", "force").spawn().unwrap();
        // ssh-agent prints its socket once it listens.
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("SSH_AUTH_SOCK="), "ssh-agent says {line:?}");
        Self { process, socket }
    }

    pub(crate) fn add(&self, key: &Path) {
        self.add_with("-q", key);
    }

    /// Adds the key with an option of ssh-add.
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

/// The hint of an error when no key was offered.
fn hint_without_a_key(sshd: &Sshd) -> String {
    let (user, port) = (sshd.user(), sshd.port());
    format!("ssh-copy-id -p {port} {user}@127.0.0.1   # after ssh-keygen -t ed25519, if there is no key yet")
}

#[tokio::test]
async fn one_passphrase_opens_two_hosts_and_a_wrong_one_prompts_again() {
    let sshd = Sshd::start();
    let mut client = client(Interaction::Ask);
    let mut first = host(&sshd);
    first.identity_file = Some(sshd.locked_key());
    let mut second = first.clone();
    second.name = "gpu02".into();
    let login = [client.spawn(&first, "echo in"), client.spawn(&second, "echo in")];
    for (failures, answer) in [(0, "wrong"), (1, PASSPHRASE)] {
        let mut prompt = client.next_prompt().await;
        while prompt.hosts.len() < 2 {
            prompt = client.next_prompt().await;
        }
        assert_eq!(
            prompt.kind,
            PromptKind::Passphrase {
                path: sshd.locked_key().display().to_string(),
                fingerprint: Some(fingerprint(&sshd.file("locked.pub"))),
                failures,
            }
        );
        client.context.answer(prompt.id, secret(answer));
    }
    for one in login {
        assert_eq!(one.await.unwrap().unwrap().stdout, "in\n");
    }
    // The passphrase is remembered: no second prompt.
    assert_eq!(client.run(&first, "echo in").await.unwrap().stdout, "in\n");
    assert!(client.prompts.try_recv().is_err());
}

#[tokio::test]
async fn three_wrong_passphrases_or_declining_end_the_login() {
    let sshd = Sshd::start();
    let mut client = client(Interaction::Ask);
    let mut host = host(&sshd);
    host.identity_file = Some(sshd.locked_key());
    let path = sshd.locked_key().display().to_string();
    let login = client.spawn(&host, "true");
    for _ in 0..3 {
        let prompt = client.next_prompt().await;
        client.context.answer(prompt.id, secret("wrong"));
    }
    assert_eq!(
        login.await.unwrap().unwrap_err(),
        SshError::new(SshErrorKind::IdentityFile, format!("three passphrases for {path} were wrong"))
            .with_hint(format!("ssh-add {path}"))
    );
    let login = client.spawn(&host, "true");
    let prompt = client.next_prompt().await;
    client.context.answer(prompt.id, Answer::Decline);
    assert_eq!(
        login.await.unwrap().unwrap_err(),
        SshError::new(SshErrorKind::Declined, format!("no passphrase was given for {path}"))
            .with_hint(format!("ssh-add {path}"))
    );
}

#[tokio::test]
async fn passphrase_prompt_opens_only_if_the_server_accepts_the_key() {
    let sshd = Sshd::start();
    let mut client = client(Interaction::Ask);
    fs::write(sshd.file("authorized_keys"), fs::read(sshd.file("client.pub")).unwrap()).unwrap();
    let mut host = host(&sshd);
    host.identity_file = Some(sshd.locked_key());
    let error = client.open(&host, "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::Authentication, "{error:?}");
    assert!(client.prompts.try_recv().is_err());
}

#[tokio::test]
async fn locked_key_without_prompts_is_an_error() {
    let sshd = Sshd::start();
    let client = client(Interaction::Refuse);
    let mut host = host(&sshd);
    host.identity_file = Some(sshd.locked_key());
    let path = sshd.locked_key().display().to_string();
    assert_eq!(
        client.open(&host, "true").await.unwrap_err(),
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
async fn agent_keys_of_each_type_open_the_host() {
    let sshd = Sshd::start();
    // ssh-key 0.7.0-rc.11 refuses a file with one in 256 keys of 256 bits (a private number that begins with a zero byte), so
    // this test makes one of 384 bits.
    for kind in ["ed25519", "ecdsa", "rsa"] {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        let bits: &[&str] = if kind == "ecdsa" { &["-b", "384"] } else { &[] };
        let made =
            Command::new("ssh-keygen").args(["-qN", "", "-t", kind]).args(bits).arg("-f").arg(&key).status().unwrap();
        assert!(made.success());
        fs::copy(folder.path().join("key.pub"), sshd.file("authorized_keys")).unwrap();
        let agent = SshAgent::start(folder.path());
        agent.add(&sshd.stranger_key());
        agent.add(&key);
        let client = client_with(Interaction::Refuse, |options| options.agent_socket = Some(agent.socket.clone()));
        let mut host = host(&sshd);
        host.identity_file = None;
        assert_eq!(client.run(&host, "echo in").await.unwrap().stdout, "in\n", "{kind} in the agent");
        // Without the agent the key file works, too.
        host.identity_file = Some(key);
        let alone = super::client::client(Interaction::Refuse);
        assert_eq!(alone.run(&host, "echo in").await.unwrap().stdout, "in\n", "{kind} in a file");
    }
}

#[tokio::test]
async fn agent_that_refuses_to_sign_is_reported() {
    let sshd = Sshd::start();
    let folder = tempfile::tempdir().unwrap();
    let agent = SshAgent::start(folder.path());
    agent.add_with("-c", &sshd.client_key());
    let client = client_with(Interaction::Refuse, |options| options.agent_socket = Some(agent.socket.clone()));
    let mut host = host(&sshd);
    host.identity_file = None;
    let user = sshd.user();
    assert_eq!(
        client.open(&host, "true").await.unwrap_err(),
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
async fn configured_key_is_offered_before_agent_keys() {
    let sshd = Sshd::start_at(std::net::Ipv4Addr::LOCALHOST, &["MaxAuthTries 2"]);
    let agent = SshAgent::start(&sshd.file("."));
    for number in 0..8 {
        let key = sshd.file(&format!("other{number}"));
        let mut generate = Command::new("ssh-keygen");
        generate.args(["-qN", "", "-t", "ed25519", "-C", &format!("other{number}"), "-f"]).arg(&key);
        assert!(generate.status().unwrap().success());
        agent.add(&key);
    }
    let client = client_with(Interaction::Refuse, |options| options.agent_socket = Some(agent.socket.clone()));
    let mut host = host(&sshd);
    assert_eq!(client.run(&host, "echo in").await.unwrap().stdout, "in\n");
    host.identity_file = None;
    let error = client.open(&host, "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::Authentication, "{error:?}");
    let user = sshd.user();
    assert_eq!(
        error.message,
        format!(
            "the server refused the login as {user}; it accepts publickey; it was offered 2 keys: other0 (ED25519, \
             agent), other1 (ED25519, agent); 6 other keys were not tried; then it closed the connection: Too many \
             authentication failures"
        )
    );
    let hint = "name the right key: `identity_file` in hosts.toml, or `IdentityFile` with `IdentitiesOnly yes` in the \
                ssh configuration";
    assert_eq!(error.hint.as_deref(), Some(hint));
    // Without a limit of the server, gpufleet stops by itself.
    let patient = Sshd::start_at(std::net::Ipv4Addr::LOCALHOST, &["MaxAuthTries 20"]);
    let mut host = super::client::host(&patient);
    host.identity_file = None;
    let error = client.open(&host, "true").await.unwrap_err();
    assert!(error.message.contains("; it was offered 6 keys: other0 "), "{error}");
    assert!(error.message.ends_with("; 2 other keys were not tried"), "{error}");
    assert_eq!(error.hint.as_deref(), Some(hint));
}

#[tokio::test]
async fn refused_key_is_named_in_the_error() {
    let sshd = Sshd::start();
    let client = client(Interaction::Refuse);
    let mut host = host(&sshd);
    host.identity_file = Some(sshd.stranger_key());
    let (user, port) = (sshd.user(), sshd.port());
    assert_eq!(
        client.open(&host, "true").await.unwrap_err(),
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
async fn missing_key_file_and_open_permissions_are_reported() {
    let sshd = Sshd::start();
    let client = client(Interaction::Refuse);
    let mut host = host(&sshd);
    host.identity_file = Some(sshd.file("missing"));
    let user = sshd.user();
    let refused = format!("the server refused the login as {user}; it accepts publickey; there was no key to offer");
    assert_eq!(
        client.open(&host, "true").await.unwrap_err(),
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
        client.open(&host, "true").await.unwrap_err(),
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
async fn wrong_password_prompts_again() {
    let server = Server::start(LoginMethod::Password).await;
    let mut client = client(Interaction::Ask);
    let host = host_of(&server, client.home.path());
    let login = client.spawn(&host, "true");
    for (failures, answer) in [(0, "wrong"), (1, PASSWORD)] {
        let prompt = client.next_prompt().await;
        assert_eq!(
            prompt.kind,
            PromptKind::Secret {
                text: "bob@127.0.0.1's password:".into(),
                instruction: String::new(),
                echo: false,
                failures
            }
        );
        client.context.answer(prompt.id, secret(answer));
    }
    assert_eq!(login.await.unwrap().unwrap().stdout, "in\n");
}

#[tokio::test]
async fn three_wrong_passwords_end_the_login() {
    let server = Server::start(LoginMethod::Password).await;
    let mut client = client(Interaction::Ask);
    let host = host_of(&server, client.home.path());
    let login = client.spawn(&host, "true");
    for _ in 0..3 {
        let prompt = client.next_prompt().await;
        client.context.answer(prompt.id, secret("wrong"));
    }
    let error = login.await.unwrap().unwrap_err();
    assert_eq!(error.kind, SshErrorKind::Authentication);
    assert_eq!(
        error.message,
        "the server refused the login as bob; it accepts password; the password was wrong 3 times"
    );
}

#[tokio::test]
async fn keyboard_interactive_questions_prompt_one_after_the_other() {
    let server = Server::start(LoginMethod::Questions).await;
    let mut client = client(Interaction::Ask);
    let host = host_of(&server, client.home.path());
    let login = client.spawn(&host, "true");
    for (text, echo, failures, answer) in
        [("Password: ", false, 0, "wrong"), ("Password: ", false, 1, PASSWORD), ("Verification code: ", true, 1, CODE)]
    {
        let prompt = client.next_prompt().await;
        assert_eq!(
            prompt.kind,
            PromptKind::Secret { text: text.into(), instruction: "Two steps.".into(), echo, failures }
        );
        client.context.answer(prompt.id, secret(answer));
    }
    assert_eq!(login.await.unwrap().unwrap().stdout, "in\n");
}

#[tokio::test]
async fn time_at_a_prompt_does_not_count_towards_the_login_timeout() {
    let server = Server::start(LoginMethod::Questions).await;
    let mut client = client_with(Interaction::Ask, |options| options.limits.login = Duration::from_millis(400));
    let host = host_of(&server, client.home.path());
    let login = client.spawn(&host, "true");
    for answer in [PASSWORD, CODE] {
        let prompt = client.next_prompt().await;
        // The user takes longer than the login timeout.
        tokio::time::sleep(Duration::from_millis(500)).await;
        client.context.answer(prompt.id, secret(answer));
    }
    assert_eq!(login.await.unwrap().unwrap().stdout, "in\n");
}

#[tokio::test]
async fn none_authentication_opens_the_host() {
    let server = Server::start(LoginMethod::None).await;
    let client = client(Interaction::Refuse);
    let host = host_of(&server, client.home.path());
    assert_eq!(client.run(&host, "true").await.unwrap().stdout, "in\n");
}

#[tokio::test]
async fn server_banner_is_part_of_the_error() {
    let server = Server::start(LoginMethod::Never).await;
    let client = client(Interaction::Refuse);
    let host = host_of(&server, client.home.path());
    let error = client.open(&host, "true").await.unwrap_err();
    assert_eq!(
        error.message,
        "the server refused the login as bob; it accepts publickey; there was no key to offer; \
         the server says: no job of yours runs here"
    );
}

fn keygen(arguments: &[&str], file: &Path) {
    let output = Command::new("ssh-keygen").arg("-q").args(arguments).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A certificate authority in a temporary folder.
struct Authority {
    folder: tempfile::TempDir,
}

impl Authority {
    fn new() -> Self {
        let authority = Self { folder: tempfile::tempdir().unwrap() };
        keygen(&["-t", "ed25519", "-N", "", "-f"], &authority.key());
        authority
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("ca")
    }

    fn public(&self) -> String {
        let text = fs::read_to_string(self.key().with_extension("pub")).unwrap();
        text.split(' ').take(2).collect::<Vec<_>>().join(" ")
    }

    /// Signs `key.pub` and writes the certificate to `key-cert.pub`.
    fn sign(&self, key: &Path, names: &str, validity: &str, kind: &[&str]) {
        let ca = self.key();
        let mut arguments = vec!["-s", ca.to_str().unwrap(), "-I", "test", "-n", names, "-V", validity];
        arguments.extend(kind);
        keygen(&arguments, &key.with_extension("pub"));
    }
}

/// A server that accepts certificates of the authority and no plain keys.
fn server_of(authority: &Authority) -> Sshd {
    let trusted = format!("TrustedUserCAKeys {}", authority.key().with_extension("pub").display());
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &[&trusted]);
    fs::write(sshd.file("authorized_keys"), "").unwrap();
    sshd
}

#[tokio::test]
async fn certificate_next_to_its_key_opens_the_host_for_every_key_type() {
    let authority = Authority::new();
    let sshd = server_of(&authority);
    for kind in ["ed25519", "ecdsa", "rsa"] {
        let key = sshd.file(&format!("user_{kind}"));
        keygen(&["-t", kind, "-N", "", "-f"], &key);
        let mut host = host(&sshd);
        host.identity_file = Some(key.clone());
        let error = client(Interaction::Refuse).open(&host, "true").await.unwrap_err();
        assert_eq!(error.kind, SshErrorKind::Authentication, "the key alone is accepted");
        authority.sign(&key, &sshd.user(), "+1h", &[]);
        assert_eq!(client(Interaction::Refuse).run(&host, "echo in").await.unwrap().stdout, "in\n", "{kind}");
    }
}

#[tokio::test]
async fn certificate_works_with_a_locked_key_and_with_an_agent_key() {
    let authority = Authority::new();
    let sshd = server_of(&authority);
    let key = sshd.locked_key();
    authority.sign(&key, &sshd.user(), "+1h", &[]);
    let mut host = host(&sshd);
    host.identity_file = Some(key.clone());
    let mut client = client(Interaction::Ask);
    let login = client.spawn(&host, "echo in");
    let prompt = client.next_prompt().await;
    client.context.answer(prompt.id, secret(PASSPHRASE));
    assert_eq!(login.await.unwrap().unwrap().stdout, "in\n");

    // The agent has only the key; the configuration names the certificate.
    let other = sshd.file("held");
    keygen(&["-t", "rsa", "-N", "", "-f"], &other);
    authority.sign(&other, &sshd.user(), "+1h", &[]);
    let elsewhere = sshd.file("elsewhere.pub");
    fs::rename(sshd.file("held-cert.pub"), &elsewhere).unwrap();
    let agent = SshAgent::start(sshd.file(".").as_path());
    agent.add(&other);
    let config = sshd.file("config");
    fs::write(&config, format!("CertificateFile {}\n", elsewhere.display())).unwrap();
    let client = client_with(Interaction::Refuse, |options| {
        options.agent_socket = Some(agent.socket.clone());
        options.ssh_config = Some(config);
    });
    host.identity_file = None;
    assert_eq!(client.run(&host, "echo in").await.unwrap().stdout, "in\n");
}

#[tokio::test]
async fn error_for_an_expired_certificate_says_when_it_expired() {
    let authority = Authority::new();
    let sshd = server_of(&authority);
    let key = sshd.client_key();
    authority.sign(&key, &sshd.user(), "20200101000000Z:20200102030400Z", &[]);
    let error = client(Interaction::Refuse).open(&host(&sshd), "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::Authentication);
    let expected = format!("the certificate {}-cert.pub expired at 2020-01-02 03:04 UTC", key.display());
    assert!(error.message.ends_with(&expected), "{error}");
}

#[tokio::test]
async fn host_certificate_is_accepted_exactly_when_ssh_accepts_it() {
    let authority = Authority::new();
    let ca = authority.public();
    let stranger = Authority::new().public();
    // Names, validity, and the known_hosts file for it; KEY and NAME are the server's.
    let cases = [
        ("127.0.0.1", "+1h", format!("@cert-authority * {ca}\n")),
        ("127.0.0.1", "+1h", format!("@cert-authority 127.0.0.1 {ca}\n")),
        ("127.0.0.1", "+1h", format!("@cert-authority NAME {ca}\n")),
        ("127.0.0.1", "+1h", format!("@cert-authority gpu01 {ca}\n")),
        ("127.0.0.1", "+1h", format!("@cert-authority * {stranger}\n")),
        ("127.0.0.1", "+1h", format!("* {ca}\n")),
        ("gpu01", "+1h", format!("@cert-authority * {ca}\n")),
        ("gpu01,127.0.0.1", "+1h", format!("@cert-authority * {ca}\n")),
        ("*", "+1h", format!("@cert-authority * {ca}\n")),
        ("gpu01", "+1h", format!("@cert-authority * {ca}\nNAME KEY\n")),
        ("127.0.0.1", "20200101:20210101", format!("@cert-authority * {ca}\n")),
        ("127.0.0.1", "20200101:20210101", format!("@cert-authority * {ca}\nNAME KEY\n")),
        ("127.0.0.1", "+1h", format!("@cert-authority * {ca}\n@revoked * {ca}\n")),
        ("127.0.0.1", "+1h", format!("@cert-authority * {ca}\n@revoked * KEY\n")),
        ("127.0.0.1", "+1h", format!("@cert-authority * {ca}\n@revoked * {stranger}\n")),
        ("127.0.0.1", "+1h", "NAME KEY\n".to_owned()),
    ];
    let mut taken = 0;
    for (names, validity, text) in cases {
        // sshd reads the certificate when it starts.
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("host");
        keygen(&["-t", "ed25519", "-N", "", "-f"], &key);
        authority.sign(&key, names, validity, &["-h"]);
        let lines = [format!("HostKey {}", key.display()), format!("HostCertificate {}-cert.pub", key.display())];
        let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &[&lines[0], &lines[1]]);
        let public = fs::read_to_string(key.with_extension("pub")).unwrap();
        let public = public.split(' ').take(2).collect::<Vec<_>>().join(" ");
        let name = format!("[127.0.0.1]:{}", sshd.port());
        fs::write(sshd.known_hosts(), text.replace("KEY", &public).replace("NAME", &name)).unwrap();
        let ours = client(Interaction::Refuse).run(&host(&sshd), "true").await;
        assert_eq!(ours.is_ok(), ssh_accepts(&sshd), "{names} {validity}\n{text}\n{ours:?}");
        taken += u32::from(ours.is_ok());
    }
    assert_eq!(taken, 8, "accepted cases of sixteen");
}

#[tokio::test]
async fn error_for_a_host_certificate_names_the_other_host() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("host");
    keygen(&["-t", "ed25519", "-N", "", "-f"], &key);
    authority.sign(&key, "gpu02", "+1h", &["-h"]);
    let lines = [format!("HostKey {}", key.display()), format!("HostCertificate {}-cert.pub", key.display())];
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &[&lines[0], &lines[1]]);
    fs::write(sshd.known_hosts(), format!("@cert-authority * {}\n", authority.public())).unwrap();
    let error = client(Interaction::Ask).open(&host(&sshd), "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::HostKeyUnknown);
    assert!(
        error.message.ends_with("is not valid: it is for gpu02, not for 127.0.0.1; nothing was sent to the server"),
        "{error}"
    );
    assert!(!sshd.log().contains("Accepted"), "{}", sshd.log());
}

/// The number of places in the writable memory of a process that hold `secret`. Reading it needs root.
fn copies_in_memory(pid: u32, secret: &str) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut copies = 0;
    for line in maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|mode| mode.starts_with("rw"))) {
        let (start, end) = line.split(' ').next().and_then(|range| range.split_once('-')).unwrap();
        let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
        let mut bytes = vec![0; (end - start) as usize];
        // A mapping may be gone by now.
        if memory.read_exact_at(&mut bytes, start).is_ok() {
            copies += bytes.windows(secret.len()).filter(|window| *window == secret.as_bytes()).count();
        }
    }
    copies
}

#[track_caller]
fn wait_until_wiped(pty: &Pty, secret: &str) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        // Memory that is freed, but not wiped, loses its first bytes to the allocator.
        let copies = copies_in_memory(pty.pid(), &secret[secret.len() / 2..]);
        if copies == 0 {
            return;
        }
        assert!(Instant::now() < deadline, "{copies} copies of {secret:?} remain");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pasted_and_typed_secrets_are_wiped_after_the_login() {
    if !has_root() {
        return;
    }
    let paste = |secret: &str| format!("\x1b[200~{secret}\x1b[201~\r");
    let typed = |secret: &str| format!("{secret}\r");
    let start = |folder: &Path, section: String| {
        let hosts = folder.join("hosts.toml");
        fs::write(
            &hosts,
            format!("[[hosts]]\nname = \"gpu01\"\naddress = \"127.0.0.1\"\nbackend = \"native\"\n{section}"),
        )
        .unwrap();
        Pty::gpufleet((120, 40), &["--theme", "dark", hosts.to_str().unwrap()], &[("SSH_AUTH_SOCK", "")])
    };
    let sshd = Sshd::start();
    for input in [paste(PASSPHRASE), typed(PASSPHRASE)] {
        let folder = tempfile::tempdir().unwrap();
        let section = format!(
            "port = {}\nidentity_file = \"{}\"\nknown_hosts = \"{}\"\n",
            sshd.port(),
            sshd.locked_key().display(),
            sshd.known_hosts().display()
        );
        let mut pty = start(folder.path(), section);
        pty.wait("the passphrase dialog", |text| text.contains("Passphrase") && text.contains('▏'));
        assert_eq!(copies_in_memory(pty.pid(), PASSPHRASE), 0);
        pty.keys(&input[..input.len() - 1]);
        let deadline = Instant::now() + TIMEOUT;
        while copies_in_memory(pty.pid(), PASSPHRASE) == 0 {
            assert!(Instant::now() < deadline, "the input field holds it");
        }
        pty.keys("\r");
        pty.wait("the login", |text| !text.contains("Passphrase"));
        wait_until_wiped(&pty, PASSPHRASE);
    }
    for (method, dialog) in [(LoginMethod::Password, "password"), (LoginMethod::Questions, "Password:")] {
        let server = Server::start(method).await;
        let folder = tempfile::tempdir().unwrap();
        let known_hosts = folder.path().join("known_hosts");
        fs::write(&known_hosts, server.known_hosts_line()).unwrap();
        let section = format!("port = {}\nuser = \"bob\"\nknown_hosts = \"{}\"\n", server.port, known_hosts.display());
        let mut pty = start(folder.path(), section);
        pty.wait("the password dialog", |text| text.contains(dialog) && text.contains('▏'));
        pty.keys(&paste(PASSWORD));
        if matches!(method, LoginMethod::Questions) {
            pty.wait("the code dialog", |text| text.contains("Verification code") && text.contains('▏'));
            pty.keys(&paste(CODE));
        }
        pty.wait("the login", |text| !text.contains(dialog) && !text.contains("Verification"));
        wait_until_wiped(&pty, PASSWORD);
    }
}
