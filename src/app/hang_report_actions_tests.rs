//! Tests of the report about a job that looks hung.

use super::*;
use crate::app::Event;
use crate::app::testing::{LATER, NOW, app, app_with_hung_jobs, at, press, update};
use crate::diagnosis::FindingVerdict;
use crate::diagnosis::proof::Outcome;
use crate::diagnosis::proof::investigation::Progress;
use crate::fleet::{HostUpdate, Row};
use crate::wire::{
    Examination, ExaminationPart, ExaminationRefusal, Frame, NO_LOG_FILE, ProcessExamination, ProcessState,
    ReplyOutcome, Request, StackDump, ThreadReading, ThreadStack,
};
use std::time::Duration;

const SIZE: (u16, u16) = (120, 40);

fn app_with_row(wanted: impl Fn(&Row) -> bool) -> App {
    let mut app = app(6, 8, SIZE);
    press(&mut app, "3g");
    let index = app.rows().iter().position(|row| wanted(row)).expect("such a row");
    press(&mut app, &"↓".repeat(index));
    app
}

/// An app in whose list a job of the login user on several GPUs is selected.
fn app_with_own_job() -> App {
    app_with_row(|row| row.is_mine && row.workers > 1)
}

fn requests(effects: &[Effect]) -> Vec<(HostId, Request)> {
    let request = |effect: &Effect| match effect {
        Effect::Request(host, request) => Some((*host, request.clone())),
        _ => None,
    };
    effects.iter().filter_map(request).collect()
}

/// An answer of a rank that waits in an all-reduce.
fn examination(parts: &[ExaminationPart]) -> Examination {
    let frame = |function: &str, line| Frame { function: function.into(), file: "train.py".into(), line: Some(line) };
    let mut examination = Examination::default();
    for part in parts {
        match part {
            ExaminationPart::Process => {
                let main = ThreadReading {
                    state: Some(ProcessState::Running),
                    user_ms: Some(1000),
                    ..ThreadReading::default()
                };
                let process = ProcessExamination {
                    seconds: 1.0,
                    main_thread: Some(main),
                    cpu_ms: Some(1000),
                    written_bytes: Some(0),
                    ..ProcessExamination::default()
                };
                examination.process = Some(Box::new(process));
            }
            ExaminationPart::Stacks => {
                let frames = vec![frame("all_reduce", 158), frame("main", 231)];
                let main = ThreadStack { name: "MainThread".into(), frames, ..ThreadStack::default() };
                let stacks = StackDump { tool: "/usr/bin/py-spy".into(), threads: vec![main], threads_left_out: 0 };
                examination.stacks = Some(Box::new(stacks));
            }
            other => examination.refused.push(ExaminationRefusal {
                part: *other,
                reason: "the process has not loaded NCCL".into(),
                remedy: "".into(),
                is_risk: false,
            }),
        }
    }
    examination
}

/// Answers requests until none is left, at this time. Returns how many were answered.
fn answer(app: &mut App, waiting: Vec<(HostId, Request)>, seconds: u64) -> usize {
    answer_with(app, waiting, seconds, &|_, _| {})
}

/// Like [`answer`], with examinations that `change` has changed.
fn answer_with(
    app: &mut App,
    mut waiting: Vec<(HostId, Request)>,
    seconds: u64,
    change: &dyn Fn(&Request, &mut Examination),
) -> usize {
    let mut answered = 0;
    while let Some((host, request)) = waiting.pop() {
        let outcome = match &request {
            Request::Examine { parts, .. } => {
                let mut examination = examination(parts);
                change(&request, &mut examination);
                ReplyOutcome::Examined(Box::new(examination))
            }
            _ => ReplyOutcome::Refused(NO_LOG_FILE.into()),
        };
        let reply = Reply { id: request.reply_id().expect("has a reply"), outcome };
        let effects = app.update(Event::Host(host, Box::new(HostUpdate::Reply(reply))), at(seconds));
        waiting.extend(requests(&effects));
        answered += 1;
    }
    answered
}

/// An app that shows the report about a job of which all ranks wait, after two readings.
pub(crate) fn app_with_hang_report() -> App {
    let mut app = app_with_own_job();
    let sent = requests(&press(&mut app, "W"));
    answer(&mut app, sent, NOW + 1);
    let sent = requests(&app.update(Event::Ticked, at(NOW + 62)));
    answer(&mut app, sent, NOW + 63);
    app
}

