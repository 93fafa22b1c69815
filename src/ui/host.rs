//! The view of one host: facts, GPUs as cards or as a table, the selected GPU, and the processes.
//!
//! ```text
//!  hgx-02   8 x NVIDIA H100 80GB HBM3   driver 570.86  CUDA 12.8   Linux 6.8.0  x86_64   up 41d   rtt 23 ms
//!  CPU 13%  load 21.0/19.2/18.4 of 112   RAM 167/1007G  swap 0/8G   net in 1.2G/s out 80M/s   IO wait 3%
//!  disk / 41%  /scratch 91% full  /home (nfs4) 63%   NVLink 144 up   ECC 0   users alice bob carol
//!  login alice  sees the whole host   probe 0.1.0: 0.4 ms per sample, 3M, pid 77   every 2s   note ask Bob first
//! ─ ▸GPU 0 ──────────────────────────────── alice 3h12m torchrun ─  ─ GPU 1 ─────────────── alice 3h12m torchrun ─
//! UTIL  97% BANDWIDTH 41% 100%│▇▇▇▇▇▇▇▇▁▇▇▇▇▇▇▇▇▇▇▇▇▇▇▁▇▇▇▇▇▇▇▇▇▇▇▇▁▇▇
//! ```
//!
//! Cards show readings beside a chart:
//!
//! ```text
//! ━ ▸GPU 0 ━━━━━━━━━━━━━━━━━━━━━━ erika 22h torchrun ━  ─ GPU 1 ───────────────────────── bob z idle 42m ─
//!  UTIL  97% BANDWIDTH 41% 100%│▇▇▇▇▇▇▇▇▁▇▇▇▇▇   UTIL   0% BANDWIDTH 0%  100%│▃▃▃▃▃▃
//!  MEM  74/80G                0│██████████████   MEM  44/80G                0│██████▁▁▁▁▁▁
//!  util over 10m                -10m        now
//! ```

use super::areas::TableColumn;
use super::canvas::{Canvas, LineWriter, Segments};
use super::chart::{self, AXIS_COLUMNS, Scale};
use super::format::{
    ShortString, gib, interval, memory, or_dash, percent, plural, rate, rounded, short, shorten_host_name, span,
    used_of_total, wrap,
};
use super::{areas, findings, gpu, gpu_line, host_state, list};
use crate::app::layout::{Cards, HostLayout};
use crate::app::{App, Focus, GpuSummary, HostSummary, Metric, Screen};
use crate::fleet::{Host, Link, Moment, SeriesKey, UNKNOWN_USER, gpu_list};
use crate::wire::{Filesystem, ReadingSource, RecoveryAction, Scope};
use ratatui::layout::Rect;
use ratatui::style::Style;
use std::time::Duration;

/// Draws the view.
pub(super) fn draw(canvas: &mut Canvas<'_>, body: Rect, app: &App, host: &Host, layout: HostLayout, now: Moment) {
    let Some(summary) = app.host_summary(host) else { return };
    let strip = Rect { height: layout.findings_rows, ..body };
    for (y, finding) in (strip.y..strip.bottom()).zip(app.findings().alerts_of_host(host.id)) {
        findings::draw_strip(canvas, Rect { y, height: 1, ..strip }, finding, now);
    }
    let inset = Rect { x: body.x + 1, width: body.width.saturating_sub(2), ..body };
    let facts = Rect { y: strip.bottom(), height: layout.facts_rows, ..inset };
    draw_facts(canvas, facts, app, host, summary, now);
    let gpus = Rect { y: facts.bottom(), height: layout.gpu_rows(), ..body };
    let detail = Rect { y: gpus.bottom(), height: layout.detail_rows, ..body };
    if gpus.height > 0 && host_state::shows_gpus(host, summary) {
        if let Some(cards) = layout.cards {
            draw_cards(canvas, gpus, app, host, summary, cards, now);
        } else {
            // The ages of last values stand still.
            let now = if summary.is_fresh { now } else { host.received_at.unwrap_or(now) };
            draw_table(canvas, gpus, app.screen(), summary, usize::from(layout.visible_gpus), now);
        }
        if let Some(gpu) = summary.gpus.get(app.screen().gpu) {
            gpu::draw_detail(canvas, detail, host, gpu, app.screen().gpu);
        }
        if !summary.is_fresh {
            canvas.dim(Rect { y: gpus.y + 1, height: detail.bottom().saturating_sub(gpus.y + 1), ..body });
        }
    } else if gpus.height > 0 {
        canvas.repeat(body.x, gpus.y, body.width, canvas.theme.glyphs.light.horizontal, canvas.theme.dim);
        let height = (gpus.height + detail.height).saturating_sub(1);
        let inner = Rect { x: body.x + 1, y: gpus.y + 1, width: body.width.saturating_sub(2), height };
        host_state::draw(canvas, inner, app, host, summary, now);
    }
    let y = detail.bottom();
    let processes = Rect { y, height: layout.list_rows.min(body.bottom().saturating_sub(y)), ..body };
    list::draw(canvas, processes, app, now);
}

