//! The fault matrix: what a host task tells when something breaks, how soon, and how soon it is back. `tests/faults`
//! prints it with the times of a run.

mod link;

use crate::lab::Lab;
use crate::pty::signal;
use crate::sshd::Sshd;
use crate::watching::{Watch, host, is_down, is_snapshot, nothing};
use gpufleet::collect::Command;
use gpufleet::fleet::{HostId, HostUpdate, LinkErrorKind};
use gpufleet::hosts::HostConfig;
use link::Link;
use std::fs;
use std::net::TcpStream;
use std::time::Duration;
use tokio::net::TcpSocket;
use tokio::time::Instant;

/// A line of the matrix, for `tests/faults`.
fn report(fault: &str, noticed: Duration, back: Option<Duration>) {
    let back = back.map_or("-".to_owned(), |back| format!("{:.1} s", back.as_secs_f64()));
    println!("FAULT\t{fault}\t{:.1} s\t{back}", noticed.as_secs_f64());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_is_cut_without_a_word() {
    let lab = Lab::start(&["hgx-01"]);
    let link = Link::to(lab.hosts[0].sshd.address()).await;
    let mut watch = Watch::start(vec![host(&lab, Some(link.port()))]);
    watch.live().await;
    link.cut();
    let (stale, _) = watch.until("silence", |update| matches!(update, HostUpdate::Silent), is_down).await;
    assert!(stale >= Duration::from_secs(2) && stale < Duration::from_secs(5), "stale after {stale:?}");
    let (dropped, update) = watch.until("the end", is_down, is_snapshot).await;
    let noticed = stale + dropped;
    assert!(noticed > Duration::from_secs(9) && noticed < Duration::from_secs(13), "dropped after {noticed:?}");
    let HostUpdate::Down { error, .. } = update else { unreachable!() };
    assert_eq!((error.kind, &*error.message), (LinkErrorKind::Silent, "nothing was heard for 10 s"));
    link.heal();
    let back = watch.live().await;
    assert!(back < Duration::from_secs(5), "back after {back:?}");
    report("network cut midway, no RST", stale, Some(back));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latency_of_two_seconds() {
    let lab = Lab::start(&["hgx-01"]);
    let link = Link::to(lab.hosts[0].sshd.address()).await;
    let mut watch = Watch::start(vec![host(&lab, Some(link.port()))]);
    watch.live().await;
    link.delay(Duration::from_secs(1));
    let slow = |update: &HostUpdate| matches!(update, HostUpdate::RoundTrip(time) if *time >= Duration::from_secs(2));
    let (noticed, _) = watch.until("a long round trip", slow, is_down).await;
    let seen = watch.during(Duration::from_secs(10)).await;
    assert!(!seen.iter().any(|update| is_down(update) || matches!(update, HostUpdate::Silent)), "it flaps: {seen:?}");
    let snapshots = seen.iter().filter(|update| is_snapshot(update)).count();
    assert!(snapshots >= 4, "{snapshots} snapshots in 10 s");
    report("2 s latency", noticed, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_first_packet_is_dropped() {
    let lab = Lab::start(&["hgx-01"]);
    // A listener whose queue is full: Linux drops what comes then, as a firewall would.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut queue = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&listener.local_addr().unwrap(), Duration::from_millis(300)) {
        queue.push(stream);
    }
    let mut watch = Watch::start(vec![host(&lab, Some(port))]);
    let (noticed, update) = watch.until("the end of patience", is_down, is_snapshot).await;
    let HostUpdate::Down { error, .. } = update else { unreachable!() };
    assert_eq!(&*error.message, &format!("no answer from 127.0.0.1 port {port} within 5 s"));
    assert!(noticed < Duration::from_secs(7), "{noticed:?}");
    report("SYN dropped", noticed, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_that_an_administrator_ends_stays_away_for_ten_minutes() {
    let lab = Lab::start(&["hgx-01"]);
    let mut watch = Watch::start(vec![host(&lab, None)]);
    watch.live().await;
    let [probe] = lab.probes()[..] else { panic!("{:?}", lab.probes()) };
    signal(probe, "TERM");
    let (noticed, update) = watch.until("its end", is_down, nothing).await;
    let HostUpdate::Down { error, retry_at, .. } = update else { unreachable!() };
    assert_eq!(&*error.message, "the probe was ended by TERM, as by an administrator");
    assert_eq!(error.hint.as_deref(), Some("r tries again"));
    let away = retry_at.expect("a time").since(watch.clock.now());
    assert!(away > Duration::from_secs(590) && away <= Duration::from_secs(660), "{away:?}");
    assert!(noticed < Duration::from_secs(3), "{noticed:?}");
    let seen = watch.during(Duration::from_secs(3)).await;
    assert!(seen.is_empty() && lab.probes().is_empty(), "it came back unasked: {seen:?}");
    // A person may want it back at once.
    assert!(watch.collector.command(HostId(0), Command::Retry));
    let back = watch.live().await;
    report("probe ended by TERM (r tries again)", noticed, Some(back));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_that_is_killed_comes_back_after_five_seconds_and_the_second_time_not() {
    let lab = Lab::start(&["hgx-01"]);
    let mut watch = Watch::start(vec![host(&lab, None)]);
    watch.live().await;
    signal(lab.probes()[0], "KILL");
    let (noticed, update) = watch.until("its end", is_down, nothing).await;
    let HostUpdate::Down { error, .. } = update else { unreachable!() };
    assert_eq!(&*error.message, "the probe was killed (9)");
    let back = watch.live().await;
    assert!(back >= Duration::from_secs(4) && back < Duration::from_secs(9), "{back:?}");
    signal(lab.probes()[0], "KILL");
    let (_, update) = watch.until("its end", is_down, nothing).await;
    let HostUpdate::Down { error, retry_at, .. } = update else { unreachable!() };
    assert_eq!(&*error.message, "the probe was killed (9) twice within 10 minutes, as by an administrator");
    assert!(retry_at.expect("a time").since(watch.clock.now()) > Duration::from_secs(590));
    report("probe killed (9)", noticed, Some(back));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_loses_power_and_comes_back() {
    let mut lab = Lab::start(&["hgx-01"]);
    let mut watch = Watch::start(vec![host(&lab, None)]);
    watch.live().await;
    lab.hosts[0].sshd.stop();
    let (noticed, _) = watch.until("its end", is_down, nothing).await;
    let refused =
        |update: &HostUpdate| matches!(update, HostUpdate::Down { error, .. } if error.kind == LinkErrorKind::Refused);
    watch.until("the refusal", refused, is_snapshot).await;
    lab.hosts[0].sshd.restart();
    let back = watch.live().await;
    assert!(back < Duration::from_secs(10), "{back:?}");
    report("host dies, nothing listens, comes back", noticed, Some(back));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_hosts_behind_one_sshd_lose_none() {
    let sshd = Sshd::start_at(std::net::Ipv4Addr::LOCALHOST, &["MaxStartups 10:30:100"]);
    let lab = Lab::start(&["hgx-01"]);
    let mut one = host(&lab, None);
    one.port = Some(sshd.port());
    one.identity_file = Some(sshd.client_key());
    one.known_hosts = Some(sshd.known_hosts());
    one.probe = gpufleet::hosts::ProbeChoice::NvidiaSmi;
    let hosts = (0..64).map(|number| HostConfig { name: format!("gpu{number:02}").into(), ..one.clone() }).collect();
    let began = Instant::now();
    let mut watch = Watch::start(hosts);
    for _ in 0..64 {
        watch.until("every host", |update| matches!(update, HostUpdate::Hello(_)), is_down).await;
    }
    assert!(!sshd.log().contains("MaxStartups"), "{}", sshd.log());
    assert_eq!(sshd.log().matches("Accepted publickey").count(), 64, "one connection a host");
    report("64 hosts behind one sshd (MaxStartups 10:30:100)", began.elapsed(), None);
}

#[test]
fn without_an_ssh_program_it_is_said_and_hosts_toml_does_alone() {
    let lab = Lab::start(&["hgx-01"]);
    let good = lab.hosts_toml("");
    let run = |path: &str| {
        std::process::Command::new(env!("CARGO_BIN_EXE_gpufleet"))
            .args(["status", "--json", path])
            .env("PATH", "/nonexistent")
            .env("SSH_AUTH_SOCK", "")
            .env("USER", lab.hosts[0].sshd.user())
            .output()
            .unwrap()
    };
    let report: serde_json::Value = serde_json::from_slice(&run(&good).stdout).unwrap();
    assert_eq!(report["hosts"][0]["state"], "live", "{report:#}");
    let text = fs::read_to_string(&good).unwrap();
    let by_system = lab.write("system.toml", &text.replace("interval =", "backend = \"system\"\ninterval ="));
    let report: serde_json::Value = serde_json::from_slice(&run(&by_system).stdout).unwrap();
    assert_eq!(report["hosts"][0]["error"]["message"], "there is no ssh program here", "{report:#}");
    let closed = lab.write("closed.toml", "[[hosts]]\nname = \"x\"\naddress = \"127.0.0.1\"\nport = 1\n");
    let report: serde_json::Value = serde_json::from_slice(&run(&closed).stdout).unwrap();
    assert_eq!(
        report["hosts"][0]["error"]["message"],
        "nothing listens on 127.0.0.1 port 1 (there is no ssh program, so ~/.ssh/config was not read)"
    );
}
