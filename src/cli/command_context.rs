//! The hosts that a command works with and how to reach them.

use super::CommandError;
use super::arguments::{Cli, GlobalArgs};
use crate::collect::{OpenChannel, Opening, Progress, Source};
use crate::config::{
    Backend, HostConfig, HostTarget, HostsFile, MAX_FILE_BYTES, Notifications, Overrides, Selection, Target,
    did_you_mean, parse_target, parse_word_list, select,
};
use crate::fleet::Clock;
use crate::share::{HostInfo, connect, socket_candidates};
use crate::sim::SimulatedFleet;
use crate::ssh::{self, Aliases, Context, Interaction, Options, PromptEvent, TraceEvent};
use crate::store::{Directories, read_text_or_pipe};
use crate::wire::SafeText;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a program may take to write hosts.toml into a pipe, as in `gpufleet <(generate-hosts)`.
const PIPE_TIME_LIMIT: Duration = Duration::from_secs(60);

/// The selected hosts, their source, the clock and the prompts. Nothing is connected yet.
pub struct CommandContext {
    /// The hosts in order.
    pub hosts: Vec<Arc<HostConfig>>,
    /// Opens the channel to a host.
    pub source: Source,
    /// The shared state of all connections and their prompts; `None` for a simulated fleet.
    pub ssh: Option<(Arc<Context>, mpsc::Receiver<PromptEvent>)>,
    /// The clock of the fleet and of the host tasks.
    pub clock: Clock,
    /// The fleet is simulated.
    pub simulated: bool,
    /// How to notify the user of findings.
    pub notifications: Notifications,
    /// The collectors that read the hosts: those of `--collector`, or the one on this machine where no host is named.
    pub collectors: Vec<ChosenCollector>,
}

/// The hosts of a command.
pub enum SelectedHosts {
    /// Configured hosts, and the `[notifications]` table of their file.
    Real(Vec<HostConfig>, Notifications),
    /// A simulated fleet with this many hosts.
    Simulated(u32),
}

impl SelectedHosts {
    /// Returns the number of hosts.
    pub fn count(&self) -> usize {
        match self {
            Self::Real(hosts, _) => hosts.len(),
            Self::Simulated(count) => *count as usize,
        }
    }
}

/// An error that leaves a command without hosts.
pub enum HostSelectionError {
    /// There is no target, no hosts.toml and no local GPU.
    NoTarget,
    /// A target or a file cannot be used.
    Failed(CommandError),
}

/// The message without a target.
const NO_TARGET: &str = "\
gpufleet HOST...             watch hosts that ssh can reach; there is no hosts.toml, and no NVIDIA driver on this machine
gpufleet --collector HOST    show the fleet of the collector on HOST
gpufleet init                write a hosts.toml to fill in
gpufleet --demo              watch a simulated fleet
";

impl HostSelectionError {
    /// Returns the error of the screen, for which a missing target is a usage error.
    pub fn for_tui(self) -> CommandError {
        self.into_failure(2)
    }

    /// Returns the error of a subcommand, for which a missing target is a failure.
    pub fn for_status(self) -> CommandError {
        self.into_failure(1)
    }

    fn into_failure(self, no_target: u8) -> CommandError {
        match self {
            Self::NoTarget => CommandError::verbatim(NO_TARGET, no_target),
            Self::Failed(failure) => failure,
        }
    }
}

impl From<CommandError> for HostSelectionError {
    fn from(failure: CommandError) -> Self {
        Self::Failed(failure)
    }
}

impl CommandContext {
    /// Like [`CommandContext::new`], with the trace events of every connection.
    pub fn with_trace_events(
        global: &GlobalArgs,
        hosts: SelectedHosts,
        interaction: Interaction,
    ) -> (Self, mpsc::UnboundedReceiver<TraceEvent>) {
        let (sender, trace_events) = mpsc::unbounded_channel();
        let options = Options { trace_events: Some(sender), ..Options::from_environment(interaction) };
        (Self::with_options(global, hosts, options), trace_events)
    }

