//! Messages from single values, for the simulator and for tests that need exact readings.

use super::gpu_model::GpuModel;
use super::process::GIB;
use crate::wire::{
    Ancestor, GpuColumns, GpuInfo, GpuProcessColumns, GpuProcessKind, GpuProcessReading, GpuReading, Hello, PROTOCOL,
    Presence, ProcessColumns, ProcessFacts, ProcessReading, ProcessState, ReadingSource, SafeText, Scope, Snapshot,
};

/// CPUs of each simulated host.
pub const CPUS: u32 = 112;
/// Bytes of memory of each simulated host.
pub const HOST_MEMORY: u64 = 1007 << 30;

/// Returns the hello of a probe that runs as this user.
pub fn hello(boot_id: SafeText, login: &str, uid: u32) -> Hello {
    Hello {
        protocol: PROTOCOL,
        probe_version: env!("CARGO_PKG_VERSION").into(),
        boot_id: Some(boot_id),
        host_name: None,
        login_user: Some(login.into()),
        login_uid: Some(uid),
        kernel: Some("6.8.0-60-generic".into()),
        arch: Some("x86_64".into()),
        cpu_count: Some(CPUS),
        memory_total_bytes: Some(HOST_MEMORY),
        scope: Some(Scope::Host),
        source: Some(ReadingSource::Probe),
        probe_pid: Some(1900),
        probe_sha256: None,
    }
}

/// Returns the constant properties of a GPU.
pub fn gpu_info(model: &GpuModel, index: u32, uuid: SafeText) -> GpuInfo {
    GpuInfo {
        index,
        uuid: Some(uuid),
        name: Some(model.name.into()),
        pci_bus_id: Some(SafeText::from(format!("{:08X}:{:02X}:00.0", index / 14, 0x1B + 0x10 * (index % 14)))),
        memory_total_bytes: model.memory.map(|gib| (gib * GIB) as u64),
        power_limit_watts: Some(model.limit as f32),
        power_limit_max_watts: Some(model.limit as f32),
        clock_graphics_max_mhz: Some(model.sm_mhz),
        clock_sm_max_mhz: Some(model.sm_mhz),
        clock_memory_max_mhz: Some(model.memory_mhz),
        temperature_slowdown_celsius: Some(model.slowdown),
        temperature_shutdown_celsius: Some(model.slowdown + 5),
        mig_enabled: Some(false),
        pcie_generation_max: Some(model.generation),
        pcie_width_max: Some(16),
        minor_number: Some(index),
        nvlink_count: (model.links > 0).then_some(model.links),
        unified_memory: model.memory.is_none().then_some(true),
        ..GpuInfo::default()
    }
}

/// The parts of a snapshot that describe one process.
#[derive(Debug, Clone)]
pub struct ProcessSample {
    /// Its facts.
    pub facts: ProcessFacts,
    /// Whether the facts were sent before.
    pub is_known: bool,
    /// Its readings from `/proc`.
    pub reading: ProcessReading,
    /// The readings of the driver, one per GPU.
    pub gpus: Vec<GpuProcessReading>,
}

impl ProcessSample {
    /// Creates a running process of a user, on `(position, GiB)` of each GPU. Its start time follows from the pid.
    pub fn new(pid: u32, (user, uid): (&str, u32), command: &str, on: &[(u16, u64)]) -> Self {
        let start_ticks = Some(u64::from(pid) * 100);
        let on_gpu = |(gpu, gib): &(u16, u64)| GpuProcessReading {
            pid: Some(pid),
            gpu: Some(*gpu),
            kind: Some(GpuProcessKind::Compute),
            gpu_memory_bytes: Some(gib << 30),
            sm_percent: Some(90),
            ..GpuProcessReading::default()
        };
        Self {
            facts: ProcessFacts {
                pid,
                start_ticks,
                uid: Some(uid),
                user: Some(user.into()),
                name: command.split(' ').next().map(Into::into),
                argv: command.split(' ').map(Into::into).collect(),
                ..ProcessFacts::default()
            },
            is_known: false,
            reading: ProcessReading {
                pid: Some(pid),
                start_ticks,
                presence: Some(Presence::Visible),
                state: Some(ProcessState::Running),
                cpu_percent: Some(100.0),
                rss_bytes: Some(1 << 30),
                age_seconds: Some(f64::from(pid)),
                ..ProcessReading::default()
            },
            gpus: on.iter().map(on_gpu).collect(),
        }
    }

    /// Adds an ancestor of the same user above those it has.
    pub fn under(mut self, pid: u32, command: &str) -> Self {
        self.facts.ancestors.push(Ancestor {
            pid,
            start_ticks: u64::from(pid) * 100,
            uid: self.facts.uid,
            name: command.split(' ').next().unwrap_or_default().trim_start_matches('-').into(),
            argv: command.split(' ').map(Into::into).collect(),
        });
        self
    }
}

/// Returns a snapshot with the readings of GPUs and processes, and with the facts that are not known.
pub fn snapshot(gpus: &[GpuReading], processes: &[ProcessSample]) -> Snapshot {
    let usages: Vec<_> = processes.iter().flat_map(|process| process.gpus.iter().cloned()).collect();
    let readings: Vec<_> = processes.iter().map(|process| process.reading.clone()).collect();
    Snapshot {
        generation: 1,
        gpus: GpuColumns::from_rows(gpus),
        gpu_processes: GpuProcessColumns::from_rows(&usages),
        processes: ProcessColumns::from_rows(&readings),
        facts: processes.iter().filter(|process| !process.is_known).map(|process| process.facts.clone()).collect(),
        ..Snapshot::default()
    }
}
