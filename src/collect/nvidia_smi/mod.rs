//! A host without a probe: `nvidia-smi` is asked over the same channel, and its answers speak the probe's protocol.
//!
//! A task stands between the remote script and the session, so that everything after it is the same as with a probe.
//! It is asked where hosts.toml says so, and by itself where no probe can run: then each snapshot says why.
//! Heartbeats go to the host and come back: they measure the link, not this task.

mod parse;

use super::remote_command::RemoteCommand;
use super::script;
use crate::ssh::transport::{Channel, Exit};
use crate::wire::codec::{LineBuffer, decode_json, encode};
use crate::wire::{DriverErrorKind, Inventory, Message, Reply, ReplyOutcome, Request, SafeText, Snapshot};
use parse::{PreviousSample, Sample};
use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// `nvidia-smi` starts anew for each sample and wakes the driver where persistence is off: not more often than this.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(2);
/// The second sample comes early, so that shares of CPU time exist.
const SECOND_SAMPLE: Duration = Duration::from_millis(500);

/// The most bytes and lines of one section that are kept. A host with 512 GPUs and 1,024 processes sends less.
const SECTION_BYTES: usize = 1 << 20;
const SECTION_LINES: usize = 8192;

/// What the task holds of the pipe to the session.
const PIPE_BYTES: usize = 64 * 1024;

/// Turns a shell that waits for a script into a stream that speaks the probe's protocol. `why`: why there is no probe,
/// where one was wanted.
pub(super) fn adapt(shell: RemoteCommand, nonce: String, interval: Duration, why: Option<SafeText>) -> RemoteCommand {
    let (session, ours) = tokio::io::duplex(PIPE_BYTES);
    let (stderr, mut last_words) = tokio::io::duplex(PIPE_BYTES);
    let (ended, exit) = oneshot::channel();
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut adapter = Adapter::new(shell, ours, nonce, interval, why);
        adapter.run().await;
        let end = adapter.shell.wait_for_end().await;
        // The session may be gone already; then nobody wants the last words.
        let _ = last_words.write_all(end.stderr.as_bytes()).await;
        let _: Result<(), Exit> = ended.send(end.exit);
    });
    let (stdout, stdin) = tokio::io::split(session);
    RemoteCommand::new(Channel {
        stdin: Box::pin(stdin),
        stdout: Box::pin(stdout),
        stderr: Box::pin(stderr),
        exit,
        guard: Box::new(task),
    })
}

struct Adapter {
    shell: RemoteCommand,
    session: DuplexStream,
    requests: LineBuffer,
    nonce: String,
    interval: Duration,
    /// Why there is no probe.
    why: Option<SafeText>,
    started: Instant,
    /// The section that the script is in, and its lines.
    section: String,
    lines: Section,
    sample: Sample,
    previous: PreviousSample,
    inventory: Option<Inventory>,
    sent_facts: HashSet<(u32, Option<u64>)>,
    sequence: u64,
    /// None while a sample is under way, and before the hello.
    next_sample: Option<Instant>,
}

/// The lines of one section, as far as they fit.
#[derive(Default)]
struct Section {
    lines: Vec<String>,
    bytes: usize,
}

impl Section {
    /// Keeps a line that is not empty and fits. One that does not fit is left out.
    fn push(&mut self, line: &str) {
        let is_kept = self.lines.len() < SECTION_LINES && line.len() <= SECTION_BYTES - self.bytes;
        if is_kept && !line.is_empty() {
            self.bytes += line.len();
            self.lines.push(line.to_owned());
        }
    }
}

/// The shell or the session is gone.
struct Closed;

impl Adapter {
    fn new(
        shell: RemoteCommand,
        session: DuplexStream,
        nonce: String,
        interval: Duration,
        why: Option<SafeText>,
    ) -> Self {
        Self {
            shell,
            session,
            requests: LineBuffer::default(),
            nonce,
            interval,
            why,
            started: Instant::now(),
            section: String::new(),
            lines: Section::default(),
            sample: Sample::default(),
            previous: PreviousSample::default(),
            inventory: None,
            sent_facts: HashSet::new(),
            sequence: 0,
            next_sample: None,
        }
    }

    async fn run(&mut self) {
        let text = script::nvidia_smi(&self.nonce, &parse::full_fields(), &parse::basic_fields());
        if self.send_to_script(&text).await.is_err() {
            return;
        }
        while self.step().await.is_ok() {}
    }

    async fn step(&mut self) -> Result<(), Closed> {
        let mut chunk = [0; 1024];
        let next_sample = self.next_sample;
        tokio::select! {
            line = self.shell.stdout.line() => match line {
                Ok(Some(line)) => self.take_line(&String::from_utf8_lossy(&line)).await,
                Ok(None) | Err(_) => Err(Closed),
            },
            count = self.session.read(&mut chunk) => match count {
                Ok(count @ 1..) => {
                    self.requests.push(&chunk[..count]);
                    self.take_requests().await
                }
                Ok(0) | Err(_) => Err(Closed),
            },
            () = sleep_until(next_sample.unwrap_or(self.started)), if next_sample.is_some() => {
                self.next_sample = None;
                self.send_to_script("sample\n").await
            }
        }
    }

