//! What is proposed to a server.

use russh::client::{Config, GexParams};
use russh::keys::{Algorithm, EcdsaCurve, HashAlg};
use russh::{Preferred, SshId, cipher, compression, kex, mac};
use std::borrow::Cow;
use std::time::Duration;

/// Key exchanges, fastest of the sound ones first. The NIST curves stand before the groups: a server without
/// curve25519 would else cost half a second of computing.
const KEY_EXCHANGES: &[kex::Name] = &[
    kex::MLKEM768X25519_SHA256,
    kex::CURVE25519,
    kex::CURVE25519_PRE_RFC_8731,
    kex::ECDH_SHA2_NISTP256,
    kex::ECDH_SHA2_NISTP384,
    kex::ECDH_SHA2_NISTP521,
    kex::DH_GEX_SHA256,
    kex::DH_G14_SHA256,
    kex::DH_G16_SHA512,
    kex::DH_G18_SHA512,
    kex::EXTENSION_SUPPORT_AS_CLIENT,
    kex::EXTENSION_OPENSSH_STRICT_KEX_AS_CLIENT,
];

/// How often a silent server is asked for a sign of life, unless the ssh configuration wants it more often.
const KEEPALIVE: Duration = Duration::from_secs(15);

const CIPHERS: &[cipher::Name] = &[
    cipher::CHACHA20_POLY1305,
    cipher::AES_128_GCM,
    cipher::AES_256_GCM,
    cipher::AES_128_CTR,
    cipher::AES_192_CTR,
    cipher::AES_256_CTR,
];

const MACS: &[mac::Name] = &[mac::HMAC_SHA256_ETM, mac::HMAC_SHA512_ETM, mac::HMAC_SHA256, mac::HMAC_SHA512];

/// Host keys that are accepted; ssh-rsa with SHA-1 is not among them, as in OpenSSH since 8.8.
fn host_keys() -> Vec<Algorithm> {
    vec![
        Algorithm::Ed25519,
        Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 },
        Algorithm::Ecdsa { curve: EcdsaCurve::NistP384 },
        Algorithm::Ecdsa { curve: EcdsaCurve::NistP521 },
        Algorithm::Rsa { hash: Some(HashAlg::Sha512) },
        Algorithm::Rsa { hash: Some(HashAlg::Sha256) },
    ]
}

/// The accepted types, those that are known for the host first: a host known by one type shall show that key.
fn known_first(known: &[Algorithm]) -> Vec<Algorithm> {
    let is_known = |algorithm: &Algorithm| {
        known.iter().any(|known| {
            known == algorithm || matches!((known, algorithm), (Algorithm::Rsa { .. }, Algorithm::Rsa { .. }))
        })
    };
    let (mut first, rest): (Vec<_>, Vec<_>) = host_keys().into_iter().partition(is_known);
    first.extend(rest);
    first
}

/// What differs from one connection to another.
#[derive(Debug, Clone, Default)]
pub(super) struct Wishes {
    /// The types of which keys are known for the host.
    pub(super) known: Vec<Algorithm>,
    /// Whether an authority is known that may vouch for the host: nothing else makes a certificate worth asking for.
    pub(super) certificates: bool,
    /// What the ssh configuration says of signs of life.
    pub(super) keepalive: Option<(Duration, u32)>,
    /// Whether other connections run through this one.
    pub(super) carries_others: bool,
}

/// The configuration of one connection.
pub(super) fn config(wishes: &Wishes) -> Result<Config, russh::Error> {
    let (interval, count) = wishes.keepalive.unwrap_or((KEEPALIVE, 3));
    Ok(Config {
        client_id: SshId::Standard(Cow::Borrowed(concat!("SSH-2.0-gpufleet_", env!("CARGO_PKG_VERSION")))),
        // Small: russh's defaults hold 3 MiB a channel, and our lines are some kilobytes. A jump host's channels hold
        // more, so that one host that is slow to read does not soon stop the others.
        window_size: 256 * 1024,
        channel_buffer_size: if wishes.carries_others { 64 } else { 8 },
        preferred: Preferred {
            kex: Cow::Borrowed(KEY_EXCHANGES),
            key: Cow::Owned(known_first(&wishes.known)),
            host_key_certificates: if wishes.certificates { Cow::Owned(host_keys()) } else { Cow::Borrowed(&[]) },
            cipher: Cow::Borrowed(CIPHERS),
            mac: Cow::Borrowed(MACS),
            // A few bytes may unpack to gigabytes before anything is checked (CVE-2026-46702).
            compression: Cow::Borrowed(&[compression::NONE]),
        },
        // The second net: keepalives alone do not notice a write that blocks.
        inactivity_timeout: Some(Duration::from_secs(60)),
        keepalive_interval: Some(interval.min(KEEPALIVE)),
        keepalive_max: count.clamp(1, 3) as usize,
        gex: GexParams::new(2048, 3072, 8192)?,
        nodelay: true,
        ..Config::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_types_come_first_and_none_is_lost() {
        let rsa = Algorithm::Rsa { hash: None };
        let order = known_first(&[rsa]);
        let names: Vec<_> = order.iter().map(Algorithm::as_str).collect();
        assert_eq!(
            names,
            [
                "rsa-sha2-512",
                "rsa-sha2-256",
                "ssh-ed25519",
                "ecdsa-sha2-nistp256",
                "ecdsa-sha2-nistp384",
                "ecdsa-sha2-nistp521"
            ]
        );
        assert_eq!(known_first(&[]), host_keys());
        assert!(config(&Wishes::default()).unwrap().preferred.host_key_certificates.is_empty());
    }

    #[test]
    fn the_configuration_may_ask_for_signs_of_life_more_often_only() {
        let seconds = |keepalive| {
            let config = config(&Wishes { keepalive, ..Wishes::default() }).unwrap();
            (config.keepalive_interval.unwrap().as_secs(), config.keepalive_max)
        };
        assert_eq!(seconds(None), (15, 3));
        assert_eq!(seconds(Some((Duration::from_secs(5), 2))), (5, 2));
        assert_eq!(seconds(Some((Duration::from_secs(300), 10))), (15, 3));
    }
}
