//! The combined list alone, and the selected row in short below it.

use super::canvas::Canvas;
use super::{list, process};
use crate::app::App;
use crate::app::layout::processes_layout;
use crate::fleet::Moment;
use ratatui::layout::Rect;

/// Draws the view.
pub(super) fn draw(canvas: &mut Canvas<'_>, body: Rect, app: &App, now: Moment) {
    let (list_rows, detail_rows) = processes_layout(body.height);
    list::draw(canvas, Rect { height: list_rows, ..body }, app, now);
    if let Some(row) = app.rows().get(app.screen().list.index()).filter(|_| detail_rows > 0) {
        process::draw_brief(canvas, Rect { y: body.y + list_rows, height: detail_rows, ..body }, app, row, now);
    }
}
