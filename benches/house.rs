//! What one snapshot costs on its way through the controller, for a host of 8 GPUs and 40 processes.

mod fixture;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use fixture::{at, fleet, hello, inventory, judge, snapshot, watched};
use gpufleet::app::{App, Event, Settings};
use gpufleet::diagnosis::{Engine, StateTracker};
use gpufleet::fleet::{Fleet, GpuMetric, Group, HostId, HostUpdate, ListOrder, RowsView, Series, SortKey, host_rows};
use gpufleet::hosts::HostConfig;
use gpufleet::ui::draw_into;
use gpufleet::wire::{Message, codec};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
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
        bencher.iter(|| tracker.observe(black_box(host), at(sequence)));
    });
    let series = Series::Gpu(0, GpuMetric::Utilization);
    criterion.bench_function("60 points of a chart over 10 min", |bencher| {
        bencher.iter(|| host.history().points(black_box(series), at(sequence), Duration::from_secs(600), 60));
    });
}

fn rows(criterion: &mut Criterion) {
    let fleet = fleet(5);
    let mut tracker = StateTracker::default();
    let mut view = RowsView::default();
    for host in fleet.hosts() {
        tracker.observe(host, at(2));
        view.update(host, tracker.states(host.id), at(2));
    }
    criterion.bench_function("rows of one host", |bencher| {
        let Some(host) = fleet.host(HostId(0)) else { return };
        bencher.iter(|| host_rows(black_box(host), tracker.states(host.id), at(2)));
    });
    let open = HashSet::new();
    for (name, order) in [
        ("list of 200 processes in 25 jobs", ListOrder::default()),
        ("list of 200 processes, ungrouped", ListOrder::by(SortKey::GpuMemory, Group::None)),
    ] {
        criterion
            .bench_function(name, |bencher| bencher.iter(|| view.rows(black_box(order), &open, |_| true, |_| None)));
    }
}

/// One frame of 200x60: 32 hosts of 8 GPUs, and the first of the rows of 1,280 processes.
fn draw(criterion: &mut Criterion) {
    let configs: Vec<_> = (1..=32).map(|host| Arc::new(HostConfig::named(format!("hgx-{host:02}")))).collect();
    let mut app = App::new(Fleet::new(&configs, false, at(1)), Settings::default(), Engine::default(), at(1));
    app.update(Event::Resized(200, 60), at(1));
    for host in 0..32 {
        for update in [hello(), inventory(), HostUpdate::Snapshot(Box::new(snapshot(1)))] {
            app.update(Event::Host(HostId(host), Box::new(update)), at(2));
        }
    }
    app.settle();
    let area = Rect::new(0, 0, 200, 60);
    let mut buffer = Buffer::empty(area);
    criterion.bench_function("draw 32 hosts of 8 GPUs at 200x60", |bencher| {
        bencher.iter(|| {
            buffer.reset();
            draw_into(black_box(&app), &mut buffer, area, at(2));
        });
    });
}

/// The goals: 0.3 ms for one host's snapshot, 80 ms for the second of 256 hosts (8 % of a core).
fn diagnose(criterion: &mut Criterion) {
    for (name, hosts, mut second) in [
        ("diagnosis of one host's snapshot, 8 GPUs, 40 processes, 2 h of history", 1, 7200),
        ("diagnosis of a second of 256 hosts of 8 GPUs and 40 processes", 256, 60),
    ] {
        let (mut fleet, mut engine) = watched(hosts, second);
        criterion.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                let seconds = (0..iterations).map(|_| {
                    second += 1;
                    judge(&mut fleet, &mut engine, hosts, second)
                });
                seconds.sum()
            });
        });
    }
}

criterion_group!(benches, decode, apply, rows, draw, diagnose);
criterion_main!(benches);
