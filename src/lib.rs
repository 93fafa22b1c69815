//! gpufleet watches the GPU servers of a small lab from one terminal, over plain SSH.
//!
//! A reading enters at the bottom left and rises: the probe on a server samples NVML and /proc ([`probe`]), writes
//! lines of JSON ([`wire`]), the controller reads them over SSH ([`ssh`], [`collect`]), merges them ([`fleet`]), judges
//! them ([`diagnosis`]) and shows them ([`app`], [`ui`], [`output`]). It never turns back.
//!
//! # Floors
//! A module imports only from floors below its own, never sideways:
//!
//! ```text
//! main, cli, ui
//! app, output
//! diagnosis, collect, demo, store
//! fleet, ssh, probe
//! wire, config
//! ```
//!
//! `probe` stands on `wire` alone, `ssh` on `config`, `wire::safe_text` and `wire::format`; `config` uses `wire::safe_text` for what is shown.
//!
//! # Invariants
//! - `wire`, `config`, `fleet`, `diagnosis` and `app` know no tokio, no russh and no terminal; of crossterm `app`
//!   names the types of keys alone. `ui` knows no IO.
//! - Time is an argument ([`fleet::Moment`]); only the event loop and the host tasks hold a [`fleet::Clock`].
//! - One owner of the state, one closed event type, bounded channels; an update returns effects as data.
//! - Missing is not zero: every reading is optional, and an error has its own place beside the readings.
//! - What comes from a remote is [`wire::SafeText`] before it reaches a screen, a log or an export.

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
#[cfg(feature = "controller")]
pub mod diagnosis;
#[cfg(feature = "controller")]
pub mod fleet;
#[cfg(feature = "controller")]
pub mod output;
#[cfg(feature = "controller")]
pub mod sim;
#[cfg(feature = "controller")]
pub mod ssh;
#[cfg(feature = "controller")]
pub mod store;
#[cfg(feature = "controller")]
pub mod ui;
