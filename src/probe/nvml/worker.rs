//! The driver worker: the thread that makes the NVML calls, because any of them may hang. A worker that hangs is left
//! behind with its GPU and a new one reads the other GPUs, so the sampling thread never waits for the driver.

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

/// A call of this age keeps the other probes of this user away from the driver.
const LOCK_AFTER: Duration = Duration::from_secs(5);
/// The time between checks for peer hang locks while there is none. A lock means that a call has hung for
/// [`LOCK_AFTER`] already, so checking before every round would hardly prevent a hang.
const PEER_CHECK_PERIOD: Duration = Duration::from_millis(5500);
/// The maximum wait for a round in which every single call is quick.
const MAX_ROUND: Duration = Duration::from_secs(5);
/// NVML runs on this stack; untouched pages cost nothing.
const STACK_BYTES: usize = 1 << 20;

/// The driver as the sampling thread sees it.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    /// The generation of the inventory that was returned last.
    sent_generation: u32,
    hang_lock: PeerHangLock,
    /// The time of the last check that found no peer hang lock.
    no_peer_at: Option<Instant>,
}

/// Ends the process from another thread without interrupting an NVML call.
#[derive(Clone)]
pub(crate) struct ShutdownHandle(Arc<Shared>);

struct Shared {
    state: Mutex<WorkerState>,
    /// Notified when a round is requested or finished and when a worker becomes idle.
    condvar: Condvar,
    origin: Instant,
    library_path: Option<String>,
    xids: Arc<XidQueue>,
}

impl Driver {
    /// Starts the first worker. `library_path` and `hang_lock_dir` replace the default paths.
    ///
    /// # Errors
    /// If no thread can be started.
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

    pub(crate) fn shutdown_handle(&self) -> ShutdownHandle {
        ShutdownHandle(Arc::clone(&self.shared))
    }

    /// Makes the next sample include the inventory.
    pub(crate) fn resend(&mut self) {
        self.sent_generation = 0;
    }

