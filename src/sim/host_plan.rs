//! The plan of one simulated host: its GPUs, jobs, faults and inventory.

use super::fault::{HostFault, HostFaultKind, JobFault, JobFaultKind, MINUTE};
use super::rng;
use super::scenario::{
    self, ALICE, BOB, CAROL, DriverState, HANA, HostTemplate, JobTemplate, PEOPLE, SlotTemplate, VIEWER,
};
use super::workload::{A100, GpuModel, GpuSlot, H100, JobCycle, Workload};
use crate::config::HostConfig;
use crate::wire::{DriverError, DriverErrorKind, GpuInfo, Hello, Inventory, PROTOCOL, SafeText, Scope};

/// In seconds, like all times.
const HOUR: f64 = 3600.0;
const DAY: f64 = 24.0 * HOUR;
const GIB: f64 = (1_u64 << 30) as f64;

/// One simulated host.
#[derive(Debug)]
pub(super) struct HostPlan {
    pub(super) name: String,
    pub(super) seed: u64,
    pub(super) model: &'static GpuModel,
    pub(super) gpu_count: usize,
    pub(super) slots: Vec<GpuSlot>,
    pub(super) host_faults: Vec<HostFault>,
    pub(super) driver: DriverState,
    /// Uptime at the start of the simulation.
    pub(super) up_seconds: f64,
    /// Whether jobs run under Slurm. Elsewhere people log in, and an unused GPU is free for everyone.
    pub(super) uses_slurm: bool,
    /// Id of the last Slurm job before the simulation.
    pub(super) slurm_base: u64,
}

impl HostPlan {
    /// Creates host `index` of a fleet of `hosts`.
    pub(super) fn new(seed: u64, index: u32, hosts: u32, gpu_count: usize) -> Self {
        let seed = rng::hash(&[seed, u64::from(index)]);
        let template = scenario::host_template(index).unwrap_or_else(|| generated_template(seed, gpu_count));
        let digits = hosts.to_string().len().max(2);
        Self {
            name: format!("hgx-{:0digits$}", index + 1),
            seed,
            model: template.model,
            gpu_count,
            slots: slots(&template.templates, seed, gpu_count),
            host_faults: template.host_faults.into_iter().filter(|host_fault| host_fault.fits(gpu_count)).collect(),
            driver: template.driver,
            // Longer than any job runs.
            up_seconds: rng::between(20.0 * DAY, 90.0 * DAY, &[seed, 20]),
            uses_slurm: index % 4 < 2,
            // Two neighbours share the ids of their long jobs, which run on both.
            slurm_base: 3300 + u64::from(index / 2) * 17,
        }
    }

    /// Returns whether the host is reachable `elapsed` seconds after the start.
    pub(super) fn is_reachable(&self, elapsed: f64) -> bool {
        !self.now(elapsed).any(|host_fault| host_fault.kind == HostFaultKind::Away)
    }

    /// Returns the active faults.
    pub(super) fn now(&self, elapsed: f64) -> impl Iterator<Item = &HostFault> {
        self.host_faults.iter().filter(move |host_fault| host_fault.is_at(elapsed))
    }

    /// Returns the configuration of the host, as from hosts.toml.
    pub(super) fn config(&self) -> HostConfig {
        HostConfig { tags: vec![self.model.tag.into()], ..HostConfig::named(self.name.as_str()) }
    }
}

