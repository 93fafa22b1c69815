//! Reads the history for reports: sums of GPUs and jobs over a period, findings, and how long hosts were reachable.

use super::HistoryError;
use super::history::{
    BUSY_LIMIT, DAY, GPU_BITS, GPU_COLUMNS, GpuName, MINUTE, QUARTER, VERSION, gpu_row, last_host_quarter, last_start,
    row_id, version,
};
use super::rollup::{GpuRow, merge_gpu_rows};
use crate::wire::SafeText;
use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode, OpenFlags, Row, params_from_iter};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The sums of a GPU over a period, for a report.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuTotal {
    /// The GPU.
    pub gpu: GpuName,
    /// The sums and means.
    pub row: GpuRow,
}

/// The use of GPUs by a job over a period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobTotal {
    /// The host.
    pub host: SafeText,
    /// The form for people: `slurm:3385`.
    pub label: SafeText,
    /// The user.
    pub user: SafeText,
    /// The command.
    pub command: SafeText,
    /// The indexes of its GPUs: `GPU 3`, `GPUs 0-2,7`.
    pub gpus: String,
    /// When it started.
    pub start: u64,
    /// When it ended; `None` while it runs.
    pub ended: Option<u64>,
    /// How it ended, if that is known.
    pub how_ended: Option<SafeText>,
    /// The highest memory on all of its GPUs in MiB.
    pub memory_max_mib: Option<u64>,
    /// GPU seconds held in the period.
    pub held_seconds: u64,
    /// GPU seconds used in the period.
    pub used_seconds: u64,
    /// Energy in joules in the period.
    pub energy_joules: u64,
    /// GPU seconds in the period that Slurm had allocated and no process of the job used; `None` if Slurm does not tell.
    pub unused_seconds: Option<u64>,
}

/// A finding of the period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FindingTotal {
    /// The rule.
    pub rule: SafeText,
    /// The host.
    pub host: SafeText,
    /// The severity.
    pub severity: SafeText,
    /// The owner of the processes.
    pub user: Option<SafeText>,
    /// When it fired.
    pub first_seen: u64,
    /// When it cleared; `None` while it fires.
    pub ended: Option<u64>,
    /// The sentence with its figures.
    pub evidence: SafeText,
    /// Whether the user was notified.
    pub notified: bool,
}

/// For how long a host was watched and reachable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostTotal {
    /// The host.
    pub host: SafeText,
    /// Seconds in which the collector watched the host.
    pub watched_seconds: u64,
    /// Seconds in which it sent readings.
    pub reachable_seconds: u64,
    /// When the collector began to watch it, also before the period, in seconds since 1970; the start of its quarter-hour if
    /// the minutes are deleted.
    pub first_watched: u64,
}

/// The history, open for reading while a collector may write it.
pub struct HistoryReader {
    connection: Connection,
    path: PathBuf,
}

/// Whether minutes may be in the write-ahead log beside the file.
fn has_log(path: &Path) -> bool {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    std::fs::metadata(log).is_ok_and(|log| log.len() > 0)
}

