//! The history: an SQLite file with minutes, quarter-hours and days of each GPU, jobs and findings.
//!
//! | table | row | kept |
//! |---|---|---|
//! | `gpu_minute`, `host_minute` | a GPU or host in a minute | 14 days |
//! | `gpu_quarter`, `host_quarter`, `job_quarter` | the same in a quarter-hour | 2 years |
//! | `gpu_day`, `host_day`, `job_day` | the same in a day (UTC) | 2 years |
//! | `job`, `finding` | a job on a host, a finding | 2 years |
//!
//! `gpu_minute`, `gpu_quarter` and `gpu_day` are views; their rows are in `gpu_minute_row`, `gpu_quarter_row` and
//! `gpu_day_row`. Times are seconds since 1970. A period without a row is unknown. `PRAGMA user_version` is the version of the schema. One
//! process writes ([`History::open`] takes a lock); others may read at the same time ([`super::HistoryReader`]).

use super::rollup::{GpuRow, GpuRowMerger, StateSeconds, merge_gpu_rows};
use super::{FileLock, HistoryError, lock_file, rename_bad_file};
use crate::wire::SafeText;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Row, params};
use std::collections::{BTreeSet, HashMap};
use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The version of the schema that this program writes.
pub(super) const VERSION: i64 = 3;
/// The length of the periods in seconds.
pub const MINUTE: u64 = 60;
/// See [`MINUTE`].
pub const QUARTER: u64 = 900;
/// See [`MINUTE`].
pub const DAY: u64 = 86_400;
/// How long minutes are kept.
const MINUTES_KEPT: u64 = 14 * DAY;
/// How long everything else is kept.
const REST_KEPT: u64 = 2 * 365 * DAY;
/// After a step of the clock that is longer than this, nothing is deleted for as long, because the clock may be wrong.
const TRUSTED_STEP: u64 = DAY;
/// Adds a minute of a host. One that exists is kept.
const ADD_HOST_MINUTE: &str =
    "INSERT INTO host_minute VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT (start, host) DO NOTHING";
/// Adds a minute of a host, or completes the one that exists, as after a restart. More than 60 seconds mean that the clock was set back.
const COMPLETE_HOST_MINUTE: &str = "INSERT INTO host_minute VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
     ON CONFLICT (start, host) DO UPDATE SET reachable_seconds = reachable_seconds + excluded.reachable_seconds
     WHERE excluded.reachable_seconds > 0 AND reachable_seconds + excluded.reachable_seconds <= 60";
/// How far back the late part of a minute may be, in an import.
const RECENT: u64 = 3600;
/// A finding that fires again within this time continues the earlier row.
const FINDING_PAUSE: u64 = 1800;
/// How long a reader waits for a writer that switches its log.
pub(super) const BUSY_LIMIT: Duration = Duration::from_secs(5);

