//! Examines the jobs that look hung, so that their findings say which rank holds them up.
//!
//! Like [`Investigation`], it does no input or output: [`Investigations::requests_due`] returns requests to send, and
//! [`Investigations::take_reply`] takes the replies. Verdicts go to the findings, through [`Engine::set_verdict`].

use super::investigation::{Investigation, Progress, RasQueries};
use super::{JobEvidence, MIN_APART, Outcome, Verdict, judge};
use crate::config::ExamineRule;
use crate::diagnosis::{Engine, Finding, FindingPhase, FindingVerdict, Severity};
use crate::fleet::{Fleet, HostId, JobKey, Moment};
use crate::wire::{Reply, Request};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// How long before its finding warns a job is examined: two readings, and the time that they take on a slow host (a reading
/// fails after 30 s). The finding then warns with its culprit.
const LEAD: Duration = Duration::from_secs(MIN_APART.as_secs() + 45);
/// The time between two examinations of one job.
const PERIOD: Duration = Duration::from_secs(600);
/// The time between them if the first one may be outdated when the finding warns.
const PERIOD_BEFORE_WARNING: Duration = Duration::from_secs(120);
/// The number of jobs that are examined at a time.
const MAX_RUNNING: usize = 8;
/// The number of jobs with an examination; further ones wait until one of them has ended.
const MAX_JOBS: usize = 256;
/// The number of completed examinations that are kept for the report on the screen.
const MAX_KEPT: usize = 8;
/// The ids of the requests begin here; each examination has its own range. Those of the screen are smaller.
const FIRST_REQUEST_ID: u64 = 1 << 41;
const IDS_OF_ONE: u64 = 1 << 20;

/// The examinations of all jobs that look hung.
#[derive(Debug, Default)]
pub struct Investigations {
    jobs: Vec<ExaminedJob>,
    /// The number of examinations so far.
    begun: u64,
}

/// The examination of one job.
#[derive(Debug)]
struct ExaminedJob {
    host: HostId,
    job: JobKey,
    /// `None` after it was completed and is not kept.
    investigation: Option<Investigation>,
    progress: Progress,
    /// Whether it began when the finding warned, or was about to.
    is_for_warning: bool,
    /// When it was completed.
    completed_at: Option<Moment>,
    /// The last verdict, for findings that take over from those that had it.
    verdict: Option<FindingVerdict>,
}

impl ExaminedJob {
    fn is_running(&self) -> bool {
        self.completed_at.is_none()
    }

    /// Whether it was completed so recently that its verdict still holds.
    fn is_recent(&self, finding: &Finding, is_for_warning: bool, now: Moment) -> bool {
        // An examination from before the hang was about an earlier one.
        let Some(at) = self.completed_at.filter(|at| !finding.began_after(*at)) else { return false };
        let is_early = is_for_warning && !self.is_for_warning;
        // It moved before the finding fired. It may have hung since.
        let moved = finding.moves() && finding.fired_at.is_some_and(|fired_at| fired_at > at);
        now.since(at) < if is_early || moved { PERIOD_BEFORE_WARNING } else { PERIOD }
    }

    fn is_about(&self, finding: &Finding) -> bool {
        finding.concerns_job(self.host, &self.job)
            || self.investigation.as_ref().is_some_and(|investigation| investigation.is_about(finding))
    }

    /// Whether a report about this job, which may be a part of a distributed one, can continue the examination.
    fn serves(&self, fleet: &Fleet, host: HostId, job: &JobKey) -> bool {
        (self.host, &self.job) == (host, job)
            || self.investigation.as_ref().is_some_and(|investigation| investigation.has_part(fleet, host, job))
    }
}

