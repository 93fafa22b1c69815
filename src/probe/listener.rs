//! Communication with the controller: the listener reads requests and answers them immediately, [`Control`] hands them
//! to the sampling thread, and [`Output`] writes lines from both threads, and from those that examine a process.

use super::decimal::thousandths;
use super::examine::{Examinations, ExamineRequest, RequestedReading};
use super::policy::{POLICY_CHECK_MIN_AGE, POLICY_CHECK_PERIOD, Policy, PolicyFiles};
use super::process_requests::{ProcessIdentity, SeenProgram, send_signal};
use super::sampler::{MAX_INTERVAL, MIN_INTERVAL, clamp_interval};
use crate::wire::codec::{LineBuffer, decode_json, encode};
use crate::wire::{Message, Reply, ReplyOutcome, Request, SafeText};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::io::{Errno, read, write};
use serde::Deserialize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Without a request for this long the controller is considered dead.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The reason why the listener ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListenerExit {
    /// Standard input was closed.
    InputClosed,
    RequestTimeout(Duration),
    ForbiddenByPolicy(SafeText),
    /// A line exceeds the limit of the codec.
    RequestTooLong,
    /// The output is closed, or the input cannot be read.
    IoError,
}

impl ListenerExit {
    /// The reason that is sent to the controller, if it may still be reading.
    pub(crate) fn farewell(&self) -> Option<SafeText> {
        match self {
            Self::ForbiddenByPolicy(reason) => Some(reason.clone()),
            Self::InputClosed => Some("standard input was closed".into()),
            Self::RequestTimeout(limit) => Some(format!("no request came for {} s", limit.as_secs()).into()),
            Self::RequestTooLong => Some("a request exceeded the line limit".into()),
            Self::IoError => None,
        }
    }
}

/// Rereads the policy files and applies changes.
pub(crate) struct PolicyMonitor {
    policy_files: PolicyFiles,
    current: Policy,
    checked_at: Instant,
    period: Duration,
}

impl PolicyMonitor {
    /// `current` is the policy that was read before the probe started.
    pub(crate) fn new(policy_files: PolicyFiles, current: Policy) -> Self {
        Self { policy_files, current, checked_at: Instant::now(), period: POLICY_CHECK_PERIOD }
    }

    /// Rereads the policy files if that is due, which is sooner right after a request (`is_awake`). Returns the
    /// refusal, if the policy has one.
    fn poll_policy(&mut self, control: &Control, is_awake: bool) -> Option<SafeText> {
        let period = if is_awake { self.period.min(POLICY_CHECK_MIN_AGE) } else { self.period };
        if self.checked_at.elapsed() < period {
            return None;
        }
        self.checked_at = Instant::now();
        let now = self.policy_files.read();
        if now != self.current {
            now.apply_to(control);
            // The next snapshot has the new interval, so that the controller does not take a longer one for silence.
            control.resend();
            self.current = now;
        }
        self.current.refusal.clone()
    }
}

impl Policy {
    /// Sets the minimum interval and queues notes for the user.
    pub(crate) fn apply_to(&self, control: &Control) {
        control.set_min_interval(self.min_interval);
        if let Some(message) = &self.message {
            control.note(format!("from the administrator of this host: {message}"));
        }
        if !self.min_interval.is_zero() {
            let seconds = thousandths(self.min_interval.as_secs_f64());
            control.note(format!("the administrator of this host allows no interval below {seconds} s"));
        }
    }
}

