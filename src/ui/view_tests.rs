//! Facts on the screens: words, numbers, styles and where keys lead.

use super::areas;
use super::testing::{cells, cells_at, lines, show_cells, text};
use super::theme::Theme;
use crate::app::mixed_fleet::mixed_fleet;
use crate::app::testing::{
    LATER, NOW, app, app_with_hung_jobs, at, connecting, host_states, press, report, reported_once, update,
};
use crate::app::{App, ChartSpan, ColorDepth, DisplaySettings, Event, Metric, ThemeChoice, View};
use crate::fleet::{HostId, HostUpdate, LinkError, LinkErrorKind, Misbehavior};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier, Style};

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];

/// A time after the notice about the last key has gone.
const AFTER_NOTICE: u64 = NOW + 30;

/// The sum of the numbers before a word: 37 for `busy` in `37 busy`.
fn count(line: &str, word: &str) -> u32 {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.windows(2).filter(|pair| pair[1] == word).filter_map(|pair| pair[0].parse::<u32>().ok()).sum()
}

/// The position of a text on the screen.
fn find(buffer: &Buffer, needle: &str) -> (u16, u16) {
    let rows = lines(buffer);
    let found = rows.iter().enumerate().find_map(|(y, line)| Some((line[..line.find(needle)?].chars().count(), y)));
    let (x, y) = found.unwrap_or_else(|| panic!("{needle:?} is not drawn:\n{}", rows.join("\n")));
    (x as u16, y as u16)
}

#[test]
fn a_filter_error_is_explained_and_marked() {
    let size = (120, 40);
    let mut app = app(6, 8, size);
    press(&mut app, "/stuck mem>10");
    let screen = text(&app, size);
    let line = screen.lines().last().expect("a line");
    assert_eq!(
        line.split_whitespace().collect::<Vec<_>>().join(" "),
        "/ stuck mem>10▏ `10` is not a size with a unit K, M, G or T: write mem>10G"
    );
    let cells = cells(&app, size);
    let is_amber = |x: u16| cells[(x, 39)].fg == Color::Indexed(214);
    assert!(is_amber(13) && is_amber(14) && !is_amber(12));
}

#[test]
fn a_filtered_list_says_how_many_rows_match_and_by_what() {
    let size = (200, 60);
    let mut app = app(6, 8, size);
    press(&mut app, "3tttg→↓  /mem>30G");
    let screen = text(&app, size);
    let (matching, total) = app.row_counts();
    assert!(matching < total);
    for words in [
        format!("{matching} of {total} shown"),
        "filter mem>30G".into(),
        "2 tagged".into(),
        format!("group {}", app.screen().list.order().group.word()),
    ] {
        assert!(screen.contains(&words), "{words}: {screen}");
    }
}

#[test]
fn a_host_that_misbehaves_is_named_in_the_grid_and_its_view_says_why() {
    for size in SIZES {
        for misbehavior in Misbehavior::ALL {
            let mut app = app(2, 8, size);
            press(&mut app, "\n");
            assert!(!text(&app, size).contains(misbehavior.short_text()));
            update(&mut app, 0, HostUpdate::Misbehaves(misbehavior), NOW);
            let screen = text(&app, size);
            assert!(screen.contains(misbehavior.short_text()), "{screen}");
            press(&mut app, "\u{1b}");
            let screen = text(&app, size);
            assert!(screen.contains("MISBEHAVES"), "{screen}");
        }
    }
    // A line of GPUs leaves room for it.
    let size = (80, 12);
    let mut app = app(12, 90, size);
    update(&mut app, 0, HostUpdate::Misbehaves(Misbehavior::TooManyFacts), NOW);
    let screen = text(&app, size);
    assert!(screen.contains("MISBEHAVES"), "{screen}");
}

#[test]
fn a_finding_leads_to_its_process_and_back() {
    let size = (120, 40);
    let mut app = app_with_hung_jobs(6, size);
    press(&mut app, "5");
    let hung = app.findings().list().iter().position(|finding| finding.rule.word() == "stuck-spin-suspect");
    press(&mut app, &"↓".repeat(hung.expect("a finding")));
    press(&mut app, "\n");
    let screen = lines(&cells_at(&app, size, LATER)).join("\n");
    for words in ["pid", "sft.py --fsdp --resume", "dmitri", "started by", "check"] {
        assert!(screen.contains(words), "{words}: {screen}");
    }
    press(&mut app, "\u{1b}");
    assert_eq!(app.screen().view(), &View::Findings);
    press(&mut app, "\u{1b}");
    assert_eq!(app.screen().view(), &View::Overview);
    press(&mut app, "51");
    assert_eq!(app.screen().view(), &View::Overview);
}

