//! What diagnosis says, as text and as JSON; docs/recording.md and docs/findings-json.md describe the JSON.

mod json;
mod text;

pub use json::{
    JsonFinding, JsonFindingGpu, JsonFindingProcess, JsonFindings, JsonNeedsHistory, JsonNotJudged, JsonSilent,
    JsonTransition, SCHEMA, line, transition_line,
};
pub use text::{list, severity_tone, transition};

use crate::diagnosis::{Finding, NotJudged, RuleId, Severity};
use crate::fleet::{Fleet, Moment};
use std::time::Duration;

/// What there is to say at the end of a look.
pub struct FindingsReport<'a> {
    /// The fleet.
    pub fleet: &'a Fleet,
    /// The findings in the engine's order: firing, pending, resolving.
    pub findings: &'a [&'a Finding],
    /// What could not be judged.
    pub not_judged: &'a [NotJudged],
    /// Rules that watch for longer than was watched, with how long they do.
    pub too_little_history: &'a [(RuleId, Duration)],
    /// For how long it was watched, on the fleet's clock.
    pub observed: Duration,
    /// The moment for which ages are told.
    pub now: Moment,
}

/// Whether a finding is to be shown.
pub fn is_shown(finding: &Finding, least: Severity) -> bool {
    finding.severity >= least
}

#[cfg(test)]
pub(super) mod fixture;
#[cfg(test)]
mod tests;
