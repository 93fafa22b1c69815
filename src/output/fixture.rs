//! A small fleet in which every state occurs, for tests.

use super::Report;
use crate::config::HostConfig;
use crate::diagnosis::{Finding, FindingPhase, RuleId, Severity};
use crate::fleet::{ConnectPhase, Fleet, GpuState, HostId, HostUpdate, LinkError, LinkErrorKind, Moment, RetryPolicy};
use crate::wire::{
    Ancestor, DeviceError, DriverError, DriverErrorKind, GpuColumns, GpuInfo, GpuProcessColumns, GpuProcessKind,
    GpuProcessReading, GpuReading, Hello, HostReading, Inventory, Owner, Presence, ProbeCost, ProcessColumns,
    ProcessFacts, ProcessReading, ProcessState, Scope, Snapshot,
};
use std::sync::Arc;
use std::time::Duration;

const GIB: u64 = 1024 * 1024 * 1024;

/// 2026-05-04T12:00:00Z and `seconds` more, the program having begun an hour before.
pub(super) fn moment(seconds: f64) -> Moment {
    let since = Duration::from_secs_f64(3600.0 + seconds);
    Moment::new(since, Duration::from_secs(1_777_892_400) + since)
}

/// Calls back with the fleet half a second after the last readings.
pub(super) fn with_report(check: impl FnOnce(&Report<'_>)) {
    let states = |id: HostId| match id {
        HostId(0) => vec![
            (GpuState::InUse, Some(moment(-60.0))),
            (GpuState::Hung, Some(moment(-1080.0))),
            (GpuState::Fault, None),
            (GpuState::Free, None),
        ],
        HostId(4) => vec![(GpuState::Unknown, None)],
        _ => Vec::new(),
    };
    let (hang, watched) = findings();
    check(&Report { fleet: &fleet(), states: &states, findings: &[&hang, &watched], now: moment(0.5) });
}

/// One that fires, and one that is only watched.
fn findings() -> (Finding, Finding) {
    let mut hang = super::findings::fixture::hang();
    (hang.since, hang.fired_at, hang.updated) = (moment(-1080.0), Some(moment(-780.0)), moment(0.0));
    let mut watched = hang.clone();
    watched.id = "idle-hog/hgx-01/slurm:3385".into();
    (watched.rule, watched.severity, watched.phase) = (RuleId::IdleHog, Severity::Info, FindingPhase::Pending);
    (watched.fired_at, watched.due) = (None, Some(moment(1800.0)));
    watched.sentence = "GPU 3 idle > 30 min with 12 GiB held".into();
    (hang, watched)
}

fn fleet() -> Fleet {
    let mut first = HostConfig::named("hgx-01");
    first.address = Some("10.0.0.11".to_owned());
    first.group = Some("rack 7".into());
    first.note = Some("a note".into());
    first.tags = vec!["h100".into()];
    let names = ["no-driver", "größe-大", "new-key", "gone-quiet", "slow"];
    let configs: Vec<Arc<HostConfig>> =
        std::iter::once(first).chain(names.map(HostConfig::named)).map(Arc::new).collect();
    let mut fleet = Fleet::new(&configs, false, moment(-10.0));
    let mut apply = |host: u32, seconds: f64, update: HostUpdate| {
        fleet.apply(HostId(host), update, moment(seconds));
    };
    busy_host(&mut |seconds, update| apply(0, seconds, update));
    host_without_driver(&mut |seconds, update| apply(1, seconds, update));
    let refused = LinkError::new(LinkErrorKind::Refused, "nothing listens on port 22")
        .with_hint("is sshd running there? `systemctl status ssh`");
    apply(2, -1.0, HostUpdate::Down { error: refused, retry_at: Some(moment(3.0)), attempt: 1 });
    let unknown = LinkError::new(LinkErrorKind::HostKeyUnknown, "the host key is not known")
        .with_hint("ssh-keyscan new-key >> ~/.ssh/known_hosts, after comparing it")
        .with_retry(RetryPolicy::OnRequest);
    apply(3, -1.0, HostUpdate::NeedsUser(unknown));
    let gpus = vec![GpuInfo { index: 0, name: Some("NVIDIA RTX A6000".into()), ..GpuInfo::default() }];
    apply(4, -9.0, HostUpdate::Inventory(Box::new(Inventory { generation: 1, gpus, ..Inventory::default() })));
    apply(4, -8.0, HostUpdate::Snapshot(Box::new(Snapshot { generation: 1, ..Snapshot::default() })));
    apply(4, -5.0, HostUpdate::Silent);
    apply(5, -9.0, HostUpdate::Connecting { attempt: 1, phase: ConnectPhase::KeyExchange });
    fleet
}

fn busy_host(apply: &mut dyn FnMut(f64, HostUpdate)) {
    let hello = Hello {
        protocol: 1,
        probe_version: "0.1.0".into(),
        boot_id: Some("5d4e".into()),
        host_name: Some("hgx-01".into()),
        login_user: Some("alice".into()),
        login_uid: Some(1000),
        kernel: Some("6.1.0".into()),
        arch: Some("x86_64".into()),
        cpu_count: Some(112),
        memory_total_bytes: Some(1007 * GIB),
        scope: Some(Scope::Host),
        source: Some(crate::wire::ReadingSource::Probe),
        probe_pid: Some(77),
    };
    let gpus = (0..4).map(|index| GpuInfo {
        index,
        uuid: Some(format!("GPU-{index}").into()),
        name: Some("NVIDIA H100 80GB HBM3".into()),
        memory_total_bytes: Some(80 * GIB),
        power_limit_watts: Some(700.0),
        ..GpuInfo::default()
    });
    let inventory = Inventory {
        generation: 1,
        driver_version: Some("570.86.15".into()),
        cuda_version: Some("12.8".into()),
        nvml_path: Some("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1".into()),
        gpus: gpus.collect(),
        error: None,
    };
    apply(-3.0, HostUpdate::Hello(Box::new(hello)));
    apply(-3.0, HostUpdate::RoundTrip(Duration::from_millis(12)));
    apply(-2.0, HostUpdate::Inventory(Box::new(inventory)));
    apply(0.0, HostUpdate::Snapshot(Box::new(busy_snapshot())));
}

fn busy_snapshot() -> Snapshot {
    let lost = DeviceError { kind: DriverErrorKind::GpuLost, code: Some(15), message: "fell off the bus".into() };
    let gpu = |utilization, used, temperature, power| GpuReading {
        utilization_percent: Some(utilization),
        memory_used_bytes: Some(used),
        temperature_celsius: Some(temperature),
        power_watts: Some(power),
        clocks_event_reasons: Some(0x4),
        ..GpuReading::default()
    };
    let gpus = [
        gpu(97, 75 * GIB, 71, 512.4),
        gpu(100, 70 * GIB, 44, 118.0),
        GpuReading { error: Some(lost), ..GpuReading::default() },
        GpuReading { utilization_percent: None, ..gpu(0, GIB / 2, 30, 70.0) },
    ];
    let usage = |pid, gpu, memory| GpuProcessReading {
        pid,
        gpu: Some(gpu),
        kind: Some(GpuProcessKind::Compute),
        gpu_memory_bytes: memory,
        sm_percent: Some(90),
        ..GpuProcessReading::default()
    };
    let uses = [
        usage(Some(2028), 0, Some(74 * GIB)),
        usage(Some(900), 0, Some(GIB / 4)),
        usage(Some(2028), 1, Some(69 * GIB)),
        usage(None, 1, None),
    ];
    let process = |pid: u32| ProcessReading {
        pid: Some(pid),
        start_ticks: Some(u64::from(pid) * 10),
        presence: Some(Presence::Visible),
        state: Some(ProcessState::Running),
        cpu_percent: Some(101.5),
        rss_bytes: Some(12 * GIB),
        age_seconds: Some(3300.0),
        ..ProcessReading::default()
    };
    let facts = ProcessFacts {
        pid: 2028,
        start_ticks: Some(20280),
        start_unix_seconds: Some(1_777_892_400),
        uid: Some(1000),
        user: Some("alice".into()),
        name: Some("python".into()),
        argv: vec!["python".into(), "train.py".into()],
        ancestors: vec![Ancestor { pid: 2000, start_ticks: 20000, name: "torchrun".into(), ..Ancestor::default() }],
        owner: Some(Owner::Slurm { job: "3385".into(), step: None }),
        ..ProcessFacts::default()
    };
    let display = ProcessFacts { pid: 900, uid: Some(0), name: Some("Xorg".into()), ..ProcessFacts::default() };
    Snapshot {
        sequence: 2,
        generation: 1,
        host: HostReading {
            cpu_percent: Some(33.6),
            load_1: Some(18.2),
            memory_total_bytes: Some(1007 * GIB),
            memory_available_bytes: Some(595 * GIB),
            ..HostReading::default()
        },
        gpus: GpuColumns::from_rows(&gpus),
        gpu_processes: GpuProcessColumns::from_rows(&uses),
        processes: ProcessColumns::from_rows(&[process(900), process(2028)]),
        facts: vec![facts, display],
        processes_left_out: 3,
        cost: Some(ProbeCost::default()),
        ..Snapshot::default()
    }
}

fn host_without_driver(apply: &mut dyn FnMut(f64, HostUpdate)) {
    let error = DriverError {
        kind: DriverErrorKind::VersionMismatch,
        code: Some(18),
        message: "driver/library version mismatch".into(),
    };
    let inventory = Inventory { generation: 1, error: Some(error), ..Inventory::default() };
    let host = HostReading { cpu_percent: Some(2.0), ..HostReading::default() };
    apply(-1.0, HostUpdate::Inventory(Box::new(inventory)));
    apply(-1.0, HostUpdate::Snapshot(Box::new(Snapshot { generation: 1, host, ..Snapshot::default() })));
}
