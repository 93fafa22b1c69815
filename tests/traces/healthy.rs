//! Days without trouble: mixed work of a small lab, generated from a seed.
//!
//! Every finding at warn or above on such a day is false, except those about the reboot of a drained host.

use super::case_file::Case;
use gpufleet::sim::gpu_model::model;
use gpufleet::sim::rng::Rng;
use gpufleet::sim::script::{Job, Positions, Seconds, Step};

/// Number of hosts of one fleet.
pub(crate) const HOSTS: usize = 5;
/// Minutes of a day.
const DAY: f64 = 1440.0;
const USERS: [&str; 5] = ["alice", "bob", "carol", "dmitri", "erika"];

/// Generates a case with a fleet of [`HOSTS`] hosts for this many minutes.
pub(crate) fn fleet(seed: u64, minutes: f64) -> Case {
    let mut rng = Rng::new(&[seed, 77]);
    let gpu = rng.pick(&["h100", "h100", "l40s", "rtx4090", "a100pcie", "v100"]);
    let gpus = rng.pick(&[2, 4, 8]);
    let memory = model(gpu).and_then(|model| model.memory).unwrap_or(64.0);
    let mut case = Case {
        name: format!("healthy-{seed}"),
        gpu: gpu.to_owned(),
        gpus,
        hosts: HOSTS,
        length: Seconds(minutes * 60.0),
        ..Case::default()
    };
    // Sometimes a host is drained and rebooted. A finding that it is unreachable is then correct.
    let reboot = rng.chance(0.3).then(|| rng.between(120.0, minutes.max(300.0) - 120.0));
    // Sometimes the first GPU of a host is divided into MIG instances.
    let divided = gpu == "h100" && gpus > 2 && rng.chance(0.4);
    for host in 0..HOSTS {
        let mut gpu = 0;
        let is_last = host + 1 == HOSTS;
        while gpu < gpus {
            let width = rng.pick(&[1, 1, 2, 4, 8]).min(gpus - gpu);
            let width = if is_last && divided { 1 } else { width };
            let slot = GpuSlot { host, first: gpu, width, memory };
            match reboot.filter(|_| is_last) {
                Some(at) => {
                    slot.fill(&mut case.jobs, 0.0, at - 5.0, &mut rng);
                    slot.fill(&mut case.jobs, at + 8.0, minutes, &mut rng);
                }
                None => slot.fill(&mut case.jobs, 0.0, minutes, &mut rng),
            }
            gpu += width;
        }
        events(&mut case.events, host, gpus, minutes, &mut rng);
        if let Some(at) = reboot.filter(|_| is_last) {
            case.events.push(step(&format!("{} down for=4m hosts={host} error=refused", time(at))));
            case.events.push(step(&format!("{} reboot hosts={host}", time(at + 1.0))));
            case.may.push("host-unreachable warn".to_owned());
            // It tells that programs at work ended, which is true.
            case.may.push("host-rebooted warn".to_owned());
        }
        if is_last && divided {
            case.events.push(step(&format!("0 mig gpu=1-{} hosts={host}", gpus - 1)));
        }
    }
    // The laptop that runs gpufleet sleeps for a while.
    if rng.chance(0.5) {
        let at = rng.between(60.0, DAY - 200.0);
        case.events.push(step(&format!("{:.0}m sleep for={:.0}m", at, rng.between(20.0, 120.0))));
    }
    case
}

/// Some GPUs of a host, on which one job runs at a time.
struct GpuSlot {
    host: usize,
    first: usize,
    width: usize,
    /// GiB per GPU.
    memory: f64,
}

impl GpuSlot {
    /// Adds one job after another, from one minute to another.
    fn fill(&self, jobs: &mut Vec<Job>, from: f64, until: f64, rng: &mut Rng) {
        let mut at = from;
        let user = rng.pick(&USERS);
        while at < until {
            let choice = rng.unit();
            let (work, ends) = match choice {
                ..0.25 => training(at, self.memory, rng),
                ..0.36 => short(at, rng),
                ..0.44 => notebook(at, rng),
                ..0.56 => server(at, rng),
                ..0.66 => lookalike(at, rng),
                ..0.74 => debugging(at, rng),
                ..0.82 => simulating(at, rng),
                ..0.90 if self.width > 1 => evaluated(at, rng),
                _ => {
                    at = self.array(jobs, at, user, rng);
                    continue;
                }
            };
            self.push(jobs, user, work, until, rng);
            at = ends + if rng.chance(0.5) { rng.between(1.0, 8.0) } else { rng.between(20.0, 180.0) };
        }
    }

