//! Turns the lines of a collector into updates of hosts. Pure.

use super::findings::{Diagnosis, JobVerdict};
use super::frame::{CollectorInfo, Frame, FrameError, HostFrame, HostInfo, LinkFrame, MAX_HOSTS, RefusalKind, decode};
use crate::fleet::{
    ConnectPhase, GpuState, HistoryReply, HostId, HostUpdate, LinkError, LinkErrorKind, Misbehavior, Moment,
};
use crate::wire::{Hello, Message, SafeText};
use std::collections::HashMap;
use std::time::Duration;

/// Something that a viewer learns from a line.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "nearly all events are of the large variant")]
pub enum ViewerEvent {
    /// The collector introduced itself.
    Collector(CollectorInfo),
    /// The list of hosts has changed; [`Demultiplexer::hosts`] has it.
    HostsChanged,
    /// A host has news.
    Update(HostId, HostUpdate),
    /// The states of the GPUs of a host, each with the moment since when it is known to hold.
    States(HostId, Vec<(GpuState, Option<Moment>)>),
    /// The verdicts of examinations about the jobs of a host, in place of the earlier ones.
    Verdicts(HostId, Vec<JobVerdict>),
    /// The answer to a request for a history.
    History(HistoryReply),
    /// The picture is complete.
    Complete,
    /// The collector does not serve this viewer.
    Refused(RefusalKind, SafeText),
}

/// The hosts of a collector and what their lines need between them.
///
/// Hosts get ids in the order of the first complete list, and keep them. A host that joins later has an id only with
/// [`Demultiplexer::with_new_hosts`]; otherwise its lines are dropped.
#[derive(Debug, Default)]
pub struct Demultiplexer {
    info: Option<CollectorInfo>,
    /// The list as received so far.
    hosts: Vec<HostInfo>,
    ids: HashMap<SafeText, HostId>,
    /// The names with an id, in order.
    names: Vec<SafeText>,
    is_list_fixed: bool,
    takes_new_hosts: bool,
    /// The hello of each host, by id: the picture repeats it, and a repeated hello would look like a new connection.
    hellos: Vec<Option<Hello>>,
    /// The diagnosis, without `follow`.
    pub diagnosis: Diagnosis,
}

impl Demultiplexer {
    /// Keeps these hosts in this order, for a viewer that connects again.
    pub fn with_hosts(names: impl IntoIterator<Item = SafeText>) -> Self {
        let mut demultiplexer = Self::default();
        names.into_iter().for_each(|name| demultiplexer.add(name));
        demultiplexer.is_list_fixed = true;
        demultiplexer
    }

    /// Gives hosts that are listed later an id as well.
    #[must_use]
    pub fn with_new_hosts(mut self) -> Self {
        self.takes_new_hosts = true;
        self
    }

    /// The hosts with an id, in the order of their ids.
    pub fn names(&self) -> &[SafeText] {
        &self.names
    }

    /// The collector, after its first line.
    pub fn info(&self) -> Option<&CollectorInfo> {
        self.info.as_ref()
    }

    /// The last list of hosts.
    pub fn hosts(&self) -> &[HostInfo] {
        &self.hosts
    }

    /// The hosts with an id that are not in the list any more.
    pub fn removed_hosts(&self) -> impl Iterator<Item = HostId> {
        let is_listed = |name: &SafeText| self.hosts.iter().any(|host| host.name == *name);
        (0..).map(HostId).zip(&self.names).filter(move |(_, name)| !is_listed(name)).map(|(id, _)| id)
    }

    fn add(&mut self, name: SafeText) {
        let next = HostId(self.names.len() as u32);
        // A collector that lists other hosts again and again must not fill the memory of its viewers.
        if !self.ids.contains_key(&name) && self.names.len() < MAX_HOSTS {
            self.ids.insert(name.clone(), next);
            self.names.push(name);
            self.hellos.push(None);
        }
    }

    /// Takes a line without its newline. `now` is the time of its arrival.
    ///
    /// # Errors
    /// The line is not of the protocol: the connection should be closed.
    pub fn take(&mut self, line: &[u8], now: Moment) -> Result<Vec<ViewerEvent>, FrameError> {
        let frame = decode(line)?;
        match frame {
            Frame::Collector(info) => {
                self.info = Some(info.clone());
                Ok(vec![ViewerEvent::Collector(info)])
            }
            Frame::Refused { kind, reason } => Ok(vec![ViewerEvent::Refused(kind, reason)]),
            _ if self.info.is_none() => Err(FrameError::Order("the first line does not introduce a collector")),
            Frame::Hosts { first, list } => self.take_hosts(first, list),
            Frame::Host(frame) => Ok(self.take_host(frame, now)),
            Frame::Diagnosis(part) => {
                let ids = &self.ids;
                self.diagnosis.take(part, &|name| ids.get(name).copied(), now);
                Ok(Vec::new())
            }
            Frame::Verdicts(frame) => {
                let ids = &self.ids;
                let Some(&id) = ids.get(&frame.host) else { return Ok(Vec::new()) };
                Ok(vec![ViewerEvent::Verdicts(id, frame.verdicts(&|name| ids.get(name).copied(), now))])
            }
            Frame::History(frame) => Ok(vec![ViewerEvent::History(frame.into())]),
            Frame::Complete => {
                self.is_list_fixed = true;
                Ok(vec![ViewerEvent::Complete])
            }
            Frame::Alive | Frame::Unknown => Ok(Vec::new()),
        }
    }

