use crate::diagnosis::testing::{RuleTester, TestSample, after_healthy_work, healthy, hung, logging, ranks};
use crate::diagnosis::{Confidence, FindingPhase};
use crate::fleet::fixture::{TestProcess, gpus};
use crate::wire::GpuReading;

#[test]
fn work_near_the_spin_power_is_not_a_hang() {
    // Bound by communication: the power varies, and was not higher before.
    let mut tester = RuleTester::new(gpus(0..8));
    tester.run(3600.0, |tester, t| {
        let watts = if ((t / 10.0) as u32).is_multiple_of(3) { 150.0 } else { 480.0 };
        TestSample { gpus: (0..8).map(|_| tester.gpu(100, watts, 12, 70)).collect(), processes: ranks(8, 1.4) }
    });
    // Decoding one sequence: low power, but high memory utilisation.
    tester.run(3600.0, |tester, _| TestSample {
        gpus: (0..8).map(|_| tester.gpu(97, 190.0, 38, 70)).collect(),
        processes: ranks(8, 1.4),
    });
    assert!(!tester.fired().iter().any(|(rule, _)| rule.starts_with("stuck")), "{:?}", tester.fired());
}

#[test]
fn launch_bound_work_is_at_most_a_suspect() {
    let mut infos = gpus(0..1);
    infos[0].power_limit_watts = Some(140.0);
    let mut tester = RuleTester::new(infos);
    tester.run(7200.0, |tester, _| {
        let steady = GpuReading { power_watts: Some(16.0 + tester.noise(0.3)), ..tester.gpu(96, 16.0, 1, 4) };
        TestSample { gpus: vec![steady], processes: ranks(1, 1.0) }
    });
    assert_eq!(tester.fired(), [("stuck-spin-suspect", "info")], "a single GPU has no peer to wait for");
    assert_eq!(tester.finding("stuck-spin-suspect").confidence, Confidence::Suspected);
}

#[test]
fn a_hang_at_a_constant_power_above_the_spin_power_is_detected() {
    let mut infos = gpus(0..2);
    for info in &mut infos {
        info.power_limit_watts = Some(350.0);
    }
    let hang = |tester: &mut RuleTester, watts: f32| {
        let gpus = (0..2).map(|_| tester.gpu(100, watts, 0, 20)).collect();
        TestSample { gpus, processes: ranks(2, 1.0) }
    };
    let work = |tester: &mut RuleTester| TestSample {
        gpus: (0..2).map(|_| tester.gpu(98, 320.0, 40, 20)).collect(),
        processes: ranks(2, 1.4),
    };
    let mut tester = RuleTester::new(infos.clone());
    tester.run(1200.0, |tester, _| work(tester));
    tester.run(280.0, |tester, _| hang(tester, 190.0));
    assert_eq!(tester.fired(), []);
    tester.run(60.0, |tester, _| hang(tester, 190.0));
    assert_eq!(tester.firing(), [("stuck-spin", "warn")], "190 of 350 W, constant, after 320 W");
    tester.run(120.0, |tester, _| work(tester));
    assert_eq!(tester.firing(), []);
    // One GPU alone may do other work for a while. A memory at rest does not become the past with which it is compared.
    let alone = |tester: &mut RuleTester, watts: f32, memory: u8| TestSample {
        gpus: vec![tester.gpu(99, watts, memory, 20)],
        processes: ranks(1, 1.0),
    };
    let mut tester = RuleTester::new(infos[..1].to_vec());
    tester.run(1800.0, |tester, _| alone(tester, 320.0, 40));
    tester.run(600.0, |tester, _| alone(tester, 190.0, 3));
    assert!(!tester.fired().iter().any(|(rule, _)| *rule == "stuck-spin"), "{:?}", tester.fired());
    tester.run(600.0, |tester, _| alone(tester, 190.0, 3));
    assert!(tester.firing().iter().any(|(rule, _)| *rule == "stuck-spin"), "{:?}", tester.firing());
    tester.run(3600.0, |tester, _| alone(tester, 190.0, 3));
    assert!(tester.firing().iter().any(|(rule, _)| *rule == "stuck-spin"), "{:?}", tester.firing());
    // Work whose power varies is not frozen.
    let mut tester = RuleTester::new(infos);
    tester.run(1200.0, |tester, _| work(tester));
    tester.run(1200.0, |tester, t| hang(tester, if t % 20.0 < 10.0 { 180.0 } else { 200.0 }));
    assert_eq!(tester.fired(), []);
}

