//! Arguments that are right one by one and wrong together.

use super::{Cli, Command, FindingsArgs, FreeArgs};
use std::fmt;

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
