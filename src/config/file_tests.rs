//! Tests of whole files.

use super::*;
use crate::config::{Backend, ExamineRule, Hop, ProbeChoice, RULES, RasRule, Thresholds};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const EXAMPLE: &str = include_str!("../../hosts.example.toml");

fn parse(text: &str) -> HostsFile {
    HostsFile::parse("/etc/lab/hosts.toml", text, Some(Path::new("/home/a"))).unwrap_or_else(|error| panic!("{error}"))
}

fn error(text: &str) -> String {
    HostsFile::parse("hosts.toml", text, Some(Path::new("/home/a"))).expect_err("an error").to_string()
}

fn messages(text: &str) -> Vec<String> {
    let error = error(text);
    let heads = error.lines().filter_map(|line| line.strip_prefix("hosts.toml:"));
    heads.map(str::to_owned).collect()
}

#[test]
fn the_example_file_parses_and_sets_every_key() {
    let file = parse(EXAMPLE);
    let names: Vec<&str> = file.entries.iter().map(|entry| entry.config.name.as_str()).collect();
    assert_eq!(names, ["hgx-01", "hgx-02", "hgx-03", "hgx-04", "a6k-01", "this-machine"]);
    for key in KEYS.into_iter().chain(crate::config::notifications::KEYS).chain(crate::config::prices::KEYS) {
        let is_set = EXAMPLE.lines().any(|line| line.starts_with(&format!("{key} = ")));
        assert!(is_set, "hosts.example.toml does not set `{key}`");
    }
}

/// The thresholds of the example file: these rules are off, and stuck-spin warns after `warn_after` seconds.
fn thresholds(off: &[&str], warn_after: f64) -> Thresholds {
    let mut thresholds = Thresholds { model_servers: vec!["serve.py".into()], ..Thresholds::default() };
    for rule in off {
        thresholds.off |= 1 << RULES.iter().position(|known| known == rule).expect("a rule");
    }
    thresholds.stuck_spin.warn_after = warn_after;
    thresholds
}

#[test]
fn the_example_file_gives_the_expected_hosts() {
    let file = parse(EXAMPLE);
    let hgx = HostConfig {
        address: Some("10.0.0.12".to_owned()),
        user: Some("alice".to_owned()),
        group: Some("rack 7".into()),
        tags: vec!["training".into(), "h100".into()],
        note: Some("NVLink bridge 3 replaced in May".into()),
        reserved: vec![0, 2],
        thresholds: Some(Arc::new(thresholds(&["persistence-off", "gpu-imbalance"], 480.0))),
        ..HostConfig::named("hgx-02")
    };
    assert_eq!(file.entries[1].config, hgx);
    let a6k = HostConfig {
        address: Some("gpu7.cs.uni.example".to_owned()),
        port: Some(2222),
        user: Some("lab".to_owned()),
        identity_file: Some(PathBuf::from("/home/a/.ssh/id_lab")),
        known_hosts: Some(PathBuf::from("/home/a/.ssh/known_hosts_lab")),
        proxy_jump: Some(vec![
            Hop { user: None, host: "gate.cs.uni.example".to_owned(), port: None },
            Hop { user: Some("alice".to_owned()), host: "inner".to_owned(), port: Some(2222) },
        ]),
        ssh_config: Some(PathBuf::from("/home/a/.ssh/config_lab")),
        backend: Backend::Auto,
        probe: ProbeChoice::Path("/opt/gpufleet/gpufleet-probe".to_owned()),
        nvml_library: Some("/opt/nvidia/lib/libnvidia-ml.so.1".to_owned()),
        interval: Duration::from_secs(5),
        thresholds: Some(Arc::new(thresholds(&["persistence-off"], 300.0))),
        ..HostConfig::named("a6k-01")
    };
    assert_eq!(file.entries[4].config, a6k);
    assert!(file.entries[5].config.is_local());
}

#[test]
fn addresses_expand_with_names() {
    let addresses = |text: &str| -> Vec<String> {
        parse(text).entries.iter().map(|entry| entry.config.address().to_owned()).collect()
    };
    assert_eq!(addresses("[[hosts]]\nname = \"a,b\"\naddress = \"{name}.x\""), ["a.x", "b.x"]);
    assert_eq!(addresses("[defaults]\naddress = \"{name}.x\"\n[[hosts]]\nname = \"a\""), ["a.x"]);
    assert_eq!(addresses("[[hosts]]\nname = \"a\"\naddress = \"[::1]\""), ["::1"]);
    assert_eq!(addresses("[[hosts]]\nname = \"rack 1\"\naddress = \"a\"".replace("rack 1", "r1/n1").as_str()), ["a"]);
    assert_eq!(addresses("hosts = [{name = \"a\"}, {name = \"b\"}]"), ["a", "b"]);
}

