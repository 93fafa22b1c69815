//! The fuzz target for known_hosts files.

use super::{HostKeyStatus, HostName, KnownHosts};
use russh::keys::PublicKey;
use std::path::Path;

/// The key of the host in the corpus.
const KEY: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIHR1vGFO+rbwUGphds0JNttUWHXmSGt85ytR1Xove811";

/// Looks up a host in a file. A key is known only if the file contains it, and no further line undoes a revocation.
pub(crate) fn fuzz(data: &[u8]) {
    let Ok(key) = PublicKey::from_openssh(&format!("ssh-ed25519 {KEY}")) else { panic!("the key is valid") };
    let text = String::from_utf8_lossy(data);
    let whole = KnownHosts::from_text(Path::new("/known_hosts"), text.clone().into_owned());
    let half = text.len() / 2;
    let cut = text.bytes().take(half).rposition(|byte| byte == b'\n').map_or(0, |at| at + 1);
    let first = KnownHosts::from_text(Path::new("/known_hosts"), text[..cut].to_owned());
    for name in [
        HostName::new("gpu01.example.org", 22, None),
        HostName::new("GPU01.example.org", 2222, None),
        HostName::new("10.0.0.7", 22, None),
        HostName::new("gpu01", 22, Some("alias")),
    ] {
        let status = whole.check_key(&name, &key);
        match &status {
            HostKeyStatus::Known => assert!(text.contains(KEY)),
            HostKeyStatus::Changed(entry) | HostKeyStatus::Revoked(entry) => assert!(entry.line > 0),
            HostKeyStatus::Unknown(_) => {}
        }
        if matches!(first.check_key(&name, &key), HostKeyStatus::Revoked(_)) {
            assert!(matches!(status, HostKeyStatus::Revoked(_)), "{status:?}");
        }
        whole.key_types(&name);
        whole.has_authorities(&name);
    }
}
