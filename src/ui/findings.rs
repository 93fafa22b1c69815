//! The findings view: a list, and the selected finding with its evidence.
//!
//! ```text
//! ┏━ Findings  2 crit  1 warn  3 notes  1 watched ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┓
//! ┃ STUCK JOBS                                                                                 ┃
//! ┃▸?  18m hgx-04 4,5  dmitri  sft.py      busy at idle power  112 of 700 W                    ┃
//! ┃ JOBS                                                                                       ┃
//! ┃ z   2h hgx-02 1    bob     notebook.py memory held, no work  31 GiB                        ┃
//! ┃ HARDWARE                                                                                   ┃
//! ┃ !   2h hgx-08 6    -                   GPU lost  has fallen off the bus                    ┃
//! ┗━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┛
//! ╭─ busy at idle power  hgx-04 GPU 4,5  dmitri ───────────────────────────── crit, likely ───╮
//! │GPUs 4,5 read 100 % busy for 18 min but draw 104 W of 700 W (was 560 W) and access no memory.  │
//! │check     gpufleet why hgx-01:12001                                                         │
//! │unless    a slow loader, a checkpoint                                                       │
//! ╰─ rule stuck-spin ──────────────────────────────────── gpufleet explain stuck-spin ─────────╯
//! ```

use super::canvas::{Canvas, LineWriter, Segments};
use super::format::{ShortString, brief_span, columns, short, span, used_of_total};
use crate::app::layout::findings_layout;
use crate::app::{App, FindingLine, GpuSummary};
use crate::diagnosis::{Finding, FindingGpu, FindingPhase, FindingVerdict, RuleId, Severity, SnoozeEnd};
use crate::fleet::{Moment, gpu_list, program_name};
use ratatui::layout::{Margin, Rect};

/// Columns of the labels in the details.
const LABEL: u16 = 10;

pub(super) fn draw(canvas: &mut Canvas<'_>, body: Rect, app: &App, now: Moment) {
    let layout = findings_layout(body.height);
    let list = Rect { height: body.height - layout.detail_rows, ..body };
    draw_list(canvas, list, app, now);
    if layout.detail_rows > 0 {
        let below = Rect { y: list.bottom(), height: layout.detail_rows, ..body };
        match app.findings().selected() {
            Some(finding) => draw_detail(canvas, below, app, finding, now),
            None => draw_not_judged(canvas, below, app),
        }
    }
}

fn draw_list(canvas: &mut Canvas<'_>, area: Rect, app: &App, now: Moment) {
    let theme = canvas.theme;
    canvas.outline(area, &theme.glyphs.heavy, theme.focus);
    title(canvas, area, app);
    let inner = area.inner(Margin::new(1, 1));
    let findings = app.findings();
    if findings.list().is_empty() {
        let text = if app.totals().hosts_covered > 0 { "Nothing looks wrong." } else { "No data from any host yet." };
        canvas.fit(inner.x + 1, inner.y, inner.width.saturating_sub(1), text, theme.plain);
        return;
    }
    let column_widths = ColumnWidths::of(inner.width, app);
    let capacity = usize::from(inner.height);
    let top = findings.top(capacity);
    for (y, line) in (inner.y..).zip(findings.lines().iter().skip(top).take(capacity)) {
        let row = Rect { y, height: 1, ..inner };
        match line {
            FindingLine::Heading(section) => {
                canvas.fit(row.x + 1, y, row.width.saturating_sub(1), section.title(), theme.dim);
            }
            FindingLine::Finding(index) => {
                let Some(finding) = findings.list().get(*index) else { continue };
                let is_selected = *index == findings.index();
                column_widths.row(canvas, row, finding, is_selected, (now, app.settings.utc_offset_seconds));
            }
        }
    }
    let below = findings.lines().iter().skip(top + capacity);
    let below = below.filter(|line| matches!(line, FindingLine::Finding(_))).count();
    canvas.more_below(area, below + findings.counts().omitted as usize, "");
}

