//! Invalid driver output: values are clamped or discarded, and a note reports it.
//!
//! `tests/run --all` repeats these tests with the probe under valgrind (`GPUFLEET_TESTS_VALGRIND=1`), which must find
//! nothing. The probe is then built with `RUSTFLAGS="--cfg rustix_use_libc"`, because rustix otherwise looks for the
//! vDSO, which valgrind hides.

use super::harness::{Probe, Sleeper, process_row};
use crate::fake_driver::{FakeDriver, devices, gpu, gpu_with};
use gpufleet::wire::{DriverErrorKind, GpuHealth, GpuReading, Presence, Snapshot};
use serde_json::{Value, json};

fn start(driver: &FakeDriver) -> Probe {
    if std::env::var_os("GPUFLEET_TESTS_VALGRIND").is_some() {
        return Probe::start_under(
            &["valgrind", "--quiet", "--error-exitcode=99", "--exit-on-first-error=yes"],
            &driver.library(),
            &["--interval", "0.25"],
        );
    }
    Probe::with_driver(driver)
}

/// A GPU with every reading that the fake driver supports.
fn gpu_with_every_reading(sleeper: &Sleeper) -> Value {
    gpu_with(
        0,
        &json!({
            "memory_temperature_celsius": 50, "fan_percent": 30, "encoder_percent": 1, "decoder_percent": 1,
            "pcie_receive_bytes_per_second": 1000, "pcie_transmit_bytes_per_second": 1000,
            "nvlinks": [true, true], "nvlink_receive_bytes_per_second": 1000, "nvlink_transmit_bytes_per_second": 1000,
            "gpm": {
                "sm_activity_percent": 1, "sm_occupancy_percent": 1, "tensor_activity_percent": 1,
                "dram_bandwidth_percent": 1, "pcie_receive_bytes_per_second": 1, "pcie_transmit_bytes_per_second": 1,
                "nvlink_receive_bytes_per_second": 1, "nvlink_transmit_bytes_per_second": 1
            },
            "power_violation_seconds": 1, "thermal_violation_seconds": 1, "power_brake_seconds": 1,
            "memory_temperature_max_celsius": 90, "ecc_corrected_volatile": 1, "ecc_corrected_aggregate": 1,
            "ecc_uncorrectable_aggregate": 1, "retired_pages": {"single_bit": 1}, "recovery_action": 1,
            "power_smoothing": true, "bar1_total_bytes": 1000, "bar1_used_bytes": 1, "past_seconds": 10,
            "xid_events": true,
            "processes": [{"pid": sleeper.pid(), "memory_bytes": 5000, "sm_percent": 50}]
        }),
    )
}

fn with_quirks(gpus: &[Value], quirks: &[&str]) -> Value {
    let mut scenario = devices(gpus);
    scenario["quirks"] = json!(quirks);
    scenario
}

/// Twelve snapshots: health readings come with every tenth sample, so they occur twice.
fn twelve_snapshots(probe: &mut Probe) -> Vec<Snapshot> {
    let mut seen = Vec::new();
    probe.wait_for("twelve snapshots", |snapshot| {
        seen.push(snapshot.clone());
        snapshot.sequence >= 12
    });
    seen
}

#[test]
fn values_with_all_bits_set_are_discarded() {
    let sleeper = Sleeper::start();
    let driver = FakeDriver::new(&with_quirks(&[gpu_with_every_reading(&sleeper)], &["garbage_numbers"]));
    let mut probe = start(&driver);
    let snapshots = twelve_snapshots(&mut probe);
    let info = &probe.inventory().gpus[0];
    assert_eq!((info.memory_total_bytes, info.unified_memory), (None, None));
    assert_eq!((info.power_limit_watts, info.power_limit_max_watts, info.clock_sm_max_mhz), (None, None, None));
    assert_eq!((info.pcie_generation_max, info.pcie_width_max), (None, None));
    assert!(info.nvlink_count.is_none_or(|links| links <= 64));
    for snapshot in &snapshots {
        let reading = snapshot.gpus.row(0);
        // -1 is a valid temperature, and every bit mask is valid.
        let expected = GpuReading {
            temperature_celsius: Some(-1),
            memory_temperature_celsius: Some(-1),
            clocks_event_reasons: Some(u64::MAX),
            ..GpuReading::default()
        };
        assert_eq!(reading, expected);
        assert_eq!(snapshot.gpu_processes.row(0).gpu_memory_bytes, Some(5000));
    }
    let note = "the NVIDIA driver returned an impossible reading: it was left out";
    let count = snapshots.iter().flat_map(|snapshot| &snapshot.notes).filter(|text| **text == note).count();
    assert_eq!(count, 1, "the note comes once, not with every snapshot");
    assert!(probe.end().success());
}

#[test]
fn lists_with_overstated_counts_are_cut_at_the_buffer_size() {
    let sleeper = Sleeper::start();
    let driver = FakeDriver::new(&with_quirks(
        &[gpu_with_every_reading(&sleeper)],
        &["overstated_counts", "unterminated_texts"],
    ));
    let mut probe = start(&driver);
    let snapshots = twelve_snapshots(&mut probe);
    let notes: Vec<_> = snapshots.iter().flat_map(|snapshot| &snapshot.notes).collect();
    assert_eq!(
        notes,
        [
            "the NVIDIA driver reported more list entries than fit the buffer: the list was cut",
            "the NVIDIA driver returned an unterminated text: it was cut"
        ]
    );
    let name = probe.inventory().gpus[0].name.clone().expect("a name");
    assert_eq!(name.len(), 96);
    assert_eq!(snapshots[0].recent_past.len(), 1, "the samples that the driver wrote are there");
    assert!(probe.end().success());
}

