//! The process list of all hosts or of one, and the choice of its columns.
//!
//! ```text
//! ╭─ Processes 1-3 of 30 ───────────────────────────────────── sort problems first  group job ─╮
//! │ HOST   GPU       PID USER      GMEM  SM%  TIME STATE        COMMAND                               │
//! │▸hgx-04 4,5     12001 dmitri    140G  100 9h40m hung? 18m    sft.py --fsdp                         │
//! │ hgx-02 0-7      5061 erika     495G   96   55m            + pretrain.py x8 --config moe-13b.yaml  │
//! │ hgx-06 7       24741 fumi       71G   99   12m              gan.py --res 1024                     │
//! ╰─ ▼ 27 more ───────────────────────────────────────────────────────────────── Tab: focus list ──╯
//! ```

use super::canvas::{Canvas, Segments};
use super::chart;
use super::format::{ShortString, age, brief_span, columns, command_text, memory, or_dash, short, shorten_host_name};
use crate::app::layout::LIST_FRAME_ROWS;
use crate::app::{Action, App};
use crate::diagnosis::{Finding, FindingGpu};
use crate::fleet::{
    FoldState, GpuState, Group, GroupKey, GroupSummary, Link, ListRow, Moment, ProcessTrouble, Row, SortKey, gpu_list,
};
use crate::wire::ProcessState;
use ratatui::layout::Rect;
use ratatui::style::Style;

/// Draws the list into a box.
pub(super) fn draw(canvas: &mut Canvas<'_>, area: Rect, app: &App, now: Moment) {
    if area.height < LIST_FRAME_ROWS || area.width < 10 {
        return;
    }
    let focused = app.screen().is_list_focused();
    let glyphs = if focused { &canvas.theme.glyphs.heavy } else { &canvas.theme.glyphs.light };
    canvas.outline(area, glyphs, if focused { canvas.theme.focus } else { canvas.theme.dim });
    let rows = app.rows();
    let capacity = usize::from(area.height - LIST_FRAME_ROWS);
    let cursor = &app.screen().list;
    let top = cursor.top(rows.len(), capacity);
    let shown = &rows[top..(top + capacity).min(rows.len())];
    draw_title(canvas, area, app, top, shown.len());
    draw_bottom(canvas, area, app, &rows[top + shown.len()..], top, focused);

    // One column for the pointer and for tags, so that a tag moves nothing.
    let inner = Rect { x: area.x + 2, y: area.y + 1, width: area.width - 3, height: area.height - 2 };
    // Group rows name one host and count the others: `hgx-01 +3`.
    let more = if matches!(cursor.order().group, Group::DistributedJob | Group::User) { 3 } else { 0 };
    let host = if app.screen().list_host().is_some() { 0 } else { longest_host(app) + more };
    let states = shown.iter().map(|row| columns(&state_text(canvas, row, app, now, u16::MAX).0) as u16);
    let column_widths = list_columns(inner.width, host, states.max().unwrap_or(0));
    draw_headers(canvas, inner, &column_widths, app);
    if rows.is_empty() {
        canvas.fit(inner.x, inner.y + 1, inner.width, &empty_list_text(app), canvas.theme.dim);
    }
    for (index, row) in shown.iter().enumerate() {
        let selected = focused && top + index == cursor.index();
        let is_last_child = rows.get(top + index + 1).is_none_or(|next| next.depth < row.depth);
        let line = Rect { y: inner.y + 1 + index as u16, height: 1, ..inner };
        draw_row(
            canvas,
            line,
            &column_widths,
            row,
            &RowContext { app, selected, is_last_child, group: cursor.order().group, now },
        );
    }
}