/// Creates a host beyond the templates in [`scenario`]: most are ordinary, a few have a fault.
fn generated_template(seed: u64, gpu_count: usize) -> HostTemplate {
    let anybody = rng::hash(&[seed, 30]) as usize % PEOPLE.len();
    let model = if rng::unit(&[seed, 31]) < 0.12 { &A100 } else { &H100 };
    let old = |gpus, kind, person, seconds| SlotTemplate { gpus, runs: vec![JobTemplate::old(kind, person, seconds)] };
    let free = |gpus| old(gpus, Workload::Free, 0, 0.0);
    let templates = match rng::hash(&[seed, 34]) % 20 {
        0..6 => vec![old(8, Workload::Pretrain, anybody, 26.0 * HOUR)],
        6..9 => vec![old(4, Workload::Inference, anybody, 3.0 * DAY), old(2, Workload::Inference, BOB, DAY), free(2)],
        9..12 => vec![old(2, Workload::Evaluation, anybody, 0.2 * HOUR), free(6)],
        12 => {
            let mut hung = old(2, Workload::Training, anybody, 5.0 * HOUR);
            hung.runs[0].job_faults = vec![JobFault::new(-240.0, f64::INFINITY, JobFaultKind::Hangs)];
            vec![hung, old(4, Workload::Training, ALICE, 6.0 * HOUR)]
        }
        13 => {
            vec![
                old(4, Workload::Training, anybody, 9.0 * HOUR),
                old(1, Workload::Hot, HANA, HOUR),
                old(3, Workload::Video, BOB, HOUR),
            ]
        }
        14 => vec![old(6, Workload::Training, anybody, 14.0 * HOUR), old(2, Workload::Notebook, CAROL, 2.2 * DAY)],
        _ => scenario::ordinary().templates,
    };
    let lost = |gpu: usize| vec![HostFault::since(-600.0, HostFaultKind::Lost { gpu })];
    let (host_faults, driver) = match rng::hash(&[seed, 32]) % 100 {
        0..2 => {
            ((0..20).map(|time| scenario::away(1.25 + 6.0 * f64::from(time), 40.0)).collect(), DriverState::Current)
        }
        2 => (Vec::new(), DriverState::Mismatched),
        3 => (lost(rng::hash(&[seed, 33]) as usize % gpu_count.max(1)), DriverState::Current),
        _ => (Vec::new(), DriverState::Current),
    };
    HostTemplate { model, templates, host_faults, driver }
}

/// Fits the templates to the number of GPUs: repeated on larger hosts, truncated on smaller ones.
fn slots(templates: &[SlotTemplate], seed: u64, gpu_count: usize) -> Vec<GpuSlot> {
    let mut slots: Vec<GpuSlot> = Vec::new();
    let mut taken = 0;
    for (number, template) in templates.iter().cycle().enumerate() {
        let is_whole = template.runs.iter().any(|run| run.kind == Workload::Pretrain);
        let count = if is_whole { gpu_count - taken } else { template.gpus.min(gpu_count - taken) };
        if count == 0 {
            break;
        }
        let round = number / templates.len();
        for run in &template.runs {
            let number = slots.len() as u64;
            slots.push(slot(run, number, round, taken..taken + count, rng::hash(&[seed, 40, number])));
        }
        taken += count;
    }
    slots
}

fn slot(run: &JobTemplate, number: u64, round: usize, gpus: std::ops::Range<usize>, seed: u64) -> GpuSlot {
    let has_cycle = run.kind == Workload::Evaluation && run.script.is_none();
    let cycle = has_cycle.then(|| JobCycle {
        run_seconds: rng::between(420.0, 1500.0, &[seed, 1]),
        gap_seconds: rng::between(25.0, 160.0, &[seed, 2]),
    });
    GpuSlot {
        number,
        gpus,
        kind: run.kind,
        script: run.script,
        person: (run.person + round) % PEOPLE.len(),
        began_seconds: match run.begins {
            Ok(minute) => -minute * MINUTE,
            Err(seconds) => seconds + rng::between(70.0, 600.0, &[seed, 3]),
        },
        left_seconds: run.ends * MINUTE,
        cycle,
        job_faults: run.job_faults.clone(),
        leak_bytes_per_hour: run.leak_gib_per_hour * GIB,
        seed,
    }
}

/// CPUs of each host.
pub(super) const CPU_COUNT: u32 = 112;
/// Memory of each host.
pub(super) const HOST_MEMORY_BYTES: u64 = 1007 << 30;
/// PCIe lanes of each GPU.
pub(super) const PCIE_WIDTH: u8 = 16;
const DRIVER: &str = "570.86.15";
const OLD_DRIVER: &str = "550.54.15";

impl HostPlan {
    /// Returns the hello message.
    pub(super) fn hello(&self) -> Hello {
        Hello {
            protocol: PROTOCOL,
            probe_version: env!("CARGO_PKG_VERSION").into(),
            boot_id: Some(self.boot_id()),
            host_name: Some(self.name.as_str().into()),
            login_user: Some(VIEWER.login.into()),
            login_uid: Some(VIEWER.uid),
            kernel: Some("6.8.0-60-generic".into()),
            arch: Some("x86_64".into()),
            cpu_count: Some(CPU_COUNT),
            memory_total_bytes: Some(HOST_MEMORY_BYTES),
            scope: Some(Scope::Host),
            source: Some(crate::wire::ReadingSource::Probe),
            probe_pid: Some(1900),
        }
    }

    /// Returns the boot id.
    pub(super) fn boot_id(&self) -> SafeText {
        let (high, low) = (self.seed, rng::hash(&[self.seed, 50]));
        SafeText::new(&format!(
            "{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}",
            high >> 32,
            high >> 16 & 0xFFFF,
            high & 0xFFF,
            low >> 52,
            low & 0xFFFF_FFFF_FFFF
        ))
    }

