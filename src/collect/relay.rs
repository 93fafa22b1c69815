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
use tokio::sync::mpsc;
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

/// A collector that a viewer follows, and its hosts.
pub struct FollowedCollector {
    /// How to reach it.
    pub route: RelayRoute,
    /// The connection, whose picture is complete; without one, the cause.
    pub relay: Result<Relay, LinkError>,
    /// The updates of the picture. The ids are those of the lines: positions in `hosts`.
    pub first: Vec<(HostId, HostUpdate)>,
    /// The hosts in the order of the lines, each with its id in the fleet; `None` if the fleet has it from another collector.
    pub hosts: Vec<(SafeText, Option<HostId>)>,
}

impl FollowedCollector {
    fn info(&self) -> Option<&CollectorInfo> {
        self.relay.as_ref().ok()?.info()
    }
}

/// One of the collectors.
struct CollectorHandle {
    name: SafeText,
    retry: mpsc::Sender<()>,
    queries: mpsc::Sender<HistoryQuery>,
    has_history: bool,
    is_simulated: bool,
}

/// The hosts of one or several collectors. Dropping it ends all sessions.
pub struct RelayedHosts {
    commands: mpsc::Sender<(HostId, Command)>,
    collectors: Vec<CollectorHandle>,
    /// Each host of the fleet with the index of its collector.
    owners: Vec<(SafeText, usize)>,
    histories: mpsc::Sender<HistoryReply>,
    _tasks: JoinSet<()>,
}

impl RelayedHosts {
    /// Follows collectors. `hosts` are those of the fleet, and say how this program reaches each one. Must be called within
    /// a tokio runtime.
    pub fn start(
        followed: Vec<FollowedCollector>,
        hosts: &[Arc<HostConfig>],
    ) -> (Self, HostUpdates, mpsc::Receiver<HistoryReply>) {
        let (updates, receiver) = update_channel(WAITING_UPDATES);
        let (histories, answers) = mpsc::channel(WAITING_QUERIES);
        let (commands, orders) = mpsc::channel(WAITING_COMMANDS);
        let mut tasks = JoinSet::new();
        let mut collectors = Vec::new();
        let mut owners = vec![(SafeText::default(), 0); hosts.len()];
        let mut shared = vec![SafeText::default(); hosts.len()];
        let route = followed.first().map(|one| one.route.clone());
        for one in followed {
            let (queries, queried) = mpsc::channel(WAITING_QUERIES);
            let (retry, retries) = mpsc::channel(1);
            let share = one.info().map(|info| info.share.clone()).unwrap_or_default();
            let mut follower = Follower {
                names: Vec::new(),
                shown: Vec::new(),
                is_unknown: one.relay.is_err(),
                route: one.route.clone(),
                retries,
                queries: queried,
                histories: histories.clone(),
            };
            collectors.push(CollectorHandle {
                name: one.route.machine.name.clone(),
                retry,
                queries,
                has_history: one.info().is_some_and(|info| info.history),
                is_simulated: one.info().is_some_and(|info| info.simulated),
            });
            for (name, id) in one.hosts {
                let shown = id.and_then(|id| {
                    let host = Arc::clone(hosts.get(id.0 as usize)?);
                    *owners.get_mut(id.0 as usize)? = (host.name.clone(), collectors.len() - 1);
                    shared.get_mut(id.0 as usize)?.clone_from(&share);
                    Some((UpdateSender::new(id, updates.clone()), host))
                });
                follower.names.push(name);
                follower.shown.push(shown);
            }
            if follower.shown.iter().all(Option::is_none) {
                // None of its hosts is on the screen.
                continue;
            }
            tasks.spawn(async move {
                let _receiver_dropped = follower.run(one.relay, one.first).await;
            });
        }
        if let Some(route) = route {
            tasks.spawn(act(hosts.to_vec(), route, shared, updates, orders));
        }
        (Self { commands, collectors, owners, histories, _tasks: tasks }, receiver, answers)
    }

    /// Whether a collector watches a simulated fleet.
    pub fn is_simulated(&self) -> bool {
        self.collectors.iter().any(|collector| collector.is_simulated)
    }

    /// Whether a collector answers requests for histories. Earlier versions ignore them.
    pub fn has_history(&self) -> bool {
        self.collectors.iter().any(|collector| collector.has_history)
    }

    /// Requests a history without waiting. Returns `false` if too many requests wait. Without a connection, the request
    /// waits for the next one.
    pub fn request_history(&self, query: HistoryQuery) -> bool {
        let owner = self.owners.iter().find(|(name, _)| *name == query.host);
        let Some(collector) = owner.and_then(|(_, index)| self.collectors.get(*index)) else { return false };
        if collector.has_history {
            return collector.queries.try_send(query).is_ok();
        }
        let cause = format!("the collector on {} keeps no history, or does not answer", collector.name);
        self.histories.try_send(HistoryReply { id: query.id, result: Err(cause.into()) }).is_ok()
    }

    /// Sends a command without waiting. A retry connects to the collector of the host now; the interval belongs to the
    /// collector. Returns `false` if the queue is full.
    pub fn command(&self, host: HostId, command: Command) -> bool {
        match command {
            // One waiting retry is enough.
            Command::Retry => {
                let owner = self.owners.get(host.0 as usize);
                let collector = owner.and_then(|(_, index)| self.collectors.get(*index));
                collector.is_some_and(|collector| collector.retry.try_send(()).is_ok())
            }
            command => self.commands.try_send((host, command)).is_ok(),
        }
    }
}

