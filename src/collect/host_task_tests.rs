//! Host tasks over a simulated SSH client, in paused time.

use super::super::channels::HostUpdates;
use super::super::host_tasks::HostTasks;
use super::super::probe_binary::ProbeBinary;
use super::super::remote_command::{OpenChannel, Opening, Progress, channel_from_stream};
use super::super::session::tests::hello;
use super::*;
use crate::fleet::HostId;
use crate::ssh::transport::{Exit, SshError, SshErrorKind};
use crate::wire::codec::encode;
use crate::wire::{Message, PROTOCOL};
use std::sync::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// A timeout beyond every limit in these tests; paused time advances by itself.
const LONG: Duration = Duration::from_secs(300);

/// The phase in which a host of [`Stuck`] hangs.
#[derive(Clone, Copy, PartialEq)]
enum Hang {
    Opening(SshPhase),
    Shell,
    Script,
    Hello,
    Nowhere,
}

/// An SSH client whose hosts hang in the phase given by their port.
struct Stuck(Vec<Hang>);

impl OpenChannel for Stuck {
    fn open<'a>(self: Arc<Self>, host: &'a HostConfig, command: &'a str, progress: &'a Progress) -> Opening<'a> {
        Box::pin(async move {
            assert_eq!(command, "exec /bin/sh");
            let hang = self.0[usize::from(host.port.unwrap())];
            for phase in [SshPhase::Name, SshPhase::Tcp, SshPhase::KeyExchange, SshPhase::Login, SshPhase::Exec] {
                progress(phase);
                tokio::task::yield_now().await;
                if hang == Hang::Opening(phase) {
                    std::future::pending::<()>().await;
                }
            }
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            tokio::spawn(remote_side(theirs, hang));
            Ok(channel_from_stream(ours))
        })
    }
}

async fn remote_side(mut stream: DuplexStream, hang: Hang) {
    let mut received = String::new();
    let mut chunk = [0; 8192];
    let mut answered = 0;
    while let Ok(count @ 1..) = stream.read(&mut chunk).await {
        received.push_str(&String::from_utf8_lossy(&chunk[..count]));
        let nonce = received.split(' ').nth(4).unwrap_or_default().to_owned();
        let shell = received.starts_with("printf") && hang != Hang::Shell && answered == 0;
        let script = received.ends_with("main\n") && hang != Hang::Script && answered == 1;
        if shell {
            answered = 1;
            stream.write_all(format!("{nonce} shell Linux x86_64\n").as_bytes()).await.unwrap();
        } else if script {
            answered = 2;
            stream.write_all(format!("{nonce} exec /home/a/.cache/gpufleet/p\n").as_bytes()).await.unwrap();
            if hang != Hang::Hello {
                stream.write_all(&encode(&Message::Hello(hello(PROTOCOL))).unwrap()).await.unwrap();
                stream.write_all(&encode(&Message::Snapshot(Box::default())).unwrap()).await.unwrap();
            }
        }
    }
}

struct AnyProbe;

