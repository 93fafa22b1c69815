//! The processes of one host across snapshots. Joins the columns of a snapshot, keeps processes whose GPU does not
//! answer, and detects processes that have ended.

use super::{EndedProcess, Moment, Process, ProcessInfo, ProcessKey, sanitize};
use crate::wire::codec::MAX_PROCESSES;
use crate::wire::{
    GpuInfo, GpuProcessReading, GpuReading, Presence, ProcessColumns, ProcessFacts, ProcessReading, SafeText, Snapshot,
};
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// How long a row remains after its process has ended.
pub const ENDED_ROW_RETENTION: Duration = Duration::from_secs(10 * 60);

/// Maximum number of ended processes, which bounds the memory on a host that starts thousands.
const MAX_ENDED: usize = 64;

/// Maximum number of processes without a GPU. The probe sends 8.
const MAX_RERUNS: usize = 16;

/// Number of snapshots for which the facts of an unlisted process are kept. The probe sends facts once, and a process
/// may be missing from one list.
const FACTS_RETAINED_SNAPSHOTS: u16 = 60;

/// Maximum memory of the facts of one host. A process takes 1 to 3 kB, so that the processes of a full snapshot fit; a
/// hostile host can send a megabyte per process.
const MAX_FACTS_BYTES: usize = 8 << 20;

/// Maximum memory of the facts of the ended processes of one host.
const MAX_ENDED_FACTS_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Default)]
pub(super) struct ProcessTable {
    live: Vec<Process>,
    /// New runs of programs that left the GPUs, which are on no GPU.
    reruns: Vec<Process>,
    ended: VecDeque<EndedProcess>,
    known: HashMap<u32, KnownProcess>,
}

/// The rarely changing properties of a pid.
#[derive(Debug, Clone)]
struct KnownProcess {
    key: ProcessKey,
    presence: Option<Presence>,
    info: Arc<ProcessInfo>,
    /// [`ProcessInfo::memory_bytes`].
    info_bytes: usize,
    /// Number of snapshots since the process was last listed.
    missed_snapshots: u16,
}

impl ProcessTable {
    pub(super) fn live(&self) -> &[Process] {
        &self.live
    }

    pub(super) fn reruns(&self) -> &[Process] {
        &self.reruns
    }

    pub(super) fn ended(&self) -> impl Iterator<Item = &EndedProcess> {
        self.ended.iter()
    }

    /// Follows a change of the inventory: `new_positions[old]` is the new position of a GPU, or `None` if the GPU is
    /// unlisted. Processes without a remaining GPU are dropped.
    pub(super) fn move_gpus(&mut self, new_positions: &[Option<usize>]) {
        let ended = self.ended.iter_mut().map(|ended| &mut ended.process);
        for process in self.live.iter_mut().chain(ended) {
            process.gpus.retain_mut(|usage| {
                let position = usage.gpu.and_then(|old| new_positions.get(usize::from(old)).copied().flatten());
                usage.gpu = position.and_then(|position| u16::try_from(position).ok());
                usage.gpu.is_some()
            });
            process.gpus.sort_by_key(|usage| usage.gpu);
        }
        self.live.retain(|process| !process.gpus.is_empty());
    }

