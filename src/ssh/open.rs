//! Chooses the transport to a host: local, native or the `ssh` program.

use super::context::Context;
use super::resolve::{Proxy, Resolved, resolve};
use super::transport::{Channel, SshError, SshErrorKind, SshPhase};
use super::{native, openssh};
use crate::config::{Backend, HostConfig};
use std::sync::Arc;

/// Runs `command` on `host`, through the transport that the host needs: a local shell, the built-in client, or the `ssh`
/// program for what the built-in client cannot do. `progress` is called at the start of each phase. Dropping the future
/// cancels the attempt; dropping the channel ends the command and its connection.
///
/// # Errors
/// See [`SshErrorKind`]. The message does not contain the name of the host.
pub async fn open(
    context: &Arc<Context>,
    host: &HostConfig,
    command: &str,
    progress: &(dyn Fn(SshPhase) + Send + Sync),
) -> Result<Channel, SshError> {
    progress(SshPhase::Queued);
    if host.is_local() {
        progress(SshPhase::Exec);
        return open_local(command);
    }
    let resolved = resolve(context, host).await?;
    let trace = |client: &str| trace_route(context, host, &resolved, client);
    if host.backend == Backend::System {
        trace("the ssh program, as configured");
        return openssh::open(context, host, &resolved, command, progress).await;
    }
    if let Some(setting) = native_unsupported(&resolved).await {
        if host.backend == Backend::Native {
            let message = format!("the built-in client cannot do {setting}, which the ssh configuration asks for");
            return Err(SshError::new(SshErrorKind::Unsupported, message)
                .with_hint("backend = \"system\" in hosts.toml uses the ssh program"));
        }
        trace(&format!("the ssh program, for its {setting}"));
        return openssh::open(context, host, &resolved, command, progress).await;
    }
    trace("the built-in client");
    match native::open(context, &host.name, &resolved, command, progress).await {
        Ok(channel) => Ok(channel),
        Err(error) if error.ssh_program_may_help && host.backend == Backend::Auto && resolved.ssh_program => {
            openssh::open(context, host, &resolved, command, progress).await
        }
        Err(error) => Err(note_unread_configuration(error.error, &resolved)),
    }
}

/// Traces the server, the jump hosts and the transport.
fn trace_route(context: &Context, host: &HostConfig, resolved: &Resolved, client: &str) {
    context.trace(&host.name, SshPhase::Queued, || {
        let through = match &resolved.proxy {
            Proxy::None => String::new(),
            proxy => format!(" through {proxy}"),
        };
        let unread = if resolved.ssh_program { "" } else { "; there is no ssh program, so ~/.ssh/config was not read" };
        let Resolved { user, hostname, port, .. } = resolved;
        format!("{user}@{hostname} port {port}{through}, by {client}{unread}")
    });
}

/// The first ssh_config option that the built-in client cannot follow.
async fn native_unsupported(resolved: &Resolved) -> Option<String> {
    if !resolved.ssh_program {
        return None;
    }
    if let Some(setting) = native::unsupported_setting(resolved) {
        return Some(setting);
    }
    resolved.has_live_master().await.then(|| "ControlPath".to_owned())
}

/// Adds that the ssh configuration was not read, because that may be the cause.
fn note_unread_configuration(mut error: SshError, resolved: &Resolved) -> SshError {
    if !resolved.ssh_program {
        error.message.push_str(" (there is no ssh program, so ~/.ssh/config was not read)");
    }
    error
}

/// Runs `command` with `/bin/sh` in its own process group, which is killed when the channel is dropped.
#[cfg(target_os = "linux")]
fn open_local(command: &str) -> Result<Channel, SshError> {
    let mut shell = tokio::process::Command::new("/bin/sh");
    shell.arg("-c").arg(command).process_group(0);
    let child = super::child_process::Child::spawn(shell).map_err(|error| {
        SshError::new(
            SshErrorKind::SessionRefused,
            format!("starting /bin/sh failed: {}", crate::wire::format::io_cause(&error)),
        )
    })?;
    Ok(super::child_process::channel(child))
}

/// The probe reads /proc, so it runs on Linux only.
#[cfg(not(target_os = "linux"))]
fn open_local(_: &str) -> Result<Channel, SshError> {
    Err(SshError::new(SshErrorKind::Unsupported, "this machine cannot be monitored: the probe runs on Linux only")
        .with_hint("name a GPU server: gpufleet HOST"))
}
