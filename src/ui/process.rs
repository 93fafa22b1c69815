//! The view of one process or job, and the processes view: the full-screen list with the selected row below.

use super::canvas::{Canvas, LineWriter, Segments};
use super::chart::{self, AXIS_COLUMNS, Scale};
use super::format::{ShortString, age, memory, or_dash, plural, short, shorten_host_name, span, wrap};
use super::list;
use crate::app::layout::processes_layout;
use crate::app::{App, ChartSpan, ProcessDetails, Requested};
use crate::diagnosis::{FindingPhase, FindingVerdict};
use crate::fleet::{Host, Moment, Process, ProcessMetric, Row, RowKey, SeriesKey, gpu_list};
use crate::wire::{Owner, ProcessFacts, SafeText};
use ratatui::layout::{Margin, Rect};
use ratatui::style::Style;
use std::fmt::Write as _;

/// Columns of the labels.
const LABEL: u16 = 11;
/// The maximum number of processes of a job in the list.
const MAX_LISTED: usize = 64;

/// Draws the view of one process or job. Returns the number of lines by which it can be scrolled.
pub(super) fn draw(canvas: &mut Canvas<'_>, body: Rect, app: &App, key: &RowKey, now: Moment) -> usize {
    canvas.outline(body, &canvas.theme.glyphs.heavy, canvas.theme.focus);
    let inner = body.inner(Margin::new(2, 1));
    let (Some(row), Some(host)) = (app.row(key), app.fleet().host(key.host)) else {
        canvas.fit(inner.x, inner.y, inner.width, "This process is no longer listed.", canvas.theme.plain);
        return 0;
    };
    let title = match (key.is_job && row.workers > 1, row.pid) {
        (true, Some(pid)) => short!(" {}  job of pid {pid} ", shorten_host_name(&row.host_name).as_str()),
        (_, Some(pid)) => short!(" {}  pid {pid} ", shorten_host_name(&row.host_name).as_str()),
        (_, None) => short!(" {} ", shorten_host_name(&row.host_name).as_str()),
    };
    canvas.fit(body.x + 2, body.y, body.width.saturating_sub(4), &title, canvas.theme.focus);
    let processes: Vec<&Process> = members(host, row);
    let (text_area, charts) = divide(inner);
    if let Some(charts) = charts {
        draw_charts(canvas, charts, host, &processes, app.screen().span.without_store(), now);
    }
    let lines = text_lines(canvas, text_area, app, host, row, &processes, now);
    let shown = usize::from(text_area.height);
    let limit = lines.len().saturating_sub(shown);
    let top = app.screen().process_top.min(limit);
    for (y, line) in (text_area.y..).zip(lines.iter().skip(top).take(shown)) {
        canvas.fit(text_area.x, y, LABEL, &line.label, canvas.theme.dim);
        canvas.text(text_area.x + LABEL, y, text_area.width.saturating_sub(LABEL), &line.text, line.style);
    }
    if top > 0 {
        let above = short!(" {} {top} more ", canvas.theme.glyphs.up);
        canvas.right(body.x + 2, body.y, body.width.saturating_sub(4), &above, canvas.theme.plain);
    }
    canvas.more_below(body, limit - top, " lines");
    limit
}

/// One line of the text: a label, which only the first line of a wrapped text has, and a part of the text.
struct TextLine {
    label: ShortString,
    text: String,
    style: Style,
}

/// The text of the view, wrapped to a width.
struct Text {
    width: usize,
    has_gaps: bool,
    lines: Vec<TextLine>,
}

impl Text {
    fn add(&mut self, label: &str, text: &str, style: Style) {
        for (index, line) in wrap(text, self.width).into_iter().enumerate() {
            let label = if index == 0 { short!("{label}") } else { ShortString::new() };
            self.lines.push(TextLine { label, text: line.to_owned(), style });
        }
    }

    fn gap(&mut self) {
        if self.has_gaps {
            self.lines.push(TextLine { label: ShortString::new(), text: String::new(), style: Style::new() });
        }
    }
}

