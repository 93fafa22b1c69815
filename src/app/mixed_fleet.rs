//! A fleet of unlike hosts for tests.

use super::testing::{NOW, at, connecting, report, update};
use crate::app::{App, Event};
use crate::fleet::{HostUpdate, LinkError, LinkErrorKind};
use crate::sim::builder::{self, ProcessSample};
use crate::wire::{
    GpuInfo, GpuProcessKind, GpuProcessReading, GpuReading, Hello, HostReading, Inventory, Presence, ProcessReading,
    ReadingSource, Scope, Snapshot,
};

const GIB: u64 = 1 << 30;

/// A process: pid, user (`None` if the host hides it), command, GPU position, GiB, kind.
type Work<'a> = (u32, Option<&'a str>, &'a str, u16, Option<u64>, GpuProcessKind);

/// Returns an app with eight hosts: a server with MIG, one with unified memory, a workstation with a desktop, one that
/// hides other users' processes, one seen from inside a Slurm job, one seen from inside a container through
/// `nvidia-smi`, one that waits for the user, and an ordinary one.
pub(crate) fn mixed_fleet(size: (u16, u16)) -> App {
    let names = ["mig-01", "spark-01", "ws-07", "shared-02", "slurm-11", "pod-03", "hgx-new", "hgx-01"];
    let mut app = connecting(&names.map(str::to_owned), size);
    for seconds in (0..=NOW).step_by(10) {
        for (host, machine) in [mig(), unified(), workstation(), hidden(), slurm(), container()].into_iter().enumerate()
        {
            machine.report(&mut app, host, seconds);
        }
        report(&mut app, 7, 8, seconds);
    }
    let error = LinkError::new(LinkErrorKind::Authentication, "the server takes none of the keys that were offered")
        .with_hint("ssh-copy-id hgx-new");
    update(&mut app, 6, HostUpdate::NeedsUser(error), NOW - 20);
    app.update(Event::Ticked, at(NOW));
    app.refresh_derived_state();
    app
}

/// A host of the fleet.
struct Machine<'a> {
    scope: Scope,
    source: Option<ReadingSource>,
    gpus: Vec<(GpuInfo, GpuReading)>,
    work: Vec<Work<'a>>,
    memory: (u64, u64),
}

fn info(index: u32, name: &str, gib: u64) -> GpuInfo {
    GpuInfo {
        index,
        uuid: Some(format!("GPU-{index}-{}", name.len()).into()),
        name: Some(name.into()),
        memory_total_bytes: Some(gib * GIB),
        power_limit_watts: Some(400.0),
        ..GpuInfo::default()
    }
}

fn busy(percent: u8, used_gib: u64) -> GpuReading {
    GpuReading {
        utilization_percent: Some(percent),
        memory_utilization_percent: Some(percent / 2),
        memory_used_bytes: Some(used_gib * GIB),
        temperature_celsius: Some(30 + i32::from(percent) / 3),
        power_watts: Some(60.0 + 3.0 * f32::from(percent)),
        ..GpuReading::default()
    }
}

/// A GPU with three MIG instances, one of them free, and a GPU without MIG.
fn mig() -> Machine<'static> {
    let mut parent = info(0, "NVIDIA A100-SXM4-80GB", 80);
    parent.mig_enabled = Some(true);
    let reading = GpuReading { utilization_percent: None, memory_utilization_percent: None, ..busy(0, 47) };
    let mut gpus = vec![(parent.clone(), reading)];
    for (instance, (gib, used)) in [(40, 31), (20, 16), (20, 0)].into_iter().enumerate() {
        let part = GpuInfo {
            uuid: Some(format!("MIG-{instance}").into()),
            memory_total_bytes: Some(gib * GIB),
            power_limit_watts: None,
            mig_enabled: None,
            mig_parent_uuid: parent.uuid.clone(),
            gpu_instance_id: Some(instance as u32 + 1),
            compute_instance_id: Some(0),
            ..parent.clone()
        };
        gpus.push((part, GpuReading { memory_used_bytes: Some(used * GIB), ..GpuReading::default() }));
    }
    gpus.push((info(1, "NVIDIA A100-SXM4-80GB", 80), busy(93, 71)));
    let compute = GpuProcessKind::Compute;
    Machine {
        scope: Scope::Host,
        source: None,
        gpus,
        work: vec![
            (100, Some("alice"), "python serve.py --model small", 1, None, compute),
            (101, Some("bob"), "ipykernel_launcher -f kernel.json", 2, None, compute),
            (102, Some("carol"), "python train.py", 4, Some(70), compute),
        ],
        memory: (503, 120),
    }
}

/// The GPU shares the memory of the host and reports no total.
fn unified() -> Machine<'static> {
    let mut gpu = info(0, "NVIDIA GB10", 0);
    gpu.memory_total_bytes = None;
    gpu.power_limit_watts = None;
    gpu.unified_memory = Some(true);
    let reading = GpuReading { memory_used_bytes: None, power_watts: Some(38.0), ..busy(88, 0) };
    Machine {
        scope: Scope::Host,
        source: None,
        gpus: vec![(gpu, reading)],
        work: vec![(200, Some("dmitri"), "python finetune.py --lora", 0, Some(33), GpuProcessKind::Compute)],
        memory: (119, 41),
    }
}

