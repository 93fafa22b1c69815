//! Commands, their streams and their ends, by each transport.

use super::harness::{Finished, finish, host, person, person_with};
use crate::lab::wait_gone;
use crate::sshd::{DEADLINE, MuteServer, Sshd, free_port};
use gpufleet::config::{Backend, HostConfig};
use gpufleet::ssh::{Channel, Exit, Interaction, SshError, SshErrorKind, SshPhase, open};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
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
async fn both_streams_and_the_exit_status_come_back() {
    let sshd = Sshd::start();
    let person = person(Interaction::Refuse);
    let mut host = host(&sshd);
    for backend in [Backend::Native, Backend::System, Backend::Auto] {
        host.backend = backend;
        assert_eq!(person.run(&host, BOTH_STREAMS).await.unwrap(), both_streams(), "{backend:?}");
    }
    assert_eq!(person.run(&local(), BOTH_STREAMS).await.unwrap(), both_streams());
}

#[tokio::test]
async fn a_signal_is_told_by_name() {
    let sshd = Sshd::start();
    let person = person(Interaction::Refuse);
    for host in [host(&sshd), local()] {
        let finished = person.run(&host, "kill -TERM $$").await.unwrap();
        assert_eq!(finished.exit, Exit::Signal("TERM".into()));
    }
}

#[tokio::test]
async fn a_mebibyte_goes_there_and_back() {
    let sshd = Sshd::start();
    let person = person(Interaction::Refuse);
    let mut by_system = host(&sshd);
    by_system.backend = Backend::System;
    let sent: Vec<u8> = (0..1024 * 1024_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for host in [host(&sshd), by_system, local()] {
        let Channel { mut stdin, mut stdout, stderr: _stderr, exit, guard } = person.open(&host, "cat").await.unwrap();
        let mut received = Vec::new();
        let both = async {
            let writing = async {
                stdin.write_all(&sent).await.unwrap();
                // Its end is the end of the command's input.
                drop(stdin);
            };
            let ((), read) = tokio::join!(writing, stdout.read_to_end(&mut received));
            read.unwrap();
        };
        tokio::time::timeout(DEADLINE, both).await.expect("the round trip hangs");
        assert!(received == sent, "{} of {} bytes came back, or others", received.len(), sent.len());
        assert_eq!(exit.await.unwrap(), Exit::Status(0));
        drop(guard);
    }
}

#[tokio::test]
async fn new_keys_amid_a_stream_lose_nothing() {
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &["RekeyLimit 32K", "LogLevel DEBUG1"]);
    let person = person(Interaction::Refuse);
    let lines = "i=0; while [ $i -lt 30000 ]; do echo \"a line of some length, number $i\"; i=$((i+1)); done";
    let finished = person.run(&host(&sshd), lines).await.unwrap();
    let expected: String = (0..30_000).map(|number| format!("a line of some length, number {number}\n")).collect();
    assert!(finished.stdout == expected, "{} of {} bytes", finished.stdout.len(), expected.len());
    let exchanges = sshd.log().matches("SSH2_MSG_NEWKEYS sent").count();
    assert!(exchanges > 5, "{exchanges} key exchanges");
}

#[tokio::test]
async fn dropping_the_channel_ends_the_command() {
    let sshd = Sshd::start();
    let person = person(Interaction::Refuse);
    let mut by_system = host(&sshd);
    by_system.backend = Backend::System;
    for host in [host(&sshd), by_system, local()] {
        let mut channel = person.open(&host, "echo $$; exec cat").await.unwrap();
        let pid = first_line(&mut channel).await;
        assert!(is_alive(&pid));
        drop(channel);
        ended(&pid).await;
    }
}

#[tokio::test]
async fn dropping_a_local_channel_kills_the_whole_group() {
    let person = person(Interaction::Refuse);
    let mut channel = person.open(&local(), "sleep 1000 & echo $!; wait").await.unwrap();
    let pid = first_line(&mut channel).await;
    assert!(is_alive(&pid));
    drop(channel);
    ended(&pid).await;
}

