//! Decides whether the NCCL RAS of a process may be queried.

use crate::probe::procfs::environment_variable;
use crate::wire::SafeText;
use crate::wire::WITHOUT_NCCL;
use crate::wire::examination::{ExaminationPart, ExaminationRefusal};
use std::fmt::Write;

/// The port in the default of `NCCL_RAS_ADDR`. nccl:src/ras/ras_internal.h, `NCCL_RAS_CLIENT_PORT`.
const DEFAULT_PORT: u16 = 28028;

/// A version of NCCL: major, minor, patch.
type Version = (u32, u32, u32);

/// The first version with RAS.
const FIRST_WITH_RAS: Version = (2, 24, 3);
/// The first version that is queried without a question: a missing rank no longer corrupts memory (nccl#1762).
const FIRST_SAFE: Version = (2, 29, 2);

/// A fault of NCCL that a query can meet.
struct Fault {
    first: Version,
    /// The first version without it.
    fixed: Version,
    text: &'static str,
}

/// nccl#1669 was fixed in 2.27.3 and nccl#1762 in 2.29.2. nccl#2346 is open; 2.30.7 has the same code.
const FAULTS: [Fault; 3] = [
    Fault {
        first: FIRST_WITH_RAS,
        fixed: (2, 27, 3),
        text: "a query while a communicator is being created crashes the job (nccl#1669)",
    },
    Fault {
        first: (2, 26, 2),
        fixed: FIRST_SAFE,
        text: "a query while a communicator misses a rank corrupts the memory of the job (nccl#1762)",
    },
    Fault {
        first: (2, 27, 3),
        fixed: (u32::MAX, 0, 0),
        text: "a query while a large communicator is being created crashes the job (nccl#2346)",
    },
];

/// The way out for a job with an old NCCL.
const NEWER_TORCH: &str = "start the job with torch 2.12 or newer (NCCL 2.29.2 or newer)";

/// A process of the login user whose NCCL RAS is to be queried.
pub(crate) struct RasTarget {
    /// Pid in the namespace of the probe.
    pub pid: u32,
    /// Version of the NCCL library that it has mapped, for example `2.27.5`.
    pub nccl_version: Option<SafeText>,
    /// Whether it has an NCCL library mapped.
    pub has_nccl: Option<bool>,
    /// Pid in its innermost pid namespace, which is the pid that NCCL reports.
    pub ns_pid: Option<u32>,
    /// Whether it shares the network namespace of the probe.
    pub same_network: Option<bool>,
    /// `/proc/PID/environ`.
    pub environment: Vec<u8>,
    /// The configuration files of NCCL, the first one with a variable counts.
    pub configuration: Vec<ConfigurationFile>,
}

/// A configuration file of NCCL, with lines such as `NCCL_RAS_ENABLE=0`.
pub(crate) struct ConfigurationFile {
    /// Its path for people.
    pub name: SafeText,
    pub text: Vec<u8>,
}

impl ConfigurationFile {
    /// The value of a variable. NCCL takes the first one, and trims nothing: `setEnvFile` in nccl:src/misc/param.cc.
    fn value(&self, name: &str) -> Option<&str> {
        let mut lines = self.text.split(|&byte| byte == b'\n');
        let value = lines.find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        std::str::from_utf8(value).ok()
    }
}

impl RasTarget {
    /// The pid that NCCL reports for this process: `getpid` in its namespace.
    pub(super) fn reported_pid(&self) -> u32 {
        self.ns_pid.unwrap_or(self.pid)
    }

    /// The value of a variable, and the configuration file that sets it. The environment counts before the files.
    fn setting(&self, name: &str) -> (Option<&str>, Option<&ConfigurationFile>) {
        if let Some(value) = environment_variable(&self.environment, name) {
            return (std::str::from_utf8(value).ok(), None);
        }
        let mut files = self.configuration.iter();
        let found = files.find_map(|file| Some((file.value(name)?, file)));
        found.map_or((None, None), |(value, file)| (Some(value), Some(file)))
    }
}

