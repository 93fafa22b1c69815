//! The JSON of `gpufleet status --json`, described in docs/status-json.md, and the objects that it shares with the
//! findings.
//!
//! A missing value is `null`. Names and units are those of the wire protocol.

use super::report::{GpuView, Report, has_reported, no_answer_text};
use crate::diagnosis::proof::CulpritRank;
use crate::diagnosis::{Finding, SnoozeEnd};
use crate::fleet::{Fleet, Host, HostId, LinkError, LinkErrorKind, Misbehavior, Moment, Process};
use crate::wire::{
    DeviceError, DriverError, DriverErrorKind, GpuProcessKind, HostReading, Presence, ProcessState, SafeText, Scope,
};
use serde::Serialize;
use std::time::Duration;

/// The version of this schema. It rises when a field is removed or changes its meaning, not when one is added.
pub const SCHEMA: u32 = 1;

/// The fleet at one moment.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JsonReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When the report was written, RFC 3339 in UTC.
    pub time: Option<String>,
    /// Whether the data comes from the simulator (`--demo`).
    pub simulated: bool,
    /// The hosts, in the order of the configuration.
    pub hosts: Vec<JsonHost>,
    /// The findings after a single sample, most important first.
    pub findings: Vec<JsonFinding>,
}

impl JsonReport {
    /// Builds the JSON of a report.
    pub fn new(report: &Report<'_>) -> Self {
        Self {
            schema: SCHEMA,
            time: rfc3339(report.now),
            simulated: report.fleet.simulated,
            hosts: report.fleet.hosts().iter().map(|host| JsonHost::new(report, host)).collect(),
            findings: report.findings.iter().map(|one| JsonFinding::new(one, report.fleet, report.now)).collect(),
        }
    }
}

/// The report as one line of JSON, with its newline.
pub fn line(report: &Report<'_>) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string(&JsonReport::new(report))? + "\n")
}

/// One host.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JsonHost {
    /// The unique display name.
    pub name: SafeText,
    /// The address that gpufleet connects to.
    pub address: String,
    /// `connecting`, `live`, `stale`, `down` or `needs_user`.
    pub state: &'static str,
    /// The error, if the host is down, needs the user or has not answered in time.
    pub error: Option<JsonError>,
    /// The error of the driver, if GPU readings are missing although the host reports.
    pub gpu_error: Option<JsonGpuError>,
    /// Age of the last readings in seconds.
    pub age_seconds: Option<f64>,
    /// The round-trip time of the last heartbeat in milliseconds.
    pub round_trip_ms: Option<f64>,
    /// Whether the host sends more than gpufleet reads.
    pub limited: bool,
    /// The way in which the host misbehaves.
    pub misbehavior: Option<&'static str>,
    /// The group in hosts.toml.
    pub group: Option<SafeText>,
    /// The tags in hosts.toml.
    pub tags: Vec<SafeText>,
    /// The note in hosts.toml.
    pub note: Option<SafeText>,
    /// Facts that do not change while the host runs.
    pub info: JsonInfo,
    /// The last readings of the host itself.
    pub readings: JsonReadings,
    /// The GPUs in NVML's order.
    pub gpus: Vec<JsonGpu>,
    /// The processes on GPUs.
    pub processes: Vec<JsonProcess>,
    /// Number of processes beyond the limit of the probe.
    pub processes_left_out: Option<u32>,
}

/// Why a host gives no data.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JsonError {
    /// The stable name of the error, for example `refused`.
    pub kind: &'static str,
    /// The operation and the cause.
    pub message: SafeText,
    /// The way out.
    pub hint: Option<SafeText>,
}

/// The error of a driver or a device.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JsonGpuError {
    /// The stable name of the error, for example `version_mismatch`.
    pub kind: DriverErrorKind,
    /// The NVML return code.
    pub code: Option<i32>,
    /// The error in one sentence.
    pub message: SafeText,
}

