//! Bindings to libnvidia-ml, loaded by `dlopen`, and to the libc calls that have no safe wrapper. With
//! [`super::lists`], the only unsafe code of the probe.
//!
//! Types and constants come from `nvml-wrapper-sys`. Its loader is not used: it resolves 400 names and adds 110 kB,
//! lacks the older versions of some calls, and trusts the driver's counts and terminators. Here every function is
//! optional, counts are clamped to the buffer, and text ends at the end of its buffer at the latest.
#![allow(unsafe_code, reason = "foreign functions; every buffer outlives its call and is passed with its true size")]

use super::call_monitor::{CallTimer, DriverAnomalies, DriverAnomaly};
use nvml_wrapper_sys::bindings as sys;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// An `nvmlReturn_t` other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReturnCode(pub(crate) u32);

impl ReturnCode {
    pub(crate) const UNINITIALIZED: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED);
    pub(crate) const INVALID_ARGUMENT: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
    pub(crate) const TIMEOUT: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT);
    pub(crate) const NOT_SUPPORTED: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
    pub(crate) const NO_PERMISSION: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION);
    pub(crate) const NOT_FOUND: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND);
    pub(crate) const INSUFFICIENT_SIZE: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE);
    pub(crate) const DRIVER_NOT_LOADED: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED);
    pub(crate) const LIBRARY_NOT_FOUND: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_LIBRARY_NOT_FOUND);
    pub(crate) const FUNCTION_NOT_FOUND: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND);
    pub(crate) const GPU_IS_LOST: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST);
    pub(crate) const RESET_REQUIRED: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED);
    pub(crate) const VERSION_MISMATCH: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH);
    pub(crate) const UNKNOWN: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN);
}

/// A non-null `nvmlDevice_t`. NVML allows its use from any thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle(pub(super) NonNull<sys::nvmlDevice_st>);

// SAFETY: the pointer is an opaque token of the library. It is never dereferenced here, and NVML is thread-safe
// (nvml.h).
unsafe impl Send for Handle {}

impl Handle {
    /// A number that identifies the device, for comparison with [`Event::device`].
    pub(crate) fn number(self) -> usize {
        self.0.addr().get()
    }
}

/// A loaded NVML library. It stays loaded until the process ends, because a hung call still needs its code.
pub(crate) struct Library {
    pub(super) table: SymbolTable,
    path: String,
    pub(super) early_r535: bool,
    pub(super) anomalies: DriverAnomalies,
}

