//! The administrator's policy for probes on a host: `/etc/gpufleet/policy.json`.
//!
//! ```json
//! {"allow": true, "min_interval": 10, "message": "GPU resets on Mondays, 8 to 9", "probe_sha256": ["99cd52fd..."],
//!  "allow_examine": true, "allow_ras": true}
//! ```

use super::procfs::FileReader;
use super::sampler::{MAX_INTERVAL, MIN_INTERVAL};
use crate::wire::SafeText;
use rustix::io::Errno;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::time::Duration;

const PATH: &str = "/etc/gpufleet/policy.json";
/// Exit code of a probe that the policy forbids: `EX_NOPERM` of sysexits.h.
pub(crate) const EXIT_FORBIDDEN: u8 = 77;
/// How often a running probe rereads the policy. The probe must exit within 10 s, and NVML needs some of that.
pub(crate) const POLICY_CHECK_PERIOD: Duration = Duration::from_millis(4200);
/// The policy is also reread right after a request, when the thread is awake anyway, if the last read is this old: with
/// every other heartbeat.
pub(crate) const POLICY_CHECK_MIN_AGE: Duration = Duration::from_millis(3500);

/// The combined policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    /// The reason why probes are forbidden. An invalid policy forbids probes, since it was written to restrict them.
    pub(crate) refusal: Option<SafeText>,
    /// The shortest interval, or zero.
    pub(crate) min_interval: Duration,
    /// A message for the users who watch this host.
    pub(crate) message: Option<SafeText>,
    /// No process may be examined.
    pub(crate) forbids_examine: bool,
    /// NCCL RAS may not be queried.
    pub(crate) forbids_ras: bool,
}

impl Policy {
    fn refused(reason: String) -> Self {
        Self { refusal: Some(reason.into()), ..Self::default() }
    }
}

/// The contents of a policy file.
#[derive(Deserialize)]
struct PolicyFile {
    #[serde(default = "default_allow")]
    allow: bool,
    /// In seconds.
    #[serde(default)]
    min_interval: Option<f64>,
    #[serde(default)]
    message: Option<String>,
    /// The only programs that may run, by their SHA-256 in hexadecimal digits.
    #[serde(default)]
    probe_sha256: Option<Vec<SafeText>>,
    /// Whether processes of the login user may be examined on request.
    #[serde(default = "default_allow")]
    allow_examine: bool,
    /// Whether an examination may query NCCL RAS.
    #[serde(default = "default_allow")]
    allow_ras: bool,
}

fn default_allow() -> bool {
    true
}

/// The administrator's policy file and an optional one from the command line. The stricter value of each limit applies.
#[derive(Debug)]
pub(crate) struct PolicyFiles {
    paths: Vec<String>,
    /// The hash of this program, if it is known.
    own_sha256: Option<SafeText>,
    reader: FileReader,
}

impl PolicyFiles {
    pub(crate) fn new(extra_path: Option<String>, own_sha256: Option<SafeText>) -> Self {
        let paths = [PATH.to_owned()].into_iter().chain(extra_path).collect();
        Self { paths, own_sha256, reader: FileReader::default() }
    }

    /// Reads all policy files and combines them.
    pub(crate) fn read(&mut self) -> Policy {
        let mut all = Policy::default();
        for path in &self.paths {
            let Policy { refusal, min_interval, message, forbids_examine, forbids_ras } = match self.reader.read(path) {
                Ok(text) => parse(path, text, self.own_sha256.as_deref()),
                Err(Errno::NOENT | Errno::NOTDIR) => continue,
                // A FIFO has no offset to read at.
                Err(Errno::SPIPE) => Policy::refused(format!("{path} is not a regular file")),
                Err(error) => Policy::refused(format!("{path} cannot be read: {error}")),
            };
            all.refusal = all.refusal.or(refusal);
            all.min_interval = all.min_interval.max(min_interval);
            all.message = all.message.or(message);
            all.forbids_examine |= forbids_examine;
            all.forbids_ras |= forbids_ras;
        }
        all
    }
}

