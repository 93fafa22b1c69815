//! The state behind the exported functions (scenario, energy counters, clock) and helpers for out parameters.

use super::scenario::{Device, Quirk, Scenario, Value};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

// Return codes of nvml.h.
pub(crate) const SUCCESS: nvmlReturn_t = 0;
pub(crate) const UNINITIALIZED: nvmlReturn_t = 1;
pub(crate) const TIMEOUT: nvmlReturn_t = 10;
pub(crate) const INVALID_ARGUMENT: nvmlReturn_t = 2;
pub(crate) const NOT_SUPPORTED: nvmlReturn_t = 3;
pub(crate) const NOT_FOUND: nvmlReturn_t = 6;
pub(crate) const INSUFFICIENT_SIZE: nvmlReturn_t = 7;
pub(crate) const UNKNOWN: nvmlReturn_t = 999;

/// Minimum time between two checks of the scenario file.
const CHECK_PERIOD: Duration = Duration::from_millis(50);
/// Handles are numbers from here on, a block of them for each GPU and its MIG instances.
const FIRST_HANDLE: usize = 0x1000;
const HANDLES_PER_GPU: usize = 0x100;

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);
/// Notified when the scenario has been read again.
static CHANGED: Condvar = Condvar::new();

/// Identifies a version of the scenario file: inode and modification time.
pub(crate) type FileVersion = (u64, i64, i64);

/// The state of the driver.
pub(crate) struct Driver {
    path: PathBuf,
    scenario: Scenario,
    /// The version of the scenario that was read last.
    version: Option<FileVersion>,
    /// Time of the last check by the coarse clock, which is cheap enough for every call.
    checked_at: Duration,
    pub(crate) initialized: bool,
    /// Energy counters by UUID: joules at a time in seconds. From then on they integrate the power.
    energy: BTreeMap<String, (f64, f64)>,
}

impl Driver {
    pub(crate) fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Returns the version of the scenario that was read last.
    pub(crate) fn scenario_version(&self) -> Option<FileVersion> {
        self.version
    }

    pub(crate) fn has(&self, quirk: Quirk) -> bool {
        self.scenario.quirks.contains(&quirk)
    }

    /// Appends the name of a call to `calls.log` beside the scenario, if that file exists.
    pub(crate) fn log(&self, call: &str) {
        let log = std::fs::OpenOptions::new().append(true).open(self.path.with_file_name("calls.log"));
        if let Ok(mut log) = log {
            writeln!(log, "{call}").unwrap();
        }
    }

    /// Returns the energy counter of a GPU in joules.
    pub(crate) fn energy(&self, device: &Device) -> Option<f64> {
        let now = monotonic();
        let power = device.power_watts?;
        let start = device.energy_joules?;
        let (joules, since) =
            device.uuid.as_ref().and_then(|uuid| self.energy.get(uuid)).copied().unwrap_or((start, 0.0));
        Some(joules + power.integral(now) - power.integral(since))
    }

    fn refresh(&mut self) {
        if self.scenario.is_final {
            return;
        }
        let now = monotonic_coarse();
        if now.saturating_sub(self.checked_at) < CHECK_PERIOD && self.version.is_some() {
            return;
        }
        self.checked_at = now;
        // Two files written within one tick of the kernel clock have equal times but different inodes.
        let version = std::fs::metadata(&self.path)
            .map(|metadata| (metadata.ino(), metadata.mtime(), metadata.mtime_nsec()))
            .ok();
        if version == self.version && version.is_some() {
            return;
        }
        self.version = version;
        // The counters continue from their current values, whatever the new power is.
        let now = monotonic();
        let devices = self.scenario.devices.iter();
        let counters = devices.filter_map(|device| Some((device.uuid.clone()?, (self.energy(device)?, now))));
        self.energy = counters.collect();
        self.scenario = read(&self.path);
        CHANGED.notify_all();
    }
}

/// Returns `GPUFLEET_FAKE_NVML`, or the path of `fake_nvml.json` beside this library.
fn scenario_path() -> PathBuf {
    if let Some(path) = std::env::var_os("GPUFLEET_FAKE_NVML") {
        return path.into();
    }
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the address of a function of this library, and an out parameter.
    let library = unsafe {
        libc::dladdr(scenario_path as *const c_void, info.as_mut_ptr());
        CStr::from_ptr(info.assume_init().dli_fname)
    };
    PathBuf::from(library.to_str().unwrap()).with_file_name("fake_nvml.json")
}

fn read(path: &Path) -> Scenario {
    let parsed = std::fs::read(path).map_err(|error| error.to_string());
    let parsed = parsed.and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string()));
    parsed.unwrap_or_else(|error| {
        eprintln!("fake_nvml: {}: {error}", path.display());
        Scenario { init_error: Some(UNKNOWN), ..Scenario::default() }
    })
}

/// Calls `with` on the driver after a check for a changed scenario.
pub(crate) fn driver<T>(with: impl FnOnce(&mut Driver) -> T) -> T {
    let mut driver = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = driver.get_or_insert_with(|| Driver {
        path: scenario_path(),
        scenario: Scenario::default(),
        version: None,
        checked_at: Duration::ZERO,
        initialized: false,
        energy: BTreeMap::new(),
    });
    driver.refresh();
    with(driver)
}

