use crate::diagnosis::Severity;
use crate::diagnosis::testing::{RuleTester, TestSample};
use crate::fleet::fixture::{TestProcess, gpus, process};
use crate::wire::{Ancestor, GpuReading, Owner, Presence, ProcessState, Snapshot};

/// A process in this state that holds GPU 0 and uses no CPU.
fn holder(state: ProcessState) -> TestProcess {
    let mut holder = process(7, "python train.py", &[(0, 40)]);
    holder.reading.state = Some(state);
    holder.reading.cpu_percent = Some(0.0);
    holder
}

fn idles(tester: &mut RuleTester, processes: Vec<TestProcess>) -> TestSample {
    TestSample { gpus: vec![tester.gpu(0, 122.0, 0, 40)], processes }
}

#[test]
fn uninterruptible_sleep_warns_at_two_minutes_and_is_critical_at_five() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(90.0, |tester, _| idles(tester, vec![holder(ProcessState::DiskSleep)]));
    assert_eq!(tester.fired(), []);
    // One sample is missing.
    tester.wait(10.0);
    tester.run(40.0, |tester, _| idles(tester, vec![holder(ProcessState::DiskSleep)]));
    assert_eq!(tester.firing(), [("dstate-hang", "warn")]);
    tester.run(220.0, |tester, _| idles(tester, vec![holder(ProcessState::DiskSleep)]));
    assert_eq!(tester.firing(), [("dstate-hang", "crit")]);
    assert!(tester.finding("dstate-hang").sentence.ends_with("without CPU time, and holds 40 GiB of GPU memory"));
}

#[test]
fn the_blocked_time_from_the_probe_counts() {
    let mut tester = RuleTester::new(gpus(0..1));
    let mut stuck = holder(ProcessState::Sleeping);
    stuck.reading.blocked_thread = Some(71);
    stuck.reading.blocked_seconds = Some(400.0);
    tester.run(10.0, |tester, _| idles(tester, vec![stuck.clone()]));
    assert_eq!(tester.firing(), [("dstate-hang", "crit")]);
    assert!(tester.finding("dstate-hang").sentence.contains("(thread 71) has been in uninterruptible sleep for 7 min"));
    stuck.reading.wait_channel = Some("nfs_wait_bit_killable".into());
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(10.0, |tester, _| idles(tester, vec![stuck.clone()]));
    let sentence = tester.finding("dstate-hang").sentence.to_string();
    assert!(sentence.contains("in uninterruptible sleep in nfs_wait_bit_killable for 7 min"), "{sentence}");
}

#[test]
fn a_job_that_reads_is_not_hung() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(3600.0, |tester, t| {
        let mut reader = holder(if (t as u32 / 10) % 5 < 2 { ProcessState::DiskSleep } else { ProcessState::Running });
        reader.reading.cpu_percent = Some(40.0);
        idles(tester, vec![reader])
    });
    tester.run(90.0, |tester, _| idles(tester, vec![holder(ProcessState::DiskSleep)]));
    tester.run(60.0, |tester, _| idles(tester, vec![holder(ProcessState::Running)]));
    assert_eq!(tester.fired(), []);
}

#[test]
fn a_slurm_job_that_is_stopped_while_another_one_uses_its_gpu_is_a_note() {
    let slurm = |pid: u32, job: &str, state: ProcessState| {
        let mut process = process(pid, "python train.py", &[(0, 30)]);
        process.reading.state = Some(state);
        process.facts.owner = Some(Owner::Slurm { job: job.into(), step: None });
        process
    };
    let fired = |other: &str| {
        let mut tester = RuleTester::new(gpus(0..1));
        let beside = vec![slurm(7, "70411", ProcessState::Stopped), slurm(9, other, ProcessState::Running)];
        tester.run(900.0, |tester, _| TestSample {
            gpus: vec![tester.gpu(90, 300.0, 30, 60)],
            processes: beside.clone(),
        });
        tester.run(60.0, |tester, _| idles(tester, vec![slurm(7, "70411", ProcessState::Stopped)]));
        let stopped = tester.finding("stopped-holding-gpu");
        let result = (stopped.severity, stopped.sentence.contains("beside another Slurm job on its GPUs"));
        tester.run(600.0, |tester, _| idles(tester, vec![slurm(7, "70411", ProcessState::Stopped)]));
        assert!(tester.firing().contains(&("stopped-holding-gpu", "warn")), "nobody resumes it");
        result
    };
    assert_eq!(fired("70533"), (Severity::Info, true));
    assert_eq!(fired("70411"), (Severity::Warn, false), "another process of the same job");
    let beside = |owner: Owner, percent: f32| {
        let mut tester = RuleTester::new(gpus(0..1));
        let mut stopped = slurm(7, "70411", ProcessState::Stopped);
        stopped.facts.owner = Some(owner);
        tester.run_edited(
            900.0,
            |tester, _| idles(tester, vec![stopped.clone()]),
            |snapshot, _| snapshot.host.cpu_percent = Some(percent),
        );
        tester.finding("stopped-holding-gpu").severity
    };
    let job = || Owner::Slurm { job: "70411".into(), step: None };
    assert_eq!(beside(job(), 98.0), Severity::Info, "another job has its CPUs");
    assert_eq!(beside(job(), 10.0), Severity::Warn);
    assert_eq!(beside(Owner::Service("train".into()), 98.0), Severity::Warn);
}

