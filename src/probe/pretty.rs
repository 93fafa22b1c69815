//! One snapshot as text: `gpufleet-probe --once --pretty`.
//!
//! ```text
//! hgx-01  Linux 6.1.0 x86_64  up 12.3 d
//!   CPU         13.5 % of 112, load 2.25 2.1 1.9
//!   ...
//!
//! GPU 3  NVIDIA H100 80GB HBM3  GPU-5a4f...
//!   use         97 %, memory bus 41 %
//!   ...
//!   unknown     decoder, fan
//!
//!  GPU      PID KIND    MEMORY ...
//! ```
//!
//! An unknown value is left out of its line and named in the last line of its section, so that missing is not taken for
//! fine.

use crate::wire::{
    Ancestor, Availability, ClocksEventReasons, ComputeMode, Filesystem, GpuHealth, GpuInfo, GpuProcessReading,
    GpuReading, Hello, HostReading, Inventory, Owner, Presence, ProbeCost, ProcessFacts, ProcessReading, RecentPast,
    RecoveryAction, SafeText, Scope, SlurmJob, Snapshot,
};
use std::fmt::Display;

/// Formats a snapshot. The text ends in a newline.
pub(crate) fn pretty(hello: &Hello, inventory: &Inventory, snapshot: &Snapshot) -> String {
    let mut report = ReportWriter::default();
    write_host(&mut report, hello, inventory, snapshot);
    for (info, position) in inventory.gpus.iter().zip(0..) {
        let samples = snapshot.recent_past.iter().find(|samples| usize::from(samples.gpu) == position);
        write_gpu(&mut report, info, &snapshot.gpus.row(position), &snapshot.health.row(position), samples);
    }
    write_processes(&mut report, inventory, snapshot);
    if !snapshot.notes.is_empty() || !snapshot.xid_events.is_empty() {
        report.line("");
    }
    for event in &snapshot.xid_events {
        let gpu = event.gpu.and_then(|gpu| inventory.gpus.get(usize::from(gpu))).map(|info| info.index);
        let age = time(snapshot.monotonic_seconds - event.monotonic_seconds);
        report.line(format!("Xid {} on GPU {}, {age} ago", event.xid, or_dash(gpu)));
    }
    for note in &snapshot.notes {
        report.line(format!("note: {note}"));
    }
    report.finish()
}

fn write_host(report: &mut ReportWriter, hello: &Hello, inventory: &Inventory, snapshot: &Snapshot) {
    let host = &snapshot.host;
    report.line(format!(
        "{}  Linux {} {}  up {}",
        or_dash(hello.host_name.as_ref()),
        or_dash(hello.kernel.as_ref()),
        or_dash(hello.arch.as_ref()),
        or_dash(host.uptime_seconds.map(time)),
    ));
    match &hello.scope {
        Some(Scope::SlurmJob(job)) => {
            report.line(format!("inside Slurm job {job}: only its part of the host is visible"));
        }
        Some(Scope::Container(name)) => {
            report.line(format!("inside a container ({name}): only its part of the host is visible"));
        }
        Some(Scope::Host | Scope::Unknown) | None => {}
    }
    write_load(report, hello, host);
    for filesystem in &host.filesystems {
        report.optional_field(Some(describe_filesystem(filesystem)));
        report.end_line("filesystem");
    }
    report.optional_value("cluster ", host.slurm_cluster.as_ref(), "");
    report.optional_field(host.slurm_allocated_gpus.as_ref().map(|gpus| {
        let gpus: Vec<_> = gpus.iter().map(ToString::to_string).collect();
        format!("GPUs allocated to jobs: {}", if gpus.is_empty() { "none".to_owned() } else { gpus.join(" ") })
    }));
    report.optional_field(host.slurm_jobs.as_ref().filter(|jobs| !jobs.is_empty()).map(|jobs| {
        let job = |job: &SlurmJob| {
            let gpus: Vec<_> = job.gpus.iter().map(ToString::to_string).collect();
            format!("{} of {} on {}", job.job, job.user.as_deref().unwrap_or("?"), gpus.join(" "))
        };
        format!("jobs: {}", jobs.iter().map(job).collect::<Vec<_>>().join(", "))
    }));
    report.end_line("Slurm");
    report.optional_value("", inventory.driver_version.as_ref(), "");
    report.optional_value("CUDA ", inventory.cuda_version.as_ref(), "");
    report.optional_value("", inventory.nvml_path.as_ref(), "");
    report.optional_value("", host.nvidia_pci_devices, " GPUs on the PCI bus");
    report.end_line("driver");
    write_cost(report, hello, snapshot.cost.as_ref());
    report.end_section();
    for error in [&inventory.error, &snapshot.driver_error].into_iter().flatten() {
        let code = error.code.map_or_else(String::new, |code| format!(" (NVML error {code})"));
        report.line(format!("no GPU readings: {}{code}", error.message));
    }
}

