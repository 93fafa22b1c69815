//! The non-interactive commands, whole: exit codes, standard output, standard error.

use serde_json::Value;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A home of its own for each test, without configuration.
struct Home {
    directory: TempDir,
}

/// What a run left behind.
#[derive(Debug, PartialEq)]
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Home {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a directory") }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpufleet"));
        command.args(arguments).env_clear().env("HOME", self.path()).current_dir(self.path()).stdin(Stdio::null());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        finish(self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts"))
    }

    fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Ran {
        let mut command = self.command(arguments);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        child.stdin.take().expect("piped").write_all(input).expect("takes its input");
        finish(child)
    }

    fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("makes the directory");
        fs::write(&path, content).expect("writes");
        path
    }

    /// Runs and expects nothing but a message and an exit code.
    #[track_caller]
    fn refuses(&self, arguments: &[&str], code: i32, stderr: &str) {
        let expected = Ran { code: Some(code), stdout: String::new(), stderr: stderr.to_owned() };
        assert_eq!(self.run(arguments), expected, "{arguments:?}");
    }
}

fn finish(child: Child) -> Ran {
    let output = child.wait_with_output().expect("ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn has_driver() -> bool {
    ["/proc/driver/nvidia/version", "/dev/nvidiactl"].iter().any(|path| Path::new(path).exists())
}

#[test]
fn every_bad_configuration_is_told_whole() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs");
    let mut names: Vec<PathBuf> =
        fs::read_dir(&fixtures).expect("fixtures").map(|entry| entry.expect("reads").path()).collect();
    names.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    assert!(names.len() >= 7, "{names:?}");
    let home = Home::new();
    for fixture in names {
        let name = fixture.file_name().expect("a name").to_string_lossy().into_owned();
        let expected = fs::read_to_string(fixture.with_extension("stderr")).expect("what is expected");
        home.write(&name, &fs::read(&fixture).expect("reads"));
        home.refuses(&["status", &name], 1, &expected);
        home.refuses(&[&name], 1, &expected);
    }
}

#[test]
fn files_that_cannot_be_read_are_told() {
    let home = Home::new();
    home.refuses(&["status", "hosts.toml"], 1, "gpufleet: cannot read hosts.toml: No such file or directory\n");
    home.refuses(&["./lab"], 1, "gpufleet: cannot read ./lab: No such file or directory\n");
    home.refuses(&["status", "./"], 1, "gpufleet: cannot read ./: it is a directory\n  hint: name a file in it\n");
    home.write("latin1.toml", b"# one\n# gr\xf6\xdfe\n");
    home.refuses(
        &["status", "latin1.toml"],
        1,
        "gpufleet: cannot read latin1.toml: line 2 is not UTF-8\n  hint: save it as UTF-8, for example with `iconv -t UTF-8`\n",
    );
    home.write("large.toml", &vec![b'#'; 1024 * 1024 + 1]);
    home.refuses(
        &["status", "large.toml"],
        1,
        "gpufleet: cannot read large.toml: it is larger than 1024 KiB\n  hint: check that this is the right file\n",
    );
}

#[test]
fn the_standard_file_is_found_and_its_errors_told() {
    let home = Home::new();
    let path = home.write(".config/gpufleet/hosts.toml", b"[[hosts]]\nnam = \"a\"\n");
    let ran = home.run(&["status"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.starts_with(&format!("{}:1:1: a host without `name`\n", path.display())), "{}", ran.stderr);
    // A name on the command line may stand in that file, so the file must be sound.
    assert_eq!(home.run(&["status", "gpu1"]), ran);
}

#[test]
fn without_a_target_three_lines_say_what_to_type() {
    let home = Home::new();
    if has_driver() {
        let ran = home.run(&["status", "--json"]);
        assert!(ran.stdout.contains("\"name\":\"localhost\""), "{ran:?}");
        return;
    }
    let lines = "\
gpufleet HOST...   watch hosts that ssh can reach; there is no hosts.toml, and no NVIDIA driver on this machine
gpufleet init      write a hosts.toml to fill in
gpufleet --demo    watch a simulated fleet
";
    home.refuses(&[], 2, lines);
    home.refuses(&["status"], 1, lines);
}

#[test]
fn version_and_help_are_for_people() {
    let home = Home::new();
    for option in ["--version", "-V"] {
        let ran = home.run(&[option]);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
        assert!(ran.stdout.starts_with(&format!("gpufleet {}\n", env!("CARGO_PKG_VERSION"))), "{}", ran.stdout);
        assert!(ran.stdout.contains("probe for x86_64"), "{}", ran.stdout);
    }
    for (name, arguments) in [
        ("help", &["--help"][..]),
        ("help_status", &["status", "--help"]),
        ("help_findings", &["findings", "--help"]),
        ("help_free", &["free", "--help"]),
        ("help_record", &["record", "--help"]),
        ("help_init", &["help", "init"]),
    ] {
        let ran = home.run(arguments);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
        insta::assert_snapshot!(name, ran.stdout);
    }
}

#[test]
fn usage_errors_name_the_way_out() {
    let home = Home::new();
    let table = [
        (
            &["hosts.toml", "status"][..],
            "gpufleet: `status` is a subcommand, but a host is expected here\n  hint: for the subcommand write \
             `gpufleet status hosts.toml`, for a host of that name `ssh://status`\n",
        ),
        (
            &["statsu", "gpu1"],
            "gpufleet: `statsu` is not a subcommand, and as a host name it is one letter from `status`\n  hint: for the subcommand \
             write `gpufleet status gpu1`, for a host of that name `ssh://statsu`\n",
        ),
        (
            &["status", "hgx-[01-04"],
            "gpufleet: not a target: `[` without `]`\n  hgx-[01-04\n      ^^^^^^\n  hint: write a range as `[01-04]`\n",
        ),
        (
            &["status", "--", "-oProxyCommand=x"],
            "gpufleet: not a target: `-oProxyCommand=x` begins with `-`\n  -oProxyCommand=x\n  ^^^^^^^^^^^^^^^^\n  hint: ssh \
             would read it as an option\n",
        ),
        (
            &["--demo", "gpu1"],
            "gpufleet: --demo simulates its hosts and does not take a TARGET\n  hint: leave one of them out\n",
        ),
        (&["status", "--demo-hosts", "3"], "gpufleet: --demo-hosts needs --demo\n  hint: add --demo\n"),
        (
            &["--interval", "2"],
            "error: invalid value '2' for '--interval <TIME>': the interval `2` has no unit (write a number and a unit, \
             \"250ms\" to \"60s\", as in interval = \"2s\")\n\nFor more information, try '--help'.\n",
        ),
        (
            &["status", "--jsno"],
            "error: unexpected argument '--jsno' found\n\n  tip: a similar argument exists: '--json'\n\nUsage: gpufleet \
             status --json [TARGET]...\n\nFor more information, try '--help'.\n",
        ),
    ];
    for (arguments, stderr) in table {
        home.refuses(arguments, 2, stderr);
    }
}

#[test]
fn targets_come_from_standard_input_too() {
    let home = Home::new();
    let ran = home.run_with_input(&["status", "-"], b"# nobody\n");
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), "gpufleet: no hosts on standard input\n"));
    let ran = home.run_with_input(&["status", "-"], b"gpu1 a[2-1]\n");
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.starts_with("gpufleet: not a target: the range runs backwards\n"), "{}", ran.stderr);
    let ran = home.run_with_input(&["status", "-"], &[0xff]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.starts_with("gpufleet: cannot read standard input: "), "{}", ran.stderr);
}

