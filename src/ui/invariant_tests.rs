//! Properties of every view, over random fleets, connection states, sizes and keys.

use super::findings::title_text;
use super::format::command_text;
use super::testing::{cells_at, is_forbidden, lines, text};
use super::{areas, draw_into};
use crate::app::layout::{MIN_SIZE, PaneFrame};
use crate::app::testing::{
    LATER, NOW, app, app_with_hung_jobs, at, connecting, host_states, press, report, reported_once, update,
};
use crate::app::{App, DisplaySettings, Event, FindingLine, ThemeChoice};
use crate::fleet::{ConnectPhase, GpuState, HostUpdate, LinkError, LinkErrorKind};
use proptest::prelude::*;
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::style::Color;

/// The state of a host at the end.
#[derive(Debug, Clone, Copy)]
enum LinkOutcome {
    Connecting,
    /// Connected, but without an inventory.
    HelloReceived,
    Live,
    Stale,
    Down,
    Refused,
    /// Live for a while, then down, with or without another attempt.
    Lost(bool),
    NeedsUser,
}

fn outcome() -> impl Strategy<Value = LinkOutcome> {
    prop_oneof![
        Just(LinkOutcome::Connecting),
        Just(LinkOutcome::HelloReceived),
        Just(LinkOutcome::Live),
        Just(LinkOutcome::Live),
        Just(LinkOutcome::Live),
        Just(LinkOutcome::Stale),
        Just(LinkOutcome::Down),
        Just(LinkOutcome::Refused),
        any::<bool>().prop_map(LinkOutcome::Lost),
        Just(LinkOutcome::NeedsUser),
    ]
}

fn apply_outcome(app: &mut App, host: usize, gpus: usize, outcome: LinkOutcome) {
    let error = |kind, words: &str| LinkError::new(kind, words).with_hint("is the VPN up?");
    let down = |retry_at, kind| HostUpdate::Down { error: error(kind, "no route"), retry_at, attempt: host as u32 };
    match outcome {
        LinkOutcome::Connecting => {
            update(app, host, HostUpdate::Connecting { attempt: 1, phase: ConnectPhase::Tcp }, NOW - 3);
        }
        LinkOutcome::HelloReceived => {
            update(app, host, HostUpdate::Hello(Box::new(crate::app::testing::hello())), NOW - 1);
        }
        LinkOutcome::Live => report(app, host, gpus, NOW),
        LinkOutcome::Stale => {
            report(app, host, gpus, NOW - 30);
            update(app, host, HostUpdate::Silent, NOW - 27);
        }
        LinkOutcome::Down => update(app, host, down(None, LinkErrorKind::Network), NOW - 9),
        LinkOutcome::Refused => update(app, host, down(None, LinkErrorKind::Refusal), NOW - 9),
        LinkOutcome::Lost(retries) => {
            report(app, host, gpus, NOW - 200);
            update(app, host, down(retries.then(|| at(NOW + 27)), LinkErrorKind::Closed), NOW - 100);
        }
        LinkOutcome::NeedsUser => {
            let needed = error(LinkErrorKind::HostKeyUnknown, "the host key is not known");
            update(app, host, HostUpdate::NeedsUser(needed), NOW - 20);
        }
    }
}

/// Hosts by their outcome and their number of GPUs.
type RandomFleet = Vec<(LinkOutcome, usize)>;

fn random_fleet(most: usize) -> impl Strategy<Value = RandomFleet> {
    prop::collection::vec((outcome(), 0_usize..17), 0..most)
}

fn fleet_app(fleet: &[(LinkOutcome, usize)], name: fn(usize) -> String, size: (u16, u16)) -> App {
    let mut app = connecting(&(0..fleet.len()).map(name).collect::<Vec<_>>(), size);
    for (host, (outcome, gpus)) in fleet.iter().enumerate() {
        apply_outcome(&mut app, host, *gpus, *outcome);
    }
    app.update(Event::Ticked, at(NOW));
    app.refresh_derived_state();
    app
}

fn short_name(host: usize) -> String {
    format!("n{host:03}")
}

