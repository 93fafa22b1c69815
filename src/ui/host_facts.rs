//! The facts of one host, a line each: who it is, its load, its disks and health, the probe.

use super::canvas::Canvas;
use super::format::{ShortString, gib, interval, memory, or_dash, rate, short, shorten_host_name, span};
use super::host_state;
use super::segments::Segments;
use crate::app::{App, HostSummary};
use crate::fleet::{Host, Link, Moment, UNKNOWN_USER, gpu_list};
use crate::wire::{Filesystem, ReadingSource, RecoveryAction, Scope};
use std::time::Duration;

/// From here on a filesystem is worth a colour (diagnosis sheet, rule `disk-full`).
const FULL_PERCENT: u64 = 90;
/// Filesystems that are told.
const MAX_FILESYSTEMS: usize = 6;
/// Users that are told.
const MAX_USERS: usize = 6;

/// What it is, and how it is reached.
pub(super) fn identity(canvas: &Canvas<'_>, app: &App, host: &Host, summary: &HostSummary, now: Moment) -> Segments {
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
            // Instances are parts of GPUs that are counted already.
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

/// What its processors and its memory do.
pub(super) fn load(canvas: &Canvas<'_>, host: &Host) -> Segments {
    let theme = canvas.theme;
    let mut line = Segments::default();
    let Some(snapshot) = &host.snapshot else {
        line.add(9, 0, short!("no readings yet"), theme.dim);
        return line;
    };
    let reading = &snapshot.host;
    let percent = |percent: Option<f32>| percent.map(|percent| short!("{percent:.0}%"));
    line.add(20, 0, short!("CPU {}", or_dash(percent(reading.cpu_percent).as_deref()).as_str()), theme.plain);
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

/// Filesystems, then what the GPUs' health comes to, then who works there.
pub(super) fn disks_and_health(canvas: &Canvas<'_>, app: &App, host: &Host) -> Segments {
    let theme = canvas.theme;
    let mut line = Segments::default();
    for (index, filesystem) in host.filesystems().iter().take(MAX_FILESYSTEMS).enumerate() {
        let (words, is_bad) = filesystem_text(filesystem);
        let style = if is_bad { theme.warn } else { theme.plain };
        if index == 0 {
            line.add(12, 0, short!("disk"), theme.dim);
        }
        line.add(if is_bad { 18 } else { 12 - index as u8 }, if index == 0 { 1 } else { 2 }, words, style);
    }
    nvlinks(canvas, host, &mut line);
    errors(canvas, host, &mut line);
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

/// `/scratch 91%`, `/home (nfs4) 63%`, `/data silent 40s`; whether it needs somebody.
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

fn nvlinks(canvas: &Canvas<'_>, host: &Host, line: &mut Segments) {
    let (mut active, mut all) = (0_u32, 0_u32);
    for (position, (info, _)) in host.gpus().enumerate() {
        let mask = host.gpu_health(position).and_then(|health| health.nvlinks_active);
        if let (Some(count), Some(mask)) = (info.nvlink_count, mask) {
            all += u32::from(count);
            active += mask.count_ones().min(u32::from(count));
        }
    }
    // A link that is not wired is down for ever; the rule nvlink-down tells of one that was up.
    if all > 0 {
        line.add(8, 3, short!("NVLink {active} of {all} up"), canvas.theme.plain);
    }
}

fn errors(canvas: &Canvas<'_>, host: &Host, line: &mut Segments) {
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
        let words = match corrected {
            Some(corrected) => short!("ECC {corrected} corrected, {errors} not"),
            None => short!("ECC {errors} not corrected"),
        };
        line.add(priority, 3, words, style);
    }
    if remaps > 0 {
        line.add(17, 3, short!("{remaps} with rows to remap"), theme.warn);
    }
    if actions > 0 {
        line.add(17, 3, short!("{actions} to be reset"), theme.crit);
    }
}

/// What is run there, what it costs, what it cannot see; what hosts.toml says of the host.
pub(super) fn probe(canvas: &Canvas<'_>, host: &Host) -> Segments {
    let theme = canvas.theme;
    let mut line = Segments::default();
    if let Link::Down { error, .. } | Link::NeedsUser { error, .. } = &host.link {
        line.add(20, 0, short!("{}", error.message.as_str()), theme.warn);
        return line;
    }
    if let Some(hello) = &host.hello {
        if let Some(user) = &hello.login_user {
            line.add(9, 0, short!("login {user}"), theme.dim);
        }
        // Whoever sees only a part must not take it for the whole.
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
        line.add(7, 2, short!("{:.1} ms a sample", cost.sample_ms), theme.dim);
        if let Some(rss) = cost.rss_bytes {
            line.add(5, 2, memory(rss), theme.dim);
        }
        if let Some(probes) = cost.probes_on_host.filter(|probes| *probes > 1) {
            line.add(4, 2, short!("{probes} probes there"), theme.dim);
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
