//! Small fleets for tests: one with every host state, one with findings in every phase.

use super::Report;
use super::findings::FindingsReport;
use crate::config::{HostConfig, Sharing};
use crate::diagnosis::proof::{CulpritRank, Outcome};
use crate::diagnosis::{
    Confidence, Finding, FindingGpu, FindingPhase, FindingProcess, FindingVerdict, NotJudged, RuleId, Severity,
    SnoozeEnd, Transition,
};
use crate::fleet::{
    ConnectPhase, Fleet, GpuState, HostId, HostUpdate, JobKey, LinkError, LinkErrorKind, Moment, ProcessKey,
    RetryPolicy,
};
use crate::sim::builder::{self, ProcessSample};
use crate::wire::{
    Ancestor, DeviceError, DriverError, DriverErrorKind, GpuColumns, GpuInfo, GpuProcessColumns, GpuProcessKind,
    GpuProcessReading, GpuReading, Hello, HostReading, Inventory, Owner, ProbeCost, ProcessColumns, ProcessFacts,
    ProcessReading, Snapshot,
};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const GIB: u64 = 1024 * 1024 * 1024;

/// 2026-05-04T12:00:00Z plus `seconds`; the program started ten hours before.
pub(super) fn moment(seconds: f64) -> Moment {
    let since = Duration::from_secs_f64(36_000.0 + seconds);
    Moment::new(since, Duration::from_secs(1_777_860_000) + since)
}

