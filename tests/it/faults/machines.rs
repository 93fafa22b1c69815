//! Hosts that are not as they were: another boot, a clock that is years off.

use super::{clock_library, report as report_fault};
use crate::fake_driver::{devices, gpu_with, probe_program};
use crate::lab::{Lab, gpufleet, scenario};
use crate::left_out::have_root;
use crate::pty::Pty;
use crate::watching::{Watch, host, is_down};
use gpufleet::fleet::HostUpdate;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

/// What NVML lists on four GPUs, and what of it is sent.
const LISTED: u32 = 10_000;
const SENT: usize = 4096;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_processes_are_the_top_ones_and_a_count() {
    let lab = Lab::start(&["hgx-01"]);
    // Pids beyond those that Linux gives away by itself here; the later ones hold more.
    let gpus: Vec<Value> = (0..4)
        .map(|index| {
            let pids = (4_000_000..4_000_000 + LISTED).filter(|pid| pid % 4 == index);
            let processes: Vec<Value> = pids.map(|pid| json!({"pid": pid, "memory_bytes": u64::from(pid)})).collect();
            gpu_with(index, &json!({"processes": processes}))
        })
        .collect();
    lab.hosts[0].driver.set(&devices(&gpus));
    let mut watch = Watch::start(vec![host(&lab, None)]);
    let mut slowest = Duration::ZERO;
    let mut before: Option<Instant> = None;
    for _ in 0..4 {
        // The first one may come before the driver has answered.
        let told = |update: &HostUpdate| matches!(update, HostUpdate::Snapshot(snapshot) if snapshot.gpu_processes.len() + snapshot.processes_left_out as usize > 0);
        let (_, update) = watch.until("a snapshot", told, is_down).await;
        let HostUpdate::Snapshot(snapshot) = update else { unreachable!() };
        let sent: Vec<_> = (0..snapshot.gpu_processes.len()).map(|row| snapshot.gpu_processes.row(row)).collect();
        assert_eq!((sent.len(), snapshot.processes_left_out), (SENT, LISTED - SENT as u32));
        let least = sent.iter().filter_map(|row| row.gpu_memory_bytes).min();
        assert_eq!(least, Some(4_000_000 + u64::from(LISTED) - SENT as u64), "those that hold most");
        if let Some(before) = before.replace(Instant::now()) {
            slowest = slowest.max(before.elapsed());
        }
    }
    // The interval is a second.
    assert!(slowest < Duration::from_secs(2), "{slowest:?} for a frame");
    report_fault("10,000 processes (a frame)", slowest, None);
}

const BEFORE: &str = "11111111-1111-4111-8111-111111111111\n";
const AFTER: &str = "22222222-2222-4222-8222-222222222222\n";

#[test]
fn a_host_that_reboots_says_so_and_is_back_soon() {
    if !have_root() {
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
    // sshd, its sessions and the probe in them are killed.
    lab.hosts[0].sshd.stop();
    let text = pty.wait("the host is down", |text| text.contains("DOWN") || text.contains("connecting"));
    let noticed = began.elapsed();
    assert!(noticed < Duration::from_secs(10), "{noticed:?}");
    assert!(text.matches("97%").count() >= 2, "the other host goes on: {text}");

    let up = Instant::now();
    lab.hosts[0].sshd.restart();
    let text = pty.wait("its return", |text| text.contains("REBOOTED") && text.matches("97%").count() >= 4);
    let back = up.elapsed();
    assert!(back < Duration::from_secs(10), "{back:?}");
    assert_eq!(text.matches("REBOOTED").count(), 1, "the other host was not: {text}");
    assert!(!text.contains("DOWN") && !text.contains("STALE"), "{text}");
    // The log is written with the next tick of the screen.
    let said = || fs::read_to_string(&log).unwrap();
    pty.wait("its log", |_| said().contains("hgx-01 the host was rebooted: all earlier processes have ended\n"));
    assert_eq!(said().matches("was rebooted").count(), 1, "{}", said());
    report_fault("host reboots", noticed, Some(back));
}

/// Ten years.
const WRONG_BY: i64 = 315_576_000;

#[test]
fn a_host_whose_clock_is_ten_years_off_is_as_fresh_as_any() {
    if !have_root() {
        return;
    }
    // One is ahead, one behind: by the clock that programs read, and by the boot time that the kernel tells.
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
    // The probe alone reads the wrong clock: XDG_CACHE_HOME is each host's own.
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
        assert!(age < 300.0 && (0..600).contains(&began), "{age} s old, began {began} s ago: {process:#}");
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
    // They go on: what changes there is seen.
    for host in &lab.hosts {
        host.driver.set(&scenario(host.worker_pid(), 42));
    }
    let text = pty.wait("new readings", |text| text.matches("42%").count() >= 4);
    assert!(!text.contains("STALE") && !text.contains("3652d"), "{text}");
    // Whoever looks at one of them learns why the dates in its logs are odd.
    pty.keys("\r");
    let text = pty.wait("the first host alone", |text| text.contains("clock 3652d ahead"));
    assert!(!text.contains("STALE"), "{text}");
    pty.keys("]");
    pty.wait("the second host", |text| text.contains("clock 3652d behind"));
    report_fault("clock 10 years off", noticed, None);
}
