//! What a pane shows of a host, worked out when its readings arrive: the drawing only reads it.

use super::chart::CHART_MAX_CELSIUS;
use crate::diagnosis::Engine;
use crate::fleet::{
    FreeHost, GpuMetric, GpuRequirements, GpuState, Host, HostUsers, Moment, SeriesKey, Totals, UNKNOWN_USER,
    free_gpus, host_users,
};
use crate::wire::{ClocksEventReasons, GpuReading, SafeText};
use std::time::Duration;

/// Degrees below the slowdown temperature at which a GPU counts as hot (diagnosis sheet, rule `temperature`).
const HOT_MARGIN_CELSIUS: i32 = 3;

/// Points of a sparkline: two for each column of the widest one.
const SPARKLINE_POINTS: usize = 60;
/// What one point of a sparkline covers.
const SPARKLINE_STEP: Duration = Duration::from_secs(5);

/// The figures of one host.
#[derive(Debug, Clone, Default)]
pub struct HostSummary {
    /// Its GPUs, in inventory order.
    pub gpus: Vec<GpuSummary>,
    /// Their sums.
    pub totals: Totals,
    /// Those of its GPUs that are free for the taking.
    pub free: Option<FreeHost>,
    /// Who holds its GPUs.
    pub users: HostUsers,
    /// The readings may be shown as current.
    pub is_fresh: bool,
}

/// The figures of one GPU.
#[derive(Debug, Clone)]
pub struct GpuSummary {
    /// The index that is shown.
    pub index: u32,
    /// The last readings.
    pub reading: GpuReading,
    /// Its memory.
    pub memory_total_bytes: Option<u64>,
    /// The power limit in force.
    pub power_limit_watts: Option<f32>,
    /// Who holds the most memory on it.
    pub main_user: Option<SafeText>,
    /// How many others hold some.
    pub other_users: u32,
    /// What it is doing.
    pub state: GpuState,
    /// Since when, where that is known.
    pub since: Option<Moment>,
    /// Busy by the counter at the power of an idle card: an observation, not a verdict.
    pub is_low_power: bool,
    /// Utilisation of the last five minutes, five seconds a point, the oldest first.
    pub sparkline: Vec<Option<f32>>,
    /// Uncorrectable ECC errors since the driver was loaded.
    pub ecc_uncorrectable: Option<u64>,
    /// So warm that it slows down, or is about to.
    pub is_hot: bool,
    /// The temperature at which it slows down.
    pub slowdown_celsius: Option<i32>,
    /// The id of the instance, where it is a part of the GPU of that index (MIG).
    pub instance: Option<u32>,
    /// Its memory is the host's: what is told is the host's, too.
    pub is_unified: bool,
}

impl GpuSummary {
    /// Whether low power is worth saying: what is idle, hung or faulty has its own word.
    pub fn shows_low_power(&self) -> bool {
        self.is_low_power && self.state == GpuState::InUse && self.reading.error.is_none()
    }

    /// The temperature that a chart ends at: where it slows down, else [`CHART_MAX_CELSIUS`].
    pub fn chart_max_celsius(&self) -> f32 {
        self.slowdown_celsius.map_or(CHART_MAX_CELSIUS, |celsius| celsius as f32)
    }

    /// A GPU of which nothing but the state is known.
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
            is_low_power: false,
            sparkline: Vec::new(),
            ecc_uncorrectable: None,
            is_hot: false,
            slowdown_celsius: None,
            instance: None,
            is_unified: false,
        }
    }

    /// The power that is shown: the sensor's, else the mean since the last snapshot.
    pub fn power_watts(&self) -> Option<f32> {
        self.reading.power_watts.or(self.reading.power_mean_watts)
    }
}

impl HostSummary {
    /// How many GPUs are busy at the power of an idle card.
    pub fn low_power_count(&self) -> usize {
        self.gpus.iter().filter(|gpu| gpu.shows_low_power()).count()
    }

    /// Works out the figures of a host, with what the engine says of its GPUs.
    pub fn of(host: &Host, engine: &Engine, now: Moment) -> Self {
        let states = engine.states(host.id);
        let users = users_by_gpu(host);
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
                // Such a part has no memory of its own, and most do not tell any.
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
            is_fresh: host.is_fresh(now),
        }
    }
}

/// For each GPU who computes there and with how much memory, the most first.
fn users_by_gpu(host: &Host) -> Vec<Vec<(SafeText, u64)>> {
    let mut users: Vec<Vec<(SafeText, u64)>> = vec![Vec::new(); host.gpus().len()];
    for process in host.processes() {
        let who = &process.info.who;
        for position in process.gpu_positions().filter(|&position| process.computes_on(position)) {
            let bytes = process.usage_on(position).and_then(|usage| usage.gpu_memory_bytes).unwrap_or(0);
            let Some(users) = users.get_mut(position) else { continue };
            match users.iter_mut().find(|(user, _)| user == who) {
                Some((_, held)) => *held += bytes,
                None => users.push((who.clone(), bytes)),
            }
        }
    }
    for users in &mut users {
        // Somebody known says more than nobody, whatever is held.
        users.sort_by_key(|(user, bytes)| (*user == UNKNOWN_USER, std::cmp::Reverse(*bytes)));
    }
    users
}

/// How many hosts are in each state of their connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Being connected for the first time, or again.
    pub connecting: u32,
    /// Connected, readings arrive.
    pub live: u32,
    /// Connected, nothing arrives.
    pub stale: u32,
    /// Not connected.
    pub down: u32,
    /// Waiting for a person.
    pub needs_user: u32,
}
