//! The nested build: a second Cargo run that builds only the probe.
//!
//! One run builds the probe for all architectures, so that they share the job slots and the procedural macros.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::STUBS_VARIABLE;
use crate::environment::{Arch, variable};

/// Why a nested build failed.
pub(crate) enum Failure {
    /// The probe uses symbols that no stub defines.
    UndefinedSymbols(Vec<String>),
    /// The output of Cargo.
    Other(String),
}

/// The linker of the nested build.
pub(crate) enum Linker<'a> {
    /// `rust-lld` with the stubs in this directory.
    Stubs { lld: &'a Path, stubs: &'a Path },
    /// The default linker of this machine.
    Host,
}

/// Builds the probe for these architectures. Returns the files in the same order.
pub(crate) fn build(archs: &[Arch], linker: &Linker, target_directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    // The outer build has usually downloaded all dependencies. Offline, nothing can change between the two builds.
    let output = match run_cargo(archs, linker, target_directory, true) {
        Err(Failure::Other(text)) if text.contains("offline") && !outer_build_is_offline() => {
            run_cargo(archs, linker, target_directory, false)
        }
        output => output,
    };
    output.map(|()| {
        let file = |arch: &Arch| target_directory.join(arch.target()).join("probe/gpufleet-probe");
        archs.iter().map(file).collect()
    })
}

fn run_cargo(archs: &[Arch], linker: &Linker, target_directory: &Path, offline: bool) -> Result<(), Failure> {
    let mut cargo = command(archs, linker, target_directory).map_err(Failure::Other)?;
    if offline {
        cargo.arg("--offline");
    }
    let output = cargo.output().map_err(|error| Failure::Other(format!("cannot run Cargo: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let undefined = undefined_symbols(&text);
    if undefined.is_empty() { Err(Failure::Other(text)) } else { Err(Failure::UndefinedSymbols(undefined)) }
}

fn command(archs: &[Arch], linker: &Linker, target_directory: &Path) -> Result<Command, String> {
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let mut cargo = Command::new(variable("CARGO")?);
    cargo.args(["build", "--bin", "gpufleet-probe", "--no-default-features", "--features", "probe"]);
    cargo.args(["--profile", "probe", "--quiet", "--color", "never", "--target-dir"]).arg(target_directory);
    cargo.arg("--manifest-path").arg(manifest.join("Cargo.toml"));
    for arch in archs {
        cargo.args(["--target", arch.target()]);
    }
    // The source directory may be read-only, and `--locked` uses the versions that were tested.
    if manifest.join("Cargo.lock").is_file() {
        cargo.arg("--locked");
    }
    for (name, _) in env::vars_os().filter(|(name, _)| !is_inherited(name)) {
        cargo.env_remove(name);
    }
    if let Some(wrapper) = env::var_os("RUSTC_WRAPPER").filter(|wrapper| !is_rust_analyzer(wrapper)) {
        cargo.env("RUSTC_WRAPPER", wrapper);
    }
    cargo.env("RUSTC", variable("RUSTC")?);
    // The user's configuration may move intermediate files to a directory that the outer build has locked.
    cargo.env("CARGO_BUILD_BUILD_DIR", target_directory);

    // Panic messages contain source paths: remove the prefixes of this machine.
    let mut flags = vec![format!("--remap-path-prefix={}=gpufleet", manifest.display())];
    let home = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cargo")));
    if let Some(home) = home {
        flags.push(format!("--remap-path-prefix={}=registry", home.join("registry/src").display()));
    }
    // The probe hashes one file, itself: 2 ms in the small implementation for processors without instructions for SHA-256.
    flags.push("--cfg=sha2_backend_soft=\"compact\"".to_owned());
    // Moves equal sequences of instructions into functions. LLVM does this by default for aarch64; for x86_64 it saves 9 kB.
    flags.push("-Cllvm-args=-enable-machine-outliner=always".to_owned());
    // LLVM's threshold for size is 5; with 2 the program is 0.7 kB smaller.
    flags.push("-Cllvm-args=-inline-threshold=2".to_owned());
    match linker {
        Linker::Stubs { lld, stubs } => {
            // Set by a flag: Cargo's `linker` setting would also apply to the build scripts of dependencies.
            flags.push(format!("-Clinker={}", lld.display()));
            flags.push("-Clinker-flavor=ld.lld".to_owned());
            flags.push("-Cforce-unwind-tables=no".to_owned());
            cargo.env(STUBS_VARIABLE, stubs);
        }
        Linker::Host => {
            cargo.env(STUBS_VARIABLE, "");
        }
    }
    // Always set, even if empty, because it overrides flags in the user's configuration.
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    Ok(cargo)
}

/// Whether the nested build inherits a variable. The variables of Cargo and rustc describe the outer build (features,
/// flags, wrappers, profile) and would change the nested one; network settings and the choice of the toolchain apply to
/// both.
fn is_inherited(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let inherited = ["CARGO_HOME", "CARGO_MAKEFLAGS", "CARGO_BUILD_JOBS"];
    let inherited_prefixes = ["CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTRIES_", "CARGO_REGISTRY_", "RUSTUP_"];
    if inherited.contains(&name.as_ref()) || inherited_prefixes.iter().any(|prefix| name.starts_with(prefix)) {
        return true;
    }
    let build_script = ["TARGET", "HOST", "OUT_DIR", "PROFILE", "OPT_LEVEL", "DEBUG", "NUM_JOBS"];
    !(name.starts_with("CARGO") || name.starts_with("RUST") || build_script.contains(&name.as_ref()))
}

/// Whether this is the wrapper of rust-analyzer, which compiles nothing.
fn is_rust_analyzer(wrapper: &OsStr) -> bool {
    wrapper.to_string_lossy().contains("rust-analyzer")
}

/// Cargo passes a configured `offline` on in a variable, but not its own `--offline`; read its command line if
/// possible.
fn outer_build_is_offline() -> bool {
    if env::var("CARGO_NET_OFFLINE").is_ok_and(|value| value == "true") {
        return true;
    }
    #[cfg(unix)]
    let parent = std::fs::read(format!("/proc/{}/cmdline", std::os::unix::process::parent_id())).unwrap_or_default();
    #[cfg(not(unix))]
    let parent = Vec::new();
    parent.split(|byte| *byte == 0).any(|word| word == b"--offline" || word == b"--frozen")
}

/// Parses the names in lld's `error: undefined symbol: NAME` lines.
fn undefined_symbols(text: &str) -> Vec<String> {
    let mut names: Vec<String> = text
        .lines()
        .filter_map(|line| line.split_once("undefined symbol: "))
        .map(|(_, name)| name.trim().to_owned())
        .collect();
    names.sort();
    names.dedup();
    names
}
