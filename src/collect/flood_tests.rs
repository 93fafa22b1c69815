//! One host that sends as much as the protocol allows, beside 80 usual ones, in paused time.

use super::super::session::tests::hello;
use super::*;
use crate::fleet::{HostUpdate, MAX_PROCESSES_PER_SECOND, MAX_SNAPSHOTS_PER_SECOND};
use crate::wire::codec::{MAX_PROCESSES, encode};
use crate::wire::{GpuProcessColumns, GpuProcessReading, Message, PROTOCOL, ProcessColumns, ProcessReading, Snapshot};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::{Instant, sleep, timeout};

const HONEST: usize = 80;
/// The host that floods is between the others.
const HOSTILE: usize = 40;
const INTERVAL: Duration = Duration::from_secs(2);
const SPAN: Duration = Duration::from_secs(60);

/// Returns a snapshot with this many processes.
fn snapshot(sequence: u64, processes: usize) -> Vec<u8> {
    let pid = |index: usize| Some(index as u32 + 1);
    let usages: Vec<_> =
        (0..processes).map(|index| GpuProcessReading { pid: pid(index), ..GpuProcessReading::default() }).collect();
    let readings: Vec<_> =
        (0..processes).map(|index| ProcessReading { pid: pid(index), ..ProcessReading::default() }).collect();
    encode(&Message::Snapshot(Box::new(Snapshot {
        sequence,
        gpu_processes: GpuProcessColumns::from_rows(&usages),
        processes: ProcessColumns::from_rows(&readings),
        ..Snapshot::default()
    })))
    .unwrap()
}

/// Reads and drops the requests, so that the session never waits for this side.
fn introduce(stream: DuplexStream) -> impl AsyncWriteExt + Unpin + Send + 'static {
    let (mut requests, lines) = tokio::io::split(stream);
    tokio::spawn(async move {
        let mut chunk = [0; 4096];
        while matches!(requests.read(&mut chunk).await, Ok(1..)) {}
    });
    lines
}

/// Sends 64 processes every two seconds.
async fn honest(stream: DuplexStream) {
    let mut lines = introduce(stream);
    let mut line = encode(&Message::Hello(hello(PROTOCOL))).unwrap();
    for sequence in 1.. {
        line.extend(snapshot(sequence, 64));
        if lines.write_all(&line).await.is_err() {
            return;
        }
        line.clear();
        sleep(INTERVAL).await;
    }
}

/// Sends without a pause what `line` returns.
async fn flooding(stream: DuplexStream, line: Vec<u8>) {
    let mut lines = introduce(stream);
    let hello = encode(&Message::Hello(hello(PROTOCOL))).unwrap();
    let mut sent = lines.write_all(&hello).await;
    while sent.is_ok() {
        sent = lines.write_all(&line).await;
    }
}

/// The updates of one host that arrived.
#[derive(Debug, Clone, Default, PartialEq)]
struct Arrived {
    snapshots: usize,
    other_updates: usize,
    rows: usize,
    limited: usize,
    down: usize,
}

/// Runs 80 usual hosts and one that repeats `line`, with a consumer that needs `work` per thousand processes.
async fn run_fleet(line: Vec<u8>, work: Duration) -> Vec<Arrived> {
    let hosts: Vec<_> = (0..=HONEST).map(|host| Arc::new(HostConfig::named(format!("h{host}")))).collect();
    let open = move |id: HostId| {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        if id.0 as usize == HOSTILE {
            tokio::spawn(flooding(theirs, line.clone()));
        } else {
            tokio::spawn(honest(theirs));
        }
        Ok(ours)
    };
    let (_host_tasks, mut updates) = HostTasks::start(&hosts, Source::InProcess(Arc::new(open)), Clock::start(1.0));
    let mut arrived = vec![Arrived::default(); hosts.len()];
    let end = Instant::now() + SPAN;
    while let Ok(Some((id, update))) = tokio::time::timeout_at(end, updates.recv()).await {
        let host = &mut arrived[id.0 as usize];
        // Paused time stands still while an unlimited host sends.
        assert!(host.snapshots + host.other_updates < 10_000, "{id:?} is not limited");
        match update {
            HostUpdate::Snapshot(snapshot) => {
                host.snapshots += 1;
                host.rows += snapshot.processes.len();
                sleep(work.mul_f64(snapshot.processes.len() as f64 / 1000.0)).await;
            }
            HostUpdate::Misbehaves(_) => host.limited += 1,
            HostUpdate::Down { error, .. } => {
                assert_eq!(id.0 as usize, HOSTILE, "{}", error.message);
                assert!(error.message.starts_with("protocol violation: the host sends more"), "{}", error.message);
                host.down += 1;
            }
            _ => host.other_updates += 1,
        }
    }
    arrived
}

