//! One host: its frame with name and sums, and inside it its GPUs, or what keeps them from being seen.
//!
//! ```text
//! ┏━ ▸hgx-04 ━━ 5 busy  2 hung?  1 free   590/640G ━┓
//! ┃0 ━━━━━━━━━━╸  95% 74/80G 76° 656/700W erika     ┃
//! ┗━ cpu 3%  ram 201/1007G ━━━━━━━━━━━ load 2/112 ━┛
//! ```

use super::findings::severity_style;
use super::format::{columns, gib, short, whole};
use super::gpu_columns::{FigureWidths, GpuColumns};
use super::header::add_counts;
use super::pen::Pen;
use super::segments::Segments;
use super::{gpu_line, host_state, layout};
use crate::app::arrange::{GridShape, PaneFrame};
use crate::app::{App, HostFigures};
use crate::fleet::{Host, Link, Moment};
use crate::wire::ReadingSource;
use crate::wire::format::{DurationStyle, duration};
use ratatui::layout::Rect;
use ratatui::style::Style;

/// What all panes of a grid share.
pub(super) struct Shared<'a> {
    /// The state.
    pub(super) app: &'a App,
    /// Level and size.
    pub(super) shape: GridShape,
    /// How wide figures are.
    pub(super) widths: FigureWidths,
    /// Columns of the longest name.
    pub(super) name_columns: u16,
    /// The moment of the frame.
    pub(super) now: Moment,
}

/// Draws a host's pane.
pub(super) fn draw(
    pen: &mut Pen<'_>,
    area: Rect,
    shared: &Shared<'_>,
    host: &Host,
    figures: &HostFigures,
    focused: bool,
) {
    let (app, shape, now) = (shared.app, &shared.shape, shared.now);
    let frame_style = if focused { pen.theme.focus } else { pen.theme.dim };
    let glyphs = if focused { &pen.theme.glyphs.heavy } else { &pen.theme.glyphs.light };
    match shape.frame {
        PaneFrame::Boxed => pen.outline(area, glyphs, frame_style),
        PaneFrame::Rule => pen.repeat(area.x, area.y, area.width, glyphs.horizontal, frame_style),
        PaneFrame::Bare => {
            host_line(pen, area, shared, host, figures, focused);
            return;
        }
    }
    title(pen, area, app, host, figures, now, focused);
    if shape.frame == PaneFrame::Boxed && matches!(host.link, Link::Live | Link::Stale { .. }) {
        footer(pen, Rect { y: area.bottom() - 1, height: 1, ..area }, host, figures.is_fresh);
    }
    let inside = layout::inside(area, shape.frame);
    if !host_state::shows_gpus(app, host, figures) {
        host_state::draw(pen, inside, app, host, figures, now);
        return;
    }
    let columns = GpuColumns::of(shape.cell_columns, shared.widths);
    let capacity = usize::from(inside.height) * usize::from(shape.inner_columns);
    let shown = if figures.gpus.len() > capacity { capacity.saturating_sub(1) } else { figures.gpus.len() };
    for (position, gpu) in figures.gpus.iter().enumerate().take(shown) {
        if let Some(cell) = layout::gpu_cell(inside, shape, position) {
            gpu_line::draw(pen, cell, &columns, gpu, now);
        }
    }
    if let (true, Some(cell)) = (shown < figures.gpus.len(), layout::gpu_cell(inside, shape, shown)) {
        let more = short!("{} more GPUs", figures.gpus.len() - shown);
        pen.fit(cell.x, cell.y, cell.width, &more, pen.theme.dim);
    }
    if !figures.is_fresh {
        pen.dim(inside);
    }
    host_state::below_gpus(pen, inside, shape, figures, host, now);
}

/// The name on the left, sums or the state of the connection on the right.
pub(super) fn title(
    pen: &mut Pen<'_>,
    area: Rect,
    app: &App,
    host: &Host,
    figures: &HostFigures,
    now: Moment,
    focused: bool,
) {
    if area.width < 12 {
        pen.fit_middle(area.x, area.y, area.width, host.name(), pen.theme.plain);
        return;
    }
    let mut right = Segments::default();
    if let Some((word, style)) = host_state::word(app, host, figures, now) {
        right.add(9, 0, word, style);
    } else {
        add_sums(&mut right, pen, figures);
    }
    let room = area.width - 6;
    let name_wanted = columns(host.name()).min(12) as u16 + u16::from(focused);
    right.fit(room.saturating_sub(name_wanted + 1));
    let name_style = if focused { pen.theme.focus } else { pen.theme.plain };
    let name_room = room.saturating_sub(right.width() + 1 + u16::from(focused));
    let start = area.x + 2;
    pen.text(start, area.y, 1, " ", Style::new());
    let mut x = start + 1;
    if focused {
        x += pen.text(x, area.y, 1, pen.theme.glyphs.pointer, name_style);
    }
    let mark = app.findings().mark_of_host(host.id);
    let mark_room = u16::from(app.is_pinned(host.name())) + if mark.is_some() { 2 } else { 0 };
    x += pen.fit_middle(x, area.y, name_room.saturating_sub(mark_room), host.name(), name_style);
    if app.is_pinned(host.name()) {
        x += pen.text(x, area.y, 1, "*", pen.theme.dim);
    }
    if let Some(severity) = mark {
        pen.text(x, area.y, 1, " ", Style::new());
        x += 1 + pen.text(x + 1, area.y, 1, "!", severity_style(pen.theme, severity));
    }
    pen.text(x, area.y, 1, " ", Style::new());
    let width = right.width();
    if width > 0 {
        let at = area.right() - 3 - width;
        pen.text(at - 1, area.y, 1, " ", Style::new());
        right.draw(pen, at, area.y, width);
        pen.text(at + width, area.y, 1, " ", Style::new());
    }
}

