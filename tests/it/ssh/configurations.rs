//! What people write into their ssh configuration: wherever plain `ssh NAME` works, it works here, and nowhere else.

use super::harness::{Person, person_with, secret};
use super::logins::SshAgent;
use crate::left_out::leave_out;
use crate::sshd::{PASSPHRASE, Sshd, free_port};
use gpufleet::config::{Backend, HostConfig, parse_hops};
use gpufleet::ssh::{Interaction, SshError, SshErrorKind};
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The lines that lead to a server.
pub(super) fn way(sshd: &Sshd) -> String {
    format!(
        " HostName {}\n Port {}\n User {}\n IdentityFile {}\n UserKnownHostsFile {}\n",
        sshd.ip(),
        sshd.port(),
        sshd.user(),
        sshd.client_key().display(),
        sshd.known_hosts().display()
    )
}

pub(super) fn write(sshd: &Sshd, name: &str, text: &str) -> PathBuf {
    let path = sshd.file(name);
    fs::write(&path, text).unwrap();
    path
}

/// Whether the real `ssh` runs a command there.
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

pub(super) fn by(config: &Path) -> Person {
    person_with(Interaction::Refuse, |options| options.ssh_config = Some(config.to_owned()))
}

async fn we_work(config: &Path, name: &str) -> Result<(), SshError> {
    let finished = by(config).run(&HostConfig::named(name), "echo in").await?;
    assert_eq!(finished.stdout, "in\n");
    Ok(())
}

/// Runs both on each configuration of a host `gpu`; `works` says what is meant, so that no case tells nothing.
async fn compare(sshd: &Sshd, cases: &[(&str, String, bool)]) {
    for (what, text, works) in cases {
        let config = write(sshd, "config", text);
        let theirs = ssh_works(&config, "gpu");
        let ours = we_work(&config, "gpu").await;
        assert_eq!((theirs, ours.is_ok()), (*works, *works), "{what}: {ours:?}\n{text}");
    }
}

#[tokio::test]
async fn what_leads_to_a_host_leads_us_there_too() {
    let sshd = Sshd::start();
    let (way, folder) = (way(&sshd), sshd.file("."));
    let at = folder.display();
    let included = write(&sshd, "included", &format!("Host gpu\n{way}"));
    fs::copy(sshd.client_key(), sshd.file(&format!("{}-key", sshd.user()))).unwrap();
    fs::copy(sshd.known_hosts(), sshd.file(&format!("kh-{}", sshd.ip()))).unwrap();
    let (user, port, ip) = (sshd.user(), sshd.port(), sshd.ip());
    let key = sshd.host_key("ed25519");
    write(&sshd, "aliased", &format!("my-gpu {key}\n"));
    let without = |line: &str| way.lines().filter(|text| !text.contains(line)).collect::<Vec<_>>().join("\n");
    let cases = [
        ("a section", format!("Host other\n HostName 127.0.0.9\nHost gpu\n{way}"), true),
        ("nothing of it", "Host other\n HostName 127.0.0.9\n".to_owned(), false),
        ("an include", format!("Include {}\n", included.display()), true),
        ("a pattern", format!("Host g?u !gpu2\n{way}"), true),
        ("a negated pattern", format!("Host * !gpu\n{way}"), false),
        ("the first value counts", format!("Host gpu\n Port {port}\nHost *\n Port 1\n{way}"), true),
        ("Match exec", format!("Match originalhost gpu exec true\n{way}"), true),
        ("Match exec that fails", format!("Match originalhost gpu exec false\n{way}"), false),
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
        ("canonical names", format!("CanonicalizeHostname yes\nCanonicalDomains invalid\nHost gpu\n{way}"), true),
        ("HostKeyAlias", format!("Host gpu\n HostKeyAlias my-gpu\n UserKnownHostsFile {at}/aliased\n{way}"), true),
        ("without it", format!("Host gpu\n UserKnownHostsFile {at}/aliased\n{way}"), false),
        (
            "GlobalKnownHostsFile",
            format!("Host gpu\n UserKnownHostsFile none\n GlobalKnownHostsFile {at}/known_hosts\n{way}"),
            true,
        ),
        ("equals signs and quotes", format!("Host=\"gpu\"\n{}", way.replace("Port ", "Port = ")), true),
        ("options nobody knows", format!("IgnoreUnknown Odd*\nOddity yes\nHost gpu\n{way}"), true),
        ("compression", format!("Host gpu\n Compression yes\n{way}"), true),
        ("no keys", format!("Host gpu\n PubkeyAuthentication no\n{way}"), false),
        ("IPv6 only", format!("Host gpu\n AddressFamily inet6\n{way}"), false),
        ("IPv4 only", format!("Host gpu\n AddressFamily inet\n{way}"), true),
        ("a port of nought", format!("Host gpu\n Port 0\n{way}"), false),
        ("a port that is none", format!("Host gpu\n Port 99999\n{way}"), false),
        ("a line that is none", format!("Host gpu\n Hots x\n{way}"), false),
        ("a quote that does not end", format!("Host gpu\n User \"x\n{way}"), false),
    ];
    compare(&sshd, &cases).await;
}