/// Draws the facts. If there are few rows, the last lines are joined and their least important texts are dropped.
fn draw_facts(canvas: &mut Canvas<'_>, area: Rect, app: &App, host: &Host, summary: &HostSummary, now: Moment) {
    let mut lines = vec![identity_line(canvas, app, host, summary, now), load_line(canvas, host)];
    let (disks, probe) = (disks_and_health_line(canvas, app, host), probe_line(canvas, app, host, now));
    if area.height > 3 {
        lines.extend([disks, probe]);
    } else {
        let mut joined = probe;
        joined.append(3, disks);
        lines.push(joined);
    }
    let mut writer = LineWriter::new(canvas, area);
    for line in lines {
        writer.segments(line);
    }
}

/// A filesystem is coloured from this usage on, the threshold of the rule `disk-full`.
const FULL_PERCENT: u64 = 90;
/// The maximum number of filesystems shown.
const MAX_FILESYSTEMS: usize = 6;
/// The maximum number of users shown.
const MAX_USERS: usize = 6;

/// Name, connection state, GPUs, software versions, uptime and round-trip time.
pub(super) fn identity_line(
    canvas: &Canvas<'_>,
    app: &App,
    host: &Host,
    summary: &HostSummary,
    now: Moment,
) -> Segments {
    let theme = canvas.theme;
    let mut line = Segments::default();
    line.add(20, 0, shorten_host_name(host.name()), theme.focus);
    match host_state::status_text(app, host, summary, now) {
        Some((word, style)) => line.add(19, 2, word, style),
        None => line.add(4, 2, short!("live"), theme.dim),
    }
    if let Some(inventory) = &host.inventory {
        let name = inventory.gpus.first().and_then(|gpu| gpu.name.as_ref());
        if let Some(name) = name {
            // MIG instances are parts of GPUs that are already counted.
            let count = inventory.gpus.iter().filter(|gpu| gpu.mig_parent_uuid.is_none()).count();
            line.add(15, 3, short!("{count} x {name}"), theme.plain);
        }
        if let Some(driver) = &inventory.driver_version {
            line.add(14, 3, short!("driver {driver}"), theme.plain);
        }
        if let Some(cuda) = &inventory.cuda_version {
            line.add(13, 2, short!("CUDA {cuda}"), theme.plain);
        }
    }
    if let Some(hello) = &host.hello {
        if let Some(kernel) = &hello.kernel {
            line.add(8, 3, short!("Linux {kernel}"), theme.plain);
        }
        if let Some(arch) = &hello.arch {
            line.add(6, 2, short!("{arch}"), theme.plain);
        }
    }
    let uptime = host.snapshot.as_ref().and_then(|snapshot| snapshot.host.uptime_seconds);
    if let Some(uptime) = uptime.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        line.add(9, 3, short!("up {}", span(uptime).as_str()), theme.plain);
    }
    if let Some(seconds) = host.clock_error_seconds() {
        let wrong_by = span(Duration::from_secs(seconds.unsigned_abs()));
        let side = if seconds > 0 { "ahead" } else { "behind" };
        line.add(17, 3, short!("clock {} {side}", wrong_by.as_str()), theme.warn);
    }
    if let Some(round_trip) = host.round_trip {
        line.add(10, 3, short!("rtt {}", host_state::milliseconds(round_trip).as_str()), theme.plain);
    }
    line
}

