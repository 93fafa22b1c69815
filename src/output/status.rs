//! The table of `gpufleet status`: one line per host and per GPU, then the findings.
//!
//! ```text
//! hgx-01  driver 570.86.15  cpu 34%  ram 412/1007 GiB  load 18.2/112  0.3 s old
//!   0  H100 80GB HBM3  71C   97%  74.1/80.0 GiB  512/700 W  busy        alice 74.0G
//!   1  H100 80GB HBM3  44C  100%  70.2/80.0 GiB  118/700 W  hung? 18m   dmitri 70.1G, root 0.1G
//! hgx-02  down: nothing listens on port 22
//!   hint: is sshd running there?
//! findings: 1 firing, 1 watched (`gpufleet findings` watches for longer)
//!   crit  hgx-01  stuck-spin  GPUs 4,5 read 100 % busy for 18 min but draw 104 W of 700 W ...
//!   info  hgx-01  idle-hog    watched: GPU 3 idle > 30 min with 12 GiB held
//! ```

use super::findings::severity_tone;
use super::paint::{Paint, Tone};
use super::report::{GpuView, Report, no_answer_text, owner_label};
use crate::diagnosis::{Finding, FindingPhase};
use crate::fleet::{GpuState, Host, Link, Moment};
use crate::wire::format::{DurationStyle, duration};
use crate::wire::{ReadingSource, SafeText};
use std::collections::BTreeMap;
use std::time::Duration;
use unicode_width::UnicodeWidthStr;

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// Shown for a missing reading, as in nvidia-smi.
const MISSING: &str = "N/A";

/// The whole table.
pub fn table(report: &Report<'_>, paint: Paint) -> String {
    let blocks: Vec<HostBlock> = report.fleet.hosts().iter().map(|host| host_block(report, host)).collect();
    let headers = Widths::of(blocks.iter().map(|block| &block.header));
    let gpus = Widths::of(blocks.iter().flat_map(|block| &block.gpus));
    let mut text = String::new();
    if report.fleet.simulated {
        text += &paint.paint(Tone::Warn, "simulated fleet (--demo)");
        text += "\n";
    }
    for block in &blocks {
        text += &headers.line("", &block.header, paint);
        for (tone, note) in &block.notes {
            text += &paint.paint(*tone, &format!("  {note}"));
            text += "\n";
        }
        for gpu in &block.gpus {
            text += &gpus.line("  ", gpu, paint);
        }
    }
    text + &findings(report, paint)
}

/// The findings after a single sample; empty if there are none.
fn findings(report: &Report<'_>, paint: Paint) -> String {
    if report.findings.is_empty() {
        return String::new();
    }
    let pending = report.findings.iter().filter(|finding| finding.phase == FindingPhase::Pending).count();
    let firing = report.findings.len() - pending;
    let counts = [(firing, "firing"), (pending, "watched")].into_iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, word)| format!("{count} {word}")).collect();
    let header = paint.paint(Tone::Strong, &format!("findings: {}", counts.join(", ")));
    let mut text = format!("{header} (`gpufleet findings` watches for longer)\n");
    let lines: Vec<Vec<Cell>> = report.findings.iter().map(|finding| finding_cells(finding)).collect();
    let widths = Widths::of(lines.iter());
    for line in &lines {
        text += &widths.line("  ", line, paint);
    }
    text
}

fn finding_cells(finding: &Finding) -> Vec<Cell> {
    let is_dim = finding.phase == FindingPhase::Pending && !finding.is_suspicion() || finding.snoozed.is_some();
    let tone = match is_dim {
        true => Tone::Dim,
        false if finding.is_suspicion() => Tone::Warn,
        false => severity_tone(finding.severity),
    };
    let hosts = match &finding.hosts[..] {
        [(_, first), rest @ ..] if !rest.is_empty() => format!("{first} +{}", rest.len()),
        _ => finding.hosts.first().map(|(_, name)| name.to_string()).unwrap_or_default(),
    };
    let lead = match finding.phase {
        FindingPhase::Pending if finding.is_suspicion() => "stuck? ",
        FindingPhase::Pending => "watched: ",
        FindingPhase::Resolving => "seems ended: ",
        FindingPhase::Firing | FindingPhase::Clear if finding.snoozed.is_some() => "snoozed: ",
        FindingPhase::Firing | FindingPhase::Clear => "",
    };
    vec![
        Cell::left(finding.severity.word()).tone(tone),
        Cell::left(hosts),
        Cell::left(finding.rule.word()),
        Cell::left(format!("{lead}{}", finding.sentence)).tone(if is_dim { Tone::Dim } else { Tone::Plain }),
    ]
}

