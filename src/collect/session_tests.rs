//! A host task against a simulated probe, in paused time.

use super::super::channels::HostUpdates;
use super::super::host_tasks::HostTasks;
use super::super::remote_command::Source;
use super::*;
use crate::config::HostConfig;
use crate::fleet::{Clock, HostId, RetryPolicy};
use crate::wire::codec::{LineBuffer, MAX_LINE_BYTES, decode_json};
use crate::wire::{Hello, HostReading, Reply, ReplyOutcome, Signal, SlurmJob, Snapshot};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, DuplexStream};
use tokio::time::timeout;

/// A timeout beyond every limit in these tests; paused time advances by itself.
const LONG: Duration = Duration::from_secs(300);

/// Returns the probe's end of each opened stream.
struct Harness {
    host_tasks: HostTasks,
    updates: HostUpdates,
    opened: mpsc::UnboundedReceiver<DuplexStream>,
}

impl Harness {
    fn new() -> Self {
        let (opening, opened) = mpsc::unbounded_channel();
        Self::with(opened, move |_| {
            let (ours, theirs) = tokio::io::duplex(4 * 1024 * 1024);
            opening.send(theirs).unwrap();
            Ok(ours)
        })
    }

    /// Connects a probe that has sent its hello at an interval of 2 s and received the first heartbeat.
    async fn introduced() -> (Self, Probe) {
        let mut harness = Self::new();
        let mut probe = harness.probe().await;
        probe.introduce().await;
        assert_eq!(
            probe.request().await,
            Some(Request::Interval { seconds: 2.0, shift_seconds: None, earlier_slurm_jobs: vec![] })
        );
        assert_eq!(probe.request().await, Some(Request::Heartbeat { id: 1, last_sequence: None }));
        (harness, probe)
    }

    fn with(
        opened: mpsc::UnboundedReceiver<DuplexStream>,
        open: impl Fn(HostId) -> Result<DuplexStream, LinkError> + Send + Sync + 'static,
    ) -> Self {
        let hosts = [Arc::new(HostConfig::named("hgx-01"))];
        let (host_tasks, updates) = HostTasks::start(&hosts, Source::InProcess(Arc::new(open)), Clock::start(1.0));
        Self { host_tasks, updates, opened }
    }

    async fn probe(&mut self) -> Probe {
        let stream = timeout(LONG, self.opened.recv()).await.expect("opens").expect("is open");
        Probe { stream, requests: LineBuffer::default() }
    }

    /// Receives all further updates and drops them. A session waits for its updates to be received.
    fn drop_updates(mut self) -> HostTasks {
        tokio::spawn(async move { while self.updates.recv().await.is_some() {} });
        self.host_tasks
    }

    async fn update(&mut self) -> HostUpdate {
        timeout(LONG, self.updates.recv()).await.expect("an update").expect("the task lives").1
    }

    /// Returns the next update other than `Connecting`.
    async fn next_state_update(&mut self) -> HostUpdate {
        loop {
            match self.update().await {
                HostUpdate::Connecting { .. } => {}
                other => return other,
            }
        }
    }

    async fn down(&mut self) -> LinkError {
        loop {
            match self.next_state_update().await {
                HostUpdate::Down { error, .. } => return error,
                HostUpdate::Hello(_) | HostUpdate::Snapshot(_) => {}
                other => panic!("not down: {other:?}"),
            }
        }
    }
}

struct Probe {
    stream: DuplexStream,
    requests: LineBuffer,
}

impl Probe {
    async fn say(&mut self, message: &Message) {
        self.stream.write_all(&encode(message).unwrap()).await.unwrap();
    }

    async fn introduce(&mut self) {
        self.say(&Message::Hello(hello(PROTOCOL))).await;
    }

    async fn sample(&mut self, sequence: u64) {
        self.say(&Message::Snapshot(Box::new(Snapshot { sequence, ..Snapshot::default() }))).await;
    }

