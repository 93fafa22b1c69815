//! Sending signals: from the selected rows to the dialog, the requests and the outcomes.

use super::App;
use super::action::Action;
use super::dialogs::{DialogKey, IGNORE_KEYS_FOR};
use super::event::Effect;
use super::screen::View;
use super::signals::{
    Confirmation, PendingSignal, SignalDialog, SignalTarget, SurvivorCheck, log_line, outcome_text, signal_name,
};
use crate::fleet::{GroupKey, HostId, JobKey, JobRows, Moment, ProcessKey, Row, RowKey, distributed_jobs};
use crate::wire::{Reply, ReplyOutcome, Request, Signal};
use std::sync::Arc;
use std::time::Duration;

/// A host that has not replied after this time is no longer waited for.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// As above, for a relayed host, to which an SSH session may have to be opened first.
const RELAYED_REPLY_TIMEOUT: Duration = Duration::from_secs(40);
/// Time between the signal to a launcher and the check for workers that survived it.
const SURVIVOR_CHECK_DELAY: Duration = Duration::from_secs(30);
/// How long the outcome of one signal stays in the hint bar.
const OUTCOME_DURATION: Duration = Duration::from_secs(12);
/// The longest text in the confirmation.
const MAX_TYPED_BYTES: usize = 255;

impl App {
    /// Opens the dialog that confirms a signal to the selected processes.
    pub(super) fn open_signal_dialog(&mut self, signal: Signal, now: Moment) {
        if self.settings.is_readonly {
            self.notify("signals are disabled (--readonly, or readonly = true in settings.toml)", now);
            return;
        }
        match self.signal_targets() {
            Ok(targets) => self.signals.dialog = Some(SignalDialog::new(signal, targets, false, now)),
            Err(notice) => self.notify(notice, now),
        }
    }