#[tokio::test]
async fn which_keys_are_offered_and_by_whom() {
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &["MaxAuthTries 3"]);
    let way = way(&sshd);
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
        way.lines().filter(|line| !line.contains("IdentityFile")).map(|line| format!("{line}\n")).collect();
    let public = sshd.file("client.pub");
    let cases = [
        ("an agent full of others", format!("Host gpu\n IdentityAgent {full}\n{way}"), false),
        ("IdentitiesOnly", format!("Host gpu\n IdentityAgent {full}\n IdentitiesOnly yes\n{way}"), true),
        ("no agent", format!("Host gpu\n IdentityAgent none\n{way}"), true),
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
            "a key that is not let in before the one that is",
            format!("Host gpu\n IdentityAgent none\n IdentityFile {}\n{way}", sshd.stranger_key().display()),
            true,
        ),
    ];
    compare(&sshd, &cases).await;
    // Permissions that ssh does not take are told in its words.
    let open = sshd.file("open");
    fs::copy(sshd.client_key(), &open).unwrap();
    fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let text = format!("Host gpu\n IdentitiesOnly yes\n IdentityFile {}\n{keyless}", open.display());
    compare(&sshd, &[("a key that others may read", text.clone(), false)]).await;
    let error = we_work(&write(&sshd, "config", &text), "gpu").await.unwrap_err();
    assert!(
        error.message.contains(&format!("{} is not used: its permissions 0644 are too open", open.display())),
        "{error}"
    );
    assert_eq!(error.hint, Some(format!("chmod 600 {}", open.display())));
}

#[tokio::test]
async fn host_keys_as_the_configuration_wants_them() {
    let sshd = Sshd::start();
    let way = way(&sshd);
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
        let config =
            write(&sshd, "config", &format!("Host gpu\n StrictHostKeyChecking {checking}\n HashKnownHosts yes\n{way}"));
        fs::write(sshd.known_hosts(), file).unwrap();
        let theirs = ssh_works(&config, "gpu");
        fs::write(sshd.known_hosts(), file).unwrap();
        let ours = we_work(&config, "gpu").await;
        assert_eq!((theirs, ours.is_ok()), (works, works), "{checking}: {ours:?}");
        let written = fs::read_to_string(sshd.known_hosts()).unwrap();
        if file.is_empty() && works {
            assert!(written.starts_with("|1|") && written.lines().count() == 1, "hashed, once: {written}");
            assert!(ssh_works(&config, "gpu"), "ssh reads what we wrote");
        } else {
            assert_eq!(written, file, "nothing is added");
        }
    }
    // ssh goes on with `no` and a changed key; here it stops all the same.
    fs::write(sshd.known_hosts(), &changed).unwrap();
    let config = write(&sshd, "config", &format!("Host gpu\n StrictHostKeyChecking no\n{way}"));
    let error = we_work(&config, "gpu").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::HostKeyChanged);
}

#[tokio::test]
async fn through_others() {
    let gate = Sshd::start();
    let behind = Sshd::start_at(Ipv4Addr::new(127, 0, 0, 2), &[]);
    let (to_gate, to_gpu) = (format!("Host gate\n{}", way(&gate)), way(&behind));
    let (port, user) = (gate.port(), gate.user());
    let config = gate.file("config");
    let cases = [
        ("ProxyJump", format!("{to_gate}Host gpu\n ProxyJump gate\n{to_gpu}"), true),
        ("ProxyJump none", format!("{to_gate}Host gpu\n ProxyJump none\n{to_gpu}Host gpu\n ProxyJump gate\n"), true),
        (
            "user and port in it",
            format!(
                "Host 127.0.0.1\n IdentityFile {}\n UserKnownHostsFile {}\nHost gpu\n ProxyJump {user}@127.0.0.1:{port}\n{to_gpu}",
                gate.client_key().display(),
                gate.known_hosts().display()
            ),
            true,
        ),
        ("a jump host that leads to itself", format!("{to_gate}Host gpu\n ProxyJump gate\n{}", way(&gate)), true),
        ("an absurd port of it", format!("{to_gate}Host gpu\n ProxyJump gate:99999\n{to_gpu}"), false),
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

/// Passes an open connection on its standard output, as ProxyUseFdpass wants.
const PASSES: &str = "\
import array, os, socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
ours = socket.socket(fileno=os.dup(1))
ours.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [peer.fileno()]))])
";

