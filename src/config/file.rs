//! The whole of hosts.toml: from its text to its hosts.

use super::diagnostic::{FileDiagnostics, line_and_column};
use super::notifications::Notifications;
use super::prices::Prices;
use super::section::{FileScope, KEYS, Section, signals};
use super::targets::{bracketed_ipv6, check_host, check_visible, is_ipv6};
use super::thresholds::ThresholdChanges;
use super::values::{ParseContext, SpannedValue, kind, mismatch, unknown_key};
use super::{Diagnostic, HostConfig, SignalRule, nodeset};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The maximum size of hosts.toml, in bytes.
pub const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// The hosts of one file, in file order.
#[derive(Debug, Clone, PartialEq)]
pub struct HostsFile {
    /// The path of the file, for messages.
    pub path: String,
    /// The hosts; never empty.
    pub entries: Vec<HostEntry>,
    /// The `[notifications]` table, if the file has one.
    pub notifications: Option<Notifications>,
    /// The `[cost]` table.
    pub prices: Prices,
}

/// One host and its position in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct HostEntry {
    /// The configuration of the host.
    pub config: HostConfig,
    /// The position of its name.
    pub location: SourceLocation,
}

/// A position in a file. `Display` writes `path:line:column`, as compilers do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLocation {
    /// The path of the file.
    pub path: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}:{}", crate::wire::SafeText::new(&self.path), self.line, self.column)
    }
}

impl HostsFile {
    /// Parses `text`, the content of the file `path`. `~` stands for `home`; relative paths begin at the directory of
    /// the file.
    ///
    /// # Errors
    /// All mistakes of the file at once.
    pub fn parse(path: &str, text: &str, home: Option<&Path>) -> Result<Self, FileDiagnostics> {
        let failure = |diagnostics| FileDiagnostics::new(path, text, diagnostics);
        let (document, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            // A syntax error makes everything after it unreliable, so only syntax errors are reported.
            return Err(failure(errors.iter().map(syntax_error).collect()));
        }
        let base = Path::new(path).parent().unwrap_or(Path::new(""));
        let mut diagnostics = Vec::new();
        let (hosts, notifications, prices) =
            read_document(document.get_ref(), &ParseContext { text, base, home }, &mut diagnostics);
        if hosts.is_empty() && diagnostics.is_empty() {
            let hint = "add a section: [[hosts]] with name = \"hgx-01\"";
            diagnostics.push(Diagnostic::at(text.len()..text.len(), "the file has no hosts", hint));
        }
        if !diagnostics.is_empty() {
            return Err(failure(diagnostics));
        }
        let entries = hosts.into_iter().map(|(config, at)| {
            let (line, column) = line_and_column(text, at.start);
            HostEntry { config, location: SourceLocation { path: path.to_owned(), line, column } }
        });
        Ok(Self { path: path.to_owned(), entries: entries.collect(), notifications, prices })
    }
}

fn syntax_error(error: &toml::de::Error) -> Diagnostic {
    Diagnostic::without_hint(error.span().unwrap_or(0..0), error.message())
}

type SpannedHost = (HostConfig, Range<usize>);

