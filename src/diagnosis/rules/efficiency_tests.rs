use crate::config::Thresholds;
use crate::diagnosis::Confidence;
use crate::diagnosis::testing::{RuleTester, TestSample};
use crate::fleet::fixture::{TestProcess, gpus, process};
use crate::wire::{Ancestor, GpuHealth, GpuHealthColumns, GpuReading, ProcessState, SafeText, Snapshot};

fn job(workers: u32, percent: f32, blocked: u32) -> Vec<TestProcess> {
    let mut job = process(7, "python train.py", &[(0, 60)]);
    job.reading.cpu_percent = Some(60.0);
    job.reading.descendants = Some(workers);
    job.reading.descendants_cpu_percent = Some(percent * workers as f32);
    job.reading.descendants_blocked = Some(blocked);
    vec![job]
}

fn works(tester: &mut RuleTester) -> TestSample {
    TestSample { gpus: vec![tester.gpu(97, 550.0, 45, 60)], processes: job(8, 30.0, 0) }
}

fn starves(tester: &mut RuleTester, t: f64, percent: f32, blocked: u32) -> TestSample {
    let busy = ((t / 10.0) as u32).is_multiple_of(8);
    let gpu = if busy { tester.gpu(60, 380.0, 30, 60) } else { tester.gpu(3, 140.0, 0, 60) };
    TestSample { gpus: vec![gpu], processes: job(8, percent, blocked) }
}

#[test]
fn starved_jobs_warn_after_ten_minutes_with_the_cause() {
    for (percent, blocked, cause, confidence) in [
        (97.0, 0, "its 8 workers use all of their CPU", Confidence::Likely),
        (10.0, 3, "its workers wait for storage", Confidence::Likely),
        (20.0, 0, "for an unknown reason", Confidence::Suspected),
    ] {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(2400.0, |tester, _| works(tester));
        tester.run(580.0, |tester, t| starves(tester, t, percent, blocked));
        assert_eq!(tester.fired(), []);
        tester.run(300.0, |tester, t| starves(tester, t, percent, blocked));
        assert_eq!(tester.firing(), [("input-stall", "warn")], "{cause}");
        let finding = tester.finding("input-stall");
        assert!(finding.sentence.ends_with(cause), "{}", finding.sentence);
        assert_eq!(finding.confidence, confidence);
        tester.run(600.0, |tester, _| works(tester));
        assert_eq!(tester.firing(), []);
    }
}

#[test]
fn a_job_that_waits_for_a_slow_disk_from_its_start_warns_after_half_an_hour() {
    let fired = |pressure: f32| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 5.0;
        tester.run_edited(
            4200.0,
            |tester, t| {
                let is_burst = ((t / 5.0) as u32).is_multiple_of(12);
                let gpu = if is_burst { tester.gpu(40, 150.0, 10, 60) } else { tester.gpu(0, 70.0, 0, 60) };
                TestSample { gpus: vec![gpu], processes: job(16, 2.0, 0) }
            },
            |snapshot, _| snapshot.host.pressure_io_percent = Some(pressure),
        );
        tester
            .fired()
            .into_iter()
            .filter(|(rule, _)| *rule == "input-stall")
            .map(|(_, severity)| severity)
            .collect::<Vec<_>>()
    };
    assert_eq!(fired(90.0), ["info", "warn"]);
    assert_eq!(fired(40.0), ["info"]);
}

#[test]
fn a_job_at_a_third_of_its_speed_warns_if_its_storage_is_the_reason() {
    let fired = |percent: u8, pressure: f32| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 5.0;
        tester.run(2400.0, |tester, _| works(tester));
        tester.run_edited(
            2400.0,
            |tester, t| {
                // A steady level would look like a loop.
                let (change, watts) = if t % 40.0 < 20.0 { (12, 260.0) } else { (-12, 140.0) };
                let gpu = tester.gpu(percent.saturating_add_signed(change), watts, 10, 60);
                TestSample { gpus: vec![gpu], processes: job(8, 15.0, 4) }
            },
            |snapshot, _| snapshot.host.pressure_io_percent = Some(pressure),
        );
        tester.fired().contains(&("input-stall", "warn"))
    };
    assert!(fired(28, 50.0));
    assert!(!fired(28, 25.0));
    assert!(!fired(45, 50.0));
}

#[test]
fn a_worker_in_disk_sleep_warns_although_the_gpus_never_worked() {
    let fired = |blocked: u32, percent: f32| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 5.0;
        tester.run_edited(
            4200.0,
            |tester, _| {
                let mut search = process(7, "python run_alphafold.py", &[(0, 1)]);
                search.reading.cpu_percent = Some(0.3);
                search.reading.descendants = Some(1);
                search.reading.descendants_cpu_percent = Some(percent);
                search.reading.descendants_blocked = Some(blocked);
                TestSample { gpus: vec![tester.gpu(0, 70.0, 0, 1)], processes: vec![search] }
            },
            |snapshot, _| snapshot.host.pressure_io_percent = Some(90.0),
        );
        tester.fired().contains(&("input-stall", "warn"))
    };
    assert!(fired(1, 7.0));
    assert!(!fired(0, 640.0), "it searches on the CPUs");
}

