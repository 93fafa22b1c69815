//! Strings that attack the terminal, in every field that a host or a person controls. They pass through every view and
//! every other output into a terminal emulator that records unexpected sequences.

use super::testing::{check_screen, emulator, is_forbidden, replace_marks};
use crate::app::testing::{LATER, NOW, at, connecting, press, report, snapshot, update};
use crate::app::{App, Effect, Event};
use crate::diagnosis::Finding;
use crate::fleet::{ConnectPhase, HostId, HostUpdate, LinkError, LinkErrorKind};
use crate::output::findings::{FindingsReport, list};
use crate::output::notification::{Notification, osc9, summary};
use crate::output::{Report, free, paint::Paint, status};
use crate::ssh::prompt::{Prompt, PromptId, PromptKind};
use crate::wire::{
    Ancestor, DeviceError, DriverError, DriverErrorKind, Filesystem, Owner, ProcessFacts, ProcessState, ReadingSource,
    SafeText, Snapshot,
};

const SIZES: [(u16, u16); 4] = [(80, 24), (120, 40), (200, 60), (52, 14)];
const HOSTS: usize = 5;
const GPUS: usize = 8;

/// Every view, with the keys that lead there from the one before.
const VIEWS: [(&str, &str); 20] = [
    ("grid", ""),
    ("list", "\t"),
    ("wall", "2"),
    ("users", "4↓"),
    ("history", "5H"),
    ("findings", "\u{1b}5↓↓"),
    ("host", "1\n"),
    ("host's list", "\t"),
    ("GPU", "\u{1b}1\t\t\n\n"),
    ("log", "1L"),
    ("processes", "3"),
    ("distributed jobs", "t"),
    ("no groups", "t"),
    ("process", "↓↓\n"),
    ("TERM", "\u{1b}T"),
    ("KILL", "\u{1b} K"),
    ("user picker", "\u{1b}Utttu"),
    ("help", "\u{1b}?"),
    ("filter", "\u{1b}3/"),
    ("prompt", "\u{1b}1P"),
];

/// The parts of an attack.
const FRAGMENTS: [&str; 44] = [
    "\u{1b}]0;pwned\u{7}",
    "\u{1b}]2;pwned\u{1b}\\",
    "\u{1b}]52;c;cHduZWQ=\u{7}",
    "\u{1b}]8;;http://evil\u{1b}\\",
    "\u{1b}]9;pwned\u{7}",
    "\u{1b}]777;notify;a;b\u{1b}\\",
    "\u{1b}[2J",
    "\u{1b}[31;1m",
    "\u{1b}[?1049l",
    "\u{1b}[?2026h",
    "\u{1b}[6n",
    "\u{1b}[21t",
    "\u{1b}c",
    "\u{1b}#8",
    "\u{1b}P+q544e\u{1b}\\",
    "\u{1b}_G\u{1b}\\",
    "\u{1b}",
    "\u{9b}2J",
    "\u{9d}0;c1\u{9c}",
    "\u{90}",
    "\u{85}",
    "\u{7}",
    "\u{8}",
    "\u{e}",
    "\u{0}",
    "\u{7f}",
    "\n",
    "\r",
    "\t",
    "\u{202e}",
    "\u{2066}",
    "\u{2069}",
    "\u{200b}",
    "\u{200d}",
    "\u{feff}",
    "\u{ad}",
    "\u{2028}",
    "\u{e0041}",
    "\u{fff9}",
    "e\u{301}\u{301}\u{301}\u{301}",
    "\u{1f1e9}\u{1f1ea}\u{1f44d}\u{1f3fd}\u{1f468}\u{200d}\u{1f469}",
    "大ｶﾞ각\u{1112}\u{1161}\u{11ab}",
    "السلام नि กำ",
    "train.py --lr 3e-4 ",
];

/// A seeded generator, so that a failure can be repeated.
struct TestRng {
    state: u64,
    /// The number of strings generated.
    strings: usize,
}

