//! The hosts of collectors on other machines: one SSH session to each runs `gpufleet relay` there, and its lines become
//! updates of hosts. Requests to a host go over the viewer's own SSH session to it, opened when it is needed.

use super::channels::{
    Command, HostUpdates, QueuedUpdate, ReceiverDropped, UpdateSender, refusal_reply, update_channel,
};
use super::error;
use super::host_tasks::HostTasks;
use super::remote_command::{CommandEnd, OpenChannel, Progress, RemoteCommand, Source};
use crate::config::HostConfig;
use crate::fleet::{Clock, HistoryQuery, HistoryReply, HostId, HostUpdate, LinkError, LinkErrorKind, Moment};
use crate::share::{
    CollectorInfo, Demultiplexer, HostInfo, MAX_FRAME_BYTES, RefusalKind, ViewerEvent, ViewerHello, encode_query,
};
use crate::ssh::transport::Exit;
use crate::wire::codec::LineBuffer;
use crate::wire::{Request, SafeText};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// Starts the relay. Login shells without start-up files often lack the directories into which people install programs.
/// Every login shell takes a command in single quotes.
const COMMAND: &str = "exec /bin/sh -c 'PATH=\"$PATH:/usr/local/bin:$HOME/.local/bin:$HOME/.cargo/bin\"; export PATH; \
                       exec gpufleet relay'";
/// Time limit for the first line: the start of the relay and the picture of the collector.
const FIRST_LINE_LIMIT: Duration = Duration::from_secs(20);
/// Without a line for this long, the hosts are stale. The collector sends one every 2 s.
const STALE: Duration = Duration::from_secs(5);
/// Without a line for this long, the connection is dropped.
const DROPPED: Duration = Duration::from_secs(15);
/// The relay ends after 60 s without a byte from its viewer.
const SIGN_OF_LIFE_PERIOD: Duration = Duration::from_secs(10);
/// Limit of output before the first line, for example by a start-up file of the account.
const NOISE_LIMIT_BYTES: usize = 64 * 1024;
/// Capacity of the update channel.
const WAITING_UPDATES: usize = 1024;
/// Capacity of the channels of commands and requests.
const WAITING_COMMANDS: usize = 64;
/// Lists of new hosts that may wait for the viewer.
const WAITING_LISTS: usize = 8;
/// Requests to one host that may wait for its SSH session.
const WAITING_REQUESTS: usize = 16;
/// The viewer's own session to a host ends after this long without a request or a reply.
const OWN_SESSION_IDLE: Duration = Duration::from_secs(120);
/// A request is sent within this time, or refused: a signal must not be sent when nobody expects it any more, for example
/// because a prompt was open meanwhile. The screen waits longer for a reply.
const SEND_LIMIT: Duration = Duration::from_secs(25);
/// Requests for histories, and their answers, that may wait.
const WAITING_QUERIES: usize = 16;
/// Time limit for sending a request to the relay.
const WRITE_LIMIT: Duration = Duration::from_secs(5);
/// The delays before the connections after a failure: they double from the first to the last.
const DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// A connection to a collector on another machine.
pub struct Relay {
    remote: RemoteCommand,
    demultiplexer: Demultiplexer,
    /// The name of the machine, as the user gave it.
    name: SafeText,
    noise_bytes: usize,
    last_line: Instant,
    sign_of_life_at: Instant,
}

