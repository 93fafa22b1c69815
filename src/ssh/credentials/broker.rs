//! The prompt broker: joins equal prompts of several hosts and gives one answer to all of them.

use crate::ssh::prompt::{Answer, Interaction, Prompt, PromptEvent, PromptId, PromptKind};
use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;

/// The capacity of the event channel. Further events wait in the broker, one per prompt.
const CHANNEL_CAPACITY: usize = 16;

/// The subject of a prompt. Questions with equal keys share one prompt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::ssh) enum PromptKey {
    /// The passphrase of this file.
    KeyFile(PathBuf),
    /// Whether to trust the key with this fingerprint for this host.
    HostKey { name: String, fingerprint: String },
    /// A password or a code for one login. Never shared, because codes are valid only once.
    Login { target: String, connection: u64 },
}

/// Why a question was not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ssh) enum Unanswered {
    /// [`Interaction::Refuse`] is set.
    NotInteractive,
    /// The receiver of the prompts was dropped.
    ReceiverDropped,
}

/// See the module documentation.
#[derive(Debug)]
pub(in crate::ssh) struct Broker {
    interaction: Interaction,
    shared: Arc<Shared>,
    /// Taken when the first prompt starts the task that forwards events.
    events: Mutex<Option<mpsc::Sender<PromptEvent>>>,
    forwarding: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    next_prompt: u64,
    next_waiter: u64,
    open: HashMap<PromptKey, OpenPrompt>,
    queue: PromptEventQueue,
    receiver_dropped: bool,
}

#[derive(Debug)]
struct OpenPrompt {
    prompt: Prompt,
    waiters: Vec<Waiter>,
    /// Whether the receiver has the prompt.
    seen: bool,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    host: String,
    answer: oneshot::Sender<Arc<Answer>>,
}

impl Broker {
    pub(in crate::ssh) fn new(interaction: Interaction) -> (Self, mpsc::Receiver<PromptEvent>) {
        let (events, receiver) = mpsc::channel(CHANNEL_CAPACITY);
        let broker = Self {
            interaction,
            shared: Arc::default(),
            events: Mutex::new(Some(events)),
            forwarding: Mutex::default(),
        };
        (broker, receiver)
    }

    /// Whether prompts can be answered.
    pub(in crate::ssh) fn can_prompt(&self) -> bool {
        self.interaction == Interaction::Ask && !self.shared.lock().receiver_dropped
    }

    /// A unique number for [`PromptKey::Login`].
    pub(in crate::ssh) fn next_login_id(&self) -> u64 {
        let mut state = self.shared.lock();
        state.next_waiter += 1;
        state.next_waiter
    }

    /// Asks on behalf of `host` and waits for the answer. Joins an open prompt with the same key. Dropping the future
    /// withdraws the prompt if no other host waits for it.
    pub(in crate::ssh) async fn ask(
        &self,
        key: PromptKey,
        host: &str,
        kind: PromptKind,
    ) -> Result<(PromptId, Arc<Answer>), Unanswered> {
        if self.interaction == Interaction::Refuse {
            return Err(Unanswered::NotInteractive);
        }
        self.start_forwarding();
        let (answer, receiver) = oneshot::channel();
        let (guard, prompt) = {
            let mut state = self.shared.lock();
            if state.receiver_dropped {
                return Err(Unanswered::ReceiverDropped);
            }
            state.next_waiter += 1;
            let id = state.next_waiter;
            let prompt = state.add_waiter(&key, kind, Waiter { id, host: host.to_owned(), answer });
            (WaiterGuard { shared: Arc::clone(&self.shared), key, id }, prompt)
        };
        self.shared.changed.notify_one();
        let answer = receiver.await.map_err(|_| Unanswered::ReceiverDropped);
        drop(guard);
        Ok((prompt, answer?))
    }

    /// Waits until the user is present for a login whose server does not wait long for answers. Returns whether to log
    /// in.
    pub(in crate::ssh) async fn confirm_login(&self, host: &str, target: String) -> bool {
        let kind = PromptKind::Secret {
            text: format!("Press Enter to log in to {host}:"),
            instruction: "The server asks questions and does not wait long for the answers.".to_owned(),
            echo: true,
            failures: 0,
        };
        let key = PromptKey::Login { target, connection: self.next_login_id() };
        matches!(self.ask(key, host, kind).await, Ok((_, answer)) if matches!(*answer, Answer::Secret(_)))
    }

