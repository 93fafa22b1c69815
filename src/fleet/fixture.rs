//! Hosts for tests, built from wire messages as a probe sends them.

use super::{Host, HostId, HostUpdate, Moment};
use crate::config::HostConfig;
use crate::wire::{
    GpuColumns, GpuInfo, GpuProcessColumns, GpuProcessReading, GpuReading, Hello, Inventory, PROTOCOL, Presence,
    ProcessColumns, ProcessFacts, ProcessReading, ProcessState, Snapshot,
};
use std::sync::Arc;
use std::time::Duration;

/// The moment this many seconds after the controller started.
pub(crate) fn at(seconds: f64) -> Moment {
    Moment::new(Duration::from_secs_f64(seconds), Duration::from_secs_f64(1.7e9 + seconds))
}

/// GPUs of 80 GiB and 700 W with these indexes.
pub(crate) fn gpus(indexes: impl IntoIterator<Item = u32>) -> Vec<GpuInfo> {
    let gpu = |index| GpuInfo {
        index,
        uuid: Some(format!("GPU-{index}").into()),
        memory_total_bytes: Some(80 << 30),
        power_limit_watts: Some(700.0),
        ..GpuInfo::default()
    };
    indexes.into_iter().map(gpu).collect()
}

/// Readings of a GPU with this utilization in percent and memory in use in GiB.
pub(crate) fn reading(utilization: u8, used_gib: u64) -> GpuReading {
    GpuReading {
        utilization_percent: Some(utilization),
        memory_used_bytes: Some(used_gib << 30),
        memory_reserved_bytes: Some(512 << 20),
        power_watts: Some(100.0 + 5.0 * f32::from(utilization)),
        ..GpuReading::default()
    }
}

/// The facts and readings of one process, as a probe sends them.
#[derive(Clone)]
pub(crate) struct TestProcess {
    pub(crate) facts: ProcessFacts,
    pub(crate) reading: ProcessReading,
    pub(crate) gpus: Vec<GpuProcessReading>,
}

/// A running process of alice (uid 1000) with this command, on `(position, GiB)` of each GPU.
pub(crate) fn process(pid: u32, command: &str, on: &[(u16, u64)]) -> TestProcess {
    let start_ticks = Some(u64::from(pid) * 100);
    TestProcess {
        facts: ProcessFacts {
            pid,
            start_ticks,
            uid: Some(1000),
            user: Some("alice".into()),
            name: command.split(' ').next().map(Into::into),
            argv: command.split(' ').map(Into::into).collect(),
            ..ProcessFacts::default()
        },
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
        gpus: on
            .iter()
            .map(|(gpu, gib)| GpuProcessReading {
                pid: Some(pid),
                gpu: Some(*gpu),
                gpu_memory_bytes: Some(gib << 30),
                sm_percent: Some(90),
                ..GpuProcessReading::default()
            })
            .collect(),
    }
}

/// A host under test, and the numbers of its last messages.
pub(crate) struct TestHost {
    pub(crate) host: Host,
    generation: u32,
    sequence: u64,
}

impl TestHost {
    /// A host with a hello of alice (uid 1000) and an inventory of these GPUs.
    pub(crate) fn new(id: u32, gpus: Vec<GpuInfo>) -> Self {
        Self::with_config(id, HostConfig::named(format!("hgx-{id:02}")), gpus)
    }

    pub(crate) fn with_config(id: u32, config: HostConfig, gpus: Vec<GpuInfo>) -> Self {
        let host = Host::new(HostId(id), Arc::new(config), at(0.0));
        let mut host = Self { host, generation: 0, sequence: 0 };
        host.hello("boot-1");
        host.inventory(gpus);
        host
    }

    pub(crate) fn hello(&mut self, boot_id: &str) {
        let hello = Hello {
            protocol: PROTOCOL,
            probe_version: "0.1.0".into(),
            boot_id: Some(boot_id.into()),
            host_name: None,
            login_user: Some("alice".into()),
            login_uid: Some(1000),
            kernel: None,
            arch: None,
            cpu_count: None,
            memory_total_bytes: None,
            scope: None,
            source: None,
            probe_pid: None,
        };
        self.host.apply(HostUpdate::Hello(Box::new(hello)), at(0.0));
    }

    pub(crate) fn inventory(&mut self, gpus: Vec<GpuInfo>) {
        self.generation += 1;
        let inventory = Inventory { generation: self.generation, gpus, ..Inventory::default() };
        self.host.apply(HostUpdate::Inventory(Box::new(inventory)), at(0.0));
    }

    /// A snapshot as the probe sends it; apply it with [`TestHost::apply`].
    pub(crate) fn snapshot(&mut self, seconds: f64, gpus: &[GpuReading], processes: &[TestProcess]) -> Snapshot {
        self.sequence += 1;
        let usages: Vec<GpuProcessReading> = processes.iter().flat_map(|process| process.gpus.clone()).collect();
        let readings: Vec<ProcessReading> = processes.iter().map(|process| process.reading.clone()).collect();
        Snapshot {
            sequence: self.sequence,
            generation: self.generation,
            monotonic_seconds: seconds,
            interval_seconds: Some(2.0),
            gpus: GpuColumns::from_rows(gpus),
            gpu_processes: GpuProcessColumns::from_rows(&usages),
            processes: ProcessColumns::from_rows(&readings),
            facts: processes.iter().map(|process| process.facts.clone()).collect(),
            ..Snapshot::default()
        }
    }

    pub(crate) fn apply(&mut self, seconds: f64, snapshot: Snapshot) {
        self.host.apply(HostUpdate::Snapshot(Box::new(snapshot)), at(seconds));
    }

    /// Applies a snapshot that arrives without delay.
    pub(crate) fn send_snapshot(&mut self, seconds: f64, gpus: &[GpuReading], processes: &[TestProcess]) {
        let snapshot = self.snapshot(seconds, gpus, processes);
        self.apply(seconds, snapshot);
    }
}
