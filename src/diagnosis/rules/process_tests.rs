use crate::diagnosis::testing::{Lab, Shot};
use crate::fleet::fixture::{TestProcess, gpus, process};
use crate::wire::{Ancestor, GpuReading, Owner, Presence, ProcessState};

/// A process that holds GPU 0 and sleeps, in this state.
fn holder(state: ProcessState) -> TestProcess {
    let mut holder = process(7, "python train.py", &[(0, 40)]);
    holder.reading.state = Some(state);
    holder.reading.cpu_percent = Some(0.0);
    holder
}

fn rests(lab: &mut Lab, processes: Vec<TestProcess>) -> Shot {
    Shot { gpus: vec![lab.gpu(0, 122.0, 0, 40)], processes }
}

#[test]
fn uninterruptible_sleep_warns_at_two_minutes_and_is_critical_at_five() {
    let mut lab = Lab::new(gpus(0..1));
    lab.play(90.0, |lab, _| rests(lab, vec![holder(ProcessState::DiskSleep)]));
    assert_eq!(lab.fired(), []);
    // One sample goes missing.
    lab.pass(10.0);
    lab.play(40.0, |lab, _| rests(lab, vec![holder(ProcessState::DiskSleep)]));
    assert_eq!(lab.firing(), [("dstate-hang", "warn")]);
    lab.play(220.0, |lab, _| rests(lab, vec![holder(ProcessState::DiskSleep)]));
    assert_eq!(lab.firing(), [("dstate-hang", "crit")]);
    assert!(lab.finding("dstate-hang").sentence.ends_with("without CPU time, and holds 40 GiB of GPU memory"));
}

#[test]
fn a_probe_that_has_watched_the_thread_is_believed() {
    let mut lab = Lab::new(gpus(0..1));
    let mut stuck = holder(ProcessState::Sleeping);
    stuck.reading.blocked_thread = Some(71);
    stuck.reading.blocked_seconds = Some(400.0);
    lab.play(10.0, |lab, _| rests(lab, vec![stuck.clone()]));
    assert_eq!(lab.firing(), [("dstate-hang", "crit")]);
    assert!(lab.finding("dstate-hang").sentence.contains("(thread 71) has been in uninterruptible sleep for 6 min"));
}

#[test]
fn a_job_that_reads_is_in_disk_sleep_on_and_off() {
    let mut lab = Lab::new(gpus(0..1));
    lab.play(3600.0, |lab, t| {
        let mut reader = holder(if (t as u32 / 10) % 5 < 2 { ProcessState::DiskSleep } else { ProcessState::Running });
        reader.reading.cpu_percent = Some(40.0);
        rests(lab, vec![reader])
    });
    lab.play(90.0, |lab, _| rests(lab, vec![holder(ProcessState::DiskSleep)]));
    lab.play(60.0, |lab, _| rests(lab, vec![holder(ProcessState::Running)]));
    assert_eq!(lab.fired(), []);
}

#[test]
fn stopped_processes_warn_and_debuggers_are_mentioned() {
    let mut lab = Lab::new(gpus(0..1));
    lab.play(60.0, |lab, _| rests(lab, vec![holder(ProcessState::Stopped)]));
    lab.play(30.0, |lab, _| rests(lab, vec![holder(ProcessState::Running)]));
    assert_eq!(lab.fired(), [], "stopped for a minute");
    lab.play(320.0, |lab, _| rests(lab, vec![holder(ProcessState::Stopped)]));
    assert_eq!(lab.firing(), [("stopped-holding-gpu", "warn")]);
    let mut lab = Lab::new(gpus(0..1));
    lab.play(1700.0, |lab, _| rests(lab, vec![holder(ProcessState::Traced)]));
    assert_eq!(lab.fired(), []);
    lab.play(200.0, |lab, _| rests(lab, vec![holder(ProcessState::Traced)]));
    assert_eq!(lab.firing(), [("stopped-holding-gpu", "info")]);
}

#[test]
fn a_zombie_that_the_driver_lists_holds_its_gpu() {
    let mut lab = Lab::new(gpus(0..1));
    let mut zombie = holder(ProcessState::Zombie);
    zombie.reading.threads_live = Some(1);
    lab.play(20.0, |lab, _| rests(lab, vec![zombie.clone()]));
    assert_eq!(lab.fired(), [], "an exit takes a moment");
    lab.play(50.0, |lab, _| rests(lab, vec![zombie.clone()]));
    assert_eq!(lab.firing(), [("zombie-holding-gpu", "warn")]);
    lab.play(300.0, |lab, _| rests(lab, vec![zombie.clone()]));
    assert_eq!(lab.firing(), [("zombie-holding-gpu", "crit")]);
    assert!(lab.finding("zombie-holding-gpu").sentence.ends_with("1 of its threads live on"));
    lab.play(20.0, |lab, _| rests(lab, vec![]));
    assert_eq!(lab.firing(), [("job-ended", "info")]);
}

#[test]
fn a_reused_pid_starts_the_timer_anew() {
    let mut lab = Lab::new(gpus(0..1));
    lab.play(280.0, |lab, _| rests(lab, vec![holder(ProcessState::Stopped)]));
    let mut other = holder(ProcessState::Stopped);
    other.facts.start_ticks = Some(99_999);
    other.reading.start_ticks = Some(99_999);
    lab.play(280.0, |lab, _| rests(lab, vec![other.clone()]));
    assert!(!lab.fired().iter().any(|(rule, _)| *rule == "stopped-holding-gpu"), "{:?}", lab.fired());
}

