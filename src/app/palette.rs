//! The palette, which finds a host, a user, a view, a process or a command by a few letters.
//!
//! Its entries are collected when it opens: a name does not change while someone types. Each key ranks them once.

use super::action::{Action, Mode, changes_hosts};
use super::keymap::{BINDINGS, Binding, LISTS};
use super::screen::move_index;
use crate::fleet::{HostId, RowKey};
use crate::wire::SafeText;
use tui_input::{Input, InputRequest};

/// The longest text, in characters.
const MAX_CHARACTERS: usize = 60;
/// The most processes among the entries.
pub(super) const MAX_PROCESSES: usize = 5_000;
/// The most entries that match. Nobody scrolls further.
const MAX_MATCHES: usize = 300;

/// An entry of the palette.
#[derive(Debug, Clone)]
pub struct PaletteEntry {
    /// Where Enter leads.
    pub target: PaletteTarget,
    /// The name.
    pub title: SafeText,
    /// More about it: the key of a command, the state of a host.
    pub detail: SafeText,
    /// The name in lower case.
    name: String,
    /// Other words that find it, in lower case.
    words: String,
}

/// The target of an entry.
#[derive(Debug, Clone)]
pub enum PaletteTarget {
    /// A host, for its view.
    Host(HostId),
    /// A user, for the list of the user's processes.
    User(SafeText),
    /// An action. Those that show a view are listed as views.
    Command(&'static Binding),
    /// A process or a job, for its view.
    Process(RowKey),
}

impl PaletteTarget {
    /// Returns the kind of the entry as a word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Host(_) => "host",
            Self::User(_) => "user",
            Self::Command(line) if is_view(line.action) => "view",
            Self::Command(_) => "command",
            Self::Process(_) => "process",
        }
    }

    /// Returns the order among entries that match equally well.
    fn rank(&self) -> u8 {
        match self {
            Self::Host(_) => 0,
            Self::User(_) => 1,
            Self::Command(_) => 2,
            Self::Process(_) => 3,
        }
    }
}

impl PaletteEntry {
    /// Creates an entry. `words` are other texts that find it.
    pub(super) fn new(target: PaletteTarget, title: &str, detail: &str, words: &str) -> Self {
        let (name, words) = (title.to_lowercase(), words.to_lowercase());
        Self { target, title: SafeText::new(title), detail: SafeText::new(detail), name, words }
    }
}

/// The open palette.
#[derive(Debug)]
pub struct Palette {
    entries: Vec<PaletteEntry>,
    /// The entries that match, by index, the best match first.
    matches: Vec<usize>,
    input: Input,
    index: usize,
}

impl Palette {
    /// Returns an empty palette with these entries.
    pub(super) fn new(entries: Vec<PaletteEntry>) -> Self {
        let mut palette = Self { entries, matches: Vec::new(), input: Input::default(), index: 0 };
        palette.rank();
        palette
    }

    /// Returns the text typed so far.
    pub fn text(&self) -> &str {
        self.input.value()
    }

    /// Returns the index of the selected entry among those that match.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the entries that match the text, the best match first. An empty text matches all.
    pub fn matches(&self) -> impl ExactSizeIterator<Item = &PaletteEntry> {
        self.matches.iter().map(|index| &self.entries[*index])
    }

    /// Returns the selected entry.
    pub fn selected(&self) -> Option<&PaletteEntry> {
        self.matches.get(self.index).map(|index| &self.entries[*index])
    }

    fn rank(&mut self) {
        self.index = 0;
        let words: Vec<String> = self.text().to_lowercase().split_whitespace().map(str::to_owned).collect();
        let rank = |(index, entry): (usize, &PaletteEntry)| Some((score(entry, &words)?, entry.target.rank(), index));
        let mut found: Vec<(u32, u8, usize)> = self.entries.iter().enumerate().filter_map(rank).collect();
        // If some entries contain the words as typed, entries with only their scattered letters are dropped.
        let whole = words.len() as u32 * OTHER_WORD;
        if found.iter().any(|(score, ..)| *score <= whole) {
            found.retain(|(score, ..)| *score <= whole);
        }
        if !words.is_empty() {
            found.sort_unstable();
        }
        self.matches = found.into_iter().map(|(.., index)| index).take(MAX_MATCHES).collect();
    }

