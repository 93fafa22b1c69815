//! The conditions that limit the list: filter text, own processes, idle, problems, one user.

use super::action::Action;
use super::findings::Findings;
use super::host_summary::{GpuSummary, HostSummary};
use crate::fleet::{FILTER_SYNTAX, Filter, FilterError, FilterInput, GpuState, Host, Moment, Row, RowFacts};
use crate::wire::SafeText;
use crate::wire::safe_text::is_safe;
use std::ops::Range;
use tui_input::{Input, InputRequest};

/// The conditions that limit the list, and the input line of the filter.
#[derive(Debug, Default)]
pub struct ListFilter {
    /// The last valid filter.
    filter: Filter,
    /// The text of that filter.
    text: String,
    line: Option<FilterLine>,
    /// Show only the user's own processes.
    pub mine: bool,
    /// Show only processes that hold GPUs without work.
    pub idle: bool,
    /// Show only problems.
    pub problems: bool,
    /// Show only the processes of this user.
    pub user: Option<SafeText>,
}

/// The conditions of a [`ListFilter`] in a form that can be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FilterConditions {
    text: String,
    toggles: [bool; 3],
    user: Option<SafeText>,
}

/// The input line of the filter.
#[derive(Debug, Default)]
pub struct FilterLine {
    input: Input,
    /// The error in the text of the line. The last valid filter stays in effect.
    pub error: Option<FilterError>,
    /// The page of the help on the syntax, while it is open above the line.
    pub help_page: Option<usize>,
}

/// The examples of one page of the help on the filter syntax.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterHelpPage {
    /// Indexes into [`FILTER_SYNTAX`].
    pub examples: Range<usize>,
    /// The rows of the page, without a frame.
    pub rows: u16,
}

/// Columns of the longest example, with the gap after it.
fn example_columns() -> usize {
    FILTER_SYNTAX.iter().map(|(example, _)| example.len()).max().unwrap_or(0) + 1
}

/// Returns the column at which meanings are beside their examples in an area of this width, or `None` if they are below.
pub fn filter_meaning_column(width: u16) -> Option<u16> {
    let longest = FILTER_SYNTAX.iter().map(|(_, meaning)| meaning.len()).max().unwrap_or(0);
    (usize::from(width) >= example_columns() + longest).then_some(example_columns() as u16)
}

/// Columns by which a meaning below its example is indented.
pub const FILTER_MEANING_INDENT: u16 = 2;

/// Divides the help on the filter syntax into pages for an area of this size. No text is cut.
pub fn filter_help_pages((width, rows): (u16, u16)) -> Vec<FilterHelpPage> {
    let height = |meaning: &str| match filter_meaning_column(width) {
        Some(_) => 1,
        None => 1 + wrapped_rows(meaning, usize::from(width.saturating_sub(FILTER_MEANING_INDENT))),
    };
    let mut pages: Vec<FilterHelpPage> = Vec::new();
    for (index, (_, meaning)) in FILTER_SYNTAX.iter().enumerate() {
        let height = height(meaning);
        match pages.last_mut().filter(|page| page.rows + height <= rows) {
            Some(page) => {
                page.examples.end = index + 1;
                page.rows += height;
            }
            None => pages.push(FilterHelpPage { examples: index..index + 1, rows: height }),
        }
    }
    pages
}

/// The number of rows of an ASCII text that is wrapped between words.
fn wrapped_rows(text: &str, width: usize) -> u16 {
    let (mut rows, mut used) = (1, 0);
    for word in text.split(' ') {
        if used > 0 && used + 1 + word.len() > width {
            rows += 1;
            used = 0;
        }
        used += word.len() + usize::from(used > 0);
    }
    rows
}

/// The size of the area for the help on the filter syntax on a screen of this size: all between the header and the input
/// line, without a frame.
pub fn filter_help_area((columns, rows): (u16, u16)) -> (u16, u16) {
    (columns.saturating_sub(4), rows.saturating_sub(4).max(1))
}

impl FilterLine {
    /// Returns the text of the line.
    pub fn text(&self) -> &str {
        self.input.value()
    }

    /// Returns the position of the cursor in characters.
    pub fn cursor(&self) -> usize {
        self.input.cursor()
    }
}

/// The longest filter, in characters.
const MAX_CHARACTERS: usize = 500;

impl ListFilter {
    /// Returns the text of the filter, empty if there is no filter.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the input line, while it is open.
    pub fn line(&self) -> Option<&FilterLine> {
        self.line.as_ref()
    }