#[test]
fn a_snoozed_finding_is_dim_and_counted_separately() {
    let mut app = app_with_hung_jobs(4, (120, 40));
    press(&mut app, "5");
    let firing = app.findings().counts().firing;
    app.update(Event::Key(KeyEvent::new(KeyCode::Char('x'), KeyModifiers::NONE)), at(LATER));
    let cells = cells_at(&app, (120, 40), LATER);
    let text = lines(&cells);
    let row = text.iter().position(|line| line.contains("snoozed until 15:20: ")).expect("a row");
    assert!(text[1].contains(" 1 snoozed"), "{}", text[1]);
    let header = if firing == 2 { "1 finding ".to_owned() } else { format!("{} findings", firing - 1) };
    assert!(text[0].contains(&header), "{}", text[0]);
    let dim = Theme::new(app.settings).dim;
    let what = text[row].chars().position(|character| character == ':').expect("a colon") as u16 + 4;
    assert_eq!(cells[(what, row as u16)].fg, dim.fg.expect("a colour"));
    assert!(text.iter().any(|line| line.contains("; snoozed until 15:20")));
}

#[test]
fn findings_are_in_sections_with_the_stuck_jobs_on_top() {
    for size in [(60, 20), (80, 24), (120, 40), (200, 60)] {
        let mut app = app_with_hung_jobs(6, size);
        press(&mut app, "5");
        let rows = lines(&cells_at(&app, size, LATER));
        assert!(rows[2].starts_with("┃ STUCK JOBS"), "{size:?}: {}", rows.join("\n"));
        assert!(rows[3].starts_with("┃▸?") && rows[3].contains("busy at idle power  "), "{}", rows[3]);
        let place = |words: &str| rows.iter().position(|line| line.starts_with(&format!("┃ {words}")));
        if size.1 >= 40 {
            let (hardware, watched) = (place("HARDWARE").expect("hardware"), place("WATCHED").expect("watched"));
            assert!(hardware < watched, "{}", rows.join("\n"));
        }
        // Each visible finding is below the heading of its section, and a click on it selects it.
        let listed = app.findings().list().len();
        press(&mut app, "G");
        assert_eq!(app.findings().index(), listed - 1);
        let rows = lines(&cells_at(&app, size, LATER));
        assert_eq!(rows.iter().filter(|line| line.starts_with("┃▸")).count(), 1, "{}", rows.join("\n"));
    }
}

#[test]
fn the_view_of_a_host_begins_with_its_findings() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut app = app_with_hung_jobs(6, size);
        press(&mut app, "→→→\n");
        let rows = lines(&cells_at(&app, size, LATER));
        assert!(rows[1].contains("GPU 4,5  dmitri sft.py") && rows[1].contains("busy at idle power"), "{}", rows[1]);
        assert!(rows.join("\n").contains("BANDWIDTH"), "{}", rows.join("\n"));
        // Findings of other hosts are not here.
        assert!(!rows[1..4].iter().any(|line| line.contains("not reachable")), "{}", rows[1..4].join("\n"));
    }
}

#[test]
fn menus_and_the_filter_help_are_never_cut() {
    use crate::fleet::FILTER_SYNTAX;
    for size in [(40, 10), (60, 20), (80, 24), (120, 12), (200, 60)] {
        let mut app = reported_once(2, 8, size);
        press(&mut app, "3o");
        let menu = text(&app, size);
        for words in ["n problems first", "h host", "g GPU memory", "d state", "w command", "Esc cancel"] {
            assert!(menu.contains(words), "{words} at {size:?}:\n{menu}");
        }
        press(&mut app, "\u{1b}/user:");
        let mut seen = String::new();
        for _ in 0..FILTER_SYNTAX.len() {
            app.update(Event::Key(KeyEvent::new(KeyCode::F(1), KeyModifiers::NONE)), at(NOW));
            if app.list_filter().line().is_none_or(|line| line.help_page.is_none()) {
                break;
            }
            let page = text(&app, size);
            assert!(page.contains("Filter syntax") && page.contains("/ user:"), "{size:?}:\n{page}");
            seen.push_str(&page.replace(['┃', '\n'], " "));
        }
        let seen = seen.split_whitespace().collect::<Vec<_>>().join(" ");
        for (example, meaning) in FILTER_SYNTAX {
            assert!(seen.contains(&format!("{example} {meaning}")), "{example}, {meaning} at {size:?}:\n{seen}");
        }
        assert!(!text(&app, size).contains("Filter syntax"), "F1 closes it after the last page");
    }
}

