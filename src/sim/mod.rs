//! The simulator of GPU servers, for `--demo`, the labelled cases of diagnosis and tests.
//!
//! A script says which jobs run on a host and what happens to it (`script`). `host` keeps its state and advances it from one
//! time to the next: `gpu_model` models the use of GPUs, `process` the processes. `messages` makes the messages that a probe
//! on the host would send, and `examination` the answer to a request to examine a process; `builder` makes messages
//! from single values, for tests too. `demo` holds the scripts of the demo, and `simulated_fleet` serves them on streams.
//! All random numbers come from a seed.

pub mod builder;
mod demo;
mod examination;
pub mod gpu_model;
mod host;
mod messages;
mod process;
pub mod rng;
pub mod script;
mod simulated_fleet;

pub use host::{HostScript, SimulatedHost};
pub use messages::ProbeConnection;
pub use simulated_fleet::{SimulatedFleet, SimulatedProbe};
