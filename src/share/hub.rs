//! Hands the lines of the collector to its viewers. Nothing here waits: a viewer that reads slowly skips samples and gets
//! the whole picture again, and one that does not read at all is dropped.

use super::findings;
use super::frame::{CollectorInfo, Frame, RefusalKind, SHARE_PROTOCOL, ViewerHello};
use super::picture::{self, Line, PictureContent};
use super::privacy::Audience;
use crate::diagnosis::Engine;
use crate::fleet::{Fleet, HostId, HostUpdate, JobKey, Moment};
use crate::wire::SafeText;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// The maximum number of viewers.
const MAX_VIEWERS: usize = 64;
/// Updates that wait for one viewer, in bytes. The picture at the start does not count: its size is that of the fleet.
const MAX_WAITING_BYTES: usize = 4 << 20;
/// A viewer that has taken nothing for this long is dropped.
const STUCK_AFTER: Duration = Duration::from_secs(30);
/// After this long without a line, [`Frame::Alive`] is sent.
const ALIVE_PERIOD: Duration = Duration::from_secs(2);

/// The lines that wait for one viewer.
#[derive(Debug, Default)]
struct WaitingLines {
    lines: VecDeque<Line>,
    /// The bytes of the updates among them.
    update_bytes: usize,
    /// The lines at the front that belong to a picture.
    picture_lines: usize,
    /// Updates were skipped: the viewer needs the picture again.
    is_behind: bool,
    /// No line follows those that wait.
    is_finished: bool,
    /// The reader is gone.
    is_closed: bool,
    /// Number of lines taken so far.
    taken: u64,
}

impl WaitingLines {
    /// Replaces everything that waits.
    fn push_picture(&mut self, lines: Vec<Line>) {
        self.lines.clear();
        self.update_bytes = 0;
        self.picture_lines = lines.len();
        self.lines.extend(lines);
        self.is_behind = false;
    }

    /// Adds an update. If too much waits, the updates are dropped, and so are further ones until the next picture.
    fn push_update(&mut self, line: &Line) {
        if self.is_behind {
            return;
        }
        if self.update_bytes + line.len() > MAX_WAITING_BYTES {
            self.skip();
            return;
        }
        self.update_bytes += line.len();
        self.lines.push_back(Arc::clone(line));
    }

    /// Drops the updates that wait. The rest of a picture is still sent.
    fn skip(&mut self) {
        self.lines.truncate(self.picture_lines);
        self.update_bytes = 0;
        self.is_behind = true;
    }

    fn pop(&mut self) -> Option<Line> {
        let line = self.lines.pop_front()?;
        self.taken += 1;
        match self.picture_lines.checked_sub(1) {
            Some(rest) => self.picture_lines = rest,
            None => self.update_bytes = self.update_bytes.saturating_sub(line.len()),
        }
        Some(line)
    }
}

/// The queue of one viewer, shared by the hub and the task that writes to the viewer.
#[derive(Debug, Default)]
pub struct LineQueue {
    waiting: Mutex<WaitingLines>,
    changed: Notify,
    closed: Notify,
}

