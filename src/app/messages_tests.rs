use super::*;
use crate::app::testing::{LATER, app_with_hung_jobs, at, report};
use crate::app::{App, DisplaySettings, Effect, Event};
use crate::config::HostConfig;
use crate::diagnosis::testing::notification;
use crate::diagnosis::{SavedState, Severity, SnoozeEnd};
use crate::fleet::{HostId, HostUpdate};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::sync::Arc;

const SIZE: (u16, u16) = (120, 40);

fn key(app: &mut App, character: char) -> Vec<Effect> {
    app.update(Event::Key(KeyEvent::new(KeyCode::Char(character), KeyModifiers::NONE)), at(LATER))
}

fn firing_and_snoozed(app: &App) -> (u32, u32) {
    (app.findings().counts().firing, app.findings().counts().snoozed)
}

/// Returns the next run, an hour later, after three snapshots from every host. The second host no longer has its job.
fn restart_an_hour_later(memory: &SavedState, hosts: usize) -> (App, Vec<Effect>) {
    let configs: Vec<_> = (1..=hosts).map(|host| Arc::new(HostConfig::named(format!("hgx-{host:02}")))).collect();
    let start = LATER + 3600;
    let mut engine = Engine::default();
    engine.restore(memory.clone(), at(start));
    let mut app = App::new(Fleet::new(&configs, false, at(start)), DisplaySettings::default(), engine, at(start));
    app.update(Event::Resized(SIZE.0, SIZE.1), at(start));
    let mut effects = app.update(Event::Ticked, at(start));
    assert!(effects.is_empty(), "no host has reported");
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
fn x_snoozes_a_finding_and_the_same_key_ends_the_snooze() {
    let mut app = app_with_hung_jobs(5, SIZE);
    key(&mut app, '5');
    let before = firing_and_snoozed(&app);
    let id = app.findings().selected().expect("a finding").id.clone();
    let effects = key(&mut app, 'x');
    assert!(matches!(effects[..], [Effect::SaveDiagnosisState]), "{effects:?}");
    assert_eq!(firing_and_snoozed(&app), (before.0 - 1, 1));
    let selected = app.findings().selected().expect("a finding");
    assert_eq!((&selected.id, selected.snoozed), (&id, Some(SnoozeEnd::At(at(LATER + 3600)))), "it remains selected");
    let notice = app.notice(at(LATER)).expect("a notice").to_owned();
    assert!(notice.ends_with(" is snoozed for 1 hour; x undoes it"), "{notice}");
    assert!(app.findings().worst_severity_of_host(selected.host) < Some(selected.severity), "its pane shows no alert");
    // The other key changes the span; only the key of the current span ends the snooze.
    key(&mut app, 'X');
    assert_eq!(app.findings().selected().expect("a finding").snoozed, Some(SnoozeEnd::OnChange));
    key(&mut app, 'X');
    assert_eq!((firing_and_snoozed(&app), app.findings().selected().expect("a finding").snoozed), (before, None));
    let notice = app.notice(at(LATER)).expect("a notice").to_owned();
    assert!(notice.ends_with(" is no longer snoozed"), "{notice}");
}

#[test]
fn a_snooze_survives_a_restart() {
    let mut app = app_with_hung_jobs(5, SIZE);
    key(&mut app, '5');
    let index = app.findings().list().iter().position(|finding| finding.rule.is_hang()).expect("a hang");
    for _ in 0..index {
        key(&mut app, 'j');
    }
    key(&mut app, 'X');
    let id = app.findings().selected().expect("a finding").id.clone();
    let text = serde_json::to_string(&app.memory(at(LATER))).expect("encodes");
    let (mut next, _) = restart_an_hour_later(&SavedState::parse(&text).expect("reads"), 5);
    let snoozed = next.findings().list().iter().find(|finding| finding.id == id).map(|finding| finding.snoozed);
    assert_eq!(snoozed, Some(Some(SnoozeEnd::OnChange)));
    let notice = next.notice(at(LATER + 3610)).expect("the startup summary").to_owned();
    assert!(notice.ends_with("; nothing looks hung except snoozed findings"), "{notice}");
    key(&mut next, '5');
    assert!(matches!(key(&mut next, 'H')[..], []));
}

#[test]
fn the_startup_summary_lists_ended_and_hung_jobs() {
    let first = app_with_hung_jobs(5, SIZE);
    let memory = first.memory(at(LATER));
    let (app, effects) = restart_an_hour_later(&memory, 5);
    let line = "since 14:20 (60 min ago): 1 job ended: pretrain.py (erika, pid 5101 and 7 more) on hgx-02; 1 looks hung, \
                as before: hgx-04 GPU 4,5 (dmitri)";
    assert_eq!(app.notice(at(LATER + 3620)), Some(line));
    assert!(
        effects.iter().any(|effect| matches!(effect, Effect::SaveDiagnosisState)),
        "the next run does not list them again"
    );
    let (_, mut entries) = app.event_log().visible(50);
    assert!(
        entries.any(|entry| matches!(&entry.kind, EventKind::Message(text) if **text == *line)),
        "the event log has it"
    );
    // The third run has no new job ends.
    let (third, _) = restart_an_hour_later(&app.memory(at(LATER)), 1);
    let notice = third.notice(at(LATER + 3620)).expect("a line").to_owned();
    assert!(notice.contains(": no job ended"), "{notice}");
    // Without an earlier run there is no summary.
    let (fresh, _) = restart_an_hour_later(&SavedState::default(), 5);
    assert_eq!(fresh.notice(at(LATER + 3620)), None);
}

#[test]
fn the_startup_summary_counts_hosts_that_did_not_report_in_time() {
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
    let line = "since 30 h ago: no job ended; 5 hosts have not reported yet";
    assert_eq!(app.notice(at(start + 16)), Some(line));
    // A key removes the notice.
    app.update(Event::Key(KeyEvent::new(KeyCode::Down, KeyModifiers::NONE)), at(start + 17));
    assert_eq!(app.notice(at(start + 17)), None);
}

#[test]
fn the_startup_summary_is_short_lived_and_withdrawn_when_a_host_falls_silent() {
    let memory = app_with_hung_jobs(5, SIZE).memory(at(LATER));
    let shown_at = LATER + 3610;
    let (mut app, _) = restart_an_hour_later(&memory, 5);
    assert!(app.notice(at(shown_at)).expect("the summary").starts_with("since "));
    app.update(Event::Host(HostId(0), Box::new(HostUpdate::RoundTrip(Duration::from_millis(9)))), at(shown_at + 1));
    app.update(Event::Ticked, at(shown_at + 1));
    assert!(app.notice(at(shown_at + 1)).is_some());
    app.update(Event::Host(HostId(2), Box::new(HostUpdate::Silent)), at(shown_at + 2));
    app.update(Event::Ticked, at(shown_at + 2));
    assert_eq!(app.notice(at(shown_at + 2)), None, "it would contradict the screen");
    assert_eq!(
        app.event_log().count(),
        restart_an_hour_later(&memory, 5).0.event_log().count(),
        "the history keeps it"
    );
    // Nothing else removes it before its time is over.
    let (app, _) = restart_an_hour_later(&memory, 5);
    assert!(app.notice(at(shown_at + 14)).is_some() && app.notice(at(shown_at + 16)).is_none());
}

#[test]
fn join_names_is_bounded() {
    let names = |count: u32| join_names((0..count).map(|name| name.to_string()));
    assert_eq!((names(1), names(2), names(5)), ("0".to_owned(), "0, 1".to_owned(), "0, 1 and 3 more".to_owned()));
}

fn changed(from: FindingPhase, to: FindingPhase) -> Transition {
    Transition { from, to, ..notification("a", Severity::Warn).transition }
}

#[test]
fn the_event_log_shows_the_newest_first_and_leaves_out_pending_findings() {
    let mut event_log = EventLog::default();
    event_log.record_transitions(&[
        changed(FindingPhase::Clear, FindingPhase::Pending),
        changed(FindingPhase::Pending, FindingPhase::Firing),
    ]);
    event_log.record_transitions(&[changed(FindingPhase::Pending, FindingPhase::Clear)]);
    event_log.record_message("a hook failed".into(), Moment::default());
    let (above, entries) = event_log.visible(10);
    let entries: Vec<&EventLogEntry> = entries.collect();
    assert_eq!((above, entries.len()), (0, 2));
    assert!(matches!(entries[0].kind, EventKind::Message(_)));
    assert!(matches!(&entries[1].kind, EventKind::FindingChanged(one) if one.to == FindingPhase::Firing));
}

#[test]
fn the_event_log_is_bounded_and_keeps_its_scroll_position() {
    let mut event_log = EventLog::default();
    for number in 0..MAX_ENTRIES + 50 {
        event_log.record_message(format!("{number}").into(), Moment::default());
    }
    assert_eq!(event_log.count(), MAX_ENTRIES);
    event_log.navigate(Action::PageDown, 10);
    let first = |event_log: &EventLog| match event_log.visible(10).1.next().map(|entry| entry.kind.clone()) {
        Some(EventKind::Message(text)) => text.to_string(),
        other => panic!("{other:?}"),
    };
    let before = first(&event_log);
    event_log.record_message("new".into(), Moment::default());
    assert_eq!((first(&event_log), event_log.visible(10).0), (before, 11));
    event_log.navigate(Action::Last, 10);
    assert_eq!(event_log.visible(10).0, MAX_ENTRIES - 10);
    event_log.navigate(Action::First, 10);
    assert_eq!(first(&event_log), "new");
    assert_eq!(EventLog::default().visible(0).0, 0);
}
