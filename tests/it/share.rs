//! The socket of `gpufleet collect`, `gpufleet relay`, and `--collector`, with real sshds and fake drivers.

use crate::collect::{CollectorProcess, command, run};
use crate::fake_driver::{devices, gpu, gpu_with};
use crate::lab::{Lab, TIMEOUT, has_driver, program, scenario, wait_until};
use crate::pty::Pty;
use crate::sshd::Sshd;
use gpufleet::store::History;
use gpufleet::store::history::{Batch, GpuName, HostRow};
use gpufleet::store::rollup::{GpuRow, StateSeconds};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver};

/// The last line of an answer that comes from a collector.
const SOURCE: &str = "from the collector on ";

fn socket(lab: &Lab) -> PathBuf {
    lab.path("state/gpufleet/collect.sock")
}

/// Runs gpufleet with the state directory of the lab. Returns standard output, standard error and the exit code.
fn texts(lab: &Lab, arguments: &[&str]) -> (String, String, i32) {
    let output = run(lab, arguments);
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (text(output.stdout), text(output.stderr), output.status.code().expect("an exit code"))
}

/// Starts a collector and waits until all its hosts report.
pub(crate) fn start_collector(lab: &Lab, hosts: &str, arguments: &[&str]) -> CollectorProcess {
    let all: Vec<&str> = [hosts].into_iter().chain(arguments.iter().copied()).collect();
    let collector = CollectorProcess::start(lab, "collector.log", &all);
    collector.wait_for("viewers connect to");
    wait_until(
        "an answer of the collector",
        || collector.log(),
        || {
            let (text, _, code) = texts(lab, &["status", hosts]);
            (code == 0 && text.contains(SOURCE)).then_some(())
        },
    );
    collector
}

#[test]
fn status_free_and_findings_answer_from_the_socket() {
    let lab = Lab::start(&["hgx-01", "hgx-02"]);
    let hosts = lab.hosts_toml("");
    let (text, _, _) = texts(&lab, &["status", &hosts]);
    assert!(!text.contains(SOURCE), "no collector runs: {text}");
    let mut collector = start_collector(&lab, &hosts, &[]);
    let mode = std::fs::metadata(socket(&lab)).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let (text, _, code) = texts(&lab, &["status", &hosts]);
    assert_eq!(code, 0, "{text}");
    let last = text.lines().last().expect("lines");
    assert!(last.contains("readings up to ") && last.ends_with("; --direct asks the hosts"), "{text}");
    // CPU shares exist from the second sample on.
    let report = wait_until("CPU shares", String::new, || {
        let (json, _, _) = texts(&lab, &["status", "--json", &hosts]);
        let report: Value = serde_json::from_str(&json).expect("JSON");
        let has_share = |host: &Value| host["processes"][0]["cpu_percent"].is_number();
        report["hosts"].as_array().expect("hosts").iter().all(has_share).then_some(report)
    });
    for (host, reported) in lab.hosts.iter().zip(report["hosts"].as_array().expect("hosts")) {
        assert_eq!((&reported["name"], &reported["state"]), (&host.name.as_str().into(), &"live".into()));
        let states: Vec<&Value> = reported["gpus"].as_array().expect("GPUs").iter().map(|gpu| &gpu["state"]).collect();
        assert_eq!(states, ["in_use", "in_use", "free", "fault"]);
        assert_eq!(reported["processes"][0]["command"], "sleep 3600");
        assert_eq!(reported["processes"][0]["pid"], host.worker_pid());
    }
    let (text, _, code) = texts(&lab, &["free", "-n", "2", &hosts]);
    assert!(code == 0 && text.contains("hgx-01") && text.contains("hgx-02") && text.contains(SOURCE), "{text}");
    let (_, _, code) = texts(&lab, &["free", "-n", "3", &hosts]);
    assert_eq!(code, 4, "nothing matches");
    let (text, _, code) = texts(&lab, &["findings", &hosts]);
    assert!(code == 4 && text.contains("gpu-lost") && text.contains(SOURCE), "{text}");
    let (json, _, _) = texts(&lab, &["findings", "--json", &hosts]);
    let report: Value = serde_json::from_str(&json).expect("JSON");
    let mut named: Vec<&str> =
        report["findings"].as_array().expect("findings").iter().filter_map(|one| one["host"].as_str()).collect();
    named.sort_unstable();
    named.dedup();
    assert_eq!(named, ["hgx-01", "hgx-02"], "{report:#}");

    // Only the same settings are the same hosts.
    let other = std::fs::read_to_string(&hosts).expect("hosts.toml").replace("500ms", "600ms");
    let other = lab.write("other.toml", &other);
    for direct in [&["status", &other][..], &["status", "--direct", &hosts], &["status", "--interval", "1s", &hosts]] {
        let (text, _, code) = texts(&lab, direct);
        assert!(code == 0 && !text.contains(SOURCE), "{direct:?}: {text}");
    }
    collector.end();
    assert!(!socket(&lab).exists(), "the socket is removed");
    let (text, _, code) = texts(&lab, &["status", &hosts]);
    assert!(code == 0 && !text.contains(SOURCE), "{text}");
}