    /// Adds a Slurm array: short jobs in direct succession. Returns the minute when the last one is over.
    fn array(&self, jobs: &mut Vec<Job>, mut at: f64, user: &str, rng: &mut Rng) -> f64 {
        for _ in 0..4 + rng.bits() % 12 {
            let loads = rng.between(0.2, 1.0);
            let ends = at + loads + rng.between(1.5, 14.0);
            let kind = rng.pick(&["decode", "train checkpoint=9h", "tiny m=7 m_noise=2 cv=0.08"]);
            let work = vec![
                format!("{} load", time(at.max(0.1))),
                format!("{} {kind}", time(at + loads)),
                format!("{} gone", time(ends)),
            ];
            let command = "python sweep.py --trial 7".to_owned();
            let work =
                JobSpec { command, launcher: "python sweep.py".to_owned(), steps: work, first: None, share: 0.3 };
            self.push(jobs, user, work, f64::INFINITY, rng);
            at = ends + rng.between(0.1, 0.8);
        }
        at + rng.between(5.0, 90.0)
    }

    /// Adds one job, which ends at `until` at the latest.
    fn push(&self, jobs: &mut Vec<Job>, user: &str, work: JobSpec, until: f64, rng: &mut Rng) {
        let JobSpec { command, launcher, steps, first, share } = work;
        let end = |steps: Vec<String>| {
            let steps = steps.iter().map(|text| step(text)).filter(|step| step.at < until * 60.0);
            steps.chain(until.is_finite().then(|| step(&format!("{} gone", time(until))))).collect()
        };
        // Each Slurm job needs a different number.
        let number = 4000 + jobs.len();
        let under = rng.pick(&["shell", "tmux", "slurm 3385", "docker 0123456789ab", "nohup"]);
        jobs.push(Job {
            user: user.to_owned(),
            command,
            gpus: Positions(vec![(self.first, self.first + self.width - 1)]),
            hosts: Positions(vec![(self.host, self.host)]),
            single: self.width > 1 && first.is_none() && rng.chance(0.2),
            under: under.replace("3385", &number.to_string()).replace("9ab", &number.to_string()),
            launcher: if self.width > 1 { launcher } else { String::new() },
            memory: self.memory * share,
            age: Seconds(5.0 * 3600.0),
            work: end(steps),
            ranks: first.map(|steps| ("0".to_owned(), end(steps))).into_iter().collect(),
            ..Job::default()
        });
    }
}

/// The work of a job.
struct JobSpec {
    command: String,
    /// Command line of the parent, if the job has several processes.
    launcher: String,
    steps: Vec<String>,
    /// Steps of the first rank, if they differ.
    first: Option<Vec<String>>,
    /// Share of the GPU memory that it uses.
    share: f64,
}

impl JobSpec {
    fn new(command: &str, launcher: &str, steps: Vec<String>, share: f64) -> Self {
        Self { command: command.to_owned(), launcher: launcher.to_owned(), steps, first: None, share }
    }
}

fn step(text: &str) -> Step {
    Step::parse(text).expect("a valid step")
}

/// Formats minutes as a time of a case file.
fn time(minutes: f64) -> String {
    format!("{:.0}s", minutes * 60.0)
}