/// Facts that do not change while a host runs.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JsonInfo {
    /// `probe` or `nvidia-smi`.
    pub source: Option<SafeText>,
    /// The version of the probe.
    pub probe_version: Option<SafeText>,
    /// The SHA-256 of the probe's program, in hexadecimal digits.
    pub probe_sha256: Option<SafeText>,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: Option<SafeText>,
    /// `uname -n`.
    pub host_name: Option<SafeText>,
    /// The user that runs the probe.
    pub login_user: Option<SafeText>,
    /// The uid of that user.
    pub login_uid: Option<u32>,
    /// `uname -r`.
    pub kernel: Option<SafeText>,
    /// `uname -m`.
    pub arch: Option<SafeText>,
    /// Number of CPUs online.
    pub cpu_count: Option<u32>,
    /// `host`, or the job or container that limits the view of the probe.
    pub scope: Option<Scope>,
    /// The version of the NVIDIA driver.
    pub driver_version: Option<SafeText>,
    /// The newest CUDA version that the driver supports.
    pub cuda_version: Option<SafeText>,
    /// The NVML library in use.
    pub nvml_path: Option<SafeText>,
}

/// The readings of the host itself.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JsonReadings {
    /// CPU utilization over all CPUs, percent.
    pub cpu_percent: Option<f32>,
    /// Share of CPU time spent waiting for I/O, percent.
    pub io_wait_percent: Option<f32>,
    /// Load average of 1 minute.
    pub load_1: Option<f32>,
    /// Load average of 5 minutes.
    pub load_5: Option<f32>,
    /// Load average of 15 minutes.
    pub load_15: Option<f32>,
    /// Total memory, bytes.
    pub memory_total_bytes: Option<u64>,
    /// Memory available without swapping, bytes.
    pub memory_available_bytes: Option<u64>,
    /// Total swap, bytes.
    pub swap_total_bytes: Option<u64>,
    /// Free swap, bytes.
    pub swap_free_bytes: Option<u64>,
    /// Time since boot, seconds.
    pub uptime_seconds: Option<f64>,
    /// Share of the last 60 s in which a task waited for I/O, percent.
    pub pressure_io_percent: Option<f32>,
    /// Share of the last 60 s in which a task waited for memory, percent.
    pub pressure_memory_percent: Option<f32>,
    /// Processes killed by the out-of-memory killer since boot.
    pub oom_kills: Option<u64>,
}

impl JsonHost {
    fn new(report: &Report<'_>, host: &Host) -> Self {
        let snapshot = host.snapshot.as_ref();
        let inventory = host.inventory.as_ref();
        let driver_error = snapshot.and_then(|snapshot| snapshot.driver_error.as_ref());
        let gpus = report.gpus(host);
        Self {
            name: host.name().clone(),
            address: host.config.address().to_owned(),
            state: host.link.word(),
            error: JsonError::of_host(host, report.now),
            gpu_error: driver_error.or(inventory.and_then(|inventory| inventory.error.as_ref())).map(JsonGpuError::new),
            age_seconds: host.age(report.now).map(|age| age.as_secs_f64()),
            round_trip_ms: host.round_trip.map(|time| time.as_secs_f64() * 1000.0),
            limited: host.misbehavior(report.now) == Some(Misbehavior::SendsTooMuch),
            misbehavior: host.misbehavior(report.now).map(Misbehavior::word),
            group: host.config.group.clone(),
            tags: host.config.tags.clone(),
            note: host.config.note.clone(),
            info: JsonInfo::new(host),
            readings: JsonReadings::new(&snapshot.map(|snapshot| snapshot.host.clone()).unwrap_or_default()),
            processes: processes(host),
            gpus: gpus.iter().map(JsonGpu::new).collect(),
            processes_left_out: snapshot.map(|snapshot| snapshot.processes_left_out),
        }
    }
}

