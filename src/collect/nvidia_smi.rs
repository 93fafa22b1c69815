//! Reads a host through `nvidia-smi`, over the same channel and with the same protocol as the probe.
//!
//! A task translates between the remote script and the session. It is used if hosts.toml says so, and as a fallback if no
//! probe can run; then each snapshot contains the reason. The remote script echoes heartbeats, so they measure the link.

use super::remote_command::RemoteCommand;
use super::script;
use crate::ssh::transport::{Channel, Exit};
use crate::wire::codec::{LineBuffer, MAX_GPUS, decode_json, encode};
use crate::wire::redact::redact;
use crate::wire::{
    DeviceError, DriverError, DriverErrorKind, GpuColumns, GpuInfo, GpuProcessColumns, GpuProcessKind,
    GpuProcessReading, GpuReading, Hello, HostReading, Inventory, Message, PROTOCOL, Presence, ProcessColumns,
    ProcessFacts, ProcessReading, ProcessState, Reply, ReplyOutcome, Request, SafeText, Snapshot,
};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Lower bound of the interval: each sample starts `nvidia-smi`, which initialises the driver if persistence mode is off.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(2);
/// The second sample is early, so that CPU utilisation is available soon.
const SECOND_SAMPLE: Duration = Duration::from_millis(500);

/// Limits of one section of the output. A host with 512 GPUs and 1,024 processes stays below them.
const SECTION_BYTES: usize = 1 << 20;
const SECTION_LINES: usize = 8192;

/// Limit of the output between two samples. A host with 512 GPUs and 1,024 processes stays far below it.
const SAMPLE_BYTES: usize = 8 << 20;

/// Capacity of the pipe to the session.
const PIPE_BYTES: usize = 64 * 1024;

/// Turns a shell that waits for a script into a stream with the protocol of the probe. `why` is the reason why no probe
/// runs, unless hosts.toml selects `nvidia-smi`.
pub(super) fn adapt(shell: RemoteCommand, nonce: String, interval: Duration, why: Option<SafeText>) -> RemoteCommand {
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
    /// Bytes of output since the last request for a sample.
    sample_bytes: usize,
    /// Whether a sample was requested and has not arrived.
    is_sampling: bool,
    sample: Sample,
    previous: PreviousSample,
    inventory: Option<Inventory>,
    sent_facts: HashSet<(u32, Option<u64>)>,
    sequence: u64,
    /// `None` during a sample and before the hello.
    next_sample: Option<Instant>,
}

/// The lines of one section, within the limits.
#[derive(Default)]
struct Section {
    lines: Vec<String>,
    bytes: usize,
}

