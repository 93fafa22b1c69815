//! One host in full: its facts, all its GPUs with every reading, the selected GPU's details, its processes.
//!
//! ```text
//!  hgx-02   8 x NVIDIA H100 80GB HBM3   driver 570.86  CUDA 12.8   Linux 6.8.0  x86_64   up 41d   rtt 23 ms
//!  CPU 13%  load 21.0/19.2/18.4 of 112   RAM 167/1007G  swap 0/8G   IO wait 3%
//!  login alice   scope: the whole host   probe 0.1.0: 0.4 ms a sample, 3M, pid 77
//! ─ GPUs 8 ─────────────────────────────────────────────────────────────────────────
//!  GPU             GPU% MEM-BUSY  MEMORY TEMP     POWER    SM MHz FAN P USER
//! ▸  0 ━━━━━━━━━━╸  97%      41%  74/80G  71°  640/700W 1980/1980   - 0 alice
//! ─ GPU 0  GPU-8f3a1c2e  0000:9B:00.0 ──────────────────────────────────────────────
//! ```

use super::flow::Flow;
use super::format::{Short, gib, interval, memory, or_dash, short, span};
use super::pen::Pen;
use super::segments::Segments;
use super::{gpu_detail, gpu_table, host_state, list};
use crate::app::arrange::{HostShape, TABLE_HEAD_ROWS};
use crate::app::{App, HostFigures};
use crate::fleet::{Host, Link, Moment};
use crate::wire::Scope;
use ratatui::layout::Rect;
use std::time::Duration;

/// Draws a host in full.
pub(super) fn draw(pen: &mut Pen<'_>, body: Rect, app: &App, host: &Host, shape: HostShape, now: Moment) {
    let Some(figures) = app.figures(host) else { return };
    let facts = Rect { x: body.x + 1, width: body.width.saturating_sub(2), height: shape.facts_rows, ..body };
    draw_facts(pen, facts, app, host, figures, now);
    let mut y = facts.bottom();
    if shape.gpus_shown > 0 {
        let table = Rect { y, height: shape.gpus_shown + TABLE_HEAD_ROWS, ..body };
        y = table.bottom();
        if host_state::shows_gpus(app, host, figures) {
            gpu_table::draw(pen, table, app.screen(), figures, usize::from(shape.gpus_shown), now);
            let detail = Rect { y, height: shape.detail_rows, ..body };
            if let Some(gpu) = figures.gpus.get(app.screen().gpu) {
                gpu_detail::draw(pen, detail, host, gpu, app.screen().gpu);
            }
            if !figures.is_fresh {
                pen.dim(Rect { y: table.y + 1, height: detail.bottom().saturating_sub(table.y + 1), ..body });
            }
        } else {
            let reason = Rect {
                x: body.x + 1,
                y: table.y,
                width: body.width.saturating_sub(2),
                height: table.height + shape.detail_rows,
            };
            pen.repeat(body.x, reason.y, body.width, pen.theme.glyphs.light.horizontal, pen.theme.dim);
            let inside = Rect { y: reason.y + 1, height: reason.height.saturating_sub(1), ..reason };
            host_state::draw(pen, inside, app, host, figures, now);
        }
        y += shape.detail_rows;
    }
    let processes = Rect { y, height: shape.list_rows.min(body.bottom().saturating_sub(y)), ..body };
    list::draw(pen, processes, app, now);
}

fn draw_facts(pen: &mut Pen<'_>, area: Rect, app: &App, host: &Host, figures: &HostFigures, now: Moment) {
    let lines = [who(pen, app, host, figures, now), load(pen, host), probe(pen, host)];
    let mut flow = Flow::new(pen, area);
    for line in lines {
        flow.segments(line);
    }
}

fn who(pen: &Pen<'_>, app: &App, host: &Host, figures: &HostFigures, now: Moment) -> Segments {
    let theme = pen.theme;
    let mut line = Segments::default();
    line.add(20, 0, short!("{}", host.name().as_str()), theme.focus);
    match host_state::word(app, host, figures, now) {
        Some((word, style)) => line.add(19, 2, word, style),
        None => line.add(4, 2, short!("live"), theme.dim),
    }
    if let Some(inventory) = &host.inventory {
        let name = inventory.gpus.first().and_then(|gpu| gpu.name.as_ref());
        if let Some(name) = name {
            line.add(15, 3, short!("{} x {name}", inventory.gpus.len()), theme.plain);
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
    if let Some(round_trip) = host.round_trip {
        line.add(10, 3, short!("rtt {}", host_state::milliseconds(round_trip).as_str()), theme.plain);
    }
    line
}

fn load(pen: &Pen<'_>, host: &Host) -> Segments {
    let theme = pen.theme;
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
    let used_of = |name: &str, used: Option<u64>, total: Option<u64>| -> Short {
        match (used, total) {
            (Some(used), Some(total)) => short!("{name} {}/{}G", gib(used), gib(total)),
            _ => Short::new(),
        }
    };
    line.add(16, 3, used_of("RAM", reading.memory_used_bytes(), reading.memory_total_bytes), theme.plain);
    let swap_used = reading.swap_total_bytes.zip(reading.swap_free_bytes).map(|(all, free)| all.saturating_sub(free));
    if reading.swap_total_bytes.is_some_and(|total| total > 0) {
        line.add(9, 2, used_of("swap", swap_used, reading.swap_total_bytes), theme.plain);
    }
    for (keep, name, value) in [
        (10, "IO wait", reading.io_wait_percent),
        (8, "IO pressure", reading.pressure_io_percent),
        (7, "memory pressure", reading.pressure_memory_percent),
    ] {
        if let Some(value) = value {
            line.add(keep, 3, short!("{name} {value:.0}%"), theme.plain);
        }
    }
    if let Some(kills) = reading.oom_kills.filter(|kills| *kills > 0) {
        line.add(11, 3, short!("OOM kills since boot {kills}"), theme.plain);
    }
    line
}

fn probe(pen: &Pen<'_>, host: &Host) -> Segments {
    let theme = pen.theme;
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
            None => {}
        }
        let source = hello.source.as_ref().filter(|source| ***source != *"probe");
        match source {
            Some(source) => line.add(8, 3, short!("via {source}"), theme.warn),
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
    if let Some(note) = host.snapshot.as_ref().and_then(|snapshot| snapshot.notes.first()) {
        line.add(1, 3, short!("{note}"), theme.dim);
    }
    line
}