/// A text in fewer rows has no empty lines.
const GAPS_MIN_ROWS: u16 = 16;

fn text_lines(
    canvas: &Canvas<'_>,
    area: Rect,
    app: &App,
    host: &Host,
    row: &Row,
    processes: &[&Process],
    now: Moment,
) -> Vec<TextLine> {
    let plain = canvas.theme.plain;
    let facts = processes.iter().find_map(|process| process.facts());
    let (state, state_style) = list::state_text(canvas, row, app, now, u16::MAX);
    let width = usize::from(area.width.saturating_sub(LABEL));
    let mut text = Text { width, has_gaps: area.height >= GAPS_MIN_ROWS, lines: Vec::new() };
    text.add("command", &row.command, plain);
    text.gap();
    text.add("user", &user_text(row, facts), plain);
    if let Some(owner) = facts.and_then(|facts| facts.owner.as_ref()) {
        text.add("owner", &owner_text(owner), plain);
    }
    text.add("job", &row.job.to_string(), plain);
    if let Some(facts) = facts {
        text.add("where", &environment_text(facts), plain);
    }
    text.add("host", row.host_name.as_str(), plain);
    text.add(&short!("GPU{}", plural(row.gpu_indexes.len())), &gpus_text(row), plain);
    text.add("running", &running_text(row), plain);
    if let [process] = processes {
        text.add("threads", &threads_text(process), plain);
        if let Some(facts) = facts.filter(|facts| !facts.listening_ports.is_empty()) {
            text.add("listens on", &sockets_text(facts, process), plain);
        }
        if let Some(clients) = clients_text(process) {
            text.add("clients", &clients, plain);
        }
        if let Some(age_seconds) = process.reading.log_age_seconds {
            text.add("log", &format!("written {} ago", age(age_seconds).as_str()), plain);
        }
    }
    text.add("state", &state, state_style);
    for finding in app.findings().of_row(row).take(4) {
        let label = if finding.phase == FindingPhase::Pending { "watched" } else { finding.severity.word() };
        text.add(label, &finding.sentence, plain);
        if let Some(verdict) = finding.verdict.as_deref().and_then(FindingVerdict::text) {
            text.add("  why", &verdict, plain);
        }
        text.add("  check", &finding.next_check, plain);
    }
    if let Some(facts) = facts.filter(|facts| !facts.ancestors.is_empty()) {
        text.gap();
        text.add("started by", &parents_text(facts), plain);
    }
    text.gap();
    let shown = processes.len().min(MAX_LISTED);
    for process in &processes[..shown] {
        text.add(&short!("pid {}", process.key.pid), &usage_text(host, process, now), plain);
    }
    if shown < processes.len() {
        text.add("", &short!("{} more processes", processes.len() - shown), plain);
    }
    if let Some(details) = app.process_details(&row.key) {
        text.gap();
        add_details(&mut text, canvas, details, processes.len() > 1);
    }
    text.lines
}

/// The maximum number of lines of a log.
const MAX_LOG_LINES: usize = 12;

/// Adds the variables and the end of the log, which only the owner of a process may read.
fn add_details(text: &mut Text, canvas: &Canvas<'_>, details: &ProcessDetails, is_one_of_several: bool) {
    let (plain, dim) = (canvas.theme.plain, canvas.theme.dim);
    let of = if is_one_of_several { format!("of pid {}: ", details.pid()) } else { String::new() };
    match details.variables() {
        Requested::Pending => text.add("variables", "being read", dim),
        Requested::Known(variables) if variables.is_empty() => {
            text.add("variables", &format!("{of}none of torchrun, Slurm, MPI, JAX, NCCL or CUDA"), dim);
        }
        Requested::Known(variables) => {
            let variables: Vec<&str> = variables.iter().map(SafeText::as_str).collect();
            text.add("variables", &format!("{of}{}", variables.join(" ")), plain);
        }
        Requested::Refused(reason) => text.add("variables", &format!("{of}not read: {reason}"), dim),
    }
    match details.log() {
        Requested::Pending => text.add("log end", "being read", dim),
        Requested::Known(log) => {
            let lines: Vec<&SafeText> = log.lines.iter().filter(|line| !line.trim().is_empty()).collect();
            let first = lines.len().saturating_sub(MAX_LOG_LINES);
            text.add("log end", &format!("{of}{}", log.path), dim);
            for line in lines.into_iter().skip(first) {
                text.add("", line, plain);
            }
        }
        Requested::Refused(reason) => text.add("log end", &format!("{of}not read: {reason}"), dim),
    }
}

