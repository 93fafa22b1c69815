//! The evidence of a verdict as lines, and the facts that could not be read, each with its remedy.

use super::activity::{
    GpuActivity, HostWork, StackChange, bytes_text, frame_text, latest_stack, log_moves, stack_change, stacks,
};
use super::evidence::{RankEvidence, RankGpu};
use super::facts::{Absence, Basis, Conclusion, Facts, Sign};
use super::flight_recorder::{DumpAge, RecordedDifference, at_place, operation_text, sides_text};
use super::log_lines::LogSign;
use super::ranks::{number_list, variable};
use super::ras::{CountChange, Mismatch};
use super::verdict::{EvidenceLine, Missing, Outcome, Says};
use crate::wire::{
    ExaminationPart, NO_LOG_FILE, NOT_IN_PROC, NOT_PYTHON, ProcessExamination, RanksAtCount, SafeText, WITHOUT_NCCL,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::mem::{Discriminant, discriminant};

/// Maximum number of lines about mismatches, and about lines of logs.
const MAX_LINES: usize = 4;
/// Maximum number of characters of a line of a log.
const MAX_LOG_CHARACTERS: usize = 160;

/// The evidence, the strongest first.
pub(super) fn lines(facts: &Facts<'_>, conclusion: &Conclusion) -> Vec<EvidenceLine> {
    let mut lines = Vec::new();
    let logs = log_lines(facts, conclusion);
    let ras = ras_lines(facts, conclusion);
    let recorder = recorder_line(facts, conclusion);
    match conclusion.basis {
        Basis::Log => lines.extend(logs.into_iter().chain(recorder).chain(ras)),
        Basis::FlightRecorder => lines.extend(recorder.into_iter().chain(logs).chain(ras)),
        _ => lines.extend(ras.into_iter().chain(logs).chain(recorder)),
    }
    let culprits = &conclusion.positions;
    let shown = if culprits.is_empty() { &[][..] } else { &culprits[..culprits.len().min(MAX_LINES)] };
    for position in shown {
        lines.extend(stack_line(facts, *position));
        lines.extend(process_line(facts, *position));
        lines.extend(gpu_line(facts, &[*position], &format!("GPU of {}", facts.ranks.list[*position].name())));
    }
    let others = facts.others(culprits);
    let whose = if culprits.is_empty() { "all ranks" } else { "the others" };
    lines.extend(stacks_line(facts, &others, whose));
    lines.extend(gpu_line(
        facts,
        &others,
        &if culprits.is_empty() { "GPUs".to_owned() } else { format!("GPUs of {whose}") },
    ));
    lines.extend(links_line(facts, conclusion));
    lines.extend(debugging_lines(facts));
    lines
}

/// Debugging aids of the job itself. gpufleet only names them: a request to the debug server makes all ranks answer, and SIGABRT
/// ends the process.
fn debugging_lines(facts: &Facts<'_>) -> Vec<EvidenceLine> {
    let with = |has: &dyn Fn(&ProcessExamination) -> bool| -> Vec<usize> {
        let ranks = facts.ranks.list.iter().enumerate();
        let offers = ranks.filter(|(_, rank)| {
            let mut processes = rank.evidence.readings.iter().filter_map(|one| one.examination.process.as_deref());
            processes.any(has)
        });
        offers.map(|(position, _)| position).collect()
    };
    let servers = with(&|process| process.has_debug_server).into_iter().map(|position| {
        let rank = &facts.ranks.list[position];
        let text = format!("{} listens on {}: curl localhost:25999/stacks", rank.name(), rank.evidence.host_name);
        line("PyTorch debug server", text, Says::Nothing)
    });
    let mut lines: Vec<EvidenceLine> = servers.take(1).collect();
    let catching = with(&|process| process.has_faulthandler);
    // py-spy shows the stacks without ending the process.
    if !catching.is_empty() && catching.iter().all(|position| latest_stack(facts.rank(*position)).is_none()) {
        let text = format!(
            "{}: SIGABRT prints the Python stacks to standard error, and ends it",
            facts.ranks.names(&catching)
        );
        lines.push(line("faulthandler", text, Says::Nothing));
    }
    lines
}

fn line(source: impl Into<SafeText>, text: impl Into<SafeText>, says: Says) -> EvidenceLine {
    EvidenceLine { source: source.into(), text: text.into(), says }
}

fn of_outcome(outcome: Outcome) -> Says {
    match outcome {
        Outcome::Proven => Says::Proven,
        Outcome::Likely => Says::Likely,
        Outcome::Suspected => Says::Suspected,
        Outcome::WaitsForRank => Says::Works,
        Outcome::NotHung => Says::Moves,
        Outcome::NothingKnown => Says::Nothing,
    }
}

fn ras_lines(facts: &Facts<'_>, conclusion: &Conclusion) -> Vec<EvidenceLine> {
    let Some(ras) = &facts.ras else { return Vec::new() };
    let source = ras.source();
    let strength =
        |otherwise: Says| if conclusion.basis == Basis::Ras { of_outcome(conclusion.outcome) } else { otherwise };
    let mut lines = Vec::new();
    for (_, named, error) in ras.failed().into_iter().take(MAX_LINES) {
        lines.push(line(source.clone(), format!("rank {} has NCCL error {error}", named.rank), strength(Says::Likely)));
    }
    for (_, named, absence) in facts.absent().into_iter().take(MAX_LINES) {
        let words = match absence {
            Absence::Runs => "counts as dead but runs: it was stopped, or the network was cut, for a minute or two",
            Absence::Stopped => "is stopped",
            Absence::Dead => "is dead",
            Absence::Silent => "did not answer in either report",
        };
        let process = match (named.pid, &named.host) {
            (Some(pid), Some(host)) => format!("process {pid} on {host}, rank {},", named.rank),
            _ => format!("rank {}", named.rank),
        };
        let says = if absence == Absence::Runs { Says::Nothing } else { strength(Says::Likely) };
        lines.push(line(source.clone(), format!("{process} {words}"), says));
    }
    let mismatches = ras.mismatches();
    for mismatch in mismatches.iter().take(MAX_LINES) {
        let says = match mismatch.change {
            CountChange::Moved => Says::Moves,
            _ => strength(Says::Likely),
        };
        lines.push(line(source.clone(), mismatch_text(mismatch), says));
    }
    if mismatches.len() > MAX_LINES {
        let text = format!("{} more differences of counts", mismatches.len() - MAX_LINES);
        lines.push(line(source.clone(), text, Says::Nothing));
    }
    if ras.is_changing() {
        lines.push(line(source.clone(), "a communicator is being made or torn down", Says::Nothing));
    }
    if lines.is_empty() {
        let changes = ras.changes();
        let has = |change| changes.iter().any(|(_, one)| *one == change);
        let (text, says) = if has(CountChange::Moved) {
            ("ranks launched operations between the reports", Says::Moves)
        } else if has(CountChange::Unknown) {
            ("no difference of counts; whether they moved is not known", Says::Nothing)
        } else {
            ("all counts are equal, none moved", strength(Says::Suspected))
        };
        lines.push(line(source, text, says));
    }
    lines
}

/// `Flight Recorder, 40 s old`: `ranks 0-6 wait in all_reduce 64 for 90 s, rank 7 scheduled up to 60`
fn recorder_line(facts: &Facts<'_>, conclusion: &Conclusion) -> Option<EvidenceLine> {
    let dumps = facts.dumps.as_ref()?;
    let age = dumps.age.as_secs();
    let age = if age < 120 { format!("{age} s") } else { format!("{} min", age / 60) };
    let source = format!("Flight Recorder, {age} old");
    if dumps.of == DumpAge::Older {
        return Some(line(source, "written before the hang began", Says::Nothing));
    }
    let Some(difference) = dumps.difference() else {
        return Some(line(source, "no rank waits for an operation that another one did not schedule", Says::Nothing));
    };
    let text = match &difference {
        RecordedDifference::NeverScheduled { wait, behind } | RecordedDifference::WaitsElsewhere { wait, behind } => {
            let verb = if wait.waiting.len() == 1 { "waits" } else { "wait" };
            let seconds = wait.operation.waited_seconds.unwrap_or(0.0);
            let mut text = format!(
                "{} {verb} in {} of {}{} for {seconds:.0} s",
                facts.ranks.names(&wait.waiting),
                operation_text(wait.operation),
                wait.group,
                at_place(wait.operation)
            );
            for position in behind.iter().take(MAX_LINES) {
                let Some(group) = dumps.last_scheduled(*position, wait) else { continue };
                let last = group.last_scheduled.map_or("nothing".to_owned(), |last| format!("up to {last}"));
                let place = group.last_ended.as_ref().map(at_place).unwrap_or_default();
                let _ = write!(text, ", {} scheduled {last}{place}", facts.ranks.list[*position].name());
            }
            text
        }
        RecordedDifference::OtherOperation { sides, .. } => sides_text(&facts.ranks, sides),
    };
    let says = if conclusion.basis == Basis::FlightRecorder { of_outcome(conclusion.outcome) } else { Says::Likely };
    Some(line(source, text, says))
}

/// `AllReduce: 7 ranks at 64, rank 7 at 60, none moved`
fn mismatch_text(mismatch: &Mismatch<'_>) -> String {
    let operation = mismatch.operation;
    let at = |it: &RanksAtCount| {
        let named: Vec<u32> =
            operation.named.iter().filter(|named| named.count == Some(it.count)).map(|named| named.rank).collect();
        let who = match (named.len(), it.ranks) {
            (1, 1) => format!("rank {}", number_list(&named)),
            (names, ranks) if names as u64 == u64::from(ranks) && names > 0 => format!("ranks {}", number_list(&named)),
            (_, 1) => "1 rank".to_owned(),
            (_, ranks) => format!("{ranks} ranks"),
        };
        format!("{who} at {}", it.count)
    };
    let mut parts: Vec<String> = operation.counts.iter().filter(|it| it.ranks > 0).map(at).collect();
    if operation.left_out > 0 {
        parts.push(format!("{} ranks at other counts", operation.left_out));
    }
    parts.push(
        match mismatch.change {
            CountChange::Frozen => "none moved",
            CountChange::Moved => "some moved",
            CountChange::Unknown => "whether they moved is not known",
        }
        .to_owned(),
    );
    format!("{}: {}", operation.name, parts.join(", "))
}

/// Each meaning once, with the number of lines that say the same.
fn log_lines(facts: &Facts<'_>, conclusion: &Conclusion) -> Vec<EvidenceLine> {
    let mut kinds: Vec<(Discriminant<LogSign>, &Sign<'_>, usize)> = Vec::new();
    for sign in &facts.signs {
        let kind = discriminant(&sign.found.sign);
        match kinds.iter_mut().find(|(known, _, _)| *known == kind) {
            Some((_, _, count)) => *count += 1,
            None => kinds.push((kind, sign, 1)),
        }
    }
    let mut lines: Vec<EvidenceLine> = Vec::new();
    for (_, sign, count) in kinds {
        let whose = sign.about.unwrap_or(sign.log_of);
        let source = match sign.about {
            Some(_) => format!("log of {}", facts.ranks.list[whose].name()),
            None => format!("log {}", sign.path),
        };
        let mut text: String = sign.found.line.trim().chars().take(MAX_LOG_CHARACTERS).collect();
        if sign.found.line.trim().chars().count() > MAX_LOG_CHARACTERS {
            text += "…";
        }
        if count > 1 {
            let _ = write!(text, " (and {} more such lines)", count - 1);
        }
        let is_proof = conclusion.basis == Basis::Log && conclusion.outcome == Outcome::Proven;
        let says = match sign.found.sign {
            _ if sign.is_timeout() && is_proof => Says::Proven,
            _ if sign.is_timeout() => Says::Suspected,
            LogSign::WatchdogStuck => Says::Likely,
            LogSign::NcclWarning => Says::Network,
            LogSign::Waits => Says::Nothing,
            _ => Says::Ended,
        };
        lines.push(line(source, text, says));
    }
    let mut growing = facts.ranks.list.iter().filter(|rank| log_moves(rank.evidence));
    if let Some(rank) = growing.next() {
        let path = rank.evidence.log.as_ref().map(|log| log.path.clone()).unwrap_or_default();
        lines.push(line(format!("log {path}"), "it grows by more than a line about waiting", Says::Moves));
    }
    lines
}

/// `py-spy, rank 7`: `load_batch (data.py:211), same 60 s later`
fn stack_line(facts: &Facts<'_>, position: usize) -> Option<EvidenceLine> {
    let rank = &facts.ranks.list[position];
    let frame = |stack: &crate::wire::ThreadStack| stack.frames.first().map(frame_text).unwrap_or_default();
    let source = format!("py-spy, {}", rank.name());
    let Some(it) = stacks(rank.evidence) else {
        return latest_stack(rank.evidence).map(|stack| line(source, frame(stack), Says::Nothing));
    };
    let seconds = it.apart.as_secs();
    Some(match stack_change(it.first, it.last) {
        StackChange::Same if it.is_far_apart() => {
            line(source, format!("{}, same {seconds} s later", frame(it.first)), Says::Likely)
        }
        StackChange::Same => line(source, format!("{}, same {seconds} s later", frame(it.first)), Says::Nothing),
        StackChange::Innermost => {
            line(source, format!("{}, in the same loop {seconds} s later", frame(it.first)), Says::Nothing)
        }
        StackChange::Moved => {
            line(source, format!("{}, then {} {seconds} s later", frame(it.first), frame(it.last)), Says::Works)
        }
    })
}

/// The stacks of several ranks in one line.
fn stacks_line(facts: &Facts<'_>, positions: &[usize], whose: &str) -> Option<EvidenceLine> {
    let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut still = 0;
    let mut known = 0;
    for position in positions {
        let rank = facts.rank(*position);
        let Some(frame) = latest_stack(rank).and_then(|stack| stack.frames.first()) else { continue };
        known += 1;
        places.entry(frame_text(frame)).or_default().push(*position);
        if stacks(rank).is_some_and(|it| it.is_far_apart() && stack_change(it.first, it.last) == StackChange::Same) {
            still += 1;
        }
    }
    if known == 0 {
        return None;
    }
    let mut sorted: Vec<(&String, &Vec<usize>)> = places.iter().collect();
    sorted.sort_by_key(|(place, ranks)| (std::cmp::Reverse(ranks.len()), (*place).clone()));
    let more = sorted.len().saturating_sub(3);
    let mut text = sorted
        .iter()
        .take(3)
        .map(
            |(place, ranks)| {
                if sorted.len() == 1 { (*place).clone() } else { format!("{place} ({})", facts.ranks.names(ranks)) }
            },
        )
        .collect::<Vec<_>>()
        .join(", ");
    if more > 0 {
        let _ = write!(text, ", {more} other places");
    }
    let (end, says) = match (still, known) {
        (still, known) if still == known => (", unmoved".to_owned(), Says::Likely),
        (0, _) => (String::new(), Says::Nothing),
        _ => (format!(", {still} of {known} unmoved"), Says::Nothing),
    };
    Some(line(format!("py-spy, {whose}"), text + &end, says))
}

/// The facts in `/proc` about a rank.
fn process_line(facts: &Facts<'_>, position: usize) -> Option<EvidenceLine> {
    let rank = facts.rank(position);
    let mut readings: Vec<_> = rank.readings.iter().filter(|reading| reading.examination.process.is_some()).collect();
    readings.sort_by_key(|reading| reading.at);
    let process = readings.last()?.examination.process.as_deref()?;
    let mut parts = Vec::new();
    if let Some(milliseconds) = process.cpu_ms.filter(|_| process.seconds > 0.0) {
        parts.push(format!("CPU {:.0} %", milliseconds as f32 / process.seconds / 10.0));
    }
    let thread = process.main_thread.as_ref();
    if let Some(channel) = thread.and_then(|thread| thread.wait_channel.as_ref()) {
        parts.push(format!("main thread waits in {channel}"));
    } else if let Some(state) = thread.and_then(|thread| thread.state) {
        parts.push(format!("main thread in state {}", state.letter()));
    }
    if let Some(thread) = thread
        && let (Some(voluntary), Some(involuntary)) = (thread.voluntary_switches, thread.involuntary_switches)
    {
        // A thread that waits without a switch was not woken, not even by a timer.
        parts.push(match voluntary.saturating_add(involuntary) {
            0 => "no context switch".to_owned(),
            1 => "1 context switch".to_owned(),
            count => format!("{count} context switches"),
        });
    }
    match process.written_bytes {
        Some(0) => parts.push("writes nothing".to_owned()),
        Some(bytes) => parts.push(format!("wrote {} in a second", bytes_text(bytes))),
        None => {}
    }
    let says = match &facts.work[position] {
        HostWork::Idle => Says::Likely,
        HostWork::Works(text) => {
            parts.push(text.clone());
            Says::Works
        }
        HostWork::Unclear(text) => {
            parts.push(text.clone());
            Says::Nothing
        }
    };
    Some(line(format!("/proc, {}", facts.ranks.list[position].name()), parts.join(", "), says))
}

/// `100 %, 98 to 104 of 700 W, tensor 0 %, DRAM 0 %, NVLink 0 B/s`
fn gpu_line(facts: &Facts<'_>, positions: &[usize], source: &str) -> Option<EvidenceLine> {
    let gpus: Vec<&RankGpu> = positions.iter().flat_map(|position| &facts.rank(*position).gpus).collect();
    let mut parts = Vec::new();
    if let Some(range) = range(gpus.iter().map(|gpu| gpu.utilization_percent.map(f32::from))) {
        parts.push(format!("{range} %"));
    }
    if let Some(watts) = range(gpus.iter().map(|gpu| gpu.power_watts)) {
        let limit = range(gpus.iter().map(|gpu| gpu.power_limit_watts));
        let healthy = range(gpus.iter().map(|gpu| gpu.healthy_power_watts));
        let is_compared = gpus.iter().any(|gpu| gpu.waits_by_rule);
        parts.push(match (limit, healthy) {
            (Some(limit), Some(healthy)) if is_compared => format!("{watts} of {limit} W, {healthy} W at work"),
            (Some(limit), _) => format!("{watts} of {limit} W"),
            (None, Some(healthy)) => format!("{watts} W, healthy {healthy} W"),
            (None, None) => format!("{watts} W"),
        });
    }
    for (name, values) in [
        ("tensor", range(gpus.iter().map(|gpu| gpu.tensor_percent))),
        ("DRAM", range(gpus.iter().map(|gpu| gpu.dram_percent))),
    ] {
        parts.extend(values.map(|values| format!("{name} {values} %")));
    }
    for (name, traffic) in [
        ("NVLink", gpus.iter().filter_map(|gpu| gpu.nvlink_bytes_per_second).reduce(f64::max)),
        ("PCIe", gpus.iter().filter_map(|gpu| gpu.pcie_bytes_per_second).reduce(f64::max)),
    ] {
        parts.extend(traffic.map(|traffic| format!("{name} {}/s", bytes_text(traffic.max(0.0) as u64))));
    }
    if parts.is_empty() {
        return None;
    }
    let says = if positions.iter().any(|position| facts.gpus[*position] == GpuActivity::Works) {
        Says::Nothing
    } else if facts.some_spin(positions) {
        Says::Likely
    } else {
        Says::Nothing
    };
    Some(line(source, parts.join(", "), says))
}

/// `104`, or `98 to 104`. `None` if no value is known.
fn range(values: impl Iterator<Item = Option<f32>> + Clone) -> Option<String> {
    let known = values.flatten().filter(|value| value.is_finite());
    let (least, most) = (known.clone().reduce(f32::min)?, known.reduce(f32::max)?);
    let (least, most) = (format!("{least:.0}"), format!("{most:.0}"));
    Some(if least == most { most } else { format!("{least} to {most}") })
}

/// `mlx5_0 ACTIVE, 0 B/s, no errors`
fn links_line(facts: &Facts<'_>, conclusion: &Conclusion) -> Option<EvidenceLine> {
    let links = facts.links();
    let (_, first) = links.ports.first()?;
    let ports = match links.ports.len() {
        1 => first.device.to_string(),
        count => format!("{count} ports"),
    };
    let states: BTreeSet<&str> = links.ports.iter().filter_map(|(_, link)| link.state.as_deref()).collect();
    let state = states.into_iter().collect::<Vec<_>>().join("/");
    let mut parts = vec![format!("{ports} {state}").trim_end().to_owned()];
    parts.extend(links.bytes_per_second.map(|rate| format!("{}/s", bytes_text(rate as u64))));
    if links.errors.is_empty() {
        parts.push("no errors".to_owned());
    }
    parts.extend(links.errors.iter().take(MAX_LINES).map(|(name, count)| format!("{name} +{count}")));
    let says = if links.has_trouble() {
        Says::Network
    } else if links.is_flat == Some(true) && conclusion.culprit.is_some() {
        // Without data and without errors nobody sends.
        Says::NotTheNetwork
    } else {
        Says::Nothing
    };
    Some(line("links", parts.join(", "), says))
}

/// The facts that could not be read.
pub(super) fn missing(facts: &Facts<'_>) -> Vec<Missing> {
    let mut missing = Vec::new();
    let recorder_is_off = flight_recorder(facts);
    let mut refused: BTreeMap<(u8, String, String, bool), Vec<usize>> = BTreeMap::new();
    for (position, rank) in facts.ranks.list.iter().enumerate() {
        for (part, reason, remedy, is_risk) in refusals(facts, rank.evidence) {
            // A program other than PyTorch has no Flight Recorder, and one that is off writes no dump.
            let is_recorder = PARTS.get(usize::from(part)) == Some(&ExaminationPart::FlightRecorder);
            if is_recorder && (remedy.is_empty() || recorder_is_off.is_some()) || reason == WITHOUT_NCCL {
                continue;
            }
            refused.entry((part, reason, remedy, is_risk)).or_default().push(position);
        }
    }
    for ((part, reason, remedy, is_risk), positions) in refused {
        let part = PARTS.get(usize::from(part));
        let what = match part {
            Some(ExaminationPart::Process) => format!("/proc of {}", facts.ranks.names(&positions)),
            Some(ExaminationPart::Stacks) => format!("stacks of {}", facts.ranks.names(&positions)),
            Some(ExaminationPart::Ras) => "NCCL RAS".to_owned(),
            Some(ExaminationPart::Links) => "links".to_owned(),
            Some(ExaminationPart::FlightRecorder) => format!("Flight Recorder of {}", facts.ranks.names(&positions)),
            _ => "another part".to_owned(),
        };
        // Only readings of the process itself hang in the kernel.
        let is_process = matches!(part, Some(ExaminationPart::Process | ExaminationPart::Stacks));
        let remedy =
            if remedy.is_empty() && is_process { own_remedy(facts.rank(positions[0]), &reason) } else { remedy };
        let (what, reason, remedy) = (what.into(), reason.into(), remedy.into());
        missing.push(Missing { what, reason, remedy, is_risk });
    }
    if facts.evidence.ranks_left_out > 0 {
        missing.push(Missing {
            what: format!("{} more processes of the job", facts.evidence.ranks_left_out).into(),
            reason: format!("only {} are examined", facts.evidence.ranks.len()).into(),
            remedy: "`gpufleet why HOST:PID` with one of the others".into(),
            is_risk: false,
        });
    }
    missing.extend(log(facts));
    missing.extend(second_report(facts));
    missing.extend(of_other_users(facts));
    missing.extend(unwatched(facts));
    missing.extend(recorder_is_off);
    missing
}

/// The remedy for a refusal to which the probe knows none; `rank` is one of those that were refused.
fn own_remedy(rank: &RankEvidence, reason: &str) -> String {
    let (pid, host) = (rank.pid, &rank.host_name);
    match reason {
        NOT_IN_PROC => "it has ended: examine another process of the job".to_owned(),
        NOT_PYTHON => format!("on {host}: gdb -p {pid} --batch -ex 'thread apply all bt'"),
        _ => format!("on {host}, as root: cat /proc/{pid}/stack; dmesg | tail"),
    }
}

/// The parts in the order in which they are shown.
const PARTS: [ExaminationPart; 5] = [
    ExaminationPart::Ras,
    ExaminationPart::FlightRecorder,
    ExaminationPart::Stacks,
    ExaminationPart::Process,
    ExaminationPart::Links,
];

/// The latest refusal of each part that no reading of this rank has. A report of NCCL RAS is missing only if no rank gave one.
fn refusals(facts: &Facts<'_>, rank: &RankEvidence) -> Vec<(u8, String, String, bool)> {
    let mut readings: Vec<_> = rank.readings.iter().collect();
    readings.sort_by_key(|reading| reading.at);
    let has = |part: ExaminationPart| match part {
        ExaminationPart::Process => readings.iter().any(|reading| reading.examination.process.is_some()),
        ExaminationPart::Stacks => readings.iter().any(|reading| reading.examination.stacks.is_some()),
        ExaminationPart::Ras => facts.ras.is_some(),
        ExaminationPart::Links => readings.iter().any(|reading| !reading.examination.links.is_empty()),
        ExaminationPart::FlightRecorder => readings.iter().any(|reading| reading.examination.flight_recorder.is_some()),
        ExaminationPart::Unknown => true,
    };
    let mut found = Vec::new();
    for (order, part) in PARTS.into_iter().enumerate() {
        let latest = readings
            .iter()
            .rev()
            .find_map(|reading| reading.examination.refused.iter().find(|refusal| refusal.part == part));
        let Some(refusal) = latest.filter(|_| !has(part)) else { continue };
        found.push((order as u8, refusal.reason.to_string(), refusal.remedy.to_string(), refusal.is_risk));
    }
    found
}

/// Ranks of a job often share one log, so that it is missing only if no rank has one.
fn log(facts: &Facts<'_>) -> Option<Missing> {
    let mut ranks = facts.ranks.list.iter().map(|rank| rank.evidence);
    if ranks.clone().any(|rank| rank.log.is_some()) {
        return None;
    }
    let reason = &ranks.find(|rank| rank.is_mine && !rank.log_refusal.is_empty())?.log_refusal;
    let remedy = match &**reason {
        NO_LOG_FILE => "write the output of the next start to a file, as with `>train.log 2>&1`".to_owned(),
        // A file system that hangs, or a file that its owner may write but not read.
        _ => format!("read it on {}, or see whether its file system answers: df", facts.rank(0).host_name),
    };
    Some(Missing { what: "log".into(), reason: reason.clone(), remedy: remedy.into(), is_risk: false })
}

/// One report shows no standstill.
fn second_report(facts: &Facts<'_>) -> Option<Missing> {
    let ras = facts.ras.as_ref().filter(|ras| !ras.is_twice())?;
    let reason = match ras.first {
        None => "there is one report".to_owned(),
        Some(_) => format!("the reports are {} s apart", ras.apart.as_secs()),
    };
    Some(Missing {
        what: "whether the counts of NCCL move".into(),
        reason: reason.into(),
        remedy: "examine the job again 60 s after the first report".into(),
        is_risk: false,
    })
}

/// Ranks of other users cannot be examined.
fn of_other_users(facts: &Facts<'_>) -> Vec<Missing> {
    let mut owners: BTreeMap<Option<&SafeText>, Vec<usize>> = BTreeMap::new();
    for (position, rank) in facts.ranks.list.iter().enumerate().filter(|(_, rank)| !rank.evidence.is_mine) {
        owners.entry(rank.evidence.user.as_ref()).or_default().push(position);
    }
    let missing = |(user, positions): (Option<&SafeText>, Vec<usize>)| {
        let rank = facts.rank(positions[0]);
        let (owner, ask) = match user {
            Some(user) => (format!("{user} owns the job"), user.to_string()),
            None => ("another user owns the job".to_owned(), "its owner".to_owned()),
        };
        Missing {
            what: format!("examination of {}", facts.ranks.names(&positions)).into(),
            reason: format!("{owner}, and only its owner may examine it").into(),
            remedy: format!("ask {ask} to run `gpufleet why {}:{}`", rank.host_name, rank.pid).into(),
            is_risk: false,
        }
    };
    owners.into_iter().map(missing).collect()
}

/// Ranks on hosts that are not watched.
fn unwatched(facts: &Facts<'_>) -> Option<Missing> {
    let size = facts.ranks.world_size?;
    let watched = facts.ranks.list.len() as u32;
    let absent = size.checked_sub(watched).filter(|absent| *absent > 0)?;
    Some(Missing {
        what: format!("{absent} of {size} ranks").into(),
        reason: "gpufleet does not see their processes".into(),
        remedy: "add the other hosts of the job to hosts.toml".into(),
        is_risk: false,
    })
}

/// PyTorch's record of its latest collective operations. It is on by default in PyTorch 2.11 and newer, which brings NCCL
/// 2.28.9.
fn flight_recorder(facts: &Facts<'_>) -> Option<Missing> {
    const ON_BY_DEFAULT: [u32; 3] = [2, 28, 9];
    const VARIABLES: [&str; 2] = ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"];
    let mut ranks = facts.ranks.list.iter();
    let (rank, version) = ranks.find_map(|rank| {
        let processes = rank.evidence.readings.iter().filter_map(|reading| reading.examination.process.as_deref());
        let version = processes.filter_map(|process| process.nccl_version.as_ref()).next_back()?;
        Some((rank.evidence, version))
    })?;
    let parts: Vec<u32> = version.split('.').filter_map(|part| part.parse().ok()).collect();
    let is_set = VARIABLES.iter().find_map(|name| variable(rank, name));
    let is_on = match is_set {
        Some(value) => value.trim() != "0",
        None => parts.as_slice() >= ON_BY_DEFAULT.as_slice(),
    };
    // A record that is on is written when the watchdog gives up, where `torchfrtrace` reads it.
    (!is_on).then(|| Missing {
        what: "Flight Recorder".into(),
        reason: "off in this job".into(),
        remedy: "TORCH_FR_BUFFER_SIZE=2000 before the next start".into(),
        is_risk: false,
    })
}
