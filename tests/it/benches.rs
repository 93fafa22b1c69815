//! The scripts under `benches/` and `tests/soak`: verdicts, error messages and cleanup. Measurements are not tested here; the guard counts
//! instructions in `tests/run --all`.

use crate::fake_driver::{FakeDriver, devices, gpu};
use crate::lab::{wait_gone, wait_until};
use crate::sshd::{TIMEOUT, descendants};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// Runs the verdict of `benches/guard` on Python dictionaries of instruction counts per step.
fn run_verdict(baseline: &str, counts: &str, rustc: &str) -> Output {
    let script = format!(
        "import importlib.machinery, importlib.util, sys\n\
         sys.dont_write_bytecode = True\n\
         loader = importlib.machinery.SourceFileLoader('guard', 'benches/guard')\n\
         guard = importlib.util.module_from_spec(importlib.util.spec_from_loader('guard', loader))\n\
         loader.exec_module(guard)\n\
         guard.verdict({{'rustc': 'rustc 1', 'instructions': {baseline}}}, {counts}, '{rustc}')\n"
    );
    let python = Command::new("python3").args(["-c", &script]).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    python.expect("these tests need python3: apt-get install python3")
}

#[test]
fn guard_fails_and_names_a_step_that_grew_by_more_than_ten_percent() {
    let output = run_verdict("{'draw': 1000, 'list': 1000}", "{'draw': 1101, 'list': 1100}", "rustc 1");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "benches/guard: more instructions than benches/baseline.json allows:\n  draw: 1,101, 10 % above 1,000\n\
         reduce the cost, or run benches/guard --update and give the reason in the commit\n"
    );
    let output = run_verdict("{'draw': 1000, 'list': 1000}", "{'draw': 1100, 'list': 10}", "rustc 1");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "2 steps, all within 10 % of the baseline\n");
}

#[test]
fn guard_reports_unmatched_steps_and_a_different_compiler() {
    let output = run_verdict("{'draw': 1000, 'gone': 1}", "{'draw': 2000, 'new': 1}", "rustc 2");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "benches/guard: more instructions than benches/baseline.json allows:\n  draw: 2,000, 100 % above 1,000\n  \
         gone: only in the baseline\n  new: only in this run\n\
         the baseline is from rustc 1, this is rustc 2, which may explain the difference\n\
         reduce the cost, or run benches/guard --update and give the reason in the commit\n"
    );
}

/// Runs the verdict of `tests/soak` on three hours in which memory grows by this many MiB a day.
fn run_soak_verdict(growth: f64, target: &Path) -> Output {
    let script = format!(
        "import argparse, importlib.machinery, importlib.util, sys\n\
         sys.dont_write_bytecode = True\n\
         loader = importlib.machinery.SourceFileLoader('soak', 'tests/soak')\n\
         soak = importlib.util.module_from_spec(importlib.util.spec_from_loader('soak', loader))\n\
         loader.exec_module(soak)\n\
         samples = [{{'seconds': 60 * minute, 'rss_mib': 30.0, 'descriptors': 40, 'threads': 5,\n\
             'is_rested': minute % 15 > 12, 'anonymous_mib': min(20, minute / 3) + {growth} * minute / 1440}} for minute in range(180)]\n\
         soak.finish(samples, {{'gone': 2}}, argparse.Namespace(hours=3, seed=1))\n"
    );
    let mut python = Command::new("python3");
    python.args(["-c", &script]).current_dir(env!("CARGO_MANIFEST_DIR")).env("CARGO_TARGET_DIR", target);
    python.output().expect("these tests need python3: apt-get install python3")
}

#[test]
fn soak_fails_if_memory_grows_after_the_first_hour() {
    let target = tempfile::tempdir().expect("a folder");
    let output = run_soak_verdict(0.9, target.path());
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        stdout.contains("memory grows by 0.90 MiB a day, with a standard error of 0.00; at most 1 are allowed"),
        "{stdout}"
    );
    for name in ["soak.json", "soak-memory.svg", "soak-descriptors.svg", "soak-threads.svg"] {
        assert!(target.path().join(name).exists(), "{name}");
    }
    let output = run_soak_verdict(1.1, target.path());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("memory grows by 1.10 MiB a day; see "), "{output:?}");
}

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A running benchmark script.
struct Script {
    process: Child,
    lines: Receiver<String>,
    output: Vec<String>,
}

impl Script {
    /// Starts `benches/fleet` with one host.
    fn fleet(driver: &FakeDriver) -> Self {
        let arguments = ["--parts", "fleet", "--hosts", "1", "--only", "gpufleet"];
        Self::start("benches/fleet", &arguments, env!("CARGO_BIN_EXE_gpufleet"), driver)
    }

