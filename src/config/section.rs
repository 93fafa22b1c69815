//! One table of hosts.toml: `[defaults]` or a `[[hosts]]` section.

use super::targets::{check_user, parse_port};
use super::thresholds::{ThresholdChanges, role};
use super::values::{
    ParseContext, SpannedValue, boolean, mismatch, not_among, parse_indexes, parse_interval, parse_path, spanned, text,
    unknown_key,
};
use super::{
    Backend, Diagnostic, ExamineRule, Hop, HostConfig, ProbeChoice, RasRule, Sharing, SignalRule, Thresholds,
    parse_hops,
};
use crate::wire::SafeText;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The keys of a `[[hosts]]` section. `[defaults]` takes the same keys except `name`.
pub(super) const KEYS: [&str; 24] = [
    "name",
    "address",
    "port",
    "user",
    "identity_file",
    "known_hosts",
    "proxy_jump",
    "ssh_config",
    "backend",
    "probe",
    "allow_shm",
    "nvml_library",
    "interval",
    "tags",
    "group",
    "note",
    "reserved",
    "signals",
    "examine",
    "ras",
    "shared_account",
    "share",
    "role",
    "diagnosis",
];

/// The settings of a file that apply to all of its sections.
#[derive(Debug, Default)]
pub(super) struct FileScope {
    pub(super) defaults: Section,
    pub(super) diagnosis: ThresholdChanges,
    /// The signal rule of each tag.
    pub(super) signals: Vec<(String, SignalRule)>,
}

impl FileScope {
    /// Returns the strictest signal rule of a host's tags.
    fn signals_of(&self, tags: &[SafeText]) -> Option<SignalRule> {
        let own = self.signals.iter().filter(|(tag, _)| tags.iter().any(|own| **own == **tag));
        own.map(|(_, rule)| *rule).min_by_key(|rule| match rule {
            SignalRule::None => 0,
            SignalRule::Own => 1,
            SignalRule::All => 2,
        })
    }
}

/// The keys of one section; `None` for a key that is not set.
#[derive(Debug, Clone, Default)]
pub(super) struct Section {
    pub(super) name: Option<SpannedValue<String>>,
    pub(super) address: Option<SpannedValue<String>>,
    port: Option<u16>,
    user: Option<String>,
    identity_file: Option<PathBuf>,
    known_hosts: Option<PathBuf>,
    proxy_jump: Option<Vec<Hop>>,
    ssh_config: Option<PathBuf>,
    backend: Option<Backend>,
    probe: Option<ProbeChoice>,
    allow_shm: Option<bool>,
    nvml_library: Option<String>,
    interval: Option<Duration>,
    tags: Option<Vec<SafeText>>,
    group: Option<SafeText>,
    note: Option<SafeText>,
    reserved: Option<Vec<u32>>,
    signals: Option<SignalRule>,
    examine: Option<ExamineRule>,
    ras: Option<RasRule>,
    shared_account: Option<bool>,
    sharing: Option<Sharing>,
    is_serving: Option<bool>,
    diagnosis: Option<ThresholdChanges>,
}

impl Section {
    /// Reads every key. Errors go to `diagnostics`; valid keys are kept.
    pub(super) fn read(table: &DeTable<'_>, context: &ParseContext<'_>, diagnostics: &mut Vec<Diagnostic>) -> Self {
        let mut section = Self::default();
        for (key, value) in table {
            if key.get_ref() == "diagnosis" {
                section.read_diagnosis(value, diagnostics);
            } else if let Err(diagnostic) = section.read_key(key, value, context) {
                diagnostics.push(diagnostic);
            }
        }
        section
    }

