//! Signals to processes: targets, the dialog that confirms a signal, and requests that wait for a reply.

use super::findings::Findings;
use crate::config::{ProbeChoice, SignalRule};
use crate::diagnosis::{Finding, FindingPhase};
use crate::fleet::{Host, HostId, JobKey, Link, Moment, Process, ProcessKey, Row};
use crate::wire::shell::plain_id;
use crate::wire::{Ancestor, Owner, ProcessFacts, ReadingSource, ReplyOutcome, SafeText, Signal};
use std::collections::HashMap;

/// State of the signal dialog and of signals on their way.
#[derive(Debug, Default)]
pub struct Signals {
    pub(super) dialog: Option<SignalDialog>,
    pub(super) last_id: u64,
    /// Requests without a reply, by id.
    pub(super) pending: HashMap<u64, PendingSignal>,
    pub(super) survivor_checks: Vec<SurvivorCheck>,
}

impl Signals {
    /// Returns the dialog, while it is open.
    pub fn dialog(&self) -> Option<&SignalDialog> {
        self.dialog.as_ref()
    }
}

/// A process that a signal may be sent to.
#[derive(Debug, Clone)]
pub struct SignalTarget {
    /// The host of the process.
    pub host: HostId,
    /// The host's name.
    pub host_name: SafeText,
    /// The identity of the process. The probe checks it again before it sends the signal.
    pub process: ProcessKey,
    /// The name of the process, which the probe checks as well; empty if it is not known.
    pub name: SafeText,
    /// The arguments of the process, which the probe checks as well; empty if they are not known.
    pub argv: Vec<SafeText>,
    /// The user who owns the process.
    pub who: SafeText,
    /// That user's full name.
    pub full_name: Option<SafeText>,
    /// The process belongs to the login user.
    pub is_mine: bool,
    /// The command line.
    pub command: SafeText,
    /// The GPUs of the job.
    pub gpu_indexes: Vec<u32>,
    /// If the process is a launcher: its child processes on GPUs.
    pub workers: Vec<ProcessKey>,
    /// The sentences of the findings about the process or its job, the worst first.
    pub findings: Vec<SafeText>,
    /// A better way to end the process, such as `scancel`.
    pub alternative: Option<String>,
    /// Why a signal cannot be sent to it.
    pub refusal: Option<String>,
    /// One key is not enough to confirm: the process belongs to another user, or several people share the account.
    pub needs_typed_confirmation: bool,
}

impl SignalTarget {
    /// Returns the target for `process`, which `row` shows; `workers` are its child processes if it is a launcher.
    pub(super) fn new(
        host: &Host,
        row: &Row,
        process: ProcessKey,
        workers: Vec<ProcessKey>,
        findings: &Findings,
    ) -> Self {
        let is_member = |candidate: &&Process| candidate.key == process || workers.contains(&candidate.key);
        let facts = host.processes().find(is_member).and_then(Process::facts);
        let (name, argv) = program(host, &process, facts);
        Self {
            host: host.id,
            host_name: host.name().clone(),
            name,
            argv,
            who: row.who.clone(),
            full_name: facts.and_then(|facts| facts.full_name.clone()),
            is_mine: row.is_mine,
            command: row.command.clone(),
            gpu_indexes: row.gpu_indexes.clone(),
            findings: findings.of_row(row).take(MAX_FINDINGS).map(finding_text).collect(),
            alternative: alternative(&row.job, facts.and_then(|facts| facts.owner.as_ref())),
            refusal: refusal(host, row, &process),
            needs_typed_confirmation: !row.is_mine || host.config.shared_account || is_root_login(host),
            process,
            workers,
        }
    }
}

/// The dialog shows at most this many findings about a process.
const MAX_FINDINGS: usize = 2;

/// The evidence of a finding, with a lead if its condition has not held for long enough yet.
fn finding_text(finding: &Finding) -> SafeText {
    match finding.phase {
        FindingPhase::Pending => SafeText::new(&format!("watched: {}", finding.sentence)),
        _ => finding.sentence.clone(),
    }
}

