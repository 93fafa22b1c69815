//! Who speaks, from what can be read at once.

use super::procfs::{FileReader, boot_id, cpu_count, memory_total_bytes};
use super::scope::ScopeEvidence;
use super::user_names::local_login;
use crate::wire::{Hello, PROTOCOL, SafeText};

/// This host and this login. Nothing here can block: no driver and no name service is asked.
pub(crate) fn hello() -> Hello {
    let mut reader = FileReader::default();
    let uname = rustix::system::uname();
    let text = |text: &std::ffi::CStr| Some(SafeText::from_bytes(text.to_bytes()));
    let uid = rustix::process::getuid().as_raw();
    let local = reader.read("/etc/passwd").ok().and_then(|passwd| local_login(passwd, uid));
    Hello {
        protocol: PROTOCOL,
        probe_version: env!("CARGO_PKG_VERSION").into(),
        boot_id: boot_id(&mut reader),
        host_name: text(uname.nodename()),
        // sshd sets LOGNAME for users that only a directory knows.
        login_user: local.or_else(|| std::env::var("LOGNAME").ok().map(Into::into)),
        login_uid: Some(uid),
        kernel: text(uname.release()),
        arch: text(uname.machine()),
        cpu_count: cpu_count(&mut reader),
        memory_total_bytes: memory_total_bytes(&mut reader),
        scope: Some(ScopeEvidence::read().scope()),
        source: Some(crate::wire::ReadingSource::Probe),
        probe_pid: Some(std::process::id()),
    }
}
