use crate::config::thresholds::Thresholds;
use crate::diagnosis::testing::{RuleTester, TestSample, trains};
use crate::fleet::fixture::{TestProcess, at, gpus, process};
use crate::fleet::{GpuState, HostId};
use crate::wire::{Ancestor, Owner, SafeText};

fn job(command: &str, cores: f32) -> Vec<TestProcess> {
    let mut job = process(7, command, &[(0, 40)]);
    job.reading.cpu_percent = Some(cores * 100.0);
    vec![job]
}

fn works(tester: &mut RuleTester, command: &str) -> TestSample {
    TestSample { gpus: vec![tester.gpu(97, 500.0, 40, 40)], processes: job(command, 1.2) }
}

pub(super) fn idles(tester: &mut RuleTester, command: &str, cores: f32) -> TestSample {
    TestSample { gpus: vec![tester.gpu(0, 122.0, 0, 40)], processes: job(command, cores) }
}

#[test]
fn a_job_that_worked_and_is_idle_is_stalled() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 30.0;
    tester.run(21_600.0, |tester, _| works(tester, "python train.py"));
    // The smoothed CPU usage takes a few minutes to fall.
    tester.run(1590.0, |tester, _| idles(tester, "python train.py", 0.0));
    assert_eq!(tester.firing(), [("job-stalled", "warn")]);
    tester.run(900.0, |tester, _| idles(tester, "python train.py", 0.0));
    assert_eq!(tester.firing(), [("job-stalled", "crit")]);
    tester.run(12_000.0, |tester, _| idles(tester, "python train.py", 0.0));
    assert_eq!(tester.firing(), [("job-stalled", "crit")], "idle-hog is inhibited");
}

/// Eight ranks of one launcher, each with this CPU usage.
pub(super) fn eight_ranks(tester: &mut RuleTester, utilization: u8, cores: f32) -> TestSample {
    let processes = (0..8).map(|gpu| {
        let mut rank = process(4312 + u32::from(gpu), "python train.py", &[(gpu, 40)]);
        let torchrun = Ancestor { pid: 4300, uid: Some(1000), name: "torchrun".into(), ..Ancestor::default() };
        rank.facts.ancestors = vec![torchrun];
        rank.reading.cpu_percent = Some(cores * 100.0);
        rank
    });
    let watts = if utilization > 50 { 500.0 } else { 122.0 };
    let gpus = (0..8).map(|_| tester.gpu(utilization, watts, if utilization > 50 { 40 } else { 0 }, 40));
    TestSample { gpus: gpus.collect(), processes: processes.collect() }
}

#[test]
fn the_rank_that_waits_elsewhere_in_the_kernel_is_named() {
    let sentence = |channels: &dyn Fn(u32) -> Option<&'static str>| {
        let mut tester = RuleTester::new(gpus(0..8));
        tester.interval = 30.0;
        tester.run(3600.0, |tester, _| eight_ranks(tester, 97, 1.3));
        tester.run(2400.0, |tester, _| {
            let mut sample = eight_ranks(tester, 0, 0.0);
            for (pid, process) in (4312..).zip(&mut sample.processes) {
                process.reading.wait_channel = channels(pid).map(SafeText::new);
            }
            sample
        });
        tester.finding("job-stalled").sentence.to_string()
    };
    let odd = |pid: u32| Some(if pid == 4313 { "hrtimer_nanosleep" } else { "futex_do_wait" });
    let named = sentence(&odd);
    assert!(named.ends_with("; pid 4313 waits in hrtimer_nanosleep, the others in futex_do_wait"), "{named}");
    let two = |pid: u32| Some(if pid <= 4313 { "hrtimer_nanosleep" } else { "futex_do_wait" });
    let unknown = |pid: u32| odd(pid).filter(|_| pid != 4315);
    for channels in [&two as &dyn Fn(u32) -> Option<&'static str>, &unknown, &|_| Some("futex_do_wait"), &|_| None] {
        let sentence = sentence(channels);
        assert!(sentence.ends_with(" still held"), "{sentence}");
    }
}

#[test]
fn threads_of_watchdogs_do_not_hide_a_stall() {
    for cores in [0.004, 0.05, 0.1] {
        let mut tester = RuleTester::new(gpus(0..8));
        tester.interval = 30.0;
        tester.run(3600.0, |tester, _| eight_ranks(tester, 97, 1.3));
        tester.run(2400.0, |tester, _| eight_ranks(tester, 0, cores));
        assert!(tester.firing().contains(&("job-stalled", "crit")), "{cores}: {:?}", tester.firing());
    }
    let mut tester = RuleTester::new(gpus(0..8));
    tester.interval = 30.0;
    tester.run(3600.0, |tester, _| eight_ranks(tester, 97, 1.3));
    tester.run(2400.0, |tester, _| eight_ranks(tester, 0, 0.8));
    assert!(!tester.fired().iter().any(|(rule, _)| *rule == "job-stalled"), "{:?}", tester.fired());
}

