//! Ways to a host that lead through others: ProxyJump, ProxyCommand, a running master.

use super::harness::{Person, host, person_with, secret};
use super::server::{CODE, PASSWORD, Server, Way};
use crate::sshd::{Sshd, free_port};
use gpufleet::config::{Backend, HostConfig, parse_hops};
use gpufleet::ssh::{Interaction, PromptKind, SshError, SshErrorKind};
use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

/// The lines of an ssh configuration that name `sshd` as `name`.
fn entry(name: &str, sshd: &Sshd) -> String {
    format!(
        "Host {name}\n HostName {}\n Port {}\n User {}\n IdentityFile {}\n IdentitiesOnly yes\n UserKnownHostsFile {}\n",
        sshd.ip(),
        sshd.port(),
        sshd.user(),
        sshd.client_key().display(),
        sshd.known_hosts().display()
    )
}

/// Somebody with this ssh configuration.
fn with_config(interaction: Interaction, config: &str) -> Person {
    let person = person_with(interaction, |options| {
        let folder = options.home.clone().unwrap();
        let path = folder.join("config");
        fs::write(&path, config).unwrap();
        options.ssh_config = Some(path);
    });
    fs::write(person.home.path().join("config"), config).unwrap();
    person
}

/// A host by its name in the ssh configuration.
fn named(name: &str) -> HostConfig {
    HostConfig { backend: Backend::Native, ..HostConfig::named(name) }
}

fn logins(sshd: &Sshd) -> usize {
    sshd.log().matches("Accepted publickey").count()
}

#[tokio::test]
async fn two_dozen_hosts_behind_a_jump_host_share_one_connection_to_it() {
    // The usual limit: unauthenticated connections beyond ten would be dropped.
    let bastion = Sshd::start_at(Ipv4Addr::LOCALHOST, &["MaxStartups 10:30:100"]);
    let behind = Sshd::start_at(Ipv4Addr::new(127, 0, 0, 2), &["MaxStartups 10:30:100"]);
    let person = with_config(Interaction::Refuse, &entry("bastion", &bastion));
    let mut host = host(&behind);
    host.proxy_jump = Some(parse_hops("bastion", 0..7).unwrap());
    let all: Vec<_> = (0..24)
        .map(|number| {
            host.name = format!("gpu{number:02}").into();
            person.spawn(&host, "echo in")
        })
        .collect();
    for one in all {
        assert_eq!(one.await.unwrap().unwrap().stdout, "in\n");
    }
    assert_eq!((logins(&bastion), logins(&behind)), (1, 24));
    assert!(!behind.log().contains("MaxStartups"), "{}", behind.log());
}

#[tokio::test]
async fn a_chain_of_the_ssh_configuration_and_its_end() {
    let [first, second, third] = [1, 2, 3].map(|number| Sshd::start_at(Ipv4Addr::new(127, 0, 0, number), &[]));
    let config =
        entry("first", &first) + &entry("second", &second) + &entry("third", &third) + " ProxyJump first,second\n";
    let person = with_config(Interaction::Refuse, &config);
    for _ in 0..2 {
        assert_eq!(person.run(&named("third"), "echo in").await.unwrap().stdout, "in\n");
    }
    assert_eq!([&first, &second, &third].map(logins), [1, 1, 2]);
    // hosts.toml may say that there is none.
    let mut direct = named("third");
    direct.proxy_jump = Some(Vec::new());
    assert_eq!(person.run(&direct, "echo in").await.unwrap().stdout, "in\n");
    assert_eq!([&first, &second, &third].map(logins), [1, 1, 3]);
}

#[tokio::test]
async fn jump_hosts_in_a_circle() {
    let config = "Host a\n ProxyJump b\nHost b\n ProxyJump a\nHost gpu\n ProxyJump a\n";
    let person = with_config(Interaction::Refuse, config);
    let error = person.open(&named("gpu"), "true").await.unwrap_err();
    assert_eq!(
        error,
        SshError::new(SshErrorKind::Config, "the jump hosts lead in a circle: a through b through a")
            .with_hint("ProxyJump in ~/.ssh/config")
            .naming_jump_host()
    );
    let person = with_config(Interaction::Refuse, "Host *\n ProxyJump bastion\n");
    let error = person.open(&named("gpu"), "true").await.unwrap_err();
    assert_eq!(
        (error.kind, error.message.as_str()),
        (
            SshErrorKind::Config,
            "the jump host bastion: the ssh configuration cannot be used: jumphost loop via bastion"
        )
    );
}

