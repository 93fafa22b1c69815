//! The algorithms and limits that the built-in client proposes to a server.

use crate::ssh::resolve::{Algorithms, Resolved};
use russh::client::{Config, GexParams};
use russh::keys::{Algorithm, EcdsaCurve, HashAlg};
use russh::{Preferred, SshId, cipher, compression, kex, mac};
use std::borrow::Cow;
use std::time::Duration;

/// Key exchanges, the fastest first. The NIST curves precede the finite-field groups, which cost half a second of CPU
/// with a server that lacks curve25519.
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
];

/// Markers in the list of key exchanges: request the server's signature algorithms (RFC 8308), and strict key exchange
/// against the Terrapin attack (CVE-2023-48795).
const EXTENSIONS: &[kex::Name] = &[kex::EXTENSION_SUPPORT_AS_CLIENT, kex::EXTENSION_OPENSSH_STRICT_KEX_AS_CLIENT];

const CIPHERS: &[cipher::Name] = &[
    cipher::CHACHA20_POLY1305,
    cipher::AES_128_GCM,
    cipher::AES_256_GCM,
    cipher::AES_128_CTR,
    cipher::AES_192_CTR,
    cipher::AES_256_CTR,
];

const MACS: &[mac::Name] = &[mac::HMAC_SHA256_ETM, mac::HMAC_SHA512_ETM, mac::HMAC_SHA256, mac::HMAC_SHA512];

/// The accepted host key types. As in OpenSSH since 8.8, ssh-rsa with SHA-1 is not one of them.
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

/// Our algorithms that the configuration lists, in its order; all of ours if it has no list.
fn filter_configured<T: Clone>(ours: &[T], wanted: Option<&Vec<String>>, name: impl Fn(&T) -> String) -> Vec<T> {
    let Some(wanted) = wanted else { return ours.to_vec() };
    wanted.iter().filter_map(|wanted| ours.iter().find(|one| name(one) == *wanted).cloned()).collect()
}

/// The first setting that this client cannot follow, as spelled in ssh_config.
pub(in crate::ssh) fn unsupported_setting(resolved: &Resolved) -> Option<String> {
    let setting = resolved.native_unsupported.clone();
    setting.or_else(|| setting_without_common_algorithm(&resolved.algorithms).map(str::to_owned))
}

/// The first setting that lists none of our algorithms.
fn setting_without_common_algorithm(wanted: &Algorithms) -> Option<&'static str> {
    [
        ("HostKeyAlgorithms", &wanted.host_keys, host_keys().iter().map(plain).collect::<Vec<_>>()),
        ("KexAlgorithms", &wanted.key_exchanges, KEY_EXCHANGES.iter().map(text).collect()),
        ("Ciphers", &wanted.ciphers, CIPHERS.iter().map(text).collect()),
        ("MACs", &wanted.macs, MACS.iter().map(text).collect()),
    ]
    .into_iter()
    .find(|(_, list, ours)| list.as_ref().is_some_and(|list| !list.iter().any(|wanted| ours.contains(wanted))))
    .map(|(setting, ..)| setting)
}

/// The configuration does not allow the key to sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AlgorithmNotAllowed;

/// The hash with which a key signs, if the configuration allows the key. For RSA it is the server's choice, or SHA-256
/// if the configuration lists only that. For all other types it is `None`.
pub(super) fn signature_hash(
    key: &Algorithm,
    server: Option<HashAlg>,
    is_certificate: bool,
    wanted: &Algorithms,
) -> Result<Option<HashAlg>, AlgorithmNotAllowed> {
    let hashes = match (key, server) {
        (Algorithm::Rsa { .. }, Some(HashAlg::Sha512)) => vec![Some(HashAlg::Sha512), Some(HashAlg::Sha256)],
        (Algorithm::Rsa { .. }, _) => vec![server],
        _ => vec![None],
    };
    let Some(wanted) = &wanted.public_keys else { return Ok(server) };
    let mut hashes = hashes.into_iter();
    let accepted = hashes.find(|hash| {
        let algorithm = if matches!(key, Algorithm::Rsa { .. }) { Algorithm::Rsa { hash: *hash } } else { key.clone() };
        let name = if is_certificate { algorithm.to_certificate_type() } else { plain(&algorithm) };
        wanted.contains(&name)
    });
    accepted.ok_or(AlgorithmNotAllowed)
}

