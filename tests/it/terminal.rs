//! The terminal as it was before, whatever ends the program, and nothing on it that flickers.

use crate::fake_driver::gpu_with;
use crate::lab::Lab;
use crate::pty::{PATIENCE, Pty, signal};
use crate::signals::wait_for_end;
use crate::tell::wait_for_lines;
use portable_pty::{CommandBuilder, PtySize, native_pty_system};
use std::io::Read;
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
fn the_terminal_is_as_it_was_however_the_program_ends() {
    type End = fn(&mut Pty);
    let ends: [(&str, &str, u32, End); 8] = [
        ("q", "", 0, |pty| pty.keys("q")),
        ("Ctrl-C", "", 0, |pty| pty.keys("\x03")),
        ("SIGINT", "", 130, |pty| pty.signal("INT")),
        ("SIGTERM", "", 143, |pty| pty.signal("TERM")),
        ("SIGHUP", "", 129, |pty| pty.signal("HUP")),
        ("a panic in the loop", "loop", 101, |_| {}),
        ("a panic in a task", "task", 0, |pty| pty.keys("q")),
        ("Ctrl-C in the help", "", 0, |pty| pty.keys("?\x03")),
    ];
    for (how, panics, code, end) in ends {
        // A backtrace that is asked for belongs to the text.
        let environment = [("GPUFLEET_TEST_PANIC", panics), ("RUST_BACKTRACE", "0")];
        let mut pty = Pty::gpufleet((100, 30), &DEMO, &environment);
        let before = pty.stty_at_start().to_owned();
        if panics != "loop" {
            pty.wait_for("40 GPUs");
            assert_ne!(pty.stty(), before, "{how}: the terminal is in raw mode");
        }
        end(&mut pty);
        assert_eq!(pty.exit_code(), code, "{how}");
        assert_restored(&pty, how);
        assert_eq!(pty.stty(), before, "{how}: the line discipline");
        let screen = pty.screen(vt100::Screen::contents);
        let said = match panics {
            "loop" => "gpufleet panicked at src/cli/tui/event_loop.rs",
            "task" => "gpufleet: a task panicked at src/cli/tui/event_loop.rs",
            _ => "",
        };
        assert!(screen.contains(said), "{how}: {screen}");
        if panics.is_empty() {
            assert_eq!(screen.trim(), "", "{how}");
        } else {
            assert!(screen.contains("␛]0;pwned␇\nPlease report this as a bug."), "{how}: {screen}");
        }
        assert!(!String::from_utf8_lossy(&pty.bytes()).contains("]0;pwned\x07"), "{how}: the title is ours");
    }
}