#[test]
fn verbs_agree_with_the_number_of_gpus_and_workers() {
    // Two MIG instances of different GPUs may have the same index.
    let mut alike = gpus(0..2);
    alike[1].index = alike[0].index;
    for (infos, begins) in
        [(gpus(0..1), "GPU 0 was busy for "), (gpus(0..2), "GPUs 0,1 were busy for "), (alike, "GPU 0 was busy for ")]
    {
        let positions: Vec<(u16, u64)> = (0..infos.len() as u16).map(|position| (position, 60)).collect();
        let count = infos.len();
        let mut tester = RuleTester::new(infos);
        let sample = |tester: &mut RuleTester, utilization: u8, watts: f32| {
            let mut job = process(7, "python train.py", &positions);
            job.reading.cpu_percent = Some(60.0);
            (job.reading.descendants, job.reading.descendants_cpu_percent) = (Some(1), Some(97.0));
            TestSample {
                gpus: (0..count).map(|_| tester.gpu(utilization, watts, 30, 60)).collect(),
                processes: vec![job],
            }
        };
        tester.run(2400.0, |tester, _| sample(tester, 97, 550.0));
        tester.run(900.0, |tester, _| sample(tester, 8, 160.0));
        let sentence = tester.finding("input-stall").sentence.to_string();
        assert!(sentence.starts_with(begins) && sentence.ends_with("its worker uses all of its CPU"), "{sentence}");
    }
}

#[test]
fn a_stall_does_not_become_the_past_with_which_it_is_compared() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 10.0;
    tester.run(2400.0, |tester, _| works(tester));
    tester.run(8.0 * 3600.0, |tester, t| starves(tester, t, 97.0, 0));
    assert_eq!(tester.firing(), [("input-stall", "warn")]);
    assert_eq!(tester.notified(), 1);
    // Just below half of the speed, and three quarters of it on a host that lacks CPUs, which are above the share of ordinary slow minutes.
    let lasts = |percent: u8, watts: f32, load: f32, percent_cpu: f32| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 10.0;
        tester.set_cpu_count(16);
        tester.run(2400.0, |tester, _| works(tester));
        tester.run_edited(
            8.0 * 3600.0,
            |tester, _| TestSample { gpus: vec![tester.gpu(percent, watts, 20, 60)], processes: job(8, 97.0, 0) },
            |snapshot, _| (snapshot.host.load_1, snapshot.host.cpu_percent) = (Some(load), Some(percent_cpu)),
        );
        (tester.firing(), tester.fired().len())
    };
    assert_eq!(lasts(46, 300.0, 8.0, 50.0), (vec![("input-stall", "info")], 1));
    assert_eq!(lasts(65, 400.0, 100.0, 99.0), (vec![("host-overloaded", "warn")], 2));
}

#[test]
fn a_sudden_stop_with_some_cpu_usage_is_listed_and_then_warns() {
    let stopped =
        |tester: &mut RuleTester| TestSample { gpus: vec![tester.gpu(0, 122.0, 0, 60)], processes: job(8, 1.0, 0) };
    for earlier in [70, 98] {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(2400.0, |tester, _| TestSample {
            gpus: vec![tester.gpu(earlier, 500.0, 40, 60)],
            processes: job(8, 30.0, 0),
        });
        tester.run(780.0, |tester, _| stopped(tester));
        assert_eq!(tester.firing(), [("input-stall", "info")], "{earlier}");
        tester.run(1200.0, |tester, _| stopped(tester));
        assert_eq!(tester.firing(), [("input-stall", "warn")], "{earlier}");
    }
    // An evaluation as long as an earlier one.
    let mut tester = RuleTester::new(gpus(0..1));
    for _ in 0..3 {
        tester.run(3000.0, |tester, _| works(tester));
        tester.run(1500.0, |tester, _| stopped(tester));
    }
    assert!(tester.fired().iter().all(|(_, severity)| *severity == "info"), "{:?}", tester.fired());
}

#[test]
fn input_at_half_speed_is_info() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(2400.0, |tester, _| works(tester));
    tester
        .run(2400.0, |tester, _| TestSample { gpus: vec![tester.gpu(33, 260.0, 15, 60)], processes: job(8, 97.0, 0) });
    assert_eq!(tester.firing(), [("input-stall", "info")]);
    assert!(tester.finding("input-stall").sentence.starts_with("GPU 0 was busy for 33 %"));
}

/// A process of the observer that enters and leaves disk sleep, in a host that waits for its disks, at this mean utilisation from the
/// start. Each interval it reads, or also writes.
fn reads_from_a_slow_disk(percent: u8, writes: bool) -> Vec<(&'static str, &'static str)> {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run_edited(
        4000.0,
        |tester, t| {
            let mut processes = job(2, 10.0, 0);
            let step = (t / 10.0) as u64;
            processes[0].reading.state =
                Some(if step.is_multiple_of(2) { ProcessState::DiskSleep } else { ProcessState::Running });
            processes[0].reading.read_characters = Some(step << 24);
            processes[0].reading.write_bytes = Some(if writes { step << 24 } else { 7 });
            TestSample { gpus: vec![tester.gpu(percent, 110.0, 3, 60)], processes }
        },
        |snapshot, _| snapshot.host.pressure_io_percent = Some(45.0),
    );
    tester.fired()
}

