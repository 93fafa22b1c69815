//! Puts one snapshot together.

use super::numbers::{tenths_f32, thousandths};
use super::nvml::{DeviceSample, Driver, Frame, GpuProcess, Past, Xid};
use super::outside::Outside;
use super::processes::{Moment, Processes};
use super::procfs::{HostSampler, Scratch};
use super::users::Users;
use crate::wire::codec::MAX_PROCESSES;
use crate::wire::{
    GpuColumns, GpuHealthColumns, GpuProcessColumns, GpuProcessReading, Inventory, ProbeCost, ProcessColumns,
    RecentPast, SafeText, Snapshot, XidEvent,
};
use rustix::time::{ClockId, clock_gettime};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What rarely changes is read in the first sample and in every tenth after it.
const SLOW_EVERY: u64 = 10;

/// Everything that is sampled, and what is remembered between samples.
pub(crate) struct Sampler {
    driver: Driver,
    host: HostSampler,
    processes: Processes,
    users: Users,
    outside: Outside,
    scratch: Scratch,
    origin: Instant,
    sequence: u64,
    /// What rarely changes is due whatever the sequence says.
    resend: bool,
    page_bytes: u64,
    rss_bytes: Option<u64>,
}

/// One sample: readings, and the inventory when it changed.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) inventory: Option<Inventory>,
    pub(crate) snapshot: Snapshot,
}

impl Sampler {
    pub(crate) fn new(driver: Driver) -> Self {
        Self {
            driver,
            host: HostSampler::new(),
            processes: Processes::new(),
            users: Users::default(),
            outside: Outside::new(),
            scratch: Scratch::default(),
            origin: Instant::now(),
            sequence: 0,
            resend: false,
            page_bytes: super::nvml::raw::page_size(),
            rss_bytes: None,
        }
    }

    /// The next sample carries the inventory, health and all facts, whether they are new or not.
    pub(crate) fn resend(&mut self) {
        self.driver.resend();
        self.processes.resend();
        self.resend = true;
    }

    /// Waits for user names that were asked for, at most this long.
    pub(crate) fn settle_users(&mut self, limit: Duration) {
        self.users.settle(limit);
    }

    /// Waits for the commands of processes, at most this long.
    pub(crate) fn settle_processes(&mut self, limit: Duration) {
        self.processes.settle(Instant::now() + limit);
    }

    /// Waits for what other programs were asked, at most this long.
    pub(crate) fn settle_outside(&mut self, limit: Duration) {
        let origin = self.origin;
        self.outside.settle(Instant::now() + limit, || origin.elapsed().as_secs_f64());
    }

    /// Reads everything. A driver that hangs costs its readings, and a second at most.
    pub(crate) fn sample(&mut self, interval_seconds: Option<f32>, mut notes: Vec<SafeText>) -> Sample {
        let began = Instant::now();
        let resend = std::mem::take(&mut self.resend);
        let slow = self.sequence.is_multiple_of(SLOW_EVERY) || resend;
        self.sequence += 1;
        let Frame { generation, inventory, mut devices, error, xids, notes: oddities } = self.driver.refresh(slow);
        notes.extend(oddities);
        let now = self.monotonic(Instant::now());
        let recent_past = devices.iter_mut().enumerate().filter_map(|(gpu, device)| {
            let past = device.past.take()?;
            Some(recent_past(gpu, past, now))
        });
        let recent_past = recent_past.collect();
        let mut host = self.host.sample(&mut self.scratch, now, slow);
        let (gpu_processes, left_out) = gpu_process_rows(&devices);
        if left_out > 0 {
            notes.push(format!("{left_out} processes with little GPU memory are left out").into());
        }
        let wall_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
        let moment = Moment {
            now,
            uptime_seconds: host.uptime_seconds,
            boot_unix_seconds: self.host.boot_unix_seconds(),
            unix_seconds: wall_unix_ms / 1000,
            forks: self.host.forks(),
        };
        let on_gpus = gpu_processes.iter().filter_map(|row| Some((row.pid?, row.sm_percent)));
        self.processes.name_owners(&mut self.outside);
        let (processes, facts) = self.processes.sample(on_gpus, moment, &mut self.scratch, &mut self.users);
        self.outside.step(now, resend, self.processes.working_directories(), &mut host);
        let health: Vec<_> = if devices.iter().any(|device| device.health.is_some()) {
            devices.iter().map(|device| device.health.clone().unwrap_or_default()).collect()
        } else {
            Vec::new()
        };
        let gpus: Vec<_> = devices.into_iter().map(|device| device.reading).collect();
        let snapshot = Snapshot {
            sequence: self.sequence,
            generation,
            monotonic_seconds: thousandths(now),
            wall_unix_ms,
            interval_seconds,
            host,
            gpus: GpuColumns::from_rows(&gpus),
            health: GpuHealthColumns::from_rows(&health),
            xid_events: xids.into_iter().map(|xid| self.xid_event(xid)).collect(),
            recent_past,
            gpu_processes: GpuProcessColumns::from_rows(&gpu_processes),
            processes: ProcessColumns::from_rows(&processes),
            facts,
            processes_left_out: left_out,
            driver_error: error,
            notes,
            cost: Some(self.cost(began, slow)),
        };
        Sample { inventory, snapshot }
    }

