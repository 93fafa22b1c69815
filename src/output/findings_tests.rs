use super::super::fixture::{assert_documented, hang, moment, transitions, with_findings_report as with_report};
use super::*;
use serde_json::Value;

#[test]
fn the_list_as_text() {
    with_report(|report| {
        let expected = "\
crit  hgx-01  stuck-spin, likely, for 14 min
      GPUs 0-1 read 100 % busy for 14 min but draw 104 W of 700 W: train.py looks hung
      why:    rank 1 (pid 4313 on hgx-01, GPU 1) never launched AllReduce 61 to 64 (proven)
      next:   py-spy dump --pid 4312
      unless: a checkpoint: no rank writes
warn  hgx-02  disk-full, certain, for at least 30 s, already present at the first sample, snoozed for 59 min
      /home is 93 % full
warn  hgx-01 and 1 more  host-unreachable, suspected, for 2.0 h, seems ended, comes and goes
      2 hosts cannot be reached
watching
info  hgx-01  idle-hog, suspected, starts in 30 min, as last seen
      GPU 3 idle > 30 min with 12 GiB held
not judged: 7 MIG instances without a utilization, 1 GPU without a power limit
2 rules need longer: --for 600 is enough for 1 of them, --for 3600 for all
no answer from gone: nothing listens on port 22
slow: no answer yet: tcp, 60 s
3 findings, 1 pending; 4 hosts watched for 30 s
";
        assert_eq!(list(report, Paint::OFF), expected);
        let painted = list(report, Paint::ON);
        assert!(painted.starts_with("\x1b[1;91mcrit\x1b[0m  hgx-01  stuck-spin, likely"), "{painted}");
        assert!(painted.contains("\x1b[2minfo\x1b[0m  hgx-01  idle-hog"), "pending ones are dim: {painted}");
    });
}

#[test]
fn a_fleet_without_findings_has_a_summary_line() {
    with_report(|report| {
        let report = super::FindingsReport { findings: &[], not_judged: &[], too_little_history: &[], ..*report };
        let text = list(&report, Paint::OFF);
        assert!(text.ends_with("\n0 findings, 0 pending; 4 hosts watched for 30 s\n"), "{text}");
    });
}

#[test]
fn a_transition_is_one_line() {
    let text: String = transitions().iter().map(|change| transition(change, moment(0.0), Paint::OFF)).collect();
    let sentence = "GPUs 0-1 read 100 % busy but draw 104 W of 700 W: train.py looks hung";
    let expected = format!(
        "   0:00:10  warn  hgx-01  stuck-spin  clear -> pending  {sentence}
   0:05:10  warn  hgx-01  stuck-spin  pending -> firing (notified)  {sentence}
   0:10:10  crit  hgx-01  stuck-spin  firing worse (notified)  {sentence}
   1:06:40  crit  hgx-01  stuck-spin  resolving -> clear  {sentence}
"
    );
    assert_eq!(text, expected);
    let milder = Transition { severity: Severity::Info, is_milder: true, notify: false, ..transitions()[2].clone() };
    assert!(transition(&milder, moment(0.0), Paint::OFF).contains("  info  hgx-01  stuck-spin  firing milder  "));
}

#[test]
fn the_json_is_one_line_with_the_values_of_the_text() {
    with_report(|report| {
        let text = line(report).expect("encodes");
        assert_eq!(text.matches('\n').count(), 1);
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["time"], "2026-05-04T12:00:00Z");
        assert_eq!(value["observed_seconds"], 30.0);
        let findings = value["findings"].as_array().expect("findings");
        assert_eq!(findings.len(), 4);
        assert_eq!(findings[0]["job"], "slurm:3385");
        assert_eq!(findings[0]["since"], "2026-05-04T11:46:00Z");
        assert_eq!(findings[0]["gpus"][1]["uuid"], "GPU-1");
        assert_eq!(findings[0]["processes"][0]["pid"], 4312);
        assert_eq!((&findings[0]["snoozed"], &findings[0]["snoozed_until"]), (&Value::from(false), &Value::Null));
        assert_eq!(findings[1]["snoozed_until"], "2026-05-04T12:59:00Z");
        assert_eq!(findings[3]["phase"], "pending");
        assert_eq!(findings[3]["due_at"], "2026-05-04T12:30:00Z");
        assert_eq!(findings[3]["fired_at"], Value::Null);
        let silent: Vec<&Value> =
            value["silent"].as_array().expect("hosts").iter().map(|host| &host["state"]).collect();
        assert_eq!(silent, ["down", "connecting"]);
    });
    let text = transition_line(&transitions()[1], Some(&hang()), moment(0.0)).expect("encodes");
    let value: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(value["t"], 310.0);
    assert_eq!((&value["from"], &value["to"]), (&Value::from("pending"), &Value::from("firing")));
    assert_eq!(value["gpus"], serde_json::json!([0, 1]));
    assert_eq!(value["pids"], serde_json::json!([4312]));
}

#[test]
fn the_documents_name_every_json_field() {
    let mut report = Value::Null;
    with_report(|it| report = serde_json::to_value(JsonFindings::new(it)).expect("encodes"));
    assert_documented(include_str!("../../docs/findings-json.md"), &[report]);
    let change = JsonTransition::new(&transitions()[1], Some(&hang()), moment(0.0));
    let change = serde_json::to_value(change).expect("encodes");
    assert_documented(include_str!("../../docs/recording.md"), &[change]);
}
