use crate::config::thresholds::Thresholds;
use crate::diagnosis::testing::{RuleTester, TestSample};
use crate::diagnosis::{RuleId, Severity};
use crate::fleet::fixture::{TestProcess, gpus, process};
use crate::wire::{GpuHealth, GpuHealthColumns, GpuReading};

fn busy(tester: &mut RuleTester, edit: impl FnOnce(&mut GpuReading)) -> TestSample {
    let mut gpu = tester.gpu(97, 550.0, 40, 40);
    edit(&mut gpu);
    TestSample { gpus: vec![gpu], processes: vec![process(7, "python train.py", &[(0, 40)])] }
}

#[test]
fn thermal_slowdown_counts_by_its_share_of_time() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(600.0, |tester, t| busy(tester, |gpu| gpu.thermal_violation_seconds = Some(5000.0 + t * 0.22)));
    assert_eq!(tester.fired(), [("thermal-throttle", "warn")]);
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(600.0, |tester, _| busy(tester, |gpu| gpu.clocks_event_reasons = Some(0x40)));
    assert_eq!(tester.fired(), [("thermal-throttle", "crit")]);
}

#[test]
fn the_power_cap_and_short_blips_are_not_throttling() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(3600.0, |tester, t| {
        busy(tester, |gpu| gpu.clocks_event_reasons = Some(if t % 60.0 < 10.0 { 0xC } else { 0x4 }))
    });
    assert_eq!(tester.fired(), []);
    // A counter that is reset.
    tester.run(600.0, |tester, t| {
        busy(tester, |gpu| gpu.thermal_violation_seconds = Some(if t < 300.0 { 9000.0 } else { 3.0 }))
    });
    assert_eq!(tester.fired(), []);
}

#[test]
fn a_permanent_slowdown_is_a_hundred_percent() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(700.0, |tester, _| busy(tester, |gpu| gpu.clocks_event_reasons = Some(0xC0)));
    for rule in ["thermal-throttle", "power-brake"] {
        let sentence = tester.finding(rule).sentence.to_string();
        assert!(sentence.contains("for 100 % of the last"), "{sentence}");
    }
}

#[test]
fn the_power_brake_is_critical() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(300.0, |tester, _| busy(tester, |gpu| gpu.power_brake_seconds = Some(0.0)));
    assert_eq!(tester.fired(), []);
    tester.run(130.0, |tester, t| busy(tester, |gpu| gpu.power_brake_seconds = Some(t * 0.05)));
    assert_eq!(tester.firing(), [("power-brake", "crit")], "again and again");
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(300.0, |tester, _| busy(tester, |gpu| gpu.power_brake_seconds = Some(0.0)));
    tester.run(60.0, |tester, t| busy(tester, |gpu| gpu.power_brake_seconds = Some(t.min(30.0))));
    assert_eq!(tester.firing(), [("power-brake", "crit")], "for half a minute");
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(300.0, |tester, _| busy(tester, |gpu| gpu.power_brake_seconds = Some(0.0)));
    tester.run(130.0, |tester, t| busy(tester, |gpu| gpu.power_brake_seconds = Some(t.min(6.0))));
    assert_eq!(tester.fired(), [("power-brake", "info")], "a server that tests its power supplies");
}

#[test]
fn temperature_counts_by_its_distance_to_the_threshold() {
    let mut infos = gpus(0..1);
    infos[0].temperature_slowdown_celsius = Some(92);
    let mut tester = RuleTester::new(infos);
    tester.run(310.0, |tester, _| busy(tester, |gpu| gpu.temperature_celsius = Some(90)));
    assert_eq!(tester.firing(), [("temperature", "warn")]);
    tester.run(300.0, |tester, _| busy(tester, |gpu| gpu.temperature_celsius = Some(87)));
    assert_eq!(tester.firing(), [("temperature", "warn")], "hysteresis");
    tester.run(100.0, |tester, _| busy(tester, |gpu| gpu.temperature_celsius = Some(80)));
    assert_eq!(tester.firing(), []);
}

