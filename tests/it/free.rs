//! `gpufleet free`, whole: real sshds, the real probe, a fake driver.

use crate::fake_driver::{devices, gpu, gpu_with};
use crate::lab::{Lab, gpufleet};
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// What a run printed, and its exit code.
fn free(arguments: &[&str]) -> (String, i32) {
    let output = gpufleet(&[&["free"], arguments].concat());
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    (text, output.status.code().unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr))))
}

#[test]
fn free_gpus_are_found_with_the_lines_to_type() {
    let lab = Lab::start(&["hgx-01", "hgx-02"]);
    // Of the four GPUs the first two are busy, the fourth is lost; here another is free, and there one is kept.
    let worker = lab.hosts[0].worker_pid();
    let busy = json!({
        "utilization_percent": 97, "memory_used_bytes": 61_203_283_968_u64,
        "processes": [{"pid": worker, "memory_bytes": 60_129_542_144_u64, "sm_percent": 97}]
    });
    lab.hosts[0].driver.set(&devices(&[gpu(0), gpu_with(1, &busy), gpu(2), gpu(3)]));
    let hosts = lab.hosts_toml("reserved = \"3\"\nnote = \"ask Bob first\"");
    let (text, code) = free(&[&hosts]);
    assert_eq!(code, 0, "{text}");
    let port = lab.hosts[0].sshd.port();
    let key = lab.hosts[0].sshd.client_key().display().to_string();
    let known = lab.hosts[0].sshd.known_hosts().display().to_string();
    let known = format!("-o 'UserKnownHostsFile=\"{known}\"' -o GlobalKnownHostsFile=none");
    let mut lines = text.lines();
    let first = lines.next().expect("a host");
    assert!(first.starts_with("hgx-01  2 free  GPU 0,2  NVIDIA H100 80GB HBM3, 80G"), "{text}");
    assert!(first.ends_with("note: ask Bob first"), "{text}");
    assert_eq!(lines.next(), Some(format!("  ssh -p {port} -i {key} {known} 127.0.0.1").as_str()));
    let uuid = |line: &str| line.split_once("CUDA_VISIBLE_DEVICES=").map(|(_, uuids)| uuids.split(',').count());
    assert_eq!(lines.next().and_then(uuid), Some(2), "{text}");
    assert!(text.contains("hgx-02  1 free  GPU 2  "), "{text}");

    // One host has room for two, none for three, both together for three.
    let (text, code) = free(&["-n", "2", "--same-host", "--json", &hosts]);
    let json: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((code, &json["hosts"][0]["name"]), (0, &json!("hgx-01")), "{json:#}");
    assert_eq!(json["hosts"].as_array().map(Vec::len), Some(1));
    assert_eq!(free(&["-n", "3", "--same-host", &hosts]), ("no free GPU matches\n".to_owned(), 4));
    assert_eq!(free(&["-n", "3", &hosts]).1, 0);
    assert_eq!(free(&["--model", "A100", &hosts]).1, 4);
    assert_eq!(free(&["--mem", "90G", &hosts]).1, 4);
}

#[test]
fn a_host_that_cannot_be_seen_is_told() {
    let mut lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    lab.hosts[0].sshd.stop();
    let (text, code) = free(&["--timeout", "5", &hosts]);
    assert_eq!(code, 3, "{text}");
    assert_eq!(text, "no free GPU matches\nno current readings: hgx-01 (see `gpufleet status`)\n");
}

#[test]
fn waiting_ends_when_a_gpu_is_free() {
    let lab = Lab::start(&["hgx-01"]);
    let worker = lab.hosts[0].worker_pid();
    let busy = json!({
        "utilization_percent": 97, "memory_used_bytes": 61_203_283_968_u64,
        "processes": [{"pid": worker, "memory_bytes": 60_129_542_144_u64, "sm_percent": 97}]
    });
    lab.hosts[0].driver.set(&devices(&[gpu_with(0, &busy)]));
    let hosts = lab.hosts_toml("");
    let child = Command::new(env!("CARGO_BIN_EXE_gpufleet"))
        .args(["free", "--wait", "--timeout", "0.5", &hosts])
        .env_remove("SSH_AUTH_SOCK")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    // It looks on while nothing is free: the probe runs there.
    let deadline = std::time::Instant::now() + crate::pty::PATIENCE;
    while lab.probes().is_empty() {
        assert!(std::time::Instant::now() < deadline, "no probe came");
        std::thread::yield_now();
    }
    lab.hosts[0].driver.set(&devices(&[gpu(0)]));
    let output = child.wait_with_output().expect("ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.starts_with("hgx-01  1 free  GPU 0  "), "{text}");
}