impl Relay {
    /// Logs in, starts the relay and introduces this viewer. `demultiplexer` has the hosts of an earlier connection, or
    /// is new.
    ///
    /// # Errors
    /// The login failed. Later errors come from [`Relay::next`].
    pub async fn open(
        ssh: Arc<dyn OpenChannel>,
        machine: &HostConfig,
        follow: bool,
        demultiplexer: Demultiplexer,
        progress: &Progress,
    ) -> Result<Self, LinkError> {
        let channel = ssh.open(machine, COMMAND, progress).await.map_err(|error| error::from_ssh(&error))?;
        let mut remote = RemoteCommand::new(channel);
        remote.stdout.lines = LineBuffer::with_limit(MAX_FRAME_BYTES);
        let hello = ViewerHello::new(follow).line().unwrap_or_default();
        // If the relay has ended already, its output names the cause.
        let _ = remote.stdin.write_all(&hello).await;
        let _ = remote.stdin.flush().await;
        let now = Instant::now();
        Ok(Self {
            remote,
            demultiplexer,
            name: machine.name.clone(),
            noise_bytes: 0,
            last_line: now,
            sign_of_life_at: now + SIGN_OF_LIFE_PERIOD,
        })
    }

    /// The collector, after its first line.
    pub fn info(&self) -> Option<&CollectorInfo> {
        self.demultiplexer.info()
    }

    /// The hosts of the collector, in order.
    pub fn hosts(&self) -> &[HostInfo] {
        self.demultiplexer.hosts()
    }

    /// The diagnosis according to the lines.
    pub fn into_demultiplexer(self) -> Demultiplexer {
        self.demultiplexer
    }

    /// Requests a history. If the connection has ended, [`Relay::next`] says so.
    async fn request_history(&mut self, query: &HistoryQuery) {
        let line = encode_query(query).unwrap_or_default();
        let write = async {
            let _ = self.remote.stdin.write_all(&line).await;
            let _ = self.remote.stdin.flush().await;
        };
        let _late = timeout(WRITE_LIMIT, write).await;
    }

