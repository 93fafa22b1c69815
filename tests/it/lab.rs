//! A small lab on loopback: real sshds, each with a fake driver and real processes on its GPUs, and a hosts.toml.

use crate::fake_driver::{FakeDriver, devices, gpu, gpu_with};
use crate::sshd::Sshd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A host of the lab.
pub(crate) struct LabHost {
    pub(crate) name: String,
    pub(crate) sshd: Sshd,
    pub(crate) driver: FakeDriver,
    /// The process on its first two GPUs.
    worker: Child,
}

/// Hosts and the folder with what belongs to them.
pub(crate) struct Lab {
    pub(crate) hosts: Vec<LabHost>,
    folder: tempfile::TempDir,
}

impl Lab {
    /// Hosts of these names, on 127.0.0.1, 127.0.0.2 and so on, each with four GPUs and a process on two of them.
    pub(crate) fn start(names: &[&str]) -> Self {
        Self::start_in(names, |_| None)
    }

    /// The same, each in a mount namespace of its own where there are `mounts`: see [`Sshd::start_in`].
    pub(crate) fn start_in(names: &[&str], mut mounts: impl FnMut(&Path) -> Option<String>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let hosts = (1..).zip(names).map(|(number, name)| {
            // Each host has a cache of its own, as machines without a shared home have.
            let environment =
                format!("SetEnv SHLVL=5 XDG_CACHE_HOME={}", folder.path().join(name).join("cache").display());
            std::fs::create_dir_all(folder.path().join(name)).expect("a folder");
            let worker = Command::new("sleep").arg("3600").stdin(Stdio::null()).spawn().expect("sleep starts");
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
    pub(crate) fn hosts_toml(&self, defaults: &str) -> String {
        let mut text = format!("[defaults]\ninterval = \"500ms\"\n{defaults}\n");
        for host in &self.hosts {
            let _ = write!(
                text,
                "\n[[hosts]]\nname = \"{}\"\naddress = \"{}\"\nport = {}\nidentity_file = \"{}\"\nknown_hosts = \
                 \"{}\"\nnvml_library = \"{}\"\n",
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
    pub(crate) fn cached(&self, host: &str) -> Vec<PathBuf> {
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
}

impl Drop for LabHost {
    fn drop(&mut self) {
        // It may have been ended by the test.
        let _ = self.worker.kill();
        let _ = self.worker.wait();
    }
}

/// Four GPUs: the first two busy with one process, the third holding nothing, the fourth lost.
pub(crate) fn scenario(worker: u32, utilization: u8) -> Value {
    let busy = json!({
        "utilization_percent": utilization, "memory_used_bytes": 61_203_283_968_u64, "power_watts": 512,
        "temperature_celsius": 64,
        "processes": [{"pid": worker, "memory_bytes": 60_129_542_144_u64, "sm_percent": utilization}]
    });
    devices(&[gpu_with(0, &busy), gpu_with(1, &busy), gpu(2), gpu_with(3, &json!({"error": 15}))])
}

/// Runs gpufleet without a terminal, remembering nothing, and waits for its end.
pub(crate) fn gpufleet(arguments: &[&str]) -> Output {
    let state = tempfile::tempdir().expect("a folder");
    gpufleet_in(state.path(), arguments)
}

/// The same with what it remembers in this folder.
pub(crate) fn gpufleet_in(state: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpufleet"))
        .args(arguments)
        .env_remove("SSH_AUTH_SOCK")
        .env("XDG_STATE_HOME", state)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .output()
        .expect("gpufleet runs")
}

/// Waits for the end of these processes and tells how long it took.
#[track_caller]
pub(crate) fn wait_gone(pids: &[u32], limit: Duration) -> Duration {
    let began = Instant::now();
    for &pid in pids {
        let pid = Pid::from_raw(pid as i32).expect("a pid");
        // One that cannot be opened is gone already.
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        let left = limit.saturating_sub(began.elapsed());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left)).expect("polls");
        assert!(ended > 0, "{pid:?} still runs after {limit:?}");
    }
    began.elapsed()
}
