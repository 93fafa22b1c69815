//! A small fleet with findings of every phase, for tests.

use super::FindingsReport;
use crate::config::HostConfig;
use crate::diagnosis::{
    Confidence, Finding, FindingGpu, FindingPhase, FindingProcess, NotJudged, RuleId, Severity, SnoozeEnd, Transition,
};
use crate::fleet::{ConnectPhase, Fleet, HostId, HostUpdate, JobKey, LinkError, LinkErrorKind, Moment, ProcessKey};
use crate::wire::Snapshot;
use std::sync::Arc;
use std::time::Duration;

/// 2026-05-04T12:00:00Z and `seconds` more, the program having begun ten hours before.
pub(in crate::output) fn moment(seconds: f64) -> Moment {
    let since = Duration::from_secs_f64(36_000.0 + seconds);
    Moment::new(since, Duration::from_secs(1_777_860_000) + since)
}

fn fleet() -> Fleet {
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

/// A hang that fires.
pub(in crate::output) fn hang() -> Finding {
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
    finding.sentence = "GPUs 0-1 say 100 % busy for 14 min but draw 104 W of 700 W: train.py looks hung".into();
    finding.next_check = "py-spy dump --pid 4312".into();
    finding.not = "a checkpoint: no rank writes";
    finding
}

fn blank(rule: RuleId, severity: Severity, phase: FindingPhase) -> Finding {
    let mut finding = Finding::blank(rule, HostId(0), moment(0.0));
    finding.severity = severity;
    finding.phase = phase;
    finding.hosts = vec![(HostId(0), "hgx-01".into())];
    finding
}

/// Calls back with a report of four findings.
pub(super) fn with_report(check: impl FnOnce(&FindingsReport<'_>)) {
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
        NotJudged { count: 7, what: "MIG instance", why: "without a utilization" },
        NotJudged { count: 1, what: "GPU", why: "without a power limit" },
    ];
    check(&FindingsReport {
        fleet: &fleet(),
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

/// The hang fires, and becomes worse; an idle job is watched and let go.
pub(in crate::output) fn transitions() -> Vec<Transition> {
    let transition = |seconds: f64, from, to, severity| Transition {
        at: moment(seconds),
        id: "stuck-spin hgx-01 slurm:3385".into(),
        rule: RuleId::StuckSpin,
        host: HostId(0),
        host_name: "hgx-01".into(),
        from,
        to,
        severity,
        notify: to == FindingPhase::Firing,
        is_reminder: false,
        sentence: "GPUs 0-1 say 100 % busy but draw 104 W of 700 W: train.py looks hung".into(),
    };
    vec![
        transition(10.0, FindingPhase::Clear, FindingPhase::Pending, Severity::Warn),
        transition(310.0, FindingPhase::Pending, FindingPhase::Firing, Severity::Warn),
        transition(610.0, FindingPhase::Firing, FindingPhase::Firing, Severity::Crit),
        transition(4000.0, FindingPhase::Resolving, FindingPhase::Clear, Severity::Crit),
    ]
}
