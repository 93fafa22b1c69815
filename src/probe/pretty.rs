//! One snapshot for a person at a terminal: `gpufleet-probe --once --pretty`.

use crate::wire::{
    ClocksEventReasons, GpuInfo, GpuProcessReading, GpuReading, Hello, Inventory, Presence, ProcessFacts,
    ProcessReading, SafeText, Scope, Snapshot,
};
use std::fmt::{Display, Write};

/// Columns that a command may take.
const COMMAND_COLUMNS: usize = 60;

/// The whole text, newline included.
pub(crate) fn pretty(hello: &Hello, inventory: &Inventory, snapshot: &Snapshot) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ok = write_all(&mut text, hello, inventory, snapshot);
    text
}

fn write_all(text: &mut String, hello: &Hello, inventory: &Inventory, snapshot: &Snapshot) -> std::fmt::Result {
    write_host(text, hello, inventory, snapshot)?;
    for (info, position) in inventory.gpus.iter().zip(0..) {
        write_gpu(text, info, &snapshot.gpus.row(position))?;
    }
    let rows: Vec<_> = (0..snapshot.gpu_processes.len()).map(|index| snapshot.gpu_processes.row(index)).collect();
    if !rows.is_empty() {
        let header = ("GPU", "PID", "KIND", "MEMORY", "SM", "CPU", "RSS", "STATE", "USER", "COMMAND");
        let (gpu, pid, kind, memory, sm, cpu, rss, state, user, command) = header;
        writeln!(
            text,
            "\n{gpu:>4} {pid:>8} {kind:4} {memory:>9} {sm:>5} {cpu:>7} {rss:>9} {state:6} {user:12} {command}"
        )?;
        for row in &rows {
            write_process(text, row, inventory, snapshot)?;
        }
    }
    for note in &snapshot.notes {
        writeln!(text, "note: {note}")?;
    }
    Ok(())
}

fn write_host(text: &mut String, hello: &Hello, inventory: &Inventory, snapshot: &Snapshot) -> std::fmt::Result {
    let host = &snapshot.host;
    let name = or_dash(hello.host_name.as_ref());
    writeln!(text, "{name}  Linux {} {}", or_dash(hello.kernel.as_ref()), or_dash(hello.arch.as_ref()))?;
    writeln!(
        text,
        "CPU {} of {}  load {} {} {}  memory {} of {}  up {}",
        percent(host.cpu_percent),
        or_dash(hello.cpu_count),
        or_dash(host.load_1),
        or_dash(host.load_5),
        or_dash(host.load_15),
        gibibytes(host.memory_used_bytes()),
        gibibytes(host.memory_total_bytes),
        host.uptime_seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{:.1} d", seconds / 86_400.0)),
    )?;
    match &hello.scope {
        Some(Scope::SlurmJob(job)) => writeln!(text, "seen from inside Slurm job {job}: only its part of the host")?,
        Some(Scope::Container(name)) => {
            writeln!(text, "seen from inside a container ({name}): only its part of the host")?;
        }
        Some(Scope::Host) | None => {}
    }
    if let Some(driver) = &inventory.driver_version {
        let path = or_dash(inventory.nvml_path.as_ref());
        writeln!(text, "driver {driver}  CUDA {}  {path}", or_dash(inventory.cuda_version.as_ref()))?;
    }
    for error in [&inventory.error, &snapshot.driver_error].into_iter().flatten() {
        let code = error.code.map_or_else(String::new, |code| format!(" (NVML error {code})"));
        writeln!(text, "no GPU readings: {}{code}", error.message)?;
    }
    Ok(())
}

fn write_gpu(text: &mut String, info: &GpuInfo, reading: &GpuReading) -> std::fmt::Result {
    let kind = if info.mig_parent_uuid.is_some() { "MIG" } else { "GPU" };
    writeln!(text, "\n{kind} {}  {}  {}", info.index, or_dash(info.name.as_ref()), or_dash(info.uuid.as_ref()))?;
    if let Some(error) = &reading.error {
        return writeln!(text, "  {}", error.message);
    }
    let limit = reading.power_limit_watts.or(info.power_limit_watts);
    writeln!(
        text,
        "  use {}  memory bus {}  memory {} of {} (reserved {})",
        percent(reading.utilization_percent),
        percent(reading.memory_utilization_percent),
        gibibytes(reading.memory_used_bytes),
        gibibytes(info.memory_total_bytes),
        gibibytes(reading.memory_reserved_bytes),
    )?;
    writeln!(
        text,
        "  {}  {} of {}  mean {}  energy {}  fan {}  P{}",
        with_unit(reading.temperature_celsius, " °C"),
        with_unit(reading.power_watts, " W"),
        with_unit(limit, " W"),
        with_unit(reading.power_mean_watts, " W"),
        with_unit(reading.energy_joules.map(|joules| (joules / 3600.0) as u64), " Wh"),
        percent(reading.fan_percent),
        or_dash(reading.performance_state),
    )?;
    writeln!(
        text,
        "  clocks: graphics {}, SM {}, memory {}  held back by: {}",
        with_unit(reading.clock_graphics_mhz, " MHz"),
        with_unit(reading.clock_sm_mhz, " MHz"),
        with_unit(reading.clock_memory_mhz, " MHz"),
        reasons(reading.clocks_event_reasons),
    )
}

