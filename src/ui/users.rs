//! The users view: GPUs held per user, and the jobs of the selected user.
//!
//! ```text
//!  7 users hold 106 of 128 GPUs   13 free  3 unused  6 others
//!   USER     GPUS▼ SHARED   BUSY IDLE HUNG? HELD         GMEM IDLE MEM HELD·h USED·h LONGEST HOSTS
//! ▸ fumi        31      2     29    2     - ━━━━━━━━━━━  2011G     88G   12.4   11.6      3h hgx-03 hgx-15 +6
//!   (free)      13
//! ╭─ fumi: 31 GPUs on 8 hosts ──────────────────────────── Enter: list processes of fumi ─╮
//! ```

use super::areas::TableColumn;
use super::canvas::{Canvas, Segments};
use super::format::{ShortString, age, brief_span, columns, command_text, memory, or_dash, plural, short};
use super::{areas, list};
use crate::app::users::{users_table_rows, visible_user_count};
use crate::app::{Action, App};
use crate::diagnosis::Severity;
use crate::fleet::{GpuState, Moment, Row, UNKNOWN_USER, UserSort, UserUsage, gpu_list};
use ratatui::layout::{Margin, Rect};
use ratatui::style::Style;

const BAR_COLUMNS: u16 = 14;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Name,
    Gpus,
    Shared,
    InUse,
    Waiting,
    Idle,
    Hung,
    Bar,
    Memory,
    IdleMemory,
    Held,
    Used,
    LongestIdle,
    Hosts,
}

/// The columns of the table in order.
const COLUMNS: [TableColumn<Column>; 14] = [
    (Column::Name, "USER", 10, 20),
    (Column::Gpus, "GPUS", 5, 20),
    (Column::Shared, "SHARED", 6, 6),
    (Column::InUse, "BUSY", 6, 17),
    (Column::Waiting, "WAITING", 7, 4),
    (Column::Idle, "IDLE", 5, 18),
    (Column::Hung, "HUNG?", 5, 19),
    (Column::Bar, "HELD", BAR_COLUMNS, 8),
    (Column::Memory, "GMEM", 6, 16),
    (Column::IdleMemory, "IDLE MEM", 8, 12),
    (Column::Held, "HELD h", 7, 10),
    (Column::Used, "USED h", 7, 10),
    (Column::LongestIdle, "LONGEST", 7, 7),
    (Column::Hosts, "HOSTS", 20, 14),
];

impl Column {
    fn sort(self) -> Option<UserSort> {
        Some(match self {
            Self::Name => UserSort::Name,
            Self::Gpus => UserSort::Gpus,
            Self::InUse => UserSort::InUse,
            Self::Idle => UserSort::Idle,
            Self::Hung => UserSort::Hung,
            Self::Memory => UserSort::Memory,
            Self::IdleMemory => UserSort::IdleMemory,
            Self::Held => UserSort::Held,
            Self::LongestIdle => UserSort::LongestIdle,
            Self::Shared | Self::Waiting | Self::Bar | Self::Used | Self::Hosts => return None,
        })
    }

    fn is_numeric(self) -> bool {
        !matches!(self, Self::Name | Self::Bar | Self::Hosts)
    }
}

/// Draws the view.
pub(super) fn draw(canvas: &mut Canvas<'_>, body: Rect, app: &App, now: Moment) {
    let users = app.users_view();
    let table = Rect { height: users_table_rows(body.height), ..body };
    draw_totals(canvas, Rect { height: 1, ..table }, app);
    let column_widths = fitting(body.width.saturating_sub(3));
    headers(
        canvas,
        Rect { x: body.x + 2, y: body.y + 1, height: 1, width: body.width.saturating_sub(3) },
        &column_widths,
        app,
    );
    let shown = usize::from(visible_user_count(body.height));
    // The rows of unheld GPUs are shown only if all users fit.
    let rest = unheld_rows(app);
    let rest_rows = if users.list().len() + rest.len() <= shown { rest.len() } else { 0 };
    let top = users.top(shown);
    let most = users.list().iter().map(|user| user.sum.gpus).max().unwrap_or(0);
    if users.list().is_empty() {
        let text = if app.totals().hosts_covered > 0 { "nobody holds a GPU" } else { "no data yet" };
        canvas.fit(body.x + 2, body.y + 2, body.width.saturating_sub(3), text, canvas.theme.dim);
    }
    for (row, (index, user)) in users.list().iter().enumerate().skip(top).take(shown).enumerate() {
        let line = Rect { x: body.x, y: body.y + 2 + row as u16, width: body.width, height: 1 };
        draw_user(canvas, line, &column_widths, app, user, most, index == users.index(), now);
    }
    for (row, (word, count)) in rest.iter().take(rest_rows).enumerate() {
        let y = body.y + 2 + (users.list().len().max(1) + row) as u16;
        let name = column_widths.first().map_or(0, |(_, width)| *width);
        canvas.fit(body.x + 2, y, name, word, canvas.theme.dim);
        canvas.right(body.x + 3 + name, y, 5, &short!("{count}"), canvas.theme.dim);
    }
    let below = users.list().len().saturating_sub(top + shown);
    if below > 0 {
        let text = short!("{} {below} more", canvas.theme.glyphs.down);
        canvas.right(body.x, table.bottom().saturating_sub(1), body.width.saturating_sub(1), &text, canvas.theme.dim);
    }
    let panel = Rect { y: table.bottom(), height: body.height - table.height, ..body };
    if panel.height > 2 {
        draw_selected(canvas, panel, app, now);
    }
}

