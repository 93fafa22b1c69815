//! What to embed: read from the environment, decided in one place.

use std::env;
use std::path::PathBuf;

/// A processor architecture that a GPU server may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    pub(crate) const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// The word that `uname -m` prints there, which is also rustc's.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    pub(crate) fn target(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-gnu",
            Self::Aarch64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// The variable that names a prebuilt probe.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Self::X86_64 => "GPUFLEET_PROBE_X86_64",
            Self::Aarch64 => "GPUFLEET_PROBE_AARCH64",
        }
    }

    /// `e_machine` of an ELF file: EM_X86_64 or EM_AARCH64 of elf.h.
    pub(crate) fn elf_machine(self) -> u16 {
        match self {
            Self::X86_64 => 62,
            Self::Aarch64 => 183,
        }
    }
}

/// What the person who builds asked for.
pub(crate) struct Plan {
    /// Why nothing at all is embedded.
    pub(crate) skip: Option<&'static str>,
    /// Prebuilt files, by architecture.
    pub(crate) prebuilt: Vec<(Arch, PathBuf)>,
    /// Go on where no x86_64 probe can be had.
    pub(crate) allow_none: bool,
}

impl Plan {
    /// Reads the variables, and tells Cargo to run the script again when one of them changes.
    pub(crate) fn from_environment() -> Self {
        for name in ["GPUFLEET_SKIP_PROBES", "GPUFLEET_ALLOW_NO_PROBE"].into_iter().chain(Arch::ALL.map(Arch::variable))
        {
            println!("cargo::rerun-if-env-changed={name}");
        }
        let set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0");
        let skip = if set("DOCS_RS") {
            Some("built for docs.rs")
        } else if set("GPUFLEET_SKIP_PROBES") {
            Some("built with GPUFLEET_SKIP_PROBES")
        } else {
            None
        };
        let prebuilt = Arch::ALL
            .into_iter()
            .filter_map(|arch| Some((arch, env::var_os(arch.variable()).filter(|value| !value.is_empty())?)))
            .map(|(arch, value)| (arch, PathBuf::from(value)))
            .collect();
        Self { skip, prebuilt, allow_none: set("GPUFLEET_ALLOW_NO_PROBE") }
    }
}
