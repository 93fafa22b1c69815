//! Collects the evidence about one job: which requests to send to which host, and the readings made of the replies.
//!
//! It does no input or output. [`Investigation::requests_due`] returns requests to send, [`Investigation::take_reply`] takes
//! their replies, and [`Investigation::evidence`] returns all that is known by then.

use super::{JobEvidence, LogTail, MIN_APART, RankEvidence, RankGpu, RankReading};
use crate::config::RasRule;
use crate::diagnosis::{Confidence, Engine, Finding, FindingPhase, RuleId};
use crate::fleet::{
    DistributedJob, Fleet, Host, HostId, JobKey, Moment, Process, ProcessKey, possibly_distributed_jobs,
};
use crate::wire::{Examination, ExaminationPart, ExaminationRefusal, Reply, ReplyOutcome, Request, SafeText};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// The time between later readings, while a report stays open.
const LATER_ROUNDS_PERIOD: Duration = Duration::from_secs(600);
/// A request without a reply for this long has failed. The probe's own limits are shorter.
const REPLY_LIMIT: Duration = Duration::from_secs(30);
/// The number of ranks that are examined; more are counted.
const MAX_RANKS: usize = 64;
/// The number of examinations at a time on one host. The probe refuses the ninth.
const MAX_AT_A_TIME: usize = 4;
/// On how many hosts NCCL RAS is tried. Each rank answers for the whole job.
const MAX_RAS_HOSTS: usize = 4;

/// How often NCCL RAS may be queried in one investigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RasQueries {
    /// As `ras` of hosts.toml says.
    AsConfigured,
    /// Also where a query may crash the job (`--ask-ras`), unless hosts.toml forbids it.
    AcceptRisk,
}

/// Collects the evidence about one job.
#[derive(Debug, Clone)]
pub struct Investigation {
    /// The Slurm job, or the command of the first rank.
    name: SafeText,
    ranks: Vec<Rank>,
    /// Ranks beyond [`MAX_RANKS`].
    ranks_left_out: usize,
    ras_queries: RasQueries,
    /// The rank that answered for NCCL RAS.
    ras_rank: Option<usize>,
    /// The ranks on which NCCL RAS was tried in this round.
    ras_tried: Vec<usize>,
    queue: VecDeque<Task>,
    pending: Vec<PendingTask>,
    /// How many rounds have begun.
    rounds: u32,
    /// When the last reply of the current round came: the next round begins so long after it that all its readings are far
    /// enough apart from those of this one.
    last_reply_at: Option<Moment>,
    next_id: u64,
}

/// Whether a process belongs to the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Membership {
    Certain,
    /// It may belong to another job: nothing has shown that it meets the others.
    Likely,
    /// The readings show that it meets the others at the same address.
    Meets,
}

/// One process of the job.
#[derive(Debug, Clone)]
struct Rank {
    host: HostId,
    host_name: SafeText,
    membership: Membership,
    key: ProcessKey,
    is_mine: bool,
    user: Option<SafeText>,
    /// The first examined rank of its host also reads the ports of the host.
    reads_links: bool,
    /// The readings of the last two rounds, each with the number of its round.
    readings: Vec<(u32, RankReading)>,
    log: Option<LogTail>,
    /// The reason why its log could not be read.
    log_refusal: SafeText,
}

impl Rank {
    fn belongs(&self) -> bool {
        self.membership != Membership::Likely
    }

    /// Returns the addresses and ports at which the ranks meet: as their environment names them, and as their connections to
    /// one of `ports` show it. An address of the host itself joins nothing across hosts.
    fn rendezvous(&self, ports: &[u16]) -> Vec<(&str, u16)> {
        let process = self.readings.iter().rev().find_map(|(_, reading)| reading.examination.process.as_ref());
        let Some(process) = process else { return Vec::new() };
        let named = process.variable("MASTER_ADDR").zip(process.variable("MASTER_PORT"));
        let named = named.and_then(|(address, port)| Some((address, port.parse().ok()?)));
        let connected = process.peers.iter().map(|peer| (peer.address.as_str(), peer.port));
        let connected = connected.filter(|(_, port)| ports.contains(port));
        let is_local = |address: &str| address == "localhost" || address == "::1" || address.starts_with("127.");
        named.into_iter().chain(connected).filter(|(address, _)| !is_local(address) && !address.is_empty()).collect()
    }
}

