//! Authentication, in OpenSSH's order: none, keys, keyboard-interactive, password.

use super::agent::{self, Agent};
use super::algorithms;
use super::candidates::{self, Candidate, Candidates, Note, Signing};
use super::certificates;
use super::handler::{Client, Witness};
use super::memory::{Memory, Setback};
use super::signer::{ByAgent, ByKey, Unsigned};
use crate::ssh::Context;
use crate::ssh::credentials::{Locked, PromptKey};
use crate::ssh::known_hosts::fingerprint;
use crate::ssh::prompt::{Answer, PromptKind};
use crate::ssh::resolve::Resolved;
use crate::ssh::stopwatch::{Expired, Stopwatch};
use crate::ssh::text::{seconds, shell_word, ssh_target};
use crate::ssh::transport::{SshError, SshErrorKind, SshPhase};
use russh::client::{AuthResult, Handle, KeyboardInteractiveAuthResponse};
use russh::keys::agent::AgentIdentity;
use russh::keys::{Algorithm, Certificate, HashAlg, PrivateKey, PublicKey};
use russh::{MethodKind, MethodSet, SendError};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// sshd ends the connection at the sixth refused key (`MaxAuthTries 6`).
const MOST_KEYS: usize = 6;

/// How long a server may wait for an approval (a push to a telephone) after an answer.
const APPROVAL: Duration = Duration::from_secs(90);

/// No server asks more rounds of questions for one login.
const MOST_ROUNDS: usize = 16;

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

/// What became of a certificate.
enum Shown {
    Answered(AuthResult),
    /// The server would take it, but its key needs its passphrase.
    Locked(Locked),
    /// It could not be used; the reason in words.
    Unsigned(String),
}

/// What is known of the keys of this login.
struct Keys {
    waiting: std::vec::IntoIter<Candidate>,
    agent: Option<Agent>,
    notes: Vec<Note>,
    /// The best hash the server takes from RSA keys, once asked for.
    rsa_hash: Option<RsaHash>,
}

/// RFC 8332.
#[derive(Debug, Clone, Copy)]
enum RsaHash {
    Sha2(HashAlg),
    Sha1Only,
}

/// Signs nothing: used to learn whether the server would take a key before its passphrase is asked for.
struct NoSigner;

/// Why that signer does not sign.
enum Unlocked {
    /// The server would take the key.
    Wanted,
    Lost,
}

impl From<SendError> for Unlocked {
    fn from(_: SendError) -> Self {
        Self::Lost
    }
}

impl russh::Signer for NoSigner {
    type Error = Unlocked;

    async fn auth_sign(&mut self, _: &AgentIdentity, _: Option<HashAlg>, _: Vec<u8>) -> Result<Vec<u8>, Unlocked> {
        Err(Unlocked::Wanted)
    }
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

    async fn keys(&self) -> Keys {
        let resolved = self.resolved.clone();
        let reading = move || (candidates::read_files(&resolved), certificates::read(&resolved));
        let (files, (certificates, mut notes)) = tokio::task::spawn_blocking(reading).await.unwrap_or_default();
        let (mut agent, mut identities) = (None, Vec::new());
        if let Some(socket) = agent::socket(self.context, self.resolved) {
            let binding = self.handle.agent_session_binding();
            match Agent::connect(self.context, &socket, binding, &self.watch, self.witness).await {
                Ok((connected, held)) => {
                    agent = Some(connected);
                    identities = held;
                }
                Err(text) => notes.push(Note::of(text)),
            }
        }
        let mut candidates: Candidates = candidates::order(self.resolved, files, identities);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        candidates::certify(&mut candidates, certificates, now);
        notes.extend(candidates.notes);
        Keys { waiting: candidates.keys.into_iter(), agent, notes, rsa_hash: None }
    }

