//! Terminal state: restored however the program ends or stops, keys kept in order, whole frames only.

use crate::fake_driver::gpu_with;
use crate::lab::{Lab, has_root, wait_until};
use crate::notifications::wait_for_calls;
use crate::pty::{Pty, TIMEOUT, signal, wait_for_end};
use portable_pty::{CommandBuilder, PtySize, native_pty_system};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::io::Read;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::{Duration, Instant};

const DEMO: [&str; 3] = ["--demo", "--theme", "dark"];

#[track_caller]
fn assert_restored(pty: &Pty, how: &str) {
    pty.screen(|screen| {
        assert!(!screen.alternate_screen(), "{how}: the main screen is back");
        assert!(!screen.hide_cursor(), "{how}: the cursor is back");
        assert!(!screen.bracketed_paste(), "{how}: bracketed paste is off");
        assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None, "{how}: the mouse is off");
    });
    let bytes = pty.bytes();
    let text = String::from_utf8_lossy(&bytes);
    let last = |sequence: &str| text.rfind(sequence);
    assert!(last("\x1b[?2026l") > last("\x1b[?2026h"), "{how}: no frame is left open");
    for mode in ["1000", "1002", "1003", "1006", "1004", "2004"] {
        let (on, off) = (format!("\x1b[?{mode}h"), format!("\x1b[?{mode}l"));
        assert!(last(&on).is_none() || last(&off) > last(&on), "{how}: mode {mode} is off");
    }
}

#[test]
fn every_way_to_end_the_program_restores_the_terminal() {
    type End = fn(&mut Pty);
    let ends: [(&str, &str, u32, End); 13] = [
        ("q", "", 0, |pty| pty.keys("q")),
        ("Ctrl-C", "", 0, |pty| pty.keys("\x03")),
        ("SIGINT", "", 130, |pty| pty.signal("INT")),
        ("SIGTERM", "", 143, |pty| pty.signal("TERM")),
        ("SIGHUP", "", 129, |pty| pty.signal("HUP")),
        // After these it ends by the signal, for which `exit_code` returns 1.
        ("SIGQUIT", "", 1, |pty| pty.signal("QUIT")),
        ("SIGABRT", "", 1, |pty| pty.signal("ABRT")),
        ("SIGUSR1", "", 1, |pty| pty.signal("USR1")),
        ("a panic in the loop", "loop", 101, |_| {}),
        ("a panic in a task", "task", 0, |pty| pty.keys("q")),
        ("an abort", "abort", 1, |_| {}),
        ("a panic that cannot unwind", "no-unwind", 1, |_| {}),
        ("Ctrl-C in the help", "", 0, |pty| pty.keys("?\x03")),
    ];
    for (how, panics, code, end) in ends {
        // A backtrace would be part of the printed text.
        let environment = [("GPUFLEET_TEST_PANIC", panics), ("RUST_BACKTRACE", "0")];
        let mut pty = Pty::gpufleet((100, 30), &DEMO, &environment);
        let before = pty.stty_at_start().to_owned();
        if !["loop", "abort", "no-unwind"].contains(&panics) {
            pty.wait_for("40 GPUs");
            assert_ne!(pty.stty(), before, "{how}: the terminal is in raw mode");
        }
        end(&mut pty);
        assert_eq!(pty.exit_code(), code, "{how}");
        assert_restored(&pty, how);
        assert_eq!(pty.stty(), before, "{how}: the line discipline");
        let screen = pty.screen(vt100::Screen::contents);
        let expected = match panics {
            "loop" => "gpufleet panicked at src/cli/tui/event_loop.rs",
            "task" | "no-unwind" => "gpufleet: a task panicked at src/cli/tui/event_loop.rs",
            _ => "",
        };
        assert!(screen.contains(expected), "{how}: {screen}");
        if panics.is_empty() || panics == "abort" {
            assert_eq!(screen.trim(), "", "{how}");
        } else {
            assert!(screen.contains("␛]0;pwned␇\nPlease report this as a bug."), "{how}: {screen}");
        }
        assert!(!String::from_utf8_lossy(&pty.bytes()).contains("]0;pwned\x07"), "{how}: the title is ours");
    }
}

