//! The values of a host and its GPUs that panes, tables and charts show, computed when a snapshot arrives.

use super::screen::{CHART_MAX_CELSIUS, CHART_MIN_CELSIUS, Metric};
use crate::diagnosis::{Engine, Finding, FindingGpu, Severity};
use crate::fleet::{
    FreeHost, GpuMetric, GpuRequirements, GpuState, Host, HostUsers, Moment, SeriesKey, Totals, UNKNOWN_USER,
    free_gpus, host_users,
};
use crate::wire::{ClocksEventReasons, GpuInfo, GpuReading, SafeText};
use std::collections::HashMap;
use std::time::Duration;

/// Degrees below the slowdown temperature from which a GPU counts as hot, as in the rule `temperature`.
const HOT_MARGIN_CELSIUS: i32 = 3;

/// Points of a sparkline: two per column of the widest one.
const SPARKLINE_POINTS: usize = 60;
/// The period of one point.
const SPARKLINE_STEP: Duration = Duration::from_secs(5);

/// The values of one host.
#[derive(Debug, Clone, Default)]
pub struct HostSummary {
    /// The GPUs, in inventory order.
    pub gpus: Vec<GpuSummary>,
    /// The totals of the GPUs.
    pub totals: Totals,
    /// The free GPUs.
    pub free: Option<FreeHost>,
    /// The users who hold GPUs.
    pub users: HostUsers,
    /// The readings are recent enough to be shown as current.
    pub is_fresh: bool,
}

/// The values of one GPU.
#[derive(Debug, Clone)]
pub struct GpuSummary {
    /// The index on the screen.
    pub index: u32,
    /// The last reading.
    pub reading: GpuReading,
    /// Total memory in bytes.
    pub memory_total_bytes: Option<u64>,
    /// The current power limit in watts.
    pub power_limit_watts: Option<f32>,
    /// The user who holds the most memory on it.
    pub main_user: Option<SafeText>,
    /// The number of other users on it.
    pub other_users: u32,
    /// The state of the GPU.
    pub state: GpuState,
    /// When the state began, if known.
    pub since: Option<Moment>,
    /// The severity of the findings behind the state, if the GPU hangs or is faulty.
    pub severity: Option<Severity>,
    /// The state in the last readings and when it began: differs from `state` only if the host has no fresh data.
    pub last_state: (GpuState, Option<Moment>),
    /// Since when its job has looked stuck, while that is only a suspicion.
    pub suspected_since: Option<Moment>,
    /// The utilization counter says busy while the power is that of an idle GPU. This alone is no finding.
    pub is_low_power: bool,
    /// Utilization of the last five minutes, one point per five seconds, the oldest first.
    pub sparkline: Vec<Option<f32>>,
    /// Uncorrectable ECC errors since the driver was loaded (volatile counter of NVML).
    pub ecc_uncorrectable: Option<u64>,
    /// The GPU slows down because of heat, or is about to.
    pub is_hot: bool,
    /// The slowdown temperature in degrees Celsius.
    pub slowdown_celsius: Option<i32>,
    /// The GPU instance id if this is a MIG instance of the GPU at that index.
    pub instance: Option<u32>,
    /// The GPU shares the memory of the host; the memory values are those of the host.
    pub is_unified: bool,
}

impl GpuSummary {
    /// Returns whether to show the low power. Idle, hung, suspected and faulty GPUs have their own label.
    pub fn shows_low_power(&self) -> bool {
        self.is_low_power
            && self.suspected_since.is_none()
            && self.state == GpuState::InUse
            && self.reading.error.is_none()
    }

    /// Returns since when the job on the GPU has looked stuck. Hung and faulty GPUs are beyond a suspicion.
    pub fn suspected(&self) -> Option<Moment> {
        self.suspected_since.filter(|_| self.state == GpuState::InUse && self.reading.error.is_none())
    }

    /// Returns whether the job on the GPU hangs or may hang: its utilization is no work.
    pub fn looks_stuck(&self) -> bool {
        self.state == GpuState::Hung || self.suspected().is_some()
    }

    /// Returns the upper end of a temperature chart: the slowdown temperature or [`CHART_MAX_CELSIUS`].
    pub fn chart_max_celsius(&self) -> f32 {
        self.slowdown_celsius.map_or(CHART_MAX_CELSIUS, |celsius| celsius as f32)
    }

