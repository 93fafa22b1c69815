//! A program in a pseudo-terminal, and a terminal emulator that reads every byte it writes.

use crate::lab::wait_until;
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::num::NonZero;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a test waits for something that happens at once on an idle machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// A program in a pseudo-terminal.
pub(crate) struct Pty {
    child: Box<dyn Child + Send + Sync>,
    master: Box<dyn MasterPty + Send>,
    writer: Box<dyn Write + Send>,
    received: Arc<(Mutex<Received>, Condvar)>,
    /// Held while the test does not read from the terminal.
    read_lock: Arc<Mutex<()>>,
    stty_at_start: String,
    /// The state directory of gpufleet; removed on drop.
    _state: TempDir,
}

struct Received {
    parser: vt100::Parser,
    bytes: Vec<u8>,
    /// When the last bytes arrived.
    wrote_at: Instant,
    ended: bool,
}

impl Pty {
    /// Starts gpufleet with these arguments and environment variables on a terminal of this size.
    pub(crate) fn gpufleet<S: AsRef<OsStr>>(size: (u16, u16), arguments: &[S], environment: &[(&str, &str)]) -> Self {
        Self::program(size, &crate::lab::program().display().to_string(), arguments, environment)
    }

    /// Starts another program.
    pub(crate) fn program<S: AsRef<OsStr>>(
        size: (u16, u16),
        program: &str,
        arguments: &[S],
        environment: &[(&str, &str)],
    ) -> Self {
        let mut command = CommandBuilder::new(program);
        command.args(arguments);
        command.env("TERM", "xterm-256color");
        command.env("COLORTERM", "truecolor");
        command.env_remove("NO_COLOR");
        command.env_remove("LC_ALL");
        command.env_remove("LC_CTYPE");
        command.env("LANG", "C.UTF-8");
        for (name, value) in environment {
            command.env(name, value);
        }
        Self::start(size, command)
    }

    fn start((columns, rows): (u16, u16), mut command: CommandBuilder) -> Self {
        let state = tempfile::tempdir().expect("a folder");
        if command.get_env("XDG_STATE_HOME").is_none() {
            command.env("XDG_STATE_HOME", state.path());
        }
        let pty = native_pty_system()
            .openpty(PtySize { rows, cols: columns, pixel_width: 0, pixel_height: 0 })
            .expect("a pseudo-terminal");
        let stty_at_start = stty(&*pty.master);
        let child = pty.slave.spawn_command(command).expect("the program starts");
        drop(pty.slave);
        let mut reader = pty.master.try_clone_reader().expect("a reader");
        let writer = pty.master.take_writer().expect("a writer");
        let parser = vt100::Parser::new(cells(rows), cells(columns), 0);
        let received = Arc::new((
            Mutex::new(Received { parser, bytes: Vec::new(), wrote_at: Instant::now(), ended: false }),
            Condvar::new(),
        ));
        let shared = Arc::clone(&received);
        let read_lock = Arc::<Mutex<()>>::default();
        let read_lock_of_reader = Arc::clone(&read_lock);
        std::thread::spawn(move || {
            let mut buffer = [0; 16 * 1024];
            let mut pending = Vec::new();
            loop {
                drop(read_lock_of_reader.lock());
                let count = reader.read(&mut buffer).unwrap_or(0);
                pending.extend_from_slice(&buffer[..count]);
                let complete = complete_len(&pending, count == 0);
                let mut received = shared.0.lock().expect("not poisoned");
                received.parser.process(&pending[..complete]);
                pending.drain(..complete);
                received.bytes.extend_from_slice(&buffer[..count]);
                received.wrote_at = Instant::now();
                received.ended |= count == 0;
                shared.1.notify_all();
                if count == 0 {
                    return;
                }
            }
        });
        Self { child, master: pty.master, writer, received, read_lock, stty_at_start, _state: state }
    }

    /// Types these bytes.
    pub(crate) fn keys(&mut self, keys: &str) {
        self.writer.write_all(keys.as_bytes()).expect("the terminal takes keys");
        self.writer.flush().expect("the terminal takes keys");
    }

