//! The engine: owns the diagnosis state of all hosts, and runs the steps of each sample and each tick.

use super::condition::SampleTime;
use super::conditions::Conditions;
use super::finding::FLEET;
use super::finding::FindingTarget;
use super::host_diagnosis::HostDiagnosis;
use super::inhibit::{add_peer_hosts, inhibit};
use super::notification_state::NotificationState;
use super::rule_context::{PeerHosts, RuleContext};
use super::rules::{self, FleetWide};
use super::saved_state::{MAX_ENTRIES, SAVED_STATE_VERSION, SavedJobEnd, SavedState};
use super::track::{Comparison, GpuTrack, JobTrack, ProcessTrack};
use super::{
    Finding, FindingNotification, FindingPhase, FindingVerdict, NotJudged, RuleId, Severity, StateTracker, Transition,
    UnusedReason, not_judged,
};
use crate::config::Thresholds;
use crate::fleet::{DistributedJob, Fleet, GpuState, Host, HostId, JobKey, Moment, ProcessKey, distributed_jobs};
use crate::wire::SafeText;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// After a gap this long, in seconds, pending conditions start again: no window would have enough samples.
const LONG_GAP: f64 = 900.0;
/// After a gap this long, in seconds, and three intervals, verdicts may be outdated because the host could not be reached.
const SHORT_GAP: f64 = 60.0;

/// Evaluates the fleet: call [`Engine::evaluate_host`] after each update of a host and [`Engine::tick`] every second.
/// Both return the findings that changed. The engine has no clock and does no IO; [`Engine::to_saved_state`] returns
/// what to keep for the next run.
#[derive(Debug, Clone, Default)]
pub struct Engine {
    thresholds: Arc<Thresholds>,
    hosts: Vec<HostDiagnosis>,
    tracker: StateTracker,
    /// Jobs that run on several hosts.
    groups: Vec<DistributedJob>,
    /// The jobs of a host changed since `groups` was computed.
    are_distributed_jobs_stale: bool,
    fleet_wide: FleetWide,
    /// The state of an earlier run, without the part in `notification_state`.
    saved_state: Arc<SavedState>,
    notification_state: Arc<NotificationState>,
    /// Jobs that ended before this time were reported to the user, in seconds since 1970.
    job_ends_reported_unix: f64,
}

impl Engine {
    /// `thresholds` apply to hosts whose configuration has none.
    pub fn new(thresholds: Arc<Thresholds>) -> Self {
        Self { thresholds, ..Self::default() }
    }

    /// Evaluates a host after an update of it.
    pub fn evaluate_host(&mut self, fleet: &Fleet, id: HostId, now: Moment) -> Vec<Transition> {
        let mut transitions = Vec::new();
        let Some(host) = fleet.host(id) else { return transitions };
        self.reserve(id);
        let index = id.0 as usize;
        let limits = self.thresholds_of(host);
        let mut diagnosis = std::mem::take(&mut self.hosts[index]);
        if let Some(sample_time) = diagnosis.new_sample(host) {
            let is_first = diagnosis.host_track.samples == 0;
            let gap = diagnosis.host_track.sampled_at.map_or(0.0, |at| sample_time.t - at);
            if gap > LONG_GAP {
                diagnosis.restart_pending();
            }
            if gap > SHORT_GAP.max(3.0 * diagnosis.interval()) {
                diagnosis.conditions.keep_verdicts(now);
            }
            if is_first {
                diagnosis.restore(host, &self.saved_state, &limits, sample_time);
            }
            self.are_distributed_jobs_stale |= diagnosis.update(host, &limits, sample_time);
            diagnosis.restore_gpu_usage(host, &self.saved_state, sample_time, is_first);
            diagnosis.restore_idle_time(host, &self.saved_state, sample_time, is_first);
            diagnosis.bridge_idle_gap(gap);
            self.evaluate(&mut diagnosis, fleet, host, &limits, sample_time, &mut transitions);
        }
        let mut finding_states = finding_states(&diagnosis, host);
        finding_states.extend(self.states_from_peers(&diagnosis, host));
        self.tracker.update_with(host, &finding_states, &limits, now);
        self.hosts[index] = diagnosis;
        self.end_snoozes(&transitions);
        transitions
    }

