//! The answer of a collector to `status`, `free` and `findings`: the fleet, the states of the GPUs and the findings at one
//! moment, without connecting to the hosts.

use super::CommandError;
use super::command_context::{ChosenCollector, CommandContext};
use super::exit::warn;
use super::terminal_prompts::{Prompter, wait_until};
use crate::collect::{FirstPicture, Picture, PictureReading, ReadingState, Source};
use crate::config::HostConfig;
use crate::diagnosis::Finding;
use crate::fleet::{Clock, Fleet, GpuState, HostId, Link, LinkError, Moment};
use crate::share::{
    CollectorInfo, Demultiplexer, Diagnosis, FrameError, HostInfo, MAX_FRAME_BYTES, Needed, SHARE_PROTOCOL,
    SilentCollector, ViewerEvent, ViewerHello, connect, settings_digest, socket_candidates,
};
use crate::store::Directories;
use crate::wire::SafeText;
use crate::wire::codec::LineBuffer;
use crate::wire::format::{DurationStyle, duration};
use std::io::{ErrorKind, Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The collector on this machine must begin its answer within this time; otherwise the hosts are asked.
const LOCAL_LIMIT: Duration = Duration::from_secs(2);
/// Time limit for its whole answer.
const LOCAL_ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// How long a collector that is started again may take until it answers, and how often it is asked meanwhile.
const RESTART_LIMIT: Duration = Duration::from_secs(15);
const RETRY_PERIOD: Duration = Duration::from_secs(1);

/// The screen waits this long for the other collectors when it could begin: those that answer meanwhile are in the order of the
/// command line.
const LATE_LIMIT: Duration = Duration::from_millis(300);

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
    /// Leaves its memory to the system: at the end of the program that frees thousands of small parts faster than the program does.
    pub(super) fn leave(self) {
        std::mem::forget(self);
    }

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
        let mut fleet = Fleet::new(hosts, info.simulated, now).without_history();
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
                | ViewerEvent::Verdicts(..)
                | ViewerEvent::History(_)
                | ViewerEvent::Complete
                | ViewerEvent::Refused(..) => {}
            }
        }
        Ok(Self { fleet, diagnosis: demultiplexer.diagnosis, now, states, info, is_local: false })
    }
}

/// The first answer of the chosen collector, else of one on this machine. `None` if the hosts are to be asked.
pub(super) async fn first_answer(
    setup: &mut CommandContext,
    chosen: Option<&ChosenCollector>,
    asks_hosts: bool,
    needed: Needed,
) -> Result<Option<CollectorAnswer>, CommandError> {
    match chosen {
        Some(chosen) => ask_relayed(setup, chosen, needed).await.map(Some),
        None if asks_hosts || setup.simulated => Ok(None),
        None => Ok(ask_local(&setup.hosts, needed, setup.clock)),
    }
}

/// The next answer after `period`. `None` if the collector on this machine does not answer any more and the hosts can be asked.
pub(super) async fn next_answer(
    setup: &mut CommandContext,
    chosen: Option<&ChosenCollector>,
    needed: Needed,
    period: Duration,
) -> Result<Option<CollectorAnswer>, CommandError> {
    let Some(chosen) = chosen else { return Ok(ask_again(&setup.hosts, needed, setup.clock, period).await) };
    tokio::time::sleep(period).await;
    ask_relayed(setup, chosen, needed).await.map(Some)
}

/// Asks the collector on this machine. Returns `None` if none runs, or if it does not watch all of these hosts with the
/// same settings: then only the hosts themselves can answer. The answer contains at least these parts. A collector that
/// does not answer is named on standard error.
fn ask_local(hosts: &[Arc<HostConfig>], needed: Needed, clock: Clock) -> Option<CollectorAnswer> {
    match ask(hosts, needed, clock)? {
        Ok(answer) => Some(answer),
        Err(silent) => {
            warn_of(&silent);
            None
        }
    }
}