/// One host: its first line, notes and GPUs.
struct HostBlock {
    header: Vec<Cell>,
    notes: Vec<(Tone, String)>,
    gpus: Vec<Vec<Cell>>,
}

/// A cell of a line.
struct Cell {
    text: String,
    tone: Tone,
    align: Align,
}

#[derive(Clone, Copy)]
enum Align {
    Left,
    Right,
}

impl Cell {
    fn left(text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: Tone::Plain, align: Align::Left }
    }

    fn right(text: impl Into<String>) -> Self {
        Self { align: Align::Right, ..Self::left(text) }
    }

    fn tone(self, tone: Tone) -> Self {
        Self { tone, ..self }
    }
}

/// The width of each column in terminal cells. The last cell of a line may be a sentence and does not count.
struct Widths(Vec<usize>);

impl Widths {
    fn of<'a>(lines: impl Iterator<Item = &'a Vec<Cell>>) -> Self {
        let mut widths = Vec::new();
        for line in lines {
            for (column, cell) in line.iter().take(line.len().saturating_sub(1)).enumerate() {
                if widths.len() <= column {
                    widths.push(0);
                }
                widths[column] = cell.text.width().max(widths[column]);
            }
        }
        Self(widths)
    }

    fn line(&self, indent: &str, cells: &[Cell], paint: Paint) -> String {
        let mut line = indent.to_owned();
        for (column, cell) in cells.iter().enumerate() {
            let is_last = column + 1 == cells.len();
            let padding = self.0.get(column).copied().unwrap_or(0).saturating_sub(cell.text.width());
            let shown = paint.paint(cell.tone, &cell.text);
            match cell.align {
                Align::Left if is_last => line += &shown,
                Align::Left => line.extend([&shown, &" ".repeat(padding), "  "]),
                Align::Right => line.extend([&" ".repeat(padding), shown.as_str(), "  "]),
            }
        }
        format!("{}\n", line.trim_end())
    }
}

fn host_block(report: &Report<'_>, host: &Host) -> HostBlock {
    let name = Cell::left(host.name().as_str()).tone(Tone::Strong);
    if host.snapshot.is_none() {
        let (tone, parts) = link_text(host, report.now);
        let notes = hint(host).into_iter().collect();
        return HostBlock { header: vec![name, Cell::left(parts).tone(tone)], notes, gpus: Vec::new() };
    }
    let gpus = report.gpus(host);
    let gpus = gpus.iter().enumerate().map(|(position, gpu)| gpu_line(position, gpu, host, report.now));
    HostBlock { header: header(name, host, report.now), notes: notes(host, report.now), gpus: gpus.collect() }
}

fn header(name: Cell, host: &Host, now: Moment) -> Vec<Cell> {
    let readings = host.snapshot.as_ref().map(|snapshot| snapshot.host.clone()).unwrap_or_default();
    let driver = host.inventory.as_ref().and_then(|inventory| inventory.driver_version.as_ref());
    let total = readings.memory_total_bytes.or(host.hello.as_ref().and_then(|hello| hello.memory_total_bytes));
    let cpus = host.hello.as_ref().and_then(|hello| hello.cpu_count).map(|count| count.to_string());
    let relay = host.config.relayed_by.iter().map(|collector| Cell::left(format!("via {collector}")));
    let cells = vec![
        name,
        Cell::left(format!("driver {}", driver.map_or(MISSING, SafeText::as_str))),
        Cell::left(format!("cpu {}", percent(readings.cpu_percent.map(f64::from)))),
        Cell::left(format!(
            "ram {}",
            used_of_total(format_gib(readings.memory_used_bytes(), 0), format_gib(total, 0), "GiB")
        )),
        Cell::left(format!("load {}", used_of_total(fixed(readings.load_1.map(f64::from), 1), cpus, ""))),
        Cell::left(
            host.age(now)
                .map_or_else(|| MISSING.to_owned(), |age| format!("{} old", duration(age, DurationStyle::Precise))),
        ),
    ];
    cells.into_iter().chain(relay).collect()
}

