//! The combined list: the rows of all hosts, sorted, grouped and folded.

use super::rows::hold_sort_figures;
use super::{
    BusyRank, DistributedJob, ENDED_ROW_RETENTION, GpuState, GroupKey, GroupSummary, Host, HostId, JobKey, JobRows,
    Moment, ProcessKey, Row, RowKey, UNKNOWN_USER, host_rows,
};
use crate::wire::SafeText;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// The columns that the list can be sorted by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum SortKey {
    /// Most urgent first, then one's own rows, then the most memory; ended rows last.
    #[default]
    Trouble,
    /// Host, in the order of the configuration.
    Host,
    /// The first GPU index, then the number of GPUs.
    Gpu,
    /// Process id.
    Pid,
    /// User.
    User,
    /// GPU memory.
    GpuMemory,
    /// Percentage of the GPU memory.
    GpuMemoryPercent,
    /// SM utilization: the highest, then the lowest.
    Sm,
    /// CPU utilization.
    Cpu,
    /// Resident memory.
    Rss,
    /// Trouble of the process, then the state of its GPUs, the longest first.
    State,
    /// Age.
    Time,
    /// Command line.
    Command,
}

impl SortKey {
    /// The name in the settings file.
    pub fn word(self) -> &'static str {
        match self {
            Self::Trouble => "trouble",
            Self::Host => "host",
            Self::Gpu => "gpu",
            Self::Pid => "pid",
            Self::User => "user",
            Self::GpuMemory => "gpu memory",
            Self::GpuMemoryPercent => "gpu memory share",
            Self::Sm => "sm",
            Self::Cpu => "cpu",
            Self::Rss => "host memory",
            Self::Time => "time",
            Self::State => "state",
            Self::Command => "command",
        }
    }

    /// Every key, in the order of the columns.
    pub const ALL: [Self; 13] = [
        Self::Trouble,
        Self::Host,
        Self::Gpu,
        Self::Pid,
        Self::User,
        Self::GpuMemory,
        Self::GpuMemoryPercent,
        Self::Sm,
        Self::Cpu,
        Self::Rss,
        Self::State,
        Self::Time,
        Self::Command,
    ];

    /// Whether the default order of this column is descending: figures are, names are not.
    pub fn is_largest_first(self) -> bool {
        matches!(self, Self::GpuMemory | Self::GpuMemoryPercent | Self::Sm | Self::Cpu | Self::Rss | Self::Time)
    }
}

/// How the rows of the list are grouped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Group {
    /// One row per job and host, with its processes below it.
    #[default]
    Job,
    /// As [`Group::Job`], with one row above the parts of a distributed job.
    DistributedJob,
    /// One row per process.
    None,
    /// One row per user with the user's jobs below it.
    User,
    /// One row per host with its jobs below it.
    Host,
}

impl Group {
    /// Every grouping, in the order in which the key cycles through them.
    pub const ALL: [Self; 5] = [Self::Job, Self::DistributedJob, Self::None, Self::User, Self::Host];

    /// The name on the screen and in the settings file.
    pub fn word(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::DistributedJob => "job across hosts",
            Self::None => "none",
            Self::User => "user",
            Self::Host => "host",
        }
    }
}

/// The order of the combined list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ListOrder {
    /// The column.
    pub key: SortKey,
    /// Whether figures are sorted from the highest and names from the end; for [`SortKey::Trouble`] and
    /// [`SortKey::State`], whether the least urgent come first. Unknown values come last in both directions, and so do
    /// ended rows in the order of trouble.
    pub is_descending: bool,
    /// The grouping.
    pub group: Group,
}

impl ListOrder {
    /// The default order of a column.
    pub fn default_for(key: SortKey, group: Group) -> Self {
        Self { key, is_descending: key.is_largest_first(), group }
    }
}

/// Whether a row has rows below it, and whether they are visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoldState {
    /// A row without rows below it.
    Leaf,
    /// A job or group whose rows are hidden.
    Folded,
    /// A job or group whose rows follow.
    Open,
    /// A process of an open job.
    Child,
}

/// A row at its place in the list. The list is rebuilt for each frame, so the row itself is shared.
#[derive(Debug, Clone, PartialEq)]
pub struct ListRow {
    /// The row.
    pub row: Arc<Row>,
    /// Whether it has rows below it.
    pub fold_state: FoldState,
    /// The nesting depth: 0 for a top-level row.
    pub depth: u8,
}

impl ListRow {
    fn new(row: &Arc<Row>, fold_state: FoldState, depth: u8) -> Self {
        Self { row: Arc::clone(row), fold_state, depth }
    }
}

