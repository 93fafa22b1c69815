//! Diagnostics of text files: a message, its byte range, and a display with the source line and a caret.

use crate::wire::SafeText;
use std::fmt;
use std::ops::Range;
use strsim::osa_distance;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// At most this many diagnostics are shown for one file.
const MAX_SHOWN: usize = 20;

/// The width of the source line in a diagnostic, in columns.
const MAX_LINE_COLUMNS: usize = 100;

/// An error at one place of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The byte range in the text.
    pub at: Range<usize>,
    /// The message, without a full stop.
    pub message: String,
    /// Another range of the text that belongs to the error, with its label.
    pub related: Option<(Range<usize>, String)>,
    /// How to correct the error.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// Creates a diagnostic with a hint.
    pub fn at(at: Range<usize>, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { at, message: message.into(), related: None, hint: Some(hint.into()) }
    }

    /// Creates a diagnostic without a hint.
    pub fn without_hint(at: Range<usize>, message: impl Into<String>) -> Self {
        Self { at, message: message.into(), related: None, hint: None }
    }

    /// Moves the range by `offset` bytes, for a text that is part of a larger one.
    #[must_use]
    pub fn offset_by(mut self, offset: usize) -> Self {
        self.at = self.at.start + offset..self.at.end + offset;
        self
    }
}

/// All diagnostics of one file. `Display` shows each one with its source line and a caret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDiagnostics {
    path: SafeText,
    text: String,
    diagnostics: Vec<Diagnostic>,
}

impl FileDiagnostics {
    /// Sorts the diagnostics of the file `path`, whose content is `text`, by their position.
    pub fn new(path: &str, text: &str, mut diagnostics: Vec<Diagnostic>) -> Self {
        diagnostics.sort_by_key(|diagnostic| diagnostic.at.start);
        Self { path: SafeText::new(path), text: text.to_owned(), diagnostics }
    }

    fn show(&self, diagnostic: &Diagnostic, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (line, column) = line_and_column(&self.text, diagnostic.at.start);
        let gutter = line.to_string().len() + 2;
        let (source, caret) = snippet(&self.text, &diagnostic.at);
        writeln!(formatter, "{}:{line}:{column}: {}", self.path, SafeText::new(&diagnostic.message))?;
        writeln!(formatter, "{}", format!("{line:>gutter$} | {source}").trim_end())?;
        writeln!(formatter, "{:gutter$} | {caret}", "")?;
        if let Some((at, what)) = &diagnostic.related {
            let (line, column) = line_and_column(&self.text, at.start);
            writeln!(formatter, "{:gutter$} = {} at {}:{line}:{column}", "", SafeText::new(what), self.path)?;
        }
        match &diagnostic.hint {
            Some(hint) => writeln!(formatter, "{:gutter$} = hint: {}", "", SafeText::new(hint)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for FileDiagnostics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for diagnostic in self.diagnostics.iter().take(MAX_SHOWN) {
            self.show(diagnostic, formatter)?;
        }
        match self.diagnostics.len() {
            0 | 1 => Ok(()),
            count if count > MAX_SHOWN => writeln!(formatter, "{count} errors in {}, {MAX_SHOWN} shown", self.path),
            count => writeln!(formatter, "{count} errors in {}", self.path),
        }
    }
}

impl std::error::Error for FileDiagnostics {}

/// Returns line and column of a byte offset, both from 1. The column counts characters, as editors do.
pub(super) fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at.min(text.len())).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
}

/// Returns the line in which `at` begins, shortened around it, and the carets for the line below.
pub(super) fn snippet(text: &str, at: &Range<usize>) -> (String, String) {
    let begin = at.start.min(text.len());
    let start = text[..begin].rfind('\n').map_or(0, |newline| newline + 1);
    let line = text[start..].split('\n').next().unwrap_or("").trim_end_matches('\r');
    let (head, rest) = line.split_at_checked(begin - start).unwrap_or((line, ""));
    let (marked, tail) = rest.split_at_checked(at.end.saturating_sub(begin).min(rest.len())).unwrap_or((rest, ""));

    let (head, cut) = last_characters(head, MAX_LINE_COLUMNS / 2);
    let head = if cut { format!("...{}", SafeText::new(head)) } else { SafeText::new(head).to_string() };
    let marked = SafeText::new(first_characters(marked, MAX_LINE_COLUMNS));
    let tail = SafeText::new(first_characters(tail, MAX_LINE_COLUMNS));
    let room = MAX_LINE_COLUMNS.saturating_sub(head.width());
    let carets = marked.width().clamp(1, room.max(1));
    (format!("{head}{}", keep_start(&format!("{marked}{tail}"), room)), " ".repeat(head.width()) + &"^".repeat(carets))
}

