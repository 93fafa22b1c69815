//! The state of the collector, and the two ways to follow it: observers and readers.

use crate::config::HostConfig;
use crate::diagnosis::{Engine, Transition};
use crate::fleet::{Fleet, HostChange, HostId, HostUpdate, Moment};
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// The fleet and its diagnosis. Host updates and ticks change it; everything else only reads.
pub struct CollectorState {
    /// The hosts and their readings.
    pub fleet: Fleet,
    /// The findings and the states of GPUs.
    pub engine: Engine,
    /// Every follower of the state.
    observers: Vec<Box<dyn Observer>>,
}

/// An update after the fleet and the engine have taken it.
pub struct Applied<'a> {
    /// The host.
    pub host: HostId,
    /// The part of the host that changed.
    pub change: HostChange,
    /// The findings that changed.
    pub transitions: &'a [Transition],
    /// The time of the update.
    pub now: Moment,
}

/// The end of an observer, which returns messages for the log.
pub type EndFuture = Pin<Box<dyn Future<Output = Vec<String>> + Send>>;

/// A part of the collector that follows the state. All methods run on the event loop and must not block.
pub trait Observer {
    /// A host is about to take an update. This is the only place that sees a snapshot as the probe sent it, because the
    /// fleet moves its columns.
    fn before(&mut self, _state: &CollectorState, _host: HostId, _update: &HostUpdate, _now: Moment) {}

    /// A host has taken an update, and the engine has evaluated it.
    fn applied(&mut self, _state: &CollectorState, _applied: &Applied<'_>) {}

    /// A second has passed. `transitions` are the findings that changed without a sample.
    fn tick(&mut self, _state: &CollectorState, _transitions: &[Transition], _now: Moment) {}

    /// hosts.toml was read again. Every [`HostId`] may mean another host now; names stay.
    fn hosts_changed(&mut self, _state: &CollectorState, _now: Moment) {}

    /// The collector ends. The future is dropped after two seconds.
    fn finish(self: Box<Self>, _state: &CollectorState, _now: Moment) -> EndFuture {
        Box::pin(std::future::ready(Vec::new()))
    }
}

impl CollectorState {
    /// Creates the state of hosts that have not been contacted yet.
    pub fn new(fleet: Fleet, engine: Engine) -> Self {
        Self { fleet, engine, observers: Vec::new() }
    }

    /// Adds a follower.
    pub fn observe(&mut self, observer: impl Observer + 'static) {
        self.observers.push(Box::new(observer));
    }

    /// Applies an update of a host. Returns the findings that changed.
    pub fn apply(&mut self, host: HostId, update: HostUpdate, now: Moment) -> Vec<Transition> {
        let mut observers = std::mem::take(&mut self.observers);
        for observer in &mut observers {
            observer.before(self, host, &update, now);
        }
        let change = self.fleet.apply(host, update, now);
        let transitions = self.engine.evaluate_host(&self.fleet, host, now);
        let applied = Applied { host, change, transitions: &transitions, now };
        for observer in &mut observers {
            observer.applied(self, &applied);
        }
        self.observers = observers;
        transitions
    }

    /// Does the work of each second. Returns the findings that changed.
    pub fn tick(&mut self, now: Moment) -> Vec<Transition> {
        let transitions = self.engine.tick(&self.fleet, now);
        let mut observers = std::mem::take(&mut self.observers);
        for observer in &mut observers {
            observer.tick(self, &transitions, now);
        }
        self.observers = observers;
        transitions
    }

    /// Replaces the list of hosts. A host that keeps its name keeps its readings and its history. Returns the new id of
    /// each host by its old one, `None` for a removed host.
    ///
    /// The order of the configurations becomes that of the fleet.
    ///
    /// Without a removed host every id stays, and added hosts have the next ids. If a host was removed, ids change and the
    /// diagnosis continues from its saved state, as after a restart: the ids are part of its state.
    pub fn set_hosts(&mut self, configs: &[Arc<HostConfig>], now: Moment) -> Vec<Option<HostId>> {
        let is_kept = |name: &str| configs.iter().any(|config| config.name == *name);
        let is_any_removed = self.fleet.hosts().iter().any(|host| !is_kept(host.name()));
        let ids = if is_any_removed {
            let saved = self.engine.to_saved_state(&self.fleet, now);
            let ids = self.fleet.rearrange(configs, now);
            self.engine = Engine::default();
            self.engine.restore(saved, now);
            ids
        } else {
            let old = self.fleet.hosts().iter().map(|host| Arc::clone(&host.config));
            let mut order: Vec<Arc<HostConfig>> = old.collect();
            for config in configs {
                match order.iter_mut().find(|old| old.name == config.name) {
                    Some(old) => *old = Arc::clone(config),
                    None => order.push(Arc::clone(config)),
                }
            }
            self.fleet.rearrange(&order, now)
        };
        let id_of = |config: &Arc<HostConfig>| self.fleet.hosts().iter().find(|host| host.config.name == config.name);
        let order: Vec<HostId> = configs.iter().filter_map(id_of).map(|host| host.id).collect();
        self.fleet.set_order(&order);
        let mut observers = std::mem::take(&mut self.observers);
        for observer in &mut observers {
            observer.hosts_changed(self, now);
        }
        self.observers = observers;
        ids
    }

