//! What a simulated server would send: a function of the seed, the host and the moment, and of nothing else.

use super::incident::Event;
use super::inventory::{CPU_COUNT, HOST_MEMORY_BYTES};
use super::jobs;
use super::lab::Driver;
use super::plan::Plan;
use super::seat::{Ended, Seat};
use super::view::View;
use crate::fleet::Moment;
use crate::wire::{
    DriverError, DriverErrorKind, GpuColumns, GpuHealthColumns, GpuProcessColumns, GpuReading, HostReading, ProbeCost,
    ProcessColumns, SafeText, Snapshot, XidEvent,
};
use std::collections::{BTreeMap, HashSet};

/// Memory of the system itself.
const SYSTEM_MEMORY_BYTES: u64 = 38 << 30;
/// A driver that does not answer is waited for so long before it is said, in seconds.
const PATIENCE: f64 = 5.0;

/// The processes whose facts were sent on a connection: pid, start ticks, and parent.
pub(super) type Told = HashSet<(u32, u64, u32)>;

/// When a snapshot is taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sight {
    pub(super) now: Moment,
    /// The snapshot before it on this connection; without one, what is a difference is not known, as on a real server.
    pub(super) before: Option<Moment>,
    /// Its number on this connection, from 1.
    pub(super) sequence: u64,
    /// When what is read of every tenth snapshot was read last.
    pub(super) looked: Moment,
}

/// A process, as a signal finds it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Found {
    pub(super) start_ticks: u64,
    pub(super) uid: u32,
    /// Seat, turn, and the job's age: what [`Ended`] holds.
    pub(super) job: ((u64, u64), f64),
}

impl Plan {
    /// All readings of one moment, with the facts of the processes that are not in `told`, which are then.
    pub(super) fn snapshot(&self, sight: Sight, ended: &Ended, told: &mut Told) -> Snapshot {
        let view = View::new(self, sight, ended);
        let elapsed = view.elapsed;
        let mute = self.now(elapsed).find(|incident| incident.what == Event::Mute).map(|event| elapsed - event.from);
        let is_blind = self.driver == Driver::Mismatched || mute.is_some();
        let (mut gpu_rows, mut rows, mut facts) = (Vec::new(), Vec::new(), Vec::new());
        let mut gpus = vec![GpuReading::default(); self.gpu_count];
        let mut used = BTreeMap::new();
        let mut listed = Told::new();
        let mut needs = Needs { cpus: 1.4, memory: SYSTEM_MEMORY_BYTES };
        for seat in &self.seats {
            let Some(job) = seat.job(elapsed, ended) else { continue };
            let figures = seat.kind.figures();
            for worker in jobs::workers(self, seat, job, elapsed) {
                let held = view.memory(seat, &worker);
                *used.entry(worker.gpu).or_insert(0) += held;
                let (own, helpers) = seat.cpus(worker.gpu, elapsed);
                needs.cpus += own * worker.share + helpers;
                needs.memory += figures.rss_bytes;
                // Without a driver nothing says which processes are on a GPU.
                if is_blind || view.is_lost(worker.gpu) {
                    continue;
                }
                rows.push(view.process(seat, job, &worker));
                gpu_rows.push(view.gpu_process(seat, &worker, held));
                let mark = (worker.pid, worker.start_ticks, jobs::parent(seat, job, elapsed));
                listed.insert(mark);
                if !told.contains(&mark) {
                    facts.push(jobs::facts(self, seat, job, &worker, elapsed, sight.now.unix.as_secs_f64()));
                }
            }
        }
        *told = listed;
        for (gpu, reading) in gpus.iter_mut().enumerate() {
            *reading = view.gpu(gpu, used.get(&gpu).copied().unwrap_or_default());
        }
        let tells_health = !is_blind && sight.sequence % 10 == 1;
        let health = if tells_health { (0..self.gpu_count).map(|gpu| view.health(gpu)).collect() } else { Vec::new() };
        Snapshot {
            sequence: sight.sequence,
            generation: 1,
            monotonic_seconds: elapsed,
            wall_unix_ms: sight.now.unix.as_millis() as i64,
            host: self.host(&view, needs),
            gpus: if is_blind { GpuColumns::default() } else { GpuColumns::from_rows(&gpus) },
            health: GpuHealthColumns::from_rows(&health),
            xid_events: self.xids(&view),
            recent_past: if view.before.is_some() || is_blind { Vec::new() } else { view.recent_past() },
            gpu_processes: GpuProcessColumns::from_rows(&gpu_rows),
            processes: ProcessColumns::from_rows(&rows),
            facts,
            driver_error: mute.filter(|since| *since >= PATIENCE).map(|since| DriverError {
                kind: DriverErrorKind::Blocked,
                code: None,
                message: SafeText::from(format!("the NVIDIA driver has not answered for {since:.0} s")),
            }),
            cost: Some(ProbeCost { cpu_seconds: 0.02 + 0.0007 * sight.sequence as f64, ..ProbeCost::default() }),
            ..Snapshot::default()
        }
    }

