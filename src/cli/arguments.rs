//! The command line: its definition for clap, the values of its options, and checks that clap cannot do.

use crate::config::{DurationError, MAX_PRICE, parse_interval, parse_seconds};
use crate::output::csv::Columns;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// A terminal monitor for the GPU servers of a small lab, over plain SSH.
#[derive(Debug, Parser)]
#[command(name = "gpufleet", disable_version_flag = true, max_term_width = 100, override_usage = USAGE, after_help = TARGETS_HELP)]
pub struct Cli {
    /// The subcommand; the screen without one.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// A hosts.toml, hosts, or `-` for targets on standard input [default: hosts.toml in the configuration directory].
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// Options of the screen.
    #[command(flatten)]
    pub screen: ScreenArgs,
    /// Options of all subcommands.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// Print the version and the embedded probes.
    #[arg(short = 'V', long)]
    pub version: bool,
}

const USAGE: &str = "\
gpufleet [OPTIONS] [TARGET]...
       gpufleet [OPTIONS] <COMMAND>";

const TARGETS_HELP: &str = "\
A TARGET is
  hosts.toml, ./lab    a file: it ends in .toml or contains a /
  gpu1, hgx-[01-04]    hosts as ssh knows them; with a file, hosts of that file
  gpu*                 the hosts of ~/.ssh/config whose names match
  @rack1               the hosts of hosts.toml with this group or tag
  user@host:port       with login name and port; [::1]:22 for IPv6
  ssh://NAME           a host, even if its name is a subcommand
  -                    read targets from standard input";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print the state of all hosts, once or repeatedly.
    Status(StatusArgs),
    /// Print free GPUs and the commands to use them.
    Free(FreeArgs),
    /// Print hung, idle or failing work with its cause; --replay evaluates a recording.
    Findings(FindingsArgs),
    /// Examine a job that looks hung, and print which host, rank and operation hold it up.
    Why(WhyArgs),
    /// Record the updates of all hosts to a file, until Ctrl-C; see docs/recording.md.
    Record(RecordArgs),
    /// Watch all hosts without a screen, as a service, and notify of findings; see docs/collector.md.
    Collect(CollectArgs),
    /// Print who used the GPUs, from the history of the collector; does not connect; see docs/collector.md.
    Report(ReportArgs),
    /// Show the history of a host or GPU on the screen over hours, days and weeks; see docs/collector.md.
    History(HistoryArgs),
    /// Connect standard input and output to the collector on this machine, for gpufleet --collector.
    Relay(RelayArgs),
    /// Check the connection to each host step by step and suggest how to repair it.
    Doctor(DoctorArgs),
    /// Remove the probes that gpufleet installed on the hosts.
    Clean(HostsArgs),
    /// Write a hosts.toml to edit; overwrites nothing and does not connect.
    Init(InitArgs),
    /// Explain a rule of the diagnosis, or list all rules; does not connect.
    Explain(ExplainArgs),
    /// Print the code that completes gpufleet's arguments in a shell.
    Completions(CompletionsArgs),
    /// Print a manual page in the format of man.
    Man(ManArgs),
    /// Print the JSON Schema of a file or of an output.
    Schema(SchemaArgs),
}

/// Options of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// A hosts.toml, hosts, or `-` for standard input, as without a subcommand.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// Print one line of JSON; see docs/status-json.md.
    #[arg(long)]
    pub json: bool,
    /// Print one line of CSV per GPU, as `nvidia-smi --query-gpu` does; see docs/status-csv.md.
    #[arg(long)]
    pub csv: bool,
    /// Columns of the CSV, separated by commas, or `all`; see docs/status-csv.md.
    #[arg(long, value_name = "NAMES", value_parser = Columns::parse)]
    pub columns: Option<Columns>,
    /// Print the samples of a recording as CSV instead of hosts; see docs/recording.md.
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    /// Print the state after this many seconds. Time with an open prompt does not count.
    #[arg(long, value_name = "S", default_value = "10", value_parser = timeout)]
    pub timeout: Duration,
    /// Print the state again every S seconds, 5 by default, until Ctrl-C. The connections stay open.
    #[arg(short, long, visible_alias = "loop", value_name = "S", num_args = 0..=1, default_missing_value = "5", value_parser = period)]
    pub watch: Option<Duration>,
    /// Ask the hosts, even if a collector on this machine watches them.
    #[arg(long)]
    pub direct: bool,
}

