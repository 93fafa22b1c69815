//! Processes and the host: uninterruptible sleep, zombies, stopped, orphaned, hidden and ended processes, Slurm, file
//! systems, and process inspection.

use super::harness::{Probe, Sleeper, TIMEOUT, own_namespace_command, process_row};
use crate::fake_driver::{FakeDriver, copy_program, devices, gpu, gpu_with};
use gpufleet::wire::{Presence, ProcessReading, ProcessState, ReplyOutcome, Request, SlurmJob, Snapshot};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Instant;

/// A driver that lists these processes, each with 1 GiB and 0 % SM use.
fn driver_with(pids: &[u32]) -> FakeDriver {
    FakeDriver::new(&scenario(pids))
}

fn scenario(pids: &[u32]) -> Value {
    let processes: Vec<_> =
        pids.iter().map(|pid| json!({"pid": pid, "memory_bytes": 1_u64 << 30, "sm_percent": 0})).collect();
    devices(&[gpu_with(0, &json!({"processes": processes}))])
}

fn reading(snapshot: &Snapshot, pid: u32) -> ProcessReading {
    snapshot.processes.row(process_row(snapshot, pid))
}

/// Waits for a reading of a process that `accept` accepts.
fn wait_for(probe: &mut Probe, pid: u32, what: &str, accept: impl Fn(&ProcessReading) -> bool) -> ProcessReading {
    let snapshot = probe.wait_for(what, |snapshot| {
        let row = snapshot.processes.pid.iter().position(|&row| row == Some(pid));
        row.is_some_and(|row| accept(&snapshot.processes.row(row)))
    });
    reading(&snapshot, pid)
}

/// A child process with open standard input; it is killed and reaped on drop.
struct ChildProgram {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl ChildProgram {
    fn new(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
        let stdin = child.stdin.take();
        Self { child, stdin }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads a number from the first line of its output.
    fn read_number(&mut self) -> u32 {
        let stdout = self.child.stdout.take().expect("a pipe");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        line.trim().parse().expect("a number")
    }
}

impl Drop for ChildProgram {
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

/// Keeps threads in uninterruptible sleep: the parent in posix_spawn (vfork) sleeps until its child has executed a
/// program, and the child first opens a FIFO that has no writer.
struct Blocker {
    folder: tempfile::TempDir,
}

/// Python code: `block()` blocks the calling thread.
const BLOCK: &str = "
import os, sys, threading
def block():
    opens = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
    os.posix_spawn('/bin/true', ['true'], os.environ, file_actions=opens)
";

impl Blocker {
    fn new() -> Self {
        let blocker = Self { folder: tempfile::tempdir().expect("a folder") };
        assert!(Command::new("mkfifo").arg(blocker.pipe()).status().expect("mkfifo").success());
        blocker
    }

    fn pipe(&self) -> PathBuf {
        self.folder.path().join("pipe")
    }