#[test]
fn an_empty_list_of_findings_says_why() {
    let size = (80, 24);
    let mut app = reported_once(1, 0, size);
    press(&mut app, "5");
    assert!(text(&app, size).contains("Nothing looks wrong."), "{}", text(&app, size));
    let mut app = connecting(&["a".to_owned()], size);
    press(&mut app, "5");
    assert!(text(&app, size).contains("No data from any host yet."));
}

#[test]
fn header_panes_and_host_views_agree() {
    let size = (200, 60);
    let mut app = app(6, 8, size);
    let overview = text(&app, size);
    let mut lines = overview.lines();
    let header = lines.next().expect("a header");
    let titles: Vec<&str> = lines.filter(|line| line.contains("hgx-0") && line.contains("busy")).collect();
    for word in ["busy", "idle", "free"] {
        let panes: u32 = titles.iter().map(|line| count(line, word)).sum();
        assert_eq!(panes, count(header, word), "{word}");
        assert!(panes > 0);
    }
    let bars = overview.matches("z idle").count() as u32;
    assert_eq!(bars, count(header, "idle"));
    assert_eq!(overview.matches("· free").count() as u32, count(header, "free"));
    assert_eq!(overview.matches("low 10").count() as u32, count(header, "low"));
    // The view of each host has the GPUs of its pane.
    for host in 0..6 {
        press(&mut app, if host == 0 { "\n" } else { "]" });
        let full = text(&app, size);
        assert!(full.contains(&format!("hgx-{:02}  live   8 x NVIDIA H100", host + 1)), "{full}");
        assert!((0..8).all(|gpu| full.contains(&format!("GPU {gpu} "))), "{full}");
    }
}

#[test]
fn host_names_of_every_script_keep_the_frames_aligned() {
    let size = (120, 40);
    let names = [
        "größe-01",
        "大きい計算機-0002",
        "e\u{301}te\u{301}",
        "\u{202e}evil\u{1b}[2J",
        "ثلاجة",
        "a-very-long-host-name-17.example",
    ];
    let mut app = connecting(&names.map(str::to_owned), size);
    for host in 0..names.len() {
        report(&mut app, host, 8, NOW);
    }
    let buffer = cells(&app, size);
    let layout = app.screen_layout(size).grid.expect("a grid");
    for column in 0..layout.per_row {
        for row in 2..9 {
            let right = (column + 1) * layout.pane_columns - 1;
            let glyph = buffer[(right, row)].symbol();
            assert!(["│", "┃"].contains(&glyph), "column {right}, row {row}: {glyph:?}");
        }
        assert!(["╮", "┓"].contains(&buffer[((column + 1) * layout.pane_columns - 1, 1)].symbol()));
    }
    let text = lines(&buffer).join("");
    assert!(!text.chars().any(|character| character.is_control() || character == '\u{202e}'));
}

#[test]
fn colours_and_glyphs_have_the_same_meaning() {
    let size = (120, 40);
    let theme = Theme::new(DisplaySettings::default());
    let check = |app: &mut App, seconds: u64, keys: &str, styles: &[(&str, Style)]| {
        press(app, keys);
        let cells = cells_at(app, size, seconds);
        show_cells("styles", &cells);
        for (words, style) in styles {
            let cell = &cells[find(&cells, words)];
            let expected = (style.fg.unwrap_or(Color::Reset), style.add_modifier);
            assert_eq!((cell.fg, cell.modifier), expected, "{words} after {keys:?}");
        }
    };
    let mut hung = app_with_hung_jobs(6, size);
    let grid = [
        ("? hung?", theme.warn),
        ("z idle", theme.dim),
        ("· free", theme.dim),
        ("86°", theme.warn),
        ("erika", theme.plain),
        ("DOWN", theme.warn),
        ("▸hgx-01", theme.focus),
    ];
    check(&mut hung, LATER, "", &grid);
    check(&mut hung, LATER, "5", &[("▸", theme.focus), ("warn, likely", theme.warn)]);
    check(&mut hung, LATER, "1→→→\n", &[("? hung?", theme.warn), ("GPU 1 ", theme.plain)]);
    let mut states = host_states(size);
    let grid = [("connecting", theme.dim), ("NEEDS YOU", theme.warn), ("NO GPU DATA", theme.warn)];
    check(&mut states, NOW, "", &grid);
    let wall = [("▇", theme.ramp[4]), ("DOWN", theme.warn), ("k NEEDS YOU", theme.warn)];
    check(&mut states, NOW, "2", &wall);
}

