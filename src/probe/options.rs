//! The command line. It is parsed by hand because a parser crate would be larger than the rest of the probe.

use super::decimal::{parse_decimal, thousandths};
use super::sampler::{DEFAULT_INTERVAL, MAX_INTERVAL, MIN_INTERVAL};
use std::ffi::OsString;
use std::time::Duration;

/// The output of `--help`.
pub(crate) const HELP: &str = "\
gpufleet-probe reads the GPUs, processes and load of this host for gpufleet.

Usage: gpufleet-probe [--interval SECONDS] [--nvml-library PATH] [--policy PATH] [--marks DIR]
       gpufleet-probe --once [--pretty] [--nvml-library PATH] [--policy PATH] [--marks DIR]

Without --once it serves a controller: JSON lines on standard output, requests on
standard input. It exits when standard input is closed, or after 30 s without a request.

Options:
  --once                 print one snapshot and exit
  --pretty               print text instead of JSON lines
  --interval SECONDS     time between snapshots, 0.25 to 60 (default 2)
  --nvml-library PATH    load this library instead of libnvidia-ml.so.1
  --policy PATH          apply this policy in addition to /etc/gpufleet/policy.json
  --marks DIR            directory of the lock file that keeps the probes of one user
                         away from a driver that hangs (default /dev/shm, else /tmp)
  --version              print the version
  --help                 print this text
";

/// Paths from the command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FileOptions {
    /// Replaces the default library paths.
    pub(crate) library: Option<String>,
    /// A policy file in addition to the administrator's.
    pub(crate) policy: Option<String>,
    /// Replaces the default directories of the peer hang lock.
    pub(crate) hang_lock_dir: Option<String>,
}

/// The parsed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Options {
    /// Serve a controller on standard input and output.
    Serve {
        /// The time between snapshots.
        interval: Duration,
        files: FileOptions,
    },
    /// Print one snapshot.
    Once {
        /// Print text instead of JSON.
        pretty: bool,
        files: FileOptions,
    },
    /// Print the version.
    Version,
    /// Print the help.
    Help,
}

impl Options {
    /// Parses the arguments after the program name.
    ///
    /// # Errors
    /// A message for the user.
    pub(crate) fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let (mut once, mut pretty, mut interval, mut files) = (false, false, None, FileOptions::default());
        let mut arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
        while let Some(argument) = arguments.next() {
            let (name, inline_value) = match argument.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (argument.as_str(), None),
            };
            let mut value =
                || inline_value.clone().or_else(|| arguments.next()).ok_or_else(|| format!("{name} needs a value"));
            match name {
                "--interval" => interval = Some(parse_interval(&value()?)?),
                "--nvml-library" => files.library = Some(value()?),
                "--policy" => files.policy = Some(value()?),
                "--marks" => files.hang_lock_dir = Some(value()?),
                "--once" if inline_value.is_none() => once = true,
                "--pretty" if inline_value.is_none() => pretty = true,
                "--version" | "-V" if inline_value.is_none() => return Ok(Self::Version),
                "--help" | "-h" if inline_value.is_none() => return Ok(Self::Help),
                _ => return Err(format!("unknown argument `{argument}`")),
            }
        }
        match (once, pretty, interval) {
            (true, _, Some(_)) => Err("--interval cannot be used with --once".to_owned()),
            (true, pretty, None) => Ok(Self::Once { pretty, files }),
            (false, true, _) => Err("--pretty requires --once".to_owned()),
            (false, false, interval) => Ok(Self::Serve { interval: interval.unwrap_or(DEFAULT_INTERVAL), files }),
        }
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_decimal(text).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    interval.filter(|interval| (MIN_INTERVAL..=MAX_INTERVAL).contains(interval)).ok_or_else(|| {
        let (min, max) = (thousandths(MIN_INTERVAL.as_secs_f64()), MAX_INTERVAL.as_secs());
        format!("--interval `{text}` is not a number of seconds from {min} to {max}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn options_are_read() {
        let serve = |seconds, library: Option<&str>| {
            Ok(Options::Serve {
                interval: Duration::from_secs_f64(seconds),
                files: FileOptions { library: library.map(Into::into), ..FileOptions::default() },
            })
        };
        assert_eq!(parse(""), serve(2.0, None));
        assert_eq!(parse("--interval 0.25 --nvml-library /x"), serve(0.25, Some("/x")));
        assert_eq!(parse("--nvml-library=/a=b --interval=60"), serve(60.0, Some("/a=b")));
        assert_eq!(parse("--once"), Ok(Options::Once { pretty: false, files: FileOptions::default() }));
        let files = FileOptions { library: None, policy: Some("/x".to_owned()), hang_lock_dir: Some("/y".to_owned()) };
        assert_eq!(parse("--pretty --once --policy /x --marks=/y"), Ok(Options::Once { pretty: true, files }));
        assert_eq!((parse("--version"), parse("--once -h")), (Ok(Options::Version), Ok(Options::Help)));
    }

    #[test]
    fn invalid_arguments_are_reported() {
        for (line, error) in [
            ("--frequency 3", "unknown argument `--frequency`"),
            ("once", "unknown argument `once`"),
            ("--once=yes", "unknown argument `--once=yes`"),
            ("--interval", "--interval needs a value"),
            ("--interval 0.1", "--interval `0.1` is not a number of seconds from 0.25 to 60"),
            ("--interval nan", "--interval `nan` is not a number of seconds from 0.25 to 60"),
            ("--interval 2s", "--interval `2s` is not a number of seconds from 0.25 to 60"),
            ("--pretty", "--pretty requires --once"),
            ("--once --interval 2", "--interval cannot be used with --once"),
        ] {
            assert_eq!(parse(line), Err(error.to_owned()), "{line}");
        }
    }
}
