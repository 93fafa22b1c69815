//! The whole screen: header, the open view, dialogs and the hint bar.
//!
//! ```text
//!  gpufleet  6 hosts 48 GPUs   37 busy  4 idle  2 hung?  5 free    mem 2126/3840G   every 2s   14:02:31     header
//! ┏━ ▸hgx-01 ━━━━━ 7 busy  330/640G ━┓╭─ hgx-02 ─────── 8 busy  495/640G ─╮                                 grid
//! ┃0 ━━━━━━━━━━╸  99% 48/80G 74° erika┃│0 ━━━━━━━━━━╸  96% 62/80G 73° erika │
//! ┗━ cpu 34%  ram 412/1007G ━ load 18 ┛╰─ cpu 71%  ram 388/1007G ─ load 92 ─╯
//! ╭─ Processes 30 ──────────────────────────────────── sort GMEM▼  group job ─╮                             list
//! │ HOST   GPU      PID USER     GMEM▼  SM%  TIME STATE        COMMAND        │
//! ╰─ ▼ 12 more ────────────────────────────────────────── Tab: focus list ──────╯
//!  Enter host  Tab hosts/processes  . sort  t group  ? F1 help  q quit                                      hints
//! ```

use super::areas::ScreenAreas;
use super::canvas::{Canvas, Segments};
use super::format::{clock, gib, interval, plural, short, shorten_host_name, watts};
use super::theme::Theme;
use super::{dialogs, findings, gpu, grid, hang_report, help, host, list, log, process, stored_history, users, wall};
use crate::app::layout::MIN_SIZE;
use crate::app::{Action, App, View};
use crate::fleet::{GpuState, Moment};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

/// Facts about a drawn screen that later keys depend on: they follow from how texts were wrapped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drawn {
    /// The number of lines by which the view of a process can be scrolled.
    pub process_scroll_limit: usize,
}

/// Draws the state of the program. Only the points of charts are computed here: their number depends on the screen.
pub fn draw(app: &App, frame: &mut Frame<'_>, now: Moment) -> Drawn {
    let area = frame.area();
    draw_into(app, frame.buffer_mut(), area, now)
}

/// Draws into a part of a buffer.
pub fn draw_into(app: &App, buffer: &mut Buffer, area: Rect, now: Moment) -> Drawn {
    let theme = Theme::new(app.settings);
    draw_screen(&mut Canvas::new(buffer, &theme), app, area, now)
}

/// Returns what a click on a cell does, if a hint, a column header or another label is there.
///
/// It draws the screen to find out, so that a click reaches the label that the user sees.
pub fn action_at(app: &App, column: u16, row: u16, now: Moment) -> Option<Action> {
    let area = Rect::new(0, 0, app.size().0, app.size().1);
    let theme = Theme::new(app.settings);
    let mut buffer = Buffer::empty(area);
    let mut canvas = Canvas::new(&mut buffer, &theme);
    draw_screen(&mut canvas, app, area, now);
    let is_hit = |(label, _): &&(Rect, Action)| label.contains(Position::new(column, row));
    canvas.clickable.iter().rev().find(is_hit).map(|(_, action)| *action)
}

