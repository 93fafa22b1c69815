//! When a probe hears from us, and what it is told then.

use super::*;

#[tokio::test(start_paused = true)]
async fn heartbeats_acknowledge_and_measure() {
    let (mut bench, mut probe) = Bench::introduced().await;
    let began = Instant::now();
    tokio::time::advance(Duration::from_millis(23)).await;
    probe.say(&Message::Echo { id: 1 }).await;
    assert!(matches!(bench.news().await, HostUpdate::Hello(_)));
    let HostUpdate::RoundTrip(round_trip) = bench.news().await else { panic!("a round trip") };
    assert_eq!(round_trip, Duration::from_millis(23));
    // The second unacknowledged snapshot is acknowledged at once, or the probe would skip the third.
    probe.sample(1).await;
    probe.sample(2).await;
    assert_eq!(probe.request().await, Some(Request::Heartbeat { id: 2, last_sequence: Some(2) }));
    assert!(began.elapsed() < HEARTBEAT);
    assert_eq!(probe.request().await, Some(Request::Heartbeat { id: 3, last_sequence: Some(2) }));
    assert!(began.elapsed() >= HEARTBEAT);
}

#[tokio::test(start_paused = true)]
async fn snapshots_that_come_in_time_are_acknowledged_two_at_a_time() {
    let (_bench, mut probe) = Bench::introduced().await;
    for sequence in 1..=6 {
        probe.sample(sequence).await;
        if sequence % 2 == 0 {
            let id = 1 + sequence / 2;
            assert_eq!(probe.request().await, Some(Request::Heartbeat { id, last_sequence: Some(sequence) }));
        }
        if sequence < 6 {
            // Some come late, as over a network.
            tokio::time::sleep(HEARTBEAT + Duration::from_millis(sequence % 3 * 200)).await;
        }
    }
    // When no more come, the probe is asked whether it lives, before the host would be stale.
    let last = Instant::now();
    assert_eq!(probe.request().await, Some(Request::Heartbeat { id: 5, last_sequence: Some(6) }));
    assert_eq!(last.elapsed().as_millis() / 10, 250);
    assert_eq!(probe.request().await, Some(Request::Heartbeat { id: 6, last_sequence: Some(6) }));
    assert_eq!(last.elapsed().as_millis() / 10, 450);
}

#[tokio::test(start_paused = true)]
async fn longer_intervals_are_bridged_by_heartbeats() {
    let mut bench = Bench::new();
    let mut probe = bench.probe().await;
    assert!(bench.collector.command(HostId(0), Command::Interval(Duration::from_secs(10))));
    probe.introduce().await;
    let began = Instant::now();
    let mut heartbeats = Vec::new();
    while heartbeats.len() < 4 {
        if let Some(Request::Heartbeat { .. }) = probe.request().await {
            heartbeats.push(began.elapsed().as_secs());
            probe.sample(heartbeats.len() as u64 / 2).await;
        }
    }
    assert_eq!(heartbeats, [0, 2, 4, 6]);
}

#[tokio::test(start_paused = true)]
async fn short_intervals_acknowledge_every_snapshot() {
    let mut bench = Bench::new();
    let mut probe = bench.probe().await;
    assert!(bench.collector.command(HostId(0), Command::Interval(Duration::from_millis(250))));
    probe.introduce().await;
    assert_eq!(probe.request().await, Some(Request::Interval { seconds: 2.0 }));
    // The command waits and the first heartbeat is due: either may go first.
    let both = [probe.request().await, probe.request().await];
    assert!(both.contains(&Some(Request::Interval { seconds: 0.25 })), "{both:?}");
    assert!(both.contains(&Some(Request::Heartbeat { id: 1, last_sequence: None })), "{both:?}");
    for sequence in 1..6 {
        probe.sample(sequence).await;
        let Some(Request::Heartbeat { last_sequence, .. }) = probe.request().await else { panic!("a heartbeat") };
        assert_eq!(last_sequence, Some(sequence));
    }
}
