//! Host keys: reads and writes known_hosts files as OpenSSH does, and fails closed in case of doubt.
//!
//! Follows `hostfile.c` and `sshconnect.c` of OpenSSH 9.2, with three differences, all stricter: a file that exists but
//! cannot be read is an error; an `@revoked` line with an unreadable key refuses its host, where OpenSSH skips the line;
//! a host certificate without principals is valid for no host.

#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod host_certificate;
mod line;
mod lookup;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use fuzzing::fuzz;
pub(crate) use host_certificate::CertificateCheck;
pub(in crate::ssh) use line::glob;
pub(crate) use lookup::{HostKeyStatus, HostName, KnownHosts, KnownHostsEntry, append_host_key, fingerprint};
