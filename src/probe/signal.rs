//! Sends a signal to exactly the process that was meant.

use super::procfs::{FileReader, Stat};
use crate::wire::{ProcessState, ReplyOutcome, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

/// The process that is meant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessIdentity<'a> {
    pub(crate) boot_id: &'a str,
    pub(crate) pid: u32,
    pub(crate) start_ticks: u64,
}

/// Holds the process by a pidfd, looks at its identity again, and only then sends: between the look and the signal the
/// pid cannot pass to another process unnoticed. `boot_id` is this host's.
pub(crate) fn send(target: ProcessIdentity<'_>, signal: Signal, boot_id: Option<&str>) -> ReplyOutcome {
    let pid = i32::try_from(target.pid).ok().filter(|&pid| pid > 1).and_then(Pid::from_raw);
    let Some(pid) = pid else {
        return ReplyOutcome::Refused(format!("pid {} is never signalled", target.pid).into());
    };
    match boot_id {
        None => return ReplyOutcome::Refused("the host's boot id cannot be read".into()),
        Some(boot_id) if boot_id != target.boot_id => return ReplyOutcome::Reused,
        Some(_) => {}
    }
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => send_by_pidfd(&pidfd, target, signal),
        Err(error) => pidfd_open_error(error),
    }
}

fn send_by_pidfd(pidfd: &OwnedFd, target: ProcessIdentity<'_>, signal: Signal) -> ReplyOutcome {
    let mut reader = FileReader::default();
    let stat = reader.read_process(target.pid, "stat", 4096).ok().and_then(Stat::parse);
    let Some(stat) = stat else {
        return if has_ended(pidfd) {
            ReplyOutcome::Gone
        } else {
            ReplyOutcome::Refused("/proc does not show the process, so that it cannot be told from another".into())
        };
    };
    if stat.start_ticks != target.start_ticks {
        return ReplyOutcome::Reused;
    }
    // A zombie takes a signal without an error, and nothing comes of it.
    if matches!(stat.state, ProcessState::Zombie | ProcessState::Dead) {
        return ReplyOutcome::Gone;
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

fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

fn pidfd_open_error(error: Errno) -> ReplyOutcome {
    match error {
        Errno::SRCH => ReplyOutcome::Gone,
        Errno::NOSYS => ReplyOutcome::Refused(
            "this kernel has no pidfd (Linux before 5.3): a signal might reach another process with the same pid"
                .into(),
        ),
        Errno::PERM => ReplyOutcome::Refused("pidfd_open is forbidden here, as in some containers".into()),
        error => ReplyOutcome::Refused(format!("the process cannot be held: pidfd_open: {error}").into()),
    }
}

fn pidfd_send_signal_error(error: Errno) -> ReplyOutcome {
    match error {
        Errno::SRCH => ReplyOutcome::Gone,
        Errno::PERM => ReplyOutcome::NotPermitted,
        error => ReplyOutcome::Refused(format!("the signal was not sent: pidfd_send_signal: {error}").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "b0071d";

    fn outcome(pid: u32, start_ticks: u64, boot_id: &str) -> ReplyOutcome {
        send(ProcessIdentity { boot_id, pid, start_ticks }, Signal::Kill, Some(BOOT))
    }

    #[test]
    fn pids_that_mean_all_or_init_are_refused() {
        for pid in [0, 1, u32::MAX, 1 << 31] {
            assert_eq!(outcome(pid, 0, BOOT), ReplyOutcome::Refused(format!("pid {pid} is never signalled").into()));
        }
    }

    #[test]
    fn another_boot_or_another_start_is_another_process() {
        let pid = std::process::id();
        assert_eq!(outcome(pid, 0, "other"), ReplyOutcome::Reused);
        assert_eq!(outcome(pid, 0, BOOT), ReplyOutcome::Reused);
    }

    #[test]
    fn errors_have_distinct_outcomes() {
        assert_eq!(pidfd_open_error(Errno::SRCH), ReplyOutcome::Gone);
        assert_eq!(pidfd_send_signal_error(Errno::PERM), ReplyOutcome::NotPermitted);
        let ReplyOutcome::Refused(reason) = pidfd_open_error(Errno::NOSYS) else { panic!("refused") };
        assert!(reason.starts_with("this kernel has no pidfd"));
    }
}
