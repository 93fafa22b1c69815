//! Dialogs with text input: prompts from SSH and the field for secrets.

use super::action::Action;
use crate::fleet::Moment;
use crate::ssh::prompt::{Answer, Prompt, PromptId, PromptKind, Secret};
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;
use zeroize::{Zeroize, Zeroizing};

/// For this long after a dialog opened by itself, its keys are ignored: they were meant for the view behind it.
pub const IGNORE_KEYS_FOR: Duration = Duration::from_millis(500);
/// The word that saves a host key. A single key could be pressed by accident.
pub const SAVE_WORD: &str = "yes";

/// The prompts that wait for an answer. The dialog shows the first one while it is open.
#[derive(Debug, Default)]
pub struct Prompts {
    waiting: VecDeque<Prompt>,
    dialog: Option<PromptDialog>,
    answered: usize,
    /// The prompts whose host keys were saved in this run.
    saved_keys: Vec<PromptKind>,
}

/// At most this many saved host keys are remembered.
const MAX_SAVED_KEYS: usize = 1000;

/// The dialog for the first prompt.
#[derive(Debug)]
pub struct PromptDialog {
    /// When the dialog opened.
    pub opened_at: Moment,
    /// The text typed so far.
    pub input: SecretInput,
    /// Keys were pressed while keys were ignored.
    pub ignored_keys: bool,
    /// Enter was pressed without the word that saves a host key.
    pub needs_save_word: bool,
}

impl PromptDialog {
    fn new(now: Moment) -> Self {
        Self { opened_at: now, input: SecretInput::new(), ignored_keys: false, needs_save_word: false }
    }
}

impl Prompts {
    /// Returns the number of waiting prompts, including the one in the dialog.
    pub fn count(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the open dialog and its prompt.
    pub fn open_dialog(&self) -> Option<(&Prompt, &PromptDialog)> {
        self.waiting.front().zip(self.dialog.as_ref())
    }

    /// Returns the number of the open dialog and the number of all prompts since the queue was last empty.
    pub fn position(&self) -> (usize, usize) {
        (self.answered + 1, self.answered + self.waiting.len())
    }

    /// Returns the first prompt that a host waits for.
    pub fn of_host(&self, host: &str) -> Option<&Prompt> {
        self.waiting.iter().find(|prompt| prompt.hosts.iter().any(|name| name == host))
    }

    /// Adds a prompt, or updates it if more hosts wait for it or the answer was wrong.
    pub fn add(&mut self, mut prompt: Prompt, open_at_once: bool, now: Moment) {
        self.saved_keys.iter().for_each(|saved| prompt.kind.note_saved_key(saved));
        if let Some(index) = self.waiting.iter().position(|known| known.id == prompt.id) {
            let is_new_attempt = self.waiting[index].kind != prompt.kind;
            self.waiting[index] = prompt;
            if index == 0 && is_new_attempt && self.dialog.is_some() {
                self.dialog = Some(PromptDialog::new(now));
            }
        } else {
            self.waiting.push_back(prompt);
        }
        if open_at_once {
            self.open(now);
        }
    }

    /// Removes a prompt that no longer needs an answer.
    pub fn withdraw(&mut self, id: PromptId, now: Moment) {
        let Some(index) = self.waiting.iter().position(|prompt| prompt.id == id) else { return };
        self.waiting.remove(index);
        if index == 0 && self.dialog.take().is_some() {
            self.open(now);
        }
        self.reset_count_when_empty();
    }

    /// Opens the dialog for the first prompt, unless a dialog is open.
    pub fn open(&mut self, now: Moment) {
        if self.dialog.is_none() && !self.waiting.is_empty() {
            self.dialog = Some(PromptDialog::new(now));
        }
    }

    /// Handles a key of the dialog and returns the answer, if the key gives one.
    pub fn act(&mut self, key: DialogKey, now: Moment) -> Option<(PromptId, Answer)> {
        let (prompt, dialog) = (self.waiting.front()?, self.dialog.as_mut()?);
        if now.since(dialog.opened_at) < IGNORE_KEYS_FOR {
            dialog.ignored_keys = true;
            return None;
        }
        let is_host_key = matches!(prompt.kind, PromptKind::HostKey { .. });
        let answer = match key {
            DialogKey::Action(Action::Skip) => Answer::Decline,
            DialogKey::Action(Action::TrustOnce) if is_host_key => Answer::TrustOnce,
            DialogKey::Action(Action::Submit) if is_host_key => {
                if dialog.input.text() != SAVE_WORD {
                    dialog.needs_save_word = true;
                    return None;
                }
                Answer::TrustAndSave
            }
            DialogKey::Action(Action::Submit) => Answer::Secret(dialog.input.take()),
            DialogKey::Action(Action::EraseCharacter) => {
                dialog.input.pop();
                return None;
            }
            DialogKey::Action(Action::EraseLine) => {
                dialog.input.clear();
                return None;
            }
            DialogKey::Action(_) => return None,
            DialogKey::Character(character) => {
                let full = is_host_key && dialog.input.text().len() >= SAVE_WORD.len();
                if !full {
                    dialog.input.push(character);
                }
                return None;
            }
        };
        let id = prompt.id;
        let answered = self.waiting.pop_front();
        self.answered += 1;
        if let (Answer::TrustAndSave, Some(Prompt { kind, .. })) = (&answer, answered) {
            self.waiting.iter_mut().for_each(|waiting| waiting.kind.note_saved_key(&kind));
            if self.saved_keys.len() < MAX_SAVED_KEYS {
                self.saved_keys.push(kind);
            }
        }
        self.dialog = None;
        // The user is present and can answer the next prompt, which ignores keys that were typed too fast.
        self.open(now);
        self.reset_count_when_empty();
        Some((id, answer))
    }

    fn reset_count_when_empty(&mut self) {
        if self.waiting.is_empty() {
            self.answered = 0;
        }
    }
}

/// A key in a dialog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialogKey {
    /// A key with an action.
    Action(Action),
    /// A text character.
    Character(char),
}

