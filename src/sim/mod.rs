//! The simulated fleet: wire messages from scenarios, in process.
//!
//! Everything is a function of a seed and the moment (`snapshot` and `host_sample`, on top of `host_plan`, `gpu_slot` and `load`), so that
//! figures agree with each other and with those before; `probe` makes messages of it and `transport` puts them on a stream. `host_templates` is the story: who
//! sits where, and what affects whom when (`job_fault` for jobs, `host_fault` for hosts), so that each rule of diagnosis has
//! something to find within two hours.

mod gpu_slot;
mod host_fault;
mod host_plan;
mod host_sample;
mod host_templates;
mod inventory;
mod job_fault;
mod job_processes;
mod load;
mod people;
mod probe;
mod rng;
mod snapshot;
mod transport;
mod workload;

pub use probe::SimulatedProbe;
pub use transport::SimulatedFleet;