#[tokio::test]
async fn dropping_the_future_leaves_nothing_behind() {
    let sshd = Sshd::start();
    let (port, mut connections) = watched(sshd.address()).await;
    fs::write(sshd.known_hosts(), format!("[127.0.0.1]:{port} {}\n", sshd.host_key("ed25519"))).unwrap();
    let person = person(Interaction::Refuse);
    let host = HostConfig { port: Some(port), ..host(&sshd) };
    for phase in [SshPhase::Tcp, SshPhase::KeyExchange, SshPhase::Login, SshPhase::Exec] {
        let reached = tokio::sync::Notify::new();
        let progress = |now: SshPhase| {
            if now == phase {
                reached.notify_one();
            }
        };
        let opening = open(&person.context, &host, "cat", &progress);
        tokio::select! {
            opened = opening => panic!("{phase:?} was not noticed: {opened:?}"),
            () = reached.notified() => {}
        }
    }
    // What was given up is gone from the server's side as well: no connection is open. The one that was given up while it
    // was being made may never have been there.
    let all_closed = connections.wait_for(|(made, closed)| *made >= 3 && made == closed);
    tokio::time::timeout(DEADLINE, all_closed).await.expect("a connection that was given up stays open").unwrap();
}

#[tokio::test]
async fn a_server_that_dies_ends_the_channel() {
    let mut sshd = Sshd::start();
    let person = person(Interaction::Refuse);
    let mut channel = person.open(&host(&sshd), "echo ready; exec cat").await.unwrap();
    assert_eq!(first_line(&mut channel).await, "ready");
    sshd.stop();
    assert!(matches!(finish(channel).await.exit, Exit::Closed(_) | Exit::Signal(_)));
    sshd.restart();
    assert_eq!(person.run(&host(&sshd), BOTH_STREAMS).await.unwrap(), both_streams());
}

#[tokio::test]
async fn phases_are_told_in_order() {
    let sshd = Sshd::start();
    let person = person(Interaction::Refuse);
    let phases = Mutex::new(Vec::new());
    let note = |phase| phases.lock().unwrap().push(phase);
    finish(open(&person.context, &host(&sshd), "true", &note).await.unwrap()).await;
    assert_eq!(
        *phases.lock().unwrap(),
        [SshPhase::Queued, SshPhase::Name, SshPhase::Tcp, SshPhase::KeyExchange, SshPhase::Login, SshPhase::Exec]
    );
}