/// GPUs that no known user holds. Together with the users they add up to all GPUs.
fn unheld_rows(app: &App) -> Vec<(&'static str, u32)> {
    let unheld = app.users_view().unheld();
    [("(free)", unheld.free), ("(unused)", unheld.unused), ("(others)", unheld.others)]
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .collect()
}

fn draw_totals(canvas: &mut Canvas<'_>, line: Rect, app: &App) {
    let theme = canvas.theme;
    let (users, totals) = (app.users_view(), app.totals());
    let unheld = users.unheld();
    let mut segments = Segments::default();
    let count = users.list().iter().filter(|user| user.sum.who != UNKNOWN_USER && user.sum.gpus > 0).count();
    let noun = if count == 1 { "user holds" } else { "users hold" };
    segments.add(9, 0, short!("{count} {noun} {} of {} GPUs", unheld.held, totals.gpus), theme.plain);
    let several: u32 = users.list().iter().map(|user| user.sum.gpus).sum();
    if several > unheld.held {
        segments.add(4, 1, short!("(shared GPUs counted per user: {several})"), theme.dim);
    }
    for (priority, count, word) in
        [(8, unheld.free, "free"), (5, unheld.unused, "unused"), (6, unheld.others, "others")]
    {
        if count > 0 {
            segments.add(priority, 3, short!("{count} {word}"), theme.plain);
        }
    }
    if (totals.hosts_covered as usize) < app.fleet().hosts().len() {
        let (seen, all) = (totals.hosts_covered, app.fleet().hosts().len());
        segments.add(7, 3, short!("on {seen} of {all} hosts"), theme.warn);
    }
    let mut right = Segments::default();
    right.add(1, 0, short!("hours count from the start of gpufleet"), theme.dim);
    segments.fit(line.width.saturating_sub(2));
    right.fit(line.width.saturating_sub(segments.width() + 6));
    segments.draw(canvas, line.x + 1, line.y, line.width.saturating_sub(2));
    right.draw_right(canvas, line.x + 1, line.y, line.width.saturating_sub(2));
}

/// Returns the columns that fit with their widths. The last one takes the remaining space.
fn fitting(width: u16) -> Vec<(Column, u16)> {
    let columns = areas::fitting_columns(&COLUMNS, width);
    let used = columns.iter().map(|(_, _, width, _)| width + 1).sum::<u16>();
    let left = (width + 1).saturating_sub(used);
    columns
        .into_iter()
        .map(|(column, _, width, _)| (column, if column == Column::Hosts { width + left } else { width }))
        .collect()
}

fn headers(canvas: &mut Canvas<'_>, line: Rect, column_widths: &[(Column, u16)], app: &App) {
    let (sort, is_reversed) = app.users_view().order();
    let glyphs = canvas.theme.glyphs;
    let mut x = line.x;
    for &(column, width) in column_widths {
        let is_sorted = column.sort() == Some(sort);
        // Names are sorted ascending, numbers descending.
        let is_up = is_reversed != (sort == UserSort::Name);
        let arrow = if is_sorted { if is_up { glyphs.up } else { glyphs.down } } else { "" };
        let head = COLUMNS.iter().find(|(one, ..)| *one == column).map_or("", |(_, head, ..)| head);
        let style = if is_sorted { canvas.theme.focus } else { canvas.theme.dim };
        let text = short!("{head}{arrow}");
        if column.is_numeric() {
            // The arrow may use the gap before the column.
            canvas.right(x.saturating_sub(1), line.y, width + 1, &text, style);
        } else {
            canvas.text(x, line.y, width, &text, style);
        }
        match column.sort() {
            Some(_) if is_sorted => canvas.click(x, line.y, width, Action::SortReverse),
            Some(sort) => canvas.click(x, line.y, width, Action::SortUsersBy(sort)),
            None => {}
        }
        x += width + 1;
    }
}

