//! Tests of the recorder: gaps, jumps of the clock, and GPUs that Slurm has allocated.

use super::*;
use crate::config::{HostConfig, Thresholds};
use crate::diagnosis::Engine;
use crate::fleet::{HostId, HostUpdate};
use crate::sim::builder::{self, ProcessSample};
use crate::store::HistoryReader;
use crate::wire::{GpuInfo, Inventory, Owner, SlurmJobEnd, Snapshot};
use std::path::PathBuf;

/// A start of an hour.
const T: u64 = 1_800_057_600;

/// A recorder that writes at once, and a host with four GPUs.
struct Recorded {
    state: CollectorState,
    result: ImportResult,
    path: PathBuf,
    elapsed: u64,
    /// The ends of jobs as Slurm reports them.
    ends: Vec<SlurmJobEnd>,
    folder: tempfile::TempDir,
}

impl Recorded {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.db");
        let (history, message) = History::open(&path).expect("opens");
        assert_eq!(message, None);
        let (recorder, result) = HistoryRecorder::importing(history);
        let hosts = [Arc::new(HostConfig::named("hgx-01"))];
        let fleet = Fleet::new(&hosts, false, Moment::default());
        let mut state = CollectorState::new(fleet, Engine::new(Arc::new(Thresholds::default())));
        state.observe(recorder);
        let mut recorded = Self { state, result, path, elapsed: 0, ends: Vec::new(), folder };
        let gpu = |index: u32| GpuInfo {
            index,
            uuid: Some(SafeText::new(&format!("GPU-{index}"))),
            name: Some("NVIDIA H100".into()),
            ..GpuInfo::default()
        };
        let inventory = Inventory { generation: 1, gpus: (0..4).map(gpu).collect(), ..Inventory::default() };
        recorded.apply(T, HostUpdate::Hello(Box::new(builder::hello("boot".into(), "ann", 1000))));
        recorded.apply(T, HostUpdate::Inventory(Box::new(inventory)));
        recorded
    }

    fn apply(&mut self, unix: u64, update: HostUpdate) {
        let now = Moment::new(Duration::from_secs(self.elapsed), Duration::from_secs(unix));
        self.state.apply(HostId(0), update, now);
    }

    /// Samples for `seconds`, every 2 s, on a wall clock that is at `unix` now.
    fn run(&mut self, unix: u64, seconds: u64, processes: &[ProcessSample], jobs: Option<&[SlurmJob]>) {
        for second in (0..seconds).step_by(2) {
            let readings = vec![GpuReading { utilization_percent: Some(90), ..GpuReading::default() }; 4];
            let mut snapshot = builder::snapshot(&readings, processes);
            snapshot.sequence = self.elapsed;
            snapshot.monotonic_seconds = self.elapsed as f64;
            snapshot.host.slurm_allocated_gpus =
                jobs.map(|jobs| jobs.iter().flat_map(|job| job.gpus.clone()).collect());
            snapshot.host.slurm_jobs = jobs.map(<[SlurmJob]>::to_vec);
            snapshot.host.slurm_ends.clone_from(&self.ends);
            self.apply(unix + second, HostUpdate::Snapshot(Box::new(snapshot)));
            let now = Moment::new(Duration::from_secs(self.elapsed), Duration::from_secs(unix + second));
            self.state.tick(now);
            self.elapsed += 2;
        }
    }

    fn finish(mut self) -> (HistoryReader, tempfile::TempDir) {
        for end in self.state.finish(Moment::default()) {
            drop(end);
        }
        self.result.result().expect("every minute was written");
        (HistoryReader::open(&self.path).expect("opens"), self.folder)
    }
}

/// The seconds with readings of one GPU in `from..until`.
fn known(reader: &HistoryReader, from: u64, until: u64) -> u64 {
    let totals = reader.gpu_totals(from, until, None).expect("reads");
    totals.first().map_or(0, |(_, total)| total.row.states.known())
}

