//! Actions and modes: what a key can do, and where.

use crate::fleet::{SortKey, UserSort};

/// The part of the screen that receives keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The grid of hosts.
    Grid,
    /// The list below the grid.
    List,
    /// The GPUs in the view of a host.
    Host,
    /// The list in the view of a host.
    HostList,
    /// The view of a GPU.
    Gpu,
    /// The SSH log of a host.
    Log,
    /// The wall.
    Wall,
    /// The view of users.
    Users,
    /// The findings.
    Findings,
    /// The history of this run.
    History,
    /// The view of a process.
    Process,
    /// The report about a job that looks hung.
    HangReport,
    /// The help.
    Help,
    /// The list in full screen.
    Processes,
    /// The input line for the filter.
    FilterLine,
    /// The list of users to choose from.
    UserPicker,
    /// The palette, which finds hosts, users, views, processes and commands.
    Palette,
    /// After `o`: a letter chooses the sort column.
    SortMenu,
    /// After F9: a letter chooses the signal.
    SignalMenu,
    /// The dialog that confirms a signal.
    SignalDialog,
    /// The dialog for an unknown host key.
    HostKeyDialog,
    /// The dialog for a passphrase, a password or a code.
    SecretDialog,
}

impl Mode {
    /// Returns whether the mode covers a view: a dialog, a menu or an input line.
    pub fn is_overlay(self) -> bool {
        self.takes_text() || matches!(self, Self::SortMenu | Self::SignalMenu | Self::UserPicker)
    }

    /// Returns whether something is drawn over the view that takes its keys and clicks.
    pub fn covers_view(self) -> bool {
        self == Self::Help || self.is_overlay()
    }

    /// Returns whether letters are text in this mode.
    pub fn takes_text(self) -> bool {
        matches!(self, Self::FilterLine | Self::Palette | Self::HostKeyDialog | Self::SecretDialog | Self::SignalDialog)
    }

    /// Returns the name of the mode for documentation and messages.
    pub fn location(self) -> &'static str {
        match self {
            Self::Grid => "grid",
            Self::List | Self::HostList | Self::Processes => "process list",
            Self::Host => "host view",
            Self::Gpu => "GPU view",
            Self::Log => "ssh log",
            Self::Wall => "wall",
            Self::Users => "users view",
            Self::Findings => "findings",
            Self::History => "history",
            Self::Process => "process view",
            Self::HangReport => "hang report",
            Self::Help => "help",
            Self::FilterLine => "filter line",
            Self::UserPicker => "user picker",
            Self::Palette => "palette",
            Self::SortMenu => "sort menu",
            Self::SignalMenu => "signal menu",
            Self::SignalDialog => "signal dialog",
            Self::HostKeyDialog => "host key dialog",
            Self::SecretDialog => "passphrase dialog",
        }
    }
}

