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

use super::decimal::{thousandths, with_decimals};
use crate::wire::{
    Availability, ClocksEventReasons, ComputeMode, Filesystem, GpuHealth, GpuInfo, GpuProcessReading, GpuReading,
    Hello, HostReading, Inventory, Owner, Presence, ProbeCost, ProcessFacts, ProcessReading, RecentPast,
    RecoveryAction, SafeText, Scope, Snapshot,
};

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
        let gpu = index_of(inventory, event.gpu).text();
        let age = Value::Seconds(snapshot.monotonic_seconds - event.monotonic_seconds).text();
        report.line(format!("Xid {} on GPU {gpu}, {age} ago", event.xid));
    }
    for note in &snapshot.notes {
        report.line(format!("note: {note}"));
    }
    report.text
}

/// The index of the GPU at a position of the inventory.
fn index_of(inventory: &Inventory, position: Option<u16>) -> Value<'static> {
    position.and_then(|position| inventory.gpus.get(usize::from(position))).map(|info| info.index).into()
}

fn write_host(report: &mut ReportWriter, hello: &Hello, inventory: &Inventory, snapshot: &Snapshot) {
    let host = &snapshot.host;
    let [name, kernel, arch] = [&hello.host_name, &hello.kernel, &hello.arch].map(|text| Value::from(text).text());
    report.line(format!("{name}  Linux {kernel} {arch}  up {}", time(host.uptime_seconds).text()));
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
        report.text(describe_filesystem(filesystem));
        report.end_line("filesystem");
    }
    report.optional("cluster {}", &host.slurm_cluster);
    if let Some(gpus) = &host.slurm_allocated_gpus {
        let gpus = if gpus.is_empty() { "none".to_owned() } else { numbers(gpus) };
        report.optional("GPUs allocated to jobs: {}", Value::Text(&gpus));
    }
    let mut jobs = String::new();
    for job in host.slurm_jobs.iter().flatten() {
        let user = job.user.as_deref().unwrap_or("?");
        append(&mut jobs, ", ", &format!("{} of {user} on {}", job.job, numbers(&job.gpus)));
    }
    report.optional("jobs: {}", text_unless_empty(&jobs));
    report.end_line("Slurm");
    report.optional("{}", &inventory.driver_version);
    report.optional("CUDA {}", &inventory.cuda_version);
    report.optional("{}", &inventory.nvml_path);
    report.optional("{} GPUs on the PCI bus", host.nvidia_pci_devices);
    report.end_line("driver");
    write_cost(report, hello, snapshot.cost.as_ref());
    report.end_section();
    for error in [&inventory.error, &snapshot.driver_error].into_iter().flatten() {
        let code = error.code.map_or_else(String::new, |code| format!(" (NVML error {code})"));
        report.line(format!("no GPU readings: {}{code}", error.message));
    }
}

fn write_load(report: &mut ReportWriter, hello: &Hello, host: &HostReading) {
    let cpu_percent = Value::from(host.cpu_percent).with_unit(" %");
    report.value_of("CPU use", "{}", text_unless_empty(&cpu_percent), hello.cpu_count);
    report.optional("waiting for I/O {} %", host.io_wait_percent);
    let [load, load_5, load_15] = [host.load_1, host.load_5, host.load_15].map(|load| Value::from(load).text());
    let load = host.load_1.map_or_else(String::new, |_| format!("{load} {load_5} {load_15}"));
    report.value("load", "load {}", text_unless_empty(&load));
    report.end_line("CPU");
    report.value_of("memory", "{}", bytes(host.memory_used_bytes()), bytes(host.memory_total_bytes));
    let swap_used = host.swap_total_bytes.zip(host.swap_free_bytes).map(|(total, free)| total.saturating_sub(free));
    report.optional_of("swap {}", bytes(swap_used), bytes(host.swap_total_bytes));
    report.end_line("memory");
    report.value("pressure", "CPU {} %", host.pressure_cpu_percent);
    report.optional("memory {} %", host.pressure_memory_percent);
    report.optional("I/O {} % of the last minute", host.pressure_io_percent);
    report.end_line("pressure");
    report.value("network", "in {}", rate(host.network_receive_bytes_per_second));
    report.optional("out {}", rate(host.network_transmit_bytes_per_second));
    report.end_line("network");
    report.value("disks", "read {}", rate(host.disk_read_bytes_per_second));
    report.optional("written {}", rate(host.disk_write_bytes_per_second));
    report.end_line("disks");
    report.optional("{} in uninterruptible sleep", host.tasks_blocked);
    report.optional("{} killed by the OOM killer since boot", host.oom_kills);
    report.end_line("tasks");
}

