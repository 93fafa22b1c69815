//! Error messages for NVML return codes and for calls that hang.

use super::ffi::{LoadError, ReturnCode};
use crate::wire::{DeviceError, DriverError, DriverErrorKind};

/// The default paths of the library, in order: the loader's search, then the paths of containers, Debian, WSL and
/// NixOS. The name without `.1` belongs to the development package and may be a stub.
pub(crate) const LIBRARY_PATHS: [&str; 5] = [
    "libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    if cfg!(target_arch = "aarch64") {
        "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1"
    } else {
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    },
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/run/opengl-driver/lib/libnvidia-ml.so.1",
];

/// No library could be loaded. `error` is that of a file that exists but is unusable, if there is one.
pub(crate) fn library_error(library_path: Option<&str>, error: &LoadError) -> DriverError {
    let reason = &error.message;
    let message = match library_path {
        Some(_) => format!("the configured NVML library cannot be loaded: {reason}"),
        None if error.is_missing => "no NVIDIA driver on this host: libnvidia-ml.so.1 was not found. \
             Install the driver, or set nvml_library to the path of the library"
            .to_owned(),
        None => format!("libnvidia-ml.so.1 cannot be loaded: {reason}"),
    };
    DriverError { kind: DriverErrorKind::NoLibrary, code: None, message: message.into() }
}

/// `nvmlInit_v2` failed.
pub(crate) fn init_error(code: ReturnCode) -> DriverError {
    let message = match code {
        ReturnCode::LIBRARY_NOT_FOUND => {
            "a library of the NVIDIA driver is missing: install the driver again".to_owned()
        }
        ReturnCode::DRIVER_NOT_LOADED => {
            "the NVIDIA kernel module is not loaded: `sudo modprobe nvidia`, or reboot if it was just installed"
                .to_owned()
        }
        ReturnCode::VERSION_MISMATCH => {
            "the NVIDIA library and the loaded kernel module have different versions, usually after \
             a driver update: reboot, or reload the nvidia modules"
                .to_owned()
        }
        ReturnCode::NO_PERMISSION => {
            "no permission to open /dev/nvidia*: ask the administrator for access, often through the group `video`"
                .to_owned()
        }
        ReturnCode::FUNCTION_NOT_FOUND => {
            "the library has no nvmlInit_v2: it does not belong to an NVIDIA driver".to_owned()
        }
        ReturnCode::UNKNOWN => {
            "NVML does not start (unknown error): `sudo dmesg | grep -i nvrm` may show the reason".to_owned()
        }
        ReturnCode(code) => format!("NVML does not start (error {code})"),
    };
    DriverError { kind: kind(code), code: Some(code.0 as i32), message: message.into() }
}

/// The driver works but shows no GPU.
pub(crate) fn no_gpus() -> DriverError {
    let message = "the NVIDIA driver is loaded but shows no GPU to this user (compare `nvidia-smi -L`): \
                   the container or Slurm job may have no GPU";
    DriverError { kind: DriverErrorKind::NoGpus, code: None, message: message.into() }
}

/// A call hangs before any GPU was read, or calls hang on several GPUs.
pub(crate) fn driver_blocked(seconds: f32) -> DriverError {
    let seconds = (seconds + 0.5) as u32;
    let message = format!(
        "the NVIDIA driver has not answered for {seconds} s: `sudo dmesg | grep -i nvrm` may show the reason; usually \
         only a reboot helps"
    );
    DriverError { kind: DriverErrorKind::Blocked, code: None, message: message.into() }
}

/// Another probe of this user hangs in the driver.
pub(crate) fn peer_hangs(pid: u32) -> DriverError {
    let message = format!(
        "another gpufleet probe of this user (process {pid}) has been waiting for the NVIDIA driver for more than 5 s; \
         this one does not call the driver until that call returns or that process ends"
    );
    DriverError { kind: DriverErrorKind::Blocked, code: None, message: message.into() }
}

/// A call on one GPU hangs.
pub(crate) fn device_blocked(seconds: f32) -> DeviceError {
    let seconds = (seconds + 0.5) as u32;
    let message = format!("the driver has not answered for this GPU for {seconds} s");
    DeviceError { kind: DriverErrorKind::Blocked, code: None, message: message.into() }
}

/// One GPU cannot be read.
pub(crate) fn device_error(code: ReturnCode) -> DeviceError {
    let message = match code {
        ReturnCode::GPU_IS_LOST => {
            "the GPU has fallen off the bus: `sudo dmesg | grep -i xid` shows the reason; reboot the host".to_owned()
        }
        ReturnCode::RESET_REQUIRED => {
            "the GPU must be reset: end its processes, then `sudo nvidia-smi --gpu-reset`, or reboot".to_owned()
        }
        ReturnCode::NO_PERMISSION => "no permission to read this GPU".to_owned(),
        ReturnCode::UNKNOWN => {
            "the driver returns an unknown error for this GPU: `sudo dmesg | grep -i nvrm` may show the reason"
                .to_owned()
        }
        ReturnCode(code) => format!("the driver returns error {code} for this GPU"),
    };
    DeviceError { kind: kind(code), code: Some(code.0 as i32), message: message.into() }
}

fn kind(code: ReturnCode) -> DriverErrorKind {
    match code {
        ReturnCode::LIBRARY_NOT_FOUND => DriverErrorKind::NoLibrary,
        ReturnCode::DRIVER_NOT_LOADED => DriverErrorKind::DriverNotLoaded,
        ReturnCode::VERSION_MISMATCH => DriverErrorKind::VersionMismatch,
        ReturnCode::NO_PERMISSION => DriverErrorKind::NoPermission,
        ReturnCode::GPU_IS_LOST => DriverErrorKind::GpuLost,
        ReturnCode::RESET_REQUIRED => DriverErrorKind::ResetRequired,
        _ => DriverErrorKind::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_and_an_unusable_library_have_distinct_messages() {
        let error = |is_missing, message: &str| LoadError { is_missing, message: message.to_owned() };
        assert_eq!(
            library_error(None, &error(true, "libnvidia-ml.so.1: cannot open shared object file")).message,
            "no NVIDIA driver on this host: libnvidia-ml.so.1 was not found. \
             Install the driver, or set nvml_library to the path of the library"
        );
        assert_eq!(
            library_error(None, &error(false, "x: wrong ELF class")).message,
            "libnvidia-ml.so.1 cannot be loaded: x: wrong ELF class"
        );
        assert_eq!(
            library_error(Some("/x"), &error(false, "/x: file too short")).message,
            "the configured NVML library cannot be loaded: /x: file too short"
        );
    }

    #[test]
    fn each_error_has_its_kind_and_code() {
        for (code, kind) in [
            (12, DriverErrorKind::NoLibrary),
            (9, DriverErrorKind::DriverNotLoaded),
            (18, DriverErrorKind::VersionMismatch),
            (4, DriverErrorKind::NoPermission),
            (999, DriverErrorKind::Unknown),
        ] {
            let error = init_error(ReturnCode(code));
            assert_eq!((error.kind, error.code), (kind, Some(code as i32)));
        }
        assert_eq!(init_error(ReturnCode(27)).message, "NVML does not start (error 27)");
        assert_eq!(device_error(ReturnCode(16)).kind, DriverErrorKind::ResetRequired);
    }
}