#[test]
fn a_batch_job_first_seen_idle_is_stalled_if_its_cpu_time_shows_earlier_work() {
    let run = |cpu_seconds: f64| {
        let mut tester = RuleTester::new(gpus(0..8));
        tester.interval = 30.0;
        tester.run_edited(
            3000.0,
            |tester, _| eight_ranks(tester, 0, 0.004),
            |snapshot, t| {
                snapshot.processes.age_seconds = vec![Some(36_000.0 + t); 8];
                snapshot.processes.cpu_seconds = vec![Some(cpu_seconds + 0.004 * t); 8];
            },
        );
        tester.firing()
    };
    assert_eq!(run(30_000.0), [("job-stalled", "warn")]);
    assert!(!run(200.0).iter().any(|(rule, _)| *rule == "job-stalled"), "it never did anything");
}

#[test]
fn a_job_beside_a_busy_neighbour_is_stalled_when_its_workers_rest() {
    let run = |rest: bool| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 30.0;
        tester.run(6000.0, |tester, t| {
            let mut own = process(7, "python mine.py", &[(0, 20)]);
            own.reading.cpu_percent = Some(100.0);
            own.reading.descendants = Some(4);
            own.reading.descendants_cpu_percent = Some(if rest && t > 3000.0 { 0.2 } else { 150.0 });
            let mut other = process(8, "python theirs.py", &[(0, 20)]);
            other.facts.user = Some("bob".into());
            for process in [&mut own, &mut other] {
                process.gpus[0].sm_percent = None;
            }
            TestSample { gpus: vec![tester.gpu(90, 500.0, 40, 40)], processes: vec![own, other] }
        });
        tester.firing()
    };
    assert_eq!(run(true), [("job-stalled", "info"), ("gpu-shared", "info")]);
    assert_eq!(run(false), [("gpu-shared", "info")]);
}

/// Trains beside another user for 4800 s, then hangs for `hangs_for` seconds. `edit` sets the CPU usage while it trains and while
/// it hangs. Returns the findings of job-stalled.
fn hangs_beside_a_neighbour(
    hangs_for: f64,
    log_stops: bool,
    edit: fn(&mut TestProcess, hangs: bool),
) -> Vec<(&'static str, &'static str)> {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(4800.0 + hangs_for, |tester, t| {
        let hangs = t > 4800.0;
        let mut own = process(7, "python mine.py", &[(0, 20)]);
        edit(&mut own, hangs);
        own.facts.log_path = Some("/home/alice/run.log".into());
        own.reading.log_age_seconds = Some(if hangs && log_stops { t - 4800.0 } else { (t % 20.0 / 2.0).trunc() });
        let mut other = process(8, "python theirs.py", &[(0, 20)]);
        other.facts.user = Some("bob".into());
        other.reading.cpu_percent = Some(100.0);
        for process in [&mut own, &mut other] {
            process.gpus[0].sm_percent = None;
        }
        TestSample { gpus: vec![tester.gpu(90, 500.0, 40, 40)], processes: vec![own, other] }
    });
    tester.firing().into_iter().filter(|(rule, _)| *rule == "job-stalled").collect()
}

#[test]
fn a_training_run_whose_log_and_workers_stop_together_warns_after_26_minutes() {
    let workers_rest = |own: &mut TestProcess, hangs: bool| {
        own.reading.cpu_percent = Some(100.0);
        own.reading.descendants = Some(4);
        own.reading.descendants_cpu_percent = Some(if hangs { 0.2 } else { 150.0 });
    };
    assert_eq!(hangs_beside_a_neighbour(2000.0, true, workers_rest), [("job-stalled", "warn")]);
    assert_eq!(hangs_beside_a_neighbour(2000.0, false, workers_rest), [("job-stalled", "info")]);
}

#[test]
fn a_training_run_beside_a_neighbour_warns_when_its_log_has_stopped_too() {
    let rests = |own: &mut TestProcess, hangs: bool| own.reading.cpu_percent = Some(if hangs { 0.3 } else { 100.0 });
    assert_eq!(hangs_beside_a_neighbour(4200.0, true, rests), [("job-stalled", "warn")]);
    assert_eq!(hangs_beside_a_neighbour(4200.0, false, rests), [("job-stalled", "info")]);
}

#[test]
fn a_service_that_rested_before_warns_after_an_hour() {
    let run = |owner: Owner, rest: f64| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 20.0;
        let owned = |mut sample: TestSample| {
            sample.processes[0].facts.owner = Some(owner.clone());
            sample
        };
        tester.run(1200.0, |tester, _| owned(works(tester, "python train.py")));
        tester.run(rest, |tester, _| owned(idles(tester, "python train.py", 0.0)));
        tester.run(1800.0, |tester, _| owned(works(tester, "python train.py")));
        tester.run(3000.0, |tester, _| owned(idles(tester, "python train.py", 0.0)));
        let stalled = tester.firing().into_iter().find(|(rule, _)| *rule == "job-stalled");
        stalled.map(|(_, severity)| severity)
    };
    let service = || Owner::Service("click-train.service".into());
    assert_eq!(run(service(), 900.0), None);
    assert_eq!(run(service(), 60.0), Some("crit"));
    assert_eq!(run(Owner::Slurm { job: "1".into(), step: None }, 900.0), Some("crit"));
}

#[test]
fn a_service_that_is_idle_for_hours_is_info_and_a_batch_job_warns() {
    let run = |owner: Option<Owner>| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 60.0;
        tester.run(16_000.0, |tester, _| {
            let mut test_sample = idles(tester, "python worker.py", 0.001);
            test_sample.processes[0].facts.owner = owner.clone();
            test_sample
        });
        tester.firing()
    };
    assert_eq!(run(Some(Owner::Service("worker.service".into()))), [("idle-hog", "info")]);
    assert_eq!(run(Some(Owner::Slurm { job: "1".into(), step: None })), [("idle-hog", "warn")]);
}