fn describe_filesystem(filesystem: &Filesystem) -> String {
    let Filesystem { mount_point, kind, total_bytes, available_bytes, silent_seconds, .. } = filesystem;
    let state = match silent_seconds {
        Some(seconds) => format!("no answer for {}", Value::Seconds(f64::from(*seconds)).text()),
        None => format!("{} free of {}", bytes(*available_bytes).text(), bytes(*total_bytes).text()),
    };
    format!("{mount_point} ({kind}): {state}")
}

fn write_cost(report: &mut ReportWriter, hello: &Hello, cost: Option<&ProbeCost>) {
    let Some(cost) = cost else { return };
    report.optional("process {}", hello.probe_pid);
    report.optional("{} s of CPU", Some(cost.cpu_seconds));
    report.optional("{}", bytes(cost.rss_bytes));
    report.optional("{} ms for this snapshot", Some(cost.sample_ms));
    report.optional("{} probes on this host", cost.probes_on_host);
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
    if reading.blocked_seconds.is_some() {
        let seconds = Value::from(reading.blocked_seconds).text();
        report.line(format!("  an NVML call has not returned for {seconds} s"));
        return;
    }
    if reading.processes_unknown == Some(true) {
        report.line("  the driver refused the list of its processes");
    }
    if info.unified_memory == Some(true) {
        report.text("shared with the host");
    } else {
        report.value_of("memory", "{}", bytes(reading.memory_used_bytes), bytes(info.memory_total_bytes));
        report.optional("reserved {}", bytes(reading.memory_reserved_bytes));
    }
    report.optional_of("BAR1 {}", bytes(health.bar1_used_bytes), bytes(info.bar1_total_bytes));
    report.end_line("memory");
    write_activity(report, info, reading);
    if instance {
        report.optional("GPU instance {}", info.gpu_instance_id);
        report.optional("compute instance {}", info.compute_instance_id);
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
        report.value("use", "{} %", reading.utilization_percent);
        report.value("memory bus", "memory bus {} %", reading.memory_utilization_percent);
        report.value("encoder", "encoder {} %", reading.encoder_percent);
        report.value("decoder", "decoder {} %", reading.decoder_percent);
        report.end_line("use");
    }
    report.optional("active {} %", reading.sm_activity_percent);
    report.optional("occupied {} %", reading.sm_occupancy_percent);
    report.optional("tensor cores {} %", reading.tensor_activity_percent);
    report.optional("DRAM bandwidth {} %", reading.dram_bandwidth_percent);
    report.unavailable("GPM", info.gpm);
    report.end_line("SMs");
}

fn write_sensors(report: &mut ReportWriter, info: &GpuInfo, reading: &GpuReading) {
    report.value("temperature", "{} °C", reading.temperature_celsius);
    // Limits of an unknown temperature would stand after another value.
    if reading.temperature_celsius.is_some() {
        report.optional("slows down at {}", info.temperature_slowdown_celsius);
        report.optional("shuts down at {}", info.temperature_shutdown_celsius);
    }
    report.value("memory temperature", "memory {} °C", reading.memory_temperature_celsius);
    if reading.memory_temperature_celsius.is_some() {
        report.optional("slows down at {}", info.memory_temperature_max_celsius);
    }
    report.value("fan", "fan {} %", reading.fan_percent);
    report.end_line("temperature");
    let enforced = reading.power_limit_watts.or(info.power_limit_watts);
    report.value_of("power", "{} W", reading.power_watts, enforced);
    report.optional("maximum limit {} W", info.power_limit_max_watts.filter(|&max| Some(max) != enforced));
    report.value("mean power", "mean {} W", reading.power_mean_watts);
    let watt_hours = reading.energy_joules.map(|joules| (joules / 3600.0) as u64);
    report.value("energy", "{} Wh since the driver was loaded", watt_hours);
    report.end_line("power");
    report.value_of("clocks", "graphics {} MHz", reading.clock_graphics_mhz, info.clock_graphics_max_mhz);
    report.optional_of("SM {} MHz", reading.clock_sm_mhz, info.clock_sm_max_mhz);
    report.optional_of("memory {} MHz", reading.clock_memory_mhz, info.clock_memory_max_mhz);
    report.value("performance state", "P{}", reading.performance_state);
    report.end_line("clocks");
    let reasons = reading.clocks_event_reasons.map_or_else(String::new, throttle_reasons);
    report.value("throttle reasons", "{}", text_unless_empty(&reasons));
    report.optional("time at power cap {}", time(reading.power_violation_seconds));
    report.optional("at thermal limit {}", time(reading.thermal_violation_seconds));
    report.optional("at power brake {}", time(reading.power_brake_seconds));
    report.end_line("throttling");
}