#[tokio::test]
async fn one_code_at_a_jump_host_opens_every_host_behind_it() {
    let bastion = Server::start(Way::Questions).await;
    let behind = Sshd::start_at(Ipv4Addr::new(127, 0, 0, 2), &[]);
    let mut config = entry("gpu*", &behind) + " ProxyJump bastion\n";
    let mut person = with_config(Interaction::Ask, "");
    let known_hosts = person.home.path().join("known_bastions");
    fs::write(&known_hosts, bastion.known_hosts_line()).unwrap();
    let _ = write!(
        config,
        "Host bastion\n HostName 127.0.0.1\n Port {}\n User bob\n UserKnownHostsFile {}\n",
        bastion.port,
        known_hosts.display()
    );
    fs::write(person.home.path().join("config"), config).unwrap();
    let opening: Vec<_> = (0..8).map(|number| person.spawn(&named(&format!("gpu{number}")), "echo in")).collect();
    for answer in [PASSWORD, CODE] {
        let prompt = person.asked().await;
        assert_eq!(prompt.hosts, ["bastion"]);
        assert!(matches!(&prompt.kind, PromptKind::Secret { instruction, .. } if instruction == "Two steps."));
        person.context.answer(prompt.id, secret(answer));
    }
    for one in opening {
        assert_eq!(one.await.unwrap().unwrap().stdout, "in\n");
    }
    assert!(person.prompts.try_recv().is_err(), "nobody is asked twice");
}

#[tokio::test]
async fn a_login_that_a_jump_host_refuses_is_tried_once_for_all() {
    let bastion = Sshd::start();
    let config = entry("bastion", &bastion)
        .replace(&bastion.client_key().display().to_string(), &bastion.stranger_key().display().to_string())
        + "Host gpu*\n ProxyJump bastion\n";
    let person = with_config(Interaction::Refuse, &config);
    for number in 0..6 {
        let error = person.open(&named(&format!("gpu{number}")), "true").await.unwrap_err();
        assert_eq!(error.kind, SshErrorKind::Authentication);
        assert!(error.message.starts_with("the jump host bastion: the server refused the login as "), "{error}");
    }
    let tries = || bastion.log().matches("Connection from").count();
    assert_eq!(tries(), 1, "{}", bastion.log());
    // Who knows of it and comes again has been sent by a person.
    person.open(&named("gpu0"), "true").await.unwrap_err();
    assert_eq!(tries(), 2, "{}", bastion.log());
}

#[tokio::test]
async fn a_jump_host_that_cannot_or_will_not_lead_on() {
    let bastion = Sshd::start();
    let mut person = with_config(Interaction::Refuse, &entry("bastion", &bastion));
    let port = free_port(Ipv4Addr::LOCALHOST);
    let mut host = HostConfig { port: Some(port), ..named("127.0.0.1") };
    host.proxy_jump = Some(parse_hops("bastion", 0..7).unwrap());
    let error = person.open(&host, "true").await.unwrap_err();
    assert_eq!(
        error,
        SshError::new(
            SshErrorKind::Network,
            format!("the jump host bastion cannot reach 127.0.0.1:{port}: ConnectFailed")
        )
        .with_hint("is the host up, and does the jump host know its name?")
        .naming_jump_host()
    );
    let closed = Sshd::start_at(Ipv4Addr::LOCALHOST, &["AllowTcpForwarding no"]);
    person = with_config(Interaction::Refuse, &entry("bastion", &closed));
    assert_eq!(
        person.open(&host, "true").await.unwrap_err(),
        SshError::new(
            SshErrorKind::SessionRefused,
            format!("the jump host bastion does not allow forwarding to 127.0.0.1:{port}")
        )
        .with_hint("AllowTcpForwarding and PermitOpen in its sshd_config")
        .naming_jump_host()
    );
}

