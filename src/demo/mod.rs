//! The simulated fleet: wire messages from scenarios, in process.
//!
//! Everything is a function of a seed and the moment (`scenario`, on top of `plan`, `seat` and `load`), so that figures
//! agree with each other and with those before; `transport` only puts them on a stream.

mod cast;
mod dice;
mod jobs;
mod load;
mod plan;
mod scenario;
mod seat;
mod transport;

pub use transport::Demo;
