//! Starts the probe on a fresh channel: one `exec`, one script, one upload per directory at most.
//!
//! There are three steps, each with an absolute deadline. The marker command shows that a shell answers, and on which
//! machine. Then the script is sent, and nothing after it until it answers, because a shell reads ahead. On `need`,
//! exactly the bytes of the probe follow.

use super::probe_binary::{ProbeBinary, ProbeStore};
use super::remote_command::{RemoteCommand, last_line};
use super::{error, script};
use crate::config::{HostConfig, ProbeChoice};
use crate::fleet::{LinkError, LinkErrorKind};
use crate::wire::SafeText;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout_at};

/// Time limit for the first answer of the remote shell, including the start-up files of the account.
const SHELL_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for each step of the script, for example if the home directory hangs.
const STEP_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for the whole script, without the upload.
const SCRIPT_LIMIT: Duration = Duration::from_secs(30);
/// Limit of answers. The script tries four directories, with at most three answers each.
const MOST_ANSWERS: u32 = 16;
/// Limit of uploads. A quota shows itself only on writing, so each directory may need one.
const MOST_UPLOADS: u32 = 4;
/// Slowest link on which an upload can finish within its deadline.
const SLOWEST_BYTES_PER_SECOND: u64 = 2048;
/// Limit of other output, such as banners and noisy start-up files.
const NOISE_LIMIT_BYTES: usize = 64 * 1024;

/// The probe to start, and how.
pub(super) struct InstallRequest<'a> {
    pub(super) host: &'a HostConfig,
    pub(super) interval: Duration,
    pub(super) probes: &'a dyn ProbeStore,
    /// A fresh random number for this connection, in hexadecimal.
    pub(super) nonce: &'a str,
    /// World-writable directories in which the probe may be installed.
    pub(super) shared_directories: &'a [&'a str],
    /// Why the probe failed to start last time. If set, it is not started again.
    pub(super) without_probe: Option<&'a LinkError>,
    /// Called for each step.
    pub(super) on_event: &'a (dyn Fn(InstallEvent) + Send + Sync),
}

/// A step between the shell and the running probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InstallEvent {
    /// A shell answered, on this system and machine.
    Machine(String),
    /// A directory was not usable, with the reason.
    Skipped(SafeText),
    /// The probe was uploaded; its size in bytes.
    Sent(u64),
    /// The path from which the probe starts.
    Started(SafeText),
}

/// Returns [`InstallRequest::shared_directories`] for a host. `/dev/shm` needs `allow_shm`, because security tools flag
/// programs there.
pub(super) fn shared_directories(host: &HostConfig) -> &'static [&'static str] {
    if host.allow_shm { &["/tmp", "/dev/shm"] } else { &["/tmp"] }
}

/// The remote end after [`start`].
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Started {
    /// The probe; its first line is the hello.
    Probe,
    /// A shell that waits for the `nvidia-smi` script: as configured, or for the given reason why no probe can run.
    Shell(Option<LinkError>),
}

/// Runs the script on a fresh shell.
pub(super) async fn start(remote: &mut RemoteCommand, request: &InstallRequest<'_>) -> Result<Started, LinkError> {
    let mut session = ScriptSession { remote, request, noise_bytes: 0, last_noise: Vec::new(), skipped: Vec::new() };
    let shell_deadline = Instant::now() + SHELL_LIMIT;
    session.send(script::marker(request.nonce).as_bytes(), shell_deadline).await?;
    let machine = session.machine(shell_deadline).await?;
    let arguments = script::probe_arguments(request.interval, request.host.nvml_library.as_deref());
    match (&request.host.probe, request.without_probe) {
        (ProbeChoice::NvidiaSmi, _) => Ok(Started::Shell(None)),
        (ProbeChoice::Path(path), _) => session.run_script(&script::path(request.nonce, path, &arguments), None).await,
        (ProbeChoice::Upload, Some(why)) => Ok(Started::Shell(Some(why.clone()))),
        (ProbeChoice::Upload, None) => {
            let Some(binary) = request.probes.binary(&machine) else {
                return Ok(Started::Shell(Some(no_probe(&machine, &request.probes.machines()))));
            };
            let text = script::upload(request.nonce, &binary, request.shared_directories, &arguments);
            session.run_script(&text, Some(&binary)).await
        }
    }
}

struct ScriptSession<'a> {
    remote: &'a mut RemoteCommand,
    request: &'a InstallRequest<'a>,
    noise_bytes: usize,
    last_noise: Vec<u8>,
    /// Unusable directories, with the reason.
    skipped: Vec<SafeText>,
}

