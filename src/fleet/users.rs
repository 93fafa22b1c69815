//! Users: the GPUs that each one holds, and their GPU-hours.

use super::gpus::StateCounts;
use super::{GpuState, Host, HostId, Moment, UNKNOWN_USER};
use crate::wire::SafeText;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// The GPUs that one user holds on one host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostUsage {
    /// The user, as in [`super::Row::who`]; [`UNKNOWN_USER`] if unknown.
    pub who: SafeText,
    /// Whether a process runs as the login user.
    pub is_mine: bool,
    /// Number of GPUs; MIG instances count as their GPU.
    pub gpus: u32,
    /// Number of these GPUs that other users hold as well.
    pub shared: u32,
    by_state: StateCounts,
    /// Memory in use on these GPUs in bytes.
    pub memory_bytes: Option<u64>,
    /// Memory in use on the idle ones in bytes.
    pub idle_memory_bytes: u64,
    /// Since when the longest idle GPU has been idle.
    pub idle_since: Option<Moment>,
}

/// The users of one host, and the GPUs that are not held.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostUsers {
    /// The users by name.
    pub users: Vec<HostUsage>,
    /// Number of GPUs that are held; a shared GPU counts once.
    pub held: u32,
    unheld: StateCounts,
}

impl HostUsers {
    /// Number of GPUs in this state that nobody holds.
    pub fn unheld_in(&self, state: GpuState) -> u32 {
        self.unheld.count(state)
    }

    /// Number of GPUs that nobody holds.
    pub fn unheld(&self) -> u32 {
        self.unheld.total()
    }
}

/// The GPUs that one user holds on all hosts.
#[derive(Debug, Clone, PartialEq)]
pub struct UserUsage {
    /// The sum over the hosts.
    pub sum: HostUsage,
    /// The hosts with the number of GPUs held there, highest first, then in the order of the fleet.
    pub hosts: Vec<(HostId, u32)>,
    /// The GPU-hours since the program started.
    pub gpu_hours: GpuHours,
}

impl HostUsage {
    fn new(who: SafeText) -> Self {
        Self {
            who,
            is_mine: false,
            gpus: 0,
            shared: 0,
            by_state: StateCounts::default(),
            memory_bytes: None,
            idle_memory_bytes: 0,
            idle_since: None,
        }
    }

    /// Number of GPUs in this state.
    pub fn in_state(&self, state: GpuState) -> u32 {
        self.by_state.count(state)
    }

    fn add(&mut self, other: &Self) {
        self.is_mine |= other.is_mine;
        self.gpus += other.gpus;
        self.shared += other.shared;
        self.by_state.add(other.by_state);
        self.memory_bytes = add_bytes(self.memory_bytes, other.memory_bytes);
        self.idle_memory_bytes = self.idle_memory_bytes.saturating_add(other.idle_memory_bytes);
        self.idle_since = earlier(self.idle_since, other.idle_since);
    }
}

/// The column by which users are sorted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum UserSort {
    /// User name.
    Name,
    /// GPUs held.
    #[default]
    Gpus,
    /// GPUs in use.
    InUse,
    /// GPUs held idle.
    Idle,
    /// GPUs that look hung.
    Hung,
    /// Memory held.
    Memory,
    /// Memory held on idle GPUs.
    IdleMemory,
    /// GPU-hours held since the program began.
    Held,
    /// Duration of the longest idle GPU.
    LongestIdle,
}

impl UserSort {
    /// All columns, from left to right.
    pub const ALL: [Self; 9] = [
        Self::Name,
        Self::Gpus,
        Self::InUse,
        Self::Idle,
        Self::Hung,
        Self::Memory,
        Self::IdleMemory,
        Self::Held,
        Self::LongestIdle,
    ];

    /// Returns the column `step` places to the right; the first follows the last.
    pub fn adjacent(self, step: isize) -> Self {
        let count = Self::ALL.len() as isize;
        Self::ALL[(self as isize + step).rem_euclid(count) as usize]
    }

