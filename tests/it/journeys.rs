//! The real controller in a real terminal: what a person does in a sitting.

use crate::pty::Pty;

const DEMO: [&str; 3] = ["--demo", "--theme", "dark"];

fn assert_restored(pty: &Pty) {
    pty.screen(|screen| {
        assert!(!screen.alternate_screen(), "the main screen is back");
        assert!(!screen.hide_cursor(), "the cursor is back");
        assert!(!screen.bracketed_paste(), "bracketed paste is off");
        assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None, "the mouse is off");
    });
}

#[test]
fn the_demo_shows_a_living_fleet_and_says_that_it_is_simulated() {
    let mut pty = Pty::gpufleet((120, 40), &DEMO, &[]);
    pty.wait_for("6 hosts");
    pty.wait_for("SIMULATED");
    pty.wait("six panes", |text| (1..=6).all(|host| text.contains(&format!("hgx-0{host}"))));
    // One host's driver does not match: its GPUs are not counted, and the header says so.
    pty.wait_for("40 GPUs on 5 of 6 hosts");
    pty.wait_for("NO GPU DATA");
    pty.keys("?");
    pty.wait_for("one screen up");
    pty.keys("\x1b");
    // A key right behind an escape would be one with Alt.
    pty.wait("the help closed", |text| !text.contains("one screen up"));
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    assert_restored(&pty);
}

#[test]
fn enter_zooms_into_a_host_and_escape_comes_back() {
    let mut pty = Pty::gpufleet((120, 40), &DEMO, &[]);
    pty.wait_for("40 GPUs");
    pty.keys("\r");
    pty.wait("the first host alone", |text| text.contains(" hgx-01   8 x NVIDIA H100") && !text.contains("hgx-06"));
    pty.keys("]");
    pty.wait_for(" hgx-02   8 x NVIDIA H100");
    pty.keys("\x1b");
    pty.wait("the grid", |text| (1..=6).all(|host| text.contains(&format!("hgx-0{host}"))));
}

#[test]
fn resizing_down_to_one_cell_and_back_loses_nothing() {
    let pty = Pty::gpufleet((120, 40), &DEMO, &[]);
    pty.wait_for("hgx-06");
    for (columns, rows) in [(80, 24), (39, 9), (1, 1), (200, 60), (20, 50)] {
        pty.resize(columns, rows);
    }
    pty.resize(30, 8);
    pty.wait_for("40x10");
    pty.resize(120, 40);
    pty.wait("six panes", |text| (1..=6).all(|host| text.contains(&format!("hgx-0{host}"))));
}

#[test]
fn the_terminal_is_given_back_however_it_ends() {
    for (name, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let mut pty = Pty::gpufleet((80, 24), &DEMO, &[]);
        pty.wait_for("hgx-01");
        pty.signal(name);
        assert_eq!(pty.exit_code(), code, "SIG{name}");
        assert_restored(&pty);
    }
    let mut pty = Pty::gpufleet((80, 24), &DEMO, &[]);
    pty.wait_for("hgx-01");
    pty.keys("\x03");
    assert_eq!(pty.exit_code(), 0, "Ctrl-C");
    assert_restored(&pty);
}

#[test]
fn one_frame_is_one_write_inside_a_synchronized_update() {
    let mut pty = Pty::gpufleet((120, 40), &DEMO, &[]);
    pty.wait_for("hgx-06");
    pty.keys("q");
    pty.exit_code();
    let bytes = pty.bytes();
    let text = String::from_utf8_lossy(&bytes);
    let begun = text.matches("\x1b[?2026h").count();
    let ended = text.matches("\x1b[?2026l").count();
    assert!(begun > 0, "frames are synchronized");
    // Giving the terminal back ends an update that a panic may have left open.
    assert_eq!(ended, begun + 1);
}