fn title(canvas: &mut Canvas<'_>, area: Rect, app: &App) {
    let theme = canvas.theme;
    let counts = app.findings().counts();
    let in_phase = |severity| {
        let of = |finding: &&Finding| finding.is_alerting() && finding.severity == severity;
        app.findings().list().iter().filter(of).count()
    };
    let mut line = Segments::default();
    line.add(9, 0, short!(" Findings"), theme.focus);
    for (priority, count, word, style) in [
        (8, in_phase(Severity::Crit), "crit", theme.crit),
        (7, in_phase(Severity::Warn), "warn", theme.warn),
        (5, counts.mine as usize, "yours", theme.plain),
        (4, counts.notes as usize, if counts.notes == 1 { "note" } else { "notes" }, theme.plain),
        (3, counts.snoozed as usize, "snoozed", theme.dim),
        (3, counts.pending as usize, "watched", theme.dim),
    ] {
        if count > 0 {
            line.add(priority, 2, short!("{count} {word}"), style);
        }
    }
    line.add(9, 0, short!(" "), theme.plain);
    line.fit(area.width.saturating_sub(4));
    line.draw(canvas, area.x + 2, area.y, area.width.saturating_sub(4));
}

/// The widths of the columns of the list, 0 for a column that is left out.
struct ColumnWidths {
    host: u16,
    gpu: u16,
    who: u16,
    program: u16,
}

/// Columns of the pointer, the glyph and the duration, with the gap after them.
const LEAD_COLUMNS: u16 = 8;
/// The fewest columns of the title with its figures.
const TITLE_MIN_COLUMNS: u16 = 33;

impl ColumnWidths {
    /// Chooses the columns for a line of `width`. The program is dropped first, then the user, then the GPUs.
    fn of(width: u16, app: &App) -> Self {
        let list = app.findings().list();
        let longest = |text: &dyn Fn(&Finding) -> usize, least: usize, most: usize| -> u16 {
            list.iter().map(text).max().unwrap_or(0).clamp(least, most) as u16
        };
        let mut widths = Self {
            host: longest(&|finding| columns(&hosts(finding)), 4, 14),
            gpu: longest(&|finding| gpus(finding).len(), 3, 7),
            who: longest(&|finding| finding.user.as_deref().map_or(1, columns), 3, 10),
            program: longest(&|finding| columns(program(finding)), 0, if width < 100 { 9 } else { 18 }),
        };
        let is_too_wide = |widths: &Self| LEAD_COLUMNS + widths.sum() + TITLE_MIN_COLUMNS > width;
        if is_too_wide(&widths) {
            widths.program = 0;
        }
        if is_too_wide(&widths) {
            widths.who = 0;
        }
        if is_too_wide(&widths) {
            widths.gpu = 0;
        }
        widths
    }

    /// The columns with the gap after each.
    fn sum(&self) -> u16 {
        [self.host, self.gpu, self.who, self.program]
            .into_iter()
            .filter(|width| *width > 0)
            .map(|width| width + 1)
            .sum()
    }

    fn row(
        &self,
        canvas: &mut Canvas<'_>,
        line: Rect,
        finding: &Finding,
        is_selected: bool,
        (now, utc_offset_seconds): (Moment, i32),
    ) {
        let theme = canvas.theme;
        let is_suspicion = finding.is_suspicion();
        let is_pending = finding.phase == FindingPhase::Pending && !is_suspicion;
        let is_dim = is_pending || finding.is_frozen || finding.snoozed.is_some();
        let mut style = if is_dim { theme.dim } else { theme.plain };
        if is_selected {
            style = style.patch(theme.focus);
            canvas.text(line.x, line.y, 1, theme.glyphs.pointer, theme.focus);
        }
        let mark = match is_dim {
            true => theme.dim,
            false if is_suspicion => theme.warn,
            false => theme.severity_style(finding.severity),
        };
        canvas.text(line.x + 1, line.y, 1, glyph(finding), mark);
        canvas.right(line.x + 2, line.y, LEAD_COLUMNS - 3, &lasted(finding, now), style);
        let mut x = line.x + LEAD_COLUMNS;
        canvas.fit_middle(x, line.y, self.host, &hosts(finding), style);
        x += self.host + 1;
        let who = finding.user.as_deref().unwrap_or("-");
        for (width, text) in [(self.gpu, gpus(finding).as_str()), (self.who, who), (self.program, program(finding))] {
            if width > 0 {
                canvas.fit(x, line.y, width, text, style);
                x += width + 1;
            }
        }
        let lead = match snoozed(finding, utc_offset_seconds) {
            Some(text) => short!("{}: ", text.as_str()),
            None if is_suspicion => short!("stuck? "),
            None => progress(finding, now),
        };
        let room = |x: u16| line.right().saturating_sub(x);
        x += canvas.fit(x, line.y, room(x), &lead, theme.dim);
        canvas.fit(x, line.y, room(x), &title_text(finding), style);
    }
}

