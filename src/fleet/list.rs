//! The combined list: the rows of all hosts, sorted and unfolded.

use super::process::sum;
use super::rows::worst_trouble;
use super::{
    BusyRank, DistributedJob, ENDED_ROW_RETENTION, GpuState, GroupKey, GroupSummary, Host, HostId, JobKey, JobRows,
    Moment, ProcessKey, Row, RowKey, UNKNOWN_USER, host_rows,
};
use crate::wire::SafeText;
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// What the combined list is sorted by: any of its columns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum SortKey {
    /// What needs a person first, then one's own, then the most memory; what has ended comes last.
    #[default]
    Trouble,
    /// Host, in the order of the configuration.
    Host,
    /// The first GPU index, then the number of GPUs.
    Gpu,
    /// Process id.
    Pid,
    /// Who it belongs to.
    User,
    /// GPU memory.
    GpuMemory,
    /// GPU memory as a share.
    GpuMemoryPercent,
    /// SM share: the most, then the least.
    Sm,
    /// CPU share.
    Cpu,
    /// Resident memory.
    Rss,
    /// State: what is wrong with the process, then the state of its GPUs, the longest first.
    State,
    /// Age.
    Time,
    /// Command line.
    Command,
}

impl SortKey {
    /// The word for the file that remembers it.
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

    /// Whether a person who chooses this column wants the largest first: figures do, names do not.
    pub fn is_largest_first(self) -> bool {
        matches!(self, Self::GpuMemory | Self::GpuMemoryPercent | Self::Sm | Self::Cpu | Self::Rss | Self::Time)
    }
}

/// How the combined list is group_rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Group {
    /// One row a job on a host, its processes below it when it is open.
    #[default]
    Job,
    /// The same, and the parts of one job on several hosts below one row.
    DistributedJob,
    /// One row a process.
    None,
    /// The jobs of each user below one row.
    User,
    /// The jobs of each host below one row.
    Host,
}

impl Group {
    /// Every way, in the order in which the key goes through them.
    pub const ALL: [Self; 5] = [Self::Job, Self::DistributedJob, Self::None, Self::User, Self::Host];

    /// The word for people, and for the file that remembers it.
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
    /// Figures from the largest, names from the end; for [`SortKey::Trouble`] and [`SortKey::State`] the least urgent
    /// first. What is not known comes last either way, and in the order of trouble what has ended.
    pub is_descending: bool,
    /// How rows are group_rows.
    pub group: Group,
}

impl ListOrder {
    /// The order in which a person expects this column at first.
    pub fn default_for(key: SortKey, group: Group) -> Self {
        Self { key, is_descending: key.is_largest_first(), group }
    }
}

/// Whether a row has rows below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoldState {
    /// One process, nothing below.
    Leaf,
    /// A job or a group whose rows are folded away.
    Folded,
    /// A job or a group whose rows follow.
    Open,
    /// A process of an open job.
    Child,
}

/// A row as it stands in the list. The list is made for each frame, so what it says is shared, not copied.
#[derive(Debug, Clone, PartialEq)]
pub struct ListRow {
    /// What it says.
    pub row: Arc<Row>,
    /// Whether it has rows below it.
    pub fold_state: FoldState,
    /// How many rows stand above it that it belongs to.
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

/// The rows of all hosts, kept so that only those of a host that changed are computed again.
#[derive(Debug, Clone, Default)]
pub struct RowCache {
    hosts: Vec<HostRows>,
}

#[derive(Debug, Clone, Default)]
struct HostRows {
    jobs: Vec<JobRows>,
    is_fresh: bool,
    states: Vec<(GpuState, Option<Moment>)>,
    /// When the first row goes that has ended.
    expires: Option<Moment>,
}

impl RowCache {
    /// Computes one host's rows anew: after each of its updates.
    pub fn update(&mut self, host: &Host, states: &[(GpuState, Option<Moment>)], now: Moment) {
        let place = host.id.0 as usize;
        if self.hosts.len() <= place {
            self.hosts.resize_with(place + 1, HostRows::default);
        }
        let ended = host.ended().map(|ended| ended.ended_at.plus(ENDED_ROW_RETENTION));
        self.hosts[place] = HostRows {
            jobs: host_rows(host, states, now),
            is_fresh: host.is_fresh(now),
            states: states.to_vec(),
            expires: ended.filter(|end| *end > now).min(),
        };
    }

    /// Computes one host's rows anew if time alone has changed them: freshness, states, rows that have ended.
    /// Returns whether it has. For the one-second tick.
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

    /// Whether there is such a row, folded away or not. Heads are made for a list and are not among them.
    pub fn has(&self, key: &RowKey) -> bool {
        self.jobs(key.host).iter().any(|job| {
            let is_job = job.row.key.process == key.process && (key.is_job || key.group.is_some());
            is_job || (!key.is_job && key.group.is_none() && job.process_keys().any(|process| *process == key.process))
        })
    }