/// The processes by pid; those without a pid come last.
fn processes(host: &Host) -> Vec<JsonProcess> {
    let mut processes: Vec<_> = host.processes().map(|process| JsonProcess::new(host, process)).collect();
    processes.sort_by_key(|process| (process.pid.is_none(), process.pid));
    processes
}

impl JsonError {
    /// The error of the connection, or the phase and the wait if the host has not answered in time.
    pub(super) fn of_host(host: &Host, now: Moment) -> Option<Self> {
        match host.link.error() {
            Some(error) => Some(Self::new(error)),
            None if has_reported(host) => None,
            None => {
                let kind = LinkErrorKind::Timeout.word();
                Some(Self { kind, message: SafeText::from(no_answer_text(host, now)), hint: None })
            }
        }
    }

    fn new(error: &LinkError) -> Self {
        Self { kind: error.kind.word(), message: error.message.clone(), hint: error.hint.clone() }
    }
}

impl JsonGpuError {
    fn new(error: &DriverError) -> Self {
        Self { kind: error.kind, code: error.code, message: error.message.clone() }
    }
}

impl JsonInfo {
    fn new(host: &Host) -> Self {
        let hello = host.hello.as_ref();
        let inventory = host.inventory.as_ref();
        Self {
            source: hello.and_then(|hello| hello.source.clone()).map(SafeText::from),
            probe_version: hello.map(|hello| hello.probe_version.clone()),
            probe_sha256: hello.and_then(|hello| hello.probe_sha256.clone()),
            boot_id: hello.and_then(|hello| hello.boot_id.clone()),
            host_name: hello.and_then(|hello| hello.host_name.clone()),
            login_user: hello.and_then(|hello| hello.login_user.clone()),
            login_uid: hello.and_then(|hello| hello.login_uid),
            kernel: hello.and_then(|hello| hello.kernel.clone()),
            arch: hello.and_then(|hello| hello.arch.clone()),
            cpu_count: hello.and_then(|hello| hello.cpu_count),
            scope: hello.and_then(|hello| hello.scope.clone()).filter(|scope| *scope != Scope::Unknown),
            driver_version: inventory.and_then(|inventory| inventory.driver_version.clone()),
            cuda_version: inventory.and_then(|inventory| inventory.cuda_version.clone()),
            nvml_path: inventory.and_then(|inventory| inventory.nvml_path.clone()),
        }
    }
}

impl JsonReadings {
    fn new(reading: &HostReading) -> Self {
        Self {
            cpu_percent: reading.cpu_percent,
            io_wait_percent: reading.io_wait_percent,
            load_1: reading.load_1,
            load_5: reading.load_5,
            load_15: reading.load_15,
            memory_total_bytes: reading.memory_total_bytes,
            memory_available_bytes: reading.memory_available_bytes,
            swap_total_bytes: reading.swap_total_bytes,
            swap_free_bytes: reading.swap_free_bytes,
            uptime_seconds: reading.uptime_seconds,
            pressure_io_percent: reading.pressure_io_percent,
            pressure_memory_percent: reading.pressure_memory_percent,
            oom_kills: reading.oom_kills,
        }
    }
}