impl Section {
    /// Adds a line unless it is empty or exceeds the limits.
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
            sample_bytes: 0,
            is_sampling: false,
            sample: Sample::default(),
            previous: PreviousSample::default(),
            inventory: None,
            sent_facts: HashSet::new(),
            sequence: 0,
            next_sample: None,
        }
    }

    async fn run(&mut self) {
        let text = script::nvidia_smi(&self.nonce, &full_fields(), &basic_fields());
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
                Ok(Some(line)) => {
                    self.sample_bytes += line.len() + 1;
                    if self.sample_bytes > SAMPLE_BYTES {
                        let reason = format!("nvidia-smi printed more than {} MiB", SAMPLE_BYTES >> 20).into();
                        self.send_message(&Message::Farewell { reason }).await?;
                        return Err(Closed);
                    }
                    self.take_line(&String::from_utf8_lossy(&line)).await
                }
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
                self.is_sampling = true;
                self.sample_bytes = 0;
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
                    let why = "this host is read through nvidia-smi; the request needs the probe".into();
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
                self.send_message(&Message::Hello(hello(&lines))).await?;
                self.next_sample = Some(Instant::now());
            }
            "gpus" => self.sample.gpus = lines,
            "apps" => self.sample.apps = lines,
            "processes" => self.sample.processes = lines,
            "users" => self.sample.users = lines,
            // A sample that was not requested is dropped.
            "host" if std::mem::take(&mut self.is_sampling) => {
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
            // Name both reasons: no nvidia-smi and no probe.
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

/// Fields of `--query-gpu` that every `nvidia-smi` of the last ten years supports.
const BASIC: [&str; 14] = [
    "index",
    "uuid",
    "name",
    "pci.bus_id",
    "driver_version",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "utilization.memory",
    "temperature.gpu",
    "power.draw",
    "enforced.power.limit",
    "fan.speed",
    "pstate",
];

/// Further fields of newer versions.
const NEWER: [&str; 13] = [
    "memory.reserved",
    "temperature.memory",
    "power.max_limit",
    "clocks.gr",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.gr",
    "clocks.max.sm",
    "clocks.max.mem",
    "pcie.link.gen.current",
    "pcie.link.width.current",
    "mig.mode.current",
    "clocks_throttle_reasons.active",
];

/// `USER_HZ`, the unit of times in `/proc`: 100 on every architecture that NVIDIA's driver runs on.
const TICKS_PER_SECOND: f64 = 100.0;
const PAGE_BYTES: u64 = 4096;
const MIB: u64 = 1 << 20;

/// Limit of processes, and of entries for processes on GPUs. The snapshot with all process facts must fit in one line of
/// the wire.
const MAX_PROCESSES: usize = 1024;
/// Limit of one command line in bytes, as in the probe.
const MAX_COMMAND_BYTES: usize = 4096;
/// Limit of all command lines of a sample in bytes. Processes beyond it have no arguments.
const MAX_COMMANDS_BYTES: usize = 128 * 1024;

/// Field list for old versions of `nvidia-smi`.
fn basic_fields() -> String {
    BASIC.join(",")
}

/// Field list for new versions of `nvidia-smi`.
fn full_fields() -> String {
    format!("{},{}", BASIC.join(","), NEWER.join(","))
}

/// The lines of one sample, by section.
#[derive(Debug, Default)]
struct Sample {
    /// Exit status of `nvidia-smi`, which is NVML's return code.
    status: i32,
    gpus: Vec<String>,
    apps: Vec<String>,
    processes: Vec<String>,
    users: Vec<String>,
    host: Vec<String>,
}

/// Counters of `/proc/stat` and of the processes, for the rates of the next sample.
#[derive(Debug, Clone, Default)]
struct PreviousSample {
    at_seconds: f64,
    cpu: Option<CpuTimes>,
    process_seconds: HashMap<(u32, u64), f64>,
}

/// One sample as wire types.
#[derive(Debug, Default)]
struct Readings {
    inventory: Inventory,
    host: HostReading,
    gpus: GpuColumns,
    gpu_processes: GpuProcessColumns,
    processes: ProcessColumns,
    facts: Vec<ProcessFacts>,
    processes_left_out: u32,
}

#[derive(Debug, Clone, Copy)]
struct CpuTimes {
    idle: u64,
    io_wait: u64,
    all: u64,
}

/// Parses the `hello` section.
fn hello(lines: &[String]) -> Hello {
    let value = |key: &str| {
        lines.iter().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')).filter(|value| !value.is_empty())
    };
    let text = |key| value(key).map(SafeText::new);
    Hello {
        protocol: PROTOCOL,
        probe_version: env!("CARGO_PKG_VERSION").into(),
        boot_id: text("boot_id"),
        host_name: text("host_name"),
        login_user: text("login_user"),
        login_uid: value("login_uid").and_then(|uid| uid.parse().ok()),
        kernel: text("kernel"),
        arch: text("arch"),
        cpu_count: value("cpu_count").and_then(|count| count.parse().ok()),
        memory_total_bytes: None,
        scope: None,
        source: Some(crate::wire::ReadingSource::NvidiaSmi),
        probe_pid: None,
    }
}

impl Sample {
    /// Converts the sample to wire types. `at_seconds` is the clock of the controller; rates cover the time since
    /// `before`, which this call replaces.
    fn readings(&self, at_seconds: f64, before: &mut PreviousSample) -> Readings {
        let rows: Vec<Vec<&str>> = self
            .gpus
            .iter()
            .map(|line| line.split(", ").map(str::trim).collect::<Vec<_>>())
            .filter(|cells| cells.len() == BASIC.len() || cells.len() == BASIC.len() + NEWER.len())
            .take(MAX_GPUS)
            .collect();
        let rows: Vec<Row<'_>> = rows.iter().map(|cells| Row(cells)).collect();
        let mut inventory = Inventory {
            driver_version: rows.iter().find_map(|row| row.text("driver_version")),
            gpus: rows.iter().map(Row::info).collect(),
            ..Inventory::default()
        };
        if rows.is_empty() {
            inventory.error = Some(self.driver_error());
        }
        let (cpu, host) = self.host(before.cpu);
        let span = at_seconds - before.at_seconds;
        // The script prints a process once per GPU.
        let mut seen = HashSet::new();
        let mut stats: Vec<Stat<'_>> = self.processes.iter().filter_map(|line| Stat::parse(line)).collect();
        stats.retain(|stat| seen.insert(stat.pid));
        let processes_left_out = u32::try_from(stats.len().saturating_sub(MAX_PROCESSES)).unwrap_or(u32::MAX);
        stats.truncate(MAX_PROCESSES);
        let uptime = host.uptime_seconds;
        let process = |stat: &Stat<'_>| {
            let earlier = before.process_seconds.get(&(stat.pid, stat.start_ticks)).filter(|_| span > 0.0);
            ProcessReading {
                pid: Some(stat.pid),
                start_ticks: Some(stat.start_ticks),
                presence: Some(Presence::Visible),
                state: Some(stat.state),
                cpu_percent: earlier.map(|earlier| ((stat.cpu_seconds - earlier).max(0.0) / span * 100.0) as f32),
                cpu_seconds: Some(stat.cpu_seconds),
                rss_bytes: Some(stat.rss_bytes),
                threads: Some(stat.threads),
                age_seconds: uptime.map(|uptime| (uptime - stat.start_ticks as f64 / TICKS_PER_SECOND).max(0.0)),
                ..ProcessReading::default()
            }
        };
        let processes: Vec<ProcessReading> = stats.iter().map(process).collect();
        let readings = Readings {
            gpus: GpuColumns::from_rows(&rows.iter().map(Row::reading).collect::<Vec<_>>()),
            gpu_processes: GpuProcessColumns::from_rows(&self.gpu_processes(&inventory.gpus)),
            processes: ProcessColumns::from_rows(&processes),
            facts: self.facts(&stats),
            processes_left_out,
            inventory,
            host,
        };
        let process_seconds = stats.iter().map(|stat| ((stat.pid, stat.start_ticks), stat.cpu_seconds)).collect();
        *before = PreviousSample { at_seconds, cpu, process_seconds };
        readings
    }

    fn driver_error(&self) -> DriverError {
        let output = self.gpus.iter().rfind(|line| !line.trim().is_empty()).map(|line| line.trim());
        let lower = output.unwrap_or_default().to_lowercase();
        let kind = match self.status {
            _ if lower.contains("version mismatch") => DriverErrorKind::VersionMismatch,
            0 | 6 => DriverErrorKind::NoGpus,
            4 => DriverErrorKind::NoPermission,
            9 => DriverErrorKind::DriverNotLoaded,
            // 127 is the status of a shell for a missing program.
            12 | 127 => DriverErrorKind::NoLibrary,
            15 => DriverErrorKind::GpuLost,
            16 => DriverErrorKind::ResetRequired,
            18 => DriverErrorKind::VersionMismatch,
            _ => DriverErrorKind::Unknown,
        };
        let message = match (kind, output) {
            (DriverErrorKind::NoLibrary, _) => "there is no nvidia-smi on this host".into(),
            (_, Some(output)) => SafeText::new(output),
            (_, None) => SafeText::new(&format!("nvidia-smi ended with exit status {}", self.status)),
        };
        DriverError { kind, code: (self.status < 126).then_some(self.status), message }
    }

    fn host(&self, before: Option<CpuTimes>) -> (Option<CpuTimes>, HostReading) {
        let after = |key: &str| self.host.iter().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let bytes = |key| after(key).and_then(|value| value.parse::<u64>().ok()).map(|kib| kib.saturating_mul(1024));
        let mut loads = after("/proc/loadavg").unwrap_or_default().split(' ').map(|load| load.parse().ok());
        let cpu = after("/proc/stat").and_then(CpuTimes::parse);
        let spans = before.zip(cpu).and_then(|(before, now)| {
            let all = now.all.checked_sub(before.all).filter(|all| *all > 0)? as f32;
            let waited = now.io_wait.saturating_sub(before.io_wait) as f32;
            Some((100.0 * (all - now.idle.saturating_sub(before.idle) as f32 - waited) / all, 100.0 * waited / all))
        });
        let reading = HostReading {
            cpu_percent: spans.map(|(busy, _)| busy.clamp(0.0, 100.0)),
            io_wait_percent: spans.map(|(_, waited)| waited.clamp(0.0, 100.0)),
            load_1: loads.next().flatten(),
            load_5: loads.next().flatten(),
            load_15: loads.next().flatten(),
            memory_total_bytes: bytes("MemTotal:"),
            memory_available_bytes: bytes("MemAvailable:"),
            swap_total_bytes: bytes("SwapTotal:"),
            swap_free_bytes: bytes("SwapFree:"),
            uptime_seconds: after("/proc/uptime").and_then(|text| text.split(' ').next()?.parse().ok()),
            ..HostReading::default()
        };
        (cpu, reading)
    }

    fn gpu_processes(&self, gpus: &[GpuInfo]) -> Vec<GpuProcessReading> {
        let positions: HashMap<&str, usize> =
            gpus.iter().enumerate().filter_map(|(position, gpu)| Some((gpu.uuid.as_deref()?, position))).collect();
        let row = |line: &String| {
            let mut cells = line.split(", ").map(str::trim);
            let uuid = cells.next()?;
            let position = *positions.get(uuid)?;
            let pid = cells.next()?.parse().ok()?;
            let memory = cells.next().and_then(|mib| mib.parse::<u64>().ok());
            Some(GpuProcessReading {
                pid: Some(pid),
                gpu: u16::try_from(position).ok(),
                kind: Some(GpuProcessKind::Compute),
                gpu_memory_bytes: memory.map(|mib| mib.saturating_mul(MIB)),
                ..GpuProcessReading::default()
            })
        };
        self.apps.iter().filter_map(row).take(MAX_PROCESSES).collect()
    }

    fn facts(&self, stats: &[Stat<'_>]) -> Vec<ProcessFacts> {
        let users: HashMap<u32, (&str, &str, &str)> = self
            .users
            .iter()
            .filter_map(|line| {
                let (pid, rest) = line.trim_start().split_once(' ')?;
                let (uid, rest) = rest.trim_start().split_once(' ')?;
                let (user, command) = rest.trim_start().split_once(' ').unwrap_or((rest, ""));
                Some((pid.parse().ok()?, (uid, user, command.trim())))
            })
            .collect();
        let mut room = MAX_COMMANDS_BYTES;
        let fact = |stat: &Stat<'_>| {
            let (uid, user, command) = users.get(&stat.pid).copied().unwrap_or_default();
            // The probe redacts on the host; here the controller must do it.
            let end = command.char_indices().map(|(end, _)| end).take_while(|end| *end <= MAX_COMMAND_BYTES).last();
            let command = if command.len() <= MAX_COMMAND_BYTES { command } else { &command[..end.unwrap_or(0)] };
            let command = if command.len() <= room { command } else { "" };
            room -= command.len();
            let argv = redact(&command.split_whitespace().collect::<Vec<_>>());
            ProcessFacts {
                pid: stat.pid,
                start_ticks: Some(stat.start_ticks),
                uid: uid.parse().ok(),
                user: (!user.is_empty()).then(|| SafeText::new(user)),
                name: Some(SafeText::new(stat.name)),
                argv: argv.iter().map(|argument| SafeText::new(argument)).collect(),
                session: Some(stat.session),
                ..ProcessFacts::default()
            }
        };
        stats.iter().map(fact).collect()
    }
}