/// Notes about a host with readings: why they are not current, and why GPU readings are missing.
fn notes(host: &Host, now: Moment) -> Vec<(Tone, String)> {
    let mut notes = Vec::new();
    if !matches!(host.link, Link::Live) {
        notes.push(link_text(host, now));
        notes.extend(hint(host));
    }
    let snapshot_error = host.snapshot.as_ref().and_then(|snapshot| snapshot.driver_error.as_ref());
    let error = snapshot_error.or(host.inventory.as_ref().and_then(|inventory| inventory.error.as_ref()));
    if let Some(error) = error {
        notes.push((Tone::Warn, format!("no GPU readings: {}", error.message)));
    } else if host.inventory.is_none() {
        notes.push((Tone::Warn, "no GPU readings: the driver has not answered yet".to_owned()));
    }
    // Without a probe the notes of the snapshot give the reason.
    if host.hello.as_ref().is_some_and(|hello| hello.source == Some(ReadingSource::NvidiaSmi)) {
        let why = host.snapshot.iter().flat_map(|snapshot| &snapshot.notes);
        notes.extend(why.map(|note| (Tone::Warn, note.to_string())));
    }
    // If the host was disconnected for it, its error has these words.
    if let (Some(misbehavior), Link::Live) = (host.misbehavior(now), &host.link) {
        notes.push((Tone::Warn, misbehavior.text()));
    }
    let left_out = host.snapshot.as_ref().map_or(0, |snapshot| snapshot.processes_left_out);
    if left_out > 0 {
        let are = if left_out == 1 { "process is" } else { "processes are" };
        notes.push((Tone::Warn, format!("{left_out} more {are} not listed")));
    }
    notes
}

fn link_text(host: &Host, now: Moment) -> (Tone, String) {
    match &host.link {
        Link::Connecting { .. } | Link::Live | Link::Stale { .. } => (Tone::Warn, no_answer_text(host, now)),
        Link::Down { error, .. } if host.link.is_refused() => (Tone::Warn, format!("refused: {}", error.message)),
        Link::Down { error, .. } => (Tone::Critical, format!("down: {}", error.message)),
        Link::NeedsUser { error, .. } => (Tone::Critical, format!("needs you: {}", error.message)),
    }
}

fn hint(host: &Host) -> Option<(Tone, String)> {
    let hint = host.link.error()?.hint.as_ref()?;
    Some((Tone::Plain, format!("hint: {hint}")))
}

fn gpu_line(position: usize, gpu: &GpuView<'_>, host: &Host, now: Moment) -> Vec<Cell> {
    let reading = gpu.reading;
    let name = gpu.info.name.as_ref().map_or(MISSING, |name| name.strip_prefix("NVIDIA ").unwrap_or(name));
    let mut cells = vec![Cell::right(gpu.info.index.to_string()), Cell::left(name)];
    if let Some(error) = &reading.error {
        cells.push(Cell::left(format!("{}: {}", gpu.state.word(), error.message)).tone(Tone::Critical));
        return cells;
    }
    let limit = reading.power_limit_watts.or(gpu.info.power_limit_watts);
    let utilization = percent(reading.utilization_percent.map(f64::from));
    let power = reading.power_mean_watts.or(reading.power_watts);
    let users = users(position, host);
    cells.extend([
        Cell::right(reading.temperature_celsius.map_or_else(|| MISSING.to_owned(), |degrees| format!("{degrees}C"))),
        Cell::right(utilization),
        Cell::right(used_of_total(
            format_gib(reading.memory_used_bytes, 1),
            format_gib(gpu.info.memory_total_bytes, 1),
            "GiB",
        )),
        Cell::right(used_of_total(fixed(power.map(f64::from), 0), fixed(limit.map(f64::from), 0), "W")),
        Cell::left(state_text(gpu, now)).tone(state_tone(gpu)),
        Cell::left(if users.is_empty() { "-".to_owned() } else { users }),
    ]);
    cells
}

