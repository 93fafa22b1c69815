//! Xid events. A separate thread waits for them in NVML.

use super::call_monitor::CallTimer;
use super::ffi::{Event, EventSet, Handle, Library, ReturnCode};
use crate::probe::blocking::spawn_thread;
use crate::wire::Availability;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The timeout of one wait. The thread ends within this time, so that a policy change takes effect within 10 s.
const WAIT_MILLIS: u32 = 4500;
/// The maximum number of events in the queue; further ones are only counted.
const MAX_PENDING: usize = 64;
/// The minimum time between calls if a driver returns immediately instead of waiting.
const MIN_WAIT: Duration = Duration::from_millis(10);
/// The pause after an error.
const ERROR_PAUSE: Duration = Duration::from_secs(2);
/// After this many consecutive errors the thread ends.
const MAX_ERRORS: u32 = 30;
/// NVML runs on this stack; untouched pages cost nothing.
const STACK_BYTES: usize = 256 * 1024;

/// An Xid event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Xid {
    /// Position of the GPU or instance in the inventory.
    pub(crate) gpu: Option<usize>,
    pub(crate) number: u64,
    pub(crate) at: Instant,
}

/// Xid events for the next snapshot.
#[derive(Debug, Default)]
pub(super) struct XidQueue {
    /// The events, and the number of events beyond [`MAX_PENDING`].
    pending: Mutex<(Vec<Xid>, u32)>,
    /// Set while no thread of this process may call NVML.
    paused: AtomicBool,
}

impl XidQueue {
    fn push(&self, xid: Xid) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.0.len() < MAX_PENDING { pending.0.push(xid) } else { pending.1 += 1 }
    }

    /// Takes the events, and the number of events beyond the limit.
    pub(super) fn take(&self) -> (Vec<Xid>, u32) {
        std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Pauses or resumes waiting. Takes effect after the wait in progress.
    pub(super) fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }
}

/// The position of a GPU or MIG instance in the inventory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventSource {
    /// [`Handle::number`] of the GPU, or of the parent of a MIG instance.
    pub(super) device: usize,
    pub(super) gpu_instance: Option<u32>,
    pub(super) position: usize,
}

/// A thread that waits for Xid events. Dropping the value makes the thread end.
pub(super) struct XidThread(Arc<ThreadControl>);

#[derive(Default)]
struct ThreadControl {
    state: Mutex<State>,
    condvar: Condvar,
}

#[derive(Default)]
struct State {
    stop_requested: bool,
    has_stopped: bool,
}

impl XidThread {
    /// Starts a thread that waits on `set` and assigns events to `sources`.
    pub(super) fn start(
        library: &'static Library,
        set: EventSet,
        sources: Vec<EventSource>,
        queue: Arc<XidQueue>,
    ) -> std::io::Result<Self> {
        let control = Arc::new(ThreadControl::default());
        let shared = Arc::clone(&control);
        let work = move || {
            shared.wait_for_xids(library, &set, &sources, &queue);
            drop(set);
            shared.lock().has_stopped = true;
            shared.condvar.notify_all();
        };
        spawn_thread("xids", STACK_BYTES, Box::new(work))?;
        Ok(Self(control))
    }

    /// Ends the thread and waits for it: NVML must not be shut down during a call. Returns false if the thread does not
    /// end in time.
    pub(super) fn stop(&self) -> bool {
        let limit = Duration::from_millis(u64::from(WAIT_MILLIS)) + Duration::from_secs(1);
        let mut state = self.0.lock();
        state.stop_requested = true;
        self.0.condvar.notify_all();
        let waited = self.0.condvar.wait_timeout_while(state, limit, |state| !state.has_stopped);
        waited.unwrap_or_else(PoisonError::into_inner).0.has_stopped
    }
}

impl Drop for XidThread {
    fn drop(&mut self) {
        self.0.lock().stop_requested = true;
        self.0.condvar.notify_all();
    }
}