#[test]
fn a_single_process_that_was_not_training_is_stalled_at_info() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 30.0;
    // Ten minutes of work in half an hour, as requests come.
    tester.run(7200.0, |tester, t| {
        if t % 1800.0 < 600.0 { works(tester, "python main.py") } else { idles(tester, "python main.py", 0.001) }
    });
    tester.run(7200.0, |tester, _| idles(tester, "python main.py", 0.001));
    assert!(tester.fired().contains(&("job-stalled", "info")), "{:?}", tester.fired());
    assert!(!tester.fired().iter().any(|(rule, severity)| *rule == "job-stalled" && *severity != "info"));
}

#[test]
fn one_reading_above_one_percent_does_not_restart_the_idle_time() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(3700.0, |tester, t| {
        let mut test_sample = idles(tester, "python -m ipykernel_launcher", 0.08);
        if t % 1200.0 < 10.0 {
            test_sample.gpus[0].utilization_percent = Some(4);
        }
        test_sample
    });
    assert_eq!(tester.firing(), [("idle-hog", "info")], "a kernel with a heartbeat");
}

#[test]
fn notebooks_and_servers_are_not_stalled() {
    for command in ["python -m ipykernel_launcher -f k.json", "python -m vllm.entrypoints.openai.api_server"] {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 30.0;
        tester.run(3600.0, |tester, _| works(tester, command));
        tester.run(2700.0, |tester, _| idles(tester, command, 0.0));
        assert!(tester.fired().iter().all(|(_, severity)| *severity == "info"), "{command}: {:?}", tester.fired());
    }
}

#[test]
fn idle_hog_rises_from_info_to_warn() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 30.0;
    tester.run(3500.0, |tester, _| idles(tester, "python -m ipykernel_launcher", 0.004));
    assert_eq!(tester.fired(), []);
    tester.run(200.0, |tester, _| idles(tester, "python -m ipykernel_launcher", 0.004));
    assert_eq!(tester.firing(), [("idle-hog", "info")]);
    assert_eq!(tester.notified(), 0, "info does not notify");
    tester.run(10_000.0, |tester, _| idles(tester, "python -m ipykernel_launcher", 0.004));
    assert_eq!(tester.firing(), [("idle-hog", "info")]);
    tester.run(1000.0, |tester, _| idles(tester, "python -m ipykernel_launcher", 0.004));
    assert_eq!(tester.firing(), [("idle-hog", "warn")]);
    assert!(
        tester
            .finding("idle-hog")
            .sentence
            .starts_with("ipykernel_launcher (alice, pid 7) holds 40 GiB of GPU 0 and has done nothing for 4 h"),
        "{}",
        tester.finding("idle-hog").sentence
    );
}

#[test]
fn a_notebook_that_fills_a_gpu_warns_after_two_hours() {
    let severity = |gib: u64| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 30.0;
        tester.run(8000.0, |tester, _| {
            let notebook = process(7, "python -m ipykernel_launcher", &[(0, gib)]);
            let mut sample = TestSample { gpus: vec![tester.gpu(0, 70.0, 0, gib)], processes: vec![notebook] };
            sample.processes[0].reading.cpu_percent = Some(0.4);
            sample
        });
        tester.firing()
    };
    assert_eq!(severity(74), [("idle-hog", "warn")], "74 of 80 GiB");
    assert_eq!(severity(60), [("idle-hog", "info")]);
}

#[test]
fn an_occasional_notebook_cell_is_work() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 10.0;
    tester.run(14_400.0, |tester, t| {
        if t % 1500.0 < 30.0 {
            works(tester, "python -m ipykernel_launcher")
        } else {
            idles(tester, "python -m ipykernel_launcher", 0.004)
        }
    });
    assert_eq!(tester.fired(), []);
}

#[test]
fn short_idle_times_and_servers_are_at_most_info() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 30.0;
    tester.run(3000.0, |tester, _| idles(tester, "python train.py", 0.0));
    assert_eq!(tester.fired(), [], "idle for under an hour");
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 30.0;
    tester.run(86_400.0, |tester, _| idles(tester, "python -m vllm.entrypoints.openai.api_server", 2.0));
    assert_eq!(tester.fired(), []);
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 60.0;
    tester.run(172_800.0, |tester, _| idles(tester, "ollama runner", 0.0));
    assert!(tester.fired().iter().all(|(_, severity)| *severity == "info"), "{:?}", tester.fired());
}

/// The rules that fired while these processes held GPU 0 for thirteen hours and did nothing. Each listens on `port`.
fn held_by_listeners(
    command: &str,
    launcher: Option<&str>,
    count: u32,
    port: u16,
) -> Vec<(&'static str, &'static str)> {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 60.0;
    tester.run(46_800.0, |tester, _| {
        let processes = (0..count).map(|rank| {
            let mut listener = process(7 + rank, command, &[(0, 30)]);
            listener.reading.cpu_percent = Some(0.1);
            listener.facts.listening_ports = vec![port];
            listener.facts.session = Some(5);
            listener.facts.ancestors = launcher
                .map(|name| Ancestor { pid: 6, uid: Some(1000), name: name.into(), ..Ancestor::default() })
                .into_iter()
                .collect();
            listener
        });
        let gpu = tester.gpu(0, 122.0, 0, 60);
        TestSample { gpus: vec![gpu], processes: processes.collect() }
    });
    tester.fired()
}