/// A line of `--query-gpu`.
struct Row<'a>(&'a [&'a str]);

impl Row<'_> {
    fn cell(&self, field: &str) -> Option<&str> {
        let at = BASIC.iter().chain(&NEWER).position(|name| *name == field)?;
        // Unknown values are in brackets: [N/A], [Not Supported], [Unknown Error], [GPU is lost].
        self.0.get(at).copied().filter(|cell| !cell.starts_with('[') && !cell.is_empty() && *cell != "N/A")
    }

    fn text(&self, field: &str) -> Option<SafeText> {
        self.cell(field).map(SafeText::new)
    }

    fn number<T: std::str::FromStr>(&self, field: &str) -> Option<T> {
        self.cell(field)?.parse().ok()
    }

    fn mib(&self, field: &str) -> Option<u64> {
        self.number::<u64>(field).map(|mib| mib.saturating_mul(MIB))
    }

    fn info(&self) -> GpuInfo {
        GpuInfo {
            index: self.number("index").unwrap_or_default(),
            uuid: self.text("uuid"),
            name: self.text("name"),
            pci_bus_id: self.text("pci.bus_id"),
            memory_total_bytes: self.mib("memory.total").filter(|total| *total > 0),
            power_limit_watts: self.number("enforced.power.limit"),
            power_limit_max_watts: self.number("power.max_limit"),
            clock_graphics_max_mhz: self.number("clocks.max.gr"),
            clock_sm_max_mhz: self.number("clocks.max.sm"),
            clock_memory_max_mhz: self.number("clocks.max.mem"),
            mig_enabled: self.cell("mig.mode.current").map(|mode| mode == "Enabled"),
            ..GpuInfo::default()
        }
    }

    fn reading(&self) -> GpuReading {
        GpuReading {
            error: self.error(),
            utilization_percent: self.number("utilization.gpu"),
            memory_utilization_percent: self.number("utilization.memory"),
            memory_used_bytes: self.mib("memory.used"),
            memory_reserved_bytes: self.mib("memory.reserved"),
            temperature_celsius: self.number("temperature.gpu"),
            memory_temperature_celsius: self.number("temperature.memory"),
            power_watts: self.number("power.draw"),
            clock_graphics_mhz: self.number("clocks.gr"),
            clock_sm_mhz: self.number("clocks.sm"),
            clock_memory_mhz: self.number("clocks.mem"),
            fan_percent: self.number("fan.speed"),
            performance_state: self.cell("pstate").and_then(|state| state.strip_prefix('P')?.parse().ok()),
            clocks_event_reasons: self
                .cell("clocks_throttle_reasons.active")
                .and_then(|mask| u64::from_str_radix(mask.strip_prefix("0x")?, 16).ok()),
            pcie_generation: self.number("pcie.link.gen.current"),
            pcie_width: self.number("pcie.link.width.current"),
            ..GpuReading::default()
        }
    }

    fn error(&self) -> Option<DeviceError> {
        let kinds =
            [("[GPU is lost]", DriverErrorKind::GpuLost), ("[GPU requires reset]", DriverErrorKind::ResetRequired)];
        kinds.into_iter().find(|(words, _)| self.0.contains(words)).map(|(words, kind)| DeviceError {
            kind,
            code: None,
            message: SafeText::new(words.trim_matches(['[', ']'])),
        })
    }
}

