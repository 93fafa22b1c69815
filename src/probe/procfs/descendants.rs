//! Processes that GPU processes have started and that are not on a GPU: data loaders and other workers. The same scan
//! of /proc counts the probes on this host.

use super::files::{FileReader, Stat, TICKS_PER_SECOND};
use super::host::SampleContext;
use super::reruns::Reruns;
use super::scan::ProcScan;
use crate::probe::decimal::round_to_tenth_f32;
use crate::wire::{ProcessReading, ProcessState};

/// Period of scans.
const SCAN_SECONDS: f64 = 10.0;
/// Period of scans while no process uses a GPU or has used one lately.
const IDLE_SCAN_SECONDS: f64 = 60.0;
/// Maximum number of `stat` files read in one sample.
const MAX_READS: usize = 500;
/// Maximum number of descendants whose CPU time is measured.
const MAX_DESCENDANTS: usize = 256;
/// Maximum number of generations below a GPU process.
const MAX_DEPTH: usize = 16;

/// The scan in progress and the sums of the previous one.
#[derive(Debug)]
pub(super) struct Descendants {
    scan: ProcScan,
    step: Step,
    scan_started_at: f64,
    tracked: Vec<Descendant>,
    /// Sums of the scan in progress, sorted by the pid of the GPU process.
    pending_sums: Vec<(u32, DescendantSum)>,
    /// Sums of the last complete scan.
    sums: Vec<(u32, DescendantSum)>,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// No scan is due.
    Idle,
    Scanning,
    /// Measures the descendants from this index on.
    Measuring(usize),
}

#[derive(Debug, Clone, Copy)]
struct Descendant {
    pid: u32,
    parent: u32,
    /// The nearest GPU process above it.
    gpu_process: u32,
    start_ticks: u64,
    cpu_ticks: u64,
    read_at: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct DescendantSum {
    count: u32,
    cpu_percent: Option<f64>,
    blocked: u32,
}

impl Default for Descendants {
    fn default() -> Self {
        Self {
            scan: ProcScan::default(),
            step: Step::Idle,
            scan_started_at: f64::NEG_INFINITY,
            tracked: Vec::new(),
            pending_sums: Vec::new(),
            sums: Vec::new(),
        }
    }
}

impl Descendants {
    /// Does one sample's part of the scan. `gpu_processes` is sorted.
    pub(super) fn step(
        &mut self,
        gpu_processes: &[u32],
        reruns: &mut Reruns,
        context: SampleContext,
        reader: &mut FileReader,
    ) {
        let mut reads = MAX_READS;
        loop {
            match self.step {
                Step::Idle => {
                    let is_idle = gpu_processes.is_empty() && reruns.is_empty();
                    let period = if is_idle { IDLE_SCAN_SECONDS } else { SCAN_SECONDS };
                    if context.now - self.scan_started_at < period {
                        return;
                    }
                    self.scan_started_at = context.now;
                    self.step = Step::Scanning;
                }
                Step::Scanning => {
                    if !self.scan.step(context, reruns, &mut reads, reader) {
                        return;
                    }
                    self.collect(gpu_processes);
                    self.step = Step::Measuring(0);
                }
                Step::Measuring(from) => {
                    let next = self.measure(from, &mut reads, context.now, reader);
                    self.step = next.map_or(Step::Idle, Step::Measuring);
                    if next.is_none() {
                        self.sums = std::mem::take(&mut self.pending_sums);
                    }
                    return;
                }
            }
        }
    }

    /// Whether a process is below one of these, as far as the last scan knows. They are sorted.
    pub(super) fn is_below(&self, mut pid: u32, processes: &[u32]) -> bool {
        for _ in 0..MAX_DEPTH {
            let Some(parent) = self.scan.parent(pid) else { return false };
            if processes.binary_search(&parent).is_ok() {
                return true;
            }
            pid = parent;
        }
        false
    }

    /// Returns the number of probes on this host; `None` if the last scan did not complete.
    pub(super) fn probes_on_host(&self) -> Option<u32> {
        self.scan.probes()
    }

