//! Logins that ask a person: keyboard-interactive (RFC 4256) and password (RFC 4252, section 8).

use super::errors::declined;
use super::{Login, Outcome, outcome};
use crate::ssh::credentials::PromptKey;
use crate::ssh::native::login_state::RetryReason;
use crate::ssh::pausable_timeout::Expired;
use crate::ssh::prompt::{Answer, PromptKind};
use crate::ssh::text::ssh_target;
use russh::MethodKind;
use russh::client::{AuthResult, KeyboardInteractiveAuthResponse};
use std::sync::Arc;
use std::time::Duration;

/// How long a server may wait for an approval (a push to a telephone) after an answer.
const APPROVAL: Duration = Duration::from_secs(90);

/// No server asks more rounds of questions for one login.
const MAX_ROUNDS: usize = 16;

impl Login<'_> {
    /// Questions of the server's. They can only be asked while it waits for the answers.
    pub(super) async fn keyboard_interactive(&mut self) -> Result<Outcome, RetryReason> {
        if self.state.prompt_turn.is_none() {
            // Another login's dialog is open: this connection would wait for it in vain, and is made anew then.
            let turn = Arc::clone(&self.context.interactive_login_lock).try_lock_owned();
            self.state.prompt_turn = Some(turn.map_err(|_| RetryReason::PromptBusy)?);
        }
        for failures in 0..self.resolved.password_prompts {
            let user = self.resolved.user.clone();
            let started = self.time_limit.run(self.handle.authenticate_keyboard_interactive_start(user, None)).await;
            let mut response = self.check_attempt(started)?;
            let number = self.context.broker.next_login_id();
            for _ in 0..MAX_ROUNDS {
                let (name, instructions, prompts) = match response {
                    KeyboardInteractiveAuthResponse::Success => return Ok(Outcome::LoggedIn),
                    KeyboardInteractiveAuthResponse::Failure { .. } => break,
                    KeyboardInteractiveAuthResponse::InfoRequest { name, instructions, prompts } => {
                        (name, instructions, prompts)
                    }
                };
                let mut answers = Vec::with_capacity(prompts.len());
                let instruction = [name.trim(), instructions.trim()].join(" ").trim().to_owned();
                if prompts.is_empty() {
                    // PAM says so why it refuses an account, where a key would have got a banner.
                    self.events.lock().add_banner(&instruction);
                }
                for prompt in prompts {
                    let instruction = instruction.clone();
                    let kind = PromptKind::Secret { text: prompt.prompt, instruction, echo: prompt.echo, failures };
                    let _pause = self.time_limit.pause();
                    answers.push(self.prompt_user(kind, number).await?);
                }
                // A round without questions proves nothing: some servers end with one.
                self.events.lock().proof_sent |= !answers.is_empty();
                let responding = self.handle.authenticate_keyboard_interactive_respond(answers);
                let answered = {
                    let _pause = self.time_limit.pause();
                    tokio::time::timeout(APPROVAL, responding).await.map_err(|_| Expired)
                };
                response = self.check_attempt(answered)?;
            }
            match response {
                KeyboardInteractiveAuthResponse::Failure { remaining_methods, partial_success } => {
                    let again = !partial_success && remaining_methods.contains(&MethodKind::KeyboardInteractive);
                    if !again || self.handle.is_closed() {
                        return Ok(Outcome::Remaining(remaining_methods));
                    }
                }
                _ => return Ok(Outcome::Skipped),
            }
        }
        Ok(Outcome::Skipped)
    }

    async fn prompt_user(&self, kind: PromptKind, number: u64) -> Result<String, RetryReason> {
        let target = ssh_target(&self.resolved.user, &self.resolved.hostname, self.resolved.port);
        let key = PromptKey::Login { target, connection: number };
        let asking = self.context.broker.ask(key, self.host, kind);
        let limit = self.context.options.limits.answer;
        match tokio::time::timeout(limit, asking).await.map_err(|_| RetryReason::PromptTimedOut)? {
            Ok((_, answer)) => match &*answer {
                Answer::Secret(secret) => Ok(secret.expose().to_owned()),
                _ => Err(declined(self.resolved).into()),
            },
            Err(_) => Err(declined(self.resolved).into()),
        }
    }

    pub(super) async fn password(&mut self) -> Result<Outcome, RetryReason> {
        let answer = self.state.password.take();
        let Some(Answer::Secret(password)) = answer.as_deref() else { return Err(RetryReason::PasswordNeeded) };
        let user = self.resolved.user.clone();
        self.events.lock().proof_sent = true;
        let result = self.time_limit.run(self.handle.authenticate_password(user, password.expose())).await;
        let result = self.check_attempt(result)?;
        if let AuthResult::Failure { partial_success: false, .. } = &result {
            self.state.wrong_passwords += 1;
        }
        Ok(outcome(result))
    }
}
