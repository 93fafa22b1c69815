//! `gpufleet why` and the findings about jobs of real NCCL: its host code, compiled against a fake CUDA (see `tests/nccl`), runs
//! communicators and NCCL RAS on any machine. `tests/real-nccl` builds it and runs these tests.

use crate::fake_driver::{copy_program, devices, gpu, gpu_with};
use crate::lab::{Lab, LabHost, gpufleet, skip, wait_until};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The folder that `tests/nccl/build` made.
const NCCL: &str = "GPUFLEET_TESTS_NCCL";
const RANKS: u32 = 4;
/// The rank that stops after the twentieth of 24 operations.
const BEHIND: u32 = 3;

fn built_nccl() -> Option<PathBuf> {
    let folder = std::env::var_os(NCCL).map(PathBuf::from);
    if folder.is_none() {
        skip("it needs NCCL: run tests/real-nccl");
    }
    folder
}

/// Starts its command once for each rank, as torchrun does.
const LAUNCHER: &str = "import os, subprocess, sys
here = os.environ['RANKS_HERE'].split()
command = sys.argv[2:]
ranks = [subprocess.Popen(command, env=os.environ | {'RANK': rank, 'LOCAL_RANK': str(local)}) for local, rank in enumerate(here)]
for rank in ranks:
    rank.wait()
";

/// A launcher like torchrun, with these ranks of the job as its children. They end with it.
fn launch(nccl: &Path, folder: &Path, host: &str, port: u16, ranks: std::ops::Range<u32>) -> Child {
    let python = Command::new("sh").args(["-c", "command -v python3"]).output().expect("sh starts").stdout;
    let (source, script) = (folder.join(format!("{host}.py")), folder.join(format!("{host}/torchrun")));
    fs::write(&source, format!("#!{}\n{LAUNCHER}", String::from_utf8_lossy(&python).trim_end())).expect("the launcher");
    fs::set_permissions(&source, PermissionsExt::from_mode(0o755)).expect("it may be run");
    fs::create_dir(folder.join(host)).expect("a folder");
    copy_program(&source, &script);
    let here: Vec<String> = ranks.map(|rank| rank.to_string()).collect();
    let mut command = Command::new(&script);
    command.arg("--rdzv-endpoint=hgx-01:29500").arg(nccl.join("rank"));
    command.args(["--pace", "0.1", "--steps", "24", "--stop-after", "20", "--only", &BEHIND.to_string()]);
    command.arg(folder.join("id")).env("RANKS_HERE", here.join(" ")).env("WORLD_SIZE", RANKS.to_string());
    command.envs([("MASTER_ADDR", "hgx-01"), ("MASTER_PORT", "29500"), ("NCCL_HOSTID", host)]);
    command.env("NCCL_RAS_ADDR", format!("localhost:{port}"));
    let log = fs::File::create(folder.join(format!("{host}.log"))).expect("a log");
    command.stdin(Stdio::null()).stdout(log.try_clone().expect("a descriptor")).stderr(log);
    command.spawn().expect("the launcher starts")
}

/// A free port, for RAS: two jobs on one port would answer for each other.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}

/// The ranks of a launcher, once each of them has made its last operation.
fn ranks_of(host: &LabHost, folder: &Path, count: usize) -> Vec<u32> {
    let log = folder.join(format!("{}.log", host.name));
    let read = || fs::read_to_string(&log).unwrap_or_default();
    wait_until("the ranks to stop", read, || (read().matches(" stops after ").count() == count).then_some(()));
    let launcher = host.worker_pid();
    let children = fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).expect("children");
    children.split_whitespace().map(|pid| pid.parse().expect("a pid")).collect()
}

/// A GPU at work, or one that spins at the power of waiting, or one at rest.
fn of_rank(index: u32, pid: u32, (percent, memory_percent, watts): (u8, u8, u32)) -> Value {
    let process = json!([{"pid": pid, "memory_bytes": 60_129_542_144_u64, "sm_percent": percent}]);
    let fields = json!({
        "utilization_percent": percent, "memory_utilization_percent": memory_percent, "power_watts": watts,
        "memory_used_bytes": 61_203_283_968_u64, "clock_sm_mhz": 1755, "processes": process
    });
    gpu_with(index, &fields)
}