#[test]
fn all_unknown_keys_are_reported_at_once() {
    let text = "[defaults]\nintervall = \"2s\"\n\n[[hosts]]\nname = \"a\"\nadress = \"10.0.0.7\"\nfrobnicate = 1\n\n[[host]]\nname = \"b\"\n";
    assert_eq!(
        error(text),
        "\
hosts.toml:2:1: unknown key `intervall`
  2 | intervall = \"2s\"
    | ^^^^^^^^^
    = hint: did you mean `interval`?
hosts.toml:6:1: unknown key `adress`
  6 | adress = \"10.0.0.7\"
    | ^^^^^^
    = hint: did you mean `address`?
hosts.toml:7:1: unknown key `frobnicate`
  7 | frobnicate = 1
    | ^^^^^^^^^^
    = hint: the keys are name, address, port, user, identity_file, known_hosts, proxy_jump, ssh_config, backend, probe, allow_shm, nvml_library, interval, tags, group, note, reserved, signals, examine, ras, shared_account, share, role, diagnosis
hosts.toml:9:3: unknown key `host`
  9 | [[host]]
    |   ^^^^
    = hint: did you mean `hosts`?
4 errors in hosts.toml
"
    );
}

#[test]
fn a_duplicate_host_is_reported_with_both_positions() {
    assert_eq!(
        error("[[hosts]]\nname = \"hgx-02\"\n\n[[hosts]]\nname = \"hgx-[01-04]\"\n"),
        "\
hosts.toml:5:8: the host `hgx-02` is named twice
  5 | name = \"hgx-[01-04]\"
    |        ^^^^^^^^^^^^^
    = named first at hosts.toml:2:8
    = hint: a host has one [[hosts]] section
"
    );
}

#[test]
fn a_nodeset_error_points_into_the_string() {
    assert_eq!(
        error("[[hosts]]\nname = \"hgx-[04-01]\"\n"),
        "\
hosts.toml:2:14: the range runs backwards
  2 | name = \"hgx-[04-01]\"
    |              ^^^^^
    = hint: write `01-04`
"
    );
    assert_eq!(messages("[[hosts]]\nname = \"h\\u0067x-[04-01]\"\n"), ["2:8: the range runs backwards"]);
}

#[test]
fn every_kind_of_bad_value_has_a_message() {
    let host = |line: &str| messages(&format!("[[hosts]]\nname = \"a\"\n{line}\n"));
    let table = [
        ("port = 99999", "3:8: `99999` is not a port"),
        ("port = 0", "3:8: `0` is not a port"),
        ("port = -22", "3:8: `-22` is not a port"),
        ("port = \"22\"", "3:8: `port` must be an integer, not a string"),
        ("port = 0x16", "3:8: a port is written in decimal"),
        ("interval = 2", "3:12: `interval` must be a string with a unit, not an integer"),
        ("interval = \"1h\"", "3:12: the interval `1h` is too long"),
        ("interval = \"10ms\"", "3:12: the interval `10ms` is too short"),
        ("user = \"a b\"", "3:8: ` ` cannot be in a user name"),
        ("user = 1", "3:8: `user` must be a string, not an integer"),
        ("backend = \"sytem\"", "3:11: `backend` cannot be \"sytem\""),
        ("probe = \"probe\"", "3:9: `probe` cannot be \"probe\""),
        ("nvml_library = \"libnvidia-ml.so\"", "3:16: `libnvidia-ml.so` is not an absolute path"),
        ("nvml_library = \"/a\\nb\"", "3:16: the path contains control characters"),
        ("allow_shm = \"yes\"", "3:13: `allow_shm` must be true or false, not a string"),
        ("signals = \"mine\"", "3:11: `signals` cannot be \"mine\""),
        ("examine = \"never\"", "3:11: `examine` cannot be \"never\""),
        ("ras = \"always\"", "3:7: `ras` cannot be \"always\""),
        ("shared_account = 1", "3:18: `shared_account` must be true or false, not an integer"),
        ("tags = \"a\"", "3:8: `tags` must be an array of strings, not a string"),
        ("tags = [\"a b\"]", "3:9: `a b` is not one word"),
        ("reserved = [0]", "3:12: `reserved` must be a string, not an array"),
        ("reserved = \"a\"", "3:12: `a` is not a GPU index"),
        ("identity_file = \"~bob/k\"", "3:17: `~bob/k`: only `~/` is expanded"),
        ("address = \"a\u{2066}b\"", "3:11: the invisible character U+2066 cannot be in a name"),
        ("address = \"fe80::1%e\u{202e}\"", "3:11: the invisible character U+202E cannot be in a name"),
        ("user = \"b\u{feff}\"", "3:8: the invisible character U+FEFF cannot be in a name"),
        ("proxy_jump = \"g\u{202e}\"", "3:14: the invisible character U+202E cannot be in a name"),
        ("address = \"a;b\"", "3:11: `;` cannot be in a host name"),
        ("address = \"bob@a\"", "3:11: `bob@a` contains a user name"),
        ("address = \"a:22\"", "3:11: `a:22` is neither a host name nor an IPv6 address"),
        ("address = \"b[1-2]\"", "3:11: 2 addresses for one host"),
        ("address = \"-b\"", "3:11: `-b` begins with `-`"),
    ];
    for (line, message) in table {
        assert_eq!(host(line), [message], "{line}");
    }
}