impl Investigations {
    /// Returns the requests to send now. The job of `report` is examined already.
    pub fn requests_due(
        &mut self,
        fleet: &Fleet,
        engine: &mut Engine,
        report: Option<&Investigation>,
        now: Moment,
    ) -> Vec<(HostId, Request)> {
        self.forget_ended(engine);
        self.begin_due(fleet, engine, report, now);
        let mut requests = Vec::new();
        // Of all examinations on each host.
        let mut pending: HashMap<HostId, usize> = HashMap::new();
        let hosts = self.jobs.iter().filter_map(|examined| examined.investigation.as_ref());
        hosts.flat_map(Investigation::pending_hosts).for_each(|host| *pending.entry(host).or_default() += 1);
        for examined in self.jobs.iter_mut().filter(|examined| examined.is_running()) {
            let Some(investigation) = &mut examined.investigation else { continue };
            investigation.pending_hosts().for_each(|host| *pending.entry(host).or_default() -= 1);
            requests.extend(investigation.requests_due_beside(fleet, engine, &pending, now));
            investigation.pending_hosts().for_each(|host| *pending.entry(host).or_default() += 1);
            note_progress(examined, fleet, engine, now);
        }
        self.add_verdicts(engine, now);
        self.drop_old_readings();
        requests
    }

    /// Takes the reply to a request. Returns `false` if it belongs to another one.
    pub fn take_reply(&mut self, host: HostId, reply: &Reply, fleet: &Fleet, engine: &mut Engine, now: Moment) -> bool {
        let is_of = |examined: &&mut ExaminedJob| {
            let of_host = examined.investigation.as_ref().and_then(|it| it.host_of_request(reply.id));
            of_host == Some(host)
        };
        let Some(examined) = self.jobs.iter_mut().find(is_of) else { return false };
        if let Some(investigation) = &mut examined.investigation {
            investigation.take_reply(reply.clone(), fleet, now);
        }
        note_progress(examined, fleet, engine, now);
        true
    }

    /// Returns an id from which on a new examination may number its requests.
    pub fn next_first_id(&mut self) -> u64 {
        self.begun += 1;
        FIRST_REQUEST_ID + self.begun * IDS_OF_ONE
    }

    /// Takes out the examination of a job, to be continued by a report about it or about its part on another host.
    pub fn take(&mut self, fleet: &Fleet, host: HostId, job: &JobKey) -> Option<Investigation> {
        let index = self.jobs.iter().position(|examined| examined.serves(fleet, host, job))?;
        let examined = &mut self.jobs[index];
        let investigation = examined.investigation.take()?;
        if examined.is_running() {
            self.jobs.swap_remove(index);
        }
        Some(investigation)
    }

    /// Continues the examination of a report that is no longer shown.
    pub fn put_back(&mut self, fleet: &Fleet, host: HostId, job: JobKey, investigation: Investigation) {
        let verdict = self.remove_same(fleet, (host, &job), &investigation);
        let progress = investigation.progress();
        let investigation = Some(investigation);
        let is_for_warning = true;
        self.jobs.push(ExaminedJob { host, job, investigation, progress, is_for_warning, completed_at: None, verdict });
    }

    /// Takes the verdict of a report: the job needs no other examination for some time.
    pub fn note_report(
        &mut self,
        fleet: &Fleet,
        (host, job): (HostId, &JobKey),
        report: &Investigation,
        verdict: FindingVerdict,
        now: Moment,
    ) {
        self.remove_same(fleet, (host, job), report);
        self.jobs.push(ExaminedJob {
            host,
            job: job.clone(),
            investigation: None,
            progress: Progress::Complete,
            is_for_warning: true,
            completed_at: Some(now),
            verdict: Some(verdict),
        });
    }

    /// Removes the examinations of the job that `report` is about. Returns their last verdict.
    fn remove_same(
        &mut self,
        fleet: &Fleet,
        (host, job): (HostId, &JobKey),
        report: &Investigation,
    ) -> Option<FindingVerdict> {
        let is_same = |examined: &mut ExaminedJob| {
            examined.serves(fleet, host, job) || report.has_part(fleet, examined.host, &examined.job)
        };
        let verdicts = self.jobs.extract_if(.., is_same).filter_map(|examined| examined.verdict);
        verdicts.max_by_key(|verdict| verdict.at.unix)
    }