/// The reason why the list is empty. Without data of a host it is not known whether a process uses its GPUs.
fn empty_list_text(app: &App) -> ShortString {
    if app.row_counts().1 > 0 {
        return short!("no match; Esc shows all");
    }
    if let Some(host) = app.host_in_view() {
        return match app.host_summary(host) {
            Some(summary) if summary.totals.hosts_covered > 0 => short!("no process uses a GPU"),
            _ if matches!(host.link, Link::Connecting { .. }) => short!("not known yet: connecting"),
            _ => short!("not known: this host gives no GPU data"),
        };
    }
    let (covered, hosts) = (app.totals().hosts_covered as usize, app.fleet().hosts().len());
    match covered {
        0 => short!("no data yet"),
        _ if covered == hosts => short!("no process uses a GPU"),
        1 => short!("no process uses a GPU on the only host with data"),
        _ => short!("no process uses a GPU on the {covered} hosts with data"),
    }
}

fn longest_host(app: &App) -> u16 {
    app.fleet().hosts().iter().map(|host| columns(host.name())).max().unwrap_or(0) as u16
}

fn draw_title(canvas: &mut Canvas<'_>, area: Rect, app: &App, top: usize, shown: usize) {
    let rows = app.rows().len();
    let theme = canvas.theme;
    let focused = app.screen().is_list_focused();
    let style = if focused { theme.focus } else { theme.plain };
    let mut left = Segments::default();
    let pointer = if focused { theme.glyphs.pointer } else { "" };
    match app.host_in_view() {
        Some(host) => {
            left.add(9, 0, short!("{pointer}Processes on {}", shorten_host_name(host.name()).as_str()), style);
        }
        None => left.add(9, 0, short!("{pointer}Processes"), style),
    }
    let (matching, total) = app.row_counts();
    if matching < total {
        left.add(9, 1, short!("{matching} of {total} shown"), theme.warn);
        if shown < rows {
            left.add(3, 1, short!("rows {}-{}", top + 1, top + shown), theme.plain);
        }
    } else if shown < rows {
        left.add(8, 1, short!("{}-{} of {rows}", top + 1, top + shown), theme.plain);
    } else {
        left.add(8, 1, short!("{rows}"), theme.plain);
    }
    add_list_filter(&mut left, canvas, app);
    match app.screen().list.tagged().len() {
        0 => {}
        count => left.add(7, 2, short!("{count} tagged"), theme.focus),
    }
    let order = app.screen().list.order();
    let key = Column::ALL.into_iter().find(|column| column.sort_key() == Some(order.key));
    let mut right = Segments::default();
    match key {
        Some(column) => {
            right.add(2, 0, short!("sort {}{}", column.header(), arrow(canvas, order.is_descending)), theme.dim);
        }
        None if order.is_descending => right.add(2, 0, short!("sort problems last"), theme.dim),
        None => right.add(2, 0, short!("sort problems first"), theme.dim),
    }
    right.click(1, Action::SortMenu);
    right.add(1, 2, short!("group {}", order.group.word()), theme.dim);
    right.click(1, Action::Group);
    let available = area.width.saturating_sub(6);
    left.fit(available);
    right.fit(available.saturating_sub(left.width() + 3));
    canvas.edge(area, area.y, &left, &right);
}

/// Adds the active filters: `filter mem>10G  mine  user bob`.
pub(super) fn add_list_filter(line: &mut Segments, canvas: &Canvas<'_>, app: &App) {
    let (theme, list_filter) = (canvas.theme, app.list_filter());
    if !list_filter.text().is_empty() {
        line.add(6, 2, short!("filter {}", super::format::truncate(list_filter.text(), 40)), theme.plain);
    }
    for (is_on, word) in [(list_filter.mine, "mine"), (list_filter.problems, "problems"), (list_filter.idle, "idle")] {
        if is_on {
            line.add(6, 2, short!("{word}"), theme.plain);
        }
    }
    if let Some(user) = &list_filter.user {
        line.add(6, 2, short!("user {user}"), theme.plain);
    }
}

