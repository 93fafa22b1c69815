//! The number of a Slurm job whose cgroup tells only its SLUID (Slurm 26.05 and newer), where neither the title of its
//! step's daemon nor its environment told it: by `scontrol pidinfo`, else by what a prolog wrote down for each GPU.

use super::child::{Answer, Asked, Program};
use super::slurm::scontrol;
use crate::probe::blocking::BlockingPool;
use crate::wire::SafeText;
use std::path::{Path, PathBuf};

/// slurmd answers at once, the controller behind it within seconds.
const LIMIT_SECONDS: f64 = 10.0;
/// A job of which nobody knew the number is asked about again after so long.
const AGAIN_SECONDS: f64 = 600.0;
/// The most jobs that are remembered, and that wait.
const MAX_JOBS: usize = 256;
/// Where the prolog of Princeton's jobstats writes a file for each GPU that a job holds, `JOB UID`.
const NOTES: &str = "/run/gpustat";
/// The most of those that are read, and of each.
const MAX_NOTES: usize = 256;
const MAX_NOTE_BYTES: usize = 64;

/// What is known, and who is asked.
#[derive(Debug)]
pub(crate) struct Jobs {
    pool: BlockingPool,
    /// `scontrol`.
    program: Program,
    notes: PathBuf,
    asked: Option<(Job, Asked)>,
    waiting: Vec<Job>,
    known: Vec<Known>,
}

/// A job by one of its processes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Job {
    sluid: SafeText,
    pid: u32,
    uid: Option<u32>,
}

#[derive(Debug)]
struct Known {
    sluid: SafeText,
    number: Option<SafeText>,
    /// When it was asked about, by the clock of [`Jobs::step`].
    asked_at: f64,
}

impl Jobs {
    pub(crate) fn new(pool: BlockingPool) -> Self {
        let program = Program::new(scontrol);
        Self { pool, program, notes: NOTES.into(), asked: None, waiting: Vec::new(), known: Vec::new() }
    }

    /// One job is known, and nobody can be asked about others.
    #[cfg(test)]
    pub(super) fn knowing(sluid: &str, number: &str) -> Self {
        let known = Known { sluid: sluid.into(), number: Some(number.into()), asked_at: 0.0 };
        Self { program: Program::at(None), notes: PathBuf::new(), known: vec![known], ..Self::new(BlockingPool::new()) }
    }

    /// The number of the job to which this process of this user belongs, where it is known by now.
    pub(crate) fn number(&mut self, sluid: &SafeText, pid: u32, uid: Option<u32>) -> Option<SafeText> {
        if let Some(known) = self.known.iter().find(|known| known.sluid == *sluid) {
            return known.number.clone();
        }
        let is_asked = self.asked.as_ref().is_some_and(|(job, _)| job.sluid == *sluid);
        if !is_asked && self.waiting.len() < MAX_JOBS && self.waiting.iter().all(|job| job.sluid != *sluid) {
            self.waiting.push(Job { sluid: sluid.clone(), pid, uid });
        }
        None
    }

    /// Goes on asking, one job at a time.
    pub(crate) fn step(&mut self, now: f64) {
        self.known.retain(|known| known.number.is_some() || now - known.asked_at < AGAIN_SECONDS);
        if let Some((job, mut child)) = self.asked.take() {
            match child.look(now) {
                Answer::Pending | Answer::Late => self.asked = Some((job, child)),
                Answer::Said(text) => self.learn(job, number_in(&text), now),
                Answer::Failed => self.learn(job, None, now),
            }
        }
        while self.asked.is_none() && !self.waiting.is_empty() {
            let job = self.waiting.remove(0);
            let pid = job.pid.to_string();
            match Asked::start(&self.pool, &self.program, &["pidinfo", &pid], now, LIMIT_SECONDS) {
                Some(child) => self.asked = Some((job, child)),
                None => self.learn(job, None, now),
            }
        }
    }

    /// The child that is asked.
    pub(super) fn child(&self) -> Option<&Asked> {
        self.asked.as_ref().map(|(_, child)| child)
    }

    fn learn(&mut self, job: Job, number: Option<SafeText>, asked_at: f64) {
        let number = number.or_else(|| noted(&self.notes, job.uid?));
        // What came first has most likely ended first.
        if self.known.len() >= MAX_JOBS {
            self.known.remove(0);
        }
        self.known.push(Known { sluid: job.sluid, number, asked_at });
    }
}

/// `Slurm job id 3385 ends at Mon Nov 24 10:00:00 2025`.
fn number_in(text: &str) -> Option<SafeText> {
    let number = text.strip_prefix("Slurm job id ")?.split_ascii_whitespace().next()?;
    is_number(number).then(|| SafeText::new(number))
}