#[test]
fn a_single_process_that_listens_may_wait_for_requests() {
    let is_warned = |fired: &[(&str, &str)]| fired.iter().any(|(_, severity)| *severity != "info");
    let fired = held_by_listeners("python chat.py", None, 1, 8000);
    assert_eq!(fired, [("idle-hog", "info")]);
    for (command, launcher, count, port) in [
        ("python chat.py", None, 1, 29_500),
        ("python chat.py --master_port 12355", None, 1, 12_355),
        ("python chat.py", Some("torchrun"), 1, 8000),
        ("python chat.py", None, 2, 8000),
        ("python -m ipykernel_launcher -f k.json", None, 1, 9002),
        ("python -m debugpy --listen 5678 chat.py", None, 1, 5678),
    ] {
        let fired = held_by_listeners(command, launcher, count, port);
        assert!(is_warned(&fired), "{command} {launcher:?} {count} {port}: {fired:?}");
    }
}

#[test]
fn a_training_run_that_listens_is_not_a_server() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 30.0;
    let listens = |mut test_sample: TestSample| {
        test_sample.processes[0].facts.listening_ports = vec![6006];
        test_sample
    };
    tester.run(21_600.0, |tester, _| listens(works(tester, "python train.py")));
    tester.run(3600.0, |tester, _| listens(idles(tester, "python train.py", 0.0)));
    assert_eq!(tester.firing(), [("job-stalled", "crit")]);
}

/// The first snapshot of a connection has no rates.
fn without_rates(test_sample: &mut TestSample, passed: f64) {
    if passed <= 0.0 {
        test_sample.processes.iter_mut().for_each(|process| process.reading.cpu_percent = None);
    }
}

#[test]
fn idle_time_survives_a_restart_if_cpu_time_proves_it() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 30.0;
    let notebook = |cpu: f64| {
        move |tester: &mut RuleTester, passed: f64| {
            let mut test_sample = idles(tester, "python -m ipykernel_launcher", 0.0);
            test_sample.processes[0].reading.cpu_seconds = Some(cpu);
            without_rates(&mut test_sample, passed);
            test_sample
        }
    };
    tester.run(1800.0, notebook(5000.0));
    let saved = tester.engine.to_saved_state(&tester.fleet, tester.now());
    let text = serde_json::to_string(&saved).expect("encodes");
    for (grown, fires) in [(0.5, true), (400.0, false)] {
        let mut next = RuleTester::new(gpus(0..1));
        next.interval = 30.0;
        // Four hours later, by the wall clock.
        next.t = tester.t + 14_400.0;
        let saved = crate::diagnosis::SavedState::parse(&text).expect("reads");
        next.engine.restore(saved, next.now());
        next.run(300.0, notebook(5000.0 + grown));
        assert_eq!(next.firing() == [("idle-hog", "warn")], fires, "{:?}", next.firing());
        if fires {
            let finding = next.finding("idle-hog");
            assert!(
                finding.at_least
                    && finding.sentence.contains("4 h 3")
                    && finding.sentence.contains("at least, according to its CPU time"),
                "{}",
                finding.sentence
            );
        }
    }
}

#[test]
fn tiny_cpu_time_proves_idle_time_at_the_first_sample() {
    let mut tester = RuleTester::new(gpus(0..1));
    let test_sample = |tester: &mut RuleTester, cpu: f64, passed: f64| {
        let mut test_sample = idles(tester, "python -m ipykernel_launcher", 0.0);
        test_sample.processes[0].reading.cpu_seconds = Some(cpu);
        without_rates(&mut test_sample, passed);
        test_sample
    };
    // The processes of `RuleTester` are 10,000 s old at its start.
    tester.run(200.0, |tester, passed| test_sample(tester, 40.0, passed));
    assert_eq!(tester.firing(), [("idle-hog", "info")]);
    let (state, since) = tester.engine.states(HostId(0))[0];
    assert_eq!(state, GpuState::Idle);
    let idle = tester.now().since(since.expect("known"));
    assert!((9000..11_000).contains(&idle.as_secs()), "{idle:?}");
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(200.0, |tester, passed| test_sample(tester, 300.0, passed));
    assert_eq!(tester.firing(), [], "it may have worked an hour ago");
    assert_eq!(tester.engine.states(HostId(0))[0], (GpuState::Idle, Some(at(1000.0))), "since the first sample");
}

#[test]
fn a_log_without_writes_is_info() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 20.0;
    let logging = |age: f64| {
        move |tester: &mut RuleTester, _: f64| {
            let mut test_sample = trains(tester);
            test_sample.processes[0].facts.log_path = Some("/home/alice/run.log".into());
            test_sample.processes[0].reading.log_age_seconds = Some(age);
            test_sample
        }
    };
    for _ in 0..60 {
        tester.run(20.0, logging(2.0));
        tester.run(20.0, logging(22.0));
    }
    assert_eq!(tester.fired(), []);
    let begin = tester.t;
    tester.run(1900.0, |tester, _| {
        let age = 22.0 + tester.t - begin;
        logging(age)(tester, 0.0)
    });
    assert_eq!(tester.firing(), [("log-silent", "info")]);
    tester.run(20.0, logging(1.0));
    assert_eq!(tester.firing(), []);
}

