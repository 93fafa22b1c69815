//! Replays a case through the fleet and the diagnosis engine and compares the findings with the expected ones.

use super::case_file::Case;
use super::case_recording::{CaseRecording, Variant};
use super::verdicts::{CaseVerdict, Examiner};
use gpufleet::cli::replay::Replay;
use gpufleet::diagnosis::proof::Outcome;
use gpufleet::diagnosis::{FindingPhase, RuleId, Severity};
use gpufleet::sim::script::{Job, Seconds, arguments, seconds};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A finding that fired or rose in severity.
#[derive(Debug, Clone)]
pub(crate) struct Fired {
    /// Seconds after the case began.
    pub(crate) at: f64,
    pub(crate) rule: &'static str,
    pub(crate) severity: Severity,
    pub(crate) id: String,
    pub(crate) host: String,
    pub(crate) sentence: String,
    /// It is about a job of the login user that hangs.
    is_own_hang: bool,
}

/// A finding that the case must produce, and when it fired.
#[derive(Debug, Clone)]
pub(crate) struct ExpectedFinding {
    pub(crate) rule: String,
    pub(crate) severity: Severity,
    /// Seconds from the beginning of the condition to the finding; `None` if the finding was missed.
    pub(crate) after: Option<f64>,
}

/// The verdict about a job that was examined, and the truth.
#[derive(Debug, Clone)]
pub(crate) struct JudgedVerdict {
    pub(crate) outcome: Outcome,
    /// For a job that hangs: seconds from the beginning of the hang to the verdict.
    pub(crate) hangs_for: Option<f64>,
}

/// The result of one case in one variant with one seed.
#[derive(Debug)]
pub(crate) struct CaseResult {
    pub(crate) case: String,
    pub(crate) variant: Variant,
    pub(crate) seed: u64,
    pub(crate) expected: Vec<ExpectedFinding>,
    /// Findings at warn or above that the case demands or allows.
    pub(crate) true_positives: Vec<Fired>,
    /// Other findings at warn or above.
    pub(crate) false_positives: Vec<Fired>,
    /// Verdicts about the jobs of the login user.
    pub(crate) verdicts: Vec<JudgedVerdict>,
    /// Seconds from each right warning that a job of the login user hangs to the verdict: 0 if the verdict was there first, `None`
    /// if the case ended before one.
    pub(crate) waits: Vec<Option<f64>>,
    /// Deviations from the expectations, one sentence each.
    pub(crate) problems: Vec<String>,
}

/// A parsed line of `must`.
struct Expectation {
    text: String,
    rule: String,
    severity: Severity,
    keys: BTreeMap<String, String>,
}

impl Expectation {
    fn parse(text: &str) -> Self {
        let mut words = text.split_whitespace();
        let rule = words.next().unwrap_or_else(|| panic!("an empty expectation")).to_owned();
        let severity = severity(words.next().unwrap_or_else(|| panic!("`{text}` has no severity")));
        Self { text: text.to_owned(), rule, severity, keys: arguments(words).collect() }
    }

    fn time(&self, key: &str) -> Option<f64> {
        self.keys.get(key).map(|text| seconds(text).unwrap_or_else(|| panic!("`{text}` is not a time")))
    }
}

/// Parses `rule` or `rule severity`: the highest allowed severity, or the lowest forbidden one.
fn limit(text: &str, default: Severity) -> (String, Severity) {
    let (rule, word) = text.split_once(' ').unwrap_or((text, ""));
    (rule.to_owned(), if word.is_empty() { default } else { severity(word) })
}

fn severity(word: &str) -> Severity {
    match word {
        "info" => Severity::Info,
        "warn" => Severity::Warn,
        "crit" => Severity::Crit,
        other => panic!("no severity `{other}`"),
    }
}