/// A request about one rank.
#[derive(Debug, Clone)]
struct Task {
    rank: usize,
    kind: TaskKind,
}

#[derive(Debug, Clone)]
enum TaskKind {
    Examine(Vec<ExaminationPart>),
    Log,
}

/// A request that was sent.
#[derive(Debug, Clone)]
struct PendingTask {
    id: u64,
    sent_at: Moment,
    task: Task,
}

/// How many readings have been made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Some requests of the first reading have no reply yet.
    FirstReading,
    /// The first reading is complete; the second begins at this moment.
    WaitsUntil(Moment),
    /// Some requests of the second reading have no reply yet.
    SecondReading,
    /// Two readings are complete, or there is nothing to examine.
    Complete,
}

impl Investigation {
    /// Prepares the examination of a job and of its parts on other hosts. `first_id` and those after it must not be the ids
    /// of other requests. `ras_queries` says when NCCL RAS is queried.
    pub fn new(fleet: &Fleet, host: HostId, job: &JobKey, ras_queries: RasQueries, first_id: u64) -> Self {
        let is_part = |one: &DistributedJob| one.parts.iter().any(|(id, part)| *id == host && part == job);
        let together = possibly_distributed_jobs(fleet).into_iter().find(is_part);
        let (mut parts, is_likely) =
            together.map_or_else(|| (vec![(host, job.clone())], false), |one| (one.parts, one.is_likely));
        let target = host;
        // The ranks of a very large job are left out elsewhere.
        parts.sort_by_key(|(id, _)| *id != target);
        let (mut ranks, mut ranks_left_out) = (Vec::new(), 0);
        for (host, part) in parts.iter().filter_map(|(id, part)| Some((fleet.host(*id)?, part))) {
            let mut reads_links = true;
            for process in host.processes().filter(|process| process.info.job == *part && computes(process)) {
                if ranks.len() >= MAX_RANKS {
                    ranks_left_out += 1;
                    continue;
                }
                let is_mine = host.belongs_to_login_user(process);
                ranks.push(Rank {
                    host: host.id,
                    host_name: host.name().clone(),
                    membership: if is_likely && host.id != target { Membership::Likely } else { Membership::Certain },
                    key: process.key.clone(),
                    is_mine,
                    user: Some(process.info.who.clone()),
                    reads_links: is_mine && std::mem::take(&mut reads_links),
                    readings: Vec::new(),
                    log: None,
                    log_refusal: SafeText::default(),
                });
            }
        }
        Self {
            name: job_name(fleet, host, job),
            ranks,
            ranks_left_out,
            ras_queries,
            ras_rank: None,
            ras_tried: Vec::new(),
            queue: VecDeque::new(),
            pending: Vec::new(),
            rounds: 0,
            last_reply_at: None,
            next_id: first_id,
        }
    }

    /// Returns the requests to send now. NCCL RAS is queried only if `engine` has seen the job at work, or if the risk was
    /// accepted: while a communicator is being made, a query may crash the job.
    pub fn requests_due(&mut self, fleet: &Fleet, engine: &Engine, now: Moment) -> Vec<(HostId, Request)> {
        self.requests_due_beside(fleet, engine, &HashMap::new(), now)
    }

    /// The hosts of the requests without a reply.
    pub(super) fn pending_hosts(&self) -> impl Iterator<Item = HostId> {
        self.pending.iter().map(|one| self.ranks[one.task.rank].host)
    }