    /// Returns the targets of the tagged rows, or of the selected row if no row is tagged.
    ///
    /// # Errors
    /// A notice if the rows stand for no process.
    fn signal_targets(&self) -> Result<Vec<SignalTarget>, &'static str> {
        let tagged = self.screen.list.tagged();
        let mut keys: Vec<RowKey> = match self.screen.view() {
            View::Process(key) => vec![key.clone()],
            _ if !tagged.is_empty() => tagged.iter().cloned().collect(),
            _ => self.rows().get(self.screen.list.index()).map(|row| row.key.clone()).into_iter().collect(),
        };
        keys.sort();
        let mut targets: Vec<SignalTarget> = Vec::new();
        for key in keys {
            match key.group {
                Some(GroupKey::User(_) | GroupKey::Host) => {
                    return Err("unfold this row and select the jobs below it");
                }
                Some(GroupKey::DistributedJob) => {
                    for job in self.parts_of_distributed_job(&key) {
                        self.add_job_targets(job, &mut targets);
                    }
                }
                None => self.add_row_targets(&key, &mut targets),
            }
        }
        // A job and one of its processes may both be tagged.
        let mut seen: Vec<(HostId, ProcessKey)> = Vec::new();
        targets.retain(|target| {
            let is_new = !seen.iter().any(|(host, key)| *host == target.host && *key == target.process);
            seen.push((target.host, target.process.clone()));
            is_new
        });
        if targets.is_empty() { Err("no process to signal: it has ended") } else { Ok(targets) }
    }

    fn parts_of_distributed_job(&self, key: &RowKey) -> Vec<&JobRows> {
        let first = self.jobs(key.host).iter().find(|job| job.row.key.process == key.process);
        let Some(first) = first else { return Vec::new() };
        let distributed = distributed_jobs(&self.fleet);
        let job = distributed.iter().find(|job| job.parts.contains(&(key.host, first.row.job.clone())));
        let Some(job) = job else { return vec![first] };
        let find = |(host, job): &(HostId, JobKey)| self.jobs(*host).iter().find(|rows| rows.row.job == *job);
        job.parts.iter().filter_map(find).collect()
    }

    fn add_row_targets(&self, key: &RowKey, targets: &mut Vec<SignalTarget>) {
        for job in self.jobs(key.host) {
            if key.is_job && job.row.key.process == key.process {
                self.add_job_targets(job, targets);
                return;
            }
            let processes = job.processes();
            if let Some(row) = processes.iter().find(|row| row.key == *key && row.ended_at.is_none()) {
                targets.extend(self.process_target(row));
                return;
            }
        }
    }

    /// Adds the launcher of a job, which ends its workers, or each process if the job has no launcher.
    fn add_job_targets(&self, job: &JobRows, targets: &mut Vec<SignalTarget>) {
        let Some(host) = self.fleet.host(job.row.key.host) else { return };
        let processes = job.processes();
        let live: Vec<&Row> = processes.iter().map(Arc::as_ref).filter(|row| row.ended_at.is_none()).collect();
        let leader = &job.row.key.process;
        let is_below_leader = |row: &&Row| {
            let process = host.processes().find(|process| process.key == row.key.process);
            let launcher = process.and_then(|process| process.info.launcher.as_ref());
            launcher.is_some_and(|launcher| launcher.key == *leader)
        };
        let workers: Vec<&Row> = live.iter().copied().filter(|row| row.key.process != *leader).collect();
        if live.len() > 1 && !workers.is_empty() && workers.iter().all(is_below_leader) {
            let workers = workers.iter().map(|row| row.key.process.clone()).collect();
            targets.push(SignalTarget::new(host, &job.row, leader.clone(), workers, &self.derived.findings));
        } else {
            targets.extend(live.into_iter().filter_map(|row| self.process_target(row)));
        }
    }

    fn process_target(&self, row: &Row) -> Option<SignalTarget> {
        let host = self.fleet.host(row.key.host)?;
        Some(SignalTarget::new(host, row, row.key.process.clone(), Vec::new(), &self.derived.findings))
    }

    /// Handles a key of the signal dialog.
    pub(super) fn press_signal_key(&mut self, key: DialogKey, now: Moment) -> Vec<Effect> {
        let Some(dialog) = &mut self.signals.dialog else { return Vec::new() };
        if dialog.is_kill_offer && now.since(dialog.opened_at) < IGNORE_KEYS_FOR {
            return Vec::new();
        }
        if dialog.outcomes.is_some() {
            if matches!(key, DialogKey::Action(Action::Skip | Action::Submit) | DialogKey::Character('q')) {
                self.signals.dialog = None;
            }
            return Vec::new();
        }
        match (&dialog.confirmation, key) {
            (Confirmation::Key, DialogKey::Character('y')) => return self.send_signals(now),
            (Confirmation::Word(_), DialogKey::Character(character)) => {
                if dialog.typed.len() < MAX_TYPED_BYTES && !character.is_control() {
                    dialog.typed.push(character);
                }
                dialog.is_mistyped = false;
            }
            (_, DialogKey::Action(Action::EraseCharacter)) => {
                dialog.typed.pop();
            }
            (_, DialogKey::Action(Action::EraseLine)) => dialog.typed.clear(),
            (Confirmation::Word(word), DialogKey::Action(Action::Submit)) if dialog.typed == *word => {
                return self.send_signals(now);
            }
            (Confirmation::Word(_), DialogKey::Action(Action::Submit)) if !dialog.typed.is_empty() => {
                dialog.is_mistyped = true;
            }
            // Enter without a text is on the Cancel button. Without a word to type, no letter is text.
            (_, DialogKey::Action(Action::Skip | Action::Submit))
            | (Confirmation::Key | Confirmation::Impossible, DialogKey::Character('q')) => self.signals.dialog = None,
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
                outcomes[index] = Some("not sent: its boot id or start time is unknown".to_owned());
                continue;
            };
            signals.last_id += 1;
            let (id, pid, signal) = (signals.last_id, target.process.pid, dialog.signal);
            let (name, argv) = (target.name.clone(), target.argv.clone());
            effects.push(Effect::LogSignal(log_line(signal, target, "requested")));
            let request = Request::Signal { id, boot_id, pid, start_ticks, name, argv, signal };
            effects.push(Effect::Request(target.host, request));
            let is_relayed = self.fleet.host(target.host).is_some_and(|host| host.config.relayed_by.is_some());
            let until = now.plus(if is_relayed { RELAYED_REPLY_TIMEOUT } else { REPLY_TIMEOUT });
            signals.pending.insert(id, PendingSignal { target_index: index, target: target.clone(), signal, until });
        }
        if dialog.targets.len() > 1 {
            dialog.outcomes = Some(outcomes);
            signals.dialog = Some(dialog);
        }
        self.screen.list.retain_tags(|_| false);
        effects
    }

    /// Handles a reply to a signal request. Replies to other requests, or from another host, are ignored.
    pub(super) fn receive_signal_reply(&mut self, host: HostId, reply: &Reply, now: Moment) -> Vec<Effect> {
        if self.signals.pending.get(&reply.id).is_none_or(|pending| pending.target.host != host) {
            return Vec::new();
        }
        let Some(pending) = self.signals.pending.remove(&reply.id) else { return Vec::new() };
        if reply.outcome == ReplyOutcome::Sent && pending.signal != Signal::Kill {
            let (launcher, signal) = (pending.target.clone(), pending.signal);
            self.signals.survivor_checks.push(SurvivorCheck { launcher, signal, due: now.plus(SURVIVOR_CHECK_DELAY) });
        }
        self.show_outcome(&pending, outcome_text(&reply.outcome), now)
    }

    fn show_outcome(&mut self, pending: &PendingSignal, outcome: String, now: Moment) -> Vec<Effect> {
        let target = &pending.target;
        let line = log_line(pending.signal, target, &outcome);
        let outcomes = self.signals.dialog.as_mut().and_then(|dialog| dialog.outcomes.as_mut());
        if let Some(in_dialog) = outcomes.and_then(|outcomes| outcomes.get_mut(pending.target_index)) {
            *in_dialog = Some(outcome);
        } else {
            let (name, pid, host) = (signal_name(pending.signal), target.process.pid, &target.host_name);
            self.notify_for(format!("{name} to pid {pid} on {host}: {outcome}"), OUTCOME_DURATION, now);
        }
        vec![Effect::LogSignal(line)]
    }

    /// Gives up on hosts that do not reply, and checks for workers that survived the signal to their launcher.
    pub(super) fn tick_signals(&mut self, now: Moment) -> Vec<Effect> {
        let mut late: Vec<u64> =
            self.signals.pending.iter().filter(|(_, pending)| pending.until <= now).map(|(id, _)| *id).collect();
        late.sort_unstable();
        let mut effects = Vec::new();
        for id in late {
            if let Some(pending) = self.signals.pending.remove(&id) {
                let outcome = "no reply: the signal may or may not have been sent".to_owned();
                effects.extend(self.show_outcome(&pending, outcome, now));
            }
        }
        let has_dialog = self.signals.dialog.is_some() || self.prompts.open_dialog().is_some();
        let due = self.signals.survivor_checks.iter().position(|check| check.due <= now);
        if let Some(index) = due.filter(|_| !has_dialog) {
            let SurvivorCheck { launcher, signal, .. } = self.signals.survivor_checks.remove(index);
            self.offer_kill(&launcher, signal, now);
        }
        effects
    }

    /// Offers KILL for workers that survived the signal to their launcher, or for the process itself.
    fn offer_kill(&mut self, launcher: &SignalTarget, signal: Signal, now: Moment) {
        let Some(host) = self.fleet.host(launcher.host).filter(|host| host.is_fresh(now)) else { return };
        let rows = self.jobs(launcher.host).iter().flat_map(|job| job.processes().into_owned());
        let survivors: Vec<SignalTarget> = rows
            .filter(|row| row.ended_at.is_none() && launcher.workers.contains(&row.key.process))
            .filter_map(|row| self.process_target(&row))
            .collect();
        let pid = launcher.process.pid;
        if !survivors.is_empty() {
            self.signals.dialog = Some(SignalDialog::new(Signal::Kill, survivors, true, now));
        } else if launcher.workers.is_empty() && host.processes().any(|process| process.key.pid == pid) {
            let name = signal_name(signal);
            let notice = format!("pid {pid} on {} still runs 30 s after {name}; K sends KILL", launcher.host_name);
            self.notify_for(notice, OUTCOME_DURATION, now);
        }
    }
}

#[cfg(test)]
#[path = "signals_tests.rs"]
mod tests;
