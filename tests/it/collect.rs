//! `gpufleet collect` with real sshds: the log, the hook, SIGHUP, and the end.

use crate::lab::{Lab, program};
use crate::notifications::wait_for_lines;
use crate::pty::TIMEOUT;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A collector of a lab, with its log in a file. Dropping it kills it.
pub(crate) struct CollectorProcess {
    pub(crate) child: Child,
    log: PathBuf,
}

impl CollectorProcess {
    /// Starts a collector with the state directory of the lab. Each collector of a lab gets another log.
    pub(crate) fn start(lab: &Lab, log: &str, arguments: &[&str]) -> Self {
        let log = lab.path(log);
        let child = command(lab)
            .arg("collect")
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).expect("a log"))
            .spawn()
            .expect("starts");
        Self { child, log }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits for a line of the log that contains `text`.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) -> String {
        wait_until(
            &format!("`{text}` in the log"),
            || self.log(),
            || self.log().lines().find(|line| line.contains(text)).map(str::to_owned),
        )
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a signal");
    }

    /// Ends it by SIGTERM. Returns the exit code and the time that it took.
    #[track_caller]
    pub(crate) fn end(&mut self) -> (Option<i32>, Duration) {
        let began = Instant::now();
        self.signal(Signal::TERM);
        crate::lab::wait_gone(&[self.child.id()], TIMEOUT);
        let took = began.elapsed();
        (self.child.wait().expect("has ended").code(), took)
    }
}

