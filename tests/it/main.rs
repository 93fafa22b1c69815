//! Whole-program tests, one binary: each further file under `tests/` would link everything again.

mod fake_driver;
mod journeys;
mod probe;
mod ssh;
mod sshd;
mod status;