    /// Returns the conditions in a form that can be compared.
    pub(super) fn conditions(&self) -> FilterConditions {
        let toggles = [self.mine, self.idle, self.problems];
        FilterConditions { text: self.text.clone(), toggles, user: self.user.clone() }
    }

    /// Returns whether any condition is set.
    pub fn is_active(&self) -> bool {
        !self.filter.is_empty() || self.mine || self.idle || self.problems || self.user.is_some()
    }

    /// Removes all conditions.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Sets the filter of the last run. An invalid text is ignored, and so is one that a terminal would interpret, which
    /// cannot be typed.
    pub fn restore(&mut self, text: &str) {
        if text.chars().all(is_safe)
            && let Ok(filter) = Filter::parse(text)
        {
            self.filter = filter;
            text.clone_into(&mut self.text);
        }
    }

    /// Opens the input line with the current filter.
    pub fn open_line(&mut self) {
        self.line = Some(FilterLine { input: Input::new(self.text.clone()), error: None, help_page: None });
    }

    /// Opens the help on the filter syntax above the line, shows its next page, or closes it after the last one.
    pub fn show_help(&mut self, size: (u16, u16)) {
        let pages = filter_help_pages(filter_help_area(size)).len();
        if let Some(line) = &mut self.line {
            line.help_page = match line.help_page {
                None => Some(0),
                Some(page) => Some(page + 1).filter(|next| *next < pages),
            };
        }
    }

    /// Inserts typed or pasted text.
    pub fn type_text(&mut self, text: &str) {
        let Some(line) = &mut self.line else { return };
        for character in text.chars().filter(|character| !character.is_control()) {
            if line.input.value().chars().count() < MAX_CHARACTERS {
                line.input.handle(InputRequest::InsertChar(character));
            }
        }
        self.apply_line();
    }

    /// Performs an action of the input line: move, delete, keep the filter or clear it.
    pub fn act(&mut self, action: Action) {
        let Some(line) = &mut self.line else { return };
        let request = match action {
            Action::Submit => {
                // The line stays open while its text is invalid.
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

    /// Applies the text of the line if it is valid.
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

    /// Returns whether a host is shown: it matches the text of the filter, or one of its rows does.
    pub(super) fn matches_host<'a>(
        &self,
        host: &FilterInput<'a>,
        mut rows: impl Iterator<Item = &'a Row>,
        now: Moment,
    ) -> bool {
        let facts = |row| RowFacts { row, power_watts: None, finding: None, is_stuck: false, now };
        self.filter.is_empty() || self.filter.narrows_to(host, rows.by_ref().map(facts))
    }

    /// Returns whether a row is shown.
    pub(super) fn matches(&self, row: &Row, subject: &RowSubject<'_>) -> bool {
        let is_idle = || matches!(row.state, Some((GpuState::Idle, _)));
        let is_hung = || matches!(row.state, Some((GpuState::Hung, _)));
        let is_problem = || is_hung() || subject.findings.rank_of_row(row).or_else(|| row.trouble_rank()).is_some();
        (!self.mine || row.is_mine)
            && (!self.idle || is_idle())
            && (!self.problems || is_problem())
            && self.user.as_ref().is_none_or(|user| row.who == *user)
            && (self.filter.is_empty() || self.filter.matches(&subject.of(row)) == Some(true))
    }
}

/// The context of a row.
pub(super) struct RowSubject<'a> {
    pub(super) host: &'a Host,
    pub(super) summary: &'a HostSummary,
    pub(super) findings: &'a Findings,
    pub(super) now: Moment,
}

impl RowSubject<'_> {
    fn of<'r>(&'r self, row: &'r Row) -> FilterInput<'r> {
        let on_row = |index: u32| row.gpu_indexes.contains(&index);
        let watts = self.summary.gpus.iter().filter(|gpu| on_row(gpu.index)).filter_map(GpuSummary::power_watts);
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

/// Returns the number of free GPUs, or `None` if the readings are stale.
pub(super) fn free_gpus(summary: &HostSummary) -> Option<u32> {
    summary.is_fresh.then(|| summary.totals.in_state(GpuState::Free))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_filter_keeps_the_last_valid_one() {
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
    fn the_input_line_edits_text_up_to_its_limit() {
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
    fn restore_ignores_an_invalid_filter() {
        let mut list_filter = ListFilter::default();
        for invalid in ["mem>", "\u{1b}[31mann", "a\u{202e}nn"] {
            list_filter.restore(invalid);
            assert!(!list_filter.is_active() && list_filter.text().is_empty(), "{invalid:?}");
        }
        list_filter.restore("mem>1G");
        assert_eq!(list_filter.text(), "mem>1G");
        list_filter.clear();
        assert!(!list_filter.is_active());
    }
}
