//! The display settings: `settings.toml`, the options of the screen, the environment and the terminal's background.

use crate::app::{ColorDepth, DisplaySettings, SettingsFile, ThemeChoice};
use crate::cli::arguments::{ScreenArgs, Theme};
use crate::config::MAX_FILE_BYTES;
use crate::store::{Directories, read_text};

/// Returns the display settings. Options take precedence over `settings.toml`.
///
/// `NO_COLOR` (no-color.org) turns colours off unless a theme is named. Without a theme, the background that the
/// terminal reports decides, then `COLORFGBG`, which rxvt, Konsole and others set; the default is dark.
pub(super) fn settings(
    arguments: &ScreenArgs,
    preferences: &SettingsFile,
    environment: &dyn Fn(&str) -> Option<String>,
    is_light: Option<bool>,
) -> DisplaySettings {
    let is_set = |name| environment(name).is_some_and(|value| !value.is_empty());
    let automatic = || match environment("COLORFGBG").and_then(|value| value.rsplit(';').next()?.parse::<u8>().ok()) {
        _ if is_set("NO_COLOR") => ThemeChoice::Mono,
        _ if is_light == Some(true) => ThemeChoice::Light,
        _ if is_light == Some(false) => ThemeChoice::Dark,
        Some(7 | 15) => ThemeChoice::Light,
        _ => ThemeChoice::Dark,
    };
    let theme = match arguments.theme {
        Some(Theme::Dark) => ThemeChoice::Dark,
        Some(Theme::Light) => ThemeChoice::Light,
        Some(Theme::Mono) => ThemeChoice::Mono,
        Some(Theme::Auto) => automatic(),
        None => preferences.theme.unwrap_or_else(automatic),
    };
    let terminal = environment("TERM").unwrap_or_default();
    let color_depth = match environment("COLORTERM").as_deref() {
        Some("truecolor" | "24bit") => ColorDepth::TrueColor,
        _ if terminal.contains("256color") => ColorDepth::Indexed256,
        _ => ColorDepth::Basic16,
    };
    DisplaySettings {
        theme,
        color_depth,
        ascii: match (arguments.ascii, arguments.no_ascii) {
            (true, _) => true,
            (_, true) => false,
            _ => preferences.ascii.unwrap_or_else(|| needs_ascii(environment, cfg!(target_os = "macos"))),
        },
        is_readonly: arguments.readonly || preferences.readonly,
        utc_offset_seconds: utc_offset_seconds(),
    }
}

/// Returns whether the terminal cannot be expected to show Unicode.
///
/// The Linux console has few glyphs. Elsewhere the character set of the locale decides: the first of `LC_ALL`, `LC_CTYPE`
/// and `LANG` that is set and not empty (POSIX, XBD 8.2). Without any of them the locale is `C`, except on macOS, whose
/// terminals all use UTF-8 and do not always set a locale.
fn needs_ascii(environment: &dyn Fn(&str) -> Option<String>, is_macos: bool) -> bool {
    if environment("TERM").as_deref() == Some("linux") {
        return true;
    }
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(environment).find(|value| !value.is_empty());
    match locale {
        Some(locale) => {
            let locale = locale.to_ascii_lowercase();
            !locale.contains("utf-8") && !locale.contains("utf8")
        }
        None => !is_macos,
    }
}

/// Returns the current offset of local time from UTC in seconds.
pub(super) fn utc_offset_seconds() -> i32 {
    jiff::Zoned::now().offset().seconds()
}

/// Reads `settings.toml`. If it has mistakes, returns the defaults and the mistakes.
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

/// Returns the first mistake and the number of others as one line. The full text is printed at the end of the program.
pub(super) fn settings_notice(errors: &str) -> String {
    let first = errors.lines().next().unwrap_or_default();
    let more = errors.lines().filter(|line| is_caret(line)).count().saturating_sub(1);
    let more = match more {
        0 => String::new(),
        1 => ", and 1 more mistake".to_owned(),
        count => format!(", and {count} more mistakes"),
    };
    format!("{first}{more}; the default settings apply")
}

