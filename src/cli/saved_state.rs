//! The saved state of the diagnosis: `memory.json` in the state directory.

use super::exit::one_line;
use crate::diagnosis::{Engine, SavedState};
use crate::fleet::Moment;
use crate::store::{Directories, read_text, rename_bad_file, try_lock, write_atomic};
use crate::wire::SafeText;
use crate::wire::format::{DurationStyle, duration};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// The file name.
const NAME: &str = "memory.json";
/// The maximum size of the file, above the bounds of a saved state.
const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// How long a start waits for the disk to answer.
const READ_LIMIT: Duration = Duration::from_secs(2);
/// How often the state is saved, so that a crash loses little.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// The file, after it has been read.
#[derive(Debug)]
pub(super) struct SavedStateFile {
    path: PathBuf,
    saved_at: Moment,
    /// A write has failed and was reported.
    has_failed: bool,
}

impl SavedStateFile {
    /// Restores the engine from the file. Returns `None` without a state directory or if the disk does not answer, and a
    /// message if the file is unusable.
    pub(super) fn load(directories: &Directories, engine: &mut Engine, now: Moment) -> (Option<Self>, Option<String>) {
        let Ok(directory) = directories.state() else { return (None, None) };
        let path = directory.join(NAME);
        let message = match read(&path) {
            Ok(state) => {
                if let Some(state) = state {
                    engine.restore(state, now);
                }
                None
            }
            Err(error) if error.disk_is_silent() => return (None, Some(error.to_string())),
            Err(error) => Some(error.to_string()),
        };
        (Some(Self { path, saved_at: now, has_failed: false }), message)
    }

    /// Restores the engine for a command that does not write the file. An unusable file is ignored.
    pub(super) fn restore_only(directories: &Directories, engine: &mut Engine, now: Moment) {
        let Ok(path) = directories.state().map(|directory| directory.join(NAME)) else { return };
        let text = within(READ_LIMIT, move || read_text(&path, MAX_BYTES).ok()).flatten();
        if let Some(state) = text.and_then(|text| SavedState::parse(&text).ok()) {
            engine.restore(state, now);
        }
    }

    /// Whether it is time to save again.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        now.since(self.saved_at) >= SAVE_EVERY
    }

    /// Saves the state, merged with the state that another gpufleet has written meanwhile. Returns a message for the
    /// first failure.
    pub(super) fn save(&mut self, state: SavedState, now: Moment) -> Option<String> {
        self.saved_at = now;
        let error = self.merge_and_write(state).err()?;
        let is_first = !std::mem::replace(&mut self.has_failed, true);
        is_first.then(|| one_line(&error))
    }

    fn merge_and_write(&self, mut state: SavedState) -> Result<(), String> {
        // Without the lock the file is written anyway: writes are atomic, and the other gpufleet saves its state again.
        let _lock = try_lock(&self.path.with_extension("lock"));
        match read_text(&self.path, MAX_BYTES) {
            // A file of another version is not replaced, because its gpufleet is running.
            Ok(text) => state.merge(SavedState::parse(&text).map_err(|why| {
                let path = SafeText::new(&self.path.to_string_lossy());
                format!(
                    "the diagnosis state is not saved, because another program has written {path}: {why}; move it away"
                )
            })?),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.to_string()),
        }
        let text = serde_json::to_vec(&state).map_err(|error| format!("cannot encode the diagnosis state: {error}"))?;
        write_atomic(&self.path, &text).map_err(|error| error.to_string())
    }
}

fn read(path: &Path) -> Result<Option<SavedState>, StateFileError> {
    read_state(path, MAX_BYTES, "the diagnosis", SavedState::parse)
}

/// Error: a state file cannot be used.
#[derive(Debug, PartialEq)]
pub(super) enum StateFileError {
    /// It is unusable and has been renamed.
    Unusable(String),
    /// The disk or file server has not answered. The file may be usable, so it must not be replaced.
    NoAnswer(String),
}

impl StateFileError {
    pub(super) fn disk_is_silent(&self) -> bool {
        matches!(self, Self::NoAnswer(_))
    }
}

impl fmt::Display for StateFileError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Unusable(message) | Self::NoAnswer(message)) = self;
        formatter.write_str(message)
    }
}

/// Reads a state file; `None` without a file.
///
/// # Errors
/// The message says that `subject` starts without saved state.
pub(super) fn read_state<T: Send + 'static>(
    path: &Path,
    max_bytes: u64,
    subject: &'static str,
    parse: fn(&str) -> Result<T, String>,
) -> Result<Option<T>, StateFileError> {
    let file = path.to_owned();
    let read = within(READ_LIMIT, move || read_or_rename(&file, max_bytes, subject, parse));
    read.unwrap_or_else(|| {
        let (path, limit) = (SafeText::new(&path.to_string_lossy()), duration(READ_LIMIT, DurationStyle::Seconds));
        Err(StateFileError::NoAnswer(format!(
            "{subject} starts without saved state and saves none: the disk did not answer within {limit} ({path})"
        )))
    })
}