/// Version 1.
const SCHEMA: &str = "
CREATE TABLE host (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE gpu (id INTEGER PRIMARY KEY, host INTEGER NOT NULL REFERENCES host, uuid TEXT NOT NULL,
  gpu_index INTEGER NOT NULL, model TEXT, memory_mib INTEGER, UNIQUE (host, uuid));
CREATE TABLE gpu_minute (start INTEGER, gpu INTEGER, samples INTEGER, utilization_permille INTEGER,
  utilization_max_percent INTEGER, memory_mib INTEGER, memory_max_mib INTEGER, energy_joules INTEGER,
  temperature_max_celsius INTEGER, sm_activity_permille INTEGER, busy_seconds INTEGER, idle_held_seconds INTEGER,
  free_seconds INTEGER, faulty_seconds INTEGER, unknown_seconds INTEGER, throttled_seconds INTEGER,
  PRIMARY KEY (start, gpu)) WITHOUT ROWID;
CREATE TABLE gpu_quarter (start INTEGER, gpu INTEGER, samples INTEGER, utilization_permille INTEGER,
  utilization_max_percent INTEGER, memory_mib INTEGER, memory_max_mib INTEGER, energy_joules INTEGER,
  temperature_max_celsius INTEGER, sm_activity_permille INTEGER, busy_seconds INTEGER, idle_held_seconds INTEGER,
  free_seconds INTEGER, faulty_seconds INTEGER, unknown_seconds INTEGER, throttled_seconds INTEGER,
  PRIMARY KEY (start, gpu)) WITHOUT ROWID;
CREATE TABLE gpu_day (start INTEGER, gpu INTEGER, samples INTEGER, utilization_permille INTEGER,
  utilization_max_percent INTEGER, memory_mib INTEGER, memory_max_mib INTEGER, energy_joules INTEGER,
  temperature_max_celsius INTEGER, sm_activity_permille INTEGER, busy_seconds INTEGER, idle_held_seconds INTEGER,
  free_seconds INTEGER, faulty_seconds INTEGER, unknown_seconds INTEGER, throttled_seconds INTEGER,
  PRIMARY KEY (start, gpu)) WITHOUT ROWID;
CREATE TABLE host_minute (start INTEGER, host INTEGER, cpu_permille INTEGER, memory_mib INTEGER, load_hundredths INTEGER,
  disk_kib_per_second INTEGER, network_kib_per_second INTEGER, reachable_seconds INTEGER,
  PRIMARY KEY (start, host)) WITHOUT ROWID;
CREATE TABLE host_quarter (start INTEGER, host INTEGER, cpu_permille INTEGER, memory_mib INTEGER, load_hundredths INTEGER,
  disk_kib_per_second INTEGER, network_kib_per_second INTEGER, watched_seconds INTEGER, reachable_seconds INTEGER,
  PRIMARY KEY (start, host)) WITHOUT ROWID;
CREATE TABLE job (id INTEGER PRIMARY KEY, host INTEGER NOT NULL REFERENCES host, key TEXT NOT NULL, label TEXT NOT NULL,
  user TEXT NOT NULL, command TEXT NOT NULL, gpus TEXT NOT NULL, start INTEGER NOT NULL, last_seen INTEGER NOT NULL,
  ended INTEGER, how_ended TEXT, memory_max_mib INTEGER, UNIQUE (host, key));
CREATE TABLE job_quarter (start INTEGER, job INTEGER, held_seconds INTEGER, used_seconds INTEGER, energy_joules INTEGER,
  PRIMARY KEY (start, job)) WITHOUT ROWID;
CREATE TABLE finding (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL, rule TEXT NOT NULL, host TEXT NOT NULL,
  severity TEXT NOT NULL, user TEXT, first_seen INTEGER NOT NULL, ended INTEGER, evidence TEXT NOT NULL,
  notified INTEGER NOT NULL);
CREATE INDEX finding_fingerprint ON finding (fingerprint, first_seen);
";

/// The columns of a GPU row as version 1 stores them, after `start` and `gpu`.
pub(super) const GPU_COLUMNS: &str =
    "samples, utilization_permille, utilization_max_percent, memory_mib, memory_max_mib, energy_joules,
  temperature_max_celsius, sm_activity_permille, busy_seconds, idle_held_seconds, free_seconds, faulty_seconds,
  unknown_seconds, throttled_seconds";

/// The bits of a row id below the minute: the id of the GPU.
pub(super) const GPU_BITS: u32 = 20;
/// The highest id of a GPU.
const MAX_GPU_ID: i64 = (1 << GPU_BITS) - 1;

/// Version 2 stores a GPU row in a fifth less space. Its key is one number of the minute and the GPU, the highest memory is
/// stored above the mean, and the unknown seconds are those that are missing. The views have the columns of version 1, and
/// `id`, which queries of a period must name: `id >= row_id(from, 0)`. A job has the seconds of GPUs that it did not use.
fn upgrade_to_2() -> String {
    let known = "busy_seconds + idle_held_seconds + free_seconds + faulty_seconds";
    let tables = [("gpu_minute", MINUTE), ("gpu_quarter", QUARTER), ("gpu_day", DAY)].map(|(table, period)| {
        format!(
            "CREATE TABLE {table}_row (id INTEGER PRIMARY KEY, samples INTEGER, utilization_permille INTEGER,
               utilization_max_percent INTEGER, memory_mib INTEGER, memory_max_above_mib INTEGER, energy_joules INTEGER,
               temperature_max_celsius INTEGER, sm_activity_permille INTEGER, busy_seconds INTEGER,
               idle_held_seconds INTEGER, free_seconds INTEGER, faulty_seconds INTEGER, throttled_seconds INTEGER);
             INSERT INTO {table}_row SELECT (start / 60 << {GPU_BITS}) + gpu, samples, utilization_permille,
               utilization_max_percent, memory_mib, memory_max_mib - coalesce(memory_mib, 0), energy_joules,
               temperature_max_celsius, sm_activity_permille, busy_seconds, idle_held_seconds, free_seconds, faulty_seconds,
               throttled_seconds FROM {table} ORDER BY start, gpu;
             DROP TABLE {table};
             CREATE VIEW {table} AS SELECT id, (id >> {GPU_BITS}) * 60 AS start, id & {MAX_GPU_ID} AS gpu, samples,
               utilization_permille, utilization_max_percent, memory_mib,
               memory_max_above_mib + coalesce(memory_mib, 0) AS memory_max_mib, energy_joules, temperature_max_celsius,
               sm_activity_permille, busy_seconds, idle_held_seconds, free_seconds, faulty_seconds,
               max({period} - ({known}), 0) AS unknown_seconds, throttled_seconds FROM {table}_row;\n"
        )
    });
    tables.concat() + "ALTER TABLE job_quarter ADD COLUMN unused_seconds INTEGER;\n"
}

