//! The host beyond its GPUs: Slurm by a fake `scontrol`, file systems, rates; and what is told of a process on request.

#![allow(clippy::expect_used, reason = "a helper of a test fails by panicking, like the test")]

use super::process::{DEADLINE, Probe, Sleeper, row_of};
use crate::fake_driver::{FakeDriver, devices, gpu, gpu_with};
use gpufleet::wire::{ReplyOutcome, Request};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Answers as Slurm does, for whichever node is asked about.
const SCONTROL: &str = r#"#!/bin/sh
case "$*" in
  'show config') echo 'ClusterName             = lab' ;;
  '-d -o show node '*) echo "NodeName=$5 Gres=gpu:h100:8 GresUsed=gpu:h100:2(IDX:0-1) State=MIXED" ;;
  *) exit 1 ;;
esac
"#;

#[test]
fn what_slurm_gave_away_is_told_where_scontrol_answers() {
    let driver = FakeDriver::new(&devices(&[gpu(0), gpu(1)]));
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("scontrol");
    std::fs::write(&program, SCONTROL).expect("writes");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("may be run");
    let path = std::env::var("PATH").expect("a path");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpufleet-probe"));
    command.env("PATH", format!("{}:{path}", folder.path().display()));
    command.arg("--nvml-library").arg(driver.library()).args(["--interval", "0.25"]);
    let mut probe = Probe::run(&mut command);
    let mut cluster = None;
    let told = probe.wait_for("what jobs hold", |snapshot| {
        cluster = snapshot.host.slurm_cluster.clone().or(cluster.take());
        snapshot.host.slurm_allocated_gpus.is_some()
    });
    assert_eq!(told.host.slurm_allocated_gpus, Some(vec![0, 1]));
    assert_eq!(cluster.as_deref(), Some("lab"));
    // It is told once, and again to a controller that asks.
    assert_eq!(probe.snapshot().host.slurm_allocated_gpus, None);
    probe.request(&Request::Resend);
    let told = probe.wait_for("it again", |snapshot| snapshot.host.slurm_allocated_gpus.is_some());
    assert_eq!(told.host.slurm_cluster.as_deref(), Some("lab"));
}

#[test]
fn the_file_system_of_home_and_the_rates_of_the_host_are_told() {
    let driver = FakeDriver::new(&devices(&[gpu(0)]));
    let mut probe = Probe::on(&driver);
    let told = probe.wait_for("file systems", |snapshot| !snapshot.host.filesystems.is_empty());
    let home = told.host.filesystems.first().expect("one");
    assert!(home.mount_point.starts_with('/') && !home.kind.is_empty(), "{home:?}");
    assert!(home.total_bytes > home.available_bytes && home.silent_seconds.is_none(), "{home:?}");
    let interfaces = std::fs::read_dir("/sys/class/net").map_or(0, Iterator::count);
    if interfaces > 1 {
        let told = probe.wait_for("a rate", |snapshot| snapshot.host.network_receive_bytes_per_second.is_some());
        assert!(told.host.network_transmit_bytes_per_second.is_some_and(|rate| rate >= 0.0));
    }
    assert!(told.host.tasks_blocked.is_some());
}

/// A process that is killed and reaped when dropped.
struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _status = self.0.wait();
    }
}

#[test]
fn environment_and_log_of_an_own_process_are_told_on_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("train.log");
    std::fs::write(&path, "epoch 1\nepoch 2 --token=abc\n").expect("a log");
    let log = std::fs::OpenOptions::new().append(true).open(&path).expect("a log");
    let mut command = Command::new("sleep");
    command.arg("600").env_clear().envs([("NCCL_DEBUG", "INFO"), ("HF_TOKEN", "abc")]).stdin(Stdio::null()).stdout(log);
    let job = Job(command.spawn().expect("starts"));
    let pid = job.0.id();
    let process = json!({"pid": pid, "memory_bytes": 1_u64 << 30});
    let driver = FakeDriver::new(&devices(&[gpu_with(0, &json!({"processes": [process]}))]));
    let mut probe = Probe::on(&driver);
    let snapshot = probe.snapshot();
    let start_ticks = snapshot.processes.row(row_of(&snapshot, pid)).start_ticks.expect("its start");
    let boot_id = probe.hello.as_ref().and_then(|hello| hello.boot_id.clone()).expect("a boot id");
    // Until the program has begun, its environment is empty.
    let start = Instant::now();
    let mut id = 200;
    let variables = loop {
        id += 1;
        probe.request(&Request::Environment { id, boot_id: boot_id.clone(), pid, start_ticks });
        match probe.reply(id) {
            ReplyOutcome::Environment(variables) if variables.is_empty() => assert!(start.elapsed() < DEADLINE),
            ReplyOutcome::Environment(variables) => break variables,
            other => panic!("{other:?}"),
        }
    };
    assert!(
        variables.contains(&"HF_TOKEN=***".into()) && variables.contains(&"NCCL_DEBUG=INFO".into()),
        "{variables:?}"
    );
    probe.request(&Request::LogTail { id: 100, boot_id: boot_id.clone(), pid, start_ticks });
    let expected = ReplyOutcome::LogTail {
        path: path.to_str().expect("utf-8").into(),
        lines: vec!["epoch 1".into(), "epoch 2 --token=***".into()],
    };
    assert_eq!(probe.reply(100), expected);
    probe.request(&Request::LogTail { id: 101, boot_id: boot_id.clone(), pid, start_ticks: start_ticks + 1 });
    assert_eq!(probe.reply(101), ReplyOutcome::Reused);
    // Standard output of this one is /dev/null, its standard error the test's: not files, or not its own to keep.
    let sleeper = Sleeper::start();
    let request = Request::Environment { id: 102, boot_id: "another".into(), pid: sleeper.pid(), start_ticks: 1 };
    probe.request(&request);
    assert_eq!(probe.reply(102), ReplyOutcome::Reused);
}
