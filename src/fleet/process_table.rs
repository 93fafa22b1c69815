//! The processes of one host across snapshots: joined from columns, remembered through gaps, noticed when they end.

use super::{EndedProcess, Moment, Process, ProcessInfo, ProcessKey, sanitize};
use crate::wire::{
    GpuInfo, GpuProcessReading, GpuReading, Presence, ProcessColumns, ProcessFacts, ProcessReading, SafeText, Snapshot,
};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// How long a row stays after its process has ended.
pub const ENDED_ROW_RETENTION: Duration = Duration::from_secs(10 * 60);

/// The most processes remembered as ended, so that a host that starts thousands cannot fill the memory.
const MAX_ENDED: usize = 64;

/// For how many snapshots facts are kept of a process that is not listed: the probe sends them once, and a process may
/// be missing from a list for a moment.
const FACTS_RETAINED_SNAPSHOTS: u16 = 60;

#[derive(Debug, Clone, Default)]
pub(super) struct ProcessTable {
    live: Vec<Process>,
    ended: VecDeque<EndedProcess>,
    known: HashMap<u32, KnownProcess>,
}

/// What rarely changes about a pid.
#[derive(Debug, Clone)]
struct KnownProcess {
    key: ProcessKey,
    presence: Option<Presence>,
    info: Arc<ProcessInfo>,
    /// Snapshots since it was last listed.
    missed_snapshots: u16,
}

impl ProcessTable {
    pub(super) fn live(&self) -> &[Process] {
        &self.live
    }

    pub(super) fn ended(&self) -> impl Iterator<Item = &EndedProcess> {
        self.ended.iter()
    }

    /// The inventory changed: `moves[old]` is the new position of a GPU, `None` where it is no more. A process all of
    /// whose GPUs are gone goes with them.
    pub(super) fn move_gpus(&mut self, moves: &[Option<usize>]) {
        let ended = self.ended.iter_mut().map(|ended| &mut ended.process);
        for process in self.live.iter_mut().chain(ended) {
            process.gpus.retain_mut(|usage| {
                let position = usage.gpu.and_then(|old| moves.get(usize::from(old)).copied().flatten());
                usage.gpu = position.and_then(|position| u16::try_from(position).ok());
                usage.gpu.is_some()
            });
            process.gpus.sort_by_key(|usage| usage.gpu);
        }
        self.live.retain(|process| !process.gpus.is_empty());
    }

    /// Takes the processes and facts out of a snapshot.
    pub(super) fn apply(&mut self, snapshot: &mut Snapshot, context: &SnapshotContext) {
        let mut facts: HashMap<u32, ProcessFacts> =
            std::mem::take(&mut snapshot.facts).into_iter().map(|facts| (facts.pid, facts)).collect();
        let columns = std::mem::take(&mut snapshot.processes);
        let rows = rows_by_pid(&columns);
        let usages = usages(snapshot, context);
        // Both lists are by ascending pid, so that one walk along both finds who was there before.
        let mut before = std::mem::take(&mut self.live).into_iter().peekable();
        let mut missing = Vec::new();
        self.live.reserve_exact(usages.chunk_by(is_of_one_process).count());

        for gpus in usages.chunk_by(is_of_one_process) {
            let pid = pid_of(&gpus[0]);
            let mut reading = row_of(&rows, pid).map(|row| columns.row(row)).unwrap_or_default();
            sanitize::sanitize_process(&mut reading);
            let (key, info) = self.identify(pid, &reading, facts.remove(&pid), context);
            while let Some(gone) = before.next_if(|earlier| earlier.key.pid < pid) {
                missing.push(gone);
            }
            // A start that was not known before, as of a process that was hidden, makes no other process of it.
            let is_same = |earlier: &Process| earlier.key == key || earlier.key.start_ticks.is_none();
            let earlier = before.next_if(|earlier| earlier.key.pid == pid && is_same(earlier));
            let (state_since, mut mine) = match earlier {
                Some(earlier) if is_same_state(&earlier.reading, &reading) => (earlier.state_since, earlier.gpus),
                Some(earlier) => (context.now, earlier.gpus),
                None => (context.now, Vec::with_capacity(gpus.len())),
            };
            mine.clear();
            mine.extend_from_slice(gpus);
            self.live.push(Process { key, info, reading, gpus: mine, state_since, is_stale: false });
        }
        missing.extend(before);
        // Facts of processes that are not listed (yet): the driver may name them in the next snapshot.
        for (pid, facts) in facts {
            let reading = ProcessReading { start_ticks: facts.start_ticks, ..ProcessReading::default() };
            self.identify(pid, &reading, Some(facts), context);
        }
        self.end_or_carry_over(missing, snapshot.processes_left_out > 0, context);
        self.expire_facts();
    }

    /// The identity of a pid, and what rarely changes about it. Facts of another process that had this pid are dropped.
    fn identify(
        &mut self,
        pid: u32,
        reading: &ProcessReading,
        facts: Option<ProcessFacts>,
        context: &SnapshotContext,
    ) -> (ProcessKey, Arc<ProcessInfo>) {
        let is_same = |start_ticks: Option<u64>| match (start_ticks, reading.start_ticks) {
            (Some(one), Some(other)) => one == other,
            // /proc no longer shows it, but the driver still lists it: what is known says whose memory it is.
            _ => true,
        };
        let known = self.known.get_mut(&pid).filter(|known| is_same(known.key.start_ticks));
        let facts = facts.filter(|facts| is_same(facts.start_ticks));
        let start_ticks = reading
            .start_ticks
            .or(facts.as_ref().and_then(|facts| facts.start_ticks))
            .or(known.as_ref().and_then(|known| known.key.start_ticks));
        let key = ProcessKey { boot_id: context.boot_id.cloned(), pid, start_ticks };
        let facts = match known {
            Some(known) if facts.is_none() && known.key == key && known.presence == reading.presence => {
                known.missed_snapshots = 0;
                return (key, Arc::clone(&known.info));
            }
            Some(known) => facts.or_else(|| known.info.facts.clone()),
            None => facts,
        };
        let info = Arc::new(ProcessInfo::new(&key, facts, reading.presence));
        let known =
            KnownProcess { key: key.clone(), presence: reading.presence, info: Arc::clone(&info), missed_snapshots: 0 };
        self.known.insert(pid, known);
        (key, info)
    }

