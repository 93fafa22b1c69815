//! The lab of the demo: who sits where, and what befalls whom, so that each rule of diagnosis has something to find
//! within two hours of simulated time. The first minutes are an ordinary day.

use super::cast::{A100, ALICE, BOB, CAROL, DMITRI, ERIKA, FUMI, GUSTAV, H100, HANA, Model};
use super::fate::{Fate, What};
use super::incident::{Event, Incident};
use super::work::Kind;
use crate::wire::RecoveryAction;

const HOUR: f64 = 3600.0;
const DAY: f64 = 24.0 * HOUR;
const FOREVER: f64 = f64::INFINITY;

/// A host before its GPUs are counted.
pub(super) struct Role {
    pub(super) model: &'static Model,
    pub(super) places: Vec<Place>,
    pub(super) incidents: Vec<Incident>,
    pub(super) driver: Driver,
}

/// The driver of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Driver {
    /// The one that the lab has agreed on.
    Usual,
    /// An older one, with persistence mode off.
    Forgotten,
    /// It was updated and the host not rebooted: nobody can use it.
    Mismatched,
}

/// Some GPUs of a host, and what is run there one after the other.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) gpus: usize,
    pub(super) runs: Vec<Run>,
}

/// One job, or one after the other of the same kind.
#[derive(Clone)]
pub(super) struct Run {
    pub(super) kind: Kind,
    pub(super) person: usize,
    pub(super) script: Option<&'static str>,
    /// Minutes after the start of the demo at which it begins; what runs before has a time in seconds behind it.
    pub(super) begins: Result<f64, f64>,
    /// Minutes after the start at which it is over.
    pub(super) ends: f64,
    pub(super) fates: Vec<Fate>,
    pub(super) leak_gib_per_hour: f64,
}

impl Run {
    /// One that has run for some seconds when the demo begins.
    pub(super) fn old(kind: Kind, person: usize, seconds: f64) -> Self {
        let begins = Err(seconds);
        Self { kind, person, script: None, begins, ends: FOREVER, fates: Vec::new(), leak_gib_per_hour: 0.0 }
    }

    /// One that begins some minutes after the demo.
    fn at(minute: f64, kind: Kind, person: usize) -> Self {
        Self { begins: Ok(minute), ..Self::old(kind, person, 0.0) }
    }

    fn free() -> Self {
        Self::old(Kind::Free, 0, 0.0)
    }

    fn script(self, script: &'static str) -> Self {
        Self { script: Some(script), ..self }
    }

    /// What befalls it from one minute to another; in their order.
    fn then(mut self, from: f64, until: f64, what: What) -> Self {
        self.fates.push(Fate::new(from, until, what));
        self
    }

    fn leaks(self, gib_per_hour: f64) -> Self {
        Self { leak_gib_per_hour: gib_per_hour, ..self }
    }

    fn until(self, minute: f64) -> Self {
        Self { ends: minute, ..self }
    }
}

fn place(gpus: usize, runs: impl Into<Vec<Run>>) -> Place {
    Place { gpus, runs: runs.into() }
}

fn one(gpus: usize, kind: Kind, person: usize, seconds: f64) -> Place {
    place(gpus, [Run::old(kind, person, seconds)])
}

/// The hosts that everybody sees; `None` for those beyond them.
pub(super) fn role(index: u32) -> Option<Role> {
    Some(match index {
        0 => mixed(),
        1 => pretraining(),
        2 => troubled(),
        3 => borrowed(),
        4 => remote(),
        5 => Role { driver: Driver::Mismatched, ..ordinary() },
        6 => Role { places: vec![one(8, Kind::Pretrain, ERIKA, 30.0 * HOUR)], ..ordinary() },
        7 => Role { incidents: vec![Incident::since(-600.0, Event::Lost { gpu: 6 })], ..ordinary() },
        _ => return None,
    })
}

/// Mixed work, and nothing befalls it.
pub(super) fn ordinary() -> Role {
    Role {
        model: &H100,
        places: vec![
            one(4, Kind::Training, ALICE, 3.2 * HOUR),
            one(1, Kind::Evaluation, GUSTAV, 0.2 * HOUR),
            one(1, Kind::Shared, BOB, 5.0 * HOUR),
            one(1, Kind::Notebook, CAROL, 6.1 * DAY),
            place(1, [Run::free()]),
        ],
        incidents: Vec::new(),
        driver: Driver::Usual,
    }
}

/// Training loses a rank after a quarter of an hour, is ended by its watchdog and begins again; later the file server is
/// away, and the driver answers nobody.
fn mixed() -> Role {
    let mut role = ordinary();
    let training = Run::old(Kind::Training, ALICE, 3.2 * HOUR);
    role.places[0] =
        place(4, [training.then(14.0, FOREVER, What::LosesRank(2)).until(30.0), Run::at(33.0, Kind::Training, ALICE)]);
    role.incidents =
        vec![Incident::new(62.0, 66.0, Event::Silent { mount: "/home" }), Incident::new(90.0, 92.5, Event::Mute)];
    role
}