#[test]
fn a_narrow_pcie_link_counts_only_under_load() {
    let mut infos = gpus(0..1);
    infos[0].pcie_width_max = Some(16);
    infos[0].pcie_generation_max = Some(5);
    let mut tester = RuleTester::new(infos.clone());
    tester.run(600.0, |tester, _| TestSample {
        gpus: vec![GpuReading { pcie_generation: Some(1), pcie_width: Some(16), ..tester.gpu(0, 70.0, 0, 0) }],
        processes: vec![],
    });
    assert_eq!(tester.fired(), []);
    let filled = |gigabytes: f64| {
        move |tester: &mut RuleTester, _: f64| {
            let rate = Some(1e9 * gigabytes);
            let idle = tester.gpu(27, 104.0, 9, 20);
            let (pcie_generation, pcie_width) = (Some(1), Some(16));
            let gpu = GpuReading { pcie_generation, pcie_width, pcie_receive_bytes_per_second: rate, ..idle };
            TestSample { gpus: vec![gpu], processes: vec![process(7, "python train.py", &[(0, 20)])] }
        }
    };
    tester.run(600.0, filled(14.0));
    assert_eq!(tester.fired(), [], "the link was faster when this went over it");
    tester.run(260.0, filled(3.1));
    assert_eq!(tester.firing(), [("pcie-degraded", "warn")], "the link limits the work");
    tester.run(600.0, |tester, _| busy(tester, |gpu| (gpu.pcie_generation, gpu.pcie_width) = (Some(5), Some(16))));
    let mut tester = RuleTester::new(infos.clone());
    let linked = |width: u8| {
        move |tester: &mut RuleTester, _: f64| {
            busy(tester, |gpu| {
                gpu.pcie_generation = Some(5);
                gpu.pcie_width = Some(width);
            })
        }
    };
    tester.run(260.0, linked(8));
    assert_eq!(tester.firing(), [("pcie-degraded", "info")], "eight lanes from the start may be by design");
    tester.run(140.0, linked(16));
    tester.run(260.0, linked(8));
    assert_eq!(tester.firing(), [("pcie-degraded", "warn")], "it had sixteen before");
    assert_eq!(tester.finding("pcie-degraded").sentence, "GPU 0 runs at PCIe gen 5 x8 but both ends support gen 5 x16");
}

#[test]
fn a_slower_slot_than_those_of_two_siblings_warns() {
    let severity = |count: u32| {
        let mut infos = gpus(0..count);
        for info in &mut infos {
            info.pcie_width_max = Some(16);
            info.pcie_generation_max = Some(4);
        }
        let mut tester = RuleTester::new(infos);
        tester.run(300.0, |tester, _| {
            let link = |gpu: u32, reading: GpuReading| GpuReading {
                pcie_generation: Some(if gpu == 0 { 2 } else { 4 }),
                pcie_width: Some(if gpu == 0 { 4 } else { 16 }),
                ..reading
            };
            TestSample {
                gpus: (0..count).map(|gpu| link(gpu, tester.gpu(95, 300.0, 30, 40))).collect(),
                processes: vec![],
            }
        });
        let firing = tester.firing();
        firing.iter().find(|(rule, _)| *rule == "pcie-degraded").map(|(_, severity)| *severity)
    };
    assert_eq!((severity(2), severity(3)), (Some("info"), Some("warn")), "the slots of a workstation differ");
}

