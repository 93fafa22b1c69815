use crate::config::thresholds::Thresholds;
use crate::diagnosis::testing::{RuleTester, TestSample};
use crate::diagnosis::{RuleId, Severity};
use crate::fleet::HostId;
use crate::fleet::fixture::{TestProcess, gpus, process};
use crate::wire::{Filesystem, GpuProcessKind, Owner, ProcessState, SlurmJob, Snapshot};

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
fn low_memory_warns_at_ninety_percent_and_clears_below_eighty() {
    let mut tester = RuleTester::new(gpus(0..1));
    with_host(&mut tester, 300.0, memory(85));
    assert_eq!(tester.fired(), []);
    with_host(&mut tester, 60.0, memory(95));
    assert_eq!(tester.firing(), [("host-ram-low", "warn")]);
    with_host(&mut tester, 60.0, memory(85));
    assert_eq!(tester.firing(), [("host-ram-low", "warn")]);
    with_host(&mut tester, 60.0, memory(99));
    assert_eq!(tester.firing(), [("host-ram-low", "crit")]);
    with_host(&mut tester, 60.0, memory(70));
    assert_eq!((tester.firing(), tester.notified()), (vec![], 2));
}

#[test]
fn nine_tenths_of_a_large_memory_are_info_and_memory_that_was_set_aside_is_too() {
    let severity = |percent: u64, pressure: Option<f32>| {
        let mut tester = RuleTester::new(gpus(0..1));
        with_host(&mut tester, 300.0, |snapshot, t| {
            memory(percent)(snapshot, t);
            snapshot.host.pressure_memory_percent = pressure;
        });
        tester.firing()
    };
    assert_eq!(severity(92, None), [("host-ram-low", "info")], "80 GiB are available");
    assert_eq!(severity(97, None), [("host-ram-low", "warn")]);
    assert_eq!(severity(97, Some(0.0)), [("host-ram-low", "info")], "nothing waits, and it was so from the start");
    assert_eq!(severity(97, Some(4.0)), [("host-ram-low", "warn")]);
    let mut tester = RuleTester::new(gpus(0..1));
    for percent in [60, 97] {
        with_host(&mut tester, 300.0, |snapshot, t| {
            memory(percent)(snapshot, t);
            snapshot.host.pressure_memory_percent = Some(0.0);
        });
    }
    assert_eq!(tester.firing(), [("host-ram-low", "warn")], "it became less");
}

#[test]
fn a_disk_that_something_fills_warns_an_hour_before_it_is_full() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 30.0;
    with_host(&mut tester, 3000.0, disk(50));
    let filling = |snapshot: &mut Snapshot, t: f64| disk(50 + 3 * (t / 600.0) as u64)(snapshot, t);
    with_host(&mut tester, 6000.0, filling);
    assert_eq!(tester.fired(), [], "20 % are left, and it loses 18 % an hour");
    with_host(&mut tester, 1300.0, |snapshot, t| filling(snapshot, 6000.0 + t));
    assert_eq!(tester.firing(), [("disk-full", "warn")]);
    assert_eq!(
        tester.finding("disk-full").sentence,
        "/home lost 18 GiB within 60 min and will be full in 47 min at this rate: 14 GiB of 100 GiB are free"
    );
    with_host(&mut tester, 4000.0, |snapshot, t| filling(snapshot, 7300.0_f64.min(7300.0 + t)));
    assert_eq!(tester.firing(), [], "it was a copy");
}

#[test]
fn memory_that_shrinks_steadily_warns_before_it_is_full() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 30.0;
    with_host(&mut tester, 5600.0, |snapshot, t| memory(10 + (t / 100.0) as u64)(snapshot, t));
    assert_eq!(tester.firing(), [("host-ram-low", "warn")]);
    let sentence = tester.finding("host-ram-low").sentence.to_string();
    assert!(
        sentence.starts_with("the available memory fell steadily by 54")
            && sentence.ends_with(" GiB of 1000 GiB are left, enough for 58 min at this rate"),
        "{sentence}"
    );
}

#[test]
fn a_flapping_finding_notifies_once() {
    let mut tester = RuleTester::new(gpus(0..1));
    for _ in 0..20 {
        with_host(&mut tester, 90.0, memory(95));
        with_host(&mut tester, 90.0, memory(70));
    }
    assert_eq!(tester.notified(), 1);
    with_host(&mut tester, 90.0, memory(95));
    assert!(tester.finding("host-ram-low").is_flapping);
    // It stays firing until it has been steady for 30 minutes.
    with_host(&mut tester, 1000.0, memory(70));
    assert_eq!(tester.firing(), [("host-ram-low", "warn")]);
    with_host(&mut tester, 1000.0, memory(70));
    assert_eq!(tester.firing(), []);
}