impl TestRng {
    fn below(&mut self, sides: usize) -> usize {
        // xorshift64*, Vigna 2016.
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % sides
    }

    /// Returns a string as it arrives from a host.
    fn bytes(&mut self) -> Vec<u8> {
        self.strings += 1;
        let mut bytes = Vec::new();
        let fragments = if self.below(50) == 0 { 2000 } else { 1 + self.below(8) };
        for _ in 0..fragments {
            match self.below(4) {
                0 => bytes.push(self.below(256) as u8),
                1 => {
                    let character = char::from_u32(self.below(0x11_0000) as u32).unwrap_or('\u{fffd}');
                    bytes.extend(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
                _ => bytes.extend(FRAGMENTS[self.below(FRAGMENTS.len())].as_bytes()),
            }
        }
        bytes
    }

    /// Returns an unsanitized string.
    fn raw(&mut self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// Returns a string as it is after the wire.
    fn text(&mut self) -> SafeText {
        SafeText::from_bytes(&self.bytes())
    }
}

fn hostile_facts(facts: &ProcessFacts, rng: &mut TestRng) -> ProcessFacts {
    let ancestors = facts.ancestors.iter().map(|ancestor| Ancestor {
        name: rng.text(),
        argv: vec![rng.text(), rng.text()],
        ..ancestor.clone()
    });
    let ancestors = ancestors.collect();
    let owner = match rng.below(6) {
        0 => Owner::Slurm { job: rng.text(), step: Some(rng.text()) },
        1 => Owner::Pod { uid: rng.text(), container: Some(rng.text()) },
        2 => Owner::Container { runtime: rng.text(), id: rng.text() },
        3 => Owner::Service(rng.text()),
        4 => Owner::Session(rng.text()),
        _ => Owner::Unknown,
    };
    ProcessFacts {
        ancestors,
        user: Some(rng.text()),
        full_name: Some(rng.text()),
        name: Some(rng.text()),
        argv: (0..3).map(|_| rng.text()).collect(),
        working_directory: Some(rng.text()),
        log_path: Some(rng.text()),
        container_name: Some(rng.text()),
        runs_in: Some(rng.text()),
        owner: Some(owner),
        ..facts.clone()
    }
}

fn hostile_snapshot(host: usize, seconds: u64, rng: &mut TestRng) -> Snapshot {
    let mut snapshot = snapshot(host, GPUS, seconds);
    snapshot.facts = snapshot.facts.iter().map(|facts| hostile_facts(facts, rng)).collect();
    snapshot.notes = vec![rng.text(), rng.text()];
    snapshot.host.filesystems = vec![Filesystem {
        mount_point: rng.text(),
        kind: rng.text(),
        total_bytes: Some(1000),
        available_bytes: Some(1),
        ..Filesystem::default()
    }];
    snapshot.host.slurm_cluster = Some(rng.text());
    snapshot.gpus.error = vec![None, Some(device_error(rng))];
    snapshot.processes.wait_channel = (0..GPUS).map(|_| Some(rng.text())).collect();
    snapshot.processes.state = vec![Some(ProcessState::DiskSleep), Some(ProcessState::Zombie)];
    snapshot
}

fn device_error(rng: &mut TestRng) -> DeviceError {
    DeviceError { kind: DriverErrorKind::GpuLost, code: Some(15), message: rng.text() }
}

/// A fleet whose every text is hostile, observed until findings fire: two live hosts, one without a driver, one down, one
/// that needs the user.
fn hostile_app(size: (u16, u16), rng: &mut TestRng) -> (App, Vec<Effect>) {
    let names: Vec<String> = (0..HOSTS).map(|_| rng.raw()).collect();
    let mut app = connecting(&names, size);
    for host in 0..3 {
        report(&mut app, host, GPUS, 0);
        let host_now = app.fleet().host(HostId(host as u32)).expect("a host");
        let (mut hello, mut inventory) =
            (host_now.hello.clone().expect("a hello"), host_now.inventory.clone().expect("an inventory"));
        for text in [
            &mut hello.boot_id,
            &mut hello.host_name,
            &mut hello.login_user,
            &mut hello.kernel,
            &mut hello.arch,
            &mut inventory.driver_version,
            &mut inventory.cuda_version,
            &mut inventory.nvml_path,
        ] {
            *text = Some(rng.text());
        }
        hello.source = Some(ReadingSource::Other(rng.text()));
        hello.probe_version = rng.text();
        for gpu in &mut inventory.gpus {
            gpu.name = Some(rng.text());
            gpu.pci_bus_id = Some(rng.text());
        }
        update(&mut app, host, HostUpdate::Hello(Box::new(hello)), 1);
        update(&mut app, host, HostUpdate::Inventory(Box::new(inventory)), 1);
    }
    let mut effects = Vec::new();
    // Short steps, since rules that use rates need samples close together. Long facts come only with the first sample.
    for seconds in (2..NOW).step_by(20).chain((NOW - 10..=NOW).step_by(5)) {
        for host in 0..2 {
            let mut hostile = hostile_snapshot(host, seconds, rng);
            if seconds > 2 {
                hostile.facts.clear();
            }
            let event = Event::Host(HostId(host as u32), Box::new(HostUpdate::Snapshot(Box::new(hostile))));
            effects.extend(app.update(event, at(seconds)));
        }
        effects.extend(app.update(Event::Ticked, at(seconds)));
    }
    let driver_error = DriverError { kind: DriverErrorKind::VersionMismatch, code: Some(18), message: rng.text() };
    let without = Snapshot { driver_error: Some(driver_error), ..hostile_snapshot(2, NOW, rng) };
    update(&mut app, 2, HostUpdate::Snapshot(Box::new(without)), NOW);
    for attempt in 1..4 {
        update(&mut app, 3, HostUpdate::Connecting { attempt, phase: ConnectPhase::Login }, NOW - 20);
        let error = LinkError::new(LinkErrorKind::Network, rng.text()).with_hint(rng.text());
        update(&mut app, 3, HostUpdate::Down { error, retry_at: None, attempt }, NOW - 10);
    }
    let error = LinkError::new(LinkErrorKind::HostKeyUnknown, rng.text()).with_hint(rng.text());
    update(&mut app, 4, HostUpdate::NeedsUser(error), NOW - 20);
    let kind = match rng.below(3) {
        0 => PromptKind::HostKey {
            target: rng.raw(),
            key_type: rng.raw(),
            fingerprint: rng.raw(),
            known_hosts: rng.raw(),
            also_known_as: vec![rng.raw()],
        },
        1 => PromptKind::Passphrase { path: rng.raw(), fingerprint: Some(rng.raw()), failures: 1 },
        _ => PromptKind::Secret { text: rng.raw(), instruction: rng.raw(), echo: true, failures: 1 },
    };
    app.update(Event::Prompted(Prompt { id: PromptId(1), hosts: vec![rng.raw(), rng.raw()], kind }), at(NOW - 20));
    app.update(Event::Ticked, at(NOW));
    app.refresh_derived_state();
    (app, effects)
}

/// Returns the number of cells that replace an unsafe character.
fn count_marks(app: &App, size: (u16, u16), view: &str) -> usize {
    let cells = check_screen(app, size, NOW, view);
    cells.content().iter().filter(|cell| cell.symbol().starts_with(['\u{fffd}', '␛', '␇', '␊'])).count()
}

/// Checks text that is printed outside the alternate screen: it may contain only lines and colours.
fn check_printed(what: &str, text: &str) {
    let mut emulator = emulator((200, 60));
    emulator.process(replace_marks(text).replace('\n', "\r\n").as_bytes());
    assert!(emulator.callbacks().0.is_empty(), "{what}: {:?}", emulator.callbacks().0);
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            assert_eq!(characters.next(), Some('['), "{what}");
            let letter = characters.find(char::is_ascii_alphabetic);
            assert_eq!(letter, Some('m'), "{what}: only colours");
            continue;
        }
        assert!(character == '\n' || !is_forbidden(character), "{what}: {character:?}");
    }
}

/// Checks all other outputs: notifications, logs, and the texts of other commands.
fn check_other_outputs(app: &App, effects: Vec<Effect>) {
    for effect in effects {
        match effect {
            Effect::Notify(news) => {
                let text = summary(&Notification { news, left_out: 0 });
                let sequence = replace_marks(&osc9(&text, false));
                let mut emulator = emulator((80, 24));
                emulator.process(sequence.as_bytes());
                let [notification, end] = &emulator.callbacks().0[..] else {
                    panic!("{sequence:?}: {:?}", emulator.callbacks().0);
                };
                assert!(notification.starts_with("osc [[57]"), "{notification}");
                assert_eq!(end, "escape None None 92", "the end of the sequence");
                assert_eq!(emulator.screen().contents(), "", "all text is inside the sequence");
                assert!(!text.chars().any(is_forbidden), "{text:?}");
                let within = osc9(&text, true);
                assert_eq!(within.matches('\u{1b}').count(), 6, "only those of the sequence: {within:?}");
            }
            Effect::Copy(copied) => {
                let text = copied.text();
                assert!(!text.chars().any(|character| character != '\n' && is_forbidden(character)), "{text:?}");
            }
            Effect::LogSignal(line) => assert!(!line.chars().any(is_forbidden), "{line:?}"),
            _ => {}
        }
    }
    for host in app.fleet().hosts() {
        for line in host.log().lines() {
            assert!(!line.text.chars().any(is_forbidden), "{:?}", line.text);
        }
    }
    let findings: Vec<&Finding> = app.findings().list().iter().collect();
    let states = |_: HostId| Vec::new();
    let report = Report { fleet: app.fleet(), states: &states, findings: &findings, now: at(NOW) };
    let paint = Paint::of_terminal(true, None, Some("xterm-256color"));
    check_printed("status", &status::table(&report, paint));
    check_printed("free", &free::text(&free::FreeReport { report: &report, found: None }));
    let observed = std::time::Duration::from_secs(60);
    let report = FindingsReport {
        fleet: app.fleet(),
        findings: &findings,
        not_judged: &[],
        too_little_history: &[],
        observed,
        now: at(LATER),
    };
    check_printed("findings", &list(&report, paint));
}

#[test]
fn no_hostile_string_controls_the_terminal_in_any_view() {
    let wanted = if std::env::var_os("GPUFLEET_TESTS_ALL").is_some() { 1_000_000 } else { 10_000 };
    let mut rng = TestRng { state: 0x9e37_79b9_7f4a_7c15, strings: 0 };
    let mut seen = [0; VIEWS.len()];
    for round in 0.. {
        if rng.strings >= wanted {
            break;
        }
        let size = SIZES[round % SIZES.len()];
        let (mut app, mut effects) = hostile_app(size, &mut rng);
        for ((view, keys), drawn) in VIEWS.into_iter().zip(&mut seen) {
            effects.extend(press(&mut app, keys));
            // Pasted and typed text is untrusted, too.
            if view == "filter" || view == "KILL" || view == "prompt" {
                let pasted = rng.raw();
                effects.extend(pasted.chars().take(3).flat_map(|typed| press(&mut app, &typed.to_string())));
                app.update(Event::Pasted(pasted), at(NOW));
            }
            *drawn += count_marks(&app, size, view);
            // In dialogs `y` is a letter or an answer.
            if !["TERM", "KILL", "user picker", "filter", "prompt"].contains(&view) {
                effects.extend(press(&mut app, "y"));
            }
        }
        app.report_message(rng.raw(), at(NOW));
        check_screen(&app, size, NOW, "notice");
        check_other_outputs(&app, effects);
    }
    // The test proves nothing about a view that never draws a hostile string.
    for ((view, _), drawn) in VIEWS.iter().zip(seen) {
        assert!(drawn > 0 || ["help", "filter"].contains(view), "nothing hostile was drawn in {view}");
    }
}
