//! The engine: what is remembered of every host, and the order in which a sample is judged.

use super::conditions::Conditions;
use super::evaluation::{FindingTarget, SampleTime};
use super::inhibit;
use super::notification_state::NotificationState;
use super::peer_hosts::PeerHosts;
use super::rule_context::RuleContext;
use super::rules;
use super::rules::fleet_wide::Outage;
use super::saved_state::SavedState;
use super::track::{GpuTrack, HostTrack, JobTrack, ProcessTrack};
use super::{Finding, FindingNotification, FindingPhase, NotJudged, RuleId, StateTracker, Transition};
use crate::config::Thresholds;
use crate::fleet::{DistributedJob, Fleet, GpuState, Host, HostId, Moment, distributed_jobs};
use crate::wire::SafeText;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// A tick this much later than the one before it means that this machine slept.
const SUSPEND_GAP: Duration = Duration::from_secs(30);

/// After a gap this long, in seconds, what was beginning begins anew: no window would have enough of its samples.
const LONG_GAP: f64 = 900.0;

/// What findings about the fleet as a whole are shown under.
pub(super) const FLEET: &str = "fleet";

/// Judges the fleet: takes every update of a host ([`Engine::evaluate_host`]) and every second ([`Engine::tick`]), and says what
/// changed. It has no clock and does no IO; what it wants kept is a [`SavedState`].
#[derive(Debug, Clone, Default)]
pub struct Engine {
    thresholds: Arc<Thresholds>,
    hosts: Vec<HostDiagnosis>,
    tracker: StateTracker,
    /// Jobs that run on several hosts.
    groups: Vec<DistributedJob>,
    /// A host's jobs changed since they were sorted.
    are_distributed_jobs_stale: bool,
    /// Findings about the fleet as a whole.
    pub(super) conditions: Conditions,
    /// What an earlier run has kept, less what is in `notification_state`.
    pub(super) saved_state: Arc<SavedState>,
    /// Who was told of what, and what shall be silent.
    pub(super) notification_state: Arc<NotificationState>,
    /// Somebody was told of the jobs that ended before, in seconds since 1970.
    pub(super) job_ends_reported_unix: f64,
    last_tick: Option<Moment>,
    /// When the whole fleet was last judged, and when its drivers are to be compared next.
    pub(super) last_fleet_tick: Option<f64>,
    pub(super) next_skew_check: Option<f64>,
    pub(super) outages: Vec<Outage>,
    /// This machine woke up then: what was missed meanwhile is nobody's fault.
    pub(super) woke_at: Option<f64>,
}

/// What is remembered of one host.
#[derive(Debug, Clone, Default)]
pub(super) struct HostDiagnosis {
    pub(super) gpus: Vec<GpuTrack>,
    pub(super) absent: Vec<GpuTrack>,
    pub(super) processes: Vec<ProcessTrack>,
    pub(super) jobs: Vec<JobTrack>,
    pub(super) host_track: HostTrack,
    pub(super) conditions: Conditions,
    /// Whether it can be reached: apart, since it is judged when nothing else can be.
    pub(super) link_conditions: Conditions,
    /// Learned by an earlier run of the program.
    pub(super) restored_idle_watts: HashMap<SafeText, f32>,
    /// The sample that was judged last.
    last_sample: Option<(Moment, u64)>,
    interval: f64,
    /// Since when it has had no link.
    pub(super) link_lost_at: Option<f64>,
}

impl HostDiagnosis {
    /// Whether its last sample is not older than three intervals.
    pub(super) fn is_recent(&self, t: f64) -> bool {
        self.host_track.sampled_at.is_some_and(|at| t - at <= 3.0 * self.interval.max(1.0))
    }

    /// Seconds between its samples.
    pub(super) fn interval(&self) -> f64 {
        self.interval
    }

    /// The time of a sample that was not judged yet.
    fn new_sample(&mut self, host: &Host) -> Option<SampleTime> {
        let sample = (host.received_at?, host.snapshot.as_ref()?.sequence);
        if self.last_sample == Some(sample) {
            return None;
        }
        self.last_sample = Some(sample);
        self.interval = host.interval().as_secs_f64().max(0.25);
        let t = sample.0.since_start().as_secs_f64();
        let since = self.host_track.sampled_at.map_or(self.interval, |at| t - at);
        Some(SampleTime::new(sample.0, since.clamp(0.0, 3.0 * self.interval.max(1.0))))
    }
}

impl Engine {
    /// An engine with these thresholds, for hosts whose configuration has none of its own.
    pub fn new(thresholds: Arc<Thresholds>) -> Self {
        Self { thresholds, ..Self::default() }
    }

