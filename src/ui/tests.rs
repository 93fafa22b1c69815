//! Whole screens.

use super::testing::{cells, cells_at, lines, show, show_cells, text};
use super::theme::Theme;
use crate::app::testing::{
    LATER, NOW, app, app_with_hung_jobs, at, connecting, host_states, press, report, reported_once, update,
};
use crate::app::{App, ColorDepth, DisplaySettings, Event, ThemeChoice, View};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

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
fn all_processes_grouped_and_filtered() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut app = app(6, 8, size);
        press(&mut app, "3");
        show("processes", &app, size);
        insta::assert_snapshot!(format!("processes_{}x{}", size.0, size.1), text(&app, size));
        press(&mut app, "tttg→↓  /");
        for character in "mem>30G".chars() {
            app.update(Event::Key(KeyEvent::from(KeyCode::Char(character))), at(NOW));
        }
        show("filtered", &app, size);
        insta::assert_snapshot!(format!("filtered_{}x{}", size.0, size.1), text(&app, size));
    }
    let size = (120, 40);
    let mut app = app(6, 8, size);
    press(&mut app, "/");
    for character in "stuck mem>10".chars() {
        app.update(Event::Key(KeyEvent::from(KeyCode::Char(character))), at(NOW));
    }
    show("filter-error", &app, size);
    let screen = text(&app, size);
    let line = screen.lines().last().expect("a line");
    assert_eq!(
        line.split_whitespace().collect::<Vec<_>>().join(" "),
        "/ stuck mem>10▏ `10` is no memory with its unit K, M, G or T: write mem>10G"
    );
    let cells = cells(&app, size);
    let amber = |x: u16| cells[(x, 39)].fg == ratatui::style::Color::Indexed(214);
    assert!(amber(13) && amber(14) && !amber(12), "what is wrong is marked");
}

#[test]
fn users_to_choose_from() {
    let size = (80, 24);
    let mut app = app(6, 8, size);
    press(&mut app, "u↓");
    show("users", &app, size);
    insta::assert_snapshot!("user_picker", text(&app, size));
}

#[test]
fn findings_with_their_evidence() {
    let mut app = app_with_hung_jobs(6, (80, 24));
    for size in [(80, 24), (120, 40), (200, 60)] {
        app.update(Event::Resized(size.0, size.1), at(LATER));
        show_cells("grid-stuck", &cells_at(&app, size, LATER));
        insta::assert_snapshot!(format!("stuck_{}x{}", size.0, size.1), lines(&cells_at(&app, size, LATER)).join("\n"));
        press(&mut app, "5");
        let cells = cells_at(&app, size, LATER);
        show_cells("findings", &cells);
        insta::assert_snapshot!(format!("findings_{}x{}", size.0, size.1), lines(&cells).join("\n"));
        press(&mut app, "1");
    }
}

#[test]
fn a_finding_leads_to_its_process_and_back() {
    let size = (120, 40);
    let mut app = app_with_hung_jobs(6, size);
    press(&mut app, "5");
    let hung = app.findings().list().iter().position(|finding| finding.rule.word() == "stuck-spin-suspect");
    press(&mut app, &"↓".repeat(hung.expect("what spins is found")));
    press(&mut app, "\n");
    let cells = cells_at(&app, size, LATER);
    show_cells("process-stuck", &cells);
    insta::assert_snapshot!("process_stuck_120x40", lines(&cells).join("\n"));
    press(&mut app, "\u{1b}");
    assert_eq!(app.screen().view(), &View::Findings);
    press(&mut app, "\u{1b}");
    assert_eq!(app.screen().view(), &View::Overview);
    press(&mut app, "51");
    assert_eq!(app.screen().view(), &View::Overview);
}

#[test]
fn a_snoozed_finding_is_dim_says_until_when_and_counts_apart() {
    let mut app = app_with_hung_jobs(4, (120, 40));
    press(&mut app, "5");
    let firing = app.findings().is_alerting().firing;
    app.update(Event::Key(KeyEvent::new(KeyCode::Char('x'), KeyModifiers::NONE)), at(LATER));
    let cells = cells_at(&app, (120, 40), LATER);
    show_cells("snoozed", &cells);
    let text = lines(&cells);
    let row = text.iter().position(|line| line.contains("snoozed until 15:20: ")).expect("the row says so");
    assert!(text[1].contains(" 1 snoozed"), "{}", text[1]);
    let header = if firing == 2 { "1 finding ".to_owned() } else { format!("{} findings", firing - 1) };
    assert!(text[0].contains(&header), "{}", text[0]);
    let dim = Theme::new(app.settings).dim;
    let what = text[row].chars().position(|character| character == ':').expect("after the words") as u16 + 4;
    assert_eq!(cells[(what, row as u16)].fg, dim.fg.expect("a colour"));
    assert!(text.iter().any(|line| line.contains("; snoozed until 15:20")), "the detail says it, too");
}

