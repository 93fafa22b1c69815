//! The processes of a job: pids, command lines, ancestors and owner.

use super::fault::JobFaultKind;
use super::host_plan::HostPlan;
use super::scenario::{PEOPLE, Person, VIEWER};
use super::workload::{GpuSlot, Job, Workload};
use crate::wire::{Ancestor, Owner, ProcessFacts, SafeText};

/// Pid of the process that adopts orphans.
const INIT: u32 = 1;
/// `USER_HZ`.
const TICKS_PER_SECOND: f64 = 100.0;
/// Number of pids reserved for one slot.
const PIDS_PER_SLOT: u64 = 24_000;
/// Distance between the pids of successive jobs of a slot.
const PIDS_PER_RUN: u64 = 611;

/// A process on a GPU.
#[derive(Debug, Clone)]
pub(super) struct Worker {
    pub(super) pid: u32,
    pub(super) start_ticks: u64,
    /// Position of its GPU on the host.
    pub(super) gpu: usize,
    /// Its share of the values of the workload for one GPU.
    pub(super) share: f64,
    pub(super) age_seconds: f64,
    /// Its index within the job.
    pub(super) rank: usize,
}

/// Returns the parent of a worker.
pub(super) fn parent(slot: &GpuSlot, job: Job, elapsed: f64) -> u32 {
    match slot.kind {
        _ if slot.fault_since(JobFaultKind::LosesLauncher, elapsed).is_some() => INIT,
        kind if kind.is_launched() => first_pid(slot, job) + 2,
        Workload::Inference => first_pid(slot, job) + 3,
        Workload::Notebook => first_pid(slot, job) + 1,
        _ => first_pid(slot, job),
    }
}

/// Returns the GPU processes of a job.
pub(super) fn workers(plan: &HostPlan, slot: &GpuSlot, job: Job, elapsed: f64) -> Vec<Worker> {
    let shares: &[f64] = if slot.kind == Workload::Shared { &[0.64, 0.36] } else { &[1.0] };
    let ranks = slot.gpus.clone().flat_map(|gpu| shares.iter().map(move |share| (gpu, *share)));
    ranks
        .enumerate()
        .map(|(rank, (gpu, share))| {
            // Ranks are forked one after the other, a few seconds after their launcher.
            let age_seconds = (job.age_seconds - 2.5 - 0.04 * rank as f64).max(0.0);
            Worker {
                pid: first_pid(slot, job) + 60 + rank as u32,
                start_ticks: ticks(plan, elapsed, age_seconds),
                gpu,
                share,
                age_seconds,
                rank,
            }
        })
        .collect()
}

/// Returns the static facts of a worker. `unix_seconds` is the wall clock of the host.
pub(super) fn facts(
    plan: &HostPlan,
    slot: &GpuSlot,
    job: Job,
    worker: &Worker,
    elapsed: f64,
    unix_seconds: f64,
) -> ProcessFacts {
    let person = PEOPLE[slot.person];
    let (name, argv) = command(slot, worker.rank);
    let is_own = person.uid == VIEWER.uid;
    let directory = format!("/home/{}/work", person.login);
    let log = format!("{directory}/logs/{}.log", first_pid(slot, job));
    ProcessFacts {
        pid: worker.pid,
        start_ticks: Some(worker.start_ticks),
        start_unix_seconds: Some((unix_seconds - worker.age_seconds) as i64),
        uid: Some(person.uid),
        user: Some(person.login.into()),
        full_name: Some(person.full_name.into()),
        name: Some(name.into()),
        argv: words(&argv),
        ancestors: ancestors(plan, slot, job, elapsed),
        session: Some(first_pid(slot, job)),
        working_directory: is_own.then(|| SafeText::from(directory)),
        log_path: is_own.then(|| SafeText::from(log)),
        owner: Some(owner(plan, slot, job)),
        ..ProcessFacts::default()
    }
}

fn first_pid(slot: &GpuSlot, job: Job) -> u32 {
    (2000
        + slot.seed % 900
        + slot.number * PIDS_PER_SLOT
        + job.run_index * PIDS_PER_RUN % (PIDS_PER_SLOT - PIDS_PER_RUN)) as u32
}

