//! `gpufleet collect` with real sshds: the log, the hook, SIGHUP, and the end.

use crate::lab::{Lab, program, wait_until};
use crate::notifications::wait_for_calls;
use crate::pty::TIMEOUT;
use crate::share::{follow, write_history};
use gpufleet::store::history::{Batch, GpuName, HostRow};
use gpufleet::store::rollup::{GpuRow, StateSeconds};
use gpufleet::store::{History, HistoryReader};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A collector of a lab, with its log in a file. Dropping it kills it.
pub(crate) struct CollectorProcess {
    pub(crate) child: Child,
    log: PathBuf,
}

impl CollectorProcess {
    /// Starts a collector with the state directory of the lab. Each collector of a lab gets another log.
    pub(crate) fn start(lab: &Lab, log: &str, arguments: &[&str]) -> Self {
        let log = lab.path(log);
        let child = command(lab)
            .arg("collect")
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).expect("a log"))
            .spawn()
            .expect("starts");
        Self { child, log }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits for a line of the log that contains `text`.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) -> String {
        wait_until(
            &format!("`{text}` in the log"),
            || self.log(),
            || self.log().lines().find(|line| line.contains(text)).map(str::to_owned),
        )
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a signal");
    }

    /// Ends it by SIGTERM. Returns the exit code and the time that it took.
    #[track_caller]
    pub(crate) fn end(&mut self) -> (Option<i32>, Duration) {
        let began = Instant::now();
        self.signal(Signal::TERM);
        crate::lab::wait_gone(&[self.child.id()], TIMEOUT);
        let took = began.elapsed();
        (self.child.wait().expect("has ended").code(), took)
    }
}

