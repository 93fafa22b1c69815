//! The host names in an ssh configuration, which `ssh -G` cannot list.
//!
//! Only the names and their locations come from here; `ssh -G` resolves their settings.

use super::known_hosts::glob;
use crate::store::read_regular;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The maximum size of a configuration file.
const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// The depth to which ssh follows `Include`.
const MAX_DEPTH: u32 = 16;
/// The maximum number of included files.
const MAX_FILES: usize = 1000;

/// A name or pattern on a `Host` line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    /// The name or pattern.
    pub name: String,
    /// `HostName` in the same section.
    pub hostname: Option<String>,
    /// `User` in the same section.
    pub user: Option<String>,
    /// The file and the line number, counted from 1.
    pub location: (PathBuf, usize),
}

/// All names in an ssh configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Aliases {
    /// Names and patterns in the order of the files, without duplicates.
    pub hosts: Vec<Alias>,
    /// Names in `ProxyJump` options.
    pub jump_hosts: BTreeSet<String>,
}

impl Alias {
    /// Whether it is a pattern.
    pub fn is_pattern(&self) -> bool {
        self.name.contains(['*', '?', '!'])
    }
}

impl Aliases {
    /// Reads the file and its includes. Skips unreadable files: `ssh` reports them.
    pub fn read(config: &Path, home: Option<&Path>) -> Self {
        let mut reader = Reader { home, found: Self::default(), files: 0 };
        reader.file(config, 0);
        reader.found
    }

    /// The names that match a pattern, without patterns.
    pub fn matching<'a>(&'a self, pattern: &'a str) -> impl Iterator<Item = &'a str> {
        let names = self.hosts.iter().filter(|alias| !alias.is_pattern()).map(|alias| alias.name.as_str());
        names.filter(move |name| glob(pattern.to_ascii_lowercase().as_bytes(), name.to_ascii_lowercase().as_bytes()))
    }
}

struct Reader<'a> {
    home: Option<&'a Path>,
    found: Aliases,
    files: usize,
}

impl Reader<'_> {
    fn file(&mut self, path: &Path, depth: u32) {
        self.files += 1;
        if depth > MAX_DEPTH || self.files > MAX_FILES {
            return;
        }
        let Ok(text) = read_regular(path, MAX_BYTES) else { return };
        // The names of the current section, as a range of `found.hosts`.
        let mut section = 0..0;
        for (number, line) in String::from_utf8_lossy(&text).lines().enumerate() {
            let Some((keyword, values)) = split_line(line) else { continue };
            match keyword.to_ascii_lowercase().as_str() {
                "host" => {
                    let begin = self.found.hosts.len();
                    for name in values {
                        if !self.found.hosts.iter().any(|known| known.name == name) {
                            let location = (path.to_owned(), number + 1);
                            self.found.hosts.push(Alias { name, hostname: None, user: None, location });
                        }
                    }
                    section = begin..self.found.hosts.len();
                }
                "match" => section = 0..0,
                "hostname" => self.set(&section, &values, |alias| &mut alias.hostname),
                "user" => self.set(&section, &values, |alias| &mut alias.user),
                "proxyjump" => self.jumps(&values),
                "include" => values.iter().for_each(|pattern| self.include(pattern, path, depth)),
                _ => {}
            }
        }
    }

    /// Keeps the first value, as ssh does.
    fn set(
        &mut self,
        section: &std::ops::Range<usize>,
        values: &[String],
        field: impl Fn(&mut Alias) -> &mut Option<String>,
    ) {
        let Some(value) = values.first() else { return };
        for alias in self.found.hosts.get_mut(section.clone()).unwrap_or_default() {
            field(alias).get_or_insert_with(|| value.clone());
        }
    }

    fn jumps(&mut self, values: &[String]) {
        let text = values.join(" ");
        if let Ok(hops) = crate::config::parse_hops(&text, 0..text.len()) {
            self.found.jump_hosts.extend(hops.into_iter().map(|hop| hop.host));
        }
    }

    /// Reads the files that match a pattern. Relative patterns refer to `~/.ssh`.
    fn include(&mut self, pattern: &str, from: &Path, depth: u32) {
        let path = match (pattern.strip_prefix("~/"), self.home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ if pattern.starts_with('/') => PathBuf::from(pattern),
            (_, Some(home)) => home.join(".ssh").join(pattern),
            _ => from.parent().unwrap_or(Path::new("/")).join(pattern),
        };
        let mut paths = vec![PathBuf::new()];
        for part in &path {
            paths = paths.iter().flat_map(|path| matching_entries(path, part)).take(MAX_FILES).collect();
        }
        for path in paths.iter().filter(|path| path.is_file()) {
            self.file(path, depth + 1);
        }
    }
}