    /// Takes in a host after an update of it.
    pub fn evaluate_host(&mut self, fleet: &Fleet, id: HostId, now: Moment) -> Vec<Transition> {
        let mut transitions = Vec::new();
        let Some(host) = fleet.host(id) else { return transitions };
        self.reserve(id);
        let place = id.0 as usize;
        let limits = self.thresholds_of(host);
        let mut memory = std::mem::take(&mut self.hosts[place]);
        if let Some(sample_time) = memory.new_sample(host) {
            let is_first = memory.host_track.samples == 0;
            let gap = memory.host_track.sampled_at.map_or(0.0, |at| sample_time.t - at);
            if gap > LONG_GAP {
                memory.restart_pending();
            }
            if is_first {
                memory.restore(host, &self.saved_state, &limits, sample_time);
            }
            self.are_distributed_jobs_stale |= memory.update(host, &limits, sample_time);
            memory.restore_gpu_usage(host, &self.saved_state, sample_time, is_first);
            memory.restore_idle_time(host, &self.saved_state, sample_time, is_first);
            memory.bridge_idle_gap(gap);
            self.evaluate(&mut memory, fleet, host, &limits, (sample_time, is_first), &mut transitions);
        }
        let finding_states = finding_states(&memory, host);
        self.tracker.update_with(host, &finding_states, &limits, now);
        self.hosts[place] = memory;
        self.end_snoozes(&transitions);
        transitions
    }

    fn evaluate(
        &self,
        memory: &mut HostDiagnosis,
        fleet: &Fleet,
        host: &Host,
        limits: &Thresholds,
        (sample_time, is_first): (SampleTime, bool),
        transitions: &mut Vec<Transition>,
    ) {
        let mut conditions = std::mem::take(&mut memory.conditions);
        let context = RuleContext {
            host,
            sample_time,
            limits,
            gpus: &memory.gpus,
            processes: &memory.processes,
            jobs: &memory.jobs,
            host_track: &memory.host_track,
            peers: PeerHosts { fleet, groups: &self.groups, hosts: &self.hosts },
        };
        conditions.begin_sample(host, sample_time, is_first, limits.off);
        hold_unreadable(&context, &mut conditions);
        rules::evaluate(&context, &mut conditions);
        conditions.finish_sample(|target| exists(&context, target));
        // What is told here already goes on being told here.
        let shown: Vec<FindingTarget> = conditions.published_targets(RuleId::NfsHang).cloned().collect();
        inhibit::inhibit(&context, &mut conditions, |rule, target| match target {
            FindingTarget::Mount(mount) if rule == RuleId::NfsHang && !shown.contains(target) => {
                rules::host::is_reported_by_peer_host(&context, mount)
            }
            _ => Self::is_reported_by_peer(host.id, rule, target, &context),
        });
        conditions.apply_notification_state(&self.notification_state);
        conditions.publish(transitions);
        memory.conditions = conditions;
    }

    /// Ends the snoozes that last until something changes, where it has.
    fn end_snoozes(&mut self, transitions: &[Transition]) {
        if self.notification_state.is_empty() {
            return;
        }
        for transition in transitions {
            let severity = match transition.to {
                // What another finding explains is only out of sight.
                FindingPhase::Clear if self.all_conditions().any(|conditions| conditions.is_active(&transition.id)) => {
                    continue;
                }
                FindingPhase::Clear => None,
                _ => Some(transition.severity),
            };
            Arc::make_mut(&mut self.notification_state).changed(&transition.id, severity);
        }
    }

    fn all_conditions(&self) -> impl Iterator<Item = &Conditions> {
        self.hosts.iter().flat_map(|memory| [&memory.conditions, &memory.link_conditions]).chain([&self.conditions])
    }

    /// Lets a finding be silent for a span, or until it changes; `false` where there is no such finding.
    pub fn snooze(&mut self, id: &SafeText, span: Option<Duration>, now: Moment) -> bool {
        let Some(finding) = self.findings().find(|finding| finding.id == *id).cloned() else { return false };
        Arc::make_mut(&mut self.notification_state).snooze(&finding, span, now);
        self.apply_notification_state_at(now);
        true
    }

    /// Ends a snooze. Whoever does so knows of the finding: they are not told again.
    pub fn end_snooze(&mut self, id: &SafeText, now: Moment) {
        Arc::make_mut(&mut self.notification_state).end_snooze(id);
        for memory in &mut self.hosts {
            memory.conditions.snooze_ended(id);
            memory.link_conditions.snooze_ended(id);
        }
        self.conditions.snooze_ended(id);
        self.apply_notification_state_at(now);
    }

    fn apply_notification_state_at(&mut self, now: Moment) {
        for memory in &mut self.hosts {
            memory.conditions.apply_notification_state_at(&self.notification_state, now);
            memory.link_conditions.apply_notification_state_at(&self.notification_state, now);
        }
        self.conditions.apply_notification_state_at(&self.notification_state, now);
    }