#[test]
fn a_board_without_a_power_limit_is_compared_with_its_own_work() {
    let mut infos = gpus(0..1);
    infos[0].power_limit_watts = None;
    let steady = |tester: &mut RuleTester, utilization, watts: f32, memory| TestSample {
        gpus: vec![GpuReading {
            power_watts: Some(watts + tester.noise(0.1)),
            ..tester.gpu(utilization, watts, memory, 20)
        }],
        processes: ranks(1, 1.0),
    };
    let mut tester = RuleTester::new(infos);
    tester.run(1200.0, |tester, _| steady(tester, 96, 61.0, 30));
    tester.run(620.0, |tester, _| steady(tester, 100, 16.0, 0));
    assert_eq!(tester.firing(), [("stuck-spin", "crit")]);
    let sentence = tester.finding("stuck-spin").sentence.to_string();
    assert!(sentence.contains("draws 16 W (was 6"), "{sentence}");
}

#[test]
fn a_board_without_a_power_limit_may_vary_far_below_its_work() {
    let run = |watts: f32, deviation: f32| {
        let mut infos = gpus(0..1);
        infos[0].power_limit_watts = None;
        let reading = |tester: &mut RuleTester, watts: f32, deviation, memory| TestSample {
            gpus: vec![GpuReading {
                power_watts: Some(watts + tester.noise(deviation)),
                memory_utilization_percent: None,
                ..tester.gpu(96, watts, memory, 20)
            }],
            processes: ranks(1, 1.0),
        };
        let mut tester = RuleTester::new(infos);
        tester.run(1200.0, |tester, _| reading(tester, 46.0, 2.0, 30));
        tester.run(620.0, |tester, _| reading(tester, watts, deviation, 0));
        tester.firing()
    };
    assert_eq!(run(21.0, 1.2), [("stuck-spin", "crit")], "GB10, vllm#46097");
    assert_eq!(run(30.0, 1.2), [], "launch-bound work at two thirds of the power");
    assert_eq!(run(21.0, 6.0), [], "power that varies");
}

#[test]
fn half_the_power_at_a_constant_level_is_a_hint_on_a_board_without_a_limit() {
    let run_at = |at_work: u8, utilization: u8, seconds: f64, watts: f32, deviation: f32| {
        let mut infos = gpus(0..1);
        infos[0].power_limit_watts = None;
        let mut tester = RuleTester::new(infos);
        let mut reading = |seconds, utilization: u8, watts: f32, deviation: f32| {
            tester.run(seconds, |tester, _| TestSample {
                gpus: vec![GpuReading {
                    power_watts: Some(watts + tester.noise(deviation)),
                    ..tester.gpu(utilization, watts, 33, 20)
                }],
                processes: ranks(1, 1.0),
            });
        };
        reading(1200.0, at_work, 45.0, 5.0);
        reading(seconds, utilization, watts, deviation);
        let hint = tester.findings().into_iter().find(|finding| finding.rule.word() == "stuck-spin");
        assert!(hint.is_none_or(|finding| !finding.sentence.contains("memory")), "it was not judged");
        tester.firing()
    };
    let run = |seconds: f64, watts: f32, deviation: f32| run_at(95, 95, seconds, watts, deviation);
    assert_eq!(run(1300.0, 19.0, 0.4), [("stuck-spin", "info")]);
    assert_eq!(run(600.0, 19.0, 0.4), [], "too short");
    assert_eq!(run(1300.0, 27.0, 0.4), [], "too much power");
    assert_eq!(run(1300.0, 19.0, 6.0), [], "the power varies");
    assert_eq!(run_at(95, 40, 1300.0, 19.0, 0.4), [], "another phase of the work");
    assert_eq!(run_at(75, 75, 1300.0, 19.0, 0.4), [("stuck-spin", "info")], "as busy as at work");
}