fn draw_bottom(canvas: &mut Canvas<'_>, area: Rect, app: &App, below: &[ListRow], above: usize, focused: bool) {
    let theme = canvas.theme;
    let mut left = Segments::default();
    if !below.is_empty() {
        left.add(9, 0, short!("{} {} more", theme.glyphs.down, below.len()), theme.plain);
        let hung: Vec<&ListRow> = below.iter().filter(|row| matches!(row.state, Some((GpuState::Hung, _)))).collect();
        if !hung.is_empty() {
            let severity = hung.iter().filter_map(|row| app.findings().hang_severity_of_row(row)).max();
            left.add(8, 0, short!(", {} hung?", hung.len()), theme.state_style(GpuState::Hung, severity));
        }
    } else if above > 0 {
        left.add(9, 0, short!("{} {above} above", theme.glyphs.up), theme.plain);
    }
    let mut right = Segments::default();
    if !focused {
        right.add(1, 0, short!("Tab: focus list"), theme.dim);
        right.click(1, Action::NextFocus);
    }
    right.fit(area.width.saturating_sub(left.width() + 9));
    canvas.edge(area, area.bottom() - 1, &left, &right);
}

fn arrow(canvas: &Canvas<'_>, is_descending: bool) -> &'static str {
    if is_descending { canvas.theme.glyphs.down } else { canvas.theme.glyphs.up }
}

fn draw_headers(canvas: &mut Canvas<'_>, line: Rect, column_widths: &[(Column, u16)], app: &App) {
    let order = app.screen().list.order();
    let mut x = line.x;
    for &(column, width) in column_widths {
        let width = width.min(line.right().saturating_sub(x));
        let sorted = column.sort_key() == Some(order.key) && order.key != SortKey::Trouble;
        let arrow = if sorted { arrow(canvas, order.is_descending) } else { "" };
        let head = short!("{}{arrow}", column.header());
        let style = if sorted { canvas.theme.focus } else { canvas.theme.dim };
        if column.is_numeric() {
            canvas.right(x, line.y, width, &head, style);
        } else {
            let gutter = if column == Column::Command { gutter(order.group, 0).min(width) } else { 0 };
            canvas.text(x + gutter, line.y, width - gutter, &head, style);
        }
        match column.sort_key() {
            Some(_) if sorted => canvas.click(x, line.y, width, Action::SortReverse),
            Some(key) => canvas.click(x, line.y, width, Action::SortBy(key)),
            None => {}
        }
        x += width + 1;
    }
}

/// Columns before a command for the fold mark and the indentation.
fn gutter(group: Group, depth: u8) -> u16 {
    match group {
        Group::None => 0,
        Group::Job => 2,
        Group::DistributedJob | Group::User | Group::Host => 2 + 2 * u16::from(depth),
    }
}

/// The confidence in a distributed job, and its least busy process if the processes differ much.
fn distributed_job_text(head: &GroupSummary) -> ShortString {
    let likely = if head.is_likely { "likely one job: " } else { "" };
    match (&head.least_busy, &head.most_busy) {
        (Some(least), Some(most)) if most.sm_percent.saturating_sub(least.sm_percent) >= SM_SPREAD_THRESHOLD => {
            let gpu = or_dash(least.gpu_index);
            short!("{likely}least busy {}/{} ", super::format::truncate(&least.host_name, 16), gpu.as_str())
        }
        _ => short!("{likely}"),
    }
}

/// Minimum difference in SM share between the least and the most busy process to name the least busy one.
const SM_SPREAD_THRESHOLD: u8 = 30;

/// The context in which a row is drawn.
struct RowContext<'a> {
    app: &'a App,
    selected: bool,
    is_last_child: bool,
    group: Group,
    now: Moment,
}

