//! The memory that the controller keeps for a host after the host sent the largest allowed of everything.
//!
//! The tests count the bytes of the heap that are in use.

use crate::app::{App, DisplaySettings, Event};
use crate::config::HostConfig;
use crate::counted_memory::live_bytes;
use crate::diagnosis::Engine;
use crate::fleet::fixture::{TestProcess, at, gpus, process, reading};
use crate::fleet::{ConnectPhase, Fleet, HostId, HostUpdate, LinkError, LinkErrorKind};
use crate::sim::builder;
use crate::wire::codec::{MAX_GPUS, MAX_PROCESSES};
use crate::wire::{
    DeviceError, DriverError, DriverErrorKind, Filesystem, GpuHealth, GpuHealthColumns, GpuInfo, GpuReading, Inventory,
    RecentPast, SafeText, Snapshot, XidEvent,
};
use std::sync::Arc;

/// Seconds between two snapshots.
const INTERVAL: u64 = 30;
const QUARTER_HOUR: u64 = 900;
const HOUR: u64 = 3600;
/// Longer than the findings of an attack fire.
const RECOVERY_SECONDS: u64 = HOUR + QUARTER_HOUR;
/// Snapshots of one attack.
const ROUNDS: u64 = 2;
/// Hosts of the test over hours.
const HOSTS: usize = 2;

/// Whether the attacks have the full size, and last for longer. A quarter of it takes seconds in a debug build.
fn is_full_size() -> bool {
    std::env::var_os("GPUFLEET_TESTS_ALL").is_some()
}

fn share_of(limit: usize) -> usize {
    if is_full_size() { limit } else { limit / 4 }
}

/// The updates of a host in one round of an attack. The second argument is a number that no other round has.
type Attack = fn(&Machine, u64) -> Vec<HostUpdate>;

const ATTACKS: [(&str, Attack); 5] = [
    ("largest", largest),
    ("new processes", new_processes),
    ("new processes of a failing driver", new_processes_of_a_failing_driver),
    ("new identities", new_identities),
    ("lost connections", lost_connections),
];

/// The messages of one host.
struct Machine {
    generation: u32,
    sequence: u64,
    seconds: u64,
}

impl Machine {
    fn hello(boot: u64) -> HostUpdate {
        HostUpdate::Hello(Box::new(builder::hello(SafeText::from(format!("boot-{boot}")), "alice", 1000)))
    }

    fn inventory(&self, gpus: Vec<GpuInfo>) -> HostUpdate {
        HostUpdate::Inventory(Box::new(Inventory { generation: self.generation, gpus, ..Inventory::default() }))
    }

    fn snapshot(&self, gpus: &[GpuReading], processes: &[TestProcess]) -> Snapshot {
        Snapshot {
            sequence: self.sequence,
            generation: self.generation,
            monotonic_seconds: self.seconds as f64,
            interval_seconds: Some(INTERVAL as f32),
            ..builder::snapshot(gpus, processes)
        }
    }
}

fn update(snapshot: Snapshot) -> HostUpdate {
    HostUpdate::Snapshot(Box::new(snapshot))
}

/// As many processes as a snapshot holds, with pids that no other round has.
fn many_processes(number: u64) -> Vec<TestProcess> {
    let count = share_of(MAX_PROCESSES) as u32;
    let first = number as u32 * count;
    let command = format!("python train.py {}", "--learning-rate=0.0001 ".repeat(10));
    (1..=count).map(|pid| process(first + pid, &command, &[(0, 1), (pid as u16 % 8, 1)])).collect()
}