#[test]
fn a_stopped_job_of_htcondor_is_a_note() {
    let mut tester = RuleTester::new(gpus(0..1));
    let mut guest = holder(ProcessState::Stopped);
    let parent = Ancestor { pid: 3, uid: Some(0), name: "condor_starter".into(), ..Ancestor::default() };
    guest.facts.ancestors = vec![parent];
    tester.run(900.0, |tester, _| idles(tester, vec![guest.clone()]));
    assert_eq!(tester.firing(), [("stopped-holding-gpu", "info")]);
    assert!(tester.finding("stopped-holding-gpu").sentence.contains("has been stopped, probably by HTCondor, for "));
}

#[test]
fn stopped_processes_warn_and_debugged_ones_are_info() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(60.0, |tester, _| idles(tester, vec![holder(ProcessState::Stopped)]));
    tester.run(30.0, |tester, _| idles(tester, vec![holder(ProcessState::Running)]));
    assert_eq!(tester.fired(), [], "stopped for a minute");
    tester.run(320.0, |tester, _| idles(tester, vec![holder(ProcessState::Stopped)]));
    assert_eq!(tester.firing(), [("stopped-holding-gpu", "warn")]);
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(1700.0, |tester, _| idles(tester, vec![holder(ProcessState::Traced)]));
    assert_eq!(tester.fired(), []);
    tester.run(200.0, |tester, _| idles(tester, vec![holder(ProcessState::Traced)]));
    assert_eq!(tester.firing(), [("stopped-holding-gpu", "info")]);
}

#[test]
fn a_zombie_that_the_driver_lists_warns() {
    let mut tester = RuleTester::new(gpus(0..1));
    let mut zombie = holder(ProcessState::Zombie);
    zombie.reading.threads_live = Some(1);
    tester.run(20.0, |tester, _| idles(tester, vec![zombie.clone()]));
    assert_eq!(tester.fired(), [], "an exit takes a few seconds");
    tester.run(50.0, |tester, _| idles(tester, vec![zombie.clone()]));
    assert_eq!(tester.firing(), [("zombie-holding-gpu", "warn")]);
    tester.run(300.0, |tester, _| idles(tester, vec![zombie.clone()]));
    assert_eq!(tester.firing(), [("zombie-holding-gpu", "crit")]);
    assert!(tester.finding("zombie-holding-gpu").sentence.ends_with("1 of its threads is still alive"));
    tester.run(20.0, |tester, _| idles(tester, vec![]));
    assert_eq!(tester.firing(), [("job-ended", "info")]);
}

#[test]
fn a_reused_pid_restarts_the_timer() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(280.0, |tester, _| idles(tester, vec![holder(ProcessState::Stopped)]));
    let mut other = holder(ProcessState::Stopped);
    other.facts.start_ticks = Some(99_999);
    other.reading.start_ticks = Some(99_999);
    tester.run(280.0, |tester, _| idles(tester, vec![other.clone()]));
    assert!(!tester.fired().iter().any(|(rule, _)| *rule == "stopped-holding-gpu"), "{:?}", tester.fired());
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
fn workers_without_their_parent_are_orphans() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(300.0, |tester, _| idles(tester, (7..10).map(|pid| worker(pid, 6, "python")).collect()));
    assert_eq!(tester.fired(), []);
    tester.run(640.0, |tester, _| idles(tester, (7..10).map(|pid| worker(pid, 1, "systemd")).collect()));
    assert_eq!(tester.firing(), [("orphan-holding-gpu", "warn")]);
    assert_eq!(tester.finding("orphan-holding-gpu").next_check, "kill 7 8 9");
}

