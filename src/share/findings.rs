//! Findings as the collector sends them: moments as ages, hosts by name.

use super::frame::{
    CulpritFrame, DiagnosisFrame, FINDINGS_PER_LINE, FindingFrame, GpuFrame, JobVerdictFrame, MAX_FINDINGS,
    MAX_SUBJECTS, MAX_VERDICTS, NeededFindings, NotJudgedFrame, ProcessFrame, RuleFrame, VerdictFrame, VerdictsFrame,
};
use super::privacy::Audience;
use crate::config::Sharing;
use crate::diagnosis::proof::{CulpritRank, Outcome};
use crate::diagnosis::{Engine, Finding, FindingGpu, FindingProcess, FindingVerdict, NotJudged, RuleId, SnoozeEnd};
use crate::fleet::{Fleet, HostId, JobKey, Moment};
use crate::wire::SafeText;
use std::collections::BTreeMap;
use std::time::Duration;

/// The lines with the whole diagnosis, as far as the hosts share it with this audience. A finding about several hosts, or
/// whose verdict is about several, is shared like the strictest of them.
pub(super) fn lines(
    engine: &Engine,
    fleet: &Fleet,
    (audience, needed): (Audience, NeededFindings),
    now: Moment,
) -> Vec<DiagnosisFrame> {
    let frame = |finding: &Finding| {
        let frame = FindingFrame::new(finding, fleet, sharing(finding, fleet, audience), now);
        if needed == NeededFindings::Sentences { frame.without_details(finding) } else { frame }
    };
    let findings: Vec<FindingFrame> = engine.findings().take(MAX_FINDINGS).map(frame).collect();
    let not_judged =
        engine.not_judged().into_iter().map(|one| NotJudgedFrame { count: one.count, what: one.what, why: one.why });
    let rules = engine
        .rules_with_too_little_history(fleet)
        .into_iter()
        .map(|(rule, time)| RuleFrame { rule: rule.word().into(), seconds: time.as_secs_f64() });
    let mut lines = vec![DiagnosisFrame {
        not_judged: not_judged.collect(),
        too_little_history: rules.collect(),
        ..DiagnosisFrame::default()
    }];
    lines.extend(
        findings
            .chunks(FINDINGS_PER_LINE)
            .map(|part| DiagnosisFrame { findings: part.to_vec(), ..DiagnosisFrame::default() }),
    );
    lines
}

fn sharing(finding: &Finding, fleet: &Fleet, audience: Audience) -> Sharing {
    let examined = finding.verdict.iter().flat_map(|verdict| verdict.hosts.iter().copied());
    let hosts = finding.hosts.iter().map(|(id, _)| *id).chain(examined).filter_map(|id| fleet.host(id));
    hosts.map(|host| audience.sharing(&host.config)).min().unwrap_or(Sharing::None)
}

/// The hosts whose jobs have verdicts, each with its jobs and the times of their verdicts. They change with each verdict.
pub(super) fn verdict_times(engine: &Engine) -> BTreeMap<HostId, Vec<(JobKey, Moment)>> {
    let mut times: BTreeMap<HostId, Vec<(JobKey, Moment)>> = BTreeMap::new();
    for finding in engine.hangs() {
        if let (Some(job), Some(verdict)) = (&finding.job, &finding.verdict) {
            times.entry(finding.host).or_default().push((job.clone(), verdict.at));
        }
    }
    times
}

/// The line with the verdicts of the findings `hangs`, which are listed under the host `id`, as far as they are shared with this
/// audience. Verdicts quote stacks, logs and operations.
pub(super) fn verdicts<'a>(
    hangs: impl Iterator<Item = &'a Finding>,
    fleet: &Fleet,
    id: HostId,
    audience: Audience,
    now: Moment,
) -> VerdictsFrame {
    let shared = hangs.filter(|finding| sharing(finding, fleet, audience) == Sharing::Commands);
    let frame = |finding: &Finding| {
        let verdict = VerdictFrame::new(finding.verdict.as_deref()?, now);
        Some(JobVerdictFrame { job: finding.job.clone()?, verdict })
    };
    let host = fleet.host(id).map(|host| host.name().clone()).unwrap_or_default();
    VerdictsFrame { host, list: shared.filter_map(frame).take(MAX_VERDICTS).collect() }
}

impl VerdictsFrame {
    /// The verdicts for a viewer, without those whose outcome is unknown here.
    pub(super) fn verdicts(self, id_of: &dyn Fn(&SafeText) -> Option<HostId>, now: Moment) -> Vec<JobVerdict> {
        let one = |one: JobVerdictFrame| Some(JobVerdict { job: one.job, verdict: one.verdict.verdict(id_of, now)? });
        self.list.into_iter().filter_map(one).collect()
    }
}

