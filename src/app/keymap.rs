//! The built-in table of keys and the keymap of this run.
//!
//! Key dispatch, the hint bar, the help, the palette and docs/keys.md all read [`BINDINGS`]. A [`Keymap`] is that table
//! with the overrides from `settings.toml`.

use super::action::{Action, Mode};
use crate::fleet::SortKey;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// A key without Shift: the character tells upper case from lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The key code.
    pub code: KeyCode,
    /// Whether Ctrl is held.
    pub ctrl: bool,
}

/// One row of the table.
#[derive(Debug)]
pub struct Binding {
    /// The modes in which it applies.
    pub modes: &'static [Mode],
    /// The keys.
    pub keys: &'static [Key],
    /// The action.
    pub action: Action,
    /// The names of the keys, in ASCII.
    pub label: &'static str,
    /// A description for the help.
    pub description: &'static str,
    /// A text for the hint bar. Bindings without one are in the help only.
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
    FilterLine, Findings, Gpu, Grid, HangReport, Help, History, Host, HostKeyDialog, HostList, List, Log, Palette,
    Process, Processes, SecretDialog, SignalDialog, SignalMenu, SortMenu, UserPicker, Users, Wall,
};

pub(super) const LISTS: &[Mode] = &[List, HostList, Processes];
const PANES: &[Mode] = &[Grid, List, Host, HostList, Processes];
const LIVE: &[Mode] = &[Grid, List, Host, HostList, Processes, Wall, Users];
pub(super) const SORTABLE: &[Mode] = &[List, HostList, Processes, Users];
const SPLIT: &[Mode] = &[Grid, List, Host, HostList];
pub(super) const FILTER_LINE: &[Mode] = &[FilterLine];
pub(super) const USER_PICKER: &[Mode] = &[UserPicker];
const NAVIGABLE: &[Mode] = &[
    Grid, List, Host, HostList, Processes, Gpu, Wall, Users, Log, Findings, History, Process, HangReport, Help,
    UserPicker,
];
pub(super) const SCROLLABLE: &[Mode] = &[
    Grid, List, Host, HostList, Processes, Wall, Users, Log, Findings, History, Process, HangReport, Help, UserPicker,
];
const HOSTS: &[Mode] = &[Host, HostList];
pub(super) const PROMPT_DIALOGS: &[Mode] = &[HostKeyDialog, SecretDialog, SignalDialog];
pub(super) const SORT_MENU: &[Mode] = &[SortMenu];
const SIGNALLABLE: &[Mode] = &[List, HostList, Processes, Process];
pub(super) const SIGNAL_MENU: &[Mode] = &[SignalMenu];
const VIEWS: &[Mode] =
    &[Grid, List, Host, HostList, Processes, Gpu, Wall, Users, Log, Findings, History, Process, HangReport];
const VIEWS_AND_HELP: &[Mode] =
    &[Grid, List, Host, HostList, Processes, Gpu, Wall, Users, Log, Findings, History, Process, HangReport, Help];
const WITH_SELECTION: &[Mode] = &[Grid, List, Host, HostList, Processes, Gpu, Wall, Log, Findings, Process];
const TWO_DIMENSIONAL: &[Mode] = &[Grid, Host, Gpu, Wall];
pub(super) const PALETTE: &[Mode] = &[Palette];
const OVERVIEW: &[Mode] = &[Grid, List];
const HIDEABLE: &[Mode] = &[Grid, Host, Wall];
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
    HangReport,
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
    ($($modes:expr, [$($key:expr),+], $action:expr, $label:literal, $description:literal, $hint:expr;)*) => {
        &[$(Binding {
            modes: $modes,
            keys: &[$($key),+],
            action: $action,
            label: $label,
            description: $description,
            hint: $hint,
        }),*]
    };
}

