//! Signals: the confirmation before one is sent, and what came of it.

use super::signal_target::SignalTarget;
use super::{Action, App, Effect};
use crate::fleet::{HostId, Moment};
use crate::wire::{Reply, ReplyOutcome, Request, SafeText, Signal};
use std::collections::HashMap;
use std::time::Duration;

/// For this long after a dialog has opened by itself its keys do nothing.
pub const IGNORE_KEYS_FOR: Duration = Duration::from_millis(500);
/// A host that has not answered for this long is not waited for.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Workers that live this long after their launcher got a signal are worth another one.
const SURVIVOR_CHECK_DELAY: Duration = Duration::from_secs(30);
/// How long the outcome of one signal stays in the hint bar.
const OUTCOME_DURATION: Duration = Duration::from_secs(12);
/// The longest answer to a confirmation.
const MAX_TYPED_BYTES: usize = 255;

/// The dialog, and what is waited for.
#[derive(Debug, Default)]
pub struct Signals {
    dialog: Option<SignalDialog>,
    last_id: u64,
    pending: HashMap<u64, PendingSignal>,
    survivor_checks: Vec<SurvivorCheck>,
}

/// What a signal wants from the person before it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Confirmation {
    /// The letter `y`.
    Key,
    /// This word, and Enter.
    Word(String),
    /// Nothing can be sent.
    Impossible,
}

/// The confirmation, and after it the outcomes.
#[derive(Debug)]
pub struct SignalDialog {
    /// Which signal.
    pub signal: Signal,
    /// To which processes; those with a refusal are left out.
    pub targets: Vec<SignalTarget>,
    /// What is to be typed.
    pub confirmation: Confirmation,
    /// What has been typed.
    pub typed: String,
    /// Enter was pressed on something else.
    pub is_mistyped: bool,
    /// It opened by itself, since workers outlived their launcher's signal.
    pub is_kill_offer: bool,
    /// When it opened.
    pub opened_at: Moment,
    /// What came of each target, once it has been sent: `None` while it is waited for.
    pub outcomes: Option<Vec<Option<String>>>,
}

#[derive(Debug)]
struct PendingSignal {
    target_index: usize,
    target: SignalTarget,
    signal: Signal,
    until: Moment,
}

#[derive(Debug)]
struct SurvivorCheck {
    launcher: SignalTarget,
    signal: Signal,
    due: Moment,
}

impl Signals {
    /// The dialog, while it is open.
    pub fn dialog(&self) -> Option<&SignalDialog> {
        self.dialog.as_ref()
    }
}

/// The short name of a signal.
pub fn signal_name(signal: Signal) -> &'static str {
    match signal {
        Signal::Interrupt => "INT",
        Signal::Terminate => "TERM",
        Signal::Kill => "KILL",
    }
}

impl SignalDialog {
    fn new(signal: Signal, targets: Vec<SignalTarget>, is_kill_offer: bool, now: Moment) -> Self {
        let confirmation = confirmation(signal, &targets);
        Self {
            signal,
            targets,
            confirmation,
            typed: String::new(),
            is_mistyped: false,
            is_kill_offer,
            opened_at: now,
            outcomes: None,
        }
    }

    /// Those it can be sent to.
    pub fn allowed(&self) -> impl Iterator<Item = &SignalTarget> {
        self.targets.iter().filter(|target| target.refusal.is_none())
    }
}

/// A letter for TERM and INT to one's own on one host; else something that is not typed by accident.
fn confirmation(signal: Signal, targets: &[SignalTarget]) -> Confirmation {
    let allowed: Vec<&SignalTarget> = targets.iter().filter(|target| target.refusal.is_none()).collect();
    let Some(first) = allowed.first() else { return Confirmation::Impossible };
    if allowed.iter().any(|target| target.host != first.host) {
        return Confirmation::Word(allowed.len().to_string());
    }
    if signal == Signal::Kill || allowed.iter().any(|target| target.needs_typed_confirmation) {
        return Confirmation::Word(first.host_name.to_string());
    }
    Confirmation::Key
}

