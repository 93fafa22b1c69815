//! Programs that have left the GPUs and run again without one: they may fail each time before they reach it, or compute on the
//! CPU.
//!
//! The scan of /proc finds processes with the name and the user of such a program. They are then read like processes on a GPU, and
//! sent once their first arguments are known to be the same.

use super::files::{FileReader, Stat, TICKS_PER_SECOND};
use super::process::presence;
use crate::wire::{Presence, ProcessFacts, RERUN_SECONDS, SafeText};
use rustix::fs::fstat;
use rustix::io::Errno;

/// Maximum number of programs that are remembered.
const MAX_LEFT: usize = 16;
/// Maximum number of processes that are read although they are on no GPU.
const MAX_RUNS: usize = 8;
/// Maximum number of processes that are known not to be new runs. The scan finds a process several times while it is young.
const MAX_REJECTED: usize = 64;

/// A program that was on a GPU.
#[derive(Debug)]
struct LeftProgram {
    /// The process that left the GPU. It may still run, or the driver may have listed nothing for a moment.
    pid: u32,
    name: SafeText,
    uid: u32,
    /// See [`ProcessFacts::program_and_script`].
    argv: Vec<SafeText>,
    /// When the driver last listed it, in seconds since boot.
    at: f64,
}

impl LeftProgram {
    fn has_ended(&self) -> bool {
        presence(self.pid, Errno::NOENT) == Presence::Gone
    }
}

#[derive(Debug, Default)]
pub(super) struct Reruns {
    left: Vec<LeftProgram>,
    /// The processes that may be new runs.
    runs: Vec<u32>,
    rejected: Vec<u32>,
}

impl Reruns {
    /// Remembers a process that has left the GPUs. The driver listed it for the last time at `uptime_seconds`.
    pub(super) fn remember(&mut self, pid: u32, facts: &ProcessFacts, uptime_seconds: f64) {
        let (Some(name), Some(uid)) = (facts.name.clone(), facts.uid) else { return };
        let argv = facts.program_and_script().to_vec();
        if argv.is_empty() {
            return;
        }
        self.left.retain(|left| left.uid != uid || left.argv != argv);
        if self.left.len() >= MAX_LEFT {
            let still_runs = self.left.iter().position(|left| !left.has_ended());
            self.left.remove(still_runs.unwrap_or(0));
        }
        self.left.push(LeftProgram { pid, name, uid, argv, at: uptime_seconds });
    }

    /// Forgets programs that left the GPUs long ago, unless a new run is still read.
    pub(super) fn expire(&mut self, uptime_seconds: f64) {
        if self.runs.is_empty() {
            self.left.retain(|left| uptime_seconds - left.at <= RERUN_SECONDS);
        }
    }

    /// Whether no program is remembered.
    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// Adds a process that the scan has found if it may be a new run. Its name is read from `stat`.
    pub(super) fn consider(&mut self, pid: u32, stat: &Stat<'_>) {
        let started = stat.start_ticks as f64 / TICKS_PER_SECOND;
        let is_known = self.runs.len() >= MAX_RUNS || self.runs.contains(&pid) || self.rejected.contains(&pid);
        // Children have the name of their parent until they start another program.
        if is_known || self.runs.contains(&stat.parent) {
            return;
        }
        let mut uid = None;
        let is_new_run = self.left.iter().any(|left| {
            left.name.as_bytes() == stat.name
                && started >= left.at
                && *uid.get_or_insert_with(|| owner(pid)) == Some(left.uid)
                && left.has_ended()
        });
        if is_new_run {
            self.runs.push(pid);
        }
    }

    /// The processes that may be new runs.
    pub(super) fn runs(&self) -> &[u32] {
        &self.runs
    }

    /// Removes a process that is on a GPU, has ended or is not a new run.
    pub(super) fn reject(&mut self, pid: u32) {
        self.runs.retain(|other| *other != pid);
        if self.rejected.len() >= MAX_REJECTED {
            self.rejected.remove(0);
        }
        self.rejected.push(pid);
    }