fn write_links(report: &mut ReportWriter, info: &GpuInfo, reading: &GpuReading, health: &GpuHealth) {
    if info.unified_memory != Some(true) {
        report.value_of("PCIe link", "generation {}", reading.pcie_generation, info.pcie_generation_max);
        report.optional_of("lanes {}", reading.pcie_width, info.pcie_width_max);
        report.value("PCIe traffic", "in {}", rate(reading.pcie_receive_bytes_per_second));
        report.optional("out {}", rate(reading.pcie_transmit_bytes_per_second));
        report.end_line("PCIe");
    }
    if let Some(active) = health.nvlinks_active {
        let down: Vec<u8> = (0..info.nvlink_count.unwrap_or(0)).filter(|&link| active >> link & 1 == 0).collect();
        let down = if down.is_empty() { String::new() } else { format!(" (down: {})", numbers(&down)) };
        report.text(format!("{} of {} up{down}", active.count_ones(), Value::from(info.nvlink_count).text()));
    }
    report.optional("in {}", rate(reading.nvlink_receive_bytes_per_second));
    report.optional("out {}", rate(reading.nvlink_transmit_bytes_per_second));
    report.end_line("NVLink");
}

fn write_faults(report: &mut ReportWriter, health: &GpuHealth) {
    let errors = |now: Option<u64>, ever: Option<u64>| {
        let ever = ever.map_or_else(String::new, |ever| format!(" ({ever} in total)"));
        Value::from(now).with_unit(&ever)
    };
    let corrected = errors(health.ecc_corrected_volatile, health.ecc_corrected_aggregate);
    report.value("ECC", "corrected {}", text_unless_empty(&corrected));
    let uncorrectable = errors(health.ecc_uncorrectable_volatile, health.ecc_uncorrectable_aggregate);
    report.optional("uncorrectable {}", text_unless_empty(&uncorrectable));
    report.end_line("ECC errors");
    report.optional("PCIe replays {}", health.pcie_replays);
    report.optional("NVLink CRC errors {}", health.nvlink_crc_errors);
    report.optional("replays {}", health.nvlink_replays);
    report.optional("recoveries {}", health.nvlink_recoveries);
    report.end_line("links");
    report.optional("remapped for correctable errors {}", health.remapped_rows_correctable);
    report.optional("for uncorrectable errors {}", health.remapped_rows_uncorrectable);
    report.text_if(health.row_remap_pending, "remapping pending: reset the GPU");
    report.text_if(health.row_remap_failed, "remapping failed: replace the GPU");
    report.end_line("rows");
    report.optional("retired for single-bit errors {}", health.retired_pages_single_bit);
    report.optional("for double-bit errors {}", health.retired_pages_double_bit);
    report.text_if(health.retired_pages_pending, "retirement pending: reboot the host");
    report.end_line("pages");
    if let Some(action) = health.recovery_action.filter(|&action| action != RecoveryAction::None) {
        report.text(action.description());
    }
    report.end_line("recovery");
}

