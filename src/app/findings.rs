//! The findings of the engine as the screen shows them, with the cursor of their view.

use super::action::Action;
use super::screen::move_index;
use crate::diagnosis::{Engine, Finding, FindingPhase, FindingProcess, NotJudged, RuleId, RuleTopic, Severity};
use crate::fleet::{HostId, Row};
use crate::wire::SafeText;

/// At most this many findings are listed, the worst first; the others are only counted.
const MAX_FINDINGS: usize = 1000;

/// The sections of the view of findings, in the order of the screen: the jobs of people come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingSection {
    /// Alerts about one topic. Suspicions are beside the stuck jobs.
    Alerts(RuleTopic),
    /// Active findings that cause no alert.
    Notes,
    /// Conditions that have not held for long enough.
    Watched,
    /// Findings that the user has snoozed.
    Snoozed,
}

impl FindingSection {
    fn of(finding: &Finding) -> Self {
        match finding.phase {
            _ if finding.is_suspicion() => Self::Alerts(RuleTopic::StuckJob),
            FindingPhase::Pending => Self::Watched,
            _ if finding.snoozed.is_some() => Self::Snoozed,
            _ if finding.is_alerting() => Self::Alerts(finding.rule.info().topic),
            _ => Self::Notes,
        }
    }

    /// Returns the heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Alerts(RuleTopic::StuckJob) => "STUCK JOBS",
            Self::Alerts(RuleTopic::Job) => "JOBS",
            Self::Alerts(RuleTopic::Host) => "HOSTS",
            Self::Alerts(RuleTopic::Hardware) => "HARDWARE",
            Self::Notes => "NOTES",
            Self::Watched => "WATCHED",
            Self::Snoozed => "SNOOZED",
        }
    }
}

/// A line of the view of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindingLine {
    /// The heading of a section.
    Heading(FindingSection),
    /// The finding at this index.
    Finding(usize),
}

/// The findings of the whole fleet, in the order of the screen.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    list: Vec<Finding>,
    /// For each host, the indexes in `list` of the findings about it, its jobs or its processes: a frame looks up the findings
    /// of every row.
    by_host: Vec<Vec<usize>>,
    lines: Vec<FindingLine>,
    not_judged: Vec<NotJudged>,
    counts: FindingCounts,
    /// The id of the selected finding. `None` selects the first one.
    selected: Option<SafeText>,
    index: usize,
    /// The first visible line.
    top: usize,
}

/// The number of findings of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FindingCounts {
    /// Active warnings and critical findings.
    pub firing: u32,
    /// Those about the user's own processes.
    pub mine: u32,
    /// The highest severity among them.
    pub worst: Option<Severity>,
    /// Active findings that cause no alert: notes, and conditions that held at the first sample.
    pub notes: u32,
    /// Active findings that are snoozed.
    pub snoozed: u32,
    /// Conditions that have not held for long enough yet.
    pub pending: u32,
    /// Findings that are not listed.
    pub omitted: u32,
}

fn concerns_row(finding: &Finding, row: &Row) -> bool {
    let is_process = |one: &FindingProcess| one.host == row.key.host && one.key == row.key.process;
    finding.concerns_job(row.key.host, &row.job) || finding.processes.iter().any(is_process)
}

