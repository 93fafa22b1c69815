//! The lines between the collector and a viewer: one JSON object each, with limits that hold while a line is decoded.
//!
//! ```text
//! viewer     {"viewer":{"protocol":1,"version":"0.1.0","follow":true}}
//!            {"viewer":{"protocol":1,"version":"0.1.0","follow":false,"facts":"owners"}}
//!            {"history":{"id":1,"host":"hgx-01","span_seconds":86400,"step_seconds":900}}
//! collector  {"collector":{"protocol":1,"version":"0.1.0","host_name":"lab-head",...}}
//!            {"hosts":{"first":0,"list":[{"name":"hgx-01","digest":"9f2c..."}]}}
//!            {"host":{"name":"hgx-01","wire":{"hello":{...}}}}
//!            {"host":{"name":"hgx-01","age_seconds":0.8,"wire":{"snapshot":{...}}}}
//!            {"host":{"name":"hgx-02","link":{"down":{"error":{...},"retry_in_seconds":12.0,"attempt":4}}}}
//!            "complete"
//!            {"host":{"name":"hgx-01","wire":{"snapshot":{...}}}}
//!            {"history":{"id":1,"history":{"step_seconds":900,"age_seconds":86512.0,"gpus":[...]}}}
//!            "alive"
//! ```

use crate::config::{HostConfig, PARAMETERS, RULES, RasRule, Thresholds};
use crate::diagnosis::{Confidence, FindingPhase, Severity};
use crate::fleet::recording::RecordedError;
use crate::fleet::{HistoryQuery, HistoryReply, JobKey, ProcessKey, StoredHistory};
use crate::wire::codec::{self, CodecError};
use crate::wire::limits::{self, MAX_GPUS};
use crate::wire::{Message, ProcessFacts, SafeText};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::sync::Arc;

/// The version of the protocol between collector and viewer. It rises when a line is removed or changes its meaning, not
/// when a line or a field is added.
pub const SHARE_PROTOCOL: u32 = 1;
/// The maximum length of a line without its newline: a message of a probe with its envelope, written again.
pub const MAX_FRAME_BYTES: usize = 2 << 20;
/// The maximum number of hosts in one line.
pub(super) const HOSTS_PER_LINE: usize = 200;
/// The maximum number of findings in one line.
pub(super) const FINDINGS_PER_LINE: usize = 50;
/// The maximum number of rules, and of reasons why something was not judged.
const MAX_RULES: usize = 256;
/// The maximum number of hosts of a collector.
pub(super) const MAX_HOSTS: usize = 10_000;
/// The maximum number of findings that a collector sends.
pub(super) const MAX_FINDINGS: usize = 5000;

/// The first line of a viewer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewerHello {
    /// [`SHARE_PROTOCOL`] of the viewer.
    pub protocol: u32,
    /// Version of the viewer's package.
    pub version: SafeText,
    /// Send updates after the picture. Without it, the collector sends the picture with its findings and closes.
    #[serde(default)]
    pub follow: bool,
    /// The parts of the picture to send without `follow`. Earlier collectors ignore it and send all of them.
    #[serde(flatten)]
    pub needed: Needed,
}

/// The parts of a picture that a viewer needs which reads one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needed {
    /// The facts and readings of processes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub facts: NeededFacts,
    /// The findings.
    #[serde(default, skip_serializing_if = "is_default")]
    pub findings: NeededFindings,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The findings that a viewer needs. With their processes and GPUs they are half of a picture without facts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NeededFindings {
    /// No findings.
    Nothing,
    /// Their sentences and subjects, but neither processes nor verdicts.
    Sentences,
    /// All of each finding. A word that this version does not know means the same.
    #[default]
    #[serde(other)]
    All,
}

/// The facts of processes that a viewer needs. They are two thirds of a picture, mostly command lines of ancestors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NeededFacts {
    /// No facts.
    Nothing,
    /// Only the user of each process.
    Owners,
    /// All facts. A word that this version does not know means the same.
    #[default]
    #[serde(other)]
    All,
}

