//! What the server says of its own accord.

use super::host_key::{Judge, Ruling};
use crate::ssh::known_hosts::fingerprint;
use russh::Names;
use russh::client::{ChannelOpenHandle, DisconnectReason, Handler, Msg, Session};
use russh::keys::{PublicKey, PublicKeyOrCertificate};
use russh::{Channel, Error};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most that is kept of a server's banner, and of its words at the end.
const MAX_BANNER_BYTES: usize = 4096;

/// As much of the beginning of a server's words as fits into `room` bytes.
fn cut(words: &str, room: usize) -> &str {
    let end = (0..=room.min(words.len())).rev().find(|end| words.is_char_boundary(*end)).unwrap_or(0);
    &words[..end]
}

/// What was seen of a connection, for the errors that come of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Witness(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
pub(super) struct Seen {
    /// What became of the server's key, once it was shown.
    pub(super) ruling: Option<Ruling>,
    /// The algorithms and the host key, for people.
    pub(super) agreed: String,
    /// The text that the server shows before authentication ends.
    pub(super) banner: String,
    /// Whether a proof was sent that the server has not answered yet: a signature, a password, answers to questions.
    pub(super) proven: bool,
    /// Whether the server listed no method that is left to try; russh ends such a connection.
    pub(super) no_method_left: bool,
    /// The server's words as it closed the connection, or what broke it.
    pub(super) farewell: Option<String>,
    /// Whether those are the server's.
    pub(super) took_leave: bool,
}

impl Witness {
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// Keeps what the server tells the person, as far as there is room.
    pub(super) fn add_banner(&mut self, words: &str) {
        let room = MAX_BANNER_BYTES.saturating_sub(self.banner.len());
        self.banner.push_str(cut(words, room));
    }
}

/// russh's view of us.
pub(super) struct Client {
    judge: Judge,
    witness: Witness,
}

impl Client {
    pub(super) fn new(judge: Judge, witness: Witness) -> Self {
        Self { judge, witness }
    }
}

impl Handler for Client {
    type Error = Error;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, Error> {
        let ruling = match shown {
            PublicKeyOrCertificate::PublicKey { key, .. } => self.judge.rule(key),
            PublicKeyOrCertificate::Certificate(certificate) => self.judge.rule_certificate(certificate),
        };
        if let Ruling::Accepted { .. } = &ruling {
            self.witness.seen().agreed = match shown {
                PublicKeyOrCertificate::PublicKey { key, .. } => {
                    format!("host key {} {}", key.algorithm().as_str(), fingerprint(key))
                }
                PublicKeyOrCertificate::Certificate(certificate) => {
                    let key = PublicKey::from(certificate.public_key().clone());
                    format!(
                        "host certificate {:?}, {} {}",
                        certificate.key_id(),
                        key.algorithm().as_str(),
                        fingerprint(&key)
                    )
                }
            };
        }
        let accepted = matches!(ruling, Ruling::Accepted { .. });
        self.witness.seen().ruling = Some(ruling);
        Ok(accepted)
    }

    async fn kex_done(&mut self, _: Option<&[u8]>, names: &Names, _: &mut Session) -> Result<(), Error> {
        let agreed = &mut self.witness.seen().agreed;
        // A later exchange on the same connection tells nothing new.
        if !agreed.contains(';') {
            *agreed = format!("{}, {}; {agreed}", names.kex.as_ref(), names.cipher.as_ref());
        }
        Ok(())
    }

    async fn auth_banner(&mut self, banner: &str, _: &mut Session) -> Result<(), Error> {
        self.witness.seen().add_banner(banner);
        Ok(())
    }

    async fn disconnected(&mut self, reason: DisconnectReason<Error>) -> Result<(), Error> {
        let took_leave = matches!(reason, DisconnectReason::ReceivedDisconnect(_));
        let (words, result) = match reason {
            DisconnectReason::ReceivedDisconnect(info) => (Some(info.message), Ok(())),
            DisconnectReason::Error(Error::Disconnect | Error::HUP) => (None, Ok(())),
            DisconnectReason::Error(error) => (Some(error.to_string()), Err(error)),
        };
        let mut seen = self.witness.seen();
        seen.took_leave = took_leave;
        seen.no_method_left = matches!(result, Err(Error::NoAuthMethod));
        seen.farewell =
            words.filter(|words| !words.trim().is_empty()).map(|words| cut(&words, MAX_BANNER_BYTES).to_owned());
        result
    }

    // russh accepts channels that a server opens unless told otherwise. We ask for no forwarding of any kind, so every
    // such channel is an attempt at something; dropping the reply refuses it.

    async fn server_channel_open_forwarded_tcpip(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_forwarded_streamlocal(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_agent_forward(
        &mut self,
        _: Channel<Msg>,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_session(
        &mut self,
        _: Channel<Msg>,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_direct_tcpip(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_direct_streamlocal(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_x11(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_server_are_cut() {
        let mut seen = Seen::default();
        (0..3).for_each(|_| seen.add_banner(&"ä".repeat(1000)));
        assert_eq!(seen.banner.len(), MAX_BANNER_BYTES);
        assert_eq!(cut("aä", 2), "a");
    }
}
