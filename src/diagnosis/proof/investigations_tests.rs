//! Tests of the examinations of jobs that look hung, and of what their verdicts change in findings.

use super::super::testing::{WAITS, stack};
use super::*;
use crate::config::{HostConfig, Thresholds};
use crate::diagnosis::testing::{RuleTester, TestSample};
use crate::diagnosis::{Confidence, Transition};
use crate::fleet::fixture::{TestProcess, gpus, process};
use crate::fleet::{GpuState, HostUpdate, LinkError, LinkErrorKind};
use crate::output::notification::{Notification, summary};
use crate::wire::{
    Examination, ExaminationPart, GpuReading, Owner, ProcessExamination, ProcessState, ReplyOutcome, ThreadReading,
};
use std::sync::Arc;

/// The state of the ranks of the job in the answers of the probe. They are processes 7 and 8, and 107 and 108 on a second host.
#[derive(Clone, Copy, PartialEq)]
enum Ranks {
    /// Rank 8 is stopped, and rank 7 waits for it.
    OneIsStopped,
    /// Their stacks are elsewhere in each reading.
    Move,
    /// They wait, and nothing tells for what.
    Wait,
    /// Nothing can be read.
    Hidden,
}

/// A process of the Slurm job on one GPU.
fn rank(pid: u32, gpu: u16) -> TestProcess {
    let mut rank = process(pid, "python train.py", &[(gpu, 70)]);
    rank.reading.cpu_percent = Some(100.0);
    rank.facts.owner = Some(Owner::Slurm { job: "3385".into(), step: None });
    rank
}

/// Hosts of two GPUs with a job of one rank on each that has worked for 15 minutes.
struct JobTester {
    tester: RuleTester,
    investigations: Investigations,
    ranks: Ranks,
    /// The time and the host of each request.
    sent: Vec<(f64, HostId)>,
    /// The host that cannot be reached.
    lost: Option<usize>,
    /// While the job hangs, the GPU of rank 8 rests. Otherwise it spins, as that of rank 7.
    second_rests: bool,
    /// The CPU usage of rank 8 meanwhile.
    rest_cpu_percent: f32,
    /// When the ranks last wrote to their logs, if they have any. They write every two minutes while they work.
    logged_at: Option<f64>,
}

impl JobTester {
    fn new(ranks: Ranks, config: HostConfig) -> Self {
        Self::on_hosts(ranks, vec![HostConfig { name: "hgx-00".into(), ..config }])
    }

    fn on_hosts(ranks: Ranks, configs: Vec<HostConfig>) -> Self {
        let mut tester = RuleTester::of(vec![gpus(0..2); configs.len()], Thresholds::default());
        let configs: Vec<Arc<HostConfig>> = configs.into_iter().map(Arc::new).collect();
        tester.fleet.rearrange(&configs, tester.now());
        let mut job = Self::new_without_work(tester, ranks);
        job.run(900.0, true);
        job
    }

    fn new_without_work(tester: RuleTester, ranks: Ranks) -> Self {
        let (investigations, sent) = (Investigations::default(), Vec::new());
        Self {
            tester,
            investigations,
            ranks,
            sent,
            lost: None,
            second_rests: false,
            rest_cpu_percent: 0.0,
            logged_at: None,
        }
    }

    /// Lets the job work, or spin, for some seconds, and examines it.
    fn run(&mut self, seconds: f64, works: bool) {
        let end = self.tester.t + seconds;
        while self.tester.t < end {
            self.run_alone(10.0, works);
            self.examine();
        }
    }

    /// Lets the job hang until a finding warns.
    fn run_until_it_warns(&mut self) {
        for _ in 0..100 {
            if !self.notified().is_empty() {
                return;
            }
            self.run(10.0, false);
        }
        panic!("nothing warned within 1,000 s");
    }

