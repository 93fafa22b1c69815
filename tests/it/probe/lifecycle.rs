//! The life of a probe: interval, requests, hangs, other probes, the policy, its end and its command line.

use super::harness::{Probe, Sleeper, TIMEOUT, another_user_command};
use crate::fake_driver::{FakeDriver, copy_program, devices, gpu, gpu_with, probe_program};
use crate::lab::wait_gone;
use gpufleet::wire::codec::decode;
use gpufleet::wire::{DriverErrorKind, Message, ProcessFacts, ReplyOutcome, Request, SafeText, Signal, Snapshot};
use serde_json::json;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

#[test]
fn second_snapshot_comes_soon_at_any_interval() {
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let mut probe = Probe::start(&driver.library(), &["--interval", "60"]);
    let (first, second) = (probe.snapshot(), probe.snapshot());
    assert_eq!((first.sequence, second.sequence), (1, 2));
    assert_eq!((first.interval_seconds, first.host.cpu_percent), (Some(60.0), None));
    assert!(second.monotonic_seconds - first.monotonic_seconds < 30.0);
    // A new interval applies at once and is clamped.
    probe.request(&Request::Interval { seconds: 0.001, shift_seconds: None, earlier_slurm_jobs: vec![] });
    let third = probe.snapshot();
    assert_eq!(third.interval_seconds, Some(0.25));
    assert_eq!(third.notes, ["interval 0.001 s is outside 0.25 to 60 s: 0.25 s is used"]);
}

