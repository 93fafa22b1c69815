//! gpufleet watches the GPU servers of a small lab from one terminal, over plain SSH.
//!
//! Readings flow in one direction. The probe on a server samples NVML and `/proc` (`probe`) and writes lines of JSON
//! (`wire`). The controller reads them over SSH (`ssh`, `collect`), merges them into one state (`fleet`),
//! evaluates the rules (`diagnosis`) and shows the result (`app`, `ui`, `output`).
//!
//! # Layers
//! A module imports only from the layers below its own:
//!
//! ```text
//! main, cli, ui
//! app, output
//! diagnosis, collect, sim, store
//! fleet, ssh, probe
//! wire, config
//! ```
//!
//! `probe` depends on `wire` alone. `ssh` depends on `config`, `wire::safe_text` and `wire::format`. `config` uses
//! `wire::safe_text` for text that is displayed.
//!
//! # Invariants
//! - `wire`, `config`, `fleet`, `diagnosis` and `app` use no tokio, no russh and no terminal; `app` names only the key
//!   types of crossterm. `ui` performs no IO.
//! - Time is an argument (`fleet::Moment`). Only the event loop and the host tasks hold a `fleet::Clock`.
//! - The state has one owner, one closed event type and bounded channels. An update returns effects as data.
//! - Unknown values are never 0: every reading is optional, and errors are stored beside the readings.
//! - Text from a remote is `wire::SafeText` before it reaches a screen, a log or an export.

pub mod wire;

#[cfg(all(feature = "probe", target_os = "linux"))]
pub mod probe;

#[cfg(feature = "controller")]
pub mod app;
#[cfg(feature = "controller")]
pub mod cli;
#[cfg(feature = "controller")]
pub mod collect;
#[cfg(feature = "controller")]
pub mod config;
#[cfg(test)]
mod counted_memory;
#[cfg(feature = "controller")]
pub mod diagnosis;
#[cfg(feature = "controller")]
pub mod fleet;
#[doc(hidden)]
#[cfg(any(all(test, feature = "controller"), feature = "fuzzing"))]
pub mod fuzzing;
#[cfg(feature = "controller")]
pub mod output;
#[cfg(feature = "controller")]
pub mod share;
#[cfg(feature = "controller")]
pub mod sim;
#[cfg(feature = "controller")]
pub mod ssh;
#[cfg(feature = "controller")]
pub mod store;
#[cfg(feature = "controller")]
pub mod ui;
