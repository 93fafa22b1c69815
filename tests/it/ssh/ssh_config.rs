//! ssh configurations: gpufleet reaches a host exactly when plain `ssh NAME` reaches it.

use super::authentication::SshAgent;
use super::client::{Client, client_with, secret};
use crate::lab::skip;
use crate::sshd::{PASSPHRASE, Sshd, free_port};
use gpufleet::config::{Backend, HostConfig, parse_hops};
use gpufleet::ssh::{Interaction, SshError, SshErrorKind};
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The ssh configuration lines that a host section needs to reach `sshd`.
pub(super) fn connection_options(sshd: &Sshd) -> String {
    format!(
        " HostName {}\n Port {}\n User {}\n IdentityFile {}\n UserKnownHostsFile {}\n",
        sshd.ip(),
        sshd.port(),
        sshd.user(),
        sshd.client_key().display(),
        sshd.known_hosts().display()
    )
}

pub(super) fn write_file(sshd: &Sshd, name: &str, text: &str) -> PathBuf {
    let path = sshd.file(name);
    fs::write(&path, text).unwrap();
    path
}

/// Whether the real `ssh` can run a command on the host.
pub(super) fn ssh_works(config: &Path, name: &str) -> bool {
    let output = Command::new("ssh")
        .arg("-F")
        .arg(config)
        .args(["-o", "BatchMode=yes", name, "echo in"])
        .env_remove("SSH_AUTH_SOCK")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    output.status.success() && output.stdout == b"in\n"
}

pub(super) fn client_with_config(config: &Path) -> Client {
    client_with(Interaction::Refuse, |options| options.ssh_config = Some(config.to_owned()))
}

async fn gpufleet_works(config: &Path, name: &str) -> Result<(), SshError> {
    let finished = client_with_config(config).run(&HostConfig::named(name), "echo in").await?;
    assert_eq!(finished.stdout, "in\n");
    Ok(())
}

/// Runs ssh and gpufleet on each configuration of a host `gpu`; both results must equal the third field.
async fn compare(sshd: &Sshd, cases: &[(&str, String, bool)]) {
    for (what, text, works) in cases {
        let config = write_file(sshd, "config", text);
        let theirs = ssh_works(&config, "gpu");
        let ours = gpufleet_works(&config, "gpu").await;
        assert_eq!((theirs, ours.is_ok()), (*works, *works), "{what}: {ours:?}\n{text}");
    }
}