#[test]
fn hung_gpu_does_not_affect_other_readings() {
    let mut scenario = devices(&[gpu(0), gpu(1)]);
    let driver = FakeDriver::new(&scenario);
    let mut probe = Probe::with_driver(&driver);
    probe.snapshot();
    scenario["hang"] = json!(["nvmlDeviceGetTemperature@0"]);
    driver.set(&scenario);
    let snapshot = probe.wait_for("a blocked GPU", |snapshot| snapshot.gpus.row(0).error.is_some());
    let reading = snapshot.gpus.row(0);
    assert_eq!(reading.error.map(|error| error.kind), Some(DriverErrorKind::Blocked));
    assert!(reading.blocked_seconds.is_some_and(|seconds| seconds >= 3.0));
    // From now on the other GPU is read without delay.
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
fn hung_driver_stops_neither_heartbeats_nor_host_readings_nor_exit() {
    let mut scenario = devices(&[gpu(0), gpu(1)]);
    scenario["hang"] = json!(["nvmlInit_v2"]);
    let driver = FakeDriver::new(&scenario);
    let mut probe = Probe::with_driver(&driver);
    let snapshot = probe.wait_for("a blocked driver", |snapshot| snapshot.driver_error.is_some());
    assert_eq!(snapshot.driver_error.map(|error| error.kind), Some(DriverErrorKind::Blocked));
    assert!(snapshot.host.load_1.is_some());
    assert_eq!(probe.inventory().error.as_ref().map(|error| error.kind), Some(DriverErrorKind::Blocked));
    assert!(probe.round_trip() < Duration::from_secs(10));
    assert!(probe.end().success());
}

#[test]
fn probe_ends_when_standard_input_closes() {
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let mut probe = Probe::with_driver(&driver);
    probe.snapshot();
    assert!(probe.end().success());
    assert_eq!(probe.farewell.as_deref(), Some("standard input was closed"));
}

#[test]
fn probe_ends_when_standard_output_closes() {
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let mut command = Command::new(probe_program());
    command.arg("--nvml-library").arg(driver.library()).args(["--interval", "0.25"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the probe starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("stdout"));
    let mut line = String::new();
    stdout.read_line(&mut line).expect("hello");
    drop(stdout);
    // Standard input stays open: only the broken pipe ends the probe.
    wait_gone(&[child.id()], Duration::from_secs(25));
    assert!(child.wait().expect("waits").success());
}

#[test]
fn invalid_request_is_noted_and_ignored() {
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let mut probe = Probe::with_driver(&driver);
    probe.write(b"\xff\x1b[31m{\n{\"signal\":{\"id\":7}}\n");
    let snapshot = probe.wait_for("notes", |snapshot| snapshot.notes.len() == 2);
    assert!(snapshot.notes[0].starts_with("a request was not understood: protocol violation"), "{:?}", snapshot.notes);
    assert!(!snapshot.notes[0].contains('\x1b'));
    assert_eq!(probe.reply(7), ReplyOutcome::Refused("this probe does not know the request".into()));
    probe.round_trip();
}

#[test]
fn at_most_two_snapshots_are_unacknowledged() {
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let mut probe = Probe::with_driver(&driver);
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
    assert!(next.monotonic_seconds > 1.0, "samples that could not be sent were not taken");
}

#[test]
fn signal_is_sent_only_to_the_process_with_the_given_identity() {
    let mut sleeper = Sleeper::start();
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let mut probe = Probe::with_driver(&driver);
    probe.snapshot();
    let boot_id = probe.hello.as_ref().and_then(|hello| hello.boot_id.clone()).expect("a boot id");
    let (pid, start_ticks) = (sleeper.pid(), sleeper.start_ticks());
    let mut send = |id, boot_id: &SafeText, pid, start_ticks| {
        let boot_id = boot_id.clone();
        let (name, argv) =
            ("sh".into(), ["/bin/sh", "-c", "read _wait", "job", "--token=***"].map(SafeText::new).to_vec());
        probe.request(&Request::Signal { id, boot_id, pid, start_ticks, name, argv, signal: Signal::Terminate });
        probe.reply(id)
    };
    assert_eq!(send(101, &boot_id, pid, start_ticks + 1), ReplyOutcome::Reused);
    assert_eq!(send(102, &"another boot".into(), pid, start_ticks), ReplyOutcome::Reused);
    assert_eq!(send(103, &boot_id, 1, 0), ReplyOutcome::Refused("pid 1 is never signalled".into()));
    assert!(sleeper.0.try_wait().expect("waits").is_none(), "nothing was sent yet");
    let outcome = send(104, &boot_id, pid, start_ticks);
    if outcome != ReplyOutcome::Sent {
        // Some sandboxes lack pidfd_open; the request is then refused with the reason.
        assert!(matches!(outcome, ReplyOutcome::Refused(words) if words.contains("pidfd")));
        return;
    }
    let status = sleeper.0.wait().expect("ends");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
    assert_eq!(send(105, &boot_id, pid, start_ticks), ReplyOutcome::Gone);
}

/// A process that runs another command line with `exec` keeps its pid, its start time and, as here, its name: it stands for
/// another program that took the pid within the same clock tick.
pub(crate) fn signal_is_not_sent_to_another_program_with_the_same_name_and_start_time() {
    let script = "read _; exec /bin/sh -c 'read _' other";
    let mut shell = Command::new("/bin/sh");
    let mut shell = shell.args(["-c", script, "seen"]).stdin(Stdio::piped()).spawn().expect("a shell starts");
    let pid = shell.id();
    let process = json!({"processes": [{"pid": pid, "memory_bytes": 1024}]});
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &process)]));
    let mut probe = Probe::with_driver(&driver);
    let facts_of = |probe: &mut Probe, last: &str| {
        let is_it =
            |facts: &&ProcessFacts| facts.pid == pid && facts.argv.last().is_some_and(|argument| argument == last);
        while !probe.facts.iter().any(|facts| is_it(&facts)) {
            probe.snapshot();
        }
        probe.facts.iter().rfind(is_it).cloned().expect("facts")
    };
    let send = |probe: &mut Probe, id, facts: &ProcessFacts| {
        let (boot_id, start_ticks) = (probe.hello.as_ref().and_then(|hello| hello.boot_id.clone()), facts.start_ticks);
        probe.request(&Request::Signal {
            id,
            boot_id: boot_id.expect("a boot id"),
            pid,
            start_ticks: start_ticks.expect("a start time"),
            name: facts.name.clone().expect("a name"),
            argv: facts.argv.clone(),
            signal: Signal::Terminate,
        });
        probe.reply(id)
    };
    let seen = facts_of(&mut probe, "seen");
    shell.stdin.as_mut().expect("is piped").write_all(b"\n").expect("the shell reads");
    let cmdline = format!("/proc/{pid}/cmdline");
    while !std::fs::read(&cmdline).expect("it runs").ends_with(b"other\0") {
        std::thread::yield_now();
    }
    let outcome = send(&mut probe, 201, &seen);
    assert!(
        matches!(&outcome, ReplyOutcome::Refused(words) if words.contains("command line") || words.contains("pidfd"))
    );
    assert!(shell.try_wait().expect("waits").is_none(), "nothing was sent");
    // The probe sends what it runs now.
    let now = facts_of(&mut probe, "other");
    assert_eq!((&now.name, now.start_ticks), (&seen.name, seen.start_ticks));
    if !matches!(&outcome, ReplyOutcome::Refused(words) if words.contains("pidfd")) {
        assert_eq!(send(&mut probe, 202, &now), ReplyOutcome::Sent);
    }
    let _ended_already = shell.kill();
    shell.wait().expect("ends");
}

