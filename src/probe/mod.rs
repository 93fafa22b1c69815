//! Runs on the GPU server: samples NVML and /proc and writes what it finds as lines of [`crate::wire`].
#[cfg(panic = "abort")]
mod no_backtrace;
