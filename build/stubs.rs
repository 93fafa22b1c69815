//! The files that the probe is linked with: stub shared libraries and a start object.
//!
//! A linker needs only the name of a shared library, its symbols and their versions. This module generates stub
//! libraries from the list in `build/symbols.txt`: one object of empty symbols and, for each library, a version script
//! that assigns versions of glibc 2.17 or older. A program linked with them runs on every later glibc, like one linked
//! on CentOS 7. `build/start/*.s` contains the code that is not in a shared library. rustc assembles both with LLVM's
//! assembler and `rust-lld` links them, so that no C compiler is needed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::environment::{Arch, Toolchain, run};

const SYMBOLS: &str = include_str!("symbols.txt");

/// Libraries that rustc passes to the linker because std and the libc crate need them, with the file behind `-lNAME`.
/// Those without a soname are empty archives, since the probe uses nothing of them.
const LIBRARIES: [(&str, Option<&str>); 7] = [
    ("c", Some("libc.so.6")),
    ("pthread", Some("libpthread.so.0")),
    ("dl", Some("libdl.so.2")),
    ("gcc_s", None),
    ("m", None),
    ("rt", None),
    ("util", None),
];

/// The probe aborts on panic and never unwinds its stack. The unwind tables are an eighth of it.
const DISCARD_UNWIND_TABLES: &str = "SECTIONS { /DISCARD/ : { *(.eh_frame .eh_frame_hdr .gcc_except_table .gcc_except_table.*) } } INSERT AFTER .text;\n";

/// Creates a directory with one directory per architecture: `start.o`, `discard.ld`, `libc.so` and the other libraries.
///
/// Its name contains a hash of the sources. It is created only once, and a change gives the nested build another link
/// argument, without which Cargo would not link again.
pub(crate) fn create(toolchain: &Toolchain, lld: &Path, archs: &[Arch], parent: &Path) -> Result<PathBuf, String> {
    let symbols = parse(SYMBOLS)?;
    let mut hash = Sha256::new();
    hash.update(include_str!("stubs.rs"));
    hash.update(SYMBOLS);
    for arch in Arch::ALL {
        hash.update(start_source(arch));
    }
    let hash: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let stubs = parent.join(format!("stubs-{hash}"));
    for arch in archs {
        let directory = stubs.join(arch.name());
        let complete = directory.join("complete");
        if !complete.exists() {
            fs::create_dir_all(&directory)
                .map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
            create_for_arch(toolchain, lld, *arch, &symbols, &directory)?;
            write(&complete, "")?;
        }
    }
    Ok(stubs)
}

fn create_for_arch(
    toolchain: &Toolchain,
    lld: &Path,
    arch: Arch,
    symbols: &[Symbol],
    directory: &Path,
) -> Result<(), String> {
    assemble(toolchain, arch, start_source(arch), &directory.join("start.o"))?;
    write(&directory.join("discard.ld"), DISCARD_UNWIND_TABLES)?;
    let empty = directory.join("empty.o");
    assemble(toolchain, arch, &empty_symbols(symbols), &empty)?;
    for (name, soname) in LIBRARIES {
        match soname {
            Some(soname) => {
                let script = directory.join(format!("{soname}.map"));
                write(&script, &version_script(symbols, soname, arch))?;
                let mut link = Command::new(lld);
                link.args(["-flavor", "gnu", "-shared", "-soname", soname, "--version-script"]).arg(&script);
                link.arg(&empty).arg("-o").arg(directory.join(format!("lib{name}.so")));
                run(&mut link, &format!("make a stub of {soname}"))?;
            }
            None => write(&directory.join(format!("lib{name}.a")), "!<arch>\n")?,
        }
    }
    Ok(())
}

fn start_source(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => include_str!("start/x86_64.s"),
        Arch::Aarch64 => include_str!("start/aarch64.s"),
    }
}

/// A symbol in `build/symbols.txt`.
struct Symbol<'a> {
    library: &'a str,
    /// Symbol version on x86_64, without `GLIBC_`.
    version: &'a str,
    name: &'a str,
    is_data: bool,
}

fn parse(text: &str) -> Result<Vec<Symbol<'_>>, String> {
    let mut symbols = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut fields = line.split_whitespace();
        let (Some(library), Some(version)) = (fields.next(), fields.next()) else {
            return Err(format!("build/symbols.txt:{number}: expected LIBRARY VERSION NAME..., found {line:?}"));
        };
        if !LIBRARIES.iter().any(|(_, soname)| *soname == Some(library)) {
            return Err(format!("build/symbols.txt:{number}: {library} is not a library of build/stubs.rs"));
        }
        symbols.extend(fields.map(|field| match field.strip_suffix(":data") {
            Some(name) => Symbol { library, version, name, is_data: true },
            None => Symbol { library, version, name: field, is_data: false },
        }));
    }
    Ok(symbols)
}

/// Returns an object source that defines all names; the version script of each library exports its own.
fn empty_symbols(symbols: &[Symbol]) -> String {
    let mut source = String::new();
    for symbol in symbols {
        let kind = if symbol.is_data { "%object" } else { "%function" };
        let _ = writeln!(source, ".globl {0}\n.type {0}, {kind}\n{0}:", symbol.name);
    }
    // One pointer, so that the symbols have an address.
    source + ".quad 0\n"
}

fn version_script(symbols: &[Symbol], soname: &str, arch: Arch) -> String {
    let mut by_version: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for symbol in symbols.iter().filter(|symbol| symbol.library == soname) {
        let version = match arch {
            Arch::X86_64 => symbol.version,
            Arch::Aarch64 => "2.17",
        };
        by_version.entry(version).or_default().push(symbol.name);
    }
    let mut script = String::new();
    for (version, names) in by_version {
        let _ = writeln!(script, "GLIBC_{version} {{ global: {}; }};", names.join("; "));
    }
    script + "GPUFLEET_HIDDEN { local: *; };\n"
}

/// Assembles a source file, as a Rust library with only `global_asm!`.
fn assemble(toolchain: &Toolchain, arch: Arch, assembly: &str, object: &Path) -> Result<(), String> {
    let text = object.with_extension("s");
    write(&text, assembly)?;
    let source: PathBuf = object.with_extension("rs");
    let included = text.file_name().unwrap_or_default().display();
    write(&source, &format!("#![no_std]\ncore::arch::global_asm!(include_str!(\"{included}\"));\n"))?;
    let mut rustc = Command::new(&toolchain.rustc);
    rustc.args(["--edition", "2024", "--crate-name", "stub", "--crate-type", "lib", "--emit", "obj"]);
    rustc.args(["-C", "panic=abort", "--target", arch.target(), "-o"]).arg(object).arg(&source);
    run(&mut rustc, &format!("assemble {}", text.display())).map(|_| ())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}