fn write_load(report: &mut ReportWriter, hello: &Hello, host: &HostReading) {
    report.field("CPU use", used_of("", host.cpu_percent.map(|percent| format!("{percent} %")), hello.cpu_count, ""));
    report.optional_value("waiting for I/O ", host.io_wait_percent, " %");
    let load = [host.load_1, host.load_5, host.load_15];
    report
        .field("load", load[0].map(|_| format!("load {} {} {}", or_dash(load[0]), or_dash(load[1]), or_dash(load[2]))));
    report.end_line("CPU");
    report.field("memory", used_of("", host.memory_used_bytes().map(bytes), host.memory_total_bytes.map(bytes), ""));
    let swap_used = host.swap_total_bytes.zip(host.swap_free_bytes).map(|(total, free)| total.saturating_sub(free));
    report.optional_field(used_of("swap ", swap_used.map(bytes), host.swap_total_bytes.map(bytes), ""));
    report.end_line("memory");
    report.value("pressure", "CPU ", host.pressure_cpu_percent, " %");
    report.optional_value("memory ", host.pressure_memory_percent, " %");
    report.optional_value("I/O ", host.pressure_io_percent, " % of the last minute");
    report.end_line("pressure");
    report.value("network", "in ", host.network_receive_bytes_per_second.map(rate), "");
    report.optional_value("out ", host.network_transmit_bytes_per_second.map(rate), "");
    report.end_line("network");
    report.value("disks", "read ", host.disk_read_bytes_per_second.map(rate), "");
    report.optional_value("written ", host.disk_write_bytes_per_second.map(rate), "");
    report.end_line("disks");
    report.optional_value("", host.tasks_blocked, " in uninterruptible sleep");
    report.optional_value("", host.oom_kills, " killed by the OOM killer since boot");
    report.end_line("tasks");
}

fn describe_filesystem(filesystem: &Filesystem) -> String {
    let Filesystem { mount_point, kind, total_bytes, available_bytes, silent_seconds, .. } = filesystem;
    let state = match silent_seconds {
        Some(seconds) => format!("no answer for {}", time(f64::from(*seconds))),
        None => format!("{} free of {}", or_dash(available_bytes.map(bytes)), or_dash(total_bytes.map(bytes))),
    };
    format!("{mount_point} ({kind}): {state}")
}

fn write_cost(report: &mut ReportWriter, hello: &Hello, cost: Option<&ProbeCost>) {
    let Some(cost) = cost else { return };
    report.optional_value("process ", hello.probe_pid, "");
    report.optional_field(Some(format!("{} s of CPU", cost.cpu_seconds)));
    report.optional_field(cost.rss_bytes.map(bytes));
    report.optional_field(Some(format!("{} ms for this snapshot", cost.sample_ms)));
    report.optional_value("", cost.probes_on_host, " probes on this host");
    report.end_line("probe");
}

