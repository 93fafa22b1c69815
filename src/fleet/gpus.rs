//! GPUs: the state of a GPU, lists of GPU indexes as text, and totals over the GPUs of hosts.

use super::process::{RemoteNumber, sum};
use super::{Host, Moment};

/// The state of a GPU, as computed by `diagnosis`. Of several states that apply, the first in this order counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GpuState {
    /// The driver reports an error for it.
    Fault,
    /// A `stuck-*` finding fires.
    Hung,
    /// There are no current readings.
    Unknown,
    /// Held, and at least 5 % utilization within the last 30 s.
    InUse,
    /// A model server holds the GPU and waits for requests.
    Waiting,
    /// At least 500 MiB in use, and below 5 % utilization.
    Idle,
    /// No compute process, no memory in use, neither allocated nor reserved.
    Free,
    /// No process, but reserved in hosts.toml or allocated to a user who does not use it.
    Unused,
}

impl GpuState {
    /// Every state, in the order of precedence.
    pub const ALL: [Self; 8] =
        [Self::Fault, Self::Hung, Self::Unknown, Self::InUse, Self::Waiting, Self::Idle, Self::Free, Self::Unused];

    /// The name on the screen. A hang is only suspected, so it has a question mark.
    pub fn word(self) -> &'static str {
        match self {
            Self::Fault => "fault",
            Self::Hung => "hung?",
            Self::Unknown => "unknown",
            Self::InUse => "busy",
            Self::Waiting => "waiting",
            Self::Idle => "idle",
            Self::Free => "free",
            Self::Unused => "unused",
        }
    }

    /// The state with this name in JSON.
    pub fn from_json_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.json_word() == word)
    }

    /// The name in JSON.
    pub fn json_word(self) -> &'static str {
        match self {
            Self::Hung => "hung",
            Self::InUse => "in_use",
            other => other.word(),
        }
    }
}

/// The number of GPUs in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StateCounts([u32; GpuState::ALL.len()]);

impl StateCounts {
    pub(super) fn count(self, state: GpuState) -> u32 {
        self.0[state as usize]
    }

    pub(super) fn total(self) -> u32 {
        self.0.iter().sum()
    }

    pub(super) fn add_one(&mut self, state: GpuState) {
        self.0[state as usize] += 1;
    }

    pub(super) fn add(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }
}

/// How [`format_gpu_list`] writes several GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuListStyle {
    /// Three or more consecutive indexes as a range: `GPUs 0-2,7`.
    Ranges,
    /// Every index: `GPUs 0,1,2,7`.
    Each,
}

/// GPU indexes for a table cell: `0-3` for three or more consecutive ones, `2,3` for two, `0+5` for GPU 0 and five
/// others, `-` for an empty list. `indexes` must be ascending.
pub fn gpu_list(indexes: &[u32]) -> String {
    match indexes {
        [] => "-".to_owned(),
        [first, second] => format!("{first},{second}"),
        [first, rest @ ..] => match run(indexes) {
            length if length == indexes.len() => joined(indexes, GpuListStyle::Ranges),
            _ => format!("{first}+{}", rest.len()),
        },
    }
}

/// GPU indexes for a sentence, sorted: `GPU 3`, `GPUs 0-2,7`, `no GPU`.
pub fn format_gpu_list(indexes: &[u32], style: GpuListStyle) -> String {
    let mut sorted = indexes.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    match sorted[..] {
        [] => "no GPU".to_owned(),
        [only] => format!("GPU {only}"),
        _ => format!("GPUs {}", joined(&sorted, style)),
    }
}

fn joined(indexes: &[u32], style: GpuListStyle) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut rest = indexes;
    while !rest.is_empty() {
        let (run, after) = rest.split_at(run(rest));
        match run {
            [first, .., last] if run.len() > 2 && style == GpuListStyle::Ranges => {
                parts.push(format!("{first}-{last}"));
            }
            run => parts.extend(run.iter().map(u32::to_string)),
        }
        rest = after;
    }
    parts.join(",")
}

/// The number of consecutive indexes at the start.
fn run(indexes: &[u32]) -> usize {
    let Some(first) = indexes.first() else { return 0 };
    // In u64, so that `u32::MAX` has a successor.
    indexes.iter().zip(u64::from(*first)..).take_while(|(index, expected)| u64::from(**index) == *expected).count()
}

/// Totals of one or more hosts. MIG instances are part of their GPU and do not count separately.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Totals {
    /// Number of hosts.
    pub hosts: u32,
    /// Number of hosts with current readings and a working driver.
    pub hosts_covered: u32,
    /// Number of GPUs on these hosts.
    pub gpus: u32,
    by_state: StateCounts,
    /// Memory in use in bytes, as far as it is known.
    pub memory_used_bytes: Option<u64>,
    /// Memory of the GPUs whose memory in use is known, in bytes.
    pub memory_total_bytes: Option<u64>,
    /// Power draw in watts, as far as it is known.
    pub power_watts: Option<f64>,
    /// Power limits of the GPUs whose power draw is known, in watts.
    pub power_limit_watts: Option<f64>,
}