/// CPU, load, memory, network and disk throughput.
pub(super) fn load_line(canvas: &Canvas<'_>, host: &Host) -> Segments {
    let theme = canvas.theme;
    let mut line = Segments::default();
    let Some(snapshot) = &host.snapshot else {
        line.add(9, 0, short!("no readings yet"), theme.dim);
        return line;
    };
    let reading = &snapshot.host;
    line.add(20, 0, short!("CPU {}", percent(reading.cpu_percent.map(rounded)).as_str()), theme.plain);
    if let (Some(one), Some(five), Some(fifteen)) = (reading.load_1, reading.load_5, reading.load_15) {
        line.add(15, 2, short!("load {one:.1}/{five:.1}/{fifteen:.1}"), theme.plain);
        if let Some(cpus) = host.hello.as_ref().and_then(|hello| hello.cpu_count) {
            line.add(14, 1, short!("of {cpus}"), theme.plain);
        }
    }
    let used_of = |name: &str, used: Option<u64>, total: Option<u64>| -> ShortString {
        match (used, total) {
            (Some(used), Some(total)) => short!("{name} {}/{}G", gib(used), gib(total)),
            _ => ShortString::new(),
        }
    };
    line.add(16, 3, used_of("RAM", reading.memory_used_bytes(), reading.memory_total_bytes), theme.plain);
    let swap_used = reading.swap_total_bytes.zip(reading.swap_free_bytes).map(|(all, free)| all.saturating_sub(free));
    if reading.swap_total_bytes.is_some_and(|total| total > 0) {
        line.add(9, 2, used_of("swap", swap_used, reading.swap_total_bytes), theme.plain);
    }
    let (received, sent) = (reading.network_receive_bytes_per_second, reading.network_transmit_bytes_per_second);
    if let (Some(received), Some(sent)) = (received, sent) {
        line.add(10, 3, short!("net in {} out {}", rate(received).as_str(), rate(sent).as_str()), theme.plain);
    }
    let (read, written) = (reading.disk_read_bytes_per_second, reading.disk_write_bytes_per_second);
    if let (Some(read), Some(written)) = (read, written) {
        line.add(8, 3, short!("disk in {} out {}", rate(read).as_str(), rate(written).as_str()), theme.plain);
    }
    for (priority, name, value) in [
        (10, "IO wait", reading.io_wait_percent),
        (8, "IO pressure", reading.pressure_io_percent),
        (7, "memory pressure", reading.pressure_memory_percent),
    ] {
        if let Some(value) = value {
            line.add(priority, 3, short!("{name} {value:.0}%"), theme.plain);
        }
    }
    if let Some(kills) = reading.oom_kills.filter(|kills| *kills > 0) {
        line.add(11, 3, short!("OOM kills since boot {kills}"), theme.plain);
    }
    line
}

/// Filesystems, GPU health and users.
pub(super) fn disks_and_health_line(canvas: &Canvas<'_>, app: &App, host: &Host) -> Segments {
    let theme = canvas.theme;
    let mut line = Segments::default();
    for (index, filesystem) in host.filesystems().iter().take(MAX_FILESYSTEMS).enumerate() {
        let (text, is_bad) = filesystem_text(filesystem);
        let style = if is_bad { theme.warn } else { theme.plain };
        if index == 0 {
            line.add(12, 0, short!("disk"), theme.dim);
        }
        line.add(if is_bad { 18 } else { 12 - index as u8 }, if index == 0 { 1 } else { 2 }, text, style);
    }
    add_nvlinks(canvas, host, &mut line);
    add_errors(canvas, host, &mut line);
    let mut users: Vec<&str> = Vec::new();
    for row in
        app.jobs(host.id).iter().map(|job| &job.row).filter(|row| row.ended_at.is_none() && row.who != UNKNOWN_USER)
    {
        if !users.contains(&row.who.as_str()) {
            users.push(row.who.as_str());
        }
    }
    for (index, user) in users.iter().take(MAX_USERS).enumerate() {
        if index == 0 {
            line.add(5, 3, short!("users"), theme.dim);
        }
        line.add(5, 1, short!("{user}"), theme.plain);
    }
    if users.len() > MAX_USERS {
        line.add(5, 1, short!("+{}", users.len() - MAX_USERS), theme.dim);
    }
    line
}

