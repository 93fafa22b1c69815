//! Several probes on one host, and what a hang of the driver means for them.

#![allow(clippy::expect_used, reason = "a helper of a test fails by panicking, like the test")]

use super::process::{DEADLINE, Probe};
use super::users::as_another_user;
use crate::fake_driver::{FakeDriver, devices, gpu};
use gpufleet::wire::{DriverErrorKind, Snapshot};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Instant;

/// A directory that everybody may write to, in place of /dev/shm: other tests' probes are to read undisturbed.
fn shared_memory() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o1777)).expect("opens it");
    folder
}

fn start(driver: &FakeDriver, marks: &Path) -> Probe {
    start_under(&["env"], driver, marks)
}

fn start_under(starter: &[&str], driver: &FakeDriver, marks: &Path) -> Probe {
    let marks = marks.to_str().expect("utf-8");
    Probe::under(starter, &driver.library(), &["--interval", "0.25", "--marks", marks])
}

/// A probe of another user.
fn start_as_another_user(driver: &FakeDriver, marks: &Path) -> Probe {
    driver.open_to_all();
    let starter = as_another_user();
    start_under(&starter.iter().map(String::as_str).collect::<Vec<_>>(), driver, marks)
}

fn reads_gpus(snapshot: &Snapshot) -> bool {
    snapshot.gpus.row(0).temperature_celsius.is_some()
}

#[test]
fn two_sessions_and_two_users_read_side_by_side() {
    let marks = shared_memory();
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let start = || start(&driver, marks.path());
    let mut probes = [start(), start(), start_as_another_user(&driver, marks.path())];
    for _ in 0..3 {
        for probe in &mut probes {
            let snapshot = probe.wait_for("readings", reads_gpus);
            assert_eq!(snapshot.driver_error, None);
        }
    }
}

#[test]
fn beside_a_probe_that_hangs_another_of_this_user_touches_no_nvml_and_one_of_another_user_does() {
    let marks = shared_memory();
    let mut hanging = devices(&[gpu(0)]);
    hanging["hang"] = json!(["nvmlDeviceGetTemperature"]);
    // The driver of the second one answers; that it is left alone shows in the readings.
    let (stuck, healthy) = (FakeDriver::new(&hanging), FakeDriver::new(&devices(&[gpu(0)])));
    let mut beside = start(&healthy, marks.path());
    beside.wait_for("readings", reads_gpus);
    let mut first = start(&stuck, marks.path());
    let pid = first.child.id();
    first.wait_for("a hang", |snapshot| snapshot.gpus.row(0).error.is_some());
    let snapshot = beside.wait_for("distance", |snapshot| snapshot.driver_error.is_some());
    let error = snapshot.driver_error.clone().expect("an error");
    assert_eq!(error.kind, DriverErrorKind::Blocked);
    assert_eq!(
        error.message.as_str(),
        format!(
            "another gpufleet probe of this user (process {pid}) has been waiting for the NVIDIA driver for more than \
             5 s; this one does not call the driver until that call returns or that process ends"
        )
    );
    assert!(!reads_gpus(&snapshot) && snapshot.host.load_1.is_some());
    // One that comes later does not even load the library.
    let mut late = start(&healthy, marks.path());
    let snapshot = late.snapshot();
    assert_eq!(snapshot.driver_error.as_ref(), Some(&error));
    assert_eq!((late.inventory().nvml_path.as_ref(), late.inventory().error.as_ref()), (None, Some(&error)));
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", late.child.id())).expect("maps");
    assert!(!maps.contains("libnvidia-ml"), "the library is loaded");
    start_as_another_user(&healthy, marks.path()).wait_for("readings of another user", reads_gpus);
    // Where the call comes back, everybody reads again.
    hanging["hang"] = json!([]);
    stuck.set(&hanging);
    first.wait_for("its return", reads_gpus);
    beside.wait_for("the driver again", reads_gpus);
    late.wait_for("the driver for the first time", reads_gpus);
}

#[test]
fn a_probe_that_hung_and_is_gone_keeps_nobody_away() {
    let marks = shared_memory();
    let mut hanging = devices(&[gpu(0)]);
    hanging["hang"] = json!(["nvmlInit_v2"]);
    let (stuck, healthy) = (FakeDriver::new(&hanging), FakeDriver::new(&devices(&[gpu(0)])));
    let mut first = start(&stuck, marks.path());
    let mut beside = start(&healthy, marks.path());
    first.wait_for("a hang", |snapshot| snapshot.driver_error.is_some());
    beside.wait_for("distance", |snapshot| snapshot.driver_error.is_some());
    let began = Instant::now();
    assert!(first.end().success());
    assert!(began.elapsed() < DEADLINE / 4, "a call that hangs is waited for a second");
    beside.wait_for("the driver again", reads_gpus);
}

#[test]
fn one_home_on_two_hosts_is_no_reason_to_keep_away() {
    // What keeps a probe away lies outside the home directory and carries the host's boot id.
    let (home, marks) = (tempfile::tempdir().expect("a home"), shared_memory());
    let mut hanging = devices(&[gpu(0)]);
    hanging["hang"] = json!(["nvmlInit_v2"]);
    let driver = FakeDriver::new(&hanging);
    let variable = format!("HOME={}", home.path().display());
    let mut probe = start_under(&["env", &variable], &driver, marks.path());
    let first = probe.wait_for("a hang", |snapshot| snapshot.driver_error.is_some());
    probe.wait_for("the mark", |snapshot| snapshot.monotonic_seconds > first.monotonic_seconds + 3.0);
    assert_eq!(std::fs::read_dir(home.path()).expect("lists").count(), 0);
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot id").replace('-', "");
    let uid = rustix::process::getuid().as_raw();
    let mark = marks.path().join(format!("gpufleet-{uid}-{}.waiting", boot.trim()));
    let text = std::fs::read_to_string(mark).expect("a mark with the boot id in its name");
    assert!(text.starts_with(&format!("{} ", probe.child.id())), "{text}");
    // The other host has another boot id, and the same mark under its name.
    let other = marks.path().join(format!("gpufleet-{uid}-00000000000040008000000000000000.waiting"));
    std::fs::write(other, text).expect("writes");
    probe.end();
    let healthy = FakeDriver::new(&devices(&[gpu(0)]));
    start(&healthy, marks.path()).wait_for("readings", reads_gpus);
}
