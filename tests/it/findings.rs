//! `gpufleet record` and `gpufleet findings`: files, output and exit codes.

use crate::lab::{Lab, gpufleet, record_until};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

#[track_caller]
fn assert_code(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("a recording");
    text.lines()
        .map(|line| {
            crate::schema::check("recording", line);
            serde_json::from_str(line).expect("JSON")
        })
        .collect()
}

/// Replays a recording as JSON and as text. Returns the changes, whose times lie within the recording.
fn replayed_in_time(path: &Path) -> Vec<Value> {
    let end = lines(path).last().and_then(|line| line["t"].as_f64()).expect("a last line");
    let shown = path.display().to_string();
    let output = gpufleet(&["findings", "--replay", &shown, "--json"]);
    assert_code(&output, 4);
    let changes: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let plain = gpufleet(&["findings", "--replay", &shown]);
    let times: Vec<&str> = text(&plain.stdout).lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(changes.len(), times.len());
    for (change, time) in changes.iter().zip(times) {
        let t = change["t"].as_f64().expect("a time");
        assert!((0.0..=end).contains(&t), "{t} of {end} s");
        let seconds = t as u64;
        assert_eq!(time, format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60));
    }
    changes
}

#[test]
fn recording_of_the_simulated_fleet_is_replayed_on_its_own_clock() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("demo.jsonl");
    let shown = path.display().to_string();
    let output = gpufleet(&["--demo", "--demo-speed", "300", "record", &shown, "--for", "600"]);
    assert_code(&output, 0);
    let changes = replayed_in_time(&path);
    assert!(!changes.is_empty() && changes.iter().all(|change| change["time"].is_string()));
}

#[test]
fn recording_ends_on_a_signal_and_can_be_replayed() {
    let lab = Lab::start(&["rec-1", "rec-2"]);
    let hosts = lab.hosts_toml("");
    let path = lab.path("lab.jsonl");
    let output = record_until(&path, &[&hosts], |recorded| recorded.matches('\n').count() >= 24);
    assert_code(&output, 0);
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with("recorded 2 of 2 hosts, ") && stderr.ends_with(" MB\n"), "{stderr}");
    assert_eq!(fs::metadata(&path).expect("exists").permissions().mode() & 0o777, 0o600);
    let lines = lines(&path);
    assert_eq!(lines[0]["recording"], 1);
    assert!(lines[0]["started"].as_str().is_some_and(|started| started.ends_with('Z')), "{}", lines[0]);
    for host in ["rec-1", "rec-2"] {
        let of_host: Vec<&Value> = lines.iter().filter(|line| line["host"] == host).collect();
        assert_eq!(of_host[0]["link"], "connecting", "{host}");
        for message in ["hello", "inventory", "snapshot"] {
            assert!(of_host.iter().any(|line| line["wire"][message].is_object()), "{host}: {message}");
        }
        let times: Vec<f64> = of_host.iter().filter_map(|line| line["t"].as_f64()).collect();
        assert!(times.is_sorted() && times.len() == of_host.len());
    }
    // The fourth GPU of each lab host is lost: the replay finds it.
    let changes = replayed_in_time(&path);
    for host in ["rec-1", "rec-2"] {
        let lost = |change: &&Value| change["host"] == host && change["rule"] == "gpu-lost" && change["to"] == "firing";
        let lost = changes.iter().find(lost).unwrap_or_else(|| panic!("{host}: {changes:?}"));
        assert_eq!((&lost["severity"], &lost["gpus"]), (&Value::from("crit"), &serde_json::json!([3])));
    }
    // An existing recording is not overwritten.
    let output = gpufleet(&["record", &path.display().to_string(), &hosts]);
    assert_code(&output, 1);
    let refused = format!(
        "gpufleet: cannot write {}: File exists\n  hint: choose another name, or delete the file first\n",
        path.display()
    );
    assert_eq!(text(&output.stderr), refused);
}