#[test]
fn a_busy_server_with_clients_whose_log_stopped_before_the_first_sample_is_info() {
    let run = |command: &str, clients: u32, log_age: f64| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 30.0;
        tester.run(2400.0, |tester, passed| {
            let mut sample = works(tester, command);
            sample.processes[0].reading.established_connections = Some(clients);
            sample.processes[0].reading.log_age_seconds = Some(log_age + passed);
            sample
        });
        tester.fired()
    };
    // The processes of `RuleTester` are 10,000 s old.
    assert_eq!(run("vllm serve qwen", 3, 7000.0), [("log-silent", "info")]);
    assert_eq!(run("vllm serve qwen", 0, 7000.0), [], "nobody waits for it");
    assert_eq!(run("vllm serve qwen", 3, 9900.0), [], "it never logged requests");
    assert_eq!(run("python train.py", 3, 7000.0), [], "it may log once per epoch");
    assert_eq!(run("vllm serve qwen", 3, 0.0), [], "on a network file system the age starts with the probe");
}

#[test]
fn a_server_whose_gpu_is_not_read_must_use_the_cpu_for_five_minutes() {
    let run = |cores: &dyn Fn(f64) -> Option<f32>| {
        let mut infos = gpus(0..1);
        infos[0].mig_parent_uuid = Some("GPU-parent".into());
        let mut tester = RuleTester::new(infos);
        tester.run(7200.0, |tester, passed| {
            let mut sample = idles(tester, "vllm serve qwen", 0.0);
            sample.gpus[0].utilization_percent = None;
            sample.processes[0].gpus[0].sm_percent = None;
            sample.processes[0].reading.cpu_percent = cores(passed).map(|cores| cores * 100.0);
            let age = if passed < 1800.0 { passed % 60.0 } else { passed - 1800.0 };
            sample.processes[0].reading.log_age_seconds = Some(age);
            sample
        });
        tester.fired().into_iter().filter(|(rule, _)| *rule == "log-silent").collect::<Vec<_>>()
    };
    assert_eq!(run(&|_| Some(1.0)), [("log-silent", "info")]);
    assert_eq!(run(&|passed| Some(if passed % 600.0 < 30.0 { 1.0 } else { 0.0 })), [], "a health check");
    assert_eq!(run(&|_| None), [], "its CPU is not known");
}

#[test]
fn ranks_of_ray_that_computed_and_logged_until_now_warn() {
    let run = |command: &str, ranks: u16, logs: bool| {
        let mut tester = RuleTester::new(gpus(0..u32::from(ranks)));
        tester.interval = 30.0;
        let logging = |mut sample: TestSample, age: f64| {
            let cores = sample.processes[0].reading.cpu_percent;
            sample.gpus = vec![sample.gpus[0].clone(); usize::from(ranks)];
            let raylet = ["/opt/ray/raylet"].map(SafeText::new).to_vec();
            let parent =
                Ancestor { pid: 3, uid: Some(1000), name: "raylet".into(), argv: raylet, ..Ancestor::default() };
            sample.processes = (0..ranks)
                .map(|gpu| {
                    let mut rank = process(7 + u32::from(gpu), command, &[(gpu, 40)]);
                    rank.reading.cpu_percent = cores;
                    rank.reading.log_age_seconds = logs.then_some(age);
                    rank.facts.ancestors = vec![parent.clone()];
                    rank
                })
                .collect();
            sample
        };
        tester.run(3600.0, |tester, passed| logging(works(tester, command), passed % 60.0));
        tester.run(3000.0, |tester, passed| logging(idles(tester, command, 0.0), 60.0 + passed));
        let stalled = |(rule, severity): (&'static str, &'static str)| (rule == "job-stalled").then_some(severity);
        tester.fired().into_iter().filter_map(stalled).collect::<Vec<_>>()
    };
    assert_eq!(run("ray::WorkerDict", 2, true), ["info", "warn"]);
    assert_eq!(run("ray::WorkerDict", 2, false), ["info"], "they may have no task");
    assert_eq!(run("ray::WorkerDict", 1, true), ["info"], "its queue may be empty");
    assert_eq!(run("ray::WorkerDict.update_actor", 1, false), ["info", "warn"], "it is in a task");
    assert_eq!(run("ray::ServeReplica:app:Model", 2, true), ["info"], "it may have no requests");
    assert_eq!(run("dask worker tcp://a:8786", 2, true), ["info"], "the batch may be done");
}

