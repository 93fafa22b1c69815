//! `gpufleet why`: the examination of a real process through a real sshd, and the verdict about simulated jobs.

use crate::lab::{Lab, gpufleet};
use serde_json::Value;
use std::process::Output;

fn run(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = gpufleet(arguments);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (status.code().expect("an exit code"), text(stdout), text(stderr))
}

#[test]
fn why_examines_a_process_twice_through_sshd() {
    let lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    let pid = lab.hosts[0].worker_pid();
    let (code, stdout, stderr) = run(&["why", &format!("hgx-01:{pid}"), "--json", &hosts]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((&report["job"], &report["hosts"][0]), (&Value::from("sleep 3600"), &Value::from("hgx-01")));
    let process = &report["processes"][0];
    assert_eq!((&process["pid"], &process["mine"]), (&Value::from(pid), &Value::from(true)));
    assert_eq!(process["readings"], 2, "a minute apart: {report:#}");
    assert_ne!(report["outcome"], "proven", "a process that sleeps proves nothing");
    let missing = report["missing"].as_array().expect("missing facts");
    let about = |what: &str| missing.iter().find(|one| one["what"].as_str().is_some_and(|text| text.starts_with(what)));
    let stacks = about("stacks of").unwrap_or_else(|| panic!("{report:#}"));
    assert!(stacks["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{stacks}");
    assert!(about("NCCL RAS").is_some(), "{report:#}");
}

#[test]
fn why_names_the_ranks_of_a_simulated_hang() {
    let arguments = ["--demo", "--demo-speed", "20", "why", "--ask-ras"];
    let (code, stdout, stderr) = run(&arguments);
    assert_eq!((code, stderr.as_str()), (4, ""), "{stdout}");
    let heading = stdout.lines().next().expect("a heading");
    assert!(heading.contains("sft.py --fsdp --resume ckpt/last, 2 ranks on hgx-") && heading.ends_with("  proven"));
    assert!(stdout.contains("  culprit  rank 0, pid ") && stdout.contains(": never launched AllReduce "), "{stdout}");
    let (code, stdout, _) = run(&[&arguments[..], &["--json"]].concat());
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((code, &report["outcome"]), (4, &Value::from("proven")));
    assert_eq!(report["culprit"]["reason"], "other_path", "{report:#}");
    assert_eq!(report["culprit"]["ranks"].as_array().map(Vec::len), Some(2));
}

#[test]
fn why_queries_nccl_ras_only_for_a_job_that_was_seen_at_work() {
    let (code, stdout, _) = run(&["--demo", "--demo-speed", "20", "why"]);
    assert_eq!(code, 0, "{stdout}");
    let refusal = "not seen  NCCL RAS: this gpufleet has not seen the job at work; while a job starts, a query may crash it \
                   (NCCL issue 2346) (if the job has worked before: gpufleet why hgx-";
    assert!(stdout.contains(refusal), "{stdout}");
}

#[test]
fn errors_of_why_name_what_is_there() {
    let (code, _, stderr) = run(&["--demo", "why", "hgx-44:7"]);
    let expected = "gpufleet: no host `hgx-44` among the 6 selected ones\n  hint: did you mean `hgx-04`?\n";
    assert_eq!((code, stderr.as_str()), (2, expected));
    let (code, _, stderr) = run(&["--demo", "why", "hgx-01:7"]);
    assert_eq!(code, 1);
    let start = "gpufleet: hgx-01: no process with pid 7 uses a GPU\n  hint: those that do are ";
    assert!(stderr.starts_with(start), "{stderr}");
    let pid = stderr[start.len()..].split([',', '\n']).next().expect("a pid");
    let (code, _, stderr) = run(&["--demo", "why", &format!("hgx-01:{pid}")]);
    let expected = "gpufleet: hgx-01: the job belongs to alice, and gpufleet is logged in as dmitri: only its owner may \
                    examine a process\n  hint: ask alice to run `gpufleet why`\n";
    assert_eq!((code, stderr.as_str()), (1, expected));
}