    /// Waits for the next line. Cancel safe.
    ///
    /// # Errors
    /// The connection has ended or must be closed.
    pub async fn next(&mut self, clock: Clock) -> Result<Vec<ViewerEvent>, LinkError> {
        loop {
            let has_begun = self.demultiplexer.info().is_some();
            let limit = if has_begun { DROPPED } else { FIRST_LINE_LIMIT };
            let line = tokio::select! {
                line = self.remote.stdout.line() => line,
                () = sleep_until(self.last_line + limit) => {
                    let what = format!("the collector on {} sent nothing", self.name);
                    return Err(error::timeout(&what, limit));
                }
                () = sleep_until(self.sign_of_life_at) => {
                    self.sign_of_life_at = Instant::now() + SIGN_OF_LIFE_PERIOD;
                    // If the relay has ended, its output ends as well.
                    let _ = self.remote.stdin.write_all(b"\n").await;
                    let _ = self.remote.stdin.flush().await;
                    continue;
                }
            };
            let line = match line {
                Ok(Some(line)) => line,
                Ok(None) => return Err(ended(&self.remote.wait_for_end().await, &self.name)),
                Err(_) => return Err(Demultiplexer::link_error(&crate::share::FrameError::TooLong)),
            };
            self.last_line = Instant::now();
            let is_frame = line.starts_with(br#"{"collector""#) || line.starts_with(br#"{"refused""#);
            if self.demultiplexer.info().is_none() && !is_frame {
                self.noise_bytes += line.len() + 1;
                if self.noise_bytes > NOISE_LIMIT_BYTES {
                    let text = format!("the account on {} prints more than 64 KiB before the relay starts", self.name);
                    return Err(LinkError::new(LinkErrorKind::Protocol, text)
                        .with_hint("a start-up file of the account may print something only on a terminal"));
                }
                continue;
            }
            let events =
                self.demultiplexer.take(&line, clock.now()).map_err(|error| Demultiplexer::link_error(&error))?;
            for event in &events {
                if let ViewerEvent::Refused(kind, reason) = event {
                    return Err(refused(*kind, reason, &self.name));
                }
                if let ViewerEvent::Collector(info) = event
                    && info.protocol != crate::share::SHARE_PROTOCOL
                {
                    return Err(other_version(info, &self.name));
                }
            }
            return Ok(events);
        }
    }
}

fn other_version(info: &CollectorInfo, name: &SafeText) -> LinkError {
    let text = format!(
        "the collector on {name} is gpufleet {} and speaks protocol {}, this gpufleet {} speaks protocol {}",
        info.version,
        info.protocol,
        env!("CARGO_PKG_VERSION"),
        crate::share::SHARE_PROTOCOL
    );
    LinkError::new(LinkErrorKind::Protocol, text).with_hint("install the same version on both machines")
}

/// The error for a line that refuses this viewer.
fn refused(kind: RefusalKind, reason: &SafeText, name: &SafeText) -> LinkError {
    let kind_of_link = match kind {
        RefusalKind::NoCollector | RefusalKind::Ending => LinkErrorKind::Refused,
        RefusalKind::NotPermitted | RefusalKind::TooMany => LinkErrorKind::Refusal,
        RefusalKind::Protocol | RefusalKind::Other => LinkErrorKind::Protocol,
    };
    // The reason comes with its way out.
    let (text, hint) = reason.split_once("; ").unwrap_or((reason, ""));
    let error = LinkError::new(kind_of_link, format!("{name}: {text}"));
    if hint.is_empty() { error } else { error.with_hint(hint) }
}

/// Describes the end of the relay.
fn ended(end: &CommandEnd, name: &SafeText) -> LinkError {
    let stderr = if end.stderr.is_empty() { String::new() } else { format!(": {}", end.stderr) };
    match &end.exit {
        Exit::Status(126 | 127) => {
            LinkError::new(LinkErrorKind::NoProbe, format!("gpufleet is not installed on {name}{stderr}"))
                .with_hint(format!("install it there, so that this works: ssh {name} gpufleet --version"))
        }
        Exit::Status(2) => {
            LinkError::new(LinkErrorKind::Protocol, format!("the gpufleet on {name} has no relay{stderr}"))
                .with_hint(format!("install gpufleet {} there", env!("CARGO_PKG_VERSION")))
        }
        Exit::Status(status @ 1..) => LinkError::new(
            LinkErrorKind::Closed,
            format!("the relay on {name} ended with exit status {status}{stderr}"),
        ),
        Exit::Signal(signal) => {
            LinkError::new(LinkErrorKind::Closed, format!("the relay on {name} was ended by signal {signal}"))
        }
        Exit::Closed(Some(text)) => LinkError::new(
            LinkErrorKind::Closed,
            format!("the connection to {name} was closed: {}", SafeText::new(text)),
        ),
        Exit::Status(0) | Exit::Closed(None) => {
            LinkError::new(LinkErrorKind::Closed, format!("the connection to the collector on {name} was closed"))
        }
    }
}

/// How this program reaches a collector and its hosts.
#[derive(Clone)]
pub struct RelayRoute {
    /// The machine of the collector.
    pub machine: Arc<HostConfig>,
    /// Opens SSH sessions.
    pub ssh: Arc<dyn OpenChannel>,
    /// The clock of the fleet.
    pub clock: Clock,
    /// The name of the account on hosts for which hosts.toml names none.
    pub user: Option<SafeText>,
}

/// The picture of a collector on another machine, and the connection that goes on.
pub struct Picture {
    /// The connection, whose picture is complete.
    pub relay: Relay,
    /// The events of the picture, and of what followed it.
    pub events: Vec<ViewerEvent>,
}

/// A collector that a viewer follows, and its hosts.
pub struct FollowedCollector {
    /// How to reach it.
    pub route: RelayRoute,
    /// The connection; without one, the cause.
    pub picture: Result<Picture, LinkError>,
    /// The hosts in the order of the lines, each with its id in the fleet; `None` if the fleet has it from another collector.
    pub hosts: Vec<(SafeText, Option<HostId>)>,
    /// The pane that stands for the hosts of a collector that has not answered yet.
    pub placeholder: Option<HostId>,
    /// Configures a host that the collector lists later; `None` if only `hosts` are shown.
    pub configure: Option<ConfigureHost>,
}

/// Returns the configuration of a host of a collector: how the viewer shows and reaches it.
pub type ConfigureHost = Arc<dyn Fn(&HostInfo) -> Arc<HostConfig> + Send + Sync>;

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

/// What a viewer receives from the collectors that it follows.
pub struct RelayedParts {
    /// Takes commands and requests.
    pub hosts: RelayedHosts,
    /// The updates of the hosts.
    pub updates: HostUpdates,
    /// The answers to requests for histories.
    pub histories: mpsc::Receiver<HistoryReply>,
    /// Hosts to add.
    pub new_hosts: mpsc::Receiver<NewHosts>,
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
                placeholder: one.placeholder.and_then(&mut shown_host).map(|(sender, _)| sender),
                configure: one.configure,
                lists: lists.clone(),
                updates: updates.clone(),
                route: one.route.clone(),
                retries,
                queries: queried,
                histories: histories.clone(),
            };
            collectors.push(CollectorHandle {
                name: one.route.machine.name.clone(),
                retry,
                queries,
                info: one.picture.as_ref().ok().and_then(|picture| picture.relay.info().cloned()),
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
        let hosts = Self { orders, collectors, hosts: owned, histories, _tasks: tasks };
        RelayedParts { hosts, updates: receiver, histories: answers, new_hosts }
    }

    /// Takes the hosts that [`NewHosts::place`] has added to the fleet, and lets their updates follow.
    pub fn add(&mut self, new: NewHosts, placed: Vec<(HostId, Arc<HostConfig>)>) {
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
        // If the collector's task has ended, nothing follows.
        let _ended = new.added.send(placed);
    }

    /// Whether a collector watches a simulated fleet.
    pub fn is_simulated(&self) -> bool {
        self.collectors.iter().filter_map(|collector| collector.info.as_ref()).any(|info| info.simulated)
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
}

impl Follower {
    async fn run(mut self, picture: Result<Picture, LinkError>) -> Result<(), ReceiverDropped> {
        let mut connection = picture;
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
                match Relay::open(Arc::clone(ssh), machine, true, known, &|_| {}).await {
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
            };
            let events = match next {
                Ok(Ok(events)) => events,
                Ok(Err(error)) => return Ok(error),
                Err(_) => {
                    if !std::mem::replace(&mut is_silent, true) {
                        self.send_to_all(&HostUpdate::Silent).await?;
                    }
                    continue;
                }
            };
            is_silent = false;
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
                // The screen has its own diagnosis.
                ViewerEvent::Collector(_) | ViewerEvent::States(..) | ViewerEvent::Refused(..) => {}
            }
        }
        Ok(())
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
        let hosts: Vec<Arc<HostConfig>> =
            names.iter().filter_map(|name| listed.get(name)).map(|host| configure(host)).collect();
        let placeholder = self.placeholder.as_ref().map(UpdateSender::id);
        let info = lines.info().cloned().unwrap_or_default();
        let (added, placed) = oneshot::channel();
        let new = NewHosts { hosts, placeholder, collector: self.index, info, added };
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
        let lost = LinkError { message: text.into(), ..error.clone() };
        self.send_to_all(&HostUpdate::Down { error: lost, retry_at: Some(retry_at), attempt }).await
    }