#[test]
fn a_power_cap_far_below_the_limit_of_the_gpu_is_info() {
    let fired = |watts: f32, mhz: u32, reasons: u64| {
        let mut infos = gpus(0..1);
        infos[0].clock_sm_max_mhz = Some(1410);
        infos[0].power_limit_watts = Some(400.0);
        let mut tester = RuleTester::new(infos);
        tester.run(1000.0, |tester, _| {
            busy(tester, |gpu| {
                gpu.power_watts = Some(watts);
                gpu.clock_sm_mhz = Some(mhz);
                gpu.clocks_event_reasons = Some(reasons);
            })
        });
        let clock = tester.findings().into_iter().find(|finding| finding.rule.word() == "clock-stuck");
        clock.map(|finding| (finding.severity.word(), finding.sentence.to_string()))
    };
    let (severity, sentence) = fired(240.0, 915, 0x4).expect("a finding");
    assert_eq!(severity, "info");
    assert!(
        sentence.starts_with(
            "GPU 0 has been held at 915 of 1410 MHz for 17 min because of its power, although it draws 240 W"
        ) && sentence.ends_with("and may draw 400 W: the server caps it"),
        "{sentence}"
    );
    assert_eq!(fired(390.0, 915, 0x4), None, "at its limit");
    assert_eq!(fired(240.0, 1300, 0x4), None, "fast all the same");
    assert_eq!(fired(240.0, 915, 0x6), None, "clocks that a person has set");
}

/// Sends one busy GPU whose counters have the values of `health`.
fn with_rising(seconds: f64, health: impl Fn(f64) -> GpuHealth) -> RuleTester {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run_edited(
        seconds,
        |tester, _| busy(tester, |_| {}),
        move |snapshot, t| {
            snapshot.health = GpuHealthColumns::from_rows(std::slice::from_ref(&health(t)));
        },
    );
    tester
}

#[test]
fn replays_on_pcie_count_by_their_rate() {
    let replays = |per_minute: f64, t: f64| GpuHealth {
        pcie_replays: Some(1000 + (per_minute * t / 60.0) as u64),
        ..GpuHealth::default()
    };
    assert_eq!(with_rising(1200.0, |t| replays(6.0, t)).fired(), []);
    let tester = with_rising(1200.0, |t| replays(10.0, t));
    assert_eq!(tester.firing(), [("pcie-errors", "info")]);
    let sentence = tester.finding("pcie-errors").sentence.to_string();
    assert!(
        sentence.starts_with("GPU 0 sent ") && sentence.contains(" packets again over PCIe in the last "),
        "{sentence}"
    );
    assert_eq!(with_rising(1200.0, |t| replays(100.0, t)).firing(), [("pcie-errors", "warn")]);
    assert_eq!(with_rising(280.0, |t| replays(100.0, t)).fired(), [], "too short for a rate");
    let reset =
        |t| if t < 600.0 { replays(0.0, t) } else { GpuHealth { pcie_replays: Some(0), ..GpuHealth::default() } };
    assert_eq!(with_rising(1200.0, reset).fired(), [], "the driver was loaded again");
}

#[test]
fn nvlinks_that_repeat_packets_are_reported() {
    let repeated = |replays: u64, recoveries: u64| GpuHealth {
        nvlink_replays: Some(7 + replays),
        nvlink_recoveries: Some(recoveries),
        ..GpuHealth::default()
    };
    assert_eq!(with_rising(1200.0, |_| repeated(3, 1)).fired(), [], "errors from before");
    let tester = with_rising(1200.0, |t| if t < 300.0 { repeated(0, 0) } else { repeated(0, 1) });
    assert_eq!(tester.firing(), [("nvlink-errors", "info")]);
    assert_eq!(
        tester.finding("nvlink-errors").sentence,
        "GPU 0: its NVLinks had 1 replay or recovery in the last 20 min"
    );
    let often = with_rising(1200.0, |t| repeated((t / 5.0) as u64, 0));
    assert_eq!(often.firing(), [("nvlink-errors", "warn")]);
    let crc = |rate: f64, t: f64| GpuHealth { nvlink_crc_errors: Some((rate * t) as u64), ..GpuHealth::default() };
    assert_eq!(with_rising(1200.0, |t| crc(80.0, t)).fired(), []);
    let tester = with_rising(1200.0, |t| crc(120.0, t));
    assert_eq!(tester.firing(), [("nvlink-errors", "warn")]);
    assert_eq!(tester.finding("nvlink-errors").sentence, "GPU 0: its NVLinks had 120 CRC errors per second");
}