/// Divides the area into text and charts: side by side on a wide screen, charts below on a high one, else text only.
fn divide(inner: Rect) -> (Rect, Option<Rect>) {
    const WIDE_COLUMNS: u16 = 96;
    const TALL_ROWS: u16 = 18;
    const BAND_ROWS: u16 = 6;
    if inner.width >= WIDE_COLUMNS {
        let charts = inner.width * 2 / 5;
        let text = Rect { width: inner.width - charts - 2, ..inner };
        let rows = inner.height.min(30);
        return (text, Some(Rect { x: inner.right() - charts, width: charts, height: rows, ..inner }));
    }
    if inner.height >= TALL_ROWS {
        let text = Rect { height: inner.height - BAND_ROWS, ..inner };
        return (text, Some(Rect { y: text.bottom(), height: BAND_ROWS, ..inner }));
    }
    (inner, None)
}

/// `in /home/erika/run, log /home/erika/run/out.txt, runs in tmux`. Only the owner can read some of these.
fn environment_text(facts: &ProcessFacts) -> String {
    let mut parts = Vec::new();
    if let Some(directory) = &facts.working_directory {
        parts.push(format!("in {directory}"));
    }
    if let Some(log) = &facts.log_path {
        parts.push(format!("log {log}"));
    }
    if let Some(name) = &facts.container_name {
        parts.push(format!("container {name}"));
    }
    if let Some(program) = &facts.runs_in {
        parts.push(format!("runs in {program}"));
    }
    if facts.ignores_hangup == Some(true) {
        parts.push("ignores SIGHUP (nohup)".to_owned());
    }
    parts.join(", ")
}

/// `38, 2 in disk wait for 40s, waits in nfs_wait_bit_killable; 16 child processes without GPU, 790% CPU`
fn threads_text(process: &Process) -> String {
    let reading = &process.reading;
    let mut text = or_dash(reading.threads).as_str().to_owned();
    if let Some(blocked) = reading.threads_blocked.filter(|count| *count > 0) {
        let _ = write!(text, ", {blocked} in disk wait");
        if let Some(seconds) = reading.blocked_seconds {
            let _ = write!(text, " for {}", age(f64::from(seconds)).as_str());
        }
    }
    if let Some(channel) = &reading.wait_channel {
        let _ = write!(text, ", waits in {channel}");
    }
    if let Some(workers) = reading.descendants.filter(|count| *count > 0) {
        let _ = write!(text, "; {workers} child processes without GPU");
        if let Some(cpu) = reading.descendants_cpu_percent {
            let _ = write!(text, ", {cpu:.0}% CPU");
        }
    }
    text
}

/// `8000, 8001, 3 connections`
fn sockets_text(facts: &ProcessFacts, process: &Process) -> String {
    let ports: Vec<String> = facts.listening_ports.iter().map(u16::to_string).collect();
    let mut text = ports.join(", ");
    if let Some(count) = process.reading.established_connections {
        let _ = write!(text, ", {count} connection{}", plural(count as usize));
    }
    text
}

/// Shorter waits are usual.
const SHOWN_WAIT_SECONDS: f64 = 60.0;

/// `3 wait for an answer, the longest for 12m 4s`
fn clients_text(process: &Process) -> Option<String> {
    let (count, seconds) = process.reading.waiting_clients.zip(process.reading.longest_wait_seconds)?;
    let wait = age(seconds);
    (seconds >= SHOWN_WAIT_SECONDS).then(|| match count {
        1 => format!("1 waits for an answer, for {}", wait.as_str()),
        _ => format!("{count} wait for an answer, the longest for {}", wait.as_str()),
    })
}