fn write_gpu(
    report: &mut ReportWriter,
    info: &GpuInfo,
    reading: &GpuReading,
    health: &GpuHealth,
    samples: Option<&RecentPast>,
) {
    report.line("");
    let instance = info.mig_parent_uuid.is_some();
    let mut title = format!("{} {}", if instance { "MIG" } else { "GPU" }, info.index);
    for part in [&info.name, &info.uuid, &info.pci_bus_id].into_iter().flatten() {
        title.push_str("  ");
        title.push_str(part);
    }
    report.line(title);
    if let Some(error) = &reading.error {
        report.line(format!("  {}", error.message));
        return;
    }
    if let Some(seconds) = reading.blocked_seconds {
        report.line(format!("  an NVML call has not returned for {seconds} s"));
        return;
    }
    if reading.processes_unknown == Some(true) {
        report.line("  the driver refused the list of its processes");
    }
    if info.unified_memory == Some(true) {
        report.optional_field(Some("shared with the host".to_owned()));
    } else {
        let used = reading.memory_used_bytes.map(bytes);
        report.field("memory", used_of("", used, info.memory_total_bytes.map(bytes), ""));
        report.optional_value("reserved ", reading.memory_reserved_bytes.map(bytes), "");
    }
    report.optional_field(used_of("BAR1 ", health.bar1_used_bytes.map(bytes), info.bar1_total_bytes.map(bytes), ""));
    report.end_line("memory");
    write_activity(report, info, reading);
    if instance {
        report.optional_value("GPU instance ", info.gpu_instance_id, "");
        report.optional_value("compute instance ", info.compute_instance_id, "");
        report.end_line("MIG ids");
        // A MIG instance has no sensors.
        report.end_section();
        return;
    }
    write_sensors(report, info, reading);
    write_links(report, info, reading, health);
    write_faults(report, health);
    write_settings(report, info, health);
    write_recent_past(report, samples);
    report.end_section();
}

fn write_activity(report: &mut ReportWriter, info: &GpuInfo, reading: &GpuReading) {
    // In MIG mode, only GPM measures the utilization of an instance.
    if info.mig_enabled != Some(true) && info.mig_parent_uuid.is_none() {
        report.value("use", "", reading.utilization_percent, " %");
        report.value("memory bus", "memory bus ", reading.memory_utilization_percent, " %");
        report.value("encoder", "encoder ", reading.encoder_percent, " %");
        report.value("decoder", "decoder ", reading.decoder_percent, " %");
        report.end_line("use");
    }
    report.optional_value("active ", reading.sm_activity_percent, " %");
    report.optional_value("occupied ", reading.sm_occupancy_percent, " %");
    report.optional_value("tensor cores ", reading.tensor_activity_percent, " %");
    report.optional_value("DRAM bandwidth ", reading.dram_bandwidth_percent, " %");
    report.optional_field(unavailable("GPM", info.gpm));
    report.end_line("SMs");
}