/// The files of a process in /proc belong to root if it may not be dumped (proc(5)), and only then.
#[test]
fn memory_is_closed_to_debuggers_of_the_same_user_and_to_core_dumps() {
    if !has_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("gpufleet");
    std::fs::copy(env!("CARGO_BIN_EXE_gpufleet"), &program).expect("copies");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("is opened");
    let nobody = 65_534;
    let prefix = [format!("--reuid={nobody}"), "--clear-groups".to_owned()];
    let run = |program: &str, arguments: &[&str]| {
        let arguments: Vec<&str> =
            prefix.iter().map(String::as_str).chain([program]).chain(arguments.iter().copied()).collect();
        Pty::program((100, 30), "setpriv", &arguments, &[("HOME", "/"), ("XDG_STATE_HOME", "/nonexistent")])
    };
    let owner = |pid: u32| std::fs::metadata(format!("/proc/{pid}/mem")).map(|about| about.uid()).ok();
    let pty = run(program.to_str().expect("UTF-8"), &DEMO);
    pty.wait_for("40 GPUs");
    assert_eq!(owner(pty.pid()), Some(0));
    // Another program of that user.
    let other = run("sleep", &["3600"]);
    let owner_of_other = || owner(other.pid());
    wait_until("another owner", || format!("{:?}", owner_of_other()), || owner_of_other().filter(|&uid| uid == nobody));
}

#[test]
fn failed_allocation_restores_the_terminal() {
    let mut pty = Pty::gpufleet((100, 30), &DEMO, &[]);
    let before = pty.stty_at_start().to_owned();
    pty.wait_for("40 GPUs");
    let status = std::fs::read_to_string(format!("/proc/{}/status", pty.pid())).expect("it runs");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("its address space");
    let kib: u64 = size.trim().trim_end_matches(" kB").parse().expect("a number");
    let limit = Rlimit { current: Some(kib * 1024), maximum: Some(kib * 1024) };
    prlimit(Pid::from_raw(pty.pid() as i32), Resource::As, limit).expect("the limit is set");
    // The frame of a large terminal does not fit.
    pty.claim_size(1000, 500);
    assert_eq!(pty.exit_code(), 1, "it ends by SIGABRT");
    assert_restored(&pty, "a failed allocation");
    assert_eq!(pty.stty(), before, "the line discipline");
}