#[test]
fn the_job_is_examined_twice_while_the_report_is_open() {
    let mut app = app_with_own_job();
    let ranks = app.rows()[app.screen().list.index()].workers as usize;
    let sent = requests(&press(&mut app, "W"));
    assert_eq!(*app.screen().view(), View::HangReport);
    assert_eq!(app.hang_report().expect("a report").progress(), Progress::FirstReading);
    assert_eq!(sent.len(), 4, "at most four requests at a time go to one host");
    assert_eq!(answer(&mut app, sent, NOW + 1), 2 * ranks + 1, "each rank, its log, and NCCL RAS once");
    assert!(requests(&app.update(Event::Ticked, at(NOW + 60))).is_empty());
    press(&mut app, "\u{1b}");
    assert_ne!(*app.screen().view(), View::HangReport);
    let sent = requests(&app.update(Event::Ticked, at(NOW + 70)));
    assert_eq!(sent.len(), 4, "the second reading is made although the report is not on the screen");
    answer(&mut app, sent, NOW + 71);
    let report = app.hang_report().expect("a report");
    assert_eq!(report.progress(), Progress::Complete);
    assert!(report.evidence().ranks.iter().all(|rank| rank.readings.len() == 2));
    assert!(
        requests(&app.update(Event::Ticked, at(NOW + 700))).is_empty(),
        "later ones only while it is on the screen"
    );
    assert!(!requests(&press(&mut app, "W")).is_empty());
}

#[test]
fn ranks_that_all_wait_are_no_proof() {
    let app = app_with_hang_report();
    let report = app.hang_report().expect("a report");
    assert_ne!(report.verdict().outcome, Outcome::Proven, "{:?}", report.verdict());
}

#[test]
fn jobs_of_others_and_other_findings_are_not_examined() {
    let mut app = app_with_row(|row| !row.is_mine && row.pid.is_some());
    let user = app.rows()[app.screen().list.index()].who.clone();
    assert!(requests(&press(&mut app, "W")).is_empty());
    let expected = format!("the job belongs to {user}: only its owner may examine it");
    assert_eq!(app.notice(at(NOW)), Some(expected.as_str()));
    press(&mut app, "5");
    let is_about_no_job = |app: &App| app.findings().selected().is_some_and(|finding| finding.job.is_none());
    while !is_about_no_job(&app) && app.findings().index() + 1 < app.findings().list().len() {
        press(&mut app, "↓");
    }
    assert!(is_about_no_job(&app), "such a finding");
    press(&mut app, "W");
    assert_eq!(app.notice(at(NOW)), Some("this finding is not about a job"));
}

#[test]
fn the_finding_gains_the_verdict() {
    let mut app = app_with_hung_jobs(6, SIZE);
    let hello = crate::sim::builder::hello("boot".into(), "dmitri", 1003);
    update(&mut app, 3, HostUpdate::Hello(Box::new(hello)), LATER);
    press(&mut app, "5");
    let is_hang = |app: &App| app.findings().selected().is_some_and(|one| one.rule.is_hang() && one.host == HostId(3));
    while !is_hang(&app) && app.findings().index() + 1 < app.findings().list().len() {
        press(&mut app, "↓");
    }
    assert!(is_hang(&app), "such a finding");
    let sent = requests(&press(&mut app, "W"));
    assert!(!sent.is_empty(), "{:?}", app.notice(app.now));
    let stopped = sent.iter().find_map(|(_, request)| match request {
        Request::Examine { pid, .. } => Some(*pid),
        _ => None,
    });
    let stop = |request: &Request, examination: &mut Examination| {
        let (Request::Examine { pid, .. }, Some(process)) = (request, &mut examination.process) else { return };
        if Some(*pid) == stopped {
            let main = process.main_thread.as_mut().expect("a main thread");
            (main.state, main.user_ms, process.cpu_ms) = (Some(ProcessState::Stopped), Some(0), Some(0));
        }
    };
    answer_with(&mut app, sent, LATER + 1, &stop);
    let sent = requests(&app.update(Event::Ticked, at(LATER + 62)));
    answer_with(&mut app, sent, LATER + 63, &stop);
    let report = app.hang_report().expect("a report");
    assert_eq!(report.verdict().outcome, Outcome::Likely, "{:?}", report.verdict());
    update(&mut app, 3, HostUpdate::Silent, LATER + 63);
    app.update(Event::Ticked, at(LATER + 64));
    let finding = app.findings().list().iter().find(|one| one.rule.is_hang() && one.host == HostId(3));
    let verdict = finding.expect("the finding").verdict.as_ref().expect("the verdict");
    assert!(verdict.sentence.contains("is stopped"), "{}", verdict.sentence);
    let other = app.findings().list().iter().find(|one| one.host != HostId(3)).expect("another finding");
    assert_eq!(other.verdict, None);
}

