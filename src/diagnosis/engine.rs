//! The engine: what is remembered of every host, and the order in which a sample is judged.

use super::across::Elsewhere;
use super::attention::Attention;
use super::grade::{Beat, Target};
use super::inhibit;
use super::memory::Memory;
use super::rules;
use super::rules::fleet_wide::Outage;
use super::track::{GpuTrack, HostTrack, JobTrack, ProcessTrack};
use super::view::View;
use super::watches::Watches;
use super::{Finding, News, NotJudged, Phase, RuleId, StateTracker, Transition};
use crate::fleet::{Fleet, GpuState, Host, HostId, JobAcross, Moment, jobs_across};
use crate::hosts::Thresholds;
use crate::wire::SafeText;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// A tick this much later than the one before it means that this machine slept.
const SLEPT: Duration = Duration::from_secs(30);

/// After a gap this long, in seconds, what was beginning begins anew: no window would have enough of its samples.
const LONG_GAP: f64 = 900.0;

/// What findings about the fleet as a whole are shown under.
pub(super) const FLEET: &str = "fleet";

/// Judges the fleet: takes every update of a host ([`Engine::step`]) and every second ([`Engine::tick`]), and says what
/// changed. It has no clock and does no IO; what it wants kept is a [`Memory`].
#[derive(Debug, Clone, Default)]
pub struct Engine {
    thresholds: Arc<Thresholds>,
    hosts: Vec<HostMemory>,
    tracker: StateTracker,
    /// Jobs that run on several hosts.
    groups: Vec<JobAcross>,
    /// A host's jobs changed since they were sorted.
    are_groups_old: bool,
    /// Findings about the fleet as a whole.
    pub(super) watches: Watches,
    /// What an earlier run has kept, less what is in `attention`.
    pub(super) recalled: Arc<Memory>,
    /// Who was told of what, and what shall be silent.
    pub(super) attention: Arc<Attention>,
    /// Somebody was told of the jobs that ended before, in seconds since 1970.
    pub(super) ended_told_unix: f64,
    ticked: Option<Moment>,
    /// When the whole fleet was last judged, and when its drivers are to be compared next.
    pub(super) fleet_ticked: Option<f64>,
    pub(super) skew_due: Option<f64>,
    pub(super) outages: Vec<Outage>,
    /// This machine woke up then: what was missed meanwhile is nobody's fault.
    pub(super) woke: Option<f64>,
}

/// What is remembered of one host.
#[derive(Debug, Clone, Default)]
pub(super) struct HostMemory {
    pub(super) gpus: Vec<GpuTrack>,
    pub(super) absent: Vec<GpuTrack>,
    pub(super) processes: Vec<ProcessTrack>,
    pub(super) jobs: Vec<JobTrack>,
    pub(super) track: HostTrack,
    pub(super) watches: Watches,
    /// Whether it can be reached: apart, since it is judged when nothing else can be.
    pub(super) link_watches: Watches,
    /// Learned by an earlier run of the program.
    pub(super) recalled_watts: HashMap<SafeText, f32>,
    /// The sample that was judged last.
    judged: Option<(Moment, u64)>,
    interval: f64,
    /// Since when it has had no link.
    pub(super) lost_at: Option<f64>,
}

impl HostMemory {
    /// Whether its last sample is not older than three intervals.
    pub(super) fn is_recent(&self, t: f64) -> bool {
        self.track.sampled_at.is_some_and(|at| t - at <= 3.0 * self.interval.max(1.0))
    }

    /// Seconds between its samples.
    pub(super) fn interval(&self) -> f64 {
        self.interval
    }

    /// The time of a sample that was not judged yet.
    fn new_sample(&mut self, host: &Host) -> Option<Beat> {
        let sample = (host.received_at?, host.snapshot.as_ref()?.sequence);
        if self.judged == Some(sample) {
            return None;
        }
        self.judged = Some(sample);
        self.interval = host.interval().as_secs_f64().max(0.25);
        let t = sample.0.since_start().as_secs_f64();
        let since = self.track.sampled_at.map_or(self.interval, |at| t - at);
        Some(Beat::new(sample.0, since.clamp(0.0, 3.0 * self.interval.max(1.0))))
    }
}

