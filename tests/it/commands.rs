//! Commands without a screen: exit codes, standard output and standard error.

use crate::fake_driver::{devices, gpu, gpu_with};
use crate::lab::{Lab, gpufleet, has_driver, program, wait_until};
use crate::ssh::authentication::SshAgent;
use crate::sshd::{PASSPHRASE, Sshd, free_port};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// An empty home directory for each test.
struct Home {
    directory: TempDir,
}

/// The result of a finished command.
#[derive(Debug, PartialEq)]
struct RunResult {
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
        let mut command = Command::new(crate::lab::program());
        command.args(arguments).env_clear().env("HOME", self.path()).current_dir(self.path()).stdin(Stdio::null());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    fn run(&self, arguments: &[&str]) -> RunResult {
        let result =
            finish(self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts"));
        crate::schema::check_output(arguments, result.stdout.as_bytes());
        result
    }

    fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> RunResult {
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

    /// Asserts that the command prints only this message to standard error and exits with `code`.
    #[track_caller]
    fn assert_fails(&self, arguments: &[&str], code: i32, stderr: &str) {
        let expected = RunResult { code: Some(code), stdout: String::new(), stderr: stderr.to_owned() };
        assert_eq!(self.run(arguments), expected, "{arguments:?}");
    }
}

fn finish(child: Child) -> RunResult {
    let output = child.wait_with_output().expect("ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    RunResult { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

#[test]
fn every_error_of_an_invalid_configuration_is_printed() {
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
        home.assert_fails(&["status", &name], 1, &expected);
        home.assert_fails(&[&name], 1, &expected);
    }
}

#[test]
fn unreadable_files_are_reported() {
    let home = Home::new();
    home.assert_fails(&["status", "hosts.toml"], 1, "gpufleet: cannot read hosts.toml: No such file or directory\n");
    home.assert_fails(&["./lab"], 1, "gpufleet: cannot read ./lab: No such file or directory\n");
    home.assert_fails(&["status", "./"], 1, "gpufleet: cannot read ./: it is a directory\n  hint: name a file in it\n");
    home.write("latin1.toml", b"# one\n# gr\xf6\xdfe\n");
    home.assert_fails(
        &["status", "latin1.toml"],
        1,
        "gpufleet: cannot read latin1.toml: line 2 is not UTF-8\n  hint: save it as UTF-8, for example with `iconv -t UTF-8`\n",
    );
    home.write("large.toml", &vec![b'#'; 1024 * 1024 + 1]);
    home.assert_fails(
        &["status", "large.toml"],
        1,
        "gpufleet: cannot read large.toml: it is larger than 1024 KiB\n  hint: check that this is the right file\n",
    );
}

#[test]
fn default_hosts_file_is_found_and_its_errors_are_printed() {
    let home = Home::new();
    let path = home.write(".config/gpufleet/hosts.toml", b"[[hosts]]\nnam = \"a\"\n");
    let result = home.run(&["status"]);
    assert_eq!(result.code, Some(1));
    assert!(
        result.stderr.starts_with(&format!("{}:1:1: a host without `name`\n", path.display())),
        "{}",
        result.stderr
    );
    // A target on the command line may be defined in that file, so the file must be valid.
    assert_eq!(home.run(&["status", "gpu1"]), result);
}

#[test]
fn missing_targets_print_the_ways_to_begin() {
    let home = Home::new();
    if has_driver() {
        let result = home.run(&["status", "--json"]);
        assert!(result.stdout.contains("\"name\":\"localhost\""), "{result:?}");
        return;
    }
    let lines = "\
gpufleet HOST...             watch hosts that ssh can reach; there is no hosts.toml, and no NVIDIA driver on this machine
gpufleet --collector HOST    show the fleet of the collector on HOST
gpufleet init                write a hosts.toml to fill in
gpufleet --demo              watch a simulated fleet
";
    home.assert_fails(&[], 2, lines);
    home.assert_fails(&["status"], 1, lines);
    home.assert_fails(&["collect"], 1, lines);
}

#[test]
fn version_and_help_are_printed() {
    let home = Home::new();
    for option in ["--version", "-V"] {
        let result = home.run(&[option]);
        assert_eq!((result.code, result.stderr.as_str()), (Some(0), ""));
        assert!(result.stdout.starts_with(&format!("gpufleet {}\n", env!("CARGO_PKG_VERSION"))), "{}", result.stdout);
        assert!(result.stdout.contains("probe for x86_64"), "{}", result.stdout);
        assert!(result.stdout.contains("\nbuilt by rustc "), "{}", result.stdout);
    }
    for (name, arguments) in [
        ("help", &["--help"][..]),
        ("help_status", &["status", "--help"]),
        ("help_findings", &["findings", "--help"]),
        ("help_free", &["free", "--help"]),
        ("help_record", &["record", "--help"]),
        ("help_init", &["help", "init"]),
        ("help_explain", &["explain", "--help"]),
    ] {
        let result = home.run(arguments);
        assert_eq!((result.code, result.stderr.as_str()), (Some(0), ""));
        insta::assert_snapshot!(name, result.stdout);
    }
}

#[test]
fn usage_errors_suggest_a_correction() {
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
        home.assert_fails(arguments, 2, stderr);
    }
}

#[test]
fn targets_are_read_from_standard_input() {
    let home = Home::new();
    let result = home.run_with_input(&["status", "-"], b"# nobody\n");
    assert_eq!((result.code, result.stderr.as_str()), (Some(1), "gpufleet: no hosts on standard input\n"));
    let result = home.run_with_input(&["status", "-"], b"gpu1 a[2-1]\n");
    assert_eq!(result.code, Some(2));
    assert!(result.stderr.starts_with("gpufleet: not a target: the range runs backwards\n"), "{}", result.stderr);
    let result = home.run_with_input(&["status", "-"], &[0xff]);
    assert_eq!(result.code, Some(1));
    assert!(result.stderr.starts_with("gpufleet: cannot read standard input: "), "{}", result.stderr);
}

#[test]
fn refused_host_is_shown_and_changes_the_exit_code() {
    let home = Home::new();
    // A free port: nothing listens there.
    let port = TcpListener::bind("127.0.0.1:0").expect("binds").local_addr().expect("an address").port();
    let target = format!("127.0.0.1:{port}");
    let result = home.run(&["status", &target]);
    assert_eq!(result.code, Some(3), "{result:?}");
    assert!(result.stdout.starts_with("127.0.0.1  down: "), "{}", result.stdout);
    let result = home.run(&["status", "--json", &target]);
    assert_eq!(result.code, Some(3), "{result:?}");
    let report: Value = serde_json::from_str(&result.stdout).expect("JSON");
    assert_eq!(report["hosts"][0]["state"], "down");
    assert_eq!(report["hosts"][0]["error"]["kind"], "refused");
}

#[test]
fn mute_server_is_waited_for_no_longer_than_the_timeout() {
    let home = Home::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let target = format!("127.0.0.1:{}", listener.local_addr().expect("an address").port());
    let result = home.run(&["status", "--timeout", "0.5", &target]);
    assert_eq!(result.code, Some(3), "{result:?}");
    assert!(result.stdout.starts_with("127.0.0.1  no answer yet: key exchange, 0."), "{}", result.stdout);
    // The JSON gives the same reason for the exit code.
    let error_of = |arguments: &[&str], hosts: &str| {
        let result = home.run(&[arguments, &[&target]].concat());
        assert_eq!(result.code, Some(3), "{result:?}");
        let report: Value = serde_json::from_str(&result.stdout).expect("JSON");
        report[hosts][0]["error"].clone()
    };
    for (arguments, hosts) in [
        (&["status", "--json", "--timeout", "0.5"][..], "hosts"),
        (&["findings", "--json", "--for", "0.5"], "silent"),
        (&["free", "--json", "--timeout", "0.5"], "unseen"),
    ] {
        let error = error_of(arguments, hosts);
        assert_eq!(error["kind"], "timeout", "{error}");
        let message = error["message"].as_str().expect("a message");
        assert!(message.starts_with("no answer yet: key exchange, 0."), "{message}");
    }
}

/// Returns the blocks that a repeated command has printed so far, one line each.
fn read_lines(reader: &mut impl std::io::BufRead, count: usize) -> Vec<String> {
    let line = |_| {
        let mut line = String::new();
        reader.read_line(&mut line).expect("reads");
        line
    };
    (0..count).map(line).collect()
}

#[test]
fn status_repeats_until_ctrl_c() {
    let home = Home::new();
    let demo = ["status", "--demo", "--demo-hosts", "1", "--demo-gpus", "1", "--watch", "0.2"];
    let spawn = |arguments: &[&str]| {
        home.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts")
    };
    let mut child = spawn(&demo);
    let mut stdout = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
    let mut headings = 0;
    while headings < 3 {
        let line = read_lines(&mut stdout, 1).remove(0);
        assert!(!line.is_empty(), "it ended");
        assert!(!line.contains('\x1b'), "no terminal: {line:?}");
        headings += usize::from(line.starts_with("every 0.2s  20"));
    }
    assert!(Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().expect("runs").success());
    let ended = child.wait().expect("ends");
    assert_eq!(ended.code(), Some(0));
    // With --json, each report is one line.
    let mut child = spawn(&[&demo[..], &["--json"]].concat());
    let mut stdout = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
    for line in read_lines(&mut stdout, 3) {
        crate::schema::check("status", &line);
        let report: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(report["hosts"].as_array().map(Vec::len), Some(1));
    }
    // It ends when nobody reads any more, as with `| head`.
    drop(stdout);
    assert_eq!(child.wait().expect("ends").code(), Some(0));
}

#[test]
fn status_repeats_in_place_on_a_terminal() {
    let mut pty = crate::pty::Pty::gpufleet((100, 12), &["status", "--demo", "--watch", "0.3"], &[]);
    let screen = pty.wait("the table", |text| text.contains("simulated fleet") && text.contains("more lines"));
    let heading = screen.lines().next().expect("a line").to_owned();
    assert!(heading.starts_with("every 0.3s  "), "{screen}");
    let later = pty.wait("a later one", |text| text.lines().next().is_some_and(|line| line != heading));
    assert_eq!(later.matches("every 0.3s").count(), 1, "{later}");
    pty.keys("\x03");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn repeated_status_keeps_its_connections() {
    let lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    let home = Home::new();
    let mut child = home
        .command(&["status", "--json", "--watch", "1", &hosts])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut stdout = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
    let reports: Vec<Value> =
        read_lines(&mut stdout, 4).iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let age = |report: &Value| report["hosts"][0]["readings"]["uptime_seconds"].as_f64().expect("an uptime");
    assert!(reports.iter().all(|report| report["hosts"][0]["state"] == "live"), "{reports:?}");
    assert!(age(&reports[3]) > age(&reports[0]), "the readings are new");
    assert!(Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().expect("runs").success());
    assert_eq!(child.wait().expect("ends").code(), Some(0));
}

#[test]
fn signal_ends_status_with_the_exit_code_of_a_shell() {
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
        // The program installs its signal handlers before it connects.
        let _connection = listener.accept().expect("it connects");
        let killed = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().expect("kill runs");
        assert!(killed.success());
        assert_eq!(
            finish(child),
            RunResult { code: Some(code), stdout: String::new(), stderr: String::new() },
            "{signal}"
        );
    }
}

#[test]
fn simulated_fleet_is_reported_as_simulated() {
    let home = Home::new();
    let result = home.run(&["--demo", "--demo-hosts", "3", "--demo-gpus", "2", "status", "--json"]);
    let report: Value = serde_json::from_str(&result.stdout).unwrap_or_else(|error| panic!("{error}: {result:?}"));
    assert_eq!(report["schema"], 1);
    assert_eq!(report["simulated"], true);
    let hosts = report["hosts"].as_array().expect("hosts");
    assert_eq!(hosts.len(), 3);
    let all_live = hosts.iter().all(|host| host["state"] == "live");
    assert_eq!(result.code, Some(if all_live { 0 } else { 3 }), "{}", result.stdout);
    assert!(hosts.iter().any(|host| host["gpus"].as_array().is_some_and(|gpus| gpus.len() == 2)), "{}", result.stdout);
    let result = home.run(&["status", "--demo", "--demo-hosts", "1"]);
    assert!(result.stdout.starts_with("simulated fleet (--demo)\n"), "{}", result.stdout);
}

#[test]
fn init_writes_a_valid_file_and_overwrites_nothing() {
    let home = Home::new();
    let path = home.path().join(".config/gpufleet/hosts.toml");
    let result = home.run(&["init", "hgx-[01-02]", "bob@gpu1:2222"]);
    let expected = format!("wrote {}: run `gpufleet` to watch these hosts\n", path.display());
    assert_eq!(result, RunResult { code: Some(0), stdout: expected, stderr: String::new() });
    let written = fs::read_to_string(&path).expect("written");
    assert!(written.contains("[[hosts]]\nname = \"gpu1\"\nuser = \"bob\"\nport = 2222\n"), "{written}");
    home.assert_fails(
        &["init", "gpu2"],
        1,
        &format!(
            "gpufleet: cannot write {}: File exists\n  hint: choose another name, or delete the file first\n",
            path.display()
        ),
    );
    assert_eq!(fs::read_to_string(&path).expect("still there"), written);
    // The first line tells editors where the schema is.
    assert!(written.starts_with("#:schema ./hosts.schema.json\n"), "{written}");
    let schema = fs::read_to_string(path.with_file_name("hosts.schema.json")).expect("written");
    assert_eq!(schema, home.run(&["schema", "hosts"]).stdout);
    let hosts: toml::Table = written.parse().expect("TOML");
    crate::schema::check("hosts", &serde_json::to_string(&hosts).expect("encodes"));
}

#[test]
fn every_schema_is_printed_and_valid() {
    let home = Home::new();
    for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/schemas")).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let printed = home.run(&["schema", &name]);
        assert_eq!((printed.code, &printed.stderr), (Some(0), &String::new()), "{name}");
        let schema: Value = serde_json::from_str(&printed.stdout).expect("JSON");
        crate::schema::compile(schema);
    }
    let unknown = home.run(&["schema", "host"]);
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.stderr.contains("hosts"), "{}", unknown.stderr);
}

