//! How it serves: its pace, requests, hangs, its end, and the command line.

#![allow(clippy::expect_used, reason = "a helper of a test fails by panicking, like the test")]

use super::process::{Probe, Sleeper};
use crate::fake_driver::{FakeDriver, devices, gpu, gpu_with, probe_program};
use gpufleet::wire::codec::decode;
use gpufleet::wire::{DriverErrorKind, Message, ReplyOutcome, Request, SafeText, Signal};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn the_second_snapshot_comes_soon_whatever_the_interval() {
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let mut probe = Probe::start(&driver.library(), &["--interval", "60"]);
    let (first, second) = (probe.snapshot(), probe.snapshot());
    assert_eq!((first.sequence, second.sequence), (1, 2));
    assert_eq!((first.interval_seconds, first.host.cpu_percent), (Some(60.0), None));
    assert!(second.monotonic_seconds - first.monotonic_seconds < 30.0);
    // Another interval holds at once, and an absurd one is put right.
    probe.request(&Request::Interval { seconds: 0.001 });
    let third = probe.snapshot();
    assert_eq!(third.interval_seconds, Some(0.25));
    assert_eq!(third.notes, ["interval 0.001 s is outside 0.25 to 60 s: 0.25 s is used"]);
}

#[test]
fn a_gpu_that_hangs_is_left_alone_and_all_else_goes_on() {
    let mut scenario = devices(&[gpu(0), gpu(1)]);
    let driver = FakeDriver::new(&scenario);
    let mut probe = Probe::on(&driver);
    probe.snapshot();
    scenario["hang"] = json!(["nvmlDeviceGetTemperature@0"]);
    driver.set(&scenario);
    let snapshot = probe.wait_for("a blocked GPU", |snapshot| snapshot.gpus.row(0).error.is_some());
    let reading = snapshot.gpus.row(0);
    assert_eq!(reading.error.map(|error| error.kind), Some(DriverErrorKind::Blocked));
    assert!(reading.blocked_seconds.is_some_and(|seconds| seconds >= 3.0));
    // From now on the other GPU is read as if nothing were wrong, and nothing is waited for.
    for _ in 0..4 {
        let snapshot = probe.wait_for("the other GPU", |snapshot| snapshot.gpus.row(1).temperature_celsius.is_some());
        assert!(snapshot.gpus.row(0).blocked_seconds.is_some() && snapshot.host.load_1.is_some());
        assert_eq!(snapshot.driver_error, None);
    }
    assert!(probe.round_trip() < Duration::from_secs(10));
    scenario["hang"] = json!([]);
    driver.set(&scenario);
    let snapshot = probe.wait_for("its return", |snapshot| snapshot.gpus.row(0).temperature_celsius.is_some());
    assert_eq!(snapshot.gpus.row(0).error, None);
}

#[test]
fn a_driver_that_hangs_altogether_stops_neither_heartbeat_nor_host_readings_nor_the_end() {
    let mut scenario = devices(&[gpu(0), gpu(1)]);
    scenario["hang"] = json!(["nvmlInit_v2"]);
    let driver = FakeDriver::new(&scenario);
    let mut probe = Probe::on(&driver);
    let snapshot = probe.wait_for("a blocked driver", |snapshot| snapshot.driver_error.is_some());
    assert_eq!(snapshot.driver_error.map(|error| error.kind), Some(DriverErrorKind::Blocked));
    assert!(snapshot.host.load_1.is_some());
    assert_eq!(probe.inventory().error.as_ref().map(|error| error.kind), Some(DriverErrorKind::Blocked));
    assert!(probe.round_trip() < Duration::from_secs(10));
    assert!(probe.end().success());
}

#[test]
fn it_ends_with_its_standard_input() {
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let mut probe = Probe::on(&driver);
    probe.snapshot();
    assert!(probe.end().success());
    assert_eq!(probe.farewell.as_deref(), Some("standard input was closed"));
}