fn draw_row(
    canvas: &mut Canvas<'_>,
    line: Rect,
    column_widths: &[(Column, u16)],
    row: &ListRow,
    context: &RowContext<'_>,
) {
    let theme = canvas.theme;
    let style = if row.is_stale || row.ended_at.is_some() { theme.dim } else { theme.plain };
    if context.app.screen().list.tagged().contains(&row.key) {
        canvas.text(line.x - 1, line.y, 1, "*", theme.warn);
    } else if context.selected {
        canvas.text(line.x - 1, line.y, 1, theme.glyphs.pointer, theme.focus);
    }
    let mut x = line.x;
    for &(column, width) in column_widths {
        let width = width.min(line.right().saturating_sub(x));
        let mut draw_value = |text: ShortString| canvas.right(x, line.y, width, &text, style);
        match column {
            Column::Host if row.fold_state == FoldState::Child || (context.group == Group::Host && row.depth > 0) => {}
            Column::Host => {
                canvas.fit_middle(x, line.y, width, &row.host_name, style);
            }
            Column::Gpu => {
                let gpus = match &row.group_summary {
                    Some(head) if head.hosts > 1 => short!("x{}", head.gpus),
                    _ => short!("{}", gpu_list(&row.gpu_indexes)),
                };
                canvas.fit(x, line.y, width, &gpus, style);
            }
            Column::Pid => draw_value(or_dash(row.pid)),
            Column::User => {
                canvas.fit(x, line.y, width, &row.who, style);
            }
            Column::GpuMemory => draw_value(or_dash(row.gpu_memory_bytes.map(memory).as_deref())),
            Column::GpuMemoryPercent => draw_value(or_dash(row.gpu_memory_percent.map(f32::round))),
            Column::Sm => draw_value(sm_text(row.sm_percent, width)),
            Column::Sparkline => {
                if let Some(points) = context.app.sparkline(&row.key) {
                    let is_hung = matches!(row.state, Some((GpuState::Hung, _)));
                    let is_stuck = is_hung || context.app.findings().suspicion_of_row(row).is_some();
                    chart::sparkline(canvas, Rect { x, width, ..line }, points, theme.utilization_style(is_stuck));
                }
            }
            Column::Cpu => draw_value(or_dash(row.cpu_percent.map(f32::round))),
            Column::Rss => draw_value(or_dash(row.rss_bytes.map(memory).as_deref())),
            Column::Time => draw_value(row.age_seconds.map_or_else(|| short!("-"), age)),
            Column::ProcessState => {
                canvas.text(x, line.y, width, &or_dash(row.process_state.map(ProcessState::letter)), style);
            }
            Column::State => {
                let (state, state_style) = state_text(canvas, row, context.app, context.now, width);
                canvas.fit(x, line.y, width, &state, state_style);
            }
            Column::Command => draw_command(canvas, Rect { x, width, ..line }, row, context, style),
        }
        x += width + 1;
    }
    if context.selected {
        canvas.highlight(Rect { x: line.x - 1, width: line.width + 1, ..line });
    }
}

/// The lowest SM share of the GPUs, with the highest if it fits: `0-100` is an unbalanced job.
fn sm_text(percent: Option<(u8, u8)>, width: u16) -> ShortString {
    match percent {
        None => short!("-"),
        Some((least, most)) if least != most && width >= 7 => short!("{least}-{most}"),
        Some((least, _)) => short!("{least}"),
    }
}