/// Returns the processes of a row, or the ended ones if none is running.
fn members<'a>(host: &'a Host, row: &Row) -> Vec<&'a Process> {
    let belongs = |process: &&Process| {
        if row.key.is_job { process.info.job == row.job } else { process.key == row.key.process }
    };
    let mut members: Vec<&Process> = host.processes().filter(belongs).collect();
    if members.is_empty() {
        members.extend(host.ended().map(|ended| &ended.process).filter(belongs));
    }
    members
}

/// Draws the selected row below the list of the processes view.
pub(super) fn draw_brief(canvas: &mut Canvas<'_>, area: Rect, app: &App, row: &Row, now: Moment) {
    canvas.outline(area, &canvas.theme.glyphs.light, canvas.theme.dim);
    let inner = area.inner(Margin::new(2, 1));
    let title = match row.pid {
        Some(pid) => short!(" {} pid {pid} ", shorten_host_name(&row.host_name).as_str()),
        None => short!(" {} ", shorten_host_name(&row.host_name).as_str()),
    };
    canvas.fit(area.x + 2, area.y, area.width.saturating_sub(4), &title, canvas.theme.plain);
    let host = app.fleet().host(row.key.host).filter(|_| row.group_summary.is_none());
    let processes = host.map_or_else(Vec::new, |host| members(host, row));
    let facts = processes.iter().find_map(|process| process.facts());
    let (state, style) = list::state_text(canvas, row, app, now, u16::MAX);
    let mut writer = LineWriter::new(canvas, inner);
    writer.line(&row.command, Style::new());
    let plural = plural(row.gpu_indexes.len());
    writer.line(&format!("{}   GPU{plural} {}", user_text(row, facts), gpus_text(row)), Style::new());
    writer.line(&running_text(row), Style::new());
    if let Some(facts) = facts.filter(|facts| !facts.ancestors.is_empty()) {
        writer.labelled("started by", LABEL, &parents_text(facts));
    }
    match app.findings().of_row(row).next() {
        Some(finding) => writer.line(&finding.sentence, style),
        None => writer.line(&state, style),
    }
}

fn user_text(row: &Row, facts: Option<&ProcessFacts>) -> String {
    let mut text = row.who.to_string();
    if let Some(facts) = facts {
        if let Some(user) = facts.user.as_ref().filter(|user| **user != row.who) {
            let _ = write!(text, "  as {user}");
        }
        if let Some(name) = &facts.full_name {
            let _ = write!(text, "  ({name})");
        }
        if let Some(uid) = facts.uid {
            let _ = write!(text, "  uid {uid}");
        }
    }
    if row.is_mine {
        text.push_str("  you");
    }
    text
}

fn owner_text(owner: &Owner) -> String {
    match owner {
        Owner::Slurm { job, step: Some(step) } => format!("Slurm job {job}, step {step}"),
        Owner::Slurm { job, step: None } => format!("Slurm job {job}"),
        Owner::Pod { uid, container: Some(container) } => format!("Kubernetes pod {uid}, container {container}"),
        Owner::Pod { uid, container: None } => format!("Kubernetes pod {uid}"),
        Owner::Container { runtime, id } => format!("{runtime} container {id}"),
        Owner::Service(name) => format!("systemd service {name}"),
        Owner::Session(name) => format!("login session {name}"),
        Owner::Unknown => "unknown owner".to_owned(),
    }
}

fn gpus_text(row: &Row) -> String {
    let mut text = gpu_list(&row.gpu_indexes);
    if let Some(bytes) = row.gpu_memory_bytes {
        let _ = write!(text, "   {} in all", memory(bytes).as_str());
    }
    if let Some(percent) = row.gpu_memory_percent {
        let _ = write!(text, ", {percent:.0}% of their memory");
    }
    match row.sm_percent {
        Some((least, most)) if least == most => drop(write!(text, "   SM {least}%")),
        Some((least, most)) => drop(write!(text, "   SM {least} to {most}%")),
        None => text.push_str("   SM -"),
    }
    text
}

