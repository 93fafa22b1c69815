//! GPU memory that is running out: gpu-mem-pressure, gpu-mem-leak.

use super::process::process_details;
use crate::diagnosis::condition::{Escalation, Evaluation};
use crate::diagnosis::conditions::Conditions;
use crate::diagnosis::finding::{FindingDetails, FindingTarget};
use crate::diagnosis::rule_context::{RuleContext, duration, gibibytes};
use crate::diagnosis::track::{GpuTrack, JobTrack, Leak, ProcessTrack};
use crate::diagnosis::{Confidence, RuleId, Severity};
use crate::fleet::JobKey;
use std::collections::BTreeSet;

pub(super) fn evaluate(context: &RuleContext, conditions: &mut Conditions) {
    pressure(context, conditions);
    for job in context.jobs {
        let leaking = context.members(job).filter(|process| !process.is_stale);
        let leaking: Vec<(&ProcessTrack, Leak)> =
            leaking.filter_map(|process| Some((process, process.leak?))).collect();
        leak(context, conditions, job, &leaking);
    }
    // Programs that only draw, such as a desktop, belong to no job.
    let is_in_job = |process: &ProcessTrack| context.jobs.iter().any(|job| job.key == process.info.job);
    let leaking = context.processes.iter().filter(|process| !process.is_stale && !is_in_job(process));
    let leaking: Vec<(&ProcessTrack, Leak)> = leaking.filter_map(|process| Some((process, process.leak?))).collect();
    for (process, leak) in &leaking {
        // One finding per program, for the process whose memory is full first.
        let is_first = |(other, leak_there): &(&ProcessTrack, Leak)| {
            other.info.job != process.info.job || other.key == process.key || leak_there.full_in >= leak.full_in
        };
        if leaking.iter().all(is_first) {
            graphics_leak(context, conditions, process, leak);
        }
    }
}

/// A leak of a program that only draws warns this long before the memory is full, in seconds: most are restarted earlier.
const GRAPHICS_LEAK_END: f64 = 5400.0;

fn graphics_leak(context: &RuleContext, conditions: &mut Conditions, process: &ProcessTrack, leak: &Leak) {
    let severity = if leak.full_in <= GRAPHICS_LEAK_END && !leak.is_fast { Severity::Warn } else { Severity::Info };
    let evaluation = Evaluation::new(Escalation::one(severity, 0.0), Confidence::Likely, 600.0);
    let job = &process.info.job;
    conditions.met(RuleId::GpuMemLeak, &FindingTarget::Job(job.clone()), evaluation, |_, _| {
        let sentence = describe_growth(process, job, leak, "");
        let details = process_details(context, job, &[process], sentence, "restart it".to_owned());
        details.with_figures(format!("+{}, full in {}", gibibytes(leak.growth as u64), duration(leak.full_in)))
    });
}

fn describe_growth(process: &ProcessTrack, job: &JobKey, leak: &Leak, others: &str) -> String {
    format!(
        "{} grew steadily by {} in {}{others}: its GPU memory is full in {} at this rate",
        process.describe(1, Some(job)),
        gibibytes(leak.growth as u64),
        duration(leak.span),
        duration(leak.full_in),
    )
}

/// The share of the time of its growth, at least, that a job has used its GPUs: memory that grows before is loaded.
const USED_SHARE: f64 = 0.2;
/// The share of the quarter of an hour in which memory grew fast.
const FAST_USED_SHARE: f64 = 0.8;

/// A slow leak warns this long before the memory is full, in seconds.
const SLOW_LEAK_END: f64 = 1200.0;