#[tokio::test]
async fn a_jump_host_that_dies_is_connected_to_anew() {
    let mut bastion = Sshd::start();
    let behind = Sshd::start_at(Ipv4Addr::new(127, 0, 0, 2), &[]);
    let person = with_config(
        Interaction::Refuse,
        &(entry("bastion", &bastion) + &entry("gpu", &behind) + " ProxyJump bastion\n"),
    );
    let gpu = named("gpu");
    assert_eq!(person.run(&gpu, "echo in").await.unwrap().stdout, "in\n");
    bastion.stop();
    let error = person.open(&gpu, "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::ConnectionRefused, "{error}");
    assert_eq!(error.message, format!("the jump host bastion: nothing listens on 127.0.0.1 port {}", bastion.port()));
    bastion.restart();
    assert_eq!(person.run(&gpu, "echo in").await.unwrap().stdout, "in\n");
}

#[tokio::test]
async fn a_proxy_command_leads_to_the_host_and_its_words_are_passed_on() {
    let behind = Sshd::start();
    let script = behind.file("pipe.py");
    fs::write(&script, PIPE).unwrap();
    let config = entry("gpu", &behind) + &format!(" ProxyCommand python3 {} %h %p\n", script.display());
    let person = with_config(Interaction::Refuse, &config);
    assert_eq!(person.run(&named("gpu"), "echo in").await.unwrap().stdout, "in\n");
    let person = with_config(Interaction::Refuse, "Host gpu\n ProxyCommand echo no way to %h >&2; exit 1\n");
    let error = person.open(&named("gpu"), "true").await.unwrap_err();
    assert_eq!(
        error.message,
        "gpu port 22 through its ProxyCommand closed the connection before the key exchange was finished; the proxy \
         says: no way to gpu"
    );
}

/// A pipe to a TCP port, as `nc` is.
const PIPE: &str = "\
import os, socket, sys, threading
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def send():
    while data := os.read(0, 65536):
        peer.sendall(data)
threading.Thread(target=send, daemon=True).start()
while data := peer.recv(65536):
    os.write(1, data)
";

#[tokio::test]
async fn a_name_with_a_shells_characters_never_reaches_a_proxy_command() {
    let folder = tempfile::tempdir().unwrap();
    let trap = folder.path().join("trap");
    let config = format!("Host gpu\n HostName x;touch${{IFS}}{}\n ProxyCommand echo %h\n", trap.display());
    let person = with_config(Interaction::Refuse, &config);
    let error = person.open(&named("gpu"), "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::Config, "{error}");
    assert!(!trap.exists());
}

/// A running `ssh` master; ended when dropped.
struct Master<'a> {
    socket: &'a Path,
}

impl<'a> Master<'a> {
    fn start(config: &Path, name: &str, socket: &'a Path) -> Self {
        // -f: it returns once it is logged in.
        let status = Command::new("ssh")
            .args(["-F", config.to_str().unwrap(), "-o", "BatchMode=yes", "-M", "-N", "-f", name])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success() && socket.exists());
        Self { socket }
    }
}

impl Drop for Master<'_> {
    fn drop(&mut self) {
        let control = format!("ControlPath={}", self.socket.display());
        let _ = Command::new("ssh").args(["-F", "/dev/null", "-o", &control, "-O", "exit", "x"]).output();
    }
}

#[tokio::test]
async fn a_running_master_is_used_for_the_host_and_for_a_jump() {
    let bastion = Sshd::start();
    let behind = Sshd::start_at(Ipv4Addr::new(127, 0, 0, 2), &[]);
    let person = with_config(Interaction::Refuse, "");
    let socket = person.home.path().join("master");
    let config = person.home.path().join("config");
    let write_config = |socket: &Path| {
        let (bastion, gpu) = (entry("bastion", &bastion), entry("gpu", &behind));
        fs::write(&config, format!("{bastion} ControlPath {}\n{gpu} ProxyJump bastion\n", socket.display())).unwrap();
    };
    write_config(&socket);
    let master = Master::start(&config, "bastion", &socket);
    let auto = |name: &str| HostConfig { backend: Backend::Auto, ..named(name) };
    assert_eq!(person.run(&auto("bastion"), "echo in").await.unwrap().stdout, "in\n");
    assert_eq!(person.run(&auto("gpu"), "echo in").await.unwrap().stdout, "in\n");
    assert_eq!((logins(&bastion), logins(&behind)), (1, 1), "the master's login is the only one at the jump host");
    drop(master);
    // A socket that nobody listens on is no master. It is another one, since the master may still be ending.
    let socket = person.home.path().join("stale");
    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    write_config(&socket);
    assert_eq!(person.run(&auto("gpu"), "echo in").await.unwrap().stdout, "in\n");
    assert_eq!((logins(&bastion), logins(&behind)), (2, 2));
}
