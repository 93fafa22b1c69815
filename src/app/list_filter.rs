//! What the combined list is narrowed to: the filter, one's own, one user, what is idle, what is in trouble.

use super::{Action, Findings, HostSummary};
use crate::fleet::{Filter, FilterError, FilterInput, GpuState, Host, Moment, Row, RowFacts};
use crate::wire::SafeText;
use tui_input::{Input, InputRequest};

/// What the list is narrowed to.
#[derive(Debug, Default)]
pub struct ListFilter {
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

impl ListFilter {
    /// The text of the filter in force, empty without one.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The line in which a filter is typed, while it is open.
    pub fn line(&self) -> Option<&FilterLine> {
        self.line.as_ref()
    }

    /// Whether anything is left out.
    pub fn is_active(&self) -> bool {
        !self.filter.is_empty() || self.mine || self.idle || self.problems || self.user.is_some()
    }

    /// Shows everything again. Returns whether that changes anything.
    pub fn clear(&mut self) -> bool {
        let was_active = self.is_active();
        *self = Self::default();
        was_active
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
        self.apply_line();
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
        self.apply_line();
    }

    /// What stands in the line is put in force where it is understood.
    fn apply_line(&mut self) {
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
    pub(super) fn matches_host(&self, host: &FilterInput<'_>) -> bool {
        self.filter.is_empty() || self.filter.matches(host) != Some(false)
    }

    /// Whether a row is shown. `rank` is how much it needs a person.
    pub(super) fn matches(&self, row: &Row, subject: &RowSubject<'_>) -> bool {
        let is_idle = || matches!(row.state, Some((GpuState::Idle, _)));
        let is_problem = || subject.findings.rank_of_row(row).or_else(|| row.trouble_rank()).is_some();
        (!self.mine || row.is_mine)
            && (!self.idle || is_idle())
            && (!self.problems || is_problem())
            && self.user.as_ref().is_none_or(|user| row.who == *user)
            && (self.filter.is_empty() || self.filter.matches(&subject.of(row)) == Some(true))
    }
}

/// What is known beside a row.
pub(super) struct RowSubject<'a> {
    pub(super) host: &'a Host,
    pub(super) summary: &'a HostSummary,
    pub(super) findings: &'a Findings,
    pub(super) now: Moment,
}

impl RowSubject<'_> {
    fn of<'r>(&'r self, row: &'r Row) -> FilterInput<'r> {
        let on_row = |index: u32| row.gpu_indexes.contains(&index);
        let watts = self.summary.gpus.iter().filter(|gpu| on_row(gpu.index)).filter_map(super::GpuSummary::power_watts);
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
        FilterInput { host: self.host, free_gpus: free_gpus(self.summary), row: Some(facts) }
    }
}

pub(super) fn free_gpus(summary: &HostSummary) -> Option<u32> {
    summary.is_fresh.then(|| summary.totals.in_state(GpuState::Free))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_is_not_understood_keeps_the_last_good_one() {
        let mut list_filter = ListFilter::default();
        list_filter.open_line();
        list_filter.type_text("mem");
        list_filter.type_text(">");
        assert_eq!(list_filter.text(), "mem");
        assert_eq!(list_filter.line().and_then(|line| line.error.as_ref()).map(|error| error.at.clone()), Some(0..4));
        list_filter.act(Action::Submit);
        assert!(list_filter.line().is_some(), "it stays open");
        list_filter.type_text("10G");
        assert_eq!(list_filter.text(), "mem>10G");
        list_filter.act(Action::Submit);
        assert!(list_filter.line().is_none() && list_filter.is_active());
        list_filter.open_line();
        assert_eq!(list_filter.line().map(|line| (line.text(), line.cursor())), Some(("mem>10G", 7)));
        list_filter.act(Action::Back);
        assert!(!list_filter.is_active());
    }

    #[test]
    fn the_line_is_edited_in_place_and_bounded() {
        let mut list_filter = ListFilter::default();
        list_filter.open_line();
        list_filter.type_text("ac\n\u{1b}");
        list_filter.act(Action::Left);
        list_filter.type_text("b");
        assert_eq!(list_filter.text(), "abc");
        list_filter.act(Action::First);
        list_filter.act(Action::EraseNext);
        list_filter.act(Action::Last);
        list_filter.act(Action::EraseCharacter);
        assert_eq!(list_filter.text(), "b");
        list_filter.type_text(" two words");
        list_filter.act(Action::EraseWord);
        assert_eq!(list_filter.text(), "b two");
        list_filter.act(Action::EraseLine);
        assert_eq!(list_filter.text(), "");
        list_filter.type_text(&"x".repeat(2 * MAX_CHARACTERS));
        assert_eq!(list_filter.text().len(), MAX_CHARACTERS);
    }

    #[test]
    fn what_was_kept_is_restored_unless_it_is_broken() {
        let mut list_filter = ListFilter::default();
        list_filter.restore("mem>");
        assert!(!list_filter.is_active());
        list_filter.restore("mem>1G");
        assert_eq!(list_filter.text(), "mem>1G");
        assert!(list_filter.clear() && !list_filter.clear());
    }
}