/// Reports one finding per job, for the process whose memory is full first.
fn leak(context: &RuleContext, conditions: &mut Conditions, job: &JobTrack, leaking: &[(&ProcessTrack, Leak)]) {
    let Some((process, leak)) = leaking.iter().min_by(|a, b| a.1.full_in.total_cmp(&b.1.full_in)) else { return };
    let used = job.gpus.iter().map(|gpu| f64::from(gpu.baseline.active_seconds)).fold(0.0, f64::max);
    let share = if leak.is_fast || leak.is_steep { FAST_USED_SHARE } else { USED_SHARE };
    let is_loading = used < share * leak.span && job.gpus.iter().any(|gpu| gpu.activity.is_some());
    // A server loads its models with the first requests.
    if is_loading || (leak.is_fast && !leak.is_steep && job.is_server) {
        return;
    }
    let target = FindingTarget::Job(job.key.clone());
    let is_near_end = |leak: &Leak| !leak.is_slow || leak.full_in <= SLOW_LEAK_END;
    let is_near_end = leaking.iter().any(|(_, leak)| is_near_end(leak)) && !draws_more(context, job);
    // A training may grow for an hour, until it has seen its largest batches.
    let may_level_off = leaking.iter().all(|(_, leak)| leak.is_steep && !leak.is_fast) && !job.is_server;
    let severity = if is_near_end && !may_level_off { Severity::Warn } else { Severity::Info };
    let evaluation = Evaluation::new(Escalation::one(severity, 0.0), Confidence::Likely, 600.0);
    conditions.met(RuleId::GpuMemLeak, &target, evaluation, |_, _| {
        let others = match leaking.len() {
            1 => String::new(),
            2 => ", as did another process".to_owned(),
            count => format!(", as did {} other processes", count - 1),
        };
        let sentence = describe_growth(process, &job.key, leak, &others);
        let mut details = context.job_details(job, sentence, "torch.cuda.memory_summary()".to_owned());
        let positions: BTreeSet<usize> =
            leaking.iter().flat_map(|(process, _)| process.positions.iter().copied()).collect();
        details.gpus = context.finding_gpus(positions);
        details.processes = leaking.iter().map(|(process, _)| context.finding_process(process)).collect();
        details.with_figures(format!("+{}, full in {}", gibibytes(leak.growth as u64), duration(leak.full_in)))
    });
}

/// A GPU whose memory is running out.
struct Pressure {
    position: usize,
    free: f64,
    total: u64,
    /// The growth in MiB.
    growth: f64,
    /// The seconds of that growth.
    span: f64,
    full_in: f64,
}

/// The current power of a GPU divided by its earlier median, at least, if its work grew together with its memory.
const GROWN_POWER: f32 = 1.12;

/// Whether the GPUs of a job draw more power than before: its batches or sequences became larger, which needs memory.
fn draws_more(context: &RuleContext, job: &JobTrack) -> bool {
    job.gpus.iter().all(|gpu| {
        let stats = context.gpus.get(gpu.position).map(|track| track.window.stats(context.sample_time.t - 600.0));
        let now = stats.and_then(|stats| stats.mean_power);
        now.zip(gpu.baseline.median_power()).is_some_and(|(now, earlier)| now >= GROWN_POWER * earlier)
    })
}

/// Memory allocated in the first seconds of a process is loading, not growth.
const LOADING: f64 = 600.0;

/// Reports one finding per job, for any number of GPUs.
fn pressure(context: &RuleContext, conditions: &mut Conditions) {
    let mut by_target: Vec<(FindingTarget, Option<&JobTrack>, Vec<Pressure>)> = Vec::new();
    for (position, gpu) in context.gpus.iter().enumerate() {
        let holder = || largest_holder(context, position);
        let Some(pressure) = pressure_of(context, position, gpu, holder) else { continue };
        let job = holder().and_then(|process| context.jobs.iter().find(|job| job.key == process.info.job));
        let target =
            job.map_or_else(|| FindingTarget::Gpu(gpu.identity.clone()), |job| FindingTarget::Job(job.key.clone()));
        match by_target.iter_mut().find(|(other, ..)| *other == target) {
            Some((.., all)) => all.push(pressure),
            None => by_target.push((target, job, vec![pressure])),
        }
    }
    // A caching allocator fills a GPU and runs on: in telemetry of 29 real runs, only one of 47 such jobs failed.
    let evaluation = Evaluation::new(Escalation::one(Severity::Info, 20.0), Confidence::Suspected, 300.0);
    for (target, job, all) in by_target {
        conditions.met(RuleId::GpuMemPressure, &target, evaluation, |_, _| pressure_details(context, job, &all));
    }
}

