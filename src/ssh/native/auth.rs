//! Authentication, in OpenSSH's order: none, keys, keyboard-interactive, password.

mod public_key;
mod questions;
mod refusals;

pub(super) use refusals::declined;

use super::handler::{Client, Witness};
use super::memory::{Memory, Setback};
use crate::ssh::Context;
use crate::ssh::resolve::Resolved;
use crate::ssh::stopwatch::{Expired, Stopwatch};
use crate::ssh::transport::SshPhase;
use public_key::Keys;
use russh::client::{AuthResult, Handle};
use russh::{MethodKind, MethodSet};

/// sshd ends the connection at the sixth refused key (`MaxAuthTries 6`).
const MOST_KEYS: usize = 6;

/// One login on one connection.
pub(super) struct Login<'a> {
    pub(super) context: &'a Context,
    /// The name it is shown by, for prompts.
    pub(super) host: &'a str,
    pub(super) resolved: &'a Resolved,
    pub(super) handle: &'a mut Handle<Client>,
    pub(super) witness: &'a Witness,
    pub(super) memory: &'a mut Memory,
    pub(super) watch: Stopwatch,
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
    pub(super) async fn run(mut self) -> Result<(), Setback> {
        // Tailscale and some appliances let in without more; all others answer with their methods.
        let user = self.resolved.user.clone();
        let first = self.watch.run(self.handle.authenticate_none(user)).await;
        let mut methods = match outcome(self.settled(first)?) {
            Outcome::LoggedIn => {
                self.context.remark(self.host, SshPhase::Login, || "none: let in without a proof".to_owned());
                return Ok(());
            }
            Outcome::Remaining(methods) => methods,
            Outcome::Skipped => MethodSet::empty(),
        };
        let offered = methods.clone();
        let mut keys: Option<Keys> = None;
        let mut spent: Vec<MethodKind> = Vec::new();
        loop {
            if self.handle.is_closed() {
                return Err(self.closed(&offered).into());
            }
            let Some(method) = self.next_method(&methods, &spent) else { break };
            self.witness.seen().proven = false;
            let outcome = match method {
                MethodKind::PublicKey => {
                    if keys.is_none() {
                        keys = Some(self.keys().await);
                    }
                    let candidate = keys.as_mut().and_then(|keys| keys.waiting.next());
                    match (candidate, keys.as_mut()) {
                        (Some(candidate), Some(keys)) if self.memory.offered.len() < MOST_KEYS => {
                            self.memory.last = Some(candidate.label.clone());
                            self.offer(candidate, keys).await?
                        }
                        _ => {
                            self.memory.last = None;
                            spent.push(method);
                            Outcome::Skipped
                        }
                    }
                }
                MethodKind::KeyboardInteractive => {
                    spent.push(method);
                    self.keyboard_interactive().await?
                }
                _ => {
                    if self.memory.wrong_passwords + 1 >= self.resolved.password_prompts {
                        spent.push(method);
                    }
                    self.password().await?
                }
            };
            self.remark(method, &outcome);
            match outcome {
                Outcome::LoggedIn => return Ok(()),
                Outcome::Remaining(remaining) if !remaining.is_empty() => methods = remaining,
                Outcome::Remaining(_) | Outcome::Skipped => {}
            }
        }
        let notes = keys.map(|keys| keys.notes).unwrap_or_default();
        let error = self.refused(&offered, &notes);
        Err(if notes.iter().any(|note| note.by_ssh) { Setback::BeyondUs(error) } else { error.into() })
    }

    /// Tells what became of an attempt, for those who look into it.
    fn remark(&self, method: MethodKind, outcome: &Outcome) {
        self.context.remark(self.host, SshPhase::Login, || {
            let what = match (&method, &self.memory.last) {
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
    fn next_method(&self, methods: &MethodSet, spent: &[MethodKind]) -> Option<MethodKind> {
        let can_ask = self.context.broker.can_ask();
        let ours = self.resolved.methods;
        [
            (MethodKind::PublicKey, ours.public_key),
            (MethodKind::KeyboardInteractive, ours.keyboard_interactive && can_ask),
            (MethodKind::Password, ours.password && can_ask),
        ]
        .into_iter()
        .find(|(method, usable)| *usable && methods.contains(method) && !spent.contains(method))
        .map(|(method, _)| method)
    }

    /// Turns a limit that is over and a connection that is gone into errors.
    fn settled<T>(&self, attempt: Result<Result<T, russh::Error>, Expired>) -> Result<T, Setback> {
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