/// Version 3 adds the days of hosts and jobs, because a report over two years reads 2 million quarter-hours of each.
const UPGRADE_TO_3: &str = "
CREATE TABLE host_day (start INTEGER, host INTEGER, watched_seconds INTEGER, reachable_seconds INTEGER,
  PRIMARY KEY (start, host)) WITHOUT ROWID;
CREATE TABLE job_day (start INTEGER, job INTEGER, held_seconds INTEGER, used_seconds INTEGER, energy_joules INTEGER,
  unused_seconds INTEGER, PRIMARY KEY (start, job)) WITHOUT ROWID;
INSERT INTO host_day SELECT start / 86400 * 86400, host, sum(watched_seconds), sum(reachable_seconds) FROM host_quarter
  GROUP BY 1, 2;
INSERT INTO job_day SELECT start / 86400 * 86400, job, sum(held_seconds), sum(used_seconds), sum(energy_joules),
  sum(unused_seconds) FROM job_quarter GROUP BY 1, 2;
";

/// The key of a GPU row; with `gpu` 0 the lowest one of its period.
pub(super) fn row_id(start: u64, gpu: i64) -> i64 {
    let minute = i64::try_from(start / MINUTE).unwrap_or(i64::MAX).min(i64::MAX >> GPU_BITS);
    (minute << GPU_BITS) | (gpu & MAX_GPU_ID)
}

/// The start of the last period of a table of GPU rows; `None` if it is empty.
pub(super) fn last_start(connection: &Connection, table: &str) -> rusqlite::Result<Option<u64>> {
    let query = format!("SELECT (max(id) >> {GPU_BITS}) * 60 FROM {table}_row");
    connection.query_row(&query, [], |row| row.get(0))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// A GPU as the history names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GpuName {
    /// The host.
    pub host: SafeText,
    /// The UUID; `index-N` if the driver does not tell it.
    pub uuid: SafeText,
    /// The index on its host.
    pub index: u32,
    /// The model.
    pub model: Option<SafeText>,
    /// The size of its memory in MiB.
    pub memory_mib: Option<u64>,
}

/// The readings of a host in a minute. Values are means; rates sum reads and writes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostRow {
    /// CPU utilization in tenths of a percent.
    pub cpu_permille: Option<u64>,
    /// Memory in use in MiB.
    pub memory_mib: Option<u64>,
    /// Load average over one minute, in hundredths.
    pub load_hundredths: Option<u64>,
    /// Disk traffic in KiB per second.
    pub disk_kib_per_second: Option<u64>,
    /// Network traffic in KiB per second.
    pub network_kib_per_second: Option<u64>,
    /// Seconds in which the host sent readings.
    pub reachable_seconds: u64,
}

/// A job on one host, with its use of GPUs since the last batch.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRow {
    /// The host.
    pub host: SafeText,
    /// Names the job on this host, also after a restart of the collector.
    pub key: SafeText,
    /// The form for people: `slurm:3385`.
    pub label: SafeText,
    /// The user.
    pub user: SafeText,
    /// The command, redacted by the probe.
    pub command: SafeText,
    /// The indexes of its GPUs: `GPU 3`, `GPUs 0-2,7`.
    pub gpus: String,
    /// When it started.
    pub start: u64,
    /// When it was last seen.
    pub last_seen: u64,
    /// When it was first missing.
    pub ended: Option<u64>,
    /// How it ended, if that is known.
    pub how_ended: Option<String>,
    /// The highest memory on all of its GPUs in MiB.
    pub memory_max_mib: Option<u64>,
    /// GPU seconds held since the last batch.
    pub held_seconds: u64,
    /// GPU seconds in which the held GPU was busy, since the last batch.
    pub used_seconds: u64,
    /// Its share of the energy of its GPUs in joules, since the last batch.
    pub energy_joules: u64,
    /// GPU seconds, part of those held, in which Slurm had allocated the GPU and no process of the job was on it; `None` if
    /// Slurm does not tell.
    pub unused_seconds: Option<u64>,
}

/// A finding that fired or cleared.
#[derive(Debug, Clone, PartialEq)]
pub struct FindingRow {
    /// The fingerprint.
    pub fingerprint: SafeText,
    /// The rule.
    pub rule: &'static str,
    /// The host.
    pub host: SafeText,
    /// The severity.
    pub severity: &'static str,
    /// The owner of the processes.
    pub user: Option<SafeText>,
    /// When it fired or cleared.
    pub at: u64,
    /// Whether it has cleared.
    pub has_ended: bool,
    /// The sentence with its figures.
    pub evidence: SafeText,
    /// Whether the user was notified.
    pub notified: bool,
}

/// Everything of one minute. It is written in one transaction.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// The start of the minute.
    pub start: u64,
    /// The GPUs.
    pub gpus: Vec<(GpuName, GpuRow)>,
    /// The hosts.
    pub hosts: Vec<(SafeText, HostRow)>,
    /// The jobs that were seen or have ended.
    pub jobs: Vec<JobRow>,
    /// The findings that fired or cleared.
    pub findings: Vec<FindingRow>,
}