fn with_health(tester: &mut RuleTester, seconds: f64, health: GpuHealth) {
    tester.run_edited(
        seconds,
        |tester, _| busy(tester, |_| {}),
        move |snapshot, _| {
            snapshot.health = GpuHealthColumns::from_rows(std::slice::from_ref(&health));
        },
    );
}

#[test]
fn only_new_memory_errors_count() {
    let errors = |volatile| GpuHealth {
        ecc_uncorrectable_volatile: Some(volatile),
        ecc_uncorrectable_aggregate: Some(7 + volatile),
        ..GpuHealth::default()
    };
    let mut tester = RuleTester::new(gpus(0..1));
    with_health(&mut tester, 60.0, errors(3));
    assert_eq!(tester.fired(), [], "the first sample is the baseline");
    with_health(&mut tester, 60.0, errors(5));
    assert_eq!(tester.firing(), [("ecc-uncorrectable", "crit")]);
    assert!(tester.finding("ecc-uncorrectable").sentence.starts_with("GPU 0 had 2 uncorrectable"));
    with_health(&mut tester, 60.0, errors(0));
    assert_eq!(tester.firing(), [], "the driver was reloaded");
}

#[test]
fn pending_rows_are_info_and_failed_rows_are_critical() {
    let mut tester = RuleTester::new(gpus(0..1));
    with_health(&mut tester, 20.0, GpuHealth { row_remap_pending: Some(true), ..GpuHealth::default() });
    assert_eq!(tester.firing(), [("row-remap", "info")]);
    with_health(&mut tester, 20.0, GpuHealth { row_remap_failed: Some(true), ..GpuHealth::default() });
    assert_eq!(tester.firing(), [("row-remap", "crit")]);
}

#[test]
fn pages_that_wait_for_a_reboot_are_info() {
    let mut tester = RuleTester::new(gpus(0..1));
    with_health(&mut tester, 20.0, GpuHealth { retired_pages_pending: Some(true), ..GpuHealth::default() });
    assert_eq!(tester.firing(), [("row-remap", "info")]);
    assert_eq!(tester.finding("row-remap").sentence, "GPU 0 waits for a reboot to retire failed memory pages");
}

#[test]
fn many_corrected_errors_within_an_hour_are_reported() {
    let health = |total| GpuHealth { ecc_corrected_volatile: Some(total), ..GpuHealth::default() };
    let mut tester = RuleTester::new(gpus(0..1));
    with_health(&mut tester, 60.0, health(70_000));
    with_health(&mut tester, 60.0, health(70_099));
    assert_eq!(tester.fired(), [], "old errors do not count");
    with_health(&mut tester, 60.0, health(70_100));
    assert_eq!(tester.firing(), [("ecc-corrected", "info")]);
    with_health(&mut tester, 600.0, health(80_000));
    assert_eq!(tester.firing(), [("ecc-corrected", "warn")]);
    with_health(&mut tester, 5000.0, health(80_000));
    assert_eq!(tester.firing(), [], "an hour without new ones");
}

#[test]
fn a_software_thermal_slowdown_of_ten_minutes_is_info() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(590.0, |tester, _| busy(tester, |gpu| gpu.clocks_event_reasons = Some(0x24)));
    assert_eq!(tester.fired(), []);
    tester.run(60.0, |tester, _| busy(tester, |gpu| gpu.clocks_event_reasons = Some(0x24)));
    assert_eq!(tester.firing(), [("thermal-throttle", "info")]);
}