fn state_text(gpu: &GpuView<'_>, now: Moment) -> String {
    if let Some(since) = gpu.suspected_since {
        return format!("stuck? {}", duration(now.since(since), DurationStyle::Column));
    }
    let lasts = matches!(gpu.state, GpuState::Fault | GpuState::Hung | GpuState::Idle | GpuState::Waiting);
    match gpu.since.map(|since| now.since(since)) {
        Some(time) if lasts && time >= Duration::from_secs(60) => {
            format!("{} {}", gpu.state.word(), duration(time, DurationStyle::Column))
        }
        _ => gpu.state.word().to_owned(),
    }
}

fn state_tone(gpu: &GpuView<'_>) -> Tone {
    match gpu.state {
        GpuState::Fault => Tone::Critical,
        GpuState::Hung => gpu.severity.map_or(Tone::Warn, severity_tone),
        GpuState::InUse if gpu.suspected_since.is_some() => Tone::Warn,
        GpuState::InUse => Tone::Busy,
        GpuState::Unknown | GpuState::Free | GpuState::Unused => Tone::Dim,
        GpuState::Waiting | GpuState::Idle => Tone::Plain,
    }
}

/// The users of a GPU, most memory first: `alice 74.0G, bob 1.2G`.
fn users(position: usize, host: &Host) -> String {
    let mut memory: BTreeMap<SafeText, Option<u64>> = BTreeMap::new();
    for process in host.processes() {
        for usage in process.gpus.iter().filter(|usage| usage.gpu.map(usize::from) == Some(position)) {
            let held = memory.entry(owner_label(process)).or_default();
            *held = match (*held, usage.gpu_memory_bytes) {
                (Some(a), Some(b)) => Some(a.saturating_add(b)),
                (a, b) => a.or(b),
            };
        }
    }
    let mut users: Vec<_> = memory.into_iter().collect();
    users.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let parts = users.into_iter().map(|(user, bytes)| match format_gib(bytes, 1) {
        Some(held) => format!("{user} {held}G"),
        None => user.to_string(),
    });
    parts.collect::<Vec<_>>().join(", ")
}

fn fixed(value: Option<f64>, digits: usize) -> Option<String> {
    value.map(|value| format!("{value:.digits$}"))
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| MISSING.to_owned(), |value| format!("{value:.0}%"))
}

/// Formats `74.1/80.0 GiB`. Leaves out an unknown total, and the unit if both are unknown.
fn used_of_total(used: Option<String>, total: Option<String>, unit: &str) -> String {
    let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
    match (used, total) {
        (None, None) => MISSING.to_owned(),
        (Some(used), None) => used + &unit,
        (used, Some(total)) => format!("{}/{total}{unit}", used.unwrap_or_else(|| MISSING.to_owned())),
    }
}

fn format_gib(bytes: Option<u64>, digits: usize) -> Option<String> {
    fixed(bytes.map(|bytes| bytes as f64 / GIB), digits)
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    #[test]
    fn the_table_of_a_fleet_in_every_state() {
        fixture::with_report(|report| insta::assert_snapshot!(table(report, Paint::OFF)));
    }

    #[test]
    fn a_host_that_misbehaves_is_named() {
        for misbehavior in crate::fleet::Misbehavior::ALL {
            let config = std::sync::Arc::new(crate::config::HostConfig::named("hgx-01"));
            let mut host = Host::new(crate::fleet::HostId(0), config, Moment::default());
            let words = misbehavior.text();
            let has_note = |host: &Host| notes(host, Moment::default()).iter().any(|(_, note)| *note == words);
            assert!(!has_note(&host));
            host.apply(crate::fleet::HostUpdate::Misbehaves(misbehavior), Moment::default());
            assert!(!has_note(&host));
            host.link = Link::Live;
            assert!(has_note(&host));
        }
    }

    #[test]
    fn colours_do_not_change_the_text() {
        fixture::with_report(|report| {
            let painted = table(report, Paint::ON);
            assert!(painted.contains("\x1b[1;91mhung? 18m\x1b[0m"), "{painted}");
            let mut plain = String::new();
            let mut pieces = painted.split('\x1b');
            plain += pieces.next().unwrap_or("");
            pieces.for_each(|piece| plain += piece.split_once('m').map_or("", |(_, text)| text));
            assert_eq!(plain, table(report, Paint::OFF));
        });
    }
}