/// Fields of `/proc/PID/stat` (proc(5)).
struct Stat<'a> {
    pid: u32,
    name: &'a str,
    state: ProcessState,
    session: u32,
    cpu_seconds: f64,
    threads: u32,
    start_ticks: u64,
    rss_bytes: u64,
}

impl<'a> Stat<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (pid, rest) = line.split_once(" (")?;
        // The name may contain parentheses; it ends at the last one.
        let (name, rest) = rest.rsplit_once(") ")?;
        // The first field here is field 3 of proc(5).
        let fields: Vec<&str> = rest.split(' ').collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            pid: pid.parse().ok()?,
            name,
            state: ProcessState::from_letter(fields.first()?.chars().next()?),
            session: u32::try_from(field(6)?).ok()?,
            cpu_seconds: field(14)?.saturating_add(field(15)?) as f64 / TICKS_PER_SECOND,
            threads: u32::try_from(field(20)?).ok()?,
            start_ticks: field(22)?,
            rss_bytes: field(24)?.saturating_mul(PAGE_BYTES),
        })
    }
}

impl CpuTimes {
    /// Parses `cpu  user nice system idle iowait irq softirq steal ...`. User time includes guest time.
    fn parse(line: &str) -> Option<Self> {
        let times: Vec<u64> =
            line.strip_prefix("cpu")?.split_whitespace().map_while(|time| time.parse().ok()).collect();
        Some(Self {
            idle: *times.get(3)?,
            io_wait: *times.get(4)?,
            all: times.iter().take(8).fold(0, |all, time| u64::saturating_add(all, *time)),
        })
    }
}