impl NeededFacts {
    /// The needed part of the facts of a process; `None` if nothing is needed.
    pub(super) fn of(self, facts: &ProcessFacts) -> Option<ProcessFacts> {
        match self {
            Self::Nothing => None,
            Self::Owners => Some(ProcessFacts {
                pid: facts.pid,
                start_ticks: facts.start_ticks,
                uid: facts.uid,
                user: facts.user.clone(),
                ..ProcessFacts::default()
            }),
            Self::All => Some(facts.clone()),
        }
    }
}

impl ViewerHello {
    /// The hello of a viewer that follows: it needs all facts.
    pub fn follow() -> Self {
        Self {
            protocol: SHARE_PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            follow: true,
            needed: Needed::default(),
        }
    }

    /// The hello of a viewer that reads one picture with these parts.
    pub fn once(needed: Needed) -> Self {
        Self { follow: false, needed, ..Self::follow() }
    }

    /// The line, with its newline.
    ///
    /// # Errors
    /// Never with these types.
    pub fn line(&self) -> Result<Vec<u8>, serde_json::Error> {
        codec::encode(&ViewerLine { viewer: self.clone() })
    }

    /// Decodes the line of a viewer without its newline.
    pub(super) fn decode(line: &[u8]) -> Result<Self, FrameError> {
        Ok(codec::decode_json::<ViewerLine>(line).map_err(FrameError::Wire)?.viewer)
    }
}

#[derive(Serialize, Deserialize)]
struct ViewerLine {
    viewer: ViewerHello,
}

/// Encodes a request for a history as a line of a viewer, with its newline.
///
/// # Errors
/// Never with these types.
pub fn encode_query(query: &HistoryQuery) -> Result<Vec<u8>, serde_json::Error> {
    codec::encode(&RequestLine { history: Some(query.clone()) })
}

/// Decodes a later line of a viewer without its newline. `None` if it is empty or unknown: it is ignored.
pub(super) fn decode_query(line: &[u8]) -> Option<HistoryQuery> {
    codec::decode_json::<RequestLine>(line).ok()?.history
}

/// A line of a viewer after its first one.
#[derive(Serialize, Deserialize)]
struct RequestLine {
    #[serde(default)]
    history: Option<HistoryQuery>,
}

/// The answer to a request for a history.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HistoryFrame {
    /// The number of the request.
    pub id: u64,
    /// The history; absent if it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<StoredHistory>,
    /// The cause and the way out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SafeText>,
}

impl From<HistoryReply> for HistoryFrame {
    fn from(reply: HistoryReply) -> Self {
        let (history, error) = match reply.result {
            Ok(history) => (Some(history), None),
            Err(error) => (None, Some(error)),
        };
        Self { id: reply.id, history, error }
    }
}

impl From<HistoryFrame> for HistoryReply {
    fn from(frame: HistoryFrame) -> Self {
        let unknown = || "the collector gave no reason".into();
        let result = frame.history.ok_or_else(|| frame.error.unwrap_or_else(unknown));
        Self { id: frame.id, result }
    }
}

/// Encodes an answer; a history that is too long for a line becomes an error.
pub(super) fn encode_reply(reply: HistoryReply) -> Option<Vec<u8>> {
    let id = reply.id;
    encode(&Frame::History(reply.into())).or_else(|| {
        let error = Some("the history of this host is too large".into());
        encode(&Frame::History(HistoryFrame { id, history: None, error }))
    })
}

/// The collector, in its first line.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CollectorInfo {
    /// [`SHARE_PROTOCOL`] of the collector.
    pub protocol: u32,
    /// [`crate::wire::PROTOCOL`] of the messages that it passes on.
    pub wire_protocol: u32,
    /// Version of the collector's package.
    pub version: SafeText,
    /// Name of its machine.
    pub host_name: SafeText,
    /// Its process id.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: f64,
    /// How much it shares with this viewer: `none`, `names` or `commands`.
    pub share: SafeText,
    /// The fleet is simulated.
    pub simulated: bool,
    /// It answers requests for histories.
    pub history: bool,
}