    /// Inserts typed or pasted text.
    pub fn type_text(&mut self, text: &str) {
        for character in text.chars().filter(|character| !character.is_control()) {
            if self.text().chars().count() < MAX_CHARACTERS {
                self.input.handle(InputRequest::InsertChar(character));
            }
        }
        self.rank();
    }

    /// Performs an action of the input line or of the list below it.
    pub fn act(&mut self, action: Action) {
        let request = match action {
            Action::Up | Action::Down => {
                self.index = move_index(self.index, action, self.matches.len(), 1);
                return;
            }
            Action::EraseCharacter => InputRequest::DeletePrevChar,
            Action::EraseWord => InputRequest::DeletePrevWord,
            Action::EraseLine => InputRequest::DeleteLine,
            _ => return,
        };
        self.input.handle(request);
        self.rank();
    }
}

/// Returns the commands for a mode: first the views, then the commands of the mode, then those that lead elsewhere. Of
/// several bindings of one action the one for the mode is listed.
pub(super) fn commands(mode: Mode, is_readonly: bool) -> Vec<&'static Binding> {
    let is_offered = |line: &&Binding| {
        let is_here = line.modes.contains(&mode);
        let is_in_a_view = is_here || modes_of(line).iter().any(|mode| !mode.covers_view());
        is_in_a_view
            && is_entry(line.action)
            && (is_here || !needs_its_mode(line.action))
            && !(is_readonly && changes_hosts(line.action))
    };
    let mut lines: Vec<&'static Binding> = BINDINGS.iter().filter(is_offered).collect();
    // The menu of columns comes before the keys that step through them.
    lines.sort_by_key(|line| match line.action {
        action if is_view(action) => 0,
        Action::SortMenu => 1,
        Action::SortBy(_) => 4,
        _ if line.modes.contains(&mode) => 2,
        _ => 3,
    });
    let mut seen: Vec<Action> = Vec::new();
    lines.retain(|line| {
        let is_new = !seen.contains(&line.action);
        seen.push(line.action);
        is_new
    });
    lines
}

/// Returns the modes that a command can be performed in. The columns of the sort menu belong to the list.
pub(super) fn modes_of(line: &Binding) -> &[Mode] {
    if matches!(line.action, Action::SortBy(_)) { LISTS } else { line.modes }
}

/// Returns the text of a command.
pub(super) fn command_title(line: &Binding) -> String {
    match line.action {
        Action::SortBy(_) => format!("sort by {}", line.description),
        _ => line.description.to_owned(),
    }
}

fn is_view(action: Action) -> bool {
    matches!(action, Action::Overview | Action::Wall | Action::Processes | Action::Users | Action::Findings)
}

/// Returns whether the palette lists an action. Movement keys and keys of dialogs are left out.
fn is_entry(action: Action) -> bool {
    !matches!(
        action,
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
            | Action::Submit
            | Action::Skip
    )
}

/// Returns whether an action only makes sense where its key works: it depends on what is selected there.
fn needs_its_mode(action: Action) -> bool {
    matches!(
        action,
        Action::Enter
            | Action::Back
            | Action::Unfold
            | Action::Fold
            | Action::NextHost
            | Action::PreviousHost
            | Action::NextFocus
            | Action::PreviousFocus
    )
}

/// Returns whether an action needs a choice of the user first, if its view was not shown.
pub(super) fn needs_a_choice(action: Action) -> bool {
    changes_hosts(action) && action != Action::Shell
        || matches!(action, Action::Tag | Action::Snooze | Action::SnoozeUntilItChanges)
}

/// The distance of a word that occurs in the middle of a name.
const WITHIN_NAME: u32 = 3;
/// The distance of a word that occurs in the other texts of an entry.
const OTHER_WORD: u32 = 5;

/// Returns how badly an entry matches the words, or `None` if a word does not match. Lower is better.
fn score(entry: &PaletteEntry, words: &[String]) -> Option<u32> {
    words.iter().map(|word| word_score(entry, word)).sum()
}

