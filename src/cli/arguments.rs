//! The command line.

use crate::config::{DurationError, parse_interval, parse_seconds};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A terminal monitor for the GPU servers of a small lab, over plain SSH.
#[derive(Debug, Parser)]
#[command(name = "gpufleet", disable_version_flag = true, max_term_width = 100, override_usage = USAGE, after_help = TARGETS_HELP)]
pub struct Cli {
    /// What to do; the screen when nothing is said.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// A hosts.toml, hosts, or `-` for hosts on standard input; hosts.toml of the configuration directory by default.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// How the screen looks.
    #[command(flatten)]
    pub screen: ScreenArgs,
    /// What every command takes.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// Print the version and the probes that are carried.
    #[arg(short = 'V', long)]
    pub version: bool,
}

const USAGE: &str = "\
gpufleet [OPTIONS] [TARGET]...
       gpufleet [OPTIONS] <COMMAND>";

const TARGETS_HELP: &str = "\
A TARGET is
  hosts.toml, ./lab    a file: it ends in .toml or holds a /
  gpu1, hgx-[01-04]    hosts, as ssh knows them; names beside a file select from it
  gpu*                 the hosts of ~/.ssh/config whose names match
  user@host:port       with login name and port; [::1]:22 for IPv6
  ssh://NAME           a host, whatever its name (\"status\" is a subcommand)
  -                    targets on standard input";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print the fleet once and exit.
    Status(StatusArgs),
    /// Print GPUs that are free, and what to type to use them.
    Free(FreeArgs),
    /// Print what is stuck, idle or failing, and why; --replay judges a recording.
    Findings(FindingsArgs),
    /// Write what the hosts send into a file, until Ctrl-C; docs/recording.md describes it.
    Record(RecordArgs),
    /// Walk the way to each host step by step, and say what to do where it ends.
    Doctor(HostsArgs),
    /// Remove the probes that gpufleet has put on the hosts.
    Clean(HostsArgs),
    /// Write a hosts.toml to fill in; overwrites nothing, connects nowhere.
    Init(InitArgs),
    /// Explain a kind of finding, or list them all; connects nowhere.
    Explain(ExplainArgs),
}

/// What `status` takes.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// A hosts.toml, hosts, or `-`; as without a subcommand.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// Print JSON, one line; docs/status-json.md describes it.
    #[arg(long)]
    pub json: bool,
    /// Print what there is after this many seconds. Time in which a question waits for you is not counted.
    #[arg(long, value_name = "S", default_value = "10", value_parser = timeout)]
    pub timeout: Duration,
}

/// What `free` takes.
#[derive(Debug, Args)]
pub struct FreeArgs {
    /// A hosts.toml, hosts, or `-`; as without a subcommand.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// Choose this many, on as few hosts as possible [default: all that are free].
    #[arg(short = 'n', long = "count", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub count: Option<u32>,
    /// Each with at least this much unused memory, for example 40G or 512M.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub mem: Option<u64>,
    /// Each of a model that contains this, for example H100.
    #[arg(long, value_name = "TEXT")]
    pub model: Option<String>,
    /// All of them on one host; needs -n.
    #[arg(long)]
    pub same_host: bool,
    /// Wait until there are some, however long it takes.
    #[arg(long)]
    pub wait: bool,
    /// Print JSON, one line; docs/free-json.md describes it.
    #[arg(long)]
    pub json: bool,
    /// Decide with the hosts that have reported after this many seconds.
    #[arg(long, value_name = "S", default_value = "10", value_parser = timeout)]
    pub timeout: Duration,
}

/// What `findings` takes.
#[derive(Debug, Args)]
pub struct FindingsArgs {
    /// A hosts.toml, hosts, or `-`; as without a subcommand.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// Watch for this many seconds before printing [default: 30].
    #[arg(long = "for", value_name = "S", value_parser = span)]
    pub duration: Option<Duration>,
    /// Print JSON, one line; docs/findings-json.md describes it.
    #[arg(long)]
    pub json: bool,
    /// Print every change as it happens, until Ctrl-C.
    #[arg(long)]
    pub watch: bool,
    /// Leave out what matters less.
    #[arg(long, value_enum, value_name = "S", default_value = "info")]
    pub min_severity: Level,
    /// Judge a recording in its own time, and print every change; docs/recording.md describes it.
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
}

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// Worth knowing.
    Info,
    /// Somebody should look.
    Warn,
    /// Work is lost, or will be.
    Crit,
}

/// What `record` takes.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// The file to write; one that exists is left alone.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// A hosts.toml, hosts, or `-`; as without a subcommand.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// Leave out user names and the arguments of commands.
    #[arg(long)]
    pub redact: bool,
    /// End after this many seconds [default: at Ctrl-C].
    #[arg(long = "for", value_name = "S", value_parser = span)]
    pub duration: Option<Duration>,
}