#[test]
fn an_oom_kill_names_the_ended_job() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run_edited(
        900.0,
        |tester, _| TestSample {
            gpus: vec![tester.gpu(97, 500.0, 40, 40)],
            processes: vec![process(7, "python train.py", &[(0, 40)])],
        },
        |snapshot, _| snapshot.host.oom_kills = Some(4),
    );
    assert_eq!(tester.fired(), [], "earlier kills");
    with_host(&mut tester, 20.0, |snapshot, _| snapshot.host.oom_kills = Some(5));
    assert_eq!(tester.firing(), [("job-ended", "warn"), ("oom-kill", "warn")]);
    assert_eq!(
        tester.finding("oom-kill").sentence,
        "the kernel killed a process because memory ran out; no longer on a GPU: train.py (alice, pid 7)"
    );
    // A counter that falls was reset by a reboot.
    with_host(&mut tester, 20.0, |snapshot, _| snapshot.host.oom_kills = Some(0));
    assert_eq!(tester.notified(), 2);
}

#[test]
fn another_machine_under_the_same_name_is_no_reboot() {
    let run = |uptime: f64| {
        let mut tester = RuleTester::new(gpus(0..1));
        let busy = |tester: &mut RuleTester, _: f64| {
            let mut display = process(9, "Xorg", &[(0, 1)]);
            display.gpus[0].kind = Some(GpuProcessKind::Graphics);
            TestSample {
                gpus: vec![tester.gpu(97, 500.0, 40, 40)],
                processes: vec![process(7, "python train.py", &[(0, 40)]), display],
            }
        };
        tester.run(900.0, busy);
        tester.reboot(0);
        let empty =
            |tester: &mut RuleTester, _: f64| TestSample { gpus: vec![tester.gpu(0, 60.0, 0, 0)], processes: vec![] };
        tester.run_edited(60.0, empty, |snapshot, passed| snapshot.host.uptime_seconds = Some(uptime + passed));
        tester
    };
    assert_eq!(run(90_000.0).fired(), [], "it was up before");
    let tester = run(8.0);
    let sentence = &tester.finding("host-rebooted").sentence;
    assert!(sentence.ends_with("; 1 program on its GPUs ended"), "a display server does not count: {sentence}");
}

#[test]
fn a_reboot_that_ends_a_job_at_work_warns() {
    let severity = |utilization: u8| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(900.0, |tester, _| TestSample {
            gpus: vec![tester.gpu(utilization, 300.0, 30, 40)],
            processes: vec![process(7, "python train.py", &[(0, 40)])],
        });
        tester.reboot(0);
        tester.run(60.0, |tester, _| TestSample { gpus: vec![tester.gpu(0, 60.0, 0, 0)], processes: vec![] });
        tester.finding("host-rebooted").severity.word()
    };
    assert_eq!([severity(95), severity(0)], ["warn", "info"]);
}

#[test]
fn a_reboot_is_info_also_without_a_job() {
    let mut tester = RuleTester::new(gpus(0..1));
    let empty =
        |tester: &mut RuleTester, _: f64| TestSample { gpus: vec![tester.gpu(0, 60.0, 0, 0)], processes: vec![] };
    tester.run(300.0, empty);
    tester.connect(0);
    tester.run(60.0, empty);
    assert_eq!(tester.fired(), [], "a new connection is no reboot");
    tester.reboot(0);
    tester.run(60.0, empty);
    assert_eq!(tester.firing(), [("host-rebooted", "info")]);
    let sentence = &tester.finding("host-rebooted").sentence;
    assert_eq!(*sentence, "the host was rebooted, after 10 s without data; its GPUs were not in use");
    assert_eq!(tester.notified(), 0);
    tester.run(3600.0, empty);
    assert_eq!(tester.firing(), []);
}

