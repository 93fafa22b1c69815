//! `settings.toml`: how the screen looks and which keys it has, as the person wants it.

use super::bindings::Key;
use super::keymap::{Assignment, named_actions};
use super::{Density, Keymap, MessageTemplate, ThemeChoice};
use crate::config::did_you_mean;
use crate::config::{Diagnostic, FileDiagnostics, boolean, mismatch, not_among, unknown_key};
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Every key of the file.
const KEYS: [&str; 7] = ["theme", "ascii", "mouse", "readonly", "density", "note", "keys"];

/// More keys for one action are a mistake.
const MAX_KEYS: usize = 8;

/// What the settings say; what they leave out is as built in.
#[derive(Debug, Clone)]
pub struct SettingsFile {
    /// Which colours; `None` for as the terminal's background is.
    pub theme: Option<ThemeChoice>,
    /// Draw with ASCII alone.
    pub ascii: bool,
    /// Clicks and the wheel are ours.
    pub mouse: bool,
    /// Change nothing on any host.
    pub readonly: bool,
    /// How much panes show; `None` for as it was left.
    pub density: Option<Density>,
    /// The note to somebody whose GPU is idle or may hang.
    pub message_template: MessageTemplate,
    /// The keys.
    pub keymap: Keymap,
}

impl Default for SettingsFile {
    fn default() -> Self {
        Self {
            theme: None,
            ascii: false,
            mouse: true,
            readonly: false,
            density: None,
            message_template: MessageTemplate::default(),
            keymap: Keymap::default(),
        }
    }
}

impl SettingsFile {
    /// Reads the text of the file that is shown as `path`.
    ///
    /// # Errors
    /// All mistakes at once, each with its line and column.
    pub fn parse(path: &str, text: &str) -> Result<Self, FileDiagnostics> {
        let failure = |diagnostics| FileDiagnostics::new(path, text, diagnostics);
        let (document, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            let diagnostics =
                errors.iter().map(|error| Diagnostic::without_hint(error.span().unwrap_or(0..0), error.message()));
            return Err(failure(diagnostics.collect()));
        }
        let mut diagnostics = Vec::new();
        let mut settings = Self::default();
        for (key, value) in document.get_ref() {
            if let Err(diagnostic) = settings.read_key(key.get_ref().as_ref(), key.span(), value, &mut diagnostics) {
                diagnostics.push(diagnostic);
            }
        }
        if diagnostics.is_empty() { Ok(settings) } else { Err(failure(diagnostics)) }
    }

    fn read_key(
        &mut self,
        key: &str,
        at: Range<usize>,
        value: &Spanned<DeValue<'_>>,
        diagnostics: &mut Vec<Diagnostic>,
    ) -> Result<(), Diagnostic> {
        let word = |example: &str| value.get_ref().as_str().ok_or_else(|| mismatch(key, "a string", value, example));
        match key {
            "theme" => {
                self.theme = match word("theme = \"dark\"")? {
                    "auto" => None,
                    "dark" => Some(ThemeChoice::Dark),
                    "light" => Some(ThemeChoice::Light),
                    "mono" => Some(ThemeChoice::Mono),
                    other => return Err(not_among(key, other, value.span(), &["auto", "dark", "light", "mono"])),
                };
            }
            "ascii" => self.ascii = boolean(key, value)?,
            "mouse" => self.mouse = boolean(key, value)?,
            "readonly" => self.readonly = boolean(key, value)?,
            "density" => {
                let wanted = word("density = \"auto\"")?;
                let found = Density::ALL.into_iter().find(|density| density.word() == wanted);
                let words = Density::ALL.map(Density::word);
                self.density = Some(found.ok_or_else(|| not_among(key, wanted, value.span(), &words))?);
            }
            "note" => {
                let template = word("note = \"{name}, is {program} on {host} still needed?\"")?;
                self.message_template = MessageTemplate::parse(template).map_err(|error| {
                    // Behind the quote; what is escaped or in three quotes is shown from its beginning.
                    let start = value.span().start + 1;
                    let is_plain = value.span().len() == template.len() + 2;
                    let at = if is_plain { start + error.at.start..start + error.at.end } else { value.span() };
                    Diagnostic::at(at, error.message, error.hint)
                })?;
            }
            "keys" => match value.get_ref() {
                DeValue::Table(table) => self.keymap = keys(table, diagnostics),
                _ => return Err(mismatch(key, "a table", value, "the header [keys] and shell = \"s\" below it")),
            },
            unknown => return Err(unknown_key(unknown, at, KEYS)),
        }
        Ok(())
    }
}

