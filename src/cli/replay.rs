//! Replays a recording through fleet and engine on the clock of the recording.

use super::CommandError;
use super::collector::{CollectorState, EndFuture, Observer};
use crate::config::{HostConfig, Thresholds};
use crate::diagnosis::{Engine, Transition};
use crate::fleet::recording::{self, HostLine, HostReplay, Line, RecordingError};
use crate::fleet::{Fleet, HostId, HostUpdate, Misbehavior, Moment};
use crate::wire::format::io_cause;
use crate::wire::{SafeText, codec::MAX_LINE_BYTES};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, BufRead, Read as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The longest gap between two lines. Every second of a gap is evaluated, so a corrupt time would take forever.
const MAX_PAUSE: Duration = Duration::from_secs(31 * 86_400);
/// The maximum length of a line: a message and its envelope.
const MAX_BYTES: u64 = MAX_LINE_BYTES as u64 + 8192;

/// Fleet and engine of a replay. The `t` of the lines is the clock, which ticks once per second also between lines.
pub struct Replay {
    state: CollectorState,
    players: Vec<HostReplay>,
    ids: HashMap<SafeText, HostId>,
    /// The wall-clock time at the start of the recording, since the Unix epoch.
    started: Duration,
    now: Moment,
    /// The second of the next tick.
    next_tick: u64,
    /// The first and the last time of each misbehavior, by host and kind.
    misbehaviors: BTreeMap<(HostId, usize), (Moment, Moment)>,
}

/// A recording cannot be replayed to its end.
#[derive(Debug)]
pub enum ReplayError {
    /// The file cannot be read.
    Io(io::Error),
    /// A line is invalid.
    Line(RecordingError),
    /// A line is too far after the one before.
    Pause {
        /// The line number, from 1.
        line: usize,
    },
}

impl fmt::Display for ReplayError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(formatter),
            Self::Line(error) => error.fmt(formatter),
            Self::Pause { line } => write!(formatter, "line {line}: `t` is more than 31 days after the line before"),
        }
    }
}

impl std::error::Error for ReplayError {}

/// The reason why a command stopped a replay.
#[derive(Debug)]
pub(super) enum ReplayStopped {
    /// The recording cannot be replayed to its end.
    Replay(ReplayError),
    /// The output cannot be written.
    Print(CommandError),
    /// The reader of the output has gone away.
    ReaderGone,
}

impl From<ReplayError> for ReplayStopped {
    fn from(error: ReplayError) -> Self {
        Self::Replay(error)
    }
}

impl ReplayStopped {
    /// The error if the recording cannot be opened.
    pub(super) fn open_error(path: &Path, error: &io::Error) -> CommandError {
        Self::error_of(path, &io_cause(error))
    }

    /// The error for standard error.
    pub(super) fn into_error(self, path: &Path) -> CommandError {
        match self {
            Self::Print(error) => error,
            Self::Replay(ReplayError::Io(error)) => Self::open_error(path, &error),
            Self::Replay(error) => Self::error_of(path, &error),
            Self::ReaderGone => Self::error_of(path, &"the reader of the output has gone away"),
        }
    }

    fn error_of(path: &Path, cause: &dyn fmt::Display) -> CommandError {
        CommandError::failed(format!("cannot replay {}: {cause}", SafeText::new(&path.to_string_lossy())))
    }
}

impl Replay {
    /// Creates an empty replay.
    pub fn new(thresholds: Arc<Thresholds>) -> Self {
        Self {
            state: CollectorState::new(Fleet::default(), Engine::new(thresholds)),
            players: Vec::new(),
            ids: HashMap::new(),
            started: Duration::ZERO,
            now: Moment::default(),
            next_tick: 1,
            misbehaviors: BTreeMap::new(),
        }
    }

    /// Returns the fleet.
    pub fn fleet(&self) -> &Fleet {
        &self.state.fleet
    }

    /// Adds a follower, such as the history.
    pub fn observe(&mut self, observer: impl Observer + 'static) {
        self.state.observe(observer);
    }