/// Reads two equal samples. A line that begins with `=` names the section of the lines after it. The snapshot is within the
/// limits of the wire.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (mut section, mut sample, mut lines) = ("", Sample::default(), Section::default());
    for line in text.lines().chain(["=end"]) {
        let Some(next) = line.strip_prefix('=') else {
            lines.push(line);
            continue;
        };
        let read = std::mem::take(&mut lines).lines;
        match section {
            "hello" => drop(hello(&read)),
            "gpus" => sample.gpus = read,
            "apps" => sample.apps = read,
            "processes" => sample.processes = read,
            "users" => sample.users = read,
            "host" => sample.host = read,
            _ => sample.status = section.parse().unwrap_or(sample.status),
        }
        section = next;
    }
    let mut previous = PreviousSample::default();
    for at_seconds in [1.0, 3.0] {
        let readings = sample.readings(at_seconds, &mut previous);
        let snapshot = Snapshot {
            host: readings.host,
            gpus: readings.gpus,
            gpu_processes: readings.gpu_processes,
            processes: readings.processes,
            facts: readings.facts,
            ..Snapshot::default()
        };
        for message in [Message::Inventory(readings.inventory), Message::Snapshot(Box::new(snapshot))] {
            let Ok(line) = encode(&message) else { panic!("{message:?} cannot be encoded") };
            assert!(line.len() <= crate::wire::codec::MAX_LINE_BYTES, "{} bytes", line.len());
            let decoded = crate::wire::codec::decode(line.trim_ascii_end());
            assert!(decoded.is_ok(), "{decoded:?}");
        }
    }
}

#[cfg(test)]
#[path = "nvidia_smi_tests.rs"]
mod tests;