    /// Wakes all blocked threads.
    fn release(&self) {
        let both_ends = std::fs::OpenOptions::new().read(true).write(true).open(self.pipe());
        drop(both_ends.expect("the pipe opens"));
    }
}

impl Drop for Blocker {
    fn drop(&mut self) {
        // The child outlives its parent and would wait forever.
        self.release();
    }
}

/// A process that runs a script of this name and does nothing.
fn script(path: &Path, argument: &str) -> ChildProgram {
    ChildProgram::new(Command::new("python3").arg(path).arg(argument))
}

#[test]
fn a_new_run_of_a_program_that_left_the_gpus_is_in_the_snapshots() {
    let folder = tempfile::tempdir().expect("a folder");
    let [path, other] = ["train.py", "other.py"].map(|name| folder.path().join(name));
    for file in [&path, &other] {
        std::fs::write(file, "import sys\nsys.stdin.read()\n").expect("written");
    }
    let first = script(&path, "--lr 1");
    let driver = driver_with(&[first.pid()]);
    let mut probe = Probe::with_driver(&driver);
    let pid = first.pid();
    probe
        .wait_for("its facts", |snapshot| snapshot.facts.iter().any(|facts| facts.pid == pid && facts.argv.len() == 3));
    driver.set(&scenario(&[]));
    drop(first);
    probe.wait_for("its end", |snapshot| snapshot.processes.pid.is_empty());
    let (again, other) = (script(&path, "--lr 2"), script(&other, "--lr 1"));
    let found = probe.wait_for("the new run", |snapshot| !snapshot.processes.pid.is_empty());
    assert_eq!((found.processes.pid.as_slice(), found.gpu_processes.len()), (&[Some(again.pid())][..], 0));
    let facts: Vec<_> =
        found.facts.iter().map(|facts| (facts.pid, facts.argv.last().map(gpufleet::wire::SafeText::as_str))).collect();
    assert_eq!(facts, [(again.pid(), Some("--lr 2"))]);
    drop((again, other));
    probe.wait_for("its end", |snapshot| snapshot.processes.pid.is_empty());
}

#[test]
fn uninterruptible_sleep_is_reported_with_its_duration() {
    let blocker = Blocker::new();
    let job = ChildProgram::new(&mut python(&format!("{BLOCK}\nblock()\nsys.stdin.read()"), &[&blocker.pipe()]));
    let driver = driver_with(&[job.pid()]);
    let mut probe = Probe::with_driver(&driver);
    let found = wait_for(&mut probe, job.pid(), "a second of D", |reading| {
        reading.blocked_seconds.is_some_and(|seconds| seconds >= 1.0)
    });
    assert_eq!((found.state, found.presence), (Some(ProcessState::DiskSleep), Some(Presence::Visible)));
    assert_eq!((found.blocked_thread, found.threads_blocked), (Some(job.pid()), Some(1)));
    assert_eq!(found.threads_live, Some(1));
    if std::fs::read_to_string(format!("/proc/{}/wchan", job.pid())).is_ok_and(|channel| channel != "0") {
        assert!(found.wait_channel.is_some(), "the owner can read the wait channel");
    }
    // The duration of the same sleep grows.
    let later =
        wait_for(&mut probe, job.pid(), "more of it", |reading| reading.blocked_seconds > found.blocked_seconds);
    assert_eq!(later.blocked_thread, found.blocked_thread);
    blocker.release();
    wait_for(&mut probe, job.pid(), "its end", |reading| {
        reading.state == Some(ProcessState::Sleeping) && reading.blocked_thread.is_none()
    });
}

#[test]
fn blocked_thread_is_found_when_the_leader_only_sleeps() {
    let blocker = Blocker::new();
    let program = format!("{BLOCK}\nthreading.Thread(target=block).start()\nsys.stdin.read()");
    let job = ChildProgram::new(&mut python(&program, &[&blocker.pipe()]));
    let driver = driver_with(&[job.pid()]);
    let mut probe = Probe::with_driver(&driver);
    // Threads are counted only when the process used no CPU time, and the leader wakes up now and then.
    let found = wait_for(&mut probe, job.pid(), "a blocked thread", |reading| {
        reading.state == Some(ProcessState::Sleeping)
            && reading.blocked_seconds.is_some_and(|seconds| seconds >= 0.5)
            && reading.threads_live.is_some()
    });
    assert_eq!(found.threads, Some(2));
    assert_eq!((found.threads_blocked, found.threads_live), (Some(1), Some(2)));
    let thread = found.blocked_thread.expect("a thread id");
    assert_ne!(thread, job.pid());
    assert!(Path::new(&format!("/proc/{}/task/{thread}", job.pid())).exists());
    blocker.release();
    wait_for(&mut probe, job.pid(), "its end", |reading| reading.blocked_thread.is_none());
}

/// Listens on a port, on one of IPv6 and on that of `MASTER_PORT`, with one connection between two of these sockets.
const LISTENER: &str = "
import os, socket, sys
if 'MASTER_PORT' not in os.environ:
    rendezvous = socket.create_server(('127.0.0.1', 0))
    rendezvous.set_inheritable(True)
    os.environ['MASTER_PORT'] = str(rendezvous.getsockname()[1])
    os.execve(sys.executable, sys.orig_argv, os.environ)
server = socket.create_server(('127.0.0.1', 0))
port = server.getsockname()[1]
client = socket.create_connection(('127.0.0.1', port))
accepted = server.accept()
try:
    six = socket.create_server(('::1', 0), family=socket.AF_INET6)
    print(port, six.getsockname()[1], flush=True)
except OSError:
    print(port, flush=True)
sys.stdin.read()
";

#[test]
fn listening_ports_and_connections_of_own_processes_are_reported() {
    let mut server = ChildProgram::new(python(LISTENER, &[]).stdout(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(server.child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    let mut ports: Vec<u16> = line.split_whitespace().map(|port| port.parse().expect("a port")).collect();
    ports.sort_unstable();
    let other = Sleeper::start();
    let driver = driver_with(&[server.pid(), other.pid()]);
    let mut probe = Probe::with_driver(&driver);
    let snapshot = probe.wait_for("the ports", |snapshot| {
        snapshot.facts.iter().any(|facts| facts.pid == server.pid() && !facts.listening_ports.is_empty())
    });
    let facts = snapshot.facts.iter().rfind(|facts| facts.pid == server.pid()).expect("facts");
    assert_eq!(facts.listening_ports, ports, "without the port of MASTER_PORT");
    assert_eq!(reading(&snapshot, server.pid()).established_connections, Some(2));
    let is_read = |reading: &ProcessReading| reading.established_connections.is_some();
    assert_eq!(wait_for(&mut probe, other.pid(), "its sockets", is_read).established_connections, Some(0));
}

/// Answers one of its two clients and starts a worker without sockets. With `up` it sets up the loopback device of a new
/// network namespace first.
const FRONT_END: &str = "
import fcntl, socket, struct, subprocess, sys
if 'up' in sys.argv:
    SIOCSIFFLAGS, IFF_UP = 0x8914, 1
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack('16sh14x', b'lo', IFF_UP))
server = socket.create_server(('127.0.0.1', 0))
clients = [socket.create_connection(server.getsockname()) for _ in range(2)]
for client in clients:
    client.sendall(b'GET /')
accepted = [server.accept()[0] for _ in clients]
accepted[0].recv(5)
accepted[0].sendall(b'200')
clients[0].recv(3)
worker = subprocess.Popen(['cat'], stdin=subprocess.PIPE)
print(worker.pid, flush=True)
sys.stdin.read()
";

#[test]
fn clients_that_wait_for_the_front_end_of_a_gpu_process_are_counted() {
    // The probe looks for clients in the processes that the same parent started, but not beyond a shell. This program starts servers
    // for other tests, so each front end gets a shell.
    let in_shell = |program: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", "\"$@\"; exit", "sh"]).args(program).stdout(Stdio::piped());
        ChildProgram::new(&mut command)
    };
    let mut front_end = in_shell(&["python3", "-c", FRONT_END]);
    let worker = front_end.read_number();
    let map_root = if rustix::process::geteuid().is_root() { &[][..] } else { &["--user", "--map-root-user"] };
    let mut in_container = in_shell(&[&["unshare"], map_root, &["--net", "python3", "-c", FRONT_END, "up"]].concat());
    let hidden = in_container.read_number();
    let driver = driver_with(&[worker, hidden]);
    let mut probe = Probe::with_driver(&driver);
    let found = wait_for(&mut probe, worker, "a waiting client", |reading| reading.waiting_clients.is_some());
    assert_eq!((found.established_connections, found.waiting_clients), (Some(0), Some(1)));
    assert!(found.longest_wait_seconds.is_some_and(|seconds| seconds < 600.0), "{found:?}");
    // Only root may enter another network namespace.
    let is_read = |reading: &ProcessReading| reading.established_connections.is_some();
    let found = wait_for(&mut probe, hidden, "its sockets", is_read);
    assert_eq!(found.waiting_clients, rustix::process::geteuid().is_root().then_some(1));
}

#[test]
fn zombie_leader_with_a_live_thread_differs_from_a_dead_process() {
    let program = "
import ctypes, platform, sys, threading
threading.Thread(target=sys.stdin.read).start()
exit = {'x86_64': 60, 'aarch64': 93}[platform.machine()]
ctypes.CDLL(None).syscall(exit, 0)
";
    let half_dead = ChildProgram::new(&mut python(program, &[]));
    let mut dead = ChildProgram::new(&mut Command::new("cat"));
    drop(dead.stdin.take());
    let driver = driver_with(&[half_dead.pid(), dead.pid()]);
    let mut probe = Probe::with_driver(&driver);
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
fn stopped_process_is_reported_until_it_continues() {
    let sleeper = Sleeper::start();
    let driver = driver_with(&[sleeper.pid()]);
    let mut probe = Probe::with_driver(&driver);
    wait_for(&mut probe, sleeper.pid(), "sleep", |reading| reading.state == Some(ProcessState::Sleeping));
    signal(sleeper.pid(), rustix::process::Signal::STOP);
    let found = wait_for(&mut probe, sleeper.pid(), "a stop", |reading| reading.state == Some(ProcessState::Stopped));
    assert_eq!(found.blocked_thread, None);
    signal(sleeper.pid(), rustix::process::Signal::CONT);
    wait_for(&mut probe, sleeper.pid(), "sleep again", |reading| reading.state == Some(ProcessState::Sleeping));
}

#[test]
fn orphan_gets_a_new_parent_and_an_ignored_hangup_is_reported() {
    let script = "sleep 600 & nohup sleep 601 >/dev/null 2>&1 & echo $!; read _";
    // The signal mask of a test run under nohup would be inherited.
    let mut parent = ChildProgram::new(
        Command::new("env").args(["--default-signal=HUP", "sh", "-c", script]).stdout(Stdio::piped()),
    );
    let nohup_child = parent.read_number();
    let of = format!("/proc/{0}/task/{0}/children", parent.pid());
    let children = std::fs::read_to_string(of).expect("children");
    let plain_child =
        children.split_whitespace().map(|pid| pid.parse().expect("a pid")).find(|&pid: &u32| pid != nohup_child);
    let plain_child = plain_child.expect("two children");
    let driver = driver_with(&[plain_child, nohup_child]);
    let mut probe = Probe::with_driver(&driver);
    let found = wait_for(&mut probe, plain_child, "its parent", |reading| reading.parent_pid.is_some());
    assert_eq!(found.parent_pid, Some(parent.pid()));
    let facts_of = |probe: &Probe, pid: u32| {
        let facts = probe.facts.iter().rfind(|facts| facts.pid == pid);
        facts.cloned().unwrap_or_default()
    };
    while facts_of(&probe, nohup_child).ignores_hangup != Some(true) {
        probe.wait_for("nohup's mask", |_| true);
    }
    assert_eq!(facts_of(&probe, plain_child).ignores_hangup, Some(false));
    assert_eq!(facts_of(&probe, plain_child).ancestors.first().map(|above| above.pid), Some(parent.pid()));
    drop(parent.stdin.take());
    let _status = parent.child.wait().expect("the shell ends");
    let found = wait_for(&mut probe, plain_child, "another parent", |reading| {
        reading.parent_pid.is_some_and(|pid| pid != parent.pid())
    });
    assert_eq!(found.presence, Some(Presence::Visible));
    let above = facts_of(&probe, plain_child).ancestors;
    assert_eq!(above.first().map(|above| above.pid), found.parent_pid.filter(|&pid| pid > 0), "{above:?}");
    for orphan in [plain_child, nohup_child] {
        signal(orphan, rustix::process::Signal::KILL);
    }
}

#[test]
fn ended_process_keeps_its_memory_and_its_facts() {
    let mut sleeper = Sleeper::start();
    let driver = driver_with(&[sleeper.pid()]);
    let mut probe = Probe::with_driver(&driver);
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
fn process_hidden_by_hidepid_is_hidden_and_not_gone() {
    let driver = driver_with(&[]);
    let folder = driver.library().parent().expect("a folder").to_owned();
    let program = folder.join("gpufleet-probe");
    copy_program(Path::new(env!("CARGO_BIN_EXE_gpufleet-probe")), &program);
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).expect("opens the folder");
    // As root, the sleeper runs as root and the probe as another user. Otherwise both run as the same user, and the
    // sleeper is an unreadable program: /proc hides it from processes without capabilities in the namespace.
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
    let prefix = own_namespace_command();
    let mut command = Command::new(&prefix[0]);
    command.args(&prefix[1..]).args(["sh", "-c", script, "sh"]).arg(&folder);
    let mut probe = Probe::spawn(&mut command);
    probe.snapshot();
    let pid = std::fs::read_to_string(folder.join("pid")).expect("the sleeper's pid").trim().parse().expect("a pid");
    // No process has the second pid.
    driver.set(&scenario(&[pid, 4_194_000]));
    let found = wait_for(&mut probe, pid, "a hidden process", |reading| reading.presence.is_some());
    assert_eq!((found.presence, found.state), (Some(Presence::Hidden), None));
    let found = wait_for(&mut probe, 4_194_000, "a gone process", |reading| reading.presence.is_some());
    assert_eq!(found.presence, Some(Presence::Gone));
}

#[test]
fn descendants_and_log_file_of_a_gpu_process_are_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = std::fs::File::create(folder.path().join("train.log")).expect("a log");
    let mut command = Command::new("sh");
    command.args(["-c", "sleep 600 & sleep 600 & echo epoch 1; read _; kill %1 %2"]);
    command.current_dir(folder.path()).stdout(log).stderr(Stdio::null());
    let mut job = ChildProgram::new(&mut command);
    let driver = driver_with(&[job.pid()]);
    let mut probe = Probe::with_driver(&driver);
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

// The host beyond its GPUs: Slurm with a fake `scontrol`, file systems and rates, and process inspection.

/// A fake `scontrol` that answers for every node.
const SCONTROL: &str = r#"#!/bin/sh
case "$*" in
  'show config') echo 'ClusterName             = lab' ;;
  '-d -o show job 3385') echo "JobId=3385 UserId=ann(1000) Nodes=$(uname -n | cut -d. -f1) CPU_IDs=0 Mem=0 GRES=gpu:h100:2(IDX:0-1)" ;;
  '-d -o show node '*) echo "NodeName=$5 Gres=gpu:h100:8 GresUsed=gpu:h100:2(IDX:0-1) State=MIXED" ;;
  *) exit 1 ;;
