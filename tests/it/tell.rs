//! Being told of a finding: the bell, the desktop, a hook that works and one that fails.

use crate::lab::Lab;
use crate::pty::{PATIENCE, Pty};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The program title is ended by a bell that rings nothing.
const TITLE: &str = "\x1b]0;gpufleet\x07";

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[track_caller]
fn wait_for_lines(path: &Path, count: usize) -> Vec<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // A line that is half written has no end yet.
        if std::fs::read_to_string(path).unwrap_or_default().matches('\n').count() >= count {
            return lines(path);
        }
        assert!(Instant::now() < deadline, "the hook was called {count} times: {:?}", lines(path));
        std::thread::yield_now();
    }
}

fn quit(mut pty: Pty) -> String {
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    String::from_utf8_lossy(&pty.bytes()).replace(TITLE, "")
}

#[test]
fn a_finding_rings_once_and_calls_the_hook_once_across_a_restart() {
    let lab = Lab::start(&["tell-1"]);
    let (hook, called) = (lab.write("hook.sh", "#!/bin/sh\ncat >> \"$1\"\n"), lab.path("called.jsonl"));
    let table = format!(
        "[notifications]\nbell = true\ndesktop = true\non_finding = [\"/bin/sh\", \"{hook}\", \"{}\"]\nmin_severity = \"crit\"",
        called.display()
    );
    let hosts = lab.hosts_toml(&table);
    let state = lab.path("state").display().to_string();
    let environment = [("XDG_STATE_HOME", state.as_str()), ("TMUX", "")];
    // The fourth GPU of each host of the lab is lost.
    let pty = Pty::gpufleet((120, 40), &[&hosts], &environment);
    pty.wait_for("1 finding");
    let told = wait_for_lines(&called, 1);
    assert_eq!((&told[0]["schema"], &told[0]["left_out"]), (&Value::from(1), &Value::from(0)));
    let finding = &told[0]["findings"][0];
    assert_eq!((&finding["rule"], &finding["host"]), (&Value::from("gpu-lost"), &Value::from("tell-1")));
    let text = told[0]["text"].as_str().expect("a line");
    assert!(text.starts_with("crit tell-1: GPU 3 has fallen off the bus"), "{text}");
    let bytes = quit(pty);
    assert_eq!(bytes.matches(&format!("\x1b]9;gpufleet: {text}\x1b\\")).count(), 1, "one desktop notification");
    assert_eq!((bytes.matches("\x1b]9;").count(), bytes.matches('\x07').count()), (1, 1), "one bell");
    // The next run knows that somebody was told; another GPU that is lost is news.
    let pty = Pty::gpufleet((120, 40), &[&hosts], &environment);
    pty.wait_for("1 finding");
    let mut scenario: Value =
        serde_json::from_str(&std::fs::read_to_string(lab.hosts[0].driver.script()).expect("a script")).expect("JSON");
    scenario["devices"][2] = crate::fake_driver::gpu_with(2, &serde_json::json!({"error": 15}));
    lab.hosts[0].driver.set(&scenario);
    let told = wait_for_lines(&called, 2);
    assert_eq!(told[1]["findings"][0]["gpus"][0]["index"], 2, "{:#}", told[1]);
    let bytes = quit(pty);
    assert_eq!((bytes.matches("\x1b]9;").count(), bytes.matches('\x07').count()), (1, 1));
    assert_eq!(lines(&called).len(), 2);
}

#[test]
fn a_hook_that_fails_is_said_on_the_screen_with_its_cause() {
    let lab = Lab::start(&["tell-2"]);
    let hook = lab.write("fail.sh", "echo 'no route to chat' >&2\nexit 3\n");
    let hosts = lab.hosts_toml(&format!("[notifications]\non_finding = [\"/bin/sh\", \"{hook}\"]"));
    let pty = Pty::gpufleet((160, 40), &[&hosts], &[("TMUX", "")]);
    pty.wait_for(
        "on_finding `sh` failed: exit status 3, no route to chat; docs/notifications.md shows how to try it by hand",
    );
    let bytes = quit(pty);
    assert!(!bytes.contains('\x07') && !bytes.contains("\x1b]9;"), "nothing was asked for but the hook");
    let hosts = lab.hosts_toml("[notifications]\non_finding = [\"./no-such-hook\"]");
    let pty = Pty::gpufleet((160, 40), &[&hosts], &[]);
    pty.wait_for("cannot run on_finding `no-such-hook`: No such file or directory; is it installed, and in PATH?");
    quit(pty);
}

#[test]
fn a_watch_without_a_screen_calls_the_hook_and_complains_on_standard_error() {
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
    let (words, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(words.contains("gpu-lost  clear -> firing (told)") && !words.contains('\x07'), "{words}");
    assert_eq!(
        complaint,
        "gpufleet: on_finding `sh` failed: exit status 1, half of it; docs/notifications.md shows how to try it by hand\n"
    );
}