// `gpufleet free` with real sshds, the real probe and fake drivers.

/// Runs `gpufleet free`. Returns standard output and the exit code.
fn free(arguments: &[&str]) -> (String, i32) {
    let output = gpufleet(&[&["free"], arguments].concat());
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    (text, output.status.code().unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr))))
}

#[test]
fn free_lists_gpus_with_the_commands_to_use_them() {
    let lab = Lab::start(&["hgx-01", "hgx-02"]);
    // On hgx-02 the first two GPUs are busy, the third is free and the fourth is lost; GPU 3 is reserved on both hosts.
    let worker = lab.hosts[0].worker_pid();
    let busy = json!({
        "utilization_percent": 97, "memory_used_bytes": 61_203_283_968_u64,
        "processes": [{"pid": worker, "memory_bytes": 60_129_542_144_u64, "sm_percent": 97}]
    });
    lab.hosts[0].driver.set(&devices(&[gpu(0), gpu_with(1, &busy), gpu(2), gpu(3)]));
    let hosts = lab.hosts_toml("reserved = \"3\"\nnote = \"ask Bob first\"");
    let (text, code) = free(&[&hosts]);
    assert_eq!(code, 0, "{text}");
    let port = lab.hosts[0].sshd.port();
    let key = lab.hosts[0].sshd.client_key().display().to_string();
    let known = lab.hosts[0].sshd.known_hosts().display().to_string();
    let known = format!("-o 'UserKnownHostsFile=\"{known}\"' -o GlobalKnownHostsFile=none");
    let mut lines = text.lines();
    let first = lines.next().expect("a host");
    assert!(first.starts_with("hgx-01  2 free  GPU 0,2  NVIDIA H100 80GB HBM3, 80G"), "{text}");
    assert!(first.ends_with("note: ask Bob first"), "{text}");
    assert_eq!(lines.next(), Some(format!("  ssh -p {port} -i {key} {known} 127.0.0.1").as_str()));
    let uuid = |line: &str| line.split_once("CUDA_VISIBLE_DEVICES=").map(|(_, uuids)| uuids.split(',').count());
    assert_eq!(lines.next().and_then(uuid), Some(2), "{text}");
    assert!(text.contains("hgx-02  1 free  GPU 2  "), "{text}");

    // One host has two free GPUs, no host has three, both together have three.
    let (text, code) = free(&["-n", "2", "--same-host", "--json", &hosts]);
    let json: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((code, &json["hosts"][0]["name"]), (0, &json!("hgx-01")), "{json:#}");
    assert_eq!(json["hosts"].as_array().map(Vec::len), Some(1));
    assert_eq!(free(&["-n", "3", "--same-host", &hosts]), ("no free GPU matches\n".to_owned(), 4));
    assert_eq!(free(&["-n", "3", &hosts]).1, 0);
    assert_eq!(free(&["--model", "A100", &hosts]).1, 4);
    assert_eq!(free(&["--mem", "90G", &hosts]).1, 4);
}