    fn evaluate(
        &self,
        diagnosis: &mut HostDiagnosis,
        fleet: &Fleet,
        host: &Host,
        limits: &Thresholds,
        sample_time: SampleTime,
        transitions: &mut Vec<Transition>,
    ) {
        let mut conditions = std::mem::take(&mut diagnosis.conditions);
        let context = RuleContext {
            host,
            sample_time,
            limits,
            gpus: &diagnosis.gpus,
            processes: &diagnosis.processes,
            reruns: &diagnosis.reruns,
            jobs: &diagnosis.jobs,
            host_track: &diagnosis.host_track,
            peers: PeerHosts { fleet, groups: &self.groups, hosts: &self.hosts },
        };
        conditions.begin_sample(host, sample_time, limits.off);
        hold_unreadable(&context, &mut conditions);
        rules::evaluate(&context, &mut conditions);
        conditions.finish_sample(|target| exists(&context, target));
        inhibit(&context, &mut conditions);
        add_peer_hosts(&context, &mut conditions);
        conditions.apply_notification_state(&self.notification_state);
        conditions.publish(transitions);
        freeze_baselines(&conditions, diagnosis, limits.input_stall.earlier as f32);
        self.freeze_peers(diagnosis);
        diagnosis.conditions = conditions;
    }

    /// Keeps the baselines of jobs whose part on another host is compared with them.
    fn freeze_peers(&self, diagnosis: &mut HostDiagnosis) {
        for job in &mut diagnosis.jobs {
            let group = job.group.and_then(|group| self.groups.get(group as usize));
            let is_compared = |(host, key): &(HostId, JobKey)| {
                let conditions = self.hosts.get(host.0 as usize).map(|diagnosis| &diagnosis.conditions);
                let target = FindingTarget::Job(key.clone());
                conditions.is_some_and(|conditions| conditions.active_finding(RuleId::GpuImbalance, &target).is_some())
            };
            if group.is_some_and(|group| group.parts.iter().any(is_compared)) {
                job.comparison = job.comparison.max(Comparison::Job);
            }
        }
    }

    /// Ends the snoozes that last until the finding changes, for the findings that changed.
    fn end_snoozes(&mut self, transitions: &[Transition]) {
        if self.notification_state.is_empty() {
            return;
        }
        for transition in transitions {
            let severity = match transition.to {
                // An inhibited finding has not cleared.
                FindingPhase::Clear if self.all_conditions().any(|conditions| conditions.is_active(&transition.id)) => {
                    continue;
                }
                FindingPhase::Clear => None,
                _ => Some(transition.severity),
            };
            Arc::make_mut(&mut self.notification_state).finding_changed(&transition.id, severity);
        }
    }

    fn all_conditions(&self) -> impl Iterator<Item = &Conditions> {
        self.hosts
            .iter()
            .flat_map(|diagnosis| [&diagnosis.conditions, &diagnosis.link_conditions])
            .chain([&self.fleet_wide.conditions])
    }

    /// Snoozes a finding for `span`, or until it changes. Returns `false` if there is no such finding.
    pub fn snooze(&mut self, id: &SafeText, span: Option<Duration>, now: Moment) -> bool {
        let Some(finding) = self.findings().find(|finding| finding.id == *id).cloned() else { return false };
        Arc::make_mut(&mut self.notification_state).snooze(&finding, span, now);
        self.apply_notification_state_at(now);
        true
    }

    /// Adds the verdict of an examination to the findings about hangs that `is_about` selects, also to those that another
    /// finding about the job inhibits. The next sample of the host publishes what it changes: the severity and the confidence.
    pub fn set_verdict(&mut self, is_about: impl Fn(&Finding) -> bool, verdict: &FindingVerdict) {
        for diagnosis in &mut self.hosts {
            diagnosis.conditions.set_verdict(&is_about, Some(verdict));
        }
    }

    /// Removes the verdict from the findings about hangs that `has_ended` selects.
    pub fn remove_verdict(&mut self, has_ended: impl Fn(&Finding) -> bool) {
        for diagnosis in &mut self.hosts {
            diagnosis.conditions.set_verdict(&has_ended, None);
        }
    }