/// Serves requests until there is a reason to end. `request_timeout` is [`REQUEST_TIMEOUT`] outside tests.
pub(crate) fn listen<O: AsFd + Send + Sync + 'static>(
    input: impl AsFd,
    output: &Arc<Output<O>>,
    control: &Control,
    boot_id: Option<&str>,
    policy: &mut PolicyMonitor,
    request_timeout: Duration,
) -> ListenerExit {
    let mut lines = LineBuffer::default();
    let mut bytes = [0_u8; 4096];
    let mut last_request = Instant::now();
    let mut is_awake = false;
    let mut answers = AnswerQueue { output, bytes: Vec::new(), write_lock: None };
    let examinations = Examinations::new();
    loop {
        if answers.write_without_waiting().is_err() {
            return ListenerExit::IoError;
        }
        let Some(remaining) =
            request_timeout.checked_sub(last_request.elapsed()).filter(|remaining| !remaining.is_zero())
        else {
            return ListenerExit::RequestTimeout(request_timeout);
        };
        if let Some(reason) = policy.poll_policy(control, is_awake) {
            return ListenerExit::ForbiddenByPolicy(reason);
        }
        is_awake = false;
        let mut remaining = remaining.min(policy.period.saturating_sub(policy.checked_at.elapsed()));
        if !answers.bytes.is_empty() {
            remaining = remaining.min(FULL_PIPE_DELAY);
        }
        // With too many answers queued, requests stay in the pipe until the request timeout.
        let is_full = answers.bytes.len() > MAX_QUEUED_BYTES;
        let events = if is_full { PollFlags::RDHUP } else { PollFlags::IN };
        let mut fds = [PollFd::from_borrowed_fd(input.as_fd(), events)];
        let timeout = Timespec { tv_sec: remaining.as_secs() as i64, tv_nsec: i64::from(remaining.subsec_nanos()) };
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) if is_full => return ListenerExit::InputClosed,
            Ok(_) => {}
            Err(_) => return ListenerExit::IoError,
        }
        match read(&input, &mut bytes) {
            Ok(0) => return ListenerExit::InputClosed,
            Ok(count) => lines.push(&bytes[..count]),
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(_) => return ListenerExit::IoError,
        }
        loop {
            match lines.next_line() {
                Ok(None) => break,
                Err(_) => return ListenerExit::RequestTooLong,
                Ok(Some(line)) => {
                    last_request = Instant::now();
                    is_awake = true;
                    let send = || -> Box<dyn FnOnce(Message) + Send> {
                        let output = Arc::clone(output);
                        Box::new(move |message| {
                            // The listener ends the probe if the output is closed.
                            let _closed: Result<(), Errno> = output.send(&message);
                        })
                    };
                    let mut examine = |request| examinations.start(request, &policy.current, boot_id, send()).err();
                    if let Some(answer) = handle_request(line, control, boot_id, &mut examine)
                        && let Ok(line) = encode(&answer)
                    {
                        answers.bytes.extend_from_slice(&line);
                    }
                }
            }
        }
    }
}

/// Handles one request line. Returns the answer, if the request has one. `examine` starts a reading that may block, which sends its
/// answer later, and returns an outcome if it is refused.
fn handle_request(
    line: &[u8],
    control: &Control,
    boot_id: Option<&str>,
    examine: &mut dyn FnMut(ExamineRequest) -> Option<ReplyOutcome>,
) -> Option<Message> {
    if line.is_empty() {
        return None;
    }
    let reply = |id, outcome| Some(Message::Reply(Reply { id, outcome }));
    match decode_json(line) {
        Ok(Request::Heartbeat { id, last_sequence }) => {
            if let Some(sequence) = last_sequence {
                control.acknowledge(sequence);
            }
            Some(Message::Echo { id })
        }
        Ok(Request::Interval { seconds, shift_seconds, earlier_slurm_jobs }) => {
            if !earlier_slurm_jobs.is_empty() {
                control.set_earlier_slurm_jobs(earlier_slurm_jobs);
            }
            if let Some((interval, was_clamped)) = clamp_interval(seconds) {
                control.set_interval(interval, shift_seconds.unwrap_or_default());
                if was_clamped {
                    let [seconds, min, used] =
                        [seconds.into(), MIN_INTERVAL.as_secs_f64(), interval.as_secs_f64()].map(thousandths);
                    let max = MAX_INTERVAL.as_secs();
                    control.note(format!("interval {seconds} s is outside {min} to {max} s: {used} s is used"));
                }
            } else {
                let seconds = thousandths(seconds.into());
                control.note(format!("interval {seconds} s is not valid: the interval was not changed"));
            }
            None
        }
        Ok(Request::Resend) => {
            control.resend();
            None
        }
        Ok(Request::Signal { id, boot_id: target_boot_id, pid, start_ticks, name, argv, signal }) => {
            let target = ProcessIdentity { boot_id: &target_boot_id, pid, start_ticks };
            let outcome = send_signal(target, SeenProgram { name: &name, argv: &argv }, signal, boot_id);
            if matches!(outcome, ReplyOutcome::Reused | ReplyOutcome::Refused(_)) {
                // The user looks again: the facts may have changed since they were sent.
                control.resend();
            }
            reply(id, outcome)
        }
        // A file server that does not answer must not delay heartbeats.
        Ok(Request::Environment { id, boot_id, pid, start_ticks }) => {
            let reading = RequestedReading::Environment;
            examine(ExamineRequest { id, boot_id, pid, start_ticks, reading }).and_then(|outcome| reply(id, outcome))
        }
        Ok(Request::LogTail { id, boot_id, pid, start_ticks }) => {
            let reading = RequestedReading::LogTail;
            examine(ExamineRequest { id, boot_id, pid, start_ticks, reading }).and_then(|outcome| reply(id, outcome))
        }
        Ok(Request::Examine { id, boot_id, pid, start_ticks, parts, accept_ras_risk }) => {
            let reading = RequestedReading::Examination { parts, accept_ras_risk };
            examine(ExamineRequest { id, boot_id, pid, start_ticks, reading }).and_then(|outcome| reply(id, outcome))
        }
        Err(error) => {
            control.note(format!("a request was not understood: {error}"));
            // A newer controller waits for an answer to each request with an id.
            let refusal = ReplyOutcome::Refused("this probe does not know the request".into());
            id_of_unknown_request(line).and_then(|id| reply(id, refusal))
        }
    }
}

