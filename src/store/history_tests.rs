//! Tests of the history: rollups, retention, restarts, and every message about a file that cannot be used.

use super::*;
use crate::store::HistoryReader;
use crate::store::rollup::{GpuAccumulator, GpuSample, HistoryState};
use rusqlite::types::Value;
use std::os::unix::fs::PermissionsExt as _;

/// A start of a day.
const T: u64 = 1_800_057_600;

fn name(index: u32) -> GpuName {
    GpuName {
        host: "gpu1".into(),
        uuid: SafeText::new(&format!("GPU-{index}")),
        index,
        model: Some("NVIDIA H100".into()),
        memory_mib: Some(81_559),
    }
}

fn row(state: HistoryState, seconds: f64) -> GpuRow {
    let sample = GpuSample {
        state,
        utilization_percent: Some(80.0),
        memory_bytes: Some(40 << 30),
        power_watts: Some(500.0),
        temperature_celsius: Some(64),
        sm_activity_percent: None,
        is_throttled: false,
    };
    let mut minute = GpuAccumulator::default();
    minute.add(&sample, seconds);
    minute.row(MINUTE)
}

fn batch(start: u64, seconds: f64) -> Batch {
    let host = HostRow { reachable_seconds: seconds as u64, ..HostRow::default() };
    Batch {
        start,
        gpus: vec![(name(0), row(HistoryState::Busy, seconds)), (name(1), row(HistoryState::IdleHeld, seconds))],
        hosts: vec![("gpu1".into(), host)],
        ..Batch::default()
    }
}

fn job(held: u64, ended: Option<u64>) -> JobRow {
    JobRow {
        host: "gpu1".into(),
        key: "slurm:7".into(),
        label: "slurm:7".into(),
        user: "ann".into(),
        command: "python train.py".into(),
        gpus: "GPU 0".to_owned(),
        start: T,
        last_seen: T + 60,
        ended,
        how_ended: None,
        memory_max_mib: Some(40_960),
        held_seconds: held,
        used_seconds: held / 2,
        energy_joules: 100,
        unused_seconds: ended.map(|_| 7),
    }
}

fn finding(at: u64, has_ended: bool) -> FindingRow {
    FindingRow {
        fingerprint: "idle-hog/gpu1/7".into(),
        rule: "idle-hog",
        host: "gpu1".into(),
        severity: "warn",
        user: Some("ann".into()),
        at,
        has_ended,
        evidence: "holds 40 GiB and computes nothing".into(),
        notified: !has_ended,
    }
}

fn path() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state/history.db");
    (folder, path)
}

fn open(path: &Path) -> History {
    let (history, message) = History::open(path).expect("opens");
    assert_eq!(message, None);
    history
}

fn count(history: &History, table: &str) -> u64 {
    history.connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).expect("counts")
}

#[test]
fn minutes_quarters_and_days_give_the_same_sums() {
    let (_folder, path) = path();
    let mut history = open(&path);
    for minute in 0..40 {
        history.write(&batch(T + minute * 60, 60.0)).expect("writes");
    }
    assert_eq!((count(&history, "gpu_minute"), count(&history, "gpu_quarter"), count(&history, "gpu_day")), (80, 4, 2));
    let reader = HistoryReader::open(&path).expect("opens");
    let totals = reader.gpu_totals(T, T + 3600, None).expect("reads");
    let (_, first) = &totals[0];
    assert_eq!((totals.len(), &first.gpu), (2, &name(0)));
    assert_eq!(first.row.states, StateSeconds { busy: 2400, unknown: 1200, ..StateSeconds::default() });
    assert_eq!((first.row.utilization_permille, first.row.energy_joules), (Some(800), Some(1_200_000)));
    let quarters = reader.gpu_totals(T, T + 3600, Some((QUARTER, 0))).expect("reads");
    let starts: Vec<u64> = quarters.iter().map(|(start, _)| start - T).collect();
    assert_eq!(starts, [0, 0, 900, 900, 1800, 1800]);
    assert_eq!(quarters[4].1.row.states, StateSeconds { busy: 600, unknown: 300, ..StateSeconds::default() });
    // A whole day of quarter-hours is read from `gpu_day`.
    history.write(&batch(T + DAY, 60.0)).expect("writes");
    let totals = reader.gpu_totals(T, T + 2 * DAY, None).expect("reads");
    assert_eq!(totals[0].1.row.states.busy, 2460);
}