    /// Prepares the connections to these hosts. Must be called within a tokio runtime.
    pub fn new(global: &GlobalArgs, hosts: SelectedHosts, interaction: Interaction) -> Self {
        Self::with_options(global, hosts, Options::from_environment(interaction))
    }

    fn with_options(global: &GlobalArgs, hosts: SelectedHosts, options: Options) -> Self {
        match hosts {
            SelectedHosts::Real(hosts, notifications) => {
                let (context, prompts) = Context::with_options(options);
                Self {
                    hosts: hosts.into_iter().map(Arc::new).collect(),
                    source: Source::Ssh(Arc::new(OverSsh(Arc::clone(&context)))),
                    ssh: Some((context, prompts)),
                    clock: Clock::start(1.0),
                    simulated: false,
                    notifications,
                    collectors: Vec::new(),
                }
            }
            SelectedHosts::Simulated(count) => {
                let clock = Clock::start(global.demo_speed.unwrap_or(1.0));
                let demo = Arc::new(SimulatedFleet::new(count, global.demo_gpus.unwrap_or(8), clock));
                let overrides = overrides(global);
                let hosts = demo.configs().into_iter().map(|mut config| {
                    overrides.apply(Arc::make_mut(&mut config));
                    config
                });
                Self {
                    hosts: hosts.collect(),
                    source: Source::InProcess(Arc::new(move |id| demo.open(id))),
                    ssh: None,
                    clock,
                    simulated: true,
                    notifications: Notifications::default(),
                    collectors: Vec::new(),
                }
            }
        }
    }
}

/// The address of a relayed host whose name cannot be used with ssh: it never resolves (RFC 2606), and says what to do.
const NO_ENTRY: &str = "add-an-entry-to-hosts-toml.invalid";

/// A collector that `--collector` names, or the one on this machine, and the hosts to show.
#[derive(Clone)]
pub struct ChosenCollector {
    /// Its machine.
    pub machine: Arc<HostConfig>,
    /// The hosts of hosts.toml: how this program reaches them.
    pub known: Vec<Arc<HostConfig>>,
    /// The names on the command line; all hosts of the collectors if empty.
    pub wanted: Vec<SafeText>,
}

impl ChosenCollector {
    /// The collector on this machine, for an account without a hosts.toml. `None` if none serves it.
    pub fn on_this_machine() -> Option<Self> {
        connect(&socket_candidates(&Directories::find())).ok()?;
        let name = SafeText::new(&rustix::system::uname().nodename().to_string_lossy());
        let machine = HostConfig { backend: Backend::Local, ..HostConfig::named(name) };
        Some(Self { machine: Arc::new(machine), known: Vec::new(), wanted: Vec::new() })
    }

    /// The configurations of the hosts to show, in the order of the command line, else in that of the collector.
    ///
    /// # Errors
    /// The collector does not watch a host of the command line.
    pub fn hosts(&self, listed: &[HostInfo]) -> Result<Vec<Arc<HostConfig>>, CommandError> {
        if let Some(missing) = self.wanted.iter().find(|name| !listed.iter().any(|host| host.name == **name)) {
            let some: Vec<&str> = listed.iter().take(8).map(|host| host.name.as_str()).collect();
            let more = if listed.len() > some.len() { ", ..." } else { "" };
            return Err(CommandError::failed(format!(
                "the collector on {} does not watch {missing}\n  hint: it watches {}{more}",
                self.machine.name,
                some.join(", ")
            )));
        }
        let config = |host: &HostInfo| self.config(host, false);
        if self.wanted.is_empty() {
            return Ok(listed.iter().map(config).collect());
        }
        Ok(self.wanted.iter().filter_map(|name| listed.iter().find(|host| host.name == *name)).map(config).collect())
    }