impl Drop for CollectorProcess {
    fn drop(&mut self) {
        // The test may have ended it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A gpufleet with the state directory of the lab.
pub(crate) fn command(lab: &Lab) -> Command {
    let mut command = Command::new(program());
    command
        .env_remove("SSH_AUTH_SOCK")
        .env("XDG_STATE_HOME", lab.path("state"))
        .env("NO_COLOR", "1")
        .stdin(Stdio::null());
    command
}

/// Runs gpufleet with the state directory of the lab to its end.
pub(crate) fn run(lab: &Lab, arguments: &[&str]) -> Output {
    let output = command(lab).args(arguments).output().expect("runs");
    crate::schema::check_output(arguments, &output.stdout);
    output
}

/// Writes a hosts.toml with these hosts of a lab, in this order, and a line in `[defaults]`.
pub(crate) fn keep_hosts(lab: &Lab, path: &str, kept: &[&str], line: &str) {
    let all = std::fs::read_to_string(lab.hosts_toml(line)).expect("hosts.toml");
    let parts: Vec<&str> = all.split("\n[[hosts]]\n").collect();
    let mut text = parts[0].to_owned();
    for name in kept {
        let host = parts.iter().find(|host| host.starts_with(&format!("name = \"{name}\""))).expect("a host");
        text = format!("{text}\n[[hosts]]\n{host}");
    }
    std::fs::write(path, text).expect("writes");
}

#[test]
fn the_collector_logs_notifies_and_ends_in_time() {
    let lab = Lab::start(&["room-1"]);
    let (hook, called) = (lab.write("hook.sh", "#!/bin/sh\ncat >> \"$1\"\n"), lab.path("called.jsonl"));
    let table = format!(
        "[notifications]\non_finding = [\"/bin/sh\", \"{hook}\", \"{}\"]\nmin_severity = \"crit\"",
        called.display()
    );
    let hosts = lab.hosts_toml(&table);
    let mut collector = CollectorProcess::start(&lab, "log", &[&hosts]);
    collector.wait_for("gpufleet: the collector watches 1 host");
    collector.wait_for("gpufleet: room-1: connected, 4 GPUs");
    collector.wait_for("gpufleet: room-1: crit gpu-lost: GPU 3 has fallen off the bus");
    let calls = wait_for_calls(&called, 1);
    assert_eq!(calls[0]["findings"][0]["rule"], "gpu-lost", "{:#}", calls[0]);
    let probes = lab.probes();
    assert_eq!(probes.len(), 1);
    let (code, took) = collector.end();
    assert_eq!(code, Some(0), "{}", collector.log());
    assert!(took < Duration::from_secs(3), "{took:?}");
    crate::lab::wait_gone(&probes, TIMEOUT);
    // The engine remembers what it has notified.
    assert!(lab.path("state/gpufleet/memory.json").exists());
    let mut collector = CollectorProcess::start(&lab, "log-2", &[&hosts]);
    collector.wait_for("room-1: crit gpu-lost");
    assert_eq!(collector.end().0, Some(0));
    assert_eq!(wait_for_calls(&called, 1).len(), 1, "no second notification");
}

#[test]
fn sighup_adds_changes_and_removes_hosts() {
    let lab = Lab::start(&["room-2", "room-3", "room-4"]);
    let hosts = lab.path("collected.toml").display().to_string();
    keep_hosts(&lab, &hosts, &["room-2", "room-3"], "");
    let mut collector = CollectorProcess::start(&lab, "log", &[&hosts]);
    collector.wait_for("room-2: connected");
    collector.wait_for("room-3: connected");
    collector.signal(Signal::HUP);
    collector.wait_for("hosts.toml was read again: no host has changed");
    let before = lab.probes();
    assert_eq!(before.len(), 2);
    keep_hosts(&lab, &hosts, &["room-3", "room-4"], "");
    collector.signal(Signal::HUP);
    collector.wait_for("hosts.toml was read again: 1 host added, 1 host removed");
    collector.wait_for("room-4: connected");
    wait_until(
        "the probe of room-2 to end",
        || format!("{:?} {:?}", before, lab.probes()),
        || {
            let probes = lab.probes();
            // The connection to room-3 stays, so one of the two probes is the same.
            (probes.len() == 2 && probes.iter().filter(|pid| before.contains(pid)).count() == 1).then_some(())
        },
    );
    // A changed host is connected again.
    keep_hosts(&lab, &hosts, &["room-3", "room-4"], "group = \"lab\"");
    collector.signal(Signal::HUP);
    collector.wait_for("hosts.toml was read again: 2 hosts changed");
    wait_until(
        "new probes",
        || format!("{:?} {:?}", before, lab.probes()),
        || {
            let probes = lab.probes();
            (probes.len() == 2 && !probes.iter().any(|pid| before.contains(pid))).then_some(())
        },
    );
    // An invalid file changes nothing.
    std::fs::write(&hosts, "[[hosts]]\nnam = \"x\"\n").expect("writes");
    collector.signal(Signal::HUP);
    let line = collector.wait_for("the hosts stay as they are: ");
    assert!(line.contains("collected.toml:1:1: a host without `name`"), "{line}");
    assert_eq!(collector.end().0, Some(0));
}

#[test]
fn prompts_are_refused_with_the_way_out() {
    let lab = Lab::start(&["room-5"]);
    let hosts = lab.hosts_toml("");
    let text = std::fs::read_to_string(&hosts).expect("hosts.toml");
    let known_hosts = lab.write("empty_known_hosts", "");
    let text: Vec<String> = text
        .lines()
        .map(|line| {
            let is_key_file = line.starts_with("known_hosts");
            if is_key_file { format!("known_hosts = \"{known_hosts}\"") } else { line.to_owned() }
        })
        .collect();
    std::fs::write(&hosts, text.join("\n")).expect("writes");
    let mut collector = CollectorProcess::start(&lab, "log", &[&hosts]);
    let line = collector.wait_for("gpufleet: room-5: ");
    assert!(line.contains("no prompt is possible") && line.contains("; "), "{line}");
    assert_eq!(collector.end().0, Some(0));
}

#[test]
fn the_printed_unit_starts_this_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(program())
        .args(["collect", "--print-unit", "lab.toml"])
        .current_dir(folder.path())
        .output()
        .expect("runs");
    assert!(output.status.success(), "{output:?}");
    let unit = String::from_utf8(output.stdout).expect("UTF-8");
    let path = folder.path().canonicalize().expect("a path").join("lab.toml");
    let start = format!("ExecStart={} collect {}", program().display(), path.display());
    assert!(unit.lines().any(|line| line == start), "{unit}");
    verify_unit(folder.path(), &unit);
}

/// Lets systemd check the unit, where it is installed.
fn verify_unit(folder: &Path, unit: &str) {
    let file = folder.join("gpufleet.service");
    std::fs::write(&file, unit).expect("writes");
    let Ok(output) = Command::new("systemd-analyze").args(["--user", "verify"]).arg(&file).output() else {
        return crate::lab::skip("systemd-analyze is not installed, so the unit is not verified");
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("gpufleet.service"), "{said}");
}

/// Whether the tests run at full size.
fn is_full_size() -> bool {
    std::env::var_os("GPUFLEET_TESTS_ALL").is_some()
}

#[test]
fn a_killed_collector_loses_nothing_that_was_written() {
    let lab = Lab::start(&[]);
    let rounds = if is_full_size() { 100 } else { 5 };
    let mut last = None;
    for round in 0..rounds {
        // Each round starts at the present time and has to reach the minutes that earlier ones wrote, so rounds of one file grow
        // longer.
        if round % 10 == 0 {
            last = None;
        }
        let store = lab.path(&format!("history-{}.db", round / 10));
        let arguments =
            ["--demo", "--demo-hosts", "2", "--demo-speed", "300", "--store", store.to_str().expect("UTF-8")];
        let last_minute = || HistoryReader::open(&store).ok().and_then(|reader| reader.last_minute().ok().flatten());
        let mut collector = CollectorProcess::start(&lab, "log", &arguments);
        wait_until("a new minute", || collector.log(), || (last_minute() > last).then_some(()));
        // Another moment in each round: from none to many polls later.
        (0..round * 7).for_each(|_| std::thread::yield_now());
        let seen = last_minute();
        collector.child.kill().expect("is killed");
        collector.child.wait().expect("has ended");
        let (history, message) = History::open(&store).expect("opens after a kill");
        assert_eq!(message, None, "round {round}");
        drop(history);
        last = last_minute();
        assert!(last >= seen, "round {round}: {last:?} {seen:?}");
        assert!(!collector.log().contains("damaged"), "{}", collector.log());
    }
}

#[test]
fn the_history_of_real_hosts_has_the_running_minute_and_the_names_of_users() {
    let lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    let store = lab.path("h.db").display().to_string();
    let mut collector = CollectorProcess::start(&lab, "log", &["--store", &store, &hosts]);
    // The probe does not know the name in its first sample.
    let user = lab.hosts[0].sshd.user();
    wait_until(
        "the name of the user",
        || collector.log(),
        || {
            let text = String::from_utf8(run(&lab, &["status", &hosts]).stdout).expect("UTF-8");
            (text.contains(&user) && text.contains("from the collector on ")).then_some(())
        },
    );
    assert_eq!(collector.end().0, Some(0));
    let report = |by: &str| {
        let output = run(&lab, &["report", "--store", &store, "--csv", "--by", by, "--since", "1h"]);
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let users = report("user");
    let rows: Vec<&str> = users.lines().skip(1).collect();
    assert!(rows.len() == 1 && rows[0].starts_with(&format!("{user},,")), "{users}");
    assert!(report("gpu").lines().any(|line| line.starts_with("hgx-01:0,")), "{}", report("gpu"));
    assert!(report("job").contains(&format!("{user} GPUs 0,1 ")), "{}", report("job"));
}

/// A tmpfs in a mount namespace of the collector. Its folder stays open, so that the files can be read after the end.
#[test]
fn a_full_disk_delays_minutes_and_loses_none() {
    if !crate::lab::has_root() {
        return;
    }
    let lab = Lab::start(&[]);
    let (disk, log) = (lab.path("disk"), lab.path("log"));
    std::fs::create_dir(&disk).expect("creates");
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "/bin/sh", "-c"])
        .arg("mount -t tmpfs -o size=8m tmpfs \"$1\" && exec \"$0\" collect --demo --demo-hosts 2 --demo-speed 60 --store \"$1/h.db\"")
        .arg(program())
        .arg(&disk)
        .env("XDG_STATE_HOME", lab.path("state"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).expect("a log"));
    let mut collector = CollectorProcess { child: command.spawn().expect("starts"), log };
    collector.wait_for("the collector watches 2 hosts");
    let inside = format!("/proc/{}/root{}", collector.child.id(), disk.display());
    let folder = std::fs::File::open(&inside).expect("the folder of the tmpfs");
    let on_disk = |name: &str| PathBuf::from(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()));
    let mut filler = std::fs::File::create(on_disk("filler")).expect("creates");
    let block = vec![0; 4096];
    let full = loop {
        if let Err(error) = filler.write_all(&block) {
            break error;
        }
    };
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let line = collector.wait_for("the disk is full");
    let path = disk.join("h.db");
    assert_eq!(
        line,
        format!(
            "gpufleet: cannot write the history {}: the disk is full; free some space; the live data goes on",
            path.display()
        )
    );
    std::fs::remove_file(on_disk("filler")).expect("removes");
    drop(filler);
    collector.wait_for("gpufleet: the history is written again; no minute is lost");
    assert_eq!(collector.end().0, Some(0), "{}", collector.log());
    let copy = lab.path("copy.db");
    std::fs::copy(on_disk("h.db"), &copy).expect("copies");
    let (history, message) = History::open(&copy).expect("opens");
    assert_eq!(message, None);
    drop(history);
    let reader = HistoryReader::open(&copy).expect("opens");
    let last = reader.last_minute().expect("reads").expect("a minute");
    let hosts = reader.host_totals(0, last + 60).expect("reads");
    let first = first_minute(&copy);
    assert!(hosts.len() == 2 && last > first, "{hosts:?}");
    assert!(hosts.iter().all(|host| host.watched_seconds == last - first + 60), "{first} to {last}: {hosts:?}");
}

