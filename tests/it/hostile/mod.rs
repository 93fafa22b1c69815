//! Hosts that attack the controller: a real sshd runs `tests/hostile_probe` in place of the probe or of the shell, beside an
//! honest host with a real probe and a fake driver. gpufleet watches both on a real terminal.
//!
//! A host may misbehave as it likes: the figures of the other host stay current, keys are answered, memory stays bounded,
//! the terminal gets nothing from the remote that it would interpret, and gpufleet ends on SIGTERM.
//!
//! The ordinary run observes each attack for a few seconds and, in a build without optimisation, with wide limits: such a
//! build is ten times slower. `tests/run --all` repeats the attacks with an optimised build, strict limits and
//! half a minute for each.

mod attacks;
mod guarantees;

#[path = "../../hostile_probe/escapes.rs"]
mod escapes;

use crate::fake_driver::{FakeDriver, build_example, devices, gpu_with, probe_program};
use crate::lab::wait_gone;
use crate::pty::Pty;
use crate::sshd::Sshd;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The interval of the honest host.
const INTERVAL: Duration = Duration::from_millis(500);

/// Memory in KiB that a hostile host may take above an honest one in its place.
fn allowed_kib() -> u64 {
    // How much is in flight at once depends on the speed of the build and on other tests on the same cores.
    1024 * if is_strict() { 16 } else { 24 }
}

/// Whether the limits are those for users: an unoptimised build, or other tests on the same cores, may be slower.
fn is_strict() -> bool {
    !cfg!(debug_assertions) && std::env::var_os("GPUFLEET_TESTS_ALL").is_some()
}

/// How much older the figures of the honest host may be than beside another honest host.
fn allowed_delay() -> Duration {
    if is_strict() { INTERVAL } else { Duration::from_secs(5) }
}

/// The median time until a key is answered.
fn allowed_latency() -> Duration {
    Duration::from_millis(if is_strict() { 50 } else { 1000 })
}

/// The part of the host that attacks.
#[derive(Debug, Clone, Copy)]
enum Attacker {
    /// `hostile_probe` runs in place of the probe.
    Probe,
    /// `hostile_probe` runs in place of the account's shell.
    Shell,
    /// Like `Shell`, with `probe = "nvidia-smi"`.
    NvidiaSmi,
}

/// The state that an attack must lead to.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Outcome {
    /// The screen names the host as misbehaving: it violates the protocol or exceeds a limit.
    Named,
    /// The protocol allows all of it, or gpufleet may ignore the excess.
    Tolerated,
}

/// A controller on a terminal that watches an honest host and an attacker.
struct Battle {
    pty: Pty,
    sshd: Sshd,
    /// The server of an attacker in place of the shell.
    _other: Option<Sshd>,
    _driver: FakeDriver,
    folder: tempfile::TempDir,
}

/// Measurements of a controller under attack.
#[derive(Debug, Default)]
struct Measured {
    /// The largest resident memory, `VmHWM` of proc_pid_status(5).
    peak_kib: u64,
    /// The greatest age of the figures of the honest host on the screen.
    oldest: Duration,
    /// The median time from a key to its effect on the screen.
    latency: Duration,
    /// Whether the screen named the attacker as misbehaving.
    named: bool,
    /// Whether the attacker was connected and sent readings.
    reached: bool,
}

impl Measured {
    /// Reads the screen.
    fn take(&mut self, text: &str) {
        if let Some(shown) = utilization(text) {
            self.oldest = self.oldest.max(age(shown));
        }
        self.named |= !is_host_view(text) && names_attacker(text);
        self.reached |= text.contains(" 2 hosts ") && !text.contains(" of 2 hosts ");
    }
}

/// How long the observer looks at one view.
const LOOK: Duration = Duration::from_millis(250);

/// A key, what it does, and whether the screen shows that.
type Step = (&'static str, &'static str, fn(&str) -> bool);