/// The history, open for writing.
pub struct History {
    connection: Connection,
    path: PathBuf,
    /// The device and the inode of the file.
    identity: Option<(u64, u64)>,
    hosts: HashMap<SafeText, i64>,
    gpus: HashMap<GpuName, i64>,
    /// The quarter-hours whose minutes have changed since they were rolled up.
    changed_quarters: BTreeSet<u64>,
    /// The last minute that was written.
    last: Option<u64>,
    /// Since when the clock is doubted, so that nothing is deleted, and by how much it went ahead then.
    doubted: Option<(u64, u64)>,
    /// Nothing has been logged about that yet.
    has_new_doubt: bool,
    /// For an import: the rows of recent minutes that it has written. Rows that existed before are kept.
    imported: Option<BTreeSet<i64>>,
    _lock: FileLock,
}

impl History {
    /// Opens the history for writing and creates it if it is missing: mode 0600, in a directory of mode 0700. A damaged
    /// history is renamed and a new one begun; the message says so.
    ///
    /// # Errors
    /// Another collector writes it, it is of a newer version, or the file cannot be written.
    pub fn open(path: &Path) -> Result<(Self, Option<String>), HistoryError> {
        let failed = |error: &std::io::Error| HistoryError::io("write", path, error);
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|error| failed(&error))?;
        }
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock = lock_file(Path::new(&lock_path)).map_err(|error| {
            match error.get_ref().and_then(|inner| inner.downcast_ref::<super::LockHeld>()) {
                Some(held) => HistoryError::Locked { path: path.to_owned(), holder: held.holder.clone() },
                None => failed(&error),
            }
        })?;
        let (connection, message) = match Self::connect(path) {
            Err(HistoryError::Damaged { cause, .. }) => {
                let aside = rename_bad_file(path).map_err(|error| failed(&error))?;
                for suffix in ["-wal", "-shm"] {
                    let beside = |path: &Path| {
                        path.with_file_name(format!(
                            "{}{suffix}",
                            path.file_name().unwrap_or_default().to_string_lossy()
                        ))
                    };
                    // They may be missing.
                    let _ = std::fs::rename(beside(path), beside(&path.with_file_name(&aside)));
                }
                let message = format!(
                    "the history {} is damaged ({cause}): it is kept as {aside}, and a new one begins",
                    SafeText::new(&path.to_string_lossy())
                );
                (Self::connect(path)?, Some(message))
            }
            connected => (connected?, None),
        };
        let mut history = Self {
            connection,
            path: path.to_owned(),
            identity: identity(path),
            hosts: HashMap::new(),
            gpus: HashMap::new(),
            changed_quarters: BTreeSet::new(),
            last: None,
            doubted: None,
            has_new_doubt: false,
            imported: None,
            _lock: lock,
        };
        history.resume().map_err(|error| HistoryError::of("write", path, &error))?;
        Ok((history, message))
    }

    /// Whether somebody has deleted the file or put another one in its place since it was opened.
    pub(super) fn was_replaced(&self) -> bool {
        identity(&self.path) != self.identity
    }

    /// Ends the use of a file that is no longer in its place: the last minutes are still in its log (WAL), which would be taken for
    /// that of the file which is there now.
    pub(super) fn leave(self) {
        // The file may be deleted, so an error loses nothing.
        let _ = self.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
    }

    /// From now on, minutes that the history has already are kept as they are, so that an import can be repeated. Otherwise
    /// they are completed, as after a restart of the collector.
    pub fn keep_existing_minutes(&mut self) {
        self.imported = Some(BTreeSet::new());
    }

    fn connect(path: &Path) -> Result<Connection, HistoryError> {
        let failed = |error: rusqlite::Error| HistoryError::of("write", path, &error);
        // SQLite gives its other files the mode of this one.
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.open(path).map_err(|error| HistoryError::io("write", path, &error))?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
        connection.busy_timeout(BUSY_LIMIT).map_err(failed)?;
        let version = version(&connection).map_err(failed)?;
        if version > VERSION {
            return Err(HistoryError::Newer { path: path.to_owned(), version, known: VERSION });
        }
        let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(failed)?;
        if mode != "wal" {
            let cause = "the file system does not support shared memory (WAL)".to_owned();
            return Err(HistoryError::Failed { operation: "write", path: path.to_owned(), cause });
        }
        // With WAL, a killed program loses nothing that was committed; a power cut may lose the last commits.
        connection.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = OFF").map_err(failed)?;
        let check: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(failed)?;
        if check != "ok" {
            return Err(HistoryError::Damaged { path: path.to_owned(), cause: check });
        }
        if version < VERSION {
            // One transaction: a killed upgrade leaves the earlier version.
            let steps = [SCHEMA.to_owned(), upgrade_to_2(), UPGRADE_TO_3.to_owned()];
            let missing = steps.get(usize::try_from(version).unwrap_or(0)..).unwrap_or_default().concat();
            let upgrade = format!("BEGIN IMMEDIATE; {missing} PRAGMA user_version = {VERSION}; COMMIT");
            if let Err(error) = connection.execute_batch(&upgrade) {
                // SQLite has rolled back already after some errors.
                let _ = connection.execute_batch("ROLLBACK");
                return Err(failed(error));
            }
        }
        Ok(connection)
    }

    /// Ends the jobs and findings that an earlier run left open, and finds the quarter-hours that it did not roll up.
    fn resume(&mut self) -> rusqlite::Result<()> {
        let last: Option<u64> =
            self.connection.query_row("SELECT max(start) FROM host_minute", [], |row| row.get(0))?;
        self.last = last;
        let Some(last) = last else { return Ok(()) };
        self.end_findings(last + MINUTE)?;
        self.connection.execute("UPDATE job SET ended = last_seen WHERE ended IS NULL", [])?;
        // A minute without a reading of any GPU has rows of hosts, too.
        let rolled = last_host_quarter(&self.connection)?;
        let mut statement =
            self.connection.prepare("SELECT DISTINCT start / 900 * 900 FROM host_minute WHERE start >= ?1")?;
        let quarters = statement.query_map([rolled.unwrap_or(0)], |row| row.get(0))?;
        self.changed_quarters = quarters.collect::<rusqlite::Result<_>>()?;
        Ok(())
    }

    /// Ends the findings that are open, because nothing is known about them after this time.
    fn end_findings(&self, at: u64) -> rusqlite::Result<()> {
        self.connection.execute("UPDATE finding SET ended = ?1 WHERE ended IS NULL", [at]).map(drop)
    }

    /// Writes a minute, rolls up the quarter-hours that are over, and deletes what is too old.
    ///
    /// # Errors
    /// Nothing of the minute was written; the same batch can be written later.
    pub fn write(&mut self, batch: &Batch) -> Result<(), HistoryError> {
        let (hosts, gpus, quarters) = (self.hosts.clone(), self.gpus.clone(), self.changed_quarters.clone());
        let begun = self.connection.execute_batch("BEGIN IMMEDIATE");
        let written =
            begun.and_then(|()| self.write_batch(batch)).and_then(|()| self.connection.execute_batch("COMMIT"));
        let Err(error) = written else {
            self.last = Some(self.last.map_or(batch.start, |last| last.max(batch.start)));
            return Ok(());
        };
        let error = HistoryError::of_write(&self.path, &self.connection, &error);
        // SQLite has rolled back already after some errors.
        let _ = self.connection.execute_batch("ROLLBACK");
        // New ids are rolled back as well.
        (self.hosts, self.gpus, self.changed_quarters) = (hosts, gpus, quarters);
        Err(error)
    }

    fn write_batch(&mut self, batch: &Batch) -> rusqlite::Result<()> {
        let quarter = batch.start / QUARTER * QUARTER;
        // A minute that exists, as in a second import, must not count the use by jobs again.
        let mut is_new = batch.gpus.is_empty() && batch.hosts.is_empty();
        for (name, row) in &batch.gpus {
            let gpu = self.gpu_id(name)?;
            is_new |= self.add_gpu_minute(batch.start, gpu, row)?;
        }
        let insert_host = if self.imported.is_some() { ADD_HOST_MINUTE } else { COMPLETE_HOST_MINUTE };
        for (name, row) in &batch.hosts {
            let host = self.host_id(name)?;
            let added = self.connection.prepare_cached(insert_host)?.execute(params![
                batch.start,
                host,
                row.cpu_permille,
                row.memory_mib,
                row.load_hundredths,
                row.disk_kib_per_second,
                row.network_kib_per_second,
                row.reachable_seconds
            ])?;
            // A minute without readings of GPUs has rows of hosts alone.
            is_new |= batch.gpus.is_empty() && added > 0;
        }
        for job in &batch.jobs {
            self.write_job(quarter, job, is_new)?;
        }
        for finding in &batch.findings {
            self.write_finding(finding)?;
        }
        self.changed_quarters.insert(quarter);
        let complete: Vec<u64> = self.changed_quarters.range(..quarter).copied().collect();
        for quarter in &complete {
            self.roll_up(*quarter)?;
            self.changed_quarters.remove(quarter);
        }
        let trusts_clock = self.trusts_clock(batch.start);
        if !complete.is_empty() && trusts_clock {
            self.delete_old(batch.start)?;
        }
        Ok(())
    }

    /// Whether the clock may tell which minutes are old.
    fn trusts_clock(&mut self, start: u64) -> bool {
        let step = self.last.map_or(0, |last| start.saturating_sub(last));
        if step > TRUSTED_STEP {
            self.doubted = Some((start, step));
            self.has_new_doubt = true;
        }
        // It was set back, or it has gone on for a day since.
        let trusts = |(since, step)| start + step < since || start.saturating_sub(since) >= TRUSTED_STEP;
        self.doubted = self.doubted.filter(|doubted| !trusts(*doubted));
        self.doubted.is_none()
    }

    /// A message for the log, once after the clock went ahead by more than a day: it jumped, or no collector was running.
    pub(super) fn message_about_clock(&mut self) -> Option<String> {
        let days = self.doubted.filter(|_| std::mem::take(&mut self.has_new_doubt))?.1 / DAY;
        let plural = if days == 1 { "" } else { "s" };
        Some(format!(
            "the last minute in the history is {days} day{plural} old: nothing is deleted from it for a day, in case the clock is \
             wrong (`timedatectl` shows it)"
        ))
    }

    fn host_id(&mut self, name: &SafeText) -> rusqlite::Result<i64> {
        if let Some(id) = self.hosts.get(name) {
            return Ok(*id);
        }
        self.connection.execute("INSERT OR IGNORE INTO host (name) VALUES (?1)", [name.as_str()])?;
        let id = self.connection.query_row("SELECT id FROM host WHERE name = ?1", [name.as_str()], |row| row.get(0))?;
        self.hosts.insert(name.clone(), id);
        Ok(id)
    }

    fn gpu_id(&mut self, name: &GpuName) -> rusqlite::Result<i64> {
        if let Some(id) = self.gpus.get(name) {
            return Ok(*id);
        }
        let host = self.host_id(&name.host)?;
        let model = name.model.as_ref().map(SafeText::as_str);
        // An index may change when a GPU is lost.
        let id = self.connection.query_row(
            "INSERT INTO gpu (host, uuid, gpu_index, model, memory_mib) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (host, uuid) DO UPDATE SET gpu_index = excluded.gpu_index,
               model = coalesce(excluded.model, model), memory_mib = coalesce(excluded.memory_mib, memory_mib)
             RETURNING id",
            params![host, name.uuid.as_str(), name.index, model, name.memory_mib],
            |row| row.get(0),
        )?;
        if !(0..=MAX_GPU_ID).contains(&id) {
            return Err(rusqlite::Error::IntegralValueOutOfRange(0, id));
        }
        self.gpus.insert(name.clone(), id);
        Ok(id)
    }

    /// Adds a minute. A minute that exists is completed, as after a restart within it; if that is impossible, the clock was
    /// set back, and the row that exists is kept. Returns whether the row was added.
    fn add_gpu_minute(&mut self, start: u64, gpu: i64, row: &GpuRow) -> rusqlite::Result<bool> {
        let earlier = read_gpu_row(&self.connection, "gpu_minute", start, gpu)?;
        let was_deleted = self.imported.is_some() && earlier.is_none() && self.has_only_quarter(start, gpu)?;
        if let Some(imported) = &mut self.imported {
            let id = row_id(start, gpu);
            if was_deleted || (earlier.is_some() && !imported.contains(&id)) {
                return Ok(false);
            }
            imported.insert(id);
            // A part of a minute comes at most a few minutes late.
            *imported = imported.split_off(&row_id(start.saturating_sub(RECENT), 0));
        }
        match earlier {
            None => put_gpu_row(&self.connection, "gpu_minute", start, gpu, row).map(|()| true),
            // The minute of an import that is repeated.
            Some(earlier) if earlier == *row => Ok(false),
            Some(earlier) if earlier.states.known() + row.states.known() <= MINUTE => {
                put_gpu_row(&self.connection, "gpu_minute", start, gpu, &merge_gpu_rows([&earlier, row], MINUTE))
                    .map(|()| true)
            }
            Some(_) => Ok(false),
        }
    }

    /// Whether the history has the quarter-hour of a minute, whose minutes were deleted because of their age.
    fn has_only_quarter(&self, start: u64, gpu: i64) -> rusqlite::Result<bool> {
        let quarter = start / QUARTER * QUARTER;
        if read_gpu_row(&self.connection, "gpu_quarter", quarter, gpu)?.is_none() {
            return Ok(false);
        }
        let minutes = (0..QUARTER / MINUTE).map(|minute| row_id(quarter + minute * MINUTE, gpu));
        for id in minutes {
            let mut exists = self.connection.prepare_cached("SELECT 1 FROM gpu_minute_row WHERE id = ?1")?;
            if exists.exists([id])? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn write_job(&mut self, quarter: u64, job: &JobRow, adds_use: bool) -> rusqlite::Result<()> {
        let host = self.host_id(&job.host)?;
        let id: i64 = self
            .connection
            .prepare_cached(
                "INSERT INTO job (host, key, label, user, command, gpus, start, last_seen, ended, how_ended, memory_max_mib)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
                 ON CONFLICT (host, key) DO UPDATE SET gpus = excluded.gpus, last_seen = excluded.last_seen,
                   user = coalesce(nullif(excluded.user, ''), user), command = coalesce(nullif(excluded.command, ''), command),
                   ended = excluded.ended, how_ended = excluded.how_ended,
                   memory_max_mib = max(coalesce(excluded.memory_max_mib, 0), coalesce(memory_max_mib, 0))
                 RETURNING id",
            )?
            .query_row(
                params![
                    host,
                    job.key.as_str(),
                    job.label.as_str(),
                    job.user.as_str(),
                    job.command.as_str(),
                    job.gpus,
                    job.start,
                    job.last_seen,
                    job.ended,
                    job.how_ended,
                    job.memory_max_mib
                ],
                |row| row.get(0),
            )?;
        if job.held_seconds == 0 || !adds_use {
            return Ok(());
        }
        for (table, start) in [("job_quarter", quarter), ("job_day", quarter / DAY * DAY)] {
            self.connection
                .prepare_cached(&format!(
                    "INSERT INTO {table} VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                     ON CONFLICT (start, job) DO UPDATE SET held_seconds = held_seconds + excluded.held_seconds,
                       used_seconds = used_seconds + excluded.used_seconds,
                       energy_joules = energy_joules + excluded.energy_joules, unused_seconds = coalesce(
                         unused_seconds + excluded.unused_seconds, unused_seconds, excluded.unused_seconds)"
                ))?
                .execute(params![
                    start,
                    id,
                    job.held_seconds,
                    job.used_seconds,
                    job.energy_joules,
                    job.unused_seconds
                ])?;
        }
        Ok(())
    }

    fn write_finding(&self, finding: &FindingRow) -> rusqlite::Result<()> {
        let FindingRow { fingerprint, at, .. } = finding;
        let open: Option<i64> = self
            .connection
            .query_row(
                "SELECT id FROM finding WHERE fingerprint = ?1 AND (ended IS NULL OR ended >= ?2)
                 ORDER BY first_seen DESC LIMIT 1",
                params![fingerprint.as_str(), at.saturating_sub(FINDING_PAUSE)],
                |row| row.get(0),
            )
            .optional()?;
        let ended = finding.has_ended.then_some(*at);
        match open {
            Some(id) => self.connection.execute(
                "UPDATE finding SET ended = ?2, severity = ?3, evidence = ?4, notified = notified OR ?5 WHERE id = ?1",
                params![id, ended, finding.severity, finding.evidence.as_str(), finding.notified],
            )?,
            None if finding.has_ended => 0,
            None => self.connection.execute(
                "INSERT INTO finding (fingerprint, rule, host, severity, user, first_seen, evidence, notified)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                params![
                    fingerprint.as_str(),
                    finding.rule,
                    finding.host.as_str(),
                    finding.severity,
                    finding.user.as_ref().map(SafeText::as_str),
                    at,
                    finding.evidence.as_str(),
                    finding.notified
                ],
            )?,
        };
        Ok(())
    }

    /// Computes a quarter-hour from its minutes, and its day from quarter-hours. A quarter-hour whose minutes were deleted
    /// keeps its row.
    fn roll_up(&self, quarter: u64) -> rusqlite::Result<()> {
        for (gpu, minutes) in merged_rows(&self.connection, "gpu_minute", quarter, quarter + QUARTER)? {
            let mut row = minutes.row(QUARTER);
            if let Some(earlier) = read_gpu_row(&self.connection, "gpu_quarter", quarter, gpu)?
                && earlier.states.known() > row.states.known()
            {
                let sum = earlier.states.known() + row.states.known();
                row = if sum <= QUARTER { merge_gpu_rows([&earlier, &row], QUARTER) } else { earlier };
            }
            put_gpu_row(&self.connection, "gpu_quarter", quarter, gpu, &row)?;
        }
        self.connection.execute(
            "INSERT OR REPLACE INTO host_quarter SELECT ?1, host, avg(cpu_permille), avg(memory_mib), avg(load_hundredths),
               avg(disk_kib_per_second), avg(network_kib_per_second), count(*) * 60, sum(reachable_seconds)
             FROM host_minute WHERE start >= ?1 AND start < ?2 GROUP BY host",
            [quarter, quarter + QUARTER],
        )?;
        let day = quarter / DAY * DAY;
        for (gpu, quarters) in merged_rows(&self.connection, "gpu_quarter", day, day + DAY)? {
            put_gpu_row(&self.connection, "gpu_day", day, gpu, &quarters.row(DAY))?;
        }
        self.connection.execute(
            "INSERT OR REPLACE INTO host_day SELECT ?1, host, sum(watched_seconds), sum(reachable_seconds)
             FROM host_quarter WHERE start >= ?1 AND start < ?2 GROUP BY host",
            [day, day + DAY],
        )?;
        Ok(())
    }

    fn delete_old(&self, now: u64) -> rusqlite::Result<()> {
        let minutes = now.saturating_sub(MINUTES_KEPT);
        let rest = now.saturating_sub(REST_KEPT);
        for (table, before) in [("gpu_minute", minutes), ("gpu_quarter", rest), ("gpu_day", rest)] {
            self.connection.execute(&format!("DELETE FROM {table}_row WHERE id < ?1"), [row_id(before, 0)])?;
        }
        self.connection.execute("DELETE FROM host_minute WHERE start < ?1", [minutes])?;
        for table in ["host_quarter", "host_day", "job_quarter", "job_day"] {
            self.connection.execute(&format!("DELETE FROM {table} WHERE start < ?1"), [rest])?;
        }
        self.connection.execute("DELETE FROM job WHERE ended < ?1", [rest])?;
        self.connection.execute("DELETE FROM finding WHERE ended < ?1", [rest])?;
        Ok(())
    }

    /// Rolls up what is left, so that a reader sees the same figures whichever table it uses, and ends the open findings at the end
    /// of the last minute. For imports.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(&mut self, last_minute: u64) -> Result<(), HistoryError> {
        let finish = |history: &Self| {
            let transaction = history.connection.unchecked_transaction()?;
            history.end_findings(last_minute + MINUTE)?;
            for quarter in &history.changed_quarters {
                history.roll_up(*quarter)?;
            }
            transaction.commit()
        };
        finish(self).map_err(|error| HistoryError::of_write(&self.path, &self.connection, &error))
    }
}