    /// Each second: what no sample tells. Hosts that are silent, jobs across hosts, drivers that differ.
    pub fn tick(&mut self, fleet: &Fleet, now: Moment) -> Vec<Transition> {
        let mut transitions = Vec::new();
        let t = now.since_start().as_secs_f64();
        if let Some(before) = self.last_tick
            && (now.since(before) > SUSPEND_GAP
                || now.unix.saturating_sub(before.unix) > SUSPEND_GAP + now.since(before))
        {
            self.woke_at = Some(t);
        }
        self.last_tick = Some(now);
        for host in fleet.hosts() {
            self.reserve(host.id);
            self.tracker.tick(host, now);
        }
        if std::mem::take(&mut self.are_distributed_jobs_stale) {
            self.refresh_distributed_jobs(fleet);
        }
        rules::fleet_wide::evaluate(self, fleet, now, &mut transitions);
        self.end_snoozes(&transitions);
        transitions
    }

    fn refresh_distributed_jobs(&mut self, fleet: &Fleet) {
        self.groups = distributed_jobs(fleet);
        for memory in &mut self.hosts {
            memory.jobs.iter_mut().for_each(|job| job.group = None);
        }
        for (number, group) in self.groups.iter().enumerate() {
            for (host, key) in &group.parts {
                let jobs = self.hosts.get_mut(host.0 as usize).map(|memory| &mut memory.jobs);
                if let Some(job) = jobs.and_then(|jobs| jobs.iter_mut().find(|job| job.key == *key)) {
                    job.group = Some(number);
                }
            }
        }
    }

    /// One finding a job: a part of it on an earlier host says the same already.
    fn is_reported_by_peer(id: HostId, rule: RuleId, target: &FindingTarget, context: &RuleContext) -> bool {
        let FindingTarget::Job(key) = target else { return false };
        let Some(job) = context.jobs.iter().find(|job| job.key == *key) else { return false };
        context.peers.parts(job, id).any(|part| {
            part.host < id
                && part.memory.conditions.phase(rule, &FindingTarget::Job(part.job.key.clone())) != FindingPhase::Clear
        })
    }

    /// What there is to say now: firing, resolving and pending findings, in the order of the screen: by severity,
    /// confidence, GPUs held, and age. SnoozeEnd ones stand below, pending ones last.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        let of_hosts =
            self.hosts.iter().flat_map(|host| host.conditions.findings().chain(host.link_conditions.findings()));
        let mut all: Vec<&Finding> = of_hosts.chain(self.conditions.findings()).map(|(_, finding)| finding).collect();
        all.sort_by(|a, b| {
            let rank = |finding: &Finding| {
                (
                    finding.phase == FindingPhase::Pending,
                    finding.snoozed.is_some(),
                    std::cmp::Reverse((finding.severity, finding.confidence, finding.gpus.len())),
                )
            };
            rank(a).cmp(&rank(b)).then(a.since.unix.cmp(&b.since.unix)).then(a.id.cmp(&b.id))
        });
        all.into_iter()
    }

    /// Of these changes, those that somebody should be told of, each with its finding.
    pub fn notifications(&self, transitions: &[Transition]) -> Vec<FindingNotification> {
        let to_tell = transitions.iter().filter(|transition| transition.notify);
        let find = |transition: &Transition| {
            let finding = self.findings().find(|finding| finding.id == transition.id)?;
            Some(FindingNotification { transition: transition.clone(), finding: finding.clone() })
        };
        to_tell.filter_map(find).collect()
    }

    /// What could not be judged, and why.
    pub fn not_judged(&self) -> Vec<NotJudged> {
        super::not_judged::list(&self.hosts, self.last_tick)
    }

    /// The rules that watch for longer than some host of the fleet has been looked at, each with the time it conditions
    /// for before it fires; the shortest first.
    pub fn rules_with_too_little_history(&self, fleet: &Fleet) -> Vec<(RuleId, Duration)> {
        super::not_judged::rules_short_of_history(&self.hosts, self.last_tick, |index| {
            let host = fleet.hosts().get(index)?;
            Some(host.config.thresholds.as_deref().unwrap_or(&self.thresholds))
        })
    }

    /// The states of a host's GPUs in inventory order, each with the moment since when it has been known to hold.
    pub fn states(&self, id: HostId) -> &[(GpuState, Option<Moment>)] {
        self.tracker.states(id)
    }

    /// The context-idle power that was learned of a GPU, in watts, by its position in the inventory.
    pub fn idle_watts(&self, id: HostId, position: usize) -> Option<f32> {
        self.hosts.get(id.0 as usize)?.gpus.get(position)?.learned_watts()
    }

    /// Whether a GPU reads busy and draws next to nothing: an observation from the first sample on, and no verdict.
    pub fn is_low_power(&self, id: HostId, position: usize) -> bool {
        let gpu = self.hosts.get(id.0 as usize).and_then(|host| host.gpus.get(position));
        gpu.is_some_and(|gpu| gpu.is_readable && gpu.is_low_power)
    }

    /// The median power of a GPU's present job while it worked in earnest, in watts, once five minutes of that were seen.
    pub fn healthy_watts(&self, id: HostId, position: usize) -> Option<f32> {
        let host = self.hosts.get(id.0 as usize)?;
        let gpus = host.jobs.iter().flat_map(|job| &job.gpus);
        let past =
            gpus.into_iter().find(|gpu| gpu.position == position && gpu.is_exclusive).map(|gpu| &gpu.baseline)?;
        if past.power_seconds() >= self.thresholds.stuck_spin.history { past.median_power() } else { None }
    }

    /// Bytes that it takes for one host beyond what the fleet keeps, about.
    pub fn memory_bytes(&self, id: HostId) -> usize {
        let Some(host) = self.hosts.get(id.0 as usize) else { return 0 };
        let gpus = host.gpus.iter().map(|gpu| gpu.memory_bytes() + std::mem::size_of::<GpuTrack>()).sum::<usize>();
        let jobs = host.jobs.iter().map(JobTrack::track_memory_bytes).sum::<usize>();
        gpus + jobs + host.processes.capacity() * std::mem::size_of::<ProcessTrack>() + host.conditions.memory_bytes()
    }

    pub(super) fn thresholds_of(&self, host: &Host) -> Arc<Thresholds> {
        host.config.thresholds.clone().unwrap_or_else(|| Arc::clone(&self.thresholds))
    }

    pub(super) fn hosts(&self) -> &[HostDiagnosis] {
        &self.hosts
    }

    pub(super) fn host_mut(&mut self, id: HostId) -> Option<&mut HostDiagnosis> {
        self.hosts.get_mut(id.0 as usize)
    }

    pub(super) fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    fn reserve(&mut self, id: HostId) {
        let place = id.0 as usize;
        if self.hosts.len() <= place {
            self.hosts.resize_with(place + 1, HostDiagnosis::default);
        }
    }
}

