//! What one snapshot costs on its way through the controller, for a host of 8 GPUs and 40 processes.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use gpufleet::app::{App, Event, Settings};
use gpufleet::diagnosis::{Engine, StateTracker};
use gpufleet::fleet::{
    Fleet, GpuMetric, Group, HostId, HostUpdate, ListOrder, Moment, RowsView, Series, SortKey, host_rows,
};
use gpufleet::hosts::HostConfig;
use gpufleet::ui::draw_into;
use gpufleet::wire::{
    Ancestor, GpuColumns, GpuInfo, GpuProcessColumns, GpuProcessKind, GpuProcessReading, GpuReading, Hello,
    HostReading, Inventory, Message, PROTOCOL, Presence, ProcessColumns, ProcessFacts, ProcessReading, ProcessState,
    Snapshot, codec,
};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use std::collections::HashSet;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

const GPUS: u32 = 8;
const PROCESSES: u32 = 40;

fn hello() -> HostUpdate {
    HostUpdate::Hello(Box::new(Hello {
        protocol: PROTOCOL,
        probe_version: "0.1.0".into(),
        boot_id: Some("2c1f9c1e-8a57-4f4c-9a0e-5d1f6b1f7d10".into()),
        host_name: Some("hgx-01".into()),
        login_user: Some("alice".into()),
        login_uid: Some(1000),
        kernel: Some("6.1.0".into()),
        arch: Some("x86_64".into()),
        cpu_count: Some(112),
        memory_total_bytes: Some(1 << 40),
        scope: None,
        source: None,
        probe_pid: Some(77),
    }))
}

fn inventory() -> HostUpdate {
    let gpu = |index| GpuInfo {
        index,
        uuid: Some(format!("GPU-7c9d2f11-0000-0000-0000-{index:012}").into()),
        name: Some("NVIDIA H100 80GB HBM3".into()),
        memory_total_bytes: Some(80 << 30),
        power_limit_watts: Some(700.0),
        ..GpuInfo::default()
    };
    HostUpdate::Inventory(Box::new(Inventory {
        generation: 1,
        gpus: (0..GPUS).map(gpu).collect(),
        ..Inventory::default()
    }))
}

fn gpu(index: u32, sequence: u64) -> GpuReading {
    let wobble = ((sequence * 7 + u64::from(index) * 13) % 10) as u8;
    GpuReading {
        utilization_percent: Some(90 + wobble),
        memory_utilization_percent: Some(40 + wobble),
        memory_used_bytes: Some((60 << 30) + u64::from(wobble) * (1 << 20)),
        memory_reserved_bytes: Some(640 << 20),
        temperature_celsius: Some(60 + i32::from(wobble)),
        power_watts: Some(550.5 + f32::from(wobble)),
        power_mean_watts: Some(551.25 + f32::from(wobble)),
        energy_joules: Some(1.25e9 + sequence as f64),
        clock_graphics_mhz: Some(1755),
        clock_sm_mhz: Some(1755),
        clock_memory_mhz: Some(2619),
        performance_state: Some(0),
        clocks_event_reasons: Some(4),
        ..GpuReading::default()
    }
}

fn usage(process: u32) -> GpuProcessReading {
    GpuProcessReading {
        pid: Some(10_000 + process),
        gpu: Some((process % GPUS) as u16),
        kind: Some(GpuProcessKind::Compute),
        gpu_memory_bytes: Some(u64::from(process + 1) << 28),
        sm_percent: Some((process * 2) as u8),
        memory_percent: Some((process / 2) as u8),
        ..GpuProcessReading::default()
    }
}

fn process(process: u32, sequence: u64) -> ProcessReading {
    ProcessReading {
        pid: Some(10_000 + process),
        start_ticks: Some(8_000_000 + u64::from(process)),
        presence: Some(Presence::Visible),
        state: Some(ProcessState::Running),
        cpu_percent: Some(96.5 + process as f32),
        cpu_seconds: Some(1234.5 + sequence as f64),
        rss_bytes: Some(12_345_678_901),
        threads: Some(96),
        age_seconds: Some(3600.0 + sequence as f64),
        ..ProcessReading::default()
    }
}

