//! The probe binaries that gpufleet can upload.
//!
//! The build script (`build.rs`) embeds the probes, compressed, with the SHA-256 of the uncompressed program. The remote
//! script verifies this hash before it runs a file, `gpufleet --version` prints it, and administrators who allow programs
//! by hash can use it.

use miniz_oxide::inflate::decompress_to_vec_with_limit;
use sha2::{Digest, Sha256};
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

/// A probe that can be uploaded. Its bytes are loaded only if the host does not have it yet.
#[derive(Clone)]
pub struct ProbeBinary {
    /// File name on the host, with version and hash.
    pub file_name: String,
    /// SHA-256 of the program, 64 lower-case hexadecimal digits.
    pub sha256: String,
    /// Size in bytes.
    pub size_bytes: u64,
    load: Arc<dyn Fn() -> Result<Vec<u8>, String> + Send + Sync>,
}

/// A set of probes, by machine (`uname -m`).
pub trait ProbeStore: Send + Sync {
    /// Returns the probe for this machine.
    fn binary(&self, machine: &str) -> Option<ProbeBinary>;
    /// Returns the supported machines, for error messages.
    fn machines(&self) -> Vec<String>;
}

impl ProbeBinary {
    /// Creates a probe whose bytes `load` returns on demand.
    pub fn new(
        file_name: String,
        sha256: String,
        size_bytes: u64,
        load: impl Fn() -> Result<Vec<u8>, String> + Send + Sync + 'static,
    ) -> Self {
        Self { file_name, sha256, size_bytes, load: Arc::new(load) }
    }

    /// Creates a probe from its bytes.
    #[cfg(test)]
    pub fn from_bytes(file_name: &str, bytes: Vec<u8>) -> Self {
        use sha2::Digest;
        let sha256 = sha2::Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Self::new(file_name.to_owned(), sha256, bytes.len() as u64, move || Ok(bytes.clone()))
    }

    /// Returns the program.
    ///
    /// # Errors
    /// A message if the embedded copy is damaged.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        (self.load)()
    }
}

impl fmt::Debug for ProbeBinary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ProbeBinary({}, {} bytes)", self.file_name, self.size_bytes)
    }
}

/// Returns the embedded probes.
pub(super) fn embedded_probes() -> Arc<dyn ProbeStore> {
    Arc::new(EmbeddedProbes)
}

/// The probes embedded by the build script.
struct EmbeddedProbes;

impl ProbeStore for EmbeddedProbes {
    fn binary(&self, machine: &str) -> Option<ProbeBinary> {
        let probe = for_arch(machine)?;
        let load = || probe.bytes().map_err(|damaged| damaged.to_string());
        Some(ProbeBinary::new(probe.file_name(), probe.sha256.to_owned(), probe.size_bytes as u64, load))
    }

    fn machines(&self) -> Vec<String> {
        all().iter().map(|probe| probe.arch.to_owned()).collect()
    }
}

include!(concat!(env!("OUT_DIR"), "/probes.rs"));

/// Number of hexadecimal digits of the hash in file names and in `--version`.
const SHORT_HASH_DIGITS: usize = 16;

/// A compressed probe inside this binary.
#[derive(Debug)]
pub struct EmbeddedProbe {
    /// Architecture, as printed by `uname -m`.
    pub arch: &'static str,
    /// Size of the uncompressed program in bytes.
    pub size_bytes: usize,
    /// SHA-256 of the uncompressed program, 64 lower-case hexadecimal digits.
    pub sha256: &'static str,
    /// The program as a raw DEFLATE stream.
    compressed: &'static [u8],
}

/// An embedded probe that does not match its hash, because the gpufleet binary was damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedProbe {
    /// Architecture, as printed by `uname -m`.
    pub arch: &'static str,
    /// The difference.
    pub detail: String,
}

impl fmt::Display for DamagedProbe {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { arch, detail } = self;
        write!(formatter, "the {arch} probe inside this gpufleet is damaged ({detail}): install gpufleet again")
    }
}

impl std::error::Error for DamagedProbe {}

impl EmbeddedProbe {
    /// Decompresses the program and verifies its hash, which takes a few milliseconds.
    ///
    /// # Errors
    /// [`DamagedProbe`] if the hash does not match.
    pub fn bytes(&self) -> Result<Vec<u8>, DamagedProbe> {
        let damaged = |detail: String| DamagedProbe { arch: self.arch, detail };
        let bytes = decompress_to_vec_with_limit(self.compressed, self.size_bytes)
            .map_err(|error| damaged(format!("it does not unpack: {error}")))?;
        let found = hex(&Sha256::digest(&bytes));
        if found != self.sha256 {
            return Err(damaged(format!("its SHA-256 is {found}, not {}", self.sha256)));
        }
        Ok(bytes)
    }

    /// Returns the file name on a host, `gpufleet-probe-VERSION-HASH`, which is unique to this build.
    pub fn file_name(&self) -> String {
        format!("gpufleet-probe-{}-{}", env!("CARGO_PKG_VERSION"), self.short_hash())
    }

    fn short_hash(&self) -> &'static str {
        self.sha256.get(..SHORT_HASH_DIGITS).unwrap_or(self.sha256)
    }
}

/// Returns all embedded probes.
fn all() -> &'static [EmbeddedProbe] {
    EMBEDDED
}

