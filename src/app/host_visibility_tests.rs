use crate::app::testing::{NOW, app, at, press, report};
use crate::app::{App, Density, Effect, Event, Mode, View};
use crate::fleet::HostId;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

const SIZE: (u16, u16) = (120, 40);

fn names(app: &App) -> Vec<&str> {
    app.visible_hosts().iter().map(|index| app.fleet().hosts()[*index].name().as_str()).collect()
}

fn filter(app: &mut App, text: &str) {
    press(app, "/");
    app.update(Event::Key(KeyEvent::new(KeyCode::Char('u'), KeyModifiers::CONTROL)), at(NOW));
    press(app, text);
    press(app, "\n");
}

#[test]
fn a_host_is_hidden_and_shown_again_and_its_neighbour_is_selected() {
    let mut app = app(4, 8, SIZE);
    press(&mut app, "→D");
    assert_eq!(names(&app), ["hgx-01", "hgx-03", "hgx-04"]);
    assert_eq!(app.notice(at(NOW)), Some("hgx-02 is hidden; H shows it again"));
    assert_eq!(app.screen().host, 2);
    assert_eq!(app.hidden_host_counts(), (1, 0));
    assert!(app.rows().iter().all(|row| row.host_name != "hgx-02"), "its processes leave the list");
    let (kept, total) = app.row_counts();
    assert!(kept < total, "and the list says so");
    // The next host skips it, and the wall has it not.
    press(&mut app, "k\n]");
    assert!(matches!(app.screen().view(), View::Host(HostId(3))), "{:?}", app.screen().view());
    assert_eq!(app.wall_lines().len(), 3);
    press(&mut app, "1H");
    assert_eq!(names(&app).len(), 4);
    press(&mut app, "DDDD");
    assert_eq!(names(&app).len(), 1, "the last one stays");
}

#[test]
fn a_pinned_host_stands_first() {
    let mut app = app(4, 8, SIZE);
    press(&mut app, "→→*");
    assert_eq!(names(&app), ["hgx-03", "hgx-01", "hgx-02", "hgx-04"]);
    assert_eq!(app.screen().host, 2, "it stays selected");
    press(&mut app, "→");
    assert_eq!(app.screen().host, 0);
    press(&mut app, "←*");
    assert_eq!(names(&app), ["hgx-01", "hgx-02", "hgx-03", "hgx-04"]);
}

#[test]
fn a_filter_takes_hosts_out_of_the_grid_that_it_rules_out() {
    let mut app = app(4, 8, SIZE);
    filter(&mut app, "host:hgx-03");
    assert_eq!(names(&app), ["hgx-03"]);
    assert_eq!((app.hidden_host_counts(), app.screen().host), ((0, 3), 2));
    filter(&mut app, "user:erika");
    assert_eq!(names(&app).len(), 4, "what is asked of processes rules out no host");
    filter(&mut app, "host:nowhere");
    assert!(names(&app).is_empty());
    press(&mut app, "→j\n[]vD*");
    press(&mut app, "1\u{1b}");
    assert_eq!(names(&app).len(), 4);
}

#[test]
fn a_frozen_picture_stands_still_and_nothing_is_missed() {
    let mut app = app(2, 8, SIZE);
    let before = app.fleet().hosts()[0].snapshots_seen;
    press(&mut app, "Z");
    assert_eq!(app.frozen_since(), Some(at(NOW)));
    for seconds in [NOW + 5, NOW + 10] {
        report(&mut app, 0, 8, seconds);
        app.update(Event::Ticked, at(seconds));
        app.refresh_derived_state();
    }
    assert_eq!(app.fleet().hosts()[0].snapshots_seen, before);
    assert_eq!(app.live_fleet().hosts()[0].snapshots_seen, before + 2);
    assert_eq!(app.display_time(at(NOW + 10)), at(NOW));
    press(&mut app, "→\t↓");
    assert_eq!((app.screen().host, app.mode()), (1, Mode::List), "one moves about in it");
    press(&mut app, "Z");
    assert_eq!(app.frozen_since(), None);
    assert_eq!(app.fleet().hosts()[0].snapshots_seen, before + 2);
}

#[test]
fn density_is_chosen_and_said() {
    let mut app = app(6, 8, SIZE);
    let rows = |app: &App| app.screen_layout(SIZE).grid.expect("a grid").pane_rows;
    let auto = rows(&app);
    press(&mut app, "c");
    assert!(rows(&app) < auto);
    assert_eq!((app.density, app.notice(at(NOW))), (Density::Compact, Some("density compact")));
    press(&mut app, "f");
    assert!(app.screen_layout(SIZE).grid.expect("a grid").overflows());
    press(&mut app, "a");
    assert_eq!(rows(&app), auto);
}

#[test]
fn the_palette_does_what_is_chosen_in_it() {
    let mut app = app(3, 8, SIZE);
    press(&mut app, ":");
    assert_eq!(app.mode(), Mode::Palette);
    press(&mut app, "wall\n");
    assert_eq!((app.mode(), app.screen().view()), (Mode::Wall, &View::Wall));
    press(&mut app, ":quit");
    assert!(matches!(press(&mut app, "\n")[..], [Effect::Quit]));
    press(&mut app, "1:q\u{1b}");
    assert_eq!(app.mode(), Mode::Grid);
    press(&mut app, "\t:sort by the next\n");
    assert_eq!(app.screen().list.order().key, crate::fleet::SortKey::ALL[1]);
    press(&mut app, ":no such thing\n");
    assert_eq!(app.mode(), Mode::List);
    app.settings.is_readonly = true;
    press(&mut app, ":send\n");
    assert!(app.signals().dialog().is_none());
}