impl App {
    /// The dialog about signals, while it is open.
    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// Asks before a signal is sent.
    pub(super) fn open_signal_dialog(&mut self, signal: Signal, now: Moment) {
        if self.settings.is_readonly {
            self.notify("signals are off: gpufleet runs with --readonly, or the settings say so", now);
            return;
        }
        match self.signal_targets() {
            Ok(targets) => self.signals.dialog = Some(SignalDialog::new(signal, targets, false, now)),
            Err(words) => self.notify(words, now),
        }
    }

    /// A key of the dialog.
    pub(super) fn signal_key(&mut self, key: SignalKey, now: Moment) -> Vec<Effect> {
        let Some(dialog) = &mut self.signals.dialog else { return Vec::new() };
        if dialog.is_kill_offer && now.since(dialog.opened_at) < IGNORE_KEYS_FOR {
            return Vec::new();
        }
        if dialog.outcomes.is_some() {
            if matches!(key, SignalKey::Action(Action::Skip | Action::Submit)) {
                self.signals.dialog = None;
            }
            return Vec::new();
        }
        match (&dialog.confirmation, key) {
            (Confirmation::Key, SignalKey::Character('y')) => return self.send_signals(now),
            (Confirmation::Word(_), SignalKey::Character(character)) => {
                if dialog.typed.len() < MAX_TYPED_BYTES && !character.is_control() {
                    dialog.typed.push(character);
                }
                dialog.is_mistyped = false;
            }
            (_, SignalKey::Action(Action::EraseCharacter)) => {
                dialog.typed.pop();
            }
            (_, SignalKey::Action(Action::EraseLine)) => dialog.typed.clear(),
            (Confirmation::Word(word), SignalKey::Action(Action::Submit)) if dialog.typed == *word => {
                return self.send_signals(now);
            }
            (Confirmation::Word(_), SignalKey::Action(Action::Submit)) if !dialog.typed.is_empty() => {
                dialog.is_mistyped = true;
            }
            // The focus is on Cancel.
            (_, SignalKey::Action(Action::Skip | Action::Submit)) => self.signals.dialog = None,
            _ => {}
        }
        Vec::new()
    }

    fn send_signals(&mut self, now: Moment) -> Vec<Effect> {
        let signals = &mut self.signals;
        let Some(mut dialog) = signals.dialog.take() else { return Vec::new() };
        let mut effects = Vec::new();
        let mut outcomes: Vec<Option<String>> = dialog.targets.iter().map(|target| target.refusal.clone()).collect();
        for (index, target) in dialog.targets.iter().enumerate().filter(|(_, target)| target.refusal.is_none()) {
            let (Some(boot_id), Some(start_ticks)) = (target.process.boot_id.clone(), target.process.start_ticks)
            else {
                outcomes[index] = Some("refused: its identity is not known".to_owned());
                continue;
            };
            signals.last_id += 1;
            let (id, pid, signal) = (signals.last_id, target.process.pid, dialog.signal);
            effects.push(Effect::LogSignal(log_line(signal, target, "asked")));
            effects.push(Effect::Request(target.host, Request::Signal { id, boot_id, pid, start_ticks, signal }));
            let until = now.plus(REPLY_TIMEOUT);
            signals.pending.insert(id, PendingSignal { target_index: index, target: target.clone(), signal, until });
        }
        if dialog.targets.len() > 1 {
            dialog.outcomes = Some(outcomes);
            signals.dialog = Some(dialog);
        }
        self.screen.list.retain_tags(|_| false);
        effects
    }

    /// A host answered a request; `None` for a request that is no signal of ours.
    pub(super) fn on_signal_reply(&mut self, host: HostId, reply: &Reply, now: Moment) -> Vec<Effect> {
        match self.signals.pending.get(&reply.id) {
            Some(pending) if pending.target.host == host => {}
            _ => return Vec::new(),
        }
        let Some(pending) = self.signals.pending.remove(&reply.id) else { return Vec::new() };
        if reply.outcome == ReplyOutcome::Sent && pending.signal != Signal::Kill {
            let (launcher, signal) = (pending.target.clone(), pending.signal);
            self.signals.survivor_checks.push(SurvivorCheck { launcher, signal, due: now.plus(SURVIVOR_CHECK_DELAY) });
        }
        self.signal_outcome(&pending, outcome_text(&reply.outcome), now)
    }