    /// Lets the job work, or spin, for some seconds.
    fn run_alone(&mut self, seconds: f64, works: bool) {
        let (utilization, watts, memory) = if works { (98, 560.0, 45) } else { (100, 110.0, 0) };
        let end = self.tester.t + seconds;
        while self.tester.t < end {
            for id in 0..self.tester.fleet.hosts().len() {
                if self.lost == Some(id) {
                    continue;
                }
                let first = 100 * id as u32;
                let mut gpus: Vec<GpuReading> =
                    (0..2).map(|_| self.tester.gpu(utilization, watts, memory, 70)).collect();
                let mut processes = vec![rank(first + 7, 0), rank(first + 8, 1)];
                if self.second_rests && !works {
                    gpus[1] = self.tester.gpu(0, 129.0, 0, 70);
                    processes[1].reading.cpu_percent = Some(self.rest_cpu_percent);
                }
                if let Some(at) = &mut self.logged_at {
                    *at = if works && self.tester.t >= *at + 120.0 { self.tester.t } else { *at };
                    for process in &mut processes {
                        process.reading.log_age_seconds = Some(self.tester.t - *at);
                    }
                }
                self.tester.send(id, &TestSample { gpus, processes }, |_| {});
            }
            self.tester.wait(10.0);
        }
    }

    /// Sends what is due, and answers it at once.
    fn examine(&mut self) {
        loop {
            let now = self.tester.now();
            let RuleTester { fleet, engine, .. } = &mut self.tester;
            let requests = self.investigations.requests_due(fleet, engine, None, now);
            if requests.is_empty() {
                return;
            }
            for (host, request) in requests {
                let reply = self.reply(&request);
                self.sent.push((self.tester.t, host));
                let RuleTester { fleet, engine, .. } = &mut self.tester;
                assert!(self.investigations.take_reply(host, &reply, fleet, engine, now));
                assert!(!self.investigations.take_reply(host, &reply, fleet, engine, now), "only once");
            }
        }
    }

    fn reply(&self, request: &Request) -> Reply {
        let id = request.reply_id().expect("has a reply");
        let Request::Examine { pid, parts, .. } = request else {
            return Reply { id, outcome: ReplyOutcome::Refused("standard output is no regular file".into()) };
        };
        if self.ranks == Ranks::Hidden {
            return Reply { id, outcome: ReplyOutcome::NotPermitted };
        }
        let is_stopped = self.ranks == Ranks::OneIsStopped && *pid == 8;
        let main = ThreadReading {
            state: Some(if is_stopped { ProcessState::Stopped } else { ProcessState::Running }),
            user_ms: Some(if is_stopped { 0 } else { 1000 }),
            ..ThreadReading::default()
        };
        let process = ProcessExamination {
            seconds: 1.0,
            cpu_ms: main.user_ms,
            main_thread: Some(main),
            written_bytes: Some(0),
            ..ProcessExamination::default()
        };
        let place = format!("step_{}@train.py:88", self.tester.t);
        let frames = match self.ranks {
            Ranks::Move => [place.as_str(), "epoch@train.py:9", "fit@train.py:8", "main@train.py:120"],
            _ => [WAITS, "step@train.py:88", "fit@train.py:8", "main@train.py:120"],
        };
        let has = |part| parts.contains(&part);
        let examination = Examination {
            process: has(ExaminationPart::Process).then(|| Box::new(process)),
            stacks: has(ExaminationPart::Stacks).then(|| Box::new(stack(&frames))),
            ..Examination::default()
        };
        Reply { id, outcome: ReplyOutcome::Examined(Box::new(examination)) }
    }

    fn finding(&self) -> &Finding {
        self.tester.finding("stuck-spin")
    }

    /// Breaks the connection to the first host.
    fn lose_host(&mut self) {
        let error = LinkError::new(LinkErrorKind::Timeout, "no answer within 10 s");
        self.tester.update(0, HostUpdate::Down { error, retry_at: None, attempt: 1 });
        self.lost = Some(0);
    }

    fn outcome(&self) -> Option<Outcome> {
        self.finding().verdict.as_ref().map(|verdict| verdict.outcome)
    }

    /// The notifications about the job.
    fn notified(&self) -> Vec<&Transition> {
        let transitions = self.tester.transitions.iter();
        transitions.filter(|transition| transition.notify && transition.rule.is_hang()).collect()
    }
}

