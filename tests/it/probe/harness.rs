//! A running probe, processes for scenarios, and commands that run a program as another user.

use crate::fake_driver::{FakeDriver, copy_program, probe_program};
use gpufleet::wire::codec::{decode, encode};
use gpufleet::wire::{Hello, Inventory, Message, ProcessFacts, Reply, ReplyOutcome, Request, SafeText, Snapshot};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The timeout of every wait; a passing test never waits this long.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

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
        Self::with_command(Command::new(probe_program()), library, arguments)
    }

    /// Starts the probe with another program, such as `setpriv`. The probe is copied next to the library, since another
    /// user may not be able to read the build directory.
    pub(super) fn start_under(starter: &[&str], library: &Path, arguments: &[&str]) -> Self {
        let program = library.with_file_name("gpufleet-probe");
        if !program.exists() {
            copy_program(&probe_program(), &program);
        }
        let mut command = Command::new(starter[0]);
        command.args(&starter[1..]).arg(program);
        Self::with_command(command, library, arguments)
    }

    /// Starts `command` as a probe with this library.
    pub(super) fn with_command(mut command: Command, library: &Path, arguments: &[&str]) -> Self {
        command.arg("--nvml-library").arg(library);
        if let Some(folder) = library.parent().filter(|folder| folder.is_dir() && !arguments.contains(&"--marks")) {
            // A hung driver in one test must not block the probes of other tests.
            command.arg("--marks").arg(folder);
        }
        Self::spawn(command.args(arguments))
    }

    /// Spawns a command that is a probe, or becomes one with exec.
    pub(super) fn spawn(command: &mut Command) -> Self {
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

    /// Starts the probe on a fake driver with four samples per second.
    pub(super) fn with_driver(driver: &FakeDriver) -> Self {
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

    /// Sends a heartbeat to a probe that may end at any moment, even before this side has read its last message.
    pub(super) fn heartbeat_to_ending_probe(&mut self) {
        self.next_id += 1;
        let line = encode(&Request::Heartbeat { id: self.next_id, last_sequence: None }).expect("encodes");
        if let Err(error) = self.stdin.as_mut().expect("stdin is open").write_all(&line) {
            assert_eq!(error.kind(), ErrorKind::BrokenPipe, "the probe reads");
        }
    }

    /// Receives the next message. Returns a snapshot, or `None` for every other message.
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
            Message::Unknown => panic!("the probe sent an unknown message"),
        }
        Ok(None)
    }

    /// Sends heartbeats until a snapshot arrives that `accept` accepts.
    pub(super) fn wait_for(&mut self, what: &str, mut accept: impl FnMut(&Snapshot) -> bool) -> Snapshot {
        let start = Instant::now();
        let mut last = None;
        self.heartbeat(None);
        while start.elapsed() < TIMEOUT {
            match self.next(Duration::from_secs(1)) {
                Ok(Some(snapshot)) if accept(&snapshot) => return snapshot,
                Ok(Some(snapshot)) => last = Some(snapshot),
                // Each heartbeat is answered with a message, which must not lead to the next heartbeat.
                Ok(None) => continue,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.heartbeat(None);
        }
        panic!("no snapshot with {what}; the last was {last:#?}");
    }

    pub(super) fn snapshot(&mut self) -> Snapshot {
        self.wait_for("anything", |_| true)
    }

    pub(super) fn inventory(&self) -> &Inventory {
        self.inventory.as_ref().expect("an inventory came before")
    }

    /// Waits for the reply to a request.
    pub(super) fn reply(&mut self, id: u64) -> ReplyOutcome {
        let start = Instant::now();
        while start.elapsed() < TIMEOUT {
            if let Some(reply) = self.replies.iter().find(|reply| reply.id == id) {
                return reply.outcome.clone();
            }
            let _snapshot_or_silence = self.next(Duration::from_secs(1));
        }
        panic!("no reply to {id}");
    }

    /// The time until the echo of a heartbeat arrives.
    pub(super) fn round_trip(&mut self) -> Duration {
        let start = Instant::now();
        let id = self.heartbeat(None);
        while !self.echoes.contains(&id) {
            assert!(start.elapsed() < TIMEOUT, "heartbeat {id} never came back");
            let _snapshot_or_silence = self.next(Duration::from_secs(1));
        }
        start.elapsed()
    }

    /// Closes standard input, reads the remaining output, and waits for the exit.
    pub(super) fn end(&mut self) -> ExitStatus {
        drop(self.stdin.take());
        let start = Instant::now();
        while !matches!(self.next(Duration::from_secs(1)), Err(RecvTimeoutError::Disconnected)) {
            assert!(start.elapsed() < TIMEOUT, "the probe does not end");
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

/// A sleeping process that scenarios can list on a GPU.
pub(super) struct Sleeper(pub(super) Child);

impl Sleeper {
    pub(super) fn start() -> Self {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read _wait", "job", "--token=hunter2"]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a shell starts");
        // The arguments appear in /proc shortly after spawn returns.
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

pub(super) fn process_row(snapshot: &Snapshot, pid: u32) -> usize {
    snapshot.processes.pid.iter().position(|&row| row == Some(pid)).expect("the process has a row")
}

// Other users: root changes the user id, other users use a user namespace. The test fails if neither works.

/// A user id that is unused on common machines.
const OTHER_USER: u32 = 61_234;

/// A command line prefix that runs a program as another user.
pub(super) fn another_user_command() -> Vec<String> {
    let prefix = if rustix::process::geteuid().is_root() {
        format!("setpriv --reuid={OTHER_USER} --regid={OTHER_USER} --clear-groups")
    } else {
        format!("unshare --user --map-user={OTHER_USER} --map-group={OTHER_USER}")
    };
    require_command(&prefix, &["true"])
}

/// A command line prefix that runs a program in its own mount and pid namespace, where it can mount /proc again.
pub(super) fn own_namespace_command() -> Vec<String> {
    let user = if rustix::process::geteuid().is_root() { "" } else { " --user --map-root-user" };
    require_command(&format!("unshare{user} --mount --pid --fork"), &["mount", "-t", "proc", "proc", "/proc"])
}

/// Returns the command line prefix if it can run the trial program.
fn require_command(prefix: &str, trial: &[&str]) -> Vec<String> {
    let prefix: Vec<String> = prefix.split(' ').map(str::to_owned).collect();
    let result = Command::new(&prefix[0]).args(&prefix[1..]).args(trial).stdin(Stdio::null()).output();
    let failure = match &result {
        Ok(output) if output.status.success() => return prefix,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    panic!(
        "this test takes another user, and `{}` does not work here: {}\nhint: run the tests as root, or where user \
         namespaces are allowed (sysctl kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns), \
         with util-linux 2.38 or newer",
        prefix.join(" "),
        failure.trim()
    )
}
