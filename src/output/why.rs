//! The output of `gpufleet why`: the verdict about one job as text and as JSON. docs/why-json.md describes the JSON.
//!
//! ```text
//! job 3385, 8 ranks on node1, node2: HANGS (for >= 12 min)  proven
//!   culprit  rank 7, pid 1650386 on node2, GPU 3: never launched AllReduce 61 to 64
//!   1  NCCL RAS, twice, 60 s apart  AllReduce: 7 ranks at 64, rank 7 at 60, none moved   proven
//!   2  py-spy, rank 7               load_batch (data.py:211), same 60 s later            likely
//!   3  links                        mlx5_0 ACTIVE, 0 B/s, no errors                      says: not the network
//!   variables  WORLD_SIZE=8 MASTER_ADDR=10.0.0.1 NCCL_IB_HCA=mlx5_0
//!   variables  rank 7: RANK=7 LOCAL_RANK=3
//!   log        /home/ann/out.log
//!              step 61, loss 2.31
//!   not seen  Flight Recorder: off in this job (TORCH_FR_BUFFER_SIZE=2000 before the next start)
//! ```

use super::json::{JsonCulpritRank, rounded};
use super::paint::{Paint, Tone};
use crate::diagnosis::proof::job_details::{JobDetails, last_lines, variables};
use crate::diagnosis::proof::{Culprit, CulpritReason, EvidenceLine, JobEvidence, Missing, Outcome, Says, Verdict};
use crate::wire::SafeText;
use crate::wire::format::{DurationStyle, duration};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;
use unicode_width::UnicodeWidthStr;

/// The version of the JSON. It rises when a field is removed or changes its meaning, not when one is added.
pub const SCHEMA: u32 = 1;

/// The widest columns of the evidence: source and facts.
const MAX_WIDTHS: (usize, usize) = (34, 64);

/// Maximum number of hosts that the heading names.
const MAX_HOSTS: usize = 4;

/// The verdict as text.
pub fn text(evidence: &JobEvidence, verdict: &Verdict, paint: Paint) -> String {
    let mut text = heading(evidence, verdict, paint);
    match &verdict.culprit {
        Some(culprit) => text += &culprit_lines(culprit),
        None => {
            // Writing into a string cannot fail.
            let _ = writeln!(text, "  {}", verdict.sentence);
        }
    }
    text += &evidence_table(&verdict.evidence, paint);
    for (label, line) in JobDetails::new(evidence, verdict).lines() {
        let _ = writeln!(text, "  {}", paint.paint(Tone::Dim, &format!("{label:<9}  {line}")));
    }
    text + &missing_lines(&verdict.missing, paint)
}

/// The text if no job was named and none looks hung, with the hosts that did not report.
pub fn text_without_job(watched: Duration, missing: &[Missing], paint: Paint) -> String {
    let sentence = sentence_without_job(watched);
    let missing = missing_lines(missing, paint);
    format!("{sentence}\n{missing}  hint: name a process: gpufleet why HOST:PID\n")
}

fn sentence_without_job(watched: Duration) -> String {
    format!("no job of yours looks hung after {} s", watched.as_secs())
}

/// The facts that could not be read, one line for each.
fn missing_lines(missing: &[Missing], paint: Paint) -> String {
    let mut text = String::new();
    for missing in missing {
        let mut line = format!("  not seen  {}: {}", missing.what, missing.reason);
        if !missing.remedy.is_empty() {
            let _ = write!(line, " ({})", missing.remedy);
        }
        text += &paint.paint(Tone::Dim, &line);
        text += "\n";
    }
    text
}

