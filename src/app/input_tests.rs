use super::*;
use crate::app::Event;
use crate::app::testing::{NOW, app, app_with_hung_jobs, at, press, reported_once};
use crossterm::event::KeyModifiers;

const SIZE: (u16, u16) = (120, 40);

fn mouse(app: &mut App, kind: MouseEventKind, column: u16, row: u16) -> Vec<Effect> {
    let event = MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE };
    app.update(Event::Mouse(event), at(NOW))
}

fn click(app: &mut App, column: u16, row: u16) -> Vec<Effect> {
    mouse(app, MouseEventKind::Down(MouseButton::Left), column, row)
}

/// Returns column and row of a text on the screen.
#[track_caller]
fn find_text(app: &App, text: &str) -> (u16, u16) {
    let area = ratatui::layout::Rect::new(0, 0, app.size.0, app.size.1);
    let mut buffer = ratatui::buffer::Buffer::empty(area);
    crate::ui::draw_into(app, &mut buffer, area, at(NOW));
    for row in 0..app.size.1 {
        let line: String = (0..app.size.0).map(|column| buffer[(column, row)].symbol()).collect();
        if let Some(at) = line.find(text) {
            return (line[..at].chars().count() as u16, row);
        }
    }
    panic!("{text} is not on the screen");
}

#[test]
fn a_click_selects_and_a_second_click_opens() {
    let mut app = app(6, 8, SIZE);
    let (column, row) = find_text(&app, "hgx-05");
    assert!(click(&mut app, column, row + 3).is_empty());
    assert_eq!((app.screen().host, app.screen().view()), (4, &View::Overview));
    click(&mut app, column, row + 3);
    assert!(matches!(app.screen().view(), View::Host(id) if id.0 == 4));
    let (column, row) = find_text(&app, "GPU 3");
    click(&mut app, column, row + 1);
    assert_eq!(app.screen().gpu, 3);
    click(&mut app, column, row + 1);
    assert!(matches!(app.screen().view(), View::Gpu(_, 3)));
}

#[test]
fn a_click_on_a_row_focuses_the_list() {
    let mut app = app(6, 8, SIZE);
    let row = app.screen_layout(SIZE).grid.expect("a grid").rows() + 1 + 2;
    click(&mut app, 30, row + 2);
    assert_eq!((app.mode(), app.screen().list.index()), (Mode::List, 2));
    // A click on the frame only focuses the list.
    press(&mut app, "\t");
    click(&mut app, 30, row - 2);
    assert_eq!((app.mode(), app.screen().list.index()), (Mode::List, 2));
    mouse(&mut app, MouseEventKind::ScrollDown, 30, row);
    assert_eq!(app.screen().list.index(), 5);
    mouse(&mut app, MouseEventKind::ScrollUp, 30, row);
    assert_eq!(app.screen().list.index(), 2);
}

#[test]
fn clicks_select_wall_cells_and_findings() {
    let mut app = app(6, 8, SIZE);
    press(&mut app, "2");
    let (column, row) = find_text(&app, "hgx-03");
    let layout = app.wall_layout(SIZE);
    assert!(layout.is_spaced);
    // The third cell of its line.
    click(&mut app, column - 1 + 3 + layout.name + 4, row);
    assert_eq!((app.screen().wall.host, app.screen().wall.gpu), (2, 2));
    click(&mut app, column, row);
    assert_eq!((app.screen().wall.host, app.screen().wall.gpu), (2, 0));
    let mut stuck = app_with_hung_jobs(5, SIZE);
    press(&mut stuck, "5");
    assert!(stuck.findings().list().len() > 1);
    // Below the frame: a heading, a finding, a heading, and the next finding.
    click(&mut stuck, 20, 1 + 1 + 2);
    assert_eq!(stuck.findings().index(), 0, "a heading cannot be selected");
    click(&mut stuck, 20, 1 + 1 + 3);
    assert_eq!(stuck.findings().index(), 1);
}

#[test]
fn clicks_do_not_pass_through_an_overlay() {
    let mut app = app(6, 8, SIZE);
    press(&mut app, "?");
    let top = app.screen().help;
    let (column, row) = (60, 5);
    assert!(click(&mut app, column, row).is_empty());
    assert_eq!(app.screen().host, 0);
    mouse(&mut app, MouseEventKind::ScrollDown, column, row);
    assert!(app.screen().help > top, "the wheel scrolls it");
}

#[test]
fn m_toggles_mouse_reports() {
    let mut app = app(2, 8, SIZE);
    assert!(matches!(press(&mut app, "M")[..], [Effect::Mouse(false)]));
    assert!(matches!(press(&mut app, "M")[..], [Effect::Mouse(true)]));
}

proptest::proptest! {
    #[test]
    fn any_click_or_wheel_step_is_safe(
        view in "[12345\n\t?:/]{0,3}", columns in 1u16..220, rows in 1u16..70,
        clicks in proptest::collection::vec((0u16..230, 0u16..80, 0u8..3), 1..12),
    ) {
        let mut app = reported_once(5, 4, (columns, rows));
        press(&mut app, &view);
        for (column, row, kind) in clicks {
            let kind = match kind {
                0 => MouseEventKind::ScrollUp,
                1 => MouseEventKind::ScrollDown,
                _ => MouseEventKind::Down(MouseButton::Left),
            };
            mouse(&mut app, kind, column, row);
        }
    }
}
