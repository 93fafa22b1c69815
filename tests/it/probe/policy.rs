//! What administrators can do: forbid, slow down, speak, and end a probe.

#![allow(clippy::expect_used, reason = "a helper of a test fails by panicking, like the test")]

use super::process::{DEADLINE, Probe};
use crate::fake_driver::{FakeDriver, devices, gpu, gpu_with, probe_program};
use serde_json::json;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

struct PolicyFile(tempfile::TempDir);

impl PolicyFile {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self) -> String {
        self.0.path().join("policy.json").to_string_lossy().into_owned()
    }

    fn set(&self, text: &str) {
        let new = self.0.path().join("new");
        std::fs::write(&new, text).expect("writes");
        std::fs::rename(new, self.path()).expect("replaces");
    }

    fn probe(&self, driver: &FakeDriver) -> Probe {
        Probe::start(&driver.library(), &["--interval", "0.25", "--policy", &self.path()])
    }
}

/// Reads to the end, and returns the exit status.
fn ended(probe: &mut Probe) -> Option<i32> {
    let start = Instant::now();
    loop {
        match probe.next(Duration::from_secs(1)) {
            Err(RecvTimeoutError::Disconnected) => return probe.child.wait().expect("ends").code(),
            _ => assert!(start.elapsed() < DEADLINE, "the probe does not end"),
        }
        if start.elapsed() < DEADLINE / 4 && probe.farewell.is_none() {
            probe.heartbeat(None);
        }
    }
}

#[test]
fn where_it_is_forbidden_it_says_so_and_does_not_touch_the_driver() {
    let policy = PolicyFile::new();
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    for (text, reason) in [
        (r#"{"allow": false}"#, format!("{} allows no probe on this host", policy.path())),
        (r#"{"allow": false, "message": "ask admin@lab"}"#, "ask admin@lab".to_owned()),
    ] {
        policy.set(text);
        let mut probe = policy.probe(&driver);
        let start = Instant::now();
        while !matches!(probe.next(Duration::from_secs(1)), Err(RecvTimeoutError::Disconnected)) {
            assert!(start.elapsed() < DEADLINE, "the probe does not end");
        }
        assert!(probe.hello.is_some() && probe.inventory.is_none());
        assert_eq!(probe.farewell.as_deref(), Some(&*reason));
        assert_eq!(probe.child.wait().expect("ends").code(), Some(77));
    }
    policy.set("{");
    let output = Command::new(probe_program());
    let output = { output }.args(["--once", "--policy", &policy.path()]).output().expect("runs");
    let words = String::from_utf8(output.stderr).expect("utf-8");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(77), 0));
    assert!(words.contains("is invalid, so no probe may run"), "{words}");
}

#[test]
fn when_it_is_forbidden_it_shuts_nvml_down_and_leaves_within_ten_seconds() {
    let policy = PolicyFile::new();
    // The one that waits for Xids has to come back first.
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &json!({"xid_events": true}))]));
    let log = driver.log_calls();
    let mut probe = policy.probe(&driver);
    probe.snapshot();
    policy.set(r#"{"allow": false, "message": "resetting GPUs"}"#);
    let start = Instant::now();
    assert_eq!(ended(&mut probe), Some(77));
    assert!(start.elapsed() < Duration::from_secs(10), "it took {:?}", start.elapsed());
    assert_eq!(probe.farewell.as_deref(), Some("resetting GPUs"));
    let calls = std::fs::read_to_string(log).expect("the driver logs");
    assert_eq!(calls, "nvmlInit_v2\nnvmlShutdown\n");
}

#[test]
fn a_driver_that_hangs_does_not_keep_a_forbidden_probe() {
    let policy = PolicyFile::new();
    let mut scenario = devices(&[gpu(0), gpu(1)]);
    scenario["hang"] = json!(["nvmlDeviceGetTemperature@0"]);
    let driver = FakeDriver::new(&scenario);
    let mut probe = policy.probe(&driver);
    probe.wait_for("a hang", |snapshot| snapshot.gpus.row(0).blocked_seconds.is_some());
    policy.set(r#"{"allow": false}"#);
    let start = Instant::now();
    assert_eq!(ended(&mut probe), Some(77));
    assert!(start.elapsed() < Duration::from_secs(10), "it took {:?}", start.elapsed());
}

#[test]
fn the_shortest_interval_and_the_message_are_honoured() {
    let policy = PolicyFile::new();
    policy.set(r#"{"min_interval": 1.5, "message": "be kind"}"#);
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let mut probe = policy.probe(&driver);
    let first = probe.snapshot();
    assert_eq!(
        first.notes,
        [
            "from the administrator of this host: be kind",
            "the administrator of this host allows no interval below 1.5 s"
        ]
    );
    assert_eq!(first.interval_seconds, Some(1.5));
    let (second, third) = (probe.snapshot(), probe.snapshot());
    assert!(third.monotonic_seconds - second.monotonic_seconds > 1.4);
    assert_eq!(third.notes.len(), 0);
}

#[test]
fn it_is_named_so_that_an_administrator_can_end_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("gpufleet-probe-0.1.0-0123456789abcdef");
    std::fs::copy(probe_program(), &program).expect("copies");
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let mut probe = Probe::of(Command::new(&program), &driver.library(), &[]);
    probe.snapshot();
    let pid = probe.child.id();
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).expect("comm");
    assert_eq!(name, "gpufleet-probe\n");
    let ended = Command::new("kill").args(["-TERM", &pid.to_string()]).status().expect("kill runs");
    assert!(ended.success());
    assert_eq!(probe.child.wait().expect("ends").signal(), Some(15), "the controller sees who ended it");
}
