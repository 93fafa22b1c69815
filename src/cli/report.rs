//! `gpufleet report`: who used the GPUs, how much, and for how much, from the history of the collector.

use super::arguments::{ReportArgs, ReportBy};
use super::collect::history_path;
use super::command_context::{read_hosts, standard_file};
use super::exit::print_json;
use super::status_csv::csv_failed;
use super::{CommandError, print};
use crate::config::Prices;
use crate::output::usage_html::html;
use crate::output::usage_report::{ReportData, ReportGroup, UsageReport};
use crate::store::history::{DAY, MINUTE, QUARTER};
use crate::store::history_reader::GpuTotal;
use crate::store::{Directories, HistoryError, HistoryReader, write_atomic};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::process::ExitCode;

/// Prints the report.
///
/// # Errors
/// There is no history, it cannot be read, or a time is invalid.
pub fn run(arguments: &ReportArgs) -> Result<ExitCode, CommandError> {
    let zone = TimeZone::system();
    let now = Timestamp::now();
    let time = |text: &str, option: &str| {
        parse_time(text, now, &zone).ok_or_else(|| {
            CommandError::usage(format!(
                "{option} `{text}` is not a time\n  hint: write 90m, 24h, 7d, 4w, 2026-11-17 or 2026-11-17T08:00:00Z"
            ))
        })
    };
    let since = time(&arguments.since, "--since")?;
    let until = arguments.until.as_deref().map_or(Ok(now.as_second()), |text| time(text, "--until"))?;
    if since >= until {
        return Err(CommandError::usage("the period is empty\n  hint: --since must be before --until"));
    }
    let path = history_path(arguments.store.as_deref())?;
    let history = HistoryReader::open(&path).map_err(CommandError::failed)?;
    // Time to come has no readings, which would count as unknown. A recording of a fast simulation ends in the future.
    let last = history.last_minute().map_err(CommandError::failed)?.map_or(0, |start| (start + MINUTE).cast_signed());
    let until = until.min(now.as_second().max(last)).max(since + 1);
    let quarter = QUARTER as i64;
    let from = since.max(0) / quarter * quarter;
    let until = (until.max(0) + quarter - 1) / quarter * quarter;
    let directories = Directories::find();
    let file = match &arguments.file {
        Some(path) => Some(read_hosts(path, &directories)?),
        None => standard_file(&directories)?,
    };
    let prices = Prices { gpu_hour: arguments.gpu_hour.clone(), kwh: arguments.kwh }
        .or(file.map(|file| file.prices).unwrap_or_default());
    let by = match arguments.by {
        ReportBy::User => ReportGroup::User,
        ReportBy::Host => ReportGroup::Host,
        ReportBy::Gpu => ReportGroup::Gpu,
        ReportBy::Job => ReportGroup::Job,
        ReportBy::Day => ReportGroup::Day,
    };
    let report = read(&history, (from as u64, until as u64), by, &prices, &zone).map_err(CommandError::failed)?;
    let minute = |seconds: i64| format_time(seconds, &zone, "%Y-%m-%d %H:%M");
    let period = format!("{} to {}", minute(from), minute(until));
    if let Some(file) = &arguments.html {
        let page = html(&report, &period, &|seconds| minute(seconds.cast_signed()));
        write_atomic(file, page.as_bytes()).map_err(CommandError::failed)?;
    } else if arguments.json {
        print_json(report.json())?;
    } else if arguments.csv {
        print(&report.csv().map_err(csv_failed)?)?;
    } else {
        print(&report.text(&period))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read(
    history: &HistoryReader,
    (from, until): (u64, u64),
    by: ReportGroup,
    prices: &Prices,
    zone: &TimeZone,
) -> Result<UsageReport, HistoryError> {
    // Days of local time need quarter-hours. Over more than a quarter of a year, days of UTC are read instead.
    let zone = if until - from > 92 * DAY { &TimeZone::UTC } else { zone };
    let days = days_of(from, until, zone);
    let gpus = day_totals(history, &days)?;
    let days: Vec<(u64, u64)> = days.iter().map(|day| (day.start, day.end)).collect();
    let jobs = history.job_totals(from, until)?;
    let hosts = history.host_totals(from, until)?;
    let findings = history.findings(from, until)?;
    let data = ReportData { from, until, days: &days, gpus: &gpus, jobs: &jobs, hosts: &hosts, findings: &findings };
    let date = |start: u64| format_time(start.cast_signed(), zone, "%Y-%m-%d");
    Ok(UsageReport::new(&data, by, prices, &date))
}

/// A day, or the part of it that is in the period, in seconds since 1970.
#[derive(Debug, PartialEq, Eq)]
struct Day {
    start: u64,
    end: u64,
    /// Offset of local time from UTC at its start, in seconds.
    offset: i64,
}

/// The days of `from..until` in this zone. A day on which the clocks change has 23 or 25 hours.
fn days_of(from: u64, until: u64, zone: &TimeZone) -> Vec<Day> {
    let mut days = Vec::new();
    let mut start = from;
    while start < until {
        let Ok(time) = Timestamp::from_second(start.cast_signed()) else { break };
        let local = time.to_zoned(zone.clone());
        let next = local.date().tomorrow().and_then(|date| date.to_zoned(zone.clone()));
        let next = next.map_or(start + DAY, |next| next.timestamp().as_second().max(0).cast_unsigned());
        let end = if next > start { next.min(until) } else { until };
        days.push(Day { start, end, offset: i64::from(local.offset().seconds()) });
        start = end;
    }
    days
}

/// The sums of each GPU by day. Days with the same offset from UTC are read together.
fn day_totals(history: &HistoryReader, days: &[Day]) -> Result<Vec<(u64, GpuTotal)>, HistoryError> {
    let mut totals = Vec::new();
    for run in days.chunk_by(|day, next| day.offset == next.offset) {
        let ([first, ..], [.., last]) = (run, run) else { continue };
        for (start, total) in history.gpu_totals(first.start, last.end, Some((DAY, first.offset)))? {
            // The first day may begin within its period, and the last hour of a day with 25 has its own period.
            let day = run.partition_point(|day| day.start <= start.max(first.start)).saturating_sub(1);
            totals.push((run[day].start, total));
        }
    }
    Ok(totals)
}

fn format_time(seconds: i64, zone: &TimeZone, format: &str) -> String {
    Timestamp::from_second(seconds)
        .map_or_else(|_| "-".to_owned(), |time| time.to_zoned(zone.clone()).strftime(format).to_string())
}

/// Parses a time before `now` (`7d`), a date, or a time with a zone. Returns seconds since 1970.
fn parse_time(text: &str, now: Timestamp, zone: &TimeZone) -> Option<i64> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time.as_second());
    }
    if let Ok(date) = text.parse::<jiff::civil::Date>() {
        return date.to_zoned(zone.clone()).ok().map(|time| time.timestamp().as_second());
    }
    let unit = text.chars().last()?;
    let seconds = match unit {
        'm' => 60.0,
        'h' => 3600.0,
        'd' => 86_400.0,
        'w' => 604_800.0,
        _ => return None,
    };
    let count: f64 = text.strip_suffix(unit)?.parse().ok().filter(|count| (0.0..=100_000.0).contains(count))?;
    Some(now.as_second() - (count * seconds) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::History;
    use crate::store::history::{Batch, GpuName, HostRow};
    use crate::store::rollup::{GpuRow, StateSeconds};

    #[test]
    fn days_are_those_of_local_time_also_when_the_clocks_change() {
        // Central Europe: the clocks go forward on 29 March 2026 and back on 25 October.
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a zone");
        let days = |from: &str, until: &str| {
            let seconds = |text| parse_time(text, Timestamp::UNIX_EPOCH, &zone).expect("a time").cast_unsigned();
            let days = days_of(seconds(from), seconds(until), &zone);
            let text = |day: &Day| {
                let date = format_time(day.start.cast_signed(), &zone, "%d %H:%M");
                (date, (day.end - day.start) as f64 / 3600.0, day.offset)
            };
            days.iter().map(text).collect::<Vec<_>>()
        };
        let day = |text: &str, hours: f64, offset: i64| (text.to_owned(), hours, offset);
        assert_eq!(
            days("2026-03-28", "2026-03-31"),
            [day("28 00:00", 24.0, 3600), day("29 00:00", 23.0, 3600), day("30 00:00", 24.0, 7200)]
        );
        assert_eq!(
            days("2026-10-24T10:00:00Z", "2026-10-26T12:00:00Z"),
            [day("24 12:00", 12.0, 7200), day("25 00:00", 25.0, 7200), day("26 00:00", 13.0, 3600)]
        );
    }

    #[test]
    fn the_days_of_a_report_have_the_readings_of_local_days() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a zone");
        let seconds = |text| parse_time(text, Timestamp::UNIX_EPOCH, &zone).expect("a time").cast_unsigned();
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("history.sqlite");
        let (mut history, _) = History::open(&path).expect("a history");
        let gpu = GpuName { host: "a".into(), uuid: "GPU-1".into(), index: 0, model: None, memory_mib: None };
        // The first and the last minute of each day are busy. There is no reading on the 30th.
        for (day, next) in [("2026-03-28", "2026-03-29"), ("2026-03-29", "2026-03-30"), ("2026-03-31", "2026-04-01")] {
            for start in [seconds(day), seconds(next) - MINUTE] {
                let states = StateSeconds { busy: 60, ..StateSeconds::default() };
                let row = GpuRow { samples: 1, states, ..GpuRow::default() };
                let host = HostRow { reachable_seconds: 60, ..HostRow::default() };
                let (gpus, hosts) = (vec![(gpu.clone(), row)], vec![("a".into(), host)]);
                history.write(&Batch { start, gpus, hosts, ..Batch::default() }).expect("written");
            }
        }
        history.finish(seconds("2026-04-01") - MINUTE).expect("rolled up");
        let reader = HistoryReader::open(&path).expect("a history");
        let period = (seconds("2026-03-28"), seconds("2026-04-01"));
        let report = read(&reader, period, ReportGroup::Day, &Prices::default(), &zone).expect("a report");
        let rows: Vec<_> = report
            .rows
            .iter()
            .map(|row| (row.name.as_str(), (row.usage.used_hours * 60.0).round(), row.usage.unknown_hours))
            .map(|(name, minutes, hours)| (name, minutes, hours.map(f64::round)))
            .collect();
        assert_eq!(
            rows,
            [
                ("2026-03-28", 2.0, Some(24.0)),
                ("2026-03-29", 2.0, Some(23.0)),
                ("2026-03-30", 0.0, Some(24.0)),
                ("2026-03-31", 2.0, Some(24.0))
            ]
        );
    }

    #[test]
    fn times_are_relative_or_dates() {
        let now = Timestamp::from_second(1_800_000_000).expect("a time");
        let parse = |text: &str| parse_time(text, now, &TimeZone::UTC);
        assert_eq!(parse("7d"), Some(1_800_000_000 - 604_800));
        assert_eq!(parse("1.5h"), Some(1_800_000_000 - 5400));
        assert_eq!(parse("1970-01-02"), Some(86_400));
        assert_eq!(parse("1970-01-01T00:01:00Z"), Some(60));
        for text in ["", "7", "d", "-1d", "nand", "7y", "yesterday"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