const STEPS: [Step; 4] = [
    ("?", "the help", |text| text.contains("━ Keys")),
    ("q", "the end of the help", |text| !text.contains("━ Keys")),
    ("\r", "the view of the honest host", is_host_view),
    ("1", "the overview", |text| !is_host_view(text)),
];

impl Battle {
    fn start(attacker: Attacker, mode: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let sshd = Sshd::start();
        let driver = FakeDriver::new(&devices(&[gpu_with(
            0,
            &json!({
                "utilization_percent": {"from": FIRST, "to": LAST, "restart_seconds": RESTART_SECONDS},
                "memory_used_bytes": USED_GIB << 30,
                "memory_total_bytes": 80_u64 << 30,
            }),
        )]));
        let hostile = format!("exec {} {mode}", hostile_probe().display());
        let (other, probe) = match attacker {
            Attacker::Probe => (None, script(folder.path(), "hostile", &hostile)),
            Attacker::Shell | Attacker::NvidiaSmi => {
                let command = format!("ForceCommand {hostile}");
                let probe = if matches!(attacker, Attacker::Shell) { "upload" } else { "nvidia-smi" };
                (Some(Sshd::start_at(Ipv4Addr::LOCALHOST, &[&command])), probe.to_owned())
            }
        };
        let honest = format!(
            "probe = \"{}\"\nnvml_library = \"{}\"\n",
            script(folder.path(), "honest", &format!("exec {} \"$@\"", probe_program().display())),
            driver.library().display()
        );
        let mut text = format!("[defaults]\ninterval = \"{}ms\"\n", INTERVAL.as_millis());
        text += &host_section("honest", &sshd, &honest);
        text += &host_section("hostile", other.as_ref().unwrap_or(&sshd), &format!("probe = \"{probe}\"\n"));
        let hosts = folder.path().join("hosts.toml");
        std::fs::write(&hosts, text).expect("writes");
        let hosts = hosts.display().to_string();
        let pty = Pty::gpufleet((120, 40), &["--theme", "dark", &hosts], &[("SSH_AUTH_SOCK", "")]);
        Self { pty, sshd, _other: other, _driver: driver, folder }
    }

    /// The real probe of the honest host.
    fn honest_probe(&self) -> u32 {
        let program = probe_program().canonicalize().expect("the probe exists");
        let is_probe = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| path == program);
        self.sshd.descendants().into_iter().find(is_probe).expect("the honest probe runs")
    }

    /// Watches the screen and presses keys for at least `span`, and longer until the attacker has reached gpufleet or is named.
    ///
    /// It looks at both views in turn: the overview names the attacker, and the view of the honest host shows its figures
    /// whatever the attacker does to the overview.
    #[track_caller]
    fn observe(&mut self, span: Duration, outcome: Outcome) -> Measured {
        self.pty.wait("the honest host", |text| text.contains("busy"));
        let mut measured = Measured::default();
        let mut latencies = Vec::new();
        let began = Instant::now();
        let is_settled = |measured: &Measured| measured.named || (outcome == Outcome::Tolerated && measured.reached);
        while began.elapsed() < span || (!is_settled(&measured) && began.elapsed() < NAMED_LIMIT) {
            self.pty.watch(LOOK, |text| measured.take(text));
            for (key, what, is_shown) in STEPS {
                let pressed = Instant::now();
                self.pty.keys(key);
                self.pty.wait(what, is_shown);
                latencies.push(pressed.elapsed());
                if key == "\r" {
                    self.pty.watch(LOOK, |text| {
                        assert!(utilization(text).is_some(), "no figures of the honest host:\n{text}");
                        measured.take(text);
                    });
                }
            }
        }
        latencies.sort();
        measured.latency = latencies[latencies.len() / 2];
        measured.peak_kib = peak_kib(self.pty.pid());
        measured
    }

    /// Ends the controller by SIGTERM. It ends within two seconds, and no probe remains.
    #[track_caller]
    fn end(mut self) {
        let probe = self.honest_probe();
        let began = Instant::now();
        self.pty.signal("TERM");
        assert_eq!(self.pty.exit_code(), 143);
        let ended = began.elapsed();
        assert!(ended < Duration::from_secs(2), "it ended {ended:?} after SIGTERM");
        wait_gone(&[probe], Duration::from_secs(2));
        assert_eq!(injected(&self.pty.bytes()), Vec::<String>::new(), "the terminal got sequences of the remote");
        drop(self.folder);
    }
}