#[test]
fn an_account_without_hosts_sees_the_fleet_of_the_collector_on_this_machine() {
    if has_driver() {
        crate::lab::skip("this machine has an NVIDIA driver, so it shows its own GPUs");
        return;
    }
    let lab = Lab::start(&["hgx-01"]);
    let mut collector = start_collector(&lab, &lab.hosts_toml(""), &[]);
    // The own account is allowed; only its home has no hosts.toml.
    let home = lab.path("home").display().to_string();
    std::fs::create_dir(&home).expect("a home");
    let state = lab.path("state").display().to_string();
    let environment = [("HOME", home.as_str()), ("XDG_CONFIG_HOME", home.as_str()), ("XDG_STATE_HOME", state.as_str())];
    let run = |arguments: &[&str]| {
        let output = command(&lab).envs(environment).args(arguments).output().expect("runs");
        let text = String::from_utf8([output.stdout, output.stderr].concat()).expect("UTF-8");
        (text, output.status.code().expect("an exit code"))
    };
    let (text, code) = run(&["status"]);
    assert!(code == 0 && text.contains("97%") && text.contains(SOURCE), "{text}");
    let (text, code) = run(&["free", "-n", "1"]);
    assert!(code == 0 && text.contains("hgx-01") && text.contains(SOURCE), "{text}");
    let text = wait_until(
        "the finding",
        || collector.log(),
        || {
            let (text, code) = run(&["findings"]);
            (code == 4 && text.contains("gpu-lost")).then_some(text)
        },
    );
    assert!(text.contains(SOURCE), "{text}");
    let (text, code) = run(&["findings", "--watch"]);
    assert_eq!(
        (text.as_str(), code),
        (
            "gpufleet: a collector prints what it has found, so --watch and --for need hosts\n  hint: leave the option out, or \
             name the hosts\n",
            2
        )
    );
    let (text, code) = run(&["status", "--direct"]);
    assert!(code == 1 && text.starts_with("gpufleet HOST..."), "{text}");
    let mut pty = Pty::gpufleet((140, 40), &[] as &[&str], &environment);
    pty.wait_for("hgx-01");
    pty.wait_for("97%");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    // `--loop` goes on with new answers.
    let mut repeated = command(&lab);
    repeated.envs(environment).args(["status", "--csv", "--loop", "0.5"]).stdout(Stdio::piped());
    let mut repeated = repeated.spawn().expect("runs");
    let lines = BufReader::new(repeated.stdout.take().expect("a pipe")).lines();
    let of_first_gpu = lines.map_while(Result::ok).filter(|line| line.contains(",hgx-01,0,")).take(2).count();
    assert_eq!(of_first_gpu, 2);
    repeated.kill().expect("runs");
    repeated.wait().expect("ends");
    assert_eq!(collector.end().0, Some(0));
    let (text, code) = run(&["status"]);
    assert!(code == 1 && text.starts_with("gpufleet HOST..."), "{text}");
}

#[test]
fn while_the_collector_is_stopped_the_hosts_answer_and_afterwards_it_does() {
    let lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    let mut collector = start_collector(&lab, &hosts, &[]);
    collector.signal(Signal::STOP);
    let (text, error, code) = texts(&lab, &["status", &hosts]);
    assert!(code == 0 && text.contains("97%") && !text.contains(SOURCE), "{text}");
    let pid = collector.child.id();
    assert_eq!(
        error,
        format!(
            "gpufleet: the collector (process {pid}) is stopped, so the hosts are asked\n  hint: continue it there: kill \
             -CONT {pid}\n"
        )
    );
    collector.signal(Signal::CONT);
    wait_until(
        "an answer of the collector",
        || collector.log(),
        || {
            let (text, _, code) = texts(&lab, &["status", &hosts]);
            (code == 0 && text.contains(SOURCE)).then_some(())
        },
    );
    assert_eq!(collector.end().0, Some(0));
}