/// What a command takes that does one thing on each host.
#[derive(Debug, Args)]
pub struct HostsArgs {
    /// A hosts.toml, hosts, or `-`; as without a subcommand.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
}

/// What `init` takes.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Hosts to put into it; without them, those of ~/.ssh/config.
    #[arg(value_name = "HOST")]
    pub hosts: Vec<String>,
}

/// What `explain` takes.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// A rule, for example stuck-spin; all are listed when none is named.
    #[arg(value_name = "RULE")]
    pub rule: Option<String>,
}

/// How the screen looks.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct ScreenArgs {
    /// Colours of the screen [default: auto].
    #[arg(long, value_enum)]
    pub theme: Option<Theme>,
    /// Draw with ASCII characters only.
    #[arg(long)]
    pub ascii: bool,
    /// Change nothing on any host: send no signals, open no shell.
    #[arg(long)]
    pub readonly: bool,
    /// Also write what is done to reach each host, step by step, at the end of this file.
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
}

/// The colours of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Theme {
    /// As the terminal's background is.
    Auto,
    /// For a dark background.
    Dark,
    /// For a light background.
    Light,
    /// No colours.
    Mono,
}

/// What every command takes.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct GlobalArgs {
    /// Time between readings, 250ms to 60s [default: 2s, or as hosts.toml says].
    #[arg(long, global = true, value_name = "TIME", value_parser = interval)]
    pub interval: Option<Duration>,
    /// A key that is offered first, as `ssh -i` does.
    #[arg(short, long, global = true, value_name = "FILE")]
    pub identity_file: Option<PathBuf>,
    /// Read this instead of ~/.ssh/config, as `ssh -F` does.
    #[arg(long, global = true, value_name = "FILE")]
    pub ssh_config: Option<PathBuf>,
    /// Show a simulated fleet; nothing is connected to.
    #[arg(long, global = true)]
    pub demo: bool,
    /// Hosts of the simulated fleet, 1 to 10000 [default: 6].
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub demo_hosts: Option<u32>,
    /// GPUs of each simulated host, 1 to 64 [default: 8].
    #[arg(long, global = true, value_name = "M", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub demo_gpus: Option<u32>,
    /// How fast simulated time passes, 0.1 to 1000 [default: 1].
    #[arg(long, global = true, value_name = "X", value_parser = speed)]
    pub demo_speed: Option<f64>,
}

impl Cli {
    fn all_targets(&self) -> impl Iterator<Item = &String> {
        self.targets.iter().chain(self.command.iter().flat_map(Command::targets))
    }

    /// The words that name a subcommand, `help` among them.
    pub fn subcommands() -> Vec<String> {
        let mut command = Self::command();
        command.build();
        command.get_subcommands().map(|subcommand| subcommand.get_name().to_owned()).collect()
    }
}

impl Command {
    /// The targets given after the subcommand.
    pub fn targets(&self) -> &[String] {
        match self {
            Self::Status(status) => &status.targets,
            Self::Findings(findings) => &findings.targets,
            Self::Free(free) => &free.targets,
            Self::Record(record) => &record.targets,
            Self::Doctor(hosts) | Self::Clean(hosts) => &hosts.targets,
            Self::Init(_) | Self::Explain(_) => &[],
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Status(_) => "status",
            Self::Findings(_) => "findings",
            Self::Free(_) => "free",
            Self::Record(_) => "record",
            Self::Doctor(_) => "doctor",
            Self::Clean(_) => "clean",
            Self::Init(_) => "init",
            Self::Explain(_) => "explain",
        }
    }
}

/// Arguments that are right one by one and wrong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageError {
    message: String,
    hint: String,
}

impl fmt::Display for UsageError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}\n  hint: {}", self.message, self.hint)
    }
}

impl std::error::Error for UsageError {}

