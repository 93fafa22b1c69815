//! The colours and glyphs of the screen.
//!
//! High utilisation is good and therefore never red. Ordinary work is blue; amber and red mark what needs attention. Each
//! meaning also has a glyph, so that nothing depends on colour. The theme never sets a background.

use crate::app::{ColorDepth, DisplaySettings, ThemeChoice};
use crate::diagnosis::Severity;
use crate::fleet::GpuState;
use ratatui::style::{Color, Modifier, Style};

/// Styles by meaning, and the glyphs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Theme {
    pub(super) plain: Style,
    /// Busy GPUs.
    pub(super) busy: Style,
    /// Needs attention.
    pub(super) warn: Style,
    /// Needs action.
    pub(super) crit: Style,
    /// Secondary text and old values.
    pub(super) dim: Style,
    /// The item that receives keys.
    pub(super) focus: Style,
    /// The unfilled part of a bar.
    pub(super) track: Style,
    /// Wall cells by utilisation, lowest first.
    pub(super) ramp: [Style; 5],
    /// Patched onto the style of the selected wall cell.
    pub(super) selected: Style,
    pub(super) glyphs: &'static Glyphs,
    /// Draw ASCII characters only.
    pub(super) ascii: bool,
}

/// The glyphs of the screen.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Glyphs {
    /// A filled cell of a bar.
    pub(super) bar_full: &'static str,
    /// A half-filled cell of a bar.
    pub(super) bar_half: &'static str,
    /// An unfilled cell of a bar.
    pub(super) bar_track: &'static str,
    /// A cell of a bar that shows utilisation without power draw.
    pub(super) bar_hollow: &'static str,
    /// Follows a temperature.
    pub(super) degree: &'static str,
    /// Marks a cut text.
    pub(super) ellipsis: &'static str,
    /// A free GPU.
    pub(super) free: &'static str,
    /// The selected item.
    pub(super) pointer: &'static str,
    /// More items below.
    pub(super) down: &'static str,
    /// More items above.
    pub(super) up: &'static str,
    /// A completed step.
    pub(super) done: &'static str,
    /// The position of the next typed character.
    pub(super) caret: &'static str,
    /// A folded job.
    pub(super) folded: &'static str,
    /// An unfolded job.
    pub(super) open: &'static str,
    /// A process of an unfolded job.
    pub(super) child: &'static str,
    /// The last process of an unfolded job.
    pub(super) last_child: &'static str,
    /// A separator.
    pub(super) dot: &'static str,
    /// Progress, one glyph per second.
    pub(super) spinner: [&'static str; 4],
    /// Eight heights, lowest first. None is a full block: rows of full blocks merge.
    pub(super) levels: [&'static str; 8],
    /// Eight heights of a column of a chart, lowest first, up to a full cell.
    pub(super) columns: [&'static str; 8],
    /// The heights of a one-row chart, lowest first. The highest leaves a gap to the row above.
    pub(super) sparkline: &'static [&'static str],
    /// An ordinary box.
    pub(super) light: BoxGlyphs,
    /// The box that receives keys.
    pub(super) heavy: BoxGlyphs,
}

/// The glyphs of a box.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BoxGlyphs {
    /// The top and the bottom.
    pub(super) horizontal: &'static str,
    /// The left and the right side.
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
    columns: ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
    sparkline: &["▁", "▂", "▃", "▄", "▅"],
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
    columns: ["_", ".", ".", ".", ":", ":", ":", "#"],
    sparkline: &["_", ".", "-", "\""],
    light: BoxGlyphs { horizontal: "-", vertical: "|", corners: ["+", "+", "+", "+"] },
    heavy: BoxGlyphs { horizontal: "=", vertical: "#", corners: ["#", "#", "#", "#"] },
};

/// A colour as RGB and as an index into xterm's 256-colour palette.
#[derive(Debug, Clone, Copy)]
struct Shade {
    rgb: (u8, u8, u8),
    index: u8,
}

/// busy, warn, crit, dim, track. The contrast to the background is at least 4.8:1 for all but the track, and every pair is
/// distinguishable under deutan, protan and tritan vision.
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

/// The ramp of the wall as palette indexes: from grey to the blue of work. It does not end near white, because in a busy
/// fleet most cells are at its end and must not outshine amber and red. On white it starts darker than the track, so that
/// the lowest cell is visible.
const DARK_RAMP: [u8; 5] = [238, 24, 25, 32, 74];
const LIGHT_RAMP: [u8; 5] = [251, 110, 67, 31, 24];

impl Theme {
    /// Builds the theme for these settings.
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

    /// Returns the style of a GPU state: that of its findings, if the GPU hangs or is faulty.
    pub(super) fn state_style(&self, state: GpuState, severity: Option<Severity>) -> Style {
        match state {
            GpuState::Fault => self.severity_style(severity.unwrap_or(Severity::Crit)),
            GpuState::Hung => self.severity_style(severity.unwrap_or(Severity::Warn)),
            GpuState::InUse => self.busy,
            GpuState::Unknown | GpuState::Waiting | GpuState::Idle | GpuState::Free | GpuState::Unused => self.dim,
        }
    }

    /// Returns the style of a chart of utilization. That of a stuck job is no work: full blue columns would be the first
    /// thing to see.
    pub(super) fn utilization_style(&self, is_stuck: bool) -> Style {
        if is_stuck { self.dim } else { self.busy }
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

    /// Returns the glyph of the track. Without a colour it is a thin line, to differ from the filled part.
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
    fn mono_sets_no_colour_and_uses_attributes() {
        let theme = theme(ThemeChoice::Mono, ColorDepth::TrueColor);
        let styles = [theme.plain, theme.warn, theme.crit, theme.dim];
        assert!(styles.iter().all(|style| style.fg.is_none()));
        for (index, style) in styles.iter().enumerate() {
            assert!(styles[index + 1..].iter().all(|other| other != style));
        }
    }

    #[test]
    fn themes_have_their_documented_colours() {
        let dark = theme(ThemeChoice::Dark, ColorDepth::TrueColor);
        assert_eq!(dark.busy.fg, Some(Color::Rgb(0x56, 0xB4, 0xE9)));
        assert_eq!(dark.crit.fg, Some(Color::Rgb(0xFF, 0x6B, 0x4A)));
        let light = theme(ThemeChoice::Light, ColorDepth::Indexed256);
        assert_eq!([light.busy.fg, light.warn.fg], [Some(Color::Indexed(25)), Some(Color::Indexed(94))]);
        let basic = theme(ThemeChoice::Light, ColorDepth::Basic16);
        assert_eq!([basic.busy.fg, basic.warn.fg], [Some(Color::Cyan), Some(Color::Yellow)]);
    }

    /// The relative luminance (WCAG 2) of a palette index from 16 on, 0 to 1.
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
    fn each_step_of_the_ramp_has_more_contrast() {
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
    fn the_ascii_glyphs_are_ascii() {
        let text = format!("{ASCII:?}");
        assert!(text.is_ascii(), "{text}");
    }
}