    fn take_hosts(&mut self, first: u32, list: Vec<HostInfo>) -> Result<Vec<ViewerEvent>, FrameError> {
        if first == 0 {
            self.hosts.clear();
        }
        if first as usize != self.hosts.len() {
            return Err(FrameError::Order("a part of the list of hosts is missing"));
        }
        if self.hosts.len() + list.len() > MAX_HOSTS {
            return Err(FrameError::TooMany { items: "hosts", limit: MAX_HOSTS });
        }
        for host in list {
            if self.takes_new_hosts || !self.is_list_fixed {
                self.add(host.name.clone());
            }
            self.hosts.push(host);
        }
        Ok(vec![ViewerEvent::HostsChanged])
    }

    fn take_host(&mut self, frame: HostFrame, now: Moment) -> Vec<ViewerEvent> {
        let Some(&id) = self.ids.get(&frame.name) else { return Vec::new() };
        let mut updates = Vec::new();
        match frame.wire {
            Some(Message::Hello(hello)) => {
                let known = self.hellos.get_mut(id.0 as usize);
                let is_new = known.is_some_and(|known| known.replace(hello.clone()).as_ref() != Some(&hello));
                if is_new {
                    updates.push(HostUpdate::Hello(Box::new(hello)));
                }
            }
            Some(Message::Inventory(inventory)) => updates.push(HostUpdate::Inventory(Box::new(inventory))),
            Some(Message::Snapshot(snapshot)) => {
                updates.push(HostUpdate::Snapshot(snapshot));
                if let Some(age) = frame.age_seconds.and_then(|age| Duration::try_from_secs_f64(age).ok()) {
                    updates.push(HostUpdate::ReadingsAge(age));
                }
            }
            // A collector sends no answers to requests.
            Some(Message::Echo { .. } | Message::Reply(_) | Message::Farewell { .. } | Message::Unknown) | None => {}
        }
        let round_trip = frame.round_trip_seconds.and_then(|time| Duration::try_from_secs_f64(time).ok());
        updates.extend(round_trip.map(HostUpdate::RoundTrip));
        let misbehavior = frame.misbehavior.as_deref().and_then(Misbehavior::from_word);
        updates.extend(misbehavior.map(HostUpdate::Misbehaves));
        updates.extend(frame.link.and_then(|link| self.link(link, now)));
        let mut events: Vec<ViewerEvent> = updates.into_iter().map(|update| ViewerEvent::Update(id, update)).collect();
        if !frame.states.is_empty() {
            let state = |(word, seconds): (SafeText, Option<f64>)| {
                let since = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                let state = GpuState::from_json_word(&word).unwrap_or(GpuState::Unknown);
                (state, since.map(|since| now.minus(since)))
            };
            events.push(ViewerEvent::States(id, frame.states.into_iter().map(state).collect()));
        }
        events
    }

    fn link(&self, link: LinkFrame, now: Moment) -> Option<HostUpdate> {
        match link {
            LinkFrame::Connecting { attempt, phase } => {
                let phase = ConnectPhase::from_word(&phase).unwrap_or(ConnectPhase::Queued);
                Some(HostUpdate::Connecting { attempt, phase })
            }
            LinkFrame::Stale => Some(HostUpdate::Silent),
            LinkFrame::Down { error, retry_in_seconds, attempt } => {
                let retry_in = retry_in_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                let retry_at = retry_in.map(|retry_in| now.plus(retry_in));
                Some(HostUpdate::Down { error: LinkError::from(error), retry_at, attempt })
            }
            // The viewer cannot answer the prompts of the collector.
            LinkFrame::NeedsUser { error } => {
                let error = LinkError::from(error);
                let collector = self.info.as_ref().map_or("-", |info| info.host_name.as_str());
                let text = format!("the collector on {collector} needs its user: {}", error.message);
                let hint = format!("on {collector}, run: gpufleet doctor");
                let error = LinkError::new(error.kind, text).with_hint(hint);
                Some(HostUpdate::Down { error, retry_at: None, attempt: 1 })
            }
            LinkFrame::Live | LinkFrame::Unknown => None,
        }
    }
}

impl Demultiplexer {
    /// The error for a line that is not of the protocol.
    pub fn link_error(error: &FrameError) -> LinkError {
        LinkError::new(LinkErrorKind::Protocol, error.to_string())
            .with_hint("check that both machines have the same version of gpufleet")
    }
}

#[cfg(test)]
#[path = "viewer_tests.rs"]
mod tests;
