//! Builds or collects the probes, compresses and hashes them, and writes `OUT_DIR/probes.rs`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use miniz_oxide::deflate::compress_to_vec;
use sha2::{Digest, Sha256};

use crate::environment::{Arch, Plan, Toolchain, rustc_version, variable};
use crate::nested::{self, Failure, Linker};
use crate::stubs;

/// Files whose change rebuilds the probe. The nested Cargo checks more precisely. No file of the controller may be
/// listed.
const INPUTS: [&str; 8] = [
    "build.rs",
    "build",
    "Cargo.toml",
    "Cargo.lock",
    "src/lib.rs",
    "src/bin/gpufleet-probe.rs",
    "src/probe",
    "src/wire",
];

/// The slowest and smallest level of `miniz_oxide`.
const COMPRESSION_LEVEL: u8 = 10;

/// The probe of one architecture, or the reason why there is no probe.
struct ProbeBuild {
    arch: Arch,
    result: Result<PathBuf, String>,
}

pub(crate) fn run() -> Result<(), String> {
    for input in INPUTS {
        println!("cargo::rerun-if-changed={input}");
    }
    // A build gives the same probe only with the same compiler, so `gpufleet --version` names it.
    println!("cargo::rustc-env=GPUFLEET_RUSTC={}", rustc_version()?);
    let out = PathBuf::from(variable("OUT_DIR")?);
    let plan = Plan::from_environment();
    if let Some(reason) = plan.skip {
        let skipped = Arch::ALL.map(|arch| ProbeBuild { arch, result: Err(reason.to_owned()) });
        return write_source(&out, &skipped);
    }
    if let Some((arch, path)) = plan.prebuilt.iter().find(|(_, path)| !path.is_file()) {
        return Err(format!("{}={}: not a file", arch.variable(), path.display()));
    }
    let mut builds: Vec<ProbeBuild> =
        plan.prebuilt.iter().map(|(arch, path)| ProbeBuild { arch: *arch, result: Ok(path.clone()) }).collect();
    let missing: Vec<Arch> =
        Arch::ALL.into_iter().filter(|arch| builds.iter().all(|build| build.arch != *arch)).collect();
    if !missing.is_empty() {
        builds.extend(build(&missing, &out)?);
    }
    builds.sort_by_key(|build| build.arch.name() != "x86_64");
    for ProbeBuild { arch, result } in &builds {
        match result {
            Err(reason) if *arch == Arch::X86_64 && !plan.allow_none => return Err(no_probe_error(reason)),
            Err(reason) => {
                for line in format!("no probe for {} servers: {reason}", arch.name()).lines() {
                    println!("cargo::warning={line}");
                }
            }
            Ok(path) => {
                if plan.prebuilt.iter().any(|(prebuilt, _)| prebuilt == arch) {
                    println!("cargo::rerun-if-changed={}", path.display());
                }
            }
        }
    }
    write_source(&out, &builds)
}

fn no_probe_error(reason: &str) -> String {
    format!(
        "cannot build the probe for x86_64 Linux servers: {reason}\n\
         Set {}=FILE to embed a prebuilt probe, or GPUFLEET_ALLOW_NO_PROBE=1 to build gpufleet without it: hosts then \
         show only the values of nvidia-smi.",
        Arch::X86_64.variable()
    )
}

/// Builds probes: all in one Cargo run, or each alone if that fails.
fn build(archs: &[Arch], out: &Path) -> Result<Vec<ProbeBuild>, String> {
    let toolchain = Toolchain::from_environment()?;
    let (available, unavailable): (Vec<Arch>, Vec<Arch>) = archs.iter().partition(|arch| toolchain.has_std(**arch));
    let mut builds: Vec<ProbeBuild> = unavailable
        .into_iter()
        .map(|arch| ProbeBuild {
            arch,
            result: Err(format!("run `rustup target add {}`, then build again", arch.target())),
        })
        .collect();
    if available.is_empty() {
        return Ok(builds);
    }
    let work = work_directory(out);
    // Use another target directory: Cargo holds the lock of the outer one while this script runs.
    let target = work.join("target");
    let Some(lld) = &toolchain.lld else {
        let reason = "this Rust installation has no rust-lld";
        builds.extend(
            available
                .into_iter()
                .map(|arch| ProbeBuild { arch, result: build_with_host_linker(&toolchain, arch, &target, reason) }),
        );
        return Ok(builds);
    };
    let stubs = stubs::create(&toolchain, lld, &available, &work)?;
    let linker = Linker::Stubs { lld, stubs: &stubs };
    if let Ok(paths) = nested::build(&available, &linker, &target) {
        builds.extend(available.into_iter().zip(paths).map(|(arch, path)| ProbeBuild { arch, result: Ok(path) }));
        return Ok(builds);
    }
    for arch in available {
        let result = match nested::build(&[arch], &linker, &target) {
            Ok(mut paths) => paths.pop().ok_or_else(|| "Cargo built nothing".to_owned()),
            Err(Failure::Other(text)) => Err(format!("the nested build failed:\n{text}")),
            Err(Failure::UndefinedSymbols(names)) => {
                let reason =
                    format!("the probe uses symbols that build/symbols.txt does not list: {}", names.join(", "));
                build_with_host_linker(&toolchain, arch, &target, &reason)
            }
        };
        builds.push(ProbeBuild { arch, result });
    }
    Ok(builds)
}

