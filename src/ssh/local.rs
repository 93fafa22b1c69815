//! The machine one sits at, without SSH.

use super::transport::{Channel, SshError};

/// Runs `command` with `/bin/sh` in a process group of its own, which is killed when the channel is dropped.
#[cfg(target_os = "linux")]
pub(super) fn open(command: &str) -> Result<Channel, SshError> {
    use super::openssh::child_process::{Child, channel};
    use super::transport::SshErrorKind;
    use crate::wire::format::io_cause;

    let mut shell = tokio::process::Command::new("/bin/sh");
    shell.arg("-c").arg(command).process_group(0);
    let child = Child::spawn(shell).map_err(|error| {
        SshError::new(SshErrorKind::SessionRefused, format!("starting /bin/sh failed: {}", io_cause(&error)))
    })?;
    Ok(channel(child))
}

/// The probe reads /proc, so there is nothing to run elsewhere.
#[cfg(not(target_os = "linux"))]
pub(super) fn open(_: &str) -> Result<Channel, SshError> {
    use super::transport::SshErrorKind;

    Err(SshError::new(SshErrorKind::Unsupported, "this machine cannot be watched: the probe runs on Linux only")
        .with_hint("name a GPU server: gpufleet HOST"))
}