    /// Moves the processes and facts out of a snapshot.
    pub(super) fn apply(&mut self, snapshot: &mut Snapshot, context: &SnapshotContext) {
        let mut facts: HashMap<u32, ProcessFacts> =
            std::mem::take(&mut snapshot.facts).into_iter().map(|facts| (facts.pid, facts)).collect();
        let columns = std::mem::take(&mut snapshot.processes);
        let rows = rows_by_pid(&columns);
        let gpu_usages = gpu_usages(snapshot, context);
        // Both lists are sorted by pid, so that one pass finds the earlier state of each process.
        let mut previous = std::mem::take(&mut self.live).into_iter().peekable();
        let mut missing = Vec::new();
        self.live.reserve_exact(gpu_usages.chunk_by(is_same_process).count());

        for gpus in gpu_usages.chunk_by(is_same_process) {
            let pid = pid_of(&gpus[0]);
            let mut reading = row_of(&rows, pid).map(|row| columns.row(row)).unwrap_or_default();
            sanitize::sanitize_process(&mut reading);
            let (key, info) = self.identify(pid, &reading, facts.remove(&pid), context);
            while let Some(unlisted) = previous.next_if(|earlier| earlier.key.pid < pid) {
                missing.push(unlisted);
            }
            // A hidden process has no start time; when it becomes visible, it is the same process.
            let is_same = |earlier: &Process| earlier.key == key || earlier.key.start_ticks.is_none();
            let earlier = previous.next_if(|earlier| earlier.key.pid == pid && is_same(earlier));
            let (state_since, mut gpu_readings) = match earlier {
                Some(earlier) if is_same_state(&earlier.reading, &reading) => (earlier.state_since, earlier.gpus),
                Some(earlier) => (context.now, earlier.gpus),
                None => (context.now, Vec::with_capacity(gpus.len())),
            };
            gpu_readings.clear();
            gpu_readings.extend_from_slice(gpus);
            self.live.push(Process { key, info, reading, gpus: gpu_readings, state_since, is_stale: false });
        }
        missing.extend(previous);
        // Without a list, they stay as they were.
        if context.is_listed {
            self.list_reruns(&columns, &rows, &mut facts, context);
        }
        // The driver may list these processes in the next snapshot.
        for (pid, facts) in facts {
            let reading = ProcessReading { start_ticks: facts.start_ticks, ..ProcessReading::default() };
            self.identify(pid, &reading, Some(facts), context);
        }
        self.end_or_carry_over(missing, snapshot.processes_left_out > 0, context);
        let facts_bytes = self.expire_facts();
        if facts_bytes > MAX_FACTS_BYTES {
            self.drop_facts(facts_bytes - MAX_FACTS_BYTES);
        }
    }

    /// Lists the processes that have readings and are on no GPU.
    fn list_reruns(
        &mut self,
        columns: &ProcessColumns,
        rows: &[(u32, usize)],
        facts: &mut HashMap<u32, ProcessFacts>,
        context: &SnapshotContext,
    ) {
        self.reruns.clear();
        for &(pid, row) in rows {
            let is_on_gpu = self.live.binary_search_by_key(&pid, |process| process.key.pid).is_ok();
            let is_repeated = self.reruns.last().is_some_and(|last| last.key.pid == pid);
            if is_on_gpu || is_repeated {
                continue;
            }
            if self.reruns.len() >= MAX_RERUNS {
                break;
            }
            let mut reading = columns.row(row);
            sanitize::sanitize_process(&mut reading);
            let (key, info) = self.identify(pid, &reading, facts.remove(&pid), context);
            let state_since = context.now;
            self.reruns.push(Process { key, info, reading, gpus: Vec::new(), state_since, is_stale: false });
        }
    }