#[test]
fn ranks_that_loop_on_all_hosts_warn_sooner_than_those_of_one() {
    let run = |seconds: f64, loops: &[bool]| {
        let mut tester = RuleTester::of(vec![gpus(0..2); loops.len()], Thresholds::default());
        tester.interval = 30.0;
        while tester.t < 4600.0 + seconds {
            let looped = tester.t - 4600.0;
            for (host, loops) in loops.iter().enumerate() {
                let loops = looped >= 0.0 && *loops;
                let rank = |gpu: u16| {
                    let mut rank = process(7 + u32::from(gpu), "./e3sm.exe", &[(gpu, 30)]);
                    rank.reading.cpu_percent = Some(if loops { 101.0 } else { 120.0 });
                    rank.reading.log_age_seconds = Some(if loops { 60.0 + looped } else { tester.t % 60.0 });
                    rank.reading.write_bytes = Some(if loops { 1 << 30 } else { (tester.t * 2e6) as u64 });
                    rank.facts.owner = Some(Owner::Slurm { job: "3385".into(), step: None });
                    rank
                };
                let processes = (0..2).map(rank).collect();
                let gpu = |tester: &mut RuleTester| {
                    if loops { tester.gpu(0, 58.0, 0, 30) } else { tester.gpu(80, 400.0, 40, 30) }
                };
                let gpus = (0..2).map(|_| gpu(&mut tester)).collect();
                tester.send(host, &TestSample { gpus, processes }, |_| {});
            }
            tester.wait(30.0);
        }
        let stalled = tester.firing().into_iter().filter(|(rule, _)| *rule == "job-stalled");
        stalled.map(|(_, severity)| severity).collect::<Vec<_>>()
    };
    assert_eq!(run(1700.0, &[true, true]), ["info"], "one finding for both hosts");
    assert_eq!(run(2000.0, &[true, true]), ["warn"]);
    assert_eq!(run(2000.0, &[true, false]), ["info"], "the others compute");
    assert_eq!(run(2000.0, &[true, true, false]), ["info"], "one of the others computes");
}

#[test]
fn ranks_of_a_training_whose_engines_are_gone_warn_after_45_minutes() {
    let run = |seconds: f64, engines_end: bool| {
        let mut tester = RuleTester::new(gpus(0..2));
        tester.interval = 30.0;
        let sample = |tester: &mut RuleTester, works: bool, has_engines: bool| {
            let parent = Ancestor {
                pid: 3,
                uid: Some(1000),
                name: "raylet".into(),
                argv: vec!["/opt/ray/raylet".into()],
                ..Ancestor::default()
            };
            let mut processes = vec![];
            for gpu in 0..2 {
                processes.push(process(7 + u32::from(gpu), "ray::TrainActor", &[(gpu, 20)]));
                if has_engines {
                    processes.push(process(17 + u32::from(gpu), "sglang::scheduler", &[(gpu, 20)]));
                }
            }
            for process in &mut processes {
                process.facts.ancestors = vec![parent.clone()];
                process.reading.cpu_percent = Some(if works { 100.0 } else { 0.5 });
            }
            let (percent, watts) = if works { (90, 450.0) } else { (0, 70.0) };
            TestSample { gpus: (0..2).map(|_| tester.gpu(percent, watts, 20, 40)).collect(), processes }
        };
        tester.run(3600.0, |tester, _| sample(tester, true, true));
        tester.run(seconds, |tester, _| sample(tester, false, !engines_end));
        tester.firing().into_iter().find(|(rule, _)| *rule == "job-stalled")
    };
    assert_eq!(run(2500.0, true), Some(("job-stalled", "info")));
    assert_eq!(run(3000.0, true), Some(("job-stalled", "warn")));
    assert_eq!(run(3000.0, false), Some(("job-stalled", "info")), "its engines may wait for requests");
}

#[test]
fn ranks_of_slurm_that_computed_and_now_turn_one_core_each_with_a_silent_log_warn_after_40_minutes() {
    let run = |seconds: f64, cores: f32, log_stops: bool| {
        let mut tester = RuleTester::new(gpus(0..2));
        tester.interval = 10.0;
        let sample = |tester: &mut RuleTester, percent: u8, cores: f32, age: f64| {
            let ranks = (0..2).map(|gpu| {
                let mut rank = process(7 + u32::from(gpu), "cp2k.psmp -i md.inp", &[(gpu, 10)]);
                rank.facts.owner = Some(crate::wire::Owner::Slurm { job: "7".into(), step: None });
                rank.reading.cpu_percent = Some(100.0 * cores);
                rank.reading.log_age_seconds = Some(age.trunc());
                rank.reading.write_bytes = Some(4096);
                rank
            });
            let watts = if percent > 0 { 250.0 } else { 75.0 };
            TestSample {
                processes: ranks.collect(),
                gpus: (0..2).map(|_| tester.gpu(percent, watts, 20, 10)).collect(),
            }
        };
        tester.run(2400.0, |tester, t| sample(tester, 60, 6.9, t % 28.0));
        tester.run(seconds, |tester, t| sample(tester, 0, cores, if log_stops { t } else { t % 28.0 }));
        tester.firing().into_iter().find(|(rule, _)| *rule == "job-stalled")
    };
    assert_eq!(run(2000.0, 1.0, true), Some(("job-stalled", "info")));
    assert_eq!(run(2700.0, 1.0, true), Some(("job-stalled", "warn")));
    assert_eq!(run(2700.0, 1.0, false), None, "a phase of work on the CPUs");
    assert_eq!(run(2700.0, 6.9, true), None, "it computes");
}

