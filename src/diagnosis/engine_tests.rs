use super::super::testing::{RuleTester, TestSample};
use super::*;
use crate::diagnosis::SnoozeEnd;
use crate::fleet::fixture::{TestProcess, at, gpus, process};
use crate::fleet::{HostUpdate, JobKey, LinkError, LinkErrorKind};
use crate::wire::{
    Ancestor, Filesystem, GpuHealth, GpuHealthColumns, GpuReading, Owner, ProcessState, RecentPast, Snapshot, XidEvent,
};
use proptest::prelude::*;
use std::time::Instant;

fn slurm(pid: u32, gpu: u16) -> TestProcess {
    let mut rank = process(pid, "python train.py", &[(gpu, 70)]);
    rank.facts.owner = Some(Owner::Slurm { job: "3385".into(), step: None });
    rank
}

/// Two hosts of two GPUs under one Slurm job.
fn across() -> RuleTester {
    RuleTester::of(vec![gpus(0..2), gpus(0..2)], Thresholds::default())
}

/// Samples of both hosts for some seconds, with utilisation, power and memory utilisation per GPU.
fn both(tester: &mut RuleTester, seconds: f64, states: [[(u8, f32, u8); 2]; 2]) {
    let end = tester.t + seconds;
    while tester.t < end {
        for (id, gpus) in states.iter().enumerate() {
            let gpus =
                gpus.iter().map(|(utilization, watts, memory)| tester.gpu(*utilization, *watts, *memory, 70)).collect();
            let pid = 100 * (id as u32 + 1);
            let mut processes = vec![slurm(pid, 0), slurm(pid + 1, 1)];
            for (process, (utilization, ..)) in processes.iter_mut().zip(states[id]) {
                process.reading.cpu_percent = Some(if utilization == 0 { 0.4 } else { 100.0 });
            }
            tester.send(id, &TestSample { gpus, processes }, |_| {});
        }
        tester.wait(10.0);
    }
}

const WORKS: (u8, f32, u8) = (98, 560.0, 45);
const SPINS: (u8, f32, u8) = (100, 110.0, 0);
const IDLES: (u8, f32, u8) = (0, 122.0, 0);

#[test]
fn a_job_that_hangs_on_two_hosts_is_one_finding() {
    let mut tester = across();
    both(&mut tester, 900.0, [[WORKS; 2]; 2]);
    both(&mut tester, 620.0, [[SPINS; 2]; 2]);
    assert_eq!(tester.firing(), [("stuck-spin", "crit")]);
    assert_eq!(tester.notified(), 2);
    let finding = tester.finding("stuck-spin");
    let names: Vec<&str> = finding.hosts.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, ["hgx-00", "hgx-01"]);
    assert!(finding.sentence.contains("Slurm 3385"), "{}", finding.sentence);
}

#[test]
fn the_job_of_root_is_named_once() {
    let mut tester = RuleTester::new(gpus(0..1));
    let sentence = |tester: &mut RuleTester, owner: Owner| {
        tester.run(7200.0, |tester, _| {
            let mut holder = process(7, "sleep", &[(0, 40)]);
            (holder.facts.user, holder.facts.uid) = (Some("root".into()), Some(0));
            holder.facts.owner = Some(owner.clone());
            TestSample { gpus: vec![tester.gpu(0, 122.0, 0, 40)], processes: vec![holder] }
        });
        tester.finding("idle-hog").sentence.to_string()
    };
    let slurm = sentence(&mut tester, Owner::Slurm { job: "3385".into(), step: None });
    assert!(slurm.starts_with("sleep (slurm 3385, pid 7) holds"), "{slurm}");
    let mut tester = RuleTester::new(gpus(0..1));
    let docker = sentence(&mut tester, Owner::Container { runtime: "docker".into(), id: "0c44e1f2b7a9".into() });
    assert!(docker.starts_with("sleep (docker 0c44e1f2b7a9, pid 7) holds"), "{docker}");
}

#[test]
fn the_host_of_a_missing_rank_is_named() {
    let mut tester = across();
    both(&mut tester, 900.0, [[WORKS; 2]; 2]);
    both(&mut tester, 330.0, [[SPINS; 2], [SPINS, IDLES]]);
    assert_eq!(tester.firing(), [("missing-rank", "warn")]);
    let finding = tester.finding("missing-rank");
    assert!(finding.sentence.starts_with("the rank on GPU 1 on hgx-01 never arrived"), "{}", finding.sentence);
    assert_eq!(finding.next_check, "gpufleet why hgx-01:200");
}

