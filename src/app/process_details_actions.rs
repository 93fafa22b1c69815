//! Requests the variables and the end of the log of the process on the screen.

use super::App;
use super::event::Effect;
use super::process_details::{FIRST_REQUEST_ID, ProcessDetails};
use super::screen::View;
use crate::fleet::{HostId, Moment, Process, ProcessKey, RowKey};
use crate::wire::Reply;

impl App {
    /// Returns the variables and the log of a row, if its view is open and its process may be read.
    pub fn process_details(&self, key: &RowKey) -> Option<&ProcessDetails> {
        self.process_details.as_deref().filter(|details| details.key() == key)
    }

    /// Sends the requests that are due while the view of a process of the login user is on the screen. Over a relayed host
    /// nothing is requested: the request would open an SSH session of the viewer, which may ask for a password.
    pub(super) fn continue_process_details(&mut self, now: Moment) -> Vec<Effect> {
        let View::Process(key) = self.screen.view() else {
            self.process_details = None;
            return Vec::new();
        };
        let key = key.clone();
        if self.process_details(&key).is_none() {
            self.process_details = None;
            let Some(process) = self.own_process_of(&key) else { return Vec::new() };
            self.process_details = Some(Box::new(ProcessDetails::new(key, process)));
        }
        let Some(details) = &mut self.process_details else { return Vec::new() };
        let host = details.host();
        details
            .requests_due(&mut self.last_details_request, now)
            .into_iter()
            .map(|request| Effect::Request(host, request))
            .collect()
    }

    /// Returns the process of a row that the login user owns and that runs: of a job, its first worker with a GPU that is the
    /// user's.
    fn own_process_of(&self, key: &RowKey) -> Option<ProcessKey> {
        let row = self.row(key).filter(|row| row.is_mine && row.ended_at.is_none())?;
        let host = self.live_fleet().host(key.host).filter(|host| host.config.relayed_by.is_none())?;
        let is_job = key.is_job || key.group.is_some();
        let belongs = |process: &&Process| {
            if is_job {
                process.info.job == row.job && host.belongs_to_login_user(process)
            } else {
                process.key == key.process
            }
        };
        let first =
            host.processes().filter(belongs).min_by_key(|process| (process.key.start_ticks, process.key.pid))?;
        Some(first.key.clone())
    }

    /// Takes a reply to one of these requests. Returns `false` if it belongs to another request.
    pub(super) fn take_process_details_reply(&mut self, host: HostId, reply: &Reply, now: Moment) -> bool {
        match &mut self.process_details {
            Some(details) if details.host() == host => details.take_reply(reply, now),
            // The view was left, or is about another host.
            _ => reply.id > FIRST_REQUEST_ID,
        }
    }
}

#[cfg(test)]
#[path = "process_details_actions_tests.rs"]
mod tests;
