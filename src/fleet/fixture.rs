//! Hosts for tests, built from wire messages as a probe sends them.

use super::{Fleet, Host, HostId, HostUpdate, Moment};
use crate::config::HostConfig;
use crate::sim::builder;
pub(crate) use crate::sim::builder::ProcessSample as TestProcess;
use crate::wire::{GpuInfo, GpuReading, Inventory, Snapshot};
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

/// A running process of alice (uid 1000) with this command, on `(position, GiB)` of each GPU.
pub(crate) fn process(pid: u32, command: &str, on: &[(u16, u64)]) -> TestProcess {
    TestProcess::new(pid, ("alice", 1000), command, on)
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
        let hello = builder::hello(boot_id.into(), "alice", 1000);
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
        Snapshot {
            sequence: self.sequence,
            generation: self.generation,
            monotonic_seconds: seconds,
            interval_seconds: Some(2.0),
            ..builder::snapshot(gpus, processes)
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

/// A fleet of hosts with eight GPUs and these processes, each read once.
pub(crate) fn fleet(hosts: Vec<Vec<TestProcess>>) -> Fleet {
    let configs: Vec<Arc<HostConfig>> =
        (0..hosts.len()).map(|id| Arc::new(HostConfig::named(format!("hgx-{id:02}")))).collect();
    let mut fleet = Fleet::new(&configs, false, at(0.0));
    for (id, processes) in (0..).zip(hosts) {
        let mut source = TestHost::new(id, gpus(0..8));
        let hello = source.host.hello.clone().expect("a hello");
        let inventory = source.host.inventory.clone().expect("an inventory");
        let snapshot = source.snapshot(1.0, &[], &processes);
        for update in [
            HostUpdate::Hello(Box::new(hello)),
            HostUpdate::Inventory(Box::new(inventory)),
            HostUpdate::Snapshot(Box::new(snapshot)),
        ] {
            fleet.apply(HostId(id), update, at(1.0));
        }
    }
    fleet
}
