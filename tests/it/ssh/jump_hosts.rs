//! Indirect connections: ProxyJump, ProxyCommand and a running control master.

use super::client::{Client, client_with, host, secret};
use super::servers::{CODE, LoginMethod, PASSWORD, Server};
use crate::sshd::{Sshd, free_port};
use gpufleet::config::{Backend, HostConfig, parse_hops};
use gpufleet::ssh::{Interaction, PromptKind, SshError, SshErrorKind};
use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

/// The host section `name` of an ssh configuration that reaches `sshd`.
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

/// A client with this ssh configuration.
fn with_config(interaction: Interaction, config: &str) -> Client {
    let client = client_with(interaction, |options| {
        let folder = options.home.clone().unwrap();
        let path = folder.join("config");
        fs::write(&path, config).unwrap();
        options.ssh_config = Some(path);
    });
    fs::write(client.home.path().join("config"), config).unwrap();
    client
}

/// A host from the ssh configuration.
fn named(name: &str) -> HostConfig {
    HostConfig { backend: Backend::Native, ..HostConfig::named(name) }
}

fn logins(sshd: &Sshd) -> usize {
    sshd.log().matches("Accepted publickey").count()
}

#[tokio::test]
async fn twenty_four_hosts_behind_a_jump_host_share_one_connection_to_it() {
    // The default limit of sshd: it drops unauthenticated connections beyond ten.
    let bastion = Sshd::start_at(Ipv4Addr::LOCALHOST, &["MaxStartups 10:30:100"]);
    let behind = Sshd::start_at(Ipv4Addr::new(127, 0, 0, 2), &["MaxStartups 10:30:100"]);
    let client = with_config(Interaction::Refuse, &entry("bastion", &bastion));
    let mut host = host(&behind);
    host.proxy_jump = Some(parse_hops("bastion", 0..7).unwrap());
    let all: Vec<_> = (0..24)
        .map(|number| {
            host.name = format!("gpu{number:02}").into();
            client.spawn(&host, "echo in")
        })
        .collect();
    for one in all {
        assert_eq!(one.await.unwrap().unwrap().stdout, "in\n");
    }
    assert_eq!((logins(&bastion), logins(&behind)), (1, 24));
    assert!(!behind.log().contains("MaxStartups"), "{}", behind.log());
}

#[tokio::test]
async fn chained_jump_hosts_work_and_hosts_toml_can_disable_them() {
    let [first, second, third] = [1, 2, 3].map(|number| Sshd::start_at(Ipv4Addr::new(127, 0, 0, number), &[]));
    let config =
        entry("first", &first) + &entry("second", &second) + &entry("third", &third) + " ProxyJump first,second\n";
    let client = with_config(Interaction::Refuse, &config);
    for _ in 0..2 {
        assert_eq!(client.run(&named("third"), "echo in").await.unwrap().stdout, "in\n");
    }
    assert_eq!([&first, &second, &third].map(logins), [1, 1, 2]);
    // hosts.toml can disable the jump hosts.
    let mut direct = named("third");
    direct.proxy_jump = Some(Vec::new());
    assert_eq!(client.run(&direct, "echo in").await.unwrap().stdout, "in\n");
    assert_eq!([&first, &second, &third].map(logins), [1, 1, 3]);
}

/// Options with which `ssh` accepts a changed key of a jump host.
const LAX: &str = "Host *\n PasswordAuthentication no\n KbdInteractiveAuthentication no\n StrictHostKeyChecking ";

/// The number of lines about authentication in the log of the server.
fn attempts(sshd: &Sshd) -> usize {
    ["Accepted", "Failed", "Postponed"].iter().map(|word| sshd.log().matches(word).count()).sum()
}

