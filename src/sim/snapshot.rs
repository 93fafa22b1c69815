//! What a simulated server would send: a function of the seed, the host and the moment, and of nothing else.

use super::gpu_slot::{Ended, GpuSlot};
use super::host_fault::HostFaultKind;
use super::host_plan::HostPlan;
use super::host_sample::HostSample;
use super::host_templates::DriverState;
use super::inventory::{CPU_COUNT, HOST_MEMORY_BYTES};
use super::job_processes;
use crate::fleet::Moment;
use crate::wire::{
    DriverError, DriverErrorKind, GpuColumns, GpuHealthColumns, GpuProcessColumns, GpuReading, HostReading, ProbeCost,
    ProcessColumns, SafeText, Snapshot, XidEvent,
};
use std::collections::{BTreeMap, HashSet};

/// Memory of the system itself.
const SYSTEM_MEMORY_BYTES: u64 = 38 << 30;
/// A driver that does not answer is waited for so long before it is said, in seconds.
const DRIVER_TIMEOUT_SECONDS: f64 = 5.0;

/// The processes whose facts were sent on a connection: pid, start ticks, and parent.
pub(super) type SentFacts = HashSet<(u32, u64, u32)>;

/// When a snapshot is taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct SampleContext {
    pub(super) now: Moment,
    /// The snapshot before it on this connection; without one, what is a difference is not known, as on a real server.
    pub(super) before: Option<Moment>,
    /// Its number on this connection, from 1.
    pub(super) sequence: u64,
    /// When what is read of every tenth snapshot was read last.
    pub(super) slow_sample_at: Moment,
}

/// A process, as a signal finds it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FoundProcess {
    pub(super) start_ticks: u64,
    pub(super) uid: u32,
    /// GpuSlot, run_index, and the job's age: what [`Ended`] holds.
    pub(super) job: ((u64, u64), f64),
}

impl HostPlan {
    /// All readings of one moment, with the facts of the processes that are not in `told`, which are then.
    pub(super) fn snapshot(&self, context: SampleContext, ended: &Ended, sent_facts: &mut SentFacts) -> Snapshot {
        let sample = HostSample::new(self, context, ended);
        let elapsed = sample.elapsed;
        let mute = self
            .now(elapsed)
            .find(|host_fault| host_fault.what == HostFaultKind::Mute)
            .map(|event| elapsed - event.from);
        let is_blind = self.driver == DriverState::Mismatched || mute.is_some();
        let (mut gpu_rows, mut rows, mut facts) = (Vec::new(), Vec::new(), Vec::new());
        let mut gpus = vec![GpuReading::default(); self.gpu_count];
        let mut used = BTreeMap::new();
        let mut listed = SentFacts::new();
        let mut needs = Needs { cpus: 1.4, memory: SYSTEM_MEMORY_BYTES };
        for slot in &self.slots {
            let Some(job) = slot.job(elapsed, ended) else { continue };
            let profile = slot.kind.profile();
            for worker in job_processes::workers(self, slot, job, elapsed) {
                let held = sample.memory(slot, &worker);
                *used.entry(worker.gpu).or_insert(0) += held;
                let (own, helpers) = slot.cpus(worker.gpu, elapsed);
                needs.cpus += own * worker.share + helpers;
                needs.memory += profile.rss_bytes;
                // Without a driver nothing says which processes are on a GPU.
                if is_blind || sample.is_lost(worker.gpu) {
                    continue;
                }
                rows.push(sample.process(slot, job, &worker));
                gpu_rows.push(sample.gpu_process(slot, &worker, held));
                let mark = (worker.pid, worker.start_ticks, job_processes::parent(slot, job, elapsed));
                listed.insert(mark);
                if !sent_facts.contains(&mark) {
                    facts.push(job_processes::facts(self, slot, job, &worker, elapsed, context.now.unix.as_secs_f64()));
                }
            }
        }
        *sent_facts = listed;
        for (gpu, reading) in gpus.iter_mut().enumerate() {
            *reading = sample.gpu(gpu, used.get(&gpu).copied().unwrap_or_default());
        }
        let tells_health = !is_blind && context.sequence % 10 == 1;
        let health =
            if tells_health { (0..self.gpu_count).map(|gpu| sample.health(gpu)).collect() } else { Vec::new() };
        Snapshot {
            sequence: context.sequence,
            generation: 1,
            monotonic_seconds: elapsed,
            wall_unix_ms: context.now.unix.as_millis() as i64,
            host: self.host(&sample, needs),
            gpus: if is_blind { GpuColumns::default() } else { GpuColumns::from_rows(&gpus) },
            health: GpuHealthColumns::from_rows(&health),
            xid_events: self.xids(&sample),
            recent_past: if sample.before.is_some() || is_blind { Vec::new() } else { sample.recent_past() },
            gpu_processes: GpuProcessColumns::from_rows(&gpu_rows),
            processes: ProcessColumns::from_rows(&rows),
            facts,
            driver_error: mute.filter(|since| *since >= DRIVER_TIMEOUT_SECONDS).map(|since| DriverError {
                kind: DriverErrorKind::Blocked,
                code: None,
                message: SafeText::from(format!("the NVIDIA driver has not answered for {since:.0} s")),
            }),
            cost: Some(ProbeCost { cpu_seconds: 0.02 + 0.0007 * context.sequence as f64, ..ProbeCost::default() }),
            ..Snapshot::default()
        }
    }

