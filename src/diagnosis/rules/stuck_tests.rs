use crate::config::Thresholds;
use crate::diagnosis::testing::{
    RuleTester, TestSample, after_healthy_work, fill_memory, healthy, hung, logging, ranks,
};
use crate::diagnosis::{Confidence, FindingPhase, Severity};
use crate::fleet::fixture::{TestProcess, gpus, process};
use crate::fleet::{GpuState, HostId};
use crate::wire::{Ancestor, GpuHealth, GpuHealthColumns, GpuReading, RecentPast, SafeText};

#[test]
fn a_hang_after_healthy_work_warns_at_five_and_is_critical_at_ten_minutes() {
    let mut tester = after_healthy_work(8);
    tester.run(290.0, |tester, _| hung(tester, 8, 104.0, 1.0));
    assert_eq!(tester.firing(), []);
    let pending = tester.finding("stuck-spin");
    assert_eq!((pending.phase, pending.due.is_some()), (FindingPhase::Pending, true));
    tester.run(20.0, |tester, _| hung(tester, 8, 104.0, 1.0));
    assert_eq!(tester.firing(), [("stuck-spin", "warn")]);
    assert_eq!(tester.engine.states(HostId(0))[0].0, GpuState::Hung);
    tester.run(300.0, |tester, _| hung(tester, 8, 104.0, 1.0));
    assert_eq!(tester.firing(), [("stuck-spin", "crit")]);
    assert_eq!(tester.notified(), 2, "once for each severity");
    let finding = tester.finding("stuck-spin");
    let sentence = finding.sentence.to_string();
    assert!(
        sentence.starts_with("GPUs 0-7 read 100 % busy for 10 min but draw 104 W of 700 W (was 5")
            && sentence.ends_with(" W) and access no memory: train.py (alice, pid 4312 and 7 more) looks hung"),
        "{sentence}"
    );
    assert_eq!(finding.next_check, "gpufleet why hgx-00:4312");
    assert_eq!((finding.gpus.len(), finding.processes.len(), finding.is_mine), (8, 8, true));
}

#[test]
fn gpu_model_and_cpu_usage_do_not_matter() {
    for (limit, healthy_watts, spin_watts, cores) in
        [(700.0, 560.0, 152.0, 1.0), (250.0, 200.0, 44.0, 1.0), (300.0, 240.0, 69.0, 0.0), (700.0, 560.0, 104.0, 0.0)]
    {
        let mut infos = gpus(0..2);
        for info in &mut infos {
            info.power_limit_watts = Some(limit);
        }
        let mut tester = RuleTester::new(infos);
        tester.run(1200.0, |tester, _| TestSample {
            gpus: (0..2).map(|_| tester.gpu(98, healthy_watts, 40, 70)).collect(),
            processes: ranks(2, 1.4),
        });
        tester.run(620.0, |tester, _| hung(tester, 2, spin_watts, cores));
        assert_eq!(tester.firing(), [("stuck-spin", "crit")], "{spin_watts} of {limit} W");
    }
}

#[test]
fn a_hang_without_observed_healthy_work_is_a_suspect() {
    let mut tester = RuleTester::new(gpus(0..2));
    tester.run(900.0, |tester, _| hung(tester, 2, 104.0, 1.0));
    assert_eq!(tester.fired(), [("stuck-spin-suspect", "warn")]);
    assert_eq!(tester.finding("stuck-spin-suspect").confidence, Confidence::Likely, "two GPUs are flat together");
    assert_eq!(tester.engine.severity_of_state(HostId(0), 0), Some(Severity::Warn));
    tester.run(950.0, |tester, _| hung(tester, 2, 104.0, 1.0));
    assert_eq!(tester.firing(), [("stuck-spin-suspect", "crit")], "a hang of half an hour");
    assert_eq!(tester.engine.severity_of_state(HostId(0), 0), Some(Severity::Crit));
}

#[test]
fn the_history_of_the_driver_counts() {
    let mut tester = RuleTester::new(gpus(0..1));
    let test_sample = hung(&mut tester, 1, 104.0, 1.0);
    let past = RecentPast {
        gpu: 0,
        end_monotonic_seconds: 999.0,
        utilization_percent: vec![Some(100); 90],
        memory_utilization_percent: vec![Some(0); 90],
        power_watts: vec![Some(104.0); 90],
    };
    tester.send(0, &test_sample, |snapshot| snapshot.recent_past = vec![past]);
    assert!(tester.engine.is_low_power(HostId(0), 0));
    let finding = tester.finding("stuck-spin-suspect");
    assert!((90.0..95.0).contains(&finding.lasted(tester.now()).as_secs_f64()), "{:?}", finding.lasted(tester.now()));
}

