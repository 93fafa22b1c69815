//! Process states made for real, and found by the real probe: uninterruptible sleep, zombies, stopped, orphaned, hidden
//! and vanished processes.

#![allow(clippy::expect_used, reason = "a helper of a test fails by panicking, like the test")]

use super::process::{Probe, Sleeper, row_of};
use super::users::in_own_world;
use crate::fake_driver::{FakeDriver, devices, gpu_with};
use gpufleet::wire::{Presence, ProcessReading, ProcessState, Snapshot};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// A driver that lists these processes, each with 1 GiB and no share of the SMs.
fn driver_with(pids: &[u32]) -> FakeDriver {
    FakeDriver::new(&scenario(pids))
}

fn scenario(pids: &[u32]) -> Value {
    let processes: Vec<_> =
        pids.iter().map(|pid| json!({"pid": pid, "memory_bytes": 1_u64 << 30, "sm_percent": 0})).collect();
    devices(&[gpu_with(0, &json!({"processes": processes}))])
}

fn reading(snapshot: &Snapshot, pid: u32) -> ProcessReading {
    snapshot.processes.row(row_of(snapshot, pid))
}

/// Waits until the probe says this of a process.
fn wait_for(probe: &mut Probe, pid: u32, what: &str, accept: impl Fn(&ProcessReading) -> bool) -> ProcessReading {
    let snapshot = probe.wait_for(what, |snapshot| {
        let row = snapshot.processes.pid.iter().position(|&row| row == Some(pid));
        row.is_some_and(|row| accept(&snapshot.processes.row(row)))
    });
    reading(&snapshot, pid)
}

/// A program that a test started, with its standard input held open; it is killed and reaped when dropped.
struct Started {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Started {
    fn new(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
        let stdin = child.stdin.take();
        Self { child, stdin }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The first line that it writes, as a number.
    fn number(&mut self) -> u32 {
        let stdout = self.child.stdout.take().expect("a pipe");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        line.trim().parse().expect("a number")
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _status = self.child.wait();
    }
}

fn python(program: &str, arguments: &[&Path]) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", program]).args(arguments);
    command
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("the process lives");
}

/// What a thread in uninterruptible sleep waits for: a parent waits so for its child, until that has executed its
/// program, and the child first opens a pipe that nobody writes to.
struct Blockade {
    folder: tempfile::TempDir,
}

/// Blocks the thread that calls `block()`.
const BLOCK: &str = "
import os, sys, threading
def block():
    opens = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
    os.posix_spawn('/bin/true', ['true'], os.environ, file_actions=opens)
";

impl Blockade {
    fn new() -> Self {
        let blockade = Self { folder: tempfile::tempdir().expect("a folder") };
        assert!(Command::new("mkfifo").arg(blockade.pipe()).status().expect("mkfifo").success());
        blockade
    }

    fn pipe(&self) -> PathBuf {
        self.folder.path().join("pipe")
    }