/// A host of the collector: its place in the list, and the settings that affect how it is shown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostInfo {
    /// The displayed name; unique.
    pub name: SafeText,
    /// See [`settings_digest`].
    pub digest: SafeText,
    /// The group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<SafeText>,
    /// The tags, at most 64.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::at_most::<MAX_TAGS, _, _>")]
    pub tags: Vec<SafeText>,
    /// The remark.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<SafeText>,
    /// Indexes of GPUs that are never shown as free, at most [`MAX_GPUS`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::at_most::<MAX_GPUS, _, _>")]
    pub reserved: Vec<u32>,
    /// Several people share the account.
    pub shared_account: bool,
    /// When NCCL RAS is queried; absent for the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ras: Option<SafeText>,
    /// The sampling interval in seconds.
    pub interval_seconds: f64,
    /// The `[diagnosis]` tables that apply to it; absent for the defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thresholds: Option<ThresholdsInfo>,
}

/// The thresholds of a host that differ from the defaults.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThresholdsInfo {
    /// Rules that are switched off, at most 256.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::at_most::<MAX_RULES, _, _>")]
    off: Vec<SafeText>,
    /// Additional model servers, at most 64.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::at_most::<MAX_TAGS, _, _>")]
    model_servers: Vec<SafeText>,
    /// The host serves models.
    is_serving: bool,
    /// Rule, key and value, at most 1024. Rules and keys that a viewer does not know are ignored.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::at_most::<MAX_SUBJECTS, _, _>")]
    values: Vec<(SafeText, SafeText, f64)>,
}

impl ThresholdsInfo {
    fn new(thresholds: &Thresholds) -> Self {
        let mut thresholds = thresholds.clone();
        let off =
            (0..).zip(RULES).filter(|(place, _)| thresholds.is_off(*place)).map(|(_, rule)| rule.into()).collect();
        let mut values = Vec::new();
        for parameter in PARAMETERS {
            if let Some(value) = thresholds.value_mut(parameter.rule, parameter.key)
                && (*value - parameter.default).abs() > 0.0
            {
                values.push((parameter.rule.into(), parameter.key.into(), *value));
            }
        }
        let model_servers = thresholds.model_servers.iter().take(MAX_TAGS).cloned().collect();
        Self { off, model_servers, is_serving: thresholds.is_serving, values }
    }

    fn thresholds(&self) -> Thresholds {
        let mut thresholds = Thresholds {
            model_servers: self.model_servers.clone(),
            is_serving: self.is_serving,
            ..Thresholds::default()
        };
        for (place, rule) in RULES.iter().enumerate() {
            thresholds.off |= u64::from(self.off.iter().any(|off| *off == **rule)) << place;
        }
        for (rule, key, value) in self.values.iter().filter(|(_, _, value)| value.is_finite() && *value >= 0.0) {
            if let Some(known) = thresholds.value_mut(rule, key) {
                *known = *value;
            }
        }
        thresholds
    }
}

/// Entries of a list beyond this number are dropped; hosts.toml has fewer.
const MAX_TAGS: usize = 64;

impl HostInfo {
    pub(super) fn new(config: &HostConfig) -> Self {
        Self {
            name: config.name.clone(),
            digest: settings_digest(config),
            group: config.group.clone(),
            tags: config.tags.iter().take(MAX_TAGS).cloned().collect(),
            note: config.note.clone(),
            reserved: config.reserved.iter().take(MAX_GPUS).copied().collect(),
            shared_account: config.shared_account,
            ras: (config.ras != RasRule::default()).then(|| config.ras.word().into()),
            interval_seconds: config.interval.as_secs_f64(),
            thresholds: config.thresholds.as_deref().map(ThresholdsInfo::new),
        }
    }