#[test]
fn a_panic_in_a_task_paints_nothing_over_the_screen() {
    let mut pty = Pty::gpufleet((100, 30), &DEMO, &[("GPUFLEET_TEST_PANIC", "task")]);
    pty.wait_for("40 GPUs");
    pty.keys("2");
    let screen = pty.wait_for("Free now");
    assert!(!screen.contains("panicked"), "{screen}");
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn stopped_by_control_z_the_shell_has_its_terminal_and_fg_brings_the_screen_back() {
    let program = env!("CARGO_BIN_EXE_gpufleet");
    // Job control is the shell's; its prompt tells when it reads again.
    let mut pty = Pty::program((100, 30), "sh", &["-i"], &[("PS1", "ready> "), ("ENV", ""), ("INPUTRC", "/dev/null")]);
    pty.wait_for("ready> ");
    let before = pty.stty();
    pty.keys(&format!("{program} --demo --theme dark\r"));
    pty.wait_for("40 GPUs");
    pty.keys("3");
    pty.wait_for("Processes");
    // Nobody tells a program that is stopped of a new size.
    for (columns, rows) in [(120, 40), (90, 25)] {
        pty.keys("\x1a");
        pty.wait("the shell", |text| text.contains("topped") && text.trim_end().ends_with("ready>"));
        assert_restored(&pty, "Ctrl-Z");
        assert_eq!(pty.stty(), before, "the shell has the terminal as it was");
        pty.resize(columns, rows);
        pty.keys("clear; fg\r");
        // The same view is back, whole.
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

/// What gpufleet asks at the start where nothing says which theme to use, and what a light terminal answers.
const QUESTION: &[u8] = b"\x1b]11;?\x1b\\\x1b[c";
const ANSWER: &str = "\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b[?62;22c";
/// Words of the view of processes, which `3` leads to.
const PROCESSES: &str = "▸Processes";

#[track_caller]
fn assert_typed(pty: &Pty, how: &str) {
    // The keys were "3", Tab, "/", "sm>": the processes alone, and a filter that is being typed.
    let screen = pty.wait(how, |text| text.contains(PROCESSES) && text.contains("/ sm>"));
    assert!(!screen.contains("Command"), "{how}: {screen}");
}

#[test]
fn keys_typed_while_the_terminal_is_asked_for_its_background_are_kept_in_order() {
    // Where the answer stands among the keys; the last terminal never answers.
    for (how, before, answer, after) in [
        ("before the answer", "3/sm>", ANSWER, ""),
        ("around the answer", "3/", ANSWER, "sm>"),
        ("behind the answer", "", ANSWER, "3/sm>"),
        ("no answer", "3/sm>", "", ""),
    ] {
        let mut pty = Pty::gpufleet((100, 30), &["--demo"], &[("COLORFGBG", "")]);
        pty.wait_for_bytes(QUESTION);
        pty.keys(&format!("{before}{answer}{after}"));
        assert_typed(&pty, how);
        pty.keys("\x03");
        assert_eq!(pty.exit_code(), 0, "{how}");
        assert_restored(&pty, how);
        assert_eq!(pty.stty(), pty.stty_at_start(), "{how}");
    }
}

#[test]
fn an_answer_that_comes_when_nobody_waits_for_it_any_more_types_nothing() {
    let mut pty = Pty::gpufleet((100, 30), &["--demo"], &[("COLORFGBG", "")]);
    pty.wait_for("40 GPUs");
    // Taken for keys it would open the palette (`:`) and type into it.
    pty.keys(&format!("{ANSWER}3/sm>"));
    assert_typed(&pty, "a late answer");
    pty.keys("\x03");
    assert_eq!(pty.exit_code(), 0);
}

#[test]
fn a_stop_from_outside_gives_the_terminal_back_and_fg_brings_the_screen_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let pid_file = folder.path().join("pid");
    let program = env!("CARGO_BIN_EXE_gpufleet");
    let mut pty = Pty::program((100, 30), "sh", &["-i"], &[("PS1", "ready> "), ("ENV", ""), ("INPUTRC", "/dev/null")]);
    pty.wait_for("ready> ");
    let before = pty.stty();
    pty.keys(&format!("sh -c 'echo $$ >{}; exec {program} --demo --theme dark'\r", pid_file.display()));
    pty.wait_for("40 GPUs");
    pty.keys("3");
    pty.wait_for(PROCESSES);
    let pid = std::fs::read_to_string(&pid_file).expect("its pid");
    let pid = pid.trim().parse().expect("a number");
    for name in ["TSTP", "TSTP", "STOP"] {
        signal(pid, name);
        pty.wait("the shell", |text| text.contains("topped") && text.trim_end().ends_with("ready>"));
        if name == "TSTP" {
            assert_restored(&pty, name);
            assert_eq!(pty.stty(), before, "the shell has the terminal as it was");
        }
        // Nobody can restore anything at a SIGSTOP, and some shells leave the terminal raw: what they wrote into the
        // screen is painted over.
        pty.keys("fg\n");
        pty.wait("the same view", |text| {
            text.contains("SIMULATED") && text.contains(PROCESSES) && !text.contains("topped")
        });
        assert!(pty.screen(vt100::Screen::alternate_screen), "{name}");
        assert!(pty.screen(vt100::Screen::hide_cursor), "{name}");
        // It is in raw mode: a key is heard without Enter, and not echoed.
        pty.keys("?");
        pty.wait("the help", |text| text.contains("Keys") && !text.contains("ready>"));
        pty.keys("\x1b");
        pty.wait("no help", |text| text.contains(PROCESSES) && !text.contains("Keys"));
    }
    pty.keys("q");
    pty.wait("the shell", |text| text.trim_end().ends_with("ready>"));
    assert_restored(&pty, "q after the stops");
    assert_eq!(pty.stty(), before);
}

#[test]
fn a_stop_where_no_shell_could_continue_it_is_no_stop() {
    let mut pty = Pty::gpufleet((100, 30), &DEMO, &[]);
    pty.wait_for("40 GPUs");
    pty.signal("TSTP");
    pty.keys("\x1a3");
    pty.wait_for(PROCESSES);
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    assert_restored(&pty, "after stops that were none");
}

#[test]
fn a_terminal_that_takes_nothing_stops_neither_the_hosts_nor_the_hook_nor_a_signal() {
    let lab = Lab::start(&["stall-1"]);
    let (hook, called) = (lab.write("hook.sh", "#!/bin/sh\ncat >> \"$1\"\n"), lab.path("called.jsonl"));
    let hook = format!("on_finding = [\"/bin/sh\", \"{hook}\", \"{}\"]", called.display());
    let hosts = lab.hosts_toml(&format!("[notifications]\nbell = true\n{hook}\nmin_severity = \"crit\""));
    let mut pty = Pty::gpufleet((200, 60), &[&hosts], &[("TMUX", "")]);
    pty.wait_for("1 finding");
    wait_for_lines(&called, 1);
    let before = pty.stty_at_start().to_owned();
    pty.stalled(|pty| {
        // Only who reads snapshots knows that another GPU is lost.
        let script = std::fs::read_to_string(lab.hosts[0].driver.script()).expect("a script");
        let mut scenario: serde_json::Value = serde_json::from_str(&script).expect("JSON");
        scenario["devices"][2] = gpu_with(2, &serde_json::json!({"error": 15}));
        lab.hosts[0].driver.set(&scenario);
        let told = wait_for_lines(&called, 2);
        assert_eq!(told[1]["findings"][0]["gpus"][0]["index"], 2, "{:#}", told[1]);
        let asked = Instant::now();
        pty.signal("TERM");
        wait_for_end(pty.pid());
        assert!(asked.elapsed() < Duration::from_secs(10), "it ended after {:?}", asked.elapsed());
        assert_eq!(pty.stty(), before, "the line discipline");
    });
    assert_eq!(pty.exit_code(), 143);
}

#[test]
fn a_terminal_that_reads_on_shows_the_latest_state() {
    let mut pty = Pty::gpufleet((200, 60), &DEMO, &[]);
    pty.wait_for("40 GPUs");
    pty.stalled(|pty| pty.keys("3"));
    pty.wait_for(PROCESSES);
    pty.keys("q");
    assert_eq!(pty.exit_code(), 0);
    assert_restored(&pty, "after a stall");
}

#[test]
fn a_terminal_that_closes_ends_the_program() {
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
        if closed.elapsed() > PATIENCE {
            signal(child.process_id().expect("a pid"), "KILL");
            panic!("it runs on without a terminal");
        }
        std::thread::yield_now();
    };
    // The hangup is seen first, or the end of the keys, or that nothing can be written any more. It never panics.
    assert!([129, 0, 1].contains(&status.exit_code()), "{status:?}");
}

/// What a frame is made of: what stands outside synchronized updates, and the updates.
fn frames(bytes: &[u8]) -> (Vec<String>, Vec<Vec<u8>>) {
    let (begin, end) = (b"\x1b[?2026h", b"\x1b[?2026l");
    let find = |from: usize, what: &[u8]| {
        bytes[from..].windows(what.len()).position(|window| window == what).map(|at| from + at)
    };
    let (mut outside, mut frames, mut at) = (Vec::new(), Vec::new(), 0);
    while let Some(start) = find(at, begin) {
        outside.push(String::from_utf8_lossy(&bytes[at..start]).into_owned());
        let stop = find(start, end).expect("an update that has begun is ended") + end.len();
        frames.push(bytes[start..stop].to_vec());
        at = stop;
    }
    outside.push(String::from_utf8_lossy(&bytes[at..]).into_owned());
    (outside, frames)
}

#[test]
fn every_byte_is_part_of_a_whole_frame_and_a_storm_of_sizes_shows_no_blank() {
    let mut pty = Pty::gpufleet((200, 60), &DEMO, &[]);
    pty.wait_for("hgx-06");
    let sizes = [(199, 60), (80, 24), (120, 40), (41, 11), (200, 60), (39, 9), (81, 25), (140, 50)];
    for round in 0..5 {
        for (columns, rows) in sizes {
            pty.resize(columns, rows);
            if round == 0 {
                // Each size is painted once in its own right; the rest comes as fast as it can.
                let words = if columns < 40 { "needs 40x10" } else { "SIMULATED" };
                pty.wait_for(words);
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
    // Before the first frame the terminal is taken over, after the last one given back, and nothing lies between.
    for (place, bytes) in outside[1..outside.len() - 1].iter().enumerate() {
        assert_eq!(bytes, "", "after frame {place}");
    }
    assert!(!outside[0].contains("\x1b[2J"), "{:?}", outside[0]);
    // As a terminal shows them: only whole updates, each with the header in its first row.
    let cells = |count| std::num::NonZero::new(count).expect("cells");
    let mut terminal = vt100::Parser::new(cells(60), cells(200), 0);
    for (place, frame) in frames.iter().enumerate() {
        terminal.process(frame);
        let first = terminal.screen().rows(0, 200).next().expect("a row");
        assert!(
            ["gpufleet", "SIMULATED", "needs 40x10"].iter().any(|words| first.contains(words)),
            "frame {place}: {first:?}"
        );
    }
}
