//! `s` and `y` in a real terminal: a shell on a real host, and what is copied.

use crate::lab::Lab;
use crate::pty::Pty;
use std::path::Path;

fn watch(hosts: &str, state: &Path) -> Pty {
    let state = state.to_str().expect("UTF-8");
    let environment = [("SSH_AUTH_SOCK", ""), ("XDG_STATE_HOME", state), ("DISPLAY", ""), ("WAYLAND_DISPLAY", "")];
    Pty::gpufleet((120, 40), &[hosts], &environment)
}

/// What the terminal was asked to put onto its clipboard last.
fn clipboard(pty: &Pty) -> Option<String> {
    let bytes = pty.bytes();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (_, last) = text.rsplit_once("\x1b]52;c;")?;
    let (encoded, _) = last.split_once('\x07')?;
    let mut decoded = Vec::new();
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count) = (0_u32, 0);
    for byte in encoded.bytes().filter(|byte| *byte != b'=') {
        let digit = digits.iter().position(|digit| *digit == byte).expect("base64");
        bits = bits << 6 | digit as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            decoded.push((bits >> count & 0xff) as u8);
        }
    }
    Some(String::from_utf8(decoded).expect("UTF-8"))
}

#[test]
fn a_shell_on_a_host_has_the_terminal_and_the_screen_comes_back_to_the_same_place() {
    let lab = Lab::start(&["hgx-01", "hgx-02"]);
    let state = tempfile::tempdir().expect("a folder");
    let mut pty = watch(&lab.hosts_toml(""), state.path());
    pty.wait("readings of both", |text| text.matches("97%").count() >= 4);
    pty.keys("]");
    pty.keys("l\r");
    pty.wait("the second host alone", |text| text.contains(" hgx-02   4 x") && !text.contains("hgx-01   4 x"));
    // What is typed right behind the key is not for the shell, nor for the screen afterwards.
    pty.keys("sq\r");
    pty.wait_for("# the screen returns when it ends");
    pty.wait("a shell", |text| text.contains('$') || text.contains('#') && text.lines().count() > 2);
    pty.screen(|screen| {
        assert!(!screen.alternate_screen(), "the shell has the main screen");
        assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None, "the mouse is off");
    });
    // Every key is the shell's: the connection is the second host's sshd, on a terminal of its own.
    pty.keys("echo port:${SSH_CONNECTION##* }:tty:$(test -t 0 && echo yes):\r");
    pty.wait_for(&format!("port:{}:tty:yes:", lab.hosts[1].sshd.port()));
    pty.keys("exit 3\r");
    pty.wait("the same place", |text| {
        text.contains(" hgx-02   4 x") && text.contains("back from hgx-02 (exit status 3)")
    });
    pty.screen(|screen| assert!(screen.alternate_screen()));
    pty.keys("\x1b");
    pty.wait("the grid", |text| text.contains("hgx-01") && text.contains("hgx-02"));
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn a_shell_that_ssh_cannot_open_says_why_before_the_screen_comes_back() {
    let mut lab = Lab::start(&["hgx-01"]);
    let state = tempfile::tempdir().expect("a folder");
    let mut pty = watch(&lab.hosts_toml(""), state.path());
    pty.wait_for("97%");
    lab.hosts[0].sshd.stop();
    pty.keys("s");
    pty.wait_for("Connection refused");
    pty.wait_for("gpufleet: ssh to hgx-01 failed (exit status 255). Press Enter to return to the screen.");
    pty.keys("\r");
    pty.wait_for("ssh to hgx-01 failed (exit status 255); press L for the ssh log");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn a_signal_that_ends_the_program_while_a_shell_is_open_leaves_a_terminal_as_it_was() {
    let lab = Lab::start(&["hgx-01"]);
    let state = tempfile::tempdir().expect("a folder");
    let mut pty = watch(&lab.hosts_toml(""), state.path());
    pty.wait_for("97%");
    pty.keys("s");
    pty.wait_for("# the screen returns when it ends");
    // Ctrl-C is the shell's.
    pty.signal("INT");
    pty.keys("echo still-$((40 + 2))\r");
    pty.wait_for("still-42");
    pty.signal("TERM");
    assert_eq!(pty.exit_code(), 143);
    pty.screen(|screen| assert!(!screen.alternate_screen() && !screen.hide_cursor()));
}

#[test]
fn what_is_copied_goes_to_the_terminal_and_into_a_file() {
    let lab = Lab::start(&["hgx-01"]);
    let state = tempfile::tempdir().expect("a folder");
    let mut pty = watch(&lab.hosts_toml(""), state.path());
    pty.wait_for("97%");
    pty.keys("y");
    pty.wait_for("copied the ssh command of hgx-01 (OSC 52, and ");
    let sshd = &lab.hosts[0].sshd;
    let line = format!(
        "ssh -p {} -i {} -o 'UserKnownHostsFile=\"{}\"' -o GlobalKnownHostsFile=none {}",
        sshd.port(),
        sshd.client_key().display(),
        sshd.known_hosts().display(),
        sshd.ip(),
    );
    assert_eq!(clipboard(&pty).as_deref(), Some(line.as_str()));
    let file = state.path().join("gpufleet/copied.txt");
    assert_eq!(std::fs::read_to_string(file).expect("a file"), format!("{line}\n"));
    pty.keys("3y");
    let pid = lab.hosts[0].worker_pid();
    pty.wait_for(&format!("copied pid {pid} on hgx-01 (OSC 52, and "));
    let copied = clipboard(&pty).expect("was copied");
    assert!(copied.starts_with(&format!("hgx-01: pid {pid} (")), "{copied}");
    assert!(copied.ends_with("), GPUs 0,1, 112 GiB: sleep 3600"), "{copied}");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}