    /// Sends an update about the connection to each host, and to the pane that stands for unknown ones.
    async fn send_to_all(&self, update: &HostUpdate) -> Result<(), ReceiverDropped> {
        let shown = self.shown.iter().flatten().map(|(sender, _)| sender);
        for sender in shown.chain(&self.placeholder) {
            sender.send(update.clone()).await?;
        }
        Ok(())
    }

    async fn send(&self, id: HostId, update: HostUpdate) -> Result<(), ReceiverDropped> {
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

/// A request to a host.
struct Order {
    id: HostId,
    host: Arc<HostConfig>,
    request: Request,
}

/// Sends requests over own sessions: one task for each host that gets any.
async fn act(route: RelayRoute, updates: mpsc::Sender<QueuedUpdate>, mut orders: mpsc::Receiver<Order>) {
    let mut sessions: HashMap<HostId, mpsc::Sender<Request>> = HashMap::new();
    let mut tasks = JoinSet::new();
    while let Some(Order { id, host, request }) = orders.recv().await {
        let updates = UpdateSender::new(id, updates.clone());
        let request = match sessions.get(&id) {
            Some(session) => match session.try_send(request) {
                Ok(()) => continue,
                Err(mpsc::error::TrySendError::Closed(request)) => request,
                Err(mpsc::error::TrySendError::Full(request)) => {
                    let why = "too many requests wait for your SSH session to this host";
                    if let Some(reply) = refusal_reply(&request, why) {
                        let _gone = updates.send(reply).await;
                    }
                    continue;
                }
            },
            None => request,
        };
        let (sender, requests) = mpsc::channel(WAITING_REQUESTS);
        let _room = sender.try_send(request);
        sessions.insert(id, sender);
        tasks.spawn(own_session(host, route.clone(), updates, requests));
        while tasks.try_join_next().is_some() {}
    }
}

/// Removes from a request what the collector did not show in full: the host compares it with the process.
fn as_seen_by_host(request: Request, shared: &str) -> Request {
    match request {
        Request::Signal { id, boot_id, pid, start_ticks, name, argv: _, signal } if shared != "commands" => {
            let name = if shared == "none" { SafeText::default() } else { name };
            Request::Signal { id, boot_id, pid, start_ticks, name, argv: Vec::new(), signal }
        }
        request => request,
    }
}

/// The viewer's own session to one host: a host task of which only the replies count.
async fn own_session(
    host: Arc<HostConfig>,
    route: RelayRoute,
    updates: UpdateSender,
    mut requests: mpsc::Receiver<Request>,
) {
    let (tasks, mut own) = HostTasks::start(&[Arc::clone(&host)], Source::Ssh(Arc::clone(&route.ssh)), route.clock);
    // The requests that wait for the session, with the time at which each is refused.
    let mut unsent: VecDeque<(Request, Instant)> = VecDeque::new();
    // The requests that wait for a reply.
    let mut sent: Vec<Request> = Vec::new();
    let mut is_live = false;
    let mut idle_at = Instant::now() + OWN_SESSION_IDLE;
    loop {
        let refuse_at = unsent.front().map(|(_, at)| *at);
        let update = tokio::select! {
            request = requests.recv() => {
                let Some(request) = request else { return };
                idle_at = Instant::now() + OWN_SESSION_IDLE;
                unsent.push_back((request, Instant::now() + SEND_LIMIT));
                None
            }
            update = own.recv() => match update {
                None => return,
                Some((_, update)) => Some(update),
            },
            () = sleep_until(refuse_at.unwrap_or(idle_at)), if refuse_at.is_some() => None,
            () = sleep_until(idle_at) => return,
            () = updates.closed() => return,
        };
        match update {
            Some(HostUpdate::Snapshot(_)) => is_live = true,
            Some(HostUpdate::Reply(reply)) => {
                idle_at = Instant::now() + OWN_SESSION_IDLE;
                sent.retain(|request| request.reply_id() != Some(reply.id));
                if updates.send(HostUpdate::Reply(reply)).await.is_err() {
                    return;
                }
            }
            Some(HostUpdate::Down { error, .. } | HostUpdate::NeedsUser(error)) => {
                // Requests that arrive later begin a new session.
                requests.close();
                while let Ok(request) = requests.try_recv() {
                    sent.push(request);
                }
                let all = sent.into_iter().chain(unsent.into_iter().map(|(request, _)| request));
                let _receiver_dropped = refuse(all, &no_access(&host, &error), &updates).await;
                return;
            }
            Some(_) | None => {}
        }
        let now = Instant::now();
        let late = unsent.iter().take_while(|(_, at)| *at <= now).count();
        let late: Vec<Request> = unsent.drain(..late).map(|(request, _)| request).collect();
        if refuse(late, &not_in_time(&host), &updates).await.is_err() {
            return;
        }
        while is_live && let Some((request, _)) = unsent.pop_front() {
            tasks.command(HostId(0), Command::Request(request.clone()));
            sent.push(request);
        }
    }
}

/// Replies to each request that it was not sent.
async fn refuse(
    requests: impl IntoIterator<Item = Request>,
    why: &str,
    updates: &UpdateSender,
) -> Result<(), ReceiverDropped> {
    for request in requests {
        if let Some(reply) = refusal_reply(&request, why) {
            updates.send(reply).await?;
        }
    }
    Ok(())
}

/// Why a request was not sent: the session was not ready.
fn not_in_time(host: &HostConfig) -> String {
    format!("nothing was sent: your own SSH session to {} was not ready within {} s", host.name, SEND_LIMIT.as_secs())
}

/// Why a request was not sent: the viewer has no access to the host.
fn no_access(host: &HostConfig, error: &LinkError) -> String {
    let hint = error.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("this needs your own SSH session to {}, which failed: {}{hint}", host.name, error.message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Signal;

    fn end(exit: Exit, stderr: &str) -> (String, Option<String>) {
        let end = CommandEnd { exit, stderr: stderr.into() };
        let error = ended(&end, &"lab-head".into());
        (error.message.to_string(), error.hint.map(|hint| hint.to_string()))
    }

    #[test]
    fn each_end_of_the_relay_has_its_own_message() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            end(Exit::Status(127), "/bin/sh: 1: exec: gpufleet: not found"),
            (
                "gpufleet is not installed on lab-head: /bin/sh: 1: exec: gpufleet: not found".to_owned(),
                Some("install it there, so that this works: ssh lab-head gpufleet --version".to_owned())
            )
        );
        assert_eq!(
            end(Exit::Status(2), "gpufleet: `relay` is no host"),
            (
                "the gpufleet on lab-head has no relay: gpufleet: `relay` is no host".to_owned(),
                Some(format!("install gpufleet {version} there"))
            )
        );
        assert_eq!(
            end(Exit::Status(1), "boom"),
            ("the relay on lab-head ended with exit status 1: boom".to_owned(), None)
        );
        assert_eq!(
            end(Exit::Signal("KILL".into()), ""),
            ("the relay on lab-head was ended by signal KILL".to_owned(), None)
        );
        assert_eq!(
            end(Exit::Closed(None), ""),
            ("the connection to the collector on lab-head was closed".to_owned(), None)
        );
    }

    #[test]
    fn a_refusal_is_split_into_cause_and_way_out() {
        let reason = "no collector runs here: nobody serves /a; start it there: gpufleet collect".into();
        let error = refused(RefusalKind::NoCollector, &reason, &"lab-head".into());
        assert_eq!(error.message, "lab-head: no collector runs here: nobody serves /a");
        assert_eq!(error.hint.as_deref(), Some("start it there: gpufleet collect"));
        let info = CollectorInfo { protocol: 9, version: "2.0.0".into(), ..CollectorInfo::default() };
        let error = other_version(&info, &"lab-head".into());
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            error.message,
            *format!(
                "the collector on lab-head is gpufleet 2.0.0 and speaks protocol 9, this gpufleet {version} speaks \
                 protocol 1"
            )
        );
    }