#[test]
fn free_names_hosts_without_current_readings() {
    let mut lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    lab.hosts[0].sshd.stop();
    let (text, code) = free(&["--timeout", "5", &hosts]);
    assert_eq!(code, 3, "{text}");
    assert_eq!(text, "no free GPU matches\nno current readings: hgx-01 (see `gpufleet status`)\n");
}

#[test]
fn free_wait_ends_when_a_gpu_becomes_free() {
    let lab = Lab::start(&["hgx-01"]);
    let worker = lab.hosts[0].worker_pid();
    let busy = json!({
        "utilization_percent": 97, "memory_used_bytes": 61_203_283_968_u64,
        "processes": [{"pid": worker, "memory_bytes": 60_129_542_144_u64, "sm_percent": 97}]
    });
    lab.hosts[0].driver.set(&devices(&[gpu_with(0, &busy)]));
    let hosts = lab.hosts_toml("");
    let child = Command::new(crate::lab::program())
        .args(["free", "--wait", "--timeout", "0.5", &hosts])
        .env_remove("SSH_AUTH_SOCK")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    // The command keeps watching while no GPU is free: the probe runs.
    wait_until("a probe", String::new, || (!lab.probes().is_empty()).then_some(()));
    lab.hosts[0].driver.set(&devices(&[gpu(0)]));
    let output = child.wait_with_output().expect("ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.starts_with("hgx-01  1 free  GPU 0  "), "{text}");
}

#[test]
fn status_without_a_terminal_starts_no_other_program() {
    let home = Home::new();
    let (tput, mark) = (home.path().join("tput"), home.path().join("started"));
    std::fs::write(&tput, format!("#!/bin/sh\necho 80 >>'{}'\n", mark.display())).expect("writes");
    std::fs::set_permissions(&tput, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("may be run");
    let output = home
        .command(&["status", "--demo", "--demo-hosts", "1"])
        .env("PATH", home.path())
        .env("TERM", "xterm-256color")
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(!mark.exists(), "tput was started");
}

// `gpufleet doctor` and `clean`, and targets from the ssh configuration.

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The line of a step in the report.
fn step<'a>(report: &'a str, name: &str) -> &'a str {
    let line = report.lines().find(|line| line.get(8..).is_some_and(|rest| rest.starts_with(name)));
    line.unwrap_or_else(|| panic!("no step {name:?} in:\n{report}"))
}

