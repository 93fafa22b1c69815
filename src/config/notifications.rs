//! `[notifications]` of hosts.toml: how to notify the user of findings.

use super::diagnostic::{Diagnostic, nearest};
use super::values::{ParseContext, boolean, kind, mismatch, not_among, parse_path, unknown_key};
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The keys of the table.
pub(super) const KEYS: [&str; 5] = ["bell", "desktop", "on_finding", "min_severity", "rate"];

/// The maximum number of words in `on_finding`.
const MAX_WORDS: usize = 64;
/// The maximum count of a rate.
const MAX_COUNT: u32 = 1000;

const COMMAND_EXAMPLE: &str = "on_finding = [\"notify-lab\", \"--room\", \"gpu\"]";
const RATE_HINT: &str = "write a count and a unit (s, min or h), as in rate = \"20/h\"";

/// How to notify the user of findings. Everything is off by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notifications {
    /// Ring the terminal's bell.
    pub bell: bool,
    /// Show a desktop notification through the terminal (OSC 9).
    pub desktop: bool,
    /// A program and its arguments, run without a shell, with the findings as JSON on standard input; empty if not set.
    pub on_finding: Vec<String>,
    /// The least severity that is notified.
    pub min_severity: MinSeverity,
    /// The maximum rate of notifications.
    pub rate: Rate,
}

/// The least severity that is notified. Findings of severity info are never notified.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MinSeverity {
    /// Warnings and critical findings.
    #[default]
    Warn,
    /// Critical findings only.
    Crit,
}

/// A maximum count in any period of the given length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// The count; never zero.
    pub count: u32,
    /// The period.
    pub span: Duration,
}

impl Default for Rate {
    /// 20 per hour.
    fn default() -> Self {
        Self { count: 20, span: Duration::from_secs(3600) }
    }
}

impl Notifications {
    /// Reads the table. Errors go to `diagnostics`; valid keys are kept.
    pub(super) fn read(table: &DeTable<'_>, context: &ParseContext<'_>, diagnostics: &mut Vec<Diagnostic>) -> Self {
        let mut read = Self::default();
        for (key, value) in table {
            let taken = match key.get_ref().as_ref() {
                "bell" => boolean("bell", value).map(|is_on| read.bell = is_on),
                "desktop" => boolean("desktop", value).map(|is_on| read.desktop = is_on),
                "on_finding" => command(value, context).map(|argv| read.on_finding = argv),
                "min_severity" => min_severity(value).map(|min_severity| read.min_severity = min_severity),
                "rate" => rate(value).map(|rate| read.rate = rate),
                unknown => Err(unknown_key(unknown, key.span(), KEYS)),
            };
            diagnostics.extend(taken.err());
        }
        read
    }

    /// Whether any kind of notification is on.
    pub fn is_on(&self) -> bool {
        self.bell || self.desktop || !self.on_finding.is_empty()
    }
}

/// Reads a program and its arguments. A program with a slash is resolved like other paths; one without is searched in
/// `PATH`.
fn command(value: &Spanned<DeValue<'_>>, context: &ParseContext<'_>) -> Result<Vec<String>, Diagnostic> {
    let Some(array) = value.get_ref().as_array() else {
        let message = format!("`on_finding` must be an array of strings, not {}", kind(value.get_ref()));
        let hint = format!("it runs without a shell: list the program and each argument, as in {COMMAND_EXAMPLE}");
        return Err(Diagnostic::at(value.span(), message, hint));
    };
    let mut argv = Vec::new();
    for item in array {
        let Some(word) = item.get_ref().as_str() else {
            return Err(mismatch("on_finding", "an array of strings", item, COMMAND_EXAMPLE));
        };
        if word.contains('\0') {
            return Err(Diagnostic::at(
                item.span(),
                "an argument cannot contain a NUL character",
                format!("as in {COMMAND_EXAMPLE}"),
            ));
        }
        let is_program = argv.is_empty();
        if is_program && word.trim().is_empty() {
            let hint = format!("write the program first, as in {COMMAND_EXAMPLE}");
            return Err(Diagnostic::at(item.span(), "`on_finding` has no program", hint));
        }
        let word = if is_program && word.contains('/') {
            parse_path(word, item.span(), context.base, context.home)?.to_string_lossy().into_owned()
        } else {
            word.to_owned()
        };
        argv.push(word);
    }
    if argv.is_empty() {
        let hint = format!("remove the key, or write it as in {COMMAND_EXAMPLE}");
        return Err(Diagnostic::at(value.span(), "`on_finding` has no program", hint));
    }
    if argv.len() > MAX_WORDS {
        let hint = "put them into a script";
        return Err(Diagnostic::at(value.span(), format!("`on_finding` has more than {MAX_WORDS} words"), hint));
    }
    Ok(argv)
}