impl Deref for ListRow {
    type Target = Row;

    fn deref(&self) -> &Row {
        &self.row
    }
}

/// The rows of all hosts, recomputed only for a host that changed.
#[derive(Debug, Clone, Default)]
pub struct RowCache {
    hosts: Vec<HostRows>,
}

#[derive(Debug, Clone, Default)]
struct HostRows {
    place: u32,
    jobs: Vec<JobRows>,
    is_fresh: bool,
    states: Vec<(GpuState, Option<Moment>)>,
    /// When the first ended row expires.
    expires: Option<Moment>,
}

impl RowCache {
    /// Recomputes the rows of one host, after an update of it.
    pub fn update(&mut self, host: &Host, states: &[(GpuState, Option<Moment>)], now: Moment) {
        let index = host.id.0 as usize;
        if self.hosts.len() <= index {
            self.hosts.resize_with(index + 1, HostRows::default);
        }
        let ended = host.ended().map(|ended| ended.ended_at.plus(ENDED_ROW_RETENTION));
        let mut jobs = host_rows(host, states, now);
        hold_sort_figures(&mut jobs, &self.hosts[index].jobs);
        self.hosts[index] = HostRows {
            place: host.place,
            jobs,
            is_fresh: host.is_fresh(now),
            states: states.to_vec(),
            expires: ended.filter(|end| *end > now).min(),
        };
    }

    /// Recomputes the rows of one host if time changed them: freshness, GPU states or ended rows that expire. Returns
    /// whether it did. Called once a second.
    pub fn tick(&mut self, host: &Host, states: &[(GpuState, Option<Moment>)], now: Moment) -> bool {
        let is_current = self.hosts.get(host.id.0 as usize).is_some_and(|entry| {
            entry.is_fresh == host.is_fresh(now)
                && entry.states == states
                && entry.expires.is_none_or(|end| now.elapsed < end.elapsed)
        });
        if !is_current {
            self.update(host, states, now);
        }
        !is_current
    }

    /// Whether the job or process of this key exists, visible or folded. Rows of users and hosts are built for each
    /// list and are not found.
    pub fn has(&self, key: &RowKey) -> bool {
        self.jobs(key.host).iter().any(|job| {
            let is_job = job.row.key.process == key.process && (key.is_job || key.group.is_some());
            is_job || (!key.is_job && key.group.is_none() && job.process_keys().any(|process| *process == key.process))
        })
    }

    /// The jobs of one host.
    pub fn jobs(&self, host: HostId) -> &[JobRows] {
        self.hosts.get(host.0 as usize).map_or(&[], |entry| &entry.jobs)
    }

    /// Builds the list: sorted and grouped, with the rows below each row in `open`.
    ///
    /// The list contains only rows for which `keep` returns true; a job is kept if its row or one of its processes is.
    /// `rank` gives the urgency of a row besides [`Row::trouble_rank`], lowest first; the more urgent of the two
    /// counts. A hang is as urgent as its finding says, which only `rank` knows. `distributed` are the jobs for
    /// [`Group::DistributedJob`].
    pub fn list(
        &self,
        order: ListOrder,
        open: &HashSet<RowKey>,
        distributed: &[DistributedJob],
        keep: impl Fn(&Row) -> bool,
        rank: impl Fn(&Row) -> Option<u8>,
    ) -> FilteredRows {
        let rank = |row: &Row| row.trouble_rank().into_iter().chain(rank(row)).min();
        let ranked = |row: &Row| if order.key == SortKey::Trouble { rank(row) } else { None };
        let mut hosts: Vec<&HostRows> = self.hosts.iter().collect();
        hosts.sort_by_key(|entry| entry.place);
        let jobs = || hosts.iter().flat_map(|entry| &entry.jobs);
        let mut listed = FilteredRows::default();
        if order.group == Group::None {
            listed.total = jobs().map(JobRows::process_count).sum();
            let processes = jobs().flat_map(|job| job.processes().into_owned());
            let mut rows: Vec<(Option<u8>, Arc<Row>)> =
                processes.filter(|row| keep(row)).map(|row| (ranked(&row), row)).collect();
            rows.sort_by(|a, b| compare((a.0, &a.1), (b.0, &b.1), order));
            listed.matched = rows.len();
            listed.rows =
                rows.into_iter().map(|(_, row)| ListRow { row, fold_state: FoldState::Leaf, depth: 0 }).collect();
            return listed;
        }
        listed.total = jobs().count();
        let is_kept = |job: &&JobRows| keep(&job.row) || job.processes().iter().any(|row| keep(row));
        let mut kept: Vec<(Option<u8>, &JobRows)> = Vec::with_capacity(listed.total);
        kept.extend(jobs().filter(is_kept).map(|job| (ranked(&job.row), job)));
        // Rows are scattered in memory, so the most frequent comparison uses cached keys.
        match order.key {
            SortKey::Trouble => kept.sort_by_cached_key(|(rank, job)| urgency(*rank, &job.row, order.is_descending)),
            _ => kept.sort_by(|a, b| compare((a.0, &a.1.row), (b.0, &b.1.row), order)),
        }
        listed.matched = kept.len();
        listed.rows.reserve(kept.len());
        let builder = ListBuilder { order, open, keep: &keep };
        if order.group == Group::Job {
            for (_, job) in kept {
                builder.add_job(&mut listed.rows, job, 0);
            }
            return listed;
        }
        for (group_row, members) in group_rows(kept, order, distributed) {
            let depth = u8::from(group_row.is_some());
            if let Some(group_row) = group_row {
                let is_open = open.contains(&group_row.key);
                let fold_state = if is_open { FoldState::Open } else { FoldState::Folded };
                listed.rows.push(ListRow { row: Arc::new(group_row), fold_state, depth: 0 });
                if !is_open {
                    continue;
                }
            }
            for job in members {
                builder.add_job(&mut listed.rows, job, depth);
            }
        }
        listed
    }

