//! What diagnosis says, as the screen needs it: taken over from the engine before a frame, with the place in its list.

use super::Action;
use super::screen::move_index;
use crate::diagnosis::{Engine, Finding, FindingPhase, NotJudged, RuleId, Severity};
use crate::fleet::{HostId, Row};
use crate::wire::SafeText;

/// More findings than a person reads: in a fleet where everything burns the worst are shown, and the rest is counted.
const MAX_FINDINGS: usize = 1000;

/// The findings of the whole fleet, in the order of the screen.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    list: Vec<Finding>,
    not_judged: Vec<NotJudged>,
    counts: FindingCounts,
    /// The finding that was chosen, by what it is recognised by; `None` until one has been.
    selected: Option<SafeText>,
    index: usize,
    top: usize,
}

/// How many findings there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FindingCounts {
    /// Warnings and worse that fire.
    pub firing: u32,
    /// Those of them about the user's own work.
    pub mine: u32,
    /// The worst of them.
    pub worst: Option<Severity>,
    /// What fires and calls nobody: notes, and what was so at the first look.
    pub notes: u32,
    /// What fires and somebody wants to hear nothing of for now.
    pub snoozed: u32,
    /// Conditions that hold now, not yet for long enough.
    pub pending: u32,
    /// Beyond what is shown.
    pub omitted: u32,
}

impl Findings {
    /// Takes over what the engine says now. The selection stays with its finding.
    pub(super) fn refresh(&mut self, engine: &Engine, capacity: usize) {
        self.counts = FindingCounts::default();
        self.list.clear();
        for finding in engine.findings() {
            self.counts.add(finding);
            if self.list.len() < MAX_FINDINGS {
                self.list.push(finding.clone());
            } else {
                self.counts.omitted += 1;
            }
        }
        self.not_judged = engine.not_judged();
        let found = self.selected.as_ref().map_or(Some(0), |id| self.list.iter().position(|one| one.id == *id));
        self.select(found.unwrap_or(self.index), capacity, found.is_none());
    }

    /// Selects a finding, wherever the order puts it.
    pub(super) fn select_id(&mut self, id: SafeText) {
        self.selected = Some(id);
    }

    /// Selects the finding at a place.
    pub(super) fn select_index(&mut self, index: usize, capacity: usize) {
        self.select(index, capacity, true);
    }

    /// Moves the selection.
    pub(super) fn navigate(&mut self, action: Action, capacity: usize) {
        self.select(move_index(self.index, action, self.list.len(), capacity), capacity, true);
    }

    fn select(&mut self, index: usize, capacity: usize, is_chosen: bool) {
        self.index = index.min(self.list.len().saturating_sub(1));
        if is_chosen {
            self.selected = self.list.get(self.index).map(|finding| finding.id.clone());
        }
        self.top = self.top(capacity);
    }

    /// All findings, the worst first, snoozed ones below, pending ones last.
    pub fn list(&self) -> &[Finding] {
        &self.list
    }

    /// How many there are.
    pub fn is_alerting(&self) -> FindingCounts {
        self.counts
    }

    /// What could not be judged.
    pub fn not_judged(&self) -> &[NotJudged] {
        &self.not_judged
    }

    /// The selected finding.
    pub fn selected(&self) -> Option<&Finding> {
        self.list.get(self.index)
    }

    /// The index of the selected finding.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The index of the first finding on the screen, when there is room for `capacity`.
    pub fn top(&self, capacity: usize) -> usize {
        let top = self.top.min(self.list.len().saturating_sub(capacity));
        if self.index < top {
            self.index
        } else if capacity > 0 && self.index >= top + capacity {
            self.index + 1 - capacity
        } else {
            top
        }
    }

    /// The findings about a host that fire, the worst first.
    pub fn of_host(&self, id: HostId) -> impl Iterator<Item = &Finding> {
        self.list.iter().filter(move |finding| {
            finding.phase != FindingPhase::Pending && finding.hosts.iter().any(|(host, _)| *host == id)
        })
    }

