//! The report about a job that looks hung. `hang_report_actions` opens it and keeps it up to date.

use crate::diagnosis::proof::investigation::{Investigation, Progress};
use crate::diagnosis::proof::{JobEvidence, Verdict};
use crate::fleet::{HostId, JobKey};

/// The report about one job.
#[derive(Debug)]
pub struct HangReport {
    pub(super) host: HostId,
    pub(super) job: JobKey,
    pub(super) investigation: Investigation,
    pub(super) evidence: JobEvidence,
    pub(super) verdict: Verdict,
    /// The first visible row.
    pub(super) top: usize,
}

impl HangReport {
    /// Returns the evidence that the verdict is about.
    pub fn evidence(&self) -> &JobEvidence {
        &self.evidence
    }

    /// Returns the verdict about everything that has been read so far.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Whether its job is being examined: while it is on the screen, and until its second reading.
    pub(super) fn is_running(&self, is_on_screen: bool) -> bool {
        is_on_screen || self.progress() != Progress::Complete
    }

    /// Returns how far the examination is.
    pub fn progress(&self) -> Progress {
        self.investigation.progress()
    }

    /// Returns the number of examined processes and of their hosts in words.
    pub fn extent_text(&self) -> String {
        self.investigation.extent_text()
    }

    /// Returns the first visible row.
    pub fn top(&self) -> usize {
        self.top
    }
}