#[test]
fn a_process_that_reads_from_a_slow_disk_waits_for_data_and_one_that_writes_saves() {
    assert_eq!(reads_from_a_slow_disk(14, false), [("input-stall", "info")]);
    assert_eq!(reads_from_a_slow_disk(2, false), [("input-stall", "info")], "one batch in eight seconds");
    assert_eq!(reads_from_a_slow_disk(14, true), []);
}

#[test]
fn short_dips_and_jobs_that_were_never_busy_are_ignored() {
    let mut tester = RuleTester::new(gpus(0..1));
    for _ in 0..4 {
        tester.run(2400.0, |tester, _| works(tester));
        tester.run(540.0, |tester, t| starves(tester, t, 97.0, 0));
    }
    assert_eq!(tester.fired(), [], "dips of nine minutes");
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(7200.0, |tester, t| starves(tester, t, 97.0, 0));
    assert_eq!(tester.fired(), [("input-stall", "info")], "busy workers from the start");
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(7200.0, |tester, t| starves(tester, t, 30.0, 0));
    assert_eq!(tester.fired(), [("input-stall", "info")], "bursts from the start, for an unknown reason");
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(7200.0, |tester, t| TestSample {
        gpus: vec![tester.gpu(22, 150.0, 8, 40)],
        ..starves(tester, t, 30.0, 0)
    });
    assert_eq!(tester.fired(), [], "steady work at 22 %");
}

fn job_on(count: u16) -> Vec<TestProcess> {
    let on: Vec<(u16, u64)> = (0..count).map(|gpu| (gpu, 60)).collect();
    vec![process(7, "python train.py", &on)]
}

#[test]
fn low_power_at_high_utilisation_is_info_after_thirty_minutes() {
    let mut tester = RuleTester::new(gpus(0..2));
    tester.run(3000.0, |tester, _| TestSample {
        gpus: (0..2).map(|_| tester.gpu(95, 250.0, 20, 60)).collect(),
        processes: job_on(2),
    });
    assert_eq!(tester.fired(), [("low-power-high-util", "info")]);
    let sentence = tester.finding("low-power-high-util").sentence.to_string();
    assert!(sentence.starts_with("GPUs 0,1: 95 % busy for 4"), "{sentence}");
    assert!(sentence.contains(" W of 700 W: train.py (alice, pid 7) could be faster"), "{sentence}");
}

#[test]
fn memory_bound_and_ordinary_work_is_ignored() {
    for (watts, memory) in [(250.0, 60), (560.0, 40)] {
        let mut tester = RuleTester::new(gpus(0..2));
        tester.run(3600.0, |tester, _| TestSample {
            gpus: (0..2).map(|_| tester.gpu(95, watts, memory, 60)).collect(),
            processes: job_on(2),
        });
        assert_eq!(tester.fired(), []);
    }
}

#[test]
fn a_straggler_is_info_if_the_gpus_were_balanced_before() {
    let work = |tester: &mut RuleTester, odd: Option<(u8, f32)>| {
        let mut gpus: Vec<_> = (0..4).map(|_| tester.gpu(97, 560.0, 45, 60)).collect();
        if let Some((utilization, watts)) = odd {
            gpus[2] = tester.gpu(utilization, watts, 45, 60);
        }
        TestSample { gpus, processes: job_on(4) }
    };
    let mut tester = RuleTester::new(gpus(0..4));
    tester.run(1800.0, |tester, _| work(tester, None));
    tester.run(1200.0, |tester, _| work(tester, Some((70, 320.0))));
    assert_eq!(tester.fired(), [("gpu-imbalance", "info")]);
    assert!(tester.finding("gpu-imbalance").sentence.starts_with("GPU 2 does less than the other GPUs of train.py"));
    let mut tester = RuleTester::new(gpus(0..4));
    tester.run(3600.0, |tester, _| work(tester, Some((70, 320.0))));
    assert_eq!(tester.fired(), [], "a pipeline");
}

#[test]
fn a_gpu_at_a_low_clock_is_the_straggler_although_power_and_utilisation_are_balanced() {
    let run = |clock: u32| {
        let mut devices = gpus(0..4);
        for gpu in &mut devices {
            gpu.clock_sm_max_mhz = Some(1980);
        }
        let mut tester = RuleTester::new(devices);
        tester.run(4200.0, |tester, t| {
            let is_slow = t > 1800.0;
            let mut gpus: Vec<GpuReading> =
                (0..4).map(|_| tester.gpu(99, if is_slow { 280.0 } else { 560.0 }, 40, 60)).collect();
            for gpu in &mut gpus {
                gpu.clock_sm_mhz = Some(1850);
            }
            if is_slow {
                gpus[2] = GpuReading { clock_sm_mhz: Some(clock), ..tester.gpu(99, 262.0, 40, 60) };
            }
            TestSample { gpus, processes: vec![process(7, "python train.py", &[(0, 60), (1, 60), (2, 60), (3, 60)])] }
        });
        tester.firing().iter().any(|(rule, _)| *rule == "gpu-imbalance")
    };
    assert!(run(1150));
    assert!(!run(1780));
}