/// How long the screen may take to name an attacker: the time after which a silent host is dropped, and a margin.
const NAMED_LIMIT: Duration = Duration::from_secs(15);

/// Runs an attack and checks all promises. Returns the last screen.
#[track_caller]
fn withstand(attacker: Attacker, mode: &str, outcome: Outcome) -> String {
    let mut battle = Battle::start(attacker, mode);
    let measured = battle.observe(observation(), outcome);
    println!("ATTACK\t{mode}\t{measured:?}");
    let last = battle.pty.screen(vt100::Screen::contents);
    battle.end();
    let honest = beside_honest_host();
    let mut failures = String::new();
    let mut check = |held: bool, what: &str, value: String, limit: String| {
        if !held {
            let _ = writeln!(failures, "{what}: {value}, at most {limit} are allowed");
        }
    };
    let limit = honest.peak_kib + allowed_kib();
    check(measured.peak_kib <= limit, "memory", format!("{} KiB", measured.peak_kib), format!("{limit} KiB"));
    let limit = honest.oldest + allowed_delay();
    check(measured.oldest <= limit, "age of the other host", format!("{:?}", measured.oldest), format!("{limit:?}"));
    let limit = allowed_latency();
    check(measured.latency <= limit, "median answer to a key", format!("{:?}", measured.latency), format!("{limit:?}"));
    if outcome == Outcome::Named && !measured.named {
        failures += "the screen does not name the attacker\n";
    }
    if !measured.named && !measured.reached {
        failures += "the attack did not reach gpufleet\n";
    }
    assert!(failures.is_empty(), "{mode}:\n{failures}the screen shows:\n{last}");
    last
}

fn observation() -> Duration {
    Duration::from_secs(if is_strict() { 30 } else { 2 })
}

/// The measurements with an honest host in place of the attacker.
fn beside_honest_host() -> &'static Measured {
    static MEASURED: OnceLock<Measured> = OnceLock::new();
    MEASURED.get_or_init(|| {
        let mut battle = Battle::start(Attacker::Probe, "honest");
        let measured = battle.observe(observation(), Outcome::Tolerated);
        println!("ATTACK\thonest\t{measured:?}");
        battle.end();
        measured
    })
}

/// The hostile host program, built once.
fn hostile_probe() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build_example("hostile_probe"))
}

/// Writes an executable shell script and returns its path.
fn script(folder: &Path, name: &str, line: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{line}\n")).expect("writes");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("makes it executable");
    path.display().to_string()
}

/// A section of hosts.toml.
fn host_section(name: &str, sshd: &Sshd, lines: &str) -> String {
    format!(
        "\n[[hosts]]\nname = \"{name}\"\naddress = \"{}\"\nport = {}\nidentity_file = \"{}\"\nknown_hosts = \"{}\"\n{lines}",
        sshd.ip(),
        sshd.port(),
        sshd.client_key().display(),
        sshd.known_hosts().display()
    )
}

/// The utilization of the honest host encodes the time of the reading, as in `benches/fleet`: from 9 to 98 %, five steps
/// per second, then again from 9 %.
const FIRST: u64 = 9;
const LAST: u64 = 99;
const STEPS_PER_SECOND: f64 = 5.0;
const RESTART_SECONDS: f64 = 18.0;

/// Memory in use, by which the overview shows the honest GPU.
const USED_GIB: u64 = 61;