#[test]
fn redacted_recording_contains_no_user_names_or_arguments() {
    let lab = Lab::start(&["red-1"]);
    let hosts = lab.hosts_toml("");
    let path = lab.path("lab.jsonl");
    // The user name arrives once the user database of the host has answered.
    let sleep = |recorded: &str| {
        let complete = recorded.rsplit_once('\n').map_or("", |(complete, _)| complete);
        let lines = complete.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let mut facts =
            lines.flat_map(|line| line["wire"]["snapshot"]["facts"].as_array().cloned().unwrap_or_default());
        facts.find(|facts| facts["name"] == "sleep" && facts["user"].is_string())
    };
    let output = record_until(&path, &[&hosts, "--redact"], |recorded| sleep(recorded).is_some());
    assert_code(&output, 0);
    lines(&path);
    let sleep = sleep(&fs::read_to_string(&path).expect("a recording")).expect("the process of the lab");
    assert_eq!(sleep["argv"], serde_json::json!(["sleep", "***"]));
    let user = sleep["user"].as_str().expect("a user");
    assert!(user == "root" || user.starts_with("user"), "{user}");
}

#[test]
fn findings_reports_lost_gpus_and_silent_hosts() {
    let lab = Lab::start(&["look-1"]);
    let hosts = lab.hosts_toml("");
    let output = gpufleet(&["findings", &hosts, "--for", "6", "--min-severity", "crit"]);
    assert_code(&output, 4);
    let stdout = text(&output.stdout);
    assert!(stdout.contains("crit  look-1  gpu-lost, "), "{stdout}");
    assert!(stdout.contains(" pending; 1 host watched for "), "{stdout}");
    let output = gpufleet(&["findings", "--for", "1", "--json", "127.0.0.1:9"]);
    assert_code(&output, 3);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["silent"][0]["host"], "127.0.0.1");
    assert_eq!(report["findings"], serde_json::json!([]));
}

#[test]
fn simulated_fleet_has_findings_in_simulated_time() {
    let arguments = ["--demo", "--demo-speed", "300", "findings", "--for", "900", "--json"];
    let began = Instant::now();
    let output = gpufleet(&arguments);
    assert!(began.elapsed() < Duration::from_secs(60), "900 simulated seconds take 3 s");
    assert_code(&output, 4);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&report["simulated"], &report["hosts"]), (&Value::from(true), &Value::from(6)));
    assert!(report["observed_seconds"].as_f64().is_some_and(|seconds| seconds >= 900.0), "{report}");
    let findings = report["findings"].as_array().expect("findings");
    let rules: Vec<&str> = findings.iter().filter_map(|finding| finding["rule"].as_str()).collect();
    assert!(rules.contains(&"driver-mismatch") && rules.contains(&"stuck-spin"), "{rules:?}");
}

#[test]
fn replay_prints_every_change_and_unreadable_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("one.jsonl");
    let shown = path.display().to_string();
    let replay = || gpufleet(&["findings", "--replay", &shown]);
    let output = replay();
    assert_code(&output, 1);
    assert_eq!(text(&output.stderr), format!("gpufleet: cannot replay {shown}: No such file or directory\n"));
    let start = "{\"recording\":1,\"started\":\"2026-03-01T13:44:00Z\"}\n";
    let gpu = "{\"index\":0,\"uuid\":\"GPU-1\",\"name\":\"NVIDIA H100 80GB HBM3\"}";
    let inventory =
        format!("{{\"t\":0,\"host\":\"a\",\"wire\":{{\"inventory\":{{\"generation\":1,\"gpus\":[{gpu}]}}}}}}\n");
    let sample = |t: u32, error: &str| {
        let gpus = format!("{{\"rows\":1{error}}}");
        let snapshot = format!("{{\"sequence\":{},\"generation\":1,\"monotonic_seconds\":{t},\"gpus\":{gpus}}}", t + 1);
        format!("{{\"t\":{t},\"host\":\"a\",\"wire\":{{\"snapshot\":{snapshot}}}}}\n")
    };
    let lost = ",\"error\":[{\"kind\":\"gpu_lost\",\"code\":15,\"message\":\"gone\"}]";
    let healthy = ",\"temperature_celsius\":[40]";
    fs::write(&path, format!("{start}{inventory}{}{}", sample(1, healthy), sample(3, healthy))).expect("writes");
    let output = replay();
    assert_code(&output, 0);
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("", ""));
    let samples: String =
        [(1, healthy), (3, healthy), (5, lost), (7, lost), (9, lost)].map(|(t, error)| sample(t, error)).concat();
    fs::write(&path, format!("{start}{inventory}{samples}{{\"t\":11,\"host")).expect("writes");
    let output = replay();
    assert_code(&output, 4);
    let stdout = text(&output.stdout);
    assert!(stdout.contains("  crit  a  gpu-lost  clear -> firing (notified)  "), "{stdout}");
    // The clock is that of the recording, whether it says when it started or not.
    for (start, time) in [
        (start, Value::from("2026-03-01T13:44:07Z")),
        ("{\"recording\":1,\"started\":\"\"}\n", Value::Null),
        ("{\"recording\":1,\"started\":\"yesterday\"}\n", Value::Null),
        ("{\"recording\":1}\n", Value::Null),
    ] {
        fs::write(&path, format!("{start}{inventory}{samples}")).expect("writes");
        assert!(text(&replay().stdout).starts_with("   0:00:07  crit  a  gpu-lost  clear -> firing"), "{start}");
        let output = gpufleet(&["findings", "--replay", &shown, "--json"]);
        let change: Value = serde_json::from_str(text(&output.stdout)).expect("one line");
        assert_eq!((&change["t"], &change["time"]), (&Value::from(7.0), &time), "{start}");
    }
    fs::write(&path, format!("{start}{inventory}{samples}noise\n")).expect("writes");
    let output = replay();
    assert_code(&output, 1);
    assert_eq!(text(&output.stdout), stdout, "changes before the invalid line are printed");
    assert_eq!(
        text(&output.stderr),
        format!(
            "gpufleet: cannot replay {shown}: line 8: protocol violation: expected ident at line 1 column 2, in the line \
             that begins `noise`\n"
        )
    );
}

