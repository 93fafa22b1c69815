//! One host walked step by step, for `gpufleet doctor`: the same way that a host task goes, told in full.

use super::image::ProbeStore;
use super::install::{self, Order, Started, Told};
use super::remote::Remote;
use super::session::{HELLO_LIMIT, SAMPLE_LIMIT};
use super::source::{self, OpenChannel};
use super::{failure, image, nvidia_smi, random, script};
use crate::fleet::{LinkError, LinkErrorKind};
use crate::hosts::HostConfig;
use crate::ssh::transport::SshPhase;
use crate::wire::codec::{decode, encode};
use crate::wire::{Hello, Inventory, Message, PROTOCOL, ReadingSource, Request, SafeText};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout_at};

/// One step of the way.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// What was done.
    pub name: &'static str,
    /// What came of it, one line each.
    pub lines: Vec<SafeText>,
    /// How long it took.
    pub took: Duration,
    /// Why it failed; the last step only.
    pub error: Option<LinkError>,
}

/// The steps so far, and the one that is under way.
struct Walk {
    steps: Vec<Step>,
    name: &'static str,
    lines: Vec<SafeText>,
    since: Instant,
}

impl Walk {
    fn begin(&mut self, name: &'static str) {
        if self.name == name {
            return;
        }
        self.end(None);
        self.name = name;
    }

    fn say(&mut self, line: impl Into<SafeText>) {
        self.lines.push(line.into());
    }

    /// Ends the step at a moment that has passed, and begins another.
    fn end_at(&mut self, next: &'static str, at: Instant) {
        let lines = std::mem::take(&mut self.lines);
        self.steps.push(Step { name: self.name, lines, took: at.duration_since(self.since), error: None });
        self.name = next;
        self.since = at;
    }

    fn end(&mut self, error: Option<LinkError>) {
        let (lines, took) = (std::mem::take(&mut self.lines), self.since.elapsed());
        self.since = Instant::now();
        // A phase that was passed through in no time and without a word is none.
        if error.is_some() || !lines.is_empty() || took >= Duration::from_millis(1) {
            self.steps.push(Step { name: self.name, lines, took, error });
        }
    }
}

/// Walks the whole way to a host's first readings. `remarks` gives what the connection has told of a phase meanwhile,
/// and is asked once, when the connection stands or has failed.
pub async fn examine(
    ssh: Arc<dyn OpenChannel>,
    host: &HostConfig,
    remarks: impl FnOnce() -> Vec<(SshPhase, String)>,
) -> Vec<Step> {
    let walk = Walk { steps: Vec::new(), name: "configuration", lines: Vec::new(), since: Instant::now() };
    let walk = Arc::new(Mutex::new(walk));
    let under_way = Arc::clone(&walk);
    let progress = move |phase| under_way.lock().unwrap_or_else(PoisonError::into_inner).begin(step_of(phase));
    let opened = ssh.open(host, script::EXEC, &progress).await;
    drop(progress);
    // Nobody else holds it any more.
    let walk = Arc::into_inner(walk).map(|walk| walk.into_inner().unwrap_or_else(PoisonError::into_inner));
    let Some(mut walk) = walk else { return Vec::new() };
    let error = opened.as_ref().err().map(source::link_error);
    if error.is_some() {
        walk.end(error);
    } else {
        walk.begin("shell");
    }
    tell(&mut walk.steps, remarks());
    if let Ok(channel) = opened
        && let Err(error) = beyond(&mut walk, Remote::new(channel), host).await
    {
        walk.end(Some(error));
    }
    walk.steps
}

/// Puts what the connection said to the steps that it concerns.
fn tell(steps: &mut Vec<Step>, remarks: Vec<(SshPhase, String)>) {
    for (phase, text) in remarks {
        let name = step_of(phase);
        // A way that is gone twice (after a prompt) is told once, in full.
        let line = SafeText::from(text);
        match steps.iter_mut().find(|step| step.name == name) {
            Some(step) if !step.lines.contains(&line) => step.lines.push(line),
            Some(_) => {}
            None => {
                let step = Step { name, lines: vec![line], took: Duration::ZERO, error: None };
                let place = steps.iter().position(|step| order(step.name) > order(name)).unwrap_or(steps.len());
                steps.insert(place, step);
            }
        }
    }
}

/// The steps of a connection, in their order.
const CONNECTION: [&str; 6] = ["configuration", "name", "TCP", "key exchange", "login", "shell"];

fn order(name: &str) -> usize {
    CONNECTION.iter().position(|step| *step == name).unwrap_or(CONNECTION.len())
}

fn step_of(phase: SshPhase) -> &'static str {
    match phase {
        SshPhase::Queued => CONNECTION[0],
        SshPhase::Name => CONNECTION[1],
        SshPhase::Tcp => CONNECTION[2],
        SshPhase::KeyExchange => CONNECTION[3],
        SshPhase::Login => CONNECTION[4],
        SshPhase::Exec => CONNECTION[5],
    }
}