/// Draws a finding in one line for the view of its host: `? 18m GPU 4,5 dmitri sft.py: busy at idle power  112 of 700 W`.
pub(super) fn draw_strip(canvas: &mut Canvas<'_>, line: Rect, finding: &Finding, now: Moment) {
    let theme = canvas.theme;
    let style = if finding.is_suspicion() { theme.warn } else { theme.severity_style(finding.severity) };
    let mut text = String::new();
    if !finding.gpus.is_empty() {
        text = format!("GPU {}  ", gpus(finding));
    }
    for part in [finding.user.as_deref().unwrap_or(""), program(finding)] {
        if !part.is_empty() {
            text = format!("{text}{part} ");
        }
    }
    let word = if finding.is_suspicion() { "stuck? " } else { "" };
    let text = format!("{} {text} {word}{}", lasted(finding, now).as_str(), title_text(finding));
    let x = line.x + 1;
    let used = canvas.text(x, line.y, line.width, glyph(finding), style) + 1;
    canvas.fit(x + used, line.y, line.width.saturating_sub(used + 2), &text, style);
}

/// `busy at idle power  112 of 700 W`: the title of a finding and its figures.
pub(super) fn title_text(finding: &Finding) -> String {
    let short = finding.rule.info().short;
    if finding.figures.is_empty() { short.to_owned() } else { format!("{short}  {}", finding.figures) }
}

/// The program of the first process of a finding.
fn program(finding: &Finding) -> &str {
    finding.processes.first().map_or("", |process| program_name(&process.command))
}

fn draw_detail(canvas: &mut Canvas<'_>, area: Rect, app: &App, finding: &Finding, now: Moment) {
    let theme = canvas.theme;
    canvas.outline(area, &theme.glyphs.light, theme.dim);
    let inner = area.inner(Margin::new(2, 1));
    detail_title(canvas, area, finding);
    let info = finding.rule.info();
    let left = short!(" rule {} ", info.word);
    canvas.text(area.x + 2, area.bottom() - 1, area.width.saturating_sub(4), &left, theme.dim);
    let right = short!(" gpufleet explain {} ", info.word);
    if columns(&left) + columns(&right) + 6 <= usize::from(area.width) {
        canvas.right(area.x + 2, area.bottom() - 1, area.width.saturating_sub(4), &right, theme.dim);
    }
    let mut writer = LineWriter::new(canvas, inner);
    let style = if finding.phase == FindingPhase::Pending { theme.dim } else { theme.plain };
    writer.wrapped(&finding.sentence, style);
    writer.labelled("since", LABEL, &since_text(finding, app, now));
    if let Some(verdict) = finding.verdict.as_deref().and_then(FindingVerdict::text) {
        writer.labelled("why", LABEL, &verdict);
    }
    writer.labelled("check", LABEL, &finding.next_check);
    writer.labelled("unless", LABEL, finding.not);
    for gpu in finding.gpus.iter().take(usize::from(writer.rows_left()) / 2) {
        if let Some(parts) = gpu_readings_text(gpu, app) {
            let label = short!("GPU {}", gpu.index);
            writer.labelled(&label, LABEL, &parts);
        }
    }
    for process in finding.processes.iter().take(usize::from(writer.rows_left().saturating_sub(1))) {
        let label = short!("pid {}", process.key.pid);
        writer.labelled(&label, LABEL, &super::format::strip_directories(&process.command));
    }
    let not_judged = app.findings().not_judged();
    if writer.rows_left() > 0 && !not_judged.is_empty() {
        writer.labelled("", LABEL, "");
        let parts: Vec<String> = not_judged.iter().map(ToString::to_string).collect();
        writer.line(&format!("not judged: {}", parts.join(", ")), theme.dim);
    }
}

