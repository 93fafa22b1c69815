//! The one table of keys: dispatch, the hint bar and the help are all read from it.

use super::action::{Action, Mode};
use crate::fleet::SortKey;
use crossterm::event::KeyCode;

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
    pub label: &'static str,
    /// What they do, for the help.
    pub description: &'static str,
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
pub(super) const SORTABLE: &[Mode] = &[List, HostList, Processes, Users];
const SPLIT: &[Mode] = &[Grid, List, Host, HostList];
pub(super) const FILTER_LINE: &[Mode] = &[FilterLine];
pub(super) const USER_PICKER: &[Mode] = &[UserPicker];
const NAVIGABLE: &[Mode] =
    &[Grid, List, Host, HostList, Processes, Gpu, Wall, Users, Log, Findings, History, Process, Help, UserPicker];
pub(super) const SCROLLABLE: &[Mode] =
    &[Grid, List, Host, HostList, Processes, Wall, Users, Log, Findings, History, Help, UserPicker];
const HOSTS: &[Mode] = &[Host, HostList];
pub(super) const PROMPT_DIALOGS: &[Mode] = &[HostKeyDialog, SecretDialog, SignalDialog];
pub(super) const SORT_MENU: &[Mode] = &[SortMenu];
const SIGNALLABLE: &[Mode] = &[List, HostList, Processes, Process];
pub(super) const SIGNAL_MENU: &[Mode] = &[SignalMenu];
const VIEWS: &[Mode] = &[Grid, List, Host, HostList, Processes, Gpu, Wall, Users, Log, Findings, History, Process];
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