    /// Gives `answer` to all hosts that wait for the prompt.
    pub(in crate::ssh) fn answer(&self, id: PromptId, answer: Answer) {
        let mut state = self.shared.lock();
        let Some(key) = state.open.iter().find(|(_, open)| open.prompt.id == id).map(|(key, _)| key.clone()) else {
            return;
        };
        let answer = Arc::new(answer);
        for waiter in state.open.remove(&key).map(|open| open.waiters).unwrap_or_default() {
            // An error means that the waiter is gone.
            let _ = waiter.answer.send(Arc::clone(&answer));
        }
    }

    fn start_forwarding(&self) {
        let sender = self.events.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = sender {
            let task = tokio::spawn(forward(Arc::clone(&self.shared), sender));
            *self.forwarding.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(task) = self.forwarding.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Adds a waiter to the open prompt with this key, or opens one.
    fn add_waiter(&mut self, key: &PromptKey, kind: PromptKind, waiter: Waiter) -> PromptId {
        let next = &mut self.next_prompt;
        let open = self.open.entry(key.clone()).or_insert_with(|| {
            *next += 1;
            OpenPrompt {
                prompt: Prompt { id: PromptId(*next), hosts: Vec::new(), kind },
                waiters: Vec::new(),
                seen: false,
            }
        });
        open.waiters.push(waiter);
        open.refresh_hosts();
        self.queue.push_prompt(open.prompt.clone());
        open.prompt.id
    }

    /// Removes a waiter whose future was dropped.
    fn remove_waiter(&mut self, key: &PromptKey, waiter: u64) {
        let Some(open) = self.open.get_mut(key) else { return };
        let before = open.waiters.len();
        open.waiters.retain(|known| known.id != waiter);
        if open.waiters.is_empty() {
            let (id, seen) = (open.prompt.id, open.seen);
            self.open.remove(key);
            self.queue.push_withdrawn(id, seen);
        } else if open.waiters.len() < before {
            open.refresh_hosts();
            let prompt = open.prompt.clone();
            self.queue.push_prompt(prompt);
        }
    }

    /// Takes the next event and marks its prompt as seen.
    fn next_event(&mut self) -> Option<PromptEvent> {
        let event = self.queue.next()?;
        if let PromptEvent::Opened(prompt) = &event
            && let Some(open) = self.open.values_mut().find(|open| open.prompt.id == prompt.id)
        {
            open.seen = true;
        }
        Some(event)
    }
}

impl OpenPrompt {
    fn refresh_hosts(&mut self) {
        self.prompt.hosts.clear();
        for waiter in &self.waiters {
            if !self.prompt.hosts.contains(&waiter.host) {
                self.prompt.hosts.push(waiter.host.clone());
            }
        }
    }
}

/// Removes a waiter when dropped.
struct WaiterGuard {
    shared: Arc<Shared>,
    key: PromptKey,
    id: u64,
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        self.shared.lock().remove_waiter(&self.key, self.id);
        self.shared.changed.notify_one();
    }
}

/// Sends events to the receiver. When the receiver is dropped, all waiters get [`Unanswered::ReceiverDropped`].
async fn forward(shared: Arc<Shared>, events: mpsc::Sender<PromptEvent>) {
    loop {
        // Reserve a slot first: until there is one, a new event of a prompt replaces the previous one.
        let permit = tokio::select! {
            permit = events.reserve() => permit,
            () = events.closed() => break,
        };
        let Ok(permit) = permit else { break };
        let event = loop {
            let event = shared.lock().next_event();
            if event.is_some() {
                break event;
            }
            tokio::select! {
                () = shared.changed.notified() => {}
                () = events.closed() => break None,
            }
        };
        match event {
            Some(event) => permit.send(event),
            None => break,
        }
    }
    let mut state = shared.lock();
    state.receiver_dropped = true;
    state.open.clear();
}

/// Events that wait for the receiver, at most one per prompt: a slow receiver gets the latest state.
#[derive(Debug, Default)]
struct PromptEventQueue {
    events: VecDeque<PromptEvent>,
}

impl PromptEventQueue {
    fn push_prompt(&mut self, prompt: Prompt) {
        let waiting = self.events.iter_mut().find_map(|event| match event {
            PromptEvent::Opened(earlier) if earlier.id == prompt.id => Some(earlier),
            _ => None,
        });
        match waiting {
            Some(earlier) => *earlier = prompt,
            None => self.events.push_back(PromptEvent::Opened(prompt)),
        }
    }

