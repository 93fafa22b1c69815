//! Several probes on one host, and what a hang of the driver means for them.

#![allow(clippy::expect_used, reason = "a helper of a test fails by panicking, like the test")]

use super::process::{DEADLINE, Probe};
use crate::fake_driver::{FakeDriver, devices, gpu};
use gpufleet::wire::{DriverErrorKind, Snapshot};
use serde_json::json;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Every probe of this user keeps away from the driver while one hangs for 5 s, so the tests that let one hang so long
/// take turns, under a user of their own.
static TURN: Mutex<()> = Mutex::new(());
/// Nobody else's on a sane machine.
const USER: u32 = 61_234;

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A probe of another user: possible only for root, as in a container. Else this user's.
fn start(driver: &FakeDriver, uid: u32) -> Probe {
    driver.open_to_all();
    let ids = [format!("--reuid={uid}"), format!("--regid={uid}")];
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    let command = if is_root { vec!["setpriv", &*ids[0], &*ids[1], "--clear-groups"] } else { vec!["env"] };
    Probe::under(&command, &driver.library(), &["--interval", "0.25"])
}

fn reads_gpus(snapshot: &Snapshot) -> bool {
    snapshot.gpus.row(0).temperature_celsius.is_some()
}

#[test]
fn two_sessions_and_two_users_read_side_by_side() {
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let mut probes = [start(&driver, USER), start(&driver, USER), start(&driver, USER + 1), Probe::on(&driver)];
    for _ in 0..3 {
        for probe in &mut probes {
            let snapshot = probe.wait_for("readings", reads_gpus);
            assert_eq!(snapshot.driver_error, None);
        }
    }
}

#[test]
fn beside_a_probe_that_hangs_another_of_this_user_touches_no_nvml_and_one_of_another_user_does() {
    let _turn = turn();
    let mut hanging = devices(&[gpu(0)]);
    hanging["hang"] = json!(["nvmlDeviceGetTemperature"]);
    let (stuck, healthy) = (FakeDriver::new(&hanging), FakeDriver::new(&devices(&[gpu(0)])));
    // The driver of the healthy one answers; that it is left alone shows in its readings.
    let mut beside = start(&healthy, USER);
    beside.wait_for("readings", reads_gpus);
    let mut first = start(&stuck, USER);
    let pid = first.child.id();
    first.wait_for("a hang", |snapshot| snapshot.gpus.row(0).error.is_some());
    let snapshot = beside.wait_for("distance", |snapshot| snapshot.driver_error.is_some());
    let error = snapshot.driver_error.clone().expect("an error");
    assert_eq!(error.kind, DriverErrorKind::Blocked);
    assert_eq!(
        error.message,
        format!(
            "another gpufleet probe of this user (process {pid}) has been waiting for the NVIDIA driver for more than \
             5 s; this one does not touch it before that one is free or gone"
        )
    );
    assert!(!reads_gpus(&snapshot) && snapshot.host.load_1.is_some());
    // One that comes later does not even load the library.
    let mut late = start(&healthy, USER);
    let snapshot = late.snapshot();
    assert_eq!(snapshot.driver_error.as_ref(), Some(&error));
    assert_eq!((late.inventory().nvml_path.as_ref(), late.inventory().error.as_ref()), (None, Some(&error)));
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", late.child.id())).expect("maps");
    assert!(!maps.contains("libnvidia-ml"), "the library is loaded");
    let is_root = maps_owner_is(USER, late.child.id());
    if is_root {
        start(&healthy, USER + 1).wait_for("readings of another user", reads_gpus);
    }
    // Where the call comes back, everybody reads again.
    hanging["hang"] = json!([]);
    stuck.set(&hanging);
    first.wait_for("its return", reads_gpus);
    beside.wait_for("the driver again", reads_gpus);
    late.wait_for("the driver for the first time", reads_gpus);
}

#[test]
fn a_probe_that_hung_and_is_gone_keeps_nobody_away() {
    let _turn = turn();
    let mut hanging = devices(&[gpu(0)]);
    hanging["hang"] = json!(["nvmlInit_v2"]);
    let (stuck, healthy) = (FakeDriver::new(&hanging), FakeDriver::new(&devices(&[gpu(0)])));
    let mut first = start(&stuck, USER);
    let mut beside = start(&healthy, USER);
    first.wait_for("a hang", |snapshot| snapshot.driver_error.is_some());
    beside.wait_for("distance", |snapshot| snapshot.driver_error.is_some());
    let began = Instant::now();
    assert!(first.end().success());
    assert!(began.elapsed() < DEADLINE / 4, "a call that hangs is waited for a second");
    beside.wait_for("the driver again", reads_gpus);
}

#[test]
fn one_home_on_two_hosts_is_no_reason_to_keep_away() {
    // What keeps a probe away lies in the host's own memory and carries the host's boot id; nothing of it is at home.
    let home = tempfile::tempdir().expect("a home");
    let _turn = turn();
    let mut hanging = devices(&[gpu(0)]);
    hanging["hang"] = json!(["nvmlInit_v2"]);
    let driver = FakeDriver::new(&hanging);
    let variable = format!("HOME={}", home.path().display());
    let mut probe = Probe::under(&["env", &variable], &driver.library(), &["--interval", "0.25"]);
    let first = probe.wait_for("a hang", |snapshot| snapshot.driver_error.is_some());
    probe.wait_for("the mark", |snapshot| snapshot.monotonic_seconds > first.monotonic_seconds + 3.0);
    assert_eq!(std::fs::read_dir(home.path()).expect("lists").count(), 0);
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot id").replace('-', "");
    let mark = std::fs::read_dir("/dev/shm").expect("lists").flatten().find(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("gpufleet-") && name.contains(boot.trim())
    });
    let mark = std::fs::read_to_string(mark.expect("a mark with the boot id in its name").path()).expect("reads");
    assert!(mark.starts_with(&format!("{} ", probe.child.id())), "{mark}");
}

fn maps_owner_is(uid: u32, pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    status.lines().any(|line| line.starts_with("Uid:") && line.contains(&uid.to_string()))
}
