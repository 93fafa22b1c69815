//! NVML calls run on a worker, since any of them may hang. A worker that does is left behind with the GPU it hangs on,
//! and a new one goes on with the others; whoever waits for readings never waits for the driver.

use super::call_monitor::{CallTimer, DriverAnomalies};
use super::device::DeviceSample;
use super::ffi::Library;
use super::messages;
use super::peer_hang_lock::PeerHangLock;
use super::session::{Session, load};
use super::xid::{Xid, XidQueue};
use crate::probe::blocking::spawn_thread;
use crate::probe::decimal::round_to_tenth_f32;
use crate::wire::{DriverError, Inventory, SafeText};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A call that runs this long keeps the other probes of this user away from the driver.
const LOCK_AFTER: Duration = Duration::from_secs(5);
/// How often others' marks are looked for while there is none. A mark tells of a call that has hung for [`LOCK_AFTER`] already,
/// so that a look before each round would keep hardly any call of ours from hanging.
const PEER_CHECK_PERIOD: Duration = Duration::from_millis(5500);
/// The longest wait for a round of calls each of which is quick.
const MAX_ROUND: Duration = Duration::from_secs(5);
/// NVML runs on this stack; pages that are not touched cost nothing.
const STACK_BYTES: usize = 1 << 20;

/// The driver, seen from the thread that wants readings.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    /// The generation that was handed out last.
    sent_generation: u32,
    hang_lock: PeerHangLock,
    /// When others' marks were looked for, and nobody had left one.
    no_peer_at: Option<Instant>,
}

/// Lets another thread end the process without cutting a call in two.
#[derive(Clone)]
pub(crate) struct ShutdownHandle(Arc<Shared>);

struct Shared {
    state: Mutex<WorkerState>,
    /// Rings when a round is asked for, a round is finished, or a worker comes to rest.
    condvar: Condvar,
    origin: Instant,
    library_path: Option<String>,
    xids: Arc<XidQueue>,
}

impl Driver {
    /// Starts the first worker. `library_path` is a library to load in place of the usual ones, `hang_lock_dir` a directory for marks
    /// in place of the usual ones.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(library_path: Option<String>, hang_lock_dir: Option<&str>) -> io::Result<Self> {
        let timer = Arc::new(CallTimer::new());
        let shared = Arc::new(Shared {
            state: Mutex::new(WorkerState::new(Arc::clone(&timer))),
            condvar: Condvar::new(),
            origin: Instant::now(),
            library_path,
            xids: Arc::default(),
        });
        start_worker(&shared, 0, timer)?;
        Ok(Self { shared, sent_generation: 0, hang_lock: PeerHangLock::new(hang_lock_dir), no_peer_at: None })
    }

    /// For the thread that ends the process.
    pub(crate) fn shutdown_handle(&self) -> ShutdownHandle {
        ShutdownHandle(Arc::clone(&self.shared))
    }

    /// The inventory is to be handed out again with the next frame.
    pub(crate) fn resend(&mut self) {
        self.sent_generation = 0;
    }

    /// Asks for a round and waits for it, but for no call that is a second old. GPUs that were not read in time have
    /// empty readings and say for how long they have been blocked.
    pub(crate) fn refresh(&mut self, slow: bool) -> DriverSample {
        let peer = self.peer();
        self.shared.xids.pause(peer.is_some());
        if let Some(pid) = peer {
            let driver_sample = self.shared.lock().suspended_sample(pid);
            return self.with_inventory(driver_sample);
        }
        let mut state = self.shared.lock();
        if state.finished_round == state.requested_round {
            state.requested_round += 1;
            state.slow = slow;
            drop(state);
            self.shared.condvar.notify_all();
            state = self.shared.lock();
        }
        let deadline = Instant::now() + MAX_ROUND;
        while state.finished_round != state.requested_round && Instant::now() < deadline {
            let age = state.timer.call_age().unwrap_or_default();
            if age >= HANG_AFTER {
                if !self.shared.replace_worker(&mut state) {
                    break;
                }
            } else if age >= CALL_WAIT {
                break;
            }
            let wait = CALL_WAIT.saturating_sub(state.timer.call_age().unwrap_or_default());
            let waited = self.shared.condvar.wait_timeout(state, wait.max(Duration::from_millis(1)));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut driver_sample = state.take_sample();
        let anomalies = state.library.map(Library::anomalies);
        drop(state);
        driver_sample.notes.extend(anomalies.into_iter().flat_map(DriverAnomalies::take).map(SafeText::from));
        let (xids, more) = self.shared.xids.take();
        driver_sample.xids = xids;
        if more > 0 {
            driver_sample.notes.push(format!("{more} more Xid events came than are passed on at once").into());
        }
        self.update_hang_lock();
        self.with_inventory(driver_sample)
    }

    /// Another process of this user that hangs in NVML, as far as that has been seen.
    fn peer(&mut self) -> Option<u32> {
        let now = Instant::now();
        if self.no_peer_at.is_some_and(|then| now < then + PEER_CHECK_PERIOD) {
            return None;
        }
        let peer = self.hang_lock.peer();
        self.no_peer_at = peer.is_none().then_some(now);
        peer
    }

    /// Whether a call has not come back. Then [`Driver::update_hang_lock`] is to be called about every second.
    pub(crate) fn has_pending_call(&self) -> bool {
        self.shared.lock().oldest_call().is_some()
    }

    /// Tells the other probes of this user when a call hangs, and when it came back.
    pub(crate) fn update_hang_lock(&mut self) {
        let hangs = self.shared.lock().oldest_call().is_some_and(|age| age >= LOCK_AFTER);
        if hangs { self.hang_lock.acquire() } else { self.hang_lock.release() }
    }

    fn with_inventory(&mut self, mut driver_sample: DriverSample) -> DriverSample {
        if driver_sample.generation != self.sent_generation {
            self.sent_generation = driver_sample.generation;
            driver_sample.inventory = Some(self.shared.lock().inventory.clone());
        }
        driver_sample
    }
}