#[test]
fn nothing_found_is_said() {
    let size = (80, 24);
    let mut app = reported_once(1, 0, size);
    press(&mut app, "5");
    assert!(text(&app, size).contains("Nothing looks wrong."), "{}", text(&app, size));
    let mut app = connecting(&["a".to_owned()], size);
    press(&mut app, "5");
    assert!(text(&app, size).contains("No host has told anything yet."));
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
    // The caret shows once keys count, half a second after the dialog has opened.
    app.update(Event::Key(KeyEvent::from(KeyCode::Char('P'))), at(NOW - 1));
    show("dialog-host-key", &app, size);
    insta::assert_snapshot!("dialog_host_key", text(&app, size));
}

#[test]
fn every_theme_draws_the_same_words() {
    let size = (120, 40);
    let mut app = host_states(size);
    let words = text(&app, size);
    for (name, theme, color_depth) in [
        ("light", ThemeChoice::Light, ColorDepth::TrueColor),
        ("mono", ThemeChoice::Mono, ColorDepth::TrueColor),
        ("basic", ThemeChoice::Dark, ColorDepth::Basic16),
    ] {
        app.settings = DisplaySettings { theme, color_depth, ..DisplaySettings::default() };
        show(name, &app, size);
        // Where colours are few the track of a bar is a thin line.
        assert_eq!(text(&app, size).replace('─', "━"), words.replace('─', "━"), "{name}");
        for cell in cells(&app, size).content() {
            assert_eq!(cell.bg, ratatui::style::Color::Reset);
            assert!(theme != ThemeChoice::Mono || cell.fg == ratatui::style::Color::Reset);
        }
    }
}

#[test]
fn ascii_is_ascii_on_every_screen() {
    let size = (120, 40);
    for (index, keys) in ["", "\t→\t", "\n", "?", "\t\n\n", "P"].into_iter().enumerate() {
        let mut app = if keys == "P" { host_states(size) } else { app(6, 8, size) };
        app.settings.ascii = true;
        press(&mut app, keys);
        show(&format!("ascii{index}"), &app, size);
        let text = text(&app, size);
        assert!(text.is_ascii(), "{keys:?}: {text}");
    }
    let app = {
        let mut app = app(4, 8, (80, 24));
        app.settings.ascii = true;
        app
    };
    insta::assert_snapshot!("ascii_80x24", text(&app, (80, 24)));
}

/// What is drawn for hosts of one fleet at one size must add up to what its header says.
#[test]
fn the_figures_of_every_view_agree() {
    let size = (200, 60);
    let mut app = app(6, 8, size);
    let overview = text(&app, size);
    let count = |line: &str, word: &str| -> u32 {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.windows(2).filter(|pair| pair[1] == word).filter_map(|pair| pair[0].parse::<u32>().ok()).sum()
    };
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
    // Every host in full has the GPUs of its pane.
    for host in 0..6 {
        press(&mut app, if host == 0 { "\n" } else { "]" });
        let full = text(&app, size);
        assert!(full.contains(&format!("hgx-{:02}  live   8 x NVIDIA H100", host + 1)), "{full}");
        assert!((0..8).all(|gpu| full.contains(&format!("GPU {gpu} "))), "{full}");
    }
}

#[test]
fn no_host_is_lost_silently() {
    for (size, hosts) in
        [((40, 10), 64), ((80, 24), 64), ((120, 40), 64), ((200, 60), 64), ((80, 24), 16), ((60, 12), 9)]
    {
        let mut app = reported_once(hosts, 8, size);
        for keys in ["", "G"] {
            press(&mut app, keys);
            let screen = text(&app, size);
            let named = (1..=hosts)
                .filter(|host| {
                    screen.lines().any(|line| line.contains(&format!("hgx-{host:02}")) && !line.starts_with('│'))
                })
                .count();
            let more: usize = screen
                .lines()
                .filter(|line| line.contains("more host"))
                .flat_map(|line| line.split_whitespace().filter_map(|word| word.parse::<usize>().ok()))
                .sum();
            assert_eq!(named + more, hosts, "{size:?}\n{screen}");
        }
    }
}

