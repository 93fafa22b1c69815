//! What the probe is linked against: shared libraries without content, and a start object.
//!
//! A linker needs of a shared library only its name, its symbols and their versions. So instead of an old system's
//! libraries we make our own from the list in `build/symbols.txt`: one object of empty symbols and, for each library,
//! a version script that gives the names their versions of glibc 2.17. A program linked against them runs with every
//! glibc since, as one that was linked on CentOS 7 does. `build/start/*.s` holds the little that is not in a shared
//! library. rustc assembles both, since it brings LLVM's assembler, and `rust-lld` links: no C compiler is involved.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::plan::Arch;
use crate::toolchain::{Toolchain, run};

const SYMBOLS: &str = include_str!("symbols.txt");

/// Libraries that rustc names on the linker's command line (as std and the libc crate ask for them), with the file that
/// answers to `-lNAME`. Those without a soname give the probe nothing and are empty archives.
const LIBRARIES: [(&str, Option<&str>); 7] = [
    ("c", Some("libc.so.6")),
    ("pthread", Some("libpthread.so.0")),
    ("dl", Some("libdl.so.2")),
    ("gcc_s", None),
    ("m", None),
    ("rt", None),
    ("util", None),
];

/// What nobody reads in a program that never unwinds its stack: an eighth of it.
const DISCARD_UNWIND_TABLES: &str = "SECTIONS { /DISCARD/ : { *(.eh_frame .eh_frame_hdr .gcc_except_table .gcc_except_table.*) } } INSERT AFTER .text;\n";

/// Makes a directory with a folder for each architecture to link in: `start.o`, `discard.ld`, `libc.so` and the others.
///
/// Its name carries a hash of what it was made from. So it is made once, and a change gives the nested build another
/// link argument, without which Cargo would not link again.
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

/// One symbol of the list.
struct Symbol<'a> {
    library: &'a str,
    /// On x86_64, without the `GLIBC_`.
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

/// One object defines every name; each library's version script keeps the ones that are its own.
fn empty_symbols(symbols: &[Symbol]) -> String {
    let mut source = String::new();
    for symbol in symbols {
        let kind = if symbol.is_data { "%object" } else { "%function" };
        let _ = writeln!(source, ".globl {0}\n.type {0}, {kind}\n{0}:", symbol.name);
    }
    // A pointer's room, so that the symbols point at something.
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

/// Assembles one source to one object: a Rust library that holds nothing else.
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