/// All bindings. The hint bar shows those with a hint, in this order.
///
/// A static, not a const: [`Keymap`] identifies a binding by its address.
pub static BINDINGS: &[Binding] = bindings! {
    NAVIGABLE, [key(KeyCode::Up), char('k')], Action::Up, "Up k", "move up", None;
    NAVIGABLE, [key(KeyCode::Down), char('j')], Action::Down, "Down j", "move down", None;
    TWO_DIMENSIONAL, [key(KeyCode::Left), char('h')], Action::Left, "Left h", "move left", None;
    TWO_DIMENSIONAL, [key(KeyCode::Right), char('l')], Action::Right, "Right l", "move right", None;
    SCROLLABLE, [key(KeyCode::PageUp)], Action::PageUp, "PgUp", "one screen up", None;
    SCROLLABLE, [key(KeyCode::PageDown)], Action::PageDown, "PgDn", "one screen down", None;
    SCROLLABLE, [ctrl('u')], Action::HalfPageUp, "C-u", "half a screen up", None;
    SCROLLABLE, [ctrl('d')], Action::HalfPageDown, "C-d", "half a screen down", None;
    SCROLLABLE, [key(KeyCode::Home), char('g')], Action::First, "Home g", "go to the first", None;
    SCROLLABLE, [key(KeyCode::End), char('G')], Action::Last, "End G", "go to the last", None;

    // Dialogs and menus.
    &[HostKeyDialog], [key(KeyCode::Esc), char('s'), char('q')], Action::Skip, "Esc s q", "skip this host", Some("skip this host");
    &[SecretDialog], [key(KeyCode::Esc)], Action::Skip, "Esc", "skip these hosts", Some("skip these hosts");
    &[HostKeyDialog], [char('o')], Action::TrustOnce, "o", "trust the key for this run", Some("trust once");
    &[HostKeyDialog], [key(KeyCode::Enter)], Action::Submit, "yes Enter", "trust the key and save it", Some("trust and save");
    &[SecretDialog], [key(KeyCode::Enter)], Action::Submit, "Enter", "send the text", Some("send");
    PROMPT_DIALOGS, [key(KeyCode::Backspace)], Action::EraseCharacter, "Backspace", "delete the previous character", None;
    PROMPT_DIALOGS, [ctrl('u')], Action::EraseLine, "C-u", "delete the whole text", None;
    SORT_MENU, [char('n')], Action::SortBy(SortKey::Trouble), "n", "problems first, then your own, then memory", Some("problems first");
    SORT_MENU, [char('h')], Action::SortBy(SortKey::Host), "h", "host", Some("host");
    SORT_MENU, [char('u')], Action::SortBy(SortKey::User), "u", "user", Some("user");
    SORT_MENU, [char('p')], Action::SortBy(SortKey::Pid), "p", "process id", Some("pid");
    SORT_MENU, [char('g')], Action::SortBy(SortKey::GpuMemory), "g", "GPU memory", Some("GPU memory");
    SORT_MENU, [char('s')], Action::SortBy(SortKey::Sm), "s", "SM share", Some("SM");
    SORT_MENU, [char('c')], Action::SortBy(SortKey::Cpu), "c", "CPU share", Some("CPU");
    SORT_MENU, [char('m')], Action::SortBy(SortKey::Rss), "m", "host memory", Some("host memory");
    SORT_MENU, [char('t')], Action::SortBy(SortKey::Time), "t", "age", Some("time");
    SORT_MENU, [char('d')], Action::SortBy(SortKey::State), "d", "state", Some("state");
    SORT_MENU, [char('i')], Action::SortBy(SortKey::Gpu), "i", "GPU", Some("GPU");
    SORT_MENU, [char('w')], Action::SortBy(SortKey::Command), "w", "command", Some("command");
    SORT_MENU, [key(KeyCode::Esc), char('q'), char('o'), key(KeyCode::F(6))], Action::Back, "Esc q", "keep the order", Some("cancel");

    &[Grid, Wall], [key(KeyCode::Enter)], Action::Enter, "Enter", "open the view of the selected host", Some("host");
    &[Host], [key(KeyCode::Enter)], Action::Enter, "Enter", "open the view of the selected GPU", Some("one GPU");
    LISTS, [key(KeyCode::Enter)], Action::Enter, "Enter", "unfold a job, or open the view of a process", Some("details");
    &[Users], [key(KeyCode::Enter)], Action::Enter, "Enter", "show only the selected user's processes", Some("their processes");
    &[Findings], [key(KeyCode::Enter)], Action::Enter, "Enter", "open the process or host of the finding", Some("go there");
    &[Findings], [char('x')], Action::Snooze, "x", "snooze for an hour, or end the snooze", Some("snooze 1h");
    &[Findings], [char('X')], Action::SnoozeUntilItChanges, "X", "snooze until it changes, or end the snooze", Some("until it changes");
    &[Process, Findings], [char('W')], Action::Why, "W", "why it hangs: examine the job", Some("why");
    LISTS, [char('W')], Action::Why, "W", "why it hangs: examine the job", None;
    &[Findings], [char('H')], Action::History, "H", "history: findings and messages of this run", Some("history");
    &[History], [char('H')], Action::Back, "H", "go back to the findings", None;
    &[Host, HostList, Processes, Gpu, Wall, Users, Log, Findings, History, Process, HangReport], [key(KeyCode::Esc)], Action::Back, "Esc", "go back one level", Some("back");
    &[Grid, List], [key(KeyCode::Esc)], Action::ShowAll, "Esc", "clear all filters", Some("show all");
    LIVE, [char('P')], Action::OpenPrompts, "P", "answer prompts for host keys and passphrases", Some("answer");
    &[Grid, List], [key(KeyCode::Tab)], Action::NextFocus, "Tab", "focus hosts or the process list", Some("hosts/processes");
    HOSTS, [key(KeyCode::Tab)], Action::NextFocus, "Tab", "host view: focus GPUs or the process list", Some("GPUs/processes");
    SPLIT, [key(KeyCode::BackTab)], Action::PreviousFocus, "S-Tab", "focus the previous part", None;
    HOSTS, [char(']')], Action::NextHost, "]", "show the next host", Some("next host");
    HOSTS, [char('[')], Action::PreviousHost, "[", "show the previous host", Some("previous");
    &[Process], [char(']')], Action::NextProcess, "]", "show the next process", Some("next process");
    &[Process], [char('[')], Action::PreviousProcess, "[", "show the previous process", Some("previous");
    &[Host, HostList, Wall], [char('v')], Action::Metric, "v", "charts: next metric (GPU, memory, power, ...)", Some("metric");
    CHARTS, [char('w')], Action::Span, "w", "charts: next span (2m to 2h; 1y with a collector)", Some("span");
    &[Grid, Host, Wall], [char('r')], Action::RetryHost, "r", "connect to this host now", Some("retry");
    &[Grid, Host, HostList, Gpu, Wall], [char('L')], Action::Log, "L", "ssh log of this host", Some("log");
    WITH_SELECTION, [char('s')], Action::Shell, "s", "open a shell on the host", None;
    WITH_SELECTION, [char('y')], Action::Copy, "y", "copy ssh command, pid, message or GPU setup", None;
    HIDEABLE, [char('D')], Action::Hide, "D", "hide this host", None;
    &[Grid, List, Wall], [char('H')], Action::ShowHidden, "H", "show hidden hosts", None;
    HIDEABLE, [char('*')], Action::Pin, "*", "pin this host to the top, or unpin it", None;
    OVERVIEW, [char('a')], Action::DensityAuto, "a", "density: as much as fits", None;
    OVERVIEW, [char('c')], Action::DensityCompact, "c", "density: small panes", None;
    OVERVIEW, [char('f')], Action::DensityFull, "f", "density: full panes; scroll if they do not fit", None;
    LIVE, [char('R')], Action::RetryAll, "R", "connect to all unconnected hosts now", None;

    PANES, [char('/'), key(KeyCode::F(4))], Action::Filter, "/ F4", "filter processes and hosts", Some("filter");
    LISTS, [key(KeyCode::Right), char('l')], Action::Unfold, "Right l", "unfold: show the rows below", Some("unfold");
    LISTS, [key(KeyCode::Left), char('h')], Action::Fold, "Left h", "fold: hide the rows below", None;
    LISTS, [char('t'), key(KeyCode::F(5))], Action::Group, "t F5", "next grouping: job, across hosts, user, ...", Some("group");
    SORTABLE, [char('.')], Action::SortRight, ".", "sort by the next column", Some("sort");
    SORTABLE, [char(',')], Action::SortLeft, ",", "sort by the previous column", None;
    SORTABLE, [char('r')], Action::SortReverse, "r", "reverse the order", Some("reverse");
    LISTS, [char('o'), key(KeyCode::F(6))], Action::SortMenu, "o F6", "sort menu: choose a column by its letter", Some("sort by");
    LISTS, [char(' ')], Action::Tag, "Space", "tag or untag this row", Some("tag");
    LISTS, [char('U')], Action::UntagAll, "U", "remove all tags", Some("untag all");
    LISTS, [char('F')], Action::Follow, "F", "selection follows its process, or its line", None;
    SIGNALLABLE, [char('I')], Action::Interrupt, "I", "send INT after a confirmation", None;
    SIGNALLABLE, [char('T')], Action::Terminate, "T", "send TERM after a confirmation", Some("TERM");
    SIGNALLABLE, [char('K')], Action::Kill, "K", "send KILL after a confirmation", None;
    SIGNALLABLE, [key(KeyCode::F(9))], Action::SignalMenu, "F9", "choose a signal", None;
    SIGNAL_MENU, [char('i'), char('I')], Action::Interrupt, "i", "INT: interrupt, as Ctrl-C does", Some("INT");
    SIGNAL_MENU, [char('t'), char('T')], Action::Terminate, "t", "TERM: ask the process to end", Some("TERM");
    SIGNAL_MENU, [char('k'), char('K')], Action::Kill, "k", "KILL: end the process immediately", Some("KILL");
    SIGNAL_MENU, [key(KeyCode::Esc), char('q'), key(KeyCode::F(9))], Action::Back, "Esc q", "cancel", Some("cancel");
    &[SignalDialog], [key(KeyCode::Esc)], Action::Skip, "Esc", "cancel", Some("cancel");
    &[SignalDialog], [key(KeyCode::Enter)], Action::Submit, "Enter", "send after the text is typed", Some("send");
    PANES, [char('m')], Action::Mine, "m", "only your own processes", Some("mine");
    PANES, [char('u')], Action::UserPicker, "u", "only one user's processes", Some("user");
    PANES, [char('!')], Action::Problems, "!", "only problems", Some("problems");
    PANES, [char('i')], Action::IdleOnly, "i", "only processes that hold GPUs without work", Some("idle");
    FILTER_LINE, [key(KeyCode::Enter)], Action::Submit, "Enter", "keep the filter", Some("keep");
    FILTER_LINE, [key(KeyCode::Esc)], Action::Back, "Esc", "clear the filter", Some("clear");
    FILTER_LINE, [key(KeyCode::F(1))], Action::Help, "F1", "help: filter syntax", Some("syntax");
    FILTER_LINE, [key(KeyCode::Backspace)], Action::EraseCharacter, "Backspace", "delete the previous character", None;
    FILTER_LINE, [key(KeyCode::Delete)], Action::EraseNext, "Del", "delete the next character", None;
    FILTER_LINE, [ctrl('w')], Action::EraseWord, "C-w", "delete the previous word", None;
    FILTER_LINE, [ctrl('u')], Action::EraseLine, "C-u", "delete the whole text", None;
    FILTER_LINE, [key(KeyCode::Left)], Action::Left, "Left", "move one character left", None;
    FILTER_LINE, [key(KeyCode::Right)], Action::Right, "Right", "move one character right", None;
    FILTER_LINE, [key(KeyCode::Home), ctrl('a')], Action::First, "Home C-a", "go to the beginning", None;
    FILTER_LINE, [key(KeyCode::End), ctrl('e')], Action::Last, "End C-e", "go to the end", None;
    USER_PICKER, [key(KeyCode::Enter)], Action::Enter, "Enter", "show only this user's processes", Some("choose");
    USER_PICKER, [key(KeyCode::Esc), char('u'), char('q')], Action::Back, "Esc u q", "cancel", Some("cancel");

    PALETTE, [key(KeyCode::Enter)], Action::Enter, "Enter", "open the selected item, or run the command", Some("open");
    PALETTE, [key(KeyCode::Esc)], Action::Back, "Esc", "cancel", Some("cancel");
    PALETTE, [key(KeyCode::Up), ctrl('p')], Action::Up, "Up C-p", "previous entry", None;
    PALETTE, [key(KeyCode::Down), ctrl('n')], Action::Down, "Down C-n", "next entry", None;
    PALETTE, [key(KeyCode::Backspace)], Action::EraseCharacter, "Backspace", "delete the previous character", None;
    PALETTE, [ctrl('w')], Action::EraseWord, "C-w", "delete the previous word", None;
    PALETTE, [ctrl('u')], Action::EraseLine, "C-u", "delete the whole text", None;

    VIEWS, [char('1')], Action::Overview, "1", "overview: hosts and processes", None;
    VIEWS, [char('2')], Action::Wall, "2", "wall: one cell per GPU", Some("wall");
    VIEWS, [char('3')], Action::Processes, "3", "process list in full screen", Some("processes");
    VIEWS, [char('4')], Action::Users, "4", "users: who holds which GPUs", Some("users");
    VIEWS, [char('5')], Action::Findings, "5", "findings: problems with their evidence", Some("findings");
    LIVE, [char('-')], Action::Slower, "-", "sample less often", None;
    LIVE, [char('+'), char('=')], Action::Faster, "+", "sample more often", None;
    VIEWS, [char('Z')], Action::Freeze, "Z", "freeze or unfreeze the view", None;
    VIEWS, [char('M')], Action::Mouse, "M", "mouse on or off (off: terminal selects text)", None;
    VIEWS_AND_HELP, [char(':')], Action::Palette, ":", "find a host, user, view, process or command", Some("find");
    LIVE, [ctrl('r')], Action::Refresh, "C-r", "request new readings from all hosts", None;
    ALL, [ctrl('l')], Action::Repaint, "C-l", "redraw the screen", None;
    ALL, [ctrl('z')], Action::Suspend, "C-z", "suspend; `fg` resumes", None;
    VIEWS, [char('?'), key(KeyCode::F(1))], Action::Help, "? F1", "show the help", Some("help");
    &[Help], [char('?'), key(KeyCode::F(1)), key(KeyCode::Tab)], Action::Help, "? F1 Tab", "help: all keys, or those of the view", Some("all keys, or this view's");
    &[Help], [char('q'), key(KeyCode::Esc)], Action::Back, "q Esc", "close the help", Some("close");
    VIEWS, [char('q')], Action::Quit, "q", "quit", Some("quit");
    ALL, [ctrl('c')], Action::Quit, "C-c", "quit from anywhere", None;
};

