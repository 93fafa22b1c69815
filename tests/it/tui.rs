//! The terminal interface in a real terminal, on the simulated fleet and on a lab: views, filters, signals, the shell,
//! copying, settings and prompts.

use crate::fake_driver::{devices, gpu, gpu_with};
use crate::lab::Lab;
use crate::pty::{Pty, has_ended, signal, wait_for_end};
use crate::sshd::PASSPHRASE;
use serde_json::{Value, json};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

const DEMO: [&str; 3] = ["--demo", "--theme", "dark"];

#[test]
fn demo_shows_live_hosts_and_says_simulated() {
    let mut pty = Pty::gpufleet((120, 40), &DEMO, &[]);
    pty.wait_for("6 hosts");
    pty.wait_for("SIMULATED");
    pty.wait("six panes", |text| (1..=6).all(|host| text.contains(&format!("hgx-0{host}"))));
    // One host has a driver version mismatch: its GPUs are not counted, and the header says so.
    pty.wait_for("40 GPUs on 5 of 6 hosts");
    pty.wait_for("NO GPU DATA");
    pty.keys("?");
    pty.wait_for("page, half a page");
    pty.keys("\x1b");
    // A key right after Escape would be read as Alt plus the key.
    pty.wait("the help closed", |text| !text.contains("page, half a page"));
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn enter_opens_a_host_and_escape_returns_to_the_grid() {
    let mut pty = Pty::gpufleet((120, 40), &DEMO, &[]);
    pty.wait_for("40 GPUs");
    pty.keys("\r");
    pty.wait("the first host alone", |text| text.contains(" hgx-01   8 x NVIDIA H100") && !text.contains("hgx-06"));
    pty.keys("]");
    pty.wait_for(" hgx-02   8 x NVIDIA H100");
    pty.keys("\x1b");
    pty.wait("the grid", |text| (1..=6).all(|host| text.contains(&format!("hgx-0{host}"))));
}

#[test]
fn screen_recovers_after_resizing_to_one_cell() {
    let pty = Pty::gpufleet((120, 40), &DEMO, &[]);
    pty.wait_for("hgx-06");
    for (columns, rows) in [(80, 24), (39, 9), (1, 1), (200, 60), (20, 50)] {
        pty.resize(columns, rows);
    }
    pty.resize(30, 8);
    pty.wait_for("40x10");
    pty.resize(120, 40);
    pty.wait("six panes", |text| (1..=6).all(|host| text.contains(&format!("hgx-0{host}"))));
}

/// Four GPUs with one process on the first two: working, or spinning as in a hung collective operation.
fn job(worker: u32, is_hung: bool) -> Value {
    let process = json!([{"pid": worker, "memory_bytes": 60_129_542_144_u64, "sm_percent": 100}]);
    let (memory, power) = if is_hung { (0, 104) } else { (41, 602) };
    let busy = json!({
        "utilization_percent": 100, "memory_utilization_percent": memory, "memory_used_bytes": 61_203_283_968_u64,
        "power_watts": power, "temperature_celsius": 58, "processes": process
    });
    devices(&[gpu_with(0, &busy), gpu_with(1, &busy), gpu(2), gpu(3)])
}

/// A lab of three hosts without findings.
fn healthy_lab() -> Lab {
    let lab = Lab::start(&["hgx-01", "hgx-02", "hgx-03"]);
    for host in &lab.hosts {
        host.driver.set(&job(host.worker_pid(), false));
    }
    lab
}

#[test]
fn hung_job_is_found_through_its_finding_and_terminated() {
    let lab = healthy_lab();
    let hung = lab.hosts[1].worker_pid();
    lab.hosts[1].driver.set(&job(hung, true));
    // Root must always type the host's name to confirm; with a shared account other users must, too.
    let defaults = "shared_account = true\n\n[diagnosis]\nstuck-spin-suspect = { warn_after = \"3s\" }";
    let hosts = lab.hosts_toml(defaults);
    let mut pty = Pty::gpufleet((120, 40), &["--theme", "dark", &hosts], &[("SSH_AUTH_SOCK", "")]);
    // The header has the number of hung processes, the pane a mark, and the first row of the list the state.
    let grid = pty.wait("the alarm", |text| text.contains("2 hung?") && text.contains("1 finding"));
    assert!(grid.lines().any(|line| line.contains("hgx-02 !")), "{grid}");
    let first = grid.lines().skip_while(|line| !line.contains("COMMAND")).nth(1).expect("a row").to_owned();
    assert!(first.contains("hgx-02") && first.contains("hung?") && first.contains("sleep 3600"), "{grid}");
    pty.keys("5");
    let findings = pty.wait_for("may be hung");
    assert!(findings.contains("GPUs 0,1 read 100 % busy"), "{findings}");
    assert!(findings.contains(&format!("gpufleet why hgx-02:{hung}")), "{findings}");
    pty.keys("\r");
    pty.wait("the process", |text| text.contains(&format!("pid {hung}")) && text.contains("command"));
    pty.keys("T");
    let dialog = pty.wait_for("type hgx-02, then Enter");
    assert!(dialog.contains(&format!("pid {hung}")) && dialog.contains("GPUs 0,1"), "{dialog}");
    pty.keys("hgx-02\r");
    pty.wait_for(&format!("TERM to pid {hung} on hgx-02: sent"));
    wait_for_end(hung);
    lab.hosts[1].driver.set(&devices(&[gpu(0), gpu(1), gpu(2), gpu(3)]));
    pty.keys("1");
    pty.wait("the end of the process", |text| !text.contains("hung?") && text.contains("ended"));
    assert!([0, 2].into_iter().all(|place: usize| !has_ended(lab.hosts[place].worker_pid())), "the others live");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn filter_is_kept_when_entering_and_leaving_a_host() {
    let lab = healthy_lab();
    let mut pty = Pty::gpufleet((120, 40), &["--theme", "dark", &lab.hosts_toml("")], &[("SSH_AUTH_SOCK", "")]);
    pty.wait("three hosts", |text| text.contains("6 busy") && text.matches("sleep 3600").count() == 3);
    pty.keys("/host:hgx-0[");
    pty.wait_for("0 of 3 shown");
    pty.keys("\x15host:hgx-02");
    pty.wait_for("1 of 3 shown");
    pty.keys(" mem>1");
    pty.wait("the filter error", |text| text.contains("write mem>10G"));
    pty.keys("00G\r");
    let grid = pty.wait("the filter", |text| text.contains("filter host:hgx-02 mem>100G"));
    assert_eq!(grid.matches("sleep 3600").count(), 1, "{grid}");
    pty.keys("\x1b[C\r");
    pty.wait("the second host", |text| text.contains(" hgx-02   4 x NVIDIA H100") && text.contains("sleep 3600"));
    pty.keys("\r");
    pty.wait_for("held by");
    pty.keys("\x1b");
    pty.wait_for("Processes on hgx-02");
    pty.keys("\x1b");
    pty.wait("the grid", |text| text.contains("filter host:hgx-02") && text.contains("Tab hosts/processes"));
    pty.keys("\x1b");
    pty.wait("all processes", |text| !text.contains("filter host") && text.matches("sleep 3600").count() == 3);
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn open_host_shows_why_it_is_down_and_retries_on_a_key() {
    let mut lab = healthy_lab();
    let mut pty = Pty::gpufleet((120, 40), &["--theme", "dark", &lab.hosts_toml("")], &[("SSH_AUTH_SOCK", "")]);
    pty.wait("three hosts", |text| text.contains("6 busy"));
    pty.keys("\x1b[C\r");
    pty.wait_for(" hgx-02   4 x NVIDIA H100");
    lab.hosts[1].sshd.stop();
    let lost = pty.wait("the lost host", |text| text.contains("DOWN"));
    assert!(lost.contains("last seen") && lost.contains("2 busy"), "{lost}");
    pty.keys("L");
    pty.wait("the reason in the ssh log", |text| {
        text.contains("ssh log of hgx-02") && text.contains("nothing listens")
    });
    lab.hosts[1].sshd.restart();
    pty.keys("\x1b");
    pty.wait_for("Processes on hgx-02");
    pty.keys("r");
    pty.wait("the recovered host", |text| text.contains(" hgx-02   4 x NVIDIA H100") && !text.contains("DOWN"));
    pty.keys("1");
    pty.wait("all three", |text| text.contains("12 GPUs") && text.contains("6 busy"));
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn one_passphrase_unlocks_the_key_for_all_hosts() {
    let lab = healthy_lab();
    let sshd = &lab.hosts[0].sshd;
    let host = |name: &str| {
        format!(
            "[[hosts]]\nname = \"{name}\"\naddress = \"{}\"\nport = {}\nidentity_file = \"{}\"\nknown_hosts = \
             \"{}\"\nnvml_library = \"{}\"\n\n",
            sshd.ip(),
            sshd.port(),
            sshd.locked_key().display(),
            sshd.known_hosts().display(),
            lab.hosts[0].driver.library().display()
        )
    };
    let hosts = lab.write("hosts.toml", &(host("gpu-a") + &host("gpu-b")));
    let mut pty = Pty::gpufleet((120, 40), &["--theme", "dark", &hosts], &[("SSH_AUTH_SOCK", "")]);
    pty.wait("the question", |text| {
        text.contains("Passphrase") && text.contains("and 1 more host") && text.contains('▏')
    });
    pty.keys("not this one\r");
    pty.wait("the error for the wrong passphrase", |text| {
        text.contains("Passphrase") && text.contains("rejected") && text.contains('▏')
    });
    pty.keys(PASSPHRASE);
    pty.keys("\r");
    pty.wait("both hosts", |text| text.contains("8 GPUs") && text.contains("4 busy") && !text.contains("Passphrase"));
    let bytes = pty.bytes();
    let written = String::from_utf8_lossy(&bytes);
    assert!(!written.contains("correct horse") && !written.contains("not this"), "a passphrase is never shown");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

// Views and the ssh log.

#[test]
fn each_view_is_reached_by_its_key() {
    let mut pty = Pty::gpufleet((120, 40), &["--demo", "--theme", "dark"], &[]);
    pty.wait_for("40 GPUs");
    pty.keys("2");
    pty.wait_for("Free now");
    pty.keys("4");
    pty.wait_for("users hold");
    pty.keys("1");
    pty.wait_for("Processes");
    pty.keys("\r");
    pty.wait_for("util over 10m");
    pty.keys("w");
    pty.wait_for("util over 1h");
    pty.keys("\r");
    pty.wait_for("held by");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn ssh_log_is_shown_and_written_to_a_file() {
    let lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    let path = lab.path("ssh.log");
    let mut pty = Pty::gpufleet((120, 40), &["--log", &path.display().to_string(), &hosts], &[]);
    pty.wait("readings", |text| text.contains("97%"));
    pty.keys("L");
    pty.wait("the log", |text| {
        text.contains("ssh log of hgx-01") && text.contains("key exchange") && text.contains("first readings")
    });
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    let log = std::fs::read_to_string(&path).expect("the log");
    assert!(log.lines().all(|line| line.contains(" hgx-01 ")), "{log}");
    for expected in ["try 1: ", " login", " runs as ", "4 GPUs, driver ", "first readings"] {
        assert!(log.contains(expected), "{expected}: {log}");
    }
}

// Signals: from the key through sshd and the probe to a real process, with the log.

fn start_on_lab(lab: &Lab, defaults: &str, state: &Path, arguments: &[&str]) -> Pty {
    let hosts = lab.hosts_toml(defaults);
    let mut all = vec![hosts.as_str()];
    all.extend(arguments);
    let state = state.to_str().expect("UTF-8");
    let pty = Pty::gpufleet((120, 40), &all, &[("SSH_AUTH_SOCK", ""), ("XDG_STATE_HOME", state)]);
    pty.wait("the GPUs of all hosts", |text| text.contains(" GPUs ") || text.contains(" 1 GPU "));
    pty
}

/// One process on each of two hosts, in the view of the processes.
struct TwoJobs {
    lab: Lab,
    state: tempfile::TempDir,
    pty: Pty,
    first: u32,
    second: u32,
}

impl TwoJobs {
    fn start() -> Self {
        let lab = Lab::start(&["hgx-01", "hgx-02"]);
        let state = tempfile::tempdir().expect("a folder");
        // Root must always type the host's name to confirm; with a shared account other users must, too.
        let mut pty = start_on_lab(&lab, "shared_account = true", state.path(), &[]);
        let [first, second] = [0, 1].map(|place: usize| lab.hosts[place].worker_pid());
        pty.keys("3");
        pty.wait("both processes", |text| text.contains(&first.to_string()) && text.contains(&second.to_string()));
        Self { lab, state, pty, first, second }
    }
}

#[test]
fn the_cursor_stays_on_a_job_that_was_terminated() {
    let TwoJobs { lab, state: _state, mut pty, first, second } = TwoJobs::start();
    // The first row is selected without a movement.
    pty.keys("ohT");
    let dialog = pty.wait_for("type hgx-01, then Enter");
    assert!(dialog.contains(&format!("pid {first}")) && dialog.contains("findings   "), "{dialog}");
    pty.keys("hgx-01\r");
    pty.wait_for(&format!("TERM to pid {first} on hgx-01: sent"));
    wait_for_end(first);
    lab.hosts[0].driver.set(&devices(&[gpu(0), gpu(1), gpu(2), gpu(3)]));
    let list = pty.wait("its end", |text| text.contains("ended"));
    let cursor = list.lines().find(|line| line.contains("▸hgx")).unwrap_or_else(|| panic!("{list}"));
    assert!(cursor.contains("ended"), "{list}");
    pty.keys("T");
    pty.wait_for("no process to signal: it has ended");
    assert!(!has_ended(second));
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn a_process_that_starts_another_program_does_not_appear_as_ended() {
    let lab = Lab::start(&["hgx-01"]);
    let mut launcher = std::process::Command::new("sh")
        .args(["-c", "read line; exec sleep 3601"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("sh starts");
    let launcher_pid = launcher.id();
    let busy = |percent: u8| {
        let process = json!([{"pid": launcher_pid, "memory_bytes": 60_129_542_144_u64, "sm_percent": percent}]);
        let gpu =
            json!({"utilization_percent": percent, "memory_used_bytes": 61_203_283_968_u64, "processes": process});
        devices(&[gpu_with(0, &gpu)])
    };
    lab.hosts[0].driver.set(&busy(61));
    let state = tempfile::tempdir().expect("a folder");
    let mut pty = start_on_lab(&lab, "", state.path(), &[]);
    pty.keys("3");
    let pid = launcher_pid.to_string();
    pty.wait("the launcher", |text| text.contains(&pid) && text.contains(" 61"));
    drop(launcher.stdin.take());
    // Two changes of the driver: the samples in between saw the new program.
    for percent in [62, 63, 64] {
        lab.hosts[0].driver.set(&busy(percent));
        let list = pty.wait("a later sample", |text| text.contains(&format!(" {percent}")));
        assert!(list.contains(&pid) && !list.contains("ended"), "{list}");
    }
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    launcher.kill().expect("it runs");
    launcher.wait().expect("ends");
}

#[test]
fn the_view_of_an_own_process_shows_its_variables_and_the_end_of_its_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("out.log");
    std::fs::write(&log, "step 4, token=hunter2\n").expect("is written");
    let append = || std::fs::OpenOptions::new().append(true).open(&log).expect("the log");
    let lab = Lab::start_with_workers(&["hgx-01"], |_| {
        let mut command = std::process::Command::new("sleep");
        command.arg("3600").stdin(std::process::Stdio::null()).stdout(append()).stderr(std::process::Stdio::null());
        command.env_clear().envs([("RANK", "3"), ("NCCL_DEBUG", "INFO"), ("DATABASE", "mine")]);
        command.spawn().expect("starts")
    });
    let state = tempfile::tempdir().expect("a folder");
    let mut pty = start_on_lab(&lab, "", state.path(), &[]);
    let pid = lab.hosts[0].worker_pid().to_string();
    pty.keys("3");
    pty.wait_for(&pid);
    pty.keys("\r");
    let view = pty.wait("both", |text| text.contains("RANK=3 NCCL_DEBUG=INFO") && text.contains("step 4, token=***"));
    assert!(!view.contains("DATABASE") && !view.contains("hunter2"), "{view}");
    // The log is read again while the view is open.
    writeln!(append(), "step 5").expect("is written");
    pty.wait_for("step 5");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    let files = std::fs::read_dir(state.path().join("gpufleet")).expect("the state").flatten();
    for file in files {
        let bytes = std::fs::read(file.path()).unwrap_or_default();
        let is_stored =
            ["RANK=3", "step 4"].iter().any(|text| bytes.windows(text.len()).any(|part| part == text.as_bytes()));
        assert!(!is_stored, "{}", file.path().display());
    }
}

#[test]
fn term_reaches_only_the_selected_process() {
    let TwoJobs { lab: _lab, state, mut pty, first, second } = TwoJobs::start();
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
    assert!(!has_ended(first), "the process of the other host gets no signal");
    // The probe checks the process again before it sends: one that ended during the confirmation is gone.
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
    for (line, name, host, pid, outcome) in [
        (lines[0], "TERM", "hgx-02", second, "requested"),
        (lines[1], "TERM", "hgx-02", second, "sent"),
        (lines[2], "KILL", "hgx-01", first, "requested"),
        (lines[3], "KILL", "hgx-01", first, "not sent: the process had ended"),
    ] {
        assert!(line.contains(&format!("Z {name} host={host} pid={pid} start_ticks=")), "{line}");
        assert!(line.contains(&format!(" {outcome}: sleep 3600")), "{line}");
    }
}

#[test]
fn readonly_and_hosts_toml_disable_signals() {
    let lab = Lab::start(&["hgx-01"]);
    let state = tempfile::tempdir().expect("a folder");
    let pid = lab.hosts[0].worker_pid();
    let mut pty = start_on_lab(&lab, "", state.path(), &["--readonly"]);
    pty.keys("3");
    pty.wait_for(&pid.to_string());
    pty.keys("T");
    pty.wait_for("signals are disabled");
    drop(pty);
    let mut pty = start_on_lab(&lab, "signals = \"none\"", state.path(), &[]);
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

// Shell (`s`) and copy (`y`).

fn start_with_state(hosts: &str, state: &Path) -> Pty {
    let state = state.to_str().expect("UTF-8");
    let environment = [("SSH_AUTH_SOCK", ""), ("XDG_STATE_HOME", state), ("DISPLAY", ""), ("WAYLAND_DISPLAY", "")];
    Pty::gpufleet((120, 40), &[hosts], &environment)
}

/// The text of the last OSC 52 request, which sets the clipboard.
fn clipboard(pty: &Pty) -> Option<String> {
    let bytes = pty.bytes();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (_, last) = text.rsplit_once("\x1b]52;c;")?;
    let (encoded, _) = last.split_once('\x07')?;
    let mut decoded = Vec::new();
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count) = (0_u32, 0);
    for byte in encoded.bytes().filter(|byte| *byte != b'=') {
        let digit = digits.iter().position(|digit| *digit == byte).expect("base64");
        bits = bits << 6 | digit as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            decoded.push((bits >> count & 0xff) as u8);
        }
    }
    Some(String::from_utf8(decoded).expect("UTF-8"))
}

#[test]
fn shell_on_a_host_takes_the_terminal_and_the_screen_returns_to_the_same_host() {
    let lab = Lab::start(&["hgx-01", "hgx-02"]);
    let state = tempfile::tempdir().expect("a folder");
    let mut pty = start_with_state(&lab.hosts_toml(""), state.path());
    pty.wait("readings of both", |text| text.matches("97%").count() >= 4);
    pty.keys("]");
    pty.keys("l\r");
    pty.wait("the second host alone", |text| text.contains(" hgx-02   4 x") && !text.contains("hgx-01   4 x"));
    // Keys typed right after `s` reach neither the shell nor the screen afterwards.
    pty.keys("sq\r");
    pty.wait_for("# the screen returns when it ends");
    pty.wait("a shell", |text| text.contains('$') || text.contains('#') && text.lines().count() > 2);
    pty.screen(|screen| {
        assert!(!screen.alternate_screen(), "the shell has the main screen");
        assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None, "the mouse is off");
    });
    // All keys go to the shell, which runs on the second host with its own terminal.
    pty.keys("echo port:${SSH_CONNECTION##* }:tty:$(test -t 0 && echo yes):\r");
    pty.wait_for(&format!("port:{}:tty:yes:", lab.hosts[1].sshd.port()));
    pty.keys("exit 3\r");
    pty.wait("the same place", |text| {
        text.contains(" hgx-02   4 x") && text.contains("back from hgx-02 (exit status 3)")
    });
    pty.screen(|screen| assert!(screen.alternate_screen()));
    pty.keys("\x1b");
    pty.wait("the grid", |text| text.contains("hgx-01") && text.contains("hgx-02"));
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn failed_shell_says_why_before_the_screen_returns() {
    let mut lab = Lab::start(&["hgx-01"]);
    let state = tempfile::tempdir().expect("a folder");
    let mut pty = start_with_state(&lab.hosts_toml(""), state.path());
    pty.wait_for("97%");
    lab.hosts[0].sshd.stop();
    pty.keys("s");
    pty.wait_for("Connection refused");
    pty.wait_for("gpufleet: ssh to hgx-01 failed (exit status 255). Press Enter to return to the screen.");
    pty.keys("\r");
    pty.wait_for("ssh to hgx-01 failed (exit status 255); press L for the ssh log");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn shell_that_waits_for_the_ssh_configuration_can_be_interrupted() {
    let lab = Lab::start(&["hgx-01"]);
    let state = tempfile::tempdir().expect("a folder");
    let hang = lab.path("hang");
    let hanging = format!("Match exec \"while test -e {}; do sleep 0.1; done\"\n", hang.display());
    let config = lab.write("ssh_config", &hanging);
    let mut pty = start_with_state(&lab.hosts_toml(&format!("ssh_config = \"{config}\"")), state.path());
    pty.wait_for("97%");
    std::fs::write(&hang, "").expect("writes");
    pty.keys("s");
    pty.wait_for("# the screen returns when it ends");
    pty.keys("\x03");
    pty.wait_for("no shell on hgx-01: interrupted");
    std::fs::remove_file(&hang).expect("is removed");
    lab.write("ssh_config", "Odd yes\n");
    pty.keys("s");
    pty.wait_for("no shell on hgx-01: the ssh configuration cannot be used: ");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn signal_during_a_shell_restores_the_terminal() {
    let lab = Lab::start(&["hgx-01"]);
    let state = tempfile::tempdir().expect("a folder");
    let mut pty = start_with_state(&lab.hosts_toml(""), state.path());
    pty.wait_for("97%");
    pty.keys("s");
    pty.wait("a shell", |text| text.contains('$') || text.contains('#') && text.lines().count() > 2);
    // SIGINT belongs to the shell.
    pty.signal("INT");
    pty.keys("echo still-$((40 + 2))\r");
    pty.wait_for("still-42");
    pty.signal("TERM");
    assert_eq!(pty.exit_code(), 143);
    pty.screen(|screen| assert!(!screen.alternate_screen() && !screen.hide_cursor()));
}

#[test]
fn copied_text_goes_to_the_terminal_and_to_a_file() {
    let lab = Lab::start(&["hgx-01"]);
    let state = tempfile::tempdir().expect("a folder");
    let mut pty = start_with_state(&lab.hosts_toml(""), state.path());
    pty.wait_for("97%");
    pty.keys("y");
    pty.wait_for("copied the ssh command of hgx-01 (OSC 52, and ");
    let sshd = &lab.hosts[0].sshd;
    let line = format!(
        "ssh -p {} -i {} -o 'UserKnownHostsFile=\"{}\"' -o GlobalKnownHostsFile=none {}",
        sshd.port(),
        sshd.client_key().display(),
        sshd.known_hosts().display(),
        sshd.ip(),
    );
    assert_eq!(clipboard(&pty).as_deref(), Some(line.as_str()));
    let file = state.path().join("gpufleet/copied.txt");
    assert_eq!(std::fs::read_to_string(file).expect("a file"), format!("{line}\n"));
    pty.keys("3y");
    let pid = lab.hosts[0].worker_pid();
    pty.wait_for(&format!("copied pid {pid} on hgx-01 (OSC 52, and "));
    let copied = clipboard(&pty).expect("was copied");
    assert!(copied.starts_with(&format!("hgx-01: pid {pid} (")), "{copied}");
    assert!(copied.ends_with("), GPUs 0,1, 112 GiB: sleep 3600"), "{copied}");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

// Settings and the saved view.

struct Folders {
    config: tempfile::TempDir,
    state: tempfile::TempDir,
}

impl Folders {
    fn new(settings: &str) -> Self {
        let folders =
            Self { config: tempfile::tempdir().expect("a folder"), state: tempfile::tempdir().expect("a folder") };
        std::fs::create_dir(folders.config.path().join("gpufleet")).expect("a folder");
        std::fs::write(folders.settings(), settings).expect("writes");
        folders
    }

    fn settings(&self) -> std::path::PathBuf {
        self.config.path().join("gpufleet/settings.toml")
    }

    fn view(&self) -> std::path::PathBuf {
        self.state.path().join("gpufleet/view.json")
    }

    fn start(&self, arguments: &[&str]) -> Pty {
        let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let (config, state) = (path(self.config.path()), path(self.state.path()));
        let environment = [("SSH_AUTH_SOCK", ""), ("XDG_CONFIG_HOME", &*config), ("XDG_STATE_HOME", &*state)];
        Pty::gpufleet((120, 40), arguments, &environment)
    }
}

#[test]
fn settings_change_keys_and_a_broken_file_is_reported_and_left_unchanged() {
    let good = Folders::new("mouse = false\n[keys]\nwall = [\"B\", \"F2\"]\nquit = \"Q\"\n");
    let mut pty = good.start(&["--demo", "--theme", "dark"]);
    pty.wait_for("40 GPUs");
    pty.screen(|screen| assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None));
    pty.keys("qB");
    pty.wait_for("Free now");
    pty.keys("?");
    pty.wait_for("Keys: wall");
    pty.keys("?");
    pty.wait_for("B F2");
    pty.keys("\x1b");
    pty.wait("the help closed", |text| !text.contains("B F2"));
    pty.keys("Q");
    assert_eq!(pty.exit_code(), 0);

    let broken = "theem = \"dark\"\n[keys]\nwall = \"m\"\n";
    let bad = Folders::new(broken);
    let mut pty = bad.start(&["--demo", "--theme", "dark"]);
    pty.wait_for("settings.toml:1:1: unknown key `theem`, and 1 more mistake; the default settings apply");
    pty.keys("2");
    pty.wait_for("Free now");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    let bytes = pty.bytes();
    let text = String::from_utf8_lossy(&bytes);
    assert!(
        text.contains("gpufleet: the default settings were used because of these mistakes:"),
        "all mistakes are reported at the end"
    );
    assert!(text.contains("use another key, or change the key of `mine` too"));
    assert_eq!(std::fs::read_to_string(bad.settings()).expect("is there"), broken);
}

#[test]
fn view_and_hidden_hosts_are_restored_and_a_broken_file_is_kept_aside() {
    let lab = Lab::start(&["hgx-01", "hgx-02"]);
    let hosts = lab.hosts_toml("");
    let folders = Folders::new("");
    let mut pty = folders.start(&[&hosts]);
    pty.wait("readings of both", |text| text.matches("97%").count() >= 4);
    pty.keys("D");
    pty.wait_for("hgx-01 is hidden; H shows it again");
    pty.keys("3");
    pty.wait_for("1 hidden");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    let written = std::fs::read_to_string(folders.view()).expect("is written");
    assert!(written.contains("\"processes\"") && written.contains("hgx-01"), "{written}");

    let mut pty = folders.start(&[&hosts]);
    pty.wait("the list with the other host alone", |text| {
        text.contains("1 hidden") && text.contains("Processes") && text.contains("sleep 3600")
    });
    pty.keys("1");
    pty.wait("the grid without it", |text| text.contains("hgx-02") && !text.contains("hgx-01"));
    pty.keys("H");
    pty.wait_for("hgx-01");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);

    std::fs::write(folders.view(), "{\"version\":").expect("writes");
    let mut pty = folders.start(&[&hosts]);
    pty.wait_for("the screen starts without saved state, the unusable file is kept as view.json.bad-1");
    pty.wait_for("hgx-01");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn click_selects_a_host_and_mouse_motion_is_not_requested() {
    let mut pty = Pty::gpufleet((120, 40), &["--demo", "--theme", "dark"], &[]);
    let text = pty.wait("six panes", |text| (1..=6).all(|host| text.contains(&format!("hgx-0{host}"))));
    pty.screen(|screen| {
        assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::PressRelease);
        assert_eq!(screen.mouse_protocol_encoding(), vt100::MouseProtocolEncoding::Sgr);
    });
    let row = text.lines().position(|line| line.contains("hgx-05")).expect("a pane");
    let line = text.lines().nth(row).expect("a line");
    let column = line[..line.find("hgx-05").expect("a pane")].chars().count();
    let click = format!("\x1b[<0;{0};{1}M\x1b[<0;{0};{1}m", column + 1, row + 2);
    pty.keys(&click);
    pty.wait("it is selected", |text| text.lines().any(|line| line.contains("▸hgx-05")));
    pty.keys(&click);
    pty.wait_for(" hgx-05   8 x NVIDIA H100");
    pty.keys("\x1b");
    pty.wait("the grid", |text| text.contains("hgx-06"));
    pty.keys("M");
    pty.wait_for("mouse off: the terminal selects text; M turns it on");
    pty.screen(|screen| assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None));
    pty.keys("Z");
    pty.wait_for("FROZEN (Z)");
    pty.keys("Z:wall\r");
    pty.wait_for("Free now");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    let bytes = pty.bytes();
    let text = String::from_utf8_lossy(&bytes);
    assert!(!text.contains("\x1b[?1003h") && !text.contains("\x1b[?1002h"), "mouse motion is not requested");
}