/// The meaning of a key, independent of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Move up.
    Up,
    /// Move down.
    Down,
    /// Move left.
    Left,
    /// Move right.
    Right,
    /// Move up by one screen.
    PageUp,
    /// Move down by one screen.
    PageDown,
    /// Move up by half a screen.
    HalfPageUp,
    /// Move down by half a screen.
    HalfPageDown,
    /// Move to the first item.
    First,
    /// Move to the last item.
    Last,
    /// Focus the next part of the view.
    NextFocus,
    /// Focus the previous part of the view.
    PreviousFocus,
    /// Open the selected item.
    Enter,
    /// Go back one level.
    Back,
    /// Show the view of the next host.
    NextHost,
    /// Show the view of the previous host.
    PreviousHost,
    /// Show the view of the next process in the list.
    NextProcess,
    /// Show the view of the previous process in the list.
    PreviousProcess,
    /// Show the next metric in charts and wall cells.
    Metric,
    /// Use the next chart span.
    Span,
    /// Show the rows below the selected one.
    Unfold,
    /// Hide the rows below the selected one.
    Fold,
    /// Sort by the column to the left.
    SortLeft,
    /// Sort by the column to the right.
    SortRight,
    /// Reverse the sort order.
    SortReverse,
    /// Open the sort menu.
    SortMenu,
    /// Sort by this column.
    SortBy(SortKey),
    /// Sort the users by this column.
    SortUsersBy(UserSort),
    /// Use the next grouping.
    Group,
    /// Show the list in full screen.
    Processes,
    /// Open the filter line.
    Filter,
    /// Toggle: only the user's own processes.
    Mine,
    /// Toggle: only problems.
    Problems,
    /// Toggle: only processes that hold GPUs without work.
    IdleOnly,
    /// Open the user picker.
    UserPicker,
    /// Clear all filters.
    ShowAll,
    /// Open the dialog that sends SIGINT.
    Interrupt,
    /// Open the dialog that sends SIGTERM.
    Terminate,
    /// Open the dialog that sends SIGKILL.
    Kill,
    /// Open the signal menu.
    SignalMenu,
    /// Toggle the tag of the selected row.
    Tag,
    /// Remove all tags.
    UntagAll,
    /// Toggle: the selection follows its process or stays on its line.
    Follow,
    /// Open a shell on the selected host.
    Shell,
    /// Copy a text about the selected item.
    Copy,
    /// Freeze the view, or continue with the live fleet.
    Freeze,
    /// Toggle mouse reports.
    Mouse,
    /// Hide the selected host.
    Hide,
    /// Show all hidden hosts.
    ShowHidden,
    /// Toggle whether the selected host is pinned to the top.
    Pin,
    /// Choose the density by the space on the screen.
    DensityAuto,
    /// Use small panes.
    DensityCompact,
    /// Use full panes and scroll.
    DensityFull,
    /// Open the palette.
    Palette,
    /// Connect to the selected host now.
    RetryHost,
    /// Connect now to all hosts that are not connected.
    RetryAll,
    /// Open the first prompt that waits.
    OpenPrompts,
    /// Sample more often.
    Faster,
    /// Sample less often.
    Slower,
    /// Request new readings from every host.
    Refresh,
    /// Draw the whole screen again.
    Repaint,
    /// Stop the process as Ctrl-Z does.
    Suspend,
    /// Show the grid and the list.
    Overview,
    /// Show the wall.
    Wall,
    /// Show the view of users.
    Users,
    /// Show the SSH log of the selected host.
    Log,
    /// Show the findings.
    Findings,
    /// Examine the selected job and show which rank holds it up.
    Why,
    /// Snooze the selected finding for an hour, or end its snooze.
    Snooze,
    /// Snooze the selected finding until it changes, or end its snooze.
    SnoozeUntilItChanges,
    /// Show the history of this run.
    History,
    /// Show the help.
    Help,
    /// Exit the program.
    Quit,
    /// Dialog: decline.
    Skip,
    /// Dialog: trust the host key for this run.
    TrustOnce,
    /// Dialog or input line: accept the text.
    Submit,
    /// Dialog or input line: delete the previous character.
    EraseCharacter,
    /// Dialog or input line: delete the whole text.
    EraseLine,
    /// Input line: delete the previous word.
    EraseWord,
    /// Input line: delete the next character.
    EraseNext,
}

/// Returns whether an action affects processes on a host. `--readonly` disables these actions.
pub fn changes_hosts(action: Action) -> bool {
    matches!(action, Action::Interrupt | Action::Terminate | Action::Kill | Action::SignalMenu | Action::Shell)
}