    fn read_key(
        &mut self,
        key: &Spanned<impl AsRef<str>>,
        value: &Spanned<DeValue<'_>>,
        context: &ParseContext<'_>,
    ) -> Result<(), Diagnostic> {
        let at = value.span();
        let path = |key| parse_path(text(key, value)?, value.span(), context.base, context.home);
        match key.get_ref().as_ref() {
            "name" => self.name = Some(spanned("name", value, context.text)?),
            "address" => self.address = Some(spanned("address", value, context.text)?),
            "port" => self.port = Some(port(value)?),
            "user" => {
                let user = text("user", value)?;
                check_user(user, at)?;
                self.user = Some(user.to_owned());
            }
            "identity_file" => self.identity_file = Some(path("identity_file")?),
            "known_hosts" => self.known_hosts = Some(path("known_hosts")?),
            "proxy_jump" => self.proxy_jump = Some(parse_hops(text("proxy_jump", value)?, at)?),
            "ssh_config" => self.ssh_config = Some(path("ssh_config")?),
            "backend" => self.backend = Some(backend(text("backend", value)?, at)?),
            "probe" => self.probe = Some(probe(text("probe", value)?, at)?),
            "allow_shm" => self.allow_shm = Some(boolean("allow_shm", value)?),
            "nvml_library" => self.nvml_library = Some(remote_path(text("nvml_library", value)?, at)?),
            "interval" => self.interval = Some(interval(value)?),
            "tags" => self.tags = Some(tags(value)?),
            "group" => self.group = Some(SafeText::new(text("group", value)?)),
            "note" => self.note = Some(SafeText::new(text("note", value)?)),
            "reserved" => self.reserved = Some(parse_indexes(text("reserved", value)?, at)?),
            "signals" => self.signals = Some(signals(text("signals", value)?, at)?),
            "examine" => self.examine = Some(examine(text("examine", value)?, at)?),
            "ras" => self.ras = Some(ras(text("ras", value)?, at)?),
            "shared_account" => self.shared_account = Some(boolean("shared_account", value)?),
            "share" => self.sharing = Some(sharing(text("share", value)?, at)?),
            "role" => self.is_serving = Some(role(value)?),
            unknown => return Err(unknown_key(unknown, key.span(), KEYS)),
        }
        Ok(())
    }

    fn read_diagnosis(&mut self, value: &Spanned<DeValue<'_>>, diagnostics: &mut Vec<Diagnostic>) {
        match value.get_ref() {
            DeValue::Table(table) => self.diagnosis = Some(ThresholdChanges::read(table, false, diagnostics)),
            _ => diagnostics.push(mismatch("diagnosis", "a table", value, "diagnosis = { off = [\"idle-hog\"] }")),
        }
    }

    /// Returns the configuration of one host of this section, with missing keys filled in from the file. The caller
    /// gives name and address, because one section can stand for several hosts.
    pub(super) fn host(&self, file_scope: &FileScope, name: &str, address: Option<String>) -> HostConfig {
        let (defaults, all) = (&file_scope.defaults, &file_scope.diagnosis);
        let built_in = HostConfig::named(name);
        let tags = self.tags.clone().or_else(|| defaults.tags.clone()).unwrap_or_default();
        let thresholds = self.thresholds(defaults, all, &tags);
        let host_tags = tags.clone();
        HostConfig {
            name: built_in.name,
            address,
            port: self.port.or(defaults.port),
            user: self.user.clone().or_else(|| defaults.user.clone()),
            identity_file: self.identity_file.clone().or_else(|| defaults.identity_file.clone()),
            known_hosts: self.known_hosts.clone().or_else(|| defaults.known_hosts.clone()),
            proxy_jump: self.proxy_jump.clone().or_else(|| defaults.proxy_jump.clone()),
            ssh_config: self.ssh_config.clone().or_else(|| defaults.ssh_config.clone()),
            backend: self.backend.or(defaults.backend).unwrap_or_default(),
            probe: self.probe.clone().or_else(|| defaults.probe.clone()).unwrap_or_default(),
            allow_shm: self.allow_shm.or(defaults.allow_shm).unwrap_or(built_in.allow_shm),
            nvml_library: self.nvml_library.clone().or_else(|| defaults.nvml_library.clone()),
            interval: self.interval.or(defaults.interval).unwrap_or(built_in.interval),
            tags,
            group: self.group.clone().or_else(|| defaults.group.clone()),
            note: self.note.clone().or_else(|| defaults.note.clone()),
            reserved: self.reserved.clone().or_else(|| defaults.reserved.clone()).unwrap_or_default(),
            signals: self
                .signals
                .or_else(|| file_scope.signals_of(&host_tags))
                .or(defaults.signals)
                .unwrap_or(built_in.signals),
            examine: self.examine.or(defaults.examine).unwrap_or(built_in.examine),
            ras: self.ras.or(defaults.ras).unwrap_or(built_in.ras),
            shared_account: self.shared_account.or(defaults.shared_account).unwrap_or(built_in.shared_account),
            sharing: self.sharing.or(defaults.sharing).unwrap_or(built_in.sharing),
            thresholds,
            relayed_by: None,
            is_simulated: false,
        }
    }

    /// Applies the changes of the file, its tags, the defaults and this section to the built-in thresholds; `None`
    /// without any change.
    fn thresholds(&self, defaults: &Self, all: &ThresholdChanges, tags: &[SafeText]) -> Option<Arc<Thresholds>> {
        let is_serving = self.is_serving.or(defaults.is_serving);
        let own = [&defaults.diagnosis, &self.diagnosis];
        if all.is_empty() && is_serving.is_none() && own.iter().all(|changes| changes.is_none()) {
            return None;
        }
        let mut thresholds = Thresholds::default();
        all.apply(&mut thresholds, tags);
        for changes in own.into_iter().flatten() {
            changes.apply(&mut thresholds, tags);
        }
        thresholds.is_serving = is_serving.unwrap_or(thresholds.is_serving);
        Some(Arc::new(thresholds))
    }
}

