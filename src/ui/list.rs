//! The combined list: the jobs and processes of all hosts, or of one.
//!
//! ```text
//! ╭─ Processes 1-3 of 30 ───────────────────────────────────── sort trouble, mine, memory  group job ─╮
//! │ HOST   GPU       PID USER      GMEM  SM%  TIME STATE        COMMAND                               │
//! │▸hgx-04 4,5     12001 dmitri    140G  100 9h40m hung? 18m      python sft.py --fsdp                │
//! │ hgx-02 0-7      5061 erika     495G   96   55m              + x8 torchrun --nproc_per_node 8      │
//! │ hgx-06 7       24741 fumi       71G   99   12m                python gan.py --res 1024            │
//! ╰─ ▼ 27 more ───────────────────────────────────────────────────────────────── Tab: the keys here ──╯
//! ```

use super::findings::severity_style;
use super::format::{Short, age, brief_span, columns, memory, named, or_dash, short, without_folders};
use super::gpu_line;
use super::list_columns::{Column, list_columns};
use super::pen::Pen;
use super::segments::Segments;
use crate::app::App;
use crate::app::arrange::LIST_FRAME_ROWS;
use crate::fleet::{
    GpuState, Group, Head, HeadKey, ListRow, Moment, ProcessTrouble, Row, SortKey, Unfold, gpu_list,
    program_and_arguments,
};
use crate::wire::ProcessState;
use ratatui::layout::Rect;
use ratatui::style::Style;

/// Draws the list into a box.
pub(super) fn draw(pen: &mut Pen<'_>, area: Rect, app: &App, now: Moment) {
    if area.height < LIST_FRAME_ROWS || area.width < 10 {
        return;
    }
    let focused = app.screen().list_focused();
    let glyphs = if focused { &pen.theme.glyphs.heavy } else { &pen.theme.glyphs.light };
    pen.outline(area, glyphs, if focused { pen.theme.focus } else { pen.theme.dim });
    let rows = app.rows();
    let capacity = usize::from(area.height - LIST_FRAME_ROWS);
    let cursor = &app.screen().list;
    let top = cursor.top(rows.len(), capacity);
    let shown = &rows[top..(top + capacity).min(rows.len())];
    title(pen, area, app, top, shown.len());
    bottom(pen, area, &rows[top + shown.len()..], top, focused);

    // A column before the first for the pointer, and one for tags while there are any.
    let tags = u16::from(!cursor.tagged().is_empty());
    let inside = Rect { x: area.x + 2 + tags, y: area.y + 1, width: area.width - 3 - tags, height: area.height - 2 };
    // Rows that stand above several hosts say how many: `hgx-01 +3`.
    let more = if matches!(cursor.order().group, Group::Across | Group::User) { 3 } else { 0 };
    let host = if app.screen().only_host().is_some() { 0 } else { longest_host(app) + more };
    let places = list_columns(inside.width, host);
    heads(pen, inside, &places, app);
    if rows.is_empty() {
        pen.fit(inside.x, inside.y + 1, inside.width, empty_words(app), pen.theme.dim);
    }
    for (index, row) in shown.iter().enumerate() {
        let selected = focused && top + index == cursor.index();
        let is_last_child = rows.get(top + index + 1).is_none_or(|next| next.depth < row.depth);
        let line = Rect { y: inside.y + 1 + index as u16, height: 1, ..inside };
        draw_row(pen, line, &places, row, &RowLook { app, selected, is_last_child, group: cursor.order().group, now });
    }
}

/// Why there are no rows.
fn empty_words(app: &App) -> &'static str {
    match (app.rows_kept().1, app.totals().hosts_covered) {
        (1.., _) => "nothing fits; Esc shows all",
        (_, 1..) => "no process uses a GPU",
        _ => "no data yet",
    }
}

fn longest_host(app: &App) -> u16 {
    app.fleet().hosts().iter().map(|host| columns(host.name())).max().unwrap_or(0) as u16
}