fn word_score(entry: &PaletteEntry, word: &str) -> Option<u32> {
    let title = &entry.name;
    let (names, has_scattered) = match &entry.target {
        PaletteTarget::Host(_) if ends_with_number(title, word) => return Some(0),
        PaletteTarget::Command(line) => {
            let name = line.action.name().unwrap_or_default();
            let synonym = line.action.synonyms().split(' ').any(|synonym| synonym == word).then_some(1);
            ([whole(name, word), synonym], true)
        }
        PaletteTarget::Host(_) => ([None, None], true),
        PaletteTarget::User(_) | PaletteTarget::Process(_) => ([None, None], false),
    };
    let named = names.into_iter().flatten().chain(whole(title, word)).min();
    if named.is_some_and(|score| score < OTHER_WORD) {
        return named;
    }
    let synonyms = match &entry.target {
        PaletteTarget::Command(line) => line.action.synonyms(),
        _ => "",
    };
    if [synonyms, &entry.words].iter().any(|text| position(text, word).is_some_and(|(is_start, _)| is_start)) {
        return Some(OTHER_WORD - 1);
    }
    if entry.words.contains(word) {
        return Some(OTHER_WORD);
    }
    if has_scattered { scattered(title, word).map(|between| OTHER_WORD + 1 + between) } else { None }
}

/// Returns 0 if the text is the word, 1 if it begins with it, 2 if a word of it does, 3 if it occurs elsewhere.
fn whole(text: &str, word: &str) -> Option<u32> {
    if text == word {
        return Some(0);
    }
    let (is_start, at) = position(text, word)?;
    Some(if at == 0 {
        1
    } else if is_start {
        2
    } else {
        WITHIN_NAME
    })
}

/// Returns the first place of a word in a text, and whether a word of the text begins there.
fn position(text: &str, word: &str) -> Option<(bool, usize)> {
    let starts = |at: usize| !text[..at].ends_with(char::is_alphanumeric);
    let mut first = None;
    for (at, _) in text.match_indices(word) {
        if starts(at) {
            return Some((true, at));
        }
        first = first.or(Some((false, at)));
    }
    first
}

/// Returns whether a name ends with this number, with or without leading zeros: `hgx-03` ends with 3.
fn ends_with_number(name: &str, word: &str) -> bool {
    let digits = name.trim_end_matches(|character: char| character.is_ascii_digit()).len();
    let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    is_number && digits < name.len() && name[digits..].trim_start_matches('0') == word.trim_start_matches('0')
}