/// A job on three hosts of two GPUs each; those of host 0 run at `clock` MHz of 1980.
fn on_three_hosts(clock: u32, rendezvous: &str, edit: impl Fn(usize, usize, &mut GpuReading)) -> RuleTester {
    on_three_hosts_for(240, clock, rendezvous, edit)
}

/// As [`on_three_hosts`], for this many steps of 10 s.
fn on_three_hosts_for(
    steps: usize,
    clock: u32,
    rendezvous: &str,
    edit: impl Fn(usize, usize, &mut GpuReading),
) -> RuleTester {
    let mut devices = gpus(0..2);
    for gpu in &mut devices {
        gpu.clock_sm_max_mhz = Some(1980);
        gpu.pcie_width_max = Some(16);
        gpu.pcie_generation_max = Some(4);
    }
    let mut tester = RuleTester::of(vec![devices; 3], Thresholds::default());
    let line = format!("torchrun --nnodes 3 {rendezvous} train.py");
    let torchrun: Vec<SafeText> = line.split_whitespace().map(SafeText::new).collect();
    for step in 0..steps {
        for id in 0..3 {
            let mut ranks: Vec<TestProcess> =
                (0..2_u16).map(|gpu| process(40 + u32::from(gpu), "python train.py", &[(gpu, 60)])).collect();
            for rank in &mut ranks {
                rank.facts.start_unix_seconds = Some(1_700_000_000 + id as i64);
                rank.facts.ancestors = vec![Ancestor {
                    pid: 30,
                    start_ticks: 9,
                    uid: Some(1000),
                    name: "torchrun".into(),
                    argv: torchrun.clone(),
                }];
            }
            let mut gpus: Vec<GpuReading> = (0..2).map(|_| tester.gpu(98, 300.0, 40, 60)).collect();
            for gpu in &mut gpus {
                gpu.clock_sm_mhz = Some(if id == 0 { clock } else { 1850 });
                (gpu.pcie_width, gpu.pcie_generation) = (Some(16), Some(4));
                edit(id, step, gpu);
            }
            tester.send(id, &TestSample { gpus, processes: ranks }, |_| {});
        }
        tester.wait(10.0);
    }
    tester
}

#[test]
fn a_host_at_a_low_clock_is_the_straggler_of_a_job_on_several_hosts() {
    const CERTAIN: &str = "--rdzv-endpoint=hgx-01:29500";
    let tester = on_three_hosts(1100, CERTAIN, |_, _, _| {});
    assert_eq!(tester.firing(), [("gpu-imbalance", "warn")]);
    assert_eq!(
        tester.finding("gpu-imbalance").sentence,
        "GPUs 0,1 on hgx-00 run at 56 % of their maximum clock, those on 2 other hosts of train.py (alice, pid 40 and 1 \
         more) at 93 %: they wait for this host"
    );
    assert_eq!(on_three_hosts(1500, CERTAIN, |_, _, _| {}).firing(), [("gpu-imbalance", "info")]);
    assert_eq!(on_three_hosts(1750, CERTAIN, |_, _, _| {}).fired(), [], "within 15 %");
    assert_eq!(on_three_hosts(1100, "", |_, _, _| {}).fired(), [], "perhaps another job");
    let idle = on_three_hosts(1100, CERTAIN, |id, _, gpu| {
        if id == 2 {
            gpu.utilization_percent = Some(40);
        }
    });
    assert_eq!(idle.fired(), [], "one host does not work at full load");
}

#[test]
fn a_host_that_falls_behind_the_others_of_its_job_is_info() {
    const CERTAIN: &str = "--rdzv-endpoint=hgx-01:29500";
    let run = |rendezvous: &str, percent: u8, others: u8, watts: f32| {
        let tester = on_three_hosts(1850, rendezvous, |id, step, gpu| {
            let wobble = (step % 5) as u8;
            gpu.utilization_percent = Some(match (step < 120, id) {
                (true, _) => 92 + wobble,
                (false, 0) => percent + wobble,
                (false, _) => others,
            });
            if step >= 120 {
                gpu.power_watts = Some(watts);
            }
        });
        let about = |(rule, severity): &(&'static str, &'static str)| *rule == "gpu-imbalance" && *severity == "info";
        let found = tester.firing().iter().any(about);
        (found, found.then(|| tester.finding("gpu-imbalance").sentence.to_string()))
    };
    let (found, sentence) = run(CERTAIN, 60, 100, 300.0);
    let expected = "GPUs 0,1 on hgx-00 are 62 % busy, those on the other hosts of train.py (alice, pid 40 and 1 more) at \
                    least 100 %: they may wait for this host";
    assert_eq!((found, sentence.as_deref()), (true, Some(expected)));
    assert!(!run(CERTAIN, 84, 100, 300.0).0, "within 15 points");
    assert!(!run(CERTAIN, 60, 85, 300.0).0, "the others do not wait");
    assert!(!run("", 60, 100, 300.0).0, "perhaps another run of the same command");
    assert!(run("", 60, 100, 200.0).0, "the others draw less power since this host starves");
}

