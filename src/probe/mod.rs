//! Runs on the GPU server: samples NVML and /proc and writes what it finds as lines of [`crate::wire`].
//!
//! Three threads. The main one samples at its pace and writes snapshots; one reads requests, answers them at once and
//! ends the process when the controller is gone; one makes the NVML calls, since any of them may hang. A fourth asks
//! the name service for users, from the first unknown uid on, and a fifth waits for Xids where the driver tells them. The
//! main one hands everything else that may block to a [`blocking::BlockingPool`].

mod ask;
mod blocking;
mod control;
mod facts;
mod hello;
mod listener;
#[cfg(panic = "abort")]
mod no_backtrace;
mod numbers;
mod nvml;
mod options;
mod output;
mod outside;
mod owner;
mod pace;
mod policy;
mod pretty;
mod processes;
mod procfs;
mod sampler;
mod scope;
mod service;
mod signal;
mod users;

pub use service::run;
