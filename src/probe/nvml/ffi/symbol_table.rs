//! The functions that are used, each of them optional.

use nvml_wrapper_sys::bindings as sys;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr::NonNull;

pub(super) type GetU32 = unsafe extern "C" fn(sys::nvmlDevice_t, *mut c_uint) -> sys::nvmlReturn_t;
pub(super) type GetU64 = unsafe extern "C" fn(sys::nvmlDevice_t, *mut c_ulonglong) -> sys::nvmlReturn_t;
pub(super) type GetTwoU32 = unsafe extern "C" fn(sys::nvmlDevice_t, *mut c_uint, *mut c_uint) -> sys::nvmlReturn_t;
pub(super) type GetKindU32 = unsafe extern "C" fn(sys::nvmlDevice_t, c_uint, *mut c_uint) -> sys::nvmlReturn_t;
pub(super) type GetText = unsafe extern "C" fn(sys::nvmlDevice_t, *mut c_char, c_uint) -> sys::nvmlReturn_t;
pub(super) type GetProcesses = unsafe extern "C" fn(sys::nvmlDevice_t, *mut c_uint, *mut c_void) -> sys::nvmlReturn_t;
pub(super) type WaitEvent =
    unsafe extern "C" fn(sys::nvmlEventSet_t, *mut sys::nvmlEventData_t, c_uint) -> sys::nvmlReturn_t;
pub(super) type GetStruct<T> = unsafe extern "C" fn(sys::nvmlDevice_t, *mut T) -> sys::nvmlReturn_t;

/// Declares the table: a field for each name, resolved by `dlsym`.
macro_rules! table {
    ($($field:ident: $name:literal as $type:ty,)*) => {
        pub(super) struct SymbolTable { $(pub(super) $field: Option<$type>,)* }
        impl SymbolTable {
            /// Looks every name up; a name that the library lacks is `None`.
            pub(super) fn resolve(library: NonNull<c_void>) -> Self {
                Self { $($field: {
                    let name: &CStr = $name;
                    // SAFETY: `library` came from dlopen and is never closed; a null result is `None` of the function
                    // pointer, anything else is the function that nvml.h declares by this name.
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
    // Only their presence is asked for: together they tell the early R535 drivers from all others.
    conf_compute_mem_size: c"nvmlDeviceGetConfComputeMemSizeInfo" as GetStruct<c_void>,
    process_detail_list: c"nvmlDeviceGetRunningProcessDetailList" as GetStruct<c_void>,
}
