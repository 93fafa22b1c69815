//! Processes that hold GPUs in a state of no use: dstate-hang, stopped-, zombie-, orphan-holding-gpu, ghost-memory.

use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::evaluation::{Escalation, Evaluation, FindingDetails, FindingTarget};
use crate::diagnosis::rule::RuleInfo;
use crate::diagnosis::rule_context::{RuleContext, duration, format_process, gibibytes};
use crate::diagnosis::track::{GpuTrack, ProcessTrack};
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::fleet::{JobKey, Process};
use crate::wire::{GpuProcessKind, Owner, Presence, ProcessState, Scope};

pub(in crate::diagnosis) const DSTATE_HANG: RuleInfo = RuleInfo {
    word: "dstate-hang",
    title: "a thread in uninterruptible sleep",
    fires: "The same thread is in disk sleep (state D) in 90 % of readings and gains no CPU time. Warns after 2 min, \
            critical after 5 if the process holds GPU memory.",
    means: "The kernel waits for storage or for a driver. No signal ends such a process, KILL neither, until the wait ends.",
    next: "`cat /proc/PID/stack` as root says what it waits for; look at `dmesg` and at network filesystems.",
    not: "a job that reads from disks: it is in disk sleep on and off, and gains CPU time in between",
    limits: "What it waits in (wchan) is told for one's own processes only.",
    source: "proc(5); Documentation/scheduler",
};

pub(in crate::diagnosis) const STOPPED: RuleInfo = RuleInfo {
    word: "stopped-holding-gpu",
    title: "a stopped process holds GPU memory",
    fires: "State T with 500 MiB or more for 5 min. In a debugger (state t) it is mentioned after 30 min.",
    means: "Somebody pressed Ctrl-Z, or a job was suspended, and forgotten.",
    next: "`fg` in its shell, or `kill -CONT PID`; to end it `kill PID; kill -CONT PID`.",
    not: "a process that is stopped for a moment, a debugger at work",
    limits: "Who stopped it cannot be seen.",
    source: "proc(5)",
};

pub(in crate::diagnosis) const ZOMBIE: RuleInfo = RuleInfo {
    word: "zombie-holding-gpu",
    title: "a process has ended and its GPU memory is not free",
    fires: "State Z while the driver still lists it (often because a thread of it lives on). Warns after 60 s, critical \
            after 5 min.",
    means: "A thread hangs in the driver or in disk sleep, so that the kernel cannot take the process apart.",
    next: "`ls /proc/PID/task` shows the threads that live; `cat /proc/PID/task/TID/stack` as root what they wait for. \
           Often only a reset of the GPU or a reboot helps.",
    not: "a child that nobody has waited for and that holds no GPU",
    limits: "The driver's list is taken at its word.",
    source: "proc(5); nvtop#110",
};

pub(in crate::diagnosis) const ORPHAN: RuleInfo = RuleInfo {
    word: "orphan-holding-gpu",
    title: "workers whose job is gone",
    fires: "A worker (multiprocessing, a torchrun rank, ray, VLLM) whose parent is init now, on GPUs at 1 % or less, for \
            10 min.",
    means: "The launcher died or was killed, and its workers were not told.",
    next: "Their owner can end them: `kill PID`.",
    not: "nohup, tmux, screen, services of systemd, containers: those are meant to outlive their parent",
    limits: "A worker is recognised by its command, or because it was seen to lose its parent.",
    source: "gpufleet; PyTorch's own advice on leftover workers",
};

pub(in crate::diagnosis) const GHOST: RuleInfo = RuleInfo {
    word: "ghost-memory",
    title: "GPU memory that no visible process accounts for",
    fires: "Used memory less that of the visible processes and the driver's own exceeds 500 MiB and 2 %, for 5 min. \
            Mentioned when its holder is hidden, a warning when its holder is gone, critical when the GPU is at 90 % or \
            more with nobody on it.",
    means: "A process died and the driver did not release its memory; or it belongs to another container or user that \
            cannot be seen from here.",
    next: "`fuser -v /dev/nvidiaN` as root names who has the device open; else reset the GPU when nobody uses it.",
    not: "the seconds after a process ends, MIG, MPS, unified memory",
    limits: "Where processes do not tell their memory, nothing can be added up. In a container it is only mentioned.",
    source: "gpufleet; nvmlDeviceGetMemoryInfo_v2",
};

/// A thread must have been asleep this long before it is watched: every job that reads does so for a moment.
const MIN_BLOCKED_SECONDS: f64 = 10.0;