#[test]
fn status_includes_findings_without_changing_its_exit_code() {
    let lab = Lab::start(&["stat-1"]);
    let hosts = lab.hosts_toml("");
    let output = gpufleet(&["status", &hosts]);
    assert_code(&output, 0);
    let stdout = text(&output.stdout);
    assert!(stdout.contains("\nfindings: 1 firing"), "{stdout}");
    assert!(stdout.contains("\n  crit  stat-1  gpu-lost  GPU 3 has fallen off the bus"), "{stdout}");
    let output = gpufleet(&["status", "--json", &hosts]);
    assert_code(&output, 0);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let lost = &report["findings"][0];
    assert_eq!((&lost["rule"], &lost["phase"], &report["schema"]), (&"gpu-lost".into(), &"firing".into(), &1.into()));
    let output = gpufleet(&["status", "--demo", "--json"]);
    assert_code(&output, 0);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(
        report["findings"].as_array().is_some_and(|findings| !findings.is_empty()),
        "one simulated driver is broken"
    );
}

/// Replays a recording with a limit on the CPU time of the program, so that a busy machine does not matter.
fn replay_within_cpu_seconds(path: &Path, seconds: u32) -> Output {
    let command = format!("ulimit -t {seconds}; exec \"$0\" findings --json --replay \"$1\"");
    let program = env!("CARGO_BIN_EXE_gpufleet");
    Command::new("sh").args(["-c", &command, program]).arg(path).stdin(Stdio::null()).output().expect("sh runs")
}

#[test]
fn replay_of_thousands_of_hosts_takes_time_in_proportion_to_their_number() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("many.jsonl");
    let mut lines = vec![r#"{"recording":1,"started":"2026-03-01T13:44:00Z"}"#.to_owned()];
    // Every four hosts have another driver. All hosts are lost at once.
    for host in 0..8000 {
        let (driver, model) = (host / 4, host % 2);
        let gpu = format!(r#"{{"name":"H{model}"}}"#);
        lines.push(format!(
            r#"{{"t":1,"host":"h{host}","wire":{{"inventory":{{"generation":1,"driver_version":"{driver}","gpus":[{gpu}]}}}}}}"#
        ));
        lines.push(format!(r#"{{"t":2,"host":"h{host}","wire":{{"snapshot":{{"generation":1}}}}}}"#));
    }
    for host in 0..8000 {
        let error = r#"{"kind":"timeout","message":"no answer"}"#;
        lines.push(format!(r#"{{"t":3,"host":"h{host}","link":"down","error":{error}}}"#));
    }
    lines.push(r#"{"t":130,"host":"h0","link":"connecting"}"#.to_owned());
    let recording = lines.join("\n") + "\n";
    fs::write(&path, recording).expect("written");
    let output = replay_within_cpu_seconds(&path, 30);
    assert_code(&output, 4);
    let changes = text(&output.stdout);
    assert!(changes.contains("8000 hosts were lost within 10 s of each other"), "{}", changes.len());
}