fn with_limits(watts: &[f32], seconds: f64) -> RuleTester {
    let mut infos = gpus(0..watts.len() as u32);
    for (info, watts) in infos.iter_mut().zip(watts) {
        info.name = Some("NVIDIA H100 80GB HBM3".into());
        info.power_limit_watts = Some(*watts);
    }
    let mut tester = RuleTester::new(infos);
    let count = watts.len();
    tester.run(seconds, |tester, _| TestSample {
        gpus: (0..count).map(|_| tester.gpu(0, 70.0, 0, 0)).collect(),
        processes: vec![],
    });
    tester
}

#[test]
fn a_power_limit_below_those_of_the_other_gpus_is_info() {
    let tester = with_limits(&[700.0, 700.0, 500.0, 700.0], 400.0);
    assert_eq!(tester.firing(), [("power-limit-low", "info")]);
    assert_eq!(
        tester.finding("power-limit-low").sentence,
        "GPU 2 has a power limit of 500 W, the others of its model 700 W"
    );
    assert_eq!(tester.notified(), 0);
    assert_eq!(with_limits(&[700.0, 700.0, 500.0, 700.0], 250.0).firing(), [], "not yet");
    assert_eq!(with_limits(&[500.0; 4], 400.0).firing(), [], "all have the limit");
    assert_eq!(with_limits(&[500.0, 500.0, 700.0, 700.0], 400.0).firing(), [], "half of them");
    assert_eq!(with_limits(&[700.0, 650.0, 700.0, 700.0], 400.0).firing(), [], "93 %");
    assert_eq!(with_limits(&[500.0, 700.0], 400.0).firing(), [], "either may be right");
}

/// Four GPUs at work, of which the third has a lower limit and runs into it, in one job or in one job each.
fn at_the_limit(is_one_job: bool) -> RuleTester {
    let mut infos = gpus(0..4);
    for info in &mut infos {
        info.name = Some("NVIDIA H100 80GB HBM3".into());
    }
    let mut tester = RuleTester::new(infos);
    tester.run(1500.0, |tester, _| {
        let mut readings: Vec<GpuReading> = (0..4).map(|_| tester.gpu(98, 450.0, 40, 40)).collect();
        readings[2].power_limit_watts = Some(460.0);
        let all: Vec<(u16, u64)> = (0..4).map(|gpu| (gpu, 40)).collect();
        let processes = if is_one_job {
            vec![process(7, "python train.py", &all)]
        } else {
            (0..4).map(|gpu| process(7 + u32::from(gpu), "python train.py", &[(gpu, 40)])).collect()
        };
        TestSample { gpus: readings, processes }
    });
    tester
}

#[test]
fn a_power_limit_that_slows_down_a_job_warns() {
    assert_eq!(at_the_limit(true).firing(), [("power-limit-low", "warn")]);
    assert_eq!(at_the_limit(false).firing(), [("power-limit-low", "info")], "its job has no other GPU");
}

/// Busy boards with these clocks in MHz, of at most `max`, of which the driver slows down the first `hot` because of heat.
fn with_hot_boards(max: u32, clocks: &[u32], hot: usize, seconds: f64, processes: &[TestProcess]) -> RuleTester {
    let mut infos = gpus(0..clocks.len() as u32);
    for info in &mut infos {
        info.clock_sm_max_mhz = Some(max);
    }
    let mut tester = RuleTester::new(infos);
    tester.run(seconds, |tester, _| {
        let reading = |(position, clock): (usize, &u32)| GpuReading {
            clock_sm_mhz: Some(*clock),
            clocks_event_reasons: (position < hot).then_some(0x20),
            ..tester.gpu(98, 450.0, 40, 40)
        };
        TestSample { gpus: clocks.iter().enumerate().map(reading).collect(), processes: processes.to_vec() }
    });
    tester
}

fn thermal(findings: Vec<(&'static str, &'static str)>) -> Vec<&'static str> {
    findings.into_iter().filter(|(rule, _)| *rule == "thermal-throttle").map(|(_, severity)| severity).collect()
}

