use super::*;
use crate::diagnosis::Severity;

fn told(severity: Severity, seen_unix_seconds: f64) -> Notified {
    Notified { severity, seen_unix_seconds, cleared_unix_seconds: None }
}

fn snooze(until: f64) -> Snooze {
    Snooze { until_unix_seconds: Some(until), severity: Severity::Warn, seen_unix_seconds: 0.0 }
}

fn process(host: &str, pid: u32, seen_unix_seconds: f64) -> SavedProcess {
    SavedProcess { host: host.into(), pid, seen_unix_seconds, ..SavedProcess::default() }
}

fn end(host: &str, label: &str, missed_unix_seconds: f64) -> SavedJobEnd {
    SavedJobEnd { host: host.into(), label: label.into(), missed_unix_seconds, ..SavedJobEnd::default() }
}

#[test]
fn a_memory_round_trips_and_others_are_refused() {
    let mut memory = SavedState { version: SAVED_STATE_VERSION, saved_unix_seconds: 1.7e9, ..SavedState::default() };
    memory.idle_watts.insert("GPU-0".into(), 122.5);
    memory.told.insert("stuck-spin/hgx-01/slurm:3385".into(), told(Severity::Crit, 1.7e9));
    memory.snoozed.insert("disk-full/hgx-01//home".into(), snooze(1.8e9));
    memory.processes.push(SavedProcess {
        work: vec![SavedGpuUsage { gpu: "GPU-0".into(), healthy_watts: Some(560.0), ..SavedGpuUsage::default() }],
        ..process("hgx-01", 7, 1.7e9)
    });
    memory.ended.push(end("hgx-01", "train.py", 1.7e9));
    let text = serde_json::to_string(&memory).expect("encodes");
    assert_eq!(SavedState::parse(&text), Ok(memory));
    let other =
        |version: u32| format!("a memory of version {version}, this gpufleet reads version {SAVED_STATE_VERSION}");
    // Of another version anything may have another form.
    assert_eq!(SavedState::parse("{\"version\":9,\"told\":7}"), Err(other(9)));
    assert_eq!(SavedState::parse("{\"version\":1,\"told\":{\"a\":\"warn\"}}"), Err(other(1)));
    assert!(SavedState::parse("").is_err_and(|error| error.starts_with("not a memory of gpufleet's diagnosis: ")));
    assert!(SavedState::parse("{}").is_err(), "no version is another version");
}

#[test]
fn what_two_runs_have_learned_is_kept_of_both() {
    let mut ours =
        SavedState { saved_unix_seconds: 100.0, seen_hosts: ["empty by now".into()].into(), ..SavedState::default() };
    ours.idle_watts.insert("GPU-0".into(), 60.0);
    ours.told.insert("a".into(), told(Severity::Warn, 100.0));
    ours.told.insert("b".into(), told(Severity::Warn, 50.0));
    ours.processes = vec![process("seen-by-both", 1, 100.0), process("seen-by-them", 2, 10.0)];
    ours.ended = vec![end("h", "x", 90.0)];
    let mut theirs = SavedState { saved_unix_seconds: 90.0, ended_told_unix_seconds: 80.0, ..SavedState::default() };
    theirs.idle_watts.insert("GPU-0".into(), 70.0);
    theirs.idle_watts.insert("GPU-1".into(), 71.0);
    theirs.told.insert("a".into(), told(Severity::Crit, 90.0));
    theirs.told.insert("b".into(), told(Severity::Crit, 90.0));
    theirs.processes = vec![
        process("seen-by-both", 3, 90.0),
        process("seen-by-them", 4, 90.0),
        process("known to them", 5, 80.0),
        process("empty by now", 6, 70.0),
    ];
    theirs.ended = vec![end("h", "x", 85.0), end("h", "y", 85.0)];
    ours.merge(theirs);
    assert_eq!(ours.idle_watts.values().copied().collect::<Vec<_>>(), [60.0, 71.0]);
    let severities: Vec<Severity> = ours.told.values().map(|told| told.severity).collect();
    assert_eq!(severities, [Severity::Warn, Severity::Crit], "the newer sight counts");
    assert_eq!(ours.processes.iter().map(|process| process.pid).collect::<Vec<_>>(), [1, 4, 5]);
    assert_eq!(ours.ended.iter().map(|end| &*end.label).collect::<Vec<_>>(), ["x", "y"]);
    assert!((ours.ended_told_unix_seconds - 80.0).abs() < 1e-9);
}

#[test]
fn of_a_snooze_the_run_that_touched_it_speaks() {
    let mut ours = SavedState { touched: ["set".into(), "ended".into()].into(), ..SavedState::default() };
    ours.snoozed.insert("set".into(), snooze(1.0));
    ours.snoozed.insert("read and ended by them".into(), snooze(2.0));
    ours.snoozed.insert("read".into(), snooze(3.0));
    let mut theirs = SavedState::default();
    for (id, until) in [("ended", 4.0), ("read", 5.0), ("set by them", 6.0)] {
        theirs.snoozed.insert(id.into(), snooze(until));
    }
    ours.merge(theirs);
    let snoozed: Vec<(&str, Option<f64>)> =
        ours.snoozed.iter().map(|(id, snooze)| (&**id, snooze.until_unix_seconds)).collect();
    assert_eq!(snoozed, [("read", Some(5.0)), ("set", Some(1.0)), ("set by them", Some(6.0))]);
}

#[test]
fn what_is_kept_is_bounded() {
    let mut memory = SavedState { saved_unix_seconds: 200_000.0, ..SavedState::default() };
    let many = |count: u32| (0..count).map(f64::from);
    memory.processes = many(5000).map(|at| process("h", 1, at)).collect();
    memory.ended = many(1500).map(|at| end("h", "x", 199_000.0 + at / 10.0)).collect();
    memory.ended.push(end("h", "of the day before", 100_000.0));
    memory.bound();
    assert_eq!((memory.processes.len(), memory.ended.len()), (MAX_SAVED_PROCESSES, MAX_ENDED));
    assert!(memory.ended.iter().all(|end| &*end.label == "x"));
    assert!(memory.processes.iter().all(|process| process.seen_unix_seconds >= 900.0), "the newest stay");
}