    /// The process with this number, if it runs now.
    pub(super) fn find(&self, pid: u32, now: Moment, ended: &Ended) -> Option<FoundProcess> {
        let elapsed = now.since_start().as_secs_f64();
        self.slots.iter().find_map(|slot| {
            let job = slot.job(elapsed, ended)?;
            let workers = job_processes::workers(self, slot, job, elapsed);
            let first = workers.first()?;
            let facts = job_processes::facts(self, slot, job, first, elapsed, now.unix.as_secs_f64());
            let parents = facts.ancestors.iter().map(|parent| (parent.pid, parent.start_ticks));
            let all = workers.iter().map(|worker| (worker.pid, worker.start_ticks)).chain(parents);
            let (_, start_ticks) = all.into_iter().find(|(number, _)| *number == pid)?;
            Some(FoundProcess { start_ticks, uid: facts.uid?, job: ((slot.number, job.run_index), job.age_seconds) })
        })
    }

    /// The slot whose job is on a GPU at this moment.
    pub(super) fn slot_on(&self, gpu: usize, elapsed: f64, ended: &Ended) -> Option<&GpuSlot> {
        let mut here = self.slots.iter().filter(|slot| slot.gpus.contains(&gpu));
        here.find(|slot| slot.job(elapsed, ended).is_some())
    }

    fn xids(&self, sample: &HostSample) -> Vec<XidEvent> {
        let Some(before) = sample.before else { return Vec::new() };
        let happened =
            self.host_faults.iter().filter(|host_fault| before < host_fault.from && host_fault.from <= sample.elapsed);
        let xid = |(what, at): (HostFaultKind, f64)| match what {
            HostFaultKind::Xid { gpu, number } => {
                Some(XidEvent { gpu: Some(gpu as u16), xid: number, monotonic_seconds: at })
            }
            _ => None,
        };
        happened.map(|host_fault| (host_fault.what, host_fault.from)).filter_map(xid).collect()
    }

    fn host(&self, sample: &HostSample, needs: Needs) -> HostReading {
        let elapsed = sample.elapsed;
        let Needs { cpus, memory } = needs;
        // Slow, so that a load average does not jump.
        let swell = (elapsed / 47.0 + super::rng::unit(&[self.seed, 64])).sin();
        let load = cpus * (1.04 + 0.05 * swell);
        let reads = self.slots.iter().any(|slot| slot.kind == super::workload::Workload::Video);
        let kills =
            self.host_faults.iter().filter(|event| event.what == HostFaultKind::Kill && event.from <= elapsed).count();
        let mut reading = HostReading {
            load_1: Some(hundredths(load)),
            load_5: Some(hundredths(cpus * 1.03)),
            load_15: Some(hundredths(cpus * 1.01)),
            memory_total_bytes: Some(HOST_MEMORY_BYTES),
            memory_available_bytes: Some(HOST_MEMORY_BYTES.saturating_sub(self.filled_memory(memory, elapsed))),
            swap_total_bytes: Some(0),
            swap_free_bytes: Some(0),
            uptime_seconds: Some(((self.up_seconds + elapsed) * 100.0).round() / 100.0),
            pressure_io_percent: Some(if reads { 3.2 } else { 0.1 }),
            pressure_memory_percent: Some(0.0),
            oom_kills: Some(kills as u64),
            nvidia_pci_devices: Some(self.gpu_count as u32),
            filesystems: sample.filesystems(),
            ..HostReading::default()
        };
        if sample.before.is_some() {
            let busy = (cpus * (1.0 + 0.04 * swell) / f64::from(CPU_COUNT)).min(1.0);
            reading.cpu_percent = Some(hundredths(100.0 * busy));
            reading.io_wait_percent = Some(if reads { 1.4 } else { 0.1 });
        }
        reading
    }

    /// Memory in use, where something fills it up.
    fn filled_memory(&self, memory: u64, elapsed: f64) -> u64 {
        let growth = |event: HostFaultKind, share: f64| match event {
            HostFaultKind::Swells { to } => {
                let end = to / 100.0 * HOST_MEMORY_BYTES as f64;
                Some((memory as f64 + share * (end - memory as f64)) as u64)
            }
            _ => None,
        };
        self.now(elapsed).find_map(|host_fault| growth(host_fault.what, host_fault.share(elapsed))).unwrap_or(memory)
    }
}

/// What the jobs of a host need of it.
#[derive(Clone, Copy)]
struct Needs {
    cpus: f64,
    memory: u64,
}

pub(super) fn percent(share: f64) -> u8 {
    (share * 100.0).round().clamp(0.0, 100.0) as u8
}

pub(super) fn hundredths(value: f64) -> f32 {
    ((value * 100.0).round() / 100.0) as f32
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