#[test]
fn checkpoints_and_evaluations_are_not_hangs() {
    let mut tester = RuleTester::new(gpus(0..8));
    // A checkpoint of 40 s every 4 min, and one of 2 min every 15.
    tester.run(7200.0, |tester, t| {
        if t % 240.0 < 40.0 || t % 900.0 < 120.0 { hung(tester, 8, 130.0, 1.0) } else { healthy(tester, 8) }
    });
    assert_eq!(tester.fired(), []);
}

#[test]
fn a_barrier_while_one_rank_writes_notifies_nobody() {
    let mut tester = after_healthy_work(8);
    tester.run(540.0, |tester, t| {
        let mut test_sample = hung(tester, 8, 120.0, 1.0);
        test_sample.gpus[0] = tester.gpu(0, 122.0, 0, 70);
        test_sample.processes[0].reading.cpu_percent = Some(240.0);
        test_sample.processes[0].reading.write_bytes = Some((t * 5e8) as u64);
        test_sample
    });
    assert_eq!(tester.fired(), [], "nine minutes");
    tester.run(300.0, |tester, t| {
        let mut test_sample = hung(tester, 8, 120.0, 1.0);
        test_sample.gpus[0] = tester.gpu(0, 122.0, 0, 70);
        test_sample.processes[0].reading.cpu_percent = Some(240.0);
        test_sample.processes[0].reading.write_bytes = Some(((540.0 + t) * 5e8) as u64);
        test_sample
    });
    assert_eq!(tester.fired(), [("stuck-spin", "info")]);
    let sentence = tester.finding("stuck-spin").sentence.to_string();
    assert!(sentence.ends_with("may be waiting for a rank that is working on the host"), "{sentence}");
    tester.run(120.0, |tester, _| healthy(tester, 8));
    assert_eq!(tester.firing(), []);
}

#[test]
fn a_missing_rank_is_named() {
    let mut tester = after_healthy_work(4);
    tester.run(320.0, |tester, _| {
        let mut test_sample = hung(tester, 4, 152.0, 1.0);
        for gpu in 1..4 {
            test_sample.gpus[gpu] = tester.gpu(0, 130.0, 0, 70);
            test_sample.processes[gpu].reading.cpu_percent = Some(1.0);
        }
        test_sample
    });
    assert_eq!(tester.firing(), [("missing-rank", "warn")], "stuck-spin is inhibited");
    let finding = tester.finding("missing-rank");
    assert!(
        finding.sentence.starts_with("the ranks on GPUs 1-3 on hgx-00 never arrived: idle for 5 min while holding up to 70 GiB, and GPU 0 waits at 15"),
        "{}",
        finding.sentence
    );
    assert_eq!(finding.next_check, "gpufleet why hgx-00:4313");
}

#[test]
fn a_resting_rank_0_gets_ten_minutes() {
    let run = |gpu: usize| {
        let mut tester = after_healthy_work(4);
        let rests = |tester: &mut RuleTester, _: f64| {
            let mut test_sample = hung(tester, 4, 152.0, 1.0);
            test_sample.gpus[gpu] = tester.gpu(0, 130.0, 0, 70);
            test_sample.processes[gpu].reading.cpu_percent = Some(0.0);
            test_sample
        };
        tester.run(580.0, rests);
        let at_first = tester.firing();
        tester.run(100.0, rests);
        (at_first, tester.firing())
    };
    assert_eq!(run(0), (vec![], vec![("missing-rank", "warn")]), "it may save or upload");
    assert_eq!(run(1).0, [("missing-rank", "warn")]);
}

/// Rank 0 saves: it uses less than one core and writes nothing that the probe sees, but its GPU is used now and then.
fn saves(tester: &mut RuleTester, t: f64) -> TestSample {
    let mut test_sample = hung(tester, 2, 105.0, 1.0);
    test_sample.gpus[0] = tester.gpu(if t % 190.0 < 10.0 { 4 } else { 0 }, 100.0, 0, 70);
    test_sample.processes[0].reading.cpu_percent = Some(90.0);
    test_sample
}

#[test]
fn ranks_that_wait_for_a_saving_rank_are_not_hung() {
    let mut tester = after_healthy_work(2);
    tester.run(900.0, saves);
    assert!(tester.fired().iter().all(|(_, severity)| *severity == "info"), "{:?}", tester.fired());
    tester.run(600.0, |tester, _| healthy(tester, 2));
    // The second wait is as long as the first one.
    tester.run(850.0, |tester, _| {
        let mut test_sample = hung(tester, 2, 105.0, 1.0);
        test_sample.gpus[0] = tester.gpu(0, 100.0, 0, 70);
        test_sample.processes[0].reading.cpu_percent = Some(1.0);
        test_sample
    });
    assert!(tester.fired().iter().all(|(_, severity)| *severity == "info"), "{:?}", tester.fired());
    tester.run(900.0, |tester, _| {
        let mut test_sample = hung(tester, 2, 105.0, 1.0);
        test_sample.gpus[0] = tester.gpu(0, 100.0, 0, 70);
        test_sample.processes[0].reading.cpu_percent = Some(1.0);
        test_sample
    });
    assert_eq!(tester.firing(), [("missing-rank", "warn")], "much longer than before");
}