/// From a shell on the host to its first readings.
async fn beyond(walk: &mut Walk, mut remote: Remote, host: &HostConfig) -> Result<(), LinkError> {
    let nonce = random::nonce();
    let probes: Arc<dyn ProbeStore> = image::carried();
    let told = Mutex::new(Vec::new());
    let note = |event: Told| told.lock().unwrap_or_else(PoisonError::into_inner).push((event, Instant::now()));
    let order = Order {
        host,
        interval: host.interval,
        probes: &*probes,
        nonce: &nonce,
        places: install::places(host),
        without_probe: None,
        tell: &note,
    };
    let started = install::start(&mut remote, &order).await;
    for (event, at) in told.into_inner().unwrap_or_else(PoisonError::into_inner) {
        match event {
            Told::Machine(machine) => {
                walk.say(format!("/bin/sh answers: {machine}"));
                walk.end_at("directory", at);
            }
            Told::Skipped(why) => walk.say(format!("not {why}")),
            Told::Sent(bytes) => walk.say(format!("the probe was not there yet: {bytes} bytes sent and checked")),
            Told::Started(path) => walk.say(format!("the probe is {path}")),
        }
    }
    let mut remote = match started? {
        Started::Probe => remote,
        Started::Shell(why) => {
            walk.say(why.as_ref().map_or("nvidia-smi is asked, as configured".into(), |why| why.message.clone()));
            nvidia_smi::over(remote, nonce, host.interval, why.map(|why| why.message))
        }
    };
    walk.begin("probe");
    readings(walk, &mut remote).await
}

/// Reads until the first snapshot and the echo of a heartbeat have come.
async fn readings(walk: &mut Walk, remote: &mut Remote) -> Result<(), LinkError> {
    let began = Instant::now();
    let mut heartbeat: Option<Instant> = None;
    let (mut round_trip, mut snapshot) = (None, false);
    let mut deadline = began + HELLO_LIMIT;
    while !snapshot || round_trip.is_none() {
        let line = match timeout_at(deadline, remote.stdout.line()).await {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None)) => return Err(failure::probe_ended(&remote.ending().await, None, false)),
            Ok(Err(error)) => return Err(failure::protocol(&error)),
            Err(_) if heartbeat.is_none() => {
                return Err(failure::timeout("the probe did not introduce itself", HELLO_LIMIT));
            }
            Err(_) => return Err(failure::timeout("the probe sent no readings", SAMPLE_LIMIT)),
        };
        match decode(&line).map_err(|error| failure::protocol(&error))? {
            Message::Hello(hello) if hello.protocol == PROTOCOL => {
                walk.say(introduction(&hello));
                walk.begin("NVML");
                deadline = began + SAMPLE_LIMIT;
                heartbeat = Some(Instant::now());
                send(remote, &Request::Heartbeat { id: 1, last_sequence: None }).await;
            }
            Message::Hello(hello) => {
                return Err(failure::protocol(&crate::wire::codec::CodecError::UnsupportedProtocol {
                    received: hello.protocol,
                }));
            }
            Message::Inventory(inventory) => {
                match &inventory.error {
                    Some(error) => walk.say(error.message.clone()),
                    None => walk.say(devices(&inventory)),
                }
                walk.begin("first snapshot");
            }
            Message::Snapshot(_) => snapshot = true,
            Message::Echo { id: 1 } => round_trip = heartbeat.map(|sent| sent.elapsed()),
            Message::Farewell { reason } => {
                return Err(LinkError::new(LinkErrorKind::ProbeEnded, format!("the probe ended: {reason}")));
            }
            Message::Echo { .. } | Message::Reply(_) | Message::Unknown => {}
        }
    }
    let round_trip = round_trip.unwrap_or_default();
    walk.say(format!("round trip {:.1} ms", round_trip.as_secs_f64() * 1e3));
    walk.end(None);
    Ok(())
}

/// `gpufleet-probe 0.1.0 as alice on hgx-01, Linux 6.1`, as far as it is known.
fn introduction(hello: &Hello) -> String {
    // What answers in the probe's place names itself.
    let mut text = match &hello.source {
        None | Some(ReadingSource::Probe) => format!("gpufleet-probe {}", hello.probe_version),
        Some(source) => source.as_str().to_owned(),
    };
    for (word, value) in [(" as ", &hello.login_user), (" on ", &hello.host_name), (", Linux ", &hello.kernel)] {
        if let Some(value) = value {
            text.push_str(word);
            text.push_str(value);
        }
    }
    text
}

/// `8 GPUs: NVIDIA H100 80GB HBM3; driver 550.54`.
fn devices(inventory: &Inventory) -> String {
    let mut names: Vec<&str> = Vec::new();
    for gpu in &inventory.gpus {
        if let Some(name) = gpu.name.as_deref()
            && !names.contains(&name)
        {
            names.push(name);
        }
    }
    let count = inventory.gpus.len();
    let driver = inventory.driver_version.as_deref().map(|driver| format!("; driver {driver}")).unwrap_or_default();
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} GPU{plural}: {}{driver}", names.join(", "))
}

async fn send(remote: &mut Remote, request: &Request) {
    let Ok(line) = encode(request) else { return };
    // A pipe that broke is told by the end of the answers, with its cause.
    if remote.stdin.write_all(&line).await.is_ok() {
        let _ = remote.stdin.flush().await;
    }
}
