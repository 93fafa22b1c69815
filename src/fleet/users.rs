//! Who holds which GPUs, and what they do with them.

use super::{GpuState, Host, HostId, Moment, UNKNOWN_USER};
use crate::wire::SafeText;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// What one user holds on one host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostUsage {
    /// Whose: as in the rows of the list; [`UNKNOWN_USER`] for what cannot be told.
    pub who: SafeText,
    /// Runs as the user that logged in there.
    pub is_mine: bool,
    /// GPUs held; MIG instances count as the GPU that they are parts of.
    pub gpus: u32,
    /// Those of them that others hold as well.
    pub shared: u32,
    /// Those by state, in the order of [`GpuState::ALL`].
    by_state: [u32; GpuState::ALL.len()],
    /// Memory on all of them.
    pub memory_bytes: Option<u64>,
    /// Memory on those that are idle.
    pub idle_memory_bytes: u64,
    /// Since when the one that has been idle for longest has been so.
    pub idle_since: Option<Moment>,
}

/// Who holds the GPUs of one host, and the GPUs that nobody holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostUsers {
    /// By name.
    pub users: Vec<HostUsage>,
    /// GPUs that somebody holds, each counted once.
    pub held: u32,
    /// The others by state, in the order of [`GpuState::ALL`].
    unheld: [u32; GpuState::ALL.len()],
}

impl HostUsers {
    /// How many GPUs that nobody holds are in this state.
    pub fn unheld_in(&self, state: GpuState) -> u32 {
        self.unheld[state as usize]
    }

    /// How many GPUs nobody holds.
    pub fn unheld(&self) -> u32 {
        self.unheld.iter().sum()
    }
}

/// What one user holds in all.
#[derive(Debug, Clone, PartialEq)]
pub struct UserUsage {
    /// Sums over the hosts.
    pub sum: HostUsage,
    /// The hosts, with how many GPUs are held there, the most first.
    pub hosts: Vec<(HostId, u32)>,
    /// How long GPUs were held, and how long they were in use meanwhile, since the program began.
    pub gpu_hours: GpuHours,
}

impl HostUsage {
    fn new(who: SafeText) -> Self {
        Self {
            who,
            is_mine: false,
            gpus: 0,
            shared: 0,
            by_state: [0; GpuState::ALL.len()],
            memory_bytes: None,
            idle_memory_bytes: 0,
            idle_since: None,
        }
    }

    /// How many of the GPUs held are in this state.
    pub fn in_state(&self, state: GpuState) -> u32 {
        self.by_state[state as usize]
    }

    fn add(&mut self, other: &Self) {
        self.is_mine |= other.is_mine;
        self.gpus += other.gpus;
        self.shared += other.shared;
        for (mine, theirs) in self.by_state.iter_mut().zip(other.by_state) {
            *mine += theirs;
        }
        self.memory_bytes = match (self.memory_bytes, other.memory_bytes) {
            (Some(mine), Some(theirs)) => Some(mine.saturating_add(theirs)),
            (mine, theirs) => mine.or(theirs),
        };
        self.idle_memory_bytes = self.idle_memory_bytes.saturating_add(other.idle_memory_bytes);
        self.idle_since = earlier(self.idle_since, other.idle_since);
    }
}

/// What one user holds of one GPU.
struct GpuShare {
    bytes: Option<u64>,
    state: GpuState,
    since: Option<Moment>,
}

/// Who holds the GPUs of a host. `jobs` are its rows, `states` those of its GPUs in inventory order.
pub fn host_users(host: &Host, states: &[(GpuState, Option<Moment>)]) -> HostUsers {
    let whole = whole_gpus(host);
    let mut users: BTreeMap<SafeText, (bool, BTreeMap<usize, GpuShare>)> = BTreeMap::new();
    for process in host.processes() {
        let (who, is_mine) = (&process.info.who, host.belongs_to_login_user(process));
        for position in process.gpu_positions().filter(|&position| process.computes_on(position)) {
            let Some(&place) = whole.get(position) else { continue };
            let (state, since) = states.get(position).copied().unwrap_or((GpuState::Unknown, None));
            let bytes = process.usage_on(position).and_then(|usage| usage.gpu_memory_bytes);
            let (mine, shares) = users.entry(who.clone()).or_default();
            *mine |= is_mine;
            let share = shares.entry(place).or_insert(GpuShare { bytes: None, state, since });
            share.bytes = match (share.bytes, bytes) {
                (Some(held), Some(more)) => Some(held.saturating_add(more)),
                (held, more) => held.or(more),
            };
            // Of a GPU in parts the worst counts, as it does for the GPU itself.
            if state < share.state {
                (share.state, share.since) = (state, since);
            }
        }
    }
    let holders = |place: usize| users.values().filter(|(_, shares)| shares.contains_key(&place)).count();
    let mut unheld = [0; GpuState::ALL.len()];
    let mut held = 0;
    for (position, _) in host.gpus().enumerate().filter(|(_, (info, _))| info.mig_parent_uuid.is_none()) {
        if holders(position) > 0 {
            held += 1;
        } else {
            let state = states.get(position).map_or(GpuState::Unknown, |(state, _)| *state);
            unheld[state as usize] += 1;
        }
    }
    let users = users.iter().map(|(who, (is_mine, shares))| sum(who, *is_mine, shares, &holders)).collect();
    HostUsers { users, held, unheld }
}