    /// Ends a snooze at the request of the user. No notification follows.
    pub fn end_snooze(&mut self, id: &SafeText, now: Moment) {
        Arc::make_mut(&mut self.notification_state).end_snooze(id);
        for diagnosis in &mut self.hosts {
            diagnosis.conditions.snooze_ended(id);
            diagnosis.link_conditions.snooze_ended(id);
        }
        self.fleet_wide.conditions.snooze_ended(id);
        self.apply_notification_state_at(now);
    }

    fn apply_notification_state_at(&mut self, now: Moment) {
        for diagnosis in &mut self.hosts {
            diagnosis.conditions.apply_notification_state_at(&self.notification_state, now);
            diagnosis.link_conditions.apply_notification_state_at(&self.notification_state, now);
        }
        self.fleet_wide.conditions.apply_notification_state_at(&self.notification_state, now);
    }

    /// Forgets a host whose place another one takes.
    pub fn reset_host(&mut self, id: HostId) {
        if let Some(diagnosis) = self.hosts.get_mut(id.0 as usize) {
            *diagnosis = HostDiagnosis::default();
        }
        self.fleet_wide.forget_host(id);
        self.are_distributed_jobs_stale = true;
    }

    /// Evaluates what no sample shows: silent hosts, jobs across hosts and differing drivers. To be called every
    /// second.
    pub fn tick(&mut self, fleet: &Fleet, now: Moment) -> Vec<Transition> {
        let mut transitions = Vec::new();
        for host in fleet.hosts() {
            self.reserve(host.id);
            self.tracker.tick(host, now);
        }
        if std::mem::take(&mut self.are_distributed_jobs_stale) {
            self.refresh_distributed_jobs(fleet);
        }
        self.fleet_wide.tick(
            &mut self.hosts,
            (fleet, &self.thresholds),
            &self.notification_state,
            now,
            &mut transitions,
        );
        self.end_snoozes(&transitions);
        transitions
    }

    fn refresh_distributed_jobs(&mut self, fleet: &Fleet) {
        self.groups = distributed_jobs(fleet);
        for diagnosis in &mut self.hosts {
            diagnosis.jobs.iter_mut().for_each(|job| job.group = None);
        }
        for (number, group) in (0..).zip(&self.groups) {
            for (host, key) in &group.parts {
                let jobs = self.hosts.get_mut(host.0 as usize).map(|diagnosis| &mut diagnosis.jobs);
                if let Some(job) = jobs.and_then(|jobs| jobs.iter_mut().find(|job| job.key == *key)) {
                    job.group = Some(number);
                }
            }
        }
    }

