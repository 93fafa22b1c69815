//! How much the panes of the grid show.

/// How much the panes of the grid show, where the person has a say in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Density {
    /// As much as there is room for with every host on the screen.
    #[default]
    Auto,
    /// Two GPUs a line, or a line a host.
    Compact,
    /// As much as a pane can show; hosts that do not fit are scrolled to.
    Full,
}

impl Density {
    /// Every density.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Compact, Self::Full];

    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Compact => "compact",
            Self::Full => "full",
        }
    }
}