    /// Ends all examinations, because the ids of hosts have changed. Late replies belong to none.
    pub fn end_all(&mut self) {
        self.jobs.clear();
    }

    /// Forgets the jobs of which no finding says that they hang.
    fn forget_ended(&mut self, engine: &Engine) {
        if !self.jobs.is_empty() {
            let hangs: Vec<&Finding> = engine.hangs().collect();
            self.jobs.retain(|examined| hangs.iter().any(|finding| examined.is_about(finding)));
        }
    }

    fn begin_due(&mut self, fleet: &Fleet, engine: &Engine, report: Option<&Investigation>, now: Moment) {
        let mut running = self.jobs.iter().filter(|examined| examined.is_running()).count();
        // Jobs that were never examined come first, then those that have waited longest since.
        let completed_at = |finding: &Finding| {
            let known = self.jobs.iter().find(|examined| examined.is_about(finding));
            known.and_then(|examined| examined.completed_at).map(Moment::since_start)
        };
        let due = engine.hangs().filter(|finding| is_due(finding, now));
        let mut due: Vec<(Option<Duration>, &Finding)> = due.map(|finding| (completed_at(finding), finding)).collect();
        due.sort_by_key(|(at, finding)| (*at, std::cmp::Reverse(finding.severity), finding.since.unix));
        for (_, finding) in due {
            if running >= MAX_RUNNING {
                return;
            }
            let Some(job) = &finding.job else { continue };
            let host = finding.host;
            let is_reported =
                report.is_some_and(|report| report.is_about(finding) || report.has_part(fleet, host, job));
            let runs = self.jobs.iter().any(|examined| examined.is_running() && examined.is_about(finding));
            if !is_automatic(fleet, host) || is_reported || runs {
                continue;
            }
            let known = self.jobs.iter().position(|examined| examined.is_about(finding));
            let is_for_warning = warns_soon(finding, now);
            match known.map(|index| &self.jobs[index]) {
                Some(examined) if examined.is_recent(finding, is_for_warning, now) => continue,
                None if self.jobs.len() >= MAX_JOBS => continue,
                Some(_) | None => {}
            }
            let first_id = self.next_first_id();
            let investigation = Investigation::new(fleet, host, job, RasQueries::AsConfigured, first_id);
            // A part of the job may run on a host where examinations are left to the user.
            let may_examine =
                investigation.has_own_ranks() && investigation.examined_hosts().all(|host| is_automatic(fleet, host));
            running += usize::from(may_examine);
            let examined = ExaminedJob {
                host,
                job: job.clone(),
                progress: Progress::FirstReading,
                is_for_warning,
                completed_at: (!may_examine).then_some(now),
                investigation: may_examine.then_some(investigation),
                verdict: known.and_then(|index| self.jobs[index].verdict.take()),
            };
            match known {
                Some(index) => self.jobs[index] = examined,
                None => self.jobs.push(examined),
            }
        }
    }

    /// Adds the verdict about a job to findings that have none. They may be about to take over from one that has it: another
    /// rule, or another host of the job.
    fn add_verdicts(&self, engine: &mut Engine, now: Moment) {
        for examined in &self.jobs {
            let Some(verdict) = examined.verdict.as_ref().filter(|verdict| verdict.until > now) else { continue };
            let has_none = |finding: &Finding| finding.verdict.is_none() && !finding.is_frozen;
            let is_about = |finding: &Finding| examined.is_about(finding) && !finding.began_after(verdict.at);
            engine.set_verdict(|finding| has_none(finding) && is_about(finding), verdict);
        }
    }

    /// Keeps the readings of the newest completed examinations only: they may be large.
    fn drop_old_readings(&mut self) {
        let is_kept = |examined: &ExaminedJob| examined.investigation.is_some() && !examined.is_running();
        while self.jobs.iter().filter(|examined| is_kept(examined)).count() > MAX_KEPT {
            let kept = self.jobs.iter_mut().filter(|examined| is_kept(examined));
            let Some(oldest) = kept.min_by_key(|examined| examined.completed_at.map(Moment::since_start)) else {
                return;
            };
            oldest.investigation = None;
        }
    }
}

