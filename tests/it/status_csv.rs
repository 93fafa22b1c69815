//! `gpufleet status --csv` with real sshds and of recordings.

use crate::lab::{Lab, gpufleet, start_gpufleet};
use crate::sshd::TIMEOUT;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _};

/// The header and the records of a CSV text, which must be complete.
#[track_caller]
fn parse(text: &str) -> (Vec<String>, Vec<Vec<String>>) {
    assert!(text.ends_with('\n'), "{text}");
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let header = reader.headers().expect("a header").iter().map(str::to_owned).collect();
    // The reader rejects records of another length.
    let records = reader.records().map(|record| record.expect("a record").iter().map(str::to_owned).collect());
    (header, records.collect())
}

#[test]
fn each_gpu_has_a_line_and_a_lost_host_is_named() {
    let mut lab = Lab::start(&["csv-1", "csv-2", "csv-3"]);
    lab.hosts[2].sshd.stop();
    let output = gpufleet(&["status", "--csv", &lab.hosts_toml("")]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let (header, records) = parse(&String::from_utf8(output.stdout).expect("UTF-8"));
    assert_eq!(
        header,
        [
            "timestamp",
            "host",
            "index",
            "name",
            "state",
            "utilization.gpu [%]",
            "memory.used [MiB]",
            "memory.total [MiB]",
            "temperature.gpu",
            "power.draw [W]",
            "enforced.power.limit [W]",
            "users"
        ]
    );
    assert_eq!(records.len(), 8);
    for (record, (host, index)) in records.iter().zip([("csv-1", 0), ("csv-1", 1), ("csv-1", 2), ("csv-1", 3)]) {
        assert_eq!((record[1].as_str(), record[2].as_str()), (host, index.to_string().as_str()));
    }
    assert_eq!(records[0][4..7], ["in_use", "97", "58368"].map(str::to_owned));
    // The name of the user may not be known yet.
    assert!(records[0][11] == lab.hosts[0].sshd.user() || records[0][11].starts_with("uid "), "{:?}", records[0]);
    assert_eq!(records[3][4..6], ["fault", "N/A"].map(str::to_owned), "this GPU is lost");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(stderr.starts_with("gpufleet: no lines of csv-3: nothing listens on "), "{stderr}");
}

#[test]
fn a_loop_ends_on_a_signal_after_a_whole_line() {
    let lab = Lab::start(&["loop-1"]);
    let columns = "timestamp,host,index,host.state,utilization.gpu";
    let mut child = start_gpufleet(&["status", "--csv", "--columns", columns, &lab.hosts_toml(""), "--loop", "0.2"]);
    let mut reader = BufReader::new(child.stdout.take().expect("piped"));
    let mut text = String::new();
    // The header and the four GPUs, three times.
    for _ in 0..13 {
        assert!(reader.read_line(&mut text).expect("reads") > 0, "{text}");
    }
    kill_process(Pid::from_child(&child), Signal::INT).expect("a signal");
    reader.read_to_string(&mut text).expect("reads");
    assert_eq!(child.wait().expect("ends").code(), Some(0));
    let (header, records) = parse(&text);
    assert_eq!(header.join(","), "timestamp,host,index,host.state,utilization.gpu [%]");
    assert!(records.len() >= 12 && records.len() % 4 == 0, "{text}");
    let times: BTreeSet<&String> = records.iter().map(|record| &record[0]).collect();
    assert_eq!(times.len(), records.len() / 4, "the GPUs of a sample have the same time");
    assert!(records.iter().filter(|record| record[2] == "0").all(|record| record[4] == "97"), "{text}");
}

#[test]
fn a_reader_that_goes_away_ends_the_loop() {
    let mut child = start_gpufleet(&["--demo", "status", "--csv", "--loop", "0.2"]);
    let mut reader = BufReader::new(child.stdout.take().expect("piped"));
    reader.read_line(&mut String::new()).expect("reads");
    drop(reader);
    crate::lab::wait_gone(&[child.id()], TIMEOUT);
    let output = child.wait_with_output().expect("has ended");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "gpufleet: no lines of hgx-06: driver and library versions differ: the driver was updated without a reboot\n"
    );
}

#[test]
fn a_recording_gives_every_sample_or_one_state_per_period() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("demo.jsonl").display().to_string();
    let recorded = gpufleet(&["--demo", "--demo-hosts", "2", "--demo-speed", "10", "record", &path, "--for", "60"]);
    assert_eq!(recorded.status.code(), Some(0), "{recorded:?}");
    let lines = std::fs::read_to_string(&path).expect("a recording");
    let snapshots = lines.lines().filter(|line| line.contains("\"snapshot\":")).count();
    let columns = "timestamp,host,index,state,utilization.gpu,users";
    let run = |more: &[&str]| {
        let output = gpufleet(&[&["status", "--csv", "--replay", &path, "--columns", columns], more].concat());
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &[][..]));
        parse(&String::from_utf8(output.stdout).expect("UTF-8")).1
    };
    let all = run(&[]);
    assert!(snapshots >= 4 && all.len() == snapshots * 8, "{} lines of {snapshots} samples", all.len());
    assert!(all.is_sorted_by_key(|record| record[0].clone()), "in the order of time");
    assert!(all.iter().any(|record| record[4] != "N/A" && !record[5].is_empty()));
    let periods = run(&["--loop", "20"]);
    let seconds = |record: &[String]| -> f64 {
        let time = record[0].split('T').nth(1).and_then(|time| time.strip_suffix('Z')).expect("a time");
        time.split(':').fold(0.0, |sum, part| sum * 60.0 + part.parse::<f64>().expect("a number"))
    };
    let times: Vec<f64> = periods.chunks(16).map(|chunk| seconds(&chunk[0])).collect();
    assert!(times.len() >= 2 && periods.len() == times.len() * 16, "{periods:?}");
    let steps = times.windows(2).map(|pair| (pair[1] - pair[0]).rem_euclid(86_400.0));
    assert!(steps.into_iter().all(|step| (step - 20.0).abs() < 0.01), "{times:?}");
}

#[test]
fn a_recording_that_cannot_be_read_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("broken.jsonl");
    std::fs::write(&path, "{\"recording\":1,\"started\":\"2026-03-01T13:44:00Z\"}\n{\"t\":1}\n{}\n").expect("writes");
    for (name, cause) in [("broken.jsonl", "line 2: "), ("missing.jsonl", "No such file or directory")] {
        let shown = folder.path().join(name).display().to_string();
        let output = gpufleet(&["status", "--csv", "--replay", &shown]);
        assert_eq!(output.status.code(), Some(1));
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(stderr.starts_with(&format!("gpufleet: cannot replay {shown}: {cause}")), "{stderr}");
    }
}