impl Cli {
    /// Checks what clap cannot: it does not enforce relations of global options across a subcommand.
    pub fn check(&self) -> Result<(), UsageError> {
        let error = |message: String, hint: &str| Err(UsageError { message, hint: hint.to_owned() });
        let Self { global, screen, .. } = self;
        let of_demo = [
            ("--demo-hosts", global.demo_hosts.is_some()),
            ("--demo-gpus", global.demo_gpus.is_some()),
            ("--demo-speed", global.demo_speed.is_some()),
        ];
        let of_connections =
            [("--identity-file", global.identity_file.is_some()), ("--ssh-config", global.ssh_config.is_some())];
        let of_screen = [
            ("--ascii", screen.ascii),
            ("--readonly", screen.readonly),
            ("--log", screen.log.is_some()),
            ("--theme", screen.theme.is_some()),
        ];
        match (first(&of_demo), first(&of_connections)) {
            (Some(option), _) if !global.demo => {
                return error(format!("{option} is for the simulated fleet"), "add --demo");
            }
            (_, Some(option)) if global.demo => {
                return error(format!("--demo connects to nothing, and takes no {option}"), "leave one of them out");
            }
            _ => {}
        }
        if global.demo && self.all_targets().next().is_some() {
            return error("--demo has its own hosts, and takes no TARGET".to_owned(), "leave one of them out");
        }
        let Some(command) = &self.command else { return Ok(()) };
        if let Some(option) = first(&of_screen) {
            return error(format!("{option} is for the screen"), "leave it out with a subcommand");
        }
        if !self.targets.is_empty() {
            return error(
                format!("`{}` stands before the subcommand `{}`", self.targets.join(" "), command.name()),
                "write the subcommand first, then its targets",
            );
        }
        match command {
            Command::Free(FreeArgs { same_host: true, count: None, .. }) => {
                error("--same-host tells where that many GPUs shall be, and no number is given".to_owned(), "add -n N")
            }
            Command::Findings(FindingsArgs { replay: Some(_), targets, duration, watch, .. }) => {
                let others = [
                    ("TARGET", !targets.is_empty()),
                    ("--demo", global.demo),
                    ("--for", duration.is_some()),
                    ("--watch", *watch),
                    ("--interval", global.interval.is_some()),
                ];
                match first(&others).or(first(&of_connections)) {
                    Some(other) => error(
                        format!("--replay judges a recording from its beginning to its end, and takes no {other}"),
                        "leave one of them out",
                    ),
                    None => Ok(()),
                }
            }
            Command::Explain(_) if global.demo || global.interval.is_some() || first(&of_connections).is_some() => {
                error(
                    "`explain` connects nowhere, and takes no such option".to_owned(),
                    "write `gpufleet explain RULE`",
                )
            }
            Command::Doctor(_) | Command::Clean(_) if global.demo => {
                error(format!("`{}` is for machines, not for the simulated fleet", command.name()), "leave --demo out")
            }
            Command::Init(_) if global.demo => error("`init` has no simulation".to_owned(), "leave --demo out"),
            Command::Init(_) if global.interval.is_some() || global.identity_file.is_some() => {
                let hint = "write the file, then set `interval` or `identity_file` in it";
                error("`init` takes neither --interval nor --identity-file".to_owned(), hint)
            }
            _ => Ok(()),
        }
    }
}

/// The first of the options that is given.
fn first<'a>(options: &[(&'a str, bool)]) -> Option<&'a str> {
    options.iter().find(|(_, is_given)| *is_given).map(|(option, _)| *option)
}

fn interval(text: &str) -> Result<Duration, String> {
    parse_interval(text, 0..text.len()).map_err(|diagnostic| match diagnostic.hint {
        Some(hint) => format!("{} ({hint})", diagnostic.message),
        None => diagnostic.message,
    })
}

/// Memory: `40G`, `512M`, `1.5T`; a bare number is GiB, as nearly everybody means it.
fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.find(|character: char| character.is_ascii_alphabetic()) {
        Some(at) => text.split_at(at),
        None => (text, "G"),
    };
    let shift = match unit.to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err("write a size with M, G or T, for example 40G".to_owned()),
    };
    match number.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 1_000_000.0 => Ok((number * (1_u64 << shift) as f64) as u64),
        _ => Err("write a size, for example 40G".to_owned()),
    }
}

fn timeout(text: &str) -> Result<Duration, String> {
    seconds_up_to(3600, text)
}

/// A time to observe on the fleet's clock: up to 30 days.
fn span(text: &str) -> Result<Duration, String> {
    seconds_up_to(2_592_000, text)
}

