//! One snapshot per screen and size class, for the layout, which no assertion can show.
//!
//! Facts such as a word, a number or a style belong into `view_tests`, properties of all screens into
//! `invariant_tests`: a changed label must not touch every file. `GPUFLEET_SCREENS=FOLDER` writes the screens with
//! colours for a person to look at.

use super::testing::{cells_at, lines, show_cells};
use crate::app::hang_report_actions::tests::app_with_hang_report;
use crate::app::mixed_fleet::mixed_fleet;
use crate::app::testing::{LATER, NOW, app, app_with_hung_jobs, at, host_states, press, reported_once};
use crate::app::{App, Event};

type Size = (u16, u16);
const SMALL: Size = (80, 24);
const MEDIUM: Size = (120, 40);
const LARGE: Size = (200, 60);

fn six_hosts(size: Size) -> App {
    app(6, 8, size)
}

fn four_hosts_in_ascii(size: Size) -> App {
    let mut app = app(4, 8, size);
    app.settings.ascii = true;
    app
}

/// A screen: its name, its fleet, the keys that lead there, its sizes.
type Screen = (&'static str, fn(Size) -> App, &'static str, &'static [Size]);

const SCREENS: [Screen; 16] = [
    ("grid", six_hosts, "", &[SMALL, MEDIUM, LARGE]),
    ("grid_of_one_host", |size| app(1, 8, size), "", &[SMALL]),
    ("grid_of_64_hosts", |size| reported_once(64, 8, size), "", &[MEDIUM]),
    ("grid_of_host_states", host_states, "", &[SMALL, MEDIUM]),
    ("grid_of_mixed_hosts", mixed_fleet, "", &[LARGE]),
    ("grid_in_ascii", four_hosts_in_ascii, "", &[SMALL]),
    ("wall", |size| reported_once(64, 8, size), "2↓↓↓→→→→", &[SMALL, LARGE]),
    ("wall_of_host_states", host_states, "2", &[MEDIUM]),
    ("host", six_hosts, "→→→\n↓↓↓↓", &[SMALL, MEDIUM, LARGE]),
    ("processes", six_hosts, "3", &[SMALL, LARGE]),
    ("processes_unfolded", six_hosts, "3↓→↓", &[MEDIUM]),
    ("connection_log", host_states, "→→L", &[SMALL]),
    ("help", six_hosts, "?", &[MEDIUM]),
    ("palette", six_hosts, "3:sort↓", &[SMALL]),
    ("user_picker", six_hosts, "u↓", &[SMALL]),
    ("signal_dialog", six_hosts, "3/user:erika gpus=8\nT", &[SMALL]),
];

/// Screens of a fleet with findings, each with the keys that lead there from the one before.
const SCREENS_WITH_FINDINGS: [(&str, &str, &[Size]); 5] = [
    ("findings", "5", &[SMALL, MEDIUM]),
    ("history", "H", &[MEDIUM]),
    ("users", "\u{1b}\u{1b}4↓", &[SMALL, MEDIUM]),
    ("gpu", "\u{1b}1→→→\n↓↓\nw", &[SMALL, LARGE]),
    ("process", "\u{1b}\u{1b}3\n", &[SMALL, MEDIUM]),
];

fn assert_screen(name: &str, app: &mut App, size: Size, seconds: u64) {
    app.update(Event::Resized(size.0, size.1), at(seconds));
    app.refresh_derived_state();
    let cells = cells_at(app, size, seconds);
    show_cells(name, &cells);
    insta::assert_snapshot!(format!("{name}_{}x{}", size.0, size.1), lines(&cells).join("\n"));
}

#[test]
fn screens() {
    for (name, make, keys, sizes) in SCREENS {
        for &size in sizes {
            let mut app = make(size);
            press(&mut app, keys);
            assert_screen(name, &mut app, size, NOW);
        }
    }
}

#[test]
fn screens_with_findings() {
    let mut app = app_with_hung_jobs(6, SMALL);
    for (name, keys, sizes) in SCREENS_WITH_FINDINGS {
        press(&mut app, keys);
        for &size in sizes {
            assert_screen(name, &mut app, size, LATER);
        }
    }
}

#[test]
fn hang_report() {
    let mut app = app_with_hang_report();
    for size in [SMALL, MEDIUM] {
        assert_screen("hang_report", &mut app, size, NOW + 64);
    }
}

#[test]
fn prompt_dialog() {
    let mut app = host_states(MEDIUM);
    press(&mut app, "P");
    // Half a second after it opens, the dialog accepts keys and shows the caret.
    assert_screen("prompt_dialog", &mut app, MEDIUM, NOW + 1);
}
