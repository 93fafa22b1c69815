//! What the terminal sends: keys, pastes, clicks, sizes.

use crossterm::event::{Event, EventStream};
use futures::StreamExt;
use std::io;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Events that may wait for the loop; it takes them at once.
const WAITING: usize = 64;

/// Reads the terminal in a task of its own; dropping it ends the task.
///
/// The loop polls all that it waits for whenever one of them is ready. A poll of crossterm's stream takes a lock that
/// its reading thread holds nearly always, and yields the CPU about twenty times before it gives up: measured with 16
/// hosts at 1 s that was 320 calls of `sched_yield` a second. Here the stream is only polled when it has something.
#[derive(Debug)]
pub(super) struct Keyboard {
    events: mpsc::Receiver<io::Result<Event>>,
    _task: JoinSet<()>,
}

impl Keyboard {
    /// Begins to read. To be called within a tokio runtime, once the terminal is in raw mode.
    pub(super) fn start() -> Self {
        let (sender, events) = mpsc::channel(WAITING);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut stream = EventStream::new();
            while let Some(event) = stream.next().await {
                if sender.send(event).await.is_err() {
                    return;
                }
            }
        });
        Self { events, _task: task }
    }

    /// The next event, an error when the terminal cannot be read, `None` when it has ended.
    pub(super) async fn next(&mut self) -> Option<io::Result<Event>> {
        self.events.recv().await
    }
}