    /// The rows of [`RowCache::list`] without distributed jobs.
    pub fn rows(
        &self,
        order: ListOrder,
        open: &HashSet<RowKey>,
        keep: impl Fn(&Row) -> bool,
        rank: impl Fn(&Row) -> Option<u8>,
    ) -> Vec<ListRow> {
        self.list(order, open, &[], keep, rank).rows
    }
}

/// The rows of the list, and how many were filtered out.
#[derive(Debug, Clone, Default)]
pub struct FilteredRows {
    /// The rows in display order.
    pub rows: Vec<ListRow>,
    /// Number of jobs that match the filter; without grouping, of processes.
    pub matched: usize,
    /// Number of all jobs; without grouping, of processes.
    pub total: usize,
}

/// Adds jobs and the processes of open jobs to a list.
struct ListBuilder<'a, K> {
    order: ListOrder,
    open: &'a HashSet<RowKey>,
    keep: &'a K,
}

impl<K: Fn(&Row) -> bool> ListBuilder<'_, K> {
    fn add_job(&self, rows: &mut Vec<ListRow>, job: &JobRows, depth: u8) {
        let fold_state = match job.is_expandable() {
            false => FoldState::Leaf,
            true if self.open.contains(&job.row.key) => FoldState::Open,
            true => FoldState::Folded,
        };
        rows.push(ListRow::new(&job.row, fold_state, depth));
        if fold_state != FoldState::Open {
            return;
        }
        let keeps_all = (self.keep)(&job.row);
        let processes = job.processes();
        let mut processes: Vec<&Arc<Row>> = processes.iter().filter(|row| keeps_all || (self.keep)(row)).collect();
        processes.sort_by(|a, b| compare((a.trouble_rank(), a), (b.trouble_rank(), b), self.order));
        rows.extend(processes.into_iter().map(|row| ListRow::new(row, FoldState::Child, depth + 1)));
    }
}

/// Compares two rows with their urgency. Equal rows keep their order: hosts as configured, processes by pid.
fn compare((a_rank, a): (Option<u8>, &Row), (b_rank, b): (Option<u8>, &Row), order: ListOrder) -> Ordering {
    let down = order.is_descending;
    let (one, other) = (&a.sort_figures, &b.sort_figures);
    match order.key {
        SortKey::Trouble => urgency(a_rank, a, down).cmp(&urgency(b_rank, b, down)),
        SortKey::Host => with_direction(a.host_place.cmp(&b.host_place), down),
        SortKey::Gpu => known_first(gpu_order(a), gpu_order(b), down, Ord::cmp),
        SortKey::Pid => known_first(a.pid, b.pid, down, Ord::cmp),
        SortKey::User => known_first(user_order(a), user_order(b), down, Ord::cmp),
        SortKey::GpuMemory => known_first(one.gpu_memory_bytes, other.gpu_memory_bytes, down, Ord::cmp),
        SortKey::GpuMemoryPercent => {
            known_first(one.gpu_memory_percent, other.gpu_memory_percent, down, f32::total_cmp)
        }
        SortKey::Sm => {
            known_first(one.sm_percent.map(highest_first), other.sm_percent.map(highest_first), down, Ord::cmp)
        }
        SortKey::Cpu => known_first(one.cpu_percent, other.cpu_percent, down, f32::total_cmp),
        SortKey::Rss => known_first(one.rss_bytes, other.rss_bytes, down, Ord::cmp),
        SortKey::State => known_first(state_order(a), state_order(b), down, Ord::cmp),
        SortKey::Time => known_first(a.age_seconds, b.age_seconds, down, f64::total_cmp),
        SortKey::Command => with_direction(a.command.cmp(&b.command), down),
    }
}