    /// Sets these settings in a configuration that says how the viewer reaches the host.
    pub fn apply(&self, config: &mut HostConfig) {
        config.group.clone_from(&self.group);
        config.tags = self.tags.iter().take(MAX_TAGS).cloned().collect();
        config.note.clone_from(&self.note);
        config.reserved = self.reserved.iter().take(MAX_GPUS).copied().collect();
        config.shared_account = self.shared_account;
        // The stricter rule applies.
        let ras = self.ras.as_deref().and_then(RasRule::from_word);
        config.ras = config.ras.max(ras.unwrap_or_default());
        // Thresholds of the viewer's own hosts.toml have priority.
        let thresholds = config.thresholds.take();
        config.thresholds = thresholds.or_else(|| self.thresholds.as_ref().map(|info| Arc::new(info.thresholds())));
        let interval = std::time::Duration::try_from_secs_f64(self.interval_seconds).unwrap_or(config.interval);
        config.interval = interval.clamp(HostConfig::MIN_INTERVAL, HostConfig::MAX_INTERVAL);
    }
}

/// A digest of all settings of a host. Two programs that have read the same hosts.toml get the same digest.
pub fn settings_digest(config: &HostConfig) -> SafeText {
    let digest = Sha256::digest(format!("{} {config:?}", env!("CARGO_PKG_VERSION")).as_bytes());
    SafeText::from(digest.iter().take(16).fold(String::new(), |text, byte| text + &format!("{byte:02x}")))
}

/// A line of the collector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", remote = "Self")]
#[allow(clippy::large_enum_variant, reason = "nearly all lines are of the large variant")]
pub enum Frame {
    /// The first line.
    Collector(CollectorInfo),
    /// A part of the list of hosts, in order. `first` is the number of its first host; 0 begins a new list.
    Hosts {
        /// The number of the first host, from 0.
        first: u32,
        /// The hosts, at most 200.
        #[serde(deserialize_with = "limits::at_most::<HOSTS_PER_LINE, _, _>")]
        list: Vec<HostInfo>,
    },
    /// Something about one host.
    Host(HostFrame),
    /// A part of the diagnosis; only without `follow`.
    Diagnosis(DiagnosisFrame),
    /// The verdicts about the jobs of a host, in place of the earlier ones; only with `follow`.
    Verdicts(VerdictsFrame),
    /// The answer to a request for a history.
    History(HistoryFrame),
    /// The picture is complete.
    Complete,
    /// Sent when nothing else was sent for a while.
    Alive,
    /// The collector, or the relay in its place, does not serve this viewer. The connection ends.
    Refused {
        /// The reason, for programs.
        kind: RefusalKind,
        /// The cause and the way out.
        reason: SafeText,
    },
    /// A line that this version does not know. It is ignored.
    #[serde(other)]
    Unknown,
}

/// Why a viewer is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// No collector listens there.
    NoCollector,
    /// The socket exists, but this account may not use it.
    NotPermitted,
    /// The viewer speaks another version of the protocol.
    Protocol,
    /// There are too many viewers.
    TooMany,
    /// The collector ends.
    Ending,
    /// The collector does not answer the relay.
    NotAnswering,
    /// A reason that this version does not know.
    #[serde(other)]
    Other,
}

/// Something about one host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostFrame {
    /// The name of the host.
    pub name: SafeText,
    /// Seconds since the readings of the message arrived at the collector; absent for a message that has just arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<f64>,
    /// A message of its probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire: Option<Message>,
    /// The state of its link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkFrame>,
    /// The round-trip time between collector and host in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trip_seconds: Option<f64>,
    /// A way in which the host misbehaves, as in a recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misbehavior: Option<SafeText>,
    /// The state of each GPU in inventory order, as in `status --json`, and how long it is known to hold, in seconds.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::at_most::<MAX_GPUS, _, _>")]
    pub states: Vec<(SafeText, Option<f64>)>,
}

/// The state of the link between collector and host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", remote = "Self")]
pub enum LinkFrame {
    /// A connection is being made.
    Connecting {
        /// The number of the attempt, from 1.
        attempt: u32,
        /// [`crate::fleet::ConnectPhase::word`].
        phase: SafeText,
    },
    /// Lines arrive again, after a silence.
    Live,
    /// The connection is open, but silent.
    Stale,
    /// There is no connection.
    Down {
        /// The cause.
        error: RecordedError,
        /// Seconds until the next attempt; absent if it waits for the user of the collector.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_in_seconds: Option<f64>,
        /// How many attempts have failed in a row.
        attempt: u32,
    },
    /// The collector needs its user, for example to accept a host key.
    NeedsUser {
        /// The answer that is needed.
        error: RecordedError,
    },
    /// A state that this version does not know. It is ignored.
    #[serde(other)]
    Unknown,
}