/// `/scratch 91%`, `/home (nfs4) 63%` or `/data silent 40s`, and whether it needs attention.
fn filesystem_text(filesystem: &Filesystem) -> (ShortString, bool) {
    let kind = if filesystem.kind.starts_with("nfs") { short!(" ({})", filesystem.kind) } else { ShortString::new() };
    let name = short!("{}{}", filesystem.mount_point, kind.as_str());
    if let Some(silent) = filesystem.silent_seconds {
        return (short!("{} silent {silent:.0}s", name.as_str()), true);
    }
    match (filesystem.total_bytes.filter(|total| *total > 0), filesystem.available_bytes) {
        (Some(total), Some(available)) => {
            let percent = u128::from(total.saturating_sub(available)) * 100 / u128::from(total);
            (short!("{} {percent}%", name.as_str()), percent >= u128::from(FULL_PERCENT))
        }
        _ => (short!("{} -", name.as_str()), false),
    }
}

fn add_nvlinks(canvas: &Canvas<'_>, host: &Host, line: &mut Segments) {
    let (mut active, mut all) = (0_u32, 0_u32);
    for (position, (info, _)) in host.gpus().enumerate() {
        let mask = host.gpu_health(position).and_then(|health| health.nvlinks_active);
        if let (Some(count), Some(mask)) = (info.nvlink_count, mask) {
            all += u32::from(count);
            active += mask.count_ones().min(u32::from(count));
        }
    }
    // Unwired links are always down. The rule `nvlink-down` reports links that went down.
    if all > 0 {
        line.add(8, 3, short!("NVLink {active} of {all} up"), canvas.theme.plain);
    }
}

fn add_errors(canvas: &Canvas<'_>, host: &Host, line: &mut Segments) {
    let theme = canvas.theme;
    let health = (0..host.gpus().len()).filter_map(|position| host.gpu_health(position));
    let (mut uncorrected, mut corrected, mut remaps, mut actions) = (None::<u64>, None::<u64>, 0, 0);
    let add = |sum: &mut Option<u64>, value: Option<u64>| {
        *sum = value.map_or(*sum, |value| Some(sum.unwrap_or(0).saturating_add(value)));
    };
    for health in health {
        add(&mut uncorrected, health.ecc_uncorrectable_volatile);
        add(&mut corrected, health.ecc_corrected_volatile);
        let needs_remap = [health.row_remap_pending, health.row_remap_failed, health.retired_pages_pending];
        remaps += u32::from(needs_remap.contains(&Some(true)));
        actions += u32::from(health.recovery_action.is_some_and(|action| action != RecoveryAction::None));
    }
    if let Some(errors) = uncorrected {
        let style = if errors > 0 { theme.warn } else { theme.plain };
        let priority = if errors > 0 { 17 } else { 7 };
        let text = match corrected {
            Some(corrected) => short!("ECC {corrected} corrected, {errors} uncorrected"),
            None => short!("ECC {errors} uncorrected"),
        };
        line.add(priority, 3, text, style);
    }
    if remaps > 0 {
        line.add(17, 3, short!("{remaps} with row remapping problems"), theme.warn);
    }
    if actions > 0 {
        line.add(17, 3, short!("{actions} need a recovery action"), theme.crit);
    }
}