    /// Requests a round and waits for it, but not for a call that is older than a second. GPUs that were not read in
    /// time have empty readings and the age of the call that blocks them.
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
            driver_sample.notes.push(format!("{more} more Xid events were left out").into());
        }
        self.update_hang_lock();
        self.with_inventory(driver_sample)
    }

    /// Returns the pid of another process of this user that hangs in NVML, checked every [`PEER_CHECK_PERIOD`].
    fn peer(&mut self) -> Option<u32> {
        let now = Instant::now();
        if self.no_peer_at.is_some_and(|checked_at| now < checked_at + PEER_CHECK_PERIOD) {
            return None;
        }
        let peer = self.hang_lock.peer();
        self.no_peer_at = peer.is_none().then_some(now);
        peer
    }

    /// Whether a call is in flight. If so, call [`Driver::update_hang_lock`] about every second.
    pub(crate) fn has_pending_call(&self) -> bool {
        self.shared.lock().oldest_call().is_some()
    }

    /// Takes the hang lock while a call hangs and releases it when the call returns.
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
    /// Shuts NVML down, so that an administrator can reset a GPU. Gives up after a few seconds: if a call hangs, NVML
    /// stays initialized.
    pub(crate) fn shut_down(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        self.0.lock().stop_request = StopRequest::ShutDown;
        self.stop(limit);
        let remaining = deadline.saturating_duration_since(Instant::now());
        self.0.wait_while(remaining, |state| state.session.is_some() && state.stuck_workers.is_empty());
    }

    /// Stops reading further GPUs and waits for the one in progress, at most `limit`.
    pub(crate) fn stop(&self, limit: Duration) {
        let mut state = self.0.lock();
        if state.stop_request == StopRequest::None {
            state.stop_request = StopRequest::Stop;
        }
        drop(state);
        self.0.condvar.notify_all();
        self.0.wait_while(limit, |state| state.busy);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, WorkerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while `condition` holds, at most `limit`.
    fn wait_while(&self, limit: Duration, condition: fn(&mut WorkerState) -> bool) {
        drop(self.condvar.wait_timeout_while(self.lock(), limit, condition));
    }

    /// Leaves a worker behind that hangs on one GPU, and starts another for the rest. There are at most as many workers
    /// as GPUs plus one. A call that hangs for the whole driver gets no new worker, since that would hang as well.
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

    /// Runs one round: opens or checks the session, then reads each GPU. Fails if this worker has been replaced.
    fn run_round(
        &self,
        epoch: u32,
        timer: &CallTimer,
        buffer: &mut Vec<u64>,
        request: &RoundRequest,
    ) -> Result<(), Replaced> {
        let session = match &request.session {
            None => self.open(epoch, timer, request.library)?,
            Some(session) if request.check_inventory && session.inventory_is_stale(timer) => {
                self.reopen(epoch, timer, session)?
            }
            Some(session) => Some(Arc::clone(session)),
        };
        let Some(session) = session else { return Ok(()) };
        for position in 0..session.devices() {
            let now = self.origin.elapsed().as_secs_f64();
            let sample = session.sample(position, timer, buffer, now, request.slow);
            let mut state = self.lock();
            if state.epoch != epoch || state.stop_request != StopRequest::None {
                return Err(Replaced);
            }
            if let (Some(sample), Some(slot)) = (sample, state.slots.get_mut(position)) {
                *slot = DeviceSlot { round: request.round, sample };
            }
        }
        Ok(())
    }

    /// Loads the library and initializes NVML. Returns `None` if that fails; the inventory then has the error.
    fn open(
        &self,
        epoch: u32,
        timer: &CallTimer,
        library: Option<&'static Library>,
    ) -> Result<Option<Arc<Session>>, Replaced> {
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

    /// Opens all GPUs again after they changed, and initializes NVML again if the driver was unloaded.
    fn reopen(&self, epoch: u32, timer: &CallTimer, session: &Session) -> Result<Option<Arc<Session>>, Replaced> {
        if session.is_driver_unloaded(timer) {
            let library = session.close(timer);
            return self.open(epoch, timer, Some(library));
        }
        let reopened = Arc::new(session.reopened(timer, &self.xids));
        let inventory = reopened.inventory(timer);
        self.install(epoch, None, Some(reopened), inventory)
    }

    fn install(
        &self,
        epoch: u32,
        library: Option<&'static Library>,
        session: Option<Arc<Session>>,
        mut inventory: Inventory,
    ) -> Result<Option<Arc<Session>>, Replaced> {
        let mut state = self.lock();
        if state.epoch != epoch {
            return Err(Replaced);
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
        Ok(session)
    }
}

/// Another worker has replaced this one, or the process is about to end.
struct Replaced;

/// The work of one round.
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

/// Runs the requested rounds until another worker replaces this one or the process ends.
fn run_worker(shared: &Shared, epoch: u32, timer: &Arc<CallTimer>) {
    let mut buffer = Vec::with_capacity(512);
    let mut state = shared.lock();
    while state.epoch == epoch && state.stop_request == StopRequest::None {
        if state.requested_round == state.finished_round || (state.session.is_none() && !state.slow) {
            if state.requested_round != state.finished_round {
                // Without a driver, only slow rounds try again.
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
            if done.is_ok() {
                state.finished_round = request.round;
            }
            // Unlock first, so that the waiting thread finds the lock free.
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

/// A call of this age is not waited for: the snapshot leaves its GPU out.
const CALL_WAIT: Duration = Duration::from_secs(1);
/// A call of this age hangs: its worker is left behind.
const HANG_AFTER: Duration = Duration::from_secs(3);

/// The result of one round.
#[derive(Debug, Default)]
pub(crate) struct DriverSample {
    /// The generation of the inventory whose order `devices` follows.
    pub(crate) generation: u32,
    /// The inventory, if it changed since the previous sample.
    pub(crate) inventory: Option<Inventory>,
    /// One entry per GPU, in inventory order.
    pub(crate) devices: Vec<DeviceSample>,
    /// The error of the driver as a whole.
    pub(crate) error: Option<DriverError>,
    /// Xid events since the previous sample.
    pub(crate) xids: Vec<Xid>,
    /// Driver anomalies that have not been reported before.
    pub(crate) notes: Vec<SafeText>,
}

/// The state that the workers and the sampling thread share.
struct WorkerState {
    /// The number of the current worker. Older workers end when they see a higher number.
    epoch: u32,
    timer: Arc<CallTimer>,
    busy: bool,
    stop_request: StopRequest,
    requested_round: u64,
    finished_round: u64,
    /// Whether the requested round includes readings that rarely change.
    slow: bool,
    library: Option<&'static Library>,
    session: Option<Arc<Session>>,
    inventory: Inventory,
    slots: Vec<DeviceSlot>,
    /// Call timers of the workers that hang, each on one GPU.
    stuck_workers: Vec<Arc<CallTimer>>,
}

/// Whether and how the process is about to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopRequest {
    None,
    /// No further GPU is read.
    Stop,
    /// No further GPU is read, and the current worker shuts NVML down.
    ShutDown,
}

#[derive(Default)]
struct DeviceSlot {
    round: u64,
    sample: DeviceSample,
}

impl WorkerState {
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

    /// Returns the readings of this round and, for the GPUs without any, the age of the call that blocks them.
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
        // Until the first inventory exists, its `error` field shows the reason.
        if self.session.is_none() && error.is_some() && self.inventory.error.is_none() {
            self.inventory.error.clone_from(&error);
            self.inventory.generation += 1;
        }
        DriverSample { generation: self.inventory.generation, devices, error, ..DriverSample::default() }
    }

    /// The sample while another probe of this user hangs in the driver: no readings, and the error.
    fn suspended_sample(&mut self, pid: u32) -> DriverSample {
        let error = messages::peer_hangs(pid);
        if self.session.is_none() && self.inventory.error.as_ref() != Some(&error) {
            self.inventory.error = Some(error.clone());
            self.inventory.generation += 1;
        }
        let mut devices = Vec::new();
        devices.resize_with(self.slots.len(), DeviceSample::default);
        DriverSample { generation: self.inventory.generation, devices, error: Some(error), ..DriverSample::default() }
    }

    /// The age of the oldest call in flight.
    fn oldest_call(&self) -> Option<Duration> {
        let stuck_workers = self.stuck_workers.iter().map(|timer| timer.call_age());
        stuck_workers.chain([self.timer.call_age()]).flatten().max()
    }
}