    /// Orders the largest value first, and names alphabetically.
    pub fn compare(self, a: &UserUsage, b: &UserUsage) -> Ordering {
        let state = |user: &UserUsage, state| user.sum.in_state(state);
        match self {
            Self::Name => a.sum.who.cmp(&b.sum.who),
            Self::Gpus => b.sum.gpus.cmp(&a.sum.gpus),
            Self::InUse => state(b, GpuState::InUse).cmp(&state(a, GpuState::InUse)),
            Self::Idle => state(b, GpuState::Idle).cmp(&state(a, GpuState::Idle)),
            Self::Hung => state(b, GpuState::Hung).cmp(&state(a, GpuState::Hung)),
            Self::Memory => b.sum.memory_bytes.cmp(&a.sum.memory_bytes),
            Self::IdleMemory => b.sum.idle_memory_bytes.cmp(&a.sum.idle_memory_bytes),
            Self::Held => b.gpu_hours.held_hours.total_cmp(&a.gpu_hours.held_hours),
            // Users without an idle GPU come last.
            Self::LongestIdle => match (a.sum.idle_since, b.sum.idle_since) {
                (Some(a), Some(b)) => a.cmp(&b),
                (a, b) => b.is_some().cmp(&a.is_some()),
            },
        }
    }
}

/// The part of one GPU that one user holds.
struct GpuShare {
    bytes: Option<u64>,
    state: GpuState,
    since: Option<Moment>,
}

/// Computes who holds the GPUs of a host. `states` are the GPU states in inventory order.
pub fn host_users(host: &Host, states: &[(GpuState, Option<Moment>)]) -> HostUsers {
    let physical = physical_gpus(host);
    let mut users: BTreeMap<SafeText, (bool, BTreeMap<usize, GpuShare>)> = BTreeMap::new();
    for process in host.processes() {
        let (who, is_mine) = (&process.info.who, host.belongs_to_login_user(process));
        for position in process.gpu_positions().filter(|&position| process.computes_on(position)) {
            let Some(&gpu) = physical.get(position) else { continue };
            let (state, since) = states.get(position).copied().unwrap_or((GpuState::Unknown, None));
            let bytes = process.usage_on(position).and_then(|usage| usage.gpu_memory_bytes);
            let (mine, shares) = users.entry(who.clone()).or_default();
            *mine |= is_mine;
            let share = shares.entry(gpu).or_insert(GpuShare { bytes: None, state, since });
            share.bytes = add_bytes(share.bytes, bytes);
            // The worst state of the MIG instances counts for the GPU.
            if state < share.state {
                (share.state, share.since) = (state, since);
            }
        }
    }
    let mut holders = vec![0_u32; physical.len()];
    for gpu in users.values().flat_map(|(_, shares)| shares.keys()) {
        holders[*gpu] += 1;
    }
    let mut unheld = StateCounts::default();
    let mut held = 0;
    for (position, _) in host.gpus().enumerate().filter(|(_, (info, _))| info.mig_parent_uuid.is_none()) {
        if holders[position] > 0 {
            held += 1;
        } else {
            let state = states.get(position).map_or(GpuState::Unknown, |(state, _)| *state);
            unheld.add_one(state);
        }
    }
    let users = users.iter().map(|(who, (is_mine, shares))| host_usage(who, *is_mine, shares, &holders)).collect();
    HostUsers { users, held, unheld }
}

fn host_usage(who: &SafeText, is_mine: bool, shares: &BTreeMap<usize, GpuShare>, holders: &[u32]) -> HostUsage {
    let mut user = HostUsage { is_mine, ..HostUsage::new(who.clone()) };
    for (gpu, share) in shares {
        user.gpus += 1;
        user.shared += u32::from(holders[*gpu] > 1);
        user.by_state.add_one(share.state);
        user.memory_bytes = add_bytes(user.memory_bytes, share.bytes);
        if share.state == GpuState::Idle {
            user.idle_memory_bytes = user.idle_memory_bytes.saturating_add(share.bytes.unwrap_or(0));
            user.idle_since = earlier(user.idle_since, share.since);
        }
    }
    user
}

/// The position of the GPU for each position: its own, or that of the parent for a MIG instance.
fn physical_gpus(host: &Host) -> Vec<usize> {
    let gpu_with_uuid = |uuid: &SafeText| host.gpus().position(|(info, _)| info.uuid.as_ref() == Some(uuid));
    host.gpus()
        .enumerate()
        .map(|(position, (info, _))| info.mig_parent_uuid.as_ref().and_then(gpu_with_uuid).unwrap_or(position))
        .collect()
}

/// Adds two values. The sum is unknown only if both are.
fn add_bytes(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (a, b) => a.or(b),
    }
}

fn earlier(a: Option<Moment>, b: Option<Moment>) -> Option<Moment> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// For how long GPUs were held and used.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GpuHours {
    /// GPU-hours held.
    pub held_hours: f64,
    /// GPU-hours in which the held GPU was in use.
    pub used_hours: f64,
}

/// Maximum number of users in the ledger, because hosts choose the names.
const MAX_USERS: usize = 1000;
/// A longer step of the clock does not count: the computer was suspended or the program was stopped.
const MAX_TICK_STEP: Duration = Duration::from_secs(10);

