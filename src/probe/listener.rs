//! Reads the controller's requests and answers at once, whatever the sampling thread is doing.

use super::ask;
use super::control::Control;
use super::output::Output;
use super::pace::{MAX_INTERVAL, MIN_INTERVAL, clamped};
use super::policy::{LOOK_ALONG, LOOK_EVERY, Policies, Policy};
use super::signal::{self, Target};
use crate::wire::codec::{LineBuffer, decode_json};
use crate::wire::{Message, Reply, ReplyOutcome, Request, SafeText};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::io::{Errno, read};
use serde::Deserialize;
use std::time::{Duration, Instant};

/// Without any request for this long the controller is taken for dead.
pub(crate) const DEAD_MAN: Duration = Duration::from_secs(30);

/// Why the probe ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// Standard input was closed.
    Closed,
    /// No request came for so long.
    Silence(Duration),
    /// The administrator allows no probe any more.
    Forbidden(SafeText),
    /// What came is no line.
    Endless,
    /// Nobody reads standard output any more, or input cannot be read.
    Broken,
}

impl End {
    /// The sentence that is said before, where somebody may still hear it.
    pub(crate) fn farewell(&self) -> Option<SafeText> {
        match self {
            Self::Forbidden(reason) => Some(reason.clone()),
            Self::Closed => Some("standard input was closed".into()),
            Self::Silence(limit) => Some(format!("no request came for {} s", limit.as_secs()).into()),
            Self::Endless => Some("a request was longer than any may be".into()),
            Self::Broken => None,
        }
    }
}

/// Looks at the policies now and then, and passes on what has changed.
pub(crate) struct PolicyWatch {
    policies: Policies,
    known: Policy,
    looked: Instant,
    every: Duration,
}

impl PolicyWatch {
    /// `known` is what was read before the probe started.
    pub(crate) fn new(policies: Policies, known: Policy) -> Self {
        Self { policies, known, looked: Instant::now(), every: LOOK_EVERY }
    }

    /// Reads the policies when they are due, after a request sooner; the reason why the probe may not go on.
    fn look(&mut self, control: &Control, is_awake: bool) -> Option<SafeText> {
        let every = if is_awake { self.every.min(LOOK_ALONG) } else { self.every };
        if self.looked.elapsed() < every {
            return None;
        }
        self.looked = Instant::now();
        let now = self.policies.read();
        if now != self.known {
            now.tell(control);
            // The next snapshot names the interval in force, so that a longer one is not taken for silence.
            control.resend();
            self.known = now;
        }
        self.known.refusal.clone()
    }
}

impl Policy {
    /// Puts it into force, and tells whoever watches.
    pub(crate) fn tell(&self, control: &Control) {
        control.set_least_interval(self.min_interval);
        if let Some(message) = &self.message {
            control.note(format!("from the administrator of this host: {message}"));
        }
        if !self.min_interval.is_zero() {
            let seconds = self.min_interval.as_secs_f32();
            control.note(format!("the administrator of this host allows no interval below {seconds} s"));
        }
    }
}

/// Serves requests until there is a reason to end. `dead_man` is [`DEAD_MAN`] outside tests.
pub(crate) fn listen<O: AsFd>(
    input: impl AsFd,
    output: &Output<O>,
    control: &Control,
    boot_id: Option<&str>,
    policy: &mut PolicyWatch,
    dead_man: Duration,
) -> End {
    let mut lines = LineBuffer::default();
    let mut bytes = [0_u8; 4096];
    let mut last_request = Instant::now();
    let mut is_awake = false;
    loop {
        let Some(rest) = dead_man.checked_sub(last_request.elapsed()).filter(|rest| !rest.is_zero()) else {
            return End::Silence(dead_man);
        };
        if let Some(reason) = policy.look(control, is_awake) {
            return End::Forbidden(reason);
        }
        is_awake = false;
        let rest = rest.min(policy.every.saturating_sub(policy.looked.elapsed()));
        let mut fds = [PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)];
        let timeout = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: i64::from(rest.subsec_nanos()) };
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return End::Broken,
        }
        match read(&input, &mut bytes) {
            Ok(0) => return End::Closed,
            Ok(count) => lines.push(&bytes[..count]),
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(_) => return End::Broken,
        }
        loop {
            match lines.next_line() {
                Ok(None) => break,
                Err(_) => return End::Endless,
                Ok(Some(line)) => {
                    last_request = Instant::now();
                    is_awake = true;
                    if let Some(answer) = answer(line, control, boot_id)
                        && output.send(&answer).is_err()
                    {
                        return End::Broken;
                    }
                }
            }
        }
    }
}