    /// Like [`Self::requests_due`], beside this number of requests of other examinations on each host: the probe refuses too many.
    pub(super) fn requests_due_beside(
        &mut self,
        fleet: &Fleet,
        engine: &Engine,
        others: &HashMap<HostId, usize>,
        now: Moment,
    ) -> Vec<(HostId, Request)> {
        self.give_up_late_requests(fleet, now);
        if self.is_round_due(now) {
            self.begin_round(fleet, engine, now);
        }
        let mut requests = Vec::new();
        for _ in 0..self.queue.len() {
            let Some(task) = self.queue.pop_front() else { break };
            let host = self.ranks[task.rank].host;
            let at_a_time = self.pending.iter().filter(|one| self.ranks[one.task.rank].host == host).count();
            if at_a_time + others.get(&host).copied().unwrap_or(0) >= MAX_AT_A_TIME {
                self.queue.push_back(task);
                continue;
            }
            let id = self.next_id;
            self.next_id += 1;
            match request(id, &self.ranks[task.rank].key, &task.kind, self.ras_queries == RasQueries::AcceptRisk) {
                Some(request) => {
                    requests.push((host, request));
                    self.pending.push(PendingTask { id, sent_at: now, task });
                }
                None => self.refuse(&task, "/proc does not show the process", fleet, now),
            }
        }
        requests
    }

    fn is_round_due(&self, now: Moment) -> bool {
        let period = if self.rounds < 2 { MIN_APART } else { LATER_ROUNDS_PERIOD };
        let is_time = self.last_reply_at.is_none_or(|last| now.since(last) >= period);
        is_time && self.queue.is_empty() && self.pending.is_empty()
    }

    fn begin_round(&mut self, fleet: &Fleet, engine: &Engine, now: Moment) {
        self.rounds += 1;
        self.last_reply_at = Some(now);
        for (index, rank) in self.ranks.iter_mut().enumerate().filter(|(_, rank)| rank.is_mine) {
            if rank.readings.len() > 1 {
                rank.readings.remove(0);
            }
            let mut parts = vec![ExaminationPart::Process, ExaminationPart::Stacks, ExaminationPart::FlightRecorder];
            if rank.reads_links {
                parts.push(ExaminationPart::Links);
            }
            self.queue.push_back(Task { rank: index, kind: TaskKind::Examine(parts) });
            self.queue.push_back(Task { rank: index, kind: TaskKind::Log });
        }
        self.ras_tried.clear();
        let Some(rank) = self.ras_rank.or_else(|| self.next_ras_rank()) else { return };
        match self.ras_refusal(rank, fleet, engine) {
            None => self.query_ras(rank),
            Some(refusal) => {
                let examination = Examination { refused: vec![refusal], ..Examination::default() };
                self.add_examination(rank, examination, fleet, now);
            }
        }
    }

    /// Returns why NCCL RAS may not be queried through this rank. While a job starts, a query may crash it.
    fn ras_refusal(&self, rank: usize, fleet: &Fleet, engine: &Engine) -> Option<ExaminationRefusal> {
        let was_at_work = || self.ranks.iter().any(|rank| engine.was_at_work(rank.host, &rank.key));
        self.configured_ras_refusal(rank, fleet).or_else(|| {
            let is_safe = self.ras_queries == RasQueries::AcceptRisk || was_at_work();
            (!is_safe).then(|| ExaminationRefusal {
                is_risk: true,
                ..ExaminationRefusal::new(
                    ExaminationPart::Ras,
                    "this gpufleet has not seen the job at work; while a job starts, a query may crash it (NCCL issue 2346)",
                    format!("if the job has worked before: {}", self.ask_ras_command(rank)),
                )
            })
        })
    }