    /// Whether a process is a new run; `None` until its arguments are known.
    pub(super) fn is_new_run(&self, facts: &ProcessFacts) -> Option<bool> {
        let is_same = |left: &LeftProgram| facts.uid == Some(left.uid) && facts.program_and_script() == left.argv;
        (!facts.argv.is_empty()).then(|| self.left.iter().any(is_same))
    }
}

/// The user of a process.
fn owner(pid: u32) -> Option<u32> {
    let file = FileReader::default().open_process(pid, "stat").ok()?;
    Some(fstat(file).ok()?.st_uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(name: &str, script: &str) -> ProcessFacts {
        let argv = vec![name.into(), script.into()];
        ProcessFacts { name: Some(name.into()), uid: Some(0), argv, ..ProcessFacts::default() }
    }

    #[test]
    fn programs_are_forgotten_after_three_hours_and_beyond_their_number() {
        let mut reruns = Reruns::default();
        for number in 0..MAX_LEFT + 2 {
            reruns.remember(u32::MAX - 1, &facts("python", &number.to_string()), number as f64);
        }
        reruns.remember(u32::MAX - 1, &facts("python", "5"), 100.0);
        assert_eq!(reruns.left.len(), MAX_LEFT);
        assert_eq!(reruns.is_new_run(&facts("python", "1")), Some(false), "the oldest ones");
        assert_eq!(reruns.is_new_run(&facts("python", "2")), Some(true));
        assert_eq!(reruns.is_new_run(&ProcessFacts::default()), None);
        reruns.expire(RERUN_SECONDS + 50.0);
        assert_eq!(reruns.left.len(), 1, "the one that left again later");
        reruns.expire(RERUN_SECONDS + 101.0);
        assert!(reruns.is_empty());
        reruns.remember(u32::MAX - 1, &facts("python", "5"), 0.0);
        reruns.runs.push(7);
        reruns.expire(RERUN_SECONDS + 101.0);
        assert_eq!(reruns.is_new_run(&facts("python", "5")), Some(true), "one of its runs goes on");
    }

    #[test]
    fn a_program_that_still_runs_has_no_new_run_and_makes_room_first() {
        let mut reruns = Reruns::default();
        reruns.remember(u32::MAX - 1, &facts("python", "ended"), 0.0);
        reruns.remember(std::process::id(), &facts("python", "runs"), 0.0);
        for number in 0..MAX_LEFT - 1 {
            reruns.remember(u32::MAX - 1, &facts("python", &number.to_string()), 1.0);
        }
        assert_eq!(reruns.is_new_run(&facts("python", "ended")), Some(true));
        assert_eq!(reruns.is_new_run(&facts("python", "runs")), Some(false));
    }

    #[test]
    fn processes_of_other_users_and_rejected_ones_are_not_read() {
        let line = std::fs::read("/proc/self/stat").expect("is readable");
        let stat = Stat::parse(&line).expect("parses");
        let own = std::process::id();
        let name = SafeText::from_bytes(stat.name);
        let uid = owner(own).expect("exists");
        let consider = |uid: u32, at: f64| {
            let mut reruns = Reruns::default();
            let facts = ProcessFacts { name: Some(name.clone()), uid: Some(uid), ..facts("python", "train.py") };
            reruns.remember(u32::MAX - 1, &facts, at);
            reruns.consider(own, &stat);
            reruns
        };
        assert!(consider(uid + 1, 0.0).runs().is_empty(), "another user");
        assert!(consider(uid, 1e12).runs().is_empty(), "it started before");
        let mut reruns = consider(uid, 0.0);
        assert_eq!(reruns.runs(), [own]);
        reruns.reject(own);
        reruns.consider(own, &stat);
        assert!(reruns.runs().is_empty());
    }
}