#[test]
fn a_host_that_starves_for_25_minutes_while_the_others_draw_less_power_warns() {
    let severity_after = |steps: usize, watts: f32, dips: bool| {
        let tester = on_three_hosts_for(steps, 1850, "--rdzv-endpoint=hgx-01:29500", |id, step, gpu| {
            let is_checkpoint = dips && step % 120 < 4;
            gpu.utilization_percent = Some(match (step < 120, id) {
                (true, _) => 95,
                _ if is_checkpoint => 20,
                (false, 0) => 45,
                (false, _) => 99,
            });
            if step >= 120 {
                gpu.power_watts = Some(watts);
            }
        });
        tester.firing().into_iter().find(|(rule, _)| *rule == "gpu-imbalance")
    };
    let severity = |watts: f32, dips: bool| severity_after(340, watts, dips);
    assert_eq!(severity(200.0, false), Some(("gpu-imbalance", "warn")));
    assert_eq!(severity_after(2000, 235.0, false), Some(("gpu-imbalance", "warn")), "low power does not become usual");
    assert_eq!(severity(200.0, true), Some(("gpu-imbalance", "warn")), "checkpoints interrupt it");
    assert_eq!(severity(300.0, false), Some(("gpu-imbalance", "info")), "they work as hard as before");
}

#[test]
fn workers_that_share_one_core_of_a_free_host_warn() {
    let run_with = |pressure: f32, busy: f32, percent: f32, every: u32| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 5.0;
        tester.run_edited(
            4800.0,
            |tester, t| {
                let is_burst = ((t / 5.0) as u32).is_multiple_of(every);
                let gpu = if is_burst { tester.gpu(80, 240.0, 30, 60) } else { tester.gpu(0, 66.0, 0, 60) };
                let mut processes = job(16, percent / 16.0, 0);
                processes[0].reading.cpu_percent = Some(6.0);
                TestSample { gpus: vec![gpu], processes }
            },
            |snapshot, _| {
                snapshot.host.pressure_cpu_percent = Some(pressure);
                snapshot.host.cpu_percent = Some(busy);
            },
        );
        (tester.firing(), tester.finding("input-stall").sentence.to_string())
    };
    let run = |pressure: f32, busy: f32, percent: f32| run_with(pressure, busy, percent, 16);
    let (firing, sentence) = run(93.0, 4.0, 92.0);
    assert_eq!(firing, [("input-stall", "warn")]);
    assert_eq!(run_with(93.0, 4.0, 92.0, 4).0, [("input-stall", "warn")], "a fifth of the time");
    assert_eq!(run_with(93.0, 4.0, 92.0, 3).0, [("input-stall", "info")], "more than a quarter");
    assert!(sentence.ends_with("its workers share 1 CPU core of a host with free ones"), "{sentence}");
    assert_eq!(run(93.0, 80.0, 92.0).0, [("input-stall", "info")], "other programs use the CPUs");
    assert_eq!(run(10.0, 4.0, 92.0).0, [("input-stall", "info")], "nobody waits for a CPU");
    assert_eq!(run(93.0, 20.0, 640.0).0, [("input-stall", "info")], "they have cores enough");
}

#[test]
fn a_process_that_prepares_each_batch_for_minutes_is_listed() {
    let run = |percent: f32| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(4800.0, |tester, t| {
            let is_burst = ((t / 10.0) as u32).is_multiple_of(40);
            let gpu = if is_burst { tester.gpu(63, 104.0, 30, 2) } else { tester.gpu(0, 58.0, 0, 2) };
            let mut process = process(7, "python train.py", &[(0, 2)]);
            process.reading.cpu_percent = Some(percent);
            TestSample { gpus: vec![gpu], processes: vec![process] }
        });
        tester.firing().contains(&("input-stall", "info"))
    };
    assert!(run(88.0));
    assert!(!run(8.0), "it waits for something else");
}

#[test]
fn a_job_whose_log_keeps_its_pace_is_listed_only() {
    let fired = |before: f64, gap: f64| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 5.0;
        let logging = |mut sample: TestSample, age: f64| {
            sample.processes[0].reading.log_age_seconds = Some(age.trunc());
            sample
        };
        tester.run(4800.0, |tester, t| logging(works(tester), t % before));
        tester.run(2400.0, |tester, t| logging(starves(tester, t, 20.0, 0), t % gap));
        tester.fired().into_iter().filter(|(rule, _)| *rule == "input-stall").map(|(_, to)| to).collect::<Vec<_>>()
    };
    assert_eq!(fired(160.0, 43.0), ["info"], "it validates");
    assert_eq!(fired(20.0, 20.0), ["info"], "it tries one model after the other");
    assert_eq!(fired(20.0, 100.0), ["warn"], "each step takes longer");
    assert_eq!(fired(5.0, 5.0), ["warn"], "a log that is written in each sample shows no pace");
}

