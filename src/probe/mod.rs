//! Runs on the GPU server: samples NVML and /proc and writes what it finds as lines of [`crate::wire`].
//!
//! Three threads. The main one samples at its pace and writes snapshots; one reads requests, answers them at once and
//! ends the process when the controller is gone; one makes the NVML calls, since any of them may hang. A fourth asks
//! the name service for users, from the first unknown uid on, and a fifth waits for Xids where the driver tells them. The
//! main one hands everything else that may block to a [`blocking::BlockingPool`].

mod blocking;
mod decimal;
mod external;
mod listener;
#[cfg(panic = "abort")]
mod no_backtrace;
mod nvml;
mod options;
mod owner;
mod policy;
mod pretty;
mod process_facts;
mod process_requests;
mod procfs;
mod sampler;
mod service;
mod user_names;

pub use service::run;
