//! The one table of keys: dispatch, the hint bar and the help are all read from it.

use crate::fleet::{FILTER_SYNTAX, SortKey};
use crossterm::event::KeyCode;

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
    Unfold,
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
    Prompts,
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

/// One key, without Shift where the character already tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The key.
    pub code: KeyCode,
    /// With Ctrl held.
    pub ctrl: bool,
}

/// One line of the table.
#[derive(Debug)]
pub struct Binding {
    /// Where it holds.
    pub modes: &'static [Mode],
    /// The keys.
    pub keys: &'static [Key],
    /// What they do.
    pub action: Action,
    /// How the keys are written; ASCII.
    pub shown: &'static str,
    /// What they do, for the help.
    pub words: &'static str,
    /// What they do, for the hint bar; those without are in the help alone.
    pub hint: Option<&'static str>,
}

const fn key(code: KeyCode) -> Key {
    Key { code, ctrl: false }
}

const fn char(character: char) -> Key {
    key(KeyCode::Char(character))
}

const fn ctrl(character: char) -> Key {
    Key { code: KeyCode::Char(character), ctrl: true }
}

use Mode::{
    FilterLine, Findings, Gpu, Grid, Help, History, Host, HostKeyDialog, HostList, List, Log, Palette, Process,
    Processes, SecretDialog, SignalDialog, SignalMenu, SortMenu, UserPicker, Users, Wall,
};

const LISTS: &[Mode] = &[List, HostList, Processes];
const PANES: &[Mode] = &[Grid, List, Host, HostList, Processes];
const LIVE: &[Mode] = &[Grid, List, Host, HostList, Processes, Wall, Users];
const SORTED: &[Mode] = &[List, HostList, Processes, Users];
const SPLIT: &[Mode] = &[Grid, List, Host, HostList];
const LINE: &[Mode] = &[FilterLine];
const PICKER: &[Mode] = &[UserPicker];
const MOVES: &[Mode] =
    &[Grid, List, Host, HostList, Processes, Gpu, Wall, Users, Log, Findings, History, Process, Help, UserPicker];
const PAGES: &[Mode] = &[Grid, List, Host, HostList, Processes, Wall, Users, Log, Findings, History, Help, UserPicker];
const HOSTS: &[Mode] = &[Host, HostList];
const TYPED: &[Mode] = &[HostKeyDialog, SecretDialog, SignalDialog];
const MENU: &[Mode] = &[SortMenu];
const PICKED: &[Mode] = &[List, HostList, Processes, Process];
const SIGNAL: &[Mode] = &[SignalMenu];
const VIEWS: &[Mode] = &[Grid, List, Host, HostList, Processes, Gpu, Wall, Users, Log, Findings, History, Process];
const AT_HAND: &[Mode] = &[Grid, List, Host, HostList, Processes, Gpu, Wall, Log, Findings, Process];
const SIDEWAYS: &[Mode] = &[Grid, Host, Gpu, Wall];
const FIND: &[Mode] = &[Palette];
const OVERVIEW: &[Mode] = &[Grid, List];
const HIDING: &[Mode] = &[Grid, Host, Wall];
const CHARTS: &[Mode] = &[Host, HostList, Gpu, Process];
pub(super) const ALL: &[Mode] = &[
    Grid,
    List,
    Host,
    HostList,
    Processes,
    Gpu,
    Wall,
    Users,
    Log,
    Findings,
    History,
    Process,
    Help,
    SortMenu,
    SignalMenu,
    SignalDialog,
    FilterLine,
    UserPicker,
    Palette,
    HostKeyDialog,
    SecretDialog,
];

macro_rules! bindings {
    ($($modes:expr, [$($key:expr),+], $action:expr, $shown:literal, $words:literal, $hint:expr;)*) => {
        &[$(Binding {
            modes: $modes,
            keys: &[$($key),+],
            action: $action,
            shown: $shown,
            words: $words,
            hint: $hint,
        }),*]
    };
}