/// The GPU-hours of all users since the program started.
#[derive(Debug, Clone, Default)]
pub struct UsageLedger {
    gpu_hours: HashMap<SafeText, GpuHours>,
    last: Option<Moment>,
}

impl UsageLedger {
    /// Adds the time since the last call for the GPUs that are held now.
    pub fn tick<'a>(&mut self, hosts: impl Iterator<Item = &'a [HostUsage]>, now: Moment) {
        let step = self.last.map_or(Duration::ZERO, |last| now.since(last));
        self.last = Some(now);
        if step.is_zero() || step > MAX_TICK_STEP {
            return;
        }
        let hours = step.as_secs_f64() / 3600.0;
        for user in hosts.flatten() {
            if self.gpu_hours.len() >= MAX_USERS && !self.gpu_hours.contains_key(&user.who) {
                continue;
            }
            let spent = self.gpu_hours.entry(user.who.clone()).or_default();
            spent.held_hours += hours * f64::from(user.gpus);
            spent.used_hours += hours * f64::from(user.in_state(GpuState::InUse));
        }
    }

    /// The GPU-hours of a user.
    pub fn gpu_hours(&self, who: &SafeText) -> GpuHours {
        self.gpu_hours.get(who).copied().unwrap_or_default()
    }
}

/// The users of all hosts, most GPUs first, unknown users last. Includes users of the ledger who hold no GPU now. `hosts` are in
/// the order in which lists show them ([`super::Fleet::hosts_in_order`]).
pub fn users<'a>(hosts: impl Iterator<Item = (HostId, &'a [HostUsage])>, ledger: &UsageLedger) -> Vec<UserUsage> {
    let mut users: BTreeMap<SafeText, UserUsage> = BTreeMap::new();
    let new = |who: &SafeText| UserUsage {
        sum: HostUsage::new(who.clone()),
        hosts: Vec::new(),
        gpu_hours: ledger.gpu_hours(who),
    };
    for (id, usages) in hosts {
        for one in usages {
            let user = users.entry(one.who.clone()).or_insert_with(|| new(&one.who));
            user.sum.add(one);
            user.hosts.push((id, one.gpus));
        }
    }
    for who in ledger.gpu_hours.keys() {
        users.entry(who.clone()).or_insert_with(|| new(who));
    }
    let mut users: Vec<UserUsage> = users.into_values().collect();
    for user in &mut users {
        // The sort is stable: hosts with as many GPUs keep the order of the fleet.
        user.hosts.sort_by_key(|(_, gpus)| std::cmp::Reverse(*gpus));
    }
    users.sort_by(|a, b| {
        let order = |user: &UserUsage| (user.sum.who == UNKNOWN_USER, std::cmp::Reverse(user.sum.gpus));
        let memory = |user: &UserUsage| std::cmp::Reverse(user.sum.memory_bytes);
        order(a).cmp(&order(b)).then_with(|| memory(a).cmp(&memory(b))).then_with(|| a.sum.who.cmp(&b.sum.who))
    });
    users
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::fixture::{TestHost, TestProcess, at, gpus, process, reading};

    fn of(user: &str, uid: u32, mut process: TestProcess) -> TestProcess {
        process.facts.user = Some(user.into());
        process.facts.uid = Some(uid);
        process
    }

    fn usages(id: u32, states: &[GpuState], processes: &[TestProcess]) -> Vec<HostUsage> {
        let mut host = TestHost::new(id, gpus(0..states.len() as u32));
        host.send_snapshot(10.0, &vec![reading(50, 40); states.len()], processes);
        let states: Vec<_> = states.iter().map(|state| (*state, Some(at(4.0)))).collect();
        let users = host_users(&host.host, &states);
        assert_eq!(users.held + users.unheld(), states.len() as u32, "every GPU is either held or not");
        users.users
    }

    #[test]
    fn gpus_count_once_per_user_and_are_shared_if_several_users_hold_them() {
        use GpuState::{Free, Idle, InUse};
        let bob = |pid, on: &[(u16, u64)]| of("bob", 1001, process(pid, "python b.py", on));
        let usages = usages(
            0,
            &[InUse, Idle, InUse, Free],
            &[
                process(100, "python a.py", &[(0, 30), (1, 20)]),
                bob(200, &[(0, 10)]),
                bob(201, &[(0, 5)]),
                bob(202, &[(2, 7)]),
            ],
        );
        let names: Vec<&str> = usages.iter().map(|one| one.who.as_str()).collect();
        assert_eq!(names, ["alice", "bob"]);
        let (alice, bob) = (&usages[0], &usages[1]);
        assert_eq!((alice.gpus, alice.shared, alice.is_mine), (2, 1, true));
        assert_eq!((alice.in_state(InUse), alice.in_state(Idle)), (1, 1));
        assert_eq!((alice.memory_bytes, alice.idle_memory_bytes), (Some(50 << 30), 20 << 30));
        assert_eq!(alice.idle_since, Some(at(4.0)));
        assert_eq!((bob.gpus, bob.shared, bob.is_mine, bob.memory_bytes), (2, 1, false, Some(22 << 30)));
    }

    #[test]
    fn mig_instances_count_as_their_gpu() {
        let mut infos = gpus(0..3);
        infos[0].mig_enabled = Some(true);
        infos[1].mig_parent_uuid = Some("GPU-0".into());
        infos[2].mig_parent_uuid = Some("GPU-0".into());
        let mut host = TestHost::new(0, infos);
        let processes = [process(1, "a", &[(1, 5)]), of("bob", 1001, process(2, "b", &[(2, 6)]))];
        host.send_snapshot(10.0, &[reading(0, 11), reading(0, 5), reading(0, 6)], &processes);
        let states = [(GpuState::InUse, None); 3];
        let users = host_users(&host.host, &states);
        assert_eq!((users.held, users.unheld()), (1, 0));
        let usages = users.users;
        assert_eq!(usages.iter().map(|one| (one.gpus, one.shared)).collect::<Vec<_>>(), [(1, 1), (1, 1)]);
    }

    #[test]
    fn users_are_sorted_by_their_gpus_on_all_hosts() {
        use GpuState::{Hung, InUse};
        let bob = |pid, on: &[(u16, u64)]| of("bob", 1001, process(pid, "python b.py", on));
        let first = usages(0, &[InUse, InUse], &[process(1, "a", &[(0, 1)]), bob(2, &[(1, 1)])]);
        let second = usages(1, &[Hung, InUse], &[bob(3, &[(0, 2), (1, 2)])]);
        let hosts = [(HostId(0), first.as_slice()), (HostId(1), second.as_slice())];
        let users = users(hosts.into_iter(), &UsageLedger::default());
        assert_eq!(users.iter().map(|user| user.sum.who.as_str()).collect::<Vec<_>>(), ["bob", "alice"]);
        assert_eq!((users[0].sum.gpus, users[0].sum.in_state(Hung)), (3, 1));
        assert_eq!(users[0].hosts, [(HostId(1), 2), (HostId(0), 1)]);
        assert_eq!(users[0].sum.memory_bytes, Some(5 << 30));
    }

    #[test]
    fn hosts_with_as_many_gpus_keep_the_order_of_the_fleet() {
        use GpuState::InUse;
        let on = |id, gpus: &[(u16, u64)]| usages(id, &[InUse, InUse], &[process(1, "a", gpus)]);
        let (one, two) = ([(0, 1)], [(0, 1), (1, 1)]);
        let seen = [(7, on(7, &one)), (3, on(3, &two)), (5, on(5, &one)), (1, on(1, &two))];
        let users = users(seen.iter().map(|(id, usages)| (HostId(*id), usages.as_slice())), &UsageLedger::default());
        assert_eq!(users[0].hosts, [(HostId(3), 2), (HostId(1), 2), (HostId(7), 1), (HostId(5), 1)]);
    }

    #[test]
    fn gpu_hours_grow_while_gpus_are_held_but_not_during_a_suspend() {
        use GpuState::{Idle, InUse};
        let held = usages(0, &[InUse, Idle], &[process(1, "a", &[(0, 1), (1, 1)])]);
        let mut ledger = UsageLedger::default();
        for second in 0..=3600 {
            ledger.tick([held.as_slice()].into_iter(), at(f64::from(second)));
        }
        let spent = ledger.gpu_hours(&"alice".into());
        assert!((spent.held_hours - 2.0).abs() < 1e-9 && (spent.used_hours - 1.0).abs() < 1e-9, "{spent:?}");
        ledger.tick([held.as_slice()].into_iter(), at(30_000.0));
        assert_eq!(ledger.gpu_hours(&"alice".into()), spent, "a suspend does not count");
        let gone = users([(HostId(0), &[][..])].into_iter(), &ledger);
        assert_eq!(
            (gone.len(), gone[0].sum.gpus, gone[0].gpu_hours),
            (1, 0, spent),
            "a user who left remains in the list"
        );
    }
}