fn read_document(
    document: &DeTable<'_>,
    context: &ParseContext<'_>,
    diagnostics: &mut Vec<Diagnostic>,
) -> (Vec<SpannedHost>, Option<Notifications>, Prices) {
    let mut notifications = None;
    let mut prices = Prices::default();
    let mut file_scope = FileScope::default();
    let mut sections = Vec::new();
    for (key, value) in document {
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("defaults", DeValue::Table(table)) => file_scope.defaults = read_defaults(table, context, diagnostics),
            ("hosts", DeValue::Array(array)) => sections = read_sections(array.iter(), context, diagnostics),
            ("diagnosis", DeValue::Table(table)) => {
                file_scope.diagnosis = ThresholdChanges::read(table, true, diagnostics);
            }
            ("tag", DeValue::Table(table)) => file_scope.signals = read_tags(table, diagnostics),
            ("tag", _) => diagnostics.push(wrong_kind(key, value, "a table", "[tag.NAME]")),
            ("notifications", DeValue::Table(table)) => {
                notifications = Some(Notifications::read(table, context, diagnostics));
            }
            ("cost", DeValue::Table(table)) => prices = Prices::read(table, diagnostics),
            ("cost", _) => diagnostics.push(wrong_kind(key, value, "a table", "[cost]")),
            ("notifications", _) => diagnostics.push(wrong_kind(key, value, "a table", "[notifications]")),
            ("diagnosis", _) => diagnostics.push(wrong_kind(key, value, "a table", "[diagnosis]")),
            ("defaults", _) => diagnostics.push(wrong_kind(key, value, "a table", "[defaults]")),
            ("hosts", _) => diagnostics.push(wrong_kind(key, value, "an array of tables", "[[hosts]]")),
            (unknown, _) => diagnostics.push(unknown_at_top(unknown, key.span())),
        }
    }
    let hosts: Vec<SpannedHost> = sections
        .iter()
        .flat_map(|section| {
            hosts_of(section, &file_scope).unwrap_or_else(|diagnostic| {
                diagnostics.push(diagnostic);
                Vec::new()
            })
        })
        .collect();
    if hosts.len() > nodeset::MAX_HOSTS {
        let message = format!("{} hosts in one file; the limit is {}", hosts.len(), nodeset::MAX_HOSTS);
        diagnostics.push(Diagnostic::at(hosts[nodeset::MAX_HOSTS].1.clone(), message, "split it into several files"));
    }
    diagnostics.extend(duplicates(&hosts));
    (hosts, notifications, prices)
}

fn wrong_kind(key: &Spanned<impl AsRef<str>>, value: &Spanned<DeValue<'_>>, wanted: &str, header: &str) -> Diagnostic {
    let message = format!("`{}` must be {wanted}, not {}", key.get_ref().as_ref(), kind(value.get_ref()));
    Diagnostic::at(key.span(), message, format!("write the header {header}"))
}

fn unknown_at_top(key: &str, at: Range<usize>) -> Diagnostic {
    if KEYS.contains(&key) {
        let hint = "put it under [defaults] or [[hosts]]";
        return Diagnostic::at(at, format!("`{key}` is outside of any section"), hint);
    }
    if super::notifications::KEYS.contains(&key) {
        return Diagnostic::at(at, format!("`{key}` is outside of any section"), "put it under [notifications]");
    }
    if super::prices::KEYS.contains(&key) {
        return Diagnostic::at(at, format!("`{key}` is outside of any section"), "put it under [cost]");
    }
    // `hosts` first, because `cost` is as near to `host`.
    unknown_key(key, at, ["hosts", "cost", "defaults", "diagnosis", "notifications", "tag"])
}

fn read_defaults(table: &DeTable<'_>, context: &ParseContext<'_>, diagnostics: &mut Vec<Diagnostic>) -> Section {
    let mut defaults = Section::read(table, context, diagnostics);
    if let Some(name) = defaults.name.take() {
        diagnostics.push(Diagnostic::at(name.at, "`name` cannot have a default", "set names under [[hosts]]"));
    }
    if let Some(address) = defaults.address.take_if(|address| !address.value.contains(NAME_MARK)) {
        let hint = "as in address = \"{name}.cluster.example\"";
        diagnostics.push(Diagnostic::at(address.at, "a default address must contain `{name}`", hint));
    }
    defaults
}

/// Reads `[tag.NAME]`: settings for all hosts with a tag.
fn read_tags(table: &DeTable<'_>, diagnostics: &mut Vec<Diagnostic>) -> Vec<(String, SignalRule)> {
    let mut rules = Vec::new();
    for (tag, value) in table {
        let DeValue::Table(table) = value.get_ref() else {
            diagnostics.push(wrong_kind(tag, value, "a table", "[tag.NAME]"));
            continue;
        };
        for (key, value) in table {
            if key.get_ref() != "signals" {
                diagnostics.push(unknown_key(key.get_ref(), key.span(), ["signals"]));
                continue;
            }
            let word = value.get_ref().as_str();
            let word = word.ok_or_else(|| mismatch("signals", "a string", value, "signals = \"none\""));
            match word.and_then(|word| signals(word, value.span())) {
                Ok(rule) => rules.push((tag.get_ref().to_string(), rule)),
                Err(diagnostic) => diagnostics.push(diagnostic),
            }
        }
    }
    rules
}