#[test]
fn a_stale_pane_is_dim() {
    let size = (120, 40);
    let cells = cells(&host_states(size), size);
    let rows = lines(&cells);
    let live = rows[2].chars().position(|character| character == '0').expect("a GPU");
    assert_eq!(cells[(live as u16, 2)].fg, Color::Reset);
    let stale = cells.area.width - 29;
    assert_eq!((cells[(stale, 2)].symbol(), cells[(stale, 2)].fg), ("0", Color::Indexed(245)));
}

/// Returns a letter for the meaning of a style, which does not depend on the colours of a theme.
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
        // The last colour of the ramp equals `busy` in some themes.
        () if ramp(4) => 'b',
        () => (0..4).find(|level| ramp(*level)).map_or('?', |level| char::from(b'0' + level as u8)),
    }
}

fn letters(cells: &Buffer, theme: &Theme) -> Vec<String> {
    let rows = cells.content().chunks(usize::from(cells.area.width));
    rows.map(|row| row.iter().map(|cell| letter(cell, theme)).collect::<String>().trim_end().to_owned()).collect()
}

#[test]
fn every_theme_gives_a_cell_the_same_meaning() {
    let size = (120, 40);
    for (mut app, seconds, keys) in [
        (app_with_hung_jobs(6, size), LATER, &["", "5", "1→→→\n"][..]),
        (host_states(size), NOW, &["", "2"]),
        (mixed_fleet(size), NOW, &[""]),
    ] {
        let usual = app.settings;
        for keys in keys {
            app.settings = usual;
            press(&mut app, keys);
            let dark = letters(&cells_at(&app, size, seconds), &Theme::new(app.settings));
            for color_depth in [ColorDepth::TrueColor, ColorDepth::Indexed256] {
                app.settings = DisplaySettings { theme: ThemeChoice::Light, color_depth, ..DisplaySettings::default() };
                assert_eq!(letters(&cells_at(&app, size, seconds), &Theme::new(app.settings)), dark, "{keys:?}, light");
            }
            // Without colours, weight distinguishes what needs attention.
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
                    assert_eq!((cell.fg, cell.modifier), (Color::Reset, expected), "{keys:?} at {column},{row}");
                }
            }
        }
    }
}

#[test]
fn a_simulation_is_named_in_the_header() {
    use crate::config::HostConfig;
    use crate::fleet::Fleet;
    for size in [(40, 10), (80, 24), (200, 60)] {
        let configs = [std::sync::Arc::new(HostConfig::named("sim"))];
        let mut app = App::new(
            Fleet::new(&configs, true, at(0)),
            DisplaySettings::default(),
            crate::diagnosis::Engine::default(),
            at(0),
        );
        app.update(Event::Resized(size.0, size.1), at(0));
        assert!(text(&app, size).lines().next().expect("a header").contains("SIMULATED"));
    }
}

#[test]
fn only_the_hosts_of_a_simulated_collector_are_marked() {
    use crate::config::HostConfig;
    let size = (160, 40);
    let mut app = app(2, 4, size);
    let config = HostConfig { is_simulated: true, ..HostConfig::named("demo-01") };
    app.update(Event::HostsAdded(vec![(HostId(2), std::sync::Arc::new(config))], Vec::new()), at(NOW));
    report(&mut app, 2, 4, NOW);
    let screen = text(&app, size);
    let lines: Vec<&str> = screen.lines().filter(|line| line.contains("SIMULATED")).collect();
    assert_eq!(lines.len(), 2, "{screen}");
    assert!(lines[0].contains("1 SIMULATED") && lines[0].contains("gpufleet"), "{screen}");
    // The shell of a real host still opens.
    assert!(matches!(press(&mut app, "s")[..], [crate::app::Effect::Shell(HostId(0))]));
    press(&mut app, "→→s");
    assert_eq!(app.notice(at(NOW)), Some("demo-01 is simulated and has no shell"));
}

#[test]
fn a_screen_that_is_too_small_names_the_size_it_needs() {
    let app = reported_once(2, 8, (39, 10));
    assert_eq!(text(&app, (39, 10)).trim_end(), "needs 40x10, this is 39x10");
    assert_eq!(text(&app, (60, 9)).trim_end(), "needs 40x10, this is 60x9");
}

#[test]
fn a_gpu_that_cannot_be_read_shows_its_error() {
    let size = (120, 40);
    let mut app = connecting(&["hgx-01".to_owned()], size);
    report(&mut app, 0, 4, NOW);
    let mut snapshot = crate::app::testing::snapshot(0, 4, NOW);
    snapshot.gpus.error = vec![
        None,
        Some(crate::wire::DeviceError {
            kind: crate::wire::DriverErrorKind::GpuLost,
            code: Some(15),
            message: "GPU is lost".into(),
        }),
    ];
    update(&mut app, 0, crate::fleet::HostUpdate::Snapshot(Box::new(snapshot)), NOW);
    let screen = text(&app, size);
    assert!(screen.contains("1 ! lost  GPU is lost"), "{screen}");
    assert!(screen.lines().next().expect("a header").contains("1 faulty"), "{screen}");
}