#[test]
fn doctor_reports_each_step_and_clean_removes_the_probes() {
    let lab = Lab::start(&["hgx-01", "hgx-02"]);
    let hosts = lab.hosts_toml("");
    let first = gpufleet(&["doctor", &hosts]);
    let report = text(&first);
    println!("{report}");
    assert_eq!(first.status.code(), Some(0), "{report}");
    let sshd = &lab.hosts[0].sshd;
    let part = report.split("hgx-02\n").next().unwrap();
    assert!(part.starts_with("hgx-01\n"), "{part}");
    let target = format!("{}@127.0.0.1 port {}, by the built-in client", sshd.user(), sshd.port());
    assert!(step(part, "configuration").ends_with(&target), "{part}");
    assert!(step(part, "name").ends_with(" 127.0.0.1"), "{part}");
    assert!(step(part, "TCP").ends_with(&format!("127.0.0.1 port {}", sshd.port())), "{part}");
    let keys = step(part, "key exchange");
    assert!(
        keys.contains("25519") && keys.ends_with(&format!("ssh-ed25519 {}", sshd.fingerprint("ed25519"))),
        "{part}"
    );
    assert!(step(part, "login").ends_with(&format!("publickey {} (ED25519): accepted", sshd.client_key().display())));
    assert!(step(part, "shell").ends_with("/bin/sh answers: Linux x86_64"), "{part}");
    assert!(step(part, "directory").contains("probe uploaded and verified"), "{part}");
    assert!(step(part, "probe").contains("gpufleet-probe "), "{part}");
    assert!(step(part, "NVML").contains("4 GPUs: "), "{part}");
    assert!(step(part, "first snapshot").contains("round trip "), "{part}");
    // The second run finds the probe.
    let again = text(&gpufleet(&["doctor", &hosts]));
    assert!(!again.contains("probe uploaded"), "{again}");
    let cached = lab.cached_probes("hgx-01").pop().expect("a probe");
    assert!(again.contains(&format!("the probe is {}", cached.display())), "{again}");
    let hash = Command::new("sha256sum").arg(&cached).output().expect("runs").stdout;
    let hash = String::from_utf8(hash).expect("UTF-8");
    let hash = hash.split(' ').next().expect("a hash");
    assert_eq!(again.matches(&format!("its SHA-256 is {hash}\n")).count(), 2, "{again}");
    let status = text(&gpufleet(&["status", "--json", &hosts]));
    assert_eq!(status.matches(&format!("\"probe_sha256\":\"{hash}\"")).count(), 2, "{status}");

    let cleaned = gpufleet(&["clean", &hosts]);
    assert_eq!(cleaned.status.code(), Some(0));
    let stdout = text(&cleaned);
    assert!(stdout.contains(&format!("hgx-01: removed {}\n", cached.display())), "{stdout}");
    assert!(lab.cached_probes("hgx-01").is_empty() && lab.cached_probes("hgx-02").is_empty());
    // Other tests may install probes in /tmp at the same time, so only the caches of the lab are checked.
    let again = text(&gpufleet(&["clean", &hosts]));
    assert_eq!(again.lines().filter(|line| line.contains("/cache/gpufleet/")).count(), 0, "{again}");
    assert!(again.contains("hgx-01: ") && again.contains("hgx-02: "), "{again}");
}

