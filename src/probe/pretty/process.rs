//! The processes on the GPUs: a row for each process and GPU, and below the first one of a process what else is known.

use super::report_writer::{ReportWriter, bytes, or_dash, time, with_affixes};
use crate::wire::{
    Ancestor, GpuProcessReading, Inventory, Owner, Presence, ProcessFacts, ProcessReading, SafeText, Snapshot,
};

/// Columns that a command may take.
const COMMAND_COLUMNS: usize = 60;
/// What is known besides stands so far to the right.
const INDENT: usize = 14;
/// Parents that are named.
const SHOWN_ANCESTORS: usize = 6;

pub(super) fn write(report: &mut ReportWriter, inventory: &Inventory, snapshot: &Snapshot) {
    let rows: Vec<_> = (0..snapshot.gpu_processes.len()).map(|index| snapshot.gpu_processes.row(index)).collect();
    if rows.is_empty() {
        return;
    }
    report.line("");
    report.line(format!(
        "{:>4} {:>8} {:4} {:>10} {:>5} {:>8} {:>10} {:6} {:12} COMMAND",
        "GPU", "PID", "KIND", "MEMORY", "SM", "CPU", "RSS", "STATE", "USER"
    ));
    let mut seen = Vec::new();
    for row in &rows {
        let process = row.pid.and_then(|pid| snapshot.processes.pid.iter().position(|known| *known == Some(pid)));
        let process = process.map(|index| snapshot.processes.row(index)).unwrap_or_default();
        let facts = row.pid.and_then(|pid| snapshot.facts.iter().find(|facts| facts.pid == pid));
        write_row(report, row, &process, facts, inventory);
        if row.pid.is_some() && !seen.contains(&row.pid) {
            seen.push(row.pid);
            details(report, &process, facts);
        }
    }
    if snapshot.processes_left_out > 0 {
        report.line(format!("and {} more", snapshot.processes_left_out));
    }
}

fn write_row(
    report: &mut ReportWriter,
    row: &GpuProcessReading,
    process: &ProcessReading,
    facts: Option<&ProcessFacts>,
    inventory: &Inventory,
) {
    let gpu = row.gpu.and_then(|gpu| inventory.gpus.get(usize::from(gpu))).map(|info| info.index);
    let share = |share: Option<String>| share.map_or_else(|| "-".to_owned(), |share| format!("{share}%"));
    report.line(format!(
        "{:>4} {:>8} {:4} {:>10} {:>5} {:>8} {:>10} {:6} {:12} {}",
        or_dash(gpu),
        or_dash(row.pid),
        row.kind.map_or("-", |kind| kind.as_str()),
        or_dash(row.gpu_memory_bytes.map(bytes)),
        share(row.sm_percent.map(|share| share.to_string())),
        share(process.cpu_percent.map(|share| share.to_string())),
        or_dash(process.rss_bytes.map(bytes)),
        state(process),
        user(facts),
        command(facts),
    ));
}

fn details(report: &mut ReportWriter, process: &ProcessReading, facts: Option<&ProcessFacts>) {
    let none = ProcessFacts::default();
    let facts = facts.unwrap_or(&none);
    let mut line = |fields: &[Option<String>]| {
        let fields: Vec<String> = fields.iter().flatten().cloned().collect();
        report.write_wrapped(&" ".repeat(INDENT), &fields);
    };
    line(&[
        with_affixes("", facts.full_name.as_ref(), ""),
        facts.owner.as_ref().map(|owner| describe(owner, facts.container_name.as_ref())),
        with_affixes("in ", facts.runs_in.as_ref(), ""),
        (!facts.ancestors.is_empty()).then(|| parents(&facts.ancestors)),
        facts.ignores_hangup.filter(|&ignores| ignores).map(|_| "ignores a hangup".to_owned()),
    ]);
    line(&[
        with_affixes("runs for ", process.age_seconds.map(time), ""),
        with_affixes("", process.threads, " threads"),
        with_affixes("", process.threads_live, " of them live"),
        with_affixes("", process.threads_blocked.filter(|&count| count > 0), " in uninterruptible sleep"),
        process
            .blocked_thread
            .zip(process.blocked_seconds)
            .map(|(thread, seconds)| format!("thread {thread} for {} already", time(f64::from(seconds)))),
        with_affixes("waits in ", process.wait_channel.as_ref(), ""),
        process.descendants.filter(|&count| count > 0).map(|count| {
            let cpu = with_affixes(" at ", process.descendants_cpu_percent, " % CPU").unwrap_or_default();
            let blocked = process.descendants_blocked.filter(|&count| count > 0);
            format!("{count} workers{cpu}{}", with_affixes(", blocked ", blocked, "").unwrap_or_default())
        }),
    ]);
    line(&[
        with_affixes("works in ", facts.working_directory.as_ref(), ""),
        facts.log_path.as_ref().map(|path| match process.log_age_seconds {
            Some(age) => format!("log {path} written {} ago", time(age)),
            None => format!("log {path}"),
        }),
        with_affixes("read ", process.read_characters.map(bytes), ""),
        with_affixes("written ", process.write_bytes.map(bytes), ""),
    ]);
}

fn describe(owner: &Owner, name: Option<&SafeText>) -> String {
    let named = name.map_or_else(String::new, |name| format!(" ({name})"));
    match owner {
        Owner::Slurm { job, step: Some(step) } => format!("Slurm job {job} step {step}"),
        Owner::Slurm { job, step: None } => format!("Slurm job {job}"),
        Owner::Pod { uid, .. } => format!("pod {uid}{named}"),
        Owner::Container { runtime, id } => format!("{runtime} {id}{named}"),
        Owner::Service(name) => name.to_string(),
        Owner::Session(id) => format!("session {id}"),
        Owner::Unknown => "-".to_owned(),
    }
}

/// The nearest first.
fn parents(ancestors: &[Ancestor]) -> String {
    let names: Vec<_> =
        ancestors.iter().take(SHOWN_ANCESTORS).map(|parent| format!("{} {}", parent.name, parent.pid)).collect();
    format!("below {}", names.join(" < "))
}

fn state(process: &ProcessReading) -> String {
    match (process.presence, process.state) {
        (Some(Presence::Gone), _) => "gone".to_owned(),
        (Some(Presence::Hidden), _) => "hidden".to_owned(),
        (_, Some(state)) => state.letter().to_string(),
        (_, None) => "-".to_owned(),
    }
}

fn user(facts: Option<&ProcessFacts>) -> String {
    let Some(facts) = facts else { return "-".to_owned() };
    facts.user.as_ref().map_or_else(|| or_dash(facts.uid), ToString::to_string)
}

fn command(facts: Option<&ProcessFacts>) -> String {
    let Some(facts) = facts else { return "-".to_owned() };
    let arguments: Vec<&str> = facts.argv.iter().map(SafeText::as_str).collect();
    let line = if arguments.is_empty() { or_dash(facts.name.as_ref()) } else { arguments.join(" ") };
    match line.char_indices().nth(COMMAND_COLUMNS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
