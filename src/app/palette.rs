//! The command palette: every action of the view by its words, found with a few letters.

use super::action::{Action, Mode};
use super::bindings::{BINDINGS, Binding};
use tui_input::{Input, InputRequest};

/// The longest text that is looked for, in characters.
const MAX_CHARACTERS: usize = 60;

/// The palette, while it is open.
#[derive(Debug)]
pub struct Palette {
    /// Whose actions are offered.
    pub mode: Mode,
    input: Input,
    index: usize,
}

impl Palette {
    /// The palette over a view.
    pub fn new(mode: Mode) -> Self {
        Self { mode, input: Input::default(), index: 0 }
    }

    /// What has been typed.
    pub fn text(&self) -> &str {
        self.input.value()
    }

    /// The place of the selected entry.
    pub fn index(&self) -> usize {
        self.index
    }

    /// What fits what has been typed, the best first; with nothing typed everything, as the table stands.
    pub fn entries(&self, is_offered: impl Fn(&Binding) -> bool) -> Vec<&'static Binding> {
        let words: Vec<String> = self.text().to_lowercase().split_whitespace().map(str::to_owned).collect();
        let all = BINDINGS.iter().filter(|line| line.modes.contains(&self.mode) && is_entry(line) && is_offered(line));
        let mut found: Vec<(u32, &'static Binding)> =
            all.filter_map(|line| Some((score(line, &words)?, line))).collect();
        // Where the words stand somewhere as they were typed, scattered letters elsewhere are chance.
        let whole = words.len() as u32 * WITHIN_A_WORD;
        if found.iter().any(|(score, _)| *score <= whole) {
            found.retain(|(score, _)| *score <= whole);
        }
        // Of equals the first of the table wins.
        found.sort_by_key(|(score, _)| *score);
        found.into_iter().map(|(_, line)| line).collect()
    }

    /// Adds what was typed or pasted.
    pub fn type_text(&mut self, text: &str) {
        for character in text.chars().filter(|character| !character.is_control()) {
            if self.text().chars().count() < MAX_CHARACTERS {
                self.input.handle(InputRequest::InsertChar(character));
            }
        }
        self.index = 0;
    }

    /// Performs a key of the line or of the list below it.
    pub fn act(&mut self, action: Action, count: usize) {
        let request = match action {
            Action::Up | Action::Down => {
                self.index = super::screen::move_index(self.index, action, count, 1);
                return;
            }
            Action::EraseCharacter => InputRequest::DeletePrevChar,
            Action::EraseWord => InputRequest::DeletePrevWord,
            Action::EraseLine => InputRequest::DeleteLine,
            _ => return,
        };
        self.input.handle(request);
        self.index = 0;
    }
}

/// Moving about is nothing to be looked for.
fn is_entry(line: &Binding) -> bool {
    !matches!(
        line.action,
        Action::Up
            | Action::Down
            | Action::Left
            | Action::Right
            | Action::PageUp
            | Action::PageDown
            | Action::HalfPageUp
            | Action::HalfPageDown
            | Action::First
            | Action::Last
            | Action::Palette
    )
}

/// How badly a line fits, the least first; `None` where a word is not in it at all.
fn score(line: &Binding, words: &[String]) -> Option<u32> {
    let name = line.action.name().unwrap_or_default();
    let text = line.description.to_lowercase();
    words.iter().map(|word| [name, &text].into_iter().filter_map(|text| distance(text, word)).min()).sum()
}

/// How badly a text fits that has the letters together, but within a word.
const WITHIN_A_WORD: u32 = 2;

/// 0 at the beginning of the text, 1 at the beginning of a word, 2 within one; else the letters in their order, with a
/// point for each that lies between.
fn distance(text: &str, word: &str) -> Option<u32> {
    if text.starts_with(word) {
        return Some(0);
    }
    if let Some(at) = text.find(word) {
        let is_start = text[..at].ends_with(|before: char| !before.is_alphanumeric());
        return Some(if is_start { 1 } else { WITHIN_A_WORD });
    }
    let mut rest = text.char_indices();
    let mut previous: Option<usize> = None;
    let mut between = 0;
    for wanted in word.chars() {
        let (at, _) = rest.find(|(_, character)| *character == wanted)?;
        between += previous.map_or(0, |previous| at - previous - 1);
        previous = Some(at);
    }
    Some(WITHIN_A_WORD + 1 + between as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(mode: Mode, text: &str) -> Vec<Action> {
        let mut palette = Palette::new(mode);
        palette.type_text(text);
        palette.entries(|_| true).iter().map(|line| line.action).collect()
    }

    #[test]
    fn a_few_letters_find_an_action() {
        assert_eq!(found(Mode::Grid, "shell").first(), Some(&Action::Shell));
        assert_eq!(found(Mode::Grid, "wall").first(), Some(&Action::Wall));
        assert_eq!(found(Mode::List, "sort colu").first(), Some(&Action::SortRight));
        assert_eq!(found(Mode::Grid, "hidhst").first(), Some(&Action::Hide));
        assert_eq!(found(Mode::Grid, "QUIT").first(), Some(&Action::Quit));
        assert_eq!(found(Mode::Grid, "zzzz"), []);
        let sorting = [Action::SortRight, Action::SortLeft, Action::SortReverse, Action::SortMenu];
        assert!(found(Mode::List, "sort").iter().all(|action| sorting.contains(action)), "no letters by chance");
        assert!(!found(Mode::Grid, "").contains(&Action::Terminate), "of this view alone");
        assert!(found(Mode::List, "").contains(&Action::Terminate));
    }

    #[test]
    fn the_line_is_bounded_and_the_selection_stays_within() {
        let mut palette = Palette::new(Mode::Grid);
        palette.type_text(&"x\u{1b}".repeat(100));
        assert_eq!(palette.text().len(), MAX_CHARACTERS);
        palette.act(Action::EraseLine, 0);
        let count = palette.entries(|_| true).len();
        for _ in 0..2 * count {
            palette.act(Action::Down, count);
        }
        assert_eq!(palette.index(), count - 1);
        palette.type_text("w");
        assert_eq!(palette.index(), 0);
    }
}