impl ProbeStore for AnyProbe {
    fn binary(&self, _machine: &str) -> Option<ProbeBinary> {
        Some(ProbeBinary::from_bytes("gpufleet-probe-0.1.0-0123456789abcdef", b"probe".to_vec()))
    }
    fn machines(&self) -> Vec<String> {
        Vec::new()
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_hangs_in_any_phase_delays_no_other() {
    let hangs = vec![
        Hang::Opening(SshPhase::Name),
        Hang::Opening(SshPhase::Tcp),
        Hang::Opening(SshPhase::KeyExchange),
        Hang::Opening(SshPhase::Login),
        Hang::Opening(SshPhase::Exec),
        Hang::Shell,
        Hang::Script,
        Hang::Hello,
        Hang::Nowhere,
    ];
    let last = hangs.len() - 1;
    let configs: Vec<_> = (0..hangs.len())
        .map(|port| Arc::new(HostConfig { port: Some(port as u16), ..HostConfig::named("h") }))
        .collect();
    let ssh = Source::Ssh(Arc::new(Stuck(hangs)));
    let probes: Arc<dyn ProbeStore> = Arc::new(AnyProbe);
    let began = Instant::now();
    let (_host_tasks, mut updates) = HostTasks::with_probes(&configs, &ssh, Clock::start(1.0), &probes, 64);
    let mut deepest = vec![ConnectPhase::Queued; last + 1];
    loop {
        match timeout(LONG, updates.recv()).await.expect("an update").expect("tasks live") {
            (id, HostUpdate::Snapshot(_)) => {
                assert_eq!((id, began.elapsed()), (HostId(last as u32), Duration::ZERO));
                break;
            }
            (id, HostUpdate::Connecting { phase, .. }) => deepest[id.0 as usize] = phase,
            (_, HostUpdate::Hello(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(deepest[..4], [ConnectPhase::Name, ConnectPhase::Tcp, ConnectPhase::KeyExchange, ConnectPhase::Login]);
    // Hosts that hang within SSH end after the limits of SSH.
    let mut given_up = Vec::new();
    while given_up.len() < 3 {
        if let (id, HostUpdate::Down { error, .. }) = updates.recv().await.expect("tasks live")
            && id != HostId(last as u32)
        {
            assert_eq!(began.elapsed().as_secs(), 10, "{}", error.message);
            given_up.push((id.0, error.message.to_string()));
        }
    }
    given_up.sort();
    assert_eq!(
        given_up,
        [
            (5, "the remote shell did not answer within 10 s".to_owned()),
            (6, "the remote script did not answer within 10 s".to_owned()),
            (7, "the probe sent no hello within 10 s".to_owned()),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn of_a_thousand_hosts_of_which_half_are_dead_the_living_are_there_at_once() {
    const HOSTS: u16 = 1000;
    let hangs: Vec<_> =
        (0..HOSTS).map(|n| if n % 2 == 0 { Hang::Opening(SshPhase::Tcp) } else { Hang::Nowhere }).collect();
    let configs: Vec<_> =
        (0..HOSTS).map(|n| Arc::new(HostConfig { port: Some(n), ..HostConfig::named(format!("h{n}")) })).collect();
    let ssh = Source::Ssh(Arc::new(Stuck(hangs)));
    let probes: Arc<dyn ProbeStore> = Arc::new(AnyProbe);
    let began = Instant::now();
    let (_host_tasks, mut updates) = HostTasks::with_probes(&configs, &ssh, Clock::start(1.0), &probes, 64);
    let mut living = std::collections::HashSet::new();
    while living.len() < usize::from(HOSTS / 2) {
        if let (id, HostUpdate::Snapshot(_)) =
            timeout(LONG, updates.recv()).await.expect("an update").expect("tasks live")
        {
            assert_eq!(id.0 % 2, 1, "{id:?} is dead");
            living.insert(id);
        }
    }
    // No limit of a dead host has passed yet.
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

/// An SSH client that fails, or runs a command that ends.
struct Ends(Mutex<Vec<Result<Exit, SshErrorKind>>>);

impl OpenChannel for Ends {
    fn open<'a>(self: Arc<Self>, _host: &'a HostConfig, _command: &'a str, _progress: &'a Progress) -> Opening<'a> {
        Box::pin(async move {
            let exit = self.0.lock().unwrap().remove(0).map_err(|kind| SshError::new(kind, "no"))?;
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            let (ended, receiver) = oneshot::channel();
            tokio::spawn(async move {
                let (mut stdout, mut stdin) = tokio::io::split(theirs);
                let mut chunk = [0; 8192];
                let count = stdout.read(&mut chunk).await.unwrap();
                let nonce = String::from_utf8_lossy(&chunk[..count]).split(' ').nth(4).unwrap().to_owned();
                stdin.write_all(format!("{nonce} shell Linux x86_64\n").as_bytes()).await.unwrap();
                stdout.read_exact(&mut chunk[..1000]).await.unwrap();
                stdin.write_all(format!("{nonce} exec /p\n").as_bytes()).await.unwrap();
                ended.send(exit).unwrap();
            });
            Ok(Channel { exit: receiver, ..channel_from_stream(ours) })
        })
    }
}

#[tokio::test(start_paused = true)]
async fn the_way_a_probe_ended_is_told_and_rules_the_next_try() {
    let ends = vec![
        Ok(Exit::Signal("KILL".to_owned())),
        Ok(Exit::Signal("KILL".to_owned())),
        Ok(Exit::Status(127)),
        Err(SshErrorKind::ConnectionRefused),
        Err(SshErrorKind::HostKeyChanged),
    ];
    let ssh = Source::Ssh(Arc::new(Ends(Mutex::new(ends))));
    let probes: Arc<dyn ProbeStore> = Arc::new(AnyProbe);
    let hosts = [Arc::new(HostConfig::named("hgx-01"))];
    let (_host_tasks, mut updates) = HostTasks::with_probes(&hosts, &ssh, Clock::start(1.0), &probes, 64);
    let mut seen = Vec::new();
    let mut failed_at = Vec::new();
    while seen.len() < 5 {
        match timeout(4 * LONG, updates.recv()).await.expect("an update").expect("the task lives").1 {
            HostUpdate::Down { error, .. } => seen.push(format!("down: {}", error.message)),
            HostUpdate::NeedsUser(error) => seen.push(format!("needs user: {}", error.message)),
            _ => continue,
        }
        failed_at.push(Instant::now());
    }
    assert_eq!(
        seen,
        [
            "down: the probe was killed (9)",
            "down: the probe was killed (9) twice within 10 minutes, as by an administrator",
            "down: the probe does not start on this host (exit status 127)",
            "down: no",
            "needs user: no",
        ]
    );
    let waited: Vec<u64> = failed_at.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
    assert!((5..7).contains(&waited[0]) && (600..661).contains(&waited[1]), "{waited:?}");
    assert!(waited[2] <= 4 && waited[3] <= 8, "{waited:?}");
}

/// Waits for the next failure and returns its time.
async fn next_failure(updates: &mut HostUpdates) -> Instant {
    loop {
        if let (_, HostUpdate::Down { .. }) =
            timeout(LONG, updates.recv()).await.expect("an update").expect("the task lives")
        {
            return Instant::now();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_behind_a_cut_network_is_tried_every_few_seconds_while_a_person_watches() {
    let ssh = Source::Ssh(Arc::new(Ends(Mutex::new((0..500).map(|_| Err(SshErrorKind::ConnectionRefused)).collect()))));
    let probes: Arc<dyn ProbeStore> = Arc::new(AnyProbe);
    let hosts = [Arc::new(HostConfig::named("hgx-01"))];
    let (host_tasks, mut updates) = HostTasks::with_probes(&hosts, &ssh, Clock::start(1.0), &probes, 64);
    let mut last = next_failure(&mut updates).await;
    let (mut longest, mut longest_unwatched) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..60 {
        host_tasks.record_input();
        let failed_at = next_failure(&mut updates).await;
        longest = longest.max(failed_at - last);
        last = failed_at;
    }
    assert!(longest <= WATCHED_CEILING, "{longest:?}");
    // Nobody presses a key for an hour.
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(3600) {
        let failed_at = next_failure(&mut updates).await;
        longest_unwatched = longest_unwatched.max(failed_at - last);
        last = failed_at;
    }
    assert!(longest_unwatched > 4 * WATCHED_CEILING && longest_unwatched <= LAST_CEILING, "{longest_unwatched:?}");
    // A key shortens the delay that is running.
    host_tasks.record_input();
    let returned = Instant::now();
    let opened = async { while !matches!(updates.recv().await, Some((_, HostUpdate::Connecting { .. }))) {} };
    timeout(LONG, opened).await.expect("a connection attempt");
    assert!(returned.elapsed() <= WATCHED_CEILING, "{:?}", returned.elapsed());
}