fn draw_screen(canvas: &mut Canvas<'_>, app: &App, area: Rect, now: Moment) -> Drawn {
    let mut drawn = Drawn::default();
    let theme = canvas.theme;
    if area.width < MIN_SIZE.0 || area.height < MIN_SIZE.1 {
        let text = format!("needs {}x{}, this is {}x{}", MIN_SIZE.0, MIN_SIZE.1, area.width, area.height);
        canvas.fit(area.x, area.y, area.width, &text, theme.plain);
        return drawn;
    }
    // A frozen view shows an earlier time than the header, the dialogs and the hint bar.
    let (clock, now) = (now, app.display_time(now));
    let size = (area.width, area.height);
    let screen_layout = app.screen_layout(size);
    let areas = ScreenAreas::of(area, &screen_layout);
    draw_header(canvas, areas.header, app, now);
    match app.screen().view() {
        View::Overview => {
            grid::draw(canvas, areas.grid, app, &screen_layout, now);
            list::draw(canvas, areas.list, app, now);
        }
        View::Host(id) | View::Gpu(id, _) if app.screen().span.is_stored() => {
            let position = app.screen().stored_history().and_then(|(_, position)| position);
            if let Some(host) = app.fleet().host(*id) {
                stored_history::draw(canvas, areas.body, app, host, position, now);
            }
        }
        View::Host(id) => {
            if let Some(host) = app.fleet().host(*id) {
                host::draw(canvas, areas.body, app, host, app.host_layout(size), now);
            }
        }
        View::Gpu(id, position) => gpu::draw(canvas, areas.body, app, *id, *position, now),
        View::Users => users::draw(canvas, areas.body, app, now),
        View::Log(id) => log::draw_log(canvas, areas.body, app, *id, now),
        View::Wall => wall::draw(canvas, areas.body, app, now),
        View::Processes => process::draw_processes(canvas, areas.body, app, now),
        View::Findings => findings::draw(canvas, areas.body, app, now),
        View::History => log::draw_history(canvas, areas.body, app),
        View::HangReport => drawn.process_scroll_limit = hang_report::draw(canvas, areas.body, app, now),
        View::Process(key) => {
            drawn.process_scroll_limit = process::draw(canvas, areas.body, app, key, now);
        }
    }
    if app.mode().covers_view() {
        // A dialog hides the labels of the view from clicks.
        canvas.clickable.clear();
    }
    if let Some(dialog) = &app.screen().help {
        help::draw_help(canvas, areas.body, app, dialog);
    }
    help::draw_filter_help(canvas, areas.body, app);
    dialogs::draw_palette(canvas, areas.body, app);
    dialogs::draw_signal_dialog(canvas, areas.body, app, clock);
    dialogs::draw_user_picker(canvas, areas.body, app);
    dialogs::draw_prompt_dialog(canvas, areas.body, app, clock);
    help::draw_hints(canvas, areas.hints, app, clock);
    drawn
}

/// Priorities of the interval and the clock, and of the texts on the left that matter more than the clock.
const INTERVAL: u8 = 1;
const CLOCK: u8 = 5;
const NEEDED: u8 = 11;

/// Draws the header: totals, connection states, findings, interval and clock.
pub(super) fn draw_header(canvas: &mut Canvas<'_>, area: Rect, app: &App, now: Moment) {
    if area.width < 4 {
        return;
    }
    let (x, width) = (area.x + 1, area.width - 2);
    let mut right = right_side(canvas, app, now);
    right.fit(width);
    let mut left = left_side(canvas, app);
    if left.width() + right.width() + 2 > width {
        // The interval is dropped first, before anything on the left.
        right.drop_below_priority(INTERVAL + 1);
    }
    if left.width_from_priority(NEEDED) + right.width() + 2 > width {
        // The clock is dropped next, before the number of hosts and their problems.
        right.drop_below_priority(CLOCK + 1);
    }
    right.draw_right(canvas, x, area.y, width);
    let available = width.saturating_sub(right.width() + 2);
    left.fit(available);
    left.draw(canvas, x, area.y, available);
}