fn title(pen: &mut Pen<'_>, area: Rect, app: &App, top: usize, shown: usize) {
    let rows = app.rows().len();
    let theme = pen.theme;
    let focused = app.screen().list_focused();
    let style = if focused { theme.focus } else { theme.plain };
    let mut left = Segments::default();
    let pointer = if focused { theme.glyphs.pointer } else { "" };
    match app.host_in_view() {
        Some(host) => left.add(9, 0, short!("{pointer}Processes on {}", named(host.name()).as_str()), style),
        None => left.add(9, 0, short!("{pointer}Processes"), style),
    }
    let (kept, total) = app.rows_kept();
    if kept < total {
        left.add(9, 1, short!("{kept} of {total} shown"), theme.warn);
        if shown < rows {
            left.add(3, 1, short!("rows {}-{}", top + 1, top + shown), theme.plain);
        }
    } else if shown < rows {
        left.add(8, 1, short!("{}-{} of {rows}", top + 1, top + shown), theme.plain);
    } else {
        left.add(8, 1, short!("{rows}"), theme.plain);
    }
    add_narrowing(&mut left, pen, app);
    match app.screen().list.tagged().len() {
        0 => {}
        count => left.add(7, 2, short!("{count} tagged"), theme.focus),
    }
    let order = app.screen().list.order();
    let key = Column::ALL.into_iter().find(|column| column.sort_key() == Some(order.key));
    let mut right = Segments::default();
    match key {
        Some(column) => right.add(2, 0, short!("sort {}{}", column.head(), arrow(pen, order.is_descending)), theme.dim),
        None if order.is_descending => right.add(2, 0, short!("sort trouble last"), theme.dim),
        None => right.add(2, 0, short!("sort trouble, mine, memory"), theme.dim),
    }
    right.add(1, 2, short!("group {}", order.group.word()), theme.dim);
    let room = area.width.saturating_sub(6);
    left.fit(room);
    right.fit(room.saturating_sub(left.width() + 3));
    edge(pen, area, area.y, &left, &right);
}

/// Adds what the list is narrowed to: `filter mem>10G  mine  user bob`.
pub(super) fn add_narrowing(line: &mut Segments, pen: &Pen<'_>, app: &App) {
    let (theme, narrowing) = (pen.theme, app.narrowing());
    if !narrowing.text().is_empty() {
        line.add(6, 2, short!("filter {}", super::format::beginning(narrowing.text(), 40)), theme.plain);
    }
    for (is_on, word) in [(narrowing.mine, "mine"), (narrowing.problems, "problems"), (narrowing.idle, "idle")] {
        if is_on {
            line.add(6, 2, short!("{word}"), theme.plain);
        }
    }
    if let Some(user) = &narrowing.user {
        line.add(6, 2, short!("user {user}"), theme.plain);
    }
}

fn bottom(pen: &mut Pen<'_>, area: Rect, below: &[ListRow], above: usize, focused: bool) {
    let theme = pen.theme;
    let mut left = Segments::default();
    if !below.is_empty() {
        left.add(9, 0, short!("{} {} more", theme.glyphs.down, below.len()), theme.plain);
        let hung = below.iter().filter(|row| matches!(row.state, Some((GpuState::Hung, _)))).count();
        if hung > 0 {
            left.add(8, 0, short!(", {hung} hung?"), theme.crit);
        }
    } else if above > 0 {
        left.add(9, 0, short!("{} {above} above", theme.glyphs.up), theme.plain);
    }
    let mut right = Segments::default();
    if !focused {
        right.add(1, 0, short!("Tab: the keys here"), theme.dim);
    }
    right.fit(area.width.saturating_sub(left.width() + 9));
    edge(pen, area, area.bottom() - 1, &left, &right);
}

/// Words on the upper or lower edge of a box, at its left and its right.
fn edge(pen: &mut Pen<'_>, area: Rect, y: u16, left: &Segments, right: &Segments) {
    let right_at = (area.right()).saturating_sub(3 + right.width());
    for (words, at) in [(left, area.x + 3), (right, right_at)] {
        let width = words.width();
        if width > 0 {
            pen.text(at - 1, y, 1, " ", Style::new());
            words.draw(pen, at, y, width);
            pen.text(at + width, y, 1, " ", Style::new());
        }
    }
}