/// The states of the GPUs of both hosts.
fn states(tester: &RuleTester) -> [Vec<GpuState>; 2] {
    [0, 1].map(|id| tester.engine.states(HostId(id)).iter().map(|(state, _)| *state).collect())
}

#[test]
fn a_job_that_hangs_on_two_hosts_hangs_on_the_gpus_of_both() {
    let mut tester = across();
    both(&mut tester, 900.0, [[WORKS; 2]; 2]);
    // While a rank may work on the other host, a wait is no suspicion.
    both(&mut tester, 160.0, [[SPINS; 2]; 2]);
    let suspected = |id: u32| {
        let suspicions = tester.engine.suspicions(HostId(id));
        suspicions.flat_map(|one| &one.gpus).filter(|gpu| gpu.host == HostId(id)).count()
    };
    assert_eq!([suspected(0), suspected(1)], [2, 2]);
    both(&mut tester, 460.0, [[SPINS; 2]; 2]);
    assert_eq!(tester.firing(), [("stuck-spin", "crit")]);
    assert_eq!(states(&tester), [vec![GpuState::Hung; 2], vec![GpuState::Hung; 2]]);
    assert_eq!(tester.engine.severity_of_state(HostId(1), 0), Some(Severity::Crit));
    let key = JobKey::Slurm { cluster: None, job: "3385".into() };
    assert!(tester.finding("stuck-spin").concerns_job(HostId(1), &key));
    // The finding under the first host remains while that host is out of reach. The second host shows its own state.
    let error = LinkError::new(LinkErrorKind::Timeout, "no answer within 10 s");
    tester.update(0, HostUpdate::Down { error, retry_at: None, attempt: 1 });
    for _ in 0..3 {
        let gpus = vec![tester.gpu(98, 560.0, 45, 70), tester.gpu(100, 110.0, 0, 70)];
        tester.send(1, &TestSample { gpus, processes: vec![slurm(200, 0), slurm(201, 1)] }, |_| {});
        tester.wait(10.0);
    }
    assert_eq!(states(&tester)[1], [GpuState::InUse, GpuState::Hung]);
    both(&mut tester, 120.0, [[WORKS; 2]; 2]);
    assert_eq!(states(&tester), [vec![GpuState::InUse; 2], vec![GpuState::InUse; 2]]);
}

#[test]
fn a_job_that_was_never_seen_at_work_hangs_on_both_hosts() {
    let mut tester = across();
    both(&mut tester, 1500.0, [[SPINS; 2]; 2]);
    assert_eq!(tester.firing(), [("stuck-spin-suspect", "warn")]);
    assert_eq!(tester.finding("stuck-spin-suspect").hosts.len(), 2);
    assert_eq!(states(&tester), [vec![GpuState::Hung; 2], vec![GpuState::Hung; 2]]);
}

#[test]
fn the_gpu_of_a_missing_rank_hangs_on_its_host() {
    let mut tester = across();
    both(&mut tester, 900.0, [[WORKS; 2]; 2]);
    both(&mut tester, 330.0, [[SPINS; 2], [SPINS, IDLES]]);
    assert_eq!(states(&tester), [vec![GpuState::Hung; 2], vec![GpuState::Hung; 2]]);
    assert_eq!(tester.finding("missing-rank").gpus.len(), 4);
}

#[test]
fn memory_that_lies_idle_ranks_behind_a_job_that_hangs() {
    let mut tester = RuleTester::new(gpus(0..3));
    let notebook = || {
        let mut notebook = process(9, "python -m ipykernel_launcher -f k.json", &[(2, 60)]);
        notebook.reading.cpu_percent = Some(0.1);
        notebook
    };
    let sample = |tester: &mut RuleTester, (utilization, watts, memory): (u8, f32, u8)| TestSample {
        gpus: vec![
            tester.gpu(utilization, watts, memory, 70),
            tester.gpu(utilization, watts, memory, 70),
            tester.gpu(0, 70.0, 0, 60),
        ],
        processes: vec![process(7, "python train.py", &[(0, 70), (1, 70)]), notebook()],
    };
    tester.interval = 30.0;
    tester.run(12.2 * 3600.0, |tester, _| sample(tester, WORKS));
    assert_eq!(tester.firing(), [("idle-hog", "crit")]);
    tester.run(420.0, |tester, _| sample(tester, SPINS));
    assert_eq!(tester.firing(), [("stuck-spin", "warn"), ("idle-hog", "crit")]);
}

