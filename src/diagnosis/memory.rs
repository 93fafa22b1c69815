//! What the engine wants kept on disk between two runs of the program.

use super::Severity;
use crate::wire::SafeText;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of [`Memory`]. It rises when something changes its meaning, not when a field is added.
pub const MEMORY_VERSION: u32 = 1;

/// The most processes that are remembered.
pub(super) const MAX_REMEMBERED: usize = 4096;
/// The most GPUs, and the most findings that somebody was told of.
pub(super) const MAX_ENTRIES: usize = 4096;

/// What the engine remembers between two runs of the program, as plain data. Bounded; nothing in it is secret beyond
/// what a screen shows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// [`MEMORY_VERSION`].
    pub version: u32,
    /// When it was taken, in seconds since 1970.
    pub saved_unix_seconds: f64,
    /// Learned context-idle power in watts, by GPU.
    pub idle_watts: BTreeMap<SafeText, f32>,
    /// Findings that somebody was told of, by fingerprint.
    pub told: BTreeMap<SafeText, Severity>,
    /// The processes that were on GPUs.
    pub processes: Vec<RememberedProcess>,
}

/// A process that was on a GPU when the memory was taken.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RememberedProcess {
    /// Its host's name.
    pub host: SafeText,
    /// The host's boot id.
    pub boot_id: Option<SafeText>,
    /// Process id.
    pub pid: u32,
    /// Start time in ticks after boot.
    pub start_ticks: Option<u64>,
    /// When it was last seen, in seconds since 1970.
    pub seen_unix_seconds: f64,
    /// When it last did anything, as far as is known, in seconds since 1970; `None` while it works.
    pub idle_since_unix_seconds: Option<f64>,
    /// CPU time that it had used when it was last seen.
    pub cpu_seconds: Option<f64>,
    /// What it is called, whose it is, its pid.
    pub label: SafeText,
    /// Whose it is.
    pub user: SafeText,
    /// It belongs to the login user.
    pub is_mine: bool,
    /// Its age when it was last seen, in seconds.
    pub age_seconds: Option<f64>,
    /// Memory that it held on its GPUs.
    pub memory_bytes: u64,
    /// Since when it held it, in seconds since 1970.
    pub held_since_unix_seconds: Option<f64>,
    /// Positions of its GPUs.
    pub gpus: Vec<u16>,
    /// Its log.
    pub log_path: Option<SafeText>,
}

impl Memory {
    /// Reads what an earlier run has kept.
    ///
    /// # Errors
    /// A sentence for a person when the text is no memory, or of another version: it is to be kept aside, and begun anew.
    pub fn parse(text: &str) -> Result<Self, String> {
        let memory: Self =
            serde_json::from_str(text).map_err(|error| format!("not a memory of gpufleet's diagnosis: {error}"))?;
        if memory.version != MEMORY_VERSION {
            return Err(format!(
                "a memory of version {}, this gpufleet reads version {MEMORY_VERSION}",
                memory.version
            ));
        }
        Ok(memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_round_trips_and_others_are_refused() {
        let mut memory = Memory { version: MEMORY_VERSION, saved_unix_seconds: 1.7e9, ..Memory::default() };
        memory.idle_watts.insert("GPU-0".into(), 122.5);
        memory.told.insert("stuck-spin/hgx-01/slurm:3385".into(), Severity::Crit);
        memory.processes.push(RememberedProcess { pid: 7, host: "hgx-01".into(), ..RememberedProcess::default() });
        let text = serde_json::to_string(&memory).expect("encodes");
        assert_eq!(Memory::parse(&text), Ok(memory));
        assert_eq!(
            Memory::parse("{\"version\":9}"),
            Err("a memory of version 9, this gpufleet reads version 1".to_owned())
        );
        assert!(Memory::parse("").is_err_and(|error| error.starts_with("not a memory of gpufleet's diagnosis: ")));
        assert!(Memory::parse("{}").is_err(), "no version is another version");
    }
}