/// Busy GPUs at this power whose counters show tensor cores, memory and NVLink at work in percent and bytes per second, with
/// this share of SMs at work.
fn counted(
    tester: &mut RuleTester,
    watts: f32,
    (tensor, dram, nvlink): (f32, f32, f64),
    sm: Option<f32>,
) -> TestSample {
    let mut test_sample = hung(tester, 2, watts, 1.0);
    for gpu in &mut test_sample.gpus {
        // The power varies too much for the rules that judge power.
        gpu.power_watts = Some(watts + tester.noise(25.0));
        gpu.memory_utilization_percent = Some(8);
        gpu.tensor_activity_percent = Some(tensor);
        gpu.dram_bandwidth_percent = Some(dram);
        gpu.nvlink_transmit_bytes_per_second = Some(nvlink);
        gpu.sm_activity_percent = sm;
    }
    test_sample
}

#[test]
fn counters_at_rest_show_a_spin_at_any_power() {
    let run = |watts: f32, counters: (f32, f32, f64), sm: Option<f32>| {
        let mut tester = RuleTester::new(gpus(0..2));
        tester.run(1200.0, |tester, _| counted(tester, 600.0, (32.0, 24.0, 40e9), Some(95.0)));
        assert_eq!(tester.fired(), []);
        tester.run(620.0, |tester, _| counted(tester, watts, counters, sm));
        tester.firing()
    };
    let rest = (0.0, 0.4, 2e6);
    assert_eq!(run(420.0, rest, Some(12.0)), [("stuck-spin", "crit")]);
    assert_eq!(run(420.0, rest, None), [("stuck-spin", "crit")], "no share of SMs");
    assert_eq!(run(420.0, rest, Some(99.0)), [], "computes in registers on every SM");
    for works in [(3.0, 0.4, 2e6), (0.0, 6.0, 2e6), (0.0, 0.4, 3e8), (1.4, 0.4, 2e6), (0.0, 2.6, 2e6)] {
        assert_eq!(run(420.0, works, Some(12.0)), [], "{works:?}");
    }
}

#[test]
fn a_kernel_on_every_sm_that_leaves_the_rest_alone_is_a_spin_after_twenty_minutes() {
    let run = |seconds: f64, had_counters: bool| {
        let mut tester = RuleTester::new(gpus(0..2));
        let before = if had_counters { (32.0, 24.0, 40e9) } else { (0.0, 0.4, 2e6) };
        tester.run(1200.0, |tester, _| counted(tester, 600.0, before, Some(95.0)));
        tester.run(seconds, |tester, _| {
            let mut sample = counted(tester, 250.0, (0.0, 0.4, 2e6), Some(99.0));
            for gpu in &mut sample.gpus {
                // A kernel that waits does not vary.
                gpu.power_watts = Some(420.0 + tester.noise(3.0));
            }
            sample
        });
        tester.firing()
    };
    assert_eq!(run(1100.0, true), []);
    assert_eq!(run(1300.0, true), [("stuck-spin", "crit")]);
    assert_eq!(run(1300.0, false), [], "it always computes in registers");
}

/// The examination of the job must begin before the warning, so that the warning can name the culprit.
#[test]
fn a_hang_is_pending_minutes_before_its_warning_where_counters_showed_the_work() {
    for (watts, memory) in [(104.0, 0), (420.0, 8)] {
        let hang = |tester: &mut RuleTester, _: f64| {
            let mut test_sample = counted(tester, watts, (0.0, 0.4, 2e6), Some(12.0));
            for gpu in &mut test_sample.gpus {
                gpu.memory_utilization_percent = Some(memory);
            }
            test_sample
        };
        let mut tester = RuleTester::new(gpus(0..2));
        tester.run(1200.0, |tester, _| counted(tester, 600.0, (32.0, 24.0, 40e9), Some(95.0)));
        tester.run(190.0, hang);
        let pending = tester.finding("stuck-spin");
        assert_eq!((pending.phase, pending.may_warn_after.is_some()), (FindingPhase::Pending, true), "{watts} W");
        tester.run(100.0, hang);
        assert_eq!(tester.firing(), [], "{watts} W");
        tester.run(40.0, hang);
        assert_eq!(tester.firing(), [("stuck-spin", "warn")], "{watts} W");
    }
}