impl ThreadControl {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_xids(&self, library: &Library, set: &EventSet, sources: &[EventSource], queue: &XidQueue) {
        let timer = CallTimer::new();
        let mut errors = 0;
        while errors < MAX_ERRORS && !self.lock().stop_requested {
            if queue.paused.load(Ordering::Relaxed) {
                self.pause(ERROR_PAUSE);
                continue;
            }
            let started = Instant::now();
            match library.next_event(&timer, set, WAIT_MILLIS) {
                // During a stop, events belong to the successor.
                Ok(Some(event)) if !self.lock().stop_requested => {
                    errors = 0;
                    let xid = Xid { gpu: position(sources, event), number: event.xid, at: Instant::now() };
                    queue.push(xid);
                }
                Ok(_) => errors = 0,
                Err(ReturnCode::TIMEOUT) => {
                    errors = 0;
                    self.pause(MIN_WAIT.saturating_sub(started.elapsed()));
                }
                Err(_) => {
                    errors += 1;
                    self.pause(ERROR_PAUSE);
                }
            }
        }
    }

    /// Waits for `duration`, or until a stop is requested.
    fn pause(&self, duration: Duration) {
        drop(self.condvar.wait_timeout_while(self.lock(), duration, |state| !state.stop_requested));
    }
}

/// Returns the position of the instance that the event names, or else of the GPU.
fn position(sources: &[EventSource], event: Event) -> Option<usize> {
    let find = |instance| {
        sources
            .iter()
            .find(|source| source.device == event.device && source.gpu_instance == instance)
            .map(|p| p.position)
    };
    event.gpu_instance.and_then(|instance| find(Some(instance))).or_else(|| find(None))
}

/// Registers GPUs one by one, so that each has its own result.
pub(super) struct Registration<'a> {
    library: &'static Library,
    timer: &'a CallTimer,
    set: Result<EventSet, ReturnCode>,
    has_registered: bool,
}

impl<'a> Registration<'a> {
    pub(super) fn begin(library: &'static Library, timer: &'a CallTimer) -> Self {
        Self { library, timer, set: library.event_set(timer), has_registered: false }
    }

    /// Registers a GPU. Returns `None` if its driver has no Xid events.
    pub(super) fn add(&mut self, device: Handle) -> Option<Availability> {
        let registered = match &self.set {
            Ok(set) => self.library.register_xid_events(self.timer, device, set),
            Err(code) => Err(*code),
        };
        match registered {
            Ok(()) => {
                self.has_registered = true;
                Some(Availability::Available)
            }
            Err(ReturnCode::NOT_SUPPORTED | ReturnCode::FUNCTION_NOT_FOUND) => None,
            Err(ReturnCode::NO_PERMISSION) => Some(Availability::NotPermitted),
            Err(_) => Some(Availability::Refused),
        }
    }

    /// Starts the thread if any GPU was registered.
    pub(super) fn finish(self, sources: Vec<EventSource>, queue: &Arc<XidQueue>) -> Option<XidThread> {
        let set = self.set.ok().filter(|_| self.has_registered)?;
        XidThread::start(self.library, set, sources, Arc::clone(queue)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_assigned_to_its_instance_or_gpu() {
        let source = |device, gpu_instance, position| EventSource { device, gpu_instance, position };
        let sources = [source(16, None, 0), source(16, Some(3), 1), source(32, None, 2)];
        let at = |device, gpu_instance| position(&sources, Event { device, gpu_instance, xid: 79 });
        assert_eq!((at(16, None), at(16, Some(3)), at(16, Some(9))), (Some(0), Some(1), Some(0)));
        assert_eq!((at(32, None), at(99, None)), (Some(2), None));
    }

    #[test]
    fn events_over_the_limit_are_counted() {
        let queue = XidQueue::default();
        for number in 0..100 {
            queue.push(Xid { gpu: None, number, at: Instant::now() });
        }
        let (xids, more) = queue.take();
        assert_eq!((xids.len(), more, xids[0].number), (MAX_PENDING, 36, 0));
        assert_eq!(queue.take(), (vec![], 0));
    }
}
