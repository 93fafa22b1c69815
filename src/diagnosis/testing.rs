//! Test fixture for rules: hosts made of wire messages, evaluated by an engine in simulated time.

use super::{Engine, Finding, FindingPhase, Transition};
use crate::config::{HostConfig, Thresholds};
use crate::fleet::fixture::{TestHost, TestProcess, at, gpus, process};
use crate::fleet::{Fleet, HostId, HostUpdate, Moment};
use crate::wire::{Ancestor, GpuInfo, GpuReading, Snapshot};
use std::sync::Arc;

/// One sample of one host.
#[derive(Clone, Default)]
pub(super) struct TestSample {
    pub(super) gpus: Vec<GpuReading>,
    pub(super) processes: Vec<TestProcess>,
}

pub(super) struct RuleTester {
    pub(super) fleet: Fleet,
    pub(super) engine: Engine,
    sources: Vec<TestHost>,
    pub(super) t: f64,
    /// Seconds between samples.
    pub(super) interval: f64,
    pub(super) transitions: Vec<Transition>,
    random_state: u64,
    cpu: std::collections::HashMap<(usize, u32), f64>,
}

impl RuleTester {
    /// One host with these GPUs and the default thresholds.
    pub(super) fn new(gpus: Vec<GpuInfo>) -> Self {
        Self::of(vec![gpus], Thresholds::default())
    }

    pub(super) fn of(hosts: Vec<Vec<GpuInfo>>, thresholds: Thresholds) -> Self {
        let configs: Vec<Arc<HostConfig>> =
            (0..hosts.len()).map(|id| Arc::new(HostConfig::named(format!("hgx-{id:02}")))).collect();
        let mut tester = Self {
            fleet: Fleet::new(&configs, false, at(0.0)),
            engine: Engine::new(Arc::new(thresholds)),
            sources: (0..).zip(hosts).map(|(id, gpus)| TestHost::new(id, gpus)).collect(),
            t: 1000.0,
            interval: 10.0,
            transitions: Vec::new(),
            random_state: 7,
            cpu: std::collections::HashMap::new(),
        };
        for id in 0..tester.sources.len() {
            tester.connect(id);
        }
        tester
    }

    pub(super) fn now(&self) -> Moment {
        at(self.t)
    }

    /// Applies the hello and the inventory of a host.
    pub(super) fn connect(&mut self, id: usize) {
        let hello = self.sources[id].host.hello.clone().expect("hello");
        self.update(id, HostUpdate::Hello(Box::new(hello)));
        self.send_inventory(id);
    }

    fn send_inventory(&mut self, id: usize) {
        let inventory = self.sources[id].host.inventory.clone().expect("inventory");
        self.update(id, HostUpdate::Inventory(Box::new(inventory)));
    }

    pub(super) fn set_cpu_count(&mut self, count: u32) {
        if let Some(hello) = &mut self.sources[0].host.hello {
            hello.cpu_count = Some(count);
        }
        self.connect(0);
    }

    pub(super) fn reboot(&mut self, id: usize) {
        self.sources[id].hello("boot-2");
        self.connect(id);
    }

    pub(super) fn inventory(&mut self, id: usize, gpus: Vec<GpuInfo>) {
        self.sources[id].inventory(gpus);
        self.send_inventory(id);
    }

    pub(super) fn update(&mut self, id: usize, update: HostUpdate) {
        let (host, now) = (HostId(id as u32), self.now());
        self.fleet.apply(host, update, now);
        self.transitions.extend(self.engine.evaluate_host(&self.fleet, host, now));
    }