#[test]
fn a_clock_that_jumps_ahead_leaves_a_gap_and_deletes_nothing() {
    let mut recorded = Recorded::new();
    recorded.run(T, 1200, &[], None);
    let later = T + 60 * 86_400;
    recorded.run(later, 1200, &[], None);
    let (reader, _folder) = recorded.finish();
    // The sample after the jump stands for the time by the monotonic clock.
    for (start, what) in [(T, "before the jump"), (later, "after it")] {
        let seconds = known(&reader, start, start + 1800);
        assert!((1190..=1202).contains(&seconds), "{what}: {seconds}");
    }
    assert_eq!(known(&reader, T + 1800, later - 900), 0, "the gap is unknown");
}

#[test]
fn a_clock_that_is_set_back_overwrites_and_counts_nothing_twice() {
    let mut recorded = Recorded::new();
    recorded.run(T, 1200, &[], None);
    recorded.run(T + 300, 600, &[], None);
    recorded.run(T + 1200, 600, &[], None);
    let (reader, _folder) = recorded.finish();
    let seconds = known(&reader, T, T + 1800);
    assert!((1790..=1800).contains(&seconds), "{seconds}");
    // The minutes that passed twice are not unknown, and no quarter-hour has more seconds than it is long.
    for (_, total) in reader.gpu_totals(T, T + 1800, Some((900, 0))).expect("reads") {
        let states = total.row.states;
        assert_eq!(states.known() + states.unknown, 900, "{states:?}");
    }
}

#[test]
fn gpus_that_slurm_allocated_count_for_the_job_also_without_a_process() {
    let mut recorded = Recorded::new();
    let job = |job: &str, user: &str, gpus: &[u32]| SlurmJob {
        job: job.into(),
        user: Some(user.into()),
        gpus: gpus.to_vec(),
    };
    let mut process = ProcessSample::new(7, ("ann", 1000), "python train.py", &[(0, 40)]);
    process.facts.owner = Some(Owner::Slurm { job: "3385".into(), step: None });
    let jobs = [job("3385", "ann", &[0, 1]), job("3390", "bob", &[2])];
    recorded.run(T, 900, &[process.clone()], Some(&jobs));
    // Bob's job has ended.
    recorded.run(T + 900, 900, &[process], Some(&jobs[..1]));
    let (reader, _folder) = recorded.finish();
    let totals = reader.job_totals(T, T + 3600).expect("reads");
    let about = |seconds: u64, expected: u64| seconds.abs_diff(expected) <= 30;
    let [ann, bob] = &totals[..] else { panic!("{totals:?}") };
    assert_eq!((&*ann.label, &*ann.user, &*ann.command), ("slurm:3385", "ann", "python train.py"));
    assert!(about(ann.held_seconds, 3600) && about(ann.unused_seconds.expect("known"), 1800), "{ann:?}");
    assert_eq!((&*bob.label, &*bob.user, &*bob.command, &*bob.gpus), ("slurm:3390", "bob", "", "GPU 2"));
    assert!(about(bob.held_seconds, 900) && about(bob.unused_seconds.expect("known"), 900), "{bob:?}");
    assert_eq!((bob.used_seconds, bob.ended, ann.ended), (0, Some(T + 900), None));
}

#[test]
fn a_job_belongs_to_the_user_whose_name_arrives_after_the_first_sample() {
    let mut recorded = Recorded::new();
    let process = ProcessSample::new(7, ("ann", 1000), "python train.py", &[(0, 40)]);
    let mut first = process.clone();
    (first.facts.user, first.facts.argv) = (None, Vec::new());
    recorded.run(T, 2, &[first], None);
    recorded.run(T + 2, 300, &[process], None);
    let (reader, _folder) = recorded.finish();
    let totals = reader.job_totals(T, T + 3600).expect("reads");
    let [job] = &totals[..] else { panic!("{totals:?}") };
    assert_eq!((&*job.user, &*job.command), ("ann", "python train.py"));
}

