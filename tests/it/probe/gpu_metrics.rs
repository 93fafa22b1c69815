//! GPU metrics: link rates, GPM, health, buffered samples, MIG, Xid events, and drivers without optional functions.

use super::harness::Probe;
use crate::fake_driver::{FakeDriver, devices, gpu, gpu_with};
use gpufleet::wire::{Availability, ComputeMode, GpuHealth, GpuReading, RecoveryAction, Request, Snapshot, XidEvent};
use serde_json::{Value, json};

/// A Hopper GPU with all metrics of NVML except GPM.
fn gpu_with_every_metric() -> Value {
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
            "pcie_replays": 11, "nvlink_crc_errors": 12, "nvlink_replays": 13, "nvlink_recoveries": 14,
            "remapped_rows": {"correctable": 5, "uncorrectable": 6, "pending": true, "failed": false},
            "recovery_action": 4, "power_smoothing": true, "persistence_mode": true, "compute_mode": 3,
            "bar1_total_bytes": 137_438_953_472_u64, "bar1_used_bytes": 2_097_152, "minor_number": 6
        }),
    )
}

fn is_near(value: Option<f64>, expected: f64) -> bool {
    value.is_some_and(|value| (value / expected - 1.0).abs() < 0.05)
}

/// Whether the rates are correct. The first ones are off by the duration of a sample, which is long under emulation.
fn has_rates(snapshot: &Snapshot) -> bool {
    let reading = snapshot.gpus.row(0);
    is_near(reading.pcie_receive_bytes_per_second, 3e9)
        && is_near(reading.pcie_transmit_bytes_per_second, 2e8)
        && is_near(reading.nvlink_receive_bytes_per_second, 9e10)
        && is_near(reading.nvlink_transmit_bytes_per_second, 8e10)
}

#[test]
fn links_violations_and_health_equal_the_scenario() {
    let driver = FakeDriver::new(&devices(&[gpu_with_every_metric(), gpu(1)]));
    let mut probe = Probe::with_driver(&driver);
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
        pcie_replays: Some(11),
        nvlink_crc_errors: Some(12),
        nvlink_replays: Some(13),
        nvlink_recoveries: Some(14),
        ..GpuHealth::default()
    };
    assert_eq!(health, expected);
    let plain = first.health.row(1);
    assert_eq!((plain.ecc_corrected_volatile, plain.remapped_rows_correctable), (None, None));
    assert_eq!((plain.pcie_replays, plain.nvlink_crc_errors, plain.nvlink_replays), (None, None, None));
    assert_eq!((plain.nvlinks_active, plain.recovery_action, plain.bar1_used_bytes), (None, None, None));
    let info = &probe.inventory().gpus[0];
    assert_eq!((info.pcie_generation_max, info.pcie_width_max), (Some(5), Some(16)));
    assert_eq!((info.bar1_total_bytes, info.memory_temperature_max_celsius), (Some(137_438_953_472), Some(95)));
    assert_eq!((info.minor_number, info.nvlink_count), (Some(6), Some(4)));
    assert_eq!((info.gpm, info.xid_events), (None, None));
    assert_eq!(probe.inventory().gpus[1].nvlink_count, None);
    let snapshot = probe.wait_for("rates", has_rates);
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
fn retired_pages_are_read_when_row_remapping_is_unsupported() {
    let pages = json!({"retired_pages": {"single_bit": 3, "double_bit": 1, "pending": true}, "compute_mode": 2});
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &pages)]));
    let health = Probe::with_driver(&driver).snapshot().health.row(0);
    assert_eq!((health.retired_pages_single_bit, health.retired_pages_double_bit), (Some(3), Some(1)));
    assert_eq!((health.retired_pages_pending, health.compute_mode), (Some(true), Some(ComputeMode::Prohibited)));
}

#[test]
fn renumbered_fields_are_read_on_every_driver_version() {
    for (version, smoothing, brake) in [
        ("565.57.01", None, Some(7.0)),
        ("570.86.15", Some(true), Some(7.0)),
        ("575.51.03", Some(true), Some(7.0)),
        ("580.65.06", Some(true), Some(7.0)),
        ("580.82.07", Some(true), Some(7.0)),
        ("590.44.01", Some(true), Some(7.0)),
    ] {
        let mut scenario = devices(&[gpu_with_every_metric()]);
        scenario["driver_version"] = json!(version);
        let driver = FakeDriver::new(&scenario);
        let snapshot = Probe::with_driver(&driver).snapshot();
        let seen = (snapshot.health.row(0).power_smoothing, snapshot.gpus.row(0).power_brake_seconds);
        assert_eq!(seen, (smoothing, brake), "{version}");
    }
}