/// Returns the port of the RAS of this process if a query is permitted.
pub(super) fn check(target: &RasTarget, accept_risk: bool) -> Result<u16, ExaminationRefusal> {
    if target.has_nccl == Some(false) {
        return Err(refusal(WITHOUT_NCCL, ""));
    }
    let version = target.nccl_version.as_ref().and_then(|text| parse_version(text));
    let name = target.nccl_version.as_deref().unwrap_or_default();
    if version.is_some_and(|version| version < FIRST_WITH_RAS) {
        let reason = format!("NCCL RAS was not queried: NCCL {name} has no RAS, which is in NCCL 2.24.3 and newer");
        return Err(refusal(&reason, NEWER_TORCH));
    }
    let place = |file: Option<&ConfigurationFile>| file.map_or("this job", |file| &file.name).to_owned();
    let (enabled, file) = target.setting("NCCL_RAS_ENABLE");
    if !is_enabled(enabled) {
        let reason = format!("NCCL RAS was not queried: NCCL_RAS_ENABLE in {} turns it off", place(file));
        return Err(refusal(&reason, "start the job with NCCL_RAS_ENABLE=1"));
    }
    let (address, file) = target.setting("NCCL_RAS_ADDR");
    let Some(port) = port(address) else {
        let reason = format!("NCCL RAS was not queried: NCCL_RAS_ADDR in {} names no port", place(file));
        return Err(refusal(&reason, "start the job with NCCL_RAS_ADDR=localhost:PORT"));
    };
    let is_permitted = accept_risk || version.is_some_and(|version| version >= FIRST_SAFE);
    if target.same_network != Some(true) {
        let reason = if target.same_network.is_some() {
            "NCCL RAS was not queried: the process is in another network namespace, as in a container"
        } else {
            "NCCL RAS was not queried: the network namespace of the process cannot be read"
        };
        // The command would crash a job with an old NCCL just as well.
        return Err(if is_permitted {
            let remedy = format!("kubectl exec POD -- sh -c 'echo status | nc localhost {port}'");
            refusal(reason, &remedy)
        } else {
            refusal(reason, NEWER_TORCH)
        });
    }
    if is_permitted {
        return Ok(port);
    }
    let reason = match version {
        Some(version) => {
            let mut reason = format!("NCCL RAS was not queried, because NCCL {name} has faults: ");
            let faults = FAULTS.iter().filter(|fault| fault.first <= version && version < fault.fixed);
            for (index, fault) in faults.enumerate() {
                // Writing to a String does not fail.
                let _ok = write!(reason, "{}{}", if index == 0 { "" } else { "; " }, fault.text);
            }
            reason
        }
        None => {
            "NCCL RAS was not queried, because the version of NCCL is unknown: before 2.29.2, a query can crash the \
                 job (nccl#1762)"
                .to_owned()
        }
    };
    Err(risk(&reason, NEWER_TORCH))
}

/// A refusal that no consent changes.
pub(super) fn refusal(reason: &str, remedy: &str) -> ExaminationRefusal {
    ExaminationRefusal::new(ExaminationPart::Ras, reason, remedy)
}

/// A refusal because of a risk that a person can accept.
pub(super) fn risk(reason: &str, remedy: &str) -> ExaminationRefusal {
    ExaminationRefusal { is_risk: true, ..refusal(reason, &format!("{remedy}, or accept the risk with --ask-ras")) }
}

/// Parses `2.27.5`, `2.27.5-1` or `2.27.5+cuda12.9`. A version before a release, such as `2.29.2rc1`, may lack its
/// corrections, so it is unknown.
fn parse_version(text: &str) -> Option<Version> {
    let mut numbers = text.split(['-', '+']).next()?.split('.').map(|part| part.parse().ok());
    let version = (numbers.next()??, numbers.next()??, numbers.next()??);
    numbers.next().is_none().then_some(version)
}

/// Whether this value of `NCCL_RAS_ENABLE` leaves RAS on: none, an empty one, or 1. NCCL reads the digits at the beginning, and
/// a text without them as 0. nccl:src/bootstrap.cc, `ncclParamRasEnable() == 1`, and `ncclLoadParam` in src/misc/param.cc.
fn is_enabled(value: Option<&str>) -> bool {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return true };
    let value = value.trim_start();
    let end = value.find(|character: char| !character.is_ascii_digit()).unwrap_or(value.len());
    value[..end].parse() == Ok(1)
}

