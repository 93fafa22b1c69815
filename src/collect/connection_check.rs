//! Connects to one host step by step, for `gpufleet doctor`, with the same code as a host task.

use super::install::{self, InstallEvent, InstallRequest, Started};
use super::probe_binary::ProbeStore;
use super::remote_command::OpenChannel;
use super::remote_command::RemoteCommand;
use super::session::{HELLO_LIMIT, SAMPLE_LIMIT};
use super::{error, nvidia_smi, probe_binary, script};
use crate::config::HostConfig;
use crate::fleet::{LinkError, LinkErrorKind};
use crate::ssh::transport::SshPhase;
use crate::wire::codec::{decode, encode};
use crate::wire::{Hello, Inventory, Message, PROTOCOL, ReadingSource, Request, SafeText};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout_at};

/// One step of the check.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckStep {
    /// Name of the step.
    pub name: &'static str,
    /// Details, one line each.
    pub lines: Vec<SafeText>,
    /// Duration.
    pub took: Duration,
    /// Error, in the last step only.
    pub error: Option<LinkError>,
}

/// The finished steps and the current one.
struct StepRecorder {
    steps: Vec<CheckStep>,
    name: &'static str,
    lines: Vec<SafeText>,
    since: Instant,
}

impl StepRecorder {
    fn begin(&mut self, name: &'static str) {
        if self.name == name {
            return;
        }
        self.end(None);
        self.name = name;
    }

    fn add_line(&mut self, line: impl Into<SafeText>) {
        self.lines.push(line.into());
    }

    /// Ends the current step at `at` and begins another.
    fn end_at(&mut self, next: &'static str, at: Instant) {
        let lines = std::mem::take(&mut self.lines);
        self.steps.push(CheckStep { name: self.name, lines, took: at.duration_since(self.since), error: None });
        self.name = next;
        self.since = at;
    }

    fn end(&mut self, error: Option<LinkError>) {
        let (lines, took) = (std::mem::take(&mut self.lines), self.since.elapsed());
        self.since = Instant::now();
        // Omit a phase without duration and details.
        if error.is_some() || !lines.is_empty() || took >= Duration::from_millis(1) {
            self.steps.push(CheckStep { name: self.name, lines, took, error });
        }
    }
}

/// Connects to a host and reads until its first snapshot. `trace_events` returns the trace of the SSH connection; it is
/// called once, after the connection is established or has failed.
pub async fn check_connection(
    ssh: Arc<dyn OpenChannel>,
    host: &HostConfig,
    trace_events: impl FnOnce() -> Vec<(SshPhase, String)>,
) -> Vec<CheckStep> {
    let recorder = StepRecorder { steps: Vec::new(), name: "configuration", lines: Vec::new(), since: Instant::now() };
    let recorder = Arc::new(Mutex::new(recorder));
    let recorder_handle = Arc::clone(&recorder);
    let progress = move |phase| recorder_handle.lock().unwrap_or_else(PoisonError::into_inner).begin(step_of(phase));
    let opened = ssh.open(host, script::EXEC, &progress).await;
    drop(progress);
    // This is the last reference.
    let recorder =
        Arc::into_inner(recorder).map(|recorder| recorder.into_inner().unwrap_or_else(PoisonError::into_inner));
    let Some(mut recorder) = recorder else { return Vec::new() };
    let error = opened.as_ref().err().map(error::from_ssh);
    if error.is_some() {
        recorder.end(error);
    } else {
        recorder.begin("shell");
    }
    merge_trace_events(&mut recorder.steps, trace_events());
    if let Ok(channel) = opened
        && let Err(error) = check_probe(&mut recorder, RemoteCommand::new(channel), host).await
    {
        recorder.end(Some(error));
    }
    recorder.steps
}

/// Adds the trace events to the steps of their phases.
fn merge_trace_events(steps: &mut Vec<CheckStep>, trace_events: Vec<(SshPhase, String)>) {
    for (phase, text) in trace_events {
        let name = step_of(phase);
        // A connection that is made twice, after a prompt, is reported once.
        let line = SafeText::from(text);
        match steps.iter_mut().find(|step| step.name == name) {
            Some(step) if !step.lines.contains(&line) => step.lines.push(line),
            Some(_) => {}
            None => {
                let step = CheckStep { name, lines: vec![line], took: Duration::ZERO, error: None };
                let place =
                    steps.iter().position(|step| step_position(step.name) > step_position(name)).unwrap_or(steps.len());
                steps.insert(place, step);
            }
        }
    }
}

/// Returns the name of the step for a phase.
const CONNECTION_STEPS: [&str; 6] = ["configuration", "name", "TCP", "key exchange", "login", "shell"];

fn step_position(name: &str) -> usize {
    CONNECTION_STEPS.iter().position(|step| *step == name).unwrap_or(CONNECTION_STEPS.len())
}