/// Whether the screen shows the view of the honest host, which is connected. Findings about the machine that runs the
/// tests, such as a full filesystem, take lines above it.
fn is_host_view(text: &str) -> bool {
    text.lines().take(5).any(|line| line.starts_with(" honest  "))
}

/// The utilization of the honest GPU on the screen.
fn utilization(text: &str) -> Option<u64> {
    let before = if is_host_view(text) {
        text.split_once(" UTIL ")?.1.split_once('%')?.0
    } else {
        text.split_once("61/80G 31")?.0.trim_end().strip_suffix('%')?
    };
    before.split(' ').next_back()?.parse().ok()
}

/// The time since a GPU had this utilization.
fn age(utilization: u64) -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    let now = now.tv_sec as f64 + now.tv_nsec as f64 / 1e9;
    let read_at = (utilization - FIRST) as f64 / STEPS_PER_SECOND;
    let seconds = (now % RESTART_SECONDS - read_at).rem_euclid(RESTART_SECONDS);
    // A reading of the current step may seem to come from the future.
    Duration::from_secs_f64(if seconds > RESTART_SECONDS - 0.5 { 0.0 } else { seconds })
}

/// Whether the overview shows that a host is not as it should be. The honest host never is.
fn names_attacker(text: &str) -> bool {
    let Some((panes, _)) = text.split_once("─ Processes ") else { return false };
    let panes = panes.to_lowercase();
    let words = [
        "down",
        "stale",
        "violation",
        "misbehav",
        "limit",
        "too many",
        "too much",
        "too often",
        "too fast",
        "more than",
    ];
    words.iter().any(|word| panes.contains(word))
}

fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// The escape sequences and control characters in what gpufleet wrote that can only come from a remote.
fn injected(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let mut found = Vec::new();
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '\u{1b}' => {
                let kind = rest.next().unwrap_or_default();
                let mut body = String::new();
                match kind {
                    // CSI ends with a letter or @ [ \ ] ^ _ ` { | } ~.
                    '[' => {
                        for next in rest.by_ref() {
                            body.push(next);
                            if ('@'..='~').contains(&next) {
                                break;
                            }
                        }
                    }
                    // OSC, DCS, SOS, PM and APC end with BEL or ST.
                    ']' | 'P' | 'X' | '^' | '_' => {
                        while let Some(next) = rest.next() {
                            if next == '\u{7}' || (next == '\u{1b}' && rest.next_if_eq(&'\\').is_some()) {
                                break;
                            }
                            body.push(next);
                        }
                    }
                    _ => {}
                }
                let is_ours = match kind {
                    '[' => !body.contains("987"),
                    ']' => {
                        !body.contains("987")
                            && (body == "0;gpufleet" || !body.starts_with("0;"))
                            && !body.starts_with("52;")
                    }
                    // Charsets, keypad modes, saving and restoring the cursor.
                    '(' | ')' | '=' | '>' | '7' | '8' | '\\' => true,
                    _ => false,
                };
                if !is_ours {
                    found.push(format!("ESC {kind} {body}"));
                }
            }
            '\r' | '\n' | '\u{8}' => {}
            _ if !gpufleet::wire::safe_text::is_safe(character) => {
                found.push(format!("U+{:04X}", character as u32));
            }
            _ => {}
        }
    }
    found
}

#[test]
fn sequences_of_a_remote_are_found() {
    for escape in escapes::ESCAPES.iter().filter(|escape| !escape.starts_with('e')) {
        assert!(!injected(format!("\u{1b}[1;31mbefore{escape}after").as_bytes()).is_empty(), "{escape:?}");
    }
    assert_eq!(
        injected("\u{1b}[?2026h\u{1b}[1;1H\u{1b}[38;2;1;2;3m╭─ gpu ␛[987m\u{1b}]11;?\u{1b}\\\r\n".as_bytes()),
        Vec::<String>::new()
    );
}