    /// Offers one key.
    async fn offer(&mut self, candidate: Candidate, keys: &mut Keys) -> Result<Outcome, Setback> {
        let Some(public) = candidate.public.clone() else {
            // A locked file that tells nothing: only its passphrase can tell whether it is any use.
            let Signing::Locked(locked) = candidate.signing else { return Ok(Outcome::Skipped) };
            return match self.context.keys.unlocked(&locked).await {
                Some(key) => {
                    let public = Some(key.public_key().clone());
                    let opened = Candidate { public, signing: Signing::Key(key), label: candidate.label };
                    Box::pin(self.offer(opened, keys)).await
                }
                None => self.locked(locked, keys),
            };
        };
        let print = if candidate.is_certificate() {
            format!("{} certificate", fingerprint(&public))
        } else {
            fingerprint(&public)
        };
        if self.memory.refused.contains(&print) {
            return Ok(Outcome::Skipped);
        }
        let servers = match public.algorithm() {
            Algorithm::Rsa { .. } => match self.rsa_hash(keys).await? {
                RsaHash::Sha2(hash) => Some(hash),
                RsaHash::Sha1Only => {
                    let text = format!("{} was not offered: the server takes RSA with SHA-1 only", candidate.label);
                    let by_ssh = algorithms::wants_sha1(&self.resolved.algorithms);
                    keys.notes.push(Note { by_ssh, ..Note::of(text) });
                    return Ok(Outcome::Skipped);
                }
            },
            _ => None,
        };
        let wanted = &self.resolved.algorithms;
        let Ok(hash) = algorithms::signature(&public.algorithm(), servers, candidate.is_certificate(), wanted) else {
            let text = format!("{} was not offered: PubkeyAcceptedAlgorithms leaves it out", candidate.label);
            keys.notes.push(Note::of(text));
            return Ok(Outcome::Skipped);
        };
        let user = self.resolved.user.clone();
        let result = match (candidate.signing, keys.agent.as_mut()) {
            (Signing::Key(key), _) => match self.by_key(key, public, hash).await? {
                Ok(result) => result,
                Err(why) => {
                    keys.notes.push(Note::of(format!("{} was not used: {why}", candidate.label)));
                    return Ok(Outcome::Skipped);
                }
            },
            (Signing::Locked(locked), _) => {
                if let Some(key) = self.context.keys.unlocked(&locked).await {
                    let opened = Candidate { signing: Signing::Key(key), public: Some(public), label: candidate.label };
                    return Box::pin(self.offer(opened, keys)).await;
                }
                let mut signer = NoSigner;
                let asking = self.handle.authenticate_publickey_with(user, public, hash, &mut signer);
                match self.watch.run(asking).await {
                    Ok(Ok(result)) => result,
                    Ok(Err(Unlocked::Wanted)) => return self.locked(locked, keys),
                    Ok(Err(Unlocked::Lost)) => return Err(self.lost().into()),
                    Err(Expired) => return Err(self.expired().into()),
                }
            }
            (Signing::Certificate(certificate, by), agent) => {
                match self.certificate(*certificate, *by, agent, hash).await? {
                    Shown::Answered(result) => result,
                    Shown::Locked(locked) => return self.locked(locked, keys),
                    Shown::Unsigned(why) => {
                        let text = format!("{} was not used: {why}", candidate.label);
                        keys.notes.push(Note::of(text));
                        return Ok(Outcome::Skipped);
                    }
                }
            }
            (signing, Some(agent)) => {
                let asking = async {
                    match signing {
                        Signing::AgentCertificate(certificate) => {
                            self.handle.authenticate_certificate_with(user, *certificate, hash, agent).await
                        }
                        _ => self.handle.authenticate_publickey_with(user, public, hash, agent).await,
                    }
                };
                match self.watch.run(asking).await {
                    Ok(Ok(result)) => result,
                    Ok(Err(error)) => {
                        let text = format!("the agent did not sign with {}: {error}", candidate.label);
                        keys.notes.push(Note::of(text));
                        return Ok(Outcome::Skipped);
                    }
                    Err(Expired) => return Err(self.expired().into()),
                }
            }
            (_, None) => return Ok(Outcome::Skipped),
        };
        if let AuthResult::Failure { partial_success: false, .. } = &result {
            self.memory.refused.insert(print);
            self.memory.offered.push(candidate.label);
        }
        Ok(outcome(result))
    }