#[test]
fn panic_in_a_task_writes_nothing_over_the_screen() {
    let mut pty = Pty::gpufleet((100, 30), &DEMO, &[("GPUFLEET_TEST_PANIC", "task")]);
    pty.wait_for("40 GPUs");
    pty.keys("2");
    let screen = pty.wait_for("Free now");
    assert!(!screen.contains("panicked"), "{screen}");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn control_z_gives_the_terminal_to_the_shell_and_fg_restores_the_screen() {
    let program = env!("CARGO_BIN_EXE_gpufleet");
    // The shell does job control; its prompt shows when it reads again.
    let mut pty = Pty::program((100, 30), "sh", &["-i"], &[("PS1", "ready> "), ("ENV", ""), ("INPUTRC", "/dev/null")]);
    pty.wait_for("ready> ");
    let before = pty.stty();
    pty.keys(&format!("{program} --demo --theme dark\r"));
    pty.wait_for("40 GPUs");
    pty.keys("3");
    pty.wait_for("Processes");
    // A stopped program gets no SIGWINCH, so the size must be read on resume.
    for (columns, rows) in [(120, 40), (90, 25)] {
        pty.keys("\x1a");
        pty.wait("the shell", |text| text.contains("topped") && text.trim_end().ends_with("ready>"));
        assert_restored(&pty, "Ctrl-Z");
        assert_eq!(pty.stty(), before, "the shell has the terminal as it was");
        pty.resize(columns, rows);
        pty.keys("clear; fg\r");
        // The view from before the stop is drawn in the new size.
        pty.wait("the screen", |text| {
            let widest = text.lines().map(|line| line.chars().count()).max();
            let is_whole = widest == Some(usize::from(columns)) && text.lines().count() == usize::from(rows);
            is_whole && text.contains("SIMULATED") && text.contains("sort problems first")
        });
        assert!(pty.screen(vt100::Screen::alternate_screen));
        assert!(pty.screen(vt100::Screen::hide_cursor));
    }
    pty.keys("q");
    pty.wait("the shell", |text| text.trim_end().ends_with("ready>"));
    assert_restored(&pty, "q after Ctrl-Z");
    assert_eq!(pty.stty(), before);
}

/// The OSC 11 query for the background color, sent when no theme is set, and the answer of a light terminal.
const BACKGROUND_QUERY: &[u8] = b"\x1b]11;?\x1b\\\x1b[c";
const BACKGROUND_ANSWER: &str = "\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b[?62;22c";
/// The title of the process view, which the key `3` opens.
const PROCESS_VIEW: &str = "▸Processes";

#[track_caller]
fn assert_typed(pty: &Pty, how: &str) {
    // The keys `3/sm>` open the process view and start a filter.
    let screen = pty.wait(how, |text| text.contains(PROCESS_VIEW) && text.contains("/ sm>"));
    assert!(!screen.contains("Command"), "{how}: {screen}");
}

#[test]
fn keys_typed_during_the_background_color_query_are_kept_in_order() {
    // The position of the answer among the keys; the last terminal never answers.
    for (how, before, answer, after) in [
        ("before the answer", "3/sm>", BACKGROUND_ANSWER, ""),
        ("around the answer", "3/", BACKGROUND_ANSWER, "sm>"),
        ("behind the answer", "", BACKGROUND_ANSWER, "3/sm>"),
        ("no answer", "3/sm>", "", ""),
    ] {
        let mut pty = Pty::gpufleet((100, 30), &["--demo"], &[("COLORFGBG", "")]);
        pty.wait_for_bytes(BACKGROUND_QUERY);
        pty.keys(&format!("{before}{answer}{after}"));
        assert_typed(&pty, how);
        pty.keys("\x03");
        assert_eq!(pty.exit_code(), 0, "{how}");
        assert_restored(&pty, how);
        assert_eq!(pty.stty(), pty.stty_at_start(), "{how}");
    }
}

#[test]
fn late_answer_of_the_terminal_is_not_taken_for_keys() {
    let mut pty = Pty::gpufleet((100, 30), &["--demo"], &[("COLORFGBG", "")]);
    pty.wait_for("40 GPUs");
    // Taken for keys, the answer would open the command palette (`:`) and type into it.
    pty.keys(&format!("{BACKGROUND_ANSWER}3/sm>"));
    assert_typed(&pty, "a late answer");
    pty.keys("\x03");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn stop_signals_give_the_terminal_to_the_shell_and_fg_restores_the_screen() {
    let folder = tempfile::tempdir().expect("a folder");
    let pid_file = folder.path().join("pid");
    let program = env!("CARGO_BIN_EXE_gpufleet");
    let mut pty = Pty::program((100, 30), "sh", &["-i"], &[("PS1", "ready> "), ("ENV", ""), ("INPUTRC", "/dev/null")]);
    pty.wait_for("ready> ");
    let before = pty.stty();
    pty.keys(&format!("sh -c 'echo $$ >{}; exec {program} --demo --theme dark'\r", pid_file.display()));
    pty.wait_for("40 GPUs");
    pty.keys("3");
    pty.wait_for(PROCESS_VIEW);
    let pid = std::fs::read_to_string(&pid_file).expect("its pid");
    let pid = pid.trim().parse().expect("a number");
    for name in ["TSTP", "TSTP", "STOP"] {
        signal(pid, name);
        pty.wait("the shell", |text| text.contains("topped") && text.trim_end().ends_with("ready>"));
        if name == "TSTP" {
            assert_restored(&pty, name);
            assert_eq!(pty.stty(), before, "the shell has the terminal as it was");
        }
        // A program cannot restore the terminal at SIGSTOP, and some shells leave it raw: the screen is redrawn over
        // their output.
        pty.keys("fg\n");
        pty.wait("the same view", |text| {
            text.contains("SIMULATED") && text.contains(PROCESS_VIEW) && !text.contains("topped")
        });
        assert!(pty.screen(vt100::Screen::alternate_screen), "{name}");
        assert!(pty.screen(vt100::Screen::hide_cursor), "{name}");
        // The terminal is in raw mode: a key works without Enter and is not echoed.
        pty.keys("?");
        pty.wait("the help", |text| text.contains("Keys") && !text.contains("ready>"));
        pty.keys("\x1b");
        pty.wait("no help", |text| text.contains(PROCESS_VIEW) && !text.contains("Keys"));
    }
    pty.keys("q");
    pty.wait("the shell", |text| text.trim_end().ends_with("ready>"));
    assert_restored(&pty, "q after the stops");
    assert_eq!(pty.stty(), before);
}

#[test]
fn stop_signals_are_ignored_without_a_shell_that_could_continue() {
    let mut pty = Pty::gpufleet((100, 30), &DEMO, &[]);
    pty.wait_for("40 GPUs");
    pty.signal("TSTP");
    pty.keys("\x1a3");
    pty.wait_for(PROCESS_VIEW);
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    assert_restored(&pty, "after stops that were none");
}

#[test]
fn blocked_terminal_stops_neither_hosts_nor_hooks_nor_signals() {
    let lab = Lab::start(&["stall-1"]);
    let (hook, called) = (lab.write("hook.sh", "#!/bin/sh\ncat >> \"$1\"\n"), lab.path("called.jsonl"));
    let hook = format!("on_finding = [\"/bin/sh\", \"{hook}\", \"{}\"]", called.display());
    let hosts = lab.hosts_toml(&format!("[notifications]\nbell = true\n{hook}\nmin_severity = \"crit\""));
    let mut pty = Pty::gpufleet((200, 60), &[&hosts], &[("TMUX", "")]);
    pty.wait_for("1 finding");
    wait_for_calls(&called, 1);
    let before = pty.stty_at_start().to_owned();
    pty.while_blocked(|pty| {
        // The hook is called for the second lost GPU only if snapshots are still read.
        let script = std::fs::read_to_string(lab.hosts[0].driver.script()).expect("a script");
        let mut scenario: serde_json::Value = serde_json::from_str(&script).expect("JSON");
        scenario["devices"][2] = gpu_with(2, &serde_json::json!({"error": 15}));
        lab.hosts[0].driver.set(&scenario);
        let calls = wait_for_calls(&called, 2);
        assert_eq!(calls[1]["findings"][0]["gpus"][0]["index"], 2, "{:#}", calls[1]);
        let signalled = Instant::now();
        pty.signal("TERM");
        wait_for_end(pty.pid());
        assert!(signalled.elapsed() < Duration::from_secs(10), "it ended after {:?}", signalled.elapsed());
        assert_eq!(pty.stty(), before, "the line discipline");
    });
    assert_eq!(pty.exit_code(), 143);
}

#[test]
fn terminal_that_reads_again_shows_the_latest_state() {
    let mut pty = Pty::gpufleet((200, 60), &DEMO, &[]);
    pty.wait_for("40 GPUs");
    pty.while_blocked(|pty| pty.keys("3"));
    pty.wait_for(PROCESS_VIEW);
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    assert_restored(&pty, "after a stall");
}

#[test]
fn closed_terminal_ends_the_program() {
    let pty = native_pty_system()
        .openpty(PtySize { rows: 30, cols: 100, pixel_width: 0, pixel_height: 0 })
        .expect("a pseudo-terminal");
    let state = tempfile::tempdir().expect("a folder");
    let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_gpufleet"));
    command.args(DEMO);
    command.env("TERM", "xterm-256color");
    command.env("XDG_STATE_HOME", state.path());
    let mut child = pty.slave.spawn_command(command).expect("the program starts");
    drop(pty.slave);
    let mut reader = pty.master.try_clone_reader().expect("a reader");
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&seen).contains("hgx-06") {
        let count = reader.read(&mut buffer).expect("it writes");
        seen.extend_from_slice(&buffer[..count]);
    }
    drop(reader);
    drop(pty.master);
    let closed = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("it can be waited for") {
            break status;
        }
        if closed.elapsed() > TIMEOUT {
            signal(child.process_id().expect("a pid"), "KILL");
            panic!("it runs on without a terminal");
        }
        std::thread::park_timeout(Duration::from_millis(5));
    };
    // gpufleet sees SIGHUP, the end of its input, or a write error first. It never panics.
    assert!([129, 0, 1].contains(&status.exit_code()), "{status:?}");
}

