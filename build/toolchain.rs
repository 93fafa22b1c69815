//! What the Rust installation that builds us offers: its compiler, its own linker, the targets it has a std for.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::plan::Arch;

pub(crate) struct Toolchain {
    pub(crate) rustc: PathBuf,
    /// The target triple of the machine that builds.
    pub(crate) host: String,
    /// `rust-lld` as rustup ships it. Packages of Linux distributions may leave it out.
    pub(crate) lld: Option<PathBuf>,
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

    /// Whether this installation has a std for the architecture's Linux target: `rustup target add` brings it.
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

    /// Whether this machine's own C toolchain links programs for the architecture's Linux target.
    pub(crate) fn is_host(&self, arch: Arch) -> bool {
        self.host == arch.target()
    }
}

/// A variable that Cargo always sets for a build script.
pub(crate) fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|error| format!("the build script needs {name} from Cargo: {error}"))
}

/// Runs a command to its end; its whole standard error is in the message when it fails.
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