/// The state of a row. Empty for ordinary work.
pub(super) fn state_text(canvas: &Canvas<'_>, row: &Row, app: &App, now: Moment, width: u16) -> (ShortString, Style) {
    let theme = canvas.theme;
    if let Some(at) = row.ended_at {
        return (short!("ended {} ago", brief_span(now.since(at)).as_str()), theme.dim);
    }
    let since = |since: Option<Moment>| match since {
        Some(since) => short!(" {}", brief_span(now.since(since)).as_str()),
        None => ShortString::new(),
    };
    if let Some((state @ (GpuState::Hung | GpuState::Fault), at)) = row.state {
        let severity = if state == GpuState::Hung { app.findings().hang_severity_of_row(row) } else { None };
        return (short!("{}{}", state.word(), since(at).as_str()), theme.state_style(state, severity));
    }
    // A word that is complete says more than one that is cut for the sake of a time.
    let fitting =
        |long: ShortString, brief: &str| if columns(&long) > usize::from(width) { short!("{brief}") } else { long };
    if let Some(trouble) = row.trouble {
        let text = short!("{}{}", trouble.word(), since(row.trouble_since).as_str());
        return match trouble {
            ProcessTrouble::MemoryNotReleased => (fitting(text, "not released"), theme.warn),
            ProcessTrouble::Hidden => (fitting(text, trouble.word()), theme.dim),
            _ => (fitting(text, trouble.word()), theme.warn),
        };
    }
    if let Some((word, finding)) = app.findings().state_of_row(row) {
        let text = short!("{word} {}", brief_span(finding.lasted(now)).as_str());
        return (fitting(text, word), theme.severity_style(finding.severity));
    }
    if let Some(finding) = app.findings().suspicion_of_row(row) {
        let brief = short!("stuck? {}", brief_span(finding.lasted(now)).as_str());
        let long = lowest_power(finding, app).map(|watts| short!("{} {watts:.0}W", brief.as_str()));
        let text = long.filter(|text| columns(text) <= usize::from(width)).unwrap_or(brief);
        return (text, theme.warn);
    }
    match row.state {
        Some((GpuState::InUse, _)) if draws_low_power(row, app) => (short!("low power"), theme.plain),
        Some((GpuState::InUse | GpuState::Free, _)) | None => (ShortString::new(), theme.plain),
        Some((GpuState::Unknown, at)) => (short!("no data{}", since(at).as_str()), theme.dim),
        Some((state, at)) => (short!("{}{}", state.word(), since(at).as_str()), theme.dim),
    }
}

/// The lowest power of the GPUs of a finding, in watts.
fn lowest_power(finding: &Finding, app: &App) -> Option<f32> {
    let watts = |gpu: &FindingGpu| {
        let summary = app.host_summary(app.fleet().host(gpu.host)?)?;
        summary.gpus.iter().find(|summary| summary.index == gpu.index)?.power_watts()
    };
    finding.gpus.iter().filter_map(watts).reduce(f32::min)
}

/// Whether a GPU of the row reads busy at the power of an idle GPU.
fn draws_low_power(row: &Row, app: &App) -> bool {
    let summary = app.fleet().host(row.key.host).and_then(|host| app.host_summary(host));
    summary.is_some_and(|summary| {
        summary.gpus.iter().any(|gpu| gpu.shows_low_power() && row.gpu_indexes.contains(&gpu.index))
    })
}

