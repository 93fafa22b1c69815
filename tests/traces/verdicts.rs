//! Examines the jobs of a case that look hung, as the program does, with simulated answers.

use super::case_recording::CaseRecording;
use gpufleet::cli::replay::Replay;
use gpufleet::diagnosis::proof::investigation::{Investigation, Progress, RasQueries};
use gpufleet::diagnosis::proof::investigations::Investigations;
use gpufleet::diagnosis::proof::{Outcome, judge};
use gpufleet::fleet::HostId;
use gpufleet::wire::{Reply, ReplyOutcome, Request};
use std::collections::BTreeSet;

/// A verdict about a job.
#[derive(Debug, Clone)]
pub(crate) struct CaseVerdict {
    /// Seconds after the case began.
    pub(crate) at: f64,
    /// The ids of the findings that it was added to. Empty if the job was examined without a finding.
    pub(crate) findings: BTreeSet<String>,
    /// Whether it is the first one of the job.
    pub(crate) is_first: bool,
    pub(crate) outcome: Outcome,
    pub(crate) sentence: String,
}

/// Examines each job of the login user that may hang, as long as the finding about it lasts, and the others once.
pub(crate) struct Examiner {
    automatic: Investigations,
    /// When the jobs without a finding are examined, in seconds after the case began.
    others_at: f64,
    has_begun_others: bool,
    others: Vec<Investigation>,
    pub(crate) verdicts: Vec<CaseVerdict>,
}

impl Examiner {
    pub(crate) fn new(others_at: f64) -> Self {
        let (automatic, others, verdicts) = (Investigations::default(), Vec::new(), Vec::new());
        Self { automatic, others_at, has_begun_others: false, others, verdicts }
    }

    /// Begins and continues examinations after the lines of one sample interval.
    pub(crate) fn step(&mut self, replay: &mut Replay, player: &CaseRecording) {
        let now = replay.now();
        let at = player.monitor_starts() + now.since_start().as_secs_f64();
        let (fleet, engine) = replay.fleet_and_engine();
        let answer = |host: HostId, request: &Request| {
            let outcome = match request {
                Request::Examine { pid, start_ticks, parts, .. } => {
                    player.examine(fleet.host(host)?.name(), *pid, *start_ticks, parts)
                }
                _ => ReplyOutcome::Refused("the log cannot be read".into()),
            };
            Some(Reply { id: request.reply_id()?, outcome })
        };
        exchange(answer, |replies| {
            for (host, reply) in replies {
                self.automatic.take_reply(host, &reply, fleet, engine, now);
            }
            self.automatic.requests_due(fleet, engine, None, now)
        });
        // A finding that takes over from another one gets its verdict.
        for finding in engine.hangs() {
            let id = finding.id.to_string();
            let Some(verdict) = &finding.verdict else { continue };
            let at = player.monitor_starts() + verdict.at.since_start().as_secs_f64();
            let sentence = verdict.sentence.to_string();
            let same = |known: &&mut CaseVerdict| {
                known.at.total_cmp(&at).is_eq() && known.outcome == verdict.outcome && known.sentence == sentence
            };
            let is_known = self.verdicts.iter().any(|known| known.findings.contains(&id));
            if let Some(known) = self.verdicts.iter_mut().find(same) {
                known.is_first &= !is_known || known.findings.contains(&id);
                known.findings.insert(id);
            } else {
                let findings = BTreeSet::from([id]);
                let outcome = verdict.outcome;
                self.verdicts.push(CaseVerdict { at, findings, is_first: !is_known, outcome, sentence });
            }
        }
        if at >= self.others_at && !self.has_begun_others {
            self.has_begun_others = true;
            let mut jobs = BTreeSet::new();
            for host in fleet.hosts() {
                for process in host.processes().filter(|process| host.belongs_to_login_user(process)) {
                    let job = &process.info.job;
                    let is_found = engine.hangs().any(|finding| finding.concerns_job(host.id, job));
                    // A person who examines a job without a finding may accept the risk of a query.
                    let investigation = Investigation::new(fleet, host.id, job, RasQueries::AcceptRisk, 1);
                    if !is_found && jobs.insert((host.id, job.clone())) && investigation.has_own_ranks() {
                        self.others.push(investigation);
                    }
                }
            }
        }
        let verdicts = &mut self.verdicts;
        self.others.retain_mut(|investigation| {
            exchange(answer, |replies| {
                for (_, reply) in replies {
                    investigation.take_reply(reply, fleet, now);
                }
                investigation.requests_due(fleet, engine, now)
            });
            if investigation.progress() != Progress::Complete {
                return true;
            }
            let finding = engine.findings().find(|one| one.rule.is_hang() && investigation.is_about(one));
            let verdict = judge(&investigation.evidence(fleet, engine, finding, now));
            let sentence = verdict.sentence.to_string();
            let outcome = verdict.outcome;
            verdicts.push(CaseVerdict { at, findings: BTreeSet::new(), is_first: true, outcome, sentence });
            false
        });
    }
}

/// Answers requests until none is due. `next` takes the replies to the last ones. A host answers a few at a time, within
/// milliseconds.
fn exchange(
    answer: impl Fn(HostId, &Request) -> Option<Reply>,
    mut next: impl FnMut(Vec<(HostId, Reply)>) -> Vec<(HostId, Request)>,
) {
    let mut replies = Vec::new();
    loop {
        let requests = next(replies);
        if requests.is_empty() {
            return;
        }
        let answered = requests.into_iter().filter_map(|(host, request)| Some((host, answer(host, &request)?)));
        replies = answered.collect();
    }
}