fn largest(machine: &Machine, number: u64) -> Vec<HostUpdate> {
    let gpu_count = share_of(MAX_GPUS);
    let text = |name: &str, index: usize| SafeText::from(format!("{name}-{number}-{index}-{}", "x".repeat(60)));
    let error = |index| DeviceError { kind: DriverErrorKind::GpuLost, code: Some(15), message: text("error", index) };
    let infos = (0..gpu_count).map(|index| GpuInfo {
        index: index as u32,
        uuid: Some(text("GPU", index)),
        name: Some(text("name", index)),
        memory_total_bytes: Some(80 << 30),
        power_limit_watts: Some(700.0),
        ..GpuInfo::default()
    });
    let readings: Vec<GpuReading> = (0..gpu_count)
        .map(|index| GpuReading { error: (index % 2 == 0).then(|| error(index)), ..reading(100, 70) })
        .collect();
    let health =
        GpuHealth { ecc_uncorrectable_volatile: Some(number), row_remap_failed: Some(true), ..GpuHealth::default() };
    let mut snapshot = machine.snapshot(&readings, &many_processes(number));
    snapshot.health = GpuHealthColumns::from_rows(&vec![health; gpu_count]);
    snapshot.notes = (0..256).map(|index| text("note", index)).collect();
    snapshot.host.filesystems = (0..64)
        .map(|index| Filesystem {
            mount_point: text("/mnt", index),
            silent_seconds: Some(600.0),
            ..Filesystem::default()
        })
        .collect();
    snapshot.host.slurm_allocated_gpus = Some((0..4096).collect());
    snapshot.host.oom_kills = Some(number);
    snapshot.xid_events = (0..1024)
        .map(|index| XidEvent {
            gpu: Some(index % 512),
            xid: u64::from(index),
            monotonic_seconds: machine.seconds as f64,
        })
        .collect();
    let past = |gpu| RecentPast {
        gpu,
        end_monotonic_seconds: machine.seconds as f64,
        utilization_percent: vec![Some(50); 100],
        ..RecentPast::default()
    };
    snapshot.recent_past = (0..gpu_count as u16).map(past).collect();
    vec![machine.inventory(infos.collect()), update(snapshot)]
}

fn new_processes(machine: &Machine, number: u64) -> Vec<HostUpdate> {
    vec![update(machine.snapshot(&[0; 8].map(|_| reading(90, 40)), &many_processes(number)))]
}

fn new_processes_of_a_failing_driver(machine: &Machine, number: u64) -> Vec<HostUpdate> {
    let mut snapshot = machine.snapshot(&[0; 8].map(|_| reading(90, 40)), &many_processes(number));
    snapshot.driver_error = number.is_multiple_of(2).then(|| DriverError {
        kind: DriverErrorKind::Blocked,
        code: None,
        message: "no answer".into(),
    });
    vec![update(snapshot)]
}

fn new_identities(machine: &Machine, number: u64) -> Vec<HostUpdate> {
    let gpu_count = share_of(MAX_GPUS);
    let first = number as u32 * gpu_count as u32;
    let processes: Vec<TestProcess> = (0..64)
        .map(|index| {
            let mut one = process(index + 1, "python train.py", &[(index as u16, 70)]);
            one.facts.user = Some(format!("user-{number}-{index}").into());
            one
        })
        .collect();
    let readings = vec![reading(100, 70); gpu_count];
    vec![
        Machine::hello(number),
        machine.inventory(gpus(first..first + gpu_count as u32)),
        update(machine.snapshot(&readings, &processes)),
    ]
}

fn lost_connections(_: &Machine, number: u64) -> Vec<HostUpdate> {
    (0..40)
        .flat_map(|attempt| {
            let text = format!("connection {number}-{attempt} was closed: {}", "x".repeat(400));
            let error = LinkError::new(LinkErrorKind::Closed, text.as_str()).with_hint(text.as_str());
            [
                HostUpdate::Down { error, retry_at: None, attempt },
                HostUpdate::Connecting { attempt, phase: ConnectPhase::Queued },
                HostUpdate::Silent,
            ]
        })
        .collect()
}

/// A controller with some hosts, and its clock.
struct Controller {
    app: App,
    machines: Vec<Machine>,
    number: u64,
    seconds: u64,
}

impl Controller {
    fn new(hosts: usize) -> Self {
        let configs: Vec<_> = (0..hosts).map(|host| Arc::new(HostConfig::named(format!("hgx-{host:02}")))).collect();
        let now = at(0.0);
        let app = App::new(Fleet::new(&configs, false, now), DisplaySettings::default(), Engine::default(), now);
        let machines = (0..hosts).map(|_| Machine { generation: 0, sequence: 0, seconds: 0 }).collect();
        let mut controller = Self { app, machines, number: 1000, seconds: 0 };
        controller.event(Event::Resized(120, 40));
        (0..hosts).for_each(|host| controller.connect(host));
        controller
    }

    fn event(&mut self, event: Event) {
        drop(self.app.update(event, at(self.seconds as f64)));
    }

    fn update(&mut self, host: usize, update: HostUpdate) {
        self.event(Event::Host(HostId(host as u32), Box::new(update)));
    }

