//! Commands over each transport: streams, exit status, cancellation and connection errors.

use super::client::{Finished, client, client_with, finish, host};
use crate::faults::proxies::Link;
use crate::lab::{Lab, has_root, wait_gone};
use crate::sshd::{MuteServer, Sshd, TIMEOUT, free_port};
use gpufleet::config::{Backend, HostConfig};
use gpufleet::ssh::{Channel, Exit, Interaction, SshError, SshErrorKind, SshPhase, open};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::sync::watch;

const BOTH_STREAMS: &str = "echo out; echo err >&2; exit 7";

fn both_streams() -> Finished {
    Finished { stdout: "out\n".into(), stderr: "err\n".into(), exit: Exit::Status(7) }
}

fn local() -> HostConfig {
    HostConfig::named("localhost")
}

#[tokio::test]
async fn both_streams_and_the_exit_status_are_returned() {
    let sshd = Sshd::start();
    let client = client(Interaction::Refuse);
    let mut host = host(&sshd);
    for backend in [Backend::Native, Backend::System, Backend::Auto] {
        host.backend = backend;
        assert_eq!(client.run(&host, BOTH_STREAMS).await.unwrap(), both_streams(), "{backend:?}");
    }
    assert_eq!(client.run(&local(), BOTH_STREAMS).await.unwrap(), both_streams());
}

#[tokio::test]
async fn terminating_signal_is_returned_by_name() {
    let sshd = Sshd::start();
    let client = client(Interaction::Refuse);
    for host in [host(&sshd), local()] {
        let finished = client.run(&host, "kill -TERM $$").await.unwrap();
        assert_eq!(finished.exit, Exit::Signal("TERM".into()));
    }
}

#[tokio::test]
async fn one_mebibyte_makes_a_round_trip() {
    let sshd = Sshd::start();
    let client = client(Interaction::Refuse);
    let mut by_system = host(&sshd);
    by_system.backend = Backend::System;
    let sent: Vec<u8> = (0..1024 * 1024_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for host in [host(&sshd), by_system, local()] {
        let Channel { mut stdin, mut stdout, stderr: _stderr, exit, guard } = client.open(&host, "cat").await.unwrap();
        let mut received = Vec::new();
        let both = async {
            let writing = async {
                stdin.write_all(&sent).await.unwrap();
                // Dropping it closes the command's standard input.
                drop(stdin);
            };
            let ((), read) = tokio::join!(writing, stdout.read_to_end(&mut received));
            read.unwrap();
        };
        tokio::time::timeout(TIMEOUT, both).await.expect("the round trip hangs");
        assert!(received == sent, "the {} of {} bytes that came back differ", received.len(), sent.len());
        assert_eq!(exit.await.unwrap(), Exit::Status(0));
        drop(guard);
    }
}

#[tokio::test]
async fn rekeying_during_a_stream_loses_no_data() {
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &["RekeyLimit 32K", "LogLevel DEBUG1"]);
    let client = client(Interaction::Refuse);
    let lines = "i=0; while [ $i -lt 30000 ]; do echo \"a line of some length, number $i\"; i=$((i+1)); done";
    let finished = client.run(&host(&sshd), lines).await.unwrap();
    let expected: String = (0..30_000).map(|number| format!("a line of some length, number {number}\n")).collect();
    assert!(finished.stdout == expected, "{} of {} bytes", finished.stdout.len(), expected.len());
    let exchanges = sshd.log().matches("SSH2_MSG_NEWKEYS sent").count();
    assert!(exchanges > 5, "{exchanges} key exchanges");
}

#[tokio::test]
async fn dropping_the_channel_ends_the_command() {
    let sshd = Sshd::start();
    let client = client(Interaction::Refuse);
    let mut by_system = host(&sshd);
    by_system.backend = Backend::System;
    for host in [host(&sshd), by_system, local()] {
        let mut channel = client.open(&host, "echo $$; exec cat").await.unwrap();
        let pid = first_line(&mut channel).await;
        assert!(is_alive(&pid));
        drop(channel);
        ended(&pid).await;
    }
}

#[tokio::test]
async fn dropping_a_local_channel_kills_the_whole_group() {
    let client = client(Interaction::Refuse);
    let mut channel = client.open(&local(), "sleep 1000 & echo $!; wait").await.unwrap();
    let pid = first_line(&mut channel).await;
    assert!(is_alive(&pid));
    drop(channel);
    ended(&pid).await;
}