#[test]
fn too_many_tasks_for_the_cpus_are_info() {
    let busy = |load: f32, percent: f32| {
        move |snapshot: &mut Snapshot, _: f64| {
            snapshot.host.load_1 = Some(load);
            snapshot.host.cpu_percent = Some(percent);
        }
    };
    for (load, percent, fires) in [(150.0, 100.0, true), (80.0, 100.0, false), (150.0, 30.0, false)] {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.set_cpu_count(64);
        with_host(&mut tester, 700.0, busy(load, percent));
        let expected: &[(&str, &str)] = if fires { &[("host-overloaded", "info")] } else { &[] };
        assert_eq!(tester.firing(), expected, "{load} {percent}");
    }
    let mut tester = RuleTester::new(gpus(0..1));
    tester.set_cpu_count(64);
    with_host(&mut tester, 3600.0, |snapshot, t| {
        busy(150.0, if ((t / 10.0) as u32).is_multiple_of(12) { 85.0 } else { 94.0 })(snapshot, t);
    });
    assert_eq!(tester.firing(), [("host-overloaded", "info")], "a moment below the limit does not end it");
}

#[test]
fn too_many_tasks_warn_if_they_slow_a_job() {
    let fired = |percent: u8| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.set_cpu_count(64);
        tester.interval = 5.0;
        let sample = |tester: &mut RuleTester, percent: u8| TestSample {
            gpus: vec![tester.gpu(percent, 400.0, 30, 40)],
            processes: vec![process(7, "python train.py", &[(0, 40)])],
        };
        tester.run(2400.0, |tester, _| sample(tester, 97));
        tester.run_edited(
            2000.0,
            |tester, _| sample(tester, percent),
            |snapshot, _| (snapshot.host.load_1, snapshot.host.cpu_percent) = (Some(230.0), Some(99.0)),
        );
        tester.firing()
    };
    assert!(fired(60).contains(&("host-overloaded", "warn")), "{:?}", fired(60));
    assert!(fired(90).contains(&("host-overloaded", "info")), "{:?}", fired(90));
}

#[test]
fn a_host_that_waits_for_swap_warns() {
    let swapping = |pressure: f32, free: u64| {
        move |snapshot: &mut Snapshot, _: f64| {
            snapshot.host.pressure_memory_percent = Some(pressure);
            snapshot.host.swap_total_bytes = Some(64 << 30);
            snapshot.host.swap_free_bytes = Some(free << 30);
        }
    };
    for (pressure, free, fires) in [(45.0, 20, true), (3.0, 20, false), (45.0, 64, false)] {
        let mut tester = RuleTester::new(gpus(0..1));
        with_host(&mut tester, 300.0, swapping(pressure, free));
        let expected: &[(&str, &str)] = if fires { &[("host-thrashing", "warn")] } else { &[] };
        assert_eq!(tester.firing(), expected, "{pressure} {free}");
    }
}

#[test]
fn gpus_that_slurm_allocated_and_nobody_uses_are_one_finding() {
    let allocated = |snapshot: &mut Snapshot, _: f64| snapshot.host.slurm_allocated_gpus = Some(vec![0, 1]);
    let mut tester = RuleTester::new(gpus(0..3));
    let idle = |tester: &mut RuleTester, _: f64| TestSample {
        gpus: (0..3).map(|_| tester.gpu(0, 70.0, 0, 0)).collect(),
        processes: vec![],
    };
    tester.run_edited(1700.0, idle, allocated);
    assert_eq!(tester.fired(), []);
    tester.run_edited(200.0, idle, allocated);
    assert_eq!(tester.firing(), [("slurm-unused", "info")]);
    let sentence = tester.finding("slurm-unused").sentence.to_string();
    assert!(
        sentence.starts_with("Slurm has allocated GPUs 0,1 but no process has used them for up to 3"),
        "{sentence}"
    );
    tester.interval = 60.0;
    tester.run_edited(14_400.0, idle, allocated);
    assert_eq!(tester.firing(), [("slurm-unused", "warn")]);
    tester.reboot(0);
    tester.run_edited(1200.0, idle, allocated);
    assert!(!tester.firing().iter().any(|(rule, _)| *rule == "slurm-unused"), "since the reboot");
    tester.run_edited(900.0, idle, allocated);
    assert!(tester.firing().contains(&("slurm-unused", "info")));
    tester.run_edited(300.0, idle, |snapshot, _| snapshot.host.slurm_allocated_gpus = Some(vec![]));
    assert!(!tester.firing().iter().any(|(rule, _)| *rule == "slurm-unused"));
}

