//! Keeps what collectors send until the viewer reads it, for example while the viewer asks for a password. Only the newest state
//! of each host is kept, so that memory does not grow. In exchange, the charts have a gap for that time.

use crate::fleet::{HostId, HostUpdate};
use crate::share::ViewerEvent;
use crate::wire::limits::{MAX_SLURM_ENDS, MAX_XID_EVENTS};
use crate::wire::{GpuInfo, Hello, Inventory, Snapshot};
use std::collections::{BTreeMap, HashSet};

/// The events of a picture and of what follows it.
#[derive(Debug, Default)]
pub(super) struct PictureEvents {
    collector: Option<ViewerEvent>,
    has_hosts: bool,
    hosts: BTreeMap<u32, HostEvents>,
    is_complete: bool,
}

/// The last events of one host.
#[derive(Debug, Default)]
struct HostEvents {
    hello: Option<Box<Hello>>,
    inventory: Option<Box<Inventory>>,
    /// The last snapshot with the processes of all GPUs, if they could not be read since.
    readable: Option<Box<Snapshot>>,
    snapshot: Option<Box<Snapshot>>,
    readings_age: Option<HostUpdate>,
    round_trip: Option<HostUpdate>,
    misbehavior: Option<HostUpdate>,
    /// The state of the link, unless something has arrived since.
    link: Option<HostUpdate>,
    states: Option<ViewerEvent>,
    verdicts: Option<ViewerEvent>,
}

impl PictureEvents {
    /// Adds the next events.
    pub(super) fn extend(&mut self, events: Vec<ViewerEvent>) {
        for event in events {
            self.add(event);
        }
    }

    fn add(&mut self, event: ViewerEvent) {
        match event {
            ViewerEvent::Collector(_) => self.collector = Some(event),
            ViewerEvent::HostsChanged => self.has_hosts = true,
            ViewerEvent::Update(id, update) => self.hosts.entry(id.0).or_default().add(update),
            ViewerEvent::States(id, _) => self.hosts.entry(id.0).or_default().states = Some(event),
            ViewerEvent::Verdicts(id, _) => self.hosts.entry(id.0).or_default().verdicts = Some(event),
            ViewerEvent::Complete => self.is_complete = true,
            // Nothing was requested yet, and a refusal is an error of the connection.
            ViewerEvent::History(_) | ViewerEvent::Refused(..) => {}
        }
    }

    /// The events, in the order in which a picture has them.
    pub(super) fn into_events(self) -> Vec<ViewerEvent> {
        let list = self.has_hosts.then_some(ViewerEvent::HostsChanged);
        let hosts = self.hosts.into_iter().flat_map(|(id, host)| host.into_events(HostId(id)));
        let complete = self.is_complete.then_some(ViewerEvent::Complete);
        self.collector.into_iter().chain(list).chain(hosts).chain(complete).collect()
    }
}

impl HostEvents {
    fn add(&mut self, update: HostUpdate) {
        match update {
            HostUpdate::Hello(hello) => {
                // The earlier readings do not belong to a host that has rebooted.
                if self.hello.as_ref().is_some_and(|kept| kept.boot_id != hello.boot_id) {
                    *self = Self::default();
                }
                self.hello = Some(hello);
            }
            HostUpdate::Inventory(inventory) => {
                for kept in self.readable.iter_mut().chain(&mut self.snapshot) {
                    let before = self.inventory.as_deref();
                    follow_gpus(kept, |position| position_in(&inventory, before?.gpus.get(usize::from(position))?));
                }
                self.inventory = Some(inventory);
            }
            HostUpdate::Snapshot(snapshot) => {
                self.add_snapshot(snapshot);
                (self.readings_age, self.link) = (None, None);
            }
            HostUpdate::ReadingsAge(_) => self.readings_age = Some(update),
            HostUpdate::RoundTrip(_) => {
                self.round_trip = Some(update);
                self.link.take_if(|link| matches!(link, HostUpdate::Silent));
            }
            HostUpdate::Misbehaves(_) => self.misbehavior = Some(update),
            HostUpdate::Connecting { .. } | HostUpdate::Silent | HostUpdate::Down { .. } | HostUpdate::NeedsUser(_) => {
                self.link = Some(update);
            }
            // A collector passes no answers on.
            HostUpdate::Reply(_) => {}
        }
    }

