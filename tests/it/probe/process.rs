//! A running probe, and a process for the script to put on a GPU.

#![allow(clippy::expect_used, reason = "a helper of a test fails by panicking, like the test")]

use crate::fake_driver::{FakeDriver, probe_program};
use gpufleet::wire::codec::{decode, encode};
use gpufleet::wire::{Hello, Inventory, Message, ProcessFacts, Reply, ReplyOutcome, Request, SafeText, Snapshot};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long anything may take before a test fails. Nothing waits for it when all is well.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// A running probe.
pub(super) struct Probe {
    pub(super) child: Child,
    stdin: Option<ChildStdin>,
    messages: Receiver<Message>,
    next_id: u64,
    pub(super) hello: Option<Hello>,
    pub(super) inventory: Option<Inventory>,
    pub(super) facts: Vec<ProcessFacts>,
    replies: Vec<Reply>,
    echoes: Vec<u64>,
    pub(super) farewell: Option<SafeText>,
}

impl Probe {
    pub(super) fn start(library: &Path, arguments: &[&str]) -> Self {
        Self::of(Command::new(probe_program()), library, arguments)
    }

    /// Started by another program, which is given first. It may be another user's, so it gets a copy that lies beside
    /// the library.
    pub(super) fn under(starter: &[&str], library: &Path, arguments: &[&str]) -> Self {
        let program = library.with_file_name("gpufleet-probe");
        if !program.exists() {
            std::fs::copy(probe_program(), &program).expect("copies the probe");
        }
        let mut command = Command::new(starter[0]);
        command.args(&starter[1..]).arg(program);
        Self::of(command, library, arguments)
    }

    /// The program that `command` names.
    pub(super) fn of(mut command: Command, library: &Path, arguments: &[&str]) -> Self {
        command.arg("--nvml-library").arg(library);
        if let Some(folder) = library.parent().filter(|folder| folder.is_dir() && !arguments.contains(&"--marks")) {
            // A driver that hangs in one test is to keep no probe of another test away.
            command.arg("--marks").arg(folder);
        }
        Self::run(command.args(arguments))
    }

    /// By this command, which becomes a probe.
    pub(super) fn run(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the probe starts");
        let stdout = BufReader::new(child.stdout.take().expect("stdout"));
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for line in stdout.split(b'\n').map_while(Result::ok) {
                let message = decode(&line).expect("a message");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        Self {
            child,
            stdin,
            messages,
            next_id: 0,
            hello: None,
            inventory: None,
            facts: Vec::new(),
            replies: Vec::new(),
            echoes: Vec::new(),
            farewell: None,
        }
    }

    /// On a driver that plays `scenario`, four times a second.
    pub(super) fn on(driver: &FakeDriver) -> Self {
        Self::start(&driver.library(), &["--interval", "0.25"])
    }

    pub(super) fn write(&mut self, line: &[u8]) {
        self.stdin.as_mut().expect("stdin is open").write_all(line).expect("the probe reads");
    }

    pub(super) fn request(&mut self, request: &Request) {
        self.write(&encode(request).expect("encodes"));
    }

    pub(super) fn heartbeat(&mut self, last_sequence: Option<u64>) -> u64 {
        self.next_id += 1;
        self.request(&Request::Heartbeat { id: self.next_id, last_sequence });
        self.next_id
    }

    /// Takes the next message in; a snapshot is handed out. `None` when the probe has closed its output.
    pub(super) fn next(&mut self, limit: Duration) -> Result<Option<Snapshot>, RecvTimeoutError> {
        match self.messages.recv_timeout(limit)? {
            Message::Hello(hello) => self.hello = Some(hello),
            Message::Inventory(inventory) => self.inventory = Some(inventory),
            Message::Snapshot(snapshot) => {
                self.facts.extend(snapshot.facts.iter().cloned());
                return Ok(Some(*snapshot));
            }
            Message::Echo { id } => self.echoes.push(id),
            Message::Reply(reply) => self.replies.push(reply),
            Message::Farewell { reason } => self.farewell = Some(reason),
            Message::Unknown => panic!("the probe sends what this version does not know"),
        }
        Ok(None)
    }

    /// Waits for the first snapshot that `accept` says yes to, sending heartbeats meanwhile.
    pub(super) fn wait_for(&mut self, what: &str, mut accept: impl FnMut(&Snapshot) -> bool) -> Snapshot {
        let start = Instant::now();
        let mut last = None;
        while start.elapsed() < DEADLINE {
            self.heartbeat(None);
            match self.next(Duration::from_secs(1)) {
                Ok(Some(snapshot)) if accept(&snapshot) => return snapshot,
                Ok(snapshot) => last = snapshot.or(last),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        panic!("no snapshot with {what}; the last was {last:#?}");
    }

    pub(super) fn snapshot(&mut self) -> Snapshot {
        self.wait_for("anything", |_| true)
    }

    pub(super) fn inventory(&self) -> &Inventory {
        self.inventory.as_ref().expect("an inventory came before")
    }

    /// Waits for the answer to this request.
    pub(super) fn reply(&mut self, id: u64) -> ReplyOutcome {
        let start = Instant::now();
        while start.elapsed() < DEADLINE {
            if let Some(reply) = self.replies.iter().find(|reply| reply.id == id) {
                return reply.outcome.clone();
            }
            let _snapshot_or_silence = self.next(Duration::from_secs(1));
        }
        panic!("no reply to {id}");
    }

    /// How long a heartbeat takes to come back.
    pub(super) fn round_trip(&mut self) -> Duration {
        let start = Instant::now();
        let id = self.heartbeat(None);
        while !self.echoes.contains(&id) {
            assert!(start.elapsed() < DEADLINE, "heartbeat {id} never came back");
            let _snapshot_or_silence = self.next(Duration::from_secs(1));
        }
        start.elapsed()
    }

    /// Closes standard input, reads the rest, and waits for the end.
    pub(super) fn end(&mut self) -> ExitStatus {
        drop(self.stdin.take());
        let start = Instant::now();
        while !matches!(self.next(Duration::from_secs(1)), Err(RecvTimeoutError::Disconnected)) {
            assert!(start.elapsed() < DEADLINE, "the probe does not end");
        }
        self.child.wait().expect("the probe ends")
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _status = self.child.wait();
    }
}

/// A process of the test's own, for the script to put on a GPU.
pub(super) struct Sleeper(pub(super) Child);

impl Sleeper {
    pub(super) fn start() -> Self {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read _wait", "job", "--token=hunter2"]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a shell starts");
        // The kernel has the arguments a moment after the parent goes on.
        let cmdline = format!("/proc/{}/cmdline", child.id());
        while std::fs::read(&cmdline).expect("the shell lives").is_empty() {
            std::thread::yield_now();
        }
        Self(child)
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(super) fn start_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("stat");
        let fields = stat.rsplit(')').next().expect("fields");
        fields.split_whitespace().nth(19).expect("field 22").parse().expect("ticks")
    }

    pub(super) fn end(&mut self) {
        let _ended_already = self.0.kill();
        let _status = self.0.wait();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.end();
    }
}

pub(super) fn row_of(snapshot: &Snapshot, pid: u32) -> usize {
    snapshot.processes.pid.iter().position(|&row| row == Some(pid)).expect("the process has a row")
}
