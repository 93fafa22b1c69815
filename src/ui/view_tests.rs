//! Whole screens of the views beside the overview.

use super::testing::{cells_at, lines, show_cells, text};
use crate::app::mixed_fleet::mixed_fleet;
use crate::app::testing::{LATER, NOW, app, app_with_hung_jobs, at, host_states, press, report, reported_once};
use crate::app::{ChartSpan, Event, Metric, View};
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
    let mut app = app_with_hung_jobs(6, SIZES[1]);
    press(&mut app, "→→→\n↓↓\nw");
    assert!(matches!(app.screen().view(), View::Gpu(HostId(3), _)));
    for size in SIZES {
        app.update(Event::Resized(size.0, size.1), at(LATER));
        assert_screen!("gpu", &app, size, LATER);
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
    let mut app = app_with_hung_jobs(6, SIZES[0]);
    press(&mut app, "4↓");
    for size in SIZES {
        app.update(Event::Resized(size.0, size.1), at(LATER));
        assert_screen!("users", &app, size, LATER);
    }
}

#[test]
fn users_are_sorted_and_lead_to_their_processes() {
    let size = (120, 40);
    let mut app = app(6, 8, size);
    press(&mut app, "4");
    let names = |app: &crate::app::App| -> Vec<String> {
        app.users_view().list().iter().map(|user| user.sum.who.to_string()).collect()
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
    assert_eq!(app.screen().log_scroll, 0, "all of it is on the screen");
    press(&mut app, "\u{1b}");
    assert_eq!(app.screen().view(), &View::Overview);
}

#[test]
fn a_lab_of_unlike_machines() {
    for size in SIZES {
        let app = mixed_fleet(size);
        assert_screen!("mixed", &app, size, NOW);
    }
    let size = (200, 60);
    let overview = text(&mixed_fleet(size), size);
    for words in ["41/119G shared", "via nvidia-smi", "NEEDS YOU", "└", "Xorg"] {
        assert!(overview.contains(words), "{words}: {overview}");
    }
}

#[test]
fn the_palette_over_the_grid_and_over_the_processes() {
    for size in SIZES {
        let mut app = app(6, 8, size);
        press(&mut app, ":");
        assert_screen!("palette", &app, size, NOW);
        press(&mut app, "\u{1b}3:sort↓");
        app.refresh_derived_state();
        assert_screen!("palette_sort", &app, size, NOW);
        press(&mut app, "zzz");
        assert!(text(&app, size).contains("no action is called so"), "{}", text(&app, size));
    }
}

/// Moments after the words about the last key have gone.
const AFTER_THE_NOTICE: u64 = 30;

#[test]
fn a_picture_that_stands_still_says_so_and_does_not_move() {
    for size in SIZES {
        let mut app = app(6, 8, size);
        let before = lines(&cells_at(&app, size, NOW));
        press(&mut app, "Z");
        let later = NOW + AFTER_THE_NOTICE;
        for host in 0..6 {
            report(&mut app, host, 7, later);
        }
        app.update(Event::Ticked, at(later));
        app.refresh_derived_state();
        assert_screen!("frozen", &app, size, later);
        // The header says so; every other line is as it was, its ages included.
        assert_eq!(lines(&cells_at(&app, size, later))[1..], before[1..]);
        press(&mut app, "Z");
        assert_ne!(lines(&cells_at(&app, size, later))[1..], before[1..], "it moves again");
    }
}

#[test]
fn hosts_that_are_hidden_are_counted() {
    for size in SIZES {
        let mut app = app(6, 8, size);
        press(&mut app, "→DD*");
        let later = NOW + AFTER_THE_NOTICE;
        for host in 0..6 {
            report(&mut app, host, 8, later);
        }
        app.refresh_derived_state();
        assert_screen!("hidden", &app, size, later);
        let screen = lines(&cells_at(&app, size, later));
        assert!(screen[0].contains("2 hidden"), "{}", screen[0]);
        assert!(!screen.join("\n").contains("hgx-02"), "nothing of a hidden host is shown");
        press(&mut app, "H");
        assert!(!lines(&cells_at(&app, size, later))[0].contains("hidden"));
    }
}

#[test]
fn panes_small_full_and_as_there_is_room() {
    for size in SIZES {
        let mut app = app(6, 8, size);
        for (density, key) in [("compact", "c"), ("full", "f"), ("auto", "a")] {
            press(&mut app, key);
            app.refresh_derived_state();
            let cells = cells_at(&app, size, NOW);
            show_cells(&format!("density-{density}"), &cells);
            insta::assert_snapshot!(format!("density_{density}_{}x{}", size.0, size.1), lines(&cells).join("\n"));
        }
        press(&mut app, "fG");
        app.refresh_derived_state();
        assert_screen!("density_full_end", &app, size, NOW);
    }
}

/// Header, wall, users, list and JSON say the same of one fleet.
#[test]
fn sums_agree_across_the_views() {
    use crate::fleet::{GpuState, HostId};
    use crate::output::{Report, json};
    let size = (200, 60);
    for (mut app, seconds) in [(app(6, 8, size), NOW), (app_with_hung_jobs(6, size), LATER), (mixed_fleet(size), NOW)] {
        let totals = *app.totals();
        let count = |line: &str, word: &str| -> u32 {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.windows(2).filter(|pair| pair[1] == word).filter_map(|pair| pair[0].parse::<u32>().ok()).sum()
        };
        let screen = |app: &crate::app::App| lines(&cells_at(app, size, seconds));
        let header = screen(&app)[0].clone();
        let states =
            [(GpuState::InUse, "busy"), (GpuState::Idle, "idle"), (GpuState::Hung, "hung?"), (GpuState::Free, "free")];
        for (state, word) in states {
            assert_eq!(count(&header, word), totals.in_state(state), "{word}: {header}");
        }

        press(&mut app, "2");
        let wall = screen(&app);
        let free = wall.iter().find(|line| line.contains("Free now")).expect("a panel");
        assert!(free.contains(&format!(" {} GPU", totals.in_state(GpuState::Free))), "{free}");

        press(&mut app, "4");
        let users = app.users_view();
        let unheld = users.unheld();
        assert_eq!(unheld.held + unheld.free + unheld.unused + unheld.others, totals.gpus);
        assert_eq!(unheld.free, totals.in_state(GpuState::Free), "what is free is held by nobody");
        let sum = screen(&app)[1].clone();
        assert!(sum.contains(&format!("hold {} of {} GPUs", unheld.held, totals.gpus)), "{sum}");

        press(&mut app, "3");
        let covered = |id: HostId| {
            app.fleet().host(id).and_then(|host| app.host_summary(host)).is_some_and(|summary| summary.is_fresh)
        };
        let rows = app.rows().iter().filter(|row| row.ended_at.is_none() && covered(row.key.host));
        let listed: u64 = rows.filter_map(|row| row.gpu_memory_bytes).sum();
        let held: u64 = app.users_view().list().iter().filter_map(|user| user.sum.memory_bytes).sum();
        // What only draws holds memory, and no GPU.
        let drawn: u64 = app
            .fleet()
            .hosts()
            .iter()
            .flat_map(crate::fleet::Host::processes)
            .flat_map(|process| process.gpus.iter())
            .filter(|usage| usage.kind == Some(crate::wire::GpuProcessKind::Graphics))
            .filter_map(|usage| usage.gpu_memory_bytes)
            .sum();
        assert_eq!(listed, held + drawn);

        let states = |id: HostId| {
            let summary = app.fleet().host(id).and_then(|host| app.host_summary(host));
            summary.map_or_else(Vec::new, |summary| summary.gpus.iter().map(|gpu| (gpu.state, gpu.since)).collect())
        };
        let report =
            Report { fleet: app.fleet(), states: &states, findings: &[], now: crate::app::testing::at(seconds) };
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

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 8, ..Default::default() })]
    /// Every size from one cell on, up to five hundred hosts, up to 128 GPUs in one.
    #[test]
    fn no_view_panics_and_none_loses_a_host_silently(
        columns in 1u16..301, rows in 1u16..91, hosts in 0usize..501, gpus in 0usize..129,
        keys in "[2345LGg\\n\\u{1b}↑↓←→vw,.r]{0,8}"
    ) {
        let size = (columns, rows);
        // A fleet of all hosts with all GPUs takes long to make and shows nothing that a smaller one does not.
        let hosts = if gpus > 2 { hosts.min(1000 / gpus) } else { hosts };
        let mut app = reported_once(hosts, gpus, size);
        for view in ["1", "2"] {
            press(&mut app, view);
            let screen = text(&app, size);
            if columns >= 40 && rows >= 10 {
                let is_host = |line: &str| !line.starts_with(['│', '╭', '╰', '┃', '┏', '┗']);
                let named: usize = screen
                    .lines()
                    .filter(|line| is_host(line))
                    .map(|line| line.matches("hg").count())
                    .sum();
                let more: usize = screen
                    .lines()
                    .filter(|line| line.contains("more host") && !line.contains("free GPU"))
                    .flat_map(|line| line.split_whitespace().filter_map(|word| word.parse::<usize>().ok()))
                    .sum();
                // The title of a pane stands on its frame, and there it begins with a corner.
                let framed: usize = screen
                    .lines()
                    .filter(|line| line.starts_with(['╭', '┏']) && view == "1" && !line.contains("Processes"))
                    .map(|line| line.matches("hg").count())
                    .sum();
                proptest::prop_assert_eq!(named + framed + more, hosts, "view {} at {:?}\n{}", view, size, screen);
            }
        }
        press(&mut app, &keys);
        text(&app, size);
        app.update(crate::app::Event::Ticked, crate::app::testing::at(NOW + 60));
        app.refresh_derived_state();
        text(&app, size);
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 4, ..Default::default() })]
    /// What is looked at in full, at every size and after a change of the size.
    #[test]
    fn no_size_makes_a_detail_panic(
        columns in 1u16..301, rows in 1u16..91, later_columns in 1u16..301, later_rows in 1u16..91,
        keys in "[↑↓←→vwHg\\n\\u{1b}]{0,4}"
    ) {
        let mut app = app_with_hung_jobs(6, (columns, rows));
        for view in ["3\n", "\u{1b}3→↓\n", "\u{1b}5", "\n", "\u{1b}5H", "\u{1b}1\n", "\n", "\u{1b}L", "\u{1b}4\n"] {
            press(&mut app, view);
            text(&app, (columns, rows));
            let later = (later_columns, later_rows);
            app.update(Event::Resized(later.0, later.1), at(LATER));
            press(&mut app, &keys);
            let screen = text(&app, later);
            // Too small for anything else it says so; else the header stands, and how many hosts there are.
            proptest::prop_assert!(later.0 < 60 || later.1 < 10 || screen.contains("6 hosts"), "{view:?} {later:?}\n{screen}");
            app.update(Event::Resized(columns, rows), at(LATER));
        }
    }
}
