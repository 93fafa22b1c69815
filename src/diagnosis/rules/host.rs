//! The host itself: host-ram-low, oom-kill, disk-full, nfs-hang.

use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::evaluation::{Escalation, Evaluation, FindingTarget, Run};
use crate::diagnosis::rule::RuleInfo;
use crate::diagnosis::rule_context::{RuleContext, duration, format_process, gibibytes, host_details};
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::fleet::{Host, HostId};
use crate::wire::{Filesystem, SafeText};

pub(in crate::diagnosis) const RAM: RuleInfo = RuleInfo {
    word: "host-ram-low",
    title: "a host's memory is nearly full",
    fires: "90 % of memory is not available (warns), 98 % (critical), for 30 s; over below 80 %.",
    means: "The kernel will soon end a process, most likely the largest: a training job.",
    next: "Look who grows (`ps aux --sort -rss`); fewer data loader workers, no pinned copies.",
    not: "memory that the kernel uses as a cache: that is available",
    limits: "Limits of containers and of Slurm jobs are not seen.",
    source: "/proc/meminfo MemAvailable",
};

pub(in crate::diagnosis) const OOM: RuleInfo = RuleInfo {
    word: "oom-kill",
    title: "the kernel killed a process because memory ran out",
    fires: "The kernel's count of such kills rises. GPU processes that vanished with it are named.",
    means: "The host, a container or a Slurm job ran out of memory.",
    next: "`dmesg | grep -i 'killed process'` names the process, its size and its group.",
    not: "an out-of-memory error of a GPU, which a program reports itself",
    limits: "Which process it was, only the kernel's log says.",
    source: "/proc/vmstat oom_kill",
};

pub(in crate::diagnosis) const DISK: RuleInfo = RuleInfo {
    word: "disk-full",
    title: "a filesystem is nearly full",
    fires: "90 % in use (warns), 98 % (critical), of home and of the working directories of GPU processes; over below 88 %.",
    means: "The next checkpoint may not fit, and a job dies while it writes.",
    next: "`du -xhd1` there; old checkpoints are the usual suspects.",
    not: "one that was that full when gpufleet first looked: that is a note",
    limits: "Quotas are not seen.",
    source: "statvfs(3) f_bavail",
};

pub(in crate::diagnosis) const NFS: RuleInfo = RuleInfo {
    word: "nfs-hang",
    title: "a filesystem does not answer",
    fires: "It has not answered for 5 s (warns), for five tries in a row (critical). Hosts that have it from one server \
            (the same mount point, of a network filesystem) are one finding.",
    means: "The file server or the network to it is gone. Whatever touches it hangs in disk sleep, and ends when it is back.",
    next: "`ping` the server of `findmnt PATH`, `nfsstat -m`; `dmesg` says \"server not responding\".",
    not: "a slow filesystem that answers",
    limits: "Only home and working directories of GPU processes are asked.",
    source: "statvfs(3) in a child of its own, one outstanding for each mount",
};

pub(in crate::diagnosis) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    ram(context, conditions);
    oom(context, conditions);
    for filesystem in context.host.filesystems() {
        disk(context, conditions, filesystem);
        nfs(context, conditions, filesystem);
    }
}

fn ram(context: &RuleContext, conditions: &mut Conditions) {
    let limits = &context.limits.host_ram_low;
    let reading = context.host.snapshot.as_ref().map(|snapshot| &snapshot.host);
    let known = reading.and_then(|host| Some((host.memory_total_bytes?, host.memory_available_bytes?)));
    let Some((total, available)) = known.filter(|(total, _)| *total > 0) else {
        conditions.unknown(RuleId::HostRamLow, &FindingTarget::Host);
        return;
    };
    let percent = 100.0 - 100.0 * available.min(total) as f64 / total as f64;
    if percent < limits.clear {
        return;
    }
    if percent < limits.warn {
        conditions.in_hysteresis(RuleId::HostRamLow, &FindingTarget::Host);
        return;
    }
    let severity = if percent >= limits.crit { Severity::Crit } else { Severity::Warn };
    let evaluation = Evaluation::new(Escalation::one(severity, limits.after), Confidence::Certain, 30.0);
    conditions.met(RuleId::HostRamLow, &FindingTarget::Host, evaluation, |_, _| {
        let sentence = format!(
            "{percent:.0} % of memory is in use: {} of {} are available",
            gibibytes(available),
            gibibytes(total)
        );
        host_details(sentence, "ps aux --sort -rss | head".to_owned())
    });
}

/// How long it stays in the list, in seconds.
const OOM_RETENTION: f64 = 1800.0;

fn oom(context: &RuleContext, conditions: &mut Conditions) {
    let t = context.sample_time.t;
    // What vanished with it may be noticed a little later: the sentence is written again meanwhile.
    let Some((at, kills)) = context.host_track.oom_events.back().filter(|(at, _)| t - at <= 60.0) else { return };
    conditions.event(RuleId::OomKill, &FindingTarget::Host, Severity::Warn, OOM_RETENTION - (t - at), || {
        let gone: Vec<String> = context
            .host_track
            .ended
            .iter()
            .filter(|ended| (ended.missed_at - at).abs() <= 60.0)
            .map(|ended| ended.label.clone())
            .collect();
        let with = if gone.is_empty() { String::new() } else { format!("; gone from its GPUs: {}", gone.join(", ")) };
        let what = if *kills == 1 { "a process".to_owned() } else { format!("{kills} processes") };
        let sentence = format!("the kernel killed {what} because memory ran out{with}");
        host_details(sentence, "dmesg | grep -i 'killed process'".to_owned())
    });
}