#[test]
fn a_host_that_refuses_is_shown_and_counts_as_not_reported() {
    let home = Home::new();
    // A port that was free a moment ago: nothing listens there.
    let port = TcpListener::bind("127.0.0.1:0").expect("binds").local_addr().expect("an address").port();
    let target = format!("127.0.0.1:{port}");
    let ran = home.run(&["status", &target]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stdout.starts_with("127.0.0.1  down: "), "{}", ran.stdout);
    let ran = home.run(&["status", "--json", &target]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let report: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(report["hosts"][0]["state"], "down");
    assert_eq!(report["hosts"][0]["error"]["kind"], "refused");
}

#[test]
fn a_mute_server_is_waited_for_no_longer_than_was_said() {
    let home = Home::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let target = format!("127.0.0.1:{}", listener.local_addr().expect("an address").port());
    let ran = home.run(&["status", "--timeout", "0.5", &target]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stdout.starts_with("127.0.0.1  no answer yet: key exchange, 0."), "{}", ran.stdout);
}

#[test]
fn a_signal_ends_it_with_the_shells_exit_code() {
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let home = Home::new();
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let target = format!("127.0.0.1:{}", listener.local_addr().expect("an address").port());
        let child = home
            .command(&["status", "--timeout", "60", &target])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        // It connects only after it has taken the signals over.
        let _connection = listener.accept().expect("it connects");
        let killed = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().expect("kill runs");
        assert!(killed.success());
        assert_eq!(finish(child), Ran { code: Some(code), stdout: String::new(), stderr: String::new() }, "{signal}");
    }
}

#[test]
fn the_simulated_fleet_reports_and_says_that_it_is_simulated() {
    let home = Home::new();
    let ran = home.run(&["--demo", "--demo-hosts", "3", "--demo-gpus", "2", "status", "--json"]);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    assert_eq!(report["schema"], 1);
    assert_eq!(report["simulated"], true);
    let hosts = report["hosts"].as_array().expect("hosts");
    assert_eq!(hosts.len(), 3);
    let all_live = hosts.iter().all(|host| host["state"] == "live");
    assert_eq!(ran.code, Some(if all_live { 0 } else { 3 }), "{}", ran.stdout);
    assert!(hosts.iter().any(|host| host["gpus"].as_array().is_some_and(|gpus| gpus.len() == 2)), "{}", ran.stdout);
    let ran = home.run(&["status", "--demo", "--demo-hosts", "1"]);
    assert!(ran.stdout.starts_with("simulated fleet (--demo)\n"), "{}", ran.stdout);
}

#[test]
fn init_writes_a_file_that_works_and_overwrites_nothing() {
    let home = Home::new();
    let path = home.path().join(".config/gpufleet/hosts.toml");
    let ran = home.run(&["init", "hgx-[01-02]", "bob@gpu1:2222"]);
    let words = format!("wrote {}: run `gpufleet` to watch these hosts\n", path.display());
    assert_eq!(ran, Ran { code: Some(0), stdout: words, stderr: String::new() });
    let written = fs::read_to_string(&path).expect("written");
    assert!(written.contains("[[hosts]]\nname = \"gpu1\"\nuser = \"bob\"\nport = 2222\n"), "{written}");
    home.refuses(
        &["init", "gpu2"],
        1,
        &format!(
            "gpufleet: cannot write {}: File exists\n  hint: choose another name, or delete the file first\n",
            path.display()
        ),
    );
    assert_eq!(fs::read_to_string(&path).expect("still there"), written);
}
