//! Errors that the driver reports, and a driver that does not answer: probe-blocked, gpu-lost, gpu-needs-action,
//! xid-seen, driver-mismatch.

use crate::diagnosis::condition::{Escalation, Evaluation, Run};
use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::finding::FindingTarget;
use crate::diagnosis::rule_context::{RuleContext, duration, host_details};
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::wire::{DriverErrorKind, RecoveryAction, SafeText, Scope};

/// A call may take this long, in seconds.
const SLOW: f32 = 5.0;
/// The first initialisation of the driver may take this long, in seconds.
const FIRST_INIT: f64 = 5.0;

/// How long an administrator may take to update the driver of an unused host, in seconds.
const UPDATE_SECONDS: f64 = 600.0;

/// How long the driver must answer questions about a GPU with an unknown error until that is reported, in seconds.
const FAILING_SECONDS: f64 = 120.0;

pub(super) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    let inventory = context.host.inventory.as_ref();
    let of_inventory = inventory.and_then(|inventory| inventory.error.as_ref());
    let of_snapshot = context.host.snapshot.as_ref().and_then(|snapshot| snapshot.driver_error.as_ref());
    let kinds = [of_snapshot, of_inventory].map(|error| error.map(|error| error.kind));
    let has = |kind: DriverErrorKind| kinds.contains(&Some(kind));

    blocked(context, conditions, has(DriverErrorKind::Blocked), inventory.is_none());
    if has(DriverErrorKind::VersionMismatch) {
        // On a host that nobody uses an administrator updates the driver and reloads it.
        let t = context.sample_time.t;
        let is_used = context.host_track.used_at.is_some_and(|at| t - at <= UPDATE_SECONDS);
        // A mismatch that is older than the first sample is no update in progress.
        let is_used = is_used || context.host_track.known_gpus.is_empty();
        let escalation = if is_used {
            Escalation::one(Severity::Crit, 0.0)
        } else {
            Escalation::two((Severity::Info, 0.0), (Severity::Crit, UPDATE_SECONDS))
        };
        let evaluation = Evaluation::new(escalation, Confidence::Certain, 0.0);
        conditions.met(
            RuleId::DriverMismatch,
            &FindingTarget::Host,
            Evaluation { at_least: true, ..evaluation },
            |_, _| {
                let sentence =
                    "the NVIDIA library and the kernel module have different versions: no new program can use the GPUs";
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
            format!("the driver for {}", context.format_gpus(positions.iter().copied()))
        };
        let sentence =
            format!("a call to {which} has not returned for {}: GPU readings are not updated", duration(lasted));
        let mut details = host_details(sentence, "dmesg | grep -e Xid -e NVRM -e 'blocked for'".to_owned());
        details.gpus = context.finding_gpus(positions);
        details
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
                Some(DriverErrorKind::ResetRequired) => "needs a reset",
                _ => "has fallen off the bus",
            };
            let sentence = format!("{} {what}: work that ran on it is lost", context.format_gpus([position]));
            context.gpu_details(position, sentence, "dmesg | grep Xid".to_owned()).with_figures(what)
        });
    }
    // If no GPU answers on a host that nobody uses, an administrator may update the driver.
    let is_update = context.gpus.iter().all(|gpu| gpu.failing_since.is_some()) && context.processes.is_empty();
    let after = if is_update { UPDATE_SECONDS } else { FAILING_SECONDS };
    for (position, gpu) in context.gpus.iter().enumerate() {
        let Some(since) = gpu.failing_since else { continue };
        let evaluation = Evaluation::new(Escalation::one(Severity::Warn, after), Confidence::Likely, 30.0);
        let lasted = context.sample_time.t - since;
        let evaluation = evaluation.since(Run { since, covered: lasted });
        let target = FindingTarget::Gpu(gpu.identity.clone());
        conditions.met(RuleId::GpuLost, &target, evaluation, |lasted, _| {
            let sentence = format!(
                "the driver has answered each question about {} with an error for {}",
                context.format_gpus([position]),
                duration(lasted),
            );
            context.gpu_details(position, sentence, "dmesg | grep -e Xid -e NVRM".to_owned()).with_figures("an error")
        });
    }
    let is_whole = matches!(context.scope(), None | Some(Scope::Host));
    let present = context.gpus.iter().filter(|gpu| !gpu.is_instance).count();
    if is_driver_lost {
        conditions.met(RuleId::GpuLost, &FindingTarget::Host, crit(), |_, _| {
            let sentence = "the driver cannot be used: a GPU has fallen off the bus or needs a reset";
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
        let missing = expected.saturating_sub(present);
        let sentence = format!("the driver lists {present} of {expected} GPUs: {missing} disappeared");
        host_details(sentence, "dmesg | grep Xid; lspci -d 10de:".to_owned())
            .with_figures(format!("{present} of {expected} left"))
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
            context.gpu_details(position, sentence, action.description().to_owned()).with_figures(action.description())
        });
    }
}