/// Returns the name and the arguments of a process: its own facts, or those of an ancestor in the facts of its workers.
fn program(host: &Host, process: &ProcessKey, facts: Option<&ProcessFacts>) -> (SafeText, Vec<SafeText>) {
    let listed = host.processes().find(|candidate| candidate.key == *process).and_then(Process::facts);
    if let Some(facts) = listed {
        return (facts.name.clone().unwrap_or_default(), facts.argv.clone());
    }
    let is_it = |ancestor: &&Ancestor| ancestor.pid == process.pid && Some(ancestor.start_ticks) == process.start_ticks;
    let ancestor = facts.and_then(|facts| facts.ancestors.iter().find(is_it));
    ancestor.map(|ancestor| (ancestor.name.clone(), ancestor.argv.clone())).unwrap_or_default()
}

fn is_root_login(host: &Host) -> bool {
    host.hello.as_ref().and_then(|hello| hello.login_uid) == Some(0)
}

/// Returns why a signal to a process cannot succeed, as far as the controller knows.
fn refusal(host: &Host, row: &Row, process: &ProcessKey) -> Option<String> {
    let name = host.name();
    if host.config.signals == SignalRule::None {
        return Some(format!("hosts.toml allows no signals on {name} (signals = \"none\")"));
    }
    if !matches!(host.link, Link::Live) {
        return Some(format!("{name} is not connected"));
    }
    let source = host.hello.as_ref().and_then(|hello| hello.source.as_ref());
    if host.config.probe == ProbeChoice::NvidiaSmi || source == Some(&ReadingSource::NvidiaSmi) {
        return Some(format!("{name} is read through nvidia-smi, which cannot send signals"));
    }
    if process.pid <= 1 || process.start_ticks.is_none() || process.boot_id.is_none() {
        return Some("the host does not show its start time, so another process could get the signal".to_owned());
    }
    if row.is_mine || is_root_login(host) && host.config.signals == SignalRule::All {
        return None;
    }
    if host.config.signals == SignalRule::Own {
        return Some(format!(
            "it is not your process, and hosts.toml allows only your own on {name} (signals = \"own\")"
        ));
    }
    Some(format!("it is not your process: only {} or root may signal it", row.who))
}

/// Returns the usual way to end a process that something else manages.
pub(super) fn alternative(job: &JobKey, owner: Option<&Owner>) -> Option<String> {
    match (job, owner) {
        (JobKey::Slurm { .. }, _) => end_command(job),
        (_, Some(Owner::Pod { .. })) => {
            Some("Kubernetes restarts the pod: delete the pod, or scale it down".to_owned())
        }
        (_, Some(Owner::Service(name))) => end_command(job)
            .or_else(|| Some(format!("systemctl stop {} (systemd may start it again)", plain_id(name)?))),
        _ => end_command(job),
    }
}

/// Returns the command that ends a Slurm job or a container; `None` if a shell or a program would misread its id, which
/// comes from the host.
pub(super) fn end_command(job: &JobKey) -> Option<String> {
    match job {
        JobKey::Slurm { job, .. } => Some(format!("scancel {}", plain_id(job)?)),
        JobKey::Container { runtime, id } if *runtime == "docker" || *runtime == "podman" => {
            let short: String = id.chars().take(12).collect();
            Some(format!("{runtime} stop {}", plain_id(&short)?))
        }
        _ => None,
    }
}

/// The input that confirms a signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Confirmation {
    /// The letter `y`.
    Key,
    /// This word and Enter.
    Word(String),
    /// There is no process that the signal can be sent to.
    Impossible,
}