    /// The end of a round.
    fn tick(&mut self) {
        self.event(Event::Ticked);
        self.app.refresh_derived_state();
    }

    /// Connects to the honest probe of a host.
    fn connect(&mut self, host: usize) {
        self.machines[host].generation += 1;
        let inventory = self.machines[host].inventory(gpus(0..8));
        self.update(host, HostUpdate::Connecting { attempt: 1, phase: ConnectPhase::Queued });
        self.update(host, Machine::hello(0));
        self.update(host, inventory);
        self.report(host, false);
    }

    /// Sends an honest snapshot: eight GPUs, and a process on each.
    fn report(&mut self, host: usize, is_known: bool) {
        let machine = &mut self.machines[host];
        (machine.sequence, machine.seconds) = (machine.sequence + 1, self.seconds);
        let processes: Vec<TestProcess> = (0..8)
            .map(|gpu| TestProcess {
                is_known,
                ..process(4000 + u32::from(gpu), "python train.py --big", &[(gpu, 40)])
            })
            .collect();
        let snapshot = machine.snapshot(&[0; 8].map(|_| reading(95, 41)), &processes);
        self.update(host, update(snapshot));
    }

    /// All hosts are honest for this long.
    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds / INTERVAL {
            self.seconds += INTERVAL;
            (0..self.machines.len()).for_each(|host| self.report(host, true));
            self.tick();
        }
    }

    fn attack(&mut self, host: usize, attack: Attack) {
        self.machines[host].generation += 1000;
        for _ in 0..ROUNDS {
            self.seconds += INTERVAL;
            self.number += 1;
            let machine = &mut self.machines[host];
            (machine.sequence, machine.seconds) = (machine.sequence + 1, self.seconds);
            machine.generation += 1;
            let mut updates = attack(machine, self.number);
            if updates.iter().any(|update| matches!(update, HostUpdate::Snapshot(_)))
                && !updates.iter().any(|update| matches!(update, HostUpdate::Inventory(_)))
            {
                updates.insert(0, machine.inventory(gpus(0..8)));
            }
            for update in updates {
                self.update(host, update);
            }
            self.tick();
        }
        self.connect(host);
    }
}

/// The memory in use, in KiB, by a controller with one host that is honest, apart from these attacks.
fn kib_after(attacks: &[Attack]) -> isize {
    let before = live_bytes();
    let mut controller = Controller::new(1);
    for number in 0..1000 {
        // The event log, which all hosts share, is full.
        controller.app.report_message(format!("message {number}: {}", "x".repeat(500)), at(0.0));
    }
    controller.run(QUARTER_HOUR);
    for attack in attacks {
        controller.attack(0, *attack);
    }
    // Both hosts run equally long, because a longer history takes more memory.
    controller.run(RECOVERY_SECONDS + INTERVAL * ROUNDS * (1 - attacks.len() as u64));
    (live_bytes() - before) / 1024
}

#[test]
fn a_host_takes_little_more_memory_after_an_attack_than_before() {
    let honest = kib_after(&[]);
    for (name, attack) in ATTACKS {
        let more = kib_after(&[attack]) - honest;
        // Cleared findings, ended jobs and absent GPUs: a fixed number of each.
        assert!(more < 192, "{name}: {more} KiB more than {honest} KiB");
    }
}

/// Returns the memory in use after each of some hours with the same attacks in each hour.
fn kib_after_each_hour(hours: u64, attacks: &[(&str, Attack)]) -> Vec<isize> {
    let before = live_bytes();
    let mut controller = Controller::new(HOSTS);
    let mut kib = Vec::new();
    for hour in 1..=hours {
        for (number, (_, attack)) in attacks.iter().enumerate() {
            controller.attack(number % HOSTS, *attack);
            controller.run(QUARTER_HOUR);
        }
        controller.run((hour * HOUR).saturating_sub(controller.seconds));
        kib.push((live_bytes() - before) / 1024);
    }
    kib
}

#[test]
fn memory_does_not_grow_after_the_histories_are_full() {
    let (hours, attacks) = if is_full_size() { (12, &ATTACKS[..]) } else { (4, &ATTACKS[1..3]) };
    let kib = kib_after_each_hour(hours, attacks);
    let (middle, last) = (kib[kib.len() / 2], kib[kib.len() - 1]);
    assert!(last <= middle + 32, "KiB after each hour: {kib:?}");
}
