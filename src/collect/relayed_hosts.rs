//! The hosts of collectors on other machines: the lines of each collector become updates of its hosts.

use super::channels::{Command, HostUpdates, QueuedUpdate, ReceiverDropped, UpdateSender, update_channel};
use super::own_session::{Order, act, as_seen_by_host};
use super::picture_reading::{PictureReading, ReadingState};
use super::relay::{DROPPED, Picture, Relay, RelayRoute, silent};
use crate::config::HostConfig;
use crate::fleet::{HistoryQuery, HistoryReply, HostId, HostUpdate, LinkError, LinkErrorKind, Moment};
use crate::share::{CollectorInfo, Demultiplexer, HostInfo, JobVerdict, ViewerEvent, ViewerHello};
use crate::wire::SafeText;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// Without a line for this long, the hosts are stale. The collector sends one every 2 s.
const STALE: Duration = Duration::from_secs(5);
/// Capacity of the update channel.
const WAITING_UPDATES: usize = 1024;
/// Capacity of the channels of commands and requests.
const WAITING_COMMANDS: usize = 64;
/// Lists of new hosts that may wait for the viewer.
const WAITING_LISTS: usize = 8;
/// The number of hosts whose verdicts may wait.
const WAITING_VERDICTS: usize = 64;
/// Requests for histories, and their answers, that may wait.
const WAITING_QUERIES: usize = 16;
/// The delays before the connections after a failure: they double from the first to the last.
const DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// The picture of a collector when a viewer begins.
pub enum FirstPicture {
    /// It is complete.
    Complete(Box<Picture>),
    /// It could not be read.
    Failed(LinkError),
    /// It is not complete yet.
    Pending(PictureReading),
}

impl FirstPicture {
    /// The hosts of a complete picture.
    pub fn hosts(&self) -> Option<&[HostInfo]> {
        match self {
            Self::Complete(picture) => Some(picture.relay.hosts()),
            Self::Failed(_) | Self::Pending(_) => None,
        }
    }

    /// The hosts of a complete picture, in the order of their ids in the protocol. The last list of the collector may have another
    /// order.
    pub fn names(&self) -> Option<&[SafeText]> {
        match self {
            Self::Complete(picture) => Some(picture.relay.demultiplexer.names()),
            Self::Failed(_) | Self::Pending(_) => None,
        }
    }

    /// The collector of a complete picture.
    pub fn info(&self) -> Option<&CollectorInfo> {
        match self {
            Self::Complete(picture) => picture.relay.info(),
            Self::Failed(_) | Self::Pending(_) => None,
        }
    }
}

/// A collector that a viewer follows, and its hosts.
pub struct FollowedCollector {
    /// How to reach it.
    pub route: RelayRoute,
    /// Its picture and its connection.
    pub picture: FirstPicture,
    /// The hosts in the order of the lines, each with its id in the fleet; `None` if the fleet has it from another collector.
    pub hosts: Vec<(SafeText, Option<HostId>)>,
    /// The pane that stands for the hosts of a collector that has not answered yet.
    pub placeholder: Option<HostId>,
    /// Configures a host that the collector lists later; `None` if only `hosts` are shown.
    pub configure: Option<ConfigureHost>,
}

/// Returns the configuration of a host of a collector: how the viewer shows and reaches it.
pub type ConfigureHost = Arc<dyn Fn(&HostInfo, &CollectorInfo) -> Arc<HostConfig> + Send + Sync>;

/// Hosts that a collector lists and that the viewer does not show yet. The viewer adds them to its fleet and calls
/// [`RelayedHosts::add`]; their updates follow.
#[derive(Debug)]
pub struct NewHosts {
    /// The hosts, in the order of the collector.
    pub hosts: Vec<Arc<HostConfig>>,
    /// The pane that stood for them; the first host takes its place.
    pub placeholder: Option<HostId>,
    /// The collector, by its position on the command line.
    collector: usize,
    /// All its hosts, in its order.
    listed: Vec<SafeText>,
    info: CollectorInfo,
    added: oneshot::Sender<Vec<(HostId, Arc<HostConfig>)>>,
}