const WORKS: (u8, u8, u32) = (97, 41, 540);
const SPINS: (u8, u8, u32) = (100, 0, 104);
const RESTS: (u8, u8, u32) = (0, 0, 70);

/// The rank that stopped is on another host than the one that is asked.
#[test]
fn why_names_the_rank_of_real_nccl_that_launches_nothing_more() {
    let Some(nccl) = built_nccl() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let lab = Lab::start_with_workers(&["hgx-01", "hgx-02"], |host| {
        let ranks = if host == "hgx-01" { 0..2 } else { 2..4 };
        launch(&nccl, folder.path(), host, free_port(), ranks)
    });
    let pids = [0, 1].map(|host| ranks_of(&lab.hosts[host], folder.path(), 2));
    for (host, pids) in lab.hosts.iter().zip(&pids) {
        let does = |pid: u32| if host.name == "hgx-02" && pid == pids[1] { RESTS } else { SPINS };
        let used = (0..).zip(pids).map(|(index, pid)| of_rank(index, *pid, does(*pid)));
        host.driver.set(&devices(&used.chain([gpu(2), gpu(3)]).collect::<Vec<_>>()));
    }
    let hosts = lab.hosts_toml("");
    let output = gpufleet(&["why", &format!("hgx-01:{}", pids[0][0]), "--ask-ras", "--json", &hosts]);
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    let report: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}{:?}", output.stderr));
    assert_eq!((output.status.code(), &report["outcome"]), (Some(4), &"proven".into()), "{report:#}");
    let culprit = &report["culprit"];
    assert_eq!((&culprit["reason"], &culprit["operation"]), (&"behind".into(), &"AllReduce 21 to 24".into()));
    let rank = &culprit["ranks"][0];
    let expected = (&json!(BEHIND), &json!(pids[1][1]), &json!("hgx-02"));
    assert_eq!((&rank["world_rank"], &rank["pid"], &rank["host"]), expected, "{report:#}");
    assert_eq!(culprit["ranks"].as_array().map(Vec::len), Some(1));
    let evidence = &report["evidence"][0]["text"];
    assert_eq!(evidence, "AllReduce: 3 ranks at 24, rank 3 at 20, none moved", "{report:#}");
}

/// No user asks for it: the job was seen at work, and this NCCL is safe to query. The rank that is behind waits in another kernel.
#[test]
fn the_finding_about_a_hang_of_real_nccl_names_the_rank() {
    let Some(nccl) = built_nccl() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let port = free_port();
    let lab = Lab::start_with_workers(&["hgx-01"], |host| launch(&nccl, folder.path(), host, port, 0..RANKS));
    let pids = ranks_of(&lab.hosts[0], folder.path(), RANKS as usize);
    let all = |does: (u8, u8, u32)| {
        let used = (0..).zip(&pids).map(|(rank, pid)| of_rank(rank, *pid, does));
        devices(&used.collect::<Vec<_>>())
    };
    lab.hosts[0].driver.set(&all(WORKS));
    let text = "\n[diagnosis]\nstuck-spin-suspect = { warn_after = \"150s\" }";
    let hosts = lab.hosts_toml(text);
    let watch = std::thread::scope(|scope| {
        let watch = scope.spawn(|| gpufleet(&["findings", "--watch", "--json", "--for", "250", &hosts]));
        // A job counts as seen at work after a minute.
        std::thread::sleep(std::time::Duration::from_secs(75));
        lab.hosts[0].driver.set(&all(SPINS));
        watch.join().expect("it ends")
    });
    let stdout = String::from_utf8(watch.stdout).expect("UTF-8");
    let changes: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let proven = changes.iter().find(|change| change["verdict"]["outcome"] == "proven");
    let verdict = &proven.unwrap_or_else(|| panic!("{stdout}{}", String::from_utf8_lossy(&watch.stderr)))["verdict"];
    let sentence = verdict["sentence"].as_str().expect("a sentence");
    let expected =
        format!("rank 3 (pid {} on hgx-01, GPU 3) never launched AllReduce 21 to 24, which 3 other ranks did", pids[3]);
    assert_eq!(sentence, expected, "{stdout}");
}
