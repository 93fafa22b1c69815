//! CPUs, memory, filesystems and allocations of a host: host-overloaded, host-ram-low, host-thrashing, host-rebooted,
//! oom-kill, disk-full, nfs-hang, slurm-unused.

use super::efficiency::slowed_by_the_cpus;
use crate::diagnosis::condition::{Escalation, Evaluation, Run};
use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::finding::FindingTarget;
use crate::diagnosis::rule_context::{JobPart, RuleContext, counted, duration, gibibytes, host_details};
use crate::diagnosis::track::ProcessTrack;
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::fleet::{Host, HostId};
use crate::wire::shell::absolute_path;
use crate::wire::{Filesystem, SafeText, SlurmJob};

pub(super) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    overloaded(context, conditions);
    ram(context, conditions);
    thrashing(context, conditions);
    slurm_unused(context, conditions);
    rebooted(context, conditions);
    oom(context, conditions);
    for filesystem in context.host.filesystems() {
        disk(context, conditions, filesystem);
        nfs(context, conditions, filesystem);
    }
}

/// The memory in use from which a host warns whose GPU shares it, in percent.
const UNIFIED_WARN_PERCENT: f64 = 95.0;
/// A host with this much available memory in bytes warns from this share in use on, in percent, and is listed before.
const SPACIOUS_BYTES: u64 = 16 << 30;
const SPACIOUS_WARN_PERCENT: f64 = 95.0;

/// Below this PSI value `memory some avg60`, nothing waits for memory. Memory that was set aside at the start has not become less
/// by more than this share since.
const PRESSING_PERCENT: f32 = 0.5;
const SET_ASIDE_SHARE: f64 = 0.01;

fn ram(context: &RuleContext, conditions: &mut Conditions) {
    let limits = &context.limits.host_ram_low;
    let reading = context.host.snapshot.as_ref().map(|snapshot| &snapshot.host);
    let known = reading.and_then(|host| Some((host.memory_total_bytes?, host.memory_available_bytes?)));
    let Some((total, available)) = known.filter(|(total, _)| *total > 0) else {
        conditions.unknown(RuleId::HostRamLow, &FindingTarget::Host);
        return;
    };
    let percent = 100.0 - 100.0 * available.min(total) as f64 / total as f64;
    if percent < limits.warn
        && let Some(shrinkage) = context.host_track.available_memory.shrinkage(total as f64)
    {
        let evaluation = Evaluation::new(Escalation::one(Severity::Warn, 0.0), Confidence::Suspected, 600.0);
        conditions.met(RuleId::HostRamLow, &FindingTarget::Host, evaluation, |_, _| {
            let sentence = format!(
                "the available memory fell steadily by {} in {}: {} of {} are left, enough for {} at this rate",
                gibibytes(shrinkage.loss as u64),
                duration(shrinkage.span),
                gibibytes(available),
                gibibytes(total),
                duration(shrinkage.ends_in),
            );
            let figures = format!("{percent:.0} %, {} free", gibibytes(available));
            host_details(sentence, "ps aux --sort -rss | head".to_owned()).with_figures(figures)
        });
        return;
    }
    if percent < limits.clear {
        return;
    }
    // A model server takes most of the memory that a GPU shares with the host, and keeps it.
    let is_shared = context.gpus.iter().any(|gpu| gpu.is_unified);
    let warn = if is_shared { limits.warn.max(UNIFIED_WARN_PERCENT) } else { limits.warn };
    if percent < warn {
        conditions.in_hysteresis(RuleId::HostRamLow, &FindingTarget::Host);
        return;
    }
    let has_room = available >= SPACIOUS_BYTES && percent < limits.warn.max(SPACIOUS_WARN_PERCENT);
    // Huge pages that virtual machines get are set aside at the start, and nothing waits for memory.
    let pressure = reading.and_then(|host| host.pressure_memory_percent);
    let is_set_aside = pressure.is_some_and(|percent| percent < PRESSING_PERCENT)
        && !context.host_track.available_memory.has_fallen(available as f64, SET_ASIDE_SHARE * total as f64);
    let severity = match percent {
        _ if is_set_aside => Severity::Info,
        _ if percent >= limits.crit => Severity::Crit,
        _ if has_room => Severity::Info,
        _ => Severity::Warn,
    };
    // Nearly full memory may be a cache that some file systems count as used. Full memory is not.
    let confidence = if severity == Severity::Crit { Confidence::Certain } else { Confidence::Likely };
    let evaluation = Evaluation::new(Escalation::one(severity, limits.after), confidence, 30.0);
    conditions.met(RuleId::HostRamLow, &FindingTarget::Host, evaluation, |_, _| {
        let sentence = format!(
            "{percent:.0} % of the memory is in use: {} of {} are available",
            gibibytes(available),
            gibibytes(total)
        );
        let figures = format!("{percent:.0} %, {} free", gibibytes(available));
        host_details(sentence, "ps aux --sort -rss | head".to_owned()).with_figures(figures)
    });
}

/// How long the CPUs must be overloaded before it warns if a job on the GPUs became slower, in seconds.
const SLOWED_WARN_AFTER: f64 = 1200.0;