/// Whether the line contains the carets below a source line.
fn is_caret(line: &str) -> bool {
    line.trim_start().strip_prefix('|').is_some_and(|rest| rest.trim_start().starts_with('^'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn display_settings(theme: Option<Theme>, environment: &[(&str, &str)]) -> DisplaySettings {
        let find = |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let arguments = ScreenArgs { theme, ascii: false, no_ascii: false, readonly: false, log: None };
        settings(&arguments, &SettingsFile::default(), &find, None)
    }

    #[test]
    fn options_override_settings_and_settings_override_the_terminal() {
        let arguments = |theme| ScreenArgs { theme, ascii: false, no_ascii: false, readonly: false, log: None };
        let nothing = |_: &str| None;
        let light = SettingsFile { theme: Some(ThemeChoice::Light), readonly: true, ..SettingsFile::default() };
        let mono = settings(&arguments(Some(Theme::Mono)), &light, &nothing, Some(false));
        assert_eq!((mono.theme, mono.is_readonly), (ThemeChoice::Mono, true));
        assert_eq!(settings(&arguments(None), &light, &nothing, Some(false)).theme, ThemeChoice::Light);
        assert_eq!(settings(&arguments(Some(Theme::Auto)), &light, &nothing, Some(false)).theme, ThemeChoice::Dark);
        let built_in = SettingsFile::default();
        assert_eq!(settings(&arguments(None), &built_in, &nothing, Some(true)).theme, ThemeChoice::Light);
        let fgbg = |name: &str| (name == "COLORFGBG").then(|| "0;15".to_owned());
        assert_eq!(settings(&arguments(None), &built_in, &fgbg, Some(false)).theme, ThemeChoice::Dark);
    }

    #[test]
    fn the_environment_applies_without_options() {
        assert_eq!(display_settings(None, &[]).theme, ThemeChoice::Dark);
        assert_eq!(display_settings(None, &[("COLORFGBG", "0;15")]).theme, ThemeChoice::Light);
        assert_eq!(display_settings(None, &[("COLORFGBG", "15;default;0")]).theme, ThemeChoice::Dark);
        assert_eq!(display_settings(None, &[("NO_COLOR", "1"), ("COLORFGBG", "0;15")]).theme, ThemeChoice::Mono);
        assert_eq!(display_settings(None, &[("NO_COLOR", "")]).theme, ThemeChoice::Dark);
        assert_eq!(display_settings(Some(Theme::Light), &[("NO_COLOR", "1")]).theme, ThemeChoice::Light);
        assert_eq!(display_settings(None, &[("COLORTERM", "truecolor")]).color_depth, ColorDepth::TrueColor);
        assert_eq!(display_settings(None, &[("TERM", "tmux-256color")]).color_depth, ColorDepth::Indexed256);
        assert_eq!(display_settings(None, &[("TERM", "linux")]).color_depth, ColorDepth::Basic16);
    }

    #[test]
    fn ascii_follows_the_locale_and_the_terminal() {
        let needs = |variables: &[(&str, &str)], is_macos| {
            let find =
                |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            needs_ascii(&find, is_macos)
        };
        for (variables, expected) in [
            (&[("LANG", "en_US.UTF-8")][..], false),
            (&[("LANG", "C.utf8")], false),
            (&[("LANG", "C")], true),
            (&[("LANG", "de_DE.ISO-8859-1")], true),
            (&[("LANG", "de_DE@euro")], true),
            // LC_ALL takes precedence over LC_CTYPE, and that over LANG. An empty variable counts as unset.
            (&[("LC_ALL", "C"), ("LC_CTYPE", "en_US.UTF-8"), ("LANG", "en_US.UTF-8")], true),
            (&[("LC_ALL", ""), ("LC_CTYPE", "en_US.UTF-8"), ("LANG", "C")], false),
            (&[("LC_CTYPE", "POSIX"), ("LANG", "en_US.UTF-8")], true),
            // macOS sets LC_CTYPE to the bare name of the character set.
            (&[("LC_CTYPE", "UTF-8")], false),
            (&[("TERM", "linux"), ("LANG", "en_US.UTF-8")], true),
            (&[("TERM", "xterm-256color"), ("LANG", "en_US.UTF-8")], false),
        ] {
            assert_eq!(needs(variables, false), expected, "{variables:?}");
        }
        assert!(needs(&[], false) && !needs(&[], true), "without a locale");
        assert!(needs(&[("LANG", "C")], true));
    }

    #[test]
    fn options_and_settings_choose_the_characters_before_the_locale() {
        let ascii = |(ascii, no_ascii): (bool, bool), file: Option<bool>, locale: &str| {
            let arguments = ScreenArgs { theme: None, ascii, no_ascii, readonly: false, log: None };
            let preferences = SettingsFile { ascii: file, ..SettingsFile::default() };
            settings(&arguments, &preferences, &|name| (name == "LANG").then(|| locale.to_owned()), None).ascii
        };
        let (utf8, other) = ("C.UTF-8", "C");
        assert!(ascii((true, false), Some(false), utf8));
        assert!(!ascii((false, true), Some(true), other));
        assert!(ascii((false, false), Some(true), utf8) && !ascii((false, false), Some(false), other));
        assert!(ascii((false, false), None, other) && !ascii((false, false), None, utf8));
    }

    #[test]
    fn the_notice_is_one_line() {
        let errors =
            SettingsFile::parse("/c/settings.toml", "theem = 1\nmouse = 1\n").expect_err("two mistakes").to_string();
        assert_eq!(
            settings_notice(&errors),
            "/c/settings.toml:1:1: unknown key `theem`, and 1 more mistake; the default settings apply"
        );
        assert_eq!(
            settings_notice("cannot read /c/settings.toml: Permission denied\n  hint: x\n"),
            "cannot read /c/settings.toml: Permission denied; the default settings apply"
        );
    }
}