fn pressure_details(context: &RuleContext, job: Option<&JobTrack>, all: &[Pressure]) -> FindingDetails {
    let positions = || all.iter().map(|pressure| pressure.position);
    let Some(worst) = all.iter().min_by(|a, b| a.full_in.total_cmp(&b.full_in).then(a.free.total_cmp(&b.free))) else {
        return FindingDetails::default();
    };
    let soon = if worst.full_in < 86_400.0 { format!(", full in {}", duration(worst.full_in)) } else { String::new() };
    let on = if all.len() > 1 { format!(" on {}", context.format_gpus([worst.position])) } else { String::new() };
    let whose = job.map_or_else(String::new, |job| format!(": {}", context.format_job(job)));
    let sentence = format!(
        "{}: {} of {} are free{on} after growing by {} in the last {}{soon}{whose}",
        context.format_gpus(positions()),
        gibibytes(worst.free as u64),
        gibibytes(worst.total),
        gibibytes((worst.growth.max(0.0) * 1_048_576.0) as u64),
        duration(worst.span),
    );
    let next = "use a smaller batch before the job fails".to_owned();
    let mut details = match job {
        Some(job) => context.job_details(job, sentence, next),
        None => context.gpu_details(worst.position, sentence, next),
    };
    details.gpus = context.finding_gpus(positions());
    details.with_figures(format!("{} free", gibibytes(worst.free as u64)))
}

/// The process on a GPU that holds the most memory.
fn largest_holder<'a>(context: &RuleContext<'a>, position: usize) -> Option<&'a ProcessTrack> {
    let on_it = context.processes.iter().filter(|process| process.positions.contains(&position));
    on_it.max_by_key(|process| process.memory_bytes)
}

fn pressure_of<'a>(
    context: &RuleContext,
    position: usize,
    gpu: &GpuTrack,
    holder: impl Fn() -> Option<&'a ProcessTrack>,
) -> Option<Pressure> {
    let limits = &context.limits.gpu_mem_pressure;
    let (used, total) = (gpu.used_bytes?, gpu.total_bytes?);
    let free = total.saturating_sub(used).saturating_sub(gpu.reserved_bytes.unwrap_or(0)) as f64;
    let bound = (limits.free * 1_048_576.0).max(limits.free_share / 100.0 * total as f64);
    if free >= bound || gpu.is_unified || gpu.is_mig_parent {
        return None;
    }
    let t = context.sample_time.t;
    let now = (used >> 20) as f64;
    let began = holder().map(|process| process.age.map_or(process.first_seen, |age| process.first_seen.min(t - age)));
    let loaded = began.map_or(f64::NEG_INFINITY, |began| began + LOADING);
    let points = || {
        let all = gpu.memory.iter().map(|(at, mib)| (f64::from(*at), f64::from(*mib)));
        all.skip_while(move |(at, _)| *at < loaded)
    };
    let since = |seconds: f64| points().filter(move |(at, _)| t - at <= seconds + 30.0);
    // Needs nine minutes of data after loading.
    points().next().filter(|(at, _)| t - at >= 540.0)?;
    let (span, growth) = since(limits.window).next().map_or((0.0, 0.0), |(at, mib)| (t - at, now - mib));
    let recent = now - since(600.0).next().map_or(now, |(_, mib)| mib);
    let mut before = 0.0_f64;
    let never_fell = since(600.0).all(|(_, mib)| {
        let is_up = mib + 16.0 >= before;
        before = before.max(mib);
        is_up
    });
    let (begin, first) = since(300.0).next().unwrap_or((t, now));
    let slope = if t - begin >= 200.0 { (now - first) / (t - begin) } else { 0.0 };
    let full_in = if slope > 0.0 { free / 1_048_576.0 / slope } else { f64::INFINITY };
    let grows = growth >= limits.growth && recent >= limits.growth / 4.0 && slope > 0.0;
    let is_soon = full_in < limits.full_in && recent >= 32.0;
    (never_fell && (grows || is_soon)).then_some(Pressure { position, free, total, growth, span, full_in })
}