    /// The configuration of a host of the collector, whose fleet may be simulated.
    pub fn config(&self, host: &HostInfo, is_simulated: bool) -> Arc<HostConfig> {
        let known = self.known.iter().find(|known| known.name == host.name);
        let mut config = known.map_or_else(|| HostConfig::named(host.name.clone()), |known| (**known).clone());
        // The name comes from another machine: a shell behind ssh must not interpret it, and it must not mean this one.
        if known.is_none() && (!config.has_valid_address() || config.is_local()) {
            config.address = Some(NO_ENTRY.to_owned());
        }
        host.apply(&mut config);
        config.relayed_by = Some(self.machine.name.clone());
        config.is_simulated = is_simulated;
        Arc::new(config)
    }

    /// The configuration of the pane that stands for the unknown hosts of a collector that does not answer.
    pub fn unknown_hosts(&self) -> Arc<HostConfig> {
        let machine = &*self.machine;
        Arc::new(HostConfig {
            name: format!("{} (collector)", machine.name).into(),
            address: Some(machine.address().to_owned()),
            relayed_by: Some(machine.name.clone()),
            ..machine.clone()
        })
    }
}

/// Returns the collectors that `--collector` names, with the hosts that hosts.toml and the command line name.
///
/// # Errors
/// As for [`select_hosts`]; a missing hosts.toml is no error.
pub fn choose_collectors(
    global: &GlobalArgs,
    targets: &[String],
) -> Result<(Vec<ChosenCollector>, Notifications), HostSelectionError> {
    let known = match select_hosts(global, targets) {
        Err(HostSelectionError::NoTarget) => (Vec::new(), Notifications::default()),
        Ok(SelectedHosts::Real(hosts, notifications)) => (hosts, notifications),
        Ok(SelectedHosts::Simulated(_)) => {
            return Err(CommandError::usage(
                "--collector shows the hosts of a collector and does not take --demo\n  hint: leave one of them out",
            )
            .into());
        }
        Err(failed) => return Err(failed),
    };
    let (known, notifications) = known;
    let known: Vec<Arc<HostConfig>> = known.into_iter().map(Arc::new).collect();
    let wanted: Vec<SafeText> =
        if targets.is_empty() { Vec::new() } else { known.iter().map(|host| host.name.clone()).collect() };
    let mut chosen: Vec<ChosenCollector> = Vec::new();
    for machine in &global.collectors {
        let machines = match select_hosts(global, std::slice::from_ref(machine))? {
            SelectedHosts::Real(hosts, _) => hosts,
            SelectedHosts::Simulated(_) => Vec::new(),
        };
        let Ok([machine]) = <[HostConfig; 1]>::try_from(machines) else {
            let text = format!(
                "--collector takes one machine, `{}` is not one\n  hint: as in --collector lab-head",
                SafeText::new(machine)
            );
            return Err(CommandError::usage(text).into());
        };
        if chosen.iter().any(|other| other.machine.name == machine.name) {
            let text = format!("--collector names {} twice\n  hint: leave one of them out", machine.name);
            return Err(CommandError::usage(text).into());
        }
        chosen.push(ChosenCollector { machine: Arc::new(machine), known: known.clone(), wanted: wanted.clone() });
    }
    Ok((chosen, notifications))
}

/// Opens channels over SSH with one shared context.
struct OverSsh(Arc<Context>);

impl OpenChannel for OverSsh {
    fn open<'a>(self: Arc<Self>, host: &'a HostConfig, command: &'a str, progress: &'a Progress) -> Opening<'a> {
        Box::pin(async move { ssh::open(&self.0, host, command, progress).await })
    }
}

