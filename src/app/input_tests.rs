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
}

#[test]
fn the_wheel_scrolls_the_part_under_the_pointer_and_keeps_focus_and_selection() {
    let mut app = app(6, 8, SIZE);
    let layout = app.screen_layout(SIZE);
    let (list, rows) = (layout.grid.expect("a grid").rows() + 3, app.rows().len());
    let capacity = usize::from(layout.list_rows) - 3;
    let first = |app: &App| app.screen().list.top(rows, capacity);
    press(&mut app, "\t↓↓↓↓\t");
    mouse(&mut app, MouseEventKind::ScrollDown, 30, list);
    assert_eq!((app.mode(), first(&app), app.screen().list.index()), (Mode::Grid, 3, 4));
    mouse(&mut app, MouseEventKind::ScrollDown, 30, list);
    assert_eq!((first(&app), app.screen().list.index()), (6, 6), "the selection stays visible");
    for _ in 0..rows {
        mouse(&mut app, MouseEventKind::ScrollDown, 30, list);
    }
    assert_eq!(first(&app), rows - capacity, "the last row is at the bottom");
    // All panes are visible: there is nothing to scroll.
    mouse(&mut app, MouseEventKind::ScrollDown, 30, 5);
    assert_eq!((app.screen().host, first(&app)), (0, rows - capacity));
    let mut many = reported_once(64, 8, (80, 24));
    press(&mut many, "\t");
    mouse(&mut many, MouseEventKind::ScrollDown, 30, 4);
    assert_eq!((many.screen().grid_top, many.mode()), (1, Mode::List));
    let grid = many.screen_layout((80, 24)).grid.expect("a grid");
    assert_eq!(many.screen().host, usize::from(grid.per_row), "the first visible host is selected");
    // Beside the list nothing scrolls.
    press(&mut app, "3");
    let index = app.screen().list.index();
    mouse(&mut app, MouseEventKind::ScrollUp, 30, 36);
    assert_eq!(app.screen().list.index(), index);
}

/// Clicks the middle of a text, as the event loop does.
#[track_caller]
fn click_text(app: &mut App, text: &str) -> Vec<Effect> {
    let (column, row) = find_text(app, text);
    let column = column + text.chars().count() as u16 / 2;
    match crate::ui::action_at(app, column, row, at(NOW)) {
        Some(action) => app.update(Event::Clicked(action), at(NOW)),
        None => click(app, column, row),
    }
}

#[test]
fn clicks_on_column_headers_sort_and_a_second_click_reverses() {
    use crate::fleet::{SortKey, UserSort};
    let mut app = app(6, 8, SIZE);
    click_text(&mut app, "PID USER");
    assert_eq!(app.screen().list.order().key, SortKey::User);
    assert!(!app.screen().list.order().is_descending);
    click_text(&mut app, "PID USER");
    assert!(app.screen().list.order().is_descending);
    click_text(&mut app, "COMMAND");
    assert_eq!(app.screen().list.order().key, SortKey::Command);
    click_text(&mut app, "group job");
    assert_ne!(app.screen().list.order().group, crate::fleet::Group::Job);
    press(&mut app, "4");
    click_text(&mut app, "IDLE MEM");
    assert_eq!(app.users_view().order(), (UserSort::IdleMemory, false));
    click_text(&mut app, "IDLE MEM");
    assert_eq!(app.users_view().order(), (UserSort::IdleMemory, true));
}

#[test]
fn clicks_on_hints_do_what_their_keys_do() {
    let mut app = app(6, 8, (200, 60));
    click_text(&mut app, "2 wall");
    assert_eq!(app.screen().view(), &View::Wall);
    click_text(&mut app, "? help");
    assert_eq!(app.mode(), Mode::Help);
    assert!(click_text(&mut app, "q close").is_empty());
    assert_eq!(app.mode(), Mode::Wall);
    press(&mut app, "3T");
    assert_eq!(app.mode(), Mode::SignalDialog);
    click_text(&mut app, "Esc close");
    assert_eq!(app.mode(), Mode::Processes);
    press(&mut app, "T");
    // The dialog covers the headers of the list.
    click_text(&mut app, "HOST");
    assert_eq!(app.screen().list.order().key, crate::fleet::SortKey::Trouble);
    press(&mut app, "\u{1b}/user");
    click_text(&mut app, "Esc clear");
    assert_eq!((app.mode(), app.list_filter().text()), (Mode::Processes, ""));
    assert!(matches!(click_text(&mut app, "q quit")[..], [Effect::Quit]));
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
    press(&mut app, "?");
    let top = |app: &App| app.screen().help.map(|help| help.top);
    let (column, row) = (60, 5);
    assert!(click(&mut app, column, row).is_empty());
    assert_eq!(app.screen().host, 0);
    mouse(&mut app, MouseEventKind::ScrollDown, column, row);
    assert_eq!(top(&app), Some(WHEEL_ROWS), "the wheel scrolls it");
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