/// The readings of a GPU and its learned power levels: `100%  bandwidth 0%  104/700W  idle 64W  healthy 560W  70/80G  45C`.
fn gpu_readings_text(gpu: &FindingGpu, app: &App) -> Option<String> {
    let host = app.fleet().host(gpu.host)?;
    // The inventory may have changed since the finding fired.
    let is_it = |summary: &&GpuSummary| summary.index == gpu.index;
    let summary = app.host_summary(host)?.gpus.iter().find(is_it)?;
    let reading = &summary.reading;
    let mut parts = Vec::new();
    if let Some(error) = &reading.error {
        return Some(error.message.to_string());
    }
    let percent = |value: Option<u8>| value.map_or_else(|| "-".to_owned(), |value| format!("{value}%"));
    parts.push(percent(reading.utilization_percent));
    parts.push(format!("bandwidth {}", percent(reading.memory_utilization_percent)));
    let limit = summary.power_limit_watts.map(|limit| format!("/{limit:.0}")).unwrap_or_default();
    if let Some(power) = summary.power_watts() {
        parts.push(format!("{power:.0}{limit}W"));
    }
    for (what, watts) in app.learned_watts(gpu.host, gpu.position) {
        parts.push(format!("{what} {watts:.0}W"));
    }
    parts.push(used_of_total(reading.memory_used_bytes, summary.memory_total_bytes).as_str().to_owned());
    if let Some(celsius) = reading.temperature_celsius {
        parts.push(format!("{celsius}C"));
    }
    let host_name = if gpu.host.0 == 0 && app.fleet().hosts().len() == 1 { None } else { Some(host.name()) };
    let name = host_name.map(|name| format!("  on {name}")).unwrap_or_default();
    Some(format!("{}{name}", parts.join("  ")))
}

fn detail_title(canvas: &mut Canvas<'_>, area: Rect, finding: &Finding) {
    let theme = canvas.theme;
    let style = theme.severity_style(finding.severity);
    let mut left = Segments::default();
    left.add(9, 0, short!(" {}", finding.rule.info().short), style);
    left.add(8, 2, short!("{}", hosts(finding).as_str()), theme.plain);
    if !finding.gpus.is_empty() {
        left.add(7, 1, short!("GPU {}", gpus(finding).as_str()), theme.plain);
    }
    if let Some(user) = &finding.user {
        left.add(6, 2, short!("{user}"), theme.plain);
    }
    left.add(9, 0, short!(" "), theme.plain);
    let mut right = Segments::default();
    right.add(1, 0, short!(" {}, {} ", finding.severity.word(), finding.confidence.word()), style);
    let available = area.width.saturating_sub(6);
    right.fit(available);
    left.fit(available.saturating_sub(right.width() + 2));
    left.draw(canvas, area.x + 2, area.y, available);
    right.draw_right(canvas, area.x + 2, area.y, area.width.saturating_sub(4));
}

fn draw_not_judged(canvas: &mut Canvas<'_>, area: Rect, app: &App) {
    let dim = canvas.theme.dim;
    let not_judged = app.findings().not_judged();
    if !not_judged.is_empty() {
        let parts: Vec<String> = not_judged.iter().map(ToString::to_string).collect();
        let inner = Rect { x: area.x + 2, width: area.width.saturating_sub(4), ..area };
        LineWriter::new(canvas, inner).wrapped(&format!("not judged: {}", parts.join(", ")), dim);
    }
}