impl Confirmation {
    /// TERM and INT to own processes on one host need a letter; anything else needs a word that is not typed by accident.
    fn new(signal: Signal, targets: &[SignalTarget]) -> Self {
        let allowed: Vec<&SignalTarget> = targets.iter().filter(|target| target.refusal.is_none()).collect();
        let Some(first) = allowed.first() else { return Self::Impossible };
        if allowed.iter().any(|target| target.host != first.host) {
            return Self::Word(allowed.len().to_string());
        }
        if signal == Signal::Kill || allowed.iter().any(|target| target.needs_typed_confirmation) {
            return Self::Word(first.host_name.to_string());
        }
        Self::Key
    }
}

/// The confirmation before a signal is sent and, after it, the outcome per process.
#[derive(Debug)]
pub struct SignalDialog {
    /// The signal.
    pub signal: Signal,
    /// The processes. Those with a refusal get no signal.
    pub targets: Vec<SignalTarget>,
    /// The input that confirms the signal.
    pub confirmation: Confirmation,
    /// The text typed so far.
    pub typed: String,
    /// Enter was pressed on a text that does not confirm the signal.
    pub is_mistyped: bool,
    /// The dialog opened without a key because workers survived the signal to their launcher.
    pub is_kill_offer: bool,
    /// When the dialog opened.
    pub opened_at: Moment,
    /// After the signals were sent: the outcome per target, `None` while the reply is pending.
    pub outcomes: Option<Vec<Option<String>>>,
}

impl SignalDialog {
    pub(super) fn new(signal: Signal, targets: Vec<SignalTarget>, is_kill_offer: bool, now: Moment) -> Self {
        Self {
            signal,
            confirmation: Confirmation::new(signal, &targets),
            targets,
            typed: String::new(),
            is_mistyped: false,
            is_kill_offer,
            opened_at: now,
            outcomes: None,
        }
    }

    /// Returns the targets that the signal can be sent to.
    pub fn allowed(&self) -> impl Iterator<Item = &SignalTarget> {
        self.targets.iter().filter(|target| target.refusal.is_none())
    }
}

/// A signal request without a reply.
#[derive(Debug)]
pub(super) struct PendingSignal {
    /// Index of the target in the dialog.
    pub(super) target_index: usize,
    pub(super) target: SignalTarget,
    pub(super) signal: Signal,
    /// When the request times out.
    pub(super) until: Moment,
}

/// A check for workers that survive the signal to their launcher.
#[derive(Debug)]
pub(super) struct SurvivorCheck {
    pub(super) launcher: SignalTarget,
    pub(super) signal: Signal,
    pub(super) due: Moment,
}

/// Returns the name of a signal without `SIG`.
pub fn signal_name(signal: Signal) -> &'static str {
    match signal {
        Signal::Interrupt => "INT",
        Signal::Terminate => "TERM",
        Signal::Kill => "KILL",
    }
}

pub(super) fn outcome_text(outcome: &ReplyOutcome) -> String {
    match outcome {
        ReplyOutcome::Sent => "sent".to_owned(),
        ReplyOutcome::Gone => "not sent: the process had ended".to_owned(),
        ReplyOutcome::Reused => "not sent: another process has this pid now".to_owned(),
        ReplyOutcome::NotPermitted => "not permitted: only its user or root may signal it".to_owned(),
        ReplyOutcome::Refused(why) => format!("refused: {why}"),
        ReplyOutcome::Unknown => "unknown reply: check the process on its host".to_owned(),
        ReplyOutcome::Environment(_) | ReplyOutcome::LogTail { .. } | ReplyOutcome::Examined(_) => {
            "reply to another request".to_owned()
        }
    }
}

/// Formats one line of `signals.log` without its time: signal, target and outcome.
pub(super) fn log_line(signal: Signal, target: &SignalTarget, outcome: &str) -> SafeText {
    let ticks = target.process.start_ticks.unwrap_or(0);
    SafeText::new(&format!(
        "{} host={} pid={} start_ticks={ticks} user={} workers={} {outcome}: {}",
        signal_name(signal),
        target.host_name,
        target.process.pid,
        target.who,
        target.workers.len(),
        target.command,
    ))
}
