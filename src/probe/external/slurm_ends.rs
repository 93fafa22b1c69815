//! How Slurm jobs ended.
//!
//! When the last process of a job leaves the GPUs, or a job is no longer in the list of running jobs, `scontrol show job` tells
//! how it ended: slurmctld knows an ended job for `MinJobAge`, 300 s by default. `sacct` would know it longer, and needs slurmdbd.
//! [`SlurmEnds`] decides which job to query and when, and starts no program.
//!
//! If slurmctld does not answer, because it hangs or is down, no end is queried for a while: the time doubles each time. The
//! next query is that of another job, because the output of one may be longer than a pipe holds (the tasks of an array).

use crate::wire::{SafeText, SlurmJobEnd, is_slurm_job_id};

/// Maximum number of jobs whose end is known or queried.
const MAX_ENDS: usize = 32;
/// The end of a job is queried this long after its last process, and again while its epilog runs.
const END_SECONDS: f64 = 5.0;
/// A job ends on all of its nodes at once: their queries are spread over this time.
const SPREAD_SECONDS: f64 = 10.0;
/// A job that left the GPUs and runs on is not queried again for this long: its next step may use them for seconds only.
const RUNS_ON_SECONDS: f64 = 60.0;
/// How often the end of a job is queried while its epilog runs, or while no query can start. Each time takes twice as long.
const MAX_END_QUERIES: u32 = 5;
/// No end is queried for this long after a query without an answer. The time doubles with each further one, [`MAX_DOUBLINGS`]
/// times.
const PAUSE_SECONDS: f64 = 20.0;
const MAX_DOUBLINGS: u32 = 3;
/// The end of a job is not queried later than this: slurmctld forgets it (slurm.conf(5), `MinJobAge`).
const MIN_JOB_AGE_SECONDS: f64 = 300.0;
/// States of a job that has not ended (slurm, src/common/slurm_protocol_defs.c, `job_state_string`).
const HAS_NOT_ENDED: [&str; 6] = ["RUNNING", "SUSPENDED", "CONFIGURING", "RESIZING", "SIGNALING", "STOPPED"];

/// The jobs that have ended, or may have, the oldest first.
#[derive(Debug)]
pub(crate) struct SlurmEnds {
    ends: Vec<JobEnd>,
    /// Time from the end of a job to its query.
    delay_seconds: f64,
    /// No end is queried before this time.
    paused_until: f64,
    /// The number of queries in a row without an answer.
    unanswered: u32,
}

/// The answer to the query of an end.
#[derive(Debug, Clone, Copy)]
pub(super) enum Answer<'a> {
    /// The output of `scontrol show job`.
    Text(&'a str),
    /// It failed: the job was forgotten, or may not be seen.
    Failed,
    /// slurmctld did not answer in time, or does not accept connections.
    Unanswered,
    /// It could not start.
    NotStarted,
}

/// A job that has ended, or may have.
#[derive(Debug)]
struct JobEnd {
    job: SafeText,
    /// When it was noted.
    noted_at: f64,
    /// How many times it was queried.
    queries: u32,
    state: EndState,
}

#[derive(Debug, PartialEq)]
enum EndState {
    /// To be queried at this time.
    Due(f64),
    /// It runs on, or slurmctld does not know it. It may leave the GPUs again after this time.
    Unknown(f64),
    /// It has ended. `is_sent`: the controller knows it.
    Known { end: SlurmJobEnd, is_sent: bool },
}

impl SlurmEnds {
    /// `phase`, from 0 to 1, should differ between the hosts of a cluster.
    pub(super) fn new(phase: f64) -> Self {
        let delay_seconds = END_SECONDS + phase * SPREAD_SECONDS;
        Self { ends: Vec::new(), delay_seconds, paused_until: 0.0, unanswered: 0 }
    }

    /// Notes that the last process of a job has left the GPUs: it may have ended.
    pub(crate) fn note_left(&mut self, job: &SafeText, now: f64) {
        self.note_end(job, false, now);
    }

