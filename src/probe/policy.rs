//! The administrator's policy for probes on a host: `/etc/gpufleet/policy.json`.
//!
//! ```json
//! {"allow": true, "min_interval": 10, "message": "GPU resets on Mondays, 8 to 9"}
//! ```

use super::procfs::FileReader;
use super::sampler::{MAX_INTERVAL, MIN_INTERVAL};
use crate::wire::SafeText;
use rustix::io::Errno;
use serde::Deserialize;
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
}

fn default_allow() -> bool {
    true
}

/// The administrator's policy file and an optional one from the command line. The stricter value of each limit applies.
#[derive(Debug)]
pub(crate) struct PolicyFiles {
    paths: Vec<String>,
    reader: FileReader,
}

impl PolicyFiles {
    pub(crate) fn new(extra_path: Option<String>) -> Self {
        Self { paths: [PATH.to_owned()].into_iter().chain(extra_path).collect(), reader: FileReader::default() }
    }

    /// Reads all policy files and combines them.
    pub(crate) fn read(&mut self) -> Policy {
        let mut all = Policy::default();
        for path in &self.paths {
            let Policy { refusal, min_interval, message } = match self.reader.read(path) {
                Ok(text) => parse(path, text),
                Err(Errno::NOENT | Errno::NOTDIR) => continue,
                // A FIFO has no offset to read at.
                Err(Errno::SPIPE) => Policy::refused(format!("{path} is not a regular file")),
                Err(error) => Policy::refused(format!("{path} cannot be read: {error}")),
            };
            all.refusal = all.refusal.or(refusal);
            all.min_interval = all.min_interval.max(min_interval);
            all.message = all.message.or(message);
        }
        all
    }
}

fn parse(path: &str, text: &[u8]) -> Policy {
    // serde accepts a list as a struct, too.
    let is_object = text.trim_ascii_start().starts_with(b"{");
    let parsed = if is_object {
        serde_json::from_slice(text).map_err(|error| error.to_string())
    } else {
        Err("not a JSON object".to_owned())
    };
    match parsed {
        Ok(PolicyFile { allow, min_interval, message }) => {
            let message = message.filter(|message| !message.is_empty()).map(SafeText::from);
            let refusal = match &message {
                _ if allow => None,
                Some(message) => Some(message.clone()),
                None => Some(format!("{path} allows no probe on this host").into()),
            };
            Policy { refusal, min_interval: interval(min_interval), message }
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
        parse("/p", text.as_bytes())
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
        let mut policy_files = PolicyFiles::new(None);
        policy_files.paths = vec![path.to_string_lossy().into_owned()];
        let (sender, policy) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(policy_files.read()));
        let policy = policy.recv_timeout(Duration::from_secs(10)).expect("does not wait for a writer");
        assert_eq!(policy.refusal, Some(format!("{} is not a regular file", path.display()).into()));
        let mut policy_files = PolicyFiles::new(None);
        policy_files.paths = vec!["/dev/zero".to_owned()];
        assert!(policy_files.read().refusal.is_some());
    }

    #[test]
    fn policies_are_combined_and_a_missing_file_is_ignored() {
        let directory = tempfile::tempdir().expect("directory");
        let path = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
        let mut policy_files = PolicyFiles::new(None);
        policy_files.paths = vec![path("missing"), path("one"), path("two")];
        assert_eq!(policy_files.read().refusal, None);
        std::fs::write(path("one"), r#"{"min_interval": 5}"#).expect("writes");
        std::fs::write(path("two"), r#"{"allow": false, "min_interval": 3}"#).expect("writes");
        let policy = policy_files.read();
        assert!(policy.refusal.is_some() && policy.min_interval == Duration::from_secs(5));
    }
}