/// The sort key of [`SortKey::Trouble`]: live rows first, then by urgency, one's own rows, and the most memory. The
/// descending order reverses all but the first; unknown values come last in both.
fn urgency(rank: Option<u8>, row: &Row, down: bool) -> impl Ord + use<> {
    let rank = rank.map_or(u16::MAX, |rank| u16::from(if down { u8::MAX - rank } else { rank }));
    let memory = row.sort_figures.gpu_memory_bytes.map(|bytes| if down { bytes } else { u64::MAX - bytes });
    // In this order of precedence, as one number, which is compared faster than a tuple.
    let class = u32::from(row.ended_at.is_some()) << 18
        | u32::from(rank) << 2
        | u32::from(row.is_mine == down) << 1
        | u32::from(memory.is_none());
    (class, memory)
}

fn with_direction(ordering: Ordering, is_descending: bool) -> Ordering {
    if is_descending { ordering.reverse() } else { ordering }
}

/// Compares known values; unknown values come last in both directions.
fn known_first<T>(a: Option<T>, b: Option<T>, is_descending: bool, compare: impl Fn(&T, &T) -> Ordering) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => with_direction(compare(&a, &b), is_descending),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

fn gpu_order(row: &Row) -> Option<(u32, usize)> {
    row.gpu_indexes.first().map(|first| (*first, row.gpu_indexes.len()))
}

fn user_order(row: &Row) -> Option<&str> {
    (row.who != UNKNOWN_USER).then_some(row.who.as_str())
}

fn highest_first((least, most): (u8, u8)) -> (u8, u8) {
    (most, least)
}

/// Worst first, then the longest: the urgency, the state of the GPUs, and its start.
fn state_order(row: &Row) -> Option<(u8, Option<GpuState>, Duration)> {
    let rank = row.trouble_rank();
    let since = row.state.and_then(|(_, since)| since).map_or(Duration::MAX, Moment::since_start);
    (rank.is_some() || row.state.is_some()).then(|| (rank.unwrap_or(u8::MAX), row.state.map(|(state, _)| state), since))
}

/// A job with its urgency.
type RankedJob<'a> = (Option<u8>, &'a JobRows);

/// Groups sorted jobs. Returns the groups in list order, each with its group row if it has one.
fn group_rows<'a>(
    jobs: Vec<RankedJob<'a>>,
    order: ListOrder,
    distributed: &[DistributedJob],
) -> Vec<(Option<Row>, Vec<&'a JobRows>)> {
    let parts: HashMap<(HostId, &JobKey), usize> = distributed
        .iter()
        .enumerate()
        .flat_map(|(index, job)| job.parts.iter().map(move |(host, key)| ((*host, key), index)))
        .collect();
    let mut group_indexes: HashMap<GroupId, usize> = HashMap::new();
    let mut groups: Vec<(GroupId, Vec<RankedJob<'a>>)> = Vec::new();
    for job in jobs {
        let row = &job.1.row;
        let group = match order.group {
            Group::User => GroupId::User(row.who.clone()),
            Group::Host => GroupId::Host(row.key.host),
            _ => match parts.get(&(row.key.host, &row.job)) {
                Some(index) => GroupId::DistributedJob(*index),
                None => GroupId::Single(groups.len()),
            },
        };
        let index = *group_indexes.entry(group.clone()).or_insert_with(|| {
            groups.push((group, Vec::new()));
            groups.len() - 1
        });
        groups[index].1.push(job);
    }
    let mut group_rows: Vec<(Option<u8>, Row, bool, Vec<&JobRows>)> = groups
        .into_iter()
        .filter_map(|(group, members)| {
            let rank = members.iter().filter_map(|(rank, _)| *rank).min();
            let jobs: Vec<&JobRows> = members.into_iter().map(|(_, job)| job).collect();
            let is_likely = match &group {
                GroupId::DistributedJob(index) => distributed.get(*index).is_some_and(|job| job.is_likely),
                _ => false,
            };
            // If a filter leaves one part of a distributed job, that part needs no group row.
            let has_group_row = match group {
                GroupId::DistributedJob(_) => jobs.len() > 1,
                GroupId::Single(_) => false,
                GroupId::User(_) | GroupId::Host(_) => true,
            };
            let row = if has_group_row { group_row(&group, &jobs, is_likely)? } else { Row::clone(&jobs.first()?.row) };
            Some((rank, row, has_group_row, jobs))
        })
        .collect();
    group_rows.sort_by(|a, b| compare((a.0, &a.1), (b.0, &b.1), order));
    group_rows.into_iter().map(|(_, row, has_group_row, jobs)| (has_group_row.then_some(row), jobs)).collect()
}

/// The group of a job.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum GroupId {
    DistributedJob(usize),
    Single(usize),
    User(SafeText),
    Host(HostId),
}