#[tokio::test]
async fn host_is_reachable_exactly_when_ssh_reaches_it() {
    let sshd = Sshd::start();
    let (options, folder) = (connection_options(&sshd), sshd.file("."));
    let at = folder.display();
    let included = write_file(&sshd, "included", &format!("Host gpu\n{options}"));
    fs::copy(sshd.client_key(), sshd.file(&format!("{}-key", sshd.user()))).unwrap();
    fs::copy(sshd.known_hosts(), sshd.file(&format!("kh-{}", sshd.ip()))).unwrap();
    let (user, port, ip) = (sshd.user(), sshd.port(), sshd.ip());
    let key = sshd.host_key("ed25519");
    write_file(&sshd, "aliased", &format!("my-gpu {key}\n"));
    let without = |line: &str| options.lines().filter(|text| !text.contains(line)).collect::<Vec<_>>().join("\n");
    let cases = [
        ("a section", format!("Host other\n HostName 127.0.0.9\nHost gpu\n{options}"), true),
        ("no section for the host", "Host other\n HostName 127.0.0.9\n".to_owned(), false),
        ("an include", format!("Include {}\n", included.display()), true),
        ("a pattern", format!("Host g?u !gpu2\n{options}"), true),
        ("a negated pattern", format!("Host * !gpu\n{options}"), false),
        ("the first value counts", format!("Host gpu\n Port {port}\nHost *\n Port 1\n{options}"), true),
        ("Match exec", format!("Match originalhost gpu exec true\n{options}"), true),
        ("Match exec that fails", format!("Match originalhost gpu exec false\n{options}"), false),
        (
            "Match final",
            format!("Host gpu\n{}\nMatch final host {ip}\n IdentityFile {at}/client\n", without("Identity")),
            true,
        ),
        (
            "tokens",
            format!(
                "Host gpu\n HostName {ip}\n Port {port}\n User {user}\n IdentityFile {at}/%r-key\n UserKnownHostsFile \
                 {at}/kh-%h\n"
            ),
            true,
        ),
        ("canonical names", format!("CanonicalizeHostname yes\nCanonicalDomains invalid\nHost gpu\n{options}"), true),
        ("HostKeyAlias", format!("Host gpu\n HostKeyAlias my-gpu\n UserKnownHostsFile {at}/aliased\n{options}"), true),
        ("no HostKeyAlias", format!("Host gpu\n UserKnownHostsFile {at}/aliased\n{options}"), false),
        (
            "GlobalKnownHostsFile",
            format!("Host gpu\n UserKnownHostsFile none\n GlobalKnownHostsFile {at}/known_hosts\n{options}"),
            true,
        ),
        ("equals signs and quotes", format!("Host=\"gpu\"\n{}", options.replace("Port ", "Port = ")), true),
        ("unknown options with IgnoreUnknown", format!("IgnoreUnknown Odd*\nOddity yes\nHost gpu\n{options}"), true),
        ("compression", format!("Host gpu\n Compression yes\n{options}"), true),
        ("no keys", format!("Host gpu\n PubkeyAuthentication no\n{options}"), false),
        ("IPv6 only", format!("Host gpu\n AddressFamily inet6\n{options}"), false),
        ("IPv4 only", format!("Host gpu\n AddressFamily inet\n{options}"), true),
        ("port 0", format!("Host gpu\n Port 0\n{options}"), false),
        ("an invalid port", format!("Host gpu\n Port 99999\n{options}"), false),
        ("an unknown option", format!("Host gpu\n Hots x\n{options}"), false),
        ("a quote that does not end", format!("Host gpu\n User \"x\n{options}"), false),
    ];
    compare(&sshd, &cases).await;
}

#[tokio::test]
async fn offered_keys_match_ssh() {
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &["MaxAuthTries 3"]);
    let options = connection_options(&sshd);
    let agent = SshAgent::start(&sshd.file("."));
    for number in 0..8 {
        let key = sshd.file(&format!("other{number}"));
        let made = Command::new("ssh-keygen").args(["-qN", "", "-t", "ed25519", "-f"]).arg(&key).status().unwrap();
        assert!(made.success());
        agent.add(&key);
    }
    let with_key = tempfile::tempdir().unwrap();
    let holding = SshAgent::start(with_key.path());
    holding.add(&sshd.client_key());
    let (full, held) = (agent.socket.display(), holding.socket.display());
    let keyless: String =
        options.lines().filter(|line| !line.contains("IdentityFile")).map(|line| format!("{line}\n")).collect();
    let public = sshd.file("client.pub");
    let cases = [
        ("an agent with many other keys", format!("Host gpu\n IdentityAgent {full}\n{options}"), false),
        ("IdentitiesOnly", format!("Host gpu\n IdentityAgent {full}\n IdentitiesOnly yes\n{options}"), true),
        ("no agent", format!("Host gpu\n IdentityAgent none\n{options}"), true),
        ("the agent alone", format!("Host gpu\n IdentityAgent {held}\n IdentityFile none\n{keyless}"), true),
        (
            "a public key whose private half is in the agent",
            format!(
                "Host gpu\n IdentityAgent {held}\n IdentitiesOnly yes\n IdentityFile {}\n{keyless}",
                public.display()
            ),
            true,
        ),
        (
            "an unauthorized key before the authorized one",
            format!("Host gpu\n IdentityAgent none\n IdentityFile {}\n{options}", sshd.stranger_key().display()),
            true,
        ),
    ];
    compare(&sshd, &cases).await;
    // For a key file that ssh does not accept, the error names the permissions.
    let open = sshd.file("open");
    fs::copy(sshd.client_key(), &open).unwrap();
    fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let text = format!("Host gpu\n IdentitiesOnly yes\n IdentityFile {}\n{keyless}", open.display());
    compare(&sshd, &[("a key that others may read", text.clone(), false)]).await;
    let error = gpufleet_works(&write_file(&sshd, "config", &text), "gpu").await.unwrap_err();
    assert!(
        error.message.contains(&format!("{} is not used: its permissions 0644 are too open", open.display())),
        "{error}"
    );
    assert_eq!(error.hint, Some(format!("chmod 600 {}", open.display())));
}

