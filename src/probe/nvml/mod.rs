//! GPU readings from NVML (libnvidia-ml).
//!
//! NVML calls may hang, so [`worker`] makes them on a separate thread and the sampling thread only waits for them with
//! a timeout. A [`session`] is an initialized library with its [`device`]s; [`device_query`] and [`gpm`] read one
//! device. [`ffi`] and [`lists`] contain the foreign calls, [`call_monitor`] shows whether one is in flight. [`xid`]
//! waits for Xid events, [`peer_hang_lock`] keeps other probes away from a driver that hangs, and [`messages`] has the
//! error messages.

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
