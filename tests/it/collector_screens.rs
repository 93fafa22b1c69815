//! Screens that follow collectors: `gpufleet --collector`, with real sshds and fake drivers.

use crate::collect::{CollectorProcess, keep_hosts};
use crate::lab::{Lab, scenario};
use crate::pty::Pty;
use crate::share::{machine, program_path, start_collector, view, viewer_configuration};
use crate::sshd::{Sshd, fingerprint};
use crate::why::hung_jobs;
use rustix::process::Signal;
use serde_json::Value;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

#[test]
fn the_screen_shows_relayed_hosts_acts_over_its_own_session_and_reconnects() {
    let lab = Lab::start(&["hgx-01", "hgx-02"]);
    let hosts = lab.hosts_toml("shared_account = true");
    let mut collector = start_collector(&lab, &hosts, &[]);
    let machine = machine(&lab, &program_path());
    // The viewer has an account on hgx-01 only.
    let own = std::fs::read_to_string(&hosts).expect("hosts.toml");
    let own = own.split("[[hosts]]").find(|host| host.contains("\"hgx-01\"")).expect("a host");
    let user = machine.user();
    let more = format!(
        "\n[[hosts]]{own}user = \"{user}\"\n[[hosts]]\nname = \"hgx-02\"\naddress = \"127.0.0.1\"\nport = 1\nuser = \"{user}\"\n"
    );
    let configuration = viewer_configuration(&lab, &machine, &more);
    let state = lab.path("viewer-state").display().to_string();
    let mut pty = Pty::gpufleet(
        (140, 40),
        &["--collector", "lab-head"],
        &[("SSH_AUTH_SOCK", ""), ("XDG_STATE_HOME", &state), ("XDG_CONFIG_HOME", &configuration)],
    );
    pty.wait("both hosts", |text| text.contains("2 hosts 8 GPUs") && text.contains("via lab-head"));
    assert_eq!(lab.probes().len(), 2);
    let [first, second] = [0, 1].map(|place: usize| lab.hosts[place].worker_pid());
    pty.keys("3");
    pty.wait("both processes", |text| text.contains(&first.to_string()) && text.contains(&second.to_string()));
    pty.keys("ohT");
    pty.wait_for("type hgx-01, then Enter");
    pty.keys("hgx-01\r");
    pty.wait_for(&format!("TERM to pid {first} on hgx-01: sent"));
    lab.hosts[0].driver.set(&scenario(second, 31));
    pty.keys("/host:hgx-02\r");
    pty.wait("the other host", |text| !text.contains(&first.to_string()) && text.contains(&second.to_string()));
    pty.keys("T");
    pty.wait_for("type hgx-02, then Enter");
    pty.keys("hgx-02\r");
    pty.wait_for("this needs your own SSH session to hgx-02, which failed");
    collector.end();
    pty.keys("1");
    pty.wait("the loss", |text| text.contains("DOWN") && text.contains("the collector on lab-head"));
    let began = Instant::now();
    let _again = CollectorProcess::start(&lab, "collector-2.log", &[&hosts]);
    pty.wait("the hosts again", |text| !text.contains("DOWN") && text.contains("via lab-head"));
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

/// Starts a collector and waits until it has connected to all hosts. Unlike [`start_collector`], nothing else connects to them.
fn start_quietly(lab: &Lab, hosts: &str, names: &[&str]) -> CollectorProcess {
    let collector = CollectorProcess::start(lab, "collector.log", &[hosts]);
    collector.wait_for("viewers connect to");
    for name in names {
        collector.wait_for(&format!("gpufleet: {name}: connected"));
    }
    collector
}

/// How often somebody has logged in with this key.
fn logins(sshd: &Sshd, key: &Path) -> usize {
    let fingerprint = fingerprint(key);
    sshd.log().lines().filter(|line| line.contains("Accepted publickey") && line.contains(&fingerprint)).count()
}

/// A screen of a viewer with a separate state directory.
fn screen(lab: &Lab, configuration: &str, size: (u16, u16)) -> Pty {
    let state = lab.path("viewer-state").display().to_string();
    let environment = [("SSH_AUTH_SOCK", ""), ("XDG_STATE_HOME", &*state), ("XDG_CONFIG_HOME", configuration)];
    Pty::gpufleet(size, &["--collector", "lab-head"], &environment)
}

#[test]
fn two_viewers_of_a_collector_cost_the_hosts_no_login_and_no_probe() {
    let names = ["hgx-01", "hgx-02"];
    let lab = Lab::start(&names);
    let hosts = lab.hosts_toml("");
    let _collector = start_quietly(&lab, &hosts, &names);
    let probes = lab.probes();
    let machine = machine(&lab, &program_path());
    let configuration = viewer_configuration(&lab, &machine, "");
    let mut screens = [0, 1].map(|_| screen(&lab, &configuration, (140, 40)));
    for pty in &screens {
        pty.wait("both hosts", |text| text.contains("2 hosts 8 GPUs") && text.matches("97%").count() >= 4);
    }
    for host in &lab.hosts {
        host.driver.set(&scenario(host.worker_pid(), 42));
    }
    for pty in &screens {
        pty.wait("new readings", |text| text.matches("42%").count() >= 4 && !text.contains("97%"));
    }
    assert_eq!(logins(&machine, &machine.client_key()), 2, "each viewer has a session to the collector");
    for host in &lab.hosts {
        assert_eq!(logins(&host.sshd, &host.sshd.client_key()), 1, "{}:\n{}", host.name, host.sshd.log());
    }
    assert_eq!((lab.probes(), probes.len()), (probes.clone(), 2));
    for pty in &mut screens {
        pty.keys("q");
        assert_eq!(pty.exit_code(), 0);
    }
}

#[test]
fn a_shell_and_the_end_of_a_log_go_over_a_session_of_the_viewer() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("out.log");
    let lab = Lab::start_with_workers(&["hgx-01", "hgx-02"], |_| {
        let file = std::fs::File::create(&log).expect("a log");
        (&file).write_all(b"step 4 of the viewer\n").expect("is written");
        let mut worker = std::process::Command::new("sleep");
        worker.arg("3600").stdin(Stdio::null()).stdout(file).stderr(Stdio::null()).spawn().expect("starts")
    });
    let hosts = lab.hosts_toml("");
    let _collector = start_quietly(&lab, &hosts, &["hgx-01", "hgx-02"]);
    let machine = machine(&lab, &program_path());
    // The viewer has another key than the collector.
    let (first, second) = (&lab.hosts[0].sshd, &lab.hosts[1].sshd);
    let key = first.stranger_key();
    let public = std::fs::read(first.file("stranger.pub")).expect("a key");
    let mut authorized = std::fs::OpenOptions::new().append(true).open(first.file("authorized_keys")).expect("opens");
    authorized.write_all(&public).expect("is written");
    let own = std::fs::read_to_string(&hosts).expect("hosts.toml");
    let own = own.split("[[hosts]]").nth(1).expect("a host");
    let collectors_key = first.client_key();
    let own = own.replace(&*collectors_key.to_string_lossy(), &key.to_string_lossy());
    let more = format!("\n[[hosts]]{own}user = \"{}\"\n", machine.user());
    let configuration = viewer_configuration(&lab, &machine, &more);
    let mut pty = screen(&lab, &configuration, (140, 40));
    pty.wait("both hosts", |text| text.contains("2 hosts 8 GPUs") && text.contains("via lab-head"));
    assert_eq!(logins(first, &key), 0, "only the collector is there");
    let pid = lab.hosts[0].worker_pid().to_string();
    pty.keys("3");
    pty.wait_for(&pid);
    pty.keys("/host:hgx-01\r");
    pty.wait("one process", |text| text.contains("1 of 2 shown"));
    pty.keys("\r");
    pty.wait("the process", |text| text.contains(&pid) && text.contains("sleep 3600"));
    pty.keys("W");
    pty.wait_for("step 4 of the viewer");
    assert_eq!(logins(first, &key), 1);
    pty.keys("\x1b");
    pty.wait("the process", |text| text.contains(&pid) && !text.contains("step 4"));
    pty.keys("s");
    pty.wait_for("# the screen returns when it ends");
    pty.wait("a shell", |text| text.contains('$') || text.contains('#') && text.lines().count() > 2);
    pty.keys("echo port:${SSH_CONNECTION##* }:tty:$(test -t 0 && echo yes):\r");
    pty.wait_for(&format!("port:{}:tty:yes:", first.port()));
    assert_eq!(logins(first, &key), 2, "the shell logs in as well");
    pty.keys("exit\r");
    pty.wait("the screen", |text| text.contains("back from hgx-01"));
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    for sshd in [first, second] {
        assert_eq!(logins(sshd, &sshd.client_key()), 1, "the collector has its session and no other:\n{}", sshd.log());
    }
    assert_eq!(logins(&machine, &machine.client_key()), 1);
}

