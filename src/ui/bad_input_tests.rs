//! Unusual data: names in every script, very long texts, large fleets, clocks that jump, values of all ranges. The layout
//! holds, and the screen stays readable.

use super::testing::check_screen;
use super::testing::{lines, show_cells, text};
use crate::app::testing::{NOW, at, connecting, press, report, reported_once, snapshot, update};
use crate::app::{App, Event};
use crate::fleet::{HostId, HostUpdate, Moment};
use crate::wire::{
    GpuColumns, GpuProcessColumns, GpuProcessKind, GpuProcessReading, GpuReading, Presence, ProcessColumns,
    ProcessFacts, ProcessReading, Snapshot,
};
use ratatui::buffer::Buffer;
use std::time::Duration;

const SIZES: [(u16, u16); 4] = [(80, 24), (120, 40), (200, 60), (40, 10)];

/// Every view, with the keys that lead there from the one before.
const VIEWS: [(&str, &str); 14] = [
    ("grid", ""),
    ("wall", "2"),
    ("users", "4"),
    ("findings", "5"),
    ("history", "H"),
    ("host", "\u{1b}\u{1b}1\n"),
    ("host's last GPU", "G"),
    ("GPU", "\n"),
    ("log", "\u{1b}\u{1b}1L"),
    ("processes", "3"),
    ("the last process", "G"),
    ("no groups", "ttg"),
    ("process", "\n"),
    ("the list's end", "\u{1b}\u{1b}1ttt\tG"),
];

/// The views whose body consists of boxes from edge to edge.
const BOXED: [&str; 5] = ["history", "log", "processes", "the last process", "no groups"];

/// Draws every view at every size, compares it with a terminal emulator, and checks that boxes end at the edges.
fn check_views(sizes: &[(u16, u16)], make: impl Fn((u16, u16)) -> App, name: &str) {
    for &size in sizes {
        let mut app = make(size);
        for (view, keys) in VIEWS {
            press(&mut app, keys);
            let what = format!("{name}, {view}");
            let cells = check_screen(&app, size, NOW, &what);
            show_cells(&what.replace([' ', ',', '\''], "-"), &cells);
            if BOXED.contains(&view) {
                check_edges(&cells, &what);
            }
        }
    }
}

fn check_edges(cells: &Buffer, what: &str) {
    let (width, height) = (cells.area.width, cells.area.height);
    for y in 1..height - 1 {
        for x in [0, width - 1] {
            let glyph = cells[(x, y)].symbol();
            assert!("│┃╭╮╰╯┏┓┗┛".contains(glyph), "{what}: {glyph:?} at {x},{y}\n{}", lines(cells).join("\n"));
        }
    }
}

const NAMES: [&str; 10] = [
    "größe-01",
    "大きい計算機-0002",
    "e\u{301}te\u{301}-ça",
    "ثلاجة-الحاسوب",
    "מחשב-גדול",
    "🚀🔥-box",
    "👩‍🔬-👍🏽-🇩🇪",
    "हिन्दी-संगणक",
    "คอมพิวเตอร์-กำ",
    "ﾊﾝｶｸ-한글-\u{1112}\u{1161}\u{11ab}",
];

/// Reports a host whose process facts are changed.
fn with_facts(app: &mut App, host: usize, change: impl Fn(usize, &mut ProcessFacts)) {
    report(app, host, 8, NOW - 5);
    let mut snapshot = snapshot(host, 8, NOW);
    for (index, facts) in snapshot.facts.iter_mut().enumerate() {
        change(index, facts);
    }
    update(app, host, HostUpdate::Snapshot(Box::new(snapshot)), NOW);
}

#[test]
fn names_of_every_script_keep_columns_aligned() {
    check_views(
        &SIZES,
        |size| {
            let mut app = connecting(&NAMES.map(str::to_owned), size);
            for host in 0..NAMES.len() {
                with_facts(&mut app, host, |index, facts| {
                    let name = NAMES[(host + index) % NAMES.len()];
                    facts.user = Some(name.into());
                    facts.full_name = Some(name.into());
                    facts.argv = vec!["python".into(), format!("{name}.py").into(), name.into()];
                });
            }
            app
        },
        "scripts",
    );
}