fn has_gpm(snapshot: &Snapshot) -> bool {
    snapshot.gpus.row(0).sm_activity_percent.is_some()
}

#[test]
fn gpm_is_read_when_samples_are_supported() {
    let gpm = json!({"gpm": {
        "sm_activity_percent": 81.25, "sm_occupancy_percent": 40, "tensor_activity_percent": 33.3,
        "dram_bandwidth_percent": 100.3, "pcie_receive_bytes_per_second": 5_000_000_000_u64,
        "pcie_transmit_bytes_per_second": 1_048_576
    }});
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &gpm), gpu(1)]));
    let mut probe = Probe::with_driver(&driver);
    let first = probe.snapshot();
    assert_eq!(first.gpus.row(0).sm_activity_percent, None, "GPM needs two samples");
    assert_eq!((probe.inventory().gpus[0].gpm, probe.inventory().gpus[1].gpm), (Some(Availability::Available), None));
    let reading = probe.wait_for("GPM", has_gpm).gpus.row(0);
    assert_eq!((reading.sm_activity_percent, reading.sm_occupancy_percent), (Some(81.3), Some(40.0)));
    assert_eq!((reading.tensor_activity_percent, reading.dram_bandwidth_percent), (Some(33.3), Some(100.0)));
    assert!(is_near(reading.pcie_receive_bytes_per_second, 5e9), "{reading:?}");
    assert_eq!(reading.pcie_transmit_bytes_per_second, Some(1_048_576.0));
    assert_eq!(reading.nvlink_receive_bytes_per_second, None);
}

#[test]
fn refused_gpm_is_reported_and_not_tried_again() {
    for (code, availability) in
        [(4, Some(Availability::NotPermitted)), (3, None), (13, None), (999, Some(Availability::Refused))]
    {
        let mut scenario = devices(&[gpu_with(0, &json!({"gpm": {"sm_activity_percent": 50}}))]);
        scenario["errors"] = json!({"nvmlGpmSampleGet": code});
        let driver = FakeDriver::new(&scenario);
        let mut probe = Probe::with_driver(&driver);
        probe.snapshot();
        assert_eq!(probe.inventory().gpus[0].gpm, availability, "code {code}");
        // GPM would work from now on, but the probe does not try again.
        driver.set(&devices(&[gpu_with(0, &json!({"gpm": {"sm_activity_percent": 50}, "temperature_celsius": 44}))]));
        let later = probe.wait_for("the new script", |snapshot| snapshot.gpus.row(0).temperature_celsius == Some(44));
        let after = probe.wait_for("two more", |snapshot| snapshot.sequence >= later.sequence + 2);
        assert_eq!(after.gpus.row(0).sm_activity_percent, None, "code {code}");
        assert_eq!(after.gpus.row(0).error, None);
    }
}

#[test]
fn buffered_samples_fill_the_history_at_the_start() {
    let past = json!({"past_seconds": 30, "utilization_percent": 73, "memory_utilization_percent": 21,
                      "power_watts": 412.5});
    let driver = FakeDriver::new(&devices(&[gpu(0), gpu_with(1, &past)]));
    let mut probe = Probe::with_driver(&driver);
    let snapshot = probe.snapshot();
    let [past] = snapshot.recent_past.as_slice() else { panic!("{:?}", snapshot.recent_past) };
    assert_eq!(past.gpu, 1);
    assert!((29..=31).contains(&past.power_watts.len()), "{past:?}");
    assert!(past.power_watts.iter().all(|watts| *watts == Some(412.5)), "{past:?}");
    assert!((29..=31).contains(&past.utilization_percent.len()), "{past:?}");
    assert!(past.utilization_percent.iter().all(|percent| *percent == Some(73)), "{past:?}");
    assert!(past.memory_utilization_percent.iter().all(|percent| *percent == Some(21)), "{past:?}");
    let age = snapshot.monotonic_seconds - past.end_monotonic_seconds;
    assert!((-0.5..5.0).contains(&age), "the newest sample is {age} s old");
    assert_eq!(probe.snapshot().recent_past, []);
    probe.request(&Request::Resend);
    let again = probe.wait_for("facts again", |snapshot| !snapshot.health.is_empty());
    assert_eq!(again.recent_past, [], "it is sent once");
}