impl HistoryReader {
    /// Opens the history.
    ///
    /// # Errors
    /// There is no history, it is of a newer version, or it cannot be read.
    pub fn open(path: &Path) -> Result<Self, HistoryError> {
        if !path.exists() {
            return Err(HistoryError::Missing { path: path.to_owned() });
        }
        let failed = |error: rusqlite::Error| HistoryError::of("read", path, &error);
        let opened = match Self::connect(path) {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::CannotOpen) && !has_log(path) => {
                Self::connect_unchanging(path)
            }
            opened => opened,
        };
        let (connection, version) = opened.map_err(failed)?;
        match version {
            0 => Err(HistoryError::Missing { path: path.to_owned() }),
            version if version > VERSION => Err(HistoryError::Newer { path: path.to_owned(), version, known: VERSION }),
            version if version < VERSION => Err(HistoryError::Older { path: path.to_owned() }),
            _ => Ok(Self { connection, path: path.to_owned() }),
        }
    }

    fn connect(path: &Path) -> rusqlite::Result<(Connection, i64)> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY_LIMIT)?;
        let version = version(&connection)?;
        Ok((connection, version))
    }

    /// Opens a file in a directory that cannot be written, such as a backup. SQLite would create two files beside it to share
    /// it with a writer; a file without a log has no writer.
    fn connect_unchanging(path: &Path) -> rusqlite::Result<(Connection, i64)> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
        let name = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        // https://sqlite.org/uri.html: these three characters have a meaning in it.
        let name = name.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
        let connection = Connection::open_with_flags(format!("file://{name}?immutable=1"), flags)?;
        let version = version(&connection)?;
        Ok((connection, version))
    }

    fn check<T>(&self, result: rusqlite::Result<T>) -> Result<T, HistoryError> {
        result.map_err(|error| HistoryError::of("read", &self.path, &error))
    }

    /// The last complete minute; `None` in an empty history.
    pub fn last_minute(&self) -> Result<Option<u64>, HistoryError> {
        self.check(self.connection.query_row("SELECT max(start) FROM host_minute", [], |row| row.get(0)))
    }

    /// The rows of every GPU, grouped by periods of `bucket` seconds that begin at `from`. `offset_seconds` moves the
    /// periods, for days in local time. Both ends are multiples of a quarter-hour; quarter-hours that are not rolled up
    /// yet are read from minutes, and long spans without groups from days.
    pub fn gpu_totals(
        &self,
        from: u64,
        until: u64,
        bucket: Option<(u64, i64)>,
    ) -> Result<Vec<(u64, GpuTotal)>, HistoryError> {
        self.check(self.read_gpu_totals(from, until, bucket, None))
    }

    /// The rows of the GPUs of one host in periods of `step` seconds, in the order of time: minutes if the step is shorter
    /// than a quarter-hour. Both ends and the step are multiples of a minute or a quarter-hour.
    pub fn host_gpu_totals(
        &self,
        host: &str,
        from: u64,
        until: u64,
        step: u64,
    ) -> Result<Vec<(u64, GpuTotal)>, HistoryError> {
        self.check(self.read_gpu_totals(from, until, Some((step, 0)), Some(host)))
    }

    fn read_gpu_totals(
        &self,
        from: u64,
        until: u64,
        bucket: Option<(u64, i64)>,
        host: Option<&str>,
    ) -> rusqlite::Result<Vec<(u64, GpuTotal)>> {
        let rolled = last_start(&self.connection, "gpu_quarter")?;
        let rolled = rolled.map_or(from, |start| start + QUARTER).clamp(from, until);
        let (first_day, last_day) = whole_days(from, rolled);
        // Days of UTC fit only groups of such days.
        let days_fit = bucket.is_none_or(|(seconds, offset)| seconds % DAY == 0 && offset.rem_euclid(DAY as i64) == 0);
        let parts = if bucket.is_some_and(|(seconds, _)| seconds < QUARTER) {
            vec![("gpu_minute", from, until)]
        } else if days_fit && last_day > first_day {
            vec![
                ("gpu_quarter", from, first_day),
                ("gpu_day", first_day, last_day),
                ("gpu_quarter", last_day, rolled),
                ("gpu_minute", rolled, until),
            ]
        } else {
            vec![("gpu_quarter", from, rolled), ("gpu_minute", rolled, until)]
        };
        // Means are weighted by the known seconds.
        let known = "(busy_seconds + idle_held_seconds + free_seconds + faulty_seconds)";
        let group = match bucket {
            Some((seconds, offset)) => format!("(start + {offset}) / {seconds} * {seconds} - {offset}"),
            None => from.to_string(),
        };
        let mut sums: HashMap<(u64, i64), Vec<GpuRow>> = HashMap::new();
        for (table, from, until) in parts.into_iter().filter(|(_, from, until)| from < until) {
            let source = rows_of(table, host.is_some());
            let is_summed = bucket
                .is_some_and(|(seconds, offset)| seconds == period(table) && offset.rem_euclid(seconds as i64) == 0);
            let query = if is_summed {
                format!("SELECT start, gpu, {GPU_COLUMNS} FROM {source}")
            } else {
                format!(
                    "SELECT {group} AS bucket, gpu, sum(samples),
                       CAST(round(sum(utilization_permille * {known}) * 1.0
                         / nullif(sum(iif(utilization_permille IS NULL, 0, {known})), 0)) AS INTEGER),
                       max(utilization_max_percent),
                       CAST(round(sum(memory_mib * {known}) * 1.0
                         / nullif(sum(iif(memory_mib IS NULL, 0, {known})), 0)) AS INTEGER),
                       max(memory_max_mib), sum(energy_joules), max(temperature_max_celsius),
                       CAST(round(sum(sm_activity_permille * {known}) * 1.0
                         / nullif(sum(iif(sm_activity_permille IS NULL, 0, {known})), 0)) AS INTEGER),
                       sum(busy_seconds), sum(idle_held_seconds), sum(free_seconds), sum(faulty_seconds),
                       sum(unknown_seconds), sum(throttled_seconds)
                     FROM {source} GROUP BY bucket, gpu"
                )
            };
            let mut statement = self.connection.prepare(&query)?;
            let parameters = match host {
                None => vec![Value::Integer(row_id(from, 0)), Value::Integer(row_id(until, 0))],
                Some(host) => vec![from.into_value(), until.into_value(), Value::Text(host.to_owned())],
            };
            let mut rows = statement.query(params_from_iter(parameters))?;
            while let Some(row) = rows.next()? {
                sums.entry((row.get(0)?, row.get(1)?)).or_default().push(gpu_row(row, 2)?);
            }
        }
        let names = self.gpu_names()?;
        let period = bucket.map_or(until - from, |(seconds, _)| seconds);
        let mut totals: Vec<(u64, GpuTotal)> = sums
            .into_iter()
            .filter_map(|((start, gpu), rows)| {
                // The first and the last group may be cut.
                let length = (start + period).min(until).saturating_sub(start.max(from));
                Some((start, GpuTotal { gpu: names.get(&gpu)?.clone(), row: merge_gpu_rows(&rows, length) }))
            })
            .collect();
        totals.sort_by(|(a, x), (b, y)| (a, &x.gpu.host, x.gpu.index).cmp(&(b, &y.gpu.host, y.gpu.index)));
        Ok(totals)
    }

    fn gpu_names(&self) -> rusqlite::Result<HashMap<i64, GpuName>> {
        let mut statement = self.connection.prepare(
            "SELECT gpu.id, host.name, uuid, gpu_index, model, memory_mib FROM gpu JOIN host ON host.id = gpu.host",
        )?;
        let rows = statement.query_map([], |row| {
            let name = GpuName {
                host: text(row, 1)?,
                uuid: text(row, 2)?,
                index: row.get(3)?,
                model: optional_text(row, 4)?,
                memory_mib: row.get(5)?,
            };
            Ok((row.get(0)?, name))
        })?;
        rows.collect()
    }

    /// The use of GPUs by each job in quarter-hours of `from..until`, most held first.
    pub fn job_totals(&self, from: u64, until: u64) -> Result<Vec<JobTotal>, HistoryError> {
        let query = "SELECT host.name, label, user, command, gpus, job.start, ended, how_ended, memory_max_mib,
               sum(held_seconds), sum(used_seconds), sum(energy_joules), sum(unused_seconds)
             FROM (
               SELECT * FROM job_quarter WHERE start >= ?1 AND start < ?2
               UNION ALL SELECT * FROM job_day WHERE start >= ?2 AND start < ?3
               UNION ALL SELECT * FROM job_quarter WHERE start >= ?3 AND start < ?4)
             AS part JOIN job ON job.id = part.job JOIN host ON host.id = job.host
             GROUP BY job.id ORDER BY sum(held_seconds) DESC, job.id";
        let (first_day, last_day) = whole_days(from, until);
        self.rows(query, &[from, first_day, last_day, until].map(u64::into_value), |row| {
            Ok(JobTotal {
                host: text(row, 0)?,
                label: text(row, 1)?,
                user: text(row, 2)?,
                command: text(row, 3)?,
                gpus: row.get(4)?,
                start: row.get(5)?,
                ended: row.get(6)?,
                how_ended: optional_text(row, 7)?,
                memory_max_mib: row.get(8)?,
                held_seconds: row.get(9)?,
                used_seconds: row.get(10)?,
                energy_joules: row.get(11)?,
                unused_seconds: row.get(12)?,
            })
        })
    }

    /// The findings that fired in `from..until`, the newest first.
    pub fn findings(&self, from: u64, until: u64) -> Result<Vec<FindingTotal>, HistoryError> {
        let query = "SELECT rule, host, severity, user, first_seen, ended, evidence, notified FROM finding
             WHERE first_seen < ?2 AND (ended IS NULL OR ended >= ?1) ORDER BY first_seen DESC, id DESC";
        self.rows(query, &[from.into_value(), until.into_value()], |row| {
            Ok(FindingTotal {
                rule: text(row, 0)?,
                host: text(row, 1)?,
                severity: text(row, 2)?,
                user: optional_text(row, 3)?,
                first_seen: row.get(4)?,
                ended: row.get(5)?,
                evidence: text(row, 6)?,
                notified: row.get(7)?,
            })
        })
    }

    /// For how long each host was watched and reachable in `from..until`.
    pub fn host_totals(&self, from: u64, until: u64) -> Result<Vec<HostTotal>, HistoryError> {
        // The first day limits the search for the first quarter-hour, and that one the search for the first minute.
        let query = "WITH part AS (
               SELECT host, watched_seconds AS watched, reachable_seconds AS reachable FROM host_quarter
                 WHERE start >= ?1 AND start < ?2
               UNION ALL SELECT host, watched_seconds, reachable_seconds FROM host_day WHERE start >= ?2 AND start < ?3
               UNION ALL SELECT host, watched_seconds, reachable_seconds FROM host_quarter WHERE start >= ?3 AND start < ?4
               UNION ALL SELECT host, 60, reachable_seconds FROM host_minute WHERE start >= ?4 AND start < ?5),
             total AS (SELECT host, sum(watched) AS watched, sum(reachable) AS reachable,
               (SELECT min(start) FROM host_day WHERE host_day.host = part.host) AS day FROM part GROUP BY host),
             first AS (SELECT *, (SELECT min(start) FROM host_quarter
               WHERE host_quarter.host = total.host AND start >= day AND start < day + 86400) AS quarter FROM total)
             SELECT name, watched, reachable, coalesce((SELECT min(start) FROM host_minute WHERE host_minute.host = first.host
                 AND (quarter IS NULL OR start >= quarter AND start < quarter + 900)), quarter, ?1)
             FROM first JOIN host ON host.id = first.host ORDER BY name";
        let rolled =
            self.check(last_host_quarter(&self.connection))?.map_or(from, |start| start + QUARTER).clamp(from, until);
        let (first_day, last_day) = whole_days(from, rolled);
        self.rows(query, &[from, first_day, last_day, rolled, until].map(u64::into_value), |row| {
            Ok(HostTotal {
                host: text(row, 0)?,
                watched_seconds: row.get(1)?,
                reachable_seconds: row.get(2)?,
                first_watched: row.get(3)?,
            })
        })
    }

    fn rows<T>(
        &self,
        query: &str,
        parameters: &[Value],
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, HistoryError> {
        let all = || {
            let mut statement = self.connection.prepare(query)?;
            let rows = statement.query_map(params_from_iter(parameters), read)?;
            rows.collect::<rusqlite::Result<Vec<T>>>()
        };
        self.check(all())
    }
}

