//! Reads a host through `nvidia-smi`, over the same channel and with the same protocol as the probe.
//!
//! `adapter` translates between the remote script (`scripts/nvidia_smi.sh`) and the session. `output` converts what
//! `nvidia-smi`, `/proc` and `ps` print to wire types, with the parsers of single lines in `lines`, and `fields` chooses
//! the fields that the installed version knows.

mod adapter;
mod fields;
mod lines;
mod output;

pub(super) use adapter::adapt;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use output::fuzz;
