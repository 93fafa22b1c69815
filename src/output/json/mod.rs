//! The JSON of `gpufleet status --json`, described in docs/status-json.md.
//!
//! What is missing is `null`, never left out and never zero. Names and units are those of the wire.

mod gpu;
mod host;
mod process;

pub use gpu::JsonGpu;
pub use host::{JsonError, JsonGpuError, JsonHost, JsonInfo, JsonReadings};
pub use process::JsonProcess;

use super::Report;
use super::findings::JsonFinding;
use crate::fleet::Moment;
use serde::Serialize;

/// The version of this schema. It rises when a field goes or changes its meaning, not when one is added.
pub const SCHEMA: u32 = 1;

/// The fleet at one moment.
#[derive(Debug, Serialize)]
pub struct JsonReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When it was put out, RFC 3339 in UTC.
    pub time: Option<String>,
    /// The data comes from the simulator (`--demo`), not from machines.
    pub simulated: bool,
    /// The hosts, in the order of the configuration.
    pub hosts: Vec<JsonHost>,
    /// What diagnosis says after this one look, the most important first.
    pub findings: Vec<JsonFinding>,
}

impl JsonReport {
    /// The fleet of a report.
    pub fn new(report: &Report<'_>) -> Self {
        Self {
            schema: SCHEMA,
            time: rfc3339(report.now),
            simulated: report.fleet.simulated,
            hosts: report.fleet.hosts().iter().map(|host| JsonHost::new(report, host)).collect(),
            findings: report.findings.iter().map(|one| JsonFinding::new(one, report.fleet, report.now)).collect(),
        }
    }
}

/// The fleet as one line of JSON.
pub fn line(report: &Report<'_>) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string(&JsonReport::new(report))? + "\n")
}

/// A moment as RFC 3339 to the second; `None` for a year that it cannot write.
pub(super) fn rfc3339(moment: Moment) -> Option<String> {
    rfc3339_of_unix(i64::try_from(moment.unix.as_secs()).ok()?)
}

fn rfc3339_of_unix(seconds: i64) -> Option<String> {
    jiff::Timestamp::from_second(seconds).ok().map(|time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    const DOCUMENT: &str = include_str!("../../../docs/status-json.md");

    fn produced() -> Value {
        let mut value = Value::Null;
        fixture::with_report(|report| value = serde_json::to_value(JsonReport::new(report)).expect("encodes"));
        value
    }

    /// The paths of all fields, arrays as `[]`: `hosts[].gpus[].index`.
    fn paths(value: &Value, path: &str, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    into.insert(path.clone());
                    paths(value, &path, into);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| paths(item, &format!("{path}[]"), into)),
            _ => {}
        }
    }

    #[test]
    fn the_document_names_every_field_and_no_other() {
        let mut written = BTreeSet::new();
        paths(&produced(), "", &mut written);
        let rows = DOCUMENT.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        let documented: BTreeSet<String> = rows.map(|(path, _)| path.to_owned()).collect();
        let missing: Vec<_> = written.difference(&documented).collect();
        let invented: Vec<_> = documented.difference(&written).collect();
        assert!(missing.is_empty() && invented.is_empty(), "not documented: {missing:?}, not written: {invented:?}");
    }

    #[test]
    fn every_host_has_the_same_fields() {
        let report = produced();
        let fields = |host: &Value| {
            let objects = ["info", "readings"].map(|name| host[name].as_object().map(serde_json::Map::len));
            (host.as_object().map(serde_json::Map::len), objects)
        };
        let hosts = report["hosts"].as_array().expect("hosts");
        assert_eq!(hosts.len(), 6);
        assert!(hosts.iter().all(|host| fields(host) == fields(&hosts[0])));
    }

    #[test]
    fn one_entry_a_process_and_null_for_what_is_missing() {
        let report = produced();
        let host = &report["hosts"][0];
        let processes = host["processes"].as_array().expect("processes");
        let pids: Vec<&Value> = processes.iter().map(|process| &process["pid"]).collect();
        assert_eq!(pids, [&Value::from(900), &Value::from(2028), &Value::Null]);
        let training = &processes[1];
        assert_eq!(training["gpus"], serde_json::json!([0, 1]));
        assert_eq!(training["gpu_uuids"], serde_json::json!(["GPU-0", "GPU-1"]));
        assert_eq!(training["gpu_memory_bytes"], Value::from(143_u64 << 30));
        assert_eq!(training["start_time"], Value::from("2026-05-04T11:00:00Z"));
        assert_eq!(host["gpus"][3]["utilization_percent"], Value::Null);
        assert_eq!(host["gpus"][1]["state"], Value::from("hung"));
        assert_eq!(host["gpus"][1]["state_since"], Value::from("2026-05-04T11:42:00Z"));
        assert_eq!(host["gpus"][2]["error"]["kind"], Value::from("gpu_lost"));
        assert_eq!(report["hosts"][1]["gpu_error"]["kind"], Value::from("version_mismatch"));
        assert_eq!(report["hosts"][2]["error"]["kind"], Value::from("refused"));
        assert_eq!(report["hosts"][2]["age_seconds"], Value::Null);
        assert_eq!(report["time"], Value::from("2026-05-04T12:00:00Z"));
    }

    #[test]
    fn the_report_is_one_line() {
        fixture::with_report(|report| {
            let line = line(report).expect("encodes");
            assert_eq!(line.matches('\n').count(), 1);
            assert!(line.starts_with("{\"schema\":1,\"time\":\"2026-"), "{line}");
        });
    }

    #[test]
    fn impossible_times_are_missing() {
        assert_eq!(rfc3339_of_unix(i64::MAX), None);
        assert_eq!(rfc3339_of_unix(0).as_deref(), Some("1970-01-01T00:00:00Z"));
    }
}