/// `job 3385, 8 ranks on node1, node2: HANGS (for >= 12 min)  proven`
fn heading(evidence: &JobEvidence, verdict: &Verdict, paint: Paint) -> String {
    let ranks = evidence.ranks.len();
    let mut text = format!("{}, {ranks} {}", evidence.name, if ranks == 1 { "rank" } else { "ranks" });
    let hosts = hosts(evidence);
    if !hosts.is_empty() {
        let names: Vec<&str> = hosts.iter().take(MAX_HOSTS).map(SafeText::as_str).collect();
        let _ = write!(text, " on {}", names.join(", "));
        if hosts.len() > MAX_HOSTS {
            let _ = write!(text, " and {} more", hosts.len() - MAX_HOSTS);
        }
    }
    let has_failed = verdict.culprit.as_ref().is_some_and(|culprit| culprit.reason == CulpritReason::AsyncError);
    let (words, tone) = match verdict.outcome {
        Outcome::Proven if has_failed => ("HAS FAILED", Tone::Critical),
        Outcome::Proven => ("HANGS", Tone::Critical),
        Outcome::Likely => ("PROBABLY HANGS", Tone::Warn),
        Outcome::Suspected => ("MAY HANG", Tone::Warn),
        Outcome::WaitsForRank => ("WAITS FOR A RANK THAT WORKS", Tone::Warn),
        Outcome::NotHung => ("DOES NOT HANG", Tone::Strong),
        Outcome::NothingKnown => ("NOTHING KNOWN", Tone::Strong),
    };
    let mut judgement = words.to_owned();
    let is_so = !matches!(verdict.outcome, Outcome::NotHung | Outcome::NothingKnown);
    if let Some(lasted) = evidence.lasted.filter(|_| is_so) {
        let bound = if evidence.lasted_is_at_least { ">= " } else { "" };
        let _ = write!(judgement, " (for {bound}{})", duration(lasted, DurationStyle::OneUnit));
    }
    let level = match verdict.outcome {
        Outcome::Proven => "  proven",
        Outcome::Likely => "  likely",
        Outcome::Suspected => "  suspected",
        Outcome::WaitsForRank | Outcome::NotHung | Outcome::NothingKnown => "",
    };
    format!("{text}: {}{level}\n", paint.paint(tone, &judgement))
}

/// The names of the hosts in the order of the fleet.
fn hosts(evidence: &JobEvidence) -> Vec<SafeText> {
    let hosts: BTreeMap<_, _> = evidence.ranks.iter().map(|rank| (rank.host, &rank.host_name)).collect();
    hosts.into_values().cloned().collect()
}

/// One line for each rank. The first one has the difference to the other ranks.
fn culprit_lines(culprit: &Culprit) -> String {
    let mut text = String::new();
    for (index, rank) in culprit.ranks.iter().enumerate() {
        let place = rank.place();
        let separator = if place.is_empty() { "" } else { ", " };
        let _ = write!(text, "  {}  {}{separator}{place}", if index == 0 { "culprit" } else { "       " }, rank.name());
        match &rank.operation {
            Some(operation) => {
                let _ = write!(text, ": never launched {operation}");
            }
            None if index == 0 => {
                let _ = write!(text, ": {}", culprit.text);
            }
            None => {}
        }
        text += "\n";
    }
    if culprit.left_out > 0 {
        let _ = writeln!(text, "           and {} more", culprit.left_out);
    }
    text
}

/// The evidence in numbered rows with aligned columns.
fn evidence_table(evidence: &[EvidenceLine], paint: Paint) -> String {
    let widest = |values: &mut dyn Iterator<Item = usize>, most: usize| values.max().unwrap_or(0).min(most);
    let sources = widest(&mut evidence.iter().map(|line| line.source.width()), MAX_WIDTHS.0);
    let facts = widest(&mut evidence.iter().map(|line| line.text.width()), MAX_WIDTHS.1);
    let number = evidence.len().to_string().len();
    let mut text = String::new();
    for (index, line) in evidence.iter().enumerate() {
        let pad = |text: &str, width: usize| " ".repeat(width.saturating_sub(text.width()));
        let tone = match line.says {
            Says::Proven => Tone::Critical,
            Says::Likely | Says::Network | Says::Ended => Tone::Warn,
            Says::Suspected | Says::Works | Says::Moves | Says::NotTheNetwork => Tone::Plain,
            Says::Nothing => Tone::Dim,
        };
        let _ = writeln!(
            text,
            "  {:>number$}  {}{}  {}{}  {}",
            index + 1,
            line.source,
            pad(&line.source, sources),
            line.text,
            pad(&line.text, facts),
            paint.paint(tone, line.says.text())
        );
    }
    text
}

/// The JSON of a verdict.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct JsonWhy {
    /// The version of this schema.
    schema: u32,
    /// The name of the job; `null` if no process was named and no job looks hung.
    job: Option<SafeText>,
    /// `proven`, `likely`, `suspected`, `waits_for_rank`, `not_hung`, `nothing_known`, or `no_job` if `job` is `null`.
    outcome: &'static str,
    /// The verdict in one sentence.
    sentence: SafeText,
    /// How long a finding about the job has held, in seconds.
    lasted_seconds: Option<f64>,
    /// Whether that duration is a lower bound.
    at_least: bool,
    /// Whether the job serves models.
    serves_models: bool,
    /// The watched hosts of the job.
    hosts: Vec<SafeText>,
    /// The processes of the job on those hosts.
    processes: Vec<JsonProcess>,
    /// The ranks that hold the job up.
    culprit: Option<JsonCulprit>,
    /// The evidence, the strongest first.
    evidence: Vec<JsonEvidence>,
    /// The ends of the logs of the processes, each log once.
    logs: Vec<JsonLog>,
    /// The facts that could not be read.
    missing: Vec<JsonMissing>,
}