#[test]
fn long_texts_are_cut_and_keep_the_columns() {
    let (user, host) = ("u".repeat(64), "h".repeat(200));
    let command: Vec<_> = (0..64).map(|word| format!("--option-{word}={}", "v".repeat(50))).collect();
    let make = |size| {
        let mut app = connecting(&[host.clone(), "大".repeat(100), "b".to_owned()], size);
        for host in 0..3 {
            with_facts(&mut app, host, |_, facts| {
                facts.user = Some(user.as_str().into());
                facts.full_name = Some(user.as_str().into());
                facts.argv = [&["python".to_owned()], &command[..]].concat().into_iter().map(Into::into).collect();
            });
        }
        app
    };
    check_views(&SIZES, make, "long");
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut app = make(size);
        press(&mut app, "3");
        let screen = text(&app, size);
        let mut rows = screen.lines().skip(2);
        let headers = rows.next().expect("column headers");
        for head in ["HOST", "GPU", "USER", "GMEM", "SM%", "STATE", "COMMAND"] {
            assert!(headers.contains(head), "{head}: {screen}");
        }
        let command = headers.find("COMMAND").expect("a column");
        assert!(headers.len() - command >= 12, "{screen}");
        let row = rows.find(|row| row.contains(" hhh")).expect("a row");
        assert!(row.contains("uuuuu…") && row.contains("hhh…hh") && row.contains("python"), "{screen}");
    }
}

/// One host with this many processes on eight GPUs, by 500 users.
fn host_with_processes(processes: u32, size: (u16, u16)) -> App {
    let mut app = connecting(&["hgx-01".to_owned()], size);
    report(&mut app, 0, 8, NOW - 5);
    let pids = (0..processes).map(|index| 1000 + index);
    let usages: Vec<GpuProcessReading> = pids
        .clone()
        .map(|pid| GpuProcessReading {
            pid: Some(pid),
            gpu: Some((pid % 8) as u16),
            kind: Some(GpuProcessKind::Compute),
            gpu_memory_bytes: Some(u64::from(pid) << 10),
            sm_percent: Some((pid % 100) as u8),
            ..GpuProcessReading::default()
        })
        .collect();
    let readings: Vec<ProcessReading> = pids
        .clone()
        .map(|pid| ProcessReading {
            pid: Some(pid),
            start_ticks: Some(u64::from(pid)),
            presence: Some(Presence::Visible),
            ..ProcessReading::default()
        })
        .collect();
    let facts = pids.map(|pid| ProcessFacts {
        pid,
        start_ticks: Some(u64::from(pid)),
        user: Some(format!("user{}", pid % 500).into()),
        argv: vec!["python".into(), format!("{pid}.py").into()],
        ..ProcessFacts::default()
    });
    let crowd = Snapshot {
        gpu_processes: GpuProcessColumns::from_rows(&usages),
        processes: ProcessColumns::from_rows(&readings),
        facts: facts.collect(),
        ..snapshot(0, 8, NOW)
    };
    update(&mut app, 0, HostUpdate::Snapshot(Box::new(crowd)), NOW);
    app
}

#[test]
fn ten_thousand_processes_are_counted_and_the_last_is_reachable() {
    let size = (120, 40);
    let mut app = host_with_processes(10_000, size);
    press(&mut app, "3tt");
    // The eight processes of the first snapshot have ended.
    assert_eq!(app.rows().len(), 10_008);
    assert!(text(&app, size).contains(" of 10008 "), "{}", text(&app, size));
    press(&mut app, "G");
    let screen = text(&app, size);
    assert!(screen.contains(" 1000.py") && screen.contains(" 9980 above "), "{screen}");
    check_views(&[size], |size| host_with_processes(10_000, size), "crowded");
}

#[test]
fn many_gpus_and_hosts_are_reachable_and_counted() {
    let size = (120, 40);
    check_views(&SIZES, |size| reported_once(2, 128, size), "gpus");
    check_views(&[size], |size| reported_once(500, 1, size), "hosts");
    let mut app = reported_once(1, 128, size);
    press(&mut app, "\nG");
    assert!(text(&app, size).contains("\n▸127 "), "{}", text(&app, size));
    let mut app = reported_once(500, 1, size);
    for view in ["1", "2"] {
        press(&mut app, view);
        press(&mut app, "G");
        let screen = text(&app, size);
        assert!(screen.contains("hgx-500"), "{screen}");
        assert!(screen.lines().any(|line| line.contains("more host")), "{screen}");
    }
}