/// Whether the configuration allows RSA signatures with SHA-1, which only the `ssh` program makes.
pub(super) fn wants_sha1(wanted: &Algorithms) -> bool {
    wanted.public_keys.as_ref().is_some_and(|list| list.iter().any(|name| name == "ssh-rsa"))
}

fn plain(algorithm: &Algorithm) -> String {
    algorithm.as_str().to_owned()
}

fn text(name: &impl AsRef<str>) -> String {
    name.as_ref().to_owned()
}

/// Moves the types that are known for the host to the front, so that the server shows a known key.
fn known_first(types: Vec<Algorithm>, known: &[Algorithm]) -> Vec<Algorithm> {
    let is_known = |algorithm: &Algorithm| {
        known.iter().any(|known| {
            known == algorithm || matches!((known, algorithm), (Algorithm::Rsa { .. }, Algorithm::Rsa { .. }))
        })
    };
    let (mut first, rest): (Vec<_>, Vec<_>) = types.into_iter().partition(is_known);
    first.extend(rest);
    first
}

/// The settings of one connection.
#[derive(Debug, Clone, Default)]
pub(super) struct ConnectionOptions {
    /// The types of the host keys that are known for the host.
    pub(super) known: Vec<Algorithm>,
    /// Whether to accept host certificates: only if known_hosts names an authority for the host.
    pub(super) certificates: bool,
    /// The interval of keepalives, and how many may remain unanswered.
    pub(super) keepalive: (Duration, u32),
    /// The algorithms of the ssh configuration.
    pub(super) algorithms: Algorithms,
    /// Whether other connections run through this one.
    pub(super) carries_others: bool,
}