/// Judges the readings of an examination that has come further, and adds the verdict to the findings about the job.
fn note_progress(examined: &mut ExaminedJob, fleet: &Fleet, engine: &mut Engine, now: Moment) {
    let Some(investigation) = &examined.investigation else { return };
    let progress = investigation.progress();
    if std::mem::replace(&mut examined.progress, progress) == progress {
        return;
    }
    if progress == Progress::Complete {
        examined.completed_at = Some(now);
    }
    if let Some(verdict) = judge_investigation(investigation, fleet, engine, now).for_findings {
        examined.verdict = Some(verdict);
    }
}

/// The result of judging the readings of an examination.
#[derive(Debug)]
pub struct Judgement {
    /// The evidence.
    pub evidence: JobEvidence,
    /// The verdict about it.
    pub verdict: Verdict,
    /// The verdict as the findings about the job have it; `None` as long as the readings are too few for that.
    pub for_findings: Option<FindingVerdict>,
}

/// Judges the readings of an examination, and adds the verdict to the findings about its job.
///
/// One reading is enough only for a proof: whether anything moves is known after the second one. Later ones count as a whole.
pub fn judge_investigation(
    investigation: &Investigation,
    fleet: &Fleet,
    engine: &mut Engine,
    now: Moment,
) -> Judgement {
    let finding = engine.findings().find(|finding| finding.rule.is_hang() && investigation.is_about(finding));
    let evidence = investigation.evidence(fleet, engine, finding, now);
    let verdict = judge(&evidence);
    let is_first_proof = verdict.outcome == Outcome::Proven && investigation.progress() != Progress::Complete;
    let is_enough = investigation.has_whole_readings() || is_first_proof;
    let hosts: BTreeSet<HostId> = evidence.ranks.iter().map(|rank| rank.host).collect();
    let for_findings = is_enough.then(|| FindingVerdict::new(&verdict, hosts.into_iter().collect(), now));
    if let Some(of_findings) = &for_findings {
        // A host that is down hides its part of the evidence: the findings about it keep their verdicts.
        engine.set_verdict(|finding| !finding.is_frozen && investigation.is_about(finding), of_findings);
    }
    Judgement { evidence, verdict, for_findings }
}

/// Whether the jobs of a host are examined without a request. The collector that reads a host for this program examines its
/// jobs: this program has no session there.
fn is_automatic(fleet: &Fleet, host: HostId) -> bool {
    let config = fleet.host(host).map(|host| &host.config);
    config.is_some_and(|config| config.examine == ExamineRule::Automatic && config.relayed_by.is_none())
}

/// Whether the job of a finding is to be examined: it warns that the job hangs, or may soon.
fn is_due(finding: &Finding, now: Moment) -> bool {
    // A verdict that the job moves makes the warning a note, which is examined again.
    let is_note = finding.phase == FindingPhase::Firing && finding.moves();
    let is_due = warns_soon(finding, now) || lasts_almost(finding, finding.may_warn_after, now) || is_note;
    is_due && finding.is_mine && !finding.is_frozen && finding.snoozed.is_none()
}

/// Whether a finding warns, or is about to.
fn warns_soon(finding: &Finding, now: Moment) -> bool {
    let warns = finding.phase == FindingPhase::Firing && finding.severity >= Severity::Warn;
    warns || lasts_almost(finding, finding.warns_after, now)
}

/// Whether a finding has lasted for almost this time.
fn lasts_almost(finding: &Finding, time: Option<Duration>, now: Moment) -> bool {
    time.is_some_and(|time| finding.lasted(now) + LEAD >= time)
}

#[cfg(test)]
#[path = "investigations_tests.rs"]
mod tests;