    /// The worst that calls for a person on a host.
    pub fn worst_severity_of_host(&self, id: HostId) -> Option<Severity> {
        self.of_host(id).filter(|finding| finding.is_alerting()).map(|finding| finding.severity).max()
    }

    /// The findings about a row of the list, the worst first, pending ones last.
    pub fn of_row<'a>(&'a self, row: &'a Row) -> impl Iterator<Item = &'a Finding> {
        self.list.iter().filter(|finding| {
            let is_there = finding.hosts.iter().any(|(host, _)| *host == row.key.host);
            let is_process = || finding.processes.iter().any(|process| process.key == row.key.process);
            is_there && (finding.job.as_ref() == Some(&row.job) || is_process())
        })
    }

    /// The finding that the STATE column tells of a row: the worst that fires and is about what the work does.
    pub fn state_of_row<'a>(&'a self, row: &'a Row) -> Option<(&'static str, &'a Finding)> {
        let firing = self.of_row(row).filter(|finding| finding.phase != FindingPhase::Pending);
        firing.filter(|finding| finding.severity >= Severity::Warn).find_map(|one| Some((state_label(one.rule)?, one)))
    }

    /// Whether a rule about work that hangs fires for a row.
    pub(super) fn may_hang(&self, row: &Row) -> bool {
        self.of_row(row).any(|finding| finding.phase != FindingPhase::Pending && is_hang_rule(finding.rule))
    }

    /// How much a row needs a person, for the order of the list: after what its GPUs and its processes say themselves.
    /// What is only suspected so far comes last, before ordinary work.
    pub(super) fn rank_of_row(&self, row: &Row) -> Option<u8> {
        let rank = |finding: &Finding| match (finding.phase, finding.severity) {
            (FindingPhase::Pending, _) => is_hang_rule(finding.rule).then_some(FIRST_RANK + 3),
            (_, Severity::Crit) => Some(FIRST_RANK),
            (_, Severity::Warn) => Some(FIRST_RANK + 1),
            (_, Severity::Info) => is_hang_rule(finding.rule).then_some(FIRST_RANK + 2),
        };
        if self.list.is_empty() {
            None
        } else {
            self.of_row(row).filter(|one| one.snoozed.is_none()).filter_map(rank).min()
        }
    }
}

/// Ranks below this are those of [`crate::fleet`]: hung, faulty, zombie and the like.
const FIRST_RANK: u8 = 10;

impl FindingCounts {
    fn add(&mut self, finding: &Finding) {
        if finding.phase == FindingPhase::Pending {
            self.pending += 1;
        } else if finding.snoozed.is_some() {
            self.snoozed += 1;
        } else if finding.is_alerting() {
            self.firing += 1;
            self.mine += u32::from(finding.is_mine);
            self.worst = self.worst.max(Some(finding.severity));
        } else {
            self.notes += 1;
        }
    }
}

/// Whether a rule is about work that may hang.
pub(super) fn is_hang_rule(rule: RuleId) -> bool {
    matches!(rule, RuleId::StuckSpin | RuleId::StuckSpinSuspect | RuleId::MissingRank | RuleId::JobStalled)
}

/// What the STATE column says of a row for a rule; `None` for rules that are not about one piece of work.
fn state_label(rule: RuleId) -> Option<&'static str> {
    Some(match rule {
        RuleId::StuckSpin | RuleId::StuckSpinSuspect | RuleId::MissingRank => "hung?",
        RuleId::JobStalled => "stalled?",
        RuleId::InputStall => "starved",
        RuleId::DstateHang => "disk wait",
        RuleId::StoppedHoldingGpu => "stopped",
        RuleId::ZombieHoldingGpu => "zombie",
        RuleId::OrphanHoldingGpu => "orphan",
        RuleId::IdleHog => "idle",
        RuleId::LogSilent => "log silent",
        RuleId::GpuMemPressure => "memory full",
        RuleId::GpuMemLeak => "leak",
        _ => return None,
    })
}
