//! Host keys: known_hosts read as OpenSSH reads it, and closed where it is in doubt.
//!
//! After `hostfile.c` and `sshconnect.c` of OpenSSH 9.2. Three deliberate differences, all stricter: a file that exists
//! but cannot be read is an error, an `@revoked` line for a host that OpenSSH would skip because it cannot read it
//! refuses that host, and a host certificate that names no host is good for none.

mod append;
mod host_certificate;
mod line;
mod lookup;
mod pattern;

pub(crate) use append::append_host_key;
pub(crate) use host_certificate::CertificateCheck;
pub(crate) use lookup::{HostKeyStatus, HostName, KnownHosts, KnownHostsEntry};
pub(in crate::ssh) use pattern::glob;

use russh::keys::{HashAlg, PublicKey};

/// `SHA256:...`, as `ssh-keygen -l` prints it.
pub(crate) fn fingerprint(key: &PublicKey) -> String {
    key.fingerprint(HashAlg::Sha256).to_string()
}