/// What findings say of the GPUs of this host, by position: that they hang while a stuck-* finding fires, and that they
/// are idle, which idle-hog may know for a longer time than they were watched.
fn finding_states(memory: &HostDiagnosis, host: &Host) -> Vec<(usize, GpuState, Moment)> {
    const STUCK: [RuleId; 3] = [RuleId::StuckSpin, RuleId::StuckSpinSuspect, RuleId::MissingRank];
    let mut finding_states = Vec::new();
    for (_, finding) in memory.conditions.findings() {
        let state = match (finding.rule, finding.phase) {
            (rule, FindingPhase::Firing) if STUCK.contains(&rule) => GpuState::Hung,
            (RuleId::IdleHog, FindingPhase::Pending | FindingPhase::Firing) => GpuState::Idle,
            _ => continue,
        };
        let gpus = finding.gpus.iter().filter(|gpu| gpu.host == host.id);
        // The inventory may have changed since the finding was worded.
        let position = |uuid: &Option<SafeText>| host.gpus().position(|(info, _)| info.uuid == *uuid);
        finding_states.extend(gpus.filter_map(|gpu| Some((position(&gpu.uuid)?, state, finding.since))));
    }
    finding_states
}

/// Nothing can be said of jobs and GPUs of which a reading is missing.
fn hold_unreadable(context: &RuleContext, conditions: &mut Conditions) {
    let is_unread = |identity: &SafeText| context.gpus.iter().any(|gpu| gpu.identity == *identity && !gpu.is_readable);
    let process_is_held = |pid: u32| context.processes.iter().any(|process| process.key.pid == pid && process.is_stale);
    conditions.unknown_where(|rule, target| match target {
        FindingTarget::Job(key) => context.jobs.iter().any(|job| job.key == *key && !job.is_readable),
        FindingTarget::Process(key) => process_is_held(key.pid),
        FindingTarget::Gpu(identity) => rule != RuleId::GpuLost && is_unread(identity),
        FindingTarget::Host | FindingTarget::Mount(_) | FindingTarget::Xid(..) | FindingTarget::Named(_) => false,
    });
}

fn exists(context: &RuleContext, target: &FindingTarget) -> bool {
    match target {
        FindingTarget::Job(key) => context.jobs.iter().any(|job| job.key == *key),
        FindingTarget::Process(key) => context.processes.iter().any(|process| process.key == *key),
        FindingTarget::Gpu(identity) => context.gpus.iter().any(|gpu| gpu.identity == *identity),
        FindingTarget::Mount(name) => {
            context.host.filesystems().iter().any(|filesystem| filesystem.mount_point == *name)
        }
        FindingTarget::Host | FindingTarget::Xid(..) | FindingTarget::Named(_) => true,
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
