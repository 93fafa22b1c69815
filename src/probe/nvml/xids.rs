//! Xids as they happen. A thread of its own waits for them, since waiting is all it does.

use super::raw::{Code, Event, EventSet, Handle, Library};
use super::watch::Watch;
use crate::probe::blocking::spawn_thread;
use crate::wire::Offer;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long one call waits. Whoever wants the thread to end waits no longer than this, and an administrator's policy is
/// obeyed within 10 s.
const WAIT_MILLIS: u32 = 4500;
/// Events that wait for the next snapshot; what comes on top of them is counted.
const MAX_WAITING: usize = 64;
/// A driver that answers at once, in place of waiting, is not asked again before so long.
const LEAST_WAIT: Duration = Duration::from_millis(10);
/// After an error the driver is left alone for this long.
const PAUSE: Duration = Duration::from_secs(2);
/// A driver that refuses so often in a row is not asked again.
const MAX_REFUSALS: u32 = 30;
/// NVML runs on this stack; pages that are not touched cost nothing.
const STACK_BYTES: usize = 256 * 1024;

/// An Xid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Xid {
    /// Position of the GPU or instance in the inventory.
    pub(crate) gpu: Option<usize>,
    pub(crate) number: u64,
    pub(crate) at: Instant,
}

/// Xids that wait for the next snapshot.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<(Vec<Xid>, u32)>,
    /// Nobody of ours may touch the driver now.
    paused: AtomicBool,
}

impl Queue {
    fn push(&self, xid: Xid) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.0.len() < MAX_WAITING { waiting.0.push(xid) } else { waiting.1 += 1 }
    }

    /// What has come, and how many there were besides.
    pub(super) fn take(&self) -> (Vec<Xid>, u32) {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// From the next wait on, the driver is left alone, or not.
    pub(super) fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }
}

/// Where a GPU or an instance stands in the inventory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// [`Handle::number`] of the GPU, for an instance that of its parent.
    pub(super) device: usize,
    pub(super) gpu_instance: Option<u32>,
    pub(super) position: usize,
}

/// A thread that waits for Xids. Dropping it tells it to end.
pub(super) struct XidThread(Arc<Life>);

#[derive(Default)]
struct Life {
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Default)]
struct State {
    is_unwanted: bool,
    has_ended: bool,
}

impl XidThread {
    /// Starts waiting on `set`. `places` says where each GPU stands.
    pub(super) fn start(
        library: &'static Library,
        set: EventSet,
        places: Vec<Place>,
        queue: Arc<Queue>,
    ) -> std::io::Result<Self> {
        let life = Arc::new(Life::default());
        let shared = Arc::clone(&life);
        let work = move || {
            shared.wait_for_xids(library, &set, &places, &queue);
            drop(set);
            shared.lock().has_ended = true;
            shared.bell.notify_all();
        };
        spawn_thread("xids", STACK_BYTES, Box::new(work))?;
        Ok(Self(life))
    }

    /// Tells it to end, and waits until it has: NVML may not be shut down while it is in a call. False when it does not
    /// come back.
    pub(super) fn end(&self) -> bool {
        let deadline = Instant::now() + Duration::from_millis(u64::from(WAIT_MILLIS)) + Duration::from_secs(1);
        let mut state = self.0.lock();
        state.is_unwanted = true;
        self.0.bell.notify_all();
        while !state.has_ended {
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return false;
            }
            state = self.0.bell.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Drop for XidThread {
    fn drop(&mut self) {
        self.0.lock().is_unwanted = true;
        self.0.bell.notify_all();
    }
}

impl Life {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_xids(&self, library: &Library, set: &EventSet, places: &[Place], queue: &Queue) {
        let watch = Watch::new();
        let mut refusals = 0;
        while refusals < MAX_REFUSALS && !self.lock().is_unwanted {
            if queue.paused.load(Ordering::Relaxed) {
                self.rest();
                continue;
            }
            let began = Instant::now();
            match library.next_event(&watch, set, WAIT_MILLIS) {
                // One that came while the end was near belongs to the successor.
                Ok(Some(event)) if !self.lock().is_unwanted => {
                    refusals = 0;
                    let xid = Xid { gpu: position(places, event), number: event.xid, at: Instant::now() };
                    queue.push(xid);
                }
                Ok(_) => refusals = 0,
                Err(Code::TIMEOUT) => {
                    refusals = 0;
                    self.rest_until(began + LEAST_WAIT);
                }
                Err(_) => {
                    refusals += 1;
                    self.rest();
                }
            }
        }
    }

    fn rest(&self) {
        self.rest_until(Instant::now() + PAUSE);
    }

    fn rest_until(&self, until: Instant) {
        let mut state = self.lock();
        while !state.is_unwanted {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return;
            }
            state = self.bell.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The instance that an event names, else the GPU.
fn position(places: &[Place], event: Event) -> Option<usize> {
    let find = |instance| {
        places.iter().find(|place| place.device == event.device && place.gpu_instance == instance).map(|p| p.position)
    };
    event.gpu_instance.and_then(|instance| find(Some(instance))).or_else(|| find(None))
}

/// Registers GPUs one by one, so that each has its own answer.
pub(super) struct Registration<'a> {
    library: &'static Library,
    watch: &'a Watch,
    set: Result<EventSet, Code>,
    any: bool,
}

impl<'a> Registration<'a> {
    pub(super) fn begin(library: &'static Library, watch: &'a Watch) -> Self {
        Self { library, watch, set: library.event_set(watch), any: false }
    }

    /// Asks for this GPU's Xids. `None`: its driver has none.
    pub(super) fn add(&mut self, device: Handle) -> Option<Offer> {
        let registered = match &self.set {
            Ok(set) => self.library.hear_xids(self.watch, device, set),
            Err(code) => Err(*code),
        };
        match registered {
            Ok(()) => {
                self.any = true;
                Some(Offer::Available)
            }
            Err(Code::NOT_SUPPORTED | Code::FUNCTION_NOT_FOUND) => None,
            Err(Code::NO_PERMISSION) => Some(Offer::NotPermitted),
            Err(_) => Some(Offer::Refused),
        }
    }

    /// Starts the thread, where there is anything to wait for.
    pub(super) fn finish(self, places: Vec<Place>, queue: &Arc<Queue>) -> Option<XidThread> {
        let set = self.set.ok().filter(|_| self.any)?;
        XidThread::start(self.library, set, places, Arc::clone(queue)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_belongs_to_its_instance_else_to_its_gpu() {
        let place = |device, gpu_instance, position| Place { device, gpu_instance, position };
        let places = [place(16, None, 0), place(16, Some(3), 1), place(32, None, 2)];
        let at = |device, gpu_instance| position(&places, Event { device, gpu_instance, xid: 79 });
        assert_eq!((at(16, None), at(16, Some(3)), at(16, Some(9))), (Some(0), Some(1), Some(0)));
        assert_eq!((at(32, None), at(99, None)), (Some(2), None));
    }

    #[test]
    fn a_flood_is_counted_and_does_not_grow() {
        let queue = Queue::default();
        for number in 0..100 {
            queue.push(Xid { gpu: None, number, at: Instant::now() });
        }
        let (xids, more) = queue.take();
        assert_eq!((xids.len(), more, xids[0].number), (MAX_WAITING, 36, 0));
        assert_eq!(queue.take(), (vec![], 0));
    }
}