#[test]
fn it_ends_when_nobody_reads() {
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let mut command = Command::new(probe_program());
    command.arg("--nvml-library").arg(driver.library()).args(["--interval", "0.25"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the probe starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("stdout"));
    let mut line = String::new();
    stdout.read_line(&mut line).expect("hello");
    drop(stdout);
    // Its standard input stays open: only the broken pipe tells it.
    let start = Instant::now();
    while child.try_wait().expect("waits").is_none() {
        assert!(start.elapsed() < Duration::from_secs(25), "the probe does not end");
        std::thread::yield_now();
    }
    assert!(child.wait().expect("waits").success());
}

#[test]
fn a_request_that_is_none_is_noted_and_changes_nothing() {
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let mut probe = Probe::on(&driver);
    probe.write(b"\xff\x1b[31m{\n{\"signal\":{\"id\":7}}\n");
    let snapshot = probe.wait_for("notes", |snapshot| snapshot.notes.len() == 2);
    assert!(snapshot.notes[0].starts_with("a request was not understood: protocol violation"), "{:?}", snapshot.notes);
    assert!(!snapshot.notes[0].contains('\x1b'));
    assert_eq!(probe.reply(7), ReplyOutcome::Refused("this probe does not know the request".into()));
    probe.round_trip();
}

#[test]
fn at_most_two_snapshots_are_ahead_of_the_controller() {
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let mut probe = Probe::on(&driver);
    let seen = probe.snapshot().sequence;
    probe.heartbeat(Some(seen));
    let mut last = seen;
    let watched = Instant::now();
    while watched.elapsed() < Duration::from_millis(1500) {
        if let Ok(Some(snapshot)) = probe.next(Duration::from_millis(100)) {
            last = snapshot.sequence;
        }
    }
    assert!(last <= seen + 2, "{last} came after {seen} was acknowledged");
    probe.heartbeat(Some(last));
    let next = probe.wait_for("the next one", |_| true);
    assert_eq!(next.sequence, last + 1);
    assert!(next.monotonic_seconds > 1.0, "what could not be sent was not sampled");
}

#[test]
fn a_signal_reaches_the_process_that_was_meant_and_no_other() {
    let mut sleeper = Sleeper::start();
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let mut probe = Probe::on(&driver);
    probe.snapshot();
    let boot_id = probe.hello.as_ref().and_then(|hello| hello.boot_id.clone()).expect("a boot id");
    let (pid, start_ticks) = (sleeper.pid(), sleeper.start_ticks());
    let mut send = |id, boot_id: &SafeText, pid, start_ticks| {
        let boot_id = boot_id.clone();
        probe.request(&Request::Signal { id, boot_id, pid, start_ticks, signal: Signal::Terminate });
        probe.reply(id)
    };
    assert_eq!(send(101, &boot_id, pid, start_ticks + 1), ReplyOutcome::Reused);
    assert_eq!(send(102, &"another boot".into(), pid, start_ticks), ReplyOutcome::Reused);
    assert_eq!(send(103, &boot_id, 1, 0), ReplyOutcome::Refused("pid 1 is never signalled".into()));
    assert!(sleeper.0.try_wait().expect("waits").is_none(), "nothing was sent yet");
    let outcome = send(104, &boot_id, pid, start_ticks);
    if outcome != ReplyOutcome::Sent {
        // Some sandboxes lack pidfd; then it is refused with the reason.
        assert!(matches!(outcome, ReplyOutcome::Refused(words) if words.contains("pidfd")));
        return;
    }
    let status = sleeper.0.wait().expect("ends");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
    assert_eq!(send(105, &boot_id, pid, start_ticks), ReplyOutcome::Gone);
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(probe_program()).args(arguments).output().expect("the probe runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("utf-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn by_hand_it_prints_one_snapshot() {
    let sleeper = Sleeper::start();
    let process = json!({"pid": sleeper.pid(), "memory_bytes": 2_147_483_648_u64, "sm_percent": 50});
    let full = json!({
        "processes": [process], "encoder_percent": 3, "decoder_percent": 4, "gpm": {"sm_activity_percent": 5},
        "nvlinks": [true, false], "past_seconds": 10, "ecc_corrected_volatile": 1, "xid_events": true
    });
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &full), gpu(1)]));
    let library = driver.library();
    let library = library.to_str().expect("utf-8");
    let (status, text, _) = run(&["--once", "--nvml-library", library]);
    let messages: Vec<Message> = text.lines().map(|line| decode(line.as_bytes()).expect("a message")).collect();
    let [Message::Hello(_), Message::Inventory(inventory), Message::Snapshot(snapshot)] = messages.as_slice() else {
        panic!("{messages:?}")
    };
    assert_eq!((status, inventory.gpus.len(), snapshot.facts.len()), (Some(0), 2, 1));
    assert!(snapshot.host.cpu_percent.is_some() && snapshot.facts[0].user.is_some());
    let (status, text, _) = run(&["--once", "--pretty", "--nvml-library", library]);
    assert_eq!(status, Some(0));
    for part in [
        "GPU 1  NVIDIA H100 80GB HBM3",
        "  driver      570.86.15, CUDA 12.8, ",
        "  filesystem  /",
        "  use         0 %, memory bus 0 %, encoder 3 %, decoder 4 %\n",
        "  SMs         active 5 %\n",
        "  NVLink      1 of 2 up (down: 1)",
        "  ECC errors  corrected 1, uncorrectable 0\n",
        "  Xids        reported as they happen\n",
        "  history     10 s buffered by the driver, mean use 0 %",
        "2.0 GiB   50%",
        "--token=***",
        "running for ",
    ] {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
}

#[test]
fn its_arguments_are_checked() {
    assert_eq!(
        run(&["--version"]),
        (Some(0), format!("gpufleet-probe {}\n", env!("CARGO_PKG_VERSION")), String::new())
    );
    assert!(run(&["--help"]).1.contains("--nvml-library PATH"));
    let diagnostic = "gpufleet-probe: unknown argument `--often`\nhint: gpufleet-probe --help\n";
    assert_eq!(run(&["--often"]), (Some(2), String::new(), diagnostic.to_owned()));
}
