//! Requests about one process: send a signal, return its environment, return the end of its log.

use super::answer_slot::AnswerSlot;
use super::blocking::{ThreadLimit, spawn_thread};
use super::examine::job_variables;
use super::process_facts::has_other_command;
use super::procfs::{FileReader, Stat, real_uid};
use crate::wire::redact::redact;
use crate::wire::{NO_LOG_FILE, ProcessState, ReplyOutcome, SafeText, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, SeekFrom, fstat, openat, seek};
use rustix::io::{Errno, read};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use std::sync::Arc;
use std::time::Duration;

/// The maximum size of an environment that is read.
const ENVIRONMENT_BYTES: usize = 64 * 1024;
/// The maximum size of a log tail.
const LOG_TAIL_BYTES: u64 = 4096;
/// The time limit for reads: the log may be on a file server that does not answer, and the process may hang in the
/// kernel while its memory lock is held.
const READ_TIMEOUT: Duration = Duration::from_secs(3);
/// The time limit for reading a command line before a signal. A process that hangs in the kernel must still get it.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(500);
/// Stack of the thread that reads.
const STACK_BYTES: usize = 128 * 1024;

/// The identity of the target process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessIdentity<'a> {
    pub(crate) boot_id: &'a str,
    pub(crate) pid: u32,
    pub(crate) start_ticks: u64,
}

impl ProcessIdentity<'_> {
    /// Compares the boot id with `boot_id`, that of this host.
    fn check_boot_id(&self, boot_id: Option<&str>) -> Result<(), ReplyOutcome> {
        match boot_id {
            None => Err(refused("the host's boot id cannot be read")),
            Some(boot_id) if boot_id != self.boot_id => Err(ReplyOutcome::Reused),
            Some(_) => Ok(()),
        }
    }
}

/// The program that the user saw: the start time alone does not tell two processes apart that had the pid within the same
/// clock tick.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SeenProgram<'a> {
    /// Empty if it is not known.
    pub(crate) name: &'a str,
    /// Empty if it is not known.
    pub(crate) argv: &'a [SafeText],
}

/// Sends a signal to exactly the target process. A pidfd holds the process while its identity is checked, so that the
/// signal cannot reach another process with a reused pid. `boot_id` is that of this host.
pub(crate) fn send_signal(
    target: ProcessIdentity<'_>,
    seen: SeenProgram<'_>,
    signal: Signal,
    boot_id: Option<&str>,
) -> ReplyOutcome {
    let pid = i32::try_from(target.pid).ok().filter(|&pid| pid > 1).and_then(Pid::from_raw);
    let Some(pid) = pid else {
        return refused(format!("pid {} is never signalled", target.pid));
    };
    if let Err(refusal) = target.check_boot_id(boot_id) {
        return refusal;
    }
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => send_by_pidfd(&pidfd, target, seen, signal),
        Err(error) => pidfd_open_error(error),
    }
}

fn send_by_pidfd(pidfd: &OwnedFd, target: ProcessIdentity<'_>, seen: SeenProgram<'_>, signal: Signal) -> ReplyOutcome {
    let mut reader = FileReader::default();
    let stat = reader.read_process(target.pid, "stat", 4096).ok().and_then(Stat::parse);
    let Some(stat) = stat else {
        return if has_ended(pidfd) {
            ReplyOutcome::Gone
        } else {
            refused("/proc does not show the process, so its identity cannot be checked")
        };
    };
    if stat.start_ticks != target.start_ticks {
        return ReplyOutcome::Reused;
    }
    if !seen.name.is_empty() && *seen.name != *SafeText::from_bytes(stat.name) {
        return ReplyOutcome::Reused;
    }
    // A signal to a zombie succeeds without an effect.
    if matches!(stat.state, ProcessState::Zombie | ProcessState::Dead) {
        return ReplyOutcome::Gone;
    }
    if shows_other_command(target.pid, seen.argv, has_other_command) {
        return refused("it runs another command line than the one that was shown: look again");
    }
    let signal = match signal {
        Signal::Interrupt => rustix::process::Signal::INT,
        Signal::Terminate => rustix::process::Signal::TERM,
        Signal::Kill => rustix::process::Signal::KILL,
    };
    match pidfd_send_signal(pidfd, signal) {
        Ok(()) => ReplyOutcome::Sent,
        Err(error) => pidfd_send_signal_error(error),
    }
}