#[test]
fn structural_errors_are_reported() {
    let table = [
        ("", "1:1: the file has no hosts"),
        ("[defaults]\n", "2:1: the file has no hosts"),
        ("hosts = []", "1:11: the file has no hosts"),
        ("hosts = \"a\"", "1:1: `hosts` must be an array of tables, not a string"),
        ("[hosts]\nname = \"a\"", "1:2: `hosts` must be an array of tables, not a table"),
        ("hosts = [\"a\"]", "1:10: a host must be a table, not a string"),
        ("[[hosts]]\nport = 1", "1:1: a host without `name`"),
        ("[[hosts]]\nname = \"\"", "2:9: an empty host name"),
        ("[[hosts]]\nname = 1", "2:8: `name` must be a string, not an integer"),
        ("[[hosts]]\nname = \"a\u{202e}b\"", "2:8: the invisible character U+202E cannot be in a name"),
        ("[[hosts]]\nname = \"a\u{200b}\"\naddress = \"x\"", "2:8: the invisible character U+200B cannot be in a name"),
        ("[[hosts]]\nname = \"a\\u001b\"", "2:8: the invisible character U+001B cannot be in a name"),
        ("[[hosts]]\nname = \"a b\"", "2:8: ` ` cannot be in a host name"),
        ("[[hosts]]\nname = \"a b\"\naddress = \"x\"", "2:8: ' ' cannot be in a host name"),
        ("[[hosts]]\nname = \"a[1-99999]\"", "2:9: more than 10000 hosts in one nodeset"),
        ("[[hosts]]\nname = \"a,b\"\naddress = \"x\"", "3:11: one address for 2 hosts"),
        ("port = 1\n[[hosts]]\nname = \"a\"", "1:1: `port` is outside of any section"),
        ("[defaults]\nname = \"a\"\n[[hosts]]\nname = \"b\"", "2:8: `name` cannot have a default"),
        ("[defaults]\naddress = \"a\"\n[[hosts]]\nname = \"b\"", "2:11: a default address must contain `{name}`"),
        (
            "[[hosts]]\nname = \"a[1-9000]\"\n[[hosts]]\nname = \"b[1-9000]\"",
            "4:8: 18000 hosts in one file; the limit is 10000",
        ),
    ];
    for (text, message) in table {
        assert_eq!(messages(text), [message], "{text}");
    }
}

#[test]
fn all_syntax_errors_are_reported_and_nothing_else() {
    let text = "[[hosts]]\nname = \"a\nport = \nfrobnicate = 1\n";
    let messages = messages(text);
    assert!(messages.iter().any(|message| message.starts_with("2:")), "{messages:?}");
    assert!(messages.iter().any(|message| message.starts_with("3:")), "{messages:?}");
    assert!(!messages.iter().any(|message| message.contains("unknown key")), "{messages:?}");
}

proptest::proptest! {
    #[test]
    fn parsing_never_panics(text in "(\\[\\[?(hosts|defaults)\\]\\]?\n|(name|port|tags|interval|x) = (\"[a-c\\[\\],0-9-]{0,8}\"|[0-9]{1,6}|\\[\"a\"\\])\n|\\PC{0,6}\n){0,8}") {
        if let Err(error) = HostsFile::parse("hosts.toml", &text, None) {
            assert!(error.to_string().starts_with("hosts.toml:"));
        }
    }
}

#[test]
fn examinations_follow_the_host_then_the_default() {
    let text = "[defaults]\nras = \"never\"\nexamine = \"asked\"\n[[hosts]]\nname = \"a\"\nras = \"ask\"\n\
                [[hosts]]\nname = \"b\"\nexamine = \"automatic\"\n";
    let rules: Vec<_> = parse(text).entries.iter().map(|entry| (entry.config.examine, entry.config.ras)).collect();
    assert_eq!(rules, [(ExamineRule::Asked, RasRule::Ask), (ExamineRule::Automatic, RasRule::Never)]);
    assert_eq!(HostConfig::named("c").ras, RasRule::Safe);
}

#[test]
fn signal_rules_apply_in_the_order_host_strictest_tag_default() {
    let text = "[defaults]\nsignals = \"own\"\n[tag.prod]\nsignals = \"none\"\n[tag.lab]\nsignals = \"all\"\n\
                [[hosts]]\nname = \"a\"\n[[hosts]]\nname = \"b\"\ntags = [\"lab\"]\n\
                [[hosts]]\nname = \"c\"\ntags = [\"lab\", \"prod\"]\n\
                [[hosts]]\nname = \"d\"\ntags = [\"prod\"]\nsignals = \"own\"\n";
    let rules: Vec<SignalRule> = parse(text).entries.iter().map(|entry| entry.config.signals).collect();
    assert_eq!(rules, [SignalRule::Own, SignalRule::All, SignalRule::None, SignalRule::Own]);
}