impl LineQueue {
    fn change<T>(&self, change: impl FnOnce(&mut WaitingLines) -> T) -> T {
        let result = change(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
        result
    }

    /// Waits for the next line; `None` at the end. Cancel safe.
    pub async fn next(&self) -> Option<Arc<[u8]>> {
        loop {
            let changed = self.changed.notified();
            {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if waiting.is_closed {
                    return None;
                }
                if let Some(line) = waiting.pop() {
                    return Some(line);
                }
                if waiting.is_finished {
                    return None;
                }
            }
            changed.await;
        }
    }

    /// Tells the hub that nobody reads any more, and ends [`LineQueue::next`].
    pub fn close(&self) {
        self.change(|waiting| waiting.is_closed = true);
        self.closed.notify_one();
    }

    /// Waits until nobody reads any more. Cancel safe.
    pub async fn closed(&self) {
        let is_closed = || self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_closed;
        while !is_closed() {
            self.closed.notified().await;
        }
    }
}

/// A viewer as the hub sees it.
#[derive(Debug)]
struct Viewer {
    queue: Arc<LineQueue>,
    audience: Audience,
    /// The lines taken at the last tick at which something was taken or nothing waited, and when that was.
    progress: (u64, Moment),
    line_at: Moment,
}

/// The viewers of a collector.
#[derive(Debug)]
pub struct Hub {
    info: CollectorInfo,
    started: Moment,
    viewers: Vec<Viewer>,
    /// The verdicts that the viewers have.
    verdicts: BTreeMap<HostId, Vec<(JobKey, Moment)>>,
}

impl Hub {
    /// Creates a hub without viewers. `host_name` is the name of this machine.
    pub fn new(host_name: SafeText, simulated: bool, started: Moment) -> Self {
        let info = CollectorInfo {
            protocol: SHARE_PROTOCOL,
            wire_protocol: crate::wire::PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            host_name,
            pid: std::process::id(),
            simulated,
            ..CollectorInfo::default()
        };
        Self { info, started, viewers: Vec::new(), verdicts: BTreeMap::new() }
    }

    /// Tells viewers that requests for histories are answered.
    #[must_use]
    pub fn with_history(mut self, has_history: bool) -> Self {
        self.info.history = has_history;
        self
    }

    /// The number of viewers that follow.
    pub fn viewers(&self) -> usize {
        self.viewers.len()
    }

    /// Serves a viewer: returns the queue of its lines. Without `follow` the queue ends after the picture.
    pub fn join(
        &mut self,
        viewer: &ViewerHello,
        audience: Audience,
        (fleet, engine): (&Fleet, &Engine),
        now: Moment,
    ) -> Arc<LineQueue> {
        let queue = Arc::new(LineQueue::default());
        let refusal = self.refusal(viewer);
        let mut lines: Vec<Line> =
            picture::line(&Frame::Collector(self.info(audience, fleet, now))).into_iter().collect();
        match &refusal {
            Some(refused) => lines.extend(picture::line(refused)),
            None => lines.extend(picture::picture(fleet, engine, PictureContent::of(viewer, audience), now)),
        }
        queue.change(|waiting| {
            waiting.push_picture(lines);
            waiting.is_finished = refusal.is_some() || !viewer.follow;
        });
        if refusal.is_none() && viewer.follow {
            self.viewers.push(Viewer { queue: Arc::clone(&queue), audience, progress: (0, now), line_at: now });
        }
        queue
    }

    fn refusal(&mut self, viewer: &ViewerHello) -> Option<Frame> {
        if viewer.protocol != SHARE_PROTOCOL {
            let reason = format!(
                "the collector on {} is gpufleet {} and speaks protocol {SHARE_PROTOCOL}, the viewer is gpufleet {} and \
                 speaks protocol {}: install the same version on both machines",
                self.info.host_name, self.info.version, viewer.version, viewer.protocol
            );
            return Some(Frame::Refused { kind: RefusalKind::Protocol, reason: reason.into() });
        }
        self.drop_closed();
        (self.viewers.len() >= MAX_VIEWERS).then(|| Frame::Refused {
            kind: RefusalKind::TooMany,
            reason: format!("the collector on {} has {MAX_VIEWERS} viewers already: close one", self.info.host_name)
                .into(),
        })
    }

    fn info(&self, audience: Audience, fleet: &Fleet, now: Moment) -> CollectorInfo {
        let shared = fleet.hosts().iter().map(|host| audience.sharing(&host.config)).min();
        CollectorInfo {
            uptime_seconds: now.since(self.started).as_secs_f64(),
            share: shared.unwrap_or_default().word().into(),
            ..self.info.clone()
        }
    }

    /// Passes on an update that a host is about to take. Costs nothing without viewers.
    pub fn publish(&mut self, fleet: &Fleet, host: HostId, update: &HostUpdate, now: Moment) {
        if self.viewers.is_empty() {
            return;
        }
        let Some(host) = fleet.host(host) else { return };
        let Some(frame) = picture::update_frame(host, update, now) else { return };
        self.send(now, |audience| picture::host_line(frame.clone(), host, audience));
    }