/// The verdict of an examination by a collector.
#[derive(Debug, Clone, PartialEq)]
pub struct JobVerdict {
    /// The job, as it is called on the host that the line names.
    pub job: JobKey,
    /// The verdict.
    pub verdict: FindingVerdict,
}

impl FindingFrame {
    fn new(finding: &Finding, fleet: &Fleet, sharing: Sharing, now: Moment) -> Self {
        let name = |id: HostId| fleet.host(id).map(|host| host.name().clone()).unwrap_or_default();
        // Milliseconds are enough.
        let ago = |moment: Moment| (now.since(moment).as_secs_f64() * 1000.0).round() / 1000.0;
        let snooze = match finding.snoozed {
            Some(SnoozeEnd::At(until)) => Some(now.until(until).as_secs_f64()),
            Some(SnoozeEnd::OnChange) | None => None,
        };
        let flags = [
            (finding.is_mine, "mine"),
            (finding.at_least, "at_least"),
            (finding.is_preexisting, "preexisting"),
            (finding.is_flapping, "flapping"),
            (finding.is_frozen, "frozen"),
            (finding.snoozed.is_some(), "snoozed"),
        ];
        let shows_commands = sharing == Sharing::Commands;
        let command = |process: &FindingProcess| {
            if shows_commands { process.command.clone() } else { SafeText::default() }
        };
        Self {
            id: finding.id.clone(),
            rule: finding.rule.word().into(),
            severity: finding.severity,
            confidence: finding.confidence,
            phase: finding.phase,
            since_seconds: ago(finding.since),
            lasted_seconds: finding.lasted(now).as_secs_f64(),
            fired_seconds: finding.fired_at.map(ago),
            due_in_seconds: finding.due.map(|due| now.until(due).as_secs_f64()),
            hosts: finding.hosts.iter().take(MAX_SUBJECTS).map(|(_, name)| name.clone()).collect(),
            gpus: finding
                .gpus
                .iter()
                .take(MAX_SUBJECTS)
                .map(|gpu| GpuFrame {
                    host: name(gpu.host),
                    position: gpu.position,
                    index: gpu.index,
                    uuid: gpu.uuid.clone(),
                })
                .collect(),
            job: finding.job.clone().filter(|job| shows_commands || !matches!(job, JobKey::Container { .. })),
            processes: finding
                .processes
                .iter()
                .take(MAX_SUBJECTS)
                .map(|process| ProcessFrame {
                    host: name(process.host),
                    key: process.key.clone(),
                    command: command(process),
                })
                .collect(),
            user: finding.user.clone().filter(|_| sharing != Sharing::None),
            // The evidence quotes commands, users and paths of logs.
            sentence: if shows_commands { finding.sentence.clone() } else { finding.rule.info().title.into() },
            figures: finding.figures.clone(),
            next_check: if shows_commands { finding.next_check.clone() } else { SafeText::default() },
            flags: flags.into_iter().filter(|(holds, _)| *holds).map(|(_, word)| word.into()).collect(),
            snoozed_for_seconds: snooze,
            // It quotes stacks, logs and operations.
            verdict: finding
                .verdict
                .as_deref()
                .filter(|_| shows_commands)
                .map(|verdict| VerdictFrame::new(verdict, now)),
        }
    }

    /// The finding without its processes, and without its GPUs if it says nothing about their state.
    fn without_details(self, finding: &Finding) -> Self {
        let gpus = if finding.rule.is_about_progress() { self.gpus } else { Vec::new() };
        let (figures, next_check) = (SafeText::default(), SafeText::default());
        Self { gpus, job: None, processes: Vec::new(), user: None, figures, next_check, verdict: None, ..self }
    }