    /// Stops read_lock from the terminal, waits until its buffer is full, and runs `act`.
    pub(crate) fn while_blocked<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        let read_lock = Arc::clone(&self.read_lock);
        let _paused = read_lock.lock().expect("not poisoned");
        let name = self.master.tty_name().expect("it has a name");
        let terminal = std::fs::OpenOptions::new().write(true).open(name).expect("the terminal opens");
        let deadline = Instant::now() + TIMEOUT;
        let is_full = || {
            let mut wanted = [PollFd::new(&terminal, PollFlags::OUT)];
            let limit = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            retry_on_intr(|| poll(&mut wanted, Some(&limit))).expect("polls") == 0
        };
        // Each resize makes gpufleet draw a whole frame.
        let (rows, columns) = self.screen(vt100::Screen::size);
        let (rows, columns) = (rows.get(), columns.get());
        while !is_full() {
            assert!(Instant::now() < deadline, "the terminal takes more and more");
            self.resize(columns - 1, rows);
            self.resize(columns, rows);
        }
        drop(terminal);
        act(self)
    }

    /// Changes the size of the terminal.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        self.received.0.lock().expect("not poisoned").parser.screen_mut().set_size(cells(rows), cells(columns));
        self.claim_size(columns, rows);
    }

    /// Changes the size that the terminal reports, but not that of the emulator.
    pub(crate) fn claim_size(&self, columns: u16, rows: u16) {
        let size = PtySize { rows, cols: columns, pixel_width: 0, pixel_height: 0 };
        self.master.resize(size).expect("the terminal is resized");
    }

    /// The terminal settings as printed by `stty -g`.
    pub(crate) fn stty(&self) -> String {
        stty(&*self.master)
    }

    /// The terminal settings before the program was started.
    pub(crate) fn stty_at_start(&self) -> &str {
        &self.stty_at_start
    }

    /// All bytes the program has written.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.received.0.lock().expect("not poisoned").bytes.clone()
    }

    /// Reads from the emulated screen.
    pub(crate) fn screen<T>(&self, read: impl FnOnce(&vt100::Screen) -> T) -> T {
        read(self.received.0.lock().expect("not poisoned").parser.screen())
    }

    /// Waits until the text on the screen satisfies `condition` and returns it.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, condition: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + TIMEOUT;
        let mut received = self.received.0.lock().expect("not poisoned");
        loop {
            let text = received.parser.screen().contents();
            if condition(&text) {
                return text;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero() && !received.ended,
                "waited for {what}; {}; the screen shows:\n{text}",
                self.describe_process(&received)
            );
            received = self.received.1.wait_timeout(received, left).expect("not poisoned").0;
        }
    }

    /// Calls `each` with the text on the screen, now and after each change, for `span`.
    pub(crate) fn watch(&self, span: Duration, mut each: impl FnMut(&str)) {
        let deadline = Instant::now() + span;
        let mut received = self.received.0.lock().expect("not poisoned");
        loop {
            each(&received.parser.screen().contents());
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            // The text also ages when nothing arrives.
            received =
                self.received.1.wait_timeout(received, left.min(Duration::from_millis(50))).expect("not poisoned").0;
        }
    }

    /// Describes the process for the message of a failed wait: its state, and when it wrote last.
    fn describe_process(&self, received: &Received) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let state = status.lines().find(|line| line.starts_with("State:")).unwrap_or("State: gone").replace('\t', " ");
        let ended = if received.ended { "its terminal is closed" } else { "its terminal is open" };
        format!("{state}, {ended}, it wrote {:.1} s ago", received.wrote_at.elapsed().as_secs_f64())
    }

    /// Waits until the screen shows `text`.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) -> String {
        self.wait(text, |shown| shown.contains(text))
    }

    /// Waits until the program has written these bytes.
    #[track_caller]
    pub(crate) fn wait_for_bytes(&self, bytes: &[u8]) {
        self.wait_for_bytes_after(0, bytes);
    }

    /// Waits until the program has written these bytes after its first `start` bytes.
    #[track_caller]
    pub(crate) fn wait_for_bytes_after(&self, start: usize, bytes: &[u8]) {
        let deadline = Instant::now() + TIMEOUT;
        let mut received = self.received.0.lock().expect("not poisoned");
        let mut searched = start;
        while !received.bytes[searched..].windows(bytes.len()).any(|window| window == bytes) {
            searched = searched.max((received.bytes.len() + 1).saturating_sub(bytes.len()));
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero() && !received.ended, "waited for {:?}", String::from_utf8_lossy(bytes));
            received = self.received.1.wait_timeout(received, left).expect("not poisoned").0;
        }
    }

    /// The program's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.process_id().expect("it has a pid")
    }

    /// Sends the program a signal.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits until the program has ended and all of its output was read. Returns its exit code.
    #[track_caller]
    pub(crate) fn exit_code(&mut self) -> u32 {
        let deadline = Instant::now() + TIMEOUT;
        let mut received = self.received.0.lock().expect("not poisoned");
        while !received.ended {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "it did not end; the screen shows:\n{}", received.parser.screen().contents());
            received = self.received.1.wait_timeout(received, left).expect("not poisoned").0;
        }
        drop(received);
        self.child.wait().expect("it can be waited for").exit_code()
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        // The program may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The number of bytes before a synchronized update that has not ended, so that no test reads a partial frame.
fn complete_len(bytes: &[u8], is_over: bool) -> usize {
    let last = |sequence: &[u8]| bytes.windows(sequence.len()).rposition(|window| window == sequence);
    match (last(b"\x1b[?2026h"), last(b"\x1b[?2026l")) {
        (Some(begin), end) if !is_over && end.is_none_or(|end| end < begin) => begin,
        _ => bytes.len(),
    }
}

fn stty(master: &dyn MasterPty) -> String {
    let terminal = std::fs::File::open(master.tty_name().expect("it has a name")).expect("the terminal opens");
    let output = std::process::Command::new("stty").arg("-g").stdin(terminal).output().expect("stty runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Sends a signal, such as "TERM".
pub(crate) fn signal(pid: u32, name: &str) {
    let status = std::process::Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(status.expect("kill runs").success(), "kill -{name} {pid}");
}

fn cells(count: u16) -> NonZero<u16> {
    NonZero::new(count).expect("a terminal has rows and columns")
}

/// Whether a process has ended. A zombie has ended, too: its parent may be this test.
pub(crate) fn has_ended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with('Z'))
}

/// Waits until a process has ended.
#[track_caller]
pub(crate) fn wait_for_end(pid: u32) {
    wait_until(&format!("the end of {pid}"), String::new, || has_ended(pid).then_some(()));
}