    /// One host's jobs.
    pub fn jobs(&self, host: HostId) -> &[JobRows] {
        self.hosts.get(host.0 as usize).map_or(&[], |entry| &entry.jobs)
    }

    /// The list: sorted, group_rows, what belongs to each row in `open` below it.
    ///
    /// Only rows for which `keep` holds are in it; a job stays while its own row is kept, or with those of its processes
    /// that are. `rank` says how much a row needs a person beyond what it says itself, the least first. `across` are the
    /// jobs on several hosts, for [`Group::DistributedJob`].
    pub fn list(
        &self,
        order: ListOrder,
        open: &HashSet<RowKey>,
        distributed: &[DistributedJob],
        keep: impl Fn(&Row) -> bool,
        rank: impl Fn(&Row) -> Option<u8>,
    ) -> FilteredRows {
        let rank = |row: &Row| row.trouble_rank().or_else(|| rank(row));
        let ranked = |row: &Row| if order.key == SortKey::Trouble { rank(row) } else { None };
        let jobs = || self.hosts.iter().flat_map(|entry| &entry.jobs);
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
        let kept = jobs().filter(|job| keep(&job.row) || job.processes().iter().any(|row| keep(row)));
        let mut kept: Vec<(Option<u8>, &JobRows)> = kept.map(|job| (ranked(&job.row), job)).collect();
        // Rows lie far apart in memory: what is compared most of the time is gathered first.
        match order.key {
            SortKey::Trouble => kept.sort_by_cached_key(|(rank, job)| urgency(*rank, &job.row, order.is_descending)),
            _ => kept.sort_by(|a, b| compare((a.0, &a.1.row), (b.0, &b.1.row), order)),
        }
        listed.matched = kept.len();
        listed.rows.reserve(kept.len());
        let tree = Tree { order, open, keep: &keep };
        if order.group == Group::Job {
            for (_, job) in kept {
                tree.add_job(&mut listed.rows, job, 0);
            }
            return listed;
        }
        for (head, members) in group_rows(kept, order, distributed) {
            let depth = u8::from(head.is_some());
            if let Some(head) = head {
                let is_open = open.contains(&head.key);
                let fold_state = if is_open { FoldState::Open } else { FoldState::Folded };
                listed.rows.push(ListRow { row: Arc::new(head), fold_state, depth: 0 });
                if !is_open {
                    continue;
                }
            }
            for job in members {
                tree.add_job(&mut listed.rows, job, depth);
            }
        }
        listed
    }

    /// [`RowCache::list`] without jobs across hosts, the rows alone.
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

/// The combined list, and how much of all it is.
#[derive(Debug, Clone, Default)]
pub struct FilteredRows {
    /// The rows, in order.
    pub rows: Vec<ListRow>,
    /// Jobs that were kept; processes where there are no groups.
    pub matched: usize,
    /// Jobs, or processes, in all.
    pub total: usize,
}

/// What is below rows that are open.
struct Tree<'a, K> {
    order: ListOrder,
    open: &'a HashSet<RowKey>,
    keep: &'a K,
}

impl<K: Fn(&Row) -> bool> Tree<'_, K> {
    fn add_job(&self, rows: &mut Vec<ListRow>, job: &JobRows, depth: u8) {
        if !job.is_expandable() || !self.open.contains(&job.row.key) {
            rows.push(ListRow::new(
                &job.row,
                if job.is_expandable() { FoldState::Folded } else { FoldState::Leaf },
                depth,
            ));
            return;
        }
        rows.push(ListRow::new(&job.row, FoldState::Open, depth));
        let is_whole = (self.keep)(&job.row);
        let processes = job.processes();
        let mut processes: Vec<&Arc<Row>> = processes.iter().filter(|row| is_whole || (self.keep)(row)).collect();
        processes.sort_by(|a, b| compare((a.trouble_rank(), a), (b.trouble_rank(), b), self.order));
        rows.extend(processes.into_iter().map(|row| ListRow::new(row, FoldState::Child, depth + 1)));
    }
}