#[test]
fn a_finding_that_fires_at_the_end_of_a_recording_ends_with_it() {
    let mut recorded = Recorded::new();
    let mut holder = ProcessSample::new(7, ("ann", 1000), "python train.py", &[(0, 40)]);
    holder.facts.ancestors.clear();
    holder.reading.state = Some(crate::wire::ProcessState::Stopped);
    recorded.run(T, 1200, &[holder], None);
    let (reader, _folder) = recorded.finish();
    let findings = reader.findings(T, T + 3600).expect("reads");
    assert!(!findings.is_empty(), "a stopped process that holds a GPU");
    for finding in findings {
        assert!(finding.ended.is_some_and(|ended| (T + 1190..=T + 1200).contains(&ended)), "{finding:?}");
    }
}

#[test]
fn the_end_that_slurm_tells_is_stored_also_if_it_comes_later() {
    let mut recorded = Recorded::new();
    let process = |pid: u32, job: &str| {
        let mut process = ProcessSample::new(pid, ("ann", 1000), "python train.py", &[(0, 40)]);
        process.facts.owner = Some(Owner::Slurm { job: job.into(), step: None });
        process
    };
    recorded.run(T, 600, &[process(7, "3385"), process(8, "3386")], None);
    // The minute of the end is written before Slurm tells it.
    recorded.run(T + 600, 200, &[], None);
    let end = SlurmJobEnd { job: "3385".into(), state: "FAILED".into(), exit_status: Some(1), signal: None };
    recorded.ends = vec![end];
    recorded.run(T + 800, 2, &[], None);
    recorded.ends.clear();
    recorded.run(T + 802, 600, &[], None);
    let (reader, _folder) = recorded.finish();
    let totals = reader.job_totals(T, T + 3600).expect("reads");
    let mut ended: Vec<_> = totals.iter().map(|job| (&*job.label, job.ended, job.how_ended.as_deref())).collect();
    ended.sort_unstable();
    let expected =
        [("slurm:3385", Some(T + 600), Some("Slurm: failed with exit status 1")), ("slurm:3386", Some(T + 600), None)];
    assert_eq!(ended, expected);
    assert!(totals.iter().all(|job| job.held_seconds.abs_diff(600) <= 30), "counted once: {totals:?}");
}

#[test]
fn without_slurm_the_unused_seconds_of_a_job_are_unknown() {
    let mut recorded = Recorded::new();
    recorded.run(T, 300, &[ProcessSample::new(7, ("ann", 1000), "python train.py", &[(0, 40)])], None);
    let (reader, _folder) = recorded.finish();
    let totals = reader.job_totals(T, T + 3600).expect("reads");
    assert_eq!(totals.iter().map(|job| job.unused_seconds).collect::<Vec<_>>(), [None]);
}

/// Seconds of an hour in which a host with an interval of 3 s counts as reachable if a sample comes every 30 s.
fn reachable(simulated: bool, speed: f64) -> u64 {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("history.db");
    let (history, _) = History::open(&path).expect("opens");
    let config = Arc::new(HostConfig { interval: Duration::from_secs(3), ..HostConfig::named("hgx-01") });
    let start = 1_800_000_000;
    let at = |seconds| Moment::new(Duration::from_secs(seconds), Duration::from_secs(start + seconds));
    let fleet = Fleet::new(&[config], simulated, at(0)).with_clock_speed(speed);
    let mut state = CollectorState::new(fleet, Engine::default());
    let (recorder, result) = HistoryRecorder::importing(history);
    state.observe(recorder);
    state.apply(HostId(0), HostUpdate::Inventory(Box::default()), at(0));
    for seconds in (0..3600).step_by(30) {
        let snapshot =
            Snapshot { monotonic_seconds: seconds as f64, interval_seconds: Some(3.0), ..Snapshot::default() };
        state.apply(HostId(0), HostUpdate::Snapshot(Box::new(snapshot)), at(seconds));
        state.tick(at(seconds));
    }
    drop(state.finish(at(3600)));
    result.result().expect("written");
    let reader = HistoryReader::open(&path).expect("opens");
    reader.host_totals(start, start + 3600).expect("reads")[0].reachable_seconds
}

#[test]
fn a_gap_is_unreachable_except_in_a_simulation_that_is_faster_than_its_computer() {
    assert_eq!(reachable(false, 1.0), 357, "one interval for each sample; the first one is before the hour");
    assert_eq!(reachable(true, 1.0), 357);
    assert!(reachable(true, 60.0) >= 3540);
}
