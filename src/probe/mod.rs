//! The probe: runs on the GPU server, samples NVML and `/proc` and writes the readings as lines of [`crate::wire`].
//!
//! Threads: the main thread samples at the requested interval and writes snapshots. The `listener` reads requests,
//! answers them immediately and ends the process when the controller is gone. The `nvml` worker makes the NVML calls,
//! which may hang. A fourth thread looks up user names once a uid is unknown, and a fifth waits for Xid events if the
//! driver supports them. The main thread hands all other work that may block to a `blocking::BlockingPool`. An
//! examination of a process has threads that exist for as long as it takes.

mod answer_slot;
mod blocking;
mod decimal;
mod examine;
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
mod ras;
mod sampler;
mod service;
mod user_names;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use examine::fuzz_flight_recorder;
#[cfg(test)]
pub(crate) use examine::recorded_examination;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use ras::fuzz as fuzz_ras;
pub use service::run;