#[test]
fn a_loop_goes_on_when_the_collector_is_started_again() {
    let lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    let mut collector = start_collector(&lab, &hosts, &[]);
    let mut child = command(&lab)
        .args(["status", "--csv", "--columns", "host,index", "--loop", "1", &hosts])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut next = || lines.next().expect("the loop goes on").expect("reads");
    assert_eq!(next(), "host,index");
    assert_eq!(next(), "hgx-01,0");
    assert_eq!(collector.end().0, Some(0));
    let mut collector = start_collector(&lab, &hosts, &[]);
    // Lines of the first collector may wait in the pipe.
    for _ in 0..80 {
        assert!(next().starts_with("hgx-01,"));
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::INT).expect("a signal");
    let output = child.wait_with_output().expect("ends");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
    assert_eq!(collector.end().0, Some(0));
}

/// Offers the collector of the lab at a second socket, whose receiver gets one event for each complete answer. While no collector
/// runs, connections are closed.
fn second_socket(lab: &Lab) -> (PathBuf, Receiver<()>) {
    let (path, collector) = (lab.path("second.sock"), socket(lab));
    let listener = UnixListener::bind(&path).expect("a socket");
    let (sender, answers) = mpsc::channel();
    std::thread::spawn(move || {
        for viewer in listener.incoming() {
            let Ok(mut viewer) = viewer else { return };
            let Ok(mut collector) = UnixStream::connect(&collector) else { continue };
            let mut hello = String::new();
            BufReader::new(&viewer).read_line(&mut hello).expect("the line of the viewer");
            collector.write_all(hello.as_bytes()).expect("writes");
            // Either side may leave at any time.
            for line in BufReader::new(&collector).lines().map_while(Result::ok) {
                if writeln!(viewer, "{line}").is_err() {
                    break;
                }
                if line == "\"complete\"" {
                    let _ = sender.send(());
                    break;
                }
            }
        }
    });
    (path, answers)
}

#[test]
fn free_waits_on_when_the_collector_is_started_again() {
    let lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    let worker = lab.hosts[0].worker_pid();
    let busy = json!({"utilization_percent": 97, "processes": [{"pid": worker, "memory_bytes": 60_129_542_144_u64}]});
    lab.hosts[0].driver.set(&devices(&[gpu_with(0, &busy)]));
    let mut collector = start_collector(&lab, &hosts, &[]);
    let (socket, answers) = second_socket(&lab);
    let child = command(&lab)
        .args(["free", "--wait", &hosts])
        .env("GPUFLEET_SOCKET", socket)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    answers.recv_timeout(TIMEOUT).expect("an answer without a free GPU");
    assert_eq!(collector.end().0, Some(0));
    lab.hosts[0].driver.set(&devices(&[gpu(0)]));
    let mut collector = start_collector(&lab, &hosts, &[]);
    let output = child.wait_with_output().expect("ends");
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((output.status.code(), error.as_ref()), (Some(0), ""), "{text}");
    assert!(text.starts_with("hgx-01  1 free  GPU 0  ") && text.contains(SOURCE), "{text}");
    assert_eq!(collector.end().0, Some(0));
}

#[test]
fn a_socket_that_was_left_behind_is_replaced_and_one_in_use_is_not() {
    let lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    let mut first = start_collector(&lab, &hosts, &[]);
    let path = socket(&lab).display().to_string();
    let store = lab.path("other.db").display().to_string();
    let (_, error, code) = texts(&lab, &["collect", "--store", &store, "--socket", &path, &hosts]);
    assert_eq!(code, 1);
    assert_eq!(
        error.lines().rev().take(2).collect::<Vec<_>>(),
        [
            "  hint: stop the other one, or use --socket PATH for a second one",
            format!("gpufleet: cannot offer the socket {path}: another collector serves it").as_str(),
        ]
    );
    first.signal(Signal::KILL);
    first.child.wait().expect("ends");
    assert!(socket(&lab).exists(), "a killed collector leaves it behind");
    let (text, _, code) = texts(&lab, &["status", &hosts]);
    assert!(code == 0 && !text.contains(SOURCE), "the hosts answer: {text}");
    start_collector(&lab, &hosts, &[]);
    let (_, error, code) = texts(&lab, &["collect", "--store", &store, "--socket-group", "no-such-group", &hosts]);
    assert_eq!(code, 1);
    assert!(
        error.ends_with(
            "gpufleet: there is no group `no-such-group` on this machine\n  hint: `getent group` lists the groups\n"
        ),
        "{error}"
    );
}

