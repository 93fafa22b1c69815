//! The simulated hosts as streams: one task per connection speaks the wire protocol like a probe.

use super::demo::Demo;
use super::host::{HostScript, SimulatedHost};
use super::messages::{PAST_SECONDS, ProbeConnection};
use crate::config::HostConfig;
use crate::fleet::{Clock, HostId, LinkError, LinkErrorKind, Moment};
use crate::wire::codec::{LineBuffer, decode_json, encode};
use crate::wire::{Message, Reply, ReplyOutcome, Request, Snapshot};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::{Instant, sleep_until};

/// Seed of the simulation, the same on every run.
const SEED: u64 = 20_251_114;
/// Delay of the second snapshot, as in the probe.
const SECOND_SNAPSHOT: Duration = Duration::from_millis(250);
/// Lower bound of the real time between two snapshots, regardless of the speed of the simulation.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// Capacity of the stream of a connection.
const PIPE_BYTES: usize = 64 * 1024;

/// A simulated fleet.
#[derive(Debug)]
pub struct SimulatedFleet {
    clock: Clock,
    servers: Vec<Arc<Server>>,
}

impl SimulatedFleet {
    /// Creates a fleet with this many hosts and GPUs per host. It is passive until [`SimulatedFleet::open`] is called.
    pub fn new(hosts: u32, gpus: u32, clock: Clock) -> Self {
        let demo = Demo::new();
        let server = |index| Arc::new(Server::new(&demo.host(SEED, index, hosts, gpus as usize)));
        Self { clock, servers: (0..hosts).map(server).collect() }
    }

    /// Returns the configurations of the hosts. Their interval is in simulated time.
    pub fn configs(&self) -> Vec<Arc<HostConfig>> {
        let shortest = SHORTEST_PAUSE.mul_f64(self.clock.speed());
        let config = |server: &Arc<Server>| {
            let config = server.config.clone();
            Arc::new(HostConfig { interval: config.interval.max(shortest), ..config })
        };
        self.servers.iter().map(config).collect()
    }

    /// Returns the probe of a host for a caller that passes its own time, or `None` if there is no such host.
    pub fn probe(&self, host: HostId) -> Option<SimulatedProbe> {
        self.servers.get(host.0 as usize).map(|server| SimulatedProbe::new(Arc::clone(server)))
    }

    /// Connects to the probe of a host. Must be called within a tokio runtime; dropping the stream ends the probe.
    ///
    /// # Errors
    /// If there is no such host, or it is not reachable now.
    pub fn open(&self, host: HostId) -> Result<DuplexStream, LinkError> {
        let Some(probe) = self.probe(host) else {
            return Err(LinkError::new(LinkErrorKind::Config, "there is no such simulated host"));
        };
        if !probe.is_reachable(self.clock.now()) {
            return Err(LinkError::new(LinkErrorKind::Timeout, "no answer on port 22 within 5 s")
                .with_hint("this simulated host comes back by itself"));
        }
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let probe = Connection {
            probe,
            clock: self.clock,
            stream: theirs,
            requests: LineBuffer::default(),
            is_requested: false,
        };
        tokio::spawn(probe.run());
        Ok(ours)
    }
}

/// The probe task of one connection.
struct Connection {
    probe: SimulatedProbe,
    clock: Clock,
    stream: DuplexStream,
    requests: LineBuffer,
    /// A sample is requested beside the schedule.
    is_requested: bool,
}

/// The controller hung up or sent invalid data.
struct Closed;

impl Connection {
    async fn run(mut self) {
        if self.send(&self.probe.hello(self.clock.now())).await.is_err() {
            return;
        }
        let mut next = Instant::now();
        while self.step(&mut next).await.is_ok() {}
    }

    async fn step(&mut self, next: &mut Instant) -> Result<(), Closed> {
        let mut chunk = [0; 1024];
        tokio::select! {
            () = sleep_until(if self.is_requested { Instant::now() } else { *next }) => {
                let now = self.clock.now();
                if self.probe.is_reachable(now) {
                    for message in self.probe.sample(now) {
                        self.send(&message).await?;
                    }
                }
                if std::mem::take(&mut self.is_requested) && Instant::now() < *next {
                    return Ok(());
                }
                let pause = if self.probe.probe.sequence() == 1 { SECOND_SNAPSHOT } else { self.probe.interval() };
                // Counts from the planned time, as a probe does, so that the samples keep their phase.
                *next += pause.div_f64(self.clock.speed()).max(SHORTEST_PAUSE);
                *next = (*next).max(Instant::now());
                Ok(())
            }
            count = self.stream.read(&mut chunk) => match count {
                Ok(count @ 1..) => {
                    self.requests.push(&chunk[..count]);
                    self.take_requests(next).await
                }
                Ok(0) | Err(_) => Err(Closed),
            },
        }
    }