    /// Decides what became of the processes that were listed before and are not now.
    fn end_or_carry_over(&mut self, missing: Vec<Process>, is_truncated: bool, context: &SnapshotContext) {
        let is_readable = |position: usize| {
            context.readings.get(position).is_some_and(|gpu| gpu.error.is_none() && gpu.blocked_seconds.is_none())
        };
        let mut held = Vec::new();
        let mut ended = Vec::new();
        for mut process in missing {
            if !context.is_listed || !process.gpu_positions().all(is_readable) {
                process.is_stale = true;
                held.push(process);
            } else if !context.is_first && !is_truncated && process.key.pid != 0 {
                ended.push(EndedProcess { process, ended_at: context.now });
            }
        }
        // A pid that is listed again belongs to whoever has it now.
        held.retain(|process| !self.live.iter().any(|live| live.key.pid == process.key.pid));
        if !held.is_empty() {
            self.live.append(&mut held);
            self.live.sort_by_key(|process| process.key.pid);
        }
        ended.sort_by_key(|ended| ended.process.key.pid);
        let live = &self.live;
        self.ended.retain(|ended| {
            context.now.since(ended.ended_at) < ENDED_ROW_RETENTION
                && !live.iter().any(|process| process.key == ended.process.key)
        });
        self.ended.extend(ended);
        self.ended.drain(..self.ended.len().saturating_sub(MAX_ENDED));
    }

    fn expire_facts(&mut self) {
        let live = &self.live;
        self.known.retain(|pid, known| {
            // Sorted by pid: see [`usages`] and [`ProcessTable::settle`].
            if live.binary_search_by_key(pid, |process| process.key.pid).is_ok() {
                known.missed_snapshots = 0;
            } else {
                known.missed_snapshots += 1;
            }
            known.missed_snapshots < FACTS_RETAINED_SNAPSHOTS
        });
        let limit = 2 * crate::wire::codec::MAX_PROCESSES;
        if self.known.len() > limit {
            self.known.retain(|_, known| known.missed_snapshots == 0);
        }
    }
}

/// Where each pid's row is, by ascending pid.
fn rows_by_pid(columns: &ProcessColumns) -> Vec<(u32, usize)> {
    let pids = columns.pid.iter().enumerate();
    let mut rows: Vec<(u32, usize)> = pids.filter_map(|(row, pid)| Some(((*pid)?, row))).collect();
    rows.sort_unstable();
    rows
}

/// The row of a pid: the last, should there be several.
fn row_of(rows: &[(u32, usize)], pid: u32) -> Option<usize> {
    let end = rows.partition_point(|(other, _)| *other <= pid);
    rows[..end].last().filter(|(other, _)| *other == pid).map(|(_, row)| *row)
}

/// What each pid does on GPUs, by ascending pid and position. Positions that the inventory does not have are left out,
/// as are second rows for one (pid, GPU). What the driver cannot name is gathered under pid 0.
fn usages(snapshot: &mut Snapshot, context: &SnapshotContext) -> Vec<GpuProcessReading> {
    let columns = std::mem::take(&mut snapshot.gpu_processes);
    let rows = (0..columns.len()).filter_map(|row| {
        let mut usage = columns.row(row);
        let info = usage.gpu.and_then(|gpu| context.infos.get(usize::from(gpu)))?;
        sanitize::sanitize_gpu_process(&mut usage, info);
        Some(usage)
    });
    let mut usages: Vec<GpuProcessReading> = rows.collect();
    // Stable: of several rows the first counts.
    usages.sort_by_key(|usage| (pid_of(usage), usage.gpu));
    usages.dedup_by(|next, kept| {
        let is_second = pid_of(next) == pid_of(kept) && next.gpu == kept.gpu;
        if is_second && next.pid.is_none() {
            let memory = [kept.gpu_memory_bytes, next.gpu_memory_bytes];
            kept.gpu_memory_bytes = memory.into_iter().flatten().reduce(u64::saturating_add);
        }
        is_second
    });
    usages
}

/// The pid; 0 where the driver cannot tell.
fn pid_of(usage: &GpuProcessReading) -> u32 {
    usage.pid.unwrap_or(0)
}

fn is_of_one_process(one: &GpuProcessReading, other: &GpuProcessReading) -> bool {
    pid_of(one) == pid_of(other)
}

fn is_same_state(one: &ProcessReading, other: &ProcessReading) -> bool {
    one.state == other.state && one.presence == other.presence
}

/// What is known when a snapshot's processes are taken in.
pub(super) struct SnapshotContext<'a> {
    /// The host's boot id.
    pub(super) boot_id: Option<&'a SafeText>,
    /// The GPUs.
    pub(super) infos: &'a [GpuInfo],
    /// Their readings in this snapshot.
    pub(super) readings: &'a [GpuReading],
    /// The snapshot lists the processes; else nothing can be said of them.
    pub(super) is_listed: bool,
    /// It is the first of its connection: what happened before is not known.
    pub(super) is_first: bool,
    /// When it arrived.
    pub(super) now: Moment,
}
