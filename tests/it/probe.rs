//! The probe binary on the fake driver.

mod beside;
mod garbage;
mod host;
mod policy;
mod process;
mod readings;
mod real_gpu;
mod sensors;
mod service;
mod states;
mod users;
mod xids;