#[test]
fn counters_at_rest_from_the_start_are_a_suspicion() {
    let run = |sm| {
        let mut tester = RuleTester::new(gpus(0..2));
        tester.run(900.0, |tester, _| counted(tester, 300.0, (0.0, 0.4, 2e6), sm));
        tester.firing()
    };
    assert_eq!(run(Some(12.0)), [("stuck-spin-suspect", "warn")]);
    assert_eq!(run(Some(80.0)), []);
    assert_eq!(run(None), [], "too little is known");
}

#[test]
fn ranks_that_exchange_data_are_not_hung() {
    let run = |nvlink: f64| {
        let mut tester = after_healthy_work(4);
        tester.run(900.0, |tester, _| {
            let mut test_sample = hung(tester, 4, 120.0, 1.0);
            for gpu in &mut test_sample.gpus {
                gpu.nvlink_transmit_bytes_per_second = Some(nvlink);
            }
            test_sample
        });
        tester.fired()
    };
    assert_eq!(run(40e9), [], "a slow collective");
    assert_eq!(run(20e3), [("stuck-spin", "warn"), ("stuck-spin", "crit")]);
}

#[test]
fn the_noise_of_a_sensor_on_a_board_that_draws_little_is_steady_power() {
    let mut tester = RuleTester::new(gpus(0..2));
    tester.run(900.0, |tester, _| {
        let mut test_sample = hung(tester, 2, 30.0, 1.0);
        for gpu in &mut test_sample.gpus {
            gpu.power_watts = Some(30.0 + tester.noise(2.5));
        }
        test_sample
    });
    assert_eq!(tester.firing(), [("stuck-spin-suspect", "warn")]);
}

#[test]
fn a_wait_that_reads_as_partly_busy_is_info() {
    let mut tester = after_healthy_work(2);
    tester.run(1200.0, |tester, _| TestSample {
        gpus: (0..2).map(|_| GpuReading { power_watts: Some(330.0), ..tester.gpu(49, 330.0, 1, 70) }).collect(),
        processes: ranks(2, 1.0),
    });
    assert_eq!(tester.firing(), [("stuck-spin", "info")]);
    let mut tester = after_healthy_work(2);
    tester.run(1800.0, |tester, _| TestSample {
        gpus: (0..2).map(|_| tester.gpu(49, 330.0, 24, 70)).collect(),
        processes: ranks(2, 1.0),
    });
    assert_eq!(tester.fired(), [], "half of the work");
}

#[test]
fn without_power_memory_that_rests_at_full_utilisation_shows_a_hang() {
    let without_power = |gpu: GpuReading| GpuReading { power_watts: None, ..gpu };
    let run = |memory: u8| {
        let mut tester = RuleTester::new(gpus(0..2));
        tester.run(1200.0, |tester, _| TestSample {
            gpus: (0..2).map(|_| without_power(tester.gpu(92, 0.0, 44, 70))).collect(),
            processes: ranks(2, 1.4),
        });
        tester.run(400.0, |tester, _| TestSample {
            gpus: (0..2).map(|_| without_power(tester.gpu(100, 0.0, memory, 70))).collect(),
            processes: ranks(2, 1.0),
        });
        tester.firing()
    };
    assert_eq!(run(0), [("stuck-spin", "warn")]);
    assert_eq!(run(20), []);
}

/// Two ranks that draw a quarter of their earlier power while the driver reports their memory as in use; `edit` changes the ranks
/// from then on.
fn drops_with_memory_in_use(seconds: f64, edit: impl Fn(&mut TestProcess, f64)) -> RuleTester {
    let mut tester = RuleTester::new(gpus(0..2));
    tester.interval = 5.0;
    let feed = |test_sample: &mut TestSample| {
        for process in &mut test_sample.processes {
            (process.reading.descendants, process.reading.descendants_cpu_percent) = (Some(4), Some(200.0));
        }
    };
    tester.run(1200.0, |tester, t| {
        let mut test_sample = healthy(tester, 2);
        feed(&mut test_sample);
        logging(t, test_sample, None)
    });
    tester.run(seconds, |tester, t| {
        // More than the noise of a constant power.
        let watts = if ((t / 5.0) as u32).is_multiple_of(2) { 144.0 } else { 156.0 };
        let gpus = (0..2).map(|_| tester.gpu(100, watts, 35, 70)).collect();
        let mut test_sample = TestSample { gpus, processes: ranks(2, 1.0) };
        feed(&mut test_sample);
        let mut test_sample = logging(1200.0 + t, test_sample, None);
        for process in &mut test_sample.processes {
            edit(process, t);
        }
        test_sample
    });
    tester
}