    /// Sends one snapshot after `edit`.
    pub(super) fn send(&mut self, id: usize, test_sample: &TestSample, edit: impl FnOnce(&mut Snapshot)) {
        let mut processes = test_sample.processes.clone();
        for process in &mut processes {
            // CPU time follows from the CPU percentage, unless a test sets it.
            let percent = f64::from(process.reading.cpu_percent.unwrap_or(0.0));
            let used = self.cpu.entry((id, process.facts.pid)).or_insert(100.0);
            *used += percent / 100.0 * self.interval;
            process.reading.cpu_seconds = process.reading.cpu_seconds.or(Some(*used));
            process.reading.age_seconds = Some(10_000.0 + self.t);
        }
        let mut snapshot = self.sources[id].snapshot(self.t, &test_sample.gpus, &processes);
        snapshot.interval_seconds = Some(self.interval as f32);
        edit(&mut snapshot);
        self.update(id, HostUpdate::Snapshot(Box::new(snapshot)));
    }

    /// Sends samples of host 0 for some seconds. `make` gets the seconds since the start.
    pub(super) fn run(&mut self, seconds: f64, make: impl FnMut(&mut Self, f64) -> TestSample) {
        self.run_edited(seconds, make, |_, _| {});
    }

    /// As [`Self::run`], with processes that start when the samples begin.
    pub(super) fn run_new(&mut self, seconds: f64, make: impl FnMut(&mut Self, f64) -> TestSample) {
        self.run_edited(seconds, make, |snapshot, passed| {
            snapshot.processes.age_seconds = vec![Some(passed); snapshot.processes.len()];
        });
    }

    pub(super) fn run_edited(
        &mut self,
        seconds: f64,
        mut make: impl FnMut(&mut Self, f64) -> TestSample,
        edit: impl Fn(&mut Snapshot, f64),
    ) {
        let begin = self.t;
        while self.t < begin + seconds {
            let passed = self.t - begin;
            let test_sample = make(self, passed);
            self.send(0, &test_sample, |snapshot| edit(snapshot, passed));
            self.wait(self.interval);
        }
    }

    /// Lets time pass without samples.
    pub(super) fn wait(&mut self, seconds: f64) {
        let end = self.t + seconds;
        while self.t < end {
            self.t = (self.t + 1.0).min(end);
            let now = self.now();
            self.transitions.extend(self.engine.tick(&self.fleet, now));
        }
    }

    /// A pseudo-random number around zero: the same series in every run.
    pub(super) fn noise(&mut self, deviation: f32) -> f32 {
        let mut sum = 0.0;
        for _ in 0..4 {
            self.random_state =
                self.random_state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            sum += (self.random_state >> 40) as f32 / (1_u64 << 24) as f32 - 0.5;
        }
        sum * 1.7 * deviation
    }

    /// A GPU with this utilisation, power, memory utilisation and used GiB, with some noise.
    pub(super) fn gpu(&mut self, utilization: u8, watts: f32, memory: u8, gib: u64) -> GpuReading {
        let wobble = if memory > 5 { self.noise(4.0) } else { 0.0 };
        GpuReading {
            utilization_percent: Some(utilization),
            memory_utilization_percent: Some((f32::from(memory) + wobble).clamp(0.0, 100.0) as u8),
            memory_used_bytes: Some((gib << 30) + (512 << 20)),
            memory_reserved_bytes: Some(512 << 20),
            power_watts: Some(watts + self.noise(if watts > 300.0 { 25.0 } else { 1.5 })),
            ..GpuReading::default()
        }
    }

    pub(super) fn findings(&self) -> Vec<&Finding> {
        self.engine.findings().collect()
    }

    /// The firing findings: rule and severity.
    pub(super) fn firing(&self) -> Vec<(&'static str, &'static str)> {
        let firing = self.engine.findings().filter(|finding| finding.phase == FindingPhase::Firing);
        firing.map(|finding| (finding.rule.word(), finding.severity.word())).collect()
    }

    pub(super) fn finding(&self, rule: &str) -> &Finding {
        let all = self.findings();
        match all.iter().find(|finding| finding.rule.word() == rule) {
            Some(finding) => finding,
            None => panic!("no {rule} among {:?}", all.iter().map(|finding| finding.rule.word()).collect::<Vec<_>>()),
        }
    }

