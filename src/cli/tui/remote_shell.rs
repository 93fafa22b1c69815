//! A shell on a host (`s`), which uses the terminal until it ends.
//!
//! The fleet is updated meanwhile, but not drawn. The shell is in our process group, as an editor started by `git` is,
//! so that Ctrl-Z at a prompt of `ssh` stops both. SIGINT is meant for the shell, and the event loop ignores it.

use super::terminal::print_line;
use crate::config::HostConfig;
use crate::ssh::{Context, SshError, shell_arguments};
use crate::wire::SafeText;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

/// The exit status of `ssh` for its own errors.
const SSH_FAILED: i32 = 255;

/// A process that uses the terminal.
pub(super) struct RemoteShell {
    stage: Stage,
    host: SafeText,
    /// The command as shown to the user.
    command: SafeText,
    is_local: bool,
    /// The terminal and its settings, since a killed program does not restore them.
    terminal: Option<(File, Termios)>,
}

enum Stage {
    /// `ssh -G` reads the ssh configuration, which can take seconds (`Match exec`).
    ReadConfig(JoinHandle<Result<Vec<String>, SshError>>),
    /// The shell is running.
    Shell(Child),
    /// `ssh` failed and waits for Enter, so that its message can be read.
    AwaitEnter(Child),
}

impl RemoteShell {
    /// Starts the shell on a released terminal. Only the local machine needs no context.
    ///
    /// # Errors
    /// A message for the user.
    pub(super) fn start(host: &Arc<HostConfig>, context: Option<&Arc<Context>>) -> Result<Self, String> {
        let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty").ok();
        let terminal = terminal.and_then(|file| tcgetattr(&file).ok().map(|settings| (file, settings)));
        let name = host.name.clone();
        if !host.is_local() {
            let Some(context) = context else { return Err(format!("no shell on {name}: it is simulated")) };
            let command = host.ssh_line().unwrap_or_default();
            announce(&command);
            let (context, host) = (Arc::clone(context), Arc::clone(host));
            let arguments = tokio::spawn(async move { shell_arguments(&context, &host).await });
            return Ok(Self { stage: Stage::ReadConfig(arguments), host: name, command, is_local: false, terminal });
        }
        let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into());
        let command = SafeText::new(&shell.to_string_lossy());
        announce(&command);
        let child = spawn(Command::new(&shell), terminal.as_ref());
        let child = child.map_err(|error| cannot_start(&error, &command, &name, true))?;
        Ok(Self { stage: Stage::Shell(child), host: name, command, is_local: true, terminal })
    }

    /// Ends the wait for the ssh configuration. A running shell gets the signal itself.
    pub(super) fn interrupt(&self) {
        if let Stage::ReadConfig(arguments) = &self.stage {
            arguments.abort();
        }
    }

    /// Waits until the terminal is free again and returns a message for the user. Cancel safe.
    pub(super) async fn ended(&mut self) -> String {
        loop {
            match &mut self.stage {
                Stage::ReadConfig(arguments) => {
                    let arguments = match arguments.await {
                        Ok(Ok(arguments)) => arguments,
                        Ok(Err(error)) => return refused_message(&self.host, &error),
                        // `interrupt` ended it.
                        Err(_) => return format!("no shell on {}: interrupted", self.host),
                    };
                    let mut ssh = Command::new("ssh");
                    ssh.args(arguments);
                    match spawn(ssh, self.terminal.as_ref()) {
                        Ok(child) => self.stage = Stage::Shell(child),
                        Err(error) => return cannot_start(&error, &self.command, &self.host, false),
                    }
                }
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
                        Err(error) => format!("back from {}: its exit status is unknown: {error}", self.host),
                    };
                    return message;
                }
                Stage::AwaitEnter(child) => {
                    // Any end will do: the message of `ssh` has been shown.
                    let _status = child.wait().await;
                    return self.failed();
                }
            }
        }
    }

    fn failed(&self) -> String {
        format!("ssh to {} failed (exit status {SSH_FAILED}); press L for the ssh log", self.host)
    }

    /// Starts a process that reads a line. It can be killed at any time, unlike a read of our own.
    fn wait_for_enter(&self) -> Option<Child> {
        print_line(&format!(
            "gpufleet: ssh to {} failed (exit status {SSH_FAILED}). Press Enter to return to the screen.",
            self.host
        ));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read -r line < /dev/tty"]).kill_on_drop(true).spawn().ok()
    }

    /// Restores the settings of the terminal.
    fn restore_terminal(&self) {
        if let Some((file, settings)) = &self.terminal {
            // The terminal may be gone.
            let _set = tcsetattr(file, OptionalActions::Now, settings);
        }
    }
}

impl Drop for RemoteShell {
    fn drop(&mut self) {
        match &mut self.stage {
            Stage::ReadConfig(arguments) => arguments.abort(),
            Stage::Shell(child) | Stage::AwaitEnter(child) => {
                // The process may have ended already.
                let _killed = child.start_kill();
            }
        }
        self.restore_terminal();
    }
}

fn announce(command: &SafeText) {
    print_line(&format!("gpufleet: {command}   # the screen returns when it ends"));
}

/// Starts a program in the terminal. Standard input may be a list of targets instead of the terminal.
fn spawn(mut command: Command, terminal: Option<&(File, Termios)>) -> io::Result<Child> {
    if let (false, Some((file, _))) = (io::stdin().is_terminal(), terminal)
        && let Ok(file) = file.try_clone()
    {
        command.stdin(Stdio::from(file));
    }
    command.kill_on_drop(true).spawn()
}

/// The message if the ssh configuration cannot be used.
fn refused_message(host: &SafeText, error: &SshError) -> String {
    let hint = error.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
    format!("no shell on {host}: {error}{hint}")
}

fn cannot_start(error: &io::Error, command: &SafeText, host: &SafeText, is_local: bool) -> String {
    match (error.kind(), is_local) {
        (io::ErrorKind::NotFound, false) => {
            format!("no shell on {host}: no ssh program in PATH; install the OpenSSH client")
        }
        (io::ErrorKind::NotFound, true) => format!("no shell: {command} (from SHELL) does not exist"),
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
    fn the_exit_message_contains_the_status() {
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
    fn start_errors_have_a_hint() {
        let (host, command) = (SafeText::new("hgx-01"), SafeText::new("ssh hgx-01"));
        let missing = io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(
            cannot_start(&missing, &command, &host, false),
            "no shell on hgx-01: no ssh program in PATH; install the OpenSSH client"
        );
        assert_eq!(
            cannot_start(&missing, &SafeText::new("/bin/fsh"), &host, true),
            "no shell: /bin/fsh (from SHELL) does not exist"
        );
        let refused = io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(
            cannot_start(&refused, &command, &host, false),
            "no shell on hgx-01: starting `ssh hgx-01` failed: permission denied"
        );
    }
}
