//! A real pseudo-terminal with a program in it, and a terminal emulator that reads every byte the program writes.

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::num::NonZero;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a test waits for something that should happen at once on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A program in a pseudo-terminal.
pub(crate) struct Pty {
    child: Box<dyn Child + Send + Sync>,
    master: Box<dyn MasterPty + Send>,
    writer: Box<dyn Write + Send>,
    seen: Arc<(Mutex<Seen>, Condvar)>,
    /// Held while nobody reads what the program writes.
    reading: Arc<Mutex<()>>,
    stty_at_start: String,
    /// Where gpufleet keeps what it remembers; held so that it is removed at the end.
    _state: TempDir,
}

struct Seen {
    parser: vt100::Parser,
    bytes: Vec<u8>,
    /// When the last of them came.
    wrote_at: Instant,
    ended: bool,
}

impl Pty {
    /// Starts gpufleet with these arguments and environment variables on a terminal of this size.
    pub(crate) fn gpufleet<S: AsRef<OsStr>>(size: (u16, u16), arguments: &[S], environment: &[(&str, &str)]) -> Self {
        Self::program(size, env!("CARGO_BIN_EXE_gpufleet"), arguments, environment)
    }

    /// The same with another program.
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
        let seen = Arc::new((
            Mutex::new(Seen { parser, bytes: Vec::new(), wrote_at: Instant::now(), ended: false }),
            Condvar::new(),
        ));
        let shared = Arc::clone(&seen);
        let reading = Arc::<Mutex<()>>::default();
        let may_read = Arc::clone(&reading);
        std::thread::spawn(move || {
            let mut buffer = [0; 16 * 1024];
            let mut held = Vec::new();
            loop {
                drop(may_read.lock());
                let count = reader.read(&mut buffer).unwrap_or(0);
                held.extend_from_slice(&buffer[..count]);
                let shown = shown(&held, count == 0);
                let mut seen = shared.0.lock().expect("not poisoned");
                seen.parser.process(&held[..shown]);
                held.drain(..shown);
                seen.bytes.extend_from_slice(&buffer[..count]);
                seen.wrote_at = Instant::now();
                seen.ended |= count == 0;
                shared.1.notify_all();
                if count == 0 {
                    return;
                }
            }
        });
        Self { child, master: pty.master, writer, seen, reading, stty_at_start, _state: state }
    }

    /// Types these bytes.
    pub(crate) fn keys(&mut self, keys: &str) {
        self.writer.write_all(keys.as_bytes()).expect("the terminal takes keys");
        self.writer.flush().expect("the terminal takes keys");
    }

    /// Does this while nobody reads what the program writes, from the moment that the terminal takes no more.
    pub(crate) fn stalled<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        let reading = Arc::clone(&self.reading);
        let _nobody_reads = reading.lock().expect("not poisoned");
        let name = self.master.tty_name().expect("it has a name");
        let terminal = std::fs::OpenOptions::new().write(true).open(name).expect("the terminal opens");
        let deadline = Instant::now() + PATIENCE;
        let is_full = || {
            let mut wanted = [PollFd::new(&terminal, PollFlags::OUT)];
            let limit = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            poll(&mut wanted, Some(&limit)).expect("polls") == 0
        };
        // Each new size is painted whole.
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
        self.seen.0.lock().expect("not poisoned").parser.screen_mut().set_size(cells(rows), cells(columns));
        let size = PtySize { rows, cols: columns, pixel_width: 0, pixel_height: 0 };
        self.master.resize(size).expect("the terminal is resized");
    }

    /// The settings of the terminal as `stty` writes them.
    pub(crate) fn stty(&self) -> String {
        stty(&*self.master)
    }

    /// The same from before the program was started.
    pub(crate) fn stty_at_start(&self) -> &str {
        &self.stty_at_start
    }

    /// All bytes the program has written.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.seen.0.lock().expect("not poisoned").bytes.clone()
    }

    /// Asks something of the emulated screen.
    pub(crate) fn screen<T>(&self, ask: impl FnOnce(&vt100::Screen) -> T) -> T {
        ask(self.seen.0.lock().expect("not poisoned").parser.screen())
    }

    /// Waits until the text on the screen satisfies `condition` and returns it.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, condition: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = self.seen.0.lock().expect("not poisoned");
        loop {
            let text = seen.parser.screen().contents();
            if condition(&text) {
                return text;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero() && !seen.ended,
                "waited for {what}; {}; the screen shows:\n{text}",
                self.state_of(&seen)
            );
            seen = self.seen.1.wait_timeout(seen, left).expect("not poisoned").0;
        }
    }

    /// What may explain that it does not show what it should: it has ended, is stopped, waits, or draws all the time.
    fn state_of(&self, seen: &Seen) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let state = status.lines().find(|line| line.starts_with("State:")).unwrap_or("State: gone").replace('\t', " ");
        let ended = if seen.ended { "its terminal is closed" } else { "its terminal is open" };
        format!("{state}, {ended}, it wrote {:.1} s ago", seen.wrote_at.elapsed().as_secs_f64())
    }

    /// Waits until the screen shows `text`.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) -> String {
        self.wait(text, |shown| shown.contains(text))
    }

    /// Waits until the program has written these bytes.
    #[track_caller]
    pub(crate) fn wait_for_bytes(&self, bytes: &[u8]) {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = self.seen.0.lock().expect("not poisoned");
        while !seen.bytes.windows(bytes.len()).any(|window| window == bytes) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero() && !seen.ended, "waited for {:?}", String::from_utf8_lossy(bytes));
            seen = self.seen.1.wait_timeout(seen, left).expect("not poisoned").0;
        }
    }

    /// The program's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.process_id().expect("it has a pid")
    }

    /// Sends the program a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits until the program has ended and everything it wrote was read; returns its exit code.
    #[track_caller]
    pub(crate) fn exit_code(&mut self) -> u32 {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = self.seen.0.lock().expect("not poisoned");
        while !seen.ended {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "it did not end; the screen shows:\n{}", seen.parser.screen().contents());
            seen = self.seen.1.wait_timeout(seen, left).expect("not poisoned").0;
        }
        drop(seen);
        self.child.wait().expect("it can be waited for").exit_code()
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How many of these bytes a terminal shows: all before a synchronized update that has not ended, so that no test reads
/// half a frame.
fn shown(bytes: &[u8], is_over: bool) -> usize {
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

/// Sends a signal by its name.
pub(crate) fn signal(pid: u32, name: &str) {
    let status = std::process::Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(status.expect("kill runs").success(), "kill -{name} {pid}");
}

fn cells(count: u16) -> NonZero<u16> {
    NonZero::new(count).expect("a terminal has rows and columns")
}