/// How long an Xid of severity warn or crit is listed, in seconds.
const XID_RETENTION: f64 = 3600.0;

/// By the action that NVIDIA's catalogue asks for at once (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html): a
/// reset or a reboot is critical. Xids 63 and 156, memory or a unit that waits for its replacement, need no more than row-remap says,
/// and Xid 155 also reports links that were switched off on purpose.
fn severity_of(xid: u64) -> Severity {
    match xid {
        46 | 48 | 64 | 74 | 79 | 95 | 110 | 119 | 120 | 136 | 140 | 143 | 158 | 167 | 169 => Severity::Crit,
        54 | 62 | 94 | 109 | 144..=150 | 151 | 157 => Severity::Warn,
        _ => Severity::Info,
    }
}

/// A GPU that reports errors of programs in this many programs, of which not all have one user, may be faulty, unless the other GPUs
/// of the host report them, too.
const SUSPECT_PROGRAMS: usize = 3;

/// Xids that NVIDIA ascribes to the program, first of all (https://docs.nvidia.com/deploy/xid-errors).
const PROGRAM_XIDS: [u64; 3] = [13, 31, 43];

/// The number of programs in which this GPU, and no other one of the host, has reported errors of programs; 0 if there are too
/// few to suspect the GPU.
fn programs_with_errors(context: &RuleContext, gpu: &SafeText) -> usize {
    let of_programs = || context.host_track.xids.iter().filter(|xid| PROGRAM_XIDS.contains(&xid.number));
    let mut programs: Vec<_> =
        of_programs().filter(|xid| xid.gpu == *gpu).filter_map(|xid| xid.program.as_ref()).collect();
    programs.sort_unstable();
    programs.dedup();
    let has_users = programs.iter().any(|(user, _)| programs[0].0 != *user);
    let is_alone = context.gpus.len() > 1 && of_programs().all(|xid| xid.gpu == *gpu);
    if programs.len() >= SUSPECT_PROGRAMS && has_users && is_alone { programs.len() } else { 0 }
}

fn xids(context: &RuleContext, conditions: &mut Conditions) {
    let t = context.sample_time.t;
    let merge = context.limits.xid_seen.merge;
    let recent = || context.host_track.xids.iter().filter(move |xid| t - xid.at <= merge);
    let mut reported: Vec<(&str, u64)> = Vec::new();
    for xid in context.host_track.xids.iter().rev().take_while(|xid| (t - xid.at).abs() < 1e-6) {
        let (identity, number) = (&xid.gpu, xid.number);
        let folds = number == 45 && recent().any(|other| other.gpu == *identity && other.number != 45);
        if folds || reported.contains(&(identity.as_str(), number)) {
            continue;
        }
        reported.push((identity, number));
        let programs = if PROGRAM_XIDS.contains(&number) { programs_with_errors(context, identity) } else { 0 };
        let severity = severity_of(number).max(if programs > 0 { Severity::Warn } else { Severity::Info });
        let stay = if severity == Severity::Info { merge } else { XID_RETENTION };
        conditions.event(RuleId::XidSeen, &FindingTarget::Xid(identity.clone(), number), severity, stay, || {
            let position = context.gpus.iter().position(|gpu| gpu.identity == *identity);
            let count = recent().filter(|other| other.gpu == *identity && other.number == number).count();
            let times = if count > 1 { format!(" {count} times") } else { String::new() };
            let gpu = position.map_or_else(|| "a GPU".to_owned(), |position| context.format_gpus([position]));
            let pids: Vec<String> = context
                .processes
                .iter()
                .filter(|process| position.is_some_and(|position| process.positions.contains(&position)))
                .map(|process| process.key.pid.to_string())
                .collect();
            let users = match pids.as_slice() {
                [] => String::new(),
                [pid] => format!("; used by pid {pid}"),
                pids => format!("; used by pids {}", pids.join(" ")),
            };
            let suspicion = match programs {
                0 => String::new(),
                count => {
                    format!("; {count} programs of different users had such errors on it, and none on the other GPUs")
                }
            };
            let sentence = format!("{gpu} reported Xid {number}{times} ({}){users}{suspicion}", describe_xid(number));
            let next = match programs {
                0 => "dmesg | grep Xid".to_owned(),
                _ => "drain the GPU and run `dcgmi diag -r 3`".to_owned(),
            };
            let details = match position {
                Some(position) => context.gpu_details(position, sentence, next),
                None => host_details(sentence, next),
            };
            details.with_figures(format!("Xid {number}: {}", describe_xid(number)))
        });
    }
}