#[tokio::test]
async fn host_key_checking_matches_ssh() {
    let sshd = Sshd::start();
    let options = connection_options(&sshd);
    let known = fs::read_to_string(sshd.known_hosts()).unwrap();
    let other = fs::read_to_string(sshd.file("stranger.pub")).unwrap();
    let changed = format!("[127.0.0.1]:{} {other}", sshd.port());
    for (checking, file, works) in [
        ("accept-new", "", true),
        ("accept-new", changed.as_str(), false),
        ("yes", "", false),
        ("ask", "", false),
        ("yes", known.as_str(), true),
    ] {
        let config = write_file(
            &sshd,
            "config",
            &format!("Host gpu\n StrictHostKeyChecking {checking}\n HashKnownHosts yes\n{options}"),
        );
        fs::write(sshd.known_hosts(), file).unwrap();
        let theirs = ssh_works(&config, "gpu");
        fs::write(sshd.known_hosts(), file).unwrap();
        let ours = gpufleet_works(&config, "gpu").await;
        assert_eq!((theirs, ours.is_ok()), (works, works), "{checking}: {ours:?}");
        let written = fs::read_to_string(sshd.known_hosts()).unwrap();
        if file.is_empty() && works {
            assert!(written.starts_with("|1|") && written.lines().count() == 1, "hashed, once: {written}");
            assert!(ssh_works(&config, "gpu"), "ssh reads the line that gpufleet wrote");
        } else {
            assert_eq!(written, file, "no key is added");
        }
    }
    // With `no`, ssh continues despite a changed key; gpufleet stops.
    fs::write(sshd.known_hosts(), &changed).unwrap();
    let config = write_file(&sshd, "config", &format!("Host gpu\n StrictHostKeyChecking no\n{options}"));
    let error = gpufleet_works(&config, "gpu").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::HostKeyChanged);
}

#[tokio::test]
async fn jump_hosts_and_proxy_commands_match_ssh() {
    let gate = Sshd::start();
    let behind = Sshd::start_at(Ipv4Addr::new(127, 0, 0, 2), &[]);
    let (to_gate, to_gpu) = (format!("Host gate\n{}", connection_options(&gate)), connection_options(&behind));
    let (port, user) = (gate.port(), gate.user());
    let config = gate.file("config");
    let cases = [
        ("ProxyJump", format!("{to_gate}Host gpu\n ProxyJump gate\n{to_gpu}"), true),
        ("ProxyJump none", format!("{to_gate}Host gpu\n ProxyJump none\n{to_gpu}Host gpu\n ProxyJump gate\n"), true),
        (
            "user and port in ProxyJump",
            format!(
                "Host 127.0.0.1\n IdentityFile {}\n UserKnownHostsFile {}\nHost gpu\n ProxyJump {user}@127.0.0.1:{port}\n{to_gpu}",
                gate.client_key().display(),
                gate.known_hosts().display()
            ),
            true,
        ),
        (
            "a jump host that leads to itself",
            format!("{to_gate}Host gpu\n ProxyJump gate\n{}", connection_options(&gate)),
            true,
        ),
        ("an invalid port in ProxyJump", format!("{to_gate}Host gpu\n ProxyJump gate:99999\n{to_gpu}"), false),
        (
            "ProxyCommand",
            format!(
                "{to_gate}Host gpu\n ProxyCommand ssh -F {} -o BatchMode=yes -W %h:%p gate\n{to_gpu}",
                config.display()
            ),
            true,
        ),
        ("a ProxyCommand that fails", format!("Host gpu\n ProxyCommand exit 1\n{to_gpu}"), false),
    ];
    compare(&gate, &cases).await;
}

