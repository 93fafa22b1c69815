//! The configuration of jump hosts, and circles among them.

use super::resolved::{Proxy, Resolved};
use crate::config::{Hop, HostConfig};
use crate::ssh::transport::{SshError, SshErrorKind};

/// Identifies a jump host and the route to it.
pub(in crate::ssh) fn route_key(resolved: &Resolved, hops: &[Hop]) -> String {
    let config = resolved.config.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    format!("{}\n{config}", Proxy::Jump(hops.to_vec()))
}

/// The jump hosts of a key.
fn key_hops(key: &str) -> &str {
    key.split('\n').next().unwrap_or(key)
}

/// Refuses the route `key` if it is among the routes that wait for it.
pub(in crate::ssh) fn refuse_circle(waiting: &[String], key: &str) -> Result<(), SshError> {
    if !waiting.iter().any(|route| route == key) {
        return Ok(());
    }
    let circle: Vec<&str> = waiting.iter().map(String::as_str).chain([key]).map(key_hops).collect();
    let message = format!("the jump hosts lead in a circle: {}", circle.join(" through "));
    let error = SshError::new(SshErrorKind::Config, message).with_hint("ProxyJump in ~/.ssh/config");
    Err(error.naming_jump_host())
}

/// The last one of these jump hosts with its configuration, which leads through the ones before it.
pub(in crate::ssh) fn last_jump_host<'a>(
    resolved: &Resolved,
    hops: &'a [Hop],
) -> Result<(&'a Hop, HostConfig), SshError> {
    let Some((last, before)) = hops.split_last() else {
        return Err(SshError::new(SshErrorKind::Config, "the list of jump hosts is empty"));
    };
    let mut host = HostConfig::named(last.to_string());
    host.address = Some(last.host.clone());
    host.user.clone_from(&last.user);
    host.port = last.port;
    host.ssh_config.clone_from(&resolved.config);
    if !before.is_empty() {
        host.proxy_jump = Some(before.to_vec());
    }
    Ok((last, host))
}

/// Adds the jump host to the message, unless it names the jump host that failed already.
pub(in crate::ssh) fn name_jump_host(hop: &Hop, mut error: SshError) -> SshError {
    if !error.names_jump_host {
        error.message = format!("the jump host {hop}: {}", error.message);
        error.names_jump_host = true;
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_jump_host_that_failed_is_named() {
        let hop = |host: &str| Hop { user: None, host: host.to_owned(), port: None };
        let failure = SshError::new(SshErrorKind::ConnectionRefused, "the jump host looks down");
        let inner = name_jump_host(&hop("inner"), failure);
        assert_eq!(inner.message, "the jump host inner: the jump host looks down");
        assert_eq!(name_jump_host(&hop("outer"), inner.clone()), inner);
    }
}
