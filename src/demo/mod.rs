//! The simulated fleet: wire messages from scenarios, in process.