/// Passes an open connection over its standard output, as ProxyUseFdpass requires.
const PASSES: &str = "\
import array, os, socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
ours = socket.socket(fileno=os.dup(1))
ours.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [peer.fileno()]))])
";

#[tokio::test]
async fn options_that_the_built_in_client_lacks_use_the_ssh_program() {
    let sshd = Sshd::start();
    let options = connection_options(&sshd);
    let passes = write_file(&sshd, "passes.py", PASSES);
    let empty = write_file(&sshd, "empty", "");
    let command = format!("/bin/cat {}", sshd.known_hosts().display());
    let cases = [
        (
            "KnownHostsCommand",
            format!("Host gpu\n KnownHostsCommand {command}\n UserKnownHostsFile {}\n{options}", empty.display()),
            true,
        ),
        (
            "ProxyUseFdpass",
            format!("Host gpu\n ProxyUseFdpass yes\n ProxyCommand python3 {} %h %p\n{options}", passes.display()),
            true,
        ),
        ("BindAddress", format!("Host gpu\n BindAddress 127.0.0.1\n{options}"), true),
        ("CheckHostIP", format!("Host gpu\n CheckHostIP yes\n{options}"), true),
    ];
    compare(&sshd, &cases).await;
    // Options that would keep ssh from running the command are overridden, and no forwarding is requested.
    for line in ["RemoteCommand tmux", "SessionType none", "StdinNull yes", "ForwardAgent yes", "LocalForward 1 a:1"] {
        for backend in [Backend::Native, Backend::System] {
            let config = write_file(&sshd, "config", &format!("Host gpu\n {line}\n{options}"));
            let host = HostConfig { backend, ..HostConfig::named("gpu") };
            assert_eq!(
                client_with_config(&config).run(&host, "echo in").await.unwrap().stdout,
                "in\n",
                "{line} {backend:?}"
            );
        }
    }
    // A server with only algorithms that the built-in client lacks.
    let odd = Sshd::start_at(Ipv4Addr::new(127, 0, 0, 2), &["KexAlgorithms sntrup761x25519-sha512@openssh.com"]);
    compare(
        &odd,
        &[(
            "a key exchange that the built-in client lacks",
            format!("Host gpu\n{}", self::connection_options(&odd)),
            true,
        )],
    )
    .await;
}