fn write_sensors(report: &mut ReportWriter, info: &GpuInfo, reading: &GpuReading) {
    let limit = |limit: Option<i32>, label: &str| limit.map_or_else(String::new, |limit| format!(", {label} {limit}"));
    report.field(
        "temperature",
        reading.temperature_celsius.map(|degrees| {
            let slowdown = limit(info.temperature_slowdown_celsius, "slows down at");
            let shutdown = limit(info.temperature_shutdown_celsius, "shuts down at");
            format!("{degrees} °C{slowdown}{shutdown}")
        }),
    );
    report.field(
        "memory temperature",
        reading.memory_temperature_celsius.map(|degrees| {
            format!("memory {degrees} °C{}", limit(info.memory_temperature_max_celsius, "slows down at"))
        }),
    );
    report.value("fan", "fan ", reading.fan_percent, " %");
    report.end_line("temperature");
    let enforced = reading.power_limit_watts.or(info.power_limit_watts);
    report.field("power", used_of("", reading.power_watts, enforced, " W"));
    report.optional_value("maximum limit ", info.power_limit_max_watts.filter(|&max| Some(max) != enforced), " W");
    report.value("mean power", "mean ", reading.power_mean_watts, " W");
    report.value(
        "energy",
        "",
        reading.energy_joules.map(|joules| (joules / 3600.0) as u64),
        " Wh since the driver was loaded",
    );
    report.end_line("power");
    report.field("clocks", used_of("graphics ", reading.clock_graphics_mhz, info.clock_graphics_max_mhz, " MHz"));
    report.optional_field(used_of("SM ", reading.clock_sm_mhz, info.clock_sm_max_mhz, " MHz"));
    report.optional_field(used_of("memory ", reading.clock_memory_mhz, info.clock_memory_max_mhz, " MHz"));
    report.value("performance state", "P", reading.performance_state, "");
    report.end_line("clocks");
    report.field("throttle reasons", reading.clocks_event_reasons.map(throttle_reasons));
    let total = |label, seconds: Option<f64>| with_affixes(label, seconds.map(time), "");
    report.optional_field(total("time at power cap ", reading.power_violation_seconds));
    report.optional_field(total("at thermal limit ", reading.thermal_violation_seconds));
    report.optional_field(total("at power brake ", reading.power_brake_seconds));
    report.end_line("throttling");
}

fn write_links(report: &mut ReportWriter, info: &GpuInfo, reading: &GpuReading, health: &GpuHealth) {
    if info.unified_memory != Some(true) {
        report.field("PCIe link", used_of("generation ", reading.pcie_generation, info.pcie_generation_max, ""));
        report.optional_field(used_of("lanes ", reading.pcie_width, info.pcie_width_max, ""));
        report.value("PCIe traffic", "in ", reading.pcie_receive_bytes_per_second.map(rate), "");
        report.optional_value("out ", reading.pcie_transmit_bytes_per_second.map(rate), "");
        report.end_line("PCIe");
    }
    report.optional_field(health.nvlinks_active.map(|active| {
        let down: Vec<_> = (0..info.nvlink_count.unwrap_or(0)).filter(|&link| active >> link & 1 == 0).collect();
        let names: Vec<_> = down.iter().map(ToString::to_string).collect();
        let down_list = if down.is_empty() { String::new() } else { format!(" (down: {})", names.join(" ")) };
        format!("{} of {} up{down_list}", active.count_ones(), or_dash(info.nvlink_count))
    }));
    report.optional_value("in ", reading.nvlink_receive_bytes_per_second.map(rate), "");
    report.optional_value("out ", reading.nvlink_transmit_bytes_per_second.map(rate), "");
    report.end_line("NVLink");
}

fn write_faults(report: &mut ReportWriter, health: &GpuHealth) {
    let errors = |label, now: Option<u64>, ever: Option<u64>| {
        let ever = ever.map_or_else(String::new, |ever| format!(" ({ever} in total)"));
        with_affixes(label, now, &ever)
    };
    report.field("ECC", errors("corrected ", health.ecc_corrected_volatile, health.ecc_corrected_aggregate));
    report.optional_field(errors(
        "uncorrectable ",
        health.ecc_uncorrectable_volatile,
        health.ecc_uncorrectable_aggregate,
    ));
    report.end_line("ECC errors");
    report.optional_value("PCIe replays ", health.pcie_replays, "");
    report.optional_value("NVLink CRC errors ", health.nvlink_crc_errors, "");
    report.optional_value("replays ", health.nvlink_replays, "");
    report.optional_value("recoveries ", health.nvlink_recoveries, "");
    report.end_line("links");
    report.optional_value("remapped for correctable errors ", health.remapped_rows_correctable, "");
    report.optional_value("for uncorrectable errors ", health.remapped_rows_uncorrectable, "");
    report.optional_field(text_if(health.row_remap_pending, "remapping pending: reset the GPU"));
    report.optional_field(text_if(health.row_remap_failed, "remapping failed: replace the GPU"));
    report.end_line("rows");
    report.optional_value("retired for single-bit errors ", health.retired_pages_single_bit, "");
    report.optional_value("for double-bit errors ", health.retired_pages_double_bit, "");
    report.optional_field(text_if(health.retired_pages_pending, "retirement pending: reboot the host"));
    report.end_line("pages");
    let action = health.recovery_action.filter(|&action| action != RecoveryAction::None);
    report.optional_field(action.map(|action| action.description().to_owned()));
    report.end_line("recovery");
}

