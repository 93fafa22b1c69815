//! Checks that simulated readings are plausible for real hosts.

use super::super::scenario::VIEWER;
use super::super::workload::Workload;
use super::*;
use crate::wire::codec::{decode, encode};
use crate::wire::{ClocksEventReasons, GpuProcessReading, Message, Presence, ProcessState};
use std::time::Duration;

fn at(seconds: f64) -> Moment {
    Moment::default().plus(Duration::from_secs_f64(seconds))
}

fn plan(index: u32) -> HostPlan {
    HostPlan::new(20_251_114, index, 6, 8)
}

fn snapshot(plan: &HostPlan, seconds: f64) -> Snapshot {
    let context = SampleContext {
        now: at(seconds),
        before: Some(at((seconds - 2.0).max(0.0))),
        sequence: 11,
        slow_sample_at: at(seconds),
    };
    plan.snapshot(context, &Ended::new(), &mut SentFacts::new())
}

/// The position of the first GPU with this workload.
fn gpu_of(plan: &HostPlan, kind: Workload) -> usize {
    plan.slots.iter().find(|slot| slot.kind == kind).expect("is there").gpus.start
}

/// The position of the first GPU that runs this script.
fn gpu_with(plan: &HostPlan, script: &str) -> usize {
    let runs = |slot: &&GpuSlot| slot.script.is_some_and(|known| known.starts_with(script));
    plan.slots.iter().find(runs).expect("is there").gpus.start
}

#[test]
fn the_same_moment_gives_the_same_readings() {
    assert_eq!(snapshot(&plan(0), 100.0), snapshot(&plan(0), 100.0));
    assert_ne!(snapshot(&plan(0), 100.0).gpus, snapshot(&plan(0), 102.0).gpus);
    assert_ne!(plan(0).boot_id(), plan(1).boot_id());
}

#[test]
fn every_moment_of_every_host_is_possible() {
    for index in 0..16 {
        let plan = HostPlan::new(20_251_114, index, 40, 8);
        let mut energy = [(0.0, 0.0); 8];
        for step in 0..260 {
            let seconds = 3.0 + f64::from(step) * 27.3;
            let snapshot = snapshot(&plan, seconds);
            let message = Message::Snapshot(Box::new(snapshot.clone()));
            let line = encode(&message).expect("encodes");
            assert!(decode(line.trim_ascii_end()).is_ok());
            for (gpu, energy) in energy.iter_mut().enumerate().take(snapshot.gpus.len()) {
                let reading = snapshot.gpus.row(gpu);
                if reading.error.is_some() {
                    continue;
                }
                let of = |wanted: &GpuProcessReading| wanted.gpu == Some(gpu as u16);
                let held: u64 = (0..snapshot.gpu_processes.len())
                    .map(|row| snapshot.gpu_processes.row(row))
                    .filter(of)
                    .filter_map(|row| row.gpu_memory_bytes)
                    .sum();
                let used = reading.memory_used_bytes.expect("known");
                assert!(used >= held && used - held < 500 << 20, "memory that nobody holds");
                assert!(used + plan.model.memory_reserved_bytes <= plan.model.memory_total_bytes);
                let watts = f64::from(reading.power_watts.expect("known"));
                assert!((40.0..=plan.model.power_limit_watts).contains(&watts), "{watts} W");
                assert!((25..=91).contains(&reading.temperature_celsius.expect("known")));
                let joules = reading.energy_joules.expect("known");
                if energy.1 > 0.0 {
                    let mean = (joules - energy.1) / (seconds - energy.0);
                    assert!((40.0..=plan.model.power_limit_watts).contains(&mean), "mean {mean} W");
                }
                *energy = (seconds, joules);
            }
            assert!(snapshot.host.memory_available_bytes > Some(0));
            assert!(snapshot.host.cpu_percent.is_some_and(|percent| percent <= 100.0));
            assert_eq!(snapshot.facts.len(), snapshot.processes.len());
        }
    }
}

#[test]
fn mean_power_is_the_energy_over_the_time() {
    let plan = plan(1);
    let (first, second) = (snapshot(&plan, 50.0), snapshot(&plan, 52.0));
    for gpu in 0..8 {
        let joules = second.gpus.row(gpu).energy_joules.unwrap() - first.gpus.row(gpu).energy_joules.unwrap();
        let mean = f64::from(second.gpus.row(gpu).power_mean_watts.unwrap());
        assert!((joules / 2.0 - mean).abs() < 0.02, "{joules} J, {mean} W");
    }
}