#[test]
fn the_finding_warns_with_its_culprit() {
    let mut job = JobTester::new(Ranks::OneIsStopped, HostConfig::named(""));
    let hung_at = job.tester.t;
    job.run(190.0, false);
    assert!(job.sent.is_empty(), "the job may go on by itself: {:?}", job.sent);
    job.run(120.0, false);
    let first = job.sent.first().expect("requests").0 - hung_at;
    assert!((195.0..=210.0).contains(&first), "105 s before the warning after 300 s, not after {first} s");
    let finding = job.finding();
    assert_eq!((finding.phase, finding.severity), (FindingPhase::Firing, Severity::Warn));
    let fired_at = finding.fired_at.expect("fired");
    let verdict = finding.verdict.as_ref().expect("a verdict");
    assert!(verdict.at.since(fired_at).is_zero(), "the second reading comes before the warning");
    assert_eq!((verdict.outcome, finding.confidence), (Outcome::Likely, Confidence::Likely));
    assert_eq!(verdict.culprits.iter().map(|rank| rank.pid).collect::<Vec<_>>(), [Some(8)]);
    let said = "a rank (pid 8 on hgx-00, GPU 1) is stopped (likely)";
    assert_eq!(verdict.text().as_deref(), Some(said));
    let news = job.tester.engine.notifications(&job.tester.transitions);
    assert_eq!(news.len(), 1);
    let text = summary(&Notification { news, left_out: 0 });
    assert!(text.starts_with(&format!("warn hgx-00: {said}; ")), "{text}");
    let before = job.sent.len();
    job.run(540.0, false);
    assert_eq!(job.sent.len(), before, "nothing is read again for ten minutes");
    job.run(60.0, false);
    assert!(job.sent.len() > before);
}

#[test]
fn a_job_whose_log_grew_until_it_hung_is_examined_before_it_warns() {
    let mut job = JobTester::new(Ranks::OneIsStopped, HostConfig::named(""));
    job.logged_at = Some(job.tester.t);
    job.run(900.0, true);
    let hung_at = job.tester.t;
    // As long as the log may go on, the finding would not warn for another quarter of an hour.
    job.run(200.0, false);
    assert!(job.finding().warns_after > Some(Duration::from_secs(600)), "{:?}", job.finding().warns_after);
    job.run_until_it_warns();
    let first = job.sent.first().expect("requests").0 - hung_at;
    assert!((195.0..=210.0).contains(&first), "105 s before the earliest warning after 300 s, not after {first} s");
    assert_eq!(job.outcome(), Some(Outcome::Likely), "the verdict was there before the warning");
}

#[test]
fn a_job_whose_resting_rank_may_work_at_first_is_examined_before_it_warns() {
    let mut job = JobTester::new(Ranks::OneIsStopped, HostConfig::named(""));
    job.second_rests = true;
    let hung_at = job.tester.t;
    job.run(200.0, false);
    let sentence = &job.finding().sentence;
    assert!(sentence.contains("shows signs of life"), "it would be a note: {sentence}");
    job.run_until_it_warns();
    let first = job.sent.first().expect("requests").0 - hung_at;
    assert!((195.0..=210.0).contains(&first), "105 s before the earliest warning after 300 s, not after {first} s");
    let verdict = job.tester.finding("missing-rank").verdict.as_ref();
    assert_eq!(verdict.map(|verdict| verdict.outcome), Some(Outcome::Likely), "it was there before the warning");
}

#[test]
fn a_job_is_examined_again_when_a_rank_that_seemed_to_work_rests() {
    let mut job = JobTester::new(Ranks::Wait, HostConfig::named(""));
    job.second_rests = true;
    // The rank evaluates for ten minutes.
    job.rest_cpu_percent = 100.0;
    job.run(600.0, false);
    let early = job.sent.len();
    assert!(early > 0 && job.notified().is_empty(), "{early} requests");
    job.ranks = Ranks::OneIsStopped;
    job.rest_cpu_percent = 0.0;
    let rests_at = job.tester.t;
    job.run(300.0, false);
    assert_eq!(job.notified().len(), 1);
    let finding = job.tester.engine.hangs().find(|finding| finding.severity >= Severity::Warn).expect("a warning");
    let verdict = finding.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.outcome, Outcome::Likely);
    let warned_at = finding.fired_at.expect("fired").since_start().as_secs_f64();
    let delay = verdict.at.since_start().as_secs_f64() - warned_at;
    assert!(delay <= 75.0, "{delay} s after the warning, {} s after the end of the work", warned_at - rests_at);
}

#[test]
fn a_job_that_moved_shortly_before_it_would_have_warned_is_examined_again_soon() {
    let mut job = JobTester::new(Ranks::Move, HostConfig::named(""));
    job.run(290.0, false);
    assert_eq!(job.outcome(), Some(Outcome::NotHung));
    job.ranks = Ranks::OneIsStopped;
    job.run(200.0, false);
    assert_eq!((job.outcome(), job.finding().severity), (Some(Outcome::Likely), Severity::Warn));
    assert_eq!(job.notified().len(), 1);
}