/// Options of `free`.
#[allow(clippy::struct_excessive_bools, reason = "independent options")]
#[derive(Debug, Args)]
pub struct FreeArgs {
    /// A hosts.toml, hosts, or `-` for standard input, as without a subcommand.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// Select this many GPUs on as few hosts as possible [default: all free GPUs].
    #[arg(short = 'n', long = "count", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub count: Option<u32>,
    /// Minimum unused memory of each GPU, for example 40G or 512M.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub mem: Option<u64>,
    /// Select GPUs whose model contains this text, for example H100.
    #[arg(long, value_name = "TEXT")]
    pub model: Option<String>,
    /// Select GPUs of a single host; needs -n.
    #[arg(long)]
    pub same_host: bool,
    /// Wait until enough GPUs are free, without a time limit.
    #[arg(long)]
    pub wait: bool,
    /// Print one line of JSON; see docs/free-json.md.
    #[arg(long)]
    pub json: bool,
    /// After this many seconds, use the hosts that have reported by then.
    #[arg(long, value_name = "S", default_value = "10", value_parser = timeout)]
    pub timeout: Duration,
    /// Ask the hosts, even if a collector on this machine watches them.
    #[arg(long)]
    pub direct: bool,
}

/// Options of `findings`.
#[derive(Debug, Args)]
pub struct FindingsArgs {
    /// A hosts.toml, hosts, or `-` for standard input, as without a subcommand.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// Watch for this many seconds before printing [default: 30].
    #[arg(long = "for", value_name = "S", value_parser = span)]
    pub duration: Option<Duration>,
    /// Print one line of JSON; see docs/findings-json.md.
    #[arg(long)]
    pub json: bool,
    /// Print every change when it happens, until Ctrl-C.
    #[arg(long)]
    pub watch: bool,
    /// Print only findings of at least this severity.
    #[arg(long, value_enum, value_name = "S", default_value = "info")]
    pub min_severity: Level,
    /// Ask the hosts, even if a collector on this machine watches them.
    #[arg(long)]
    pub direct: bool,
    /// Evaluate a recording instead of hosts and print every change; see docs/recording.md.
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
}

/// Options of `why`.
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// A process of the job as HOST:PID [default: the job with the worst finding]; then a hosts.toml or hosts, as without a
    /// subcommand.
    #[arg(value_name = "HOST:PID | TARGET")]
    pub words: Vec<String>,
    /// Query NCCL RAS even if its version is unknown or has faults by which a query may crash the job.
    #[arg(long)]
    pub ask_ras: bool,
    /// Print one line of JSON; see docs/why-json.md.
    #[arg(long)]
    pub json: bool,
    /// After this many seconds, use the hosts that have reported by then.
    #[arg(long, value_name = "S", default_value = "10", value_parser = timeout)]
    pub timeout: Duration,
}

/// A process on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WhyTarget {
    /// The name of the host.
    pub host: String,
    /// The process id.
    pub pid: u32,
}

impl WhyArgs {
    /// Returns the process, if the first word names one.
    pub fn target(&self) -> Option<WhyTarget> {
        let (host, pid) = self.words.first()?.rsplit_once(':')?;
        // `user@host:22` and `ssh://host:22` are targets, as everywhere.
        let is_host = !host.is_empty() && !host.contains(['@', '/', '[', ']', ':']);
        let pid = pid.parse().ok().filter(|_| is_host)?;
        Some(WhyTarget { host: host.to_owned(), pid })
    }

    /// The words after the process.
    fn targets(&self) -> &[String] {
        if self.target().is_some() { self.words.get(1..).unwrap_or_default() } else { &self.words }
    }
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// For information.
    Info,
    /// Needs attention.
    Warn,
    /// Work is lost or will be lost.
    Crit,
}

