//! An initialized NVML: the library and its GPUs.

use super::call_monitor::{CallTimer, DriverAnomaly};
use super::device::{Device, DeviceKind, DeviceSample};
use super::device_query::FieldIds;
use super::ffi::{Handle, Library, LoadError, ReturnCode};
use super::messages;
use super::xid::{EventSource, Registration, XidQueue, XidThread};
use crate::wire::codec::MAX_GPUS;
use crate::wire::{DriverError, GpuInfo, Inventory, SafeText};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// Above the number of instances of any GPU.
const MAX_INSTANCES: u32 = 64;

/// An initialized NVML and its devices. A device is locked while it is read, so the successor of a hung worker knows
/// which one to skip.
pub(crate) struct Session {
    library: &'static Library,
    devices: Vec<Mutex<Device>>,
    driver_version: Option<Vec<u8>>,
    /// Set if the driver supports Xid events.
    xids: Option<XidThread>,
}

/// Loads the library from `library_path`, or from the first default path that has one. It is never unloaded.
pub(crate) fn load(library_path: Option<&str>) -> Result<&'static Library, DriverError> {
    let library = match library_path {
        Some(path) => load_first(&[path]),
        None => load_first(&messages::LIBRARY_PATHS),
    };
    library.map_err(|error| messages::library_error(library_path, &error))
}

fn load_first(paths: &[&str]) -> Result<&'static Library, LoadError> {
    let mut reason: Option<LoadError> = None;
    for path in paths {
        match Library::open(path) {
            Ok(library) => return Ok(Box::leak(Box::new(library))),
            // A file that exists but cannot be loaded is the more useful error.
            Err(error) if reason.is_none() || !error.is_missing => reason = Some(error),
            Err(_) => {}
        }
    }
    Err(reason.unwrap_or_default())
}

impl Session {
    /// Initializes NVML and opens every GPU.
    pub(crate) fn open(
        library: &'static Library,
        timer: &CallTimer,
        queue: &Arc<XidQueue>,
    ) -> Result<Self, DriverError> {
        library.init(timer).map_err(messages::init_error)?;
        let driver_version = library.driver_version(timer).ok();
        Ok(Self::with_devices(library, timer, driver_version, queue))
    }

    fn with_devices(
        library: &'static Library,
        timer: &CallTimer,
        driver_version: Option<Vec<u8>>,
        queue: &Arc<XidQueue>,
    ) -> Self {
        let ids = driver_version.as_deref().map_or_else(FieldIds::default, FieldIds::for_driver);
        let mut devices = open_devices(library, timer, ids);
        let xids = register_xid_events(library, timer, &mut devices, queue);
        Self { library, devices: devices.into_iter().map(Mutex::new).collect(), driver_version, xids }
    }

    pub(crate) fn devices(&self) -> usize {
        self.devices.len()
    }

    /// The inventory of this driver, without a generation.
    pub(crate) fn inventory(&self, timer: &CallTimer) -> Inventory {
        let version = self.driver_version.as_deref().map(SafeText::from_bytes);
        let cuda = self.library.cuda_version(timer).ok().filter(|&version| version > 0);
        let gpus: Vec<GpuInfo> = self.devices.iter().map(|device| lock(device).info.clone()).collect();
        Inventory {
            generation: 0,
            driver_version: version,
            cuda_version: cuda.map(|version| format!("{}.{}", version / 1000, version % 1000 / 10).into()),
            nvml_path: Some(self.library.path().into()),
            error: gpus.is_empty().then(messages::no_gpus),
            gpus,
        }
    }

