//! Which processes a signal is for, and what is known against sending it.

use super::{App, View};
use crate::config::{ProbeChoice, SignalRule};
use crate::fleet::{GroupKey, Host, HostId, JobKey, JobRows, Link, Process, ProcessKey, Row, RowKey, distributed_jobs};
use crate::wire::{Owner, ReadingSource, SafeText};
use std::sync::Arc;

/// A process that a signal may be sent to.
#[derive(Debug, Clone)]
pub struct SignalTarget {
    /// Its host.
    pub host: HostId,
    /// The host's name.
    pub host_name: SafeText,
    /// Its identity, which the probe checks again before it sends.
    pub process: ProcessKey,
    /// Who it belongs to.
    pub who: SafeText,
    /// That user's full name.
    pub full_name: Option<SafeText>,
    /// It is the login user's, or at least that account's.
    pub is_mine: bool,
    /// Its command.
    pub command: SafeText,
    /// The GPUs of the whole job.
    pub gpu_indexes: Vec<u32>,
    /// Processes below it that hold GPUs: it is their launcher.
    pub workers: Vec<ProcessKey>,
    /// A better way to end it.
    pub alternative: Option<String>,
    /// Why it cannot be sent.
    pub refusal: Option<String>,
    /// A single key is not enough: another user's, or an account that several people use.
    pub needs_typed_confirmation: bool,
}