/// The order of two rows, each with how much it needs a person. Rows that are equal in it stay as they were: hosts as configured, processes by pid.
fn compare((a_rank, a): (Option<u8>, &Row), (b_rank, b): (Option<u8>, &Row), order: ListOrder) -> Ordering {
    let down = order.is_descending;
    match order.key {
        SortKey::Trouble => urgency(a_rank, a, down).cmp(&urgency(b_rank, b, down)),
        SortKey::Host => with_direction(a.key.host.cmp(&b.key.host), down),
        SortKey::Gpu => known_first(gpus(a), gpus(b), down, Ord::cmp),
        SortKey::Pid => known_first(a.pid, b.pid, down, Ord::cmp),
        SortKey::User => known_first(user(a), user(b), down, Ord::cmp),
        SortKey::GpuMemory => known_first(a.gpu_memory_bytes, b.gpu_memory_bytes, down, Ord::cmp),
        SortKey::GpuMemoryPercent => known_first(a.gpu_memory_percent, b.gpu_memory_percent, down, f32::total_cmp),
        SortKey::Sm => known_first(a.sm_percent.map(swap), b.sm_percent.map(swap), down, Ord::cmp),
        SortKey::Cpu => known_first(a.cpu_percent, b.cpu_percent, down, f32::total_cmp),
        SortKey::Rss => known_first(a.rss_bytes, b.rss_bytes, down, Ord::cmp),
        SortKey::State => known_first(state(a), state(b), down, Ord::cmp),
        SortKey::Time => known_first(a.age_seconds, b.age_seconds, down, f64::total_cmp),
        SortKey::Command => with_direction(a.command.cmp(&b.command), down),
    }
}

/// The place of a row in the order of trouble, the least first: what has not ended, what needs a person, one's own, the
/// most memory. Downwards all but the first are the other way round; what is not known comes last in both.
fn urgency(rank: Option<u8>, row: &Row, down: bool) -> impl Ord + use<> {
    let rank = rank.map_or(u16::MAX, |rank| u16::from(if down { u8::MAX - rank } else { rank }));
    let memory = row.gpu_memory_bytes.map(|bytes| if down { bytes } else { u64::MAX - bytes });
    (row.ended_at.is_some(), rank, row.is_mine == down, memory.is_none(), memory)
}

fn with_direction(ordering: Ordering, is_descending: bool) -> Ordering {
    if is_descending { ordering.reverse() } else { ordering }
}

/// Orders by value; what is not known comes last in both directions.
fn known_first<T>(a: Option<T>, b: Option<T>, is_descending: bool, compare: impl Fn(&T, &T) -> Ordering) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => with_direction(compare(&a, &b), is_descending),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

fn gpus(row: &Row) -> Option<(u32, usize)> {
    row.gpu_indexes.first().map(|first| (*first, row.gpu_indexes.len()))
}

fn user(row: &Row) -> Option<&str> {
    (row.who != UNKNOWN_USER).then_some(row.who.as_str())
}

fn swap((least, most): (u8, u8)) -> (u8, u8) {
    (most, least)
}

/// Worst first, then the longest: what is wrong with the process, the state of its GPUs, since when.
fn state(row: &Row) -> Option<(u8, Option<GpuState>, Duration)> {
    let rank = row.trouble_rank();
    let since = row.state.and_then(|(_, since)| since).map_or(Duration::MAX, Moment::since_start);
    (rank.is_some() || row.state.is_some()).then(|| (rank.unwrap_or(u8::MAX), row.state.map(|(state, _)| state), since))
}

/// A job, and how much it needs a person.
type RankedJob<'a> = (Option<u8>, &'a JobRows);

/// The jobs under their group_rows, in the order of the list; a job without a head stands by itself. `jobs` are sorted.
fn group_rows<'a>(
    jobs: Vec<RankedJob<'a>>,
    order: ListOrder,
    distributed: &[DistributedJob],
) -> Vec<(Option<Row>, Vec<&'a JobRows>)> {
    let parts: HashMap<(HostId, &JobKey), usize> = distributed
        .iter()
        .enumerate()
        .flat_map(|(place, job)| job.parts.iter().map(move |(host, key)| ((*host, key), place)))
        .collect();
    let mut group_indexes: HashMap<GroupId, usize> = HashMap::new();
    let mut groups: Vec<(GroupId, Vec<RankedJob<'a>>)> = Vec::new();
    for job in jobs {
        let row = &job.1.row;
        let place = match order.group {
            Group::User => GroupId::User(row.who.clone()),
            Group::Host => GroupId::Host(row.key.host),
            _ => match parts.get(&(row.key.host, &row.job)) {
                Some(place) => GroupId::DistributedJob(*place),
                None => GroupId::Single(groups.len()),
            },
        };
        let at = *group_indexes.entry(place.clone()).or_insert_with(|| {
            groups.push((place, Vec::new()));
            groups.len() - 1
        });
        groups[at].1.push(job);
    }
    let mut group_rows: Vec<(Option<u8>, Row, bool, Vec<&JobRows>)> = groups
        .into_iter()
        .filter_map(|(place, members)| {
            let rank = members.iter().filter_map(|(rank, _)| *rank).min();
            let jobs: Vec<&JobRows> = members.into_iter().map(|(_, job)| job).collect();
            let is_likely = match &place {
                GroupId::DistributedJob(place) => distributed.get(*place).is_some_and(|job| job.is_likely),
                _ => false,
            };
            // What is left of a job on several hosts when a filter has taken the others away is a job on one.
            let has_group_row = match place {
                GroupId::DistributedJob(_) => jobs.len() > 1,
                GroupId::Single(_) => false,
                GroupId::User(_) | GroupId::Host(_) => true,
            };
            let row = if has_group_row { group_row(&place, &jobs, is_likely)? } else { Row::clone(&jobs.first()?.row) };
            Some((rank, row, has_group_row, jobs))
        })
        .collect();
    group_rows.sort_by(|a, b| compare((a.0, &a.1), (b.0, &b.1), order));
    group_rows.into_iter().map(|(_, row, has_group_row, jobs)| (has_group_row.then_some(row), jobs)).collect()
}

/// What a job is put under.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum GroupId {
    DistributedJob(usize),
    Single(usize),
    User(SafeText),
    Host(HostId),
}