#[test]
fn a_simulation_that_stops_in_its_stride_while_its_threads_turn_warns_after_half_an_hour() {
    let run = |percent: f32, pause: f64, log_stops: bool| {
        let mut tester = RuleTester::new(gpus(0..1));
        let sample = |tester: &mut RuleTester, works: bool, percent: f32, age: f64| {
            let mut job = process(7, "namd3 +p2 run.namd", &[(0, 2)]);
            job.reading.cpu_percent = Some(percent);
            job.reading.log_age_seconds = Some(age.trunc());
            job.reading.write_bytes = Some(4096);
            let gpu = if works { tester.gpu(98, 318.0, 27, 2) } else { tester.gpu(0, 62.0, 0, 2) };
            TestSample { gpus: vec![gpu], processes: vec![job] }
        };
        tester.run(1200.0, |tester, t| sample(tester, true, 199.0, t % 28.0));
        tester.run(pause, |tester, t| sample(tester, false, 199.0, t % 28.0));
        tester.run(1400.0, |tester, t| sample(tester, true, 199.0, t % 28.0));
        tester.run(2100.0, |tester, t| sample(tester, false, percent, if log_stops { t } else { t % 28.0 }));
        tester.firing().contains(&("job-stalled", "warn"))
    };
    assert!(run(199.5, 20.0, true));
    assert!(!run(172.0, 20.0, true), "it computes");
    assert!(!run(199.5, 20.0, false), "it writes its log");
    assert!(!run(199.5, 300.0, true), "it has phases on the CPUs");
}

#[test]
fn trainers_in_a_task_and_engines_that_rest_together_warn_after_half_an_hour() {
    let run = |title: &str, seconds: f64| {
        let mut tester = RuleTester::new(gpus(0..2));
        tester.interval = 10.0;
        let sample = |tester: &mut RuleTester, works: bool, age: f64| {
            let named = |name: &str, line: &str| Ancestor {
                pid: 3,
                uid: Some(1000),
                name: name.into(),
                argv: vec![line.into()],
                ..Ancestor::default()
            };
            let mut trainer = process(7, title, &[(0, 60)]);
            trainer.facts.ancestors = vec![named("raylet", "/opt/ray/raylet")];
            let mut engine = process(8, "VLLM::EngineCore_DP1", &[(1, 60)]);
            engine.facts.ancestors =
                vec![named("ray::Vllm", "ray::VllmGenerationWorker"), named("raylet", "/opt/ray/raylet")];
            for process in [&mut trainer, &mut engine] {
                process.reading.cpu_percent = Some(if works { 110.0 } else { 1.8 });
                process.reading.log_age_seconds = Some(age.trunc());
            }
            let (percent, watts) = if works { (90, 450.0) } else { (0, 116.0) };
            let gpus = (0..2).map(|_| tester.gpu(percent, watts, 20, 60)).collect();
            TestSample { gpus, processes: vec![trainer, engine] }
        };
        tester.run(3600.0, |tester, t| sample(tester, true, t % 28.0));
        tester.run(seconds, |tester, t| sample(tester, false, t));
        tester.firing().into_iter().find(|(rule, _)| *rule == "job-stalled")
    };
    assert_eq!(run("ray::PolicyWorker.train", 1700.0), Some(("job-stalled", "info")));
    assert_eq!(run("ray::PolicyWorker.train", 2000.0), Some(("job-stalled", "warn")));
    assert_eq!(run("ray::PolicyWorker", 2000.0), Some(("job-stalled", "info")), "it waits for a task");
}

#[test]
fn workers_of_ray_in_a_task_that_rest_for_35_minutes_warn() {
    let run = |seconds: f64| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 30.0;
        let title = "ray::WorkerDict.actor_rollout_generate_sequences";
        tester.run(3600.0, |tester, _| works(tester, title));
        tester.run(seconds, |tester, _| idles(tester, title, 0.0));
        tester.firing()
    };
    assert_eq!((run(2100.0), run(2300.0)), (vec![("job-stalled", "info")], vec![("job-stalled", "warn")]));
}

#[test]
fn a_program_that_writes_to_its_log_every_five_minutes_while_it_rests_warns_after_an_hour_and_a_quarter() {
    let run = |seconds: f64, period: f64| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 10.0;
        let logging = |mut sample: TestSample, age: f64| {
            sample.processes[0].reading.log_age_seconds = Some(age.trunc());
            sample
        };
        tester.run(3600.0, |tester, t| logging(works(tester, "python train.py"), t % 20.0));
        tester.run(seconds, |tester, t| logging(idles(tester, "python train.py", 0.02), t % period));
        tester.fired().into_iter().any(|finding| finding == ("job-stalled", "warn"))
    };
    assert!(!run(4300.0, 300.0), "it checks for the next round");
    assert!(run(4800.0, 300.0));
    assert!(run(2400.0, 1e9), "its log has stopped");
}

#[test]
fn a_repeated_log_age_is_not_a_write() {
    // As the probe reports it: checked in every tenth sample and repeated in between.
    let fired_for = |written_every: f64, stops_at: f64| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 2.0;
        let begin = tester.t;
        tester.run(3800.0, move |tester, passed| {
            let mut test_sample = trains(tester);
            let checked_at = (passed / 20.0).floor() * 20.0;
            let age = if checked_at < stops_at { checked_at % written_every } else { checked_at - stops_at };
            test_sample.processes[0].reading.log_age_seconds = Some(age.trunc());
            test_sample
        });
        (tester.fired(), tester.t - begin)
    };
    assert_eq!(fired_for(1e9, 1e9).0, [], "never written");
    assert_eq!(fired_for(7.3, 1e9).0, [], "written regularly");
    assert_eq!(fired_for(7.3, 1500.0).0, [("log-silent", "info")], "not written any more");
}