/// Every key. A line is told from another by its place, so that there is one of each. The hint bar shows those with a hint, in this order.
pub static BINDINGS: &[Binding] = bindings! {
    NAVIGABLE, [key(KeyCode::Up), char('k')], Action::Up, "Up k", "up", None;
    NAVIGABLE, [key(KeyCode::Down), char('j')], Action::Down, "Down j", "down", None;
    TWO_DIMENSIONAL, [key(KeyCode::Left), char('h')], Action::Left, "Left h", "left", None;
    TWO_DIMENSIONAL, [key(KeyCode::Right), char('l')], Action::Right, "Right l", "right", None;
    SCROLLABLE, [key(KeyCode::PageUp)], Action::PageUp, "PgUp", "one screen up", None;
    SCROLLABLE, [key(KeyCode::PageDown)], Action::PageDown, "PgDn", "one screen down", None;
    SCROLLABLE, [ctrl('u')], Action::HalfPageUp, "C-u", "half a screen up", None;
    SCROLLABLE, [ctrl('d')], Action::HalfPageDown, "C-d", "half a screen down", None;
    SCROLLABLE, [key(KeyCode::Home), char('g')], Action::First, "Home g", "first", None;
    SCROLLABLE, [key(KeyCode::End), char('G')], Action::Last, "End G", "last", None;

    // Dialogs and the menu come first: their hints are the only ones shown there.
    &[HostKeyDialog], [key(KeyCode::Esc), char('s')], Action::Skip, "Esc s", "skip this host", Some("skip this host");
    &[SecretDialog], [key(KeyCode::Esc)], Action::Skip, "Esc", "skip these hosts", Some("skip these hosts");
    &[HostKeyDialog], [char('o')], Action::TrustOnce, "o", "trust the key this once", Some("trust once");
    &[HostKeyDialog], [key(KeyCode::Enter)], Action::Submit, "yes Enter", "trust the key and save it", Some("trust and save");
    &[SecretDialog], [key(KeyCode::Enter)], Action::Submit, "Enter", "hand over what was typed", Some("send");
    PROMPT_DIALOGS, [key(KeyCode::Backspace)], Action::EraseCharacter, "Backspace", "take a character back", None;
    PROMPT_DIALOGS, [ctrl('u')], Action::EraseLine, "C-u", "take everything back", None;
    SORT_MENU, [char('n')], Action::SortBy(SortKey::Trouble), "n", "trouble, mine, memory", Some("trouble");
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
    SORT_MENU, [key(KeyCode::Esc), char('o'), key(KeyCode::F(6))], Action::Back, "Esc", "leave the order as it is", Some("leave");

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
    LIVE, [char('P')], Action::OpenPrompts, "P", "answer the questions that wait", Some("answer");
    &[Grid, List], [key(KeyCode::Tab)], Action::NextFocus, "Tab", "hosts or processes", Some("hosts/processes");
    HOSTS, [key(KeyCode::Tab)], Action::NextFocus, "Tab", "in one host: GPUs or processes", Some("GPUs/processes");
    SPLIT, [key(KeyCode::BackTab)], Action::PreviousFocus, "S-Tab", "the same as Tab, backwards", None;
    HOSTS, [char(']')], Action::NextHost, "]", "next host", Some("next host");
    HOSTS, [char('[')], Action::PreviousHost, "[", "previous host", Some("previous");
    &[Host, HostList, Wall], [char('v')], Action::Metric, "v", "charts: GPU, mem-busy, memory, power, temperature", Some("metric");
    CHARTS, [char('w')], Action::Span, "w", "charts: 2 minutes to 2 hours", Some("span");
    &[Grid, Host, Wall], [char('r')], Action::RetryHost, "r", "try this host again now", Some("retry");
    &[Grid, Host, HostList, Gpu, Wall], [char('L')], Action::Log, "L", "ssh log: what was done to reach this host", None;
    WITH_SELECTION, [char('s')], Action::Shell, "s", "a shell on the host: ssh, and back to the screen", None;
    WITH_SELECTION, [char('y')], Action::Copy, "y", "copy: ssh command, pid, lines of a free GPU, note", None;
    HIDEABLE, [char('D')], Action::Hide, "D", "hide this host", None;
    &[Grid, List, Wall], [char('H')], Action::ShowHidden, "H", "show hidden hosts again", None;
    HIDEABLE, [char('*')], Action::Pin, "*", "pin: this host stands first, or no longer", None;
    OVERVIEW, [char('a')], Action::DensityAuto, "a", "panes: as there is room", None;
    OVERVIEW, [char('c')], Action::DensityCompact, "c", "panes: small", None;
    OVERVIEW, [char('f')], Action::DensityFull, "f", "panes: full, scrolled where they do not fit", None;
    LIVE, [char('R')], Action::RetryAll, "R", "try all unconnected hosts again now", None;

    PANES, [char('/'), key(KeyCode::F(4))], Action::Filter, "/ F4", "filter the processes", Some("filter");
    LISTS, [key(KeyCode::Right), char('l')], Action::FoldState, "Right l", "show what is below a row", Some("unfold");
    LISTS, [key(KeyCode::Left), char('h')], Action::Fold, "Left h", "fold it", None;
    LISTS, [char('t'), key(KeyCode::F(5))], Action::Group, "t F5", "group: job, across hosts, none, user, host", Some("group");
    SORTABLE, [char('.')], Action::SortRight, ".", "sort by the next column", Some("sort");
    SORTABLE, [char(',')], Action::SortLeft, ",", "sort by the column before", None;
    SORTABLE, [char('r')], Action::SortReverse, "r", "turn the order around", Some("reverse");
    LISTS, [char('o'), key(KeyCode::F(6))], Action::SortMenu, "o F6", "sort by a column: its letter", Some("sort by");
    LISTS, [char(' ')], Action::Tag, "Space", "tag, or take the tag away", Some("tag");
    LISTS, [char('U')], Action::UntagAll, "U", "take all tags away", Some("untag all");
    LISTS, [char('F')], Action::Follow, "F", "the selection follows its process, or not", None;
    SIGNALLABLE, [char('I')], Action::Interrupt, "I", "send INT, after a confirmation", None;
    SIGNALLABLE, [char('T')], Action::Terminate, "T", "send TERM, after a confirmation", Some("TERM");
    SIGNALLABLE, [char('K')], Action::Kill, "K", "send KILL, after a confirmation", None;
    SIGNALLABLE, [key(KeyCode::F(9))], Action::SignalMenu, "F9", "choose a signal", None;
    SIGNAL_MENU, [char('i'), char('I')], Action::Interrupt, "i", "INT: as Ctrl-C would", Some("INT");
    SIGNAL_MENU, [char('t'), char('T')], Action::Terminate, "t", "TERM: asks it to end", Some("TERM");
    SIGNAL_MENU, [char('k'), char('K')], Action::Kill, "k", "KILL: ends it at once", Some("KILL");
    SIGNAL_MENU, [key(KeyCode::Esc), key(KeyCode::F(9))], Action::Back, "Esc", "send none", Some("none");
    &[SignalDialog], [key(KeyCode::Esc)], Action::Skip, "Esc", "send nothing", Some("cancel");
    &[SignalDialog], [key(KeyCode::Enter)], Action::Submit, "Enter", "send, once what is asked for is typed", Some("send what is typed");
    PANES, [char('m')], Action::Mine, "m", "your own processes alone", Some("mine");
    PANES, [char('u')], Action::UserPicker, "u", "one user's processes alone", Some("user");
    PANES, [char('!')], Action::Problems, "!", "what needs a person alone", Some("problems");
    PANES, [char('i')], Action::IdleOnly, "i", "what holds GPUs without work alone", Some("idle");
    FILTER_LINE, [key(KeyCode::Enter)], Action::Submit, "Enter", "keep the filter", Some("keep");
    FILTER_LINE, [key(KeyCode::Esc)], Action::Back, "Esc", "clear the filter", Some("clear");
    FILTER_LINE, [key(KeyCode::F(1))], Action::Help, "F1", "how a filter is written", Some("syntax");
    FILTER_LINE, [key(KeyCode::Backspace)], Action::EraseCharacter, "Backspace", "take a character back", None;
    FILTER_LINE, [key(KeyCode::Delete)], Action::EraseNext, "Del", "take the next character away", None;
    FILTER_LINE, [ctrl('w')], Action::EraseWord, "C-w", "take a word back", None;
    FILTER_LINE, [ctrl('u')], Action::EraseLine, "C-u", "take everything back", None;
    FILTER_LINE, [key(KeyCode::Left)], Action::Left, "Left", "one character back", None;
    FILTER_LINE, [key(KeyCode::Right)], Action::Right, "Right", "one character on", None;
    FILTER_LINE, [key(KeyCode::Home), ctrl('a')], Action::First, "Home C-a", "to the beginning", None;
    FILTER_LINE, [key(KeyCode::End), ctrl('e')], Action::Last, "End C-e", "to the end", None;
    USER_PICKER, [key(KeyCode::Enter)], Action::Enter, "Enter", "this user's processes alone", Some("choose");
    USER_PICKER, [key(KeyCode::Esc), char('u')], Action::Back, "Esc u", "leave the list as it is", Some("leave");

    PALETTE, [key(KeyCode::Enter)], Action::Enter, "Enter", "do it", Some("do it");
    PALETTE, [key(KeyCode::Esc)], Action::Back, "Esc", "do nothing", Some("leave");
    PALETTE, [key(KeyCode::Up), ctrl('p')], Action::Up, "Up C-p", "the entry above", None;
    PALETTE, [key(KeyCode::Down), ctrl('n')], Action::Down, "Down C-n", "the entry below", None;
    PALETTE, [key(KeyCode::Backspace)], Action::EraseCharacter, "Backspace", "take a character back", None;
    PALETTE, [ctrl('w')], Action::EraseWord, "C-w", "take a word back", None;
    PALETTE, [ctrl('u')], Action::EraseLine, "C-u", "take everything back", None;

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

/// What the hint bar says of a line of the table.
pub(super) fn hint_of(binding: &Binding) -> Option<&'static str> {
    binding.hint
}

#[cfg(test)]
mod tests {
    use super::super::Keymap;
    use super::super::action::changes_hosts;
    use super::super::help::{HelpLine, Section, help_lines};
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
        for &mode in NAVIGABLE {
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
            assert!(binding.label.is_ascii() && binding.description.is_ascii(), "{}", binding.description);
        }
        for &mode in ALL {
            assert!(Keymap::default().hints(mode).count() >= 2, "{mode:?}");
        }
    }
}
