use crate::diagnosis::testing::{RuleTester, TestSample};
use crate::fleet::fixture::{TestProcess, gpus, process};
use crate::wire::{Filesystem, ProcessState, Snapshot};

fn quiet(tester: &mut RuleTester) -> TestSample {
    TestSample { gpus: vec![tester.gpu(0, 70.0, 0, 0)], processes: vec![] }
}

fn with_host(tester: &mut RuleTester, seconds: f64, edit: impl Fn(&mut Snapshot, f64)) {
    tester.run_edited(seconds, |tester, _| quiet(tester), edit);
}

fn memory(percent: u64) -> impl Fn(&mut Snapshot, f64) {
    move |snapshot, _| {
        snapshot.host.memory_total_bytes = Some(1000 << 30);
        snapshot.host.memory_available_bytes = Some((1000 - 10 * percent) << 30);
    }
}

#[test]
fn memory_warns_at_ninety_and_is_over_below_eighty() {
    let mut tester = RuleTester::new(gpus(0..1));
    with_host(&mut tester, 300.0, memory(85));
    assert_eq!(tester.fired(), []);
    with_host(&mut tester, 60.0, memory(91));
    assert_eq!(tester.firing(), [("host-ram-low", "warn")]);
    with_host(&mut tester, 60.0, memory(85));
    assert_eq!(tester.firing(), [("host-ram-low", "warn")]);
    with_host(&mut tester, 60.0, memory(99));
    assert_eq!(tester.firing(), [("host-ram-low", "crit")]);
    with_host(&mut tester, 60.0, memory(70));
    assert_eq!((tester.firing(), tester.notified()), (vec![], 2));
}

#[test]
fn a_value_that_swings_for_an_hour_is_told_once() {
    let mut tester = RuleTester::new(gpus(0..1));
    for _ in 0..20 {
        with_host(&mut tester, 90.0, memory(92));
        with_host(&mut tester, 90.0, memory(70));
    }
    assert_eq!(tester.notified(), 1);
    with_host(&mut tester, 90.0, memory(92));
    assert!(tester.finding("host-ram-low").is_flapping);
    // Held until it has been steady for half an hour.
    with_host(&mut tester, 1000.0, memory(70));
    assert_eq!(tester.firing(), [("host-ram-low", "warn")]);
    with_host(&mut tester, 1000.0, memory(70));
    assert_eq!(tester.firing(), []);
}

#[test]
fn a_kill_names_what_vanished() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run_edited(
        900.0,
        |tester, _| TestSample {
            gpus: vec![tester.gpu(97, 500.0, 40, 40)],
            processes: vec![process(7, "python train.py", &[(0, 40)])],
        },
        |snapshot, _| snapshot.host.oom_kills = Some(4),
    );
    assert_eq!(tester.fired(), [], "kills of the past");
    with_host(&mut tester, 20.0, |snapshot, _| snapshot.host.oom_kills = Some(5));
    assert_eq!(tester.firing(), [("job-ended", "warn"), ("oom-kill", "warn")]);
    assert_eq!(
        tester.finding("oom-kill").sentence,
        "the kernel killed a process because memory ran out; gone from its GPUs: train.py (alice, pid 7)"
    );
    // A counter that falls is another boot's.
    with_host(&mut tester, 20.0, |snapshot, _| snapshot.host.oom_kills = Some(0));
    assert_eq!(tester.notified(), 2);
}

fn disk(percent: u64) -> impl Fn(&mut Snapshot, f64) {
    move |snapshot, _| {
        snapshot.host.filesystems = vec![Filesystem {
            mount_point: "/home".into(),
            kind: "ext4".into(),
            total_bytes: Some(100 << 30),
            available_bytes: Some((100 - percent) << 30),
            ..Filesystem::default()
        }];
    }
}

#[test]
fn a_disk_that_fills_warns_and_one_that_was_full_is_a_note() {
    let mut tester = RuleTester::new(gpus(0..1));
    with_host(&mut tester, 60.0, disk(89));
    with_host(&mut tester, 60.0, disk(93));
    assert_eq!((tester.firing(), tester.notified()), (vec![("disk-full", "warn")], 1));
    let mut tester = RuleTester::new(gpus(0..1));
    with_host(&mut tester, 60.0, disk(93));
    assert_eq!((tester.firing(), tester.notified()), (vec![("disk-full", "warn")], 0));
    assert!(tester.finding("disk-full").is_preexisting && !tester.finding("disk-full").is_alerting());
    with_host(&mut tester, 60.0, disk(99));
    assert_eq!((tester.firing(), tester.notified()), (vec![("disk-full", "crit")], 1), "worse than it was");
}

#[test]
fn a_hung_mount_absorbs_the_jobs_that_wait_for_it() {
    let mut tester = RuleTester::new(gpus(0..1));
    let jobs: Vec<TestProcess> = (7..13)
        .map(|pid| {
            let mut job = process(pid, "python train.py", &[(0, 10)]);
            job.reading.state = Some(ProcessState::DiskSleep);
            job.reading.cpu_percent = Some(0.0);
            job
        })
        .collect();
    tester.run_edited(
        400.0,
        |tester, _| TestSample { gpus: vec![tester.gpu(0, 120.0, 0, 60)], processes: jobs.clone() },
        |snapshot, t| {
            snapshot.host.filesystems = vec![Filesystem {
                mount_point: "/data".into(),
                kind: "nfs4".into(),
                silent_seconds: Some(t as f32),
                timeouts: Some((t / 60.0) as u32),
                ..Filesystem::default()
            }];
        },
    );
    assert_eq!(tester.fired(), [("nfs-hang", "warn"), ("nfs-hang", "crit")]);
    assert_eq!(tester.firing(), [("nfs-hang", "crit")]);
    let finding = tester.finding("nfs-hang");
    assert_eq!(finding.processes.len(), 6);
    assert!(finding.sentence.contains("6 in disk sleep: train.py (alice, pid 7), "), "{}", finding.sentence);
}
