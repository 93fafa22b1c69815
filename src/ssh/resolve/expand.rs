//! Expansion of `~` and of the %-tokens that `ssh -G` leaves standing.

use std::path::{Path, PathBuf};

/// What the tokens stand for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tokens<'a> {
    pub(super) home: Option<&'a Path>,
    /// The name as given on the command line (`%n`).
    pub(super) name: &'a str,
    /// `%h`
    pub(super) hostname: &'a str,
    /// `%p`
    pub(super) port: u16,
    /// `%r`
    pub(super) user: &'a str,
}

impl Tokens<'_> {
    /// Replaces the tokens; one that is not known stays as it is, so that the file is missing rather than another.
    pub(super) fn text(&self, text: &str) -> String {
        let mut expanded = String::with_capacity(text.len());
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                expanded.push(character);
                continue;
            }
            match characters.next() {
                Some('h') => expanded.push_str(self.hostname),
                Some('n' | 'k') => expanded.push_str(self.name),
                Some('p') => expanded.push_str(&self.port.to_string()),
                Some('r') => expanded.push_str(self.user),
                Some('d') => expanded.push_str(&self.home.unwrap_or(Path::new("~")).to_string_lossy()),
                Some('%') | None => expanded.push('%'),
                Some(other) => expanded.extend(['%', other]),
            }
        }
        expanded
    }

    /// A path with its tokens replaced and its leading `~/` made the home directory.
    pub(super) fn path(&self, text: &str) -> PathBuf {
        let text = self.text(text);
        match (text.strip_prefix("~/"), self.home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => PathBuf::from(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_home() {
        let home = PathBuf::from("/home/ann");
        let tokens = Tokens { home: Some(&home), name: "gpu", hostname: "gpu01.lab", port: 2222, user: "bob" };
        assert_eq!(tokens.text("%r@%h:%p %n 100%% %q %"), "bob@gpu01.lab:2222 gpu 100% %q %");
        assert_eq!(tokens.path("~/.ssh/id_%r"), PathBuf::from("/home/ann/.ssh/id_bob"));
        assert_eq!(tokens.path("%d/key"), PathBuf::from("/home/ann/key"));
        assert_eq!(tokens.path("/etc/~/x"), PathBuf::from("/etc/~/x"));
        assert_eq!(Tokens { home: None, ..tokens }.path("~/x"), PathBuf::from("~/x"));
    }
}
