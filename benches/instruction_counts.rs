//! Repeats one step of a snapshot's way through the controller: `instruction_counts STEP TIMES`.
//!
//! `benches/guard` runs it under valgrind with few and with many repetitions. The difference gives the instructions per
//! step, without the setup, which costs the same in both runs.

mod fixture;

use fixture::{Snapshots, at, diagnose_second, diagnosed_fleet, fleet, hello, inventory, snapshot};
use gpufleet::app::{App, DisplaySettings, Event};
use gpufleet::config::HostConfig;
use gpufleet::diagnosis::{Engine, StateTracker};
use gpufleet::fleet::{Fleet, HostId, HostUpdate, ListOrder, RowCache};
use gpufleet::ui::draw_into;
use gpufleet::wire::{Message, codec};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use std::collections::HashSet;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

/// Repeats a step.
type Step = fn(u64);

const STEPS: [(&str, Step); 6] =
    [("decode", decode), ("encode", encode), ("apply", apply), ("diagnose", diagnose), ("list", list), ("draw", draw)];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let step = STEPS.iter().find(|(name, _)| arguments.first().is_some_and(|wanted| wanted == name));
    let times = arguments.get(1).and_then(|times| times.parse().ok());
    match (step, times) {
        (Some((_, step)), Some(times)) => {
            step(times);
            ExitCode::SUCCESS
        }
        // `cargo bench` passes `--bench`: this program has nothing to time.
        _ if arguments.iter().any(|argument| argument == "--bench") => ExitCode::SUCCESS,
        _ => {
            let names = STEPS.map(|(name, _)| name).join(", ");
            eprintln!("usage: instruction_counts STEP TIMES; steps: {names}");
            ExitCode::from(2)
        }
    }
}

fn line() -> Vec<u8> {
    let mut line = codec::encode(&Message::Snapshot(Box::new(snapshot(2)))).unwrap_or_default();
    line.pop();
    line
}

/// Decodes a line of the wire protocol.
fn decode(times: u64) {
    let line = line();
    for _ in 0..times {
        let _ = black_box(codec::decode(black_box(&line)));
    }
}

/// Encodes a snapshot as a line, like the probe.
fn encode(times: u64) {
    let message = Message::Snapshot(Box::new(snapshot(2)));
    for _ in 0..times {
        let _ = black_box(codec::encode(black_box(&message)));
    }
}

/// Applies a snapshot to the fleet and its history.
fn apply(times: u64) {
    let mut fleet = fleet(1);
    let snapshots = Snapshots::new();
    for second in 3..3 + times {
        fleet.apply(HostId(0), HostUpdate::Snapshot(Box::new(snapshots.get(second))), at(second));
    }
    black_box(&fleet);
}

/// Applies a snapshot and evaluates all rules, after ten minutes of earlier ones.
fn diagnose(times: u64) {
    let (mut fleet, mut engine) = diagnosed_fleet(1, 600);
    let snapshots = Snapshots::new();
    for second in 601..601 + times {
        diagnose_second(&mut fleet, &mut engine, &snapshots, 1, second);
    }
}

/// Builds the list of 200 processes in 25 jobs.
fn list(times: u64) {
    let fleet = fleet(5);
    let mut tracker = StateTracker::default();
    let mut view = RowCache::default();
    for host in fleet.hosts() {
        tracker.update(host, at(2));
        view.update(host, tracker.states(host.id), at(2));
    }
    for _ in 0..times {
        black_box(view.rows(black_box(ListOrder::default()), &HashSet::new(), |_| true, |_| None));
    }
}

/// Draws a frame of 200x60 with 32 hosts.
fn draw(times: u64) {
    let configs: Vec<_> = (1..=32).map(|host| Arc::new(HostConfig::named(format!("hgx-{host:02}")))).collect();
    let mut app = App::new(Fleet::new(&configs, false, at(1)), DisplaySettings::default(), Engine::default(), at(1));
    app.update(Event::Resized(200, 60), at(1));
    for host in 0..32 {
        for update in [hello(), inventory(), HostUpdate::Snapshot(Box::new(snapshot(1)))] {
            app.update(Event::Host(HostId(host), Box::new(update)), at(2));
        }
    }
    app.refresh_derived_state();
    let area = Rect::new(0, 0, 200, 60);
    let mut buffer = Buffer::empty(area);
    for _ in 0..times {
        buffer.reset();
        draw_into(black_box(&app), &mut buffer, area, at(2));
    }
}