fn write_settings(report: &mut ReportWriter, info: &GpuInfo, health: &GpuHealth) {
    let on = |on: Option<bool>| on.map_or(Value::Unknown, |on| Value::Text(if on { "on" } else { "off" }));
    report.value("persistence mode", "persistence mode {}", on(health.persistence_mode));
    let compute_mode = health.compute_mode.map_or(Value::Unknown, |mode| Value::Text(compute_mode(mode)));
    report.value("compute mode", "compute mode {}", compute_mode);
    report.optional("MIG {}", on(info.mig_enabled));
    report.optional("power smoothing {}", on(health.power_smoothing));
    report.optional("/dev/nvidia{}", info.minor_number);
    report.end_line("settings");
    if info.xid_events == Some(Availability::Available) {
        report.text("reported as they happen");
    } else if info.xid_events.is_none() {
        report.value("Xid events", "{}", Value::Unknown);
    }
    report.unavailable("Xid events", info.xid_events);
    report.end_line("Xids");
}

fn write_recent_past(report: &mut ReportWriter, samples: Option<&RecentPast>) {
    let Some(samples) = samples else { return };
    let seconds = samples.utilization_percent.len().max(samples.power_watts.len());
    report.optional("{} s buffered by the driver", Some(seconds as u32));
    let known = samples.utilization_percent.iter().flatten();
    let (sum, count) = known.fold((0.0, 0), |(sum, count), &percent| (sum + f64::from(percent), count + 1));
    report.optional("mean use {} %", mean(sum, count));
    let known = samples.power_watts.iter().flatten();
    let (sum, count) = known.fold((0.0, 0), |(sum, count), &watts| (sum + f64::from(watts), count + 1));
    report.optional("mean power {} W", mean(sum, count));
    report.end_line("history");
}

/// The mean of `count` values, rounded.
fn mean(sum: f64, count: u32) -> Option<u64> {
    (count > 0).then(|| (sum / f64::from(count) + 0.5) as u64)
}

fn throttle_reasons(mask: u64) -> String {
    let mut names = String::new();
    for name in ClocksEventReasons(mask).names() {
        append(&mut names, " and ", name);
    }
    if names.is_empty() {
        names.push_str("none");
    }
    if mask == 0 { names } else { format!("{names} (mask {mask:#x})") }
}

fn compute_mode(mode: ComputeMode) -> &'static str {
    match mode {
        ComputeMode::Default => "default",
        ComputeMode::ExclusiveProcess => "exclusive process",
        ComputeMode::Prohibited => "prohibited",
        ComputeMode::Unknown => "unknown",
    }
}

/// The titles and widths of the columns before the command. A negative width aligns to the left.
const COLUMNS_OF_PROCESSES: [(&str, i8); 9] = [
    ("GPU", 4),
    ("PID", 8),
    ("KIND", -4),
    ("MEMORY", 10),
    ("SM", 5),
    ("CPU", 8),
    ("RSS", 10),
    ("STATE", -6),
    ("USER", -12),
];
/// The width of the command column.
const COMMAND_COLUMNS: usize = 60;
/// The indentation of the lines below a process.
const INDENT: usize = 14;
/// The maximum number of ancestors shown.
const SHOWN_ANCESTORS: usize = 6;

fn write_processes(report: &mut ReportWriter, inventory: &Inventory, snapshot: &Snapshot) {
    let rows = snapshot.gpu_processes.len();
    if rows == 0 {
        return;
    }
    report.line("");
    report.line(process_line(COLUMNS_OF_PROCESSES.map(|(title, _)| Value::Text(title)), "COMMAND"));
    let mut seen = Vec::new();
    for row in 0..rows {
        let row = snapshot.gpu_processes.row(row);
        let process = row.pid.and_then(|pid| snapshot.processes.pid.iter().position(|known| *known == Some(pid)));
        let process = snapshot.processes.row(process.unwrap_or(usize::MAX));
        let facts = row.pid.and_then(|pid| snapshot.facts.iter().find(|facts| facts.pid == pid));
        write_process_row(report, &row, &process, facts, inventory);
        if row.pid.is_some() && !seen.contains(&row.pid) {
            seen.push(row.pid);
            if let Some(facts) = facts {
                write_facts(report, facts);
            }
            write_process_details(report, &process);
            write_files(report, &process, facts);
        }
    }
    if snapshot.processes_left_out > 0 {
        report.line(format!("and {} more", snapshot.processes_left_out));
    }
}

