//! Every view at every size with few and many hosts, and the styles where colour carries meaning.

use super::testing::{cells_at, lines, show_cells};
use super::theme::Theme;
use crate::app::mixed_fleet::mixed_fleet;
use crate::app::testing::{LATER, NOW, app, app_with_hung_jobs, at, host_states, press, reported_once};
use crate::app::{App, ColorDepth, DisplaySettings, Event, ThemeChoice};
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier, Style};

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];
const HOSTS: [usize; 4] = [1, 4, 16, 64];

/// The views that hosts make longer.
const VIEWS: [(&str, &str); 5] = [("grid", ""), ("wall", "2↓→"), ("processes", "3"), ("users", "4↓"), ("list", "1\t↓")];

/// Every other view, from the one before.
const DETAIL_VIEWS: [(&str, &str); 8] = [
    ("host", "21→\n"),
    ("gpu", "\n"),
    ("log", "\u{1b}L"),
    ("findings", "\u{1b}5"),
    ("history", "H"),
    ("unfolded", "\u{1b}3→"),
    ("process", "↓\n"),
    ("picker", "\u{1b}u"),
];

#[test]
fn every_view_with_few_and_many_hosts() {
    for hosts in HOSTS {
        let mut app = if hosts == 64 { reported_once(hosts, 8, SIZES[0]) } else { app(hosts, 8, SIZES[0]) };
        for size in SIZES {
            app.update(Event::Resized(size.0, size.1), at(NOW));
            for (view, keys) in VIEWS {
                press(&mut app, keys);
                let cells = cells_at(&app, size, NOW);
                show_cells(&format!("size-{view}-{hosts:02}"), &cells);
                insta::assert_snapshot!(format!("{view}_{}x{}_{hosts:02}", size.0, size.1), lines(&cells).join("\n"));
            }
            press(&mut app, "g\t");
        }
    }
}

#[test]
fn findings_of_sixteen_hosts() {
    let mut app = app_with_hung_jobs(16, SIZES[0]);
    press(&mut app, "5↓");
    for size in SIZES {
        app.update(Event::Resized(size.0, size.1), at(LATER));
        let cells = cells_at(&app, size, LATER);
        show_cells("size-findings-16", &cells);
        insta::assert_snapshot!(format!("findings_{}x{}_16", size.0, size.1), lines(&cells).join("\n"));
    }
}

#[test]
fn what_is_below_the_views_at_every_size() {
    for size in SIZES {
        let mut app = app(6, 8, size);
        for (view, keys) in DETAIL_VIEWS {
            press(&mut app, keys);
            let cells = cells_at(&app, size, NOW);
            show_cells(&format!("size-{view}"), &cells);
            insta::assert_snapshot!(format!("deeper_{view}_{}x{}", size.0, size.1), lines(&cells).join("\n"));
        }
    }
}

/// A style by a letter: what a colour means, whatever it looks like.
fn letter(cell: &Cell, theme: &Theme) -> char {
    let is = |style: Style| (cell.fg, cell.modifier) == (style.fg.unwrap_or(Color::Reset), style.add_modifier);
    let ramp = |level: usize| is(theme.ramp[level]);
    match () {
        () if is(theme.plain) => ' ',
        () if is(theme.dim) => 'd',
        () if is(theme.busy) => 'b',
        () if is(theme.warn) => 'w',
        () if is(theme.crit) => 'C',
        () if is(theme.track) => 't',
        () if is(theme.focus) => 'f',
        // The end of the ramp is the blue of work, in some themes to the digit.
        () if ramp(4) => 'b',
        () => (0..4).find(|level| ramp(*level)).map_or('?', |level| char::from(b'0' + level as u8)),
    }
}

fn letters(cells: &Buffer, theme: &Theme) -> Vec<String> {
    let rows = cells.content().chunks(usize::from(cells.area.width));
    rows.map(|row| row.iter().map(|cell| letter(cell, theme)).collect::<String>().trim_end().to_owned()).collect()
}

/// Screens on which colour says something, each with the keys that lead to it from the one before.
type Screens = &'static [(&'static str, &'static str)];

/// Apps with such screens, and when those are drawn.
fn coloured(size: (u16, u16)) -> [(App, u64, Screens); 3] {
    [
        (app_with_hung_jobs(6, size), LATER, &[("grid", ""), ("findings", "5"), ("host", "1→→→\n")]),
        (host_states(size), NOW, &[("states", ""), ("wall", "2")]),
        (mixed_fleet(size), NOW, &[("mixed", "")]),
    ]
}

#[test]
fn styles_where_colour_carries_meaning() {
    let size = (120, 40);
    for (mut app, seconds, screens) in coloured(size) {
        let usual = app.settings;
        for (name, keys) in screens {
            app.settings = usual;
            press(&mut app, keys);
            let theme = Theme::new(app.settings);
            let cells = cells_at(&app, size, seconds);
            let dark = letters(&cells, &theme);
            let both = lines(&cells).into_iter().zip(&dark);
            // Below each line, letters for its styles: dim, busy, warn, Critical, track, focus, 0 to 3 of the wall's ramp.
            let rows = both.map(|(text, styles)| if styles.is_empty() { text } else { format!("{text}\n{styles}") });
            insta::assert_snapshot!(format!("styles_{name}"), rows.collect::<Vec<_>>().join("\n"));
            // A light page and few colours change what a style looks like, and no cell's style.
            for color_depth in [ColorDepth::TrueColor, ColorDepth::Indexed256] {
                app.settings = DisplaySettings { theme: ThemeChoice::Light, color_depth, ..DisplaySettings::default() };
                assert_eq!(letters(&cells_at(&app, size, seconds), &Theme::new(app.settings)), dark, "{name}, light");
            }
            // Without colours what needs a person is still told apart, by weight.
            app.settings = DisplaySettings { theme: ThemeChoice::Mono, ..DisplaySettings::default() };
            let mono = cells_at(&app, size, seconds);
            for (row, letters) in dark.iter().enumerate() {
                for (column, letter) in letters.chars().enumerate() {
                    let cell = &mono[(column as u16, row as u16)];
                    let expected = match letter {
                        'w' | 'f' => Modifier::BOLD,
                        'C' => Modifier::BOLD | Modifier::REVERSED,
                        'd' | 't' => Modifier::DIM,
                        '?' => continue,
                        _ => Modifier::empty(),
                    };
                    assert_eq!((cell.fg, cell.modifier), (Color::Reset, expected), "{name} at {column},{row}");
                }
            }
        }
    }
}

#[test]
fn ascii_is_ascii_in_every_view_at_every_size() {
    for (mut app, seconds, screens) in coloured(SIZES[0]) {
        app.settings.ascii = true;
        for (name, keys) in screens {
            press(&mut app, keys);
            for size in SIZES {
                app.update(Event::Resized(size.0, size.1), at(seconds));
                let cells = cells_at(&app, size, seconds);
                show_cells(&format!("ascii-{name}"), &cells);
                assert!(lines(&cells).join("\n").is_ascii(), "{name}: {}", lines(&cells).join("\n"));
            }
        }
    }
    for size in SIZES {
        let mut app = app(4, 8, size);
        app.settings.ascii = true;
        for (view, keys) in VIEWS.into_iter().chain(DETAIL_VIEWS) {
            press(&mut app, keys);
            let text = lines(&cells_at(&app, size, NOW)).join("\n");
            assert!(text.is_ascii(), "{view}: {text}");
        }
    }
}