/// Turns the lines of a collector into updates, and connects again when it is lost.
struct Follower {
    /// The hosts by the ids of the lines.
    names: Vec<SafeText>,
    /// Where their updates go; `None` if the fleet has the host from another collector.
    shown: Vec<Option<(UpdateSender, Arc<HostConfig>)>>,
    /// The collector did not answer at the start, so its hosts are unknown, and one pane stands for all of them.
    is_unknown: bool,
    route: RelayRoute,
    retries: mpsc::Receiver<()>,
    queries: mpsc::Receiver<HistoryQuery>,
    histories: mpsc::Sender<HistoryReply>,
}

impl Follower {
    async fn run(
        mut self,
        relay: Result<Relay, LinkError>,
        first: Vec<(HostId, HostUpdate)>,
    ) -> Result<(), ReceiverDropped> {
        for (id, update) in first {
            self.send(id, update).await?;
        }
        let mut connection = relay;
        let mut failures: u32 = 0;
        loop {
            let mut error = match connection {
                Ok(relay) => {
                    let began = Instant::now();
                    let Some(error) = self.follow(relay).await? else { return Ok(()) };
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
                let RelayRoute { machine, ssh, .. } = &self.route;
                match Relay::open(Arc::clone(ssh), machine, true, known, &|_| {}).await {
                    Ok(relay) => break Ok(relay),
                    Err(failed) => error = failed,
                }
                failures = failures.saturating_add(1);
            };
        }
    }

    /// Passes updates on until the connection ends. Returns why it ended; `None` if nothing is left to do.
    async fn follow(&mut self, mut relay: Relay) -> Result<Option<LinkError>, ReceiverDropped> {
        let mut is_silent = false;
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
                Ok(Err(error)) => return Ok(Some(error)),
                Err(_) => {
                    if !std::mem::replace(&mut is_silent, true) {
                        for id in (0..self.names.len() as u32).map(HostId) {
                            self.send(id, HostUpdate::Silent).await?;
                        }
                    }
                    continue;
                }
            };
            is_silent = false;
            for event in events {
                match event {
                    ViewerEvent::Update(id, update) => self.send(id, update).await?,
                    ViewerEvent::Complete if self.is_unknown => {
                        let text = format!("the collector on {} answers now", self.route.machine.name);
                        let error = LinkError::new(LinkErrorKind::Config, text)
                            .with_hint("start gpufleet again to show its hosts");
                        self.send(HostId(0), HostUpdate::Down { error, retry_at: None, attempt: 1 }).await?;
                        return Ok(None);
                    }
                    ViewerEvent::Complete => {
                        let text = format!("the collector on {} no longer watches this host", self.route.machine.name);
                        for id in relay.demultiplexer.removed_hosts().collect::<Vec<_>>() {
                            let error = LinkError::new(LinkErrorKind::Config, text.clone());
                            self.send(id, HostUpdate::Down { error, retry_at: None, attempt: 1 }).await?;
                        }
                    }
                    // The screen asks again if it takes too few answers.
                    ViewerEvent::History(reply) => drop(self.histories.try_send(reply)),
                    // The screen has its own diagnosis.
                    ViewerEvent::Collector(_)
                    | ViewerEvent::HostsChanged
                    | ViewerEvent::States(..)
                    | ViewerEvent::Refused(..) => {}
                }
            }
        }
    }

    async fn report_loss(&self, error: &LinkError, attempt: u32, retry_at: Moment) -> Result<(), ReceiverDropped> {
        let name = &self.route.machine.name;
        let text = format!("no connection to the collector on {name}: {}", error.message);
        let lost = LinkError { message: text.into(), ..error.clone() };
        for id in (0..self.names.len() as u32).map(HostId) {
            let down = HostUpdate::Down { error: lost.clone(), retry_at: Some(retry_at), attempt };
            self.send(id, down).await?;
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

/// Sends requests over own sessions: one task for each host that gets any. `shared` is what the collector of each host shows.
async fn act(
    hosts: Vec<Arc<HostConfig>>,
    route: RelayRoute,
    shared: Vec<SafeText>,
    updates: mpsc::Sender<QueuedUpdate>,
    mut orders: mpsc::Receiver<(HostId, Command)>,
) {
    let mut sessions: HashMap<HostId, mpsc::Sender<Request>> = HashMap::new();
    let mut tasks = JoinSet::new();
    while let Some((id, command)) = orders.recv().await {
        let Command::Request(request) = command else { continue };
        let (Some(host), Some(shared)) = (hosts.get(id.0 as usize), shared.get(id.0 as usize)) else { continue };
        let request = as_seen_by_host(request, shared);
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
        tasks.spawn(own_session(Arc::clone(host), route.clone(), updates, requests));
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
        let hosts = vec![(pane.name.clone(), Some(HostId(0)))];
        let followed = FollowedCollector { route, relay: Err(error), first: Vec::new(), hosts };
        let (relayed, mut updates, mut histories) = RelayedHosts::start(vec![followed], &[pane]);
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
        let task = tokio::spawn(act(vec![host], route, vec!["commands".into()], updates, orders));
        let request = Request::LogTail { id: 5, boot_id: "b".into(), pid: 7, start_ticks: 70 };
        let began = Instant::now();
        sender.send((HostId(0), Command::Request(request))).await.expect("the task runs");
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