/// Whether `compare` says that the process runs another command line than the user saw, if that is known and can be read
/// in time.
fn shows_other_command(pid: u32, argv: &[SafeText], compare: fn(u32, &[SafeText]) -> bool) -> bool {
    if argv.is_empty() {
        return false;
    }
    let (slot, argv) = (Arc::new(AnswerSlot::default()), argv.to_vec());
    let answer_slot = Arc::clone(&slot);
    let started = spawn_thread("read", STACK_BYTES, Box::new(move || answer_slot.put(compare(pid, &argv))));
    started.is_ok() && slot.take(COMMAND_TIMEOUT).unwrap_or(false)
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

fn pidfd_open_error(error: Errno) -> ReplyOutcome {
    match error {
        Errno::SRCH => ReplyOutcome::Gone,
        Errno::NOSYS => refused(
            "this kernel has no pidfd (Linux before 5.3): a signal might reach another process with the same pid",
        ),
        Errno::PERM => refused("pidfd_open is not permitted, as in some containers"),
        error => refused(format!("the signal was not sent: pidfd_open: {error}")),
    }
}

fn pidfd_send_signal_error(error: Errno) -> ReplyOutcome {
    match error {
        Errno::SRCH => ReplyOutcome::Gone,
        Errno::PERM => ReplyOutcome::NotPermitted,
        error => refused(format!("the signal was not sent: pidfd_send_signal: {error}")),
    }
}

/// Returns the variables of the job in `/proc/PID/environ` of a process of this user, with secrets redacted. They are those at
/// the start of the program, without later changes.
pub(crate) fn environment(target: ProcessIdentity<'_>, boot_id: Option<&str>, readers: &ThreadLimit) -> ReplyOutcome {
    let timeout_message = "the environment could not be read within 3 s: the process hangs in the kernel";
    in_background(target, boot_id, timeout_message, readers, read_environment)
}

/// Returns the last lines of the regular file behind standard output, or else standard error, of a process of this
/// user.
pub(crate) fn log_tail(target: ProcessIdentity<'_>, boot_id: Option<&str>, readers: &ThreadLimit) -> ReplyOutcome {
    let timeout_message = "the log could not be read within 3 s: its file system hangs";
    in_background(target, boot_id, timeout_message, readers, read_log_tail)
}

/// Calls `read` on a separate thread, which is left behind if it does not return in time. The reply is then
/// `timeout_message`.
fn in_background(
    target: ProcessIdentity<'_>,
    boot_id: Option<&str>,
    timeout_message: &str,
    readers: &ThreadLimit,
    read: fn(u32) -> ReplyOutcome,
) -> ReplyOutcome {
    let mut reader = FileReader::default();
    if let Err(refusal) = check_own_process(target, boot_id, &mut reader) {
        return refusal;
    }
    let (slot, pid) = (Arc::new(AnswerSlot::default()), target.pid);
    let answer_slot = Arc::clone(&slot);
    if !readers.spawn(Box::new(move || answer_slot.put(read(pid)))) {
        return refused("no thread can be started: those of earlier requests may hang in the kernel");
    }
    let Some(outcome) = slot.take(READ_TIMEOUT) else {
        return refused(timeout_message);
    };
    // Check again, since the pid may have been reused during the read.
    match check_own_process(target, boot_id, &mut reader) {
        Ok(()) => outcome,
        Err(refusal) => refusal,
    }
}

/// Checks that the target exists, has the expected identity and belongs to this user.
pub(crate) fn check_own_process(
    target: ProcessIdentity<'_>,
    boot_id: Option<&str>,
    reader: &mut FileReader,
) -> Result<(), ReplyOutcome> {
    if target.pid <= 1 {
        return Err(refused(format!("pid {} cannot be inspected", target.pid)));
    }
    target.check_boot_id(boot_id)?;
    let stat = reader.read_process(target.pid, "stat", 4096).ok().and_then(Stat::parse);
    match stat {
        None => return Err(ReplyOutcome::Gone),
        Some(stat) if stat.start_ticks != target.start_ticks => return Err(ReplyOutcome::Reused),
        Some(_) => {}
    }
    let uid = reader.read_process(target.pid, "status", 4096).ok().and_then(real_uid);
    if uid == Some(rustix::process::getuid().as_raw()) { Ok(()) } else { Err(ReplyOutcome::NotPermitted) }
}

fn read_environment(pid: u32) -> ReplyOutcome {
    match FileReader::default().read_process(pid, "environ", ENVIRONMENT_BYTES) {
        Ok(bytes) => ReplyOutcome::Environment(job_variables(bytes)),
        Err(error) => refused(format!("/proc/{pid}/environ: {error}")),
    }
}

fn read_log_tail(pid: u32) -> ReplyOutcome {
    for descriptor in [1, 2] {
        let link = format!("/proc/{pid}/fd/{descriptor}");
        let path = std::fs::read_link(&link).ok().and_then(|path| path.into_os_string().into_string().ok());
        let Some(path) = path.filter(|path| super::procfs::is_file_path(path.as_bytes())) else { continue };
        match read_file_tail(&link) {
            Ok(Some(lines)) => return ReplyOutcome::LogTail { path: SafeText::new(&path), lines },
            Ok(None) => {}
            Err(error) => return refused(format!("{path}: {error}")),
        }
    }
    refused(NO_LOG_FILE)
}

/// Returns the last lines of a file, or `None` if it is not a regular file.
fn read_file_tail(path: &str) -> Result<Option<Vec<SafeText>>, Errno> {
    // NONBLOCK: opening a named pipe without a writer must not block.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = openat(CWD, path, flags, Mode::empty())?;
    let stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    let start = u64::try_from(stat.st_size).unwrap_or(0).saturating_sub(LOG_TAIL_BYTES);
    seek(&file, SeekFrom::Start(start))?;
    let mut bytes = vec![0; LOG_TAIL_BYTES as usize];
    let count = read(&file, &mut bytes[..])?;
    Ok(Some(log_lines(&bytes[..count], start > 0)))
}

/// Splits a log tail into lines. The first line is dropped if it is incomplete. Of a line that a progress bar
/// overwrote, only the last state is kept.
fn log_lines(bytes: &[u8], starts_mid_line: bool) -> Vec<SafeText> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines: Vec<&str> = text.lines().collect();
    if starts_mid_line && lines.len() > 1 {
        lines.remove(0);
    }
    let shown = lines.iter().map(|line| line.rsplit('\r').find(|part| !part.is_empty()).unwrap_or_default());
    shown.map(|line| SafeText::from(redact(&[line]).concat())).collect()
}