fn describe_xid(xid: u64) -> &'static str {
    match xid {
        8 | 46 => "GPU stopped processing",
        11 | 32 => "invalid commands from a program or the driver",
        13 => "graphics engine exception, usually a program error",
        31 => "illegal memory access by a program",
        39..=42 | 70..=72 | 75..=77 | 85 | 126..=135 => "copy engine error",
        43 => "channel of a program reset",
        44 => "graphics engine fault during a context switch",
        45 => "cleanup after an earlier error",
        48 => "uncorrectable memory error",
        54 => "auxiliary power not connected",
        62 | 169 => "internal microcontroller halt",
        63 => "memory row remapping pending",
        64 => "memory row remapping failed",
        66 | 67 => "illegal access by the driver",
        68 | 83 | 84 | 88 | 89 | 96..=98 => "video decoder error",
        69 => "graphics engine class error, usually a program error",
        74 | 144..=150 => "NVLink error",
        79 => "GPU fell off the bus",
        82 | 99..=105 => "JPEG decoder error",
        92 => "many corrected memory errors",
        94 => "contained memory error",
        95 => "uncontained memory error",
        109 => "context switch timeout",
        110 => "security fault",
        119 => "GSP timeout",
        120 => "GSP error",
        121 => "corrected errors of the link to the CPU",
        136 => "NVLink training failed",
        137 => "illegal access over NVLink, usually a program error",
        140 => "unrecovered memory error",
        143 => "GPU initialization failed",
        151 => "key rotation failed",
        154 => "recovery action changed",
        155 => "NVLink down",
        156 => "memory or a unit of the GPU retired",
        157 => "memory or a unit of the GPU cannot be retired",
        158 | 167 => "fatal timeout",
        171 => "uncorrectable DRAM error",
        172 => "uncorrectable SRAM error",
        _ => "see NVIDIA's catalogue",
    }
}

#[cfg(test)]
mod tests {
    use crate::diagnosis::Severity;
    use crate::diagnosis::testing::{RuleTester, TestSample};
    use crate::fleet::fixture::{gpus, process};
    use crate::wire::{
        DeviceError, DriverError, DriverErrorKind, GpuHealth, GpuHealthColumns, GpuReading, RecoveryAction, Snapshot,
        XidEvent,
    };

    fn quiet(tester: &mut RuleTester, count: u16) -> TestSample {
        TestSample { gpus: (0..count).map(|_| tester.gpu(0, 70.0, 0, 0)).collect(), processes: vec![] }
    }

    fn broken(kind: DriverErrorKind) -> GpuReading {
        GpuReading { error: Some(DeviceError { kind, code: None, message: "".into() }), ..GpuReading::default() }
    }

    #[test]
    fn a_blocked_call_warns_then_is_critical() {
        let mut tester = RuleTester::new(gpus(0..2));
        tester.interval = 2.0;
        let hanging = |tester: &mut RuleTester, t: f64| {
            let mut test_sample = quiet(tester, 2);
            test_sample.gpus[1] = GpuReading { blocked_seconds: Some(t as f32), ..GpuReading::default() };
            test_sample
        };
        tester.run(6.0, hanging);
        assert_eq!(tester.fired(), [], "a first call of 4 s");
        tester.run(2.0, |tester, _| quiet(tester, 2));
        tester.run(20.0, hanging);
        assert_eq!(tester.firing(), [("probe-blocked", "warn")]);
        tester.run(60.0, |tester, t| hanging(tester, 20.0 + t));
        assert_eq!(tester.firing(), [("probe-blocked", "crit")]);
        tester.run(10.0, |tester, _| quiet(tester, 2));
        assert_eq!(tester.firing(), []);
    }

    #[test]
    fn a_lost_gpu_needs_two_samples() {
        let mut tester = RuleTester::new(gpus(0..2));
        let lost = |tester: &mut RuleTester, _: f64| {
            let mut test_sample = quiet(tester, 2);
            test_sample.gpus[1] = broken(DriverErrorKind::GpuLost);
            test_sample
        };
        tester.run(10.0, lost);
        tester.run(10.0, |tester, _| quiet(tester, 2));
        assert_eq!(tester.fired(), [], "one failed reading");
        tester.run(20.0, lost);
        assert_eq!(tester.firing(), [("gpu-lost", "crit")]);
    }