#[test]
fn a_rank_that_uses_one_core_is_believed_for_22_minutes_and_longer_while_its_log_grows() {
    let severities = |logs: bool, seconds: f64| {
        let mut tester = RuleTester::new(gpus(0..2));
        let log = |t: f64, test_sample: TestSample| {
            if logs { logging(t, test_sample, None) } else { test_sample }
        };
        tester.run(1200.0, |tester, t| {
            let test_sample = healthy(tester, 2);
            log(t, test_sample)
        });
        tester.run(seconds, |tester, t| {
            let mut test_sample = hung(tester, 2, 105.0, 1.0);
            test_sample.gpus[0] = tester.gpu(0, 100.0, 0, 70);
            log(t, test_sample)
        });
        tester.fired().into_iter().map(|(_, severity)| severity).collect::<Vec<_>>()
    };
    let notifies = |severities: Vec<&str>| severities.iter().any(|severity| *severity != "info");
    assert!(!notifies(severities(false, 1270.0)));
    assert!(notifies(severities(false, 1500.0)));
    assert!(!notifies(severities(true, 2600.0)), "an evaluation that logs");
    assert!(notifies(severities(true, 3000.0)));
}

#[test]
fn a_rank_on_one_core_that_fills_the_memory_of_the_host_is_believed_for_45_minutes() {
    let notifies = |gb_a_minute: f64, seconds: f64| {
        let mut tester = RuleTester::new(gpus(0..2));
        tester.run(1200.0, |tester, _| healthy(tester, 2));
        tester.run_edited(
            seconds,
            |tester, _| {
                let mut test_sample = hung(tester, 2, 105.0, 1.0);
                test_sample.gpus[0] = tester.gpu(0, 100.0, 0, 70);
                test_sample
            },
            |snapshot, passed| fill_memory(snapshot, passed, gb_a_minute),
        );
        tester.fired().iter().any(|(_, severity)| *severity != "info")
    };
    assert!(notifies(0.0, 1500.0));
    assert!(!notifies(4.0, 2600.0), "it collects results");
    assert!(notifies(4.0, 3000.0));
}

#[test]
fn a_job_that_begins_on_gpus_that_spin_already_is_not_hung() {
    let mut tester = RuleTester::new(gpus(0..2));
    tester.run(1200.0, |tester, _| healthy(tester, 2));
    tester.run(600.0, |tester, _| hung(tester, 2, 105.0, 1.0));
    tester.run_edited(
        1800.0,
        |tester, _| {
            let mut test_sample = hung(tester, 2, 105.0, 1.0);
            let next = (70..72).zip(0..2).map(|(pid, gpu)| process(pid, "python next.py", &[(gpu, 5)]));
            test_sample.processes.extend(next);
            test_sample
        },
        |snapshot, passed| {
            let age = |pid: &Option<u32>| Some(if *pid >= Some(70) { passed } else { 9000.0 });
            snapshot.processes.age_seconds = snapshot.processes.pid.iter().map(age).collect();
        },
    );
    let fired = tester.fired();
    assert!(fired.iter().any(|(rule, _)| *rule == "stuck-spin"), "{fired:?}");
    assert!(!fired.iter().any(|(rule, _)| *rule == "stuck-spin-suspect"), "{fired:?}");
}

#[test]
fn a_rank_that_uses_more_than_a_waiting_loop_is_believed_for_45_minutes() {
    let notifies = |cores: f32, seconds: f64| {
        let mut tester = RuleTester::new(gpus(0..2));
        tester.run(1200.0, |tester, _| healthy(tester, 2));
        tester.run(seconds, |tester, _| {
            let mut test_sample = hung(tester, 2, 105.0, 1.0);
            test_sample.gpus[0] = tester.gpu(0, 100.0, 0, 70);
            test_sample.processes[0].reading.cpu_percent = Some(cores * 100.0);
            test_sample
        });
        tester.fired().iter().any(|(_, severity)| *severity != "info")
    };
    assert!(notifies(1.0, 1500.0), "it may wait in a loop");
    assert!(!notifies(1.2, 2600.0), "it evaluates on the CPU");
    assert!(notifies(1.2, 3000.0));
}