#[allow(clippy::too_many_arguments, reason = "a line has this many inputs")]
fn draw_user(
    canvas: &mut Canvas<'_>,
    line: Rect,
    column_widths: &[(Column, u16)],
    app: &App,
    user: &UserUsage,
    most: u32,
    is_selected: bool,
    now: Moment,
) {
    let theme = canvas.theme;
    let style = if is_selected { theme.focus } else { theme.plain };
    if is_selected {
        canvas.text(line.x, line.y, 1, theme.glyphs.pointer, theme.focus);
    }
    let count = |count: u32| if count == 0 { short!("-") } else { short!("{count}") };
    let sum = &user.sum;
    let hung_severity = app.findings().hang_severity_of_user(&sum.who);
    let mut x = line.x + 2;
    for &(column, width) in column_widths {
        let mut draw_value = |text: &str, style: Style| canvas.right(x, line.y, width, text, style);
        match column {
            Column::Name => {
                let who = if sum.who == UNKNOWN_USER { "(unknown)" } else { sum.who.as_str() };
                let used = canvas.fit(x, line.y, width, who, style);
                if sum.is_mine && used + 4 <= width {
                    canvas.text(x + used, line.y, 4, " you", theme.dim);
                }
            }
            Column::Gpus => draw_value(&count(sum.gpus), style),
            Column::Shared => draw_value(&count(sum.shared), theme.dim),
            Column::InUse => draw_value(&count(sum.in_state(GpuState::InUse)), style),
            Column::Waiting => draw_value(&count(sum.in_state(GpuState::Waiting)), theme.dim),
            Column::Idle => draw_value(&count(sum.in_state(GpuState::Idle)), style),
            Column::Hung => {
                let hung = sum.in_state(GpuState::Hung);
                draw_value(
                    &count(hung),
                    if hung > 0 { theme.state_style(GpuState::Hung, hung_severity) } else { style },
                );
            }
            Column::Bar => bar(canvas, Rect { x, width, ..line }, user, most, hung_severity),
            Column::Memory => draw_value(&or_dash(sum.memory_bytes.map(memory).as_deref()), style),
            Column::IdleMemory if sum.idle_memory_bytes == 0 => draw_value("-", style),
            Column::IdleMemory => draw_value(&memory(sum.idle_memory_bytes), style),
            Column::Held => draw_value(&hours(user.gpu_hours.held_hours), style),
            Column::Used => draw_value(&hours(user.gpu_hours.used_hours), style),
            Column::LongestIdle => {
                let since = sum.idle_since.map(|since| brief_span(now.since(since)));
                draw_value(&or_dash(since.as_deref()), style);
            }
            Column::Hosts => hosts(canvas, Rect { x, width, ..line }, app, user),
        }
        x += width + 1;
    }
}

/// GPU-hours: `0.2`, `12.4`, `121`.
fn hours(hours: f64) -> ShortString {
    if hours < 99.95 { short!("{hours:.1}") } else { short!("{hours:.0}") }
}

/// Draws a bar relative to the largest user: busy, hung, then the rest.
fn bar(canvas: &mut Canvas<'_>, line: Rect, user: &UserUsage, most: u32, hung_severity: Option<Severity>) {
    let theme = canvas.theme;
    let length = |count: u32| (u32::from(line.width) * count).div_ceil(most.max(1)).min(u32::from(line.width)) as u16;
    let sum = &user.sum;
    let (used, hung) = (sum.in_state(GpuState::InUse), sum.in_state(GpuState::Hung));
    let mut x = line.x;
    let end = line.x + length(sum.gpus);
    let mut draw = |count: u32, glyph: &str, style: Style| {
        let width = length(count).min(end.saturating_sub(x));
        canvas.repeat(x, line.y, width, glyph, style);
        x += width;
    };
    draw(used, theme.glyphs.bar_full, theme.busy);
    draw(hung, theme.glyphs.bar_full, theme.state_style(GpuState::Hung, hung_severity));
    draw(sum.gpus - used - hung, theme.glyphs.bar_hollow, theme.dim);
}

