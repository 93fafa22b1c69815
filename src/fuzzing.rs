//! The bodies of the fuzz targets: each takes any bytes and panics if a promise is broken.
//!
//! `fuzz/` runs them with libFuzzer. The tests of this module run the same functions with any toolchain: they replay the
//! corpus in `tests/corpus` and mutate it at random. `tests/fuzz` does so for longer.

use crate::app::{App, DisplaySettings, Effect, Event, SettingsFile, ViewState};
use crate::config::{FileDiagnostics, HostConfig, HostsFile, Thresholds};
#[cfg(all(feature = "probe", target_os = "linux"))]
use crate::diagnosis::proof::{JobEvidence, RankEvidence, RankReading, judge};
use crate::diagnosis::{Engine, SavedState};
#[cfg(all(feature = "probe", target_os = "linux"))]
use crate::fleet::ProcessKey;
use crate::fleet::recording::{self, HostReplay, Line, Recorder, Redactor};
use crate::fleet::{ConnectPhase, Filter, Fleet, HostId, HostUpdate, LinkError, LinkErrorKind, Moment};
use crate::ui::draw_into;
use crate::wire::Message;
use crate::wire::codec::{LineBuffer, MAX_LINE_BYTES, decode, encode};
use crate::wire::safe_text::is_safe;
#[cfg(all(feature = "probe", target_os = "linux"))]
use crate::wire::{Examination, Reply, ReplyOutcome};
use crate::{collect, ssh};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The body of a fuzz target.
pub type Target = fn(&[u8]);

/// All targets, by the names of their files in `fuzz/fuzz_targets` and of their folders in `tests/corpus`.
pub const TARGETS: [(&str, Target); 13] = [
    ("wire", wire),
    ("screen", screen),
    ("known_hosts", known_hosts),
    ("ssh_config", ssh_config),
    ("hosts_toml", hosts_toml),
    ("settings_toml", settings_toml),
    ("nvidia_smi", nvidia_smi),
    ("filter", filter),
    ("recording", recording),
    ("saved_state", saved_state),
    ("view_state", view_state),
    ("nccl_ras", nccl_ras),
    ("flight_recorder", flight_recorder),
];

/// Lines of the wire protocol. A decoded message is within the limits, so that it can be sent on and decoded again.
pub fn wire(data: &[u8]) {
    let mut buffer = LineBuffer::default();
    for chunk in data.chunks(1 + data.len() / 3) {
        buffer.push(chunk);
        while let Ok(Some(line)) = buffer.next_line() {
            let Ok(message) = decode(line) else { continue };
            let Ok(encoded) = encode(&message) else { panic!("a decoded message cannot be encoded") };
            // A column that repeats a value may be longer when it is written out.
            if encoded.len() <= MAX_LINE_BYTES {
                let again = decode(encoded.trim_ascii_end());
                assert!(again.is_ok(), "{again:?}");
            }
        }
    }
}

/// Lines of the wire protocol and keys, from the bytes to the cells of the screen.
///
/// `>abc` presses keys, `+60` lets seconds pass, `%80x24` resizes the terminal, `#` continues with the other host, `!`
/// breaks its connection. Everything else is a line of the probe.
pub fn screen(data: &[u8]) {
    let mut world = World::new((100, 30));
    for line in data.split(|byte| *byte == b'\n').take(64) {
        match line {
            [b'>', keys @ ..] => world.press(&String::from_utf8_lossy(keys)),
            [b'+', seconds @ ..] => world.advance(number(seconds).unwrap_or(1)),
            [b'%', size @ ..] => {
                let size = size.split(|byte| *byte == b'x').map(|part| number(part).unwrap_or(0).min(200) as u16);
                if let [columns, rows] = size.collect::<Vec<_>>()[..] {
                    world.size = (columns, rows);
                    world.event(Event::Resized(columns, rows));
                }
            }
            [b'#', ..] => world.host = 1 - world.host,
            [b'!', text @ ..] => world.end(&String::from_utf8_lossy(text)),
            line => {
                if let Ok(message) = decode(line) {
                    world.take(message);
                }
            }
        }
    }
    world.draw();
    // The state of the diagnosis survives a restart.
    let state = world.app.memory(world.now());
    let text = serde_json::to_string(&state).unwrap_or_default();
    assert!(SavedState::parse(&text).is_ok(), "{text}");
}