/// The bindings of this run: the table with the overrides from `settings.toml`.
#[derive(Debug, Clone)]
pub struct Keymap {
    /// For each binding the keys that replace its own, and their names.
    overrides: Vec<Option<(Vec<Key>, String)>>,
}

/// A configured key that already has a meaning, or that is needed for typing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyConflict {
    /// Index of the assignment and index of the key in it.
    pub assignment_and_key: (usize, usize),
    /// The problem with the key.
    pub message: String,
    /// How to fix it.
    pub hint: String,
}

/// An action and the keys that `settings.toml` gives it.
pub type Assignment = (Action, Vec<Key>);

impl Default for Keymap {
    fn default() -> Self {
        Self { overrides: vec![None; BINDINGS.len()] }
    }
}

impl Keymap {
    /// Returns the table with these overrides.
    ///
    /// # Errors
    /// Returns every key that would have two meanings in a mode, or that is needed for typing.
    pub fn with_overrides(assignments: &[Assignment]) -> Result<Self, Vec<KeyConflict>> {
        let mut map = Self::default();
        for (action, keys) in assignments {
            let shown = keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            for (line, binding) in map.overrides.iter_mut().zip(BINDINGS) {
                if binding.action == *action && is_configurable(binding) {
                    *line = Some((keys.clone(), shown.clone()));
                }
            }
        }
        let conflicts = map.conflicts(assignments);
        if conflicts.is_empty() { Ok(map) } else { Err(conflicts) }
    }