/// Names of several lengths, of which the middle is equal.
fn long_name(host: usize) -> String {
    format!("{host:03}-{}-{host:03}", "rack-node".repeat(1 + host % 4))
}

/// Every view and dialog, with the keys that lead there from any other.
const VIEWS: [(&str, &str); 18] = [
    ("grid", "\u{1b}\u{1b}\u{1b}1g"),
    ("end of the grid", "\u{1b}\u{1b}\u{1b}1G"),
    ("list", "\u{1b}\u{1b}\u{1b}1\t↓"),
    ("wall", "\u{1b}\u{1b}\u{1b}2g"),
    ("end of the wall", "\u{1b}\u{1b}\u{1b}2G"),
    ("processes", "\u{1b}\u{1b}\u{1b}3"),
    ("process", "\n"),
    ("users", "\u{1b}\u{1b}\u{1b}4"),
    ("findings", "\u{1b}\u{1b}\u{1b}5"),
    ("history", "H"),
    ("host", "\u{1b}\u{1b}\u{1b}1G\n"),
    ("GPU", "\n"),
    ("connection log", "\u{1b}\u{1b}\u{1b}1L"),
    ("help", "\u{1b}\u{1b}\u{1b}1?"),
    ("palette", "\u{1b}:host"),
    ("user picker", "\u{1b}\u{1b}u↓"),
    ("signal dialog", "\u{1b}3T"),
    ("prompt dialog", "\u{1b}\u{1b}\u{1b}1P"),
];

/// Draws into the middle of a larger buffer and returns the part that belongs to the screen.
fn draw_with_margin(app: &App, (columns, rows): (u16, u16)) -> Result<Vec<Cell>, TestCaseError> {
    let (whole, area) = (Rect::new(0, 0, columns + 7, rows + 5), Rect::new(4, 2, columns, rows));
    let mut buffer = Buffer::empty(whole);
    let mut sentinel = Cell::new("#");
    sentinel.fg = Color::Magenta;
    for position in whole.positions().filter(|position| !area.contains(*position)) {
        buffer[position] = sentinel.clone();
    }
    draw_into(app, &mut buffer, area, at(NOW));
    for position in whole.positions().filter(|position| !area.contains(*position)) {
        prop_assert!(buffer[position] == sentinel, "drawn outside of the area, at {position:?}");
    }
    Ok(area.positions().map(|position| buffer[position].clone()).collect())
}

/// Rules with and without colour differ in the track of bars, a light or a heavy line.
fn without_weight(lines: &[String]) -> Vec<String> {
    lines.iter().map(|line| line.replace('─', "━")).collect()
}

/// Checks what holds for every screen.
fn check_screen(app: &mut App, size: (u16, u16), view: &str) -> Result<Vec<String>, TestCaseError> {
    let cells = cells_at(app, size, NOW);
    let screen = lines(&cells);
    prop_assert!(cells.content() == draw_with_margin(app, size)?, "{view} at {size:?} depends on its position");
    for cell in cells.content() {
        prop_assert!(!cell.symbol().chars().any(is_forbidden), "{view} at {size:?}: {:?}", cell.symbol());
        prop_assert_eq!(cell.bg, Color::Reset);
    }
    let usual = app.settings;
    app.settings = DisplaySettings { theme: ThemeChoice::Mono, ..usual };
    let mono = cells_at(app, size, NOW);
    prop_assert!(mono.content().iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    prop_assert_eq!(without_weight(&lines(&mono)), without_weight(&screen), "{} at {:?}", view, size);
    app.settings = DisplaySettings { ascii: true, ..usual };
    let ascii = lines(&cells_at(app, size, NOW));
    prop_assert!(ascii.iter().all(|line| line.is_ascii()), "{view} at {size:?}:\n{}", ascii.join("\n"));
    app.settings = usual;
    Ok(screen)
}

/// Counts the hosts that these lines name, and adds up the numbers of those that they leave out.
fn named_and_left_out(lines: &[String], hosts: usize) -> (usize, usize) {
    let named = (0..hosts).filter(|host| lines.iter().any(|line| line.contains(&short_name(*host)))).count();
    // `▲ 3 more hosts above, ▼ 40 below, 2 without data`: the last number counts hosts that are in the first two.
    let left_out = lines
        .iter()
        .filter(|line| line.contains("more host"))
        .map(|line| {
            let last = line.rsplit_once(", ").filter(|(_, last)| last.ends_with("without data"));
            last.map_or(line.as_str(), |(counts, _)| counts)
        })
        .flat_map(|counts| counts.split_whitespace().filter_map(|word| word.parse::<usize>().ok()))
        .sum();
    (named, left_out)
}

/// The number before a word: 37 for `busy` in `37 busy`.
fn count_before(line: &str, word: &str) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().map(|word| word.trim_end_matches(',')).collect();
    words.windows(2).find(|pair| pair[1] == word).and_then(|pair| pair[0].parse().ok())
}

