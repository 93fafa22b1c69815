//! The colours and characters everything is drawn with.
//!
//! High utilisation is good, so it is never red: ordinary work is one blue, amber and red are kept for what needs a
//! person. Every meaning also has a glyph, so that nothing depends on colour. The page's background is the user's.

use crate::app::{ColorDepth, DisplaySettings, ThemeChoice};
use crate::diagnosis::Severity;
use crate::fleet::GpuState;
use ratatui::style::{Color, Modifier, Style};

/// Styles by meaning, and the characters to draw with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Theme {
    /// Ordinary text.
    pub(super) plain: Style,
    /// Work being done.
    pub(super) busy: Style,
    /// Worth a look.
    pub(super) warn: Style,
    /// Needs a person.
    pub(super) crit: Style,
    /// Secondary text, and everything that is old.
    pub(super) dim: Style,
    /// Where the keys go.
    pub(super) focus: Style,
    /// The part of a bar that is not filled.
    pub(super) track: Style,
    /// How busy a cell of the wall is, the least first.
    pub(super) ramp: [Style; 5],
    /// Added to the style of the one cell that is selected among others.
    pub(super) selected: Style,
    /// The characters.
    pub(super) glyphs: &'static Glyphs,
    /// Nothing but ASCII may be drawn.
    pub(super) ascii: bool,
}