    /// Returns why hosts.toml does not permit to query NCCL RAS on the host of this rank.
    fn configured_ras_refusal(&self, rank: usize, fleet: &Fleet) -> Option<ExaminationRefusal> {
        match fleet.host(self.ranks[rank].host).map(|host| host.config.ras).unwrap_or_default() {
            RasRule::Never => Some(ExaminationRefusal::new(
                ExaminationPart::Ras,
                "ras = \"never\" in hosts.toml forbids the query",
                "change it if no job of this host has an NCCL that a query may crash",
            )),
            RasRule::Ask if self.ras_queries != RasQueries::AcceptRisk => Some(ExaminationRefusal {
                is_risk: true,
                ..ExaminationRefusal::new(
                    ExaminationPart::Ras,
                    "ras = \"ask\" in hosts.toml leaves the query to you",
                    format!("to accept the risk that a query crashes the job: {}", self.ask_ras_command(rank)),
                )
            }),
            RasRule::Ask | RasRule::Safe => None,
        }
    }

    fn ask_ras_command(&self, rank: usize) -> String {
        let process = &self.ranks[rank];
        format!("gpufleet why {}:{} --ask-ras", process.host_name, process.key.pid)
    }

    fn query_ras(&mut self, rank: usize) {
        self.ras_tried.push(rank);
        self.queue.push_back(Task { rank, kind: TaskKind::Examine(vec![ExaminationPart::Ras]) });
    }

    /// Returns the first own rank of the next host on which NCCL RAS was not tried in this round.
    fn next_ras_rank(&self) -> Option<usize> {
        let is_tried = |host| self.ras_tried.iter().any(|&rank| self.ranks[rank].host == host);
        let next = self.ranks.iter().position(|rank| rank.reads_links && !is_tried(rank.host));
        next.filter(|_| self.ras_tried.len() < MAX_RAS_HOSTS)
    }

    /// Returns the host to which a request without a reply was sent.
    pub fn host_of_request(&self, id: u64) -> Option<HostId> {
        let pending = self.pending.iter().find(|one| one.id == id)?;
        Some(self.ranks[pending.task.rank].host)
    }

    /// Takes the reply to one of the requests. Returns `false` if it belongs to another request.
    pub fn take_reply(&mut self, reply: Reply, fleet: &Fleet, now: Moment) -> bool {
        let Some(index) = self.pending.iter().position(|one| one.id == reply.id) else { return false };
        let task = self.pending.swap_remove(index).task;
        self.last_reply_at = Some(now);
        match (reply.outcome, &task.kind) {
            (ReplyOutcome::Examined(examination), TaskKind::Examine(parts)) => {
                if parts.contains(&ExaminationPart::Ras) {
                    self.note_ras_answer(task.rank, &examination, fleet);
                }
                self.add_examination(task.rank, *examination, fleet, now);
            }
            (ReplyOutcome::LogTail { path, lines }, TaskKind::Log) => {
                let rank = &mut self.ranks[task.rank];
                let process = find_process(fleet, rank.host, &rank.key);
                rank.log_refusal = SafeText::default();
                rank.log =
                    Some(LogTail { path, lines, age: process.and_then(log_age), process_age: process.and_then(age) });
            }
            (ReplyOutcome::Refused(reason), TaskKind::Log) => self.ranks[task.rank].log_refusal = reason,
            (ReplyOutcome::Gone, _) => self.refuse(&task, "the process has exited", fleet, now),
            (ReplyOutcome::Reused, _) => self.refuse(&task, "the pid now belongs to another process", fleet, now),
            (ReplyOutcome::NotPermitted, _) => self.refuse(&task, "it is another user's process", fleet, now),
            (ReplyOutcome::Refused(reason), _) => self.refuse(&task, &reason, fleet, now),
            _ => self.refuse(&task, "the probe sent an unknown answer", fleet, now),
        }
        true
    }