/// The open files of a process: the target of each descriptor, and whether it may be written to.
fn open_files(pid: u32) -> Vec<(String, bool)> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the descriptors").flatten();
    let file = |entry: std::fs::DirEntry| {
        let target = std::fs::read_link(entry.path()).ok()?.display().to_string();
        let number = entry.file_name().to_string_lossy().into_owned();
        let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        // The access mode is in the last two bits (fcntl(2)).
        Some((target, u32::from_str_radix(flags.trim(), 8).ok()? & 0o3 != 0))
    };
    descriptors.filter_map(file).collect()
}

#[test]
fn probe_opens_no_port_and_writes_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let [home, marks] = ["home", "marks"].map(|name| folder.path().join(name));
    for directory in [&home, &marks] {
        std::fs::create_dir(directory).expect("creates");
    }
    let sleeper = Sleeper::start();
    let process = json!({"processes": [{"pid": sleeper.pid(), "memory_bytes": 1024}]});
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &process)]));
    let mut command = Command::new(probe_program());
    command.current_dir(&home).env("HOME", &home).env("TMPDIR", &home).env("XDG_CACHE_HOME", &home);
    // The standard error of the tests may be a file.
    command.stderr(Stdio::null());
    let marks_text = marks.display().to_string();
    let mut probe = Probe::with_command(command, &driver.library(), &["--interval", "0.25", "--marks", &marks_text]);
    let pid = probe.child.id();
    for _ in 0..4 {
        probe.snapshot();
        let files = open_files(pid);
        assert!(files.len() > 3, "{files:?}");
        for (target, is_writable) in files {
            // A socket of netlink(7), by which it asks the kernel for waiting clients, may be open for a moment.
            if let Some(inode) = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) {
                for table in ["tcp", "tcp6", "udp", "udp6", "raw", "unix"] {
                    let open = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
                    assert!(!open.split_whitespace().any(|word| word == inode), "{target} is in {table}");
                }
                continue;
            }
            assert!(!is_writable || target.starts_with("pipe:") || target.starts_with("/dev/"), "{target} is writable");
        }
    }
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).expect("its IO");
    assert!(io.lines().any(|line| line == "write_bytes: 0"), "{io}");
    assert!(probe.end().success());
    for directory in [&home, &marks] {
        assert_eq!(std::fs::read_dir(directory).expect("is there").count(), 0, "{}", directory.display());
    }
}

fn run_probe(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(probe_program()).args(arguments).output().expect("the probe runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("utf-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn once_prints_one_snapshot() {
    let sleeper = Sleeper::start();
    let process = json!({"pid": sleeper.pid(), "memory_bytes": 2_147_483_648_u64, "sm_percent": 50});
    let full = json!({
        "processes": [process], "encoder_percent": 3, "decoder_percent": 4, "gpm": {"sm_activity_percent": 5},
        "nvlinks": [true, false], "past_seconds": 10, "ecc_corrected_volatile": 1, "xid_events": true
    });
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &full), gpu(1)]));
    let library = driver.library();
    let library = library.to_str().expect("utf-8");
    let (status, text, _) = run_probe(&["--once", "--nvml-library", library]);
    let messages: Vec<Message> = text.lines().map(|line| decode(line.as_bytes()).expect("a message")).collect();
    let [Message::Hello(_), Message::Inventory(inventory), Message::Snapshot(snapshot)] = messages.as_slice() else {
        panic!("{messages:?}")
    };
    assert_eq!((status, inventory.gpus.len(), snapshot.facts.len()), (Some(0), 2, 1));
    assert!(snapshot.host.cpu_percent.is_some() && snapshot.facts[0].user.is_some());
    let (status, text, _) = run_probe(&["--once", "--pretty", "--nvml-library", library]);
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
fn arguments_are_checked() {
    assert_eq!(
        run_probe(&["--version"]),
        (Some(0), format!("gpufleet-probe {}\n", env!("CARGO_PKG_VERSION")), String::new())
    );
    assert!(run_probe(&["--help"]).1.contains("--nvml-library PATH"));
    let diagnostic = "gpufleet-probe: unknown argument `--often`\nhint: gpufleet-probe --help\n";
    assert_eq!(run_probe(&["--often"]), (Some(2), String::new(), diagnostic.to_owned()));
}

// The policy of an administrator: forbid probes, limit their interval, show a message, and end a probe.

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