    /// Notes the jobs that have processes on the GPUs. One whose end is known runs again under its id. One whose end is due has
    /// not ended: its next step has begun, or an earlier connection knew it.
    pub(crate) fn note_on_gpus<'a>(&mut self, jobs: impl Iterator<Item = &'a SafeText>) {
        for job in jobs {
            self.ends.retain(|end| end.job != *job || matches!(end.state, EndState::Unknown(_)));
        }
    }

    /// Notes that a job does not run any more: it is no longer listed.
    pub(super) fn note_unlisted(&mut self, job: &SafeText, now: f64) {
        self.note_end(job, true, now);
    }

    /// Notes that a job may have ended. `is_unlisted`: it does not run any more.
    fn note_end(&mut self, job: &SafeText, is_unlisted: bool, now: f64) {
        // It becomes an argument of `scontrol`.
        if !is_slurm_job_id(job) {
            return;
        }
        if let Some(known) = self.ends.iter().position(|end| end.job == *job) {
            let is_over = match &self.ends[known].state {
                EndState::Due(_) => false,
                EndState::Unknown(until) => is_unlisted || now >= *until,
                // A job that was put back into the queue runs again under its id.
                EndState::Known { end, .. } => end.state == "PENDING",
            };
            if !is_over {
                return;
            }
            self.ends.remove(known);
        }
        if self.ends.len() == MAX_ENDS {
            self.ends.remove(0);
        }
        let state = EndState::Due(now + self.delay_seconds);
        self.ends.push(JobEnd { job: job.clone(), noted_at: now, queries: 0, state });
    }

    /// Returns the job whose end has been due for the longest time, and since when.
    pub(super) fn due(&mut self, now: f64) -> Option<(f64, SafeText)> {
        if now < self.paused_until {
            return None;
        }
        let mut first: Option<(f64, &SafeText)> = None;
        for end in &mut self.ends {
            let EndState::Due(due) = end.state else { continue };
            if now > end.noted_at + MIN_JOB_AGE_SECONDS {
                end.state = EndState::Unknown(now);
            } else if now >= due && first.is_none_or(|(earlier, _)| due < earlier) {
                first = Some((due, &end.job));
            }
        }
        first.map(|(due, job)| (due, job.clone()))
    }

    /// Notes that slurmctld did not answer a query: no end is queried for a while.
    pub(super) fn pause(&mut self, now: f64) {
        self.paused_until = now + pause_seconds(self.unanswered);
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// Notes that slurmctld has answered a query: the next one without an answer is the first one again.
    pub(super) fn note_answer(&mut self) {
        self.unanswered = 0;
    }

    /// Takes the answer to the query of the end of a job.
    pub(super) fn take_answer(&mut self, job: &SafeText, answer: Answer, now: f64) {
        let Some(known) = self.ends.iter_mut().find(|end| end.job == *job) else { return };
        known.queries += 1;
        let end = if let Answer::Text(text) = answer { job_end(text, job) } else { None };
        let is_completing = end.as_ref().is_some_and(|end| matches!(&*end.state, "COMPLETING" | "STAGE_OUT"));
        let retry_seconds = match answer {
            Answer::Unanswered => Some(pause_seconds(known.queries - 1)),
            _ if is_completing || matches!(answer, Answer::NotStarted) => {
                Some(END_SECONDS * f64::from(1 << known.queries))
            }
            _ => None,
        };
        known.state = match (end, retry_seconds) {
            (_, Some(seconds)) if known.queries < MAX_END_QUERIES => EndState::Due(now + seconds),
            (Some(end), None) if !HAS_NOT_ENDED.contains(&&*end.state) => EndState::Known { end, is_sent: false },
            _ => EndState::Unknown(now + RUNS_ON_SECONDS),
        };
    }

    /// Returns when the end of a job is queried.
    #[cfg(test)]
    pub(super) fn due_at(&self, job: &str) -> Option<f64> {
        self.ends.iter().find_map(|end| match end.state {
            EndState::Due(due) if *end.job == *job => Some(due),
            _ => None,
        })
    }

    /// Returns the ends that the controller does not know, or all of them if `resend`.
    pub(super) fn take(&mut self, resend: bool) -> Vec<SlurmJobEnd> {
        let mut ends = Vec::new();
        for known in &mut self.ends {
            if let EndState::Known { end, is_sent } = &mut known.state
                && (resend || !*is_sent)
            {
                *is_sent = true;
                ends.push(end.clone());
            }
        }
        ends
    }
}

