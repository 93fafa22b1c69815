//! Processes that hold a GPU but cannot use it: dstate-hang, stopped-holding-gpu, zombie-holding-gpu,
//! orphan-holding-gpu, ghost-memory.

use crate::diagnosis::condition::{Escalation, Evaluation};
use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::finding::{FindingDetails, FindingTarget};
use crate::diagnosis::process_kind::is_engine_title;
use crate::diagnosis::rule_context::{RuleContext, duration, gibibytes};
use crate::diagnosis::track::{GpuTrack, LogTrack, ProcessTrack, gpu_positions, group_by_job};
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::fleet::{JobKey, Process, program_name};
use crate::wire::{Ancestor, GpuProcessKind, Owner, Presence, ProcessFacts, ProcessState, Scope};

/// A process that wrote or read this recently makes progress, in seconds.
const WRITING_SECONDS: f64 = 120.0;
/// Data written before a thread blocked may be seen this much later, in seconds.
const WRITING_AFTER: f64 = 120.0;
/// A thread must have been in disk sleep this long to be pending, in seconds: every job that reads sleeps briefly.
const MIN_BLOCKED_SECONDS: f64 = 10.0;

pub(super) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    let live = || context.processes.iter().filter(|process| !process.is_stale && process.key.pid != 0);
    let jobs_with =
        |is_selected: &dyn Fn(&ProcessTrack) -> bool| group_by_job(live().filter(|process| is_selected(process)));
    let t = context.sample_time.t;
    for (job, members) in jobs_with(&|process| process.blocked.is_some_and(|run| t - run.since >= MIN_BLOCKED_SECONDS))
    {
        dstate(context, conditions, job, &members);
    }
    let least = (context.limits.stopped_holding_gpu.memory * 1_048_576.0) as u64;
    let holds = |process: &ProcessTrack| process.memory_bytes.is_none_or(|bytes| bytes >= least);
    for (state, escalation) in [
        (ProcessState::Stopped, Escalation::one(Severity::Warn, context.limits.stopped_holding_gpu.warn_after)),
        (ProcessState::Traced, Escalation::one(Severity::Info, context.limits.stopped_holding_gpu.traced_after)),
    ] {
        for (job, members) in jobs_with(&|process| process.state == Some(state) && holds(process)) {
            let (escalation, by) = match state {
                ProcessState::Traced => (escalation, " in a debugger"),
                _ if is_suspended(context, job, &members) => {
                    let after = context.limits.stopped_holding_gpu.warn_after;
                    (Escalation::one(Severity::Info, after), " beside another Slurm job on its GPUs")
                }
                _ if is_guest(&members) => {
                    let after = context.limits.stopped_holding_gpu.warn_after;
                    (Escalation::one(Severity::Info, after), ", probably by HTCondor,")
                }
                _ => (escalation, ""),
            };
            stopped(context, conditions, job, &members, (escalation, by));
        }
    }
    let is_zombie = |process: &ProcessTrack| matches!(process.state, Some(ProcessState::Zombie | ProcessState::Dead));
    for (job, members) in jobs_with(&is_zombie) {
        zombie(context, conditions, job, &members);
    }
    for (job, members) in jobs_with(&|process| is_orphan(context, process)) {
        orphan(context, conditions, job, &members);
    }
    let accounted = accounted(context);
    for (position, (gpu, known)) in context.gpus.iter().zip(accounted).enumerate() {
        ghost(context, conditions, (position, gpu), known);
    }
}

fn is_visible(process: &Process) -> bool {
    !matches!(process.reading.presence, Some(Presence::Hidden | Presence::Gone))
}

/// The memory of visible processes on each GPU, in bytes.
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

pub(super) fn process_details(
    context: &RuleContext,
    job: &JobKey,
    members: &[&ProcessTrack],
    sentence: String,
    next: String,
) -> FindingDetails {
    let login = context.host.hello.as_ref().and_then(|hello| hello.login_uid);
    FindingDetails {
        sentence,
        next_check: next,
        gpus: context.finding_gpus(gpu_positions(members)),
        processes: members.iter().map(|process| context.finding_process(process)).collect(),
        job: Some(job.clone()),
        user: members.first().map(|process| process.info.who.clone()),
        is_mine: members.iter().any(|process| process.belongs_to(login)),
        figures: held_memory(members).map(|bytes| format!("{} held", gibibytes(bytes))).unwrap_or_default(),
        ..FindingDetails::default()
    }
}

fn held_memory(members: &[&ProcessTrack]) -> Option<u64> {
    members.iter().filter_map(|process| process.memory_bytes).reduce(u64::saturating_add)
}

