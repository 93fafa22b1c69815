//! Every reading of a GPU beyond the common ones: rates, GPM, health, what the driver remembers, MIG, old drivers.

#![allow(clippy::expect_used, reason = "a helper of a test fails by panicking, like the test")]

use super::process::Probe;
use crate::fake_driver::{FakeDriver, devices, gpu, gpu_with};
use gpufleet::wire::{Availability, ComputeMode, GpuHealth, GpuReading, RecoveryAction, Request, Snapshot};
use serde_json::{Value, json};

/// A Hopper with everything that NVML can tell of one.
fn everything() -> Value {
    gpu_with(
        0,
        &json!({
            "pcie_generation_max": 5, "pcie_width_max": 16, "pcie_width": 8,
            "pcie_receive_bytes_per_second": 3_000_000_000_u64, "pcie_transmit_bytes_per_second": 200_000_000,
            "nvlinks": [true, true, false, true],
            "nvlink_receive_bytes_per_second": 90_000_000_000_u64, "nvlink_transmit_bytes_per_second": 80_000_000_000_u64,
            "power_violation_seconds": 12.5, "thermal_violation_seconds": 0.3, "power_brake_seconds": 7,
            "memory_temperature_celsius": 71, "memory_temperature_max_celsius": 95,
            "ecc_corrected_volatile": 1, "ecc_uncorrectable_volatile": 2, "ecc_corrected_aggregate": 30,
            "ecc_uncorrectable_aggregate": 4,
            "remapped_rows": {"correctable": 5, "uncorrectable": 6, "pending": true, "failed": false},
            "recovery_action": 4, "power_smoothing": true, "persistence_mode": true, "compute_mode": 3,
            "bar1_total_bytes": 137_438_953_472_u64, "bar1_used_bytes": 2_097_152, "minor_number": 6
        }),
    )
}

fn near(value: Option<f64>, expected: f64) -> bool {
    value.is_some_and(|value| (value / expected - 1.0).abs() < 0.05)
}

/// The first rate is off by how long a sample takes, which is long on an emulated machine.
fn with_rates(snapshot: &Snapshot) -> bool {
    let reading = snapshot.gpus.row(0);
    near(reading.pcie_receive_bytes_per_second, 3e9)
        && near(reading.pcie_transmit_bytes_per_second, 2e8)
        && near(reading.nvlink_receive_bytes_per_second, 9e10)
        && near(reading.nvlink_transmit_bytes_per_second, 8e10)
}

#[test]
fn links_violations_and_health_equal_the_script() {
    let driver = FakeDriver::new(&devices(&[everything(), gpu(1)]));
    let mut probe = Probe::on(&driver);
    let first = probe.snapshot();
    let health = first.health.row(0);
    let expected = GpuHealth {
        ecc_corrected_volatile: Some(1),
        ecc_uncorrectable_volatile: Some(2),
        ecc_corrected_aggregate: Some(30),
        ecc_uncorrectable_aggregate: Some(4),
        remapped_rows_correctable: Some(5),
        remapped_rows_uncorrectable: Some(6),
        row_remap_pending: Some(true),
        row_remap_failed: Some(false),
        recovery_action: Some(RecoveryAction::DrainAndReset),
        persistence_mode: Some(true),
        compute_mode: Some(ComputeMode::ExclusiveProcess),
        nvlinks_active: Some(0b1011),
        power_smoothing: Some(true),
        bar1_used_bytes: Some(2_097_152),
        ..GpuHealth::default()
    };
    assert_eq!(health, expected);
    let plain = first.health.row(1);
    assert_eq!((plain.ecc_corrected_volatile, plain.remapped_rows_correctable), (None, None));
    assert_eq!((plain.nvlinks_active, plain.recovery_action, plain.bar1_used_bytes), (None, None, None));
    let info = &probe.inventory().gpus[0];
    assert_eq!((info.pcie_generation_max, info.pcie_width_max), (Some(5), Some(16)));
    assert_eq!((info.bar1_total_bytes, info.memory_temperature_max_celsius), (Some(137_438_953_472), Some(95)));
    assert_eq!((info.minor_number, info.nvlink_count), (Some(6), Some(4)));
    assert_eq!((info.gpm, info.xid_events), (None, None));
    assert_eq!(probe.inventory().gpus[1].nvlink_count, None);
    let snapshot = probe.wait_for("rates", with_rates);
    assert!(snapshot.health.is_empty(), "health comes with every tenth sample");
    let reading = snapshot.gpus.row(0);
    assert_eq!((reading.power_violation_seconds, reading.thermal_violation_seconds), (Some(12.5), Some(0.3)));
    assert_eq!((reading.power_brake_seconds, reading.memory_temperature_celsius), (Some(7.0), Some(71)));
    assert_eq!(reading.pcie_width, Some(8));
    let plain = snapshot.gpus.row(1);
    assert_eq!((plain.pcie_receive_bytes_per_second, plain.nvlink_receive_bytes_per_second), (None, None));
    assert_eq!((plain.power_violation_seconds, plain.sm_activity_percent), (None, None));
    let tenth = probe.wait_for("health again", |snapshot| !snapshot.health.is_empty());
    assert_eq!((tenth.sequence, tenth.health.row(0)), (11, expected));
}