/// The only job of this user among the notes; of two it could be either.
fn noted(folder: &Path, uid: u32) -> Option<SafeText> {
    let notes = std::fs::read_dir(folder).ok()?.flatten().take(MAX_NOTES);
    let mut jobs = notes.filter_map(|note| {
        let bytes = std::fs::read(note.path()).ok().filter(|bytes| bytes.len() <= MAX_NOTE_BYTES)?;
        let text = String::from_utf8(bytes).ok()?;
        let (job, owner) = text.trim().split_once(' ')?;
        (is_number(job) && owner.parse() == Ok(uid)).then(|| job.to_owned())
    });
    let first = jobs.next()?;
    jobs.all(|job| job == first).then(|| first.into())
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::super::child::script;
    use super::*;
    use std::time::{Duration, Instant};

    const SLUID: &str = "s5K1KKYAYG5D00";

    /// With a `scontrol` that is this script, and notes in the same folder.
    fn with_scontrol(text: &str) -> (Jobs, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let program = script(folder.path(), "scontrol", text);
        let notes = folder.path().join("gpustat");
        std::fs::create_dir(&notes).unwrap();
        (Jobs { program: Program::at(Some(program)), notes, ..Jobs::new(BlockingPool::new()) }, folder)
    }

    fn settled(jobs: &mut Jobs, now: f64) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while (jobs.asked.is_some() || !jobs.waiting.is_empty()) && Instant::now() < deadline {
            jobs.step(now);
            std::thread::yield_now();
        }
    }

    #[test]
    fn scontrol_is_asked_once_a_job_and_knows_its_number() {
        // What scontrol prints (slurm, src/scontrol/info_job.c).
        let script = "echo \"$*\" >>\"$0.asked\"; echo 'Slurm job id 3385 ends at Mon Nov 24 10:00:00 2025'; \
                      echo 'slurm_get_rem_time is 3600'";
        let (mut jobs, folder) = with_scontrol(script);
        let sluid = SafeText::new(SLUID);
        assert_eq!((jobs.number(&sluid, 77, None), jobs.number(&sluid, 78, None)), (None, None));
        settled(&mut jobs, 1.0);
        assert_eq!(jobs.number(&sluid, 78, None).as_deref(), Some("3385"));
        jobs.step(10_000.0);
        assert_eq!(jobs.number(&sluid, 78, None).as_deref(), Some("3385"), "what is known stays");
        assert_eq!(std::fs::read_to_string(folder.path().join("scontrol.asked")).unwrap(), "pidinfo 77\n");
    }

    #[test]
    fn else_the_notes_of_the_prolog_tell_where_the_user_has_one_job() {
        let (mut jobs, folder) = with_scontrol("exit 1");
        let note = |name: &str, text: &str| std::fs::write(folder.path().join("gpustat").join(name), text).unwrap();
        note("0", "45916256 1000\n");
        note("GPU-00000000-0000-4000-8000-000000000000", "45916256 1000\n");
        note("1", "77 1001\n");
        note("2", "78 1001\n");
        note("3", "no note");
        note("4", &"9".repeat(500));
        for (sluid, uid, expected) in [
            ("s00000000000A1", Some(1000), Some("45916256")),
            ("s00000000000A2", Some(1001), None),
            ("s00000000000A3", Some(1002), None),
            ("s00000000000A4", None, None),
        ] {
            let sluid = SafeText::new(sluid);
            assert_eq!(jobs.number(&sluid, 77, uid), None);
            settled(&mut jobs, 1.0);
            assert_eq!(jobs.number(&sluid, 77, uid).as_deref(), expected, "{sluid}");
        }
        assert!(jobs.waiting.is_empty(), "what nobody knows is not asked about again at once");
        jobs.step(601.0);
        jobs.number(&"s00000000000A2".into(), 77, None);
        assert_eq!(jobs.waiting.len(), 1);
    }

    #[test]
    fn without_scontrol_and_notes_nothing_is_known_and_nothing_waits() {
        let mut jobs =
            Jobs { program: Program::at(None), notes: "/nonexistent".into(), ..Jobs::new(BlockingPool::new()) };
        let sluid = SafeText::new(SLUID);
        assert_eq!(jobs.number(&sluid, 77, Some(0)), None);
        jobs.step(1.0);
        assert_eq!((jobs.number(&sluid, 77, Some(0)), jobs.waiting.len()), (None, 0));
        for text in ["", "Slurm job id ", "Slurm job id x ends", "slurm_pid2jobid error: Invalid job id specified"] {
            assert_eq!(number_in(text), None, "{text:?}");
        }
    }
}