    /// Returns a GPU of which only the state is known.
    #[cfg(test)]
    pub(crate) fn blank(index: u32, state: GpuState) -> Self {
        Self {
            index,
            reading: GpuReading::default(),
            memory_total_bytes: None,
            power_limit_watts: None,
            main_user: None,
            other_users: 0,
            state,
            since: None,
            severity: None,
            last_state: (state, None),
            suspected_since: None,
            is_low_power: false,
            sparkline: Vec::new(),
            ecc_uncorrectable: None,
            is_hot: false,
            slowdown_celsius: None,
            instance: None,
            is_unified: false,
        }
    }

    /// Returns the power in watts that the rules judge and charts show: the mean since the last snapshot, or else the
    /// sensor's reading.
    pub fn power_watts(&self) -> Option<f32> {
        self.reading.power_mean_watts.or(self.reading.power_watts)
    }
}

impl HostSummary {
    /// Returns the number of GPUs with low power.
    pub fn low_power_count(&self) -> usize {
        self.gpus.iter().filter(|gpu| gpu.shows_low_power()).count()
    }

    /// Returns the highest severity of the GPUs in a state.
    pub fn severity_in_state(&self, state: GpuState) -> Option<Severity> {
        self.gpus.iter().filter(|gpu| gpu.state == state).filter_map(|gpu| gpu.severity).max()
    }

    /// Returns the number of GPUs whose job is suspected to be stuck. MIG instances do not count, as in the totals.
    pub fn suspected_count(&self) -> u32 {
        self.gpus.iter().filter(|gpu| gpu.instance.is_none() && gpu.suspected().is_some()).count() as u32
    }

    /// Computes the values of a host and its GPUs.
    pub fn of(host: &Host, engine: &Engine, now: Moment) -> Self {
        let states = engine.states(host.id);
        let users = users_by_gpu(host);
        let is_fresh = host.is_fresh(now);
        let suspicions: Vec<&Finding> = if is_fresh { engine.suspicions(host.id).collect() } else { Vec::new() };
        let suspected_since = |info: &GpuInfo| {
            let is_it = |gpu: &FindingGpu| gpu.host == host.id && gpu.uuid == info.uuid;
            suspicions.iter().filter(|one| one.gpus.iter().any(is_it)).map(|one| one.since).min()
        };
        let gpus = host.gpus().enumerate().zip(users).map(|((position, (info, reading)), users)| {
            let (state, since) = states.get(position).copied().unwrap_or((GpuState::Unknown, None));
            let slows_down = reading.clocks_event_reasons.is_some_and(|mask| ClocksEventReasons(mask).is_thermal());
            let near_slowdown = reading
                .temperature_celsius
                .zip(info.temperature_slowdown_celsius)
                .is_some_and(|(temperature, limit)| temperature + HOT_MARGIN_CELSIUS >= limit);
            let is_unified = info.unified_memory == Some(true);
            let mut reading = reading.clone();
            let mut memory_total_bytes = info.memory_total_bytes;
            if let (true, Some(snapshot)) = (is_unified, &host.snapshot) {
                // Most GPUs with unified memory report no memory; the host's counts for them.
                reading.memory_used_bytes = reading.memory_used_bytes.or(snapshot.host.memory_used_bytes());
                memory_total_bytes = memory_total_bytes.or(snapshot.host.memory_total_bytes);
            }
            GpuSummary {
                index: info.index,
                memory_total_bytes,
                instance: info.mig_parent_uuid.as_ref().map(|_| info.gpu_instance_id.unwrap_or(info.index)),
                is_unified,
                power_limit_watts: reading.power_limit_watts.or(info.power_limit_watts),
                other_users: users.len().saturating_sub(1) as u32,
                main_user: users.into_iter().next().map(|(user, _)| user),
                state,
                since,
                severity: engine.severity_of_state(host.id, position),
                last_state: if is_fresh { None } else { engine.last_state(host.id, position) }
                    .unwrap_or((state, since)),
                suspected_since: suspected_since(info),
                is_low_power: engine.is_low_power(host.id, position),
                ecc_uncorrectable: host.gpu_health(position).and_then(|health| health.ecc_uncorrectable_volatile),
                is_hot: slows_down || near_slowdown,
                slowdown_celsius: info.temperature_slowdown_celsius,
                sparkline: host.history().points(
                    SeriesKey::Gpu(position, GpuMetric::Utilization),
                    now,
                    SPARKLINE_STEP * SPARKLINE_POINTS as u32,
                    SPARKLINE_POINTS,
                ),
                reading,
            }
        });
        Self {
            gpus: gpus.collect(),
            totals: Totals::of_host(host, states, now),
            free: free_gpus(host, states, &GpuRequirements::default(), now),
            users: host_users(host, states),
            is_fresh,
        }
    }
}