fn format_held_memory(members: &[&ProcessTrack]) -> String {
    held_memory(members).map_or_else(|| "GPU memory".to_owned(), |bytes| format!("{} of GPU memory", gibibytes(bytes)))
}

fn format_members(job: &JobKey, members: &[&ProcessTrack]) -> String {
    members.first().map_or_else(String::new, |first| first.describe(members.len(), Some(job)))
}

/// The share of the time in which tasks wait for storage, in percent, and how long a process that still makes progress must wait until
/// that warns, in seconds.
const SEVERE_PRESSURE_PERCENT: f32 = 60.0;
const SLOW_STORAGE_AFTER: f64 = 1500.0;

fn dstate(context: &RuleContext, conditions: &mut Conditions, job: &JobKey, members: &[&ProcessTrack]) {
    let limits = &context.limits.dstate_hang;
    let holds = members.iter().any(|process| process.memory_bytes != Some(0));
    // A process that still reads, writes or loads waits for slow storage, and goes on.
    let writes = |process: &&ProcessTrack| {
        let began = process.blocked.map_or(f64::INFINITY, |run| run.since);
        let is_recent = |at: f64| at >= began + WRITING_AFTER && context.sample_time.t - at <= WRITING_SECONDS;
        // A process that loads its model fills the GPU. The kernel does not count reads of mapped files.
        let loads = process.memory_grew_at.is_some_and(is_recent);
        loads || process.last_io_at.is_some_and(is_recent)
    };
    let pressure = context.host.snapshot.as_ref().and_then(|snapshot| snapshot.host.pressure_io_percent);
    let escalation = if members.iter().any(writes) && pressure >= Some(SEVERE_PRESSURE_PERCENT) {
        Escalation::two((Severity::Info, limits.warn_after), (Severity::Warn, SLOW_STORAGE_AFTER))
    } else if members.iter().any(writes) {
        Escalation::one(Severity::Info, limits.warn_after)
    } else if holds {
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
        let mut blocked = members.iter().filter(|process| process.blocked.is_some());
        let channel = blocked.find_map(|process| context.wait_channel(process));
        let channel = channel.map_or_else(String::new, |channel| format!(" in {channel}"));
        let sentence = format!(
            "{}{thread} has been in uninterruptible sleep{channel} for {} without CPU time, and holds {}",
            format_members(job, members),
            duration(lasted),
            format_held_memory(members),
        );
        let pid = members.first().map_or(0, |process| process.key.pid);
        process_details(context, job, members, sentence, format!("sudo cat /proc/{pid}/stack; dmesg"))
    });
}

/// How long after the end of a Slurm job the one that was suspended for it may stay so, in seconds.
const RESUME_SECONDS: f64 = 300.0;

/// The CPU utilisation of a host beside a stopped job from which another job has its CPUs, in percent.
const LENT_CPU_PERCENT: f32 = 80.0;

/// Whether Slurm has probably suspended a job for another one on its GPUs or CPUs, and resumes it afterwards
/// (https://slurm.schedmd.com/preempt.html).
fn is_suspended(context: &RuleContext, job: &JobKey, members: &[&ProcessTrack]) -> bool {
    let is_other = |other: &JobKey| matches!(other, JobKey::Slurm { .. }) && other != job;
    let t = context.sample_time.t;
    let is_lent = |position: usize| {
        let mut others = context.processes.iter().filter(|process| process.positions.contains(&position));
        let mut ended = context.host_track.job_ends.ended.iter().filter(|ended| t - ended.missed_at <= RESUME_SECONDS);
        others.any(|process| is_other(&process.info.job))
            || ended.any(|ended| is_other(&ended.job) && ended.positions.contains(&position))
    };
    // The other job may need the CPUs only.
    let snapshot = context.host.snapshot.as_ref();
    let are_cpus_lent = snapshot.and_then(|snapshot| snapshot.host.cpu_percent) >= Some(LENT_CPU_PERCENT);
    matches!(job, JobKey::Slurm { .. }) && (are_cpus_lent || gpu_positions(members).into_iter().all(is_lent))
}

/// Whether HTCondor started a job: it suspends one while the owner of the machine uses it, and continues it later
/// (https://htcondor.readthedocs.io, "SUSPEND").
fn is_guest(members: &[&ProcessTrack]) -> bool {
    let is_started = |process: &&ProcessTrack| {
        let ancestors = process.info.facts.as_ref().map(|facts| &facts.ancestors);
        ancestors.is_some_and(|ancestors| ancestors.iter().any(|parent| parent.name == *"condor_starter"))
    };
    members.iter().all(is_started)
}

