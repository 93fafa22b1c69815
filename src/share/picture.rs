//! The lines with the current picture of a fleet, for a viewer that has just connected.

use super::findings;
use super::frame::{
    DiagnosisFrame, Frame, HOSTS_PER_LINE, HostFrame, HostInfo, LinkFrame, Needed, NeededFacts, NeededFindings,
    ViewerHello, encode,
};
use super::privacy::{self, Audience};
use crate::diagnosis::Engine;
use crate::fleet::recording::RecordedError;
use crate::fleet::{Fleet, GpuMetric, Host, HostUpdate, Link, Moment, Process, SeriesKey};
use crate::wire::{
    GpuColumns, GpuHealth, GpuHealthColumns, GpuProcessColumns, GpuProcessReading, GpuReading, Message, ProcessColumns,
    ProcessFacts, ProcessReading, RecentPast, SlurmJob, Snapshot,
};
use std::sync::Arc;
use std::time::Duration;

/// An encoded line, shared by the queues of all viewers.
pub(super) type Line = Arc<[u8]>;

/// The seconds of the charts that a viewer gets at once: those that [`crate::fleet::History::backfill`] takes.
const CHART_SECONDS: usize = 600;
/// The facts of this many processes go into one line; further ones into copies of it.
const FACTS_PER_LINE: usize = 256;

/// The lines of the list of hosts.
fn host_list(fleet: &Fleet) -> Vec<Frame> {
    let infos: Vec<HostInfo> = fleet.hosts_in_order().iter().map(|host| HostInfo::new(&host.config)).collect();
    if infos.is_empty() {
        return vec![Frame::Hosts { first: 0, list: Vec::new() }];
    }
    let parts = infos.chunks(HOSTS_PER_LINE).enumerate();
    parts.map(|(part, list)| Frame::Hosts { first: (part * HOSTS_PER_LINE) as u32, list: list.to_vec() }).collect()
}

/// The parts of a picture that a viewer gets.
#[derive(Debug, Clone, Copy)]
pub(super) struct PictureContent {
    /// Who reads it.
    pub(super) audience: Audience,
    /// With the charts, for a viewer that follows; otherwise with the states of the GPUs and the findings.
    pub(super) follows: bool,
    /// The facts of processes, and the findings.
    pub(super) needed: Needed,
}

impl PictureContent {
    /// The picture that this viewer asks for.
    pub(super) fn of(viewer: &ViewerHello, audience: Audience) -> Self {
        if viewer.follow { Self::to_follow(audience) } else { Self { audience, follows: false, needed: viewer.needed } }
    }

    /// The picture for a viewer that follows. Updates have all facts, so the picture has them as well.
    pub(super) fn to_follow(audience: Audience) -> Self {
        Self { audience, follows: true, needed: Needed::default() }
    }
}

/// The whole picture, ending with [`Frame::Complete`].
pub(super) fn picture(fleet: &Fleet, engine: &Engine, content: PictureContent, now: Moment) -> Vec<Line> {
    let mut lines: Vec<Line> = host_list(fleet).iter().filter_map(line).collect();
    for host in fleet.hosts_in_order() {
        lines.extend(host_lines(host, engine, content, now));
    }
    if !content.follows && content.needed.findings != NeededFindings::Nothing {
        let diagnosis = findings::lines(engine, fleet, (content.audience, content.needed.findings), now);
        lines.extend(diagnosis.into_iter().flat_map(diagnosis_lines));
    }
    if content.follows {
        // A viewer that connects again may have verdicts that have ended.
        for host in fleet.hosts_in_order() {
            let hangs = engine.hangs_of(host.id);
            lines.extend(line(&Frame::Verdicts(findings::verdicts(hangs, fleet, host.id, content.audience, now))));
        }
    }
    lines.extend(line(&Frame::Complete));
    lines
}

/// The line of a part of the diagnosis, or one line for each of its findings if it is too long.
fn diagnosis_lines(part: DiagnosisFrame) -> Vec<Line> {
    if let Some(line) = line(&Frame::Diagnosis(part.clone())) {
        return vec![line];
    }
    let alone = |finding| Frame::Diagnosis(DiagnosisFrame { findings: vec![finding], ..DiagnosisFrame::default() });
    part.findings.into_iter().filter_map(|finding| line(&alone(finding))).collect()
}

/// Encodes a line; `None` if it is too long.
pub(super) fn line(frame: &Frame) -> Option<Line> {
    encode(frame).map(Line::from)
}

/// Encodes a line about a host, without what it does not share.
pub(super) fn host_line(mut frame: HostFrame, host: &Host, audience: Audience) -> Option<Line> {
    let sharing = audience.sharing(&host.config);
    if privacy::changes(sharing, &frame) {
        privacy::redact(sharing, &mut frame);
    }
    line(&Frame::Host(frame))
}

