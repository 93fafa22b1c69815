use crate::diagnosis::testing::{Lab, Shot};
use crate::fleet::fixture::{TestProcess, gpus, process};
use crate::fleet::{GpuState, HostId};

fn job(command: &str, cores: f32) -> Vec<TestProcess> {
    let mut job = process(7, command, &[(0, 40)]);
    job.reading.cpu_percent = Some(cores * 100.0);
    vec![job]
}

fn works(lab: &mut Lab, command: &str) -> Shot {
    Shot { gpus: vec![lab.gpu(97, 500.0, 40, 40)], processes: job(command, 1.2) }
}

fn rests(lab: &mut Lab, command: &str, cores: f32) -> Shot {
    Shot { gpus: vec![lab.gpu(0, 122.0, 0, 40)], processes: job(command, cores) }
}

#[test]
fn a_job_that_worked_and_stands_still_is_stalled() {
    let mut lab = Lab::new(gpus(0..1));
    lab.every = 30.0;
    lab.play(21_600.0, |lab, _| works(lab, "python train.py"));
    // What it used before fades from the smoothed CPU share within a few minutes.
    lab.play(1290.0, |lab, _| rests(lab, "python train.py", 0.0));
    assert_eq!(lab.firing(), [("job-stalled", "warn")]);
    lab.play(900.0, |lab, _| rests(lab, "python train.py", 0.0));
    assert_eq!(lab.firing(), [("job-stalled", "crit")]);
    lab.play(12_000.0, |lab, _| rests(lab, "python train.py", 0.0));
    assert_eq!(lab.firing(), [("job-stalled", "crit")], "idle-hog is not told beside it");
}

#[test]
fn notebooks_and_servers_are_not_stalled() {
    for command in ["python -m ipykernel_launcher -f k.json", "python -m vllm.entrypoints.openai.api_server"] {
        let mut lab = Lab::new(gpus(0..1));
        lab.every = 30.0;
        lab.play(3600.0, |lab, _| works(lab, command));
        lab.play(2700.0, |lab, _| rests(lab, command, 0.0));
        assert_eq!(lab.fired(), [], "{command}");
    }
}

#[test]
fn memory_held_for_hours_without_work_is_mentioned_then_warned_of() {
    let mut lab = Lab::new(gpus(0..1));
    lab.every = 30.0;
    lab.play(3500.0, |lab, _| rests(lab, "python -m ipykernel_launcher", 0.004));
    assert_eq!(lab.fired(), []);
    lab.play(200.0, |lab, _| rests(lab, "python -m ipykernel_launcher", 0.004));
    assert_eq!(lab.firing(), [("idle-hog", "info")]);
    assert_eq!(lab.notified(), 0, "what is only mentioned calls nobody");
    lab.play(7200.0, |lab, _| rests(lab, "python -m ipykernel_launcher", 0.004));
    assert_eq!(lab.firing(), [("idle-hog", "warn")]);
    assert!(
        lab.finding("idle-hog")
            .sentence
            .starts_with("ipykernel_launcher (alice, pid 7) holds 40 GiB of GPU 0 and has done nothing for 3 h"),
        "{}",
        lab.finding("idle-hog").sentence
    );
}

#[test]
fn a_cell_now_and_then_is_work() {
    let mut lab = Lab::new(gpus(0..1));
    lab.every = 10.0;
    lab.play(14_400.0, |lab, t| {
        if t % 1500.0 < 30.0 {
            works(lab, "python -m ipykernel_launcher")
        } else {
            rests(lab, "python -m ipykernel_launcher", 0.004)
        }
    });
    assert_eq!(lab.fired(), []);
}

#[test]
fn a_context_that_rests_and_a_server_that_spins_are_left_alone() {
    let mut lab = Lab::new(gpus(0..1));
    lab.every = 30.0;
    lab.play(3000.0, |lab, _| rests(lab, "python train.py", 0.0));
    assert_eq!(lab.fired(), [], "idle for under an hour");
    let mut lab = Lab::new(gpus(0..1));
    lab.every = 30.0;
    lab.play(86_400.0, |lab, _| rests(lab, "python -m vllm.entrypoints.openai.api_server", 2.0));
    assert_eq!(lab.fired(), []);
    let mut lab = Lab::new(gpus(0..1));
    lab.every = 60.0;
    lab.play(172_800.0, |lab, _| rests(lab, "ollama runner", 0.0));
    assert!(lab.fired().iter().all(|(_, severity)| *severity == "info"), "{:?}", lab.fired());
}

/// The first snapshot of a connection knows no rates.
fn without_rates(shot: &mut Shot, passed: f64) {
    if passed <= 0.0 {
        shot.processes.iter_mut().for_each(|process| process.reading.cpu_percent = None);
    }
}

#[test]
fn idleness_survives_a_restart_where_cpu_time_proves_it() {
    let mut lab = Lab::new(gpus(0..1));
    lab.every = 30.0;
    let notebook = |cpu: f64| {
        move |lab: &mut Lab, passed: f64| {
            let mut shot = rests(lab, "python -m ipykernel_launcher", 0.0);
            shot.processes[0].reading.cpu_seconds = Some(cpu);
            without_rates(&mut shot, passed);
            shot
        }
    };
    lab.play(1800.0, notebook(5000.0));
    let memory = lab.engine.memory(&lab.fleet, lab.now());
    let text = serde_json::to_string(&memory).expect("encodes");
    for (grown, fires) in [(0.5, true), (400.0, false)] {
        let mut next = Lab::new(gpus(0..1));
        next.every = 30.0;
        // Two hours later, by the wall clock.
        next.t = lab.t + 7200.0;
        let memory = crate::diagnosis::Memory::parse(&text).expect("reads");
        next.engine.recall(memory, next.now());
        next.play(300.0, notebook(5000.0 + grown));
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
    let mut lab = Lab::new(gpus(0..1));
    let shot = |lab: &mut Lab, cpu: f64, passed: f64| {
        let mut shot = rests(lab, "python -m ipykernel_launcher", 0.0);
        shot.processes[0].reading.cpu_seconds = Some(cpu);
        without_rates(&mut shot, passed);
        shot
    };
    // The laboratory's processes are 10,000 s old when it begins.
    lab.play(200.0, |lab, passed| shot(lab, 40.0, passed));
    assert_eq!(lab.firing(), [("idle-hog", "warn")]);
    let (state, since) = lab.engine.states(HostId(0))[0];
    assert_eq!(state, GpuState::Idle, "the pane says what the finding says, before five minutes are over");
    let idle = lab.now().since(since.expect("it is known"));
    assert!((9000..11_000).contains(&idle.as_secs()), "{idle:?}");
    let mut lab = Lab::new(gpus(0..1));
    lab.play(200.0, |lab, passed| shot(lab, 300.0, passed));
    assert_eq!(lab.firing(), [], "it may have worked an hour ago");
    assert_eq!(lab.engine.states(HostId(0))[0].0, GpuState::InUse);
}