    async fn request(&mut self) -> Option<Request> {
        loop {
            if let Some(line) = self.requests.next_line().unwrap() {
                return Some(decode_json(line).unwrap());
            }
            let mut chunk = [0; 1024];
            match timeout(LONG, self.stream.read(&mut chunk)).await.expect("a request") {
                Ok(count @ 1..) => self.requests.push(&chunk[..count]),
                _ => return None,
            }
        }
    }
}

pub(in crate::collect) fn hello(protocol: u32) -> Hello {
    Hello {
        protocol,
        probe_version: "0.1.0".into(),
        boot_id: None,
        host_name: None,
        login_user: None,
        login_uid: None,
        kernel: None,
        arch: None,
        cpu_count: None,
        memory_total_bytes: None,
        scope: None,
        source: None,
        probe_pid: None,
        probe_sha256: None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_told_step_by_step() {
    let mut harness = Harness::new();
    let connecting = |phase| HostUpdate::Connecting { attempt: 1, phase };
    assert_eq!(harness.update().await, connecting(ConnectPhase::Queued));
    assert_eq!(harness.update().await, connecting(ConnectPhase::Probe));
    let mut probe = harness.probe().await;
    probe.introduce().await;
    assert!(matches!(harness.update().await, HostUpdate::Hello(_)));
    assert_eq!(harness.update().await, connecting(ConnectPhase::FirstSample));
    probe.sample(1).await;
    assert!(matches!(harness.update().await, HostUpdate::Snapshot(_)));
}

#[tokio::test(start_paused = true)]
async fn silence_is_stale_after_3_s_and_down_after_10_s_and_then_tried_again() {
    let mut harness = Harness::new();
    let mut probe = harness.probe().await;
    probe.introduce().await;
    probe.sample(1).await;
    let last_message_at = Instant::now();
    assert!(matches!(harness.next_state_update().await, HostUpdate::Hello(_)));
    assert!(matches!(harness.next_state_update().await, HostUpdate::Snapshot(_)));
    assert_eq!(harness.next_state_update().await, HostUpdate::Silent);
    assert_eq!(last_message_at.elapsed().as_secs(), 3);
    // A line makes the host live again and restarts the limits.
    probe.sample(2).await;
    let last_message_at = Instant::now();
    assert!(matches!(harness.next_state_update().await, HostUpdate::Snapshot(_)));
    assert_eq!(harness.next_state_update().await, HostUpdate::Silent);
    let HostUpdate::Down { error, retry_at: Some(_), attempt: 1 } = harness.next_state_update().await else {
        panic!("down")
    };
    assert_eq!(last_message_at.elapsed().as_secs(), 10);
    assert_eq!((error.kind, &*error.message), (LinkErrorKind::Silent, "no data received for 10 s"));
    let mut again = harness.probe().await;
    assert!(last_message_at.elapsed() <= Duration::from_millis(11_010), "{:?}", last_message_at.elapsed());
    again.introduce().await;
    assert!(matches!(harness.next_state_update().await, HostUpdate::Hello(_)));
    // The old connection is closed.
    while probe.request().await.is_some() {}
}

/// Sends a line in pieces of this many bytes, one per `pause`, and returns the number of bytes sent.
async fn dribble(probe: &mut Probe, line: &[u8], piece: usize, pause: Duration) {
    for bytes in line.chunks(piece) {
        tokio::time::sleep(pause).await;
        // The session may have dropped the connection.
        if probe.stream.write_all(bytes).await.is_err() {
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_line_that_comes_slowly_is_stale_and_waited_for_but_not_for_ever() {
    let line = encode(&Message::Snapshot(Box::new(Snapshot { sequence: 2, ..Snapshot::default() }))).unwrap();
    let mut harness = Harness::new();
    let mut probe = harness.probe().await;
    probe.introduce().await;
    probe.sample(1).await;
    assert!(matches!(harness.next_state_update().await, HostUpdate::Hello(_)));
    assert!(matches!(harness.next_state_update().await, HostUpdate::Snapshot(_)));
    let last_message_at = Instant::now();
    let pieces = line.len().div_ceil(10);
    let sending = dribble(&mut probe, &line, pieces, Duration::from_secs(4));
    let watching = async {
        assert_eq!(harness.next_state_update().await, HostUpdate::Silent);
        assert_eq!(last_message_at.elapsed().as_secs(), 3);
        assert!(matches!(harness.next_state_update().await, HostUpdate::Snapshot(_)));
        assert!(last_message_at.elapsed() >= Duration::from_secs(30), "{:?}", last_message_at.elapsed());
    };
    tokio::join!(sending, watching);
    // An endless incomplete line ends the connection.
    let endless = [b' '; 1000];
    let last_message_at = Instant::now();
    let watching = async {
        assert_eq!(harness.next_state_update().await, HostUpdate::Silent);
        let HostUpdate::Down { error, .. } = harness.next_state_update().await else { panic!("down") };
        assert_eq!(
            (&*error.message, last_message_at.elapsed()),
            ("no complete line received within 120 s", LINE_LIMIT)
        );
    };
    tokio::select! {
        () = watching => {}
        () = dribble(&mut probe, &endless, 1, Duration::from_secs(4)) => panic!("it was heard to the end"),
    }
}

#[tokio::test(start_paused = true)]
async fn first_readings_that_are_on_their_way_are_waited_for() {
    let line = encode(&Message::Snapshot(Box::new(Snapshot { sequence: 1, ..Snapshot::default() }))).unwrap();
    let mut harness = Harness::new();
    let mut probe = harness.probe().await;
    probe.introduce().await;
    let began = Instant::now();
    let pieces = line.len().div_ceil(20);
    let watching = async {
        loop {
            match harness.next_state_update().await {
                HostUpdate::Snapshot(_) => break,
                HostUpdate::Hello(_) | HostUpdate::Silent => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(began.elapsed() > SAMPLE_LIMIT * 2, "{:?}", began.elapsed());
    };
    tokio::join!(dribble(&mut probe, &line, pieces, Duration::from_secs(4)), watching);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_doubted_proves_itself_or_is_given_up_after_4_s() {
    let mut harness = Harness::new();
    let mut probe = harness.probe().await;
    probe.introduce().await;
    probe.sample(1).await;
    assert!(matches!(harness.next_state_update().await, HostUpdate::Hello(_)));
    assert!(matches!(harness.next_state_update().await, HostUpdate::Snapshot(_)));
    // A line ends the verification and restarts the limits.
    assert!(harness.host_tasks.command(HostId(0), Command::Retry));
    assert_eq!(harness.next_state_update().await, HostUpdate::Silent);
    probe.sample(2).await;
    assert!(matches!(harness.next_state_update().await, HostUpdate::Snapshot(_)));
    let last_message_at = Instant::now();
    assert_eq!(harness.next_state_update().await, HostUpdate::Silent);
    assert_eq!(last_message_at.elapsed().as_secs(), 3);
    // A failed verification does not mean that the host is down, so it only reconnects.
    assert!(harness.host_tasks.command(HostId(0), Command::Retry));
    let doubted = Instant::now();
    let update = harness.update().await;
    assert!(matches!(update, HostUpdate::Connecting { attempt: 1, .. }), "{update:?}");
    assert_eq!(doubted.elapsed(), VERIFY_LIMIT);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_the_protocol_ends_the_connection_with_its_reason() {
    let begins = "protocol violation: ";
    let newer = encode(&Message::Hello(hello(9))).unwrap();
    let snapshot_first = encode(&Message::Snapshot(Box::default())).unwrap();
    let twice = [encode(&Message::Hello(hello(PROTOCOL))).unwrap(), newer.clone()].concat();
    for (sent, expected) in [
        (newer, "the probe speaks protocol 9, this gpufleet speaks 1".to_owned()),
        (twice, "the probe speaks protocol 9, this gpufleet speaks 1".to_owned()),
        (
            encode(&Message::Hello(hello(PROTOCOL))).unwrap().repeat(2),
            format!("{begins}the probe sends a second hello"),
        ),
        (snapshot_first, format!("{begins}the first line is not a hello")),
        (
            b"Welcome!\n".to_vec(),
            format!("{begins}expected value at line 1 column 1, in the line that begins `Welcome!`"),
        ),
        (vec![b'x'; MAX_LINE_BYTES + 1], format!("{begins}a line of more than {MAX_LINE_BYTES} bytes")),
    ] {
        let mut harness = Harness::new();
        let mut probe = harness.probe().await;
        probe.stream.write_all(&sent).await.unwrap();
        let error = harness.down().await;
        assert_eq!((error.kind, &*error.message), (LinkErrorKind::Protocol, &*expected));
    }
    let mut harness = Harness::new();
    harness.probe().await.stream.write_all(b"{\"hello\":\"\xff\xfe\"}\n").await.unwrap();
    let error = harness.down().await;
    assert_eq!(error.kind, LinkErrorKind::Protocol);
    assert!(error.message.ends_with("`{\"hello\":\"\u{FFFD}\u{FFFD}\"}`"), "{}", error.message);
}

#[tokio::test(start_paused = true)]
async fn a_message_of_a_newer_probe_is_ignored() {
    let mut harness = Harness::new();
    let mut probe = harness.probe().await;
    probe.introduce().await;
    probe.stream.write_all(b"{\"weather\":{\"sky\":\"blue\"}}\n\"tick\"\n").await.unwrap();
    probe.sample(1).await;
    assert!(matches!(harness.next_state_update().await, HostUpdate::Hello(_)));
    assert!(matches!(harness.next_state_update().await, HostUpdate::Snapshot(_)));
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_says_nothing_or_sends_no_readings_is_given_up() {
    let mut harness = Harness::new();
    let began = Instant::now();
    let _mute = harness.probe().await;
    let error = harness.down().await;
    assert_eq!(error.message, "the probe sent no hello within 10 s");
    assert_eq!(began.elapsed().as_secs(), 10);

    let mut harness = Harness::new();
    let mut probe = harness.probe().await;
    let began = Instant::now();
    probe.introduce().await;
    let error = tokio::select! {
        error = async {
            loop {
                if let HostUpdate::Down { error, .. } = harness.next_state_update().await {
                    break error;
                }
            }
        } => error,
        () = async {
            while let Some(request) = probe.request().await {
                if let Request::Heartbeat { id, .. } = request {
                    // The last one is sent at the moment at which the session drops the connection.
                    let _ = probe.stream.write_all(&encode(&Message::Echo { id }).unwrap()).await;
                }
            }
            std::future::pending::<()>().await;
        } => unreachable!("pends"),
    };
    assert_eq!((error.kind, &*error.message), (LinkErrorKind::Timeout, "the probe sent no readings within 30 s"));
    assert_eq!(began.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn an_error_that_needs_a_person_waits_for_one_and_retry_wakes_at_once() {
    let (opening, opened) = mpsc::unbounded_channel();
    let mut harness = Harness::with(opened, move |_| {
        let (_, theirs) = tokio::io::duplex(64);
        opening.send(theirs).unwrap();
        Err(LinkError::new(LinkErrorKind::Authentication, "no key was accepted").with_retry(RetryPolicy::OnRequest))
    });
    harness.probe().await;
    assert!(
        matches!(harness.next_state_update().await, HostUpdate::NeedsUser(error) if error.message == "no key was accepted")
    );
    assert!(timeout(10 * LONG, harness.updates.recv()).await.is_err(), "nothing is tried unasked");
    let asked = Instant::now();
    harness.host_tasks.command(HostId(0), Command::Retry);
    assert_eq!(harness.update().await, HostUpdate::Connecting { attempt: 2, phase: ConnectPhase::Queued });
    assert_eq!(asked.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn failures_are_counted_until_a_connection_was_steady() {
    let mut harness = Harness::new();
    for expected in 1..4 {
        drop(harness.probe().await);
        let HostUpdate::Down { error, attempt, .. } = harness.next_state_update().await else { panic!("down") };
        assert_eq!((&*error.message, attempt), ("the connection was closed", expected));
    }
    let mut probe = harness.probe().await;
    probe.introduce().await;
    for sequence in 1..40 {
        probe.sample(sequence).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    drop(probe);
    let attempt = loop {
        if let HostUpdate::Down { attempt, .. } = harness.next_state_update().await {
            break attempt;
        }
    };
    assert_eq!(attempt, 1);
}

#[tokio::test(start_paused = true)]
async fn requests_reach_the_probe_and_are_refused_where_there_is_none() {
    let mut harness = Harness::new();
    let signal = |id| Request::Signal {
        id,
        boot_id: "b".into(),
        pid: 4471,
        start_ticks: 1,
        name: "".into(),
        argv: Vec::new(),
        signal: Signal::Terminate,
    };
    let mut probe = harness.probe().await;
    probe.introduce().await;
    assert!(matches!(harness.next_state_update().await, HostUpdate::Hello(_)));
    harness.host_tasks.command(HostId(0), Command::Request(signal(7)));
    let passed_on = loop {
        let request = probe.request().await;
        if matches!(request, Some(Request::Signal { .. })) {
            break request;
        }
    };
    assert_eq!(passed_on, Some(signal(7)));
    probe.say(&Message::Reply(Reply { id: 7, outcome: ReplyOutcome::Sent })).await;
    assert_eq!(harness.next_state_update().await, HostUpdate::Reply(Reply { id: 7, outcome: ReplyOutcome::Sent }));
    harness.host_tasks.command(HostId(0), Command::Interval(Duration::from_secs(5)));
    while probe.request().await
        != Some(Request::Interval { seconds: 5.0, shift_seconds: None, earlier_slurm_jobs: vec![] })
    {}
    drop(probe);
    harness.down().await;
    harness.host_tasks.command(HostId(0), Command::Request(signal(8)));
    let outcome = ReplyOutcome::Refused("the host is not connected".into());
    assert_eq!(harness.next_state_update().await, HostUpdate::Reply(Reply { id: 8, outcome }));
    let mut again = harness.probe().await;
    again.introduce().await;
    assert_eq!(
        again.request().await,
        Some(Request::Interval { seconds: 5.0, shift_seconds: None, earlier_slurm_jobs: vec![] }),
        "the interval stays"
    );
}

#[tokio::test(start_paused = true)]
async fn dropping_the_host_tasks_closes_every_connection() {
    let mut harness = Harness::new();
    let mut probe = harness.probe().await;
    probe.introduce().await;
    assert!(matches!(harness.next_state_update().await, HostUpdate::Hello(_)));
    drop(harness.host_tasks);
    while probe.request().await.is_some() {}
    assert!(timeout(LONG, async { while harness.updates.recv().await.is_some() {} }).await.is_ok(), "no task is left");
}

/// Answers only heartbeats until the connection ends, and returns whether a resend was requested.
async fn echo_only(probe: &mut Probe) -> bool {
    let mut was_resend_asked = false;
    while let Some(request) = probe.request().await {
        was_resend_asked |= request == Request::Resend;
        if let Request::Heartbeat { id, .. } = request {
            // The last one may arrive at the moment at which the session drops the connection.
            let _ = probe.stream.write_all(&encode(&Message::Echo { id }).unwrap()).await;
        }
    }
    was_resend_asked
}

/// Connects a host that has sent one snapshot with this interval.
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

/// Returns the next update other than a round trip.
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
            // A round trip does not make it live again.
            let HostUpdate::Down { error, .. } = harness.next_state_update().await else { panic!("down") };
            assert_eq!(spoke.elapsed().as_secs(), down);
            let expected = format!("the probe answers heartbeats, but sent no readings for {down} s");
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
    // A policy file enforces a longer interval.
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
        assert!(harness.host_tasks.command(HostId(0), Command::Retry));
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
    // The second unacknowledged snapshot is acknowledged at once; otherwise the probe would skip the third.
    probe.sample(1).await;
    probe.sample(2).await;
    assert_eq!(probe.request().await, Some(Request::Heartbeat { id: 2, last_sequence: Some(2) }));
    assert!(began.elapsed() < HEARTBEAT);
    assert_eq!(probe.request().await, Some(Request::Heartbeat { id: 3, last_sequence: Some(2) }));
    assert!(began.elapsed() >= HEARTBEAT);
}

#[tokio::test(start_paused = true)]
async fn snapshots_that_come_in_time_are_acknowledged_two_at_a_time() {
    let (harness, mut probe) = Harness::introduced().await;
    let _host_tasks = harness.drop_updates();
    for sequence in 1..=6 {
        probe.sample(sequence).await;
        if sequence % 2 == 0 {
            let id = 1 + sequence / 2;
            assert_eq!(probe.request().await, Some(Request::Heartbeat { id, last_sequence: Some(sequence) }));
        }
        if sequence < 6 {
            // Some arrive late, as over a network.
            tokio::time::sleep(HEARTBEAT + Duration::from_millis(sequence % 3 * 200)).await;
        }
    }
    // Without further snapshots, a heartbeat is sent before the host would become stale.
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
    assert!(harness.host_tasks.command(HostId(0), Command::Interval(Duration::from_secs(10))));
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
    assert!(harness.host_tasks.command(HostId(0), Command::Interval(Duration::from_millis(250))));
    probe.introduce().await;
    assert_eq!(
        probe.request().await,
        Some(Request::Interval { seconds: 2.0, shift_seconds: None, earlier_slurm_jobs: vec![] })
    );
    // A command and the first heartbeat are both due; either may be sent first.
    let both = [probe.request().await, probe.request().await];
    assert!(
        both.contains(&Some(Request::Interval { seconds: 0.25, shift_seconds: None, earlier_slurm_jobs: vec![] })),
        "{both:?}"
    );
    assert!(both.contains(&Some(Request::Heartbeat { id: 1, last_sequence: None })), "{both:?}");
    let _host_tasks = harness.drop_updates();
    for sequence in 1..6 {
        probe.sample(sequence).await;
        let Some(Request::Heartbeat { last_sequence, .. }) = probe.request().await else { panic!("a heartbeat") };
        assert_eq!(last_sequence, Some(sequence));
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_sends_without_waiting_for_acknowledgements_is_disconnected() {
    let mut harness = Harness::new();
    let mut probe = harness.probe().await;
    probe.introduce().await;
    let line = encode(&Message::Snapshot(Box::new(Snapshot { sequence: 1, ..Snapshot::default() }))).unwrap();
    let began = Instant::now();
    let (mut sent, mut snapshots) = (0, 0);
    let flood = async {
        // Ten times as many as are read.
        while probe.stream.write_all(&line.repeat(8)).await.is_ok() {
            sent += 8 * line.len();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let watch = async {
        loop {
            match harness.next_state_update().await {
                HostUpdate::Snapshot(_) => snapshots += 1,
                HostUpdate::Down { error, .. } => break error,
                _ => {}
            }
        }
    };
    let (error, ()) = tokio::join!(watch, flood);
    let took = began.elapsed().as_secs();
    assert_eq!(
        (error.kind, &*error.message),
        (
            LinkErrorKind::Protocol,
            "protocol violation: the host sends more than gpufleet reads: per second 8 snapshots, 1 MiB, 16384 processes or \
             1024 GPUs"
        )
    );
    assert!(snapshots as u64 <= (took + 5) * 8, "{snapshots} snapshots in {took} s");
    assert!(sent > BACKLOG_LIMIT_BYTES && sent < 2 * BACKLOG_LIMIT_BYTES, "{sent} bytes");
}

#[tokio::test(start_paused = true)]
async fn a_connection_begins_with_the_slurm_jobs_of_the_last_one() {
    let (mut harness, mut probe) = Harness::introduced().await;
    let job = SlurmJob { job: "3385".into(), user: None, gpus: vec![0] };
    let host = HostReading { slurm_jobs: Some(vec![job]), ..HostReading::default() };
    probe.say(&Message::Snapshot(Box::new(Snapshot { sequence: 1, host, ..Snapshot::default() }))).await;
    while !matches!(harness.update().await, HostUpdate::Snapshot(_)) {}
    drop(probe);
    let mut probe = harness.probe().await;
    probe.introduce().await;
    let earlier_slurm_jobs = vec!["3385".into()];
    let expected = Request::Interval { seconds: 2.0, shift_seconds: None, earlier_slurm_jobs };
    assert_eq!(probe.request().await, Some(expected));
    assert!(matches!(probe.request().await, Some(Request::Heartbeat { id: 1, .. })), "once");
}
