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

use super::layout::Layout;
use super::pen::Pen;
use super::theme::Theme;
use super::{
    dialogs, findings, gpu, grid, header, help, hints, history, host, list, log, palette, process, processes, signals,
    user_picker, users, wall,
};
use crate::app::arrange::MIN_SIZE;
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
    let mut pen = Pen { buffer, theme: &theme };
    if area.width < MIN_SIZE.0 || area.height < MIN_SIZE.1 {
        let words = format!("needs {}x{}, this is {}x{}", MIN_SIZE.0, MIN_SIZE.1, area.width, area.height);
        pen.fit(area.x, area.y, area.width, &words, theme.plain);
        return;
    }
    // A picture that stands still is of another moment than what lies over it.
    let (clock, now) = (now, app.shown_at(now));
    let size = (area.width, area.height);
    let arrangement = app.arrangement(size);
    let layout = Layout::of(area, &arrangement);
    header::draw(&mut pen, layout.header, app, now);
    match app.screen().view() {
        View::Overview => {
            grid::draw(&mut pen, layout.grid, app, &arrangement, now);
            list::draw(&mut pen, layout.list, app, now);
        }
        View::Host(id) => {
            if let Some(host) = app.fleet().host(*id) {
                host::draw(&mut pen, layout.body, app, host, app.host_shape(size), now);
            }
        }
        View::Gpu(id, position) => gpu::draw(&mut pen, layout.body, app, *id, *position, now),
        View::Users => users::draw(&mut pen, layout.body, app, now),
        View::Log(id) => log::draw(&mut pen, layout.body, app, *id, now),
        View::Wall => wall::draw(&mut pen, layout.body, app, now),
        View::Processes => processes::draw(&mut pen, layout.body, app, now),
        View::Findings => findings::draw(&mut pen, layout.body, app, now),
        View::History => history::draw(&mut pen, layout.body, app),
        View::Process(key) => process::draw(&mut pen, layout.body, app, key, now),
    }
    if let Some(top) = app.screen().help {
        help::draw(&mut pen, layout.body, app, top);
    }
    palette::draw(&mut pen, layout.body, app);
    signals::draw(&mut pen, layout.body, app, clock);
    user_picker::draw(&mut pen, layout.body, app);
    dialogs::draw(&mut pen, layout.body, app, clock);
    hints::draw(&mut pen, layout.hints, app, clock);
}
