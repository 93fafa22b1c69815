//! What the combined list is narrowed to: the filter, one's own, one user, what is idle, what is in trouble.

use super::{Action, Findings, HostFigures};
use crate::fleet::{Filter, FilterError, GpuState, Host, Moment, Row, RowFacts, Subject};
use crate::wire::SafeText;
use tui_input::{Input, InputRequest};

/// What the list is narrowed to.
#[derive(Debug, Default)]
pub struct Narrowing {
    /// The last filter that was understood.
    filter: Filter,
    /// Its text.
    text: String,
    line: Option<FilterLine>,
    /// One's own alone.
    pub mine: bool,
    /// What holds GPUs without work alone.
    pub idle: bool,
    /// What needs a person alone.
    pub problems: bool,
    /// One user's alone.
    pub user: Option<SafeText>,
}

/// The line in which a filter is typed.
#[derive(Debug, Default)]
pub struct FilterLine {
    input: Input,
    /// What is wrong with what stands in it; the list shows the last good one.
    pub error: Option<FilterError>,
}

impl FilterLine {
    /// What has been typed.
    pub fn text(&self) -> &str {
        self.input.value()
    }

    /// Where the next character goes, in characters from the beginning.
    pub fn cursor(&self) -> usize {
        self.input.cursor()
    }
}

/// The longest filter, in characters.
const MAX_CHARACTERS: usize = 500;

impl Narrowing {
    /// The text of the filter in force, empty without one.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The line in which a filter is typed, while it is open.
    pub fn line(&self) -> Option<&FilterLine> {
        self.line.as_ref()
    }

    /// Whether anything is left out.
    pub fn is_narrow(&self) -> bool {
        !self.filter.is_empty() || self.mine || self.idle || self.problems || self.user.is_some()
    }

    /// Shows everything again. Returns whether that changes anything.
    pub fn clear(&mut self) -> bool {
        let was_narrow = self.is_narrow();
        *self = Self::default();
        was_narrow
    }

    /// Puts a text in force that was kept from before; one that is not understood is left out.
    pub fn restore(&mut self, text: &str) {
        if let Ok(filter) = Filter::parse(text) {
            self.filter = filter;
            text.clone_into(&mut self.text);
        }
    }

    /// Opens the line with what is in force.
    pub fn open_line(&mut self) {
        self.line = Some(FilterLine { input: Input::new(self.text.clone()), error: None });
    }

    /// Adds what was typed or pasted.
    pub fn type_text(&mut self, text: &str) {
        let Some(line) = &mut self.line else { return };
        for character in text.chars().filter(|character| !character.is_control()) {
            if line.input.value().chars().count() < MAX_CHARACTERS {
                line.input.handle(InputRequest::InsertChar(character));
            }
        }
        self.take_line();
    }

    /// Performs a key of the line: moves, erases, keeps (where it is understood) or clears.
    pub fn act(&mut self, action: Action) {
        let Some(line) = &mut self.line else { return };
        let request = match action {
            Action::Submit => {
                // What is not understood stays open, with what is wrong with it.
                if line.error.is_none() {
                    self.line = None;
                }
                return;
            }
            Action::Back => {
                self.line = None;
                self.filter = Filter::default();
                self.text.clear();
                return;
            }
            Action::EraseCharacter => InputRequest::DeletePrevChar,
            Action::EraseNext => InputRequest::DeleteNextChar,
            Action::EraseWord => InputRequest::DeletePrevWord,
            Action::EraseLine => InputRequest::DeleteLine,
            Action::Left => InputRequest::GoToPrevChar,
            Action::Right => InputRequest::GoToNextChar,
            Action::First => InputRequest::GoToStart,
            Action::Last => InputRequest::GoToEnd,
            _ => return,
        };
        line.input.handle(request);
        self.take_line();
    }

    /// What stands in the line is put in force where it is understood.
    fn take_line(&mut self) {
        let Some(line) = &mut self.line else { return };
        match Filter::parse(line.input.value()) {
            Ok(filter) => {
                self.filter = filter;
                line.input.value().trim().clone_into(&mut self.text);
                line.error = None;
            }
            Err(error) => line.error = Some(error),
        }
    }

