//! Reads the controller's requests and answers at once, whatever the sampling thread is doing.

use super::control::Control;
use super::output::Output;
use super::policy::{POLICY_CHECK_MIN_AGE, POLICY_CHECK_PERIOD, Policy, PolicyFiles};
use super::process_inspect;
use super::sample_schedule::{MAX_INTERVAL, MIN_INTERVAL, clamp_interval};
use super::signal::{self, ProcessIdentity};
use crate::wire::codec::{LineBuffer, decode_json};
use crate::wire::{Message, Reply, ReplyOutcome, Request, SafeText};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::io::{Errno, read};
use serde::Deserialize;
use std::time::{Duration, Instant};

/// Without any request for this long the controller is taken for dead.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Why the probe ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListenerExit {
    /// Standard input was closed.
    InputClosed,
    /// No request came for so long.
    RequestTimeout(Duration),
    /// The administrator allows no probe any more.
    ForbiddenByPolicy(SafeText),
    /// What came is no line.
    RequestTooLong,
    /// Nobody reads standard output any more, or input cannot be read.
    IoError,
}

impl ListenerExit {
    /// The sentence that is said before, where somebody may still hear it.
    pub(crate) fn farewell(&self) -> Option<SafeText> {
        match self {
            Self::ForbiddenByPolicy(reason) => Some(reason.clone()),
            Self::InputClosed => Some("standard input was closed".into()),
            Self::RequestTimeout(limit) => Some(format!("no request came for {} s", limit.as_secs()).into()),
            Self::RequestTooLong => Some("a request was longer than any may be".into()),
            Self::IoError => None,
        }
    }
}

/// Looks at the policies now and then, and passes on what has changed.
pub(crate) struct PolicyMonitor {
    policy_files: PolicyFiles,
    current: Policy,
    checked_at: Instant,
    period: Duration,
}

impl PolicyMonitor {
    /// `current` is what was read before the probe started.
    pub(crate) fn new(policy_files: PolicyFiles, current: Policy) -> Self {
        Self { policy_files, current, checked_at: Instant::now(), period: POLICY_CHECK_PERIOD }
    }

    /// Reads the policies when they are due, after a request sooner; the reason why the probe may not go on.
    fn poll_policy(&mut self, control: &Control, is_awake: bool) -> Option<SafeText> {
        let period = if is_awake { self.period.min(POLICY_CHECK_MIN_AGE) } else { self.period };
        if self.checked_at.elapsed() < period {
            return None;
        }
        self.checked_at = Instant::now();
        let now = self.policy_files.read();
        if now != self.current {
            now.apply_to(control);
            // The next snapshot names the interval in force, so that a longer one is not taken for silence.
            control.resend();
            self.current = now;
        }
        self.current.refusal.clone()
    }
}

impl Policy {
    /// Puts it into force, and tells whoever watches.
    pub(crate) fn apply_to(&self, control: &Control) {
        control.set_min_interval(self.min_interval);
        if let Some(message) = &self.message {
            control.note(format!("from the administrator of this host: {message}"));
        }
        if !self.min_interval.is_zero() {
            let seconds = self.min_interval.as_secs_f32();
            control.note(format!("the administrator of this host allows no interval below {seconds} s"));
        }
    }
}

/// Serves requests until there is a reason to end. `request_timeout` is [`REQUEST_TIMEOUT`] outside tests.
pub(crate) fn listen<O: AsFd>(
    input: impl AsFd,
    output: &Output<O>,
    control: &Control,
    boot_id: Option<&str>,
    policy: &mut PolicyMonitor,
    request_timeout: Duration,
) -> ListenerExit {
    let mut lines = LineBuffer::default();
    let mut bytes = [0_u8; 4096];
    let mut last_request = Instant::now();
    let mut is_awake = false;
    loop {
        let Some(remaining) =
            request_timeout.checked_sub(last_request.elapsed()).filter(|remaining| !remaining.is_zero())
        else {
            return ListenerExit::RequestTimeout(request_timeout);
        };
        if let Some(reason) = policy.poll_policy(control, is_awake) {
            return ListenerExit::ForbiddenByPolicy(reason);
        }
        is_awake = false;
        let remaining = remaining.min(policy.period.saturating_sub(policy.checked_at.elapsed()));
        let mut fds = [PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)];
        let timeout = Timespec { tv_sec: remaining.as_secs() as i64, tv_nsec: i64::from(remaining.subsec_nanos()) };
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => continue,
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
                    if let Some(answer) = handle_request(line, control, boot_id)
                        && output.send(&answer).is_err()
                    {
                        return ListenerExit::IoError;
                    }
                }
            }
        }
    }
}

