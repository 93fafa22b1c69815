use crate::diagnosis::testing::{RuleTester, TestSample};
use crate::fleet::fixture::{gpus, process};
use crate::wire::{GpuHealth, GpuHealthColumns, GpuReading};

fn busy(tester: &mut RuleTester, edit: impl FnOnce(&mut GpuReading)) -> TestSample {
    let mut gpu = tester.gpu(97, 550.0, 40, 40);
    edit(&mut gpu);
    TestSample { gpus: vec![gpu], processes: vec![process(7, "python train.py", &[(0, 40)])] }
}

#[test]
fn heat_counts_by_the_share_of_time() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(600.0, |tester, t| busy(tester, |gpu| gpu.thermal_violation_seconds = Some(5000.0 + t * 0.22)));
    assert_eq!(tester.fired(), [("thermal-throttle", "warn")]);
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(600.0, |tester, _| busy(tester, |gpu| gpu.clocks_event_reasons = Some(0x40)));
    assert_eq!(tester.fired(), [("thermal-throttle", "crit")]);
}

#[test]
fn the_power_cap_and_short_blips_are_no_throttling() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(3600.0, |tester, t| {
        busy(tester, |gpu| gpu.clocks_event_reasons = Some(if t % 60.0 < 10.0 { 0xC } else { 0x4 }))
    });
    assert_eq!(tester.fired(), []);
    // A counter that begins anew.
    tester.run(600.0, |tester, t| {
        busy(tester, |gpu| gpu.thermal_violation_seconds = Some(if t < 300.0 { 9000.0 } else { 3.0 }))
    });
    assert_eq!(tester.fired(), []);
}

#[test]
fn all_of_the_time_is_a_hundred_percent() {
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
    assert_eq!(tester.fired(), [("power-brake", "crit")]);
}

#[test]
fn the_distance_to_the_threshold_counts() {
    let mut infos = gpus(0..1);
    infos[0].temperature_slowdown_celsius = Some(92);
    let mut tester = RuleTester::new(infos);
    tester.run(310.0, |tester, _| busy(tester, |gpu| gpu.temperature_celsius = Some(90)));
    assert_eq!(tester.firing(), [("temperature", "warn")]);
    tester.run(300.0, |tester, _| busy(tester, |gpu| gpu.temperature_celsius = Some(87)));
    assert_eq!(tester.firing(), [("temperature", "warn")], "between");
    tester.run(100.0, |tester, _| busy(tester, |gpu| gpu.temperature_celsius = Some(80)));
    assert_eq!(tester.firing(), []);
}

#[test]
fn a_narrow_link_counts_under_load_only() {
    let mut infos = gpus(0..1);
    infos[0].pcie_width_max = Some(16);
    infos[0].pcie_generation_max = Some(5);
    let mut tester = RuleTester::new(infos);
    tester.run(600.0, |tester, _| TestSample {
        gpus: vec![GpuReading { pcie_generation: Some(1), pcie_width: Some(16), ..tester.gpu(0, 70.0, 0, 0) }],
        processes: vec![],
    });
    assert_eq!(tester.fired(), []);
    tester.run(140.0, |tester, _| {
        busy(tester, |gpu| {
            gpu.pcie_generation = Some(5);
            gpu.pcie_width = Some(8);
        })
    });
    assert_eq!(tester.firing(), [("pcie-degraded", "warn")]);
    assert_eq!(
        tester.finding("pcie-degraded").sentence,
        "GPU 0 works over PCIe gen 5 x8 where both ends can do gen 5 x16"
    );
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
fn new_memory_errors_count_and_old_ones_do_not() {
    let errors = |volatile| GpuHealth {
        ecc_uncorrectable_volatile: Some(volatile),
        ecc_uncorrectable_aggregate: Some(7 + volatile),
        ..GpuHealth::default()
    };
    let mut tester = RuleTester::new(gpus(0..1));
    with_health(&mut tester, 60.0, errors(3));
    assert_eq!(tester.fired(), [], "the first look is the baseline");
    with_health(&mut tester, 60.0, errors(5));
    assert_eq!(tester.firing(), [("ecc-uncorrectable", "crit")]);
    assert!(tester.finding("ecc-uncorrectable").sentence.starts_with("GPU 0 had 2 uncorrectable"));
    with_health(&mut tester, 60.0, errors(0));
    assert_eq!(tester.firing(), [], "the driver was loaded anew");
}

#[test]
fn rows_that_wait_are_mentioned_and_failures_are_critical() {
    let mut tester = RuleTester::new(gpus(0..1));
    with_health(&mut tester, 20.0, GpuHealth { row_remap_pending: Some(true), ..GpuHealth::default() });
    assert_eq!(tester.firing(), [("row-remap", "info")]);
    with_health(&mut tester, 20.0, GpuHealth { row_remap_failed: Some(true), ..GpuHealth::default() });
    assert_eq!(tester.firing(), [("row-remap", "crit")]);
}

#[test]
fn a_link_that_was_up_is_missed() {
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
fn persistence_mode_is_a_note() {
    let mut tester = RuleTester::new(gpus(0..1));
    with_health(&mut tester, 60.0, GpuHealth { persistence_mode: Some(false), ..GpuHealth::default() });
    assert_eq!(tester.firing(), [("persistence-off", "info")]);
    assert!(tester.finding("persistence-off").is_preexisting);
    assert_eq!(tester.notified(), 0);
}