/// Options of `record`.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// The file to write; an existing file is not overwritten.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// A hosts.toml, hosts, or `-` for standard input, as without a subcommand.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// Leave out user names and command arguments.
    #[arg(long)]
    pub redact: bool,
    /// Stop after this many seconds [default: at Ctrl-C].
    #[arg(long = "for", value_name = "S", value_parser = span)]
    pub duration: Option<Duration>,
}

/// Options of `collect`.
#[derive(Debug, Args)]
pub struct CollectArgs {
    /// A hosts.toml, hosts, or `-` for standard input, as without a subcommand.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// Print a systemd user unit that starts the collector; does not connect.
    #[arg(long)]
    pub print_unit: bool,
    /// The file of the history [default: history.db in the state directory; none with --demo].
    #[arg(long, value_name = "FILE")]
    pub store: Option<PathBuf>,
    /// Write a recording into the history instead of watching hosts; see docs/recording.md.
    #[arg(long, value_name = "FILE")]
    pub import: Option<PathBuf>,
    /// Serve metrics for Prometheus at http://ADDRESS/metrics, 127.0.0.1:9846 by default; see docs/metrics.md. Write
    /// targets before it.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = DEFAULT_METRICS, value_parser = metrics_address)]
    pub metrics: Option<SocketAddr>,
    /// Add metrics per user, program and Slurm job to those of --metrics. Their labels change with every job.
    #[arg(long)]
    pub per_process: bool,
    /// Offer the socket for viewers here [default: collect.sock in the state directory].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Let the members of this group use the socket; `share` in hosts.toml decides what they see.
    #[arg(long, value_name = "NAME")]
    pub socket_group: Option<String>,
}

/// Options of `relay`.
#[derive(Debug, Args)]
pub struct RelayArgs {
    /// The socket of the collector [default: that of this account, then /run/gpufleet/collect.sock].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Options of `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// A hosts.toml whose `[cost]` has the prices [default: the standard hosts.toml].
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The start: a time ago (90m, 24h, 7d, 4w), a date, or a time as 2026-11-17T08:00:00Z.
    #[arg(long, value_name = "TIME", default_value = "7d")]
    pub since: String,
    /// The end, in the same forms [default: now].
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// The subject of a row.
    #[arg(long, value_enum, value_name = "WHAT", default_value = "user")]
    pub by: ReportBy,
    /// Print the rows as CSV.
    #[arg(long, conflicts_with_all = ["json", "html"])]
    pub csv: bool,
    /// Print one line of JSON.
    #[arg(long, conflicts_with = "html")]
    pub json: bool,
    /// Write a self-contained HTML page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// The price of a GPU-hour of models whose name contains MODEL, for example H100=2.5; may be repeated; overrides `[cost]`.
    #[arg(long, value_name = "MODEL=PRICE", value_parser = gpu_hour_price)]
    pub gpu_hour: Vec<(String, f64)>,
    /// The price of a kilowatt-hour; overrides `[cost]`.
    #[arg(long, value_name = "PRICE", value_parser = price)]
    pub kwh: Option<f64>,
    /// The file of the history [default: history.db in the state directory].
    #[arg(long, value_name = "FILE")]
    pub store: Option<PathBuf>,
}

/// Options of `history`.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// The host, or one of its GPUs by its index.
    #[arg(value_name = "HOST[:GPU]")]
    pub host: String,
    /// A hosts.toml, as without a subcommand.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// The file of the history [default: history.db in the state directory; that of the collector with --collector].
    #[arg(long, value_name = "FILE")]
    pub store: Option<PathBuf>,
    /// Options of the screen.
    #[command(flatten)]
    pub screen: ScreenArgs,
}

impl HistoryArgs {
    /// Returns the host and the index of its GPU.
    pub fn host_and_gpu(&self) -> (&str, Option<u32>) {
        // `[::1]`, `user@host:22` and `ssh://host:22` are targets, as everywhere.
        let parts = self.host.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !host.contains(['@', '/', ':']));
        match parts.and_then(|(host, gpu)| Some((host, gpu.parse().ok()?))) {
            Some((host, gpu)) => (host, Some(gpu)),
            None => (&self.host, None),
        }
    }

    /// Returns the targets, of which the last one is the host.
    pub fn all_targets(&self) -> Vec<String> {
        self.targets.iter().cloned().chain([self.host_and_gpu().0.to_owned()]).collect()
    }
}