/// Returns the hosts of the targets, or those of the standard hosts.toml.
pub fn select_hosts(global: &GlobalArgs, targets: &[String]) -> Result<SelectedHosts, HostSelectionError> {
    if global.demo {
        return Ok(SelectedHosts::Simulated(global.demo_hosts.unwrap_or(6)));
    }
    let directories = Directories::find();
    let words = expand_patterns(read_targets(targets)?, global, &directories)?;
    let (mut files, mut plain) = (Vec::new(), Vec::new());
    for word in &words {
        match parse_target(word).map_err(CommandError::usage)? {
            Target::File(path) => files.push(path),
            Target::Hosts(target) => plain.push(target),
            // Its names follow when the files are read.
            Target::Group(name) => plain.push(HostTarget { text: format!("@{name}"), ..HostTarget::default() }),
            Target::Stdin => return Err(CommandError::usage("`-` is not allowed in the list on standard input").into()),
        }
    }
    reject_subcommand_targets(&plain, &words)?;
    let files = files.iter().map(|path| read_hosts(path, &directories)).collect::<Result<Vec<_>, _>>()?;
    let standard = if files.is_empty() { standard_file(&directories)? } else { None };
    if files.is_empty() && plain.is_empty() && standard.is_none() {
        return local_host(global).ok_or(HostSelectionError::NoTarget);
    }
    for target in &mut plain {
        if let Some(group) = target.text.strip_prefix('@').filter(|_| target.names.is_empty()) {
            target.names = group_members(group, files.iter().chain(&standard)).map_err(CommandError::usage)?;
        }
    }
    // The first file with a `[notifications]` table applies.
    let notifications = files.iter().chain(&standard).find_map(|file| file.notifications.clone()).unwrap_or_default();
    let subcommands = Cli::subcommands();
    let subcommands: Vec<&str> = subcommands.iter().map(String::as_str).collect();
    let selection = Selection {
        files,
        standard,
        targets: plain,
        words: &words,
        overrides: overrides(global),
        subcommands: &subcommands,
    };
    let hosts = select(&selection).map_err(CommandError::usage)?;
    raise_fd_limit(&hosts)?;
    Ok(SelectedHosts::Real(hosts, notifications))
}

/// Returns the hosts of a group or tag.
///
/// # Errors
/// No host has it: the message and the groups and tags that exist.
fn group_members<'a>(group: &str, files: impl Iterator<Item = &'a HostsFile>) -> Result<Vec<String>, String> {
    let (mut members, mut groups) = (Vec::new(), BTreeSet::new());
    for host in files.flat_map(|file| &file.entries).map(|entry| &entry.config) {
        let mut is_member = false;
        for name in groups_of(host) {
            is_member |= name == group;
            groups.insert(name);
        }
        if is_member {
            members.push(host.name.to_string());
        }
    }
    if !members.is_empty() {
        return Ok(members);
    }
    let hint = did_you_mean(group, groups.iter().copied()).unwrap_or_else(|| match groups.len() {
        0 => "set `group` or `tags` of hosts in hosts.toml".to_owned(),
        _ => format!("the groups and tags are {}", groups.iter().copied().collect::<Vec<_>>().join(", ")),
    });
    Err(format!("no host of hosts.toml has the group or tag `{}`\n  hint: {hint}", SafeText::new(group)))
}

/// Returns the group and the tags of a host, which `@NAME` on the command line selects.
pub(super) fn groups_of(host: &HostConfig) -> impl Iterator<Item = &str> {
    host.group.iter().chain(&host.tags).map(SafeText::as_str)
}

/// Rejects a subcommand among the targets before any file is read.
fn reject_subcommand_targets(targets: &[HostTarget], words: &[String]) -> Result<(), CommandError> {
    let subcommands = Cli::subcommands();
    let is_subcommand = |target: &&HostTarget| target.is_bare && subcommands.contains(&target.text);
    let Some(target) = targets.iter().find(is_subcommand).cloned() else { return Ok(()) };
    let subcommands: Vec<&str> = subcommands.iter().map(String::as_str).collect();
    let selection = Selection { targets: vec![target], words, subcommands: &subcommands, ..Selection::default() };
    select(&selection).map(|_| ()).map_err(CommandError::usage)
}

fn overrides(global: &GlobalArgs) -> Overrides {
    Overrides {
        interval: global.interval,
        identity_file: global.identity_file.clone(),
        ssh_config: global.ssh_config.clone(),
    }
}