#[test]
fn gpus_of_slurm_that_nobody_uses_warn_sooner_where_the_cpus_rest() {
    let fired = |seconds: f64, percent: f32, allocated: &[u32]| {
        let mut tester = RuleTester::new(gpus(0..2));
        tester.interval = 30.0;
        let idle = |tester: &mut RuleTester, _: f64| TestSample {
            gpus: (0..2).map(|_| tester.gpu(0, 70.0, 0, 0)).collect(),
            processes: vec![],
        };
        tester.run_edited(seconds, idle, |snapshot, t| {
            snapshot.host.slurm_allocated_gpus = Some(allocated.to_vec());
            // A job of a minute, such as the index of files that a system makes at night, is no work for the GPUs.
            let is_busy = (1200.0..1260.0).contains(&t);
            snapshot.host.cpu_percent = Some(if is_busy { 15.0 } else { percent });
        });
        (tester.firing(), tester.finding("slurm-unused").sentence.ends_with(", and the CPUs of the host rest"))
    };
    assert_eq!(fired(2700.0, 1.0, &[0, 1]), (vec![("slurm-unused", "warn")], true));
    assert_eq!(fired(2700.0, 20.0, &[0, 1]), (vec![("slurm-unused", "info")], false));
    let one_in_use = [0, 1, 7];
    assert_eq!(fired(2700.0, 1.0, &one_in_use), (vec![("slurm-unused", "info")], false), "or lost");
    assert_eq!(fired(5700.0, 1.0, &one_in_use), (vec![("slurm-unused", "warn")], true), "most of them");
    assert_eq!(fired(5700.0, 1.0, &[0, 1, 5, 6, 7]), (vec![("slurm-unused", "info")], false), "less than half");
    assert_eq!(fired(7000.0, 20.0, &one_in_use), (vec![("slurm-unused", "info")], false));
    assert_eq!(fired(7300.0, 20.0, &one_in_use), (vec![("slurm-unused", "warn")], false), "the CPUs work");
    let mut tester = RuleTester::new(gpus(0..2));
    tester.interval = 30.0;
    tester.run_edited(
        2700.0,
        |tester, _| TestSample {
            gpus: (0..2).map(|_| tester.gpu(0, 70.0, 0, 0)).collect(),
            processes: vec![process(7, "python train.py", &[(0, 0)])],
        },
        |snapshot, _| {
            snapshot.host.slurm_allocated_gpus = Some(vec![0, 1]);
            snapshot.host.cpu_percent = Some(1.0);
        },
    );
    assert!(!tester.firing().contains(&("slurm-unused", "warn")), "a rank waits there: {:?}", tester.firing());
}

#[test]
fn ranks_in_reserve_on_unused_gpus_of_slurm_are_listed() {
    let run = |works: bool, log_age: f64, job: &str| {
        let mut tester = RuleTester::of(vec![gpus(0..2), gpus(0..2)], Thresholds::default());
        tester.interval = 30.0;
        for step in 0..250 {
            let log_age = log_age + f64::from(step % 2) * 30.0;
            for (host, job, reserve) in [(0, "3385", true), (1, job, false)] {
                let rests = reserve || !works;
                let gpu = |tester: &mut RuleTester| {
                    if rests { tester.gpu(0, 118.0, 0, 1) } else { tester.gpu(99, 640.0, 40, 70) }
                };
                let rank = |gpu: u16| {
                    let mut rank =
                        process(7 + u32::from(gpu), "python train.py", &[(gpu, if reserve { 1 } else { 70 })]);
                    rank.reading.cpu_percent = Some(if rests { 1.0 } else { 100.0 });
                    rank.reading.log_age_seconds = Some(log_age);
                    rank.facts.owner = Some(Owner::Slurm { job: job.into(), step: None });
                    rank
                };
                let gpus = (0..2).map(|_| gpu(&mut tester)).collect();
                let sample = TestSample { gpus, processes: (0..2).map(rank).collect() };
                tester.send(host, &sample, |snapshot| {
                    snapshot.host.slurm_allocated_gpus = Some(vec![0, 1]);
                    snapshot.host.cpu_percent = Some(5.0);
                });
            }
            tester.wait(30.0);
        }
        let unused = tester.findings().into_iter().filter(|finding| finding.rule == RuleId::SlurmUnused);
        unused.map(|finding| (finding.host, finding.severity)).find(|(host, _)| *host == HostId(0)).map(|found| found.1)
    };
    assert_eq!(run(true, 10.0, "3385"), Some(Severity::Info));
    assert_eq!(run(true, 4000.0, "3385"), Some(Severity::Warn), "they do not say that they live");
    assert_eq!(run(false, 10.0, "3385"), Some(Severity::Warn), "nobody computes");
    assert_eq!(run(true, 10.0, "3390"), Some(Severity::Warn), "another job computes");
}

