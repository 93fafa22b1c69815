//! What GPU processes have started and is not on a GPU itself: the workers that load their data. And, since it is the
//! same walk through /proc, how many probes run on this host.

use super::list::Moment;
use super::walk::Walk;
use crate::probe::numbers::tenths_f32;
use crate::probe::procfs::{Scratch, Stat, TICKS_PER_SECOND};
use crate::wire::{ProcessReading, ProcessState};

/// From the beginning of one walk to that of the next.
const WALK_SECONDS: f64 = 10.0;
/// The same where no GPU is used.
const IDLE_WALK_SECONDS: f64 = 60.0;
/// The most `stat` files that one sample reads here.
const READS: usize = 500;
/// The most descendants whose CPU time is followed.
const MAX_KEPT: usize = 256;
/// Generations below a GPU process.
const MAX_DEPTH: usize = 16;

/// The walk, and what came of the last one.
#[derive(Debug)]
pub(super) struct Descendants {
    walk: Walk,
    step: Step,
    began: f64,
    kept: Vec<Kept>,
    /// Sorted by pid of the GPU process: this walk's, while they are added up.
    adding: Vec<(u32, Sum)>,
    /// The last walk's.
    sums: Vec<(u32, Sum)>,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Until the next walk.
    Resting,
    Walking,
    /// The descendants from this one on are still to be read.
    Measuring(usize),
}

/// A descendant.
#[derive(Debug, Clone, Copy)]
struct Kept {
    pid: u32,
    parent: u32,
    /// The GPU process above it, the nearest where there are several.
    gpu_process: u32,
    start_ticks: u64,
    cpu_ticks: u64,
    read_at: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sum {
    count: u32,
    cpu_percent: Option<f64>,
    blocked: u32,
}

impl Default for Descendants {
    fn default() -> Self {
        Self {
            walk: Walk::default(),
            step: Step::Resting,
            began: f64::NEG_INFINITY,
            kept: Vec::new(),
            adding: Vec::new(),
            sums: Vec::new(),
        }
    }
}

impl Descendants {
    /// Does this sample's piece of the walk. `gpu_processes` is sorted.
    pub(super) fn step(&mut self, gpu_processes: &[u32], moment: Moment, scratch: &mut Scratch) {
        let mut reads = READS;
        loop {
            match self.step {
                Step::Resting => {
                    let pause = if gpu_processes.is_empty() { IDLE_WALK_SECONDS } else { WALK_SECONDS };
                    if moment.now - self.began < pause {
                        return;
                    }
                    self.began = moment.now;
                    self.step = Step::Walking;
                }
                Step::Walking => {
                    if !self.walk.step(moment, &mut reads, scratch) {
                        return;
                    }
                    self.find(gpu_processes);
                    self.step = Step::Measuring(0);
                }
                Step::Measuring(from) => {
                    let next = self.measure(from, &mut reads, moment.now, scratch);
                    self.step = next.map_or(Step::Resting, Step::Measuring);
                    if next.is_none() {
                        self.sums = std::mem::take(&mut self.adding);
                    }
                    return;
                }
            }
        }
    }

    /// How many probes run on this host, as the last walk found.
    pub(super) fn probes_on_host(&self) -> Option<u32> {
        self.walk.probes()
    }

    /// Writes what is known of its descendants into a reading.
    pub(super) fn tell(&self, pid: u32, reading: &mut ProcessReading) {
        let Ok(place) = self.sums.binary_search_by_key(&pid, |&(known, _)| known) else { return };
        let sum = self.sums[place].1;
        reading.descendants = Some(sum.count);
        reading.descendants_cpu_percent = sum.cpu_percent.map(tenths_f32);
        reading.descendants_blocked = Some(sum.blocked);
    }

    /// Finds the descendants among what was walked, generation by generation.
    fn find(&mut self, gpu_processes: &[u32]) {
        let before = std::mem::take(&mut self.kept);
        // Each generation is sorted by pid, as what was walked is.
        let mut parents: Vec<(u32, u32)> = gpu_processes.iter().map(|&pid| (pid, pid)).collect();
        for _ in 0..MAX_DEPTH {
            let mut children = Vec::new();
            for entry in self.walk.entries() {
                let Some(parent) = entry.parent else { continue };
                let Ok(place) = parents.binary_search_by_key(&parent, |&(pid, _)| pid) else { continue };
                let on_gpu = gpu_processes.binary_search(&entry.pid).is_ok();
                if !on_gpu && self.kept.len() + children.len() < MAX_KEPT {
                    children.push((entry.pid, parent, parents[place].1));
                }
            }
            if children.is_empty() {
                break;
            }
            self.kept.extend(children.iter().map(|&(pid, parent, gpu_process)| {
                let known = before.iter().find(|known| known.pid == pid).copied();
                let unread =
                    Kept { pid, parent, gpu_process, start_ticks: 0, cpu_ticks: 0, read_at: f64::NEG_INFINITY };
                Kept { parent, gpu_process, ..known.unwrap_or(unread) }
            }));
            parents = children.into_iter().map(|(pid, _, gpu_process)| (pid, gpu_process)).collect();
        }
        self.adding = gpu_processes.iter().map(|&pid| (pid, Sum::default())).collect();
    }