fn refused(reason: impl Into<SafeText>) -> ReplyOutcome {
    ReplyOutcome::Refused(reason.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readers() -> ThreadLimit {
        ThreadLimit::new(1)
    }
    use std::io::Write;
    use std::process::{Child, Command, Stdio};
    use std::sync::Mutex;

    const BOOT: &str = "b0071d";

    struct SleepProcess(Child);

    impl SleepProcess {
        fn start(command: &mut Command) -> Self {
            let child = command.stdin(Stdio::null()).spawn().unwrap();
            // The arguments and the environment exist a moment after the parent continues.
            while std::fs::read(format!("/proc/{}/cmdline", child.id())).unwrap().is_empty() {
                std::thread::yield_now();
            }
            Self(child)
        }

        fn target(&self) -> ProcessIdentity<'static> {
            let mut reader = FileReader::default();
            let stat = reader.read_process(self.0.id(), "stat", 4096).ok().and_then(Stat::parse).unwrap();
            ProcessIdentity { boot_id: BOOT, pid: self.0.id(), start_ticks: stat.start_ticks }
        }
    }

    impl Drop for SleepProcess {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    #[test]
    fn only_variables_of_the_job_are_returned_and_redacted() {
        let mut command = Command::new("sleep");
        command
            .arg("600")
            .env_clear()
            .env("WANDB_API_KEY", "abc")
            .env("NCCL_DEBUG", "INFO")
            .env("NCCL_API_KEY", "abc")
            .env("RANK", "3")
            .env("NCCL_SOCKET_IFNAME", "a b\x1b[2J");
        let job = SleepProcess::start(command.stdout(Stdio::null()));
        let outcome = environment(job.target(), Some(BOOT), &readers());
        let ReplyOutcome::Environment(mut variables) = outcome else { panic!("{outcome:?}") };
        variables.sort();
        assert_eq!(variables, ["NCCL_API_KEY=***", "NCCL_DEBUG=INFO", "NCCL_SOCKET_IFNAME=a b␛[2J", "RANK=3"]);
    }

    #[test]
    fn a_hung_read_times_out() {
        static HANGS: Mutex<()> = Mutex::new(());
        fn hang(_: u32) -> ReplyOutcome {
            drop(HANGS.lock());
            refused("it came back")
        }
        let job = SleepProcess::start(Command::new("sleep").arg("600").stdout(Stdio::null()));
        let _held = HANGS.lock();
        assert_eq!(
            in_background(job.target(), Some(BOOT), "it hangs", &readers(), hang),
            ReplyOutcome::Refused("it hangs".into())
        );
    }

    #[test]
    fn another_process_identity_is_refused() {
        let job = SleepProcess::start(Command::new("sleep").arg("600").stdout(Stdio::null()));
        let target = job.target();
        let later = ProcessIdentity { start_ticks: target.start_ticks + 1, ..target };
        let rebooted = ProcessIdentity { boot_id: "other", ..target };
        for inspect in [environment, log_tail] {
            assert_eq!(inspect(later, Some(BOOT), &readers()), ReplyOutcome::Reused);
            assert_eq!(inspect(rebooted, Some(BOOT), &readers()), ReplyOutcome::Reused);
            assert_eq!(
                inspect(target, None, &readers()),
                ReplyOutcome::Refused("the host's boot id cannot be read".into())
            );
            assert_eq!(
                inspect(ProcessIdentity { pid: 4_194_305, ..target }, Some(BOOT), &readers()),
                ReplyOutcome::Gone
            );
            for pid in [0, 1] {
                let refusal = format!("pid {pid} cannot be inspected");
                assert_eq!(
                    inspect(ProcessIdentity { pid, ..target }, Some(BOOT), &readers()),
                    ReplyOutcome::Refused(refusal.into())
                );
            }
        }
        let refusal = crate::wire::NO_LOG_FILE;
        let quiet = SleepProcess::start(Command::new("sleep").arg("600").stdout(Stdio::null()).stderr(Stdio::null()));
        assert_eq!(log_tail(quiet.target(), Some(BOOT), &readers()), ReplyOutcome::Refused(refusal.into()));
    }

    #[test]
    fn a_process_of_another_user_is_not_permitted() {
        // Root becomes another user. For everyone else, kernel process 2 belongs to another user.
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--clear-groups", "sleep", "600"]).stdout(Stdio::null());
        let job = rustix::process::getuid().is_root().then(|| SleepProcess::start(&mut command));
        let pid = job.as_ref().map_or(2, |job| job.0.id());
        let mut reader = FileReader::default();
        while reader.read_process(pid, "status", 4096).ok().and_then(real_uid)
            == Some(rustix::process::getuid().as_raw())
        {
            std::thread::yield_now();
        }
        let stat = reader.read_process(pid, "stat", 4096).ok().and_then(Stat::parse).unwrap();
        let target = ProcessIdentity { boot_id: BOOT, pid, start_ticks: stat.start_ticks };
        assert_eq!(environment(target, Some(BOOT), &readers()), ReplyOutcome::NotPermitted);
        assert_eq!(log_tail(target, Some(BOOT), &readers()), ReplyOutcome::NotPermitted);
    }

    #[test]
    fn a_log_tail_has_whole_lines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("train.log");
        let mut log = std::fs::File::create(&path).unwrap();
        for step in 0..1000 {
            writeln!(log, "step {step:04}").unwrap();
        }
        write!(log, " 10%|#\r 20%|##\r").unwrap();
        let job = SleepProcess::start(Command::new("sleep").arg("600").stdout(Stdio::null()).stderr(log));
        let ReplyOutcome::LogTail { path: log_path, lines } = log_tail(job.target(), Some(BOOT), &readers()) else {
            panic!("no log")
        };
        assert_eq!(Some(&*log_path), path.to_str());
        assert!(lines.len() > 300 && lines.iter().map(|line| line.len()).sum::<usize>() <= 4096);
        assert!(lines[0].starts_with("step 0") && lines[0].len() == 9, "{}", lines[0]);
        assert_eq!(lines[lines.len() - 2..], ["step 0999", " 20%|##"]);
    }

    #[test]
    fn log_lines_are_redacted_and_safe() {
        assert_eq!(log_lines(b"half\nwhole --token=abc\n\xff\x1b[0m", true), ["whole --token=***", "\u{FFFD}␛[0m"]);
        assert_eq!(log_lines(b"one line without an end", true), ["one line without an end"]);
        assert_eq!(log_lines(b"", false), Vec::<SafeText>::new());
    }

    fn outcome(pid: u32, start_ticks: u64, boot_id: &str) -> ReplyOutcome {
        let target = ProcessIdentity { boot_id, pid, start_ticks };
        send_signal(target, SeenProgram::default(), Signal::Kill, Some(BOOT))
    }

    #[test]
    fn special_pids_are_refused() {
        for pid in [0, 1, u32::MAX, 1 << 31] {
            assert_eq!(outcome(pid, 0, BOOT), ReplyOutcome::Refused(format!("pid {pid} is never signalled").into()));
        }
    }

    #[test]
    fn another_boot_id_or_start_time_means_a_reused_pid() {
        let pid = std::process::id();
        assert_eq!(outcome(pid, 0, "other"), ReplyOutcome::Reused);
        assert_eq!(outcome(pid, 0, BOOT), ReplyOutcome::Reused);
    }

    #[test]
    fn a_process_with_another_name_or_command_line_gets_no_signal() {
        let mut job = SleepProcess::start(Command::new("sleep").args(["600", "0"]).stdout(Stdio::null()));
        let target = job.target();
        let send = |name: &str, argv: &[&str]| {
            let argv: Vec<SafeText> = argv.iter().map(|argument| SafeText::new(argument)).collect();
            send_signal(target, SeenProgram { name, argv: &argv }, Signal::Kill, Some(BOOT))
        };
        assert_eq!(send("python", &[]), ReplyOutcome::Reused);
        let other =
            ReplyOutcome::Refused("it runs another command line than the one that was shown: look again".into());
        for argv in [&["sleep", "601", "0"][..], &["sleep", "600"], &["python", "train.py"]] {
            assert_eq!(send("sleep", argv), other);
            assert_eq!(send("", argv), other);
        }
        assert_eq!(job.0.try_wait().unwrap(), None);
        assert_eq!(send("sleep", &["sleep", "600", "0"]), ReplyOutcome::Sent);
    }

    #[test]
    fn the_command_line_of_an_ancestor_is_compared_as_far_as_it_was_sent() {
        let long = "0".repeat(2000);
        let job = SleepProcess::start(Command::new("sleep").args(["600", &long]).stdout(Stdio::null()));
        let argv = |limit: usize| -> Vec<SafeText> {
            let cut = limit - "sleep".len() - "600".len() - 2;
            ["sleep", "600", &long[..cut.min(long.len())]].map(SafeText::new).to_vec()
        };
        assert!(!has_other_command(job.0.id(), &argv(4096)) && !has_other_command(job.0.id(), &argv(1024)));
        assert!(has_other_command(job.0.id(), &argv(1000)));
    }

    #[test]
    fn a_command_line_that_cannot_be_read_in_time_does_not_keep_a_signal_back() {
        static HANGS: Mutex<()> = Mutex::new(());
        let hang = |_: u32, _: &[SafeText]| HANGS.lock().is_ok();
        let argv = ["sleep".into()];
        let held = HANGS.lock();
        assert!(!shows_other_command(1, &argv, hang));
        drop(held);
        assert!(shows_other_command(1, &argv, |_, _| true));
        assert!(!shows_other_command(1, &[], |_, _| true));
    }

    #[test]
    fn errors_have_distinct_outcomes() {
        assert_eq!(pidfd_open_error(Errno::SRCH), ReplyOutcome::Gone);
        assert_eq!(pidfd_send_signal_error(Errno::PERM), ReplyOutcome::NotPermitted);
        let ReplyOutcome::Refused(reason) = pidfd_open_error(Errno::NOSYS) else { panic!("refused") };
        assert!(reason.starts_with("this kernel has no pidfd"));
    }
}