fn overloaded(context: &RuleContext, conditions: &mut Conditions) {
    let limits = &context.limits.host_overloaded;
    let reading = context.host.snapshot.as_ref().map(|snapshot| &snapshot.host);
    let cpus = context.host.hello.as_ref().and_then(|hello| hello.cpu_count).filter(|cpus| *cpus > 0);
    let known = reading.and_then(|host| Some((host.load_1?, host.cpu_percent?, cpus?)));
    let Some((load, percent, cpus)) = known else {
        conditions.unknown(RuleId::HostOverloaded, &FindingTarget::Host);
        return;
    };
    // Once the CPUs are that busy, a moment below it does not end it.
    let is_busy = f64::from(percent) >= limits.cpu || context.host_track.mean_cpu >= Some(limits.cpu);
    if !is_busy || f64::from(load) < limits.load * f64::from(cpus) {
        return;
    }
    let slowed = slowed_by_the_cpus(context);
    let escalation = if slowed.is_some() {
        Escalation::two((Severity::Info, limits.after), (Severity::Warn, SLOWED_WARN_AFTER))
    } else {
        Escalation::one(Severity::Info, limits.after)
    };
    let evaluation = Evaluation::new(escalation, Confidence::Certain, 120.0);
    conditions.met(RuleId::HostOverloaded, &FindingTarget::Host, evaluation, |lasted, _| {
        let sentence = format!(
            "{load:.0} tasks have wanted the {} for {}, which {} {percent:.0} % busy{}",
            if cpus == 1 { "CPU".to_owned() } else { format!("{cpus} CPUs") },
            duration(lasted),
            if cpus == 1 { "is" } else { "are" },
            slowed.map_or_else(String::new, |(job, mean, earlier)| format!(
                "; the GPUs of {} are {mean:.0} % busy and were {earlier:.0} %",
                context.format_job(job)
            )),
        );
        let figures = format!("load {load:.0} of {cpus} CPUs");
        host_details(sentence, "top -b -n 1 | head -20".to_owned()).with_figures(figures)
    });
}

fn thrashing(context: &RuleContext, conditions: &mut Conditions) {
    let limits = &context.limits.host_thrashing;
    let reading = context.host.snapshot.as_ref().map(|snapshot| &snapshot.host);
    let known =
        reading.and_then(|host| Some((host.pressure_memory_percent?, host.swap_total_bytes?, host.swap_free_bytes?)));
    let Some((pressure, total, free)) = known else {
        conditions.unknown(RuleId::HostThrashing, &FindingTarget::Host);
        return;
    };
    let used = total.saturating_sub(free);
    if f64::from(pressure) < limits.pressure || (used as f64) < limits.swap * 1_048_576.0 {
        return;
    }
    let evaluation = Evaluation::new(Escalation::one(Severity::Warn, limits.after), Confidence::Certain, 60.0);
    conditions.met(RuleId::HostThrashing, &FindingTarget::Host, evaluation, |lasted, _| {
        let sentence = format!(
            "tasks have waited for memory in {pressure:.0} % of the time for {}, with {} of swap in use",
            duration(lasted),
            gibibytes(used),
        );
        let figures = format!("{} of swap in use", gibibytes(used));
        host_details(sentence, "ps aux --sort -rss | head".to_owned()).with_figures(figures)
    });
}

fn slurm_unused(context: &RuleContext, conditions: &mut Conditions) {
    let limits = &context.limits.slurm_unused;
    if context.host.slurm_allocated_gpus().is_none() {
        return;
    }
    let t = context.sample_time.t;
    let unused = |seconds: f64| {
        let gpus = context.gpus.iter().enumerate();
        gpus.filter_map(move |(position, gpu)| gpu.unused_since.filter(|since| t - since >= seconds).map(|_| position))
    };
    let positions: Vec<usize> = unused(limits.info_after).collect();
    if positions.is_empty() {
        return;
    }
    // A rank that waits on one of them has a finding that says more.
    let is_held = |position: &usize| context.processes.iter().any(|process| process.positions.contains(position));
    // Nothing on the host prepares what the GPUs need.
    let rested = context.host_track.cpus_rest_since.map_or(0.0, |since| t - since);
    // Where a part of the GPUs is in use, the finding of that job says more.
    let allocated = context.host.slurm_allocated_gpus().map_or(0, <[u32]>::len);
    let do_cpus_rest = rested >= RESTING_WARN_AFTER && unused(RESTING_WARN_AFTER).count() >= allocated;
    let is_most_unused = rested >= MOST_UNUSED_WARN_AFTER && 2 * unused(MOST_UNUSED_WARN_AFTER).count() >= allocated;
    let do_cpus_rest = (do_cpus_rest || is_most_unused) && !positions.iter().any(is_held);
    let is_half_unused = 2 * unused(HALF_UNUSED_WARN_AFTER).count() >= allocated.max(1);
    let warns = do_cpus_rest || is_half_unused || unused(limits.warn_after).next().is_some();
    let warns = warns && !positions.iter().all(|position| is_spare(context, *position));
    let severity = if warns { Severity::Warn } else { Severity::Info };
    let longest = context.gpus.iter().filter_map(|gpu| gpu.unused_since).map(|since| t - since).fold(0.0, f64::max);
    let indexes: Vec<u32> =
        positions.iter().filter_map(|position| context.host.gpu_info(*position)).map(|info| info.index).collect();
    let jobs: Vec<&SlurmJob> = context
        .host
        .slurm_jobs()
        .unwrap_or_default()
        .iter()
        .filter(|job| job.gpus.iter().any(|index| indexes.contains(index)))
        .collect();
    // Work on the CPUs of the allocation is not visible.
    let evaluation = Evaluation::new(Escalation::one(severity, 0.0), Confidence::Likely, 60.0);
    let evaluation = Evaluation { at_least: true, ..evaluation };
    conditions.met(RuleId::SlurmUnused, &FindingTarget::Host, evaluation, |_, _| {
        let sentence = format!(
            "Slurm has allocated {}{} but no process has used {} for up to {}{}",
            context.format_gpus(positions.iter().copied()),
            describe_jobs(&jobs),
            if positions.len() == 1 { "it" } else { "them" },
            duration(longest),
            if do_cpus_rest { ", and the CPUs of the host rest" } else { "" },
        );
        let mut details = host_details(sentence, format!("squeue -w {}", context.host.name()));
        details.gpus = context.finding_gpus(positions.iter().copied());
        // A finding has one user.
        details.user = jobs.first().and_then(|job| job.user.clone());
        if jobs.iter().any(|job| job.user != details.user) {
            details.user = None;
        }
        details
    });
}

/// A rank in reserve writes to its log at least this often, in seconds.
const SPARE_LOG_SECONDS: f64 = 300.0;

