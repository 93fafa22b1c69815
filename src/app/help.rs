//! The help, generated from the table of keys. A test compares docs/keys.md with it.

use super::action::{Action, Mode, changes_hosts};
use super::keymap::{
    BINDINGS, Binding, FILTER_LINE, Keymap, PALETTE, PROMPT_DIALOGS, SCROLLABLE, SIGNAL_MENU, SORT_MENU, SORTABLE,
    USER_PICKER,
};
use crate::fleet::{FILTER_SYNTAX, GpuState};
use Mode::{Findings, Grid, Help, History, Host, HostList, SignalDialog, Users, Wall};
use std::borrow::Cow;

/// The sections of the help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// Movement and views.
    Navigation,
    /// Actions on hosts.
    Hosts,
    /// The list of processes.
    Processes,
    /// Filters of the list.
    Filtering,
    /// Findings and history.
    Findings,
    /// Signals.
    Signals,
    /// The sort menu.
    SortMenu,
    /// The palette.
    Palette,
    /// Dialogs.
    Prompts,
    /// Everything else.
    Program,
}

impl Section {
    /// All sections, in the order of the help.
    pub const ALL: [Self; 10] = [
        Self::Navigation,
        Self::Hosts,
        Self::Processes,
        Self::Filtering,
        Self::Findings,
        Self::Signals,
        Self::SortMenu,
        Self::Palette,
        Self::Prompts,
        Self::Program,
    ];

    /// Returns the title.
    pub fn title(self) -> &'static str {
        match self {
            Self::Navigation => "Navigation",
            Self::Hosts => "Hosts",
            Self::Processes => "Processes",
            Self::Filtering => "Filters",
            Self::Findings => "Findings",
            Self::Signals => "Signals",
            Self::SortMenu => "Sort menu (o)",
            Self::Palette => "Find (:)",
            Self::Prompts => "Prompts for host keys and passphrases",
            Self::Program => "Program",
        }
    }

    /// Returns the section of a binding.
    pub fn of(binding: &Binding) -> Self {
        let only = |modes: &[Mode]| binding.modes.iter().all(|mode| modes.contains(mode));
        match binding.action {
            _ if only(SIGNAL_MENU) || only(&[SignalDialog]) => Self::Signals,
            Action::Interrupt | Action::Terminate | Action::Kill | Action::SignalMenu => Self::Signals,
            _ if only(PROMPT_DIALOGS) => Self::Prompts,
            _ if only(SORT_MENU) => Self::SortMenu,
            _ if only(&[Findings, History]) => Self::Findings,
            _ if only(PALETTE) => Self::Palette,
            _ if only(FILTER_LINE) || only(USER_PICKER) => Self::Filtering,
            Action::Filter
            | Action::Mine
            | Action::UserPicker
            | Action::Problems
            | Action::IdleOnly
            | Action::ShowAll => Self::Filtering,
            _ if only(SORTABLE) && !only(&[Users]) => Self::Processes,
            Action::Up | Action::Down | Action::Left | Action::Right => Self::Navigation,
            _ if binding.modes == SCROLLABLE => Self::Navigation,
            _ if only(&[Help]) => Self::Program,
            Action::NextFocus
            | Action::PreviousFocus
            | Action::Back
            | Action::NextProcess
            | Action::PreviousProcess
            | Action::Overview
            | Action::Wall
            | Action::Users
            | Action::Processes
            | Action::Findings => Self::Navigation,
            _ if only(&[Users]) => Self::Navigation,
            Action::RetryAll
            | Action::OpenPrompts
            | Action::Refresh
            | Action::Span
            | Action::Log
            | Action::Shell
            | Action::Copy => Self::Hosts,
            Action::Why => Self::Findings,
            _ if only(&[Grid, Host, HostList, Wall]) => Self::Hosts,
            _ => Self::Program,
        }
    }

    /// Returns the bindings of the section.
    pub fn bindings(self) -> impl Iterator<Item = &'static Binding> {
        BINDINGS.iter().filter(move |binding| Self::of(binding) == self)
    }
}

/// The help over a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HelpDialog {
    /// The mode that it was opened in.
    pub mode: Mode,
    /// Shows the keys of all views.
    pub is_all: bool,
    /// The first visible row.
    pub top: usize,
}

