//! Time per step of a snapshot in the controller, for hosts with 8 GPUs and 40 processes: decoding, applying, listing,
//! diagnosis and drawing.

mod fixture;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use crossterm::event::{KeyCode, KeyEvent};
use fixture::{Snapshots, at, diagnose_second, diagnosed_fleet, fleet, hello, inventory, snapshot};
use gpufleet::app::{App, DisplaySettings, Event};
use gpufleet::config::HostConfig;
use gpufleet::diagnosis::{Engine, StateTracker};
use gpufleet::fleet::{
    Fleet, GpuMetric, Group, HostId, HostUpdate, ListOrder, RowCache, SeriesKey, SortKey, host_rows,
};
use gpufleet::ui;
use gpufleet::wire::{GpuProcessColumns, Message, ProcessColumns, codec};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use std::collections::HashSet;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

fn decode(criterion: &mut Criterion) {
    let line = codec::encode(&Message::Snapshot(Box::new(snapshot(2)))).unwrap_or_default();
    let line = line.strip_suffix(b"\n").unwrap_or(&line);
    let mut group = criterion.benchmark_group("snapshot of 8 GPUs and 40 processes");
    group.throughput(Throughput::Bytes(line.len() as u64));
    group.bench_function("decode", |bencher| bencher.iter(|| codec::decode(black_box(line))));
    group.finish();
}

fn apply(criterion: &mut Criterion) {
    let mut fleet = fleet(1);
    let mut tracker = StateTracker::default();
    let mut sequence = 2;
    criterion.bench_function("apply", |bencher| {
        bencher.iter_batched(
            || {
                sequence += 1;
                (sequence, HostUpdate::Snapshot(Box::new(snapshot(sequence))))
            },
            |(sequence, update)| fleet.apply(HostId(0), update, at(sequence)),
            BatchSize::SmallInput,
        );
    });
    let Some(host) = fleet.host(HostId(0)) else { return };
    criterion.bench_function("observe states", |bencher| {
        bencher.iter(|| tracker.update(black_box(host), at(sequence)));
    });
    let series = SeriesKey::Gpu(0, GpuMetric::Utilization);
    criterion.bench_function("60 points of a chart over 10 min", |bencher| {
        bencher.iter(|| host.history().points(black_box(series), at(sequence), Duration::from_secs(600), 60));
    });
}

fn rows(criterion: &mut Criterion) {
    let fleet = fleet(5);
    let mut tracker = StateTracker::default();
    let mut view = RowCache::default();
    for host in fleet.hosts() {
        tracker.update(host, at(2));
        view.update(host, tracker.states(host.id), at(2));
    }
    criterion.bench_function("rows of one host", |bencher| {
        let Some(host) = fleet.host(HostId(0)) else { return };
        bencher.iter(|| host_rows(black_box(host), tracker.states(host.id), at(2)));
    });
    let open = HashSet::new();
    for (name, order) in [
        ("list of 200 processes in 25 jobs", ListOrder::default()),
        ("list of 200 processes, ungrouped", ListOrder::default_for(SortKey::GpuMemory, Group::None)),
    ] {
        criterion
            .bench_function(name, |bencher| bencher.iter(|| view.rows(black_box(order), &open, |_| true, |_| None)));
    }
}

/// An app on a screen of this size whose hosts have sent two snapshots, with `processes` processes in total.
fn app_with(hosts: u32, processes: usize, (columns, rows): (u16, u16)) -> App {
    let configs: Vec<_> = (1..=hosts).map(|host| Arc::new(HostConfig::named(format!("hgx-{host:03}")))).collect();
    let mut app = App::new(Fleet::new(&configs, false, at(1)), DisplaySettings::default(), Engine::default(), at(1));
    app.update(Event::Resized(columns, rows), at(1));
    for host in (0..hosts).map(HostId) {
        for update in [hello(), inventory()] {
            app.update(Event::Host(host, Box::new(update)), at(1));
        }
    }
    for sequence in [1, 2] {
        send_snapshots(&mut app, hosts, processes, sequence);
    }
    app
}

/// Every host sends one more snapshot with other figures and its share of the processes.
fn send_snapshots(app: &mut App, hosts: u32, processes: usize, sequence: u64) {
    for host in 0..hosts {
        let share = processes / hosts as usize + usize::from((host as usize) < processes % hosts as usize);
        let mut snapshot = snapshot(sequence);
        let usages: Vec<_> = (0..share).map(|row| snapshot.gpu_processes.row(row)).collect();
        let readings: Vec<_> = (0..share).map(|row| snapshot.processes.row(row)).collect();
        snapshot.gpu_processes = GpuProcessColumns::from_rows(&usages);
        snapshot.processes = ProcessColumns::from_rows(&readings);
        snapshot.facts.truncate(share);
        app.update(Event::Host(HostId(host), Box::new(HostUpdate::Snapshot(Box::new(snapshot)))), at(1 + sequence));
    }
    app.refresh_derived_state();
}

/// Whole frames: draws all cells, compares them with the frame before, and writes the differences.
///
/// Goals: 0.8 ms at 200x60 with 32 hosts and 200 processes, 4 ms at 300x90 with 100 hosts and 2,000. With "new figures"
/// all figures differ from the frame before; "idle redraw" is the cost of a tick without a change.
fn draw(criterion: &mut Criterion) {
    for (size, hosts, processes) in [((200, 60), 32, 200), ((300, 90), 100, 2000)] {
        let mut apps = [app_with(hosts, processes, size), app_with(hosts, processes, size)];
        send_snapshots(&mut apps[1], hosts, processes, 3);
        for (view, key) in [("grid", '1'), ("wall", '2'), ("processes", '3'), ("users", '4'), ("findings", '5')] {
            for app in &mut apps {
                app.update(Event::Key(KeyEvent::from(KeyCode::Char(key))), at(4));
                app.refresh_derived_state();
            }
            for (kind, step) in [("new figures", 1), ("idle redraw", 0)] {
                let options = TerminalOptions { viewport: Viewport::Fixed(Rect::new(0, 0, size.0, size.1)) };
                let backend = CrosstermBackend::new(std::io::sink());
                let Ok(mut terminal) = Terminal::with_options(backend, options) else { return };
                let name = format!("{view} of {hosts} hosts, {processes} processes, {}x{}: {kind}", size.0, size.1);
                let mut current = 0;
                criterion.bench_function(&name, |bencher| {
                    bencher.iter(|| {
                        current = (current + step) % 2;
                        terminal
                            .draw(|frame| {
                                ui::draw(black_box(&apps[current]), frame, at(4));
                            })
                            .map(|_| ())
                    });
                });
            }
        }
    }
}

/// Goals: 0.3 ms for a snapshot of one host, 80 ms for a second of 256 hosts (8 % of a core).
fn diagnose(criterion: &mut Criterion) {
    for (name, hosts, mut second) in [
        ("diagnosis of one host's snapshot, 8 GPUs, 40 processes, 2 h of history", 1, 7200),
        ("diagnosis of a second of 256 hosts of 8 GPUs and 40 processes", 256, 60),
    ] {
        let (mut fleet, mut engine) = diagnosed_fleet(hosts, second);
        let snapshots = Snapshots::new();
        criterion.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                let seconds = (0..iterations).map(|_| {
                    second += 1;
                    diagnose_second(&mut fleet, &mut engine, &snapshots, hosts, second)
                });
                seconds.sum()
            });
        });
    }
}

criterion_group!(benches, decode, apply, rows, draw, diagnose);
criterion_main!(benches);