#[test]
fn an_unreachable_host_freezes_its_findings() {
    let mut tester = RuleTester::of(vec![gpus(0..1), gpus(0..1)], Thresholds::default());
    let test_sample = |tester: &mut RuleTester, state: ProcessState| {
        let mut job = process(7, "python train.py", &[(0, 40)]);
        job.reading.state = Some(state);
        TestSample { gpus: vec![tester.gpu(0, 122.0, 0, 40)], processes: vec![job] }
    };
    tester.run(400.0, |tester, _| test_sample(tester, ProcessState::Stopped));
    assert_eq!(tester.firing(), [("stopped-holding-gpu", "warn")]);
    let error = LinkError::new(LinkErrorKind::Timeout, "no answer within 10 s");
    tester.update(0, HostUpdate::Down { error, retry_at: None, attempt: 1 });
    tester.wait(120.0);
    assert_eq!(tester.firing(), [("stopped-holding-gpu", "warn"), ("host-unreachable", "warn")]);
    let frozen = tester.finding("stopped-holding-gpu");
    assert!(frozen.is_frozen);
    assert!(
        frozen.lasted(tester.now()).as_secs() < 420,
        "its duration stands still: {:?}",
        frozen.lasted(tester.now())
    );
}

#[test]
fn a_restart_does_not_notify_again() {
    let hung = |tester: &mut RuleTester, _: f64| TestSample {
        gpus: vec![tester.gpu(0, 122.0, 0, 40)],
        processes: vec![{
            let mut job = process(7, "python train.py", &[(0, 40)]);
            job.reading.state = Some(ProcessState::Stopped);
            job
        }],
    };
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(400.0, hung);
    assert_eq!(tester.notified(), 1);
    let saved = tester.engine.to_saved_state(&tester.fleet, tester.now());
    let mut next = RuleTester::new(gpus(0..1));
    next.t = tester.t + 60.0;
    next.engine.restore(saved, next.now());
    next.run(400.0, hung);
    assert_eq!((next.firing(), next.notified()), (vec![("stopped-holding-gpu", "warn")], 0));
}

/// A stopped process that holds a GPU.
fn stopped(tester: &mut RuleTester, _: f64) -> TestSample {
    let mut job = process(7, "python train.py", &[(0, 40)]);
    job.reading.state = Some(ProcessState::Stopped);
    TestSample { gpus: vec![tester.gpu(0, 122.0, 0, 40)], processes: vec![job] }
}

fn working(tester: &mut RuleTester, _: f64) -> TestSample {
    TestSample { gpus: vec![tester.gpu(97, 560.0, 40, 40)], processes: vec![process(7, "python train.py", &[(0, 40)])] }
}

/// The next run of the program, `later` seconds later, with the saved state of this one.
fn restarted(tester: &RuleTester, later: f64) -> RuleTester {
    let text = serde_json::to_string(&tester.engine.to_saved_state(&tester.fleet, tester.now())).expect("encodes");
    let mut next = RuleTester::new(gpus(0..1));
    next.t = tester.t + later;
    next.engine.restore(crate::diagnosis::SavedState::parse(&text).expect("parses"), next.now());
    next
}

fn only_id(tester: &RuleTester) -> SafeText {
    let ids: Vec<SafeText> = tester.engine.findings().map(|finding| finding.id.clone()).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    ids[0].clone()
}

#[test]
fn a_snoozed_finding_notifies_once_after_the_snooze() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(100.0, stopped);
    let now = tester.now();
    let id = only_id(&tester);
    assert!(tester.engine.snooze(&id, Some(Duration::from_secs(3600)), now));
    tester.run(1000.0, stopped);
    let finding = tester.finding("stopped-holding-gpu");
    assert_eq!((finding.phase, finding.is_alerting(), tester.notified()), (FindingPhase::Firing, false, 0));
    assert_eq!(finding.snoozed, Some(SnoozeEnd::At(now.plus(Duration::from_secs(3600)))));
    // The snooze survives a restart.
    let mut next = restarted(&tester, 60.0);
    next.run(1000.0, stopped);
    let finding = next.finding("stopped-holding-gpu");
    assert_eq!((finding.phase, finding.snoozed.is_some(), next.notified()), (FindingPhase::Firing, true, 0));
    next.run(3000.0, stopped);
    assert_eq!((next.finding("stopped-holding-gpu").is_alerting(), next.notified()), (true, 1));
    let reminder = next.transitions.iter().find(|transition| transition.notify).expect("notified");
    assert!(reminder.is_reminder && (reminder.from, reminder.to) == (FindingPhase::Firing, FindingPhase::Firing));
    next.run(3000.0, stopped);
    assert_eq!(next.notified(), 1);
}

