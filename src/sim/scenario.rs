//! The hosts of the simulated fleet: who runs kind, and which faults occur when, so that each rule of diagnosis has
//! something to find within two hours of simulated time. The first minutes are an ordinary day.

use super::fault::{HostFault, HostFaultKind, JobFault, JobFaultKind};
use super::workload::{A100, GpuModel, H100, Workload};
use crate::wire::RecoveryAction;

const HOUR: f64 = 3600.0;
const DAY: f64 = 24.0 * HOUR;
const FOREVER: f64 = f64::INFINITY;

/// A host, independent of its number of GPUs.
pub(super) struct HostTemplate {
    pub(super) model: &'static GpuModel,
    pub(super) templates: Vec<SlotTemplate>,
    pub(super) host_faults: Vec<HostFault>,
    pub(super) driver: DriverState,
}

/// The driver of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DriverState {
    /// The version used in the lab.
    Current,
    /// An older version, with persistence mode off.
    Outdated,
    /// Updated without a reboot, so nobody can use it.
    Mismatched,
}

/// Some GPUs of a host and the jobs that run there in sequence.
#[derive(Clone)]
pub(super) struct SlotTemplate {
    pub(super) gpus: usize,
    pub(super) runs: Vec<JobTemplate>,
}

/// One job, or a sequence of similar ones.
#[derive(Clone)]
pub(super) struct JobTemplate {
    pub(super) kind: Workload,
    pub(super) person: usize,
    pub(super) script: Option<&'static str>,
    /// Start in minutes after the start of the simulation, or as `Err` the age in seconds of a job that already runs.
    pub(super) begins: Result<f64, f64>,
    /// End in minutes after the start of the simulation.
    pub(super) ends: f64,
    pub(super) job_faults: Vec<JobFault>,
    pub(super) leak_gib_per_hour: f64,
}

impl JobTemplate {
    /// A job that already runs at the start of the simulation, with its age in seconds.
    pub(super) fn old(kind: Workload, person: usize, seconds: f64) -> Self {
        let begins = Err(seconds);
        Self { kind, person, script: None, begins, ends: FOREVER, job_faults: Vec::new(), leak_gib_per_hour: 0.0 }
    }

    /// A job that starts during the simulation.
    fn at(minute: f64, kind: Workload, person: usize) -> Self {
        Self { begins: Ok(minute), ..Self::old(kind, person, 0.0) }
    }

    fn free() -> Self {
        Self::old(Workload::Free, 0, 0.0)
    }

    fn script(self, script: &'static str) -> Self {
        Self { script: Some(script), ..self }
    }

    /// Adds a fault between two minutes. Faults must be in order.
    fn then(mut self, from: f64, until: f64, kind: JobFaultKind) -> Self {
        self.job_faults.push(JobFault::new(from, until, kind));
        self
    }

    fn leaks(self, gib_per_hour: f64) -> Self {
        Self { leak_gib_per_hour: gib_per_hour, ..self }
    }

    fn until(self, minute: f64) -> Self {
        Self { ends: minute, ..self }
    }
}

fn slot_template(gpus: usize, runs: impl Into<Vec<JobTemplate>>) -> SlotTemplate {
    SlotTemplate { gpus, runs: runs.into() }
}

fn single(gpus: usize, kind: Workload, person: usize, seconds: f64) -> SlotTemplate {
    slot_template(gpus, [JobTemplate::old(kind, person, seconds)])
}

/// Returns a predefined host, or `None` beyond them.
pub(super) fn host_template(index: u32) -> Option<HostTemplate> {
    Some(match index {
        0 => mixed(),
        1 => pretraining(),
        2 => troubled(),
        3 => borrowed(),
        4 => remote(),
        5 => HostTemplate { driver: DriverState::Mismatched, ..ordinary() },
        6 => HostTemplate { templates: vec![single(8, Workload::Pretrain, ERIKA, 30.0 * HOUR)], ..ordinary() },
        7 => HostTemplate { host_faults: vec![HostFault::since(-600.0, HostFaultKind::Lost { gpu: 6 })], ..ordinary() },
        _ => return None,
    })
}

/// Mixed work without faults.
pub(super) fn ordinary() -> HostTemplate {
    HostTemplate {
        model: &H100,
        templates: vec![
            single(4, Workload::Training, ALICE, 3.2 * HOUR),
            single(1, Workload::Evaluation, GUSTAV, 0.2 * HOUR),
            single(1, Workload::Shared, BOB, 5.0 * HOUR),
            single(1, Workload::Notebook, CAROL, 6.1 * DAY),
            slot_template(1, [JobTemplate::free()]),
        ],
        host_faults: Vec::new(),
        driver: DriverState::Current,
    }
}