#[test]
fn workers_whose_container_is_gone_are_orphans() {
    let run = |parent: u32, name: &str| {
        let in_container = |pid: u32, parent: u32, name: &str| {
            let mut worker = worker(pid, parent, name);
            worker.facts.owner = Some(Owner::Container { runtime: "docker".into(), id: "abc".into() });
            worker
        };
        let mut tester = RuleTester::new(gpus(0..1));
        tester
            .run(300.0, |tester, _| idles(tester, vec![in_container(7, 60, "python"), in_container(8, 60, "python")]));
        tester
            .run(640.0, |tester, _| idles(tester, vec![in_container(7, parent, name), in_container(8, parent, name)]));
        tester.firing()
    };
    assert_eq!(run(1, "systemd"), [("orphan-holding-gpu", "warn")]);
    assert_eq!(run(50, "tini"), [("orphan-holding-gpu", "warn")], "the init of the container has adopted them");
}

#[test]
fn workers_of_a_service_or_a_container_that_lose_their_parent_late_are_orphans() {
    let run = |owner: Owner, age: f64, before: (u32, &str), after: (u32, &str)| {
        let worker = |(parent, name): (u32, &str), age: f64| {
            let mut worker = worker(7, parent, name);
            worker.facts.owner = (parent != 1).then(|| owner.clone());
            worker.reading.age_seconds = Some(age);
            worker
        };
        let mut tester = RuleTester::new(gpus(0..1));
        let edit = |tester: &mut RuleTester, parent, seconds: f64| {
            let start = tester.t;
            tester.run_edited(
                seconds,
                |tester, _| idles(tester, vec![worker(parent, 0.0)]),
                |snapshot, passed| snapshot.processes.age_seconds = vec![Some(age + start + passed - 1000.0)],
            );
        };
        edit(&mut tester, before, 60.0);
        edit(&mut tester, after, 700.0);
        tester.firing()
    };
    let service = || Owner::Service("llm.service".into());
    let container = || Owner::Container { runtime: "docker".into(), id: "abc".into() };
    let orphan = [("orphan-holding-gpu", "warn")];
    assert_eq!(run(service(), 7200.0, (60, "python"), (50, "start.sh")), orphan);
    assert_eq!(run(service(), 10.0, (60, "python"), (50, "start.sh")), [], "it went to the background");
    assert_eq!(run(container(), 7200.0, (50, "containerd-shim"), (1, "systemd")), orphan, "removed by force");
}

#[test]
fn ranks_that_lost_their_launcher_and_write_no_log_are_orphans_although_they_compute() {
    let fired = |log_stops: bool| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 5.0;
        let sample = |tester: &mut RuleTester, parent: u32, name: &str, log_age: f64| {
            let mut rank = worker(7, parent, name);
            rank.facts.argv = ["yank", "script"].map(Into::into).to_vec();
            rank.facts.log_path = Some("/home/alice/run.log".into());
            rank.reading.cpu_percent = Some(100.0);
            rank.reading.log_age_seconds = Some(log_age);
            TestSample { gpus: vec![tester.gpu(80, 400.0, 35, 40)], processes: vec![rank] }
        };
        tester.run(600.0, |tester, t| sample(tester, 6, "mpirun", (t % 20.0).trunc()));
        let silent = |passed: f64| if log_stops { passed.trunc() } else { (passed % 20.0).trunc() };
        tester.run(1100.0, |tester, passed| sample(tester, 1, "systemd", silent(passed)));
        assert_eq!(tester.fired(), []);
        tester.run(900.0, |tester, passed| sample(tester, 1, "systemd", silent(1100.0 + passed)));
        let finding = tester.firing().contains(&("orphan-holding-gpu", "warn"));
        finding.then(|| tester.finding("orphan-holding-gpu").sentence.to_string())
    };
    let sentence = fired(true).expect("an orphan");
    assert!(sentence.contains(" lost its parent, has written no log for 3"), "{sentence}");
    assert!(sentence.ends_with(" min, keeps its GPUs busy and holds 10 GiB of GPU memory"), "{sentence}");
    assert_eq!(fired(false), None, "its owner lets it run");
}