    /// Whether a host is shown: unless the filter rules it out, whatever runs on it.
    pub(super) fn keeps_host(&self, host: &Subject<'_>) -> bool {
        self.filter.is_empty() || self.filter.holds(host) != Some(false)
    }

    /// Whether a row is shown. `rank` is how much it needs a person.
    pub(super) fn keeps(&self, row: &Row, about: &About<'_>) -> bool {
        let is_idle = || matches!(row.state, Some((GpuState::Idle, _)));
        let is_problem = || about.findings.rank_of_row(row).or_else(|| row.trouble_rank()).is_some();
        (!self.mine || row.is_mine)
            && (!self.idle || is_idle())
            && (!self.problems || is_problem())
            && self.user.as_ref().is_none_or(|user| row.who == *user)
            && (self.filter.is_empty() || self.filter.holds(&about.of(row)) == Some(true))
    }
}

/// What is known beside a row.
pub(super) struct About<'a> {
    pub(super) host: &'a Host,
    pub(super) figures: &'a HostFigures,
    pub(super) findings: &'a Findings,
    pub(super) now: Moment,
}

impl About<'_> {
    fn of<'r>(&'r self, row: &'r Row) -> Subject<'r> {
        let on_row = |index: u32| row.gpu_indexes.contains(&index);
        let watts = self.figures.gpus.iter().filter(|gpu| on_row(gpu.index)).filter_map(super::GpuFigures::power_watts);
        let facts = RowFacts {
            row,
            power_watts: watts.fold(None, |range, watts| {
                let (least, most) = range.unwrap_or((watts, watts));
                Some((watts.min(least), watts.max(most)))
            }),
            finding: self.findings.state_of_row(row).map(|(word, _)| word),
            is_stuck: matches!(row.state, Some((GpuState::Hung, _))) || self.findings.may_hang(row),
            now: self.now,
        };
        Subject { host: self.host, free_gpus: free_gpus(self.figures), row: Some(facts) }
    }
}

pub(super) fn free_gpus(figures: &HostFigures) -> Option<u32> {
    figures.is_fresh.then(|| figures.totals.in_state(GpuState::Free))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_is_not_understood_keeps_the_last_good_one() {
        let mut narrowing = Narrowing::default();
        narrowing.open_line();
        narrowing.type_text("mem");
        narrowing.type_text(">");
        assert_eq!(narrowing.text(), "mem");
        assert_eq!(narrowing.line().and_then(|line| line.error.as_ref()).map(|error| error.at.clone()), Some(0..4));
        narrowing.act(Action::Submit);
        assert!(narrowing.line().is_some(), "it stays open");
        narrowing.type_text("10G");
        assert_eq!(narrowing.text(), "mem>10G");
        narrowing.act(Action::Submit);
        assert!(narrowing.line().is_none() && narrowing.is_narrow());
        narrowing.open_line();
        assert_eq!(narrowing.line().map(|line| (line.text(), line.cursor())), Some(("mem>10G", 7)));
        narrowing.act(Action::Back);
        assert!(!narrowing.is_narrow());
    }

    #[test]
    fn the_line_is_edited_in_place_and_bounded() {
        let mut narrowing = Narrowing::default();
        narrowing.open_line();
        narrowing.type_text("ac\n\u{1b}");
        narrowing.act(Action::Left);
        narrowing.type_text("b");
        assert_eq!(narrowing.text(), "abc");
        narrowing.act(Action::First);
        narrowing.act(Action::EraseNext);
        narrowing.act(Action::Last);
        narrowing.act(Action::EraseCharacter);
        assert_eq!(narrowing.text(), "b");
        narrowing.type_text(" two words");
        narrowing.act(Action::EraseWord);
        assert_eq!(narrowing.text(), "b two");
        narrowing.act(Action::EraseLine);
        assert_eq!(narrowing.text(), "");
        narrowing.type_text(&"x".repeat(2 * MAX_CHARACTERS));
        assert_eq!(narrowing.text().len(), MAX_CHARACTERS);
    }

    #[test]
    fn what_was_kept_is_restored_unless_it_is_broken() {
        let mut narrowing = Narrowing::default();
        narrowing.restore("mem>");
        assert!(!narrowing.is_narrow());
        narrowing.restore("mem>1G");
        assert_eq!(narrowing.text(), "mem>1G");
        assert!(narrowing.clear() && !narrowing.clear());
    }
}