#[test]
fn a_restart_completes_the_minute_and_a_clock_that_goes_back_overwrites_nothing() {
    let (_folder, path) = path();
    let mut history = open(&path);
    history.write(&batch(T, 20.0)).expect("writes");
    drop(history);
    let mut history = open(&path);
    history.write(&batch(T, 30.0)).expect("writes");
    history.write(&batch(T, 60.0)).expect("writes");
    let reader = HistoryReader::open(&path).expect("opens");
    let totals = reader.gpu_totals(T, T + QUARTER, None).expect("reads");
    assert_eq!(totals[0].1.row.states.busy, 50);
}

#[test]
fn a_repeated_minute_counts_the_use_by_jobs_once_also_without_readings_of_gpus() {
    let (_folder, path) = path();
    let mut history = open(&path);
    let gap = Batch { gpus: Vec::new(), jobs: vec![job(60, None)], ..batch(T, 0.0) };
    for _ in 0..2 {
        history.write(&gap).expect("writes");
        history.write(&Batch { jobs: vec![job(30, None)], ..batch(T + 60, 60.0) }).expect("writes");
    }
    let reader = HistoryReader::open(&path).expect("opens");
    assert_eq!(reader.job_totals(T, T + QUARTER).expect("reads")[0].held_seconds, 90);
}

#[test]
fn a_repeated_import_keeps_minutes_that_came_in_parts() {
    let (_folder, path) = path();
    let import = || {
        let mut history = open(&path);
        history.keep_existing_minutes();
        // The second part is late.
        for (start, seconds) in [(T, 20.0), (T + 60, 60.0), (T, 10.0)] {
            history.write(&batch(start, seconds)).expect("writes");
        }
    };
    let busy = || {
        let reader = HistoryReader::open(&path).expect("opens");
        reader.gpu_totals(T, T + QUARTER, None).expect("reads")[0].1.row.states.busy
    };
    import();
    assert_eq!(busy(), 90);
    import();
    assert_eq!(busy(), 90);
}

#[test]
fn an_import_counts_nothing_again_whose_minutes_were_deleted() {
    let (_folder, path) = path();
    let import = || {
        let mut history = open(&path);
        history.keep_existing_minutes();
        for minute in 0..20 {
            history.write(&Batch { jobs: vec![job(60, None)], ..batch(T + minute * MINUTE, 60.0) }).expect("writes");
        }
        history.finish(T + 19 * MINUTE).expect("rolls up");
    };
    let held = || {
        let reader = HistoryReader::open(&path).expect("opens");
        let busy = reader.gpu_totals(T, T + 2 * QUARTER, None).expect("reads")[0].1.row.states.busy;
        (busy, reader.job_totals(T, T + DAY).expect("reads")[0].held_seconds)
    };
    import();
    assert_eq!(held(), (1200, 1200), "also the last quarter-hour, which is not over");
    open(&path).delete_old(T + 20 * DAY).expect("deletes");
    import();
    assert_eq!(held(), (1200, 1200));
}

#[test]
fn a_minute_of_a_host_is_completed_after_a_restart_and_not_by_a_clock_that_was_set_back() {
    let (_folder, path) = path();
    let reachable = || {
        let reader = HistoryReader::open(&path).expect("opens");
        reader.host_totals(T, T + QUARTER).expect("reads")[0].reachable_seconds
    };
    open(&path).write(&batch(T, 25.0)).expect("writes");
    let mut history = open(&path);
    history.write(&batch(T, 30.0)).expect("writes");
    assert_eq!(reachable(), 55);
    history.write(&batch(T, 30.0)).expect("writes");
    assert_eq!(reachable(), 55);
}

#[test]
fn a_quarter_hour_without_readings_is_rolled_up_after_a_restart() {
    let (_folder, path) = path();
    let down = |start| Batch { gpus: vec![], ..batch(start, 0.0) };
    let mut history = open(&path);
    history.write(&batch(T, 60.0)).expect("writes");
    history.write(&down(T + QUARTER)).expect("writes");
    drop(history);
    let mut history = open(&path);
    history.write(&batch(T + 2 * QUARTER, 60.0)).expect("writes");
    assert_eq!(count(&history, "host_quarter"), 2);
}