/// The longest secret, in bytes.
const MAX_SECRET_BYTES: usize = 1024;

/// An input field for a secret, in one buffer that is zeroized.
///
/// The buffer has its full capacity from the start, because a buffer that grows leaves copies in freed memory. The type
/// is not `Clone`, and `Debug` does not show the text.
pub struct SecretInput {
    text: Zeroizing<String>,
}

impl SecretInput {
    /// Returns an empty field.
    pub fn new() -> Self {
        Self { text: Zeroizing::new(String::with_capacity(MAX_SECRET_BYTES)) }
    }

    /// Adds a character. Ignores control characters and input beyond the limit.
    pub fn push(&mut self, character: char) {
        if !character.is_control() && self.text.len() + character.len_utf8() <= MAX_SECRET_BYTES {
            self.text.push(character);
        }
    }

    /// Removes the last character.
    pub fn pop(&mut self) {
        if let Some((start, _)) = self.text.char_indices().next_back() {
            // Truncation alone would leave the bytes in the buffer.
            let mut tail = self.text.split_off(start);
            tail.zeroize();
        }
    }

    /// Removes the text.
    pub fn clear(&mut self) {
        self.text.zeroize();
    }

    /// Returns whether the field is empty.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns the text, for prompts whose answer may be shown.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the secret and leaves the field empty.
    pub fn take(&mut self) -> Secret {
        Secret::new(std::mem::replace(&mut self.text, Zeroizing::new(String::with_capacity(MAX_SECRET_BYTES))))
    }
}

impl Default for SecretInput {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SecretInput {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SecretInput(...)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::default().plus(Duration::from_millis(milliseconds))
    }

    fn host_key(id: u64) -> Prompt {
        Prompt {
            id: PromptId(id),
            hosts: vec!["hgx-10".into()],
            kind: PromptKind::HostKey {
                target: "hgx-10.lab (10.2.0.20:22)".into(),
                key_type: "ssh-ed25519".into(),
                fingerprint: "SHA256:abc".into(),
                known_hosts: "~/.ssh/known_hosts".into(),
                also_known_as: Vec::new(),
            },
        }
    }

    fn passphrase(id: u64, failures: u32) -> Prompt {
        let kind = PromptKind::Passphrase { path: "~/.ssh/id_ed25519".into(), fingerprint: None, failures };
        Prompt { id: PromptId(id), hosts: vec!["hgx-11".into(), "hgx-12".into()], kind }
    }

    fn type_text(prompts: &mut Prompts, text: &str, now: Moment) {
        for character in text.chars() {
            assert!(prompts.act(DialogKey::Character(character), now).is_none());
        }
    }

    #[test]
    fn keys_in_the_first_half_second_are_ignored() {
        let mut prompts = Prompts::default();
        prompts.add(host_key(1), true, at(1000));
        assert!(prompts.act(DialogKey::Action(Action::TrustOnce), at(1499)).is_none());
        assert!(prompts.open_dialog().expect("open").1.ignored_keys);
        let (id, answer) = prompts.act(DialogKey::Action(Action::TrustOnce), at(1500)).expect("answered");
        assert_eq!(id, PromptId(1));
        assert!(matches!(answer, Answer::TrustOnce));
        assert_eq!(prompts.count(), 0);
    }

    #[test]
    fn a_host_key_is_saved_only_after_the_word_yes() {
        let mut prompts = Prompts::default();
        prompts.add(host_key(1), true, at(0));
        type_text(&mut prompts, "ye", at(600));
        assert!(prompts.act(DialogKey::Action(Action::Submit), at(600)).is_none());
        assert!(prompts.open_dialog().expect("open").1.needs_save_word);
        type_text(&mut prompts, "s!", at(600));
        let (_, answer) = prompts.act(DialogKey::Action(Action::Submit), at(600)).expect("answered");
        assert!(matches!(answer, Answer::TrustAndSave));
    }

