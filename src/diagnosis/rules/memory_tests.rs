use super::*;
use crate::diagnosis::testing::{RuleTester, TestSample};
use crate::fleet::fixture::{gpus, process};
use crate::wire::{GpuReading, Snapshot};

const GIB: f64 = (1_u64 << 30) as f64;

/// 120 minutes of memory in GiB.
fn judged(gib: impl Fn(f64) -> f64) -> bool {
    let points: Vec<Option<f32>> = (0..120).map(|minute| Some((gib(f64::from(minute)) * GIB) as f32)).collect();
    leak(&points, 80.0 * GIB, 40.0 * GIB, &GpuMemLeak::default()).is_some()
}

/// A number around zero for a minute.
fn noise(minute: f64) -> f64 {
    ((minute * 12.9898).sin() * 43_758.545).fract() - 0.5
}

#[test]
fn steady_growth_is_a_leak() {
    assert!(judged(|minute| 20.0 + minute * 0.05), "3 GB an hour");
    assert!(judged(|minute| 20.0 + minute * 0.05 + 0.04 * noise(minute)), "with noise");
    assert!(judged(|minute| 20.0 + (minute / 6.0).floor() * 0.3), "stairs");
}

#[test]
fn what_looks_alike_is_not() {
    assert!(!judged(|minute| 20.0 + 8.0 * (1.0 - (-minute / 25.0).exp())), "saturating");
    assert!(!judged(|minute| 20.0 + (minute % 20.0) * 0.3), "sawtooth");
    assert!(!judged(|minute| if minute < 60.0 { 20.0 } else { 26.0 }), "one jump");
    assert!(!judged(|minute| 20.0 + (minute / 40.0).floor() * 3.0), "a curriculum that steps up");
    assert!(!judged(|_| 72.0), "flat at 90 %");
    for seed in 0..50 {
        let mut level = 20.0;
        let walk: Vec<f64> = (0..120)
            .map(|minute| {
                level += 0.6 * noise(f64::from(minute + seed * 131));
                level
            })
            .collect();
        assert!(!judged(|minute| walk[minute as usize]), "random walk {seed}");
    }
}

#[test]
fn gaps_need_enough_points_and_slow_leaks_do_not_matter() {
    let points: Vec<Option<f32>> =
        (0..120).map(|minute| (minute % 4 != 0).then_some(((20.0 + f64::from(minute) * 0.05) * GIB) as f32)).collect();
    assert_eq!(leak(&points, 80.0 * GIB, 40.0 * GIB, &GpuMemLeak::default()), None);
    let slow: Vec<Option<f32>> =
        (0..120).map(|minute| Some(((20.0 + f64::from(minute) * 0.016) * GIB) as f32)).collect();
    assert_eq!(leak(&slow, 80.0 * GIB, 60.0 * GIB, &GpuMemLeak::default()), None, "full in two days");
}

fn uses(tester: &mut RuleTester, mib: u64) -> TestSample {
    let mut job = process(7, "python train.py", &[(0, 1)]);
    job.gpus[0].gpu_memory_bytes = Some(mib << 20);
    let mut gpu = tester.gpu(97, 550.0, 40, 40);
    gpu.memory_used_bytes = Some(mib << 20);
    TestSample { gpus: vec![gpu], processes: vec![job] }
}

#[test]
fn a_leak_is_found_from_the_history() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.interval = 10.0;
    tester.run(7500.0, |tester, t| uses(tester, 20_000 + (t / 60.0 * 50.0) as u64));
    assert_eq!(tester.firing(), [("gpu-mem-leak", "warn")]);
    let sentence = tester.finding("gpu-mem-leak").sentence.to_string();
    assert!(sentence.starts_with("train.py (alice, pid 7) grew by 5."), "{sentence}");
    assert!(sentence.contains("in 1 h 59 min, steadily"), "{sentence}");
    // Found before two hours were watched: it says what was.
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(5950.0, |tester, t| uses(tester, 20_000 + (t / 60.0 * 50.0) as u64));
    let sentence = tester.finding("gpu-mem-leak").sentence.to_string();
    assert!(sentence.contains("in 1 h 3"), "{sentence}");
}

#[test]
fn nearly_full_and_growing_warns_and_flat_does_not() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(3600.0, |tester, _| uses(tester, 80_400));
    assert_eq!(tester.fired(), [], "98 % and flat");
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(1800.0, |tester, t| uses(tester, 79_200 + (t / 3.0) as u64));
    assert_eq!(tester.firing(), [("gpu-mem-pressure", "warn")]);
}

#[test]
fn a_job_whose_gpus_all_fill_up_is_one_finding() {
    let mut tester = RuleTester::new(gpus(0..4));
    tester.run(1800.0, |tester, t| {
        let mut job = process(7, "python train.py", &[(0, 1), (1, 1), (2, 1)]);
        let mib = 79_200 + (t / 3.0) as u64;
        job.gpus.iter_mut().for_each(|usage| usage.gpu_memory_bytes = Some(mib << 20));
        let full = |tester: &mut RuleTester| GpuReading {
            memory_used_bytes: Some(mib << 20),
            ..tester.gpu(97, 550.0, 40, 40)
        };
        let gpus = vec![full(tester), full(tester), full(tester), tester.gpu(0, 80.0, 0, 0)];
        TestSample { gpus, processes: vec![job] }
    });
    assert_eq!(tester.firing(), [("gpu-mem-pressure", "warn")]);
    let finding = tester.finding("gpu-mem-pressure");
    assert_eq!(finding.gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [0, 1, 2]);
    let sentence = finding.sentence.to_string();
    assert!(
        sentence.starts_with("GPUs 0-2: 1.6 GiB of 80 GiB are free on GPU 0 after 0.6 GiB of growth in"),
        "{sentence}"
    );
    assert!(sentence.ends_with(": train.py (alice, pid 7)"), "{sentence}");
}

#[test]
fn what_a_process_takes_in_its_first_minutes_is_no_growth() {
    let loads = |tester: &mut RuleTester, t: f64| uses(tester, (100.0 * t).min(80_400.0) as u64);
    let young = |snapshot: &mut Snapshot, t: f64| snapshot.processes.age_seconds = vec![Some(t + 1.0)];
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run_edited(3600.0, loads, young);
    assert_eq!(tester.fired(), [], "loaded in 14 min and flat since");
    // Beyond that it counts.
    let mut tester = RuleTester::new(gpus(0..1));
    let grows = |tester: &mut RuleTester, t: f64| uses(tester, 79_200 + (t / 3.0) as u64);
    tester.run_edited(2400.0, grows, young);
    assert_eq!(tester.firing(), [("gpu-mem-pressure", "warn")]);
}