/// The subject of a row of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportBy {
    /// A user.
    User,
    /// A host.
    Host,
    /// A GPU.
    Gpu,
    /// A job on one host.
    Job,
    /// A day in local time; in UTC if the period is longer than 92 days.
    Day,
}

/// Arguments of a command that runs once on each host.
#[derive(Debug, Args)]
pub struct HostsArgs {
    /// A hosts.toml, hosts, or `-` for standard input, as without a subcommand.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
}

/// Options of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// A hosts.toml, hosts, or `-` for standard input, as without a subcommand.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// Refuse prompts as a collector does, and name each one that a login needs.
    #[arg(long)]
    pub unattended: bool,
}

/// Arguments of `init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Hosts to write into the file [default: the hosts of ~/.ssh/config].
    #[arg(value_name = "HOST")]
    pub hosts: Vec<String>,
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// A rule, for example stuck-spin [default: list all rules].
    #[arg(value_name = "RULE")]
    pub rule: Option<String>,
}

/// Arguments of `schema`.
#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// The file or output.
    #[arg(value_enum)]
    pub name: SchemaName,
}

/// A file that gpufleet reads, or an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SchemaName {
    /// hosts.toml.
    Hosts,
    /// settings.toml.
    Settings,
    /// `status --json`.
    Status,
    /// `findings --json`.
    Findings,
    /// A line of `findings --json` with --watch or --replay.
    FindingsChange,
    /// `free --json`.
    Free,
    /// `why --json`.
    Why,
    /// `report --json`.
    Report,
    /// The standard input of the program of `on_finding`.
    Notification,
    /// A line of a recording.
    Recording,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_HELP)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

const COMPLETIONS_HELP: &str = "\
Add the line of your shell to its start-up file:
  bash  source <(gpufleet completions bash)            in ~/.bashrc
  zsh   source <(gpufleet completions zsh)             in ~/.zshrc, after compinit
  fish  gpufleet completions fish | source             in ~/.config/fish/config.fish";

/// A shell that can complete arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// GNU Bash, 3.2 or later.
    Bash,
    /// Z shell.
    Zsh,
    /// fish.
    Fish,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// A subcommand [default: the page about gpufleet].
    #[arg(value_name = "COMMAND")]
    pub command: Option<String>,
}

/// Options of the screen.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct ScreenArgs {
    /// Colours of the screen [default: auto].
    #[arg(long, value_enum)]
    pub theme: Option<Theme>,
    /// Draw with ASCII characters only [default: if the locale is not UTF-8, or on a Linux console].
    #[arg(long, overrides_with = "no_ascii")]
    pub ascii: bool,
    /// Draw with Unicode characters whatever the locale.
    #[arg(long, overrides_with = "ascii")]
    pub no_ascii: bool,
    /// Read-only: send no signals and open no shell.
    #[arg(long)]
    pub readonly: bool,
    /// Append every connection step of each host to this file.
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
}

/// The colours of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Theme {
    /// Follow the background of the terminal.
    Auto,
    /// For a dark background.
    Dark,
    /// For a light background.
    Light,
    /// No colours.
    Mono,
}