fn write_process(
    text: &mut String,
    row: &GpuProcessReading,
    inventory: &Inventory,
    snapshot: &Snapshot,
) -> std::fmt::Result {
    let known = |pid: &Option<u32>| row.pid.is_some() && *pid == row.pid;
    let process = snapshot.processes.pid.iter().position(known).map(|index| snapshot.processes.row(index));
    let process = process.unwrap_or_default();
    let facts = snapshot.facts.iter().find(|facts| Some(facts.pid) == row.pid);
    let gpu = row.gpu.and_then(|gpu| inventory.gpus.get(usize::from(gpu))).map(|info| info.index);
    writeln!(
        text,
        "{:>4} {:>8} {:4} {:>9} {:>5} {:>7} {:>9} {:6} {:12} {}",
        or_dash(gpu),
        or_dash(row.pid),
        row.kind.map_or("-", |kind| kind.as_str()),
        gibibytes(row.gpu_memory_bytes),
        percent(row.sm_percent),
        percent(process.cpu_percent),
        gibibytes(process.rss_bytes),
        state(&process),
        user(facts),
        command(facts),
    )
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
    let words: Vec<&str> = facts.argv.iter().map(SafeText::as_str).collect();
    let line = if words.is_empty() { or_dash(facts.name.as_ref()) } else { words.join(" ") };
    match line.char_indices().nth(COMMAND_COLUMNS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

fn reasons(mask: Option<u64>) -> String {
    let Some(mask) = mask else { return "-".to_owned() };
    let names: Vec<_> = ClocksEventReasons(mask).names().collect();
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

fn or_dash(value: Option<impl Display>) -> String {
    with_unit(value, "")
}

fn percent(value: Option<impl Display>) -> String {
    with_unit(value, "%")
}

fn with_unit(value: Option<impl Display>, unit: &str) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value}{unit}"))
}

fn gibibytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{
        DriverError, DriverErrorKind, GpuColumns, GpuProcessColumns, GpuProcessKind, HostReading, PROTOCOL,
        ProcessColumns, ProcessState,
    };

    fn hello() -> Hello {
        Hello {
            protocol: PROTOCOL,
            probe_version: "0".into(),
            boot_id: None,
            host_name: Some("hgx-01".into()),
            login_user: None,
            login_uid: None,
            kernel: Some("6.1".into()),
            arch: Some("x86_64".into()),
            cpu_count: Some(112),
            memory_total_bytes: None,
            scope: Some(Scope::SlurmJob("7".into())),
            source: None,
            probe_pid: None,
        }
    }

    #[test]
    fn a_snapshot_for_a_person() {
        let inventory = Inventory {
            driver_version: Some("570.86".into()),
            gpus: vec![GpuInfo {
                index: 3,
                name: Some("H100".into()),
                power_limit_watts: Some(700.0),
                ..GpuInfo::default()
            }],
            ..Inventory::default()
        };
        let reading = GpuReading {
            utilization_percent: Some(97),
            memory_used_bytes: Some(40 << 30),
            power_watts: Some(612.5),
            clocks_event_reasons: Some(0x44),
            ..GpuReading::default()
        };
        let row = GpuProcessReading {
            pid: Some(4312),
            gpu: Some(0),
            kind: Some(GpuProcessKind::Compute),
            gpu_memory_bytes: Some(39 << 30),
            sm_percent: Some(96),
            ..GpuProcessReading::default()
        };
        let process = ProcessReading {
            pid: Some(4312),
            presence: Some(Presence::Visible),
            state: Some(ProcessState::Running),
            cpu_percent: Some(101.5),
            ..ProcessReading::default()
        };
        let facts = ProcessFacts {
            pid: 4312,
            uid: Some(1000),
            argv: vec!["python".into(), "x".into()],
            ..ProcessFacts::default()
        };
        let snapshot = Snapshot {
            host: HostReading { cpu_percent: Some(13.5), load_1: Some(2.25), ..HostReading::default() },
            gpus: GpuColumns::from_rows(&[reading]),
            gpu_processes: GpuProcessColumns::from_rows(&[row]),
            processes: ProcessColumns::from_rows(&[process]),
            facts: vec![facts],
            ..Snapshot::default()
        };
        let expected = "\
hgx-01  Linux 6.1 x86_64
CPU 13.5% of 112  load 2.25 - -  memory - of -  up -
seen from inside Slurm job 7: only its part of the host
driver 570.86  CUDA -  -

GPU 3  H100  -
  use 97%  memory bus -  memory 40.0 GiB of - (reserved -)
  -  612.5 W of 700 W  mean -  energy -  fan -  P-
  clocks: graphics -, SM -, memory -  held back by: power cap, hardware thermal slowdown

 GPU      PID KIND    MEMORY    SM     CPU       RSS STATE  USER         COMMAND
   3     4312 C     39.0 GiB   96%  101.5%         - R      1000         python x
";
        assert_eq!(pretty(&hello(), &inventory, &snapshot), expected);
    }

    #[test]
    fn without_a_driver_the_reason_is_shown() {
        let error = DriverError { kind: DriverErrorKind::VersionMismatch, code: Some(18), message: "reboot".into() };
        let inventory = Inventory { error: Some(error), ..Inventory::default() };
        let text = pretty(&hello(), &inventory, &Snapshot::default());
        assert!(text.ends_with("no GPU readings: reboot (NVML error 18)\n"), "{text}");
    }
}
