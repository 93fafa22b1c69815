//! What the worker, and whoever wants readings from it, tell each other. Only the state: nobody waits here.

use super::call_timer::CallTimer;
use super::device::DeviceSample;
use super::ffi::Library;
use super::messages;
use super::session::Session;
use super::xids::Xid;
use crate::wire::{DriverError, Inventory, SafeText};
use std::sync::Arc;
use std::time::Duration;

/// A call that runs this long is not waited for: the snapshot goes without.
pub(super) const CALL_WAIT: Duration = Duration::from_secs(1);
/// A call that runs this long hangs: its worker is left behind.
pub(super) const HANG_AFTER: Duration = Duration::from_secs(3);

/// What one round of sampling gave.
#[derive(Debug, Default)]
pub(crate) struct DriverSample {
    /// The generation whose order `devices` follows.
    pub(crate) generation: u32,
    /// The inventory, when it changed since the previous frame.
    pub(crate) inventory: Option<Inventory>,
    /// One entry a GPU, in inventory order.
    pub(crate) devices: Vec<DeviceSample>,
    /// Why the driver as a whole gives nothing now.
    pub(crate) error: Option<DriverError>,
    /// Xids since the previous frame.
    pub(crate) xids: Vec<Xid>,
    /// What the driver did that no driver should, told once.
    pub(crate) notes: Vec<SafeText>,
}

/// What the threads tell each other.
pub(super) struct WorkerState {
    /// The worker in charge. Older ones end when they find out.
    pub(super) epoch: u32,
    pub(super) timer: Arc<CallTimer>,
    pub(super) busy: bool,
    pub(super) stop_request: StopRequest,
    pub(super) requested_round: u64,
    pub(super) finished_round: u64,
    /// Whether the round that is asked for reads what rarely changes as well.
    pub(super) slow: bool,
    pub(super) library: Option<&'static Library>,
    pub(super) session: Option<Arc<Session>>,
    pub(super) inventory: Inventory,
    pub(super) slots: Vec<DeviceSlot>,
    /// Workers that hang, each on one GPU.
    pub(super) stuck_workers: Vec<Arc<CallTimer>>,
}

/// Whether the process is about to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopRequest {
    None,
    /// No further GPU is read.
    Stop,
    /// The same, and the worker in charge shuts NVML down.
    ShutDown,
}

#[derive(Default)]
pub(super) struct DeviceSlot {
    pub(super) round: u64,
    pub(super) sample: DeviceSample,
}

impl WorkerState {
    /// Before anything was asked; the first worker is watched through `timer`.
    pub(super) fn new(timer: Arc<CallTimer>) -> Self {
        Self {
            epoch: 0,
            timer,
            busy: false,
            stop_request: StopRequest::None,
            requested_round: 0,
            finished_round: 0,
            slow: true,
            library: None,
            session: None,
            inventory: Inventory::default(),
            slots: Vec::new(),
            stuck_workers: Vec::new(),
        }
    }

    /// What there is now: readings of this round, and for the other GPUs since when they have been blocked.
    pub(super) fn take_sample(&mut self) -> DriverSample {
        let round = self.requested_round;
        let in_flight = if self.finished_round == self.requested_round { None } else { self.timer.call_age() };
        let mut devices: Vec<DeviceSample> = self
            .slots
            .iter_mut()
            .map(|slot| if slot.round == round { std::mem::take(&mut slot.sample) } else { DeviceSample::default() })
            .collect();
        let mut hanging_devices = 0;
        let calls = self.stuck_workers.iter().map(|timer| (timer.device(), timer.call_age()));
        for (device, age) in calls.chain([(self.timer.device(), in_flight)]) {
            let Some((age, sample)) = age.zip(device.and_then(|device| devices.get_mut(device))) else { continue };
            if age >= CALL_WAIT {
                let seconds = crate::probe::decimal::round_to_tenth_f32(age.as_secs_f64());
                sample.reading.blocked_seconds = Some(seconds);
                if age >= HANG_AFTER {
                    sample.reading.error = Some(messages::device_blocked(seconds));
                    hanging_devices += 1;
                }
            }
        }
        let driver_hang =
            in_flight.filter(|&age| age >= HANG_AFTER && (self.timer.device().is_none() || hanging_devices > 1));
        let error = driver_hang.map(|age| messages::driver_blocked(age.as_secs_f32()));
        // Before the first answer the inventory is where a person looks for the reason.
        if self.session.is_none() && error.is_some() && self.inventory.error.is_none() {
            self.inventory.error.clone_from(&error);
            self.inventory.generation += 1;
        }
        DriverSample { generation: self.inventory.generation, devices, error, ..DriverSample::default() }
    }

    /// What there is while another probe of this user hangs in the driver: nothing, and why.
    pub(super) fn suspended_sample(&mut self, pid: u32) -> DriverSample {
        let error = messages::peer_waits(pid);
        if self.session.is_none() && self.inventory.error.as_ref() != Some(&error) {
            self.inventory.error = Some(error.clone());
            self.inventory.generation += 1;
        }
        let mut devices = Vec::new();
        devices.resize_with(self.slots.len(), DeviceSample::default);
        DriverSample { generation: self.inventory.generation, devices, error: Some(error), ..DriverSample::default() }
    }

    /// The age of the oldest call that has not come back.
    pub(super) fn oldest_call(&self) -> Option<Duration> {
        let stuck_workers = self.stuck_workers.iter().map(|timer| timer.call_age());
        stuck_workers.chain([self.timer.call_age()]).flatten().max()
    }
}