fn arrow(pen: &Pen<'_>, is_descending: bool) -> &'static str {
    if is_descending { pen.theme.glyphs.down } else { pen.theme.glyphs.up }
}

fn heads(pen: &mut Pen<'_>, line: Rect, places: &[(Column, u16)], app: &App) {
    let order = app.screen().list.order();
    let mut x = line.x;
    for &(column, width) in places {
        let width = width.min(line.right().saturating_sub(x));
        let sorted = column.sort_key() == Some(order.key) && order.key != SortKey::Trouble;
        let arrow = if sorted { arrow(pen, order.is_descending) } else { "" };
        let head = short!("{}{arrow}", column.head());
        let style = if sorted { pen.theme.focus } else { pen.theme.dim };
        if column.is_figure() {
            pen.right(x, line.y, width, &head, style);
        } else {
            let gutter = if column == Column::Command { gutter(order.group, 0).min(width) } else { 0 };
            pen.text(x + gutter, line.y, width - gutter, &head, style);
        }
        x += width + 1;
    }
}

/// Columns before a command, for the mark of a job and for what stands above it.
fn gutter(group: Group, depth: u8) -> u16 {
    match group {
        Group::None => 0,
        Group::Job => 2,
        Group::Across | Group::User | Group::Host => 2 + 2 * u16::from(depth),
    }
}

/// How sure it is that the parts are one job, and which process is the least busy, where they differ by much.
fn across_words(head: &Head) -> Short {
    let likely = if head.is_likely { "likely one job: " } else { "" };
    match (&head.least_busy, &head.most_busy) {
        (Some(least), Some(most)) if most.sm_percent.saturating_sub(least.sm_percent) >= FAR_APART => {
            let gpu = or_dash(least.gpu_index);
            short!("{likely}least busy {}/{} ", super::format::beginning(&least.host_name, 16), gpu.as_str())
        }
        _ => short!("{likely}"),
    }
}

/// Points of SM share between the least and the most busy process of a job from which on it is worth saying.
const FAR_APART: u8 = 30;

/// How a row is drawn beyond what it says.
struct RowLook<'a> {
    app: &'a App,
    selected: bool,
    is_last_child: bool,
    group: Group,
    now: Moment,
}

fn draw_row(pen: &mut Pen<'_>, line: Rect, places: &[(Column, u16)], row: &ListRow, look: &RowLook<'_>) {
    let theme = pen.theme;
    let mut style = if row.is_stale || row.ended_at.is_some() { theme.dim } else { theme.plain };
    if look.selected {
        style = style.patch(theme.focus);
        pen.text(line.x - 1, line.y, 1, theme.glyphs.pointer, theme.focus);
    }
    if look.app.screen().list.tagged().contains(&row.key) {
        pen.text(line.x - 2, line.y, 1, "*", theme.warn);
    }
    let mut x = line.x;
    for &(column, width) in places {
        let width = width.min(line.right().saturating_sub(x));
        let mut figure = |text: Short| pen.right(x, line.y, width, &text, style);
        match column {
            Column::Host if row.unfold == Unfold::Child || (look.group == Group::Host && row.depth > 0) => {}
            Column::Host => {
                pen.fit_middle(x, line.y, width, &row.host_name, style);
            }
            Column::Gpu => {
                let gpus = match &row.head {
                    Some(head) if head.hosts > 1 => short!("x{}", head.gpus),
                    _ => short!("{}", gpu_list(&row.gpu_indexes)),
                };
                pen.fit(x, line.y, width, &gpus, style);
            }
            Column::Pid => figure(or_dash(row.pid)),
            Column::User => {
                pen.fit(x, line.y, width, &row.who, style);
            }
            Column::GpuMemory => figure(or_dash(row.gpu_memory_bytes.map(memory).as_deref())),
            Column::GpuMemoryPercent => figure(or_dash(row.gpu_memory_percent.map(f32::round))),
            Column::Sm => figure(sm(row.sm_percent, width)),
            Column::Trend => {
                if let Some(points) = look.app.trend(&row.key) {
                    gpu_line::sparkline(pen, x, line.y, width, points);
                }
            }
            Column::Cpu => figure(or_dash(row.cpu_percent.map(f32::round))),
            Column::Rss => figure(or_dash(row.rss_bytes.map(memory).as_deref())),
            Column::Time => figure(row.age_seconds.map_or_else(|| short!("-"), age)),
            Column::ProcessState => {
                pen.text(x, line.y, width, &or_dash(row.process_state.map(ProcessState::letter)), style);
            }
            Column::State => {
                let (words, state_style) = state(pen, row, look.app, look.now, width);
                let style = if look.selected { state_style.patch(theme.focus) } else { state_style };
                pen.fit(x, line.y, width, &words, style);
            }
            Column::Command => command(pen, Rect { x, width, ..line }, row, look, style),
        }
        x += width + 1;
    }
}