fn write_settings(report: &mut ReportWriter, info: &GpuInfo, health: &GpuHealth) {
    let on = |on: bool| if on { "on" } else { "off" };
    report.value("persistence mode", "persistence mode ", health.persistence_mode.map(on), "");
    report.value("compute mode", "compute mode ", health.compute_mode.map(compute_mode), "");
    report.optional_value("MIG ", info.mig_enabled.map(on), "");
    report.optional_value("power smoothing ", health.power_smoothing.map(on), "");
    report.optional_value("/dev/nvidia", info.minor_number, "");
    report.end_line("settings");
    report.field(
        "Xid events",
        info.xid_events.map(|availability| match availability {
            Availability::Available => "reported as they happen".to_owned(),
            _ => unavailable("Xid events", Some(availability)).unwrap_or_default(),
        }),
    );
    report.end_line("Xids");
}

fn write_recent_past(report: &mut ReportWriter, samples: Option<&RecentPast>) {
    let Some(samples) = samples else { return };
    let seconds = samples.utilization_percent.len().max(samples.power_watts.len());
    let mean = |sum: f64, count: usize| (count > 0).then(|| format!("{:.0}", sum / count as f64));
    let mean_of = |values: &mut dyn Iterator<Item = f64>| {
        let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
        mean(sum, count)
    };
    let shares = mean_of(&mut samples.utilization_percent.iter().flatten().map(|&percent| f64::from(percent)));
    let watts = mean_of(&mut samples.power_watts.iter().flatten().map(|&watts| f64::from(watts)));
    report.optional_field(Some(format!("{seconds} s buffered by the driver")));
    report.optional_value("mean use ", shares, " %");
    report.optional_value("mean power ", watts, " W");
    report.end_line("history");
}

fn throttle_reasons(mask: u64) -> String {
    let names: Vec<_> = ClocksEventReasons(mask).names().collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(" and ") };
    if mask == 0 { names } else { format!("{names} (mask {mask:#x})") }
}

fn text_if(state: Option<bool>, label: &str) -> Option<String> {
    state.filter(|&state| state).map(|_| label.to_owned())
}

fn compute_mode(mode: ComputeMode) -> &'static str {
    match mode {
        ComputeMode::Default => "default",
        ComputeMode::ExclusiveProcess => "exclusive process",
        ComputeMode::Prohibited => "prohibited",
        ComputeMode::Unknown => "unknown",
    }
}

/// Why a supported reading is not available.
fn unavailable(what: &str, availability: Option<Availability>) -> Option<String> {
    match availability {
        Some(Availability::NotPermitted) => Some(format!("no permission to read {what}")),
        Some(Availability::Refused) => Some(format!("the driver refuses {what}")),
        Some(Availability::Available) | None => None,
    }
}

/// The width of the command column.
const COMMAND_COLUMNS: usize = 60;
/// The indentation of the lines below a process.
const INDENT: usize = 14;
/// The maximum number of ancestors shown.
const SHOWN_ANCESTORS: usize = 6;

fn write_processes(report: &mut ReportWriter, inventory: &Inventory, snapshot: &Snapshot) {
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
        write_process_row(report, row, &process, facts, inventory);
        if row.pid.is_some() && !seen.contains(&row.pid) {
            seen.push(row.pid);
            write_process_details(report, &process, facts);
        }
    }
    if snapshot.processes_left_out > 0 {
        report.line(format!("and {} more", snapshot.processes_left_out));
    }
}