    /// All firing, resolving and pending findings, ordered by severity, jobs without progress first, then by confidence,
    /// number of GPUs and age. Snoozed findings follow the others, pending ones come last.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        let of_hosts =
            self.hosts.iter().flat_map(|host| host.conditions.findings().chain(host.link_conditions.findings()));
        let mut all: Vec<&Finding> =
            of_hosts.chain(self.fleet_wide.conditions.findings()).map(|(_, finding)| finding).collect();
        all.sort_by(|a, b| {
            let rank = |finding: &Finding| {
                (
                    finding.phase == FindingPhase::Pending,
                    finding.snoozed.is_some(),
                    std::cmp::Reverse((
                        finding.rank_severity(),
                        finding.rule.is_about_progress(),
                        finding.severity,
                        finding.confidence,
                        finding.gpus.len(),
                    )),
                )
            };
            rank(a).cmp(&rank(b)).then(a.since.unix.cmp(&b.since.unix)).then(a.id.cmp(&b.id))
        });
        all.into_iter()
    }

    /// The findings about jobs that hang, in no order.
    pub fn hangs(&self) -> impl Iterator<Item = &Finding> {
        (0..self.hosts.len() as u32).flat_map(|id| self.hangs_of(HostId(id)))
    }

    /// The findings about jobs that hang and are listed under this host, in no order.
    pub fn hangs_of(&self, id: HostId) -> impl Iterator<Item = &Finding> {
        let findings = self.host(id).into_iter().flat_map(|host| host.conditions.findings());
        findings.map(|(_, finding)| finding).filter(|finding| finding.rule.is_hang())
    }

    /// The finding after a transition; `None` if it has cleared. It looks only at the host of the transition and at the
    /// fleet: searching all findings for each transition takes hours for a recording with thousands of hosts.
    pub fn finding_of(&self, transition: &Transition) -> Option<&Finding> {
        let of_host = transition.host.and_then(|host| self.host(host)).into_iter();
        let of_host = of_host.flat_map(|host| host.conditions.findings().chain(host.link_conditions.findings()));
        let mut findings = of_host.chain(self.fleet_wide.conditions.findings()).map(|(_, finding)| finding);
        findings.find(|finding| finding.id == transition.id)
    }

    /// The notifications among these transitions, each with its finding.
    pub fn notifications(&self, transitions: &[Transition]) -> Vec<FindingNotification> {
        let notifying = transitions.iter().filter(|transition| transition.notify);
        let find = |transition: &Transition| {
            let finding = self.finding_of(transition)?;
            Some(FindingNotification { transition: transition.clone(), finding: finding.clone() })
        };
        notifying.filter_map(find).collect()
    }

    /// The items that could not be evaluated, with the reasons.
    pub fn not_judged(&self) -> Vec<NotJudged> {
        not_judged::list(&self.hosts, self.fleet_wide.last_tick())
    }

    /// The rules that need a longer history than some host has, each with the time it observes before it fires,
    /// shortest first.
    pub fn rules_with_too_little_history(&self, fleet: &Fleet) -> Vec<(RuleId, Duration)> {
        not_judged::rules_short_of_history(&self.hosts, self.fleet_wide.last_tick(), |index| {
            let host = fleet.hosts().get(index)?;
            Some(host.config.thresholds.as_deref().unwrap_or(&self.thresholds))
        })
    }

    /// The states of the GPUs of a host in inventory order, each with the moment since when it is known to hold.
    pub fn states(&self, id: HostId) -> &[(GpuState, Option<Moment>)] {
        self.tracker.states(id)
    }

    /// The severity of the state of a GPU that hangs or is faulty: that of the worst finding about it. `None` if no
    /// finding is the reason.
    pub fn severity_of_state(&self, id: HostId, position: usize) -> Option<Severity> {
        let (state, _) = *self.states(id).get(position)?;
        let about_it = |finding: &&Finding| {
            finding.phase != FindingPhase::Pending
                && finding.gpus.iter().any(|gpu| gpu.host == id && gpu.position == position)
        };
        let findings = || self.host(id).into_iter().flat_map(|host| host.conditions.findings()).map(|(_, one)| one);
        match state {
            GpuState::Hung => {
                let hangs = findings().filter(|finding| finding.rule.is_hang_at_low_power());
                hangs.chain(self.peer_hangs(id)).filter(about_it).map(|finding| finding.severity).max()
            }
            GpuState::Fault => findings().filter(about_it).map(|finding| finding.severity).max(),
            _ => None,
        }
    }

    /// Why a GPU is unused and not free; `None` in another state.
    pub fn unused_reason(&self, host: &Host, position: usize) -> Option<UnusedReason> {
        self.tracker.unused_reason(host, position)
    }

    /// The suspicions about jobs on a host, also of those that are listed under another host of their job; see
    /// [`Finding::is_suspicion`].
    pub fn suspicions(&self, id: HostId) -> impl Iterator<Item = &Finding> {
        let findings = self.host(id).into_iter().flat_map(|host| host.conditions.findings());
        findings.map(|(_, finding)| finding).chain(self.peer_hangs(id)).filter(|finding| finding.is_suspicion())
    }

    /// The findings about a hang at low power that are listed under another host and concern GPUs of this one.
    fn peer_hangs(&self, id: HostId) -> impl Iterator<Item = &Finding> {
        let has_part = |group: &&DistributedJob| group.parts.iter().any(|(host, _)| *host == id);
        let parts = self.groups.iter().filter(has_part).flat_map(|group| &group.parts);
        // Several jobs may run on the same hosts.
        let peers: BTreeSet<HostId> = parts.map(|(host, _)| *host).filter(|host| *host != id).collect();
        let hosts = peers.into_iter().filter_map(|peer| self.host(peer));
        hosts
            .flat_map(|host| host.conditions.findings())
            .map(|(_, finding)| finding)
            .filter(move |finding| finding.rule.is_hang_at_low_power() && finding.gpus.iter().any(|gpu| gpu.host == id))
    }

    /// The GPUs of a host that hang according to a finding under another host of their job, as in [`finding_states`]. The
    /// other host may be out of reach: a GPU that works again does not hang.
    fn states_from_peers(&self, diagnosis: &HostDiagnosis, host: &Host) -> Vec<(usize, GpuState, Moment)> {
        let firing =
            self.peer_hangs(host.id).filter(|finding| finding.phase == FindingPhase::Firing && !finding.moves());
        let states = firing.flat_map(|finding| {
            hosted_gpus(finding, host).map(move |position| (position, GpuState::Hung, finding.since))
        });
        states.filter(|(position, ..)| diagnosis.gpus.get(*position).is_some_and(GpuTrack::is_at_rest)).collect()
    }

    /// The state of a GPU in the last readings of its host, also after the host was lost, by its position in the
    /// inventory.
    pub fn last_state(&self, id: HostId, position: usize) -> Option<(GpuState, Option<Moment>)> {
        self.tracker.last_state(id, position)
    }

    /// The learned context-idle power of a GPU in watts, by its position in the inventory.
    pub fn idle_watts(&self, id: HostId, position: usize) -> Option<f32> {
        self.host(id)?.gpus.get(position)?.learned_watts()
    }

    /// Whether a GPU reads busy and draws less than its spin power: an observation from the first sample on, not a
    /// finding.
    pub fn is_low_power(&self, id: HostId, position: usize) -> bool {
        let gpu = self.host(id).and_then(|host| host.gpus.get(position));
        gpu.is_some_and(|gpu| gpu.is_readable && gpu.is_low_power)
    }

    /// The median power of healthy work of the current job on a GPU in watts, after five minutes of such work.
    pub fn healthy_watts(&self, id: HostId, position: usize) -> Option<f32> {
        let host = self.host(id)?;
        let gpus = host.jobs.iter().flat_map(|job| &job.gpus);
        let baseline =
            gpus.into_iter().find(|gpu| gpu.position == position && gpu.is_exclusive).map(|gpu| &gpu.baseline)?;
        if baseline.power_seconds() >= self.thresholds.stuck_spin.history { baseline.median_power() } else { None }
    }

    /// Whether healthy work of the process's job on a GPU was seen for a minute, by this run or an earlier one: the job is
    /// past its start.
    pub fn was_at_work(&self, id: HostId, process: &ProcessKey) -> bool {
        let job = self.host(id).and_then(|host| host.job_of(process));
        job.is_some_and(|job| job.gpus.iter().any(|gpu| gpu.baseline.power_seconds() >= 60.0))
    }

    /// Whether the process's job serves models.
    pub fn serves_models(&self, id: HostId, process: &ProcessKey) -> bool {
        self.host(id).and_then(|host| host.job_of(process)).is_some_and(|job| job.is_model_server)
    }

    /// The approximate size of the state of one host in bytes, without the fleet's data.
    pub fn memory_bytes(&self, id: HostId) -> usize {
        let Some(host) = self.host(id) else { return 0 };
        let gpus = host.gpus.iter().map(|gpu| gpu.memory_bytes() + std::mem::size_of::<GpuTrack>()).sum::<usize>();
        let jobs = host.jobs.iter().map(JobTrack::track_memory_bytes).sum::<usize>();
        gpus + jobs + host.processes.capacity() * std::mem::size_of::<ProcessTrack>() + host.conditions.memory_bytes()
    }

    /// The state to save at `now`. `fleet` provides the names of the hosts.
    pub fn to_saved_state(&self, fleet: &Fleet, now: Moment) -> SavedState {
        let unix = now.unix.as_secs_f64();
        let t = now.since_start().as_secs_f64();
        let wall = |at: f64| unix - (t - at);
        let mut saved =
            SavedState { version: SAVED_STATE_VERSION, saved_unix_seconds: unix, ..(*self.saved_state).clone() };
        let seen = || {
            fleet.hosts().iter().filter_map(|host| {
                let known = self.host(host.id)?;
                (known.host_track.samples > 0).then_some((host, known))
            })
        };
        // Entries of hosts that were not observed in this run stay unchanged.
        saved.seen_hosts = seen().map(|(host, _)| host.name().clone()).collect();
        saved.processes.retain(|process| !saved.seen_hosts.contains(&process.host));
        for (host, known) in seen() {
            for gpu in &known.gpus {
                if let (Some(watts), true) = (gpu.idle_watts, saved.idle_watts.len() < MAX_ENTRIES) {
                    saved.idle_watts.insert(gpu.identity.clone(), watts);
                }
            }
            saved.processes.extend(known.saved_processes(host, unix, t));
            saved.ended.extend(known.host_track.job_ends.ended.iter().map(|ended| SavedJobEnd {
                host: host.name().clone(),
                label: SafeText::new(&ended.label),
                is_mine: ended.is_mine,
                seen_unix_seconds: wall(ended.last_seen),
                missed_unix_seconds: wall(ended.missed_at),
            }));
        }
        let of_hosts = self.hosts.iter().flat_map(|known| [&known.conditions, &known.link_conditions]);
        let notified = of_hosts.chain([&self.fleet_wide.conditions]).flat_map(Conditions::notified);
        let notified = notified.map(|(id, severity, cleared)| (id, severity, cleared.map(wall)));
        // A fingerprint begins with the rule and the host.
        let first_sample = seen().filter_map(|(_, known)| known.host_track.first_at).reduce(f64::min);
        let observed_since = |id: &SafeText| {
            let host = id.split('/').nth(1)?;
            if host == FLEET {
                return first_sample.map(wall);
            }
            let (_, known) = seen().find(|(seen, _)| seen.name().as_str() == host)?;
            known.host_track.first_at.map(wall)
        };
        saved.notified = self.notification_state.retain_notified(notified, observed_since, unix);
        let present: HashSet<&SafeText> = self.findings().map(|finding| &finding.id).collect();
        (saved.snoozed, saved.changed_snoozes) =
            self.notification_state.retain_snoozes(|id| present.contains(id), unix);
        saved.ended_reported_unix_seconds = self.job_ends_reported_unix;
        saved.bound();
        saved
    }

    /// Restores the state that an earlier run saved. To be called before the first evaluation.
    pub fn restore(&mut self, mut saved: SavedState, _now: Moment) {
        let (notified, snoozes) = (std::mem::take(&mut saved.notified), std::mem::take(&mut saved.snoozed));
        self.notification_state = Arc::new(NotificationState::restored(notified, snoozes));
        self.job_ends_reported_unix = saved.ended_reported_unix_seconds;
        self.saved_state = Arc::new(saved);
    }

    /// When the state of the earlier run was saved, as time since 1970; `None` without one.
    pub fn last_run_at(&self) -> Option<Duration> {
        let saved = self.saved_state.saved_unix_seconds;
        if saved > 0.0 { Duration::try_from_secs_f64(saved).ok() } else { None }
    }

    /// The ended jobs that were not reported to the user yet, newest first.
    pub fn unreported_job_ends(&self, fleet: &Fleet, now: Moment) -> Vec<SavedJobEnd> {
        let mut ended = self.to_saved_state(fleet, now).ended;
        ended.retain(|end| end.missed_unix_seconds > self.job_ends_reported_unix);
        ended
    }

    /// Marks all jobs that have ended so far as reported to the user.
    pub fn mark_job_ends_reported(&mut self, now: Moment) {
        self.job_ends_reported_unix = now.unix.as_secs_f64();
    }

    /// Whether an earlier run notified the finding and it had not cleared by the end of that run.
    pub fn was_active_before(&self, id: &SafeText) -> bool {
        self.notification_state.was_active_before(id)
    }

    fn thresholds_of(&self, host: &Host) -> Arc<Thresholds> {
        host.config.thresholds.clone().unwrap_or_else(|| Arc::clone(&self.thresholds))
    }

    fn host(&self, id: HostId) -> Option<&HostDiagnosis> {
        self.hosts.get(id.0 as usize)
    }

    /// Makes room for the host.
    fn reserve(&mut self, id: HostId) {
        let index = id.0 as usize;
        if self.hosts.len() <= index {
            self.hosts.resize_with(index + 1, HostDiagnosis::default);
        }
    }
}