#[test]
fn a_second_collector_of_one_history_is_refused() {
    let lab = Lab::start(&[]);
    let mut first =
        CollectorProcess::start(&lab, "log", &["--demo", "--store", &lab.path("h.db").display().to_string()]);
    first.wait_for("the collector watches 6 hosts");
    let path = lab.path("h.db").display().to_string();
    let second = run(&lab, &["collect", "--demo", "--store", &path]);
    assert_eq!(second.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&second.stderr),
        format!(
            "gpufleet: cannot write the history {path}: gpufleet (pid {}) writes it; stop that collector, or choose another \
             file with --store\n",
            first.child.id()
        )
    );
    assert_eq!(first.end().0, Some(0));
    // Its lock has gone with it.
    let mut third = CollectorProcess::start(&lab, "log-3", &["--demo", "--store", &path]);
    third.wait_for("the collector watches 6 hosts");
    assert_eq!(third.end().0, Some(0));
}

#[test]
fn without_a_usable_history_the_hosts_are_watched() {
    let lab = Lab::start(&["room-6"]);
    let file = lab.write("not-a-folder", "");
    let path = format!("{file}/history.db");
    let mut collector = CollectorProcess::start(&lab, "log", &["--store", &path, &lab.hosts_toml("")]);
    let line = collector.wait_for("cannot write the history");
    assert!(
        line.ends_with("; the hosts are watched, and the last four hours are written as soon as that is possible"),
        "{line}"
    );
    collector.wait_for("room-6: connected");
    assert_eq!(collector.end().0, Some(0));
}