/// Returns the number of letters between the letters of `word`, if they occur in order.
fn scattered(text: &str, word: &str) -> Option<u32> {
    let mut rest = text.char_indices();
    let mut previous: Option<usize> = None;
    let mut between = 0;
    for wanted in word.chars() {
        let (at, _) = rest.find(|(_, character)| *character == wanted)?;
        between += previous.map_or(0, |previous| at - previous - 1);
        previous = Some(at);
    }
    Some(between as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn palette(mode: Mode) -> Palette {
        let commands = commands(mode, false).into_iter();
        let mut entries: Vec<PaletteEntry> = commands
            .map(|line| PaletteEntry::new(PaletteTarget::Command(line), &command_title(line), line.label, ""))
            .collect();
        for host in 1..=32 {
            let name = format!("hgx-{host:02}");
            entries.push(PaletteEntry::new(PaletteTarget::Host(HostId(host)), &name, "8 busy", ""));
        }
        for user in ["erika", "kilian"] {
            entries.push(PaletteEntry::new(PaletteTarget::User(user.into()), user, "8 GPUs", ""));
        }
        Palette::new(entries)
    }

    fn found(mode: Mode, text: &str) -> Vec<Action> {
        let mut palette = palette(mode);
        palette.type_text(text);
        let action = |entry: &PaletteEntry| match &entry.target {
            PaletteTarget::Command(line) => Some(line.action),
            _ => None,
        };
        palette.matches().filter_map(action).collect()
    }

    fn first(text: &str) -> String {
        let mut palette = palette(Mode::Grid);
        palette.type_text(text);
        palette.selected().map(|entry| format!("{} {}", entry.target.word(), entry.title)).unwrap_or_default()
    }

    #[test]
    fn actions_are_found_by_a_few_letters() {
        assert_eq!(found(Mode::Grid, "shell").first(), Some(&Action::Shell));
        assert_eq!(found(Mode::Grid, "wall").first(), Some(&Action::Wall));
        assert_eq!(found(Mode::List, "next colu").first(), Some(&Action::SortRight));
        assert_eq!(found(Mode::List, "sort colu").first(), Some(&Action::SortMenu));
        assert_eq!(found(Mode::Grid, "hidhst").first(), Some(&Action::Hide));
        assert_eq!(found(Mode::Grid, "QUIT").first(), Some(&Action::Quit));
        assert_eq!(found(Mode::Grid, "zzzz"), []);
        assert!(found(Mode::List, "sort").iter().all(|action| action.name().is_none_or(|name| name.contains("sort"))));
    }

    #[test]
    fn commands_are_found_by_other_words_whatever_has_the_focus() {
        for mode in [Mode::Grid, Mode::List, Mode::Wall, Mode::Findings, Mode::Log] {
            for (word, action) in [
                ("kill", Action::Kill),
                ("end", Action::Terminate),
                ("group", Action::Group),
                ("tree", Action::Group),
                ("sort", Action::SortMenu),
                ("order", Action::SortMenu),
                ("ssh", Action::Shell),
                ("exit", Action::Quit),
                ("search", Action::Filter),
                ("mute", Action::Snooze),
                ("reconnect", Action::RetryHost),
            ] {
                assert!(found(mode, word).iter().take(3).any(|found| *found == action), "{word} in {mode:?}");
            }
        }
        let readonly = commands(Mode::List, true);
        assert!(readonly.iter().all(|line| !changes_hosts(line.action)));
        assert!(!commands(Mode::Grid, false).iter().any(|line| line.action == Action::Unfold), "it needs a job");
    }

    #[test]
    fn an_action_is_listed_once_with_the_binding_of_the_mode() {
        for mode in [Mode::Grid, Mode::List, Mode::Findings] {
            let lines = commands(mode, false);
            for (index, line) in lines.iter().enumerate() {
                assert!(lines[index + 1..].iter().all(|other| other.action != line.action), "{}", line.description);
            }
        }
        let enter = |mode| commands(mode, false).iter().find(|line| line.action == Action::Enter).map(|line| line.hint);
        assert_ne!(enter(Mode::Grid), enter(Mode::List));
    }

    #[test]
    fn a_number_finds_the_host_that_ends_with_it_and_a_name_its_user() {
        assert_eq!(first("3"), "host hgx-03");
        assert_eq!(first("03"), "host hgx-03");
        assert_eq!(first("31"), "host hgx-31");
        assert_eq!(first("hgx-17"), "host hgx-17");
        assert_eq!(first("erika"), "user erika");
        assert_eq!(first("kil"), "user kilian", "the beginning of a name comes before a command");
        assert_eq!(first("findings"), "view findings: problems with their evidence");
    }

    #[test]
    fn text_and_selection_are_bounded() {
        let mut palette = palette(Mode::Grid);
        palette.type_text(&"x\u{1b}".repeat(100));
        assert_eq!(palette.text().len(), MAX_CHARACTERS);
        palette.act(Action::EraseLine);
        let count = palette.matches().len();
        for _ in 0..2 * count {
            palette.act(Action::Down);
        }
        assert_eq!(palette.index(), count - 1);
        palette.type_text("w");
        assert_eq!(palette.index(), 0);
    }

    #[test]
    fn many_processes_are_ranked_within_a_moment() {
        let key = |pid| RowKey {
            host: HostId(0),
            process: crate::fleet::ProcessKey { boot_id: None, pid, start_ticks: None },
            is_job: true,
            group: None,
        };
        let entries = (0..MAX_PROCESSES as u32).map(|pid| {
            let title = format!("train_{pid}.py --config configs/model-{pid}.yaml --bf16");
            PaletteEntry::new(PaletteTarget::Process(key(pid)), &title, "erika hgx-01", &format!("erika hgx-01 {pid}"))
        });
        let mut palette = Palette::new(entries.collect());
        assert_eq!(palette.matches().len(), MAX_MATCHES);
        let began = std::time::Instant::now();
        for letter in ["t", "r", "a", "i", "n", "_", "4", "2", "."] {
            palette.type_text(letter);
        }
        assert_eq!(palette.selected().map(|entry| entry.title.starts_with("train_42.py")), Some(true));
        // An optimised build takes 1 ms per key.
        assert!(began.elapsed() < std::time::Duration::from_secs(9), "{:?}", began.elapsed());
    }
}
