//! Requests to the hosts of a collector: they go over the viewer's own SSH session to the host, opened when it is needed.

use super::channels::{Command, QueuedUpdate, ReceiverDropped, UpdateSender, refusal_reply};
use super::host_tasks::HostTasks;
use super::relay::RelayRoute;
use super::remote_command::Source;
use crate::config::HostConfig;
use crate::fleet::{HostId, HostUpdate, LinkError};
use crate::wire::{Request, SafeText};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Requests to one host that may wait for its SSH session.
const WAITING_REQUESTS: usize = 16;
/// The viewer's own session to a host ends after this long without a request or a reply.
const OWN_SESSION_IDLE: Duration = Duration::from_secs(120);
/// A request is sent within this time, or refused: a signal must not be sent when nobody expects it any more, for example
/// because a prompt was open meanwhile. The screen waits longer for a reply.
const SEND_LIMIT: Duration = Duration::from_secs(25);

/// A request to a host.
pub(super) struct Order {
    pub(super) id: HostId,
    pub(super) host: Arc<HostConfig>,
    pub(super) request: Request,
}

/// Sends requests over own sessions: one task for each host that gets any.
pub(super) async fn act(route: RelayRoute, updates: mpsc::Sender<QueuedUpdate>, mut orders: mpsc::Receiver<Order>) {
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
pub(super) fn as_seen_by_host(request: Request, shared: &str) -> Request {
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
pub(super) mod tests {
    use super::*;
    use crate::collect::channels::update_channel;
    use crate::collect::{OpenChannel, Opening, Progress};
    use crate::fleet::{Clock, LinkErrorKind};
    use crate::wire::Signal;

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
    pub(in crate::collect) struct Unreachable {
        pub(in crate::collect) fails: bool,
    }

    impl OpenChannel for Unreachable {
        fn open<'a>(self: Arc<Self>, _: &'a HostConfig, _: &'a str, _: &'a Progress) -> Opening<'a> {
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