/// Options of all subcommands.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub struct GlobalArgs {
    /// Show the hosts of the collector on this machine, over one SSH session; the screen takes several; see
    /// docs/collector-protocol.md.
    #[arg(long = "collector", global = true, value_name = "[USER@]HOST")]
    pub collectors: Vec<String>,
    /// Time between readings, 250ms to 60s [default: 2s, or the value in hosts.toml].
    #[arg(long, global = true, value_name = "TIME", value_parser = interval)]
    pub interval: Option<Duration>,
    /// A private key to try first, as with `ssh -i`.
    #[arg(short, long, global = true, value_name = "FILE")]
    pub identity_file: Option<PathBuf>,
    /// Read this file instead of ~/.ssh/config, as with `ssh -F`.
    #[arg(long, global = true, value_name = "FILE")]
    pub ssh_config: Option<PathBuf>,
    /// Show a simulated fleet; does not connect.
    #[arg(long, global = true)]
    pub demo: bool,
    /// Number of simulated hosts, 1 to 10000 [default: 6].
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub demo_hosts: Option<u32>,
    /// Number of GPUs per simulated host, 1 to 64 [default: 8].
    #[arg(long, global = true, value_name = "M", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub demo_gpus: Option<u32>,
    /// Speed of simulated time, 0.1 to 1000 [default: 1].
    #[arg(long, global = true, value_name = "X", value_parser = speed)]
    pub demo_speed: Option<f64>,
}

/// The subcommands that do not take some of the global options, with the options that they take.
const TAKES_ONLY: [(&str, &[&str]); 8] = [
    ("report", &[]),
    ("completions", &[]),
    ("relay", &[]),
    ("explain", &[]),
    ("man", &[]),
    ("init", &["ssh_config"]),
    ("doctor", &["interval", "identity_file", "ssh_config"]),
    ("clean", &["identity_file", "ssh_config"]),
];

impl Cli {
    /// Parses the command line of this process; ends it with a message if that is not possible.
    pub fn from_command_line() -> Self {
        let matches = Self::definition().get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// Returns the definition for clap, in which the help of a subcommand does not list global options that it rejects.
    pub fn definition() -> clap::Command {
        let mut command = Self::command();
        // Only a built definition has the global options in its subcommands.
        command.build();
        command.mut_subcommands(|subcommand| {
            let Some((_, taken)) = TAKES_ONLY.iter().find(|(name, _)| *name == subcommand.get_name()) else {
                return subcommand;
            };
            subcommand.mut_args(|arg| {
                let is_rejected = arg.is_global_set() && !taken.contains(&arg.get_id().as_str());
                if is_rejected { arg.hide(true) } else { arg }
            })
        })
    }

    fn all_targets(&self) -> impl Iterator<Item = &String> {
        self.targets.iter().chain(self.command.iter().flat_map(Command::targets))
    }

    /// Returns the names of the subcommands, including `help`.
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
            Self::Why(why) => why.targets(),
            Self::Record(record) => &record.targets,
            Self::Collect(collect) => &collect.targets,
            Self::History(history) => &history.targets,
            Self::Doctor(DoctorArgs { targets, .. }) | Self::Clean(HostsArgs { targets }) => targets,
            Self::Report(_)
            | Self::Relay(_)
            | Self::Init(_)
            | Self::Explain(_)
            | Self::Completions(_)
            | Self::Man(_)
            | Self::Schema(_) => &[],
        }
    }

    /// Whether the command can show the hosts of a collector.
    fn takes_collector(&self) -> bool {
        matches!(self, Self::Status(_) | Self::Free(_) | Self::Findings(_) | Self::Why(_) | Self::History(_))
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Status(_) => "status",
            Self::Findings(_) => "findings",
            Self::Free(_) => "free",
            Self::Why(_) => "why",
            Self::Record(_) => "record",
            Self::Collect(_) => "collect",
            Self::Report(_) => "report",
            Self::History(_) => "history",
            Self::Relay(_) => "relay",
            Self::Doctor(_) => "doctor",
            Self::Clean(_) => "clean",
            Self::Init(_) => "init",
            Self::Explain(_) => "explain",
            Self::Completions(_) => "completions",
            Self::Man(_) => "man",
            Self::Schema(_) => "schema",
        }
    }
}