fn running_text(row: &Row) -> String {
    let mut text = format!("for {}", row.age_seconds.map_or_else(|| short!("-"), age).as_str());
    let cpu = row.cpu_percent.map(|percent| short!("{percent:.0}%"));
    let _ = write!(text, "   CPU {}", or_dash(cpu.as_deref()).as_str());
    let rss = row.rss_bytes.map(memory);
    let _ = write!(text, "   RSS {}", or_dash(rss.as_deref()).as_str());
    if let Some(state) = row.process_state {
        let _ = write!(text, "   process state {}", state.letter());
    }
    if row.workers > 1 {
        let _ = write!(text, "   {} processes", row.workers);
    }
    text
}

/// `torchrun (5061), by bash (400)`, from the nearest ancestor up.
fn parents_text(facts: &ProcessFacts) -> String {
    facts
        .ancestors
        .iter()
        .map(|ancestor| format!("{} ({})", ancestor.name, ancestor.pid))
        .collect::<Vec<_>>()
        .join(", by ")
}

/// The use of each GPU by a process: `GPU 0 62G SM 96%, GPU 1 62G SM 97%`.
fn usage_text(host: &Host, process: &Process, now: Moment) -> String {
    let mut text = String::new();
    for usage in &process.gpus {
        if !text.is_empty() {
            text.push_str(", ");
        }
        let index = usage.gpu.and_then(|position| host.gpu_info(usize::from(position))).map(|info| info.index);
        let _ = write!(text, "GPU {}", or_dash(index).as_str());
        let _ = write!(text, " {}", or_dash(usage.gpu_memory_bytes.map(memory).as_deref()).as_str());
        let percent = usage.sm_percent.map(|percent| short!("{percent}%"));
        let _ = write!(text, " SM {}", or_dash(percent.as_deref()).as_str());
    }
    if let Some(trouble) = process.trouble(now) {
        let _ = write!(text, "   {} for {}", trouble.word(), span(now.since(process.state_since)).as_str());
    }
    text
}

/// Draws the processes view.
pub(super) fn draw_processes(canvas: &mut Canvas<'_>, body: Rect, app: &App, now: Moment) {
    let (list_rows, detail_rows) = processes_layout(body.height);
    list::draw(canvas, Rect { height: list_rows, ..body }, app, now);
    if let Some(row) = app.rows().get(app.screen().list.index()).filter(|_| detail_rows > 0) {
        draw_brief(canvas, Rect { y: body.y + list_rows, height: detail_rows, ..body }, app, row, now);
    }
}

/// The maximum number of processes that a chart of a job includes.
const MAX_PROCESSES: usize = 32;
/// The minimum width of a chart.
const MIN_COLUMNS: u16 = 24;

/// How the processes of a job are combined into one line.
#[derive(Clone, Copy)]
enum Aggregation {
    Mean,
    Sum,
}

