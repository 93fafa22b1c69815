//! Authenticates one connection, in OpenSSH's order: none, public keys, keyboard-interactive, password.
//!
//! Sources: RFC 4252 (authentication, keys, passwords), RFC 4256 (keyboard-interactive), RFC 8332 (RSA with SHA-2).

use super::algorithms;
use super::connection::{ClientHandler, ConnectionEvents, NativeError};
use super::host_key::UnknownHostKey;
use super::identities::{self, Identity, KeySource, SkippedKey};
use super::signer::{self, Agent, SignError, Signer};
use crate::config::shell_word;
use crate::ssh::Context;
use crate::ssh::context::TraceDetail;
use crate::ssh::credentials::{EncryptedKey, PromptKey};
use crate::ssh::known_hosts::fingerprint;
use crate::ssh::limits::{Expired, PausableTimeout};
use crate::ssh::prompt::{Answer, PromptKind, RefusedPrompt};
use crate::ssh::resolve::Resolved;
use crate::ssh::transport::{SshError, SshErrorKind, SshPhase};
use crate::wire::format::{DurationStyle, duration};
use russh::client::{AuthResult, Handle, KeyboardInteractiveAuthResponse};
use russh::keys::{Algorithm, Certificate, HashAlg, PublicKey};
use russh::{MethodKind, MethodSet};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::OwnedMutexGuard;

/// sshd ends the connection at the sixth refused key (`MaxAuthTries 6`).
const MAX_KEYS: usize = 6;

/// The hint if there are more keys than the server lets a client try.
const TOO_MANY_KEYS_HINT: &str = "name the right key: `identity_file` in hosts.toml, or `IdentityFile` with \
                                  `IdentitiesOnly yes` in the ssh configuration";

/// How long a server may wait for an approval, such as a push notification, after an answer.
const APPROVAL: Duration = Duration::from_secs(90);

/// The maximum number of keyboard-interactive rounds in one login.
const MAX_ROUNDS: usize = 16;

/// State that one connection attempt keeps for the next one.
#[derive(Debug, Default)]
pub(super) struct LoginState {
    /// Fingerprints of the keys that the server refused. Offering them again would use up tries.
    refused_fingerprints: HashSet<String>,
    /// The refused keys in the order in which they were offered, for display.
    offered_keys: Vec<String>,
    /// The key that was tried last, for display.
    last_key: Option<String>,
    /// The number of keys that were not tried.
    untried_keys: usize,
    /// A password that was typed and not tried yet.
    pub(super) password: Option<Arc<Answer>>,
    pub(super) wrong_passwords: u32,
    /// Held while the server may ask questions: the user answers one login at a time.
    pub(super) prompt_turn: Option<OwnedMutexGuard<()>>,
}

/// Why a connection ended before the command ran, and what the next connection needs.
#[derive(Debug)]
pub(super) enum RetryReason {
    /// There is no next connection.
    Fatal(SshError),
    /// There is no next connection, but the `ssh` program may succeed.
    NeedsSshProgram(SshError),
    /// The host key is not known.
    UnknownKey(Box<UnknownHostKey>),
    /// The server accepts this key, which needs its passphrase.
    EncryptedKey(Box<EncryptedKey>),
    /// The server accepts a password.
    PasswordNeeded,
    /// The server would ask questions while the user answers those of another login.
    PromptBusy,
    /// The user did not answer in time.
    PromptTimedOut,
}

impl From<NativeError> for RetryReason {
    fn from(failure: NativeError) -> Self {
        if failure.ssh_program_may_help { Self::NeedsSshProgram(failure.error) } else { Self::Fatal(failure.error) }
    }
}

impl From<SshError> for RetryReason {
    fn from(error: SshError) -> Self {
        Self::Fatal(error)
    }
}

/// The login on one connection.
pub(super) struct Login<'a> {
    pub(super) context: &'a Context,
    /// The display name of the host.
    pub(super) host: &'a str,
    pub(super) resolved: &'a Resolved,
    pub(super) handle: &'a mut Handle<ClientHandler>,
    pub(super) events: &'a ConnectionEvents,
    pub(super) state: &'a mut LoginState,
    pub(super) time_limit: PausableTimeout,
}