/// A process of the job.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct JsonProcess {
    /// The name of its host.
    host: SafeText,
    /// The pid in the pid namespace of the host.
    pid: u32,
    /// Whether it belongs to the login user, so that it can be examined.
    mine: bool,
    /// Its owner.
    user: Option<SafeText>,
    /// The indexes of its GPUs.
    gpus: Vec<u32>,
    /// Number of times that it was examined.
    readings: usize,
    /// The variables that place it in its job, as `NAME=value`, secrets redacted.
    variables: Vec<SafeText>,
    /// Path of its log.
    log: Option<SafeText>,
}

/// The end of a log.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct JsonLog {
    /// The name of the host on which it was read.
    host: SafeText,
    /// Path of the file.
    path: SafeText,
    /// Time since the last write to it, in seconds.
    age_seconds: Option<f64>,
    /// The last lines that are not blank, oldest first, secrets redacted.
    lines: Vec<SafeText>,
}

/// The ranks that hold a job up.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct JsonCulprit {
    /// The kind of evidence that names them: `dead`, `unresponsive`, `async_error`, `behind`, `other_path`, `log`, `stack`,
    /// `wait_channel` or `works`.
    reason: &'static str,
    /// The difference to the other ranks.
    text: SafeText,
    /// The operation.
    operation: Option<SafeText>,
    /// The Python frame in which the first of them stands.
    frame: Option<SafeText>,
    /// The ranks.
    ranks: Vec<JsonCulpritRank>,
    /// Number of ranks left out of `ranks`.
    ranks_left_out: u32,
}

/// One piece of evidence.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct JsonEvidence {
    /// The source.
    source: SafeText,
    /// The facts.
    text: SafeText,
    /// The conclusion that it allows alone: `proven`, `likely`, `suspected`, `works`, `moves`, `network`, `not_the_network`,
    /// `ended` or `nothing`.
    says: &'static str,
}

/// A fact that could not be read.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct JsonMissing {
    /// The fact.
    what: SafeText,
    /// Why it could not be read.
    reason: SafeText,
    /// The change that would make it readable.
    remedy: Option<SafeText>,
    /// Whether `--ask-ras` would read it, at the risk that the job crashes.
    risk: bool,
}

impl JsonWhy {
    /// Builds the JSON of a verdict.
    pub(crate) fn new(evidence: &JobEvidence, verdict: &Verdict) -> Self {
        Self {
            schema: SCHEMA,
            job: Some(evidence.name.clone()),
            outcome: verdict.outcome.word(),
            sentence: verdict.sentence.clone(),
            lasted_seconds: evidence.lasted.map(rounded),
            at_least: evidence.lasted_is_at_least,
            serves_models: evidence.serves_models,
            hosts: hosts(evidence),
            processes: evidence
                .ranks
                .iter()
                .map(|rank| JsonProcess {
                    host: rank.host_name.clone(),
                    pid: rank.pid,
                    mine: rank.is_mine,
                    user: rank.user.clone(),
                    gpus: rank.gpus.iter().map(|gpu| gpu.index).collect(),
                    readings: rank.readings.len(),
                    variables: variables(rank).to_vec(),
                    log: rank.log.as_ref().map(|log| log.path.clone()),
                })
                .collect(),
            culprit: verdict.culprit.as_ref().map(JsonCulprit::new),
            evidence: verdict
                .evidence
                .iter()
                .map(|line| JsonEvidence {
                    source: line.source.clone(),
                    text: line.text.clone(),
                    says: line.says.word(),
                })
                .collect(),
            logs: json_logs(evidence),
            missing: verdict.missing.iter().map(JsonMissing::new).collect(),
        }
    }

    /// Builds the JSON if no job looks hung.
    fn without_job(sentence: SafeText, missing: &[Missing]) -> Self {
        Self {
            schema: SCHEMA,
            job: None,
            outcome: "no_job",
            sentence,
            lasted_seconds: None,
            at_least: false,
            serves_models: false,
            hosts: Vec::new(),
            processes: Vec::new(),
            culprit: None,
            evidence: Vec::new(),
            logs: Vec::new(),
            missing: missing.iter().map(JsonMissing::new).collect(),
        }
    }
}