/// Runs gpufleet in a mount namespace in which this directory is read-only.
fn command_with_read_only(lab: &Lab, directory: &Path) -> Command {
    let mut command = Command::new("unshare");
    let mount = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && shift && exec \"$0\" \"$@\"";
    command
        .args(["--mount", "/bin/sh", "-c", mount])
        .arg(program())
        .arg(directory)
        .env_remove("SSH_AUTH_SOCK")
        .env("XDG_STATE_HOME", lab.path("state"))
        .env("NO_COLOR", "1")
        .stdin(Stdio::null());
    command
}

/// Starts a collector of this command, with its log in a file of the lab.
fn start(lab: &Lab, mut command: Command) -> CollectorProcess {
    let log = lab.path("log");
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&log).expect("a log"));
    CollectorProcess { child: command.spawn().expect("starts"), log }
}

/// Waits until the collector answers `status`.
fn wait_for_answer(lab: &Lab, collector: &CollectorProcess, hosts: &str) {
    wait_until(
        "an answer of the collector",
        || collector.log(),
        || {
            let text = run(lab, &["status", hosts]).stdout;
            let text = String::from_utf8_lossy(&text);
            (text.contains("97%") && text.contains("from the collector on ")).then_some(())
        },
    );
}

fn file_names(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).expect("reads").map(|file| file.expect("a file").file_name());
    let mut names: Vec<String> = files.map(|name| name.into_string().expect("UTF-8")).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_history_on_a_read_only_file_system_stays_and_the_hosts_are_watched() {
    if !crate::lab::has_root() {
        return;
    }
    let lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    let disk = lab.path("50%23 of a disk?");
    let store = disk.join("h.db");
    write_history(&store, "GPU-1");
    let path = store.display().to_string();
    let before = std::fs::read(&store).expect("reads");
    let mut command = command_with_read_only(&lab, &disk);
    command.args(["collect", "--store", &path, &hosts]);
    let mut collector = start(&lab, command);
    assert_eq!(
        collector.wait_for("cannot write the history"),
        format!(
            "gpufleet: cannot write the history {path}: Read-only file system; check its disk (`dmesg` names errors), or \
             choose another file with --store; the hosts are watched, and the last four hours are written as soon as that is \
             possible"
        )
    );
    collector.wait_for("hgx-01: connected");
    wait_for_answer(&lab, &collector, &hosts);
    // A report needs no place for the files that SQLite shares with a writer.
    let now = jiff::Timestamp::now();
    let since = (now - jiff::SignedDuration::from_hours(2)).to_string();
    let arguments =
        ["report", "--store", &path, "--csv", "--by", "gpu", "--since", &since, "--until", &now.to_string()];
    let report = command_with_read_only(&lab, &disk).args(arguments).output().expect("runs");
    let same = run(&lab, &arguments);
    assert!(String::from_utf8_lossy(&report.stdout).contains("hgx-01:0,"), "{report:?}");
    assert_eq!(report.stdout, same.stdout);
    assert_eq!(collector.end().0, Some(0), "{}", collector.log());
    assert_eq!(std::fs::read(&store).expect("reads"), before);
}