    /// Tries NCCL RAS on another host after a refusal that concerns only this one.
    fn note_ras_answer(&mut self, rank: usize, examination: &Examination, fleet: &Fleet) {
        if examination.ras.is_some() {
            self.ras_rank = Some(rank);
            return;
        }
        // The risk is the same on every host.
        if !examination.refused.iter().any(|refusal| refusal.is_risk)
            && let Some(next) = self.next_ras_rank()
            && self.configured_ras_refusal(next, fleet).is_none()
        {
            self.query_ras(next);
        }
    }

    fn give_up_late_requests(&mut self, fleet: &Fleet, now: Moment) {
        let is_late = |one: &PendingTask| now.since(one.sent_at) >= REPLY_LIMIT;
        let (late, pending): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pending).into_iter().partition(is_late);
        self.pending = pending;
        for one in late {
            self.last_reply_at = Some(now);
            self.refuse(&one.task, "no reply came within 30 s", fleet, now);
        }
    }

    /// Records that an examination failed, for each part of it.
    fn refuse(&mut self, task: &Task, reason: &str, fleet: &Fleet, now: Moment) {
        let TaskKind::Examine(parts) = &task.kind else { return };
        let refusal = |part: &ExaminationPart| ExaminationRefusal::new(*part, reason, "");
        let refused = parts.iter().map(refusal).collect();
        self.add_examination(task.rank, Examination { refused, ..Examination::default() }, fleet, now);
    }

    /// Joins the parts of one round into one reading.
    fn add_examination(&mut self, rank: usize, new: Examination, fleet: &Fleet, now: Moment) {
        let (round, rank) = (self.rounds, &mut self.ranks[rank]);
        if rank.readings.last().is_none_or(|(its_round, _)| *its_round != round) {
            let process = find_process(fleet, rank.host, &rank.key);
            let reading = RankReading {
                at: now,
                examination: Examination::default(),
                cpu_percent: process.and_then(|process| process.reading.cpu_percent),
                descendants_cpu_percent: process.and_then(|process| process.reading.descendants_cpu_percent),
                write_bytes: process.and_then(|process| process.reading.write_bytes),
                read_bytes: process.and_then(|process| process.reading.read_characters),
                log_age: process.and_then(log_age),
            };
            rank.readings.push((round, reading));
        }
        let Some((_, reading)) = rank.readings.last_mut() else { return };
        let known = &mut reading.examination;
        known.process = new.process.or(known.process.take());
        known.stacks = new.stacks.or(known.stacks.take());
        known.ras = new.ras.or(known.ras.take());
        known.flight_recorder = new.flight_recorder.or(known.flight_recorder.take());
        if !new.links.is_empty() {
            (known.links, known.links_left_out) = (new.links, new.links_left_out);
        }
        known.refused.extend(new.refused);
        self.find_ranks_that_meet(fleet);
    }

    /// Finds the ranks that belong to the job: a likely part may be another job, whose processes must not be judged as ranks
    /// of this one.
    fn find_ranks_that_meet(&mut self, fleet: &Fleet) {
        let ports = self.listening_ports(fleet);
        let certain = self.ranks.iter().filter(|rank| rank.membership == Membership::Certain);
        let certain: Vec<(&str, u16)> = certain.flat_map(|rank| rank.rendezvous(&ports)).collect();
        let meets = |rank: &Rank| rank.rendezvous(&ports).iter().any(|one| certain.contains(one));
        let membership = |rank: &Rank| match rank.membership {
            Membership::Certain => Membership::Certain,
            _ if meets(rank) => Membership::Meets,
            _ => Membership::Likely,
        };
        let found: Vec<Membership> = self.ranks.iter().map(membership).collect();
        for (rank, membership) in self.ranks.iter_mut().zip(found) {
            rank.membership = membership;
        }
    }

    /// Whether two readings are complete and no later one is being made, which would be judged by halves.
    pub fn has_whole_readings(&self) -> bool {
        self.progress() == Progress::Complete && !self.is_under_way()
    }

    fn is_under_way(&self) -> bool {
        !self.queue.is_empty() || !self.pending.is_empty()
    }

    /// Returns how far the investigation is.
    pub fn progress(&self) -> Progress {
        let is_under_way = self.is_under_way();
        match (self.rounds, self.last_reply_at) {
            _ if !self.has_own_ranks() => Progress::Complete,
            (0, _) | (_, None) => Progress::FirstReading,
            (1, _) if is_under_way => Progress::FirstReading,
            (1, Some(last)) => Progress::WaitsUntil(last.plus(MIN_APART)),
            (2, _) if is_under_way => Progress::SecondReading,
            _ => Progress::Complete,
        }
    }

    /// Whether a finding is about the job.
    pub fn is_about(&self, finding: &Finding) -> bool {
        let is_rank = |host, key: &ProcessKey| {
            self.ranks.iter().any(|rank| rank.belongs() && rank.host == host && rank.key == *key)
        };
        finding.processes.iter().any(|process| is_rank(process.host, &process.key))
    }

    /// Whether processes of this job belong to the examined one, as a part of it on another host does.
    pub fn has_part(&self, fleet: &Fleet, host: HostId, job: &JobKey) -> bool {
        let is_of_job = |rank: &Rank| find_process(fleet, host, &rank.key).is_some_and(|one| one.info.job == *job);
        self.ranks.iter().any(|rank| rank.belongs() && rank.host == host && is_of_job(rank))
    }

    /// Whether the login user owns a process of the job: only those can be examined.
    pub fn has_own_ranks(&self) -> bool {
        self.ranks.iter().any(|rank| rank.is_mine)
    }

    /// Returns the hosts on which processes are examined; a host may be there several times.
    pub fn examined_hosts(&self) -> impl Iterator<Item = HostId> {
        self.ranks.iter().filter(|rank| rank.is_mine).map(|rank| rank.host)
    }

    /// Returns the number of examined processes and of their hosts: `8 processes on 2 hosts`.
    pub fn extent_text(&self) -> String {
        let mut hosts: Vec<HostId> = self.ranks.iter().map(|rank| rank.host).collect();
        hosts.dedup();
        let processes = if self.ranks.len() == 1 { "process" } else { "processes" };
        let ending = if hosts.len() == 1 { "" } else { "s" };
        format!("{} {processes} on {} host{ending}", self.ranks.len(), hosts.len())
    }

    /// Returns the ports on which ranks listen, as rank 0 does for the others.
    fn listening_ports(&self, fleet: &Fleet) -> Vec<u16> {
        let processes = self.ranks.iter().filter_map(|rank| find_process(fleet, rank.host, &rank.key));
        processes.filter_map(Process::facts).flat_map(|facts| facts.listening_ports.iter().copied()).collect()
    }

    /// Returns all that is known so far.
    pub fn evidence(&self, fleet: &Fleet, engine: &Engine, finding: Option<&Finding>, now: Moment) -> JobEvidence {
        let ranks = self.ranks.iter().filter(|rank| rank.belongs()).map(|rank| {
            let host = fleet.host(rank.host);
            let process = find_process(fleet, rank.host, &rank.key);
            RankEvidence {
                host: rank.host,
                host_name: rank.host_name.clone(),
                host_addresses: host.map(addresses).unwrap_or_default(),
                key: rank.key.clone(),
                pid: rank.key.pid,
                is_mine: rank.is_mine,
                user: rank.user.clone(),
                gpus: host
                    .zip(process)
                    .map(|(host, process)| rank_gpus(host, process, engine, finding))
                    .unwrap_or_default(),
                readings: rank.readings.iter().map(|(_, reading)| reading.clone()).collect(),
                log: rank.log.clone(),
                log_refusal: rank.log_refusal.clone(),
            }
        });
        JobEvidence {
            name: self.name.clone(),
            at: now,
            lasted: finding.map(|finding| finding.lasted(now)),
            lasted_is_at_least: finding.is_some_and(|finding| finding.at_least),
            serves_models: self.ranks.iter().any(|rank| engine.serves_models(rank.host, &rank.key)),
            ranks: ranks.collect(),
            ranks_left_out: self.ranks_left_out,
        }
    }
}

