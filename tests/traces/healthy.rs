//! Days on which nothing is wrong: mixed work of a small lab, made from a seed. Whatever is found at warn or above on
//! them is a false finding.

use super::dice::Dice;
use super::script::{Case, Job};
use std::collections::BTreeMap;

/// Hosts of one fleet.
pub(crate) const HOSTS: usize = 5;
/// A day, in minutes.
const DAY: f64 = 1440.0;
const USERS: [&str; 5] = ["alice", "bob", "carol", "dmitri", "erika"];

/// A fleet of [`HOSTS`] hosts for this many minutes.
pub(crate) fn fleet(seed: u64, minutes: f64) -> Case {
    let mut dice = Dice::new(&[seed, 77]);
    let gpu = dice.pick(&["h100", "h100", "l40s", "rtx4090", "a100pcie", "v100"]);
    let gpus = dice.pick(&[2, 4, 8]);
    let memory = super::model::model(gpu).memory.unwrap_or(64.0);
    let mut case = Case {
        name: format!("healthy-{seed}"),
        trace: 0,
        gpu: gpu.to_owned(),
        gpus,
        hosts: HOSTS,
        interval: 10.0,
        length: format!("{}s", minutes * 60.0),
        jobs: Vec::new(),
        events: Vec::new(),
        must: Vec::new(),
        may: Vec::new(),
        must_not: Vec::new(),
        notifications: None,
        not_judged: Vec::new(),
        over: Vec::new(),
        late: None,
        late_must: Vec::new(),
        late_may: Vec::new(),
        except: Vec::new(),
    };
    for host in 0..HOSTS {
        let mut gpu = 0;
        while gpu < gpus {
            let width = dice.pick(&[1, 1, 2, 4, 8]).min(gpus - gpu);
            let range = if width == 1 { gpu.to_string() } else { format!("{gpu}-{}", gpu + width - 1) };
            seat(&mut case.jobs, host, &range, width, memory, minutes, &mut dice);
            gpu += width;
        }
        events(&mut case.events, host, gpus, minutes, &mut dice);
    }
    // The person's laptop sleeps for a while.
    if dice.chance(0.5) {
        let at = dice.between(60.0, DAY - 200.0);
        case.events.push(format!("{:.0}m sleep for={:.0}m", at, dice.between(20.0, 120.0)));
    }
    case
}

/// What goes on on some GPUs of a host, one job after the other.
fn seat(jobs: &mut Vec<Job>, host: usize, gpus: &str, width: usize, memory: f64, minutes: f64, dice: &mut Dice) {
    let mut at = 0.0;
    let user = dice.pick(&USERS);
    while at < minutes {
        let choice = dice.unit();
        let (job, ends) = match choice {
            ..0.35 => training(at, memory, dice),
            ..0.6 => short(at, dice),
            ..0.7 => notebook(at, dice),
            ..0.85 => server(at, dice),
            _ => special(at, dice),
        };
        let (command, launcher, work, share) = job;
        let job = Job {
            user: user.to_owned(),
            command,
            gpus: gpus.to_owned(),
            hosts: host.to_string(),
            single: width > 1 && dice.chance(0.2),
            under: dice.pick(&["shell", "tmux", "slurm 3385", "docker 0123456789ab", "nohup"]).to_owned(),
            launcher: if width > 1 { launcher } else { String::new() },
            memory: memory * share,
            age: "5h".to_owned(),
            work,
            ranks: BTreeMap::new(),
        };
        // A Slurm job's number is its own.
        let number = 4000 + jobs.len();
        jobs.push(Job {
            under: job.under.replace("3385", &number.to_string()).replace("9ab", &number.to_string()),
            ..job
        });
        at = ends + if dice.chance(0.5) { dice.between(1.0, 8.0) } else { dice.between(20.0, 180.0) };
    }
}

type Work = (String, String, Vec<String>, f64);

/// Minutes as a time of a script.
fn time(minutes: f64) -> String {
    format!("{:.0}s", minutes * 60.0)
}

fn training(at: f64, memory: f64, dice: &mut Dice) -> (Work, f64) {
    let loads = dice.between(1.0, 8.0);
    let lasts = dice.between(90.0, 600.0);
    let rhythm = format!("checkpoint={:.0}m saves={:.0}s", dice.between(10.0, 60.0), dice.between(15.0, 100.0));
    let grows = format!("saturates={:.1} tau={:.0}m", memory * dice.between(0.005, 0.06), dice.between(2.0, 20.0));
    let kind = dice.pick(&["train", "train", "train", "comm", "fsdp"]);
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
    // Now and then the data comes slowly for a few minutes, or an evaluation lies between.
    while now + 60.0 < at + lasts {
        now += dice.between(40.0, 120.0);
        let turn = dice.unit();
        if turn < 0.3 {
            work.push(format!("{} starve helpers=8 helper_cpu=0.7 {grows}", time(now)));
            now += dice.between(1.0, 6.0);
        } else if turn < 0.5 {
            work.push(format!("{} decode {grows}", time(now)));
            now += dice.between(3.0, 15.0);
        }
        work.push(format!("{} {kind} {rhythm} {grows}", time(now)));
    }
    let ends = (at + lasts).max(now + 5.0);
    work.push(format!("{} gone", time(ends)));
    let command = dice.pick(&[
        "python -u train.py --config configs/vit-h.yaml",
        "python -u pretrain.py --fsdp full",
        "python3 finetune.py --lora-rank 64",
    ]);
    ((command.to_owned(), "torchrun --nproc-per-node gpu train.py".to_owned(), work, 0.85), ends)
}

