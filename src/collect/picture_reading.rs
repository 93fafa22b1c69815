//! Reads the pictures of collectors when a viewer starts. Each one is read by its own task, so that a viewer can begin with those
//! that are complete.

use super::error::connect_phase;
use super::picture_events::PictureEvents;
use super::relay::{Picture, Relay};
use super::remote_command::OpenChannel;
use crate::config::HostConfig;
use crate::fleet::{Clock, ConnectPhase, LinkError, LinkErrorKind};
use crate::share::{Demultiplexer, ViewerEvent, ViewerHello};
use crate::wire::SafeText;
use std::sync::Arc;
use tokio::sync::{Notify, oneshot, watch};

/// How far the reading of a picture has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadingState {
    /// The connection is in this phase, or the picture is being read.
    Reading(ConnectPhase),
    /// The picture is complete and has these hosts.
    Complete(Vec<SafeText>),
    /// There is no picture.
    Failed,
}

/// The picture of one collector while it is read. Dropping it ends the connection.
pub struct PictureReading {
    state: watch::Receiver<ReadingState>,
    hand_over: oneshot::Sender<()>,
    picture: oneshot::Receiver<Result<Picture, LinkError>>,
}

impl PictureReading {
    /// Connects to the collector on `machine` and reads the picture that `hello` asks for. If `hello` asks to follow, it goes on
    /// reading, because a collector closes a session whose viewer does not read. `changed` is notified whenever the state
    /// changes. Must be called within a tokio runtime.
    pub fn start(
        ssh: Arc<dyn OpenChannel>,
        machine: Arc<HostConfig>,
        clock: Clock,
        hello: ViewerHello,
        demultiplexer: Demultiplexer,
        changed: Arc<Notify>,
    ) -> Self {
        let (sender, state) = watch::channel(ReadingState::Reading(ConnectPhase::Queued));
        let states = StateSender { sender: Arc::new(sender), changed };
        let (hand_over, handed_over) = oneshot::channel();
        let (mut taker, picture) = oneshot::channel();
        tokio::spawn(async move {
            let read = read(ssh, &machine, clock, hello, demultiplexer, states, handed_over);
            tokio::select! {
                picture = read => drop(taker.send(picture)),
                () = taker.closed() => {}
            }
        });
        Self { state, hand_over, picture }
    }

    /// The state now.
    pub fn state(&self) -> ReadingState {
        self.state.borrow().clone()
    }

    /// Waits until the state has changed since the last call. Cancel safe.
    pub(super) async fn changed(&mut self) {
        // Without a sender there is no further change, and the state is not `Reading`.
        let _ended = self.state.changed().await;
    }

    /// Takes the connection with everything that was read; waits until the picture is complete.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn take(self) -> Result<Picture, LinkError> {
        let _failed = self.hand_over.send(());
        let closed = || Err(LinkError::new(LinkErrorKind::Closed, "the connection was closed"));
        // A task that has panicked leaves no picture.
        self.picture.await.unwrap_or_else(|_| closed())
    }
}

/// Publishes the state. Dropped without a complete picture, it publishes the failure.
struct StateSender {
    sender: Arc<watch::Sender<ReadingState>>,
    changed: Arc<Notify>,
}

impl StateSender {
    fn send(&self, state: ReadingState) {
        self.sender.send_replace(state);
        self.changed.notify_one();
    }
}

impl Drop for StateSender {
    fn drop(&mut self) {
        if matches!(*self.sender.borrow(), ReadingState::Reading(_)) {
            self.send(ReadingState::Failed);
        }
    }
}

