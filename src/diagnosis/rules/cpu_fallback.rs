//! Programs that were on a GPU and run again without one: cpu-fallback.

use crate::diagnosis::condition::{Escalation, Evaluation, Run};
use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::finding::{FindingDetails, FindingTarget};
use crate::diagnosis::process_kind::{is_debugged, is_notebook, serves_models};
use crate::diagnosis::rule_context::{RuleContext, duration};
use crate::diagnosis::track::{ProcessTrack, group_by_job};
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::fleet::JobKey;
use crate::wire::ProcessFacts;

pub(super) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    for (job, members) in group_by_job(context.reruns.iter()) {
        cpu_fallback(context, conditions, job, &members);
    }
}

/// The last run used a GPU some time after its start: this run should not take more than this many times longer.
const LONGER: f64 = 3.0;
/// A process that uses so many cores itself computes on them, and warns after this time, in seconds. Programs that prepare data use one
/// core, or start workers.
const COMPUTING_CORES: f64 = 3.0;
const COMPUTES_FOR: f64 = 1500.0;
/// A program that may prepare data is a note after this many times the time of one that does the same as before.
const LATER: f64 = 3.0;
/// A server may rest between two requests for so long, in seconds.
const CLEAR_AFTER: f64 = 600.0;

/// Judges the processes of a job that are on no GPU.
fn cpu_fallback(context: &RuleContext, conditions: &mut Conditions, job: &JobKey, members: &[&ProcessTrack]) {
    let limits = &context.limits.cpu_fallback;
    let t = context.sample_time.t;
    let cores = |track: &ProcessTrack| track.smoothed_cores.unwrap_or(0.0);
    let Some(track) = members.iter().rev().copied().max_by(|a, b| cores(a).total_cmp(&cores(b))) else { return };
    let Some(process) = context.host.reruns().iter().find(|process| process.key == track.key) else { return };
    let (Some(left), Some(age)) = (context.host_track.job_ends.left_by(track), track.age) else { return };
    let is_beside = context.processes.iter().any(|other| left.is_run(other));
    let has_no_need = process.facts().is_some_and(names_the_cpu);
    if is_beside || has_no_need || is_notebook(process) || is_debugged(process) || cores(track) < limits.cpu {
        return;
    }
    // A server gets another port or model.
    let is_server = serves_models(process, context.limits);
    let computes = track.own_cores().is_some_and(|cores| cores >= COMPUTING_CORES);
    let begins_within = (LONGER * left.began_after).min(limits.warn_after).max(limits.info_after);
    let warn_after = match (computes, is_server) {
        (true, true) => Some(limits.info_after),
        (true, false) if left.is_same_work(track) => Some(begins_within.min(COMPUTES_FOR.max(limits.info_after))),
        _ => left.is_same_command(track).then_some(begins_within),
    };
    // It could use a GPU that is free, or that it shared before with the same processes, if there is room.
    let has_room = |position: usize| {
        let memory = context.gpus.get(position).and_then(|gpu| gpu.used_bytes.zip(gpu.total_bytes));
        memory.is_some_and(|(used, total)| used <= total / 2)
    };
    let is_older = |other: &ProcessTrack| other.first_seen <= left.at;
    let is_free = |position: &usize| {
        let mut others = context.processes.iter().filter(|other| other.positions.contains(position)).peekable();
        others.peek().is_none() || (has_room(*position) && others.all(is_older))
    };
    let escalation = match warn_after.filter(|_| left.positions.iter().any(is_free)) {
        Some(warn_after) => Escalation::two((Severity::Info, limits.info_after), (Severity::Warn, warn_after)),
        None => Escalation::one(Severity::Info, LATER * limits.info_after),
    };
    let run = Run { since: t - age, covered: age };
    let evaluation = Evaluation::new(escalation, Confidence::Likely, CLEAR_AFTER).since(run);
    conditions.met(RuleId::CpuFallback, &FindingTarget::Job(job.clone()), evaluation, |_, _| FindingDetails {
        sentence: format!(
            "{} was on {} until {} ago and runs again without a GPU for {}, at {:.1} CPU cores",
            track.describe(members.len(), Some(job)),
            context.format_gpus(left.positions.iter().copied()),
            duration(t - left.at),
            duration(age),
            members.iter().map(|member| cores(member)).sum::<f64>(),
        ),
        next_check: "run nvidia-smi where it runs, in its container".to_owned(),
        gpus: context.finding_gpus(left.positions.iter().copied()),
        processes: members.iter().map(|member| context.finding_process(member)).collect(),
        job: Some(job.clone()),
        user: Some(track.info.who.clone()),
        is_mine: context.host.belongs_to_login_user(process),
        figures: format!("for {}", duration(age)),
        ..FindingDetails::default()
    });
}