/// The last quarter-hour of hosts that was rolled up.
pub(super) fn last_host_quarter(connection: &Connection) -> rusqlite::Result<Option<u64>> {
    connection.query_row("SELECT max(start) FROM host_quarter", [], |row| row.get(0))
}

pub(super) fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Reads the columns of [`GPU_COLUMNS`] from this one on.
pub(super) fn gpu_row(row: &Row<'_>, first: usize) -> rusqlite::Result<GpuRow> {
    let column = |index: usize| first + index;
    Ok(GpuRow {
        samples: row.get(column(0))?,
        utilization_permille: row.get(column(1))?,
        utilization_max_percent: row.get(column(2))?,
        memory_mib: row.get(column(3))?,
        memory_max_mib: row.get(column(4))?,
        energy_joules: row.get(column(5))?,
        temperature_max_celsius: row.get(column(6))?,
        sm_activity_permille: row.get(column(7))?,
        states: StateSeconds {
            busy: row.get(column(8))?,
            idle_held: row.get(column(9))?,
            free: row.get(column(10))?,
            faulty: row.get(column(11))?,
            unknown: row.get(column(12))?,
        },
        throttled_seconds: row.get(column(13))?,
    })
}

fn read_gpu_row(connection: &Connection, table: &str, start: u64, gpu: i64) -> rusqlite::Result<Option<GpuRow>> {
    connection
        .prepare_cached(&format!("SELECT {GPU_COLUMNS} FROM {table} WHERE id = ?1"))?
        .query_row([row_id(start, gpu)], |row| gpu_row(row, 0))
        .optional()
}