/// The largest program that is hashed, in bytes. A build with debug information is larger, and hashing it would delay its
/// start.
const MAX_HASHED_BYTES: usize = 8 << 20;

/// Returns the SHA-256 of the program of this process in hexadecimal digits.
pub(crate) fn own_sha256() -> Option<String> {
    let mut reader = FileReader::default();
    let program = reader.read_long(std::process::id(), "exe", MAX_HASHED_BYTES + 1).ok()?;
    (program.len() <= MAX_HASHED_BYTES).then(|| sha256(program))
}

fn sha256(program: &[u8]) -> String {
    let mut digits = String::with_capacity(64);
    for byte in Sha256::digest(program) {
        for value in [byte >> 4, byte & 15] {
            digits.push(char::from(b"0123456789abcdef"[usize::from(value)]));
        }
    }
    digits
}

fn parse(path: &str, text: &[u8], own_sha256: Option<&str>) -> Policy {
    // serde accepts a list as a struct, too.
    let is_object = text.trim_ascii_start().starts_with(b"{");
    let parsed = if is_object {
        serde_json::from_slice(text).map_err(|error| error.to_string())
    } else {
        Err("not a JSON object".to_owned())
    };
    match parsed {
        Ok(PolicyFile { allow, min_interval, message, probe_sha256, allow_examine, allow_ras }) => {
            let message = message.filter(|message| !message.is_empty()).map(SafeText::from);
            let is_listed = probe_sha256.is_none_or(|listed| {
                own_sha256.is_some_and(|own| listed.iter().any(|hash| hash.eq_ignore_ascii_case(own)))
            });
            let refusal = match &message {
                _ if allow && is_listed => None,
                _ if allow => {
                    let own = own_sha256.unwrap_or("unknown");
                    Some(format!("{path} does not list this probe in probe_sha256; its SHA-256 is {own}").into())
                }
                Some(message) => Some(message.clone()),
                None => Some(format!("{path} allows no probe on this host").into()),
            };
            Policy {
                refusal,
                min_interval: interval(min_interval),
                message,
                forbids_examine: !allow_examine,
                forbids_ras: !allow_ras,
            }
        }
        Err(error) => Policy::refused(format!("{path} is invalid, so no probe may run: {error}")),
    }
}