#[test]
fn doctor_names_the_failed_step_and_a_remedy() {
    let lab = Lab::start(&["hgx-01"]);
    let sshd = &lab.hosts[0].sshd;
    let port = free_port(Ipv4Addr::LOCALHOST);
    let host = |name: &str, port: u16, key: &std::path::Path| {
        format!(
            "[[hosts]]\nname = \"{name}\"\naddress = \"127.0.0.1\"\nport = {port}\nidentity_file = \"{}\"\nknown_hosts \
             = \"{}\"\nnvml_library = \"{}\"\n",
            key.display(),
            sshd.known_hosts().display(),
            lab.hosts[0].driver.library().display()
        )
    };
    let config = lab.write("ssh_config", "IdentitiesOnly yes\n");
    let file = host("closed", port, &sshd.client_key())
        + &host("stranger", sshd.port(), &sshd.stranger_key())
        + &host("good", sshd.port(), &sshd.client_key());
    let hosts = lab.write("hosts.toml", &file);
    let output = gpufleet(&["doctor", "--ssh-config", &config, &hosts]);
    let report = text(&output);
    println!("{report}");
    assert_eq!(output.status.code(), Some(3));
    let part = |from: &str, to: &str| report.split(from).nth(1).unwrap().split(to).next().unwrap().to_owned();
    let closed = part("closed\n", "stranger\n");
    assert!(step(&closed, "TCP").starts_with("  FAIL"), "{closed}");
    assert!(closed.contains(&format!("nothing listens on 127.0.0.1 port {port}\n")), "{closed}");
    assert!(closed.contains("hint: is sshd running there?"), "{closed}");
    let stranger = part("stranger\n", "good\n");
    assert!(step(&stranger, "login").starts_with("  FAIL"), "{stranger}");
    assert!(
        stranger.contains(&format!("publickey {} (ED25519): refused", sshd.stranger_key().display())),
        "{stranger}"
    );
    assert!(stranger.contains("hint: ssh-copy-id"), "{stranger}");
    assert!(report.split("good\n").nth(1).unwrap().contains("first snapshot"), "{report}");
}

