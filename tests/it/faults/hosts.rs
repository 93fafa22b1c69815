//! Faults of hosts: too many processes, reboot, a wrong clock, and sleep behind a jump host with one-time codes.

use super::proxies::Link;
use super::{clock_library, report as report_fault};
use crate::fake_driver::{devices, gpu_with, probe_program};
use crate::lab::{HostWatcher, Lab, gpufleet, has_root, host_config, is_down, scenario};
use crate::pty::Pty;
use crate::ssh::servers::{CODE, LoginMethod, PASSWORD, Server};
use gpufleet::fleet::HostUpdate;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

/// The number of processes that NVML lists on four GPUs, and how many of them are sent.
const LISTED: u32 = 10_000;
const SENT: usize = 2048;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_ten_thousand_processes_the_largest_and_a_count_are_sent() {
    let lab = Lab::start(&["hgx-01"]);
    // Pids that this machine does not use; higher ones have more memory.
    let gpus: Vec<Value> = (0..4)
        .map(|index| {
            let pids = (4_000_000..4_000_000 + LISTED).filter(|pid| pid % 4 == index);
            let processes: Vec<Value> = pids.map(|pid| json!({"pid": pid, "memory_bytes": u64::from(pid)})).collect();
            gpu_with(index, &json!({"processes": processes}))
        })
        .collect();
    lab.hosts[0].driver.set(&devices(&gpus));
    let mut watcher = HostWatcher::start(vec![host_config(&lab, None)]);
    let mut slowest = Duration::ZERO;
    let mut before: Option<Instant> = None;
    for _ in 0..4 {
        // The first snapshot may come before the driver has answered.
        let has_processes = |update: &HostUpdate| match update {
            HostUpdate::Snapshot(snapshot) => !snapshot.gpu_processes.is_empty() || snapshot.processes_left_out > 0,
            _ => false,
        };
        let (_, update) = watcher.wait_until("a snapshot", has_processes, is_down).await;
        let HostUpdate::Snapshot(snapshot) = update else { unreachable!() };
        let sent: Vec<_> = (0..snapshot.gpu_processes.len()).map(|row| snapshot.gpu_processes.row(row)).collect();
        assert_eq!((sent.len(), snapshot.processes_left_out), (SENT, LISTED - SENT as u32));
        let least = sent.iter().filter_map(|row| row.gpu_memory_bytes).min();
        assert_eq!(
            least,
            Some(4_000_000 + u64::from(LISTED) - SENT as u64),
            "the processes with the most memory are sent"
        );
        if let Some(before) = before.replace(Instant::now()) {
            slowest = slowest.max(before.elapsed());
        }
    }
    // The interval is one second.
    assert!(slowest < Duration::from_secs(2), "{slowest:?} for a frame");
    report_fault("10,000 processes (a frame)", slowest, None);
}

const BEFORE: &str = "11111111-1111-4111-8111-111111111111\n";
const AFTER: &str = "22222222-2222-4222-8222-222222222222\n";

#[test]
fn reboot_is_reported_and_the_host_reconnects() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::start_in(&["hgx-01", "hgx-02"], |folder| {
        fs::write(folder.join("boot_id"), BEFORE).unwrap();
        Some(format!("mount --bind {}/boot_id /proc/sys/kernel/random/boot_id", folder.display()))
    });
    let (hosts, log) = (lab.hosts_toml(""), lab.path("ssh.log").display().to_string());
    let pty = Pty::gpufleet((120, 40), &["--log", &log, &hosts], &[("SSH_AUTH_SOCK", "")]);
    let is_live = |text: &str| text.contains("8 GPUs") && text.matches("97%").count() >= 4;
    let text = pty.wait("both hosts", is_live);
    assert!(!text.contains("REBOOTED"), "{text}");

    let began = Instant::now();
    fs::write(lab.hosts[0].sshd.file("boot_id"), AFTER).unwrap();
    // This kills sshd, its sessions and the probe.
    lab.hosts[0].sshd.stop();
    let text = pty.wait("the host is down", |text| text.contains("DOWN") || text.contains("connecting"));
    let noticed = began.elapsed();
    assert!(noticed < Duration::from_secs(10), "{noticed:?}");
    assert!(text.matches("97%").count() >= 2, "the other host stays live: {text}");

    let up = Instant::now();
    lab.hosts[0].sshd.restart();
    let text = pty.wait("its return", |text| text.contains("REBOOTED") && text.matches("97%").count() >= 4);
    let back = up.elapsed();
    assert!(back < Duration::from_secs(10), "{back:?}");
    assert_eq!(text.matches("REBOOTED").count(), 1, "only one host was rebooted: {text}");
    assert!(!text.contains("DOWN") && !text.contains("STALE"), "{text}");
    // The log is written with the next tick of the UI.
    let read_log = || fs::read_to_string(&log).unwrap();
    pty.wait("its log", |_| read_log().contains("hgx-01 the host was rebooted: all earlier processes have ended\n"));
    assert_eq!(read_log().matches("was rebooted").count(), 1, "{}", read_log());
    report_fault("host reboots", noticed, Some(back));
}