    #[test]
    fn a_gpu_missing_from_the_inventory_is_lost() {
        for on_bus in [None, Some(8)] {
            let mut tester = RuleTester::new(gpus(0..8));
            let edit = move |snapshot: &mut Snapshot, _: f64| snapshot.host.nvidia_pci_devices = on_bus;
            tester.run_edited(60.0, |tester, _| quiet(tester, 8), edit);
            tester.inventory(0, gpus(0..7));
            tester.run_edited(10.0, |tester, _| quiet(tester, 7), edit);
            assert_eq!(tester.fired(), []);
            tester.run_edited(10.0, |tester, _| quiet(tester, 7), edit);
            assert_eq!(tester.firing(), [("gpu-lost", "crit")]);
            assert_eq!(tester.finding("gpu-lost").sentence, "the driver lists 7 of 8 GPUs: 1 disappeared");
        }
        // A GPU that an administrator detached is not counted on the bus either.
        let mut tester = RuleTester::new(gpus(0..8));
        tester.run_edited(60.0, |tester, _| quiet(tester, 8), |snapshot, _| snapshot.host.nvidia_pci_devices = Some(8));
        tester.inventory(0, gpus(0..7));
        tester.run_edited(60.0, |tester, _| quiet(tester, 7), |snapshot, _| snapshot.host.nvidia_pci_devices = Some(7));
        assert_eq!(tester.fired(), []);
    }

    #[test]
    fn a_driver_mismatch_inhibits_other_findings() {
        let mismatch = |snapshot: &mut Snapshot, _: f64| {
            let kind = DriverErrorKind::VersionMismatch;
            snapshot.driver_error = Some(DriverError { kind, code: Some(18), message: "".into() });
        };
        let mut tester = RuleTester::new(gpus(0..2));
        tester.run(60.0, |tester, _| TestSample {
            processes: vec![process(7, "python train.py", &[(0, 40)])],
            ..quiet(tester, 2)
        });
        tester.run_edited(60.0, |_, _| TestSample::default(), mismatch);
        assert_eq!(tester.finding("driver-mismatch").severity.word(), "crit");
        assert_eq!(tester.notified(), 1);
        // An administrator updates the driver of a host that nobody uses.
        let mut tester = RuleTester::new(gpus(0..2));
        tester.run_edited(300.0, |_, _| TestSample::default(), mismatch);
        assert_eq!((tester.firing(), tester.notified()), (vec![("driver-mismatch", "info")], 0));
        tester.run_edited(400.0, |_, _| TestSample::default(), mismatch);
        assert_eq!(tester.firing(), [("driver-mismatch", "crit")]);
    }

    #[test]
    fn the_recovery_action_decides_the_severity() {
        for (action, fired) in [
            (RecoveryAction::None, vec![]),
            (RecoveryAction::DrainP2p, vec![("gpu-needs-action", "warn")]),
            (RecoveryAction::GpuReset, vec![("gpu-needs-action", "crit")]),
        ] {
            let mut tester = RuleTester::new(gpus(0..1));
            let health = GpuHealth { recovery_action: Some(action), ..GpuHealth::default() };
            tester.run_edited(
                20.0,
                |tester, _| quiet(tester, 1),
                move |snapshot, _| {
                    snapshot.health = GpuHealthColumns::from_rows(std::slice::from_ref(&health));
                },
            );
            assert_eq!(tester.firing(), fired);
        }
    }

    fn xids(numbers: &'static [u64]) -> impl Fn(&mut Snapshot, f64) {
        move |snapshot, _| {
            let event = |xid: &u64| XidEvent { gpu: Some(0), xid: *xid, monotonic_seconds: snapshot.monotonic_seconds };
            snapshot.xid_events = numbers.iter().map(event).collect();
        }
    }

    #[test]
    fn repeated_xids_are_one_finding() {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 1.2;
        let test_sample = |tester: &mut RuleTester, _: f64| TestSample {
            processes: vec![process(7, "python a.py", &[(0, 4)])],
            ..quiet(tester, 1)
        };
        tester.run_edited(60.0, test_sample, xids(&[31]));
        assert_eq!(tester.fired(), [("xid-seen", "info")]);
        let sentence = tester.finding("xid-seen").sentence.to_string();
        assert_eq!(sentence, "GPU 0 reported Xid 31 50 times (illegal memory access by a program); used by pid 7");
        tester.interval = 10.0;
        tester.run(620.0, test_sample);
        assert_eq!(tester.firing(), []);
    }