#[test]
fn a_snooze_on_change_ends_when_the_finding_clears() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(400.0, stopped);
    assert_eq!(tester.notified(), 1);
    let (id, now) = (only_id(&tester), tester.now());
    assert!(tester.engine.snooze(&id, None, now));
    let mut tester = restarted(&tester, 3600.0);
    tester.run(4000.0, stopped);
    assert_eq!(tester.finding("stopped-holding-gpu").snoozed, Some(SnoozeEnd::OnChange));
    tester.run(600.0, working);
    assert_eq!(tester.firing(), []);
    tester.run(400.0, stopped);
    let finding = tester.finding("stopped-holding-gpu");
    assert_eq!((finding.snoozed, finding.is_alerting()), (None, true), "the finding cleared in between");
    let (id, now, before) = (only_id(&tester), tester.now(), tester.notified());
    assert!(tester.engine.snooze(&id, None, now));
    tester.run(60.0, stopped);
    let now = tester.now();
    tester.engine.end_snooze(&id, now);
    assert!(tester.finding("stopped-holding-gpu").is_alerting(), "at once");
    tester.run(600.0, stopped);
    assert_eq!(tester.notified(), before, "the user who ended the snooze has seen the finding");
    let now = tester.now();
    assert!(!tester.engine.snooze(&"no such finding".into(), None, now));
}

#[test]
fn a_hang_after_a_restart_is_compared_with_the_saved_baseline() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(1800.0, working);
    let mut next = restarted(&tester, 3600.0);
    next.run(720.0, |tester, _| TestSample {
        gpus: vec![tester.gpu(100, 104.0, 0, 40)],
        processes: vec![process(7, "python train.py", &[(0, 40)])],
    });
    assert_eq!(next.firing(), [("stuck-spin", "warn")], "not stuck-spin-suspect");
    let sentence = next.finding("stuck-spin").sentence.to_string();
    assert!(sentence.contains("(was 5"), "{sentence}");
}

#[test]
fn learned_idle_power_survives_a_restart() {
    let mut tester = RuleTester::new(gpus(0..1));
    let job = || vec![process(7, "python a.py", &[(0, 40)])];
    tester.run(300.0, |tester, _| TestSample { gpus: vec![tester.gpu(0, 122.0, 0, 40)], processes: job() });
    let learned = tester.engine.idle_watts(HostId(0), 0).expect("learned");
    assert!((118.0..125.0).contains(&learned), "{learned}");
    let saved = tester.engine.to_saved_state(&tester.fleet, tester.now());
    let mut next = RuleTester::new(gpus(0..1));
    next.engine.restore(saved, next.now());
    next.run(10.0, |tester, _| TestSample { gpus: vec![tester.gpu(100, 200.0, 0, 40)], processes: job() });
    assert_eq!(next.engine.idle_watts(HostId(0), 0), Some(learned));
    assert!(
        !next.engine.is_low_power(HostId(0), 0),
        "200 W is above 191 W, the learned spin power, and below the default of 207 W"
    );
}

#[test]
fn a_disabled_rule_reports_nothing() {
    let off = 1 << RuleId::StoppedHoldingGpu as u64;
    let mut tester = RuleTester::of(vec![gpus(0..1)], Thresholds { off, ..Thresholds::default() });
    tester.run(600.0, |tester, _| TestSample {
        gpus: vec![tester.gpu(0, 122.0, 0, 40)],
        processes: vec![{
            let mut job = process(7, "python train.py", &[(0, 40)]);
            job.reading.state = Some(ProcessState::Stopped);
            job
        }],
    });
    assert_eq!(tester.fired(), []);
}