    /// Shows a key that is in memory. `Err` in the answer says in words why it did not sign.
    async fn by_key(
        &mut self,
        key: Arc<PrivateKey>,
        public: PublicKey,
        hash: Option<HashAlg>,
    ) -> Result<Result<AuthResult, String>, Setback> {
        let user = self.resolved.user.clone();
        let mut signer = ByKey { key, witness: self.witness.clone() };
        let asking = self.handle.authenticate_publickey_with(user, public, hash, &mut signer);
        match self.watch.run(asking).await {
            Ok(Ok(result)) => Ok(Ok(result)),
            Ok(Err(Unsigned::Failed(why))) => Ok(Err(why)),
            Ok(Err(Unsigned::Lost)) => Err(self.lost().into()),
            Err(Expired) => Err(self.expired().into()),
        }
    }

    /// Shows a certificate from a file; its key signs, wherever it is.
    async fn certificate(
        &mut self,
        certificate: Certificate,
        by: Signing,
        agent: Option<&mut Agent>,
        hash: Option<HashAlg>,
    ) -> Result<Shown, Setback> {
        let user = self.resolved.user.clone();
        let key = match (by, agent) {
            (Signing::Key(key), _) => key,
            (Signing::Locked(locked), _) => {
                if let Some(key) = self.context.keys.unlocked(&locked).await {
                    key
                } else {
                    let mut signer = NoSigner;
                    let asking = self.handle.authenticate_certificate_with(user, certificate, hash, &mut signer);
                    return match self.watch.run(asking).await {
                        Ok(Ok(result)) => Ok(Shown::Answered(result)),
                        Ok(Err(Unlocked::Wanted)) => Ok(Shown::Locked(locked)),
                        Ok(Err(Unlocked::Lost)) => Err(self.lost().into()),
                        Err(Expired) => Err(self.expired().into()),
                    };
                }
            }
            (_, Some(agent)) => {
                let mut signer = ByAgent { agent, key: certificate.public_key().clone().into() };
                let asking = self.handle.authenticate_certificate_with(user, certificate, hash, &mut signer);
                return match self.watch.run(asking).await {
                    Ok(Ok(result)) => Ok(Shown::Answered(result)),
                    Ok(Err(error)) => Ok(Shown::Unsigned(format!("the agent did not sign: {error}"))),
                    Err(Expired) => Err(self.expired().into()),
                };
            }
            (_, None) => return Ok(Shown::Unsigned("its key is in no agent".to_owned())),
        };
        let mut signer = ByKey { key, witness: self.witness.clone() };
        let asking = self.handle.authenticate_certificate_with(user, certificate, hash, &mut signer);
        match self.watch.run(asking).await {
            Ok(Ok(result)) => Ok(Shown::Answered(result)),
            Ok(Err(Unsigned::Failed(why))) => Ok(Shown::Unsigned(why)),
            Ok(Err(Unsigned::Lost)) => Err(self.lost().into()),
            Err(Expired) => Err(self.expired().into()),
        }
    }

    /// A key that the server would take, but that needs its passphrase.
    fn locked(&self, locked: Locked, keys: &mut Keys) -> Result<Outcome, Setback> {
        if self.context.broker.can_ask() {
            return Err(Setback::Locked(Box::new(locked)));
        }
        keys.notes.push(Note {
            text: format!("{} is locked by a passphrase, and nobody could be asked", locked.path.display()),
            hint: Some(format!("ssh-add {}", shell_word(&locked.path.to_string_lossy()))),
            own: true,
            by_ssh: false,
        });
        Ok(Outcome::Skipped)
    }

    async fn rsa_hash(&self, keys: &mut Keys) -> Result<RsaHash, Setback> {
        if let Some(hash) = keys.rsa_hash {
            return Ok(hash);
        }
        // It may wait a second for the server to tell.
        let told = self.watch.run(self.handle.best_supported_rsa_hash()).await;
        let hash = match self.settled(told)? {
            Some(Some(hash)) => RsaHash::Sha2(hash),
            Some(None) => RsaHash::Sha1Only,
            // A server that tells nothing may still know SHA-2 (RFC 8332, section 3.3).
            None => RsaHash::Sha2(HashAlg::Sha256),
        };
        keys.rsa_hash = Some(hash);
        Ok(hash)
    }