fn interval(seconds: Option<f64>) -> Duration {
    let requested = seconds.filter(|seconds| *seconds > 0.0);
    let interval = requested.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(MAX_INTERVAL));
    interval.map_or(Duration::ZERO, |interval| interval.clamp(MIN_INTERVAL, MAX_INTERVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Policy {
        parse("/p", text.as_bytes(), Some("00ff"))
    }

    #[test]
    fn missing_keys_have_defaults() {
        assert_eq!(policy("{}"), Policy::default());
        let expected = policy(r#"{"min_interval": 10, "message": "hello", "from_the_future": []}"#);
        assert_eq!((expected.refusal, expected.min_interval), (None, Duration::from_secs(10)));
        assert_eq!(expected.message.as_deref(), Some("hello"));
        for (parsed, expected) in [("0.001", 250), ("1e9", 60_000), ("-5", 0), ("1e308", 60_000)] {
            let interval = policy(&format!("{{\"min_interval\": {parsed}}}")).min_interval;
            assert_eq!(interval, Duration::from_millis(expected), "{parsed}");
        }
    }

    #[test]
    fn examinations_and_queries_of_nccl_ras_can_be_forbidden() {
        let forbids = |text: &str| {
            let policy = policy(text);
            (policy.forbids_examine, policy.forbids_ras, policy.refusal.is_some())
        };
        assert_eq!(forbids(r#"{"allow_examine": true, "allow_ras": true}"#), (false, false, false));
        assert_eq!(forbids(r#"{"allow_examine": false}"#), (true, false, false));
        assert_eq!(forbids(r#"{"allow_ras": false}"#), (false, true, false));
        assert_eq!(forbids(r#"{"allow_ras": "no"}"#), (false, false, true), "an invalid policy forbids the probe");
    }

    #[test]
    fn only_listed_programs_run() {
        for listed in [r#"{"probe_sha256": ["aa", "00FF"]}"#, r#"{"probe_sha256": null}"#] {
            assert_eq!(policy(listed), Policy::default(), "{listed}");
        }
        let refusal = "/p does not list this probe in probe_sha256; its SHA-256 is 00ff";
        for other in [r#"{"probe_sha256": ["aa"]}"#, r#"{"probe_sha256": []}"#] {
            assert_eq!(policy(other).refusal.as_deref(), Some(refusal), "{other}");
        }
        let unknown = parse("/p", br#"{"probe_sha256": ["00ff"]}"#, None);
        assert!(unknown.refusal.is_some_and(|refusal| refusal.ends_with("its SHA-256 is unknown")));
        assert_eq!(
            policy(r#"{"probe_sha256": ["00ff"], "allow": false, "message": "no"}"#).refusal.as_deref(),
            Some("no")
        );
        assert!(policy(r#"{"probe_sha256": "00ff"}"#).refusal.is_some());
    }

    #[test]
    fn a_hash_is_that_of_sha256sum() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.lock");
        let output = std::process::Command::new("sha256sum").arg(path).output().unwrap();
        let expected = String::from_utf8(output.stdout).unwrap();
        assert_eq!(Some(&*sha256(&std::fs::read(path).unwrap())), expected.split(' ').next());
    }

    #[test]
    fn a_refusal_has_a_reason() {
        assert_eq!(policy(r#"{"allow": false}"#).refusal.as_deref(), Some("/p allows no probe on this host"));
        let with_message = policy(r#"{"allow": false, "message": "ask\u001b[31m root"}"#);
        assert_eq!(with_message.refusal.as_deref(), Some("ask␛[31m root"));
        for broken in ["", "{\"allow\": false,}", "[]", "{\"allow\": \"no\"}", "\u{0}"] {
            let refusal = policy(broken).refusal.expect("a refusal");
            assert!(refusal.starts_with("/p is invalid, so no probe may run: "), "{refusal}");
        }
    }

    #[test]
    fn a_special_file_refuses_without_waiting() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("policy.json");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
            .expect("a FIFO");
        let mut policy_files = PolicyFiles::new(None, None);
        policy_files.paths = vec![path.to_string_lossy().into_owned()];
        let (sender, policy) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(policy_files.read()));
        let policy = policy.recv_timeout(Duration::from_secs(10)).expect("does not wait for a writer");
        assert_eq!(policy.refusal, Some(format!("{} is not a regular file", path.display()).into()));
        let mut policy_files = PolicyFiles::new(None, None);
        policy_files.paths = vec!["/dev/zero".to_owned()];
        assert!(policy_files.read().refusal.is_some());
    }

    #[test]
    fn policies_are_combined_and_a_missing_file_is_ignored() {
        let directory = tempfile::tempdir().expect("directory");
        let path = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
        let mut policy_files = PolicyFiles::new(None, None);
        policy_files.paths = vec![path("missing"), path("one"), path("two")];
        assert_eq!(policy_files.read().refusal, None);
        std::fs::write(path("one"), r#"{"min_interval": 5}"#).expect("writes");
        std::fs::write(path("two"), r#"{"allow": false, "min_interval": 3}"#).expect("writes");
        let policy = policy_files.read();
        assert!(policy.refusal.is_some() && policy.min_interval == Duration::from_secs(5));
        std::fs::write(path("one"), r#"{"allow_examine": false}"#).expect("writes");
        std::fs::write(path("two"), r#"{"allow_ras": false}"#).expect("writes");
        let policy = policy_files.read();
        assert_eq!((policy.forbids_examine, policy.forbids_ras, policy.refusal), (true, true, None));
    }
}