    /// Adds the sums of one GPU process to its reading.
    pub(super) fn fill_reading(&self, pid: u32, reading: &mut ProcessReading) {
        let Ok(index) = self.sums.binary_search_by_key(&pid, |&(known, _)| known) else { return };
        let sum = self.sums[index].1;
        reading.descendants = Some(sum.count);
        reading.descendants_cpu_percent = sum.cpu_percent.map(round_to_tenth_f32);
        reading.descendants_blocked = Some(sum.blocked);
    }

    /// Finds the descendants among the scanned processes, one generation at a time.
    fn collect(&mut self, gpu_processes: &[u32]) {
        let previous = std::mem::take(&mut self.tracked);
        // Each generation is sorted by pid, as the scanned entries are.
        let mut parents: Vec<(u32, u32)> = gpu_processes.iter().map(|&pid| (pid, pid)).collect();
        for _ in 0..MAX_DEPTH {
            let mut children = Vec::new();
            for entry in self.scan.entries() {
                let Some(parent) = entry.parent else { continue };
                let Ok(index) = parents.binary_search_by_key(&parent, |&(pid, _)| pid) else { continue };
                let on_gpu = gpu_processes.binary_search(&entry.pid).is_ok();
                if !on_gpu && self.tracked.len() + children.len() < MAX_DESCENDANTS {
                    children.push((entry.pid, parent, parents[index].1));
                }
            }
            if children.is_empty() {
                break;
            }
            self.tracked.extend(children.iter().map(|&(pid, parent, gpu_process)| {
                let known = previous.iter().find(|known| known.pid == pid).copied();
                let unread =
                    Descendant { pid, parent, gpu_process, start_ticks: 0, cpu_ticks: 0, read_at: f64::NEG_INFINITY };
                Descendant { parent, gpu_process, ..known.unwrap_or(unread) }
            }));
            parents = children.into_iter().map(|(pid, _, gpu_process)| (pid, gpu_process)).collect();
        }
        self.pending_sums = gpu_processes.iter().map(|&pid| (pid, DescendantSum::default())).collect();
    }