/// Returns the id of an unknown request: `{"kind":{"id":7,...}}`.
fn id_of_unknown_request(line: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(line).ok()?;
    let (_kind, body) = text.trim().strip_prefix('{')?.split_once(':')?;
    // `from_slice`, as everywhere in the probe: a second input type would take another 6 kB.
    serde_json::from_slice::<RequestId>(body.trim().strip_suffix('}')?.as_bytes()).ok()?.id
}

/// The field that all requests with an answer have.
#[derive(Deserialize)]
struct RequestId {
    id: Option<u64>,
}

/// The maximum number of notes for one snapshot; further ones are dropped.
const MAX_QUEUED_NOTES: usize = 8;

/// The current settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SamplerRequests {
    pub(crate) interval: Duration,
    /// The sequence number of the last snapshot that the controller received.
    pub(crate) acknowledged: Option<u64>,
    pub(crate) resend: bool,
    /// By how many seconds to move the schedule; 0 if it stays.
    pub(crate) shift_seconds: f32,
}

impl SamplerRequests {
    /// Whether there is more to do than waiting.
    fn is_changed(&self, previous: &Self) -> bool {
        self.interval != previous.interval || self.resend || self.shift_seconds != 0.0
    }
}

/// The requested interval, the minimum of the policy, and the settings that result from both.
#[derive(Debug)]
struct RequestedSettings {
    requests: SamplerRequests,
    interval: Duration,
    min: Duration,
    /// Set while the sampling thread waits for an acknowledgement.
    waits_for_acknowledgement: bool,
}

/// Hands settings and notes from the listener to the sampling thread, and wakes it.
#[derive(Debug)]
pub(crate) struct Control {
    settings: Mutex<RequestedSettings>,
    notes: Mutex<Vec<SafeText>>,
    earlier_slurm_jobs: Mutex<Vec<SafeText>>,
    condvar: Condvar,
}

impl Control {
    pub(crate) fn new(interval: Duration) -> Self {
        let requests = SamplerRequests { interval, acknowledged: None, resend: false, shift_seconds: 0.0 };
        let settings = RequestedSettings { requests, interval, min: Duration::ZERO, waits_for_acknowledgement: false };
        Self {
            settings: Mutex::new(settings),
            notes: Mutex::default(),
            earlier_slurm_jobs: Mutex::default(),
            condvar: Condvar::new(),
        }
    }

    /// Records the last snapshot that the controller received. Does not wake a thread that waits for the next sample:
    /// every heartbeat carries an acknowledgement.
    pub(crate) fn acknowledge(&self, sequence: u64) {
        let mut settings = self.lock();
        settings.requests.acknowledged = settings.requests.acknowledged.max(Some(sequence));
        if settings.waits_for_acknowledgement {
            drop(settings);
            self.condvar.notify_all();
        }
    }

    /// Sets the requested interval, and moves the schedule.
    pub(crate) fn set_interval(&self, interval: Duration, shift_seconds: f32) {
        self.update(|settings| {
            settings.interval = interval;
            settings.requests.shift_seconds = shift_seconds;
        });
    }

    /// Sets the minimum interval of the policy.
    pub(crate) fn set_min_interval(&self, min: Duration) {
        self.update(|settings| settings.min = min);
    }

    /// Requests a snapshot with inventory and all facts.
    pub(crate) fn resend(&self) {
        self.update(|settings| settings.requests.resend = true);
    }

