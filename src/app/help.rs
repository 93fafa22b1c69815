//! The help, generated from the table of keys. A test compares docs/keys.md with it.

use super::action::{Action, Mode, changes_hosts};
use super::keymap::{
    BINDINGS, Binding, FILTER_LINE, PALETTE, PROMPT_DIALOGS, SCROLLABLE, SIGNAL_MENU, SORT_MENU, SORTABLE, USER_PICKER,
};
use crate::fleet::FILTER_SYNTAX;
use Mode::{Findings, Grid, Help, History, Host, HostList, SignalDialog, Users, Wall};

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
    /// The command palette.
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
            Self::Palette => "Command palette (:)",
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
            _ if only(&[Grid, Host, HostList, Wall]) => Self::Hosts,
            _ => Self::Program,
        }
    }

    /// Returns the bindings of the section.
    pub fn bindings(self) -> impl Iterator<Item = &'static Binding> {
        BINDINGS.iter().filter(move |binding| Self::of(binding) == self)
    }
}

/// One line of the help.
#[derive(Debug, Clone, Copy)]
pub enum HelpLine {
    /// An empty line between two sections.
    Empty,
    /// The title of a section.
    Title(&'static str),
    /// A binding.
    Keys(&'static Binding),
    /// An example of the filter syntax and its meaning.
    Example(&'static str, &'static str),
}

/// Returns the lines of the help: each section with its bindings, then the filter syntax. With `is_readonly`, actions
/// that change hosts are left out.
pub fn help_lines(is_readonly: bool) -> Vec<HelpLine> {
    let is_available = |binding: &&Binding| !(is_readonly && changes_hosts(binding.action));
    let sections = Section::ALL.into_iter().filter(|section| !(is_readonly && *section == Section::Signals));
    let lines = sections.flat_map(|section| {
        let bindings = section.bindings().filter(is_available).map(HelpLine::Keys);
        [HelpLine::Empty, HelpLine::Title(section.title())].into_iter().chain(bindings)
    });
    let filter = FILTER_SYNTAX.iter().map(|(example, meaning)| HelpLine::Example(example, meaning));
    lines.skip(1).chain([HelpLine::Empty, HelpLine::Title("Filter syntax")]).chain(filter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::keymap::is_configurable;
    use std::fmt::Write as _;

    #[test]
    fn every_binding_is_in_one_section_and_no_section_is_empty() {
        let shown: usize = Section::ALL.iter().map(|section| section.bindings().count()).sum();
        assert_eq!(shown, BINDINGS.len());
        assert!(Section::ALL.iter().all(|section| section.bindings().count() >= 2));
    }

    #[test]
    fn the_readonly_help_names_no_action_that_changes_hosts() {
        let names = |is_readonly| {
            let lines = help_lines(is_readonly).into_iter();
            lines.filter(|line| matches!(line, HelpLine::Keys(binding) if changes_hosts(binding.action))).count()
        };
        assert_eq!(names(true), 0);
        assert!(names(false) > 4);
        assert!(help_lines(true).iter().all(|line| !matches!(line, HelpLine::Title("Signals"))));
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