/// Replaces patterns (`gpu*`) by the matching host names of the ssh configuration.
fn expand_patterns(
    words: Vec<String>,
    global: &GlobalArgs,
    directories: &Directories,
) -> Result<Vec<String>, CommandError> {
    let is_pattern = |word: &str| word.contains(['*', '?']) && !word.contains('/');
    if !words.iter().any(|word| is_pattern(word)) {
        return Ok(words);
    }
    let (config, aliases) = aliases(global, directories);
    let mut names = Vec::new();
    for word in words {
        if !is_pattern(&word) {
            names.push(word);
            continue;
        }
        let (user, rest) = word.rsplit_once('@').map_or(("", word.as_str()), |(user, rest)| (user, rest));
        let (pattern, port) = rest.split_once(':').unwrap_or((rest, ""));
        let before = names.len();
        let at = if user.is_empty() { String::new() } else { format!("{user}@") };
        let colon = if port.is_empty() { String::new() } else { format!(":{port}") };
        names.extend(aliases.matching(pattern).map(|name| format!("{at}{name}{colon}")));
        if names.len() == before {
            let text = format!("no host in {config} matches `{word}`\n  hint: a range is written `gpu[01-04]`");
            return Err(CommandError::usage(text));
        }
    }
    Ok(names)
}

/// Returns the displayed path of the ssh configuration and its host names.
pub(super) fn aliases(global: &GlobalArgs, directories: &Directories) -> (String, Aliases) {
    match (&global.ssh_config, directories.home()) {
        (Some(path), home) => (path.display().to_string(), Aliases::read(path, home)),
        (None, Some(home)) => ("~/.ssh/config".to_owned(), Aliases::read(&home.join(".ssh/config"), Some(home))),
        (None, None) => ("~/.ssh/config".to_owned(), Aliases::default()),
    }
}

/// Replaces `-` by the targets on standard input.
fn read_targets(targets: &[String]) -> Result<Vec<String>, CommandError> {
    let mut words = Vec::new();
    for target in targets {
        if target != "-" {
            words.push(target.clone());
            continue;
        }
        let before = words.len();
        words.extend(parse_word_list(&standard_input()?).map(str::to_owned));
        if words.len() == before {
            return Err(CommandError::failed("no hosts on standard input"));
        }
    }
    Ok(words)
}

fn standard_input() -> Result<String, CommandError> {
    let mut text = String::new();
    let mut input = std::io::stdin().lock().take(MAX_FILE_BYTES + 1);
    match input.read_to_string(&mut text) {
        Err(error) => Err(CommandError::failed(format!("cannot read standard input: {error}"))),
        Ok(_) if text.len() as u64 > MAX_FILE_BYTES => {
            Err(CommandError::failed(format!("standard input is larger than {} KiB", MAX_FILE_BYTES / 1024)))
        }
        Ok(_) => Ok(text),
    }
}

pub(super) fn read_hosts(path: &Path, directories: &Directories) -> Result<HostsFile, CommandError> {
    let text = read_text_or_pipe(path, MAX_FILE_BYTES, PIPE_TIME_LIMIT).map_err(CommandError::failed)?;
    HostsFile::parse(&path.to_string_lossy(), &text, directories.home())
        .map_err(|error| CommandError::verbatim(error, 1))
}

/// Reads the standard hosts.toml if there is one.
pub(super) fn standard_file(directories: &Directories) -> Result<Option<HostsFile>, CommandError> {
    match directories.hosts_files().into_iter().find(|path| path.exists()) {
        Some(path) => read_hosts(&path, directories).map(Some),
        None => Ok(None),
    }
}

/// Returns the local machine if it has an NVIDIA driver.
fn local_host(global: &GlobalArgs) -> Option<SelectedHosts> {
    let signs = ["/proc/driver/nvidia/version", "/dev/nvidiactl"];
    signs.iter().any(|path| Path::new(path).exists()).then(|| {
        let mut host = HostConfig { backend: Backend::Local, ..HostConfig::named("localhost") };
        overrides(global).apply(&mut host);
        SelectedHosts::Real(vec![host], Notifications::default())
    })
}