/// Declares getters that return one number.
macro_rules! getters {
    ($($(#[$doc:meta])* $method:ident($($argument:ident)?) -> $type:ty;)*) => {
        $($(#[$doc])* pub(crate) fn $method(&self, timer: &CallTimer, device: Handle $(, $argument: u32)?) -> Result<$type, ReturnCode> {
            let mut value: $type = 0;
            // SAFETY: `value` is the out parameter that nvml.h declares for this function.
            call(timer, self.table.$method, |function| unsafe { function(device.0.as_ptr() $(, $argument)?, &raw mut value) })?;
            Ok(value)
        })*
    };
}

impl Library {
    pub(crate) fn init(&self, timer: &CallTimer) -> Result<(), ReturnCode> {
        // SAFETY: no arguments.
        call(timer, self.table.init, |function| unsafe { function() })
    }

    pub(crate) fn shutdown(&self, timer: &CallTimer) -> Result<(), ReturnCode> {
        // SAFETY: no arguments.
        call(timer, self.table.shutdown, |function| unsafe { function() })
    }

    pub(crate) fn driver_version(&self, timer: &CallTimer) -> Result<Vec<u8>, ReturnCode> {
        let mut text = [0_u8; 80];
        call(timer, self.table.driver_version, |function| {
            // SAFETY: the buffer and its length.
            unsafe { function(text.as_mut_ptr().cast(), text.len() as c_uint) }
        })?;
        Ok(self.until_nul(&text))
    }

    /// Returns 1000 * major + 10 * minor.
    pub(crate) fn cuda_version(&self, timer: &CallTimer) -> Result<i32, ReturnCode> {
        let mut version: c_int = 0;
        // SAFETY: `version` is the out parameter of both functions.
        call(timer, self.table.cuda_version_v2.or(self.table.cuda_version), |function| unsafe {
            function(&raw mut version)
        })?;
        Ok(version)
    }

    pub(crate) fn device_count(&self, timer: &CallTimer) -> Result<u32, ReturnCode> {
        let mut count: c_uint = 0;
        // SAFETY: `count` is the out parameter.
        call(timer, self.table.count, |function| unsafe { function(&raw mut count) })?;
        Ok(count)
    }

    pub(crate) fn device(&self, timer: &CallTimer, index: u32) -> Result<Handle, ReturnCode> {
        let mut device: sys::nvmlDevice_t = std::ptr::null_mut();
        // SAFETY: `device` is the out parameter.
        call(timer, self.table.handle, |function| unsafe { function(index, &raw mut device) })?;
        NonNull::new(device).map(Handle).ok_or(ReturnCode::UNKNOWN)
    }

    pub(crate) fn mig_device(&self, timer: &CallTimer, parent: Handle, index: u32) -> Result<Handle, ReturnCode> {
        let mut device: sys::nvmlDevice_t = std::ptr::null_mut();
        // SAFETY: `device` is the out parameter.
        call(timer, self.table.mig_handle, |function| unsafe { function(parent.0.as_ptr(), index, &raw mut device) })?;
        NonNull::new(device).map(Handle).ok_or(ReturnCode::NOT_FOUND)
    }

    pub(crate) fn uuid(&self, timer: &CallTimer, device: Handle) -> Result<Vec<u8>, ReturnCode> {
        self.text(timer, self.table.uuid, device)
    }

    pub(crate) fn name(&self, timer: &CallTimer, device: Handle) -> Result<Vec<u8>, ReturnCode> {
        self.text(timer, self.table.name, device)
    }

    pub(crate) fn pci_bus_id(&self, timer: &CallTimer, device: Handle) -> Result<Vec<u8>, ReturnCode> {
        let info: sys::nvmlPciInfo_t = get_struct(timer, self.table.pci_info, device, |_| {})?;
        Ok(self.until_nul(&info.busId.map(|character| character as u8)))
    }

    pub(crate) fn memory_v2(&self, timer: &CallTimer, device: Handle) -> Result<sys::nvmlMemory_v2_t, ReturnCode> {
        // The version word combines the size of the structure and its version number (nvml.h, NVML_STRUCT_VERSION).
        let version = size_of::<sys::nvmlMemory_v2_t>() as c_uint | 2 << 24;
        get_struct(timer, self.table.memory_v2, device, |memory| memory.version = version)
    }

    pub(crate) fn memory_v1(&self, timer: &CallTimer, device: Handle) -> Result<sys::nvmlMemory_t, ReturnCode> {
        get_struct(timer, self.table.memory_v1, device, |_| {})
    }

    pub(crate) fn utilization(&self, timer: &CallTimer, device: Handle) -> Result<sys::nvmlUtilization_t, ReturnCode> {
        get_struct(timer, self.table.utilization, device, |_| {})
    }

    getters! {
        /// In degrees Celsius. `sensor` is an `nvmlTemperatureSensors_t`.
        temperature(sensor) -> u32;
        /// In degrees Celsius. `kind` is an `nvmlTemperatureThresholds_t`.
        temperature_threshold(kind) -> u32;
        /// In milliwatts.
        power_usage() -> u32;
        /// In millijoules.
        total_energy() -> u64;
        /// In milliwatts.
        enforced_power_limit() -> u32;
        /// In MHz. `kind` is an `nvmlClockType_t`.
        clock(kind) -> u32;
        /// In MHz. `kind` is an `nvmlClockType_t`.
        max_clock(kind) -> u32;
        fan_count() -> u32;
        /// In percent, for one fan.
        fan_speed_v2(fan) -> u32;
        /// In percent, for the first fan.
        fan_speed() -> u32;
        performance_state() -> u32;
        event_reasons() -> u64;
        /// The name of `event_reasons` before R535.
        throttle_reasons() -> u64;
        pcie_generation() -> u32;
        pcie_width() -> u32;
        pcie_generation_max() -> u32;
        pcie_width_max() -> u32;
        /// The N of `/dev/nvidiaN`.
        minor_number() -> u32;
        /// 1 if the NVLink is up, else 0.
        nvlink_state(link) -> u32;
        persistence_mode() -> u32;
        /// An `nvmlComputeMode_t`.
        compute_mode() -> u32;
        retired_pages_pending() -> u32;
        gpu_instance_id() -> u32;
        compute_instance_id() -> u32;
        /// The maximum number of MIG instances.
        mig_count() -> u32;
    }

    /// The highest power limit that can be set, in milliwatts.
    pub(crate) fn max_power_limit(&self, timer: &CallTimer, device: Handle) -> Result<u32, ReturnCode> {
        get_pair(timer, self.table.power_limit_constraints, device).map(|(_, max)| max)
    }

    /// In percent.
    pub(crate) fn encoder(&self, timer: &CallTimer, device: Handle) -> Result<u32, ReturnCode> {
        get_pair(timer, self.table.encoder, device).map(|(percent, _)| percent)
    }

    /// In percent.
    pub(crate) fn decoder(&self, timer: &CallTimer, device: Handle) -> Result<u32, ReturnCode> {
        get_pair(timer, self.table.decoder, device).map(|(percent, _)| percent)
    }

    /// Whether MIG mode is currently enabled.
    pub(crate) fn mig_mode(&self, timer: &CallTimer, device: Handle) -> Result<bool, ReturnCode> {
        get_pair(timer, self.table.mig_mode, device).map(|(current, _)| current == sys::NVML_DEVICE_MIG_ENABLE)
    }

    /// The BAR1 window, through which the CPU accesses device memory, in bytes.
    pub(crate) fn bar1(&self, timer: &CallTimer, device: Handle) -> Result<sys::nvmlBAR1Memory_t, ReturnCode> {
        get_struct(timer, self.table.bar1, device, |_| {})
    }

    /// ECC errors. `kind` is an `nvmlMemoryErrorType_t`, `period` an `nvmlEccCounterType_t`.
    pub(crate) fn ecc_errors(
        &self,
        timer: &CallTimer,
        device: Handle,
        kind: u32,
        period: u32,
    ) -> Result<u64, ReturnCode> {
        let mut count: c_ulonglong = 0;
        // SAFETY: `count` is the out parameter.
        call(timer, self.table.ecc_errors, |function| unsafe {
            function(device.0.as_ptr(), kind, period, &raw mut count)
        })?;
        Ok(count)
    }

    /// The number of retired pages. `cause` is an `nvmlPageRetirementCause_t`.
    pub(crate) fn retired_pages(&self, timer: &CallTimer, device: Handle, cause: u32) -> Result<u32, ReturnCode> {
        let (mut count, mut address): (c_uint, c_ulonglong) = (0, 0);
        // SAFETY: a count of 0 requests only the count. The address is passed for drivers that reject a null pointer.
        let result = call(timer, self.table.retired_pages, |function| unsafe {
            function(device.0.as_ptr(), cause, &raw mut count, &raw mut address)
        });
        match result {
            Ok(()) | Err(ReturnCode::INSUFFICIENT_SIZE) => Ok(count),
            Err(code) => Err(code),
        }
    }

    /// Remapped rows: the number for correctable errors, the number for uncorrectable errors, whether a remapping is
    /// pending, and whether one failed.
    pub(crate) fn remapped_rows(&self, timer: &CallTimer, device: Handle) -> Result<[u32; 4], ReturnCode> {
        let mut rows: [c_uint; 4] = [0; 4];
        let [corrected, uncorrectable, pending, failed] = &mut rows;
        // SAFETY: four out parameters.
        call(timer, self.table.remapped_rows, |function| unsafe {
            function(device.0.as_ptr(), corrected, uncorrectable, pending, failed)
        })?;
        Ok(rows)
    }

    fn text(&self, timer: &CallTimer, function: Option<GetText>, device: Handle) -> Result<Vec<u8>, ReturnCode> {
        let mut text = [0_u8; 96];
        // SAFETY: the buffer and its length.
        call(timer, function, |function| unsafe {
            function(device.0.as_ptr(), text.as_mut_ptr().cast(), text.len() as c_uint)
        })?;
        Ok(self.until_nul(&text))
    }

    fn until_nul(&self, bytes: &[u8]) -> Vec<u8> {
        let end = bytes.iter().position(|&byte| byte == 0);
        if end.is_none() {
            self.anomalies.add(DriverAnomaly::UnterminatedText);
        }
        bytes[..end.unwrap_or(bytes.len())].to_vec()
    }
}

/// Calls `function` and marks the call as in flight while it runs.
pub(super) fn call<F>(
    timer: &CallTimer,
    function: Option<F>,
    invoke: impl FnOnce(F) -> sys::nvmlReturn_t,
) -> Result<(), ReturnCode> {
    let function = function.ok_or(ReturnCode::FUNCTION_NOT_FOUND)?;
    timer.begin();
    let code = invoke(function);
    timer.end();
    if code == sys::nvmlReturn_enum_NVML_SUCCESS { Ok(()) } else { Err(ReturnCode(code)) }
}

fn get_pair(timer: &CallTimer, function: Option<GetTwoU32>, device: Handle) -> Result<(u32, u32), ReturnCode> {
    let (mut first, mut second) = (0, 0);
    // SAFETY: two out parameters.
    call(timer, function, |function| unsafe { function(device.0.as_ptr(), &raw mut first, &raw mut second) })?;
    Ok((first, second))
}

/// Reads a C structure of numbers. `prepare` sets its input fields; all others start as zero.
fn get_struct<T: Copy>(
    timer: &CallTimer,
    function: Option<GetStruct<T>>,
    device: Handle,
    prepare: impl FnOnce(&mut T),
) -> Result<T, ReturnCode> {
    // SAFETY: every `T` used here is a C structure of integers, for which all zeroes is a valid value.
    let mut value: T = unsafe { MaybeUninit::zeroed().assume_init() };
    prepare(&mut value);
    // SAFETY: `value` is the out parameter that nvml.h declares for this function.
    call(timer, function, |function| unsafe { function(device.0.as_ptr(), &raw mut value) })?;
    Ok(value)
}

/// nvml.h, `nvmlEventTypeXidCriticalError`.
const XID_CRITICAL_ERROR: u64 = 8;
/// `gpuInstanceId` of an event without an instance.
const NO_INSTANCE: c_uint = c_uint::MAX;

/// An `nvmlEventSet_t`.
pub(crate) struct EventSet {
    set: NonNull<sys::nvmlEventSet_st>,
    free: Option<unsafe extern "C" fn(sys::nvmlEventSet_t) -> sys::nvmlReturn_t>,
}

// SAFETY: an opaque token of the library that this value alone owns; NVML is thread-safe (nvml.h).
unsafe impl Send for EventSet {}

impl Drop for EventSet {
    fn drop(&mut self) {
        if let Some(free) = self.free {
            // SAFETY: the set came from nvmlEventSetCreate and no thread waits on it. A failure only leaks it.
            let _refused = unsafe { free(self.set.as_ptr()) };
        }
    }
}

/// An event of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    /// [`Handle::number`] of the GPU.
    pub(crate) device: usize,
    /// The GPU instance to which the event is attributed.
    pub(crate) gpu_instance: Option<u32>,
    /// The Xid, or 999 if the driver does not know it.
    pub(crate) xid: u64,
}

impl Library {
    /// Creates an empty event set.
    pub(crate) fn event_set(&self, timer: &CallTimer) -> Result<EventSet, ReturnCode> {
        let mut set: sys::nvmlEventSet_t = std::ptr::null_mut();
        // SAFETY: `set` is the out parameter.
        call(timer, self.table.event_set_create, |function| unsafe { function(&raw mut set) })?;
        let set = NonNull::new(set).ok_or(ReturnCode::UNKNOWN)?;
        Ok(EventSet { set, free: self.table.event_set_free })
    }

    /// Registers the GPU's Xid events with the set.
    pub(crate) fn register_xid_events(
        &self,
        timer: &CallTimer,
        device: Handle,
        set: &EventSet,
    ) -> Result<(), ReturnCode> {
        // SAFETY: a device and an event set of the library.
        call(timer, self.table.register_events, |function| unsafe {
            function(device.0.as_ptr(), XID_CRITICAL_ERROR, set.set.as_ptr())
        })
    }

    /// Waits for the next event, for at most `milliseconds`. Returns `Ok(None)` for an event that is not an Xid.
    ///
    /// # Errors
    /// [`ReturnCode::TIMEOUT`] if no event came.
    pub(crate) fn next_event(
        &self,
        timer: &CallTimer,
        set: &EventSet,
        milliseconds: u32,
    ) -> Result<Option<Event>, ReturnCode> {
        // SAFETY: a pointer and numbers, for which all zeroes is a valid value.
        let mut data: sys::nvmlEventData_t = unsafe { MaybeUninit::zeroed().assume_init() };
        data.gpuInstanceId = NO_INSTANCE;
        // Version 1 writes a shorter structure, whose fields are the first ones of this structure.
        // SAFETY: an event set of the library and an out parameter.
        call(timer, self.table.event_wait_v2.or(self.table.event_wait_v1), |function| unsafe {
            function(set.set.as_ptr(), &raw mut data, milliseconds)
        })?;
        Ok((data.eventType & XID_CRITICAL_ERROR != 0).then(|| Event {
            device: data.device.addr(),
            gpu_instance: (data.gpuInstanceId != NO_INSTANCE).then_some(data.gpuInstanceId),
            xid: data.eventData,
        }))
    }
}

impl Library {
    /// Loads the library and resolves its functions. `path` is a path, or a file name for which the dynamic loader
    /// searches.
    pub(crate) fn open(path: &str) -> Result<Self, LoadError> {
        let name = CString::new(path).map_err(|_| LoadError::unusable("the path contains a NUL byte"))?;
        // SAFETY: a NUL-terminated path. The constructors of the library run, as for every user of the driver.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let Some(library) = NonNull::new(library) else { return Err(loader_error()) };
        let table = SymbolTable::resolve(library);
        let early_r535 = table.conf_compute_mem_size.is_some() && table.process_detail_list.is_none();
        let path = table.init.and_then(loaded_from).unwrap_or_else(|| path.to_owned());
        Ok(Self { table, path, early_r535, anomalies: DriverAnomalies::default() })
    }

    /// The path from which the library was loaded.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The anomalies of this driver.
    pub(crate) fn anomalies(&self) -> &DriverAnomalies {
        &self.anomalies
    }
}

/// The reason why a library cannot be loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LoadError {
    /// A file does not exist: the library or one of its dependencies.
    pub(crate) is_missing: bool,
    /// The message of the dynamic loader.
    pub(crate) message: String,
}