/// The russh configuration of one connection.
pub(super) fn config(options: &ConnectionOptions) -> Result<Config, russh::Error> {
    let (interval, count) = options.keepalive;
    let wanted = &options.algorithms;
    let mut key_exchanges = filter_configured(KEY_EXCHANGES, wanted.key_exchanges.as_ref(), text);
    key_exchanges.extend_from_slice(EXTENSIONS);
    let keys = filter_configured(&host_keys(), wanted.host_keys.as_ref(), plain);
    let certificates = if options.certificates {
        filter_configured(&host_keys(), wanted.host_keys.as_ref(), Algorithm::to_certificate_type)
    } else {
        Vec::new()
    };
    Ok(Config {
        client_id: SshId::Standard(Cow::Borrowed(concat!("SSH-2.0-gpufleet_", env!("CARGO_PKG_VERSION")))),
        // russh's defaults buffer up to 3 MiB per channel; our messages have a few kilobytes. Channels through a jump
        // host buffer more, so that one slow host does not block the others.
        window_size: 256 * 1024,
        // russh keeps a buffer of the longest packet; a typical snapshot has 4 kB.
        maximum_packet_size: if options.carries_others { 32 * 1024 } else { 8 * 1024 },
        channel_buffer_size: if options.carries_others { 64 } else { 8 },
        preferred: Preferred {
            kex: Cow::Owned(key_exchanges),
            key: Cow::Owned(known_first(keys, &options.known)),
            host_key_certificates: Cow::Owned(certificates),
            cipher: Cow::Owned(filter_configured(CIPHERS, wanted.ciphers.as_ref(), text)),
            mac: Cow::Owned(filter_configured(MACS, wanted.macs.as_ref(), text)),
            // No compression: a decompression bomb is possible before authentication (CVE-2026-46702).
            compression: Cow::Borrowed(&[compression::NONE]),
        },
        // Keepalives alone do not notice a blocked write.
        inactivity_timeout: Some(Duration::from_secs(60)),
        keepalive_interval: Some(interval),
        keepalive_max: count as usize,
        gex: GexParams::new(2048, 3072, 8192)?,
        nodelay: true,
        ..Config::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_host_key_types_come_first() {
        let rsa = Algorithm::Rsa { hash: None };
        let order = known_first(host_keys(), &[rsa]);
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
        assert_eq!(known_first(host_keys(), &[]), host_keys());
        assert!(config(&ConnectionOptions::default()).unwrap().preferred.host_key_certificates.is_empty());
    }

    fn list(names: &str) -> Vec<String> {
        names.split(',').map(str::to_owned).collect()
    }

    #[test]
    fn algorithms_follow_the_order_and_exclusions_of_the_configuration() {
        let algorithms = Algorithms {
            host_keys: Some(list("rsa-sha2-256,sk-ssh-ed25519@openssh.com,ssh-ed25519")),
            key_exchanges: Some(list("sntrup761x25519-sha512@openssh.com,ecdh-sha2-nistp384,curve25519-sha256")),
            ciphers: Some(list("aes256-ctr,aes128-cbc,aes128-ctr")),
            macs: Some(list("hmac-sha2-512")),
            public_keys: None,
        };
        assert_eq!(setting_without_common_algorithm(&algorithms), None);
        let options = ConnectionOptions { certificates: true, algorithms, ..ConnectionOptions::default() };
        let preferred = config(&options).unwrap().preferred;
        let keys: Vec<_> = preferred.key.iter().map(Algorithm::as_str).collect();
        assert_eq!(keys, ["rsa-sha2-256", "ssh-ed25519"]);
        assert!(preferred.host_key_certificates.is_empty(), "the list names no certificate");
        let exchanges: Vec<_> = preferred.kex.iter().map(AsRef::as_ref).collect();
        assert_eq!(
            exchanges,
            ["ecdh-sha2-nistp384", "curve25519-sha256", "ext-info-c", "kex-strict-c-v00@openssh.com"]
        );
        assert_eq!(*preferred.cipher, [cipher::AES_256_CTR, cipher::AES_128_CTR]);
        assert_eq!(*preferred.mac, [mac::HMAC_SHA512]);
    }

    #[test]
    fn a_setting_without_common_algorithm_is_unsupported() {
        let none = Some(list("none-of-ours"));
        for (algorithms, setting) in [
            (Algorithms::default(), None),
            (Algorithms { host_keys: none.clone(), ..Algorithms::default() }, Some("HostKeyAlgorithms")),
            (Algorithms { key_exchanges: none.clone(), ..Algorithms::default() }, Some("KexAlgorithms")),
            (Algorithms { ciphers: none.clone(), ..Algorithms::default() }, Some("Ciphers")),
            (Algorithms { macs: none, ..Algorithms::default() }, Some("MACs")),
        ] {
            assert_eq!(setting_without_common_algorithm(&algorithms), setting);
        }
    }

    #[test]
    fn the_configuration_restricts_signature_algorithms() {
        let only = |names: &str| Algorithms { public_keys: Some(list(names)), ..Algorithms::default() };
        let (rsa, ed25519) = (Algorithm::Rsa { hash: None }, Algorithm::Ed25519);
        let (sha256, sha512) = (Some(HashAlg::Sha256), Some(HashAlg::Sha512));
        let any = Algorithms::default();
        assert_eq!(signature_hash(&rsa, sha512, false, &any), Ok(sha512));
        assert_eq!(signature_hash(&rsa, sha256, false, &any), Ok(sha256));
        assert_eq!(signature_hash(&ed25519, None, true, &any), Ok(None));
        assert_eq!(signature_hash(&rsa, sha512, false, &only("rsa-sha2-256,ssh-ed25519")), Ok(sha256));
        assert_eq!(signature_hash(&rsa, sha256, false, &only("rsa-sha2-512")), Err(AlgorithmNotAllowed));
        assert_eq!(signature_hash(&ed25519, None, false, &only("rsa-sha2-512")), Err(AlgorithmNotAllowed));
        assert_eq!(signature_hash(&ed25519, None, true, &only("ssh-ed25519")), Err(AlgorithmNotAllowed));
        assert_eq!(signature_hash(&ed25519, None, true, &only("ssh-ed25519-cert-v01@openssh.com")), Ok(None));
        assert_eq!(signature_hash(&rsa, sha512, true, &only("rsa-sha2-512-cert-v01@openssh.com")), Ok(sha512));
        assert!(wants_sha1(&only("rsa-sha2-512,ssh-rsa")) && !wants_sha1(&only("rsa-sha2-512")) && !wants_sha1(&any));
    }
}