pub(in crate::diagnosis) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    let live = || context.processes.iter().filter(|process| !process.is_stale && process.key.pid != 0);
    let pick = |is_picked: &dyn Fn(&ProcessTrack) -> bool| -> Vec<(JobKey, Vec<&ProcessTrack>)> {
        let mut jobs: Vec<(JobKey, Vec<&ProcessTrack>)> = Vec::new();
        for process in live().filter(|process| is_picked(process)) {
            match jobs.iter_mut().find(|(job, _)| *job == process.info.job) {
                Some((_, members)) => members.push(process),
                None => jobs.push((process.info.job.clone(), vec![process])),
            }
        }
        jobs
    };
    let t = context.sample_time.t;
    for (job, members) in pick(&|process| process.blocked.is_some_and(|run| t - run.since >= MIN_BLOCKED_SECONDS)) {
        dstate(context, conditions, &job, &members);
    }
    let least = (context.limits.stopped_holding_gpu.memory * 1_048_576.0) as u64;
    let holds = |process: &ProcessTrack| process.memory_bytes.is_none_or(|bytes| bytes >= least);
    for (state, escalation) in [
        (ProcessState::Stopped, Escalation::one(Severity::Warn, context.limits.stopped_holding_gpu.warn_after)),
        (ProcessState::Traced, Escalation::one(Severity::Info, context.limits.stopped_holding_gpu.traced_after)),
    ] {
        for (job, members) in pick(&|process| process.state == Some(state) && holds(process)) {
            stopped(context, conditions, &job, &members, escalation);
        }
    }
    let is_zombie = |process: &ProcessTrack| matches!(process.state, Some(ProcessState::Zombie | ProcessState::Dead));
    for (job, members) in pick(&is_zombie) {
        zombie(context, conditions, &job, &members);
    }
    for (job, members) in pick(&|process| is_orphan(context, process)) {
        orphan(context, conditions, &job, &members);
    }
    let accounted = accounted(context);
    for (position, (gpu, known)) in context.gpus.iter().zip(accounted).enumerate() {
        ghost(context, conditions, (position, gpu), known);
    }
}

fn is_visible(process: &Process) -> bool {
    !matches!(process.reading.presence, Some(Presence::Hidden | Presence::Gone))
}

/// Memory of visible processes on each GPU, in bytes.
fn accounted(context: &RuleContext) -> Vec<u64> {
    let mut sums = vec![0_u64; context.gpus.len()];
    for usage in context
        .host
        .processes()
        .filter(|process| is_visible(process) && process.key.pid != 0)
        .flat_map(|process| &process.gpus)
    {
        if let (Some(position), Some(bytes)) = (usage.gpu, usage.gpu_memory_bytes)
            && let Some(sum) = sums.get_mut(usize::from(position))
        {
            *sum = sum.saturating_add(bytes);
        }
    }
    sums
}

fn process_details(
    context: &RuleContext,
    job: &JobKey,
    members: &[&ProcessTrack],
    sentence: String,
    next: String,
) -> FindingDetails {
    let mut positions: Vec<usize> = members.iter().flat_map(|process| process.positions.iter().copied()).collect();
    positions.sort_unstable();
    positions.dedup();
    let login = context.host.hello.as_ref().and_then(|hello| hello.login_uid);
    let is_mine = |process: &&ProcessTrack| process.info.facts.as_ref().and_then(|facts| facts.uid) == login;
    FindingDetails {
        sentence,
        next_check: next,
        gpus: context.finding_gpus(positions),
        processes: members.iter().map(|process| context.finding_process(process)).collect(),
        job: Some(job.clone()),
        user: members.first().map(|process| process.info.who.clone()),
        is_mine: login.is_some() && members.iter().any(is_mine),
        ..FindingDetails::default()
    }
}

fn format_held_memory(members: &[&ProcessTrack]) -> String {
    let bytes = members.iter().filter_map(|process| process.memory_bytes).reduce(u64::saturating_add);
    bytes.map_or_else(|| "GPU memory".to_owned(), |bytes| format!("{} of GPU memory", gibibytes(bytes)))
}

fn format_members(job: &JobKey, members: &[&ProcessTrack]) -> String {
    members.first().map_or_else(String::new, |first| format_process(first, members.len(), Some(job)))
}