#[test]
fn without_a_writable_state_directory_the_hosts_are_watched() {
    if !crate::lab::has_root() {
        return;
    }
    let lab = Lab::start(&[]);
    let state = lab.path("state");
    for (folder, mode) in [(lab.path(""), 0o755), (state.clone(), 0o700)] {
        std::fs::create_dir_all(&folder).expect("creates");
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).expect("a mode");
    }
    let hosts = lab.write("hosts.toml", "[[hosts]]\nname = \"a\"\naddress = \"127.0.0.1\"\nport = 1\n");
    let mut command = command(&lab);
    // The directory belongs to root.
    command.args(["collect", &hosts]).uid(65_534).gid(65_534);
    let mut collector = start(&lab, command);
    collector.wait_for("gpufleet: a: nothing listens on 127.0.0.1 port 1");
    let path = |name: &str| state.join("gpufleet").join(name).display().to_string();
    assert_eq!(
        collector.wait_for("cannot write the history"),
        format!(
            "gpufleet: cannot write the history {}: Permission denied; check the owner and mode of the directory, or choose \
             another file with --store; the hosts are watched, and the last four hours are written as soon as that is \
             possible",
            path("history.db")
        )
    );
    assert_eq!(
        collector.wait_for("there is no socket for viewers"),
        format!(
            "gpufleet: there is no socket for viewers: cannot offer the socket {}: Permission denied",
            path("collect.sock")
        )
    );
    collector.wait_for("  hint: name a path in a directory of this account: --socket PATH");
    assert_eq!(collector.end().0, Some(0), "{}", collector.log());
    assert_eq!(file_names(&state), Vec::<String>::new());
}

