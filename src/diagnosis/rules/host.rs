//! CPUs, memory, filesystems and allocations of a host: host-overloaded, host-ram-low, host-thrashing, host-rebooted,
//! oom-kill, disk-full, nfs-hang, slurm-unused.

use super::efficiency::slowed_by_the_cpus;
use crate::diagnosis::condition::{Escalation, Evaluation, Run};
use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::finding::FindingTarget;
use crate::diagnosis::rule_context::{JobPart, RuleContext, counted, duration, gibibytes, host_details};
use crate::diagnosis::track::{Allocation, GpuTrack, JobTrack, ProcessTrack};
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::fleet::{Host, HostId, JobKey};
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
        && let memory = &context.host_track.available_memory
        && let Some(shrinkage) = memory.shrinkage(total as f64).or_else(|| memory.descends(total as f64))
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
    let indexes: Vec<u32> =
        positions.iter().filter_map(|position| context.host.gpu_info(*position)).map(|info| info.index).collect();
    let jobs: Vec<&SlurmJob> = context
        .host
        .slurm_jobs()
        .unwrap_or_default()
        .iter()
        .filter(|job| job.gpus.iter().any(|index| indexes.contains(index)))
        .collect();
    // Nothing on the host prepares what the GPUs need.
    let rested = context.host_track.cpus_rest_since.map_or(0.0, |since| t - since);
    // Where a part of the GPUs is in use, the finding of that job says more.
    let allocated = context.host.slurm_allocated_gpus().map_or(0, <[u32]>::len);
    let resting_after =
        if may_work_elsewhere(context, &jobs, &positions) { ELSEWHERE_WARN_AFTER } else { RESTING_WARN_AFTER };
    let do_cpus_rest = rested >= resting_after && unused(resting_after).count() >= allocated;
    let is_most_unused = rested >= MOST_UNUSED_WARN_AFTER && 2 * unused(MOST_UNUSED_WARN_AFTER).count() >= allocated;
    let do_cpus_rest = (do_cpus_rest || is_most_unused) && !positions.iter().any(is_held);
    let is_half_unused = 2 * unused(HALF_UNUSED_WARN_AFTER).count() >= allocated.max(1);
    let is_partly_used = is_most_of_a_used_job(context, &unused(PARTLY_UNUSED_WARN_AFTER).collect::<Vec<_>>());
    let busier = cores_busier(context).filter(|_| !do_cpus_rest);
    let warns = do_cpus_rest
        || is_half_unused
        || is_partly_used
        || is_abandoned(context)
        || is_never_used(context)
        || busier.is_some()
        || unused(limits.warn_after).next().is_some();
    let warns = warns && !positions.iter().all(|position| is_spare(context, *position));
    let severity = if warns { Severity::Warn } else { Severity::Info };
    let longest = context.gpus.iter().filter_map(|gpu| gpu.unused_since).map(|since| t - since).fold(0.0, f64::max);
    // Work on the CPUs of the allocation is not visible.
    let evaluation = Evaluation::new(Escalation::one(severity, 0.0), Confidence::Likely, 60.0);
    let evaluation = Evaluation { at_least: true, ..evaluation };
    conditions.met(RuleId::SlurmUnused, &FindingTarget::Host, evaluation, |_, _| {
        let sentence = format!(
            "Slurm has allocated {}{} but no process has used {} for up to {}{}{}",
            context.format_gpus(positions.iter().copied()),
            describe_jobs(&jobs),
            if positions.len() == 1 { "it" } else { "them" },
            duration(longest),
            if do_cpus_rest { ", and the CPUs of the host rest" } else { "" },
            busier.map_or_else(String::new, |cores| format!(", while {cores:.0} more CPU cores are busy than before")),
        );
        let mut details = host_details(sentence, format!("squeue -w {}", context.host.name()));
        details.gpus = context.finding_gpus(positions.iter().copied());
        // A finding has one user.
        details.user = jobs.first().and_then(|job| job.user.clone());
        if let Some(job) = only_slurm_job(context) {
            details.is_mine = job.is_mine;
            details.user = context.user(job).cloned();
            details.job = Some(job.key.clone());
            details.processes = context.members(job).map(|process| context.finding_process(process)).collect();
        }
        if jobs.iter().any(|job| job.user != details.user) {
            details.user = None;
        }
        details
    });
}

/// A rank in reserve writes to its log at least this often, in seconds.
const SPARE_LOG_SECONDS: f64 = 300.0;
/// Its job has computed on another host within this time, in seconds.
const SPARE_WORK_SECONDS: f64 = 1800.0;