/// A desktop uses the only GPU, which counts as free.
fn workstation() -> Machine<'static> {
    Machine {
        scope: Scope::Host,
        source: None,
        gpus: vec![(info(0, "NVIDIA GeForce RTX 4090", 24), busy(3, 1))],
        work: vec![
            (300, Some("root"), "/usr/lib/xorg/Xorg :0", 0, Some(0), GpuProcessKind::Graphics),
            (301, Some("fumi"), "/usr/bin/gnome-shell", 0, Some(1), GpuProcessKind::Graphics),
        ],
        memory: (125, 30),
    }
}

/// The host hides other users' processes.
fn hidden() -> Machine<'static> {
    Machine {
        scope: Scope::Host,
        source: None,
        gpus: vec![(info(0, "NVIDIA L40S", 45), busy(97, 40)), (info(1, "NVIDIA L40S", 45), busy(0, 0))],
        work: vec![(400, None, "", 0, Some(39), GpuProcessKind::Compute)],
        memory: (251, 60),
    }
}

/// The login is inside a Slurm job and sees only its GPUs.
fn slurm() -> Machine<'static> {
    Machine {
        scope: Scope::SlurmJob("3385".into()),
        source: None,
        gpus: vec![
            (info(0, "NVIDIA H100 80GB HBM3", 80), busy(96, 66)),
            (info(1, "NVIDIA H100 80GB HBM3", 80), busy(95, 66)),
        ],
        work: vec![
            (500, Some("erika"), "python pretrain.py", 0, Some(65), GpuProcessKind::Compute),
            (501, Some("erika"), "python pretrain.py", 1, Some(65), GpuProcessKind::Compute),
        ],
        memory: (1007, 300),
    }
}

/// A container in which the probe cannot run.
fn container() -> Machine<'static> {
    Machine {
        scope: Scope::Container("pytorch".into()),
        source: Some(ReadingSource::NvidiaSmi),
        gpus: vec![(info(0, "Tesla T4", 15), busy(61, 9))],
        work: vec![(600, Some("gustav"), "python infer.py", 0, Some(8), GpuProcessKind::Compute)],
        memory: (62, 20),
    }
}

impl Machine<'_> {
    fn report(&self, app: &mut App, host: usize, seconds: u64) {
        if seconds == 0 {
            update(app, host, HostUpdate::Hello(Box::new(self.hello())), seconds);
            let inventory = Inventory {
                generation: 1,
                driver_version: Some("570.86.15".into()),
                cuda_version: Some("12.8".into()),
                gpus: self.gpus.iter().map(|(info, _)| info.clone()).collect(),
                ..Inventory::default()
            };
            update(app, host, HostUpdate::Inventory(Box::new(inventory)), seconds);
        }
        update(app, host, HostUpdate::Snapshot(Box::new(self.snapshot(seconds))), seconds);
    }

    fn hello(&self) -> Hello {
        Hello {
            cpu_count: Some(32),
            memory_total_bytes: Some(self.memory.0 * GIB),
            scope: Some(self.scope.clone()),
            source: self.source.clone(),
            probe_pid: None,
            probe_sha256: None,
            ..super::testing::hello()
        }
    }

    fn snapshot(&self, seconds: u64) -> Snapshot {
        let readings: Vec<GpuReading> = self.gpus.iter().map(|(_, reading)| reading.clone()).collect();
        let processes: Vec<ProcessSample> = self.work.iter().map(process).collect();
        Snapshot {
            sequence: seconds + 1,
            monotonic_seconds: seconds as f64,
            interval_seconds: Some(10.0),
            host: HostReading {
                cpu_percent: Some(21.0),
                load_1: Some(7.0),
                memory_total_bytes: Some(self.memory.0 * GIB),
                memory_available_bytes: Some((self.memory.0 - self.memory.1) * GIB),
                ..HostReading::default()
            },
            ..builder::snapshot(&readings, &processes)
        }
    }
}

fn process((pid, user, command, gpu, gib, kind): &Work<'_>) -> ProcessSample {
    let uid = user.map_or(0, |user| if user == "root" { 0 } else { 1000 + user.len() as u32 });
    let mut process = ProcessSample::new(*pid, (user.unwrap_or_default(), uid), command, &[(*gpu, 0)]);
    process.gpus[0] = GpuProcessReading {
        kind: Some(*kind),
        gpu_memory_bytes: gib.map(|gib| gib * GIB),
        sm_percent: None,
        ..process.gpus[0].clone()
    };
    process.facts.name = Some("python".into());
    process.reading.rss_bytes = None;
    process.reading.age_seconds = Some(7200.0);
    if user.is_none() {
        process.is_known = true;
        process.reading =
            ProcessReading { pid: Some(*pid), presence: Some(Presence::Hidden), ..ProcessReading::default() };
    }
    process
}