#[tokio::test]
async fn changed_or_revoked_key_of_any_jump_host_is_refused_whatever_the_configuration_accepts() {
    let [first, second, third] = [1, 2, 3].map(|number| Sshd::start_at(Ipv4Addr::new(127, 0, 0, number), &[]));
    let stranger = fs::read_to_string(first.file("stranger.pub")).unwrap();
    let changed = |sshd: &Sshd| format!("[{}]:{} {stranger}", sshd.ip(), sshd.port());
    let revoked = |sshd: &Sshd| format!("@revoked * {}\n", sshd.host_key("ed25519"));
    // The routes differ in who names the second jump host: the list, or the configuration of the first one. `CheckHostIP`
    // makes the built-in client use `ssh` for a jump host.
    let chain = " ProxyJump first,second\n";
    let nested = " ProxyJump second\nHost second\n ProxyJump first\n";
    let by_ssh = " ProxyJump second\nHost second\n ProxyJump first\n CheckHostIP yes\n";
    for (backend, route) in
        [(Backend::System, chain), (Backend::System, nested), (Backend::Native, by_ssh), (Backend::Native, chain)]
    {
        let entries = entry("first", &first) + &entry("second", &second) + &entry("third", &third) + route;
        for checking in ["no", "off", "accept-new"] {
            for (wrong, key) in [
                (&first, changed(&first)),
                (&second, changed(&second)),
                (&first, revoked(&first)),
                (&second, revoked(&second)),
            ] {
                fs::write(wrong.known_hosts(), &key).unwrap();
                let before = attempts(wrong);
                let client = with_config(Interaction::Refuse, &format!("{entries}{LAX}{checking}\n"));
                let error = client.open(&HostConfig { backend, ..named("third") }, "true").await.unwrap_err();
                let case = format!("{backend:?} {route:?} {checking} {key}");
                assert_eq!((attempts(wrong), attempts(&third)), (before, 0), "{case}{error}\n{}", wrong.log());
                if backend == Backend::System && key.starts_with('[') {
                    let name = format!("[{}]:{}", wrong.ip(), wrong.port());
                    let file = wrong.known_hosts().display().to_string();
                    assert_eq!(
                        error,
                        SshError::new(
                            SshErrorKind::HostKeyChanged,
                            format!(
                                "the host key of {name} has changed: {file}:1 has another one; nothing was sent to it"
                            )
                        )
                        .with_hint(format!(
                            "ssh-keygen -f {file} -R '{name}'   # only if the administrator confirms the new key"
                        )),
                        "{case}"
                    );
                }
                assert_eq!(fs::read_to_string(wrong.known_hosts()).unwrap(), key, "{case}");
                fs::write(wrong.known_hosts(), wrong.known_hosts_line("ed25519")).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn ssh_program_passes_every_form_of_jump_hosts() {
    let listens = std::net::TcpListener::bind("[::1]:0").map(|listener| listener.local_addr().unwrap().port());
    let by_ipv6 = listens.as_ref().map(|port| format!("ListenAddress [::1]:{port}")).unwrap_or_default();
    let first = Sshd::start_at(Ipv4Addr::LOCALHOST, &[&by_ipv6]);
    let [second, third] = [2, 3].map(|number| Sshd::start_at(Ipv4Addr::new(127, 0, 0, number), &[]));
    let (user, port) = (first.user(), first.port());
    let plain = format!(
        " IdentityFile {}\n IdentitiesOnly yes\n UserKnownHostsFile {}\n",
        first.client_key().display(),
        first.known_hosts().display()
    );
    let mut known = first.known_hosts_line("ed25519");
    if let Ok(port) = &listens {
        let _ = writeln!(known, "[::1]:{port} {}", first.host_key("ed25519"));
    }
    fs::write(first.known_hosts(), known).unwrap();
    let (to_first, to_second, to_third) = (entry("first", &first), entry("second", &second), entry("third", &third));
    // Each configuration, and the logins at the three servers that it leads to.
    let mut cases = vec![
        (format!("{to_first}{to_second}{to_third} ProxyJump first,second\n"), [1, 1, 1]),
        (format!("{to_first}{to_second} ProxyJump first\n{to_third} ProxyJump second\n"), [1, 1, 1]),
        (format!("Host 127.0.0.1\n{plain}{to_third} ProxyJump {user}@127.0.0.1:{port}\n"), [1, 0, 1]),
        (format!("{to_first}{to_third} ProxyJump none\nHost third\n ProxyJump first\n"), [0, 0, 1]),
        (format!("{to_first}{to_third} ProxyCommand none\nHost third\n ProxyJump first\n"), [0, 0, 1]),
        (format!("Match originalhost third\n ProxyJump first\n{to_first}{to_third}"), [1, 0, 1]),
        (format!("{to_first}{to_third} ProxyJump first\n ProxyUseFdpass yes\n"), [1, 0, 1]),
        // Options under which a command, but no jump host, would fail, and a level at which ssh reports each login.
        (
            format!(
                "{to_first}{to_third} ProxyJump first\nHost *\n StdinNull yes\n SessionType none\n LogLevel DEBUG1\n"
            ),
            [1, 0, 1],
        ),
    ];
    match &listens {
        Ok(port) => cases.push((format!("Host ::1\n{plain}{to_third} ProxyJump {user}@[::1]:{port}\n"), [1, 0, 1])),
        Err(error) => crate::lab::skip(&format!("this machine has no IPv6: {error}")),
    }
    for (config, expected) in cases {
        for lax in ["", LAX] {
            let config = if lax.is_empty() { config.clone() } else { format!("{config}{lax}no\n") };
            // The path of the configuration reaches each jump host unchanged.
            let client = client_with(Interaction::Refuse, |options| {
                let path = first.file("it's 100% \"odd\"");
                fs::write(&path, &config).unwrap();
                options.ssh_config = Some(path);
            });
            let before = [&first, &second, &third].map(logins);
            let third_host = HostConfig { backend: Backend::System, ..named("third") };
            assert_eq!(client.run(&third_host, "echo in").await.unwrap().stdout, "in\n", "{config}");
            let after = [&first, &second, &third].map(logins);
            assert_eq!([0, 1, 2].map(|index| after[index] - before[index]), expected, "{config}");
        }
    }
}

#[tokio::test]
async fn circular_jump_hosts_are_reported() {
    let config = "Host a\n ProxyJump b\nHost b\n ProxyJump a\nHost gpu\n ProxyJump a\n";
    let client = with_config(Interaction::Refuse, config);
    for backend in [Backend::Native, Backend::System] {
        let error = client.open(&HostConfig { backend, ..named("gpu") }, "true").await.unwrap_err();
        assert_eq!(
            error,
            SshError::new(SshErrorKind::Config, "the jump hosts lead in a circle: a through b through a")
                .with_hint("ProxyJump in ~/.ssh/config")
                .naming_jump_host(),
            "{backend:?}"
        );
    }
    let client = with_config(Interaction::Refuse, "Host *\n ProxyJump bastion\n");
    let error = client.open(&named("gpu"), "true").await.unwrap_err();
    assert_eq!(
        (error.kind, error.message.as_str()),
        (
            SshErrorKind::Config,
            "the jump host bastion: the ssh configuration cannot be used: jumphost loop via bastion"
        )
    );
}

#[tokio::test]
async fn one_code_at_a_jump_host_opens_all_hosts_behind_it() {
    let bastion = Server::start(LoginMethod::Questions).await;
    let behind = Sshd::start_at(Ipv4Addr::new(127, 0, 0, 2), &[]);
    let mut config = entry("gpu*", &behind) + " ProxyJump bastion\n";
    let mut client = with_config(Interaction::Ask, "");
    let known_hosts = client.home.path().join("known_bastions");
    fs::write(&known_hosts, bastion.known_hosts_line()).unwrap();
    let _ = write!(
        config,
        "Host bastion\n HostName 127.0.0.1\n Port {}\n User bob\n UserKnownHostsFile {}\n",
        bastion.port,
        known_hosts.display()
    );
    fs::write(client.home.path().join("config"), config).unwrap();
    let login: Vec<_> = (0..8).map(|number| client.spawn(&named(&format!("gpu{number}")), "echo in")).collect();
    for answer in [PASSWORD, CODE] {
        let prompt = client.next_prompt().await;
        assert_eq!(prompt.hosts, ["bastion"]);
        assert!(matches!(&prompt.kind, PromptKind::Secret { instruction, .. } if instruction == "Two steps."));
        client.context.answer(prompt.id, secret(answer));
    }
    for one in login {
        assert_eq!(one.await.unwrap().unwrap().stdout, "in\n");
    }
    assert!(client.prompts.try_recv().is_err(), "only one login prompts");
}

#[tokio::test]
async fn refused_jump_host_login_is_tried_once_for_all_hosts() {
    let bastion = Sshd::start();
    let config = entry("bastion", &bastion)
        .replace(&bastion.client_key().display().to_string(), &bastion.stranger_key().display().to_string())
        + "Host gpu*\n ProxyJump bastion\n";
    let client = with_config(Interaction::Refuse, &config);
    for number in 0..6 {
        let error = client.open(&named(&format!("gpu{number}")), "true").await.unwrap_err();
        assert_eq!(error.kind, SshErrorKind::Authentication);
        assert!(error.message.starts_with("the jump host bastion: the server refused the login as "), "{error}");
    }
    let tries = || bastion.log().matches("Connection from").count();
    assert_eq!(tries(), 1, "{}", bastion.log());
    // A second attempt for a host that already has the error is made by the user, and connects again.
    client.open(&named("gpu0"), "true").await.unwrap_err();
    assert_eq!(tries(), 2, "{}", bastion.log());
}

#[tokio::test]
async fn jump_host_that_cannot_forward_is_reported() {
    let bastion = Sshd::start();
    let mut client = with_config(Interaction::Refuse, &entry("bastion", &bastion));
    let port = free_port(Ipv4Addr::LOCALHOST);
    let mut host = HostConfig { port: Some(port), ..named("127.0.0.1") };
    host.proxy_jump = Some(parse_hops("bastion", 0..7).unwrap());
    let error = client.open(&host, "true").await.unwrap_err();
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
    client = with_config(Interaction::Refuse, &entry("bastion", &closed));
    assert_eq!(
        client.open(&host, "true").await.unwrap_err(),
        SshError::new(
            SshErrorKind::SessionRefused,
            format!("the jump host bastion does not allow forwarding to 127.0.0.1:{port}")
        )
        .with_hint("AllowTcpForwarding and PermitOpen in its sshd_config")
        .naming_jump_host()
    );
}

#[tokio::test]
async fn restarted_jump_host_is_reconnected() {
    let mut bastion = Sshd::start();
    let behind = Sshd::start_at(Ipv4Addr::new(127, 0, 0, 2), &[]);
    let client = with_config(
        Interaction::Refuse,
        &(entry("bastion", &bastion) + &entry("gpu", &behind) + " ProxyJump bastion\n"),
    );
    let gpu = named("gpu");
    assert_eq!(client.run(&gpu, "echo in").await.unwrap().stdout, "in\n");
    bastion.stop();
    let error = client.open(&gpu, "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::ConnectionRefused, "{error}");
    assert_eq!(error.message, format!("the jump host bastion: nothing listens on 127.0.0.1 port {}", bastion.port()));
    bastion.restart();
    assert_eq!(client.run(&gpu, "echo in").await.unwrap().stdout, "in\n");
}

#[tokio::test]
async fn proxy_command_reaches_the_host_and_its_errors_are_shown() {
    let behind = Sshd::start();
    let script = behind.file("pipe.py");
    fs::write(&script, PIPE).unwrap();
    let config = entry("gpu", &behind) + &format!(" ProxyCommand python3 {} %h %p\n", script.display());
    let client = with_config(Interaction::Refuse, &config);
    assert_eq!(client.run(&named("gpu"), "echo in").await.unwrap().stdout, "in\n");
    let client = with_config(Interaction::Refuse, "Host gpu\n ProxyCommand echo no way to %h >&2; exit 1\n");
    let error = client.open(&named("gpu"), "true").await.unwrap_err();
    assert_eq!(
        error.message,
        "gpu port 22 through its ProxyCommand closed the connection before the key exchange was finished; the proxy \
         says: no way to gpu"
    );
}

/// Connects standard input and output to a TCP port, like `nc`.
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
async fn name_with_shell_characters_never_reaches_a_proxy_command() {
    let folder = tempfile::tempdir().unwrap();
    let trap = folder.path().join("trap");
    let config = format!("Host gpu\n HostName x;touch${{IFS}}{}\n ProxyCommand echo %h\n", trap.display());
    let client = with_config(Interaction::Refuse, &config);
    let error = client.open(&named("gpu"), "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::Config, "{error}");
    assert!(!trap.exists());
}

/// A running `ssh` master; ended when dropped.
struct ControlMaster<'a> {
    socket: &'a Path,
}

impl<'a> ControlMaster<'a> {
    fn start(config: &Path, name: &str, socket: &'a Path) -> Self {
        // With -f, ssh returns once it is logged in.
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

impl Drop for ControlMaster<'_> {
    fn drop(&mut self) {
        let control = format!("ControlPath={}", self.socket.display());
        let _ = Command::new("ssh").args(["-F", "/dev/null", "-o", &control, "-O", "exit", "x"]).output();
    }
}

#[tokio::test]
async fn running_control_master_is_used_for_hosts_and_jump_hosts() {
    let bastion = Sshd::start();
    let behind = Sshd::start_at(Ipv4Addr::new(127, 0, 0, 2), &[]);
    let client = with_config(Interaction::Refuse, "");
    let socket = client.home.path().join("master");
    let config = client.home.path().join("config");
    let write_config = |socket: &Path| {
        let (bastion, gpu) = (entry("bastion", &bastion), entry("gpu", &behind));
        fs::write(&config, format!("{bastion} ControlPath {}\n{gpu} ProxyJump bastion\n", socket.display())).unwrap();
    };
    write_config(&socket);
    let master = ControlMaster::start(&config, "bastion", &socket);
    let auto = |name: &str| HostConfig { backend: Backend::Auto, ..named(name) };
    assert_eq!(client.run(&auto("bastion"), "echo in").await.unwrap().stdout, "in\n");
    assert_eq!(client.run(&auto("gpu"), "echo in").await.unwrap().stdout, "in\n");
    assert_eq!((logins(&bastion), logins(&behind)), (1, 1), "the master's login is the only one at the jump host");
    drop(master);
    // A socket without a listener is ignored. It has another path, since the master may still be exiting.
    let socket = client.home.path().join("stale");
    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    write_config(&socket);
    assert_eq!(client.run(&auto("gpu"), "echo in").await.unwrap().stdout, "in\n");
    assert_eq!((logins(&bastion), logins(&behind)), (2, 2));
}