/// Whether a GPU belongs to ranks in reserve, which take the place of ranks that fail: their job computes on other hosts, and they go
/// on writing to their logs.
fn is_spare(context: &RuleContext, position: usize) -> bool {
    let mut jobs = context.jobs_on(position).peekable();
    let t = context.sample_time.t;
    let is_alive = |process: &ProcessTrack| {
        process.log.as_ref().and_then(|log| log.age(t)).is_some_and(|age| age <= SPARE_LOG_SECONDS)
    };
    let computes = |part: JobPart| part.job.computed_at.is_some_and(|at| t - at <= SPARE_WORK_SECONDS);
    jobs.peek().is_some()
        && jobs.all(|job| {
            context.members(job).all(is_alive) && context.peers.certain_parts(job, context.host.id).any(computes)
        })
}

/// How long GPUs that Slurm has allocated must be unused on a host whose CPUs rest until that warns, in seconds.
const RESTING_WARN_AFTER: f64 = 2400.0;
/// As [`RESTING_WARN_AFTER`], if half of them or more are unused.
const MOST_UNUSED_WARN_AFTER: f64 = 4800.0;

/// As [`RESTING_WARN_AFTER`], while a job of Slurm works on another host, or did lately: it may need these GPUs in its next step.
const ELSEWHERE_WARN_AFTER: f64 = 3600.0;
/// How long most of the GPUs of a job that computes on the others must be unused, in seconds.
const PARTLY_UNUSED_WARN_AFTER: f64 = 3600.0;
/// How long GPUs must be unused after a job used them, in seconds: an interactive session that somebody left open.
const ABANDONED_WARN_AFTER: f64 = 4800.0;

/// Whether GPUs that were allocated together were in use and are all unused now, or held by a process that does nothing.
fn is_abandoned(context: &RuleContext) -> bool {
    let t = context.sample_time.t;
    let is_long = |since: f64| t - since >= ABANDONED_WARN_AFTER;
    let is_idle = |job: &JobTrack| {
        matches!(job.key, JobKey::Slurm { .. }) && !job.is_server && job.idle_run.is_some_and(|run| is_long(run.since))
    };
    let has_rested = |(position, gpu): (usize, &GpuTrack)| {
        let mut jobs = context.jobs_on(position).peekable();
        gpu.unused_since.is_some_and(is_long) || (jobs.peek().is_some() && jobs.all(is_idle))
    };
    context.gpus.iter().filter_map(|gpu| gpu.allocation.as_ref()).filter(|allocation| allocation.was_used).any(|used| {
        let is_of_it =
            |(_, gpu): &(usize, &GpuTrack)| gpu.allocation.as_ref().is_some_and(|other| used.began_with(other));
        let mut group = context.gpus.iter().enumerate().filter(is_of_it).peekable();
        // Its job may go on with the CPUs.
        let do_cpus_rest = cores_since_allocation(context, used).is_some_and(|cores| cores < BUSIER_CORES);
        do_cpus_rest && group.peek().is_some() && group.all(has_rested)
    })
}

/// The allocations of unused GPUs, and how long each GPU has been unused, in seconds.
fn unused_allocations<'a>(context: &RuleContext<'a>) -> impl Iterator<Item = (f64, &'a Allocation)> {
    let t = context.sample_time.t;
    context.gpus.iter().filter_map(move |gpu| Some((t - gpu.unused_since?, gpu.allocation.as_ref()?)))
}

/// How long a GPU must be unused since its allocation, in seconds, if the CPUs are hardly in use either.
const NEVER_USED_WARN_AFTER: f64 = 7000.0;

/// Whether a GPU was never used since its allocation, and the CPUs are no busier than before.
fn is_never_used(context: &RuleContext) -> bool {
    unused_allocations(context)
        .filter(|(seconds, new)| *seconds >= NEVER_USED_WARN_AFTER && !new.was_used)
        .any(|(_, new)| cores_since_allocation(context, new).is_some_and(|cores| cores < BUSIER_CORES))
}

/// How long GPUs must be unused since their allocation, in seconds, and how many more CPU cores must be busy than before. The first
/// time is for several GPUs that were allocated together: a sequence search of an hour often precedes work on a single GPU.
const SEVERAL_ON_CPUS_WARN_AFTER: f64 = 3900.0;
const ON_CPUS_WARN_AFTER: f64 = 4500.0;
const BUSIER_CORES: f64 = 3.0;

/// How many more CPU cores are busy than when Slurm allocated these GPUs, if nothing has used them since: the program was probably
/// built or started without GPU support.
fn cores_busier(context: &RuleContext) -> Option<f64> {
    let unused = || unused_allocations(context).filter(|(seconds, _)| *seconds >= SEVERAL_ON_CPUS_WARN_AFTER);
    let is_one_of_several = |new: &Allocation| unused().filter(|(_, other)| new.began_with(other)).count() > 1;
    let is_ripe = |seconds: f64, new: &Allocation| seconds >= ON_CPUS_WARN_AFTER || is_one_of_several(new);
    let new = unused().filter(|(seconds, new)| !new.was_used && is_ripe(*seconds, new));
    let cores = new.filter_map(|(_, new)| cores_since_allocation(context, new));
    cores.reduce(f64::min).filter(|cores| *cores >= BUSIER_CORES)
}