/// The training job loses a rank after a quarter of an hour, is ended by its watchdog and restarts. Later the file server
/// and the driver stop answering.
fn mixed() -> HostTemplate {
    let mut template = ordinary();
    let training = JobTemplate::old(Workload::Training, ALICE, 3.2 * HOUR);
    template.templates[0] = slot_template(
        4,
        [
            training.then(14.0, FOREVER, JobFaultKind::LosesRank(2)).until(30.0),
            JobTemplate::at(33.0, Workload::Training, ALICE),
        ],
    );
    template.host_faults = vec![
        HostFault::new(62.0, 66.0, HostFaultKind::Silent { mount: "/home" }),
        HostFault::new(90.0, 92.5, HostFaultKind::Mute),
    ];
    template
}

/// One large job on a host with ageing hardware: an NVLink, a power supply, a memory row.
fn pretraining() -> HostTemplate {
    let pretraining =
        JobTemplate::old(Workload::Pretrain, ERIKA, 19.4 * HOUR).then(20.0, 48.0, JobFaultKind::Straggles(6));
    HostTemplate {
        model: &H100,
        templates: vec![slot_template(8, [pretraining])],
        host_faults: vec![
            HostFault::since(30.0, HostFaultKind::LinkDown { gpu: 2, link: 7 }),
            HostFault::new(50.0, 53.0, HostFaultKind::Brake { first: 0, last: 3 }),
            HostFault::since(70.0, HostFaultKind::Xid { gpu: 5, number: 94 }),
            HostFault::since(70.0, HostFaultKind::BadRow { gpu: 5, errors: 2 }),
            HostFault::since(71.0, HostFaultKind::Asks { gpu: 5, action: RecoveryAction::DrainAndReset }),
            HostFault::new(0.0, 110.0, HostFaultKind::Fills { mount: "/scratch", from: 83.0, to: 98.8 }),
        ],
        driver: DriverState::Current,
    }
}

/// The host with most faults: one job hung before the start, one hangs soon, a GPU overheats, and a job decodes videos too
/// slowly and later fills the memory.
fn troubled() -> HostTemplate {
    const SFT: &str = "sft.py --fsdp --resume ckpt/last";
    const DPO: &str = "dpo.py --base ckpt/sft-8b --beta 0.1";
    let hung =
        JobTemplate::old(Workload::Training, DMITRI, 9.7 * HOUR).script(SFT).then(-300.0, FOREVER, JobFaultKind::Hangs);
    let hangs = JobTemplate::old(Workload::Training, FUMI, 1.9 * HOUR)
        .script(DPO)
        .then(6.5, FOREVER, JobFaultKind::Hangs)
        .until(40.0);
    let orphaned = JobTemplate::at(42.0, Workload::Training, FUMI)
        .script(DPO)
        .then(55.0, FOREVER, JobFaultKind::LosesLauncher)
        .until(75.0);
    let hot = JobTemplate::old(Workload::Hot, HANA, 12.0 * 60.0).then(12.0, FOREVER, JobFaultKind::Overheats);
    let video =
        JobTemplate::old(Workload::Video, BOB, 2.6 * HOUR).then(25.0, FOREVER, JobFaultKind::Starves).until(75.0);
    let stalls = JobTemplate::old(Workload::Evaluation, ALICE, 0.5 * HOUR).script("rl.py --env maze --actors 8");
    HostTemplate {
        model: &H100,
        templates: vec![
            slot_template(2, [hung]),
            slot_template(2, [hangs, orphaned, JobTemplate::at(77.0, Workload::Training, FUMI).script(DPO)]),
            slot_template(1, [hot]),
            slot_template(1, [video, JobTemplate::at(81.0, Workload::Video, BOB)]),
            slot_template(
                1,
                [
                    stalls.then(9.0, FOREVER, JobFaultKind::Stalls).until(52.0),
                    JobTemplate::at(54.0, Workload::Evaluation, ALICE),
                ],
            ),
            slot_template(1, [JobTemplate::free()]),
        ],
        host_faults: vec![
            HostFault::new(57.0, 75.0, HostFaultKind::Swells { to: 98.9 }),
            HostFault::since(75.0, HostFaultKind::Kill),
        ],
        driver: DriverState::Current,
    }
}