/// Each program in the ssh configuration starts a child, whose process id it writes to a file, and hangs.
#[tokio::test]
async fn programs_of_the_ssh_configuration_that_hang_leave_no_process_behind() {
    for (option, backend) in
        [("Match exec", Backend::Native), ("ProxyCommand", Backend::Native), ("ProxyCommand", Backend::System)]
    {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let script = folder.path().join("hang");
        fs::write(&script, format!("sleep 1000 & echo $! $$ >{0}.new; mv {0}.new {0}; wait\n", pids.display()))
            .unwrap();
        let config = folder.path().join("config");
        let command = match option {
            "Match exec" => {
                format!("Match originalhost gpu exec \"/bin/sh {}; true\"\n User other\n", script.display())
            }
            _ => format!("Host gpu\n ProxyCommand /bin/sh -c '/bin/sh {}; true'\n", script.display()),
        };
        fs::write(&config, command).unwrap();
        let client = client_with(Interaction::Refuse, |options| {
            options.ssh_config = Some(config);
            options.limits.name = Duration::from_millis(500);
            options.limits.tcp = Duration::from_millis(500);
            options.limits.key_exchange = Duration::from_millis(500);
            options.limits.login = Duration::from_millis(500);
        });
        let error = client.open(&HostConfig { backend, ..HostConfig::named("gpu") }, "true").await.unwrap_err();
        let pids = fs::read_to_string(&pids).unwrap_or_else(|_| panic!("{option} did not run: {error:?}"));
        for pid in pids.split_whitespace() {
            ended(pid).await;
        }
    }
}

#[tokio::test]
async fn dropping_the_future_closes_every_connection() {
    let sshd = Sshd::start();
    let (port, mut connections) = watched(sshd.address()).await;
    fs::write(sshd.known_hosts(), format!("[127.0.0.1]:{port} {}\n", sshd.host_key("ed25519"))).unwrap();
    let client = client(Interaction::Refuse);
    let host = HostConfig { port: Some(port), ..host(&sshd) };
    for phase in [SshPhase::Tcp, SshPhase::KeyExchange, SshPhase::Login, SshPhase::Exec] {
        let reached = tokio::sync::Notify::new();
        let progress = |now: SshPhase| {
            if now == phase {
                reached.notify_one();
            }
        };
        let login = open(&client.context, &host, "cat", &progress);
        tokio::select! {
            opened = login => panic!("{phase:?} was not noticed: {opened:?}"),
            () = reached.notified() => {}
        }
    }
    // The server side sees every abandoned connection close. The connection that was dropped during the TCP handshake
    // may never have reached the server, so at least three are expected.
    let all_closed = connections.wait_for(|(made, closed)| *made >= 3 && made == closed);
    tokio::time::timeout(TIMEOUT, all_closed).await.expect("a connection that was given up stays open").unwrap();
}

#[tokio::test]
async fn dead_server_ends_the_channel() {
    let mut sshd = Sshd::start();
    let client = client(Interaction::Refuse);
    let mut channel = client.open(&host(&sshd), "echo ready; exec cat").await.unwrap();
    assert_eq!(first_line(&mut channel).await, "ready");
    sshd.stop();
    assert!(matches!(finish(channel).await.exit, Exit::Closed(_) | Exit::Signal(_)));
    sshd.restart();
    assert_eq!(client.run(&host(&sshd), BOTH_STREAMS).await.unwrap(), both_streams());
}

#[tokio::test]
async fn phases_are_reported_in_order() {
    let sshd = Sshd::start();
    let client = client(Interaction::Refuse);
    let phases = Mutex::new(Vec::new());
    let note = |phase| phases.lock().unwrap().push(phase);
    finish(open(&client.context, &host(&sshd), "true", &note).await.unwrap()).await;
    assert_eq!(
        *phases.lock().unwrap(),
        [SshPhase::Queued, SshPhase::Name, SshPhase::Tcp, SshPhase::KeyExchange, SshPhase::Login, SshPhase::Exec]
    );
}

