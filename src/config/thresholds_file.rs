//! `[diagnosis]` of hosts.toml, and `diagnosis` of a host or a tag: thresholds that differ from what is built in.

use super::diagnostic::Diagnostic;
use super::nearest::{did_you_mean, nearest};
use super::section::{self, mismatch};
use super::thresholds::{PARAMETERS, Parameter, RULES, Thresholds, Unit};
use super::values::parse_seconds;
use crate::wire::SafeText;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Keys of such a table besides the rules.
const KEYS: [&str; 4] = ["off", "model_servers", "role", "tag"];

/// What one table says: changes to be made, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct ThresholdChanges {
    values: Vec<(&'static Parameter, f64)>,
    /// Rules, by their place in [`RULES`], and whether each is off.
    switches: Vec<(usize, bool)>,
    model_servers: Vec<SafeText>,
    is_serving: Option<bool>,
    /// Changes for the hosts that have a tag.
    tags: Vec<(SafeText, ThresholdChanges)>,
}

impl ThresholdChanges {
    /// Reads a table; what is wrong goes to `diagnostics`. Only the table of the whole file may name tags.
    pub(super) fn read(table: &DeTable<'_>, takes_tags: bool, diagnostics: &mut Vec<Diagnostic>) -> Self {
        let mut changes = Self::default();
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let read = match name {
                "off" => changes.read_off(value),
                "model_servers" => words("model_servers", value, "model_servers = [\"my-server\"]").map(|words| {
                    changes.model_servers = words.into_iter().map(|(word, _)| SafeText::new(&word)).collect();
                }),
                "role" => role(value).map(|is_serving| changes.is_serving = Some(is_serving)),
                "tag" if takes_tags => {
                    changes.read_tags(value, diagnostics);
                    Ok(())
                }
                rule if RULES.contains(&rule) => {
                    changes.read_rule(rule, value, diagnostics);
                    Ok(())
                }
                unknown => Err(unknown_key(unknown, key.span(), takes_tags)),
            };
            diagnostics.extend(read.err());
        }
        changes
    }

    /// Whether it changes nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
            && self.switches.is_empty()
            && self.model_servers.is_empty()
            && self.is_serving.is_none()
            && self.tags.is_empty()
    }

    /// Makes the changes, first those for all, then those for the tags that a host has.
    pub(super) fn apply(&self, thresholds: &mut Thresholds, tags: &[SafeText]) {
        for (parameter, value) in &self.values {
            if let Some(slot) = thresholds.value_mut(parameter.rule, parameter.key) {
                *slot = *value;
            }
        }
        for (rule, is_off) in &self.switches {
            thresholds.off &= !(1 << rule);
            thresholds.off |= u64::from(*is_off) << rule;
        }
        thresholds.model_servers.extend(self.model_servers.iter().cloned());
        if let Some(is_serving) = self.is_serving {
            thresholds.is_serving = is_serving;
        }
        for (_, changes) in self.tags.iter().filter(|(tag, _)| tags.contains(tag)) {
            changes.apply(thresholds, &[]);
        }
    }

    fn read_off(&mut self, value: &Spanned<DeValue<'_>>) -> Result<(), Diagnostic> {
        for (word, at) in words("off", value, "off = [\"persistence-off\"]")? {
            match RULES.iter().position(|rule| **rule == *word) {
                Some(rule) => self.switches.push((rule, true)),
                None => return Err(unknown_rule(&word, at)),
            }
        }
        Ok(())
    }

    fn read_tags(&mut self, value: &Spanned<DeValue<'_>>, diagnostics: &mut Vec<Diagnostic>) {
        let DeValue::Table(tags) = value.get_ref() else {
            diagnostics.push(mismatch("tag", "a table of tags", value, "[diagnosis.tag.serving]"));
            return;
        };
        for (tag, value) in tags {
            match value.get_ref() {
                DeValue::Table(table) => {
                    let changes = Self::read(table, false, diagnostics);
                    self.tags.push((SafeText::new(tag.get_ref()), changes));
                }
                _ => diagnostics.push(mismatch(tag.get_ref(), "a table", value, "[diagnosis.tag.serving]")),
            }
        }
    }

    fn read_rule(&mut self, rule: &str, value: &Spanned<DeValue<'_>>, diagnostics: &mut Vec<Diagnostic>) {
        let rule_index = RULES.iter().position(|known| *known == rule).unwrap_or(0);
        match value.get_ref() {
            DeValue::Boolean(is_on) => self.switches.push((rule_index, !is_on)),
            DeValue::Table(table) => {
                for (key, value) in table {
                    let name = key.get_ref().as_ref();
                    match PARAMETERS.iter().find(|parameter| parameter.rule == rule && parameter.key == name) {
                        Some(parameter) => match quantity(parameter, value) {
                            Ok(number) => self.values.push((parameter, number)),
                            Err(diagnostic) => diagnostics.push(diagnostic),
                        },
                        None => diagnostics.push(unknown_parameter(rule, name, key.span())),
                    }
                }
            }
            _ => {
                diagnostics.push(mismatch(rule, "true, false or a table", value, &format!("{rule} = false")));
            }
        }
    }
}

