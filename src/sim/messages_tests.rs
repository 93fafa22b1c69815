//! Checks that simulated readings are plausible for real hosts.

use super::super::demo::Demo;
use super::super::host::HostScript;
use super::super::process::Process;
use super::super::script::{Job, Positions, Seconds};
use super::*;
use crate::wire::codec::{decode, encode};
use crate::wire::{ClocksEventReasons, GpuProcessReading, Message, ProcessState, ReplyOutcome};
use std::sync::Arc;

fn script(index: u32) -> HostScript {
    Demo::new().host(20_251_114, index, 40, 8)
}

/// A host and its probe, started at a time of the script.
struct Watched {
    host: SimulatedHost,
    probe: ProbeConnection,
}

impl Watched {
    fn new(script: &HostScript, time: f64) -> (Self, Snapshot) {
        let host = SimulatedHost::new(script, -PAST_SECONDS, 1.7e9);
        let mut watched = Self { host, probe: ProbeConnection::default() };
        let recent_past = watched.probe.start(&mut watched.host, time);
        let first = watched.snapshot(time);
        (watched, Snapshot { recent_past, ..first })
    }

    fn snapshot(&mut self, time: f64) -> Snapshot {
        self.host.advance(time);
        self.probe.snapshot(&mut self.host, false)
    }

    /// The position of the first GPU with a process whose command contains this word.
    fn gpu_of(&self, command: &str) -> usize {
        let runs = |process: &&Process| {
            let facts = process.facts(0.0).expect("is visible");
            process.is_listed() && facts.argv.iter().any(|argument| argument.contains(command))
        };
        self.host.processes.iter().find(runs).expect("is there").gpus[0]
    }
}

#[test]
fn readings_depend_on_seed_and_times_only() {
    let take = |index| {
        let (mut host, first) = Watched::new(&script(index), 100.0);
        [first, host.snapshot(102.0), host.snapshot(104.5)]
    };
    assert_eq!(take(0), take(0));
    assert_ne!(take(0)[1].gpus, take(0)[2].gpus);
    assert_ne!(Watched::new(&script(0), 0.0).0.host.boot_id(0.0), Watched::new(&script(1), 0.0).0.host.boot_id(0.0));
}

#[test]
fn every_moment_of_every_host_is_possible() {
    for index in 0..16 {
        let script = script(index);
        let limit = script.model.limit * 1.05;
        let (mut watched, mut before) = Watched::new(&script, 1.0);
        for step in 1..260 {
            let seconds = 1.0 + f64::from(step) * 27.5;
            let snapshot = watched.snapshot(seconds);
            let line = encode(&Message::Snapshot(Box::new(snapshot.clone()))).expect("encodes");
            assert!(decode(line.trim_ascii_end()).is_ok());
            for gpu in 0..snapshot.gpus.len() {
                let reading = snapshot.gpus.row(gpu);
                if reading.error.is_some() {
                    continue;
                }
                let rows = (0..snapshot.gpu_processes.len()).map(|row| snapshot.gpu_processes.row(row));
                let of_gpu = rows.filter(|row: &GpuProcessReading| row.gpu == Some(gpu as u16));
                let held: u64 = of_gpu.filter_map(|row| row.gpu_memory_bytes).sum();
                let used = reading.memory_used_bytes.expect("known");
                assert!(used >= held && used - held < 500 << 20, "memory that nobody holds");
                let total = script.model.memory.expect("known") * GIB;
                assert!((used + RESERVED) as f64 <= total, "host {index} GPU {gpu} at {seconds}");
                let watts = f64::from(reading.power_watts.expect("known"));
                assert!((40.0..=limit).contains(&watts), "{watts} W");
                assert!((25..=91).contains(&reading.temperature_celsius.expect("known")));
                if before.gpus.len() > gpu
                    && let Some(joules) = before.gpus.row(gpu).energy_joules
                {
                    let mean = (reading.energy_joules.expect("known") - joules) / 27.5;
                    assert!((40.0..=limit).contains(&mean), "mean {mean} W");
                }
            }
            let pids: HashSet<_> = snapshot.processes.pid.iter().collect();
            assert_eq!(pids.len(), snapshot.processes.len(), "pids are unique");
            assert!(snapshot.host.memory_available_bytes > Some(0));
            assert!(snapshot.host.cpu_percent.is_some_and(|percent| percent <= 100.0));
            before = snapshot;
        }
    }
}

