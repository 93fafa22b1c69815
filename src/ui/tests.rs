//! Whole screens.

use super::testing::{app, cells, host_states, press, text};
use crate::app::{App, ColorDepth, Settings, ThemeChoice};
use ratatui::buffer::Buffer;
use std::fmt::Write as _;

/// A buffer as a terminal would be told it, for looking at.
fn ansi(buffer: &Buffer) -> String {
    use ratatui::style::{Color, Modifier};
    let mut out = String::new();
    for row in buffer.content().chunks(usize::from(buffer.area.width)) {
        let mut covered = 0;
        for cell in row {
            if covered > 0 {
                covered -= 1;
                continue;
            }
            out.push_str("\u{1b}[0");
            match cell.fg {
                Color::Indexed(index) => drop(write!(out, ";38;5;{index}")),
                Color::Rgb(red, green, blue) => drop(write!(out, ";38;2;{red};{green};{blue}")),
                Color::Cyan => out.push_str(";36"),
                Color::Yellow => out.push_str(";33"),
                Color::LightRed => out.push_str(";91"),
                _ => {}
            }
            for (modifier, code) in [(Modifier::BOLD, ";1"), (Modifier::DIM, ";2"), (Modifier::REVERSED, ";7")] {
                if cell.modifier.contains(modifier) {
                    out.push_str(code);
                }
            }
            out.push('m');
            out.push_str(cell.symbol());
            covered = super::format::columns(cell.symbol()).saturating_sub(1);
        }
        out.push_str("\u{1b}[0m\n");
    }
    out
}

/// Writes screens for a person to look at where `GPUFLEET_SCREENS` names a folder.
fn show(name: &str, app: &App, size: (u16, u16)) {
    if let Some(folder) = std::env::var_os("GPUFLEET_SCREENS") {
        let path = std::path::Path::new(&folder).join(format!("{name}-{}x{}.ansi", size.0, size.1));
        std::fs::write(path, ansi(&cells(app, size))).expect("the folder can be written");
    }
}

#[test]
fn overview_at_every_size() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        for hosts in [1, 4, 6, 16] {
            let app = app(hosts, 8, size);
            show(&format!("overview-{hosts:02}"), &app, size);
            insta::assert_snapshot!(format!("overview_{}x{}_{hosts:02}", size.0, size.1), text(&app, size));
        }
    }
}

#[test]
fn host_states_say_what_keeps_the_figures_away() {
    for size in [(120, 40), (80, 24), (200, 60)] {
        let app = host_states(size);
        show("states", &app, size);
        insta::assert_snapshot!(format!("host_states_{}x{}", size.0, size.1), text(&app, size));
    }
}

#[test]
fn one_host_in_full() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut app = app(6, 8, size);
        press(&mut app, "→→→\n↓↓↓↓");
        show("host", &app, size);
        insta::assert_snapshot!(format!("host_{}x{}", size.0, size.1), text(&app, size));
    }
}

#[test]
fn a_process_in_full() {
    let size = (120, 40);
    let mut app = app(6, 8, size);
    press(&mut app, "\t→\n");
    show("process", &app, size);
    insta::assert_snapshot!("process_120x40", text(&app, size));
}

#[test]
fn an_unfolded_job() {
    let size = (120, 40);
    let mut app = app(6, 8, size);
    press(&mut app, "\t↓\n↓↓");
    show("unfolded", &app, size);
    insta::assert_snapshot!("unfolded_120x40", text(&app, size));
}

#[test]
fn help_is_read_from_the_keymap() {
    for size in [(80, 24), (120, 40)] {
        let mut app = app(4, 8, size);
        press(&mut app, "?");
        show("help", &app, size);
        insta::assert_snapshot!(format!("help_{}x{}", size.0, size.1), text(&app, size));
    }
}

#[test]
fn dialogs() {
    let size = (100, 30);
    let mut app = host_states(size);
    press(&mut app, "P");
    show("dialog-host-key", &app, size);
    insta::assert_snapshot!("dialog_host_key", text(&app, size));
}

#[test]
fn ascii_light_and_mono() {
    let size = (120, 40);
    for (name, settings) in [
        ("ascii", Settings { ascii: true, ..Settings::default() }),
        ("light", Settings { theme: ThemeChoice::Light, ..Settings::default() }),
        ("mono", Settings { theme: ThemeChoice::Mono, ..Settings::default() }),
        ("basic", Settings { color_depth: ColorDepth::Basic16, ..Settings::default() }),
    ] {
        let mut app = app(6, 8, size);
        app.settings = settings;
        show(name, &app, size);
    }
}