/// Ranks of one host often write to one file.
fn json_logs(evidence: &JobEvidence) -> Vec<JsonLog> {
    let mut logs: Vec<JsonLog> = Vec::new();
    for (rank, log) in evidence.ranks.iter().filter_map(|rank| Some((rank, rank.log.as_ref()?))) {
        if !logs.iter().any(|known| known.host == rank.host_name && known.path == log.path) {
            logs.push(JsonLog {
                host: rank.host_name.clone(),
                path: log.path.clone(),
                age_seconds: log.age.map(rounded),
                lines: last_lines(log).into_iter().cloned().collect(),
            });
        }
    }
    logs
}

impl JsonCulprit {
    fn new(culprit: &Culprit) -> Self {
        Self {
            reason: culprit.reason.word(),
            text: culprit.text.clone(),
            operation: culprit.operation.clone(),
            frame: culprit.frame.clone(),
            ranks: culprit.ranks.iter().map(JsonCulpritRank::new).collect(),
            ranks_left_out: culprit.left_out,
        }
    }
}

impl JsonMissing {
    fn new(missing: &Missing) -> Self {
        Self {
            what: missing.what.clone(),
            reason: missing.reason.clone(),
            remedy: Some(missing.remedy.clone()).filter(|remedy| !remedy.is_empty()),
            risk: missing.is_risk,
        }
    }
}

/// The verdict as one line of JSON, with its newline.
///
/// # Errors
/// Never with these types.
pub fn json_line(evidence: &JobEvidence, verdict: &Verdict) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string(&JsonWhy::new(evidence, verdict))? + "\n")
}