/// Draws as many host names as fit, and the number of the others.
fn hosts(canvas: &mut Canvas<'_>, line: Rect, app: &App, user: &UserUsage) {
    let mut x = line.x;
    for (index, (id, _)) in user.hosts.iter().enumerate() {
        let Some(host) = app.fleet().host(*id) else { continue };
        let more = short!("+{}", user.hosts.len() - index);
        let name = host.name();
        let is_last = index + 1 == user.hosts.len();
        let needed = columns(name).min(12) + if is_last { 0 } else { 1 + columns(&more) };
        if usize::from(line.right().saturating_sub(x)) < needed {
            canvas.fit(x, line.y, line.right().saturating_sub(x), &more, canvas.theme.dim);
            return;
        }
        x += canvas.fit_middle(x, line.y, 12.min(line.right() - x), name, canvas.theme.plain) + 1;
    }
}

/// Draws the panel with the jobs of the selected user.
fn draw_selected(canvas: &mut Canvas<'_>, area: Rect, app: &App, now: Moment) {
    let theme = canvas.theme;
    let Some(user) = app.users_view().selected() else { return };
    canvas.outline(area, &theme.glyphs.light, theme.dim);
    let sum = &user.sum;
    let who = if sum.who == UNKNOWN_USER { "unknown user" } else { sum.who.as_str() };
    let mut title = Segments::default();
    title.add(9, 0, short!(" {who}:"), theme.focus);
    let (gpus, hosts) = (sum.gpus as usize, user.hosts.len());
    title.add(9, 1, short!("{gpus} GPU{} on {hosts} host{} ", plural(gpus), plural(hosts)), theme.plain);
    title.fit(area.width.saturating_sub(4));
    title.draw(canvas, area.x + 2, area.y, area.width.saturating_sub(4));
    let hint = short!(" Enter: list processes of {who} ");
    if usize::from(area.width) > columns(&hint) + usize::from(title.width()) + 6 {
        canvas.right(area.x + 2, area.y, area.width - 4, &hint, theme.dim);
    }
    let inner = area.inner(Margin::new(2, 1));
    let rows = app.users_view().rows();
    let available = usize::from(inner.height);
    let shown = if rows.len() > available { available.saturating_sub(1) } else { rows.len() };
    let name = rows.iter().map(|row| columns(&row.host_name)).max().unwrap_or(0).clamp(4, 12) as u16;
    for (index, row) in rows.iter().take(shown).enumerate() {
        draw_row(canvas, Rect { y: inner.y + index as u16, height: 1, ..inner }, app, row, name, now);
    }
    if shown < rows.len() {
        let text = short!("{} {} more", theme.glyphs.down, rows.len() - shown);
        canvas.fit(inner.x, inner.bottom() - 1, inner.width, &text, theme.dim);
    }
}

/// Draws host, GPUs, memory, SM share, age, state and command of a job.
fn draw_row(canvas: &mut Canvas<'_>, line: Rect, app: &App, row: &Row, name: u16, now: Moment) {
    let theme = canvas.theme;
    let style = if row.is_stale || row.ended_at.is_some() { theme.dim } else { theme.plain };
    let (state, state_style) = list::state_text(canvas, row, app, now, 14);
    let sm = row.sm_percent.map(|(least, _)| short!("{least}"));
    let mut x = line.x;
    canvas.fit_middle(x, line.y, name, &row.host_name, style);
    x += name + 1;
    canvas.fit(x, line.y, 6, &gpu_list(&row.gpu_indexes), style);
    x += 7;
    for (width, text) in [
        (5, or_dash(row.gpu_memory_bytes.map(memory).as_deref())),
        (4, or_dash(sm.as_deref())),
        (6, row.age_seconds.map_or_else(|| short!("-"), age)),
    ] {
        if x + width <= line.right() {
            canvas.right(x, line.y, width, &text, style);
        }
        x += width + 1;
    }
    let available = |x: u16| line.right().saturating_sub(x);
    canvas.fit(x + 1, line.y, 14.min(available(x + 1)), &state, state_style);
    x += 16;
    canvas.fit(x, line.y, available(x), &command_text(&row.command), style);
}