    /// Returns the identity and the properties of a pid. Facts of an earlier process with the same pid are dropped.
    fn identify(
        &mut self,
        pid: u32,
        reading: &ProcessReading,
        facts: Option<ProcessFacts>,
        context: &SnapshotContext,
    ) -> (ProcessKey, Arc<ProcessInfo>) {
        let is_same = |start_ticks: Option<u64>| match (start_ticks, reading.start_ticks) {
            (Some(one), Some(other)) => one == other,
            // The driver still lists a process that /proc no longer shows: the known facts tell whose memory it is.
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
        let known = KnownProcess {
            key: key.clone(),
            presence: reading.presence,
            info: Arc::clone(&info),
            info_bytes: info.memory_bytes(),
            missed_snapshots: 0,
        };
        self.known.insert(pid, known);
        (key, info)
    }

    /// Marks missing processes as ended, or keeps them as stale if their GPUs could not be read.
    ///
    /// Listed and stale processes together stay below the limit of one snapshot. A host with a broken GPU that lists other
    /// processes each time would otherwise fill the memory.
    fn end_or_carry_over(&mut self, missing: Vec<Process>, is_truncated: bool, context: &SnapshotContext) {
        let is_readable = |position: usize| {
            context.readings.get(position).is_some_and(|gpu| gpu.error.is_none() && gpu.blocked_seconds.is_none())
        };
        let mut carried_over = Vec::new();
        let mut ended = Vec::new();
        for mut process in missing {
            if !context.is_listed || !process.gpu_positions().all(is_readable) {
                process.is_stale = true;
                carried_over.push(process);
            } else if !context.is_first && !is_truncated && process.key.pid != 0 {
                ended.push(EndedProcess { process, ended_at: context.now });
            }
        }
        // A pid that is listed again belongs to the listed process.
        let is_listed = |pid: u32| self.live.binary_search_by_key(&pid, |process| process.key.pid).is_ok();
        carried_over.retain(|process| !is_listed(process.key.pid));
        let room = MAX_PROCESSES.saturating_sub(self.live.len());
        if carried_over.len() > room {
            carried_over.sort_by_key(|process| Reverse(process.gpu_memory_bytes()));
            carried_over.truncate(room);
        }
        if !carried_over.is_empty() {
            self.live.append(&mut carried_over);
            self.live.sort_by_key(|process| process.key.pid);
        }
        ended.sort_by_key(|ended| ended.process.key.pid);
        let live = &self.live;
        self.ended.retain(|ended| {
            context.now.since(ended.ended_at) < ENDED_ROW_RETENTION
                && !live.iter().any(|process| process.key == ended.process.key)
        });
        let has_new = !ended.is_empty();
        self.ended.extend(ended);
        self.ended.drain(..self.ended.len().saturating_sub(MAX_ENDED));
        if has_new {
            let mut bytes = 0;
            let newest = self.ended.iter().rev().take_while(|ended| {
                bytes += ended.process.info.memory_bytes();
                bytes <= MAX_ENDED_FACTS_BYTES
            });
            let kept = newest.count();
            self.ended.drain(..self.ended.len() - kept);
        }
        // A host that lists thousands of processes once must not keep the room for them.
        self.ended.shrink_to(MAX_ENDED);
    }

    /// Drops the facts of processes that have not been listed for long. Returns the memory of the others.
    fn expire_facts(&mut self) -> usize {
        let (live, reruns) = (&self.live, &self.reruns);
        self.known.retain(|pid, known| {
            // Both are sorted by pid: see [`gpu_usages`] and [`ProcessTable::end_or_carry_over`].
            let is_in = |list: &[Process]| list.binary_search_by_key(pid, |process| process.key.pid).is_ok();
            if is_in(live) || is_in(reruns) {
                known.missed_snapshots = 0;
            } else {
                known.missed_snapshots += 1;
            }
            known.missed_snapshots < FACTS_RETAINED_SNAPSHOTS
        });
        let limit = 2 * MAX_PROCESSES;
        if self.known.len() > limit {
            self.known.retain(|_, known| known.missed_snapshots == 0);
        }
        if self.known.capacity() > 4 * self.known.len() + 64 {
            self.known.shrink_to_fit();
        }
        self.known.values().map(|known| known.info_bytes).sum()
    }

    /// Drops facts that take at least this many bytes together: those of the processes that have not been listed for
    /// longest, then the largest. Listed processes stay without facts.
    fn drop_facts(&mut self, bytes: usize) {
        let mut order: Vec<(u16, usize, u32)> =
            self.known.iter().map(|(pid, known)| (known.missed_snapshots, known.info_bytes, *pid)).collect();
        order.sort_unstable_by(|one, other| other.cmp(one));
        let mut dropped = 0;
        for (_, info_bytes, pid) in order {
            if dropped >= bytes {
                break;
            }
            dropped += info_bytes;
            self.known.remove(&pid);
            for list in [&mut self.live, &mut self.reruns] {
                if let Ok(index) = list.binary_search_by_key(&pid, |process| process.key.pid) {
                    let process = &mut list[index];
                    process.info = Arc::new(ProcessInfo::new(&process.key, None, process.reading.presence));
                }
            }
        }
    }
}

/// The row index of each pid, by ascending pid.
fn rows_by_pid(columns: &ProcessColumns) -> Vec<(u32, usize)> {
    let pids = columns.pid.iter().enumerate();
    let mut rows: Vec<(u32, usize)> = pids.filter_map(|(row, pid)| Some(((*pid)?, row))).collect();
    rows.sort_unstable();
    rows
}

/// The row of a pid; the last one if there are several.
fn row_of(rows: &[(u32, usize)], pid: u32) -> Option<usize> {
    let end = rows.partition_point(|(other, _)| *other <= pid);
    rows[..end].last().filter(|(other, _)| *other == pid).map(|(_, row)| *row)
}

/// The usage of each (pid, GPU position), sorted. Drops unknown positions and duplicates. Usage that the driver does
/// not assign to a process is summed up under pid 0.
fn gpu_usages(snapshot: &mut Snapshot, context: &SnapshotContext) -> Vec<GpuProcessReading> {
    let columns = std::mem::take(&mut snapshot.gpu_processes);
    let rows = (0..columns.len()).filter_map(|row| {
        let mut usage = columns.row(row);
        let info = usage.gpu.and_then(|gpu| context.infos.get(usize::from(gpu)))?;
        sanitize::sanitize_gpu_process(&mut usage, info);
        Some(usage)
    });
    let mut gpu_usages: Vec<GpuProcessReading> = rows.collect();
    // The sort is stable: of several rows for one (pid, GPU) the first counts.
    gpu_usages.sort_by_key(|usage| (pid_of(usage), usage.gpu));
    gpu_usages.dedup_by(|next, kept| {
        let is_second = pid_of(next) == pid_of(kept) && next.gpu == kept.gpu;
        if is_second && next.pid.is_none() {
            let memory = [kept.gpu_memory_bytes, next.gpu_memory_bytes];
            kept.gpu_memory_bytes = memory.into_iter().flatten().reduce(u64::saturating_add);
        }
        is_second
    });
    gpu_usages
}

/// The pid, or 0 if the driver does not name the process.
fn pid_of(usage: &GpuProcessReading) -> u32 {
    usage.pid.unwrap_or(0)
}

fn is_same_process(one: &GpuProcessReading, other: &GpuProcessReading) -> bool {
    pid_of(one) == pid_of(other)
}

fn is_same_state(one: &ProcessReading, other: &ProcessReading) -> bool {
    one.state == other.state && one.presence == other.presence
}

/// The host's state that is needed to join the processes of one snapshot.
pub(super) struct SnapshotContext<'a> {
    /// The boot id.
    pub(super) boot_id: Option<&'a SafeText>,
    /// The GPUs.
    pub(super) infos: &'a [GpuInfo],
    /// The readings of the GPUs in this snapshot.
    pub(super) readings: &'a [GpuReading],
    /// Whether the snapshot lists processes. If not, their state is unknown.
    pub(super) is_listed: bool,
    /// Whether this is the first snapshot of the connection. Earlier events are unknown.
    pub(super) is_first: bool,
    /// When the snapshot arrived.
    pub(super) now: Moment,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::fixture::{at, gpus};
    use crate::wire::{Ancestor, GpuProcessColumns};

