//! The answer of a collector to `status`, `free` and `findings`: the fleet, the states of the GPUs and the findings at one
//! moment, without connecting to the hosts.

use super::CommandError;
use super::command_context::{ChosenCollector, CommandContext};
use super::terminal_prompts::Prompter;
use crate::collect::{OpenChannel, Picture, Relay, Source};
use crate::config::HostConfig;
use crate::diagnosis::Finding;
use crate::fleet::{Clock, Fleet, GpuState, HostId, Link, LinkError, LinkErrorKind, Moment};
use crate::share::{
    CollectorInfo, Demultiplexer, Diagnosis, FrameError, HostInfo, MAX_FRAME_BYTES, SHARE_PROTOCOL, ViewerEvent,
    ViewerHello, connect, settings_digest, socket_candidates,
};
use crate::store::Directories;
use crate::wire::SafeText;
use crate::wire::codec::LineBuffer;
use crate::wire::format::{DurationStyle, duration};
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Time limit for each step of the collector on this machine. Without an answer, the hosts are asked.
const LOCAL_LIMIT: Duration = Duration::from_secs(2);

/// The picture of a collector.
pub(super) struct CollectorAnswer {
    /// The hosts and their readings.
    pub(super) fleet: Fleet,
    /// The findings.
    pub(super) diagnosis: Diagnosis,
    /// When the answer came.
    pub(super) now: Moment,
    states: Vec<Vec<(GpuState, Option<Moment>)>>,
    info: CollectorInfo,
    /// The collector runs on this machine.
    is_local: bool,
}

impl CollectorAnswer {
    /// The states of the GPUs of a host.
    pub(super) fn states(&self, id: HostId) -> Vec<(GpuState, Option<Moment>)> {
        self.states.get(id.0 as usize).cloned().unwrap_or_default()
    }

    /// The findings that `keep` accepts.
    pub(super) fn findings(&self, keep: impl Fn(&Finding) -> bool) -> Vec<&Finding> {
        self.diagnosis.findings.iter().filter(|finding| keep(finding)).collect()
    }

    /// How long the collector has watched.
    pub(super) fn observed(&self) -> Duration {
        Duration::try_from_secs_f64(self.info.uptime_seconds).unwrap_or_default()
    }

    /// Whether every host has reported.
    pub(super) fn all_reported(&self) -> bool {
        let mut hosts = self.fleet.hosts().iter();
        hosts.all(|host| host.snapshot.is_some() && matches!(host.link, Link::Live | Link::Stale { .. }))
    }

    /// The line that says where the answer comes from and how old it is: the age of the oldest readings.
    pub(super) fn source_line(&self) -> String {
        let ages = self.fleet.hosts().iter().filter_map(|host| host.age(self.now));
        let age = ages.max().map(|age| format!("readings up to {} old; ", duration(age, DurationStyle::Precise)));
        let way_out = if self.is_local { "; --direct asks the hosts" } else { "" };
        format!(
            "from the collector on {}: {}it has watched for {}{way_out}\n",
            self.info.host_name,
            age.unwrap_or_default(),
            duration(self.observed(), DurationStyle::OneUnit)
        )
    }

    /// Applies the events of the lines to a fleet of these hosts.
    fn new(
        hosts: &[Arc<HostConfig>],
        events: Vec<ViewerEvent>,
        demultiplexer: Demultiplexer,
        clock: Clock,
    ) -> Result<Self, FrameError> {
        let now = clock.now();
        let info = demultiplexer.info().cloned().ok_or(FrameError::Order("there is no first line"))?;
        let mut fleet = Fleet::new(hosts, info.simulated, now);
        let mut states = vec![Vec::new(); hosts.len()];
        for event in events {
            match event {
                ViewerEvent::Update(id, update) => {
                    fleet.apply(id, update, now);
                }
                ViewerEvent::States(HostId(id), of_host) => {
                    if let Some(states) = states.get_mut(id as usize) {
                        *states = of_host;
                    }
                }
                ViewerEvent::Collector(_)
                | ViewerEvent::HostsChanged
                | ViewerEvent::History(_)
                | ViewerEvent::Complete
                | ViewerEvent::Refused(..) => {}
            }
        }
        Ok(Self { fleet, diagnosis: demultiplexer.diagnosis, now, states, info, is_local: false })
    }
}