esac
"#;

#[test]
fn slurm_allocations_are_sent_when_scontrol_answers() {
    let driver = FakeDriver::new(&devices(&[gpu(0), gpu(1)]));
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("scontrol");
    std::fs::write(&program, SCONTROL).expect("writes");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("may be run");
    let path = std::env::var("PATH").expect("a path");
    let squeue = folder.path().join("squeue");
    std::fs::write(&squeue, "#!/bin/sh\necho '3385 3385 ann'\n").expect("writes");
    std::fs::set_permissions(&squeue, std::fs::Permissions::from_mode(0o755)).expect("may be run");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpufleet-probe"));
    command.env("PATH", format!("{}:{path}", folder.path().display()));
    command.arg("--nvml-library").arg(driver.library()).args(["--interval", "0.25"]);
    let mut probe = Probe::spawn(&mut command);
    let mut cluster = None;
    let snapshot = probe.wait_for("what jobs hold", |snapshot| {
        cluster = snapshot.host.slurm_cluster.clone().or(cluster.take());
        snapshot.host.slurm_allocated_gpus.is_some()
    });
    assert_eq!(snapshot.host.slurm_allocated_gpus, Some(vec![0, 1]));
    assert_eq!(cluster.as_deref(), Some("lab"));
    let jobs = probe.wait_for("the jobs", |snapshot| snapshot.host.slurm_jobs.is_some()).host.slurm_jobs;
    assert_eq!(jobs, Some(vec![SlurmJob { job: "3385".into(), user: Some("ann".into()), gpus: vec![0, 1] }]));
    // It is sent once, and again after a Resend request.
    assert_eq!(probe.snapshot().host.slurm_allocated_gpus, None);
    probe.request(&Request::Resend);
    let snapshot = probe.wait_for("the allocation again", |snapshot| snapshot.host.slurm_allocated_gpus.is_some());
    assert_eq!(snapshot.host.slurm_cluster.as_deref(), Some("lab"));
    assert_eq!(snapshot.host.slurm_jobs, jobs);
}