#[test]
fn fields_of_unknown_types_and_invalid_buffered_samples_are_discarded() {
    let sleeper = Sleeper::start();
    let driver = FakeDriver::new(&with_quirks(
        &[gpu_with_every_reading(&sleeper)],
        &["garbage_types", "junk_past", "junk_samples"],
    ));
    let mut probe = start(&driver);
    let snapshots = twelve_snapshots(&mut probe);
    assert_eq!(snapshots[0].recent_past, []);
    let health = snapshots[0].health.row(0);
    assert_eq!(health, GpuHealth { recovery_action: None, power_smoothing: None, ..health.clone() });
    let reading = snapshots.last().expect("snapshots").gpus.row(0);
    assert_eq!((reading.memory_temperature_celsius, reading.power_violation_seconds), (None, None));
    assert_eq!((reading.temperature_celsius, reading.nvlink_receive_bytes_per_second), (Some(31), Some(1.0)));
    assert!(probe.end().success());
}

#[test]
fn wrong_gpu_count_still_shows_the_existing_gpus() {
    for count in [3, 40, u32::MAX] {
        let mut scenario = devices(&[gpu(0), gpu(1)]);
        scenario["device_count"] = json!(count);
        let driver = FakeDriver::new(&scenario);
        let mut probe = start(&driver);
        let snapshot = probe.snapshot();
        assert_eq!((probe.inventory().gpus.len(), snapshot.gpus.len()), (2, 2), "count {count}");
        assert_eq!(snapshot.notes, ["the NVIDIA driver counts more GPUs than it shows"], "count {count}");
        let later = probe.wait_for("an inventory check", |snapshot| snapshot.sequence >= 12);
        assert_eq!((probe.inventory().generation, later.gpus.len()), (1, 2), "count {count}");
    }
}

#[test]
fn probe_survives_a_gpu_count_that_changes_on_every_call() {
    let sleeper = Sleeper::start();
    let gpus = [gpu_with_every_reading(&sleeper), gpu(1), gpu(2)];
    let driver = FakeDriver::new(&with_quirks(&gpus, &["flickering_count"]));
    let mut probe = start(&driver);
    probe.wait_for("some inventory checks", |snapshot| {
        assert!(snapshot.gpus.len() <= 3);
        snapshot.sequence >= 42
    });
    assert!(probe.inventory().gpus.len() <= 3);
    assert!(probe.inventory().error.as_ref().is_none_or(|error| error.kind == DriverErrorKind::NoGpus));
    assert!(probe.end().success());
}

#[test]
fn out_of_range_values_are_discarded() {
    let wild = json!({
        "memory_total_bytes": 9_000_000_000_000_000_000_u64, "memory_used_bytes": 1e30, "utilization_percent": -5,
        "temperature_celsius": 4e9, "power_watts": 1e12, "fan_percent": 1e9, "energy_joules": 1e18,
        "clock_sm_mhz": 1e10, "pcie_generation": 4_000_000_000_u32, "pcie_width": 77_777, "performance_state": 32,
        "minor_number": 4_294_967_295_u32, "compute_mode": 4_000_000_000_u32, "recovery_action": 4_000_000_000_u32
    });
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &wild)]));
    let mut probe = start(&driver);
    let snapshot = probe.snapshot();
    let reading = snapshot.gpus.row(0);
    assert_eq!((reading.memory_used_bytes, reading.temperature_celsius, reading.power_watts), (None, None, None));
    assert_eq!((reading.fan_percent, reading.clock_sm_mhz, reading.energy_joules), (None, None, None));
    assert_eq!((reading.pcie_generation, reading.pcie_width, reading.performance_state), (None, None, None));
    assert_eq!(reading.error, None);
    assert!(probe.end().success());
}

#[test]
fn more_processes_than_the_initial_buffer_holds_are_all_read() {
    let processes: Vec<Value> =
        (0..300).map(|number| json!({"pid": 5_000_000 + number, "memory_bytes": number})).collect();
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &json!({"processes": processes}))]));
    let mut probe = start(&driver);
    let snapshot = probe.snapshot();
    assert_eq!(snapshot.gpu_processes.len(), 300);
    assert!(snapshot.notes.is_empty(), "{:?}", snapshot.notes);
}

#[test]
fn processes_that_end_during_a_read_are_marked_gone() {
    let steady = Sleeper::start();
    let mut vanishing: Vec<Sleeper> = (0..30).map(|_| Sleeper::start()).collect();
    let pids: Vec<u32> = vanishing.iter().map(Sleeper::pid).chain([steady.pid()]).collect();
    let processes: Vec<Value> = pids.iter().map(|pid| json!({"pid": pid, "memory_bytes": 1000})).collect();
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &json!({"processes": processes}))]));
    let mut probe = start(&driver);
    probe.snapshot();
    // The processes end one after the other while the probe is sampling.
    let killer = std::thread::spawn(move || vanishing.iter_mut().for_each(Sleeper::end));
    let presence = |snapshot: &Snapshot, pid| snapshot.processes.row(process_row(snapshot, pid)).presence;
    probe.wait_for("the end of the last process", |snapshot| {
        assert_eq!((snapshot.gpu_processes.len(), snapshot.processes.len()), (pids.len(), pids.len()));
        assert_eq!(presence(snapshot, steady.pid()), Some(Presence::Visible));
        assert!(snapshot.notes.is_empty(), "{:?}", snapshot.notes);
        pids[..30].iter().all(|&pid| presence(snapshot, pid) == Some(Presence::Gone))
    });
    killer.join().expect("ends");
    assert!(probe.end().success());
}
