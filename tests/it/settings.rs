//! Settings and what the screen remembers, in a real terminal.

use crate::lab::Lab;
use crate::pty::Pty;
use std::path::Path;

struct Folders {
    config: tempfile::TempDir,
    state: tempfile::TempDir,
}

impl Folders {
    fn new(settings: &str) -> Self {
        let folders =
            Self { config: tempfile::tempdir().expect("a folder"), state: tempfile::tempdir().expect("a folder") };
        std::fs::create_dir(folders.config.path().join("gpufleet")).expect("a folder");
        std::fs::write(folders.settings(), settings).expect("writes");
        folders
    }

    fn settings(&self) -> std::path::PathBuf {
        self.config.path().join("gpufleet/settings.toml")
    }

    fn view(&self) -> std::path::PathBuf {
        self.state.path().join("gpufleet/view.json")
    }

    fn watch(&self, arguments: &[&str]) -> Pty {
        let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let (config, state) = (path(self.config.path()), path(self.state.path()));
        let environment = [("SSH_AUTH_SOCK", ""), ("XDG_CONFIG_HOME", &*config), ("XDG_STATE_HOME", &*state)];
        Pty::gpufleet((120, 40), arguments, &environment)
    }
}

#[test]
fn keys_of_the_settings_hold_and_a_broken_file_is_told_and_left_alone() {
    let good = Folders::new("mouse = false\n[keys]\nwall = [\"W\", \"F2\"]\nquit = \"Q\"\n");
    let mut pty = good.watch(&["--demo", "--theme", "dark"]);
    pty.wait_for("40 GPUs");
    pty.screen(|screen| assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None));
    pty.keys("qW");
    pty.wait_for("Free now");
    pty.keys("?");
    pty.wait_for("W F2");
    pty.keys("\x1b");
    pty.wait("the help closed", |text| !text.contains("W F2"));
    pty.keys("Q");
    assert_eq!(pty.exit_code(), 0);

    let broken = "theem = \"dark\"\n[keys]\nwall = \"m\"\n";
    let bad = Folders::new(broken);
    let mut pty = bad.watch(&["--demo", "--theme", "dark"]);
    pty.wait_for("settings.toml:1:1: unknown key `theem`, and 1 more mistake; the default settings apply");
    pty.keys("2");
    pty.wait_for("Free now");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    let bytes = pty.bytes();
    let text = String::from_utf8_lossy(&bytes);
    assert!(
        text.contains("gpufleet: the default settings were used because of these mistakes:"),
        "all mistakes are reported at the end"
    );
    assert!(text.contains("use another key, or change the key of `mine` too"));
    assert_eq!(std::fs::read_to_string(bad.settings()).expect("is there"), broken);
}

#[test]
fn the_view_and_hidden_hosts_are_found_again_and_a_broken_file_is_kept_aside() {
    let lab = Lab::start(&["hgx-01", "hgx-02"]);
    let hosts = lab.hosts_toml("");
    let folders = Folders::new("");
    let mut pty = folders.watch(&[&hosts]);
    pty.wait("readings of both", |text| text.matches("97%").count() >= 4);
    pty.keys("D");
    pty.wait_for("hgx-01 is hidden; H shows it again");
    pty.keys("3");
    pty.wait_for("1 hidden");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    let written = std::fs::read_to_string(folders.view()).expect("is written");
    assert!(written.contains("\"processes\"") && written.contains("hgx-01"), "{written}");

    let mut pty = folders.watch(&[&hosts]);
    pty.wait("the list with the other host alone", |text| {
        text.contains("1 hidden") && text.contains("Processes") && text.contains("sleep 3600")
    });
    pty.keys("1");
    pty.wait("the grid without it", |text| text.contains("hgx-02") && !text.contains("hgx-01"));
    pty.keys("H");
    pty.wait_for("hgx-01");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);

    std::fs::write(folders.view(), "{\"version\":").expect("writes");
    let mut pty = folders.watch(&[&hosts]);
    pty.wait_for("the screen starts without saved state, the unusable file is kept as view.json.bad-1");
    pty.wait_for("hgx-01");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn a_click_selects_the_wheel_scrolls_and_no_motion_is_asked_for() {
    let mut pty = Pty::gpufleet((120, 40), &["--demo", "--theme", "dark"], &[]);
    let text = pty.wait("six panes", |text| (1..=6).all(|host| text.contains(&format!("hgx-0{host}"))));
    pty.screen(|screen| {
        assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::PressRelease);
        assert_eq!(screen.mouse_protocol_encoding(), vt100::MouseProtocolEncoding::Sgr);
    });
    let row = text.lines().position(|line| line.contains("hgx-05")).expect("a pane");
    let line = text.lines().nth(row).expect("a line");
    let column = line[..line.find("hgx-05").expect("a pane")].chars().count();
    let click = format!("\x1b[<0;{0};{1}M\x1b[<0;{0};{1}m", column + 1, row + 2);
    pty.keys(&click);
    pty.wait("it is selected", |text| text.lines().any(|line| line.contains("▸hgx-05")));
    pty.keys(&click);
    pty.wait_for(" hgx-05   8 x NVIDIA H100");
    pty.keys("\x1b");
    pty.wait("the grid", |text| text.contains("hgx-06"));
    pty.keys("M");
    pty.wait_for("mouse off: the terminal selects text; M turns it on");
    pty.screen(|screen| assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None));
    pty.keys("Z");
    pty.wait_for("FROZEN (Z)");
    pty.keys("Z:wall\r");
    pty.wait_for("Free now");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    let bytes = pty.bytes();
    let text = String::from_utf8_lossy(&bytes);
    assert!(!text.contains("\x1b[?1003h") && !text.contains("\x1b[?1002h"), "no motion is asked for");
}
