use crate::diagnosis::testing::{Lab, Shot};
use crate::fleet::fixture::{gpus, process};
use crate::wire::{GpuHealth, GpuHealthColumns, GpuReading};

fn busy(lab: &mut Lab, edit: impl FnOnce(&mut GpuReading)) -> Shot {
    let mut gpu = lab.gpu(97, 550.0, 40, 40);
    edit(&mut gpu);
    Shot { gpus: vec![gpu], processes: vec![process(7, "python train.py", &[(0, 40)])] }
}

#[test]
fn heat_counts_by_the_share_of_time() {
    let mut lab = Lab::new(gpus(0..1));
    lab.play(600.0, |lab, t| busy(lab, |gpu| gpu.thermal_violation_seconds = Some(5000.0 + t * 0.22)));
    assert_eq!(lab.fired(), [("thermal-throttle", "warn")]);
    let mut lab = Lab::new(gpus(0..1));
    lab.play(600.0, |lab, _| busy(lab, |gpu| gpu.clocks_event_reasons = Some(0x40)));
    assert_eq!(lab.fired(), [("thermal-throttle", "crit")]);
}

#[test]
fn the_power_cap_and_short_blips_are_no_throttling() {
    let mut lab = Lab::new(gpus(0..1));
    lab.play(3600.0, |lab, t| {
        busy(lab, |gpu| gpu.clocks_event_reasons = Some(if t % 60.0 < 10.0 { 0xC } else { 0x4 }))
    });
    assert_eq!(lab.fired(), []);
    // A counter that begins anew.
    lab.play(600.0, |lab, t| {
        busy(lab, |gpu| gpu.thermal_violation_seconds = Some(if t < 300.0 { 9000.0 } else { 3.0 }))
    });
    assert_eq!(lab.fired(), []);
}

#[test]
fn all_of_the_time_is_a_hundred_percent() {
    let mut lab = Lab::new(gpus(0..1));
    lab.play(700.0, |lab, _| busy(lab, |gpu| gpu.clocks_event_reasons = Some(0xC0)));
    for rule in ["thermal-throttle", "power-brake"] {
        let sentence = lab.finding(rule).sentence.to_string();
        assert!(sentence.contains("for 100 % of the last"), "{sentence}");
    }
}

#[test]
fn the_power_brake_is_critical() {
    let mut lab = Lab::new(gpus(0..1));
    lab.play(300.0, |lab, _| busy(lab, |gpu| gpu.power_brake_seconds = Some(0.0)));
    assert_eq!(lab.fired(), []);
    lab.play(130.0, |lab, t| busy(lab, |gpu| gpu.power_brake_seconds = Some(t * 0.05)));
    assert_eq!(lab.fired(), [("power-brake", "crit")]);
}

#[test]
fn the_distance_to_the_threshold_counts() {
    let mut infos = gpus(0..1);
    infos[0].temperature_slowdown_celsius = Some(92);
    let mut lab = Lab::new(infos);
    lab.play(310.0, |lab, _| busy(lab, |gpu| gpu.temperature_celsius = Some(90)));
    assert_eq!(lab.firing(), [("temperature", "warn")]);
    lab.play(300.0, |lab, _| busy(lab, |gpu| gpu.temperature_celsius = Some(87)));
    assert_eq!(lab.firing(), [("temperature", "warn")], "between");
    lab.play(100.0, |lab, _| busy(lab, |gpu| gpu.temperature_celsius = Some(80)));
    assert_eq!(lab.firing(), []);
}

#[test]
fn a_narrow_link_counts_under_load_only() {
    let mut infos = gpus(0..1);
    infos[0].pcie_width_max = Some(16);
    infos[0].pcie_generation_max = Some(5);
    let mut lab = Lab::new(infos);
    lab.play(600.0, |lab, _| Shot {
        gpus: vec![GpuReading { pcie_generation: Some(1), pcie_width: Some(16), ..lab.gpu(0, 70.0, 0, 0) }],
        processes: vec![],
    });
    assert_eq!(lab.fired(), []);
    lab.play(140.0, |lab, _| {
        busy(lab, |gpu| {
            gpu.pcie_generation = Some(5);
            gpu.pcie_width = Some(8);
        })
    });
    assert_eq!(lab.firing(), [("pcie-degraded", "warn")]);
    assert_eq!(
        lab.finding("pcie-degraded").sentence,
        "GPU 0 works over PCIe gen 5 x8 where both ends can do gen 5 x16"
    );
}

fn with_health(lab: &mut Lab, seconds: f64, health: GpuHealth) {
    lab.play_edited(
        seconds,
        |lab, _| busy(lab, |_| {}),
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
    let mut lab = Lab::new(gpus(0..1));
    with_health(&mut lab, 60.0, errors(3));
    assert_eq!(lab.fired(), [], "the first look is the baseline");
    with_health(&mut lab, 60.0, errors(5));
    assert_eq!(lab.firing(), [("ecc-uncorrectable", "crit")]);
    assert!(lab.finding("ecc-uncorrectable").sentence.starts_with("GPU 0 had 2 uncorrectable"));
    with_health(&mut lab, 60.0, errors(0));
    assert_eq!(lab.firing(), [], "the driver was loaded anew");
}

#[test]
fn rows_that_wait_are_mentioned_and_failures_are_critical() {
    let mut lab = Lab::new(gpus(0..1));
    with_health(&mut lab, 20.0, GpuHealth { row_remap_pending: Some(true), ..GpuHealth::default() });
    assert_eq!(lab.firing(), [("row-remap", "info")]);
    with_health(&mut lab, 20.0, GpuHealth { row_remap_failed: Some(true), ..GpuHealth::default() });
    assert_eq!(lab.firing(), [("row-remap", "crit")]);
}

#[test]
fn a_link_that_was_up_is_missed() {
    let links = |active| GpuHealth { nvlinks_active: Some(active), ..GpuHealth::default() };
    let mut lab = Lab::new(gpus(0..1));
    with_health(&mut lab, 60.0, links(0x3FFFF));
    with_health(&mut lab, 50.0, links(0x3FFFB));
    assert_eq!(lab.fired(), []);
    with_health(&mut lab, 30.0, links(0x3FFFB));
    assert_eq!(lab.firing(), [("nvlink-down", "crit")]);
    assert!(lab.finding("nvlink-down").sentence.starts_with("GPU 0: NVLink 2 was up"));
}

#[test]
fn persistence_mode_is_a_note() {
    let mut lab = Lab::new(gpus(0..1));
    with_health(&mut lab, 60.0, GpuHealth { persistence_mode: Some(false), ..GpuHealth::default() });
    assert_eq!(lab.firing(), [("persistence-off", "info")]);
    assert!(lab.finding("persistence-off").is_note);
    assert_eq!(lab.notified(), 0);
}
