//! Sums for the header and for the title of a pane.

use super::{GpuState, Host, Moment};

/// What some hosts have together. MIG instances are parts of their GPU and are not counted beside it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Totals {
    /// Hosts asked.
    pub hosts: u32,
    /// Hosts whose GPUs are counted: their readings are fresh and their driver answers.
    pub hosts_covered: u32,
    /// GPUs on the hosts covered.
    pub gpus: u32,
    /// How many of those GPUs are in each state, in the order of [`GpuState::ALL`].
    by_state: [u32; GpuState::ALL.len()],
    /// Memory used, where it is known.
    pub memory_used_bytes: Option<u64>,
    /// Memory of the GPUs whose used memory is known, so that the two can be compared.
    pub memory_total_bytes: Option<u64>,
    /// Power drawn, where it is known.
    pub power_watts: Option<f64>,
    /// Power limits of the GPUs whose power is known.
    pub power_limit_watts: Option<f64>,
}

impl Totals {
    /// One host's sums, fresh or not: for the title of its pane. `states` are those of its GPUs in inventory order.
    pub fn of_host(host: &Host, states: &[(GpuState, Option<Moment>)], now: Moment) -> Self {
        let mut totals = Self { hosts: 1, hosts_covered: u32::from(is_covered(host, now)), ..Self::default() };
        for (position, (info, reading)) in host.gpus().enumerate() {
            if info.mig_parent_uuid.is_some() {
                continue;
            }
            totals.gpus += 1;
            let state = states.get(position).map_or(GpuState::Unknown, |(state, _)| *state);
            totals.by_state[state as usize] += 1;
            if let (Some(used), Some(total)) = (reading.memory_used_bytes, info.memory_total_bytes) {
                add(&mut totals.memory_used_bytes, Some(used));
                add(&mut totals.memory_total_bytes, Some(total));
            }
            if let Some(power) = reading.power_mean_watts.or(reading.power_watts) {
                add(&mut totals.power_watts, Some(f64::from(power)));
                add(&mut totals.power_limit_watts, reading.power_limit_watts.or(info.power_limit_watts).map(f64::from));
            }
        }
        totals
    }

    /// Adds a host's sums: for the header. Of a host without fresh data only the host is counted.
    pub fn add(&mut self, other: &Self) {
        self.hosts += other.hosts;
        if other.hosts_covered == 0 {
            return;
        }
        self.hosts_covered += other.hosts_covered;
        self.gpus += other.gpus;
        for (mine, theirs) in self.by_state.iter_mut().zip(other.by_state) {
            *mine += theirs;
        }
        add(&mut self.memory_used_bytes, other.memory_used_bytes);
        add(&mut self.memory_total_bytes, other.memory_total_bytes);
        add(&mut self.power_watts, other.power_watts);
        add(&mut self.power_limit_watts, other.power_limit_watts);
    }

    /// How many GPUs are in this state.
    pub fn in_state(&self, state: GpuState) -> u32 {
        self.by_state[state as usize]
    }
}

fn is_covered(host: &Host, now: Moment) -> bool {
    let driver_answers = host.inventory.as_ref().is_some_and(|inventory| inventory.error.is_none())
        && host.snapshot.as_ref().is_some_and(|snapshot| snapshot.driver_error.is_none());
    driver_answers && host.is_fresh(now)
}

/// Adds a value to a sum; a sum of nothing known stays unknown.
fn add<T: std::ops::Add<Output = T> + Copy>(sum: &mut Option<T>, value: Option<T>) {
    *sum = match (*sum, value) {
        (Some(sum), Some(value)) => Some(sum + value),
        (sum, value) => sum.or(value),
    };
}

#[cfg(test)]
#[path = "totals_tests.rs"]
mod tests;