/// The line for an update that a host is about to take; `None` for updates that concern the collector alone.
pub(super) fn update_frame(host: &Host, update: &HostUpdate, now: Moment) -> Option<HostFrame> {
    let empty = HostFrame { name: host.name().clone(), ..HostFrame::default() };
    let wire = |message| Some(HostFrame { wire: Some(message), ..empty.clone() });
    let link = |link| Some(HostFrame { link: Some(link), ..empty.clone() });
    match update {
        HostUpdate::Hello(hello) => wire(Message::Hello((**hello).clone())),
        HostUpdate::Inventory(inventory) => wire(Message::Inventory((**inventory).clone())),
        HostUpdate::Snapshot(snapshot) => wire(Message::Snapshot(snapshot.clone())),
        HostUpdate::Connecting { attempt, phase } => {
            link(LinkFrame::Connecting { attempt: *attempt, phase: phase.word().into() })
        }
        HostUpdate::Silent => link(LinkFrame::Stale),
        HostUpdate::Down { error, retry_at, attempt } => link(LinkFrame::Down {
            error: RecordedError::from(error),
            retry_in_seconds: retry_at.map(|at| now.until(at).as_secs_f64()),
            attempt: *attempt,
        }),
        HostUpdate::NeedsUser(error) => link(LinkFrame::NeedsUser { error: RecordedError::from(error) }),
        HostUpdate::RoundTrip(time) => Some(HostFrame { round_trip_seconds: Some(time.as_secs_f64()), ..empty }),
        HostUpdate::Misbehaves(misbehavior) => {
            Some(HostFrame { misbehavior: Some(misbehavior.word().into()), ..empty })
        }
        // The answers to requests may contain an environment or a log. The collector sends no requests for others.
        HostUpdate::ReadingsAge(_) | HostUpdate::Reply(_) => None,
    }
}

/// The picture of one host.
fn host_lines(host: &Host, engine: &Engine, content: PictureContent, now: Moment) -> Vec<Line> {
    let PictureContent { audience, follows, needed: Needed { facts, .. } } = content;
    let empty = HostFrame { name: host.name().clone(), ..HostFrame::default() };
    let mut frames = Vec::new();
    if let Some(hello) = &host.hello {
        frames.push(HostFrame { wire: Some(Message::Hello(hello.clone())), ..empty.clone() });
    }
    if let Some(inventory) = &host.inventory {
        frames.push(HostFrame { wire: Some(Message::Inventory(inventory.clone())), ..empty.clone() });
    }
    let mut lines: Vec<Line> = frames.into_iter().filter_map(|frame| host_line(frame, host, audience)).collect();
    if let Some(snapshot) = snapshot(host, facts) {
        let charts = if follows { charts(host, &snapshot) } else { Vec::new() };
        let age_seconds = host.age(now).map(|age| age.as_secs_f64());
        let facts: Vec<ProcessFacts> =
            processes(host, facts).filter_map(|process| process.facts().and_then(|known| facts.of(known))).collect();
        let parts = Snapshots { host, audience, age_seconds, snapshot: &snapshot };
        let mut charts = charts;
        if facts.is_empty() {
            parts.add(&[], charts, &mut lines);
        } else {
            for facts in facts.chunks(FACTS_PER_LINE) {
                parts.add(facts, std::mem::take(&mut charts), &mut lines);
            }
        }
    }
    let link = match &host.link {
        Link::Live => None,
        Link::Connecting { attempt, phase, .. } => {
            Some(LinkFrame::Connecting { attempt: *attempt, phase: phase.word().into() })
        }
        Link::Stale { .. } => Some(LinkFrame::Stale),
        Link::Down { error, retry_at, attempt, .. } => Some(LinkFrame::Down {
            error: RecordedError::from(error),
            retry_in_seconds: retry_at.map(|at| now.until(at).as_secs_f64()),
            attempt: *attempt,
        }),
        Link::NeedsUser { error, .. } => Some(LinkFrame::NeedsUser { error: RecordedError::from(error) }),
    };
    let states = if follows { &[] } else { engine.states(host.id) };
    let last = HostFrame {
        link,
        round_trip_seconds: host.round_trip.map(|time| time.as_secs_f64()),
        misbehavior: host.misbehavior(now).map(|misbehavior| misbehavior.word().into()),
        states: states
            .iter()
            .map(|(state, since)| (state.json_word().into(), since.map(|since| now.since(since).as_secs_f64())))
            .collect(),
        ..empty.clone()
    };
    if last != empty {
        lines.extend(host_line(last, host, audience));
    }
    lines
}

/// Writes the last snapshot of a host, once for each part of the facts of its processes.
struct Snapshots<'a> {
    host: &'a Host,
    audience: Audience,
    age_seconds: Option<f64>,
    snapshot: &'a Snapshot,
}