/// The start of the first and the end of the last whole day of UTC in `from..until`; both are `from` if there is no such day.
fn whole_days(from: u64, until: u64) -> (u64, u64) {
    let (first, last) = (from.div_ceil(DAY) * DAY, until / DAY * DAY);
    if first < last { (first, last) } else { (from, from) }
}

/// The length of the periods of a table of GPU rows.
fn period(table: &str) -> u64 {
    match table {
        "gpu_minute" => MINUTE,
        "gpu_quarter" => QUARTER,
        _ => DAY,
    }
}

/// The rows of a table from ?1 to ?2, which are row ids; those of the host ?3 by their ids from the times ?1 to ?2, because a
/// scan would read the rows of all hosts.
fn rows_of(table: &str, is_of_host: bool) -> String {
    if !is_of_host {
        return format!("{table} WHERE id >= ?1 AND id < ?2");
    }
    let period = period(table);
    format!(
        "(WITH RECURSIVE period(at) AS (
            SELECT ?1 WHERE ?1 < ?2 UNION ALL SELECT at + {period} FROM period WHERE at + {period} < ?2)
          SELECT {table}.* FROM period
            CROSS JOIN (SELECT gpu.id AS own FROM gpu JOIN host ON host.id = gpu.host WHERE host.name = ?3)
            CROSS JOIN {table} ON {table}.id = (at / 60 << {GPU_BITS}) | own)"
    )
}

/// A time as a parameter of a query.
trait IntoValue {
    fn into_value(self) -> Value;
}

impl IntoValue for u64 {
    fn into_value(self) -> Value {
        Value::Integer(i64::try_from(self).unwrap_or(i64::MAX))
    }
}

/// Reads a text, which other programs may have changed.
fn text(row: &Row<'_>, index: usize) -> rusqlite::Result<SafeText> {
    Ok(SafeText::new(&row.get::<_, String>(index)?))
}

fn optional_text(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<SafeText>> {
    Ok(row.get::<_, Option<String>>(index)?.map(|text| SafeText::new(&text)))
}