/// Whether `may` of a case allows this finding.
pub(crate) fn is_allowed(case: &Case, fired: &Fired) -> bool {
    let allowed = case.may.iter().map(|text| limit(text, Severity::Crit));
    allowed.into_iter().any(|(rule, most)| rule == fired.rule && fired.severity <= most)
}

/// Whether a case runs in a variant.
pub(crate) fn runs_in(case: &Case, variant: Variant) -> bool {
    let is_excepted = case.except.iter().any(|except| except.split(':').next() == Some(variant.word()));
    // A case with `must` runs with a late monitor only if it says what that monitor must find.
    let lacks_late_expectations = variant == Variant::Late && !case.must.is_empty() && case.late.is_none();
    !is_excepted && !lacks_late_expectations
}

/// The findings and notifications of one replay.
pub(crate) struct CaseRun {
    pub(crate) fired: Vec<Fired>,
    notified: Vec<(&'static str, f64)>,
    /// Rules with an open finding at the end.
    open: Vec<&'static str>,
    not_judged: String,
    verdicts: Vec<CaseVerdict>,
}

/// Replays a case.
pub(crate) fn replay_case(case: &Case, variant: Variant, seed: u64) -> CaseRun {
    let mut player = CaseRecording::new(case, variant, seed);
    let monitor_starts = player.monitor_starts();
    let Seconds(length) = case.length;
    let mut examiner = Examiner::new(0.75 * length);
    let mut replay = Replay::new(Arc::default());
    let mut run = CaseRun {
        fired: Vec::new(),
        notified: Vec::new(),
        open: Vec::new(),
        not_judged: String::new(),
        verdicts: Vec::new(),
    };
    while let Some(lines) = player.next() {
        for line in lines {
            for transition in replay.take(line) {
                let at = monitor_starts + transition.at.since_start().as_secs_f64();
                let rule = transition.rule.word();
                if transition.notify {
                    run.notified.push((rule, at));
                }
                // A finding that returns from resolving is not new.
                let is_new =
                    matches!(transition.from, FindingPhase::Clear | FindingPhase::Pending | FindingPhase::Firing);
                if transition.to == FindingPhase::Firing && is_new {
                    let finding = replay.engine().finding_of(&transition);
                    run.fired.push(Fired {
                        at,
                        rule,
                        severity: transition.severity,
                        id: transition.id.to_string(),
                        host: transition.host_name.to_string(),
                        sentence: transition.sentence.to_string(),
                        is_own_hang: finding.is_some_and(|finding| finding.is_mine && finding.rule.is_hang()),
                    });
                }
            }
        }
        examiner.step(&mut replay, &player);
    }
    run.verdicts = examiner.verdicts;
    let open = replay.engine().findings().filter(|finding| finding.phase != FindingPhase::Pending);
    run.open = open.map(|finding| finding.rule.word()).collect();
    let missing: Vec<String> = replay.engine().not_judged().iter().map(ToString::to_string).collect();
    run.not_judged = missing.join(", ");
    run
}

/// Replays a case and compares the result with its expectations.
pub(crate) fn evaluate(case: &Case, variant: Variant, seed: u64) -> CaseResult {
    let run = replay_case(case, variant, seed);
    let is_late = variant == Variant::Late && !case.must.is_empty();
    let expectations: Vec<Expectation> =
        if is_late { &case.late_must } else { &case.must }.iter().map(|text| Expectation::parse(text)).collect();
    let mut result = CaseResult {
        case: case.name.clone(),
        variant,
        seed,
        expected: Vec::new(),
        true_positives: Vec::new(),
        false_positives: Vec::new(),
        verdicts: Vec::new(),
        waits: Vec::new(),
        problems: Vec::new(),
    };
    for must in &expectations {
        let found = check_expectation(must, &run, case.interval, variant, &mut result.problems);
        result.expected.push(found);
    }
    let mut allowed: BTreeMap<String, Severity> = BTreeMap::new();
    let late_may = case.late_may.iter().filter(|_| variant == Variant::Late);
    let may = case.may.iter().chain(late_may).map(|text| limit(text, Severity::Crit));
    for (rule, severity) in expectations.iter().map(|must| (must.rule.clone(), must.severity)).chain(may) {
        let most = allowed.entry(rule).or_insert(severity);
        *most = (*most).max(severity);
    }
    for fired in &run.fired {
        let is_allowed = allowed.get(fired.rule).is_some_and(|most| fired.severity <= *most);
        if fired.severity < Severity::Warn {
            continue;
        }
        if is_allowed {
            result.true_positives.push(fired.clone());
        } else {
            result.problems.push(format!("false finding: {}", format_fired(fired)));
            result.false_positives.push(fired.clone());
        }
    }
    judge_verdicts(case, &run, &expectations, &mut result);
    for (rule, least) in case.must_not.iter().map(|text| limit(text, Severity::Info)) {
        for fired in run.fired.iter().filter(|fired| fired.rule == rule && fired.severity >= least) {
            result.problems.push(format!("`{rule}` must not fire at {}: {}", least.word(), format_fired(fired)));
        }
    }
    if let Some(most) = case.notifications
        && run.notified.len() > most
    {
        result.problems.push(format!(
            "{} notifications instead of at most {most}: {:?}",
            run.notified.len(),
            run.notified
        ));
    }
    for word in case.not_judged.iter().filter(|word| !contains_ignoring_case(&run.not_judged, word)) {
        result.problems.push(format!("`not_judged` should contain `{word}`: `{}`", run.not_judged));
    }
    for rule in case.over.iter().filter(|rule| run.open.contains(&rule.as_str())) {
        result.problems.push(format!("`{rule}` should have no open finding at the end"));
    }
    result
}

/// Compares the verdicts with the hangs that the case demands. Every rule about hangs may find the same one. The simulator
/// answers for a process in the phase `spin` that it waits for other ranks, also where a case uses the phase only for its power.
fn judge_verdicts(case: &Case, run: &CaseRun, expectations: &[Expectation], result: &mut CaseResult) {
    let is_hang = |must: &&Expectation| RuleId::from_word(&must.rule).is_some_and(RuleId::is_hang);
    let began = expectations.iter().filter(is_hang).map(|must| must.time("from").unwrap_or(0.0));
    let began: Vec<f64> = began.collect();
    let works = |job: &Job| job.work.iter().chain(job.ranks.values().flatten()).all(|phase| phase.word != "spin");
    let is_quiet = began.is_empty() && case.jobs.iter().all(works);
    if case.verdict.is_some() && run.verdicts.iter().all(|verdict| verdict.findings.is_empty()) {
        result.problems.push("no finding began an examination".to_owned());
    }
    let mut warned = BTreeSet::new();
    for warning in result.true_positives.iter().filter(|fired| fired.is_own_hang) {
        if warned.insert(&warning.id) {
            let verdict = run.verdicts.iter().find(|verdict| verdict.findings.contains(&warning.id));
            result.waits.push(verdict.map(|verdict| (verdict.at - warning.at).max(0.0)));
        }
    }
    for verdict in &run.verdicts {
        let since = began.iter().copied().filter(|from| *from <= verdict.at).max_by(f64::total_cmp);
        let hangs_for = since.filter(|_| !verdict.findings.is_empty()).map(|from| verdict.at - from);
        if is_quiet && verdict.outcome == Outcome::Proven {
            let minutes = verdict.at / 60.0;
            result.problems.push(format!("false proof at {minutes:.1} min: {}", verdict.sentence));
        }
        if let Some(expected) = case.verdict.as_ref().filter(|_| hangs_for.is_some())
            && !is_verdict(verdict, expected)
        {
            let minutes = verdict.at / 60.0;
            let found = (verdict.outcome.word(), &verdict.sentence);
            result.problems.push(format!("not the verdict `{expected}` at {minutes:.1} min: {found:?}"));
        }
        // A job without a finding beside one that hangs may hang too.
        if verdict.is_first && (hangs_for.is_some() || is_quiet) {
            result.verdicts.push(JudgedVerdict { outcome: verdict.outcome, hangs_for });
        }
    }
}

/// Whether a verdict is the expected one: `likely says=word,word`. A `+` stands for a space.
fn is_verdict(verdict: &CaseVerdict, expected: &str) -> bool {
    let (outcome, words) = expected.split_once(" says=").unwrap_or((expected, ""));
    let says = |word: &str| contains_ignoring_case(&verdict.sentence, &word.replace('+', " "));
    verdict.outcome.word() == outcome && words.split(',').all(says)
}

/// Checks one line of `must` and adds deviations to `problems`.
fn check_expectation(
    must: &Expectation,
    run: &CaseRun,
    interval: f64,
    variant: Variant,
    problems: &mut Vec<String>,
) -> ExpectedFinding {
    let from = must.time("from").unwrap_or(0.0);
    let due = from + must.time("at").unwrap_or(0.0);
    // The design counts from the first sample that shows the condition, which may be missing.
    let allowance = match variant {
        Variant::Plain | Variant::Late => 0.0,
        Variant::Drops => 4.0 * interval,
        Variant::Gaps => 180.0,
    };
    let slack = must.time("slack").unwrap_or((3.5 * interval).max(30.0)) + allowance;
    let early = match variant {
        // Counters can prove that the condition began before the monitor did.
        Variant::Late => f64::INFINITY,
        _ => must.time("early").unwrap_or((2.5 * interval).max(20.0)),
    };
    let of_rule: Vec<&Fired> = run.fired.iter().filter(|fired| fired.rule == must.rule).collect();
    let is_timely =
        |fired: &&&Fired| fired.severity >= must.severity && fired.at <= due + slack && fired.at >= due - early;
    let found = of_rule.iter().find(is_timely);
    for fired in of_rule.iter().filter(|fired| fired.severity == must.severity && fired.at < due - early) {
        problems.push(format!("too early for `{}`: {}", must.text, format_fired(fired)));
    }
    if let Some(found) = found {
        for word in must.keys.get("says").iter().flat_map(|words| words.split(',')) {
            if !of_rule.iter().any(|fired| contains_ignoring_case(&fired.sentence, word)) {
                problems.push(format!("`{}` should say `{word}`: {}", must.text, format_fired(found)));
            }
        }
        if let Some(most) = must.keys.get("count").and_then(|count| count.parse::<usize>().ok()) {
            let mut ids: Vec<&str> = of_rule.iter().map(|fired| fired.id.as_str()).collect();
            ids.sort_unstable();
            ids.dedup();
            if ids.len() > most {
                problems.push(format!("`{}`: {} findings instead of {most}: {ids:?}", must.text, ids.len()));
            }
        }
        if let Some(most) = must.keys.get("told").and_then(|count| count.parse::<usize>().ok()) {
            let count = run.notified.iter().filter(|(rule, _)| *rule == must.rule).count();
            if count > most {
                problems.push(format!("`{}`: {count} notifications instead of {most}", must.text));
            }
        }
    } else {
        let others: Vec<String> = of_rule.iter().map(|fired| format_fired(fired)).collect();
        let others = if others.is_empty() { "the rule never fired".to_owned() } else { others.join("; ") };
        problems.push(format!("missed `{}`: {others}", must.text));
    }
    ExpectedFinding { rule: must.rule.clone(), severity: must.severity, after: found.map(|fired| fired.at - from) }
}

fn contains_ignoring_case(text: &str, word: &str) -> bool {
    text.to_lowercase().contains(&word.to_lowercase())
}

fn format_fired(fired: &Fired) -> String {
    let minutes = fired.at / 60.0;
    format!("{} {} at {minutes:.1} min on {}: {}", fired.rule, fired.severity.word(), fired.host, fired.sentence)
}