    /// Reads the descendants and adds them up; where to go on, unless that was all.
    fn measure(&mut self, from: usize, reads: &mut usize, now: f64, scratch: &mut Scratch) -> Option<usize> {
        for index in from..self.kept.len() {
            if *reads == 0 {
                return Some(index);
            }
            *reads -= 1;
            let kept = &mut self.kept[index];
            let Ok(place) = self.adding.binary_search_by_key(&kept.gpu_process, |&(pid, _)| pid) else { continue };
            let sum = &mut self.adding[place].1;
            let Some(stat) = scratch.read_process(kept.pid, "stat", 1024).ok().and_then(Stat::parse) else { continue };
            if stat.parent != kept.parent {
                // Whoever was between it and the GPU process has ended since the walk, or before it.
                self.walk.forget(kept.pid);
                continue;
            }
            if matches!(stat.state, ProcessState::Zombie | ProcessState::Dead) {
                continue;
            }
            sum.count += 1;
            sum.blocked += u32::from(stat.state == ProcessState::DiskSleep);
            if kept.start_ticks == stat.start_ticks && now > kept.read_at {
                let seconds = stat.cpu_ticks.saturating_sub(kept.cpu_ticks) as f64 / TICKS_PER_SECOND;
                *sum.cpu_percent.get_or_insert(0.0) += 100.0 * seconds / (now - kept.read_at);
            }
            (kept.start_ticks, kept.cpu_ticks, kept.read_at) = (stat.start_ticks, stat.cpu_ticks, now);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    fn moment(now: f64) -> Moment {
        Moment { now, uptime_seconds: None, boot_unix_seconds: None, unix_seconds: 0, forks: None }
    }

    /// Walks to the end, once.
    fn walk(descendants: &mut Descendants, gpu_processes: &[u32], now: f64) {
        let mut scratch = Scratch::default();
        for _ in 0..100_000 {
            descendants.step(gpu_processes, moment(now), &mut scratch);
            if matches!(descendants.step, Step::Resting) {
                return;
            }
        }
        panic!("the walk does not end");
    }

    fn told(descendants: &Descendants, pid: u32) -> (Option<u32>, Option<f32>, Option<u32>) {
        let mut reading = ProcessReading::default();
        descendants.tell(pid, &mut reading);
        (reading.descendants, reading.descendants_cpu_percent, reading.descendants_blocked)
    }

    #[test]
    fn children_of_children_count_and_those_on_a_gpu_do_not() {
        // A shell with two sleepers, one of them below another shell.
        let script = "sleep 600 & sh -c 'sleep 600 & echo $$; wait' & read _; kill 0";
        let mut command = Command::new("setsid");
        let mut job = command.args(["sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(job.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let inner: u32 = line.trim().parse().unwrap();
        let mut descendants = Descendants::default();
        walk(&mut descendants, &[job.id()], 1.0);
        assert_eq!(told(&descendants, job.id()), (Some(3), None, Some(0)));
        // Within ten seconds nothing is read again; after them the CPU time has a share.
        walk(&mut descendants, &[job.id()], 10.9);
        assert_eq!(told(&descendants, job.id()).1, None);
        walk(&mut descendants, &[job.id()], 11.0);
        assert_eq!(told(&descendants, job.id()), (Some(3), Some(0.0), Some(0)));
        // On a GPU of its own, the inner shell is nobody's worker, and has its own.
        let mut both = [job.id(), inner];
        both.sort_unstable();
        walk(&mut descendants, &both, 21.0);
        assert_eq!(told(&descendants, job.id()).0, Some(1));
        assert_eq!(told(&descendants, inner).0, Some(1));
        drop(job.stdin.take());
        job.wait().unwrap();
        walk(&mut descendants, &both, 31.0);
        assert_eq!(told(&descendants, job.id()), (Some(0), None, Some(0)));
    }

    #[test]
    fn who_has_lost_the_parents_up_to_the_gpu_process_descends_from_it_no_more() {
        // A shell above a shell above a sleeper.
        let script = "sh -c 'sleep 600 & echo $! $$; wait' & read _; kill 0";
        let mut command = Command::new("setsid");
        let mut job = command.args(["sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(job.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut pids = line.split_whitespace().map(|pid| pid.parse::<i32>().unwrap());
        let (sleeper, inner) = (pids.next().unwrap(), pids.next().unwrap());
        let mut descendants = Descendants::default();
        walk(&mut descendants, &[job.id()], 1.0);
        assert_eq!(told(&descendants, job.id()).0, Some(2));
        let inner = rustix::process::Pid::from_raw(inner).unwrap();
        rustix::process::kill_process(inner, rustix::process::Signal::KILL).unwrap();
        let parent = || {
            Scratch::default().read_process(sleeper as u32, "stat", 1024).map(|line| Stat::parse(line).unwrap().parent)
        };
        while parent() == Ok(inner.as_raw_nonzero().get() as u32) {
            std::thread::yield_now();
        }
        // Nothing has started since, as far as is known, so that the inner shell is taken for living.
        descendants.step = Step::Measuring(0);
        descendants.find(&[job.id()]);
        walk(&mut descendants, &[job.id()], 2.0);
        assert_eq!(told(&descendants, job.id()).0, Some(0));
        drop(job.stdin.take());
        job.wait().unwrap();
    }

    #[test]
    fn where_no_gpu_is_used_the_walk_is_rarer() {
        let mut descendants = Descendants::default();
        walk(&mut descendants, &[], 5.0);
        assert!((descendants.began - 5.0).abs() < 0.1);
        descendants.step(&[], moment(64.0), &mut Scratch::default());
        assert!((descendants.began - 5.0).abs() < 0.1);
        descendants.step(&[], moment(65.0), &mut Scratch::default());
        assert!((descendants.began - 65.0).abs() < 0.1);
    }
}