/// Older GPUs with neglected jobs: one leaks memory, one is stopped, killed and never quite gone, one no longer writes its
/// log.
fn borrowed() -> HostTemplate {
    let leaks = JobTemplate::old(Workload::Evaluation, CAROL, 0.3 * HOUR).script("embed.py --corpus wiki --keep-all");
    let stops =
        JobTemplate::old(Workload::Evaluation, CAROL, 0.4 * HOUR).script("render.py --scene city --samples 512");
    let stops = stops.then(30.0, 40.0, JobFaultKind::Stops).then(50.0, 58.0, JobFaultKind::Lingers).then(
        58.0,
        FOREVER,
        JobFaultKind::LeavesMemory,
    );
    let silent =
        JobTemplate::old(Workload::Training, DMITRI, 7.5 * HOUR).then(15.0, FOREVER, JobFaultKind::FallsSilent);
    HostTemplate {
        model: &A100,
        templates: vec![
            single(2, Workload::Inference, ALICE, 2.4 * DAY),
            slot_template(1, [leaks.leaks(10.0).until(112.0), JobTemplate::at(114.0, Workload::Evaluation, CAROL)]),
            slot_template(1, [stops.until(68.0), JobTemplate::at(72.0, Workload::Evaluation, CAROL)]),
            slot_template(2, [silent]),
            single(1, Workload::Notebook, GUSTAV, 1.3 * DAY),
            slot_template(1, [JobTemplate::free()]),
        ],
        host_faults: vec![
            HostFault::since(-900.0, HostFaultKind::SlowLink { gpu: 4, generation: 3 }),
            HostFault::new(62.0, 66.0, HostFaultKind::Silent { mount: "/home" }),
        ],
        driver: DriverState::Current,
    }
}

/// A host behind an unreliable link, with an outdated driver.
fn remote() -> HostTemplate {
    let tiny = JobTemplate::old(Workload::Tiny, HANA, 0.4 * HOUR).script("ppo.py --batch 8");
    let waits = JobTemplate::old(Workload::Evaluation, FUMI, 0.4 * HOUR).script("sweep.py --trial 17");
    HostTemplate {
        model: &H100,
        templates: vec![
            single(4, Workload::Inference, BOB, 11.0 * DAY),
            slot_template(1, [tiny]),
            slot_template(1, [waits.then(20.0, 28.0, JobFaultKind::Waits)]),
            slot_template(2, [JobTemplate::free()]),
        ],
        host_faults: vec![
            // The first outage comes after a new user has looked around, but before they leave.
            away(1.25, 40.0),
            away(10.0, 40.0),
            away(50.0, 420.0),
            away(100.0, 40.0),
            HostFault::since(85.0, HostFaultKind::Xid { gpu: 7, number: 79 }),
            HostFault::since(85.1, HostFaultKind::Lost { gpu: 7 }),
        ],
        driver: DriverState::Outdated,
    }
}

/// A network outage of some seconds from this minute on.
pub(super) fn away(minute: f64, seconds: f64) -> HostFault {
    HostFault::new(minute, minute + seconds / 60.0, HostFaultKind::Away)
}

/// A user of the lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Person {
    pub(super) login: &'static str,
    pub(super) full_name: &'static str,
    pub(super) uid: u32,
}

const fn person(login: &'static str, full_name: &'static str, uid: u32) -> Person {
    Person { login, full_name, uid }
}

/// The users of the lab; gpufleet runs as [`VIEWER`].
pub(super) const PEOPLE: [Person; 8] = [
    person("alice", "Alice Moreau", 1001),
    person("bob", "Bob Okafor", 1002),
    person("carol", "Carol Lindqvist", 1003),
    person("dmitri", "Dmitri Volkov", 1004),
    person("erika", "Erika Satō", 1005),
    person("fumi", "Fumi Tanaka", 1006),
    person("gustav", "Gustav Meyer", 1007),
    person("hana", "Hana Nováková", 1008),
];
pub(super) const ALICE: usize = 0;
pub(super) const BOB: usize = 1;
pub(super) const CAROL: usize = 2;
pub(super) const DMITRI: usize = 3;
pub(super) const ERIKA: usize = 4;
pub(super) const FUMI: usize = 5;
pub(super) const GUSTAV: usize = 6;
pub(super) const HANA: usize = 7;

/// The account gpufleet logs in with. One of the hung jobs belongs to it, so that it can be signalled.
pub(super) const VIEWER: Person = PEOPLE[DMITRI];