/// Whether a GPU belongs to ranks in reserve, which take the place of ranks that fail: their job computes on other hosts, and they go
/// on writing to their logs.
fn is_spare(context: &RuleContext, position: usize) -> bool {
    let mut jobs = context.jobs.iter().filter(|job| job.positions().any(|other| other == position)).peekable();
    let is_alive = |process: &ProcessTrack| {
        let age = process.log.as_ref().and_then(|log| log.age(context.sample_time.t));
        age.is_some_and(|age| age <= SPARE_LOG_SECONDS)
    };
    let computes = |part: JobPart| {
        part.job.computed_at.is_some_and(|at| part.diagnosis.host_track.sampled_at.is_some_and(|now| now - at <= 600.0))
    };
    jobs.peek().is_some()
        && jobs.all(|job| {
            context.members(job).all(is_alive) && context.peers.certain_parts(job, context.host.id).any(computes)
        })
}

/// How long GPUs that Slurm has allocated must be unused on a host whose CPUs rest until that warns, in seconds.
const RESTING_WARN_AFTER: f64 = 2400.0;
/// As [`RESTING_WARN_AFTER`], if half of them or more are unused.
const MOST_UNUSED_WARN_AFTER: f64 = 4200.0;

/// As [`MOST_UNUSED_WARN_AFTER`], on a host that works.
const HALF_UNUSED_WARN_AFTER: f64 = 7200.0;

/// Jobs that a sentence names.
const NAMED_JOBS: usize = 4;

/// ` to job 3385 (ann)`, ` to jobs 3385 (ann), 3390 (bob)`; empty if the jobs are unknown.
fn describe_jobs(jobs: &[&SlurmJob]) -> String {
    let name = |job: &&SlurmJob| match &job.user {
        Some(user) => format!("{} ({user})", job.job),
        None => job.job.to_string(),
    };
    let names: Vec<String> = jobs.iter().take(NAMED_JOBS).map(name).collect();
    match jobs.len() {
        0 => String::new(),
        1 => format!(" to job {}", names.join("")),
        2..=NAMED_JOBS => format!(" to jobs {}", names.join(", ")),
        count => format!(" to jobs {} and {} more", names.join(", "), count - NAMED_JOBS),
    }
}

/// How many times longer a filesystem that no process waits for may be silent before it warns.
const UNUSED_MOUNT_PATIENCE: f64 = 2.0;

/// How long a reboot is listed, in seconds.
const REBOOT_RETENTION: f64 = 3600.0;

fn rebooted(context: &RuleContext, conditions: &mut Conditions) {
    let t = context.sample_time.t;
    let Some(reboot) = context.host_track.reboot.as_ref().filter(|reboot| reboot.at >= t) else { return };
    conditions.event(RuleId::HostRebooted, &FindingTarget::Host, Severity::Info, REBOOT_RETENTION, || {
        let gone = match reboot.ended {
            0 => "its GPUs were not in use".to_owned(),
            count => format!("{} on its GPUs ended", counted(count as u64, "program")),
        };
        let sentence = format!("the host was rebooted, after {} without data; {gone}", duration(reboot.gap));
        host_details(sentence, "journalctl -b -1 -e".to_owned())
    });
}

/// How long an OOM kill is listed, in seconds.
const OOM_RETENTION: f64 = 1800.0;

fn oom(context: &RuleContext, conditions: &mut Conditions) {
    let t = context.sample_time.t;
    // The ended job may be noticed a little later: the sentence is rewritten for a minute.
    let Some((at, kills)) = context.host_track.oom_events.back().filter(|(at, _)| t - at <= 60.0) else { return };
    conditions.event(RuleId::OomKill, &FindingTarget::Host, Severity::Warn, OOM_RETENTION - (t - at), || {
        let gone: Vec<String> = context
            .host_track
            .ended
            .iter()
            .filter(|ended| (ended.missed_at - at).abs() <= 60.0)
            .map(|ended| ended.label.clone())
            .collect();
        let with = if gone.is_empty() { String::new() } else { format!("; no longer on a GPU: {}", gone.join(", ")) };
        let what = if *kills == 1 { "a process".to_owned() } else { format!("{kills} processes") };
        let sentence = format!("the kernel killed {what} because memory ran out{with}");
        let figures = if *kills == 1 { String::new() } else { format!("{kills} processes") };
        host_details(sentence, "dmesg | grep -i 'killed process'".to_owned()).with_figures(figures)
    });
}

fn disk(context: &RuleContext, conditions: &mut Conditions, filesystem: &Filesystem) {
    let limits = &context.limits.disk_full;
    // Such a filesystem is in memory, which has its own rule.
    if *filesystem.kind == *"tmpfs" {
        return;
    }
    let target = FindingTarget::Mount(filesystem.mount_point.clone());
    let (Some(total), Some(available)) = (filesystem.total_bytes, filesystem.available_bytes) else {
        conditions.unknown(RuleId::DiskFull, &target);
        return;
    };
    let percent = 100.0 - 100.0 * available.min(total) as f64 / total.max(1) as f64;
    let next = match absolute_path(&filesystem.mount_point) {
        Some(path) => format!("du -xhd1 {path}"),
        None => "df -h".to_owned(),
    };
    if percent < limits.warn
        && let Some(shrinkage) = context.host_track.filling(&filesystem.mount_point, total as f64)
    {
        let evaluation = Evaluation::new(Escalation::one(Severity::Warn, 0.0), Confidence::Likely, 600.0);
        conditions.met(RuleId::DiskFull, &target, evaluation, |_, _| {
            let sentence = format!(
                "{} lost {} within {} and will be full in {} at this rate: {} of {} are free",
                filesystem.mount_point,
                gibibytes(shrinkage.loss as u64),
                duration(shrinkage.span),
                duration(shrinkage.ends_in),
                gibibytes(available),
                gibibytes(total),
            );
            host_details(sentence, next).with_figures(format!("{} {percent:.0} %", filesystem.mount_point))
        });
        return;
    }
    if percent < limits.clear {
        return;
    }
    if percent < limits.warn {
        conditions.in_hysteresis(RuleId::DiskFull, &target);
        return;
    }
    let severity = if percent >= limits.crit { Severity::Crit } else { Severity::Warn };
    let evaluation = Evaluation::new(Escalation::one(severity, 0.0), Confidence::Certain, 0.0);
    let is_preexisting = context.host_track.is_first_report(&filesystem.mount_point, context.sample_time.t);
    let evaluation = Evaluation { at_least: true, is_preexisting, ..evaluation };
    conditions.met(RuleId::DiskFull, &target, evaluation, |_, _| {
        let sentence = format!(
            "{} is {percent:.0} % full: {} of {} are free",
            filesystem.mount_point,
            gibibytes(available),
            gibibytes(total),
        );
        host_details(sentence, next).with_figures(format!("{} {percent:.0} %", filesystem.mount_point))
    });
}

