//! Keys and pastes: who gets them, and what they do there.

use super::App;
use super::prompts::DialogKey;
use super::signals::SignalKey;
use super::{Action, Effect, Mode};
use crate::fleet::Moment;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

impl App {
    pub(super) fn key(&mut self, key: KeyEvent, now: Moment) -> Vec<Effect> {
        // What was said there is read, and the line is for the keys again.
        self.notice = None;
        let mode = self.mode();
        let Some((_, dialog)) = self.prompts.open_dialog() else {
            if mode == Mode::SignalDialog {
                return match (self.keymap.action(mode, &key), key.code) {
                    (Some(action @ (Action::Quit | Action::Repaint | Action::Suspend)), _) => self.act(action, now),
                    (Some(action), _) => self.signal_key(SignalKey::Action(action), now),
                    (None, KeyCode::Char(character))
                        if !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) =>
                    {
                        self.signal_key(SignalKey::Character(character), now)
                    }
                    (None, _) => Vec::new(),
                };
            }
            if mode == Mode::FilterLine {
                return self.filter_key(&key, now);
            }
            if mode == Mode::Palette {
                return self.palette_key(&key, now);
            }
            return self.keymap.action(mode, &key).map_or_else(Vec::new, |action| self.act(action, now));
        };
        // Letters that are keys of the dialog are text once something has been typed.
        let typed = match key.code {
            KeyCode::Char(character)
                if !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT)
                    && (!dialog.input.is_empty() || self.keymap.action(mode, &key).is_none()) =>
            {
                DialogKey::Character(character)
            }
            _ => match self.keymap.action(mode, &key) {
                Some(action @ (Action::Quit | Action::Repaint | Action::Suspend)) => return self.act(action, now),
                Some(action) => DialogKey::Action(action),
                None => return Vec::new(),
            },
        };
        self.prompts.act(typed, now).map(|(id, answer)| Effect::Answer(id, answer)).into_iter().collect()
    }

    /// A key of the filter's line: one of its own, or text.
    pub(super) fn filter_key(&mut self, key: &KeyEvent, now: Moment) -> Vec<Effect> {
        match (self.keymap.action(Mode::FilterLine, key), key.code) {
            (Some(action @ (Action::Quit | Action::Repaint | Action::Suspend | Action::Help)), _) => {
                return self.act(action, now);
            }
            (Some(action), _) => self.list_filter.act(action),
            (None, KeyCode::Char(character))
                if !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) =>
            {
                self.list_filter.type_text(character.encode_utf8(&mut [0; 4]));
            }
            (None, _) => return Vec::new(),
        }
        self.list_filter_changed();
        Vec::new()
    }

    /// A key of the palette: one of its own, or text.
    pub(super) fn palette_key(&mut self, key: &KeyEvent, now: Moment) -> Vec<Effect> {
        match (self.keymap.action(Mode::Palette, key), key.code) {
            (Some(action), _) => return self.act(action, now),
            (None, KeyCode::Char(character))
                if !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) =>
            {
                if let Some(palette) = &mut self.palette {
                    palette.type_text(character.encode_utf8(&mut [0; 4]));
                }
            }
            (None, _) => {}
        }
        Vec::new()
    }

    pub(super) fn paste(&mut self, text: &str, now: Moment) {
        if let Some(palette) = &mut self.palette {
            palette.type_text(text);
            return;
        }
        if self.mode() == Mode::FilterLine {
            self.list_filter.type_text(text);
            self.list_filter_changed();
            return;
        }
        if self.mode() == Mode::SecretDialog {
            // A passphrase is often pasted with the end of its line, which must not be taken for Enter.
            for character in text.trim_end_matches(['\r', '\n']).chars() {
                self.prompts.act(DialogKey::Character(character), now);
            }
        }
    }
}
