//! The log of signals: `signals.log` in the state directory, a line for each that was asked for and for its outcome.

use crate::store::{Directories, append_line};
use crate::wire::SafeText;
use std::path::PathBuf;

/// The file's name.
const NAME: &str = "signals.log";
/// From this size on a new one is begun; one old one is kept.
const MAX_BYTES: u64 = 1024 * 1024;

/// Where signals are logged.
#[derive(Debug)]
pub(super) struct SignalLog {
    path: PathBuf,
}

impl SignalLog {
    /// The log; `None` where there is no state directory, because there is no home.
    pub(super) fn find(directories: &Directories) -> Option<Self> {
        directories.state().ok().map(|directory| Self { path: directory.join(NAME) })
    }

    /// Adds a line with the time. The text is for a person where that fails.
    pub(super) fn write(&self, line: &SafeText) -> Option<String> {
        let now = jiff::Timestamp::now();
        let error = append_line(&self.path, format!("{now:.0} {line}\n").as_bytes(), MAX_BYTES).err()?;
        Some(error.to_string().lines().next().unwrap_or_default().to_owned())
    }
}