/// Every key. A line is told from another by its place, so that there is one of each. The hint bar shows those with a hint, in this order.
pub static BINDINGS: &[Binding] = bindings! {
    MOVES, [key(KeyCode::Up), char('k')], Action::Up, "Up k", "up", None;
    MOVES, [key(KeyCode::Down), char('j')], Action::Down, "Down j", "down", None;
    SIDEWAYS, [key(KeyCode::Left), char('h')], Action::Left, "Left h", "left", None;
    SIDEWAYS, [key(KeyCode::Right), char('l')], Action::Right, "Right l", "right", None;
    PAGES, [key(KeyCode::PageUp)], Action::PageUp, "PgUp", "one screen up", None;
    PAGES, [key(KeyCode::PageDown)], Action::PageDown, "PgDn", "one screen down", None;
    PAGES, [ctrl('u')], Action::HalfPageUp, "C-u", "half a screen up", None;
    PAGES, [ctrl('d')], Action::HalfPageDown, "C-d", "half a screen down", None;
    PAGES, [key(KeyCode::Home), char('g')], Action::First, "Home g", "first", None;
    PAGES, [key(KeyCode::End), char('G')], Action::Last, "End G", "last", None;

    // Dialogs and the menu come first: their hints are the only ones shown there.
    &[HostKeyDialog], [key(KeyCode::Esc), char('s')], Action::Skip, "Esc s", "skip this host", Some("skip this host");
    &[SecretDialog], [key(KeyCode::Esc)], Action::Skip, "Esc", "skip these hosts", Some("skip these hosts");
    &[HostKeyDialog], [char('o')], Action::TrustOnce, "o", "trust the key this once", Some("trust once");
    &[HostKeyDialog], [key(KeyCode::Enter)], Action::Submit, "yes Enter", "trust the key and save it", Some("trust and save");
    &[SecretDialog], [key(KeyCode::Enter)], Action::Submit, "Enter", "hand over what was typed", Some("send");
    TYPED, [key(KeyCode::Backspace)], Action::EraseCharacter, "Backspace", "take a character back", None;
    TYPED, [ctrl('u')], Action::EraseLine, "C-u", "take everything back", None;
    MENU, [char('n')], Action::SortBy(SortKey::Trouble), "n", "trouble, mine, memory", Some("trouble");
    MENU, [char('h')], Action::SortBy(SortKey::Host), "h", "host", Some("host");
    MENU, [char('u')], Action::SortBy(SortKey::User), "u", "user", Some("user");
    MENU, [char('p')], Action::SortBy(SortKey::Pid), "p", "process id", Some("pid");
    MENU, [char('g')], Action::SortBy(SortKey::GpuMemory), "g", "GPU memory", Some("GPU memory");
    MENU, [char('s')], Action::SortBy(SortKey::Sm), "s", "SM share", Some("SM");
    MENU, [char('c')], Action::SortBy(SortKey::Cpu), "c", "CPU share", Some("CPU");
    MENU, [char('m')], Action::SortBy(SortKey::Rss), "m", "host memory", Some("host memory");
    MENU, [char('t')], Action::SortBy(SortKey::Time), "t", "age", Some("time");
    MENU, [char('d')], Action::SortBy(SortKey::State), "d", "state", Some("state");
    MENU, [char('i')], Action::SortBy(SortKey::Gpu), "i", "GPU", Some("GPU");
    MENU, [char('w')], Action::SortBy(SortKey::Command), "w", "command", Some("command");
    MENU, [key(KeyCode::Esc), char('o'), key(KeyCode::F(6))], Action::Back, "Esc", "leave the order as it is", Some("leave");

    &[Grid, Wall], [key(KeyCode::Enter)], Action::Enter, "Enter", "the selected host in full", Some("host");
    &[Host], [key(KeyCode::Enter)], Action::Enter, "Enter", "the selected GPU in full", Some("one GPU");
    LISTS, [key(KeyCode::Enter)], Action::Enter, "Enter", "unfold a job; details of a process", Some("details");
    &[Users], [key(KeyCode::Enter)], Action::Enter, "Enter", "the processes of the selected user alone", Some("their processes");
    &[Findings], [key(KeyCode::Enter)], Action::Enter, "Enter", "the process or the host of the finding", Some("go there");
    &[Findings], [char('x')], Action::Snooze, "x", "snooze for an hour, or undo it", Some("snooze 1h");
    &[Findings], [char('X')], Action::SnoozeUntilItChanges, "X", "snooze until it changes, or undo it", Some("until it changes");
    &[Findings], [char('H')], Action::History, "H", "what has happened in this run", Some("history");
    &[History], [char('H')], Action::Back, "H", "back to the findings", None;
    &[Host, HostList, Processes, Gpu, Wall, Users, Log, Findings, History, Process, Help], [key(KeyCode::Esc)], Action::Back, "Esc", "up one level", Some("back");
    &[Grid, List], [key(KeyCode::Esc)], Action::ShowAll, "Esc", "show what filters leave out", Some("show all");
    LIVE, [char('P')], Action::Prompts, "P", "answer the questions that wait", Some("answer");
    &[Grid, List], [key(KeyCode::Tab)], Action::NextFocus, "Tab", "hosts or processes", Some("hosts/processes");
    HOSTS, [key(KeyCode::Tab)], Action::NextFocus, "Tab", "in one host: GPUs or processes", Some("GPUs/processes");
    SPLIT, [key(KeyCode::BackTab)], Action::PreviousFocus, "S-Tab", "the same as Tab, backwards", None;
    HOSTS, [char(']')], Action::NextHost, "]", "next host", Some("next host");
    HOSTS, [char('[')], Action::PreviousHost, "[", "previous host", Some("previous");
    &[Host, HostList, Wall], [char('v')], Action::Metric, "v", "charts: GPU, mem-busy, memory, power, temperature", Some("metric");
    CHARTS, [char('w')], Action::Span, "w", "charts: 2 minutes to 2 hours", Some("span");
    &[Grid, Host, Wall], [char('r')], Action::RetryHost, "r", "try this host again now", Some("retry");
    &[Grid, Host, HostList, Gpu, Wall], [char('L')], Action::Log, "L", "ssh log: what was done to reach this host", None;
    AT_HAND, [char('s')], Action::Shell, "s", "a shell on the host: ssh, and back to the screen", None;
    AT_HAND, [char('y')], Action::Copy, "y", "copy: ssh command, pid, lines of a free GPU, note", None;
    HIDING, [char('D')], Action::Hide, "D", "hide this host", None;
    &[Grid, List, Wall], [char('H')], Action::ShowHidden, "H", "show hidden hosts again", None;
    HIDING, [char('*')], Action::Pin, "*", "pin: this host stands first, or no longer", None;
    OVERVIEW, [char('a')], Action::DensityAuto, "a", "panes: as there is room", None;
    OVERVIEW, [char('c')], Action::DensityCompact, "c", "panes: small", None;
    OVERVIEW, [char('f')], Action::DensityFull, "f", "panes: full, scrolled where they do not fit", None;
    LIVE, [char('R')], Action::RetryAll, "R", "try all unconnected hosts again now", None;

    PANES, [char('/'), key(KeyCode::F(4))], Action::Filter, "/ F4", "filter the processes", Some("filter");
    LISTS, [key(KeyCode::Right), char('l')], Action::Unfold, "Right l", "show what is below a row", Some("unfold");
    LISTS, [key(KeyCode::Left), char('h')], Action::Fold, "Left h", "fold it", None;
    LISTS, [char('t'), key(KeyCode::F(5))], Action::Group, "t F5", "group: job, across hosts, none, user, host", Some("group");
    SORTED, [char('.')], Action::SortRight, ".", "sort by the next column", Some("sort");
    SORTED, [char(',')], Action::SortLeft, ",", "sort by the column before", None;
    SORTED, [char('r')], Action::SortReverse, "r", "turn the order around", Some("reverse");
    LISTS, [char('o'), key(KeyCode::F(6))], Action::SortMenu, "o F6", "sort by a column: its letter", Some("sort by");
    LISTS, [char(' ')], Action::Tag, "Space", "tag, or take the tag away", Some("tag");
    LISTS, [char('U')], Action::UntagAll, "U", "take all tags away", Some("untag all");
    LISTS, [char('F')], Action::Follow, "F", "the selection follows its process, or not", None;
    PICKED, [char('I')], Action::Interrupt, "I", "send INT, after a confirmation", None;
    PICKED, [char('T')], Action::Terminate, "T", "send TERM, after a confirmation", Some("TERM");
    PICKED, [char('K')], Action::Kill, "K", "send KILL, after a confirmation", None;
    PICKED, [key(KeyCode::F(9))], Action::SignalMenu, "F9", "choose a signal", None;
    SIGNAL, [char('i'), char('I')], Action::Interrupt, "i", "INT: as Ctrl-C would", Some("INT");
    SIGNAL, [char('t'), char('T')], Action::Terminate, "t", "TERM: asks it to end", Some("TERM");
    SIGNAL, [char('k'), char('K')], Action::Kill, "k", "KILL: ends it at once", Some("KILL");
    SIGNAL, [key(KeyCode::Esc), key(KeyCode::F(9))], Action::Back, "Esc", "send none", Some("none");
    &[SignalDialog], [key(KeyCode::Esc)], Action::Skip, "Esc", "send nothing", Some("cancel");
    &[SignalDialog], [key(KeyCode::Enter)], Action::Submit, "Enter", "send, once what is asked for is typed", Some("send what is typed");
    PANES, [char('m')], Action::Mine, "m", "your own processes alone", Some("mine");
    PANES, [char('u')], Action::UserPicker, "u", "one user's processes alone", Some("user");
    PANES, [char('!')], Action::Problems, "!", "what needs a person alone", Some("problems");
    PANES, [char('i')], Action::IdleOnly, "i", "what holds GPUs without work alone", Some("idle");
    LINE, [key(KeyCode::Enter)], Action::Submit, "Enter", "keep the filter", Some("keep");
    LINE, [key(KeyCode::Esc)], Action::Back, "Esc", "clear the filter", Some("clear");
    LINE, [key(KeyCode::F(1))], Action::Help, "F1", "how a filter is written", Some("syntax");
    LINE, [key(KeyCode::Backspace)], Action::EraseCharacter, "Backspace", "take a character back", None;
    LINE, [key(KeyCode::Delete)], Action::EraseNext, "Del", "take the next character away", None;
    LINE, [ctrl('w')], Action::EraseWord, "C-w", "take a word back", None;
    LINE, [ctrl('u')], Action::EraseLine, "C-u", "take everything back", None;
    LINE, [key(KeyCode::Left)], Action::Left, "Left", "one character back", None;
    LINE, [key(KeyCode::Right)], Action::Right, "Right", "one character on", None;
    LINE, [key(KeyCode::Home), ctrl('a')], Action::First, "Home C-a", "to the beginning", None;
    LINE, [key(KeyCode::End), ctrl('e')], Action::Last, "End C-e", "to the end", None;
    PICKER, [key(KeyCode::Enter)], Action::Enter, "Enter", "this user's processes alone", Some("choose");
    PICKER, [key(KeyCode::Esc), char('u')], Action::Back, "Esc u", "leave the list as it is", Some("leave");

    FIND, [key(KeyCode::Enter)], Action::Enter, "Enter", "do it", Some("do it");
    FIND, [key(KeyCode::Esc)], Action::Back, "Esc", "do nothing", Some("leave");
    FIND, [key(KeyCode::Up), ctrl('p')], Action::Up, "Up C-p", "the entry above", None;
    FIND, [key(KeyCode::Down), ctrl('n')], Action::Down, "Down C-n", "the entry below", None;
    FIND, [key(KeyCode::Backspace)], Action::EraseCharacter, "Backspace", "take a character back", None;
    FIND, [ctrl('w')], Action::EraseWord, "C-w", "take a word back", None;
    FIND, [ctrl('u')], Action::EraseLine, "C-u", "take everything back", None;

    VIEWS, [char('1')], Action::Overview, "1", "hosts and processes", None;
    VIEWS, [char('2')], Action::Wall, "2", "wall: one cell a GPU, and which are free", Some("wall");
    VIEWS, [char('3')], Action::Processes, "3", "all processes, full screen", Some("processes");
    VIEWS, [char('4')], Action::Users, "4", "users: who holds which GPUs, and works on them", Some("users");
    VIEWS, [char('5')], Action::Findings, "5", "findings: what looks wrong, with evidence", Some("findings");
    LIVE, [char('-')], Action::Slower, "-", "sample less often", None;
    LIVE, [char('+'), char('=')], Action::Faster, "+", "sample more often", None;
    VIEWS, [char('Z')], Action::Freeze, "Z", "freeze: the picture stands still, or moves again", None;
    VIEWS, [char('M')], Action::Mouse, "M", "mouse: clicks and wheel are ours, or the terminal's", None;
    VIEWS, [char(':')], Action::Palette, ":", "commands by their words", None;
    LIVE, [ctrl('r')], Action::Refresh, "C-r", "readings of all hosts now", None;
    ALL, [ctrl('l')], Action::Repaint, "C-l", "draw the screen anew", None;
    ALL, [ctrl('z')], Action::Suspend, "C-z", "stop; `fg` goes on", None;
    VIEWS, [char('?'), key(KeyCode::F(1))], Action::Help, "? F1", "this help", Some("help");
    &[Help], [char('?'), key(KeyCode::F(1))], Action::Back, "? F1", "close the help", None;
    &[Grid, List, Host, HostList, Processes, Gpu, Wall, Users, Log, Findings, History, Process, Help, SortMenu, UserPicker], [char('q')], Action::Quit, "q", "leave", Some("quit");
    ALL, [ctrl('c')], Action::Quit, "C-c", "leave, from anywhere", None;
};