impl Engine {
    /// An engine with these thresholds, for hosts whose configuration has none of its own.
    pub fn new(thresholds: Arc<Thresholds>) -> Self {
        Self { thresholds, ..Self::default() }
    }

    /// Takes in a host after an update of it.
    pub fn step(&mut self, fleet: &Fleet, id: HostId, now: Moment) -> Vec<Transition> {
        let mut transitions = Vec::new();
        let Some(host) = fleet.host(id) else { return transitions };
        self.reserve(id);
        let place = id.0 as usize;
        let limits = self.thresholds_of(host);
        let mut memory = std::mem::take(&mut self.hosts[place]);
        if let Some(beat) = memory.new_sample(host) {
            let is_first = memory.track.samples == 0;
            let gap = memory.track.sampled_at.map_or(0.0, |at| beat.t - at);
            if gap > LONG_GAP {
                memory.begin_anew();
            }
            if is_first {
                memory.recall(host, &self.recalled, &limits, beat);
            }
            self.are_groups_old |= memory.observe(host, &limits, beat);
            memory.recall_work(host, &self.recalled, beat, is_first);
            memory.recall_idle(host, &self.recalled, beat, is_first);
            memory.bridge_idle(gap);
            self.judge(&mut memory, fleet, host, &limits, (beat, is_first), &mut transitions);
        }
        let verdicts = verdicts(&memory, host);
        self.tracker.observe_with(host, &verdicts, &limits, now);
        self.hosts[place] = memory;
        self.end_snoozes(&transitions);
        transitions
    }

    fn judge(
        &self,
        memory: &mut HostMemory,
        fleet: &Fleet,
        host: &Host,
        limits: &Thresholds,
        (beat, is_first): (Beat, bool),
        transitions: &mut Vec<Transition>,
    ) {
        let mut watches = std::mem::take(&mut memory.watches);
        let view = View {
            host,
            beat,
            limits,
            gpus: &memory.gpus,
            processes: &memory.processes,
            jobs: &memory.jobs,
            track: &memory.track,
            elsewhere: Elsewhere { fleet, groups: &self.groups, hosts: &self.hosts },
        };
        watches.begin(host, beat, is_first, limits.off);
        hold_what_cannot_be_read(&view, &mut watches);
        rules::evaluate(&view, &mut watches);
        watches.finish(|target| exists(&view, target));
        // What is told here already goes on being told here.
        let shown: Vec<Target> = watches.shown(RuleId::NfsHang).cloned().collect();
        inhibit::silence(&view, &mut watches, |rule, target| match target {
            Target::Mount(mount) if rule == RuleId::NfsHang && !shown.contains(target) => {
                rules::host::is_told_elsewhere(&view, mount)
            }
            _ => Self::is_told_by_another(host.id, rule, target, &view),
        });
        watches.heed(&self.attention);
        watches.settle(transitions);
        memory.watches = watches;
    }

    /// Ends the snoozes that last until something changes, where it has.
    fn end_snoozes(&mut self, transitions: &[Transition]) {
        if self.attention.is_empty() {
            return;
        }
        for transition in transitions {
            let severity = match transition.to {
                // What another finding explains is only out of sight.
                Phase::Clear if self.all_watches().any(|watches| watches.is_active(&transition.id)) => continue,
                Phase::Clear => None,
                _ => Some(transition.severity),
            };
            Arc::make_mut(&mut self.attention).changed(&transition.id, severity);
        }
    }

    fn all_watches(&self) -> impl Iterator<Item = &Watches> {
        self.hosts.iter().flat_map(|memory| [&memory.watches, &memory.link_watches]).chain([&self.watches])
    }

    /// Lets a finding be silent for a span, or until it changes; `false` where there is no such finding.
    pub fn snooze(&mut self, id: &SafeText, span: Option<Duration>, now: Moment) -> bool {
        let Some(finding) = self.findings().find(|finding| finding.id == *id).cloned() else { return false };
        Arc::make_mut(&mut self.attention).snooze(&finding, span, now);
        self.heed_at(now);
        true
    }