/// Arguments that are valid one by one but not together: a message and a hint.
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
    /// Whether the hosts of the collector on this machine can stand for missing hosts.
    pub fn accepts_local_collector(&self) -> bool {
        let is_direct = matches!(
            self.command,
            Some(
                Command::Status(StatusArgs { direct: true, .. })
                    | Command::Free(FreeArgs { direct: true, .. })
                    | Command::Findings(FindingsArgs { direct: true, .. })
            )
        );
        self.command.as_ref().is_none_or(Command::takes_collector) && !is_direct
    }

    /// Checks relations between options. clap does not enforce them between a global option and a subcommand.
    pub fn check(&self) -> Result<(), UsageError> {
        let error = |message: String, hint: &str| Err(UsageError { message, hint: hint.to_owned() });
        let Self { global, screen, .. } = self;
        let demo_options = [
            ("--demo-hosts", global.demo_hosts.is_some()),
            ("--demo-gpus", global.demo_gpus.is_some()),
            ("--demo-speed", global.demo_speed.is_some()),
        ];
        let connection_options =
            [("--identity-file", global.identity_file.is_some()), ("--ssh-config", global.ssh_config.is_some())];
        let screen_options = [
            ("--ascii", screen.ascii),
            ("--no-ascii", screen.no_ascii),
            ("--readonly", screen.readonly),
            ("--log", screen.log.is_some()),
            ("--theme", screen.theme.is_some()),
        ];
        match (first(&demo_options), first(&connection_options)) {
            (Some(option), _) if !global.demo => {
                return error(format!("{option} needs --demo"), "add --demo");
            }
            (_, Some(option)) if global.demo => {
                return error(
                    format!("--demo does not connect to hosts and does not take {option}"),
                    "leave one of them out",
                );
            }
            _ => {}
        }
        if global.demo && self.all_targets().next().is_some() {
            return error("--demo simulates its hosts and does not take a TARGET".to_owned(), "leave one of them out");
        }
        if !global.collectors.is_empty() && global.demo {
            return error(
                "--collector shows the hosts of a collector and does not take --demo".to_owned(),
                "leave one of them out",
            );
        }
        let Some(command) = &self.command else { return Ok(()) };
        if !global.collectors.is_empty() && !command.takes_collector() {
            let hint = "the screen, `status`, `free`, `findings`, `why` and `history` take --collector";
            return error(format!("`{}` does not take --collector", command.name()), hint);
        }
        if global.collectors.len() > 1 && !matches!(command, Command::History(_)) {
            return error(
                format!("`{}` takes one --collector", command.name()),
                "the screen and `history` show the hosts of several",
            );
        }
        if let Some(option) = first(&screen_options) {
            return error(format!("{option} applies only to the screen"), "leave it out with a subcommand");
        }
        if !self.targets.is_empty() {
            return error(
                format!("`{}` is before the subcommand `{}`", self.targets.join(" "), command.name()),
                "write the subcommand first, then its targets",
            );
        }
        match command {
            Command::History(HistoryArgs { store: Some(_), .. }) if !global.collectors.is_empty() => error(
                "--collector shows the history of the collector and does not take --store".to_owned(),
                "leave one of them out",
            ),
            Command::History(HistoryArgs { store: None, .. }) if global.demo => {
                error("the simulated fleet has no history".to_owned(), "name the file of a history with --store")
            }
            Command::Collect(CollectArgs { per_process: true, metrics: None, .. }) => {
                error("--per-process adds metrics".to_owned(), "add --metrics")
            }
            Command::Collect(CollectArgs { print_unit: true, .. }) if global.demo => {
                error("--print-unit does not take --demo".to_owned(), "leave one of them out")
            }
            Command::Status(StatusArgs { csv: true, json: true, .. }) => {
                error("--csv and --json are two formats".to_owned(), "leave one of them out")
            }
            Command::Status(StatusArgs { csv: false, columns: Some(_), .. }) => {
                error("--columns selects columns of the CSV".to_owned(), "add --csv")
            }
            Command::Status(StatusArgs { csv: false, replay: Some(_), .. }) => {
                error("--replay prints a recording as CSV".to_owned(), "add --csv")
            }
            Command::Status(StatusArgs { replay: Some(_), targets, .. }) => {
                let others = [
                    ("TARGET", !targets.is_empty()),
                    ("--demo", global.demo),
                    ("--interval", global.interval.is_some()),
                ];
                match first(&others).or(first(&connection_options)) {
                    Some(other) => {
                        error(format!("--replay prints a recording and does not take {other}"), "leave one of them out")
                    }
                    None => Ok(()),
                }
            }
            Command::Free(FreeArgs { same_host: true, count: None, .. }) => {
                error("--same-host needs a number of GPUs".to_owned(), "add -n N")
            }
            Command::Findings(FindingsArgs { replay: Some(_), targets, duration, watch, .. }) => {
                let others = [
                    ("TARGET", !targets.is_empty()),
                    ("--demo", global.demo),
                    ("--for", duration.is_some()),
                    ("--watch", *watch),
                    ("--interval", global.interval.is_some()),
                ];
                match first(&others).or(first(&connection_options)) {
                    Some(other) => error(
                        format!("--replay evaluates a recording and does not take {other}"),
                        "leave one of them out",
                    ),
                    None => Ok(()),
                }
            }
            Command::Report(_)
            | Command::Relay(_)
            | Command::Explain(_)
            | Command::Completions(_)
            | Command::Man(_)
            | Command::Schema(_)
                if global.demo || global.interval.is_some() || first(&connection_options).is_some() =>
            {
                error(
                    format!("`{}` does not connect to hosts and does not take this option", command.name()),
                    "leave the option out",
                )
            }
            Command::Doctor(_) | Command::Clean(_) if global.demo => {
                error(format!("`{}` does not work on the simulated fleet", command.name()), "leave --demo out")
            }
            Command::Init(_) if global.demo => {
                error("`init` does not work on the simulated fleet".to_owned(), "leave --demo out")
            }
            Command::Init(_) if global.interval.is_some() || global.identity_file.is_some() => {
                let hint = "write the file, then set `interval` or `identity_file` in it";
                error("`init` takes neither --interval nor --identity-file".to_owned(), hint)
            }
            _ => Ok(()),
        }
    }
}

