//! A task that translates between the remote script and the session.
//!
//! It is used if hosts.toml says so, and as a fallback if no probe can run; then each snapshot contains the reason. The
//! remote script echoes heartbeats also while `nvidia-smi` runs, so they measure the link, and a driver that hangs is not
//! mistaken for a host that does not answer.

use super::fields::FieldList;
use super::lines::Section;
use super::output::{Known, Run, Sample, hello};
use crate::collect::remote_command::RemoteCommand;
use crate::collect::script;
use crate::ssh::transport::{Channel, Exit};
use crate::wire::codec::{LineBuffer, decode_json, encode};
use crate::wire::{
    DriverError, DriverErrorKind, Hello, Inventory, Message, Reply, ReplyOutcome, Request, SafeText, Snapshot,
};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Lower bound of the interval: each sample starts `nvidia-smi`, which initialises the driver if persistence mode is off.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(2);
/// The second sample is early, so that CPU utilisation is available soon.
const SECOND_SAMPLE: Duration = Duration::from_millis(500);

/// A program that runs for this long hangs: three times the longest run so far, within these limits. Without persistence
/// mode, `nvidia-smi` takes seconds on a host with 8 GPUs. The upper limit is below the time after which the session drops
/// a host without readings.
const HANGS_AFTER: (Duration, Duration) = (Duration::from_secs(6), Duration::from_secs(12));
/// After this long it is killed. A process that waits in the driver ends only when the driver lets it go, and no other one
/// is started before.
const KILLED_AFTER: Duration = Duration::from_secs(60);

/// Limit of the output between two samples. A host with 512 GPUs and 1,024 processes stays far below it.
const SAMPLE_BYTES: usize = 8 << 20;

/// Capacity of the pipe to the session.
const PIPE_BYTES: usize = 64 * 1024;

/// Turns a shell that waits for a script into a stream with the protocol of the probe. `why` is the reason why no probe
/// runs, unless hosts.toml selects `nvidia-smi`.
pub(in crate::collect) fn adapt(
    shell: RemoteCommand,
    nonce: String,
    interval: Duration,
    why: Option<SafeText>,
) -> RemoteCommand {
    let (session, ours) = tokio::io::duplex(PIPE_BYTES);
    let (stderr, mut last_words) = tokio::io::duplex(PIPE_BYTES);
    let (ended, exit) = oneshot::channel();
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut adapter = Adapter::new(shell, ours, nonce, interval, why);
        adapter.run().await;
        let end = adapter.shell.wait_for_end().await;
        // Fails if the session has ended already.
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
    /// Why no probe runs.
    why: Option<SafeText>,
    started: Instant,
    /// The current section of the output and its lines.
    section: String,
    lines: Section,
    /// The lines of the host readings that were requested.
    host: Option<Section>,
    /// Bytes of output since the last request for a sample.
    sample_bytes: usize,
    /// The program that runs in the background of the script.
    job: Option<Job>,
    /// Since when programs hang; `None` after a complete sample.
    hangs_since: Option<Instant>,
    /// The longest run of a program that ended.
    longest_run: Duration,
    fields: FieldList,
    sample: Sample,
    known: Known,
    inventory: Option<Inventory>,
    is_inventory_sent: bool,
    sent_facts: HashSet<(u32, Option<u64>)>,
    sequence: u64,
    /// The hello, until its end.
    hello: Option<Hello>,
    /// `None` during a sample and before the hello.
    next_sample: Option<Instant>,
}

/// A program in the background of the script.
#[derive(Debug, Clone, Copy)]
struct Job {
    step: JobStep,
    since: Instant,
    /// When it last printed something; its start before that.
    printed_at: Instant,
    /// It was told to stop, so its output does not count.
    is_stopping: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobStep {
    /// `nvidia-smi`
    Gpus,
    /// `/proc` and `ps`
    Processes,
}

impl Job {
    fn start(step: JobStep) -> Self {
        let now = Instant::now();
        Self { step, since: now, printed_at: now, is_stopping: false }
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
            host: None,
            sample_bytes: 0,
            job: None,
            hangs_since: None,
            longest_run: Duration::ZERO,
            fields: FieldList::default(),
            sample: Sample::default(),
            known: Known::default(),
            inventory: None,
            is_inventory_sent: false,
            sent_facts: HashSet::new(),
            sequence: 0,
            hello: None,
            next_sample: None,
        }
    }

