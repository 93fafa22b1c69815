//! The simulated fleet of `--demo`: wire messages computed from a seed and the time, in this process.
//!
//! Every value is a function of the seed and the time, so values agree with each other and over time. `scenario` says who
//! runs what and which faults occur, so that each rule of diagnosis has something to find within two hours of simulated
//! time. `host_plan` applies it to a host, `workload` models the use of GPUs, `snapshot` makes wire messages, and
//! `simulated_fleet` serves them on streams.

mod fault;
mod host_plan;
mod job_processes;
mod rng;
mod scenario;
mod simulated_fleet;
mod snapshot;
mod workload;

pub use simulated_fleet::{SimulatedFleet, SimulatedProbe};