    fn conflicts(&self, assignments: &[Assignment]) -> Vec<KeyConflict> {
        let mut conflicts: Vec<KeyConflict> = Vec::new();
        for (assignment_index, (action, keys)) in assignments.iter().enumerate() {
            let name = action.name().unwrap_or_default();
            for (index, key) in keys.iter().enumerate() {
                let lines = || BINDINGS.iter().filter(|line| line.action == *action && is_configurable(line));
                let is_text = matches!(key.code, KeyCode::Char(_)) && !key.ctrl;
                let typed = lines().any(|line| line.modes.iter().any(|mode| mode.takes_text()));
                let other = lines().flat_map(|line| line.modes).find_map(|mode| {
                    let other =
                        bindings_of(*mode).find(|other| other.action != *action && self.keys(other).contains(key))?;
                    Some((other, *mode))
                });
                let (message, hint) = match other {
                    _ if is_text && typed => (
                        format!("`{key}` is a text character, and `{name}` also applies while text is typed"),
                        "use a key with Ctrl, such as \"C-x\", or F1 to F12".to_owned(),
                    ),
                    Some((other, mode)) => (
                        format!(
                            "`{key}` for `{name}` has another meaning ({}): {}",
                            mode.location(),
                            other.description
                        ),
                        match other.action.name().filter(|_| is_configurable(other)) {
                            Some(other) => format!("use another key, or change the key of `{other}` too"),
                            None => "use another key: this one is fixed".to_owned(),
                        },
                    ),
                    None => continue,
                };
                conflicts.push(KeyConflict { assignment_and_key: (assignment_index, index), message, hint });
            }
        }
        conflicts
    }