#[test]
fn the_start_of_a_server_on_one_gpu_that_spins_with_a_silent_log_hangs() {
    let fired = |stops: bool| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(180.0, |tester, t| {
            let test_sample = serves(tester, &[(0, 70.0, 0)]);
            logging(t, test_sample, None)
        });
        tester.run(2700.0, |tester, t| {
            let test_sample = serves(tester, &[(100, 118.0, 0)]);
            logging(180.0 + t, test_sample, stops.then_some(180.0))
        });
        tester.fired()
    };
    assert!(fired(true).contains(&("stuck-spin-suspect", "warn")), "{:?}", fired(true));
    assert!(!fired(false).iter().any(|(_, severity)| *severity != "info"), "it logs");
}

#[test]
fn the_ranks_of_a_server_are_at_most_a_suspect() {
    let mut tester = RuleTester::new(gpus(0..4));
    let server = |mut test_sample: TestSample| {
        for process in &mut test_sample.processes {
            process.facts.argv = ["python", "-m", "vllm.entrypoints.openai.api_server"].map(Into::into).to_vec();
        }
        test_sample
    };
    tester.run(1200.0, |tester, _| server(healthy(tester, 4)));
    tester.run(1800.0, |tester, _| {
        let mut test_sample = server(hung(tester, 4, 66.0, 1.0));
        test_sample.gpus[0] = tester.gpu(0, 60.0, 0, 70);
        test_sample
    });
    assert!(tester.fired().iter().all(|(_, severity)| *severity == "info"), "{:?}", tester.fired());
}

#[test]
fn one_bounce_does_not_hold_a_hang_while_the_job_works() {
    let mut tester = after_healthy_work(2);
    for _ in 0..3 {
        tester.run(320.0, |tester, _| hung(tester, 2, 104.0, 1.0));
        tester.run(70.0, |tester, _| healthy(tester, 2));
    }
    tester.run(120.0, |tester, _| healthy(tester, 2));
    assert_eq!(tester.firing(), []);
}

#[test]
fn a_job_keeps_its_history_when_its_launcher_dies() {
    let mut tester = after_healthy_work(2);
    tester.run(330.0, |tester, _| {
        let mut test_sample = hung(tester, 2, 104.0, 1.0);
        for process in &mut test_sample.processes {
            process.facts.ancestors = vec![Ancestor { pid: 1, name: "systemd".into(), ..Ancestor::default() }];
        }
        test_sample
    });
    let fired = tester.firing();
    assert!(fired.iter().all(|finding| *finding == ("stuck-spin", "warn")) && !fired.is_empty(), "{fired:?}");
}

#[test]
fn power_smoothing_disables_the_rule_and_is_listed() {
    let mut tester = RuleTester::new(gpus(0..2));
    let smooth = |snapshot: &mut crate::wire::Snapshot, _: f64| {
        let health = GpuHealth { power_smoothing: Some(true), ..GpuHealth::default() };
        snapshot.health = GpuHealthColumns::from_rows(&[health.clone(), health]);
    };
    tester.run_edited(1200.0, |tester, _| healthy(tester, 2), smooth);
    tester.run_edited(1800.0, |tester, _| hung(tester, 2, 190.0, 1.0), smooth);
    assert_eq!(tester.fired(), []);
    let listed: Vec<String> = tester.engine.not_judged().iter().map(ToString::to_string).collect();
    assert_eq!(listed, ["2 GPUs with power smoothing (power rules do not apply)"]);
}

#[test]
fn a_gap_holds_the_finding_without_another_notification() {
    let mut tester = after_healthy_work(8);
    tester.run(330.0, |tester, _| hung(tester, 8, 104.0, 1.0));
    assert_eq!(tester.firing(), [("stuck-spin", "warn")]);
    tester.wait(180.0);
    assert_eq!(tester.firing(), [("stuck-spin", "warn")]);
    tester.run(100.0, |tester, _| hung(tester, 8, 104.0, 1.0));
    assert_eq!(tester.notified(), 1);
    tester.run(400.0, |tester, _| healthy(tester, 8));
    assert_eq!(tester.firing(), []);
}

/// A laptop that slept sees a low power first: the job had been busy at one level for hours, and was not observed in between.
#[test]
fn one_step_at_low_power_after_a_gap_is_no_hang() {
    for gap in [600.0, 5000.0] {
        let mut tester = after_healthy_work(2);
        tester.run(1800.0, |tester, t| match (t / 10.0) as u32 % 2 {
            0 => TestSample {
                gpus: vec![tester.gpu(99, 550.0, 45, 60), tester.gpu(99, 550.0, 45, 60)],
                processes: ranks(2, 1.0),
            },
            _ => hung(tester, 2, 150.0, 1.0),
        });
        tester.wait(gap);
        tester.run(25.0, |tester, _| hung(tester, 2, 150.0, 1.0));
        assert_eq!(tester.fired(), [], "{gap} s");
    }
}

