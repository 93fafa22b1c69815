//! Safe text: the only kind of remote text that screens, logs and exports accept.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::sync::Arc;

/// Maximum length of a text in bytes. A longer text is truncated and ends in `…`.
pub const MAX_BYTES: usize = 4096;

/// Replaces a character that a terminal would interpret or that is invisible.
const REPLACEMENT: char = '\u{FFFD}';

/// Maximum number of combining marks on one character. Real scripts need two; stacked marks spill over other rows.
const MAX_COMBINING_MARKS: usize = 2;

/// Text that a terminal shows and does not interpret.
///
/// A C0 control character becomes its picture (`␛`). Other control characters (Cc), format characters (Cf:
/// bidirectional overrides, zero-width joiners, tags, the byte order mark, the soft hyphen), line and paragraph
/// separators and private-use characters become `U+FFFD`. A text has at most [`MAX_BYTES`] bytes and at most two
/// combining marks per character. Deserialization sanitizes, so all text received over the wire is safe.
///
/// Clones share the text.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SafeText(Arc<str>);

impl SafeText {
    /// Sanitizes `text`.
    pub fn new(text: &str) -> Self {
        // Empty texts share their memory, because a hostile host can send many of them in one line.
        if text.is_empty() {
            return Self::default();
        }
        if text.len() <= MAX_BYTES && text.bytes().all(|byte| (0x20..0x7F).contains(&byte)) {
            return Self(Arc::from(text));
        }
        Self(Arc::from(sanitize(text)))
    }

    /// Sanitizes bytes that should be UTF-8. Invalid sequences become `U+FFFD`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self::new(&String::from_utf8_lossy(bytes))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::ops::Deref for SafeText {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SafeText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, formatter)
    }
}

impl fmt::Display for SafeText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.0)
    }
}

impl From<&str> for SafeText {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for SafeText {
    fn from(text: String) -> Self {
        Self::new(&text)
    }
}

impl PartialEq<str> for SafeText {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other
    }
}

impl PartialEq<&str> for SafeText {
    fn eq(&self, other: &&str) -> bool {
        *self.0 == **other
    }
}

impl Serialize for SafeText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for SafeText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "SafeText".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string" })
    }
}

impl<'de> Deserialize<'de> for SafeText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = SafeText;
            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a string")
            }
            fn visit_str<E>(self, text: &str) -> Result<SafeText, E> {
                Ok(SafeText::new(text))
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

fn sanitize(text: &str) -> String {
    let mut sanitized = String::with_capacity(text.len().min(MAX_BYTES));
    let mut combining = 0;
    for character in text.chars() {
        let visible = visible_form(character);
        if is_combining(visible) {
            combining += 1;
            if combining > MAX_COMBINING_MARKS || sanitized.is_empty() {
                continue;
            }
        } else {
            combining = 0;
        }
        if sanitized.len() + visible.len_utf8() > MAX_BYTES - '…'.len_utf8() {
            sanitized.push('…');
            break;
        }
        sanitized.push(visible);
    }
    sanitized
}

/// Whether a terminal draws this character over the one before it.
#[cfg(feature = "controller")]
fn is_combining(character: char) -> bool {
    unicode_width::UnicodeWidthChar::width(character) == Some(0)
}

/// The probe leaves combining marks to the controller, which sanitizes what it receives: the table of widths takes 7 kB. Started by
/// hand, it prints only what its own host tells.
#[cfg(not(feature = "controller"))]
fn is_combining(_: char) -> bool {
    false
}

/// Whether a terminal shows this character and does not interpret it.
pub fn is_safe(character: char) -> bool {
    visible_form(character) == character
}

fn visible_form(character: char) -> char {
    match character {
        ' '..='~' => character,
        '\0'..='\u{1F}' => char::from_u32(0x2400 + character as u32).unwrap_or(REPLACEMENT),
        '\u{7F}' => '\u{2421}',
        _ if is_unsafe(character) => REPLACEMENT,
        _ => character,
    }
}

/// Categories Cc, Cf, Zl, Zp, Co and Cs of Unicode 17, and invisible code points of other categories (Hangul fillers,
/// variation selectors).
fn is_unsafe(character: char) -> bool {
    matches!(character as u32,
        0x7F..=0x9F
        | 0xAD
        | 0x34F
        | 0x600..=0x605
        | 0x61C
        | 0x6DD
        | 0x70F
        | 0x890..=0x891
        | 0x8E2
        | 0x115F..=0x1160
        | 0x17B4..=0x17B5
        | 0x180B..=0x180F
        | 0x200B..=0x200F
        | 0x2028..=0x202E
        | 0x2060..=0x206F
        | 0x3164
        | 0xE000..=0xF8FF
        | 0xFE00..=0xFE0F
        | 0xFEFF
        | 0xFFA0
        | 0xFFF0..=0xFFFB
        | 0x110BD
        | 0x110CD
        | 0x13430..=0x1343F
        | 0x1BCA0..=0x1BCA3
        | 0x1D173..=0x1D17A
        | 0xE0000..=0xE0FFF
        | 0xF0000..=0x10_FFFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_unchanged() {
        for text in ["", "python train.py", "größe 大きい ✓", "e\u{301}a\u{308}\u{323}"] {
            assert_eq!(SafeText::new(text), text);
        }
    }

    #[test]
    fn control_and_invisible_characters_are_replaced() {
        assert_eq!(SafeText::new("\x1b[2J\n"), "␛[2J␊");
        assert_eq!(SafeText::new("\u{9b}31m"), "\u{FFFD}31m");
        assert_eq!(SafeText::new("a\u{202E}b\u{2066}c\u{200B}d\u{E0041}e\u{FEFF}f\u{2028}g"), {
            "a\u{FFFD}b\u{FFFD}c\u{FFFD}d\u{FFFD}e\u{FFFD}f\u{FFFD}g"
        });
    }

    #[test]
    fn empty_texts_share_their_memory() {
        assert!(Arc::ptr_eq(&SafeText::new("").0, &SafeText::default().0));
    }

    #[cfg(feature = "controller")]
    #[test]
    fn at_most_two_combining_marks_follow_a_character() {
        assert_eq!(SafeText::new("\u{301}x\u{301}\u{302}\u{303}\u{304}y"), "x\u{301}\u{302}y");
    }

    #[test]
    fn long_text_is_truncated_at_a_character_boundary() {
        let text = SafeText::new(&"ä".repeat(5000));
        assert!(text.len() <= MAX_BYTES);
        assert!(text.ends_with("ä…"));
    }

    #[test]
    fn deserialized_text_is_sanitized() {
        let text: SafeText = serde_json::from_str(r#""\u001b]0;owned\u0007""#).expect("decodes");
        assert_eq!(text, "␛]0;owned␇");
        assert_eq!(SafeText::from_bytes(b"a\xffb"), "a\u{FFFD}b");
    }

    #[test]
    fn no_unicode_control_character_passes() {
        for character in (0..=0x10_FFFF).filter_map(char::from_u32) {
            let text = SafeText::new(&format!("x{character}"));
            assert!(!text.chars().any(char::is_control), "{:x}", character as u32);
        }
    }
}