fn sum(
    who: &SafeText,
    is_mine: bool,
    shares: &BTreeMap<usize, GpuShare>,
    holders: &dyn Fn(usize) -> usize,
) -> HostUsage {
    let mut user = HostUsage { is_mine, ..HostUsage::new(who.clone()) };
    for (place, share) in shares {
        user.gpus += 1;
        user.shared += u32::from(holders(*place) > 1);
        user.by_state[share.state as usize] += 1;
        if let Some(bytes) = share.bytes {
            user.memory_bytes = Some(user.memory_bytes.unwrap_or(0).saturating_add(bytes));
        }
        if share.state == GpuState::Idle {
            user.idle_memory_bytes = user.idle_memory_bytes.saturating_add(share.bytes.unwrap_or(0));
            user.idle_since = earlier(user.idle_since, share.since);
        }
    }
    user
}

/// For each position the GPU that it is, or is a part of.
fn whole_gpus(host: &Host) -> Vec<usize> {
    let place_of = |uuid: &SafeText| host.gpus().position(|(info, _)| info.uuid.as_ref() == Some(uuid));
    host.gpus()
        .enumerate()
        .map(|(position, (info, _))| info.mig_parent_uuid.as_ref().and_then(place_of).unwrap_or(position))
        .collect()
}

fn earlier(a: Option<Moment>, b: Option<Moment>) -> Option<Moment> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// How long GPUs were held and used.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GpuHours {
    /// GPU-hours held.
    pub held_hours: f64,
    /// GPU-hours of those in which the GPU was in use.
    pub used_hours: f64,
}

/// Users who held GPUs are remembered up to this many: names come from hosts.
const MAX_USERS: usize = 1000;
/// A step of the clock that is longer than this is not counted: the machine slept, or the program was stopped.
const MAX_TICK_STEP: Duration = Duration::from_secs(10);

/// What users have held since the program began.
#[derive(Debug, Clone, Default)]
pub struct UsageLedger {
    gpu_hours: HashMap<SafeText, GpuHours>,
    last: Option<Moment>,
}

impl UsageLedger {
    /// Counts the time since the last call for what is held now on the hosts that can be seen.
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

    /// What a user has held so far.
    pub fn gpu_hours(&self, who: &SafeText) -> GpuHours {
        self.gpu_hours.get(who).copied().unwrap_or_default()
    }
}

/// The users of all hosts, those with the most GPUs first; what cannot be told whose it is comes last. Somebody who held
/// GPUs and holds none now is among them while the ledger knows of it.
pub fn users<'a>(hosts: impl Iterator<Item = (HostId, &'a [HostUsage])>, ledger: &UsageLedger) -> Vec<UserUsage> {
    let mut users: BTreeMap<SafeText, UserUsage> = BTreeMap::new();
    let new = |who: &SafeText| UserUsage {
        sum: HostUsage::new(who.clone()),
        hosts: Vec::new(),
        gpu_hours: ledger.gpu_hours(who),
    };
    for (id, uses) in hosts {
        for one in uses {
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
        user.hosts.sort_by_key(|(id, gpus)| (std::cmp::Reverse(*gpus), *id));
    }
    users.sort_by(|a, b| {
        let order = |user: &UserUsage| (user.sum.who == UNKNOWN_USER, std::cmp::Reverse(user.sum.gpus));
        let memory = |user: &UserUsage| std::cmp::Reverse(user.sum.memory_bytes);
        order(a).cmp(&order(b)).then_with(|| memory(a).cmp(&memory(b))).then_with(|| a.sum.who.cmp(&b.sum.who))
    });
    users
}

#[cfg(test)]
#[path = "users_tests.rs"]
mod tests;