#[test]
fn the_first_snapshot_knows_no_rates_but_what_the_driver_remembers() {
    let (mut watched, first) = Watched::new(&script(2), 1.0);
    assert!(first.host.cpu_percent.is_none() && first.processes.cpu_percent.is_empty());
    assert!(first.gpus.power_mean_watts.is_empty());
    assert_eq!((first.recent_past.len(), first.facts.len()), (8, first.processes.len()));
    let past = &first.recent_past[watched.gpu_of("sft.py")];
    assert_eq!((past.utilization_percent.len(), past.power_watts.len()), (60, 60));
    assert!(past.utilization_percent.iter().all(|percent| *percent == Some(100)));
    assert!(past.power_watts.iter().flatten().all(|watts| (95.0..=125.0).contains(watts)));
    let second = watched.snapshot(3.0);
    assert!(second.host.cpu_percent.is_some() && second.facts.is_empty());
    assert!(watched.probe.inventory(&watched.host).is_some());
    assert_eq!(watched.probe.inventory(&watched.host), None);
    watched.probe.resend();
    assert!(watched.probe.inventory(&watched.host).is_some() && !watched.snapshot(5.0).facts.is_empty());
}

#[test]
fn a_hung_job_reads_full_and_a_hot_gpu_says_why_it_is_slow() {
    let (watched, first) = Watched::new(&script(2), 30.0);
    let hung = first.gpus.row(watched.gpu_of("sft.py"));
    assert_eq!((hung.utilization_percent, hung.memory_utilization_percent), (Some(100), Some(0)));
    assert!((95.0..=125.0).contains(&hung.power_watts.unwrap()));
    let hot = first.gpus.row(watched.gpu_of("gan.py"));
    assert!((87..=89).contains(&hot.temperature_celsius.unwrap()), "near its slowdown");
    assert!(ClocksEventReasons(hot.clocks_event_reasons.unwrap()).is_thermal());
    assert!(hot.clock_sm_mhz < Some(1500));
    let free = first.gpus.row(7);
    assert!(free.memory_used_bytes < Some(500 << 20) && free.power_watts < Some(80.0));
    assert_eq!((free.utilization_percent, free.performance_state), (Some(0), Some(8)));
}

#[test]
fn processes_get_into_every_kind_of_trouble() {
    let state = |minute: f64| {
        let (watched, snapshot) = Watched::new(&script(3), minute * 60.0 + 5.0);
        let process = watched.host.processes.iter().find(|process| process.gpus == [3] && process.is_listed())?;
        let reading = process.on_host(watched.host.up, true);
        assert!(snapshot.processes.pid.contains(&reading.pid));
        reading.state
    };
    assert_eq!([32.0, 52.0].map(state), [Some(ProcessState::Stopped), Some(ProcessState::Zombie)]);
    assert_eq!([60.0, 70.0].map(state), [None, None], "gone from /proc, then from the driver");
}

#[test]
fn a_job_that_repeats_has_new_processes_in_each_run() {
    let job = Job {
        every: Some(Seconds(600.0)),
        under: "slurm 40".to_owned(),
        gpus: Positions(vec![(0, 0)]),
        age: Seconds(60.0),
        work: ["-60s load", "0 decode", "5m gone"].map(|step| Step::parse(step).unwrap()).to_vec(),
        ..Job::default()
    };
    let script = HostScript { jobs: vec![(0, Arc::new(job))], events: Vec::new(), ..script(0) };
    let facts = |time| Watched::new(&script, time).1.facts;
    let (first, second) = (facts(10.0), facts(610.0));
    assert_ne!(first[0].pid, second[0].pid);
    assert_eq!(second[0].start_unix_seconds, Some(1_700_000_540));
    assert_ne!(first[0].owner, second[0].owner);
    assert_eq!((facts(250.0)[0].pid, facts(310.0).len()), (first[0].pid, 0));
}

