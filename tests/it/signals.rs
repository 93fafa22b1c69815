//! Signals, whole: from the key through a real sshd and the probe to a real process, and what is said and logged of it.

use crate::lab::Lab;
use crate::pty::{PATIENCE, Pty, signal};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Instant;

/// Whether a process has ended: it is no more, or its parent, this test, has not waited for it yet.
pub(crate) fn has_ended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with('Z'))
}

/// Waits until a process has ended.
#[track_caller]
pub(crate) fn wait_for_end(pid: u32) {
    let deadline = Instant::now() + PATIENCE;
    while !has_ended(pid) {
        assert!(Instant::now() < deadline, "pid {pid} ends");
        std::thread::yield_now();
    }
}

fn watch(lab: &Lab, defaults: &str, state: &Path, arguments: &[&str]) -> Pty {
    let hosts = lab.hosts_toml(defaults);
    let mut all = vec![hosts.as_str()];
    all.extend(arguments);
    let state = state.to_str().expect("UTF-8");
    let pty = Pty::gpufleet((120, 40), &all, &[("SSH_AUTH_SOCK", ""), ("XDG_STATE_HOME", state)]);
    pty.wait_for("GPUs");
    pty
}

#[test]
fn the_process_that_was_found_gets_term_and_no_other_does() {
    let lab = Lab::start(&["hgx-01", "hgx-02"]);
    let state = tempfile::tempdir().expect("a folder");
    // Whoever runs the tests may be root, who is asked for the host's name anyway.
    let mut pty = watch(&lab, "shared_account = true", state.path(), &[]);
    let [first, second] = [0, 1].map(|place: usize| lab.hosts[place].worker_pid());
    pty.keys("3");
    pty.wait("both processes", |text| text.contains(&first.to_string()) && text.contains(&second.to_string()));
    pty.keys("/host:hgx-02 sm>90\r");
    pty.wait("one of them", |text| text.contains("1 of 2 shown") && !text.contains(&first.to_string()));
    pty.keys("T");
    let dialog = pty.wait_for("type hgx-02, then Enter");
    assert!(dialog.contains(&format!("pid {second}")) && dialog.contains("GPUs 0,1"), "{dialog}");
    pty.keys("hgx-01\r");
    pty.wait_for("that is not hgx-02");
    assert!(!has_ended(second));
    pty.keys("\x15hgx-02\r");
    pty.wait_for(&format!("TERM to pid {second} on hgx-02: sent"));
    wait_for_end(second);
    assert!(!has_ended(first), "the other host's process is left alone");
    // The probe looks again before it sends: a process that ends while the question stands is told as gone.
    pty.keys("/\x15host:hgx-01\r");
    pty.wait("the other one", |text| text.contains(&first.to_string()));
    pty.keys("gK");
    pty.wait_for("type hgx-01, then Enter");
    signal(first, "KILL");
    wait_for_end(first);
    pty.keys("hgx-01\r");
    pty.wait_for(&format!("KILL to pid {first} on hgx-01: not sent"));
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    let path = state.path().join("gpufleet/signals.log");
    assert_eq!(std::fs::metadata(&path).expect("a log").permissions().mode() & 0o777, 0o600);
    let log = std::fs::read_to_string(&path).expect("a log");
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 4, "{log}");
    for (line, name, host, pid, words) in [
        (lines[0], "TERM", "hgx-02", second, "requested"),
        (lines[1], "TERM", "hgx-02", second, "sent"),
        (lines[2], "KILL", "hgx-01", first, "requested"),
        (lines[3], "KILL", "hgx-01", first, "not sent: the process had ended"),
    ] {
        assert!(line.contains(&format!("Z {name} host={host} pid={pid} start_ticks=")), "{line}");
        assert!(line.contains(&format!(" {words}: sleep 3600")), "{line}");
    }
}

#[test]
fn readonly_and_hosts_toml_take_signals_away() {
    let lab = Lab::start(&["hgx-01"]);
    let state = tempfile::tempdir().expect("a folder");
    let pid = lab.hosts[0].worker_pid();
    let mut pty = watch(&lab, "", state.path(), &["--readonly"]);
    pty.keys("3");
    pty.wait_for(&pid.to_string());
    pty.keys("T");
    pty.wait_for("signals are disabled");
    drop(pty);
    let mut pty = watch(&lab, "signals = \"none\"", state.path(), &[]);
    pty.keys("3");
    pty.wait_for(&pid.to_string());
    pty.keys("T");
    pty.wait_for("hosts.toml allows no signals on hgx-01");
    pty.keys("yhgx-01\r");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    assert!(!has_ended(pid));
    assert!(!state.path().join("gpufleet/signals.log").exists());
}