#[test]
fn a_terminal_that_claims_a_huge_size_is_drawn_in_part() {
    let mut pty = Pty::gpufleet((100, 30), &DEMO, &[]);
    pty.wait_for("40 GPUs");
    for (columns, rows) in [(u16::MAX, u16::MAX), (32_767, 32_767), (u16::MAX, 200), (80, u16::MAX)] {
        let written = pty.bytes().len();
        pty.claim_size(columns, rows);
        pty.wait_for_bytes_after(written, b"\x1b[?2026l");
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", pty.pid())).expect("its status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next());
    let peak_kib: u64 = peak.expect("its peak memory").parse().expect("a number");
    assert!(peak_kib < 300_000, "{peak_kib} KiB");
    pty.resize(100, 30);
    pty.wait("the usual size", |text| text.contains("hgx-06") && text.contains("SIMULATED"));
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    assert_restored(&pty, "after a huge size");
}

/// Splits the output into the text outside of synchronized updates and the updates.
fn frames(bytes: &[u8]) -> (Vec<String>, Vec<Vec<u8>>) {
    let (begin, end) = (b"\x1b[?2026h", b"\x1b[?2026l");
    let find = |from: usize, what: &[u8]| {
        bytes[from..].windows(what.len()).position(|window| window == what).map(|at| from + at)
    };
    let (mut outside, mut frames, mut at) = (Vec::new(), Vec::new(), 0);
    while let Some(start) = find(at, begin) {
        outside.push(String::from_utf8_lossy(&bytes[at..start]).into_owned());
        let stop = find(start, end).expect("every update ends") + end.len();
        frames.push(bytes[start..stop].to_vec());
        at = stop;
    }
    outside.push(String::from_utf8_lossy(&bytes[at..]).into_owned());
    (outside, frames)
}