/// Reads all output and returns the exit status.
fn wait_for_exit(probe: &mut Probe) -> Option<i32> {
    let start = Instant::now();
    loop {
        match probe.next(Duration::from_secs(1)) {
            Err(RecvTimeoutError::Disconnected) => return probe.child.wait().expect("ends").code(),
            _ => assert!(start.elapsed() < TIMEOUT, "the probe does not end"),
        }
        if start.elapsed() < TIMEOUT / 4 && probe.farewell.is_none() {
            probe.heartbeat_to_ending_probe();
        }
    }
}

#[test]
fn forbidden_probe_says_so_and_makes_no_driver_call() {
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
            assert!(start.elapsed() < TIMEOUT, "the probe does not end");
        }
        assert!(probe.hello.is_some() && probe.inventory.is_none());
        assert_eq!(probe.farewell.as_deref(), Some(&*reason));
        assert_eq!(probe.child.wait().expect("ends").code(), Some(77));
    }
    policy.set("{");
    let output = Command::new(probe_program());
    let output = { output }.args(["--once", "--policy", &policy.path()]).output().expect("runs");
    let stderr = String::from_utf8(output.stderr).expect("utf-8");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(77), 0));
    assert!(stderr.contains("is invalid, so no probe may run"), "{stderr}");
}

#[test]
fn running_probe_shuts_nvml_down_and_exits_within_ten_seconds_when_forbidden() {
    let policy = PolicyFile::new();
    // The thread that waits for Xid events must return first.
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &json!({"xid_events": true}))]));
    let log = driver.log_calls();
    let mut probe = policy.probe(&driver);
    probe.snapshot();
    policy.set(r#"{"allow": false, "message": "resetting GPUs"}"#);
    let start = Instant::now();
    assert_eq!(wait_for_exit(&mut probe), Some(77));
    assert!(start.elapsed() < Duration::from_secs(10), "it took {:?}", start.elapsed());
    assert_eq!(probe.farewell.as_deref(), Some("resetting GPUs"));
    let calls = std::fs::read_to_string(log).expect("the driver logs");
    assert_eq!(calls, "nvmlInit_v2\nnvmlShutdown\n");
}

#[test]
fn forbidden_probe_exits_even_when_the_driver_hangs() {
    let policy = PolicyFile::new();
    let mut scenario = devices(&[gpu(0), gpu(1)]);
    scenario["hang"] = json!(["nvmlDeviceGetTemperature@0"]);
    let driver = FakeDriver::new(&scenario);
    let mut probe = policy.probe(&driver);
    probe.wait_for("a hang", |snapshot| snapshot.gpus.row(0).blocked_seconds.is_some());
    policy.set(r#"{"allow": false}"#);
    let start = Instant::now();
    assert_eq!(wait_for_exit(&mut probe), Some(77));
    assert!(start.elapsed() < Duration::from_secs(10), "it took {:?}", start.elapsed());
}

#[test]
fn minimum_interval_and_message_of_the_policy_are_applied() {
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
fn probe_process_has_a_name_that_administrators_can_find() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("gpufleet-probe-0.1.0-0123456789abcdef");
    copy_program(&probe_program(), &program);
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let mut probe = Probe::with_command(Command::new(&program), &driver.library(), &[]);
    probe.snapshot();
    let pid = probe.child.id();
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).expect("comm");
    assert_eq!(name, "gpufleet-probe\n");
    let ended = Command::new("kill").args(["-TERM", &pid.to_string()]).status().expect("kill runs");
    assert!(ended.success());
    assert_eq!(probe.child.wait().expect("ends").signal(), Some(15), "the controller sees the signal");
}

// Several probes on one host, and the hang lock that keeps them from a hung driver.

/// A world-writable directory for hang locks in place of /dev/shm, so that tests do not affect each other.
fn lock_directory() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o1777)).expect("opens it");
    folder
}

fn start(driver: &FakeDriver, locks: &Path) -> Probe {
    start_under(&["env"], driver, locks)
}

fn start_under(starter: &[&str], driver: &FakeDriver, locks: &Path) -> Probe {
    let locks = locks.to_str().expect("utf-8");
    Probe::start_under(starter, &driver.library(), &["--interval", "0.25", "--marks", locks])
}

/// Starts a probe as another user.
fn start_as_another_user(driver: &FakeDriver, locks: &Path) -> Probe {
    driver.open_to_all();
    let starter = another_user_command();
    start_under(&starter.iter().map(String::as_str).collect::<Vec<_>>(), driver, locks)
}

fn reads_gpus(snapshot: &Snapshot) -> bool {
    snapshot.gpus.row(0).temperature_celsius.is_some()
}