/// Options whose value is the number or the index of GPUs, or the number of layers on them.
const GPU_OPTIONS: [&str; 8] = ["ngl", "n-gpu-layers", "gpu-layers", "gpus", "gpu", "num-gpus", "n-gpu", "gpu-id"];

/// Whether an argument asks for the CPU, such as `--device cpu`, `--no_cuda` or `-ngl 0`.
fn names_the_cpu(facts: &ProcessFacts) -> bool {
    let words = facts.argv.iter().skip(1).flat_map(|argument| argument.split(['=', ':', ',']));
    let words: Vec<String> = words.map(|word| word.to_ascii_lowercase().replace('_', "-")).collect();
    let is_cpu =
        |word: &String| matches!(word.trim_start_matches('-'), "cpu" | "cpu-only" | "use-cpu" | "no-cuda" | "no-gpu");
    let is_none = |pair: &[String]| {
        GPU_OPTIONS.contains(&pair[0].trim_start_matches('-')) && matches!(pair[1].as_str(), "0" | "-1" | "none")
    };
    // The index of the first GPU is 0.
    let is_index = |pair: &[String]| pair[1] == "0" && matches!(pair[0].as_str(), "--gpu" | "--gpu-id");
    words.iter().any(is_cpu) || words.windows(2).any(|pair| is_none(pair) && !is_index(pair))
}

#[cfg(test)]
mod tests {
    use crate::diagnosis::testing::{RuleTester, TestSample};
    use crate::fleet::fixture::{TestProcess, gpus, process};
    use crate::wire::Ancestor;