/// The characters that drawings are made of.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Glyphs {
    /// A whole cell of a bar.
    pub(super) bar_full: &'static str,
    /// Half a cell of a bar.
    pub(super) bar_half: &'static str,
    /// An unfilled cell of a bar.
    pub(super) bar_track: &'static str,
    /// A cell of the hollow bar: busy by the counter, not by the power it draws.
    pub(super) bar_hollow: &'static str,
    /// After a temperature.
    pub(super) degree: &'static str,
    /// In place of what does not fit.
    pub(super) ellipsis: &'static str,
    /// A GPU that is free.
    pub(super) free: &'static str,
    /// What is selected.
    pub(super) pointer: &'static str,
    /// More below.
    pub(super) down: &'static str,
    /// More above.
    pub(super) up: &'static str,
    /// A step that is done.
    pub(super) done: &'static str,
    /// Where typed text goes.
    pub(super) caret: &'static str,
    /// A job that is folded.
    pub(super) folded: &'static str,
    /// A job that is open.
    pub(super) open: &'static str,
    /// A process of an open job.
    pub(super) child: &'static str,
    /// The last process of an open job.
    pub(super) last_child: &'static str,
    /// Between words that belong together.
    pub(super) dot: &'static str,
    /// Activity while something is waited for, one a second.
    pub(super) spinner: [&'static str; 4],
    /// How busy one GPU is, in one cell, lowest first. No full block: rows of them would melt into one mass.
    pub(super) levels: [&'static str; 8],
    /// Heights of a line chart of one row, lowest first, where braille cannot be drawn.
    pub(super) sparkline: [&'static str; 4],
    /// Box of a pane.
    pub(super) light: BoxGlyphs,
    /// Box of the pane that has the keys.
    pub(super) heavy: BoxGlyphs,
}

/// The characters of a box.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BoxGlyphs {
    /// Top and bottom.
    pub(super) horizontal: &'static str,
    /// Left and right.
    pub(super) vertical: &'static str,
    /// Top left, top right, bottom left, bottom right.
    pub(super) corners: [&'static str; 4],
}

const UNICODE: Glyphs = Glyphs {
    bar_full: "━",
    bar_half: "╸",
    bar_track: "━",
    bar_hollow: "╌",
    degree: "°",
    ellipsis: "…",
    free: "·",
    pointer: "▸",
    down: "▼",
    up: "▲",
    done: "✓",
    caret: "▏",
    folded: "▸",
    open: "▾",
    child: "├",
    last_child: "└",
    dot: "·",
    spinner: ["⠋", "⠙", "⠸", "⠴"],
    levels: ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "▇"],
    sparkline: ["⣀", "⠤", "⠒", "⠉"],
    light: BoxGlyphs { horizontal: "─", vertical: "│", corners: ["╭", "╮", "╰", "╯"] },
    heavy: BoxGlyphs { horizontal: "━", vertical: "┃", corners: ["┏", "┓", "┗", "┛"] },
};

const ASCII: Glyphs = Glyphs {
    bar_full: "#",
    bar_half: "=",
    bar_track: "-",
    bar_hollow: ".",
    degree: "C",
    ellipsis: "~",
    free: ".",
    pointer: ">",
    down: "v",
    up: "^",
    done: "+",
    caret: "_",
    folded: "+",
    open: "-",
    child: "|",
    last_child: "`",
    dot: "-",
    spinner: ["|", "/", "-", "\\"],
    levels: ["0", "1", "2", "4", "5", "6", "7", "9"],
    sparkline: ["_", ".", "-", "\""],
    light: BoxGlyphs { horizontal: "-", vertical: "|", corners: ["+", "+", "+", "+"] },
    heavy: BoxGlyphs { horizontal: "=", vertical: "#", corners: ["#", "#", "#", "#"] },
};

/// One colour as 24 bits and as an index into xterm's palette.
#[derive(Debug, Clone, Copy)]
struct Shade {
    rgb: (u8, u8, u8),
    index: u8,
}

/// busy, warn, crit, dim, track. Contrast is at least 4.8:1 on the background meant, and every pair but the track is
/// told apart under deutan, protan and tritan vision.
const DARK: [Shade; 5] = [
    Shade { rgb: (0x56, 0xB4, 0xE9), index: 74 },
    Shade { rgb: (0xF0, 0xB4, 0x29), index: 214 },
    Shade { rgb: (0xFF, 0x6B, 0x4A), index: 203 },
    Shade { rgb: (0x8A, 0x8A, 0x8A), index: 245 },
    Shade { rgb: (0x3A, 0x3A, 0x3A), index: 237 },
];
const LIGHT: [Shade; 5] = [
    Shade { rgb: (0x00, 0x63, 0x9C), index: 25 },
    Shade { rgb: (0x94, 0x62, 0x00), index: 94 },
    Shade { rgb: (0xA3, 0x00, 0x3C), index: 125 },
    Shade { rgb: (0x6B, 0x6B, 0x6B), index: 242 },
    Shade { rgb: (0xD0, 0xD0, 0xD0), index: 252 },
];

/// The ramp of the wall as indexes into xterm's palette: from the track's grey to the blue of work. It ends there and not
/// near white: most cells of a fleet that works are at its end, and must not outshine amber and red. On white it begins a
/// little darker than the track: the lowest cell is a line that has to be seen.
const DARK_RAMP: [u8; 5] = [238, 24, 25, 32, 74];
const LIGHT_RAMP: [u8; 5] = [251, 110, 67, 31, 24];

impl Theme {
    /// The theme that the settings ask for.
    pub(super) fn new(settings: DisplaySettings) -> Self {
        let glyphs = if settings.ascii { &ASCII } else { &UNICODE };
        let base = Self {
            plain: Style::new(),
            busy: Style::new(),
            warn: Style::new().add_modifier(Modifier::BOLD),
            crit: Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED),
            dim: Style::new().add_modifier(Modifier::DIM),
            focus: Style::new().add_modifier(Modifier::BOLD),
            track: Style::new().add_modifier(Modifier::DIM),
            ramp: [Style::new(); 5],
            selected: Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED),
            glyphs,
            ascii: settings.ascii,
        };
        match (settings.theme, settings.color_depth) {
            (ThemeChoice::Mono, _) => base,
            (_, ColorDepth::Basic16) => Self {
                busy: Style::new().fg(Color::Cyan),
                ramp: [Style::new().fg(Color::Cyan); 5],
                warn: Style::new().fg(Color::Yellow),
                crit: Style::new().fg(Color::LightRed).add_modifier(Modifier::BOLD),
                ..base
            },
            (choice, depth) => {
                let shades = if choice == ThemeChoice::Light { LIGHT } else { DARK };
                let style = |shade: Shade| match (depth, shade.rgb) {
                    (ColorDepth::TrueColor, (red, green, blue)) => Style::new().fg(Color::Rgb(red, green, blue)),
                    _ => Style::new().fg(Color::Indexed(shade.index)),
                };
                let [busy, warn, crit, dim, track] = shades.map(style);
                let ramp = if choice == ThemeChoice::Light { LIGHT_RAMP } else { DARK_RAMP };
                let ramp = ramp.map(|index| Style::new().fg(Color::Indexed(index)));
                Self { busy, warn, crit, dim, track, ramp, ..base }
            }
        }
    }

    /// Returns the style of a finding.
    pub(super) fn severity_style(&self, severity: Severity) -> Style {
        match severity {
            Severity::Crit => self.crit,
            Severity::Warn => self.warn,
            Severity::Info => self.plain,
        }
    }

    /// Returns the style of a GPU state.
    pub(super) fn state_style(&self, state: GpuState) -> Style {
        match state {
            GpuState::Fault | GpuState::Hung => self.crit,
            GpuState::InUse => self.busy,
            GpuState::Unknown | GpuState::Waiting | GpuState::Idle | GpuState::Free | GpuState::Unused => self.dim,
        }
    }

    /// Returns the glyph of a GPU state.
    pub(super) fn state_glyph(&self, state: GpuState) -> &'static str {
        match state {
            GpuState::Fault => "!",
            GpuState::Hung => "?",
            GpuState::Unknown => "~",
            GpuState::InUse => self.glyphs.bar_full,
            GpuState::Waiting => "w",
            GpuState::Idle => "z",
            GpuState::Free => self.glyphs.free,
            GpuState::Unused => "-",
        }
    }

    /// Returns the glyph for a percentage, one of eight heights.
    pub(super) fn level_glyph(&self, percent: f32) -> &'static str {
        self.glyphs.levels[((percent / 12.5) as usize).min(7)]
    }

    /// Whether filled and unfilled cells of a bar differ by colour alone would not do: then the track is a thin line.
    pub(super) fn track_glyph(&self) -> &'static str {
        if self.track.fg.is_none() && !self.ascii { "─" } else { self.glyphs.bar_track }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn theme(theme: ThemeChoice, color_depth: ColorDepth) -> Theme {
        Theme::new(DisplaySettings { theme, color_depth, ..DisplaySettings::default() })
    }

    #[test]
    fn no_style_sets_a_background_or_bright_black() {
        for choice in [ThemeChoice::Dark, ThemeChoice::Light, ThemeChoice::Mono] {
            for depth in [ColorDepth::TrueColor, ColorDepth::Indexed256, ColorDepth::Basic16] {
                let theme = theme(choice, depth);
                for style in [theme.plain, theme.busy, theme.warn, theme.crit, theme.dim, theme.focus, theme.track] {
                    assert_eq!(style.bg, None);
                    assert_ne!(style.fg, Some(Color::DarkGray));
                    assert!(!matches!(style.fg, Some(Color::Green | Color::LightGreen)));
                }
            }
        }
    }

    #[test]
    fn mono_sets_no_colour_and_tells_the_meanings_apart_by_attributes() {
        let theme = theme(ThemeChoice::Mono, ColorDepth::TrueColor);
        let styles = [theme.plain, theme.warn, theme.crit, theme.dim];
        assert!(styles.iter().all(|style| style.fg.is_none()));
        for (index, style) in styles.iter().enumerate() {
            assert!(styles[index + 1..].iter().all(|other| other != style));
        }
    }

    #[test]
    fn tokens_are_those_of_the_sheet() {
        let dark = theme(ThemeChoice::Dark, ColorDepth::TrueColor);
        assert_eq!(dark.busy.fg, Some(Color::Rgb(0x56, 0xB4, 0xE9)));
        assert_eq!(dark.crit.fg, Some(Color::Rgb(0xFF, 0x6B, 0x4A)));
        let light = theme(ThemeChoice::Light, ColorDepth::Indexed256);
        assert_eq!([light.busy.fg, light.warn.fg], [Some(Color::Indexed(25)), Some(Color::Indexed(94))]);
        let basic = theme(ThemeChoice::Light, ColorDepth::Basic16);
        assert_eq!([basic.busy.fg, basic.warn.fg], [Some(Color::Cyan), Some(Color::Yellow)]);
    }

    /// How bright a colour of xterm's palette beyond the first 16 is, 0 to 1.
    fn luminance(index: u8) -> f64 {
        let level = |step: u8| if step == 0 { 0.0 } else { f64::from(55 + 40 * u16::from(step)) / 255.0 };
        let [red, green, blue] = match index {
            232.. => [f64::from(8 + 10 * u16::from(index - 232)) / 255.0; 3],
            _ => [(index - 16) / 36, (index - 16) / 6 % 6, (index - 16) % 6].map(level),
        };
        let linear = |share: f64| if share <= 0.040_45 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) };
        0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
    }

    #[test]
    fn the_ramp_leaves_the_background_step_by_step_and_is_seen_from_the_first() {
        for (ramp, background) in [(DARK_RAMP, 0.012), (LIGHT_RAMP, 1.0)] {
            let contrast = |index: u8| {
                let (one, other) = (luminance(index) + 0.05, background + 0.05);
                f64::max(one / other, other / one)
            };
            assert!(ramp.windows(2).all(|pair| contrast(pair[0]) < contrast(pair[1])), "{:?}", ramp.map(contrast));
            assert!(contrast(ramp[0]) >= 1.6, "{:?}", ramp.map(contrast));
        }
    }

    #[test]
    fn the_ascii_set_is_ascii() {
        let text = format!("{ASCII:?}");
        assert!(text.is_ascii(), "{text}");
    }
}
