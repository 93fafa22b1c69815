//! From a plan to `OUT_DIR/probes.rs`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use miniz_oxide::deflate::compress_to_vec;
use sha2::{Digest, Sha256};

use crate::nested::{self, Failure, Linker};
use crate::plan::{Arch, Plan};
use crate::stubs;
use crate::toolchain::{Toolchain, variable};

/// What makes a new probe. The nested Cargo looks closer; nothing here may name a file of the controller.
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

/// miniz's slowest and smallest.
const COMPRESSION_LEVEL: u8 = 10;

/// The probe of one architecture, or why there is none.
struct ProbeBuild {
    arch: Arch,
    result: Result<PathBuf, String>,
}

pub(crate) fn run() -> Result<(), String> {
    for input in INPUTS {
        println!("cargo::rerun-if-changed={input}");
    }
    let out = PathBuf::from(variable("OUT_DIR")?);
    let plan = Plan::from_environment();
    if let Some(reason) = plan.skip {
        let skipped = Arch::ALL.map(|arch| ProbeBuild { arch, result: Err(reason.to_owned()) });
        return write_source(&out, &skipped);
    }
    if let Some((arch, path)) = plan.prebuilt.iter().find(|(_, path)| !path.is_file()) {
        return Err(format!("{} names {}, which is not a file", arch.variable(), path.display()));
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
        "gpufleet could not build the probe that it runs on x86_64 Linux servers: {reason}\n\
         GPUFLEET_ALLOW_NO_PROBE=1 builds a gpufleet without it, which then shows only what nvidia-smi tells; \
         {}=FILE embeds a prebuilt one.",
        Arch::X86_64.variable()
    )
}

/// Builds the probes that were not given: all at once where possible, each alone when that fails.
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
    // A target directory of its own: Cargo holds the outer one locked while this script runs.
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
                let reason = format!("the probe calls {}, not listed in build/symbols.txt", names.join(", "));
                build_with_host_linker(&toolchain, arch, &target, &reason)
            }
        };
        builds.push(ProbeBuild { arch, result });
    }
    Ok(builds)
}

/// Where the nested build works. `cargo clippy` and `cargo build` run this script twice, with an `OUT_DIR` each; beside
/// both of them in `build/` one nested build serves the two.
fn work_directory(out: &Path) -> PathBuf {
    let build = out.ancestors().take(4).find(|directory| directory.file_name().is_some_and(|name| name == "build"));
    build.unwrap_or(out).join("gpufleet-probe-nested")
}

/// The second way, for the builder's own architecture: the result needs this machine's glibc or a newer one.
fn build_with_host_linker(toolchain: &Toolchain, arch: Arch, target: &Path, reason: &str) -> Result<PathBuf, String> {
    if !toolchain.is_host(arch) {
        return Err(reason.to_owned());
    }
    println!(
        "cargo::warning={reason}: the {} probe is linked by this machine's linker, and will need a glibc as new as \
         this machine's",
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

/// A prebuilt file may be anything: it has to be a 64-bit ELF program of its architecture.
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