#[test]
fn dropped_samples_do_not_delay_a_finding() {
    let mut tester = after_healthy_work(8);
    let mut sample = 0;
    let begin = tester.t;
    while tester.t < begin + 330.0 {
        sample += 1;
        if sample % 10 != 3 {
            let test_sample = hung(&mut tester, 8, 104.0, 1.0);
            tester.send(0, &test_sample, |_| {});
        }
        tester.wait(10.0);
    }
    assert_eq!(tester.firing(), [("stuck-spin", "warn")]);
}

#[test]
fn missing_readings_neither_fire_nor_clear() {
    let mut tester = after_healthy_work(2);
    tester.run(330.0, |tester, _| hung(tester, 2, 104.0, 1.0));
    let blind = GpuReading { blocked_seconds: Some(1.0), ..GpuReading::default() };
    tester.run(120.0, |_, _| TestSample { gpus: vec![blind.clone(), blind.clone()], processes: ranks(2, 1.0) });
    assert_eq!(tester.firing(), [("stuck-spin", "warn")]);
}

#[test]
fn a_gpu_that_changes_its_index_keeps_its_finding() {
    let mut tester = after_healthy_work(1);
    tester.run(640.0, |tester, _| hung(tester, 1, 104.0, 1.0));
    assert_eq!(tester.firing(), [], "one GPU alone may do other work for ten minutes");
    let mut moved = gpus([0]);
    moved[0].index = 5;
    tester.inventory(0, moved);
    tester.run(60.0, |tester, _| hung(tester, 1, 104.0, 1.0));
    assert_eq!(tester.firing(), [("stuck-spin", "warn")]);
    assert_eq!(tester.notified(), 1);
    assert!(tester.finding("stuck-spin").sentence.starts_with("GPU 5 reads"));
}

#[test]
fn a_growing_log_delays_the_warning() {
    let run = |grows: bool, seconds: f64| {
        let mut tester = RuleTester::new(gpus(0..2));
        tester.interval = 5.0;
        tester.run(1200.0, |tester, t| {
            let test_sample = healthy(tester, 2);
            logging(t, test_sample, None)
        });
        tester.run(seconds, |tester, t| {
            let test_sample = hung(tester, 2, 104.0, 1.0);
            logging(1200.0 + t, test_sample, (!grows).then_some(1200.0))
        });
        tester.firing()
    };
    assert_eq!(run(false, 320.0), [("stuck-spin", "warn")]);
    assert_eq!(run(true, 1100.0), [], "its work may go on");
    assert_eq!(run(true, 1300.0), [("stuck-spin", "warn")], "some jobs write heartbeats while they hang");
}

#[test]
fn a_job_that_logs_at_low_power_from_the_start_is_info() {
    let mut tester = RuleTester::new(gpus(0..2));
    tester.interval = 5.0;
    tester.run(3600.0, |tester, t| {
        let test_sample = hung(tester, 2, 104.0, 1.0);
        logging(t, test_sample, None)
    });
    assert!(tester.fired().iter().all(|(_, severity)| *severity == "info"), "{:?}", tester.fired());
}

fn serves(tester: &mut RuleTester, states: &[(u8, f32, u8)]) -> TestSample {
    let mut processes = ranks(states.len() as u16, 1.0);
    for process in &mut processes {
        process.facts.argv = ["trtllm-serve", "llama"].map(Into::into).to_vec();
    }
    let gpus = states.iter().map(|(utilization, watts, memory)| tester.gpu(*utilization, *watts, *memory, 70));
    TestSample { gpus: gpus.collect(), processes }
}

#[test]
fn a_server_whose_ranks_all_spin_hangs_and_one_with_a_resting_rank_waits() {
    const RESTS: (u8, f32, u8) = (0, 100.0, 0);
    const SPINS: (u8, f32, u8) = (100, 115.0, 0);
    let run = |before: [(u8, f32, u8); 4], after: [(u8, f32, u8); 4]| {
        let mut tester = RuleTester::new(gpus(0..4));
        tester.run(1800.0, |tester, _| serves(tester, &before));
        tester.run(1200.0, |tester, _| serves(tester, &after));
        tester.fired()
    };
    assert_eq!(run([RESTS; 4], [SPINS; 4]), [("stuck-spin-suspect", "warn")]);
    let waits = run([(80, 500.0, 40); 4], [RESTS, SPINS, SPINS, SPINS]);
    assert!(waits.iter().all(|(_, severity)| *severity == "info"), "{waits:?}");
    let always = run([SPINS; 4], [SPINS; 4]);
    assert!(always.iter().all(|(_, severity)| *severity == "info"), "{always:?}");
}