/// Returns the probe for the machine that `uname -m` prints.
fn for_arch(uname_machine: &str) -> Option<&'static EmbeddedProbe> {
    EMBEDDED.iter().find(|probe| probe.arch == uname_machine)
}

/// Returns the output of `gpufleet --version`: the version, a line per embedded or missing probe, and the compiler, without
/// a final newline.
///
/// ```text
/// gpufleet 0.1.0
/// probe for x86_64: 290752 bytes, sha256 1f3e5c0a9b7d2468
/// no probe for aarch64: run `rustup target add aarch64-unknown-linux-gnu`, then build again
/// built by rustc 1.95.0 (59807616e 2026-04-14)
/// ```
pub fn version_text() -> String {
    describe(env!("CARGO_PKG_VERSION"), EMBEDDED, MISSING) + "\nbuilt by " + env!("GPUFLEET_RUSTC")
}

fn describe(version: &str, embedded: &[EmbeddedProbe], missing: &[(&str, &str)]) -> String {
    let mut text = format!("gpufleet {version}");
    for probe in embedded {
        let EmbeddedProbe { arch, size_bytes, .. } = probe;
        let _ = write!(text, "\nprobe for {arch}: {size_bytes} bytes, sha256 {}", probe.short_hash());
    }
    for (arch, reason) in missing {
        let _ = write!(text, "\nno probe for {arch}: {reason}");
    }
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limit for uploads over slow links.
    const SIZE_LIMIT_BYTES: usize = 640_000;

    fn sample(compressed: &'static [u8], size_bytes: usize, sha256: &'static str) -> EmbeddedProbe {
        EmbeddedProbe { arch: "x86_64", size_bytes, sha256, compressed }
    }

    /// "abc" as one stored DEFLATE block, and its hash from FIPS 180-2.
    const ABC: &[u8] = &[0x01, 0x03, 0x00, 0xfc, 0xff, b'a', b'b', b'c'];
    const ABC_SHA256: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn an_embedded_probe_decompresses() {
        assert_eq!(sample(ABC, 3, ABC_SHA256).bytes(), Ok(b"abc".to_vec()));
    }

    #[test]
    fn a_damaged_probe_is_an_error() {
        let other = "0000000000000000000000000000000000000000000000000000000000000000";
        let error = sample(ABC, 3, other).bytes().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "the x86_64 probe inside this gpufleet is damaged (its SHA-256 is {ABC_SHA256}, not {other}): \
                 install gpufleet again"
            )
        );
        let short = sample(&ABC[..6], 3, ABC_SHA256).bytes().unwrap_err();
        assert!(short.to_string().contains("it does not unpack"), "{short}");
        let longer_than_said = sample(ABC, 2, ABC_SHA256).bytes().unwrap_err();
        assert!(longer_than_said.to_string().contains("it does not unpack"), "{longer_than_said}");
    }

    #[test]
    fn the_version_lists_embedded_and_missing_probes() {
        let missing = [("aarch64", "run `rustup target add aarch64-unknown-linux-gnu`, then build again")];
        assert_eq!(
            describe("1.2.3", &[sample(ABC, 3, ABC_SHA256)], &missing),
            "gpufleet 1.2.3\n\
             probe for x86_64: 3 bytes, sha256 ba7816bf8f01cfea\n\
             no probe for aarch64: run `rustup target add aarch64-unknown-linux-gnu`, then build again"
        );
    }

    #[test]
    fn every_architecture_is_embedded_or_has_a_reason() {
        for arch in ["x86_64", "aarch64"] {
            let has_reason = MISSING.iter().any(|(missing, reason)| *missing == arch && !reason.is_empty());
            assert_ne!(for_arch(arch).is_some(), has_reason, "{arch}");
        }
        assert!(for_arch("riscv64").is_none());
        assert!(version_text().starts_with(concat!("gpufleet ", env!("CARGO_PKG_VERSION"), "\n")));
    }

    #[test]
    fn each_embedded_probe_is_small_and_needs_no_glibc_above_2_17() {
        for probe in all() {
            let bytes = probe.bytes().unwrap();
            assert_eq!(bytes.len(), probe.size_bytes);
            assert!(bytes.len() <= SIZE_LIMIT_BYTES, "{}: {} bytes", probe.arch, bytes.len());
            assert!(bytes.starts_with(b"\x7fELF"), "{}", probe.arch);
            assert_eq!(
                probe.file_name(),
                format!("gpufleet-probe-{}-{}", env!("CARGO_PKG_VERSION"), &probe.sha256[..16])
            );
            let versions = glibc_versions(&bytes);
            assert!(!versions.is_empty(), "{}: no version is named at all", probe.arch);
            assert!(versions.iter().all(|version| *version <= (2, 17)), "{} needs glibc {versions:?}", probe.arch);
        }
    }

    /// Returns the versions in the string table of a program, stored as `GLIBC_2.17` with a final zero byte.
    fn glibc_versions(program: &[u8]) -> Vec<(u32, u32)> {
        let strings = program.split(|byte| *byte == 0).filter_map(|bytes| std::str::from_utf8(bytes).ok());
        strings
            .filter_map(|text| text.strip_prefix("GLIBC_"))
            .map(|version| {
                let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap());
                (parts.next().unwrap(), parts.next().unwrap())
            })
            .collect()
    }
}