#[test]
fn a_job_that_plays_episodes_on_one_core_warns_later() {
    let fired = |percent: f32, logs: bool| {
        let mut tester = RuleTester::new(gpus(0..1));
        let logging = |mut sample: TestSample, age: f64| {
            sample.processes[0].reading.log_age_seconds = Some(age.trunc());
            sample
        };
        tester.run(2400.0, |tester, t| logging(works(tester), t % 20.0));
        tester.run(1500.0, |tester, t| {
            let mut sample = starves(tester, t, percent, 0);
            sample.processes[0].reading.cpu_percent = Some(100.0);
            logging(sample, if logs { t % 66.0 } else { t })
        });
        tester.fired().into_iter().filter(|(rule, _)| *rule == "input-stall").map(|(_, to)| to).collect::<Vec<_>>()
    };
    assert_eq!(fired(0.0, true), ["info"]);
    assert_eq!(fired(0.0, false), ["warn"], "its log has stopped");
}

#[test]
fn a_straggler_with_a_slow_link_names_the_link() {
    let work = |tester: &mut RuleTester, is_slow: bool| {
        let mut gpus: Vec<_> = (0..4).map(|_| tester.gpu(97, 560.0, 45, 60)).collect();
        if is_slow {
            gpus[2] = tester.gpu(70, 320.0, 45, 60);
        }
        for gpu in &mut gpus {
            (gpu.pcie_width, gpu.pcie_generation) = (Some(16), Some(4));
        }
        if is_slow {
            (gpus[2].pcie_width, gpus[2].pcie_generation) = (Some(4), Some(1));
        }
        TestSample { gpus, processes: job_on(4) }
    };
    let mut tester = RuleTester::new(gpus(0..4));
    let health =
        |replays| GpuHealth { nvlinks_active: Some(0xFFF), nvlink_replays: Some(replays), ..GpuHealth::default() };
    let edit = |snapshot: &mut Snapshot, t: f64| {
        let mut rows = vec![health(0); 4];
        rows[2].nvlinks_active = Some(0xFF);
        rows[2].nvlink_replays = Some((t / 100.0) as u64);
        snapshot.health = GpuHealthColumns::from_rows(&rows);
    };
    tester.run_edited(1800.0, |tester, _| work(tester, false), edit);
    tester.run_edited(1200.0, |tester, _| work(tester, true), |snapshot, t| edit(snapshot, 1800.0 + t));
    let sentence = tester.finding("gpu-imbalance").sentence.to_string();
    assert!(
        sentence.contains(
            "; its PCIe link runs at gen 1 x4, the others reach gen 4 x16; it has 8 active NVLinks, the others 12; its links \
             repeated 2"
        ),
        "{sentence}"
    );
}

#[test]
fn workers_without_rest_at_half_use_of_the_gpu_are_info_although_it_was_never_faster() {
    let run = |percent: f32, own: f32, utilization: u8| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 10.0;
        tester.run(5400.0, |tester, _| {
            let mut processes = job(4, percent, 0);
            processes[0].reading.cpu_percent = Some(own);
            TestSample { gpus: vec![tester.gpu(utilization, 300.0, 20, 40)], processes }
        });
        tester.fired().into_iter().filter(|(rule, _)| *rule == "input-stall").collect::<Vec<_>>()
    };
    assert_eq!(run(99.0, 57.0, 47), [("input-stall", "info")]);
    assert_eq!(run(60.0, 57.0, 47), [], "the workers rest");
    assert_eq!(run(99.0, 100.0, 47), [], "the main process does not wait");
    assert_eq!(run(99.0, 57.0, 80), [], "the GPU is used well");
}

#[test]
fn workers_that_finish_something_after_the_last_step_notify_nobody() {
    let run = |percent: f32| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(2400.0, |tester, _| works(tester));
        tester.run(3600.0, |tester, _| TestSample {
            gpus: vec![tester.gpu(0, 122.0, 0, 60)],
            processes: job(8, percent, 0),
        });
        tester.fired().into_iter().filter(|(rule, severity)| (*rule, *severity) == ("input-stall", "warn")).count()
    };
    assert_eq!((run(60.0), run(1.0)), (0, 1));
}

#[test]
fn a_main_process_that_prepares_the_data_itself_is_named() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(4800.0, |tester, t| {
        let mut alone = process(7, "python train.py", &[(0, 60)]);
        alone.reading.cpu_percent = Some(100.0);
        TestSample {
            gpus: vec![tester.gpu(if ((t / 10.0) as u32).is_multiple_of(2) { 2 } else { 9 }, 90.0, 1, 60)],
            processes: vec![alone],
        }
    });
    assert_eq!(tester.firing(), [("input-stall", "info")]);
    assert!(tester.finding("input-stall").sentence.ends_with("its main process uses a whole CPU core"));
}

