//! Examines the jobs of a case that look hung, as `gpufleet why` does, with simulated answers.

use super::case_recording::CaseRecording;
use gpufleet::cli::replay::Replay;
use gpufleet::diagnosis::FindingPhase;
use gpufleet::diagnosis::proof::investigation::{Investigation, Progress, RasQueries};
use gpufleet::diagnosis::proof::{Outcome, judge};
use gpufleet::fleet::{Fleet, HostId, JobKey};
use gpufleet::wire::{Reply, ReplyOutcome, Request};

/// A verdict about a job.
#[derive(Debug, Clone)]
pub(crate) struct CaseVerdict {
    /// Seconds after the case began.
    pub(crate) at: f64,
    /// The rule with whose finding the examination began. `None` if it was made without a finding.
    pub(crate) rule: Option<&'static str>,
    pub(crate) outcome: Outcome,
    pub(crate) sentence: String,
}

/// Examines each job of the login user once: when a rule finds that it hangs, or at a time without a finding.
pub(crate) struct Examiner {
    /// When the jobs without a finding are examined, in seconds after the case began.
    others_at: f64,
    has_begun_others: bool,
    jobs: Vec<(HostId, JobKey)>,
    active: Vec<(Option<&'static str>, Investigation)>,
    pub(crate) verdicts: Vec<CaseVerdict>,
}

impl Examiner {
    pub(crate) fn new(others_at: f64) -> Self {
        Self { others_at, has_begun_others: false, jobs: Vec::new(), active: Vec::new(), verdicts: Vec::new() }
    }

    /// Begins and continues examinations after the lines of one sample interval.
    pub(crate) fn step(&mut self, replay: &Replay, player: &CaseRecording) {
        let (fleet, engine, now) = (replay.fleet(), replay.engine(), replay.now());
        let at = player.monitor_starts() + now.since_start().as_secs_f64();
        for finding in engine.findings() {
            if finding.rule.is_hang()
                && finding.phase == FindingPhase::Firing
                && finding.is_mine
                && let Some(job) = &finding.job
            {
                self.begin(fleet, finding.host, job, Some(finding.rule.word()));
            }
        }
        if at >= self.others_at && !self.has_begun_others {
            self.has_begun_others = true;
            for host in fleet.hosts() {
                for process in host.processes().filter(|process| host.belongs_to_login_user(process)) {
                    self.begin(fleet, host.id, &process.info.job, None);
                }
            }
        }
        let verdicts = &mut self.verdicts;
        self.active.retain_mut(|(rule, investigation)| {
            for (host, request) in investigation.requests_due(fleet, engine, now) {
                let (Some(id), Some(host)) = (request.reply_id(), fleet.host(host)) else { continue };
                let outcome = match &request {
                    Request::Examine { pid, start_ticks, parts, .. } => {
                        player.examine(host.name(), *pid, *start_ticks, parts)
                    }
                    _ => ReplyOutcome::Refused("the log cannot be read".into()),
                };
                investigation.take_reply(Reply { id, outcome }, fleet, now);
            }
            if investigation.progress() != Progress::Complete {
                return true;
            }
            let finding = engine.findings().find(|one| one.rule.is_hang() && investigation.is_about(one));
            let verdict = judge(&investigation.evidence(fleet, engine, finding, now));
            let sentence = verdict.sentence.to_string();
            verdicts.push(CaseVerdict { at, rule: *rule, outcome: verdict.outcome, sentence });
            false
        });
    }

    fn begin(&mut self, fleet: &Fleet, host: HostId, job: &JobKey, rule: Option<&'static str>) {
        if self.jobs.iter().any(|known| *known == (host, job.clone())) {
            return;
        }
        self.jobs.push((host, job.clone()));
        // A person who examines a job without a finding may accept the risk of a query.
        let ras_queries = if rule.is_none() { RasQueries::AcceptRisk } else { RasQueries::AsConfigured };
        let investigation = Investigation::new(fleet, host, job, ras_queries, 1);
        if investigation.has_own_ranks() {
            self.active.push((rule, investigation));
        }
    }
}
