//! What a simulated server says, without a stream: messages for requests and for moments.

use super::gpu_slot::Ended;
use super::host_plan::HostPlan;
use super::people::VIEWER;
use super::snapshot::{SampleContext, SentFacts};
use crate::config::HostConfig;
use crate::fleet::Moment;
use crate::wire::{Message, Reply, ReplyOutcome, Request};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// One simulated server. What its processes do follows from the plan; what people did to them is kept here, because it
/// outlives a connection.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) plan: HostPlan,
    ended: Mutex<Ended>,
}

impl Server {
    pub(super) fn new(plan: HostPlan) -> Self {
        Self { plan, ended: Mutex::default() }
    }

    fn ended<R>(&self, with: impl FnOnce(&mut Ended) -> R) -> R {
        with(&mut self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The probe of one connection: it says what a probe on that server would, at the moments that it is asked for.
#[derive(Debug)]
pub struct SimulatedProbe {
    server: Arc<Server>,
    /// Between snapshots, in simulated time.
    interval: Duration,
    sequence: u64,
    before: Option<Moment>,
    /// When what is read of every tenth snapshot was read last.
    slow_sample_at: Moment,
    /// The processes whose facts were sent.
    sent_facts: SentFacts,
}

impl SimulatedProbe {
    pub(super) fn new(server: Arc<Server>) -> Self {
        let interval = HostConfig::DEFAULT_INTERVAL;
        Self {
            server,
            interval,
            sequence: 0,
            before: None,
            slow_sample_at: Moment::default(),
            sent_facts: SentFacts::new(),
        }
    }

    /// What it says first.
    pub fn hello(&self) -> [Message; 2] {
        [Message::Hello(self.server.plan.hello()), Message::Inventory(self.server.plan.inventory())]
    }

    /// While its network is away, nothing that a server says arrives, and nothing reaches it.
    pub fn is_reachable(&self, now: Moment) -> bool {
        self.server.plan.is_reachable(now.since_start().as_secs_f64())
    }

    /// Between snapshots, in simulated time.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// How many snapshots it has sent.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Its next snapshot.
    pub fn sample(&mut self, now: Moment) -> Message {
        self.sequence += 1;
        if self.sequence % 10 == 1 {
            self.slow_sample_at = now;
        }
        let context =
            SampleContext { now, before: self.before, sequence: self.sequence, slow_sample_at: self.slow_sample_at };
        let ended = self.server.ended(|ended| ended.clone());
        let mut snapshot = self.server.plan.snapshot(context, &ended, &mut self.sent_facts);
        snapshot.interval_seconds = Some(self.interval.as_secs_f32());
        self.before = Some(now);
        Message::Snapshot(Box::new(snapshot))
    }

    /// Takes a request; what it says to that. A resend asks for a snapshot besides.
    pub fn take(&mut self, request: &Request, now: Moment) -> Option<Message> {
        let reply = |id: &u64, outcome| Some(Message::Reply(Reply { id: *id, outcome }));
        match request {
            Request::Heartbeat { id, .. } => Some(Message::Echo { id: *id }),
            Request::Interval { seconds } => {
                self.interval = Duration::try_from_secs_f32(*seconds).unwrap_or(HostConfig::DEFAULT_INTERVAL);
                None
            }
            Request::Resend => {
                self.sent_facts.clear();
                Some(Message::Inventory(self.server.plan.inventory()))
            }
            Request::Signal { id, boot_id, pid, start_ticks, .. } => {
                let is_same_boot = *boot_id == self.server.plan.boot_id();
                let signal = || self.signal(*pid, *start_ticks, now);
                reply(id, if is_same_boot { signal() } else { ReplyOutcome::Reused })
            }
            Request::Environment { id, .. } | Request::LogTail { id, .. } => {
                reply(id, ReplyOutcome::Refused("a simulated process has no files".into()))
            }
        }
    }

    /// A signal to one process ends its whole job: torchrun ends its ranks when one is gone.
    fn signal(&self, pid: u32, start_ticks: u64, now: Moment) -> ReplyOutcome {
        let plan = &self.server.plan;
        self.server.ended(|ended| match plan.find(pid, now, ended) {
            None => ReplyOutcome::Gone,
            Some(found) if found.start_ticks != start_ticks => ReplyOutcome::Reused,
            Some(found) if found.uid != VIEWER.uid => ReplyOutcome::NotPermitted,
            Some(found) => {
                let (job, age_seconds) = found.job;
                ended.insert(job, age_seconds);
                ReplyOutcome::Sent
            }
        })
    }
}