/// Aligns the values of the process columns.
fn process_line(values: [Value; COLUMNS_OF_PROCESSES.len()], command: &str) -> String {
    let mut line = String::new();
    for (value, (_, width)) in values.into_iter().zip(COLUMNS_OF_PROCESSES) {
        let text = value.text();
        let padding = " ".repeat(usize::from(width.unsigned_abs()).saturating_sub(text.chars().count()));
        let (before, after) = if width < 0 { ("", &*padding) } else { (&*padding, "") };
        for part in [before, &text, after, " "] {
            line.push_str(part);
        }
    }
    line.push_str(command);
    line
}

fn write_process_row(
    report: &mut ReportWriter,
    row: &GpuProcessReading,
    process: &ProcessReading,
    facts: Option<&ProcessFacts>,
    inventory: &Inventory,
) {
    let sm_percent = Value::from(row.sm_percent).with_unit("%");
    let cpu_percent = Value::from(process.cpu_percent).with_unit("%");
    let mut buffer = [0; 4];
    let state = match (process.presence, process.state) {
        (Some(Presence::Gone), _) => Value::Text("gone"),
        (Some(Presence::Hidden), _) => Value::Text("hidden"),
        (_, Some(state)) => Value::Text(state.letter().encode_utf8(&mut buffer)),
        (_, None) => Value::Unknown,
    };
    let user = facts.map_or(Value::Unknown, |facts| match &facts.user {
        Some(user) => Value::Text(user),
        None => facts.uid.into(),
    });
    let values = [
        index_of(inventory, row.gpu),
        row.pid.into(),
        row.kind.map_or(Value::Unknown, |kind| Value::Text(kind.as_str())),
        bytes(row.gpu_memory_bytes),
        text_unless_empty(&sm_percent),
        text_unless_empty(&cpu_percent),
        bytes(process.rss_bytes),
        state,
        user,
    ];
    report.line(process_line(values, &command(facts)));
}

fn write_facts(report: &mut ReportWriter, facts: &ProcessFacts) {
    report.optional("{}", &facts.full_name);
    if let Some(owner) = &facts.owner {
        report.text(describe_owner(owner, facts.container_name.as_ref()));
    }
    report.optional("in {}", &facts.runs_in);
    let mut ancestors = String::new();
    // The nearest one first.
    for parent in facts.ancestors.iter().take(SHOWN_ANCESTORS) {
        append(&mut ancestors, " < ", &format!("{} {}", parent.name, parent.pid));
    }
    report.optional("started by {}", text_unless_empty(&ancestors));
    report.text_if(facts.ignores_hangup, "ignores SIGHUP");
    report.end_details();
}

fn write_process_details(report: &mut ReportWriter, process: &ProcessReading) {
    let above_zero = |count: Option<u32>| count.filter(|&count| count > 0);
    report.optional("running for {}", time(process.age_seconds));
    report.optional("{} threads", process.threads);
    report.optional("{} live", process.threads_live);
    report.optional("{} in uninterruptible sleep", above_zero(process.threads_blocked));
    if let Some((thread, seconds)) = process.blocked_thread.zip(process.blocked_seconds) {
        report.text(format!("thread {thread} for {}", Value::Seconds(f64::from(seconds)).text()));
    }
    report.optional("waits in {}", &process.wait_channel);
    if let Some(count) = above_zero(process.descendants) {
        let mut workers = format!("{count} workers");
        if process.descendants_cpu_percent.is_some() {
            workers.push_str(" at ");
            workers.push_str(&Value::from(process.descendants_cpu_percent).with_unit(" % CPU"));
        }
        report.text(workers);
        report.optional("blocked {}", above_zero(process.descendants_blocked));
    }
    report.end_details();
}

