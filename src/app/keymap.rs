//! The keys as they hold in this run: those of the table, or those that the settings give to an action by its name.

use super::action::{Action, Mode};
use super::bindings::{BINDINGS, Binding, Key, hint_of};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The keys in force.
#[derive(Debug, Clone)]
pub struct Keymap {
    /// For each line of the table the keys that stand in the place of its own, and how they are written.
    overrides: Vec<Option<(Vec<Key>, String)>>,
}

/// Two actions have one key, or a key cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyConflict {
    /// Which of the assignments, and which of its keys.
    pub assignment_and_key: (usize, usize),
    /// What is wrong.
    pub message: String,
    /// The way out.
    pub hint: String,
}

/// An action and the keys that it shall have.
pub type Assignment = (Action, Vec<Key>);

impl Default for Keymap {
    fn default() -> Self {
        Self { overrides: vec![None; BINDINGS.len()] }
    }
}

impl Keymap {
    /// The table with these keys in the place of its own.
    ///
    /// # Errors
    /// Every key that would have two meanings somewhere, or that is needed for typing.
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
                        format!("`{key}` is typed into lines and dialogs, and `{name}` holds there, too"),
                        "a key with Ctrl, as \"C-x\", or F1 to F12".to_owned(),
                    ),
                    Some((other, mode)) => (
                        format!("`{key}` for `{name}` means something else {}: {}", mode.location(), other.description),
                        match other.action.name().filter(|_| is_configurable(other)) {
                            Some(other) => format!("another key, or another one for `{other}` as well"),
                            None => "another key: that one is fixed".to_owned(),
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

    /// The keys of a line of the table.
    pub fn keys<'a>(&'a self, binding: &'a Binding) -> &'a [Key] {
        self.override_for(binding).map_or(binding.keys, |(keys, _)| keys)
    }

    /// How they are written.
    pub fn keys_label<'a>(&'a self, binding: &'a Binding) -> &'a str {
        self.override_for(binding).map_or(binding.label, |(_, shown)| shown)
    }

    /// What a key does in a mode.
    pub fn action(&self, mode: Mode, event: &KeyEvent) -> Option<Action> {
        let pressed = Key { code: event.code, ctrl: event.modifiers.contains(KeyModifiers::CONTROL) };
        if event.modifiers.contains(KeyModifiers::ALT) {
            return None;
        }
        bindings_of(mode).find(|binding| self.keys(binding).contains(&pressed)).map(|binding| binding.action)
    }

    /// The lines that the hint bar shows in a mode: what they do, keys and words.
    pub fn hints(&self, mode: Mode) -> impl Iterator<Item = (Action, &str, &'static str)> {
        bindings_of(mode).filter_map(|binding| Some((binding.action, self.keys_label(binding), hint_of(binding)?)))
    }
}

/// The lines of the table that hold in a mode.
fn bindings_of(mode: Mode) -> impl Iterator<Item = &'static Binding> {
    BINDINGS.iter().filter(move |binding| binding.modes.contains(&mode))
}

/// Whether the settings may give a line of the table other keys: what is over the views (dialogs, menus, lines of text)
/// and what leads in, out and away stays where everybody knows it.
pub fn is_configurable(binding: &Binding) -> bool {
    let is_view = |mode: &Mode| !mode.is_overlay();
    let is_fixed = matches!(binding.keys, [Key { code: KeyCode::Char('c'), ctrl: true }]);
    binding.action.name().is_some() && !is_fixed && binding.modes.iter().any(is_view)
}

/// Every action that can be named in the settings, in the order of the table.
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

impl Action {
    /// What the settings and the palette call it; `None` for what has fixed keys.
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Left => "left",
            Self::Right => "right",
            Self::PageUp => "page-up",
            Self::PageDown => "page-down",
            Self::HalfPageUp => "half-page-up",
            Self::HalfPageDown => "half-page-down",
            Self::First => "first",
            Self::Last => "last",
            Self::NextFocus => "next-part",
            Self::PreviousFocus => "previous-part",
            Self::NextHost => "next-host",
            Self::PreviousHost => "previous-host",
            Self::Metric => "metric",
            Self::Span => "span",
            Self::FoldState => "unfold",
            Self::Fold => "fold",
            Self::SortLeft => "sort-left",
            Self::SortRight => "sort-right",
            Self::SortReverse => "sort-reverse",
            Self::SortMenu => "sort-by",
            Self::Group => "group",
            Self::Filter => "filter",
            Self::Mine => "mine",
            Self::Problems => "problems",
            Self::IdleOnly => "idle",
            Self::UserPicker => "user",
            Self::Interrupt => "interrupt",
            Self::Terminate => "terminate",
            Self::Kill => "kill",
            Self::SignalMenu => "signal",
            Self::Tag => "tag",
            Self::UntagAll => "untag-all",
            Self::Follow => "follow",
            Self::RetryHost => "retry",
            Self::RetryAll => "retry-all",
            Self::OpenPrompts => "answer",
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Refresh => "refresh",
            Self::Repaint => "repaint",
            Self::Suspend => "suspend",
            Self::Overview => "overview",
            Self::Wall => "wall",
            Self::Processes => "processes",
            Self::Users => "users",
            Self::Findings => "findings",
            Self::Log => "ssh-log",
            Self::Snooze => "snooze",
            Self::SnoozeUntilItChanges => "snooze-until-it-changes",
            Self::History => "history",
            Self::Help => "help",
            Self::Quit => "quit",
            Self::Shell => "shell",
            Self::Copy => "copy",
            Self::Freeze => "freeze",
            Self::Mouse => "mouse",
            Self::Hide => "hide-host",
            Self::ShowHidden => "show-hidden",
            Self::Pin => "pin-host",
            Self::DensityAuto => "density-auto",
            Self::DensityCompact => "density-compact",
            Self::DensityFull => "density-full",
            Self::Palette => "palette",
            Self::Enter
            | Self::Back
            | Self::ShowAll
            | Self::SortBy(_)
            | Self::Skip
            | Self::TrustOnce
            | Self::Submit
            | Self::EraseCharacter
            | Self::EraseLine
            | Self::EraseWord
            | Self::EraseNext => return None,
        })
    }
}

