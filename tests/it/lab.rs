//! A lab on loopback: real sshds with fake drivers and real processes, runs of gpufleet on it, host tasks without a
//! screen, and tests that need root.

use crate::fake_driver::{FakeDriver, devices, gpu, gpu_with};
use crate::sshd::Sshd;
use gpufleet::collect::{HostTasks, HostUpdates, OpenChannel, Source};
use gpufleet::config::{Backend, HostConfig};
use gpufleet::fleet::{Clock, HostId, HostUpdate};
use gpufleet::ssh::{Context, Interaction, Options};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout_at;

/// A host of the lab.
pub(crate) struct LabHost {
    pub(crate) name: String,
    pub(crate) sshd: Sshd,
    pub(crate) driver: FakeDriver,
    /// The process on its first two GPUs.
    worker: Child,
}

/// Hosts and their common folder.
pub(crate) struct Lab {
    pub(crate) hosts: Vec<LabHost>,
    folder: tempfile::TempDir,
}

impl Lab {
    /// Hosts of these names, on 127.0.0.1, 127.0.0.2 and so on, each with four GPUs and a process on two of them.
    pub(crate) fn start(names: &[&str]) -> Self {
        Self::start_in(names, |_| None)
    }

    /// Like [`Self::start`], with mount namespaces: see [`Sshd::start_in`].
    pub(crate) fn start_in(names: &[&str], mounts: impl FnMut(&Path) -> Option<String>) -> Self {
        Self::start_with(names, "", mounts, |_| {
            Command::new("sleep").arg("3600").stdin(Stdio::null()).spawn().expect("sleep starts")
        })
    }

    /// Like [`Self::start`], with these processes on the GPUs, by the name of the host.
    pub(crate) fn start_with_workers(names: &[&str], workers: impl FnMut(&str) -> Child) -> Self {
        Self::start_with(names, "", |_| None, workers)
    }

    /// Starts hosts with more environment variables (`NAME=value ...`), mount namespaces and these processes. The process of a
    /// host starts before its sshd.
    pub(crate) fn start_with(
        names: &[&str],
        environment: &str,
        mut mounts: impl FnMut(&Path) -> Option<String>,
        mut workers: impl FnMut(&str) -> Child,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let hosts = (1..).zip(names).map(|(number, name)| {
            // Each host has its own cache, like machines without a shared home directory.
            let cache = folder.path().join(name).join("cache");
            let environment = format!("SetEnv SHLVL=5 XDG_CACHE_HOME={} {environment}", cache.display());
            std::fs::create_dir_all(folder.path().join(name)).expect("a folder");
            let worker = workers(name);
            let driver = FakeDriver::new(&scenario(worker.id(), 97));
            LabHost {
                name: (*name).to_owned(),
                sshd: Sshd::start_in(Ipv4Addr::new(127, 0, 0, number), &[&environment], &mut mounts),
                driver,
                worker,
            }
        });
        Self { hosts: hosts.collect(), folder }
    }

    /// A path in the lab's folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes the hosts.toml that reaches every host, with lines added to `[defaults]`, and returns its path.
    ///
    /// The rules about the machine are off, since all hosts are the machine that runs the tests and may be busy.
    pub(crate) fn hosts_toml(&self, defaults: &str) -> String {
        let mut text = format!("[defaults]\ninterval = \"500ms\"\n{defaults}\n");
        for host in &self.hosts {
            let _ = write!(
                text,
                "\n[[hosts]]\nname = \"{}\"\naddress = \"{}\"\nport = {}\nidentity_file = \"{}\"\nknown_hosts = \
                 \"{}\"\nnvml_library = \"{}\"\ndiagnosis = {{ off = [\"host-overloaded\", \"host-thrashing\", \
                 \"host-ram-low\", \"disk-full\"] }}\n",
                host.name,
                host.sshd.ip(),
                host.sshd.port(),
                host.sshd.client_key().display(),
                host.sshd.known_hosts().display(),
                host.driver.library().display(),
            );
        }
        self.write("hosts.toml", &text)
    }

