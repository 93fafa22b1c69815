//! Certificates of users' keys that lie in files.

use super::identities::SkippedKey;
use crate::ssh::resolve::Resolved;
use crate::wire::format::io_cause;
use russh::keys::Certificate;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// No certificate is larger.
const MAX_BYTES: u64 = 64 * 1024;

/// A certificate and where it lies.
#[derive(Debug, Clone)]
pub(super) struct CertificateFile {
    pub(super) path: PathBuf,
    pub(super) certificate: Certificate,
}

/// The certificates that the configuration names and those beside the keys, as `ssh` finds them. It blocks for as long
/// as small files take.
pub(super) fn read(resolved: &Resolved) -> (Vec<CertificateFile>, Vec<SkippedKey>) {
    let certificate_path = resolved.first_identity.iter().chain(&resolved.identity_files).map(|path| {
        let mut certificate_path = path.as_os_str().to_owned();
        certificate_path.push("-cert.pub");
        PathBuf::from(certificate_path)
    });
    let (mut found, mut skipped): (Vec<CertificateFile>, Vec<SkippedKey>) = (Vec::new(), Vec::new());
    for path in certificate_path.chain(resolved.certificate_files.iter().cloned()) {
        if found.iter().any(|earlier| earlier.path == path) {
            continue;
        }
        match read_one(&path) {
            Ok(Some(certificate)) => found.push(CertificateFile { path, certificate }),
            Ok(None) => {}
            Err(why) => skipped.push(SkippedKey::new(format!("{} {why}", path.display()))),
        }
    }
    (found, skipped)
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
pub(super) fn expiry_warning(certified: &CertificateFile, now: u64) -> Option<String> {
    let end = certified.certificate.valid_before();
    let expired =
        i64::try_from(end).ok().and_then(|end| jiff::Timestamp::from_second(end).ok()).filter(|_| end <= now)?;
    Some(format!("the certificate {} expired at {}", certified.path.display(), expired.strftime("%F %R UTC")))
}