/// A known_hosts file.
pub fn known_hosts(data: &[u8]) {
    ssh::fuzz_known_hosts(data);
}

/// The output of `ssh -G`.
pub fn ssh_config(data: &[u8]) {
    ssh::fuzz_ssh_config(data);
}

/// hosts.toml. Every message can be printed on a terminal.
pub fn hosts_toml(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match HostsFile::parse("/home/ann/hosts.toml", &text, Some(Path::new("/home/ann"))) {
        Ok(file) => {
            assert!(!file.entries.is_empty());
            for entry in &file.entries {
                let host = &entry.config;
                assert!(!host.interval.is_zero());
                let line = host.ssh_line();
                assert!(line.is_none_or(|line| line.starts_with("ssh ")));
                assert!(host.is_local() || host.login_arguments().contains(&"--".to_owned()));
            }
        }
        Err(diagnostics) => check_diagnostics(&diagnostics),
    }
}

/// settings.toml.
pub fn settings_toml(data: &[u8]) {
    match SettingsFile::parse("/home/ann/settings.toml", &String::from_utf8_lossy(data)) {
        Ok(settings) => {
            let mut world = World::new((80, 24));
            world.app.apply_settings_file(&settings);
            world.press("?");
            world.draw();
        }
        Err(diagnostics) => check_diagnostics(&diagnostics),
    }
}

fn check_diagnostics(diagnostics: &FileDiagnostics) {
    let text = diagnostics.to_string();
    assert!(!text.is_empty());
    for character in text.chars() {
        assert!(character == '\n' || is_safe(character), "{character:?} in {text}");
    }
}

/// The sections that the nvidia-smi script prints.
pub fn nvidia_smi(data: &[u8]) {
    collect::fuzz_nvidia_smi(data);
}

/// A filter expression, on the rows of a small fleet.
pub fn filter(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Err(error) = Filter::parse(&text) {
        assert!(text.get(error.at.clone()).is_some(), "{:?} is within the text", error.at);
        assert!(!error.message.is_empty());
    }
    let state = serde_json::json!({"version": 1, "view": "processes", "filter": text});
    if let Ok(state) = ViewState::parse(&state.to_string()) {
        let mut world = World::with_readings((80, 24));
        world.app.restore_view_state(&state);
        world.app.refresh_derived_state();
        world.draw();
    }
}

/// A recording: every line that can be read can be written, and replays without its owner's names.
pub fn recording(data: &[u8]) {
    let mut world = World::new((80, 24));
    let mut replay = HostReplay::default();
    let mut recorder = Recorder::new(world.now(), Some(Redactor::default()));
    for line in recording::lines(data).take(64) {
        let line = match line {
            Ok(line) => line,
            Err(error) => {
                assert!(error.to_string().chars().all(is_safe));
                continue;
            }
        };
        assert!(recording::encode(&line).is_ok());
        let Line::Host(line) = line else { continue };
        world.seconds = line.t.min(1e9);
        let Some(host) = world.app.fleet().host(HostId(0)) else { continue };
        let (name, update) = (host.name().clone(), replay.update(host, line.event));
        if let Some(update) = update {
            for line in recorder.take(HostId(0), &name, update.clone(), world.now()) {
                assert!(recording::encode(&line).is_ok());
            }
            world.update(update);
        }
    }
    world.draw();
}

/// memory.json. The state is restored before the first sample, and saved again.
pub fn saved_state(data: &[u8]) {
    let Ok(mut state) = SavedState::parse(&String::from_utf8_lossy(data)) else { return };
    state.merge(state.clone());
    let mut engine = Engine::new(Arc::new(Thresholds::default()));
    engine.restore(state, moment(0.0));
    let mut world = World::with_engine((120, 30), engine);
    world.report();
    world.advance(60);
    world.press("5");
    let text = serde_json::to_string(&world.app.memory(world.now())).unwrap_or_default();
    assert!(SavedState::parse(&text).is_ok(), "{text}");
}