async fn read(
    ssh: Arc<dyn OpenChannel>,
    machine: &HostConfig,
    clock: Clock,
    hello: ViewerHello,
    demultiplexer: Demultiplexer,
    states: StateSender,
    mut handed_over: oneshot::Receiver<()>,
) -> Result<Picture, LinkError> {
    let (phases, changed) = (Arc::clone(&states.sender), Arc::clone(&states.changed));
    let progress = move |phase| {
        phases.send_replace(ReadingState::Reading(connect_phase(phase)));
        changed.notify_one();
    };
    let mut relay = Relay::open(ssh, machine, &hello, demultiplexer, &progress).await?;
    states.send(ReadingState::Reading(ConnectPhase::FirstSample));
    let mut events = PictureEvents::default();
    loop {
        let more = relay.next(clock).await?;
        let is_complete = more.contains(&ViewerEvent::Complete);
        events.extend(more);
        if is_complete {
            break;
        }
    }
    states.send(ReadingState::Complete(relay.hosts().iter().map(|host| host.name.clone()).collect()));
    loop {
        tokio::select! {
            biased;
            _ = &mut handed_over => return Ok(Picture { relay, events: events.into_events() }),
            more = relay.next(clock), if hello.follow => events.extend(more?),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::collect::{Opening, Progress};
    use crate::ssh::transport::{Channel, SshPhase};
    use tokio::io::AsyncWriteExt as _;

    /// An SSH client that connects to a collector which writes these lines and then waits.
    pub(in crate::collect) struct Scripted(pub(in crate::collect) String);

    impl OpenChannel for Scripted {
        fn open<'a>(self: Arc<Self>, _: &'a HostConfig, _: &'a str, progress: &'a Progress) -> Opening<'a> {
            Box::pin(async move {
                progress(SshPhase::Login);
                // Virtual time, in which the viewer begins.
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                let (mut output, stdout) = tokio::io::duplex(4096);
                output.write_all(self.0.as_bytes()).await.expect("has room");
                let (end, exit) = oneshot::channel();
                Ok(Channel {
                    stdin: Box::pin(tokio::io::sink()),
                    stdout: Box::pin(stdout),
                    stderr: Box::pin(tokio::io::empty()),
                    exit,
                    guard: Box::new((output, end)),
                })
            })
        }
    }

    pub(in crate::collect) const PICTURE: &str = "{\"collector\":{\"protocol\":1,\"host_name\":\"lab-head\"}}\n\
                           {\"hosts\":{\"first\":0,\"list\":[{\"name\":\"a\"},{\"name\":\"b\"}]}}\n\"complete\"\n";

    fn start(lines: &str, changed: &Arc<Notify>) -> PictureReading {
        let machine = Arc::new(HostConfig::named("lab-head"));
        let ssh: Arc<dyn OpenChannel> = Arc::new(Scripted(lines.to_owned()));
        let clock = Clock::start(1.0);
        PictureReading::start(ssh, machine, clock, ViewerHello::follow(), Demultiplexer::default(), Arc::clone(changed))
    }

    #[tokio::test(start_paused = true)]
    async fn a_complete_picture_is_announced_and_waits_until_it_is_taken() {
        let changed = Arc::new(Notify::new());
        let reading = start(PICTURE, &changed);
        while matches!(reading.state(), ReadingState::Reading(_)) {
            changed.notified().await;
        }
        assert_eq!(reading.state(), ReadingState::Complete(vec!["a".into(), "b".into()]));
        let picture = reading.take().await.expect("a picture");
        assert!(picture.events.contains(&ViewerEvent::Complete) && picture.relay.hosts().len() == 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_picture_that_fails_is_announced_with_its_cause() {
        let changed = Arc::new(Notify::new());
        let reading = start("{\"refused\":{\"kind\":\"ending\",\"reason\":\"the collector was stopped\"}}\n", &changed);
        while matches!(reading.state(), ReadingState::Reading(_)) {
            changed.notified().await;
        }
        assert_eq!(reading.state(), ReadingState::Failed);
        let error = reading.take().await.err().expect("an error");
        assert_eq!(error.message, "lab-head: the collector was stopped");
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_reading_ends_its_connection() {
        let changed = Arc::new(Notify::new());
        let reading = start("", &changed);
        changed.notified().await;
        let state = reading.state.clone();
        let began = tokio::time::Instant::now();
        drop(reading);
        let mut state = state;
        while state.changed().await.is_ok() {}
        assert_eq!(*state.borrow(), ReadingState::Failed);
        assert_eq!(began.elapsed(), std::time::Duration::ZERO, "it did not wait for the connection");
    }
}