#[test]
fn the_ranks_of_a_server_that_spin_before_they_have_loaded_a_model_hang() {
    let fired = |gib: u64| {
        let mut tester = RuleTester::new(gpus(0..2));
        tester.run(1800.0, |tester, _| {
            let mut sample = serves(tester, &[(100, 115.0, 0); 2]);
            for gpu in &mut sample.gpus {
                gpu.memory_used_bytes = Some(gib << 30);
            }
            for usage in sample.processes.iter_mut().flat_map(|process| &mut process.gpus) {
                usage.gpu_memory_bytes = Some(gib << 30);
            }
            sample
        });
        tester.fired().contains(&("stuck-spin-suspect", "warn"))
    };
    assert!(fired(1));
    assert!(!fired(60), "it may wait for requests");
}

#[test]
fn a_server_that_has_loaded_its_model_and_opens_no_port_hangs() {
    let fired = |port: Option<u16>, log_stops_at: f64| {
        let mut tester = RuleTester::new(gpus(0..2));
        tester.run(2700.0, |tester, passed| {
            let mut sample = serves(tester, &[(100, 115.0, 0); 2]);
            sample.processes[0].facts.listening_ports = port.into_iter().collect();
            let stopped_at = (passed >= log_stops_at).then_some(1000.0 + log_stops_at);
            logging(tester.t, sample, stopped_at)
        });
        tester.fired().contains(&("stuck-spin-suspect", "warn"))
    };
    assert!(fired(None, 300.0));
    assert!(!fired(Some(8000), 300.0), "it may wait for requests");
    assert!(!fired(None, 5000.0), "it still loads");
}

#[test]
fn ranks_that_hang_beside_a_lost_gpu_are_info() {
    let mut tester = after_healthy_work(4);
    tester.run(900.0, |tester, _| {
        let mut test_sample = hung(tester, 4, 104.0, 1.0);
        let error = crate::wire::DeviceError {
            kind: crate::wire::DriverErrorKind::GpuLost,
            code: Some(15),
            message: "".into(),
        };
        test_sample.gpus[3] = GpuReading { error: Some(error), ..GpuReading::default() };
        test_sample
    });
    assert_eq!(tester.firing(), [("gpu-lost", "crit"), ("stuck-spin", "info")]);
    assert_eq!(tester.finding("stuck-spin").gpus.len(), 3);
}

#[test]
fn ranks_that_wait_for_a_debugged_process_are_info() {
    let run = |first: &str| {
        // Started one by one in a shell, so each is a job.
        let process =
            |gpu: u16| process(50 + u32::from(gpu), if gpu == 0 { first } else { "python train.py" }, &[(gpu, 70)]);
        let mut tester = RuleTester::new(gpus(0..2));
        tester.run(1200.0, |tester, _| TestSample {
            gpus: (0..2).map(|_| tester.gpu(98, 560.0, 48, 70)).collect(),
            processes: (0..2).map(process).collect(),
        });
        tester.run(690.0, |tester, _| {
            let mut processes: Vec<TestProcess> = (0..2).map(process).collect();
            processes[0].reading.cpu_percent = Some(0.0);
            TestSample { gpus: vec![tester.gpu(0, 120.0, 0, 70), tester.gpu(100, 110.0, 0, 70)], processes }
        });
        tester.fired()
    };
    assert_eq!(run("python -m pdb train.py"), [("stuck-spin", "info")]);
    assert_eq!(run("python other.py"), [("stuck-spin", "warn")]);
    assert_eq!(run("python -m pdb plot.py"), [("stuck-spin", "warn")], "a debugged program that is no rank");
}

/// Hangs on host 0 from the 120th sample, while the same command on host 1 does what `other` says from sample `from`.
/// `options` are those of torchrun on both.
fn hung_beside_a_host(
    options: &str,
    from: usize,
    other: fn(&mut RuleTester) -> TestSample,
) -> Vec<(&'static str, &'static str)> {
    let torchrun: Vec<SafeText> = format!("torchrun {options} train.py").split(' ').map(SafeText::new).collect();
    let started = |mut test_sample: TestSample, id: usize| {
        for process in &mut test_sample.processes {
            process.facts.start_unix_seconds = Some(1_700_000_000 + id as i64);
            process.facts.ancestors[0].argv = torchrun.clone();
        }
        test_sample
    };
    let mut tester = RuleTester::of(vec![gpus(0..4), gpus(0..4)], Thresholds::default());
    for step in 0..240 {
        let here = if step >= 120 { hung(&mut tester, 4, 104.0, 1.0) } else { healthy(&mut tester, 4) };
        let there = if step >= from { other(&mut tester) } else { healthy(&mut tester, 4) };
        for (id, test_sample) in [here, there].into_iter().enumerate() {
            tester.send(id, &started(test_sample, id), |_| {});
        }
        tester.wait(10.0);
    }
    tester.firing()
}

