//! Files of the screen itself: `settings.toml` in the configuration directory, `view.json` in the state directory.

use crate::app::{SettingsFile, ViewState};
use crate::config::MAX_FILE_BYTES;
use crate::fleet::Moment;
use crate::store::{Directories, read_text, rename_bad_file, write_atomic};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The name of the file in the state directory.
const NAME: &str = "view.json";
/// More than the bounds of what is remembered ever take.
const MAX_BYTES: u64 = 4 * 1024 * 1024;
/// What has changed is written this often, so that a crash loses little.
const SAVE_EVERY: Duration = Duration::from_secs(10);

/// Reads the settings. Where they cannot be used: those built in, and what is wrong with the file, which stays as it is.
pub(super) fn read_preferences(directories: &Directories) -> (SettingsFile, Option<String>) {
    let Some(path) = directories.settings_files().into_iter().find(|path| path.exists()) else {
        return (SettingsFile::default(), None);
    };
    let text = match read_text(&path, MAX_FILE_BYTES) {
        Ok(text) => text,
        Err(error) => return (SettingsFile::default(), Some(error.to_string())),
    };
    match SettingsFile::parse(&path.to_string_lossy(), &text) {
        Ok(preferences) => (preferences, None),
        Err(diagnostics) => (SettingsFile::default(), Some(diagnostics.to_string())),
    }
}

/// What is wrong with the settings in one line for the screen; the whole of it is printed at the end.
pub(super) fn settings_notice(wrong: &str) -> String {
    let first = wrong.lines().next().unwrap_or_default();
    let more = wrong.lines().filter(|line| is_caret(line)).count().saturating_sub(1);
    let more = match more {
        0 => String::new(),
        1 => ", and 1 more mistake".to_owned(),
        count => format!(", and {count} more mistakes"),
    };
    format!("{first}{more}; the built-in settings hold")
}

/// The line below one of the file that marks what is meant.
fn is_caret(line: &str) -> bool {
    line.trim_start().strip_prefix('|').is_some_and(|rest| rest.trim_start().starts_with('^'))
}

/// The file of what the screen remembers.
#[derive(Debug)]
pub(super) struct ViewFile {
    path: PathBuf,
    saved: ViewState,
    looked: Moment,
    /// It could not be written; said once.
    has_failed: bool,
}

impl ViewFile {
    /// Reads the file. The text is for a person: what is wrong with it, and where it has gone. `None` where there is no
    /// state directory, because there is no home.
    pub(super) fn load(directories: &Directories, now: Moment) -> (Option<Self>, Option<ViewState>, Option<String>) {
        let Ok(directory) = directories.state() else { return (None, None, None) };
        let path = directory.join(NAME);
        let (remembered, message) = match read(&path) {
            Ok(remembered) => (remembered, None),
            Err(why) => (None, Some(why)),
        };
        let saved = remembered.clone().unwrap_or_default();
        (Some(Self { path, saved, looked: now, has_failed: false }), remembered, message)
    }

    /// Whether it is time to look again for what has changed.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        now.since(self.looked) >= SAVE_EVERY
    }

    /// Whether it is to be written; it is looked at again after the usual time.
    pub(super) fn has_changed(&mut self, remembered: &ViewState, now: Moment) -> bool {
        self.looked = now;
        *remembered != self.saved
    }

    /// Writes what has changed. The text is for a person, the first time that it fails.
    pub(super) fn save(&mut self, remembered: ViewState, now: Moment) -> Option<String> {
        if !self.has_changed(&remembered, now) {
            return None;
        }
        let text = match serde_json::to_vec_pretty(&remembered) {
            Ok(text) => text,
            Err(error) => return Some(format!("cannot write what the screen remembers: {error}")),
        };
        match write_atomic(&self.path, &text) {
            Ok(()) => {
                self.saved = remembered;
                None
            }
            Err(error) => {
                let is_first = !std::mem::replace(&mut self.has_failed, true);
                is_first.then(|| error.to_string().lines().next().unwrap_or_default().to_owned())
            }
        }
    }
}

/// What is in the file, `None` when there is none. What cannot be used is kept aside.
fn read(path: &Path) -> Result<Option<ViewState>, String> {
    let why = match read_text(path, MAX_BYTES) {
        Ok(text) => match ViewState::parse(&text) {
            Ok(remembered) => return Ok(Some(remembered)),
            Err(why) => why,
        },
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => error.to_string().lines().next().unwrap_or_default().to_owned(),
    };
    let shown = crate::wire::SafeText::new(&path.to_string_lossy());
    Err(match rename_bad_file(path) {
        Ok(aside) => format!("the screen begins as new, what it remembered is kept as {aside}: {why} ({shown})"),
        Err(error) => format!("the screen begins as new, its file cannot be kept aside ({error}): {why} ({shown})"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn at(seconds: u64) -> Moment {
        Moment::new(Duration::from_secs(seconds), Duration::from_secs(1_700_000_000 + seconds))
    }

    #[test]
    fn what_has_changed_is_written_for_its_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state").join(NAME);
        assert_eq!(read(&path), Ok(None));
        let mut file = ViewFile { path: path.clone(), saved: ViewState::default(), looked: at(0), has_failed: false };
        assert_eq!(file.save(ViewState::default(), at(1)), None);
        assert!(!path.exists(), "nothing has changed");
        let changed = ViewState::parse("{\"version\":1,\"filter\":\"mem>1G\"}").expect("is right");
        assert!(!file.is_due(at(10)) && file.is_due(at(11)));
        assert_eq!(file.save(changed.clone(), at(11)), None);
        assert_eq!(std::fs::metadata(&path).expect("is there").permissions().mode() & 0o777, 0o600);
        assert_eq!(read(&path), Ok(Some(changed)));
    }

    #[test]
    fn a_broken_file_is_kept_aside_and_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(NAME);
        std::fs::write(&path, "{\"version\":9}").expect("writes");
        assert_eq!(
            read(&path),
            Err(format!(
                "the screen begins as new, what it remembered is kept as view.json.bad-1: it is of version 9, this \
                 gpufleet reads 1 ({})",
                path.display()
            ))
        );
        assert_eq!(read(&path), Ok(None));
        let aside = folder.path().join("view.json.bad-1");
        assert_eq!(std::fs::read_to_string(aside).expect("is kept"), "{\"version\":9}");
    }

    #[test]
    fn mistakes_in_the_settings_are_one_line_on_the_screen() {
        let wrong =
            SettingsFile::parse("/c/settings.toml", "theem = 1\nmouse = 1\n").expect_err("two mistakes").to_string();
        assert_eq!(
            settings_notice(&wrong),
            "/c/settings.toml:1:1: unknown key `theem`, and 1 more mistake; the built-in settings hold"
        );
        assert_eq!(
            settings_notice("cannot read /c/settings.toml: Permission denied\n  hint: x\n"),
            "cannot read /c/settings.toml: Permission denied; the built-in settings hold"
        );
    }
}
