//! The help, made of the table of keys.

use super::action::{Action, Mode, changes_hosts};
use super::bindings::{
    BINDINGS, Binding, FILTER_LINE, PALETTE, PROMPT_DIALOGS, SCROLLABLE, SIGNAL_MENU, SORT_MENU, SORTABLE, USER_PICKER,
};
use crate::fleet::FILTER_SYNTAX;
use Mode::{Findings, Grid, Help, History, Host, HostList, SignalDialog, Users, Wall};

/// The parts of the help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// Moving about.
    Navigation,
    /// Hosts and their panes.
    Hosts,
    /// The list of processes.
    Processes,
    /// What the list leaves out.
    Filtering,
    /// What diagnosis says.
    Findings,
    /// Signals.
    Signals,
    /// After `o`.
    SortMenu,
    /// The command palette.
    Palette,
    /// Dialogs.
    Prompts,
    /// Everything else.
    Program,
}

impl Section {
    /// Every section, in the order of the help.
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

    /// Its title.
    pub fn title(self) -> &'static str {
        match self {
            Self::Navigation => "Moving",
            Self::Hosts => "Hosts",
            Self::Processes => "Processes",
            Self::Filtering => "Which processes",
            Self::Findings => "Findings",
            Self::Signals => "Signals",
            Self::SortMenu => "After o: sort by",
            Self::Palette => "After : commands",
            Self::Prompts => "Questions on the way in",
            Self::Program => "Program",
        }
    }

    /// Where a binding stands, told by the modes in which it holds.
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
    Example(&'static str, &'static str),
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
    let filter = FILTER_SYNTAX.iter().map(|(example, meaning)| HelpLine::Example(example, meaning));
    lines.skip(1).chain([HelpLine::Empty, HelpLine::Title("How a filter is written")]).chain(filter).collect()
}