/// Does what one line asks for, and says what to answer.
fn answer(line: &[u8], control: &Control, boot_id: Option<&str>) -> Option<Message> {
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
            match clamped(seconds) {
                Some((interval, was_clamped)) => {
                    control.set_interval(interval);
                    if was_clamped {
                        let (least, most) = (MIN_INTERVAL.as_secs_f32(), MAX_INTERVAL.as_secs());
                        let used = interval.as_secs_f32();
                        control.note(format!("interval {seconds} s is outside {least} to {most} s: {used} s is used"));
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
        Ok(Request::Signal { id, boot_id: meant, pid, start_ticks, signal }) => {
            let outcome = signal::send(Target { boot_id: &meant, pid, start_ticks }, signal, boot_id);
            Some(Message::Reply(Reply { id, outcome }))
        }
        Ok(Request::Environment { id, boot_id: meant, pid, start_ticks }) => {
            let outcome = ask::environment(Target { boot_id: &meant, pid, start_ticks }, boot_id);
            Some(Message::Reply(Reply { id, outcome }))
        }
        Ok(Request::LogTail { id, boot_id: meant, pid, start_ticks }) => {
            let outcome = ask::log_tail(Target { boot_id: &meant, pid, start_ticks }, boot_id);
            Some(Message::Reply(Reply { id, outcome }))
        }
        Err(error) => {
            control.note(format!("a request was not understood: {error}"));
            // A request of a newer controller that carries an id waits for an answer.
            unknown_id(line).map(|id| {
                let outcome = ReplyOutcome::Refused("this probe does not know the request".into());
                Message::Reply(Reply { id, outcome })
            })
        }
    }
}

/// The id in a request of unknown kind: `{"kind":{"id":7,...}}`.
fn unknown_id(line: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(line).ok()?;
    let (_kind, body) = text.trim().strip_prefix('{')?.split_once(':')?;
    serde_json::from_str::<AnyRequest>(body.trim().strip_suffix('}')?).ok()?.id
}

/// What every request with an answer has.
#[derive(Deserialize)]
struct AnyRequest {
    id: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::pipe;
    use std::io::{BufRead, BufReader, Write};

    fn no_policy() -> PolicyWatch {
        let mut policies = Policies::new(None);
        let known = policies.read();
        PolicyWatch::new(policies, known)
    }

    /// Runs the listener over `requests`, then closes its input; returns what it wrote.
    fn served(requests: &str) -> (End, Vec<String>, Control) {
        let (input, mut requester) =
            pipe().map(|(reader, writer)| (reader, std::fs::File::from(writer))).expect("pipe");
        let (reader, writer) = pipe().expect("pipe");
        requester.write_all(requests.as_bytes()).expect("writes");
        drop(requester);
        let control = Control::new(Duration::from_secs(2));
        let end = listen(input, &Output::new(writer), &control, Some("b0071d"), &mut no_policy(), DEAD_MAN);
        let lines = BufReader::new(std::fs::File::from(reader)).lines().map(|line| line.expect("utf-8")).collect();
        (end, lines, control)
    }

    #[test]
    fn heartbeats_come_back_and_acknowledge() {
        let (end, lines, control) = served(
            "{\"heartbeat\":{\"id\":1}}\r\n\n{\"heartbeat\":{\"id\":2,\"last_sequence\":9}}\n{\"heartbeat\":{\"id\":3,\"last_s",
        );
        assert_eq!((end, lines), (End::Closed, vec!["{\"echo\":{\"id\":1}}".into(), "{\"echo\":{\"id\":2}}".into()]));
        assert_eq!(control.take().acknowledged, Some(9));
    }

    #[test]
    fn a_policy_that_changes_holds_at_the_next_look() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("policy.json");
        let mut policies = Policies::new(Some(path.to_string_lossy().into_owned()));
        let known = policies.read();
        let mut watch = PolicyWatch { every: Duration::ZERO, ..PolicyWatch::new(policies, known) };
        let control = Control::new(Duration::from_secs(2));
        assert_eq!(watch.look(&control, false), None);
        std::fs::write(&path, r#"{"min_interval": 10, "message": "be kind"}"#).expect("writes");
        assert_eq!(watch.look(&control, false), None);
        let orders = control.take();
        assert_eq!((orders.interval, orders.resend), (Duration::from_secs(10), true));
        let notes = control.take_notes();
        assert_eq!(
            notes,
            [
                "from the administrator of this host: be kind",
                "the administrator of this host allows no interval below 10 s"
            ]
        );
        assert_eq!(watch.look(&control, false), None);
        assert_eq!(control.take_notes().len(), 0, "told once");
        std::fs::write(&path, r#"{"allow": false, "message": "resetting GPUs"}"#).expect("writes");
        assert_eq!(watch.look(&control, false).as_deref(), Some("resetting GPUs"));
        // Whoever is awake for a request looks sooner.
        let mut later = PolicyWatch {
            known: watch.policies.read(),
            policies: watch.policies,
            looked: Instant::now().checked_sub(LOOK_ALONG).expect("the host has been up for longer"),
            every: LOOK_EVERY,
        };
        std::fs::write(&path, "{}").expect("writes");
        assert_eq!(later.look(&control, false).as_deref(), None, "not yet");
        assert_eq!((later.known.refusal.is_some(), later.look(&control, true)), (true, None));
        assert!(later.known.refusal.is_none(), "it was read");
    }

    #[test]
    fn silence_ends_it() {
        let (input, _requester) = pipe().expect("pipe");
        let (_reader, writer) = pipe().expect("pipe");
        let control = Control::new(Duration::from_secs(2));
        let limit = Duration::from_millis(20);
        let end = listen(input, &Output::new(writer), &control, None, &mut no_policy(), limit);
        assert_eq!(end, End::Silence(limit));
        assert_eq!(End::Silence(DEAD_MAN).farewell().as_deref(), Some("no request came for 30 s"));
    }

    #[test]
    fn a_reader_that_is_gone_ends_it() {
        let (input, mut requester) =
            pipe().map(|(reader, writer)| (reader, std::fs::File::from(writer))).expect("pipe");
        let (reader, writer) = pipe().expect("pipe");
        drop(reader);
        requester.write_all(b"{\"heartbeat\":{\"id\":1}}\n").expect("writes");
        let control = Control::new(Duration::from_secs(2));
        let end = listen(input, &Output::new(writer), &control, None, &mut no_policy(), DEAD_MAN);
        assert_eq!(end, End::Broken);
    }

    #[test]
    fn an_endless_line_ends_it() {
        let (input, mut requester) =
            pipe().map(|(reader, writer)| (reader, std::fs::File::from(writer))).expect("pipe");
        let (_reader, writer) = pipe().expect("pipe");
        let feeder = std::thread::spawn(move || while requester.write_all(&[b'x'; 4096]).is_ok() {});
        let control = Control::new(Duration::from_secs(2));
        let end = listen(input, &Output::new(writer), &control, None, &mut no_policy(), DEAD_MAN);
        assert_eq!(end, End::Endless);
        feeder.join().expect("ends");
    }

    #[test]
    fn intervals_are_kept_within_limits_and_nonsense_is_noted() {
        let (_, lines, control) = served(
            "{\"interval\":{\"seconds\":0.01}}\nhello\n{\"from_the_future\":{\"id\":5}}\n\"resend\"\n{\"interval\":{\"seconds\":-2}}\n",
        );
        let (orders, notes) = (control.take(), control.take_notes());
        assert_eq!((orders.interval, orders.resend), (Duration::from_millis(250), true));
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