#[test]
fn a_job_that_moves_is_a_note_until_it_stands_still() {
    let mut job = JobTester::new(Ranks::Move, HostConfig::named(""));
    job.run(900.0, false);
    let finding = job.finding();
    assert_eq!((job.outcome(), finding.severity), (Some(Outcome::NotHung), Severity::Info));
    assert!(finding.sentence_with_verdict().starts_with("the job moves: "), "{}", finding.sentence_with_verdict());
    assert!(job.notified().is_empty(), "{:?}", job.notified());
    assert_eq!(job.tester.engine.suspicions(HostId(0)).count(), 0);
    let state = |job: &JobTester| job.tester.engine.states(HostId(0))[0].0;
    assert_ne!(state(&job), GpuState::Hung);
    job.ranks = Ranks::OneIsStopped;
    job.run(900.0, false);
    assert_eq!((job.outcome(), job.finding().severity), (Some(Outcome::Likely), Severity::Crit));
    assert_eq!((job.notified().len(), state(&job)), (1, GpuState::Hung));
}

#[test]
fn a_verdict_ends_with_its_hang() {
    let mut job = JobTester::new(Ranks::OneIsStopped, HostConfig::named(""));
    job.run(320.0, false);
    assert_eq!(job.outcome(), Some(Outcome::Likely));
    job.run(300.0, true);
    assert_eq!(job.tester.firing(), []);
    let sent = job.sent.len();
    job.run(100.0, false);
    assert_eq!((job.outcome(), job.sent.len()), (None, sent), "another hang, which is not examined yet");
}

#[test]
fn a_job_that_hangs_again_while_its_finding_resolves_is_examined_again() {
    let mut job = JobTester::new(Ranks::Move, HostConfig::named(""));
    job.run(320.0, false);
    assert_eq!(job.outcome(), Some(Outcome::NotHung));
    job.run(30.0, true);
    job.ranks = Ranks::OneIsStopped;
    job.run(20.0, false);
    assert_eq!((job.outcome(), job.notified().len()), (Some(Outcome::NotHung), 0), "it may move again");
    job.run(320.0, false);
    assert_eq!((job.outcome(), job.finding().severity), (Some(Outcome::Likely), Severity::Warn));
}

#[test]
fn a_note_about_a_job_that_moves_can_be_snoozed_and_warns_after_the_snooze() {
    let mut job = JobTester::new(Ranks::Move, HostConfig::named(""));
    job.run(620.0, false);
    let (id, now) = (job.finding().id.clone(), job.tester.now());
    assert!(job.tester.engine.snooze(&id, None, now));
    assert!(job.finding().snoozed.is_some(), "until it changes");
    job.tester.engine.end_snooze(&id, now);
    job.ranks = Ranks::OneIsStopped;
    job.run(700.0, false);
    assert_eq!((job.outcome(), job.notified().len()), (Some(Outcome::Likely), 1));
}

#[test]
fn a_verdict_that_is_not_renewed_is_dropped() {
    let mut job = JobTester::new(Ranks::Move, HostConfig::named(""));
    job.run(320.0, false);
    assert_eq!(job.outcome(), Some(Outcome::NotHung));
    job.ranks = Ranks::Hidden;
    job.run(700.0, false);
    assert_eq!(job.outcome(), Some(Outcome::Suspected), "the next examination can read nothing");
    assert_eq!(job.finding().severity, Severity::Crit);
    assert_eq!(job.finding().verdict.as_ref().and_then(|verdict| verdict.text()), None);
    // The verdict is the last one: nothing examines the job any more.
    job.investigations = Investigations::default();
    let verdict =
        FindingVerdict { outcome: Outcome::NotHung, ..(**job.finding().verdict.as_ref().expect("one")).clone() };
    let id = job.finding().id.clone();
    let verdict = FindingVerdict { until: job.tester.now().plus(FindingVerdict::VALID), ..verdict };
    job.tester.engine.set_verdict(|finding| finding.id == id, &verdict);
    job.run_alone(1530.0, false);
    assert_eq!((job.outcome(), job.finding().severity), (None, Severity::Crit));
}