fn disk(context: &RuleContext, conditions: &mut Conditions, filesystem: &Filesystem) {
    let limits = &context.limits.disk_full;
    let target = FindingTarget::Mount(filesystem.mount_point.clone());
    let (Some(total), Some(available)) = (filesystem.total_bytes, filesystem.available_bytes) else {
        conditions.unknown(RuleId::DiskFull, &target);
        return;
    };
    let percent = 100.0 - 100.0 * available.min(total) as f64 / total.max(1) as f64;
    if percent < limits.clear {
        return;
    }
    if percent < limits.warn {
        conditions.in_hysteresis(RuleId::DiskFull, &target);
        return;
    }
    let severity = if percent >= limits.crit { Severity::Crit } else { Severity::Warn };
    let evaluation = Evaluation::new(Escalation::one(severity, 0.0), Confidence::Certain, 0.0);
    let evaluation = Evaluation { at_least: true, may_be_preexisting: true, ..evaluation };
    conditions.met(RuleId::DiskFull, &target, evaluation, |_, _| {
        let sentence = format!(
            "{} is {percent:.0} % full: {} of {} are free",
            filesystem.mount_point,
            gibibytes(available),
            gibibytes(total),
        );
        host_details(sentence, format!("du -xhd1 {}", filesystem.mount_point))
    });
}

fn nfs(context: &RuleContext, conditions: &mut Conditions, filesystem: &Filesystem) {
    let limits = &context.limits.nfs_hang;
    let Some(silent) = filesystem.silent_seconds.map(f64::from).filter(|seconds| seconds.is_finite()) else { return };
    if silent < limits.warn_after {
        return;
    }
    let is_long = filesystem.timeouts.is_some_and(|timeouts| f64::from(timeouts) >= limits.timeouts);
    let severity = if is_long { Severity::Crit } else { Severity::Warn };
    let run = Run { since: context.sample_time.t - silent, covered: silent };
    let evaluation = Evaluation::new(Escalation::one(severity, limits.warn_after), Confidence::Certain, 5.0).since(run);
    conditions.met(RuleId::NfsHang, &FindingTarget::Mount(filesystem.mount_point.clone()), evaluation, |lasted, _| {
        let waiting: Vec<_> = context.processes.iter().filter(|process| process.blocked.is_some()).collect();
        let names: Vec<String> = waiting.iter().map(|process| format_process(process, 1, None)).collect();
        let with = match names.len() {
            0 => String::new(),
            count => format!("; {count} in disk sleep: {}", names.join(", ")),
        };
        let others = silent_on_peers(context, filesystem);
        let names: Vec<&str> = others.iter().map(|(_, name)| name.as_str()).collect();
        let also = if names.is_empty() { String::new() } else { format!("; nor on {}", names.join(", ")) };
        let sentence = format!(
            "{} ({}) has not answered for {}{also}{with}",
            filesystem.mount_point,
            filesystem.kind,
            duration(lasted)
        );
        let mut words = host_details(sentence, format!("findmnt {}; nfsstat -m", filesystem.mount_point));
        words.hosts = others;
        words.processes = waiting.iter().map(|process| context.finding_process(process)).collect();
        words
    });
}

/// Other hosts on which the same file server does not answer.
fn silent_on_peers(context: &RuleContext, filesystem: &Filesystem) -> Vec<(HostId, SafeText)> {
    if !is_shared(filesystem) {
        return Vec::new();
    }
    let is_silent = |other: &&Host| {
        let same = |there: &&Filesystem| there.mount_point == filesystem.mount_point && there.silent_seconds.is_some();
        other.id != context.host.id && other.filesystems().iter().any(|there| same(&there) && is_shared(there))
    };
    let others = context.peers.fleet.hosts().iter().filter(is_silent);
    others.map(|host| (host.id, host.name().clone())).collect()
}

/// Whether several hosts may have it from one server.
fn is_shared(filesystem: &Filesystem) -> bool {
    const SHARED: [&str; 9] = ["nfs", "cifs", "smb", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "fuse."];
    SHARED.iter().any(|kind| filesystem.kind.starts_with(kind))
}

/// Whether another host tells already that the file server behind this mount does not answer.
pub(in crate::diagnosis) fn is_reported_by_peer_host(context: &RuleContext, mount: &SafeText) -> bool {
    let here = context.host.filesystems().iter().find(|filesystem| filesystem.mount_point == *mount);
    here.is_some_and(|filesystem| {
        silent_on_peers(context, filesystem).iter().any(|(host, _)| {
            let conditions = context.peers.hosts.get(host.0 as usize).map(|memory| &memory.conditions);
            conditions.is_some_and(|conditions| {
                conditions.is_published(RuleId::NfsHang, &FindingTarget::Mount(mount.clone()))
            })
        })
    })
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