/// Connects as a viewer that follows.
pub(crate) fn follow(lab: &Lab) -> UnixStream {
    let mut stream = UnixStream::connect(socket(lab)).expect("connects");
    stream.set_read_timeout(Some(crate::pty::TIMEOUT)).expect("a limit");
    stream.write_all(b"{\"viewer\":{\"protocol\":1,\"version\":\"test\",\"follow\":true}}\n").expect("takes a line");
    stream
}

#[test]
fn ten_viewers_follow_at_once_and_one_that_does_not_read_slows_nobody() {
    let lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    let _collector = start_collector(&lab, &hosts, &[]);
    let _mute = follow(&lab);
    let mut garbage = UnixStream::connect(socket(&lab)).expect("connects");
    garbage.write_all(&[b'x'; 10_000]).expect("takes bytes");
    let mut viewers: Vec<_> = (0..10).map(|_| BufReader::new(follow(&lab)).lines()).collect();
    let worker = lab.hosts[0].worker_pid();
    lab.hosts[0].driver.set(&scenario(worker, 42));
    for viewer in &mut viewers {
        let mut has_picture = false;
        let found = viewer.by_ref().map(|line| line.expect("a line")).find(|line| {
            has_picture |= line == "\"complete\"";
            has_picture && line.contains("\"snapshot\"") && line.contains("\"utilization_percent\":[42,42,")
        });
        assert!(found.is_some(), "each viewer sees the change");
    }
}

/// Connects as another account, by `gpufleet relay`. Returns the lines up to the end of the picture.
fn picture_of_nobody(lab: &Lab) -> String {
    let mut relay = command(lab)
        .args(["relay", "--socket", &socket(lab).display().to_string()])
        .uid(65_534)
        .gid(65_534)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut input = relay.stdin.take().expect("an input");
    // The relay may have been refused already.
    let _ = input.write_all(b"{\"viewer\":{\"protocol\":1,\"version\":\"x\",\"follow\":true}}\n");
    let mut text = String::new();
    for line in BufReader::new(relay.stdout.take().expect("an output")).lines() {
        let line = line.expect("a line");
        text = text + &line + "\n";
        if line == "\"complete\"" {
            break;
        }
    }
    drop(input);
    relay.wait().expect("ends");
    text
}