#[test]
fn a_job_that_other_programs_slow_down_is_info_beside_the_finding_of_the_host() {
    let run = |load: f32| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.set_cpu_count(16);
        tester.run(2400.0, |tester, _| works(tester));
        tester.run_edited(
            2400.0,
            |tester, _| TestSample { gpus: vec![tester.gpu(30, 200.0, 12, 60)], processes: job(8, 30.0, 0) },
            |snapshot, _| (snapshot.host.load_1, snapshot.host.cpu_percent) = (Some(load), Some(99.0)),
        );
        tester.fired().into_iter().filter(|(rule, _)| *rule == "input-stall").collect::<Vec<_>>()
    };
    assert_eq!(run(100.0), [("input-stall", "info")], "host-overloaded warns");
    assert_eq!(run(17.0), [("input-stall", "info")], "the job itself may use the CPUs");
}

#[test]
fn a_job_that_takes_all_cpus_and_hardly_uses_its_gpu_warns_after_half_an_hour() {
    let run = |period: u32, cores: f32| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.set_cpu_count(16);
        tester.run_edited(
            7200.0,
            |tester, t| {
                let is_busy = ((t / 10.0) as u32) % period < period.div_ceil(14);
                let mut alone = process(7, "python train.py", &[(0, 60)]);
                alone.reading.cpu_percent = Some(100.0 * cores);
                let gpu = if is_busy { tester.gpu(95, 300.0, 20, 60) } else { tester.gpu(0, 120.0, 0, 60) };
                TestSample { gpus: vec![gpu], processes: vec![alone] }
            },
            |snapshot, _| (snapshot.host.load_1, snapshot.host.cpu_percent) = (Some(16.0), Some(96.0)),
        );
        tester.fired().into_iter().filter(|(rule, _)| *rule == "input-stall").collect::<Vec<_>>()
    };
    assert_eq!(run(14, 15.0), [("input-stall", "info"), ("input-stall", "warn")]);
    assert_eq!(run(14, 4.0), [("input-stall", "info")], "other programs take them");
    assert_eq!(run(70, 15.0), [("input-stall", "info")], "phases of eleven minutes on the CPUs");
}

#[test]
fn simulations_that_rest_while_the_gpu_learns_are_info() {
    let run = |resting_percent: f32| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.set_cpu_count(16);
        tester.run_edited(
            7200.0,
            |tester, t| {
                let learns = ((t / 10.0) as u32).is_multiple_of(14);
                let processes = job(15, if learns { resting_percent } else { 98.0 }, 0);
                let gpu = if learns { tester.gpu(95, 300.0, 20, 60) } else { tester.gpu(0, 120.0, 0, 60) };
                TestSample { gpus: vec![gpu], processes }
            },
            |snapshot, _| (snapshot.host.load_1, snapshot.host.cpu_percent) = (Some(16.0), Some(96.0)),
        );
        tester.fired().into_iter().filter(|(rule, _)| *rule == "input-stall").collect::<Vec<_>>()
    };
    assert_eq!(run(1.0), [("input-stall", "info")]);
    assert_eq!(run(98.0), [("input-stall", "info"), ("input-stall", "warn")], "loaders never rest");
}

#[test]
fn a_program_that_computes_on_the_cpus_with_a_silent_log_warns_after_forty_minutes() {
    let warns = |logs: bool, seconds: f64| {
        let mut tester = RuleTester::new(gpus(0..1));
        let edit = |t: f64, silent: bool| {
            move |snapshot: &mut Snapshot, passed: f64| {
                let period = if t > 0.0 { 90.0 } else { 20.0 };
                let age = if silent { passed } else { passed % period };
                snapshot.processes.log_age_seconds = vec![Some(age)];
            }
        };
        tester.run_edited(2400.0, |tester, _| works(tester), edit(0.0, false));
        tester.run_edited(seconds, |tester, t| starves(tester, t, 97.0, 0), edit(2400.0, !logs));
        tester.fired().contains(&("input-stall", "warn"))
    };
    assert!(warns(true, 1200.0), "it waits for its workers");
    assert!(!warns(false, 2400.0), "its workers may evaluate");
    assert!(warns(false, 3600.0));
}

#[test]
fn a_note_about_a_process_that_sleeps_and_goes_on_does_not_hide_that_its_job_starves() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(2400.0, |tester, _| works(tester));
    let mut written = 0;
    tester.run_edited(
        2400.0,
        |tester, t| {
            let mut sample = starves(tester, t, 10.0, 3);
            written += 50 << 20;
            sample.processes[0].reading.state = Some(ProcessState::DiskSleep);
            sample.processes[0].reading.cpu_percent = Some(0.0);
            sample.processes[0].reading.write_bytes = Some(written);
            sample
        },
        |_, _| {},
    );
    let firing = tester.firing();
    assert!(firing.contains(&("dstate-hang", "info")) && firing.contains(&("input-stall", "warn")), "{firing:?}");
}