impl NewHosts {
    /// Adds the hosts to those of a fleet. Returns the ones that are new there, with their ids; the fleet has the others from
    /// another collector.
    pub fn place(&self, fleet: &mut Vec<Arc<HostConfig>>) -> Vec<(HostId, Arc<HostConfig>)> {
        let mut placeholder = self.placeholder.map(|id| id.0 as usize).filter(|index| *index < fleet.len());
        let mut placed = Vec::new();
        for host in &self.hosts {
            if fleet.iter().any(|known| known.name == host.name) {
                continue;
            }
            let index = placeholder.take().unwrap_or(fleet.len());
            match fleet.get_mut(index) {
                Some(pane) => *pane = Arc::clone(host),
                None => fleet.push(Arc::clone(host)),
            }
            placed.push((HostId(index as u32), Arc::clone(host)));
        }
        placed
    }
}

/// One of the collectors.
struct CollectorHandle {
    name: SafeText,
    retry: mpsc::Sender<()>,
    queries: mpsc::Sender<HistoryQuery>,
    /// `None` until it has answered.
    info: Option<CollectorInfo>,
}

/// The readings and host lists that a viewer receives from its collectors.
pub struct RelayedParts {
    /// Takes commands and requests.
    pub hosts: RelayedHosts,
    /// The updates of the hosts.
    pub updates: HostUpdates,
    /// The answers to requests for histories.
    pub histories: mpsc::Receiver<HistoryReply>,
    /// Hosts to add.
    pub new_hosts: mpsc::Receiver<NewHosts>,
    /// The verdicts of the collectors about the jobs of a host, in place of the earlier ones.
    pub verdicts: mpsc::Receiver<(HostId, Vec<JobVerdict>)>,
}

/// A host of the fleet.
struct RelayedHost {
    config: Arc<HostConfig>,
    /// The position of its collector.
    collector: usize,
}

/// The hosts of one or several collectors. Dropping it ends all sessions.
pub struct RelayedHosts {
    orders: mpsc::Sender<Order>,
    collectors: Vec<CollectorHandle>,
    /// The hosts of the fleet, by id.
    hosts: Vec<RelayedHost>,
    /// The order in which they are shown.
    order: Vec<HostId>,
    histories: mpsc::Sender<HistoryReply>,
    _tasks: JoinSet<()>,
}

impl RelayedHosts {
    /// Follows collectors. `hosts` are those of the fleet, and say how this program reaches each one. Must be called within
    /// a tokio runtime.
    pub fn start(followed: Vec<FollowedCollector>, hosts: &[Arc<HostConfig>]) -> RelayedParts {
        let (updates, receiver) = update_channel(WAITING_UPDATES);
        let (histories, answers) = mpsc::channel(WAITING_QUERIES);
        let (orders, ordered) = mpsc::channel(WAITING_COMMANDS);
        let (lists, new_hosts) = mpsc::channel(WAITING_LISTS);
        let (judgements, verdicts) = mpsc::channel(WAITING_VERDICTS);
        let mut tasks = JoinSet::new();
        let mut collectors = Vec::new();
        let relayed = |config: &Arc<HostConfig>| RelayedHost { config: Arc::clone(config), collector: 0 };
        let mut owned: Vec<RelayedHost> = hosts.iter().map(relayed).collect();
        let route = followed.first().map(|one| one.route.clone());
        for (index, one) in followed.into_iter().enumerate() {
            let (queries, queried) = mpsc::channel(WAITING_QUERIES);
            let (retry, retries) = mpsc::channel(1);
            let mut shown_host = |id: HostId| {
                let host = owned.get_mut(id.0 as usize)?;
                host.collector = index;
                Some((UpdateSender::new(id, updates.clone()), Arc::clone(&host.config)))
            };
            let follower = Follower {
                index,
                names: one.hosts.iter().map(|(name, _)| name.clone()).collect(),
                shown: one.hosts.iter().map(|(_, id)| id.and_then(&mut shown_host)).collect(),
                links: vec![None; one.hosts.len()],
                placeholder: one.placeholder.and_then(&mut shown_host).map(|(sender, _)| sender),
                configure: one.configure,
                lists: lists.clone(),
                updates: updates.clone(),
                route: one.route.clone(),
                retries,
                queries: queried,
                histories: histories.clone(),
                verdicts: judgements.clone(),
            };
            collectors.push(CollectorHandle {
                name: one.route.machine.name.clone(),
                retry,
                queries,
                info: one.picture.info().cloned(),
            });
            if follower.configure.is_none() && follower.shown.iter().all(Option::is_none) {
                // None of its hosts is on the screen, or will be.
                continue;
            }
            tasks.spawn(async move {
                let _receiver_dropped = follower.run(one.picture).await;
            });
        }
        if let Some(route) = route {
            tasks.spawn(act(route, updates, ordered));
        }
        let order = (0..owned.len()).map(|id| HostId(id as u32)).collect();
        let hosts = Self { orders, collectors, hosts: owned, order, histories, _tasks: tasks };
        RelayedParts { hosts, updates: receiver, histories: answers, new_hosts, verdicts }
    }