/// The result of one authentication request.
enum Outcome {
    LoggedIn,
    /// Refused, or accepted as one of several required methods; these methods remain.
    Remaining(MethodSet),
    /// No request was sent.
    Skipped,
}

impl From<AuthResult> for Outcome {
    fn from(result: AuthResult) -> Self {
        match result {
            AuthResult::Success => Self::LoggedIn,
            AuthResult::Failure { remaining_methods, .. } => Self::Remaining(remaining_methods),
        }
    }
}

/// The keys of this login.
struct Keys {
    waiting: std::vec::IntoIter<Identity>,
    agent: Option<Agent>,
    skipped: Vec<SkippedKey>,
    /// The best hash that the server accepts for RSA keys, once known.
    rsa_hash: Option<RsaHash>,
}

impl Keys {
    fn skip(&mut self, text: String) {
        self.skipped.push(SkippedKey::new(text));
    }
}

#[derive(Debug, Clone, Copy)]
enum RsaHash {
    Sha2(HashAlg),
    Sha1Only,
}

/// The credentials offered to the server.
enum OfferedKey {
    Key(PublicKey),
    Certificate(Box<Certificate>),
}

impl Login<'_> {
    /// Tries every method that the server offers and the configuration allows.
    pub(super) async fn run(mut self) -> Result<(), RetryReason> {
        // Some servers, such as Tailscale's, accept `none`. All others answer with their methods.
        let user = self.resolved.user.clone();
        let first = self.time_limit.run(self.handle.authenticate_none(user)).await;
        let mut methods = match self.check_attempt(first)?.into() {
            Outcome::LoggedIn => {
                self.context.trace(self.host, SshPhase::Login, || "none: accepted".to_owned());
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
                return Err(self.closed_error(&offered).into());
            }
            let Some(method) = self.next_method(&methods, &tried_methods) else { break };
            self.events.lock().credentials_sent = false;
            let outcome = match method {
                MethodKind::PublicKey => {
                    if keys.is_none() {
                        keys = Some(self.keys().await);
                    }
                    self.state.untried_keys = keys.as_ref().map_or(0, |keys| keys.waiting.len());
                    let identity = keys.as_mut().and_then(|keys| keys.waiting.next());
                    match (identity, keys.as_mut()) {
                        (Some(identity), Some(keys)) if self.state.offered_keys.len() < MAX_KEYS => {
                            self.state.last_key = Some(identity.label.clone());
                            self.state.untried_keys -= 1;
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
        self.trace_refused_prompts(&methods);
        let error = self.refused_error(&offered, &skipped);
        Err(if skipped.iter().any(|skipped| skipped.ssh_program_may_help) {
            RetryReason::NeedsSshProgram(error)
        } else {
            error.into()
        })
    }

    fn trace_attempt(&self, method: MethodKind, outcome: &Outcome) {
        self.context.trace(self.host, SshPhase::Login, || {
            let method = match (&method, &self.state.last_key) {
                (MethodKind::PublicKey, Some(label)) => format!("publickey {label}"),
                _ => <&str>::from(&method).to_owned(),
            };
            match outcome {
                Outcome::LoggedIn => format!("{method}: accepted"),
                Outcome::Remaining(_) => format!("{method}: refused, or not sufficient"),
                Outcome::Skipped => format!("{method}: nothing more to try"),
            }
        });
    }

    /// Names the methods that would succeed only with answers.
    fn trace_refused_prompts(&self, methods: &MethodSet) {
        if self.context.broker.can_prompt() {
            return;
        }
        let allowed = self.resolved.methods;
        let login = || self.resolved.login();
        if allowed.keyboard_interactive && methods.contains(&MethodKind::KeyboardInteractive) {
            self.trace_refused_prompt(|| RefusedPrompt::KeyboardInteractive { login: login() });
        }
        if allowed.password && methods.contains(&MethodKind::Password) {
            self.trace_refused_prompt(|| RefusedPrompt::Password { login: login() });
        }
    }

    fn trace_refused_prompt(&self, prompt: impl FnOnce() -> RefusedPrompt) {
        self.context.trace_detail(self.host, SshPhase::Login, || TraceDetail::RefusedPrompt(prompt()));
    }

    /// The first method that both sides still allow. Methods that prompt need an interactive user.
    fn next_method(&self, methods: &MethodSet, tried_methods: &[MethodKind]) -> Option<MethodKind> {
        let can_prompt = self.context.broker.can_prompt();
        let allowed = self.resolved.methods;
        [
            (MethodKind::PublicKey, allowed.public_key),
            (MethodKind::KeyboardInteractive, allowed.keyboard_interactive && can_prompt),
            (MethodKind::Password, allowed.password && can_prompt),
        ]
        .into_iter()
        .find(|(method, usable)| *usable && methods.contains(method) && !tried_methods.contains(method))
        .map(|(method, _)| method)
    }

    /// Turns an expired limit and a lost connection into errors.
    fn check_attempt<T>(&self, attempt: Result<Result<T, russh::Error>, Expired>) -> Result<T, RetryReason> {
        match attempt {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(_)) => Err(self.connection_lost_error().into()),
            Err(Expired) => Err(self.expired_error().into()),
        }
    }
}

/// Public keys and certificates (RFC 4252, section 7).
impl Login<'_> {
    /// Collects the keys from files and from the agent.
    async fn keys(&self) -> Keys {
        let resolved = self.resolved.clone();
        let reading = move || (identities::read_files(&resolved), identities::read_certificates(&resolved));
        let (files, (certificates, mut skipped)) = tokio::task::spawn_blocking(reading).await.unwrap_or_default();
        let (mut agent, mut agent_identities) = (None, Vec::new());
        if let Some(socket) = signer::agent_socket(self.context, self.resolved) {
            let binding = self.handle.agent_session_binding();
            match Agent::connect(self.context, &socket, binding, &self.time_limit, self.events).await {
                Ok((connected, identities)) => {
                    agent = Some(connected);
                    agent_identities = identities;
                }
                Err(text) => skipped.push(SkippedKey::new(text)),
            }
        }
        let mut identities = identities::order_identities(self.resolved, files, agent_identities);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        identities::add_certificates(&mut identities, certificates, now);
        skipped.extend(identities.skipped);
        Keys { waiting: identities.keys.into_iter(), agent, skipped, rsa_hash: None }
    }

    /// Offers one key.
    async fn offer(&mut self, identity: Identity, keys: &mut Keys) -> Result<Outcome, RetryReason> {
        let Some(public) = identity.public.clone() else {
            // The public key of this file is not known, so it cannot be offered before it is decrypted.
            let KeySource::EncryptedKey(encrypted) = identity.signing else { return Ok(Outcome::Skipped) };
            return match self.context.keys.unlocked(&encrypted).await {
                Some(key) => {
                    let public = Some(key.public_key().clone());
                    let decrypted = Identity { public, signing: KeySource::Key(key), label: identity.label };
                    Box::pin(self.offer(decrypted, keys)).await
                }
                None => self.passphrase_needed(encrypted, keys),
            };
        };
        let is_certificate = identity.is_certificate();
        let key_id = fingerprint(&public) + if is_certificate { " certificate" } else { "" };
        if self.state.refused_fingerprints.contains(&key_id) {
            return Ok(Outcome::Skipped);
        }
        let label = identity.label;
        let server_hash = match public.algorithm() {
            Algorithm::Rsa { .. } => match self.rsa_hash(keys).await? {
                RsaHash::Sha2(hash) => Some(hash),
                RsaHash::Sha1Only => {
                    let text = format!("{label} was not offered: the server accepts RSA with SHA-1 only");
                    let ssh_program_may_help = algorithms::wants_sha1(&self.resolved.algorithms);
                    keys.skipped.push(SkippedKey { ssh_program_may_help, ..SkippedKey::new(text) });
                    return Ok(Outcome::Skipped);
                }
            },
            _ => None,
        };
        let wanted = &self.resolved.algorithms;
        let Ok(hash) = algorithms::signature_hash(&public.algorithm(), server_hash, is_certificate, wanted) else {
            keys.skip(format!("{label} was not offered: PubkeyAcceptedAlgorithms excludes it"));
            return Ok(Outcome::Skipped);
        };
        let (offered_key, signing, plain) = match identity.signing {
            KeySource::AgentCertificate(certificate) => (OfferedKey::Certificate(certificate), KeySource::Agent, None),
            KeySource::Certificate(certificate, by) => (OfferedKey::Certificate(certificate), *by, Some(public)),
            signing => (OfferedKey::Key(public), signing, None),
        };
        let signer = match (signing, keys.agent.as_mut()) {
            (KeySource::Key(key), _) => Signer::Key(key, self.events.clone()),
            (KeySource::EncryptedKey(encrypted), _) => match self.context.keys.unlocked(&encrypted).await {
                Some(key) => Signer::Key(key, self.events.clone()),
                None => Signer::EncryptedKey(encrypted),
            },
            (_, Some(agent)) => Signer::Agent { agent, plain },
            (_, None) => {
                keys.skip(format!("{label} was not used: there is no agent with its key"));
                return Ok(Outcome::Skipped);
            }
        };
        let is_agent = matches!(signer, Signer::Agent { .. });
        match self.authenticate_with(offered_key, hash, signer).await? {
            Ok(result) => {
                if is_agent && matches!(result, AuthResult::Success) {
                    let socket = signer::agent_socket(self.context, self.resolved).unwrap_or_default();
                    self.context.trace_detail(self.host, SshPhase::Login, || TraceDetail::AgentKey(socket));
                }
                if let AuthResult::Failure { partial_success: false, .. } = &result {
                    self.state.refused_fingerprints.insert(key_id);
                    self.state.offered_keys.push(label);
                }
                Ok(result.into())
            }
            Err(SignError::ConnectionLost) => {
                self.state.offered_keys.push(label);
                Err(self.connection_lost_error().into())
            }
            Err(SignError::EncryptedKey(encrypted)) => self.passphrase_needed(encrypted, keys),
            Err(SignError::Failed(reason)) => {
                keys.skip(format!("{label} was not used: {reason}"));
                Ok(Outcome::Skipped)
            }
        }
    }

    /// Offers a key or a certificate, and signs if the server accepts it.
    async fn authenticate_with(
        &mut self,
        offered_key: OfferedKey,
        hash: Option<HashAlg>,
        mut signer: Signer<'_>,
    ) -> Result<Result<AuthResult, SignError>, RetryReason> {
        let user = self.resolved.user.clone();
        let authenticating = async {
            match offered_key {
                OfferedKey::Key(key) => self.handle.authenticate_publickey_with(user, key, hash, &mut signer).await,
                OfferedKey::Certificate(certificate) => {
                    self.handle.authenticate_certificate_with(user, *certificate, hash, &mut signer).await
                }
            }
        };
        self.time_limit.run(authenticating).await.map_err(|Expired| self.expired_error().into())
    }

    /// Ends the connection to ask for the passphrase of a key that the server accepts, or skips the key if no prompt is
    /// possible.
    fn passphrase_needed(&self, encrypted: EncryptedKey, keys: &mut Keys) -> Result<Outcome, RetryReason> {
        if self.context.broker.can_prompt() {
            return Err(RetryReason::EncryptedKey(Box::new(encrypted)));
        }
        self.trace_refused_prompt(|| RefusedPrompt::Passphrase { path: encrypted.path.display().to_string() });
        keys.skipped.push(SkippedKey {
            text: format!("{} has a passphrase, and no prompt is possible", encrypted.path.display()),
            hint: Some(format!("ssh-add {}", shell_word(&encrypted.path.to_string_lossy()))),
            is_configured: true,
            ssh_program_may_help: false,
        });
        Ok(Outcome::Skipped)
    }

    async fn rsa_hash(&self, keys: &mut Keys) -> Result<RsaHash, RetryReason> {
        if let Some(hash) = keys.rsa_hash {
            return Ok(hash);
        }
        // russh waits up to a second for the server's list of algorithms.
        let reply = self.time_limit.run(self.handle.best_supported_rsa_hash()).await;
        let hash = match self.check_attempt(reply)? {
            Some(Some(hash)) => RsaHash::Sha2(hash),
            Some(None) => RsaHash::Sha1Only,
            // A server that sends no list may still support SHA-2 (RFC 8332, section 3.3).
            None => RsaHash::Sha2(HashAlg::Sha256),
        };
        keys.rsa_hash = Some(hash);
        Ok(hash)
    }
}

/// Methods that prompt the user: keyboard-interactive (RFC 4256) and password (RFC 4252, section 8).
impl Login<'_> {
    /// Answers the questions of the server, which keeps the connection open meanwhile.
    async fn keyboard_interactive(&mut self) -> Result<Outcome, RetryReason> {
        if self.state.prompt_turn.is_none() {
            // While the user answers another login, this connection would time out. Connect again after that.
            let turn = Arc::clone(&self.context.interactive_login_lock).try_lock_owned();
            self.state.prompt_turn = Some(turn.map_err(|_| RetryReason::PromptBusy)?);
        }
        for failures in 0..self.resolved.password_prompts {
            let user = self.resolved.user.clone();
            let started = self.time_limit.run(self.handle.authenticate_keyboard_interactive_start(user, None)).await;
            let mut response = self.check_attempt(started)?;
            let login_id = self.context.broker.next_login_id();
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
                    // PAM's reason to refuse an account. After a public key, it comes as a banner instead.
                    self.events.lock().add_banner(&instruction);
                }
                for prompt in prompts {
                    let instruction = instruction.clone();
                    let kind = PromptKind::Secret { text: prompt.prompt, instruction, echo: prompt.echo, failures };
                    let _pause = self.time_limit.pause();
                    answers.push(self.prompt_user(kind, login_id).await?);
                }
                // A round without questions carries no credentials; some servers end with one.
                self.events.lock().credentials_sent |= !answers.is_empty();
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

    async fn prompt_user(&self, kind: PromptKind, login_id: u64) -> Result<String, RetryReason> {
        let key = PromptKey::Login { target: self.resolved.ssh_target(), connection: login_id };
        let asking = self.context.broker.ask(key, self.host, kind);
        let limit = self.context.options.limits.answer;
        if let Ok((_, answer)) = tokio::time::timeout(limit, asking).await.map_err(|_| RetryReason::PromptTimedOut)?
            && let Answer::Secret(secret) = &*answer
        {
            return Ok(secret.expose().to_owned());
        }
        Err(SshError::login_cancelled(&self.resolved.user).into())
    }

    async fn password(&mut self) -> Result<Outcome, RetryReason> {
        let answer = self.state.password.take();
        let Some(Answer::Secret(password)) = answer.as_deref() else { return Err(RetryReason::PasswordNeeded) };
        let user = self.resolved.user.clone();
        self.events.lock().credentials_sent = true;
        let result = self.time_limit.run(self.handle.authenticate_password(user, password.expose())).await;
        let result = self.check_attempt(result)?;
        if let AuthResult::Failure { partial_success: false, .. } = &result {
            self.state.wrong_passwords += 1;
        }
        Ok(result.into())
    }
}

/// Errors of a failed login.
impl Login<'_> {
    fn expired_error(&self) -> SshError {
        let message =
            format!("the login was not decided within {}", duration(self.time_limit.limit(), DurationStyle::Seconds));
        SshError::new(SshErrorKind::Timeout(SshPhase::Login), message)
            .with_hint("the host or its user database (LDAP, PAM) does not answer")
    }

    fn connection_lost_error(&self) -> SshError {
        self.closed_error(&MethodSet::empty())
    }

    /// The server closed the connection. sshd does so at the sixth failure, with a message.
    fn closed_error(&self, methods: &MethodSet) -> SshError {
        let recorded = self.events.lock();
        if recorded.no_auth_method_left {
            drop(recorded);
            return self.refused_error(methods, &[]);
        }
        let reason = recorded.disconnect_message.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
        if recorded.credentials_sent && !recorded.closed_by_server {
            return self.account_refused_error(recorded.banner.trim());
        }
        // sshd gives no code for this reason. Any other disconnect may be temporary.
        if !reason.contains("authentication failures") {
            let message = format!("the server closed the connection during the login{reason}");
            return SshError::new(SshErrorKind::Busy, message)
                .with_hint("sshd is restarting or has blocked this address for a while");
        }
        drop(recorded);
        let mut error = self.refused_error(methods, &[]);
        error.message = format!("{}; then it closed the connection{reason}", error.message);
        error.hint = Some(TOO_MANY_KEYS_HINT.to_owned());
        error
    }

    /// sshd accepts good credentials and then closes the connection without a disconnect message if PAM refuses the
    /// account (`pam_slurm_adopt`, `pam_access`, `pam_nologin`). The text of PAM comes as a banner.
    fn account_refused_error(&self, text: &str) -> SshError {
        let user = &self.resolved.user;
        let text = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        let (problem, hint) = if text.contains("pam_slurm_adopt") {
            (format!("no job of {user} runs here"), "gpufleet checks again every 5 minutes")
        } else {
            (
                format!("the server accepted the credentials of {user} but refuses the account"),
                "a PAM rule refuses it: logins may be closed, or require a running job of yours (pam_slurm_adopt)",
            )
        };
        let reason = if text.is_empty() { String::new() } else { format!("; the server says: {text}") };
        SshError::new(SshErrorKind::SessionRefused, format!("{problem}{reason}")).with_hint(hint)
    }

    /// No method was accepted: lists what the server accepts and what was tried.
    fn refused_error(&self, methods: &MethodSet, skipped: &[SkippedKey]) -> SshError {
        let mut parts = vec![format!("the server refused the login as {}", self.resolved.user)];
        if !methods.is_empty() {
            let accepts: Vec<&str> = methods.iter().map(<&str>::from).collect();
            parts.push(format!("it accepts {}", accepts.join(", ")));
        }
        match &self.state.offered_keys[..] {
            [] if methods.contains(&MethodKind::PublicKey) => parts.push("there was no key to offer".to_owned()),
            [] => {}
            [offered] if self.state.untried_keys == 0 => parts.push(format!("it was offered {offered}")),
            offered => {
                let keys = if offered.len() == 1 { "key" } else { "keys" };
                parts.push(format!("it was offered {} {keys}: {}", offered.len(), offered.join(", ")));
            }
        }
        match self.state.untried_keys {
            0 => {}
            1 => parts.push("1 other key was not tried".to_owned()),
            count => parts.push(format!("{count} other keys were not tried")),
        }
        let prompting = [MethodKind::KeyboardInteractive, MethodKind::Password];
        match self.state.wrong_passwords {
            0 if !self.context.broker.can_prompt() && prompting.iter().any(|method| methods.contains(method)) => {
                parts.push("no password prompt is possible".to_owned());
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
        let hint = skipped.iter().find_map(|skipped| skipped.hint.clone()).unwrap_or_else(|| {
            if self.state.untried_keys > 0 {
                return TOO_MANY_KEYS_HINT.to_owned();
            }
            let copy = format!("ssh-copy-id {}", self.resolved.ssh_target());
            if self.state.offered_keys.is_empty() {
                format!("{copy}   # after ssh-keygen -t ed25519, if there is no key yet")
            } else {
                format!("{copy}   # or name the right key: `identity_file` in hosts.toml")
            }
        });
        SshError::new(kind, message).with_hint(hint)
    }
}