/// A fleet with GPU 6 of a host lost.
fn app_with_lost_gpu(size: (u16, u16)) -> App {
    let mut app = app(6, 8, size);
    let mut snapshot = crate::app::testing::snapshot(0, 8, NOW);
    let error = crate::wire::DeviceError {
        kind: crate::wire::DriverErrorKind::GpuLost,
        code: Some(15),
        message: "GPU is lost".into(),
    };
    snapshot.gpus.error = (0..8).map(|gpu| (gpu == 6).then(|| error.clone())).collect();
    update(&mut app, 0, HostUpdate::Snapshot(Box::new(snapshot)), NOW);
    app
}

#[test]
fn the_reason_of_a_faulty_gpu_is_readable_in_every_pane() {
    for size in [(80, 40), (120, 40), (200, 60)] {
        for density in ["c", "a", "f"] {
            let mut app = app_with_lost_gpu(size);
            press(&mut app, density);
            app.refresh_derived_state();
            let level = app.screen_layout(size).grid.expect("a grid").level;
            let is_line = level == crate::app::layout::DetailLevel::Line;
            let words = if is_line { "1 faulty" } else { "6 ! lost" };
            assert!(text(&app, size).contains(words), "{words} at {size:?}, {density}: {}", text(&app, size));
        }
    }
}

#[test]
fn a_suspected_job_is_amber_in_header_grid_list_and_wall() {
    for size in [(60, 20), (80, 24), (120, 40), (200, 60)] {
        let mut app = app(6, 8, size);
        let amber = Theme::new(app.settings).warn.fg.expect("a colour");
        let check = |app: &App, words: &str, is_row: fn(&str) -> bool| {
            let cells = cells_at(app, size, NOW);
            let rows = lines(&cells);
            let y = rows.iter().position(|line| is_row(line) && line.contains(words));
            let y = y.unwrap_or_else(|| panic!("{words:?} at {size:?}:\n{}", rows.join("\n")));
            let x = rows[y][..rows[y].find(words).expect("found")].chars().count();
            assert_eq!(cells[(x as u16, y as u16)].fg, amber, "{words:?} at {size:?}");
        };
        check(&app, "2 stuck?", |line| line.contains("gpufleet") || line.contains("48 GPUs"));
        if app.screen_layout(size).grid.expect("a grid").level == crate::app::layout::DetailLevel::Line {
            check(&app, "? ?", |line| line.contains("hgx-04"));
        } else {
            check(&app, "stuck? 6m", |line| !line.contains("sft.py"));
        }
        check(&app, "stuck?", |line| line.contains("sft.py") || line.contains("dmitri"));
        press(&mut app, "2");
        check(&app, "? ?", |line| line.contains("hgx-04"));
        assert_eq!(app.findings().counts().firing, 0);
    }
}

#[test]
fn a_lost_host_keeps_its_last_values_dimmed_in_every_layout() {
    for size in [(60, 20), (80, 24), (120, 16), (120, 40), (200, 60)] {
        for density in ["c", "a", "f"] {
            let mut app = reported_once(6, 8, size);
            press(&mut app, density);
            let error = || LinkError::new(LinkErrorKind::Closed, "the probe was killed");
            let retry_at = Some(at(NOW + 46));
            update(&mut app, 1, HostUpdate::Down { error: error(), retry_at, attempt: 8 }, NOW);
            app.update(Event::Ticked, at(NOW + 1));
            for connecting in [false, true] {
                if connecting {
                    let phase = crate::fleet::ConnectPhase::Tcp;
                    update(&mut app, 1, HostUpdate::Connecting { attempt: 9, phase }, NOW + 1);
                }
                let cells = cells_at(&app, size, NOW + 1);
                let screen = lines(&cells);
                let layout = app.screen_layout(size).grid.expect("a grid");
                let area = areas::ScreenAreas::of(cells.area, &app.screen_layout(size)).grid;
                if layout.visible_panes() < 2 {
                    continue;
                }
                let pane = areas::pane(area, &layout, 1);
                let rows: Vec<String> = (pane.y..pane.bottom())
                    .map(|y| (pane.x..pane.right()).map(|x| cells[(x, y)].symbol()).collect())
                    .collect();
                let whole = rows.join("\n");
                let seen = whole.chars().filter(|glyph| "▅▆▇".contains(*glyph)).count();
                let values = whole.matches('%').count();
                assert!(seen + values >= 8, "{size:?}, {density}:\n{}", screen.join("\n"));
                let words = if connecting { "connecting" } else { "DOWN" };
                assert!(whole.contains(words), "{size:?}, {density}:\n{whole}");
                let blue = Theme::new(app.settings).busy.fg;
                let is_blue = |y: u16| (pane.x..pane.right()).any(|x| Some(cells[(x, y)].fg) == blue);
                assert!(!(pane.y..pane.bottom()).any(is_blue), "{size:?}, {density}: not dimmed");
                if !connecting && pane.height > 1 {
                    assert!(whole.contains("the probe was killed"), "{size:?}, {density}:\n{whole}");
                }
            }
        }
    }
}