#[test]
fn ranks_of_a_notebook_whose_kernel_is_gone_are_orphans_although_they_compute() {
    let fired = |ranks: u16| {
        let mut tester = RuleTester::new(gpus(0..u32::from(ranks)));
        tester.interval = 10.0;
        let sample = |tester: &mut RuleTester, parent: u32, name: &str| {
            let rank = |gpu: u16| {
                let mut rank = worker(7 + u32::from(gpu), parent, name);
                rank.gpus[0].gpu = Some(gpu);
                rank.facts.argv = ["python", "-m", "ipykernel_launcher", "-f", "k.json"].map(Into::into).to_vec();
                rank.reading.cpu_percent = Some(100.0);
                rank
            };
            let gpus = (0..ranks).map(|_| tester.gpu(96, 318.0, 35, 40)).collect();
            TestSample { gpus, processes: (0..ranks).map(rank).collect() }
        };
        tester.run(600.0, |tester, _| sample(tester, 60, "python"));
        tester.run(700.0, |tester, _| sample(tester, 1, "systemd"));
        let is_orphan = tester.firing().contains(&("orphan-holding-gpu", "warn"));
        is_orphan.then(|| tester.finding("orphan-holding-gpu").sentence.to_string())
    };
    let sentence = fired(4).expect("orphans");
    assert!(
        sentence.contains(" lost its parent, computes for a notebook whose kernel is gone and holds "),
        "{sentence}"
    );
    assert_eq!(fired(1), None, "it may be the kernel");
}

#[test]
fn a_run_that_lost_its_launcher_is_an_orphan_beside_a_later_run_of_its_program() {
    let finding = |script: &'static str, position: u16| {
        let mut tester = RuleTester::new(gpus(0..2));
        let sample = |tester: &mut RuleTester, parent: u32, name: &str, has_next: bool| {
            let run = |pid: u32, parent: u32, name: &str, script: &str| {
                let mut run = worker(pid, parent, name);
                let trial = format!("--trial={pid}");
                run.facts.argv = ["python", script, &trial].map(Into::into).to_vec();
                run.reading.cpu_percent = Some(100.0);
                run
            };
            let mut next = run(8, 90, "wandb", script);
            (next.facts.start_ticks, next.reading.start_ticks) = (Some(9_000_000), Some(9_000_000));
            next.gpus[0].gpu = Some(position);
            let mut processes = vec![run(7, parent, name, "train_unet.py")];
            processes.extend(has_next.then_some(next));
            let is_used = has_next && position == 1;
            let other = if is_used { tester.gpu(97, 400.0, 35, 40) } else { used(tester, 0, 0) };
            TestSample { gpus: vec![tester.gpu(97, 400.0, 35, 40), other], processes }
        };
        tester.run(600.0, |tester, _| sample(tester, 6, "wandb", false));
        tester.run(700.0, |tester, _| sample(tester, 1, "systemd", false));
        assert_eq!(tester.fired(), [], "its owner may let it run");
        tester.run(700.0, |tester, _| sample(tester, 1, "systemd", true));
        let fires = tester.firing().contains(&("orphan-holding-gpu", "warn"));
        fires.then(|| tester.finding("orphan-holding-gpu").sentence.to_string())
    };
    let sentence = finding("train_unet.py", 0).expect("an orphan");
    let expected = " lost its parent, computes beside a later run of the same program and holds 10 GiB of GPU memory";
    assert!(sentence.ends_with(expected), "{sentence}");
    assert_eq!(finding("train_unet.py", 1), None, "on another GPU");
    assert_eq!(finding("evaluate.py", 0), None, "another program");
}

#[test]
fn a_simulator_that_outlives_its_trainer_is_an_orphan_although_it_renders() {
    let finding = |port: Option<u16>, connections: u32| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 5.0;
        let sample = |tester: &mut RuleTester, parent: u32, name: &str, connections: u32| {
            let mut simulator = worker(7, parent, name);
            simulator.facts.argv = ["CarlaUE4-Linux-Shipping", "CarlaUE4"].map(Into::into).to_vec();
            simulator.facts.listening_ports = port.into_iter().collect();
            simulator.reading.cpu_percent = Some(150.0);
            simulator.reading.established_connections = Some(connections);
            simulator.reading.write_bytes = Some(4096);
            TestSample { gpus: vec![tester.gpu(60, 300.0, 30, 40)], processes: vec![simulator] }
        };
        tester.run(600.0, |tester, _| sample(tester, 6, "python", 2));
        tester.run(700.0, |tester, _| sample(tester, 1, "systemd", connections));
        let fires = tester.firing().contains(&("orphan-holding-gpu", "warn"));
        fires.then(|| tester.finding("orphan-holding-gpu").sentence.to_string())
    };
    let sentence = finding(Some(2000), 0).expect("an orphan");
    assert!(sentence.contains(" lost its parent, has served nobody for 1"), "{sentence}");
    assert_eq!(finding(Some(2000), 1), None, "somebody is connected");
    assert_eq!(finding(None, 0), None, "it may compute for its owner");
}