#[test]
fn mig_instances_have_ids_and_gpm() {
    let instance = json!({
        "name": "MIG 3g.40gb", "uuid": "MIG-1", "memory_total_bytes": 10_000, "memory_used_bytes": 100,
        "gpu_instance_id": 2, "compute_instance_id": 0, "gpm": {"sm_activity_percent": 64}
    });
    let plain = json!({"name": "MIG 1g.10gb", "uuid": "MIG-2", "memory_total_bytes": 9, "memory_used_bytes": 1,
                       "gpu_instance_id": u32::MAX});
    let divided = gpu_with(0, &json!({"mig_enabled": true, "mig": [instance, null, plain], "past_seconds": 5}));
    let driver = FakeDriver::new(&devices(&[divided]));
    let mut probe = Probe::with_driver(&driver);
    let first = probe.snapshot();
    let gpus = &probe.inventory().gpus;
    assert_eq!((gpus[1].gpu_instance_id, gpus[1].compute_instance_id), (Some(2), Some(0)));
    assert_eq!((gpus[1].gpm, gpus[2].gpm), (Some(Availability::Available), None));
    assert_eq!((gpus[2].gpu_instance_id, gpus[2].compute_instance_id), (None, None));
    // The driver buffers the power of a MIG GPU, but no utilization.
    let past: Vec<_> = first.recent_past.iter().map(|past| (past.gpu, past.utilization_percent.len())).collect();
    assert_eq!(past, [(0, 0)]);
    let snapshot = probe.wait_for("GPM of the instance", |snapshot| snapshot.gpus.row(1).sm_activity_percent.is_some());
    assert_eq!(snapshot.gpus.row(1).sm_activity_percent, Some(64.0));
    assert_eq!(snapshot.gpus.row(0).sm_activity_percent, None);
}

#[test]
fn gpu_with_unified_memory_has_no_pcie_readings() {
    let none = json!({
        "memory_total_bytes": null, "memory_used_bytes": null, "pcie_receive_bytes_per_second": 5,
        "pcie_transmit_bytes_per_second": 5, "power_violation_seconds": 1
    });
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &none)]));
    let mut probe = Probe::with_driver(&driver);
    probe.snapshot();
    let reading = probe.wait_for("a mean", |snapshot| snapshot.gpus.row(0).power_mean_watts.is_some()).gpus.row(0);
    assert_eq!((reading.pcie_generation, reading.pcie_width), (None, None));
    assert_eq!((reading.pcie_receive_bytes_per_second, reading.power_violation_seconds), (None, Some(1.0)));
    let info = &probe.inventory().gpus[0];
    assert_eq!((info.unified_memory, info.pcie_generation_max, info.pcie_width_max), (Some(true), None, None));
}

#[test]
fn memory_error_is_not_taken_for_unified_memory() {
    let mut scenario = devices(&[gpu(0)]);
    scenario["errors"] = json!({"nvmlDeviceGetMemoryInfo": 999, "nvmlDeviceGetMemoryInfo_v2": 999});
    let driver = FakeDriver::new(&scenario);
    let mut probe = Probe::with_driver(&driver);
    let snapshot = probe.snapshot();
    let info = &probe.inventory().gpus[0];
    assert_eq!((info.unified_memory, info.memory_total_bytes), (None, None));
    assert_eq!((snapshot.gpus.row(0).memory_used_bytes, snapshot.gpus.row(0).pcie_generation), (None, Some(5)));
}