    async fn run(&mut self) {
        let text = script::nvidia_smi(&self.nonce);
        // Lines may have arrived with the answer to the marker.
        if self.send_to_script(&text).await.is_ok() && self.take_lines().await.is_ok() {
            while self.step().await.is_ok() {}
        }
    }

    async fn step(&mut self) -> Result<(), Closed> {
        let mut chunk = [0; 1024];
        let (next_sample, job_deadline) = (self.next_sample, self.job_deadline());
        tokio::select! {
            more = self.shell.stdout.fill() => if more { self.take_lines().await } else { Err(Closed) },
            count = self.session.read(&mut chunk) => match count {
                Ok(count @ 1..) => {
                    self.requests.push(&chunk[..count]);
                    self.take_requests().await
                }
                Ok(0) | Err(_) => Err(Closed),
            },
            () = sleep_until(next_sample.unwrap_or(self.started)), if next_sample.is_some() => self.request_sample().await,
            () = sleep_until(job_deadline.unwrap_or(self.started)), if job_deadline.is_some() => self.on_hang().await,
        }
    }

    /// When the background program hangs, or is to be killed because it does.
    fn job_deadline(&self) -> Option<Instant> {
        let job = self.job.filter(|job| !job.is_stopping)?;
        let (least, most) = HANGS_AFTER;
        let has_hung = job.step == JobStep::Gpus && self.hangs_since.is_some();
        let limit = if has_hung { KILLED_AFTER } else { (3 * self.longest_run).clamp(least, most) };
        Some(job.printed_at + limit)
    }

    async fn request_sample(&mut self) -> Result<(), Closed> {
        self.next_sample = None;
        self.sample_bytes = 0;
        self.host = Some(Section::default());
        let mut text = "host\n".to_owned();
        if let Some(job) = self.job {
            // The last one has not ended: the host readings are all there is.
            self.hangs_since = self.hangs_since.or(Some(job.since));
        } else {
            self.sample = Sample::default();
            self.job = Some(Job::start(JobStep::Gpus));
            // Writing to a string cannot fail.
            let _ = writeln!(text, "gpus {}", self.fields.to_argument());
        }
        self.send_to_script(&text).await
    }

