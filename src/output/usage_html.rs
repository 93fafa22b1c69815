//! The report over the history as one self-contained HTML file: a chart of the days, and tables.

use super::usage_report::{SHOWN_ALLOCATIONS, Usage, UsageReport, cells, header, number};
use std::fmt::Write as _;

/// The width of the chart in user units.
const WIDTH: f64 = 720.0;
/// The height of the bars.
const HEIGHT: f64 = 160.0;

const STYLE: &str = "\
:root{color-scheme:light dark;--busy:#2a7d4f;--idle:#d08a1d;--free:#9fb3c8;--faulty:#b3261e;--unknown:#8885}
body{font:14px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%;margin:1rem 0}
th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #8884}
th:first-child,td:first-child,th:last-child,td:last-child{text-align:left}
.busy{fill:var(--busy)}.idle{fill:var(--idle)}.free{fill:var(--free)}.faulty{fill:var(--faulty)}.unknown{fill:var(--unknown)}
svg{width:100%;height:auto}svg text{font-size:10px;fill:currentColor}
@media print{body{margin:0;max-width:none}tr,svg{break-inside:avoid}*{print-color-adjust:exact}}";

/// Draws the report. `period` is the period for people, `time` formats a time.
pub fn html(report: &UsageReport, period: &str, time: &dyn Fn(u64) -> String) -> String {
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>GPU report, {0}</title><style>{STYLE}</style></head>\n<body>\n<h1>GPU \
         report</h1>\n<p>{0}: {1}.</p>\n",
        escaped(period),
        escaped(&report.summary())
    );
    let total = &report.total;
    let _ = writeln!(
        text,
        "<p>Mean utilization {} %, {} GPU-hours held, {} of them idle, energy {} kWh, cost {}.</p>",
        number(total.utilization_percent, 0),
        number(Some(total.held_hours), 1),
        number(Some(total.idle_held_hours), 1),
        number(total.energy_kwh, 1),
        number(total.cost, 2)
    );
    text += &chart(report);
    let rows: Vec<Vec<String>> = report.rows.iter().map(cells).collect();
    text += &table(&header(report.by), &rows);
    if !report.underused.is_empty() {
        text += "<h2>Underused hosts</h2>\n";
        let rows: Vec<Vec<String>> = report
            .underused
            .iter()
            .map(|one| vec![one.host.to_string(), format!("{:.0} % busy", one.busy_percent)])
            .collect();
        text += &table(&["host".to_owned(), "use".to_owned()], &rows);
    }
    if !report.unused_allocations.is_empty() {
        text += "<h2>Unused Slurm allocations</h2>\n";
        let rows: Vec<Vec<String>> = report
            .unused_allocations
            .iter()
            .take(SHOWN_ALLOCATIONS)
            .map(|one| {
                let job = format!("{} on {}", one.job, one.host);
                vec![one.user.to_string(), job, number(Some(one.unused_hours), 1)]
            })
            .collect();
        text += &table(&["user", "job", "GPU-hours"].map(str::to_owned), &rows);
    }
    if !report.outages.is_empty() {
        text += "<h2>Outages</h2>\n";
        let rows: Vec<Vec<String>> = report
            .outages
            .iter()
            .map(|one| {
                let hours = format!("{:.1} of {:.1} h unreachable", one.unreachable_hours, one.watched_hours);
                vec![one.host.to_string(), hours]
            })
            .collect();
        text += &table(&["host".to_owned(), "time".to_owned()], &rows);
    }
    if !report.findings.is_empty() {
        text += "<h2>Findings</h2>\n";
        let rows: Vec<Vec<String>> = report
            .findings
            .iter()
            .map(|one| {
                vec![
                    time(one.first_seen_unix_seconds),
                    one.ended_unix_seconds.map_or_else(|| "-".to_owned(), time),
                    one.severity.to_string(),
                    one.host.to_string(),
                    one.rule.to_string(),
                    one.evidence.to_string(),
                ]
            })
            .collect();
        let header = ["from", "until", "severity", "host", "rule", "evidence"].map(str::to_owned);
        text += &table(&header, &rows);
    }
    text + "</body></html>\n"
}