fn assert_honest_hosts_are_complete(arrived: &[Arrived]) {
    let expected = (SPAN.as_secs() / INTERVAL.as_secs()) as usize;
    for (index, host) in arrived.iter().enumerate().filter(|(index, _)| *index != HOSTILE) {
        assert!(host.snapshots.abs_diff(expected) <= 1 && host.limited == 0, "host {index}: {host:?}");
    }
}

/// The seconds of credit that a host may use up: the time, and a burst of 4 s and one line that exceeds it.
const CREDIT_SECONDS: usize = SPAN.as_secs() as usize + 5;

#[tokio::test(start_paused = true)]
async fn small_snapshots_without_end_are_read_at_the_limit_and_named() {
    let arrived = run_fleet(snapshot(7, 1), Duration::ZERO).await;
    assert_honest_hosts_are_complete(&arrived);
    let flood = &arrived[HOSTILE];
    assert!(flood.snapshots <= CREDIT_SECONDS * MAX_SNAPSHOTS_PER_SECOND as usize, "{flood:?}");
    assert!(flood.limited > 0 && (2..=20).contains(&flood.down), "it is tried again with back-off: {flood:?}");
}

#[tokio::test(start_paused = true)]
async fn the_largest_snapshots_delay_no_other_host() {
    // 10 ms per thousand processes: without a limit, this host alone would need more than all the time there is.
    let arrived = run_fleet(snapshot(7, MAX_PROCESSES), Duration::from_millis(10)).await;
    assert_honest_hosts_are_complete(&arrived);
    let flood = &arrived[HOSTILE];
    assert!(flood.rows > 0 && flood.rows <= CREDIT_SECONDS * MAX_PROCESSES_PER_SECOND as usize, "{flood:?}");
}

#[tokio::test(start_paused = true)]
async fn other_lines_without_end_are_limited_too() {
    let reply = br#"{"reply":{"id":1,"outcome":"sent"}}"#;
    for line in [[&reply[..], b"\n"].concat(), b"{\"weather\":1}\n".to_vec(), b"{\"inventory\":{}}\n".to_vec()] {
        let arrived = run_fleet(line.clone(), Duration::ZERO).await;
        assert_honest_hosts_are_complete(&arrived);
        let flood = &arrived[HOSTILE];
        assert!(flood.other_updates <= CREDIT_SECONDS * 40, "{flood:?}");
        assert!(flood.limited > 0 && flood.down > 0, "{}: {flood:?}", String::from_utf8_lossy(&line));
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_whose_updates_are_not_received_waits() {
    let (sender, mut updates) = update_channel(WAITING_UPDATES);
    let flood = UpdateSender::new(HostId(0), sender.clone());
    let other = UpdateSender::new(HostId(1), sender);
    let large = || HostUpdate::Snapshot(Box::default());
    let mut sent = 0;
    while timeout(Duration::from_secs(1), flood.send(large())).await.is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 4, "the fifth snapshot waits in the host task");
    timeout(Duration::from_secs(1), other.send(large())).await.expect("another host has its own limit").unwrap();
    timeout(Duration::from_secs(1), flood.send(HostUpdate::Silent)).await.expect("small updates do not wait").unwrap();
    assert_eq!(updates.recv().await, Some((HostId(0), large())));
    timeout(Duration::from_secs(1), flood.send(large())).await.expect("one was received").unwrap();
    drop(updates);
    assert_eq!(flood.send(large()).await, Err(super::super::channels::ReceiverDropped));
}