#[test]
fn home_file_system_and_network_rates_are_sent() {
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let mut probe = Probe::with_driver(&driver);
    let snapshot = probe.wait_for("file systems", |snapshot| !snapshot.host.filesystems.is_empty());
    let home = snapshot.host.filesystems.first().expect("one");
    assert!(home.mount_point.starts_with('/') && !home.kind.is_empty(), "{home:?}");
    assert!(home.total_bytes > home.available_bytes && home.silent_seconds.is_none(), "{home:?}");
    let interfaces = std::fs::read_dir("/sys/class/net").map_or(0, Iterator::count);
    if interfaces > 1 {
        let snapshot = probe.wait_for("a rate", |snapshot| snapshot.host.network_receive_bytes_per_second.is_some());
        assert!(snapshot.host.network_transmit_bytes_per_second.is_some_and(|rate| rate >= 0.0));
    }
    assert!(snapshot.host.tasks_blocked.is_some());
}

/// A child process that is killed and reaped on drop.
struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _status = self.0.wait();
    }
}

#[test]
fn environment_and_log_tail_of_an_own_process_are_sent_on_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("train.log");
    std::fs::write(&path, "epoch 1\nepoch 2 --token=abc\n").expect("a log");
    let log = std::fs::OpenOptions::new().append(true).open(&path).expect("a log");
    let mut command = Command::new("sleep");
    command.arg("600").env_clear().envs([("NCCL_DEBUG", "INFO"), ("HF_TOKEN", "abc")]).stdin(Stdio::null()).stdout(log);
    let job = Job(command.spawn().expect("starts"));
    let pid = job.0.id();
    let process = json!({"pid": pid, "memory_bytes": 1_u64 << 30});
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &json!({"processes": [process]}))]));
    let mut probe = Probe::with_driver(&driver);
    let snapshot = probe.snapshot();
    let start_ticks = snapshot.processes.row(process_row(&snapshot, pid)).start_ticks.expect("its start");
    let boot_id = probe.hello.as_ref().and_then(|hello| hello.boot_id.clone()).expect("a boot id");
    // The environment is empty until exec has finished.
    let start = Instant::now();
    let mut id = 200;
    let variables = loop {
        id += 1;
        probe.request(&Request::Environment { id, boot_id: boot_id.clone(), pid, start_ticks });
        match probe.reply(id) {
            ReplyOutcome::Environment(variables) if variables.is_empty() => assert!(start.elapsed() < TIMEOUT),
            ReplyOutcome::Environment(variables) => break variables,
            other => panic!("{other:?}"),
        }
    };
    // Variables that do not place it in its job stay on the host.
    let expected = ReplyOutcome::Environment(vec!["NCCL_DEBUG=INFO".into()]);
    assert_eq!(ReplyOutcome::Environment(variables), expected);
    probe.request(&Request::LogTail { id: 100, boot_id: boot_id.clone(), pid, start_ticks });
    let expected = ReplyOutcome::LogTail {
        path: path.to_str().expect("utf-8").into(),
        lines: vec!["epoch 1".into(), "epoch 2 --token=***".into()],
    };
    assert_eq!(probe.reply(100), expected);
    probe.request(&Request::LogTail { id: 101, boot_id: boot_id.clone(), pid, start_ticks: start_ticks + 1 });
    assert_eq!(probe.reply(101), ReplyOutcome::Reused);
    // A request with another boot id names another process.
    let sleeper = Sleeper::start();
    let request = Request::Environment { id: 102, boot_id: "another".into(), pid: sleeper.pid(), start_ticks: 1 };
    probe.request(&request);
    assert_eq!(probe.reply(102), ReplyOutcome::Reused);
}