    /// Ends every follower.
    pub fn finish(&mut self) -> Vec<EndFuture> {
        self.state.finish(self.now)
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Engine {
        &self.state.engine
    }

    /// Returns the fleet and the engine, to add the verdicts of examinations.
    pub fn fleet_and_engine(&mut self) -> (&Fleet, &mut Engine) {
        (&self.state.fleet, &mut self.state.engine)
    }

    /// Returns the time of the replay.
    pub fn now(&self) -> Moment {
        self.now
    }

    /// Returns the hosts that misbehaved, and the first and the last time at which they did.
    pub fn misbehaviors(&self) -> impl Iterator<Item = (&SafeText, Misbehavior, Moment, Moment)> {
        self.misbehaviors.iter().filter_map(|((id, kind), (first, last))| {
            Some((self.state.fleet.host(*id)?.name(), *Misbehavior::ALL.get(*kind)?, *first, *last))
        })
    }

    /// Replays one line and the seconds before it. A line whose `t` is before that of the last line gets the time of
    /// the last line.
    pub fn take(&mut self, line: Line) -> Vec<Transition> {
        match line {
            Line::Start { started } => {
                self.started = unix_of(&started).unwrap_or_default();
                self.now = self.moment(self.now.since_start());
                Vec::new()
            }
            Line::Host(line) => {
                let mut transitions = self.tick_until(line.t);
                let elapsed = Duration::try_from_secs_f64(line.t).unwrap_or(self.now.since_start());
                self.now = self.moment(elapsed.max(self.now.since_start()));
                transitions.extend(self.apply(line));
                transitions
            }
        }
    }

    /// Replays the seconds up to and including `t`.
    pub fn tick_until(&mut self, t: f64) -> Vec<Transition> {
        let mut transitions = Vec::new();
        while self.next_tick as f64 <= t {
            self.now = self.moment(Duration::from_secs(self.next_tick).max(self.now.since_start()));
            self.next_tick += 1;
            transitions.extend(self.state.tick(self.now));
        }
        transitions
    }

    fn apply(&mut self, line: HostLine) -> Vec<Transition> {
        let id = self.id_of(&line.host);
        let (Some(host), Some(player)) = (self.state.fleet.host(id), self.players.get_mut(id.0 as usize)) else {
            return Vec::new();
        };
        let Some(update) = player.update(host, line.event) else { return Vec::new() };
        if let HostUpdate::Misbehaves(misbehavior) = &update {
            self.misbehaviors.entry((id, *misbehavior as usize)).or_insert((self.now, self.now)).1 = self.now;
        }
        self.state.apply(id, update, self.now)
    }

    /// Adds hosts in the order in which they first appear.
    fn id_of(&mut self, name: &SafeText) -> HostId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = self.state.fleet.join(Arc::new(HostConfig::named(name.clone())), self.now);
        self.players.push(HostReplay::default());
        self.ids.insert(name.clone(), id);
        id
    }

    /// The moment `elapsed` after the start of the recording.
    pub fn moment(&self, elapsed: Duration) -> Moment {
        Moment::new(elapsed, self.started + elapsed)
    }

    /// Replays a whole recording and passes each transition to `each`.
    ///
    /// # Errors
    /// As [`Replay::play_lines`].
    pub fn play<E: From<ReplayError>>(
        &mut self,
        recording: impl BufRead,
        mut each: impl FnMut(&Self, &Transition) -> Result<(), E>,
    ) -> Result<(), E> {
        self.play_lines(recording, |replay, line| {
            replay.take(line).iter().try_for_each(|transition| each(replay, transition))
        })
    }

    /// Reads a whole recording and passes each line to `each`, which calls [`Replay::take`] with it.
    ///
    /// # Errors
    /// The file cannot be read or one of its lines is invalid. The lines before it have been replayed. A truncated last
    /// line is ignored.
    pub fn play_lines<E: From<ReplayError>>(
        &mut self,
        mut recording: impl BufRead,
        mut each: impl FnMut(&mut Self, Line) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut bytes = Vec::new();
        for number in 1.. {
            bytes.clear();
            let read = recording.by_ref().take(MAX_BYTES + 1).read_until(b'\n', &mut bytes).map_err(ReplayError::Io)?;
            let is_whole = bytes.last() == Some(&b'\n');
            let text = bytes.trim_ascii_end();
            if read == 0 {
                break;
            }
            if text.is_empty() && number > 1 {
                continue;
            }
            let line = match recording::decode(text, number) {
                Ok(line) => line,
                Err(_) if !is_whole && number > 1 && (read as u64) <= MAX_BYTES => break,
                Err(error) => return Err(ReplayError::Line(error).into()),
            };
            if let Line::Host(line) = &line
                && line.t > (self.now.since_start() + MAX_PAUSE).as_secs_f64()
            {
                return Err(ReplayError::Pause { line: number }.into());
            }
            each(self, line)?;
        }
        Ok(())
    }
}

