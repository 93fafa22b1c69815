use super::{Filter, FilterInput, RowFacts, SYNTAX};
use crate::config::HostConfig;
use crate::fleet::fixture::{TestHost, at, gpus, process, reading};
use crate::fleet::{GpuState, Host, Row, host_rows};
use crate::wire::ProcessState;
use proptest::prelude::*;
use std::ops::Range;

/// Host hgx-04 with one process on GPUs 2 and 3: pid 4471 of alice, in disk wait, 40 % and 90 % SM, 140 GiB.
fn host() -> Host {
    let mut config = HostConfig::named("hgx-04");
    config.tags = vec!["h100".into()];
    let mut infos = gpus(0..4);
    for info in &mut infos {
        info.name = Some("NVIDIA H100 80GB HBM3".into());
    }
    let mut host = TestHost::with_config(0, config, infos);
    let mut sft = process(4471, "python sft.py --lr=3 --Fsdp", &[(2, 70), (3, 70)]);
    sft.reading.state = Some(ProcessState::DiskSleep);
    sft.reading.age_seconds = Some(2.0 * 86_400.0);
    sft.reading.rss_bytes = None;
    sft.gpus[0].sm_percent = Some(40);
    host.send_snapshot(1.0, &vec![reading(97, 70); 4], &[sft]);
    host.host
}

fn row(host: &Host) -> Row {
    let states = [
        (GpuState::Free, None),
        (GpuState::Free, None),
        (GpuState::Idle, Some(at(1.0))),
        (GpuState::Idle, Some(at(1.0))),
    ];
    host_rows(host, &states, at(20.0)).remove(0).row.as_ref().clone()
}

fn matches(text: &str) -> Option<bool> {
    let host = host();
    let row = row(&host);
    let facts = RowFacts {
        row: &row,
        power_watts: Some((80.0, 300.0)),
        finding: Some("stalled?"),
        is_stuck: true,
        now: at(3601.0),
    };
    let input = FilterInput { host: &host, free_gpus: Some(2), row: Some(facts) };
    Filter::parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).matches(&input)
}

fn matches_host(text: &str, free_gpus: Option<u32>) -> Option<bool> {
    let host = host();
    Filter::parse(text).expect(text).matches(&FilterInput { host: &host, free_gpus, row: None })
}

fn error(text: &str) -> (Range<usize>, String) {
    let error = Filter::parse(text).expect_err(text);
    (error.at, error.message)
}

#[test]
fn each_kind_of_term_matches_and_its_negation_does_not() {
    for text in [
        "alice",
        "ALI",
        "hgx",
        "sft.py",
        "fsdp",
        "4471",
        "--lr=3",
        "\"py sft\"".replace("py sft", "sft.py --lr").as_str(),
        "/sft|gan/",
        "/^python .*fsdp$/",
        "user:alice",
        "host:hgx-04",
        "cmd:\"sft.py --lr\"",
        "tag:h100",
        "model:h100",
        "job:launcher:4471",
        "gpu:3",
        "gpu:0-2",
        "gpu:0,2",
        "gpus=2",
        "pid:4471",
        "mem>139G",
        "mem<=140GiB",
        "mem>0.1T",
        "sm<50",
        "sm>=90",
        "sm=60",
        "cpu>99%",
        "power<100",
        "power>0.2kW",
        "idle>59m",
        "idle<=1h",
        "age>1d",
        "age>1.5d",
        "state:D",
        "state:idle",
        "state:disk",
        "state:stalled",
        "stuck",
        "mine",
        "free>=2",
        "free=2",
    ] {
        assert_eq!(matches(text), Some(true), "{text}");
        assert_eq!(matches(&format!("!{text}")), Some(false), "!{text}");
        assert_eq!(matches(&format!("!!{text}")), Some(true), "!!{text}");
    }
}

#[test]
fn a_failed_term_differs_from_an_unknown_one() {
    for text in
        ["bob", "447", "user:bob", "gpu:0", "mem>140G", "idle>2h", "state:S", "state:hung", "ended", "free>2", "/^sft/"]
    {
        assert_eq!(matches(text), Some(false), "{text}");
    }
    for text in ["rss>1G", "!rss>1G", "alice rss>1G", "bob | rss>1G"] {
        assert_eq!(matches(text), None, "{text}");
    }
    assert_eq!(matches("alice | rss>1G"), Some(true));
    assert_eq!(matches("bob rss>1G"), Some(false));
}