#[test]
fn a_lost_host_says_when_it_is_tried_again_and_by_which_keys() {
    for (size, next) in [((120, 40), "retry in 27s  r now"), ((200, 60), "retry 5 in 27s  r now  L log  last seen ")] {
        let screen = text(&host_states(size), size);
        for words in ["x no route to host (tcp 22)", "DOWN 5m00s", next] {
            assert!(screen.contains(words), "{words}: {screen}");
        }
    }
    let size = (120, 40);
    let mut app = host_states(size);
    press(&mut app, "→→");
    assert!(text(&app, size).lines().last().expect("hints").contains("L log"));
}

#[test]
fn a_size_has_one_layout() {
    let mut app = app(6, 8, (120, 40));
    let before = text(&app, (120, 40));
    for size in [(60, 40), (120, 40), (300, 90), (120, 40), (120, 12), (120, 40)] {
        app.update(Event::Resized(size.0, size.1), at(NOW));
        app.refresh_derived_state();
        if size == (120, 40) {
            assert_eq!(text(&app, size), before);
        }
    }
}

#[test]
fn the_view_of_a_process_scrolls_and_stays_on_its_process() {
    let size = (60, 20);
    let mut app = app_with_hung_jobs(6, size);
    // The hung job is below one that is slowed down by heat.
    press(&mut app, "3j\n");
    if !matches!(app.screen().view(), View::Process(_)) {
        press(&mut app, "\n");
    }
    let draw = |app: &mut App| {
        let mut buffer = Buffer::empty(ratatui::layout::Rect::new(0, 0, size.0, size.1));
        let area = buffer.area;
        let drawn = super::draw_into(app, &mut buffer, area, at(LATER));
        app.set_process_scroll_limit(drawn.process_scroll_limit);
        (lines(&buffer).join("\n"), drawn.process_scroll_limit)
    };
    let view = app.screen().view().clone();
    let (first, limit) = draw(&mut app);
    assert!(limit > 0 && first.contains(&format!("▼ {limit} more lines")), "{limit}: {first}");
    press(&mut app, "jjG");
    let (last, _) = draw(&mut app);
    assert!(last.contains(&format!("▲ {limit} more")) && !last.contains('▼'), "{last}");
    assert_eq!(app.screen().view(), &view, "j does not change the process");
    press(&mut app, "k");
    assert!(draw(&mut app).0.contains("▼ 1 more lines"), "no key press was lost at the end");
    press(&mut app, "]");
    assert_ne!(app.screen().view(), &view);
    assert_eq!(app.screen().process_top, 0);
    press(&mut app, "[");
    assert_eq!(app.screen().view(), &view);
}

#[test]
fn signal_dialogs_name_the_target_and_the_confirmation() {
    let size = (100, 30);
    let mut app = app(6, 8, size);
    press(&mut app, "3/user:erika gpus=8\nT");
    let dialog = text(&app, size);
    for words in [
        "Send TERM",
        "host       hgx-02   GPUs 0-7",
        "user       erika (Erika Example), you",
        "process    pid 5100, the launcher of 8 workers",
        "Send TERM  y",
    ] {
        assert!(dialog.contains(words), "{words}: {dialog}");
    }
    press(&mut app, "\u{1b} K");
    let dialog = text(&app, size);
    assert!(dialog.contains("Send KILL  type hgx-02, then Enter: "), "{dialog}");
    // The first row is of another user, who may not be signalled.
    press(&mut app, "\u{1b}U\u{1b}\u{1b}3gT");
    let dialog = text(&app, size);
    assert!(dialog.contains("dmitri (Dmitri Example), not you") && dialog.contains("Close"), "{dialog}");
}