    /// Lets all go on that wait.
    fn lift(&self) {
        let both_ends = std::fs::OpenOptions::new().read(true).write(true).open(self.pipe());
        drop(both_ends.expect("the pipe opens"));
    }
}

impl Drop for Blockade {
    fn drop(&mut self) {
        // The child outlives its parent, and would wait for ever.
        self.lift();
    }
}

#[test]
fn a_process_in_uninterruptible_sleep_says_since_when() {
    let blockade = Blockade::new();
    let job = Started::new(&mut python(&format!("{BLOCK}\nblock()\nsys.stdin.read()"), &[&blockade.pipe()]));
    let driver = driver_with(&[job.pid()]);
    let mut probe = Probe::on(&driver);
    let found = wait_for(&mut probe, job.pid(), "a second of D", |reading| {
        reading.blocked_seconds.is_some_and(|seconds| seconds >= 1.0)
    });
    assert_eq!((found.state, found.presence), (Some(ProcessState::DiskSleep), Some(Presence::Visible)));
    assert_eq!((found.blocked_thread, found.threads_blocked), (Some(job.pid()), Some(1)));
    assert_eq!(found.threads_live, Some(1));
    if std::fs::read_to_string(format!("/proc/{}/wchan", job.pid())).is_ok_and(|channel| channel != "0") {
        assert!(found.wait_channel.is_some(), "its owner may know in what it waits");
    }
    // What grows is the same sleep, not a new one.
    let later =
        wait_for(&mut probe, job.pid(), "more of it", |reading| reading.blocked_seconds > found.blocked_seconds);
    assert_eq!(later.blocked_thread, found.blocked_thread);
    blockade.lift();
    wait_for(&mut probe, job.pid(), "its end", |reading| {
        reading.state == Some(ProcessState::Sleeping) && reading.blocked_thread.is_none()
    });
}

#[test]
fn a_thread_in_uninterruptible_sleep_is_found_behind_a_leader_that_sleeps() {
    let blockade = Blockade::new();
    let program = format!("{BLOCK}\nthreading.Thread(target=block).start()\nsys.stdin.read()");
    let job = Started::new(&mut python(&program, &[&blockade.pipe()]));
    let driver = driver_with(&[job.pid()]);
    let mut probe = Probe::on(&driver);
    // The leader wakes up now and then to see whether it may go on; only without CPU time gained are threads counted.
    let found = wait_for(&mut probe, job.pid(), "a blocked thread", |reading| {
        reading.blocked_seconds.is_some_and(|seconds| seconds >= 0.5) && reading.threads_live.is_some()
    });
    assert_eq!((found.state, found.threads), (Some(ProcessState::Sleeping), Some(2)));
    assert_eq!((found.threads_blocked, found.threads_live), (Some(1), Some(2)));
    let thread = found.blocked_thread.expect("which one");
    assert_ne!(thread, job.pid());
    assert!(Path::new(&format!("/proc/{}/task/{thread}", job.pid())).exists());
    blockade.lift();
    wait_for(&mut probe, job.pid(), "its end", |reading| reading.blocked_thread.is_none());
}

#[test]
fn a_zombie_leader_with_a_live_thread_is_told_from_a_dead_process() {
    let program = "
import ctypes, platform, sys, threading
threading.Thread(target=sys.stdin.read).start()
exit = {'x86_64': 60, 'aarch64': 93}[platform.machine()]
ctypes.CDLL(None).syscall(exit, 0)
";
    let half_dead = Started::new(&mut python(program, &[]));
    let mut dead = Started::new(&mut Command::new("cat"));
    drop(dead.stdin.take());
    let driver = driver_with(&[half_dead.pid(), dead.pid()]);
    let mut probe = Probe::on(&driver);
    let found = wait_for(&mut probe, half_dead.pid(), "a zombie leader", |reading| {
        reading.state == Some(ProcessState::Zombie) && reading.threads_live.is_some()
    });
    assert_eq!((found.presence, found.threads_live), (Some(Presence::Visible), Some(1)));
    let found = wait_for(&mut probe, dead.pid(), "a zombie", |reading| {
        reading.state == Some(ProcessState::Zombie) && reading.threads_live.is_some()
    });
    assert_eq!((found.presence, found.threads_live), (Some(Presence::Visible), Some(0)));
}

#[test]
fn a_stopped_process_is_stopped_until_it_goes_on() {
    let sleeper = Sleeper::start();
    let driver = driver_with(&[sleeper.pid()]);
    let mut probe = Probe::on(&driver);
    wait_for(&mut probe, sleeper.pid(), "sleep", |reading| reading.state == Some(ProcessState::Sleeping));
    signal(sleeper.pid(), rustix::process::Signal::STOP);
    let found = wait_for(&mut probe, sleeper.pid(), "a stop", |reading| reading.state == Some(ProcessState::Stopped));
    assert_eq!(found.blocked_thread, None);
    signal(sleeper.pid(), rustix::process::Signal::CONT);
    wait_for(&mut probe, sleeper.pid(), "sleep again", |reading| reading.state == Some(ProcessState::Sleeping));
}

#[test]
fn an_orphan_has_another_parent_and_is_known_to_outlive_a_login_by_its_mask() {
    let script = "sleep 600 & nohup sleep 601 >/dev/null 2>&1 & echo $!; read _";
    // Who runs the tests under nohup hands its mask on.
    let mut parent =
        Started::new(Command::new("env").args(["--default-signal=HUP", "sh", "-c", script]).stdout(Stdio::piped()));
    let hardened = parent.number();
    let of = format!("/proc/{0}/task/{0}/children", parent.pid());
    let children = std::fs::read_to_string(of).expect("children");
    let plain = children.split_whitespace().map(|pid| pid.parse().expect("a pid")).find(|&pid: &u32| pid != hardened);
    let plain = plain.expect("two children");
    let driver = driver_with(&[plain, hardened]);
    let mut probe = Probe::on(&driver);
    let found = wait_for(&mut probe, plain, "its parent", |reading| reading.parent_pid.is_some());
    assert_eq!(found.parent_pid, Some(parent.pid()));
    let facts_of = |probe: &Probe, pid: u32| {
        let facts = probe.facts.iter().rfind(|facts| facts.pid == pid);
        facts.cloned().unwrap_or_default()
    };
    while facts_of(&probe, hardened).ignores_hangup != Some(true) {
        probe.wait_for("nohup's mask", |_| true);
    }
    assert_eq!(facts_of(&probe, plain).ignores_hangup, Some(false));
    assert_eq!(facts_of(&probe, plain).ancestors.first().map(|above| above.pid), Some(parent.pid()));
    drop(parent.stdin.take());
    let _status = parent.child.wait().expect("the shell ends");
    let found = wait_for(&mut probe, plain, "another parent", |reading| {
        reading.parent_pid.is_some_and(|pid| pid != parent.pid())
    });
    assert_eq!(found.presence, Some(Presence::Visible));
    let above = facts_of(&probe, plain).ancestors;
    assert_eq!(above.first().map(|above| above.pid), found.parent_pid.filter(|&pid| pid > 0), "{above:?}");
    for orphan in [plain, hardened] {
        signal(orphan, rustix::process::Signal::KILL);
    }
}

#[test]
fn a_process_that_vanished_keeps_its_memory_and_its_name() {
    let mut sleeper = Sleeper::start();
    let driver = driver_with(&[sleeper.pid()]);
    let mut probe = Probe::on(&driver);
    let alive = wait_for(&mut probe, sleeper.pid(), "it", |reading| reading.presence == Some(Presence::Visible));
    sleeper.end();
    let snapshot =
        probe.wait_for("a gone process", |snapshot| reading(snapshot, sleeper.pid()).presence == Some(Presence::Gone));
    let gone = reading(&snapshot, sleeper.pid());
    assert_eq!((gone.start_ticks, gone.state), (alive.start_ticks, None));
    assert_eq!(snapshot.gpu_processes.row(0).gpu_memory_bytes, Some(1 << 30));
    assert!(probe.facts.iter().any(|facts| facts.pid == sleeper.pid() && facts.start_ticks == gone.start_ticks));
}

#[test]
fn a_process_that_hidepid_hides_is_hidden_and_not_gone() {
    let driver = driver_with(&[]);
    let folder = driver.library().parent().expect("a folder").to_owned();
    let program = folder.join("gpufleet-probe");
    std::fs::copy(env!("CARGO_BIN_EXE_gpufleet-probe"), &program).expect("copies");
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).expect("opens the folder");
    // As root the sleeper is root's and the probe is not. Else both are ours, and what may not be read may not be looked
    // at by others of the same user either, once they have given up the powers of their namespace.
    let script = if rustix::process::geteuid().is_root() {
        "mount -t proc -o hidepid=2 proc /proc && { sleep 600 </dev/null >/dev/null & } && echo $! >\"$1/pid\" && \
         exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$1/gpufleet-probe\" --interval 0.25 \
         --nvml-library \"$1/libnvidia-ml.so.1\""
    } else {
        "mount -t proc -o hidepid=2 proc /proc && cp \"$(command -v sleep)\" \"$1/unreadable\" && \
         chmod 111 \"$1/unreadable\" && exec setpriv --bounding-set=-all --inh-caps=-all sh -c '\
         { \"$1/unreadable\" 600 </dev/null >/dev/null & } && echo $! >\"$1/pid\" && exec \"$1/gpufleet-probe\" \
         --interval 0.25 --nvml-library \"$1/libnvidia-ml.so.1\"' sh \"$1\""
    };
    let world = in_own_world();
    let mut command = Command::new(&world[0]);
    command.args(&world[1..]).args(["sh", "-c", script, "sh"]).arg(&folder);
    let mut probe = Probe::run(&mut command);
    probe.snapshot();
    let pid = std::fs::read_to_string(folder.join("pid")).expect("the sleeper's pid").trim().parse().expect("a pid");
    // Nobody has this one.
    driver.set(&scenario(&[pid, 4_194_000]));
    let found = wait_for(&mut probe, pid, "a hidden process", |reading| reading.presence.is_some());
    assert_eq!((found.presence, found.state), (Some(Presence::Hidden), None));
    let found = wait_for(&mut probe, 4_194_000, "a gone process", |reading| reading.presence.is_some());
    assert_eq!(found.presence, Some(Presence::Gone));
}

