use crate::diagnosis::testing::{RuleTester, TestSample};
use crate::fleet::fixture::{TestProcess, gpus, process};
use crate::fleet::{GpuState, HostId};

fn job(command: &str, cores: f32) -> Vec<TestProcess> {
    let mut job = process(7, command, &[(0, 40)]);
    job.reading.cpu_percent = Some(cores * 100.0);
    vec![job]
}

fn works(tester: &mut RuleTester, command: &str) -> TestSample {
    TestSample { gpus: vec![tester.gpu(97, 500.0, 40, 40)], processes: job(command, 1.2) }
}

fn rests(tester: &mut RuleTester, command: &str, cores: f32) -> TestSample {
    TestSample { gpus: vec![tester.gpu(0, 122.0, 0, 40)], processes: job(command, cores) }
}

#[test]
fn a_job_that_worked_and_stands_still_is_stalled() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 30.0;
    tester.run(21_600.0, |tester, _| works(tester, "python train.py"));
    // What it used before fades from the smoothed CPU share within a few minutes.
    tester.run(1290.0, |tester, _| rests(tester, "python train.py", 0.0));
    assert_eq!(tester.firing(), [("job-stalled", "warn")]);
    tester.run(900.0, |tester, _| rests(tester, "python train.py", 0.0));
    assert_eq!(tester.firing(), [("job-stalled", "crit")]);
    tester.run(12_000.0, |tester, _| rests(tester, "python train.py", 0.0));
    assert_eq!(tester.firing(), [("job-stalled", "crit")], "idle-hog is not told beside it");
}

#[test]
fn notebooks_and_servers_are_not_stalled() {
    for command in ["python -m ipykernel_launcher -f k.json", "python -m vllm.entrypoints.openai.api_server"] {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 30.0;
        tester.run(3600.0, |tester, _| works(tester, command));
        tester.run(2700.0, |tester, _| rests(tester, command, 0.0));
        assert_eq!(tester.fired(), [], "{command}");
    }
}

#[test]
fn memory_held_for_hours_without_work_is_mentioned_then_warned_of() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 30.0;
    tester.run(3500.0, |tester, _| rests(tester, "python -m ipykernel_launcher", 0.004));
    assert_eq!(tester.fired(), []);
    tester.run(200.0, |tester, _| rests(tester, "python -m ipykernel_launcher", 0.004));
    assert_eq!(tester.firing(), [("idle-hog", "info")]);
    assert_eq!(tester.notified(), 0, "what is only mentioned calls nobody");
    tester.run(7200.0, |tester, _| rests(tester, "python -m ipykernel_launcher", 0.004));
    assert_eq!(tester.firing(), [("idle-hog", "warn")]);
    assert!(
        tester
            .finding("idle-hog")
            .sentence
            .starts_with("ipykernel_launcher (alice, pid 7) holds 40 GiB of GPU 0 and has done nothing for 3 h"),
        "{}",
        tester.finding("idle-hog").sentence
    );
}

#[test]
fn a_cell_now_and_then_is_work() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 10.0;
    tester.run(14_400.0, |tester, t| {
        if t % 1500.0 < 30.0 {
            works(tester, "python -m ipykernel_launcher")
        } else {
            rests(tester, "python -m ipykernel_launcher", 0.004)
        }
    });
    assert_eq!(tester.fired(), []);
}

#[test]
fn a_context_that_rests_and_a_server_that_spins_are_left_alone() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 30.0;
    tester.run(3000.0, |tester, _| rests(tester, "python train.py", 0.0));
    assert_eq!(tester.fired(), [], "idle for under an hour");
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 30.0;
    tester.run(86_400.0, |tester, _| rests(tester, "python -m vllm.entrypoints.openai.api_server", 2.0));
    assert_eq!(tester.fired(), []);
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 60.0;
    tester.run(172_800.0, |tester, _| rests(tester, "ollama runner", 0.0));
    assert!(tester.fired().iter().all(|(_, severity)| *severity == "info"), "{:?}", tester.fired());
}

/// The first snapshot of a connection knows no rates.
fn without_rates(test_sample: &mut TestSample, passed: f64) {
    if passed <= 0.0 {
        test_sample.processes.iter_mut().for_each(|process| process.reading.cpu_percent = None);
    }
}

#[test]
fn idleness_survives_a_restart_where_cpu_time_proves_it() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 30.0;
    let notebook = |cpu: f64| {
        move |tester: &mut RuleTester, passed: f64| {
            let mut test_sample = rests(tester, "python -m ipykernel_launcher", 0.0);
            test_sample.processes[0].reading.cpu_seconds = Some(cpu);
            without_rates(&mut test_sample, passed);
            test_sample
        }
    };
    tester.run(1800.0, notebook(5000.0));
    let memory = tester.engine.memory(&tester.fleet, tester.now());
    let text = serde_json::to_string(&memory).expect("encodes");
    for (grown, fires) in [(0.5, true), (400.0, false)] {
        let mut next = RuleTester::new(gpus(0..1));
        next.interval = 30.0;
        // Two hours later, by the wall clock.
        next.t = tester.t + 7200.0;
        let memory = crate::diagnosis::SavedState::parse(&text).expect("reads");
        next.engine.restore(memory, next.now());
        next.run(300.0, notebook(5000.0 + grown));
        assert_eq!(next.firing() == [("idle-hog", "warn")], fires, "{:?}", next.firing());
        if fires {
            let finding = next.finding("idle-hog");
            assert!(
                finding.at_least
                    && finding.sentence.contains("2 h 3")
                    && finding.sentence.contains("at least, by its CPU time"),
                "{}",
                finding.sentence
            );
        }
    }
}

#[test]
fn an_old_process_that_hardly_ever_ran_is_known_at_the_first_look() {
    let mut tester = RuleTester::new(gpus(0..1));
    let test_sample = |tester: &mut RuleTester, cpu: f64, passed: f64| {
        let mut test_sample = rests(tester, "python -m ipykernel_launcher", 0.0);
        test_sample.processes[0].reading.cpu_seconds = Some(cpu);
        without_rates(&mut test_sample, passed);
        test_sample
    };
    // The laboratory's processes are 10,000 s old when it begins.
    tester.run(200.0, |tester, passed| test_sample(tester, 40.0, passed));
    assert_eq!(tester.firing(), [("idle-hog", "warn")]);
    let (state, since) = tester.engine.states(HostId(0))[0];
    assert_eq!(state, GpuState::Idle, "the pane says what the finding says, before five minutes are over");
    let idle = tester.now().since(since.expect("it is known"));
    assert!((9000..11_000).contains(&idle.as_secs()), "{idle:?}");
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(200.0, |tester, passed| test_sample(tester, 300.0, passed));
    assert_eq!(tester.firing(), [], "it may have worked an hour ago");
    assert_eq!(tester.engine.states(HostId(0))[0].0, GpuState::InUse);
}