    /// Sends an update to every viewer: the line for its audience, `None` if it is too long.
    fn send(&mut self, now: Moment, line_for: impl Fn(Audience) -> Option<Line>) {
        for audience in [Audience::Own, Audience::Group] {
            let mut readers = self.viewers.iter_mut().filter(|viewer| viewer.audience == audience).peekable();
            if readers.peek().is_none() {
                continue;
            }
            let line = line_for(audience);
            for viewer in readers {
                viewer.line_at = now;
                viewer.queue.change(|waiting| match &line {
                    Some(line) => waiting.push_update(line),
                    // The picture divides it.
                    None => waiting.skip(),
                });
            }
        }
    }

    /// Sends the verdicts of examinations that are new or have ended.
    fn publish_verdicts(&mut self, fleet: &Fleet, engine: &Engine, now: Moment) {
        if self.viewers.is_empty() {
            self.verdicts.clear();
            return;
        }
        let times = findings::verdict_times(engine);
        let before = std::mem::replace(&mut self.verdicts, times);
        let mut changed: BTreeSet<HostId> = before.keys().chain(self.verdicts.keys()).copied().collect();
        changed.retain(|host| before.get(host) != self.verdicts.get(host));
        for host in changed {
            self.send(now, |audience| {
                let hangs = engine.hangs_of(host);
                picture::line(&Frame::Verdicts(findings::verdicts(hangs, fleet, host, audience, now)))
            });
        }
    }

    /// Does the work of each second: sends new verdicts to all viewers, the picture to those that skipped samples and have
    /// caught up, and a sign of life to silent ones, and drops those that are gone or stuck.
    pub fn tick(&mut self, fleet: &Fleet, engine: &Engine, now: Moment) {
        self.drop_closed();
        self.publish_verdicts(fleet, engine, now);
        self.viewers.retain_mut(|viewer| {
            let (taken, waits, is_behind) = {
                let waiting = viewer.queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                (waiting.taken, !waiting.lines.is_empty(), waiting.is_behind)
            };
            if taken != viewer.progress.0 || !waits {
                viewer.progress = (taken, now);
            }
            if now.since(viewer.progress.1) >= STUCK_AFTER {
                viewer.queue.close();
                return false;
            }
            if is_behind && !waits {
                let lines = picture::picture(fleet, engine, PictureContent::to_follow(viewer.audience), now);
                viewer.queue.change(|waiting| waiting.push_picture(lines));
                viewer.line_at = now;
            } else if now.since(viewer.line_at) >= ALIVE_PERIOD
                && let Some(alive) = picture::line(&Frame::Alive)
            {
                viewer.queue.change(|waiting| waiting.push_update(&alive));
                viewer.line_at = now;
            }
            true
        });
    }

    /// Sends the picture of the new list of hosts to every viewer.
    pub fn hosts_changed(&mut self, fleet: &Fleet, engine: &Engine, now: Moment) {
        for viewer in &mut self.viewers {
            let lines = picture::picture(fleet, engine, PictureContent::to_follow(viewer.audience), now);
            viewer.queue.change(|waiting| waiting.push_picture(lines));
            viewer.line_at = now;
        }
    }

    /// Tells every viewer that the collector ends. Returns their queues, which close when they have read it.
    pub fn finish(&mut self) -> Vec<Arc<LineQueue>> {
        let reason = format!("the collector on {} was stopped", self.info.host_name);
        let refused = picture::line(&Frame::Refused { kind: RefusalKind::Ending, reason: reason.into() });
        let end = |viewer: Viewer| {
            viewer.queue.change(|waiting| {
                waiting.skip();
                waiting.lines.extend(refused.clone());
                waiting.is_finished = true;
            });
            viewer.queue
        };
        self.viewers.drain(..).map(end).collect()
    }

    fn drop_closed(&mut self) {
        self.viewers.retain(|viewer| !viewer.queue.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_closed);
    }
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