    /// Returns the inventory, or the error of the driver.
    pub(super) fn inventory(&self) -> Inventory {
        if self.driver == DriverState::Mismatched {
            let error = DriverError {
                kind: DriverErrorKind::VersionMismatch,
                code: Some(18),
                message: "driver and library versions differ: the driver was updated without a reboot".into(),
            };
            return Inventory { generation: 1, error: Some(error), ..Inventory::default() };
        }
        let model = self.model;
        let info = |gpu: usize| {
            let id = rng::hash(&[self.seed, 51, gpu as u64]);
            GpuInfo {
                index: gpu as u32,
                uuid: Some(SafeText::new(&format!(
                    "GPU-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
                    id >> 32,
                    id >> 16 & 0xFFFF,
                    id & 0xFFFF,
                    self.seed >> 48,
                    self.seed & 0xFFFF_FFFF_FFFF
                ))),
                name: Some(model.name.into()),
                pci_bus_id: Some(SafeText::new(&format!("00000000:{:02X}:00.0", 0x1B + 0x14 * gpu % 0xE0))),
                memory_total_bytes: Some(model.memory_total_bytes),
                power_limit_watts: Some(model.power_limit_watts as f32),
                power_limit_max_watts: Some(model.power_limit_watts as f32),
                clock_graphics_max_mhz: Some(model.sm_max_mhz),
                clock_sm_max_mhz: Some(model.sm_max_mhz),
                clock_memory_max_mhz: Some(model.memory_mhz),
                temperature_slowdown_celsius: Some(model.slowdown_celsius),
                temperature_shutdown_celsius: Some(model.slowdown_celsius + 3),
                mig_enabled: Some(false),
                pcie_generation_max: Some(model.pcie_generation),
                pcie_width_max: Some(PCIE_WIDTH),
                minor_number: Some(gpu as u32),
                nvlink_count: Some(model.nvlinks),
                ..GpuInfo::default()
            }
        };
        Inventory {
            generation: 1,
            driver_version: Some(if self.driver == DriverState::Outdated { OLD_DRIVER } else { DRIVER }.into()),
            cuda_version: Some("12.8".into()),
            nvml_path: Some("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1".into()),
            gpus: (0..self.gpu_count).map(info).collect(),
            error: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_gpu_has_at_most_one_job_at_a_time() {
        for gpus in [1, 2, 7, 8, 16, 30] {
            for index in 0..200 {
                let plan = HostPlan::new(1, index, 200, gpus);
                for elapsed in [0.0, 1900.0, 3000.0, 4400.0, 7000.0] {
                    let at = |slot: &&GpuSlot| slot.began_seconds + elapsed >= 0.0 && elapsed < slot.left_seconds;
                    let seated: Vec<usize> = plan.slots.iter().filter(at).flat_map(|slot| slot.gpus.clone()).collect();
                    let mut once = seated.clone();
                    once.dedup();
                    assert_eq!(seated, once, "host {index}: two jobs on one GPU");
                }
                let all: BTreeSet<usize> = plan.slots.iter().flat_map(|slot| slot.gpus.clone()).collect();
                assert_eq!(all.into_iter().collect::<Vec<_>>(), (0..gpus).collect::<Vec<_>>(), "host {index}");
                assert!(plan.slots.iter().all(|slot| slot.began_seconds < plan.up_seconds));
                assert!(plan.host_faults.iter().all(|host_fault| host_fault.fits(gpus)));
            }
        }
    }

    #[test]
    fn a_fleet_of_any_size_has_sorted_names() {
        let name = |index, hosts| HostPlan::new(1, index, hosts, 8).name;
        assert_eq!((name(0, 6), name(5, 6)), ("hgx-01".to_owned(), "hgx-06".to_owned()));
        assert_eq!((name(0, 1000), name(999, 1000)), ("hgx-0001".to_owned(), "hgx-1000".to_owned()));
    }

    #[test]
    fn outages_affect_their_host_only() {
        let plan = HostPlan::new(1, 4, 6, 8);
        let seen = [0.0, 74.0, 76.0, 114.0, 116.0, 2999.0, 3001.0, 3419.0, 3421.0].map(|at| plan.is_reachable(at));
        assert_eq!(seen, [true, true, false, false, true, true, false, false, true]);
        assert!((0..500).all(|second| HostPlan::new(1, 0, 6, 8).is_reachable(f64::from(second))));
    }
}