#[test]
fn heat_that_slows_down_a_job_warns() {
    let job = process(7, "python train.py", &[(0, 40), (1, 40)]);
    let run =
        |clock: u32| thermal(with_hot_boards(1980, &[clock, 1800], 1, 1500.0, std::slice::from_ref(&job)).fired());
    assert_eq!(run(1200), ["warn"], "a third, and its equal runs at full clock");
    assert_eq!(run(1350), ["info", "warn"]);
    assert_eq!(run(1600), ["info"]);
}

#[test]
fn a_hot_board_beside_an_equal_one_that_is_much_faster_warns() {
    let jobs = [(7, 0), (8, 1)].map(|(pid, gpu)| process(pid, "pmemd.cuda -O", &[(gpu, 1)]));
    // GeForce boards never reach their highest clock.
    let run = |clock: u32| thermal(with_hot_boards(2100, &[clock, 1815], 1, 1500.0, &jobs).fired());
    assert_eq!((run(1185), run(1500)), (vec!["warn"], vec!["info"]));
}

#[test]
fn heat_that_takes_a_third_of_the_clock_of_several_gpus_warns() {
    let job = process(7, "python train.py", &[(0, 40), (1, 40)]);
    let run = |hot: usize, clock: u32| {
        thermal(with_hot_boards(1980, &[clock; 4], hot, 900.0, std::slice::from_ref(&job)).firing())
    };
    assert_eq!(run(3, 1260), ["warn"; 3]);
    assert_eq!(run(2, 1260), ["info"; 2]);
    assert_eq!(run(4, 1260), ["warn"; 4]);
    assert_eq!(run(3, 1500), ["info"; 3], "at 0.76 of its maximum");
}

#[test]
fn a_memory_clock_far_below_that_of_a_busy_sibling_warns() {
    let run = |memory_clock: u32, sibling: u32, busy: u8| {
        let mut infos = gpus(0..2);
        for info in &mut infos {
            (info.clock_sm_max_mhz, info.clock_memory_max_mhz) = (Some(1980), Some(2619));
        }
        let mut tester = RuleTester::new(infos);
        tester.run(900.0, |tester, _| {
            let mut readings: Vec<GpuReading> = (0..2).map(|_| tester.gpu(busy, 450.0, 40, 40)).collect();
            for (reading, clock) in readings.iter_mut().zip([memory_clock, sibling]) {
                (reading.clock_sm_mhz, reading.clock_memory_mhz) = (Some(1900), Some(clock));
            }
            TestSample { gpus: readings, processes: vec![process(7, "python train.py", &[(0, 40), (1, 40)])] }
        });
        tester.firing().contains(&("clock-stuck", "warn")).then(|| tester.finding("clock-stuck").sentence.to_string())
    };
    let sentence = run(1593, 2619, 98).expect("a finding");
    assert!(
        sentence.starts_with("GPU 0 has been busy for ")
            && sentence.ends_with(" with its memory at 1593 of 2619 MHz, and others of its kind run faster"),
        "{sentence}"
    );
    assert_eq!(run(2000, 2619, 98), None, "0.76 of the maximum");
    assert_eq!(run(1593, 1593, 98), None, "all of them are locked");
    assert_eq!(run(1593, 2619, 30), None, "a GPU with little work lowers its clocks");
}

#[test]
fn a_clock_that_fell_without_a_reason_warns_after_fifteen_minutes() {
    let run = |earlier: u32| {
        let mut infos = gpus(0..1);
        infos[0].clock_sm_max_mhz = Some(1980);
        let mut tester = RuleTester::new(infos);
        for (seconds, clock) in [(600.0, earlier), (1000.0, 645)] {
            tester.run(seconds, |tester, _| {
                busy(tester, |gpu| (gpu.clock_sm_mhz, gpu.clocks_event_reasons) = (Some(clock), Some(0)))
            });
        }
        tester.fired()
    };
    assert_eq!(run(1900), [("clock-stuck", "info"), ("clock-stuck", "warn")]);
    assert_eq!(run(700), [("clock-stuck", "info")], "perhaps on purpose");
}

