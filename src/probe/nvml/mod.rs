//! The GPUs, through libnvidia-ml. Calls may hang, so they run on a worker and are watched from outside.

mod call_monitor;
mod device;
mod device_query;
pub(crate) mod ffi;
mod gpm;
mod gpu_processes;
mod lists;
mod messages;
mod peer_hang_lock;
mod session;
mod worker;
mod xid;

pub(crate) use device::{BufferedSamples, DeviceSample};
pub(crate) use gpu_processes::GpuProcess;
#[cfg(test)]
pub(crate) use gpu_processes::ProcessUtilization;
pub(crate) use worker::{Driver, DriverSample, ShutdownHandle};
pub(crate) use xid::Xid;