#[test]
fn a_group_sees_what_is_shared_and_other_accounts_see_nothing() {
    if !crate::lab::has_root() {
        return;
    }
    let lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    // Everybody may enter the folders of the lab, so that the socket alone decides.
    for folder in ["", "state", "state/gpufleet"] {
        std::fs::create_dir_all(lab.path(folder)).expect("a folder");
        std::fs::set_permissions(lab.path(folder), std::fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    let mut collector = start_collector(&lab, &hosts, &[]);
    let refused: Value = serde_json::from_str(&picture_of_nobody(&lab)).expect("one line");
    assert_eq!(refused["refused"]["kind"], "not_permitted", "{refused:#}");
    // Even if somebody changes the mode, the credentials decide.
    std::fs::set_permissions(socket(&lab), std::fs::Permissions::from_mode(0o666)).expect("a mode");
    assert_eq!(picture_of_nobody(&lab), "");
    collector.end();

    let mut collector = start_collector(&lab, &hosts, &["--socket-group", "65534"]);
    let mode = std::fs::metadata(socket(&lab)).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    // The name of the user follows the first facts of a process.
    let text = wait_until("the user", String::new, || {
        Some(picture_of_nobody(&lab)).filter(|text| text.contains("\"user\":\"root\""))
    });
    assert!(text.contains("\"share\":\"names\""), "{text}");
    assert!(text.contains("\"sleep\"") && !text.contains("\"3600\""), "the argument is not shared: {text}");
    collector.end();
    let hosts = lab.hosts_toml("share = \"commands\"");
    let _collector = start_collector(&lab, &hosts, &["--socket-group", "65534"]);
    // The arguments follow the first snapshot, too.
    wait_until("the arguments", String::new, || {
        Some(picture_of_nobody(&lab)).filter(|text| text.contains("[\"sleep\",\"3600\"]"))
    });
}

/// A machine for the collector, on which gpufleet can be started.
pub(crate) fn machine(lab: &Lab, path: &str) -> Sshd {
    let environment = format!("SetEnv SHLVL=5 XDG_STATE_HOME={} PATH={path}", lab.path("state").display());
    Sshd::start_at(Ipv4Addr::new(127, 0, 0, 20), &[&environment])
}

/// Writes the hosts.toml of a viewer with the machine, and with more hosts. Returns its configuration directory.
pub(crate) fn viewer_configuration(lab: &Lab, machine: &Sshd, more: &str) -> String {
    std::fs::create_dir_all(lab.path("viewer/gpufleet")).expect("a folder");
    let text = format!(
        "[[hosts]]\nname = \"lab-head\"\naddress = \"{}\"\nport = {}\nidentity_file = \"{}\"\nknown_hosts = \"{}\"\n{more}",
        machine.ip(),
        machine.port(),
        machine.client_key().display(),
        machine.known_hosts().display()
    );
    lab.write("viewer/gpufleet/hosts.toml", &text);
    lab.path("viewer").display().to_string()
}

pub(crate) fn program_path() -> String {
    format!("{}:/usr/bin:/bin", program().parent().expect("a folder").display())
}

/// Runs a viewer with a separate state directory.
pub(crate) fn view(lab: &Lab, configuration: &str, arguments: &[&str]) -> (String, String, i32) {
    let output = command(lab)
        .args(arguments)
        .env("XDG_STATE_HOME", lab.path("viewer-state"))
        .env("XDG_CONFIG_HOME", configuration)
        .output()
        .expect("runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (text(output.stdout), text(output.stderr), output.status.code().expect("an exit code"))
}

#[test]
fn a_viewer_sees_hosts_that_only_the_collector_reaches() {
    let lab = Lab::start(&["hgx-01", "hgx-02"]);
    let hosts = lab.hosts_toml("note = \"ask Bob\"");
    let mut collector = start_collector(&lab, &hosts, &[]);
    let machine = machine(&lab, &program_path());
    let configuration = viewer_configuration(&lab, &machine, "");
    let (text, error, code) = view(&lab, &configuration, &["status", "--collector", "lab-head"]);
    assert_eq!(code, 0, "{text}{error}");
    assert!(text.matches("via lab-head").count() == 2 && text.contains("97%"), "{text}");
    assert!(text.lines().last().is_some_and(|last| last.starts_with(SOURCE) && !last.contains("--direct")), "{text}");
    let (text, error, code) = view(&lab, &configuration, &["--collector", "lab-head", "free", "-n", "1", "hgx-02"]);
    assert!(code == 0 && text.contains("hgx-02") && !text.contains("hgx-01"), "{text}{error}");
    let (text, error, code) = view(&lab, &configuration, &["--collector", "lab-head", "findings"]);
    assert!(code == 4 && text.contains("gpu-lost") && text.contains("hgx-02"), "{text}{error}");
    let (_, error, code) = view(&lab, &configuration, &["--collector", "lab-head", "status", "hgx-09"]);
    assert_eq!(code, 1);
    assert_eq!(error, "gpufleet: the collector on lab-head does not watch hgx-09\n  hint: it watches hgx-01, hgx-02\n");
    assert_eq!(lab.probes().len(), 2, "the servers see no extra probe");
    collector.end();
    let (_, error, code) = view(&lab, &configuration, &["--collector", "lab-head", "status"]);
    assert_eq!(code, 1);
    let expected = format!(
        "gpufleet: no answer from the collector on lab-head: lab-head: no collector runs here: nobody serves {} or \
         /run/gpufleet/collect.sock\n  hint: start it there: gpufleet collect\n",
        socket(&lab).display()
    );
    assert_eq!(error, expected);
}

#[test]
fn a_machine_without_gpufleet_or_with_an_old_one_is_named_with_the_way_out() {
    let lab = Lab::start(&["hgx-01"]);
    let machine = machine(&lab, "/usr/bin:/bin");
    let configuration = viewer_configuration(&lab, &machine, "");
    let (_, error, code) = view(&lab, &configuration, &["--collector", "lab-head", "status"]);
    assert_eq!(code, 1);
    assert!(
        error.starts_with("gpufleet: no answer from the collector on lab-head: gpufleet is not installed on lab-head")
            && error.ends_with("hint: install it there, so that this works: ssh lab-head gpufleet --version\n"),
        "{error}"
    );
    std::fs::create_dir_all(lab.path("old")).expect("a folder");
    let old = lab.write("old/gpufleet", "#!/bin/sh\necho \"gpufleet: relay does not resolve\" >&2\nexit 2\n");
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let machine = self::machine(&lab, &format!("{}:/usr/bin:/bin", lab.path("old").display()));
    let configuration = viewer_configuration(&lab, &machine, "");
    let (_, error, _) = view(&lab, &configuration, &["--collector", "lab-head", "status"]);
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        error,
        format!(
            "gpufleet: no answer from the collector on lab-head: the gpufleet on lab-head has no relay: gpufleet: relay \
             does not resolve\n  hint: install gpufleet {version} there\n"
        )
    );
}

#[test]
fn a_relay_without_a_collector_says_so_in_the_protocol_and_ends_with_its_viewer() {
    let lab = Lab::start(&["hgx-01"]);
    let (text, _, code) = texts(&lab, &["relay"]);
    assert_eq!(code, 1);
    let line: Value = serde_json::from_str(&text).expect("a line of the protocol");
    assert_eq!(line["refused"]["kind"], "no_collector");
    let hosts = lab.hosts_toml("");
    let _collector = start_collector(&lab, &hosts, &[]);
    let mut relay = command(&lab).arg("relay").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let mut input = relay.stdin.take().expect("an input");
    input.write_all(b"{\"viewer\":{\"protocol\":1,\"version\":\"x\",\"follow\":true}}\n").expect("takes a line");
    let mut lines = BufReader::new(relay.stdout.take().expect("an output")).lines().map(|line| line.expect("a line"));
    assert!(lines.any(|line| line == "\"complete\""));
    drop(input);
    crate::lab::wait_gone(&[relay.id()], crate::pty::TIMEOUT);
    relay.wait().expect("ends");
}

pub(crate) fn why_examines_a_job_of_a_collector_over_an_own_session() {
    let lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    let _collector = start_collector(&lab, &hosts, &[]);
    let machine = machine(&lab, &program_path());
    let own = std::fs::read_to_string(&hosts).expect("hosts.toml");
    let own = own.split("[[hosts]]").nth(1).expect("a host");
    let more = format!("\n[[hosts]]{own}user = \"{}\"\n", machine.user());
    let configuration = viewer_configuration(&lab, &machine, &more);
    let pid = lab.hosts[0].worker_pid();
    let job = format!("hgx-01:{pid}");
    let (json, error, code) = view(&lab, &configuration, &["--collector", "lab-head", "why", "--json", &job]);
    assert_eq!((code, error.as_str()), (0, ""), "{json}");
    let report: Value = serde_json::from_str(&json).expect("JSON");
    let process = &report["processes"][0];
    assert_eq!(
        (&process["pid"], &process["mine"], &process["readings"]),
        (&pid.into(), &true.into(), &2.into()),
        "{report}"
    );
    let (_, error, code) = view(&lab, &configuration, &["--collector", "lab-head", "why", "hgx-09:1"]);
    assert_eq!(code, 2);
    assert!(error.starts_with("gpufleet: no host `hgx-09` among the 1 selected ones"), "{error}");
}

/// Writes three hours of a GPU that was busy except for the second hour, until now.
pub(crate) fn write_history(path: &Path, uuid: &str) {
    let (mut history, _) = History::open(path).expect("opens");
    let now = jiff::Timestamp::now().as_second().cast_unsigned() / 60 * 60;
    let name = GpuName {
        host: "hgx-01".into(),
        uuid: uuid.into(),
        index: 0,
        model: Some("NVIDIA H100".into()),
        memory_mib: Some(81_559),
    };
    for minute in (1..=180).rev().filter(|minute| !(60..120).contains(minute)) {
        let states = StateSeconds { busy: 60, ..StateSeconds::default() };
        let row = GpuRow {
            samples: 30,
            utilization_permille: Some(800),
            energy_joules: Some(30_000),
            states,
            ..GpuRow::default()
        };
        let batch = Batch {
            start: now - minute * 60,
            gpus: vec![(name.clone(), row)],
            hosts: vec![("hgx-01".into(), HostRow::default())],
            ..Batch::default()
        };
        history.write(&batch).expect("writes");
    }
}

#[test]
fn the_history_is_shown_on_the_machine_of_the_collector_and_over_the_relay() {
    let lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    let (json, _, _) = texts(&lab, &["status", "--json", &hosts]);
    let report: Value = serde_json::from_str(&json).expect("JSON");
    let uuid = report["hosts"][0]["gpus"][0]["uuid"].as_str().expect("a uuid").to_owned();
    let store = lab.path("state/gpufleet/history.db");
    let (_, error, code) = texts(&lab, &["history", "hgx-01", &hosts]);
    let missing = format!(
        "gpufleet: there is no history {}: `gpufleet collect` writes it; name another file with --store\n",
        store.display()
    );
    assert_eq!((error, code), (missing, 1));
    write_history(&store, &uuid);
    let state = lab.path("state").display().to_string();
    let mut pty = Pty::gpufleet(
        (120, 40),
        &["history", "hgx-01:0", &hosts],
        &[("SSH_AUTH_SOCK", ""), ("XDG_STATE_HOME", &state)],
    );
    pty.wait("the GPU", |text| text.contains("GPU 0  history of 1d") && text.contains("util mean 80%"));
    pty.keys("\u{1b}");
    pty.wait("the host", |text| text.contains("hgx-01  history of 1d") && text.contains("GPU 0  util 80%  busy 100%"));
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);

    let _collector = start_collector(&lab, &hosts, &[]);
    let machine = machine(&lab, &program_path());
    let configuration = viewer_configuration(&lab, &machine, "");
    let viewer_state = lab.path("viewer-state").display().to_string();
    let mut pty = Pty::gpufleet(
        (120, 40),
        &["--collector", "lab-head", "history", "hgx-01"],
        &[("SSH_AUTH_SOCK", ""), ("XDG_STATE_HOME", &viewer_state), ("XDG_CONFIG_HOME", &configuration)],
    );
    pty.wait("a day", |text| text.contains("hgx-01  history of 1d") && text.contains("GPU 0  util 80%"));
    pty.keys("w");
    pty.wait("a week", |text| text.contains("hgx-01  history of 7d") && text.contains("GPU 0  util 80%"));
    // The live charts of GPU 0 begin with the stored minutes: it is at 97 % now.
    pty.keys("www");
    pty.wait_for("over 2m");
    pty.keys("www");
    pty.wait_for("over 2h");
    pty.keys("\r");
    pty.wait("the stored minutes", |text| text.contains("80% to 97%"));
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn lines_of_a_newer_viewer_are_ignored_and_requests_have_answers() {
    let lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    write_history(&lab.path("state/gpufleet/history.db"), "GPU-1");
    let _collector = start_collector(&lab, &hosts, &[]);
    let mut stream = follow(&lab);
    stream.write_all(b"\n{\"dance\":{}}\nnonsense\n").expect("takes lines");
    for (id, host, step) in [(7, "hgx-01", 900), (8, "hgx-09", 900), (9, "hgx-01", 7)] {
        let line = format!(
            "{{\"history\":{{\"id\":{id},\"host\":\"{host}\",\"span_seconds\":10800,\"step_seconds\":{step}}}}}\n"
        );
        stream.write_all(line.as_bytes()).expect("takes a line");
    }
    let lines = BufReader::new(stream).lines().map(|line| line.expect("a line"));
    let answers: Vec<Value> = lines
        .filter(|line| line.starts_with("{\"history\""))
        .take(3)
        .map(|line| serde_json::from_str::<Value>(&line).expect("JSON")["history"].clone())
        .collect();
    let [first, unknown, invalid] = &answers[..] else { panic!("{answers:?}") };
    let points = first["history"]["gpus"][0]["utilization_permille"].as_array().expect("points");
    assert!(points.len() == 13 && points.contains(&Value::Null) && points.contains(&800.into()), "{first}");
    assert_eq!(
        (&first["id"], &unknown["id"], &unknown["history"]["gpus"]),
        (&7.into(), &8.into(), &Value::Array(vec![]))
    );
    assert_eq!((&invalid["id"], invalid["error"].is_string()), (&9.into(), true));
}
