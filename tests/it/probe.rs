//! The probe binary on the fake driver.

mod process;
mod readings;
mod service;
mod states;