#[test]
fn workers_that_share_too_few_cores_are_info() {
    let run = |percent: f32| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(3600.0, |tester, t| {
            let mut processes = job(2, percent, 0);
            processes[0].reading.cpu_percent = Some(58.0);
            let utilization = if ((t / 10.0) as u32).is_multiple_of(2) { 8 } else { 21 };
            TestSample { gpus: vec![tester.gpu(utilization, 90.0, 2, 40)], processes }
        });
        tester.fired()
    };
    assert_eq!(run(71.0), [("input-stall", "info")]);
    assert_eq!(run(30.0), []);
}

#[test]
fn a_rank_that_launches_its_kernels_late_warns_if_the_others_wait_for_it() {
    let run = |least: u8, others: f32| {
        let mut tester = RuleTester::new(gpus(0..4));
        tester.run(4200.0, |tester, t| {
            let is_late = t > 1800.0;
            let mut gpus: Vec<GpuReading> =
                (0..4).map(|_| tester.gpu(99, if is_late { others } else { 560.0 }, 40, 60)).collect();
            if is_late {
                let percent = if ((t / 10.0) as u32).is_multiple_of(2) { least } else { 55 };
                gpus[2] = tester.gpu(percent, 0.96 * others, 30, 60);
            }
            TestSample { gpus, processes: vec![process(7, "python train.py", &[(0, 60), (1, 60), (2, 60), (3, 60)])] }
        });
        let imbalance = tester.fired().into_iter().find(|(rule, _)| *rule == "gpu-imbalance");
        let sentence = imbalance.map(|_| tester.finding("gpu-imbalance").sentence.to_string());
        (imbalance.map(|(_, severity)| severity), sentence.unwrap_or_default())
    };
    let (severity, sentence) = run(40, 330.0);
    assert_eq!(severity, Some("warn"));
    assert!(sentence.contains(" the others 99 % at 3") && sentence.contains(" W (was 5"), "{sentence}");
    assert_eq!(run(0, 330.0).0, None, "it rests now and then");
    assert_eq!(run(40, 540.0).0, None, "the others work as before");
    assert_eq!(run(40, 130.0).0, None, "the others wait all the time");
}

#[test]
fn a_server_with_waiting_clients_that_lacks_cpus_warns_and_one_without_does_not() {
    let fired = |clients: u32| {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.set_cpu_count(32);
        tester.interval = 10.0;
        let sample = |tester: &mut RuleTester, percent: u8| {
            let mut server = process(7, "vllm serve qwen", &[(0, 40)]);
            server.reading.cpu_percent = Some(100.0);
            server.reading.waiting_clients = Some(clients);
            server.reading.longest_wait_seconds = (clients > 0).then_some(4.0);
            TestSample { gpus: vec![tester.gpu(percent, 280.0, 30, 40)], processes: vec![server] }
        };
        tester.run(2400.0, |tester, _| sample(tester, 95));
        tester.run_edited(
            2400.0,
            |tester, _| sample(tester, 45),
            |snapshot, _| (snapshot.host.load_1, snapshot.host.cpu_percent) = (Some(100.0), Some(100.0)),
        );
        tester.firing().into_iter().find(|(rule, _)| *rule == "host-overloaded")
    };
    assert_eq!(fired(114), Some(("host-overloaded", "warn")));
    assert_eq!(fired(0), Some(("host-overloaded", "info")), "it may have fewer requests");
}

/// Trains for `training` minutes and rests for `rest` minutes in turns, with eight workers that never rest.
fn in_phases(tester: &mut RuleTester, t: f64, training: f64, rest: f64) -> TestSample {
    let gpu = if t / 60.0 % (training + rest) < training {
        tester.gpu(90, 520.0, 40, 60)
    } else {
        tester.gpu(0, 120.0, 0, 60)
    };
    TestSample { gpus: vec![gpu], processes: job(8, 70.0, 0) }
}

#[test]
fn a_job_that_works_in_phases_is_at_most_listed_in_a_longer_one() {
    // Reinforcement learning: one longer simulation makes the mean of ten minutes low.
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 5.0;
    tester.run(7200.0, |tester, t| in_phases(tester, t, 3.0, 4.0));
    tester.run(540.0, |tester, t| in_phases(tester, t, 0.0, 9.0));
    tester.run(1200.0, |tester, t| in_phases(tester, t, 3.0, 4.0));
    let warned = tester.fired().into_iter().any(|finding| finding == ("input-stall", "warn"));
    assert!(!warned, "{:?}", tester.fired());
}

#[test]
fn time_before_the_job_and_after_its_recovery_does_not_count() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 5.0;
    // The GPU is idle, then a new job loads slowly for 13 minutes and works.
    tester.run(1500.0, |tester, _| TestSample { gpus: vec![tester.gpu(0, 70.0, 0, 0)], processes: vec![] });
    tester.run_new(2600.0, |tester, t| {
        let is_burst = ((t / 5.0) as u32).is_multiple_of(8);
        let gpu = match t {
            780.0.. => tester.gpu(95, 520.0, 40, 60),
            _ if is_burst => tester.gpu(60, 380.0, 30, 60),
            _ => tester.gpu(2, 140.0, 0, 60),
        };
        TestSample { gpus: vec![gpu], processes: job(8, 97.0, 0) }
    });
    assert_eq!(tester.fired(), []);
}