    fn override_for(&self, binding: &Binding) -> Option<&(Vec<Key>, String)> {
        let index = BINDINGS.iter().position(|line| std::ptr::eq(line, binding))?;
        self.overrides.get(index)?.as_ref()
    }

    /// Returns the keys of a binding.
    pub fn keys<'a>(&'a self, binding: &'a Binding) -> &'a [Key] {
        self.override_for(binding).map_or(binding.keys, |(keys, _)| keys)
    }

    /// Returns the names of the keys of a binding.
    pub fn keys_label<'a>(&'a self, binding: &'a Binding) -> &'a str {
        self.override_for(binding).map_or(binding.label, |(_, shown)| shown)
    }

    /// Returns the name of the first key of an action.
    pub fn first_key(&self, action: Action) -> &str {
        let binding = BINDINGS.iter().find(|binding| binding.action == action);
        binding.and_then(|binding| self.keys_label(binding).split(' ').next()).unwrap_or_default()
    }

    /// Returns the action of a key in a mode.
    pub fn action(&self, mode: Mode, event: &KeyEvent) -> Option<Action> {
        let pressed = Key { code: event.code, ctrl: event.modifiers.contains(KeyModifiers::CONTROL) };
        if event.modifiers.contains(KeyModifiers::ALT) {
            return None;
        }
        bindings_of(mode).find(|binding| self.keys(binding).contains(&pressed)).map(|binding| binding.action)
    }

