use super::*;

const DOCUMENT: &str = include_str!("../../docs/diagnosis.md");

/// The part of docs/diagnosis.md that is made of the table of rules.
fn chapter() -> String {
    let mut text = String::new();
    for info in RuleId::ALL.iter().map(|rule| rule.info()) {
        let _ = writeln!(text, "### {}\n\n{}.\n", info.word, sentence_case(info.title));
        for (label, words) in sections(info) {
            let _ = writeln!(text, "- **{label}:** {words}");
        }
        let list: Vec<String> = parameters(info)
            .map(|one| format!("`{}` ({}): {}", one.key, default_of(one).replace('"', ""), one.about))
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
fn the_document_says_what_the_table_of_rules_says() {
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
fn every_rule_has_a_line_in_the_list() {
    let list = list();
    assert_eq!(list.lines().count(), RuleId::ALL.len());
    assert!(
        list.starts_with("stuck-spin           GPUs read as busy but draw little power and access no memory\n"),
        "{list}"
    );
}

#[test]
fn an_explanation_fits_a_terminal_and_can_be_pasted() {
    for rule in RuleId::ALL {
        let text = explanation(rule.info());
        let (words, _) = text.split_once("\nThresholds").unwrap_or((&text, ""));
        assert!(words.lines().all(|line| line.chars().count() <= 100), "{text}");
        // What it says of thresholds is what hosts.toml takes.
        let settings: String = text
            .lines()
            .skip_while(|line| !line.contains("[diagnosis"))
            .map(|line| format!("{}\n", line.trim()))
            .collect();
        let file = format!("{settings}\n[[hosts]]\nname = \"a\"\n");
        let read = crate::config::HostsFile::parse("hosts.toml", &file, None).unwrap_or_else(|error| panic!("{error}"));
        let thresholds = read.entries[0].config.thresholds.clone().expect("set");
        let is_off = thresholds.is_off(*rule as usize);
        let as_built_in = crate::config::Thresholds { off: thresholds.off, ..crate::config::Thresholds::default() };
        assert_eq!(*thresholds, as_built_in, "the defaults, written out, change nothing");
        assert_eq!(is_off, parameters(rule.info()).next().is_none());
    }
}

#[test]
fn one_explanation_in_full() {
    assert_eq!(
        explanation(RuleId::OomKill.info()),
        "\
oom-kill: the kernel killed a process because memory ran out

Fires when
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
fn a_rule_that_is_not_there_names_the_nearest() {
    let failure = run(&ExplainArgs { rule: Some("stuck-spn".to_owned()) }).expect_err("a failure");
    assert!(format!("{failure:?}").contains("no rule `stuck-spn`\\n  hint: did you mean `stuck-spin`?"), "{failure:?}");
}