fn stopped(
    context: &RuleContext,
    conditions: &mut Conditions,
    job: &JobKey,
    members: &[&ProcessTrack],
    (escalation, by): (Escalation, &str),
) {
    let evaluation = Evaluation { at_least: true, ..Evaluation::new(escalation, Confidence::Certain, 5.0) };
    conditions.met(RuleId::StoppedHoldingGpu, &FindingTarget::Job(job.clone()), evaluation, |lasted, _| {
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
        let live = members.iter().filter_map(|process| process.threads_live).fold(0, u32::saturating_add);
        let threads = if live > 0 {
            format!("{live} of its threads {} still alive", if live == 1 { "is" } else { "are" })
        } else {
            "the driver still lists it".to_owned()
        };
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

/// Parts of a command line that mark a worker of another process.
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

/// Whether a process is an idle worker whose parent is gone and that is not meant to outlive it.
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
    // A process that was seen to lose its launcher was not started to outlive it. The script that starts a service, or the
    // first process of a container, adopts it.
    let is_adopted = is_adopted
        || process.lost_parent_late()
        || (process.lost_parent() && parent.is_some_and(|parent| is_shell(&parent.name)));
    // The front end of a model server has ended, and its engine lives on.
    let is_left_by_front_end = parent.is_some_and(is_engine)
        && facts
            .ancestors
            .iter()
            .find(|ancestor| !is_engine(ancestor))
            .is_some_and(|above| above.pid == 1 || *above.name == *"systemd" || *above.name == *"init");
    let is_adopted = is_adopted || is_left_by_front_end;
    // Inside a container, its init process adopts orphans. The init process of the host adopts them only if the container is gone.
    let has_left_container = process.lost_parent() && process.parent == Some(1);
    let is_kept_by_owner = match facts.owner {
        Some(Owner::Service(_) | Owner::Unknown) => !process.lost_parent_late(),
        Some(Owner::Container { .. } | Owner::Pod { .. }) => !process.lost_parent_late() && !has_left_container,
        _ => false,
    };
    let is_kept = (!process.lost_parent()
        && !is_left_by_front_end
        && (facts.ignores_hangup == Some(true) || facts.runs_in.is_some()))
        || is_kept_by_owner
        || matches!(context.scope(), Some(Scope::Container(_)));
    if !is_adopted || is_kept {
        return false;
    }
    let is_worker = facts.argv.iter().any(|argument| WORKERS.iter().any(|word| argument.contains(word)));
    let is_titled = facts.name.as_ref().is_some_and(|name| {
        name.starts_with("VLLM::") || name.starts_with("ray::") || name.starts_with("pt_main_thread")
    });
    let is_idle = process.positions.iter().all(|position| {
        let utilization = context.gpus.get(*position).and_then(|gpu| gpu.utilization);
        let is_unused =
            utilization.is_some_and(|percent| f64::from(percent) <= context.limits.orphan_holding_gpu.utilization);
        // It may wait for the ended ranks in a collective.
        let waits = |gpu: &GpuTrack| {
            gpu.spin_run.is_some() || gpu.still_run.is_some() || (gpu.is_low_power && process.lost_parent())
        };
        is_unused || context.gpus.get(*position).is_some_and(waits)
    });
    let is_stray = || {
        is_silent(context, process)
            || serves_nobody(process)
            || was_left_by_its_notebook(context, process)
            || runs_beside_its_successor(context, process)
            || has_no_allocation(context, process)
    };
    (is_idle || is_stray()) && (is_worker || is_titled || process.lost_parent())
}

/// Whether this is the engine of a model server between its front end and its workers.
fn is_engine(ancestor: &Ancestor) -> bool {
    is_engine_title(&ancestor.name)
}

/// Whether a process is one of several ranks that a cell of a notebook started, whose kernel is gone: nobody gets their results.
fn was_left_by_its_notebook(context: &RuleContext, process: &ProcessTrack) -> bool {
    let is_left = |process: &ProcessTrack| {
        let is_forked = |facts: &ProcessFacts| facts.argv.iter().any(|argument| argument.contains("ipykernel"));
        process.lost_parent_late() && process.parent == Some(1) && process.info.facts.as_ref().is_some_and(is_forked)
    };
    let is_like = |other: &&ProcessTrack| other.key != process.key && other.info.command == process.info.command;
    is_left(process) && context.processes.iter().filter(is_like).any(is_left)
}

/// Whether a process that lost its launcher computes beside a later run of its program on one of its GPUs: who started that one
/// took it for ended.
fn runs_beside_its_successor(context: &RuleContext, process: &ProcessTrack) -> bool {
    let uid = process.info.facts.as_ref().and_then(|facts| facts.uid);
    let is_successor = |other: &ProcessTrack| {
        program_name(&other.info.command) == program_name(&process.info.command)
            && other.key.start_ticks > process.key.start_ticks
            && !other.lost_parent()
            && other.belongs_to(uid)
            && other.positions.iter().any(|position| process.positions.contains(position))
    };
    process.lost_parent_late() && process.parent == Some(1) && context.processes.iter().any(is_successor)
}

/// Whether a process that lost its launcher has left its Slurm job: it computes on GPUs that Slurm has not allocated, or shares one with a
/// later Slurm job.
fn has_no_allocation(context: &RuleContext, process: &ProcessTrack) -> bool {
    let Some(allocated) = context.host.slurm_allocated_gpus() else { return false };
    let is_free =
        |position: &usize| context.host.gpu_info(*position).is_some_and(|info| !allocated.contains(&info.index));
    let is_later_job = |other: &ProcessTrack| {
        matches!(other.info.job, JobKey::Slurm { .. })
            && other.info.job != process.info.job
            && other.key.start_ticks > process.key.start_ticks
            && other.positions.iter().any(|position| process.positions.contains(position))
    };
    // A Slurm job that still runs may share the GPU.
    let runs = |job: &JobKey| {
        let JobKey::Slurm { job, .. } = job else { return false };
        context.host.slurm_jobs().unwrap_or_default().iter().any(|known| known.job == *job)
    };
    process.lost_parent_late()
        && process.parent == Some(1)
        && !process.positions.is_empty()
        && !runs(&process.info.job)
        && (process.positions.iter().all(is_free) || context.processes.iter().any(is_later_job))
}

/// Whether a process listens for the program that started it, and nobody is connected any more: a simulator outlives its trainer.
fn serves_nobody(process: &ProcessTrack) -> bool {
    process.lost_parent_late() && process.listens() && process.shows_io() && !process.is_connected
}

/// How long an orphan has written no log before it counts as stuck whatever its GPUs do, in seconds.
const ORPHAN_SILENT: f64 = 1200.0;

/// Whether a process stopped writing its log after it lost its launcher: nobody sees what it computes.
fn is_silent(context: &RuleContext, process: &ProcessTrack) -> bool {
    let t = context.sample_time.t;
    let is_silent =
        |log: &LogTrack| log.is_growing(t) == Some(false) && log.age(t).is_some_and(|age| age >= ORPHAN_SILENT);
    process.lost_parent_late() && process.log.as_deref().is_some_and(is_silent)
}

fn is_shell(name: &str) -> bool {
    matches!(name.trim_start_matches('-'), "bash" | "sh" | "zsh" | "fish" | "dash" | "tcsh" | "ksh")
}

fn orphan(context: &RuleContext, conditions: &mut Conditions, job: &JobKey, members: &[&ProcessTrack]) {
    let escalation = Escalation::one(Severity::Warn, context.limits.orphan_holding_gpu.warn_after);
    let evaluation = Evaluation::new(escalation, Confidence::Likely, 60.0);
    conditions.met(RuleId::OrphanHoldingGpu, &FindingTarget::Job(job.clone()), evaluation, |lasted, _| {
        let is_busy = members.iter().flat_map(|process| &process.positions).any(|position| {
            context.gpus.get(*position).is_some_and(|gpu| gpu.utilization > Some(5) && gpu.spin_run.is_none())
        });
        let since = members.iter().filter_map(|process| process.log.as_deref()?.age(context.sample_time.t));
        let of_notebook = members.iter().all(|process| was_left_by_its_notebook(context, process));
        let what = match since.reduce(f64::min).filter(|_| is_busy) {
            _ if is_busy && of_notebook => "computes for a notebook whose kernel is gone".to_owned(),
            _ if is_busy && members.iter().all(|process| runs_beside_its_successor(context, process)) => {
                "computes beside a later run of the same program".to_owned()
            }
            _ if is_busy && members.iter().all(|process| has_no_allocation(context, process)) => {
                "computes outside of its allocation of Slurm".to_owned()
            }
            Some(silent) => format!("has written no log for {}, keeps its GPUs busy", duration(silent)),
            None if is_busy && members.iter().all(|process| serves_nobody(process)) => {
                format!("has served nobody for {}, keeps its GPUs busy", duration(lasted))
            }
            None => format!("has done nothing on its GPUs for {}", duration(lasted)),
        };
        let sentence = format!(
            "{} lost its parent, {what} and holds {}",
            format_members(job, members),
            format_held_memory(members)
        );
        let pids: Vec<String> = members.iter().map(|process| process.key.pid.to_string()).collect();
        process_details(context, job, members, sentence, format!("kill {}", pids.join(" ")))
    });
}

/// A process has left nothing behind if the memory in use after its end is at most this many times that before its start.
const DESKTOP_GROWTH: f64 = 1.1;

fn ghost(context: &RuleContext, conditions: &mut Conditions, (position, gpu): (usize, &GpuTrack), known: u64) {
    let limits = &context.limits.ghost_memory;
    let target = FindingTarget::Gpu(gpu.identity.clone());
    let reading = context.host.gpus().nth(position).map(|(_, reading)| reading);
    let has_list = reading.is_some_and(|reading| reading.processes_unknown != Some(true));
    let (Some(used), Some(total), true) = (gpu.used_bytes, gpu.total_bytes, gpu.is_readable && has_list) else {
        conditions.unknown(RuleId::GhostMemory, &target);
        return;
    };
    if gpu.is_mig_parent || gpu.is_instance || gpu.is_unified {
        return;
    }
    // Before R510 the driver includes its reserved memory in the used memory: 1 GiB is assumed.
    let reserved = gpu.reserved_bytes.unwrap_or(1 << 30);
    let unaccounted = used.saturating_sub(reserved).saturating_sub(known);
    let least = (limits.memory * 1_048_576.0).max(limits.share / 100.0 * total as f64);
    let is_busy = gpu.utilization.is_some_and(|percent| f64::from(percent) >= limits.utilization);
    // Nearly every GPU stops here. A GPU that works for no process is reported with any amount of memory.
    if (unaccounted as f64) <= least && !(is_busy && known == 0 && gpu.used_bytes > gpu.reserved_bytes) {
        return;
    }
    let on_it = context.host.processes().filter(|process| process.usage_on(position).is_some());
    let on_it: Vec<&Process> = on_it.collect();
    let on_it = || on_it.iter().copied();
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
    let is_contained = matches!(context.scope(), Some(Scope::Container(_)));
    let has_listed_any = context.host_track.used_at.is_some();
    let severity = match (hidden, gone) {
        _ if is_contained => Severity::Info,
        (Some(_), None) => Severity::Info,
        // A GPU that works belongs to a running program, unlike one that spins. Under WSL the driver lists no process on any GPU.
        (None, None) if is_busy && gpu.draws_power_of_work() && !has_listed_any => Severity::Info,
        (_, _) if is_busy && visible().next().is_none() => Severity::Crit,
        (_, Some(_)) => Severity::Warn,
        // Contexts and libraries of visible processes use memory that the driver does not count as theirs.
        (None, None) if visible().next().is_some() => return,
        // A desktop that the driver does not list holds no more than before.
        (None, None) if gpu.used_alone_bytes.is_some_and(|alone| used as f64 <= DESKTOP_GROWTH * alone as f64) => {
            Severity::Info
        }
        // Memory that an ended process did not release.
        (None, None) if gpu.lost_process => Severity::Warn,
        (None, None) => Severity::Info,
    };
    let confidence = if hidden.is_some() { Confidence::Suspected } else { Confidence::Likely };
    let evaluation = Evaluation::new(Escalation::one(severity, limits.after), confidence, 30.0);
    let evaluation = Evaluation { at_least: true, ..evaluation };
    conditions.met(RuleId::GhostMemory, &target, evaluation, |lasted, _| {
        let holder = match (gone, hidden) {
            (Some(process), _) => format!("pid {} is gone but its memory was not released", process.key.pid),
            (None, Some(_)) => "held by a hidden process".to_owned(),
            (None, None) => "the driver lists no process for it".to_owned(),
        };
        let busy = match gpu.utilization {
            Some(percent) if is_busy => format!(" at {percent} % utilisation"),
            _ => String::new(),
        };
        let sentence = format!(
            "{}: no visible process has accounted for {} of {} for {}{busy}: {holder}",
            context.format_gpus([position]),
            gibibytes(unaccounted),
            gibibytes(total),
            duration(lasted),
        );
        context
            .gpu_details(position, sentence, format!("sudo fuser -v /dev/nvidia{}", gpu.index))
            .with_figures(format!("{} of {}", gibibytes(unaccounted), gibibytes(total)))
    });
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;