/// Five jobs of eight workers, each below its own torchrun.
fn facts(process: u32) -> ProcessFacts {
    let launcher = 9000 + process / 8;
    ProcessFacts {
        pid: 10_000 + process,
        start_ticks: Some(8_000_000 + u64::from(process)),
        uid: Some(1000 + process / 8),
        user: Some(format!("user{}", process / 8).into()),
        name: Some("python3.11".into()),
        argv: ["python3", "-u", "pretrain.py", "--config", "configs/7b.yaml"].map(Into::into).to_vec(),
        ancestors: vec![Ancestor {
            pid: launcher,
            start_ticks: 7_000_000,
            uid: Some(1000 + process / 8),
            name: "torchrun".into(),
            argv: ["torchrun", "--nproc_per_node", "8", "pretrain.py"].map(Into::into).to_vec(),
        }],
        ..ProcessFacts::default()
    }
}

fn snapshot(sequence: u64) -> Snapshot {
    Snapshot {
        sequence,
        generation: 1,
        monotonic_seconds: sequence as f64,
        wall_unix_ms: 1_763_000_000_000 + sequence as i64 * 1000,
        interval_seconds: Some(1.0),
        host: HostReading { cpu_percent: Some(71.5), load_1: Some(92.0), ..HostReading::default() },
        gpus: GpuColumns::from_rows(&(0..GPUS).map(|index| gpu(index, sequence)).collect::<Vec<_>>()),
        gpu_processes: GpuProcessColumns::from_rows(&(0..PROCESSES).map(usage).collect::<Vec<_>>()),
        processes: ProcessColumns::from_rows(&(0..PROCESSES).map(|index| process(index, sequence)).collect::<Vec<_>>()),
        facts: if sequence == 1 { (0..PROCESSES).map(facts).collect() } else { Vec::new() },
        ..Snapshot::default()
    }
}

fn at(seconds: u64) -> Moment {
    Moment { elapsed: Duration::from_secs(seconds), unix: Duration::from_secs(1_763_000_000 + seconds) }
}

/// A fleet whose hosts have sent their first snapshots.
fn fleet(hosts: u32) -> Fleet {
    let configs: Vec<_> = (0..hosts).map(|host| Arc::new(HostConfig::named(format!("hgx-{host:02}")))).collect();
    let mut fleet = Fleet::new(&configs, false, at(0));
    for host in (0..hosts).map(HostId) {
        fleet.apply(host, hello(), at(0));
        fleet.apply(host, inventory(), at(0));
        for sequence in 1..=2 {
            fleet.apply(host, HostUpdate::Snapshot(Box::new(snapshot(sequence))), at(sequence));
        }
    }
    fleet
}

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

/// A fleet and its engine after so many seconds at a snapshot a second.
fn watched(hosts: u32, seconds: u64) -> (Fleet, Engine) {
    let mut fleet = fleet(hosts);
    let mut engine = Engine::default();
    for second in 3..=seconds {
        judge(&mut fleet, &mut engine, hosts, second);
    }
    (fleet, engine)
}

/// One second of it. Returns the time that the engine took.
fn judge(fleet: &mut Fleet, engine: &mut Engine, hosts: u32, second: u64) -> Duration {
    for host in (0..hosts).map(HostId) {
        fleet.apply(host, HostUpdate::Snapshot(Box::new(snapshot(second))), at(second));
    }
    let begin = Instant::now();
    for host in (0..hosts).map(HostId) {
        black_box(engine.step(fleet, host, at(second)));
    }
    black_box(engine.tick(fleet, at(second)));
    begin.elapsed()
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