/// One large job on a host whose board ages: an NVLink, a power supply, a memory row.
fn pretraining() -> Role {
    let pretraining = Run::old(Kind::Pretrain, ERIKA, 19.4 * HOUR).then(20.0, 48.0, What::Straggles(6));
    Role {
        model: &H100,
        places: vec![place(8, [pretraining])],
        incidents: vec![
            Incident::since(30.0, Event::LinkDown { gpu: 2, link: 7 }),
            Incident::new(50.0, 53.0, Event::Brake { first: 0, last: 3 }),
            Incident::since(70.0, Event::Xid { gpu: 5, number: 94 }),
            Incident::since(70.0, Event::BadRow { gpu: 5, errors: 2 }),
            Incident::since(71.0, Event::Asks { gpu: 5, action: RecoveryAction::DrainAndReset }),
            Incident::new(0.0, 110.0, Event::Fills { mount: "/scratch", from: 83.0, to: 98.8 }),
        ],
        driver: Driver::Usual,
    }
}

/// Where most goes wrong: one job has hung before anybody looked, one hangs soon, a GPU overheats, videos are decoded too
/// slowly and in the end fill the memory.
fn troubled() -> Role {
    const SFT: &str = "sft.py --fsdp --resume ckpt/last";
    const DPO: &str = "dpo.py --base ckpt/sft-8b --beta 0.1";
    let hung = Run::old(Kind::Training, DMITRI, 9.7 * HOUR).script(SFT).then(-300.0, FOREVER, What::Hangs);
    let hangs = Run::old(Kind::Training, FUMI, 1.9 * HOUR).script(DPO).then(6.5, FOREVER, What::Hangs).until(40.0);
    let orphaned = Run::at(42.0, Kind::Training, FUMI).script(DPO).then(55.0, FOREVER, What::LosesLauncher).until(75.0);
    let hot = Run::old(Kind::Hot, HANA, 12.0 * 60.0).then(12.0, FOREVER, What::Overheats);
    let video = Run::old(Kind::Video, BOB, 2.6 * HOUR).then(25.0, FOREVER, What::Starves).until(75.0);
    let stalls = Run::old(Kind::Evaluation, ALICE, 0.5 * HOUR).script("rl.py --env maze --actors 8");
    Role {
        model: &H100,
        places: vec![
            place(2, [hung]),
            place(2, [hangs, orphaned, Run::at(77.0, Kind::Training, FUMI).script(DPO)]),
            place(1, [hot]),
            place(1, [video, Run::at(81.0, Kind::Video, BOB)]),
            place(1, [stalls.then(9.0, FOREVER, What::Stalls).until(52.0), Run::at(54.0, Kind::Evaluation, ALICE)]),
            place(1, [Run::free()]),
        ],
        incidents: vec![Incident::new(57.0, 75.0, Event::Swells { to: 98.9 }), Incident::since(75.0, Event::Kill)],
        driver: Driver::Usual,
    }
}

/// Older GPUs, on which people forget things: a job that leaks, one that is stopped, killed and never quite gone, a log
/// that nobody misses.
fn borrowed() -> Role {
    let leaks = Run::old(Kind::Evaluation, CAROL, 0.3 * HOUR).script("embed.py --corpus wiki --keep-all");
    let stops = Run::old(Kind::Evaluation, CAROL, 0.4 * HOUR).script("render.py --scene city --samples 512");
    let stops =
        stops.then(30.0, 40.0, What::Stops).then(50.0, 58.0, What::Lingers).then(58.0, FOREVER, What::LeavesMemory);
    let silent = Run::old(Kind::Training, DMITRI, 7.5 * HOUR).then(15.0, FOREVER, What::FallsSilent);
    Role {
        model: &A100,
        places: vec![
            one(2, Kind::Inference, ALICE, 2.4 * DAY),
            place(1, [leaks.leaks(10.0).until(112.0), Run::at(114.0, Kind::Evaluation, CAROL)]),
            place(1, [stops.until(68.0), Run::at(72.0, Kind::Evaluation, CAROL)]),
            place(2, [silent]),
            one(1, Kind::Notebook, GUSTAV, 1.3 * DAY),
            place(1, [Run::free()]),
        ],
        incidents: vec![
            Incident::since(-900.0, Event::SlowLink { gpu: 4, generation: 3 }),
            Incident::new(62.0, 66.0, Event::Silent { mount: "/home" }),
        ],
        driver: Driver::Usual,
    }
}

/// Behind a bad line, with a driver that was left out of the last update.
fn remote() -> Role {
    let tiny = Run::old(Kind::Tiny, HANA, 0.4 * HOUR).script("ppo.py --batch 8");
    let waits = Run::old(Kind::Evaluation, FUMI, 0.4 * HOUR).script("sweep.py --trial 17");
    Role {
        model: &H100,
        places: vec![
            one(4, Kind::Inference, BOB, 11.0 * DAY),
            place(1, [tiny]),
            place(1, [waits.then(20.0, 28.0, What::Waits)]),
            place(2, [Run::free()]),
        ],
        incidents: vec![
            // The first is after one has looked around, and before one has left.
            away(1.25, 40.0),
            away(10.0, 40.0),
            away(50.0, 420.0),
            away(100.0, 40.0),
            Incident::since(85.0, Event::Xid { gpu: 7, number: 79 }),
            Incident::since(85.1, Event::Lost { gpu: 7 }),
        ],
        driver: Driver::Forgotten,
    }
}

/// Its network is away from this minute on for some seconds.
pub(super) fn away(minute: f64, seconds: f64) -> Incident {
    Incident::new(minute, minute + seconds / 60.0, Event::Away)
}
