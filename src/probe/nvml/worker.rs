//! NVML calls run on a worker, since any of them may hang. A worker that does is left behind with the GPU it hangs on,
//! and a new one goes on with the others; whoever waits for readings never waits for the driver.

use super::beside::Mark;
use super::board::{Board, Ending, Frame, HANGS, PATIENCE, Slot};
use super::raw::{Code, Library, Oddities};
use super::session::{Session, load};
use super::watch::Watch;
use super::xids::Queue;
use crate::probe::blocking::spawn_thread;
use crate::wire::{Inventory, SafeText};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A call that runs this long keeps the other probes of this user away from the driver.
const MARKED: Duration = Duration::from_secs(5);
/// How often others' marks are looked for while there is none. A mark tells of a call that has hung for [`MARKED`] already,
/// so that a look before each round would keep hardly any call of ours from hanging.
const LOOK_EVERY: Duration = Duration::from_millis(5500);
/// The longest wait for a round of calls each of which is quick.
const LONGEST_ROUND: Duration = Duration::from_secs(5);
/// NVML runs on this stack; pages that are not touched cost nothing.
const STACK_BYTES: usize = 1 << 20;

/// The driver, seen from the thread that wants readings.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    /// The generation that was handed out last.
    handed_out: u32,
    mark: Mark,
    /// When others' marks were looked for, and nobody had left one.
    was_alone: Option<Instant>,
}

/// Lets another thread end the process without cutting a call in two.
#[derive(Clone)]
pub(crate) struct Settler(Arc<Shared>);

struct Shared {
    board: Mutex<Board>,
    /// Rings when a round is asked for, a round is finished, or a worker comes to rest.
    bell: Condvar,
    origin: Instant,
    chosen: Option<String>,
    xids: Arc<Queue>,
}

impl Driver {
    /// Starts the first worker. `chosen` is a library to load in place of the usual ones, `marks` a directory for marks
    /// in place of the usual ones.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(chosen: Option<String>, marks: Option<&str>) -> io::Result<Self> {
        let watch = Arc::new(Watch::new());
        let shared = Arc::new(Shared {
            board: Mutex::new(Board::new(Arc::clone(&watch))),
            bell: Condvar::new(),
            origin: Instant::now(),
            chosen,
            xids: Arc::default(),
        });
        start_worker(&shared, 0, watch)?;
        Ok(Self { shared, handed_out: 0, mark: Mark::new(marks), was_alone: None })
    }

    /// For the thread that ends the process.
    pub(crate) fn settler(&self) -> Settler {
        Settler(Arc::clone(&self.shared))
    }

    /// The inventory is to be handed out again with the next frame.
    pub(crate) fn resend(&mut self) {
        self.handed_out = 0;
    }

    /// Asks for a round and waits for it, but for no call that is a second old. GPUs that were not read in time have
    /// empty readings and say for how long they have been blocked.
    pub(crate) fn refresh(&mut self, slow: bool) -> Frame {
        let other = self.other();
        self.shared.xids.pause(other.is_some());
        if let Some(pid) = other {
            let frame = self.shared.lock().set_aside(pid);
            return self.handed_out(frame);
        }
        let mut board = self.shared.lock();
        if board.finished == board.asked {
            board.asked += 1;
            board.slow = slow;
            drop(board);
            self.shared.bell.notify_all();
            board = self.shared.lock();
        }
        let deadline = Instant::now() + LONGEST_ROUND;
        while board.finished != board.asked && Instant::now() < deadline {
            let age = board.watch.call_age().unwrap_or_default();
            if age >= HANGS {
                if !self.shared.replace_worker(&mut board) {
                    break;
                }
            } else if age >= PATIENCE {
                break;
            }
            let wait = PATIENCE.saturating_sub(board.watch.call_age().unwrap_or_default());
            let waited = self.shared.bell.wait_timeout(board, wait.max(Duration::from_millis(1)));
            board = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut frame = board.frame();
        let oddities = board.library.map(Library::oddities);
        drop(board);
        frame.notes.extend(oddities.into_iter().flat_map(Oddities::take).map(SafeText::from));
        let (xids, more) = self.shared.xids.take();
        frame.xids = xids;
        if more > 0 {
            frame.notes.push(format!("{more} more Xid events came than are passed on at once").into());
        }
        self.keep_watch();
        self.handed_out(frame)
    }

    /// Another process of this user that hangs in NVML, as far as that has been seen.
    fn other(&mut self) -> Option<u32> {
        let now = Instant::now();
        if self.was_alone.is_some_and(|then| now < then + LOOK_EVERY) {
            return None;
        }
        let other = self.mark.other();
        self.was_alone = other.is_none().then_some(now);
        other
    }

    /// Whether a call has not come back. Then [`Driver::keep_watch`] is to be called about every second.
    pub(crate) fn is_waiting(&self) -> bool {
        self.shared.lock().oldest_call().is_some()
    }

    /// Tells the other probes of this user when a call hangs, and when it came back.
    pub(crate) fn keep_watch(&mut self) {
        let hangs = self.shared.lock().oldest_call().is_some_and(|age| age >= MARKED);
        if hangs { self.mark.raise() } else { self.mark.lower() }
    }

    fn handed_out(&mut self, mut frame: Frame) -> Frame {
        if frame.generation != self.handed_out {
            self.handed_out = frame.generation;
            frame.inventory = Some(self.shared.lock().inventory.clone());
        }
        frame
    }
}