#[test]
fn charts_change_metric_and_span() {
    let size = (120, 40);
    let mut app = app(1, 4, size);
    press(&mut app, "\n");
    assert!(text(&app, size).contains("util over 10m"), "{}", text(&app, size));
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
fn the_wall_leads_into_a_host_and_back() {
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
fn users_are_sorted_and_lead_to_their_processes() {
    let size = (120, 40);
    let mut app = app(6, 8, size);
    press(&mut app, "4");
    let names =
        |app: &App| -> Vec<String> { app.users_view().list().iter().map(|user| user.sum.who.to_string()).collect() };
    assert_eq!(names(&app)[0], "erika", "the largest user");
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
fn the_connection_log_scrolls_only_if_it_is_long() {
    let size = (120, 40);
    let mut app = host_states(size);
    press(&mut app, "→→L");
    press(&mut app, "↑↑");
    assert_eq!(app.screen().log_scroll, 0, "all lines are visible");
    press(&mut app, "\u{1b}");
    assert_eq!(app.screen().view(), &View::Overview);
}

#[test]
fn special_hosts_are_marked() {
    let size = (200, 60);
    let overview = text(&mixed_fleet(size), size);
    for words in ["41/119G shared", "via nvidia-smi", "NEEDS YOU", "└", "Xorg"] {
        assert!(overview.contains(words), "{words}: {overview}");
    }
}

#[test]
fn a_palette_without_a_match_says_so() {
    let size = (80, 24);
    let mut app = app(6, 8, size);
    press(&mut app, ":zzz");
    assert!(text(&app, size).contains("nothing matches"), "{}", text(&app, size));
}

#[test]
fn a_frozen_view_says_so_and_does_not_change() {
    for size in SIZES {
        let mut app = app(6, 8, size);
        let before = lines(&cells_at(&app, size, NOW));
        press(&mut app, "Z");
        for host in 0..6 {
            report(&mut app, host, 7, AFTER_NOTICE);
        }
        app.update(Event::Ticked, at(AFTER_NOTICE));
        app.refresh_derived_state();
        let frozen = lines(&cells_at(&app, size, AFTER_NOTICE));
        assert!(frozen[0].contains("FROZEN (Z)"), "{}", frozen[0]);
        // All lines but the header stay as they were, ages included.
        assert_eq!(frozen[1..], before[1..]);
        press(&mut app, "Z");
        assert_ne!(lines(&cells_at(&app, size, AFTER_NOTICE))[1..], before[1..]);
    }
}

#[test]
fn hidden_hosts_are_counted_and_pinned_ones_marked() {
    for size in SIZES {
        let mut app = app(6, 8, size);
        press(&mut app, "→DD*");
        for host in 0..6 {
            report(&mut app, host, 8, AFTER_NOTICE);
        }
        app.refresh_derived_state();
        let screen = lines(&cells_at(&app, size, AFTER_NOTICE));
        assert!(screen[0].contains("2 hidden"), "{}", screen[0]);
        assert!(!screen.join("\n").contains("hgx-02"));
        assert!(screen.iter().any(|line| line.contains("hgx-04*")), "{}", screen.join("\n"));
        press(&mut app, "H");
        assert!(!lines(&cells_at(&app, size, AFTER_NOTICE))[0].contains("hidden"));
    }
}

#[test]
fn the_density_changes_the_size_of_panes() {
    for size in SIZES {
        let mut app = app(6, 8, size);
        let mut columns = |key: &str| {
            press(&mut app, key);
            app.refresh_derived_state();
            let layout = app.screen_layout(size).grid.expect("a grid");
            let shown = text(&app, size);
            assert!(shown.contains("hgx-01"), "{shown}");
            layout.level
        };
        let (compact, full, auto) = (columns("c"), columns("f"), columns("a"));
        assert!(compact <= auto && auto <= full && compact < full, "{size:?}: {compact:?} {auto:?} {full:?}");
        // Full panes may not fit: the last ones are reached by scrolling.
        press(&mut app, "fG");
        app.refresh_derived_state();
        assert!(text(&app, size).contains("▸hgx-06"), "{}", text(&app, size));
    }
}

#[test]
fn header_wall_users_list_and_json_agree() {
    use crate::fleet::GpuState;
    use crate::output::{Report, json};
    let size = (200, 60);
    for (mut app, seconds) in [(app(6, 8, size), NOW), (app_with_hung_jobs(6, size), LATER), (mixed_fleet(size), NOW)] {
        let totals = *app.totals();
        let screen = |app: &App| lines(&cells_at(app, size, seconds));
        let header = screen(&app)[0].clone();
        let states =
            [(GpuState::InUse, "busy"), (GpuState::Idle, "idle"), (GpuState::Hung, "hung?"), (GpuState::Free, "free")];
        for (state, word) in states {
            // A suspected GPU counts as such and not as busy.
            let suspected = if state == GpuState::InUse { count(&header, "stuck?") } else { 0 };
            assert_eq!(count(&header, word) + suspected, totals.in_state(state), "{word}: {header}");
        }

        press(&mut app, "2");
        let wall = screen(&app);
        let free = wall.iter().find(|line| line.contains("Free now")).expect("a panel");
        assert!(free.contains(&format!(" {} GPU", totals.in_state(GpuState::Free))), "{free}");

        press(&mut app, "4");
        let users = app.users_view();
        let unheld = users.unheld();
        assert_eq!(unheld.held + unheld.free + unheld.unused + unheld.others, totals.gpus);
        assert_eq!(unheld.free, totals.in_state(GpuState::Free), "free GPUs");
        let sum = screen(&app)[1].clone();
        assert!(sum.contains(&format!("hold {} of {} GPUs", unheld.held, totals.gpus)), "{sum}");

        press(&mut app, "3");
        let covered = |id: HostId| {
            app.fleet().host(id).and_then(|host| app.host_summary(host)).is_some_and(|summary| summary.is_fresh)
        };
        let rows = app.rows().iter().filter(|row| row.ended_at.is_none() && covered(row.key.host));
        let listed: u64 = rows.filter_map(|row| row.gpu_memory_bytes).sum();
        let held: u64 = app.users_view().list().iter().filter_map(|user| user.sum.memory_bytes).sum();
        // Graphics processes use memory but hold no GPU.
        let graphics: u64 = app
            .fleet()
            .hosts()
            .iter()
            .flat_map(crate::fleet::Host::processes)
            .flat_map(|process| process.gpus.iter())
            .filter(|usage| usage.kind == Some(crate::wire::GpuProcessKind::Graphics))
            .filter_map(|usage| usage.gpu_memory_bytes)
            .sum();
        assert_eq!(listed, held + graphics);

        let states = |id: HostId| {
            let summary = app.fleet().host(id).and_then(|host| app.host_summary(host));
            summary.map_or_else(Vec::new, |summary| summary.gpus.iter().map(|gpu| (gpu.state, gpu.since)).collect())
        };
        let report = Report { fleet: app.fleet(), states: &states, findings: &[], now: at(seconds) };
        let json: serde_json::Value = serde_json::from_str(&json::line(&report).expect("writes")).expect("reads");
        let hosts = json["hosts"].as_array().expect("hosts");
        let gpus: Vec<&serde_json::Value> = hosts
            .iter()
            .filter(|host| host["state"] == "live" && host["gpu_error"].is_null())
            .flat_map(|host| host["gpus"].as_array().expect("GPUs"))
            .filter(|gpu| gpu["mig_parent_uuid"].is_null())
            .collect();
        assert_eq!(gpus.len(), totals.gpus as usize);
        for state in GpuState::ALL {
            let reported = gpus.iter().filter(|gpu| gpu["state"] == state.json_word()).count();
            assert_eq!(reported, totals.in_state(state) as usize, "{}", state.word());
        }
        let known = gpus.iter().filter(|gpu| !gpu["memory_total_bytes"].is_null());
        let used: u64 = known.filter_map(|gpu| gpu["memory_used_bytes"].as_u64()).sum();
        assert_eq!(Some(used), totals.memory_used_bytes);
    }
}

#[test]
fn the_view_of_an_own_process_shows_its_variables_and_the_end_of_its_log() {
    use crate::app::Effect;
    use crate::wire::{Reply, ReplyOutcome, Request};
    let size = (120, 60);
    let mut app = app(6, 8, size);
    press(&mut app, "3g");
    let index = app.rows().iter().position(|row| row.is_mine && row.workers == 1).expect("such a row");
    let effects = press(&mut app, &format!("{}\n", "↓".repeat(index)));
    assert!(text(&app, size).contains("variables  being read"));
    for effect in effects {
        let Effect::Request(host, request) = effect else { continue };
        let outcome = match &request {
            Request::Environment { .. } => ReplyOutcome::Environment(vec!["RANK=3".into(), "WORLD_SIZE=8".into()]),
            _ => ReplyOutcome::LogTail {
                path: "/home/dmitri/out.log".into(),
                lines: (0..20).map(|step| format!("step {step}").into()).collect(),
            },
        };
        let reply = Reply { id: request.reply_id().expect("has a reply"), outcome };
        app.update(Event::Host(host, Box::new(HostUpdate::Reply(reply))), at(NOW + 1));
    }
    let screen = text(&app, size);
    for words in ["variables  RANK=3 WORLD_SIZE=8", "log end    /home/dmitri/out.log", "  step 8 ", "  step 19 "] {
        assert!(screen.contains(words), "{words}: {screen}");
    }
    assert!(!screen.contains("  step 7 "), "{screen}");
}
