//! The views in a real terminal, and the ssh log of a real host.

use crate::lab::Lab;
use crate::pty::Pty;

#[test]
fn each_view_is_reached_by_its_key() {
    let mut pty = Pty::gpufleet((120, 40), &["--demo", "--theme", "dark"], &[]);
    pty.wait_for("40 GPUs");
    pty.keys("2");
    pty.wait_for("Free now");
    pty.keys("4");
    pty.wait_for("users hold");
    pty.keys("1");
    pty.wait_for("Processes");
    pty.keys("\r");
    pty.wait_for("GPU over 10m");
    pty.keys("w");
    pty.wait_for("GPU over 1h");
    pty.keys("\r");
    pty.wait_for("held by");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn the_ssh_log_is_shown_and_written_down() {
    let lab = Lab::start(&["hgx-01"]);
    let hosts = lab.hosts_toml("");
    let path = lab.path("ssh.log");
    let mut pty = Pty::gpufleet((120, 40), &["--log", &path.display().to_string(), &hosts], &[]);
    pty.wait("readings", |text| text.contains("97%"));
    pty.keys("L");
    pty.wait("the log", |text| {
        text.contains("ssh log of hgx-01") && text.contains("key exchange") && text.contains("first readings")
    });
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    let log = std::fs::read_to_string(&path).expect("the log");
    assert!(log.lines().all(|line| line.contains(" hgx-01 ")), "{log}");
    for words in ["try 1: ", " login", " runs as ", "4 GPUs, driver ", "first readings"] {
        assert!(log.contains(words), "{words}: {log}");
    }
}
