//! What a key can mean, and where.

use crate::fleet::SortKey;

/// What has the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The grid of hosts.
    Grid,
    /// The combined list.
    List,
    /// One host: its GPUs.
    Host,
    /// One host: its processes.
    HostList,
    /// One GPU of a host.
    Gpu,
    /// What was done to reach a host.
    Log,
    /// One cell a GPU.
    Wall,
    /// Who holds which GPUs.
    Users,
    /// The findings.
    Findings,
    /// What has happened in this run.
    History,
    /// One process.
    Process,
    /// The help.
    Help,
    /// The combined list alone.
    Processes,
    /// The line in which a filter is typed.
    FilterLine,
    /// The list of users to choose from.
    UserPicker,
    /// The command palette.
    Palette,
    /// After `o`: the letter that names a column.
    SortMenu,
    /// After F9: which signal.
    SignalMenu,
    /// The confirmation before a signal is sent.
    SignalDialog,
    /// The dialog about a host key.
    HostKeyDialog,
    /// The dialog for a passphrase, a password or a code.
    SecretDialog,
}

/// What a key does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// One up.
    Up,
    /// One down.
    Down,
    /// One to the left.
    Left,
    /// One to the right.
    Right,
    /// One screen up.
    PageUp,
    /// One screen down.
    PageDown,
    /// Half a screen up.
    HalfPageUp,
    /// Half a screen down.
    HalfPageDown,
    /// To the first.
    First,
    /// To the last.
    Last,
    /// The keys go to the next part of the view.
    NextFocus,
    /// The keys go to the previous part of the view.
    PreviousFocus,
    /// Into what is selected.
    Enter,
    /// Up one level.
    Back,
    /// The next host, in its full pane.
    NextHost,
    /// The previous host, in its full pane.
    PreviousHost,
    /// Another reading in charts and ramps.
    Metric,
    /// Another length of charts.
    Span,
    /// Show the processes of the selected job.
    FoldState,
    /// Hide them.
    Fold,
    /// Sort by the column to the left.
    SortLeft,
    /// Sort by the column to the right.
    SortRight,
    /// Turn the order around.
    SortReverse,
    /// Wait for the letter of a column.
    SortMenu,
    /// Sort by this column.
    SortBy(SortKey),
    /// Group by job, or not.
    Group,
    /// The combined list alone.
    Processes,
    /// Open the line in which a filter is typed.
    Filter,
    /// One's own work alone, or everybody's.
    Mine,
    /// What needs a person alone, or everything.
    Problems,
    /// What holds GPUs without work alone, or everything.
    IdleOnly,
    /// Choose a user.
    UserPicker,
    /// Nothing is left out any more.
    ShowAll,
    /// Ask before SIGINT is sent.
    Interrupt,
    /// Ask before SIGTERM is sent.
    Terminate,
    /// Ask before SIGKILL is sent.
    Kill,
    /// Wait for the letter of a signal.
    SignalMenu,
    /// Tag the selected row.
    Tag,
    /// Take all tags away.
    UntagAll,
    /// The selection follows its process, or stays on its line.
    Follow,
    /// A shell on the host under the selection.
    Shell,
    /// Copy the line that fits what is under the selection.
    Copy,
    /// The picture stands still, or moves again.
    Freeze,
    /// Clicks and the wheel are ours, or the terminal's.
    Mouse,
    /// Hide the selected host.
    Hide,
    /// Show what was hidden.
    ShowHidden,
    /// The selected host stands first, or in its place.
    Pin,
    /// Panes as there is room.
    DensityAuto,
    /// Small panes.
    DensityCompact,
    /// Full panes, scrolled.
    DensityFull,
    /// Look for an action by its words.
    Palette,
    /// Try the selected host again now.
    RetryHost,
    /// Try every host again that is not connected.
    RetryAll,
    /// Open the first question that waits.
    OpenPrompts,
    /// Sample more often.
    Faster,
    /// Sample less often.
    Slower,
    /// Ask every host for its readings now.
    Refresh,
    /// Draw the screen anew.
    Repaint,
    /// Stop, as any program does at Ctrl-Z.
    Suspend,
    /// The grid and the list.
    Overview,
    /// One cell a GPU.
    Wall,
    /// Who holds which GPUs.
    Users,
    /// What was done to reach the selected host.
    Log,
    /// What diagnosis says.
    Findings,
    /// Silence the selected finding for an hour, or no longer.
    Snooze,
    /// Silence it until it changes, or no longer.
    SnoozeUntilItChanges,
    /// What has happened in this run.
    History,
    /// Show the help.
    Help,
    /// Leave.
    Quit,
    /// Dialog: no.
    Skip,
    /// Dialog: trust this key for this time.
    TrustOnce,
    /// Dialog: done typing.
    Submit,
    /// Dialog: take a character back.
    EraseCharacter,
    /// Dialog: take everything back.
    EraseLine,
    /// Line: take a word back.
    EraseWord,
    /// Line: take the next character away.
    EraseNext,
}

/// Whether an action reaches out to processes of a host.
pub fn changes_hosts(action: Action) -> bool {
    matches!(action, Action::Interrupt | Action::Terminate | Action::Kill | Action::SignalMenu | Action::Shell)
}

impl Mode {
    /// It lies over a view: a dialog, a menu, a line of text.
    pub fn is_overlay(self) -> bool {
        self.takes_text() || matches!(self, Self::SortMenu | Self::SignalMenu | Self::UserPicker)
    }

    /// Letters are text there.
    pub fn takes_text(self) -> bool {
        matches!(self, Self::FilterLine | Self::Palette | Self::HostKeyDialog | Self::SecretDialog | Self::SignalDialog)
    }

    /// Where it is, for a sentence.
    pub fn location(self) -> &'static str {
        match self {
            Self::Grid => "in the grid",
            Self::List | Self::HostList | Self::Processes => "in the list of processes",
            Self::Host => "in the view of a host",
            Self::Gpu => "in the view of a GPU",
            Self::Log => "in the ssh log",
            Self::Wall => "on the wall",
            Self::Users => "in the view of users",
            Self::Findings => "among the findings",
            Self::History => "in the history",
            Self::Process => "in the view of a process",
            Self::Help => "in the help",
            Self::FilterLine => "in the filter's line",
            Self::UserPicker => "in the list of users",
            Self::Palette => "in the palette",
            Self::SortMenu | Self::SignalMenu => "in a menu",
            Self::SignalDialog | Self::HostKeyDialog | Self::SecretDialog => "in a dialog",
        }
    }
}
