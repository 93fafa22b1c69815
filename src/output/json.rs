//! One host.

use super::super::Report;
use super::{JsonGpu, JsonProcess};
use crate::fleet::{Host, LinkError};
use crate::wire::{DriverError, DriverErrorKind, HostReading, SafeText, Scope};
use serde::Serialize;

/// One host.
#[derive(Debug, Serialize)]
pub struct JsonHost {
    /// The name it is shown by; unique.
    pub name: SafeText,
    /// What is connected to.
    pub address: String,
    /// `connecting`, `live`, `stale`, `down` or `needs_user`.
    pub state: &'static str,
    /// Why it is down or needs a person.
    pub error: Option<JsonError>,
    /// Why the driver cannot be read there. The host itself has reported.
    pub gpu_error: Option<JsonGpuError>,
    /// Age of the last readings in seconds.
    pub age_seconds: Option<f64>,
    /// How long a heartbeat takes, in milliseconds.
    pub round_trip_ms: Option<f64>,
    /// The heading of hosts.toml.
    pub group: Option<SafeText>,
    /// The tags of hosts.toml.
    pub tags: Vec<SafeText>,
    /// The note of hosts.toml.
    pub note: Option<SafeText>,
    /// What does not change while it runs.
    pub info: JsonInfo,
    /// The last readings of the host itself.
    pub readings: JsonReadings,
    /// Its GPUs, in NVML's order.
    pub gpus: Vec<JsonGpu>,
    /// The processes on its GPUs, one entry each.
    pub processes: Vec<JsonProcess>,
    /// Processes beyond the limit of what a probe sends.
    pub processes_left_out: Option<u32>,
}

/// Why a host gives no data.
#[derive(Debug, Serialize)]
pub struct JsonError {
    /// One stable word, for example `refused`.
    pub kind: &'static str,
    /// One sentence.
    pub message: SafeText,
    /// What a person can do.
    pub hint: Option<SafeText>,
}

/// Why a driver or a device cannot be read.
#[derive(Debug, Serialize)]
pub struct JsonGpuError {
    /// One stable word, for example `version_mismatch`.
    pub kind: DriverErrorKind,
    /// NVML's return code.
    pub code: Option<i32>,
    /// One sentence.
    pub message: SafeText,
}

/// What does not change while a host runs.
#[derive(Debug, Serialize)]
pub struct JsonInfo {
    /// `probe` or `nvidia-smi`.
    pub source: Option<SafeText>,
    /// Version of the probe.
    pub probe_version: Option<SafeText>,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: Option<SafeText>,
    /// `uname -n`.
    pub host_name: Option<SafeText>,
    /// The user the probe runs as.
    pub login_user: Option<SafeText>,
    /// Its uid.
    pub login_uid: Option<u32>,
    /// `uname -r`.
    pub kernel: Option<SafeText>,
    /// `uname -m`.
    pub arch: Option<SafeText>,
    /// CPUs online.
    pub cpu_count: Option<u32>,
    /// `host`, or the job or container that is all the probe can see.
    pub scope: Option<Scope>,
    /// Version of the NVIDIA driver.
    pub driver_version: Option<SafeText>,
    /// The newest CUDA the driver supports.
    pub cuda_version: Option<SafeText>,
    /// The NVML library in use.
    pub nvml_path: Option<SafeText>,
}

/// The readings of the host itself.
#[derive(Debug, Serialize)]
pub struct JsonReadings {
    /// Share of all CPUs' time spent at work, percent.
    pub cpu_percent: Option<f32>,
    /// Share of all CPUs' time spent waiting for I/O, percent.
    pub io_wait_percent: Option<f32>,
    /// Load average of 1 minute.
    pub load_1: Option<f32>,
    /// Load average of 5 minutes.
    pub load_5: Option<f32>,
    /// Load average of 15 minutes.
    pub load_15: Option<f32>,
    /// Memory, bytes.
    pub memory_total_bytes: Option<u64>,
    /// Memory that can be had without swapping, bytes.
    pub memory_available_bytes: Option<u64>,
    /// Swap, bytes.
    pub swap_total_bytes: Option<u64>,
    /// Free swap, bytes.
    pub swap_free_bytes: Option<u64>,
    /// Time since boot, seconds.
    pub uptime_seconds: Option<f64>,
    /// Share of time in which some task waited for I/O, over 60 s, percent.
    pub pressure_io_percent: Option<f32>,
    /// Share of time in which some task waited for memory, over 60 s, percent.
    pub pressure_memory_percent: Option<f32>,
    /// Processes killed for want of memory since boot.
    pub oom_kills: Option<u64>,
}

impl JsonHost {
    pub(super) fn new(report: &Report<'_>, host: &Host) -> Self {
        let snapshot = host.snapshot.as_ref();
        let inventory = host.inventory.as_ref();
        let driver_error = snapshot.and_then(|snapshot| snapshot.driver_error.as_ref());
        let gpus = report.gpus(host);
        Self {
            name: host.name().clone(),
            address: host.config.address().to_owned(),
            state: host.link.word(),
            error: host.link.error().map(JsonError::new),
            gpu_error: driver_error.or(inventory.and_then(|inventory| inventory.error.as_ref())).map(JsonGpuError::new),
            age_seconds: host.age(report.now).map(|age| age.as_secs_f64()),
            round_trip_ms: host.round_trip.map(|time| time.as_secs_f64() * 1000.0),
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

/// By pid; what the driver does not name comes last.
fn processes(host: &Host) -> Vec<JsonProcess> {
    let mut processes: Vec<_> = host.processes().map(|process| JsonProcess::new(host, process)).collect();
    processes.sort_by_key(|process| (process.pid.is_none(), process.pid));
    processes
}

impl JsonError {
    pub(in crate::output) fn new(error: &LinkError) -> Self {
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