/// Keys that have a name, as the help writes them.
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
    /// Reads a key as the help writes it: `x`, `X`, `C-x`, `F5`, `PgUp`, `Space`.
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

    fn press(character: char) -> KeyEvent {
        KeyEvent::new(KeyCode::Char(character), KeyModifiers::NONE)
    }

    fn key(text: &str) -> Key {
        Key::parse(text).expect(text)
    }

    #[test]
    fn keys_are_read_as_they_are_written() {
        for text in ["x", "X", "C-x", "F5", "F12", "PgUp", "S-Tab", "Space", "?", "-", "Enter"] {
            assert_eq!(Key::parse(text).map(|key| key.to_string()).as_deref(), Some(text));
        }
        for text in ["", "xx", "C-", "C-X", "F0", "F13", "\u{1b}", "é", "Ctrl-x"] {
            assert_eq!(Key::parse(text), None, "{text}");
        }
    }

    #[test]
    fn every_key_of_the_table_is_written_as_it_is_read() {
        for binding in BINDINGS.iter().filter(|binding| is_configurable(binding)) {
            for word in binding.label.split(' ') {
                let key = Key::parse(word).unwrap_or_else(|| panic!("{word} of {}", binding.description));
                assert!(binding.keys.contains(&key), "{word} of {}", binding.description);
            }
        }
    }

    #[test]
    fn an_action_has_the_keys_that_the_settings_give_it_and_no_others() {
        let map = Keymap::with_overrides(&[(Action::Shell, vec![key("C-s"), key("F2")])]).expect("no conflict");
        assert_eq!(map.action(Mode::Grid, &press('s')), None);
        let control = KeyEvent::new(KeyCode::Char('s'), KeyModifiers::CONTROL);
        assert_eq!(map.action(Mode::Grid, &control), Some(Action::Shell));
        let line = BINDINGS.iter().find(|line| line.action == Action::Shell).expect("is in the table");
        assert_eq!(map.keys_label(line), "C-s F2");
        assert_eq!(map.action(Mode::Grid, &press('y')), Some(Action::Copy));
        // A key that is given away is free for another.
        let swapped = [(Action::Shell, vec![key("y")]), (Action::Copy, vec![key("s")])];
        let map = Keymap::with_overrides(&swapped).expect("no conflict");
        assert_eq!(map.action(Mode::List, &press('y')), Some(Action::Shell));
    }

    #[test]
    fn a_key_with_two_meanings_is_refused_and_both_are_named() {
        let wrong = [(Action::Shell, vec![key("C-s"), key("y")]), (Action::Repaint, vec![key("p")])];
        let conflicts = Keymap::with_overrides(&wrong).expect_err("two conflicts");
        assert_eq!(
            conflicts,
            [
                KeyConflict {
                    assignment_and_key: (0, 1),
                    message:
                        "`y` for `shell` means something else in the grid: copy: ssh command, pid, lines of a free \
                              GPU, note"
                            .into(),
                    hint: "another key, or another one for `copy` as well".into(),
                },
                KeyConflict {
                    assignment_and_key: (1, 0),
                    message: "`p` is typed into lines and dialogs, and `repaint` holds there, too".into(),
                    hint: "a key with Ctrl, as \"C-x\", or F1 to F12".into(),
                },
            ]
        );
        let fixed = Keymap::with_overrides(&[(Action::Quit, vec![key("Esc")])]).expect_err("a conflict");
        assert_eq!(fixed[0].hint, "another key: that one is fixed");
    }

    #[test]
    fn control_c_leaves_whatever_the_settings_say() {
        let map = Keymap::with_overrides(&[(Action::Quit, vec![key("Q")])]).expect("no conflict");
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(map.action(Mode::Grid, &control_c), Some(Action::Quit));
        assert_eq!(map.action(Mode::Grid, &press('q')), None);
    }

    #[test]
    fn names_are_unlike_each_other() {
        let named = named_actions();
        assert!(named.len() > 50, "{}", named.len());
        for (index, (name, _)) in named.iter().enumerate() {
            assert!(named[index + 1..].iter().all(|(other, _)| other != name), "{name}");
        }
    }
}
