//! A driver that answers: its library and its GPUs.

use super::device::{Device, DeviceSample, FieldIds, Role};
use super::raw::{Code, Handle, Library, LoadError, Oddity};
use super::watch::Watch;
use super::words;
use super::worker::is_void;
use super::xids::{Place, Queue, Registration, XidThread};
use crate::wire::codec::MAX_GPUS;
use crate::wire::{DriverError, GpuInfo, Inventory, SafeText};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// More instances than a GPU can be divided into; a count above it is the driver's mistake.
const MAX_INSTANCES: u32 = 64;

/// An initialised NVML and the devices it showed. A device that is being read is locked, so a successor of a worker
/// that hangs can tell which one to leave alone.
pub(crate) struct Session {
    library: &'static Library,
    devices: Vec<Mutex<Device>>,
    driver_version: Option<Vec<u8>>,
    /// Waits for Xids, where the driver tells of them.
    xids: Option<XidThread>,
}

/// Loads the library from `chosen`, or from the first usual place that has one. It is never unloaded.
pub(crate) fn load(chosen: Option<&str>) -> Result<&'static Library, DriverError> {
    let library = match chosen {
        Some(path) => load_first(&[path]),
        None => load_first(&words::LIBRARY_PATHS),
    };
    library.map_err(|error| words::no_library(chosen, &error))
}

fn load_first(paths: &[&str]) -> Result<&'static Library, LoadError> {
    let mut reason: Option<LoadError> = None;
    for path in paths {
        match Library::open(path) {
            Ok(library) => return Ok(Box::leak(Box::new(library))),
            // A file that is there and cannot be loaded says more than one that is missing.
            Err(error) if reason.is_none() || !error.is_missing => reason = Some(error),
            Err(_) => {}
        }
    }
    Err(reason.unwrap_or_default())
}

impl Session {
    /// Initialises NVML and looks at every GPU.
    pub(crate) fn open(library: &'static Library, watch: &Watch, queue: &Arc<Queue>) -> Result<Self, DriverError> {
        library.init(watch).map_err(words::init_refused)?;
        let driver_version = library.driver_version(watch).ok();
        Ok(Self::looked(library, watch, driver_version, queue))
    }

    fn looked(library: &'static Library, watch: &Watch, driver_version: Option<Vec<u8>>, queue: &Arc<Queue>) -> Self {
        let ids = driver_version.as_deref().map_or_else(FieldIds::default, FieldIds::of_driver);
        let mut devices = look(library, watch, ids);
        let xids = hear_xids(library, watch, &mut devices, queue);
        Self { library, devices: devices.into_iter().map(Mutex::new).collect(), driver_version, xids }
    }

    pub(crate) fn devices(&self) -> usize {
        self.devices.len()
    }

    /// What the controller is told of this driver, without a generation.
    pub(crate) fn inventory(&self, watch: &Watch) -> Inventory {
        let version = self.driver_version.as_deref().map(SafeText::from_bytes);
        let cuda = self.library.cuda_version(watch).ok().filter(|&version| version > 0);
        let gpus: Vec<GpuInfo> = self.devices.iter().map(|device| lock(device).info.clone()).collect();
        Inventory {
            generation: 0,
            driver_version: version,
            cuda_version: cuda.map(|version| format!("{}.{}", version / 1000, version % 1000 / 10).into()),
            nvml_path: Some(self.library.path().into()),
            error: gpus.is_empty().then(words::no_gpus),
            gpus,
        }
    }

