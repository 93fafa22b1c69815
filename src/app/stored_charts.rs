//! The histories of hosts from the store of a collector: which are requested, and which have arrived.
//!
//! One request is open at a time. The chart on the screen comes first, then the hosts whose charts of the last two hours
//! are filled.

use super::screen::{ChartSpan, Screen};
use crate::fleet::{DatedHistory, Fleet, HistoryQuery, HistoryReply, Host, HostId, Moment, StoredGpu};
use crate::wire::{GpuInfo, SafeText};
use std::collections::VecDeque;
use std::time::Duration;

/// A request without an answer is given up after this time. The collector gives up earlier.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// A failed request is repeated after this time, if its chart is still on the screen.
const RETRY_AFTER: Duration = Duration::from_secs(15);
/// Histories that are kept for charts; the oldest one is dropped.
const MAX_LOADED: usize = 12;

/// The histories of hosts from the store.
#[derive(Debug, Default)]
pub struct StoredCharts {
    has_store: bool,
    loaded: VecDeque<Loaded>,
    open: Option<OpenRequest>,
    /// Hosts whose charts are not filled yet.
    unfilled: VecDeque<HostId>,
    last_id: u64,
}

#[derive(Debug)]
struct Loaded {
    host: HostId,
    span: ChartSpan,
    result: Result<DatedHistory, SafeText>,
    at: Moment,
}

#[derive(Debug, Clone, Copy)]
struct OpenRequest {
    id: u64,
    host: HostId,
    /// The span of a chart; `None` to fill the charts of the last two hours.
    span: Option<ChartSpan>,
    since: Moment,
}

/// The state of a chart of a long span.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StoredChart<'a> {
    /// The history is being read.
    Reading,
    /// It cannot be read, for this reason.
    Failed(&'a SafeText),
    /// The history.
    Read(&'a DatedHistory),
}

/// A GPU in the view of a history: one of the inventory, of the store, or of both.
#[derive(Debug, Clone, Copy)]
pub struct HistoryGpu<'a> {
    /// The index on its host.
    pub index: u32,
    /// The inventory of the driver; `None` for a GPU that is gone, or while nothing is known about the host.
    pub info: Option<&'a GpuInfo>,
    /// The GPU in the store.
    pub stored: Option<&'a StoredGpu>,
}

impl StoredCharts {
    /// Returns whether a store answers requests.
    pub fn has_store(&self) -> bool {
        self.has_store
    }

    /// Sets whether a store answers requests.
    pub(super) fn set_store(&mut self, has_store: bool) {
        self.has_store = has_store;
    }

    /// Notes that a host has sent its first snapshot: its charts can be filled.
    pub(super) fn host_reported(&mut self, host: HostId) {
        if self.has_store && !self.unfilled.contains(&host) {
            self.unfilled.push_back(host);
        }
    }

    /// Returns the next request, if one is due.
    pub(super) fn next_request(&mut self, screen: &Screen, fleet: &Fleet, now: Moment) -> Option<HistoryQuery> {
        if !self.has_store {
            return None;
        }
        // A simulation may run faster than the store can answer.
        let limit = |duration: Duration| duration.mul_f64(fleet.clock_speed());
        if let Some(open) = self.open.take_if(|open| now.since(open.since) >= limit(ANSWER_LIMIT)) {
            let text = format!("the history was not read within {} s", ANSWER_LIMIT.as_secs());
            self.finish(open, Err(text.into()), now);
        }
        if self.open.is_some() {
            return None;
        }
        let shown = screen.stored_history().map(|(host, _)| (host, screen.span));
        let is_due = |(host, span): &(HostId, ChartSpan)| {
            self.find(*host, *span).is_none_or(|loaded| {
                let age = now.since(loaded.at);
                match &loaded.result {
                    // A point that has begun changes with each minute.
                    Ok(_) => age >= Duration::from_secs((span.step_seconds() / 2).clamp(60, 600)),
                    Err(_) => age >= limit(RETRY_AFTER),
                }
            })
        };
        let (host, span) = match shown.filter(is_due) {
            Some((host, span)) => (host, Some(span)),
            None => (self.unfilled.pop_front()?, None),
        };
        let name = fleet.host(host)?.name().clone();
        self.last_id += 1;
        self.open = Some(OpenRequest { id: self.last_id, host, span, since: now });
        let span = span.unwrap_or(ChartSpan::TwoHours);
        Some(HistoryQuery {
            id: self.last_id,
            host: name,
            span_seconds: span.duration().as_secs(),
            step_seconds: span.step_seconds(),
        })
    }

    /// Takes an answer. Returns the host whose charts it fills; an answer for a chart is kept. Late answers are dropped.
    pub(super) fn take(&mut self, reply: HistoryReply, now: Moment) -> Option<(HostId, DatedHistory)> {
        let open = self.open.take_if(|open| open.id == reply.id)?;
        let result = reply.result.map(|history| DatedHistory::new(history, now));
        if open.span.is_none() {
            // Without the store the charts begin empty, as without a collector.
            return result.ok().map(|history| (open.host, history));
        }
        self.finish(open, result, now);
        None
    }

    fn finish(&mut self, open: OpenRequest, result: Result<DatedHistory, SafeText>, now: Moment) {
        let Some(span) = open.span else { return };
        self.loaded.retain(|loaded| (loaded.host, loaded.span) != (open.host, span));
        self.loaded.push_back(Loaded { host: open.host, span, result, at: now });
        if self.loaded.len() > MAX_LOADED {
            self.loaded.pop_front();
        }
    }

    fn find(&self, host: HostId, span: ChartSpan) -> Option<&Loaded> {
        self.loaded.iter().find(|loaded| (loaded.host, loaded.span) == (host, span))
    }

    /// Returns the state of the chart of a host.
    pub fn chart(&self, host: HostId, span: ChartSpan) -> StoredChart<'_> {
        match self.find(host, span).map(|loaded| &loaded.result) {
            Some(Ok(history)) => StoredChart::Read(history),
            Some(Err(cause)) => StoredChart::Failed(cause),
            None => StoredChart::Reading,
        }
    }

    /// Returns the GPUs of a host in the view of its history: those of the inventory, at their positions, then those that
    /// only the store knows.
    pub fn gpus<'a>(&'a self, host: &'a Host, span: ChartSpan) -> Vec<HistoryGpu<'a>> {
        let history = match self.chart(host.id, span) {
            StoredChart::Read(dated) => Some(&dated.history),
            StoredChart::Reading | StoredChart::Failed(_) => None,
        };
        let infos = host.inventory.as_ref().map_or(&[][..], |inventory| &inventory.gpus);
        let mut gpus: Vec<HistoryGpu<'_>> = infos
            .iter()
            .map(|info| HistoryGpu {
                index: info.index,
                info: Some(info),
                stored: history.and_then(|history| history.gpu(info)),
            })
            .collect();
        let is_listed =
            |gpu: &StoredGpu| gpus.iter().any(|one| one.stored.is_some_and(|stored| stored.uuid == gpu.uuid));
        let rest = history.map_or(&[][..], |history| &history.gpus).iter().filter(|gpu| !is_listed(gpu));
        let rest: Vec<HistoryGpu<'_>> =
            rest.map(|gpu| HistoryGpu { index: gpu.index, info: None, stored: Some(gpu) }).collect();
        gpus.extend(rest);
        gpus
    }
}