fn min_severity(value: &Spanned<DeValue<'_>>) -> Result<MinSeverity, Diagnostic> {
    match value.get_ref().as_str() {
        Some("warn") => Ok(MinSeverity::Warn),
        Some("crit") => Ok(MinSeverity::Crit),
        Some("info") => Err(Diagnostic::at(
            value.span(),
            "notifications do not cover findings of severity info",
            "use \"warn\" or \"crit\"; `gpufleet findings --watch` prints all findings",
        )),
        Some(other) => Err(not_among("min_severity", other, value.span(), &["warn", "crit"])),
        None => Err(mismatch("min_severity", "a string", value, "min_severity = \"crit\"")),
    }
}

/// Reads `20/h` or `5/min`. The unit has no number: `1/10s` is an error.
fn rate(value: &Spanned<DeValue<'_>>) -> Result<Rate, Diagnostic> {
    let Some(text) = value.get_ref().as_str() else {
        return Err(mismatch("rate", "a string", value, "rate = \"20/h\""));
    };
    let diagnostic = |message: String, hint: &str| Diagnostic::at(value.span(), message, hint);
    let Some((count, unit)) = text.split_once('/') else {
        return Err(diagnostic(format!("`{text}` is not a rate"), RATE_HINT));
    };
    let (count, unit) = (count.trim(), unit.trim());
    let seconds = match unit {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        _ => {
            let hint = match nearest(unit, ["s", "min", "h", "hour", "minute", "second"]) {
                Some("hour" | "h") => "did you mean `/h`?",
                Some("minute" | "min") => "did you mean `/min`?",
                Some("second" | "s") => "did you mean `/s`?",
                _ => RATE_HINT,
            };
            return Err(diagnostic(format!("`{unit}` is not a unit of time"), hint));
        }
    };
    match count.parse::<u32>() {
        Ok(count) if (1..=MAX_COUNT).contains(&count) => Ok(Rate { count, span: Duration::from_secs(seconds) }),
        Ok(0) => Err(diagnostic(
            "the rate is zero".to_owned(),
            "to turn notifications off, remove `bell`, `desktop` and `on_finding`",
        )),
        Ok(_) => Err(diagnostic(format!("`{text}` is too high a rate"), "the limit is 1000 per unit")),
        Err(_) => Err(diagnostic(format!("`{text}` is not a rate"), RATE_HINT)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::HostsFile;
    use super::*;
    use std::path::Path;

    fn read(table: &str) -> Notifications {
        let text = format!("[notifications]\n{table}\n[[hosts]]\nname = \"a\"\n");
        let file = HostsFile::parse("/etc/lab/hosts.toml", &text, Some(Path::new("/home/a")));
        file.unwrap_or_else(|error| panic!("{error}")).notifications.expect("has the table")
    }

    #[test]
    fn notifications_are_off_by_default() {
        let file = HostsFile::parse("hosts.toml", "[[hosts]]\nname = \"a\"\n", None).expect("reads");
        assert_eq!(file.notifications, None);
        assert_eq!(read(""), Notifications::default());
        assert!(!read("rate = \"5/min\"\nmin_severity = \"crit\"").is_on());
        assert!(read("bell = true").is_on() && read("desktop = true").is_on() && read("on_finding = [\"x\"]").is_on());
    }

    #[test]
    fn the_program_path_is_resolved_and_arguments_are_unchanged() {
        let argv = |program: &str| read(&format!("on_finding = [\"{program}\", \"~/x\", \"a b\", \"\"]")).on_finding;
        for (program, becomes) in [
            ("notify-lab", "notify-lab"),
            ("~/bin/notify", "/home/a/bin/notify"),
            ("./notify", "/etc/lab/./notify"),
            ("/opt/notify", "/opt/notify"),
        ] {
            assert_eq!(argv(program), [becomes, "~/x", "a b", ""]);
        }
    }

    #[test]
    fn rates_have_a_count_and_a_unit() {
        let rate = |text: &str| {
            let rate = read(&format!("rate = \"{text}\"")).rate;
            (rate.count, rate.span.as_secs())
        };
        assert_eq!((rate("20/h"), rate("5/min"), rate(" 1 / s")), ((20, 3600), (5, 60), (1, 1)));
    }

    #[test]
    fn errors_have_positions_and_hints() {
        for (line, head, hint) in [
            ("bel = true", "2:1: unknown key `bel`", "did you mean `bell`?"),
            ("bell = 1", "2:8: `bell` must be true or false, not an integer", "as in bell = true"),
            (
                "on_finding = \"notify --room gpu\"",
                "2:14: `on_finding` must be an array of strings, not a string",
                "it runs without a shell: list the program and each argument, as in on_finding = [\"notify-lab\", \"--room\", \
                 \"gpu\"]",
            ),
            (
                "on_finding = [\"a\", 1]",
                "2:20: `on_finding` must be an array of strings, not an integer",
                "as in on_finding = [\"notify-lab\", \"--room\", \"gpu\"]",
            ),
            (
                "on_finding = []",
                "2:14: `on_finding` has no program",
                "remove the key, or write it as in on_finding = [\"notify-lab\", \"--room\", \"gpu\"]",
            ),
            (
                "on_finding = [\"\"]",
                "2:15: `on_finding` has no program",
                "write the program first, as in on_finding = [\"notify-lab\", \"--room\", \"gpu\"]",
            ),
            ("min_severity = \"critt\"", "2:16: `min_severity` cannot be \"critt\"", "did you mean \"crit\"?"),
            (
                "min_severity = \"info\"",
                "2:16: notifications do not cover findings of severity info",
                "use \"warn\" or \"crit\"; `gpufleet findings --watch` prints all findings",
            ),
            ("rate = \"often\"", "2:8: `often` is not a rate", RATE_HINT),
            ("rate = \"5/hours\"", "2:8: `hours` is not a unit of time", "did you mean `/h`?"),
            ("rate = \"5/week\"", "2:8: `week` is not a unit of time", RATE_HINT),
            (
                "rate = \"0/h\"",
                "2:8: the rate is zero",
                "to turn notifications off, remove `bell`, `desktop` and `on_finding`",
            ),
            ("rate = \"2000/h\"", "2:8: `2000/h` is too high a rate", "the limit is 1000 per unit"),
            ("rate = 5", "2:8: `rate` must be a string, not an integer", "as in rate = \"20/h\""),
        ] {
            let text = format!("[notifications]\n{line}\n[[hosts]]\nname = \"a\"\n");
            let error = HostsFile::parse("hosts.toml", &text, None).expect_err("an error").to_string();
            assert!(error.starts_with(&format!("hosts.toml:{head}\n")), "{error}");
            assert!(error.contains(&format!("= hint: {hint}\n")), "{error}");
        }
        let error = HostsFile::parse("hosts.toml", "notifications = true\n[[hosts]]\nname = \"a\"\n", None);
        let error = error.expect_err("an error").to_string();
        assert!(error.starts_with("hosts.toml:1:1: `notifications` must be a table, not a boolean\n"), "{error}");
    }
}