    async fn take_requests(&mut self, next: &mut Instant) -> Result<(), Closed> {
        loop {
            let request: Request = match self.requests.next_line() {
                Ok(None) => return Ok(()),
                Ok(Some(line)) => decode_json(line).map_err(|_| Closed)?,
                Err(_) => return Err(Closed),
            };
            let now = self.clock.now();
            if !self.probe.is_reachable(now) {
                continue;
            }
            match request {
                Request::Resend => self.is_requested = true,
                Request::Interval { shift_seconds: Some(shift), .. } => self.shift(next, shift),
                _ => {}
            }
            if let Some(answer) = self.probe.take(&request, now) {
                self.send(&answer).await?;
            }
        }
    }

    /// Moves the next sample by a time in simulated seconds, to the sample after it if that is in the past.
    fn shift(&self, next: &mut Instant, seconds: f32) {
        let real = |time: Duration| time.div_f64(self.clock.speed());
        let interval = real(self.probe.interval());
        let shift = real(Duration::try_from_secs_f32(seconds.abs()).unwrap_or_default()).min(interval);
        *next += if seconds < 0.0 { interval.saturating_sub(shift) } else { shift };
        if seconds < 0.0 && *next >= Instant::now() + interval {
            *next = next.checked_sub(interval).unwrap_or(*next);
        }
    }

    async fn send(&mut self, message: &Message) -> Result<(), Closed> {
        let line = encode(message).map_err(|_| Closed)?;
        self.stream.write_all(&line).await.map_err(|_| Closed)
    }
}

/// One simulated host. Its state outlives a connection.
#[derive(Debug)]
struct Server {
    config: HostConfig,
    host: Mutex<SimulatedHost>,
}

impl Server {
    fn new(script: &HostScript) -> Self {
        let config = HostConfig { tags: vec![script.model.word.into()], ..HostConfig::named(script.name.as_str()) };
        Self { config, host: Mutex::new(SimulatedHost::new(script, -PAST_SECONDS, 0.0)) }
    }

    fn host(&self) -> MutexGuard<'_, SimulatedHost> {
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The probe of one connection: returns the messages of a probe on that host at the given times.
#[derive(Debug)]
pub struct SimulatedProbe {
    server: Arc<Server>,
    /// Interval in simulated time.
    interval: Duration,
    probe: ProbeConnection,
}

impl SimulatedProbe {
    fn new(server: Arc<Server>) -> Self {
        Self { server, interval: HostConfig::DEFAULT_INTERVAL, probe: ProbeConnection::default() }
    }

    /// Returns the first message.
    pub fn hello(&self, now: Moment) -> Message {
        Message::Hello(self.server.host().hello(seconds(now)))
    }

    /// Returns whether the network of the host is up.
    pub fn is_reachable(&self, now: Moment) -> bool {
        !self.server.host().events("down").any(|outage| outage.is_at(seconds(now)))
    }

    /// Returns the interval in simulated time.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Returns the next snapshot, after the inventory if that has changed.
    pub fn sample(&mut self, now: Moment) -> Vec<Message> {
        let mut host = self.server.host();
        host.set_clock(now.unix.as_secs_f64() - seconds(now), self.interval.as_secs_f64());
        let recent_past =
            if self.probe.sequence() == 0 { self.probe.start(&mut host, seconds(now)) } else { Vec::new() };
        host.advance(seconds(now));
        let inventory = self.probe.inventory(&host).map(Message::Inventory);
        let snapshot = Snapshot { recent_past, ..self.probe.snapshot(&mut host, false) };
        inventory.into_iter().chain([Message::Snapshot(Box::new(snapshot))]).collect()
    }