/// Returns the request of a task, or `None` if /proc does not show the process.
fn request(id: u64, process: &ProcessKey, kind: &TaskKind, accept_ras_risk: bool) -> Option<Request> {
    let (boot_id, pid, start_ticks) = (process.boot_id.clone()?, process.pid, process.start_ticks?);
    Some(match kind {
        TaskKind::Examine(parts) => {
            Request::Examine { id, boot_id, pid, start_ticks, parts: parts.clone(), accept_ras_risk }
        }
        TaskKind::Log => Request::LogTail { id, boot_id, pid, start_ticks },
    })
}

/// Whether the process computes on a GPU: a desktop is no rank of a job.
fn computes(process: &Process) -> bool {
    process.gpu_positions().any(|position| process.computes_on(position))
}

fn find_process<'a>(fleet: &'a Fleet, host: HostId, key: &ProcessKey) -> Option<&'a Process> {
    fleet.host(host)?.processes().find(|process| process.key == *key)
}

fn age(process: &Process) -> Option<Duration> {
    Duration::try_from_secs_f64(process.reading.age_seconds?).ok()
}

fn log_age(process: &Process) -> Option<Duration> {
    Duration::try_from_secs_f64(process.reading.log_age_seconds?).ok()
}

fn job_name(fleet: &Fleet, host: HostId, job: &JobKey) -> SafeText {
    if let JobKey::Slurm { job, .. } = job {
        return format!("Slurm job {job}").into();
    }
    let first = fleet.host(host).and_then(|host| host.processes().find(|process| process.info.job == *job));
    first.map_or_else(|| job.to_string().into(), |process| process.info.command.clone())
}