#[tokio::test]
async fn refused_connection_is_reported() {
    let sshd = Sshd::start();
    let client = client(Interaction::Refuse);
    let mut host = host(&sshd);
    let port = free_port(Ipv4Addr::LOCALHOST);
    host.port = Some(port);
    assert_eq!(
        client.open(&host, "true").await.unwrap_err(),
        SshError::new(SshErrorKind::ConnectionRefused, format!("nothing listens on 127.0.0.1 port {port}"))
            .with_hint("is sshd running there? Another port: `port = N` in hosts.toml")
    );
    host.backend = Backend::System;
    let error = client.open(&host, "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::ConnectionRefused);
    assert_eq!(error.message, format!("ssh failed: ssh: connect to host 127.0.0.1 port {port}: Connection refused"));
}

#[tokio::test]
async fn unknown_host_name_is_a_dns_error() {
    let client = client(Interaction::Refuse);
    let mut host = HostConfig::named("no-such-host.invalid");
    host.backend = Backend::Native;
    host.user = Some("bob".into());
    let error = client.open(&host, "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::Dns, "{error:?}");
    assert!(error.message.starts_with("looking up no-such-host.invalid failed: "), "{error}");
}

#[tokio::test]
async fn mute_server_times_out_in_key_exchange() {
    let mute = MuteServer::start();
    let client = client_with(Interaction::Refuse, |options| {
        options.limits.key_exchange = Duration::from_millis(200);
    });
    let mut host = HostConfig::named("mute");
    host.address = Some("127.0.0.1".into());
    host.port = Some(mute.port());
    host.backend = Backend::Native;
    let started = Instant::now();
    let error = client.open(&host, "true").await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(
        error,
        SshError::new(
            SshErrorKind::Timeout(SshPhase::KeyExchange),
            format!("connected to 127.0.0.1 port {}, but no SSH banner came within 0.2 s", mute.port())
        )
        .with_hint("does sshd listen on that port? An overloaded or hung host accepts connections without answering")
    );
    tokio::task::spawn_blocking(move || mute.wait_for_end()).await.unwrap();
}

#[tokio::test]
async fn server_without_free_slots_is_reported_as_busy() {
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &["MaxStartups 1"]);
    let client = client(Interaction::Refuse);
    // Another client occupies the only unauthenticated connection that the server allows.
    let mut other = TcpStream::connect(sshd.address()).unwrap();
    std::io::Read::read_exact(&mut other, &mut [0; 8]).unwrap();
    let error = client.open(&host(&sshd), "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::Busy, "{error:?}");
    assert!(error.message.starts_with(&format!("127.0.0.1 port {} closed the connection", sshd.port())), "{error}");
}

#[tokio::test]
async fn penalized_address_is_reported_as_rate_limited() {
    // OpenSSH penalizes addresses only since 9.8 (PerSourcePenalties), so the test sends the server's answer itself.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"Not allowed at this time\r\n").await.unwrap();
        stream.shutdown().await.unwrap();
        // Unread data would turn the close into a reset, and the client could miss the text.
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.unwrap();
    });
    let client = client(Interaction::Refuse);
    let mut host = HostConfig::named("127.0.0.1");
    (host.port, host.backend) = (Some(place.port()), Backend::Native);
    let error = client.open(&host, "true").await.unwrap_err();
    server.await.unwrap();
    assert_eq!(error.kind, SshErrorKind::RateLimited);
    let message = format!(
        "127.0.0.1 port {} is rate-limited for this address: it closed the connection and said \"Not allowed at this \
         time\"",
        place.port()
    );
    assert_eq!(error.message, message);
}

#[tokio::test]
async fn twenty_four_connections_to_one_sshd_all_succeed() {
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &["MaxStartups 10:30:100"]);
    let client = client(Interaction::Refuse);
    let host = host(&sshd);
    let all: Vec<_> = (0..24).map(|_| client.spawn(&host, "echo in")).collect();
    for one in all {
        assert_eq!(one.await.unwrap().unwrap().stdout, "in\n");
    }
    assert!(!sshd.log().contains("MaxStartups"), "{}", sshd.log());
}

#[tokio::test]
async fn unsupported_options_use_the_ssh_program() {
    let sshd = Sshd::start();
    let config = sshd.file("ssh_config");
    std::fs::write(&config, "BindAddress 127.0.0.1\n").unwrap();
    let client = client_with(Interaction::Refuse, |options| options.ssh_config = Some(config.clone()));
    let mut host = host(&sshd);
    assert_eq!(
        client.open(&host, "true").await.unwrap_err(),
        SshError::new(
            SshErrorKind::Unsupported,
            "the built-in client cannot do BindAddress, which the ssh configuration asks for"
        )
        .with_hint("backend = \"system\" in hosts.toml uses the ssh program")
    );
    host.backend = Backend::Auto;
    assert_eq!(client.run(&host, BOTH_STREAMS).await.unwrap(), both_streams());
}