/// CPU and memory on the left, load on the right.
fn footer(pen: &mut Pen<'_>, line: Rect, host: &Host, is_fresh: bool) {
    let Some(snapshot) = host.snapshot.as_ref().filter(|_| line.width >= 16) else { return };
    let reading = &snapshot.host;
    let style = if is_fresh { pen.theme.plain } else { pen.theme.dim };
    let mut left = Segments::default();
    // Less is known without a probe; who looks at the pane should know why.
    let source = host.hello.as_ref().and_then(|hello| hello.source.as_ref());
    if let Some(source) = source.filter(|source| **source != ReadingSource::Probe) {
        left.add(4, 0, short!("via {}", source.as_str()), pen.theme.warn);
    }
    if let Some(cpu) = reading.cpu_percent {
        left.add(3, 1, short!("cpu {}%", whole(cpu)), style);
    }
    if let (Some(used), Some(total)) = (reading.memory_used_bytes(), reading.memory_total_bytes) {
        left.add(2, 1, short!("ram {}/{}G", gib(used), gib(total)), style);
    }
    let mut right = Segments::default();
    let cpus = host.hello.as_ref().and_then(|hello| hello.cpu_count);
    match (reading.load_1, cpus) {
        (Some(load), Some(cpus)) => right.add(1, 0, short!("load {}/{cpus}", whole(load)), style),
        (Some(load), None) => right.add(1, 0, short!("load {}", whole(load)), style),
        (None, _) => {}
    }
    let room = line.width - 6;
    left.fit(room);
    right.fit(room.saturating_sub(left.width() + 2));
    for (words, at) in [(&left, line.x + 3), (&right, line.right() - 3 - right.width())] {
        let width = words.width();
        if width > 0 {
            pen.text(at - 1, line.y, 1, " ", Style::new());
            words.draw(pen, at, line.y, width);
            pen.text(at + width, line.y, 1, " ", Style::new());
        }
    }
}

/// A host in one line: `▸hgx-04  ▇▇▇▇??▇▇  6 busy 2 hung?   590/640G`.
fn host_line(pen: &mut Pen<'_>, line: Rect, shared: &Shared<'_>, host: &Host, figures: &HostFigures, focused: bool) {
    let theme = pen.theme;
    let style = if focused { theme.focus } else { theme.plain };
    if focused {
        pen.text(line.x, line.y, 1, theme.glyphs.pointer, style);
    }
    let name_width = shared.name_columns.clamp(6, 12).min(line.width.saturating_sub(2));
    pen.fit_middle(line.x + 1, line.y, name_width, host.name(), style);
    if let Some(severity) = shared.app.findings().mark_of_host(host.id) {
        pen.text(line.x + 1 + name_width, line.y, 1, "!", severity_style(theme, severity));
    }
    let mut x = line.x + 2 + name_width;
    let word = host_state::word(shared.app, host, figures, shared.now);
    if !figures.gpus.is_empty() && matches!(host.link, Link::Live | Link::Stale { .. }) {
        // A count of what is left out stands behind as many cells as there is room for.
        let room = usize::from(line.right().saturating_sub(x));
        let shown = if figures.gpus.len() > room { room.saturating_sub(4) } else { figures.gpus.len() };
        for gpu in figures.gpus.iter().take(shown) {
            let (glyph, style) = match gpu.state {
                _ if gpu.reading.error.is_some() => ("!", theme.crit),
                crate::fleet::GpuState::InUse => {
                    (gpu_line::level(theme, f32::from(gpu.reading.utilization_percent.unwrap_or(0))), theme.busy)
                }
                state => (gpu_line::state_glyph(theme, state), gpu_line::state_style(theme, state)),
            };
            x += pen.text(x, line.y, 1, glyph, style);
        }
        if shown < figures.gpus.len() {
            x += pen.text(x, line.y, 4, &short!("+{}", figures.gpus.len() - shown), theme.dim);
        }
        if !figures.is_fresh {
            pen.dim(Rect { x: line.x + 2 + name_width, width: x.saturating_sub(line.x + 2 + name_width), ..line });
        }
        x += 2;
    }
    let mut right = Segments::default();
    if let Some((word, style)) = word {
        right.add(9, 0, word, style);
        if let Some(error) = host.link.error() {
            let room = line.right().saturating_sub(x + right.width() + 2);
            right.draw(pen, x, line.y, line.right().saturating_sub(x));
            pen.fit(x + right.width() + 2, line.y, room, &error.message, theme.dim);
            return;
        }
    } else {
        add_sums(&mut right, pen, figures);
    }
    let room = line.right().saturating_sub(x);
    right.fit(room);
    right.draw(pen, x, line.y, room);
}

/// Adds what a host has in all: `6 busy 2 free  330/640G`. Never a mean: a hung host would look best.
fn add_sums(line: &mut Segments, pen: &Pen<'_>, figures: &HostFigures) {
    let totals = &figures.totals;
    add_counts(line, pen, totals, 1);
    if let (Some(used), Some(total)) = (totals.memory_used_bytes, totals.memory_total_bytes) {
        line.add(7, 2, short!("{}/{}G", gib(used), gib(total)), pen.theme.plain);
    } else if let Some(gpu) = figures.gpus.iter().find(|gpu| gpu.is_unified) {
        line.add(7, 2, gpu_line::memory_in_words(gpu), pen.theme.plain);
    }
}

/// How long ago, for a title: `4m12s` under an hour, else as every span.
pub(super) fn since_words(since: Moment, now: Moment) -> super::format::Short {
    short!("{}", duration(now.since(since), DurationStyle::Ticking))
}
