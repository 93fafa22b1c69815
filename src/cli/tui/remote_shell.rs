//! `s`: the terminal is lent to a shell on a host, and comes back when that ends.
//!
//! The fleet is watched on meanwhile; nothing is drawn. The shell stands in our process group, as an editor that `git`
//! starts does, so that Ctrl-Z at ssh's prompts stops both; SIGINT is meant for it alone, and the event loop passes it
//! over.

use super::terminal::print_line;
use crate::config::HostConfig;
use crate::wire::SafeText;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _};
use std::process::{ExitStatus, Stdio};
use tokio::process::{Child, Command};

/// ssh's own failure, as against the status of the shell on the host.
const SSH_FAILED: i32 = 255;

/// A program that has the terminal.
pub(super) struct RemoteShell {
    stage: Stage,
    host: SafeText,
    is_local: bool,
    /// The terminal and how it was set: a program that is killed leaves it as it likes.
    terminal: Option<(File, Termios)>,
}

enum Stage {
    /// The shell runs.
    Shell(Child),
    /// ssh has said why it failed; a key is waited for, so that it can be read.
    AwaitEnter(Child),
}

impl RemoteShell {
    /// Starts the shell on a terminal that has been given back.
    ///
    /// # Errors
    /// What a person reads when it cannot be started.
    pub(super) fn start(host: &HostConfig) -> Result<Self, String> {
        let name = host.name.clone();
        let is_local = host.is_local();
        let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into());
        let shown =
            if is_local { SafeText::new(&shell.to_string_lossy()) } else { host.ssh_line().unwrap_or_default() };
        let mut command = if is_local {
            Command::new(&shell)
        } else {
            let mut command = Command::new("ssh");
            command.args(host.login_arguments());
            command
        };
        let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty").ok();
        let terminal = terminal.and_then(|file| tcgetattr(&file).ok().map(|settings| (file, settings)));
        // Targets may have come on standard input: then the terminal is somewhere else.
        if let (false, Some((file, _))) = (io::stdin().is_terminal(), &terminal)
            && let Ok(file) = file.try_clone()
        {
            command.stdin(Stdio::from(file));
        }
        print_line(&format!("gpufleet: {shown}   # the screen comes back when it ends"));
        let child =
            command.kill_on_drop(true).spawn().map_err(|error| cannot_start(&error, &shown, &name, is_local))?;
        Ok(Self { stage: Stage::Shell(child), host: name, is_local, terminal })
    }

    /// Waits until the terminal is free again; what came of it, as a message. May be dropped and called again.
    pub(super) async fn ended(&mut self) -> String {
        loop {
            match &mut self.stage {
                Stage::Shell(child) => {
                    let message = match child.wait().await {
                        Ok(status) if !self.is_local && status.code() == Some(SSH_FAILED) => {
                            self.restore_terminal();
                            match self.wait_for_enter() {
                                Some(child) => self.stage = Stage::AwaitEnter(child),
                                None => return self.failed(),
                            }
                            continue;
                        }
                        Ok(status) => exit_message(&self.host, status),
                        Err(error) => format!("back from {}: its end could not be seen: {error}", self.host),
                    };
                    return message;
                }
                Stage::AwaitEnter(child) => {
                    // Whatever ends it, what ssh said has been on the terminal.
                    let _status = child.wait().await;
                    return self.failed();
                }
            }
        }
    }

    fn failed(&self) -> String {
        format!("ssh to {} failed (exit status {SSH_FAILED}); L tells how gpufleet gets there", self.host)
    }

    /// A line is read by a program of its own, which can be ended at any time, as a read of ours cannot.
    fn wait_for_enter(&self) -> Option<Child> {
        print_line(&format!(
            "gpufleet: ssh to {} failed (exit status {SSH_FAILED}). Enter goes back to the screen.",
            self.host
        ));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read -r line < /dev/tty"]).kill_on_drop(true).spawn().ok()
    }

    /// Sets the terminal as it was.
    fn restore_terminal(&self) {
        if let Some((file, settings)) = &self.terminal {
            // A terminal that is gone needs no settings.
            let _set = tcsetattr(file, OptionalActions::Now, settings);
        }
    }
}

impl Drop for RemoteShell {
    fn drop(&mut self) {
        let (Stage::Shell(child) | Stage::AwaitEnter(child)) = &mut self.stage;
        // One that has ended already cannot be ended.
        let _killed = child.start_kill();
        self.restore_terminal();
    }
}

fn cannot_start(error: &io::Error, command: &SafeText, host: &SafeText, is_local: bool) -> String {
    match (error.kind(), is_local) {
        (io::ErrorKind::NotFound, false) => {
            format!("no shell on {host}: there is no ssh program in PATH; install OpenSSH's client")
        }
        (io::ErrorKind::NotFound, true) => format!("no shell: SHELL names {command}, which is not there"),
        _ => format!("no shell on {host}: starting `{command}` failed: {error}"),
    }
}

fn exit_message(host: &SafeText, status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(0), _) => format!("back from {host}"),
        (Some(code), _) => format!("back from {host} (exit status {code})"),
        (None, Some(signal)) => format!("back from {host} (ended by signal {signal})"),
        (None, None) => format!("back from {host} ({status})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;

    #[test]
    fn how_a_shell_ended_is_said() {
        let host = SafeText::new("hgx-01");
        for (status, message) in [
            (ExitStatus::from_raw(0), "back from hgx-01"),
            (ExitStatus::from_raw(3 << 8), "back from hgx-01 (exit status 3)"),
            (ExitStatus::from_raw(2), "back from hgx-01 (ended by signal 2)"),
        ] {
            assert_eq!(exit_message(&host, status), message);
        }
    }

    #[test]
    fn a_shell_that_cannot_be_started_is_said_with_the_way_out() {
        let (host, command) = (SafeText::new("hgx-01"), SafeText::new("ssh hgx-01"));
        let missing = io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(
            cannot_start(&missing, &command, &host, false),
            "no shell on hgx-01: there is no ssh program in PATH; install OpenSSH's client"
        );
        assert_eq!(
            cannot_start(&missing, &SafeText::new("/bin/fsh"), &host, true),
            "no shell: SHELL names /bin/fsh, which is not there"
        );
        let refused = io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(
            cannot_start(&refused, &command, &host, false),
            "no shell on hgx-01: starting `ssh hgx-01` failed: permission denied"
        );
    }
}