#[test]
fn a_training_run_looks_like_one() {
    let plan = plan(1);
    let rows: Vec<GpuReading> = (2..402).map(|second| snapshot(&plan, f64::from(second)).gpus.row(3)).collect();
    let count = |of: &dyn Fn(&GpuReading) -> bool| rows.iter().filter(|row| of(row)).count();
    assert!(count(&|row| row.utilization_percent >= Some(85)) > 280);
    assert!(count(&|row| row.utilization_percent < Some(60)) > 8, "dips");
    assert!(count(&|row| row.power_watts > Some(500.0)) > 260);
}

#[test]
fn a_hung_job_reads_full_and_draws_little() {
    let plan = plan(2);
    for seconds in [5.0, 500.0, 5000.0] {
        let reading = snapshot(&plan, seconds).gpus.row(gpu_with(&plan, "sft.py"));
        assert_eq!((reading.utilization_percent, reading.memory_utilization_percent), (Some(100), Some(0)));
        assert!((100.0..=125.0).contains(&reading.power_watts.unwrap()));
        assert_eq!(reading.clock_sm_mhz, Some(1980));
    }
}

#[test]
fn one_job_works_at_first_and_hangs_later() {
    let plan = plan(2);
    let gpu = gpu_with(&plan, "dpo.py");
    let watts = |seconds| snapshot(&plan, seconds).gpus.row(gpu).power_mean_watts.unwrap();
    let healthy: f32 = (0..30).map(|step| watts(100.0 + 2.0 * step as f64)).sum::<f32>() / 30.0;
    assert!(healthy > 400.0, "{healthy}");
    let reading = snapshot(&plan, 700.0).gpus.row(gpu);
    assert_eq!((reading.utilization_percent, reading.memory_utilization_percent), (Some(100), Some(0)));
    assert!(reading.power_watts.unwrap() < 125.0);
}

#[test]
fn a_hot_gpu_says_why_it_is_slow_and_an_idle_notebook_does_nothing() {
    let plan = plan(2);
    let hot = snapshot(&plan, 30.0).gpus.row(gpu_of(&plan, Workload::Hot));
    assert_eq!(hot.temperature_celsius, Some(88), "a degree below its slowdown");
    assert!(ClocksEventReasons(hot.clocks_event_reasons.unwrap()).is_thermal());
    assert!(hot.clock_sm_mhz < Some(1500));
    let plan = super::HostPlan::new(20_251_114, 0, 6, 8);
    let notebook = gpu_of(&plan, Workload::Notebook);
    let snapshot = snapshot(&plan, 30.0);
    assert_eq!(snapshot.gpus.row(notebook).utilization_percent, Some(0));
    assert!(snapshot.gpus.row(notebook).memory_used_bytes > Some(25 << 30));
    let free = snapshot.gpus.row(gpu_of(&plan, Workload::Free));
    assert!(free.memory_used_bytes < Some(500 << 20) && free.power_watts < Some(80.0));
}

#[test]
fn broken_drivers_and_lost_gpus_have_errors_and_no_values() {
    let mismatch = plan(5);
    let error = mismatch.inventory().error.expect("an error");
    assert_eq!((error.kind, error.code), (DriverErrorKind::VersionMismatch, Some(18)));
    let blind = snapshot(&mismatch, 30.0);
    assert!(blind.gpus.is_empty() && blind.gpu_processes.is_empty() && blind.processes.is_empty());
    assert!(blind.host.load_1.is_some());

    let plan = HostPlan::new(20_251_114, 7, 40, 8);
    let snapshot = snapshot(&plan, 30.0);
    let lost = snapshot.gpus.row(6);
    assert_eq!(lost.error.map(|error| error.kind), Some(DriverErrorKind::GpuLost));
    assert_eq!((lost.power_watts, snapshot.gpus.len()), (None, 8));
    assert!(!snapshot.gpu_processes.gpu.contains(&Some(6)));
}

#[test]
fn the_first_snapshot_of_a_connection_knows_no_rates() {
    let context = SampleContext { now: at(9.0), before: None, sequence: 1, slow_sample_at: at(9.0) };
    let first = plan(0).snapshot(context, &Ended::new(), &mut SentFacts::new());
    assert!(first.host.cpu_percent.is_none() && first.processes.cpu_percent.is_empty());
    assert!(first.gpus.power_mean_watts.is_empty() && first.gpu_processes.sm_percent.is_empty());
}

#[test]
fn processes_come_and_go() {
    let plan = plan(0);
    let pids = |seconds| snapshot(&plan, seconds).processes.pid;
    assert_eq!(pids(10.0), pids(12.0));
    assert_ne!(pids(10.0), pids(4000.0));
}

