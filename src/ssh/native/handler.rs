//! What the server says of its own accord.

use super::host_key::{HostKeyDecision, HostKeyVerifier};
use crate::ssh::known_hosts::fingerprint;
use russh::Names;
use russh::client::{ChannelOpenHandle, DisconnectReason, Handler, Msg, Session};
use russh::keys::{PublicKey, PublicKeyOrCertificate};
use russh::{Channel, Error};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most that is kept of a server's banner, and of its words at the end.
const MAX_BANNER_BYTES: usize = 4096;

/// As much of the beginning of a server's words as fits into `room` bytes.
fn cut(text: &str, room: usize) -> &str {
    let end = (0..=room.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}

/// What was seen of a connection, for the errors that come of it.
#[derive(Debug, Clone, Default)]
pub(super) struct ConnectionEvents(Arc<Mutex<RecordedEvents>>);

#[derive(Debug, Default)]
pub(super) struct RecordedEvents {
    /// What became of the server's key, once it was shown.
    pub(super) decision: Option<HostKeyDecision>,
    /// The algorithms and the host key, for people.
    pub(super) negotiated: String,
    /// The text that the server shows before authentication ends.
    pub(super) banner: String,
    /// Whether a proof was sent that the server has not answered yet: a signature, a password, answers to questions.
    pub(super) proof_sent: bool,
    /// Whether the server listed no method that is left to try; russh ends such a connection.
    pub(super) no_auth_method_left: bool,
    /// The server's words as it closed the connection, or what broke it.
    pub(super) disconnect_message: Option<String>,
    /// Whether those are the server's.
    pub(super) closed_by_server: bool,
}

impl ConnectionEvents {
    pub(super) fn lock(&self) -> MutexGuard<'_, RecordedEvents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecordedEvents {
    /// Keeps what the server tells the person, as far as there is room.
    pub(super) fn add_banner(&mut self, text: &str) {
        let room = MAX_BANNER_BYTES.saturating_sub(self.banner.len());
        self.banner.push_str(cut(text, room));
    }
}

/// russh's view of us.
pub(super) struct ClientHandler {
    verifier: HostKeyVerifier,
    events: ConnectionEvents,
}

impl ClientHandler {
    pub(super) fn new(verifier: HostKeyVerifier, events: ConnectionEvents) -> Self {
        Self { verifier, events }
    }
}

impl Handler for ClientHandler {
    type Error = Error;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, Error> {
        let decision = match shown {
            PublicKeyOrCertificate::PublicKey { key, .. } => self.verifier.verify_key(key),
            PublicKeyOrCertificate::Certificate(certificate) => self.verifier.verify_certificate(certificate),
        };
        if let HostKeyDecision::Accepted { .. } = &decision {
            self.events.lock().negotiated = match shown {
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
        let accepted = matches!(decision, HostKeyDecision::Accepted { .. });
        self.events.lock().decision = Some(decision);
        Ok(accepted)
    }

    async fn kex_done(&mut self, _: Option<&[u8]>, names: &Names, _: &mut Session) -> Result<(), Error> {
        let negotiated = &mut self.events.lock().negotiated;
        // A later exchange on the same connection tells nothing new.
        if !negotiated.contains(';') {
            *negotiated = format!("{}, {}; {negotiated}", names.kex.as_ref(), names.cipher.as_ref());
        }
        Ok(())
    }

    async fn auth_banner(&mut self, banner: &str, _: &mut Session) -> Result<(), Error> {
        self.events.lock().add_banner(banner);
        Ok(())
    }

    async fn disconnected(&mut self, reason: DisconnectReason<Error>) -> Result<(), Error> {
        let closed_by_server = matches!(reason, DisconnectReason::ReceivedDisconnect(_));
        let (text, result) = match reason {
            DisconnectReason::ReceivedDisconnect(info) => (Some(info.message), Ok(())),
            DisconnectReason::Error(Error::Disconnect | Error::HUP) => (None, Ok(())),
            DisconnectReason::Error(error) => (Some(error.to_string()), Err(error)),
        };
        let mut recorded = self.events.lock();
        recorded.closed_by_server = closed_by_server;
        recorded.no_auth_method_left = matches!(result, Err(Error::NoAuthMethod));
        recorded.disconnect_message =
            text.filter(|text| !text.trim().is_empty()).map(|text| cut(&text, MAX_BANNER_BYTES).to_owned());
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
        let mut recorded = RecordedEvents::default();
        (0..3).for_each(|_| recorded.add_banner(&"ä".repeat(1000)));
        assert_eq!(recorded.banner.len(), MAX_BANNER_BYTES);
        assert_eq!(cut("aä", 2), "a");
    }
}
