//! Notifications: the bell, desktop notifications, hooks, snoozing and the memory of diagnosis.

use crate::lab::{Lab, gpufleet_in, wait_for_lines, wait_until};
use crate::pty::Pty;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// The sequence that sets the window title ends with a BEL character, which rings no bell.
const TITLE: &str = "\x1b]0;gpufleet\x07";

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .map(|line| {
            crate::schema::check("notification", line);
            serde_json::from_str(line).expect("JSON")
        })
        .collect()
}

/// Waits until the hook has written this many lines.
#[track_caller]
pub(crate) fn wait_for_calls(path: &Path, count: usize) -> Vec<Value> {
    wait_for_lines(path, count);
    lines(path)
}

fn quit(mut pty: Pty) -> String {
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    String::from_utf8_lossy(&pty.bytes()).replace(TITLE, "")
}

#[test]
fn finding_rings_and_calls_the_hook_once_across_a_restart() {
    let lab = Lab::start(&["tell-1"]);
    let (hook, called) = (lab.write("hook.sh", "#!/bin/sh\ncat >> \"$1\"\n"), lab.path("called.jsonl"));
    let table = format!(
        "[notifications]\nbell = true\ndesktop = true\non_finding = [\"/bin/sh\", \"{hook}\", \"{}\"]\nmin_severity = \"crit\"",
        called.display()
    );
    let hosts = lab.hosts_toml(&table);
    let state = lab.path("state").display().to_string();
    let environment = [("XDG_STATE_HOME", state.as_str()), ("TMUX", "")];
    // The fourth GPU of each lab host is lost.
    let pty = Pty::gpufleet((120, 40), &[&hosts], &environment);
    pty.wait_for("1 finding");
    let calls = wait_for_calls(&called, 1);
    assert_eq!((&calls[0]["schema"], &calls[0]["left_out"]), (&Value::from(1), &Value::from(0)));
    let finding = &calls[0]["findings"][0];
    assert_eq!((&finding["rule"], &finding["host"]), (&Value::from("gpu-lost"), &Value::from("tell-1")));
    let text = calls[0]["text"].as_str().expect("a line");
    assert!(text.starts_with("crit tell-1: GPU 3 has fallen off the bus"), "{text}");
    let bytes = quit(pty);
    assert_eq!(bytes.matches(&format!("\x1b]9;gpufleet: {text}\x1b\\")).count(), 1, "one desktop notification");
    assert_eq!((bytes.matches("\x1b]9;").count(), bytes.matches('\x07').count()), (1, 1), "one bell");
    // The next run remembers the notification; only another lost GPU is new.
    let pty = Pty::gpufleet((120, 40), &[&hosts], &environment);
    pty.wait_for("1 finding");
    let mut scenario: Value =
        serde_json::from_str(&std::fs::read_to_string(lab.hosts[0].driver.script()).expect("a script")).expect("JSON");
    scenario["devices"][2] = crate::fake_driver::gpu_with(2, &serde_json::json!({"error": 15}));
    lab.hosts[0].driver.set(&scenario);
    let calls = wait_for_calls(&called, 2);
    assert_eq!(calls[1]["findings"][0]["gpus"][0]["index"], 2, "{:#}", calls[1]);
    let bytes = quit(pty);
    assert_eq!((bytes.matches("\x1b]9;").count(), bytes.matches('\x07').count()), (1, 1));
    assert_eq!(lines(&called).len(), 2);
}

#[test]
fn failed_hook_is_shown_on_the_screen_with_its_cause() {
    let lab = Lab::start(&["tell-2"]);
    let hook = lab.write("fail.sh", "echo 'no route to chat' >&2\nexit 3\n");
    let hosts = lab.hosts_toml(&format!("[notifications]\non_finding = [\"/bin/sh\", \"{hook}\"]"));
    let pty = Pty::gpufleet((160, 40), &[&hosts], &[("TMUX", "")]);
    pty.wait_for(
        "on_finding `sh` failed: exit status 3, no route to chat; see docs/notifications.md for how to test it",
    );
    let bytes = quit(pty);
    assert!(!bytes.contains('\x07') && !bytes.contains("\x1b]9;"), "only the hook is configured");
    let hosts = lab.hosts_toml("[notifications]\non_finding = [\"./no-such-hook\"]");
    let pty = Pty::gpufleet((160, 40), &[&hosts], &[]);
    pty.wait_for("cannot run on_finding `no-such-hook`: No such file or directory; install it or add it to PATH");
    quit(pty);
}

#[test]
fn findings_watch_calls_the_hook_and_reports_its_failure_on_standard_error() {
    let lab = Lab::start(&["tell-3"]);
    let called = lab.path("called.jsonl");
    let script = "cat >> \"$1\"\necho 'half of it' >&2\nexit 1\n";
    let hook = lab.write("hook.sh", script);
    let table =
        format!("[notifications]\nbell = true\non_finding = [\"/bin/sh\", \"{hook}\", \"{}\"]", called.display());
    let hosts = lab.hosts_toml(&table);
    let output = Command::new(env!("CARGO_BIN_EXE_gpufleet"))
        .args(["findings", "--watch", "--for", "6", "--min-severity", "warn", &hosts])
        .env("XDG_STATE_HOME", lab.path("state"))
        .env_remove("SSH_AUTH_SOCK")
        .stdin(Stdio::null())
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert_eq!(lines(&called).len(), 1);
    let (stdout, diagnostic) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("gpu-lost  clear -> firing (notified)") && !stdout.contains('\x07'), "{stdout}");
    assert_eq!(
        diagnostic,
        "gpufleet: on_finding `sh` failed: exit status 1, half of it; see docs/notifications.md for how to test it\n"
    );
}