/// Training with checkpoints, slow data and evaluations. Returns the job and the minute of its end, like all below.
fn training(at: f64, memory: f64, rng: &mut Rng) -> (JobSpec, f64) {
    let loads = rng.between(1.0, 8.0);
    let lasts = rng.between(90.0, 600.0);
    let rhythm = format!("checkpoint={:.0}m saves={:.0}s", rng.between(10.0, 60.0), rng.between(15.0, 100.0));
    let grows = format!("saturates={:.1} tau={:.0}m", memory * rng.between(0.005, 0.06), rng.between(2.0, 20.0));
    let kind = rng.pick(&["train", "train", "train", "comm", "fsdp"]);
    let mut work = Vec::new();
    if at > 0.0 {
        work.push(format!("{} load", time(at)));
    }
    let mut now = at + loads;
    let grows = format!("{grows} since={}", time(now));
    if at == 0.0 {
        work.push(format!("0 {kind} {rhythm}"));
        now = 0.0;
    } else {
        work.push(format!("{} {kind} {rhythm} {grows}", time(now)));
    }
    // Sometimes the data loader is slow for a few minutes, or an evaluation runs in between.
    while now + 60.0 < at + lasts {
        now += rng.between(40.0, 120.0);
        let turn = rng.unit();
        if turn < 0.3 {
            work.push(format!("{} starve helpers=8 helper_cpu=0.7 {grows}", time(now)));
            now += rng.between(1.0, 6.0);
        } else if turn < 0.5 {
            work.push(format!("{} decode {grows}", time(now)));
            now += rng.between(3.0, 15.0);
        }
        work.push(format!("{} {kind} {rhythm} {grows}", time(now)));
    }
    let ends = (at + lasts).max(now + 5.0);
    work.push(format!("{} gone", time(ends)));
    let command = rng.pick(&[
        "python -u train.py --config configs/vit-h.yaml",
        "python -u pretrain.py --fsdp full",
        "python3 finetune.py --lora-rank 64",
    ]);
    (JobSpec::new(command, "torchrun --nproc-per-node gpu train.py", work, 0.85), ends)
}

/// A short evaluation job.
fn short(at: f64, rng: &mut Rng) -> (JobSpec, f64) {
    let loads = rng.between(0.5, 4.0);
    let lasts = rng.between(6.0, 50.0);
    let kind = rng.pick(&["decode", "train checkpoint=9h", "comm", "decode"]);
    let work = vec![
        format!("{} load", time(at.max(0.1))),
        format!("{} {kind}", time(at + loads)),
        format!("{} gone", time(at + loads + lasts)),
    ];
    (JobSpec::new("python eval.py --split test", "accelerate launch eval.py", work, 0.5), at + loads + lasts)
}

/// A notebook: short cells with idle time between them.
fn notebook(at: f64, rng: &mut Rng) -> (JobSpec, f64) {
    let mut now = at.max(0.1);
    let mut work = Vec::new();
    let ends = at + rng.between(60.0, 400.0);
    while now < ends {
        work.push(format!("{} train checkpoint=9h watts={:.0} cpu=1", time(now), rng.between(120.0, 200.0)));
        now += rng.between(1.0, 8.0);
        work.push(format!("{} idle cpu=0.003", time(now)));
        now += rng.between(3.0, 25.0);
    }
    work.push(format!("{} gone", time(now)));
    let command = "python3 -m ipykernel_launcher -f /run/user/1001/jupyter/kernel-8f3a1c.json";
    (JobSpec::new(command, "", work, 0.2), now)
}

/// A model server with busy and idle periods.
fn server(at: f64, rng: &mut Rng) -> (JobSpec, f64) {
    let mut now = at.max(0.1);
    let mut work = vec![format!("{} load", time(now))];
    let ends = at + rng.between(200.0, 1000.0);
    now += 3.0;
    while now < ends {
        work.push(format!("{} serve", time(now)));
        now += rng.between(10.0, 180.0);
        work.push(format!("{} wait cpu={:.2}", time(now), rng.pick(&[0.02, 1.0, 2.0])));
        now += rng.between(5.0, 200.0);
    }
    work.push(format!("{} gone", time(now)));
    let command = rng.pick(&[
        "python3 -m vllm.entrypoints.openai.api_server --model qwen",
        "python3 -m sglang.launch_server --model-path llama",
        "/usr/local/bin/ollama runner --port 38211",
    ]);
    (JobSpec::new(command, "", work, 0.88), now)
}

/// Healthy work that looks like trouble.
fn lookalike(at: f64, rng: &mut Rng) -> (JobSpec, f64) {
    let loads = rng.between(1.0, 8.0);
    let lasts = rng.between(20.0, 120.0);
    let phase = match rng.bits() % 3 {
        // Launch-bound kernels: busy, at a low and uneven power.
        0 => "tiny m=7 m_noise=2 cv=0.08".to_owned(),
        // Long checkpoints to which every rank writes.
        1 => format!("train checkpoint=25m saves={:.0}s style=all", rng.between(120.0, 240.0)),
        _ => "serve".to_owned(),
    };
    let mut work = vec![format!("{} load", time(at.max(0.1)))];
    work.push(format!("{} {phase}", time(at + loads)));
    work.push(format!("{} gone", time(at + loads + lasts)));
    (JobSpec::new("python infer.py --batch 1", "torchrun infer.py", work, 0.4), at + loads + lasts)
}