#[tokio::test]
async fn nothing_listens() {
    let sshd = Sshd::start();
    let person = person(Interaction::Refuse);
    let mut host = host(&sshd);
    let port = free_port(Ipv4Addr::LOCALHOST);
    host.port = Some(port);
    assert_eq!(
        person.open(&host, "true").await.unwrap_err(),
        SshError::new(SshErrorKind::ConnectionRefused, format!("nothing listens on 127.0.0.1 port {port}"))
            .with_hint("is sshd running there? Another port: `port = N` in hosts.toml")
    );
    host.backend = Backend::System;
    let error = person.open(&host, "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::ConnectionRefused);
    assert_eq!(error.message, format!("ssh failed: ssh: connect to host 127.0.0.1 port {port}: Connection refused"));
}

#[tokio::test]
async fn a_name_that_nobody_knows() {
    let person = person(Interaction::Refuse);
    let mut host = HostConfig::named("no-such-host.invalid");
    host.backend = Backend::Native;
    host.user = Some("bob".into());
    let error = person.open(&host, "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::Dns, "{error:?}");
    assert!(error.message.starts_with("looking up no-such-host.invalid failed: "), "{error}");
}

#[tokio::test]
async fn a_mute_server_is_left_after_the_limit() {
    let mute = MuteServer::start();
    let person = person_with(Interaction::Refuse, |options| {
        options.limits.key_exchange = Duration::from_millis(200);
    });
    let mut host = HostConfig::named("mute");
    host.address = Some("127.0.0.1".into());
    host.port = Some(mute.port());
    host.backend = Backend::Native;
    let started = Instant::now();
    let error = person.open(&host, "true").await.unwrap_err();
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
async fn a_full_server_says_so() {
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &["MaxStartups 1"]);
    let person = person(Interaction::Refuse);
    // Somebody who takes the only place and says nothing.
    let mut other = TcpStream::connect(sshd.address()).unwrap();
    std::io::Read::read_exact(&mut other, &mut [0; 8]).unwrap();
    let error = person.open(&host(&sshd), "true").await.unwrap_err();
    assert_eq!(error.kind, SshErrorKind::Busy, "{error:?}");
    assert!(error.message.starts_with(&format!("127.0.0.1 port {} closed the connection", sshd.port())), "{error}");
}

#[tokio::test]
async fn an_address_that_is_punished_is_told_so() {
    // OpenSSH before 9.8 punishes nobody, so its answer is played.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"Not allowed at this time\r\n").await.unwrap();
        stream.shutdown().await.unwrap();
        // What is not read would turn the end into a reset, which may overtake the words.
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.unwrap();
    });
    let person = person(Interaction::Refuse);
    let mut host = HostConfig::named("127.0.0.1");
    (host.port, host.backend) = (Some(place.port()), Backend::Native);
    let error = person.open(&host, "true").await.unwrap_err();
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
async fn two_dozen_hosts_behind_one_sshd_lose_none() {
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &["MaxStartups 10:30:100"]);
    let person = person(Interaction::Refuse);
    let host = host(&sshd);
    let all: Vec<_> = (0..24).map(|_| person.spawn(&host, "echo in")).collect();
    for one in all {
        assert_eq!(one.await.unwrap().unwrap().stdout, "in\n");
    }
    assert!(!sshd.log().contains("MaxStartups"), "{}", sshd.log());
}

#[tokio::test]
async fn what_only_ssh_can_do_goes_to_ssh() {
    let sshd = Sshd::start();
    let config = sshd.file("ssh_config");
    std::fs::write(&config, "BindAddress 127.0.0.1\n").unwrap();
    let person = person_with(Interaction::Refuse, |options| options.ssh_config = Some(config.clone()));
    let mut host = host(&sshd);
    assert_eq!(
        person.open(&host, "true").await.unwrap_err(),
        SshError::new(
            SshErrorKind::Unsupported,
            "the built-in client cannot do BindAddress, which the ssh configuration asks for"
        )
        .with_hint("backend = \"system\" in hosts.toml uses the ssh program")
    );
    host.backend = Backend::Auto;
    assert_eq!(person.run(&host, BOTH_STREAMS).await.unwrap(), both_streams());
}

async fn first_line(channel: &mut Channel) -> String {
    let mut line = String::new();
    let mut stdout = BufReader::new(&mut channel.stdout);
    tokio::time::timeout(DEADLINE, stdout.read_line(&mut line)).await.expect("no line came").unwrap();
    line.trim().to_owned()
}

fn is_alive(pid: &str) -> bool {
    // A zombie has ended.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Waits until a process has ended.
async fn ended(pid: &str) {
    let pid = pid.parse().unwrap();
    tokio::task::spawn_blocking(move || wait_gone(&[pid], DEADLINE)).await.unwrap();
}

/// A way to a server that tells how many connections were made through it, and how many of them their client closed.
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
                // It ends with the client's side of the connection, in whichever way.
                let _ = tokio::io::copy(&mut from_near, &mut to_far).await;
                counts.send_modify(|(_, closed)| *closed += 1);
                drop(to_far);
                let _ = back.await;
            });
        }
    });
    (port, connections)
}