fn nfs(context: &RuleContext, conditions: &mut Conditions, filesystem: &Filesystem) {
    let limits = &context.limits.nfs_hang;
    let Some(silent) = filesystem.silent_seconds.map(f64::from).filter(|seconds| seconds.is_finite()) else { return };
    if silent < limits.info_after {
        return;
    }
    let is_long = filesystem.timeouts.is_some_and(|timeouts| f64::from(timeouts) >= limits.timeouts);
    let run = Run { since: context.sample_time.t - silent, covered: silent };
    // A file server that restarts is back within a minute or two.
    let escalation = if is_long {
        Escalation::one(Severity::Crit, limits.info_after)
    } else {
        // A filesystem that no GPU process waits for may be away for longer.
        let is_needed = context.processes.iter().any(|process| process.blocked.is_some());
        let patience = if is_needed { 1.0 } else { UNUSED_MOUNT_PATIENCE };
        Escalation::two((Severity::Info, limits.info_after), (Severity::Warn, patience * limits.warn_after))
    };
    let evaluation = Evaluation::new(escalation, Confidence::Certain, 5.0).since(run);
    conditions.met(RuleId::NfsHang, &FindingTarget::Mount(filesystem.mount_point.clone()), evaluation, |lasted, _| {
        let waiting: Vec<_> = context.processes.iter().filter(|process| process.blocked.is_some()).collect();
        let names: Vec<String> = waiting.iter().map(|process| process.describe(1, None)).collect();
        let with = match names.len() {
            0 => String::new(),
            count => format!("; {count} waiting in disk sleep: {}", names.join(", ")),
        };
        let others = silent_on_peers(context, filesystem);
        let names: Vec<&str> = others.iter().map(|(_, name)| name.as_str()).collect();
        let also = if names.is_empty() { String::new() } else { format!(", also on {}", names.join(", ")) };
        let sentence = format!(
            "{} ({}) has not answered for {}{also}{with}",
            filesystem.mount_point,
            filesystem.kind,
            duration(lasted)
        );
        let next = match absolute_path(&filesystem.mount_point) {
            Some(path) => format!("findmnt {path}; nfsstat -m"),
            None => "findmnt; nfsstat -m".to_owned(),
        };
        let mut details = host_details(sentence, next).with_figures(filesystem.mount_point.as_str());
        details.hosts = others;
        details.processes = waiting.iter().map(|process| context.finding_process(process)).collect();
        details
    });
}

/// Other hosts on which the same network filesystem does not answer.
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

/// Whether this is a network filesystem, which several hosts may mount from one server.
fn is_shared(filesystem: &Filesystem) -> bool {
    const SHARED: [&str; 9] = ["nfs", "cifs", "smb", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "fuse."];
    SHARED.iter().any(|kind| filesystem.kind.starts_with(kind))
}

