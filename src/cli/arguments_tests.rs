use super::*;

fn check(line: &str) -> Result<(), String> {
    let words = std::iter::once("gpufleet").chain(line.split_whitespace());
    let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
    cli.check().map_err(|error| error.to_string())
}

fn first_line(line: &str) -> String {
    let error = check(line).expect_err(line);
    error.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn the_clap_definition_is_valid() {
    Cli::command().debug_assert();
}

#[test]
fn the_help_of_a_subcommand_lists_only_options_that_it_takes() {
    let help = |name: &str| {
        let mut definition = Cli::definition();
        definition.find_subcommand_mut(name).expect("a subcommand").render_long_help().to_string()
    };
    for name in ["explain", "init", "doctor", "clean"] {
        assert!(!help(name).contains("--demo"), "{}", help(name));
    }
    assert!(!help("explain").contains("--interval") && !help("init").contains("--interval"));
    assert!(help("init").contains("--ssh-config") && help("doctor").contains("--interval"));
    assert!(help("status").contains("--demo-hosts") && help("status").contains("--interval"));
    // Hidden options are still parsed: the error names them.
    let matches = Cli::definition().try_get_matches_from(["gpufleet", "explain", "--demo"]).expect("parses");
    assert!(Cli::from_arg_matches(&matches).expect("a command line").check().is_err());
}

#[test]
fn valid_command_lines_are_accepted() {
    for line in [
        "",
        "hosts.toml",
        "gpu1 bob@gpu2:22 -",
        "--demo --demo-hosts 3 --demo-gpus 2 --demo-speed 10",
        "status --json --timeout 5 hosts.toml",
        "--demo status --json",
        "status --demo",
        "status -w",
        "status gpu1 --watch 2 --json",
        "status --csv --loop 5 gpu1",
        "collect gpu1 --metrics --per-process",
        "collect gpu1 --metrics 9900",
        "collect gpu1 --metrics [::1]:9846",
        "status --csv --columns host,index,power.draw gpu1",
        "status --csv --replay lab.jsonl --loop 60",
        "--interval 1s status gpu1",
        "status gpu1 --interval 500ms -i /k",
        "--theme light --ascii gpu1",
        "init gpu1",
        "free",
        "free -n 2 --mem 40G --model H100 --same-host --wait --json --timeout 5 hosts.toml",
        "--demo free",
        "findings --for 5 --json --min-severity warn gpu1",
        "findings --watch --demo --demo-speed 60",
        "findings --replay lab.jsonl --json",
        "record lab.jsonl gpu1 hosts.toml --redact --for 600",
        "--demo record lab.jsonl",
        "collect",
        "collect --print-unit hosts.toml",
        "collect --socket /run/gpufleet/collect.sock --socket-group lab",
        "relay",
        "relay --socket /run/gpufleet/collect.sock",
        "status --direct",
        "free --direct -n 2",
        "findings --direct",
        "--demo collect",
        "report",
        "doctor --unattended lab.toml",
        "report lab.toml --since 4w --until 2026-11-20 --by host --csv --gpu-hour H100=2.5 --kwh 0.3",
        "history hgx-01:3",
        "history hgx-01 hosts.toml --store lab.db --theme dark",
        "--collector lab-head history hgx-01:3",
        "--collector lab-head why hgx-01:4711",
        "--collector room-a --collector room-b",
        "history hgx-01 --collector room-a --collector room-b",
        "--demo history hgx-01 --store lab.db",
        "explain",
        "explain stuck-spin",
        "--version",
    ] {
        assert_eq!(check(line), Ok(()), "{line}");
    }
}

#[test]
fn conflicting_options_are_rejected() {
    let table = [
        ("--demo-hosts 3", "--demo-hosts needs --demo"),
        ("status --demo-speed 3", "--demo-speed needs --demo"),
        ("--demo gpu1", "--demo simulates its hosts and does not take a TARGET"),
        ("--demo status gpu1", "--demo simulates its hosts and does not take a TARGET"),
        ("--demo --ssh-config c", "--demo does not connect to hosts and does not take --ssh-config"),
        ("--demo -i k", "--demo does not connect to hosts and does not take --identity-file"),
        ("findings --replay lab.jsonl gpu1", "--replay evaluates a recording and does not take TARGET"),
        ("--demo findings --replay lab.jsonl", "--replay evaluates a recording and does not take --demo"),
        ("--demo record lab.jsonl gpu1", "--demo simulates its hosts and does not take a TARGET"),
        ("collect --per-process gpu1", "--per-process adds metrics"),
        ("--demo collect --print-unit", "--print-unit does not take --demo"),
        ("status --csv --json", "--csv and --json are two formats"),
        ("status --columns host", "--columns selects columns of the CSV"),
        ("status --replay lab.jsonl", "--replay prints a recording as CSV"),
        ("status --csv --replay lab.jsonl gpu1", "--replay prints a recording and does not take TARGET"),
        ("--demo status --csv --replay lab.jsonl", "--replay prints a recording and does not take --demo"),
        ("status --csv --replay r -i k", "--replay prints a recording and does not take --identity-file"),
        ("--demo history hgx-01", "the simulated fleet has no history"),
        (
            "history hgx-01 --store lab.db --collector lab-head",
            "--collector shows the history of the collector and does not take --store",
        ),
        ("--collector room-a --collector room-b status", "`status` takes one --collector"),
        ("free --same-host", "--same-host needs a number of GPUs"),
        ("--demo free gpu1", "--demo simulates its hosts and does not take a TARGET"),
        ("--theme dark status", "--theme applies only to the screen"),
        ("--readonly status gpu1", "--readonly applies only to the screen"),
        ("--ascii status gpu1", "--ascii applies only to the screen"),
        ("--demo init", "`init` does not work on the simulated fleet"),
        ("explain --demo", "`explain` does not connect to hosts and does not take this option"),
        ("init --interval 2s", "`init` takes neither --interval nor --identity-file"),
    ];
    for (line, message) in table {
        assert_eq!(first_line(line), message, "{line}");
    }
}

#[test]
fn invalid_values_are_rejected() {
    let table = [
        (
            "--interval 2",
            "error: invalid value '2' for '--interval <TIME>': the interval `2` has no unit (write a number and a unit, \"250ms\" to \"60s\", as in interval = \"2s\")",
        ),
        ("--demo --demo-hosts 0", "error: invalid value '0' for '--demo-hosts <N>': 0 is not in 1..=10000"),
        (
            "--demo --demo-speed nan",
            "error: invalid value 'nan' for '--demo-speed <X>': write a number from 0.1 to 1000",
        ),
        ("status --timeout -1", "error: unexpected argument '-1' found"),
        (
            "status -w gpu1",
            "error: invalid value 'gpu1' for '--watch [<S>]': write seconds, from 0.1 to 3600; write targets before --watch",
        ),
        (
            "status --csv --columns host,powr.draw",
            "error: invalid value 'host,powr.draw' for '--columns <NAMES>': there is no column `powr.draw`; did you mean `power.draw`?",
        ),
        (
            "collect --metrics lab.toml",
            "error: invalid value 'lab.toml' for '--metrics [<ADDRESS>]': write an IP address and a port, as in 127.0.0.1:9846 or [::1]:9846, or a port; write targets before --metrics",
        ),
        ("status --timeout 0", "error: invalid value '0' for '--timeout <S>': write seconds, from 0.1 to 3600"),
        ("record lab.jsonl --for 0", "error: invalid value '0' for '--for <S>': write seconds, from 0.1 to 2592000"),
        ("--theme pink", "error: invalid value 'pink' for '--theme <THEME>'"),
    ];
    for (line, message) in table {
        assert_eq!(first_line(line), message, "{line}");
    }
}

#[test]
fn the_first_word_of_why_may_name_a_process() {
    let parse = |words: &[&str]| {
        let cli = Cli::try_parse_from(["gpufleet", "why"].iter().chain(words)).expect("parses");
        let Some(Command::Why(why)) = cli.command else { panic!("is why") };
        (why.target().map(|target| (target.host, target.pid)), why.targets().to_vec())
    };
    let process = |host: &str, pid| Some((host.to_owned(), pid));
    assert_eq!(parse(&["node2:4711", "lab.toml"]), (process("node2", 4711), vec!["lab.toml".to_owned()]));
    assert_eq!(parse(&["node2:4711"]), (process("node2", 4711), Vec::new()));
    assert_eq!(parse(&[]), (None, Vec::new()));
    for target in ["lab.toml", "me@node2:22", "ssh://node2:22", "[::1]:22", "node2:x", ":4711", "node2:-1"] {
        assert_eq!(parse(&[target]), (None, vec![target.to_owned()]));
    }
}

#[test]
fn a_subcommand_after_a_target_is_parsed_as_a_target() {
    let cli = Cli::try_parse_from(["gpufleet", "hosts.toml", "status"]).expect("parses");
    // clap reads the word as a target; the selection of hosts rejects it.
    assert!(cli.check().is_err() || cli.targets == ["hosts.toml", "status"]);
    assert_eq!(
        Cli::subcommands(),
        [
            "status",
            "free",
            "findings",
            "why",
            "record",
            "collect",
            "report",
            "history",
            "relay",
            "doctor",
            "clean",
            "init",
            "explain",
            "completions",
            "man",
            "schema",
            "help"
        ]
    );
}

#[test]
fn durations_may_have_no_unit() {
    let half_a_minute = Ok(Duration::from_secs(30));
    for text in ["30", "30s", "0.5m"] {
        assert_eq!(timeout(text), half_a_minute, "{text}");
    }
    for text in ["", "s", "0", "-1", "nan", "2h", "3601"] {
        assert_eq!(timeout(text), Err("write seconds, from 0.1 to 3600".to_owned()), "{text}");
    }
}

#[test]
fn sizes_are_in_binary_units() {
    for (text, bytes) in
        [("40G", 40 << 30), ("40", 40 << 30), ("512MiB", 512 << 20), ("1.5t", 3 << 39), ("40gb", 40 << 30)]
    {
        assert_eq!(size(text), Ok(bytes), "{text}");
    }
    for text in ["", "G", "-1G", "40K", "nanG", "40G5", "1e99G"] {
        assert!(size(text).is_err(), "{text}");
    }
}

#[test]
fn a_history_is_of_a_host_or_of_its_gpu() {
    for (word, host, gpu) in [
        ("hgx-01", "hgx-01", None),
        ("hgx-01:3", "hgx-01", Some(3)),
        ("hgx-01:x", "hgx-01:x", None),
        ("alice@hgx-01:22", "alice@hgx-01:22", None),
        ("ssh://hgx-01:22", "ssh://hgx-01:22", None),
        ("[::1]:22", "[::1]:22", None),
    ] {
        let cli = Cli::try_parse_from(["gpufleet", "history", word, "lab.toml"]).expect("parses");
        let Some(Command::History(history)) = cli.command else { panic!("{word}") };
        assert_eq!(history.host_and_gpu(), (host, gpu), "{word}");
        assert_eq!(history.all_targets(), ["lab.toml", host], "{word}");
    }
}
