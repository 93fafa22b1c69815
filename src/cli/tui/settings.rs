//! What the screen looks like: from the arguments, settings.toml, the environment and the terminal.

use crate::app::{ColorDepth, DisplaySettings, SettingsFile, ThemeChoice};
use crate::cli::arguments::{ScreenArgs, Theme};
use crate::config::MAX_FILE_BYTES;
use crate::store::{Directories, read_text};

/// What the arguments, the settings and the environment say about the looks.
///
/// `NO_COLOR` (no-color.org) means no colours unless a theme is named. Where none is named, the terminal says whether its
/// background is light, else `COLORFGBG`, which rxvt, Konsole and others set; everything else counts as dark.
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
        ascii: arguments.ascii || preferences.ascii,
        is_readonly: arguments.readonly || preferences.readonly,
        utc_offset_seconds: utc_offset_seconds(),
    }
}

/// Seconds that local time is ahead of UTC now.
pub(super) fn utc_offset_seconds() -> i32 {
    jiff::Zoned::now().offset().seconds()
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(theme: Option<Theme>, environment: &[(&str, &str)]) -> DisplaySettings {
        let find = |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let arguments = ScreenArgs { theme, ascii: false, readonly: false, log: None };
        settings(&arguments, &SettingsFile::default(), &find, None)
    }

    #[test]
    fn the_command_line_comes_before_the_settings_and_these_before_the_terminal() {
        let arguments = |theme| ScreenArgs { theme, ascii: false, readonly: false, log: None };
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
    fn the_environment_decides_what_the_arguments_leave_open() {
        assert_eq!(looks(None, &[]).theme, ThemeChoice::Dark);
        assert_eq!(looks(None, &[("COLORFGBG", "0;15")]).theme, ThemeChoice::Light);
        assert_eq!(looks(None, &[("COLORFGBG", "15;default;0")]).theme, ThemeChoice::Dark);
        assert_eq!(looks(None, &[("NO_COLOR", "1"), ("COLORFGBG", "0;15")]).theme, ThemeChoice::Mono);
        assert_eq!(looks(None, &[("NO_COLOR", "")]).theme, ThemeChoice::Dark);
        assert_eq!(looks(Some(Theme::Light), &[("NO_COLOR", "1")]).theme, ThemeChoice::Light);
        assert_eq!(looks(None, &[("COLORTERM", "truecolor")]).color_depth, ColorDepth::TrueColor);
        assert_eq!(looks(None, &[("TERM", "tmux-256color")]).color_depth, ColorDepth::Indexed256);
        assert_eq!(looks(None, &[("TERM", "linux")]).color_depth, ColorDepth::Basic16);
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