/// A stacked bar for each day: the share of each state.
fn chart(report: &UsageReport) -> String {
    let days = &report.days;
    if days.is_empty() {
        return String::new();
    }
    let step = WIDTH / days.len() as f64;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"State of the GPUs by day\">\n",
        HEIGHT + 40.0
    );
    // Up to 14 labels fit.
    let label_every = days.len().div_ceil(14);
    for (index, day) in days.iter().enumerate() {
        let x = step * index as f64;
        let parts = states(&day.usage);
        let all: f64 = parts.iter().map(|(_, _, hours)| hours).sum();
        let mut y = HEIGHT;
        for (class, word, hours) in parts.into_iter().filter(|(_, _, hours)| *hours > 0.0) {
            let height = HEIGHT * hours / all;
            y -= height;
            let _ = writeln!(
                svg,
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\"><title>{}: \
                 {hours:.1} h {word}</title></rect>",
                (step * 0.85).max(0.5),
                escaped(&day.name)
            );
        }
        if index % label_every == 0 {
            let short = day.name.get(5..).unwrap_or(&day.name);
            let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{}\">{}</text>", HEIGHT + 14.0, escaped(short));
        }
    }
    for (index, (class, word, _)) in states(&Usage::default()).into_iter().enumerate() {
        let (x, y) = (index as f64 * 110.0, HEIGHT + 22.0);
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"10\" height=\"10\"/><text x=\"{}\" y=\"{}\">{word}</text>",
            x + 14.0,
            y + 9.0
        );
    }
    svg + "</svg>\n"
}

/// The states from bottom to top: class, word, hours.
fn states(usage: &Usage) -> [(&'static str, &'static str, f64); 5] {
    [
        ("busy", "busy", usage.used_hours),
        ("idle", "held idle", usage.idle_held_hours),
        ("faulty", "faulty", usage.faulty_hours.unwrap_or(0.0)),
        ("free", "free", usage.free_hours.unwrap_or(0.0)),
        ("unknown", "unknown", usage.unknown_hours.unwrap_or(0.0)),
    ]
}

fn table(header: &[String], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String], tag: &str| {
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = rows.iter().map(|row| line(row, "td")).collect();
    format!("<table>\n<thead>{}</thead>\n<tbody>\n{rows}</tbody></table>\n", line(header, "th"))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::usage_report::{ReportData, ReportGroup};
    use super::*;
    use crate::config::Prices;
    use crate::store::history::GpuName;
    use crate::store::history_reader::{FindingTotal, GpuTotal};
    use crate::store::rollup::{GpuRow, StateSeconds};

    #[test]
    fn the_page_is_self_contained_and_escapes_text() {
        let name = GpuName { host: "<b>".into(), uuid: "GPU-1".into(), index: 0, model: None, memory_mib: None };
        let states = StateSeconds { busy: 3600, ..StateSeconds::default() };
        let days = [(0, GpuTotal { gpu: name, row: GpuRow { states, ..GpuRow::default() } })];
        let finding = FindingTotal {
            rule: "idle-hog".into(),
            host: "gpu1".into(),
            severity: "warn".into(),
            user: None,
            first_seen: 7,
            ended: None,
            evidence: "<script>alert(1)</script>".into(),
            notified: false,
        };
        let data = ReportData { from: 0, until: 3600, days: &days, jobs: &[], hosts: &[], findings: &[finding] };
        let report = UsageReport::new(&data, ReportGroup::Host, &Prices::default(), &|_| "1970-01-01".to_owned());
        let page = html(&report, "an hour", &|time| time.to_string());
        assert!(page.contains("<td>&lt;b&gt;</td>") && page.contains("&lt;script&gt;") && !page.contains("<script"));
        assert!(
            page.contains("1970-01-01: 1.0 h busy</title>") && page.contains("prefers") != page.contains("light dark")
        );
        for outside in ["http:", "https:", "src=", "href=", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
