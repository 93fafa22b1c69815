//! The errors of the history. Each message names the file and the way out.

use crate::wire::SafeText;
use rusqlite::{Connection, ErrorCode};
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Error: the history cannot be used.
#[derive(Debug)]
pub enum HistoryError {
    /// Another collector writes it.
    Locked {
        /// The path.
        path: PathBuf,
        /// Its process id and name, if known.
        holder: Option<(u32, SafeText)>,
    },
    /// A newer gpufleet has written it.
    Newer {
        /// The path.
        path: PathBuf,
        /// The version of its schema.
        version: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// An older gpufleet has written it, and no collector has upgraded it since.
    Older {
        /// The path.
        path: PathBuf,
    },
    /// There is no history yet.
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// The content is damaged.
    Damaged {
        /// The path.
        path: PathBuf,
        /// The message of SQLite.
        cause: String,
    },
    /// The disk is full, or the disk quota of the account is used up.
    Full {
        /// The path.
        path: PathBuf,
        /// Whether it is the quota.
        is_quota: bool,
    },
    /// Another operation failed.
    Failed {
        /// `read` or `write`.
        operation: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        cause: String,
    },
    /// The file system refuses to write: it is read-only, or the disk has an error.
    Refused {
        /// The path.
        path: PathBuf,
        /// The cause.
        cause: String,
    },
}

impl HistoryError {
    pub(super) fn of(operation: &'static str, path: &Path, error: &rusqlite::Error) -> Self {
        let path = path.to_owned();
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Damaged { path, cause: error.to_string() }
            }
            Some(ErrorCode::DiskFull) => Self::Full { path, is_quota: false },
            _ => Self::Failed { operation, path, cause: error.to_string() },
        }
    }

    /// Like [`Self::of`] for an error while writing, with the error of the system: "disk I/O error" of SQLite may be a quota, a
    /// file system that became read-only, or a broken disk. Nothing may have used the connection since the error.
    pub(super) fn of_write(path: &Path, connection: &Connection, error: &rusqlite::Error) -> Self {
        match error.sqlite_error_code().and_then(|code| system_error(connection, code)) {
            Some(cause) if matches!(cause.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                Self::io("write", path, &cause)
            }
            Some(cause) => {
                let cause = format!("{error}: {}", crate::wire::format::io_cause(&cause));
                Self::Refused { path: path.to_owned(), cause }
            }
            None => Self::of("write", path, error),
        }
    }

    pub(super) fn io(operation: &'static str, path: &Path, error: &std::io::Error) -> Self {
        let (path, cause) = (path.to_owned(), crate::wire::format::io_cause(error));
        match error.kind() {
            ErrorKind::StorageFull => Self::Full { path, is_quota: false },
            ErrorKind::QuotaExceeded => Self::Full { path, is_quota: true },
            ErrorKind::ReadOnlyFilesystem => Self::Refused { path, cause },
            _ => Self::Failed { operation, path, cause },
        }
    }
}

/// The error of the system behind an error of SQLite, which keeps it for these two codes only.
fn system_error(connection: &Connection, code: ErrorCode) -> Option<std::io::Error> {
    if !matches!(code, ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) {
        return None;
    }
    #[expect(unsafe_code, reason = "rusqlite has no function for it")]
    // SAFETY: the handle belongs to an open connection, which no other thread uses, and the function only reads from it.
    let errno = unsafe { rusqlite::ffi::sqlite3_system_errno(connection.handle()) };
    (errno != 0).then(|| std::io::Error::from_raw_os_error(errno))
}

impl fmt::Display for HistoryError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |path: &Path| SafeText::new(&path.to_string_lossy());
        match self {
            Self::Locked { path, holder } => {
                let holder = match holder {
                    Some((pid, name)) => format!("{name} (pid {pid})"),
                    None => "another process".to_owned(),
                };
                write!(
                    formatter,
                    "cannot write the history {}: {holder} writes it; stop that collector, or choose another file with --store",
                    shown(path)
                )
            }
            Self::Newer { path, version, known } => write!(
                formatter,
                "cannot use the history {}: a newer gpufleet has written it (version {version}, this one knows {known}); \
                 update gpufleet, or choose another file with --store",
                shown(path)
            ),
            Self::Older { path } => write!(
                formatter,
                "cannot read the history {}: an older gpufleet has written it; start `gpufleet collect`, which upgrades it, or \
                 name another file with --store",
                shown(path)
            ),
            Self::Missing { path } => write!(
                formatter,
                "there is no history {}: `gpufleet collect` writes it; name another file with --store",
                shown(path)
            ),
            Self::Damaged { path, cause } => write!(
                formatter,
                "the history {} is damaged: {cause}; `gpufleet collect` keeps it under another name when it starts, and begins \
                 a new one; name another file with --store",
                shown(path)
            ),
            Self::Full { path, is_quota } => {
                let cause = if *is_quota { "the disk quota is used up" } else { "the disk is full" };
                write!(formatter, "cannot write the history {}: {cause}; free some space", shown(path))
            }
            Self::Failed { operation, path, cause } => write!(
                formatter,
                "cannot {operation} the history {}: {cause}; check the owner and mode of the directory, or choose another \
                 file with --store",
                shown(path)
            ),
            Self::Refused { path, cause } => write!(
                formatter,
                "cannot write the history {}: {cause}; check its disk (`dmesg` names errors), or choose another file with --store",
                shown(path)
            ),
        }
    }
}

impl std::error::Error for HistoryError {}
