//! What diagnosis remembers from one run of the program to the next: `memory.json` in the state directory.

use crate::diagnosis::{Engine, SavedState};
use crate::fleet::Moment;
use crate::store::{Directories, read_text, rename_bad_file, try_lock, write_atomic};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file's name.
const NAME: &str = "memory.json";
/// More than the bounds of a memory ever take.
const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// What is remembered is written this often, so that a crash loses little.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// The file, once it has been read.
#[derive(Debug)]
pub(super) struct SavedStateFile {
    path: PathBuf,
    saved: Moment,
    /// It could not be written; said once.
    has_failed: bool,
}

impl SavedStateFile {
    /// Reads the file into the engine. The text is for a person: what is wrong with it, and where it has gone. `None`
    /// where there is no state directory, because there is no home.
    pub(super) fn load(directories: &Directories, engine: &mut Engine, now: Moment) -> (Option<Self>, Option<String>) {
        let Ok(directory) = directories.state() else { return (None, None) };
        let path = directory.join(NAME);
        let message = match read(&path) {
            Ok(Some(memory)) => {
                engine.restore(memory, now);
                None
            }
            Ok(None) => None,
            Err(why) => Some(why),
        };
        (Some(Self { path, saved: now, has_failed: false }), message)
    }

    /// Reads the file into the engine of a command that writes none: what is wrong with it is left for one that does.
    pub(super) fn restore_only(directories: &Directories, engine: &mut Engine, now: Moment) {
        let path = directories.state().map(|directory| directory.join(NAME));
        let text = path.ok().and_then(|path| read_text(&path, MAX_BYTES).ok());
        if let Some(memory) = text.and_then(|text| SavedState::parse(&text).ok()) {
            engine.restore(memory, now);
        }
    }

    /// Whether it is time to write again.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        now.since(self.saved) >= SAVE_EVERY
    }

    /// Writes what is remembered now, with what another gpufleet has written meanwhile. The text is for a person, the first
    /// time that it fails.
    pub(super) fn save(&mut self, mut memory: SavedState, now: Moment) -> Option<String> {
        self.saved = now;
        // Where the lock cannot be had the file is written all the same: it is always whole, and what another gpufleet
        // writes in this very moment is written again by it.
        let _lock = try_lock(&self.path.with_extension("lock"));
        let error = match other(&self.path) {
            Ok(other) => {
                if let Some(other) = other {
                    memory.merge(other);
                }
                let text = match serde_json::to_vec(&memory) {
                    Ok(text) => text,
                    Err(error) => return Some(format!("cannot write what diagnosis remembers: {error}")),
                };
                write_atomic(&self.path, &text).err()?.to_string()
            }
            Err(why) => why,
        };
        let is_first = !std::mem::replace(&mut self.has_failed, true);
        is_first.then(|| error.lines().next().unwrap_or_default().to_owned())
    }
}

/// What another gpufleet has written since, `None` when there is nothing. Of another version it is left alone: its
/// gpufleet runs now.
fn other(path: &Path) -> Result<Option<SavedState>, String> {
    let shown = crate::wire::SafeText::new(&path.to_string_lossy());
    match read_text(path, MAX_BYTES) {
        Ok(text) => SavedState::parse(&text).map(Some).map_err(|why| {
            format!("what diagnosis remembers is not written, another program has written {shown}: {why}; move it away")
        }),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The memory in a file, `None` when there is no such file. What is no memory of this version is kept aside.
fn read(path: &Path) -> Result<Option<SavedState>, String> {
    let text = match read_text(path, MAX_BYTES) {
        Ok(text) => text,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(set_aside_bad_file(path, error.to_string().lines().next().unwrap_or_default())),
    };
    SavedState::parse(&text).map(Some).map_err(|why| set_aside_bad_file(path, &why))
}

/// Renames a file that cannot be used, and says so.
fn set_aside_bad_file(path: &Path, why: &str) -> String {
    let shown = crate::wire::SafeText::new(&path.to_string_lossy());
    match rename_bad_file(path) {
        Ok(aside) => format!("diagnosis begins anew, its memory is kept as {aside}: {why} ({shown})"),
        Err(error) => format!("diagnosis begins anew, its memory cannot be kept aside ({error}): {why} ({shown})"),
    }
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
    fn what_was_saved_is_read_again_and_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state").join(NAME);
        assert_eq!(read(&path), Ok(None));
        let mut file = SavedStateFile { path: path.clone(), saved: at(0), has_failed: false };
        assert!(!file.is_due(at(59)) && file.is_due(at(60)));
        let mut memory = SavedState { version: SAVED_STATE_VERSION, ..SavedState::default() };
        memory.idle_watts.insert("GPU-1".into(), 61.5);
        assert_eq!(file.save(memory.clone(), at(60)), None);
        assert!(!file.is_due(at(61)));
        assert_eq!(read(&path), Ok(Some(memory)));
        assert_eq!(std::fs::metadata(&path).expect("is there").permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_cannot_be_read_is_kept_aside_and_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(NAME);
        for (number, text) in [(1, "{\"version\":"), (2, "{\"version\":9}")] {
            std::fs::write(&path, text).expect("writes");
            let message = read(&path).expect_err("is refused");
            let begins = format!("diagnosis begins anew, its memory is kept as memory.json.bad-{number}: ");
            assert!(message.starts_with(&begins) && message.ends_with(&format!(" ({})", path.display())), "{message}");
            assert_eq!(read(&path), Ok(None));
            let aside = folder.path().join(format!("memory.json.bad-{number}"));
            assert_eq!(std::fs::read_to_string(aside).expect("is kept"), text);
        }
    }

    #[test]
    fn what_another_gpufleet_has_written_meanwhile_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(NAME);
        let (mut first, mut second) =
            [(); 2].map(|()| SavedStateFile { path: path.clone(), saved: at(0), has_failed: false }).into();
        let memory = |gpu: &str| SavedState {
            version: SAVED_STATE_VERSION,
            idle_watts: [(gpu.into(), 61.5)].into(),
            ..SavedState::default()
        };
        assert_eq!(first.save(memory("GPU-1"), at(1)), None);
        assert_eq!(second.save(memory("GPU-2"), at(2)), None);
        let kept = read(&path).expect("is read").expect("is there");
        assert_eq!(kept.idle_watts.len(), 2);
        // One of another version writes, too: neither destroys what the other has.
        std::fs::write(&path, "{\"version\":9}").expect("writes");
        let message = first.save(memory("GPU-1"), at(3)).expect("is said");
        let begins =
            format!("what diagnosis remembers is not written, another program has written {}: ", path.display());
        assert!(message.starts_with(&begins), "{message}");
        assert_eq!(std::fs::read_to_string(&path).expect("is there"), "{\"version\":9}");
    }

    #[test]
    fn a_directory_that_takes_no_file_is_said_once() {
        let folder = tempfile::tempdir().expect("a folder");
        // A file stands where the directory should be.
        std::fs::write(folder.path().join("state"), "").expect("writes");
        let path = folder.path().join("state").join(NAME);
        let mut file = SavedStateFile { path, saved: at(0), has_failed: false };
        let memory = SavedState::default();
        assert!(file.save(memory.clone(), at(1)).is_some_and(|message| message.starts_with("cannot read ")));
        assert_eq!(file.save(memory, at(2)), None);
    }
}
