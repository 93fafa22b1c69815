//! Hosts in every state of their connection, at every size, in every view: nothing panics, and no host is lost.

use super::testing::{cells_at, lines};
use crate::app::layout::MIN_SIZE;
use crate::app::testing::{NOW, app, at, connecting, host_states, press, report, update};
use crate::app::{App, Event};
use crate::fleet::{ConnectPhase, HostUpdate, LinkError, LinkErrorKind};
use proptest::prelude::*;

/// How a host is doing at the end.
#[derive(Debug, Clone, Copy)]
enum LinkOutcome {
    Connecting,
    /// Connected, nothing known of its GPUs yet.
    HelloReceived,
    Live,
    Stale,
    Down,
    /// Let in by nobody.
    Refused,
    /// Live for a while, then gone; perhaps with a next try.
    Lost(bool),
    NeedsUser,
}

fn outcome() -> impl Strategy<Value = LinkOutcome> {
    prop_oneof![
        Just(LinkOutcome::Connecting),
        Just(LinkOutcome::HelloReceived),
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
        LinkOutcome::Lost(tries) => {
            report(app, host, gpus, NOW - 200);
            update(app, host, down(tries.then(|| at(NOW + 27)), LinkErrorKind::Closed), NOW - 100);
        }
        LinkOutcome::NeedsUser => {
            let needed = error(LinkErrorKind::HostKeyUnknown, "the host key is not known");
            update(app, host, HostUpdate::NeedsUser(needed), NOW - 20);
        }
    }
}

/// Every view by the keys that lead there from any other, and what they are about.
const VIEWS: [(&str, &str); 10] = [
    ("grid", "\u{1b}\u{1b}\u{1b}1g"),
    ("end of the grid", "\u{1b}\u{1b}\u{1b}1G"),
    ("wall", "\u{1b}\u{1b}\u{1b}2g"),
    ("end of the wall", "\u{1b}\u{1b}\u{1b}2G"),
    ("processes", "\u{1b}\u{1b}\u{1b}3"),
    ("users", "\u{1b}\u{1b}\u{1b}4"),
    ("findings", "\u{1b}\u{1b}\u{1b}5"),
    ("a host in full", "\u{1b}\u{1b}\u{1b}1G\n"),
    ("a GPU in full", "\n"),
    ("the log of a host", "\u{1b}\u{1b}\u{1b}1L"),
];

/// The hosts that these lines name, and those that they count as left out.
fn named_and_counted(lines: &[String], hosts: usize) -> (usize, usize) {
    let named = (0..hosts).filter(|host| lines.iter().any(|line| line.contains(&name(*host)))).count();
    // `▲ 3 more hosts above, ▼ 40 below, 2 without data`: the last figure is of these hosts.
    let more = lines
        .iter()
        .filter(|line| line.contains("more host"))
        .map(|line| {
            line.rsplit_once(", ")
                .filter(|(_, last)| last.ends_with("without data"))
                .map_or(&line[..], |(section, _)| section)
        })
        .flat_map(|section| section.split_whitespace().filter_map(|word| word.parse::<usize>().ok()))
        .sum();
    (named, more)
}

fn name(host: usize) -> String {
    format!("n{host:03}")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..Default::default() })]
    #[test]
    fn hosts_in_any_state_of_their_connection_are_all_there(
        columns in 1_u16..301, rows in 1_u16..91, gpus in 0_usize..17, outcomes in prop::collection::vec(outcome(), 0..65),
    ) {
        let size = (columns, rows);
        let hosts = outcomes.len();
        let mut app = connecting(&(0..hosts).map(name).collect::<Vec<_>>(), size);
        for (host, outcome) in outcomes.iter().enumerate() {
            apply_outcome(&mut app, host, gpus, *outcome);
        }
        app.update(Event::Ticked, at(NOW));
        app.refresh_derived_state();
        for (view, keys) in VIEWS {
            press(&mut app, keys);
            let screen = lines(&cells_at(&app, size, NOW));
            if columns < MIN_SIZE.0 || rows < MIN_SIZE.1 {
                // A line that says which size is needed, or as much of it as there is room for.
                prop_assert!(screen[1..].iter().all(String::is_empty), "{}", screen.join("\n"));
                continue;
            }
            // Whatever is looked at, the header says how many hosts there are; what is wrong with them goes before.
            let all = [format!("{hosts} host"), format!("of {hosts} hosts")];
            let is_shown = all.iter().any(|words| screen[0].contains(words));
            prop_assert!(is_shown || columns < 60, "{view} at {size:?}: {}", screen[0]);
            let section = match view {
                "grid" | "end of the grid" => {
                    let screen_layout = app.screen_layout(size);
                    1..usize::from(rows - 1 - screen_layout.list_rows)
                }
                "wall" | "end of the wall" => {
                    let layout = app.wall_layout(size);
                    1..usize::from(rows - 1 - layout.panel_rows)
                }
                _ => continue,
            };
            let (named, more) = named_and_counted(&screen[section], hosts);
            prop_assert_eq!(named + more, hosts, "{} at {:?}:\n{}", view, size, screen.join("\n"));
        }
    }

    #[test]
    fn no_size_makes_a_question_of_a_host_panic(columns in 1_u16..301, rows in 1_u16..91) {
        let size = (columns, rows);
        for mut app in [host_states(size), app(3, 8, size)] {
            for (_, keys) in VIEWS {
                press(&mut app, keys);
                press(&mut app, "?");
                lines(&cells_at(&app, size, NOW));
                press(&mut app, "\u{1b}P");
                lines(&cells_at(&app, size, NOW + 60));
                press(&mut app, "\u{1b}:host\u{1b}");
                lines(&cells_at(&app, size, NOW));
            }
        }
    }
}