    /// Returns action, keys and text of each hint in a mode.
    pub fn hints(&self, mode: Mode) -> impl Iterator<Item = (Action, &str, &'static str)> {
        bindings_of(mode).filter_map(|binding| Some((binding.action, self.keys_label(binding), binding.hint?)))
    }
}

/// Returns the bindings that apply in a mode.
fn bindings_of(mode: Mode) -> impl Iterator<Item = &'static Binding> {
    BINDINGS.iter().filter(move |binding| binding.modes.contains(&mode))
}

/// Returns whether `settings.toml` may override the keys of a binding. The keys of dialogs, menus and input lines are
/// fixed, and so are Enter, Esc and Ctrl-C.
pub fn is_configurable(binding: &Binding) -> bool {
    let is_view = |mode: &Mode| !mode.is_overlay();
    let is_fixed = matches!(binding.keys, [Key { code: KeyCode::Char('c'), ctrl: true }]);
    binding.action.name().is_some() && !is_fixed && binding.modes.iter().any(is_view)
}

/// Returns the actions that `settings.toml` can name, in the order of the table.
pub fn named_actions() -> Vec<(&'static str, Action)> {
    let mut named: Vec<(&'static str, Action)> = Vec::new();
    for binding in BINDINGS.iter().filter(|binding| is_configurable(binding)) {
        if let Some(name) = binding.action.name()
            && !named.iter().any(|(known, _)| *known == name)
        {
            named.push((name, binding.action));
        }
    }
    named
}

/// The keys that have a name.
const NAMED: [(&str, KeyCode); 17] = [
    ("Up", KeyCode::Up),
    ("Down", KeyCode::Down),
    ("Left", KeyCode::Left),
    ("Right", KeyCode::Right),
    ("PgUp", KeyCode::PageUp),
    ("PgDn", KeyCode::PageDown),
    ("Home", KeyCode::Home),
    ("End", KeyCode::End),
    ("Tab", KeyCode::Tab),
    ("S-Tab", KeyCode::BackTab),
    ("Enter", KeyCode::Enter),
    ("Esc", KeyCode::Esc),
    ("Backspace", KeyCode::Backspace),
    ("Del", KeyCode::Delete),
    ("Ins", KeyCode::Insert),
    ("Space", KeyCode::Char(' ')),
    ("Minus", KeyCode::Char('-')),
];

impl Key {
    /// Parses a key: `x`, `X`, `C-x`, `F5`, `PgUp`, `Space`.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some((_, code)) = NAMED.iter().find(|(name, _)| *name == text) {
            return Some(Self { code: *code, ctrl: false });
        }
        if let Some(number) = text.strip_prefix('F').and_then(|number| number.parse::<u8>().ok()) {
            return (1..=12).contains(&number).then_some(Self { code: KeyCode::F(number), ctrl: false });
        }
        let (text, ctrl) = match text.strip_prefix("C-") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let mut characters = text.chars();
        let (character, rest) = (characters.next()?, characters.next());
        let is_good = if ctrl { character.is_ascii_lowercase() } else { character.is_ascii_graphic() };
        (rest.is_none() && is_good).then_some(Self { code: KeyCode::Char(character), ctrl })
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.ctrl {
            formatter.write_str("C-")?;
        }
        match self.code {
            KeyCode::Char('-') => formatter.write_str("-"),
            KeyCode::F(number) => write!(formatter, "F{number}"),
            code => match (NAMED.iter().find(|(_, known)| *known == code), code) {
                (Some((name, _)), _) => formatter.write_str(name),
                (None, KeyCode::Char(character)) => write!(formatter, "{character}"),
                (None, _) => formatter.write_str("?"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn k_is_up_and_ctrl_c_quits_in_every_mode() {
        for &mode in NAVIGABLE {
            assert_eq!(action(mode, &KeyEvent::new(KeyCode::Char('k'), KeyModifiers::NONE)), Some(Action::Up));
        }
        for &mode in ALL {
            let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
            assert_eq!(action(mode, &control_c), Some(Action::Quit));
        }
    }

    #[test]
    fn escape_never_quits() {
        for &mode in ALL {
            let escape = KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE);
            assert_ne!(action(mode, &escape), Some(Action::Quit));
        }
    }

    #[test]
    fn shift_is_part_of_the_character_and_alt_keys_have_no_action() {
        let shifted = KeyEvent::new(KeyCode::Char('G'), KeyModifiers::SHIFT);
        assert_eq!(action(Mode::List, &shifted), Some(Action::Last));
        let alt = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::ALT);
        assert_eq!(action(Mode::List, &alt), None);
        let control_k = KeyEvent::new(KeyCode::Char('k'), KeyModifiers::CONTROL);
        assert_eq!(action(Mode::List, &control_k), None);
    }

    #[test]
    fn binding_texts_are_ascii_and_every_mode_has_hints() {
        for binding in BINDINGS {
            assert!(binding.label.is_ascii() && binding.description.is_ascii(), "{}", binding.description);
        }
        for &mode in ALL {
            assert!(Keymap::default().hints(mode).count() >= 2, "{mode:?}");
        }
    }

    fn press(character: char) -> KeyEvent {
        KeyEvent::new(KeyCode::Char(character), KeyModifiers::NONE)
    }

    fn parsed(text: &str) -> Key {
        Key::parse(text).expect(text)
    }

    #[test]
    fn parsing_a_formatted_key_returns_the_key() {
        for text in ["x", "X", "C-x", "F5", "F12", "PgUp", "S-Tab", "Space", "?", "-", "Enter"] {
            assert_eq!(Key::parse(text).map(|key| key.to_string()).as_deref(), Some(text));
        }
        for text in ["", "xx", "C-", "C-X", "F0", "F13", "\u{1b}", "é", "Ctrl-x"] {
            assert_eq!(Key::parse(text), None, "{text}");
        }
    }

    #[test]
    fn labels_of_configurable_bindings_parse_to_their_keys() {
        for binding in BINDINGS.iter().filter(|binding| is_configurable(binding)) {
            for word in binding.label.split(' ') {
                let key = Key::parse(word).unwrap_or_else(|| panic!("{word} of {}", binding.description));
                assert!(binding.keys.contains(&key), "{word} of {}", binding.description);
            }
        }
    }

    #[test]
    fn an_override_replaces_the_keys_of_an_action() {
        let map = Keymap::with_overrides(&[(Action::Shell, vec![parsed("C-s"), parsed("F2")])]).expect("no conflict");
        assert_eq!(map.action(Mode::Grid, &press('s')), None);
        let control = KeyEvent::new(KeyCode::Char('s'), KeyModifiers::CONTROL);
        assert_eq!(map.action(Mode::Grid, &control), Some(Action::Shell));
        let line = BINDINGS.iter().find(|line| line.action == Action::Shell).expect("is in the table");
        assert_eq!(map.keys_label(line), "C-s F2");
        assert_eq!(map.action(Mode::Grid, &press('y')), Some(Action::Copy));
        // A key that lost its action is free for another one.
        let swapped = [(Action::Shell, vec![parsed("y")]), (Action::Copy, vec![parsed("s")])];
        let map = Keymap::with_overrides(&swapped).expect("no conflict");
        assert_eq!(map.action(Mode::List, &press('y')), Some(Action::Shell));
    }

    #[test]
    fn a_key_with_two_meanings_is_a_conflict() {
        let wrong = [(Action::Shell, vec![parsed("C-s"), parsed("y")]), (Action::Repaint, vec![parsed("p")])];
        let conflicts = Keymap::with_overrides(&wrong).expect_err("two conflicts");
        assert_eq!(
            conflicts,
            [
                KeyConflict {
                    assignment_and_key: (0, 1),
                    message: "`y` for `shell` has another meaning (grid): copy ssh command, pid, message or GPU setup"
                        .into(),
                    hint: "use another key, or change the key of `copy` too".into(),
                },
                KeyConflict {
                    assignment_and_key: (1, 0),
                    message: "`p` is a text character, and `repaint` also applies while text is typed".into(),
                    hint: "use a key with Ctrl, such as \"C-x\", or F1 to F12".into(),
                },
            ]
        );
        let fixed = Keymap::with_overrides(&[(Action::Quit, vec![parsed("Esc")])]).expect_err("a conflict");
        assert_eq!(fixed[0].hint, "use another key: this one is fixed");
    }

    #[test]
    fn ctrl_c_quits_whatever_the_overrides() {
        let map = Keymap::with_overrides(&[(Action::Quit, vec![parsed("Q")])]).expect("no conflict");
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(map.action(Mode::Grid, &control_c), Some(Action::Quit));
        assert_eq!(map.action(Mode::Grid, &press('q')), None);
    }

    #[test]
    fn action_names_are_unique() {
        let named = named_actions();
        assert!(named.len() > 50, "{}", named.len());
        for (index, (name, _)) in named.iter().enumerate() {
            assert!(named[index + 1..].iter().all(|(other, _)| other != name), "{name}");
        }
    }
}