/// Debugging: short runs, a debugger that holds the process, Ctrl-Z for a moment.
fn debugging(at: f64, rng: &mut Rng) -> (JobSpec, f64) {
    let mut now = at.max(0.1);
    let ends = at + rng.between(30.0, 150.0);
    let mut work = vec![format!("{} load", time(now))];
    now += rng.between(0.5, 3.0);
    while now < ends {
        work.push(format!("{} train checkpoint=9h", time(now)));
        now += rng.between(2.0, 15.0);
        let (state, lasts) = if rng.chance(0.7) { ("t", rng.between(3.0, 40.0)) } else { ("T", rng.between(0.3, 4.0)) };
        work.push(format!("{} idle state={state}", time(now)));
        now += lasts;
    }
    work.push(format!("{} gone", time(now)));
    (JobSpec::new("python -m debugpy --listen 5678 train.py", "torchrun train.py", work, 0.4), now)
}

/// Reinforcement learning: simulation on the CPUs alternates with training on the GPU.
fn simulating(at: f64, rng: &mut Rng) -> (JobSpec, f64) {
    let mut now = at.max(0.1);
    let ends = at + rng.between(90.0, 500.0);
    let (simulation, training) = (rng.between(1.0, 7.0), rng.between(1.0, 6.0));
    let mut work = vec![format!("{} load", time(now))];
    now += rng.between(1.0, 4.0);
    while now < ends {
        work.push(format!("{} idle cpu=6 helpers=16 helper_cpu=0.7", time(now)));
        now += simulation * rng.between(0.8, 1.3);
        work.push(format!("{} train checkpoint=9h helpers=16", time(now)));
        now += training * rng.between(0.8, 1.3);
    }
    work.push(format!("{} gone", time(now)));
    (JobSpec::new("python ppo.py --envs 64", "torchrun ppo.py", work, 0.5), now)
}

/// Training whose first rank evaluates from time to time while the others wait in a barrier.
fn evaluated(at: f64, rng: &mut Rng) -> (JobSpec, f64) {
    let mut now = at.max(0.1);
    let ends = at + rng.between(120.0, 500.0);
    let mut others = vec![format!("{} load", time(now))];
    now += rng.between(1.0, 7.0);
    let mut first = others.clone();
    while now < ends {
        let train = format!("{} train checkpoint=35m saves=40s", time(now));
        first.push(train.clone());
        others.push(train);
        now += rng.between(20.0, 90.0);
        let evaluates = rng.pick(&["decode", "idle cpu=2.5", "idle cpu=1 waits=0.3 writes=2e8"]);
        first.push(format!("{} {evaluates}", time(now)));
        others.push(format!("{} spin", time(now)));
        now += rng.between(1.0, 9.0);
    }
    let gone = format!("{} gone", time(now));
    first.push(gone.clone());
    others.push(gone);
    let work = JobSpec::new("python -u train.py --eval-every 2000", "torchrun train.py", others, 0.85);
    (JobSpec { first: Some(first), ..work }, now)
}

/// Adds harmless events: short loads, single lost samples, a short outage, brief throttling.
fn events(events: &mut Vec<Step>, host: usize, gpus: usize, minutes: f64, rng: &mut Rng) {
    let when = |rng: &mut Rng| time(rng.between(5.0, minutes.max(10.0) - 5.0));
    let mut push = |text: String| events.push(step(&format!("{text} hosts={host}")));
    push(format!("0 disk mount=/home percent={:.0}", rng.between(30.0, 87.0)));
    push(format!("0 ram percent={:.0}", rng.between(20.0, 70.0)));
    push(format!("{} ram percent={:.0} for=20m", when(rng), rng.between(70.0, 86.0)));
    push(format!("0 ecc gpu=0 corrected={:.0} aggregate={:.0}", rng.between(0.0, 40.0), rng.between(0.0, 9.0)));
    push(format!("0 blips gpu={} share=0.02", rng.bits() as usize % gpus));
    push(format!("0 capped gpu=0-{}", gpus - 1));
    push(format!("{} pressure io={:.0} for=4m", when(rng), rng.between(10.0, 40.0)));
    for _ in 0..3 {
        push(format!("{} skip for=20s", when(rng)));
    }
    // A connection that breaks and returns at the next attempt.
    push(format!("{} down for=15s", when(rng)));
    push(format!("{} thermal gpu=0 share=0.02 for=10m", when(rng)));
}