/// Draws as many of the three charts as fit: below each other in a high area, else side by side.
pub(super) fn draw_charts(
    canvas: &mut Canvas<'_>,
    area: Rect,
    host: &Host,
    processes: &[&Process],
    span: ChartSpan,
    now: Moment,
) {
    let metrics = [
        ("SM", ProcessMetric::Sm, Aggregation::Mean),
        ("GPU memory", ProcessMetric::GpuMemory, Aggregation::Sum),
        ("CPU", ProcessMetric::Cpu, Aggregation::Sum),
    ];
    let is_tall = area.height >= 12;
    let per_row = if is_tall { 1 } else { (area.width / MIN_COLUMNS).clamp(1, 3) };
    let down = if is_tall { 3 } else { 1 };
    let (columns, rows) = (area.width / per_row, area.height.saturating_sub(1) / down);
    for (slot, (name, metric, aggregation)) in metrics.into_iter().enumerate().take(usize::from(per_row * down)) {
        let slot = slot as u16;
        let cell = Rect {
            x: area.x + slot % per_row * columns,
            y: area.y + slot / per_row * rows,
            width: columns.saturating_sub(u16::from(per_row > 1)),
            height: rows,
        };
        let width = cell.width.saturating_sub(AXIS_COLUMNS);
        let points = aggregate_points(host, processes, metric, aggregation, width, span, now);
        let scale = match metric {
            ProcessMetric::Sm => Scale::percent(),
            ProcessMetric::GpuMemory => Scale::bytes(&points),
            ProcessMetric::Cpu => Scale::cpus(&points),
        };
        let mut heading = Segments::default();
        heading.add(9, 0, short!("{name}"), canvas.theme.focus);
        let value = |value: f32| match metric {
            ProcessMetric::GpuMemory => memory(value.max(0.0) as u64),
            ProcessMetric::Sm | ProcessMetric::Cpu => short!("{value:.0}%"),
        };
        if let Some((least, most)) = chart::range(&points) {
            heading.add(5, 2, short!("{} to {}", value(least).as_str(), value(most).as_str()), canvas.theme.dim);
        } else {
            heading.add(5, 2, short!("no data"), canvas.theme.dim);
        }
        heading.fit(cell.width);
        heading.draw(canvas, cell.x, cell.y, cell.width);
        let inner = Rect { y: cell.y + 1, height: cell.height.saturating_sub(1), ..cell };
        chart::draw(canvas, inner, &points, &scale, canvas.theme.busy);
        if slot / per_row + 1 == down {
            let width = cell.width.saturating_sub(AXIS_COLUMNS);
            chart::time_axis(canvas, cell.x + AXIS_COLUMNS, cell.bottom(), width, span);
        }
    }
}

#[allow(clippy::too_many_arguments, reason = "a line has this many inputs")]
fn aggregate_points(
    host: &Host,
    processes: &[&Process],
    metric: ProcessMetric,
    aggregation: Aggregation,
    columns: u16,
    span: ChartSpan,
    now: Moment,
) -> Vec<Option<f32>> {
    let mut sums = vec![(0.0_f32, 0_u32); usize::from(columns)];
    for process in processes.iter().take(MAX_PROCESSES) {
        let points = chart::read_points(host.history(), SeriesKey::Process(&process.key, metric), columns, span, now);
        for (sum, point) in sums.iter_mut().zip(points) {
            if let Some(point) = point {
                *sum = (sum.0 + point, sum.1 + 1);
            }
        }
    }
    let value = |(sum, count): &(f32, u32)| match aggregation {
        _ if *count == 0 => None,
        Aggregation::Mean => Some(sum / *count as f32),
        Aggregation::Sum => Some(*sum),
    };
    sums.iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::fixture::{TestHost, gpus, process, reading};

    #[test]
    fn ports_and_connections_are_one_line() {
        for (ports, connections, text) in [
            (vec![8000], Some(3), "8000, 3 connections"),
            (vec![8000, 8001], Some(1), "8000, 8001, 1 connection"),
            (vec![22], None, "22"),
        ] {
            let mut server = process(7, "python chat.py", &[(0, 40)]);
            server.facts.listening_ports = ports;
            server.reading.established_connections = connections;
            let mut host = TestHost::new(0, gpus(0..1));
            host.send_snapshot(1.0, &[reading(0, 40)], &[server]);
            let process = host.host.processes().next().expect("a process");
            assert_eq!(sockets_text(process.facts().expect("facts"), process), text);
        }
    }

    #[test]
    fn clients_that_wait_for_a_minute_are_shown() {
        for (count, seconds, text) in [
            (3, Some(724.0), Some("3 wait for an answer, the longest for 12m")),
            (1, Some(60.0), Some("1 waits for an answer, for 1m")),
            (5, Some(59.0), None),
            (0, None, None),
            (2, Some(f64::MAX), None),
        ] {
            let mut server = process(7, "python chat.py", &[(0, 40)]);
            (server.reading.waiting_clients, server.reading.longest_wait_seconds) = (Some(count), seconds);
            let mut host = TestHost::new(0, gpus(0..1));
            host.send_snapshot(1.0, &[reading(0, 40)], &[server]);
            let process = host.host.processes().next().expect("a process");
            assert_eq!(clients_text(process).as_deref(), text);
        }
    }
}