#[test]
fn names_of_every_script_keep_the_frame_straight() {
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
    show("names", &app, size);
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
fn colour_says_what_the_glyph_says() {
    use ratatui::style::Color;
    let size = (120, 40);
    let app = app(6, 8, size);
    let buffer = cells(&app, size);
    let style_of = |needle: &str| {
        let rows = lines(&buffer);
        let (y, line) = rows.iter().enumerate().find(|(_, line)| line.contains(needle)).expect("drawn");
        let x = line[..line.find(needle).expect("found")].chars().count();
        buffer[(x as u16, y as u16)].fg
    };
    assert_eq!(style_of("z idle"), Color::Indexed(245), "idle is dim");
    assert_eq!(style_of("86°"), Color::Indexed(214), "a hot GPU is amber");
    assert_eq!(style_of("erika"), Color::Reset);
    let app = host_states(size);
    let buffer = cells(&app, size);
    let rows = lines(&buffer);
    let stale = rows[2].chars().position(|character| character == '0').expect("a GPU");
    assert_eq!(buffer[(stale as u16, 2)].fg, Color::Reset, "a live pane is not dim");
    let x = buffer.area.width - 29;
    assert_eq!(buffer[(x, 2)].symbol(), "0");
    assert_eq!(buffer[(x, 2)].fg, Color::Indexed(245), "a stale pane is dim");
}

#[test]
fn a_simulation_says_so_at_every_size() {
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
fn a_screen_that_is_too_small_says_what_it_needs() {
    let app = reported_once(2, 8, (39, 10));
    assert_eq!(text(&app, (39, 10)).trim_end(), "needs 40x10, this is 39x10");
    assert_eq!(text(&app, (60, 9)).trim_end(), "needs 40x10, this is 60x9");
}

#[test]
fn a_gpu_that_cannot_be_read_says_why() {
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
    assert!(screen.contains("1 ! fault"), "{screen}");
    assert!(screen.contains("GPU is lost"), "{screen}");
    assert!(screen.lines().next().expect("a header").contains("1 faulty"), "{screen}");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 24, ..Default::default() })]
    #[test]
    fn no_size_and_no_fleet_makes_the_drawing_panic(
        columns in 1u16..301, rows in 1u16..91, hosts in 0usize..65, gpus in 0usize..17,
        keys in "[\t\n\u{1b}?GgjklhtroPR,.↑↓←→\\[\\]35/mu!i UF]{0,12}", drawn_columns in 1u16..301, drawn_rows in 1u16..91,
    ) {
        let mut app = reported_once(hosts, gpus, (columns, rows));
        press(&mut app, &keys);
        text(&app, (columns, rows));
        // A frame may have another size than the last resize that was heard of.
        text(&app, (drawn_columns, drawn_rows));
        app.update(Event::Ticked, at(NOW + 60));
        app.refresh_derived_state();
        text(&app, (columns, rows));
    }

    #[test]
    fn no_size_makes_host_states_or_dialogs_panic(columns in 1u16..301, rows in 1u16..91, keys in "[\tPs?\n]{0,4}") {
        let mut app = host_states((columns, rows));
        press(&mut app, &keys);
        text(&app, (columns, rows));
    }
}

#[test]
fn a_signal_is_confirmed_with_all_that_is_known() {
    let size = (100, 30);
    let mut app = app(6, 8, size);
    press(&mut app, "3/");
    for character in "user:erika gpus=8".chars() {
        app.update(Event::Key(KeyEvent::from(KeyCode::Char(character))), at(NOW));
    }
    press(&mut app, "\nT");
    show("signal-own", &app, size);
    insta::assert_snapshot!("signal_own", text(&app, size));
    press(&mut app, "\u{1b} K");
    show("signal-kill", &app, size);
    insta::assert_snapshot!("signal_kill", text(&app, size));
    press(&mut app, "\u{1b}U\u{1b}3!gT");
    show("signal-refused", &app, size);
    insta::assert_snapshot!("signal_refused", text(&app, size));
}
