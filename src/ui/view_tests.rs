//! Whole screens of the views beside the overview.

use super::testing::{cells_at, lines, show_cells, text};
use crate::app::testing::{LATER, NOW, app, host_states, press, reported_once, stuck};
use crate::app::{ChartSpan, Metric, View};
use crate::fleet::HostId;

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];

/// Draws, leaves the picture for a person to look at, and compares the words.
macro_rules! assert_screen {
    ($name:literal, $app:expr, $size:expr, $seconds:expr) => {
        let cells = cells_at($app, $size, $seconds);
        show_cells($name, &cells);
        insta::assert_snapshot!(format!(concat!($name, "_{}x{}"), $size.0, $size.1), lines(&cells).join("\n"));
    };
}

#[test]
fn one_gpu_in_full() {
    for size in SIZES {
        let mut app = stuck(6, size);
        press(&mut app, "→→→\n↓↓\nw");
        assert_screen!("gpu", &app, size, LATER);
        assert!(matches!(app.screen().view(), View::Gpu(HostId(3), _)));
    }
}

#[test]
fn a_host_with_one_gpu_and_one_with_sixteen() {
    for gpus in [1, 16] {
        let size = (120, 40);
        let mut app = app(2, gpus, size);
        press(&mut app, "\nvvv");
        let cells = cells_at(&app, size, NOW);
        show_cells(&format!("host-{gpus:02}"), &cells);
        insta::assert_snapshot!(format!("host_of_{gpus:02}_120x40"), lines(&cells).join("\n"));
    }
}

#[test]
fn charts_change_their_metric_and_their_span() {
    let size = (120, 40);
    let mut app = app(1, 4, size);
    press(&mut app, "\n");
    assert!(text(&app, size).contains("GPU over 10m"), "{}", text(&app, size));
    press(&mut app, "vvww");
    assert_eq!((app.screen().metric, app.screen().span), (Metric::Memory, ChartSpan::TwoHours));
    let screen = text(&app, size);
    assert!(screen.contains("memory over 2h") && screen.contains("-1h") && screen.contains(" 80G│"), "{screen}");
    press(&mut app, "→↓\n←");
    assert_eq!(app.screen().view(), &View::Gpu(HostId(0), 2));
    press(&mut app, "\u{1b}");
    assert_eq!((app.screen().view(), app.screen().gpu), (&View::Host(HostId(0)), 2));
}

#[test]
fn the_wall_at_every_size() {
    for (hosts, size) in [(4, (80, 24)), (16, (200, 60)), (64, (80, 24)), (64, (120, 40))] {
        let mut app = reported_once(hosts, 8, size);
        press(&mut app, "2↓↓↓→→→→");
        let cells = cells_at(&app, size, NOW);
        show_cells(&format!("wall-{hosts}"), &cells);
        insta::assert_snapshot!(format!("wall_{}x{}_{hosts:02}", size.0, size.1), lines(&cells).join("\n"));
    }
    let size = (120, 40);
    let mut app = host_states(size);
    press(&mut app, "2");
    assert_screen!("wall_states", &app, size, NOW);
}

#[test]
fn from_the_wall_into_a_host_and_back() {
    let size = (120, 40);
    let mut app = app(6, 8, size);
    press(&mut app, "2↓↓→→→\n");
    assert_eq!((app.screen().view(), app.screen().gpu), (&View::Host(HostId(2)), 3));
    press(&mut app, "]\u{1b}");
    assert_eq!(app.screen().view(), &View::Wall);
    press(&mut app, "1→2");
    assert_eq!(app.screen().wall.host, app.screen().host);
}

#[test]
fn users_at_every_size() {
    for size in SIZES {
        let mut app = stuck(6, size);
        press(&mut app, "4↓");
        assert_screen!("users", &app, size, LATER);
    }
}

#[test]
fn users_are_sorted_and_lead_to_their_processes() {
    let size = (120, 40);
    let mut app = app(6, 8, size);
    press(&mut app, "4");
    let names = |app: &crate::app::App| -> Vec<String> {
        app.user_view().list().iter().map(|user| user.sum.who.to_string()).collect()
    };
    assert_eq!(names(&app)[0], "erika", "who holds the most");
    press(&mut app, ",");
    assert!(names(&app).is_sorted(), "{:?}", names(&app));
    press(&mut app, "r");
    assert!(names(&app).iter().rev().is_sorted());
    let who = names(&app)[0].clone();
    press(&mut app, "g\n");
    assert_eq!(app.screen().view(), &View::Processes);
    assert!(!app.rows().is_empty() && app.rows().iter().all(|row| *row.who == *who));
    press(&mut app, "\u{1b}");
    assert_eq!(app.screen().view(), &View::Users);
}

#[test]
fn the_log_of_a_host_tells_what_was_tried() {
    let size = (120, 40);
    let mut app = host_states(size);
    press(&mut app, "→→L");
    assert_screen!("log", &app, size, NOW);
    press(&mut app, "↑↑");
    assert_eq!(app.screen().log_back, 0, "all of it is on the screen");
    press(&mut app, "\u{1b}");
    assert_eq!(app.screen().view(), &View::Overview);
}