/// Asks the collector on this machine again after `period`. One that is started again answers after some seconds: until then it is
/// asked each second. Returns `None` with a message on standard error if it does not come back: then the hosts can be asked.
async fn ask_again(
    hosts: &[Arc<HostConfig>],
    needed: Needed,
    clock: Clock,
    period: Duration,
) -> Option<CollectorAnswer> {
    let began = std::time::Instant::now();
    let mut pause = period;
    loop {
        tokio::time::sleep(pause).await;
        match ask(hosts, needed, clock) {
            Some(Ok(answer)) => return Some(answer),
            Some(Err(silent)) => {
                warn_of(&silent);
                return None;
            }
            None if began.elapsed() >= period + RESTART_LIMIT => {
                warn("the collector no longer answers, so the hosts are asked");
                return None;
            }
            None => pause = RETRY_PERIOD,
        }
    }
}

fn warn_of(silent: &SilentCollector) {
    warn(&format!("{silent}, so the hosts are asked\n  hint: {}", silent.hint()));
}

/// See [`ask_local`]. A collector that does not answer in time is an error.
fn ask(hosts: &[Arc<HostConfig>], needed: Needed, clock: Clock) -> Option<Result<CollectorAnswer, SilentCollector>> {
    let mut stream = connect(&socket_candidates(&Directories::find())).ok()?;
    let began = std::time::Instant::now();
    stream.set_write_timeout(Some(LOCAL_LIMIT)).ok()?;
    stream.write_all(&ViewerHello::once(needed).line().ok()?).ok()?;
    let mut demultiplexer = Demultiplexer::with_hosts(hosts.iter().map(|host| host.name.clone()));
    let mut lines = LineBuffer::with_limit(MAX_FRAME_BYTES);
    let (mut events, mut chunk, mut is_checked) = (Vec::new(), vec![0; 64 * 1024], false);
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
                return Some(Ok(CollectorAnswer { is_local: true, ..answer }));
            }
            events.extend(line_events);
        }
        let limit = if demultiplexer.info().is_some() { LOCAL_ANSWER_LIMIT } else { LOCAL_LIMIT };
        // A timeout of 0 would be an error.
        let left = limit.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left)).ok()?;
        match stream.read(&mut chunk) {
            Ok(count @ 1..) => lines.push(&chunk[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if began.elapsed() < limit {
                    continue;
                }
                return Some(Err(SilentCollector::find(&stream)));
            }
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

/// How the pictures of collectors are read.
#[derive(Debug, Clone, Copy)]
pub(super) enum ReadMode<'a> {
    /// Once, all of them, with at least these parts.
    Once(Needed),
    /// The connections go on. The pictures that are complete are enough if they have these hosts; the others are pending.
    Follow(&'a [SafeText]),
}

/// Connects to the collectors and reads the picture of each, all at once. Prompts appear on the terminal.
pub(super) async fn read_pictures(
    setup: &mut CommandContext,
    chosen: &[ChosenCollector],
    mode: ReadMode<'_>,
) -> Result<Vec<FirstPicture>, CommandError> {
    let Source::Ssh(ssh) = &setup.source else {
        return Err(CommandError::usage("--collector and --demo exclude each other\n  hint: leave one of them out"));
    };
    let changed = Arc::new(Notify::new());
    let start = |collector: &ChosenCollector| {
        let demultiplexer = match &collector.wanted[..] {
            [] => Demultiplexer::default().with_new_hosts(),
            wanted => Demultiplexer::with_hosts(wanted.iter().cloned()),
        };
        let hello = match mode {
            ReadMode::Once(needed) => ViewerHello::once(needed),
            ReadMode::Follow(_) => ViewerHello::follow(),
        };
        let machine = Arc::clone(&collector.machine);
        PictureReading::start(Arc::clone(ssh), machine, setup.clock, hello, demultiplexer, Arc::clone(&changed))
    };
    let readings: Vec<PictureReading> = chosen.iter().map(start).collect();
    let mut prompter = Prompter::new(setup.ssh.take());
    let mut begin_at = None;
    loop {
        let states: Vec<ReadingState> = readings.iter().map(PictureReading::state).collect();
        if !states.iter().any(|state| matches!(state, ReadingState::Reading(_))) {
            break;
        }
        if is_enough(&states, mode) {
            begin_at.get_or_insert(Instant::now() + LATE_LIMIT);
        }
        // A prompt on the terminal must be answered before the screen takes it.
        let begin = begin_at.filter(|_| !prompter.is_asking());
        tokio::select! {
            () = changed.notified() => {}
            () = prompter.step() => {}
            () = wait_until(begin) => break,
        }
    }
    setup.ssh = prompter.into_ssh();
    let mut pictures = Vec::new();
    for reading in readings {
        pictures.push(match reading.state() {
            ReadingState::Reading(_) => FirstPicture::Pending(reading),
            ReadingState::Complete(_) | ReadingState::Failed => {
                let picture = reading.take().await.map(Box::new);
                picture.map_or_else(FirstPicture::Failed, FirstPicture::Complete)
            }
        });
    }
    Ok(pictures)
}

/// Whether a viewer can begin although some pictures are not complete.
fn is_enough(states: &[ReadingState], mode: ReadMode<'_>) -> bool {
    let ReadMode::Follow(needed) = mode else { return false };
    let mut complete = states.iter().filter_map(|state| match state {
        ReadingState::Complete(hosts) => Some(hosts),
        ReadingState::Reading(_) | ReadingState::Failed => None,
    });
    if needed.is_empty() {
        return complete.next().is_some();
    }
    needed.iter().all(|name| complete.clone().any(|hosts| hosts.contains(name)))
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

/// Asks a collector on another machine. The answer contains at least these parts.
async fn ask_relayed(
    setup: &mut CommandContext,
    chosen: &ChosenCollector,
    needed: Needed,
) -> Result<CollectorAnswer, CommandError> {
    let only = std::slice::from_ref(chosen);
    let Picture { relay, events } = match read_pictures(setup, only, ReadMode::Once(needed)).await?.pop() {
        Some(FirstPicture::Complete(picture)) => *picture,
        Some(FirstPicture::Failed(error)) => return Err(no_answer(only, &[error])),
        Some(FirstPicture::Pending(_)) | None => return Err(no_answer(only, &[])),
    };
    let hosts = chosen.hosts(relay.hosts())?;
    CollectorAnswer::new(&hosts, events, relay.into_demultiplexer(), setup.clock)
        .map_err(|error| CommandError::failed(format!("no answer from the collector: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::ConnectPhase;

    #[test]
    fn the_screen_begins_with_the_first_picture_or_with_the_hosts_of_the_command_line() {
        let reading = || ReadingState::Reading(ConnectPhase::Tcp);
        let complete = |names: &[&str]| ReadingState::Complete(names.iter().map(|&name| name.into()).collect());
        let is_enough = |states: &[ReadingState], needed: &[&str]| {
            let needed: Vec<SafeText> = needed.iter().map(|&name| name.into()).collect();
            is_enough(states, ReadMode::Follow(&needed))
        };
        assert!(!is_enough(&[reading(), ReadingState::Failed], &[]));
        assert!(is_enough(&[reading(), complete(&["a"])], &[]));
        assert!(is_enough(&[reading(), complete(&["a", "b"])], &["b"]));
        assert!(!is_enough(&[reading(), complete(&["a"])], &["a", "b"]));
        assert!(is_enough(&[complete(&["b"]), complete(&["a"]), reading()], &["a", "b"]));
        assert!(!super::is_enough(&[reading(), complete(&["a"])], ReadMode::Once(Needed::default())));
    }
}