/// The parts of the help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// Moving about.
    Moving,
    /// Hosts and their panes.
    Hosts,
    /// The list of processes.
    Processes,
    /// What the list leaves out.
    Narrowing,
    /// What diagnosis says.
    Findings,
    /// Signals.
    Signals,
    /// After `o`.
    SortMenu,
    /// The command palette.
    Palette,
    /// Dialogs.
    Questions,
    /// Everything else.
    Program,
}

impl Section {
    /// Every section, in the order of the help.
    pub const ALL: [Self; 10] = [
        Self::Moving,
        Self::Hosts,
        Self::Processes,
        Self::Narrowing,
        Self::Findings,
        Self::Signals,
        Self::SortMenu,
        Self::Palette,
        Self::Questions,
        Self::Program,
    ];

    /// Its title.
    pub fn title(self) -> &'static str {
        match self {
            Self::Moving => "Moving",
            Self::Hosts => "Hosts",
            Self::Processes => "Processes",
            Self::Narrowing => "Which processes",
            Self::Findings => "Findings",
            Self::Signals => "Signals",
            Self::SortMenu => "After o: sort by",
            Self::Palette => "After : commands",
            Self::Questions => "Questions on the way in",
            Self::Program => "Program",
        }
    }

    /// Where a binding stands, told by the modes in which it holds.
    pub fn of(binding: &Binding) -> Self {
        let only = |modes: &[Mode]| binding.modes.iter().all(|mode| modes.contains(mode));
        match binding.action {
            _ if only(SIGNAL) || only(&[SignalDialog]) => Self::Signals,
            Action::Interrupt | Action::Terminate | Action::Kill | Action::SignalMenu => Self::Signals,
            _ if only(TYPED) => Self::Questions,
            _ if only(MENU) => Self::SortMenu,
            _ if only(&[Findings, History]) => Self::Findings,
            _ if only(FIND) => Self::Palette,
            _ if only(LINE) || only(PICKER) => Self::Narrowing,
            Action::Filter
            | Action::Mine
            | Action::UserPicker
            | Action::Problems
            | Action::IdleOnly
            | Action::ShowAll => Self::Narrowing,
            _ if only(SORTED) && !only(&[Users]) => Self::Processes,
            Action::Up | Action::Down | Action::Left | Action::Right => Self::Moving,
            _ if binding.modes == PAGES => Self::Moving,
            _ if only(&[Help]) => Self::Program,
            Action::NextFocus
            | Action::PreviousFocus
            | Action::Back
            | Action::Overview
            | Action::Wall
            | Action::Users
            | Action::Processes
            | Action::Findings => Self::Moving,
            _ if only(&[Users]) => Self::Moving,
            Action::RetryAll
            | Action::Prompts
            | Action::Refresh
            | Action::Span
            | Action::Log
            | Action::Shell
            | Action::Copy => Self::Hosts,
            _ if only(&[Grid, Host, HostList, Wall]) => Self::Hosts,
            _ => Self::Program,
        }
    }

    /// Its bindings.
    pub fn bindings(self) -> impl Iterator<Item = &'static Binding> {
        BINDINGS.iter().filter(move |binding| Self::of(binding) == self)
    }
}