#[test]
fn the_user_and_the_command_of_a_job_are_those_that_became_known_last() {
    let (_folder, path) = path();
    let mut history = open(&path);
    let mut write = |start, user: &str, command: &str| {
        let job = JobRow { user: user.into(), command: command.into(), ..job(60, None) };
        history.write(&Batch { jobs: vec![job], ..batch(start, 60.0) }).expect("writes");
        let reader = HistoryReader::open(&path).expect("opens");
        let totals = reader.job_totals(T, T + DAY).expect("reads");
        (totals[0].user.to_string(), totals[0].command.to_string())
    };
    assert_eq!(write(T, "1000", ""), ("1000".to_owned(), String::new()));
    let known = ("ann".to_owned(), "python train.py".to_owned());
    assert_eq!(write(T + 60, "ann", "python train.py"), known);
    assert_eq!(write(T + 120, "", ""), known);
}

#[test]
fn after_a_long_pause_nothing_is_deleted_for_a_day() {
    let (_folder, path) = path();
    let mut history = open(&path);
    history.write(&batch(T, 60.0)).expect("writes");
    history.write(&batch(T + QUARTER, 60.0)).expect("writes");
    assert_eq!(history.message_about_clock(), None);
    drop(history);
    let mut history = open(&path);
    let later = T + 20 * DAY;
    let mut write = |start| {
        history.write(&batch(start, 60.0)).expect("writes");
        (count(&history, "gpu_minute"), history.message_about_clock())
    };
    let (kept, message) = write(later);
    let text = "the last minute in the history is 19 days old: nothing is deleted from it for a day, in case the clock is wrong \
                (`timedatectl` shows it)";
    assert_eq!((kept, message.as_deref()), (6, Some(text)));
    assert_eq!(write(later + QUARTER), (8, None));
    assert_eq!(write(later + DAY), (6, None), "those of the first day are deleted");
}

#[test]
fn jobs_and_findings_continue_after_a_restart() {
    let (_folder, path) = path();
    let mut history = open(&path);
    history
        .write(&Batch { jobs: vec![job(60, None)], findings: vec![finding(T, false)], ..batch(T, 60.0) })
        .expect("writes");
    drop(history);
    let mut history = open(&path);
    let reader = HistoryReader::open(&path).expect("opens");
    let findings = || reader.findings(T, T + DAY).expect("reads");
    assert_eq!(findings()[0].ended, Some(T + 60), "the run has ended");
    let later = T + 1000;
    history
        .write(&Batch {
            jobs: vec![job(30, Some(later))],
            findings: vec![finding(later, false)],
            ..batch(T + 960, 60.0)
        })
        .expect("writes");
    assert_eq!((findings().len(), findings()[0].ended, findings()[0].notified), (1, None, true));
    history.write(&Batch { findings: vec![finding(later + 5, true)], ..batch(T + 1020, 60.0) }).expect("writes");
    assert_eq!((findings()[0].ended, findings()[0].first_seen), (Some(later + 5), T));
    let jobs = reader.job_totals(T, T + DAY).expect("reads");
    assert_eq!((jobs.len(), jobs[0].held_seconds, jobs[0].used_seconds, jobs[0].ended), (1, 90, 45, Some(later)));
    assert_eq!(jobs[0].unused_seconds, Some(7), "unknown in the first batch");
    let only_later = reader.job_totals(T + QUARTER, T + DAY).expect("reads");
    assert_eq!(only_later[0].held_seconds, 30);
}

#[test]
fn minutes_are_kept_for_14_days_and_nothing_is_deleted_after_a_jump_of_the_clock() {
    let (_folder, path) = path();
    let mut history = open(&path);
    for day in 0..16 {
        history.write(&batch(T + day * DAY, 60.0)).expect("writes");
    }
    assert_eq!((count(&history, "gpu_minute"), count(&history, "gpu_quarter")), (30, 30), "the last is not rolled up");
    let far = T + 30 * 365 * DAY;
    history.write(&batch(far, 60.0)).expect("writes");
    history.write(&batch(far + QUARTER, 60.0)).expect("writes");
    assert_eq!((count(&history, "gpu_minute"), count(&history, "gpu_quarter")), (34, 34));
}