    async fn take_requests(&mut self) -> Result<(), Closed> {
        loop {
            let request: Request = match self.requests.next_line() {
                Ok(None) => return Ok(()),
                Ok(Some(line)) => decode_json(line).map_err(|_| Closed)?,
                Err(_) => return Err(Closed),
            };
            match request {
                Request::Heartbeat { id, .. } => self.send_to_script(&format!("echo {id}\n")).await?,
                Request::Interval { seconds } => {
                    self.interval = Duration::try_from_secs_f32(seconds).unwrap_or(SHORTEST_INTERVAL);
                }
                Request::Resend => {
                    self.inventory = None;
                    self.sent_facts.clear();
                    self.next_sample = self.next_sample.map(|_| Instant::now());
                }
                Request::Signal { id, .. } | Request::Environment { id, .. } | Request::LogTail { id, .. } => {
                    let why = "this host is read through nvidia-smi; this needs the probe".into();
                    self.send_message(&Message::Reply(Reply { id, outcome: ReplyOutcome::Refused(why) })).await?;
                }
            }
        }
    }

    async fn take_line(&mut self, line: &str) -> Result<(), Closed> {
        let Some(answer) = line.strip_prefix(&*self.nonce).and_then(|rest| rest.strip_prefix(' ')) else {
            self.lines.push(line);
            return Ok(());
        };
        let lines = std::mem::take(&mut self.lines).lines;
        match &*std::mem::take(&mut self.section) {
            "hello" => {
                self.send_message(&Message::Hello(parse::hello(&lines))).await?;
                self.next_sample = Some(Instant::now());
            }
            "gpus" => self.sample.gpus = lines,
            "apps" => self.sample.apps = lines,
            "processes" => self.sample.processes = lines,
            "users" => self.sample.users = lines,
            "host" => {
                self.sample.host = lines;
                self.send_sample().await?;
            }
            _ => {}
        }
        let (word, rest) = answer.split_once(' ').unwrap_or((answer, ""));
        match word {
            "echo" => {
                if let Ok(id) = rest.parse() {
                    self.send_message(&Message::Echo { id }).await?;
                }
            }
            "status" => self.sample.status = rest.parse().unwrap_or(-1),
            _ => word.clone_into(&mut self.section),
        }
        Ok(())
    }

    async fn send_sample(&mut self) -> Result<(), Closed> {
        let at_seconds = self.started.elapsed().as_secs_f64();
        let readings = std::mem::take(&mut self.sample).readings(at_seconds, &mut self.previous);
        let mut inventory = readings.inventory;
        if let (Some(error), Some(why)) = (&mut inventory.error, &self.why)
            && error.kind == DriverErrorKind::NoLibrary
        {
            // Neither way in is open, so both are named.
            error.message = SafeText::from(format!("{}, and no probe: {why}", error.message));
        }
        inventory.generation = self.inventory.as_ref().map_or(1, |known| known.generation);
        if self.inventory.as_ref() != Some(&inventory) {
            inventory.generation += u32::from(self.inventory.is_some());
            self.send_message(&Message::Inventory(inventory.clone())).await?;
        }
        self.sequence += 1;
        let pause = if self.sequence == 1 { SECOND_SAMPLE } else { self.interval.max(SHORTEST_INTERVAL) };
        self.next_sample = Some(Instant::now() + pause);
        let alive: HashSet<_> = readings.facts.iter().map(|facts| (facts.pid, facts.start_ticks)).collect();
        let mut facts = readings.facts;
        facts.retain(|facts| !self.sent_facts.contains(&(facts.pid, facts.start_ticks)));
        self.sent_facts = alive;
        let snapshot = Snapshot {
            sequence: self.sequence,
            generation: inventory.generation,
            monotonic_seconds: at_seconds,
            wall_unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64,
            interval_seconds: Some(pause.as_secs_f32()),
            host: readings.host,
            gpus: readings.gpus,
            gpu_processes: readings.gpu_processes,
            processes: readings.processes,
            facts,
            processes_left_out: readings.processes_left_out,
            notes: self.why.iter().map(|why| SafeText::from(format!("via nvidia-smi: {why}"))).collect(),
            ..Snapshot::default()
        };
        self.inventory = Some(inventory);
        self.send_message(&Message::Snapshot(Box::new(snapshot))).await
    }

    async fn send_message(&mut self, message: &Message) -> Result<(), Closed> {
        let line = encode(message).map_err(|_| Closed)?;
        self.session.write_all(&line).await.map_err(|_| Closed)
    }

    async fn send_to_script(&mut self, text: &str) -> Result<(), Closed> {
        self.shell.stdin.write_all(text.as_bytes()).await.map_err(|_| Closed)?;
        self.shell.stdin.flush().await.map_err(|_| Closed)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
