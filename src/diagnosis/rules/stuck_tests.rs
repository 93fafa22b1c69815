use crate::diagnosis::testing::{Lab, Shot};
use crate::diagnosis::{Confidence, Phase};
use crate::fleet::fixture::{TestProcess, gpus, process};
use crate::fleet::{GpuState, HostId};
use crate::wire::{Ancestor, GpuHealth, GpuHealthColumns, GpuReading, RecentPast};

/// One process a GPU, all below one torchrun.
fn ranks(count: u16, cores: f32) -> Vec<TestProcess> {
    (0..count)
        .map(|gpu| {
            let mut rank = process(4312 + u32::from(gpu), "python train.py", &[(gpu, 70)]);
            let torchrun =
                Ancestor { pid: 4300, start_ticks: 9, uid: Some(1000), name: "torchrun".into(), argv: vec![] };
            rank.facts.ancestors = vec![torchrun];
            rank.reading.cpu_percent = Some(cores * 100.0);
            rank
        })
        .collect()
}

fn healthy(lab: &mut Lab, count: u16) -> Shot {
    let gpus = (0..count).map(|_| lab.gpu(98, 560.0, 48, 70)).collect();
    Shot { gpus, processes: ranks(count, 1.4) }
}

fn hung(lab: &mut Lab, count: u16, watts: f32, cores: f32) -> Shot {
    let gpus = (0..count).map(|_| lab.gpu(100, watts, 0, 70)).collect();
    Shot { gpus, processes: ranks(count, cores) }
}

fn after_healthy_work(count: u16) -> Lab {
    let mut lab = Lab::new(gpus(0..u32::from(count)));
    lab.play(1200.0, |lab, _| healthy(lab, count));
    assert_eq!(lab.fired(), []);
    lab
}

#[test]
fn a_hang_after_healthy_work_warns_at_five_and_is_critical_at_ten_minutes() {
    let mut lab = after_healthy_work(8);
    lab.play(290.0, |lab, _| hung(lab, 8, 104.0, 1.0));
    assert_eq!(lab.firing(), []);
    let pending = lab.finding("stuck-spin");
    assert_eq!((pending.phase, pending.due.is_some()), (Phase::Pending, true));
    lab.play(20.0, |lab, _| hung(lab, 8, 104.0, 1.0));
    assert_eq!(lab.firing(), [("stuck-spin", "warn")]);
    assert_eq!(lab.engine.states(HostId(0))[0].0, GpuState::Hung);
    lab.play(300.0, |lab, _| hung(lab, 8, 104.0, 1.0));
    assert_eq!(lab.firing(), [("stuck-spin", "crit")]);
    assert_eq!(lab.notified(), 2, "once for each severity");
    let finding = lab.finding("stuck-spin");
    let sentence = finding.sentence.to_string();
    assert!(
        sentence.starts_with("GPUs 0-7 say 100 % busy for 10 min but draw 104 W of 700 W (was 5")
            && sentence.ends_with(" W) and move no memory: train.py (alice, pid 4312 and 7 more) looks hung"),
        "{sentence}"
    );
    assert_eq!(finding.next_check, "py-spy dump --pid 4312");
    assert_eq!((finding.gpus.len(), finding.processes.len(), finding.is_mine), (8, 8, true));
}

#[test]
fn other_models_and_threads_that_sleep_are_judged_alike() {
    for (limit, healthy_watts, spin_watts, cores) in
        [(700.0, 560.0, 152.0, 1.0), (250.0, 200.0, 44.0, 1.0), (300.0, 240.0, 69.0, 0.0), (700.0, 560.0, 104.0, 0.0)]
    {
        let mut infos = gpus(0..2);
        for info in &mut infos {
            info.power_limit_watts = Some(limit);
        }
        let mut lab = Lab::new(infos);
        lab.play(1200.0, |lab, _| Shot {
            gpus: (0..2).map(|_| lab.gpu(98, healthy_watts, 40, 70)).collect(),
            processes: ranks(2, 1.4),
        });
        lab.play(620.0, |lab, _| hung(lab, 2, spin_watts, cores));
        assert_eq!(lab.firing(), [("stuck-spin", "crit")], "{spin_watts} of {limit} W");
    }
}