/// The prompts of a login are those that sshd offers: it asks for nothing until the client chooses the method.
#[test]
fn doctor_names_the_prompts_that_a_collector_cannot_answer() {
    let lab = Lab::start(&["hgx-01"]);
    let sshd = &lab.hosts[0].sshd;
    let passwords = Sshd::start_at(Ipv4Addr::LOCALHOST, &["PasswordAuthentication yes"]);
    // Questions come from PAM.
    let questions = Sshd::start_at(Ipv4Addr::LOCALHOST, &["UsePAM yes", "KbdInteractiveAuthentication yes"]);
    let unknown = lab.write("empty_known_hosts", "");
    let host = |name: &str, sshd: &Sshd, key: PathBuf, known_hosts: &Path| {
        format!(
            "[[hosts]]\nname = \"{name}\"\naddress = \"127.0.0.1\"\nport = {}\nidentity_file = \"{}\"\nknown_hosts = \
             \"{}\"\nnvml_library = \"{}\"\n",
            sshd.port(),
            key.display(),
            known_hosts.display(),
            lab.hosts[0].driver.library().display()
        )
    };
    let file = host("good", sshd, sshd.client_key(), &sshd.known_hosts())
        + &host("unknown", sshd, sshd.client_key(), Path::new(&unknown))
        + &host("locked", sshd, sshd.locked_key(), &sshd.known_hosts())
        + &host("password", &passwords, passwords.stranger_key(), &passwords.known_hosts())
        + &host("questions", &questions, questions.stranger_key(), &questions.known_hosts());
    let (hosts, config) = (lab.write("hosts.toml", &file), lab.write("ssh_config", "IdentitiesOnly yes\n"));
    let check = |socket: Option<&Path>| {
        let mut command = Command::new(program());
        command.args(["doctor", "--unattended", "--ssh-config", &config, &hosts]).env_remove("SSH_AUTH_SOCK");
        command.envs(socket.map(|socket| ("SSH_AUTH_SOCK", socket)));
        let output = command.output().expect("runs");
        (output.status.code(), text(&output))
    };
    let (code, report) = check(None);
    println!("{report}");
    assert_eq!(code, Some(3));
    let names = ["good", "unknown", "locked", "password", "questions"];
    let part = |report: &str, name: &str| {
        let report = format!("\n{report}");
        let rest = report.split(&format!("\n{name}\n")).nth(1).expect(name);
        let ends = names.iter().filter_map(|next| rest.find(&format!("\n{next}\n")));
        rest[..ends.min().unwrap_or(rest.len())].to_owned()
    };
    let asks = |name: &str| {
        let part = part(&report, name);
        part.lines()
            .filter_map(|line| line.strip_prefix("  ASK   "))
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
    };
    let user = sshd.user();
    let nothing: [String; 0] = [];
    assert_eq!(asks("good"), nothing);
    assert!(step(&part(&report, "good"), "unattended").ends_with("  nothing asks for an answer"), "{report}");
    let key = sshd.fingerprint("ed25519");
    let host_key = asks("unknown");
    assert_eq!(host_key.len(), 1, "{report}");
    assert!(host_key[0].starts_with(&format!("host key whether to trust {key} of ")), "{report}");
    assert_eq!(asks("locked"), [format!("passphrase {}", sshd.locked_key().display())]);
    assert_eq!(asks("password"), [format!("password of {user}@127.0.0.1")]);
    assert_eq!(asks("questions"), [format!("questions to {user}@127.0.0.1, for example for a one-time code")]);
    assert_eq!(report.matches("hint: use a key without a passphrase (`identity_file` in hosts.toml)").count(), 1);
    // A key of the agent logs in, and the report says so.
    let folder = tempfile::tempdir().expect("a folder");
    let agent = SshAgent::start(folder.path());
    let unlocked = folder.path().join("key");
    std::fs::copy(sshd.locked_key(), &unlocked).expect("copies");
    let opened = Command::new("ssh-keygen")
        .args(["-q", "-p", "-P", PASSPHRASE, "-N", "", "-f"])
        .arg(&unlocked)
        .stdout(std::process::Stdio::null())
        .status()
        .expect("runs");
    assert!(opened.success());
    agent.add(&unlocked);
    let (_, report) = check(Some(&agent.socket));
    let locked = part(&report, "locked");
    assert!(locked.contains(&format!("the key is in the agent {}\n", agent.socket.display())), "{report}");
}

#[test]
fn target_patterns_match_host_names_in_the_ssh_config() {
    let lab = Lab::start(&["gpu01", "gpu02"]);
    let mut config = String::from("Host db github.com\n");
    for host in &lab.hosts {
        let _ = write!(
            config,
            "Host {}\n HostName {}\n Port {}\n IdentityFile {}\n UserKnownHostsFile {}\n",
            host.name,
            host.sshd.ip(),
            host.sshd.port(),
            host.sshd.client_key().display(),
            host.sshd.known_hosts().display()
        );
    }
    let config = lab.write("ssh_config", &config);
    let output = gpufleet(&["--ssh-config", &config, "status", "--json", "gpu*"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let hosts = report["hosts"].as_array().unwrap();
    let names: Vec<_> =
        hosts.iter().map(|host| (host["name"].as_str().unwrap(), host["state"].as_str().unwrap())).collect();
    assert_eq!(names, [("gpu01", "live"), ("gpu02", "live")]);
    let output = gpufleet(&["--ssh-config", &config, "status", "h100*"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        format!("gpufleet: no host in {config} matches `h100*`\n  hint: a range is written `gpu[01-04]`\n")
    );
}
