//! The probe's file as the installer needs it, wherever it comes from.

use super::embedded;
use std::fmt;
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
        let probe = embedded::for_arch(machine)?;
        let load = || probe.bytes().map_err(|damaged| damaged.to_string());
        Some(ProbeBinary::new(probe.file_name(), probe.sha256.to_owned(), probe.size_bytes as u64, load))
    }

    fn machines(&self) -> Vec<String> {
        embedded::all().iter().map(|probe| probe.arch.to_owned()).collect()
    }
}
