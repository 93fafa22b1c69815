use super::*;
use crate::config::{HostConfig, Thresholds};
use crate::fleet::HostUpdate;
use crate::fleet::fixture::{TestHost, TestProcess, at, gpus, process, reading};
use crate::wire::{DeviceError, DriverErrorKind, GpuInfo, GpuProcessKind, GpuProcessReading, GpuReading, Snapshot};
use std::sync::Arc;

/// A host with its tracker and a sample every two seconds.
struct TrackedHost {
    host: TestHost,
    tracker: StateTracker,
}

impl TrackedHost {
    fn new(gpus: Vec<GpuInfo>) -> Self {
        Self { host: TestHost::new(0, gpus), tracker: StateTracker::default() }
    }

    fn with_config(config: HostConfig, gpus: Vec<GpuInfo>) -> Self {
        Self { host: TestHost::with_config(0, config, gpus), tracker: StateTracker::default() }
    }

    fn send_snapshot(
        &mut self,
        seconds: f64,
        gpus: &[GpuReading],
        processes: &[TestProcess],
    ) -> Vec<(&'static str, Option<f64>)> {
        self.host.send_snapshot(seconds, gpus, processes);
        self.tracker.update(&self.host.host, at(seconds));
        self.states()
    }

    /// The same snapshot every two seconds from `from` up to and including `to`.
    fn hold(
        &mut self,
        from: u32,
        to: u32,
        gpus: &[GpuReading],
        processes: &[TestProcess],
    ) -> Vec<(&'static str, Option<f64>)> {
        for second in (from..=to).step_by(2) {
            self.send_snapshot(f64::from(second), gpus, processes);
        }
        self.states()
    }

    fn unused_reason(&self, position: usize) -> Option<UnusedReason> {
        self.tracker.unused_reason(&self.host.host, position)
    }

    fn states(&self) -> Vec<(&'static str, Option<f64>)> {
        let states = self.tracker.states(self.host.host.id).iter();
        states.map(|(state, since)| (state.json_word(), since.map(|since| since.since_start().as_secs_f64()))).collect()
    }
}