fn worker(pid: u32, parent: u32, name: &str) -> TestProcess {
    let mut worker = process(pid, "python -c from multiprocessing.spawn import spawn_main; spawn_main()", &[(0, 10)]);
    worker.facts.session = Some(50);
    worker.facts.ancestors =
        vec![Ancestor { pid: parent, start_ticks: 1, uid: Some(1000), name: name.into(), argv: vec![] }];
    worker.reading.parent_pid = Some(parent);
    worker.reading.cpu_percent = Some(0.0);
    worker
}

#[test]
fn workers_whose_parent_died_are_orphans() {
    let mut lab = Lab::new(gpus(0..1));
    lab.play(300.0, |lab, _| rests(lab, (7..10).map(|pid| worker(pid, 6, "python")).collect()));
    assert_eq!(lab.fired(), []);
    lab.play(640.0, |lab, _| rests(lab, (7..10).map(|pid| worker(pid, 1, "systemd")).collect()));
    assert_eq!(lab.firing(), [("orphan-holding-gpu", "warn")]);
    assert_eq!(lab.finding("orphan-holding-gpu").next_check, "kill 7 8 9");
}

#[test]
fn what_is_meant_to_outlive_its_parent_is_no_orphan() {
    let nohup = TestProcess {
        facts: crate::wire::ProcessFacts { ignores_hangup: Some(true), ..worker(7, 1, "systemd").facts },
        ..worker(7, 1, "systemd")
    };
    let service = TestProcess {
        facts: crate::wire::ProcessFacts {
            owner: Some(Owner::Service("a.service".into())),
            ..worker(7, 1, "systemd").facts
        },
        ..worker(7, 1, "systemd")
    };
    let tmux = TestProcess {
        facts: crate::wire::ProcessFacts { runs_in: Some("tmux".into()), ..worker(7, 1, "systemd").facts },
        ..worker(7, 1, "systemd")
    };
    let container = TestProcess {
        facts: crate::wire::ProcessFacts {
            owner: Some(Owner::Container { runtime: "docker".into(), id: "abc".into() }),
            ..worker(7, 1, "systemd").facts
        },
        ..worker(7, 1, "systemd")
    };
    let mut plain = worker(7, 1, "systemd");
    plain.facts.argv = vec!["python".into(), "train.py".into()];
    for kept in [nohup, service, tmux, container, plain] {
        let mut lab = Lab::new(gpus(0..1));
        lab.play(1200.0, |lab, _| rests(lab, vec![kept.clone()]));
        assert_eq!(lab.fired(), [], "{:?}", kept.facts);
    }
}

fn used(lab: &mut Lab, utilization: u8, gib: u64) -> GpuReading {
    lab.gpu(utilization, 300.0, 20, gib)
}

#[test]
fn memory_of_a_pid_that_is_gone_is_not_released() {
    let mut gone = holder(ProcessState::Running);
    gone.reading.presence = Some(Presence::Gone);
    gone.reading.state = None;
    gone.gpus[0].gpu_memory_bytes = Some(10 << 30);
    for (utilization, listed, severity) in [(100, true, "crit"), (100, false, "crit"), (0, true, "warn")] {
        let mut lab = Lab::new(gpus(0..1));
        lab.play(20.0, |lab, _| Shot { gpus: vec![used(lab, utilization, 10)], processes: vec![] });
        assert_eq!(lab.fired(), [], "the seconds after an exit");
        lab.play(310.0, |lab, _| Shot {
            gpus: vec![used(lab, utilization, 10)],
            processes: if listed { vec![gone.clone()] } else { vec![] },
        });
        assert_eq!(lab.firing(), [("ghost-memory", severity)]);
    }
}

#[test]
fn memory_of_a_hidden_process_is_only_mentioned() {
    let mut hidden = holder(ProcessState::Running);
    hidden.reading.presence = Some(Presence::Hidden);
    hidden.reading.state = None;
    let mut lab = Lab::new(gpus(0..1));
    lab.play(400.0, |lab, _| Shot { gpus: vec![used(lab, 100, 40)], processes: vec![hidden.clone()] });
    assert_eq!(lab.firing(), [("ghost-memory", "info")]);
}

#[test]
fn accounted_unified_and_unknown_memory_is_no_ghost() {
    let mut lab = Lab::new(gpus(0..1));
    lab.play(1200.0, |lab, _| Shot { gpus: vec![used(lab, 90, 40)], processes: vec![holder(ProcessState::Running)] });
    let mut untold = holder(ProcessState::Running);
    untold.gpus[0].gpu_memory_bytes = None;
    lab.play(1200.0, |lab, _| Shot { gpus: vec![used(lab, 90, 60)], processes: vec![untold.clone()] });
    let mut unified = gpus(0..1);
    unified[0].unified_memory = Some(true);
    let mut other = Lab::new(unified);
    other.play(1200.0, |lab, _| Shot { gpus: vec![used(lab, 90, 60)], processes: vec![] });
    assert_eq!((lab.fired(), other.fired()), (vec![], vec![]));
}
