//! Details of a job that are shown beside the verdict: the variables of its ranks and the end of a log.

use super::evidence::{JobEvidence, LogTail, RankEvidence};
use super::ranks::Ranks;
use super::verdict::Verdict;
use crate::wire::SafeText;
use crate::wire::format::{DurationStyle, duration};

/// The maximum number of ranks with their own variables.
const MAX_RANKS: usize = 4;
/// The maximum number of lines of a log.
pub const MAX_LOG_LINES: usize = 8;

/// The variables of the ranks of a job, and the end of a log.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobDetails<'a> {
    /// The variables with the same value in all examined ranks, as `NAME=value`.
    pub common_variables: Vec<&'a SafeText>,
    /// The other variables of the ranks that hold the job up: the name of the rank, and `NAME=value`.
    pub own_variables: Vec<(String, Vec<&'a SafeText>)>,
    /// The log of a rank that holds the job up, else of the first rank that has one.
    pub log: Option<&'a LogTail>,
}

impl<'a> JobDetails<'a> {
    /// Selects the details that belong to a verdict.
    pub fn new(evidence: &'a JobEvidence, verdict: &Verdict) -> Self {
        let ranks = Ranks::new(evidence);
        let culprits = verdict.culprit.iter().flat_map(|culprit| &culprit.ranks);
        let culprits: Vec<usize> = culprits
            .filter_map(|culprit| {
                ranks.list.iter().position(|rank| {
                    Some(rank.evidence.host) == culprit.host_id && Some(&rank.evidence.key) == culprit.key.as_ref()
                })
            })
            .collect();
        let examined: Vec<&[SafeText]> =
            ranks.list.iter().map(|rank| variables(rank.evidence)).filter(|variables| !variables.is_empty()).collect();
        let is_common = |variable: &&SafeText| examined.iter().all(|variables| variables.contains(*variable));
        let own_variables = culprits.iter().take(MAX_RANKS).filter_map(|position| {
            let own: Vec<&SafeText> =
                variables(ranks.list[*position].evidence).iter().filter(|variable| !is_common(variable)).collect();
            (!own.is_empty()).then(|| (ranks.culprit_at(*position).name(), own))
        });
        let own_variables = own_variables.collect();
        let log = culprits.iter().copied().chain(0..ranks.list.len()).find_map(|position| {
            ranks.list[position].evidence.log.as_ref().filter(|log| log.lines.iter().any(|line| !is_blank(line)))
        });
        Self {
            common_variables: examined.first().map_or_else(Vec::new, |first| first.iter().filter(is_common).collect()),
            own_variables,
            log,
        }
    }

    /// The details as lines, each with its label. The lines of a log have none.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let joined = |variables: &[&SafeText]| variables.iter().map(|one| one.as_str()).collect::<Vec<_>>().join(" ");
        let mut lines = Vec::new();
        if !self.common_variables.is_empty() {
            lines.push(("variables", joined(&self.common_variables)));
        }
        for (rank, variables) in &self.own_variables {
            lines.push(("variables", format!("{rank}: {}", joined(variables))));
        }
        if let Some(log) = self.log {
            let age = log.age.map(|age| format!(", written {} ago", duration(age, DurationStyle::OneUnit)));
            lines.push(("log", format!("{}{}", log.path, age.unwrap_or_default())));
            lines.extend(last_lines(log).into_iter().map(|line| ("", line.to_string())));
        }
        lines
    }
}

/// The latest variables of a rank, as `NAME=value`. Empty if it was not examined.
pub fn variables(rank: &RankEvidence) -> &[SafeText] {
    let latest = rank.readings.iter().rev().find_map(|reading| reading.examination.process.as_deref());
    latest.map_or(&[], |process| &process.variables)
}

/// The last lines of a log that are not blank, oldest first.
pub fn last_lines(log: &LogTail) -> Vec<&SafeText> {
    let mut lines: Vec<&SafeText> = log.lines.iter().rev().filter(|line| !is_blank(line)).take(MAX_LOG_LINES).collect();
    lines.reverse();
    lines
}

fn is_blank(line: &SafeText) -> bool {
    line.trim().is_empty()
}

#[cfg(test)]
mod tests {
    use super::super::judge;
    use super::super::testing::{hanging_job, laggard};
    use super::*;

    fn text(variables: &[&SafeText]) -> Vec<String> {
        variables.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn equal_variables_are_those_of_the_job_and_others_those_of_the_culprit() {
        let mut job = laggard();
        let log = |path: &str, line: &str| {
            Some(LogTail { path: path.into(), lines: vec![line.into()], ..LogTail::default() })
        };
        job.ranks[0].log = log("/home/ann/0.log", "begins");
        job.ranks[7].log = log("/home/ann/7.log", "step 60");
        let verdict = judge(&job);
        let details = JobDetails::new(&job, &verdict);
        assert_eq!(text(&details.common_variables), ["WORLD_SIZE=8", "MASTER_ADDR=10.0.0.1"]);
        let [(rank, own)] = &details.own_variables[..] else { panic!("{details:?}") };
        assert_eq!((rank.as_str(), text(own)), ("rank 7", vec!["RANK=7".to_owned()]));
        assert_eq!(details.log.map(|log| &*log.path), Some("/home/ann/7.log"));
        // A blank log says nothing.
        job.ranks[7].log = log("/home/ann/7.log", " ");
        assert_eq!(JobDetails::new(&job, &verdict).log.map(|log| &*log.path), Some("/home/ann/0.log"));
    }

    #[test]
    fn a_job_without_an_examination_has_no_details() {
        let mut job = hanging_job(2);
        job.ranks.iter_mut().for_each(|rank| rank.readings.clear());
        let details = JobDetails::new(&job, &judge(&job)).lines();
        assert_eq!(details, []);
    }
}