/// Calls `check` with the report half a second after the last readings.
pub(super) fn with_report(check: impl FnOnce(&Report<'_>)) {
    with_sharing(Sharing::default(), check);
}

/// Calls `check` with the report of a fleet whose first host shares this much.
pub(super) fn with_sharing(sharing: Sharing, check: impl FnOnce(&Report<'_>)) {
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
    let (hang, suspicion, watched) = findings();
    let findings = [&hang, &suspicion, &watched];
    check(&Report { fleet: &fleet(sharing), states: &states, findings: &findings, now: moment(0.5) });
}

/// A firing finding, a suspicion and another pending finding.
fn findings() -> (Finding, Finding, Finding) {
    let mut hang = hang();
    (hang.since, hang.fired_at, hang.updated) = (moment(-1080.0), Some(moment(-780.0)), moment(0.0));
    let mut watched = hang.clone();
    watched.id = "idle-hog/hgx-01/slurm:3385".into();
    (watched.rule, watched.severity, watched.phase) = (RuleId::IdleHog, Severity::Info, FindingPhase::Pending);
    (watched.verdict, watched.fired_at, watched.due) = (None, None, Some(moment(1800.0)));
    watched.sentence = "GPU 3 idle > 30 min with 12 GiB held".into();
    let mut suspicion = hang.clone();
    suspicion.id = "stuck-spin/hgx-01/launcher:2028".into();
    (suspicion.severity, suspicion.phase, suspicion.since) = (Severity::Warn, FindingPhase::Pending, moment(-90.0));
    (suspicion.verdict, suspicion.fired_at, suspicion.due) = (None, None, Some(moment(210.0)));
    suspicion.gpus.truncate(1);
    suspicion.set_lasted(Duration::from_secs(90));
    suspicion.sentence = "GPU 0 reads 100 % busy for 90 s but draws 104 W of 700 W: train.py looks hung".into();
    (hang, suspicion, watched)
}

fn fleet(sharing: Sharing) -> Fleet {
    let mut first = HostConfig::named("hgx-01");
    first.sharing = sharing;
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
        host_name: Some("hgx-01".into()),
        kernel: Some("6.1.0".into()),
        ..builder::hello("5d4e".into(), "alice", 1000)
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
        start_ticks: Some(u64::from(pid) * 10),
        cpu_percent: Some(101.5),
        rss_bytes: Some(12 * GIB),
        age_seconds: Some(3300.0),
        ..ProcessSample::new(pid, ("", 0), "", &[]).reading
    };
    let facts = ProcessFacts {
        start_ticks: Some(20280),
        start_unix_seconds: Some(1_777_892_400),
        ancestors: vec![Ancestor { pid: 2000, start_ticks: 20000, name: "torchrun".into(), ..Ancestor::default() }],
        owner: Some(Owner::Slurm { job: "3385".into(), step: None }),
        ..ProcessSample::new(2028, ("alice", 1000), "python train.py", &[]).facts
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

fn fleet_of_findings() -> Fleet {
    let configs: Vec<_> =
        ["hgx-01", "hgx-02", "gone", "slow"].map(|name| Arc::new(HostConfig::named(name))).into_iter().collect();
    let mut fleet = Fleet::new(&configs, false, moment(-60.0));
    for host in [0, 1] {
        fleet.apply(HostId(host), HostUpdate::Snapshot(Box::<Snapshot>::default()), moment(-1.0));
    }
    let error = LinkError::new(LinkErrorKind::Refused, "nothing listens on port 22");
    fleet.apply(HostId(2), HostUpdate::Down { error, retry_at: None, attempt: 1 }, moment(-5.0));
    fleet.apply(HostId(3), HostUpdate::Connecting { attempt: 1, phase: ConnectPhase::Tcp }, moment(-5.0));
    fleet
}

/// A firing finding about a hang.
pub(super) fn hang() -> Finding {
    let key = ProcessKey { boot_id: Some("5d4e".into()), pid: 4312, start_ticks: Some(43120) };
    let gpu = |index: u32| FindingGpu {
        host: HostId(0),
        position: index as usize,
        index,
        uuid: Some(format!("GPU-{index}").into()),
    };
    let mut finding = blank(RuleId::StuckSpin, Severity::Crit, FindingPhase::Firing);
    finding.id = "stuck-spin hgx-01 slurm:3385".into();
    finding.confidence = Confidence::Likely;
    finding.since = moment(-840.0);
    finding.fired_at = Some(moment(-540.0));
    finding.gpus = vec![gpu(0), gpu(1)];
    finding.job = Some(JobKey::Slurm { cluster: None, job: "3385".into() });
    finding.processes = vec![FindingProcess { host: HostId(0), key, command: "python train.py".into() }];
    finding.user = Some("alice".into());
    finding.is_mine = true;
    finding.sentence = "GPUs 0-1 read 100 % busy for 14 min but draw 104 W of 700 W: train.py looks hung".into();
    finding.next_check = "py-spy dump --pid 4312".into();
    finding.not = "a checkpoint: no rank writes";
    let culprit = CulpritRank {
        world_rank: Some(1),
        pid: Some(4313),
        host: Some("hgx-01".into()),
        gpu: Some(1),
        ..CulpritRank::default()
    };
    finding.verdict = Some(Box::new(FindingVerdict {
        outcome: Outcome::Proven,
        sentence: "rank 1 (pid 4313 on hgx-01, GPU 1) never launched AllReduce 61 to 64".into(),
        culprits: vec![culprit],
        at: moment(-480.0),
        until: moment(1020.0),
        hosts: vec![HostId(0)],
    }));
    finding
}

fn blank(rule: RuleId, severity: Severity, phase: FindingPhase) -> Finding {
    let mut finding = Finding::blank(rule, HostId(0), moment(0.0));
    finding.severity = severity;
    finding.phase = phase;
    finding.hosts = vec![(HostId(0), "hgx-01".into())];
    finding
}

/// Calls `check` with a report of four findings.
pub(super) fn with_findings_report(check: impl FnOnce(&FindingsReport<'_>)) {
    let mut disk = blank(RuleId::DiskFull, Severity::Warn, FindingPhase::Firing);
    disk.id = "disk-full hgx-02 /home".into();
    disk.host = HostId(1);
    disk.hosts = vec![(HostId(1), "hgx-02".into())];
    disk.confidence = Confidence::Certain;
    disk.since = moment(-30.0);
    disk.at_least = true;
    disk.is_preexisting = true;
    disk.snoozed = Some(SnoozeEnd::At(moment(3540.0)));
    disk.sentence = "/home is 93 % full".into();
    let mut away = blank(RuleId::HostUnreachable, Severity::Warn, FindingPhase::Resolving);
    away.id = "host-unreachable".into();
    away.hosts = vec![(HostId(0), "hgx-01".into()), (HostId(1), "hgx-02".into())];
    away.since = moment(-7300.0);
    away.is_flapping = true;
    away.sentence = "2 hosts cannot be reached".into();
    let mut idle = blank(RuleId::IdleHog, Severity::Info, FindingPhase::Pending);
    idle.id = "idle-hog hgx-01 launcher:7".into();
    idle.is_frozen = true;
    idle.due = Some(moment(1800.0));
    idle.sentence = "GPU 3 idle > 30 min with 12 GiB held".into();
    let findings = [&hang(), &disk, &away, &idle].map(|finding| {
        let mut finding = finding.clone();
        finding.updated = finding.since;
        finding
    });
    let findings: Vec<&Finding> = findings.iter().collect();
    let not_judged = [
        NotJudged { count: 7, what: "MIG instance".into(), why: "without a utilization".into() },
        NotJudged { count: 1, what: "GPU".into(), why: "without a power limit".into() },
    ];
    check(&FindingsReport {
        fleet: &fleet_of_findings(),
        findings: &findings,
        not_judged: &not_judged,
        too_little_history: &[
            (RuleId::StuckSpin, Duration::from_secs(600)),
            (RuleId::IdleHog, Duration::from_secs(3600)),
        ],
        observed: Duration::from_secs(30),
        now: moment(0.0),
    });
}

/// A finding that becomes pending, fires, gets worse and ends.
pub(super) fn transitions() -> Vec<Transition> {
    let transition = |seconds: f64, from, to, severity| Transition {
        at: moment(seconds),
        id: "stuck-spin hgx-01 slurm:3385".into(),
        rule: RuleId::StuckSpin,
        host: Some(HostId(0)),
        host_name: "hgx-01".into(),
        from,
        to,
        severity,
        is_milder: false,
        notify: to == FindingPhase::Firing,
        is_reminder: false,
        sentence: "GPUs 0-1 read 100 % busy but draw 104 W of 700 W: train.py looks hung".into(),
    };
    vec![
        transition(10.0, FindingPhase::Clear, FindingPhase::Pending, Severity::Warn),
        transition(310.0, FindingPhase::Pending, FindingPhase::Firing, Severity::Warn),
        transition(610.0, FindingPhase::Firing, FindingPhase::Firing, Severity::Crit),
        transition(4000.0, FindingPhase::Resolving, FindingPhase::Clear, Severity::Crit),
    ]
}

/// Asserts that the first column of the tables in `document` names every field of `values` and no other field. Arrays are
/// written as `[]`: `hosts[].gpus[].index`.
#[track_caller]
pub(super) fn assert_documented(document: &str, values: &[Value]) {
    let mut written = BTreeSet::new();
    for value in values {
        add_field_paths(value, "", &mut written);
    }
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let documented: BTreeSet<String> = rows.map(|(path, _)| path.to_owned()).collect();
    let missing: Vec<_> = written.difference(&documented).collect();
    let invented: Vec<_> = documented.difference(&written).collect();
    assert!(missing.is_empty() && invented.is_empty(), "not documented: {missing:?}, not written: {invented:?}");
}

fn add_field_paths(value: &Value, path: &str, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                into.insert(path.clone());
                add_field_paths(value, &path, into);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| add_field_paths(item, &format!("{path}[]"), into)),
        _ => {}
    }
}