impl LoadError {
    fn unusable(message: &str) -> Self {
        Self { is_missing: false, message: message.to_owned() }
    }

    /// `dlerror` has no error codes, so the text alone distinguishes the cases.
    fn of_dlerror(message: String) -> Self {
        Self { is_missing: message.contains("No such file"), message }
    }
}

fn loader_error() -> LoadError {
    // SAFETY: dlerror returns null or a text that stays valid until the next loader call of this thread.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return LoadError::unusable("the loader gave no reason");
    }
    // SAFETY: as above; the text is copied immediately.
    LoadError::of_dlerror(unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned())
}

fn loaded_from(function: unsafe extern "C" fn() -> sys::nvmlReturn_t) -> Option<String> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr accepts any address; `info` is the out parameter.
    if unsafe { libc::dladdr(function as *const c_void, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: zeroed above and written when the call succeeds; the name is null or a text that lives as long as the
    // library.
    unsafe {
        let info = info.assume_init();
        (!info.dli_fname.is_null()).then(|| CStr::from_ptr(info.dli_fname).to_string_lossy().into_owned())
    }
}

type GetU32 = unsafe extern "C" fn(sys::nvmlDevice_t, *mut c_uint) -> sys::nvmlReturn_t;
type GetU64 = unsafe extern "C" fn(sys::nvmlDevice_t, *mut c_ulonglong) -> sys::nvmlReturn_t;
type GetTwoU32 = unsafe extern "C" fn(sys::nvmlDevice_t, *mut c_uint, *mut c_uint) -> sys::nvmlReturn_t;
type GetKindU32 = unsafe extern "C" fn(sys::nvmlDevice_t, c_uint, *mut c_uint) -> sys::nvmlReturn_t;
type GetText = unsafe extern "C" fn(sys::nvmlDevice_t, *mut c_char, c_uint) -> sys::nvmlReturn_t;
type GetProcesses = unsafe extern "C" fn(sys::nvmlDevice_t, *mut c_uint, *mut c_void) -> sys::nvmlReturn_t;
type WaitEvent = unsafe extern "C" fn(sys::nvmlEventSet_t, *mut sys::nvmlEventData_t, c_uint) -> sys::nvmlReturn_t;
type GetStruct<T> = unsafe extern "C" fn(sys::nvmlDevice_t, *mut T) -> sys::nvmlReturn_t;

/// Declares the symbol table: one field per name, resolved by `dlsym`.
macro_rules! table {
    ($($field:ident: $name:literal as $type:ty,)*) => {
        pub(super) struct SymbolTable { $(pub(super) $field: Option<$type>,)* }
        impl SymbolTable {
            /// Resolves every name. A name that the library lacks becomes `None`.
            fn resolve(library: NonNull<c_void>) -> Self {
                Self { $($field: {
                    let name: &CStr = $name;
                    // SAFETY: `library` came from dlopen and is never closed. A null result is the `None` of the
                    // function pointer; any other result is the function that nvml.h declares by this name.
                    unsafe {
                        std::mem::transmute::<*mut c_void, Option<$type>>(libc::dlsym(library.as_ptr(), name.as_ptr()))
                    }
                },)* }
            }
        }
    };
}

table! {
    init: c"nvmlInit_v2" as unsafe extern "C" fn() -> sys::nvmlReturn_t,
    shutdown: c"nvmlShutdown" as unsafe extern "C" fn() -> sys::nvmlReturn_t,
    driver_version: c"nvmlSystemGetDriverVersion" as unsafe extern "C" fn(*mut c_char, c_uint) -> sys::nvmlReturn_t,
    cuda_version_v2: c"nvmlSystemGetCudaDriverVersion_v2" as unsafe extern "C" fn(*mut c_int) -> sys::nvmlReturn_t,
    cuda_version: c"nvmlSystemGetCudaDriverVersion" as unsafe extern "C" fn(*mut c_int) -> sys::nvmlReturn_t,
    count: c"nvmlDeviceGetCount_v2" as unsafe extern "C" fn(*mut c_uint) -> sys::nvmlReturn_t,
    handle: c"nvmlDeviceGetHandleByIndex_v2" as unsafe extern "C" fn(c_uint, *mut sys::nvmlDevice_t) -> sys::nvmlReturn_t,
    uuid: c"nvmlDeviceGetUUID" as GetText,
    name: c"nvmlDeviceGetName" as GetText,
    pci_info: c"nvmlDeviceGetPciInfo_v3" as GetStruct<sys::nvmlPciInfo_t>,
    memory_v2: c"nvmlDeviceGetMemoryInfo_v2" as GetStruct<sys::nvmlMemory_v2_t>,
    memory_v1: c"nvmlDeviceGetMemoryInfo" as GetStruct<sys::nvmlMemory_t>,
    utilization: c"nvmlDeviceGetUtilizationRates" as GetStruct<sys::nvmlUtilization_t>,
    temperature: c"nvmlDeviceGetTemperature" as GetKindU32,
    temperature_threshold: c"nvmlDeviceGetTemperatureThreshold" as GetKindU32,
    field_values: c"nvmlDeviceGetFieldValues"
        as unsafe extern "C" fn(sys::nvmlDevice_t, c_int, *mut sys::nvmlFieldValue_t) -> sys::nvmlReturn_t,
    power_usage: c"nvmlDeviceGetPowerUsage" as GetU32,
    total_energy: c"nvmlDeviceGetTotalEnergyConsumption" as GetU64,
    enforced_power_limit: c"nvmlDeviceGetEnforcedPowerLimit" as GetU32,
    power_limit_constraints: c"nvmlDeviceGetPowerManagementLimitConstraints" as GetTwoU32,
    clock: c"nvmlDeviceGetClockInfo" as GetKindU32,
    max_clock: c"nvmlDeviceGetMaxClockInfo" as GetKindU32,
    fan_count: c"nvmlDeviceGetNumFans" as GetU32,
    fan_speed_v2: c"nvmlDeviceGetFanSpeed_v2" as GetKindU32,
    fan_speed: c"nvmlDeviceGetFanSpeed" as GetU32,
    performance_state: c"nvmlDeviceGetPerformanceState" as GetU32,
    event_reasons: c"nvmlDeviceGetCurrentClocksEventReasons" as GetU64,
    throttle_reasons: c"nvmlDeviceGetCurrentClocksThrottleReasons" as GetU64,
    encoder: c"nvmlDeviceGetEncoderUtilization" as GetTwoU32,
    decoder: c"nvmlDeviceGetDecoderUtilization" as GetTwoU32,
    pcie_generation: c"nvmlDeviceGetCurrPcieLinkGeneration" as GetU32,
    pcie_width: c"nvmlDeviceGetCurrPcieLinkWidth" as GetU32,
    pcie_generation_max: c"nvmlDeviceGetMaxPcieLinkGeneration" as GetU32,
    pcie_width_max: c"nvmlDeviceGetMaxPcieLinkWidth" as GetU32,
    minor_number: c"nvmlDeviceGetMinorNumber" as GetU32,
    bar1: c"nvmlDeviceGetBAR1MemoryInfo" as GetStruct<sys::nvmlBAR1Memory_t>,
    nvlink_state: c"nvmlDeviceGetNvLinkState" as GetKindU32,
    persistence_mode: c"nvmlDeviceGetPersistenceMode" as GetU32,
    compute_mode: c"nvmlDeviceGetComputeMode" as GetU32,
    retired_pages: c"nvmlDeviceGetRetiredPages"
        as unsafe extern "C" fn(sys::nvmlDevice_t, c_uint, *mut c_uint, *mut c_ulonglong) -> sys::nvmlReturn_t,
    retired_pages_pending: c"nvmlDeviceGetRetiredPagesPendingStatus" as GetU32,
    remapped_rows: c"nvmlDeviceGetRemappedRows" as unsafe extern "C" fn(
        sys::nvmlDevice_t, *mut c_uint, *mut c_uint, *mut c_uint, *mut c_uint,
    ) -> sys::nvmlReturn_t,
    samples: c"nvmlDeviceGetSamples" as unsafe extern "C" fn(
        sys::nvmlDevice_t, c_uint, c_ulonglong, *mut c_uint, *mut c_uint, *mut sys::nvmlSample_t,
    ) -> sys::nvmlReturn_t,
    gpm_alloc: c"nvmlGpmSampleAlloc" as unsafe extern "C" fn(*mut sys::nvmlGpmSample_t) -> sys::nvmlReturn_t,
    gpm_free: c"nvmlGpmSampleFree" as unsafe extern "C" fn(sys::nvmlGpmSample_t) -> sys::nvmlReturn_t,
    gpm_read: c"nvmlGpmSampleGet"
        as unsafe extern "C" fn(sys::nvmlDevice_t, sys::nvmlGpmSample_t) -> sys::nvmlReturn_t,
    gpm_read_instance: c"nvmlGpmMigSampleGet"
        as unsafe extern "C" fn(sys::nvmlDevice_t, c_uint, sys::nvmlGpmSample_t) -> sys::nvmlReturn_t,
    gpm_metrics: c"nvmlGpmMetricsGet" as unsafe extern "C" fn(*mut sys::nvmlGpmMetricsGet_t) -> sys::nvmlReturn_t,
    event_set_create: c"nvmlEventSetCreate" as unsafe extern "C" fn(*mut sys::nvmlEventSet_t) -> sys::nvmlReturn_t,
    event_set_free: c"nvmlEventSetFree" as unsafe extern "C" fn(sys::nvmlEventSet_t) -> sys::nvmlReturn_t,
    event_wait_v2: c"nvmlEventSetWait_v2" as WaitEvent,
    event_wait_v1: c"nvmlEventSetWait" as WaitEvent,
    register_events: c"nvmlDeviceRegisterEvents"
        as unsafe extern "C" fn(sys::nvmlDevice_t, c_ulonglong, sys::nvmlEventSet_t) -> sys::nvmlReturn_t,
    ecc_errors: c"nvmlDeviceGetTotalEccErrors"
        as unsafe extern "C" fn(sys::nvmlDevice_t, c_uint, c_uint, *mut c_ulonglong) -> sys::nvmlReturn_t,
    mig_mode: c"nvmlDeviceGetMigMode" as GetTwoU32,
    gpu_instance_id: c"nvmlDeviceGetGpuInstanceId" as GetU32,
    compute_instance_id: c"nvmlDeviceGetComputeInstanceId" as GetU32,
    mig_count: c"nvmlDeviceGetMaxMigDeviceCount" as GetU32,
    mig_handle: c"nvmlDeviceGetMigDeviceHandleByIndex"
        as unsafe extern "C" fn(sys::nvmlDevice_t, c_uint, *mut sys::nvmlDevice_t) -> sys::nvmlReturn_t,
    compute_v3: c"nvmlDeviceGetComputeRunningProcesses_v3" as GetProcesses,
    compute_v2: c"nvmlDeviceGetComputeRunningProcesses_v2" as GetProcesses,
    compute_v1: c"nvmlDeviceGetComputeRunningProcesses" as GetProcesses,
    graphics_v3: c"nvmlDeviceGetGraphicsRunningProcesses_v3" as GetProcesses,
    graphics_v2: c"nvmlDeviceGetGraphicsRunningProcesses_v2" as GetProcesses,
    graphics_v1: c"nvmlDeviceGetGraphicsRunningProcesses" as GetProcesses,
    mps_v3: c"nvmlDeviceGetMPSComputeRunningProcesses_v3" as GetProcesses,
    mps_v2: c"nvmlDeviceGetMPSComputeRunningProcesses_v2" as GetProcesses,
    mps_v1: c"nvmlDeviceGetMPSComputeRunningProcesses" as GetProcesses,
    process_utilization: c"nvmlDeviceGetProcessUtilization" as unsafe extern "C" fn(
        sys::nvmlDevice_t, *mut sys::nvmlProcessUtilizationSample_t, *mut c_uint, c_ulonglong,
    ) -> sys::nvmlReturn_t,
    // Only their presence matters: together they identify the early R535 drivers.
    conf_compute_mem_size: c"nvmlDeviceGetConfComputeMemSizeInfo" as GetStruct<c_void>,
    process_detail_list: c"nvmlDeviceGetRunningProcessDetailList" as GetStruct<c_void>,
}

/// An entry of the user database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PasswdEntry {
    pub(crate) name: Vec<u8>,
    pub(crate) gecos: Vec<u8>,
}