impl Findings {
    /// Copies the findings of the engine. The selection stays with its finding. The screen shows `capacity` lines.
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
        // Within a section, the order of the engine remains: the worst first.
        self.list.sort_by_key(FindingSection::of);
        self.index_by_host();
        self.lines.clear();
        let mut section = None;
        for (index, finding) in self.list.iter().enumerate() {
            let its_section = FindingSection::of(finding);
            if section.replace(its_section) != Some(its_section) {
                self.lines.push(FindingLine::Heading(its_section));
            }
            self.lines.push(FindingLine::Finding(index));
        }
        self.not_judged = engine.not_judged();
        let found = self.selected.as_ref().map_or(Some(0), |id| self.list.iter().position(|one| one.id == *id));
        self.select(found.unwrap_or(self.index), capacity, found.is_none());
    }

    fn index_by_host(&mut self) {
        self.by_host.iter_mut().for_each(Vec::clear);
        for (index, finding) in self.list.iter().enumerate() {
            let own = finding.hosts.iter().map(|(host, _)| host);
            let peers = finding.peer_jobs.iter().map(|(host, _)| host);
            for host in own.chain(peers).chain(finding.processes.iter().map(|process| &process.host)) {
                let place = host.0 as usize;
                if place >= self.by_host.len() {
                    self.by_host.resize_with(place + 1, Vec::new);
                }
                if self.by_host[place].last() != Some(&index) {
                    self.by_host[place].push(index);
                }
            }
        }
    }

    /// Returns the findings about a host, its jobs or its processes, in the order of the screen.
    fn with_host(&self, id: HostId) -> impl Iterator<Item = &Finding> {
        self.by_host.get(id.0 as usize).into_iter().flatten().filter_map(|&index| self.list.get(index))
    }

    /// Selects a finding by id.
    pub(super) fn select_id(&mut self, id: SafeText) {
        self.selected = Some(id);
    }

    /// Selects the finding at this index.
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

    /// Returns the findings by section, the worst of each section first.
    pub fn list(&self) -> &[Finding] {
        &self.list
    }

    /// Returns the findings with the headings of their sections.
    pub fn lines(&self) -> &[FindingLine] {
        &self.lines
    }

    /// Returns the number of findings of each kind.
    pub fn counts(&self) -> FindingCounts {
        self.counts
    }

    /// Returns the rules that could not be evaluated.
    pub fn not_judged(&self) -> &[NotJudged] {
        &self.not_judged
    }

    /// Returns the selected finding.
    pub fn selected(&self) -> Option<&Finding> {
        self.list.get(self.index)
    }

    /// Returns the index of the selected finding.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the index of the first visible line. The screen shows `capacity` lines, among them the selected finding and
    /// the heading above it.
    pub fn top(&self, capacity: usize) -> usize {
        let top = self.top.min(self.lines.len().saturating_sub(capacity));
        let line = self.lines.iter().position(|line| *line == FindingLine::Finding(self.index)).unwrap_or(0);
        let is_heading = |line: usize| matches!(self.lines.get(line), Some(FindingLine::Heading(_)));
        let first = if line > 0 && is_heading(line - 1) && capacity > 1 { line - 1 } else { line };
        if first < top {
            first
        } else if capacity > 0 && line >= top + capacity {
            line + 1 - capacity
        } else {
            top
        }
    }

    /// Returns the active findings about a host, the worst first.
    pub fn of_host(&self, id: HostId) -> impl Iterator<Item = &Finding> {
        self.with_host(id).filter(move |finding| {
            finding.phase != FindingPhase::Pending && finding.hosts.iter().any(|(host, _)| *host == id)
        })
    }

    /// Returns the alerts and suspicions about a host, in the order of the screen.
    pub fn alerts_of_host(&self, id: HostId) -> impl Iterator<Item = &Finding> {
        let about = move |finding: &&Finding| finding.hosts.iter().any(|(host, _)| *host == id);
        self.with_host(id).filter(|finding| finding.is_alerting() || finding.is_suspicion()).filter(about)
    }

    /// Returns the highest severity of the alerts on a host.
    pub fn worst_severity_of_host(&self, id: HostId) -> Option<Severity> {
        self.of_host(id).filter(|finding| finding.is_alerting()).map(|finding| finding.severity).max()
    }

    /// Returns the findings about a row of the list, the worst first, pending ones last.
    pub fn of_row<'a>(&'a self, row: &'a Row) -> impl Iterator<Item = &'a Finding> {
        self.with_host(row.key.host).filter(|finding| concerns_row(finding, row))
    }

    /// Returns text and finding for the STATE column: the worst active finding about the work of the row.
    pub fn state_of_row<'a>(&'a self, row: &'a Row) -> Option<(&'static str, &'a Finding)> {
        let firing = self.of_row(row).filter(|finding| finding.phase != FindingPhase::Pending);
        firing.filter(|finding| finding.severity >= Severity::Warn).find_map(|one| Some((state_label(one.rule)?, one)))
    }

    /// Returns the suspicion that the row is stuck; see [`Finding::is_suspicion`].
    pub fn suspicion_of_row<'a>(&'a self, row: &'a Row) -> Option<&'a Finding> {
        self.with_host(row.key.host).find(|finding| finding.is_suspicion() && concerns_row(finding, row))
    }

    /// Returns whether an active finding says that the row may hang.
    pub(super) fn may_hang(&self, row: &Row) -> bool {
        self.of_row(row).any(|finding| finding.phase != FindingPhase::Pending && finding.rule.is_hang())
    }

    /// Returns the severity of a row whose GPUs hang: that of the worst active finding about the hang.
    pub fn hang_severity_of_row(&self, row: &Row) -> Option<Severity> {
        let is_active = |finding: &&Finding| finding.phase != FindingPhase::Pending && finding.rule.is_hang();
        self.of_row(row).filter(is_active).map(|finding| finding.severity).max()
    }

    /// Returns the severity of the worst active finding about a hang of this user's jobs.
    pub fn hang_severity_of_user(&self, who: &SafeText) -> Option<Severity> {
        let is_theirs = |finding: &&Finding| {
            finding.phase != FindingPhase::Pending && finding.rule.is_hang() && finding.user.as_ref() == Some(who)
        };
        self.list.iter().filter(is_theirs).map(|finding| finding.severity).max()
    }

    /// Returns the rank of a row when the list is sorted by problems; lower ranks come first. Stuck jobs rank before
    /// others: people wait for them. A suspicion ranks as the warning it may become, other pending findings rank last.
    pub(super) fn rank_of_row(&self, row: &Row) -> Option<u8> {
        let rank = |finding: &Finding| {
            let is_stuck = finding.rule.info().topic == RuleTopic::StuckJob;
            match (finding.phase, finding.rank_severity()) {
                _ if finding.is_suspicion() => Some(Row::STUCK_WARNING_RANK),
                (FindingPhase::Pending, _) => finding.rule.is_hang().then_some(WARN_RANK + 3),
                (_, Severity::Crit) => Some(CRIT_RANK + u8::from(!is_stuck)),
                (_, Severity::Warn) if is_stuck => Some(Row::STUCK_WARNING_RANK),
                (_, Severity::Warn) => Some(WARN_RANK + u8::from(finding.severity == Severity::Warn)),
                (_, Severity::Info) => finding.rule.is_hang().then_some(WARN_RANK + 2),
            }
        };
        self.of_row(row).filter(|one| one.snoozed.is_none()).filter_map(rank).min()
    }
}