impl ScriptSession<'_> {
    async fn machine(&mut self, deadline: Instant) -> Result<String, LinkError> {
        let answer = self.answer(deadline).await.map_err(|end| match end {
            NoAnswer::Ended(end) => error::no_shell(&end, &last_line(&self.last_noise)),
            NoAnswer::Late => {
                let error = error::timeout("the remote shell did not answer", SHELL_LIMIT);
                error.with_hint(
                    "perhaps a start-up file of the account waits for input, or its home directory hangs: try `ssh HOST /bin/sh`",
                )
            }
            NoAnswer::Noise => too_noisy(),
        })?;
        match answer {
            Answer::Shell { system, machine } if system == "Linux" => {
                (self.request.on_event)(InstallEvent::Machine(format!("{system} {machine}")));
                Ok(machine)
            }
            Answer::Shell { system, .. } if system.is_empty() => Err(LinkError::new(
                LinkErrorKind::NoProbe,
                "`uname` cannot be run on the host, so its system is not known",
            )
            .with_hint("check that /usr/bin or /bin on the host has `uname`")
            .with_retry(crate::fleet::RetryPolicy::OnRequest)),
            Answer::Shell { system, machine } => Err(LinkError::new(
                LinkErrorKind::NoProbe,
                format!("the probe runs on Linux, this host is {system} {machine}"),
            )
            .with_retry(crate::fleet::RetryPolicy::OnRequest)),
            _ => Err(out_of_turn()),
        }
    }

    async fn run_script(&mut self, text: &str, binary: Option<&ProbeBinary>) -> Result<Started, LinkError> {
        let mut end = Instant::now() + SCRIPT_LIMIT;
        let mut deadline = Instant::now() + STEP_LIMIT;
        let (mut uploads, mut was_sent_here) = (0, false);
        self.send(text.as_bytes(), deadline).await?;
        let mut directory = SafeText::default();
        for _ in 0..MOST_ANSWERS {
            let answer = self.answer(deadline).await.map_err(|why| match why {
                NoAnswer::Ended(end) => error::script_ended(&end),
                NoAnswer::Late if Instant::now() >= end => {
                    error::timeout("the remote script did not finish", SCRIPT_LIMIT)
                }
                NoAnswer::Late if directory.is_empty() => {
                    error::timeout("the remote script did not answer", STEP_LIMIT)
                }
                NoAnswer::Late => {
                    let what = format!("the remote script hung at {directory}");
                    error::timeout(&what, STEP_LIMIT).with_hint("perhaps a hung network file system")
                }
                NoAnswer::Noise => too_noisy(),
            })?;
            deadline = (Instant::now() + STEP_LIMIT).min(end);
            match (answer, binary) {
                (Answer::Exec(path), _) => {
                    (self.request.on_event)(InstallEvent::Started(path));
                    return Ok(Started::Probe);
                }
                (Answer::Try(path), _) => (directory, was_sent_here) = (path, false),
                (Answer::Skip(why), _) => {
                    (self.request.on_event)(InstallEvent::Skipped(why.clone()));
                    self.skipped.push(why);
                }
                (Answer::Need, Some(binary)) if !was_sent_here && uploads < MOST_UPLOADS => {
                    let upload = Duration::from_secs(binary.size_bytes / SLOWEST_BYTES_PER_SECOND);
                    if uploads == 0 {
                        end += upload;
                    }
                    (uploads, was_sent_here) = (uploads + 1, true);
                    deadline = (deadline + upload).min(end);
                    let bytes = binary.bytes().map_err(|why| LinkError::new(LinkErrorKind::NoProbe, why))?;
                    self.send(&bytes, deadline).await?;
                    (self.request.on_event)(InstallEvent::Sent(binary.size_bytes));
                }
                (Answer::Fail { word, rest }, binary) => {
                    let error = refusal(&word, &rest, &self.skipped, self.request.host);
                    // If no probe can run, the upload script leaves a shell behind.
                    let cannot_run = matches!(error.kind, LinkErrorKind::NoDirectory | LinkErrorKind::NoProbe);
                    return if binary.is_some() && cannot_run { Ok(Started::Shell(Some(error))) } else { Err(error) };
                }
                (Answer::Shell { .. } | Answer::Need, _) => return Err(out_of_turn()),
            }
        }
        Err(LinkError::new(
            LinkErrorKind::Protocol,
            format!("protocol violation: more than {MOST_ANSWERS} answers of the remote script"),
        ))
    }

    async fn send(&mut self, bytes: &[u8], deadline: Instant) -> Result<(), LinkError> {
        let write = async {
            self.remote.stdin.write_all(bytes).await?;
            self.remote.stdin.flush().await
        };
        match timeout_at(deadline, write).await {
            // The end of the answers names the cause of a broken pipe.
            Ok(_) => Ok(()),
            Err(_) => Err(LinkError::new(LinkErrorKind::Timeout, "the host did not accept the data in time")),
        }
    }

    async fn answer(&mut self, deadline: Instant) -> Result<Answer, NoAnswer> {
        loop {
            let line = match timeout_at(deadline, self.remote.stdout.line()).await {
                Ok(Ok(Some(line))) => line,
                Ok(Ok(None)) => {
                    let rest = self.remote.stdout.lines.remaining();
                    if !rest.trim_ascii().is_empty() {
                        self.last_noise = rest.to_vec();
                    }
                    return Err(NoAnswer::Ended(self.remote.wait_for_end().await));
                }
                Ok(Err(_)) => return Err(NoAnswer::Noise),
                Err(_) => return Err(NoAnswer::Late),
            };
            if let Some(answer) = Answer::parse(&line, self.request.nonce) {
                return Ok(answer);
            }
            self.noise_bytes += line.len() + 1;
            if self.noise_bytes > NOISE_LIMIT_BYTES {
                return Err(NoAnswer::Noise);
            }
            if !line.trim_ascii().is_empty() {
                self.last_noise = line;
            }
        }
    }
}