    /// Writes a file into the lab's folder and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).expect("writes");
        path.display().to_string()
    }

    /// The pids of the probes that run from the lab's caches.
    pub(crate) fn probes(&self) -> Vec<u32> {
        let mut pids = Vec::new();
        for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let program = std::fs::read_link(entry.path().join("exe")).unwrap_or_default();
            if program.starts_with(self.folder.path()) {
                pids.push(pid);
            }
        }
        // A child that a probe has just forked still has the probe's program.
        let is_child = |pid: &u32| parent_pid(*pid).is_some_and(|parent| pids.contains(&parent));
        pids.iter().copied().filter(|pid| !is_child(pid)).collect()
    }

    /// The probes in a host's cache, by name.
    pub(crate) fn cached_probes(&self, host: &str) -> Vec<PathBuf> {
        let cache = self.path(host).join("cache/gpufleet");
        std::fs::read_dir(cache).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    }
}

/// Field 4 of `/proc/PID/stat` (proc(5)).
fn parent_pid(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

impl LabHost {
    /// The pid of the process on its GPUs.
    pub(crate) fn worker_pid(&self) -> u32 {
        self.worker.id()
    }

    /// Ends the process on its GPUs.
    pub(crate) fn end_worker(&mut self) {
        let _ended_already = self.worker.kill();
        self.worker.wait().expect("it ends");
        self.driver.set(&devices(&[gpu(0), gpu(1), gpu(2), gpu_with(3, &json!({"error": 15}))]));
    }
}

impl Drop for LabHost {
    fn drop(&mut self) {
        // The test may have ended it.
        let _ = self.worker.kill();
        let _ = self.worker.wait();
    }
}

/// Four GPUs: the first two busy with one process, the third free, the fourth lost.
pub(crate) fn scenario(worker: u32, utilization: u8) -> Value {
    let busy = json!({
        "utilization_percent": utilization, "memory_used_bytes": 61_203_283_968_u64, "power_watts": 512,
        "clock_sm_mhz": 1755, "temperature_celsius": 64,
        "processes": [{"pid": worker, "memory_bytes": 60_129_542_144_u64, "sm_percent": utilization}]
    });
    devices(&[gpu_with(0, &busy), gpu_with(1, &busy), gpu(2), gpu_with(3, &json!({"error": 15}))])
}

/// Runs gpufleet without a terminal and with an empty state directory, and waits for its end.
pub(crate) fn gpufleet(arguments: &[&str]) -> Output {
    let state = tempfile::tempdir().expect("a folder");
    gpufleet_in(state.path(), arguments)
}

/// Like [`gpufleet`], with this state directory.
pub(crate) fn gpufleet_in(state: &Path, arguments: &[&str]) -> Output {
    let output = Command::new(program())
        .args(arguments)
        .env_remove("SSH_AUTH_SOCK")
        .env("XDG_STATE_HOME", state)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .output()
        .expect("gpufleet runs");
    crate::schema::check_output(arguments, &output.stdout);
    output
}

/// The gpufleet that the tests run: that of this build, or the one that `tests/release` unpacked from a package.
pub(crate) fn program() -> PathBuf {
    std::env::var_os("GPUFLEET_TESTS_PROGRAM").map_or_else(|| env!("CARGO_BIN_EXE_gpufleet").into(), PathBuf::from)
}

/// Waits for an event that nothing announces, such as a line in a file, and returns what `event` returns. Fails with `about`.
#[track_caller]
pub(crate) fn wait_until<T>(what: &str, about: impl Fn() -> String, mut event: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = event() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited for {what}:\n{}", about());
        // The pause leaves the processor to the programs under test.
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Waits until a file has this many complete lines. Returns its text.
#[track_caller]
pub(crate) fn wait_for_lines(path: &Path, count: usize) -> String {
    let text = || std::fs::read_to_string(path).unwrap_or_default();
    wait_until(&format!("{count} lines in {}", path.display()), text, || {
        Some(text()).filter(|text| text.matches('\n').count() >= count)
    })
}

/// Starts gpufleet, with its output in pipes.
pub(crate) fn start_gpufleet(arguments: &[&str]) -> Child {
    Command::new(program())
        .args(arguments)
        .env_remove("SSH_AUTH_SOCK")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("gpufleet runs")
}

/// Runs `gpufleet record` until the recording meets the condition, and then ends it as Ctrl-C does.
#[track_caller]
pub(crate) fn record_until(recording: &Path, arguments: &[&str], condition: impl Fn(&str) -> bool) -> Output {
    let child = start_gpufleet(&[&["record", &recording.display().to_string()], arguments].concat());
    let recorded = || std::fs::read_to_string(recording).unwrap_or_default();
    wait_until("the recording", recorded, || condition(&recorded()).then_some(()));
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    child.wait_with_output().expect("it ends")
}

/// Waits for the end of these processes. Returns how long it took.
#[track_caller]
pub(crate) fn wait_gone(pids: &[u32], limit: Duration) -> Duration {
    let began = Instant::now();
    for &pid in pids {
        let pid = Pid::from_raw(pid as i32).expect("a pid");
        // A process that cannot be opened has ended.
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        // The end of a child interrupts poll(2), because tokio handles SIGCHLD in this process.
        let ended = retry_on_intr(|| {
            let left = limit.saturating_sub(began.elapsed());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left))
        });
        assert!(ended.expect("polls") > 0, "{pid:?} still runs after {limit:?}");
    }
    began.elapsed()
}