#[test]
fn unused_gpus_belong_to_the_only_job_of_slurm_if_it_does_not_tell() {
    let users = |jobs: &[&str], told: Option<Vec<SlurmJob>>| {
        let mut tester = RuleTester::new(gpus(0..3));
        tester.interval = 30.0;
        let run = |(gpu, job): (u16, &&str)| {
            let mut process = process(7 + u32::from(gpu), "pmemd.cuda -O", &[(gpu, 20)]);
            process.facts.owner = Some(Owner::Slurm { job: (*job).into(), step: None });
            process
        };
        let processes: Vec<TestProcess> = (0..).zip(jobs).map(run).collect();
        tester.run_edited(
            2100.0,
            |tester, _| TestSample {
                gpus: (0..3).map(|gpu| tester.gpu(if gpu < 2 { 99 } else { 0 }, 400.0, 40, 20)).collect(),
                processes: processes.clone(),
            },
            |snapshot, _| {
                snapshot.host.slurm_allocated_gpus = Some(vec![0, 1, 2]);
                snapshot.host.slurm_jobs = told.clone();
            },
        );
        let finding = tester.finding("slurm-unused");
        (finding.user.as_deref().map(str::to_owned), finding.processes.len())
    };
    assert_eq!(users(&["3385"], None), (Some("alice".to_owned()), 1));
    assert_eq!(users(&["3385", "3390"], None), (None, 0), "one of two");
    let told = SlurmJob { job: "3385".into(), user: Some("alice".into()), gpus: vec![0, 1] };
    assert_eq!(users(&["3385"], Some(vec![told])), (None, 0), "Slurm tells that it holds others");
}

