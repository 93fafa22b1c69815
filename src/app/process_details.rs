//! The variables and the end of the log of the process on the screen. They are requested while the view of a process of the
//! login user is open, shown there, and forgotten with it: they are never stored and never logged.

use crate::fleet::{HostId, Moment, ProcessKey, RowKey};
use crate::wire::job_variables::is_job_variable;
use crate::wire::{Reply, ReplyOutcome, Request, SafeText};
use std::time::Duration;

/// The ids of these requests are greater. Those of a report about a hang begin at 1 << 40.
pub(super) const FIRST_REQUEST_ID: u64 = 1 << 48;
/// The log is read again this long after the last answer.
const LOG_PERIOD: Duration = Duration::from_secs(10);
/// A request without a reply for this long has failed. The probe's own limit is shorter.
const REPLY_LIMIT: Duration = Duration::from_secs(10);

/// A value that is read on request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requested<T> {
    /// The answer has not come.
    Pending,
    /// The value.
    Known(T),
    /// It cannot be read, with the reason.
    Refused(SafeText),
}

/// The end of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEnd {
    /// Path of the file.
    pub path: SafeText,
    /// Its last lines, oldest first.
    pub lines: Vec<SafeText>,
}

/// The variables and the log of one process.
#[derive(Debug)]
pub struct ProcessDetails {
    key: RowKey,
    host: HostId,
    process: ProcessKey,
    /// The variables of the job as `NAME=value`.
    variables: Requested<Vec<SafeText>>,
    log: Requested<LogEnd>,
    /// The requests without a reply, with the time at which each was sent.
    variables_request: Option<(u64, Moment)>,
    log_request: Option<(u64, Moment)>,
    /// When the last answer about each came.
    variables_at: Option<Moment>,
    log_at: Option<Moment>,
    /// The process has exited, or may not be read: nothing is requested any more.
    is_final: bool,
}

impl ProcessDetails {
    /// The details of the process of a row, of which nothing is known yet.
    pub(super) fn new(key: RowKey, process: ProcessKey) -> Self {
        Self {
            host: key.host,
            key,
            process,
            variables: Requested::Pending,
            log: Requested::Pending,
            variables_request: None,
            log_request: None,
            variables_at: None,
            log_at: None,
            is_final: false,
        }
    }

    /// Returns the row that the details are about.
    pub(super) fn key(&self) -> &RowKey {
        &self.key
    }

    /// Returns the host of the process.
    pub(super) fn host(&self) -> HostId {
        self.host
    }

    /// Returns the pid that the details are about.
    pub fn pid(&self) -> u32 {
        self.process.pid
    }

    /// Returns the variables that place the process in its job, as `NAME=value`.
    pub fn variables(&self) -> &Requested<Vec<SafeText>> {
        &self.variables
    }

    /// Returns the end of the log.
    pub fn log(&self) -> &Requested<LogEnd> {
        &self.log
    }

    pub(super) fn requests_due(&mut self, next_id: &mut u64, now: Moment) -> Vec<Request> {
        let late = |request: &mut Option<(u64, Moment)>| {
            request.take_if(|(_, sent)| now.since(*sent) >= REPLY_LIMIT).is_some()
        };
        let why = || SafeText::from("no reply came within 10 s");
        if late(&mut self.variables_request) {
            (self.variables, self.variables_at) = (Requested::Refused(why()), Some(now));
        }
        if late(&mut self.log_request) {
            self.log_at = Some(now);
            refuse_log(&mut self.log, why());
        }
        let (Some(boot_id), pid, Some(start_ticks)) =
            (self.process.boot_id.clone(), self.process.pid, self.process.start_ticks)
        else {
            let reason = SafeText::from("/proc does not show the process");
            (self.variables, self.log) = (Requested::Refused(reason.clone()), Requested::Refused(reason));
            return Vec::new();
        };
        let mut take_id = || {
            *next_id += 1;
            *next_id
        };
        let mut requests = Vec::new();
        let is_final = self.is_final;
        let is_again = |at: Option<Moment>| !is_final && at.is_none_or(|at| now.since(at) >= LOG_PERIOD);
        let are_due = match self.variables {
            Requested::Pending => true,
            Requested::Known(_) => false,
            Requested::Refused(_) => is_again(self.variables_at),
        };
        if are_due && self.variables_request.is_none() {
            let id = take_id();
            self.variables_request = Some((id, now));
            requests.push(Request::Environment { id, boot_id: boot_id.clone(), pid, start_ticks });
        }
        if (self.log == Requested::Pending || is_again(self.log_at)) && self.log_request.is_none() {
            let id = take_id();
            self.log_request = Some((id, now));
            requests.push(Request::LogTail { id, boot_id, pid, start_ticks });
        }
        requests
    }

    /// Takes a reply. Returns `false` if it belongs to another request.
    pub(super) fn take_reply(&mut self, reply: &Reply, now: Moment) -> bool {
        let is_for = |request: Option<(u64, Moment)>| request.is_some_and(|(id, _)| id == reply.id);
        if is_for(self.variables_request) {
            (self.variables_request, self.variables_at) = (None, Some(now));
            self.variables = match &reply.outcome {
                // An older probe sends the whole environment.
                ReplyOutcome::Environment(variables) => {
                    Requested::Known(variables.iter().filter(|variable| is_job_variable(variable)).cloned().collect())
                }
                other => Requested::Refused(refusal_text(other)),
            };
        } else if is_for(self.log_request) {
            (self.log_request, self.log_at) = (None, Some(now));
            match &reply.outcome {
                ReplyOutcome::LogTail { path, lines } => {
                    self.log = Requested::Known(LogEnd { path: path.clone(), lines: lines.clone() });
                }
                other => refuse_log(&mut self.log, refusal_text(other)),
            }
        } else {
            return reply.id > FIRST_REQUEST_ID;
        }
        self.is_final |=
            matches!(reply.outcome, ReplyOutcome::Gone | ReplyOutcome::Reused | ReplyOutcome::NotPermitted);
        true
    }
}

/// Lines that are shown stay.
fn refuse_log(log: &mut Requested<LogEnd>, reason: SafeText) {
    if !matches!(log, Requested::Known(_)) {
        *log = Requested::Refused(reason);
    }
}

fn refusal_text(outcome: &ReplyOutcome) -> SafeText {
    match outcome {
        ReplyOutcome::Gone => "the process has exited".into(),
        ReplyOutcome::Reused => "the pid now belongs to another process".into(),
        ReplyOutcome::NotPermitted => "it is another user's process".into(),
        ReplyOutcome::Refused(reason) => reason.clone(),
        _ => "the probe sent an unknown answer".into(),
    }
}
