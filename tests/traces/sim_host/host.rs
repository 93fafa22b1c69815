//! What a host tells of itself: memory, pressure, filesystems.

use super::{HOST_MEMORY, SimHost};
use crate::case_file::Step;
use gpufleet::wire::{Filesystem, HostReading, ProcessReading};
use std::collections::BTreeSet;

impl SimHost {
    pub(super) fn host(&mut self, rows: &[ProcessReading], has_rates: bool) -> HostReading {
        let time = self.time;
        let percent = |rows: &[ProcessReading]| {
            let own = rows.iter().filter_map(|row| row.cpu_percent);
            let helpers = rows.iter().filter_map(|row| row.descendants_cpu_percent);
            own.chain(helpers).sum::<f32>()
        };
        let cpu = (percent(rows) / 112.0 + 1.5).min(100.0);
        let active = |word: &'static str, key: &'static str| {
            self.active(word, time).filter_map(|event| event.number(key)).last()
        };
        let memory = active("ram", "percent").unwrap_or(38.0);
        let pressure = active("pressure", "io").unwrap_or(0.4);
        let kills: f64 = self
            .events
            .iter()
            .filter(|event| event.word == "oom" && event.at <= time)
            .map(|event| event.number("kills").unwrap_or(1.0))
            .sum();
        let waits = rows.iter().filter(|row| row.blocked_thread.is_some()).count() as u32;
        // Parts of a GPU are no devices of their own.
        let gpus = (0..self.gpu_states.len()).filter(|gpu| self.on_gpu("mig", *gpu).is_none()).count() as u32;
        let filesystems = self.filesystems();
        HostReading {
            cpu_percent: has_rates.then_some(cpu),
            io_wait_percent: has_rates.then_some(pressure as f32 * 0.1),
            load_1: Some(cpu * 1.12),
            load_5: Some(cpu * 1.12),
            load_15: Some(cpu * 1.12),
            memory_total_bytes: Some(HOST_MEMORY as u64),
            memory_available_bytes: Some((HOST_MEMORY * (1.0 - memory / 100.0)) as u64),
            swap_total_bytes: Some(8 << 30),
            swap_free_bytes: Some(8 << 30),
            uptime_seconds: Some(self.up + time),
            pressure_io_percent: Some(pressure as f32),
            pressure_memory_percent: Some(0.0),
            pressure_cpu_percent: Some(1.0),
            oom_kills: Some(3 + kills as u64),
            tasks_blocked: Some(waits),
            nvidia_pci_devices: Some(gpus),
            filesystems,
            ..HostReading::default()
        }
    }

    /// They are asked once a minute; one that does not answer is told in each sample.
    fn filesystems(&self) -> Vec<Filesystem> {
        let silent: Vec<&Step> = self.active("nfs", self.time).collect();
        let every = (60.0 / self.interval).max(1.0) as u64;
        if silent.is_empty() && self.connection.sequence % every != 1 % every {
            return Vec::new();
        }
        let mounts: BTreeSet<&str> = ["/", "/home", "/data"].into_iter().collect();
        let filesystem = |mount: &str| {
            let is_here = |event: &&Step| event.text("mount").unwrap_or("/data") == mount;
            let percent =
                self.active("disk", self.time).filter(is_here).filter_map(|event| event.number("percent")).last();
            let total = 40_u64 << 40;
            let hang =
                silent.iter().copied().find(is_here).map(|event| self.time - event.at).filter(|since| *since >= 1.0);
            let available = (total as f64 * (1.0 - percent.unwrap_or(55.0) / 100.0)) as u64;
            Filesystem {
                mount_point: mount.into(),
                kind: if mount == "/" { "ext4".into() } else { "nfs4".into() },
                total_bytes: hang.is_none().then_some(total),
                available_bytes: hang.is_none().then_some(available),
                silent_seconds: hang.map(|since| since as f32),
                timeouts: hang.map(|since| (since / 5.0) as u32),
            }
        };
        mounts.into_iter().map(filesystem).collect()
    }
}