    /// Facts of about 100 kB.
    fn large_facts(pid: u32) -> ProcessFacts {
        let ancestor = Ancestor { argv: vec!["argument".into(); 40], ..Ancestor::default() };
        ProcessFacts { pid, start_ticks: Some(1), ancestors: vec![ancestor; 50], ..ProcessFacts::default() }
    }

    fn on_gpu_0(pids: impl Iterator<Item = u32>) -> GpuProcessColumns {
        let usage = |pid| GpuProcessReading { pid: Some(pid), gpu: Some(0), ..GpuProcessReading::default() };
        GpuProcessColumns::from_rows(&pids.map(usage).collect::<Vec<_>>())
    }

    fn apply_snapshot(table: &mut ProcessTable, seconds: u32, mut snapshot: Snapshot, is_listed: bool) {
        let (infos, readings) = (gpus(0..1), [GpuReading::default()]);
        let context = SnapshotContext {
            boot_id: None,
            infos: &infos,
            readings: &readings,
            is_listed,
            is_first: seconds == 0,
            now: at(f64::from(seconds)),
        };
        table.apply(&mut snapshot, &context);
    }

    /// Applies a snapshot that lists these processes on GPU 0.
    fn apply(table: &mut ProcessTable, seconds: u32, listed: impl Iterator<Item = u32>, facts: Vec<ProcessFacts>) {
        let snapshot = Snapshot { gpu_processes: on_gpu_0(listed), facts, ..Snapshot::default() };
        apply_snapshot(table, seconds, snapshot, true);
    }

    fn facts_bytes(table: &ProcessTable) -> usize {
        table.known.values().map(|known| known.info.memory_bytes()).sum()
    }

    fn ended_bytes(table: &ProcessTable) -> usize {
        table.ended.iter().map(|ended| ended.process.info.memory_bytes()).sum()
    }