/// A time with a unit, or seconds without one.
fn seconds_up_to(most: u32, text: &str) -> Result<Duration, String> {
    let seconds = match parse_seconds(text) {
        Ok(seconds) | Err(DurationError::MissingUnit(seconds)) => Some(seconds),
        Err(DurationError::Malformed) => None,
    };
    match seconds.filter(|seconds| (0.1..=f64::from(most)).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
        None => Err(format!("write seconds, from 0.1 to {most}")),
    }
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if (0.1..=1000.0).contains(&speed) => Ok(speed),
        _ => Err("write a number from 0.1 to 1000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str) -> Result<(), String> {
        let words = std::iter::once("gpufleet").chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        cli.check().map_err(|error| error.to_string())
    }

    fn first_line(line: &str) -> String {
        let error = check(line).expect_err(line);
        error.lines().next().unwrap_or_default().to_owned()
    }

    #[test]
    fn clap_finds_no_fault_in_the_definition() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_people_type_is_taken() {
        for line in [
            "",
            "hosts.toml",
            "gpu1 bob@gpu2:22 -",
            "--demo --demo-hosts 3 --demo-gpus 2 --demo-speed 10",
            "status --json --timeout 5 hosts.toml",
            "--demo status --json",
            "status --demo",
            "--interval 1s status gpu1",
            "status gpu1 --interval 500ms -i /k",
            "--theme light --ascii gpu1",
            "init gpu1",
            "free",
            "free -n 2 --mem 40G --model H100 --same-host --wait --json --timeout 5 hosts.toml",
            "--demo free",
            "findings --for 5 --json --min-severity warn gpu1",
            "findings --watch --demo --demo-speed 60",
            "findings --replay lab.jsonl --json",
            "record lab.jsonl gpu1 hosts.toml --redact --for 600",
            "--demo record lab.jsonl",
            "explain",
            "explain stuck-spin",
            "--version",
        ] {
            assert_eq!(check(line), Ok(()), "{line}");
        }
    }

    #[test]
    fn what_does_not_go_together_is_said() {
        let table = [
            ("--demo-hosts 3", "--demo-hosts is for the simulated fleet"),
            ("status --demo-speed 3", "--demo-speed is for the simulated fleet"),
            ("--demo gpu1", "--demo has its own hosts, and takes no TARGET"),
            ("--demo status gpu1", "--demo has its own hosts, and takes no TARGET"),
            ("--demo --ssh-config c", "--demo connects to nothing, and takes no --ssh-config"),
            ("--demo -i k", "--demo connects to nothing, and takes no --identity-file"),
            (
                "findings --replay lab.jsonl gpu1",
                "--replay judges a recording from its beginning to its end, and takes no TARGET",
            ),
            (
                "--demo findings --replay lab.jsonl",
                "--replay judges a recording from its beginning to its end, and takes no --demo",
            ),
            ("--demo record lab.jsonl gpu1", "--demo has its own hosts, and takes no TARGET"),
            ("free --same-host", "--same-host tells where that many GPUs shall be, and no number is given"),
            ("--demo free gpu1", "--demo has its own hosts, and takes no TARGET"),
            ("--theme dark status", "--theme is for the screen"),
            ("--readonly status gpu1", "--readonly is for the screen"),
            ("--ascii status gpu1", "--ascii is for the screen"),
            ("--demo init", "`init` has no simulation"),
            ("explain --demo", "`explain` connects nowhere, and takes no such option"),
            ("init --interval 2s", "`init` takes neither --interval nor --identity-file"),
        ];
        for (line, message) in table {
            assert_eq!(first_line(line), message, "{line}");
        }
    }

    #[test]
    fn values_are_checked() {
        let table = [
            (
                "--interval 2",
                "error: invalid value '2' for '--interval <TIME>': the interval `2` has no unit (write a number and a unit, \"250ms\" to \"60s\", as in interval = \"2s\")",
            ),
            ("--demo --demo-hosts 0", "error: invalid value '0' for '--demo-hosts <N>': 0 is not in 1..=10000"),
            (
                "--demo --demo-speed nan",
                "error: invalid value 'nan' for '--demo-speed <X>': write a number from 0.1 to 1000",
            ),
            ("status --timeout -1", "error: unexpected argument '-1' found"),
            ("status --timeout 0", "error: invalid value '0' for '--timeout <S>': write seconds, from 0.1 to 3600"),
            (
                "record lab.jsonl --for 0",
                "error: invalid value '0' for '--for <S>': write seconds, from 0.1 to 2592000",
            ),
            ("--theme pink", "error: invalid value 'pink' for '--theme <THEME>'"),
        ];
        for (line, message) in table {
            assert_eq!(first_line(line), message, "{line}");
        }
    }

    #[test]
    fn a_subcommand_after_a_target_never_passes_in_silence() {
        let cli = Cli::try_parse_from(["gpufleet", "hosts.toml", "status"]).expect("parses");
        // clap takes the word for a target; the selection of hosts refuses it there.
        assert!(cli.check().is_err() || cli.targets == ["hosts.toml", "status"]);
        assert_eq!(
            Cli::subcommands(),
            ["status", "free", "findings", "record", "doctor", "clean", "init", "explain", "help"]
        );
    }

    #[test]
    fn seconds_may_stand_alone() {
        let half_a_minute = Ok(Duration::from_secs(30));
        for text in ["30", "30s", "0.5m"] {
            assert_eq!(timeout(text), half_a_minute, "{text}");
        }
        for text in ["", "s", "0", "-1", "nan", "2h", "3601"] {
            assert_eq!(timeout(text), Err("write seconds, from 0.1 to 3600".to_owned()), "{text}");
        }
    }

    #[test]
    fn sizes_are_binary() {
        for (text, bytes) in
            [("40G", 40 << 30), ("40", 40 << 30), ("512MiB", 512 << 20), ("1.5t", 3 << 39), ("40gb", 40 << 30)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1G", "40K", "nanG", "40G5", "1e99G"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
