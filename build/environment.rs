//! Reads the environment of the build: the variables that the user sets, and the Rust installation.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// CPU architecture of a GPU server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    pub(crate) const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// The name that `uname -m` prints and rustc uses.
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

    /// The variable with the path of a prebuilt probe.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Self::X86_64 => "GPUFLEET_PROBE_X86_64",
            Self::Aarch64 => "GPUFLEET_PROBE_AARCH64",
        }
    }

    /// `e_machine` of an ELF file: EM_X86_64 or EM_AARCH64 in elf.h.
    pub(crate) fn elf_machine(self) -> u16 {
        match self {
            Self::X86_64 => 62,
            Self::Aarch64 => 183,
        }
    }
}

/// The settings of the user.
pub(crate) struct Plan {
    /// Why no probe is embedded at all.
    pub(crate) skip: Option<&'static str>,
    /// Prebuilt probes.
    pub(crate) prebuilt: Vec<(Arch, PathBuf)>,
    /// Continue if there is no x86_64 probe.
    pub(crate) allow_none: bool,
}

impl Plan {
    /// Reads the variables. Cargo runs the script again if one of them changes.
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

/// The Rust installation that runs this build.
pub(crate) struct Toolchain {
    pub(crate) rustc: PathBuf,
    /// Target triple of the build machine.
    pub(crate) host: String,
    /// `rust-lld` as shipped by rustup. Packages of Linux distributions may not include it.
    pub(crate) lld: Option<PathBuf>,
}

/// Returns the line of `rustc --version`.
pub(crate) fn rustc_version() -> Result<String, String> {
    output_line(&PathBuf::from(variable("RUSTC")?), &["--version"])
}

impl Toolchain {
    pub(crate) fn from_environment() -> Result<Self, String> {
        let rustc = PathBuf::from(variable("RUSTC")?);
        let host = variable("HOST")?;
        let sysroot = output_line(&rustc, &["--print", "sysroot"])?;
        let name = if host.contains("windows") { "rust-lld.exe" } else { "rust-lld" };
        let lld = Path::new(&sysroot).join("lib/rustlib").join(&host).join("bin").join(name);
        Ok(Self { rustc, host, lld: lld.is_file().then_some(lld) })
    }

    /// Whether std is installed for the Linux target of this architecture (`rustup target add`).
    pub(crate) fn has_std(&self, arch: Arch) -> bool {
        let Ok(directory) = output_line(&self.rustc, &["--print", "target-libdir", "--target", arch.target()]) else {
            return false;
        };
        std::fs::read_dir(directory)
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| entry.file_name().to_string_lossy().starts_with("libstd-"))
    }

    /// Whether the linker of this machine links programs for the Linux target of this architecture.
    pub(crate) fn is_host(&self, arch: Arch) -> bool {
        self.host == arch.target()
    }
}

/// Returns a variable that Cargo always sets for a build script.
pub(crate) fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|error| format!("the build script needs {name} from Cargo: {error}"))
}

/// Runs a command and returns its standard output. The error contains its standard error.
pub(crate) fn run(command: &mut Command, purpose: &str) -> Result<Vec<u8>, String> {
    let program = command.get_program().display().to_string();
    let output = command.output().map_err(|error| format!("cannot {purpose}: {program}: {error}"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(format!("cannot {purpose}: {program}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

fn output_line(rustc: &Path, arguments: &[&str]) -> Result<String, String> {
    let stdout = run(Command::new(rustc).args(arguments), "ask rustc where its files are")?;
    Ok(String::from_utf8_lossy(&stdout).trim().to_owned())
}