    /// Ends a snooze. Whoever does so knows of the finding: they are not told again.
    pub fn wake(&mut self, id: &SafeText, now: Moment) {
        Arc::make_mut(&mut self.attention).wake(id);
        for memory in &mut self.hosts {
            memory.watches.woken(id);
            memory.link_watches.woken(id);
        }
        self.watches.woken(id);
        self.heed_at(now);
    }

    fn heed_at(&mut self, now: Moment) {
        for memory in &mut self.hosts {
            memory.watches.heed_at(&self.attention, now);
            memory.link_watches.heed_at(&self.attention, now);
        }
        self.watches.heed_at(&self.attention, now);
    }

    /// Each second: what no sample tells. Hosts that are silent, jobs across hosts, drivers that differ.
    pub fn tick(&mut self, fleet: &Fleet, now: Moment) -> Vec<Transition> {
        let mut transitions = Vec::new();
        let t = now.since_start().as_secs_f64();
        if let Some(before) = self.ticked
            && (now.since(before) > SLEPT || now.unix.saturating_sub(before.unix) > SLEPT + now.since(before))
        {
            self.woke = Some(t);
        }
        self.ticked = Some(now);
        for host in fleet.hosts() {
            self.reserve(host.id);
            self.tracker.tick(host, now);
        }
        if std::mem::take(&mut self.are_groups_old) {
            self.sort_groups(fleet);
        }
        rules::fleet_wide::evaluate(self, fleet, now, &mut transitions);
        self.end_snoozes(&transitions);
        transitions
    }

    fn sort_groups(&mut self, fleet: &Fleet) {
        self.groups = jobs_across(fleet);
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
    fn is_told_by_another(id: HostId, rule: RuleId, target: &Target, view: &View) -> bool {
        let Target::Job(key) = target else { return false };
        let Some(job) = view.jobs.iter().find(|job| job.key == *key) else { return false };
        view.elsewhere.parts(job, id).any(|part| {
            part.host < id && part.memory.watches.phase(rule, &Target::Job(part.job.key.clone())) != Phase::Clear
        })
    }

    /// What there is to say now: firing, resolving and pending findings, in the order of the screen: by severity,
    /// confidence, GPUs held, and age. Snoozed ones stand below, pending ones last.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        let of_hosts = self.hosts.iter().flat_map(|host| host.watches.findings().chain(host.link_watches.findings()));
        let mut all: Vec<&Finding> = of_hosts.chain(self.watches.findings()).map(|(_, finding)| finding).collect();
        all.sort_by(|a, b| {
            let rank = |finding: &Finding| {
                (
                    finding.phase == Phase::Pending,
                    finding.snoozed.is_some(),
                    std::cmp::Reverse((finding.severity, finding.confidence, finding.gpus.len())),
                )
            };
            rank(a).cmp(&rank(b)).then(a.since.unix.cmp(&b.since.unix)).then(a.id.cmp(&b.id))
        });
        all.into_iter()
    }

    /// Of these changes, those that somebody should be told of, each with its finding.
    pub fn news(&self, transitions: &[Transition]) -> Vec<News> {
        let to_tell = transitions.iter().filter(|transition| transition.notify);
        let find = |transition: &Transition| {
            let finding = self.findings().find(|finding| finding.id == transition.id)?;
            Some(News { transition: transition.clone(), finding: finding.clone() })
        };
        to_tell.filter_map(find).collect()
    }

    /// What could not be judged, and why.
    pub fn not_judged(&self) -> Vec<NotJudged> {
        super::not_judged::list(&self.hosts, self.ticked)
    }