fn read_sections<'a>(
    array: impl Iterator<Item = &'a Spanned<DeValue<'a>>>,
    context: &ParseContext<'_>,
    diagnostics: &mut Vec<Diagnostic>,
) -> Vec<Section> {
    let mut sections = Vec::new();
    for item in array {
        let DeValue::Table(table) = item.get_ref() else {
            let message = format!("a host must be a table, not {}", kind(item.get_ref()));
            diagnostics.push(Diagnostic::at(
                item.span(),
                message,
                "write the header [[hosts]] and name = \"...\" below it",
            ));
            continue;
        };
        let section = Section::read(table, context, diagnostics);
        if section.name.is_some() {
            sections.push(section);
        } else if !table.contains_key("name") {
            diagnostics.push(Diagnostic::at(item.span(), "a host without `name`", "add name = \"hgx-01\""));
        }
    }
    sections
}

/// The placeholder for the host's name in an address.
const NAME_MARK: &str = "{name}";

/// Returns the hosts of one section.
fn hosts_of(section: &Section, file_scope: &FileScope) -> Result<Vec<SpannedHost>, Diagnostic> {
    let Some(name) = &section.name else { return Ok(Vec::new()) };
    let names = nodeset::expand(&name.value).map_err(|diagnostic| name.relocate(diagnostic))?;
    let addresses = if let Some(address) = section.address.as_ref().or(file_scope.defaults.address.as_ref()) {
        addresses(address, &names)?.into_iter().map(Some).collect()
    } else {
        for host in &names {
            check_host(host, name.at.clone())?;
        }
        vec![None; names.len()]
    };
    let hosts = names.iter().zip(addresses);
    hosts
        .map(|(host, address)| {
            check_shown_name(host, name)?;
            Ok((section.host(file_scope, host, address), name.at.clone()))
        })
        .collect()
}

/// Checks a host name that is only displayed, because the host has an address. It must still be one word, so that a
/// target can select it.
fn check_shown_name(host: &str, name: &SpannedValue<String>) -> Result<(), Diagnostic> {
    check_visible(host, &name.at)?;
    let is_bad = |character: char| character.is_whitespace() || character == '@';
    match host.chars().find(|&character| is_bad(character)) {
        Some(character) => {
            let message = format!("{character:?} cannot be in a host name");
            Err(Diagnostic::at(name.at.clone(), message, "use `note` for remarks"))
        }
        None => Ok(()),
    }
}

fn addresses(address: &SpannedValue<String>, names: &[String]) -> Result<Vec<String>, Diagnostic> {
    let text = &address.value;
    let list = if text.contains(NAME_MARK) {
        names.iter().map(|name| text.replace(NAME_MARK, name)).collect()
    } else if let Some(inside) = bracketed_ipv6(text) {
        vec![inside.to_owned()]
    } else if is_ipv6(text) {
        vec![text.clone()]
    } else {
        nodeset::expand(text).map_err(|diagnostic| address.relocate(diagnostic))?
    };
    for address_text in &list {
        check_host(address_text, address.at.clone())?;
    }
    if list.len() == names.len() {
        return Ok(list);
    }
    let message = if nodeset::is_pattern(text) {
        format!("{} addresses for {}", list.len(), host_count_text(names.len()))
    } else {
        format!("one address for {}", host_count_text(names.len()))
    };
    let hint = "write as many addresses as names, as in \"10.0.0.[11-14]\", or a pattern, as in \"{name}.cluster\"";
    Err(Diagnostic::at(address.at.clone(), message, hint))
}

fn host_count_text(count: usize) -> String {
    if count == 1 { "one host".to_owned() } else { format!("{count} hosts") }
}

/// Returns one diagnostic for each pair of sections with the same host.
fn duplicates(hosts: &[SpannedHost]) -> Vec<Diagnostic> {
    let mut first: HashMap<&str, &Range<usize>> = HashMap::new();
    let mut diagnostics: Vec<Diagnostic> = Vec::new();
    for (config, at) in hosts {
        match first.get(config.name.as_str()) {
            None => {
                first.insert(&config.name, at);
            }
            Some(_) if diagnostics.last().is_some_and(|last| last.at == *at) => {}
            Some(&earlier) => {
                let message = format!("the host `{}` is named twice", config.name);
                let mut diagnostic = Diagnostic::at(at.clone(), message, "a host has one [[hosts]] section");
                diagnostic.related = Some((earlier.clone(), "named first".to_owned()));
                diagnostics.push(diagnostic);
            }
        }
    }
    diagnostics
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