#[test]
fn unused_gpus_of_slurm_name_their_jobs_and_users() {
    let job = |job: &str, user: &str, gpus: &[u32]| SlurmJob {
        job: job.into(),
        user: Some(user.into()),
        gpus: gpus.to_vec(),
    };
    let sentence = |jobs: Vec<SlurmJob>| {
        let mut tester = RuleTester::new(gpus(0..3));
        let idle = |tester: &mut RuleTester, _: f64| TestSample {
            gpus: (0..3).map(|_| tester.gpu(0, 70.0, 0, 0)).collect(),
            processes: vec![],
        };
        tester.run_edited(1900.0, idle, |snapshot, _| {
            snapshot.host.slurm_allocated_gpus = Some(vec![0, 1]);
            snapshot.host.slurm_jobs = Some(jobs.clone());
        });
        let finding = tester.finding("slurm-unused");
        let sentence = finding.sentence.split(" but no process").next().unwrap_or_default().to_owned();
        (sentence, finding.user.as_deref().map(str::to_owned))
    };
    let named = |text: &str, user: Option<&str>| (text.to_owned(), user.map(str::to_owned));
    assert_eq!(
        sentence(vec![job("3385", "ann", &[0, 1]), job("9", "eve", &[2])]),
        named("Slurm has allocated GPUs 0,1 to job 3385 (ann)", Some("ann"))
    );
    assert_eq!(
        sentence(vec![job("3385", "ann", &[0]), job("3390", "bob", &[1])]),
        named("Slurm has allocated GPUs 0,1 to jobs 3385 (ann), 3390 (bob)", None)
    );
    assert_eq!(sentence(vec![]), named("Slurm has allocated GPUs 0,1", None));
    let many: Vec<SlurmJob> = (0..7).map(|number: u32| job(&number.to_string(), "ann", &[1])).collect();
    assert_eq!(
        sentence(many),
        named("Slurm has allocated GPUs 0,1 to jobs 0 (ann), 1 (ann), 2 (ann), 3 (ann) and 3 more", Some("ann"))
    );
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
fn a_disk_that_was_already_full_is_preexisting() {
    let mut tester = RuleTester::new(gpus(0..1));
    with_host(&mut tester, 60.0, disk(94));
    with_host(&mut tester, 60.0, disk(96));
    assert_eq!((tester.firing(), tester.notified()), (vec![("disk-full", "warn")], 1));
    let mut tester = RuleTester::new(gpus(0..1));
    with_host(&mut tester, 60.0, disk(96));
    assert_eq!((tester.firing(), tester.notified()), (vec![("disk-full", "warn")], 0));
    assert!(tester.finding("disk-full").is_preexisting && !tester.finding("disk-full").is_alerting());
    with_host(&mut tester, 60.0, disk(99));
    assert_eq!(
        (tester.firing(), tester.notified()),
        (vec![("disk-full", "crit")], 1),
        "worse than at the first sample"
    );
}

#[test]
fn a_full_disk_of_a_file_server_that_answers_late_is_preexisting() {
    let mut tester = RuleTester::new(gpus(0..1));
    with_host(&mut tester, 30.0, |snapshot, t| {
        disk(96)(snapshot, t);
        let filesystem = &mut snapshot.host.filesystems[0];
        (filesystem.available_bytes, filesystem.total_bytes, filesystem.silent_seconds) = (None, None, Some(6.0));
    });
    with_host(&mut tester, 60.0, disk(96));
    assert_eq!((tester.firing(), tester.notified()), (vec![("disk-full", "warn")], 0));
}

#[test]
fn a_disk_that_the_host_tells_of_late_is_preexisting_for_some_minutes() {
    for (first_told_after, notified) in [(20.0, 0), (290.0, 0), (310.0, 1)] {
        let mut tester = RuleTester::new(gpus(0..1));
        with_host(&mut tester, first_told_after, |_, _| {});
        with_host(&mut tester, 60.0, disk(96));
        assert_eq!((tester.firing(), tester.notified()), (vec![("disk-full", "warn")], notified), "{first_told_after}");
    }
}

#[test]
fn the_next_step_quotes_the_mount_point() {
    for (mount_point, disk_next, nfs_next) in [
        ("/home", "du -xhd1 /home", "findmnt /home; nfsstat -m"),
        ("/a; rm -rf ~", "du -xhd1 '/a; rm -rf ~'", "findmnt '/a; rm -rf ~'; nfsstat -m"),
        ("$(id)", "df -h", "findmnt; nfsstat -m"),
    ] {
        let mut tester = RuleTester::new(gpus(0..1));
        with_host(&mut tester, 400.0, |snapshot, t| {
            snapshot.host.filesystems = vec![Filesystem {
                mount_point: mount_point.into(),
                silent_seconds: Some(t as f32),
                ..Filesystem::default()
            }];
        });
        assert_eq!(tester.finding("nfs-hang").next_check, nfs_next);
        let mut tester = RuleTester::new(gpus(0..1));
        with_host(&mut tester, 60.0, |snapshot, t| {
            disk(99)(snapshot, t);
            snapshot.host.filesystems[0].mount_point = mount_point.into();
        });
        assert_eq!(tester.finding("disk-full").next_check, disk_next);
    }
}

#[test]
fn memory_that_a_gpu_shares_with_the_host_warns_from_95_percent() {
    let fired = |is_shared: bool, available: u64| {
        let mut infos = gpus(0..1);
        infos[0].unified_memory = Some(is_shared);
        let mut tester = RuleTester::new(infos);
        tester.run_edited(
            120.0,
            |tester, _| TestSample { gpus: vec![tester.gpu(0, 20.0, 0, 0)], processes: vec![] },
            |snapshot, _| {
                snapshot.host.memory_total_bytes = Some(120 << 30);
                snapshot.host.memory_available_bytes = Some(available << 30);
            },
        );
        tester.fired()
    };
    assert_eq!((fired(false, 10), fired(true, 10)), (vec![("host-ram-low", "warn")], vec![]));
    assert_eq!(fired(true, 5), [("host-ram-low", "warn")]);
}

#[test]
fn a_thrashing_host_inhibits_the_finding_about_a_process_in_disk_sleep() {
    let mut tester = RuleTester::new(gpus(0..1));
    let mut job = process(7, "python train.py", &[(0, 10)]);
    job.reading.state = Some(ProcessState::DiskSleep);
    job.reading.cpu_percent = Some(0.0);
    tester.run_edited(
        900.0,
        |tester, _| TestSample { gpus: vec![tester.gpu(0, 120.0, 0, 60)], processes: vec![job.clone()] },
        |snapshot, _| {
            snapshot.host.pressure_memory_percent = Some(70.0);
            snapshot.host.swap_total_bytes = Some(64 << 30);
            snapshot.host.swap_free_bytes = Some(40 << 30);
        },
    );
    assert_eq!(tester.firing(), [("host-thrashing", "warn")]);
}

#[test]
fn a_hung_mount_inhibits_the_findings_of_waiting_jobs() {
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
    assert_eq!(tester.fired(), [("nfs-hang", "info"), ("nfs-hang", "warn"), ("nfs-hang", "crit")]);
    assert_eq!(tester.firing(), [("nfs-hang", "crit")]);
    let finding = tester.finding("nfs-hang");
    assert_eq!(finding.processes.len(), 6);
    assert!(finding.sentence.contains("6 waiting in disk sleep: train.py (alice, pid 7), "), "{}", finding.sentence);
}

/// The severity and sentence of slurm-unused. Slurm allocates GPUs 0 to 2 after ten minutes, which changes the load of the 64 CPUs from
/// `before` to `now` percent. `jobs` are the GPUs in use, and whether their jobs start with that allocation.
fn unused_after(seconds: f64, before: f32, now: f32, jobs: &[(u16, bool)]) -> (Option<Severity>, String) {
    let mut tester = RuleTester::new(gpus(0..4));
    tester.set_cpu_count(64);
    tester.interval = 30.0;
    let run = |(gpu, starts_later): (u16, bool), pid: u32| {
        let mut run = process(pid, "python train.py", &[(gpu, 20)]);
        run.facts.owner = Some(Owner::Slurm { job: if starts_later { "99" } else { "7" }.into(), step: None });
        run
    };
    tester.run_edited(
        600.0 + seconds,
        |tester, t| TestSample {
            gpus: (0..4)
                .map(|gpu| {
                    let works = jobs.iter().any(|(on, starts_later)| *on == gpu && (!starts_later || t >= 600.0));
                    if works { tester.gpu(97, 500.0, 40, 20) } else { tester.gpu(0, 70.0, 0, 0) }
                })
                .collect(),
            processes: (7..)
                .zip(jobs)
                .filter(|(_, (_, starts_later))| !starts_later || t >= 600.0)
                .map(|(pid, job)| run(*job, pid))
                .collect(),
        },
        |snapshot, t| {
            snapshot.host.slurm_allocated_gpus = Some(if t < 600.0 { vec![3] } else { vec![0, 1, 2, 3] });
            snapshot.host.cpu_percent = Some(if t < 600.0 { before } else { now });
        },
    );
    let unused = tester.findings().into_iter().find(|finding| finding.rule == RuleId::SlurmUnused);
    unused.map_or((None, String::new()), |finding| (Some(finding.severity), finding.sentence.to_string()))
}

#[test]
fn a_program_that_computes_on_the_cpus_beside_its_gpus_warns_after_75_minutes() {
    let others = [(1, false), (2, false), (3, false)];
    let (severity, sentence) = unused_after(4700.0, 10.0, 35.0, &others);
    assert_eq!(severity, Some(Severity::Warn));
    assert!(sentence.ends_with(", while 16 more CPU cores are busy than before"), "{sentence}");
    assert_eq!(unused_after(4400.0, 10.0, 35.0, &others).0, Some(Severity::Info), "it may prepare data");
    assert_eq!(unused_after(4700.0, 10.0, 14.0, &others).0, Some(Severity::Info), "fewer than three cores");
    let severity = |seconds: f64| unused_after(seconds, 10.0, 35.0, &others[1..]).0;
    assert_eq!((severity(3800.0), severity(4000.0)), (Some(Severity::Info), Some(Severity::Warn)), "two GPUs");
}

#[test]
fn a_gpu_that_was_never_used_and_little_work_on_the_cpus_warn_after_two_hours() {
    let severity = |seconds: f64| unused_after(seconds, 10.0, 11.0, &[(1, false), (2, false), (3, false)]).0;
    assert_eq!((severity(6900.0), severity(7100.0)), (Some(Severity::Info), Some(Severity::Warn)));
}

#[test]
fn gpus_of_a_job_that_uses_only_one_of_them_warn_after_an_hour() {
    let severity = |seconds: f64, jobs: &[(u16, bool)]| unused_after(seconds, 20.0, 20.0, jobs).0;
    assert_eq!(severity(3800.0, &[(3, false), (0, true)]), Some(Severity::Warn), "two of the three that came together");
    assert_eq!(severity(3400.0, &[(3, false), (0, true)]), Some(Severity::Info));
    assert_eq!(severity(3800.0, &[(3, false), (0, true), (1, true)]), Some(Severity::Info), "one of three");
    assert_eq!(severity(3800.0, &[(3, false)]), Some(Severity::Warn), "the only job has one of four");
}

#[test]
fn gpus_that_were_used_since_their_allocation_and_then_left_warn_after_80_minutes() {
    let severity = |is_used: bool, seconds: f64| {
        let mut tester = RuleTester::new(gpus(0..4));
        tester.interval = 30.0;
        let works = |gpu: u16, t: f64| gpu < 2 || (is_used && gpu == 3 && (900.0..1200.0).contains(&t));
        tester.run_edited(
            1200.0 + seconds,
            |tester, t| TestSample {
                gpus: (0..4)
                    .map(|gpu| if works(gpu, t) { tester.gpu(97, 500.0, 40, 20) } else { tester.gpu(0, 70.0, 0, 0) })
                    .collect(),
                processes: [0, 1, 3]
                    .into_iter()
                    .filter(|gpu| works(*gpu, t))
                    .map(|gpu| process(7 + u32::from(gpu), "python x.py", &[(gpu, 20)]))
                    .collect(),
            },
            |snapshot, t| {
                snapshot.host.slurm_allocated_gpus = Some(if t < 600.0 { vec![0, 1] } else { vec![0, 1, 2, 3] });
                snapshot.host.cpu_percent = Some(20.0);
            },
        );
        tester
            .findings()
            .into_iter()
            .find(|finding| finding.rule == RuleId::SlurmUnused)
            .map(|finding| finding.severity)
    };
    assert_eq!(severity(true, 4900.0), Some(Severity::Warn));
    assert_eq!(severity(true, 4700.0), Some(Severity::Info));
    assert_eq!(severity(false, 4900.0), Some(Severity::Info), "their job may prepare its data");
}

#[test]
fn unused_gpus_of_slurm_warn_later_while_a_job_of_slurm_works_on_another_host() {
    // `used` is how long the GPUs of the first host work for another job of Slurm before they rest.
    let severity_after = |used: f64, works: bool, seconds: f64| {
        let mut tester = RuleTester::of(vec![gpus(0..2), gpus(0..2)], Thresholds::default());
        tester.interval = 30.0;
        for sample in 0..((used + seconds) / 30.0) as u32 {
            for host in 0..2 {
                let is_busy = if host == 0 { f64::from(sample) * 30.0 < used } else { works };
                let mut run = process(7, "python train.py", &[(0, 20), (1, 20)]);
                run.facts.owner = Some(Owner::Slurm { job: ["6", "7"][host].into(), step: None });
                let gpus =
                    (0..2).map(|_| if is_busy { tester.gpu(97, 500.0, 40, 20) } else { tester.gpu(0, 70.0, 0, 0) });
                let gpus = gpus.collect();
                let processes = if is_busy { vec![run] } else { vec![] };
                tester.send(host, &TestSample { gpus, processes }, |snapshot| {
                    snapshot.host.slurm_allocated_gpus = Some(vec![0, 1]);
                    snapshot.host.cpu_percent = Some(1.0);
                });
            }
            tester.wait(30.0);
        }
        let unused = tester.findings().into_iter().filter(|finding| finding.rule == RuleId::SlurmUnused);
        unused.filter(|finding| finding.host == HostId(0)).map(|finding| finding.severity).next()
    };
    let severity = |works: bool, seconds: f64| severity_after(0.0, works, seconds);
    assert_eq!(severity(false, 2700.0), Some(Severity::Warn));
    assert_eq!(severity(true, 2700.0), Some(Severity::Info));
    assert_eq!(severity(true, 3900.0), Some(Severity::Warn));
    assert_eq!(severity_after(600.0, true, 3000.0), Some(Severity::Warn), "their own job works nowhere");
}

/// The findings of a host after `seconds` if something takes `step` percent more every 20 minutes.
fn after_equal_steps<E: Fn(&mut Snapshot, f64)>(
    usage: impl Fn(u64) -> E,
    (first, step): (u64, u64),
    seconds: f64,
) -> Vec<(&'static str, &'static str)> {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 30.0;
    with_host(&mut tester, seconds, |snapshot, t| usage(first + step * (t / 1200.0) as u64)(snapshot, t));
    tester.firing()
}

#[test]
fn a_disk_that_checkpoints_fill_in_equal_steps_warns_before_the_one_that_does_not_fit() {
    assert_eq!(after_equal_steps(disk, (64, 6), 4500.0), [], "82 %, and three more fit");
    assert_eq!(after_equal_steps(disk, (70, 6), 3700.0), [], "88 % since a moment ago");
    assert_eq!(after_equal_steps(disk, (70, 6), 4300.0), [("disk-full", "warn")], "88 %, and the second one fills it");
}

#[test]
fn a_program_that_keeps_as_much_memory_of_the_host_in_each_run_warns_before_the_one_that_does_not_fit() {
    assert_eq!(after_equal_steps(memory, (35, 15), 3500.0), [], "65 %");
    assert_eq!(after_equal_steps(memory, (35, 15), 4000.0), [("host-ram-low", "warn")], "80 %, and one more fits");
}
