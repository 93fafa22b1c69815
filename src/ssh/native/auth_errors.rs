//! What a person is told when a login fails.

use super::Login;
use crate::ssh::native::identities::SkippedKey;
use crate::ssh::resolve::Resolved;
use crate::ssh::text::ssh_target;
use crate::ssh::transport::{SshError, SshErrorKind, SshPhase};
use crate::wire::format::{DurationStyle, duration};
use russh::{MethodKind, MethodSet};

impl Login<'_> {
    pub(super) fn expired(&self) -> SshError {
        let message =
            format!("the login was not decided within {}", duration(self.time_limit.limit(), DurationStyle::Seconds));
        SshError::new(SshErrorKind::Timeout(SshPhase::Login), message)
            .with_hint("the host or its user database (LDAP, PAM) does not answer")
    }

    pub(super) fn lost(&self) -> SshError {
        self.closed(&MethodSet::empty())
    }

    /// The server closed the connection. sshd does that at the sixth failure, with a word about it.
    pub(super) fn closed(&self, methods: &MethodSet) -> SshError {
        let recorded = self.events.lock();
        if recorded.no_auth_method_left {
            drop(recorded);
            return self.refused(methods, &[]);
        }
        let reason = recorded.disconnect_message.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
        if recorded.proof_sent && !recorded.closed_by_server {
            return self.account_refused(recorded.banner.trim());
        }
        // Only a server that names the reason has decided; anything else may go better next time.
        if !reason.contains("authentication failures") {
            let message = format!("the server closed the connection during the login{reason}");
            return SshError::new(SshErrorKind::Busy, message)
                .with_hint("sshd is restarting or has blocked this address for a while");
        }
        drop(recorded);
        let mut error = self.refused(methods, &[]);
        error.message = format!("{}; then it closed the connection{reason}", error.message);
        error.hint = Some("`identity_file` in hosts.toml names the key that is offered first".to_owned());
        error
    }

    /// sshd takes a good proof and closes the connection without a word of its own where PAM refuses the account
    /// (`pam_slurm_adopt`, `pam_access`, `pam_nologin`). What PAM has to say comes as a banner.
    fn account_refused(&self, text: &str) -> SshError {
        let user = &self.resolved.user;
        let text = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        let (what, hint) = if text.contains("pam_slurm_adopt") {
            (format!("no job of {user} runs here"), "it is looked at again every 5 minutes")
        } else {
            (
                format!("the server took the proof of {user} and refuses the account"),
                "a rule of its PAM: a closed machine, or one that wants a job of yours to run there (pam_slurm_adopt)",
            )
        };
        let reason = if text.is_empty() { String::new() } else { format!("; the server says: {text}") };
        SshError::new(SshErrorKind::SessionRefused, format!("{what}{reason}")).with_hint(hint)
    }

    /// Nothing was accepted: what the server would take, what it was offered, what might help.
    pub(super) fn refused(&self, methods: &MethodSet, skipped: &[SkippedKey]) -> SshError {
        let Resolved { user, hostname, port, .. } = self.resolved;
        let mut parts = vec![format!("the server refused the login as {user}")];
        if !methods.is_empty() {
            let accepts: Vec<&str> = methods.iter().map(<&str>::from).collect();
            parts.push(format!("it accepts {}", accepts.join(", ")));
        }
        match &self.state.offered_keys[..] {
            [] if methods.contains(&MethodKind::PublicKey) => parts.push("there was no key to offer".to_owned()),
            [] => {}
            offered => parts.push(format!("it was offered {}", offered.join(", "))),
        }
        let asks = [MethodKind::KeyboardInteractive, MethodKind::Password];
        match self.state.wrong_passwords {
            0 if !self.context.broker.can_prompt() && asks.iter().any(|method| methods.contains(method)) => {
                parts.push("nobody could be asked for a password".to_owned());
            }
            0 => {}
            times => parts.push(format!("the password was wrong {times} times")),
        }
        parts.extend(skipped.iter().map(|skipped| skipped.text.clone()));
        let banner = self.events.lock().banner.trim().to_owned();
        if !banner.is_empty() {
            parts.push(format!("the server says: {banner}"));
        }
        let message = parts.join("; ");
        let kind = if skipped.iter().any(|skipped| skipped.is_configured) {
            SshErrorKind::IdentityFile
        } else {
            SshErrorKind::Authentication
        };
        let target = ssh_target(user, hostname, *port);
        let hint = skipped.iter().find_map(|skipped| skipped.hint.clone()).unwrap_or_else(|| {
            let copy = format!("ssh-copy-id {target}");
            if self.state.offered_keys.is_empty() {
                format!("{copy}   # after ssh-keygen -t ed25519, if there is no key yet")
            } else {
                format!("{copy}   # or name the right key: `identity_file` in hosts.toml")
            }
        });
        SshError::new(kind, message).with_hint(hint)
    }
}

/// The person said no.
pub(in crate::ssh::native) fn declined(resolved: &Resolved) -> SshError {
    SshError::new(SshErrorKind::Declined, format!("the login as {} was given up at the prompt", resolved.user))
}