/// A part of the diagnosis.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiagnosisFrame {
    /// Findings in the order of the engine, at most 50.
    #[serde(deserialize_with = "limits::at_most::<FINDINGS_PER_LINE, _, _>")]
    pub findings: Vec<FindingFrame>,
    /// The rules and readings that could not be evaluated; in the first line only.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::at_most::<MAX_RULES, _, _>")]
    pub not_judged: Vec<NotJudgedFrame>,
    /// The rules that need a longer observation; in the first line only.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limits::at_most::<MAX_RULES, _, _>")]
    pub too_little_history: Vec<RuleFrame>,
}

/// The maximum number of hosts, GPUs and processes of one finding. The evidence names them all; lists are for selection.
pub(super) const MAX_SUBJECTS: usize = 1024;

/// A finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FindingFrame {
    pub(super) id: SafeText,
    /// [`crate::diagnosis::RuleId::word`].
    pub(super) rule: SafeText,
    pub(super) severity: Severity,
    pub(super) confidence: Confidence,
    pub(super) phase: FindingPhase,
    /// Seconds since the condition began to hold.
    pub(super) since_seconds: f64,
    /// How long it has held.
    pub(super) lasted_seconds: f64,
    #[serde(default)]
    pub(super) fired_seconds: Option<f64>,
    #[serde(default)]
    pub(super) due_in_seconds: Option<f64>,
    /// The names of all hosts concerned; the finding is listed under the first.
    #[serde(deserialize_with = "limits::at_most::<MAX_SUBJECTS, _, _>")]
    pub(super) hosts: Vec<SafeText>,
    #[serde(default, deserialize_with = "limits::at_most::<MAX_SUBJECTS, _, _>")]
    pub(super) gpus: Vec<GpuFrame>,
    #[serde(default)]
    pub(super) job: Option<JobKey>,
    #[serde(default, deserialize_with = "limits::at_most::<MAX_SUBJECTS, _, _>")]
    pub(super) processes: Vec<ProcessFrame>,
    #[serde(default)]
    pub(super) user: Option<SafeText>,
    pub(super) sentence: SafeText,
    #[serde(default)]
    pub(super) figures: SafeText,
    #[serde(default)]
    pub(super) next_check: SafeText,
    /// Of `mine`, `at_least`, `preexisting`, `flapping`, `frozen` and `snoozed` those that hold.
    #[serde(default, deserialize_with = "limits::at_most::<16, _, _>")]
    pub(super) flags: Vec<SafeText>,
    /// Seconds until the snooze ends; absent if it lasts until the finding changes.
    #[serde(default)]
    pub(super) snoozed_for_seconds: Option<f64>,
    /// The verdict of the last examination of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) verdict: Option<VerdictFrame>,
}

/// The maximum number of verdicts about the jobs of one host.
pub(super) const MAX_VERDICTS: usize = 64;

/// The verdicts of examinations of the jobs that are listed under one host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VerdictsFrame {
    /// The name of the host.
    pub(super) host: SafeText,
    #[serde(deserialize_with = "limits::at_most::<MAX_VERDICTS, _, _>")]
    pub(super) list: Vec<JobVerdictFrame>,
}

/// The verdict about one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct JobVerdictFrame {
    pub(super) job: JobKey,
    pub(super) verdict: VerdictFrame,
}

/// See [`crate::diagnosis::FindingVerdict`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct VerdictFrame {
    /// [`crate::diagnosis::proof::Outcome::word`].
    pub(super) outcome: SafeText,
    pub(super) sentence: SafeText,
    #[serde(default, deserialize_with = "limits::at_most::<16, _, _>")]
    pub(super) culprits: Vec<CulpritFrame>,
    /// Seconds since it was reached.
    pub(super) age_seconds: f64,
}