    /// Reads the descendants and adds them up. Returns the index to continue at, or `None` at the end.
    fn measure(&mut self, from: usize, reads: &mut usize, now: f64, reader: &mut FileReader) -> Option<usize> {
        for index in from..self.tracked.len() {
            if *reads == 0 {
                return Some(index);
            }
            *reads -= 1;
            let descendant = &mut self.tracked[index];
            let Ok(index) = self.pending_sums.binary_search_by_key(&descendant.gpu_process, |&(pid, _)| pid) else {
                continue;
            };
            let sum = &mut self.pending_sums[index].1;
            let Some(stat) = reader.read_process(descendant.pid, "stat", 1024).ok().and_then(Stat::parse) else {
                continue;
            };
            if stat.parent != descendant.parent {
                // A process between it and the GPU process has ended.
                self.scan.forget_parent(descendant.pid);
                continue;
            }
            if matches!(stat.state, ProcessState::Zombie | ProcessState::Dead) {
                continue;
            }
            sum.count += 1;
            sum.blocked += u32::from(stat.state == ProcessState::DiskSleep);
            if descendant.start_ticks == stat.start_ticks && now > descendant.read_at {
                let seconds = stat.cpu_ticks.saturating_sub(descendant.cpu_ticks) as f64 / TICKS_PER_SECOND;
                *sum.cpu_percent.get_or_insert(0.0) += 100.0 * seconds / (now - descendant.read_at);
            }
            (descendant.start_ticks, descendant.cpu_ticks, descendant.read_at) =
                (stat.start_ticks, stat.cpu_ticks, now);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    fn context(now: f64) -> SampleContext {
        SampleContext { now, ..SampleContext::default() }
    }

    /// Runs one scan to its end.
    fn scan(descendants: &mut Descendants, gpu_processes: &[u32], now: f64) {
        let mut reader = FileReader::default();
        for _ in 0..100_000 {
            descendants.step(gpu_processes, &mut Reruns::default(), context(now), &mut reader);
            if matches!(descendants.step, Step::Idle) {
                return;
            }
        }
        panic!("the scan does not end");
    }

    /// Starts a script in a new session and returns the line that it prints. It ends when its input is closed.
    fn start_job(script: &str) -> (Child, String) {
        let mut command = Command::new("setsid");
        let mut job = command.args(["sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(job.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (job, line)
    }

    fn sums_of(descendants: &Descendants, pid: u32) -> (Option<u32>, Option<f32>, Option<u32>) {
        let mut reading = ProcessReading::default();
        descendants.fill_reading(pid, &mut reading);
        (reading.descendants, reading.descendants_cpu_percent, reading.descendants_blocked)
    }

    #[test]
    fn descendants_are_counted_except_gpu_processes() {
        // A shell with two sleeping children, one of them below another shell.
        let script = "sleep 600 & sh -c 'sleep 600 & echo $$; wait' & read _; kill 0";
        let (mut job, line) = start_job(script);
        let inner: u32 = line.trim().parse().unwrap();
        let mut descendants = Descendants::default();
        scan(&mut descendants, &[job.id()], 1.0);
        assert_eq!(sums_of(&descendants, job.id()), (Some(3), None, Some(0)));
        // Within ten seconds nothing is read again. The second scan gives a CPU share.
        scan(&mut descendants, &[job.id()], 10.9);
        assert_eq!(sums_of(&descendants, job.id()).1, None);
        scan(&mut descendants, &[job.id()], 11.0);
        assert_eq!(sums_of(&descendants, job.id()), (Some(3), Some(0.0), Some(0)));
        // Once the inner shell is on a GPU, it is no descendant, and has its own.
        let mut both = [job.id(), inner];
        both.sort_unstable();
        scan(&mut descendants, &both, 21.0);
        assert_eq!(sums_of(&descendants, job.id()).0, Some(1));
        assert_eq!(sums_of(&descendants, inner).0, Some(1));
        drop(job.stdin.take());
        job.wait().unwrap();
        scan(&mut descendants, &both, 31.0);
        assert_eq!(sums_of(&descendants, job.id()), (Some(0), None, Some(0)));
    }

    #[test]
    fn a_reparented_process_is_no_longer_counted() {
        // A shell above a shell above a sleeping process.
        let script = "sh -c 'sleep 600 & echo $! $$; wait' & read _; kill 0";
        let (mut job, line) = start_job(script);
        let mut pids = line.split_whitespace().map(|pid| pid.parse::<i32>().unwrap());
        let (sleeper, inner) = (pids.next().unwrap(), pids.next().unwrap());
        let mut descendants = Descendants::default();
        scan(&mut descendants, &[job.id()], 1.0);
        assert_eq!(sums_of(&descendants, job.id()).0, Some(2));
        let inner = rustix::process::Pid::from_raw(inner).unwrap();
        rustix::process::kill_process(inner, rustix::process::Signal::KILL).unwrap();
        let parent = || {
            FileReader::default()
                .read_process(sleeper as u32, "stat", 1024)
                .map(|line| Stat::parse(line).unwrap().parent)
        };
        while parent() == Ok(inner.as_raw_nonzero().get() as u32) {
            std::thread::yield_now();
        }
        // No new process has started, so the scan assumes that the inner shell is alive.
        descendants.step = Step::Measuring(0);
        descendants.collect(&[job.id()]);
        scan(&mut descendants, &[job.id()], 2.0);
        assert_eq!(sums_of(&descendants, job.id()).0, Some(0));
        drop(job.stdin.take());
        job.wait().unwrap();
    }

    #[test]
    fn without_gpu_processes_the_scan_is_rarer() {
        let mut descendants = Descendants::default();
        scan(&mut descendants, &[], 5.0);
        assert!((descendants.scan_started_at - 5.0).abs() < 0.1);
        descendants.step(&[], &mut Reruns::default(), context(64.0), &mut FileReader::default());
        assert!((descendants.scan_started_at - 5.0).abs() < 0.1);
        descendants.step(&[], &mut Reruns::default(), context(65.0), &mut FileReader::default());
        assert!((descendants.scan_started_at - 65.0).abs() < 0.1);
    }
}