#[test]
fn only_a_host_that_certainly_runs_the_same_job_explains_a_hang() {
    let works = |tester: &mut RuleTester| healthy(tester, 4);
    assert_eq!(hung_beside_a_host("--nnodes 2", 0, works), [("stuck-spin", "crit")], "likely the same job");
    let certain = hung_beside_a_host("--nnodes 2 --rdzv-endpoint=hgx-01:29500", 0, works);
    assert_eq!(certain, [("stuck-spin", "info")], "its ranks wait for those on the other host");
}

#[test]
fn an_equal_command_that_begins_to_wait_in_the_same_minute_is_the_same_job() {
    // On the other host, rank 0 works on the CPUs while the others wait.
    let saves = |tester: &mut RuleTester| {
        let mut test_sample = hung(tester, 4, 104.0, 1.0);
        test_sample.gpus[0] = tester.gpu(0, 100.0, 0, 70);
        test_sample.processes[0].reading.cpu_percent = Some(700.0);
        test_sample
    };
    let in_step = hung_beside_a_host("--nnodes 2", 121, saves);
    assert!(in_step.iter().all(|(_, severity)| *severity == "info"), "{in_step:?}");
    // There, rank 0 generates text at work while the others wait above the spin power.
    let generates = |tester: &mut RuleTester| {
        let mut test_sample = hung(tester, 4, 240.0, 1.0);
        test_sample.gpus[0] = tester.gpu(64, 420.0, 20, 70);
        test_sample
    };
    let beside = hung_beside_a_host("--nnodes 2", 121, generates);
    assert!(beside.iter().all(|(_, severity)| *severity == "info"), "{beside:?}");
    let earlier = hung_beside_a_host("--nnodes 2", 90, saves);
    assert!(earlier.contains(&("stuck-spin", "crit")), "another run that waits: {earlier:?}");
}

/// The ranks wait for rank 0, which works on its GPU for `works` seconds and then rests.
fn waits_for_rank_0(tester: &mut RuleTester, t: f64, works: f64) -> TestSample {
    let mut test_sample = hung(tester, 4, 104.0, 1.0);
    let is_at_work = t < works;
    test_sample.gpus[0] = if is_at_work { tester.gpu(60, 400.0, 30, 70) } else { tester.gpu(0, 70.0, 0, 70) };
    test_sample.processes[0].reading.cpu_percent = Some(if is_at_work { 150.0 } else { 0.0 });
    test_sample
}

#[test]
fn a_rank_that_stops_in_the_middle_of_its_work_is_noticed_before_the_usual_length_of_it() {
    let mut tester = after_healthy_work(4);
    tester.run(3400.0, |tester, t| waits_for_rank_0(tester, t, 3400.0));
    tester.run(1200.0, |tester, _| healthy(tester, 4));
    assert!(tester.fired().iter().all(|(_, severity)| *severity == "info"), "{:?}", tester.fired());
    // It warns ten minutes after the last work, and does not wait for one and a half times the usual hour.
    tester.run(1250.0, |tester, t| waits_for_rank_0(tester, t, 720.0));
    assert!(tester.fired().iter().all(|(_, severity)| *severity == "info"), "{:?}", tester.fired());
    tester.run(300.0, |tester, _| waits_for_rank_0(tester, 720.0, 720.0));
    assert!(tester.fired().iter().any(|(_, severity)| *severity == "warn"), "{:?}", tester.fired());
}

#[test]
fn a_wait_that_ends_with_one_rank_first_is_learned_whole() {
    let mut tester = after_healthy_work(4);
    let rests = |tester: &mut RuleTester, _: f64| waits_for_rank_0(tester, 0.0, 0.0);
    // The first wait warns.
    tester.run(1200.0, rests);
    // Rank 0 starts two samples before the others.
    tester.run(20.0, |tester, _| waits_for_rank_0(tester, 0.0, 1.0));
    tester.run(1200.0, |tester, _| healthy(tester, 4));
    tester.run(1200.0, rests);
    assert!(
        tester.firing().iter().all(|(_, severity)| *severity == "info"),
        "as long as before: {:?}",
        tester.firing()
    );
}