fn words(key: &str, value: &Spanned<DeValue<'_>>, example: &str) -> Result<Vec<(String, Range<usize>)>, Diagnostic> {
    let diagnostic = |value: &Spanned<DeValue<'_>>| mismatch(key, "an array of strings", value, example);
    let array = value.get_ref().as_array().ok_or_else(|| diagnostic(value))?;
    let word = |item: &Spanned<DeValue<'_>>| match item.get_ref().as_str() {
        Some(word) => Ok((word.to_owned(), item.span())),
        None => Err(diagnostic(item)),
    };
    array.iter().map(word).collect()
}

/// Reads `role`: `"serving"` or `"training"`.
pub(super) fn role(value: &Spanned<DeValue<'_>>) -> Result<bool, Diagnostic> {
    match value.get_ref().as_str() {
        Some("serving") => Ok(true),
        Some("training") => Ok(false),
        Some(other) => {
            let hint = match nearest(other, ["serving", "training"]) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => "one of \"serving\", \"training\"".to_owned(),
            };
            Err(Diagnostic::at(value.span(), format!("`role` cannot be \"{other}\""), hint))
        }
        None => Err(mismatch("role", "a string", value, "role = \"serving\"")),
    }
}

fn unknown_key(key: &str, at: Range<usize>, takes_tags: bool) -> Diagnostic {
    let known = KEYS.into_iter().filter(|key| takes_tags || *key != "tag").chain(RULES);
    if nearest(key, known.clone()).is_some() { section::unknown_key(key, at, known) } else { unknown_rule(key, at) }
}

fn unknown_rule(rule: &str, at: Range<usize>) -> Diagnostic {
    let hint = did_you_mean(rule, RULES).unwrap_or_else(|| "`gpufleet explain` lists the rules".to_owned());
    Diagnostic::at(at, format!("no rule `{rule}`"), hint)
}

fn unknown_parameter(rule: &str, key: &str, at: Range<usize>) -> Diagnostic {
    let keys = || PARAMETERS.iter().filter(|parameter| parameter.rule == rule).map(|parameter| parameter.key);
    let hint = match (did_you_mean(key, keys()), keys().next()) {
        (Some(hint), _) => hint,
        (None, Some(_)) => format!("its thresholds are {}", keys().collect::<Vec<_>>().join(", ")),
        (None, None) => format!("it has none; switch it off with {rule} = false"),
    };
    Diagnostic::at(at, format!("`{rule}` has no threshold `{key}`"), hint)
}

/// Reads one threshold in its unit.
fn quantity(parameter: &Parameter, value: &Spanned<DeValue<'_>>) -> Result<f64, Diagnostic> {
    let key = parameter.key;
    let example = match parameter.unit {
        Unit::Time => format!("{key} = \"5m\""),
        _ => format!("{key} = {}", parameter.default),
    };
    if parameter.unit == Unit::Time {
        let Some(text) = value.get_ref().as_str() else {
            return Err(mismatch(key, "a string with a unit", value, &example));
        };
        let hint = format!("write a number and a unit, s, m, h or d, as in {example}");
        return time(text).ok_or_else(|| Diagnostic::at(value.span(), format!("`{text}` is not a duration"), hint));
    }
    let number = match value.get_ref() {
        DeValue::Integer(number) => number.as_str().replace('_', "").parse::<f64>().ok(),
        DeValue::Float(number) => number.as_str().replace('_', "").parse::<f64>().ok(),
        _ => None,
    };
    let Some(number) = number else { return Err(mismatch(key, "a number", value, &example)) };
    let most = match parameter.unit {
        Unit::Percent => 100.0,
        Unit::Celsius => 200.0,
        _ => 1e9,
    };
    if !(0.0..=most).contains(&number) {
        let hint = format!("in {}, 0 to {most}", parameter.unit.words());
        return Err(Diagnostic::at(value.span(), format!("`{key}` cannot be {number}"), hint));
    }
    Ok(number)
}

/// A time in seconds, up to a year.
fn time(text: &str) -> Option<f64> {
    parse_seconds(text).ok().filter(|seconds| (0.0..=366.0 * 86_400.0).contains(seconds))
}

#[cfg(test)]
mod tests {
    use super::super::HostsFile;
    use super::*;