fn step_of(phase: SshPhase) -> &'static str {
    match phase {
        SshPhase::Queued => CONNECTION_STEPS[0],
        SshPhase::Name => CONNECTION_STEPS[1],
        SshPhase::Tcp => CONNECTION_STEPS[2],
        SshPhase::KeyExchange => CONNECTION_STEPS[3],
        SshPhase::Login => CONNECTION_STEPS[4],
        SshPhase::Exec => CONNECTION_STEPS[5],
    }
}

/// Starts the probe on the shell and reads until the first snapshot.
async fn check_probe(
    recorder: &mut StepRecorder,
    mut remote: RemoteCommand,
    host: &HostConfig,
) -> Result<(), LinkError> {
    let nonce = script::new_nonce();
    let probes: Arc<dyn ProbeStore> = probe_binary::embedded_probes();
    let install_events = Mutex::new(Vec::new());
    let note = |event: InstallEvent| {
        install_events.lock().unwrap_or_else(PoisonError::into_inner).push((event, Instant::now()));
    };
    let request = InstallRequest {
        host,
        interval: host.interval,
        probes: &*probes,
        nonce: &nonce,
        shared_directories: install::shared_directories(host),
        without_probe: None,
        on_event: &note,
    };
    let started = install::start(&mut remote, &request).await;
    for (event, at) in install_events.into_inner().unwrap_or_else(PoisonError::into_inner) {
        match event {
            InstallEvent::Machine(machine) => {
                recorder.add_line(format!("/bin/sh answers: {machine}"));
                recorder.end_at("directory", at);
            }
            InstallEvent::Skipped(why) => recorder.add_line(format!("not {why}")),
            InstallEvent::Sent(bytes) => {
                recorder.add_line(format!("probe uploaded and verified: {bytes} bytes"));
            }
            InstallEvent::Started(path) => recorder.add_line(format!("the probe is {path}")),
        }
    }
    let mut remote = match started? {
        Started::Probe => remote,
        Started::Shell(why) => {
            recorder.add_line(why.as_ref().map_or("using nvidia-smi, as configured".into(), |why| why.message.clone()));
            nvidia_smi::adapt(remote, nonce, host.interval, why.map(|why| why.message))
        }
    };
    recorder.begin("probe");
    await_first_snapshot(recorder, &mut remote).await
}

/// Reads until the first snapshot and the echo of a heartbeat have arrived.
async fn await_first_snapshot(recorder: &mut StepRecorder, remote: &mut RemoteCommand) -> Result<(), LinkError> {
    let began = Instant::now();
    let mut heartbeat: Option<Instant> = None;
    let (mut round_trip, mut snapshot) = (None, false);
    let mut deadline = began + HELLO_LIMIT;
    while !snapshot || round_trip.is_none() {
        let line = match timeout_at(deadline, remote.stdout.line()).await {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None)) => return Err(error::probe_ended(&remote.wait_for_end().await, None, false)),
            Ok(Err(error)) => return Err(error::protocol(&error)),
            Err(_) if heartbeat.is_none() => {
                return Err(error::timeout("the probe sent no hello", HELLO_LIMIT));
            }
            Err(_) => return Err(error::timeout("the probe sent no readings", SAMPLE_LIMIT)),
        };
        match decode(&line).map_err(|error| error::protocol(&error))? {
            Message::Hello(hello) if hello.protocol == PROTOCOL => {
                recorder.add_line(describe_hello(&hello));
                if let Some(hash) = &hello.probe_sha256 {
                    recorder.add_line(format!("its SHA-256 is {hash}"));
                }
                recorder.begin("NVML");
                deadline = began + SAMPLE_LIMIT;
                heartbeat = Some(Instant::now());
                send(remote, &Request::Heartbeat { id: 1, last_sequence: None }).await;
            }
            Message::Hello(hello) => {
                return Err(error::protocol(&crate::wire::codec::CodecError::UnsupportedProtocol {
                    received: hello.protocol,
                }));
            }
            Message::Inventory(inventory) => {
                match &inventory.error {
                    Some(error) => recorder.add_line(error.message.clone()),
                    None => recorder.add_line(describe_gpus(&inventory)),
                }
                recorder.begin("first snapshot");
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
    recorder.add_line(format!("round trip {:.1} ms", round_trip.as_secs_f64() * 1e3));
    recorder.end(None);
    Ok(())
}

/// Formats a hello as `gpufleet-probe 0.1.0 as alice on hgx-01, Linux 6.1`, without unknown parts.
fn describe_hello(hello: &Hello) -> String {
    // Sources other than the probe have their own name.
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

/// Formats an inventory as `8 GPUs: NVIDIA H100 80GB HBM3; driver 550.54`.
fn describe_gpus(inventory: &Inventory) -> String {
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

async fn send(remote: &mut RemoteCommand, request: &Request) {
    let Ok(line) = encode(request) else { return };
    // The end of the answers names the cause of a broken pipe.
    if remote.stdin.write_all(&line).await.is_ok() {
        let _ = remote.stdin.flush().await;
    }
}