    /// The findings that have fired so far: rule and severity.
    pub(super) fn fired(&self) -> Vec<(&'static str, &'static str)> {
        let mut fired: Vec<(&str, &str)> = Vec::new();
        for transition in self.transitions.iter().filter(|transition| transition.to == FindingPhase::Firing) {
            let entry = (transition.rule.word(), transition.severity.word());
            if !fired.contains(&entry) {
                fired.push(entry);
            }
        }
        fired
    }

    pub(super) fn notified(&self) -> usize {
        self.transitions.iter().filter(|transition| transition.notify).count()
    }
}

/// A training run of one process at full speed.
pub(super) fn trains(tester: &mut RuleTester) -> TestSample {
    TestSample { gpus: vec![tester.gpu(97, 500.0, 40, 40)], processes: vec![process(7, "python train.py", &[(0, 40)])] }
}

/// One process per GPU, all started by one torchrun.
pub(super) fn ranks(count: u16, cores: f32) -> Vec<TestProcess> {
    (0..count)
        .map(|gpu| {
            let mut rank = process(4312 + u32::from(gpu), "python train.py", &[(gpu, 70)]);
            let torchrun =
                Ancestor { pid: 4300, start_ticks: 9, uid: Some(1000), name: "torchrun".into(), argv: vec![] };
            rank.facts.ancestors = vec![torchrun];
            rank.reading.cpu_percent = Some(cores * 100.0);
            rank
        })
        .collect()
}

/// Ranks at work, one per GPU.
pub(super) fn healthy(tester: &mut RuleTester, count: u16) -> TestSample {
    let gpus = (0..count).map(|_| tester.gpu(98, 560.0, 48, 70)).collect();
    TestSample { gpus, processes: ranks(count, 1.4) }
}

/// Ranks whose GPUs are busy at this power and access no memory.
pub(super) fn hung(tester: &mut RuleTester, count: u16, watts: f32, cores: f32) -> TestSample {
    let gpus = (0..count).map(|_| tester.gpu(100, watts, 0, 70)).collect();
    TestSample { gpus, processes: ranks(count, cores) }
}

/// A host whose job has worked for 20 minutes.
pub(super) fn after_healthy_work(count: u16) -> RuleTester {
    let mut tester = RuleTester::new(gpus(0..u32::from(count)));
    tester.run(1200.0, |tester, _| healthy(tester, count));
    assert_eq!(tester.fired(), []);
    tester
}

/// The sample with a log of its first process that is written every ten seconds until `stopped_at`.
pub(super) fn logging(t: f64, mut test_sample: TestSample, stopped_at: Option<f64>) -> TestSample {
    let age = stopped_at.map_or(t % 20.0 / 2.0, |at| t - at);
    test_sample.processes[0].facts.log_path = Some("/home/alice/run.log".into());
    test_sample.processes[0].reading.log_age_seconds = Some(age.max(0.0).trunc());
    test_sample
}

/// Gives the host 1,000 GiB of memory, of which 100 are in use at first and so many GB more with each minute.
pub(super) fn fill_memory(snapshot: &mut Snapshot, passed: f64, gb_a_minute: f64) {
    snapshot.host.memory_total_bytes = Some(1000 << 30);
    snapshot.host.memory_available_bytes = Some((900 << 30) - (gb_a_minute * passed / 60.0 * 1e9) as u64);
}

/// The notification of a finding with this fingerprint and severity that has just fired.
pub(crate) fn notification(id: &str, severity: super::Severity) -> super::FindingNotification {
    let mut finding = Finding::blank(super::RuleId::GpuLost, HostId(0), at(0.0));
    finding.id = id.into();
    finding.severity = severity;
    finding.phase = FindingPhase::Firing;
    finding.sentence = "a sentence".into();
    finding.hosts = vec![(HostId(0), "hgx-01".into())];
    let transition = Transition {
        at: at(0.0),
        id: id.into(),
        rule: super::RuleId::GpuLost,
        host: Some(HostId(0)),
        host_name: "hgx-01".into(),
        from: FindingPhase::Clear,
        to: FindingPhase::Firing,
        severity,
        is_milder: false,
        notify: true,
        is_reminder: false,
        sentence: "a sentence".into(),
    };
    super::FindingNotification { transition, finding }
}