#[test]
fn probes_of_two_sessions_and_two_users_read_at_the_same_time() {
    let locks = lock_directory();
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let start = || start(&driver, locks.path());
    let mut probes = [start(), start(), start_as_another_user(&driver, locks.path())];
    for _ in 0..3 {
        for probe in &mut probes {
            let snapshot = probe.wait_for("readings", reads_gpus);
            assert_eq!(snapshot.driver_error, None);
        }
    }
}

#[test]
fn hung_probe_keeps_only_other_probes_of_its_user_away_from_nvml() {
    let locks = lock_directory();
    let mut hanging = devices(&[gpu(0)]);
    hanging["hang"] = json!(["nvmlDeviceGetTemperature"]);
    // The driver of the second probe works; that the probe does not call it shows in the missing readings.
    let (stuck, healthy) = (FakeDriver::new(&hanging), FakeDriver::new(&devices(&[gpu(0)])));
    let mut other = start(&healthy, locks.path());
    other.wait_for("readings", reads_gpus);
    let mut first = start(&stuck, locks.path());
    let pid = first.child.id();
    first.wait_for("a hang", |snapshot| snapshot.gpus.row(0).error.is_some());
    let snapshot = other.wait_for("a pause of the other probe", |snapshot| snapshot.driver_error.is_some());
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
    // A probe that starts later does not load the library at all.
    let mut late = start(&healthy, locks.path());
    let snapshot = late.snapshot();
    assert_eq!(snapshot.driver_error.as_ref(), Some(&error));
    assert_eq!((late.inventory().nvml_path.as_ref(), late.inventory().error.as_ref()), (None, Some(&error)));
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", late.child.id())).expect("maps");
    assert!(!maps.contains("libnvidia-ml"), "the library is loaded");
    start_as_another_user(&healthy, locks.path()).wait_for("readings of another user", reads_gpus);
    // All probes read again once the call has returned.
    hanging["hang"] = json!([]);
    stuck.set(&hanging);
    first.wait_for("its return", reads_gpus);
    other.wait_for("the driver again", reads_gpus);
    late.wait_for("the driver for the first time", reads_gpus);
}

#[test]
fn ended_probe_keeps_no_other_probe_away_from_nvml() {
    let locks = lock_directory();
    let mut hanging = devices(&[gpu(0)]);
    hanging["hang"] = json!(["nvmlInit_v2"]);
    let (stuck, healthy) = (FakeDriver::new(&hanging), FakeDriver::new(&devices(&[gpu(0)])));
    let mut first = start(&stuck, locks.path());
    let mut other = start(&healthy, locks.path());
    first.wait_for("a hang", |snapshot| snapshot.driver_error.is_some());
    other.wait_for("a pause of the other probe", |snapshot| snapshot.driver_error.is_some());
    let began = Instant::now();
    assert!(first.end().success());
    assert!(began.elapsed() < TIMEOUT / 4, "the exit waits only briefly for a hung call");
    other.wait_for("the driver again", reads_gpus);
}

#[test]
fn hang_lock_applies_only_to_the_host_with_its_boot_id() {
    // The lock file lies outside of the home directory, and its name contains the boot id of the host.
    let (home, locks) = (tempfile::tempdir().expect("a home"), lock_directory());
    let mut hanging = devices(&[gpu(0)]);
    hanging["hang"] = json!(["nvmlInit_v2"]);
    let driver = FakeDriver::new(&hanging);
    let variable = format!("HOME={}", home.path().display());
    let mut probe = start_under(&["env", &variable], &driver, locks.path());
    let first = probe.wait_for("a hang", |snapshot| snapshot.driver_error.is_some());
    probe.wait_for("the lock file", |snapshot| snapshot.monotonic_seconds > first.monotonic_seconds + 3.0);
    assert_eq!(std::fs::read_dir(home.path()).expect("lists").count(), 0);
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot id").replace('-', "");
    let uid = rustix::process::getuid().as_raw();
    let lock = locks.path().join(format!("gpufleet-{uid}-{}.waiting", boot.trim()));
    let text = std::fs::read_to_string(lock).expect("a lock file with the boot id in its name");
    assert!(text.starts_with(&format!("{} ", probe.child.id())), "{text}");
    // A lock file with the boot id of another host has no effect.
    let other = locks.path().join(format!("gpufleet-{uid}-00000000000040008000000000000000.waiting"));
    std::fs::write(other, text).expect("writes");
    probe.end();
    let healthy = FakeDriver::new(&devices(&[gpu(0)]));
    start(&healthy, locks.path()).wait_for("readings", reads_gpus);
}