fn keep_start(text: &str, columns: usize) -> String {
    let mut used = 0;
    let kept = text.chars().take_while(|character| {
        used += character.width().unwrap_or(0);
        used <= columns
    });
    kept.collect()
}

fn first_characters(text: &str, count: usize) -> &str {
    text.char_indices().nth(count).map_or(text, |(at, _)| &text[..at])
}

fn last_characters(text: &str, count: usize) -> (&str, bool) {
    match text.char_indices().rev().nth(count) {
        Some((at, character)) => (&text[at + character.len_utf8()..], true),
        None => (text, false),
    }
}

/// Returns the candidate nearest to `word` if at most a third of its letters differ. Case is ignored. Of equal
/// candidates the first one wins.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > 64 {
        return None;
    }
    let word = word.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (osa_distance(&word, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.chars().count().max(word.chars().count()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns the hint ``did you mean `candidate`?`` for the nearest candidate.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    nearest(word, candidates).map(|near| format!("did you mean `{near}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, diagnostic: Diagnostic) -> String {
        FileDiagnostics::new("hosts.toml", text, vec![diagnostic]).to_string()
    }

    #[test]
    fn a_diagnostic_shows_its_source_line() {
        let text = "[[hosts]]\nname = \"größe\"\tadress = 1\n";
        let at = text.find("adress").expect("there");
        assert_eq!(
            shown(text, Diagnostic::at(at..at + 6, "unknown key `adress`", "did you mean `address`?")),
            "hosts.toml:2:16: unknown key `adress`\n\
             \x20 2 | name = \"größe\"␉adress = 1\n\
             \x20   |                ^^^^^^\n\
             \x20   = hint: did you mean `address`?\n"
        );
    }

    #[test]
    fn carets_are_right_at_the_end_of_a_file_and_after_wide_characters() {
        assert_eq!(
            shown("a", Diagnostic::without_hint(1..1, "ends too soon")),
            "hosts.toml:1:2: ends too soon\n  1 | a\n    |  ^\n"
        );
        assert_eq!(shown("", Diagnostic::without_hint(0..0, "empty")), "hosts.toml:1:1: empty\n  1 |\n    | ^\n");
        assert_eq!(shown("大x", Diagnostic::without_hint(3..4, "x")), "hosts.toml:1:2: x\n  1 | 大x\n    |   ^\n");
    }

    #[test]
    fn long_lines_are_shortened_around_the_error() {
        let text = format!("{}HERE{}", "a".repeat(5000), "b".repeat(5000));
        let output = shown(&text, Diagnostic::without_hint(5000..5004, "long"));
        let lines: Vec<&str> = output.lines().collect();
        assert!(lines.iter().all(|line| line.len() <= 110), "{output}");
        assert_eq!(lines[1].find("HERE"), lines[2].find("^^^^"));
    }

    #[test]
    fn control_characters_are_not_printed() {
        let output = shown("x = \"\x1b[2J\"", Diagnostic::without_hint(0..1, "unknown key"));
        assert!(!output.contains('\x1b'), "{output}");
    }

    #[test]
    fn at_most_twenty_diagnostics_are_shown() {
        let diagnostics = (0..30).rev().map(|at| Diagnostic::without_hint(at..at, format!("number {at}"))).collect();
        let output = FileDiagnostics::new("hosts.toml", &"x".repeat(30), diagnostics).to_string();
        assert!(output.starts_with("hosts.toml:1:1: number 0\n"), "{output}");
        assert!(output.ends_with("30 errors in hosts.toml, 20 shown\n"), "{output}");
    }

    #[test]
    fn nearest_ignores_distant_candidates() {
        let keys = ["address", "port", "identity_file"];
        assert_eq!(nearest("adress", keys), Some("address"));
        assert_eq!(nearest("prot", keys), Some("port"), "a swap is one edit");
        assert_eq!(nearest("PORT", keys), Some("port"));
        assert_eq!(nearest("identityfile", keys), Some("identity_file"));
        assert_eq!(nearest("frobnicate", keys), None);
        assert_eq!(nearest(&"x".repeat(10_000), keys), None);
    }
}
