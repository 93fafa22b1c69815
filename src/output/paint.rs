//! Colours for text that is printed once, as SGR sequences.

/// Whether text is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paint {
    is_on: bool,
}

/// The meaning of a piece of text. The terminal's palette decides the colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Default colour.
    Plain,
    /// A heading.
    Strong,
    /// Not important now.
    Dim,
    /// Busy.
    Busy,
    /// Needs attention.
    Warn,
    /// Needs immediate attention.
    Critical,
}

impl Paint {
    /// With colour.
    pub const ON: Self = Self { is_on: true };
    /// Without colour.
    pub const OFF: Self = Self { is_on: false };

    /// Colour if the output is a terminal, `NO_COLOR` is unset or empty (no-color.org), and `TERM` is not `dumb`.
    pub fn of_terminal(is_terminal: bool, no_color: Option<&str>, term: Option<&str>) -> Self {
        let is_unwanted = no_color.is_some_and(|value| !value.is_empty()) || term == Some("dumb");
        Self { is_on: is_terminal && !is_unwanted }
    }

    /// Returns the text with the colour of its tone.
    pub fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            _ if !self.is_on || text.trim().is_empty() => return text.to_owned(),
            Tone::Plain => return text.to_owned(),
            Tone::Strong => "1",
            Tone::Dim => "2",
            Tone::Busy => "36",
            Tone::Warn => "33",
            Tone::Critical => "1;91",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_follows_terminal_no_color_and_term() {
        assert_eq!(Paint::of_terminal(true, None, Some("xterm")), Paint::ON);
        assert_eq!(Paint::of_terminal(true, Some(""), None), Paint::ON);
        assert_eq!(Paint::of_terminal(true, Some("1"), None), Paint::OFF);
        assert_eq!(Paint::of_terminal(true, None, Some("dumb")), Paint::OFF);
        assert_eq!(Paint::of_terminal(false, None, Some("xterm")), Paint::OFF);
    }

    #[test]
    fn blank_text_is_not_painted() {
        assert_eq!(Paint::ON.paint(Tone::Warn, "idle"), "\x1b[33midle\x1b[0m");
        assert_eq!(Paint::ON.paint(Tone::Warn, "  "), "  ");
        assert_eq!(Paint::OFF.paint(Tone::Critical, "fault"), "fault");
    }
}