    /// The process with this number, if it runs now.
    pub(super) fn find(&self, pid: u32, now: Moment, ended: &Ended) -> Option<Found> {
        let elapsed = now.since_start().as_secs_f64();
        self.seats.iter().find_map(|seat| {
            let job = seat.job(elapsed, ended)?;
            let workers = jobs::workers(self, seat, job, elapsed);
            let first = workers.first()?;
            let facts = jobs::facts(self, seat, job, first, elapsed, now.unix.as_secs_f64());
            let parents = facts.ancestors.iter().map(|parent| (parent.pid, parent.start_ticks));
            let all = workers.iter().map(|worker| (worker.pid, worker.start_ticks)).chain(parents);
            let (_, start_ticks) = all.into_iter().find(|(number, _)| *number == pid)?;
            Some(Found { start_ticks, uid: facts.uid?, job: ((seat.number, job.turn), job.age_seconds) })
        })
    }

    /// The seat whose job is on a GPU at this moment.
    pub(super) fn seat_on(&self, gpu: usize, elapsed: f64, ended: &Ended) -> Option<&Seat> {
        let mut here = self.seats.iter().filter(|seat| seat.gpus.contains(&gpu));
        here.find(|seat| seat.job(elapsed, ended).is_some())
    }

    fn xids(&self, view: &View) -> Vec<XidEvent> {
        let Some(before) = view.before else { return Vec::new() };
        let happened = self.incidents.iter().filter(|incident| before < incident.from && incident.from <= view.elapsed);
        let xid = |(what, at): (Event, f64)| match what {
            Event::Xid { gpu, number } => Some(XidEvent { gpu: Some(gpu as u16), xid: number, monotonic_seconds: at }),
            _ => None,
        };
        happened.map(|incident| (incident.what, incident.from)).filter_map(xid).collect()
    }

    fn host(&self, view: &View, needs: Needs) -> HostReading {
        let elapsed = view.elapsed;
        let Needs { cpus, memory } = needs;
        // Slow, so that a load average does not jump.
        let swell = (elapsed / 47.0 + super::dice::unit(&[self.seed, 64])).sin();
        let load = cpus * (1.04 + 0.05 * swell);
        let reads = self.seats.iter().any(|seat| seat.kind == super::work::Kind::Video);
        let kills = self.incidents.iter().filter(|event| event.what == Event::Kill && event.from <= elapsed).count();
        let mut reading = HostReading {
            load_1: Some(hundredths(load)),
            load_5: Some(hundredths(cpus * 1.03)),
            load_15: Some(hundredths(cpus * 1.01)),
            memory_total_bytes: Some(HOST_MEMORY_BYTES),
            memory_available_bytes: Some(HOST_MEMORY_BYTES.saturating_sub(self.swollen(memory, elapsed))),
            swap_total_bytes: Some(0),
            swap_free_bytes: Some(0),
            uptime_seconds: Some(((self.up_seconds + elapsed) * 100.0).round() / 100.0),
            pressure_io_percent: Some(if reads { 3.2 } else { 0.1 }),
            pressure_memory_percent: Some(0.0),
            oom_kills: Some(kills as u64),
            nvidia_pci_devices: Some(self.gpu_count as u32),
            filesystems: view.filesystems(),
            ..HostReading::default()
        };
        if view.before.is_some() {
            let busy = (cpus * (1.0 + 0.04 * swell) / f64::from(CPU_COUNT)).min(1.0);
            reading.cpu_percent = Some(hundredths(100.0 * busy));
            reading.io_wait_percent = Some(if reads { 1.4 } else { 0.1 });
        }
        reading
    }

    /// Memory in use, where something fills it up.
    fn swollen(&self, memory: u64, elapsed: f64) -> u64 {
        let growth = |event: Event, share: f64| match event {
            Event::Swells { to } => {
                let end = to / 100.0 * HOST_MEMORY_BYTES as f64;
                Some((memory as f64 + share * (end - memory as f64)) as u64)
            }
            _ => None,
        };
        self.now(elapsed).find_map(|incident| growth(incident.what, incident.share(elapsed))).unwrap_or(memory)
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
#[path = "scenario_tests.rs"]
mod tests;