    /// The background program has run for too long.
    async fn on_hang(&mut self) -> Result<(), Closed> {
        let Some(job) = &mut self.job else { return Ok(()) };
        if job.step == JobStep::Gpus && self.hangs_since.is_none() {
            self.hangs_since = Some(job.since);
            self.next_sample = Some(Instant::now());
            return Ok(());
        }
        job.is_stopping = true;
        let step = job.step;
        self.send_to_script("stop\n").await?;
        match step {
            JobStep::Gpus => Ok(()),
            // Without the names of the processes, the readings are complete.
            JobStep::Processes => self.send_sample().await,
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
                // The interval is counted from the end of a sample, whose duration varies, so that a shift would not last.
                Request::Interval { seconds, .. } => {
                    self.interval = Duration::try_from_secs_f32(seconds).unwrap_or(SHORTEST_INTERVAL);
                }
                Request::Resend => {
                    self.is_inventory_sent = false;
                    self.sent_facts.clear();
                    self.next_sample = self.next_sample.map(|_| Instant::now());
                }
                Request::Signal { id, .. }
                | Request::Environment { id, .. }
                | Request::LogTail { id, .. }
                | Request::Examine { id, .. } => {
                    let why = "this host is read through nvidia-smi; the request needs the probe".into();
                    self.send_message(&Message::Reply(Reply { id, outcome: ReplyOutcome::Refused(why) })).await?;
                }
            }
        }
    }

    async fn take_lines(&mut self) -> Result<(), Closed> {
        loop {
            let line = match self.shell.stdout.lines.next_line() {
                Ok(Some(line)) => String::from_utf8_lossy(line).into_owned(),
                Ok(None) => return Ok(()),
                Err(_) => return Err(Closed),
            };
            self.sample_bytes += line.len() + 1;
            if self.sample_bytes > SAMPLE_BYTES {
                let reason = format!("nvidia-smi printed more than {} MiB", SAMPLE_BYTES >> 20).into();
                self.send_message(&Message::Farewell { reason }).await?;
                return Err(Closed);
            }
            self.take_line(&line).await?;
        }
    }

    async fn take_line(&mut self, line: &str) -> Result<(), Closed> {
        let Some(answer) = line.strip_prefix(&*self.nonce).and_then(|rest| rest.strip_prefix(' ')) else {
            // A program that prints does not hang. Answers begin with an empty line.
            if let Some(job) = self.job.as_mut().filter(|_| !line.is_empty()) {
                job.printed_at = Instant::now();
            }
            self.lines.push(line);
            return Ok(());
        };
        let (word, rest) = answer.split_once(' ').unwrap_or((answer, ""));
        match word {
            // The shell itself writes these, while a program in the background writes a section.
            "echo" | "host" => self.lines.interrupt(),
            "status" => {}
            _ => self.end_section(),
        }
        match (word, rest) {
            ("echo", id) => {
                if let Ok(id) = id.parse() {
                    self.send_message(&Message::Echo { id }).await?;
                }
            }
            ("host", "") => self.take_host().await?,
            ("host", line) => {
                if let Some(host) = &mut self.host {
                    host.push(line);
                }
            }
            ("status", status) => {
                let status = Some(status.parse().unwrap_or(-1));
                match &*self.section {
                    "apps" => self.sample.apps.status = status,
                    _ => self.sample.gpus.status = status,
                }
            }
            ("end", _) => match self.hello.take() {
                Some(hello) => {
                    self.send_message(&Message::Hello(hello)).await?;
                    self.next_sample = Some(Instant::now());
                }
                None => self.on_end().await?,
            },
            ("gone", _) => self.job = self.job.filter(|job| !job.is_stopping),
            (section, _) => section.clone_into(&mut self.section),
        }
        Ok(())
    }

    /// Stores the lines of the section that has ended.
    fn end_section(&mut self) {
        let lines = std::mem::take(&mut self.lines).finish();
        match &*std::mem::take(&mut self.section) {
            "hello" => {
                let (hello, addresses) = hello(&lines);
                (self.hello, self.known.addresses) = (Some(hello), addresses);
            }
            "gpus" => self.sample.gpus.lines = lines,
            "apps" => self.sample.apps.lines = lines,
            "processes" => self.sample.processes = lines,
            "users" => self.sample.users = lines,
            _ => {}
        }
    }

    /// The background program has ended. Answers that were not requested are ignored.
    async fn on_end(&mut self) -> Result<(), Closed> {
        let Some(job) = self.job.filter(|job| !job.is_stopping) else {
            self.job = None;
            return Ok(());
        };
        self.longest_run = self.longest_run.max(job.since.elapsed());
        if job.step == JobStep::Gpus {
            if self.sample.is_refused(&self.fields) && self.fields.refuse(&self.sample.gpus.lines) {
                (self.sample.gpus, self.sample.apps) = (Run::default(), Run::default());
                let request = format!("gpus {}\n", self.fields.to_argument());
                return self.send_to_script(&request).await;
            }
            let pids: Vec<String> = self.sample.pids(&self.known).iter().map(u32::to_string).collect();
            if !pids.is_empty() {
                self.job = Some(Job::start(JobStep::Processes));
                return self.send_to_script(&format!("processes {}\n", pids.join(","))).await;
            }
        }
        (self.job, self.hangs_since) = (None, None);
        self.send_sample().await
    }

    /// The host readings are complete. They are all that can be sent while a program hangs.
    async fn take_host(&mut self) -> Result<(), Closed> {
        let Some(host) = self.host.take() else { return Ok(()) };
        self.sample.host = host.finish();
        let (Some(since), Some(job)) = (self.hangs_since, self.job) else { return Ok(()) };
        let seconds = since.elapsed().as_secs();
        let (kind, message) = match job.step {
            JobStep::Gpus => (
                DriverErrorKind::Blocked,
                format!(
                    "nvidia-smi hangs: the NVIDIA driver has not answered for {seconds} s: `sudo dmesg | grep -i nvrm` may \
                     show the reason; usually only a reboot helps"
                ),
            ),
            JobStep::Processes => (
                DriverErrorKind::Unknown,
                format!("`ps` hangs: it has not ended for {seconds} s, so nvidia-smi is not run"),
            ),
        };
        let host = self.sample.host(&mut self.known);
        let driver_error = Some(DriverError { kind, code: None, message: message.into() });
        self.send_snapshot(Snapshot { host, driver_error, ..Snapshot::default() }).await
    }

    async fn send_sample(&mut self) -> Result<(), Closed> {
        let at_seconds = self.started.elapsed().as_secs_f64();
        let readings = std::mem::take(&mut self.sample).readings(&self.fields, at_seconds, &mut self.known);
        let mut inventory = readings.inventory;
        if let (Some(error), Some(why)) = (&mut inventory.error, &self.why)
            && error.kind == DriverErrorKind::NoLibrary
        {
            // Name both reasons: no nvidia-smi and no probe.
            error.message = SafeText::from(format!("{}, and no probe: {why}", error.message));
        }
        inventory.generation = self.inventory.as_ref().map_or(1, |known| known.generation);
        let is_changed = self.inventory.as_ref() != Some(&inventory);
        inventory.generation += u32::from(is_changed && self.inventory.is_some());
        self.is_inventory_sent &= !is_changed;
        self.inventory = Some(inventory);
        let alive: HashSet<_> = readings.facts.iter().map(|facts| (facts.pid, facts.start_ticks)).collect();
        let mut facts = readings.facts;
        facts.retain(|facts| !self.sent_facts.contains(&(facts.pid, facts.start_ticks)));
        self.sent_facts = alive;
        self.send_snapshot(Snapshot {
            host: readings.host,
            gpus: readings.gpus,
            gpu_processes: readings.gpu_processes,
            processes: readings.processes,
            facts,
            processes_left_out: readings.processes_left_out,
            driver_error: readings.driver_error,
            notes: readings.notes,
            ..Snapshot::default()
        })
        .await
    }

    /// Adds number, time and reason to a snapshot and sends it, after the inventory if that is new.
    async fn send_snapshot(&mut self, snapshot: Snapshot) -> Result<(), Closed> {
        if let Some(inventory) = self.inventory.clone().filter(|_| !self.is_inventory_sent) {
            self.is_inventory_sent = true;
            self.send_message(&Message::Inventory(inventory)).await?;
        }
        self.sequence += 1;
        let is_early = self.sequence == 1 && self.job.is_none();
        let pause = if is_early { SECOND_SAMPLE } else { self.interval.max(SHORTEST_INTERVAL) };
        self.next_sample = Some(Instant::now() + pause);
        let why = self.why.iter().map(|why| SafeText::from(format!("via nvidia-smi: {why}")));
        let snapshot = Snapshot {
            sequence: self.sequence,
            generation: self.inventory.as_ref().map_or(0, |inventory| inventory.generation),
            monotonic_seconds: self.started.elapsed().as_secs_f64(),
            wall_unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64,
            interval_seconds: Some(pause.as_secs_f32()),
            notes: snapshot.notes.iter().cloned().chain(why).collect(),
            ..snapshot
        };
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
#[path = "adapter_tests.rs"]
mod tests;