enum NoAnswer {
    Ended(super::remote_command::CommandEnd),
    Late,
    Noise,
}

/// An answer of the script.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    Shell { system: String, machine: String },
    Try(SafeText),
    Skip(SafeText),
    Need,
    Exec(SafeText),
    Fail { word: String, rest: SafeText },
}

impl Answer {
    /// Parses a line; `None` if it does not begin with the nonce.
    fn parse(line: &[u8], nonce: &str) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?;
        let answer = line.strip_prefix(nonce)?.strip_prefix(' ')?;
        let (word, rest) = answer.split_once(' ').unwrap_or((answer, ""));
        Some(match word {
            "shell" => {
                let (system, machine) = rest.split_once(' ').unwrap_or((rest, ""));
                Self::Shell {
                    system: SafeText::new(system).to_string(),
                    machine: SafeText::new(machine.trim()).to_string(),
                }
            }
            "try" => Self::Try(rest.into()),
            "skip" => Self::Skip(rest.into()),
            "need" => Self::Need,
            "exec" => Self::Exec(rest.into()),
            "fail" => {
                let (word, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                Self::Fail { word: word.to_owned(), rest: rest.into() }
            }
            _ => return None,
        })
    }
}

fn refusal(word: &str, rest: &str, skipped: &[SafeText], host: &HostConfig) -> LinkError {
    let no_probe = |text: String| LinkError::new(LinkErrorKind::NoProbe, text);
    match word {
        "directory" => {
            let shared_directories: Vec<&str> = skipped.iter().map(|place| &**place).collect();
            let text = format!("no directory for the probe: {}", shared_directories.join("; "));
            let shm = if host.allow_shm { "" } else { ", or allow /dev/shm with `allow_shm = true`" };
            LinkError::new(LinkErrorKind::NoDirectory, text)
                .with_hint(format!("install the probe on the host and set `probe = \"/path\"`{shm}"))
        }
        "tool" => no_probe(format!("the host has no `{rest}`, so the probe cannot be installed and verified"))
            .with_hint("install the probe on the host and set `probe = \"/path\"`, or use `probe = \"nvidia-smi\"`"),
        "damaged" => LinkError::new(LinkErrorKind::Protocol, "the probe arrived damaged: its SHA-256 does not match"),
        "loader" => no_probe("the probe does not start on this host: its loader is missing".to_owned())
            .with_hint("the probe needs glibc 2.17 or newer; `probe = \"nvidia-smi\"` works without it"),
        "start" => no_probe(format!("the probe does not start on this host (exit status {rest})"))
            .with_hint("the probe needs Linux with glibc 2.17 or newer; `probe = \"nvidia-smi\"` works without it"),
        "missing" => no_probe(format!("there is no {rest} on the host"))
            .with_hint("`probe` in hosts.toml names it; `probe = \"upload\"` needs no file on the host"),
        "forbidden" => no_probe(format!("{rest} on the host may not be executed"))
            .with_hint("check its mode and whether its file system is mounted noexec"),
        _ => out_of_turn(),
    }
}

fn no_probe(machine: &str, machines: &[String]) -> LinkError {
    let carried = if machines.is_empty() { "none".to_owned() } else { machines.join(" and ") };
    LinkError::new(
        LinkErrorKind::NoProbe,
        format!("there is no probe for Linux on {machine}: this gpufleet has {carried}"),
    )
    .with_hint("`probe = \"nvidia-smi\"` works without a probe")
    .with_retry(crate::fleet::RetryPolicy::OnRequest)
}

fn too_noisy() -> LinkError {
    LinkError::new(LinkErrorKind::Protocol, "protocol violation: more than 64 KiB of output before an answer")
        .with_hint("check what the start-up files of the account print: `ssh HOST true`")
}

fn out_of_turn() -> LinkError {
    LinkError::new(LinkErrorKind::Protocol, "protocol violation: unexpected answer of the remote script")
}

#[cfg(test)]
#[path = "install_tests.rs"]
mod tests;