/// Ten years in seconds.
const WRONG_BY: i64 = 315_576_000;

#[test]
fn clock_that_is_ten_years_off_does_not_make_readings_stale() {
    if !has_root() {
        return;
    }
    // One host is ahead, one behind, in both the wall clock and the boot time of the kernel.
    let mut off_by = [WRONG_BY, -WRONG_BY].into_iter();
    let lab = Lab::start_in(&["hgx-01", "hgx-02"], |folder| {
        let (at, seconds) = (folder.display(), off_by.next().unwrap());
        Some(format!(
            "boot=$(sed -n 's/^btime //p' /proc/stat)\nsed \"s/^btime .*/btime $((boot + ({seconds})))/\" /proc/stat \
             >{at}/stat\nmount --bind {at}/stat /proc/stat"
        ))
    });
    let library = clock_library(&lab);
    for (name, seconds) in [("hgx-01", WRONG_BY), ("hgx-02", -WRONG_BY)] {
        fs::write(lab.path(name).join("seconds"), seconds.to_string()).unwrap();
    }
    // Only the probe reads the wrong clock: XDG_CACHE_HOME differs between the hosts.
    let program = probe_program().display().to_string();
    let script = format!(
        "#!/bin/sh\nLD_PRELOAD={library} TEST_SLEPT=\"${{XDG_CACHE_HOME%/cache}}/seconds\" exec {program} \"$@\"\n"
    );
    let probe = lab.write("probe", &script);
    fs::set_permissions(&probe, fs::Permissions::from_mode(0o755)).unwrap();
    let hosts = lab.hosts_toml(&format!("probe = \"{probe}\""));

    let output = gpufleet(&["status", "--json", &hosts]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let now: Timestamp = report["time"].as_str().unwrap().parse().unwrap();
    for host in report["hosts"].as_array().unwrap() {
        assert_eq!(host["state"], "live", "{report:#}");
        assert!(host["age_seconds"].as_f64().unwrap() < 10.0, "{host:#}");
        let process = &host["processes"][0];
        let age = process["age_seconds"].as_f64().unwrap();
        let began: Timestamp = process["start_time"].as_str().unwrap().parse().unwrap();
        let began = now.as_second() - began.as_second();
        // Both times have whole seconds.
        assert!(age < 300.0 && (-1..600).contains(&began), "{age} s old, began {began} s ago: {process:#}");
        assert_eq!(host["findings"].as_array().map_or(0, Vec::len), 0, "{host:#}");
    }
    let table = String::from_utf8(gpufleet(&["status", &hosts]).stdout).unwrap();
    for nonsense in ["3652d", "87660h", "315576"] {
        assert!(!table.contains(nonsense), "{nonsense}:\n{table}");
    }

    let began = Instant::now();
    let mut pty = Pty::gpufleet((120, 40), &[&hosts], &[("SSH_AUTH_SOCK", "")]);
    let is_live = |text: &str| text.contains("8 GPUs") && text.matches("97%").count() >= 4;
    let text = pty.wait("both hosts", is_live);
    let noticed = began.elapsed();
    assert!(!text.contains("STALE") && !text.contains("3652d"), "{text}");
    // New readings still arrive.
    for host in &lab.hosts {
        host.driver.set(&scenario(host.worker_pid(), 42));
    }
    let text = pty.wait("new readings", |text| text.matches("42%").count() >= 4);
    assert!(!text.contains("STALE") && !text.contains("3652d"), "{text}");
    // The host view shows how far the clock is off.
    pty.keys("\r");
    let text = pty.wait("the first host alone", |text| text.contains("clock 3652d ahead"));
    assert!(!text.contains("STALE"), "{text}");
    pty.keys("]");
    pty.wait("the second host", |text| text.contains("clock 3652d behind"));
    report_fault("clock 10 years off", noticed, None);
}

// Sleep behind a jump host that asks for a one-time code.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_wait_for_a_one_time_code_after_sleep_without_counting_as_down() {
    let lab = Lab::start(&["hgx-01", "hgx-02"]);
    let library = clock_library(&lab);
    let jump_host = Server::start(LoginMethod::Questions).await;
    let link = Link::start(([127, 0, 0, 1], jump_host.port).into()).await;
    let known = lab.write("known_gates", &Server::known_hosts_line_at(link.port()));
    let config = lab.write(
        "ssh_config",
        &format!("Host gate\n HostName 127.0.0.1\n Port {}\n User bob\n UserKnownHostsFile {known}\n", link.port()),
    );
    let hosts = lab.hosts_toml(&format!("proxy_jump = \"gate\"\nssh_config = \"{config}\""));
    let slept = lab.write("slept", "0");
    let environment = [("LD_PRELOAD", library.as_str()), ("TEST_SLEPT", &slept), ("SSH_AUTH_SOCK", "")];
    let mut pty = Pty::gpufleet((120, 40), &[&hosts], &environment);
    let is_prompting = |text: &str, question: &str| text.contains(question) && text.contains('▏');
    let is_live = |text: &str| {
        text.contains("8 GPUs") && text.matches("97%").count() >= 4 && !text.contains("STALE") && !text.contains('▏')
    };
    for (question, answer) in [("Password:", PASSWORD), ("Verification code:", CODE)] {
        pty.wait(question, |text| is_prompting(text, question));
        pty.keys(&format!("{answer}\r"));
    }
    pty.wait("both hosts", is_live);
    assert_eq!(jump_host.connections(), 1);

    // During the sleep the jump host dropped the connection without notice.
    link.drop_connections();
    fs::write(&slept, "7200").unwrap();
    let woke = Instant::now();
    let failed = Cell::new(None);
    let note = |text: &str| {
        if text.contains("DOWN") {
            failed.set(Some(text.to_owned()));
        }
    };
    pty.wait("the resume", |text| {
        note(text);
        text.contains("resumed")
    });
    let noticed = woke.elapsed();
    // The header shows one prompt for all hosts behind the jump host, also after every timeout of a silent host.
    let text = pty.wait("fifteen seconds", |text| {
        note(text);
        (15..25).any(|seconds| text.contains(&format!("tcp  {seconds} s")))
    });
    assert!(text.contains("2 connecting") && text.contains("1 prompt (P)"), "{text}");
    assert!(text.contains("last seen") && !text.contains("unreachable"), "{text}");
    assert_eq!(jump_host.connections(), 2, "one connection waits for the answer");
    assert_eq!(failed.take(), None, "a host counts as failed");
    for (question, answer) in [("Password:", PASSWORD), ("Verification code:", CODE)] {
        // No dialog opens by itself while the screen is in use.
        pty.wait("a prompt and no dialog", |text| text.contains("1 prompt (P)") && !text.contains('▏'));
        pty.keys("P");
        pty.wait(question, |text| is_prompting(text, question));
        pty.keys(&format!("{answer}\r"));
    }
    let typed = Instant::now();
    pty.wait("both hosts again", is_live);
    let back = typed.elapsed();
    assert!(noticed < Duration::from_secs(2) && back < Duration::from_secs(15), "{noticed:?} {back:?}");
    assert_eq!(jump_host.connections(), 2, "one code opens both");
    report_fault("laptop sleeps, and the server asks for a code", noticed, Some(back));
}