// Host tasks without a screen.

/// How long a test waits for an update.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(40);

/// Host tasks and the updates of its hosts.
pub(crate) struct HostWatcher {
    pub(crate) host_tasks: HostTasks,
    updates: HostUpdates,
    pub(crate) clock: Clock,
    _context: Arc<Context>,
}

impl HostWatcher {
    pub(crate) fn start(hosts: Vec<HostConfig>) -> Self {
        let options = Options {
            home: None,
            agent_socket: None,
            ssh_config: Some("/dev/null".into()),
            helper_program: Some(env!("CARGO_BIN_EXE_gpufleet").into()),
            ..Options::from_environment(Interaction::Refuse)
        };
        let (context, _) = Context::with_options(options);
        let clock = Clock::start(1.0);
        let hosts: Vec<_> = hosts.into_iter().map(Arc::new).collect();
        let source = Source::Ssh(Arc::clone(&context) as Arc<dyn OpenChannel>);
        let (host_tasks, updates) = HostTasks::start(&hosts, source, clock);
        Self { host_tasks, updates, clock, _context: context }
    }

    /// The next update of any host.
    pub(crate) async fn next(&mut self, what: &str) -> (HostId, HostUpdate) {
        let next = timeout_at(tokio::time::Instant::now() + TIMEOUT, self.updates.recv()).await;
        next.unwrap_or_else(|_| panic!("waited for {what}")).expect("the tasks have ended")
    }

    /// Waits for a wanted update and returns it with the time it took. Fails if a `never` update comes first.
    pub(crate) async fn wait_until(
        &mut self,
        what: &str,
        wanted: impl Fn(&HostUpdate) -> bool,
        never: impl Fn(&HostUpdate) -> bool,
    ) -> (Duration, HostUpdate) {
        let began = tokio::time::Instant::now();
        loop {
            let next = timeout_at(began + TIMEOUT, self.updates.recv()).await;
            let (_, update) = next.unwrap_or_else(|_| panic!("waited for {what}")).expect("the tasks have ended");
            if wanted(&update) {
                return (began.elapsed(), update);
            }
            assert!(!never(&update), "before {what}: {update:?}");
        }
    }

