//! Readings of GPUs and processes equal the scenario, with drivers of every version and in every error state.

use super::harness::{Probe, Sleeper, process_row};
use crate::fake_driver::{FakeDriver, devices, gpu, gpu_with};
use gpufleet::wire::{DriverErrorKind, GpuProcessKind, GpuReading, Owner, Presence, ReadingSource, Request};
use serde_json::{Value, json};
use std::path::Path;

#[test]
fn readings_equal_the_scenario() {
    let sleeper = Sleeper::start();
    let busy = gpu_with(
        0,
        &json!({
            "memory_used_bytes": 40_000_000_000_u64, "utilization_percent": 97, "memory_utilization_percent": 41,
            "temperature_celsius": 63, "memory_temperature_celsius": 71, "power_watts": 612.54, "fan_percent": 35,
            "clock_graphics_mhz": 1755, "clock_sm_mhz": 1750, "clocks_event_reasons": 0x44, "encoder_percent": 3,
            "decoder_percent": 4, "ecc_uncorrectable_volatile": 2, "performance_state": 1,
            "processes": [{"pid": sleeper.pid(), "memory_bytes": 39_000_000_000_u64, "sm_percent": 96, "memory_percent": 40}]
        }),
    );
    let driver = FakeDriver::new(&devices(&[busy, gpu(1)]));
    let mut probe = Probe::with_driver(&driver);
    let snapshot = probe.wait_for("mean power and the user's name", |snapshot| {
        // The first mean is off by the duration of a sample, which is long under emulation.
        snapshot.gpus.row(0).power_mean_watts.is_some_and(|watts| (watts - 612.5).abs() < 30.0) && snapshot.sequence > 1
    });
    let hello = probe.hello.as_ref().expect("hello came first");
    assert_eq!(hello.probe_pid, Some(probe.child.id()));
    assert_eq!(hello.source, Some(ReadingSource::Probe));
    assert!(hello.boot_id.is_some() && hello.kernel.is_some() && hello.cpu_count.is_some());
    let inventory = probe.inventory();
    assert_eq!((inventory.generation, &inventory.error), (1, &None));
    assert_eq!(inventory.driver_version.as_deref(), Some("570.86.15"));
    assert_eq!(inventory.cuda_version.as_deref(), Some("12.8"));
    assert_eq!(inventory.nvml_path.as_deref(), driver.library().to_str());
    let info = &inventory.gpus[0];
    assert_eq!((info.index, info.name.as_deref()), (0, Some("NVIDIA H100 80GB HBM3")));
    assert_eq!(info.uuid.as_deref(), Some("GPU-00000000-0000-4000-8000-000000000000"));
    assert_eq!(info.pci_bus_id.as_deref(), Some("00000000:01:00.0"));
    assert_eq!((info.memory_total_bytes, info.unified_memory), (Some(85_520_809_984), None));
    assert_eq!((info.power_limit_watts, info.power_limit_max_watts), (Some(700.0), Some(700.0)));
    assert_eq!((info.clock_sm_max_mhz, info.clock_memory_max_mhz), (Some(1980), Some(2619)));
    assert_eq!((info.temperature_slowdown_celsius, info.temperature_shutdown_celsius), (Some(87), Some(92)));
    assert_eq!(info.mig_enabled, Some(false));
    assert_eq!((snapshot.generation, snapshot.gpus.len()), (1, 2));
    let reading = snapshot.gpus.row(0);
    let mean = reading.power_mean_watts.expect("mean power");
    assert!((mean - 612.5).abs() < 30.0, "the mean power from the energy counter is {mean} W");
    assert!(reading.energy_joules.is_some_and(|joules| joules > 1000.0));
    let expected = GpuReading {
        utilization_percent: Some(97),
        memory_utilization_percent: Some(41),
        memory_used_bytes: Some(40_000_000_000),
        memory_reserved_bytes: Some(655_360_000),
        temperature_celsius: Some(63),
        memory_temperature_celsius: Some(71),
        power_watts: Some(612.5),
        power_mean_watts: reading.power_mean_watts,
        energy_joules: reading.energy_joules,
        clock_graphics_mhz: Some(1755),
        clock_sm_mhz: Some(1750),
        clock_memory_mhz: Some(2619),
        fan_percent: Some(35),
        performance_state: Some(1),
        clocks_event_reasons: Some(0x44),
        encoder_percent: Some(3),
        decoder_percent: Some(4),
        pcie_generation: Some(5),
        pcie_width: Some(16),
        ..GpuReading::default()
    };
    assert_eq!(reading, expected);
    assert_eq!(snapshot.gpus.row(1).utilization_percent, Some(0));
    assert_eq!(snapshot.gpus.row(1).fan_percent, None);
    assert_eq!(snapshot.gpu_processes.len(), 1);
    let on_gpu = snapshot.gpu_processes.row(0);
    assert_eq!((on_gpu.pid, on_gpu.gpu, on_gpu.kind), (Some(sleeper.pid()), Some(0), Some(GpuProcessKind::Compute)));
    assert_eq!((on_gpu.gpu_memory_bytes, on_gpu.sm_percent), (Some(39_000_000_000), Some(96)));
    let process = snapshot.processes.row(process_row(&snapshot, sleeper.pid()));
    assert_eq!((process.presence, process.start_ticks), (Some(Presence::Visible), Some(sleeper.start_ticks())));
    assert!(process.rss_bytes.is_some_and(|bytes| bytes > 0) && process.cpu_percent.is_some());
    assert!(snapshot.host.memory_total_bytes.is_some() && snapshot.host.cpu_percent.is_some());
    let cost = snapshot.cost.expect("the cost of the probe");
    assert!(cost.cpu_seconds > 0.0 && cost.rss_bytes.is_some_and(|bytes| bytes > 0));
    probe.request(&Request::Resend);
    let health = probe.wait_for("health again", |snapshot| !snapshot.health.is_empty()).health;
    assert_eq!(health.row(0).ecc_uncorrectable_volatile, Some(2));
    probe.request(&Request::Resend);
    probe.wait_for("facts again", |snapshot| snapshot.facts.iter().any(|facts| facts.user.is_some()));
    let facts = probe.facts.last().expect("facts came");
    assert_eq!(facts.argv, ["/bin/sh", "-c", "read _wait", "job", "--token=***"]);
    assert_eq!(facts.ancestors.first().map(|parent| parent.pid), Some(std::process::id()));
    assert_eq!(facts.uid, hello_uid(&probe));
    assert!(!matches!(facts.owner, Some(Owner::Slurm { .. })));
}