/// Waits until another call has read a scenario of another version, up to a limit. It does not check the file itself:
/// benchmarks would count that work, which a real driver does not do, as work of the probe.
pub(crate) fn wait_for_change(version: Option<FileVersion>, limit: Duration) {
    let driver = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
    let is_unchanged = |driver: &mut Option<Driver>| driver.as_ref().is_none_or(|driver| driver.version == version);
    drop(CHANGED.wait_timeout_while(driver, limit, is_unchanged));
}

/// Runs a call without a device: applies the hang and the error of the scenario, then calls `with`.
pub(crate) fn system_call(name: &str, with: impl FnOnce(&mut Driver) -> nvmlReturn_t) -> nvmlReturn_t {
    hang_while(|scenario| scenario.hang.iter().any(|hang| hang == name));
    driver(|driver| match driver.scenario.errors.get(name) {
        Some(&code) => code,
        None => with(driver),
    })
}

/// Runs a call on a device: checks the handle and the initialization, applies hangs and errors, then calls `with`.
pub(crate) fn device_call(
    name: &str,
    handle: nvmlDevice_t,
    with: impl FnOnce(&Driver, &Device) -> Result<(), nvmlReturn_t>,
) -> nvmlReturn_t {
    let Some((gpu, _)) = gpu_and_slot(handle) else { return INVALID_ARGUMENT };
    let is_this = |call: &str| match call.split_once('@') {
        Some((call, device)) => call == name && device.parse() == Ok(gpu),
        None => call == name,
    };
    hang_while(|scenario| scenario.hang.iter().any(|call| is_this(call)));
    driver(|driver| {
        if !driver.initialized {
            return UNINITIALIZED;
        }
        let scenario = &driver.scenario;
        let Some(device) = device(scenario, handle) else { return INVALID_ARGUMENT };
        let listed_error = scenario.errors.iter().find(|(call, _)| is_this(call)).map(|(_, &code)| code);
        if let Some(code) = device.error.or(listed_error) {
            return code;
        }
        with(driver, device).err().unwrap_or(SUCCESS)
    })
}

/// Returns the device of a handle, for calls that are not device calls.
pub(crate) fn find(driver: &Driver, handle: nvmlDevice_t) -> Option<&Device> {
    device(&driver.scenario, handle)
}

/// Returns when the scenario no longer lists the call as hanging.
fn hang_while(hangs: impl Fn(&Scenario) -> bool) {
    while driver(|driver| hangs(&driver.scenario)) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the handle of a GPU or of the MIG instance in one of its slots.
pub(crate) fn handle(gpu: usize, slot: Option<usize>) -> nvmlDevice_t {
    let number = FIRST_HANDLE + gpu * HANDLES_PER_GPU + slot.map_or(0, |slot| slot + 1);
    std::ptr::without_provenance_mut(number)
}

/// Returns the GPU and the MIG slot of a handle.
pub(crate) fn gpu_and_slot(handle: nvmlDevice_t) -> Option<(usize, Option<usize>)> {
    let number = handle.addr().checked_sub(FIRST_HANDLE)?;
    Some((number / HANDLES_PER_GPU, (number % HANDLES_PER_GPU).checked_sub(1)))
}

fn device(scenario: &Scenario, handle: nvmlDevice_t) -> Option<&Device> {
    let (gpu, slot) = gpu_and_slot(handle)?;
    let device = scenario.devices.get(gpu)?;
    match slot {
        None => Some(device),
        Some(slot) => device.mig.get(slot)?.as_ref(),
    }
}

fn monotonic_coarse() -> Duration {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Seconds since boot.
pub(crate) fn monotonic() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Writes an out parameter.
pub(crate) fn put<T>(out: *mut T, value: T) -> Result<(), nvmlReturn_t> {
    if out.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the out parameter of the caller, as documented in nvml.h.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes a structure of integers, or sets all its bits with [`Quirk::GarbageNumbers`].
pub(crate) fn put_structure<T>(driver: &Driver, out: *mut T, value: T) -> Result<(), nvmlReturn_t> {
    put(out, value)?;
    if driver.has(Quirk::GarbageNumbers) {
        // SAFETY: the structure of the caller, in its whole size.
        unsafe { out.cast::<u8>().write_bytes(0xFF, size_of::<T>()) };
    }
    Ok(())
}

/// Writes a NUL-terminated string, or fills the buffer with [`Quirk::UnterminatedTexts`].
pub(crate) fn put_text(
    driver: &Driver,
    out: *mut c_char,
    length: c_uint,
    text: Option<&str>,
) -> Result<(), nvmlReturn_t> {
    let bytes = text.ok_or(NOT_SUPPORTED)?.as_bytes();
    let length = length as usize;
    if bytes.len() + 1 > length {
        return Err(INSUFFICIENT_SIZE);
    }
    let filler = if driver.has(Quirk::UnterminatedTexts) { b'x' } else { 0 };
    for index in 0..length {
        let byte = bytes.get(index).copied().unwrap_or(filler);
        // SAFETY: `index` is below the buffer length that the caller passed.
        unsafe { out.add(index).write(byte as c_char) };
    }
    Ok(())
}

/// Returns the current value, or `NVML_ERROR_NOT_SUPPORTED` if the scenario omits it.
pub(crate) fn now(value: Option<Value>) -> Result<f64, nvmlReturn_t> {
    value.map(|value| value.at(monotonic())).ok_or(NOT_SUPPORTED)
}