fn ticks(plan: &HostPlan, elapsed: f64, age_seconds: f64) -> u64 {
    // Rounded to nearest, so that a process keeps its start time in every sample.
    ((plan.up_seconds + elapsed - age_seconds) * TICKS_PER_SECOND).round() as u64
}

fn words(line: &str) -> Vec<SafeText> {
    line.split(' ').map(SafeText::new).collect()
}

/// Returns name and arguments of a worker.
fn command(slot: &GpuSlot, rank: usize) -> (&'static str, String) {
    let python = "/opt/conda/bin/python";
    let script = script(slot);
    match slot.kind {
        Workload::Pretrain | Workload::Training => ("python", format!("{python} -u {script}")),
        Workload::Evaluation | Workload::Hot | Workload::Video | Workload::Tiny => {
            ("python", format!("python {script}"))
        }
        Workload::Inference if slot.gpus.len() > 1 => ("VLLM::Worker_TP", format!("VLLM::Worker_TP{rank}")),
        Workload::Inference => ("VLLM::EngineCor", "VLLM::EngineCore".to_owned()),
        Workload::Shared if rank.is_multiple_of(2) => {
            ("python3", "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --port 30000".to_owned())
        }
        Workload::Shared => ("text-embeddings", "text-embeddings-router --model-id BAAI/bge-m3 --port 8080".to_owned()),
        Workload::Notebook => (
            "python3",
            format!(
                "/home/{0}/.venv/bin/python3 -m ipykernel_launcher -f /home/{0}/.local/share/jupyter/runtime/kernel-8f3a1c.json",
                PEOPLE[slot.person].login
            ),
        ),
        Workload::Free => ("", String::new()),
    }
}

/// Returns the script of a job with its arguments.
fn script(slot: &GpuSlot) -> &'static str {
    let of = |choices: &[&'static str]| choices[slot.seed as usize % choices.len()];
    if let Some(script) = slot.script {
        return script;
    }
    match slot.kind {
        Workload::Pretrain => "pretrain.py --config configs/moe-13b.yaml --fsdp full",
        Workload::Training => of(&[
            "train.py --config configs/vit-h.yaml --bf16",
            "train.py --model llama-8b --data /scratch/pile --zero 3",
            "finetune.py --base qwen3-8b --lora-rank 64",
        ]),
        Workload::Evaluation => of(&[
            "eval.py --split test --model ckpt/step-48000",
            "probe.py --layer 12",
            "render.py --scene city --samples 512",
            "sweep.py --trial 17",
        ]),
        Workload::Hot => "gan.py --res 1024 --batch 64",
        Workload::Video => "train_video.py --decode cpu --workers 16",
        Workload::Tiny => "ppo.py --batch 8",
        Workload::Inference | Workload::Shared | Workload::Notebook | Workload::Free => "",
    }
}

/// Returns the ancestors up to the first shell, the nearest first.
fn ancestors(plan: &HostPlan, slot: &GpuSlot, job: Job, elapsed: f64) -> Vec<Ancestor> {
    let Person { login, uid, .. } = PEOPLE[slot.person];
    let first = first_pid(slot, job);
    let parent = |pid: u32, younger_by: f64, name: &str, line: &str| Ancestor {
        pid,
        start_ticks: ticks(plan, elapsed, job.age_seconds - younger_by),
        uid: Some(uid),
        name: name.into(),
        argv: words(line),
    };
    let shell = parent(first, 0.0, "bash", "-bash");
    if slot.fault_since(JobFaultKind::LosesLauncher, elapsed).is_some() {
        let argv = words("/sbin/init");
        return vec![Ancestor { pid: INIT, start_ticks: 1, uid: Some(0), name: "systemd".into(), argv }];
    }
    match slot.kind {
        kind if kind.is_launched() => {
            let ranks = slot.gpus.len();
            let line =
                format!("/opt/conda/bin/python /opt/conda/bin/torchrun --nproc_per_node {ranks} {}", script(slot));
            let batch = format!("/bin/bash /var/spool/slurmd/job{}/slurm_script", slurm_job(plan, slot, job));
            let beneath = if plan.uses_slurm { parent(first, 0.0, "bash", &batch) } else { shell };
            vec![parent(first + 2, 0.4, "torchrun", &line), beneath]
        }
        Workload::Inference => {
            let line = format!(
                "/usr/bin/python3 /usr/local/bin/vllm serve Qwen/Qwen3-32B --tensor-parallel-size {}",
                slot.gpus.len()
            );
            vec![parent(first + 3, 0.2, "vllm", &line), parent(first, 0.0, "sh", "/bin/sh -c /serve.sh")]
        }
        Workload::Notebook => {
            let line = format!("/home/{login}/.venv/bin/python3 /home/{login}/.venv/bin/jupyter-lab --no-browser");
            vec![parent(first + 1, 0.1, "jupyter-lab", &line), shell]
        }
        _ => vec![shell],
    }
}