    pub(crate) async fn wait_live(&mut self) -> Duration {
        self.wait_until("a snapshot", is_snapshot, |_| false).await.0
    }

    /// All updates during `span`.
    pub(crate) async fn updates_during(&mut self, span: Duration) -> Vec<HostUpdate> {
        let end = tokio::time::Instant::now() + span;
        let mut seen = Vec::new();
        while let Ok(Some((_, update))) = timeout_at(end, self.updates.recv()).await {
            seen.push(update);
        }
        seen
    }
}

pub(crate) fn is_snapshot(update: &HostUpdate) -> bool {
    matches!(update, HostUpdate::Snapshot(_))
}

pub(crate) fn is_down(update: &HostUpdate) -> bool {
    matches!(update, HostUpdate::Down { .. })
}

pub(crate) fn no_update(_: &HostUpdate) -> bool {
    false
}

/// The configuration of the lab's first host, optionally at another port on loopback.
pub(crate) fn host_config(lab: &Lab, port: Option<u16>) -> HostConfig {
    let sshd = &lab.hosts[0].sshd;
    let port = port.unwrap_or(sshd.port());
    let known_hosts = lab.path(&format!("known_hosts-{port}"));
    fs::write(&known_hosts, format!("[127.0.0.1]:{port} {}\n", sshd.host_key("ed25519"))).unwrap();
    HostConfig {
        address: Some("127.0.0.1".into()),
        port: Some(port),
        user: Some(sshd.user()),
        identity_file: Some(sshd.client_key()),
        known_hosts: Some(known_hosts),
        backend: Backend::Native,
        nvml_library: Some(lab.hosts[0].driver.library().display().to_string()),
        interval: Duration::from_secs(1),
        ..HostConfig::named("hgx-01")
    }
}

// Tests that cannot run everywhere are reported when they are skipped.

/// The environment variable with the path of a file that gets a line for each skipped test; `tests/run` prints it.
const SKIP_LIST: &str = "GPUFLEET_TESTS_LEFT_OUT";

/// The environment variable that allows skipping tests that need root: `tests/run` sets it to 1 for an ordinary user.
const ALLOW_WITHOUT_ROOT: &str = "GPUFLEET_TESTS_WITHOUT_ROOT";

/// Whether the test runs as root, which mount namespaces need. Call it on the thread of the test.
///
/// Fails with instructions without root, unless the environment allows skipping such tests.
#[track_caller]
pub(crate) fn has_root() -> bool {
    if rustix::process::getuid().is_root() {
        return true;
    }
    assert!(
        std::env::var(ALLOW_WITHOUT_ROOT).is_ok_and(|value| value == "1"),
        "this test needs root, for a mount namespace: run it as root, or as `sudo -E env PATH=\"$PATH\" cargo test \
         --test it {}`; {ALLOW_WITHOUT_ROOT}=1 leaves out all tests that do",
        test_name()
    );
    skip("it needs root, for a mount namespace");
    false
}

/// Whether this machine has an NVIDIA driver, so that gpufleet shows its GPUs if no host is named.
pub(crate) fn has_driver() -> bool {
    ["/proc/driver/nvidia/version", "/dev/nvidiactl"].iter().any(|path| Path::new(path).exists())
}

/// Reports that this test is skipped, and reason, in its output and in the list of `tests/run`.
pub(crate) fn skip(reason: &str) {
    let line = format!("{}: {reason}", test_name());
    println!("left out: {line}");
    if let Some(list) = std::env::var_os(SKIP_LIST) {
        let mut list = std::fs::OpenOptions::new().append(true).create(true).open(list).expect("the list opens");
        // One write, since other tests append to the file, too.
        list.write_all(format!("{line}\n").as_bytes()).expect("the list takes a line");
    }
}

/// The name of the test on this thread.
fn test_name() -> String {
    std::thread::current().name().unwrap_or("?").to_owned()
}