/// The saved choices of the user.
pub fn view_state(data: &[u8]) {
    let Ok(state) = ViewState::parse(&String::from_utf8_lossy(data)) else { return };
    let mut world = World::with_readings((100, 30));
    world.app.restore_view_state(&state);
    world.draw();
    let text = serde_json::to_string(&world.app.view_state()).unwrap_or_default();
    let Ok(kept) = ViewState::parse(&text) else { panic!("{text}") };
    world.app.restore_view_state(&kept);
    assert_eq!(world.app.view_state(), kept, "what is saved is restored");
}

/// A report of NCCL RAS, in either format. Its reduction is the same in whatever pieces it arrives, and can be sent.
pub fn nccl_ras(data: &[u8]) {
    #[cfg(all(feature = "probe", target_os = "linux"))]
    for report in crate::probe::fuzz_ras(data) {
        examined(Examination { ras: Some(Box::new(report)), ..Examination::default() });
    }
    #[cfg(not(all(feature = "probe", target_os = "linux")))]
    let _the_probe_is_for_linux = data;
}

/// A dump of PyTorch's Flight Recorder. Its reduction can be sent.
pub fn flight_recorder(data: &[u8]) {
    #[cfg(all(feature = "probe", target_os = "linux"))]
    if let Some(dump) = crate::probe::fuzz_flight_recorder(data) {
        examined(Examination { flight_recorder: Some(Box::new(dump)), ..Examination::default() });
    }
    #[cfg(not(all(feature = "probe", target_os = "linux")))]
    let _the_probe_is_for_linux = data;
}

/// An examination that the probe sends: the controller accepts it, and any two of them lead to a verdict.
#[cfg(all(feature = "probe", target_os = "linux"))]
fn examined(examination: Examination) {
    let message = Message::Reply(Reply { id: 1, outcome: ReplyOutcome::Examined(Box::new(examination)) });
    let Ok(line) = encode(&message) else { panic!("an examination cannot be encoded") };
    let decoded = decode(line.trim_ascii_end());
    let Ok(Message::Reply(Reply { outcome: ReplyOutcome::Examined(examination), .. })) = decoded else {
        panic!("{decoded:?}")
    };
    let rank = |pid| RankEvidence {
        host: HostId(0),
        host_name: "hgx-01".into(),
        host_addresses: Vec::new(),
        key: ProcessKey { boot_id: Some("b".into()), pid, start_ticks: Some(9) },
        pid,
        is_mine: true,
        user: None,
        gpus: Vec::new(),
        readings: [0.0, 60.0]
            .map(|seconds| RankReading {
                at: moment(seconds),
                examination: (*examination).clone(),
                ..RankReading::default()
            })
            .into(),
        log: None,
        log_refusal: crate::wire::NO_LOG_FILE.into(),
    };
    let verdict = judge(&JobEvidence { ranks: vec![rank(7), rank(8)], ..JobEvidence::default() });
    assert!(!verdict.sentence.is_empty());
}

/// A screen with two hosts, and its clock.
struct World {
    app: App,
    size: (u16, u16),
    seconds: f64,
    /// The host that sends the next message.
    host: u32,
}

/// One sample of a host with two GPUs and one process.
const READINGS: [&str; 3] = [
    r#"{"hello":{"protocol":1,"probe_version":"0.1.0","boot_id":"b","host_name":"hgx-01","login_user":"ann","login_uid":1}}"#,
    r#"{"inventory":{"generation":1,"driver_version":"570.1","gpus":[
        {"index":0,"uuid":"GPU-0","name":"NVIDIA H100","memory_total_bytes":85899345920,"power_limit_watts":700},
        {"index":1,"uuid":"GPU-1","name":"NVIDIA H100","memory_total_bytes":85899345920,"power_limit_watts":700}]}}"#,
    r#"{"snapshot":{"sequence":1,"generation":1,"monotonic_seconds":1,"interval_seconds":2,
        "gpus":{"rows":2,"utilization_percent":[97,0],"memory_used_bytes":[64424509440,1],"power_watts":[512,70]},
        "gpu_processes":{"rows":1,"pid":[7],"gpu":[0],"kind":"C","gpu_memory_bytes":[60129542144],"sm_percent":[90]},
        "processes":{"rows":1,"pid":[7],"start_ticks":[9],"presence":"visible","state":"R","cpu_percent":[99.5]},
        "facts":[{"pid":7,"start_ticks":9,"user":"ann","uid":1,"name":"python","argv":["python","train.py"]}]}}"#,
];