    #[test]
    fn errors_of_three_programs_on_one_gpu_warn_unless_another_gpu_reports_them_too() {
        let run_with = |ages: f64, programs: &[(&str, u16)]| {
            let mut tester = RuleTester::new(gpus(0..2));
            for (pid, (user, gpu)) in (7..).zip(programs) {
                let mut program = process(pid, &format!("python {user}{pid}.py"), &[(*gpu, 4)]);
                program.facts.user = Some((*user).into());
                let sample =
                    |tester: &mut RuleTester| TestSample { processes: vec![program.clone()], ..quiet(tester, 2) };
                tester.run(900.0, |tester, _| sample(tester));
                tester.run_edited(
                    10.0,
                    |tester, _| sample(tester),
                    |snapshot, _| {
                        let seconds = snapshot.monotonic_seconds;
                        snapshot.xid_events = vec![XidEvent { gpu: Some(*gpu), xid: 13, monotonic_seconds: seconds }];
                        snapshot.processes.age_seconds = vec![Some(ages)];
                    },
                );
            }
            let finding = tester.finding("xid-seen");
            (finding.severity, finding.sentence.to_string())
        };
        let run = |programs: &[(&str, u16)]| run_with(900.0, programs);
        let (severity, sentence) = run(&[("ann", 1), ("bob", 1), ("cid", 1)]);
        assert_eq!(severity, Severity::Warn);
        assert_eq!(
            sentence,
            "GPU 1 reported Xid 13 (graphics engine exception, usually a program error); used by pid 9; 3 programs of \
             different users had such errors on it, and none on the other GPUs"
        );
        let exercises = run_with(20.0, &[("ann", 1), ("bob", 1), ("cid", 1)]);
        assert_eq!(exercises.0, Severity::Info, "they failed soon after their start");
        assert_eq!(run(&[("ann", 1), ("bob", 1)]).0, Severity::Info, "two programs");
        assert_eq!(run(&[("ann", 1), ("ann", 1), ("ann", 1)]).0, Severity::Info, "one user who tries something");
        assert_eq!(run(&[("dan", 0), ("ann", 1), ("bob", 1), ("cid", 1)]).0, Severity::Info, "also on GPU 0");
    }

    #[test]
    fn a_gpu_about_which_the_driver_answers_with_an_error_warns_after_two_minutes() {
        let run = |failing: u16, used: bool, seconds: f64| {
            let mut tester = RuleTester::new(gpus(0..2));
            let processes = if used { vec![process(7, "python a.py", &[(0, 4)])] } else { vec![] };
            tester.run(60.0, |tester, _| TestSample { processes: processes.clone(), ..quiet(tester, 2) });
            tester.run(seconds, |tester, _| {
                let mut sample = TestSample { processes: processes.clone(), ..quiet(tester, 2) };
                (0..failing).for_each(|gpu| sample.gpus[1 - usize::from(gpu)] = broken(DriverErrorKind::Unknown));
                sample
            });
            tester.firing().into_iter().filter(|(rule, _)| *rule == "gpu-lost").count()
        };
        assert_eq!((run(1, true, 100.0), run(1, true, 140.0)), (0, 1));
        assert_eq!((run(2, false, 400.0), run(2, false, 640.0)), (0, 2), "an administrator may update the driver");
        assert_eq!(run(2, true, 140.0), 2, "not while a program uses them");
    }

    #[test]
    fn xids_have_the_severity_of_their_action() {
        for (xid, severity, what) in [
            (46, "crit", "GPU stopped processing"),
            (143, "crit", "GPU initialization failed"),
            (54, "warn", "auxiliary power not connected"),
            (8, "info", "GPU stopped processing"),
            (156, "info", "memory or a unit of the GPU retired"),
            (999, "info", "see NVIDIA's catalogue"),
        ] {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.run_edited(
                10.0,
                |tester, _| quiet(tester, 1),
                |snapshot, _| {
                    snapshot.xid_events = vec![XidEvent { gpu: Some(0), xid, monotonic_seconds: 0.0 }];
                },
            );
            assert_eq!(tester.fired(), [("xid-seen", severity)]);
            assert_eq!(tester.finding("xid-seen").sentence.as_str(), format!("GPU 0 reported Xid {xid} ({what})"));
        }
    }

    #[test]
    fn xid_45_is_not_reported_beside_another_xid() {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run_edited(10.0, |tester, _| quiet(tester, 1), xids(&[79, 45]));
        assert_eq!(tester.fired(), [("xid-seen", "crit")]);
        assert_eq!(tester.notified(), 1);
    }
}
