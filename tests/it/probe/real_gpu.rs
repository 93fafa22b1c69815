//! The script `tests/real-gpu` on the fake driver, with a fake `nvidia-smi`.

use super::harness::Sleeper;
use crate::fake_driver::{FakeDriver, devices, gpu, gpu_with, probe_program};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Runs the script on `driver`, with an `nvidia-smi` that answers from `script`. Returns exit status and output.
fn run_script(driver: &FakeDriver, script: &Path, record: &Path, loads: bool) -> (Option<i32>, String) {
    driver.open_to_all();
    let mut command = Command::new("python3");
    command.arg(format!("{ROOT}/tests/real-gpu")).args(["--seconds", "2"]);
    if loads {
        // The fake nvcc builds a program that uses no GPU.
        let path = std::env::var("PATH").expect("a path");
        command.env("PATH", format!("{ROOT}/tests/fake_nvml:{path}"));
    } else {
        command.arg("--no-loads");
    }
    command.arg("--probe").arg(probe_program()).arg("--library").arg(driver.library());
    command.arg("--nvidia-smi").arg(format!("{ROOT}/tests/fake_nvml/nvidia-smi")).arg("--record").arg(record);
    // The driver reads its scenario from its own folder.
    command.env("GPUFLEET_FAKE_SMI", script);
    let output = command.output().expect("python3 runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).expect("utf-8"))
}

fn scenario(sleeper: &Sleeper) -> Value {
    let processes = json!([{"pid": sleeper.pid(), "memory_bytes": 2_147_483_648_u64}]);
    let full = json!({
        "memory_used_bytes": 4_294_967_296_u64, "utilization_percent": 40, "power_watts": 300,
        "memory_temperature_celsius": 70, "fan_percent": 20, "ecc_corrected_volatile": 1, "ecc_corrected_aggregate": 7,
        "ecc_uncorrectable_aggregate": 0, "retired_pages": {"single_bit": 1, "double_bit": 0}, "compute_mode": 3,
        "clocks_event_reasons": 4, "encoder_percent": 3, "decoder_percent": 0,
        "bar1_used_bytes": 4_194_304, "bar1_total_bytes": 137_438_953_472_u64,
        "pcie_receive_bytes_per_second": 1_500_000_000_u64, "pcie_transmit_bytes_per_second": 2_000_000,
        "gpm": {"sm_activity_percent": 5}, "xid_events": true, "processes": processes
    });
    devices(&[gpu_with(0, &full), gpu(1)])
}

#[test]
fn equal_readings_report_no_difference_and_leave_a_recording() {
    let sleeper = Sleeper::start();
    let scenario = scenario(&sleeper);
    let driver = FakeDriver::new(&scenario);
    let record = driver.library().with_file_name("record.jsonl");
    let (status, text) = run_script(&driver, &driver.script(), &record, true);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("2 GPUs and 1 processes compared") && text.contains(" 0 differ\n"), "{text}");
    if rustix::process::geteuid().is_root() {
        let user = "GPU 0: GPM available, Xid events available, not readable: nothing\n";
        assert!(text.contains(user), "{text}");
    }
    assert!(text.contains("18 figures of dmon compared, 0 differ\n"), "{text}");
    // Both read the constant rate of the scenario.
    let both =
        |line: &str| line.contains("pcie_receive_bytes_per_second: the probe 1") && line.ends_with(", dmon 1500 MB/s");
    assert!(text.lines().any(both), "{text}");
    for kind in ["idle", "spin", "hang"] {
        let means =
            format!("  {kind}: {{\"power_watts\": 300.0, \"utilization_percent\": 40.0, \"sm_activity_percent\": 5.0");
        assert!(text.contains(&means), "no {means} in:\n{text}");
    }
    assert!(text.contains("steps are 0"), "{text}");
    let lines = std::fs::read_to_string(record).expect("a recording");
    let messages: Vec<_> = lines
        .lines()
        .map(|line| gpufleet::wire::codec::decode(line.as_bytes()).expect("a line of the recording is a message"))
        .collect();
    assert!(matches!(messages[0], gpufleet::wire::Message::Hello(_)));
    assert!(messages.len() > 5, "{} messages", messages.len());
}

#[test]
fn each_differing_field_is_named() {
    let sleeper = Sleeper::start();
    let scenario = scenario(&sleeper);
    let driver = FakeDriver::new(&scenario);
    let mut other = scenario.clone();
    other["devices"][1]["clock_sm_max_mhz"] = json!(2000);
    other["devices"][0]["ecc_corrected_volatile"] = json!(9);
    other["devices"][1]["memory_utilization_percent"] = json!(70);
    other["devices"][1]["fan_percent"] = json!(30);
    other["devices"][1]["processes"] = json!([{"pid": 1, "memory_bytes": 1}]);
    let script = driver.library().with_file_name("other.json");
    std::fs::write(&script, other.to_string()).expect("writes");
    let (status, text) = run_script(&driver, &script, &driver.library().with_file_name("record.jsonl"), false);
    assert_eq!(status, Some(1), "{text}");
    for line in [
        "differs: GPU 0, ecc_corrected_volatile: 1, nvidia-smi has 9 and 9\n",
        "differs: GPU 1, clock_sm_max_mhz: 1980, nvidia-smi has 2000 and 2000\n",
        "differs: GPU 1, fan_percent: nvidia-smi has 30, the probe nothing\n",
        "differs: GPU 1, memory_utilization_percent: 0, dmon has 70 and 70\n",
        "differs: process 1: nvidia-smi has it, the probe does not\n",
    ] {
        assert!(text.contains(line), "no {line} in:\n{text}");
    }
}