/// Does what one line asks for, and says what to answer.
fn handle_request(line: &[u8], control: &Control, boot_id: Option<&str>) -> Option<Message> {
    if line.is_empty() {
        return None;
    }
    match decode_json(line) {
        Ok(Request::Heartbeat { id, last_sequence }) => {
            if let Some(sequence) = last_sequence {
                control.acknowledge(sequence);
            }
            Some(Message::Echo { id })
        }
        Ok(Request::Interval { seconds }) => {
            match clamp_interval(seconds) {
                Some((interval, was_clamped)) => {
                    control.set_interval(interval);
                    if was_clamped {
                        let (min, max) = (MIN_INTERVAL.as_secs_f32(), MAX_INTERVAL.as_secs());
                        let used = interval.as_secs_f32();
                        control.note(format!("interval {seconds} s is outside {min} to {max} s: {used} s is used"));
                    }
                }
                None => control.note(format!("interval {seconds} s is no interval: nothing was changed")),
            }
            None
        }
        Ok(Request::Resend) => {
            control.resend();
            None
        }
        Ok(Request::Signal { id, boot_id: target_boot_id, pid, start_ticks, signal }) => {
            let outcome = signal::send(ProcessIdentity { boot_id: &target_boot_id, pid, start_ticks }, signal, boot_id);
            Some(Message::Reply(Reply { id, outcome }))
        }
        Ok(Request::Environment { id, boot_id: target_boot_id, pid, start_ticks }) => {
            let outcome =
                process_inspect::environment(ProcessIdentity { boot_id: &target_boot_id, pid, start_ticks }, boot_id);
            Some(Message::Reply(Reply { id, outcome }))
        }
        Ok(Request::LogTail { id, boot_id: target_boot_id, pid, start_ticks }) => {
            let outcome =
                process_inspect::log_tail(ProcessIdentity { boot_id: &target_boot_id, pid, start_ticks }, boot_id);
            Some(Message::Reply(Reply { id, outcome }))
        }
        Err(error) => {
            control.note(format!("a request was not understood: {error}"));
            // A request of a newer controller that carries an id waits for an answer.
            id_of_unknown_request(line).map(|id| {
                let outcome = ReplyOutcome::Refused("this probe does not know the request".into());
                Message::Reply(Reply { id, outcome })
            })
        }
    }
}

/// The id in a request of unknown kind: `{"kind":{"id":7,...}}`.
fn id_of_unknown_request(line: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(line).ok()?;
    let (_kind, body) = text.trim().strip_prefix('{')?.split_once(':')?;
    serde_json::from_str::<RequestId>(body.trim().strip_suffix('}')?).ok()?.id
}

/// What every request with an answer has.
#[derive(Deserialize)]
struct RequestId {
    id: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::pipe;
    use std::io::{BufRead, BufReader, Write};

    fn no_policy() -> PolicyMonitor {
        let mut policy_files = PolicyFiles::new(None);
        let current = policy_files.read();
        PolicyMonitor::new(policy_files, current)
    }

    /// Runs the listener over `requests`, then closes its input; returns what it wrote.
    fn run_listener(requests: &str) -> (ListenerExit, Vec<String>, Control) {
        let (input, mut requester) =
            pipe().map(|(reader, writer)| (reader, std::fs::File::from(writer))).expect("pipe");
        let (reader, writer) = pipe().expect("pipe");
        requester.write_all(requests.as_bytes()).expect("writes");
        drop(requester);
        let control = Control::new(Duration::from_secs(2));
        let end = listen(input, &Output::new(writer), &control, Some("b0071d"), &mut no_policy(), REQUEST_TIMEOUT);
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
    fn a_changed_policy_is_applied_at_the_next_check() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("policy.json");
        let mut policy_files = PolicyFiles::new(Some(path.to_string_lossy().into_owned()));
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
        assert_eq!(control.take_notes().len(), 0, "told once");
        std::fs::write(&path, r#"{"allow": false, "message": "resetting GPUs"}"#).expect("writes");
        assert_eq!(monitor.poll_policy(&control, false).as_deref(), Some("resetting GPUs"));
        // Whoever is awake for a request looks sooner.
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
        let end = listen(input, &Output::new(writer), &control, None, &mut no_policy(), limit);
        assert_eq!(end, ListenerExit::RequestTimeout(limit));
        assert_eq!(
            ListenerExit::RequestTimeout(REQUEST_TIMEOUT).farewell().as_deref(),
            Some("no request came for 30 s")
        );
    }

    #[test]
    fn a_closed_output_ends_the_listener() {
        let (input, mut requester) =
            pipe().map(|(reader, writer)| (reader, std::fs::File::from(writer))).expect("pipe");
        let (reader, writer) = pipe().expect("pipe");
        drop(reader);
        requester.write_all(b"{\"heartbeat\":{\"id\":1}}\n").expect("writes");
        let control = Control::new(Duration::from_secs(2));
        let end = listen(input, &Output::new(writer), &control, None, &mut no_policy(), REQUEST_TIMEOUT);
        assert_eq!(end, ListenerExit::IoError);
    }

    #[test]
    fn a_request_over_the_limit_ends_the_listener() {
        let (input, mut requester) =
            pipe().map(|(reader, writer)| (reader, std::fs::File::from(writer))).expect("pipe");
        let (_reader, writer) = pipe().expect("pipe");
        let feeder = std::thread::spawn(move || while requester.write_all(&[b'x'; 4096]).is_ok() {});
        let control = Control::new(Duration::from_secs(2));
        let end = listen(input, &Output::new(writer), &control, None, &mut no_policy(), REQUEST_TIMEOUT);
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
        assert_eq!(notes[3], "interval -2 s is no interval: nothing was changed");
        assert_eq!(
            lines,
            ["{\"reply\":{\"id\":5,\"outcome\":{\"refused\":\"this probe does not know the request\"}}}"]
        );
    }
}