/// The share that all GPUs reach, and where there is room the most that one does: `0-100` is a job out of balance.
fn sm(percent: Option<(u8, u8)>, width: u16) -> Short {
    match percent {
        None => short!("-"),
        Some((least, most)) if least != most && width >= 7 => short!("{least}-{most}"),
        Some((least, _)) => short!("{least}"),
    }
}

/// What is wrong, or out of the ordinary; nothing for ordinary work.
pub(super) fn state(pen: &Pen<'_>, row: &Row, app: &App, now: Moment, width: u16) -> (Short, Style) {
    let theme = pen.theme;
    if let Some(at) = row.ended_at {
        return (short!("ended {} ago", brief_span(now.since(at)).as_str()), theme.dim);
    }
    let since = |since: Option<Moment>| match since {
        Some(since) => short!(" {}", brief_span(now.since(since)).as_str()),
        None => Short::new(),
    };
    if let Some((state @ (GpuState::Hung | GpuState::Fault), at)) = row.state {
        return (short!("{}{}", state.word(), since(at).as_str()), theme.crit);
    }
    if let Some(trouble) = row.trouble {
        let words = short!("{}{}", trouble.word(), since(row.trouble_since).as_str());
        let is_long = columns(&words) > usize::from(width);
        return match trouble {
            ProcessTrouble::MemoryNotReleased if is_long => (short!("not released"), theme.warn),
            ProcessTrouble::Hidden => (words, theme.dim),
            _ => (words, theme.warn),
        };
    }
    if let Some((word, finding)) = app.findings().state_of_row(row) {
        let words = short!("{word} {}", brief_span(finding.lasted(now)).as_str());
        return (words, severity_style(theme, finding.severity));
    }
    match row.state {
        Some((GpuState::InUse, _)) if draws_low_power(row, app) => (short!("low power"), theme.plain),
        Some((GpuState::InUse | GpuState::Free, _)) | None => (Short::new(), theme.plain),
        Some((GpuState::Unknown, at)) => (short!("no data{}", since(at).as_str()), theme.dim),
        Some((state, at)) => (short!("{}{}", state.word(), since(at).as_str()), theme.dim),
    }
}

/// Whether a GPU of the row is busy by the counter at the power of an idle card.
fn draws_low_power(row: &Row, app: &App) -> bool {
    let figures = app.fleet().host(row.key.host).and_then(|host| app.figures(host));
    figures.is_some_and(|figures| {
        figures.gpus.iter().any(|gpu| gpu.shows_low_power() && row.gpu_indexes.contains(&gpu.index))
    })
}

fn command(pen: &mut Pen<'_>, place: Rect, row: &ListRow, look: &RowLook<'_>, style: Style) {
    let theme = pen.theme;
    // A process stands below the mark of its job.
    let gutter = match row.unfold {
        Unfold::Child => gutter(look.group, row.depth.saturating_sub(1)),
        _ => gutter(look.group, row.depth),
    };
    let gutter = gutter.min(place.width);
    let mark = match row.unfold {
        Unfold::Leaf => "",
        Unfold::Folded => "+",
        Unfold::Open => "-",
        Unfold::Child if look.is_last_child => theme.glyphs.last_child,
        Unfold::Child => theme.glyphs.child,
    };
    if gutter > 0 {
        pen.text(place.x + gutter.saturating_sub(2), place.y, 1, mark, theme.dim);
    }
    let mut x = place.x + gutter;
    if row.workers > 1 && matches!(row.unfold, Unfold::Folded | Unfold::Open) {
        x += pen.text(x, place.y, place.right() - x, &short!("x{} ", row.workers), theme.dim);
    }
    if let Some(head) = row.head.as_deref().filter(|_| row.key.head == Some(HeadKey::Across)) {
        x += pen.text(x, place.y, place.right() - x, &across_words(head), theme.dim);
    }
    let room = place.right().saturating_sub(x);
    let whole = without_folders(&row.command);
    // Where not all of it fits, the script says more than its interpreter and the options of torchrun.
    let shown = if columns(&whole) > usize::from(room) { program_and_arguments(&row.command) } else { &whole };
    pen.fit(x, place.y, room, shown, style);
}
