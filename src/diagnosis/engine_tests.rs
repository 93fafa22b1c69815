use super::super::testing::{Lab, Shot};
use super::*;
use crate::diagnosis::Snoozed;
use crate::fleet::fixture::{TestProcess, gpus, process};
use crate::fleet::{HostUpdate, LinkError, LinkErrorKind};
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
fn across() -> Lab {
    Lab::of(vec![gpus(0..2), gpus(0..2)], Thresholds::default())
}

/// Both hosts, each GPU at this utilisation and power, for some seconds.
fn both(lab: &mut Lab, seconds: f64, states: [[(u8, f32, u8); 2]; 2]) {
    let end = lab.t + seconds;
    while lab.t < end {
        for (id, gpus) in states.iter().enumerate() {
            let gpus =
                gpus.iter().map(|(utilization, watts, memory)| lab.gpu(*utilization, *watts, *memory, 70)).collect();
            let pid = 100 * (id as u32 + 1);
            lab.send(id, &Shot { gpus, processes: vec![slurm(pid, 0), slurm(pid + 1, 1)] }, |_| {});
        }
        lab.pass(10.0);
    }
}

const WORKS: (u8, f32, u8) = (98, 560.0, 45);
const SPINS: (u8, f32, u8) = (100, 110.0, 0);
const RESTS: (u8, f32, u8) = (0, 122.0, 0);

#[test]
fn a_job_that_hangs_on_two_hosts_is_one_finding() {
    let mut lab = across();
    both(&mut lab, 900.0, [[WORKS; 2]; 2]);
    both(&mut lab, 620.0, [[SPINS; 2]; 2]);
    assert_eq!(lab.firing(), [("stuck-spin", "crit")]);
    assert_eq!(lab.notified(), 2);
    let finding = lab.finding("stuck-spin");
    let names: Vec<&str> = finding.hosts.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, ["hgx-00", "hgx-01"]);
    assert!(finding.sentence.contains("Slurm 3385"), "{}", finding.sentence);
}

#[test]
fn the_host_whose_rank_never_arrived_is_named() {
    let mut lab = across();
    both(&mut lab, 900.0, [[WORKS; 2]; 2]);
    both(&mut lab, 330.0, [[SPINS; 2], [SPINS, RESTS]]);
    assert_eq!(lab.firing(), [("missing-rank", "warn")]);
    let finding = lab.finding("missing-rank");
    assert!(finding.sentence.starts_with("the rank on GPU 1 on hgx-01 never arrived"), "{}", finding.sentence);
    assert_eq!(finding.next_check, "ssh hgx-01 py-spy dump --pid 200");
}

#[test]
fn a_host_out_of_reach_freezes_its_findings() {
    let mut lab = Lab::of(vec![gpus(0..1), gpus(0..1)], Thresholds::default());
    let shot = |lab: &mut Lab, state: ProcessState| {
        let mut job = process(7, "python train.py", &[(0, 40)]);
        job.reading.state = Some(state);
        Shot { gpus: vec![lab.gpu(0, 122.0, 0, 40)], processes: vec![job] }
    };
    lab.play(400.0, |lab, _| shot(lab, ProcessState::Stopped));
    assert_eq!(lab.firing(), [("stopped-holding-gpu", "warn")]);
    let error = LinkError::new(LinkErrorKind::Timeout, "no answer within 10 s");
    lab.update(0, HostUpdate::Down { error, retry_at: None, attempt: 1 });
    lab.pass(60.0);
    assert_eq!(lab.firing(), [("stopped-holding-gpu", "warn"), ("host-unreachable", "warn")]);
    let frozen = lab.finding("stopped-holding-gpu");
    assert!(frozen.is_frozen);
    assert!(frozen.lasted(lab.now()).as_secs() < 420, "its age stands still too: {:?}", frozen.lasted(lab.now()));
}

#[test]
fn who_was_told_is_remembered_over_a_restart() {
    let hung = |lab: &mut Lab, _: f64| Shot {
        gpus: vec![lab.gpu(0, 122.0, 0, 40)],
        processes: vec![{
            let mut job = process(7, "python train.py", &[(0, 40)]);
            job.reading.state = Some(ProcessState::Stopped);
            job
        }],
    };
    let mut lab = Lab::new(gpus(0..1));
    lab.play(400.0, hung);
    assert_eq!(lab.notified(), 1);
    let memory = lab.engine.memory(&lab.fleet, lab.now());
    let mut next = Lab::new(gpus(0..1));
    next.t = lab.t + 60.0;
    next.engine.recall(memory, next.now());
    next.play(400.0, hung);
    assert_eq!((next.firing(), next.notified()), (vec![("stopped-holding-gpu", "warn")], 0));
}