async fn first_line(channel: &mut Channel) -> String {
    let mut line = String::new();
    let mut stdout = BufReader::new(&mut channel.stdout);
    tokio::time::timeout(TIMEOUT, stdout.read_line(&mut line)).await.expect("no line came").unwrap();
    line.trim().to_owned()
}

fn is_alive(pid: &str) -> bool {
    // A zombie counts as ended.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Waits until a process has ended.
async fn ended(pid: &str) {
    let pid = pid.parse().unwrap();
    tokio::task::spawn_blocking(move || wait_gone(&[pid], TIMEOUT)).await.unwrap();
}

/// A TCP proxy that counts the connections through it and those that the client has closed.
async fn watched(server: SocketAddr) -> (u16, watch::Receiver<(usize, usize)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (counts, connections) = watch::channel((0, 0));
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            counts.send_modify(|(made, _)| *made += 1);
            let counts = counts.clone();
            tokio::spawn(async move {
                let far = tokio::net::TcpStream::connect(server).await.unwrap();
                let ((mut from_near, mut to_near), (mut from_far, mut to_far)) = (near.into_split(), far.into_split());
                let back = tokio::spawn(async move { tokio::io::copy(&mut from_far, &mut to_near).await });
                // The copy ends when the client closes the connection, cleanly or not.
                let _ = tokio::io::copy(&mut from_near, &mut to_far).await;
                counts.send_modify(|(_, closed)| *closed += 1);
                drop(to_far);
                let _ = back.await;
            });
        }
    });
    (port, connections)
}

/// Longer than the configured keepalive timeout, and much shorter than the default of three times 15 s.
const SOON: Duration = Duration::from_secs(9);

/// Silently cuts the link of a running command. Returns the exit of the channel, if one comes within [`SOON`], and the
/// time it took.
async fn cut(backend: Backend, configuration: &str) -> (Option<Exit>, Duration) {
    let sshd = Sshd::start();
    let link = Link::start(sshd.address()).await;
    let config = sshd.file("ssh_config");
    fs::write(&config, configuration).unwrap();
    let known = format!("[127.0.0.1]:{} {}\n", link.port(), sshd.host_key("ed25519"));
    fs::write(sshd.known_hosts(), known).unwrap();
    let client = client_with(Interaction::Refuse, |options| options.ssh_config = Some(config));
    let host = HostConfig { port: Some(link.port()), backend, ..host(&sshd) };
    let channel = client.open(&host, "echo ready; exec cat").await.unwrap();
    // The client sends nothing meanwhile: otherwise TCP itself would notice the unacknowledged data.
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
async fn silent_cut_is_noticed_after_the_configured_server_alive_interval() {
    let wanted = "ServerAliveInterval 1\nServerAliveCountMax 2\n";
    let (native, system, default) =
        tokio::join!(cut(Backend::Native, wanted), cut(Backend::System, wanted), cut(Backend::Native, ""));
    for (client, (exit, after)) in [("the built-in client", native), ("ssh", system)] {
        assert!(exit.is_some(), "{client} has not noticed within {SOON:?}");
        assert!(after > Duration::from_millis(900), "{client} noticed too early, after {after:?}");
    }
    assert_eq!(default.0, None, "without the setting the cut was noticed after {:?}", default.1);
}

#[tokio::test]
async fn name_with_a_dead_address_is_reached_at_its_other_address() {
    if !has_root() {
        return;
    }
    let lab = Lab::start(&["other"]);
    // The resolver sorts the address first that equals the source address, so 127.0.0.1 is the dead one.
    let bound = (0..20).find_map(|_| {
        let living = Sshd::start_at(Ipv4Addr::new(127, 0, 0, 9), &[]);
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        // A server of another test may have the port at this address.
        socket.bind((Ipv4Addr::LOCALHOST, living.port()).into()).ok()?;
        Some((living, socket))
    });
    let (living, socket) = bound.expect("a port that is free at both addresses");
    let port = living.port();
    let dead: SocketAddr = (Ipv4Addr::LOCALHOST, port).into();
    let _listener = socket.listen(0).unwrap();
    // A full backlog: Linux drops further connection requests, as a firewall does.
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
            assert!(report.contains("127.0.0.1, 127.0.0.9"), "the dead address is tried first: {report}");
            assert!(report.contains(&format!("127.0.0.9 port {port}")), "{report}");
            // Tried one after the other, the dead address alone would have used up the 5 s for all addresses.
            assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        }
    }
}