fn hello_uid(probe: &Probe) -> Option<u32> {
    probe.hello.as_ref().and_then(|hello| hello.login_uid)
}

#[test]
fn missing_library_is_reported_and_host_readings_still_arrive() {
    let mut probe = Probe::start(Path::new("/nonexistent/libnvidia-ml.so.1"), &[]);
    let snapshot = probe.snapshot();
    let error = probe.inventory().error.clone().expect("a reason");
    assert_eq!((error.kind, error.code), (DriverErrorKind::NoLibrary, None));
    assert!(error.message.starts_with("the configured NVML library cannot be loaded:"), "{}", error.message);
    assert!(snapshot.host.load_1.is_some() && snapshot.gpus.is_empty());
}

#[test]
fn version_mismatch_is_reported_and_recovery_is_noticed() {
    let mut scenario = devices(&[gpu(0)]);
    scenario["init_error"] = json!(18);
    let driver = FakeDriver::new(&scenario);
    let mut probe = Probe::with_driver(&driver);
    probe.snapshot();
    let error = probe.inventory().error.clone().expect("a reason");
    assert_eq!((error.kind, error.code), (DriverErrorKind::VersionMismatch, Some(18)));
    scenario["init_error"] = Value::Null;
    driver.set(&scenario);
    let snapshot = probe.wait_for("GPUs", |snapshot| snapshot.gpus.len() == 1);
    assert_eq!((probe.inventory().generation, probe.inventory().gpus.len()), (2, 1));
    assert_eq!(snapshot.generation, 2);
}

