//! Questions that wait for a person, and the dialog in which one is answered.

use super::{Action, SecretInput};
use crate::fleet::Moment;
use crate::ssh::prompt::{Answer, Prompt, PromptId, PromptKind};
use std::collections::VecDeque;
use std::time::Duration;

/// For this long after a dialog has opened its keys do nothing: they were meant for what was there before.
pub const IGNORE_KEYS_FOR: Duration = Duration::from_millis(500);
/// What is typed to save a host key. A single key could be hit by accident.
pub const SAVE_WORD: &str = "yes";

/// All questions that are open. The first one is in the dialog while that is open.
#[derive(Debug, Default)]
pub struct Prompts {
    waiting: VecDeque<Prompt>,
    dialog: Option<PromptDialog>,
    answered: usize,
}

/// The dialog for the first question.
#[derive(Debug)]
pub struct PromptDialog {
    /// When it opened.
    pub opened_at: Moment,
    /// What has been typed.
    pub input: SecretInput,
    /// Keys were pressed while the guard was up.
    pub ignored_keys: bool,
    /// Enter was pressed, and what is typed is not an answer.
    pub needs_save_word: bool,
}

impl PromptDialog {
    fn new(now: Moment) -> Self {
        Self { opened_at: now, input: SecretInput::new(), ignored_keys: false, needs_save_word: false }
    }
}

impl Prompts {
    /// How many questions wait, the one in the dialog included.
    pub fn count(&self) -> usize {
        self.waiting.len()
    }

    /// The open dialog and its question.
    pub fn open_dialog(&self) -> Option<(&Prompt, &PromptDialog)> {
        self.waiting.front().zip(self.dialog.as_ref())
    }

    /// Which of how many the open dialog is, counted since the last time that none waited.
    pub fn position(&self) -> (usize, usize) {
        (self.answered + 1, self.answered + self.waiting.len())
    }

    /// The first question that a host waits for.
    pub fn of_host(&self, host: &str) -> Option<&Prompt> {
        self.waiting.iter().find(|prompt| prompt.hosts.iter().any(|name| name == host))
    }

    /// Takes a question: a new one, or the same one with more hosts waiting or after a wrong answer.
    pub fn add(&mut self, prompt: Prompt, open_at_once: bool, now: Moment) {
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

    /// Takes back a question that is no longer open.
    pub fn withdraw(&mut self, id: PromptId, now: Moment) {
        let Some(index) = self.waiting.iter().position(|prompt| prompt.id == id) else { return };
        self.waiting.remove(index);
        if index == 0 && self.dialog.take().is_some() {
            self.open(now);
        }
        self.reset_count_when_empty();
    }

    /// Opens the dialog for the first question, unless one is open.
    pub fn open(&mut self, now: Moment) {
        if self.dialog.is_none() && !self.waiting.is_empty() {
            self.dialog = Some(PromptDialog::new(now));
        }
    }

    /// Performs a key of the dialog. `None` for an action means a character (or nothing that a dialog knows).
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
        self.waiting.pop_front();
        self.answered += 1;
        self.dialog = None;
        // Whoever answers one is there to answer the next; its guard catches what was typed too fast.
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

/// A key as the dialog sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialogKey {
    /// One of the keymap.
    Action(Action),
    /// A character to be typed.
    Character(char),
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
    fn keys_of_the_first_half_second_are_ignored_and_that_is_said() {
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
    fn a_key_is_saved_only_after_the_whole_word() {
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
    fn a_passphrase_is_handed_over_and_the_next_question_opens() {
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
    fn later_questions_wait_until_they_are_asked_for() {
        let mut prompts = Prompts::default();
        prompts.add(host_key(1), false, at(0));
        assert!(prompts.open_dialog().is_none());
        assert!(prompts.act(DialogKey::Action(Action::TrustOnce), at(900)).is_none());
        assert_eq!(prompts.of_host("hgx-10").map(|prompt| prompt.id), Some(PromptId(1)));
        prompts.open(at(1000));
        assert!(prompts.open_dialog().is_some());
    }

    #[test]
    fn a_question_asked_again_starts_with_an_empty_field_and_more_hosts_do_not() {
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
    fn withdrawing_closes_the_dialog_and_opens_the_next() {
        let mut prompts = Prompts::default();
        prompts.add(host_key(1), true, at(0));
        prompts.add(passphrase(2, 0), true, at(0));
        prompts.withdraw(PromptId(1), at(100));
        assert_eq!(prompts.open_dialog().expect("open").0.id, PromptId(2));
        prompts.withdraw(PromptId(9), at(100));
        prompts.withdraw(PromptId(2), at(100));
        assert!(prompts.open_dialog().is_none());
    }
}
