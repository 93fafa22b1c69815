//! docs/keys.md, made from the table of keys and compared with what stands there.

use super::action::Mode;
use super::help::Section;
use super::keymap::is_configurable;
use std::fmt::Write as _;

const DOCUMENT: &str = include_str!("../../docs/keys.md");

const BEFORE: &str = "\
# Keys

Every key of the screen. `?` shows them in the program, `:` finds one by its words. The action is the name by which
[settings.toml](../settings.example.toml) gives it other keys (`[keys]`); what has none keeps its keys. `C-x` is Ctrl-x,
`S-Tab` is Shift-Tab. Ctrl-C always leaves and never signals a process of a host.
";

/// The document as the table wants it.
fn markdown() -> String {
    let mut out = BEFORE.to_owned();
    for section in Section::ALL {
        // Writing into a string cannot fail.
        let _ =
            write!(out, "\n## {}\n\n| keys | what they do | where | action |\n|---|---|---|---|\n", section.title());
        for binding in section.bindings() {
            let keys: Vec<String> = binding.label.split(' ').map(|key| format!("`{key}`")).collect();
            let name = binding.action.name().filter(|_| is_configurable(binding));
            let name = name.map(|name| format!("`{name}`")).unwrap_or_default();
            let mut locations: Vec<&str> = Vec::new();
            for mode in binding.modes {
                let location = mode
                    .location()
                    .trim_start_matches("in the ")
                    .trim_start_matches("among the ")
                    .trim_start_matches("in ")
                    .trim_start_matches("on the ");
                if !locations.contains(&location) {
                    locations.push(location);
                }
            }
            let locations = if binding.modes.contains(&Mode::Log) && binding.modes.contains(&Mode::Process) {
                "everywhere".to_owned()
            } else {
                locations.join(", ")
            };
            let _ = writeln!(out, "| {} | {} | {locations} | {name} |", keys.join(" "), binding.description);
        }
    }
    out
}

#[test]
fn the_document_of_keys_is_the_table() {
    let wanted = markdown();
    if std::env::var_os("GPUFLEET_WRITE_DOCS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/keys.md");
        std::fs::write(path, &wanted).expect("docs/keys.md is written");
        return;
    }
    assert!(DOCUMENT == wanted, "docs/keys.md is not the table; GPUFLEET_WRITE_DOCS=1 with this test writes it");
}

#[test]
fn the_readme_names_no_key_that_is_not_there() {
    const README: &str = include_str!("../../README.md");
    let (_, rest) = README.split_once("\n## Keys\n").expect("a section");
    let (section, _) = rest.split_once("\n## ").expect("another one");
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let shown: Vec<&str> = super::bindings::BINDINGS.iter().flat_map(|binding| binding.label.split(' ')).collect();
    let mut seen = 0;
    for row in rows {
        let keys = row.trim_start_matches('|').split_once('|').expect("a row").0;
        for key in keys.split('`').skip(1).step_by(2) {
            assert!(shown.contains(&key), "`{key}` of the README is no key");
            seen += 1;
        }
    }
    assert!(seen > 30);
}