    /// The rules that watch for longer than some host of the fleet has been looked at, each with the time it watches
    /// for before it fires; the shortest first.
    pub fn rules_with_too_little_history(&self, fleet: &Fleet) -> Vec<(RuleId, Duration)> {
        super::not_judged::unripe(&self.hosts, self.ticked, |index| {
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
        let past = gpus.into_iter().find(|gpu| gpu.position == position && gpu.is_alone).map(|gpu| &gpu.past)?;
        if past.power_seconds() >= self.thresholds.stuck_spin.history { past.median_power() } else { None }
    }

    /// Bytes that it takes for one host beyond what the fleet keeps, about.
    pub fn memory_bytes(&self, id: HostId) -> usize {
        let Some(host) = self.hosts.get(id.0 as usize) else { return 0 };
        let gpus = host.gpus.iter().map(|gpu| gpu.memory_bytes() + std::mem::size_of::<GpuTrack>()).sum::<usize>();
        let jobs = host.jobs.iter().map(JobTrack::memory_bytes_of_tracks).sum::<usize>();
        gpus + jobs + host.processes.capacity() * std::mem::size_of::<ProcessTrack>() + host.watches.memory_bytes()
    }

    pub(super) fn thresholds_of(&self, host: &Host) -> Arc<Thresholds> {
        host.config.thresholds.clone().unwrap_or_else(|| Arc::clone(&self.thresholds))
    }

    pub(super) fn hosts(&self) -> &[HostMemory] {
        &self.hosts
    }

    pub(super) fn host_mut(&mut self, id: HostId) -> Option<&mut HostMemory> {
        self.hosts.get_mut(id.0 as usize)
    }

    pub(super) fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    fn reserve(&mut self, id: HostId) {
        let place = id.0 as usize;
        if self.hosts.len() <= place {
            self.hosts.resize_with(place + 1, HostMemory::default);
        }
    }
}

/// What findings say of the GPUs of this host, by position: that they hang while a stuck-* finding fires, and that they
/// are idle, which idle-hog may know for a longer time than they were watched.
fn verdicts(memory: &HostMemory, host: &Host) -> Vec<(usize, GpuState, Moment)> {
    const STUCK: [RuleId; 3] = [RuleId::StuckSpin, RuleId::StuckSpinSuspect, RuleId::MissingRank];
    let mut verdicts = Vec::new();
    for (_, finding) in memory.watches.findings() {
        let state = match (finding.rule, finding.phase) {
            (rule, Phase::Firing) if STUCK.contains(&rule) => GpuState::Hung,
            (RuleId::IdleHog, Phase::Pending | Phase::Firing) => GpuState::Idle,
            _ => continue,
        };
        let gpus = finding.gpus.iter().filter(|gpu| gpu.host == host.id);
        // The inventory may have changed since the finding was worded.
        let position = |uuid: &Option<SafeText>| host.gpus().position(|(info, _)| info.uuid == *uuid);
        verdicts.extend(gpus.filter_map(|gpu| Some((position(&gpu.uuid)?, state, finding.since))));
    }
    verdicts
}

/// Nothing can be said of jobs and GPUs of which a reading is missing.
fn hold_what_cannot_be_read(view: &View, watches: &mut Watches) {
    let is_unread = |identity: &SafeText| view.gpus.iter().any(|gpu| gpu.identity == *identity && !gpu.is_readable);
    let process_is_held = |pid: u32| view.processes.iter().any(|process| process.key.pid == pid && process.is_held);
    watches.hold_where(|rule, target| match target {
        Target::Job(key) => view.jobs.iter().any(|job| job.key == *key && !job.is_readable),
        Target::Process(key) => process_is_held(key.pid),
        Target::Gpu(identity) => rule != RuleId::GpuLost && is_unread(identity),
        Target::Host | Target::Mount(_) | Target::Xid(..) | Target::Named(_) => false,
    });
}

fn exists(view: &View, target: &Target) -> bool {
    match target {
        Target::Job(key) => view.jobs.iter().any(|job| job.key == *key),
        Target::Process(key) => view.processes.iter().any(|process| process.key == *key),
        Target::Gpu(identity) => view.gpus.iter().any(|gpu| gpu.identity == *identity),
        Target::Mount(name) => view.host.filesystems().iter().any(|filesystem| filesystem.mount_point == *name),
        Target::Host | Target::Xid(..) | Target::Named(_) => true,
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