/// The row above these jobs: figures are added, or taken from the worst, or from the oldest.
fn group_row(place: &GroupId, jobs: &[&JobRows], is_likely: bool) -> Option<Row> {
    // The order of the list changes; the identity of the row must not.
    let first = jobs.iter().map(|job| &*job.row).min_by(|a, b| a.key.cmp(&b.key))?;
    let rows = || jobs.iter().map(|job| &*job.row);
    let kind = match place {
        GroupId::User(who) => GroupKey::User(who.clone()),
        GroupId::Host(_) => GroupKey::Host,
        GroupId::DistributedJob(_) | GroupId::Single(_) => GroupKey::DistributedJob,
    };
    let key = match &kind {
        GroupKey::DistributedJob => RowKey { group: Some(kind.clone()), ..first.key.clone() },
        GroupKey::User(_) => {
            RowKey { host: HostId(0), process: no_process(), is_job: false, group: Some(kind.clone()) }
        }
        GroupKey::Host => {
            RowKey { host: first.key.host, process: no_process(), is_job: false, group: Some(kind.clone()) }
        }
    };
    let live = || rows().filter(|row| row.ended_at.is_none());
    let counted: Vec<&Row> = if live().next().is_some() { live().collect() } else { rows().collect() };
    let hosts: HashSet<HostId> = counted.iter().map(|row| row.key.host).collect();
    let gpus: HashSet<(HostId, u32)> =
        counted.iter().flat_map(|row| row.gpu_indexes.iter().map(|index| (row.key.host, *index))).collect();
    let users: HashSet<&SafeText> = counted.iter().map(|row| &row.who).collect();
    let processes: Vec<_> = jobs.iter().map(|job| job.processes()).collect();
    let ranks = || processes.iter().flat_map(|rows| rows.iter()).filter(|row| row.ended_at.is_none());
    let least = ranks().filter_map(|row| busy_rank(row, |(least, _)| least)).min_by_key(|rank| rank.sm_percent);
    let most = ranks().filter_map(|row| busy_rank(row, |(_, most)| most)).max_by_key(|rank| rank.sm_percent);
    let is_one_host = hosts.len() == 1;
    let mut row = Row {
        key,
        gpu_indexes: if is_one_host { indexes(&gpus) } else { Vec::new() },
        gpu_memory_bytes: sum(counted.iter().map(|row| row.gpu_memory_bytes)),
        // Of how many GPUs' memory it would be a share is another number in every group.
        gpu_memory_percent: None,
        sm_percent: counted.iter().filter_map(|row| row.sm_percent).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))),
        cpu_percent: sum(counted.iter().map(|row| row.cpu_percent)),
        rss_bytes: sum(counted.iter().map(|row| row.rss_bytes)),
        age_seconds: counted.iter().filter_map(|row| row.age_seconds).reduce(f64::max),
        state: counted.iter().filter_map(|row| row.state).min(),
        workers: counted.iter().map(|row| row.workers).sum(),
        is_mine: counted.iter().any(|row| row.is_mine),
        is_stale: counted.iter().any(|row| row.is_stale),
        ended_at: if live().next().is_some() { None } else { rows().filter_map(|row| row.ended_at).max() },
        group_summary: None,
        ..first.clone()
    };
    let worst = worst_trouble(counted.iter().copied());
    row.trouble = worst.and_then(|row| row.trouble);
    row.trouble_since = worst.and_then(|row| row.trouble_since);
    if let Some(worst) = worst {
        row.process_state = worst.process_state;
    }
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

fn indexes(gpus: &HashSet<(HostId, u32)>) -> Vec<u32> {
    let mut indexes: Vec<u32> = gpus.iter().map(|(_, index)| *index).collect();
    indexes.sort_unstable();
    indexes
}

fn busy_rank(row: &Row, share: impl Fn((u8, u8)) -> u8) -> Option<BusyRank> {
    let sm_percent = share(row.sm_percent?);
    Some(BusyRank { host_name: row.host_name.clone(), gpu_index: row.gpu_indexes.first().copied(), sm_percent })
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