#[test]
fn a_steady_drop_of_power_is_a_hang_if_other_signs_tell_it_although_the_memory_reads_as_in_use() {
    let workers_rest = |process: &mut TestProcess, _: f64| process.reading.descendants_cpu_percent = Some(0.0);
    let log_stops = |process: &mut TestProcess, t: f64| {
        process.reading.log_age_seconds = process.reading.log_age_seconds.map(|_| t.trunc());
    };
    let spins = |tester: &RuleTester| {
        let is_spin = |(rule, _): &&(&str, &str)| *rule == "stuck-spin";
        tester.firing().into_iter().filter(|finding| is_spin(&finding)).collect::<Vec<_>>()
    };
    let both = |process: &mut TestProcess, t: f64| {
        workers_rest(process, t);
        log_stops(process, t);
    };
    assert_eq!(
        spins(&drops_with_memory_in_use(1500.0, both)),
        [],
        "an evaluation may rest the workers and write no log"
    );
    let tester = drops_with_memory_in_use(1700.0, log_stops);
    assert_eq!(spins(&tester), [("stuck-spin", "crit")]);
    let finding = tester.finding("stuck-spin");
    assert_eq!(finding.confidence, Confidence::Likely, "only the power and the host tell");
    let sentence = &finding.sentence;
    assert!(sentence.starts_with("GPUs 0,1 read 100 % busy for 2") && !sentence.contains("memory"), "{sentence}");
    assert_eq!(spins(&drops_with_memory_in_use(3000.0, workers_rest)), [], "its log goes on");
    assert_eq!(spins(&drops_with_memory_in_use(3000.0, |_, _| ())), [], "work at low power");
}

#[test]
fn a_rank_that_was_never_at_work_is_suspected_if_its_log_stopped_although_the_memory_reads_as_in_use() {
    let run = |stopped_at: Option<f64>| {
        let mut tester = RuleTester::new(gpus(0..4));
        tester.interval = 5.0;
        tester.run(3600.0, |tester, t| {
            let gpus = (0..4).map(|_| tester.gpu(100, 300.0, 35, 70)).collect();
            let test_sample = TestSample { gpus, processes: ranks(4, 1.0) };
            logging(t, test_sample, stopped_at.filter(|at| t > *at))
        });
        tester.fired().into_iter().filter(|(_, severity)| *severity == "warn").collect::<Vec<_>>()
    };
    assert_eq!(run(Some(300.0)), [("stuck-spin-suspect", "warn")]);
    assert_eq!(run(Some(40.0)), [("stuck-spin-suspect", "warn")], "it wrote a few lines and no more");
    assert_eq!(run(None), [], "it may be launch-bound work");
}

#[test]
fn a_program_alone_that_was_never_at_work_warns_if_its_log_stopped_long_ago_and_its_memory_rests() {
    let run = |memory: u8, stopped_at: Option<f64>, seconds: f64| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 10.0;
        tester.run(seconds, |tester, t| {
            let steady =
                GpuReading { power_watts: Some(304.0 + tester.noise(1.0)), ..tester.gpu(100, 304.0, memory, 4) };
            let test_sample = TestSample { gpus: vec![steady], processes: ranks(1, 1.0) };
            logging(t, test_sample, stopped_at.filter(|at| t > *at))
        });
        tester.fired().into_iter().filter(|(_, severity)| *severity == "warn").collect::<Vec<_>>()
    };
    assert_eq!(run(0, Some(20.0), 2400.0), [("stuck-spin-suspect", "warn")]);
    assert_eq!(run(0, Some(20.0), 1500.0), [], "a long step");
    assert_eq!(run(30, Some(20.0), 2400.0), [], "it uses its memory");
    assert_eq!(run(0, None, 2400.0), [], "its log goes on");
}