#[test]
fn heartbeats_of_a_job_that_waited_before_delay_a_warning_for_a_while_only() {
    let mut tester = after_healthy_work(4);
    tester.run(120.0, |tester, _| hung(tester, 4, 104.0, 1.0));
    tester.run(1200.0, |tester, _| healthy(tester, 4));
    tester.run(7200.0, |tester, t| {
        let mut test_sample = hung(tester, 4, 104.0, 1.0);
        for process in &mut test_sample.processes {
            process.reading.write_bytes = Some((t / 300.0) as u64 * (4 << 20));
        }
        test_sample
    });
    assert!(tester.fired().iter().any(|(_, severity)| *severity != "info"), "{:?}", tester.fired());
}

#[test]
fn waits_between_short_work_must_grow_much_longer_to_be_suspected() {
    let mut tester = RuleTester::new(gpus(0..4));
    // Somebody types a prompt now and then; rank 0 rests meanwhile, the others spin.
    for waits in [540.0, 1250.0, 480.0, 2100.0, 1260.0, 1560.0] {
        tester.run(waits, |tester, _| waits_for_rank_0(tester, 0.0, 0.0));
        tester.run(60.0, |tester, _| healthy(tester, 4));
    }
    assert!(tester.fired().iter().all(|(_, severity)| *severity == "info"), "{:?}", tester.fired());
    tester.run(4000.0, |tester, _| waits_for_rank_0(tester, 0.0, 0.0));
    assert!(tester.fired().iter().any(|(_, severity)| *severity == "warn"), "{:?}", tester.fired());
}

#[test]
fn a_job_beside_a_computing_server_of_its_user_waits_for_an_hour() {
    let run = |user: &str| {
        let mut tester = RuleTester::new(gpus(0..3));
        tester.run(4000.0, |tester, _| {
            let mut test_sample = hung(tester, 2, 104.0, 1.0);
            let mut server = process(77, "python generate.py", &[(2, 70)]);
            server.facts.listening_ports = vec![8000];
            server.facts.user = Some(user.into());
            test_sample.gpus.push(tester.gpu(80, 400.0, 40, 70));
            test_sample.processes.push(server);
            test_sample
        });
        let firing = tester.transitions.iter().find(|change| change.notify && change.severity >= Severity::Warn);
        firing.map(|transition| transition.at.since_start().as_secs_f64() - 1000.0)
    };
    let (own, other) = (run("alice").expect("in the end"), run("bob").expect("a suspicion"));
    assert!(own >= 3600.0 && other < 1200.0, "{own} {other}");
}

#[test]
fn a_hang_is_certain_when_every_gpu_spins_and_the_log_has_stopped() {
    let confidence = |stops: bool| {
        let mut tester = RuleTester::new(gpus(0..4));
        tester.run(1200.0, |tester, t| {
            let test_sample = healthy(tester, 4);
            logging(t, test_sample, None)
        });
        tester.run(1500.0, |tester, t| {
            let test_sample = hung(tester, 4, 104.0, 1.0);
            logging(t, test_sample, stops.then_some(0.0))
        });
        assert_eq!(tester.firing().first().map(|(rule, _)| *rule), Some("stuck-spin"));
        tester.finding("stuck-spin").confidence
    };
    assert_eq!(confidence(true), Confidence::Certain);
    assert_eq!(confidence(false), Confidence::Likely);
}

#[test]
fn a_gpu_at_work_beside_a_spinning_one_makes_a_suspect_info() {
    let mut tester = RuleTester::new(gpus(0..2));
    tester.run(1800.0, |tester, t| {
        let mut test_sample = hung(tester, 2, 104.0, 1.0);
        test_sample.gpus[1] = tester.gpu(if t % 60.0 < 30.0 { 70 } else { 30 }, 130.0, 8, 70);
        test_sample
    });
    assert!(tester.fired().iter().all(|(_, severity)| *severity == "info"), "{:?}", tester.fired());
}

#[test]
fn ranks_whose_likely_peers_save_on_another_host_since_the_same_moment_wait_for_them() {
    fn rests(tester: &mut RuleTester, write_bytes: Option<u64>) -> TestSample {
        let mut processes = ranks(4, 0.0);
        for process in &mut processes {
            process.reading.write_bytes = write_bytes;
        }
        TestSample { gpus: (0..4).map(|_| tester.gpu(0, 70.0, 0, 70)).collect(), processes }
    }
    let notifies = |other: fn(&mut RuleTester) -> TestSample| {
        hung_beside_a_host("--nnodes 2", 120, other).iter().any(|(_, severity)| *severity != "info")
    };
    assert!(!notifies(|tester| rests(tester, Some((tester.t * 1e8) as u64))), "they write");
    assert!(notifies(|tester| rests(tester, Some(0))));
}
