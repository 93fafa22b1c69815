//! The whole screen.
//!
//! ```text
//!  gpufleet  6 hosts 48 GPUs   37 busy  4 idle  2 hung?  5 free    mem 2126/3840G   every 2s   14:02:31     header
//! ┏━ ▸hgx-01 ━━━━━ 7 busy  330/640G ━┓╭─ hgx-02 ─────── 8 busy  495/640G ─╮                                 grid
//! ┃0 ━━━━━━━━━━╸  99% 48/80G 74° erika┃│0 ━━━━━━━━━━╸  96% 62/80G 73° erika │
//! ┗━ cpu 34%  ram 412/1007G ━ load 18 ┛╰─ cpu 71%  ram 388/1007G ─ load 92 ─╯
//! ╭─ Processes 30 ──────────────────────────────────── sort GMEM▼  group job ─╮                             list
//! │ HOST   GPU      PID USER     GMEM▼  SM%  TIME STATE        COMMAND        │
//! ╰─ ▼ 12 more ────────────────────────────────────────── Tab: the keys here ─╯
//!  Enter host  Tab hosts/processes  . sort  t group  ? F1 help  q quit                                      hints
//! ```

use super::areas::ScreenAreas;
use super::canvas::Canvas;
use super::theme::Theme;
use super::{
    findings, gpu, grid, header, help, hints, history, host, list, log, palette, process, processes, prompt_dialog,
    signal_dialog, user_picker, users, wall,
};
use crate::app::layout::MIN_SIZE;
use crate::app::{App, View};
use crate::fleet::Moment;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// Draws the state of the program. Reads only; nothing is computed here that a new reading would change,
/// but for the points of charts: how many there are depends on the screen.
pub fn draw(app: &App, frame: &mut Frame<'_>, now: Moment) {
    let area = frame.area();
    draw_into(app, frame.buffer_mut(), area, now);
}

/// Draws into a part of a buffer.
pub fn draw_into(app: &App, buffer: &mut Buffer, area: Rect, now: Moment) {
    let theme = Theme::new(app.settings);
    let mut canvas = Canvas { buffer, theme: &theme };
    if area.width < MIN_SIZE.0 || area.height < MIN_SIZE.1 {
        let words = format!("needs {}x{}, this is {}x{}", MIN_SIZE.0, MIN_SIZE.1, area.width, area.height);
        canvas.fit(area.x, area.y, area.width, &words, theme.plain);
        return;
    }
    // A picture that stands still is of another moment than what lies over it.
    let (clock, now) = (now, app.display_time(now));
    let size = (area.width, area.height);
    let screen_layout = app.screen_layout(size);
    let areas = ScreenAreas::of(area, &screen_layout);
    header::draw(&mut canvas, areas.header, app, now);
    match app.screen().view() {
        View::Overview => {
            grid::draw(&mut canvas, areas.grid, app, &screen_layout, now);
            list::draw(&mut canvas, areas.list, app, now);
        }
        View::Host(id) => {
            if let Some(host) = app.fleet().host(*id) {
                host::draw(&mut canvas, areas.body, app, host, app.host_layout(size), now);
            }
        }
        View::Gpu(id, position) => gpu::draw(&mut canvas, areas.body, app, *id, *position, now),
        View::Users => users::draw(&mut canvas, areas.body, app, now),
        View::Log(id) => log::draw(&mut canvas, areas.body, app, *id, now),
        View::Wall => wall::draw(&mut canvas, areas.body, app, now),
        View::Processes => processes::draw(&mut canvas, areas.body, app, now),
        View::Findings => findings::draw(&mut canvas, areas.body, app, now),
        View::History => history::draw(&mut canvas, areas.body, app),
        View::Process(key) => process::draw(&mut canvas, areas.body, app, key, now),
    }
    if let Some(top) = app.screen().help {
        help::draw(&mut canvas, areas.body, app, top);
    }
    palette::draw(&mut canvas, areas.body, app);
    signal_dialog::draw(&mut canvas, areas.body, app, clock);
    user_picker::draw(&mut canvas, areas.body, app);
    prompt_dialog::draw(&mut canvas, areas.body, app, clock);
    hints::draw(&mut canvas, areas.hints, app, clock);
}
