//! Colour for text that is printed once: a few SGR sequences, or none.

/// Whether text is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paint {
    is_on: bool,
}

/// What a piece of text is, not how it looks: the colours of a terminal are its owner's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// As the rest.
    Plain,
    /// A heading.
    Strong,
    /// Of no importance now.
    Dim,
    /// At work.
    Busy,
    /// A person should look.
    Warn,
    /// A person must look.
    Critical,
}

impl Paint {
    /// Colour.
    pub const ON: Self = Self { is_on: true };
    /// No colour.
    pub const OFF: Self = Self { is_on: false };

    /// Colour on a terminal, unless `NO_COLOR` is set to something (no-color.org) or the terminal is a dumb one.
    pub fn of_terminal(is_terminal: bool, no_color: Option<&str>, term: Option<&str>) -> Self {
        let is_unwanted = no_color.is_some_and(|value| !value.is_empty()) || term == Some("dumb");
        Self { is_on: is_terminal && !is_unwanted }
    }

    /// The text in its tone.
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
    fn colour_is_for_terminals_that_want_it() {
        assert_eq!(Paint::of_terminal(true, None, Some("xterm")), Paint::ON);
        assert_eq!(Paint::of_terminal(true, Some(""), None), Paint::ON);
        assert_eq!(Paint::of_terminal(true, Some("1"), None), Paint::OFF);
        assert_eq!(Paint::of_terminal(true, None, Some("dumb")), Paint::OFF);
        assert_eq!(Paint::of_terminal(false, None, Some("xterm")), Paint::OFF);
    }

    #[test]
    fn blank_text_is_never_painted() {
        assert_eq!(Paint::ON.paint(Tone::Warn, "idle"), "\x1b[33midle\x1b[0m");
        assert_eq!(Paint::ON.paint(Tone::Warn, "  "), "  ");
        assert_eq!(Paint::OFF.paint(Tone::Critical, "fault"), "fault");
    }
}