    /// The finding for a viewer, or `None` if its rule or its host is unknown here.
    fn finding(self, id_of: &dyn Fn(&SafeText) -> Option<HostId>, now: Moment) -> Option<Finding> {
        let rule = RuleId::from_word(&self.rule)?;
        let span = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let hosts: Vec<(HostId, SafeText)> =
            self.hosts.into_iter().filter_map(|name| Some((id_of(&name)?, name))).collect();
        let host = hosts.first()?.0;
        let flag = |word: &str| self.flags.iter().any(|flag| flag == word);
        let gpus = self.gpus.into_iter().filter_map(|gpu| {
            Some(FindingGpu { host: id_of(&gpu.host)?, position: gpu.position, index: gpu.index, uuid: gpu.uuid })
        });
        let processes = self.processes.into_iter().filter_map(|process| {
            Some(FindingProcess { host: id_of(&process.host)?, key: process.key, command: process.command })
        });
        let mut finding = Finding::blank(rule, host, now);
        finding.id = self.id;
        finding.severity = self.severity;
        finding.confidence = self.confidence;
        finding.phase = self.phase;
        finding.since = now.minus(span(self.since_seconds));
        finding.fired_at = self.fired_seconds.map(|seconds| now.minus(span(seconds)));
        finding.due = self.due_in_seconds.map(|seconds| now.plus(span(seconds)));
        finding.hosts = hosts;
        finding.gpus = gpus.collect();
        finding.job = self.job;
        finding.processes = processes.collect();
        finding.user = self.user;
        finding.is_mine = flag("mine");
        finding.sentence = self.sentence;
        finding.figures = self.figures;
        finding.next_check = self.next_check;
        finding.not = rule.info().not;
        finding.at_least = flag("at_least");
        finding.is_preexisting = flag("preexisting");
        finding.is_flapping = flag("flapping");
        finding.is_frozen = flag("frozen");
        finding.snoozed = flag("snoozed").then_some(match self.snoozed_for_seconds {
            Some(seconds) => SnoozeEnd::At(now.plus(span(seconds))),
            None => SnoozeEnd::OnChange,
        });
        finding.verdict = self.verdict.and_then(|verdict| verdict.verdict(id_of, now)).map(Box::new);
        finding.set_lasted(span(self.lasted_seconds));
        Some(finding)
    }
}

impl VerdictFrame {
    fn new(verdict: &FindingVerdict, now: Moment) -> Self {
        let culprit = |rank: &CulpritRank| CulpritFrame {
            rank: rank.rank,
            world_rank: rank.world_rank,
            pid: rank.pid,
            host: rank.host.clone(),
            is_watched: rank.host_id.is_some(),
            gpu: rank.gpu,
            operation: rank.operation.clone(),
        };
        Self {
            outcome: verdict.outcome.word().into(),
            sentence: verdict.sentence.clone(),
            culprits: verdict.culprits.iter().map(culprit).collect(),
            age_seconds: now.since(verdict.at).as_secs_f64(),
        }
    }

    /// The verdict for a viewer, or `None` if its outcome is unknown here.
    fn verdict(self, id_of: &dyn Fn(&SafeText) -> Option<HostId>, now: Moment) -> Option<FindingVerdict> {
        let culprit = |rank: CulpritFrame| CulpritRank {
            rank: rank.rank,
            world_rank: rank.world_rank,
            pid: rank.pid,
            host_id: rank.host.as_ref().filter(|_| rank.is_watched).and_then(id_of),
            host: rank.host,
            key: None,
            gpu: rank.gpu,
            operation: rank.operation,
        };
        let age = Duration::try_from_secs_f64(self.age_seconds).unwrap_or_default();
        Some(FindingVerdict {
            outcome: Outcome::from_word(&self.outcome)?,
            sentence: self.sentence,
            culprits: self.culprits.into_iter().map(culprit).collect(),
            at: now.minus(age),
            // The moment of the reading may be before the start of the viewer, which has no such moment.
            until: now.plus(FindingVerdict::VALID.saturating_sub(age)),
            hosts: Vec::new(),
        })
    }
}

/// The diagnosis of a collector, for a viewer without an engine.
#[derive(Debug, Clone, Default)]
pub struct Diagnosis {
    /// The findings in the order of the engine.
    pub findings: Vec<Finding>,
    /// The rules and readings that could not be evaluated.
    pub not_judged: Vec<NotJudged>,
    /// The rules that need a longer observation, with its length.
    pub too_little_history: Vec<(RuleId, Duration)>,
}