#[test]
fn a_later_reading_changes_the_verdict_of_the_finding_only_as_a_whole() {
    let mut app = app_with_hang_report();
    let report = app.hang_report().expect("a report");
    assert!(report.investigation.has_whole_readings());
    let mut sent = requests(&app.update(Event::Ticked, at(NOW + 63 + 600)));
    let (host, first) = sent.remove(0);
    let refused = ReplyOutcome::Refused("the log cannot be read".into());
    let reply = Reply { id: first.reply_id().expect("has a reply"), outcome: refused };
    sent.extend(requests(&app.update(Event::Host(host, Box::new(HostUpdate::Reply(reply))), at(NOW + 664))));
    assert!(!app.hang_report().expect("a report").investigation.has_whole_readings(), "others have no reply yet");
    answer(&mut app, sent, NOW + 665);
    assert!(app.hang_report().expect("a report").investigation.has_whole_readings());
}

#[test]
fn the_verdict_of_a_collector_is_added_to_the_finding() {
    let mut app = app_with_hung_jobs(6, SIZE);
    let hang = |app: &App| app.findings().list().iter().find(|one| one.rule.is_hang()).expect("a hang").clone();
    let (host, job) = (hang(&app).host, hang(&app).job.expect("a job"));
    let verdict = |seconds| FindingVerdict {
        outcome: Outcome::Proven,
        sentence: format!("rank 3 is stopped for {seconds} s").into(),
        culprits: Vec::new(),
        at: at(LATER + seconds),
        until: at(LATER + seconds).plus(FindingVerdict::VALID),
        hosts: Vec::new(),
    };
    let judge = |app: &mut App, seconds: u64| {
        app.update(Event::Judged(host, vec![(job.clone(), verdict(seconds))]), at(LATER + 10));
        update(app, host.0 as usize, HostUpdate::Silent, LATER + 11);
        app.update(Event::Ticked, at(LATER + 12));
        hang(app).verdict.expect("a verdict").sentence.to_string()
    };
    assert_eq!(judge(&mut app, 5), "rank 3 is stopped for 5 s");
    assert_eq!(judge(&mut app, 8), "rank 3 is stopped for 8 s");
    assert_eq!(judge(&mut app, 2), "rank 3 is stopped for 8 s", "the newer one counts");
    assert_eq!(judge(&mut app, 9), "rank 3 is stopped for 9 s");
    app.update(Event::Judged(host, Vec::new()), at(LATER + 13));
    update(&mut app, host.0 as usize, HostUpdate::Silent, LATER + 14);
    assert_eq!(hang(&app).verdict, None, "it has ended");
    let old = FindingVerdict { at: at(0).minus(Duration::from_secs(86_400)), ..verdict(9) };
    app.update(Event::Judged(host, vec![(job.clone(), old)]), at(LATER + 15));
    update(&mut app, host.0 as usize, HostUpdate::Silent, LATER + 16);
    assert_eq!(hang(&app).verdict.is_some(), hang(&app).at_least, "a verdict from before the hang");
    let others = app.findings().list().iter().filter(|one| one.verdict.is_some() && !one.concerns_job(host, &job));
    assert_eq!(others.count(), 0);
}

#[test]
fn a_report_without_its_last_reply_is_judged() {
    let mut app = app_with_own_job();
    let mut sent = requests(&press(&mut app, "W"));
    let lost = sent.remove(0);
    answer(&mut app, sent, NOW + 1);
    assert_eq!(app.hang_report().expect("a report").progress(), Progress::FirstReading, "one reply is missing");
    app.update(Event::Ticked, at(NOW + 31));
    let report = app.hang_report().expect("a report");
    assert!(matches!(report.progress(), Progress::WaitsUntil(_)), "{:?}", report.progress());
    let Request::Examine { pid, .. } = lost.1 else { panic!("{lost:?}") };
    let rank = report.evidence().ranks.iter().find(|rank| rank.pid == pid).expect("the rank");
    let refused = rank.readings.iter().flat_map(|reading| &reading.examination.refused);
    assert!(refused.clone().any(|one| one.reason == "no reply came within 30 s"), "{refused:?}");
}