/// One GPU: facts, state and last readings.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JsonGpu {
    /// NVML's device index, as `nvidia-smi` shows it. The UUID is the identity.
    pub index: u32,
    /// The UUID.
    pub uuid: Option<SafeText>,
    /// The product name.
    pub name: Option<SafeText>,
    /// PCI bus id.
    pub pci_bus_id: Option<SafeText>,
    /// For a MIG instance, the UUID of its parent.
    pub mig_parent_uuid: Option<SafeText>,
    /// Whether MIG mode is on.
    pub mig_enabled: Option<bool>,
    /// `free`, `unused`, `idle`, `waiting`, `in_use`, `hung`, `fault` or `unknown`.
    pub state: &'static str,
    /// Since when the GPU has been in this state, RFC 3339.
    pub state_since: Option<String>,
    /// Since when its job has looked stuck, while that is only a suspicion, RFC 3339.
    pub suspected_since: Option<String>,
    /// The error of the device; its readings are then `null`.
    pub error: Option<JsonGpuError>,
    /// Share of time in which a kernel ran, percent.
    pub utilization_percent: Option<u8>,
    /// Share of time in which memory was read or written, percent.
    pub memory_utilization_percent: Option<u8>,
    /// Memory in use, bytes.
    pub memory_used_bytes: Option<u64>,
    /// Memory reserved by the driver, bytes.
    pub memory_reserved_bytes: Option<u64>,
    /// Total memory, bytes.
    pub memory_total_bytes: Option<u64>,
    /// GPU temperature, degrees Celsius.
    pub temperature_celsius: Option<i32>,
    /// Memory temperature, degrees Celsius.
    pub memory_temperature_celsius: Option<i32>,
    /// Power draw, watts.
    pub power_watts: Option<f32>,
    /// Mean power draw since the previous reading, watts.
    pub power_mean_watts: Option<f32>,
    /// The enforced power limit, watts.
    pub power_limit_watts: Option<f32>,
    /// Energy since the driver was loaded, joules.
    pub energy_joules: Option<f64>,
    /// Graphics clock, MHz.
    pub clock_graphics_mhz: Option<u32>,
    /// SM clock, MHz.
    pub clock_sm_mhz: Option<u32>,
    /// Memory clock, MHz.
    pub clock_memory_mhz: Option<u32>,
    /// The reasons for reduced clocks, as the bit mask of NVML.
    pub clocks_event_reasons: Option<u64>,
    /// Fan speed, percent.
    pub fan_percent: Option<u16>,
    /// Performance state, 0 (fastest) to 15.
    pub performance_state: Option<u8>,
    /// Encoder utilization, percent.
    pub encoder_percent: Option<u8>,
    /// Decoder utilization, percent.
    pub decoder_percent: Option<u8>,
    /// Current PCIe generation.
    pub pcie_generation: Option<u8>,
    /// Current PCIe lanes.
    pub pcie_width: Option<u8>,
    /// Uncorrectable ECC errors since the driver was loaded.
    pub ecc_uncorrectable_volatile: Option<u64>,
}

impl JsonGpu {
    fn new(gpu: &GpuView<'_>) -> Self {
        let (info, reading) = (gpu.info, &gpu.reading);
        Self {
            index: info.index,
            uuid: info.uuid.clone(),
            name: info.name.clone(),
            pci_bus_id: info.pci_bus_id.clone(),
            mig_parent_uuid: info.mig_parent_uuid.clone(),
            mig_enabled: info.mig_enabled,
            state: gpu.state.json_word(),
            state_since: gpu.since.and_then(rfc3339),
            suspected_since: gpu.suspected_since.and_then(rfc3339),
            error: reading.error.as_ref().map(device_error),
            utilization_percent: reading.utilization_percent,
            memory_utilization_percent: reading.memory_utilization_percent,
            memory_used_bytes: reading.memory_used_bytes,
            memory_reserved_bytes: reading.memory_reserved_bytes,
            memory_total_bytes: info.memory_total_bytes,
            temperature_celsius: reading.temperature_celsius,
            memory_temperature_celsius: reading.memory_temperature_celsius,
            power_watts: reading.power_watts,
            power_mean_watts: reading.power_mean_watts,
            power_limit_watts: reading.power_limit_watts.or(info.power_limit_watts),
            energy_joules: reading.energy_joules,
            clock_graphics_mhz: reading.clock_graphics_mhz,
            clock_sm_mhz: reading.clock_sm_mhz,
            clock_memory_mhz: reading.clock_memory_mhz,
            clocks_event_reasons: reading.clocks_event_reasons,
            fan_percent: reading.fan_percent,
            performance_state: reading.performance_state,
            encoder_percent: reading.encoder_percent,
            decoder_percent: reading.decoder_percent,
            pcie_generation: reading.pcie_generation,
            pcie_width: reading.pcie_width,
            ecc_uncorrectable_volatile: gpu.health.and_then(|health| health.ecc_uncorrectable_volatile),
        }
    }
}