    /// Samples one device. Returns `None` while another worker is in a call on it.
    pub(crate) fn sample(
        &self,
        position: usize,
        timer: &CallTimer,
        buffer: &mut Vec<u64>,
        now: f64,
        slow: bool,
    ) -> Option<DeviceSample> {
        let mut device = match self.devices.get(position)?.try_lock() {
            Ok(device) => device,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        timer.set_device(Some(position));
        let sample = device.sample(self.library, timer, buffer, now, slow);
        timer.set_device(None);
        Some(sample)
    }

    /// Whether NVML must be initialized again.
    pub(crate) fn is_driver_unloaded(&self, timer: &CallTimer) -> bool {
        self.library.device_count(timer).is_err_and(is_driver_unloaded)
    }

    /// Whether the driver shows other GPUs or instances than this session, or none at all.
    pub(crate) fn inventory_is_stale(&self, timer: &CallTimer) -> bool {
        let count = match self.library.device_count(timer) {
            Ok(count) => count.min(MAX_GPUS as u32),
            Err(code) => return is_driver_unloaded(code),
        };
        let mut devices = self.devices.iter().map(lock).peekable();
        for index in (0..count).take_while(|&index| device_exists(self.library, timer, index)) {
            let Some(device) = devices.next() else { return true };
            let mut known = Vec::new();
            while let Some(instance) = devices.next_if(|next| next.kind() == DeviceKind::MigInstance) {
                known.push(instance.info.uuid.clone());
            }
            // A GPU that is off the bus keeps its row until it answers again.
            let Some(Ok(uuid)) = device.handle().map(|handle| self.library.uuid(timer, handle)) else { continue };
            let mig = device.handle().and_then(|handle| self.library.mig_mode(timer, handle).ok());
            let seen: Vec<Option<SafeText>> = instances(self.library, timer, &device)
                .map(|(_, instance)| self.library.uuid(timer, instance).ok().map(|uuid| SafeText::from_bytes(&uuid)))
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

    /// Opens every GPU again without initializing NVML again.
    pub(crate) fn reopened(&self, timer: &CallTimer, queue: &Arc<XidQueue>) -> Self {
        let reopened = Self::with_devices(self.library, timer, self.driver_version.clone(), queue);
        for mut device in reopened.devices.iter().map(lock) {
            device.skip_buffered_samples();
            if device.info.uuid.is_some() {
                continue;
            }
            // Keep the facts of a GPU that is off the bus.
            let previous = self.devices.iter().map(lock).find(|previous| {
                previous.kind() != DeviceKind::MigInstance && previous.info.index == device.info.index
            });
            if let Some(previous) = previous {
                device.info = previous.info.clone();
            }
        }
        reopened
    }

    /// Shuts NVML down, after which it can be initialized again.
    pub(crate) fn close(&self, timer: &CallTimer) -> &'static Library {
        if self.xids.as_ref().is_none_or(XidThread::stop) {
            // The next initialization reports an error, if there is one.
            let _refused: Result<(), ReturnCode> = self.library.shutdown(timer);
        }
        self.library
    }
}

/// Opens all GPUs, each followed by its MIG instances.
fn open_devices(library: &Library, timer: &CallTimer, ids: FieldIds) -> Vec<Device> {
    let mut devices = Vec::new();
    for index in 0..library.device_count(timer).unwrap_or(0).min(MAX_GPUS as u32) {
        let handle = library.device(timer, index);
        if handle == Err(ReturnCode::INVALID_ARGUMENT) {
            library.anomalies().add(DriverAnomaly::MissingDevices);
            break;
        }
        let device = Device::open(library, timer, handle, index, ids);
        let found: Vec<Device> = instances(library, timer, &device)
            .map(|(index, handle)| Device::open_mig_instance(library, timer, handle, index, &device))
            .collect();
        devices.push(device);
        devices.extend(found);
    }
    devices.truncate(MAX_GPUS);
    devices
}

/// Whether there is a GPU at this index. INVALID_ARGUMENT is the only negative answer (nvml.h).
fn device_exists(library: &Library, timer: &CallTimer, index: u32) -> bool {
    library.device(timer, index) != Err(ReturnCode::INVALID_ARGUMENT)
}

/// Returns the MIG instances of a GPU. Any slot may be empty, so an error skips only its slot.
fn instances(library: &Library, timer: &CallTimer, device: &Device) -> impl Iterator<Item = (u32, Handle)> {
    let parent = device.handle().filter(|_| device.kind() == DeviceKind::MigParent);
    let max_instances = parent.map_or(0, |parent| library.mig_count(timer, parent).unwrap_or(0).min(MAX_INSTANCES));
    parent.into_iter().flat_map(move |parent| {
        (0..max_instances).filter_map(move |slot| Some((slot, library.mig_device(timer, parent, slot).ok()?)))
    })
}

/// Registers the Xid events of every GPU and records their availability in its facts.
fn register_xid_events(
    library: &'static Library,
    timer: &CallTimer,
    devices: &mut [Device],
    queue: &Arc<XidQueue>,
) -> Option<XidThread> {
    let mut registration = Registration::begin(library, timer);
    let mut event_sources = Vec::new();
    let mut parent = None;
    for (position, device) in devices.iter_mut().enumerate() {
        if device.kind() != DeviceKind::MigInstance {
            parent = device.handle();
            device.info.xid_events = parent.and_then(|handle| registration.add(handle));
        }
        if let Some(parent) = parent {
            event_sources.push(EventSource {
                device: parent.number(),
                gpu_instance: device.info.gpu_instance_id,
                position,
            });
        }
    }
    registration.finish(event_sources, queue)
}

fn lock(device: &Mutex<Device>) -> std::sync::MutexGuard<'_, Device> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an error means that NVML must be initialised again.
fn is_driver_unloaded(code: ReturnCode) -> bool {
    matches!(code, ReturnCode::UNINITIALIZED | ReturnCode::DRIVER_NOT_LOADED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_library_that_loads_is_used() {
        let directory = tempfile::tempdir().expect("directory");
        let path = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
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