#[test]
fn each_nvml_init_error_has_its_kind() {
    for (code, kind) in [
        (12, DriverErrorKind::NoLibrary),
        (9, DriverErrorKind::DriverNotLoaded),
        (4, DriverErrorKind::NoPermission),
        (999, DriverErrorKind::Unknown),
    ] {
        let driver = FakeDriver::new(&json!({ "init_error": code }));
        let mut probe = Probe::with_driver(&driver);
        probe.snapshot();
        assert_eq!(probe.inventory().error.as_ref().map(|error| (error.kind, error.code)), Some((kind, Some(code))));
    }
    let driver = FakeDriver::new(&devices(&[]));
    let mut probe = Probe::with_driver(&driver);
    probe.snapshot();
    assert_eq!(probe.inventory().error.as_ref().map(|error| error.kind), Some(DriverErrorKind::NoGpus));
}

#[test]
fn lost_gpu_keeps_its_row_and_does_not_affect_other_gpus() {
    let driver = FakeDriver::new(&devices(&[gpu(0), gpu(1)]));
    let mut probe = Probe::with_driver(&driver);
    probe.snapshot();
    driver.set(&devices(&[gpu_with(0, &json!({"error": 15})), gpu(1)]));
    let snapshot = probe.wait_for("the loss", |snapshot| snapshot.gpus.row(0).error.is_some());
    let error = snapshot.gpus.row(0).error.expect("an error");
    assert_eq!((error.kind, error.code), (DriverErrorKind::GpuLost, Some(15)));
    assert_eq!(snapshot.gpus.row(0), GpuReading { error: Some(error), ..GpuReading::default() });
    assert_eq!(snapshot.gpus.row(1).temperature_celsius, Some(31));
    // The inventory is checked with every tenth sample, and keeps the GPU.
    let later = snapshot.sequence + 12;
    probe.wait_for("a while later", |snapshot| snapshot.sequence >= later);
    assert_eq!((probe.inventory().generation, probe.inventory().gpus.len()), (1, 2));
    driver.set(&devices(&[gpu(0), gpu(1)]));
    probe.wait_for("its return", |snapshot| snapshot.gpus.row(0).temperature_celsius == Some(31));
}

#[test]
fn gpu_lost_at_the_start_has_a_row_and_gets_its_name_on_recovery() {
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &json!({"handle_error": 15})), gpu(1)]));
    let mut probe = Probe::with_driver(&driver);
    let snapshot = probe.snapshot();
    assert_eq!((probe.inventory().gpus.len(), &probe.inventory().gpus[0].uuid), (2, &None));
    assert_eq!(snapshot.gpus.row(0).error.map(|error| error.kind), Some(DriverErrorKind::GpuLost));
    driver.set(&devices(&[gpu(0), gpu(1)]));
    probe.wait_for("its return", |snapshot| snapshot.generation == 2);
    assert!(probe.inventory().gpus[0].uuid.is_some());
}

#[test]
fn gpu_with_a_reset_or_unknown_error_is_read_again_in_each_sample() {
    let driver = FakeDriver::new(&devices(&[gpu(0), gpu(1)]));
    let mut probe = Probe::with_driver(&driver);
    for (code, kind, prefix) in [
        (16, DriverErrorKind::ResetRequired, "the GPU must be reset: "),
        (999, DriverErrorKind::Unknown, "the driver returns an unknown error for this GPU: "),
    ] {
        driver.set(&devices(&[gpu(0), gpu_with(1, &json!({"error": code}))]));
        let snapshot = probe.wait_for("the error", |snapshot| snapshot.gpus.row(1).error.is_some());
        let error = snapshot.gpus.row(1).error.expect("an error");
        assert_eq!((error.kind, error.code), (kind, Some(code)));
        assert!(error.message.starts_with(prefix), "{}", error.message);
        assert_eq!(snapshot.gpus.row(1), GpuReading { error: Some(error), ..GpuReading::default() });
        assert_eq!((snapshot.gpus.row(0).temperature_celsius, snapshot.driver_error), (Some(31), None));
        driver.set(&devices(&[gpu(0), gpu(1)]));
        probe.wait_for("its return", |snapshot| snapshot.gpus.row(1).temperature_celsius == Some(31));
    }
}