    /// Queues a note for the next snapshot.
    pub(crate) fn note(&self, note: String) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < MAX_QUEUED_NOTES {
            notes.push(note.into());
        }
    }

    /// Takes the queued notes.
    pub(crate) fn take_notes(&self) -> Vec<SafeText> {
        std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the Slurm jobs of an earlier connection, for the next sample.
    fn set_earlier_slurm_jobs(&self, jobs: Vec<SafeText>) {
        *self.earlier_slurm_jobs.lock().unwrap_or_else(PoisonError::into_inner) = jobs;
    }

    /// Takes the Slurm jobs of an earlier connection.
    pub(crate) fn take_earlier_slurm_jobs(&self) -> Vec<SafeText> {
        std::mem::take(&mut *self.earlier_slurm_jobs.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the settings and clears the requests that are done once.
    pub(crate) fn take_requests(&self) -> SamplerRequests {
        let mut settings = self.lock();
        let taken = settings.requests;
        settings.requests.resend = false;
        settings.requests.shift_seconds = 0.0;
        taken
    }

    /// Waits until `until`, or until the schedule changes or a resend is requested. Without `until` it waits for a
    /// newer acknowledgement.
    pub(crate) fn wait(&self, previous: &SamplerRequests, until: Option<Instant>) {
        let mut settings = self.lock();
        while !settings.requests.is_changed(previous) {
            let Some(until) = until else {
                if settings.requests.acknowledged != previous.acknowledged {
                    break;
                }
                settings.waits_for_acknowledgement = true;
                settings = self.condvar.wait(settings).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let remaining = until.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                break;
            }
            settings = self.condvar.wait_timeout(settings, remaining).unwrap_or_else(PoisonError::into_inner).0;
        }
        settings.waits_for_acknowledgement = false;
    }

    fn update(&self, change: impl FnOnce(&mut RequestedSettings)) {
        let mut settings = self.lock();
        change(&mut settings);
        settings.requests.interval = settings.interval.max(settings.min);
        drop(settings);
        self.condvar.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, RequestedSettings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The listener stops reading requests when more bytes of answers wait for room in the pipe.
const MAX_QUEUED_BYTES: usize = 64 * 1024;
/// The delay between attempts to write queued answers.
const FULL_PIPE_DELAY: Duration = Duration::from_millis(10);
/// A pipe that is ready has room for this many bytes (`PIPE_BUF`).
const MAX_BYTES_WITHOUT_WAITING: usize = 4096;

/// Answers of the listener that wait for room in the pipe. The listener must never wait there: it ends the probe when
/// standard input is closed or no request comes.
struct AnswerQueue<'a, F> {
    output: &'a Output<F>,
    /// Whole lines, except that a part of the first one may have been written.
    bytes: Vec<u8>,
    /// Held while a line is in progress.
    write_lock: Option<MutexGuard<'a, ()>>,
}

impl<F: AsFd> AnswerQueue<'_, F> {
    fn write_without_waiting(&mut self) -> Result<(), Errno> {
        if !self.bytes.is_empty() && self.write_lock.is_none() {
            self.write_lock = self.output.try_lock();
        }
        while self.write_lock.is_some() && self.output.is_ready() {
            match write(&self.output.file, &self.bytes[..self.bytes.len().min(MAX_BYTES_WITHOUT_WAITING)]) {
                Ok(count) => {
                    self.bytes.copy_within(count.., 0);
                    self.bytes.truncate(self.bytes.len() - count);
                }
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error),
            }
            if self.bytes.is_empty() {
                self.write_lock = None;
            }
        }
        Ok(())
    }
}

/// How long the last message waits for a line in progress.
const LAST_MESSAGE_TIMEOUT: Duration = Duration::from_millis(100);
/// The delay between attempts to take the write lock.
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(1);

/// The pipe to the controller. Each line is written whole, unless the pipe breaks.
#[derive(Debug)]
pub(crate) struct Output<F> {
    file: F,
    write_lock: Mutex<()>,
}

impl<F: AsFd> Output<F> {
    pub(crate) fn new(file: F) -> Self {
        Self { file, write_lock: Mutex::new(()) }
    }

    /// Writes a message, and waits while the pipe is full.
    ///
    /// # Errors
    /// `EPIPE` if the reader is gone.
    pub(crate) fn send(&self, message: &Message) -> Result<(), Errno> {
        // Every wire type has a JSON form. If one had none, only its line would be missing.
        let Ok(line) = encode(message) else { return Ok(()) };
        let _write_lock = self.write_lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.write_all(&line)
    }

    /// Writes a last message if that is possible without waiting for the reader.
    pub(crate) fn send_last(&self, message: &Message) {
        let Some(write_lock) = self.lock_unless_blocked() else { return };
        // The last message is shorter than the room in a pipe that is ready.
        if self.is_ready()
            && let Ok(line) = encode(message)
        {
            let _ignored: Result<(), Errno> = self.write_all(&line);
        }
        drop(write_lock);
    }

    /// Returns whether a short write would not wait.
    fn is_ready(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.file.as_fd(), PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Takes the write lock unless its holder waits for a full pipe. Otherwise a line takes microseconds.
    fn lock_unless_blocked(&self) -> Option<MutexGuard<'_, ()>> {
        let deadline = Instant::now() + LAST_MESSAGE_TIMEOUT;
        loop {
            let write_lock = self.try_lock();
            if write_lock.is_some() || Instant::now() >= deadline {
                return write_lock;
            }
            std::thread::sleep(LOCK_RETRY_DELAY);
        }
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
        match self.write_lock.try_lock() {
            Ok(write_lock) => Some(write_lock),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn write_all(&self, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            match write(&self.file, bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let mut fds = [PollFd::from_borrowed_fd(self.file.as_fd(), PollFlags::OUT)];
                    poll(&mut fds, None).or_else(|error| if error == Errno::INTR { Ok(0) } else { Err(error) })?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::pipe;
    use std::io::{BufRead, BufReader, Read, Write};

    fn no_policy() -> PolicyMonitor {
        let mut policy_files = PolicyFiles::new(None, None);
        let current = policy_files.read();
        PolicyMonitor::new(policy_files, current)
    }

    /// Runs the listener over `requests`, closes its input and returns what it wrote.
    fn run_listener(requests: &str) -> (ListenerExit, Vec<String>, Control) {
        let (input, mut requester) =
            pipe().map(|(reader, writer)| (reader, std::fs::File::from(writer))).expect("pipe");
        let (reader, writer) = pipe().expect("pipe");
        requester.write_all(requests.as_bytes()).expect("writes");
        drop(requester);
        let control = Control::new(Duration::from_secs(2));
        let end =
            listen(input, &Arc::new(Output::new(writer)), &control, Some("b0071d"), &mut no_policy(), REQUEST_TIMEOUT);
        let lines = BufReader::new(std::fs::File::from(reader)).lines().map(|line| line.expect("utf-8")).collect();
        (end, lines, control)
    }

    #[test]
    fn a_heartbeat_is_echoed_and_acknowledges() {
        let (end, lines, control) = run_listener(
            "{\"heartbeat\":{\"id\":1}}\r\n\n{\"heartbeat\":{\"id\":2,\"last_sequence\":9}}\n{\"heartbeat\":{\"id\":3,\"last_s",
        );
        assert_eq!(
            (end, lines),
            (ListenerExit::InputClosed, vec!["{\"echo\":{\"id\":1}}".into(), "{\"echo\":{\"id\":2}}".into()])
        );
        assert_eq!(control.take_requests().acknowledged, Some(9));
    }

    #[test]
    fn an_examination_does_not_delay_heartbeats() {
        let mut job = std::process::Command::new("sleep").arg("600").spawn().expect("starts");
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", job.id())).expect("it runs");
        let start_ticks = stat.rsplit(' ').nth(52 - 22).expect("field 22 of 52");
        let examine = |id: u64, boot_id: &str| {
            format!(
                "{{\"examine\":{{\"id\":{id},\"boot_id\":\"{boot_id}\",\"pid\":{},\"start_ticks\":{start_ticks},\
                 \"parts\":[\"process\",\"links\"]}}}}\n",
                job.id()
            )
        };
        let requests = [examine(1, "b0071d"), "{\"heartbeat\":{\"id\":2}}\n".to_owned(), examine(3, "other")].concat();
        let (end, lines, _) = run_listener(&requests);
        job.kill().and_then(|()| job.wait()).expect("ends");
        assert_eq!(end, ListenerExit::InputClosed);
        assert_eq!(lines.len(), 3, "{lines:?}");
        let place = |start: &str| lines.iter().position(|line| line.starts_with(start)).expect(start);
        let examined = place("{\"reply\":{\"id\":1,\"outcome\":{\"examined\":{\"process\":{");
        assert_eq!(examined, 2, "it takes a second: {lines:?}");
        assert!(lines[place("{\"reply\":{\"id\":3,")].ends_with(",\"outcome\":\"reused\"}}"), "{lines:?}");
        assert_eq!(lines[place("{\"echo\"")], "{\"echo\":{\"id\":2}}");
    }

    #[test]
    fn an_examination_that_is_refused_is_answered_at_once() {
        let mut refuse = |request: ExamineRequest| {
            let reading = RequestedReading::Examination { parts: Vec::new(), accept_ras_risk: true };
            assert_eq!((request.id, request.pid, request.reading), (4, 2, reading));
            Some(ReplyOutcome::Gone)
        };
        let line = br#"{"examine":{"id":4,"boot_id":"b","pid":2,"start_ticks":3,"parts":[],"accept_ras_risk":true}}"#;
        let answer = handle_request(line, &Control::new(Duration::from_secs(2)), None, &mut refuse);
        assert_eq!(answer, Some(Message::Reply(Reply { id: 4, outcome: ReplyOutcome::Gone })));
    }

    #[test]
    fn a_changed_policy_is_applied_at_the_next_check() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("policy.json");
        let mut policy_files = PolicyFiles::new(Some(path.to_string_lossy().into_owned()), None);
        let current = policy_files.read();
        let mut monitor = PolicyMonitor { period: Duration::ZERO, ..PolicyMonitor::new(policy_files, current) };
        let control = Control::new(Duration::from_secs(2));
        assert_eq!(monitor.poll_policy(&control, false), None);
        std::fs::write(&path, r#"{"min_interval": 10, "message": "be kind"}"#).expect("writes");
        assert_eq!(monitor.poll_policy(&control, false), None);
        let settings = control.take_requests();
        assert_eq!((settings.interval, settings.resend), (Duration::from_secs(10), true));
        let notes = control.take_notes();
        assert_eq!(
            notes,
            [
                "from the administrator of this host: be kind",
                "the administrator of this host allows no interval below 10 s"
            ]
        );
        assert_eq!(monitor.poll_policy(&control, false), None);
        assert_eq!(control.take_notes().len(), 0, "reported once");
        std::fs::write(&path, r#"{"allow": false, "message": "resetting GPUs"}"#).expect("writes");
        assert_eq!(monitor.poll_policy(&control, false).as_deref(), Some("resetting GPUs"));
        // After a request the policy is read sooner.
        let mut later = PolicyMonitor {
            current: monitor.policy_files.read(),
            policy_files: monitor.policy_files,
            checked_at: Instant::now().checked_sub(POLICY_CHECK_MIN_AGE).expect("the host has been up for longer"),
            period: POLICY_CHECK_PERIOD,
        };
        std::fs::write(&path, "{}").expect("writes");
        assert_eq!(later.poll_policy(&control, false).as_deref(), None, "not yet");
        assert_eq!((later.current.refusal.is_some(), later.poll_policy(&control, true)), (true, None));
        assert!(later.current.refusal.is_none(), "it was read");
    }

    #[test]
    fn a_request_timeout_ends_the_listener() {
        let (input, _requester) = pipe().expect("pipe");
        let (_reader, writer) = pipe().expect("pipe");
        let control = Control::new(Duration::from_secs(2));
        let limit = Duration::from_millis(20);
        let end = listen(input, &Arc::new(Output::new(writer)), &control, None, &mut no_policy(), limit);
        assert_eq!(end, ListenerExit::RequestTimeout(limit));
        assert_eq!(
            ListenerExit::RequestTimeout(REQUEST_TIMEOUT).farewell().as_deref(),
            Some("no request came for 30 s")
        );
    }

    /// Runs the listener with an output that nobody reads. `hold` keeps the write lock, as a sampling thread does that
    /// waits for room in the pipe.
    fn run_listener_with_full_output(hold: bool, requests: Vec<u8>, is_closed: bool, limit: Duration) -> ListenerExit {
        let (ended, end) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let (input, mut requester) =
                pipe().map(|(reader, writer)| (reader, std::fs::File::from(writer))).expect("pipe");
            let (_reader, writer) = pipe().expect("pipe");
            rustix::io::ioctl_fionbio(&writer, true).expect("non-blocking");
            while write(&writer, &[0; 4096]).is_ok() {}
            rustix::io::ioctl_fionbio(&writer, false).expect("blocking");
            let output = Arc::new(Output::new(writer));
            let write_lock = hold.then(|| output.write_lock.lock());
            let requester = std::thread::spawn(move || {
                // The pipe breaks when the listener ends.
                let _ = requester.write_all(&requests);
                (!is_closed).then_some(requester)
            });
            let control = Control::new(Duration::from_secs(2));
            let end = listen(&input, &output, &control, None, &mut no_policy(), limit);
            drop((write_lock, input));
            drop(requester.join());
            ended.send(end).expect("is awaited");
        });
        end.recv_timeout(Duration::from_secs(20)).expect("the listener ends")
    }

    #[test]
    fn a_full_output_delays_neither_the_end_of_input_nor_the_request_timeout() {
        let limit = Duration::from_millis(50);
        let heartbeat = b"{\"heartbeat\":{\"id\":1}}\n";
        for hold in [false, true] {
            // The second fills the queue of answers, so that the listener stops reading.
            for requests in [heartbeat.to_vec(), heartbeat.repeat(20_000)] {
                let end = run_listener_with_full_output(hold, requests.clone(), false, limit);
                assert_eq!(end, ListenerExit::RequestTimeout(limit), "{hold} {}", requests.len());
            }
            let end = run_listener_with_full_output(hold, heartbeat.to_vec(), true, REQUEST_TIMEOUT);
            assert_eq!(end, ListenerExit::InputClosed, "{hold}");
        }
    }

    #[test]
    fn a_long_answer_is_written_whole_as_the_reader_takes_it() {
        let (reader, writer) = pipe().expect("pipe");
        let output = Output::new(writer);
        let mut answers = AnswerQueue { output: &output, bytes: vec![b'x'; 200_000], write_lock: None };
        answers.bytes.push(b'\n');
        let mut reader = BufReader::new(std::fs::File::from(reader));
        let mut line = Vec::new();
        while !answers.bytes.is_empty() {
            answers.write_without_waiting().expect("writes");
            let waiting = reader.fill_buf().expect("reads");
            line.extend_from_slice(waiting);
            let count = waiting.len();
            reader.consume(count);
            assert_eq!(answers.bytes.is_empty(), output.write_lock.try_lock().is_ok(), "held to the end of the line");
        }
        drop(answers);
        drop(output);
        reader.read_to_end(&mut line).expect("reads");
        assert_eq!(line.len(), 200_001);
    }

    #[test]
    fn a_closed_output_ends_the_listener() {
        let (input, mut requester) =
            pipe().map(|(reader, writer)| (reader, std::fs::File::from(writer))).expect("pipe");
        let (reader, writer) = pipe().expect("pipe");
        drop(reader);
        requester.write_all(b"{\"heartbeat\":{\"id\":1}}\n").expect("writes");
        let control = Control::new(Duration::from_secs(2));
        let end = listen(input, &Arc::new(Output::new(writer)), &control, None, &mut no_policy(), REQUEST_TIMEOUT);
        assert_eq!(end, ListenerExit::IoError);
    }

    #[test]
    fn a_request_over_the_limit_ends_the_listener() {
        let (input, mut requester) =
            pipe().map(|(reader, writer)| (reader, std::fs::File::from(writer))).expect("pipe");
        let (_reader, writer) = pipe().expect("pipe");
        let feeder = std::thread::spawn(move || while requester.write_all(&[b'x'; 4096]).is_ok() {});
        let control = Control::new(Duration::from_secs(2));
        let end = listen(input, &Arc::new(Output::new(writer)), &control, None, &mut no_policy(), REQUEST_TIMEOUT);
        assert_eq!(end, ListenerExit::RequestTooLong);
        feeder.join().expect("ends");
    }

    #[test]
    fn intervals_are_clamped_and_malformed_requests_are_noted() {
        let (_, lines, control) = run_listener(
            "{\"interval\":{\"seconds\":0.01}}\nhello\n{\"from_the_future\":{\"id\":5}}\n\"resend\"\n{\"interval\":{\"seconds\":-2}}\n",
        );
        let (settings, notes) = (control.take_requests(), control.take_notes());
        assert_eq!((settings.interval, settings.resend), (Duration::from_millis(250), true));
        assert_eq!(notes[0], "interval 0.01 s is outside 0.25 to 60 s: 0.25 s is used");
        assert!(notes[1].starts_with("a request was not understood: protocol violation"), "{notes:?}");
        assert!(notes[1].ends_with("in the line that begins `hello`"), "{notes:?}");
        assert_eq!(notes[3], "interval -2 s is not valid: the interval was not changed");
        assert_eq!(
            lines,
            ["{\"reply\":{\"id\":5,\"outcome\":{\"refused\":\"this probe does not know the request\"}}}"]
        );
    }

    #[test]
    fn slurm_jobs_of_an_earlier_connection_are_taken_once() {
        let (_, lines, control) = run_listener(
            "{\"interval\":{\"seconds\":2,\"earlier_slurm_jobs\":[\"3385\",\"3386\"]}}\n{\"interval\":{\"seconds\":1}}\n",
        );
        assert!(lines.is_empty() && control.take_notes().is_empty());
        assert_eq!(control.take_requests().interval, Duration::from_secs(1));
        assert_eq!(control.take_earlier_slurm_jobs(), ["3385", "3386"]);
        assert!(control.take_earlier_slurm_jobs().is_empty());
    }

    #[test]
    fn requests_end_the_wait() {
        let control = Control::new(Duration::from_secs(2));
        let previous = control.take_requests();
        let until = Instant::now() + Duration::from_millis(5);
        control.wait(&previous, Some(until));
        assert!(Instant::now() >= until);
        control.acknowledge(3);
        control.acknowledge(2);
        let until = Instant::now() + Duration::from_millis(5);
        control.wait(&previous, Some(until));
        assert!(Instant::now() >= until, "it sleeps on until the next sample is due");
        control.wait(&previous, None);
        let previous = control.take_requests();
        assert_eq!(previous.acknowledged, Some(3));
        control.resend();
        control.wait(&previous, None);
        assert!(control.take_requests().resend);
    }

    #[test]
    fn no_interval_is_below_the_policy_minimum() {
        let control = Control::new(Duration::from_secs(2));
        control.set_min_interval(Duration::from_secs(10));
        assert_eq!(control.take_requests().interval, Duration::from_secs(10));
        control.set_interval(Duration::from_secs(1), 0.0);
        assert_eq!(control.take_requests().interval, Duration::from_secs(10));
        control.set_interval(Duration::from_secs(30), 0.0);
        assert_eq!(control.take_requests().interval, Duration::from_secs(30));
        control.set_interval(Duration::from_secs(1), 0.0);
        control.set_min_interval(Duration::ZERO);
        assert_eq!(control.take_requests().interval, Duration::from_secs(1));
    }

    #[test]
    fn queued_notes_are_limited() {
        let control = Control::new(Duration::from_secs(2));
        for number in 0..100 {
            control.note(format!("note {number}"));
        }
        assert_eq!(control.take_notes().len(), MAX_QUEUED_NOTES);
        assert_eq!(control.take_notes().len(), 0);
    }

    #[test]
    fn lines_arrive_whole_and_a_closed_pipe_is_an_error() {
        let (reader, writer) = pipe().expect("pipe");
        let output = Output::new(writer);
        output.send(&Message::Echo { id: 7 }).expect("writes");
        let mut bytes = [0; 64];
        let mut reader = std::fs::File::from(reader);
        let count = reader.read(&mut bytes).expect("reads");
        assert_eq!(&bytes[..count], b"{\"echo\":{\"id\":7}}\n");
        drop(reader);
        assert_eq!(output.send(&Message::Echo { id: 8 }), Err(Errno::PIPE));
    }

    #[test]
    fn the_last_message_follows_a_line_in_progress() {
        let (reader, writer) = pipe().expect("pipe");
        let output = Output::new(writer);
        let write_lock = output.write_lock.lock().expect("is free");
        let (begins, begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begins.send(()).expect("is heard");
                output.send_last(&Message::Echo { id: 9 });
            });
            begun.recv().expect("begins");
            drop(write_lock);
        });
        drop(output);
        let mut text = String::new();
        std::fs::File::from(reader).read_to_string(&mut text).expect("reads");
        assert_eq!(text, "{\"echo\":{\"id\":9}}\n");
    }

    #[test]
    fn a_last_message_never_waits_for_a_reader() {
        let (_reader, writer) = pipe().expect("pipe");
        rustix::io::ioctl_fionbio(&writer, true).expect("non-blocking");
        while write(&writer, &[0; 4096]).is_ok() {}
        rustix::io::ioctl_fionbio(&writer, false).expect("blocking");
        let output = Output::new(writer);
        output.send_last(&Message::Farewell { reason: "full".into() });
        let _write_lock = output.write_lock.lock();
        output.send_last(&Message::Farewell { reason: "full, and locked".into() });
    }
}