/// Whether another host already reports that the network filesystem of this mount does not answer.
pub(crate) fn is_reported_by_peer_host(context: &RuleContext, mount: &SafeText) -> bool {
    let here = context.host.filesystems().iter().find(|filesystem| filesystem.mount_point == *mount);
    here.is_some_and(|filesystem| {
        silent_on_peers(context, filesystem).iter().any(|(host, _)| {
            let conditions = context.peers.hosts.get(host.0 as usize).map(|diagnosis| &diagnosis.conditions);
            conditions.is_some_and(|conditions| {
                conditions.is_published(RuleId::NfsHang, &FindingTarget::Mount(mount.clone()))
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::config::thresholds::Thresholds;
    use crate::diagnosis::testing::{RuleTester, TestSample};
    use crate::diagnosis::{RuleId, Severity};
    use crate::fleet::HostId;
    use crate::fleet::fixture::{TestProcess, gpus, process};
    use crate::wire::{Filesystem, GpuProcessKind, Owner, ProcessState, SlurmJob, Snapshot};

    fn quiet(tester: &mut RuleTester) -> TestSample {
        TestSample { gpus: vec![tester.gpu(0, 70.0, 0, 0)], processes: vec![] }
    }

    fn with_host(tester: &mut RuleTester, seconds: f64, edit: impl Fn(&mut Snapshot, f64)) {
        tester.run_edited(seconds, |tester, _| quiet(tester), edit);
    }

    fn memory(percent: u64) -> impl Fn(&mut Snapshot, f64) {
        move |snapshot, _| {
            snapshot.host.memory_total_bytes = Some(1000 << 30);
            snapshot.host.memory_available_bytes = Some((1000 - 10 * percent) << 30);
        }
    }

    #[test]
    fn low_memory_warns_at_ninety_percent_and_clears_below_eighty() {
        let mut tester = RuleTester::new(gpus(0..1));
        with_host(&mut tester, 300.0, memory(85));
        assert_eq!(tester.fired(), []);
        with_host(&mut tester, 60.0, memory(95));
        assert_eq!(tester.firing(), [("host-ram-low", "warn")]);
        with_host(&mut tester, 60.0, memory(85));
        assert_eq!(tester.firing(), [("host-ram-low", "warn")]);
        with_host(&mut tester, 60.0, memory(99));
        assert_eq!(tester.firing(), [("host-ram-low", "crit")]);
        with_host(&mut tester, 60.0, memory(70));
        assert_eq!((tester.firing(), tester.notified()), (vec![], 2));
    }

    #[test]
    fn nine_tenths_of_a_large_memory_are_info_and_memory_that_was_set_aside_is_too() {
        let severity = |percent: u64, pressure: Option<f32>| {
            let mut tester = RuleTester::new(gpus(0..1));
            with_host(&mut tester, 300.0, |snapshot, t| {
                memory(percent)(snapshot, t);
                snapshot.host.pressure_memory_percent = pressure;
            });
            tester.firing()
        };
        assert_eq!(severity(92, None), [("host-ram-low", "info")], "80 GiB are available");
        assert_eq!(severity(97, None), [("host-ram-low", "warn")]);
        assert_eq!(severity(97, Some(0.0)), [("host-ram-low", "info")], "nothing waits, and it was so from the start");
        assert_eq!(severity(97, Some(4.0)), [("host-ram-low", "warn")]);
        let mut tester = RuleTester::new(gpus(0..1));
        for percent in [60, 97] {
            with_host(&mut tester, 300.0, |snapshot, t| {
                memory(percent)(snapshot, t);
                snapshot.host.pressure_memory_percent = Some(0.0);
            });
        }
        assert_eq!(tester.firing(), [("host-ram-low", "warn")], "it became less");
    }

    #[test]
    fn a_disk_that_something_fills_warns_an_hour_before_it_is_full() {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 30.0;
        with_host(&mut tester, 3000.0, disk(50));
        let filling = |snapshot: &mut Snapshot, t: f64| disk(50 + 3 * (t / 600.0) as u64)(snapshot, t);
        with_host(&mut tester, 6000.0, filling);
        assert_eq!(tester.fired(), [], "20 % are left, and it loses 18 % an hour");
        with_host(&mut tester, 1300.0, |snapshot, t| filling(snapshot, 6000.0 + t));
        assert_eq!(tester.firing(), [("disk-full", "warn")]);
        assert_eq!(
            tester.finding("disk-full").sentence,
            "/home lost 18 GiB within 60 min and will be full in 46 min at this rate: 14 GiB of 100 GiB are free"
        );
        with_host(&mut tester, 4000.0, |snapshot, t| filling(snapshot, 7300.0_f64.min(7300.0 + t)));
        assert_eq!(tester.firing(), [], "it was a copy");
    }

    #[test]
    fn memory_that_shrinks_steadily_warns_before_it_is_full() {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 30.0;
        with_host(&mut tester, 5600.0, |snapshot, t| memory(10 + (t / 100.0) as u64)(snapshot, t));
        assert_eq!(tester.firing(), [("host-ram-low", "warn")]);
        let sentence = tester.finding("host-ram-low").sentence.to_string();
        assert!(
            sentence.starts_with("the available memory fell steadily by 54")
                && sentence.ends_with(" GiB of 1000 GiB are left, enough for 58 min at this rate"),
            "{sentence}"
        );
    }

    #[test]
    fn a_flapping_finding_notifies_once() {
        let mut tester = RuleTester::new(gpus(0..1));
        for _ in 0..20 {
            with_host(&mut tester, 90.0, memory(95));
            with_host(&mut tester, 90.0, memory(70));
        }
        assert_eq!(tester.notified(), 1);
        with_host(&mut tester, 90.0, memory(95));
        assert!(tester.finding("host-ram-low").is_flapping);
        // It stays firing until it has been steady for 30 minutes.
        with_host(&mut tester, 1000.0, memory(70));
        assert_eq!(tester.firing(), [("host-ram-low", "warn")]);
        with_host(&mut tester, 1000.0, memory(70));
        assert_eq!(tester.firing(), []);
    }

    #[test]
    fn an_oom_kill_names_the_ended_job() {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run_edited(
            900.0,
            |tester, _| TestSample {
                gpus: vec![tester.gpu(97, 500.0, 40, 40)],
                processes: vec![process(7, "python train.py", &[(0, 40)])],
            },
            |snapshot, _| snapshot.host.oom_kills = Some(4),
        );
        assert_eq!(tester.fired(), [], "earlier kills");
        with_host(&mut tester, 20.0, |snapshot, _| snapshot.host.oom_kills = Some(5));
        assert_eq!(tester.firing(), [("job-ended", "warn"), ("oom-kill", "warn")]);
        assert_eq!(
            tester.finding("oom-kill").sentence,
            "the kernel killed a process because memory ran out; no longer on a GPU: train.py (alice, pid 7)"
        );
        // A counter that falls was reset by a reboot.
        with_host(&mut tester, 20.0, |snapshot, _| snapshot.host.oom_kills = Some(0));
        assert_eq!(tester.notified(), 2);
    }

    #[test]
    fn another_machine_under_the_same_name_is_no_reboot() {
        let run = |uptime: f64| {
            let mut tester = RuleTester::new(gpus(0..1));
            let busy = |tester: &mut RuleTester, _: f64| {
                let mut display = process(9, "Xorg", &[(0, 1)]);
                display.gpus[0].kind = Some(GpuProcessKind::Graphics);
                TestSample {
                    gpus: vec![tester.gpu(97, 500.0, 40, 40)],
                    processes: vec![process(7, "python train.py", &[(0, 40)]), display],
                }
            };
            tester.run(900.0, busy);
            tester.reboot(0);
            let empty = |tester: &mut RuleTester, _: f64| TestSample {
                gpus: vec![tester.gpu(0, 60.0, 0, 0)],
                processes: vec![],
            };
            tester.run_edited(60.0, empty, |snapshot, passed| snapshot.host.uptime_seconds = Some(uptime + passed));
            tester
        };
        assert_eq!(run(90_000.0).fired(), [], "it was up before");
        let tester = run(8.0);
        let sentence = &tester.finding("host-rebooted").sentence;
        assert!(sentence.ends_with("; 1 program on its GPUs ended"), "a display server is none: {sentence}");
    }

    #[test]
    fn a_reboot_is_info_also_without_a_job() {
        let mut tester = RuleTester::new(gpus(0..1));
        let empty =
            |tester: &mut RuleTester, _: f64| TestSample { gpus: vec![tester.gpu(0, 60.0, 0, 0)], processes: vec![] };
        tester.run(300.0, empty);
        tester.connect(0);
        tester.run(60.0, empty);
        assert_eq!(tester.fired(), [], "a new connection is no reboot");
        tester.reboot(0);
        tester.run(60.0, empty);
        assert_eq!(tester.firing(), [("host-rebooted", "info")]);
        let sentence = &tester.finding("host-rebooted").sentence;
        assert_eq!(*sentence, "the host was rebooted, after 10 s without data; its GPUs were not in use");
        assert_eq!(tester.notified(), 0);
        tester.run(3600.0, empty);
        assert_eq!(tester.firing(), []);
    }

    #[test]
    fn too_many_tasks_for_the_cpus_are_info() {
        let busy = |load: f32, percent: f32| {
            move |snapshot: &mut Snapshot, _: f64| {
                snapshot.host.load_1 = Some(load);
                snapshot.host.cpu_percent = Some(percent);
            }
        };
        for (load, percent, fires) in [(150.0, 100.0, true), (80.0, 100.0, false), (150.0, 30.0, false)] {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.set_cpu_count(64);
            with_host(&mut tester, 700.0, busy(load, percent));
            let expected: &[(&str, &str)] = if fires { &[("host-overloaded", "info")] } else { &[] };
            assert_eq!(tester.firing(), expected, "{load} {percent}");
        }
        let mut tester = RuleTester::new(gpus(0..1));
        tester.set_cpu_count(64);
        with_host(&mut tester, 3600.0, |snapshot, t| {
            busy(150.0, if ((t / 10.0) as u32).is_multiple_of(12) { 85.0 } else { 94.0 })(snapshot, t);
        });
        assert_eq!(tester.firing(), [("host-overloaded", "info")], "a moment below the limit does not end it");
    }

    #[test]
    fn too_many_tasks_warn_if_they_slow_a_job() {
        let fired = |percent: u8| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.set_cpu_count(64);
            tester.interval = 5.0;
            let sample = |tester: &mut RuleTester, percent: u8| TestSample {
                gpus: vec![tester.gpu(percent, 400.0, 30, 40)],
                processes: vec![process(7, "python train.py", &[(0, 40)])],
            };
            tester.run(2400.0, |tester, _| sample(tester, 97));
            tester.run_edited(
                2000.0,
                |tester, _| sample(tester, percent),
                |snapshot, _| (snapshot.host.load_1, snapshot.host.cpu_percent) = (Some(230.0), Some(99.0)),
            );
            tester.firing()
        };
        assert!(fired(60).contains(&("host-overloaded", "warn")), "{:?}", fired(60));
        assert!(fired(90).contains(&("host-overloaded", "info")), "{:?}", fired(90));
    }

    #[test]
    fn a_host_that_waits_for_swap_warns() {
        let swapping = |pressure: f32, free: u64| {
            move |snapshot: &mut Snapshot, _: f64| {
                snapshot.host.pressure_memory_percent = Some(pressure);
                snapshot.host.swap_total_bytes = Some(64 << 30);
                snapshot.host.swap_free_bytes = Some(free << 30);
            }
        };
        for (pressure, free, fires) in [(45.0, 20, true), (3.0, 20, false), (45.0, 64, false)] {
            let mut tester = RuleTester::new(gpus(0..1));
            with_host(&mut tester, 300.0, swapping(pressure, free));
            let expected: &[(&str, &str)] = if fires { &[("host-thrashing", "warn")] } else { &[] };
            assert_eq!(tester.firing(), expected, "{pressure} {free}");
        }
    }

    #[test]
    fn gpus_that_slurm_allocated_and_nobody_uses_are_one_finding() {
        let allocated = |snapshot: &mut Snapshot, _: f64| snapshot.host.slurm_allocated_gpus = Some(vec![0, 1]);
        let mut tester = RuleTester::new(gpus(0..3));
        let idle = |tester: &mut RuleTester, _: f64| TestSample {
            gpus: (0..3).map(|_| tester.gpu(0, 70.0, 0, 0)).collect(),
            processes: vec![],
        };
        tester.run_edited(1700.0, idle, allocated);
        assert_eq!(tester.fired(), []);
        tester.run_edited(200.0, idle, allocated);
        assert_eq!(tester.firing(), [("slurm-unused", "info")]);
        let sentence = tester.finding("slurm-unused").sentence.to_string();
        assert!(
            sentence.starts_with("Slurm has allocated GPUs 0,1 but no process has used them for up to 3"),
            "{sentence}"
        );
        tester.interval = 60.0;
        tester.run_edited(14_400.0, idle, allocated);
        assert_eq!(tester.firing(), [("slurm-unused", "warn")]);
        tester.run_edited(300.0, idle, |snapshot, _| snapshot.host.slurm_allocated_gpus = Some(vec![]));
        assert_eq!(tester.firing(), []);
    }

    #[test]
    fn gpus_of_slurm_that_nobody_uses_warn_sooner_where_the_cpus_rest() {
        let fired = |seconds: f64, percent: f32, allocated: &[u32]| {
            let mut tester = RuleTester::new(gpus(0..2));
            tester.interval = 30.0;
            let idle = |tester: &mut RuleTester, _: f64| TestSample {
                gpus: (0..2).map(|_| tester.gpu(0, 70.0, 0, 0)).collect(),
                processes: vec![],
            };
            tester.run_edited(seconds, idle, |snapshot, t| {
                snapshot.host.slurm_allocated_gpus = Some(allocated.to_vec());
                // A job of a minute, such as the index of files that a system makes at night, is no work for the GPUs.
                let is_busy = (1200.0..1260.0).contains(&t);
                snapshot.host.cpu_percent = Some(if is_busy { 15.0 } else { percent });
            });
            (tester.firing(), tester.finding("slurm-unused").sentence.ends_with(", and the CPUs of the host rest"))
        };
        assert_eq!(fired(2700.0, 1.0, &[0, 1]), (vec![("slurm-unused", "warn")], true));
        assert_eq!(fired(2700.0, 20.0, &[0, 1]), (vec![("slurm-unused", "info")], false));
        let one_in_use = [0, 1, 7];
        assert_eq!(fired(2700.0, 1.0, &one_in_use), (vec![("slurm-unused", "info")], false), "or lost");
        assert_eq!(fired(5700.0, 1.0, &one_in_use), (vec![("slurm-unused", "warn")], true), "most of them");
        assert_eq!(fired(5700.0, 1.0, &[0, 1, 5, 6, 7]), (vec![("slurm-unused", "info")], false), "less than half");
        assert_eq!(fired(7000.0, 20.0, &one_in_use), (vec![("slurm-unused", "info")], false));
        assert_eq!(fired(7300.0, 20.0, &one_in_use), (vec![("slurm-unused", "warn")], false), "the CPUs work");
        let mut tester = RuleTester::new(gpus(0..2));
        tester.interval = 30.0;
        tester.run_edited(
            2700.0,
            |tester, _| TestSample {
                gpus: (0..2).map(|_| tester.gpu(0, 70.0, 0, 0)).collect(),
                processes: vec![process(7, "python train.py", &[(0, 0)])],
            },
            |snapshot, _| {
                snapshot.host.slurm_allocated_gpus = Some(vec![0, 1]);
                snapshot.host.cpu_percent = Some(1.0);
            },
        );
        assert!(!tester.firing().contains(&("slurm-unused", "warn")), "a rank waits there: {:?}", tester.firing());
    }

    #[test]
    fn ranks_in_reserve_on_unused_gpus_of_slurm_are_listed() {
        let run = |works: bool, log_age: f64, job: &str| {
            let mut tester = RuleTester::of(vec![gpus(0..2), gpus(0..2)], Thresholds::default());
            tester.interval = 30.0;
            for step in 0..250 {
                let log_age = log_age + f64::from(step % 2) * 30.0;
                for (host, job, reserve) in [(0, "3385", true), (1, job, false)] {
                    let rests = reserve || !works;
                    let gpu = |tester: &mut RuleTester| {
                        if rests { tester.gpu(0, 118.0, 0, 1) } else { tester.gpu(99, 640.0, 40, 70) }
                    };
                    let rank = |gpu: u16| {
                        let mut rank =
                            process(7 + u32::from(gpu), "python train.py", &[(gpu, if reserve { 1 } else { 70 })]);
                        rank.reading.cpu_percent = Some(if rests { 1.0 } else { 100.0 });
                        rank.reading.log_age_seconds = Some(log_age);
                        rank.facts.owner = Some(Owner::Slurm { job: job.into(), step: None });
                        rank
                    };
                    let gpus = (0..2).map(|_| gpu(&mut tester)).collect();
                    let sample = TestSample { gpus, processes: (0..2).map(rank).collect() };
                    tester.send(host, &sample, |snapshot| {
                        snapshot.host.slurm_allocated_gpus = Some(vec![0, 1]);
                        snapshot.host.cpu_percent = Some(5.0);
                    });
                }
                tester.wait(30.0);
            }
            let unused = tester.findings().into_iter().filter(|finding| finding.rule == RuleId::SlurmUnused);
            unused
                .map(|finding| (finding.host, finding.severity))
                .find(|(host, _)| *host == HostId(0))
                .map(|found| found.1)
        };
        assert_eq!(run(true, 10.0, "3385"), Some(Severity::Info));
        assert_eq!(run(true, 4000.0, "3385"), Some(Severity::Warn), "they do not say that they live");
        assert_eq!(run(false, 10.0, "3385"), Some(Severity::Warn), "nobody computes");
        assert_eq!(run(true, 10.0, "3390"), Some(Severity::Warn), "another job computes");
    }

    #[test]
    fn unused_gpus_of_slurm_name_their_jobs_and_users() {
        let job = |job: &str, user: &str, gpus: &[u32]| SlurmJob {
            job: job.into(),
            user: Some(user.into()),
            gpus: gpus.to_vec(),
        };
        let sentence = |jobs: Vec<SlurmJob>| {
            let mut tester = RuleTester::new(gpus(0..3));
            let idle = |tester: &mut RuleTester, _: f64| TestSample {
                gpus: (0..3).map(|_| tester.gpu(0, 70.0, 0, 0)).collect(),
                processes: vec![],
            };
            tester.run_edited(1900.0, idle, |snapshot, _| {
                snapshot.host.slurm_allocated_gpus = Some(vec![0, 1]);
                snapshot.host.slurm_jobs = Some(jobs.clone());
            });
            let finding = tester.finding("slurm-unused");
            let sentence = finding.sentence.split(" but no process").next().unwrap_or_default().to_owned();
            (sentence, finding.user.as_deref().map(str::to_owned))
        };
        let named = |text: &str, user: Option<&str>| (text.to_owned(), user.map(str::to_owned));
        assert_eq!(
            sentence(vec![job("3385", "ann", &[0, 1]), job("9", "eve", &[2])]),
            named("Slurm has allocated GPUs 0,1 to job 3385 (ann)", Some("ann"))
        );
        assert_eq!(
            sentence(vec![job("3385", "ann", &[0]), job("3390", "bob", &[1])]),
            named("Slurm has allocated GPUs 0,1 to jobs 3385 (ann), 3390 (bob)", None)
        );
        assert_eq!(sentence(vec![]), named("Slurm has allocated GPUs 0,1", None));
        let many: Vec<SlurmJob> = (0..7).map(|number: u32| job(&number.to_string(), "ann", &[1])).collect();
        assert_eq!(
            sentence(many),
            named("Slurm has allocated GPUs 0,1 to jobs 0 (ann), 1 (ann), 2 (ann), 3 (ann) and 3 more", Some("ann"))
        );
    }

    fn disk(percent: u64) -> impl Fn(&mut Snapshot, f64) {
        move |snapshot, _| {
            snapshot.host.filesystems = vec![Filesystem {
                mount_point: "/home".into(),
                kind: "ext4".into(),
                total_bytes: Some(100 << 30),
                available_bytes: Some((100 - percent) << 30),
                ..Filesystem::default()
            }];
        }
    }

    #[test]
    fn a_disk_that_was_already_full_is_preexisting() {
        let mut tester = RuleTester::new(gpus(0..1));
        with_host(&mut tester, 60.0, disk(94));
        with_host(&mut tester, 60.0, disk(96));
        assert_eq!((tester.firing(), tester.notified()), (vec![("disk-full", "warn")], 1));
        let mut tester = RuleTester::new(gpus(0..1));
        with_host(&mut tester, 60.0, disk(96));
        assert_eq!((tester.firing(), tester.notified()), (vec![("disk-full", "warn")], 0));
        assert!(tester.finding("disk-full").is_preexisting && !tester.finding("disk-full").is_alerting());
        with_host(&mut tester, 60.0, disk(99));
        assert_eq!(
            (tester.firing(), tester.notified()),
            (vec![("disk-full", "crit")], 1),
            "worse than at the first sample"
        );
    }

    #[test]
    fn a_disk_that_the_host_tells_of_late_is_preexisting_for_some_minutes() {
        for (first_told_after, notified) in [(20.0, 0), (290.0, 0), (310.0, 1)] {
            let mut tester = RuleTester::new(gpus(0..1));
            with_host(&mut tester, first_told_after, |_, _| {});
            with_host(&mut tester, 60.0, disk(96));
            assert_eq!(
                (tester.firing(), tester.notified()),
                (vec![("disk-full", "warn")], notified),
                "{first_told_after}"
            );
        }
    }

    #[test]
    fn the_next_step_quotes_the_mount_point() {
        for (mount_point, disk_next, nfs_next) in [
            ("/home", "du -xhd1 /home", "findmnt /home; nfsstat -m"),
            ("/a; rm -rf ~", "du -xhd1 '/a; rm -rf ~'", "findmnt '/a; rm -rf ~'; nfsstat -m"),
            ("$(id)", "df -h", "findmnt; nfsstat -m"),
        ] {
            let mut tester = RuleTester::new(gpus(0..1));
            with_host(&mut tester, 400.0, |snapshot, t| {
                snapshot.host.filesystems = vec![Filesystem {
                    mount_point: mount_point.into(),
                    silent_seconds: Some(t as f32),
                    ..Filesystem::default()
                }];
            });
            assert_eq!(tester.finding("nfs-hang").next_check, nfs_next);
            let mut tester = RuleTester::new(gpus(0..1));
            with_host(&mut tester, 60.0, |snapshot, t| {
                disk(99)(snapshot, t);
                snapshot.host.filesystems[0].mount_point = mount_point.into();
            });
            assert_eq!(tester.finding("disk-full").next_check, disk_next);
        }
    }

    #[test]
    fn memory_that_a_gpu_shares_with_the_host_warns_from_95_percent() {
        let fired = |is_shared: bool, available: u64| {
            let mut infos = gpus(0..1);
            infos[0].unified_memory = Some(is_shared);
            let mut tester = RuleTester::new(infos);
            tester.run_edited(
                120.0,
                |tester, _| TestSample { gpus: vec![tester.gpu(0, 20.0, 0, 0)], processes: vec![] },
                |snapshot, _| {
                    snapshot.host.memory_total_bytes = Some(120 << 30);
                    snapshot.host.memory_available_bytes = Some(available << 30);
                },
            );
            tester.fired()
        };
        assert_eq!((fired(false, 10), fired(true, 10)), (vec![("host-ram-low", "warn")], vec![]));
        assert_eq!(fired(true, 5), [("host-ram-low", "warn")]);
    }

    #[test]
    fn a_thrashing_host_inhibits_the_finding_about_a_process_in_disk_sleep() {
        let mut tester = RuleTester::new(gpus(0..1));
        let mut job = process(7, "python train.py", &[(0, 10)]);
        job.reading.state = Some(ProcessState::DiskSleep);
        job.reading.cpu_percent = Some(0.0);
        tester.run_edited(
            900.0,
            |tester, _| TestSample { gpus: vec![tester.gpu(0, 120.0, 0, 60)], processes: vec![job.clone()] },
            |snapshot, _| {
                snapshot.host.pressure_memory_percent = Some(70.0);
                snapshot.host.swap_total_bytes = Some(64 << 30);
                snapshot.host.swap_free_bytes = Some(40 << 30);
            },
        );
        assert_eq!(tester.firing(), [("host-thrashing", "warn")]);
    }

    #[test]
    fn a_hung_mount_inhibits_the_findings_of_waiting_jobs() {
        let mut tester = RuleTester::new(gpus(0..1));
        let jobs: Vec<TestProcess> = (7..13)
            .map(|pid| {
                let mut job = process(pid, "python train.py", &[(0, 10)]);
                job.reading.state = Some(ProcessState::DiskSleep);
                job.reading.cpu_percent = Some(0.0);
                job
            })
            .collect();
        tester.run_edited(
            400.0,
            |tester, _| TestSample { gpus: vec![tester.gpu(0, 120.0, 0, 60)], processes: jobs.clone() },
            |snapshot, t| {
                snapshot.host.filesystems = vec![Filesystem {
                    mount_point: "/data".into(),
                    kind: "nfs4".into(),
                    silent_seconds: Some(t as f32),
                    timeouts: Some((t / 60.0) as u32),
                    ..Filesystem::default()
                }];
            },
        );
        assert_eq!(tester.fired(), [("nfs-hang", "info"), ("nfs-hang", "warn"), ("nfs-hang", "crit")]);
        assert_eq!(tester.firing(), [("nfs-hang", "crit")]);
        let finding = tester.finding("nfs-hang");
        assert_eq!(finding.processes.len(), 6);
        assert!(
            finding.sentence.contains("6 waiting in disk sleep: train.py (alice, pid 7), "),
            "{}",
            finding.sentence
        );
    }
}