    /// `seen` is whether the receiver has the prompt. If not, it needs neither event.
    fn push_withdrawn(&mut self, id: PromptId, seen: bool) {
        self.events.retain(|event| !matches!(event, PromptEvent::Opened(prompt) if prompt.id == id));
        if seen {
            self.events.push_back(PromptEvent::Withdrawn(id));
        }
    }

    fn next(&mut self) -> Option<PromptEvent> {
        self.events.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssh::prompt::Secret;
    use std::time::Duration;
    use zeroize::Zeroizing;

    const DEADLINE: Duration = Duration::from_secs(5);

    fn passphrase() -> PromptKind {
        PromptKind::Passphrase { path: "/k".into(), fingerprint: None, failures: 0 }
    }

    fn key() -> PromptKey {
        PromptKey::KeyFile("/k".into())
    }

    async fn next(events: &mut mpsc::Receiver<PromptEvent>) -> PromptEvent {
        tokio::time::timeout(DEADLINE, events.recv()).await.unwrap().unwrap()
    }

    /// Receives events until the prompt has this number of hosts.
    async fn opened_for(events: &mut mpsc::Receiver<PromptEvent>, hosts: usize) -> Prompt {
        loop {
            match next(events).await {
                PromptEvent::Opened(prompt) if prompt.hosts.len() == hosts => return prompt,
                PromptEvent::Opened(_) => {}
                PromptEvent::Withdrawn(id) => panic!("{id:?} was withdrawn"),
            }
        }
    }

    #[tokio::test]
    async fn ten_hosts_share_one_prompt_and_its_answer() {
        let (broker, mut events) = Broker::new(Interaction::Ask);
        let broker = Arc::new(broker);
        let mut hosts = tokio::task::JoinSet::new();
        for number in 0..10 {
            let broker = Arc::clone(&broker);
            hosts.spawn(async move { broker.ask(key(), &format!("gpu{number}"), passphrase()).await });
        }
        let prompt = opened_for(&mut events, 10).await;
        broker.answer(prompt.id, Answer::Secret(Secret::new(Zeroizing::new("sesame".into()))));
        let mut answers = 0;
        while let Some(answer) = hosts.join_next().await {
            let (id, answer) = answer.unwrap().unwrap();
            assert_eq!(id, prompt.id);
            assert!(matches!(&*answer, Answer::Secret(secret) if secret.expose() == "sesame"));
            answers += 1;
        }
        assert_eq!(answers, 10);
        assert!(broker.shared.lock().open.is_empty());
    }

    #[tokio::test]
    async fn the_prompt_is_withdrawn_when_the_last_host_leaves() {
        let (broker, mut events) = Broker::new(Interaction::Ask);
        let broker = Arc::new(broker);
        let ask = |host: &'static str| {
            let broker = Arc::clone(&broker);
            tokio::spawn(async move { broker.ask(key(), host, passphrase()).await })
        };
        let first = ask("gpu01");
        opened_for(&mut events, 1).await;
        let second = ask("gpu02");
        let prompt = opened_for(&mut events, 2).await;
        first.abort();
        assert_eq!(opened_for(&mut events, 1).await.hosts, ["gpu02"]);
        second.abort();
        assert_eq!(next(&mut events).await, PromptEvent::Withdrawn(prompt.id));
        broker.answer(prompt.id, Answer::Decline);
    }

    #[test]
    fn a_prompt_withdrawn_before_it_was_received_sends_no_event() {
        let mut state = State::default();
        let (answer, _receiver) = oneshot::channel();
        state.add_waiter(&key(), passphrase(), Waiter { id: 1, host: "gpu01".into(), answer });
        state.remove_waiter(&key(), 1);
        assert_eq!(state.next_event(), None);
    }

    #[tokio::test]
    async fn questions_fail_without_a_receiver_or_interaction() {
        let (broker, events) = Broker::new(Interaction::Ask);
        drop(events);
        assert!(matches!(
            tokio::time::timeout(DEADLINE, broker.ask(key(), "gpu01", passphrase())).await.unwrap(),
            Err(Unanswered::ReceiverDropped)
        ));
        assert!(!broker.can_prompt());
        let (broker, _events) = Broker::new(Interaction::Refuse);
        assert!(matches!(broker.ask(key(), "gpu01", passphrase()).await, Err(Unanswered::NotInteractive)));
    }
}
