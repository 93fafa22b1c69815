//! What the driver reports, or that it does not: probe-blocked, gpu-lost, gpu-needs-action, xid-seen, driver-mismatch.

use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::evaluation::{Escalation, Evaluation, FindingTarget, Run};
use crate::diagnosis::rule::RuleInfo;
use crate::diagnosis::rule_context::{RuleContext, duration, host_details};
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::wire::{DriverErrorKind, RecoveryAction, Scope};

pub(in crate::diagnosis) const PROBE_BLOCKED: RuleInfo = RuleInfo {
    word: "probe-blocked",
    title: "the host answers, its driver does not",
    fires: "A call into NVML has not come back for 15 s (warns), for 60 s (critical), while the host's other readings go on.",
    means: "The driver or a GPU hangs; `nvidia-smi` hangs there as well. Readings of its GPUs are old.",
    next: "`dmesg` (look for Xid and for hung tasks). Often only a reboot helps.",
    not: "the first call after boot without persistence mode, which takes seconds",
    limits: "gpufleet never starts a second probe beside one that hangs, so it cannot say more.",
    source: "gpufleet; nvmlInit can block in the kernel",
};

pub(in crate::diagnosis) const GPU_LOST: RuleInfo = RuleInfo {
    word: "gpu-lost",
    title: "a GPU is gone",
    fires: "In 2 readings in a row the driver says that the GPU is lost or must be reset, or there are fewer GPUs than \
            before, or than NVIDIA devices on the bus.",
    means: "It fell off the bus (Xid 79), or failed. What ran on it is lost.",
    next: "`dmesg`; drain the host, `nvidia-smi -r`, or power it off and on. If it comes again: the board, its slot, or power.",
    not: "a single failed reading, a GPU that an administrator took away from the driver",
    limits: "Inside a container or a Slurm job only the GPUs of that are visible, and none is missed.",
    source: "nvml.h GPU_IS_LOST (15), RESET_REQUIRED (16); NVIDIA Xid catalogue",
};

pub(in crate::diagnosis) const NEEDS_ACTION: RuleInfo = RuleInfo {
    word: "gpu-needs-action",
    title: "the driver asks for a person",
    fires: "NVML's recovery action is not NONE: to drain (warns), to reset the GPU or to reboot (critical).",
    means: "An error was contained, and the GPU stays limited until this is done.",
    next: "What it asks for: see the sentence.",
    not: "an error that the driver has dealt with by itself",
    limits: "Told by drivers from R560 on.",
    source: "nvml.h NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
};

pub(in crate::diagnosis) const XID: RuleInfo = RuleInfo {
    word: "xid-seen",
    title: "the driver reported an error (Xid)",
    fires: "Critical: 48 64 74 79 95 119 120 140. A warning: 94 63 62 109. Mentioned: the others, such as 13 31 43 45 68, \
            which a program usually causes itself. The same Xid on the same GPU is one finding for 10 min, and 45 folds \
            into another.",
    means: "48, 63, 64, 94, 95: memory errors; 74: NVLink; 79: fell off the bus; 119, 120: the GPU's own processor hangs; \
            13, 31: a fault in a program.",
    next: "`dmesg | grep Xid` has the details; NVIDIA's Xid catalogue says what to do for each number.",
    not: "an error of the past: only what happens while gpufleet looks is told",
    limits: "Events need a driver that offers them to ordinary accounts.",
    source: "NVIDIA Xid catalogue",
};

pub(in crate::diagnosis) const MISMATCH: RuleInfo = RuleInfo {
    word: "driver-mismatch",
    title: "the driver's library and its kernel module differ",
    fires: "NVML answers LIB_RM_VERSION_MISMATCH.",
    means: "The driver was updated under a running system: nothing new can start on the GPUs, what runs goes on.",
    next: "Reboot, or unload and load the nvidia modules when nothing uses the GPUs.",
    not: "a missing driver, or one that does not answer",
    limits: "None: the driver says so itself.",
    source: "nvml.h NVML_ERROR_LIB_RM_VERSION_MISMATCH (18)",
};

/// Calls take this long at times, in seconds.
const SLOW: f32 = 5.0;
/// A driver that has never answered may still be starting, for this many seconds.
const FIRST_INIT: f64 = 5.0;

