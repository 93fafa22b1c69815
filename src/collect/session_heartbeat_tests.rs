//! When a probe hears from us, and what it is told then.

use super::*;

/// Answers heartbeats, and nothing else, until the connection ends; whether a resend was asked for.
async fn echo_only(probe: &mut Probe) -> bool {
    let mut was_resend_asked = false;
    while let Some(request) = probe.request().await {
        was_resend_asked |= request == Request::Resend;
        if let Request::Heartbeat { id, .. } = request {
            // The last one may come at the moment in which the session gives up.
            let _ = probe.stream.write_all(&encode(&Message::Echo { id }).unwrap()).await;
        }
    }
    was_resend_asked
}

/// A host that has sent one snapshot that names this interval.
async fn sampled(interval: Duration) -> (Harness, Probe) {
    let mut harness = Harness::new();
    let mut probe = harness.probe().await;
    probe.introduce().await;
    let snapshot = Snapshot { sequence: 1, interval_seconds: Some(interval.as_secs_f32()), ..Snapshot::default() };
    probe.say(&Message::Snapshot(Box::new(snapshot))).await;
    assert!(matches!(harness.next_state_update().await, HostUpdate::Hello(_)));
    assert!(matches!(harness.next_state_update().await, HostUpdate::Snapshot(_)));
    (harness, probe)
}

/// The next update that is no round trip.
async fn not_a_round_trip(harness: &mut Harness) -> HostUpdate {
    loop {
        match harness.next_state_update().await {
            HostUpdate::RoundTrip(_) => {}
            other => return other,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_without_readings_are_stale_after_3_intervals_and_down_10_s_later() {
    for (interval, stale, down) in [(1, 6, 16), (2, 6, 16), (20, 60, 70)] {
        let (mut harness, mut probe) = sampled(Duration::from_secs(interval)).await;
        let spoke = Instant::now();
        let watching = async {
            assert_eq!(not_a_round_trip(&mut harness).await, HostUpdate::Silent);
            assert_eq!(spoke.elapsed().as_secs(), stale);
            // No round trip makes it live again.
            let HostUpdate::Down { error, .. } = harness.next_state_update().await else { panic!("down") };
            assert_eq!(spoke.elapsed().as_secs(), down);
            let expected = format!("the probe answers, but no readings came for {down} s");
            assert_eq!((error.kind, &*error.message), (LinkErrorKind::Silent, &*expected));
        };
        tokio::join!(watching, echo_only(&mut probe));
        harness.probe().await.introduce().await;
        assert!(matches!(harness.next_state_update().await, HostUpdate::Hello(_)), "it is tried again");
    }
}

#[tokio::test(start_paused = true)]
async fn readings_that_are_late_make_the_host_live_again() {
    let (mut harness, mut probe) = sampled(Duration::from_secs(2)).await;
    tokio::select! {
        update = not_a_round_trip(&mut harness) => assert_eq!(update, HostUpdate::Silent),
        _ = echo_only(&mut probe) => panic!("it was given up"),
    }
    probe.sample(2).await;
    let spoke = Instant::now();
    assert!(matches!(harness.next_state_update().await, HostUpdate::Snapshot(_)));
    tokio::select! {
        update = not_a_round_trip(&mut harness) => assert_eq!(update, HostUpdate::Silent),
        _ = echo_only(&mut probe) => panic!("it was given up"),
    }
    assert_eq!(spoke.elapsed().as_secs(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_long_interval_of_the_probe_is_no_silence() {
    // The administrator of the host allows no shorter one.
    let (mut harness, mut probe) = sampled(Duration::from_secs(60)).await;
    let watching = async {
        for _ in 0..20 {
            assert!(matches!(harness.next_state_update().await, HostUpdate::RoundTrip(_)));
        }
    };
    tokio::select! {
        () = watching => {}
        _ = echo_only(&mut probe) => panic!("it was given up"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_reconnects_a_host_whose_readings_are_late() {
    let (mut harness, mut probe) = sampled(Duration::from_secs(20)).await;
    let watching = async {
        assert_eq!(not_a_round_trip(&mut harness).await, HostUpdate::Silent);
        assert!(harness.collector.command(HostId(0), Command::Retry));
        let asked = Instant::now();
        let update = harness.update().await;
        assert!(matches!(update, HostUpdate::Connecting { attempt: 1, .. }), "{update:?}");
        assert_eq!(asked.elapsed(), VERIFY_LIMIT);
    };
    let ((), was_resend_asked) = tokio::join!(watching, echo_only(&mut probe));
    assert!(was_resend_asked, "a probe that is well sends readings now");
}

#[tokio::test(start_paused = true)]
async fn heartbeats_acknowledge_and_measure() {
    let (mut harness, mut probe) = Harness::introduced().await;
    let began = Instant::now();
    tokio::time::advance(Duration::from_millis(23)).await;
    probe.say(&Message::Echo { id: 1 }).await;
    assert!(matches!(harness.next_state_update().await, HostUpdate::Hello(_)));
    let HostUpdate::RoundTrip(round_trip) = harness.next_state_update().await else { panic!("a round trip") };
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
    let (_bench, mut probe) = Harness::introduced().await;
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
    let mut harness = Harness::new();
    let mut probe = harness.probe().await;
    assert!(harness.collector.command(HostId(0), Command::Interval(Duration::from_secs(10))));
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
    let mut harness = Harness::new();
    let mut probe = harness.probe().await;
    assert!(harness.collector.command(HostId(0), Command::Interval(Duration::from_millis(250))));
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