/// Directory of the nested build. `cargo clippy` and `cargo build` run this script twice with different values of
/// `OUT_DIR`; a directory beside both in `build/` lets them share one nested build.
fn work_directory(out: &Path) -> PathBuf {
    let build = out.ancestors().take(4).find(|directory| directory.file_name().is_some_and(|name| name == "build"));
    build.unwrap_or(out).join("gpufleet-probe-nested")
}

/// Builds with the host's linker, for the host's own architecture. The result needs the glibc of this machine or newer.
fn build_with_host_linker(toolchain: &Toolchain, arch: Arch, target: &Path, reason: &str) -> Result<PathBuf, String> {
    if !toolchain.is_host(arch) {
        return Err(reason.to_owned());
    }
    println!(
        "cargo::warning={reason}: the linker of this machine links the {} probe, which needs the glibc of this machine or \
         newer",
        arch.name()
    );
    match nested::build(&[arch], &Linker::Host, &target.with_extension("host")) {
        Ok(mut paths) => paths.pop().ok_or_else(|| "Cargo built nothing".to_owned()),
        Err(Failure::UndefinedSymbols(names)) => Err(format!("{reason}; undefined: {}", names.join(", "))),
        Err(Failure::Other(text)) => Err(format!("{reason}; the nested build failed:\n{text}")),
    }
}

/// Writes the compressed probes and the Rust source that `src/collect/probe_binary.rs` includes.
fn write_source(out: &Path, builds: &[ProbeBuild]) -> Result<(), String> {
    let mut embedded = String::new();
    let mut missing = String::new();
    for ProbeBuild { arch, result } in builds {
        let name = arch.name();
        match result {
            Ok(path) => {
                let raw = fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
                check_elf(*arch, path, &raw)?;
                let file = format!("probe-{name}.deflate");
                write(&out.join(&file), &compress_to_vec(&raw, COMPRESSION_LEVEL))?;
                let hash = hex(&Sha256::digest(&raw));
                let _ = writeln!(
                    embedded,
                    "    EmbeddedProbe {{\n        arch: {name:?},\n        size_bytes: {},\n        sha256: {hash:?},\n        \
                     compressed: include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{file}\")),\n    }},",
                    raw.len()
                );
            }
            Err(reason) => {
                let first = reason.lines().next().unwrap_or_default().trim_end_matches(':');
                let _ = writeln!(missing, "    ({name:?}, {first:?}),");
            }
        }
    }
    let source = format!(
        "#[allow(clippy::unreadable_literal)]\nconst EMBEDDED: &[EmbeddedProbe] = &[\n{embedded}];\n\n\
         /// Architecture and reason.\nconst MISSING: &[(&str, &str)] = &[\n{missing}];\n"
    );
    write(&out.join("probes.rs"), source.as_bytes())
}

/// Checks that a prebuilt file is a 64-bit ELF program of its architecture.
fn check_elf(arch: Arch, path: &Path, raw: &[u8]) -> Result<(), String> {
    let machine = raw.get(18..20).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    if raw.starts_with(b"\x7fELF\x02\x01") && machine == Some(arch.elf_machine()) {
        return Ok(());
    }
    Err(format!("{} is not an ELF program for {} (see {})", path.display(), arch.name(), arch.variable()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn write(path: &Path, content: &[u8]) -> Result<(), String> {
    fs::write(path, content).map_err(|error| format!("cannot write {}: {error}", path.display()))
}