/// GPU states that follow from the findings of this host: position, state and since when. GPUs hang while a stuck-*
/// finding fires. They are idle by idle-hog, which may know a longer time than was observed.
fn finding_states(diagnosis: &HostDiagnosis, host: &Host) -> Vec<(usize, GpuState, Moment)> {
    let mut finding_states = Vec::new();
    for (_, finding) in diagnosis.conditions.findings() {
        let state = match (finding.rule, finding.phase) {
            (rule, FindingPhase::Firing) if rule.is_hang_at_low_power() && !finding.moves() => GpuState::Hung,
            (RuleId::IdleHog, FindingPhase::Pending | FindingPhase::Firing) => GpuState::Idle,
            _ => continue,
        };
        finding_states.extend(hosted_gpus(finding, host).map(|position| (position, state, finding.since)));
    }
    finding_states
}

/// The positions of the GPUs of a finding that are on this host. The inventory may have changed since the details were
/// written.
fn hosted_gpus(finding: &Finding, host: &Host) -> impl Iterator<Item = usize> {
    let gpus = finding.gpus.iter().filter(|gpu| gpu.host == host.id);
    gpus.filter_map(|gpu| host.gpus().position(|(info, _)| info.uuid == gpu.uuid))
}

/// Holds the conditions of jobs and GPUs with missing readings.
fn hold_unreadable(context: &RuleContext, conditions: &mut Conditions) {
    let is_unreadable =
        |identity: &SafeText| context.gpus.iter().any(|gpu| gpu.identity == *identity && !gpu.is_readable);
    conditions.unknown_where(|rule, target| match target {
        FindingTarget::Job(key) => context.jobs.iter().any(|job| job.key == *key && !job.is_readable),
        FindingTarget::Gpu(identity) => rule != RuleId::GpuLost && is_unreadable(identity),
        FindingTarget::Host | FindingTarget::Mount(_) | FindingTarget::Xid(..) | FindingTarget::Named(_) => false,
    });
}

