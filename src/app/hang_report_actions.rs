//! Opens the report about a job that looks hung (`W`), examines the job twice, and again while the report is on the screen, and
//! judges the readings.

use super::App;
use super::action::Mode;
use super::event::Effect;
use super::hang_report::HangReport;
use super::screen::View;
use crate::diagnosis::proof::investigation::{Investigation, Progress, RasQueries};
use crate::diagnosis::proof::investigations::judge_investigation;
use crate::diagnosis::proof::judge;
use crate::fleet::{HostId, JobKey, Moment};
use crate::wire::Reply;

impl App {
    /// Returns the report, if one was opened.
    pub fn hang_report(&self) -> Option<&HangReport> {
        self.hang_report.as_deref()
    }

    /// Opens the report about the job of the selected process or finding.
    pub(super) fn open_hang_report(&mut self, now: Moment) -> Vec<Effect> {
        let Some((host, job)) = self.selected_job() else {
            let notice = match self.mode() {
                Mode::Findings => "this finding is not about a job",
                _ => "select a process first",
            };
            self.notify(notice, now);
            return Vec::new();
        };
        let fleet = self.frozen.as_ref().map_or(&self.fleet, |frozen| &frozen.live);
        let is_open = self.hang_report.as_ref().is_some_and(|report| {
            (report.host, &report.job) == (host, &job) || report.investigation.has_part(fleet, host, &job)
        });
        // An examination that was begun because the job looks hung goes on in the report. It is newer than an earlier report.
        let begun = self.investigations.take(fleet, host, &job);
        if !is_open || begun.is_some() {
            let investigation = begun.unwrap_or_else(|| {
                let first_id = self.investigations.next_first_id();
                Investigation::new(fleet, host, &job, RasQueries::AsConfigured, first_id)
            });
            if !investigation.has_own_ranks() {
                let owner = self.owner_of(host, &job);
                self.notify(format!("the job belongs to {owner}: only its owner may examine it"), now);
                return Vec::new();
            }
            let evidence = investigation.evidence(fleet, &self.engine, None, now);
            let verdict = judge(&evidence);
            // The one before goes on if its job looks hung.
            let before = self.hang_report.take().filter(|report| !is_open && report.progress() != Progress::Complete);
            if let Some(before) = before {
                self.investigations.put_back(fleet, before.host, before.job, before.investigation);
            }
            self.hang_report = Some(Box::new(HangReport { host, job, investigation, evidence, verdict, top: 0 }));
        }
        self.screen.enter(View::HangReport);
        self.continue_hang_report(now)
    }

    fn selected_job(&self) -> Option<(HostId, JobKey)> {
        if self.mode() == Mode::Findings {
            let finding = self.findings().selected()?;
            return Some((finding.host, finding.job.clone()?));
        }
        if let View::Process(key) = self.screen.view() {
            return Some((key.host, self.row(key)?.job.clone()));
        }
        let row = self.rows().get(self.screen.list.index())?;
        Some((row.key.host, row.job.clone()))
    }

    fn owner_of(&self, host: HostId, job: &JobKey) -> String {
        let host = self.live_fleet().host(host);
        let process = host.and_then(|host| host.processes().find(|process| process.info.job == *job));
        process.map_or_else(|| "another user".to_owned(), |process| process.info.who.to_string())
    }

    /// Sends the requests of the report that are due.
    pub(super) fn continue_hang_report(&mut self, now: Moment) -> Vec<Effect> {
        let is_on_screen = *self.screen.view() == View::HangReport;
        let fleet = self.frozen.as_ref().map_or(&self.fleet, |frozen| &frozen.live);
        let report = self.hang_report.as_mut().filter(|report| report.is_running(is_on_screen));
        let Some(report) = report else { return Vec::new() };
        let before = (report.progress(), report.investigation.has_whole_readings());
        let requests = report.investigation.requests_due(fleet, &self.engine, now);
        if before != (report.progress(), report.investigation.has_whole_readings()) {
            // Requests that were given up may have been the last ones.
            self.judge_hang_report(now);
        }
        requests.into_iter().map(|(host, request)| Effect::Request(host, request)).collect()
    }

    /// Takes a reply to one of the report's requests. Returns `false` if it belongs to another request.
    pub(super) fn take_hang_report_reply(&mut self, host: HostId, reply: &Reply, now: Moment) -> bool {
        let fleet = self.frozen.as_ref().map_or(&self.fleet, |frozen| &frozen.live);
        let Some(report) = &mut self.hang_report else { return false };
        if report.investigation.host_of_request(reply.id) != Some(host) {
            return false;
        }
        if !report.investigation.take_reply(reply.clone(), fleet, now) {
            return false;
        }
        self.judge_hang_report(now);
        true
    }

    /// Judges the readings of the report, and adds the verdict to the findings about its job.
    fn judge_hang_report(&mut self, now: Moment) {
        let fleet = self.frozen.as_ref().map_or(&self.fleet, |frozen| &frozen.live);
        let Some(report) = &mut self.hang_report else { return };
        let judgement = judge_investigation(&report.investigation, fleet, &mut self.engine, now);
        (report.evidence, report.verdict) = (judgement.evidence, judgement.verdict);
        if let Some(verdict) = judgement.for_findings {
            self.investigations.note_report(fleet, (report.host, &report.job), &report.investigation, verdict, now);
        }
    }

    /// Sends the requests that are due about jobs that look hung, apart from the one of the report.
    pub(super) fn examine_suspects(&mut self, now: Moment) -> Vec<Effect> {
        let is_on_screen = *self.screen.view() == View::HangReport;
        let report = self.hang_report.as_ref().filter(|report| report.is_running(is_on_screen));
        let report = report.map(|report| &report.investigation);
        let fleet = self.frozen.as_ref().map_or(&self.fleet, |frozen| &frozen.live);
        let requests = self.investigations.requests_due(fleet, &mut self.engine, report, now);
        requests.into_iter().map(|(host, request)| Effect::Request(host, request)).collect()
    }

    /// Takes a reply to one of those requests. Returns `false` if it belongs to another one.
    pub(super) fn take_investigation_reply(&mut self, host: HostId, reply: &Reply, now: Moment) -> bool {
        let fleet = self.frozen.as_ref().map_or(&self.fleet, |frozen| &frozen.live);
        self.investigations.take_reply(host, reply, fleet, &mut self.engine, now)
    }
}

#[cfg(test)]
#[path = "hang_report_actions_tests.rs"]
pub(crate) mod tests;
