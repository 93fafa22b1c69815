//! Authentication, in OpenSSH's order: none, keys, keyboard-interactive, password.

#[path = "auth_errors.rs"]
mod errors;
#[path = "auth_interactive.rs"]
mod interactive;
#[path = "auth_public_key.rs"]
mod public_key;

pub(super) use errors::declined;

use super::handler::{ClientHandler, ConnectionEvents};
use super::login_state::{LoginState, RetryReason};
use crate::ssh::Context;
use crate::ssh::pausable_timeout::{Expired, PausableTimeout};
use crate::ssh::resolve::Resolved;
use crate::ssh::transport::SshPhase;
use public_key::Keys;
use russh::client::{AuthResult, Handle};
use russh::{MethodKind, MethodSet};

/// sshd ends the connection at the sixth refused key (`MaxAuthTries 6`).
const MAX_KEYS: usize = 6;

/// One login on one connection.
pub(super) struct Login<'a> {
    pub(super) context: &'a Context,
    /// The name it is shown by, for prompts.
    pub(super) host: &'a str,
    pub(super) resolved: &'a Resolved,
    pub(super) handle: &'a mut Handle<ClientHandler>,
    pub(super) events: &'a ConnectionEvents,
    pub(super) state: &'a mut LoginState,
    pub(super) time_limit: PausableTimeout,
}

/// What the server made of an attempt.
enum Outcome {
    LoggedIn,
    /// Refused, or accepted as one of several; these methods remain.
    Remaining(MethodSet),
    /// Not offered, or not able to sign; the server was not bothered with it.
    Skipped,
}

impl Login<'_> {
    /// Tries everything that the server offers and we have.
    pub(super) async fn run(mut self) -> Result<(), RetryReason> {
        // Tailscale and some appliances let in without more; all others answer with their methods.
        let user = self.resolved.user.clone();
        let first = self.time_limit.run(self.handle.authenticate_none(user)).await;
        let mut methods = match outcome(self.check_attempt(first)?) {
            Outcome::LoggedIn => {
                self.context.trace(self.host, SshPhase::Login, || "none: let in without a proof".to_owned());
                return Ok(());
            }
            Outcome::Remaining(methods) => methods,
            Outcome::Skipped => MethodSet::empty(),
        };
        let offered = methods.clone();
        let mut keys: Option<Keys> = None;
        let mut tried_methods: Vec<MethodKind> = Vec::new();
        loop {
            if self.handle.is_closed() {
                return Err(self.closed(&offered).into());
            }
            let Some(method) = self.next_method(&methods, &tried_methods) else { break };
            self.events.lock().proof_sent = false;
            let outcome = match method {
                MethodKind::PublicKey => {
                    if keys.is_none() {
                        keys = Some(self.keys().await);
                    }
                    let identity = keys.as_mut().and_then(|keys| keys.waiting.next());
                    match (identity, keys.as_mut()) {
                        (Some(identity), Some(keys)) if self.state.offered_keys.len() < MAX_KEYS => {
                            self.state.last_key = Some(identity.label.clone());
                            self.offer(identity, keys).await?
                        }
                        _ => {
                            self.state.last_key = None;
                            tried_methods.push(method);
                            Outcome::Skipped
                        }
                    }
                }
                MethodKind::KeyboardInteractive => {
                    tried_methods.push(method);
                    self.keyboard_interactive().await?
                }
                _ => {
                    if self.state.wrong_passwords + 1 >= self.resolved.password_prompts {
                        tried_methods.push(method);
                    }
                    self.password().await?
                }
            };
            self.trace_attempt(method, &outcome);
            match outcome {
                Outcome::LoggedIn => return Ok(()),
                Outcome::Remaining(remaining) if !remaining.is_empty() => methods = remaining,
                Outcome::Remaining(_) | Outcome::Skipped => {}
            }
        }
        let skipped = keys.map(|keys| keys.skipped).unwrap_or_default();
        let error = self.refused(&offered, &skipped);
        Err(if skipped.iter().any(|skipped| skipped.ssh_program_may_help) {
            RetryReason::NeedsSshProgram(error)
        } else {
            error.into()
        })
    }

    /// Tells what became of an attempt, for those who look into it.
    fn trace_attempt(&self, method: MethodKind, outcome: &Outcome) {
        self.context.trace(self.host, SshPhase::Login, || {
            let what = match (&method, &self.state.last_key) {
                (MethodKind::PublicKey, Some(label)) => format!("publickey {label}"),
                _ => <&str>::from(&method).to_owned(),
            };
            match outcome {
                Outcome::LoggedIn => format!("{what}: accepted"),
                Outcome::Remaining(_) => format!("{what}: refused, or not enough"),
                Outcome::Skipped => format!("{what}: nothing more to try"),
            }
        });
    }

    /// The next method that both sides have left. Methods that need a person are left out when there is none.
    fn next_method(&self, methods: &MethodSet, tried_methods: &[MethodKind]) -> Option<MethodKind> {
        let can_prompt = self.context.broker.can_prompt();
        let ours = self.resolved.methods;
        [
            (MethodKind::PublicKey, ours.public_key),
            (MethodKind::KeyboardInteractive, ours.keyboard_interactive && can_prompt),
            (MethodKind::Password, ours.password && can_prompt),
        ]
        .into_iter()
        .find(|(method, usable)| *usable && methods.contains(method) && !tried_methods.contains(method))
        .map(|(method, _)| method)
    }

    /// Turns a limit that is over and a connection that is gone into errors.
    fn check_attempt<T>(&self, attempt: Result<Result<T, russh::Error>, Expired>) -> Result<T, RetryReason> {
        match attempt {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(_)) => Err(self.lost().into()),
            Err(Expired) => Err(self.expired().into()),
        }
    }
}

fn outcome(result: AuthResult) -> Outcome {
    match result {
        AuthResult::Success => Outcome::LoggedIn,
        AuthResult::Failure { remaining_methods, .. } => Outcome::Remaining(remaining_methods),
    }
}