    fn start(script: &str, arguments: &[&str], program: &str, driver: &FakeDriver) -> Self {
        let library = driver.library();
        let mut process = Command::new("python3")
            .args([script, "--rounds", "1", "--program", program])
            .args(["--fake-driver", library.to_str().expect("UTF-8")])
            .args(arguments)
            .current_dir(ROOT)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("these tests need python3: apt-get install python3");
        let (sender, lines) = channel();
        let stdout = process.stdout.take().expect("a pipe");
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _nobody_reads = sender.send(line);
            }
        });
        Self { process, lines, output: Vec::new() }
    }

    fn wait_for(&mut self, wanted: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.output.iter().any(|line| line.contains(wanted)) {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            self.output.push(line.unwrap_or_else(|error| panic!("no {wanted:?} in {:#?}: {error}", self.output)));
        }
    }

    fn send(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.process), signal).expect("it runs");
    }

    /// Waits for the end. Returns standard error and the exit status.
    fn end(&mut self) -> (String, Option<i32>) {
        let mut stderr = String::new();
        self.process.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("UTF-8");
        (stderr, self.process.wait().expect("ends").code())
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // After a failed test the script must still stop its processes.
        if matches!(self.process.try_wait(), Ok(None)) {
            self.send(rustix::process::Signal::INT);
            let _ended = self.process.wait();
        }
    }
}

/// The processes and the folder of the lab, from its state file.
fn lab_state() -> (Vec<u32>, PathBuf) {
    let text =
        std::fs::read_to_string(Path::new(ROOT).join("target/benches/lab.json")).expect("the state file of the lab");
    let lab: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let started = lab["started"].as_array().expect("processes");
    let pids = started.iter().map(|process| process[0].as_u64().expect("a pid") as u32).collect();
    (pids, lab["folder"].as_str().expect("a folder").into())
}

fn results() -> Vec<(PathBuf, Vec<u8>)> {
    let files = std::fs::read_dir(Path::new(ROOT).join("benches/results")).expect("results");
    let mut files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).expect("readable"))).collect()
}

#[test]
fn fleet_bench_cleans_up_after_a_killed_run_and_after_an_interrupt() {
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let before = results();
    let mut killed = Script::fleet(&driver);
    killed.wait_for("round 1 of 1");
    let (left, folder) = lab_state();
    assert!(left.len() > 40, "an sshd and the processes on the GPUs: {left:?}");
    killed.send(rustix::process::Signal::KILL);
    killed.process.wait().expect("ends");
    assert!(folder.exists() && left.iter().all(|pid| Path::new(&format!("/proc/{pid}")).exists()));

    let mut next = Script::fleet(&driver);
    next.wait_for("processes that an earlier run had left");
    assert!(!folder.exists());
    wait_gone(&left, TIMEOUT);
    next.wait_for("round 1 of 1");
    let mut second = Script::fleet(&driver);
    let owner = next.process.id();
    let message = format!("benches/fleet: another lab is running (process {owner}): wait for it, or end it\n");
    assert_eq!(second.end(), (message, Some(1)));

    let (started, folder) = lab_state();
    next.send(rustix::process::Signal::INT);
    assert_eq!(next.end(), ("benches/fleet: interrupted; nothing was written\n".to_owned(), Some(1)));
    wait_gone(&started, TIMEOUT);
    assert!(!folder.exists());
    assert_eq!(results(), before);
}

#[test]
fn interrupted_probe_bench_leaves_no_process_and_no_folder() {
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let before = results();
    let arguments = ["--only", "probe"];
    let mut script = Script::start("benches/probe", &arguments, env!("CARGO_BIN_EXE_gpufleet-probe"), &driver);
    script.wait_for("40 processes that sleep");
    // The launcher of the 40 processes counts, too.
    let processes = || descendants(script.process.id());
    let about = || format!("{:?}", processes());
    let processes = wait_until("41 processes", about, || Some(processes()).filter(|processes| processes.len() == 41));
    let command = std::fs::read_to_string(format!("/proc/{}/cmdline", processes[0])).expect("it lives");
    let program = PathBuf::from(command.split('\0').nth(1).expect("the program that it runs"));
    assert!(program.ends_with("server/train.py") && program.exists(), "{program:?}");
    script.send(rustix::process::Signal::INT);
    assert_eq!(script.end(), ("benches/probe: interrupted; nothing was written\n".to_owned(), Some(1)));
    wait_gone(&processes, TIMEOUT);
    assert!(!program.exists());
    assert_eq!(results(), before);
}

#[test]
fn missing_program_is_reported_with_its_package() {
    let folder = tempfile::tempdir().expect("a folder");
    let python = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    let python = python.expect("these tests need python3: apt-get install python3");
    let python = String::from_utf8_lossy(&python.stdout).trim().to_owned();
    let output = Command::new(python).arg("benches/fleet").current_dir(ROOT).env("PATH", folder.path()).output();
    let output = output.expect("starts");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "benches/fleet: ssh-keygen is missing. On Debian: sudo apt-get install openssh-client\n"
    );
}