fn draw_command(canvas: &mut Canvas<'_>, area: Rect, row: &ListRow, context: &RowContext<'_>, style: Style) {
    let theme = canvas.theme;
    // A process is indented below the mark of its job.
    let gutter = match row.fold_state {
        FoldState::Child => gutter(context.group, row.depth.saturating_sub(1)),
        _ => gutter(context.group, row.depth),
    };
    let gutter = gutter.min(area.width);
    let mark = match row.fold_state {
        FoldState::Leaf => "",
        FoldState::Folded => "+",
        FoldState::Open => "-",
        FoldState::Child if context.is_last_child => theme.glyphs.last_child,
        FoldState::Child => theme.glyphs.child,
    };
    if gutter > 0 {
        canvas.text(area.x + gutter.saturating_sub(2), area.y, 1, mark, theme.dim);
    }
    let mut x = area.x + gutter;
    if let Some(head) = row.group_summary.as_deref().filter(|_| row.key.group == Some(GroupKey::DistributedJob)) {
        x += canvas.text(x, area.y, area.right() - x, &distributed_job_text(head), theme.dim);
    }
    let command = command_text(&row.command);
    let available = area.right().saturating_sub(x);
    if row.workers < 2 || !matches!(row.fold_state, FoldState::Folded | FoldState::Open) {
        canvas.fit(x, area.y, available, &command, style);
        return;
    }
    // The number of workers stands behind the script: `pretrain.py x8 --config moe.yaml`.
    let workers = short!(" x{}", row.workers);
    let (program, arguments) = command.split_at(command.find(' ').unwrap_or(command.len()));
    canvas.fit(x, area.y, available, &format!("{program}{}{arguments}", workers.as_str()), style);
    let before = columns(program) as u16;
    if before + (columns(&workers) as u16) < available {
        canvas.text(x + before, area.y, available - before, &workers, theme.dim);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    Host,
    Gpu,
    Pid,
    User,
    GpuMemory,
    /// GPU memory in percent of the total.
    GpuMemoryPercent,
    Sm,
    /// SM share in the last minutes.
    Sparkline,
    Cpu,
    Rss,
    /// The letter of the process state.
    ProcessState,
    Time,
    State,
    Command,
}

impl Column {
    /// All columns in display order.
    pub(super) const ALL: [Self; 14] = [
        Self::Host,
        Self::Gpu,
        Self::Pid,
        Self::User,
        Self::GpuMemory,
        Self::GpuMemoryPercent,
        Self::Sm,
        Self::Sparkline,
        Self::Cpu,
        Self::Rss,
        Self::ProcessState,
        Self::Time,
        Self::State,
        Self::Command,
    ];

    pub(super) fn header(self) -> &'static str {
        match self {
            Self::Host => "HOST",
            Self::Gpu => "GPU",
            Self::Pid => "PID",
            Self::User => "USER",
            Self::GpuMemory => "GMEM",
            Self::GpuMemoryPercent => "%GM",
            Self::Sm => "SM%",
            Self::Sparkline => "SM 2min",
            Self::Cpu => "CPU%",
            Self::Rss => "RSS",
            Self::ProcessState => "S",
            Self::Time => "TIME",
            Self::State => "STATE",
            Self::Command => "COMMAND",
        }
    }

    /// Returns the sort key, or `None` if the list cannot be sorted by this column.
    pub(super) fn sort_key(self) -> Option<SortKey> {
        Some(match self {
            Self::Host => SortKey::Host,
            Self::Gpu => SortKey::Gpu,
            Self::Pid => SortKey::Pid,
            Self::User => SortKey::User,
            Self::GpuMemory => SortKey::GpuMemory,
            Self::GpuMemoryPercent => SortKey::GpuMemoryPercent,
            Self::Sm => SortKey::Sm,
            Self::Cpu => SortKey::Cpu,
            Self::Rss => SortKey::Rss,
            Self::Time => SortKey::Time,
            Self::State => SortKey::State,
            Self::Command => SortKey::Command,
            Self::Sparkline | Self::ProcessState => return None,
        })
    }

    /// Whether the column is right-aligned.
    pub(super) fn is_numeric(self) -> bool {
        matches!(
            self,
            Self::Pid | Self::GpuMemory | Self::GpuMemoryPercent | Self::Sm | Self::Cpu | Self::Rss | Self::Time
        )
    }
}

/// The minimum width of the command.
const COMMAND_MIN_COLUMNS: u16 = 12;
/// Below this width of the command the first columns are dropped.
const COMMAND_PREFERRED_COLUMNS: u16 = 30;
/// Empty columns between two columns.
const GAP: u16 = 1;

/// The limits of the state column: its header with the sort arrow, and a memory leak since days.
const STATE_COLUMNS: (u16, u16) = (6, 22);