/// One line of the help.
#[derive(Debug, Clone, Copy)]
pub enum HelpLine {
    /// Between two sections.
    Empty,
    /// The title of a section.
    Title(&'static str),
    /// A line of the table.
    Keys(&'static Binding),
    /// Other words: an example, and what it means.
    Words(&'static str, &'static str),
}

/// The help: for each section its title and its lines of the table, and at the end the filter language. Where nothing is
/// to be changed on any host, what would change something is left out.
pub fn help_lines(is_readonly: bool) -> Vec<HelpLine> {
    let is_there = |binding: &&Binding| !(is_readonly && changes_hosts(binding.action));
    let sections = Section::ALL.into_iter().filter(|section| !(is_readonly && *section == Section::Signals));
    let lines = sections.flat_map(|section| {
        let bindings = section.bindings().filter(is_there).map(HelpLine::Keys);
        [HelpLine::Empty, HelpLine::Title(section.title())].into_iter().chain(bindings)
    });
    let filter = FILTER_SYNTAX.iter().map(|(example, meaning)| HelpLine::Words(example, meaning));
    lines.skip(1).chain([HelpLine::Empty, HelpLine::Title("How a filter is written")]).chain(filter).collect()
}

/// Whether an action reaches out to processes of a host.
pub fn changes_hosts(action: Action) -> bool {
    matches!(action, Action::Interrupt | Action::Terminate | Action::Kill | Action::SignalMenu | Action::Shell)
}

/// What the hint bar says of a line of the table.
pub(super) fn hint_of(binding: &Binding) -> Option<&'static str> {
    binding.hint
}

impl Mode {
    /// It lies over a view: a dialog, a menu, a line of text.
    pub fn is_over(self) -> bool {
        self.takes_text() || matches!(self, SortMenu | SignalMenu | UserPicker)
    }