#[cfg(test)]
mod tests {
    use crate::diagnosis::testing::{RuleTester, TestSample};
    use crate::fleet::fixture::{gpus, process};
    use crate::wire::{Ancestor, GpuReading, Snapshot};

    fn uses(tester: &mut RuleTester, mib: u64) -> TestSample {
        uses_as("python train.py", tester, mib)
    }

    fn uses_as(command: &str, tester: &mut RuleTester, mib: u64) -> TestSample {
        let mut job = process(7, command, &[(0, 1)]);
        job.gpus[0].gpu_memory_bytes = Some(mib << 20);
        let mut gpu = tester.gpu(97, 550.0, 40, 40);
        gpu.memory_used_bytes = Some(mib << 20);
        TestSample { gpus: vec![gpu], processes: vec![job] }
    }

    #[test]
    fn a_leak_is_detected_from_the_history() {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 10.0;
        tester.run(7500.0, |tester, t| uses(tester, 20_000 + (t / 60.0 * 150.0) as u64));
        assert_eq!(tester.firing(), [("gpu-mem-leak", "warn")]);
        let sentence = tester.finding("gpu-mem-leak").sentence.to_string();
        assert!(sentence.starts_with("train.py (alice, pid 7) grew steadily by 17"), "{sentence}");
        assert!(sentence.contains("in 1 h 59 min: "), "{sentence}");
        // Detected before two hours have passed: the sentence names the observed time.
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(5950.0, |tester, t| uses(tester, 20_000 + (t / 60.0 * 50.0) as u64));
        let sentence = tester.finding("gpu-mem-leak").sentence.to_string();
        assert!(sentence.contains("in 1 h 3"), "{sentence}");
    }

    #[test]
    fn a_slow_leak_warns_when_the_memory_is_nearly_full() {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 10.0;
        // Ten MiB a minute: 1.2 GiB in two hours.
        let grows = |tester: &mut RuleTester, t: f64| uses(tester, 79_700 + (t / 60.0 * 10.0) as u64);
        tester.run(7800.0, grows);
        assert!(tester.firing().contains(&("gpu-mem-leak", "info")), "{:?}", tester.firing());
        tester.run(1800.0, |tester, t| grows(tester, 7800.0 + t));
        assert!(tester.firing().contains(&("gpu-mem-leak", "warn")), "{:?}", tester.firing());
    }

    #[test]
    fn memory_that_grows_before_the_gpus_are_used_is_loaded() {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.interval = 10.0;
        tester.run(7500.0, |tester, t| {
            let mut sample = uses(tester, 20_000 + (t / 60.0 * 50.0) as u64);
            sample.gpus[0].utilization_percent = Some(0);
            sample
        });
        assert!(!tester.fired().iter().any(|(rule, _)| *rule == "gpu-mem-leak"), "{:?}", tester.fired());
    }