#[test]
fn pages_are_retired_where_rows_are_not_remapped() {
    let pages = json!({"retired_pages": {"single_bit": 3, "double_bit": 1, "pending": true}, "compute_mode": 2});
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &pages)]));
    let health = Probe::on(&driver).snapshot().health.row(0);
    assert_eq!((health.retired_pages_single_bit, health.retired_pages_double_bit), (Some(3), Some(1)));
    assert_eq!((health.retired_pages_pending, health.compute_mode), (Some(true), Some(ComputeMode::Prohibited)));
}

#[test]
fn renumbered_fields_are_found_on_every_driver() {
    for (version, smoothing, brake) in [
        ("565.57.01", None, Some(7.0)),
        ("570.86.15", Some(true), Some(7.0)),
        ("575.51.03", Some(true), Some(7.0)),
        ("580.65.06", Some(true), Some(7.0)),
        ("580.82.07", Some(true), Some(7.0)),
        ("590.44.01", Some(true), Some(7.0)),
    ] {
        let mut scenario = devices(&[everything()]);
        scenario["driver_version"] = json!(version);
        let driver = FakeDriver::new(&scenario);
        let snapshot = Probe::on(&driver).snapshot();
        let seen = (snapshot.health.row(0).power_smoothing, snapshot.gpus.row(0).power_brake_seconds);
        assert_eq!(seen, (smoothing, brake), "{version}");
    }
}

fn with_gpm(snapshot: &Snapshot) -> bool {
    snapshot.gpus.row(0).sm_activity_percent.is_some()
}

#[test]
fn gpm_is_read_where_a_sample_can_be_taken() {
    let gpm = json!({"gpm": {
        "sm_activity_percent": 81.25, "sm_occupancy_percent": 40, "tensor_activity_percent": 33.3,
        "dram_bandwidth_percent": 100.3, "pcie_receive_bytes_per_second": 5_000_000_000_u64,
        "pcie_transmit_bytes_per_second": 1_048_576
    }});
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &gpm), gpu(1)]));
    let mut probe = Probe::on(&driver);
    let first = probe.snapshot();
    assert_eq!(first.gpus.row(0).sm_activity_percent, None, "it takes two samples");
    assert_eq!((probe.inventory().gpus[0].gpm, probe.inventory().gpus[1].gpm), (Some(Availability::Available), None));
    let reading = probe.wait_for("GPM", with_gpm).gpus.row(0);
    assert_eq!((reading.sm_activity_percent, reading.sm_occupancy_percent), (Some(81.3), Some(40.0)));
    assert_eq!((reading.tensor_activity_percent, reading.dram_bandwidth_percent), (Some(33.3), Some(100.0)));
    assert!(near(reading.pcie_receive_bytes_per_second, 5e9), "{reading:?}");
    assert_eq!(reading.pcie_transmit_bytes_per_second, Some(1_048_576.0));
    assert_eq!(reading.nvlink_receive_bytes_per_second, None);
}