impl App {
    /// The targets of the tagged rows, else of the selected one.
    ///
    /// # Errors
    /// A sentence for the person where nothing can be meant.
    pub(super) fn signal_targets(&self) -> Result<Vec<SignalTarget>, &'static str> {
        let tagged = self.screen.list.tagged();
        let mut keys: Vec<RowKey> = match self.screen.view() {
            View::Process(key) => vec![key.clone()],
            _ if !tagged.is_empty() => tagged.iter().cloned().collect(),
            _ => self.rows.get(self.screen.list.index()).map(|row| row.key.clone()).into_iter().collect(),
        };
        keys.sort();
        let mut targets: Vec<SignalTarget> = Vec::new();
        for key in keys {
            match key.group {
                Some(GroupKey::User(_) | GroupKey::Host) => return Err("unfold it and choose the jobs below"),
                Some(GroupKey::DistributedJob) => {
                    self.distributed_parts(&key).into_iter().for_each(|job| self.add_job_targets(job, &mut targets));
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

    /// These processes of a job, each as a target of its own.
    pub(super) fn worker_targets(&self, launcher: &SignalTarget) -> Vec<SignalTarget> {
        let jobs = self.rows_view.jobs(launcher.host).iter();
        let rows = jobs.flat_map(|job| job.processes().into_owned()).filter(|row| row.ended_at.is_none());
        let workers = rows.filter(|row| launcher.workers.contains(&row.key.process));
        workers
            .filter_map(|row| self.process_target(&row, &row.gpu_indexes, row.key.process.clone(), Vec::new()))
            .collect()
    }

    /// The parts of the job on several hosts that this row heads.
    fn distributed_parts(&self, key: &RowKey) -> Vec<&JobRows> {
        let first = self.rows_view.jobs(key.host).iter().find(|job| job.row.key.process == key.process);
        let Some(first) = first else { return Vec::new() };
        let across = distributed_jobs(&self.fleet);
        let parts = across.iter().find(|job| job.parts.contains(&(key.host, first.row.job.clone())));
        let Some(parts) = parts else { return vec![first] };
        let find = |(host, job): &(HostId, JobKey)| self.rows_view.jobs(*host).iter().find(|rows| rows.row.job == *job);
        parts.parts.iter().filter_map(find).collect()
    }

    fn add_row_targets(&self, key: &RowKey, targets: &mut Vec<SignalTarget>) {
        for job in self.rows_view.jobs(key.host) {
            if key.is_job && job.row.key.process == key.process {
                self.add_job_targets(job, targets);
                return;
            }
            let processes = job.processes();
            if let Some(row) = processes.iter().find(|row| row.key == *key && row.ended_at.is_none()) {
                targets.extend(self.process_target(row, &row.gpu_indexes, row.key.process.clone(), Vec::new()));
                return;
            }
        }
    }

    /// A job's launcher, which takes its workers along; without one each of its processes.
    fn add_job_targets(&self, job: &JobRows, targets: &mut Vec<SignalTarget>) {
        let processes = job.processes();
        let live: Vec<&Row> = processes.iter().map(Arc::as_ref).filter(|row| row.ended_at.is_none()).collect();
        let leader = &job.row.key.process;
        let host = self.fleet.host(job.row.key.host);
        let launcher_of = |key: &ProcessKey| {
            let process = host.and_then(|host| host.processes().find(|process| process.key == *key));
            process.and_then(|process| process.info.launcher.as_ref()).map(|launcher| launcher.key.clone())
        };
        let workers: Vec<&Row> = live.iter().copied().filter(|row| row.key.process != *leader).collect();
        let is_launcher = !workers.is_empty()
            && live.len() > 1
            && workers.iter().all(|row| launcher_of(&row.key.process).as_ref() == Some(leader));
        if is_launcher {
            let workers = workers.iter().map(|row| row.key.process.clone()).collect();
            targets.extend(self.process_target(&job.row, &job.row.gpu_indexes, leader.clone(), workers));
            return;
        }
        for row in live {
            targets.extend(self.process_target(row, &row.gpu_indexes, row.key.process.clone(), Vec::new()));
        }
    }

    fn process_target(
        &self,
        row: &Row,
        gpu_indexes: &[u32],
        process: ProcessKey,
        workers: Vec<ProcessKey>,
    ) -> Option<SignalTarget> {
        let host = self.fleet.host(row.key.host)?;
        let member = |candidate: &&Process| candidate.key == process || workers.contains(&candidate.key);
        let facts = host.processes().find(member).and_then(Process::facts);
        Some(SignalTarget {
            host: host.id,
            host_name: host.name().clone(),
            who: row.who.clone(),
            full_name: facts.and_then(|facts| facts.full_name.clone()),
            is_mine: row.is_mine,
            command: row.command.clone(),
            gpu_indexes: gpu_indexes.to_vec(),
            alternative: alternative(&row.job, facts.and_then(|facts| facts.owner.as_ref())),
            refusal: refusal(host, row, &process),
            needs_typed_confirmation: !row.is_mine || host.config.shared_account || is_root(host),
            process,
            workers,
        })
    }
}

fn is_root(host: &Host) -> bool {
    host.hello.as_ref().and_then(|hello| hello.login_uid) == Some(0)
}

/// What is known against it, before anything is typed.
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
        return Some(format!("{name} is read with nvidia-smi, which sends no signals"));
    }
    if process.pid <= 1 || process.start_ticks.is_none() || process.boot_id.is_none() {
        return Some("the host does not show when it began, so that it cannot be told from another process".to_owned());
    }
    if row.is_mine || is_root(host) && host.config.signals == SignalRule::All {
        return None;
    }
    if host.config.signals == SignalRule::Own {
        return Some(format!("it is not yours, and hosts.toml allows your own alone on {name} (signals = \"own\")"));
    }
    Some(format!("it is not yours: only {} or root may signal it", row.who))
}

/// What those do who run it.
fn alternative(job: &JobKey, owner: Option<&Owner>) -> Option<String> {
    match (job, owner) {
        (JobKey::Slurm { job, .. }, _) => Some(format!("scancel {job}")),
        (_, Some(Owner::Pod { .. })) => Some("a pod: it will come back; delete the pod, or scale down".to_owned()),
        (JobKey::Container { runtime, id }, _) if runtime == "docker" || runtime == "podman" => {
            Some(format!("{runtime} stop {}", id.chars().take(12).collect::<String>()))
        }
        (_, Some(Owner::Service(name))) => Some(format!("systemctl stop {name} (it may be started again)")),
        _ => None,
    }
}