fn state(tracked: &[(&'static str, Option<f64>)]) -> (&'static str, Option<f64>) {
    tracked[0]
}

fn train() -> TestProcess {
    process(7, "python train.py", &[(0, 40)])
}

#[test]
fn states_are_unknown_before_the_first_sample() {
    let mut tracked = TrackedHost::new(gpus(0..2));
    tracked.tracker.update(&tracked.host.host, at(1.0));
    assert_eq!(tracked.states().iter().map(|(state, _)| *state).collect::<Vec<_>>(), ["unknown"; 2]);
}

#[test]
fn a_working_gpu_is_in_use_since_its_first_sample() {
    let mut tracked = TrackedHost::new(gpus(0..1));
    assert_eq!(state(&tracked.hold(10, 60, &[reading(97, 40)], &[train()])), ("in_use", Some(10.0)));
}

#[test]
fn five_percent_utilisation_counts_as_work() {
    let mut tracked = TrackedHost::new(gpus(0..2));
    tracked.hold(0, 400, &[reading(5, 40), reading(4, 40)], &[train(), process(8, "python", &[(1, 40)])]);
    assert_eq!(tracked.states(), [("in_use", Some(0.0)), ("idle", Some(0.0))]);
}

#[test]
fn a_held_gpu_is_idle_five_minutes_after_its_last_work() {
    let mut tracked = TrackedHost::new(gpus(0..1));
    tracked.hold(0, 100, &[reading(97, 40)], &[train()]);
    assert_eq!(state(&tracked.hold(102, 398, &[reading(0, 40)], &[train()])), ("in_use", Some(0.0)));
    assert_eq!(state(&tracked.hold(400, 400, &[reading(0, 40)], &[train()])), ("idle", Some(100.0)));
    assert_eq!(state(&tracked.hold(402, 900, &[reading(0, 40)], &[train()])), ("idle", Some(100.0)));
    assert_eq!(state(&tracked.send_snapshot(902.0, &[reading(50, 40)], &[train()])), ("in_use", Some(902.0)));
}

#[test]
fn idle_time_counts_from_the_first_sample() {
    let mut tracked = TrackedHost::new(gpus(0..1));
    assert_eq!(state(&tracked.send_snapshot(50.0, &[reading(0, 40)], &[train()])), ("in_use", Some(50.0)));
    assert_eq!(state(&tracked.hold(52, 350, &[reading(0, 40)], &[train()])), ("idle", Some(50.0)));
}

#[test]
fn an_idle_model_server_is_waiting() {
    let mut tracked = TrackedHost::new(gpus(0..1));
    let server = process(7, "python -m vllm.entrypoints.openai.api_server", &[(0, 60)]);
    let helper = process(8, "python tokenize.py", &[(0, 1)]);
    assert_eq!(state(&tracked.hold(0, 300, &[reading(0, 61)], &[server.clone(), helper])), ("waiting", Some(0.0)));
    // A small server beside a large idle job does not make the GPU waiting.
    let mut tracked = TrackedHost::new(gpus(0..1));
    let small = process(9, "ollama runner", &[(0, 2)]);
    assert_eq!(state(&tracked.hold(0, 300, &[reading(0, 42)], &[train(), small])), ("idle", Some(0.0)));
}

#[test]
fn a_server_named_in_the_configuration_is_waiting() {
    let config = |thresholds| HostConfig { thresholds: Some(Arc::new(thresholds)), ..HostConfig::named("hgx-00") };
    let own = process(7, "python /srv/answer.py --port 80", &[(0, 60)]);
    let named = Thresholds { model_servers: vec!["answer.py".into()], ..Thresholds::default() };
    let mut tracked = TrackedHost::with_config(config(named.clone()), gpus(0..1));
    assert_eq!(state(&tracked.hold(0, 300, &[reading(0, 61)], std::slice::from_ref(&own))).0, "waiting");
    let mut tracked = TrackedHost::with_config(config(named), gpus(0..1));
    assert_eq!(state(&tracked.hold(0, 300, &[reading(0, 40)], &[train()])).0, "idle", "another program");
    let serving = Thresholds { is_serving: true, ..Thresholds::default() };
    let mut tracked = TrackedHost::with_config(config(serving.clone()), gpus(0..1));
    assert_eq!(state(&tracked.hold(0, 300, &[reading(0, 61)], &[own])).0, "waiting");
    // Memory without a process is not a server.
    let mut tracked = TrackedHost::with_config(config(serving), gpus(0..1));
    assert_eq!(state(&tracked.hold(0, 300, &[reading(0, 61)], &[])).0, "idle");
}

#[test]
fn an_empty_gpu_is_free() {
    let mut tracked = TrackedHost::new(gpus(0..1));
    assert_eq!(state(&tracked.hold(0, 10, &[reading(0, 0)], &[])), ("free", Some(0.0)));
    // 2 % of 80 GiB, reserved memory aside.
    let used = |mib: u64| GpuReading { memory_used_bytes: Some((mib + 512) << 20), ..reading(0, 0) };
    assert_eq!(state(&tracked.send_snapshot(12.0, &[used(1600)], &[])).0, "free");
    assert_eq!(state(&tracked.send_snapshot(14.0, &[used(1700)], &[])).0, "in_use", "something holds the memory");
}

#[test]
fn a_released_gpu_is_free_a_minute_later() {
    let mut tracked = TrackedHost::new(gpus(0..1));
    tracked.hold(0, 100, &[reading(97, 40)], &[train()]);
    assert_eq!(state(&tracked.hold(102, 158, &[reading(0, 0)], &[])).0, "in_use");
    assert_eq!(state(&tracked.hold(160, 170, &[reading(0, 0)], &[])), ("free", Some(160.0)));
}

#[test]
fn a_reserved_gpu_is_never_free() {
    let config = HostConfig { reserved: vec![1], ..HostConfig::named("hgx-00") };
    let mut tracked = TrackedHost::with_config(config, gpus(0..2));
    tracked.send_snapshot(0.0, &[reading(0, 0), reading(0, 0)], &[]);
    assert_eq!(tracked.states(), [("free", Some(0.0)), ("unused", Some(0.0))]);
    assert_eq!([0, 1].map(|gpu| tracked.unused_reason(gpu)), [None, Some(UnusedReason::Reserved)]);
}

#[test]
fn empty_gpus_of_a_slurm_host_are_unused() {
    let mut tracked = TrackedHost::new(gpus(0..2));
    let mut job = train();
    job.facts.owner = Some(Owner::Slurm { job: "3385".into(), step: None });
    tracked.send_snapshot(0.0, &[reading(97, 40), reading(0, 0)], &[job]);
    assert_eq!(tracked.states()[1].0, "unused");
    assert_eq!([0, 1].map(|gpu| tracked.unused_reason(gpu)), [None, Some(UnusedReason::AllocationUnknown)]);
    tracked.hold(2, 80, &[reading(0, 0), reading(0, 0)], &[]);
    assert_eq!(tracked.states()[0].0, "unused", "Slurm still manages the host");
}

#[test]
fn gpus_that_slurm_has_not_allocated_are_free() {
    let mut tracked = TrackedHost::new(gpus(0..3));
    let mut job = train();
    job.facts.owner = Some(Owner::Slurm { job: "3385".into(), step: None });
    let readings = [reading(97, 40), reading(0, 0), reading(0, 0)];
    let mut snapshot = tracked.host.snapshot(0.0, &readings, std::slice::from_ref(&job));
    snapshot.host.slurm_allocated_gpus = Some(vec![0, 1]);
    tracked.host.apply(0.0, snapshot);
    tracked.tracker.update(&tracked.host.host, at(0.0));
    let words = |tracked: &TrackedHost| tracked.states().iter().map(|(state, _)| *state).collect::<Vec<_>>();
    assert_eq!(words(&tracked), ["in_use", "unused", "free"]);
    assert_eq!([1, 2].map(|gpu| tracked.unused_reason(gpu)), [Some(UnusedReason::Allocated), None]);
    // Slurm is queried once a minute: its last answer holds.
    tracked.send_snapshot(2.0, &readings, &[job]);
    assert_eq!(words(&tracked), ["in_use", "unused", "free"]);
    let mut snapshot = tracked.host.snapshot(90.0, &[reading(0, 0), reading(0, 0), reading(0, 0)], &[]);
    snapshot.host.slurm_allocated_gpus = Some(vec![]);
    tracked.host.apply(90.0, snapshot);
    tracked.tracker.update(&tracked.host.host, at(90.0));
    assert_eq!(words(&tracked), ["free"; 3]);
}

#[test]
fn a_desktop_leaves_a_gpu_free() {
    let desktop = |memory| {
        let mut xorg = process(9, "Xorg", &[]);
        xorg.gpus = vec![GpuProcessReading {
            pid: Some(9),
            gpu: Some(0),
            kind: Some(GpuProcessKind::Graphics),
            gpu_memory_bytes: memory,
            ..GpuProcessReading::default()
        }];
        xorg
    };
    for memory in [Some(3 << 30), None] {
        let mut tracked = TrackedHost::new(gpus(0..1));
        assert_eq!(state(&tracked.hold(0, 400, &[reading(1, 4)], &[desktop(memory)])), ("free", Some(0.0)));
    }
    let mut tracked = TrackedHost::new(gpus(0..1));
    assert_eq!(state(&tracked.hold(0, 400, &[reading(1, 44)], &[desktop(Some(3 << 30)), train()])).0, "idle");
}

#[test]
fn a_small_idle_context_leaves_a_gpu_unused() {
    let mut tracked = TrackedHost::new(gpus(0..1));
    let mut small = train();
    small.gpus[0].gpu_memory_bytes = Some(300 << 20);
    let used = GpuReading { memory_used_bytes: Some((512 + 350) << 20), ..reading(0, 0) };
    assert_eq!(state(&tracked.hold(0, 300, &[used], std::slice::from_ref(&small))), ("unused", Some(0.0)));
    assert_eq!(tracked.unused_reason(0), Some(UnusedReason::Held));
    // If the memory is unknown, there is still a context.
    small.gpus[0].gpu_memory_bytes = None;
    let mut tracked = TrackedHost::new(gpus(0..1));
    let unknown = GpuReading { memory_used_bytes: None, ..reading(0, 0) };
    assert_eq!(state(&tracked.hold(0, 300, &[unknown], &[small])), ("idle", Some(0.0)));
}

#[test]
fn a_new_holder_restarts_the_idle_time() {
    let mut tracked = TrackedHost::new(gpus(0..1));
    tracked.hold(0, 400, &[reading(0, 40)], &[train()]);
    let next = process(8, "python next.py", &[(0, 40)]);
    assert_eq!(
        state(&tracked.send_snapshot(402.0, &[reading(0, 40)], std::slice::from_ref(&next))),
        ("in_use", Some(402.0))
    );
    // An additional process does not.
    let both = [process(9, "python third.py", &[(0, 1)]), next];
    assert_eq!(state(&tracked.hold(404, 702, &[reading(0, 41)], &both)), ("idle", Some(402.0)));
}

#[test]
fn errors_are_faults_unless_the_driver_is_blocked() {
    let failed = |kind| GpuReading {
        error: Some(DeviceError { kind, code: None, message: "".into() }),
        ..GpuReading::default()
    };
    let mut tracked = TrackedHost::new(gpus(0..4));
    let kinds =
        [DriverErrorKind::GpuLost, DriverErrorKind::ResetRequired, DriverErrorKind::Unknown, DriverErrorKind::Blocked];
    tracked.send_snapshot(5.0, &kinds.map(failed), &[]);
    assert_eq!(tracked.states()[..3], [("fault", Some(5.0)); 3]);
    assert_eq!(tracked.states()[3].0, "unknown");
}

#[test]
fn a_state_continues_after_missing_data() {
    let mut tracked = TrackedHost::new(gpus(0..2));
    let idle = [reading(0, 40), reading(0, 0)];
    tracked.hold(0, 400, &idle, &[train()]);
    assert!(!tracked.tracker.tick(&tracked.host.host, at(404.0)));
    assert!(tracked.tracker.tick(&tracked.host.host, at(407.0)));
    assert_eq!(tracked.states(), [("unknown", Some(400.0)); 2], "since the last sample");
    assert!(!tracked.tracker.tick(&tracked.host.host, at(408.0)));
    tracked.send_snapshot(4000.0, &idle, &[train()]);
    assert_eq!(tracked.states(), [("idle", Some(0.0)), ("free", Some(0.0))]);
}

#[test]
fn a_lost_link_makes_states_unknown_at_once() {
    let mut tracked = TrackedHost::new(gpus(0..1));
    tracked.send_snapshot(0.0, &[reading(97, 40)], &[train()]);
    tracked.host.host.apply(HostUpdate::Silent, at(3.0));
    assert!(tracked.tracker.update(&tracked.host.host, at(3.0)));
    assert_eq!(state(&tracked.states()), ("unknown", Some(0.0)));
}

#[test]
fn a_missing_reading_is_not_zero() {
    let mut tracked = TrackedHost::new(gpus(0..3));
    let no_utilization = GpuReading { utilization_percent: None, ..reading(0, 40) };
    let no_memory = GpuReading { memory_used_bytes: None, ..reading(0, 0) };
    let neither = GpuReading { memory_used_bytes: None, utilization_percent: None, ..reading(0, 0) };
    tracked.hold(0, 400, &[no_utilization, no_memory, neither], &[train()]);
    let words: Vec<_> = tracked.states().iter().map(|(state, _)| *state).collect();
    assert_eq!(words, ["in_use", "unknown", "unknown"], "held, and not known to be idle");
}

#[test]
fn unified_memory_does_not_make_a_gpu_taken() {
    let mut unified = gpus(0..1);
    unified[0].unified_memory = Some(true);
    unified[0].memory_total_bytes = None;
    let mut tracked = TrackedHost::new(unified);
    assert_eq!(state(&tracked.hold(0, 10, &[reading(0, 90)], &[])), ("free", Some(0.0)));
    assert_eq!(state(&tracked.send_snapshot(12.0, &[reading(96, 90)], &[train()])).0, "in_use");
}

#[test]
fn a_mig_parent_takes_the_state_of_its_instances() {
    let mut all = gpus(0..1);
    all[0].mig_enabled = Some(true);
    for instance in 0..2 {
        all.push(GpuInfo {
            uuid: Some(format!("MIG-{instance}").into()),
            memory_total_bytes: Some(40 << 30),
            mig_parent_uuid: all[0].uuid.clone(),
            ..GpuInfo::default()
        });
    }
    let mut tracked = TrackedHost::new(all);
    let blind = |gib| GpuReading { utilization_percent: None, ..reading(0, gib) };
    let readings = [blind(20), blind(0), blind(20)];
    tracked.hold(0, 400, &readings, &[process(7, "python", &[(2, 20)])]);
    assert_eq!(tracked.states(), [("in_use", Some(0.0)), ("free", Some(0.0)), ("in_use", Some(0.0))]);
    tracked.hold(402, 410, &[blind(0), blind(0), blind(0)], &[]);
    assert_eq!(tracked.states().iter().map(|(state, _)| *state).collect::<Vec<_>>(), ["free"; 3]);
}

#[test]
fn states_follow_a_gpu_to_another_index() {
    let mut tracked = TrackedHost::new(gpus(0..2));
    tracked.hold(0, 400, &[reading(97, 40), reading(0, 0)], &[train()]);
    tracked.host.inventory(gpus([1, 0]));
    tracked.send_snapshot(402.0, &[reading(0, 0), reading(97, 40)], &[process(7, "python train.py", &[(1, 40)])]);
    assert_eq!(tracked.states(), [("free", Some(0.0)), ("in_use", Some(0.0))]);
}

#[test]
fn a_driver_that_stops_answering_makes_its_gpus_unknown() {
    let mut tracked = TrackedHost::new(gpus(0..1));
    tracked.hold(0, 10, &[reading(97, 40)], &[train()]);
    let error = crate::wire::DriverError { kind: DriverErrorKind::Blocked, code: None, message: "".into() };
    let blocked = Snapshot { driver_error: Some(error), ..tracked.host.snapshot(12.0, &[], &[]) };
    tracked.host.apply(12.0, blocked);
    tracked.tracker.update(&tracked.host.host, at(12.0));
    assert_eq!(state(&tracked.states()).0, "unknown");
}
