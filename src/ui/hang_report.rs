//! The report about a job that looks hung: the verdict, the ranks that hold the job up, the evidence, and the facts that
//! could not be read.
//!
//! ```text
//! ╭─ why  Slurm job 3385 ──────────────────────────────────────────────────── proven ─╮
//! │ rank 7 on node2 holds the job up: it never launched AllReduce 61 to 64            │
//! │                                                                                   │
//! │ culprit   rank 7, pid 1650386 on node2, GPU 3                                     │
//! │ 1 proven  NCCL RAS, twice, 60 s apart: 7 ranks at 64, rank 7 at 60, none moved    │
//! │ not seen  stacks of rank 3: Yama forbids it; sudo py-spy dump --pid 4711          │
//! ╰───────────────────────────────────────────────────────────────────────────────────╯
//! ```

use super::canvas::{Canvas, Segments};
use super::format::{short, wrap};
use crate::app::{App, HangReport};
use crate::diagnosis::Severity;
use crate::diagnosis::proof::investigation::Progress;
use crate::diagnosis::proof::job_details::JobDetails;
use crate::diagnosis::proof::{Outcome, Says};
use crate::fleet::Moment;
use ratatui::layout::{Margin, Rect};
use ratatui::style::Style;
use std::fmt::Write as _;

/// Columns of the labels.
const LABEL: usize = 11;

/// A row of the report: a label on the first row of a paragraph, and a part of its text.
struct Line {
    label: String,
    text: String,
    style: Style,
}

/// Draws the report. Returns the number of rows by which it can be scrolled.
pub(super) fn draw(canvas: &mut Canvas<'_>, body: Rect, app: &App, now: Moment) -> usize {
    let Some(report) = app.hang_report() else { return 0 };
    let theme = canvas.theme;
    canvas.outline(body, &theme.glyphs.heavy, theme.focus);
    let mut title = Segments::default();
    title.add(9, 0, short!(" why "), theme.focus);
    title.add(5, 1, short!("{} ", report.evidence().name), theme.focus);
    title.fit(body.width.saturating_sub(4));
    title.draw(canvas, body.x + 2, body.y, body.width.saturating_sub(4));
    let inner = body.inner(Margin::new(2, 1));
    let lines = lines(canvas, report, usize::from(inner.width), now);
    let shown = usize::from(inner.height);
    let limit = lines.len().saturating_sub(shown);
    let top = report.top().min(limit);
    for (y, line) in (inner.y..).zip(lines.iter().skip(top).take(shown)) {
        canvas.fit(inner.x, y, LABEL as u16, &line.label, canvas.theme.dim);
        let x = inner.x + LABEL as u16;
        canvas.text(x, y, inner.width.saturating_sub(LABEL as u16), &line.text, line.style);
    }
    canvas.more_below(body, limit - top, " lines");
    limit
}

/// Returns the rows of the report, wrapped to a width.
fn lines(canvas: &Canvas<'_>, report: &HangReport, width: usize, now: Moment) -> Vec<Line> {
    let theme = canvas.theme;
    let verdict = report.verdict();
    let mut lines = Vec::new();
    let mut add = |label: &str, text: &str, style: Style| {
        if text.is_empty() {
            lines.push(Line { label: String::new(), text: String::new(), style });
        }
        for (index, part) in wrap(text, width.saturating_sub(LABEL)).into_iter().enumerate() {
            let label = if index == 0 { label.to_owned() } else { String::new() };
            lines.push(Line { label, text: part.to_owned(), style });
        }
    };
    let style = match verdict.outcome {
        Outcome::Proven => theme.severity_style(Severity::Crit),
        Outcome::Likely | Outcome::WaitsForRank | Outcome::Suspected => theme.warn,
        Outcome::NotHung | Outcome::NothingKnown => theme.plain,
    };
    add(outcome_label(verdict.outcome), &verdict.sentence, style);
    add("examined", &progress_text(report, now), theme.dim);
    if let Some(culprit) = &verdict.culprit {
        add("", "", theme.plain);
        for rank in &culprit.ranks {
            let mut text = [rank.name(), rank.place()].join(", ");
            if let Some(operation) = &rank.operation {
                let _ = write!(text, ": never launched {operation}");
            }
            add("culprit", text.trim_end_matches(", "), theme.plain);
        }
        if culprit.left_out > 0 {
            add("", &format!("and {} more ranks", culprit.left_out), theme.plain);
        }
        if let Some(frame) = &culprit.frame {
            add("stands in", frame, theme.plain);
        }
    }
    if !verdict.evidence.is_empty() {
        add("", "", theme.plain);
    }
    for (number, line) in (1..).zip(&verdict.evidence) {
        let style = if matches!(line.says, Says::Proven | Says::Likely) { theme.plain } else { theme.dim };
        add(&format!("{number}"), &format!("{}: {} ({})", line.source, line.text, line.says.text()), style);
    }
    let details = JobDetails::new(report.evidence(), verdict).lines();
    if !details.is_empty() {
        add("", "", theme.plain);
    }
    for (label, line) in details {
        add(label, &line, theme.plain);
    }
    if !verdict.missing.is_empty() {
        add("", "", theme.plain);
    }
    for missing in &verdict.missing {
        let mut text = format!("{}: {}", missing.what, missing.reason);
        if !missing.remedy.is_empty() {
            let _ = write!(text, "; {}", missing.remedy);
        }
        add("not seen", &text, theme.dim);
    }
    lines
}

fn outcome_label(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Proven => "PROVEN",
        Outcome::Likely => "likely",
        Outcome::Suspected => "suspected",
        Outcome::WaitsForRank => "waits",
        Outcome::NotHung => "not hung",
        Outcome::NothingKnown => "unknown",
    }
}

fn progress_text(report: &HangReport, now: Moment) -> String {
    let extent = report.extent_text();
    match report.progress() {
        Progress::FirstReading => format!("{extent}: the first reading is under way"),
        Progress::WaitsUntil(next) => {
            let seconds = now.until(next).as_secs();
            format!("{extent}, once; again in {seconds} s: only then is it known whether anything moves")
        }
        Progress::SecondReading => format!("{extent}: the second reading is under way"),
        Progress::Complete => format!("{extent}, twice; again every 10 minutes while this view is open"),
    }
}
