//! The GPUs, through libnvidia-ml. Calls may hang, so they run on a worker and are watched from outside.

mod beside;
mod board;
mod device;
mod lists;
pub(crate) mod raw;
mod session;
mod watch;
mod words;
mod worker;
mod xids;

pub(crate) use board::Frame;
pub(crate) use device::{DeviceSample, Past};
pub(crate) use lists::GpuProcess;
#[cfg(test)]
pub(crate) use lists::Shares;
pub(crate) use worker::{Driver, Settler};
pub(crate) use xids::Xid;