/// How many more CPU cores are busy than at the start of an allocation, without the cores of later jobs that use GPUs.
fn cores_since_allocation(context: &RuleContext, allocation: &Allocation) -> Option<f64> {
    let cpus = context.host.hello.as_ref().and_then(|hello| hello.cpu_count).map(f64::from)?;
    let (now, before, since) = (context.host_track.mean_cpu?, allocation.cpu_before?, allocation.since?);
    let later = context.jobs.iter().filter(|job| job.first_seen > since).flat_map(|job| context.members(job));
    let theirs: f64 = later.filter_map(|process| process.smoothed_cores).sum();
    Some((now - before) / 100.0 * cpus - theirs)
}

/// Whether a job computes on some of its GPUs and most are unused: at least half of the GPUs that were allocated together, or three
/// quarters of all allocated GPUs if there is only one job.
fn is_most_of_a_used_job(context: &RuleContext, unused: &[usize]) -> bool {
    let t = context.sample_time.t;
    let is_only = only_slurm_job(context).is_some();
    let allocation = |position: usize| context.gpus.get(position)?.allocation.as_ref();
    let computes = |job: &&JobTrack| {
        matches!(job.key, JobKey::Slurm { .. }) && job.computed_at.is_some_and(|at| t - at <= SPARE_WORK_SECONDS)
    };
    let working = context.jobs.iter().filter(computes).flat_map(JobTrack::positions);
    working.filter_map(allocation).any(|used| {
        let is_of_it = |position: &usize| allocation(*position).is_some_and(|other| is_only || used.began_with(other));
        let all = (0..context.gpus.len()).filter(is_of_it).count();
        let idle = unused.iter().copied().filter(is_of_it).count();
        // With one visible job, another one may hold them without using any.
        let (part, of) = if is_only { (4, 3) } else { (2, 1) };
        idle > 0 && part * idle >= of * all
    })
}

/// Whether one of these Slurm jobs works on another host, or did lately. If `jobs` is empty: one of those that were at work on this
/// host, if the GPUs at these positions were in use, otherwise any Slurm job.
fn may_work_elsewhere(context: &RuleContext, jobs: &[&SlurmJob], positions: &[usize]) -> bool {
    let t = context.sample_time.t;
    let was_used = |position: &usize| {
        context
            .gpus
            .get(*position)
            .and_then(|gpu| gpu.allocation.as_ref())
            .is_some_and(|allocation| allocation.was_used)
    };
    let known = &context.host_track.slurm_work;
    let is_known = !known.is_empty() && positions.iter().all(was_used);
    let is_one = |id: &SafeText| match (jobs, is_known) {
        ([], true) => known.iter().any(|(job, _)| job == id),
        ([], false) => true,
        _ => jobs.iter().any(|job| job.job == *id),
    };
    let others = context.peers.hosts.iter().enumerate().filter(|(host, _)| *host != context.host.id.0 as usize);
    let mut work = others.flat_map(|(_, diagnosis)| &diagnosis.host_track.slurm_work);
    work.any(|(id, at)| is_one(id) && t - at <= SPARE_WORK_SECONDS)
}

/// As [`MOST_UNUSED_WARN_AFTER`], on a host that works.
const HALF_UNUSED_WARN_AFTER: f64 = 7200.0;

/// The job of Slurm whose processes are on the GPUs, if it is the only one and Slurm does not tell which jobs hold them: it holds the
/// unused ones, too, unless there is a job without a process on a GPU.
fn only_slurm_job<'a>(context: &RuleContext<'a>) -> Option<&'a JobTrack> {
    if !context.host.slurm_jobs().unwrap_or_default().is_empty() {
        return None;
    }
    let mut jobs = context.jobs.iter().filter(|job| matches!(job.key, JobKey::Slurm { .. }));
    jobs.next().filter(|_| jobs.next().is_none())
}

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
const UNUSED_MOUNT_PATIENCE: f64 = 5.0 / 3.0;

/// How long a reboot is listed, in seconds.
const REBOOT_RETENTION: f64 = 3600.0;

fn rebooted(context: &RuleContext, conditions: &mut Conditions) {
    let t = context.sample_time.t;
    let Some(reboot) = context.host_track.reboot.as_ref().filter(|reboot| reboot.at >= t) else { return };
    let severity = if reboot.has_ended_work { Severity::Warn } else { Severity::Info };
    conditions.event(RuleId::HostRebooted, &FindingTarget::Host, severity, REBOOT_RETENTION, || {
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
            .job_ends
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
    let run = Run { since: context.sample_time.t - silent, covered: silent };
    // A file server that restarts is back within a minute or two. A filesystem that no GPU process waits for may be away for longer.
    let is_needed = context.processes.iter().any(|process| process.blocked.is_some());
    let patience = if is_needed { 1.0 } else { UNUSED_MOUNT_PATIENCE };
    let escalation = if silent >= patience * limits.crit_after {
        Escalation::one(Severity::Crit, limits.info_after)
    } else {
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
#[path = "host_tests.rs"]
mod tests;