/// The rank of critical findings about stuck jobs; other critical findings follow, as do the ranks of
/// [`Row::trouble_rank`] with [`Row::STUCK_WARNING_RANK`] among them.
const CRIT_RANK: u8 = 0;
/// The rank of other warnings, after those of [`Row::trouble_rank`].
const WARN_RANK: u8 = 10;

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

/// Returns the text of the STATE column for a rule, or `None` if the rule is not about work or its GPU.
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
        RuleId::RendezvousStuck => "not begun",
        RuleId::ThermalThrottle | RuleId::Temperature => "hot",
        RuleId::PowerBrake | RuleId::ClockStuck => "slow clock",
        RuleId::PcieDegraded => "slow PCIe",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::testing::{NOW, app, at};

    #[test]
    fn stuck_jobs_rank_before_idle_memory_and_before_the_troubles_of_processes() {
        let app = app(1, 8, (120, 40));
        let row = app.rows().first().expect("a row");
        let about = |rule: RuleId, severity: Severity, phase: FindingPhase| {
            let mut finding = Finding::blank(rule, row.key.host, at(NOW));
            finding.hosts = vec![(row.key.host, row.host_name.clone())];
            (finding.job, finding.severity, finding.phase) = (Some(row.job.clone()), severity, phase);
            finding.set_lasted(std::time::Duration::from_secs(60));
            finding
        };
        let rank = |rule: RuleId, severity: Severity, phase: FindingPhase| {
            let mut findings = Findings { list: vec![about(rule, severity, phase)], ..Findings::default() };
            findings.index_by_host();
            findings.rank_of_row(row)
        };
        let firing = |rule: RuleId, severity: Severity| rank(rule, severity, FindingPhase::Firing).expect("a rank");
        let ranks = [
            firing(RuleId::StuckSpin, Severity::Crit),
            firing(RuleId::GpuMemPressure, Severity::Crit),
            firing(RuleId::StuckSpin, Severity::Warn),
            firing(RuleId::IdleHog, Severity::Crit),
            firing(RuleId::IdleHog, Severity::Warn),
            firing(RuleId::StuckSpin, Severity::Info),
        ];
        assert!(ranks.windows(2).all(|pair| pair[0] < pair[1]), "{ranks:?}");
        assert_eq!(firing(RuleId::DstateHang, Severity::Warn), ranks[2]);
        assert_eq!(firing(RuleId::ThermalThrottle, Severity::Warn), ranks[4]);
        assert_eq!(rank(RuleId::StuckSpin, Severity::Warn, FindingPhase::Pending), Some(ranks[2]), "a suspicion");
        assert_eq!(rank(RuleId::IdleHog, Severity::Warn, FindingPhase::Pending), None);
        assert_eq!(Row::STUCK_WARNING_RANK, ranks[2]);
    }
}