/// The entries of a directory that match one component of a path, sorted by name.
pub(in crate::ssh) fn matching_entries(directory: &Path, part: &std::ffi::OsStr) -> Vec<PathBuf> {
    let pattern = part.to_string_lossy();
    if !pattern.contains(['*', '?']) {
        return vec![directory.join(part)];
    }
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            !name.starts_with('.') && glob(pattern.as_bytes(), name.as_bytes())
        })
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths
}

/// Splits a line into its keyword and values. Blanks or one `=` separate them; values with blanks are quoted.
pub(in crate::ssh) fn split_line(line: &str) -> Option<(String, Vec<String>)> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let end = line.find(|character: char| character.is_whitespace() || character == '=').unwrap_or(line.len());
    let (keyword, rest) = line.split_at(end);
    let rest = rest.trim_start();
    let rest = rest.strip_prefix('=').unwrap_or(rest);
    let mut values = Vec::new();
    let (mut value, mut quoted, mut begun) = (String::new(), false, false);
    for character in rest.chars() {
        match character {
            '"' => {
                quoted = !quoted;
                begun = true;
            }
            '#' if !quoted && !begun => break,
            blank if blank.is_whitespace() && !quoted => {
                if begun {
                    values.push(std::mem::take(&mut value));
                }
                begun = false;
            }
            other => {
                value.push(other);
                begun = true;
            }
        }
    }
    if begun {
        values.push(value);
    }
    Some((keyword.to_owned(), values))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> (Aliases, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = match name.strip_prefix("~/") {
                Some(rest) => directory.path().join(rest),
                None => directory.path().join(".ssh").join(name),
            };
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        (Aliases::read(&directory.path().join(".ssh/config"), Some(directory.path())), directory)
    }

    fn names(aliases: &Aliases) -> Vec<&str> {
        aliases.hosts.iter().map(|alias| alias.name.as_str()).collect()
    }

    #[test]
    fn names_of_all_files_are_listed_in_order() {
        let (aliases, directory) = read(&[
            (
                "config",
                "# Host no\nHost gpu01 gpu02 # both\n HostName %h.lab\nInclude conf.d/*.conf ~/more missing\nhost=\"my gpu\"\n\
                 Match host gpu03\n HostName elsewhere\nHost * !db\n User me\nHost gpu01\n HostName late\n",
            ),
            ("conf.d/b.conf", "Host b\n ProxyJump bob@gate:22,inner\n"),
            ("conf.d/a.conf", "Host a\n\tUser = ann\n"),
            ("conf.d/c.txt", "Host no\n"),
            ("~/more", "Host m?re\nInclude ~/more\n"),
        ]);
        assert_eq!(names(&aliases), ["gpu01", "gpu02", "a", "b", "m?re", "my gpu", "*", "!db"]);
        assert_eq!(aliases.hosts[1].hostname.as_deref(), Some("%h.lab"));
        assert_eq!(aliases.hosts[2].user.as_deref(), Some("ann"));
        assert_eq!(aliases.hosts[0].location, (directory.path().join(".ssh/config"), 2));
        assert_eq!(aliases.jump_hosts.iter().collect::<Vec<_>>(), ["gate", "inner"]);
        assert!(aliases.hosts[4].is_pattern() && !aliases.hosts[0].is_pattern());
    }

    #[test]
    fn patterns_expand_to_names_and_never_to_patterns() {
        let (aliases, _directory) = read(&[("config", "Host gpu01 GPU02 gpu* db\n")]);
        assert_eq!(aliases.matching("gpu*").collect::<Vec<_>>(), ["gpu01", "GPU02"]);
        assert_eq!(aliases.matching("gpu0?").collect::<Vec<_>>(), ["gpu01", "GPU02"]);
        assert_eq!(aliases.matching("*x").count(), 0);
    }

    #[test]
    fn missing_files_and_include_cycles_are_skipped() {
        assert_eq!(Aliases::read(Path::new("/nonexistent"), None), Aliases::default());
        let (aliases, _directory) = read(&[("config", "Host a\nInclude config\nHost b\n")]);
        assert_eq!(names(&aliases), ["a", "b"]);
    }
}
