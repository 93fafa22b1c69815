//! Threads for work that may block forever: reads on a dead file server, or of `/proc/PID/cmdline` of a process that
//! hangs in the kernel with its memory lock held.
//!
//! The sampling thread hands work over and takes the result in a later sample; it never waits. One thread does all the
//! work and sleeps in between. If the queue does not move for a second, [`BlockingPool::tend`] starts another thread,
//! up to [`MAX_THREADS`]. A blocked thread that returns later ends if another one is idle.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A blocked thread stays until its call returns, so their number is limited.
pub(crate) const MAX_THREADS: usize = 8;
/// The maximum length of the queue. It is reached only when all threads are blocked.
const MAX_WAITING: usize = 1024;
/// If the queue does not move for this long, all threads are blocked.
const STUCK: Duration = Duration::from_secs(1);
/// Stack of each thread; untouched pages cost nothing.
pub(crate) const STACK_BYTES: usize = 128 * 1024;

type Task = Box<dyn FnOnce() + Send>;

/// Starts a thread. All threads of the probe start here, except the one that enters a network namespace, which its caller joins:
/// every other closure type that `spawn` is compiled for adds 2 kB to the binary.
pub(crate) fn spawn_thread(name: &str, stack_bytes: usize, work: Task) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).stack_size(stack_bytes).spawn(work).map(drop)
}

/// Starts threads for work that may block, at most `limit` at a time. Clones share the count.
#[derive(Debug, Clone)]
pub(crate) struct ThreadLimit {
    running: Arc<AtomicUsize>,
    limit: usize,
}

impl ThreadLimit {
    pub(crate) fn new(limit: usize) -> Self {
        Self { running: Arc::default(), limit }
    }

    /// Starts a thread. Returns whether it was started: there may be too many.
    pub(crate) fn spawn(&self, work: Task) -> bool {
        let running = Arc::clone(&self.running);
        let is_free = running.fetch_add(1, Ordering::Relaxed) < self.limit;
        let counted = move || {
            work();
            running.fetch_sub(1, Ordering::Relaxed);
        };
        let is_started = is_free && spawn_thread("examine", STACK_BYTES, Box::new(counted)).is_ok();
        if !is_started {
            self.running.fetch_sub(1, Ordering::Relaxed);
        }
        is_started
    }
}

/// A queue of work and its threads. Clones share both.
#[derive(Clone)]
pub(crate) struct BlockingPool(Arc<Queue>);

struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    waiting: Vec<Task>,
    threads: usize,
    idle: usize,
    /// When the queue last moved: work was taken from it, or added to the empty queue.
    moved: Instant,
}

/// A result that may not exist yet.
#[derive(Debug)]
pub(crate) struct Pending<T>(Arc<Mutex<Option<T>>>);

impl<T> Pending<T> {
    pub(crate) fn is_ready(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Takes the result out of `pending` if it exists.
    pub(crate) fn take(pending: &mut Option<Self>) -> Option<T> {
        let result = pending.as_ref()?.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        *pending = None;
        Some(result)
    }
}

impl BlockingPool {
    /// A pool without threads; the first work starts one.
    pub(crate) fn new() -> Self {
        let state = State { waiting: Vec::new(), threads: 0, idle: 0, moved: Instant::now() };
        Self(Arc::new(Queue { state: Mutex::new(state), changed: Condvar::new() }))
    }

    /// Queues work. Returns `None` if the queue is full or no thread can be started.
    pub(crate) fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<Pending<T>> {
        let slot = Arc::new(Mutex::new(None));
        let result = Arc::clone(&slot);
        let task = Box::new(move || {
            let value = work();
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        });
        self.push(task).then_some(Pending(slot))
    }

    fn push(&self, task: Task) -> bool {
        let mut state = self.0.lock();
        if state.waiting.len() >= MAX_WAITING || (state.threads == 0 && !self.start_thread(&mut state)) {
            return false;
        }
        if state.waiting.is_empty() {
            state.moved = Instant::now();
        }
        state.waiting.push(task);
        drop(state);
        self.0.changed.notify_all();
        true
    }

    /// Starts another thread if all threads are blocked. Call this in each sample.
    pub(crate) fn tend(&self) {
        self.tend_locked(&mut self.0.lock());
    }