fn dstate(context: &RuleContext, conditions: &mut Conditions, job: &JobKey, members: &[&ProcessTrack]) {
    let limits = &context.limits.dstate_hang;
    let holds = members.iter().any(|process| process.memory_bytes != Some(0));
    let escalation = if holds {
        Escalation::two((Severity::Warn, limits.warn_after), (Severity::Crit, limits.crit_after))
    } else {
        Escalation::one(Severity::Warn, limits.warn_after)
    };
    let runs = members.iter().filter_map(|process| process.blocked);
    let Some(run) = runs.min_by(|a, b| a.since.total_cmp(&b.since)) else { return };
    let evaluation = Evaluation::new(escalation, Confidence::Likely, 10.0).since(run);
    conditions.met(RuleId::DstateHang, &FindingTarget::Job(job.clone()), evaluation, |lasted, _| {
        let thread = members.iter().find_map(|process| process.blocked_thread);
        let thread = thread.map_or_else(String::new, |thread| format!(" (thread {thread})"));
        let sentence = format!(
            "{}{thread} has been in uninterruptible sleep for {} without CPU time, and holds {}",
            format_members(job, members),
            duration(lasted),
            format_held_memory(members),
        );
        let pid = members.first().map_or(0, |process| process.key.pid);
        process_details(context, job, members, sentence, format!("sudo cat /proc/{pid}/stack; dmesg"))
    });
}

fn stopped(
    context: &RuleContext,
    conditions: &mut Conditions,
    job: &JobKey,
    members: &[&ProcessTrack],
    escalation: Escalation,
) {
    let evaluation = Evaluation { at_least: true, ..Evaluation::new(escalation, Confidence::Certain, 5.0) };
    conditions.met(RuleId::StoppedHoldingGpu, &FindingTarget::Job(job.clone()), evaluation, |lasted, severity| {
        let by = if severity == Severity::Info { " in a debugger" } else { "" };
        let sentence = format!(
            "{} has been stopped{by} for {} and holds {}",
            format_members(job, members),
            duration(lasted),
            format_held_memory(members),
        );
        let pid = members.first().map_or(0, |process| process.key.pid);
        process_details(context, job, members, sentence, format!("kill -CONT {pid}"))
    });
}

fn zombie(context: &RuleContext, conditions: &mut Conditions, job: &JobKey, members: &[&ProcessTrack]) {
    let limits = &context.limits.zombie_holding_gpu;
    let escalation = Escalation::two((Severity::Warn, limits.warn_after), (Severity::Crit, limits.crit_after));
    let evaluation = Evaluation { at_least: true, ..Evaluation::new(escalation, Confidence::Certain, 5.0) };
    conditions.met(RuleId::ZombieHoldingGpu, &FindingTarget::Job(job.clone()), evaluation, |lasted, _| {
        let live = members.iter().filter_map(|process| process.threads_live).sum::<u32>();
        let threads =
            if live > 0 { format!("{live} of its threads live on") } else { "the driver lists it".to_owned() };
        let sentence = format!(
            "{} ended {} ago and still holds {}: {threads}",
            format_members(job, members),
            duration(lasted),
            format_held_memory(members),
        );
        let pid = members.first().map_or(0, |process| process.key.pid);
        process_details(
            context,
            job,
            members,
            sentence,
            format!("ls /proc/{pid}/task; sudo cat /proc/{pid}/task/*/stack"),
        )
    });
}

/// Parts of a command line that only workers of something else have.
const WORKERS: [&str; 9] = [
    "multiprocessing.spawn",
    "multiprocessing.fork",
    "multiprocessing.resource_tracker",
    "spawn_main",
    "--multiprocessing-fork",
    "--local-rank",
    "--local_rank",
    "VLLM::",
    "ray::",
];

/// Whether a process is a worker whose parent is gone and that nothing was meant to keep alive.
fn is_orphan(context: &RuleContext, process: &ProcessTrack) -> bool {
    let Some(facts) = &process.info.facts else { return false };
    let parent = facts.ancestors.first();
    let is_adopted = match process.parent {
        Some(1) => true,
        Some(pid) => {
            parent.is_some_and(|parent| parent.pid == pid && (*parent.name == *"systemd" || *parent.name == *"init"))
        }
        None => parent.is_some_and(|parent| parent.pid == 1),
    };
    let is_kept = facts.ignores_hangup == Some(true)
        || facts.runs_in.is_some()
        || matches!(
            facts.owner,
            Some(Owner::Service(_) | Owner::Container { .. } | Owner::Pod { .. } | Owner::Unknown)
        )
        || matches!(context.host.hello.as_ref().and_then(|hello| hello.scope.as_ref()), Some(Scope::Container(_)));
    if !is_adopted || is_kept {
        return false;
    }
    let is_worker = facts.argv.iter().any(|argument| WORKERS.iter().any(|word| argument.contains(word)));
    let is_titled = facts.name.as_ref().is_some_and(|name| {
        name.starts_with("VLLM::") || name.starts_with("ray::") || name.starts_with("pt_main_thread")
    });
    let rests = process.positions.iter().all(|position| {
        let utilization = context.gpus.get(*position).and_then(|gpu| gpu.utilization);
        utilization.is_some_and(|percent| f64::from(percent) <= context.limits.orphan_holding_gpu.utilization)
    });
    rests && (is_worker || is_titled || process.lost_parent)
}