/// Calls `getpwuid_r`, which queries all name services (files, LDAP, SSSD) and blocks as long as they do. Returns
/// `Ok(None)` if there is no such user.
///
/// # Errors
/// The `errno` of the call.
pub(crate) fn passwd_entry(uid: u32) -> Result<Option<PasswdEntry>, i32> {
    let mut buffer = vec![0_u8; 1024];
    loop {
        let mut entry = MaybeUninit::<libc::passwd>::zeroed();
        let mut found: *mut libc::passwd = std::ptr::null_mut();
        // SAFETY: an entry, a buffer with its length and a place for the result, all alive during the call.
        let error = unsafe {
            libc::getpwuid_r(uid, entry.as_mut_ptr(), buffer.as_mut_ptr().cast(), buffer.len(), &raw mut found)
        };
        match error {
            0 if found.is_null() => return Ok(None),
            0 => {
                // SAFETY: the call succeeded, so `found` points to `entry`, whose texts lie in `buffer`.
                let entry = unsafe { &*found };
                return Ok(Some(PasswdEntry { name: c_text(entry.pw_name), gecos: c_text(entry.pw_gecos) }));
            }
            libc::ERANGE if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            error => return Err(error),
        }
    }
}

fn c_text(text: *const c_char) -> Vec<u8> {
    if text.is_null() {
        return Vec::new();
    }
    // SAFETY: the texts of getpwuid_r end in NUL.
    unsafe { CStr::from_ptr(text) }.to_bytes().to_vec()
}