#[test]
fn missing_mig_instance_ids_are_none() {
    let instance = json!({
        "uuid": "MIG-1", "memory_total_bytes": 1000, "gpu_instance_id": u32::MAX, "compute_instance_id": u32::MAX
    });
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &json!({"mig_enabled": true, "mig": [null, instance]}))]));
    let mut probe = Probe::with_driver(&driver);
    probe.snapshot();
    let info = &probe.inventory().gpus[1];
    assert_eq!((info.uuid.as_deref(), info.gpu_instance_id, info.compute_instance_id), (Some("MIG-1"), None, None));
}

#[test]
fn one_failed_reading_does_not_affect_the_others() {
    let mut scenario = devices(&[gpu_with(0, &json!({"utilization_percent": null, "power_watts": null}))]);
    scenario["errors"] = json!({"nvmlDeviceGetTemperature": 999, "nvmlDeviceGetPerformanceState": 17});
    let driver = FakeDriver::new(&scenario);
    let reading = Probe::with_driver(&driver).snapshot().gpus.row(0);
    assert_eq!((&reading.error, reading.utilization_percent, reading.power_watts), (&None, None, None));
    assert_eq!((reading.temperature_celsius, reading.performance_state), (None, None));
    assert_eq!(reading.clock_sm_mhz, Some(345));
}

#[test]
fn refused_list_of_processes_differs_from_an_empty_one() {
    for (code, is_unknown) in [(0, None), (3, Some(true)), (4, Some(true))] {
        let mut scenario = devices(&[gpu(0)]);
        if code > 0 {
            let calls = ["", "_v2", "_v3"].map(|version| format!("nvmlDeviceGetComputeRunningProcesses{version}"));
            scenario["errors"] = calls.into_iter().map(|call| (call, json!(code))).collect();
        }
        let driver = FakeDriver::new(&scenario);
        let snapshot = Probe::with_driver(&driver).snapshot();
        assert_eq!(snapshot.gpus.row(0).processes_unknown, is_unknown, "{code}");
        assert_eq!(snapshot.gpu_processes.len(), 0);
    }
}

#[test]
fn gone_and_unknown_processes_have_rows() {
    let mut gone = Sleeper::start();
    let scenario = devices(&[gpu_with(
        0,
        &json!({"processes": [
            {"pid": gone.pid(), "memory_bytes": 1000}, {"pid": 0, "memory_bytes": 2000},
            {"pid": 4_294_967_295_u32}, {"pid": 4_194_305, "memory_bytes": 3000}
        ]}),
    )]);
    let driver = FakeDriver::new(&scenario);
    let mut probe = Probe::with_driver(&driver);
    let snapshot = probe.snapshot();
    let rows: Vec<_> =
        (0..4).map(|row| snapshot.gpu_processes.row(row)).map(|row| (row.pid, row.gpu_memory_bytes)).collect();
    assert_eq!(rows, [(Some(gone.pid()), Some(1000)), (None, Some(2000)), (None, None), (Some(4_194_305), Some(3000))]);
    let ticks = gone.start_ticks();
    gone.end();
    let snapshot = probe.wait_for("the end of the process", |snapshot| {
        snapshot.processes.row(process_row(snapshot, gone.pid())).presence == Some(Presence::Gone)
    });
    assert_eq!(snapshot.processes.row(process_row(&snapshot, gone.pid())).start_ticks, Some(ticks));
    let never = snapshot.processes.row(process_row(&snapshot, 4_194_305));
    assert_eq!((never.presence, never.start_ticks), (Some(Presence::Gone), None));
}

#[test]
fn processes_with_the_most_memory_are_kept_when_there_are_too_many() {
    // Pids above the kernel's maximum, so that /proc has no entry for them.
    let process = |number: u64| json!({"pid": 4_200_000 + number, "memory_bytes": 1000 + number, "sm_percent": 1});
    let processes: Vec<Value> = (0..5000).map(process).collect();
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &json!({"processes": processes}))]));
    let snapshot = Probe::with_driver(&driver).snapshot();
    assert_eq!((snapshot.gpu_processes.len(), snapshot.processes_left_out), (2048, 2952));
    let least = (0..2048).filter_map(|row| snapshot.gpu_processes.row(row).gpu_memory_bytes).min();
    assert_eq!(least, Some(3952));
    assert!(
        snapshot.notes.contains(&"2952 processes with little GPU memory are left out".into()),
        "{:?}",
        snapshot.notes
    );
}