/// One line of the help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelpLine {
    /// Keys and their meaning.
    Keys(String, Cow<'static, str>),
    /// A sign on the screen and its meaning.
    Sign(Sign, &'static str),
    /// An example of the filter syntax and its meaning.
    Example(&'static str, &'static str),
}

/// A sign on the screen. The glyph depends on the theme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// The state of a GPU.
    State(GpuState),
    /// A bar of a GPU that is busy at the power of an idle one.
    LowPower,
    /// A character.
    Character(&'static str),
}

/// Lines under a title.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelpBlock {
    /// The title, empty for the keys of the view, which the frame names.
    pub title: &'static str,
    /// The lines.
    pub lines: Vec<HelpLine>,
}

/// Actions whose keys share a row in the help of a view: the beginning of the text, and the words of each action.
type SharedRow = (&'static str, &'static [(Action, &'static str)]);

const SHARED_ROWS: [SharedRow; 21] = [
    ("move", &[(Action::Left, ""), (Action::Down, ""), (Action::Up, ""), (Action::Right, "")]),
    (
        "page, half a page",
        &[(Action::PageUp, ""), (Action::PageDown, ""), (Action::HalfPageUp, ""), (Action::HalfPageDown, "")],
    ),
    ("", &[(Action::First, "first"), (Action::Last, "last")]),
    ("", &[(Action::NextFocus, "hosts or processes"), (Action::PreviousFocus, "")]),
    ("", &[(Action::PreviousHost, "previous"), (Action::NextHost, "next host")]),
    ("charts: ", &[(Action::Metric, "metric"), (Action::Span, "time span")]),
    ("reconnect ", &[(Action::RetryHost, "this host"), (Action::RetryAll, "all")]),
    ("", &[(Action::Hide, "hide"), (Action::ShowHidden, "show hidden"), (Action::Pin, "pin")]),
    ("panes ", &[(Action::DensityAuto, "auto"), (Action::DensityCompact, "small"), (Action::DensityFull, "full")]),
    ("", &[(Action::Unfold, "unfold"), (Action::Fold, "fold")]),
    ("sort ", &[(Action::SortRight, "next"), (Action::SortLeft, "back"), (Action::SortReverse, "reverse")]),
    ("", &[(Action::Tag, "tag"), (Action::UntagAll, "untag all")]),
    (
        "",
        &[
            (Action::Interrupt, "INT"),
            (Action::Terminate, "TERM"),
            (Action::Kill, "KILL"),
            (Action::SignalMenu, "choose"),
        ],
    ),
    (
        "only ",
        &[(Action::Mine, "mine"), (Action::UserPicker, "user"), (Action::Problems, "bad"), (Action::IdleOnly, "idle")],
    ),
    ("", &[(Action::Overview, "hosts"), (Action::Wall, "wall"), (Action::Processes, "processes")]),
    ("", &[(Action::Users, "users"), (Action::Findings, "findings")]),
    ("", &[(Action::Freeze, "freeze"), (Action::Mouse, "mouse on or off")]),
    ("", &[(Action::Repaint, "redraw"), (Action::Suspend, "suspend")]),
    ("delete a character", &[(Action::EraseCharacter, ""), (Action::EraseNext, "")]),
    ("delete ", &[(Action::EraseWord, "a word"), (Action::EraseLine, "all")]),
    ("sample ", &[(Action::Slower, "less"), (Action::Faster, "more"), (Action::Refresh, "now")]),
];

/// Short texts for the help of a view, where the description is too long for half of 80 columns.
const SHORT_TEXTS: [(Action, &str); 11] = [
    (Action::Why, "why it hangs"),
    (Action::OpenPrompts, "answer prompts"),
    (Action::Copy, "copy ssh command, pid ..."),
    (Action::Filter, "filter; F1 explains it"),
    (Action::Group, "group by job, user, host"),
    (Action::SortMenu, "sort by a column"),
    (Action::Follow, "follow process or line"),
    (Action::Palette, "find host, user, command"),
    (Action::Snooze, "snooze for an hour"),
    (Action::SnoozeUntilItChanges, "snooze until it changes"),
    (Action::History, "history of this run"),
];

/// Descriptions up to this length need no shorter text.
const SHORT_TEXT: usize = 25;

/// Returns the keys of a shared row: the first key of each action. The arrows and the letters beside them are short.
fn shared_keys(bindings: &[&'static Binding], keymap: &Keymap) -> String {
    const ARROWS: [&str; 4] = ["Left", "Down", "Up", "Right"];
    let labels: Vec<&str> = bindings.iter().map(|binding| keymap.keys_label(binding)).collect();
    if labels.len() > 1 && labels.iter().all(|label| ARROWS.contains(&label.split(' ').next().unwrap_or_default())) {
        let letters: String = labels.iter().flat_map(|label| label.split(' ').skip(1)).collect();
        return format!("arrows {letters}").trim_end().to_owned();
    }
    let first = |label: &&str| label.split(' ').next().unwrap_or_default().to_owned();
    labels.iter().map(first).collect::<Vec<_>>().join(" ")
}

/// Returns the keys of a mode, those with related meanings in one line.
fn mode_lines(mode: Mode, keymap: &Keymap, is_readonly: bool) -> Vec<HelpLine> {
    let is_available = |line: &&Binding| line.modes.contains(&mode) && !(is_readonly && changes_hosts(line.action));
    let mut bindings: Vec<&'static Binding> = BINDINGS.iter().filter(is_available).collect();
    // Beside the syntax of the filter there is room for the keys of the line only.
    bindings.retain(|line| mode != Mode::FilterLine || !matches!(line.action, Action::Repaint | Action::Suspend));
    let mut lines = Vec::new();
    let mut done: Vec<Action> = Vec::new();
    for binding in &bindings {
        if done.contains(&binding.action) {
            continue;
        }
        let of_action = |action: Action| bindings.iter().copied().filter(move |line| line.action == action);
        let shared = SHARED_ROWS.iter().find(|(_, row)| row.iter().any(|(action, _)| *action == binding.action));
        if let Some((beginning, row)) = shared {
            let present: Vec<_> =
                row.iter().filter_map(|(action, word)| Some((of_action(*action).next()?, *word))).collect();
            let words: Vec<&str> = present.iter().map(|(_, word)| *word).filter(|word| !word.is_empty()).collect();
            let keys: Vec<&'static Binding> = present.iter().map(|(line, _)| *line).collect();
            let text = format!("{beginning}{}", words.join(", "));
            lines.push(HelpLine::Keys(shared_keys(&keys, keymap), Cow::Owned(text)));
            done.extend(present.iter().map(|(line, _)| line.action));
            continue;
        }
        let labels: Vec<&str> = of_action(binding.action).map(|line| keymap.keys_label(line)).collect();
        let short = SHORT_TEXTS.iter().find(|(action, _)| *action == binding.action).map(|(_, text)| *text);
        let text = match (binding.action, binding.hint) {
            (Action::Enter, Some(hint)) => format!("open: {hint}").into(),
            _ => Cow::Borrowed(short.filter(|_| binding.description.len() > SHORT_TEXT).unwrap_or(binding.description)),
        };
        lines.push(HelpLine::Keys(labels.join(" "), text));
        done.push(binding.action);
    }
    lines
}

/// The signs on the screen.
const SIGNS: [(Sign, &str); 12] = [
    (Sign::State(GpuState::InUse), "busy"),
    (Sign::LowPower, "busy at idle power: suspect"),
    (Sign::State(GpuState::Free), "free"),
    (Sign::State(GpuState::Unused), "unused, not free: see its view"),
    (Sign::State(GpuState::Idle), "idle: memory held, no work"),
    (Sign::State(GpuState::Waiting), "waiting: model server"),
    (Sign::State(GpuState::Hung), "may be stuck"),
    (Sign::State(GpuState::Fault), "fault: error of GPU or driver"),
    (Sign::State(GpuState::Unknown), "stale or unknown"),
    (Sign::Character("x"), "host is down"),
    (Sign::Character("k p"), "a prompt waits: press P"),
    (Sign::Character("*"), "tagged, or pinned to the top"),
];

/// Returns the help: the keys of the view and the signs, or in the filter line its syntax; or the keys of all views.
/// With `is_readonly`, actions that change hosts are left out.
pub fn help_blocks(dialog: &HelpDialog, keymap: &Keymap, is_readonly: bool) -> Vec<HelpBlock> {
    let syntax = || {
        let lines = FILTER_SYNTAX.iter().map(|(example, meaning)| HelpLine::Example(example, meaning)).collect();
        HelpBlock { title: "Filter syntax", lines }
    };
    if !dialog.is_all {
        let keys = HelpBlock { title: "", lines: mode_lines(dialog.mode, keymap, is_readonly) };
        let signs = SIGNS.iter().map(|(sign, meaning)| HelpLine::Sign(*sign, meaning)).collect();
        let second = match dialog.mode {
            Mode::FilterLine => syntax(),
            _ => HelpBlock { title: "Signs", lines: signs },
        };
        return vec![keys, second];
    }
    let is_available = |binding: &&Binding| !(is_readonly && changes_hosts(binding.action));
    let sections = Section::ALL.into_iter().filter(|section| !(is_readonly && *section == Section::Signals));
    let keys = |line: &'static Binding| HelpLine::Keys(keymap.keys_label(line).to_owned(), line.description.into());
    let mut blocks: Vec<HelpBlock> = sections
        .map(|section| HelpBlock {
            title: section.title(),
            lines: section.bindings().filter(is_available).map(keys).collect(),
        })
        .collect();
    blocks.push(syntax());
    blocks
}

/// One row of the help on the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelpRow {
    /// An empty row between two blocks.
    Empty,
    /// The title of a block.
    Title(&'static str),
    /// Lines side by side.
    Lines(Vec<HelpLine>),
}

/// Arranges blocks in this many columns, each block from top to bottom and left to right.
pub fn help_rows(blocks: Vec<HelpBlock>, columns: usize) -> Vec<HelpRow> {
    let mut rows = Vec::new();
    for block in blocks {
        if !rows.is_empty() {
            rows.push(HelpRow::Empty);
        }
        if !block.title.is_empty() {
            rows.push(HelpRow::Title(block.title));
        }
        // Examples of the filter syntax are too long to stand side by side.
        let columns = if matches!(block.lines.first(), Some(HelpLine::Example(..))) { 1 } else { columns };
        let height = block.lines.len().div_ceil(columns.max(1));
        let line = |row: usize| block.lines.iter().skip(row).step_by(height.max(1)).cloned().collect();
        rows.extend((0..height).map(|row| HelpRow::Lines(line(row))));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::keymap::{ALL, is_configurable};
    use std::fmt::Write as _;

    #[test]
    fn every_binding_is_in_one_section_and_no_section_is_empty() {
        let shown: usize = Section::ALL.iter().map(|section| section.bindings().count()).sum();
        assert_eq!(shown, BINDINGS.len());
        assert!(Section::ALL.iter().all(|section| section.bindings().count() >= 2));
    }

    fn blocks(mode: Mode, is_all: bool, is_readonly: bool) -> Vec<HelpBlock> {
        help_blocks(&HelpDialog { mode, is_all, top: 0 }, &Keymap::default(), is_readonly)
    }

    #[test]
    fn the_readonly_help_names_no_action_that_changes_hosts() {
        let names = |is_readonly| {
            let lines = blocks(Mode::List, true, is_readonly).into_iter().flat_map(|block| block.lines);
            lines
                .filter(|line| matches!(line, HelpLine::Keys(_, text) if text.contains("after a confirmation")))
                .count()
        };
        assert_eq!(names(true), 0);
        assert_eq!(names(false), 3);
        assert!(blocks(Mode::List, true, true).iter().all(|block| block.title != "Signals"));
        let view = |is_readonly| format!("{:?}", blocks(Mode::List, false, is_readonly));
        assert!(view(false).contains("TERM") && !view(true).contains("TERM"));
    }

    #[test]
    fn the_help_of_a_view_names_each_of_its_keys_on_one_screen() {
        for &mode in ALL.iter().filter(|mode| !mode.covers_view()) {
            let blocks = blocks(mode, false, false);
            let shown: Vec<(&str, &str)> = blocks[0]
                .lines
                .iter()
                .map(|line| match line {
                    HelpLine::Keys(keys, text) => (keys.as_str(), &**text),
                    other => panic!("{other:?} among the keys"),
                })
                .collect();
            for binding in BINDINGS.iter().filter(|binding| binding.modes.contains(&mode)) {
                let first = binding.label.split(' ').next().expect("a key");
                let is_shown = shown.iter().any(|(keys, _)| {
                    keys.split(' ').any(|key| key == first) || (keys.starts_with("arrows") && binding.label.len() > 2)
                });
                assert!(is_shown, "{first} in {mode:?}: {shown:?}");
            }
            // Half of a terminal of 80 columns, less frame and gaps.
            let long: Vec<_> = shown.iter().filter(|(keys, text)| keys.len().max(10) + text.len() > 36).collect();
            assert!(long.is_empty(), "{mode:?}: {long:?}");
            // A terminal of 24 rows, less header, hint bar and frame. The signs may follow below.
            let rows = help_rows(vec![blocks[0].clone()], 2).len();
            let with_signs = help_rows(blocks, 2).len();
            assert!(rows <= 16 && (with_signs <= 20 || mode != Mode::Grid), "{mode:?}: {rows}, {with_signs}");
        }
    }

    #[test]
    fn the_filter_line_has_its_own_help() {
        let blocks = blocks(Mode::FilterLine, false, false);
        assert_eq!(blocks[1].title, "Filter syntax");
        assert!(blocks[1].lines.iter().any(|line| matches!(line, HelpLine::Example("free>=4", _))));
        assert!(help_rows(blocks, 2).len() <= 20, "it is not cut at 80x24");
    }

    #[test]
    fn rows_hold_the_lines_of_a_block_in_columns() {
        let line = |key: &str| HelpLine::Keys(key.to_owned(), Cow::Borrowed("does it"));
        let block = |title, keys: &[&str]| HelpBlock { title, lines: keys.iter().copied().map(line).collect() };
        let rows = help_rows(vec![block("", &["a", "b", "c"]), block("More", &["d"])], 2);
        let expected = [
            HelpRow::Lines(vec![line("a"), line("c")]),
            HelpRow::Lines(vec![line("b")]),
            HelpRow::Empty,
            HelpRow::Title("More"),
            HelpRow::Lines(vec![line("d")]),
        ];
        assert_eq!(rows, expected);
    }

    const DOCUMENT: &str = include_str!("../../docs/keys.md");

    const BEFORE: &str = "\
# Keys

All keys of the interactive program. `?` shows them in the program, and `:` finds a command by its name. To change keys, set
the name of the action in the section `[keys]` of [settings.toml](../settings.example.toml); keys without a name are fixed.
`C-x` is Ctrl-x, `S-Tab` is Shift-Tab. Ctrl-C always quits and never sends a signal to a process on a host.
";

    /// Returns the content of docs/keys.md.
    fn markdown() -> String {
        let mut out = BEFORE.to_owned();
        for section in Section::ALL {
            // Writing into a string cannot fail.
            let _ =
                write!(out, "\n## {}\n\n| keys | description | where | action |\n|---|---|---|---|\n", section.title());
            for binding in section.bindings() {
                let keys: Vec<String> = binding.label.split(' ').map(|key| format!("`{key}`")).collect();
                let name = binding.action.name().filter(|_| is_configurable(binding));
                let name = name.map(|name| format!("`{name}`")).unwrap_or_default();
                let mut locations: Vec<&str> = Vec::new();
                for mode in binding.modes {
                    let location = mode.location();
                    if !locations.contains(&location) {
                        locations.push(location);
                    }
                }
                let locations = if binding.modes.contains(&Mode::Log) && binding.modes.contains(&Mode::Process) {
                    "everywhere".to_owned()
                } else {
                    locations.join(", ")
                };
                let _ = writeln!(out, "| {} | {} | {locations} | {name} |", keys.join(" "), binding.description);
            }
        }
        out
    }

    #[test]
    fn docs_keys_md_matches_the_table() {
        let wanted = markdown();
        if std::env::var_os("GPUFLEET_WRITE_DOCS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/keys.md");
            std::fs::write(path, &wanted).expect("docs/keys.md is written");
            return;
        }
        assert!(
            DOCUMENT == wanted,
            "docs/keys.md is out of date; run this test with GPUFLEET_WRITE_DOCS=1 to write it"
        );
    }

    #[test]
    fn every_key_in_the_readme_exists() {
        const README: &str = include_str!("../../README.md");
        let (_, rest) = README.split_once("\n## Keys\n").expect("a section");
        let (section, _) = rest.split_once("\n## ").expect("another one");
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        let shown: Vec<&str> = BINDINGS.iter().flat_map(|binding| binding.label.split(' ')).collect();
        let mut seen = 0;
        for row in rows {
            let keys = row.trim_start_matches('|').split_once('|').expect("a row").0;
            for key in keys.split('`').skip(1).step_by(2) {
                assert!(shown.contains(&key), "`{key}` of the README does not exist");
                seen += 1;
            }
        }
        assert!(seen > 30);
    }
}