/// Builds the group row of these jobs.
fn group_row(group: &GroupId, jobs: &[&JobRows], is_likely: bool) -> Option<Row> {
    // The identity of the row must not depend on the order of the list.
    let first = jobs.iter().map(|job| &*job.row).min_by(|a, b| a.key.cmp(&b.key))?;
    let rows = || jobs.iter().map(|job| &*job.row);
    let kind = match group {
        GroupId::User(who) => GroupKey::User(who.clone()),
        GroupId::Host(_) => GroupKey::Host,
        GroupId::DistributedJob(_) | GroupId::Single(_) => GroupKey::DistributedJob,
    };
    let (host, process, is_job) = match &kind {
        GroupKey::DistributedJob => (first.key.host, first.key.process.clone(), first.key.is_job),
        GroupKey::User(_) => (HostId(0), no_process(), false),
        GroupKey::Host => (first.key.host, no_process(), false),
    };
    let key = RowKey { host, process, is_job, group: Some(kind.clone()) };
    let live = || rows().filter(|row| row.ended_at.is_none());
    let counted: Vec<&Row> = if live().next().is_some() { live().collect() } else { rows().collect() };
    let hosts: HashSet<HostId> = counted.iter().map(|row| row.key.host).collect();
    let gpus: BTreeSet<(HostId, u32)> =
        counted.iter().flat_map(|row| row.gpu_indexes.iter().map(|index| (row.key.host, *index))).collect();
    let users: HashSet<&SafeText> = counted.iter().map(|row| &row.who).collect();
    let processes: Vec<_> = jobs.iter().map(|job| job.processes()).collect();
    let ranks = || processes.iter().flat_map(|rows| rows.iter()).filter(|row| row.ended_at.is_none());
    let least = ranks().filter_map(|row| busy_rank(row, |(least, _)| least)).min_by_key(|rank| rank.sm_percent);
    let most = ranks().filter_map(|row| busy_rank(row, |(_, most)| most)).max_by_key(|rank| rank.sm_percent);
    let mut row = Row {
        key,
        gpu_indexes: if hosts.len() == 1 { gpus.iter().map(|(_, index)| *index).collect() } else { Vec::new() },
        // The hosts of a group have GPUs of different sizes, so a share of their memory says nothing.
        gpu_memory_percent: None,
        ended_at: if live().next().is_some() { None } else { rows().filter_map(|row| row.ended_at).max() },
        group_summary: None,
        ..Row::combined(first, &counted)
    };
    if hosts.len() > 1 {
        let others = hosts.len() - 1;
        row.host_name = SafeText::new(&format!("{} +{others}", first.host_name));
    }
    if users.len() > 1 {
        row.who = SafeText::new(&format!("{} users", users.len()));
    }
    if kind != GroupKey::DistributedJob {
        row.pid = None;
        row.process_state = None;
        let plural = if counted.len() == 1 { "" } else { "s" };
        row.command = SafeText::new(&format!("{} job{plural}", counted.len()));
    }
    row.group_summary = Some(Box::new(GroupSummary {
        jobs: counted.len() as u32,
        hosts: hosts.len() as u32,
        gpus: gpus.len() as u32,
        is_likely,
        least_busy: least.filter(|least| Some(least.sm_percent) != most.as_ref().map(|most| most.sm_percent)),
        most_busy: most,
    }));
    Some(row)
}

fn no_process() -> ProcessKey {
    ProcessKey { boot_id: None, pid: 0, start_ticks: None }
}

fn busy_rank(row: &Row, share: impl Fn((u8, u8)) -> u8) -> Option<BusyRank> {
    let sm_percent = share(row.sm_percent?);
    Some(BusyRank { host_name: row.host_name.clone(), gpu_index: row.gpu_indexes.first().copied(), sm_percent })
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