/// Login, scope, source, cost of the probe, reserved GPUs and the note of hosts.toml.
pub(super) fn probe_line(canvas: &Canvas<'_>, app: &App, host: &Host, now: Moment) -> Segments {
    let theme = canvas.theme;
    let mut line = Segments::default();
    if let Link::Down { error, .. } | Link::NeedsUser { error, .. } = &host.link {
        line.add(20, 0, short!("{}", error.message.as_str()), theme.warn);
        let mut next = Segments::default();
        host_state::add_next_attempt(&mut next, canvas, app, host, now);
        if let Some(summary) = app.host_summary(host) {
            host_state::add_last_seen(&mut next, canvas, app, host, summary);
        }
        line.append(3, next);
        return line;
    }
    if let Some(misbehavior) = host.misbehavior(now) {
        line.add(19, 3, short!("{}", misbehavior.short_text()), theme.warn);
    }
    if host.config.is_simulated {
        line.add(18, 3, short!("SIMULATED"), theme.warn);
    }
    if let Some(collector) = &host.config.relayed_by {
        line.add(17, 0, short!("via {collector}"), theme.plain);
    }
    if let Some(hello) = &host.hello {
        if let Some(user) = &hello.login_user {
            line.add(9, 2, short!("login {user}"), theme.dim);
        }
        // A probe in a job or a container sees only a part of the host.
        match &hello.scope {
            Some(Scope::Host) => line.add(6, 3, short!("sees the whole host"), theme.dim),
            Some(Scope::SlurmJob(job)) => line.add(19, 3, short!("sees only Slurm job {job}"), theme.warn),
            Some(Scope::Container(name)) => line.add(19, 3, short!("sees only container {name}"), theme.warn),
            Some(Scope::Unknown) => line.add(19, 3, short!("sees an unknown part of the host"), theme.warn),
            None => {}
        }
        let source = hello.source.as_ref().filter(|source| **source != ReadingSource::Probe);
        match source {
            Some(source) => line.add(18, 3, short!("via {}", source.as_str()), theme.warn),
            None => line.add(8, 3, short!("probe {}", hello.probe_version.as_str()), theme.dim),
        }
        if let Some(pid) = hello.probe_pid {
            line.add(2, 1, short!("(pid {pid})"), theme.dim);
        }
    }
    if let Some(cost) = host.snapshot.as_ref().and_then(|snapshot| snapshot.cost) {
        line.add(7, 2, short!("{:.1} ms per sample", cost.sample_ms), theme.dim);
        if let Some(rss) = cost.rss_bytes {
            line.add(5, 2, memory(rss), theme.dim);
        }
        if let Some(probes) = cost.probes_on_host.filter(|probes| *probes > 1) {
            line.add(4, 2, short!("{probes} probes on this host"), theme.dim);
        }
    }
    line.add(3, 3, short!("every {}", interval(host.interval()).as_str()), theme.dim);
    if !host.config.reserved.is_empty() {
        line.add(14, 3, short!("reserved GPU {}", gpu_list(&host.config.reserved)), theme.plain);
    }
    if let Some(note) = &host.config.note {
        line.add(13, 3, short!("note: {note}"), theme.plain);
    }
    if let Some(note) = host.snapshot.as_ref().and_then(|snapshot| snapshot.notes.first()) {
        line.add(1, 3, short!("{note}"), theme.dim);
    }
    line
}

/// Columns of the readings left of a chart.
const READING_COLUMNS: u16 = 24;
/// Columns of the labels of these readings.
const READING_LABEL_COLUMNS: u16 = 5;

/// Draws the cards and the time axis below them.
pub(super) fn draw_cards(
    canvas: &mut Canvas<'_>,
    area: Rect,
    app: &App,
    host: &Host,
    summary: &HostSummary,
    cards: Cards,
    now: Moment,
) {
    for (position, gpu) in summary.gpus.iter().enumerate() {
        let (row, column) = (position as u16 / cards.per_row, position as u16 % cards.per_row);
        let cell = Rect {
            x: area.x + column * cards.columns,
            y: area.y + row * cards.rows,
            width: cards.columns - u16::from(cards.per_row > 1),
            height: cards.rows,
        };
        draw_card(canvas, cell.intersection(area), app, host, position, gpu, now);
    }
    let y = area.bottom().saturating_sub(1);
    for column in 0..cards.per_row.min(summary.gpus.len() as u16) {
        let x = area.x + column * cards.columns;
        let width = cards.columns - u16::from(cards.per_row > 1);
        let text = short!("{} over {}", app.screen().metric.word(), app.screen().span.word());
        canvas.fit(x + 1, y, READING_COLUMNS, &text, canvas.theme.dim);
        let left = READING_COLUMNS + AXIS_COLUMNS + 1;
        chart::time_axis(canvas, x + left, y, width.saturating_sub(left), app.screen().span);
    }
}