/// A process that is stopped while it holds a GPU.
fn stopped(lab: &mut Lab, _: f64) -> Shot {
    let mut job = process(7, "python train.py", &[(0, 40)]);
    job.reading.state = Some(ProcessState::Stopped);
    Shot { gpus: vec![lab.gpu(0, 122.0, 0, 40)], processes: vec![job] }
}

fn working(lab: &mut Lab, _: f64) -> Shot {
    Shot { gpus: vec![lab.gpu(97, 560.0, 40, 40)], processes: vec![process(7, "python train.py", &[(0, 40)])] }
}

/// The next run of the program, some seconds later, with what this one has kept.
fn restarted(lab: &Lab, later: f64) -> Lab {
    let text = serde_json::to_string(&lab.engine.memory(&lab.fleet, lab.now())).expect("encodes");
    let mut next = Lab::new(gpus(0..1));
    next.t = lab.t + later;
    next.engine.recall(crate::diagnosis::Memory::parse(&text).expect("reads"), next.now());
    next
}

fn only_id(lab: &Lab) -> SafeText {
    let ids: Vec<SafeText> = lab.engine.findings().map(|finding| finding.id.clone()).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    ids[0].clone()
}

#[test]
fn a_snoozed_finding_calls_nobody_for_an_hour_and_then_once_again() {
    let mut lab = Lab::new(gpus(0..1));
    lab.play(100.0, stopped);
    let now = lab.now();
    let id = only_id(&lab);
    assert!(lab.engine.snooze(&id, Some(Duration::from_secs(3600)), now));
    lab.play(1000.0, stopped);
    let finding = lab.finding("stopped-holding-gpu");
    assert_eq!((finding.phase, finding.counts(), lab.notified()), (Phase::Firing, false, 0));
    assert_eq!(finding.snoozed, Some(Snoozed::Until(now.plus(Duration::from_secs(3600)))));
    // A restart changes nothing.
    let mut next = restarted(&lab, 60.0);
    next.play(1000.0, stopped);
    let finding = next.finding("stopped-holding-gpu");
    assert_eq!((finding.phase, finding.snoozed.is_some(), next.notified()), (Phase::Firing, true, 0));
    next.play(3000.0, stopped);
    assert_eq!((next.finding("stopped-holding-gpu").counts(), next.notified()), (true, 1));
    let reminder = next.transitions.iter().find(|transition| transition.notify).expect("was told");
    assert!(reminder.is_reminder && (reminder.from, reminder.to) == (Phase::Firing, Phase::Firing));
    next.play(3000.0, stopped);
    assert_eq!(next.notified(), 1);
}

#[test]
fn a_snooze_until_it_changes_ends_with_the_finding_and_one_that_is_undone_tells_nothing() {
    let mut lab = Lab::new(gpus(0..1));
    lab.play(400.0, stopped);
    assert_eq!(lab.notified(), 1);
    let (id, now) = (only_id(&lab), lab.now());
    assert!(lab.engine.snooze(&id, None, now));
    let mut lab = restarted(&lab, 3600.0);
    lab.play(4000.0, stopped);
    assert_eq!(lab.finding("stopped-holding-gpu").snoozed, Some(Snoozed::UntilItChanges));
    lab.play(600.0, working);
    assert_eq!(lab.firing(), []);
    lab.play(400.0, stopped);
    let finding = lab.finding("stopped-holding-gpu");
    assert_eq!((finding.snoozed, finding.counts()), (None, true), "it has changed");
    let (id, now, before) = (only_id(&lab), lab.now(), lab.notified());
    assert!(lab.engine.snooze(&id, None, now));
    lab.play(60.0, stopped);
    let now = lab.now();
    lab.engine.wake(&id, now);
    assert!(lab.finding("stopped-holding-gpu").counts(), "at once");
    lab.play(600.0, stopped);
    assert_eq!(lab.notified(), before, "whoever undid it has seen it");
    let now = lab.now();
    assert!(!lab.engine.snooze(&"no such finding".into(), None, now));
}

#[test]
fn a_hang_after_a_restart_is_measured_against_the_work_before_it() {
    let mut lab = Lab::new(gpus(0..1));
    lab.play(1800.0, working);
    let mut next = restarted(&lab, 3600.0);
    next.play(420.0, |lab, _| Shot {
        gpus: vec![lab.gpu(100, 104.0, 0, 40)],
        processes: vec![process(7, "python train.py", &[(0, 40)])],
    });
    assert_eq!(next.firing(), [("stuck-spin", "warn")], "not only suspected");
    let sentence = next.finding("stuck-spin").sentence.to_string();
    assert!(sentence.contains("(was 5"), "{sentence}");
}