fn short(at: f64, dice: &mut Dice) -> (Work, f64) {
    let loads = dice.between(0.5, 4.0);
    let lasts = dice.between(6.0, 50.0);
    let kind = dice.pick(&["decode", "train checkpoint=9h", "comm", "decode"]);
    let work = vec![
        format!("{} load", time(at.max(0.1))),
        format!("{} {kind}", time(at + loads)),
        format!("{} gone", time(at + loads + lasts)),
    ];
    (("python eval.py --split test".to_owned(), "accelerate launch eval.py".to_owned(), work, 0.5), at + loads + lasts)
}

fn notebook(at: f64, dice: &mut Dice) -> (Work, f64) {
    let mut now = at.max(0.1);
    let mut work = Vec::new();
    let ends = at + dice.between(60.0, 400.0);
    while now < ends {
        work.push(format!("{} train checkpoint=9h watts={:.0} cpu=1", time(now), dice.between(120.0, 200.0)));
        now += dice.between(1.0, 8.0);
        work.push(format!("{} idle cpu=0.003", time(now)));
        now += dice.between(3.0, 25.0);
    }
    work.push(format!("{} gone", time(now)));
    let command = "python3 -m ipykernel_launcher -f /run/user/1001/jupyter/kernel-8f3a1c.json";
    ((command.to_owned(), String::new(), work, 0.2), now)
}

fn server(at: f64, dice: &mut Dice) -> (Work, f64) {
    let mut now = at.max(0.1);
    let mut work = vec![format!("{} load", time(now))];
    let ends = at + dice.between(200.0, 1000.0);
    now += 3.0;
    while now < ends {
        work.push(format!("{} serve", time(now)));
        now += dice.between(10.0, 180.0);
        work.push(format!("{} wait cpu={:.2}", time(now), dice.pick(&[0.02, 1.0, 2.0])));
        now += dice.between(5.0, 200.0);
    }
    work.push(format!("{} gone", time(now)));
    let command = dice.pick(&[
        "python3 -m vllm.entrypoints.openai.api_server --model qwen",
        "python3 -m sglang.launch_server --model-path llama",
        "/usr/local/bin/ollama runner --port 38211",
    ]);
    ((command.to_owned(), String::new(), work, 0.88), now)
}

/// Look-alikes of trouble.
fn special(at: f64, dice: &mut Dice) -> (Work, f64) {
    let loads = dice.between(1.0, 8.0);
    let lasts = dice.between(20.0, 120.0);
    let phase = match dice.next() % 3 {
        // Kernels bound by their launches: busy, with little power that is not even.
        0 => "tiny m=7 m_noise=2 cv=0.08".to_owned(),
        // Long saves, in which every rank writes.
        1 => format!("train checkpoint=25m saves={:.0}s style=all", dice.between(120.0, 240.0)),
        _ => "serve".to_owned(),
    };
    let mut work = vec![format!("{} load", time(at.max(0.1)))];
    work.push(format!("{} {phase}", time(at + loads)));
    work.push(format!("{} gone", time(at + loads + lasts)));
    (("python infer.py --batch 1".to_owned(), "torchrun infer.py".to_owned(), work, 0.4), at + loads + lasts)
}

fn events(events: &mut Vec<String>, host: usize, gpus: usize, minutes: f64, dice: &mut Dice) {
    let when = |dice: &mut Dice| time(dice.between(5.0, minutes.max(10.0) - 5.0));
    let mut push = |text: String| events.push(format!("{text} hosts={host}"));
    push(format!("0 disk mount=/home percent={:.0}", dice.between(30.0, 87.0)));
    push(format!("0 ram percent={:.0}", dice.between(20.0, 70.0)));
    push(format!("{} ram percent={:.0} for=20m", when(dice), dice.between(70.0, 86.0)));
    push(format!("0 ecc gpu=0 corrected={:.0} aggregate={:.0}", dice.between(0.0, 40.0), dice.between(0.0, 9.0)));
    push(format!("0 blips gpu={} share=0.02", dice.next() as usize % gpus));
    push(format!("0 capped gpu=0-{}", gpus - 1));
    push(format!("{} pressure io={:.0} for=4m", when(dice), dice.between(10.0, 40.0)));
    for _ in 0..3 {
        push(format!("{} skip for=20s", when(dice)));
    }
    // A connection that breaks and is back at the next try.
    push(format!("{} down for=15s", when(dice)));
    push(format!("{} thermal gpu=0 share=0.02 for=10m", when(dice)));
}