#[test]
fn hosts_that_a_collector_adds_and_removes_appear_in_the_order_of_its_file_and_disappear() {
    let lab = Lab::start(&["hgx-01", "hgx-02", "hgx-03"]);
    let hosts = lab.path("collected.toml").display().to_string();
    keep_hosts(&lab, &hosts, &["hgx-03", "hgx-01"], "");
    let collector = start_quietly(&lab, &hosts, &["hgx-03", "hgx-01"]);
    let machine = machine(&lab, &program_path());
    let configuration = viewer_configuration(&lab, &machine, "");
    // One pane below the other.
    let mut pty = screen(&lab, &configuration, (80, 60));
    let shown = |text: &str| {
        let titles = text.lines().filter(|line| line.starts_with(['┏', '╭']));
        let names = titles.filter_map(|line| line.find("hgx-").map(|start| line[start..start + 6].to_owned()));
        names.collect::<Vec<_>>()
    };
    let text = pty.wait("two hosts", |text| text.contains("2 hosts 8 GPUs"));
    assert_eq!(shown(&text), ["hgx-03", "hgx-01"], "{text}");
    keep_hosts(&lab, &hosts, &["hgx-03", "hgx-02", "hgx-01"], "");
    collector.signal(Signal::HUP);
    let text = pty.wait("three hosts", |text| text.contains("3 hosts 12 GPUs"));
    assert_eq!(shown(&text), ["hgx-03", "hgx-02", "hgx-01"], "{text}");
    let listed = || {
        let (json, error, code) = view(&lab, &configuration, &["status", "--json", "--collector", "lab-head"]);
        assert_eq!(code, 0, "{error}");
        let report: Value = serde_json::from_str(&json).expect("JSON");
        let hosts = report["hosts"].as_array().expect("hosts").iter();
        hosts.map(|host| host["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listed(), ["hgx-03", "hgx-02", "hgx-01"]);

    keep_hosts(&lab, &hosts, &["hgx-02", "hgx-01"], "");
    collector.signal(Signal::HUP);
    let text = pty.wait("the removal", |text| {
        text.contains("8 GPUs on 2 of 3 hosts") && text.contains("the collector on lab-head no longer watches")
    });
    assert_eq!(shown(&text), ["hgx-03", "hgx-02", "hgx-01"], "what was removed keeps its place: {text}");
    assert_eq!(listed(), ["hgx-02", "hgx-01"]);
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    let mut pty = screen(&lab, &configuration, (80, 60));
    let text = pty.wait("two hosts", |text| text.contains("2 hosts 8 GPUs"));
    assert_eq!(shown(&text), ["hgx-02", "hgx-01"], "{text}");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn a_collector_that_is_stopped_is_named_and_its_last_values_stay() {
    let lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    let collector = start_collector(&lab, &hosts, &[]);
    let pid = collector.child.id();
    let machine = machine(&lab, &program_path());
    let configuration = viewer_configuration(&lab, &machine, "");
    let state = lab.path("viewer-state").display().to_string();
    let environment = [("SSH_AUTH_SOCK", ""), ("XDG_STATE_HOME", &*state), ("XDG_CONFIG_HOME", &*configuration)];
    let mut pty = Pty::gpufleet((200, 40), &["--collector", "lab-head"], &environment);
    pty.wait("the readings", |text| text.contains("1 host 4 GPUs") && text.contains("97%"));
    collector.signal(Signal::STOP);
    let line = format!("lab-head: the collector (process {pid}) is stopped, no readings since ");
    pty.wait("the silence", |text| {
        text.contains("the collector on lab-head does not answer, no readings since ") || text.contains(&line)
    });
    let way_out = format!("; continue it there: kill -CONT {pid}");
    pty.wait("the cause and the last values", |text| {
        text.contains(&line) && text.contains(&way_out) && text.contains("DOWN") && text.contains("97%")
    });
    let (_, error, code) = view(&lab, &configuration, &["status", "--collector", "lab-head"]);
    assert_eq!(
        (error, code),
        (
            format!(
                "gpufleet: no answer from the collector on lab-head: lab-head: the collector (process {pid}) is stopped\n  \
                 hint: continue it there: kill -CONT {pid}\n"
            ),
            1
        )
    );
    collector.signal(Signal::CONT);
    pty.wait("the readings again", |text| !text.contains("DOWN") && !text.contains("no readings since"));
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn the_screen_shows_the_verdict_of_an_examination_by_the_collector() {
    let hung = hung_jobs("20s");
    let _collector = start_collector(&hung.lab, &hung.hosts, &[]);
    let machine = machine(&hung.lab, &program_path());
    let configuration = viewer_configuration(&hung.lab, &machine, "");
    let mut pty = screen(&hung.lab, &configuration, (200, 40));
    pty.wait("the readings", |text| text.contains("2 hosts 4 GPUs"));
    pty.keys("5");
    pty.wait("the verdict of the collector", |text| text.contains("(proven)"));
    pty.keys("qq");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn one_screen_shows_the_hosts_of_two_collectors_of_which_one_may_be_down() {
    let rooms = [Lab::start(&["hgx-01"]), Lab::start(&["hgx-02"])];
    let hosts: Vec<String> = rooms.iter().map(|lab| lab.hosts_toml("")).collect();
    let mut collectors: Vec<CollectorProcess> =
        rooms.iter().zip(&hosts).map(|(lab, hosts)| start_collector(lab, hosts, &[])).collect();
    let machines: Vec<Sshd> = rooms.iter().map(|lab| machine(lab, &program_path())).collect();
    // One file names both machines.
    viewer_configuration(&rooms[1], &machines[1], "");
    let second = std::fs::read_to_string(rooms[1].path("viewer/gpufleet/hosts.toml")).expect("hosts.toml");
    let second = second.replace("lab-head", "room-b");
    let configuration = viewer_configuration(&rooms[0], &machines[0], &second);
    let state = rooms[0].path("viewer-state").display().to_string();
    let arguments = ["--collector", "lab-head", "--collector", "room-b"];
    let environment = [("SSH_AUTH_SOCK", ""), ("XDG_STATE_HOME", &*state), ("XDG_CONFIG_HOME", &*configuration)];
    let mut pty = Pty::gpufleet((140, 40), &arguments, &environment);
    pty.wait("hosts of both collectors", |text| {
        text.contains("2 hosts 8 GPUs") && text.contains("via lab-head") && text.contains("via room-b")
    });
    collectors[1].end();
    pty.wait("the loss of one, while the other goes on", |text| {
        text.contains("DOWN") && text.contains("the collector on room-b") && text.contains("via lab-head")
    });
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);

    // At the start, one that is down is a pane.
    let mut pty = Pty::gpufleet((140, 40), &arguments, &environment);
    pty.wait("one collector", |text| {
        text.contains("via lab-head") && text.contains("room-b (collector)") && text.contains("nobody serves")
    });
    let again = CollectorProcess::start(&rooms[1], "collector-2.log", &[&hosts[1]]);
    pty.wait("its hosts in place of the pane", |text| {
        text.contains("2 hosts 8 GPUs") && text.contains("via room-b") && !text.contains("(collector)")
    });
    // SIGHUP adds a host to the collector, and to the screen.
    let more = std::fs::read_to_string(&hosts[1]).expect("hosts.toml")
        + "\n[[hosts]]\nname = \"hgx-03\"\naddress = \"127.0.0.1\"\nport = 1\n";
    std::fs::write(&hosts[1], more).expect("writes");
    again.signal(Signal::HUP);
    pty.wait("the added host", |text| text.contains("8 GPUs on 2 of 3 hosts") && text.contains("hgx-03"));
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);

    collectors[0].end();
    let (_, error, code) = view(&rooms[0], &configuration, &["--collector", "room-b", "--collector", "room-b"]);
    assert_eq!(code, 2);
    assert_eq!(error, "gpufleet: --collector names room-b twice\n  hint: leave one of them out\n");
    let (_, error, code) =
        view(&rooms[0], &configuration, &["status", "--collector", "room-b", "--collector", "lab-head"]);
    assert_eq!(code, 2);
    assert_eq!(
        error,
        "gpufleet: `status` takes one --collector\n  hint: the screen and `history` show the hosts of several\n"
    );
}

#[test]
fn the_screen_begins_with_the_collectors_that_have_answered() {
    let lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    let _collector = start_collector(&lab, &hosts, &[]);
    let machine = machine(&lab, &program_path());
    // It accepts connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let more = format!("\n[[hosts]]\nname = \"room-b\"\naddress = \"127.0.0.1\"\nport = {port}\n");
    let configuration = viewer_configuration(&lab, &machine, &more);
    let state = lab.path("viewer-state").display().to_string();
    let environment = [("SSH_AUTH_SOCK", ""), ("XDG_STATE_HOME", &*state), ("XDG_CONFIG_HOME", &*configuration)];
    let arguments = ["--collector", "room-b", "--collector", "lab-head"];
    let mut pty = Pty::gpufleet((140, 40), &arguments, &environment);
    pty.wait("the hosts of one and the pane of the other", |text| {
        text.contains("4 GPUs on 1 of 2 hosts") && text.contains("room-b (collector)") && text.contains("connecting")
    });
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    // The hosts of the command line are all there.
    let mut pty = Pty::gpufleet((140, 40), &[&arguments[..], &["hgx-01"]].concat(), &environment);
    pty.wait("the host", |text| text.contains("1 host 4 GPUs") && !text.contains("room-b (collector)"));
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}
