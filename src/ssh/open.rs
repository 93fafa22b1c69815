//! The way to a host.

use super::context::Context;
use super::resolve::{Proxy, Resolved, resolve};
use super::transport::{Channel, SshError, SshErrorKind, SshPhase};
use super::{local, native, openssh};
use crate::config::{Backend, HostConfig};
use std::sync::Arc;

/// Runs `command` on `host` by whichever transport serves it: this machine without SSH, the built-in client, or the
/// `ssh` program for what the built-in client cannot do. `progress` hears of each phase as it begins. Dropping the
/// future gives up; dropping the channel ends everything.
///
/// # Errors
/// See [`SshErrorKind`]; the message is without the host's name.
pub async fn open(
    context: &Arc<Context>,
    host: &HostConfig,
    command: &str,
    progress: &(dyn Fn(SshPhase) + Send + Sync),
) -> Result<Channel, SshError> {
    progress(SshPhase::Queued);
    if host.is_local() {
        progress(SshPhase::Exec);
        return local::open(command);
    }
    let resolved = resolve(context, host).await?;
    let by = |client: &str| trace_route(context, host, &resolved, client);
    if host.backend == Backend::System {
        by("the ssh program, as configured");
        return openssh::open(context, host, &resolved, command, progress).await;
    }
    if let Some(setting) = native_unsupported(&resolved).await {
        if host.backend == Backend::Native {
            let message = format!("the built-in client cannot do {setting}, which the ssh configuration asks for");
            return Err(SshError::new(SshErrorKind::Unsupported, message)
                .with_hint("backend = \"system\" in hosts.toml uses the ssh program"));
        }
        by(&format!("the ssh program, for its {setting}"));
        return openssh::open(context, host, &resolved, command, progress).await;
    }
    by("the built-in client");
    match native::open(context, &host.name, &resolved, command, progress).await {
        Ok(channel) => Ok(channel),
        Err(failure) if failure.ssh_program_may_help && host.backend == Backend::Auto && resolved.ssh_program => {
            openssh::open(context, host, &resolved, command, progress).await
        }
        Err(failure) => Err(without_configuration(failure.error, &resolved)),
    }
}

/// Says what is connected to, and by what.
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

/// What the configuration asks for that the built-in client cannot do.
async fn native_unsupported(resolved: &Resolved) -> Option<String> {
    if !resolved.ssh_program {
        return None;
    }
    if let Some(setting) = native::unsupported_setting(resolved) {
        return Some(setting);
    }
    resolved.has_live_master().await.then(|| "ControlPath".to_owned())
}

/// Says that the ssh configuration was not read, where that may be the reason.
fn without_configuration(mut error: SshError, resolved: &Resolved) -> SshError {
    if !resolved.ssh_program {
        error.message.push_str(" (there is no ssh program, so ~/.ssh/config was not read)");
    }
    error
}