/// Two GPUs at these SM clocks; the first one reports these reasons.
fn with_clocks(clocks: [u32; 2], utilization: u8, reasons: u64) -> RuleTester {
    let mut infos = gpus(0..2);
    for info in &mut infos {
        info.name = Some("NVIDIA H100 80GB HBM3".into());
        info.clock_sm_max_mhz = Some(1980);
    }
    let mut tester = RuleTester::new(infos);
    tester.run(400.0, |tester, _| {
        let gpus = clocks.iter().zip([reasons, 0]).map(|(mhz, reasons)| GpuReading {
            clock_sm_mhz: Some(*mhz),
            clocks_event_reasons: Some(reasons),
            ..tester.gpu(utilization, 300.0, 40, 40)
        });
        TestSample { gpus: gpus.collect(), processes: vec![process(7, "python train.py", &[(0, 40), (1, 40)])] }
    });
    tester
}

#[test]
fn a_low_clock_without_a_reason_is_reported_under_load() {
    let tester = with_clocks([345, 1980], 98, 0);
    assert_eq!(tester.firing(), [("clock-stuck", "warn")]);
    let sentence = tester.finding("clock-stuck").sentence.to_string();
    assert!(sentence.starts_with("GPU 0 has been busy for 7 min at 345 of 1980 MHz"), "{sentence}");
    assert_eq!(with_clocks([345, 1980], 98, 0x1).firing(), [("clock-stuck", "warn")], "\"idle\" is no reason");
    assert_eq!(with_clocks([345, 345], 98, 0).firing(), [("clock-stuck", "info"); 2], "perhaps on purpose");
    assert_eq!(with_clocks([345, 1980], 98, 0x8).firing(), [("clock-stuck", "warn")], "the reason says no more");
    assert_eq!(with_clocks([345, 1980], 98, 0x4).fired(), [], "the power cap");
    assert_eq!(with_clocks([345, 1980], 98, 0x2).fired(), [], "application clocks");
    assert_eq!(with_clocks([345, 1980], 30, 0).fired(), [], "not busy");
    assert_eq!(with_clocks([1410, 1980], 98, 0).fired(), []);
}

#[test]
fn an_nvlink_that_was_up_and_is_down_is_critical() {
    let links = |active| GpuHealth { nvlinks_active: Some(active), ..GpuHealth::default() };
    let mut tester = RuleTester::new(gpus(0..1));
    with_health(&mut tester, 60.0, links(0x3FFFF));
    with_health(&mut tester, 50.0, links(0x3FFFB));
    assert_eq!(tester.fired(), []);
    with_health(&mut tester, 30.0, links(0x3FFFB));
    assert_eq!(tester.firing(), [("nvlink-down", "crit")]);
    assert!(tester.finding("nvlink-down").sentence.starts_with("GPU 0: NVLink 2 was up"));
}

#[test]
fn fewer_nvlinks_than_the_siblings_warn_after_twenty_minutes_if_some_are_active() {
    let mut infos = gpus(0..4);
    for info in &mut infos {
        info.name = Some("NVIDIA H100 80GB HBM3".into());
    }
    let run = |active: u64, seconds: f64| {
        let mut tester = RuleTester::new(infos.clone());
        tester.interval = 20.0;
        tester.run_edited(
            seconds,
            |tester, _| TestSample { gpus: (0..4).map(|_| tester.gpu(0, 70.0, 0, 0)).collect(), processes: vec![] },
            |snapshot, _| {
                let health = |active| GpuHealth { nvlinks_active: Some(active), ..GpuHealth::default() };
                let rows = [health(0x3FFFF), health(0x3FFFF), health(active), health(0x3FFFF)];
                snapshot.health = GpuHealthColumns::from_rows(&rows);
            },
        );
        (tester.firing(), tester.finding("nvlink-down").sentence.to_string())
    };
    let sentence = |count: u32| format!("GPU 2 has {count} active NVLinks, the others of its model 18");
    assert_eq!(run(0x3FF, 120.0), (vec![("nvlink-down", "info")], sentence(10)));
    assert_eq!(run(0x3FF, 1300.0), (vec![("nvlink-down", "warn")], sentence(10)));
    assert_eq!(run(0, 1300.0), (vec![("nvlink-down", "info")], sentence(0)), "perhaps no bridge");
}

