//! `gpufleet explain [RULE]`: what a finding means, what to do, and its limits.

use super::{CommandError, print};
use crate::cli::arguments::ExplainArgs;
use crate::config::nearest::did_you_mean;
use crate::config::thresholds::{PARAMETERS, Parameter, Unit};
use crate::diagnosis::{RuleId, RuleInfo};
use std::fmt::Write as _;
use std::process::ExitCode;

/// Prints one rule, or the list of all.
pub fn run(arguments: &ExplainArgs) -> Result<ExitCode, CommandError> {
    let Some(word) = &arguments.rule else {
        print(&list())?;
        return Ok(ExitCode::SUCCESS);
    };
    let Some(rule) = RuleId::from_word(word) else {
        let hint = did_you_mean(word, RuleId::ALL.iter().map(|rule| rule.word()))
            .unwrap_or_else(|| "`gpufleet explain` lists them".to_owned());
        return Err(CommandError::usage(format!("no rule `{}`\n  hint: {hint}", crate::wire::SafeText::new(word))));
    };
    print(&explanation(rule.info()))?;
    Ok(ExitCode::SUCCESS)
}

/// Every rule with its title, one a line.
fn list() -> String {
    let width = RuleId::ALL.iter().map(|rule| rule.word().len()).max().unwrap_or(0);
    let mut text = String::new();
    for info in RuleId::ALL.iter().map(|rule| rule.info()) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:width$}  {}", info.word, info.title);
    }
    text
}

/// One rule for the terminal.
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
            let _ = writeln!(text, "    {setting:28} # {}", parameter.about);
        }
    }
    text
}

/// The sections of a rule: a heading, and what stands below it.
fn sections(info: &RuleInfo) -> [(&'static str, String); 6] {
    [
        ("Fires when", info.fires.to_owned()),
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

/// A default as hosts.toml would say it.
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

/// Words in lines of at most `width` columns, each begun with `indent` spaces.
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
#[path = "explain_tests.rs"]
mod tests;