fn left_side(canvas: &Canvas<'_>, app: &App) -> Segments {
    let theme = canvas.theme;
    let (totals, links) = (app.totals(), app.links());
    let mut line = Segments::default();
    line.add(4, 0, short!("gpufleet"), theme.focus);
    let hosts = app.fleet().hosts().len();
    let gpus = totals.gpus;
    if totals.hosts_covered as usize == hosts {
        line.add(12, 2, short!("{hosts} host{} {gpus} GPU{}", plural(hosts), plural(gpus as usize)), theme.plain);
    } else {
        let covered = totals.hosts_covered;
        line.add(12, 2, short!("{gpus} GPU{} on {covered} of {hosts} hosts", plural(gpus as usize)), theme.plain);
    }
    let (hidden, ruled_out) = app.hidden_host_counts();
    if ruled_out > 0 {
        line.add(12, 2, short!("{} of {hosts} hosts shown", hosts - hidden - ruled_out), theme.warn);
    }
    if hidden > 0 {
        line.add(12, 2, short!("{hidden} hidden"), theme.plain);
    }
    for (priority, count, word, style) in [
        (5, links.connecting, "connecting", theme.dim),
        (10, links.down, "down", theme.warn),
        (9, links.stale, "stale", theme.warn),
        (11, links.needs_user, "need you", theme.warn),
    ] {
        if count > 0 {
            line.add(priority, 2, short!("{count} {word}"), style);
        }
    }
    let summaries = || app.fleet().hosts().iter().filter_map(|host| app.host_summary(host));
    let covered = || summaries().filter(|summary| summary.totals.hosts_covered > 0);
    let hung = covered().filter_map(|summary| summary.severity_in_state(GpuState::Hung)).max();
    let suspected = covered().map(crate::app::HostSummary::suspected_count).sum();
    grid::add_counts(&mut line, canvas, totals, hung, suspected, 2);
    let findings = app.findings().counts();
    if findings.firing > 0 {
        let style = findings.worst.map_or(theme.warn, |worst| theme.severity_style(worst));
        line.add(13, 3, short!("{} finding{}", findings.firing, plural(findings.firing as usize)), style);
        line.click(1, Action::Findings);
        if findings.mine > 0 {
            line.add(6, 0, short!(", {} yours", findings.mine), style);
        }
    }
    if findings.pending > 0 {
        line.add(4, 2, short!("{} watched", findings.pending), theme.dim);
    }
    let low_power: usize = summaries().filter(|one| one.is_fresh).map(crate::app::HostSummary::low_power_count).sum();
    if low_power > 0 {
        line.add(7, 2, short!("{low_power} low power"), theme.plain);
    }
    if totals.memory_total_bytes.is_some() {
        let (used, total) = (totals.memory_used_bytes.unwrap_or(0), totals.memory_total_bytes.unwrap_or(0));
        line.add(3, 4, short!("mem {}/{}G", gib(used), gib(total)), theme.plain);
    }
    if let Some(power) = totals.power_watts {
        line.add(2, 3, short!("power {}", watts(power).as_str()), theme.plain);
    }
    line
}

fn right_side(canvas: &Canvas<'_>, app: &App, now: Moment) -> Segments {
    let theme = canvas.theme;
    let mut line = Segments::default();
    match app.fleet().simulated_hosts() {
        0 => {}
        // The panes say which ones.
        some if some < app.fleet().hosts().len() => line.add(9, 0, short!("{some} SIMULATED"), theme.warn),
        _ => line.add(9, 0, short!("SIMULATED"), theme.warn),
    }
    if app.frozen_since().is_some() {
        line.add(10, 3, short!("FROZEN (Z)"), theme.warn);
        line.click(1, Action::Freeze);
    }
    match app.prompts().count() {
        0 => {}
        1 => line.add(8, 3, short!("1 prompt (P)"), theme.warn),
        count => line.add(8, 3, short!("{count} prompts (P)"), theme.warn),
    }
    if app.prompts().count() > 0 {
        line.click(1, Action::OpenPrompts);
    }
    if let Some(collector) = app.relaying_collector() {
        line.add(CLOCK + 1, 3, short!("via {}", shorten_host_name(collector).as_str()), theme.plain);
    }
    line.add(INTERVAL, 3, short!("every {}", interval(app.interval()).as_str()), theme.dim);
    line.add(CLOCK, 3, clock(now, app.settings.utc_offset_seconds), theme.plain);
    line
}