#[test]
fn fewer_nvlinks_on_all_gpus_than_on_another_host_warn_once() {
    let run = |here: [u64; 4], there: u64, model: &str| {
        let named = |model: &str| {
            let mut infos = gpus(0..4);
            for info in &mut infos {
                info.name = Some(model.into());
            }
            infos
        };
        let hosts = vec![named("NVIDIA A100-SXM4-80GB"), named(model)];
        let mut tester = RuleTester::of(hosts, Thresholds::default());
        tester.interval = 20.0;
        for _ in 0..70 {
            tester.t += 20.0;
            let gpus = (0..4).map(|_| tester.gpu(0, 70.0, 0, 0)).collect();
            let sample = TestSample { gpus, processes: vec![] };
            for (host, links) in [(0, here), (1, [there; 4])] {
                let health = |active| GpuHealth { nvlinks_active: Some(active), ..GpuHealth::default() };
                tester.send(host, &sample, |snapshot| {
                    snapshot.health = GpuHealthColumns::from_rows(&links.map(health));
                });
            }
        }
        let mut found = tester.findings().into_iter().filter(|finding| finding.rule == RuleId::NvlinkDown);
        (found.next().map(|finding| (finding.severity, finding.sentence.to_string())), found.count())
    };
    let sentence = "GPUs 0-3 have 10 active NVLinks each, those of the same model on hgx-01 12".to_owned();
    assert_eq!(run([0x3FF; 4], 0xFFF, "NVIDIA A100-SXM4-80GB"), (Some((Severity::Warn, sentence)), 0));
    assert_eq!(run([0x3FF; 4], 0xFFF, "NVIDIA A100-SXM4-40GB"), (None, 0), "another model");
    assert_eq!(run([0x3FF; 4], 0x3FF, "NVIDIA A100-SXM4-80GB"), (None, 0), "as many there");
    assert_eq!(run([0; 4], 0xFFF, "NVIDIA A100-SXM4-80GB"), (None, 0), "perhaps no bridges");
}

#[test]
fn fewer_nvlinks_than_before_a_reboot_warn_and_none_do_not() {
    let run = |active: u64| {
        let links = |active| GpuHealth { nvlinks_active: Some(active), ..GpuHealth::default() };
        let mut tester = RuleTester::new(gpus(0..1));
        with_health(&mut tester, 60.0, links(0b11));
        tester.reboot(0);
        with_health(&mut tester, 120.0, links(active));
        tester.fired().into_iter().filter(|(rule, _)| *rule == "nvlink-down").collect::<Vec<_>>()
    };
    assert_eq!(run(0b01), [("nvlink-down", "warn")]);
    assert_eq!(run(0b11), []);
    assert_eq!(run(0), [], "somebody took the bridge out");
}

#[test]
fn disabled_persistence_mode_is_preexisting() {
    let mut tester = RuleTester::new(gpus(0..1));
    with_health(&mut tester, 60.0, GpuHealth { persistence_mode: Some(false), ..GpuHealth::default() });
    assert_eq!(tester.firing(), [("persistence-off", "info")]);
    assert!(tester.finding("persistence-off").is_preexisting);
    assert_eq!(tester.notified(), 0);
}