/// The port in a value of `NCCL_RAS_ADDR`: `HOST:PORT` or `[IPV6]:PORT`.
fn port(value: Option<&str>) -> Option<u16> {
    let Some(value) = value else { return Some(DEFAULT_PORT) };
    value.rsplit_once(':')?.1.parse().ok().filter(|&port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(version: Option<&str>) -> RasTarget {
        RasTarget {
            pid: 4711,
            nccl_version: version.map(SafeText::new),
            has_nccl: Some(true),
            ns_pid: None,
            same_network: Some(true),
            environment: b"HOME=/root\0RANK=3\0".to_vec(),
            configuration: Vec::new(),
        }
    }

    fn refused(target: &RasTarget, accept_risk: bool) -> (String, String, bool) {
        let refusal = check(target, accept_risk).expect_err("refused");
        assert_eq!(refusal.part, ExaminationPart::Ras);
        (refusal.reason.to_string(), refusal.remedy.to_string(), refusal.is_risk)
    }

    #[test]
    fn only_versions_without_the_known_faults_are_queried_without_consent() {
        for version in ["2.29.2", "2.29.7", "2.30.7", "2.29.2-1", "2.30.7+cuda13.0", "3.0.0"] {
            assert_eq!(check(&target(Some(version)), false), Ok(28028), "{version}");
        }
        for version in ["2.24.3", "2.25.1", "2.26.2", "2.27.5", "2.28.9", "2.29.1"] {
            assert!(refused(&target(Some(version)), false).2, "{version}");
            assert_eq!(check(&target(Some(version)), true), Ok(28028), "{version}");
        }
        for version in [None, Some("unknown"), Some("2.29"), Some("2.29.2rc1"), Some("2.29.2.1"), Some("")] {
            let (reason, remedy, is_risk) = refused(&target(version), false);
            assert_eq!(
                reason,
                "NCCL RAS was not queried, because the version of NCCL is unknown: before 2.29.2, a query can crash the \
                 job (nccl#1762)"
            );
            assert_eq!(
                remedy,
                "start the job with torch 2.12 or newer (NCCL 2.29.2 or newer), or accept the risk with --ask-ras"
            );
            assert!(is_risk);
            assert_eq!(check(&target(version), true), Ok(28028));
        }
    }

    #[test]
    fn the_faults_of_a_version_are_named() {
        const CREATED: &str = "a query while a communicator is being created crashes the job (nccl#1669)";
        const MISSING: &str = "a query while a communicator misses a rank corrupts the memory of the job (nccl#1762)";
        const LARGE: &str = "a query while a large communicator is being created crashes the job (nccl#2346)";
        for (version, faults) in [
            ("2.24.3", CREATED.to_owned()),
            ("2.26.2", format!("{CREATED}; {MISSING}")),
            ("2.27.5", format!("{MISSING}; {LARGE}")),
            ("2.28.9", format!("{MISSING}; {LARGE}")),
        ] {
            let expected = format!("NCCL RAS was not queried, because NCCL {version} has faults: {faults}");
            assert_eq!(refused(&target(Some(version)), false).0, expected);
        }
    }

    #[test]
    fn a_process_without_ras_is_refused_even_with_consent() {
        let refused = |target: &RasTarget| {
            let refusal = refused(target, true);
            assert!(!refusal.2);
            (refusal.0, refusal.1)
        };
        let without = RasTarget { has_nccl: Some(false), ..target(None) };
        let expected = "NCCL RAS was not queried: the process has no NCCL library loaded";
        assert_eq!(refused(&without), (expected.into(), String::new()));
        assert_eq!(
            refused(&target(Some("2.21.5"))),
            (
                "NCCL RAS was not queried: NCCL 2.21.5 has no RAS, which is in NCCL 2.24.3 and newer".into(),
                "start the job with torch 2.12 or newer (NCCL 2.29.2 or newer)".into()
            )
        );
        let off = RasTarget { environment: b"A=1\0NCCL_RAS_ENABLE=0\0".to_vec(), ..target(Some("2.30.7")) };
        assert_eq!(
            refused(&off),
            (
                "NCCL RAS was not queried: NCCL_RAS_ENABLE in this job turns it off".into(),
                "start the job with NCCL_RAS_ENABLE=1".into()
            )
        );
        let portless = RasTarget { environment: b"NCCL_RAS_ADDR=localhost\0".to_vec(), ..target(Some("2.30.7")) };
        assert_eq!(
            refused(&portless),
            (
                "NCCL RAS was not queried: NCCL_RAS_ADDR in this job names no port".into(),
                "start the job with NCCL_RAS_ADDR=localhost:PORT".into()
            )
        );
    }

    #[test]
    fn another_network_namespace_is_refused_with_a_command_that_is_safe() {
        let other = |version| RasTarget { same_network: Some(false), ..target(Some(version)) };
        let reason = "NCCL RAS was not queried: the process is in another network namespace, as in a container";
        assert_eq!(
            refused(&other("2.29.7"), false),
            (reason.into(), "kubectl exec POD -- sh -c 'echo status | nc localhost 28028'".into(), false)
        );
        assert_eq!(
            refused(&other("2.27.5"), false),
            (reason.into(), "start the job with torch 2.12 or newer (NCCL 2.29.2 or newer)".into(), false)
        );
        let unknown = RasTarget { same_network: None, ..target(Some("2.29.7")) };
        assert_eq!(
            refused(&unknown, false).0,
            "NCCL RAS was not queried: the network namespace of the process cannot be read"
        );
    }

    #[test]
    fn the_environment_names_the_port_and_turns_ras_off() {
        for (value, expected) in [
            (None, Some(28028)),
            (Some("localhost:9000"), Some(9000)),
            (Some("[::1]:9001"), Some(9001)),
            (Some("[fe80::1%eth0]:9002"), Some(9002)),
            (Some("localhost"), None),
            (Some("localhost:"), None),
            (Some("localhost:0"), None),
            (Some("localhost:70000"), None),
            (Some(""), None),
        ] {
            assert_eq!(port(value), expected, "{value:?}");
        }
        for (value, expected) in [
            (None, true),
            (Some("1"), true),
            (Some(""), true),
            (Some(" 1x"), true),
            (Some("yes"), false),
            (Some("0"), false),
            (Some("2"), false),
        ] {
            assert_eq!(is_enabled(value), expected, "{value:?}");
        }
        let target = RasTarget { environment: b"XNCCL_RAS_ADDR=a:1\0NCCL_RAS_ADDRS=a:2\0".to_vec(), ..target(None) };
        assert!(target.setting("NCCL_RAS_ADDR").0.is_none());
    }

    #[test]
    fn configuration_files_count_after_the_environment_and_in_their_order() {
        let file = |name: &str, text: &str| ConfigurationFile { name: name.into(), text: text.as_bytes().to_vec() };
        let with = |environment: &str, own: &str| RasTarget {
            environment: environment.as_bytes().to_vec(),
            configuration: vec![
                file("~/.nccl.conf", own),
                file("/etc/nccl.conf", "NCCL_RAS_ADDR=localhost:9\nNCCL_RAS_ENABLE=0"),
            ],
            ..target(Some("2.30.7"))
        };
        let refused = |target: &RasTarget| {
            let (reason, remedy, is_risk) = refused(target, false);
            assert!(!is_risk);
            (reason, remedy)
        };
        assert_eq!(
            refused(&with("", "")),
            (
                "NCCL RAS was not queried: NCCL_RAS_ENABLE in /etc/nccl.conf turns it off".into(),
                "start the job with NCCL_RAS_ENABLE=1".into()
            )
        );
        assert_eq!(check(&with("NCCL_RAS_ENABLE=1", ""), false), Ok(9));
        assert_eq!(check(&with("", "NCCL_RAS_ENABLE=1\n#NCCL_RAS_ADDR=localhost:8\n"), false), Ok(9));
        assert_eq!(check(&with("", "NCCL_RAS_ENABLE=1\nNCCL_RAS_ADDR=[::1]:8\nNCCL_RAS_ADDR=a:7"), false), Ok(8));
        assert_eq!(
            refused(&with("", "NCCL_RAS_ENABLE=1\nNCCL_RAS_ADDR=localhost\n")),
            (
                "NCCL RAS was not queried: NCCL_RAS_ADDR in ~/.nccl.conf names no port".into(),
                "start the job with NCCL_RAS_ADDR=localhost:PORT".into()
            )
        );
    }
}