fn orphan(context: &RuleContext, conditions: &mut Conditions, job: &JobKey, members: &[&ProcessTrack]) {
    let escalation = Escalation::one(Severity::Warn, context.limits.orphan_holding_gpu.warn_after);
    let evaluation = Evaluation::new(escalation, Confidence::Likely, 60.0);
    conditions.met(RuleId::OrphanHoldingGpu, &FindingTarget::Job(job.clone()), evaluation, |lasted, _| {
        let sentence = format!(
            "{} lost its parent, has done nothing on its GPUs for {} and holds {}",
            format_members(job, members),
            duration(lasted),
            format_held_memory(members),
        );
        let pids: Vec<String> = members.iter().map(|process| process.key.pid.to_string()).collect();
        process_details(context, job, members, sentence, format!("kill {}", pids.join(" ")))
    });
}

fn ghost(context: &RuleContext, conditions: &mut Conditions, (position, gpu): (usize, &GpuTrack), known: u64) {
    let limits = &context.limits.ghost_memory;
    let target = FindingTarget::Gpu(gpu.identity.clone());
    let (Some(used), Some(total), true) = (gpu.used_bytes, gpu.total_bytes, gpu.is_readable) else {
        conditions.unknown(RuleId::GhostMemory, &target);
        return;
    };
    if gpu.is_mig_parent || gpu.is_instance || gpu.is_unified {
        return;
    }
    // Without the driver's own share (before R510) it is a part of what is used.
    let reserved = gpu.reserved_bytes.unwrap_or(1 << 30);
    let unaccounted = used.saturating_sub(reserved).saturating_sub(known);
    let least = (limits.memory * 1_048_576.0).max(limits.share / 100.0 * total as f64);
    // Nearly every GPU ends here.
    if (unaccounted as f64) <= least {
        return;
    }
    let on_it = || context.host.processes().filter(|process| process.usage_on(position).is_some());
    if on_it().any(|process| process.is_stale) {
        return;
    }
    let bytes = |process: &Process| process.usage_on(position).and_then(|usage| usage.gpu_memory_bytes);
    let visible = || on_it().filter(|process| is_visible(process) && process.key.pid != 0);
    let is_mps =
        on_it().any(|process| process.usage_on(position).is_some_and(|usage| usage.kind == Some(GpuProcessKind::Mps)));
    if is_mps || visible().any(|process| bytes(process).is_none()) {
        return;
    }
    let hidden = on_it().find(|process| process.reading.presence == Some(Presence::Hidden) || process.key.pid == 0);
    let gone = on_it().find(|process| process.reading.presence == Some(Presence::Gone));
    let is_busy = gpu.utilization.is_some_and(|percent| f64::from(percent) >= limits.utilization);
    let is_contained =
        matches!(context.host.hello.as_ref().and_then(|hello| hello.scope.as_ref()), Some(Scope::Container(_)));
    let severity = match (hidden, gone) {
        _ if is_contained => Severity::Info,
        (Some(_), None) => Severity::Info,
        (_, _) if is_busy && visible().next().is_none() => Severity::Crit,
        (_, Some(_)) => Severity::Warn,
        // Contexts and libraries of the processes that are there take memory which is not counted as theirs.
        (None, None) if visible().next().is_some() => return,
        (None, None) => Severity::Info,
    };
    let confidence = if hidden.is_some() { Confidence::Suspected } else { Confidence::Likely };
    let evaluation = Evaluation::new(Escalation::one(severity, limits.after), confidence, 30.0);
    let evaluation = Evaluation { at_least: true, ..evaluation };
    conditions.met(RuleId::GhostMemory, &target, evaluation, |lasted, _| {
        let holder = match (gone, hidden) {
            (Some(process), _) => format!("pid {} is gone, and its memory was not released", process.key.pid),
            (None, Some(_)) => "a process that cannot be seen from here holds it".to_owned(),
            (None, None) => "nobody is listed for it".to_owned(),
        };
        let busy = match gpu.utilization {
            Some(percent) if is_busy => format!(" while it says {percent} % busy"),
            _ => String::new(),
        };
        let sentence = format!(
            "{}: {} of {} have been unaccounted for for {}{busy}: {holder}",
            context.format_gpus([position]),
            gibibytes(unaccounted),
            gibibytes(total),
            duration(lasted),
        );
        context.gpu_details(position, sentence, format!("sudo fuser -v /dev/nvidia{}", gpu.index))
    });
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;