#[test]
fn the_file_is_private_and_locked() {
    let (_folder, path) = path();
    let mut history = open(&path);
    history.write(&batch(T, 60.0)).expect("writes");
    for name in ["history.db", "history.db-wal", "history.db-shm", "history.db.lock"] {
        let mode = std::fs::metadata(path.with_file_name(name)).expect(name).permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let error = History::open(&path).err().expect("is locked");
    assert!(matches!(error, HistoryError::Locked { .. }), "{error}");
    let path = PathBuf::from("/s/history.db");
    let text = |holder| HistoryError::Locked { path: path.clone(), holder }.to_string();
    assert_eq!(
        text(Some((71, "gpufleet".into()))),
        "cannot write the history /s/history.db: gpufleet (pid 71) writes it; stop that collector, or choose another file \
         with --store"
    );
    assert_eq!(
        text(None),
        "cannot write the history /s/history.db: another process writes it; stop that collector, or choose another file \
         with --store"
    );
}

#[test]
fn a_damaged_history_is_kept_and_a_new_one_begins() {
    let (_folder, path) = path();
    drop(open(&path));
    std::fs::write(&path, "not a database at all, but long enough to be read as the first page of one".repeat(40))
        .expect("writes");
    let error = HistoryReader::open(&path).err().expect("is damaged").to_string();
    assert_eq!(
        error,
        format!(
            "the history {} is damaged: file is not a database; `gpufleet collect` keeps it under another name when it starts, \
             and begins a new one; name another file with --store",
            path.display()
        )
    );
    let (mut history, message) = History::open(&path).expect("opens");
    assert_eq!(
        message.as_deref(),
        Some(&*format!(
            "the history {} is damaged (file is not a database): it is kept as history.db.bad-1, and a new one begins",
            path.display()
        ))
    );
    history.write(&batch(T, 60.0)).expect("writes");
    assert!(path.with_file_name("history.db.bad-1").exists());
}

#[test]
fn a_newer_history_is_refused_and_unchanged() {
    let (_folder, path) = path();
    let history = open(&path);
    history.connection.execute_batch("PRAGMA user_version = 9").expect("writes");
    drop(history);
    let before = std::fs::read(&path).expect("reads");
    let expected = format!(
        "cannot use the history {}: a newer gpufleet has written it (version 9, this one knows 3); update gpufleet, or \
         choose another file with --store",
        path.display()
    );
    assert_eq!(History::open(&path).err().expect("refused").to_string(), expected);
    assert_eq!(HistoryReader::open(&path).err().expect("refused").to_string(), expected);
    assert_eq!(std::fs::read(&path).expect("reads"), before);
}

/// Dumps of files that earlier versions have written: hosts with several GPUs, jobs and findings.
const VERSION_1: &str = include_str!("../../tests/upgrade/history-1.sql");
/// See [`VERSION_1`]; on two days.
const VERSION_2: &str = include_str!("../../tests/upgrade/history-2.sql");

/// Writes a dump to a file.
fn load(dump: &str, path: &Path) -> Connection {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("creates");
    let old = Connection::open(path).expect("opens");
    old.execute_batch(dump).expect("loads");
    old
}

/// All rows of a query.
fn all(connection: &Connection, query: &str) -> Vec<Vec<Value>> {
    let mut statement = connection.prepare(query).expect("prepares");
    let count = statement.column_count();
    let rows = statement
        .query_map([], |row| (0..count).map(|column| row.get(column)).collect::<rusqlite::Result<Vec<Value>>>())
        .expect("reads");
    rows.map(|row| row.expect("a row")).collect()
}

#[test]
fn a_history_of_an_earlier_version_is_upgraded_and_keeps_every_value() {
    for (dump, unused) in [(VERSION_1, ""), (VERSION_2, ", unused_seconds")] {
        let (_folder, path) = path();
        let old = load(dump, &path);
        let gpu = format!("start, gpu, {GPU_COLUMNS}");
        let job_quarter = format!("start, job, held_seconds, used_seconds, energy_joules{unused}");
        let tables = [
            ("gpu_minute", &*gpu),
            ("gpu_quarter", &gpu),
            ("gpu_day", &gpu),
            ("host", "*"),
            ("gpu", "*"),
            ("host_minute", "*"),
            ("host_quarter", "*"),
            ("job_quarter", &job_quarter),
            ("finding", "id, fingerprint, rule, host, severity, user, first_seen, evidence, notified"),
            ("job", "id, host, key, label, user, command, gpus, start, last_seen, how_ended, memory_max_mib"),
        ];
        let queries = tables.map(|(table, columns)| format!("SELECT {columns} FROM {table} ORDER BY 1, 2"));
        let before: Vec<_> = queries.iter().map(|query| all(&old, query)).collect();
        drop(old);
        assert!(before.iter().all(|rows| !rows.is_empty()));
        let error = HistoryReader::open(&path).err().expect("is older").to_string();
        assert_eq!(
            error,
            format!(
                "cannot read the history {}: an older gpufleet has written it; start `gpufleet collect`, which upgrades it, \
                 or name another file with --store",
                path.display()
            )
        );
        let mut history = open(&path);
        for (query, before) in queries.iter().zip(&before) {
            assert_eq!(all(&history.connection, query), *before, "{query}");
        }
        assert_eq!(version(&history.connection), Ok(VERSION));
        assert_days_are_sums_of_quarters(&history.connection);
        // It goes on.
        let last = HistoryReader::open(&path).expect("opens").last_minute().expect("reads").expect("a minute");
        history.write(&batch(last + 60, 60.0)).expect("writes");
        drop(history);
        drop(open(&path));
    }
}

/// The days of hosts and jobs have the sums of their quarter-hours.
fn assert_days_are_sums_of_quarters(connection: &Connection) {
    for (subject, sums) in [
        ("host", "sum(watched_seconds), sum(reachable_seconds)"),
        ("job", "sum(held_seconds), sum(used_seconds), sum(energy_joules), sum(unused_seconds)"),
    ] {
        let of = |table: &str| {
            let query =
                format!("SELECT start / {DAY}, {subject}, {sums} FROM {subject}_{table} GROUP BY 1, 2 ORDER BY 1, 2");
            all(connection, &query)
        };
        let days = of("day");
        assert!(!days.is_empty());
        assert_eq!(days, of("quarter"), "{subject}");
    }
}

#[test]
fn days_of_hosts_and_jobs_follow_their_quarter_hours() {
    let (_folder, path) = path();
    let mut history = open(&path);
    let minutes = [0, 1, 14, 20, 1430, 1439, 1440, 1500, 3000];
    for minute in minutes {
        let start = T + minute * 60;
        let jobs = vec![job(60, (minute > 20).then_some(start))];
        history.write(&Batch { jobs, ..batch(start, 30.0) }).expect("writes");
    }
    // The last quarter-hour is rolled up when it is over.
    history.write(&batch(T + 3 * DAY, 60.0)).expect("writes");
    assert_eq!((count(&history, "host_day"), count(&history, "job_day")), (3, 3));
    assert_days_are_sums_of_quarters(&history.connection);
    let reader = HistoryReader::open(&path).expect("opens");
    for (from, until) in
        [(0, 86_400), (900, 2 * 86_400), (0, 3000 * 60), (1800, 3 * 86_400 + 900), (86_400, 86_400 + 900)]
    {
        let inside = minutes.iter().filter(|minute| (from..until).contains(&(**minute * 60))).count() as u64;
        let watched = inside + u64::from(until > 3 * DAY);
        let hosts = reader.host_totals(T + from, T + until).expect("reads");
        assert_eq!((hosts.len(), hosts[0].watched_seconds), (1, watched * 60), "{from} to {until}");
        let jobs = reader.job_totals(T + from, T + until).expect("reads");
        assert_eq!((jobs.len(), jobs[0].held_seconds), (1, inside * 60), "{from} to {until}");
    }
}

#[test]
fn a_host_is_watched_from_its_first_minute_or_the_quarter_hour_of_it() {
    let (_folder, path) = path();
    let mut history = open(&path);
    let first = T + DAY + 8 * 3600 + 7 * 60;
    let first_watched = |from: u64| {
        let hosts = HistoryReader::open(&path).expect("opens").host_totals(from, first + 90 * DAY).expect("reads");
        hosts[0].first_watched
    };
    history.write(&batch(first, 30.0)).expect("writes");
    assert_eq!(first_watched(T), first, "before the first quarter-hour is over");
    history.write(&batch(first + 5 * 60, 30.0)).expect("writes");
    history.write(&batch(first + 3 * DAY, 30.0)).expect("writes");
    assert_eq!((first_watched(T), first_watched(first + 2 * DAY)), (first, first));
    // Minutes are deleted after 14 days, if the clock has gone on for a day since a jump.
    for day in [30, 31] {
        history.write(&batch(first + day * DAY, 30.0)).expect("writes");
    }
    assert_eq!(first_watched(T), first - 7 * 60);
}

#[test]
fn an_upgrade_that_fails_leaves_the_earlier_version() {
    for (version_before, dump, table) in [(1, VERSION_1, "gpu_day_row"), (2, VERSION_2, "job_day")] {
        let (_folder, path) = path();
        // A step of the upgrade meets a table of this name.
        let old = load(dump, &path);
        old.execute_batch(&format!("CREATE TABLE {table} (x)")).expect("creates");
        drop(old);
        let error = History::open(&path).err().expect("fails").to_string();
        assert!(error.contains(&format!("table {table} already exists")), "{error}");
        let old = Connection::open(&path).expect("opens");
        assert_eq!(version(&old), Ok(version_before));
        old.execute_batch(&format!("DROP TABLE {table}")).expect("drops");
        drop(old);
        drop(open(&path));
    }
}

#[test]
fn row_ids_keep_minutes_in_order_and_never_overflow() {
    assert_eq!(row_id(T, 7) >> GPU_BITS, i64::try_from(T / 60).expect("fits"));
    assert!(row_id(T, MAX_GPU_ID) < row_id(T + 60, 0));
    assert!(row_id(u64::MAX, MAX_GPU_ID) > row_id(1 << 40, 0));
}

#[test]
fn a_full_disk_loses_nothing_that_was_written() {
    let (_folder, path) = path();
    let mut history = open(&path);
    history.write(&batch(T, 60.0)).expect("writes");
    let pages: u64 = history.connection.query_row("PRAGMA page_count", [], |row| row.get(0)).expect("reads");
    let limit = |history: &History, pages: u64| {
        let query = format!("PRAGMA max_page_count = {pages}");
        history.connection.query_row(&query, [], |_| Ok(())).expect("sets");
    };
    limit(&history, pages);
    let large = Batch {
        gpus: (0..2000).map(|index| (name(index), row(HistoryState::Free, 60.0))).collect(),
        ..batch(T + 60, 60.0)
    };
    let error = history.write(&large).expect_err("is full").to_string();
    assert_eq!(error, format!("cannot write the history {}: the disk is full; free some space", path.display()));
    assert_eq!(count(&history, "gpu_minute"), 2);
    limit(&history, 100_000);
    history.write(&large).expect("writes the same batch later");
    assert_eq!(count(&history, "gpu_minute"), 2002);
}

#[test]
fn a_directory_that_cannot_be_written_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("state"), "").expect("writes");
    let path = folder.path().join("state/history.db");
    let error = History::open(&path).err().expect("fails").to_string();
    let expected = |cause: &str| {
        format!(
            "cannot write the history {}: {cause}; check the owner and mode of the directory, or choose another file with \
             --store",
            path.display()
        )
    };
    assert!(error == expected("File exists") || error == expected("Not a directory"), "{error}");
    let path = folder.path().join("none.db");
    assert_eq!(
        HistoryReader::open(&path).err().expect("is missing").to_string(),
        format!("there is no history {}: `gpufleet collect` writes it; name another file with --store", path.display())
    );
}