fn draw_card(
    canvas: &mut Canvas<'_>,
    area: Rect,
    app: &App,
    host: &Host,
    position: usize,
    gpu: &GpuSummary,
    now: Moment,
) {
    let theme = canvas.theme;
    let is_selected = app.screen().gpu == position;
    let is_focused = is_selected && app.screen().focus() == Focus::Panes;
    let glyphs = if is_focused { &theme.glyphs.heavy } else { &theme.glyphs.light };
    let rule = if is_focused { theme.focus } else { theme.dim };
    canvas.repeat(area.x, area.y, area.width, glyphs.horizontal, rule);
    let pointer = if is_focused { theme.glyphs.pointer } else { "" };
    let name = short!(" {pointer}{} ", gpu_line::name(gpu).as_str());
    let used = canvas.text(
        area.x + 1,
        area.y,
        area.width.saturating_sub(2),
        &name,
        if is_focused { rule } else { theme.plain },
    );
    let mut right = Segments::default();
    right.add(9, 0, short!(" "), theme.plain);
    gpu::add_occupancy(canvas, app, host.id, gpu, now, &mut right);
    right.add(9, 0, short!(" "), theme.plain);
    let available = area.width.saturating_sub(used + 3);
    right.fit(available);
    right.draw_right(canvas, area.x + used + 2, area.y, available);

    let inner = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    if let Some(error) = &gpu.reading.error {
        for (row, line) in wrap(&error.message, usize::from(area.width.saturating_sub(2))).iter().enumerate() {
            if row < usize::from(inner.height) {
                canvas.text(area.x + 1, inner.y + row as u16, area.width.saturating_sub(1), line, theme.crit);
            }
        }
        return;
    }
    draw_card_readings(canvas, Rect { x: inner.x + 1, width: READING_COLUMNS, ..inner }, gpu, app.screen().metric);
    let left = READING_COLUMNS + 1;
    let chart_area = Rect { x: inner.x + left, width: inner.width.saturating_sub(left), ..inner };
    let metric = app.screen().metric;
    let columns = chart_area.width.saturating_sub(AXIS_COLUMNS);
    let series = SeriesKey::Gpu(position, metric.series());
    let points = chart::read_points(host.history(), series, columns, app.screen().span, now);
    let scale = Scale::for_gpu(canvas, metric, gpu, &points);
    let style = theme.utilization_style(metric == Metric::Utilization && gpu.looks_stuck());
    chart::draw(canvas, chart_area, &points, &scale, style);
}

