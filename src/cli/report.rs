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
use crate::store::history::{DAY, QUARTER};
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
    let offset = i64::from(zone.to_offset(Timestamp::from_second(until).unwrap_or(now)).seconds());
    let path = history_path(arguments.store.as_deref())?;
    let report = read(
        &HistoryReader::open(&path).map_err(CommandError::failed)?,
        (from as u64, until as u64),
        offset,
        by,
        &prices,
        &zone,
    )
    .map_err(CommandError::failed)?;
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
    offset: i64,
    by: ReportGroup,
    prices: &Prices,
    zone: &TimeZone,
) -> Result<UsageReport, HistoryError> {
    // Days of local time need quarter-hours. Over more than a quarter of a year, days of UTC are read instead.
    let is_long = until - from > 92 * DAY;
    let offset = if is_long { 0 } else { offset };
    let days = history.gpu_totals(from, until, Some((DAY, offset)))?;
    let jobs = history.job_totals(from, until)?;
    let hosts = history.host_totals(from, until)?;
    let findings = history.findings(from, until)?;
    let data = ReportData { from, until, days: &days, jobs: &jobs, hosts: &hosts, findings: &findings };
    let date = |start: u64| {
        let zone = if is_long { &TimeZone::UTC } else { zone };
        format_time(start.cast_signed(), zone, "%Y-%m-%d")
    };
    Ok(UsageReport::new(&data, by, prices, &date))
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
