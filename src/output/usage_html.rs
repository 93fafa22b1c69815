//! The report over the history as one self-contained HTML file: a chart of the days, and tables.

use super::usage_report::{SHOWN_ALLOCATIONS, Usage, UsageReport, cells, header, number};
use std::fmt::Write as _;

/// The width of the chart in user units.
const WIDTH: f64 = 720.0;
/// The height of the bars.
const HEIGHT: f64 = 160.0;

/// The units of a label that reach beyond its middle.
const HALF_LABEL: f64 = 15.0;

/// The colours are those of the screen. Tables scroll on a narrow screen, and only the last column wraps.
const STYLE: &str = "\
:root{color-scheme:light dark;--busy:#00639c;--idle:#c98a12;--free:#a9bccb;--faulty:#a3003c;--unknown:#8883;--warn:#946200}
@media (prefers-color-scheme:dark){:root{--busy:#56b4e9;--idle:#f0b429;--free:#566571;--faulty:#ff6b4a;--warn:#f0b429}}
body{font:14px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin:0 0 .5rem}h2{font-size:1.15rem;margin:2rem 0 0}p{margin:.3rem 0}figure{margin:1.5rem 0}
figcaption{opacity:.75}
div{overflow-x:auto}
table{border-collapse:collapse;margin:.6rem 0;min-width:50%}
th,td{padding:.2rem 1.2rem .2rem 0;text-align:left;vertical-align:top;white-space:nowrap;border-bottom:1px solid #8884}
td:last-child{white-space:normal}
.n{text-align:right;font-variant-numeric:tabular-nums}
.warn{color:var(--warn);font-weight:600}.crit{color:var(--faulty);font-weight:600}
.busy{fill:var(--busy)}.idle{fill:var(--idle)}.free{fill:var(--free)}.faulty{fill:var(--faulty)}.unknown{fill:var(--unknown)}
svg{width:100%;height:auto}svg text{font-size:10px;fill:currentColor}
@media print{body{margin:0;padding:0;max-width:none;font-size:9pt}div{overflow:visible}th,td{padding-right:.6rem}
td:first-child{white-space:normal;min-width:11em}td:last-child{overflow-wrap:anywhere}tr,svg{break-inside:avoid}*{print-color-adjust:exact}}";

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
    let mut facts = Vec::new();
    if total.utilization_percent.is_some() {
        facts.push(format!("mean utilization {} %", number(total.utilization_percent, 0)));
    }
    let (held, idle) = (number(Some(total.held_hours), 0), number(Some(total.idle_held_hours), 0));
    facts.push(format!("{held} GPU-hours held, {idle} of them idle"));
    if total.energy_kwh.is_some() {
        facts.push(format!("energy {} kWh", number(total.energy_kwh, 0)));
    }
    if total.cost.is_some() {
        facts.push(format!("cost {}", number(total.cost, 2)));
    }
    let facts = facts.join(", ");
    let capital: String = facts.chars().take(1).flat_map(char::to_uppercase).collect();
    let _ = writeln!(text, "<p>{capital}{}.</p>", facts.get(1..).unwrap_or_default());
    text += &chart(report);
    let rows: Vec<Vec<String>> = report.rows.iter().map(cells).collect();
    text += &table(&header(report.by), &rows);
    if !report.underused.is_empty() {
        text += "<h2>Underused hosts</h2>\n";
        let rows: Vec<Vec<String>> = report
            .underused
            .iter()
            .map(|one| vec![one.host.to_string(), format!("{:.0} %", one.busy_percent)])
            .collect();
        text += &table(&["host".to_owned(), "busy".to_owned()], &rows);
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
                let percent = one.unreachable_hours / one.watched_hours.max(f64::MIN_POSITIVE) * 100.0;
                vec![one.host.to_string(), format!("{:.1}", one.unreachable_hours), format!("{percent:.0} %")]
            })
            .collect();
        let header = ["host", "hours unreachable", "of the time watched"].map(str::to_owned);
        text += &table(&header, &rows);
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
        "<figure><figcaption>Share of the GPU time by day</figcaption>\n<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" \
         aria-label=\"State of the GPUs by day\">\n",
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
            // The first and the last label must not be cut.
            let middle = (x + step * 0.425).clamp(HALF_LABEL, WIDTH - HALF_LABEL);
            let _ = writeln!(
                svg,
                "<text x=\"{middle:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                HEIGHT + 14.0,
                escaped(short)
            );
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
    svg + "</svg></figure>\n"
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

/// A table. Columns of numbers are aligned at the right, and columns without any value are left out.
fn table(header: &[String], rows: &[Vec<String>]) -> String {
    let values = |column: usize| {
        rows.iter().filter_map(move |row| row.get(column)).filter(|cell| !cell.is_empty() && *cell != "-")
    };
    let is_number = |cell: &String| cell.trim_end_matches([' ', '%']).parse::<f64>().is_ok();
    let columns: Vec<(usize, &str)> = (0..header.len())
        .filter(|column| *column == 0 || values(*column).next().is_some())
        .map(|column| (column, if column > 0 && values(column).all(is_number) { " class=\"n\"" } else { "" }))
        .collect();
    let line = |cells: &[String], tag: &str| {
        let cells: String = columns
            .iter()
            .filter_map(|(column, class)| cells.get(*column).map(|cell| (cell, *class)))
            .map(|(cell, class)| {
                let class = match cell.as_str() {
                    "warn" => " class=\"warn\"",
                    "crit" => " class=\"crit\"",
                    _ => class,
                };
                format!("<{tag}{class}>{}</{tag}>", escaped(cell))
            })
            .collect();
        format!("<tr>{cells}</tr>\n")
    };
    let body: String = rows.iter().map(|row| line(row, "td")).collect();
    format!("<div><table>\n<thead>{}</thead>\n<tbody>\n{body}</tbody></table></div>\n", line(header, "th"))
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
        let gpus = [(0, GpuTotal { gpu: name, row: GpuRow { states, ..GpuRow::default() } })];
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
        let (days, findings) = ([(0, 3600)], [finding]);
        let data =
            ReportData { from: 0, until: 3600, days: &days, gpus: &gpus, jobs: &[], hosts: &[], findings: &findings };
        let report = UsageReport::new(&data, ReportGroup::Host, &Prices::default(), &|_| "1970-01-01".to_owned());
        let page = html(&report, "an hour", &|time| time.to_string());
        assert!(page.contains("<td>&lt;b&gt;</td>") && page.contains("&lt;script&gt;") && !page.contains("<script"));
        assert!(page.contains("1970-01-01: 1.0 h busy</title>") && page.contains("prefers-color-scheme:dark"));
        assert!(
            page.contains("<th class=\"n\">GPU-hours</th>") && page.contains("<td class=\"warn\">warn</td>"),
            "{page}"
        );
        assert!(!page.contains("cost"), "without a price there is no cost: {page}");
        for outside in ["http:", "https:", "src=", "href=", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