impl Drop for CollectorProcess {
    fn drop(&mut self) {
        // The test may have ended it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A gpufleet with the state directory of the lab.
pub(crate) fn command(lab: &Lab) -> Command {
    let mut command = Command::new(program());
    command
        .env_remove("SSH_AUTH_SOCK")
        .env("XDG_STATE_HOME", lab.path("state"))
        .env("NO_COLOR", "1")
        .stdin(Stdio::null());
    command
}

/// Runs gpufleet with the state directory of the lab to its end.
pub(crate) fn run(lab: &Lab, arguments: &[&str]) -> Output {
    let output = command(lab).args(arguments).output().expect("runs");
    crate::schema::check_output(arguments, &output.stdout);
    output
}

/// Waits for an event with a deadline.
#[track_caller]
pub(crate) fn wait_until<T>(what: &str, about: impl Fn() -> String, mut event: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = event() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited for {what}:\n{}", about());
        std::thread::yield_now();
    }
}

/// Replaces the hosts.toml of a lab by one with these of its hosts and a line in `[defaults]`.
fn keep_hosts(lab: &Lab, path: &str, kept: &[&str], line: &str) {
    let text = std::fs::read_to_string(lab.hosts_toml(line)).expect("hosts.toml");
    let mut parts = text.split("\n[[hosts]]\n");
    let mut text = parts.next().expect("defaults").to_owned();
    for host in parts.filter(|host| kept.iter().any(|name| host.starts_with(&format!("name = \"{name}\"")))) {
        text = format!("{text}\n[[hosts]]\n{host}");
    }
    std::fs::write(path, text).expect("writes");
}

#[test]
fn the_collector_logs_notifies_and_ends_in_time() {
    let lab = Lab::start(&["room-1"]);
    let (hook, called) = (lab.write("hook.sh", "#!/bin/sh\ncat >> \"$1\"\n"), lab.path("called.jsonl"));
    let table = format!(
        "[notifications]\non_finding = [\"/bin/sh\", \"{hook}\", \"{}\"]\nmin_severity = \"crit\"",
        called.display()
    );
    let hosts = lab.hosts_toml(&table);
    let mut collector = CollectorProcess::start(&lab, "log", &[&hosts]);
    collector.wait_for("gpufleet: the collector watches 1 host");
    collector.wait_for("gpufleet: room-1: connected, 4 GPUs");
    collector.wait_for("gpufleet: room-1: crit gpu-lost: GPU 3 has fallen off the bus");
    let calls = wait_for_lines(&called, 1);
    assert_eq!(calls[0]["findings"][0]["rule"], "gpu-lost", "{:#}", calls[0]);
    let probes = lab.probes();
    assert_eq!(probes.len(), 1);
    let (code, took) = collector.end();
    assert_eq!(code, Some(0), "{}", collector.log());
    assert!(took < Duration::from_secs(3), "{took:?}");
    crate::lab::wait_gone(&probes, TIMEOUT);
    // The engine remembers what it has notified.
    assert!(lab.path("state/gpufleet/memory.json").exists());
    let mut collector = CollectorProcess::start(&lab, "log-2", &[&hosts]);
    collector.wait_for("room-1: crit gpu-lost");
    assert_eq!(collector.end().0, Some(0));
    assert_eq!(wait_for_lines(&called, 1).len(), 1, "no second notification");
}

#[test]
fn sighup_adds_changes_and_removes_hosts() {
    let lab = Lab::start(&["room-2", "room-3", "room-4"]);
    let hosts = lab.path("collected.toml").display().to_string();
    keep_hosts(&lab, &hosts, &["room-2", "room-3"], "");
    let mut collector = CollectorProcess::start(&lab, "log", &[&hosts]);
    collector.wait_for("room-2: connected");
    collector.wait_for("room-3: connected");
    collector.signal(Signal::HUP);
    collector.wait_for("hosts.toml was read again: no host has changed");
    let before = lab.probes();
    assert_eq!(before.len(), 2);
    keep_hosts(&lab, &hosts, &["room-3", "room-4"], "");
    collector.signal(Signal::HUP);
    collector.wait_for("hosts.toml was read again: 1 host added, 1 host removed");
    collector.wait_for("room-4: connected");
    wait_until(
        "the probe of room-2 to end",
        || format!("{:?} {:?}", before, lab.probes()),
        || {
            let probes = lab.probes();
            // The connection to room-3 stays, so one of the two probes is the same.
            (probes.len() == 2 && probes.iter().filter(|pid| before.contains(pid)).count() == 1).then_some(())
        },
    );
    // A changed host is connected again.
    keep_hosts(&lab, &hosts, &["room-3", "room-4"], "connect_timeout = \"9s\"");
    collector.signal(Signal::HUP);
    collector.wait_for("hosts.toml was read again: 2 hosts changed");
    wait_until(
        "new probes",
        || format!("{:?} {:?}", before, lab.probes()),
        || {
            let probes = lab.probes();
            (probes.len() == 2 && !probes.iter().any(|pid| before.contains(pid))).then_some(())
        },
    );
    // An invalid file changes nothing.
    std::fs::write(&hosts, "[[hosts]]\nnam = \"x\"\n").expect("writes");
    collector.signal(Signal::HUP);
    let line = collector.wait_for("the hosts stay as they are: ");
    assert!(line.contains("collected.toml:1:1: a host without `name`"), "{line}");
    assert_eq!(collector.end().0, Some(0));
}

#[test]
fn prompts_are_refused_with_the_way_out() {
    let lab = Lab::start(&["room-5"]);
    let hosts = lab.hosts_toml("");
    let text = std::fs::read_to_string(&hosts).expect("hosts.toml");
    let known_hosts = lab.write("empty_known_hosts", "");
    let text: Vec<String> = text
        .lines()
        .map(|line| match line.starts_with("known_hosts") {
            true => format!("known_hosts = \"{known_hosts}\""),
            false => line.to_owned(),
        })
        .collect();
    std::fs::write(&hosts, text.join("\n")).expect("writes");
    let mut collector = CollectorProcess::start(&lab, "log", &[&hosts]);
    let line = collector.wait_for("gpufleet: room-5: ");
    assert!(line.contains("no prompt is possible") && line.contains("; "), "{line}");
    assert_eq!(collector.end().0, Some(0));
}

#[test]
fn the_printed_unit_starts_this_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(program())
        .args(["collect", "--print-unit", "lab.toml"])
        .current_dir(folder.path())
        .output()
        .expect("runs");
    assert!(output.status.success(), "{output:?}");
    let unit = String::from_utf8(output.stdout).expect("UTF-8");
    let path = folder.path().canonicalize().expect("a path").join("lab.toml");
    let start = format!("ExecStart={} collect {}", program().display(), path.display());
    assert!(unit.lines().any(|line| line == start), "{unit}");
    verify_unit(folder.path(), &unit);
}

/// Lets systemd check the unit, where it is installed.
fn verify_unit(folder: &Path, unit: &str) {
    let file = folder.join("gpufleet.service");
    std::fs::write(&file, unit).expect("writes");
    let Ok(output) = Command::new("systemd-analyze").args(["--user", "verify"]).arg(&file).output() else {
        return crate::lab::skip("systemd-analyze is not installed, so the unit is not verified");
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("gpufleet.service"), "{said}");
}