impl Diagnosis {
    /// Adds a line. `id_of` finds a host by its name.
    pub(super) fn take(&mut self, frame: DiagnosisFrame, id_of: &dyn Fn(&SafeText) -> Option<HostId>, now: Moment) {
        let room = MAX_FINDINGS.saturating_sub(self.findings.len());
        self.findings.extend(frame.findings.into_iter().take(room).filter_map(|finding| finding.finding(id_of, now)));
        if !frame.not_judged.is_empty() {
            let one = |one: NotJudgedFrame| NotJudged { count: one.count, what: one.what, why: one.why };
            self.not_judged = frame.not_judged.into_iter().map(one).collect();
        }
        if !frame.too_little_history.is_empty() {
            let one = |one: RuleFrame| {
                Some((RuleId::from_word(&one.rule)?, Duration::try_from_secs_f64(one.seconds).unwrap_or_default()))
            };
            self.too_little_history = frame.too_little_history.into_iter().filter_map(one).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::FindingPhase;
    use crate::fleet::fixture::{at, fleet, process};

    #[test]
    fn a_finding_without_details_keeps_its_line_and_the_gpus_whose_state_it_changes() {
        let fleet = fleet(vec![vec![process(7, "python train.py", &[(0, 40)])]]);
        let received = |rule| {
            let mut finding = Finding::blank(rule, HostId(0), at(20.0));
            finding.phase = FindingPhase::Firing;
            finding.hosts = vec![(HostId(0), "hgx-00".into())];
            finding.gpus = vec![FindingGpu { host: HostId(0), position: 0, index: 0, uuid: None }];
            (finding.sentence, finding.next_check) = ("GPU 0 looks hung".into(), "gpufleet why hgx-00:7".into());
            (finding.user, finding.figures) = (Some("alice".into()), "104 of 700 W".into());
            let frame = FindingFrame::new(&finding, &fleet, Sharing::Commands, at(50.0)).without_details(&finding);
            let text = serde_json::to_string(&frame).expect("encodes");
            assert!(!["alice", "why", "104"].iter().any(|word| text.contains(word)), "{text}");
            let frame: FindingFrame = serde_json::from_str(&text).expect("decodes");
            frame.finding(&|name| (*name == "hgx-00").then_some(HostId(0)), at(50.0)).expect("a finding")
        };
        let hang = received(RuleId::StuckSpin);
        assert_eq!(
            (hang.sentence.as_str(), hang.phase, hang.gpus.len()),
            ("GPU 0 looks hung", FindingPhase::Firing, 1)
        );
        assert_eq!((hang.since, hang.hosts.len()), (at(20.0), 1));
        assert_eq!(received(RuleId::PcieDegraded).gpus.len(), 0);
    }

    #[test]
    fn the_verdict_is_shared_with_those_who_see_commands() {
        let fleet = fleet(vec![vec![process(7, "python train.py", &[(0, 40)])]]);
        let culprit = CulpritRank {
            world_rank: Some(3),
            pid: Some(7),
            host: Some("hgx-00".into()),
            host_id: Some(HostId(0)),
            gpu: Some(1),
            ..CulpritRank::default()
        };
        let verdict = FindingVerdict {
            outcome: Outcome::Likely,
            sentence: "rank 3 (pid 7 on hgx-00, GPU 1) is stopped".into(),
            culprits: vec![culprit],
            at: at(40.0),
            until: at(1540.0),
            hosts: Vec::new(),
        };
        let mut finding = Finding::blank(RuleId::StuckSpin, HostId(0), at(50.0));
        finding.hosts = vec![(HostId(0), "hgx-00".into())];
        finding.verdict = Some(Box::new(verdict.clone()));
        let received = |sharing| {
            let text = serde_json::to_string(&FindingFrame::new(&finding, &fleet, sharing, at(50.0))).expect("encodes");
            let frame: FindingFrame = serde_json::from_str(&text).expect("decodes");
            frame.finding(&|name| (*name == "hgx-00").then_some(HostId(0)), at(50.0)).expect("a finding").verdict
        };
        assert_eq!(received(Sharing::Commands).as_deref(), Some(&verdict));
        assert_eq!(received(Sharing::Names), None);
        finding.job = Some(JobKey::Slurm { cluster: None, job: "3385".into() });
        let followed = |audience| {
            let frame = verdicts([&finding].into_iter(), &fleet, HostId(0), audience, at(50.0));
            let text = serde_json::to_string(&frame).expect("encodes");
            let frame: VerdictsFrame = serde_json::from_str(&text).expect("decodes");
            frame.verdicts(&|name| (*name == "hgx-00").then_some(HostId(0)), at(50.0))
        };
        let job = finding.job.clone().expect("a job");
        assert_eq!(followed(Audience::Own), [JobVerdict { job, verdict: verdict.clone() }]);
        assert_eq!(followed(Audience::Group), [], "the host shares names only");
        // A viewer that has begun after the verdict.
        let frame = verdicts([&finding].into_iter(), &fleet, HostId(0), Audience::Own, at(200.0));
        let received = frame.verdicts(&|_| None, at(5.0));
        assert!(received[0].verdict.until > at(1344.0) && received[0].verdict.until < at(1346.0), "{received:?}");
        let unknown = VerdictFrame { outcome: "newer".into(), ..VerdictFrame::new(&verdict, at(50.0)) };
        assert_eq!(unknown.verdict(&|_| None, at(50.0)), None);
    }
}