impl Totals {
    /// The totals of one host, with current readings or not. `states` are the GPU states in inventory order.
    pub fn of_host(host: &Host, states: &[(GpuState, Option<Moment>)], now: Moment) -> Self {
        let mut totals = Self { hosts: 1, hosts_covered: u32::from(is_covered(host, now)), ..Self::default() };
        for (position, (info, reading)) in host.gpus().enumerate() {
            if info.mig_parent_uuid.is_some() {
                continue;
            }
            totals.gpus += 1;
            let state = states.get(position).map_or(GpuState::Unknown, |(state, _)| *state);
            totals.by_state.add_one(state);
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

    /// Adds the totals of a host. A host without current readings adds only to the number of hosts.
    pub fn add(&mut self, other: &Self) {
        self.hosts += other.hosts;
        if other.hosts_covered == 0 {
            return;
        }
        self.hosts_covered += other.hosts_covered;
        self.gpus += other.gpus;
        self.by_state.add(other.by_state);
        add(&mut self.memory_used_bytes, other.memory_used_bytes);
        add(&mut self.memory_total_bytes, other.memory_total_bytes);
        add(&mut self.power_watts, other.power_watts);
        add(&mut self.power_limit_watts, other.power_limit_watts);
    }

    /// Number of GPUs in this state.
    pub fn in_state(&self, state: GpuState) -> u32 {
        self.by_state.count(state)
    }
}

fn is_covered(host: &Host, now: Moment) -> bool {
    let driver_answers = host.inventory.as_ref().is_some_and(|inventory| inventory.error.is_none())
        && host.snapshot.as_ref().is_some_and(|snapshot| snapshot.driver_error.is_none());
    driver_answers && host.is_fresh(now)
}

/// Adds a value to a sum, which stays unknown if no value is known.
fn add<T: RemoteNumber>(total: &mut Option<T>, value: Option<T>) {
    *total = sum([*total, value].into_iter());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::fixture::{TestHost, at, gpus, process, reading};
    use crate::fleet::{Group, HostUpdate, LinkError, LinkErrorKind, ListOrder, RowCache, SortKey};
    use crate::wire::{DriverError, DriverErrorKind, GpuInfo, GpuReading, SafeText};
    use std::collections::HashSet;

    #[test]
    fn a_list_for_a_cell_is_short() {
        for (indexes, text) in [
            (&[][..], "-"),
            (&[4], "4"),
            (&[2, 3], "2,3"),
            (&[0, 7], "0,7"),
            (&[0, 1, 2, 3], "0-3"),
            (&[5, 6, 7], "5-7"),
            (&[0, 2, 3, 5, 6, 7], "0+5"),
            (&[1, 2, 4], "1+2"),
            (&[u32::MAX], "4294967295"),
        ] {
            assert_eq!(gpu_list(indexes), text);
        }
    }

    #[test]
    fn a_list_for_a_sentence_names_every_gpu() {
        for (indexes, ranges, each) in [
            (&[0, 1, 2, 3, 4, 5, 6, 7][..], "GPUs 0-7", "GPUs 0,1,2,3,4,5,6,7"),
            (&[3, 3], "GPU 3", "GPU 3"),
            (&[5, 2, 3], "GPUs 2,3,5", "GPUs 2,3,5"),
            (&[0, 1, 2, 7], "GPUs 0-2,7", "GPUs 0,1,2,7"),
            (&[], "no GPU", "no GPU"),
        ] {
            assert_eq!(format_gpu_list(indexes, GpuListStyle::Ranges), ranges);
            assert_eq!(format_gpu_list(indexes, GpuListStyle::Each), each);
        }
    }

    fn states(of: &[GpuState]) -> Vec<(GpuState, Option<Moment>)> {
        of.iter().map(|state| (*state, None)).collect()
    }

    #[test]
    fn the_totals_of_a_host_are_sums_over_its_gpus() {
        let mut host = TestHost::new(0, gpus(0..3));
        host.send_snapshot(1.0, &[reading(100, 40), reading(0, 30), GpuReading::default()], &[]);
        let states = states(&[GpuState::InUse, GpuState::Idle, GpuState::Unknown]);
        let totals = Totals::of_host(&host.host, &states, at(1.0));
        assert_eq!((totals.hosts, totals.hosts_covered, totals.gpus), (1, 1, 3));
        assert_eq!((totals.memory_used_bytes, totals.memory_total_bytes), (Some(70 << 30), Some(160 << 30)));
        assert_eq!((totals.power_watts, totals.power_limit_watts), (Some(700.0), Some(1400.0)));
        let counts = GpuState::ALL.map(|state| totals.in_state(state));
        assert_eq!(counts, [0, 0, 1, 1, 0, 1, 0, 0]);
    }

    #[test]
    fn totals_without_readings_are_unknown() {
        let totals = Totals::of_host(&TestHost::new(0, gpus(0..2)).host, &[], at(0.0));
        assert_eq!((totals.gpus, totals.in_state(GpuState::Unknown)), (2, 2));
        assert_eq!((totals.memory_used_bytes, totals.power_watts, totals.hosts_covered), (None, None, 0));
    }

    #[test]
    fn hosts_without_current_readings_add_only_to_the_number_of_hosts() {
        let mut fleet = Totals::default();
        let mut live = TestHost::new(0, gpus(0..2));
        live.send_snapshot(1.0, &[reading(100, 40), reading(0, 0)], &[]);
        let mut down = TestHost::new(1, gpus(0..2));
        down.send_snapshot(1.0, &[reading(100, 40), reading(0, 0)], &[]);
        let error = LinkError::new(LinkErrorKind::Closed, "the connection was closed");
        down.host.apply(HostUpdate::Down { error, retry_at: None, attempt: 1 }, at(2.0));
        let mut blocked = TestHost::new(2, gpus(0..2));
        let mut snapshot = blocked.snapshot(1.0, &[], &[]);
        snapshot.driver_error =
            Some(DriverError { kind: DriverErrorKind::Blocked, code: None, message: SafeText::default() });
        blocked.apply(1.0, snapshot);
        for host in [&live, &down, &blocked] {
            fleet.add(&Totals::of_host(&host.host, &states(&[GpuState::InUse, GpuState::Free]), at(2.0)));
        }
        assert_eq!((fleet.gpus, fleet.hosts_covered, fleet.hosts), (2, 1, 3), "2 GPUs on 1 of 3 hosts");
        assert_eq!((fleet.memory_used_bytes, fleet.in_state(GpuState::Free)), (Some(40 << 30), 1));
    }

    #[test]
    fn mig_instances_do_not_count_separately() {
        let mut all = gpus(0..1);
        all[0].mig_enabled = Some(true);
        for instance in 0..2 {
            all.push(GpuInfo {
                uuid: Some(format!("MIG-{instance}").into()),
                memory_total_bytes: Some(40 << 30),
                mig_parent_uuid: all[0].uuid.clone(),
                ..GpuInfo::default()
            });
        }
        let mut host = TestHost::new(0, all);
        host.send_snapshot(1.0, &[reading(0, 30), reading(0, 10), reading(0, 20)], &[]);
        let totals = Totals::of_host(&host.host, &states(&[GpuState::InUse; 3]), at(1.0));
        assert_eq!((totals.gpus, totals.in_state(GpuState::InUse)), (1, 1));
        assert_eq!((totals.memory_used_bytes, totals.memory_total_bytes), (Some(30 << 30), Some(80 << 30)));
    }

    #[test]
    fn the_totals_of_rows_hosts_and_fleet_agree() {
        let mut header = Totals::default();
        let mut view = RowCache::default();
        let mut panes = (0_u32, 0_u64, 0_u64);
        for id in 0..5 {
            let mut host = TestHost::new(id, gpus(0..4));
            let used = [10 + u64::from(id), 20, 30, 0];
            let readings: Vec<GpuReading> =
                used.iter().map(|gib| GpuReading { memory_used_bytes: Some(gib << 30), ..reading(90, 0) }).collect();
            let processes =
                [process(7, "python a.py", &[(0, used[0]), (1, used[1])]), process(8, "python b.py", &[(2, 30)])];
            host.send_snapshot(1.0, &readings, &processes);
            let states = states(&[GpuState::InUse, GpuState::InUse, GpuState::Idle, GpuState::Free]);
            view.update(&host.host, &states, at(1.0));
            let pane = Totals::of_host(&host.host, &states, at(1.0));
            assert_eq!(GpuState::ALL.map(|state| pane.in_state(state)).iter().sum::<u32>(), pane.gpus);
            panes.0 += pane.gpus;
            panes.1 += pane.memory_used_bytes.expect("known");
            panes.2 += pane.memory_total_bytes.expect("known");
            header.add(&pane);
        }
        assert_eq!((header.gpus, header.hosts_covered), (panes.0, 5));
        assert_eq!((header.memory_used_bytes, header.memory_total_bytes), (Some(panes.1), Some(panes.2)));
        assert_eq!(GpuState::ALL.map(|state| header.in_state(state)).iter().sum::<u32>(), header.gpus);
        for group in [Group::Job, Group::None] {
            let rows =
                view.rows(ListOrder::default_for(SortKey::GpuMemory, group), &HashSet::new(), |_| true, |_| None);
            let held: u64 = rows.iter().filter_map(|row| row.gpu_memory_bytes).sum();
            assert_eq!(Some(held), header.memory_used_bytes, "{group:?}");
            let in_use: usize = rows
                .iter()
                .filter(|row| row.state.is_some_and(|(state, _)| state == GpuState::InUse))
                .map(|row| row.gpu_indexes.len())
                .sum();
            assert_eq!(in_use as u32, header.in_state(GpuState::InUse), "{group:?}");
        }
    }
}