#[test]
fn a_refusal_of_gpm_is_told_once_and_not_asked_again() {
    for (code, offer) in
        [(4, Some(Availability::NotPermitted)), (3, None), (13, None), (999, Some(Availability::Refused))]
    {
        let mut scenario = devices(&[gpu_with(0, &json!({"gpm": {"sm_activity_percent": 50}}))]);
        scenario["errors"] = json!({"nvmlGpmSampleGet": code});
        let driver = FakeDriver::new(&scenario);
        let mut probe = Probe::on(&driver);
        probe.snapshot();
        assert_eq!(probe.inventory().gpus[0].gpm, offer, "code {code}");
        // It would be permitted from now on, but nobody asks.
        driver.set(&devices(&[gpu_with(0, &json!({"gpm": {"sm_activity_percent": 50}, "temperature_celsius": 44}))]));
        let later = probe.wait_for("the new script", |snapshot| snapshot.gpus.row(0).temperature_celsius == Some(44));
        let after = probe.wait_for("two more", |snapshot| snapshot.sequence >= later.sequence + 2);
        assert_eq!(after.gpus.row(0).sm_activity_percent, None, "code {code}");
        assert_eq!(after.gpus.row(0).error, None);
    }
}

#[test]
fn history_is_not_empty_at_the_start() {
    let past = json!({"past_seconds": 30, "utilization_percent": 73, "memory_utilization_percent": 21,
                      "power_watts": 412.5});
    let driver = FakeDriver::new(&devices(&[gpu(0), gpu_with(1, &past)]));
    let mut probe = Probe::on(&driver);
    let snapshot = probe.snapshot();
    let [past] = snapshot.recent_past.as_slice() else { panic!("{:?}", snapshot.recent_past) };
    assert_eq!(past.gpu, 1);
    assert!((29..=31).contains(&past.power_watts.len()), "{past:?}");
    assert!(past.power_watts.iter().all(|watts| *watts == Some(412.5)), "{past:?}");
    assert!((29..=31).contains(&past.utilization_percent.len()), "{past:?}");
    assert!(past.utilization_percent.iter().all(|percent| *percent == Some(73)), "{past:?}");
    assert!(past.memory_utilization_percent.iter().all(|percent| *percent == Some(21)), "{past:?}");
    let age = snapshot.monotonic_seconds - past.end_monotonic_seconds;
    assert!((-0.5..5.0).contains(&age), "the newest of it is {age} s old");
    assert_eq!(probe.snapshot().recent_past, []);
    probe.request(&Request::Resend);
    let again = probe.wait_for("facts again", |snapshot| !snapshot.health.is_empty());
    assert_eq!(again.recent_past, [], "it is told once");
}

#[test]
fn instances_have_their_numbers_and_their_own_gpm() {
    let instance = json!({
        "name": "MIG 3g.40gb", "uuid": "MIG-1", "memory_total_bytes": 10_000, "memory_used_bytes": 100,
        "gpu_instance_id": 2, "compute_instance_id": 0, "gpm": {"sm_activity_percent": 64}
    });
    let plain = json!({"name": "MIG 1g.10gb", "uuid": "MIG-2", "memory_total_bytes": 9, "memory_used_bytes": 1,
                       "gpu_instance_id": u32::MAX});
    let divided = gpu_with(0, &json!({"mig_enabled": true, "mig": [instance, null, plain], "past_seconds": 5}));
    let driver = FakeDriver::new(&devices(&[divided]));
    let mut probe = Probe::on(&driver);
    let first = probe.snapshot();
    let gpus = &probe.inventory().gpus;
    assert_eq!((gpus[1].gpu_instance_id, gpus[1].compute_instance_id), (Some(2), Some(0)));
    assert_eq!((gpus[1].gpm, gpus[2].gpm), (Some(Availability::Available), None));
    assert_eq!((gpus[2].gpu_instance_id, gpus[2].compute_instance_id), (None, None));
    // The driver keeps no shares of a divided GPU, but its power.
    let past: Vec<_> = first.recent_past.iter().map(|past| (past.gpu, past.utilization_percent.len())).collect();
    assert_eq!(past, [(0, 0)]);
    let snapshot = probe.wait_for("GPM of the instance", |snapshot| snapshot.gpus.row(1).sm_activity_percent.is_some());
    assert_eq!(snapshot.gpus.row(1).sm_activity_percent, Some(64.0));
    assert_eq!(snapshot.gpus.row(0).sm_activity_percent, None);
}