/// The glyph of a finding, so that nothing depends on colour.
pub(super) fn glyph(finding: &Finding) -> &'static str {
    match finding.rule {
        RuleId::HostUnreachable => "x",
        RuleId::ThermalThrottle | RuleId::Temperature | RuleId::PowerBrake => "^",
        RuleId::IdleHog => "z",
        RuleId::StuckSpin
        | RuleId::StuckSpinSuspect
        | RuleId::MissingRank
        | RuleId::JobStalled
        | RuleId::RendezvousStuck
        | RuleId::InputStall
        | RuleId::DstateHang => "?",
        _ if finding.severity == Severity::Info => "i",
        _ => "!",
    }
}

/// `hgx-04`, or `hgx-04 +2` for several hosts.
fn hosts(finding: &Finding) -> ShortString {
    let first = finding.hosts.first().map_or("-", |(_, name)| name.as_str());
    match finding.hosts.len() {
        0 | 1 => short!("{first}"),
        count => short!("{first} +{}", count - 1),
    }
}

/// The GPUs on the first host as a list.
fn gpus(finding: &Finding) -> String {
    let mut indexes: Vec<u32> =
        finding.gpus.iter().filter(|gpu| gpu.host == finding.host).map(|gpu| gpu.index).collect();
    indexes.sort_unstable();
    indexes.dedup();
    gpu_list(&indexes)
}

/// How long the condition has held: `>2h` if it started before it was observed.
fn lasted(finding: &Finding, now: Moment) -> ShortString {
    let lasted = brief_span(finding.lasted(now));
    if finding.at_least { short!(">{}", lasted.as_str()) } else { lasted }
}

/// `watching 2m of 5m: ` for a pending finding.
fn progress(finding: &Finding, now: Moment) -> ShortString {
    let held = finding.lasted(now);
    match (finding.phase, finding.due) {
        (FindingPhase::Pending, Some(due)) => {
            let all = held + now.until(due);
            short!("watching {} of {}: ", brief_span(held).as_str(), brief_span(all).as_str())
        }
        (FindingPhase::Pending, None) => short!("watching: "),
        (FindingPhase::Resolving, _) => short!("seems ended: "),
        _ if finding.is_frozen => short!("as last seen: "),
        _ => ShortString::new(),
    }
}

/// `snoozed until 14:20`, or `snoozed until it changes`.
fn snoozed(finding: &Finding, utc_offset_seconds: i32) -> Option<ShortString> {
    Some(match finding.snoozed? {
        // Drop the seconds.
        SnoozeEnd::At(moment) => {
            let clock = super::format::clock(moment, utc_offset_seconds);
            short!("snoozed until {}", clock.get(..5).unwrap_or_default())
        }
        SnoozeEnd::OnChange => short!("snoozed until it changes"),
    })
}

fn since_text(finding: &Finding, app: &App, now: Moment) -> String {
    // A condition may be older than gpufleet's run: its duration gives the start, not the first observation.
    let lasted = finding.lasted(now);
    let began = Moment { unix: now.unix.saturating_sub(lasted), ..finding.since };
    let clock = super::format::date(began, lasted, app.settings.utc_offset_seconds);
    let at_least = if finding.at_least { "at least " } else { "" };
    let mut text = format!("{}, {at_least}{}", clock.as_str(), span(lasted).as_str());
    for (holds, word) in [
        (finding.is_preexisting, "already present at the first sample"),
        (finding.is_flapping, "comes and goes"),
        (finding.is_frozen, "the host does not answer now"),
    ] {
        if holds {
            text.push_str("; ");
            text.push_str(word);
        }
    }
    if let Some(snoozed) = snoozed(finding, app.settings.utc_offset_seconds) {
        text.push_str("; ");
        text.push_str(&snoozed);
    }
    let waits = progress(finding, now);
    if finding.phase != FindingPhase::Firing && !waits.is_empty() {
        text.push_str("; ");
        text.push_str(waits.trim_end_matches([':', ' ']));
    }
    text
}
