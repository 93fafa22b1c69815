//! `gpufleet record` and `gpufleet findings`, whole: what they write, print and exit with.

use crate::lab::{Lab, gpufleet};
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
fn code(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("a recording");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Waits until a file has this many whole lines.
fn wait_for_lines(path: &Path, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while fs::read_to_string(path).unwrap_or_default().matches('\n').count() < count {
        assert!(Instant::now() < deadline, "the recording grows");
        std::thread::yield_now();
    }
}

#[test]
fn a_lab_is_recorded_until_a_signal_and_replayed() {
    let lab = Lab::start(&["rec-1", "rec-2"]);
    let hosts = lab.hosts_toml("");
    let path = lab.path("lab.jsonl");
    let child = Command::new(env!("CARGO_BIN_EXE_gpufleet"))
        .args(["record", &path.display().to_string(), &hosts])
        .env_remove("SSH_AUTH_SOCK")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    wait_for_lines(&path, 24);
    let killed = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().expect("kill runs");
    assert!(killed.success());
    let output = child.wait_with_output().expect("ends");
    code(&output, 0);
    let words = text(&output.stderr);
    assert!(words.starts_with("recorded 2 of 2 hosts, ") && words.ends_with(" MB\n"), "{words}");
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
    // The fourth GPU of each host of the lab is lost: found live, and found again by the replay.
    let output = gpufleet(&["findings", "--replay", &path.display().to_string(), "--json"]);
    code(&output, 4);
    let changes: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for host in ["rec-1", "rec-2"] {
        let lost = |change: &&Value| change["host"] == host && change["rule"] == "gpu-lost" && change["to"] == "firing";
        let lost = changes.iter().find(lost).unwrap_or_else(|| panic!("{host}: {changes:?}"));
        assert_eq!((&lost["severity"], &lost["gpus"]), (&Value::from("crit"), &serde_json::json!([3])));
    }
    // What was recorded once is not written over.
    let output = gpufleet(&["record", &path.display().to_string(), &hosts]);
    code(&output, 1);
    let refused = format!(
        "gpufleet: cannot write {}: File exists\n  hint: choose another name, or delete the file first\n",
        path.display()
    );
    assert_eq!(text(&output.stderr), refused);
}

#[test]
fn a_redacted_recording_names_nobody() {
    let lab = Lab::start(&["red-1"]);
    let hosts = lab.hosts_toml("");
    let path = lab.path("lab.jsonl");
    let output = gpufleet(&["record", &path.display().to_string(), &hosts, "--redact", "--for", "4"]);
    code(&output, 0);
    let recorded = lines(&path);
    let facts: Vec<&Value> =
        recorded.iter().flat_map(|line| line["wire"]["snapshot"]["facts"].as_array().into_iter().flatten()).collect();
    // A name is told once the host's user database has answered.
    let sleep = facts.iter().find(|facts| facts["name"] == "sleep" && facts["user"].is_string());
    let sleep = sleep.expect("the process of the lab");
    assert_eq!(sleep["argv"], serde_json::json!(["sleep", "***"]));
    let user = sleep["user"].as_str().expect("a user");
    assert!(user == "root" || user.starts_with("user"), "{user}");
}

#[test]
fn a_live_look_finds_what_is_lost_and_says_who_is_silent() {
    let lab = Lab::start(&["look-1"]);
    let hosts = lab.hosts_toml("");
    let output = gpufleet(&["findings", &hosts, "--for", "6", "--min-severity", "crit"]);
    code(&output, 4);
    let words = text(&output.stdout);
    assert!(words.contains("crit  look-1  gpu-lost, "), "{words}");
    assert!(words.contains(" pending; 1 host watched for "), "{words}");
    let output = gpufleet(&["findings", "--for", "1", "--json", "127.0.0.1:9"]);
    code(&output, 3);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["silent"][0]["host"], "127.0.0.1");
    assert_eq!(report["findings"], serde_json::json!([]));
}

#[test]
fn the_simulated_fleet_has_findings_in_its_own_time() {
    let arguments = ["--demo", "--demo-speed", "300", "findings", "--for", "900", "--json"];
    let began = Instant::now();
    let output = gpufleet(&arguments);
    assert!(began.elapsed() < Duration::from_secs(60), "900 s pass in 3");
    code(&output, 4);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&report["simulated"], &report["hosts"]), (&Value::from(true), &Value::from(6)));
    assert!(report["observed_seconds"].as_f64().is_some_and(|seconds| seconds >= 900.0), "{report}");
    let findings = report["findings"].as_array().expect("findings");
    let rules: Vec<&str> = findings.iter().filter_map(|finding| finding["rule"].as_str()).collect();
    assert!(rules.contains(&"driver-mismatch") && rules.contains(&"stuck-spin"), "{rules:?}");
}

#[test]
fn a_replay_tells_every_change_and_what_it_cannot_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("one.jsonl");
    let shown = path.display().to_string();
    let replay = || gpufleet(&["findings", "--replay", &shown]);
    let output = replay();
    code(&output, 1);
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
    let well = ",\"temperature_celsius\":[40]";
    fs::write(&path, format!("{start}{inventory}{}{}", sample(1, well), sample(3, well))).expect("writes");
    let output = replay();
    code(&output, 0);
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("", ""));
    let samples: String =
        [(1, well), (3, well), (5, lost), (7, lost), (9, lost)].map(|(t, error)| sample(t, error)).concat();
    fs::write(&path, format!("{start}{inventory}{samples}{{\"t\":11,\"host")).expect("writes");
    let output = replay();
    code(&output, 4);
    let words = text(&output.stdout);
    assert!(words.contains("  crit  a  gpu-lost  clear -> firing (notified)  "), "{words}");
    fs::write(&path, format!("{start}{inventory}{samples}noise\n")).expect("writes");
    let output = replay();
    code(&output, 1);
    assert_eq!(text(&output.stdout), words, "what came before is told");
    assert_eq!(
        text(&output.stderr),
        format!(
            "gpufleet: cannot replay {shown}: line 8: protocol violation: expected ident at line 1 column 2, in the line \
             that begins `noise`\n"
        )
    );
}

#[test]
fn status_carries_findings_and_exits_as_before() {
    let lab = Lab::start(&["stat-1"]);
    let hosts = lab.hosts_toml("");
    let output = gpufleet(&["status", &hosts]);
    code(&output, 0);
    let words = text(&output.stdout);
    assert!(words.contains("\nfindings: 1 firing"), "{words}");
    assert!(words.contains("\n  crit  stat-1  gpu-lost  GPU 3 has fallen off the bus"), "{words}");
    let output = gpufleet(&["status", "--json", &hosts]);
    code(&output, 0);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let lost = &report["findings"][0];
    assert_eq!((&lost["rule"], &lost["phase"], &report["schema"]), (&"gpu-lost".into(), &"firing".into(), &1.into()));
    let output = gpufleet(&["status", "--demo", "--json"]);
    code(&output, 0);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(
        report["findings"].as_array().is_some_and(|findings| !findings.is_empty()),
        "a driver of the demo is broken"
    );
}