/// Asks the collector on this machine. Returns `None` if none runs, or if it does not watch all of these hosts with the
/// same settings: then only the hosts themselves can answer.
pub(super) fn ask_local(hosts: &[Arc<HostConfig>], clock: Clock) -> Option<CollectorAnswer> {
    let mut stream = connect(&socket_candidates(&Directories::find())).ok()?;
    stream.set_read_timeout(Some(LOCAL_LIMIT)).ok()?;
    stream.set_write_timeout(Some(LOCAL_LIMIT)).ok()?;
    stream.write_all(&ViewerHello::new(false).line().ok()?).ok()?;
    let mut demultiplexer = Demultiplexer::with_hosts(hosts.iter().map(|host| host.name.clone()));
    let mut lines = LineBuffer::with_limit(MAX_FRAME_BYTES);
    let (mut events, mut chunk, mut is_checked) = (Vec::new(), vec![0; 256 * 1024], false);
    loop {
        while let Some(line) = lines.next_line().ok()? {
            let line_events = demultiplexer.take(line, clock.now()).ok()?;
            if line_events.iter().any(|event| matches!(event, ViewerEvent::Refused(..))) {
                return None;
            }
            let is_list = line_events.contains(&ViewerEvent::HostsChanged);
            if !is_list && !demultiplexer.hosts().is_empty() && !std::mem::replace(&mut is_checked, true) {
                let info = demultiplexer.info()?;
                if info.protocol != SHARE_PROTOCOL || !watches_all(hosts, demultiplexer.hosts()) {
                    return None;
                }
            }
            if line_events.contains(&ViewerEvent::Complete) {
                let answer = CollectorAnswer::new(hosts, events, demultiplexer, clock).ok()?;
                return Some(CollectorAnswer { is_local: true, ..answer });
            }
            events.extend(line_events);
        }
        match stream.read(&mut chunk) {
            Ok(count @ 1..) => lines.push(&chunk[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return None,
        }
    }
}

/// Whether the collector watches these hosts with the same settings.
fn watches_all(hosts: &[Arc<HostConfig>], listed: &[HostInfo]) -> bool {
    let digests: std::collections::HashMap<&SafeText, &SafeText> =
        listed.iter().map(|host| (&host.name, &host.digest)).collect();
    hosts.iter().all(|host| digests.get(&host.name).is_some_and(|digest| **digest == settings_digest(host)))
}

/// Connects to the collectors and reads the whole picture of each, all at once. Prompts appear on the terminal.
pub(super) async fn read_pictures(
    setup: &mut CommandContext,
    chosen: &[ChosenCollector],
    follow: bool,
) -> Result<Vec<Result<Picture, LinkError>>, CommandError> {
    let Source::Ssh(ssh) = &setup.source else {
        return Err(CommandError::usage("--collector and --demo exclude each other\n  hint: leave one of them out"));
    };
    let mut readings = JoinSet::new();
    let others = watch::Sender::new(chosen.len());
    for (index, collector) in chosen.iter().cloned().enumerate() {
        let (ssh, clock) = (Arc::clone(ssh), setup.clock);
        let unfinished = Unfinished(others.clone());
        readings.spawn(async move { (index, read_picture(ssh, &collector, clock, follow, unfinished).await) });
    }
    let mut pictures: Vec<Option<Result<Picture, LinkError>>> = chosen.iter().map(|_| None).collect();
    let mut prompter = Prompter::new(setup.ssh.take());
    loop {
        tokio::select! {
            read = readings.join_next() => match read {
                Some(Ok((index, picture))) => pictures[index] = Some(picture),
                // A task that has panicked leaves no picture.
                Some(Err(_)) => {}
                None => break,
            },
            () = prompter.step() => {}
        }
    }
    setup.ssh = prompter.into_ssh();
    let closed = || Err(LinkError::new(LinkErrorKind::Closed, "the connection was closed"));
    Ok(pictures.into_iter().map(|picture| picture.unwrap_or_else(closed)).collect())
}

/// The number of collectors whose picture is not complete; one of them while this value exists.
struct Unfinished(watch::Sender<usize>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// Connects to a collector and reads its whole picture, then what follows until the pictures of the others are complete: a
/// prompt for one of them may stay open for long, and a collector ends a session that does not read.
async fn read_picture(
    ssh: Arc<dyn OpenChannel>,
    chosen: &ChosenCollector,
    clock: Clock,
    follow: bool,
    unfinished: Unfinished,
) -> Result<Picture, LinkError> {
    let demultiplexer = match &chosen.wanted[..] {
        [] => Demultiplexer::default().with_new_hosts(),
        wanted => Demultiplexer::with_hosts(wanted.iter().cloned()),
    };
    let mut relay = Relay::open(ssh, &chosen.machine, follow, demultiplexer, &|_| {}).await?;
    let mut events = Vec::new();
    loop {
        let more = relay.next(clock).await?;
        let is_complete = more.contains(&ViewerEvent::Complete);
        events.extend(more);
        if is_complete {
            break;
        }
    }
    let mut others = unfinished.0.subscribe();
    drop(unfinished);
    loop {
        tokio::select! {
            biased;
            _ = others.wait_for(|count| *count == 0) => return Ok(Picture { relay, events }),
            more = relay.next(clock), if follow => events.extend(more?),
        }
    }
}

/// The error if none of the collectors answers.
pub(super) fn no_answer(chosen: &[ChosenCollector], errors: &[LinkError]) -> CommandError {
    let mut lines = chosen.iter().zip(errors).map(|(collector, error)| {
        let hint = error.hint.as_ref().map(|hint| format!("\n  hint: {hint}")).unwrap_or_default();
        format!("no answer from the collector on {}: {}{hint}", collector.machine.name, error.message)
    });
    let first = lines.next().unwrap_or_default();
    CommandError::failed(lines.fold(first, |all, line| format!("{all}\n{line}")))
}

/// Asks a collector on another machine.
pub(super) async fn ask_relayed(
    setup: &mut CommandContext,
    chosen: &ChosenCollector,
) -> Result<CollectorAnswer, CommandError> {
    let only = std::slice::from_ref(chosen);
    let picture = read_pictures(setup, only, false).await?.pop();
    let Some(Ok(Picture { relay, events })) = picture else {
        return Err(no_answer(only, &picture.and_then(Result::err).into_iter().collect::<Vec<_>>()));
    };
    let hosts = chosen.hosts(relay.hosts())?;
    CollectorAnswer::new(&hosts, events, relay.into_demultiplexer(), setup.clock)
        .map_err(|error| CommandError::failed(format!("no answer from the collector: {error}")))
}