#[test]
fn a_part_without_memory_of_its_own_has_no_pcie_either() {
    let none = json!({
        "memory_total_bytes": null, "memory_used_bytes": null, "pcie_receive_bytes_per_second": 5,
        "pcie_transmit_bytes_per_second": 5, "power_violation_seconds": 1
    });
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &none)]));
    let mut probe = Probe::on(&driver);
    probe.snapshot();
    let reading = probe.wait_for("a mean", |snapshot| snapshot.gpus.row(0).power_mean_watts.is_some()).gpus.row(0);
    assert_eq!((reading.pcie_generation, reading.pcie_width), (None, None));
    assert_eq!((reading.pcie_receive_bytes_per_second, reading.power_violation_seconds), (None, Some(1.0)));
    let info = &probe.inventory().gpus[0];
    assert_eq!((info.unified_memory, info.pcie_generation_max, info.pcie_width_max), (Some(true), None, None));
}

#[test]
fn memory_that_gives_an_error_is_not_taken_for_the_hosts() {
    let mut scenario = devices(&[gpu(0)]);
    scenario["errors"] = json!({"nvmlDeviceGetMemoryInfo": 999, "nvmlDeviceGetMemoryInfo_v2": 999});
    let driver = FakeDriver::new(&scenario);
    let mut probe = Probe::on(&driver);
    let snapshot = probe.snapshot();
    let info = &probe.inventory().gpus[0];
    assert_eq!((info.unified_memory, info.memory_total_bytes), (None, None));
    assert_eq!((snapshot.gpus.row(0).memory_used_bytes, snapshot.gpus.row(0).pcie_generation), (None, Some(5)));
}

/// Every function that is newer than R470, or that a small part may lack.
const NEWER: [&str; 17] = [
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPages",
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetBAR1MemoryInfo",
    "nvmlDeviceRegisterEvents",
    "nvmlEventSetCreate",
    "nvmlEventSetWait_v2",
    "nvmlGpmSampleAlloc",
    "nvmlGpmSampleGet",
    "nvmlGpmMetricsGet",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetMigMode",
];

#[test]
fn a_driver_that_lacks_a_function_lacks_its_readings_and_nothing_else() {
    let device = {
        let mut device = everything();
        device["gpm"] = json!({"sm_activity_percent": 50});
        device["xid_events"] = json!(true);
        device
    };
    let driver = FakeDriver::without(&NEWER, &devices(&[device]));
    let mut probe = Probe::on(&driver);
    let snapshot = probe.snapshot();
    let info = &probe.inventory().gpus[0];
    assert_eq!((info.gpm, info.xid_events, info.mig_enabled, info.nvlink_count), (None, None, None, None));
    assert_eq!((snapshot.notes.as_slice(), snapshot.recent_past.as_slice()), ([].as_slice(), [].as_slice()));
    let reading = snapshot.gpus.row(0);
    let expected = GpuReading {
        utilization_percent: Some(0),
        memory_utilization_percent: Some(0),
        // Version 1 counts the reserved part as used.
        memory_used_bytes: Some(659_554_304),
        temperature_celsius: Some(31),
        power_watts: Some(68.5),
        clock_graphics_mhz: Some(345),
        clock_sm_mhz: Some(345),
        clock_memory_mhz: Some(2619),
        performance_state: Some(0),
        clocks_event_reasons: Some(1),
        pcie_generation: Some(5),
        pcie_width: Some(8),
        ..GpuReading::default()
    };
    assert_eq!(reading, expected);
    let health = snapshot.health.row(0);
    assert_eq!((health.ecc_corrected_aggregate, health.persistence_mode), (Some(30), Some(true)));
    assert_eq!((health.remapped_rows_correctable, health.retired_pages_single_bit), (None, None));
}