impl Snapshots<'_> {
    /// Adds the snapshot with these facts. A line that would be too long becomes two, and at last one without facts.
    fn add(&self, facts: &[ProcessFacts], recent_past: Vec<RecentPast>, lines: &mut Vec<Line>) {
        let snapshot = Snapshot { facts: facts.to_vec(), recent_past, ..self.snapshot.clone() };
        let frame = HostFrame {
            name: self.host.name().clone(),
            age_seconds: self.age_seconds,
            wire: Some(Message::Snapshot(Box::new(snapshot))),
            ..HostFrame::default()
        };
        match (host_line(frame, self.host, self.audience), facts) {
            (Some(line), _) => lines.push(line),
            (None, []) => {}
            (None, [_]) => self.add(&[], Vec::new(), lines),
            (None, facts) => {
                let (first, second) = facts.split_at(facts.len() / 2);
                self.add(first, Vec::new(), lines);
                self.add(second, Vec::new(), lines);
            }
        }
    }
}

/// The last snapshot of a host with all columns, and without the facts of its processes. A viewer that does not need all facts gets no
/// readings of the processes either, apart from what they hold on GPUs.
fn snapshot(host: &Host, facts: NeededFacts) -> Option<Snapshot> {
    let mut snapshot = host.snapshot.clone()?;
    let readings: Vec<GpuReading> = host.gpus().map(|(_, reading)| reading.clone()).collect();
    let health: Vec<GpuHealth> =
        (0..readings.len()).map(|position| host.gpu_health(position).cloned().unwrap_or_default()).collect();
    let reading = |process: &Process| match facts {
        NeededFacts::All => process.reading.clone(),
        NeededFacts::Nothing | NeededFacts::Owners => {
            let ProcessReading { pid, start_ticks, presence, .. } = process.reading;
            ProcessReading { pid, start_ticks, presence, ..ProcessReading::default() }
        }
    };
    let processes: Vec<ProcessReading> = processes(host, facts).map(reading).collect();
    let usages: Vec<GpuProcessReading> = host.processes().flat_map(|process| process.gpus.iter().cloned()).collect();
    snapshot.generation = host.inventory.as_ref().map_or(snapshot.generation, |inventory| inventory.generation);
    snapshot.gpus = GpuColumns::from_rows(&readings);
    snapshot.health = GpuHealthColumns::from_rows(&health);
    snapshot.processes = ProcessColumns::from_rows(&processes);
    snapshot.gpu_processes = GpuProcessColumns::from_rows(&usages);
    snapshot.host.filesystems = host.filesystems().to_vec();
    snapshot.host.slurm_jobs = host.slurm_jobs().map(<[SlurmJob]>::to_vec);
    snapshot.host.slurm_ends = host.slurm_ends().cloned().collect();
    snapshot.host.slurm_allocated_gpus = host.slurm_allocated_gpus().map(<[u32]>::to_vec);
    Some(snapshot)
}

/// The processes of a host. Only a viewer that needs all facts judges those that are on no GPU.
fn processes(host: &Host, facts: NeededFacts) -> impl Iterator<Item = &Process> {
    let reruns = if facts == NeededFacts::All { host.reruns() } else { &[] };
    host.processes().chain(reruns)
}

/// The last ten minutes of each GPU, as the samples that a driver keeps, so that charts are filled at once.
fn charts(host: &Host, snapshot: &Snapshot) -> Vec<RecentPast> {
    let Some(received_at) = host.received_at else { return Vec::new() };
    let span = Duration::from_secs(CHART_SECONDS as u64);
    let points = |position, metric| {
        let points = host.history().points(SeriesKey::Gpu(position, metric), received_at, span, CHART_SECONDS);
        let first = points.iter().position(Option::is_some).unwrap_or(points.len());
        points[first..].to_vec()
    };
    let percent = |points: Vec<Option<f32>>| {
        points.into_iter().map(|point| point.map(|percent| percent.round().clamp(0.0, 100.0) as u8)).collect()
    };
    // One decimal is enough for a chart, and shorter.
    let rounded = |points: Vec<Option<f32>>| {
        points.into_iter().map(|point| point.map(|watts| (watts * 10.0).round() / 10.0)).collect()
    };
    let past = |position: usize| {
        Some(RecentPast {
            gpu: u16::try_from(position).ok()?,
            end_monotonic_seconds: snapshot.monotonic_seconds,
            utilization_percent: percent(points(position, GpuMetric::Utilization)),
            memory_utilization_percent: percent(points(position, GpuMetric::MemoryUtilization)),
            power_watts: rounded(points(position, GpuMetric::Power)),
        })
    };
    (0..host.gpus().len()).filter_map(past).collect()
}