#[test]
fn the_periods_of_one_host_are_read_from_minutes_quarters_and_days() {
    let (_folder, path) = path();
    let mut history = open(&path);
    let other = |index| GpuName { host: "gpu2".into(), ..name(index) };
    for minute in (0..20).chain(40..60) {
        let mut batch = batch(T + minute * 60, 60.0);
        batch.gpus.push((other(0), row(HistoryState::Free, 60.0)));
        batch.hosts.push(("gpu2".into(), HostRow::default()));
        history.write(&batch).expect("writes");
    }
    history.write(&batch(T + DAY, 60.0)).expect("writes");
    let reader = HistoryReader::open(&path).expect("opens");
    let busy = |step: u64, until: u64| -> Vec<(u64, u64)> {
        let totals = reader.host_gpu_totals("gpu1", T, until, step).expect("reads");
        assert!(totals.iter().all(|(_, total)| total.gpu.host == "gpu1"), "{totals:?}");
        let of_first = totals.iter().filter(|(_, total)| total.gpu.index == 0);
        of_first.map(|(start, total)| (start - T, total.row.states.busy)).collect()
    };
    let minutes = busy(120, T + 3600);
    assert_eq!((minutes.len(), minutes[0], minutes[10]), (20, (0, 120), (2400, 120)), "the gap has no period");
    assert_eq!(busy(QUARTER, T + 3600), [(0, 900), (900, 300), (1800, 300), (2700, 900)]);
    assert_eq!(busy(DAY, T + 2 * DAY), [(0, 2400), (DAY, 60)]);
    assert_eq!(reader.host_gpu_totals("gpu3", T, T + DAY, 60).expect("reads"), []);
}