/// Returns the pause after a query without an answer that follows this many others.
fn pause_seconds(earlier: u32) -> f64 {
    PAUSE_SECONDS * f64::from(1 << earlier.min(MAX_DOUBLINGS))
}

/// Parses the state of a job in the output of `scontrol show job`, which begins with `JobId=3385 JobName=train`. Lines of
/// interest are `JobState=FAILED Reason=NonZeroExitCode Dependency=(null)` and `Requeue=1 Restarts=0 ExitCode=1:0`, the exit
/// status and the signal of the batch script.
fn job_end(text: &str, job: &str) -> Option<SlurmJobEnd> {
    let is_asked = |line: &&str| line.split(' ').next().and_then(|word| word.strip_prefix("JobId=")) == Some(job);
    let mut lines = text.lines().skip_while(|line| !is_asked(line)).skip(1).map(str::trim_start);
    let state = lines.find_map(|line| line.strip_prefix("JobState="))?.split(' ').next()?;
    let code = lines.find_map(|line| line.split(' ').find_map(|word| word.strip_prefix("ExitCode=")));
    let (status, signal) = code.and_then(|code| code.split_once(':')).unwrap_or_default();
    Some(SlurmJobEnd {
        job: job.into(),
        state: SafeText::new(state),
        exit_status: status.parse().ok(),
        signal: signal.parse().ok().filter(|signal| *signal > 0),
    })
}