impl Action {
    /// Returns the movement in the opposite vertical direction.
    pub(super) fn reversed(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
            Self::PageUp => Self::PageDown,
            Self::PageDown => Self::PageUp,
            Self::HalfPageUp => Self::HalfPageDown,
            Self::HalfPageDown => Self::HalfPageUp,
            Self::First => Self::Last,
            Self::Last => Self::First,
            other => other,
        }
    }

    /// Returns other words, separated by spaces, that find the action in the palette.
    pub(super) fn synonyms(self) -> &'static str {
        match self {
            Self::Interrupt => "kill stop end cancel sigint int ctrl-c",
            Self::Terminate => "kill stop end cancel abort sigterm term quit",
            Self::Kill => "stop end force sigkill 9",
            Self::SignalMenu => "kill stop end",
            Self::Group => "tree fold by job user host",
            Self::SortMenu | Self::SortLeft | Self::SortRight | Self::SortBy(_) => "order column by",
            Self::SortReverse => "order descending ascending invert",
            Self::Filter => "search find grep narrow",
            Self::ShowAll => "reset clear everything",
            Self::Mine => "me my own",
            Self::UserPicker => "who whose people",
            Self::Problems => "errors trouble stuck hung bad",
            Self::IdleOnly => "wasted unused",
            Self::Tag => "mark select several",
            Self::Follow => "selection cursor lock",
            Self::Shell => "ssh login terminal console",
            Self::Copy => "yank clipboard note message cuda_visible_devices",
            Self::RetryHost | Self::RetryAll => "reconnect retry login",
            Self::OpenPrompts => "passphrase password hostkey code yubikey",
            Self::Log => "connection debug why down",
            Self::Hide => "remove",
            Self::ShowHidden => "unhide",
            Self::Pin => "favourite favorite top",
            Self::DensityAuto | Self::DensityCompact | Self::DensityFull => "size panes zoom",
            Self::Metric => "chart power temperature memory utilization",
            Self::Span => "chart time range hour",
            Self::Overview => "grid home hosts panes",
            Self::Wall => "heatmap cells free",
            Self::Processes => "jobs ps top list",
            Self::Users => "who people quota",
            Self::Why => "hang hung stuck proof examine culprit rank nccl py-spy stack",
            Self::Findings => "alerts warnings problems stuck hung diagnosis errors",
            Self::Snooze | Self::SnoozeUntilItChanges => "mute silence ignore acknowledge hide",
            Self::History => "events past messages",
            Self::Faster | Self::Slower => "interval rate refresh",
            Self::Refresh => "reload update now",
            Self::Freeze => "pause hold",
            Self::Mouse => "click select text",
            Self::Repaint => "redraw clear",
            Self::Suspend => "background",
            Self::Help => "keys shortcuts manual legend",
            Self::Quit => "exit close bye",
            _ => "",
        }
    }

    /// Returns the name in `settings.toml` and in the palette, or `None` if the keys of the action are fixed.
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Left => "left",
            Self::Right => "right",
            Self::PageUp => "page-up",
            Self::PageDown => "page-down",
            Self::HalfPageUp => "half-page-up",
            Self::HalfPageDown => "half-page-down",
            Self::First => "first",
            Self::Last => "last",
            Self::NextFocus => "next-part",
            Self::PreviousFocus => "previous-part",
            Self::NextHost => "next-host",
            Self::PreviousHost => "previous-host",
            Self::NextProcess => "next-process",
            Self::PreviousProcess => "previous-process",
            Self::Metric => "metric",
            Self::Span => "span",
            Self::Unfold => "unfold",
            Self::Fold => "fold",
            Self::SortLeft => "sort-left",
            Self::SortRight => "sort-right",
            Self::SortReverse => "sort-reverse",
            Self::SortMenu => "sort-by",
            Self::Group => "group",
            Self::Filter => "filter",
            Self::Mine => "mine",
            Self::Problems => "problems",
            Self::IdleOnly => "idle",
            Self::UserPicker => "user",
            Self::Interrupt => "interrupt",
            Self::Terminate => "terminate",
            Self::Kill => "kill",
            Self::SignalMenu => "signal",
            Self::Tag => "tag",
            Self::UntagAll => "untag-all",
            Self::Follow => "follow",
            Self::RetryHost => "retry",
            Self::RetryAll => "retry-all",
            Self::OpenPrompts => "answer",
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Refresh => "refresh",
            Self::Repaint => "repaint",
            Self::Suspend => "suspend",
            Self::Overview => "overview",
            Self::Wall => "wall",
            Self::Processes => "processes",
            Self::Users => "users",
            Self::Findings => "findings",
            Self::Why => "why",
            Self::Log => "ssh-log",
            Self::Snooze => "snooze",
            Self::SnoozeUntilItChanges => "snooze-until-it-changes",
            Self::History => "history",
            Self::Help => "help",
            Self::Quit => "quit",
            Self::Shell => "shell",
            Self::Copy => "copy",
            Self::Freeze => "freeze",
            Self::Mouse => "mouse",
            Self::Hide => "hide-host",
            Self::ShowHidden => "show-hidden",
            Self::Pin => "pin-host",
            Self::DensityAuto => "density-auto",
            Self::DensityCompact => "density-compact",
            Self::DensityFull => "density-full",
            Self::Palette => "palette",
            Self::Enter
            | Self::Back
            | Self::ShowAll
            | Self::SortBy(_)
            | Self::SortUsersBy(_)
            | Self::Skip
            | Self::TrustOnce
            | Self::Submit
            | Self::EraseCharacter
            | Self::EraseLine
            | Self::EraseWord
            | Self::EraseNext => return None,
        })
    }
}