/// The kernel refuses to make a file system with open files read-only. A limit of the size of files has the same effect: a
/// write fails with an error of the system.
#[test]
fn a_history_that_becomes_unwritable_is_named_and_written_later_and_viewers_go_on() {
    let lab = Lab::start(&[]);
    let store = lab.path("h.db");
    let path = store.display().to_string();
    std::fs::create_dir_all(lab.path("state/gpufleet")).expect("creates");
    let socket = lab.path("state/gpufleet/collect.sock").display().to_string();
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "trap '' XFSZ && exec \"$0\" \"$@\""])
        .arg(program())
        .args(["collect", "--demo", "--demo-hosts", "2", "--demo-speed", "60", "--store", &path, "--socket", &socket])
        .env("XDG_STATE_HOME", lab.path("state"))
        .stdin(Stdio::null());
    let mut collector = start(&lab, command);
    collector.wait_for("the collector watches 2 hosts");
    let last_minute = || HistoryReader::open(&store).ok().and_then(|reader| reader.last_minute().ok().flatten());
    wait_until("a minute", || collector.log(), || last_minute().map(drop));
    let limit_files = |bytes: Option<u64>| {
        let pid = Pid::from_child(&collector.child);
        let maximum = rustix::process::getrlimit(Resource::Fsize).maximum;
        prlimit(Some(pid), Resource::Fsize, Rlimit { current: bytes, maximum }).expect("a limit");
    };
    // Less than the log of SQLite has, and more than that of the collector has.
    let limit = 32 << 10;
    assert!(std::fs::metadata(lab.path("h.db-wal")).expect("a log").len() > limit);
    limit_files(Some(limit));
    let line = format!(
        "gpufleet: cannot write the history {path}: disk I/O error: File too large; check its disk (`dmesg` names errors), or \
         choose another file with --store; the live data goes on"
    );
    assert_eq!(collector.wait_for("cannot write the history"), line);
    let seen = last_minute();
    assert!(BufReader::new(follow(&lab)).lines().any(|line| line.expect("a line") == "\"complete\""));
    limit_files(None);
    collector.wait_for("gpufleet: the history is written again; no minute is lost");
    wait_until("a later minute", || collector.log(), || (last_minute() > seen).then_some(()));
    // It stays unwritable until the end.
    limit_files(Some(limit));
    wait_until(
        "the second failure",
        || collector.log(),
        || (collector.log().lines().filter(|shown| *shown == line).count() == 2).then_some(()),
    );
    assert_eq!(collector.end().0, Some(0), "{}", collector.log());
    let lost = collector.wait_for("the history could not be written until the end; ");
    assert!(lost.ends_with(" lost") && !lost.contains("no minute"), "{lost}");
    let (_, message) = History::open(&store).expect("opens");
    assert_eq!(message, None);
    let reader = HistoryReader::open(&store).expect("opens");
    let (last, first) = (last_minute().expect("a minute"), first_minute(&store));
    let hosts = reader.host_totals(0, last + 60).expect("reads");
    assert!(hosts.iter().all(|host| host.watched_seconds == last - first + 60), "{first} to {last}: {hosts:?}");
}

fn first_minute(store: &Path) -> u64 {
    let connection = rusqlite::Connection::open(store).expect("opens");
    connection.query_row("SELECT min(start) FROM host_minute", [], |row| row.get(0)).expect("the first minute")
}

#[test]
fn a_damaged_history_is_kept_and_the_collector_begins_a_new_one() {
    let lab = Lab::start(&[]);
    let store = lab.path("disk/h.db");
    let path = store.display().to_string();
    write_history(&store, "GPU-1");
    let mut bytes = std::fs::read(&store).expect("reads");
    // The first page with the schema is whole, as after an error of a disk.
    bytes[8192..].fill(0xff);
    std::fs::write(&store, &bytes).expect("writes");
    let mut collector =
        CollectorProcess::start(&lab, "log", &["--demo", "--demo-hosts", "2", "--demo-speed", "300", "--store", &path]);
    let line = collector.wait_for("the history");
    assert!(
        line.starts_with(&format!("gpufleet: the history {path} is damaged ("))
            && line.ends_with("): it is kept as h.db.bad-1, and a new one begins"),
        "{line}"
    );
    let minute = || HistoryReader::open(&store).ok().and_then(|reader| reader.last_minute().ok().flatten());
    wait_until("a minute", || collector.log(), || minute().map(drop));
    assert_eq!(collector.end().0, Some(0), "{}", collector.log());
    assert!(std::fs::read(lab.path("disk/h.db.bad-1")).expect("is kept") == bytes);
    let report = run(&lab, &["report", "--store", &path]);
    assert!(report.status.success(), "{report:?}");
    let report = run(&lab, &["report", "--store", &format!("{path}.bad-1")]);
    assert_eq!(report.status.code(), Some(1));
    let error = String::from_utf8_lossy(&report.stderr).into_owned();
    assert!(error.contains(&format!("the history {path}.bad-1 is damaged: ")) && error.contains("--store"), "{error}");
}