#[test]
fn process_in_several_lists_is_one_row_per_gpu() {
    let sleeper = Sleeper::start();
    let process = |kind| json!({"processes": [{"pid": sleeper.pid(), "kind": kind, "memory_bytes": 5000}]});
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &process("C+G")), gpu_with(1, &process("M"))]));
    let snapshot = Probe::with_driver(&driver).snapshot();
    assert_eq!(snapshot.gpu_processes.kind, [Some(GpuProcessKind::ComputeAndGraphics), Some(GpuProcessKind::Mps)]);
    assert_eq!((snapshot.gpu_processes.gpu, snapshot.processes.len()), (vec![Some(0), Some(1)], 1));
}

#[test]
fn processes_that_join_or_leave_an_empty_list_are_noticed() {
    let sleeper = Sleeper::start();
    let with = |processes: Value| devices(&[gpu_with(0, &json!({"processes": processes}))]);
    let driver = FakeDriver::new(&with(json!([])));
    let mut probe = Probe::with_driver(&driver);
    assert_eq!(probe.snapshot().gpu_processes.len(), 0);
    // Empty process lists are not read in every sample; the timeout is far longer than their interval.
    for (kind, expected) in
        [("G", GpuProcessKind::Graphics), ("M", GpuProcessKind::Mps), ("C", GpuProcessKind::Compute)]
    {
        driver.set(&with(json!([{"pid": sleeper.pid(), "kind": kind, "memory_bytes": 5000}])));
        probe.wait_for(kind, |snapshot| snapshot.gpu_processes.kind == [Some(expected)]);
        driver.set(&with(json!([])));
        probe.wait_for("no process", |snapshot| snapshot.gpu_processes.is_empty());
    }
}

#[test]
fn every_supported_driver_version_is_read() {
    let sleepers: Vec<Sleeper> = (0..3).map(|_| Sleeper::start()).collect();
    let processes: Vec<Value> =
        sleepers.iter().map(|sleeper| json!({"pid": sleeper.pid(), "memory_bytes": 5000})).collect();
    let mut scenario = devices(&[gpu_with(0, &json!({"processes": processes}))]);
    let lists = ["Compute", "Graphics", "MPSCompute"];
    let versions = |suffix: &str| lists.map(|list| format!("nvmlDeviceGet{list}RunningProcesses{suffix}"));
    let (v3, v2) = (versions("_v3"), versions("_v2"));
    let v3: Vec<&str> = v3.iter().map(String::as_str).collect();
    let v2: Vec<&str> = v2.iter().map(String::as_str).collect();
    let old = ["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetFanSpeed_v2"];
    let drivers: [(&str, Vec<&str>, &[&str]); 4] = [
        ("today", vec![], &[]),
        ("early R535", vec!["nvmlDeviceGetRunningProcessDetailList"], &["early_r535"]),
        ("R470", [v3.as_slice(), &old].concat(), &[]),
        ("R418", [v3.as_slice(), &v2, &old, &["nvmlDeviceGetMigMode"]].concat(), &[]),
    ];
    for (name, missing, quirks) in drivers {
        scenario["quirks"] = json!(quirks);
        let driver = FakeDriver::without(&missing, &scenario);
        let snapshot = Probe::with_driver(&driver).snapshot();
        let pids: Vec<Option<u32>> = sleepers.iter().map(|sleeper| Some(sleeper.pid())).collect();
        assert_eq!(snapshot.gpu_processes.pid, pids, "{name}");
        assert_eq!(snapshot.gpu_processes.gpu_memory_bytes, [Some(5000); 3], "{name}");
        let reading = snapshot.gpus.row(0);
        let is_v1 = missing.contains(&"nvmlDeviceGetMemoryInfo_v2");
        let memory = if is_v1 { (Some(659_554_304), None) } else { (Some(4_194_304), Some(655_360_000)) };
        assert_eq!((reading.memory_used_bytes, reading.memory_reserved_bytes), memory, "{name}");
        assert_eq!(reading.clocks_event_reasons, Some(1), "{name}");
    }
}