#[test]
fn processes_meant_to_outlive_their_parent_are_not_orphans() {
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
    for intended in [nohup, service, tmux, container, plain] {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(1200.0, |tester, _| idles(tester, vec![intended.clone()]));
        assert_eq!(tester.fired(), [], "{:?}", intended.facts);
    }
}

fn used(tester: &mut RuleTester, utilization: u8, gib: u64) -> GpuReading {
    tester.gpu(utilization, 300.0, 20, gib)
}

#[test]
fn memory_of_a_gone_pid_is_ghost_memory() {
    let mut gone = holder(ProcessState::Running);
    gone.reading.presence = Some(Presence::Gone);
    gone.reading.state = None;
    gone.gpus[0].gpu_memory_bytes = Some(10 << 30);
    for (utilization, listed, severity) in [(100, true, "crit"), (100, false, "info"), (0, true, "warn")] {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(20.0, |tester, _| TestSample { gpus: vec![used(tester, utilization, 10)], processes: vec![] });
        assert_eq!(tester.fired(), [], "the seconds after an exit");
        tester.run(310.0, |tester, _| TestSample {
            gpus: vec![used(tester, utilization, 10)],
            processes: if listed { vec![gone.clone()] } else { vec![] },
        });
        assert_eq!(tester.firing(), [("ghost-memory", severity)]);
    }
}

#[test]
fn memory_of_a_hidden_process_is_info() {
    let mut hidden = holder(ProcessState::Running);
    hidden.reading.presence = Some(Presence::Hidden);
    hidden.reading.state = None;
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(400.0, |tester, _| TestSample { gpus: vec![used(tester, 100, 40)], processes: vec![hidden.clone()] });
    assert_eq!(tester.firing(), [("ghost-memory", "info")]);
}

#[test]
fn accounted_unified_and_unknown_memory_is_not_ghost_memory() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(1200.0, |tester, _| TestSample {
        gpus: vec![used(tester, 90, 40)],
        processes: vec![holder(ProcessState::Running)],
    });
    let mut unreported = holder(ProcessState::Running);
    unreported.gpus[0].gpu_memory_bytes = None;
    tester
        .run(1200.0, |tester, _| TestSample { gpus: vec![used(tester, 90, 60)], processes: vec![unreported.clone()] });
    let mut unified = gpus(0..1);
    unified[0].unified_memory = Some(true);
    let mut other = RuleTester::new(unified);
    other.run(1200.0, |tester, _| TestSample { gpus: vec![used(tester, 90, 60)], processes: vec![] });
    assert_eq!((tester.fired(), other.fired()), (vec![], vec![]));
}

#[test]
fn an_unknown_list_of_processes_is_not_ghost_memory() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(1200.0, |tester, _| {
        let reading = GpuReading { processes_unknown: Some(true), ..used(tester, 100, 60) };
        TestSample { gpus: vec![reading], processes: vec![] }
    });
    assert_eq!(tester.fired(), []);
}

#[test]
fn a_gpu_that_works_for_no_process_is_critical_with_any_memory() {
    let fired = |watts: f32, lists_others: bool| {
        let mut tester = RuleTester::new(gpus(0..2));
        tester.run(400.0, |tester, _| {
            let reading = GpuReading { memory_used_bytes: Some(900 << 20), ..tester.gpu(100, watts, 20, 1) };
            let other = if lists_others { vec![process(7, "python train.py", &[(1, 40)])] } else { vec![] };
            TestSample { gpus: vec![reading, used(tester, 97, if lists_others { 40 } else { 0 })], processes: other }
        });
        let firing = tester.firing();
        firing.iter().filter(|(rule, _)| *rule == "ghost-memory").map(|(_, severity)| *severity).min()
    };
    assert_eq!((fired(120.0, true), fired(300.0, true)), (Some("crit"), Some("crit")));
    assert_eq!(fired(120.0, false), Some("crit"), "it spins");
    assert_eq!(fired(300.0, false), Some("info"), "under WSL the driver lists no process");
}

