//! How the screen shall look: plain data, decided before the first frame.

/// What the user, or the terminal, wants the screen to look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DisplaySettings {
    /// Which set of colours.
    pub theme: ThemeChoice,
    /// How many colours the terminal has.
    pub color_depth: ColorDepth,
    /// Draw with ASCII alone (`--ascii`).
    pub ascii: bool,
    /// No signal is sent (`--readonly`).
    pub is_readonly: bool,
    /// Seconds that local time is ahead of UTC. The event loop renews it, so that a change to summer time shows.
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

/// Which set of colours. `NO_COLOR` means [`ThemeChoice::Mono`].
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

/// How many colours the terminal has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ColorDepth {
    /// 24-bit colours (`COLORTERM=truecolor`).
    TrueColor,
    /// xterm's palette of 256.
    #[default]
    Indexed256,
    /// The sixteen that the user's terminal theme defines.
    Basic16,
}