fn port(value: &Spanned<DeValue<'_>>) -> Result<u16, Diagnostic> {
    match value.get_ref() {
        DeValue::Integer(number) if number.radix() == 10 => parse_port(&number.as_str().replace('_', ""), value.span()),
        DeValue::Integer(_) => Err(Diagnostic::at(value.span(), "a port is written in decimal", "as in port = 2222")),
        _ => Err(mismatch("port", "an integer", value, "port = 2222")),
    }
}

fn interval(value: &Spanned<DeValue<'_>>) -> Result<Duration, Diagnostic> {
    match value.get_ref() {
        DeValue::String(text) => parse_interval(text, value.span()),
        _ => Err(mismatch("interval", "a string with a unit", value, "interval = \"2s\"")),
    }
}

fn tags(value: &Spanned<DeValue<'_>>) -> Result<Vec<SafeText>, Diagnostic> {
    let example = "tags = [\"training\", \"h100\"]";
    let Some(array) = value.get_ref().as_array() else {
        return Err(mismatch("tags", "an array of strings", value, example));
    };
    let tag = |item: &Spanned<DeValue<'_>>| {
        let word = item.get_ref().as_str().ok_or_else(|| mismatch("tags", "an array of strings", item, example))?;
        if word.is_empty() || word.chars().any(char::is_whitespace) {
            return Err(Diagnostic::at(
                item.span(),
                format!("`{word}` is not one word"),
                "a tag is a single word for filters",
            ));
        }
        Ok(SafeText::new(word))
    };
    array.iter().map(tag).collect()
}

fn backend(word: &str, at: Range<usize>) -> Result<Backend, Diagnostic> {
    match word {
        "auto" => Ok(Backend::Auto),
        "native" => Ok(Backend::Native),
        "system" => Ok(Backend::System),
        "local" => Ok(Backend::Local),
        _ => Err(not_among("backend", word, at, &["auto", "native", "system", "local"])),
    }
}

pub(super) fn signals(word: &str, at: Range<usize>) -> Result<SignalRule, Diagnostic> {
    match word {
        "none" => Ok(SignalRule::None),
        "own" => Ok(SignalRule::Own),
        "all" => Ok(SignalRule::All),
        _ => Err(not_among("signals", word, at, &["none", "own", "all"])),
    }
}

fn examine(word: &str, at: Range<usize>) -> Result<ExamineRule, Diagnostic> {
    match word {
        "automatic" => Ok(ExamineRule::Automatic),
        "asked" => Ok(ExamineRule::Asked),
        _ => Err(not_among("examine", word, at, &["automatic", "asked"])),
    }
}

fn ras(word: &str, at: Range<usize>) -> Result<RasRule, Diagnostic> {
    RasRule::from_word(word).ok_or_else(|| not_among("ras", word, at, &["safe", "ask", "never"]))
}

fn sharing(word: &str, at: Range<usize>) -> Result<Sharing, Diagnostic> {
    match word {
        "none" => Ok(Sharing::None),
        "names" => Ok(Sharing::Names),
        "commands" => Ok(Sharing::Commands),
        _ => Err(not_among("share", word, at, &["none", "names", "commands"])),
    }
}

fn probe(word: &str, at: Range<usize>) -> Result<ProbeChoice, Diagnostic> {
    match word {
        "upload" => Ok(ProbeChoice::Upload),
        "nvidia-smi" => Ok(ProbeChoice::NvidiaSmi),
        path if path.starts_with('/') => Ok(ProbeChoice::Path(remote_path(path, at)?)),
        _ => Err(not_among("probe", word, at, &["upload", "nvidia-smi", "/path/on/the/host"])),
    }
}

/// Checks a path on the host. Shell quoting cannot protect a line break or a NUL.
fn remote_path(path: &str, at: Range<usize>) -> Result<String, Diagnostic> {
    if !path.starts_with('/') {
        return Err(Diagnostic::at(
            at,
            format!("`{path}` is not an absolute path"),
            "a path on the host begins with `/`",
        ));
    }
    if path.chars().any(char::is_control) {
        return Err(Diagnostic::at(at, "the path contains control characters", "write the path as `ls` shows it"));
    }
    Ok(path.to_owned())
}