fn device_error(error: &DeviceError) -> JsonGpuError {
    JsonGpuError { kind: error.kind, code: error.code, message: error.message.clone() }
}

/// One process on the GPUs of a host. Its identity is (`boot_id`, `pid`, `start_ticks`).
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JsonProcess {
    /// The process id; `null` if the driver does not report it.
    pub pid: Option<u32>,
    /// The host's boot id.
    pub boot_id: Option<SafeText>,
    /// Start time in clock ticks after boot.
    pub start_ticks: Option<u64>,
    /// Start time, RFC 3339. For display only; it is not part of the identity.
    pub start_time: Option<String>,
    /// Age, seconds.
    pub age_seconds: Option<f64>,
    /// Login name.
    pub user: Option<SafeText>,
    /// Real user id.
    pub uid: Option<u32>,
    /// The kernel's short name.
    pub name: Option<SafeText>,
    /// The arguments in one line, with secrets redacted.
    pub command: Option<SafeText>,
    /// The letter of the scheduler state, as in `ps`.
    pub state: Option<ProcessState>,
    /// `visible`, `hidden` (by /proc) or `gone` (exited, but still listed by the driver).
    pub presence: Option<Presence>,
    /// `C`, `G`, `C+G` or `M` as in `nvidia-smi`, on the first GPU.
    pub kind: Option<GpuProcessKind>,
    /// Indexes of its GPUs, ascending.
    pub gpus: Vec<u32>,
    /// UUIDs of its GPUs, in the order of `gpus`.
    pub gpu_uuids: Vec<Option<SafeText>>,
    /// Memory on all its GPUs, bytes.
    pub gpu_memory_bytes: Option<u64>,
    /// The highest SM utilization on any of its GPUs, percent.
    pub sm_percent: Option<u8>,
    /// CPU utilization, percent; 100 is one CPU.
    pub cpu_percent: Option<f32>,
    /// CPU time since the start, seconds.
    pub cpu_seconds: Option<f64>,
    /// Resident memory, bytes.
    pub rss_bytes: Option<u64>,
    /// The job on its host: `slurm:3385`, `container:docker/0123456789ab`, `launcher:5061` (a pid) or `session:4211`.
    /// Processes of one host with equal values are one job.
    pub job: SafeText,
}

impl JsonProcess {
    fn new(host: &Host, process: &Process) -> Self {
        let facts = process.facts();
        let reading = &process.reading;
        let mut gpus: Vec<_> = process.gpu_positions().filter_map(|position| host.gpu_info(position)).collect();
        gpus.sort_by_key(|info| info.index);
        Self {
            pid: (process.key.pid != 0).then_some(process.key.pid),
            boot_id: process.key.boot_id.clone(),
            start_ticks: process.key.start_ticks,
            start_time: facts.and_then(|facts| {
                let by_its_clock = facts.start_unix_seconds?;
                // A host with a wrong clock computes start times from a wrong boot time.
                rfc3339_of_unix(by_its_clock.saturating_sub(host.clock_error_seconds().unwrap_or(0)))
            }),
            age_seconds: reading.age_seconds,
            user: facts.and_then(|facts| facts.user.clone()),
            uid: facts.and_then(|facts| facts.uid),
            name: facts.and_then(|facts| facts.name.clone()),
            command: facts.filter(|facts| !facts.argv.is_empty()).map(|_| process.info.command.clone()),
            state: reading.state,
            presence: reading.presence.filter(|presence| *presence != Presence::Unknown),
            kind: process.gpus.iter().find_map(|usage| usage.kind).filter(|kind| *kind != GpuProcessKind::Unknown),
            gpus: gpus.iter().map(|info| info.index).collect(),
            gpu_uuids: gpus.iter().map(|info| info.uuid.clone()).collect(),
            gpu_memory_bytes: process.gpu_memory_bytes(),
            sm_percent: process.sm_percent().map(|(_, most)| most),
            cpu_percent: reading.cpu_percent,
            cpu_seconds: reading.cpu_seconds,
            rss_bytes: reading.rss_bytes,
            job: SafeText::from(process.info.job.to_string()),
        }
    }
}