/// Keeps the baselines of jobs as they are while a finding that compares with them is pending or firing. A job that was less busy
/// than `earlier` percent cannot have been slowed down.
fn freeze_baselines(conditions: &Conditions, diagnosis: &mut HostDiagnosis, earlier: f32) {
    for job in &mut diagnosis.jobs {
        job.comparison = Comparison::None;
    }
    for (rule, target, _) in conditions.active() {
        let comparison = match (rule, &target) {
            (RuleId::GpuShared | RuleId::HostOverloaded, _) => Comparison::Slowed,
            (_, FindingTarget::Job(_)) if rule.compares_a_job_with_its_past() => Comparison::Job,
            _ => continue,
        };
        for job in &mut diagnosis.jobs {
            let is_about = match &target {
                FindingTarget::Job(key) => job.key == *key,
                FindingTarget::Gpu(identity) => job.gpus.iter().any(|gpu| gpu.identity == *identity),
                FindingTarget::Host => true,
                FindingTarget::Mount(_) | FindingTarget::Xid(..) | FindingTarget::Named(_) => false,
            };
            let is_compared = rule != RuleId::InputStall || job.earlier_utilization() >= Some(earlier);
            if is_about && is_compared {
                job.comparison = job.comparison.max(comparison);
            }
        }
    }
}

/// Whether the target of a condition still exists.
fn exists(context: &RuleContext, target: &FindingTarget) -> bool {
    match target {
        FindingTarget::Job(key) => {
            context.jobs.iter().any(|job| job.key == *key) || context.reruns.iter().any(|rerun| rerun.info.job == *key)
        }
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