#[test]
fn a_history_of_a_newer_version_is_not_touched_and_the_hosts_are_watched() {
    let lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    let store = lab.path("disk/h.db");
    let path = store.display().to_string();
    write_history(&store, "GPU-1");
    let connection = rusqlite::Connection::open(&store).expect("opens");
    connection.execute_batch("CREATE TABLE comet (x); PRAGMA user_version = 9").expect("writes");
    drop(connection);
    let before = std::fs::read(&store).expect("reads");
    let error = format!(
        "gpufleet: cannot use the history {path}: a newer gpufleet has written it (version 9, this one knows 3); update \
         gpufleet, or choose another file with --store"
    );
    let mut collector = CollectorProcess::start(&lab, "log", &["--store", &path, &hosts]);
    let line = collector.wait_for("the history");
    assert_eq!(line, format!("{error}; the hosts are watched without a history"));
    collector.wait_for("hgx-01: connected");
    wait_for_answer(&lab, &collector, &hosts);
    assert_eq!(collector.end().0, Some(0), "{}", collector.log());
    // An import has nothing else to do.
    let recording = lab.path("demo.jsonl").display().to_string();
    assert!(run(&lab, &["record", &recording, "--demo", "--demo-speed", "300", "--for", "1500"]).status.success());
    let import = run(&lab, &["collect", "--import", &recording, "--store", &path]);
    assert_eq!(
        (import.status.code(), String::from_utf8_lossy(&import.stderr).into_owned()),
        (Some(1), format!("{error}\n"))
    );
    assert!(std::fs::read(&store).expect("reads") == before);
    assert_eq!(file_names(&lab.path("disk")), ["h.db", "h.db.lock"]);
}