fn unix_of(started: &str) -> Option<Duration> {
    let time: jiff::Timestamp = started.parse().ok()?;
    Duration::try_from(time.as_duration()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replayed(text: &str) -> (Replay, Result<(), ReplayError>) {
        let mut replay = Replay::new(Arc::default());
        let ended = replay.play(text.as_bytes(), |_, _| Ok::<(), ReplayError>(()));
        (replay, ended)
    }

    #[test]
    fn the_recording_sets_the_clock() {
        let (replay, ended) = replayed(concat!(
            "{\"recording\":1,\"started\":\"2026-03-01T13:44:00Z\"}\n",
            "{\"t\":0.5,\"host\":\"a\",\"link\":\"connecting\"}\n",
            "\n",
            "{\"t\":90.25,\"host\":\"b\",\"link\":\"connecting\"}\n",
            "{\"t\":80,\"host\":\"a\",\"link\":\"stale\"}\n",
            "{\"t\":91,\"host\":\"a\",\"li"
        ));
        assert!(ended.is_ok(), "{ended:?}");
        assert_eq!(replay.now().since_start(), Duration::from_millis(90_250));
        assert_eq!(replay.now().unix, Duration::from_secs(1_772_372_640) + Duration::from_millis(90_250));
        assert_eq!(replay.next_tick, 91, "each second was replayed");
        let names: Vec<&str> = replay.fleet().hosts().iter().map(|host| host.name().as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(replay.fleet().hosts()[0].link.word(), "stale");
    }

    #[test]
    fn hosts_that_misbehaved_are_listed_with_the_time() {
        let (replay, ended) = replayed(concat!(
            "{\"recording\":1,\"started\":\"\"}\n",
            "{\"t\":1,\"host\":\"a\",\"link\":\"connecting\"}\n",
            "{\"t\":2,\"host\":\"b\",\"link\":\"live\",\"misbehavior\":\"sends_too_much\"}\n",
            "{\"t\":12,\"host\":\"b\",\"link\":\"live\",\"misbehavior\":\"sends_too_much\"}\n",
            "{\"t\":40,\"host\":\"b\",\"link\":\"live\"}\n",
        ));
        assert!(ended.is_ok(), "{ended:?}");
        let listed: Vec<_> = replay.misbehaviors().collect();
        let [(name, misbehavior, first, last)] = listed[..] else { panic!("{listed:?}") };
        let seconds = |moment: Moment| moment.since_start().as_secs();
        assert_eq!((name.as_str(), misbehavior), ("b", Misbehavior::SendsTooMuch));
        assert_eq!((seconds(first), seconds(last)), (2, 12));
    }

    #[test]
    fn errors_name_the_line() {
        let start = "{\"recording\":1,\"started\":\"\"}\n";
        let error = |text: &str| replayed(text).1.expect_err("an error").to_string();
        assert_eq!(error("x\n"), "line 1: not a recording: the first line should begin with {\"recording\":1");
        assert_eq!(
            error(&format!("{start}{{\"t\":1,\"host\":\"a\"}}\n{{}}\n")),
            "line 2: a line has either `wire` or `link`"
        );
        assert_eq!(
            error(&format!("{start}{{\"t\":1e12,\"host\":\"a\",\"link\":\"live\"}}\n")),
            "line 2: `t` is more than 31 days after the line before"
        );
        let endless = format!("{start}{}", "x".repeat(MAX_BYTES as usize + 10));
        assert_eq!(error(&endless), "line 2: protocol violation: a line of more than 1048576 bytes");
    }
}