/// Functions that are newer than R470 or that small GPUs may lack.
const OPTIONAL_FUNCTIONS: [&str; 17] = [
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
fn missing_driver_functions_only_remove_their_readings() {
    let device = {
        let mut device = gpu_with_every_metric();
        device["gpm"] = json!({"sm_activity_percent": 50});
        device["xid_events"] = json!(true);
        device
    };
    let driver = FakeDriver::without(&OPTIONAL_FUNCTIONS, &devices(&[device]));
    let mut probe = Probe::with_driver(&driver);
    let snapshot = probe.snapshot();
    let info = &probe.inventory().gpus[0];
    assert_eq!((info.gpm, info.xid_events, info.mig_enabled, info.nvlink_count), (None, None, None, None));
    assert_eq!((snapshot.notes.as_slice(), snapshot.recent_past.as_slice()), ([].as_slice(), [].as_slice()));
    let reading = snapshot.gpus.row(0);
    let expected = GpuReading {
        utilization_percent: Some(0),
        memory_utilization_percent: Some(0),
        // Version 1 of the function counts reserved memory as used.
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

fn gpu_with_xid_events(index: u32) -> Value {
    gpu_with(index, &json!({"xid_events": true}))
}

fn with_xids(gpus: &[Value], xids: &Value) -> Value {
    let mut scenario = devices(gpus);
    scenario["xids"] = xids.clone();
    scenario
}

#[test]
fn xid_events_arrive_with_their_gpu_and_older_ones_do_not() {
    let gpus = [gpu(0), gpu_with_xid_events(1)];
    let driver = FakeDriver::new(&with_xids(&gpus, &json!([{"gpu": 1, "xid": 13}])));
    let mut probe = Probe::with_driver(&driver);
    let before = probe.snapshot();
    assert_eq!(
        (probe.inventory().gpus[0].xid_events, probe.inventory().gpus[1].xid_events),
        (None, Some(Availability::Available))
    );
    driver.set(&with_xids(&gpus, &json!([{"gpu": 1, "xid": 13}, {"gpu": 0, "xid": 31}, {"gpu": 1, "xid": 79}])));
    let snapshot = probe.wait_for("an Xid", |snapshot| !snapshot.xid_events.is_empty());
    let [XidEvent { gpu, xid, monotonic_seconds }] = snapshot.xid_events[..] else {
        panic!("{:?}", snapshot.xid_events)
    };
    assert_eq!((gpu, xid), (Some(1), 79));
    assert!((before.monotonic_seconds..=snapshot.monotonic_seconds).contains(&monotonic_seconds));
    assert_eq!(probe.snapshot().xid_events, []);
}

#[test]
fn xid_of_a_mig_instance_belongs_to_it() {
    let instance = json!({"uuid": "MIG-1", "memory_total_bytes": 9, "memory_used_bytes": 1, "gpu_instance_id": 3});
    let gpus = [gpu_with(0, &json!({"xid_events": true, "mig_enabled": true, "mig": [null, instance]}))];
    let driver = FakeDriver::new(&devices(&gpus));
    let mut probe = Probe::with_driver(&driver);
    probe.snapshot();
    let xids = json!([{"gpu": 0, "xid": 94, "gpu_instance_id": 3}, {"gpu": 0, "xid": 95, "gpu_instance_id": 8}]);
    driver.set(&with_xids(&gpus, &xids));
    let mut seen = Vec::new();
    probe.wait_for("both", |snapshot| {
        seen.extend(snapshot.xid_events.iter().map(|event| (event.gpu, event.xid)));
        seen.len() >= 2
    });
    assert_eq!(seen, [(Some(1), 94), (Some(0), 95)]);
}

#[test]
fn xids_of_an_unknown_device_and_a_flood_of_xids_are_survived() {
    let gpus = [gpu_with_xid_events(0)];
    let mut scenario = with_xids(&gpus, &json!([]));
    scenario["quirks"] = json!(["stray_events"]);
    let driver = FakeDriver::new(&scenario);
    let mut probe = Probe::with_driver(&driver);
    probe.snapshot();
    scenario["xids"] = (0..500).map(|number| json!({"gpu": 0, "xid": u64::MAX - number})).collect();
    driver.set(&scenario);
    let mut seen = Vec::new();
    let mut dropped = 0;
    probe.wait_for("all of them", |snapshot| {
        assert!(snapshot.xid_events.len() <= 64);
        seen.extend(snapshot.xid_events.iter().map(|event| (event.gpu, event.xid)));
        let more = snapshot.notes.iter().filter_map(|note| note.split_once(" more Xid events were left out"));
        dropped += more.map(|(number, _)| number.parse::<usize>().expect("a number")).sum::<usize>();
        seen.len() + dropped >= 500
    });
    assert_eq!(seen.len() + dropped, 500);
    assert_eq!(seen[0], (None, u64::MAX));
}

#[test]
fn refused_xid_events_differ_from_unsupported_ones() {
    for (code, availability) in [(4, Some(Availability::NotPermitted)), (3, None), (999, Some(Availability::Refused))] {
        let mut scenario = devices(&[gpu_with_xid_events(0)]);
        scenario["errors"] = json!({"nvmlDeviceRegisterEvents": code});
        let driver = FakeDriver::new(&scenario);
        let mut probe = Probe::with_driver(&driver);
        probe.snapshot();
        assert_eq!(probe.inventory().gpus[0].xid_events, availability, "code {code}");
    }
}