/// The size of a memory page, the unit of resident memory in `/proc/PID/statm`.
pub(crate) fn page_size() -> u64 {
    // SAFETY: sysconf takes no pointers.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Returns the CPU time of all threads of a process in nanoseconds, or `None` if there is no such process. Every user
/// may read it for every process: `clock_gettime(2)` on the clock that `clock_getcpuclockid(3)` derives from a pid.
pub(crate) fn process_cpu_nanoseconds(pid: u32) -> Option<u64> {
    /// `CPUCLOCK_SCHED` of the kernel's posix-timers.h: the time that the scheduler counts.
    const SCHEDULER: libc::clockid_t = 2;
    let pid = libc::clockid_t::try_from(pid).ok().filter(|pid| (1..1 << 28).contains(pid))?;
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: a place for the result that lives during the call, for which all zeroes is a valid value.
    let time = unsafe {
        let status = libc::clock_gettime(!pid << 3 | SCHEDULER, time.as_mut_ptr());
        (status == 0).then(|| time.assume_init())?
    };
    let (seconds, remaining) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_nsec).ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(remaining)
}

/// Ends the process immediately, without running destructors: those of the library would wait for a hung call.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: the call never returns, and nothing of this process needs cleanup.
    unsafe { libc::_exit(status) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_time_of_a_process_grows_with_its_work() {
        let before = process_cpu_nanoseconds(std::process::id()).expect("of this process");
        let sum = (0..100_000_u64).fold(0, |sum: u64, number| std::hint::black_box(sum ^ number));
        let after = process_cpu_nanoseconds(std::process::id()).expect("of this process");
        assert!(after > before, "{sum}");
        assert_eq!(process_cpu_nanoseconds(0), None);
        assert_eq!(process_cpu_nanoseconds(4_194_305), None, "more than any pid");
        assert_eq!(process_cpu_nanoseconds(u32::MAX), None);
    }
}