    fn thresholds(text: &str, host: usize) -> Thresholds {
        let file = HostsFile::parse("hosts.toml", text, None).unwrap_or_else(|error| panic!("{error}"));
        file.entries[host].config.thresholds.as_deref().cloned().unwrap_or_default()
    }

    fn error(text: &str) -> String {
        let text = format!("{text}\n[[hosts]]\nname = \"a\"\n");
        HostsFile::parse("hosts.toml", &text, None).expect_err("an error").to_string()
    }

    #[test]
    fn the_whole_file_a_tag_and_a_host_change_thresholds_in_this_order() {
        let text = "[diagnosis]\noff = [\"persistence-off\"]\nmodel_servers = [\"serve.py\"]\n\
                    stuck-spin = { warn_after = \"3m\", utilization = 80 }\ngpu-imbalance = false\n\
                    [diagnosis.tag.lazy]\nidle-hog = { warn_after = \"1d\" }\nstuck-spin = { warn_after = \"4m\" }\n\
                    [[hosts]]\nname = \"a\"\n[[hosts]]\nname = \"b\"\ntags = [\"lazy\"]\nrole = \"serving\"\n\
                    diagnosis = { gpu-imbalance = true, stuck-spin = { utilization = 85.5 } }\n";
        let (a, b) = (thresholds(text, 0), thresholds(text, 1));
        let off = |thresholds: &Thresholds, rule: &str| {
            thresholds.is_off(RULES.iter().position(|known| *known == rule).expect("a rule"))
        };
        assert_eq!((a.stuck_spin.warn_after, a.stuck_spin.utilization, a.idle_hog.warn_after), (180.0, 80.0, 7200.0));
        assert_eq!((b.stuck_spin.warn_after, b.stuck_spin.utilization, b.idle_hog.warn_after), (240.0, 85.5, 86_400.0));
        assert!(off(&a, "persistence-off") && off(&a, "gpu-imbalance") && !off(&b, "gpu-imbalance"));
        assert_eq!((a.is_serving, b.is_serving), (false, true));
        assert_eq!(a.model_servers, ["serve.py"]);
    }

    #[test]
    fn hosts_without_changes_have_no_thresholds_of_their_own() {
        let file = HostsFile::parse("hosts.toml", "[[hosts]]\nname = \"a\"\n", None).expect("reads");
        assert_eq!(file.entries[0].config.thresholds, None);
    }

    #[test]
    fn mistakes_show_their_place_and_the_nearest_key() {
        assert_eq!(
            error("[diagnosis]\nstuck-spn = false"),
            "hosts.toml:2:1: unknown key `stuck-spn`\n  2 | stuck-spn = false\n    | ^^^^^^^^^\n    = hint: did you mean `stuck-spin`?\n"
        );
        let heads: Vec<(&str, &str, &str)> = vec![
            (
                "[diagnosis.stuck-spin]\nwarn_aftr = \"5m\"",
                "2:1: `stuck-spin` has no threshold `warn_aftr`",
                "did you mean `warn_after`?",
            ),
            (
                "[diagnosis.stuck-spin]\nwarn_after = 5",
                "2:14: `warn_after` must be a string with a unit, not an integer",
                "as in warn_after = \"5m\"",
            ),
            (
                "[diagnosis.stuck-spin]\nwarn_after = \"5 weeks\"",
                "2:14: `5 weeks` is not a duration",
                "write a number and a unit, s, m, h or d, as in warn_after = \"5m\"",
            ),
            ("[diagnosis.stuck-spin]\nutilization = 130", "2:15: `utilization` cannot be 130", "in percent, 0 to 100"),
            (
                "[diagnosis.oom-kill]\nafter = 1",
                "2:1: `oom-kill` has no threshold `after`",
                "it has none; switch it off with oom-kill = false",
            ),
            ("[diagnosis]\noff = [\"idle\"]", "2:8: no rule `idle`", "`gpufleet explain` lists the rules"),
            (
                "[diagnosis]\noff = \"idle-hog\"",
                "2:7: `off` must be an array of strings, not a string",
                "as in off = [\"persistence-off\"]",
            ),
            ("[diagnosis]\nrole = \"srving\"", "2:8: `role` cannot be \"srving\"", "did you mean \"serving\"?"),
            (
                "[diagnosis]\nstuck-spin = 5",
                "2:14: `stuck-spin` must be true, false or a table, not an integer",
                "as in stuck-spin = false",
            ),
            ("diagnosis = 5", "1:1: `diagnosis` must be a table, not an integer", "write the header [diagnosis]"),
        ];
        for (text, head, hint) in heads {
            let error = error(text);
            assert!(error.starts_with(&format!("hosts.toml:{head}\n")), "{error}");
            assert!(error.contains(&format!("= hint: {hint}\n")), "{error}");
        }
    }
}