pub(in crate::diagnosis) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    let inventory = context.host.inventory.as_ref();
    let of_inventory = inventory.and_then(|inventory| inventory.error.as_ref());
    let of_snapshot = context.host.snapshot.as_ref().and_then(|snapshot| snapshot.driver_error.as_ref());
    let kinds = [of_snapshot, of_inventory].map(|error| error.map(|error| error.kind));
    let has = |kind: DriverErrorKind| kinds.contains(&Some(kind));

    blocked(context, conditions, has(DriverErrorKind::Blocked), inventory.is_none());
    if has(DriverErrorKind::VersionMismatch) {
        let evaluation = Evaluation::new(Escalation::one(Severity::Crit, 0.0), Confidence::Certain, 0.0);
        conditions.met(
            RuleId::DriverMismatch,
            &FindingTarget::Host,
            Evaluation { at_least: true, ..evaluation },
            |_, _| {
                let sentence =
                    "the NVIDIA library and the kernel module differ in version: nothing new can start on the GPUs";
                host_details(sentence.to_owned(), "reboot, or reload the nvidia modules".to_owned())
            },
        );
    }
    lost(context, conditions, has(DriverErrorKind::GpuLost) || has(DriverErrorKind::ResetRequired));
    needs_action(context, conditions);
    xids(context, conditions);
}

fn blocked(context: &RuleContext, conditions: &mut Conditions, is_blocked: bool, is_waiting: bool) {
    let limits = &context.limits.probe_blocked;
    let hanging =
        || context.host.gpus().enumerate().filter_map(|(position, (_, gpu))| Some((position, gpu.blocked_seconds?)));
    let longest = hanging().map(|(_, seconds)| seconds).fold(0.0_f32, f32::max);
    let waits =
        is_waiting && context.host_track.waiting_since.is_some_and(|since| context.sample_time.t - since >= FIRST_INIT);
    if longest < SLOW && !is_blocked && !waits {
        return;
    }
    let since = context.sample_time.t - f64::from(longest);
    let escalation = Escalation::two((Severity::Warn, limits.warn_after), (Severity::Crit, limits.crit_after));
    let mut evaluation = Evaluation::new(escalation, Confidence::Certain, 5.0);
    if longest >= SLOW {
        evaluation = evaluation.since(Run { since, covered: f64::from(longest) });
    } else if let (true, Some(since)) = (waits, context.host_track.waiting_since) {
        evaluation = evaluation.since(Run { since, covered: context.sample_time.t - since });
    }
    conditions.met(RuleId::ProbeBlocked, &FindingTarget::Host, evaluation, |lasted, _| {
        let positions: Vec<usize> =
            hanging().filter(|(_, seconds)| *seconds >= SLOW).map(|(position, _)| position).collect();
        let which = if positions.is_empty() {
            "the driver".to_owned()
        } else {
            format!("{} of the driver", context.format_gpus(positions.iter().copied()))
        };
        let sentence =
            format!("a call to {which} has not come back for {}: readings of GPUs stand still", duration(lasted));
        let mut words = host_details(sentence, "dmesg | grep -e Xid -e NVRM -e 'blocked for'".to_owned());
        words.gpus = context.finding_gpus(positions);
        words
    });
}

fn lost(context: &RuleContext, conditions: &mut Conditions, is_driver_lost: bool) {
    let needed = context.limits.gpu_lost.samples as u32;
    let crit = || Evaluation::new(Escalation::one(Severity::Crit, 0.0), Confidence::Certain, 30.0);
    for (position, gpu) in context.gpus.iter().enumerate().filter(|(_, gpu)| gpu.lost_samples > 0) {
        let target = FindingTarget::Gpu(gpu.identity.clone());
        if gpu.lost_samples < needed {
            conditions.unknown(RuleId::GpuLost, &target);
            continue;
        }
        conditions.met(RuleId::GpuLost, &target, crit(), |_, _| {
            let what = match gpu.error {
                Some(DriverErrorKind::ResetRequired) => "must be reset",
                _ => "has fallen off the bus",
            };
            let sentence = format!("{} {what}: what ran on it is lost", context.format_gpus([position]));
            context.gpu_details(position, sentence, "dmesg | grep Xid".to_owned())
        });
    }
    let is_whole =
        matches!(context.host.hello.as_ref().and_then(|hello| hello.scope.as_ref()), None | Some(Scope::Host));
    let present = context.gpus.iter().filter(|gpu| !gpu.is_instance).count();
    if is_driver_lost {
        conditions.met(RuleId::GpuLost, &FindingTarget::Host, crit(), |_, _| {
            let sentence = "the driver cannot be used: a GPU has fallen off the bus or must be reset";
            host_details(sentence.to_owned(), "dmesg | grep Xid".to_owned())
        });
        return;
    }
    if context.host_track.missing_gpu_samples == 0 || !is_whole {
        return;
    }
    if context.host_track.missing_gpu_samples < needed {
        conditions.unknown_where(|rule, _| rule == RuleId::GpuLost);
        return;
    }
    let expected = context.host_track.expected_gpus;
    conditions.met(RuleId::GpuLost, &FindingTarget::Host, crit(), |_, _| {
        let sentence = format!(
            "{present} GPUs are left of {expected}: {} fell out of the driver",
            expected.saturating_sub(present)
        );
        host_details(sentence, "dmesg | grep Xid; lspci -d 10de:".to_owned())
    });
}