/// One finding.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[allow(clippy::struct_excessive_bools, reason = "each is a field of the schema")]
pub struct JsonFinding {
    /// The identity of the finding, equal in other runs.
    pub id: SafeText,
    /// The id of the rule, for example `stuck-spin`.
    pub rule: &'static str,
    /// `info`, `warn` or `crit`; for a pending finding, the severity at which it would fire.
    pub severity: &'static str,
    /// `suspected`, `likely` or `certain`.
    pub confidence: &'static str,
    /// `pending`, `firing` or `resolving`.
    pub phase: &'static str,
    /// Whether the finding is a suspicion: pending, about a job that looks stuck, and shown as `stuck?` on the screen.
    pub suspicion: bool,
    /// When its condition began to hold, RFC 3339.
    pub since: Option<String>,
    /// How long the condition has held.
    pub lasted_seconds: f64,
    /// Whether that duration is a lower bound.
    pub at_least: bool,
    /// When it fired, RFC 3339.
    pub fired_at: Option<String>,
    /// When a pending finding will fire if its condition continues, RFC 3339.
    pub due_at: Option<String>,
    /// The host that the finding is listed under.
    pub host: SafeText,
    /// All hosts of the finding.
    pub hosts: Vec<SafeText>,
    /// The GPUs of the finding.
    pub gpus: Vec<JsonFindingGpu>,
    /// The job, as in `status --json`.
    pub job: Option<String>,
    /// The processes of the finding.
    pub processes: Vec<JsonFindingProcess>,
    /// The owner of the processes.
    pub user: Option<SafeText>,
    /// Whether the processes belong to the login user.
    pub mine: bool,
    /// The evidence in one sentence.
    pub sentence: SafeText,
    /// The verdict of the last examination of the job; `null` without one.
    pub verdict: Option<JsonFindingVerdict>,
    /// The next thing to check.
    pub next_check: SafeText,
    /// A harmless explanation that does not apply.
    pub not: &'static str,
    /// Whether the condition already held at the first sample, so that no notification is sent.
    pub note: bool,
    /// Whether the finding is flapping.
    pub flapping: bool,
    /// Whether the host has no current readings.
    pub frozen: bool,
    /// Whether the user snoozed the finding.
    pub snoozed: bool,
    /// The end of the snooze, RFC 3339; `null` without a snooze or if it lasts until the finding changes.
    pub snoozed_until: Option<String>,
}

/// The verdict of an examination of a job.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JsonFindingVerdict {
    /// `proven`, `likely`, `suspected`, `waits_for_rank`, `not_hung` or `nothing_known`.
    pub outcome: &'static str,
    /// The verdict in one sentence.
    pub sentence: SafeText,
    /// The ranks that hold the job up, at most 4.
    pub culprits: Vec<JsonCulpritRank>,
    /// When it was reached, RFC 3339.
    pub time: Option<String>,
}

impl JsonFindingVerdict {
    /// The verdict about the job of a finding.
    pub fn of(finding: &Finding) -> Option<Self> {
        let verdict = finding.verdict.as_deref()?;
        Some(Self {
            outcome: verdict.outcome.word(),
            sentence: verdict.sentence.clone(),
            culprits: verdict.culprits.iter().map(JsonCulpritRank::new).collect(),
            time: rfc3339(verdict.at),
        })
    }
}