/// Two hours of eight GPUs and forty processes at work.
fn large() -> (RuleTester, TestSample) {
    let mut tester = RuleTester::new(gpus(0..8));
    let rank = |number: u32| {
        let mut rank = process(100 + number, "python train.py", &[((number % 8) as u16, 10)]);
        let pid = 10 + number / 5;
        rank.facts.ancestors =
            vec![Ancestor { pid, start_ticks: 1, uid: Some(1000), name: "torchrun".into(), argv: vec![] }];
        rank
    };
    let processes: Vec<TestProcess> = (0..40).map(rank).collect();
    let gpus = (0..8).map(|_| tester.gpu(97, 550.0, 40, 52)).collect();
    let test_sample = TestSample { gpus, processes };
    tester.interval = 10.0;
    tester.run(7300.0, |_, _| test_sample.clone());
    (tester, test_sample)
}

#[test]
fn a_large_host_needs_little_memory_and_time() {
    let (mut tester, test_sample) = large();
    let history = tester.fleet.hosts()[0].history().memory_bytes();
    let engine = tester.engine.memory_bytes(HostId(0));
    assert!(history + engine <= 355_000, "{history} + {engine}");
    let now = tester.now();
    let mut longest = std::time::Duration::ZERO;
    let begin = Instant::now();
    for sample in 0..20 {
        tester.t += 10.0;
        tester.send(0, &test_sample, |_| {});
        let host = HostId(0);
        let begin = Instant::now();
        // The sample was evaluated already: this measures an update without a new sample.
        tester.engine.evaluate_host(&tester.fleet, host, now);
        longest = longest.max(begin.elapsed());
        assert!(sample < 20);
    }
    // Not a benchmark, because tests are not optimised. It detects quadratic time.
    if std::env::var_os("GPUFLEET_SHOW_TIME").is_some() {
        println!("{history} + {engine} bytes; 20 samples in {:?}", begin.elapsed());
    }
    assert!(begin.elapsed().as_secs_f64() < 2.0, "{:?}", begin.elapsed());
    assert!(longest.as_secs_f64() < 0.05, "{longest:?}");
}

