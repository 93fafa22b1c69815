//! What happens below SSH: silence, and names with several addresses.

use super::harness::{host, person_with};
use crate::faults::link::Link;
use crate::lab::Lab;
use crate::left_out::have_root;
use crate::sshd::Sshd;
use gpufleet::config::{Backend, HostConfig};
use gpufleet::ssh::{Channel, Exit, Interaction};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};

/// Longer than a configured silence may last, and much shorter than our own three times 15 s.
const SOON: Duration = Duration::from_secs(9);

/// Cuts the link of a running command without a word, and tells what the channel says of it soon, and when.
async fn cut(backend: Backend, configuration: &str) -> (Option<Exit>, Duration) {
    let sshd = Sshd::start();
    let link = Link::to(sshd.address()).await;
    let config = sshd.file("ssh_config");
    fs::write(&config, configuration).unwrap();
    let known = format!("[127.0.0.1]:{} {}\n", link.port(), sshd.host_key("ed25519"));
    fs::write(sshd.known_hosts(), known).unwrap();
    let person = person_with(Interaction::Refuse, |options| options.ssh_config = Some(config));
    let host = HostConfig { port: Some(link.port()), backend, ..host(&sshd) };
    let channel = person.open(&host, "echo ready; exec cat").await.unwrap();
    // Nothing is said by us meanwhile, or what TCP makes of an unanswered write would be noticed.
    let Channel { stdin: _stdin, stdout, stderr: _stderr, exit, guard: _guard } = channel;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).await.unwrap();
    assert_eq!(line, "ready\n");
    link.cut();
    let began = Instant::now();
    let exit = tokio::time::timeout(SOON, exit).await;
    (exit.ok().map(|exit| exit.unwrap_or(Exit::Closed(None))), began.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_cut_is_noticed_as_soon_as_the_configuration_wants() {
    let wanted = "ServerAliveInterval 1\nServerAliveCountMax 2\n";
    let (native, system, usual) =
        tokio::join!(cut(Backend::Native, wanted), cut(Backend::System, wanted), cut(Backend::Native, ""));
    for (what, (exit, after)) in [("the built-in client", native), ("ssh", system)] {
        assert!(exit.is_some(), "{what} has not noticed within {SOON:?}");
        assert!(after > Duration::from_millis(900), "{what} was told by something else, after {after:?}");
    }
    assert_eq!(usual.0, None, "nothing else would have told so soon, but it did after {:?}", usual.1);
}

#[tokio::test]
async fn a_name_with_a_dead_and_a_living_address_is_reached_at_the_living_one() {
    if !have_root() {
        return;
    }
    let lab = Lab::start(&["other"]);
    // The resolver puts the address first that is also its source, so that is the dead one.
    let living = Sshd::start_at(Ipv4Addr::new(127, 0, 0, 9), &[]);
    let port = living.port();
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    let dead: SocketAddr = (Ipv4Addr::LOCALHOST, port).into();
    socket.bind(dead).unwrap();
    let _listener = socket.listen(0).unwrap();
    // Its queue is full: Linux drops what comes then, as a firewall would.
    let mut queue = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&dead, Duration::from_millis(300)) {
        queue.push(stream);
    }
    let names = lab.write("hosts", "127.0.0.1 two-addresses.test\n127.0.0.9 two-addresses.test\n");
    let known = lab.write("known", &format!("[two-addresses.test]:{port} {}\n", living.host_key("ed25519")));
    let hosts = lab.write(
        "hosts.toml",
        &format!(
            "[[hosts]]\nname = \"gpu\"\naddress = \"two-addresses.test\"\nport = {port}\nidentity_file = \
             \"{}\"\nknown_hosts = \"{known}\"\nnvml_library = \"{}\"\n",
            living.client_key().display(),
            lab.hosts[0].driver.library().display()
        ),
    );
    for backend in ["native", "system"] {
        let text = fs::read_to_string(&hosts).unwrap();
        fs::write(&hosts, format!("{}\nbackend = \"{backend}\"\n", text.split("\nbackend").next().unwrap())).unwrap();
        let began = Instant::now();
        let output = Command::new("unshare")
            .args(["--mount", "/bin/sh", "-c", "mount --bind \"$1\" /etc/hosts && exec \"$0\" doctor \"$2\""])
            .args([env!("CARGO_BIN_EXE_gpufleet"), &names, &hosts])
            .env_remove("SSH_AUTH_SOCK")
            .env("XDG_STATE_HOME", lab.path("state"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let report = String::from_utf8_lossy(&output.stdout).into_owned();
        println!("{backend} {:?}\n{report}", began.elapsed());
        assert!(output.status.success() && report.contains("first snapshot"), "{backend}: {report}");
        if backend == "native" {
            assert!(report.contains("127.0.0.1, 127.0.0.9"), "the dead one is tried first: {report}");
            assert!(report.contains(&format!("127.0.0.9 port {port}")), "{report}");
            // One after the other, the dead one alone would have taken the 5 s that all of them have.
            assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        }
    }
}