impl Settler {
    /// Shuts NVML down, so that an administrator can reset a GPU. It takes a few seconds at most: where a call hangs,
    /// the driver is left as it is.
    pub(crate) fn shut_down(&self, limit: Duration) {
        self.0.lock().ending = Ending::ShutDown;
        let deadline = Instant::now() + limit;
        self.settle(limit);
        let mut board = self.0.lock();
        while board.session.is_some() && board.left_behind.is_empty() {
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return;
            }
            board = self.0.bell.wait_timeout(board, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Lets no further GPU be read, and waits until the one that is being read is done, at most this long.
    pub(crate) fn settle(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut board = self.0.lock();
        if board.ending == Ending::No {
            board.ending = Ending::Stop;
        }
        self.0.bell.notify_all();
        while board.busy {
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return;
            }
            board = self.0.bell.wait_timeout(board, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the worker behind that hangs on one GPU, and starts another for the rest. There are never more of them
    /// than GPUs and one; a call that hangs on the driver as a whole is left alone, since a second would hang as well.
    fn replace_worker(self: &Arc<Self>, board: &mut Board) -> bool {
        let devices = board.session.as_ref().map_or(0, |session| session.devices());
        if board.watch.device().is_none() || board.left_behind.len() >= devices {
            return false;
        }
        let watch = Arc::new(Watch::new());
        if start_worker(self, board.epoch + 1, Arc::clone(&watch)).is_err() {
            return false;
        }
        board.epoch += 1;
        board.left_behind.push(std::mem::replace(&mut board.watch, watch));
        true
    }

    /// One round: the session is opened or looked over, then each GPU is read. `None` when this worker has been
    /// replaced meanwhile.
    fn round(&self, epoch: u32, watch: &Watch, words: &mut Vec<u64>, order: &Order) -> Option<()> {
        let session = match &order.session {
            Some(session) if order.look_over => {
                let lost = session.inventory_is_stale(watch);
                if lost { self.reopen(epoch, watch, session)? } else { Some(Arc::clone(session)) }
            }
            Some(session) => Some(Arc::clone(session)),
            None => self.open(epoch, watch, order.library)?,
        };
        let Some(session) = session else { return Some(()) };
        for position in 0..session.devices() {
            let now = self.origin.elapsed().as_secs_f64();
            let sample = session.sample(position, watch, words, now, order.slow);
            let mut board = self.lock();
            if board.epoch != epoch || board.ending != Ending::No {
                return None;
            }
            if let (Some(sample), Some(slot)) = (sample, board.slots.get_mut(position)) {
                *slot = Slot { round: order.round, sample };
            }
        }
        Some(())
    }

    /// Loads the library and initialises it. `Some(None)` when that fails, with the reason in the inventory.
    #[allow(clippy::option_option, reason = "outside: still in charge; inside: there is a driver")]
    fn open(&self, epoch: u32, watch: &Watch, library: Option<&'static Library>) -> Option<Option<Arc<Session>>> {
        watch.concerns(None);
        let library = library.map_or_else(|| load(self.chosen.as_deref()), Ok);
        let opened = library.clone().and_then(|library| Session::open(library, watch, &self.xids)).map(Arc::new);
        let inventory = match &opened {
            Ok(session) => session.inventory(watch),
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
    fn reopen(&self, epoch: u32, watch: &Watch, session: &Session) -> Option<Option<Arc<Session>>> {
        if session.is_void(watch) {
            let library = session.close(watch);
            return self.open(epoch, watch, Some(library));
        }
        let renewed = Arc::new(session.renewed(watch, &self.xids));
        let inventory = renewed.inventory(watch);
        self.install(epoch, None, Some(renewed), inventory)
    }

    #[allow(clippy::option_option, reason = "as in `open`")]
    fn install(
        &self,
        epoch: u32,
        library: Option<&'static Library>,
        session: Option<Arc<Session>>,
        mut inventory: Inventory,
    ) -> Option<Option<Arc<Session>>> {
        let mut board = self.lock();
        if board.epoch != epoch {
            return None;
        }
        inventory.generation = board.inventory.generation;
        if inventory.generation == 0 || inventory != board.inventory {
            inventory.generation += 1;
        }
        board.inventory = inventory;
        board.library = library.or(board.library);
        board.slots.clear();
        board.slots.resize_with(session.as_ref().map_or(0, |session| session.devices()), Slot::default);
        board.session.clone_from(&session);
        Some(session)
    }
}

/// What a worker is to do in a round.
struct Order {
    round: u64,
    slow: bool,
    look_over: bool,
    library: Option<&'static Library>,
    session: Option<Arc<Session>>,
}

fn start_worker(shared: &Arc<Shared>, epoch: u32, watch: Arc<Watch>) -> io::Result<()> {
    let shared = Arc::clone(shared);
    spawn_thread("nvml", STACK_BYTES, Box::new(move || work(&shared, epoch, &watch)))
}

/// Waits for orders and carries them out, until another worker has taken over or the process ends.
fn work(shared: &Shared, epoch: u32, watch: &Arc<Watch>) {
    let mut words = Vec::with_capacity(512);
    let mut board = shared.lock();
    while board.epoch == epoch && board.ending == Ending::No {
        if board.asked == board.finished || (board.session.is_none() && !board.slow) {
            if board.asked != board.finished {
                // Without a driver nothing is tried but in the slow rounds.
                board.finished = board.asked;
                shared.bell.notify_all();
            }
            board = shared.bell.wait(board).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let order = Order {
            round: board.asked,
            slow: board.slow,
            look_over: board.slow && board.left_behind.is_empty(),
            library: board.library,
            session: board.session.clone(),
        };
        board.busy = true;
        drop(board);
        let done = shared.round(epoch, watch, &mut words, &order);
        board = shared.lock();
        if board.epoch == epoch {
            board.busy = false;
            if done.is_some() {
                board.finished = order.round;
            }
            // Whoever waits finds the lock free.
            drop(board);
            shared.bell.notify_all();
            board = shared.lock();
        }
    }
    board.left_behind.retain(|left| !Arc::ptr_eq(left, watch));
    if board.ending == Ending::ShutDown && board.epoch == epoch && board.left_behind.is_empty() {
        let session = board.session.clone();
        drop(board);
        if let Some(session) = session {
            session.close(watch);
        }
        board = shared.lock();
        board.session = None;
    }
    drop(board);
    shared.bell.notify_all();
}

/// Whether an error means that the initialisation itself is void.
pub(super) fn is_void(code: Code) -> bool {
    matches!(code, Code::UNINITIALIZED | Code::DRIVER_NOT_LOADED)
}
