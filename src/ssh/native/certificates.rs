//! Certificates of users' keys that lie in files.

use super::candidates::Note;
use crate::ssh::resolve::Resolved;
use crate::wire::format::io_cause;
use russh::keys::Certificate;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// No certificate is larger.
const MAX_BYTES: u64 = 64 * 1024;

/// A certificate and where it lies.
#[derive(Debug, Clone)]
pub(super) struct Certified {
    pub(super) path: PathBuf,
    pub(super) certificate: Certificate,
}

/// The certificates that the configuration names and those beside the keys, as `ssh` finds them. It blocks for as long
/// as small files take.
pub(super) fn read(resolved: &Resolved) -> (Vec<Certified>, Vec<Note>) {
    let beside = resolved.first_identity.iter().chain(&resolved.identity_files).map(|path| {
        let mut beside = path.as_os_str().to_owned();
        beside.push("-cert.pub");
        PathBuf::from(beside)
    });
    let (mut found, mut notes): (Vec<Certified>, Vec<Note>) = (Vec::new(), Vec::new());
    for path in beside.chain(resolved.certificate_files.iter().cloned()) {
        if found.iter().any(|earlier| earlier.path == path) {
            continue;
        }
        match read_one(&path) {
            Ok(Some(certificate)) => found.push(Certified { path, certificate }),
            Ok(None) => {}
            Err(why) => notes.push(Note::of(format!("{} {why}", path.display()))),
        }
    }
    (found, notes)
}

/// `None` where there is no such file.
fn read_one(path: &Path) -> Result<Option<Certificate>, String> {
    let mut text = String::new();
    match std::fs::File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot be read: {}", io_cause(&error))),
        Ok(_) => match Certificate::from_openssh(text.trim()) {
            Ok(certificate) => Ok(Some(certificate)),
            Err(_) => Err("is not a certificate that can be read".to_owned()),
        },
    }
}

/// What a person should know of a certificate that is offered at this time, in seconds since 1970.
pub(super) fn remark(certified: &Certified, now: u64) -> Option<String> {
    let end = certified.certificate.valid_before();
    let expired =
        i64::try_from(end).ok().and_then(|end| jiff::Timestamp::from_second(end).ok()).filter(|_| end <= now)?;
    Some(format!("the certificate {} expired at {}", certified.path.display(), expired.strftime("%F %R UTC")))
}