    #[test]
    fn a_key_that_was_just_saved_for_another_host_is_known() {
        let with_target = |id, name: &str| {
            let mut prompt = host_key(id);
            if let PromptKind::HostKey { target, .. } = &mut prompt.kind {
                *target = name.to_owned();
            }
            prompt
        };
        let names = |prompts: &Prompts| match &prompts.open_dialog().expect("open").0.kind {
            PromptKind::HostKey { also_known_as, .. } => also_known_as.clone(),
            _ => panic!("no host key"),
        };
        let mut prompts = Prompts::default();
        prompts.add(host_key(1), true, at(0));
        prompts.add(with_target(2, "hgx-11.lab (10.2.0.21:22)"), true, at(0));
        type_text(&mut prompts, "yes", at(600));
        prompts.act(DialogKey::Action(Action::Submit), at(600)).expect("answered");
        assert_eq!(names(&prompts), ["hgx-10.lab (10.2.0.20:22)"]);
        // Its key was looked up before the first one was saved.
        prompts.act(DialogKey::Action(Action::TrustOnce), at(1200)).expect("answered");
        prompts.add(with_target(3, "hgx-12.lab (10.2.0.22:22)"), true, at(2000));
        assert_eq!(names(&prompts), ["hgx-10.lab (10.2.0.20:22)"], "a key that is trusted once is not saved");
    }

    #[test]
    fn submit_returns_the_passphrase_and_opens_the_next_prompt() {
        let mut prompts = Prompts::default();
        prompts.add(passphrase(1, 0), true, at(0));
        prompts.add(host_key(2), true, at(0));
        assert_eq!(prompts.position(), (1, 2));
        type_text(&mut prompts, "sesamx", at(600));
        assert!(prompts.act(DialogKey::Action(Action::EraseCharacter), at(600)).is_none());
        type_text(&mut prompts, "e", at(600));
        let Some((PromptId(1), Answer::Secret(secret))) = prompts.act(DialogKey::Action(Action::Submit), at(600))
        else {
            panic!("no secret")
        };
        assert_eq!(secret.expose(), "sesame");
        assert_eq!(prompts.position(), (2, 2));
        assert!(prompts.act(DialogKey::Action(Action::Skip), at(700)).is_none(), "guarded");
        let (id, answer) = prompts.act(DialogKey::Action(Action::Skip), at(1200)).expect("answered");
        assert_eq!(id, PromptId(2));
        assert!(matches!(answer, Answer::Decline));
        assert_eq!(prompts.position(), (1, 0));
    }

    #[test]
    fn a_later_prompt_waits_until_it_is_opened() {
        let mut prompts = Prompts::default();
        prompts.add(host_key(1), false, at(0));
        assert!(prompts.open_dialog().is_none());
        assert!(prompts.act(DialogKey::Action(Action::TrustOnce), at(900)).is_none());
        assert_eq!(prompts.of_host("hgx-10").map(|prompt| prompt.id), Some(PromptId(1)));
        prompts.open(at(1000));
        assert!(prompts.open_dialog().is_some());
    }

    #[test]
    fn a_new_attempt_clears_the_field_and_more_hosts_do_not() {
        let mut prompts = Prompts::default();
        prompts.add(passphrase(1, 0), true, at(0));
        type_text(&mut prompts, "abc", at(600));
        let more = Prompt { hosts: vec!["a".into(); 5], ..passphrase(1, 0) };
        prompts.add(more, false, at(700));
        assert!(!prompts.open_dialog().expect("open").1.input.is_empty());
        prompts.add(passphrase(1, 1), false, at(800));
        assert_eq!(prompts.count(), 1);
        let dialog = prompts.open_dialog().expect("open").1;
        assert!(dialog.input.is_empty());
        assert_eq!(dialog.opened_at, at(800));
    }

    #[test]
    fn withdrawing_a_prompt_opens_the_next_one() {
        let mut prompts = Prompts::default();
        prompts.add(host_key(1), true, at(0));
        prompts.add(passphrase(2, 0), true, at(0));
        prompts.withdraw(PromptId(1), at(100));
        assert_eq!(prompts.open_dialog().expect("open").0.id, PromptId(2));
        prompts.withdraw(PromptId(9), at(100));
        prompts.withdraw(PromptId(2), at(100));
        assert!(prompts.open_dialog().is_none());
    }

    #[test]
    fn the_secret_buffer_does_not_move_or_grow() {
        let mut input = SecretInput::new();
        let pointer = input.text.as_ptr();
        for _ in 0..MAX_SECRET_BYTES {
            input.push('ä');
        }
        assert_eq!(input.text.len(), MAX_SECRET_BYTES);
        assert_eq!(input.text.as_ptr(), pointer);
        assert_eq!(input.text.capacity(), MAX_SECRET_BYTES);
    }

    #[test]
    fn take_and_clear_leave_an_empty_field() {
        let mut input = SecretInput::new();
        for character in "correct\u{8} horse\n".chars() {
            input.push(character);
        }
        input.pop();
        assert_eq!(format!("{input:?}"), "SecretInput(...)");
        assert_eq!(input.take().expose(), "correct hors");
        assert!(input.is_empty());
        input.push('x');
        input.clear();
        assert!(input.is_empty());
    }
}