/// File descriptors for the terminal, the agent, jump hosts and files.
const BASE_FDS: u64 = 40;
/// The limit is not raised above this value, because some systems report a huge number for "unlimited".
const MAX_FD_LIMIT: u64 = 65_536;

/// Raises the limit of open files so that all hosts can be connected at once.
///
/// # Errors
/// The hard limit is too low for the hosts.
fn raise_fd_limit(hosts: &[HostConfig]) -> Result<(), CommandError> {
    let needed = needed_fds(hosts);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let possible = maximum.unwrap_or(u64::MAX).min(MAX_FD_LIMIT.max(needed));
    let mut allowed = current.unwrap_or(u64::MAX);
    if allowed < possible && setrlimit(Resource::Nofile, Rlimit { current: Some(possible), maximum }).is_ok() {
        allowed = possible;
    }
    check_fd_limit(hosts.len(), needed, allowed)
}

/// Returns the number of file descriptors: a socket and a name lookup for each host, or the pipes of its `ssh` process.
fn needed_fds(hosts: &[HostConfig]) -> u64 {
    let each = hosts.iter().map(|host| match host.backend {
        Backend::System | Backend::Local => 4,
        Backend::Auto | Backend::Native => 2,
    });
    BASE_FDS + each.sum::<u64>()
}

fn check_fd_limit(hosts: usize, needed: u64, allowed: u64) -> Result<(), CommandError> {
    if allowed >= needed {
        return Ok(());
    }
    let fit = allowed.saturating_sub(BASE_FDS) * hosts as u64 / (needed - BASE_FDS).max(1);
    Err(CommandError::failed(format!(
        "only {allowed} files may be open at once, which is enough for {fit} of {hosts} hosts\n  hint: \
         run `ulimit -n {needed}`, or watch fewer hosts"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_collector_are_used_with_ssh_only_if_they_are_harmless() {
        let listed = ["hgx-01", "-oProxyCommand=x", "$(reboot)", "localhost", "room 1"].map(|name| HostInfo {
            name: name.into(),
            interval_seconds: 5.0,
            ..HostInfo::default()
        });
        let known = HostConfig { address: Some("10.0.0.7".into()), ..HostConfig::named("room 1") };
        let chosen = ChosenCollector {
            machine: Arc::new(HostConfig::named("lab-head")),
            known: vec![Arc::new(known)],
            wanted: Vec::new(),
        };
        let hosts = chosen.hosts(&listed).expect("hosts");
        let addresses: Vec<&str> = hosts.iter().map(|host| host.address()).collect();
        assert_eq!(addresses, ["hgx-01", NO_ENTRY, NO_ENTRY, NO_ENTRY, "10.0.0.7"]);
        assert!(hosts.iter().all(|host| host.relayed_by.as_deref() == Some("lab-head")));
        assert!(hosts.iter().all(|host| host.interval == Duration::from_secs(5)));
        let chosen = ChosenCollector { wanted: vec!["room 1".into(), "hgx-01".into()], ..chosen };
        let names: Vec<_> = chosen.hosts(&listed).expect("hosts").iter().map(|host| host.name.clone()).collect();
        assert_eq!(names, ["room 1", "hgx-01"], "in the order of the command line");
    }

    #[test]
    fn a_low_limit_is_reported_with_the_number_of_hosts_that_fit() {
        let hosts = vec![HostConfig::named("gpu"); 200];
        assert_eq!(needed_fds(&hosts), 440);
        assert!(check_fd_limit(200, 440, 440).is_ok());
        assert_eq!(
            check_fd_limit(200, 440, 256).unwrap_err().to_string(),
            "gpufleet: only 256 files may be open at once, which is enough for 108 of 200 hosts\n  hint: \
             run `ulimit -n 440`, or watch fewer hosts\n"
        );
    }
}