fn absurd_reading() -> impl Strategy<Value = GpuReading> {
    let float = prop_oneof![Just(f32::NAN), Just(f32::INFINITY), -1e30_f32..1e30, 0.0_f32..700.0];
    let double = prop_oneof![Just(f64::NAN), Just(f64::NEG_INFINITY), -1e300_f64..1e300, 0.0_f64..1e5];
    (
        any::<Option<u8>>(),
        any::<Option<u64>>(),
        proptest::option::of(float),
        proptest::option::of(double),
        any::<Option<u64>>(),
    )
        .prop_map(|(percent, bytes, watts, seconds, mask)| GpuReading {
            utilization_percent: percent,
            memory_utilization_percent: percent,
            memory_used_bytes: bytes,
            power_watts: watts,
            power_mean_watts: watts,
            power_limit_watts: watts,
            thermal_violation_seconds: seconds,
            power_brake_seconds: seconds,
            clocks_event_reasons: mask,
            temperature_celsius: bytes.map(|bytes| bytes as i32),
            blocked_seconds: watts,
            ..GpuReading::default()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn absurd_readings_and_clocks_neither_panic_nor_appear_in_findings(
        samples in proptest::collection::vec(
            (absurd_reading(), -5000.0_f64..5000.0, proptest::option::of(any::<f64>()), any::<u8>()), 1..40)
    ) {
        let mut tester = RuleTester::new(gpus(0..2));
        for (reading, jump, absurd, letter) in samples {
            // The clock of the controller jumps, at most back to its start.
            tester.t = (tester.t + jump).max(0.0);
            let mut job = process(7, "python train.py", &[(0, 40)]);
            job.reading.start_ticks = Some(u64::from(letter % 3));
            job.reading.state = Some(ProcessState::from_letter(char::from(letter)));
            job.reading.cpu_seconds = absurd;
            job.reading.blocked_seconds = absurd.map(|value| value as f32);
            job.reading.log_age_seconds = absurd;
            let test_sample = TestSample { gpus: vec![reading.clone(), reading.clone()], processes: vec![job] };
            tester.send(0, &test_sample, |snapshot: &mut Snapshot| {
                snapshot.monotonic_seconds = absurd.unwrap_or(3.0);
                snapshot.host.oom_kills = Some(u64::from(letter));
                snapshot.host.memory_total_bytes = Some(u64::from(letter));
                snapshot.host.memory_available_bytes = Some(7);
                snapshot.host.filesystems = vec![Filesystem {
                    mount_point: "/".into(),
                    total_bytes: Some(u64::from(letter / 2)),
                    available_bytes: Some(u64::from(letter)),
                    silent_seconds: absurd.map(|value| value as f32),
                    ..Filesystem::default()
                }];
                snapshot.xid_events = vec![XidEvent { gpu: Some(u16::from(letter)), xid: u64::MAX, monotonic_seconds: f64::NAN }];
                snapshot.recent_past = vec![RecentPast {
                    gpu: 0,
                    end_monotonic_seconds: absurd.unwrap_or(1.0),
                    utilization_percent: vec![Some(letter); 5],
                    power_watts: vec![Some(f32::NAN), None, Some(1e30)],
                    ..RecentPast::default()
                }];
                let health = GpuHealth { nvlinks_active: Some(u64::from(letter)), ecc_uncorrectable_volatile: Some(u64::MAX - u64::from(letter)), ..GpuHealth::default() };
                snapshot.health = GpuHealthColumns::from_rows(&[health.clone(), health]);
            });
            let now = tester.now();
            tester.transitions.extend(tester.engine.tick(&tester.fleet, now));
            for finding in tester.engine.findings() {
                prop_assert!(!finding.sentence.contains("NaN") && !finding.sentence.contains("inf "), "{}", finding.sentence);
            }
        }
    }
}

/// One host of two GPUs whose job works for 15 minutes and then looks stuck for `seconds`.
fn stuck_for(seconds: f64, interval: f64) -> RuleTester {
    let mut tester = RuleTester::new(gpus(0..2));
    tester.interval = interval;
    let job = |tester: &mut RuleTester, (utilization, watts, memory): (u8, f32, u8)| TestSample {
        gpus: vec![tester.gpu(utilization, watts, memory, 70), tester.gpu(utilization, watts, memory, 70)],
        processes: vec![process(7, "python train.py", &[(0, 70), (1, 70)])],
    };
    tester.run(900.0, |tester, _| job(tester, WORKS));
    tester.run(seconds, |tester, _| job(tester, SPINS));
    tester
}

#[test]
fn a_job_is_suspected_from_its_second_reading_and_notifies_nobody() {
    let suspected = |seconds: f64, interval: f64| {
        let tester = stuck_for(seconds, interval);
        assert_eq!((tester.firing(), tester.notified()), (vec![], 0), "after {seconds} s");
        tester.engine.suspicions(HostId(0)).map(|finding| finding.gpus.len()).collect::<Vec<_>>()
    };
    // The first reading that looks stuck, and a pause of a few seconds at the shortest intervals.
    assert_eq!(suspected(10.0, 10.0), [0; 0]);
    assert_eq!(suspected(8.0, 2.0), [0; 0]);
    assert_eq!(suspected(12.0, 2.0), [2]);
    assert_eq!(suspected(20.0, 10.0), [2]);
    assert_eq!(suspected(120.0, 60.0), [2]);
}

#[test]
fn a_suspicion_ends_with_the_first_healthy_reading_and_with_the_finding() {
    let mut tester = stuck_for(60.0, 10.0);
    let begin = tester.t - 60.0;
    let suspicion = tester.engine.suspicions(HostId(0)).next().expect("a suspicion").clone();
    assert_eq!(suspicion.since, at(begin));
    tester.run(10.0, |tester, _| TestSample {
        gpus: vec![tester.gpu(98, 560.0, 45, 70), tester.gpu(98, 560.0, 45, 70)],
        processes: vec![process(7, "python train.py", &[(0, 70), (1, 70)])],
    });
    assert_eq!(tester.engine.suspicions(HostId(0)).count(), 0);
    let confirmed = stuck_for(400.0, 10.0);
    assert_eq!(confirmed.firing(), [("stuck-spin", "warn")]);
    assert_eq!(confirmed.engine.suspicions(HostId(0)).count(), 0);
}

#[test]
fn the_states_of_a_lost_host_are_still_known() {
    let mut tester = RuleTester::new(gpus(0..1));
    tester.run(60.0, working);
    let error = LinkError::new(LinkErrorKind::Timeout, "no answer within 10 s");
    tester.update(0, HostUpdate::Down { error, retry_at: None, attempt: 1 });
    tester.wait(5.0);
    assert_eq!(tester.engine.states(HostId(0))[0].0, GpuState::Unknown);
    assert_eq!(tester.engine.last_state(HostId(0), 0).map(|(state, _)| state), Some(GpuState::InUse));
}