/// Names and addresses under which other hosts may know this one.
fn addresses(host: &Host) -> Vec<SafeText> {
    let own = host.hello.as_ref().and_then(|hello| hello.host_name.clone());
    own.into_iter().chain([SafeText::new(host.config.address())]).collect()
}

fn rank_gpus(host: &Host, process: &Process, engine: &Engine, finding: Option<&Finding>) -> Vec<RankGpu> {
    let names_waiting_gpus = |finding: &&Finding| {
        matches!(finding.rule, RuleId::StuckSpin | RuleId::StuckSpinSuspect)
            && finding.phase != FindingPhase::Resolving
            && finding.confidence >= Confidence::Likely
    };
    let waiting = finding.filter(names_waiting_gpus).map_or(&[][..], |finding| &finding.gpus);
    let gpus: Vec<_> = host.gpus().collect();
    let positions = process.gpu_positions().filter(|position| process.computes_on(*position));
    let of_position = |position: usize| {
        let (info, reading) = gpus.get(position)?;
        let sum = |one: Option<f64>, other: Option<f64>| Some(one? + other?);
        Some(RankGpu {
            index: info.index,
            utilization_percent: reading.utilization_percent,
            power_watts: reading.power_watts,
            power_limit_watts: reading.power_limit_watts.or(info.power_limit_watts),
            healthy_power_watts: engine.healthy_watts(host.id, position),
            waits_by_rule: waiting.iter().any(|gpu| gpu.host == host.id && gpu.position == position),
            tensor_percent: reading.tensor_activity_percent,
            dram_percent: reading.dram_bandwidth_percent,
            nvlink_bytes_per_second: sum(
                reading.nvlink_receive_bytes_per_second,
                reading.nvlink_transmit_bytes_per_second,
            ),
            pcie_bytes_per_second: sum(reading.pcie_receive_bytes_per_second, reading.pcie_transmit_bytes_per_second),
        })
    };
    positions.filter_map(of_position).collect()
}

#[cfg(test)]
#[path = "investigation_tests.rs"]
mod tests;