fn owner(plan: &HostPlan, slot: &GpuSlot, job: Job) -> Owner {
    match slot.kind {
        Workload::Inference | Workload::Shared => Owner::Container {
            runtime: "docker".into(),
            id: SafeText::new(&format!("{:012x}", slot.seed.wrapping_add(job.run_index) >> 16)),
        },
        Workload::Notebook | Workload::Video => login_session(slot),
        _ if !plan.uses_slurm => login_session(slot),
        _ => Owner::Slurm { job: SafeText::new(&slurm_job(plan, slot, job).to_string()), step: Some("0".into()) },
    }
}

fn login_session(slot: &GpuSlot) -> Owner {
    Owner::Session(SafeText::new(&(slot.seed % 4000 + 12).to_string()))
}

fn slurm_job(plan: &HostPlan, slot: &GpuSlot, job: Job) -> u64 {
    if slot.kind == Workload::Pretrain {
        return plan.slurm_base;
    }
    plan.slurm_base * 10 + slot.number + plan.seed % 7 * 1000 + job.run_index * 13
}

#[cfg(test)]
mod tests {
    use super::super::workload::Ended;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn pids_are_unique_and_stable() {
        for index in 0..40 {
            let plan = HostPlan::new(5, index, 40, 8);
            let at = |elapsed: f64| -> Vec<(u64, u64, u32, u64)> {
                plan.slots
                    .iter()
                    .filter_map(|slot| Some((slot, slot.job(elapsed, &Ended::new())?)))
                    .flat_map(|(slot, job)| {
                        let ids = |worker: Worker| (slot.number, job.run_index, worker.pid, worker.start_ticks);
                        workers(&plan, slot, job, elapsed).into_iter().map(ids).collect::<Vec<_>>()
                    })
                    .collect()
            };
            let pids: Vec<u32> = at(10.0).iter().map(|worker| worker.2).collect();
            assert_eq!(pids.iter().collect::<HashSet<_>>().len(), pids.len());
            let later: Vec<_> = at(11.37);
            for worker in at(10.0) {
                let same = later.iter().find(|other| other.2 == worker.2);
                assert!(same.is_none_or(|other| *other == worker), "{worker:?} {same:?}");
            }
        }
    }

    #[test]
    fn ranks_have_their_launcher_as_parent() {
        let plan = HostPlan::new(5, 0, 6, 8);
        let slot = &plan.slots[0];
        let job = slot.job(0.0, &Ended::new()).expect("runs");
        let ranks = workers(&plan, slot, job, 0.0);
        assert_eq!(ranks.len(), 4);
        let facts: Vec<_> = ranks.iter().map(|rank| facts(&plan, slot, job, rank, 0.0, 1.7e9)).collect();
        assert!(facts.windows(2).all(|pair| pair[0].ancestors == pair[1].ancestors));
        assert_eq!(facts[0].ancestors[0].name, "torchrun");
        assert_eq!(facts[0].ancestors.last().map(|ancestor| &*ancestor.name), Some("bash"));
        assert!(facts[0].ancestors[0].start_ticks < ranks[0].start_ticks);
        assert!(matches!(facts[0].owner, Some(Owner::Slurm { .. })));
    }
}