fn needs_action(context: &RuleContext, conditions: &mut Conditions) {
    for (position, gpu) in context.gpus.iter().enumerate() {
        let action = context.host.gpu_health(position).and_then(|health| health.recovery_action);
        let Some(action) = action.filter(|action| *action != RecoveryAction::None) else { continue };
        let severity = match action {
            RecoveryAction::GpuReset | RecoveryAction::NodeReboot => Severity::Crit,
            _ => Severity::Warn,
        };
        let evaluation = Evaluation::new(Escalation::one(severity, 0.0), Confidence::Certain, 0.0);
        let target = FindingTarget::Gpu(gpu.identity.clone());
        conditions.met(RuleId::GpuNeedsAction, &target, Evaluation { at_least: true, ..evaluation }, |_, _| {
            let sentence = format!("{}: the driver asks to {}", context.format_gpus([position]), action.description());
            context.gpu_details(position, sentence, action.description().to_owned())
        });
    }
}

/// How long an Xid stays in the list, in seconds.
const XID_RETENTION: f64 = 3600.0;

fn severity_of(xid: u64) -> Severity {
    match xid {
        48 | 64 | 74 | 79 | 95 | 119 | 120 | 140 => Severity::Crit,
        94 | 63 | 62 | 109 => Severity::Warn,
        _ => Severity::Info,
    }
}

fn xids(context: &RuleContext, conditions: &mut Conditions) {
    let t = context.sample_time.t;
    let merge = context.limits.xid_seen.merge;
    let recent = || context.host_track.xids.iter().filter(move |(at, ..)| t - at <= merge);
    let mut told: Vec<(&str, u64)> = Vec::new();
    for (_, identity, xid) in context.host_track.xids.iter().rev().take_while(|(at, ..)| (t - at).abs() < 1e-6) {
        let folds = *xid == 45 && recent().any(|(_, other, number)| other == identity && *number != 45);
        if folds || told.contains(&(identity.as_str(), *xid)) {
            continue;
        }
        told.push((identity, *xid));
        let severity = severity_of(*xid);
        let stay = if severity == Severity::Info { merge } else { XID_RETENTION };
        conditions.event(RuleId::XidSeen, &FindingTarget::Xid(identity.clone(), *xid), severity, stay, || {
            let position = context.gpus.iter().position(|gpu| gpu.identity == *identity);
            let count = recent().filter(|(_, other, number)| other == identity && number == xid).count();
            let times = if count > 1 { format!(" {count} times") } else { String::new() };
            let gpu = position.map_or_else(|| "a GPU".to_owned(), |position| context.format_gpus([position]));
            let pids: Vec<String> = context
                .processes
                .iter()
                .filter(|process| position.is_some_and(|position| process.positions.contains(&position)))
                .map(|process| process.key.pid.to_string())
                .collect();
            let on_it = match pids.as_slice() {
                [] => String::new(),
                [pid] => format!("; pid {pid} is on it"),
                pids => format!("; pids {} are on it", pids.join(" ")),
            };
            let sentence = format!("{gpu} reported Xid {xid}{times} ({}){on_it}", describe_xid(*xid));
            let next = "dmesg | grep Xid".to_owned();
            match position {
                Some(position) => context.gpu_details(position, sentence, next),
                None => host_details(sentence, next),
            }
        });
    }
}

/// What an Xid says, in words (NVIDIA's catalogue).
fn describe_xid(xid: u64) -> &'static str {
    match xid {
        13 => "a program's error in its kernels",
        31 => "a program touched memory that is not its own",
        43 => "a program's channel was reset",
        45 => "cleanup after an earlier error",
        48 => "an uncorrectable memory error",
        62 => "its microcontroller halted",
        63 => "a memory row is to be replaced",
        64 => "a memory row could not be replaced",
        68 => "an error of the video decoder",
        74 => "an NVLink error",
        79 => "it fell off the bus",
        94 => "a contained memory error",
        95 => "an uncontained memory error",
        109 => "a context switch timed out",
        119 => "its system processor does not answer",
        120 => "an error of its system processor",
        140 => "an unrecovered memory error",
        _ => "see NVIDIA's catalogue",
    }
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
