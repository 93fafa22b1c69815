//! The GPUs, through libnvidia-ml. Calls may hang, so they run on a worker and are watched from outside.

mod call_timer;
mod device;
pub(crate) mod ffi;
mod gpu_processes;
mod messages;
mod peer_hang_lock;
mod session;
mod worker;
mod worker_state;
mod xids;

pub(crate) use device::{BufferedSamples, DeviceSample};
pub(crate) use gpu_processes::GpuProcess;
#[cfg(test)]
pub(crate) use gpu_processes::ProcessUtilization;
pub(crate) use worker::{Driver, ShutdownHandle};
pub(crate) use worker_state::DriverSample;
pub(crate) use xids::Xid;
