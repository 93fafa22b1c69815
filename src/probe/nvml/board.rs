//! What the worker, and whoever wants readings from it, tell each other. Only the state: nobody waits here.

use super::device::DeviceSample;
use super::raw::Library;
use super::session::Session;
use super::watch::Watch;
use super::words;
use super::xids::Xid;
use crate::wire::{DriverError, Inventory, SafeText};
use std::sync::Arc;
use std::time::Duration;

/// A call that runs this long is not waited for: the snapshot goes without.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// A call that runs this long hangs: its worker is left behind.
pub(super) const HANGS: Duration = Duration::from_secs(3);

/// What one round of sampling gave.
#[derive(Debug, Default)]
pub(crate) struct Frame {
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
pub(super) struct Board {
    /// The worker in charge. Older ones end when they find out.
    pub(super) epoch: u32,
    pub(super) watch: Arc<Watch>,
    pub(super) busy: bool,
    pub(super) ending: Ending,
    pub(super) asked: u64,
    pub(super) finished: u64,
    /// Whether the round that is asked for reads what rarely changes as well.
    pub(super) slow: bool,
    pub(super) library: Option<&'static Library>,
    pub(super) session: Option<Arc<Session>>,
    pub(super) inventory: Inventory,
    pub(super) slots: Vec<Slot>,
    /// Workers that hang, each on one GPU.
    pub(super) left_behind: Vec<Arc<Watch>>,
}

/// Whether the process is about to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    No,
    /// No further GPU is read.
    Stop,
    /// The same, and the worker in charge shuts NVML down.
    ShutDown,
}

#[derive(Default)]
pub(super) struct Slot {
    pub(super) round: u64,
    pub(super) sample: DeviceSample,
}

impl Board {
    /// Before anything was asked; the first worker is watched through `watch`.
    pub(super) fn new(watch: Arc<Watch>) -> Self {
        Self {
            epoch: 0,
            watch,
            busy: false,
            ending: Ending::No,
            asked: 0,
            finished: 0,
            slow: true,
            library: None,
            session: None,
            inventory: Inventory::default(),
            slots: Vec::new(),
            left_behind: Vec::new(),
        }
    }

    /// What there is now: readings of this round, and for the other GPUs since when they have been blocked.
    pub(super) fn frame(&mut self) -> Frame {
        let round = self.asked;
        let in_flight = if self.finished == self.asked { None } else { self.watch.call_age() };
        let mut devices: Vec<DeviceSample> = self
            .slots
            .iter_mut()
            .map(|slot| if slot.round == round { std::mem::take(&mut slot.sample) } else { DeviceSample::default() })
            .collect();
        let mut hanging = 0;
        let calls = self.left_behind.iter().map(|watch| (watch.device(), watch.call_age()));
        for (device, age) in calls.chain([(self.watch.device(), in_flight)]) {
            let Some((age, sample)) = age.zip(device.and_then(|device| devices.get_mut(device))) else { continue };
            if age >= PATIENCE {
                let seconds = crate::probe::numbers::tenths_f32(age.as_secs_f64());
                sample.reading.blocked_seconds = Some(seconds);
                if age >= HANGS {
                    sample.reading.error = Some(words::device_blocked(seconds));
                    hanging += 1;
                }
            }
        }
        let whole = in_flight.filter(|&age| age >= HANGS && (self.watch.device().is_none() || hanging > 1));
        let error = whole.map(|age| words::driver_blocked(age.as_secs_f32()));
        // Before the first answer the inventory is where a person looks for the reason.
        if self.session.is_none() && error.is_some() && self.inventory.error.is_none() {
            self.inventory.error.clone_from(&error);
            self.inventory.generation += 1;
        }
        Frame { generation: self.inventory.generation, devices, error, ..Frame::default() }
    }

    /// What there is while another probe of this user hangs in the driver: nothing, and why.
    pub(super) fn set_aside(&mut self, pid: u32) -> Frame {
        let error = words::another_waits(pid);
        if self.session.is_none() && self.inventory.error.as_ref() != Some(&error) {
            self.inventory.error = Some(error.clone());
            self.inventory.generation += 1;
        }
        let mut devices = Vec::new();
        devices.resize_with(self.slots.len(), DeviceSample::default);
        Frame { generation: self.inventory.generation, devices, error: Some(error), ..Frame::default() }
    }

    /// The age of the oldest call that has not come back.
    pub(super) fn oldest_call(&self) -> Option<Duration> {
        let left_behind = self.left_behind.iter().map(|watch| watch.call_age());
        left_behind.chain([self.watch.call_age()]).flatten().max()
    }
}