    #[test]
    fn processes_on_no_gpu_are_apart_and_stay_while_there_is_no_list() {
        let row = |pid: u32| ProcessReading { pid: Some(pid), start_ticks: Some(1), ..ProcessReading::default() };
        let mut table = ProcessTable::default();
        let mut apply = |pids: &[u32], on_gpu: &[u32], is_listed: bool| {
            let rows: Vec<ProcessReading> = pids.iter().copied().map(row).collect();
            let snapshot = Snapshot {
                gpu_processes: on_gpu_0(on_gpu.iter().copied()),
                processes: ProcessColumns::from_rows(&rows),
                ..Snapshot::default()
            };
            apply_snapshot(&mut table, 1, snapshot, is_listed);
            let pids = |list: &[Process]| list.iter().map(|process| process.key.pid).collect::<Vec<_>>();
            (pids(table.live()), pids(table.reruns()))
        };
        assert_eq!(apply(&[7, 8], &[7], true), (vec![7], vec![8]));
        assert_eq!(apply(&[], &[], false), (vec![7], vec![8]), "the driver does not answer");
        assert_eq!(apply(&[7, 8], &[7, 8], true), (vec![7, 8], vec![]), "it uses a GPU");
        let many: Vec<u32> = (10..100).collect();
        assert_eq!(apply(&many, &[], true).1.len(), MAX_RERUNS);
    }

    #[test]
    fn facts_of_unlisted_processes_are_dropped_beyond_a_number_of_bytes() {
        let mut table = ProcessTable::default();
        for second in 0..30 {
            let pids = 1 + second * 10..1 + second * 10 + 10;
            apply(&mut table, second, std::iter::once(9999), pids.map(large_facts).collect());
        }
        let bytes = facts_bytes(&table);
        assert!(bytes <= MAX_FACTS_BYTES && bytes > MAX_FACTS_BYTES * 9 / 10, "{bytes}");
        assert!(table.known.contains_key(&300) && !table.known.contains_key(&1), "the least recent ones are dropped");
        assert!(table.known.contains_key(&9999), "listed processes are dropped last");
    }

    #[test]
    fn facts_of_listed_processes_are_dropped_beyond_a_number_of_bytes() {
        let mut table = ProcessTable::default();
        apply(&mut table, 0, 1..=300, (1..=300).map(large_facts).collect());
        let bytes = facts_bytes(&table);
        assert!(bytes <= MAX_FACTS_BYTES && bytes > MAX_FACTS_BYTES * 9 / 10, "{bytes}");
        let without_facts = table.live.iter().filter(|process| process.info.facts.is_none()).count();
        assert!(table.live.len() == 300 && without_facts > 100, "{without_facts}");
        let shown: usize = table.live.iter().map(|process| process.info.memory_bytes()).sum();
        assert!(shown <= MAX_FACTS_BYTES + 300 * 1024, "the rows do not hold what was dropped: {shown}");
    }

    #[test]
    fn ended_processes_hold_a_limited_number_of_bytes() {
        let mut table = ProcessTable::default();
        apply(&mut table, 0, 1..=60, (1..=60).map(large_facts).collect());
        apply(&mut table, 1, 61..=62, Vec::new());
        let bytes = ended_bytes(&table);
        assert!(bytes <= MAX_ENDED_FACTS_BYTES && !table.ended.is_empty(), "{bytes}");
        apply(&mut table, 2, 61..=61, Vec::new());
        assert_eq!(table.ended.back().map(|ended| ended.process.key.pid), Some(62), "the latest one is kept");
    }

    #[test]
    fn facts_of_a_full_snapshot_are_kept() {
        let mut table = ProcessTable::default();
        let arguments = vec![SafeText::from("--learning-rate=0.0001"); 12];
        let ancestor = Ancestor { name: "torchrun".into(), argv: arguments.clone(), ..Ancestor::default() };
        let facts = |pid| ProcessFacts {
            pid,
            start_ticks: Some(1),
            user: Some("alice".into()),
            argv: arguments.clone(),
            ancestors: vec![ancestor.clone(), ancestor.clone()],
            working_directory: Some("/home/alice/projects/pretraining".into()),
            ..ProcessFacts::default()
        };
        apply(&mut table, 0, 1..=2048, (1..=2048).map(facts).collect());
        assert!(table.live.iter().all(|process| process.info.facts.is_some()), "{}", facts_bytes(&table));
    }
}