#[test]
fn a_signal_finds_workers_and_launchers_and_what_it_ended_is_gone() {
    let plan = plan(2);
    let now = at(60.0);
    let snapshot = snapshot(&plan, 60.0);
    let facts = &snapshot.facts[0];
    assert_eq!(facts.user.as_deref(), Some("dmitri"));
    let launcher = &facts.ancestors[0];
    for (pid, start_ticks) in [(facts.pid, facts.start_ticks.unwrap()), (launcher.pid, launcher.start_ticks)] {
        let found = plan.find(pid, now, &Ended::new()).expect("runs");
        assert_eq!((found.start_ticks, found.uid), (start_ticks, VIEWER.uid));
        let ended = Ended::from([found.job]);
        assert_eq!(plan.find(pid, now, &ended), None);
        let context = SampleContext { now: at(62.0), before: Some(now), sequence: 2, slow_sample_at: at(62.0) };
        let after = plan.snapshot(context, &ended, &mut SentFacts::new());
        assert!(!after.processes.pid.contains(&Some(facts.pid)));
        let gpu = after.gpus.row(0);
        assert_eq!(gpu.utilization_percent, Some(0));
        assert!(gpu.power_mean_watts < Some(90.0) && gpu.power_mean_watts > Some(50.0));
    }
    assert_eq!(plan.find(4_000_000, now, &Ended::new()), None);
}

#[test]
fn the_first_snapshot_carries_what_the_driver_remembers() {
    let plan = plan(2);
    let context = SampleContext { now: at(1.0), before: None, sequence: 1, slow_sample_at: at(1.0) };
    let first = plan.snapshot(context, &Ended::new(), &mut SentFacts::new());
    assert_eq!(first.recent_past.len(), 8);
    let past = &first.recent_past[gpu_with(&plan, "sft.py")];
    assert_eq!((past.utilization_percent.len(), past.power_watts.len()), (60, 60));
    assert!(past.utilization_percent.iter().all(|percent| *percent == Some(100)));
    assert!(past.power_watts.iter().flatten().all(|watts| (100.0..=125.0).contains(watts)));
    assert!(snapshot(&plan, 3.0).recent_past.is_empty());
}

#[test]
fn processes_get_into_every_kind_of_trouble() {
    let plan = plan(3);
    let gpu = gpu_with(&plan, "render.py");
    let process = |minute: f64| {
        let snapshot = snapshot(&plan, minute * 60.0 + 5.0);
        let rows = (0..snapshot.gpu_processes.len()).map(|row| snapshot.gpu_processes.row(row));
        let pid = rows.into_iter().find(|row| row.gpu == Some(gpu as u16))?.pid;
        (0..snapshot.processes.len()).map(|row| snapshot.processes.row(row)).find(|row| row.pid == pid)
    };
    let states: Vec<_> = [10.0, 32.0, 52.0].map(|minute| process(minute).expect("is there").state).into();
    assert_eq!(states[1..], [Some(ProcessState::Stopped), Some(ProcessState::Zombie)]);
    assert_ne!(states[0], states[1]);
    assert_eq!(process(60.0).expect("is listed").presence, Some(Presence::Gone));
    assert_eq!(process(70.0), None);
    let used = |minute: f64| process(minute).expect("is there").cpu_seconds.expect("is known");
    assert!((used(31.0) - used(39.0)).abs() < 0.02, "a stopped process uses no CPU");
    assert!(used(49.0) - used(41.0) > 400.0);
}

#[test]
fn what_befalls_a_host_is_told_as_a_probe_tells_it() {
    let at_minute = |index: u32, minute: f64| snapshot(&plan(index), minute * 60.0 + 6.0);
    let mute = at_minute(0, 90.0);
    assert_eq!(mute.driver_error.map(|error| error.kind), Some(DriverErrorKind::Blocked));
    assert!(mute.gpus.is_empty() && mute.processes.is_empty());
    let away = at_minute(3, 63.0).host.filesystems;
    assert_eq!(away.iter().filter(|filesystem| filesystem.silent_seconds == Some(66.0)).count(), 1);
    let health = at_minute(1, 75.0).health;
    assert_eq!(health.row(5).ecc_uncorrectable_volatile, Some(2));
    assert_eq!(health.row(2).nvlinks_active, Some(0x3_FFFF & !(1 << 7)));
    assert_eq!(at_minute(2, 80.0).host.oom_kills, Some(1));
    let sent_facts: Vec<u64> = [5098.0, 5100.0, 5102.0]
        .map(|seconds| snapshot(&plan(4), seconds).xid_events.iter().map(|event| event.xid).sum())
        .into();
    assert_eq!(sent_facts, [0, 79, 0], "once");
}
