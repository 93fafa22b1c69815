//! `gpufleet man [COMMAND]`: prints a manual page, made from the same definitions as `--help`.

use super::{CommandError, print};
use crate::cli::arguments::{Cli, ManArgs};
use crate::config::did_you_mean;
use crate::wire::SafeText;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::process::ExitCode;

/// Headings and paragraphs that follow the options on the page of gpufleet. A paragraph is a term, or empty, and its text.
type Section = (&'static str, &'static [(&'static str, &'static str)]);
const SECTIONS: [Section; 4] = [
    (
        "EXIT STATUS",
        &[
            ("0", "success"),
            ("1", "gpufleet failed; the message gives the reason"),
            ("2", "the command line or hosts.toml is wrong"),
            ("3", "some hosts did not report"),
            ("4", "free: no GPU matches; findings: a finding is firing"),
            ("130", "interrupted by Ctrl-C"),
        ],
    ),
    (
        "FILES",
        &[
            ("~/.config/gpufleet/hosts.toml", "the hosts; `gpufleet init` writes one"),
            ("~/.config/gpufleet/settings.toml", "keys, theme and other settings of the screen"),
            ("~/.local/state/gpufleet/", "the state of the diagnosis, the view, the log of signals"),
            ("~/.cache/gpufleet/ on a host", "the probe"),
            ("/etc/gpufleet/policy.json on a host", "limits that its administrator sets for the probe"),
        ],
    ),
    (
        "ENVIRONMENT",
        &[
            ("NO_COLOR", "no colours"),
            ("XDG_CONFIG_HOME, XDG_STATE_HOME", "where the directories of gpufleet are"),
            ("SSH_AUTH_SOCK", "the ssh agent"),
        ],
    ),
    ("SEE ALSO", &[("", "ssh(1), ssh_config(5), nvidia\\-smi(1)")]),
];

/// Prints one page.
pub fn run(arguments: &ManArgs) -> Result<ExitCode, CommandError> {
    let page = page(arguments.command.as_deref())?;
    print(&String::from_utf8_lossy(&page))?;
    Ok(ExitCode::SUCCESS)
}

fn page(subcommand: Option<&str>) -> Result<Vec<u8>, CommandError> {
    let mut root = Cli::definition().version(env!("CARGO_PKG_VERSION"));
    root.build();
    root = root.mut_subcommand("help", |help| help.hide(true));
    let command = match subcommand {
        None => root,
        Some(name) => {
            let Some(found) = root.find_subcommand(name).cloned() else {
                let names = root.get_subcommands().map(clap::Command::get_name);
                let hint = did_you_mean(name, names).unwrap_or_else(|| "`gpufleet --help` lists them".to_owned());
                let name = SafeText::new(name);
                return Err(CommandError::usage(format!("`{name}` is not a subcommand\n  hint: {hint}")));
            };
            // A page is called gpufleet-status, its synopsis begins with `gpufleet status`.
            found.display_name(format!("gpufleet-{name}")).version(env!("CARGO_PKG_VERSION"))
        }
    };
    let is_root = subcommand.is_none();
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut page = Vec::new();
    render(&Man::new(command).manual("gpufleet"), &help, is_root, &mut page)
        .map_err(|error| CommandError::failed(format!("cannot write the manual page: {error}")))?;
    Ok(page)
}

fn render(man: &Man, help: &str, is_root: bool, page: &mut Vec<u8>) -> std::io::Result<()> {
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    let mut roff = Roff::new();
    if !help.is_empty() {
        // A table, whose lines must not be joined.
        roff.control("SH", [if is_root { "TARGETS" } else { "NOTES" }]).control("nf", []);
        for line in help.lines() {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
    }
    if !is_root {
        roff.control("SH", ["SEE ALSO"]).text([bold("gpufleet"), roman("(1)")]);
        return roff.to_writer(page);
    }
    man.render_subcommands_section(page)?;
    for (heading, paragraphs) in SECTIONS {
        roff.control("SH", [heading]);
        for (term, text) in paragraphs {
            if !term.is_empty() {
                roff.control("TP", []).text([bold(*term)]);
            }
            roff.text([roman(*text)]);
        }
    }
    roff.to_writer(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(subcommand: Option<&str>) -> String {
        String::from_utf8(page(subcommand).expect("a page")).expect("UTF-8")
    }

    #[test]
    fn every_option_and_subcommand_is_on_its_page() {
        let main = text(None);
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "TARGETS", "SUBCOMMANDS", "EXIT STATUS", "FILES"]
        {
            let (plain, quoted) = (format!(".SH {section}\n"), format!(".SH \"{section}\"\n"));
            assert!(main.contains(&plain) || main.contains(&quoted), "{section} in {main}");
        }
        for name in Cli::subcommands().iter().filter(|name| *name != "help") {
            assert!(main.contains(&format!("gpufleet\\-{name}(1)")), "{name} in {main}");
            let page = text(Some(name));
            let mut root = Cli::definition();
            root.build();
            let command = root.find_subcommand(name).expect("exists");
            for option in command.get_arguments().filter(|one| !one.is_hide_set()).filter_map(clap::Arg::get_long) {
                assert!(page.contains(&format!("\\-\\-{}", option.replace('-', "\\-"))), "--{option} in {page}");
            }
        }
    }

    #[test]
    fn an_unknown_subcommand_suggests_the_nearest_one() {
        let error = run(&ManArgs { command: Some("statsu".to_owned()) }).expect_err("an error");
        assert_eq!(error.to_string(), "gpufleet: `statsu` is not a subcommand\n  hint: did you mean `status`?\n");
    }
}