    /// Handles a request and returns the reply. The caller must also send a snapshot after a resend.
    pub fn take(&mut self, request: &Request, now: Moment) -> Option<Message> {
        let reply = |id: &u64, outcome| Some(Message::Reply(Reply { id: *id, outcome }));
        match request {
            Request::Heartbeat { id, .. } => Some(Message::Echo { id: *id }),
            Request::Interval { seconds, .. } => {
                self.interval = Duration::try_from_secs_f32(*seconds).unwrap_or(HostConfig::DEFAULT_INTERVAL);
                None
            }
            Request::Resend => {
                self.probe.resend();
                None
            }
            Request::Signal { id, boot_id, pid, start_ticks, .. } => {
                let mut host = self.server.host();
                let is_same_boot = *boot_id == host.boot_id(seconds(now));
                reply(id, if is_same_boot { host.signal(*pid, *start_ticks) } else { ReplyOutcome::Reused })
            }
            Request::Examine { id, boot_id, pid, start_ticks, parts, .. } => {
                let host = self.server.host();
                let is_same_boot = *boot_id == host.boot_id(seconds(now));
                reply(id, if is_same_boot { host.examine(*pid, *start_ticks, parts) } else { ReplyOutcome::Reused })
            }
            Request::Environment { id, boot_id, pid, start_ticks } => {
                let host = self.server.host();
                let is_same_boot = *boot_id == host.boot_id(seconds(now));
                reply(id, if is_same_boot { host.environment(*pid, *start_ticks) } else { ReplyOutcome::Reused })
            }
            Request::LogTail { id, .. } => reply(id, ReplyOutcome::Refused("a simulated process has no files".into())),
        }
    }
}

fn seconds(now: Moment) -> f64 {
    now.since_start().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::super::demo::LOGIN;
    use super::*;
    use crate::wire::codec::decode;
    use crate::wire::{Reply, ReplyOutcome, Signal, Snapshot};
    use tokio::time::timeout;

    struct Link {
        stream: DuplexStream,
        lines: LineBuffer,
    }

    impl Link {
        fn open(demo: &SimulatedFleet, host: u32) -> Self {
            Self { stream: demo.open(HostId(host)).expect("opens"), lines: LineBuffer::default() }
        }

        async fn message(&mut self) -> Message {
            loop {
                if let Some(line) = self.lines.next_line().unwrap() {
                    return decode(line).unwrap();
                }
                let mut chunk = [0; 4096];
                let read = timeout(Duration::from_secs(10), self.stream.read(&mut chunk)).await.expect("in time");
                let count = read.unwrap();
                assert!(count > 0, "the probe ended");
                self.lines.push(&chunk[..count]);
            }
        }

        async fn snapshot(&mut self) -> Snapshot {
            loop {
                if let Message::Snapshot(snapshot) = self.message().await {
                    return *snapshot;
                }
            }
        }

        async fn ask(&mut self, request: &Request) {
            self.stream.write_all(&encode(request).unwrap()).await.unwrap();
        }

        async fn signal(&mut self, pid: u32, start_ticks: u64, boot_id: crate::wire::SafeText) -> ReplyOutcome {
            self.ask(&Request::Signal {
                id: 4,
                boot_id,
                pid,
                start_ticks,
                name: "".into(),
                argv: Vec::new(),
                signal: Signal::Terminate,
            })
            .await;
            loop {
                if let Message::Reply(Reply { id: 4, outcome }) = self.message().await {
                    return outcome;
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_begins_as_a_probes_does_and_answers() {
        let demo = SimulatedFleet::new(6, 8, Clock::start(1.0));
        let mut link = Link::open(&demo, 0);
        assert!(matches!(link.message().await, Message::Hello(_)));
        assert!(matches!(link.message().await, Message::Inventory(_)));
        let first = link.snapshot().await;
        assert_eq!((first.sequence, first.facts.is_empty()), (1, false));
        let began = Instant::now();
        let second = link.snapshot().await;
        assert_eq!((second.sequence, second.facts.len()), (2, 0));
        assert_eq!(began.elapsed(), SECOND_SNAPSHOT);
        assert_eq!(link.snapshot().await.sequence, 3);
        assert_eq!(began.elapsed(), SECOND_SNAPSHOT + HostConfig::DEFAULT_INTERVAL);
        link.ask(&Request::Heartbeat { id: 7, last_sequence: Some(3) }).await;
        assert_eq!(link.message().await, Message::Echo { id: 7 });
        link.ask(&Request::Interval { seconds: 0.5, shift_seconds: None, earlier_slurm_jobs: vec![] }).await;
        link.snapshot().await;
        let asked = Instant::now();
        link.snapshot().await;
        assert_eq!(asked.elapsed(), Duration::from_millis(500));
        link.ask(&Request::Interval { seconds: 0.5, shift_seconds: Some(-0.1), earlier_slurm_jobs: vec![] }).await;
        link.snapshot().await;
        assert_eq!(asked.elapsed(), Duration::from_millis(900));
        link.ask(&Request::Resend).await;
        assert!(matches!(link.message().await, Message::Inventory(_)));
        assert!(!link.snapshot().await.facts.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_signal_ends_ones_own_job_only_and_for_every_later_connection() {
        let demo = SimulatedFleet::new(6, 8, Clock::start(1.0));
        let boot_id = || demo.servers[2].host().boot_id(0.0);
        let mut link = Link::open(&demo, 2);
        let facts = link.snapshot().await.facts;
        let of =
            |own: bool| facts.iter().find(|facts| (facts.user.as_deref() == Some(LOGIN)) == own).expect("is there");
        let (own, other) = (of(true), of(false));
        let ticks = own.start_ticks.unwrap();
        assert_eq!(link.signal(own.pid, ticks, "another boot".into()).await, ReplyOutcome::Reused);
        assert_eq!(link.signal(own.pid, ticks + 1, boot_id()).await, ReplyOutcome::Reused);
        let denied = link.signal(other.pid, other.start_ticks.unwrap(), boot_id()).await;
        assert_eq!(denied, ReplyOutcome::NotPermitted);
        assert_eq!(link.signal(own.pid, ticks, boot_id()).await, ReplyOutcome::Sent);
        assert_eq!(link.signal(own.pid, ticks, boot_id()).await, ReplyOutcome::Gone);
        let again = Link::open(&demo, 2).snapshot().await;
        assert!(again.facts.iter().all(|facts| facts.pid != own.pid));
    }

    #[tokio::test]
    async fn a_host_is_away_and_comes_back_in_simulated_time() {
        // Two hours, with outages of 40 s, take seconds.
        let demo = SimulatedFleet::new(5, 1, Clock::start(800.0));
        let seen = timeout(Duration::from_secs(30), async {
            for away in [true, false, true] {
                while demo.open(HostId(4)).is_err() != away {
                    tokio::task::yield_now().await;
                }
            }
            demo.open(HostId(0)).is_ok()
        });
        assert!(seen.await.expect("within several absences"));
        assert_eq!(demo.open(HostId(9)).expect_err("no such host").kind, LinkErrorKind::Config);
    }

    #[test]
    fn a_fast_clock_asks_for_fewer_snapshots() {
        let interval = |speed| SimulatedFleet::new(1, 8, Clock::start(speed)).configs()[0].interval;
        assert_eq!(interval(1.0), HostConfig::DEFAULT_INTERVAL);
        assert_eq!(interval(600.0), Duration::from_secs(30));
    }

    #[test]
    fn a_job_that_starts_does_not_appear_as_ended() {
        use crate::fleet::{Fleet, HostUpdate, host_rows};
        for step in [2.0, 20.0] {
            let clock = Clock::start(1.0);
            let demo = SimulatedFleet::new(8, 8, clock);
            let mut fleet = Fleet::new(&demo.configs(), true, Moment::default());
            let mut probes: Vec<SimulatedProbe> = (0..8).map(|id| demo.probe(HostId(id)).expect("a host")).collect();
            let at =
                |seconds: f64| Moment::new(Duration::from_secs_f64(seconds), Duration::from_secs_f64(1.7e9 + seconds));
            let mut seconds = 0.0;
            while seconds < 3600.0 {
                for (id, probe) in (0..).zip(&mut probes) {
                    if seconds == 0.0 {
                        let Message::Hello(hello) = probe.hello(at(0.0)) else { panic!("no hello") };
                        fleet.apply(HostId(id), HostUpdate::Hello(Box::new(hello)), at(0.0));
                    }
                    for message in probe.sample(at(seconds)) {
                        let update = match message {
                            Message::Inventory(inventory) => HostUpdate::Inventory(Box::new(inventory)),
                            Message::Snapshot(snapshot) => HostUpdate::Snapshot(snapshot),
                            _ => continue,
                        };
                        fleet.apply(HostId(id), update, at(seconds));
                    }
                }
                for host in fleet.hosts() {
                    let jobs = host_rows(host, &[], at(seconds));
                    let (ended, live): (Vec<_>, Vec<_>) =
                        jobs.iter().map(|job| &job.row).partition(|row| row.ended_at.is_some());
                    for row in ended {
                        let twin = live.iter().find(|other| other.pid == row.pid);
                        assert!(
                            twin.is_none(),
                            "{step} s, {}: {} {:?} {row:?} {twin:?}",
                            host.name(),
                            seconds,
                            row.pid
                        );
                    }
                }
                seconds += step;
            }
        }
    }
}