#[test]
fn overstated_counts_and_missing_terminators_are_survived() {
    let sleeper = Sleeper::start();
    let process = json!({"pid": sleeper.pid(), "memory_bytes": null, "sm_percent": 50});
    let mut scenario = devices(&[gpu_with(0, &json!({"processes": [process], "utilization_percent": 4_000_000}))]);
    scenario["quirks"] = json!(["unterminated_texts", "overstated_counts", "junk_samples"]);
    let driver = FakeDriver::new(&scenario);
    let mut probe = Probe::with_driver(&driver);
    let snapshot = probe.snapshot();
    let name = probe.inventory().gpus[0].name.clone().expect("a name");
    assert!(name.starts_with("NVIDIA H100 80GB HBM3xxx") && name.len() == 96, "{name}");
    assert_eq!(snapshot.gpus.row(0).utilization_percent, None);
    let ours = (0..snapshot.gpu_processes.len()).map(|row| snapshot.gpu_processes.row(row));
    let ours: Vec<_> = ours.filter(|row| row.pid.is_some()).collect();
    assert_eq!((ours.len(), ours[0].gpu_memory_bytes, ours[0].sm_percent), (1, None, Some(50)));
}

#[test]
fn mig_instances_follow_their_gpu() {
    let sleeper = Sleeper::start();
    let instance = |number: u32, processes: Value| {
        json!({
            "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "uuid": format!("MIG-{number}"),
            "memory_total_bytes": 10_000, "memory_used_bytes": 100 * u64::from(number), "processes": processes
        })
    };
    let ours = json!([{"pid": sleeper.pid(), "memory_bytes": 77}]);
    let divided = |last: Value| {
        let slots = json!([null, instance(1, json!([])), null, last]);
        gpu_with(0, &json!({"mig_enabled": true, "mig": slots}))
    };
    let driver = FakeDriver::new(&devices(&[divided(instance(2, ours.clone())), gpu(1)]));
    let mut probe = Probe::with_driver(&driver);
    let snapshot = probe.snapshot();
    let gpus = &probe.inventory().gpus;
    let seen: Vec<_> = gpus.iter().map(|gpu| (gpu.index, gpu.mig_parent_uuid.clone())).collect();
    let parent = gpus[0].uuid.clone();
    assert_eq!(seen, [(0, None), (1, parent.clone()), (3, parent), (1, None)]);
    assert_eq!(snapshot.gpus.row(0).utilization_percent, None);
    assert_eq!(snapshot.gpus.row(0).temperature_celsius, Some(31));
    assert_eq!(snapshot.gpus.row(2).memory_used_bytes, Some(200));
    assert_eq!(snapshot.gpus.row(3).utilization_percent, Some(0));
    // The process belongs only to the instance, not to its parent GPU.
    assert_eq!((snapshot.gpu_processes.gpu, snapshot.gpu_processes.gpu_memory_bytes), (vec![Some(2)], vec![Some(77)]));
    driver.set(&devices(&[divided(Value::Null), gpu(1)]));
    let snapshot = probe.wait_for("one instance less", |snapshot| snapshot.gpus.len() == 3);
    assert_eq!((probe.inventory().generation, snapshot.generation), (2, 2));
    driver.set(&devices(&[gpu(0), gpu(1)]));
    let snapshot = probe.wait_for("an undivided GPU", |snapshot| snapshot.gpus.len() == 2);
    assert_eq!(snapshot.gpus.row(0).utilization_percent, Some(0));
}

#[test]
fn unified_memory_is_not_shown_as_gpu_memory() {
    let none = json!({"memory_total_bytes": null, "memory_used_bytes": null});
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &none)]));
    let mut probe = Probe::with_driver(&driver);
    let snapshot = probe.snapshot();
    assert_eq!(
        (probe.inventory().gpus[0].unified_memory, probe.inventory().gpus[0].memory_total_bytes),
        (Some(true), None)
    );
    assert_eq!(snapshot.gpus.row(0).memory_used_bytes, None);
}