    /// Takes the hosts that [`NewHosts::place`] has added to the fleet, and lets their updates follow. Returns the order in
    /// which all hosts are shown now: the collectors as on the command line, the hosts of each as it lists them.
    pub fn add(&mut self, new: NewHosts, placed: Vec<(HostId, Arc<HostConfig>)>) -> Vec<HostId> {
        for (id, config) in &placed {
            let host = RelayedHost { config: Arc::clone(config), collector: new.collector };
            match self.hosts.get_mut(id.0 as usize) {
                Some(pane) => *pane = host,
                None => self.hosts.push(host),
            }
        }
        if let Some(collector) = self.collectors.get_mut(new.collector) {
            collector.info = Some(new.info);
        }
        self.insert_in_order(new.collector, &new.listed, &placed);
        // If the collector's task has ended, nothing follows.
        let _ended = new.added.send(placed);
        self.order.clone()
    }

    /// Inserts hosts into the order behind the host that stands before them in the list of their collector, else before the
    /// one that follows, else behind the earlier collectors. Hosts that are shown already do not move.
    fn insert_in_order(&mut self, collector: usize, listed: &[SafeText], placed: &[(HostId, Arc<HostConfig>)]) {
        let ids: HashMap<&SafeText, HostId> = (0..)
            .map(HostId)
            .zip(&self.hosts)
            .filter(|(_, host)| host.collector == collector)
            .map(|(id, host)| (&host.config.name, id))
            .collect();
        let listed: Vec<HostId> = listed.iter().filter_map(|name| ids.get(name).copied()).collect();
        let placed: HashSet<HostId> = placed.iter().map(|(id, _)| *id).collect();
        for (index, id) in listed.iter().enumerate().filter(|(_, id)| placed.contains(id)) {
            let place_of = |wanted: &HostId| self.order.iter().position(|id| id == wanted);
            if place_of(id).is_some() {
                // It has taken the place of a pane.
                continue;
            }
            let before = listed[..index].iter().rev().find_map(place_of).map(|place| place + 1);
            let behind = || listed[index + 1..].iter().find_map(place_of);
            let is_earlier =
                |id: &HostId| self.hosts.get(id.0 as usize).is_some_and(|host| host.collector <= collector);
            let last = || self.order.iter().rposition(is_earlier).map_or(0, |place| place + 1);
            let place = before.or_else(behind).unwrap_or_else(last);
            self.order.insert(place, *id);
        }
    }

    /// Whether a collector answers requests for histories. Earlier versions ignore them.
    pub fn has_history(&self) -> bool {
        self.collectors.iter().any(CollectorHandle::has_history)
    }

    /// Requests a history without waiting. Returns `false` if too many requests wait. Without a connection, the request
    /// waits for the next one.
    pub fn request_history(&self, query: HistoryQuery) -> bool {
        let owner = self.hosts.iter().find(|host| host.config.name == query.host);
        let Some(collector) = owner.and_then(|host| self.collectors.get(host.collector)) else { return false };
        if collector.has_history() {
            return collector.queries.try_send(query).is_ok();
        }
        let cause = format!("the collector on {} keeps no history, or does not answer", collector.name);
        self.histories.try_send(HistoryReply { id: query.id, result: Err(cause.into()) }).is_ok()
    }

    /// Sends a command without waiting. A retry connects to the collector of the host now; the interval belongs to the
    /// collector. Returns `false` if the queue is full.
    pub fn command(&self, id: HostId, command: Command) -> bool {
        let Some(host) = self.hosts.get(id.0 as usize) else { return false };
        let Some(collector) = self.collectors.get(host.collector) else { return false };
        match command {
            // One waiting retry is enough.
            Command::Retry => collector.retry.try_send(()).is_ok(),
            Command::Request(request) => {
                let share = collector.info.as_ref().map(|info| info.share.clone()).unwrap_or_default();
                let request = as_seen_by_host(request, &share);
                self.orders.try_send(Order { id, host: Arc::clone(&host.config), request }).is_ok()
            }
            Command::Interval(_) => true,
        }
    }
}

