//! Tests of the variables and the log of the process on the screen.

use super::*;
use crate::app::testing::{NOW, app, at, press};
use crate::app::{Event, Requested};
use crate::fleet::{HostId, HostUpdate, Row};
use crate::wire::{ReplyOutcome, Request, SafeText};

/// Opens the view of the first row that is `wanted`. Returns the requests that it sends.
fn open(app: &mut App, wanted: impl Fn(&Row) -> bool) -> Vec<Request> {
    press(app, "3g");
    let index = app.rows().iter().position(|row| wanted(row)).expect("such a row");
    let sent = requests(&press(app, &format!("{}\n", "↓".repeat(index))));
    // The first Enter unfolds the row of a job on several GPUs.
    if matches!(app.screen().view(), View::Process(_)) { sent } else { requests(&press(app, "\n")) }
}

fn requests(effects: &[Effect]) -> Vec<Request> {
    let request = |effect: &Effect| match effect {
        Effect::Request(_, request) => Some(request.clone()),
        _ => None,
    };
    effects.iter().filter_map(request).collect()
}

fn shown(app: &App) -> &ProcessDetails {
    let View::Process(key) = app.screen().view() else { panic!("the view of a process") };
    app.process_details(key).expect("details")
}

fn answer(app: &mut App, request: &Request, outcome: ReplyOutcome, seconds: u64) {
    let reply = Reply { id: request.reply_id().expect("has a reply"), outcome };
    let host = app.process_details.as_ref().map_or(HostId(0), |details| details.host());
    let effects = app.update(Event::Host(host, Box::new(HostUpdate::Reply(reply))), at(seconds));
    assert!(requests(&effects).is_empty());
}

fn log(line: &str) -> ReplyOutcome {
    ReplyOutcome::LogTail { path: "/home/dmitri/out.log".into(), lines: vec![line.into()] }
}

#[test]
fn variables_are_read_once_and_the_log_every_10_seconds_while_the_view_is_open() {
    let mut app = app(6, 8, (120, 40));
    let sent = open(&mut app, |row| row.is_mine && row.workers == 1);
    let [environment @ Request::Environment { pid, .. }, tail @ Request::LogTail { .. }] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!((shown(&app).pid(), shown(&app).variables()), (*pid, &Requested::Pending));
    // A probe of an older version sends all variables.
    let variables = ["RANK=3", "SECRET_PLACE=x", "NCCL_DEBUG=INFO"].map(SafeText::from).to_vec();
    answer(&mut app, environment, ReplyOutcome::Environment(variables), NOW + 1);
    answer(&mut app, tail, log("step 4"), NOW + 1);
    let expected = Requested::Known(vec!["RANK=3".into(), "NCCL_DEBUG=INFO".into()]);
    assert_eq!(shown(&app).variables(), &expected);
    assert!(matches!(shown(&app).log(), Requested::Known(log) if log.lines == ["step 4"]));
    assert!(requests(&app.update(Event::Ticked, at(NOW + 10))).is_empty());
    let sent = requests(&app.update(Event::Ticked, at(NOW + 11)));
    let [tail @ Request::LogTail { .. }] = &sent[..] else { panic!("{sent:?}") };
    answer(&mut app, tail, log("step 5"), NOW + 12);
    assert!(matches!(shown(&app).log(), Requested::Known(log) if log.lines == ["step 5"]));
    assert_eq!(requests(&app.update(Event::Ticked, at(NOW + 22))).len(), 1);
    assert!(requests(&app.update(Event::Ticked, at(NOW + 32))).is_empty(), "without a reply the lines stay");
    assert!(matches!(shown(&app).log(), Requested::Known(log) if log.lines == ["step 5"]));
    assert_eq!(requests(&app.update(Event::Ticked, at(NOW + 42))).len(), 1);
    press(&mut app, "\u{1b}");
    assert!(app.process_details.is_none(), "what was read is forgotten");
    assert!(requests(&app.update(Event::Ticked, at(NOW + 60))).is_empty());
}

#[test]
fn a_late_reply_is_not_taken_for_that_of_another_process() {
    let mut app = app(6, 8, (120, 40));
    let first = open(&mut app, |row| row.is_mine && row.workers == 1);
    press(&mut app, "\u{1b}");
    answer(&mut app, &first[0], ReplyOutcome::Environment(vec!["RANK=1".into()]), NOW + 1);
    let second = open(&mut app, |row| row.is_mine && row.workers > 1);
    answer(&mut app, &first[1], log("of the first"), NOW + 2);
    assert_eq!((shown(&app).variables(), shown(&app).log()), (&Requested::Pending, &Requested::Pending));
    answer(&mut app, &second[1], log("of the second"), NOW + 2);
    assert!(matches!(shown(&app).log(), Requested::Known(log) if log.lines == ["of the second"]));
}

#[test]
fn nothing_is_read_of_processes_of_others() {
    let mut app = app(6, 8, (120, 40));
    let sent = open(&mut app, |row| !row.is_mine && row.pid.is_some());
    assert_eq!(sent, []);
    assert!(app.process_details.is_none());
    assert!(requests(&app.update(Event::Ticked, at(NOW + 20))).is_empty());
}

#[test]
fn a_refusal_is_followed_by_another_request_and_lines_stay() {
    let mut app = app(6, 8, (120, 40));
    let sent = open(&mut app, |row| row.is_mine);
    answer(&mut app, &sent[1], ReplyOutcome::Refused("standard output is no file".into()), NOW + 1);
    let sent = requests(&app.update(Event::Ticked, at(NOW + 11)));
    let [tail @ Request::LogTail { .. }] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(shown(&app).log(), &Requested::Refused("standard output is no file".into()));
    assert_eq!(shown(&app).variables(), &Requested::Refused("no reply came within 10 s".into()));
    answer(&mut app, tail, log("step 4"), NOW + 12);
    let sent = requests(&app.update(Event::Ticked, at(NOW + 22)));
    let [variables @ Request::Environment { .. }, tail] = &sent[..] else { panic!("{sent:?}") };
    answer(&mut app, tail, ReplyOutcome::Refused("too many requests".into()), NOW + 23);
    assert!(matches!(shown(&app).log(), Requested::Known(log) if log.lines == ["step 4"]));
    answer(&mut app, variables, ReplyOutcome::Gone, NOW + 23);
    assert_eq!(shown(&app).variables(), &Requested::Refused("the process has exited".into()));
    assert!(requests(&app.update(Event::Ticked, at(NOW + 40))).is_empty(), "it has exited");
}

#[test]
fn a_reply_of_another_host_is_not_taken() {
    let mut app = app(6, 8, (120, 40));
    let sent = open(&mut app, |row| row.is_mine);
    let host = app.process_details.as_ref().map_or(0, |details| details.host().0);
    let reply = Reply { id: sent[1].reply_id().expect("has a reply"), outcome: log("of another") };
    let other = HostId((host + 1) % 6);
    app.update(Event::Host(other, Box::new(HostUpdate::Reply(reply))), at(NOW + 1));
    assert_eq!(shown(&app).log(), &Requested::Pending);
}