    fn tend_locked(&self, state: &mut State) {
        if !state.waiting.is_empty() && state.threads < MAX_THREADS && state.moved.elapsed() >= STUCK {
            self.start_thread(state);
        }
    }

    fn start_thread(&self, state: &mut State) -> bool {
        let queue = Arc::clone(&self.0);
        let is_started = spawn_thread("blocking", STACK_BYTES, Box::new(move || queue.serve())).is_ok();
        state.threads += usize::from(is_started);
        state.moved = Instant::now();
        is_started
    }

    /// Waits until all work is done, at most until `deadline`. Returns whether there was any.
    pub(crate) fn wait_until_idle(&self, deadline: Instant) -> bool {
        let mut waited = false;
        let mut state = self.0.lock();
        while !state.waiting.is_empty() || state.idle < state.threads {
            waited = true;
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                break;
            }
            state = self.0.changed.wait_timeout(state, rest.min(STUCK)).unwrap_or_else(PoisonError::into_inner).0;
            self.tend_locked(&mut state);
        }
        waited
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if !state.waiting.is_empty() {
                let task = state.waiting.remove(0);
                state.moved = Instant::now();
                drop(state);
                task();
                state = self.lock();
            } else if state.idle > 0 {
                state.threads -= 1;
                self.changed.notify_all();
                return;
            } else {
                state.idle += 1;
                self.changed.notify_all();
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

impl fmt::Debug for BlockingPool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("BlockingPool")
    }
}

/// Blocks `threads` threads until the sender is dropped, like calls on a dead file server.
#[cfg(test)]
pub(crate) fn block(pool: &BlockingPool, threads: usize) -> std::sync::mpsc::Sender<()> {
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    for _ in 0..threads {
        let blocked = Arc::clone(&blocked);
        pool.run(move || blocked.lock().is_ok_and(|blocked| blocked.recv().is_err())).expect("it is taken");
    }
    release
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    #[test]
    fn one_thread_does_all_work() {
        let pool = BlockingPool::new();
        assert!(!pool.wait_until_idle(soon()), "there is no work");
        for number in 0..100 {
            let mut pending = pool.run(move || number);
            pool.wait_until_idle(soon());
            assert_eq!(Pending::take(&mut pending), Some(number));
            assert!(pending.is_none());
        }
        let state = pool.0.lock();
        assert_eq!((state.threads, state.idle), (1, 1));
    }

    #[test]
    fn blocked_work_does_not_delay_other_work() {
        let pool = BlockingPool::new();
        let release = block(&pool, 1);
        let mut pending = pool.run(|| 7);
        let deadline = soon();
        let mut result = None;
        while result.is_none() && Instant::now() < deadline {
            pool.tend();
            result = Pending::take(&mut pending);
            std::thread::yield_now();
        }
        assert_eq!((result, pool.0.lock().threads), (Some(7), 2));
        drop(release);
        pool.wait_until_idle(soon());
        assert_eq!(pool.0.lock().threads, 1, "the surplus thread ends");
    }

    #[test]
    fn no_thread_starts_beyond_the_limit() {
        let limit = ThreadLimit::new(2);
        let (release, blocked) = std::sync::mpsc::channel::<()>();
        let blocked = Arc::new(Mutex::new(blocked));
        let start = || {
            let blocked = Arc::clone(&blocked);
            limit.spawn(Box::new(move || drop(blocked.lock().map(|blocked| blocked.recv()))))
        };
        assert_eq!([start(), start(), start(), start()], [true, true, false, false]);
        drop(release);
        while !start() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn threads_and_queue_are_limited() {
        let pool = BlockingPool::new();
        let release = block(&pool, MAX_THREADS + 1);
        for _ in 0..2 * MAX_THREADS {
            let mut state = pool.0.lock();
            state.moved -= STUCK;
            pool.tend_locked(&mut state);
        }
        assert_eq!(pool.0.lock().threads, MAX_THREADS);
        let taken = (0..2 * MAX_WAITING).filter(|_| pool.run(|| ()).is_some()).count();
        assert!(taken <= MAX_WAITING, "{taken}");
        drop(release);
        pool.wait_until_idle(soon());
        assert!(pool.0.lock().waiting.is_empty());
    }
}