#[test]
fn memory_that_an_ended_job_left_behind_warns() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(900.0, |tester, _| TestSample {
        gpus: vec![used(tester, 97, 40)],
        processes: vec![process(7, "python train.py", &[(0, 40)])],
    });
    tester.run(400.0, |tester, _| TestSample { gpus: vec![used(tester, 0, 38)], processes: vec![] });
    assert!(tester.firing().contains(&("ghost-memory", "warn")), "{:?}", tester.firing());
}

#[test]
fn memory_of_one_ended_rank_warns_although_its_job_goes_on() {
    let mut tester = RuleTester::new(gpus(0..2));
    let ranks =
        |count: usize| [(7, 0), (8, 1)].map(|(pid, gpu)| process(pid, "mpirun x", &[(gpu, 40)]))[..count].to_vec();
    tester.run(900.0, |tester, _| TestSample {
        gpus: vec![used(tester, 97, 40), used(tester, 97, 40)],
        processes: ranks(2),
    });
    tester.run(400.0, |tester, _| TestSample {
        gpus: vec![used(tester, 97, 40), used(tester, 0, 38)],
        processes: ranks(1),
    });
    assert!(tester.firing().contains(&("ghost-memory", "warn")), "{:?}", tester.firing());
}

#[test]
fn ranks_that_lost_their_launcher_and_spin_are_orphans_although_their_memory_reads_as_in_use() {
    let mut tester = RuleTester::new(gpus(0..1));
    let sample = |tester: &mut RuleTester, watts: f32, parent: u32, name: &str| {
        let mut rank = worker(7, parent, name);
        rank.facts.argv = ["python", "finetune.py"].map(Into::into).to_vec();
        rank.reading.cpu_percent = Some(100.0);
        TestSample { gpus: vec![tester.gpu(100, watts, 35, 40)], processes: vec![rank] }
    };
    tester.run(600.0, |tester, _| sample(tester, 560.0, 6, "torchrun"));
    tester.run(700.0, |tester, _| sample(tester, 560.0, 1, "systemd"));
    assert_eq!(tester.fired(), [], "it computes");
    tester.run(700.0, |tester, _| sample(tester, 130.0, 1, "systemd"));
    assert!(tester.firing().contains(&("orphan-holding-gpu", "warn")), "{:?}", tester.firing());
}

#[test]
fn a_rank_that_loses_its_step_of_slurm_is_an_orphan() {
    let is_orphan = |parent: &str| {
        let mut tester = RuleTester::new(gpus(0..1));
        let sample = |tester: &mut RuleTester, pid: u32, name: &str, watts: f32| {
            let mut rank = worker(7, pid, name);
            rank.facts.argv = ["python", "train.py"].map(Into::into).to_vec();
            rank.reading.cpu_percent = Some(100.0);
            TestSample { gpus: vec![tester.gpu(100, watts, 0, 40)], processes: vec![rank] }
        };
        tester.run(600.0, |tester, _| sample(tester, 6, parent, 560.0));
        tester.run(700.0, |tester, _| sample(tester, 1, "systemd", 110.0));
        tester.fired().contains(&("orphan-holding-gpu", "warn"))
    };
    assert!(is_orphan("slurmstepd"));
    assert!(!is_orphan("bash"));
}

#[test]
fn a_blocked_process_that_writes_waits_for_slow_storage() {
    let mut tester = RuleTester::new(gpus(0..1));
    let mut written = 0;
    tester.run(400.0, |tester, _| {
        written += 50 << 20;
        let mut saves = holder(ProcessState::DiskSleep);
        saves.reading.write_bytes = Some(written);
        idles(tester, vec![saves])
    });
    assert_eq!(tester.firing(), [("dstate-hang", "info")]);
}

#[test]
fn a_blocked_process_that_fills_its_gpu_loads_a_model_from_slow_storage() {
    let mut tester = RuleTester::new(gpus(0..1));
    let mut bytes = 1 << 30;
    tester.run(400.0, |tester, _| {
        bytes += 200 << 20;
        let mut loads = holder(ProcessState::DiskSleep);
        loads.gpus[0].gpu_memory_bytes = Some(bytes);
        idles(tester, vec![loads])
    });
    assert_eq!(tester.firing(), [("dstate-hang", "info")]);
}