/// The keys that the table gives to actions.
fn keys(table: &DeTable<'_>, diagnostics: &mut Vec<Diagnostic>) -> Keymap {
    let named = named_actions();
    let mut assignments: Vec<Assignment> = Vec::new();
    let mut spans_by_assignment: Vec<Vec<Range<usize>>> = Vec::new();
    for (name, value) in table {
        let word = name.get_ref().as_ref();
        let Some((_, action)) = named.iter().find(|(known, _)| *known == word) else {
            let hint = did_you_mean(word, named.iter().map(|(known, _)| *known))
                .unwrap_or_else(|| "docs/keys.md lists the actions".to_owned());
            diagnostics.push(Diagnostic::at(name.span(), format!("there is no action `{word}`"), hint));
            continue;
        };
        let example = format!("{word} = [\"x\", \"C-x\", \"F2\"]");
        let texts: Vec<(Range<usize>, Option<&str>)> = match value.get_ref() {
            DeValue::Array(array) => array.iter().map(|key| (key.span(), key.get_ref().as_str())).collect(),
            single => vec![(value.span(), single.as_str())],
        };
        if texts.is_empty() || texts.len() > MAX_KEYS {
            let message = format!("{} keys for `{word}`; it has 1 to {MAX_KEYS}", texts.len());
            diagnostics.push(Diagnostic::at(value.span(), message, format!("as in {example}")));
            continue;
        }
        let (mut keys, mut spans) = (Vec::new(), Vec::new());
        for (at, text) in texts {
            match text.map(|text| (text, Key::parse(text))) {
                Some((_, Some(key))) => {
                    keys.push(key);
                    spans.push(at);
                }
                Some((text, None)) => diagnostics.push(Diagnostic::at(
                    at,
                    format!("\"{text}\" is no key"),
                    "a character, C- and a small letter, F1 to F12, or Up, PgDn, Home, Tab, Space, Enter and the like",
                )),
                None => diagnostics.push(mismatch(word, "a key or a list of keys", value, &example)),
            }
        }
        assignments.push((*action, keys));
        spans_by_assignment.push(spans);
    }
    match Keymap::with_overrides(&assignments) {
        Ok(keymap) => keymap,
        Err(conflicts) => {
            diagnostics.extend(conflicts.into_iter().map(|conflict| {
                let (assignment, key) = conflict.assignment_and_key;
                let at = spans_by_assignment.get(assignment).and_then(|spans| spans.get(key)).cloned().unwrap_or(0..0);
                Diagnostic::at(at, conflict.message, conflict.hint)
            }));
            Keymap::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::{Action, Mode};
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    const EXAMPLE: &str = include_str!("../../settings.example.toml");

    fn diagnostics(text: &str) -> String {
        SettingsFile::parse("settings.toml", text).expect_err(text).to_string()
    }

    #[test]
    fn the_example_is_read_and_explains_every_key() {
        let settings = SettingsFile::parse("settings.example.toml", EXAMPLE).expect("is right");
        assert_eq!((settings.theme, settings.mouse, settings.readonly), (None, true, false));
        assert_eq!(settings.message_template, MessageTemplate::default(), "it shows the note that is built in");
        for key in KEYS {
            let is_set =
                EXAMPLE.lines().any(|line| line.starts_with(&format!("{key} = ")) || line == format!("[{key}]"));
            assert!(is_set, "settings.example.toml does not set `{key}`");
        }
    }

    #[test]
    fn what_is_said_is_taken() {
        let text = "theme = \"light\"\nmouse = false\nreadonly = true\ndensity = \"full\"\nnote = \"{user}?\"\n[keys]\n\
                    shell = [\"C-s\", \"F2\"]\nquit = \"Q\"\n";
        let settings = SettingsFile::parse("settings.toml", text).expect("is right");
        assert_eq!(settings.theme, Some(ThemeChoice::Light));
        assert_eq!((settings.mouse, settings.readonly, settings.density), (false, true, Some(Density::Full)));
        let control = KeyEvent::new(KeyCode::Char('s'), KeyModifiers::CONTROL);
        assert_eq!(settings.keymap.action(Mode::Grid, &control), Some(Action::Shell));
        let old = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE);
        assert_eq!(settings.keymap.action(Mode::Grid, &old), None);
    }

    #[test]
    fn all_mistakes_are_told_at_once_with_their_places() {
        let text = "theem = \"dark\"\ndensity = \"fill\"\nnote = \"{nam}\"\nmouse = 1\n[keys]\nshel = \"x\"\nshell = \
                    \"Ctrl-x\"\ncopy = \"m\"\nwall = []\n";
        assert_eq!(
            diagnostics(text),
            "\
settings.toml:1:1: unknown key `theem`
  1 | theem = \"dark\"
    | ^^^^^
    = hint: did you mean `theme`?
settings.toml:2:11: `density` cannot be \"fill\"
  2 | density = \"fill\"
    |           ^^^^^^
    = hint: did you mean \"full\"?
settings.toml:3:9: there is no field `nam`
  3 | note = \"{nam}\"
    |         ^^^^^
    = hint: did you mean {name}?
settings.toml:4:9: `mouse` must be true or false, not an integer
  4 | mouse = 1
    |         ^
    = hint: as in mouse = true
settings.toml:6:1: there is no action `shel`
  6 | shel = \"x\"
    | ^^^^
    = hint: did you mean `shell`?
settings.toml:7:9: \"Ctrl-x\" is no key
  7 | shell = \"Ctrl-x\"
    |         ^^^^^^^^
    = hint: a character, C- and a small letter, F1 to F12, or Up, PgDn, Home, Tab, Space, Enter and the like
settings.toml:8:8: `m` for `copy` means something else in the grid: your own processes alone
  8 | copy = \"m\"
    |        ^^^
    = hint: another key, or another one for `mine` as well
settings.toml:9:8: 0 keys for `wall`; it has 1 to 8
  9 | wall = []
    |        ^^
    = hint: as in wall = [\"x\", \"C-x\", \"F2\"]
8 errors in settings.toml
"
        );
        assert!(diagnostics("theme = ").starts_with("settings.toml:1:"));
    }
}