    /// One run of a program, and what the process of the other run is.
    struct Runs<'a> {
        first: &'a str,
        second: &'a str,
        /// The age of the first run when it came to GPU 0, in seconds.
        began_after: f64,
        /// The CPU use of the second run, in percent.
        cpu: f32,
        /// A process that is on GPU 0 beside the second run.
        beside: Option<TestProcess>,
        /// It was there beside the first run, too.
        is_shared: bool,
    }

    const TRAINING: Runs<'_> = Runs {
        first: "python train.py",
        second: "python train.py",
        began_after: 20.0,
        cpu: 620.0,
        beside: None,
        is_shared: false,
    };

    /// Runs a program on GPU 0 for 15 min, and then without a GPU for some seconds.
    fn runs_for(runs: &Runs, seconds: f64) -> RuleTester {
        let mut tester = RuleTester::new(gpus(0..1));
        let age = |snapshot: &mut crate::wire::Snapshot, pid: u32, age: f64| {
            let ages = snapshot.processes.pid.iter().map(|known| Some(if *known == Some(pid) { age } else { 9000.0 }));
            snapshot.processes.age_seconds = ages.collect();
        };
        tester.run_edited(
            900.0,
            |tester, _| {
                let beside = runs.beside.clone().filter(|_| runs.is_shared);
                let processes = std::iter::once(process(7, runs.first, &[(0, 40)])).chain(beside).collect();
                TestSample { gpus: vec![tester.gpu(97, 500.0, 40, 40)], processes }
            },
            |snapshot, passed| age(snapshot, 7, runs.began_after + passed),
        );
        let beside = runs.beside.iter().flat_map(|process| &process.gpus).filter_map(|usage| usage.gpu_memory_bytes);
        let used_gib = beside.sum::<u64>() >> 30;
        tester.run(60.0, |tester, _| TestSample {
            gpus: vec![tester.gpu(0, 70.0, 0, used_gib)],
            processes: runs.beside.iter().filter(|_| runs.is_shared).cloned().collect(),
        });
        tester.run_edited(
            seconds,
            |tester, _| {
                let mut second = process(8, runs.second, &[]);
                second.reading.cpu_percent = Some(runs.cpu);
                let processes = std::iter::once(second).chain(runs.beside.clone()).collect();
                TestSample { gpus: vec![tester.gpu(0, 70.0, 0, used_gib)], processes }
            },
            |snapshot, passed| age(snapshot, 8, passed),
        );
        tester
    }

    fn fired(runs: &Runs, seconds: f64) -> Vec<&'static str> {
        let fired = runs_for(runs, seconds).fired().into_iter();
        fired.filter(|(rule, _)| *rule == "cpu-fallback").map(|(_, severity)| severity).collect()
    }

    #[test]
    fn a_program_that_runs_again_without_its_gpu_warns() {
        let tester = runs_for(&TRAINING, 1000.0);
        assert!(tester.firing().contains(&("cpu-fallback", "warn")), "{:?}", tester.firing());
        let finding = tester.finding("cpu-fallback");
        assert_eq!(
            finding.sentence,
            "train.py (alice, pid 8) was on GPU 0 until 18 min ago and runs again without a GPU for 17 min, at 6.2 CPU cores"
        );
        assert_eq!((finding.gpus.len(), finding.is_mine), (1, true));
        assert_eq!(fired(&TRAINING, 850.0), [""; 0], "it may still start");
        let long = runs_for(&TRAINING, 14_400.0);
        assert!(long.firing().contains(&("cpu-fallback", "warn")), "after hours, too: {:?}", long.firing());
        let slow = Runs { began_after: 900.0, ..TRAINING };
        assert_eq!(fired(&slow, 1400.0), ["info"], "the first run, too, used no GPU for 15 min");
        assert_eq!(fired(&slow, 1700.0), ["info", "warn"], "it computes on many cores");
        let slow = Runs { cpu: 100.0, ..slow };
        assert_eq!(fired(&slow, 2600.0), ["info"]);
        assert_eq!(fired(&slow, 2900.0), ["info", "warn"]);
    }

    #[test]
    fn a_program_without_need_of_a_gpu_is_no_fallback() {
        let with = |second| Runs { second, ..TRAINING };
        assert_eq!(fired(&with("python train.py --device cpu"), 3000.0), [""; 0]);
        assert_eq!(fired(&with("python other.py"), 3000.0), [""; 0]);
        let prepare = Runs { second: "python train.py --prepare", cpu: 100.0, ..TRAINING };
        assert_eq!(fired(&prepare, 5000.0), ["info"], "perhaps it prepares data");
        let prepare = Runs { second: "python train.py prepare", ..TRAINING };
        assert_eq!(fired(&prepare, 5000.0), ["info"], "another part of the work");
        let other_settings = Runs { second: "python train.py --lr 2", ..TRAINING };
        assert_eq!(fired(&other_settings, 1000.0), ["warn"]);
        assert_eq!(fired(&Runs { cpu: 10.0, ..TRAINING }, 3000.0), [""; 0], "it rests");
        let notebook = "python -m ipykernel_launcher -f kernel.json";
        assert_eq!(fired(&Runs { first: notebook, second: notebook, ..TRAINING }, 3000.0), [""; 0]);
        let other = |command| Runs { beside: Some(process(9, command, &[(0, 20)])), ..TRAINING };
        assert_eq!(fired(&other("python train.py"), 3000.0), [""; 0], "another run has come to the GPU");
        assert_eq!(fired(&other("python b.py"), 3000.0), ["info"], "somebody else has the GPU now");
    }

    #[test]
    fn a_gpu_with_room_that_was_shared_before_could_be_used() {
        let shared = |gib| Runs { beside: Some(process(9, "python b.py", &[(0, gib)])), is_shared: true, ..TRAINING };
        assert_eq!(fired(&shared(20), 1000.0), ["warn"]);
        assert_eq!(fired(&shared(60), 3000.0), ["info"], "the other program has nearly all of its memory");
    }

    #[test]
    fn a_run_that_differs_only_in_a_number_does_the_same_work() {
        let (first, second) = ("nnUNetv2_train 7 3d_fullres 2", "nnUNetv2_train 7 3d_fullres 3");
        let folds = Runs { first, second, cpu: 2950.0, ..TRAINING };
        assert_eq!(fired(&folds, 1600.0), ["warn"]);
        assert_eq!(fired(&Runs { second: "nnUNetv2_train 7 2d 2", ..folds }, 1600.0), [""; 0]);
    }

    #[test]
    fn a_model_server_warns_when_it_computes_on_the_cpu() {
        let (first, second) = ("ollama runner --model a --port 4000", "ollama runner --model a --port 5000");
        let serve = |cpu: f32| Runs { first, second, began_after: 900.0, cpu, ..TRAINING };
        assert_eq!(fired(&serve(900.0), 1000.0), ["warn"]);
        assert_eq!(fired(&serve(0.0), 5000.0), [""; 0], "it rests");
    }

    #[test]
    fn arguments_that_ask_for_the_cpu_are_known() {
        let asks = |command: &str| {
            let argv = command.split(' ').map(Into::into).collect();
            super::names_the_cpu(&crate::wire::ProcessFacts { argv, ..Default::default() })
        };
        let yes =
            ["--device cpu", "--device=cpu", "device=cpu", "--no_cuda", "--cpu-only", "-ngl 0", "--gpus 0", "--gpu -1"];
        let no = ["--device cuda:0", "--gpus 1", "--gpu 0", "--cpus 8", "-ngl 99"];
        let all =
            |commands: &[&str]| commands.iter().map(|end| asks(&format!("python x.py {end}"))).collect::<Vec<_>>();
        assert_eq!((all(&yes), all(&no)), (vec![true; yes.len()], vec![false; no.len()]));
    }

    #[test]
    fn the_ranks_of_a_job_are_one_finding() {
        let mut tester = RuleTester::new(gpus(0..2));
        let rank = |pid: u32, on: &[(u16, u64)]| {
            let mut rank = process(pid, "python train.py", on);
            let torchrun = Ancestor { pid: 60, uid: Some(1000), name: "torchrun".into(), ..Ancestor::default() };
            rank.facts.ancestors = vec![torchrun];
            rank.reading.cpu_percent = Some(400.0);
            rank
        };
        let busy = |tester: &mut RuleTester, percent: u8| (0..2).map(|_| tester.gpu(percent, 300.0, 30, 40)).collect();
        tester.run_edited(
            900.0,
            |tester, _| TestSample {
                gpus: busy(tester, 97),
                processes: vec![rank(7, &[(0, 40)]), rank(8, &[(1, 40)])],
            },
            |snapshot, passed| snapshot.processes.age_seconds = vec![Some(20.0 + passed); 2],
        );
        tester.run_new(1000.0, |tester, _| TestSample {
            gpus: busy(tester, 0),
            processes: vec![rank(9, &[]), rank(10, &[])],
        });
        let finding = tester.finding("cpu-fallback");
        assert_eq!((finding.processes.len(), finding.gpus.len()), (2, 2));
        assert!(
            finding.sentence.starts_with("train.py (alice, pid 9 and 1 more) was on GPUs 0,1"),
            "{}",
            finding.sentence
        );
        assert!(finding.sentence.ends_with("at 8.0 CPU cores"), "{}", finding.sentence);
    }

    #[test]
    fn another_probe_and_a_driver_without_a_list_end_no_run() {
        let mut tester = runs_for(&TRAINING, 1000.0);
        let ended = |tester: &RuleTester| {
            tester.transitions.iter().filter(|transition| transition.sentence.contains("it never used a GPU")).count()
        };
        let empty =
            |tester: &mut RuleTester, _: f64| TestSample { gpus: vec![tester.gpu(0, 70.0, 0, 0)], processes: vec![] };
        let driver_fails = |snapshot: &mut crate::wire::Snapshot, _: f64| {
            snapshot.driver_error = Some(crate::wire::DriverError {
                kind: crate::wire::DriverErrorKind::Unknown,
                code: Some(999),
                message: "fails".into(),
            });
        };
        tester.run_edited(60.0, empty, driver_fails);
        assert!(tester.firing().contains(&("cpu-fallback", "warn")), "{:?}", tester.firing());
        for run in 0..6 {
            tester.run_edited(
                10.0,
                |tester, _| TestSample {
                    gpus: vec![tester.gpu(0, 70.0, 0, 0)],
                    processes: vec![process(20 + run, "python train.py", &[])],
                },
                |snapshot, _| snapshot.sequence = 2 + u64::from(run) * 2,
            );
            tester.run_edited(10.0, empty, |snapshot, _| snapshot.sequence = 1);
        }
        assert_eq!(ended(&tester), 0);
    }
}