fn write_files(report: &mut ReportWriter, process: &ProcessReading, facts: Option<&ProcessFacts>) {
    if let Some(facts) = facts {
        report.optional("directory {}", &facts.working_directory);
        if let Some(path) = &facts.log_path {
            report.text(match process.log_age_seconds {
                Some(age) => format!("log {path} written {} ago", Value::Seconds(age).text()),
                None => format!("log {path}"),
            });
        }
    }
    report.optional("read {}", bytes(process.read_characters));
    report.optional("written {}", bytes(process.write_bytes));
    if let Some(facts) = facts {
        report.optional("listens on {}", text_unless_empty(&numbers(&facts.listening_ports)));
    }
    report.optional("{} connections", process.established_connections.filter(|&count| count > 0));
    report.optional("{} clients wait", process.waiting_clients.filter(|&count| count > 0));
    report.optional("longest for {}", time(process.longest_wait_seconds));
    report.end_details();
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

fn command(facts: Option<&ProcessFacts>) -> String {
    let Some(facts) = facts else { return "-".to_owned() };
    let mut line = String::new();
    for argument in &facts.argv {
        append(&mut line, " ", argument);
    }
    if line.is_empty() {
        line = Value::from(&facts.name).text();
    }
    if let Some((end, _)) = line.char_indices().nth(COMMAND_COLUMNS) {
        line.truncate(end);
        line.push('…');
    }
    line
}

/// The width of the title column.
const TITLE_COLUMNS: usize = 11;

/// The width at which lines are wrapped between fields.
const COLUMNS: usize = 110;

/// Builds the text line by line. Its methods take a [`Value`], because the code of a method that is generic over the type of
/// the value is in the probe once for each type.
#[derive(Debug, Default)]
struct ReportWriter {
    text: String,
    fields: Vec<String>,
    /// The names of the unknown fields of the section.
    unknown: Vec<String>,
}

impl ReportWriter {
    /// Writes a whole line.
    fn line(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref().trim_end());
        self.text.push('\n');
    }

    /// Adds a field with the value in place of `{}` in `template`. If the value is unknown, the name of the field goes to the
    /// end of the section.
    fn value<'a>(&mut self, name: &'static str, template: &str, value: impl Into<Value<'a>>) {
        self.add(name, template, value.into(), Value::Unknown);
    }

    /// Adds a field that many hosts do not have, so it is not listed as unknown.
    fn optional<'a>(&mut self, template: &str, value: impl Into<Value<'a>>) {
        self.add("", template, value.into(), Value::Unknown);
    }

    /// Adds a field as [`Self::value`] does, with `used of max` as value, or with `used` if `max` is unknown.
    fn value_of<'a>(
        &mut self,
        name: &'static str,
        template: &str,
        used: impl Into<Value<'a>>,
        max: impl Into<Value<'a>>,
    ) {
        self.add(name, template, used.into(), max.into());
    }

    /// Adds a field as [`Self::value_of`] does, which is not listed as unknown.
    fn optional_of<'a>(&mut self, template: &str, used: impl Into<Value<'a>>, max: impl Into<Value<'a>>) {
        self.add("", template, used.into(), max.into());
    }

    #[inline(never)]
    fn add(&mut self, name: &'static str, template: &str, used: Value, max: Value) {
        if matches!(used, Value::Unknown) {
            if !name.is_empty() {
                self.unknown.push(name.to_owned());
            }
            return;
        }
        let (before, after) = template.split_once("{}").unwrap_or((template, ""));
        let mut field = before.to_owned();
        field.push_str(&used.text());
        if !matches!(max, Value::Unknown) {
            field.push_str(" of ");
            field.push_str(&max.text());
        }
        field.push_str(after);
        self.fields.push(field);
    }

    /// Adds a field.
    fn text(&mut self, text: impl Into<String>) {
        self.fields.push(text.into());
    }

    /// Adds a field if `state` is true.
    fn text_if(&mut self, state: Option<bool>, text: &str) {
        if state == Some(true) {
            self.text(text);
        }
    }

    /// Adds the reason why a supported reading is not available.
    fn unavailable(&mut self, name: &str, availability: Option<Availability>) {
        match availability {
            Some(Availability::NotPermitted) => self.optional("no permission to read {}", Value::Text(name)),
            Some(Availability::Refused) => self.optional("the driver refuses {}", Value::Text(name)),
            Some(Availability::Available) | None => {}
        }
    }

    /// Writes the current line, if it has a field.
    fn end_line(&mut self, title: &str) {
        let mut prefix = format!("  {title}");
        prefix.push_str(&" ".repeat((TITLE_COLUMNS + 1).saturating_sub(title.len())));
        self.write_wrapped(&prefix);
    }

    /// Writes the current line below a process, if it has a field.
    fn end_details(&mut self) {
        self.write_wrapped(&" ".repeat(INDENT));
    }

    /// Ends the section with the names of the unknown fields.
    fn end_section(&mut self) {
        self.fields = std::mem::take(&mut self.unknown);
        self.end_line("unknown");
    }

    /// Writes a prefix and the fields on as many lines as needed, indented below the first field.
    fn write_wrapped(&mut self, prefix: &str) {
        let mut line = prefix.to_owned();
        let mut is_first = true;
        for field in std::mem::take(&mut self.fields) {
            if !is_first {
                line.push(',');
                if line.chars().count() + 1 + field.chars().count() > COLUMNS {
                    self.line(&line);
                    line = " ".repeat(prefix.len());
                } else {
                    line.push(' ');
                }
            }
            is_first = false;
            line.push_str(&field);
        }
        if !is_first {
            self.line(line);
        }
    }
}

