//! The simulated fleet: wire messages from scenarios, in process.
//!
//! Everything is a function of a seed and the moment (`scenario` and `view`, on top of `plan`, `seat` and `load`), so that
//! figures agree with each other and with those before; `speaker` makes messages of it and `transport` puts them on a stream. `lab` is the story: who
//! sits where, and what befalls whom when (`fate` for jobs, `incident` for hosts), so that each rule of diagnosis has
//! something to find within two hours.

mod cast;
mod dice;
mod fate;
mod incident;
mod inventory;
mod jobs;
mod lab;
mod load;
mod plan;
mod scenario;
mod seat;
mod speaker;
mod transport;
mod view;
mod work;

pub use speaker::Speaker;
pub use transport::Demo;