    fn add_snapshot(&mut self, mut snapshot: Box<Snapshot>) {
        let is_readable = lists_all_processes(&snapshot);
        if let Some(mut older) = self.snapshot.take() {
            if !is_readable && lists_all_processes(&older) {
                // Its processes stay on the screen until they can be read again.
                keep_events(&mut older, &mut snapshot);
                self.readable = Some(older);
            } else {
                carry_over(*older, &mut snapshot);
            }
        }
        if let Some(older) = self.readable.take_if(|_| is_readable) {
            carry_over(*older, &mut snapshot);
        }
        self.snapshot = Some(snapshot);
    }

    fn into_events(self, id: HostId) -> impl Iterator<Item = ViewerEvent> {
        let updates = [
            self.hello.map(HostUpdate::Hello),
            self.inventory.map(HostUpdate::Inventory),
            self.readable.map(HostUpdate::Snapshot),
            self.snapshot.map(HostUpdate::Snapshot),
            self.readings_age,
            self.round_trip,
            self.misbehavior,
            self.link,
        ];
        let updates = updates.into_iter().flatten().map(move |update| ViewerEvent::Update(id, update));
        updates.chain(self.states).chain(self.verdicts)
    }
}

/// Moves the parts that are not in every snapshot from the one before it: the facts of the processes that still use a GPU,
/// health, Xids, charts, file systems and Slurm jobs. The newest part wins.
fn carry_over(mut older: Snapshot, newer: &mut Snapshot) {
    keep_events(&mut older, newer);
    let renewed: HashSet<u32> = newer.facts.iter().map(|facts| facts.pid).collect();
    let listed: HashSet<u32> = newer.gpu_processes.pid.iter().flatten().copied().collect();
    let is_needed = |pid: u32| listed.contains(&pid) && !renewed.contains(&pid);
    newer.facts.extend(older.facts.into_iter().filter(|facts| is_needed(facts.pid)));
    if newer.health.is_empty() && newer.generation == older.generation {
        newer.health = older.health;
    }
    if newer.recent_past.is_empty() {
        newer.recent_past = older.recent_past;
    }
    let (host, before) = (&mut newer.host, older.host);
    if host.filesystems.is_empty() {
        host.filesystems = before.filesystems;
    }
    host.slurm_jobs = host.slurm_jobs.take().or(before.slurm_jobs);
    host.slurm_allocated_gpus = host.slurm_allocated_gpus.take().or(before.slurm_allocated_gpus);
}

/// Moves the events of an older snapshot to a newer one. The parts of a divided snapshot, and a picture that is sent again,
/// repeat them.
fn keep_events(older: &mut Snapshot, newer: &mut Snapshot) {
    let (xids, ends) = (&mut newer.xid_events, &mut newer.host.slurm_ends);
    older.xid_events.retain(|event| !xids.contains(event));
    older.host.slurm_ends.retain(|end| !ends.contains(end));
    put_before(std::mem::take(&mut older.xid_events), xids, MAX_XID_EVENTS);
    put_before(std::mem::take(&mut older.host.slurm_ends), ends, MAX_SLURM_ENDS);
}

/// Whether the driver told the processes of all GPUs.
fn lists_all_processes(snapshot: &Snapshot) -> bool {
    let gpus = &snapshot.gpus;
    snapshot.driver_error.is_none()
        && gpus.error.iter().all(Option::is_none)
        && gpus.blocked_seconds.iter().all(Option::is_none)
}

/// Changes the positions of GPUs in a snapshot whose inventory is replaced.
fn follow_gpus(snapshot: &mut Snapshot, place: impl Fn(u16) -> Option<u16>) {
    for event in &mut snapshot.xid_events {
        event.gpu = event.gpu.and_then(&place);
    }
    snapshot.recent_past.retain_mut(|past| {
        let now = place(past.gpu);
        past.gpu = now.unwrap_or(past.gpu);
        now.is_some()
    });
}

fn position_in(inventory: &Inventory, gpu: &GpuInfo) -> Option<u16> {
    let is_same = |other: &GpuInfo| if gpu.uuid.is_some() { other.uuid == gpu.uuid } else { other.index == gpu.index };
    inventory.gpus.iter().position(is_same).and_then(|position| u16::try_from(position).ok())
}