fn write_process_row(
    report: &mut ReportWriter,
    row: &GpuProcessReading,
    process: &ProcessReading,
    facts: Option<&ProcessFacts>,
    inventory: &Inventory,
) {
    let gpu = row.gpu.and_then(|gpu| inventory.gpus.get(usize::from(gpu))).map(|info| info.index);
    let percent = |percent: Option<String>| percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent}%"));
    report.line(format!(
        "{:>4} {:>8} {:4} {:>10} {:>5} {:>8} {:>10} {:6} {:12} {}",
        or_dash(gpu),
        or_dash(row.pid),
        row.kind.map_or("-", |kind| kind.as_str()),
        or_dash(row.gpu_memory_bytes.map(bytes)),
        percent(row.sm_percent.map(|percent| percent.to_string())),
        percent(process.cpu_percent.map(|percent| percent.to_string())),
        or_dash(process.rss_bytes.map(bytes)),
        state(process),
        user(facts),
        command(facts),
    ));
}

fn write_process_details(report: &mut ReportWriter, process: &ProcessReading, facts: Option<&ProcessFacts>) {
    let none = ProcessFacts::default();
    let facts = facts.unwrap_or(&none);
    let mut line = |fields: &[Option<String>]| {
        let fields: Vec<String> = fields.iter().flatten().cloned().collect();
        report.write_wrapped(&" ".repeat(INDENT), &fields);
    };
    line(&[
        with_affixes("", facts.full_name.as_ref(), ""),
        facts.owner.as_ref().map(|owner| describe_owner(owner, facts.container_name.as_ref())),
        with_affixes("in ", facts.runs_in.as_ref(), ""),
        (!facts.ancestors.is_empty()).then(|| ancestor_list(&facts.ancestors)),
        facts.ignores_hangup.filter(|&ignores| ignores).map(|_| "ignores SIGHUP".to_owned()),
    ]);
    line(&[
        with_affixes("running for ", process.age_seconds.map(time), ""),
        with_affixes("", process.threads, " threads"),
        with_affixes("", process.threads_live, " live"),
        with_affixes("", process.threads_blocked.filter(|&count| count > 0), " in uninterruptible sleep"),
        process
            .blocked_thread
            .zip(process.blocked_seconds)
            .map(|(thread, seconds)| format!("thread {thread} for {}", time(f64::from(seconds)))),
        with_affixes("waits in ", process.wait_channel.as_ref(), ""),
        process.descendants.filter(|&count| count > 0).map(|count| {
            let cpu = with_affixes(" at ", process.descendants_cpu_percent, " % CPU").unwrap_or_default();
            let blocked = process.descendants_blocked.filter(|&count| count > 0);
            format!("{count} workers{cpu}{}", with_affixes(", blocked ", blocked, "").unwrap_or_default())
        }),
    ]);
    line(&[
        with_affixes("directory ", facts.working_directory.as_ref(), ""),
        facts.log_path.as_ref().map(|path| match process.log_age_seconds {
            Some(age) => format!("log {path} written {} ago", time(age)),
            None => format!("log {path}"),
        }),
        with_affixes("read ", process.read_characters.map(bytes), ""),
        with_affixes("written ", process.write_bytes.map(bytes), ""),
        (!facts.listening_ports.is_empty()).then(|| {
            let ports: Vec<String> = facts.listening_ports.iter().map(u16::to_string).collect();
            format!("listens on {}", ports.join(" "))
        }),
        with_affixes("", process.established_connections.filter(|&count| count > 0), " connections"),
    ]);
}