#[tokio::test]
async fn what_the_built_in_client_cannot_do_the_ssh_program_does() {
    let sshd = Sshd::start();
    let way = way(&sshd);
    let passes = write(&sshd, "passes.py", PASSES);
    let empty = write(&sshd, "empty", "");
    let command = format!("/bin/cat {}", sshd.known_hosts().display());
    let cases = [
        (
            "KnownHostsCommand",
            format!("Host gpu\n KnownHostsCommand {command}\n UserKnownHostsFile {}\n{way}", empty.display()),
            true,
        ),
        (
            "ProxyUseFdpass",
            format!("Host gpu\n ProxyUseFdpass yes\n ProxyCommand python3 {} %h %p\n{way}", passes.display()),
            true,
        ),
        ("BindAddress", format!("Host gpu\n BindAddress 127.0.0.1\n{way}"), true),
        ("CheckHostIP", format!("Host gpu\n CheckHostIP yes\n{way}"), true),
    ];
    compare(&sshd, &cases).await;
    // What would keep ssh from running our command is undone, and forwardings are not asked for.
    for line in ["RemoteCommand tmux", "SessionType none", "StdinNull yes", "ForwardAgent yes", "LocalForward 1 a:1"] {
        for backend in [Backend::Native, Backend::System] {
            let config = write(&sshd, "config", &format!("Host gpu\n {line}\n{way}"));
            let host = HostConfig { backend, ..HostConfig::named("gpu") };
            assert_eq!(by(&config).run(&host, "echo in").await.unwrap().stdout, "in\n", "{line} {backend:?}");
        }
    }
    // Algorithms that we have not.
    let odd = Sshd::start_at(Ipv4Addr::new(127, 0, 0, 2), &["KexAlgorithms sntrup761x25519-sha512@openssh.com"]);
    compare(&odd, &[("a key exchange of its own", format!("Host gpu\n{}", self::way(&odd)), true)]).await;
}

#[tokio::test]
async fn a_connect_timeout_is_kept() {
    let sshd = Sshd::start();
    // A listener whose queue is full: Linux drops what comes then, as a firewall would.
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
    let config = write(&sshd, "config", &text);
    let began = Instant::now();
    let error = we_work(&config, "gpu").await.unwrap_err();
    assert_eq!(error.message, format!("no answer from 127.0.0.1 port {port} within 1 s"));
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_of_ipv6() {
    let sshd = Sshd::start();
    let relay = match tokio::net::TcpListener::bind("[::1]:0").await {
        Ok(relay) => relay,
        Err(error) => return leave_out(&format!("this machine has no IPv6 ({error})")),
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
    let text = format!("Host gpu\n HostName ::1\n Port {port}\n{}", way(&sshd));
    let config = write(&sshd, "config", &text);
    let path = config.clone();
    assert!(tokio::task::spawn_blocking(move || ssh_works(&path, "gpu")).await.unwrap());
    we_work(&config, "gpu").await.unwrap();
    relaying.abort();
}

#[tokio::test]
async fn keys_of_every_format_open_plain_and_locked() {
    let sshd = Sshd::start();
    for (kind, bits) in [("ed25519", "256"), ("ecdsa", "256"), ("ecdsa", "384"), ("ecdsa", "521"), ("rsa", "2048")] {
        for format in ["RFC4716", "PEM", "PKCS8"] {
            // The RFC4716 of ssh-keygen is OpenSSH's own format for private keys; ed25519 has no other.
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
                let mut person = super::harness::person(Interaction::Ask);
                let mut host = super::harness::host(&sshd);
                host.identity_file = Some(key);
                host.backend = Backend::Auto;
                let opening = person.spawn(&host, "echo in");
                if !passphrase.is_empty() {
                    let prompt = person.asked().await;
                    person.context.answer(prompt.id, secret(passphrase));
                }
                let finished = opening.await.unwrap().unwrap_or_else(|error| panic!("{kind} {format}: {error:?}"));
                assert_eq!(finished.stdout, "in\n", "{kind} {bits} {format} {passphrase:?}");
            }
        }
    }
}

#[tokio::test]
async fn names_never_reach_a_shell_or_an_option() {
    let sshd = Sshd::start();
    let trap = sshd.file("trap");
    let touch = format!("touch${{IFS}}{}", trap.display());
    let closed = free_port(Ipv4Addr::LOCALHOST);
    let config = write(&sshd, "config", &format!("Host *\n Port {closed}\n User x\n"));
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
                let error = by(&config).open(&host, "true").await.unwrap_err();
                assert!(!error.message.is_empty() && !trap.exists(), "{name}: {error}");
            }
        }
    }
}