#[test]
fn a_signal_finds_workers_and_launchers_and_ends_the_job() {
    for launcher in [false, true] {
        let (mut watched, first) = Watched::new(&script(2), 60.0);
        let facts = first.facts.iter().find(|facts| facts.user.as_deref() == Some("dmitri")).expect("is there");
        let parent = &facts.ancestors[0];
        let (pid, start) =
            if launcher { (parent.pid, parent.start_ticks) } else { (facts.pid, facts.start_ticks.unwrap()) };
        assert_eq!(watched.host.signal(pid, start + 1), ReplyOutcome::Reused);
        assert_eq!(watched.host.signal(4_000_000, 1), ReplyOutcome::Gone);
        assert_eq!(watched.host.signal(pid, start), ReplyOutcome::Sent);
        let after = watched.snapshot(62.0);
        assert!(!after.processes.pid.contains(&Some(facts.pid)));
        assert_eq!(after.gpus.row(0).utilization_percent, Some(0));
        assert_eq!(watched.host.signal(pid, start), ReplyOutcome::Gone);
    }
}

#[test]
fn faults_of_hosts_look_as_a_probe_sees_them() {
    let at_minute = |index: u32, minute: f64| Watched::new(&script(index), minute * 60.0 + 6.0);
    let (mut mismatch, blind) = at_minute(5, 1.0);
    let error = mismatch.probe.inventory(&mismatch.host).and_then(|inventory| inventory.error).expect("an error");
    assert_eq!((error.kind, error.code), (DriverErrorKind::VersionMismatch, Some(18)));
    assert!(blind.gpus.is_empty() && blind.processes.is_empty() && blind.host.load_1.is_some());
    let (_, mute) = at_minute(0, 90.0);
    assert_eq!(mute.driver_error.map(|error| error.kind), Some(DriverErrorKind::Blocked));
    assert!(mute.gpus.is_empty() && mute.processes.is_empty());
    let (_, lost) = at_minute(7, 1.0);
    assert_eq!(lost.gpus.row(6).error.map(|error| error.kind), Some(DriverErrorKind::GpuLost));
    assert!(lost.gpus.row(6).power_watts.is_none() && !lost.gpu_processes.gpu.contains(&Some(6)));
    let silent = at_minute(3, 63.0).1.host.filesystems;
    assert_eq!(silent.iter().filter(|filesystem| filesystem.silent_seconds == Some(66.0)).count(), 1);
    let health = at_minute(1, 75.0).1.health;
    assert_eq!(health.row(5).ecc_uncorrectable_volatile, Some(2));
    assert_eq!(health.row(2).nvlinks_active, Some(0x3_FFFF & !(1 << 7)));
    let (mut remote, _) = Watched::new(&script(4), 5090.0);
    let xids = [5098.0, 5100.0, 5102.0].map(|seconds| remote.snapshot(seconds).xid_events.len());
    assert_eq!(xids, [0, 1, 0], "once");
}

#[test]
fn sockets_of_own_processes_follow_the_phases() {
    let work =
        ["0 idle", "10m idle listens=8000 connections=2 waiting=1"].map(|step| Step::parse(step).expect("a step"));
    for (user, ports, connections, waiting) in
        [("alice", vec![8000], Some(2), (Some(1), Some(1.0))), ("bob", vec![], None, (None, None))]
    {
        let job = Arc::new(Job { user: user.to_owned(), work: work.to_vec(), ..Job::default() });
        let host = HostScript { jobs: vec![(0, job)], events: Vec::new(), login: "alice".to_owned(), ..script(0) };
        let (mut watched, first) = Watched::new(&host, 0.0);
        assert!(first.facts.iter().all(|facts| facts.listening_ports.is_empty()));
        let later = watched.snapshot(601.0);
        let sent: Vec<u16> = later.facts.iter().flat_map(|facts| facts.listening_ports.clone()).collect();
        assert_eq!(
            (sent.first().copied(), later.processes.row(0).established_connections),
            (ports.first().copied(), connections),
            "{user}"
        );
        let reading = later.processes.row(0);
        assert_eq!((reading.waiting_clients, reading.longest_wait_seconds), waiting, "{user}");
    }
}
