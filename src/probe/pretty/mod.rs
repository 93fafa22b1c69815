//! One snapshot for a person at a terminal: `gpufleet-probe --once --pretty`.
//!
//! ```text
//! hgx-01  Linux 6.1.0 x86_64  up 12.3 d            <- host.rs
//!   CPU         13.5 % of 112, load 2.25 2.1 1.9
//!   ...
//!
//! GPU 3  NVIDIA H100 80GB HBM3  GPU-5a4f...         <- gpu.rs
//!   use         97 %, memory bus 41 %
//!   ...
//!   not told    decoder, fan
//!
//!  GPU      PID KIND    MEMORY ...                  <- process.rs
//! ```
//!
//! A piece that is not known is left out of its line, and named in the block's last one, so that nobody takes what is
//! missing for what is fine.

mod gpu;
mod host;
mod process;
mod report;
mod report_writer;
#[cfg(test)]
mod tests;

pub(crate) use report::pretty;