#[test]
fn a_recording_is_imported_and_reported() {
    let lab = Lab::start(&[]);
    let path = |name: &str| lab.path(name).display().to_string();
    let (recording, store) = (path("demo.jsonl"), path("history.db"));
    let recorded = ["record", &recording, "--demo", "--demo-speed", "300", "--for", "1500"];
    assert!(run(&lab, &recorded).status.success());
    let imported = run(&lab, &["collect", "--import", &recording, "--store", &store]);
    assert!(imported.status.success(), "{imported:?}");
    let said = String::from_utf8_lossy(&imported.stdout);
    assert!(said.starts_with("imported ") && said.ends_with(" minutes of 6 hosts\n"), "{said}");
    let now = jiff::Timestamp::now().as_second();
    let time = |seconds: i64| jiff::Timestamp::from_second(now + seconds).expect("a time").to_string();
    let (since, until) = (time(-3600), time(7200));
    let report = |more: &[&str]| {
        let mut arguments = vec!["report", "--store", &store, "--since", &since, "--until", &until];
        arguments.extend(more);
        let output = run(&lab, &arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let text = report(&[]);
    assert!(
        text.lines().any(|line| line.starts_with("user ")) && text.lines().any(|line| line.starts_with("bob ")),
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_str(&report(&["--json", "--by", "host"])).expect("JSON");
    assert_eq!(json["rows"].as_array().map(Vec::len), Some(5), "one of the 6 hosts is never reachable: {json}");
    let total = &json["total"];
    let hours = |key: &str| total[key].as_f64().expect(key);
    // 40 GPUs for 25 minutes; on a busy computer, samples are skipped or come late.
    let known = hours("held_hours") + hours("free_hours") + hours("faulty_hours");
    assert!((5.0..=24.0).contains(&known), "{total}");
    assert!(hours("used_hours") > 1.0 && hours("idle_held_hours") > 0.1 && hours("energy_kwh") > 1.0, "{total}");
    let csv = report(&["--csv", "--by", "gpu", "--gpu-hour", "H100=2.5"]);
    assert_eq!(csv.lines().count(), 41, "{csv}");
    let page = path("report.html");
    assert_eq!(report(&["--html", &page, "--by", "job"]), "");
    assert!(std::fs::read_to_string(&page).expect("a page").contains("<svg"));
    let users = report(&["--csv"]);
    // A second import changes nothing.
    assert!(run(&lab, &["collect", "--import", &recording, "--store", &store]).status.success());
    let again: serde_json::Value = serde_json::from_str(&report(&["--json", "--by", "host"])).expect("JSON");
    assert_eq!(again["total"]["energy_kwh"], total["energy_kwh"]);
    assert_eq!(report(&["--csv"]), users);
}

#[test]
fn a_report_without_a_history_names_the_way_out() {
    let lab = Lab::start(&[]);
    let path = lab.path("none.db").display().to_string();
    let output = run(&lab, &["report", "--store", &path]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        format!("gpufleet: there is no history {path}: `gpufleet collect` writes it; name another file with --store\n")
    );
    let output = run(&lab, &["report", "--since", "yesterday"]);
    assert_eq!(
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()),
        (
            Some(2),
            "gpufleet: --since `yesterday` is not a time\n  hint: write 90m, 24h, 7d, 4w, 2026-11-17 or \
             2026-11-17T08:00:00Z\n"
                .to_owned()
        )
    );
}

/// Writes minutes of 30 hosts with 8 busy GPUs each, and prints the size of the file and the time of queries. With
/// `GPUFLEET_TESTS_ALL` it writes 14 days, for docs/performance.md.
#[test]
fn a_fortnight_of_240_gpus_fits_into_the_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("history.db");
    let minutes = if is_full_size() { 14 * 1440 } else { 30 };
    let start = 1_800_057_600;
    let (mut history, _) = History::open(&path).expect("opens");
    let names: Vec<GpuName> = (0..240)
        .map(|gpu: u32| GpuName {
            host: format!("gpu-{:02}", gpu / 8).as_str().into(),
            uuid: format!("GPU-{gpu}").as_str().into(),
            index: gpu % 8,
            model: Some("NVIDIA H100 80GB HBM3".into()),
            memory_mib: Some(81_559),
        })
        .collect();
    let began = Instant::now();
    for minute in 0..minutes {
        let row = |gpu: u64| GpuRow {
            samples: 30,
            utilization_permille: Some(900 + (minute * 7 + gpu) % 100),
            utilization_max_percent: Some(100),
            memory_mib: Some(70_000 + (minute + gpu) % 999),
            memory_max_mib: Some(71_500),
            energy_joules: Some(36_000 + (minute * 11 + gpu) % 3000),
            temperature_max_celsius: Some(60 + (gpu % 9) as i64),
            sm_activity_permille: Some(500 + (minute + gpu) % 300),
            states: StateSeconds { busy: 60, ..StateSeconds::default() },
            throttled_seconds: 0,
        };
        let host = HostRow {
            cpu_permille: Some(300 + minute % 100),
            memory_mib: Some(400_000 + minute % 1000),
            load_hundredths: Some(3200),
            disk_kib_per_second: Some(1000 + minute % 5000),
            network_kib_per_second: Some(2000 + minute % 9000),
            reachable_seconds: 60,
        };
        let batch = Batch {
            start: start + minute * 60,
            gpus: names.iter().zip(0..).map(|(name, gpu)| (name.clone(), row(gpu))).collect(),
            hosts: (0..30).map(|number| (format!("gpu-{number:02}").as_str().into(), host.clone())).collect(),
            ..Batch::default()
        };
        history.write(&batch).expect("writes");
    }
    let per_minute = began.elapsed() / minutes as u32;
    drop(history);
    let megabytes = std::fs::metadata(&path).expect("a file").len() as f64 / 1e6;
    let reader = HistoryReader::open(&path).expect("opens");
    let began = Instant::now();
    let week = reader.gpu_totals(start, start + 7 * 86_400, Some((86_400, 3600))).expect("reads");
    println!(
        "{minutes} minutes of 240 GPUs: {megabytes:.1} MB, {per_minute:?} a minute; a week by day: {:?}",
        began.elapsed()
    );
    assert!(week.len() >= 240);
    // 250 MB for 14 days with every GPU busy, and room for the fixed parts in a small file.
    assert!(megabytes < 250.0 * (minutes as f64 / (14.0 * 1440.0)) + 1.0, "{megabytes} MB");
}