#[test]
fn a_space_is_and_a_bar_is_or() {
    assert_eq!(matches("alice sm<50"), Some(true));
    assert_eq!(matches("alice bob"), Some(false));
    assert_eq!(matches("bob | alice gpu:2"), Some(true));
    assert_eq!(matches("bob|alice"), Some(true));
    assert_eq!(matches("   "), Some(true));
    assert!(Filter::parse("").expect("nothing").is_empty());
}

#[test]
fn a_host_alone_fails_only_by_terms_about_hosts() {
    assert_eq!(matches_host("user:bob mem>1G", Some(2)), None);
    assert_eq!(matches_host("host:a6k mem>1G", Some(2)), Some(false));
    assert_eq!(matches_host("free>=3", Some(2)), Some(false));
    assert_eq!(matches_host("free>=2 model:h100 !tag:old", Some(2)), Some(true));
    assert_eq!(matches_host("free>=3", None), None);
    assert_eq!(matches_host("hgx", None), Some(true));
    assert_eq!(matches_host("dmitri", None), None);
    assert_eq!(matches_host("!hgx", None), Some(false));
}

#[test]
fn errors_have_a_position_and_a_correction() {
    for (text, at, message) in [
        ("usr:bob", 0..3, "unknown key `usr`: did you mean `user`?"),
        ("a lr=3", 2..4, "unknown key `lr`: write a word that contains `:`, `<`, `>` or `=` in quotes"),
        ("mem>", 0..4, "`mem>` needs a value, as in mem>10G"),
        ("stuck mem>10", 10..12, "`10` is not a size with a unit K, M, G or T: write mem>10G"),
        ("idle>30", 5..7, "`30` is not a duration with a unit s, m, h, d or w: write idle>30m"),
        ("sm<five", 3..7, "`five` is not a percentage: write sm<5"),
        ("power<1V", 6..8, "`1V` is not a power in watts: write power<100"),
        ("free>=many", 6..10, "`many` is not a number: write free>=4"),
        ("gpu:3-1", 4..7, "`3-1` is not a list of GPUs: write gpu:3, gpu:0-3 or gpu:2,3"),
        ("user>bob", 0..8, "`user` cannot be compared: write user:bob"),
        ("/train", 0..6, "the regular expression has no closing `/`"),
        ("//", 0..2, "the regular expression is empty"),
        ("/home/bob", 6..7, "expected a space after the closing `/`; write a path in quotes"),
        ("\"a", 0..2, "the closing quote is missing"),
        ("\"a\"b", 3..4, "expected a space after the closing quote"),
        ("| a", 0..1, "a term is missing before `|`"),
        ("a |", 3..3, "a term is missing after `|`"),
        ("a || b", 3..4, "a term is missing before `|`"),
        ("a !", 2..3, "`!` needs a word after it, as in !idle"),
        ("! a", 0..1, "`!` must not be followed by a space: !idle"),
    ] {
        assert_eq!(error(text), (at, message.to_owned()), "{text}");
    }
    let (at, message) = error("x /(/");
    assert_eq!(at, 2..5);
    assert!(message.starts_with("invalid regular expression: "), "{message}");
    assert_eq!(error(&"x".repeat(2000)).1, "the filter is too long");
    assert!(error("/(a{1000}){1000}/").1.starts_with("invalid regular expression: "));
}

#[test]
fn every_example_of_the_help_parses() {
    for (example, meaning) in SYNTAX {
        assert!(example.is_ascii() && meaning.is_ascii());
        if let Err(error) = Filter::parse(example) {
            panic!("{example}: {error}");
        }
    }
}

proptest! {
    #[test]
    fn any_text_parses_or_gives_an_error_within_the_text(text in "\\PC{0,60}|[a-z:<>=!|/\"0-9 ]{0,30}") {
        match Filter::parse(&text) {
            Ok(filter) => {
                let host = host();
                filter.matches(&FilterInput { host: &host, free_gpus: None, row: None });
            }
            Err(error) => {
                prop_assert!(text.get(error.at.clone()).is_some(), "{:?} of {text:?}", error.at);
                prop_assert!(!error.message.is_empty());
            }
        }
    }
}