/// Chooses the columns for a line of `width`, with their widths. Columns are dropped in this order: RSS, S, %GM, CPU%,
/// sparkline, TIME, PID; the first three already if the command would be short. `host` is the width of the longest host
/// name, 0 if all rows belong to one host. `state` is the width of the longest state on the screen: it changes with the
/// readings, so it decides about the widths of state and command and not about the columns.
pub(super) fn list_columns(width: u16, host: u16, state: u16) -> Vec<(Column, u16)> {
    use Column::{
        Command, Cpu, Gpu, GpuMemory, GpuMemoryPercent, Host, Pid, ProcessState, Rss, Sm, Sparkline, State, Time, User,
    };
    const DROPPED: [Column; 7] = [Rss, ProcessState, GpuMemoryPercent, Cpu, Sparkline, Time, Pid];
    let is_wide = width >= 116;
    let mut columns = vec![
        (Host, host.clamp(4, if is_wide { 20 } else { 12 })),
        (Gpu, 5),
        (Pid, 7),
        (User, if is_wide { 10 } else { 8 }),
        (GpuMemory, 5),
        (GpuMemoryPercent, 4),
        (Sm, if is_wide { 7 } else { 4 }),
        (Sparkline, if width >= 150 { 12 } else { 8 }),
        (Cpu, 5),
        (Rss, 5),
        (ProcessState, 1),
        (Time, 5),
        (State, if width >= 150 { 19 } else { 12 }),
    ];
    if host == 0 {
        columns.remove(0);
    }
    let used = |columns: &[(Column, u16)]| columns.iter().map(|(_, width)| width + GAP).sum::<u16>();
    for (index, dropped) in DROPPED.into_iter().enumerate() {
        let command = if index < 3 { COMMAND_PREFERRED_COLUMNS } else { COMMAND_MIN_COLUMNS };
        if used(&columns) + command > width {
            columns.retain(|(column, _)| *column != dropped);
        }
    }
    if let Some((_, usual)) = columns.pop() {
        // A long state takes more than its usual width only where the command keeps a readable part.
        let room = width.saturating_sub(used(&columns) + GAP + COMMAND_MIN_COLUMNS).max(usual);
        columns.push((State, state.clamp(STATE_COLUMNS.0, STATE_COLUMNS.1).min(room)));
    }
    // On the narrowest screens names shrink to the six columns that distinguish hosts.
    for (column, width_of) in &mut columns {
        let least = match column {
            Host | User => 6,
            State => 9,
            _ => continue,
        };
        *width_of = (*width_of).min(if width < 60 { least } else { u16::MAX });
    }
    // The state column gives up the rest, whose first word matters most.
    let excess = used(&columns).saturating_sub(width + GAP);
    if let Some((_, state)) = columns.last_mut() {
        *state = state.saturating_sub(excess).max(5);
    }
    let rest = width.saturating_sub(used(&columns));
    columns.push((Command, rest));
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(width: u16) -> String {
        list_columns(width, 6, 12).iter().map(|(column, _)| column.header()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn columns_are_dropped_in_order() {
        assert_eq!(headers(130), "HOST GPU PID USER GMEM %GM SM% SM 2min CPU% RSS S TIME STATE COMMAND");
        assert_eq!(headers(118), "HOST GPU PID USER GMEM %GM SM% SM 2min CPU% S TIME STATE COMMAND");
        assert_eq!(headers(86), "HOST GPU PID USER GMEM SM% SM 2min TIME STATE COMMAND");
        assert_eq!(headers(78), "HOST GPU PID USER GMEM SM% TIME STATE COMMAND");
        assert_eq!(headers(74), "HOST GPU PID USER GMEM SM% TIME STATE COMMAND");
        assert_eq!(headers(66), "HOST GPU PID USER GMEM SM% STATE COMMAND");
        assert_eq!(headers(60), "HOST GPU USER GMEM SM% STATE COMMAND");
        assert_eq!(headers(38), "HOST GPU USER GMEM SM% STATE COMMAND");
    }

    #[test]
    fn the_command_keeps_twelve_columns() {
        for width in 53..300 {
            let columns = list_columns(width, 8, width % 30);
            let (_, command) = columns.last().expect("a command");
            assert!(*command >= COMMAND_MIN_COLUMNS, "{width}: {command}");
            assert_eq!(columns.iter().map(|(_, width)| width + GAP).sum::<u16>() - GAP, width);
        }
    }

    #[test]
    fn columns_fit_into_the_narrowest_list() {
        // A screen of 40 columns without the frame and the tag column.
        for width in 36..60 {
            for host in [0, 4, 40] {
                let columns = list_columns(width, host, width % 30);
                let used: u16 = columns.iter().filter(|(_, width)| *width > 0).map(|(_, width)| width + GAP).sum();
                assert!(used <= width + GAP, "{width}, {host}: {columns:?}");
            }
        }
    }

    #[test]
    fn a_list_of_one_host_has_no_host_column() {
        assert!(list_columns(118, 0, 9).iter().all(|(column, _)| *column != Column::Host));
    }
}
