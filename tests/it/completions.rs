//! Completion of arguments in bash, zsh and fish, and the manual pages.

use crate::pty::Pty;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// A home directory with a hosts.toml, a second one, and an ssh configuration.
struct Home {
    directory: TempDir,
}

impl Home {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("makes the directory");
            std::fs::write(path, text).expect("writes");
        };
        write(
            ".config/gpufleet/hosts.toml",
            "[[hosts]]\nname = \"zeta-[1-2]\"\ngroup = \"rack7\"\n[[hosts]]\nname = \"yotta\"\ntags = [\"spare\"]\n",
        );
        write("lab.toml", "[[hosts]]\nname = \"quux\"\n");
        write(".ssh/config", "Host xenon\n  HostName 192.0.2.1\n");
        Self { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Starts a shell with only gpufleet's completions and returns it at its prompt.
    fn shell(&self, shell: &str, arguments: &[&str], load: &str) -> Pty {
        let home = self.path().to_str().expect("UTF-8");
        let program = Path::new(env!("CARGO_BIN_EXE_gpufleet")).parent().expect("a directory");
        let path = format!("{}:{}", program.display(), std::env::var("PATH").expect("a PATH"));
        let environment =
            [("HOME", home), ("XDG_CONFIG_HOME", ""), ("PATH", &path), ("ZDOTDIR", home), ("TERM", "xterm")];
        let mut pty = Pty::program((160, 40), shell, arguments, &environment);
        pty.keys(&format!("cd && {load} && echo rea''dy\n"));
        pty.wait_for("ready");
        pty
    }

    fn bash(&self) -> Pty {
        self.shell("bash", &["--norc", "--noprofile", "-i"], "source <(gpufleet completions bash)")
    }

    fn zsh(&self) -> Pty {
        let load = "autoload -Uz compinit && compinit -u && source <(gpufleet completions zsh)";
        self.shell("zsh", &["-f", "-i"], load)
    }

    fn fish(&self) -> Pty {
        self.shell("fish", &["--no-config", "-i"], "gpufleet completions fish | source")
    }
}

/// Types the beginnings of commands, each with a tab, and waits for their completed forms.
#[track_caller]
fn assert_completes(mut pty: Pty, cases: &[(&str, &str)]) {
    for (typed, completed) in cases {
        pty.keys(&format!("{typed}\t"));
        pty.wait_for(completed);
        // Ctrl-U clears the line.
        pty.keys("\x15");
    }
    pty.keys("exit\n");
    assert_eq!(pty.exit_code(), 0);
}

const CASES: &[(&str, &str)] = &[
    ("gpufleet explain stuck-spin-s", "gpufleet explain stuck-spin-suspect"),
    ("gpufleet findings --min-severity cr", "gpufleet findings --min-severity crit"),
    ("gpufleet status yot", "gpufleet status yotta"),
    ("gpufleet status --json @rac", "gpufleet status --json @rack7"),
    ("gpufleet xen", "gpufleet xenon"),
    ("gpufleet doctor lab.toml qu", "gpufleet doctor lab.toml quux"),
    ("gpufleet record --redac", "gpufleet record --redact"),
];

#[test]
fn bash_completes_subcommands_options_rules_hosts_and_groups() {
    assert_completes(Home::new().bash(), CASES);
}

#[test]
fn zsh_completes_subcommands_options_rules_hosts_and_groups() {
    assert_completes(Home::new().zsh(), CASES);
}

#[test]
fn fish_completes_subcommands_options_rules_hosts_and_groups() {
    assert_completes(Home::new().fish(), CASES);
}

#[test]
fn groups_and_tags_select_hosts() {
    let home = Home::new();
    let run = |target: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_gpufleet"))
            .args(["status", "--timeout", "0.1", target])
            .env_clear()
            .env("HOME", home.path())
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .output()
            .expect("runs");
        (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (stdout, _) = run("@rack7");
    assert!(stdout.contains("zeta-1") && stdout.contains("zeta-2") && !stdout.contains("yotta"), "{stdout}");
    let (stdout, _) = run("@spare");
    assert!(stdout.contains("yotta") && !stdout.contains("zeta"), "{stdout}");
    let (stdout, stderr) = run("@rack8");
    assert_eq!(
        (stdout.as_str(), stderr.as_str()),
        ("", "gpufleet: no host of hosts.toml has the group or tag `rack8`\n  hint: did you mean `rack7`?\n")
    );
}

/// `groff` renders the pages without a warning. `man` uses it to show them.
#[test]
fn manual_pages_are_valid_roff() {
    let subcommands = gpufleet::cli::arguments::Cli::subcommands();
    assert!(subcommands.len() > 5);
    let pages = subcommands.iter().map(String::as_str).filter(|name| *name != "help").chain([""]);
    for page in pages {
        let output = Command::new(env!("CARGO_BIN_EXE_gpufleet"))
            .arg("man")
            .args((!page.is_empty()).then_some(page))
            .output()
            .expect("runs");
        assert!(output.status.success(), "{page}");
        let folder = tempfile::tempdir().expect("a directory");
        let file = folder.path().join("page");
        std::fs::write(&file, &output.stdout).expect("writes");
        let rendered = Command::new("groff").args(["-man", "-Tutf8", "-P-cbou", "-ww"]).arg(&file).output();
        let rendered = rendered.expect("groff is missing. On Debian: sudo apt-get install groff-base");
        let warnings = String::from_utf8_lossy(&rendered.stderr);
        assert!(rendered.status.success() && warnings.is_empty(), "{page}: {warnings}");
        let text = String::from_utf8_lossy(&rendered.stdout);
        assert!(text.contains("gpufleet") && text.contains("SYNOPSIS"), "{text}");
    }
}