    /// Letters are text there.
    pub fn takes_text(self) -> bool {
        matches!(self, FilterLine | Palette | HostKeyDialog | SecretDialog | SignalDialog)
    }

    /// Where it is, for a sentence.
    pub fn place(self) -> &'static str {
        match self {
            Grid => "in the grid",
            List | HostList | Processes => "in the list of processes",
            Host => "in the view of a host",
            Gpu => "in the view of a GPU",
            Log => "in the ssh log",
            Wall => "on the wall",
            Users => "in the view of users",
            Findings => "among the findings",
            History => "in the history",
            Process => "in the view of a process",
            Help => "in the help",
            FilterLine => "in the filter's line",
            UserPicker => "in the list of users",
            Palette => "in the palette",
            SortMenu | SignalMenu => "in a menu",
            SignalDialog | HostKeyDialog | SecretDialog => "in a dialog",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Keymap;
    use super::*;
    use crossterm::event::{KeyEvent, KeyModifiers};

    fn action(mode: Mode, event: &KeyEvent) -> Option<Action> {
        Keymap::default().action(mode, event)
    }

    #[test]
    fn no_key_has_two_meanings_in_one_mode() {
        for &mode in ALL {
            let mut seen: Vec<(Key, Action)> = Vec::new();
            for binding in BINDINGS.iter().filter(|binding| binding.modes.contains(&mode)) {
                for &key in binding.keys {
                    let before = seen.iter().find(|(known, _)| *known == key);
                    assert!(before.is_none(), "{key:?} in {mode:?}: {before:?} and {:?}", binding.action);
                    seen.push((key, binding.action));
                }
            }
        }
    }

    #[test]
    fn k_is_up_and_control_c_leaves_everywhere() {
        for &mode in MOVES {
            assert_eq!(action(mode, &KeyEvent::new(KeyCode::Char('k'), KeyModifiers::NONE)), Some(Action::Up));
        }
        for &mode in ALL {
            let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
            assert_eq!(action(mode, &control_c), Some(Action::Quit));
        }
    }

    #[test]
    fn escape_never_leaves_the_program() {
        for &mode in ALL {
            let escape = KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE);
            assert_ne!(action(mode, &escape), Some(Action::Quit));
        }
    }

