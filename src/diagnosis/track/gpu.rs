//! What is remembered of one GPU.

use crate::diagnosis::evaluation::Run;
use crate::diagnosis::power::{SPIN_SHARE, UNLEARNED_IDLE_SHARE};
use crate::diagnosis::window::{Window, WindowPoint};
use crate::wire::{DriverErrorKind, GpuHealth, GpuInfo, GpuReading, RecentPast, SafeText};
use std::collections::VecDeque;

/// Context-idle power is learned from this many seconds at 0 %.
const LEARN_SECONDS: f64 = 60.0;
/// What is learned lies within these shares of the limit: a GPU that sleeps deeper than it does between kernels, or
/// whose sensor fails, must not move the spin power out of the range of the reports it was fitted to.
const LEARNED_SHARES: std::ops::RangeInclusive<f32> = 0.12..=0.40;
/// Minutes of used memory that are kept.
const MEMORY_MINUTES: usize = 31;

/// What is remembered of one GPU, and what it reads now.
#[allow(clippy::struct_excessive_bools, reason = "each is a property of its own")]
#[derive(Debug, Clone, Default)]
pub(in crate::diagnosis) struct GpuTrack {
    /// By what it is recognised.
    pub(in crate::diagnosis) identity: SafeText,
    pub(in crate::diagnosis) index: u32,
    pub(in crate::diagnosis) is_instance: bool,
    pub(in crate::diagnosis) is_mig_parent: bool,
    pub(in crate::diagnosis) is_unified: bool,
    pub(in crate::diagnosis) error: Option<DriverErrorKind>,
    /// Its readings are of now: no error, no call that hangs.
    pub(in crate::diagnosis) is_readable: bool,
    pub(in crate::diagnosis) utilization: Option<u8>,
    pub(in crate::diagnosis) memory_utilization: Option<u8>,
    pub(in crate::diagnosis) power: Option<f32>,
    pub(in crate::diagnosis) limit: Option<f32>,
    pub(in crate::diagnosis) used_bytes: Option<u64>,
    pub(in crate::diagnosis) reserved_bytes: Option<u64>,
    pub(in crate::diagnosis) total_bytes: Option<u64>,
    pub(in crate::diagnosis) has_power_smoothing: bool,
    pub(in crate::diagnosis) window: Window,
    /// Busy at spin power, without moving memory.
    pub(in crate::diagnosis) spin_run: Option<Run>,
    /// The same where the memory's utilisation may be anything: an observation.
    pub(in crate::diagnosis) is_low_power: bool,
    /// Hardly busy.
    pub(in crate::diagnosis) idle_run: Option<Run>,
    /// Learned context-idle power, in watts.
    pub(in crate::diagnosis) idle_watts: Option<f32>,
    /// Seconds and joules of the present run at 0 % with a context.
    learning: (f64, f64),
    /// MiB used, a point a minute.
    pub(in crate::diagnosis) memory: VecDeque<(f32, u32)>,
    thermal_counter: Option<f64>,
    brake_counter: Option<f64>,
    /// Uncorrectable errors at the first look.
    pub(in crate::diagnosis) ecc_baseline: Option<u64>,
    /// NVLinks that have been up.
    pub(in crate::diagnosis) links_seen: u64,
    /// Samples in a row in which it was an error.
    pub(in crate::diagnosis) lost_samples: u32,
}

/// Bounds of the sample's predicates.
#[derive(Debug, Clone, Copy)]
pub(in crate::diagnosis) struct SpinThresholds {
    pub(in crate::diagnosis) utilization: f64,
    pub(in crate::diagnosis) memory: f64,
    pub(in crate::diagnosis) rest: f64,
}

impl GpuTrack {
    /// One that was not seen before; `idle_watts` is what an earlier run of the program learned of it.
    pub(in crate::diagnosis) fn new(identity: SafeText, idle_watts: Option<f32>) -> Self {
        Self { identity, idle_watts, ..Self::default() }
    }

    /// `Pspin` in watts; `None` without a limit.
    pub(in crate::diagnosis) fn spin_watts(&self) -> Option<f32> {
        let limit = self.limit?;
        let idle = self.idle_watts.unwrap_or(UNLEARNED_IDLE_SHARE * limit);
        let idle = idle.clamp(LEARNED_SHARES.start() * limit, LEARNED_SHARES.end() * limit);
        Some(idle + SPIN_SHARE * (limit - idle))
    }

    /// The learned context-idle power, as `is_low_power` of this module's neighbours takes it.
    pub(in crate::diagnosis) fn learned_watts(&self) -> Option<f32> {
        let limit = self.limit?;
        self.idle_watts.map(|watts| watts.clamp(LEARNED_SHARES.start() * limit, LEARNED_SHARES.end() * limit))
    }