#[test]
fn a_hang_that_was_never_seen_healthy_is_only_suspected() {
    let mut lab = Lab::new(gpus(0..2));
    lab.play(1800.0, |lab, _| hung(lab, 2, 104.0, 1.0));
    assert_eq!(lab.fired(), [("stuck-spin-suspect", "warn")]);
    assert_eq!(lab.finding("stuck-spin-suspect").confidence, Confidence::Likely, "two GPUs are flat together");
}

#[test]
fn what_the_driver_remembers_counts_from_the_first_sample() {
    let mut lab = Lab::new(gpus(0..1));
    let shot = hung(&mut lab, 1, 104.0, 1.0);
    let past = RecentPast {
        gpu: 0,
        end_monotonic_seconds: 999.0,
        utilization_percent: vec![Some(100); 90],
        memory_utilization_percent: vec![Some(0); 90],
        power_watts: vec![Some(104.0); 90],
    };
    lab.send(0, &shot, |snapshot| snapshot.recent_past = vec![past]);
    assert!(lab.engine.is_low_power(HostId(0), 0));
    let finding = lab.finding("stuck-spin-suspect");
    assert!((90.0..95.0).contains(&finding.lasted(lab.now()).as_secs_f64()), "{:?}", finding.lasted(lab.now()));
}

#[test]
fn checkpoints_and_evaluations_are_no_hang() {
    let mut lab = Lab::new(gpus(0..8));
    // A checkpoint of 40 s every 4 min, and one of 2 min every 15.
    lab.play(
        7200.0,
        |lab, t| {
            if t % 240.0 < 40.0 || t % 900.0 < 120.0 { hung(lab, 8, 130.0, 1.0) } else { healthy(lab, 8) }
        },
    );
    assert_eq!(lab.fired(), []);
}

#[test]
fn a_barrier_while_one_rank_writes_is_never_critical() {
    let mut lab = after_healthy_work(8);
    lab.play(540.0, |lab, t| {
        let mut shot = hung(lab, 8, 120.0, 1.0);
        shot.gpus[0] = lab.gpu(0, 122.0, 0, 70);
        shot.processes[0].reading.cpu_percent = Some(240.0);
        shot.processes[0].reading.write_bytes = Some((t * 5e8) as u64);
        shot
    });
    assert_eq!(lab.fired(), [], "nine minutes");
    lab.play(300.0, |lab, t| {
        let mut shot = hung(lab, 8, 120.0, 1.0);
        shot.gpus[0] = lab.gpu(0, 122.0, 0, 70);
        shot.processes[0].reading.cpu_percent = Some(240.0);
        shot.processes[0].reading.write_bytes = Some(((540.0 + t) * 5e8) as u64);
        shot
    });
    assert!(lab.fired().iter().all(|(_, severity)| *severity == "warn"), "{:?}", lab.fired());
    lab.play(120.0, |lab, _| healthy(lab, 8));
    assert_eq!(lab.firing(), []);
}

#[test]
fn the_rank_that_never_arrived_is_named() {
    let mut lab = after_healthy_work(4);
    lab.play(320.0, |lab, _| {
        let mut shot = hung(lab, 4, 152.0, 1.0);
        for gpu in 1..4 {
            shot.gpus[gpu] = lab.gpu(0, 130.0, 0, 70);
        }
        shot
    });
    assert_eq!(lab.firing(), [("missing-rank", "warn")], "and stuck-spin is not told beside it");
    let finding = lab.finding("missing-rank");
    assert!(
        finding.sentence.starts_with("the rank on GPUs 1-3 on hgx-00 never arrived: at rest for 5 min with up to 70 GiB held, while GPU 0 waits at 15"),
        "{}",
        finding.sentence
    );
    assert_eq!(finding.next_check, "py-spy dump --pid 4313");
}

#[test]
fn work_near_the_spin_power_is_not_a_hang() {
    // Bound by communication: the power swings, and it was no higher before.
    let mut lab = Lab::new(gpus(0..8));
    lab.play(3600.0, |lab, t| {
        let watts = if ((t / 10.0) as u32).is_multiple_of(3) { 150.0 } else { 480.0 };
        Shot { gpus: (0..8).map(|_| lab.gpu(100, watts, 12, 70)).collect(), processes: ranks(8, 1.4) }
    });
    // Decoding one sequence: little power, but memory is read.
    lab.play(3600.0, |lab, _| Shot {
        gpus: (0..8).map(|_| lab.gpu(97, 190.0, 38, 70)).collect(),
        processes: ranks(8, 1.4),
    });
    assert!(!lab.fired().iter().any(|(rule, _)| rule.starts_with("stuck")), "{:?}", lab.fired());
}