impl ShutdownHandle {
    /// Shuts NVML down, so that an administrator can reset a GPU. It takes a few seconds at most: where a call hangs,
    /// the driver is left as it is.
    pub(crate) fn shut_down(&self, limit: Duration) {
        self.0.lock().stop_request = StopRequest::ShutDown;
        let deadline = Instant::now() + limit;
        self.stop(limit);
        let mut state = self.0.lock();
        while state.session.is_some() && state.stuck_workers.is_empty() {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return;
            }
            state = self.0.condvar.wait_timeout(state, remaining).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Lets no further GPU be read, and waits until the one that is being read is done, at most this long.
    pub(crate) fn stop(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut state = self.0.lock();
        if state.stop_request == StopRequest::None {
            state.stop_request = StopRequest::Stop;
        }
        self.0.condvar.notify_all();
        while state.busy {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return;
            }
            state = self.0.condvar.wait_timeout(state, remaining).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, WorkerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the worker behind that hangs on one GPU, and starts another for the rest. There are never more of them
    /// than GPUs and one; a call that hangs on the driver as a whole is left alone, since a second would hang as well.
    fn replace_worker(self: &Arc<Self>, state: &mut WorkerState) -> bool {
        let devices = state.session.as_ref().map_or(0, |session| session.devices());
        if state.timer.device().is_none() || state.stuck_workers.len() >= devices {
            return false;
        }
        let timer = Arc::new(CallTimer::new());
        if start_worker(self, state.epoch + 1, Arc::clone(&timer)).is_err() {
            return false;
        }
        state.epoch += 1;
        state.stuck_workers.push(std::mem::replace(&mut state.timer, timer));
        true
    }

    /// One round: the session is opened or looked over, then each GPU is read. `None` when this worker has been
    /// replaced meanwhile.
    fn run_round(&self, epoch: u32, timer: &CallTimer, buffer: &mut Vec<u64>, request: &RoundRequest) -> Option<()> {
        let session = match &request.session {
            Some(session) if request.check_inventory => {
                let lost = session.inventory_is_stale(timer);
                if lost { self.reopen(epoch, timer, session)? } else { Some(Arc::clone(session)) }
            }
            Some(session) => Some(Arc::clone(session)),
            None => self.open(epoch, timer, request.library)?,
        };
        let Some(session) = session else { return Some(()) };
        for position in 0..session.devices() {
            let now = self.origin.elapsed().as_secs_f64();
            let sample = session.sample(position, timer, buffer, now, request.slow);
            let mut state = self.lock();
            if state.epoch != epoch || state.stop_request != StopRequest::None {
                return None;
            }
            if let (Some(sample), Some(slot)) = (sample, state.slots.get_mut(position)) {
                *slot = DeviceSlot { round: request.round, sample };
            }
        }
        Some(())
    }

    /// Loads the library and initialises it. `Some(None)` when that fails, with the reason in the inventory.
    #[allow(clippy::option_option, reason = "outside: still in charge; inside: there is a driver")]
    fn open(&self, epoch: u32, timer: &CallTimer, library: Option<&'static Library>) -> Option<Option<Arc<Session>>> {
        timer.set_device(None);
        let library = library.map_or_else(|| load(self.library_path.as_deref()), Ok);
        let opened = library.clone().and_then(|library| Session::open(library, timer, &self.xids)).map(Arc::new);
        let inventory = match &opened {
            Ok(session) => session.inventory(timer),
            Err(error) => Inventory {
                nvml_path: library.as_ref().ok().map(|library| library.path().into()),
                error: Some(error.clone()),
                ..Inventory::default()
            },
        };
        self.install(epoch, library.ok(), opened.ok(), inventory)
    }

    /// The GPUs have changed: looks at all of them again, after a new initialisation where the old one is void.
    #[allow(clippy::option_option, reason = "as in `open`")]
    fn reopen(&self, epoch: u32, timer: &CallTimer, session: &Session) -> Option<Option<Arc<Session>>> {
        if session.is_driver_unloaded(timer) {
            let library = session.close(timer);
            return self.open(epoch, timer, Some(library));
        }
        let reopened = Arc::new(session.reopened(timer, &self.xids));
        let inventory = reopened.inventory(timer);
        self.install(epoch, None, Some(reopened), inventory)
    }

    #[allow(clippy::option_option, reason = "as in `open`")]
    fn install(
        &self,
        epoch: u32,
        library: Option<&'static Library>,
        session: Option<Arc<Session>>,
        mut inventory: Inventory,
    ) -> Option<Option<Arc<Session>>> {
        let mut state = self.lock();
        if state.epoch != epoch {
            return None;
        }
        inventory.generation = state.inventory.generation;
        if inventory.generation == 0 || inventory != state.inventory {
            inventory.generation += 1;
        }
        state.inventory = inventory;
        state.library = library.or(state.library);
        state.slots.clear();
        state.slots.resize_with(session.as_ref().map_or(0, |session| session.devices()), DeviceSlot::default);
        state.session.clone_from(&session);
        Some(session)
    }
}

/// What a worker is to do in a round.
struct RoundRequest {
    round: u64,
    slow: bool,
    check_inventory: bool,
    library: Option<&'static Library>,
    session: Option<Arc<Session>>,
}

fn start_worker(shared: &Arc<Shared>, epoch: u32, timer: Arc<CallTimer>) -> io::Result<()> {
    let shared = Arc::clone(shared);
    spawn_thread("nvml", STACK_BYTES, Box::new(move || run_worker(&shared, epoch, &timer)))
}

/// Waits for orders and carries them out, until another worker has taken over or the process ends.
fn run_worker(shared: &Shared, epoch: u32, timer: &Arc<CallTimer>) {
    let mut buffer = Vec::with_capacity(512);
    let mut state = shared.lock();
    while state.epoch == epoch && state.stop_request == StopRequest::None {
        if state.requested_round == state.finished_round || (state.session.is_none() && !state.slow) {
            if state.requested_round != state.finished_round {
                // Without a driver nothing is tried but in the slow rounds.
                state.finished_round = state.requested_round;
                shared.condvar.notify_all();
            }
            state = shared.condvar.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let request = RoundRequest {
            round: state.requested_round,
            slow: state.slow,
            check_inventory: state.slow && state.stuck_workers.is_empty(),
            library: state.library,
            session: state.session.clone(),
        };
        state.busy = true;
        drop(state);
        let done = shared.run_round(epoch, timer, &mut buffer, &request);
        state = shared.lock();
        if state.epoch == epoch {
            state.busy = false;
            if done.is_some() {
                state.finished_round = request.round;
            }
            // Whoever waits finds the lock free.
            drop(state);
            shared.condvar.notify_all();
            state = shared.lock();
        }
    }
    state.stuck_workers.retain(|stuck| !Arc::ptr_eq(stuck, timer));
    if state.stop_request == StopRequest::ShutDown && state.epoch == epoch && state.stuck_workers.is_empty() {
        let session = state.session.clone();
        drop(state);
        if let Some(session) = session {
            session.close(timer);
        }
        state = shared.lock();
        state.session = None;
    }
    drop(state);
    shared.condvar.notify_all();
}

/// A call that runs this long is not waited for: the snapshot goes without.
const CALL_WAIT: Duration = Duration::from_secs(1);
/// A call that runs this long hangs: its worker is left behind.
const HANG_AFTER: Duration = Duration::from_secs(3);

/// What one round of sampling gave.
#[derive(Debug, Default)]
pub(crate) struct DriverSample {
    /// The generation whose order `devices` follows.
    pub(crate) generation: u32,
    /// The inventory, when it changed since the previous frame.
    pub(crate) inventory: Option<Inventory>,
    /// One entry a GPU, in inventory order.
    pub(crate) devices: Vec<DeviceSample>,
    /// Why the driver as a whole gives nothing now.
    pub(crate) error: Option<DriverError>,
    /// Xids since the previous frame.
    pub(crate) xids: Vec<Xid>,
    /// What the driver did that no driver should, told once.
    pub(crate) notes: Vec<SafeText>,
}

/// What the threads tell each other.
struct WorkerState {
    /// The worker in charge. Older ones end when they find out.
    epoch: u32,
    timer: Arc<CallTimer>,
    busy: bool,
    stop_request: StopRequest,
    requested_round: u64,
    finished_round: u64,
    /// Whether the round that is asked for reads what rarely changes as well.
    slow: bool,
    library: Option<&'static Library>,
    session: Option<Arc<Session>>,
    inventory: Inventory,
    slots: Vec<DeviceSlot>,
    /// Workers that hang, each on one GPU.
    stuck_workers: Vec<Arc<CallTimer>>,
}

/// Whether the process is about to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopRequest {
    None,
    /// No further GPU is read.
    Stop,
    /// The same, and the worker in charge shuts NVML down.
    ShutDown,
}

#[derive(Default)]
struct DeviceSlot {
    round: u64,
    sample: DeviceSample,
}

impl WorkerState {
    /// Before anything was asked; the first worker is watched through `timer`.
    fn new(timer: Arc<CallTimer>) -> Self {
        Self {
            epoch: 0,
            timer,
            busy: false,
            stop_request: StopRequest::None,
            requested_round: 0,
            finished_round: 0,
            slow: true,
            library: None,
            session: None,
            inventory: Inventory::default(),
            slots: Vec::new(),
            stuck_workers: Vec::new(),
        }
    }

    /// What there is now: readings of this round, and for the other GPUs since when they have been blocked.
    fn take_sample(&mut self) -> DriverSample {
        let round = self.requested_round;
        let in_flight = if self.finished_round == self.requested_round { None } else { self.timer.call_age() };
        let mut devices: Vec<DeviceSample> = self
            .slots
            .iter_mut()
            .map(|slot| if slot.round == round { std::mem::take(&mut slot.sample) } else { DeviceSample::default() })
            .collect();
        let mut hanging_devices = 0;
        let calls = self.stuck_workers.iter().map(|timer| (timer.device(), timer.call_age()));
        for (device, age) in calls.chain([(self.timer.device(), in_flight)]) {
            let Some((age, sample)) = age.zip(device.and_then(|device| devices.get_mut(device))) else { continue };
            if age >= CALL_WAIT {
                let seconds = round_to_tenth_f32(age.as_secs_f64());
                sample.reading.blocked_seconds = Some(seconds);
                if age >= HANG_AFTER {
                    sample.reading.error = Some(messages::device_blocked(seconds));
                    hanging_devices += 1;
                }
            }
        }
        let driver_hang =
            in_flight.filter(|&age| age >= HANG_AFTER && (self.timer.device().is_none() || hanging_devices > 1));
        let error = driver_hang.map(|age| messages::driver_blocked(age.as_secs_f32()));
        // Before the first answer the inventory is where a person looks for the reason.
        if self.session.is_none() && error.is_some() && self.inventory.error.is_none() {
            self.inventory.error.clone_from(&error);
            self.inventory.generation += 1;
        }
        DriverSample { generation: self.inventory.generation, devices, error, ..DriverSample::default() }
    }

    /// What there is while another probe of this user hangs in the driver: nothing, and why.
    fn suspended_sample(&mut self, pid: u32) -> DriverSample {
        let error = messages::peer_waits(pid);
        if self.session.is_none() && self.inventory.error.as_ref() != Some(&error) {
            self.inventory.error = Some(error.clone());
            self.inventory.generation += 1;
        }
        let mut devices = Vec::new();
        devices.resize_with(self.slots.len(), DeviceSample::default);
        DriverSample { generation: self.inventory.generation, devices, error: Some(error), ..DriverSample::default() }
    }

    /// The age of the oldest call that has not come back.
    fn oldest_call(&self) -> Option<Duration> {
        let stuck_workers = self.stuck_workers.iter().map(|timer| timer.call_age());
        stuck_workers.chain([self.timer.call_age()]).flatten().max()
    }
}