/// The output of `scontrol show job` (slurm, src/api/job_info.c): its name contains the line of a state.
#[cfg(test)]
pub(super) fn shown(state: &str, exit_code: &str) -> String {
    format!(
        "JobId=3385 JobName=JobState=COMPLETED Reason=None\n   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A\n   \
         Priority=4294901757 Nice=0 Account=lab QOS=normal\n   JobState={state} Dependency=(null)\n   \
         Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={exit_code}\n   RunTime=00:12:01 TimeLimit=1-00:00:00 \
         TimeMin=N/A\n   WorkDir=/home/ann/ExitCode=9:9\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_exit_codes_of_jobs_are_parsed() {
        let end = |state: &str, exit_status, signal| {
            Some(SlurmJobEnd { job: "3385".into(), state: state.into(), exit_status, signal })
        };
        for (state, exit_code, expected) in [
            ("COMPLETED Reason=None", "0:0", end("COMPLETED", Some(0), None)),
            ("FAILED Reason=NonZeroExitCode", "1:0", end("FAILED", Some(1), None)),
            ("FAILED Reason=RaisedSignal:9(Killed)", "0:9", end("FAILED", Some(0), Some(9))),
            ("OUT_OF_MEMORY Reason=OutOfMemory", "0:125", end("OUT_OF_MEMORY", Some(0), Some(125))),
            ("CANCELLED Reason=None", "0:15", end("CANCELLED", Some(0), Some(15))),
            ("TIMEOUT Reason=TimeLimit", "x", end("TIMEOUT", None, None)),
        ] {
            assert_eq!(job_end(&shown(state, exit_code), "3385"), expected, "{state}");
        }
        assert_eq!(job_end(&shown("COMPLETED Reason=None", "0:0"), "338"), None);
        for text in ["", "JobId=3385 JobName=x", "slurm_load_jobs error: Invalid job id specified"] {
            assert_eq!(job_end(text, "3385"), None, "{text}");
        }
    }

    #[test]
    fn nodes_of_one_job_query_its_end_at_different_times() {
        let due = |node: u32| {
            let mut ends = SlurmEnds::new(f64::from(node) / 64.0);
            ends.note_left(&"3385".into(), 100.0);
            ends.due_at("3385").expect("is queried")
        };
        let times: Vec<f64> = (0..64).map(due).collect();
        assert!(times.iter().all(|time| (105.0..115.0).contains(time)), "{times:?}");
        for second in 105..115 {
            let in_second = times.iter().filter(|time| **time as u32 == second).count();
            assert!((6..=7).contains(&in_second), "{in_second} queries in second {second}");
        }
    }

    /// Notes the ends of these jobs and queries each that is due, until no end is left. Returns the job and the time of each query,
    /// which takes ten seconds if it times out.
    fn queries(jobs: u32, answer: impl Fn(&str, f64) -> Answer<'static>) -> (SlurmEnds, Vec<(String, f64)>) {
        let (mut ends, mut queries) = (SlurmEnds::new(0.0), Vec::new());
        for job in 0..jobs {
            ends.note_left(&job.to_string().into(), 0.0);
        }
        let mut now = 0.0;
        while now < 2000.0 {
            if let Some((_, job)) = ends.due(now) {
                queries.push((job.to_string(), now));
                let answer = answer(&job, now);
                now += if matches!(answer, Answer::Unanswered) { 10.0 } else { 0.0 };
                if matches!(answer, Answer::Unanswered) {
                    ends.pause(now);
                }
                ends.take_answer(&job, answer, now);
            }
            now += 1.0;
        }
        (ends, queries)
    }

    #[test]
    fn a_slurmctld_that_hangs_is_queried_rarely_whatever_the_number_of_jobs() {
        let (ends, all) = queries(32, |_, _| Answer::Unanswered);
        let times: Vec<f64> = all.iter().map(|(_, time)| *time).collect();
        assert_eq!(times, [5.0, 35.0, 85.0, 175.0], "and none when slurmctld has forgotten the jobs");
        let jobs: Vec<&str> = all.iter().map(|(job, _)| job.as_str()).collect();
        assert_eq!(jobs, ["0", "1", "2", "3"], "another one each time");
        assert!((0..32).all(|job| ends.due_at(&job.to_string()).is_none()));
        assert_eq!(queries(1, |_, _| Answer::Unanswered).1.len(), 4);
    }

    #[test]
    fn all_ends_are_queried_when_slurmctld_answers_again() {
        let (_, all) = queries(8, |_, now| if now < 50.0 { Answer::Unanswered } else { Answer::Failed });
        let times: Vec<f64> = all.iter().map(|(_, time)| *time).collect();
        assert_eq!(times[..3], [5.0, 35.0, 85.0]);
        assert_eq!((times.len(), times.last()), (10, Some(&92.0)), "{all:?}");
    }

    #[test]
    fn a_job_whose_query_times_out_delays_the_others_for_its_pauses_only() {
        let (_, all) = queries(4, |job, _| if job == "1" { Answer::Unanswered } else { Answer::Failed });
        let of_job = |job: &str| all.iter().filter(|(one, _)| one == job).map(|(_, time)| *time).collect::<Vec<_>>();
        assert_eq!(of_job("1"), [6.0, 38.0, 88.0, 178.0], "{all:?}");
        assert_eq!((of_job("0"), of_job("2"), of_job("3")), (vec![5.0], vec![36.0], vec![37.0]), "{all:?}");
    }

    #[test]
    fn a_job_that_is_on_the_gpus_again_is_not_queried() {
        let mut ends = SlurmEnds::new(0.0);
        for job in ["3385", "3386"] {
            ends.note_left(&job.into(), 1.0);
        }
        ends.note_on_gpus(["3385".into()].iter());
        assert_eq!((ends.due_at("3385"), ends.due_at("3386")), (None, Some(6.0)));
        ends.note_left(&"3385".into(), 10.0);
        assert_eq!(ends.due_at("3385"), Some(15.0));
    }

    #[test]
    fn ids_are_checked_and_their_number_is_limited() {
        let mut ends = SlurmEnds::new(0.0);
        for job in ["3385", "s5K1KKYAYG5D00", "-a", "", "123456789012345678901"] {
            ends.note_left(&job.into(), 1.0);
        }
        assert_eq!(ends.ends.len(), 1, "others are no job ids");
        for job in 0..40 {
            ends.note_left(&job.to_string().into(), 1.0);
        }
        assert_eq!(ends.ends.len(), MAX_ENDS);
    }
}