/// Checks that the header, where it has room, says how many GPUs and hosts are in each state.
fn check_header(app: &App, header: &str, columns: u16) -> Result<(), TestCaseError> {
    let (totals, links) = (app.totals(), app.links());
    let summaries = app.fleet().hosts().iter().filter_map(|host| app.host_summary(host));
    let suspected: u32 = summaries.map(crate::app::HostSummary::suspected_count).sum();
    let states = [
        ("busy", totals.in_state(GpuState::InUse) - suspected),
        ("stuck?", suspected),
        ("idle", totals.in_state(GpuState::Idle)),
        ("waiting", totals.in_state(GpuState::Waiting)),
        ("hung?", totals.in_state(GpuState::Hung)),
        ("faulty", totals.in_state(GpuState::Fault)),
        ("free", totals.in_state(GpuState::Free)),
        ("unused", totals.in_state(GpuState::Unused)),
        ("unknown", totals.in_state(GpuState::Unknown)),
        ("down", links.down),
        ("stale", links.stale),
        ("connecting", links.connecting),
    ];
    for (word, count) in states {
        let shown = count_before(header, word);
        let wanted = if count == 0 || (shown.is_none() && columns < 240) { None } else { Some(count) };
        prop_assert_eq!(shown, wanted, "{}: {}", word, header);
    }
    let hosts = app.fleet().hosts().len();
    let is_said = header.contains(&format!("{hosts} host")) || header.contains(&format!("of {hosts} hosts"));
    prop_assert!(is_said || columns < 60, "{header}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..Default::default() })]

    #[test]
    fn every_view_stays_in_its_area_and_needs_no_colour_and_no_unicode(
        columns in 1_u16..301, rows in 1_u16..91, fleet in random_fleet(16),
    ) {
        let size = (columns, rows);
        let mut app = fleet_app(&fleet, short_name, size);
        for (view, keys) in VIEWS {
            press(&mut app, keys);
            let screen = check_screen(&mut app, size, view)?;
            if columns < MIN_SIZE.0 || rows < MIN_SIZE.1 {
                prop_assert!(screen[1..].iter().all(String::is_empty), "{}", screen.join("\n"));
            }
        }
    }

    #[test]
    fn header_grid_and_wall_account_for_every_host(
        columns in MIN_SIZE.0..301, rows in MIN_SIZE.1..91, fleet in random_fleet(65),
    ) {
        let (size, hosts) = ((columns, rows), fleet.len());
        let mut app = fleet_app(&fleet, short_name, size);
        for (view, keys) in VIEWS {
            press(&mut app, keys);
            let screen = lines(&cells_at(&app, size, NOW));
            check_header(&app, &screen[0], columns)?;
            let section = match view {
                "grid" | "end of the grid" => 1..usize::from(rows - 1 - app.screen_layout(size).list_rows),
                "wall" | "end of the wall" => 1..usize::from(rows - 1 - app.wall_layout(size).panel_rows),
                _ => continue,
            };
            let (named, left_out) = named_and_left_out(&screen[section], hosts);
            prop_assert_eq!(named + left_out, hosts, "{} at {:?}:\n{}", view, size, screen.join("\n"));
        }
    }

    #[test]
    fn the_name_of_every_visible_pane_is_readable(
        columns in MIN_SIZE.0..301, rows in MIN_SIZE.1..91, fleet in random_fleet(33), is_at_end in any::<bool>(),
    ) {
        let size = (columns, rows);
        let mut app = fleet_app(&fleet, long_name, size);
        press(&mut app, if is_at_end { "G" } else { "g" });
        let screen_layout = app.screen_layout(size);
        let Some(layout) = screen_layout.grid else { return Ok(()) };
        let cells = cells_at(&app, size, NOW);
        let grid = areas::ScreenAreas::of(cells.area, &screen_layout).grid;
        let first = usize::from(app.screen().grid_top) * usize::from(layout.per_row);
        for index in 0..layout.visible_panes().min(fleet.len() - first.min(fleet.len())) {
            let pane = areas::pane(grid, &layout, index);
            let row: String = (pane.x..pane.right()).map(|x| cells[(x, pane.y)].symbol()).collect();
            let name = long_name(first + index);
            // Cut in the middle, a name keeps its beginning and its end.
            let is_cut = (1..name.len()).any(|head| {
                (1..name.len() - head).any(|tail| {
                    head + tail >= 5 && row.contains(&format!("{}…{}", &name[..head], &name[name.len() - tail..]))
                })
            });
            prop_assert!(row.contains(&name) || is_cut, "{name} at {size:?} in {:?}: {row}", layout.frame);
            let corners = ["╭", "┏"];
            prop_assert_eq!(layout.frame == PaneFrame::Boxed, corners.contains(&cells[(pane.x, pane.y)].symbol()));
        }
    }

    #[test]
    fn the_selected_row_is_visible_and_cut_texts_are_marked(
        columns in 60_u16..301, rows in MIN_SIZE.1..91, fleet in random_fleet(33), moves in "[↓↑gG]{0,6}",
    ) {
        let size = (columns, rows);
        let mut app = fleet_app(&fleet, short_name, size);
        press(&mut app, "3");
        press(&mut app, &moves);
        let screen = lines(&cells_at(&app, size, NOW));
        let pointed: Vec<&String> = screen.iter().filter(|line| line.starts_with("┃▸")).collect();
        let selected = app.rows().get(app.screen().list.index());
        prop_assert_eq!(pointed.len(), usize::from(selected.is_some()), "{}", screen.join("\n"));
        if let (Some(line), Some(row)) = (pointed.first(), selected) {
            prop_assert!(line.trim_start_matches(['┃', '▸']).starts_with(row.host_name.as_str()), "{line}");
        }
        let listed = screen.iter().filter(|line| line.starts_with(['┃', '│'])).skip(1);
        for line in listed.filter(|line| line.ends_with('┃') && line.contains(" n0")) {
            let shown = line.trim_end_matches('┃').trim_end();
            let is_whole = app.rows().iter().any(|row| {
                let command = command_text(&row.command);
                let (program, arguments) = command.split_once(' ').unwrap_or((&command, ""));
                // The number of workers may be between the program and its arguments.
                shown.ends_with(&*command) || (shown.contains(program) && shown.ends_with(arguments))
            });
            prop_assert!(is_whole || shown.ends_with('…'), "cut without a mark: {line}");
        }
        for (keys, pointer) in [("2", "▸n"), (":", "▸"), ("\u{1b}u", "▸"), ("\u{1b}4", "▸ ")] {
            press(&mut app, keys);
            let is_empty = match keys {
                "2" => fleet.is_empty(),
                "\u{1b}u" => app.user_totals().is_empty(),
                "\u{1b}4" => app.users_view().list().is_empty(),
                _ => false,
            };
            let text = text(&app, size);
            prop_assert!(is_empty || text.contains(pointer), "{keys:?} at {size:?}:\n{text}");
        }
    }

    #[test]
    fn no_size_and_no_key_panics(
        columns in 1_u16..301, rows in 1_u16..91, hosts in 0_usize..65, gpus in 0_usize..17,
        keys in "[\t\n\u{1b}?GgjklhtroPR,.↑↓←→\\[\\]2345LHvw/mu!i UF:]{0,12}", drawn in (1_u16..301, 1_u16..91),
    ) {
        for mut app in [reported_once(hosts, gpus, (columns, rows)), host_states((columns, rows))] {
            press(&mut app, &keys);
            text(&app, (columns, rows));
            // The frame may already have another size than the last resize event.
            text(&app, drawn);
            press(&mut app, "?");
            text(&app, (columns, rows));
            app.update(Event::Ticked, at(NOW + 60));
            app.refresh_derived_state();
            lines(&cells_at(&app, (columns, rows), NOW + 60));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, ..Default::default() })]

    /// Up to 500 hosts, up to 128 GPUs in one.
    #[test]
    fn large_fleets_are_drawn_at_every_size(
        columns in MIN_SIZE.0..301, rows in MIN_SIZE.1..91, hosts in 0_usize..501, gpus in 0_usize..129,
    ) {
        let size = (columns, rows);
        // A fleet of all hosts with all GPUs takes long to make and shows nothing that a smaller one does not.
        let hosts = if gpus > 2 { hosts.min(1000 / gpus) } else { hosts };
        let mut app = connecting(&(0..hosts).map(short_name).collect::<Vec<_>>(), size);
        for host in 0..hosts {
            report(&mut app, host, gpus, NOW);
        }
        for (view, keys) in VIEWS {
            press(&mut app, keys);
            let screen = lines(&cells_at(&app, size, NOW));
            if view == "end of the grid" || view == "end of the wall" {
                let last = short_name(hosts.saturating_sub(1));
                prop_assert!(hosts == 0 || screen.iter().any(|line| line.contains(&last)), "{}", screen.join("\n"));
            }
        }
    }

    #[test]
    fn details_are_drawn_at_every_size_and_after_a_resize(
        columns in 1_u16..301, rows in 1_u16..91, later in (1_u16..301, 1_u16..91), keys in "[↑↓←→vwHg\\n\\u{1b}]{0,4}",
    ) {
        let mut app = app_with_hung_jobs(6, (columns, rows));
        for view in ["3\n", "\u{1b}3→↓\n", "\u{1b}5", "\n", "\u{1b}5H", "\u{1b}1\n", "\n", "\u{1b}L", "\u{1b}4\n"] {
            press(&mut app, view);
            text(&app, (columns, rows));
            app.update(Event::Resized(later.0, later.1), at(LATER));
            press(&mut app, &keys);
            let screen = text(&app, later);
            prop_assert!(later.0 < 60 || later.1 < 10 || screen.contains("6 hosts"), "{view:?} {later:?}\n{screen}");
            app.update(Event::Resized(columns, rows), at(LATER));
        }
    }

    #[test]
    fn findings_mark_the_selected_one_and_cut_titles(columns in MIN_SIZE.0..301, rows in 12_u16..91, down in 0_usize..8) {
        let size = (columns, rows);
        let mut app = app_with_hung_jobs(6, size);
        press(&mut app, &format!("5{}", "↓".repeat(down)));
        let screen = lines(&cells_at(&app, size, LATER));
        let listed: Vec<&String> = screen.iter().filter(|line| line.starts_with('┃')).skip(1).collect();
        prop_assert_eq!(listed.iter().filter(|line| line.starts_with("┃▸")).count(), 1, "{}", screen.join("\n"));
        for line in listed {
            let shown = line.trim_matches('┃').trim_end();
            let is_heading = app.findings().lines().iter().any(|line| match line {
                FindingLine::Heading(section) => shown.trim_start() == section.title(),
                FindingLine::Finding(_) => false,
            });
            let is_whole = app.findings().list().iter().any(|finding| shown.ends_with(&title_text(finding)));
            prop_assert!(shown.is_empty() || is_heading || is_whole || shown.ends_with('…'), "cut without a mark: {line}");
        }
    }
}

#[test]
fn a_fleet_without_any_data_has_every_view() {
    let size = (100, 30);
    let mut app = app(0, 0, size);
    for (view, keys) in VIEWS {
        press(&mut app, keys);
        assert!(text(&app, size).contains("0 hosts"), "{view}");
    }
}
