use super::*;
use crate::config::{HostConfig, Sharing};
use crate::fleet::fixture::{at, fleet, process};
use crate::fleet::{Host, LinkError, LinkErrorKind};
use crate::share::frame::{HostFrame, Needed, NeededFacts, decode};
use crate::share::viewer::{Demultiplexer, ViewerEvent};
use crate::wire::{Message, Snapshot};
use futures::FutureExt as _;

fn hub() -> Hub {
    Hub::new("lab-head".into(), false, at(0.0))
}

/// Two hosts, with one process on two GPUs and with none.
fn small_fleet() -> Fleet {
    fleet(vec![vec![process(70, "python train.py", &[(0, 20), (1, 30)])], vec![]])
}

/// The lines that wait.
fn drain(queue: &LineQueue) -> Vec<Arc<[u8]>> {
    std::iter::from_fn(|| queue.next().now_or_never().flatten()).collect()
}

fn frames(lines: &[Arc<[u8]>]) -> Vec<Frame> {
    lines.iter().map(|line| decode(line.strip_suffix(b"\n").expect("a newline")).expect("decodes")).collect()
}

/// Reads the lines as a viewer does.
fn viewed(lines: &[Arc<[u8]>], now: Moment) -> (Fleet, Demultiplexer, Vec<ViewerEvent>) {
    let mut demultiplexer = Demultiplexer::default();
    let mut events = Vec::new();
    for line in lines {
        events.extend(demultiplexer.take(line.strip_suffix(b"\n").expect("a newline"), now).expect("is valid"));
    }
    let configs: Vec<_> =
        demultiplexer.hosts().iter().map(|host| Arc::new(HostConfig::named(host.name.clone()))).collect();
    let mut fleet = Fleet::new(&configs, false, now);
    for event in &events {
        if let ViewerEvent::Update(id, update) = event {
            fleet.apply(*id, update.clone(), now);
        }
    }
    (fleet, demultiplexer, events)
}

fn join(hub: &mut Hub, fleet: &Fleet, audience: Audience, follow: bool, now: Moment) -> Arc<LineQueue> {
    let hello = if follow { ViewerHello::follow() } else { ViewerHello::once(Needed::default()) };
    hub.join(&hello, audience, (fleet, &Engine::default()), now)
}

/// The state of a host on a screen.
fn shown(host: &Host) -> String {
    let processes: Vec<_> = host
        .processes()
        .map(|process| {
            (&process.key, process.info.command.as_str(), &process.info.who, &process.gpus, &process.reading)
        })
        .collect();
    let gpus: Vec<_> = host.gpus().collect();
    format!("{} {} {:?} {gpus:?} {processes:?}", host.name(), host.link.word(), host.hello)
}

#[test]
fn a_viewer_sees_the_same_picture() {
    let mut fleet = small_fleet();
    let error = LinkError::new(LinkErrorKind::Refused, "nothing listens on port 22").with_hint("is sshd running?");
    fleet.apply(HostId(1), HostUpdate::Down { error, retry_at: Some(at(30.0)), attempt: 3 }, at(20.0));
    let queue = join(&mut hub(), &fleet, Audience::Own, true, at(25.0));
    let (seen, demultiplexer, events) = viewed(&drain(&queue), at(1000.0));
    assert_eq!(events.last(), Some(&ViewerEvent::Complete));
    let info = demultiplexer.info().expect("an introduction");
    assert_eq!((info.host_name.as_str(), info.share.as_str(), info.uptime_seconds), ("lab-head", "commands", 25.0));
    for (own, other) in fleet.hosts().iter().zip(seen.hosts()) {
        assert_eq!(shown(own), shown(other));
    }
    assert_eq!(seen.hosts()[0].age(at(1000.0)), Some(Duration::from_secs(24)), "the readings are as old as there");
    let down = &seen.hosts()[1];
    let error = down.link.error().expect("an error");
    assert_eq!(
        (error.message.as_str(), error.hint.as_deref()),
        ("nothing listens on port 22", Some("is sshd running?"))
    );
}