#[test]
fn ranks_that_left_their_job_of_slurm_are_orphans_although_they_compute() {
    let finding = |allocated: &'static [u32], has_next: bool| {
        let mut tester = RuleTester::new(gpus(0..1));
        let sample = |tester: &mut RuleTester, parent: u32, name: &str, has_next: bool| {
            let mut rank = worker(7, parent, name);
            rank.facts.argv = ["python", "train.py"].map(Into::into).to_vec();
            rank.reading.cpu_percent = Some(100.0);
            let mut next = process(8, "python finetune.py", &[(0, 10)]);
            (next.facts.start_ticks, next.reading.start_ticks) = (Some(9_000_000), Some(9_000_000));
            next.facts.owner = Some(Owner::Slurm { job: "99".into(), step: None });
            let mut processes = vec![rank];
            processes.extend(has_next.then_some(next));
            TestSample { gpus: vec![tester.gpu(97, 400.0, 35, 40)], processes }
        };
        let allocated_at_first = |snapshot: &mut Snapshot, _: f64| snapshot.host.slurm_allocated_gpus = Some(vec![0]);
        tester.run_edited(600.0, |tester, _| sample(tester, 6, "python", false), allocated_at_first);
        tester.run_edited(
            700.0,
            |tester, _| sample(tester, 1, "systemd", has_next),
            |snapshot, _| snapshot.host.slurm_allocated_gpus = Some(allocated.to_vec()),
        );
        let fires = tester.firing().contains(&("orphan-holding-gpu", "warn"));
        fires.then(|| tester.finding("orphan-holding-gpu").sentence.to_string())
    };
    let sentence = finding(&[], false).expect("an orphan");
    assert!(
        sentence.contains(" lost its parent, computes outside of its allocation of Slurm and holds "),
        "{sentence}"
    );
    assert!(finding(&[0], true).is_some(), "a later job has the GPU");
    assert_eq!(finding(&[0], false), None, "Slurm has not freed the GPU");
}

#[test]
fn workers_of_a_model_server_whose_front_end_is_gone_are_orphans() {
    let fires = |above: u32, name: &str| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(900.0, |tester, _| {
            let mut rank = worker(7, 6, "VLLM::EngineCor");
            rank.facts.name = Some("VLLM::Worker_TP".into());
            let above = Ancestor { pid: above, uid: Some(1000), name: name.into(), ..Ancestor::default() };
            rank.facts.ancestors.push(above);
            idles(tester, vec![rank])
        });
        tester.firing().contains(&("orphan-holding-gpu", "warn"))
    };
    assert!(fires(1, "systemd"));
    assert!(!fires(5, "vllm"), "the front end lives");
}

#[test]
fn memory_that_a_desktop_held_before_a_job_is_not_left_behind_by_it() {
    let severity = |before: u64| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(60.0, |tester, _| TestSample { gpus: vec![used(tester, 0, before)], processes: vec![] });
        tester.run(900.0, |tester, _| TestSample {
            gpus: vec![used(tester, 97, 40)],
            processes: vec![process(7, "python train.py", &[(0, 38)])],
        });
        tester.run(400.0, |tester, _| TestSample { gpus: vec![used(tester, 0, 2)], processes: vec![] });
        tester.firing().into_iter().find(|(rule, _)| *rule == "ghost-memory").map(|(_, severity)| severity)
    };
    assert_eq!((severity(2), severity(0)), (Some("info"), Some("warn")));
}

#[test]
fn a_blocked_process_that_goes_on_warns_where_tasks_wait_for_storage_most_of_the_time() {
    let run = |seconds: f64, pressure: f32| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 30.0;
        let mut written = 0;
        tester.run_edited(
            seconds,
            |tester, _| {
                written += 50 << 20;
                let mut saves = holder(ProcessState::DiskSleep);
                saves.reading.write_bytes = Some(written);
                idles(tester, vec![saves])
            },
            |snapshot, _| snapshot.host.pressure_io_percent = Some(pressure),
        );
        tester.firing().into_iter().find(|(rule, _)| *rule == "dstate-hang").map(|(_, severity)| severity)
    };
    assert_eq!((run(1700.0, 70.0), run(1300.0, 70.0)), (Some("warn"), Some("info")));
    assert_eq!(run(1700.0, 30.0), Some("info"));
}