#[tokio::test]
async fn connect_timeout_is_applied() {
    let sshd = Sshd::start();
    // A listener with a full backlog: Linux drops further connection requests, as a firewall does.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queue = Vec::new();
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        queue.push(stream);
    }
    let port = address.port();
    let text = format!("Host gpu\n HostName 127.0.0.1\n Port {port}\n User x\n ConnectTimeout 1\n");
    let config = write_file(&sshd, "config", &text);
    let began = Instant::now();
    let error = gpufleet_works(&config, "gpu").await.unwrap_err();
    assert_eq!(error.message, format!("no answer from 127.0.0.1 port {port} within 1 s"));
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ipv6_address_is_reachable() {
    let sshd = Sshd::start();
    let relay = match tokio::net::TcpListener::bind("[::1]:0").await {
        Ok(relay) => relay,
        Err(error) => return skip(&format!("this machine has no IPv6 ({error})")),
    };
    let port = relay.local_addr().unwrap().port();
    let server = sshd.address();
    let relaying = tokio::spawn(async move {
        while let Ok((mut near, _)) = relay.accept().await {
            tokio::spawn(async move {
                let mut far = tokio::net::TcpStream::connect(server).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    fs::write(sshd.known_hosts(), format!("[::1]:{port} {}\n", sshd.host_key("ed25519"))).unwrap();
    let text = format!("Host gpu\n HostName ::1\n Port {port}\n{}", connection_options(&sshd));
    let config = write_file(&sshd, "config", &text);
    let path = config.clone();
    assert!(tokio::task::spawn_blocking(move || ssh_works(&path, "gpu")).await.unwrap());
    gpufleet_works(&config, "gpu").await.unwrap();
    relaying.abort();
}

#[tokio::test]
async fn keys_of_every_format_work_with_and_without_passphrase() {
    let sshd = Sshd::start();
    for (kind, bits) in [("ed25519", "256"), ("ecdsa", "256"), ("ecdsa", "384"), ("ecdsa", "521"), ("rsa", "2048")] {
        for format in ["RFC4716", "PEM", "PKCS8"] {
            // In ssh-keygen, RFC4716 means the private key format of OpenSSH; ed25519 has no other.
            if kind == "ed25519" && format != "RFC4716" {
                continue;
            }
            for passphrase in ["", PASSPHRASE] {
                let folder = tempfile::tempdir().unwrap();
                let key = folder.path().join("key");
                let made = Command::new("ssh-keygen")
                    .args(["-q", "-t", kind, "-b", bits, "-m", format, "-a", "1", "-N", passphrase, "-f"])
                    .arg(&key)
                    .status()
                    .unwrap();
                assert!(made.success());
                fs::copy(folder.path().join("key.pub"), sshd.file("authorized_keys")).unwrap();
                let mut client = super::client::client(Interaction::Ask);
                let mut host = super::client::host(&sshd);
                host.identity_file = Some(key);
                host.backend = Backend::Auto;
                let login = client.spawn(&host, "echo in");
                if !passphrase.is_empty() {
                    let prompt = client.next_prompt().await;
                    client.context.answer(prompt.id, secret(passphrase));
                }
                let finished = login.await.unwrap().unwrap_or_else(|error| panic!("{kind} {format}: {error:?}"));
                assert_eq!(finished.stdout, "in\n", "{kind} {bits} {format} {passphrase:?}");
            }
        }
    }
}

#[tokio::test]
async fn host_and_user_names_are_never_run_as_shell_code_or_options() {
    let sshd = Sshd::start();
    let trap = sshd.file("trap");
    let touch = format!("touch${{IFS}}{}", trap.display());
    let closed = free_port(Ipv4Addr::LOCALHOST);
    let config = write_file(&sshd, "config", &format!("Host *\n Port {closed}\n User x\n"));
    let names = [
        format!("-oProxyCommand={touch}"),
        format!("$({touch})"),
        format!("`{touch}`"),
        format!("a;{touch}"),
        "-V".into(),
    ];
    for name in &names {
        for backend in [Backend::Native, Backend::System] {
            let address = HostConfig { address: Some(name.clone()), backend, ..HostConfig::named("gpu") };
            let user = HostConfig { user: Some(name.clone()), address: Some("127.0.0.1".into()), ..address.clone() };
            assert!(parse_hops(name, 0..name.len()).is_err(), "{name} as a jump host");
            for host in [address, user] {
                let error = client_with_config(&config).open(&host, "true").await.unwrap_err();
                assert!(!error.message.is_empty() && !trap.exists(), "{name}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn nothing_is_forwarded_or_compressed_whatever_the_configuration_asks_for() {
    let (sshd, options) = server(&["X11Forwarding yes"]);
    let folder = tempfile::tempdir().unwrap();
    let agent = SshAgent::start(folder.path());
    let [local, remote] = [(); 2].map(|()| free_port(Ipv4Addr::LOCALHOST));
    let forwards = format!(
        "ForwardAgent yes\n ForwardX11 yes\n Compression yes\n IdentityAgent {}\n LocalForward {local} 127.0.0.1:1\n \
         RemoteForward {remote} 127.0.0.1:1",
        agent.socket.display()
    );
    let config = write_file(&sshd, "config", &format!("Host gpu\n {forwards}\n{options}"));
    let command = "echo ${SSH_AUTH_SOCK:-no agent}";
    let requests = |log: &str| {
        let words = ["tcpip-forward", "auth-agent-req", "compression: zlib"];
        words.map(|word| log.matches(word).count())
    };
    // The configuration is effective: ssh forwards and compresses.
    let output = Command::new("ssh")
        .arg("-F")
        .arg(&config)
        .args(["-o", "BatchMode=yes", "gpu", command])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).starts_with('/'), "{output:?}");
    let by_ssh = requests(&sshd.log());
    assert!(by_ssh.iter().all(|count| *count > 0), "{by_ssh:?}\n{}", sshd.log());
    for backend in [Backend::Native, Backend::System] {
        let host = HostConfig { backend, ..HostConfig::named("gpu") };
        let finished = client_with_config(&config).run(&host, command).await.unwrap();
        assert_eq!(finished.stdout, "no agent\n", "{backend:?}");
        assert_eq!(requests(&sshd.log()), by_ssh, "{backend:?}\n{}", sshd.log());
    }
}

/// A server that logs the negotiated algorithms and whose keys are all known, with the host section options for it.
fn server(added: &[&str]) -> (Sshd, String) {
    let mut lines = vec!["LogLevel DEBUG1"];
    lines.extend(added);
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &lines);
    let known: String = ["ed25519", "ecdsa", "rsa"].iter().map(|kind| sshd.known_hosts_line(kind)).collect();
    fs::write(sshd.known_hosts(), known).unwrap();
    let options = connection_options(&sshd);
    (sshd, options)
}

/// The word that follows `prefix` in the last line of the log that contains them.
fn logged_value(log: &str, prefix: &str) -> String {
    let line =
        log.lines().rev().find_map(|line| line.split_once(prefix)).unwrap_or_else(|| panic!("no {prefix} in\n{log}"));
    line.1.split_whitespace().next().unwrap().to_owned()
}

async fn run_native(config: &Path) -> Result<(), SshError> {
    let host = HostConfig { backend: Backend::Native, ..HostConfig::named("gpu") };
    assert_eq!(client_with_config(config).run(&host, "echo in").await?.stdout, "in\n");
    Ok(())
}

#[tokio::test]
async fn algorithm_order_and_exclusion_match_ssh() {
    let (sshd, options) = server(&["Ciphers +aes128-cbc"]);
    let cases = [
        ("KexAlgorithms ecdh-sha2-nistp384,curve25519-sha256", "kex: algorithm: ", "ecdh-sha2-nistp384"),
        ("KexAlgorithms -curve25519*,sntrup*,mlkem*", "kex: algorithm: ", "ecdh-sha2-nistp256"),
        ("KexAlgorithms ^diffie-hellman-group14-sha256", "kex: algorithm: ", "diffie-hellman-group14-sha256"),
        ("Ciphers aes256-ctr,aes128-gcm@openssh.com", "client->server cipher: ", "aes256-ctr"),
        ("Ciphers -chacha20*", "client->server cipher: ", "aes128-ctr"),
        ("Ciphers aes128-ctr\n MACs hmac-sha2-512,hmac-sha2-256-etm@openssh.com", " MAC: ", "hmac-sha2-512"),
        ("Ciphers aes128-ctr\n MACs -umac*,hmac-sha2-256*", " MAC: ", "hmac-sha2-512-etm@openssh.com"),
        ("HostKeyAlgorithms rsa-sha2-256", "kex: host key algorithm: ", "rsa-sha2-256"),
        ("HostKeyAlgorithms ecdsa-sha2-nistp256,ssh-ed25519", "kex: host key algorithm: ", "ecdsa-sha2-nistp256"),
        ("HostKeyAlgorithms ^rsa-sha2-512", "kex: host key algorithm: ", "rsa-sha2-512"),
    ];
    for (lines, prefix, expected) in cases {
        let config = write_file(&sshd, "config", &format!("Host gpu\n {lines}\n{options}"));
        assert!(ssh_works(&config, "gpu"), "{lines}");
        let theirs = logged_value(&sshd.log(), prefix);
        run_native(&config).await.unwrap_or_else(|error| panic!("{lines}: {error:?}"));
        assert_eq!((theirs.as_str(), logged_value(&sshd.log(), prefix).as_str()), (expected, expected), "{lines}");
    }
    // An excluded key type is not used, even if it is the only known key of the host.
    fs::write(sshd.known_hosts(), sshd.known_hosts_line("ed25519")).unwrap();
    let config = write_file(&sshd, "config", &format!("Host gpu\n HostKeyAlgorithms ecdsa-sha2-nistp256\n{options}"));
    assert!(!ssh_works(&config, "gpu"));
    let error = run_native(&config).await.unwrap_err();
    assert!(matches!(error.kind, SshErrorKind::HostKeyUnknown | SshErrorKind::HostKeyChanged), "{error:?}");
}

#[tokio::test]
async fn unsupported_algorithms_are_left_to_the_ssh_program() {
    let (sshd, options) = server(&[
        "Ciphers +aes128-cbc",
        "HostKeyAlgorithms +ssh-rsa",
        "KexAlgorithms +sntrup761x25519-sha512@openssh.com",
    ]);
    for (lines, setting) in [
        ("KexAlgorithms sntrup761x25519-sha512@openssh.com", "KexAlgorithms"),
        ("Ciphers aes128-cbc", "Ciphers"),
        ("Ciphers aes128-ctr\n MACs umac-64@openssh.com", "MACs"),
        ("HostKeyAlgorithms ssh-rsa", "HostKeyAlgorithms"),
    ] {
        let config = write_file(&sshd, "config", &format!("Host gpu\n {lines}\n{options}"));
        assert_eq!(
            run_native(&config).await.unwrap_err(),
            SshError::new(
                SshErrorKind::Unsupported,
                format!("the built-in client cannot do {setting}, which the ssh configuration asks for")
            )
            .with_hint("backend = \"system\" in hosts.toml uses the ssh program")
        );
        assert!(ssh_works(&config, "gpu"), "{lines}");
        let finished = client_with_config(&config).run(&HostConfig::named("gpu"), "echo in").await.unwrap();
        assert_eq!(finished.stdout, "in\n", "{lines}");
    }
}

#[tokio::test]
async fn key_signs_with_an_algorithm_that_the_configuration_accepts() {
    let (sshd, options) = server(&[]);
    // The RSA host key of the server doubles as a client key.
    let rsa = sshd.file("host_rsa");
    let both = ["client.pub", "host_rsa.pub"].map(|name| fs::read_to_string(sshd.file(name)).unwrap()).concat();
    fs::write(sshd.file("authorized_keys"), both).unwrap();
    let keys = format!(" IdentitiesOnly yes\n IdentityFile {}\n{options}", rsa.display());
    for (list, used) in [
        ("rsa-sha2-256", "rsa-sha2-256"),
        ("rsa-sha2-512", "rsa-sha2-512"),
        ("-rsa-sha2-512", "rsa-sha2-256"),
        ("ssh-ed25519", "ssh-ed25519"),
        ("-rsa*", "ssh-ed25519"),
    ] {
        let config = write_file(&sshd, "config", &format!("Host gpu\n PubkeyAcceptedAlgorithms {list}\n{keys}"));
        for by_us in [false, true] {
            let before = sshd.log().len();
            if by_us {
                run_native(&config).await.unwrap_or_else(|error| panic!("{list}: {error:?}"));
            } else {
                assert!(ssh_works(&config, "gpu"), "{list}");
            }
            let log = sshd.log();
            let offered: Vec<_> = log[before..].split(" pkalg ").skip(1).map(|rest| rest.split(' ').next()).collect();
            assert!(!offered.is_empty() && offered.iter().all(|name| *name == Some(used)), "{list}: {offered:?}");
        }
    }
    let config =
        write_file(&sshd, "config", &format!("Host gpu\n PubkeyAcceptedAlgorithms ecdsa-sha2-nistp256\n{keys}"));
    assert!(!ssh_works(&config, "gpu"));
    let error = run_native(&config).await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::Authentication);
    let left_out = format!("{} (RSA) was not offered: PubkeyAcceptedAlgorithms excludes it", rsa.display());
    assert!(error.message.contains(&left_out), "{error}");
}