/// Draws the most important readings that fit. The charted one is highlighted.
fn draw_card_readings(canvas: &mut Canvas<'_>, area: Rect, gpu: &GpuSummary, metric: Metric) {
    let theme = canvas.theme;
    let reading = &gpu.reading;
    let mut lines: Vec<(&str, ShortString, Style, bool)> = vec![
        (
            "UTIL",
            short!(
                "{:>4} BANDWIDTH {}",
                percent(reading.utilization_percent).as_str(),
                percent(reading.memory_utilization_percent).as_str()
            ),
            theme.plain,
            matches!(metric, Metric::Utilization | Metric::MemoryBusy),
        ),
        ("MEM", gpu_line::memory_text(gpu), theme.plain, metric == Metric::Memory),
        ("PWR", gpu_line::power(gpu, true), theme.plain, metric == Metric::Power),
        (
            "TMP",
            temperatures_text(canvas, gpu),
            if gpu.is_hot { theme.warn } else { theme.plain },
            metric == Metric::Temperature,
        ),
    ];
    let (slowed, style) = gpu::clock_reasons(theme, gpu);
    let clock = reading.clock_sm_mhz.map(|mhz| short!("{mhz} MHz"));
    let is_slowed = style == theme.warn;
    // `1410 by HW thermal`: the clock with the reason, if it is limited by more than the usual.
    let clock = match (is_slowed, reading.clock_sm_mhz) {
        (true, Some(mhz)) => short!("{mhz} by {slowed}"),
        (true, None) => short!("by {slowed}"),
        (false, _) => or_dash(clock.as_deref()),
    };
    lines.push(("CLK", clock, choose_style(is_slowed, theme.warn, theme.plain), false));
    if let (Some(received), Some(sent)) =
        (reading.nvlink_receive_bytes_per_second, reading.nvlink_transmit_bytes_per_second)
    {
        lines.push(("NVL", short!("{} {}", rate(received).as_str(), rate(sent).as_str()), theme.plain, false));
    }
    if let (Some(received), Some(sent)) =
        (reading.pcie_receive_bytes_per_second, reading.pcie_transmit_bytes_per_second)
    {
        lines.push(("PCI", short!("{} {}", rate(received).as_str(), rate(sent).as_str()), theme.plain, false));
    }
    if let Some(errors) = gpu.ecc_uncorrectable {
        lines.push(("ECC", short!("{errors}"), choose_style(errors > 0, theme.warn, theme.plain), false));
    }
    for (row, (label, text, style, is_charted)) in lines.into_iter().enumerate().take(usize::from(area.height)) {
        let y = area.y + row as u16;
        let width = READING_LABEL_COLUMNS;
        let value = Rect { x: area.x + width, width: area.width.saturating_sub(width), ..area };
        canvas.fit(value.x, y, value.width, &text, style);
        canvas.text(area.x, y, area.width, label, if is_charted { theme.focus } else { theme.dim });
    }
}

fn choose_style(is_worse: bool, worse: Style, plain: Style) -> Style {
    if is_worse { worse } else { plain }
}