#[test]
fn snooze_applies_to_all_commands_and_survives_a_restart() {
    let lab = Lab::start(&["tell-4"]);
    let hosts = lab.hosts_toml("");
    let state = lab.path("state");
    let environment = [("XDG_STATE_HOME", state.to_str().expect("UTF-8"))];
    let mut pty = Pty::gpufleet((120, 40), &[&hosts], &environment);
    pty.wait_for("1 finding");
    pty.keys("5");
    pty.wait_for("has fallen off the bus");
    pty.keys("x");
    pty.wait_for("gpu-lost on tell-4 is snoozed for 1 hour; x undoes it");
    pty.wait("a dim line with the snooze", |text| text.contains("snoozed until ") && !text.contains("1 finding"));
    // The snooze is saved at once, so a crash would not lose it.
    let memory = state.join("gpufleet/memory.json");
    wait_until("the memory file", String::new, || memory.exists().then_some(()));
    let kept = std::fs::read_to_string(&memory).expect("was written");
    let kept: Value = serde_json::from_str(&kept).expect("JSON");
    assert_eq!(kept["snoozed"].as_object().expect("snoozes").len(), 1, "{kept:#}");
    quit(pty);

    let output = gpufleet_in(&state, &["findings", "--for", "4", "--json", "--min-severity", "crit", &hosts]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["findings"][0]["snoozed"], true, "{report:#}");
    assert!(report["findings"][0]["snoozed_until"].is_string(), "{report:#}");
    let output = gpufleet_in(&state, &["status", &hosts]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("gpu-lost  snoozed: GPU 3 has fallen off the bus"), "{stdout}");

    let mut pty = Pty::gpufleet((120, 40), &[&hosts], &environment);
    pty.wait_for("): no job ended; nothing looks hung");
    pty.keys("5");
    pty.wait("it is still snoozed", |text| text.contains("snoozed until ") && !text.contains("1 finding"));
    pty.keys("x");
    pty.wait("it counts again", |text| text.contains("1 finding") && text.contains("is no longer snoozed"));
    quit(pty);
    let kept = std::fs::read_to_string(state.join("gpufleet/memory.json")).expect("was written");
    let kept: Value = serde_json::from_str(&kept).expect("JSON");
    assert_eq!(kept["snoozed"], serde_json::json!({}));
}

#[test]
fn fifo_in_place_of_the_lock_stops_neither_the_screen_nor_saving() {
    let lab = Lab::start(&["tell-6"]);
    let hosts = lab.hosts_toml("");
    let state = lab.path("state");
    std::fs::create_dir_all(state.join("gpufleet")).expect("makes the directory");
    // Opening a FIFO without a reader would block forever. It is refused, and the state is saved without the lock.
    let lock = state.join("gpufleet/memory.lock");
    assert!(Command::new("mkfifo").arg(&lock).status().expect("mkfifo").success());
    let mut pty = Pty::gpufleet((120, 40), &[&hosts], &[("XDG_STATE_HOME", state.to_str().expect("UTF-8"))]);
    pty.wait_for("1 finding");
    pty.keys("5");
    pty.wait_for("has fallen off the bus");
    for message in ["is snoozed for 1 hour; x undoes it", "is no longer snoozed"] {
        pty.keys("x");
        pty.wait_for(message);
    }
    quit(pty);
    let output = gpufleet_in(&state, &["findings", "--for", "3", &hosts]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(4), "{stdout}");
    assert!(stdout.contains("has fallen off the bus"), "{stdout}");
    let kept = std::fs::read_to_string(state.join("gpufleet/memory.json")).expect("was written");
    assert!(serde_json::from_str::<Value>(&kept).is_ok(), "{kept}");
}

#[test]
fn unreadable_memory_file_is_kept_aside_and_reported() {
    let lab = Lab::start(&["tell-5"]);
    let hosts = lab.hosts_toml("");
    let state = lab.path("state");
    let file = state.join("gpufleet/memory.json");
    std::fs::create_dir_all(state.join("gpufleet")).expect("a folder");
    for (number, text, why) in [
        (1, "{\"version\":2,\"told\"", "not a saved state of gpufleet's diagnosis: EOF while parsing"),
        (2, "{\"version\":77,\"told\":[]}", "saved state has version 77, this gpufleet reads version 2"),
    ] {
        std::fs::write(&file, text).expect("writes");
        let pty = Pty::gpufleet((160, 40), &[&hosts], &[("XDG_STATE_HOME", state.to_str().expect("UTF-8"))]);
        let expected = format!(
            "the diagnosis starts without saved state, the unusable file is kept as memory.json.bad-{number}: {why}"
        );
        pty.wait_for(&expected);
        pty.wait_for("1 finding");
        quit(pty);
        let aside = state.join(format!("gpufleet/memory.json.bad-{number}"));
        assert_eq!(std::fs::read_to_string(aside).expect("is kept"), text);
        let fresh: Value = serde_json::from_str(&std::fs::read_to_string(&file).expect("is written")).expect("JSON");
        assert_eq!(fresh["version"], 2);
    }
    // findings reports it on standard error; status, which only reads the file, leaves it unchanged.
    std::fs::write(&file, "noise").expect("writes");
    let output = gpufleet_in(&state, &["status", &hosts]);
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
    assert_eq!(std::fs::read_to_string(&file).expect("is there"), "noise");
    let output = gpufleet_in(&state, &["findings", "--for", "3", &hosts]);
    let diagnostic = String::from_utf8_lossy(&output.stderr);
    let expected = "gpufleet: the diagnosis starts without saved state, the unusable file is kept as memory.json.bad-3: not a saved state";
    assert!(diagnostic.starts_with(expected), "{diagnostic}");
    assert_eq!(output.status.code(), Some(4));
}