    /// Whether a call of the driver's has not come back. Then [`Sampler::keep_watch`] is to be called about every second.
    pub(crate) fn is_waiting(&self) -> bool {
        self.driver.is_waiting()
    }

    /// Tells the other probes of this user whether the driver hangs.
    pub(crate) fn keep_watch(&mut self) {
        self.driver.keep_watch();
    }

    fn monotonic(&self, at: Instant) -> f64 {
        at.duration_since(self.origin).as_secs_f64()
    }

    fn xid_event(&self, xid: Xid) -> XidEvent {
        let Xid { gpu, number, at } = xid;
        XidEvent { gpu: gpu.map(|gpu| gpu as u16), xid: number, monotonic_seconds: thousandths(self.monotonic(at)) }
    }

    fn cost(&mut self, began: Instant, slow: bool) -> ProbeCost {
        if slow {
            self.rss_bytes = self.scratch.read("/proc/self/statm").ok().and_then(|statm| {
                let resident = std::str::from_utf8(statm).ok()?.split_ascii_whitespace().nth(1)?;
                Some(resident.parse::<u64>().ok()? * self.page_bytes)
            });
        }
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let cpu_seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
        ProbeCost {
            cpu_seconds: thousandths(cpu_seconds),
            rss_bytes: self.rss_bytes,
            sample_ms: tenths_f32(began.elapsed().as_secs_f64() * 1000.0),
            probes_on_host: self.processes.probes_on_host(),
        }
    }
}

fn recent_past(gpu: usize, past: Past, now: f64) -> RecentPast {
    RecentPast {
        gpu: gpu as u16,
        end_monotonic_seconds: thousandths(now - past.age_seconds),
        utilization_percent: past.utilization_percent,
        memory_utilization_percent: past.memory_utilization_percent,
        power_watts: past.power_watts,
    }
}

/// The rows of all GPUs, and how many were left out because the contract allows no more: those with the least memory.
fn gpu_process_rows(devices: &[DeviceSample]) -> (Vec<GpuProcessReading>, u32) {
    let mut rows: Vec<_> = devices
        .iter()
        .enumerate()
        .flat_map(|(gpu, device)| device.processes.iter().map(move |process| row(gpu, process)))
        .collect();
    let left_out = rows.len().saturating_sub(MAX_PROCESSES);
    if left_out > 0 {
        keep_largest(&mut rows, MAX_PROCESSES);
    }
    (rows, left_out as u32)
}

/// Keeps as many rows as that: those with the most memory, in their order. By a heap, whose code is a tenth of a sort's.
fn keep_largest(rows: &mut Vec<GpuProcessReading>, count: usize) {
    let mut largest = BinaryHeap::with_capacity(count + 1);
    for row in rows.iter() {
        largest.push(Reverse(row.gpu_memory_bytes));
        if largest.len() > count {
            largest.pop();
        }
    }
    // Some that are left out may hold as much as the least of them.
    let least = largest.peek().and_then(|Reverse(bytes)| *bytes);
    let mut room = largest.iter().filter(|Reverse(bytes)| *bytes == least).count();
    rows.retain(|row| {
        let is_kept = row.gpu_memory_bytes > least || row.gpu_memory_bytes == least && room > 0;
        room -= usize::from(is_kept && row.gpu_memory_bytes == least);
        is_kept
    });
}

fn row(gpu: usize, process: &GpuProcess) -> GpuProcessReading {
    GpuProcessReading {
        pid: process.pid,
        gpu: Some(gpu as u16),
        kind: Some(process.kind),
        gpu_memory_bytes: process.memory_bytes,
        sm_percent: process.shares.sm,
        memory_percent: process.shares.memory,
        encoder_percent: process.shares.encoder,
        decoder_percent: process.shares.decoder,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::GpuProcessKind;

    #[test]
    fn the_largest_processes_are_kept() {
        let processes = (0..MAX_PROCESSES as u64 + 2)
            .map(|number| GpuProcess {
                pid: Some(2 + number as u32),
                kind: GpuProcessKind::Compute,
                memory_bytes: (number > 0).then_some(number),
                shares: crate::probe::nvml::Shares::default(),
            })
            .collect();
        let device = DeviceSample { processes, ..DeviceSample::default() };
        let (rows, left_out) = gpu_process_rows(&[device]);
        assert_eq!((rows.len(), left_out), (MAX_PROCESSES, 2));
        assert_eq!(rows.first().and_then(|row| row.gpu_memory_bytes), Some(2));
    }

    #[test]
    fn of_those_that_hold_as_much_the_first_are_kept() {
        let row = |&gpu_memory_bytes| GpuProcessReading { gpu_memory_bytes, ..GpuProcessReading::default() };
        let mut rows: Vec<_> =
            [Some(3), None, Some(1), Some(2), None, Some(1), Some(9), Some(1)].iter().map(row).collect();
        for (count, expected) in [
            (8, vec![Some(3), None, Some(1), Some(2), None, Some(1), Some(9), Some(1)]),
            (7, vec![Some(3), None, Some(1), Some(2), Some(1), Some(9), Some(1)]),
            (5, vec![Some(3), Some(1), Some(2), Some(1), Some(9)]),
            (1, vec![Some(9)]),
        ] {
            keep_largest(&mut rows, count);
            assert_eq!(rows.iter().map(|row| row.gpu_memory_bytes).collect::<Vec<_>>(), expected);
        }
    }
}