impl World {
    fn new(size: (u16, u16)) -> Self {
        Self::with_engine(size, Engine::new(Arc::new(Thresholds::default())))
    }

    fn with_engine(size: (u16, u16), engine: Engine) -> Self {
        let hosts = ["hgx-01", "hgx-02"].map(|name| Arc::new(HostConfig::named(name)));
        let now = moment(0.0);
        let app = App::new(Fleet::new(&hosts, false, now), DisplaySettings::default(), engine, now);
        let mut world = Self { app, size, seconds: 0.0, host: 0 };
        world.event(Event::Resized(size.0, size.1));
        world
    }

    fn with_readings(size: (u16, u16)) -> Self {
        let mut world = Self::new(size);
        world.report();
        world
    }

    /// Receives [`READINGS`].
    fn report(&mut self) {
        for line in READINGS {
            if let Ok(message) = decode(line.as_bytes()) {
                self.take(message);
            }
        }
    }

    fn now(&self) -> Moment {
        moment(self.seconds)
    }

    fn event(&mut self, event: Event) {
        for effect in self.app.update(event, moment(self.seconds)) {
            if let Effect::Copy(copied) = effect {
                let text = copied.text();
                let is_plain = |character| is_safe(character) || character == '\n';
                assert!(text.chars().all(is_plain), "{text:?}");
            }
        }
    }

    fn update(&mut self, update: HostUpdate) {
        self.event(Event::Host(HostId(self.host), Box::new(update)));
    }

    /// Receives a message as `collect::session` does.
    fn take(&mut self, message: Message) {
        self.seconds += 0.5;
        match message {
            Message::Hello(hello) => {
                self.update(HostUpdate::Hello(Box::new(hello)));
                self.update(HostUpdate::Connecting { attempt: 1, phase: ConnectPhase::FirstSample });
            }
            Message::Inventory(inventory) => self.update(HostUpdate::Inventory(Box::new(inventory))),
            Message::Snapshot(snapshot) => self.update(HostUpdate::Snapshot(snapshot)),
            Message::Echo { id } => self.update(HostUpdate::RoundTrip(Duration::from_micros(id))),
            Message::Reply(reply) => self.update(HostUpdate::Reply(reply)),
            Message::Farewell { reason } => self.end(&reason),
            Message::Unknown => self.update(HostUpdate::Silent),
        }
    }

    /// Ends the connection of the host.
    fn end(&mut self, text: &str) {
        let error = LinkError::new(LinkErrorKind::ProbeEnded, text).with_hint(text);
        self.update(HostUpdate::Down { error, retry_at: None, attempt: 1 });
    }

    /// Lets whole seconds pass.
    fn advance(&mut self, seconds: u64) {
        self.seconds += seconds.min(1_000_000) as f64;
        self.event(Event::Ticked);
    }

    fn press(&mut self, keys: &str) {
        for key in keys.chars().take(32) {
            let code = match key {
                '↑' => KeyCode::Up,
                '↓' => KeyCode::Down,
                '←' => KeyCode::Left,
                '→' => KeyCode::Right,
                '⏎' => KeyCode::Enter,
                '⎋' => KeyCode::Esc,
                '⇥' => KeyCode::Tab,
                '⌫' => KeyCode::Backspace,
                letter => KeyCode::Char(letter),
            };
            self.event(Event::Key(KeyEvent::new(code, KeyModifiers::NONE)));
        }
        self.draw();
    }

    /// Draws the screen. Every cell is safe.
    fn draw(&mut self) {
        self.app.refresh_derived_state();
        let area = Rect::new(0, 0, self.size.0, self.size.1);
        let mut buffer = Buffer::empty(area);
        draw_into(&self.app, &mut buffer, area, moment(self.seconds));
        for cell in buffer.content() {
            assert!(cell.symbol().chars().all(is_safe), "{:?}", cell.symbol());
        }
    }
}

fn moment(seconds: f64) -> Moment {
    let elapsed = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    Moment { elapsed: Some(elapsed), unix: Duration::from_secs(1_763_000_000) + elapsed }
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.trim().parse().ok()
}

#[cfg(test)]
#[path = "fuzzing_tests.rs"]
mod tests;
