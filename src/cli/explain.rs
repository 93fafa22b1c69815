//! `gpufleet explain [RULE]`: prints the meaning of a rule, the next steps, and its limits.

use super::{CommandError, print};
use crate::cli::arguments::ExplainArgs;
use crate::config::did_you_mean;
use crate::config::thresholds::{PARAMETERS, Parameter, Unit};
use crate::diagnosis::{RuleId, RuleInfo};
use std::fmt::Write as _;
use std::process::ExitCode;

/// Prints one rule, or the list of all rules.
pub fn run(arguments: &ExplainArgs) -> Result<ExitCode, CommandError> {
    let Some(word) = &arguments.rule else {
        print(&list())?;
        return Ok(ExitCode::SUCCESS);
    };
    let Some(rule) = RuleId::from_word(word) else {
        let hint = did_you_mean(word, RuleId::ALL.iter().map(|rule| rule.word()))
            .unwrap_or_else(|| "`gpufleet explain` lists the rules".to_owned());
        return Err(CommandError::usage(format!(
            "unknown rule `{}`\n  hint: {hint}",
            crate::wire::SafeText::new(word)
        )));
    };
    print(&explanation(rule.info()))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns one line per rule with its title.
fn list() -> String {
    let width = RuleId::ALL.iter().map(|rule| rule.word().len()).max().unwrap_or(0);
    let mut text = String::new();
    for info in RuleId::ALL.iter().map(|rule| rule.info()) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:width$}  {}", info.word, info.title);
    }
    text
}

/// Returns the explanation of one rule for the terminal.
fn explanation(info: &RuleInfo) -> String {
    let mut text = format!("{}: {}\n", info.word, info.title);
    for (label, words) in sections(info) {
        let _ = write!(text, "\n{label}\n{}", wrapped(&words, 4, 96));
    }
    let parameters: Vec<&Parameter> = parameters(info).collect();
    if parameters.is_empty() {
        let _ = writeln!(text, "\nSwitch it off\n    [diagnosis]\n    {} = false", info.word);
    } else {
        let _ = writeln!(text, "\nThresholds, as built in\n    [diagnosis.{}]", info.word);
        for parameter in parameters {
            let setting = format!("{} = {}", parameter.key, default_of(parameter));
            let _ = writeln!(text, "    {setting:28} # {}", about(parameter));
        }
    }
    text
}

/// Returns the headings and texts of a rule.
fn sections(info: &RuleInfo) -> [(&'static str, String); 6] {
    [
        ("Starts when", info.fires.to_owned()),
        ("Means", info.means.to_owned()),
        ("What to do", info.next.to_owned()),
        ("Similar but harmless", format!("{}.", info.not)),
        ("Limits", info.limits.to_owned()),
        ("Source", format!("{}.", info.source)),
    ]
}

fn parameters(info: &RuleInfo) -> impl Iterator<Item = &'static Parameter> {
    let word = info.word;
    PARAMETERS.iter().filter(move |parameter| parameter.rule == word)
}

/// Describes a threshold, with the unit of its number.
fn about(parameter: &Parameter) -> String {
    match parameter.unit {
        // A duration has its unit in its value; a share and a count have none.
        Unit::Time | Unit::Share | Unit::Count => parameter.about.to_owned(),
        Unit::Percent => format!("{}, in percent", parameter.about),
        Unit::Mebibytes | Unit::Celsius | Unit::Cores => format!("{}, in {}", parameter.about, parameter.unit.words()),
    }
}

/// Formats a default as hosts.toml takes it.
fn default_of(parameter: &Parameter) -> String {
    if parameter.unit != Unit::Time {
        return parameter.default.to_string();
    }
    let seconds = parameter.default as u64;
    match seconds {
        _ if seconds.is_multiple_of(3600) && seconds > 0 => format!("\"{}h\"", seconds / 3600),
        _ if seconds.is_multiple_of(60) && seconds > 0 => format!("\"{}m\"", seconds / 60),
        _ => format!("\"{seconds}s\""),
    }
}