fn put_gpu_row(connection: &Connection, table: &str, start: u64, gpu: i64, row: &GpuRow) -> rusqlite::Result<()> {
    let states = row.states;
    let insert = format!(
        "INSERT OR REPLACE INTO {table}_row VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)"
    );
    let memory_max_above = row.memory_max_mib.map(|max| max.saturating_sub(row.memory_mib.unwrap_or(0)));
    connection.prepare_cached(&insert)?.execute(params![
        row_id(start, gpu),
        row.samples,
        row.utilization_permille,
        row.utilization_max_percent,
        row.memory_mib,
        memory_max_above,
        row.energy_joules,
        row.temperature_max_celsius,
        row.sm_activity_permille,
        states.busy,
        states.idle_held,
        states.free,
        states.faulty,
        row.throttled_seconds
    ])?;
    Ok(())
}

/// Joins the rows of each GPU in `from..until`.
fn merged_rows(
    connection: &Connection,
    table: &str,
    from: u64,
    until: u64,
) -> rusqlite::Result<HashMap<i64, GpuRowMerger>> {
    let mut by_gpu: HashMap<i64, GpuRowMerger> = HashMap::new();
    let mut statement =
        connection.prepare_cached(&format!("SELECT gpu, {GPU_COLUMNS} FROM {table} WHERE id >= ?1 AND id < ?2"))?;
    let mut rows = statement.query([row_id(from, 0), row_id(until, 0)])?;
    while let Some(row) = rows.next()? {
        by_gpu.entry(row.get(0)?).or_default().add(&gpu_row(row, 1)?);
    }
    Ok(by_gpu)
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