    /// Samples one device, or `None` while another worker is inside a call on it.
    pub(crate) fn sample(
        &self,
        position: usize,
        watch: &Watch,
        words: &mut Vec<u64>,
        now: f64,
        slow: bool,
    ) -> Option<DeviceSample> {
        let mut device = match self.devices.get(position)?.try_lock() {
            Ok(device) => device,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        watch.concerns(Some(position));
        let sample = device.sample(self.library, watch, words, now, slow);
        watch.concerns(None);
        Some(sample)
    }

    /// Whether NVML has to be initialised again before it gives anything.
    pub(crate) fn is_void(&self, watch: &Watch) -> bool {
        self.library.device_count(watch).is_err_and(is_void)
    }

    /// Whether the driver now shows other GPUs or instances than this session knows, or nothing at all.
    pub(crate) fn inventory_is_stale(&self, watch: &Watch) -> bool {
        let count = match self.library.device_count(watch) {
            Ok(count) => count.min(MAX_GPUS as u32),
            Err(code) => return is_void(code),
        };
        let mut devices = self.devices.iter().map(lock).peekable();
        for index in (0..count).take_while(|&index| is_there(self.library, watch, index)) {
            let Some(device) = devices.next() else { return true };
            let mut known = Vec::new();
            while let Some(instance) = devices.next_if(|next| next.role() == Role::Instance) {
                known.push(instance.info.uuid.clone());
            }
            // A GPU that is off the bus keeps its rows until it can be asked again.
            let Some(Ok(uuid)) = device.handle().map(|handle| self.library.uuid(watch, handle)) else { continue };
            let mig = device.handle().and_then(|handle| self.library.mig_mode(watch, handle).ok());
            let seen: Vec<Option<SafeText>> = instances(self.library, watch, &device)
                .map(|(_, instance)| self.library.uuid(watch, instance).ok().map(|uuid| SafeText::from_bytes(&uuid)))
                .collect();
            let same = device.info.index == index
                && device.info.uuid == Some(SafeText::from_bytes(&uuid))
                && device.info.mig_enabled == mig
                && known == seen;
            if !same {
                return true;
            }
        }
        devices.next().is_some()
    }

    /// Looks at every GPU again, under the same initialisation.
    pub(crate) fn renewed(&self, watch: &Watch, queue: &Arc<Queue>) -> Self {
        let renewed = Self::looked(self.library, watch, self.driver_version.clone(), queue);
        for mut device in renewed.devices.iter().map(lock) {
            device.forget_the_past();
            if device.info.uuid.is_some() {
                continue;
            }
            // What is known of a GPU that is off the bus stays known.
            let before = self
                .devices
                .iter()
                .map(lock)
                .find(|before| before.role() != Role::Instance && before.info.index == device.info.index);
            if let Some(before) = before {
                device.info = before.info.clone();
            }
        }
        renewed
    }

    /// Ends this initialisation, after which NVML can be initialised again.
    pub(crate) fn close(&self, watch: &Watch) -> &'static Library {
        if self.xids.as_ref().is_none_or(XidThread::end) {
            // A refusal changes nothing: the next initialisation says what is wrong.
            let _refused: Result<(), Code> = self.library.shutdown(watch);
        }
        self.library
    }
}

/// All GPUs, each followed by its instances.
fn look(library: &Library, watch: &Watch, ids: FieldIds) -> Vec<Device> {
    let mut devices = Vec::new();
    for index in 0..library.device_count(watch).unwrap_or(0).min(MAX_GPUS as u32) {
        let handle = library.device(watch, index);
        if handle == Err(Code::INVALID_ARGUMENT) {
            library.oddities().add(Oddity::Devices);
            break;
        }
        let device = Device::open(library, watch, handle, index, ids);
        let found: Vec<Device> = instances(library, watch, &device)
            .map(|(index, handle)| Device::instance(library, watch, handle, index, &device))
            .collect();
        devices.push(device);
        devices.extend(found);
    }
    devices.truncate(MAX_GPUS);
    devices
}

/// Whether an index is a GPU's: the one answer that says no is "invalid argument" (nvml.h).
fn is_there(library: &Library, watch: &Watch, index: u32) -> bool {
    library.device(watch, index) != Err(Code::INVALID_ARGUMENT)
}

/// The instances of a GPU. Slots may be empty anywhere, so an error only skips its slot.
fn instances(library: &Library, watch: &Watch, device: &Device) -> impl Iterator<Item = (u32, Handle)> {
    let parent = device.handle().filter(|_| device.role() == Role::Parent);
    let slots = parent.map_or(0, |parent| library.mig_count(watch, parent).unwrap_or(0).min(MAX_INSTANCES));
    parent.into_iter().flat_map(move |parent| {
        (0..slots).filter_map(move |slot| Some((slot, library.mig_device(watch, parent, slot).ok()?)))
    })
}

/// Asks for the Xids of every GPU, and notes in its facts whether they are told.
fn hear_xids(
    library: &'static Library,
    watch: &Watch,
    devices: &mut [Device],
    queue: &Arc<Queue>,
) -> Option<XidThread> {
    let mut registration = Registration::begin(library, watch);
    let mut places = Vec::new();
    let mut parent = None;
    for (position, device) in devices.iter_mut().enumerate() {
        if device.role() != Role::Instance {
            parent = device.handle();
            device.info.xid_events = parent.and_then(|handle| registration.add(handle));
        }
        if let Some(parent) = parent {
            places.push(Place { device: parent.number(), gpu_instance: device.info.gpu_instance_id, position });
        }
    }
    registration.finish(places, queue)
}

fn lock(device: &Mutex<Device>) -> std::sync::MutexGuard<'_, Device> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_library_that_loads_is_taken_and_an_unusable_one_is_the_reason() {
        let folder = tempfile::tempdir().expect("folder");
        let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        std::fs::write(path("broken.so"), "no library").expect("writes");
        let (missing, broken) = (path("missing.so"), path("broken.so"));
        // Any library will do here.
        let library = load_first(&[&missing, &broken, "libc.so.6"]).expect("loads");
        assert_eq!(library.path(), "libc.so.6");
        let reason = load_first(&[&missing, &broken, &missing]).err().expect("a reason");
        assert!(!reason.is_missing && reason.message.contains("broken.so"), "{reason:?}");
        let reason = load_first(&[&missing]).err().expect("a reason");
        assert!(reason.is_missing, "{reason:?}");
        assert!(load_first(&[]).is_err());
    }
}