    /// Ends every observer. The futures do the remaining work.
    pub fn finish(&mut self, now: Moment) -> Vec<EndFuture> {
        let observers = std::mem::take(&mut self.observers);
        observers.into_iter().map(|observer| observer.finish(self, now)).collect()
    }
}

/// A function that the event loop runs on the state.
pub(super) type Query = Box<dyn FnOnce(&CollectorState, Moment) + Send>;

/// The number of functions that wait for the event loop; further readers wait.
const MAX_WAITING_QUERIES: usize = 64;

/// Reads the state of the collector from another task.
#[derive(Clone)]
pub struct StateReader(mpsc::Sender<Query>);

impl StateReader {
    /// Creates a reader, and the receiver for the event loop.
    pub(super) fn channel() -> (Self, mpsc::Receiver<Query>) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING_QUERIES);
        (Self(sender), receiver)
    }

    /// Runs `read` on the event loop and returns its result, or `None` if the collector ends. It delays updates, so it
    /// must take at most a few milliseconds.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&CollectorState, Moment) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        let query: Query = Box::new(move |state, now| {
            // The requester may have gone away.
            let _taken = sender.send(read(state, now));
        });
        self.0.send(query).await.ok()?;
        receiver.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{LinkError, LinkErrorKind};
    use std::sync::Mutex;
    use std::time::Duration;

    fn config(name: &str, port: Option<u16>) -> Arc<HostConfig> {
        Arc::new(HostConfig { port, ..HostConfig::named(name) })
    }

    fn state(names: &[&str]) -> CollectorState {
        let configs: Vec<_> = names.iter().map(|name| config(name, None)).collect();
        CollectorState::new(Fleet::new(&configs, false, Moment::default()), Engine::default())
    }

    fn names(state: &CollectorState) -> Vec<&str> {
        state.fleet.hosts().iter().map(|host| host.name().as_str()).collect()
    }

    fn down() -> HostUpdate {
        let error = LinkError::new(LinkErrorKind::Refused, "nothing listens on port 22");
        HostUpdate::Down { error, retry_at: None, attempt: 1 }
    }

    #[test]
    fn added_and_changed_hosts_keep_the_ids() {
        let mut state = state(&["a", "b"]);
        state.apply(HostId(1), down(), Moment::default());
        let ids = state.set_hosts(&[config("c", None), config("b", Some(2200)), config("a", None)], Moment::default());
        assert_eq!(ids, [Some(HostId(0)), Some(HostId(1))]);
        assert_eq!(names(&state), ["a", "b", "c"]);
        let order: Vec<&str> = state.fleet.hosts_in_order().iter().map(|host| host.name().as_str()).collect();
        assert_eq!(order, ["c", "b", "a"], "as in the file");
        let host = &state.fleet.hosts()[1];
        assert_eq!((host.id, host.link.word(), host.config.port), (HostId(1), "down", Some(2200)));
    }

    #[test]
    fn after_a_removal_the_hosts_are_in_the_order_of_the_file() {
        let mut state = state(&["a", "b", "c"]);
        state.apply(HostId(2), down(), Moment::default());
        let ids = state.set_hosts(&[config("c", None), config("d", None), config("a", None)], Moment::default());
        assert_eq!(ids, [Some(HostId(2)), None, Some(HostId(0))]);
        assert_eq!(names(&state), ["c", "d", "a"]);
        let hosts = state.fleet.hosts();
        assert_eq!((hosts[0].link.word(), hosts[1].link.word()), ("down", "connecting"));
        assert!(hosts.iter().zip(0..).all(|(host, index)| host.id == HostId(index)));
    }

    /// Notes each call.
    struct Notes(Arc<Mutex<Vec<String>>>);

    impl Observer for Notes {
        fn before(&mut self, state: &CollectorState, host: HostId, _: &HostUpdate, _: Moment) {
            let link = state.fleet.host(host).map_or("-", |host| host.link.word());
            self.0.lock().expect("lock").push(format!("before {link}"));
        }
        fn applied(&mut self, state: &CollectorState, applied: &Applied<'_>) {
            let link = state.fleet.host(applied.host).map_or("-", |host| host.link.word());
            self.0.lock().expect("lock").push(format!("applied {link}"));
        }
        fn tick(&mut self, _: &CollectorState, _: &[Transition], now: Moment) {
            self.0.lock().expect("lock").push(format!("tick {}", now.since_start().as_secs()));
        }
        fn hosts_changed(&mut self, state: &CollectorState, _: Moment) {
            self.0.lock().expect("lock").push(format!("{} hosts", state.fleet.hosts().len()));
        }
        fn finish(self: Box<Self>, _: &CollectorState, _: Moment) -> EndFuture {
            Box::pin(async move {
                self.0.lock().expect("lock").push("end".to_owned());
                vec!["ended".to_owned()]
            })
        }
    }

    #[tokio::test]
    async fn observers_follow_updates_ticks_and_hosts() {
        let mut state = state(&["a"]);
        let notes = Arc::new(Mutex::new(Vec::new()));
        state.observe(Notes(Arc::clone(&notes)));
        state.apply(HostId(0), down(), Moment::default());
        state.tick(Moment::new(Duration::from_secs(7), Duration::ZERO));
        state.set_hosts(&[config("a", None), config("b", None)], Moment::default());
        let mut messages = Vec::new();
        for end in state.finish(Moment::default()) {
            messages.extend(end.await);
        }
        assert_eq!(messages, ["ended"]);
        assert_eq!(*notes.lock().expect("lock"), ["before connecting", "applied down", "tick 7", "2 hosts", "end"]);
    }

    #[tokio::test]
    async fn a_reader_gets_the_result_of_its_function() {
        let state = state(&["a", "b"]);
        let (reader, mut queries) = StateReader::channel();
        let answer = tokio::spawn(async move { reader.read(|state, _| state.fleet.hosts().len()).await });
        queries.recv().await.expect("a query")(&state, Moment::default());
        assert_eq!(answer.await.expect("ends"), Some(2));
        let (reader, queries) = StateReader::channel();
        drop(queries);
        assert_eq!(reader.read(|_, _| ()).await, None, "the collector has ended");
    }
}