#[test]
fn a_log_that_stops_while_the_gpu_stays_flat_out_warns_after_40_minutes() {
    let run_from = |works_from: f64, written_per_minute: u64, utilization: &dyn Fn(f64) -> u8| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 5.0;
        tester.run(7500.0, |tester, passed| {
            let mut sample = trains(tester);
            let begins = |passed: f64| if passed < works_from { 0 } else { utilization(passed) };
            sample.gpus[0].utilization_percent = Some(begins(passed));
            let age = if passed < 4000.0 { passed % 60.0 } else { passed - 4000.0 };
            sample.processes[0].reading.log_age_seconds = Some(age.trunc());
            sample.processes[0].reading.write_bytes = Some((passed / 60.0) as u64 * written_per_minute);
            sample
        });
        tester.fired().into_iter().filter(|(rule, _)| *rule == "log-silent").collect::<Vec<_>>()
    };
    let run = |written_per_minute: u64, utilization: &dyn Fn(f64) -> u8| run_from(0.0, written_per_minute, utilization);
    let flat = |_: f64| 100;
    assert_eq!(run(0, &flat), [("log-silent", "info"), ("log-silent", "warn")]);
    assert_eq!(run_from(3960.0, 0, &flat), [("log-silent", "info")], "it logged nothing of its work");
    let uneven = |passed: f64| if passed % 100.0 < 50.0 { 99 } else { 80 };
    assert_eq!(run(0, &uneven), [("log-silent", "info")], "it does different things");
    assert_eq!(run(4096, &flat), [("log-silent", "info")], "it writes its metrics to another file");
}

#[test]
fn a_process_whose_workers_and_log_have_stopped_warns() {
    let run = |workers: Option<u32>| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 10.0;
        let sample = |tester: &mut RuleTester, is_at_work: bool, age: f64| {
            let mut sample =
                if is_at_work { works(tester, "python -m train") } else { idles(tester, "python -m train", 0.0) };
            let reading = &mut sample.processes[0].reading;
            reading.log_age_seconds = Some(age.trunc());
            reading.descendants = workers;
            reading.descendants_cpu_percent = workers.map(|_| if is_at_work { 300.0 } else { 0.0 });
            sample
        };
        for _ in 0..8 {
            tester.run(150.0, |tester, passed| sample(tester, true, passed % 20.0));
            tester.run(90.0, |tester, passed| sample(tester, false, passed));
        }
        tester.run(3600.0, |tester, passed| sample(tester, false, passed));
        tester.fired().into_iter().filter(|(rule, _)| *rule == "job-stalled").collect::<Vec<_>>()
    };
    assert_eq!(run(Some(34)), [("job-stalled", "info"), ("job-stalled", "warn")]);
    assert_eq!(run(None), [("job-stalled", "info")], "it may wait for a request");
}

#[test]
fn a_worker_that_stops_to_log_between_tasks_warns() {
    let run = |logs_in_pauses: bool| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 10.0;
        let sample = |tester: &mut RuleTester, is_at_work: bool, age: f64| {
            let command = "python -m worker --queue moths";
            let mut sample = if is_at_work { works(tester, command) } else { idles(tester, command, 0.0) };
            sample.processes[0].reading.log_age_seconds = Some(age.trunc());
            sample
        };
        for _ in 0..6 {
            tester.run(400.0, |tester, passed| sample(tester, true, passed % 20.0));
            tester.run(400.0, |tester, passed| {
                sample(tester, false, if logs_in_pauses { passed % 20.0 } else { passed })
            });
        }
        tester.run(3600.0, |tester, passed| sample(tester, false, passed));
        tester.fired().into_iter().filter(|(rule, _)| *rule == "job-stalled").collect::<Vec<_>>()
    };
    assert_eq!(run(true), [("job-stalled", "info"), ("job-stalled", "warn")]);
    assert_eq!(run(false), [("job-stalled", "info")], "it may wait for a task");
}

#[test]
fn a_server_that_answers_health_checks_is_idle() {
    let run = |command: &str| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 30.0;
        tester.run(4200.0, |tester, _| idles(tester, command, 0.08));
        tester.firing()
    };
    assert_eq!(run("vllm serve qwen"), [("idle-hog", "info")]);
    assert_eq!(run("python train.py"), []);
}

#[test]
fn an_idle_server_and_an_idle_worker_of_a_scheduler_are_named() {
    for (command, end) in [("vllm serve qwen", ", a model server"), ("ray::WorkerDict", ", waits for tasks")] {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 30.0;
        tester.run(4200.0, |tester, _| idles(tester, command, 0.0));
        let sentence = &tester.finding("idle-hog").sentence;
        assert!(sentence.ends_with(end), "{sentence}");
    }
}

#[test]
fn memory_held_by_processes_that_poll_is_info() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 30.0;
    tester.run(4200.0, |tester, _| idles(tester, "python -m sglang.launch_server", 1.0));
    assert_eq!(tester.firing(), [("idle-hog", "info")]);
    let sentence = tester.finding("idle-hog").sentence.to_string();
    assert!(sentence.ends_with("its processes rest, or poll without reads or writes"), "{sentence}");
    tester.run(60_000.0, |tester, _| idles(tester, "python -m sglang.launch_server", 1.0));
    assert_eq!(tester.notified(), 0, "it may wait for requests");
}
