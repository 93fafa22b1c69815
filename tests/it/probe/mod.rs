//! The probe program on the fake driver.

mod gpu_metrics;
mod harness;
mod host_and_processes;
mod invalid_readings;
pub(crate) mod lifecycle;
mod readings;
mod real_gpu;