/// Puts the events of an older snapshot before those of a newer one, and keeps the newest.
fn put_before<T>(mut older: Vec<T>, newer: &mut Vec<T>, limit: usize) {
    older.append(newer);
    older.drain(..older.len().saturating_sub(limit));
    *newer = older;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::fixture::{at, fleet, process};
    use crate::fleet::{Fleet, LinkError, LinkErrorKind};
    use crate::sim::builder;
    use crate::wire::{
        DriverError, DriverErrorKind, GpuProcessColumns, GpuProcessReading, ProcessFacts, RecentPast, XidEvent,
    };
    use std::time::Duration;

    fn snapshot(sequence: u64, pids: &[u32], facts: &[u32]) -> HostUpdate {
        let usage = |pid: &u32| GpuProcessReading { pid: Some(*pid), gpu: Some(0), ..GpuProcessReading::default() };
        let usages: Vec<GpuProcessReading> = pids.iter().map(usage).collect();
        HostUpdate::Snapshot(Box::new(Snapshot {
            sequence,
            gpu_processes: GpuProcessColumns::from_rows(&usages),
            facts: facts.iter().map(|pid| ProcessFacts { pid: *pid, ..ProcessFacts::default() }).collect(),
            xid_events: vec![XidEvent { gpu: Some(0), xid: 13, monotonic_seconds: sequence as f64 }],
            ..Snapshot::default()
        }))
    }

    /// The updates of one host that are left of these.
    fn kept(list: Vec<HostUpdate>) -> Vec<HostUpdate> {
        let mut events = PictureEvents::default();
        events.extend(list.into_iter().map(|update| ViewerEvent::Update(HostId(0), update)).collect());
        let update = |event| if let ViewerEvent::Update(_, update) = event { Some(update) } else { None };
        events.into_events().into_iter().filter_map(update).collect()
    }

    fn kept_snapshots(list: Vec<HostUpdate>) -> Vec<Snapshot> {
        let snapshot = |update| if let HostUpdate::Snapshot(snapshot) = update { Some(*snapshot) } else { None };
        kept(list).into_iter().filter_map(snapshot).collect()
    }

    #[test]
    fn an_hour_of_updates_leaves_one_state_of_each_host() {
        let mut events = PictureEvents::default();
        events.add(ViewerEvent::HostsChanged);
        for host in [0, 1].map(HostId) {
            events.add(ViewerEvent::Update(host, HostUpdate::Inventory(Box::default())));
        }
        events.add(ViewerEvent::Complete);
        for second in 0..3600 {
            for host in [0, 1].map(HostId) {
                // A process starts each second and another one ends.
                let pids = [7, 100 + second, 101 + second];
                let facts = if second == 0 { vec![7, 100, 101] } else { vec![101 + second] };
                events.add(ViewerEvent::Update(host, snapshot(u64::from(second), &pids, &facts)));
                events.add(ViewerEvent::Update(host, HostUpdate::RoundTrip(Duration::from_millis(2))));
            }
        }
        let events = events.into_events();
        assert_eq!((&events[0], events.last()), (&ViewerEvent::HostsChanged, Some(&ViewerEvent::Complete)));
        assert_eq!(events.len(), 8, "inventory, snapshot and round trip of each host");
        let ViewerEvent::Update(HostId(0), HostUpdate::Snapshot(last)) = &events[2] else { panic!("{:?}", events[2]) };
        let mut facts: Vec<u32> = last.facts.iter().map(|facts| facts.pid).collect();
        facts.sort_unstable();
        assert_eq!((last.sequence, facts), (3599, vec![7, 3699, 3700]), "the facts are sent once");
        let seconds = |event: Option<&XidEvent>| event.map(|event| event.monotonic_seconds);
        assert_eq!(last.xid_events.len(), MAX_XID_EVENTS);
        assert_eq!(seconds(last.xid_events.last()), Some(3599.0), "the newest");
        assert_eq!(seconds(last.xid_events.first()), Some(3600.0 - MAX_XID_EVENTS as f64));
    }

    #[test]
    fn the_last_state_of_a_link_is_kept_until_something_arrives() {
        let down = || {
            let error = LinkError::new(LinkErrorKind::Refused, "nothing listens on port 22");
            HostUpdate::Down { error, retry_at: None, attempt: 1 }
        };
        let trip = || HostUpdate::RoundTrip(Duration::from_millis(2));
        assert_eq!(kept(vec![trip(), HostUpdate::Silent, down()]), [trip(), down()]);
        assert_eq!(kept(vec![HostUpdate::Silent, trip()]), [trip()]);
        assert_eq!(kept(vec![down(), snapshot(1, &[], &[])]), [snapshot(1, &[], &[])]);
        let hello = |boot: &str| HostUpdate::Hello(Box::new(builder::hello(boot.into(), "alice", 1000)));
        let inventory = || HostUpdate::Inventory(Box::<Inventory>::default());
        let first = || vec![hello("boot-1"), inventory(), snapshot(1, &[7], &[7])];
        let then = |next: Vec<HostUpdate>| kept(first().into_iter().chain(next).collect());
        assert_eq!(then(vec![hello("boot-2")]), [hello("boot-2")], "it was before a reboot");
        let again = then(vec![hello("boot-1"), down()]);
        assert_eq!(again, [hello("boot-1"), inventory(), snapshot(1, &[7], &[7]), down()], "the last values stay");
    }

    #[test]
    fn the_processes_of_a_driver_that_does_not_answer_are_kept_until_it_does() {
        let silent = |sequence: u64| {
            let HostUpdate::Snapshot(mut snapshot) = snapshot(sequence, &[], &[]) else { unreachable!("a snapshot") };
            snapshot.driver_error =
                Some(DriverError { kind: DriverErrorKind::Blocked, code: None, message: "no answer for 12 s".into() });
            HostUpdate::Snapshot(snapshot)
        };
        let sequences = |list: &[Snapshot]| list.iter().map(|snapshot| snapshot.sequence).collect::<Vec<u64>>();
        let list = vec![snapshot(1, &[7], &[7]), silent(2), silent(3)];
        let kept = kept_snapshots(list.clone());
        assert_eq!(sequences(&kept), [1, 3]);
        assert_eq!((kept[0].xid_events.len(), kept[1].xid_events.len()), (0, 3), "each event once");
        let kept = kept_snapshots(list.into_iter().chain([snapshot(4, &[7], &[])]).collect());
        assert_eq!((sequences(&kept), kept[0].facts.len(), kept[0].xid_events.len()), (vec![4], 1, 4));
    }

    #[test]
    fn a_picture_that_is_sent_again_loses_and_repeats_no_event() {
        let kept = kept_snapshots(vec![snapshot(1, &[], &[]), snapshot(2, &[], &[]), snapshot(2, &[], &[])]);
        assert_eq!(kept[0].xid_events.iter().map(|event| event.monotonic_seconds).collect::<Vec<_>>(), [1.0, 2.0]);
    }

    #[test]
    fn events_follow_their_gpu_to_another_inventory() {
        let inventory = |names: &[&str]| {
            let gpu = |name: &&str| GpuInfo { uuid: Some((*name).into()), ..GpuInfo::default() };
            HostUpdate::Inventory(Box::new(Inventory { gpus: names.iter().map(gpu).collect(), ..Inventory::default() }))
        };
        let past = |gpu| RecentPast { gpu, ..RecentPast::default() };
        let mut before = Snapshot { recent_past: vec![past(0), past(1)], ..Snapshot::default() };
        before.xid_events =
            vec![0, 1].into_iter().map(|gpu| XidEvent { gpu: Some(gpu), xid: 79, monotonic_seconds: 1.0 }).collect();
        let list = vec![
            inventory(&["GPU-a", "GPU-b"]),
            HostUpdate::Snapshot(Box::new(before)),
            inventory(&["GPU-b"]),
            HostUpdate::Snapshot(Box::new(Snapshot { sequence: 2, generation: 2, ..Snapshot::default() })),
        ];
        let kept = kept_snapshots(list);
        assert_eq!(kept[0].xid_events.iter().map(|event| event.gpu).collect::<Vec<_>>(), [None, Some(0)]);
        assert_eq!(kept[0].recent_past, [past(0)]);
    }

    #[test]
    fn a_fleet_that_takes_the_kept_events_has_the_processes_of_the_last_snapshot() {
        let source = fleet(vec![vec![process(70, "python train.py", &[(0, 20)])]]);
        let host = &source.hosts()[0];
        let readings = || Snapshot {
            generation: host.inventory.as_ref().expect("an inventory").generation,
            gpu_processes: GpuProcessColumns::from_rows(&host.processes().next().expect("a process").gpus),
            ..Snapshot::default()
        };
        let facts = host.processes().filter_map(|process| process.facts().cloned()).collect();
        let list = vec![
            HostUpdate::Hello(Box::new(host.hello.clone().expect("a hello"))),
            HostUpdate::Inventory(Box::new(host.inventory.clone().expect("an inventory"))),
            HostUpdate::Snapshot(Box::new(Snapshot { facts, ..readings() })),
            HostUpdate::Snapshot(Box::new(readings())),
        ];
        let mut viewed = Fleet::new(std::slice::from_ref(&host.config), false, at(0.0));
        for update in kept(list) {
            viewed.apply(HostId(0), update, at(1.0));
        }
        let commands: Vec<&str> = viewed.hosts()[0].processes().map(|process| process.info.command.as_str()).collect();
        assert_eq!(commands, ["python train.py"]);
    }
}