    /// Questions of the server's. They can only be asked while it waits for the answers.
    async fn keyboard_interactive(&mut self) -> Result<Outcome, Setback> {
        if self.memory.turn.is_none() {
            // Another login's dialog is open: this connection would wait for it in vain, and is made anew then.
            let turn = Arc::clone(&self.context.typing).try_lock_owned();
            self.memory.turn = Some(turn.map_err(|_| Setback::Turn)?);
        }
        for failures in 0..self.resolved.password_prompts {
            let user = self.resolved.user.clone();
            let started = self.watch.run(self.handle.authenticate_keyboard_interactive_start(user, None)).await;
            let mut response = self.settled(started)?;
            let number = self.context.broker.number();
            for _ in 0..MOST_ROUNDS {
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
                    self.witness.seen().add_banner(&instruction);
                }
                for prompt in prompts {
                    let instruction = instruction.clone();
                    let kind = PromptKind::Secret { text: prompt.prompt, instruction, echo: prompt.echo, failures };
                    let _pause = self.watch.pause();
                    answers.push(self.question(kind, number).await?);
                }
                // A round without questions proves nothing: some servers end with one.
                self.witness.seen().proven |= !answers.is_empty();
                let responding = self.handle.authenticate_keyboard_interactive_respond(answers);
                let answered = {
                    let _pause = self.watch.pause();
                    tokio::time::timeout(APPROVAL, responding).await.map_err(|_| Expired)
                };
                response = self.settled(answered)?;
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

    async fn question(&self, kind: PromptKind, number: u64) -> Result<String, Setback> {
        let target = ssh_target(&self.resolved.user, &self.resolved.hostname, self.resolved.port);
        let key = PromptKey::Login { target, connection: number };
        let asking = self.context.broker.ask(key, self.host, kind);
        let limit = self.context.options.limits.answer;
        match tokio::time::timeout(limit, asking).await.map_err(|_| Setback::Unattended)? {
            Ok((_, answer)) => match &*answer {
                Answer::Secret(secret) => Ok(secret.expose().to_owned()),
                _ => Err(declined(self.resolved).into()),
            },
            Err(_) => Err(declined(self.resolved).into()),
        }
    }

    async fn password(&mut self) -> Result<Outcome, Setback> {
        let answer = self.memory.password.take();
        let Some(Answer::Secret(password)) = answer.as_deref() else { return Err(Setback::Password) };
        let user = self.resolved.user.clone();
        self.witness.seen().proven = true;
        let result = self.watch.run(self.handle.authenticate_password(user, password.expose())).await;
        let result = self.settled(result)?;
        if let AuthResult::Failure { partial_success: false, .. } = &result {
            self.memory.wrong_passwords += 1;
        }
        Ok(outcome(result))
    }

    /// Turns a limit that is over and a connection that is gone into errors.
    fn settled<T>(&self, attempt: Result<Result<T, russh::Error>, Expired>) -> Result<T, Setback> {
        match attempt {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(_)) => Err(self.lost().into()),
            Err(Expired) => Err(self.expired().into()),
        }
    }

    fn expired(&self) -> SshError {
        let message = format!("the login was not decided within {}", seconds(self.watch.limit()));
        SshError::new(SshErrorKind::Timeout(SshPhase::Login), message)
            .with_hint("the host or its user database (LDAP, PAM) does not answer")
    }

    fn lost(&self) -> SshError {
        self.closed(&MethodSet::empty())
    }

    /// The server closed the connection. sshd does that at the sixth failure, with a word about it.
    fn closed(&self, methods: &MethodSet) -> SshError {
        let seen = self.witness.seen();
        if seen.no_method_left {
            drop(seen);
            return self.refused(methods, &[]);
        }
        let said = seen.farewell.as_deref().map(|words| format!(": {words}")).unwrap_or_default();
        if seen.proven && !seen.took_leave {
            return self.account_refused(seen.banner.trim());
        }
        // Only a server that names the reason has decided; anything else may go better next time.
        if !said.contains("authentication failures") {
            let message = format!("the server closed the connection during the login{said}");
            return SshError::new(SshErrorKind::Busy, message)
                .with_hint("sshd is restarting or has blocked this address for a while");
        }
        drop(seen);
        let mut error = self.refused(methods, &[]);
        error.message = format!("{}; then it closed the connection{said}", error.message);
        error.hint = Some("`identity_file` in hosts.toml names the key that is offered first".to_owned());
        error
    }

    /// sshd takes a good proof and closes the connection without a word of its own where PAM refuses the account
    /// (`pam_slurm_adopt`, `pam_access`, `pam_nologin`). What PAM has to say comes as a banner.
    fn account_refused(&self, words: &str) -> SshError {
        let user = &self.resolved.user;
        let words = words.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        let (what, hint) = if words.contains("pam_slurm_adopt") {
            (format!("no job of {user} runs here"), "it is looked at again every 5 minutes")
        } else {
            (
                format!("the server took the proof of {user} and refuses the account"),
                "a rule of its PAM: a closed machine, or one that wants a job of yours to run there (pam_slurm_adopt)",
            )
        };
        let said = if words.is_empty() { String::new() } else { format!("; the server says: {words}") };
        SshError::new(SshErrorKind::Refusal, format!("{what}{said}")).with_hint(hint)
    }

    /// Nothing was accepted: what the server would take, what it was offered, what might help.
    fn refused(&self, methods: &MethodSet, notes: &[Note]) -> SshError {
        let Resolved { user, hostname, port, .. } = self.resolved;
        let mut parts = vec![format!("the server refused the login as {user}")];
        if !methods.is_empty() {
            let accepts: Vec<&str> = methods.iter().map(<&str>::from).collect();
            parts.push(format!("it accepts {}", accepts.join(", ")));
        }
        match &self.memory.offered[..] {
            [] if methods.contains(&MethodKind::PublicKey) => parts.push("there was no key to offer".to_owned()),
            [] => {}
            offered => parts.push(format!("it was offered {}", offered.join(", "))),
        }
        let asks = [MethodKind::KeyboardInteractive, MethodKind::Password];
        match self.memory.wrong_passwords {
            0 if !self.context.broker.can_ask() && asks.iter().any(|method| methods.contains(method)) => {
                parts.push("nobody could be asked for a password".to_owned());
            }
            0 => {}
            times => parts.push(format!("the password was wrong {times} times")),
        }
        parts.extend(notes.iter().map(|note| note.text.clone()));
        let banner = self.witness.seen().banner.trim().to_owned();
        if !banner.is_empty() {
            parts.push(format!("the server says: {banner}"));
        }
        let message = parts.join("; ");
        let kind =
            if notes.iter().any(|note| note.own) { SshErrorKind::IdentityFile } else { SshErrorKind::Authentication };
        let target = ssh_target(user, hostname, *port);
        let hint = notes.iter().find_map(|note| note.hint.clone()).unwrap_or_else(|| {
            let copy = format!("ssh-copy-id {target}");
            if self.memory.offered.is_empty() {
                format!("{copy}   # after ssh-keygen -t ed25519, if there is no key yet")
            } else {
                format!("{copy}   # or name the right key: `identity_file` in hosts.toml")
            }
        });
        SshError::new(kind, message).with_hint(hint)
    }
}

fn outcome(result: AuthResult) -> Outcome {
    match result {
        AuthResult::Success => Outcome::LoggedIn,
        AuthResult::Failure { remaining_methods, .. } => Outcome::Remaining(remaining_methods),
    }
}

/// The person said no.
pub(super) fn declined(resolved: &Resolved) -> SshError {
    SshError::new(SshErrorKind::Declined, format!("the login as {} was given up at the prompt", resolved.user))
}