#[test]
fn learned_power_survives_a_restart_and_moves_the_spin_power() {
    let mut lab = Lab::new(gpus(0..1));
    let job = || vec![process(7, "python a.py", &[(0, 40)])];
    lab.play(300.0, |lab, _| Shot { gpus: vec![lab.gpu(0, 122.0, 0, 40)], processes: job() });
    let learned = lab.engine.idle_watts(HostId(0), 0).expect("learned");
    assert!((118.0..125.0).contains(&learned), "{learned}");
    let memory = lab.engine.memory(&lab.fleet, lab.now());
    let mut next = Lab::new(gpus(0..1));
    next.engine.recall(memory, next.now());
    next.play(10.0, |lab, _| Shot { gpus: vec![lab.gpu(100, 200.0, 0, 40)], processes: job() });
    assert_eq!(next.engine.idle_watts(HostId(0), 0), Some(learned));
    assert!(!next.engine.is_low_power(HostId(0), 0), "200 W lie above 191, and below what is assumed unlearned");
}

#[test]
fn a_rule_that_is_switched_off_for_the_host_says_nothing() {
    let off = 1 << RuleId::StoppedHoldingGpu as u64;
    let mut lab = Lab::of(vec![gpus(0..1)], Thresholds { off, ..Thresholds::default() });
    lab.play(600.0, |lab, _| Shot {
        gpus: vec![lab.gpu(0, 122.0, 0, 40)],
        processes: vec![{
            let mut job = process(7, "python train.py", &[(0, 40)]);
            job.reading.state = Some(ProcessState::Stopped);
            job
        }],
    });
    assert_eq!(lab.fired(), []);
}

/// Eight GPUs and forty processes at work, two hours of them.
fn large() -> (Lab, Shot) {
    let mut lab = Lab::new(gpus(0..8));
    let rank = |number: u32| {
        let mut rank = process(100 + number, "python train.py", &[((number % 8) as u16, 10)]);
        let pid = 10 + number / 5;
        rank.facts.ancestors =
            vec![Ancestor { pid, start_ticks: 1, uid: Some(1000), name: "torchrun".into(), argv: vec![] }];
        rank
    };
    let processes: Vec<TestProcess> = (0..40).map(rank).collect();
    let gpus = (0..8).map(|_| lab.gpu(97, 550.0, 40, 52)).collect();
    let shot = Shot { gpus, processes };
    lab.every = 10.0;
    lab.play(7300.0, |_, _| shot.clone());
    (lab, shot)
}

#[test]
fn a_host_takes_little_memory_and_little_time() {
    let (mut lab, shot) = large();
    let history = lab.fleet.hosts()[0].history().memory_bytes();
    let engine = lab.engine.memory_bytes(HostId(0));
    assert!(history + engine <= 350_000, "{history} + {engine}");
    let now = lab.now();
    let mut longest = std::time::Duration::ZERO;
    let begin = Instant::now();
    for sample in 0..20 {
        lab.t += 10.0;
        lab.send(0, &shot, |_| {});
        let host = HostId(0);
        let begin = Instant::now();
        // The sample is judged already: this measures what an update without one costs.
        lab.engine.step(&lab.fleet, host, now);
        longest = longest.max(begin.elapsed());
        assert!(sample < 20);
    }
    // Not a benchmark: this build is not optimised. It notices what is quadratic.
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
    fn no_readings_and_no_clock_make_it_panic_or_lie_about_time(
        samples in proptest::collection::vec(
            (absurd_reading(), -5000.0_f64..5000.0, proptest::option::of(any::<f64>()), any::<u8>()), 1..40)
    ) {
        let mut lab = Lab::new(gpus(0..2));
        for (reading, jump, absurd, letter) in samples {
            // The controller's clock jumps, back to its beginning at the most.
            lab.t = (lab.t + jump).max(0.0);
            let mut job = process(7, "python train.py", &[(0, 40)]);
            job.reading.start_ticks = Some(u64::from(letter % 3));
            job.reading.state = Some(ProcessState::from_letter(char::from(letter)));
            job.reading.cpu_seconds = absurd;
            job.reading.blocked_seconds = absurd.map(|value| value as f32);
            job.reading.log_age_seconds = absurd;
            let shot = Shot { gpus: vec![reading.clone(), reading.clone()], processes: vec![job] };
            lab.send(0, &shot, |snapshot: &mut Snapshot| {
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
            let now = lab.now();
            lab.transitions.extend(lab.engine.tick(&lab.fleet, now));
            for finding in lab.engine.findings() {
                prop_assert!(!finding.sentence.contains("NaN") && !finding.sentence.contains("inf "), "{}", finding.sentence);
            }
        }
    }
}