/// A value in the text.
#[derive(Clone, Copy)]
enum Value<'a> {
    Unknown,
    Integer(i64),
    /// Shown with at most three decimals.
    Decimal(f64),
    Bytes(u64),
    BytesPerSecond(f64),
    Seconds(f64),
    Text(&'a str),
}

impl Value<'_> {
    fn text(self) -> String {
        match self {
            Value::Unknown => "-".to_owned(),
            Value::Integer(number) => number.to_string(),
            Value::Decimal(number) => thousandths(number),
            Value::Bytes(bytes) => format_bytes(bytes),
            Value::BytesPerSecond(rate) => format!("{}/s", format_bytes(rate.max(0.0) as u64)),
            Value::Seconds(seconds) => format_seconds(seconds),
            Value::Text(text) => text.to_owned(),
        }
    }

    /// The value and a unit. Empty if it is unknown.
    fn with_unit(self, unit: &str) -> String {
        if matches!(self, Value::Unknown) {
            return String::new();
        }
        let mut text = self.text();
        text.push_str(unit);
        text
    }
}

/// Converts from numbers of these types, and from none.
macro_rules! values_from {
    ($($type:ty => $variant:ident as $number:ty,)*) => {
        $(impl From<Option<$type>> for Value<'_> {
            fn from(value: Option<$type>) -> Self {
                value.map_or(Value::Unknown, |value| Value::$variant(value as $number))
            }
        })*
    };
}

values_from! {
    u8 => Integer as i64,
    u16 => Integer as i64,
    u32 => Integer as i64,
    i32 => Integer as i64,
    u64 => Integer as i64,
    f32 => Decimal as f64,
    f64 => Decimal as f64,
}

impl<'a> From<&'a Option<SafeText>> for Value<'a> {
    fn from(text: &'a Option<SafeText>) -> Self {
        text.as_deref().map_or(Value::Unknown, Value::Text)
    }
}

/// A text, or an unknown value if it is empty.
fn text_unless_empty(text: &str) -> Value<'_> {
    if text.is_empty() { Value::Unknown } else { Value::Text(text) }
}

fn bytes(bytes: Option<u64>) -> Value<'static> {
    bytes.map_or(Value::Unknown, Value::Bytes)
}

fn rate(bytes_per_second: Option<f64>) -> Value<'static> {
    bytes_per_second.map_or(Value::Unknown, Value::BytesPerSecond)
}

fn time(seconds: Option<f64>) -> Value<'static> {
    seconds.map_or(Value::Unknown, Value::Seconds)
}

/// Appends an item to a list.
fn append(list: &mut String, separator: &str, item: &str) {
    if !list.is_empty() {
        list.push_str(separator);
    }
    list.push_str(item);
}

/// Formats numbers with a space in between.
fn numbers<T: Copy + Into<u32>>(numbers: &[T]) -> String {
    let mut text = String::new();
    for &number in numbers {
        append(&mut text, " ", &number.into().to_string());
    }
    text
}

/// Formats bytes in binary units.
fn format_bytes(bytes: u64) -> String {
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
    format!("{} {}", with_decimals(amount, 1), UNITS[unit])
}

/// Formats a duration in the largest unit that fits.
fn format_seconds(seconds: f64) -> String {
    let (amount, unit) = match seconds {
        seconds if seconds < 120.0 => (seconds.max(0.0), "s"),
        seconds if seconds < 7200.0 => (seconds / 60.0, "min"),
        seconds if seconds < 172_800.0 => (seconds / 3600.0, "h"),
        seconds => (seconds / 86_400.0, "d"),
    };
    format!("{} {unit}", with_decimals(amount, 1))
}

#[cfg(test)]
#[path = "pretty_tests.rs"]
mod tests;