#[test]
fn readings_that_say_nothing_change_nothing() {
    let mut job = JobTester::new(Ranks::Wait, HostConfig::named(""));
    job.run(620.0, false);
    assert_eq!((job.outcome(), job.finding().severity), (Some(Outcome::Suspected), Severity::Crit));
    assert_eq!(job.finding().sentence_with_verdict(), job.finding().sentence);
    assert_eq!(job.notified().len(), 2, "warn and crit");
}

#[test]
fn jobs_are_examined_only_where_hosts_toml_and_the_user_permit_it() {
    let requests = |config: HostConfig| {
        let mut job = JobTester::new(Ranks::Wait, config);
        job.run(620.0, false);
        job.sent.len()
    };
    assert!(requests(HostConfig::named("")) > 0);
    assert_eq!(requests(HostConfig { examine: ExamineRule::Asked, ..HostConfig::named("") }), 0);
    let relayed = HostConfig { relayed_by: Some("lab-head".into()), ..HostConfig::named("") };
    assert_eq!(requests(relayed), 0, "its collector does it");
    let mut job = JobTester::new(Ranks::Wait, HostConfig::named(""));
    job.run(180.0, false);
    let (id, now) = (job.finding().id.clone(), job.tester.now());
    assert!(job.tester.engine.snooze(&id, Some(Duration::from_secs(7200)), now));
    job.run(420.0, false);
    assert_eq!(job.sent.len(), 0, "somebody has seen it");
    let mut job = JobTester::new(Ranks::Wait, HostConfig::named(""));
    job.run(180.0, false);
    job.lose_host();
    for _ in 0..60 {
        job.tester.wait(10.0);
        job.examine();
    }
    assert_eq!(job.sent.len(), 0, "the host is down");
    let mut job = JobTester::new(Ranks::OneIsStopped, HostConfig::named(""));
    job.run(320.0, false);
    let key = job.finding().job.clone().expect("a job");
    let known = job.investigations.take(&job.tester.fleet, HostId(0), &key).expect("the readings are kept");
    let proven =
        FindingVerdict { outcome: Outcome::Proven, ..(**job.finding().verdict.as_ref().expect("one")).clone() };
    let id = job.finding().id.clone();
    job.tester.engine.set_verdict(|finding| finding.id == id, &proven);
    job.lose_host();
    job.tester.wait(5.0);
    let now = job.tester.now();
    let verdict = judge_investigation(&known, &job.tester.fleet, &mut job.tester.engine, now).verdict;
    assert_eq!((verdict.outcome, job.outcome()), (Outcome::Likely, Some(Outcome::Proven)), "the verdict stays");
}

#[test]
fn a_job_with_a_part_on_a_host_that_leaves_it_to_the_user_is_not_examined() {
    let requests = |rule: ExamineRule| {
        let second = HostConfig { examine: rule, ..HostConfig::named("hgx-01") };
        let mut job = JobTester::on_hosts(Ranks::Wait, vec![HostConfig::named("hgx-00"), second]);
        job.run(620.0, false);
        assert_eq!(job.finding().hosts.len(), 2);
        job.sent.len()
    };
    assert!(requests(ExamineRule::Automatic) > 0);
    assert_eq!(requests(ExamineRule::Asked), 0);
}

#[test]
fn a_finding_that_takes_over_has_the_verdict() {
    let hosts = vec![HostConfig::named("hgx-00"), HostConfig::named("hgx-01")];
    let mut job = JobTester::on_hosts(Ranks::Move, hosts);
    job.run(320.0, false);
    assert_eq!((job.outcome(), job.finding().host), (Some(Outcome::NotHung), HostId(0)));
    let sent = job.sent.len();
    job.lose_host();
    job.tester.engine.reset_host(HostId(0));
    job.run(20.0, false);
    assert_eq!((job.outcome(), job.finding().host), (Some(Outcome::NotHung), HostId(1)));
    assert_eq!((job.sent.len(), job.notified().len()), (sent, 0));
}

#[test]
fn a_job_that_moves_does_not_alarm_after_an_outage() {
    let mut job = JobTester::new(Ranks::Move, HostConfig::named(""));
    job.run(320.0, false);
    assert_eq!(job.outcome(), Some(Outcome::NotHung));
    job.lose_host();
    job.tester.wait(1800.0);
    (job.lost, job.ranks) = (None, Ranks::OneIsStopped);
    job.tester.connect(0);
    job.run(40.0, false);
    assert_eq!((job.outcome(), job.notified().len()), (Some(Outcome::NotHung), 0), "it is examined again first");
    job.run(60.0, false);
    assert_eq!((job.outcome(), job.notified().len()), (Some(Outcome::Likely), 1));
}

