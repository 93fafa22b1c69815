use super::{Filter, FilterInput, RowFacts, SYNTAX};
use crate::config::HostConfig;
use crate::fleet::fixture::{TestHost, at, gpus, process, reading};
use crate::fleet::{GpuState, Host, Row, host_rows};
use crate::wire::ProcessState;
use proptest::prelude::*;
use std::ops::Range;

/// hgx-04 of the lab with one process on GPUs 2 and 3: pid 4471 of alice, in disk wait, 40 % and 90 % SM, 140 GiB.
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

fn holds_for_host(text: &str, free_gpus: Option<u32>) -> Option<bool> {
    let host = host();
    Filter::parse(text).expect(text).matches(&FilterInput { host: &host, free_gpus, row: None })
}

fn error(text: &str) -> (Range<usize>, String) {
    let error = Filter::parse(text).expect_err(text);
    (error.at, error.message)
}

#[test]
fn each_test_of_the_language_holds_and_its_opposite_does_not() {
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
fn what_does_not_hold_is_told_from_what_is_not_known() {
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
fn a_space_means_and_and_a_bar_means_or() {
    assert_eq!(matches("alice sm<50"), Some(true));
    assert_eq!(matches("alice bob"), Some(false));
    assert_eq!(matches("bob | alice gpu:2"), Some(true));
    assert_eq!(matches("bob|alice"), Some(true));
    assert_eq!(matches("   "), Some(true));
    assert!(Filter::parse("").expect("nothing").is_empty());
}

#[test]
fn a_host_alone_is_ruled_out_only_by_what_is_known_of_hosts() {
    assert_eq!(holds_for_host("user:bob mem>1G", Some(2)), None);
    assert_eq!(holds_for_host("host:a6k mem>1G", Some(2)), Some(false));
    assert_eq!(holds_for_host("free>=3", Some(2)), Some(false));
    assert_eq!(holds_for_host("free>=2 model:h100 !tag:old", Some(2)), Some(true));
    assert_eq!(holds_for_host("free>=3", None), None);
    assert_eq!(holds_for_host("hgx", None), Some(true));
    assert_eq!(holds_for_host("dmitri", None), None);
    assert_eq!(holds_for_host("!hgx", None), Some(false));
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    for (text, at, message) in [
        ("usr:bob", 0..3, "there is no key `usr`: did you mean `user`?"),
        ("a lr=3", 2..4, "there is no key `lr`: a word with a mark in it is written in quotes"),
        ("mem>", 0..4, "`mem>` wants a value, as in mem>10G"),
        ("stuck mem>10", 10..12, "`10` is no memory with its unit K, M, G or T: write mem>10G"),
        ("idle>30", 5..7, "`30` is no time with its unit s, m, h, d or w: write idle>30m"),
        ("sm<five", 3..7, "`five` is no percentage: write sm<5"),
        ("power<1V", 6..8, "`1V` is no power in watts: write power<100"),
        ("free>=many", 6..10, "`many` is no number: write free>=4"),
        ("gpu:3-1", 4..7, "`3-1` is no GPU: write gpu:3, gpu:0-3 or gpu:2,3"),
        ("user>bob", 0..8, "`user` cannot be more or less: write user:bob"),
        ("/train", 0..6, "this regex has no closing `/`"),
        ("//", 0..2, "this regex is empty"),
        ("/home/bob", 6..7, "a regex ends with its `/`; a path is written in quotes"),
        ("\"a", 0..2, "this quote is not closed"),
        ("\"a\"b", 3..4, "a quote ends the word: leave a space behind it"),
        ("| a", 0..1, "nothing stands before the `|`"),
        ("a |", 3..3, "nothing stands after the `|`"),
        ("a || b", 3..4, "nothing stands before the `|`"),
        ("a !", 2..3, "`!` stands before a word: !idle"),
        ("! a", 0..1, "`!` stands right before a word: !idle"),
    ] {
        assert_eq!(error(text), (at, message.to_owned()), "{text}");
    }
    let (at, message) = error("x /(/");
    assert_eq!(at, 2..5);
    assert!(message.starts_with("this regex cannot be used: "), "{message}");
    assert_eq!(error(&"x".repeat(2000)).1, "the filter is too long");
    assert!(error("/(a{1000}){1000}/").1.starts_with("this regex cannot be used: "));
}

#[test]
fn every_example_of_the_help_is_understood() {
    for (example, meaning) in SYNTAX {
        assert!(example.is_ascii() && meaning.is_ascii());
        if let Err(error) = Filter::parse(example) {
            panic!("{example}: {error}");
        }
    }
}

proptest! {
    #[test]
    fn whatever_is_typed_is_understood_or_refused_within_the_text(text in "\\PC{0,60}|[a-z:<>=!|/\"0-9 ]{0,30}") {
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