    #[test]
    fn a_signal_names_only_what_the_collector_showed_in_full() {
        let signal = |name: &str, argv: &[&str]| Request::Signal {
            id: 1,
            boot_id: "b".into(),
            pid: 7,
            start_ticks: 70,
            name: name.into(),
            argv: argv.iter().map(|word| (*word).into()).collect(),
            signal: Signal::Terminate,
        };
        let shown = signal("python3", &["python3", "***"]);
        assert_eq!(as_seen_by_host(shown.clone(), "names"), signal("python3", &[]));
        assert_eq!(as_seen_by_host(shown.clone(), "none"), signal("", &[]));
        assert_eq!(as_seen_by_host(shown.clone(), "commands"), shown);
    }

    #[test]
    fn a_host_without_access_is_named_with_the_cause() {
        let error = LinkError::new(LinkErrorKind::Dns, "hgx-01 does not resolve").with_hint("check the name");
        assert_eq!(
            no_access(&HostConfig::named("hgx-01"), &error),
            "this needs your own SSH session to hgx-01, which failed: hgx-01 does not resolve (check the name)"
        );
    }

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

    /// An SSH client that never gets an answer, or fails at once.
    struct Unreachable {
        fails: bool,
    }

    impl OpenChannel for Unreachable {
        fn open<'a>(self: Arc<Self>, _: &'a HostConfig, _: &'a str, _: &'a Progress) -> super::super::Opening<'a> {
            Box::pin(async move {
                if !self.fails {
                    std::future::pending::<()>().await;
                }
                Err(crate::ssh::SshError::new(
                    crate::ssh::SshErrorKind::ConnectionRefused,
                    "nothing listens on port 22",
                ))
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_does_not_answer_is_down_and_has_no_history() {
        let machine = Arc::new(HostConfig::named("room-b"));
        let pane = Arc::new(HostConfig::named("room-b (collector)"));
        let ssh: Arc<dyn OpenChannel> = Arc::new(Unreachable { fails: true });
        let route = RelayRoute { machine, ssh, clock: Clock::start(1.0), user: None };
        let error = LinkError::new(LinkErrorKind::Refused, "nothing listens on port 22");
        let configure: ConfigureHost = Arc::new(|host| Arc::new(HostConfig::named(host.name.clone())));
        let placeholder = Some(HostId(0));
        let followed = FollowedCollector {
            route,
            picture: Err(error),
            hosts: Vec::new(),
            placeholder,
            configure: Some(configure),
        };
        let RelayedParts { hosts: relayed, mut updates, mut histories, .. } =
            RelayedHosts::start(vec![followed], &[pane]);
        assert!(!relayed.has_history() && !relayed.is_simulated());
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

    /// Sends a request over an own session to a host that cannot be reached. Returns the refusal and the time it took.
    async fn refusal(fails: bool) -> (String, u64) {
        let host = Arc::new(HostConfig::named("hgx-01"));
        let ssh: Arc<dyn OpenChannel> = Arc::new(Unreachable { fails });
        let route = RelayRoute { machine: Arc::clone(&host), ssh, clock: Clock::start(1.0), user: None };
        let (updates, mut receiver) = update_channel(8);
        let (sender, orders) = mpsc::channel(8);
        let task = tokio::spawn(act(route, updates, orders));
        let request = Request::LogTail { id: 5, boot_id: "b".into(), pid: 7, start_ticks: 70 };
        let began = Instant::now();
        sender.send(Order { id: HostId(0), host, request }).await.expect("the task runs");
        let (id, update) = receiver.recv().await.expect("a reply");
        let HostUpdate::Reply(crate::wire::Reply { id: 5, outcome: crate::wire::ReplyOutcome::Refused(why) }) = update
        else {
            panic!("{update:?}")
        };
        assert_eq!(id, HostId(0));
        drop(sender);
        task.await.expect("ends with its sender");
        (why.to_string(), began.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_to_a_host_that_cannot_be_reached_is_refused_with_the_cause() {
        let (why, seconds) = refusal(true).await;
        assert!(
            why.starts_with("this needs your own SSH session to hgx-01, which failed: nothing listens on port 22"),
            "{why}"
        );
        assert!(seconds < 5, "{seconds}");
        let (why, seconds) = refusal(false).await;
        assert_eq!(why, "nothing was sent: your own SSH session to hgx-01 was not ready within 25 s");
        assert_eq!(seconds, SEND_LIMIT.as_secs());
    }
}