#[test]
fn eight_jobs_are_examined_at_a_time_and_the_others_follow() {
    const HOSTS: usize = 20;
    let mut tester = RuleTester::of(vec![gpus(0..1); HOSTS], Thresholds::default());
    let mut investigations = Investigations::default();
    let mut waiting: Vec<(HostId, Request)> = Vec::new();
    let mut examined = std::collections::BTreeSet::new();
    for round in 0..180 {
        for id in 0..HOSTS {
            let (utilization, watts, memory) = if round < 90 { (98, 560.0, 45) } else { (100, 110.0, 0) };
            let mut job = process(7, "python train.py", &[(0, 70)]);
            job.reading.cpu_percent = Some(0.3);
            let sample = TestSample { gpus: vec![tester.gpu(utilization, watts, memory, 70)], processes: vec![job] };
            tester.send(id, &sample, |_| {});
        }
        tester.wait(10.0);
        let now = tester.now();
        for (host, request) in std::mem::take(&mut waiting) {
            let id = request.reply_id().expect("has a reply");
            let reply = Reply { id, outcome: ReplyOutcome::NotPermitted };
            investigations.take_reply(host, &reply, &tester.fleet, &mut tester.engine, now);
        }
        waiting = investigations.requests_due(&tester.fleet, &mut tester.engine, None, now);
        examined.extend(waiting.iter().map(|(host, _)| *host));
        assert!(investigations.jobs.iter().filter(|job| job.is_running()).count() <= MAX_RUNNING);
        assert!(investigations.jobs.iter().filter(|job| job.investigation.is_some()).count() <= MAX_RUNNING + MAX_KEPT);
    }
    assert_eq!(examined.len(), HOSTS);
}

/// The probe refuses a ninth examination.
#[test]
fn the_jobs_of_a_host_share_its_examinations() {
    const JOBS: u16 = 6;
    let mut tester = RuleTester::new(gpus(0..u32::from(JOBS)));
    let mut investigations = Investigations::default();
    let (mut waiting, mut examined) = (Vec::new(), std::collections::BTreeSet::new());
    for round in 0..180 {
        let (utilization, watts, memory) = if round < 90 { (98, 560.0, 45) } else { (100, 110.0, 0) };
        let gpus = (0..JOBS).map(|_| tester.gpu(utilization, watts, memory, 70)).collect();
        let job = |gpu: u16| {
            let mut job = process(7 + u32::from(gpu), "python train.py", &[(gpu, 70)]);
            job.reading.cpu_percent = Some(0.3);
            job
        };
        tester.send(0, &TestSample { gpus, processes: (0..JOBS).map(job).collect() }, |_| {});
        tester.wait(10.0);
        let now = tester.now();
        for (host, request) in std::mem::take(&mut waiting) {
            let request: Request = request;
            let reply = Reply { id: request.reply_id().expect("has a reply"), outcome: ReplyOutcome::NotPermitted };
            investigations.take_reply(host, &reply, &tester.fleet, &mut tester.engine, now);
        }
        waiting = investigations.requests_due(&tester.fleet, &mut tester.engine, None, now);
        assert!(waiting.len() <= 4, "{waiting:?}");
        examined.extend(waiting.iter().filter_map(|(_, request)| match request {
            Request::Examine { pid, .. } => Some(*pid),
            _ => None,
        }));
    }
    assert_eq!(examined.len(), usize::from(JOBS));
}