/// One rank that holds a job up.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JsonCulpritRank {
    /// Rank in the whole job.
    pub world_rank: Option<u32>,
    /// Rank in its communicator.
    pub rank: Option<u32>,
    /// The pid on its host, or in the job's pid namespace if the host is not watched.
    pub pid: Option<u32>,
    /// The name of its host, or the address by which NCCL knows it if the host is not watched.
    pub host: Option<SafeText>,
    /// Whether the process is on a watched host.
    pub watched: bool,
    /// The index of its GPU.
    pub gpu: Option<u32>,
    /// The operation in which this rank differs, if the ranks took different paths.
    pub operation: Option<SafeText>,
}

impl JsonCulpritRank {
    /// Builds the JSON of a rank.
    pub fn new(rank: &CulpritRank) -> Self {
        Self {
            world_rank: rank.world_rank,
            rank: rank.rank,
            pid: rank.pid,
            host: rank.host.clone(),
            watched: rank.host_id.is_some(),
            gpu: rank.gpu,
            operation: rank.operation.clone(),
        }
    }
}

/// A GPU of a finding.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JsonFindingGpu {
    /// The name of its host.
    pub host: Option<SafeText>,
    /// The index.
    pub index: u32,
    /// The UUID.
    pub uuid: Option<SafeText>,
}

/// A process of a finding.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JsonFindingProcess {
    /// The name of its host.
    pub host: Option<SafeText>,
    /// The pid.
    pub pid: u32,
    /// Start time in clock ticks after boot.
    pub start_ticks: Option<u64>,
    /// The command in one line.
    pub command: SafeText,
}

impl JsonFinding {
    /// Builds the JSON of a finding.
    pub fn new(finding: &Finding, fleet: &Fleet, now: Moment) -> Self {
        let name = |id: HostId| fleet.host(id).map(|host| host.name().clone());
        let gpus = finding.gpus.iter();
        let processes = finding.processes.iter();
        Self {
            id: finding.id.clone(),
            rule: finding.rule.word(),
            severity: finding.severity.word(),
            confidence: finding.confidence.word(),
            phase: finding.phase.word(),
            suspicion: finding.is_suspicion(),
            since: rfc3339(finding.since),
            lasted_seconds: rounded(finding.lasted(now)),
            at_least: finding.at_least,
            fired_at: finding.fired_at.and_then(rfc3339),
            due_at: finding.due.and_then(rfc3339),
            host: finding.hosts.first().and_then(|(id, _)| name(*id)).unwrap_or_default(),
            hosts: finding.hosts.iter().map(|(_, name)| name.clone()).collect(),
            gpus: gpus
                .map(|gpu| JsonFindingGpu { host: name(gpu.host), index: gpu.index, uuid: gpu.uuid.clone() })
                .collect(),
            job: finding.job.as_ref().map(ToString::to_string),
            processes: processes
                .map(|process| JsonFindingProcess {
                    host: name(process.host),
                    pid: process.key.pid,
                    start_ticks: process.key.start_ticks,
                    command: process.command.clone(),
                })
                .collect(),
            user: finding.user.clone(),
            mine: finding.is_mine,
            sentence: finding.sentence.clone(),
            verdict: JsonFindingVerdict::of(finding),
            next_check: finding.next_check.clone(),
            not: finding.not,
            note: finding.is_preexisting,
            flapping: finding.is_flapping,
            frozen: finding.is_frozen,
            snoozed: finding.snoozed.is_some(),
            snoozed_until: match finding.snoozed {
                Some(SnoozeEnd::At(until)) => rfc3339(until),
                Some(SnoozeEnd::OnChange) | None => None,
            },
        }
    }
}

/// Seconds, rounded to milliseconds.
pub(super) fn rounded(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e3).round() / 1e3
}