    fn signal_outcome(&mut self, pending: &PendingSignal, words: String, now: Moment) -> Vec<Effect> {
        let target = &pending.target;
        let line = log_line(pending.signal, target, &words);
        let in_dialog = self.signals.dialog.as_mut().and_then(|dialog| dialog.outcomes.as_mut());
        if let Some(outcome) = in_dialog.and_then(|outcomes| outcomes.get_mut(pending.target_index)) {
            *outcome = Some(words);
        } else {
            let (name, pid, host) = (signal_name(pending.signal), target.process.pid, &target.host_name);
            self.notify_for(format!("{name} to pid {pid} on {host}: {words}"), OUTCOME_DURATION, now);
        }
        vec![Effect::LogSignal(line)]
    }

    /// What time brings: hosts that do not answer, workers that outlive their launcher's signal.
    pub(super) fn tick_signals(&mut self, now: Moment) -> Vec<Effect> {
        let mut late: Vec<u64> =
            self.signals.pending.iter().filter(|(_, pending)| pending.until <= now).map(|(id, _)| *id).collect();
        late.sort_unstable();
        let mut effects = Vec::new();
        for id in late {
            if let Some(pending) = self.signals.pending.remove(&id) {
                let words = "no answer: it is not known whether it was sent".to_owned();
                effects.extend(self.signal_outcome(&pending, words, now));
            }
        }
        let is_busy = self.signals.dialog.is_some() || self.prompts.open_dialog().is_some();
        let due = self
            .signals
            .survivor_checks
            .iter()
            .position(|survivor_checks| survivor_checks.due <= now)
            .filter(|_| !is_busy);
        if let Some(index) = due {
            let SurvivorCheck { launcher, signal, .. } = self.signals.survivor_checks.remove(index);
            self.offer_kill(&launcher, signal, now);
        }
        effects
    }

    fn offer_kill(&mut self, launcher: &SignalTarget, signal: Signal, now: Moment) {
        let host = self.fleet.host(launcher.host).filter(|host| host.is_fresh(now));
        let lives = |pid: u32| host.is_some_and(|host| host.processes().any(|process| process.key.pid == pid));
        let workers = self.worker_targets(launcher);
        if !workers.is_empty() && host.is_some() {
            self.signals.dialog = Some(SignalDialog::new(Signal::Kill, workers, true, now));
        } else if launcher.workers.is_empty() && lives(launcher.process.pid) {
            let (name, pid) = (signal_name(signal), launcher.process.pid);
            let words = format!("pid {pid} on {} lives 30 s after {name}: K sends KILL", launcher.host_name);
            self.notify_for(words, OUTCOME_DURATION, now);
        }
    }
}

/// A key as the dialog takes it.
#[derive(Debug, Clone, Copy)]
pub(super) enum SignalKey {
    Character(char),
    Action(Action),
}

fn outcome_text(outcome: &ReplyOutcome) -> String {
    match outcome {
        ReplyOutcome::Sent => "sent".to_owned(),
        ReplyOutcome::Gone => "gone: it had ended already".to_owned(),
        ReplyOutcome::Reused => "reused: that pid is another process now, nothing was sent".to_owned(),
        ReplyOutcome::NotPermitted => "not permitted: only its user or root may".to_owned(),
        ReplyOutcome::Refused(why) => format!("refused: {why}"),
        ReplyOutcome::Unknown => "an unknown answer: look at the process itself".to_owned(),
        ReplyOutcome::Environment(_) | ReplyOutcome::LogTail { .. } => "an answer to another question".to_owned(),
    }
}

/// One line of the log, without its time: what, to whom, what came of it.
fn log_line(signal: Signal, target: &SignalTarget, words: &str) -> SafeText {
    let ticks = target.process.start_ticks.unwrap_or(0);
    SafeText::new(&format!(
        "{} host={} pid={} start_ticks={ticks} user={} workers={} {words}: {}",
        signal_name(signal),
        target.host_name,
        target.process.pid,
        target.who,
        target.workers.len(),
        target.command,
    ))
}

#[cfg(test)]
#[path = "signals_tests.rs"]
mod tests;
