//! A link that loses packets. netem is no part of many kernels, so the sockets of a proxy lose them (`lossy.py`).

use super::link::Link;
use super::report;
use crate::lab::Lab;
use crate::watching::{Watch, host, is_down, is_snapshot};
use gpufleet::fleet::HostUpdate;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The proxy; it ends when dropped.
struct Lossy {
    process: Child,
    asks: ChildStdin,
    says: BufReader<ChildStdout>,
    port: u16,
}

impl Lossy {
    fn to(server: SocketAddr, percent: u8) -> Self {
        let mut process = Command::new("python3")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/faults/lossy.py"))
            .args([server.ip().to_string(), server.port().to_string(), percent.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("these tests need python3");
        let (asks, says) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let mut lossy = Self { process, asks, says, port: 0 };
        lossy.port = lossy.answer() as u16;
        lossy
    }

    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// How many packets were lost so far.
    fn lost(&mut self) -> u32 {
        self.asks.write_all(b"lost\n").unwrap();
        self.answer()
    }

    fn answer(&mut self) -> u32 {
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        line.trim().parse().unwrap_or_else(|_| panic!("the proxy says {line:?}"))
    }
}

impl Drop for Lossy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a host says for so long: none of it that it is silent or down. Returns the number of snapshots.
async fn steady(watch: &mut Watch, span: Duration) -> usize {
    let seen = watch.during(span).await;
    assert!(!seen.iter().any(|update| is_down(update) || matches!(update, HostUpdate::Silent)), "it flaps: {seen:?}");
    seen.iter().filter(|update| is_snapshot(update)).count()
}

/// [`steady`] for one span after another, until enough packets were lost in them: which ones is left to chance. Returns how
/// many were, and the least snapshots of a span.
async fn steady_through_losses(watch: &mut Watch, lossy: &mut Lossy, span: Duration, enough: u32) -> (u32, usize) {
    let before = lossy.lost();
    let mut least = usize::MAX;
    for _ in 0..8 {
        least = least.min(steady(watch, span).await);
        let lost = lossy.lost() - before;
        if lost >= enough {
            return (lost, least);
        }
    }
    panic!("fewer than {enough} packets were lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_loses_a_packet_in_twenty_stays_live() {
    let lab = Lab::start(&["hgx-01"]);
    let mut lossy = Lossy::to(lab.hosts[0].sshd.address(), 5);
    let mut config = host(&lab, Some(lossy.port));
    config.interval = Duration::from_millis(250);
    let mut watch = Watch::start(vec![config]);
    let connected = watch.live().await;
    let (lost, least) = steady_through_losses(&mut watch, &mut lossy, Duration::from_secs(15), 3).await;
    assert!(least >= 40, "{least} of 60 snapshots in 15 s, {lost} packets lost");
    report("5 % loss", connected, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_loses_packets_before_a_long_way_stays_live() {
    let lab = Lab::start(&["hgx-01"]);
    // The loss is at the far end of the delay, as in the wireless network behind a satellite: a packet is sent again
    // after that network's round trip. One that must come all the way again is 4 s old, which is told as it is: stale.
    let mut lossy = Lossy::to(lab.hosts[0].sshd.address(), 5);
    let link = Link::to(lossy.address()).await;
    let mut config = host(&lab, Some(link.port()));
    config.interval = Duration::from_millis(500);
    let mut watch = Watch::start(vec![config]);
    watch.live().await;
    link.delay(Duration::from_secs(1));
    let slow = |update: &HostUpdate| matches!(update, HostUpdate::RoundTrip(time) if *time >= Duration::from_secs(2));
    let (noticed, _) = watch.until("a long round trip", slow, is_down).await;
    let (lost, least) = steady_through_losses(&mut watch, &mut lossy, Duration::from_secs(20), 1).await;
    assert!(least >= 10, "{least} snapshots in 20 s, {lost} packets lost");
    report("2 s latency with 5 % loss", noticed, None);
}