/// Returns for each GPU the users who compute on it with their memory in bytes, the most memory first.
fn users_by_gpu(host: &Host) -> Vec<Vec<(SafeText, u64)>> {
    let mut users: Vec<Vec<(SafeText, u64)>> = vec![Vec::new(); host.gpus().len()];
    let mut indexes: HashMap<(usize, &SafeText), usize> = HashMap::new();
    for process in host.processes() {
        let who = &process.info.who;
        for position in process.gpu_positions().filter(|&position| process.computes_on(position)) {
            let bytes = process.usage_on(position).and_then(|usage| usage.gpu_memory_bytes).unwrap_or(0);
            let Some(users) = users.get_mut(position) else { continue };
            let index = *indexes.entry((position, who)).or_insert(users.len());
            match users.get_mut(index) {
                Some((_, held)) => *held = held.saturating_add(bytes),
                None => users.push((who.clone(), bytes)),
            }
        }
    }
    for users in &mut users {
        // A known user comes before processes without a known user.
        users.sort_by_key(|(user, bytes)| (*user == UNKNOWN_USER, std::cmp::Reverse(*bytes)));
    }
    users
}

/// The number of hosts in each connection state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Connecting or reconnecting.
    pub connecting: u32,
    /// Connected with fresh readings.
    pub live: u32,
    /// Connected, but no readings arrive.
    pub stale: u32,
    /// Not connected.
    pub down: u32,
    /// Waiting for the user.
    pub needs_user: u32,
}

impl Metric {
    /// Returns the reading as a percentage of its maximum, or `None` if the reading or the maximum is unknown.
    pub fn share_of(self, gpu: &GpuSummary) -> Option<f32> {
        let reading = &gpu.reading;
        let share = match self {
            Self::Utilization => f32::from(reading.utilization_percent?),
            Self::MemoryBusy => f32::from(reading.memory_utilization_percent?),
            Self::Memory => {
                let total = gpu.memory_total_bytes.filter(|total| *total > 0)?;
                (reading.memory_used_bytes? as f64 / total as f64 * 100.0) as f32
            }
            Self::Power => gpu.power_watts()? / gpu.power_limit_watts.filter(|limit| *limit > 0.0)? * 100.0,
            Self::Temperature => {
                (reading.temperature_celsius? as f32 - CHART_MIN_CELSIUS)
                    / (gpu.chart_max_celsius() - CHART_MIN_CELSIUS).max(1.0)
                    * 100.0
            }
        };
        Some(share.clamp(0.0, 100.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu() -> GpuSummary {
        GpuSummary {
            memory_total_bytes: Some(80 << 30),
            power_limit_watts: Some(700.0),
            slowdown_celsius: Some(90),
            reading: GpuReading {
                utilization_percent: Some(97),
                memory_used_bytes: Some(60 << 30),
                power_watts: Some(350.0),
                temperature_celsius: Some(55),
                ..GpuReading::default()
            },
            ..GpuSummary::blank(0, GpuState::InUse)
        }
    }

    #[test]
    fn share_is_none_if_reading_or_maximum_is_unknown() {
        let gpu = gpu();
        let shares = Metric::ALL.map(|metric| metric.share_of(&gpu));
        assert_eq!(shares, [Some(97.0), None, Some(75.0), Some(50.0), Some(50.0)]);
        let unknown = GpuSummary { memory_total_bytes: None, power_limit_watts: None, ..gpu };
        assert_eq!((Metric::Memory.share_of(&unknown), Metric::Power.share_of(&unknown)), (None, None));
    }
}