/// Formats a moment as RFC 3339 in seconds; `None` if the year is out of range.
pub(crate) fn rfc3339(moment: Moment) -> Option<String> {
    rfc3339_of_unix(i64::try_from(moment.unix.as_secs()).ok()?)
}

fn rfc3339_of_unix(seconds: i64) -> Option<String> {
    jiff::Timestamp::from_second(seconds).ok().map(|time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;
    use serde_json::Value;

    fn produced() -> Value {
        let mut value = Value::Null;
        fixture::with_report(|report| value = serde_json::to_value(JsonReport::new(report)).expect("encodes"));
        value
    }

    #[test]
    fn the_document_names_every_json_field() {
        fixture::assert_documented(include_str!("../../docs/status-json.md"), &[produced()]);
    }

    #[test]
    fn every_host_has_the_same_fields() {
        let report = produced();
        let fields = |host: &Value| {
            let objects = ["info", "readings"].map(|name| host[name].as_object().map(serde_json::Map::len));
            (host.as_object().map(serde_json::Map::len), objects)
        };
        let hosts = report["hosts"].as_array().expect("hosts");
        assert_eq!(hosts.len(), 6);
        assert!(hosts.iter().all(|host| fields(host) == fields(&hosts[0])));
    }

    #[test]
    fn processes_are_listed_once_and_missing_values_are_null() {
        let report = produced();
        let host = &report["hosts"][0];
        let processes = host["processes"].as_array().expect("processes");
        let pids: Vec<&Value> = processes.iter().map(|process| &process["pid"]).collect();
        assert_eq!(pids, [&Value::from(900), &Value::from(2028), &Value::Null]);
        let training = &processes[1];
        assert_eq!(training["gpus"], serde_json::json!([0, 1]));
        assert_eq!(training["gpu_uuids"], serde_json::json!(["GPU-0", "GPU-1"]));
        assert_eq!(training["gpu_memory_bytes"], Value::from(143_u64 << 30));
        assert_eq!(training["start_time"], Value::from("2026-05-04T11:00:00Z"));
        assert_eq!(host["gpus"][3]["utilization_percent"], Value::Null);
        assert_eq!(host["gpus"][1]["state"], Value::from("hung"));
        assert_eq!(host["gpus"][1]["state_since"], Value::from("2026-05-04T11:42:00Z"));
        assert_eq!(host["gpus"][2]["error"]["kind"], Value::from("gpu_lost"));
        let suspected = |gpu: usize| host["gpus"][gpu]["suspected_since"].as_str();
        assert_eq!([suspected(0), suspected(1)], [Some("2026-05-04T11:58:30Z"), None], "a hang is no suspicion");
        let suspicions = |report: &Value| {
            let findings = report["findings"].as_array().expect("findings");
            findings.iter().map(|one| one["suspicion"].as_bool().expect("a boolean")).collect::<Vec<_>>()
        };
        assert_eq!(suspicions(&report), [false, true, false]);
        assert_eq!(report["hosts"][1]["gpu_error"]["kind"], Value::from("version_mismatch"));
        assert_eq!(report["hosts"][2]["error"]["kind"], Value::from("refused"));
        assert_eq!(report["hosts"][2]["age_seconds"], Value::Null);
        assert_eq!(report["time"], Value::from("2026-05-04T12:00:00Z"));
    }

    #[test]
    fn the_report_is_one_line() {
        fixture::with_report(|report| {
            let line = line(report).expect("encodes");
            assert_eq!(line.matches('\n').count(), 1);
            assert!(line.starts_with("{\"schema\":1,\"time\":\"2026-"), "{line}");
        });
    }

    #[test]
    fn times_out_of_range_are_null() {
        assert_eq!(rfc3339_of_unix(i64::MAX), None);
        assert_eq!(rfc3339_of_unix(0).as_deref(), Some("1970-01-01T00:00:00Z"));
    }
}