#[test]
fn workers_below_a_gpu_process_are_counted_and_its_files_are_known() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = std::fs::File::create(folder.path().join("train.log")).expect("a log");
    let mut command = Command::new("sh");
    command.args(["-c", "sleep 600 & sleep 600 & echo epoch 1; read _; kill %1 %2"]);
    command.current_dir(folder.path()).stdout(log).stderr(Stdio::null());
    let mut job = Started::new(&mut command);
    let driver = driver_with(&[job.pid()]);
    let mut probe = Probe::on(&driver);
    let found = wait_for(&mut probe, job.pid(), "workers", |reading| reading.descendants == Some(2));
    assert_eq!((found.descendants_blocked, found.descendants_cpu_percent), (Some(0), None));
    assert!(found.read_characters.is_some_and(|bytes| bytes > 0) && found.write_bytes.is_some());
    assert!(found.log_age_seconds.is_some_and(|seconds| seconds < 3600.0), "{:?}", found.log_age_seconds);
    let facts = probe.facts.iter().rfind(|facts| facts.pid == job.pid()).expect("its facts");
    assert_eq!(facts.working_directory.as_deref(), folder.path().to_str());
    assert_eq!(facts.log_path.as_deref(), folder.path().join("train.log").to_str());
    drop(job.stdin.take());
    let _status = job.child.wait().expect("ends");
}