#[test]
fn launch_bound_work_is_never_more_than_suspected() {
    let mut infos = gpus(0..1);
    infos[0].power_limit_watts = Some(140.0);
    let mut lab = Lab::new(infos);
    lab.play(7200.0, |lab, _| {
        let steady = GpuReading { power_watts: Some(16.0 + lab.noise(0.3)), ..lab.gpu(96, 16.0, 1, 4) };
        Shot { gpus: vec![steady], processes: ranks(1, 1.0) }
    });
    assert_eq!(lab.fired(), [("stuck-spin-suspect", "warn")]);
    assert_eq!(lab.finding("stuck-spin-suspect").confidence, Confidence::Suspected);
}

#[test]
fn power_smoothing_switches_the_rule_off_and_says_so() {
    let mut lab = Lab::new(gpus(0..2));
    let smooth = |snapshot: &mut crate::wire::Snapshot, _: f64| {
        let health = GpuHealth { power_smoothing: Some(true), ..GpuHealth::default() };
        snapshot.health = GpuHealthColumns::from_rows(&[health.clone(), health]);
    };
    lab.play_edited(1200.0, |lab, _| healthy(lab, 2), smooth);
    lab.play_edited(1800.0, |lab, _| hung(lab, 2, 190.0, 1.0), smooth);
    assert_eq!(lab.fired(), []);
    let said: Vec<String> = lab.engine.not_judged().iter().map(ToString::to_string).collect();
    assert_eq!(said, ["2 GPUs with power smoothing: rules about power are off"]);
}

#[test]
fn a_gap_holds_the_state_and_one_notification_stays_one() {
    let mut lab = after_healthy_work(8);
    lab.play(330.0, |lab, _| hung(lab, 8, 104.0, 1.0));
    assert_eq!(lab.firing(), [("stuck-spin", "warn")]);
    lab.pass(180.0);
    assert_eq!(lab.firing(), [("stuck-spin", "warn")]);
    lab.play(100.0, |lab, _| hung(lab, 8, 104.0, 1.0));
    assert_eq!(lab.notified(), 1);
    lab.play(400.0, |lab, _| healthy(lab, 8));
    assert_eq!(lab.firing(), []);
}

#[test]
fn dropped_samples_change_nothing() {
    let mut lab = after_healthy_work(8);
    let mut sample = 0;
    let begin = lab.t;
    while lab.t < begin + 330.0 {
        sample += 1;
        if sample % 10 != 3 {
            let shot = hung(&mut lab, 8, 104.0, 1.0);
            lab.send(0, &shot, |_| {});
        }
        lab.pass(10.0);
    }
    assert_eq!(lab.firing(), [("stuck-spin", "warn")]);
}

#[test]
fn missing_readings_neither_fire_nor_clear() {
    let mut lab = after_healthy_work(2);
    lab.play(330.0, |lab, _| hung(lab, 2, 104.0, 1.0));
    let blind = GpuReading { blocked_seconds: Some(1.0), ..GpuReading::default() };
    lab.play(120.0, |_, _| Shot { gpus: vec![blind.clone(), blind.clone()], processes: ranks(2, 1.0) });
    assert_eq!(lab.firing(), [("stuck-spin", "warn")]);
}

#[test]
fn a_gpu_that_changes_its_index_keeps_its_finding() {
    let mut lab = after_healthy_work(1);
    lab.play(330.0, |lab, _| hung(lab, 1, 104.0, 1.0));
    let mut moved = gpus([0]);
    moved[0].index = 5;
    lab.inventory(0, moved);
    lab.play(60.0, |lab, _| hung(lab, 1, 104.0, 1.0));
    assert_eq!(lab.firing(), [("stuck-spin", "warn")]);
    assert_eq!(lab.notified(), 1);
    assert!(lab.finding("stuck-spin").sentence.starts_with("GPU 5 says"));
}