/// One line of JSON, with its newline, if no job was named and none looks hung.
///
/// # Errors
/// Never with these types.
pub fn json_line_without_job(watched: Duration, missing: &[Missing]) -> Result<String, serde_json::Error> {
    let report = JsonWhy::without_job(sentence_without_job(watched).into(), missing);
    Ok(serde_json::to_string(&report)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::super::fixture::assert_documented;
    use super::*;
    use crate::diagnosis::proof::CulpritRank;
    use crate::diagnosis::proof::{LogTail, RankEvidence, RankReading};
    use crate::fleet::{HostId, ProcessKey};
    use crate::wire::{Examination, ProcessExamination};

    fn key(pid: u32) -> ProcessKey {
        ProcessKey { boot_id: Some("boot".into()), pid, start_ticks: Some(1) }
    }

    fn evidence() -> JobEvidence {
        let rank = |number: u32| RankEvidence {
            host: HostId(number / 4),
            host_name: SafeText::from(format!("node{}", number / 4 + 1)),
            host_addresses: Vec::new(),
            key: key(100 + number),
            pid: 100 + number,
            is_mine: true,
            user: Some("ann".into()),
            gpus: Vec::new(),
            readings: Vec::new(),
            log: None,
            log_refusal: SafeText::default(),
        };
        JobEvidence {
            name: "job 3385".into(),
            at: crate::fleet::Moment::default(),
            lasted: Some(Duration::from_secs(745)),
            lasted_is_at_least: true,
            serves_models: false,
            ranks: (0..8).map(rank).collect(),
            ranks_left_out: 0,
        }
    }

    fn verdict() -> Verdict {
        let line = |source: &str, text: &str, says| EvidenceLine { source: source.into(), text: text.into(), says };
        Verdict {
            outcome: Outcome::Proven,
            culprit: Some(Culprit {
                ranks: vec![CulpritRank {
                    rank: Some(7),
                    world_rank: Some(7),
                    pid: Some(107),
                    host: Some("node2".into()),
                    host_id: Some(HostId(1)),
                    key: Some(key(107)),
                    gpu: Some(3),
                    operation: None,
                }],
                left_out: 0,
                reason: CulpritReason::Behind,
                text: "never launched AllReduce 61 to 64".into(),
                operation: Some("AllReduce 61 to 64".into()),
                frame: Some("load_batch (data.py:211)".into()),
            }),
            sentence: "rank 7 never launched AllReduce 61 to 64".into(),
            evidence: vec![
                line("NCCL RAS, twice, 60 s apart", "AllReduce: 7 ranks at 64, rank 7 at 60, none moved", Says::Proven),
                line("py-spy, rank 7", "load_batch (data.py:211), same 60 s later", Says::Likely),
                line("links", "mlx5_0 ACTIVE, 0 B/s, no errors", Says::NotTheNetwork),
            ],
            missing: vec![Missing {
                what: "Flight Recorder".into(),
                reason: "off in this job".into(),
                remedy: "TORCH_FR_BUFFER_SIZE=2000 before the next start".into(),
                is_risk: false,
            }],
        }
    }

    #[test]
    fn the_text_names_culprit_evidence_and_remedies() {
        let expected = "\
job 3385, 8 ranks on node1, node2: HANGS (for >= 12 min)  proven
  culprit  rank 7, pid 107 on node2, GPU 3: never launched AllReduce 61 to 64
  1  NCCL RAS, twice, 60 s apart  AllReduce: 7 ranks at 64, rank 7 at 60, none moved  proven
  2  py-spy, rank 7               load_batch (data.py:211), same 60 s later           likely
  3  links                        mlx5_0 ACTIVE, 0 B/s, no errors                     says: not the network
  not seen  Flight Recorder: off in this job (TORCH_FR_BUFFER_SIZE=2000 before the next start)
";
        assert_eq!(text(&evidence(), &verdict(), Paint::OFF), expected);
    }

    /// The evidence with variables of two ranks and a log of the culprit.
    fn evidence_with_details() -> JobEvidence {
        let mut evidence = evidence();
        for number in [0, 7] {
            let variables = [format!("RANK={number}"), "WORLD_SIZE=8".into(), "NCCL_DEBUG=INFO".into()];
            let variables = variables.map(SafeText::from).to_vec();
            let process = ProcessExamination { variables, ..ProcessExamination::default() };
            let examination = Examination { process: Some(Box::new(process)), ..Examination::default() };
            evidence.ranks[number].readings = vec![RankReading { examination, ..RankReading::default() }];
        }
        let lines = (0..20).map(|step| SafeText::from(format!("step {step}"))).chain(["  ".into()]).collect();
        let age = Some(Duration::from_secs(745));
        evidence.ranks[0].log =
            Some(LogTail { path: "/home/ann/0.log".into(), lines: vec!["begins".into()], ..LogTail::default() });
        evidence.ranks[7].log = Some(LogTail { path: "/home/ann/7.log".into(), lines, age, ..LogTail::default() });
        evidence
    }

    #[test]
    fn the_text_has_the_variables_and_the_end_of_the_log_of_the_culprit() {
        let mut verdict = verdict();
        (verdict.evidence, verdict.missing) = (Vec::new(), Vec::new());
        let expected = "\
job 3385, 8 ranks on node1, node2: HANGS (for >= 12 min)  proven
  culprit  rank 7, pid 107 on node2, GPU 3: never launched AllReduce 61 to 64
  variables  WORLD_SIZE=8 NCCL_DEBUG=INFO
  variables  rank 7: RANK=7
  log        /home/ann/7.log, written 12 min ago
             step 12
             step 13
             step 14
             step 15
             step 16
             step 17
             step 18
             step 19
";
        assert_eq!(text(&evidence_with_details(), &verdict, Paint::OFF), expected);
        verdict.culprit = None;
        let text = text(&evidence_with_details(), &verdict, Paint::OFF);
        assert!(
            text.ends_with(
                "  variables  WORLD_SIZE=8 NCCL_DEBUG=INFO\n  log        /home/ann/0.log\n             begins\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn the_json_has_the_variables_of_each_process_and_each_log_once() {
        let mut evidence = evidence_with_details();
        evidence.ranks[6].log = evidence.ranks[7].log.clone();
        let json: serde_json::Value =
            serde_json::from_str(&json_line(&evidence, &verdict()).expect("writes")).expect("reads");
        assert_eq!(json["processes"][7]["variables"][0], "RANK=7");
        assert_eq!(json["processes"][1]["variables"], serde_json::json!([]));
        assert_eq!(
            (&json["processes"][6]["log"], &json["processes"][1]["log"]),
            (&"/home/ann/7.log".into(), &serde_json::Value::Null)
        );
        let logs = json["logs"].as_array().expect("logs");
        let known: Vec<_> = logs.iter().map(|log| (&log["host"], &log["path"])).collect();
        assert_eq!(known, [(&"node1".into(), &"/home/ann/0.log".into()), (&"node2".into(), &"/home/ann/7.log".into())]);
        assert_eq!((&logs[1]["lines"][7], &logs[1]["age_seconds"]), (&"step 19".into(), &745.0.into()));
    }

    #[test]
    fn several_culprits_have_a_line_each() {
        let mut verdict = verdict();
        let culprit = verdict.culprit.as_mut().expect("a culprit");
        let unwatched = CulpritRank { rank: Some(3), host: Some("10.0.0.9".into()), ..CulpritRank::default() };
        culprit.ranks.push(unwatched);
        culprit.left_out = 2;
        (verdict.evidence, verdict.missing) = (Vec::new(), Vec::new());
        let expected = "\
job 3385, 8 ranks on node1, node2: HANGS (for >= 12 min)  proven
  culprit  rank 7, pid 107 on node2, GPU 3: never launched AllReduce 61 to 64
           rank 3 of its communicator, on 10.0.0.9
           and 2 more
";
        assert_eq!(text(&evidence(), &verdict, Paint::OFF), expected);
        let culprit = verdict.culprit.as_mut().expect("a culprit");
        culprit.left_out = 0;
        culprit.ranks[0].operation = Some("AllReduce 64".into());
        culprit.ranks[1].operation = Some("Broadcast 5".into());
        let expected = "\
job 3385, 8 ranks on node1, node2: HANGS (for >= 12 min)  proven
  culprit  rank 7, pid 107 on node2, GPU 3: never launched AllReduce 64
           rank 3 of its communicator, on 10.0.0.9: never launched Broadcast 5
";
        assert_eq!(text(&evidence(), &verdict, Paint::OFF), expected);
    }

    #[test]
    fn a_verdict_without_a_culprit_is_a_sentence() {
        let mut verdict = verdict();
        (verdict.culprit, verdict.evidence, verdict.missing) = (None, Vec::new(), Vec::new());
        verdict.sentence = "the job moves: ranks launch operations".into();
        let headings = [
            (Outcome::Proven, "HANGS (for >= 12 min)  proven"),
            (Outcome::Likely, "PROBABLY HANGS (for >= 12 min)  likely"),
            (Outcome::Suspected, "MAY HANG (for >= 12 min)  suspected"),
            (Outcome::WaitsForRank, "WAITS FOR A RANK THAT WORKS (for >= 12 min)"),
            (Outcome::NotHung, "DOES NOT HANG"),
            (Outcome::NothingKnown, "NOTHING KNOWN"),
        ];
        for (outcome, heading) in headings {
            verdict.outcome = outcome;
            let expected =
                format!("job 3385, 8 ranks on node1, node2: {heading}\n  the job moves: ranks launch operations\n");
            assert_eq!(text(&evidence(), &verdict, Paint::OFF), expected);
        }
    }

    #[test]
    fn the_document_names_every_json_field() {
        let json =
            serde_json::from_str(&json_line(&evidence_with_details(), &verdict()).expect("writes")).expect("reads");
        assert_documented(include_str!("../../docs/why-json.md"), &[json]);
    }

    #[test]
    fn the_json_without_a_job_has_the_fields_of_a_verdict() {
        let missing = verdict().missing;
        let line = json_line_without_job(Duration::from_secs(30), &missing).expect("writes");
        assert_eq!(line.matches('\n').count(), 1);
        let json: serde_json::Value = serde_json::from_str(&line).expect("reads");
        assert_eq!((&json["job"], &json["outcome"]), (&serde_json::Value::Null, &"no_job".into()));
        assert_eq!(json["sentence"], "no job of yours looks hung after 30 s");
        assert_eq!(json["missing"][0]["what"], "Flight Recorder");
        let of_a_job: serde_json::Value =
            serde_json::from_str(&json_line(&evidence(), &verdict()).expect("writes")).expect("reads");
        let fields =
            |json: &serde_json::Value| json.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
        assert_eq!(fields(&json), fields(&of_a_job));
    }

    #[test]
    fn the_json_has_stable_names() {
        let line = json_line(&evidence(), &verdict()).expect("writes");
        assert_eq!(line.matches('\n').count(), 1);
        let json: serde_json::Value = serde_json::from_str(&line).expect("reads");
        assert_eq!(json["outcome"], "proven");
        assert_eq!(json["culprit"]["reason"], "behind");
        assert_eq!(json["culprit"]["ranks"][0]["world_rank"], 7);
        assert_eq!(json["evidence"][2]["says"], "not_the_network");
        assert_eq!(json["lasted_seconds"], 745.0);
        assert_eq!(json["missing"][0]["risk"], false);
    }
}
