//! `settings.toml` and the settings that drawing uses.

use super::keymap::{Assignment, Key, Keymap, named_actions};
use super::layout::Density;
use super::message_template::MessageTemplate;
use crate::config::did_you_mean;
use crate::config::{Diagnostic, FileDiagnostics, boolean, mismatch, not_among, unknown_key};
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// How the screen is drawn; decided before the first frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DisplaySettings {
    /// The colours.
    pub theme: ThemeChoice,
    /// The number of colours of the terminal.
    pub color_depth: ColorDepth,
    /// Draw with ASCII characters only (`--ascii`).
    pub ascii: bool,
    /// Send no signals and open no shell (`--readonly`).
    pub is_readonly: bool,
    /// Seconds by which local time is ahead of UTC. The event loop updates it because daylight saving time may begin.
    pub utc_offset_seconds: i32,
}

impl Default for DisplaySettings {
    fn default() -> Self {
        Self {
            theme: ThemeChoice::Dark,
            color_depth: ColorDepth::Indexed256,
            ascii: false,
            is_readonly: false,
            utc_offset_seconds: 0,
        }
    }
}

/// The colours. `NO_COLOR` means [`ThemeChoice::Mono`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ThemeChoice {
    /// For dark backgrounds.
    #[default]
    Dark,
    /// For light backgrounds.
    Light,
    /// Attributes (bold, reverse, dim) instead of colours.
    Mono,
}

/// The number of colours of the terminal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ColorDepth {
    /// 24-bit colours (`COLORTERM=truecolor`).
    TrueColor,
    /// The xterm palette of 256 colours.
    #[default]
    Indexed256,
    /// The 16 colours of the terminal's theme.
    Basic16,
}

/// All keys of the file.
const KEYS: [&str; 7] = ["theme", "ascii", "mouse", "readonly", "density", "note", "keys"];

/// The most keys for one action.
const MAX_KEYS: usize = 8;

/// The parsed `settings.toml` with defaults for missing keys.
#[derive(Debug, Clone)]
pub struct SettingsFile {
    /// The colours. `None` chooses by the background of the terminal.
    pub theme: Option<ThemeChoice>,
    /// Draw with ASCII characters only. `None` chooses by the locale and the terminal.
    pub ascii: Option<bool>,
    /// Report clicks and the wheel to gpufleet.
    pub mouse: bool,
    /// Send no signals and open no shell.
    pub readonly: bool,
    /// The density. `None` keeps the density of the last run.
    pub density: Option<Density>,
    /// The message to the user of an idle or hung GPU.
    pub message_template: MessageTemplate,
    /// The bindings.
    pub keymap: Keymap,
}

impl Default for SettingsFile {
    fn default() -> Self {
        Self {
            theme: None,
            ascii: None,
            mouse: true,
            readonly: false,
            density: None,
            message_template: MessageTemplate::default(),
            keymap: Keymap::default(),
        }
    }
}

impl SettingsFile {
    /// Parses the text of the file. Diagnostics name it `path`.
    ///
    /// # Errors
    /// Returns all errors, each with line and column.
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
            "ascii" => {
                self.ascii = match value.get_ref().as_str() {
                    Some("auto") => None,
                    Some(other) => return Err(not_among(key, other, value.span(), &["auto"])),
                    None => Some(boolean(key, value)?),
                };
            }
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
                    // The offset is exact only in a plain string without escapes.
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

/// Parses the table `[keys]`.
fn keys(table: &DeTable<'_>, diagnostics: &mut Vec<Diagnostic>) -> Keymap {
    let named = named_actions();
    let mut assignments: Vec<Assignment> = Vec::new();
    let mut spans_by_assignment: Vec<Vec<Range<usize>>> = Vec::new();
    for (name, value) in table {
        let word = name.get_ref().as_ref();
        let Some((_, action)) = named.iter().find(|(known, _)| *known == word) else {
            let hint = did_you_mean(word, named.iter().map(|(known, _)| *known))
                .unwrap_or_else(|| "docs/keys.md lists the actions".to_owned());
            diagnostics.push(Diagnostic::at(name.span(), format!("unknown action `{word}`"), hint));
            continue;
        };
        let example = format!("{word} = [\"x\", \"C-x\", \"F2\"]");
        let texts: Vec<(Range<usize>, Option<&str>)> = match value.get_ref() {
            DeValue::Array(array) => array.iter().map(|key| (key.span(), key.get_ref().as_str())).collect(),
            single => vec![(value.span(), single.as_str())],
        };
        if texts.is_empty() || texts.len() > MAX_KEYS {
            let message = format!("`{word}` has {} keys; 1 to {MAX_KEYS} are allowed", texts.len());
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
                    format!("\"{text}\" is not a key"),
                    "use a character, C- and a lower-case letter, F1 to F12, or a name such as Up, PgDn, Home, Tab, Space or Enter",
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
    fn the_example_file_is_valid_and_sets_every_key() {
        let settings = SettingsFile::parse("settings.example.toml", EXAMPLE).expect("is right");
        assert_eq!((settings.theme, settings.ascii), (None, None));
        assert_eq!((settings.mouse, settings.readonly), (true, false));
        assert_eq!(settings.message_template, MessageTemplate::default(), "it shows the built-in template");
        for key in KEYS {
            let is_set =
                EXAMPLE.lines().any(|line| line.starts_with(&format!("{key} = ")) || line == format!("[{key}]"));
            assert!(is_set, "settings.example.toml does not set `{key}`");
        }
    }

    #[test]
    fn parse_returns_the_values_of_the_file() {
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
    fn ascii_is_true_false_or_automatic() {
        let ascii = |text: &str| SettingsFile::parse("settings.toml", text).expect("is right").ascii;
        assert_eq!(
            ["ascii = true", "ascii = false", "ascii = \"auto\"", ""].map(ascii),
            [Some(true), Some(false), None, None]
        );
        assert!(diagnostics("ascii = \"yes\"").contains("`ascii` cannot be \"yes\""));
    }

    #[test]
    fn parse_reports_all_errors_with_line_and_column() {
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
settings.toml:3:9: unknown field `nam`
  3 | note = \"{nam}\"
    |         ^^^^^
    = hint: did you mean {name}?
settings.toml:4:9: `mouse` must be true or false, not an integer
  4 | mouse = 1
    |         ^
    = hint: as in mouse = true
settings.toml:6:1: unknown action `shel`
  6 | shel = \"x\"
    | ^^^^
    = hint: did you mean `shell`?
settings.toml:7:9: \"Ctrl-x\" is not a key
  7 | shell = \"Ctrl-x\"
    |         ^^^^^^^^
    = hint: use a character, C- and a lower-case letter, F1 to F12, or a name such as Up, PgDn, Home, Tab, Space or Enter
settings.toml:8:8: `m` for `copy` has another meaning (grid): only your own processes
  8 | copy = \"m\"
    |        ^^^
    = hint: use another key, or change the key of `mine` too
settings.toml:9:8: `wall` has 0 keys; 1 to 8 are allowed
  9 | wall = []
    |        ^^
    = hint: as in wall = [\"x\", \"C-x\", \"F2\"]
8 errors in settings.toml
"
        );
        assert!(diagnostics("theme = ").starts_with("settings.toml:1:"));
    }
}