/// Returns the first option that is set.
fn first<'a>(options: &[(&'a str, bool)]) -> Option<&'a str> {
    options.iter().find(|(_, is_given)| *is_given).map(|(option, _)| *option)
}

fn interval(text: &str) -> Result<Duration, String> {
    parse_interval(text, 0..text.len()).map_err(|diagnostic| match diagnostic.hint {
        Some(hint) => format!("{} ({hint})", diagnostic.message),
        None => diagnostic.message,
    })
}

/// Parses a memory size, `40G`, `512M` or `1.5T`. A number without a unit is in GiB.
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

fn price(text: &str) -> Result<f64, String> {
    let price = text.parse::<f64>().ok().filter(|price| (0.0..=MAX_PRICE).contains(price));
    price.ok_or_else(|| "write a price, for example 2.5".to_owned())
}

fn gpu_hour_price(text: &str) -> Result<(String, f64), String> {
    let parts = text.rsplit_once('=').filter(|(model, _)| !model.is_empty());
    let (model, text) = parts.ok_or_else(|| "write a model and a price, for example H100=2.5".to_owned())?;
    Ok((model.to_owned(), price(text)?))
}

/// The address of `--metrics` without a value.
const DEFAULT_METRICS: &str = "127.0.0.1:9846";

/// Parses an IP address and a port, or a port of 127.0.0.1.
fn metrics_address(text: &str) -> Result<SocketAddr, String> {
    let on_loopback = || text.parse().ok().map(|port: u16| SocketAddr::from(([127, 0, 0, 1], port)));
    text.parse().ok().or_else(on_loopback).ok_or_else(|| {
        "write an IP address and a port, as in 127.0.0.1:9846 or [::1]:9846, or a port; write targets before --metrics"
            .to_owned()
    })
}

fn timeout(text: &str) -> Result<Duration, String> {
    seconds_up_to(3600, text)
}

fn period(text: &str) -> Result<Duration, String> {
    seconds_up_to(3600, text).map_err(|error| format!("{error}; write targets before --watch"))
}

/// Parses a duration of up to 30 days on the clock of the fleet.
fn span(text: &str) -> Result<Duration, String> {
    seconds_up_to(2_592_000, text)
}

/// Parses a duration with a unit, or a number of seconds.
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
#[path = "arguments_tests.rs"]
mod tests;