impl CollectorHandle {
    fn has_history(&self) -> bool {
        self.info.as_ref().is_some_and(|info| info.history)
    }
}

/// Turns the lines of a collector into updates, and connects again when it is lost.
struct Follower {
    /// The position of the collector.
    index: usize,
    /// The hosts by the ids of the lines.
    names: Vec<SafeText>,
    /// Where their updates go; `None` if the fleet has the host from another collector.
    shown: Vec<Option<(UpdateSender, Arc<HostConfig>)>>,
    /// The last state of the link between the collector and each host, if that is not live.
    links: Vec<Option<HostUpdate>>,
    /// The pane that stands for the hosts while they are not known.
    placeholder: Option<UpdateSender>,
    /// See [`FollowedCollector::configure`].
    configure: Option<ConfigureHost>,
    lists: mpsc::Sender<NewHosts>,
    updates: mpsc::Sender<QueuedUpdate>,
    route: RelayRoute,
    retries: mpsc::Receiver<()>,
    queries: mpsc::Receiver<HistoryQuery>,
    histories: mpsc::Sender<HistoryReply>,
    verdicts: mpsc::Sender<(HostId, Vec<JobVerdict>)>,
}

impl Follower {
    async fn run(mut self, picture: FirstPicture) -> Result<(), ReceiverDropped> {
        let mut connection = match picture {
            FirstPicture::Complete(picture) => Ok(*picture),
            FirstPicture::Failed(error) => Err(error),
            FirstPicture::Pending(mut reading) => {
                while let ReadingState::Reading(phase) = reading.state() {
                    self.send_to_all(&HostUpdate::Connecting { attempt: 1, phase }).await?;
                    reading.changed().await;
                }
                reading.take().await
            }
        };
        let mut failures: u32 = 0;
        loop {
            let mut error = match connection {
                Ok(picture) => {
                    let began = Instant::now();
                    let error = self.follow(picture).await?;
                    if began.elapsed() >= DELAYS[1] {
                        failures = 0;
                    }
                    error
                }
                Err(error) => error,
            };
            failures = failures.saturating_add(1);
            connection = loop {
                let delay = DELAYS[0].saturating_mul(1 << failures.saturating_sub(1).min(6)).min(DELAYS[1]);
                let delay = delay.mul_f64(0.5 + fastrand::f64() / 2.0);
                self.report_loss(&error, failures, self.route.clock.after(delay)).await?;
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    retry = self.retries.recv() => if retry.is_none() { return Err(ReceiverDropped) },
                }
                let known = Demultiplexer::with_hosts(self.names.iter().cloned());
                let known = if self.configure.is_some() { known.with_new_hosts() } else { known };
                let RelayRoute { machine, ssh, .. } = &self.route;
                match Relay::open(Arc::clone(ssh), machine, &ViewerHello::follow(), known, &|_| {}).await {
                    Ok(relay) => break Ok(Picture { relay, events: Vec::new() }),
                    Err(failed) => error = failed,
                }
                failures = failures.saturating_add(1);
            };
        }
    }

    /// Passes updates on until the connection ends. Returns why it ended.
    async fn follow(&mut self, picture: Picture) -> Result<LinkError, ReceiverDropped> {
        let Picture { mut relay, events } = picture;
        let mut is_silent = false;
        let mut has_begun = !events.is_empty();
        self.pass_on(events, &relay.demultiplexer).await?;
        // Its lines may have waited until other collectors had answered.
        relay.last_line = Instant::now();
        loop {
            let next = tokio::select! {
                next = timeout(STALE, relay.next(self.route.clock)) => next,
                Some(query) = self.queries.recv() => {
                    relay.request_history(&query).await;
                    continue;
                }
                Some(()) = self.retries.recv(), if is_silent => return Ok(silent(&self.route.machine.name)),
            };
            let events = match next {
                Ok(Ok(events)) => events,
                Ok(Err(error)) => return Ok(error),
                // Before the first line, the cause of the last loss is known better.
                Err(_) => {
                    if has_begun && !std::mem::replace(&mut is_silent, true) {
                        let retry_at = Some(self.route.clock.after(DROPPED.saturating_sub(STALE)));
                        let error = silent(&self.route.machine.name);
                        self.send_to_all(&HostUpdate::Down { error, retry_at, attempt: 0 }).await?;
                    }
                    continue;
                }
            };
            has_begun = true;
            if std::mem::take(&mut is_silent) {
                self.restore_links().await?;
            }
            self.pass_on(events, &relay.demultiplexer).await?;
        }
    }

    /// Passes events on. `lines` has turned the lines of the collector into them.
    async fn pass_on(&mut self, events: Vec<ViewerEvent>, lines: &Demultiplexer) -> Result<(), ReceiverDropped> {
        for event in events {
            match event {
                ViewerEvent::Update(id, update) => self.send(id, update).await?,
                ViewerEvent::HostsChanged => self.offer_new_hosts(lines).await?,
                ViewerEvent::Complete => {
                    let name = &self.route.machine.name;
                    if let Some(pane) = &self.placeholder {
                        let text = match lines.hosts() {
                            [] => format!("the collector on {name} answers and watches no hosts"),
                            _ => format!("other collectors show all hosts of the collector on {name}"),
                        };
                        let error = LinkError::new(LinkErrorKind::Config, text);
                        pane.send(HostUpdate::Down { error, retry_at: None, attempt: 1 }).await?;
                    }
                    let text = format!("the collector on {name} no longer watches this host");
                    for id in lines.removed_hosts() {
                        let error = LinkError::new(LinkErrorKind::Config, text.clone());
                        self.send(id, HostUpdate::Down { error, retry_at: None, attempt: 1 }).await?;
                    }
                }
                // The screen asks again if it takes too few answers.
                ViewerEvent::History(reply) => drop(self.histories.try_send(reply)),
                ViewerEvent::Verdicts(id, verdicts) => self.pass_on_verdicts(id, verdicts).await,
                // The screen has its own diagnosis.
                ViewerEvent::Collector(_) | ViewerEvent::States(..) | ViewerEvent::Refused(..) => {}
            }
        }
        Ok(())
    }

    /// Passes verdicts on, with the ids of the fleet. A program without findings has dropped the receiver.
    async fn pass_on_verdicts(&self, id: HostId, mut verdicts: Vec<JobVerdict>) {
        let shown = |id: HostId| Some(self.shown.get(id.0 as usize)?.as_ref()?.0.id());
        let Some(host) = shown(id) else { return };
        for culprit in verdicts.iter_mut().flat_map(|one| &mut one.verdict.culprits) {
            culprit.host_id = culprit.host_id.and_then(shown);
        }
        let _dropped = self.verdicts.send((host, verdicts)).await;
    }

    /// Offers the listed hosts that are not known yet to the viewer, and waits until it has added them: their updates come
    /// next.
    async fn offer_new_hosts(&mut self, lines: &Demultiplexer) -> Result<(), ReceiverDropped> {
        let Some(configure) = &self.configure else { return Ok(()) };
        let names = lines.names().get(self.names.len()..).unwrap_or_default();
        if names.is_empty() {
            return Ok(());
        }
        let listed: HashMap<&SafeText, &HostInfo> = lines.hosts().iter().map(|host| (&host.name, host)).collect();
        let info = lines.info().cloned().unwrap_or_default();
        let hosts: Vec<Arc<HostConfig>> =
            names.iter().filter_map(|name| listed.get(name)).map(|host| configure(host, &info)).collect();
        let placeholder = self.placeholder.as_ref().map(UpdateSender::id);
        let (added, placed) = oneshot::channel();
        let listed = lines.hosts().iter().map(|host| host.name.clone()).collect();
        let new = NewHosts { hosts, placeholder, collector: self.index, listed, info, added };
        if self.lists.send(new).await.is_err() {
            // This viewer adds no hosts.
            self.configure = None;
            return Ok(());
        }
        let Ok(placed) = placed.await else { return Err(ReceiverDropped) };
        for name in names {
            let host = placed.iter().find(|(_, host)| host.name == *name);
            self.placeholder.take_if(|pane| host.is_some_and(|(id, _)| *id == pane.id()));
            self.names.push(name.clone());
            self.shown.push(host.map(|(id, host)| (UpdateSender::new(*id, self.updates.clone()), Arc::clone(host))));
        }
        Ok(())
    }

    async fn report_loss(&self, error: &LinkError, attempt: u32, retry_at: Moment) -> Result<(), ReceiverDropped> {
        let name = &self.route.machine.name;
        let text = format!("no connection to the collector on {name}: {}", error.message);
        let lost = match error.kind {
            // Its message is complete.
            LinkErrorKind::CollectorSilent => error.clone(),
            _ => LinkError { message: text.into(), ..error.clone() },
        };
        self.send_to_all(&HostUpdate::Down { error: lost, retry_at: Some(retry_at), attempt }).await
    }

    /// Sends the last state of each link again: the collector repeats it only when it changes. A live host is stale until its
    /// next round trip.
    async fn restore_links(&self) -> Result<(), ReceiverDropped> {
        for (index, shown) in self.shown.iter().enumerate() {
            if let Some((sender, _)) = shown {
                let link = self.links.get(index).cloned().flatten();
                sender.send(link.unwrap_or(HostUpdate::Silent)).await?;
            }
        }
        Ok(())
    }

    /// Sends an update about the connection to each host, and to the pane that stands for unknown ones.
    async fn send_to_all(&self, update: &HostUpdate) -> Result<(), ReceiverDropped> {
        let shown = self.shown.iter().flatten().map(|(sender, _)| sender);
        for sender in shown.chain(&self.placeholder) {
            sender.send(update.clone()).await?;
        }
        Ok(())
    }

    async fn send(&mut self, id: HostId, update: HostUpdate) -> Result<(), ReceiverDropped> {
        let link = match &update {
            HostUpdate::Connecting { .. } | HostUpdate::Silent | HostUpdate::Down { .. } | HostUpdate::NeedsUser(_) => {
                Some(Some(update.clone()))
            }
            // The next one follows soon.
            HostUpdate::Snapshot(_) | HostUpdate::RoundTrip(_) => Some(None),
            _ => None,
        };
        if let Some(link) = link {
            let index = id.0 as usize;
            if self.links.len() <= index {
                self.links.resize(index + 1, None);
            }
            self.links[index] = link;
        }
        let Some(Some((sender, host))) = self.shown.get(id.0 as usize) else { return Ok(()) };
        let update = match update {
            HostUpdate::Hello(mut hello) => {
                // Processes of the viewer's account are its own, not those of the collector's account.
                let user = host.user.as_deref().map(SafeText::new);
                (hello.login_user, hello.login_uid) = (user.or_else(|| self.route.user.clone()), None);
                HostUpdate::Hello(hello)
            }
            update => update,
        };
        sender.send(update).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::OpenChannel;
    use crate::collect::own_session::tests::Unreachable;
    use crate::collect::picture_reading::tests::{PICTURE, Scripted};
    use crate::fleet::Clock;
    use tokio::sync::Notify;

    #[test]
    fn new_hosts_take_the_place_of_their_pane_and_then_come_last() {
        let named = |names: &[&str]| -> Vec<Arc<HostConfig>> {
            names.iter().map(|name| Arc::new(HostConfig::named(*name))).collect()
        };
        let place = |placeholder: Option<u32>, listed: &[&str]| {
            let mut fleet = named(&["a", "room-b (collector)", "c"]);
            let new = NewHosts {
                hosts: named(listed),
                placeholder: placeholder.map(HostId),
                collector: 1,
                listed: Vec::new(),
                info: CollectorInfo::default(),
                added: oneshot::channel().0,
            };
            let placed = new.place(&mut fleet);
            let names: Vec<String> = fleet.iter().map(|host| host.name.to_string()).collect();
            (names.join(" "), placed.into_iter().map(|(id, host)| (id.0, host.name.to_string())).collect::<Vec<_>>())
        };
        let placed = |list: &[(u32, &str)]| list.iter().map(|(id, name)| (*id, (*name).to_owned())).collect::<Vec<_>>();
        assert_eq!(
            place(Some(1), &["c", "b1", "b2"]),
            ("a b1 c b2".to_owned(), placed(&[(1, "b1"), (3, "b2")])),
            "another collector shows c"
        );
        assert_eq!(place(None, &["b3"]), ("a room-b (collector) c b3".to_owned(), placed(&[(3, "b3")])));
        assert_eq!(place(Some(1), &["a", "c"]), ("a room-b (collector) c".to_owned(), placed(&[])));
        assert_eq!(place(Some(9), &["b1"]), ("a room-b (collector) c b1".to_owned(), placed(&[(3, "b1")])));
    }

    #[tokio::test]
    async fn added_hosts_stand_where_their_collector_lists_them() {
        // The hosts of the fleet when the screen begins, each with its collector.
        let relayed = |hosts: &[(&str, usize)]| {
            let host = |(name, collector): &(&str, usize)| RelayedHost {
                config: Arc::new(HostConfig::named(*name)),
                collector: *collector,
            };
            let mut relayed = RelayedHosts::start(Vec::new(), &[]).hosts;
            relayed.hosts = hosts.iter().map(host).collect();
            relayed.order = (0..).map(HostId).take(hosts.len()).collect();
            relayed
        };
        let add = |relayed: &mut RelayedHosts, collector: usize, placeholder: Option<u32>, listed: &[&str]| {
            let mut fleet: Vec<_> = relayed.hosts.iter().map(|host| Arc::clone(&host.config)).collect();
            let new = NewHosts {
                hosts: listed.iter().map(|name| Arc::new(HostConfig::named(*name))).collect(),
                placeholder: placeholder.map(HostId),
                collector,
                listed: listed.iter().map(|&name| name.into()).collect(),
                info: CollectorInfo::default(),
                added: oneshot::channel().0,
            };
            let placed = new.place(&mut fleet);
            let order = relayed.add(new, placed);
            order.iter().map(|id| fleet[id.0 as usize].name.to_string()).collect::<Vec<_>>().join(" ")
        };
        let mut one = relayed(&[("a1", 0), ("b (collector)", 1), ("c1", 2)]);
        assert_eq!(add(&mut one, 1, Some(1), &["b1", "b2", "c1", "b3"]), "a1 b1 b2 b3 c1", "c shows c1");
        assert_eq!(add(&mut one, 0, None, &["a0", "a1", "a2"]), "a0 a1 a2 b1 b2 b3 c1");
        assert_eq!(add(&mut one, 1, None, &["b3", "b4", "b1", "b2"]), "a0 a1 a2 b1 b2 b3 b4 c1", "shown hosts stay");
        assert_eq!(add(&mut one, 2, None, &["c1", "c2"]), "a0 a1 a2 b1 b2 b3 b4 c1 c2");
        let mut other = relayed(&[("c1", 2), ("d1", 3)]);
        assert_eq!(add(&mut other, 1, None, &["b1", "b2"]), "b1 b2 c1 d1", "no host of it was shown");
    }

    fn configure() -> ConfigureHost {
        Arc::new(|host, _| Arc::new(HostConfig::named(host.name.clone())))
    }

    #[tokio::test(start_paused = true)]
    async fn a_pending_picture_shows_its_phases_and_then_its_hosts() {
        let machine = Arc::new(HostConfig::named("room-b"));
        let lines = format!("{PICTURE}{{\"host\":{{\"name\":\"b\",\"link\":\"stale\"}}}}\n");
        let ssh: Arc<dyn OpenChannel> = Arc::new(Scripted(lines));
        let clock = Clock::start(1.0);
        let demultiplexer = Demultiplexer::default().with_new_hosts();
        let changed = Arc::new(Notify::new());
        let reading = PictureReading::start(
            Arc::clone(&ssh),
            Arc::clone(&machine),
            clock,
            ViewerHello::follow(),
            demultiplexer,
            changed,
        );
        let followed = FollowedCollector {
            route: RelayRoute { machine, ssh, clock, user: None },
            picture: FirstPicture::Pending(reading),
            hosts: Vec::new(),
            placeholder: Some(HostId(1)),
            configure: Some(configure()),
        };
        let mut fleet: Vec<Arc<HostConfig>> =
            ["a", "room-b (collector)"].map(|name| Arc::new(HostConfig::named(name))).into();
        let RelayedParts { mut hosts, mut updates, mut new_hosts, .. } = RelayedHosts::start(vec![followed], &fleet);
        let first = updates.recv().await.expect("an update");
        assert!(matches!(first, (HostId(1), HostUpdate::Connecting { attempt: 1, .. })), "{first:?}");
        let new = new_hosts.recv().await.expect("hosts");
        let placed = new.place(&mut fleet);
        assert_eq!(placed.iter().map(|(id, host)| (id.0, host.name.as_str())).collect::<Vec<_>>(), [(1, "b")]);
        hosts.add(new, placed);
        assert!(!hosts.has_history(), "its first line says so");
        let update = loop {
            match updates.recv().await.expect("an update") {
                (_, HostUpdate::Connecting { .. }) => {}
                other => break other,
            }
        };
        assert_eq!(update, (HostId(1), HostUpdate::Silent), "the other collector shows `a`");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_collector_is_named_once_per_host_and_connected_again() {
        let machine = Arc::new(HostConfig::named("lab-head"));
        let ssh: Arc<dyn OpenChannel> = Arc::new(Scripted(PICTURE.to_owned()));
        let clock = Clock::start(1.0);
        let demultiplexer = Demultiplexer::default().with_new_hosts();
        let (own, changed) = (Arc::clone(&machine), Arc::new(Notify::new()));
        let reading =
            PictureReading::start(Arc::clone(&ssh), own, clock, ViewerHello::follow(), demultiplexer, changed);
        let picture = reading.take().await.expect("a picture");
        let fleet: Vec<Arc<HostConfig>> = ["a", "b"].map(|name| Arc::new(HostConfig::named(name))).into();
        let followed = FollowedCollector {
            route: RelayRoute { machine, ssh, clock, user: None },
            picture: FirstPicture::Complete(Box::new(picture)),
            hosts: fleet.iter().zip(0..).map(|(host, id)| (host.name.clone(), Some(HostId(id)))).collect(),
            placeholder: None,
            configure: Some(configure()),
        };
        let began = Instant::now();
        let RelayedParts { hosts: _hosts, mut updates, .. } = RelayedHosts::start(vec![followed], &fleet);
        // The silence is noticed after 5 s, and the connection is given up after 15 s.
        for (seconds, attempt) in [(5, 0), (15, 1)] {
            for id in [0, 1] {
                let (host, update) = updates.recv().await.expect("an update");
                let HostUpdate::Down { error, retry_at: Some(_), attempt: found } = update else {
                    panic!("{update:?}")
                };
                assert_eq!((host, found, began.elapsed().as_secs()), (HostId(id), attempt, seconds));
                assert_eq!(error.kind, LinkErrorKind::CollectorSilent);
                assert_eq!(error.message, "the collector on lab-head does not answer");
                assert_eq!(error.hint.as_deref(), Some("this names the cause: ssh lab-head gpufleet status"));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_does_not_answer_is_down_and_has_no_history() {
        let machine = Arc::new(HostConfig::named("room-b"));
        let pane = Arc::new(HostConfig::named("room-b (collector)"));
        let ssh: Arc<dyn OpenChannel> = Arc::new(Unreachable { fails: true });
        let route = RelayRoute { machine, ssh, clock: Clock::start(1.0), user: None };
        let error = LinkError::new(LinkErrorKind::Refused, "nothing listens on port 22");
        let placeholder = Some(HostId(0));
        let followed = FollowedCollector {
            route,
            picture: FirstPicture::Failed(error),
            hosts: Vec::new(),
            placeholder,
            configure: Some(configure()),
        };
        let RelayedParts { hosts: relayed, mut updates, mut histories, .. } =
            RelayedHosts::start(vec![followed], &[pane]);
        assert!(!relayed.has_history());
        let Some((HostId(0), HostUpdate::Down { error, retry_at: Some(_), attempt: 1 })) = updates.recv().await else {
            panic!("the loss is reported")
        };
        assert_eq!(error.message, "no connection to the collector on room-b: nothing listens on port 22");
        let query = |host: &str| HistoryQuery { id: 7, host: host.into(), span_seconds: 240, step_seconds: 60 };
        assert!(!relayed.request_history(query("hgx-01")), "nobody watches it");
        assert!(relayed.request_history(query("room-b (collector)")));
        let cause = "the collector on room-b keeps no history, or does not answer";
        assert_eq!(histories.recv().await, Some(HistoryReply { id: 7, result: Err(cause.into()) }));
        assert!(relayed.command(HostId(0), Command::Retry));
    }
}