#[test]
fn a_viewer_sees_programs_that_run_again_without_a_gpu_unless_it_needs_no_facts() {
    let mut fleet = small_fleet();
    let process = crate::fleet::fixture::process(77, "python train.py", &[]);
    let generation = fleet.hosts()[0].inventory.as_ref().expect("known").generation;
    let snapshot = Snapshot { sequence: 99, generation, ..crate::sim::builder::snapshot(&[], &[process]) };
    fleet.apply(HostId(0), HostUpdate::Snapshot(Box::new(snapshot)), at(3.0));
    let reruns = |hello: &ViewerHello, audience: Audience| {
        let queue = hub().join(hello, audience, (&fleet, &Engine::default()), at(4.0));
        let (seen, ..) = viewed(&drain(&queue), at(5.0));
        seen.hosts()[0].reruns().iter().map(|process| process.info.command.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(reruns(&ViewerHello::follow(), Audience::Own), ["python train.py"]);
    let group = reruns(&ViewerHello::follow(), Audience::Group);
    assert!(group.iter().all(|command| !command.contains("train")), "{group:?}");
    let owners = ViewerHello::once(Needed { facts: NeededFacts::Owners, ..Needed::default() });
    assert_eq!(reruns(&owners, Audience::Own), [""; 0]);
}

#[test]
fn updates_follow_the_picture_and_a_one_time_viewer_gets_states_instead() {
    let mut fleet = small_fleet();
    let mut hub = hub();
    let follower = join(&mut hub, &fleet, Audience::Own, true, at(2.0));
    let once = join(&mut hub, &fleet, Audience::Own, false, at(2.0));
    assert_eq!(hub.viewers(), 1);
    let picture = drain(&follower);
    let is_diagnosis = |frame: &Frame| matches!(frame, Frame::Diagnosis(_));
    assert!(!frames(&picture).iter().any(is_diagnosis));
    let snapshot = HostUpdate::Snapshot(Box::new(Snapshot { sequence: 77, ..Snapshot::default() }));
    hub.publish(&fleet, HostId(0), &snapshot, at(3.0));
    fleet.apply(HostId(0), snapshot, at(3.0));
    let reply = crate::wire::Reply { id: 1, outcome: crate::wire::ReplyOutcome::Environment(vec!["A=secret".into()]) };
    hub.publish(&fleet, HostId(0), &HostUpdate::Reply(reply), at(3.0));
    let updates = frames(&drain(&follower));
    let [Frame::Host(HostFrame { name, wire: Some(Message::Snapshot(snapshot)), age_seconds: None, .. })] =
        &updates[..]
    else {
        panic!("a reply is never passed on: {updates:?}")
    };
    assert_eq!((name.as_str(), snapshot.sequence), ("hgx-00", 77));
    let lines = drain(&once);
    assert!(frames(&lines).iter().any(is_diagnosis));
    assert_eq!(once.next().now_or_never(), Some(None), "the queue has ended");
}

#[test]
fn another_account_sees_what_each_host_shares() {
    let mut fleet = small_fleet();
    let configs: Vec<_> = fleet
        .hosts()
        .iter()
        .zip([Sharing::Names, Sharing::None])
        .map(|(host, sharing)| Arc::new(HostConfig { sharing, ..(*host.config).clone() }))
        .collect();
    fleet.rearrange(&configs, at(2.0));
    let mut hub = hub();
    let text = |lines: Vec<Arc<[u8]>>| String::from_utf8(lines.concat()).expect("UTF-8");
    let group = text(drain(&join(&mut hub, &fleet, Audience::Group, true, at(2.0))));
    assert!(group.contains("alice") && group.contains("\"share\":\"none\""), "{group}");
    assert!(!group.contains("train.py"), "{group}");
    let own = text(drain(&join(&mut hub, &fleet, Audience::Own, true, at(2.0))));
    assert!(own.contains("train.py"));
}

/// A snapshot of about a megabyte.
fn large_snapshot() -> HostUpdate {
    let facts = crate::wire::ProcessFacts { argv: vec!["x".repeat(1000).into(); 1000], ..Default::default() };
    HostUpdate::Snapshot(Box::new(Snapshot { facts: vec![facts], ..Snapshot::default() }))
}

#[test]
fn a_slow_viewer_skips_samples_and_gets_the_picture_again() {
    let fleet = small_fleet();
    let (mut hub, engine) = (hub(), Engine::default());
    let slow = join(&mut hub, &fleet, Audience::Own, true, at(2.0));
    let quick = join(&mut hub, &fleet, Audience::Own, true, at(2.0));
    drain(&quick);
    for second in 0..20 {
        hub.publish(&fleet, HostId(0), &large_snapshot(), at(3.0 + f64::from(second)));
        assert_eq!(drain(&quick).len(), 1, "each update reaches a viewer that reads");
        let bytes: usize = slow.waiting.lock().expect("a lock").lines.iter().map(|line| line.len()).sum();
        assert!(bytes < MAX_WAITING_BYTES + 200_000, "{bytes} bytes wait");
    }
    hub.tick(&fleet, &engine, at(24.0));
    let rest = frames(&drain(&slow));
    assert_eq!(rest.last(), Some(&Frame::Complete), "of the first picture nothing is lost");
    hub.tick(&fleet, &engine, at(25.0));
    let again = drain(&slow);
    assert_eq!(frames(&again).last(), Some(&Frame::Complete));
    hub.publish(&fleet, HostId(0), &HostUpdate::Silent, at(26.0));
    assert_eq!(drain(&slow).len(), 1, "it follows again");
}

#[test]
fn a_viewer_that_does_not_read_is_dropped_and_a_silent_collector_gives_a_sign_of_life() {
    let fleet = small_fleet();
    let (mut hub, engine) = (hub(), Engine::default());
    let stuck = join(&mut hub, &fleet, Audience::Own, true, at(0.0));
    let reads = join(&mut hub, &fleet, Audience::Own, true, at(0.0));
    drain(&reads);
    let mut signs = 0;
    for second in 1..=31 {
        hub.tick(&fleet, &engine, at(f64::from(second)));
        let new = frames(&drain(&reads));
        assert!(new.iter().all(|frame| *frame == Frame::Alive), "{new:?}");
        signs += new.len();
    }
    assert_eq!(signs, 15);
    assert_eq!(hub.viewers(), 1);
    assert_eq!(stuck.next().now_or_never(), Some(None), "its connection ends");
    reads.close();
    hub.tick(&fleet, &engine, at(32.0));
    assert_eq!(hub.viewers(), 0);
}

/// The user, the command and the GPUs of each process in the picture that a viewer with this first line gets.
fn seen_processes(hello: &str) -> Vec<(String, String, usize)> {
    let fleet = small_fleet();
    let hello = ViewerHello::decode(hello.as_bytes()).expect("a hello");
    let queue = hub().join(&hello, Audience::Own, (&fleet, &Engine::default()), at(0.0));
    let (seen, _, _) = viewed(&drain(&queue), at(0.0));
    let process = |process: &crate::fleet::Process| {
        let user = process.facts().and_then(|facts| facts.user.clone()).unwrap_or_default();
        (user.to_string(), process.info.command.to_string(), process.gpus.len())
    };
    seen.hosts().iter().flat_map(Host::processes).map(process).collect()
}

#[test]
fn a_viewer_gets_only_the_facts_that_it_needs() {
    let hello = |follow: bool, facts: &str| {
        format!("{{\"viewer\":{{\"protocol\":1,\"version\":\"9.9.9\",\"follow\":{follow}{facts}}}}}")
    };
    let all = vec![("alice".to_owned(), "python train.py".to_owned(), 2)];
    assert_eq!(seen_processes(&hello(false, "")), all, "an earlier viewer");
    assert_eq!(seen_processes(&hello(false, ",\"facts\":\"of-a-later-version\"")), all);
    assert_eq!(seen_processes(&hello(true, ",\"facts\":\"owners\"")), all, "updates have them as well");
    let [(user, command, gpus)] = &seen_processes(&hello(false, ",\"facts\":\"owners\""))[..] else { panic!() };
    assert_eq!((user.as_str(), *gpus), ("alice", 2));
    assert!(!command.contains("train"), "{command}");
    let [(user, _, gpus)] = &seen_processes(&hello(false, ",\"facts\":\"nothing\""))[..] else { panic!() };
    assert_eq!((user.as_str(), *gpus), ("", 2));
    let line = |hello: ViewerHello| String::from_utf8(hello.line().expect("a line")).expect("text");
    let all = line(ViewerHello::once(Needed::default()));
    assert!(!all.contains("facts") && !all.contains("findings"), "the line of an earlier viewer: {all}");
    assert!(
        line(ViewerHello::once(Needed { facts: NeededFacts::Owners, ..Needed::default() }))
            .contains("\"facts\":\"owners\"")
    );
}

#[test]
fn viewers_of_another_version_and_too_many_viewers_are_refused_with_a_reason() {
    let fleet = small_fleet();
    let mut hub = hub();
    let refusal = |queue: &LineQueue| match frames(&drain(queue)).pop() {
        Some(Frame::Refused { kind, reason }) => (kind, reason.to_string()),
        other => panic!("{other:?}"),
    };
    let old = ViewerHello { protocol: 9, version: "9.9.9".into(), ..ViewerHello::follow() };
    let queue = hub.join(&old, Audience::Own, (&fleet, &Engine::default()), at(0.0));
    let version = env!("CARGO_PKG_VERSION");
    let text = format!(
        "the collector on lab-head is gpufleet {version} and speaks protocol 1, the viewer is gpufleet 9.9.9 and speaks \
         protocol 9: install the same version on both machines"
    );
    assert_eq!(refusal(&queue), (RefusalKind::Protocol, text));
    assert_eq!(queue.next().now_or_never(), Some(None));
    let all: Vec<_> = (0..MAX_VIEWERS).map(|_| join(&mut hub, &fleet, Audience::Own, true, at(0.0))).collect();
    let (kind, text) = refusal(&join(&mut hub, &fleet, Audience::Own, true, at(0.0)));
    assert_eq!(
        (kind, text.as_str()),
        (RefusalKind::TooMany, "the collector on lab-head has 64 viewers already: close one")
    );
    all[0].close();
    let queue = join(&mut hub, &fleet, Audience::Own, true, at(0.0));
    assert_eq!(frames(&drain(&queue)).last(), Some(&Frame::Complete), "a place is free again");
}

#[tokio::test]
async fn the_end_of_the_collector_is_announced() {
    let fleet = small_fleet();
    let mut hub = hub();
    let queue = join(&mut hub, &fleet, Audience::Own, true, at(0.0));
    drain(&queue);
    let queues = hub.finish();
    let last = frames(&drain(&queue));
    let reason = "the collector on lab-head was stopped".into();
    assert_eq!(last, [Frame::Refused { kind: RefusalKind::Ending, reason }]);
    queue.close();
    for queue in queues {
        queue.closed().await;
    }
}