/// Returns the result of `work`, or `None` if it takes too long. Its thread stays behind then.
pub(super) fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, result) = mpsc::channel();
    std::thread::spawn(move || {
        // The receiver may have given up.
        let _ = sender.send(work());
    });
    result.recv_timeout(limit).ok()
}

fn read_or_rename<T>(
    path: &Path,
    max_bytes: u64,
    subject: &str,
    parse: fn(&str) -> Result<T, String>,
) -> Result<Option<T>, StateFileError> {
    let why = match read_text(path, max_bytes) {
        Ok(text) => match parse(&text) {
            Ok(state) => return Ok(Some(state)),
            Err(why) => why,
        },
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => one_line(&error),
    };
    let displayed_path = SafeText::new(&path.to_string_lossy());
    let outcome = match rename_bad_file(path) {
        Ok(new_name) => format!("the unusable file is kept as {new_name}"),
        Err(error) => format!("the unusable file cannot be renamed ({error})"),
    };
    let message = format!("{subject} starts without saved state, {outcome}: {why} ({displayed_path})");
    Err(StateFileError::Unusable(message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::SAVED_STATE_VERSION;
    use std::os::unix::fs::PermissionsExt as _;

    fn at(seconds: u64) -> Moment {
        Moment::new(Duration::from_secs(seconds), Duration::from_secs(1_700_000_000 + seconds))
    }

    #[test]
    fn the_state_round_trips_in_a_private_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state").join(NAME);
        assert_eq!(read(&path), Ok(None));
        let mut file = SavedStateFile { path: path.clone(), saved_at: at(0), has_failed: false };
        assert!(!file.is_due(at(59)) && file.is_due(at(60)));
        let mut state = SavedState { version: SAVED_STATE_VERSION, ..SavedState::default() };
        state.idle_watts.insert("GPU-1".into(), 61.5);
        assert_eq!(file.save(state.clone(), at(60)), None);
        assert!(!file.is_due(at(61)));
        assert_eq!(read(&path), Ok(Some(state)));
        assert_eq!(std::fs::metadata(&path).expect("is there").permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn an_unusable_file_is_renamed_and_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(NAME);
        for (number, text) in [(1, "{\"version\":"), (2, "{\"version\":9}")] {
            std::fs::write(&path, text).expect("writes");
            let message = read(&path).expect_err("is refused").to_string();
            let begins = format!(
                "the diagnosis starts without saved state, the unusable file is kept as memory.json.bad-{number}: "
            );
            assert!(message.starts_with(&begins) && message.ends_with(&format!(" ({})", path.display())), "{message}");
            assert_eq!(read(&path), Ok(None));
            let aside = folder.path().join(format!("memory.json.bad-{number}"));
            assert_eq!(std::fs::read_to_string(aside).expect("is kept"), text);
        }
    }

    #[test]
    fn the_state_of_another_gpufleet_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(NAME);
        let (mut first, mut second) =
            [(); 2].map(|()| SavedStateFile { path: path.clone(), saved_at: at(0), has_failed: false }).into();
        let state = |gpu: &str| SavedState {
            version: SAVED_STATE_VERSION,
            idle_watts: [(gpu.into(), 61.5)].into(),
            ..SavedState::default()
        };
        assert_eq!(first.save(state("GPU-1"), at(1)), None);
        assert_eq!(second.save(state("GPU-2"), at(2)), None);
        let kept = read(&path).expect("is read").expect("is there");
        assert_eq!(kept.idle_watts.len(), 2);
        // A gpufleet of another version writes as well. Neither may destroy the file of the other.
        std::fs::write(&path, "{\"version\":9}").expect("writes");
        let message = first.save(state("GPU-1"), at(3)).expect("is said");
        let begins =
            format!("the diagnosis state is not saved, because another program has written {}: ", path.display());
        assert!(message.starts_with(&begins), "{message}");
        assert_eq!(std::fs::read_to_string(&path).expect("is there"), "{\"version\":9}");
    }

    #[test]
    fn a_write_error_is_reported_once() {
        let folder = tempfile::tempdir().expect("a folder");
        // A file is in the place of the directory.
        std::fs::write(folder.path().join("state"), "").expect("writes");
        let path = folder.path().join("state").join(NAME);
        let expected = format!(
            "cannot read {}: Not a directory; hint: check its directory: a part of the path is a file",
            path.display()
        );
        let mut file = SavedStateFile { path, saved_at: at(0), has_failed: false };
        let state = SavedState::default();
        assert_eq!(file.save(state.clone(), at(1)), Some(expected));
        assert_eq!(file.save(state, at(2)), None);
    }
}