/// `71°`, or `71° mem 78°` with the memory temperature.
fn temperatures_text(canvas: &Canvas<'_>, gpu: &GpuSummary) -> ShortString {
    let core = gpu_line::temperature(canvas.theme, gpu);
    match gpu.reading.memory_temperature_celsius {
        Some(memory) => short!("{} mem {memory}{}", core.as_str(), canvas.theme.glyphs.degree),
        None => core,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Bar,
    Utilization,
    MemoryBusy,
    Memory,
    Temperature,
    Power,
    SmClock,
    MemoryClock,
    Fan,
    PerformanceState,
    User,
    Sparkline,
    Reasons,
}

/// The columns of the table in order.
const COLUMNS: [TableColumn<Column>; 13] = [
    (Column::Bar, "", 14, 20),
    (Column::Utilization, "UTIL", 4, 19),
    (Column::MemoryBusy, "BANDWIDTH", 9, 13),
    (Column::Memory, "MEM", 9, 18),
    (Column::Temperature, "TEMP", 4, 17),
    (Column::Power, "POWER", 9, 16),
    (Column::SmClock, "CLK MHz", 7, 12),
    (Column::MemoryClock, "MEM MHz", 7, 8),
    (Column::Fan, "FAN", 4, 9),
    (Column::PerformanceState, "P", 2, 10),
    (Column::User, "USER", 8, 15),
    (Column::Sparkline, "5 MIN", 30, 7),
    (Column::Reasons, "LIMITED BY", 24, 11),
];

/// Draws the title, the column headers and the visible GPUs.
pub(super) fn draw_table(
    canvas: &mut Canvas<'_>,
    area: Rect,
    screen: &Screen,
    summary: &HostSummary,
    shown: usize,
    now: Moment,
) {
    let focused = screen.focus() == Focus::Panes;
    let theme = canvas.theme;
    let glyphs = if focused { &theme.glyphs.heavy } else { &theme.glyphs.light };
    let style = if focused { theme.focus } else { theme.dim };
    canvas.repeat(area.x, area.y, area.width, glyphs.horizontal, style);
    let count = summary.gpus.len();
    let pointer = if focused { theme.glyphs.pointer } else { "" };
    let top = if screen.gpu >= shown { screen.gpu + 1 - shown } else { 0 };
    let title = if shown < count {
        short!(" {pointer}GPUs {}-{} of {count} ", top + 1, (top + shown).min(count))
    } else {
        short!(" {pointer}{count} GPU{} ", plural(count))
    };
    canvas.text(area.x + 1, area.y, area.width.saturating_sub(2), &title, if focused { style } else { theme.plain });

    let index_width = 4;
    let columns = areas::fitting_columns(&COLUMNS, area.width.saturating_sub(index_width + 2));
    let mut x = area.x + 1;
    canvas.right(x, area.y + 1, index_width - 1, "GPU", theme.dim);
    x += index_width;
    for &(column, head, width, _) in &columns {
        match column {
            Column::Bar | Column::User | Column::Reasons | Column::Sparkline => {
                canvas.text(x, area.y + 1, width, head, theme.dim);
            }
            _ => canvas.right(x, area.y + 1, width, head, theme.dim),
        }
        x += width + 1;
    }
    for (row, (position, gpu)) in summary.gpus.iter().enumerate().skip(top).take(shown).enumerate() {
        let line = Rect { x: area.x, y: area.y + 2 + row as u16, width: area.width, height: 1 };
        let selected = focused && position == screen.gpu;
        if selected {
            canvas.text(line.x, line.y, 1, theme.glyphs.pointer, theme.focus);
        }
        draw_table_row(canvas, line, &columns, gpu, now, if selected { theme.focus } else { theme.plain });
    }
}

fn draw_table_row(
    canvas: &mut Canvas<'_>,
    line: Rect,
    columns: &[TableColumn<Column>],
    gpu: &GpuSummary,
    now: Moment,
    style: Style,
) {
    let (theme, y) = (canvas.theme, line.y);
    let index = match gpu.instance {
        Some(instance) => short!("{}{instance}", theme.glyphs.last_child),
        None => short!("{}", gpu.index),
    };
    canvas.right(line.x + 1, y, 3, &index, style);
    let mut x = line.x + 5;
    for &(column, _, width, _) in columns {
        match column {
            Column::Bar => gpu_line::state(canvas, x, y, width, gpu, now),
            Column::User => {
                gpu_line::user(canvas, x, y, width, gpu);
            }
            Column::Sparkline => {
                let style = theme.utilization_style(gpu.looks_stuck());
                chart::sparkline(canvas, Rect { x, y, width, height: 1 }, &gpu.sparkline, style);
            }
            Column::Reasons if gpu.reading.error.is_some() => {
                let message = gpu.reading.error.as_ref().map_or("", |error| error.message.as_str());
                canvas.fit(x, y, width, message, theme.crit);
            }
            Column::Reasons => {
                let (text, style) = gpu::clock_reasons(theme, gpu);
                canvas.fit(x, y, width, &text, style);
            }
            Column::Temperature => {
                let style = if gpu.is_hot { theme.warn } else { style };
                canvas.right(x, y, width, &gpu_line::temperature(theme, gpu), style);
            }
            _ => canvas.right(x, y, width, &table_value(column, gpu), style),
        }
        x += width + 1;
    }
}

fn table_value(column: Column, gpu: &GpuSummary) -> ShortString {
    let reading = &gpu.reading;
    match column {
        Column::Utilization => percent(reading.utilization_percent),
        Column::MemoryBusy => percent(reading.memory_utilization_percent),
        Column::Memory => used_of_total(reading.memory_used_bytes, gpu.memory_total_bytes),
        Column::Power => gpu_line::power(gpu, true),
        Column::SmClock => or_dash(reading.clock_sm_mhz),
        Column::MemoryClock => or_dash(reading.clock_memory_mhz),
        Column::Fan => percent(reading.fan_percent),
        Column::PerformanceState => or_dash(reading.performance_state.map(|state| short!("P{state}")).as_deref()),
        Column::Bar | Column::User | Column::Sparkline | Column::Reasons | Column::Temperature => ShortString::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_with_the_lowest_priority_are_dropped() {
        let headers = |width| {
            areas::fitting_columns(&COLUMNS, width).iter().map(|(_, head, _, _)| *head).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(headers(34), " UTIL MEM TEMP");
        assert_eq!(headers(74), " UTIL BANDWIDTH MEM TEMP POWER CLK MHz USER");
        assert_eq!(areas::fitting_columns(&COLUMNS, 200).len(), COLUMNS.len());
    }
}
