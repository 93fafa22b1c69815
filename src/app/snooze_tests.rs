use super::*;
use crate::app::testing::{LATER, app_with_hung_jobs, at, report};
use crate::app::{DisplaySettings, Event, EventKind};
use crate::config::HostConfig;
use crate::diagnosis::{Engine, SavedState};
use crate::fleet::Fleet;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::sync::Arc;

const SIZE: (u16, u16) = (120, 40);

fn key(app: &mut App, character: char) -> Vec<Effect> {
    app.update(Event::Key(KeyEvent::new(KeyCode::Char(character), KeyModifiers::NONE)), at(LATER))
}

fn is_alerting(app: &App) -> (u32, u32) {
    (app.findings().is_alerting().firing, app.findings().is_alerting().snoozed)
}

/// The next run of the program, an hour later, in which every host has reported three times, the second one without
/// its job.
fn restart_an_hour_later(memory: &SavedState, hosts: usize) -> (App, Vec<Effect>) {
    let configs: Vec<_> = (1..=hosts).map(|host| Arc::new(HostConfig::named(format!("hgx-{host:02}")))).collect();
    let start = LATER + 3600;
    let mut engine = Engine::default();
    engine.restore(memory.clone(), at(start));
    let mut app = App::new(Fleet::new(&configs, false, at(start)), DisplaySettings::default(), engine, at(start));
    app.update(Event::Resized(SIZE.0, SIZE.1), at(start));
    let mut effects = app.update(Event::Ticked, at(start));
    assert!(effects.is_empty(), "nobody was heard yet");
    for seconds in [start, start + 5, start + 10] {
        for host in 0..hosts {
            report(&mut app, host, if host == 1 { 0 } else { 8 }, seconds);
        }
        effects = app.update(Event::Ticked, at(seconds));
    }
    app.refresh_derived_state();
    (app, effects)
}

#[test]
fn x_silences_a_finding_and_the_same_key_undoes_it() {
    let mut app = app_with_hung_jobs(5, SIZE);
    key(&mut app, '5');
    let before = is_alerting(&app);
    let id = app.findings().selected().expect("a finding").id.clone();
    let effects = key(&mut app, 'x');
    assert!(matches!(effects[..], [Effect::SaveDiagnosisState]), "{effects:?}");
    assert_eq!(is_alerting(&app), (before.0 - 1, 1));
    let selected = app.findings().selected().expect("it");
    assert_eq!((&selected.id, selected.snoozed), (&id, Some(SnoozeEnd::At(at(LATER + 3600)))), "it stays selected");
    let notice = app.notice(at(LATER)).expect("is said").to_owned();
    assert!(notice.ends_with(" is snoozed for 1 hour; x undoes it"), "{notice}");
    assert!(
        app.findings().worst_severity_of_host(selected.host) < Some(selected.severity),
        "its pane is not marked for it"
    );
    // The other key changes the span, and only its own undoes it.
    key(&mut app, 'X');
    assert_eq!(app.findings().selected().expect("it").snoozed, Some(SnoozeEnd::OnChange));
    key(&mut app, 'X');
    assert_eq!((is_alerting(&app), app.findings().selected().expect("it").snoozed), (before, None));
    let notice = app.notice(at(LATER)).expect("is said").to_owned();
    assert!(notice.ends_with(" is no longer snoozed"), "{notice}");
}

#[test]
fn a_snooze_survives_a_restart() {
    let mut app = app_with_hung_jobs(5, SIZE);
    key(&mut app, '5');
    let index = app.findings().list().iter().position(|finding| is_hang_rule(finding.rule)).expect("a hang");
    for _ in 0..index {
        key(&mut app, 'j');
    }
    key(&mut app, 'X');
    let id = app.findings().selected().expect("a finding").id.clone();
    let text = serde_json::to_string(&app.memory(at(LATER))).expect("encodes");
    let (mut next, _) = restart_an_hour_later(&SavedState::parse(&text).expect("reads"), 5);
    let snoozed = next.findings().list().iter().find(|finding| finding.id == id).map(|finding| finding.snoozed);
    assert_eq!(snoozed, Some(Some(SnoozeEnd::OnChange)));
    let notice = next.notice(at(LATER + 3610)).expect("the line at the start").to_owned();
    assert!(notice.ends_with("; nothing looks hung but what is snoozed"), "{notice}");
    key(&mut next, '5');
    assert!(matches!(key(&mut next, 'H')[..], []));
}

#[test]
fn the_start_says_what_ended_and_what_looks_hung_since_it_last_looked() {
    let first = app_with_hung_jobs(5, SIZE);
    let memory = first.memory(at(LATER));
    let (app, effects) = restart_an_hour_later(&memory, 5);
    let line = "since 14:20 (60 min ago): 1 job ended: pretrain.py (erika, pid 5101 and 7 more) on hgx-02; 1 looks hung as \
                it did then: hgx-04 GPU 4,5 (dmitri)";
    assert_eq!(app.notice(at(LATER + 3620)), Some(line));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::SaveDiagnosisState)), "it is not to be told again");
    let (_, mut entries) = app.event_log().visible(50);
    assert!(
        entries.any(|entry| matches!(&entry.kind, EventKind::Message(text) if **text == *line)),
        "it stays in the history"
    );
    // The third run has nothing new to tell of jobs.
    let (third, _) = restart_an_hour_later(&app.memory(at(LATER)), 1);
    let notice = third.notice(at(LATER + 3620)).expect("a line").to_owned();
    assert!(notice.contains(": no job ended"), "{notice}");
    // Where nothing is remembered nothing is said.
    let (fresh, _) = restart_an_hour_later(&SavedState::default(), 5);
    assert_eq!(fresh.notice(at(LATER + 3620)), None);
}

#[test]
fn hosts_that_are_silent_are_not_waited_for_forever_and_are_counted() {
    let memory = app_with_hung_jobs(5, SIZE).memory(at(LATER));
    let configs: Vec<_> = (1..=5).map(|host| Arc::new(HostConfig::named(format!("hgx-{host:02}")))).collect();
    let mut engine = Engine::default();
    let start = LATER + 30 * 3600;
    engine.restore(memory, at(start));
    let mut app = App::new(Fleet::new(&configs, false, at(start)), DisplaySettings::default(), engine, at(start));
    for seconds in start..start + 15 {
        assert!(app.update(Event::Ticked, at(seconds)).is_empty());
    }
    app.update(Event::Ticked, at(start + 15));
    let line = "since 30 h ago: no job ended; nothing looks hung; 5 hosts not heard yet";
    assert_eq!(app.notice(at(start + 16)), Some(line));
    // A key takes it away: the keys are what the last line is for.
    app.update(Event::Key(KeyEvent::new(KeyCode::Down, KeyModifiers::NONE)), at(start + 17));
    assert_eq!(app.notice(at(start + 17)), None);
}

#[test]
fn what_is_named_is_bounded() {
    let names = |count: u32| join_names((0..count).map(|name| name.to_string()));
    assert_eq!((names(1), names(2), names(5)), ("0".to_owned(), "0, 1".to_owned(), "0, 1 and 3 more".to_owned()));
}