    /// Takes a reading in.
    pub(in crate::diagnosis) fn update(
        &mut self,
        info: &GpuInfo,
        reading: &GpuReading,
        health: Option<&GpuHealth>,
        has_context: bool,
        bounds: SpinThresholds,
        (t, dt): (f64, f64),
    ) {
        self.index = info.index;
        self.is_instance = info.mig_parent_uuid.is_some();
        self.is_mig_parent = info.mig_enabled == Some(true) && !self.is_instance;
        self.is_unified = info.unified_memory == Some(true);
        self.error = reading.error.as_ref().map(|error| error.kind);
        let is_lost = matches!(self.error, Some(DriverErrorKind::GpuLost | DriverErrorKind::ResetRequired));
        self.lost_samples = if is_lost { self.lost_samples.saturating_add(1) } else { 0 };
        self.is_readable = self.error.is_none() && reading.blocked_seconds.is_none();
        self.utilization = reading.utilization_percent;
        self.memory_utilization = reading.memory_utilization_percent;
        self.power = reading.power_mean_watts.or(reading.power_watts);
        self.limit = reading.power_limit_watts.or(info.power_limit_watts);
        self.used_bytes = reading.memory_used_bytes;
        self.reserved_bytes = reading.memory_reserved_bytes;
        self.total_bytes = info.memory_total_bytes;
        if let Some(health) = health {
            self.update_health(health);
        }
        if !self.is_readable {
            return;
        }
        let thermal = share_of_time(
            &mut self.thermal_counter,
            reading.thermal_violation_seconds,
            reading.clocks_event_reasons.map(|reasons| reasons & 0x40 != 0),
            dt,
        );
        let brake = share_of_time(
            &mut self.brake_counter,
            reading.power_brake_seconds,
            reading.clocks_event_reasons.map(|reasons| reasons & 0x80 != 0),
            dt,
        );
        let point = WindowPoint {
            utilization: self.utilization,
            memory_utilization: self.memory_utilization,
            power: self.power,
            thermal,
            brake,
        };
        self.take(t, dt, point, bounds);
        self.learn(has_context, dt);
        self.record_memory(t);
    }

    /// Takes what the driver remembers from before the first sample, the oldest first. `end` is when the last was
    /// taken.
    pub(in crate::diagnosis) fn backfill(&mut self, past: &RecentPast, end: f64, bounds: SpinThresholds) {
        let length = [past.utilization_percent.len(), past.memory_utilization_percent.len(), past.power_watts.len()];
        let length = length.into_iter().max().unwrap_or(0).min(600);
        // The lists end together: a shorter one begins later.
        let at = |list_length: usize, back: usize| list_length.checked_sub(back);
        for back in (1..=length).rev() {
            let utilization = at(past.utilization_percent.len(), back).and_then(|i| past.utilization_percent[i]);
            let memory = at(past.memory_utilization_percent.len(), back);
            let power = at(past.power_watts.len(), back).and_then(|i| past.power_watts[i]);
            let memory_utilization = memory.and_then(|i| past.memory_utilization_percent[i]);
            let point = WindowPoint { utilization, memory_utilization, power, ..WindowPoint::default() };
            self.take(end - (back - 1) as f64, 1.0, point, bounds);
        }
    }

    fn take(&mut self, t: f64, dt: f64, point: WindowPoint, bounds: SpinThresholds) {
        let low = match (point.utilization, point.power, self.spin_watts()) {
            (Some(utilization), Some(power), Some(spin)) if !self.has_power_smoothing => {
                Some(f64::from(utilization) >= bounds.utilization && power < spin)
            }
            (Some(_), _, _) if self.has_power_smoothing => Some(false),
            _ => None,
        };
        self.is_low_power = low == Some(true);
        let still = point.memory_utilization.map(|memory| f64::from(memory) <= bounds.memory);
        match (low, still) {
            (Some(true), Some(true)) => {
                if self.spin_run.is_none() {
                    self.window.start_bucket(t);
                }
                Run::extend(&mut self.spin_run, t, dt);
            }
            (Some(false), _) | (_, Some(false)) => self.spin_run = None,
            _ => {}
        }
        match point.utilization.map(|percent| f64::from(percent) <= bounds.rest) {
            Some(true) => Run::extend(&mut self.idle_run, t, dt),
            Some(false) => self.idle_run = None,
            None => {}
        }
        self.window.push(t, dt, point);
    }

    fn learn(&mut self, has_context: bool, dt: f64) {
        let (Some(0), Some(power), true) = (self.utilization, self.power, has_context && !self.has_power_smoothing)
        else {
            self.learning = (0.0, 0.0);
            return;
        };
        self.learning.0 += dt;
        self.learning.1 += f64::from(power) * dt;
        if self.learning.0 >= LEARN_SECONDS {
            let mean = (self.learning.1 / self.learning.0) as f32;
            self.idle_watts = Some(self.idle_watts.map_or(mean, |known| known.min(mean)));
            self.learning = (0.0, 0.0);
        }
    }

    fn record_memory(&mut self, t: f64) {
        let Some(used) = self.used_bytes else { return };
        if self.memory.back().is_none_or(|(last, _)| t - f64::from(*last) >= 59.5) {
            if self.memory.capacity() == 0 {
                self.memory.reserve_exact(MEMORY_MINUTES);
            }
            if self.memory.len() >= MEMORY_MINUTES {
                self.memory.pop_front();
            }
            self.memory.push_back((t as f32, (used >> 20) as u32));
        }
    }

    fn update_health(&mut self, health: &GpuHealth) {
        self.has_power_smoothing = health.power_smoothing == Some(true);
        if let Some(total) = health.ecc_uncorrectable_volatile {
            // A counter that fell began anew with the driver.
            self.ecc_baseline = Some(self.ecc_baseline.map_or(total, |baseline| baseline.min(total)));
        }
        if let Some(active) = health.nvlinks_active {
            self.links_seen |= active;
        }
    }

    pub(in crate::diagnosis) fn memory_bytes(&self) -> usize {
        self.window.memory_bytes() + self.memory.capacity() * std::mem::size_of::<(f32, u32)>()
    }
}

/// Seconds of the last `dt` that a counter rose by, else all of them where the reason is set.
fn share_of_time(counter: &mut Option<f64>, now: Option<f64>, is_set: Option<bool>, dt: f64) -> Option<f32> {
    if let Some(now) = now {
        let before = counter.replace(now);
        // A counter that fell began anew, and the first sight has nothing to compare with.
        let rise = before.map(|before| (now - before).clamp(0.0, dt));
        return rise.map(|rise| rise as f32);
    }
    is_set.map(|is_set| if is_set { dt as f32 } else { 0.0 })
}