/// See [`crate::diagnosis::proof::CulpritRank`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct CulpritFrame {
    pub(super) rank: Option<u32>,
    pub(super) world_rank: Option<u32>,
    pub(super) pid: Option<u32>,
    pub(super) host: Option<SafeText>,
    /// The collector watches its host.
    pub(super) is_watched: bool,
    pub(super) gpu: Option<u32>,
    pub(super) operation: Option<SafeText>,
}

/// A GPU of a finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct GpuFrame {
    pub(super) host: SafeText,
    pub(super) position: usize,
    pub(super) index: u32,
    #[serde(default)]
    pub(super) uuid: Option<SafeText>,
}

/// A process of a finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ProcessFrame {
    pub(super) host: SafeText,
    pub(super) key: ProcessKey,
    pub(super) command: SafeText,
}

/// See [`crate::diagnosis::NotJudged`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NotJudgedFrame {
    pub(super) count: u32,
    pub(super) what: SafeText,
    pub(super) why: SafeText,
}

/// A rule that needs a longer observation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RuleFrame {
    pub(super) rule: SafeText,
    pub(super) seconds: f64,
}

crate::wire::open_enum::open_enums!(Frame, LinkFrame);

/// Why a line was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrameError {
    /// The line is too long.
    TooLong,
    /// The line is not JSON of the protocol, or its message exceeds a limit of the wire protocol.
    Wire(CodecError),
    /// A list is too long.
    TooMany {
        /// The entries.
        items: &'static str,
        /// Their maximum number.
        limit: usize,
    },
    /// The lines come in the wrong order.
    Order(&'static str),
}

impl fmt::Display for FrameError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(formatter, "protocol violation: a line of more than {MAX_FRAME_BYTES} bytes"),
            Self::Wire(error) => error.fmt(formatter),
            Self::TooMany { items, limit } => write!(formatter, "protocol violation: more than {limit} {items}"),
            Self::Order(text) => write!(formatter, "protocol violation: {text}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Encodes a line with its newline; `None` if it would be too long.
pub fn encode(frame: &Frame) -> Option<Vec<u8>> {
    codec::encode(frame).ok().filter(|line| line.len() <= MAX_FRAME_BYTES)
}

/// Decodes a line of the collector without its newline, and checks its limits.
pub fn decode(line: &[u8]) -> Result<Frame, FrameError> {
    if line.len() > MAX_FRAME_BYTES {
        return Err(FrameError::TooLong);
    }
    let frame: Frame = codec::decode_json(line).map_err(FrameError::Wire)?;
    if let Frame::Host(HostFrame { wire: Some(message), .. }) = &frame {
        codec::check_limits(message).map_err(FrameError::Wire)?;
    }
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_viewer_uses_the_thresholds_of_the_collector_unless_it_has_its_own() {
        let mut thresholds =
            Thresholds { is_serving: true, model_servers: vec!["myserve".into()], ..Thresholds::default() };
        thresholds.stuck_spin.warn_after = 7.0;
        thresholds.off |= 1 << 2;
        let config = HostConfig { thresholds: Some(Arc::new(thresholds.clone())), ..HostConfig::named("hgx-01") };
        let line = encode(&Frame::Hosts { first: 0, list: vec![HostInfo::new(&config)] }).expect("a line");
        let Ok(Frame::Hosts { list, .. }) = decode(&line) else { panic!("{}", String::from_utf8_lossy(&line)) };
        let mut viewer = HostConfig::named("hgx-01");
        list[0].apply(&mut viewer);
        assert_eq!(viewer.thresholds.as_deref(), Some(&thresholds));
        let mut own = HostConfig { thresholds: Some(Arc::new(Thresholds::default())), ..HostConfig::named("hgx-01") };
        list[0].apply(&mut own);
        assert_eq!(own.thresholds.as_deref(), Some(&Thresholds::default()));
        let values = vec![("new-rule".into(), "x".into(), 1.0), ("stuck-spin".into(), "warn_after".into(), -1.0)];
        let unknown = ThresholdsInfo { values, off: vec!["new-rule".into()], ..ThresholdsInfo::default() };
        assert_eq!(unknown.thresholds(), Thresholds::default());
    }
}