/// Wraps words to lines of at most `width` columns, each indented by `indent` spaces.
fn wrapped(words: &str, indent: usize, width: usize) -> String {
    let mut text = String::new();
    let mut column = 0;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            text.push('\n');
            column = 0;
        }
        if column == 0 {
            text.push_str(&" ".repeat(indent));
            column = indent;
        } else {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = include_str!("../../docs/diagnosis.md");

    /// Returns the part of docs/diagnosis.md that is generated from the rules.
    fn chapter() -> String {
        let mut text = String::new();
        for info in RuleId::ALL.iter().map(|rule| rule.info()) {
            let _ = writeln!(text, "### {}\n\n{}.\n", info.word, sentence_case(info.title));
            for (label, words) in sections(info) {
                let _ = writeln!(text, "- **{label}:** {words}");
            }
            let list: Vec<String> = parameters(info)
                .map(|one| format!("`{}` ({}): {}", one.key, default_of(one).replace('"', ""), about(one)))
                .collect();
            if !list.is_empty() {
                let _ = writeln!(text, "- **Thresholds:** {}.", list.join("; "));
            }
            text.push('\n');
        }
        text
    }

    fn sentence_case(text: &str) -> String {
        let mut characters = text.chars();
        characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
    }

    #[test]
    fn the_document_matches_the_rules() {
        const BEGIN: &str = "<!-- The rules below are generated from src/diagnosis/rule.rs: GPUFLEET_WRITE_DOCS=1 cargo test --lib the_document -->\n";
        let (head, old) = DOCUMENT.split_once(BEGIN).expect("the mark");
        if std::env::var_os("GPUFLEET_WRITE_DOCS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/diagnosis.md");
            std::fs::write(path, format!("{head}{BEGIN}\n{}", chapter().trim_end().to_owned() + "\n")).expect("writes");
            return;
        }
        assert_eq!(old.trim(), chapter().trim(), "write it anew as its comment says");
    }

    #[test]
    fn the_list_has_a_line_for_every_rule() {
        let list = list();
        assert_eq!(list.lines().count(), RuleId::ALL.len());
        assert!(
            list.starts_with("stuck-spin           GPUs read as busy but draw little power and access no memory\n"),
            "{list}"
        );
    }

    #[test]
    fn explanations_fit_a_terminal_and_their_thresholds_parse() {
        for rule in RuleId::ALL {
            let text = explanation(rule.info());
            let (words, _) = text.split_once("\nThresholds").unwrap_or((&text, ""));
            assert!(words.lines().all(|line| line.chars().count() <= 100), "{text}");
            // hosts.toml must accept the printed thresholds.
            let settings: String = text
                .lines()
                .skip_while(|line| !line.contains("[diagnosis"))
                .map(|line| format!("{}\n", line.trim()))
                .collect();
            let file = format!("{settings}\n[[hosts]]\nname = \"a\"\n");
            let read =
                crate::config::HostsFile::parse("hosts.toml", &file, None).unwrap_or_else(|error| panic!("{error}"));
            let thresholds = read.entries[0].config.thresholds.clone().expect("set");
            let is_off = thresholds.is_off(*rule as usize);
            let as_built_in = crate::config::Thresholds { off: thresholds.off, ..crate::config::Thresholds::default() };
            assert_eq!(*thresholds, as_built_in, "the defaults, written out, change nothing");
            assert_eq!(is_off, parameters(rule.info()).next().is_none());
        }
    }

    #[test]
    fn the_explanation_of_one_rule() {
        assert_eq!(
            explanation(RuleId::OomKill.info()),
            "\
oom-kill: the kernel killed a process because memory ran out

Starts when
    The kernel's count of such kills rises. The finding names GPU processes that disappeared at
    the same time.

Means
    The host, a container or a Slurm job ran out of memory.

What to do
    Run `dmesg | grep -i 'killed process'` for the process, its size and its cgroup.

Similar but harmless
    an out-of-memory error on a GPU, which the program reports.

Limits
    Only the kernel log names the killed process.

Source
    /proc/vmstat oom_kill.

Switch it off
    [diagnosis]
    oom-kill = false
"
        );
    }

    #[test]
    fn an_unknown_rule_suggests_the_nearest_one() {
        let failure = run(&ExplainArgs { rule: Some("stuck-spn".to_owned()) }).expect_err("a failure");
        assert!(
            format!("{failure:?}").contains("unknown rule `stuck-spn`\\n  hint: did you mean `stuck-spin`?"),
            "{failure:?}"
        );
    }
}