    #[test]
    fn shift_is_told_by_the_character_and_alt_is_nobodys() {
        let shifted = KeyEvent::new(KeyCode::Char('G'), KeyModifiers::SHIFT);
        assert_eq!(action(Mode::List, &shifted), Some(Action::Last));
        let alt = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::ALT);
        assert_eq!(action(Mode::List, &alt), None);
        let control_k = KeyEvent::new(KeyCode::Char('k'), KeyModifiers::CONTROL);
        assert_eq!(action(Mode::List, &control_k), None);
    }

    #[test]
    fn every_section_of_the_help_has_keys() {
        let shown: usize = Section::ALL.iter().map(|section| section.bindings().count()).sum();
        assert_eq!(shown, BINDINGS.len());
        assert!(Section::ALL.iter().all(|section| section.bindings().count() >= 2));
    }

    #[test]
    fn where_nothing_is_to_be_changed_the_help_names_nothing_that_would() {
        let names = |is_readonly| {
            let lines = help_lines(is_readonly).into_iter();
            lines.filter(|line| matches!(line, HelpLine::Keys(binding) if changes_hosts(binding.action))).count()
        };
        assert_eq!(names(true), 0);
        assert!(names(false) > 4);
        assert!(help_lines(true).iter().all(|line| !matches!(line, HelpLine::Title("Signals"))));
    }

    #[test]
    fn every_binding_is_written_in_ascii_and_every_mode_has_hints() {
        for binding in BINDINGS {
            assert!(binding.shown.is_ascii() && binding.words.is_ascii(), "{}", binding.words);
        }
        for &mode in ALL {
            assert!(Keymap::default().hints(mode).count() >= 2, "{mode:?}");
        }
    }
}