fn describe_owner(owner: &Owner, name: Option<&SafeText>) -> String {
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

/// Lists the ancestors, nearest first.
fn ancestor_list(ancestors: &[Ancestor]) -> String {
    let names: Vec<_> =
        ancestors.iter().take(SHOWN_ANCESTORS).map(|parent| format!("{} {}", parent.name, parent.pid)).collect();
    format!("started by {}", names.join(" < "))
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

/// The width of the title column.
const TITLE_COLUMNS: usize = 11;

/// The width at which lines are wrapped between fields.
const COLUMNS: usize = 110;

/// Builds the text line by line.
#[derive(Debug, Default)]
struct ReportWriter {
    text: String,
    fields: Vec<String>,
    /// The names of the unknown fields of the section.
    unknown: Vec<&'static str>,
}

impl ReportWriter {
    /// Writes a whole line.
    fn line(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref().trim_end());
        self.text.push('\n');
    }

    /// Adds a field to the current line. If it is unknown, its name goes to the end of the section.
    fn field(&mut self, name: &'static str, field: Option<String>) {
        match field {
            Some(field) => self.fields.push(field),
            None => self.unknown.push(name),
        }
    }

    /// Adds a field that many hosts do not have, so it is not listed as unknown.
    fn optional_field(&mut self, field: Option<String>) {
        self.fields.extend(field);
    }

    /// Adds a field with a prefix and a suffix, as [`Self::field`] does.
    fn value<T: Display>(&mut self, name: &'static str, before: &str, value: Option<T>, after: &str) {
        self.field(name, with_affixes(before, value, after));
    }

    /// Adds a field with a prefix and a suffix, as [`Self::optional_field`] does.
    fn optional_value<T: Display>(&mut self, before: &str, value: Option<T>, after: &str) {
        self.optional_field(with_affixes(before, value, after));
    }

    /// Writes the current line, if it has a field.
    fn end_line(&mut self, title: &str) {
        let fields = std::mem::take(&mut self.fields);
        self.write_wrapped(&format!("  {title:TITLE_COLUMNS$} "), &fields);
    }

    /// Ends the section with the names of the unknown fields.
    fn end_section(&mut self) {
        self.fields = std::mem::take(&mut self.unknown).into_iter().map(str::to_owned).collect();
        self.end_line("unknown");
    }

    /// Writes a prefix and fields on as many lines as needed, indented below the first field.
    fn write_wrapped(&mut self, prefix: &str, fields: &[String]) {
        let Some((first, others)) = fields.split_first() else { return };
        let indent = prefix.chars().count();
        let mut line = format!("{prefix}{first}");
        for field in others {
            line.push(',');
            if line.chars().count() + 1 + field.chars().count() > COLUMNS {
                self.line(&line);
                line = " ".repeat(indent);
            } else {
                line.push(' ');
            }
            line.push_str(field);
        }
        self.line(line);
    }

    fn finish(self) -> String {
        self.text
    }
}

/// Formats a value with a prefix and a suffix.
fn with_affixes<T: Display>(before: &str, value: Option<T>, after: &str) -> Option<String> {
    value.map(|value| format!("{before}{value}{after}"))
}

/// Formats `used of max unit`, or less if `max` is unknown.
fn used_of<T: Display, U: Display>(before: &str, used: Option<T>, max: Option<U>, unit: &str) -> Option<String> {
    let used = used?;
    Some(match max {
        Some(max) => format!("{before}{used} of {max}{unit}"),
        None => format!("{before}{used}{unit}"),
    })
}

fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Formats bytes in binary units.
fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut amount = bytes as f64 / 1024.0;
    let mut unit = 0;
    while amount >= 1000.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    format!("{amount:.1} {}", UNITS[unit])
}

/// Formats a rate in bytes per second.
fn rate(bytes_per_second: f64) -> String {
    format!("{}/s", bytes(bytes_per_second.max(0.0) as u64))
}

/// Formats a duration in the largest unit that fits.
fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 120.0 => format!("{:.1} s", seconds.max(0.0)),
        seconds if seconds < 7200.0 => format!("{:.1} min", seconds / 60.0),
        seconds if seconds < 172_800.0 => format!("{:.1} h", seconds / 3600.0),
        seconds => format!("{:.1} d", seconds / 86_400.0),
    }
}

#[cfg(test)]
#[path = "pretty_tests.rs"]
mod tests;