#[test]
fn every_byte_is_in_a_synchronized_update_and_resizing_shows_no_blank_frame() {
    let mut pty = Pty::gpufleet((200, 60), &DEMO, &[]);
    pty.wait_for("hgx-06");
    let sizes = [(199, 60), (80, 24), (120, 40), (41, 11), (200, 60), (39, 9), (81, 25), (140, 50)];
    for round in 0..5 {
        for (columns, rows) in sizes {
            let written = pty.bytes().len();
            pty.resize(columns, rows);
            if round == 0 {
                // In the first round a frame ends after each change of the size; later rounds resize as fast as possible.
                pty.wait_for_bytes_after(written, b"\x1b[?2026l");
                pty.wait_for(if columns < 40 { "needs 40x10" } else { "SIMULATED" });
            }
        }
        pty.keys(["2", "3", "1", "5", "1"][round]);
    }
    pty.resize(100, 30);
    pty.wait("the last size", |text| text.contains("hgx-06") && text.contains("SIMULATED"));
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    let (outside, frames) = frames(&pty.bytes());
    assert!(frames.len() > sizes.len(), "{} frames", frames.len());
    // The terminal is set up before the first frame and restored after the last one; nothing is written in between.
    for (place, bytes) in outside[1..outside.len() - 1].iter().enumerate() {
        assert_eq!(bytes, "", "after frame {place}");
    }
    assert!(!outside[0].contains("\x1b[2J"), "{:?}", outside[0]);
    // Every update leaves the header in the first row.
    let cells = |count| std::num::NonZero::new(count).expect("cells");
    let mut terminal = vt100::Parser::new(cells(60), cells(200), 0);
    for (place, frame) in frames.iter().enumerate() {
        terminal.process(frame);
        let first = terminal.screen().rows(0, 200).next().expect("a row");
        assert!(
            ["gpufleet", "SIMULATED", "needs 40x10"].iter().any(|expected| first.contains(expected)),
            "frame {place}: {first:?}"
        );
    }
}

#[test]
fn hints_and_column_headers_are_clicked_in_a_real_terminal() {
    let mut pty = Pty::gpufleet((120, 40), &DEMO, &[]);
    let click = |pty: &mut Pty, screen: &str, text: &str| {
        let found =
            screen.lines().enumerate().find_map(|(row, line)| Some((line[..line.find(text)?].chars().count(), row)));
        let (column, row) = found.unwrap_or_else(|| panic!("{text} is not on the screen:\n{screen}"));
        // SGR mouse reports count from one.
        let (column, row) = (column + 2, row + 1);
        pty.keys(&format!("\x1b[<0;{column};{row}M\x1b[<0;{column};{row}m"));
    };
    let screen = pty.wait("the hosts", |text| text.contains("hgx-06") && text.contains("sft.py"));
    click(&mut pty, &screen, " USER");
    let sorted = pty.wait_for("sort USER");
    click(&mut pty, &sorted, "? help");
    let help = pty.wait_for("Keys: grid");
    click(&mut pty, &help, "q close");
    pty.wait("the view", |text| !text.contains("Keys: grid"));
    pty.keys("2");
    let wall = pty.wait_for("Free now");
    click(&mut pty, &wall, "3 processes");
    pty.wait_for(PROCESS_VIEW);
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn a_terminal_without_utf_8_gets_ascii_unless_an_option_says_otherwise() {
    for (environment, arguments, is_ascii) in [
        (&[("LANG", "C")][..], &[][..], true),
        (&[("LC_ALL", "POSIX")], &[], true),
        (&[("TERM", "linux")], &[], true),
        (&[], &[], false),
        (&[("LANG", "C")], &["--no-ascii"], false),
        (&[], &["--ascii"], true),
    ] {
        let all = [&DEMO[..], arguments].concat();
        let mut pty = Pty::gpufleet((100, 30), &all, environment);
        let screen = pty.wait_for("40 GPUs");
        assert_eq!(screen.is_ascii(), is_ascii, "{environment:?} {arguments:?}:\n{screen}");
        pty.keys("q");
        assert_eq!(pty.exit_code(), 0);
    }
}