#[test]
fn a_report_continues_the_examination_of_its_job() {
    let mut job = JobTester::new(Ranks::OneIsStopped, HostConfig::named(""));
    job.run(320.0, false);
    let key = job.finding().job.clone().expect("a job");
    let taken = job.investigations.take(&job.tester.fleet, HostId(0), &key).expect("the readings are kept");
    assert_eq!(taken.progress(), Progress::Complete);
    assert!(job.investigations.take(&job.tester.fleet, HostId(0), &key).is_none());
    let sent = job.sent.len();
    job.run(400.0, false);
    assert_eq!(job.sent.len(), sent, "it was examined a short time ago");
    let now = job.tester.now();
    let RuleTester { fleet, engine, .. } = &mut job.tester;
    let later = now.plus(Duration::from_secs(600));
    assert!(job.investigations.requests_due(fleet, engine, Some(&taken), later).is_empty(), "it is open");
    assert!(!job.investigations.requests_due(fleet, engine, None, later).is_empty());
    // A report about the part on another host finds it as well; one about another job does not.
    let hosts = vec![HostConfig::named("hgx-00"), HostConfig::named("hgx-01")];
    let mut job = JobTester::on_hosts(Ranks::OneIsStopped, hosts);
    job.run(320.0, false);
    let other = JobKey::Slurm { cluster: None, job: "3386".into() };
    assert!(job.investigations.take(&job.tester.fleet, HostId(1), &other).is_none());
    assert!(job.investigations.take(&job.tester.fleet, HostId(1), &key).is_some());
    job.run(620.0, false);
    job.investigations.end_all();
    assert!(job.investigations.take(&job.tester.fleet, HostId(0), &key).is_none());
}

#[test]
fn a_report_that_has_ended_counts_as_an_examination() {
    let mut job = JobTester::new(Ranks::OneIsStopped, HostConfig::named(""));
    job.run(180.0, false);
    let key = job.finding().job.clone().expect("a job");
    let verdict = FindingVerdict {
        outcome: Outcome::Suspected,
        sentence: "nothing tells why".into(),
        culprits: Vec::new(),
        at: job.tester.now(),
        until: job.tester.now().plus(FindingVerdict::VALID),
        hosts: vec![HostId(0)],
    };
    let fleet = &job.tester.fleet;
    let report = Investigation::new(fleet, HostId(0), &key, RasQueries::AsConfigured, 1);
    job.investigations.note_report(fleet, (HostId(0), &key), &report, verdict, job.tester.now());
    job.run(400.0, false);
    assert_eq!((job.outcome(), job.sent.len()), (Some(Outcome::Suspected), 0));
    job.run(220.0, false);
    assert!(!job.sent.is_empty(), "ten minutes have passed");
}

#[test]
fn a_report_that_is_no_longer_shown_goes_on() {
    let mut job = JobTester::new(Ranks::OneIsStopped, HostConfig::named(""));
    job.run(210.0, false);
    assert_eq!(job.outcome(), None, "the second reading comes later");
    let key = job.finding().job.clone().expect("a job");
    let taken = job.investigations.take(&job.tester.fleet, HostId(0), &key).expect("it runs");
    let sent = job.sent.len();
    job.investigations.put_back(&job.tester.fleet, HostId(0), key, taken);
    job.run(100.0, false);
    assert_eq!(job.outcome(), Some(Outcome::Likely));
    assert_eq!(job.sent.len(), 2 * sent, "one reading as before");
}

#[test]
fn jobs_that_were_examined_long_ago_come_after_those_that_never_were() {
    const HOSTS: usize = 9 * MAX_RUNNING;
    let mut tester = RuleTester::of(vec![gpus(0..1); HOSTS], Thresholds::default());
    let mut investigations = Investigations::default();
    let mut order = Vec::new();
    for round in 0..300 {
        for id in 0..HOSTS {
            let (utilization, watts, memory) = if round < 90 { (98, 560.0, 45) } else { (100, 110.0, 0) };
            let sample = TestSample {
                gpus: vec![tester.gpu(utilization, watts, memory, 70)],
                processes: vec![process(7, "python train.py", &[(0, 70)])],
            };
            tester.send(id, &sample, |_| {});
        }
        tester.wait(10.0);
        // No host answers, so that each examination takes two minutes and the last jobs wait for longer than ten.
        let now = tester.now();
        let requests = investigations.requests_due(&tester.fleet, &mut tester.engine, None, now);
        order.extend(
            requests.iter().filter(|(_, request)| matches!(request, Request::LogTail { .. })).map(|(host, _)| *host),
        );
    }
    let count = |id: u32| order.iter().filter(|host| **host == HostId(id)).count();
    let counts: Vec<usize> = (0..HOSTS as u32).map(count).collect();
    let (fewest, most) = (counts.iter().min().expect("hosts"), counts.iter().max().expect("hosts"));
    assert!(*fewest > 0 && most - fewest <= 3, "{counts:?}");
}