    #[test]
    fn memory_that_grows_with_the_work_of_the_gpu_notifies_nobody() {
        let fired = |watts: &dyn Fn(f64) -> f32| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.interval = 20.0;
            tester.run(6300.0, |tester, t| {
                let mut sample = uses(tester, 20_000 + (t / 60.0 * 450.0) as u64);
                sample.gpus[0].power_watts = Some(watts(t));
                sample
            });
            tester.fired().into_iter().filter(|(rule, _)| *rule == "gpu-mem-leak").collect::<Vec<_>>()
        };
        assert_eq!(fired(&|_| 550.0), [("gpu-mem-leak", "warn")]);
        assert_eq!(fired(&|t| 300.0 + t as f32 / 25.0), [("gpu-mem-leak", "info")], "its sequences become longer");
    }

    #[test]
    fn the_memory_of_a_server_that_grows_for_three_quarters_of_an_hour_leaks() {
        let fired = |command: &str| {
            let mut tester = RuleTester::new(gpus(0..1));
            tester.interval = 20.0;
            tester.run(3000.0, |tester, t| uses_as(command, tester, 20_000 + (t / 60.0 * 900.0) as u64));
            tester.fired().into_iter().filter(|(rule, _)| *rule == "gpu-mem-leak").collect::<Vec<_>>()
        };
        assert_eq!(fired("python asr_server.py"), [("gpu-mem-leak", "warn")]);
        assert_eq!(fired("python train.py")[0], ("gpu-mem-leak", "info"), "until it is full within 20 min");
    }

    #[test]
    fn ranks_that_leak_together_are_one_finding() {
        let mut tester = RuleTester::new(gpus(0..3));
        tester.interval = 10.0;
        tester.run(7500.0, |tester, t| {
            let mib = 20_000 + (t / 60.0 * 150.0) as u64;
            let rank = |gpu: u16| {
                let mut rank = process(7 + u32::from(gpu), "python train.py", &[(gpu, 1)]);
                let parent = Ancestor { pid: 5, uid: Some(1000), name: "torchrun".into(), ..Ancestor::default() };
                rank.facts.ancestors = vec![parent];
                rank.gpus[0].gpu_memory_bytes = Some((mib + u64::from(gpu)) << 20);
                rank
            };
            let full = |tester: &mut RuleTester| GpuReading {
                memory_used_bytes: Some(mib << 20),
                ..tester.gpu(97, 550.0, 40, 40)
            };
            TestSample { gpus: (0..3).map(|_| full(tester)).collect(), processes: (0..3).map(rank).collect() }
        });
        assert_eq!(tester.firing(), [("gpu-mem-leak", "warn")]);
        let finding = tester.finding("gpu-mem-leak");
        assert_eq!((finding.gpus.len(), finding.processes.len()), (3, 3));
        assert!(finding.sentence.contains(", as did 2 other processes: its GPU memory"), "{}", finding.sentence);
    }

    #[test]
    fn nearly_full_memory_is_listed_only_while_it_grows() {
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(3600.0, |tester, _| uses(tester, 80_400));
        assert_eq!(tester.fired(), [], "98 % and flat");
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run(1800.0, |tester, t| uses(tester, 79_200 + (t / 3.0) as u64));
        assert_eq!(tester.firing(), [("gpu-mem-pressure", "info")]);
    }

    #[test]
    fn several_gpus_of_one_job_are_one_finding() {
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
        assert_eq!(tester.firing(), [("gpu-mem-pressure", "info")]);
        let finding = tester.finding("gpu-mem-pressure");
        assert_eq!(finding.gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [0, 1, 2]);
        let sentence = finding.sentence.to_string();
        assert!(
            sentence.starts_with("GPUs 0-2: 1.6 GiB of 80 GiB are free on GPU 0 after growing by 0.6 GiB in"),
            "{sentence}"
        );
        assert!(sentence.ends_with(": train.py (alice, pid 7)"), "{sentence}");
    }

    #[test]
    fn memory_loaded_in_the_first_minutes_is_not_growth() {
        let loads = |tester: &mut RuleTester, t: f64| uses(tester, (100.0 * t).min(80_400.0) as u64);
        let young = |snapshot: &mut Snapshot, t: f64| snapshot.processes.age_seconds = vec![Some(t + 1.0)];
        let mut tester = RuleTester::new(gpus(0..1));
        tester.run_edited(3600.0, loads, young);
        assert_eq!(tester.fired(), [], "loaded in 14 min, then flat");
        // Later growth counts.
        let mut tester = RuleTester::new(gpus(0..1));
        let grows = |tester: &mut RuleTester, t: f64| uses(tester, 79_200 + (t / 3.0) as u64);
        tester.run_edited(2400.0, grows, young);
        assert_eq!(tester.firing(), [("gpu-mem-pressure", "info")]);
    }
}
