//! The probe's file as the installer needs it, wherever it comes from.

use miniz_oxide::inflate::decompress_to_vec_with_limit;
use sha2::{Digest, Sha256};
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

/// One probe that can be sent to a host. Its bytes are asked for only when the host does not have them yet.
#[derive(Clone)]
pub struct ProbeBinary {
    /// The name on the host: it carries the version and the hash of the content.
    pub file_name: String,
    /// SHA-256 of the bytes, 64 lower-case hexadecimal digits.
    pub sha256: String,
    /// How many bytes.
    pub size_bytes: u64,
    load: Arc<dyn Fn() -> Result<Vec<u8>, String> + Send + Sync>,
}

/// The probes that this program carries, by `uname -m`.
pub trait ProbeStore: Send + Sync {
    /// The probe for a Linux machine of this kind.
    fn binary(&self, machine: &str) -> Option<ProbeBinary>;
    /// The machines for which there is one, for the message when there is none.
    fn machines(&self) -> Vec<String>;
}

impl ProbeBinary {
    /// A probe whose bytes `load` makes when they are needed.
    pub fn new(
        file_name: String,
        sha256: String,
        size_bytes: u64,
        load: impl Fn() -> Result<Vec<u8>, String> + Send + Sync + 'static,
    ) -> Self {
        Self { file_name, sha256, size_bytes, load: Arc::new(load) }
    }

    /// A probe from bytes that are there.
    #[cfg(test)]
    pub fn from_bytes(file_name: &str, bytes: Vec<u8>) -> Self {
        use sha2::Digest;
        let sha256 = sha2::Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Self::new(file_name.to_owned(), sha256, bytes.len() as u64, move || Ok(bytes.clone()))
    }

    /// The bytes.
    ///
    /// # Errors
    /// When the embedded copy cannot be unpacked, in words.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        (self.load)()
    }
}

impl fmt::Debug for ProbeBinary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ProbeBinary({}, {} bytes)", self.file_name, self.size_bytes)
    }
}

/// The probes that this program carries.
pub(super) fn embedded_probes() -> Arc<dyn ProbeStore> {
    Arc::new(EmbeddedProbes)
}

/// What the build script put into this program.
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

/// How many hexadecimal digits of the hash a file name and `--version` show.
const SHORT_HASH_DIGITS: usize = 16;

/// A probe as it lies in this binary.
#[derive(Debug)]
pub struct EmbeddedProbe {
    /// The architecture, in the word of `uname -m`.
    pub arch: &'static str,
    /// Size of the unpacked program in bytes.
    pub size_bytes: usize,
    /// SHA-256 of the unpacked program: 64 lower-case hexadecimal digits.
    pub sha256: &'static str,
    /// The program as a raw DEFLATE stream.
    compressed: &'static [u8],
}

/// An embedded probe that does not unpack to the program that was put in: this binary was damaged after it was built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedProbe {
    /// The architecture, in the word of `uname -m`.
    pub arch: &'static str,
    /// What differs.
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
    /// Unpacks the program and checks its hash: a few milliseconds, so once a run and architecture is enough.
    ///
    /// # Errors
    /// [`DamagedProbe`] where the bytes are not those of the build.
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

    /// The name it has on a server, `gpufleet-probe-VERSION-HASH`: two builds never share one.
    pub fn file_name(&self) -> String {
        format!("gpufleet-probe-{}-{}", env!("CARGO_PKG_VERSION"), self.short_hash())
    }

    fn short_hash(&self) -> &'static str {
        self.sha256.get(..SHORT_HASH_DIGITS).unwrap_or(self.sha256)
    }
}

/// All probes in this binary.
pub fn all() -> &'static [EmbeddedProbe] {
    EMBEDDED
}

/// The probe for a server whose `uname -m` prints this word.
pub fn for_arch(uname_machine: &str) -> Option<&'static EmbeddedProbe> {
    EMBEDDED.iter().find(|probe| probe.arch == uname_machine)
}

/// What `gpufleet --version` prints: the version, then a line for each probe it carries or lacks. No final newline.
///
/// ```text
/// gpufleet 0.1.0
/// probe for x86_64: 290752 bytes, sha256 1f3e5c0a9b7d2468
/// no probe for aarch64: run `rustup target add aarch64-unknown-linux-gnu`, then build again
/// ```
pub fn version_text() -> String {
    describe(env!("CARGO_PKG_VERSION"), EMBEDDED, MISSING)
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

    /// The largest probe that we want to send over a slow line.
    const SIZE_LIMIT_BYTES: usize = 512 * 1024;

    fn sample(compressed: &'static [u8], size_bytes: usize, sha256: &'static str) -> EmbeddedProbe {
        EmbeddedProbe { arch: "x86_64", size_bytes, sha256, compressed }
    }

    /// "abc" as one stored DEFLATE block, and its hash from FIPS 180-2.
    const ABC: &[u8] = &[0x01, 0x03, 0x00, 0xfc, 0xff, b'a', b'b', b'c'];
    const ABC_SHA256: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn unpacks_what_was_put_in() {
        assert_eq!(sample(ABC, 3, ABC_SHA256).bytes(), Ok(b"abc".to_vec()));
    }

    #[test]
    fn a_damaged_probe_is_never_handed_out() {
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
    fn the_version_tells_what_is_carried_and_what_is_not() {
        let missing = [("aarch64", "run `rustup target add aarch64-unknown-linux-gnu`, then build again")];
        assert_eq!(
            describe("1.2.3", &[sample(ABC, 3, ABC_SHA256)], &missing),
            "gpufleet 1.2.3\n\
             probe for x86_64: 3 bytes, sha256 ba7816bf8f01cfea\n\
             no probe for aarch64: run `rustup target add aarch64-unknown-linux-gnu`, then build again"
        );
    }

    #[test]
    fn every_architecture_is_carried_or_accounted_for() {
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

    /// The versions in a program's string table: each stands there as `GLIBC_2.17` and a zero byte.
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
