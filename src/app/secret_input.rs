//! A field for a secret: what is typed is held in one buffer that is wiped, and nowhere else.

use crate::ssh::prompt::Secret;
use std::fmt;
use zeroize::{Zeroize, Zeroizing};

/// The most bytes a secret may have.
pub const MAX_BYTES: usize = 1024;

/// What has been typed of a secret.
///
/// The buffer has its full capacity from the start: a growing one would leave its earlier contents, unwiped, in freed
/// memory. Neither `Clone` nor readable through `Debug`.
pub struct SecretInput {
    text: Zeroizing<String>,
}

impl SecretInput {
    /// An empty field.
    pub fn new() -> Self {
        Self { text: Zeroizing::new(String::with_capacity(MAX_BYTES)) }
    }

    /// Adds a character; what goes beyond [`MAX_BYTES`] or controls a terminal is not taken.
    pub fn push(&mut self, character: char) {
        if !character.is_control() && self.text.len() + character.len_utf8() <= MAX_BYTES {
            self.text.push(character);
        }
    }

    /// Takes the last character away.
    pub fn pop(&mut self) {
        if let Some((start, _)) = self.text.char_indices().next_back() {
            // Truncating alone would leave the bytes in the buffer until it is dropped.
            let mut tail = self.text.split_off(start);
            tail.zeroize();
        }
    }

    /// Empties the field.
    pub fn clear(&mut self) {
        self.text.zeroize();
    }

    /// Whether nothing has been typed.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// What was typed, for a question whose answer the server lets be shown.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Hands the secret over and leaves the field empty.
    pub fn take(&mut self) -> Secret {
        Secret::new(std::mem::replace(&mut self.text, Zeroizing::new(String::with_capacity(MAX_BYTES))))
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

    #[test]
    fn the_buffer_never_moves_and_never_grows() {
        let mut input = SecretInput::new();
        let pointer = input.text.as_ptr();
        for _ in 0..MAX_BYTES {
            input.push('ä');
        }
        assert_eq!(input.text.len(), MAX_BYTES);
        assert_eq!(input.text.as_ptr(), pointer);
        assert_eq!(input.text.capacity(), MAX_BYTES);
    }

    #[test]
    fn taking_leaves_an_empty_field() {
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