#[test]
fn jumping_clocks_change_no_age_and_no_connection_state() {
    let size = (120, 40);
    let mut app = reported_once(3, 8, size);
    let year = Duration::from_secs(365 * 86_400);
    let shifted = |seconds: u64, back: bool| {
        let now = at(seconds);
        let unix = if back { now.unix.saturating_sub(year) } else { now.unix + year };
        Moment { unix, ..now }
    };
    for (step, back) in [false, true, false].into_iter().enumerate() {
        let seconds = NOW + 5 * (step as u64 + 1);
        let now = shifted(seconds, back);
        for host in 0..3 {
            let mut snapshot = snapshot(host, 8, seconds);
            snapshot.wall_unix_ms = if back { i64::MIN } else { i64::MAX };
            // The monotonic clock of the host goes back as well.
            snapshot.monotonic_seconds = if back { 1.0 } else { 1e12 };
            let update = Box::new(HostUpdate::Snapshot(Box::new(snapshot)));
            app.update(Event::Host(HostId(host as u32), update), now);
        }
        app.update(Event::Ticked, now);
        app.refresh_derived_state();
        for (view, keys) in VIEWS {
            press(&mut app, keys);
            check_screen(&app, size, seconds, view);
        }
        press(&mut app, "\u{1b}\u{1b}1\t");
        let screen = text(&app, size);
        assert!(!screen.contains("DOWN") && !screen.contains("stale"), "{screen}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 4, ..Default::default() })]
    /// Readings over the whole range of their types.
    #[test]
    fn values_of_any_range_stay_in_their_columns(
        columns in 40u16..301, rows in 10u16..91,
        readings in proptest::collection::vec(
            (proptest::option::of(0u8..=255), proptest::option::of(proptest::num::u64::ANY),
             proptest::option::of(proptest::num::i32::ANY), proptest::option::of(proptest::num::f32::ANY),
             proptest::option::of(proptest::num::u32::ANY), proptest::num::f64::ANY), 32),
    ) {
        let size = (columns, rows);
        let mut app = reported_once(2, 8, size);
        for (step, chunk) in readings.chunks(8).enumerate() {
            let seconds = NOW + 1 + step as u64;
            let mut wild = snapshot(0, 8, seconds);
            let gpus: Vec<GpuReading> = chunk.iter().map(|&(percent, bytes, celsius, watts, clock, _)| GpuReading {
                utilization_percent: percent,
                memory_utilization_percent: percent,
                memory_used_bytes: bytes,
                temperature_celsius: celsius,
                power_watts: watts,
                power_limit_watts: watts,
                clock_graphics_mhz: clock,
                clock_sm_mhz: clock,
                clock_memory_mhz: clock,
                clocks_event_reasons: bytes,
                fan_percent: clock.map(|clock| clock as u16),
                performance_state: percent,
                pcie_generation: percent,
                pcie_width: percent,
                pcie_receive_bytes_per_second: watts.map(f64::from),
                blocked_seconds: watts,
                ..GpuReading::default()
            }).collect();
            wild.gpus = GpuColumns::from_rows(&gpus);
            let (_, bytes, _, watts, _, age) = chunk[0];
            wild.host.cpu_percent = watts;
            wild.host.load_1 = watts;
            wild.host.memory_available_bytes = bytes;
            wild.host.uptime_seconds = Some(age);
            wild.processes.age_seconds = chunk.iter().map(|one| Some(one.5)).collect();
            wild.processes.cpu_percent = chunk.iter().map(|one| one.3).collect();
            wild.processes.rss_bytes = chunk.iter().map(|one| one.1).collect();
            wild.gpu_processes.gpu_memory_bytes = chunk.iter().map(|one| one.1).collect();
            wild.gpu_processes.sm_percent = chunk.iter().map(|one| one.0).collect();
            update(&mut app, 0, HostUpdate::Snapshot(Box::new(wild)), seconds);
            app.update(Event::Ticked, at(seconds));
            app.refresh_derived_state();
            for (view, keys) in VIEWS {
                press(&mut app, keys);
                let cells = check_screen(&app, size, seconds, view);
                if BOXED.contains(&view) {
                    check_edges(&cells, view);
                }
            }
            press(&mut app, "\u{1b}\u{1b}1\t");
        }
    }
}
