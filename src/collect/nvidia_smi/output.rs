//! Converts the output of one sample to wire types.
//!
//! `nvidia-smi` prints rows and messages, and its exit status says little about both: it may list seven of eight GPUs and
//! end with 0, 15 or 255. So every row counts, whatever the status is, and the rest of the text becomes a note, the error of
//! a GPU, or the error of the driver if no GPU is listed.

use super::fields::{FieldList, refused_field};
use super::lines::{CpuTimes, NamedGpu, PciAddress, Stat, TICKS_PER_SECOND};
use crate::wire::codec::MAX_GPUS;
use crate::wire::redact::redact;
use crate::wire::{
    DeviceError, DriverError, DriverErrorKind, GpuColumns, GpuInfo, GpuProcessColumns, GpuProcessKind,
    GpuProcessReading, GpuReading, Hello, HostReading, Inventory, PROTOCOL, Presence, ProcessColumns, ProcessFacts,
    ProcessReading, SafeText,
};
use std::collections::{HashMap, HashSet};

const MIB: u64 = 1 << 20;

/// Limit of processes, and of entries for processes on GPUs. The snapshot with all process facts must fit in one line of
/// the wire.
const MAX_PROCESSES: usize = 1024;
/// Limit of one command line in bytes, as in the probe.
const MAX_COMMAND_BYTES: usize = 4096;
/// Limit of all command lines of a sample in bytes. Processes beyond it have no arguments.
const MAX_COMMANDS_BYTES: usize = 128 * 1024;
/// Limit of the text of a message in characters.
const MAX_MESSAGE_CHARACTERS: usize = 400;

/// The output of one run of `nvidia-smi`, and its exit status: a return code of NVML or another one (see the
/// man page). `None` if it has not ended.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) status: Option<i32>,
    pub(super) lines: Vec<String>,
}

/// `WARNING: infoROM is corrupted`, after everything was printed (man page of nvidia-smi).
const CORRUPTED_INFOROM: i32 = 14;

impl Run {
    /// The status with the message, such as `exit status 15: Unable to determine ...`; `None` for a run without either.
    fn problem(&self, message: &str) -> Option<String> {
        match (self.status.unwrap_or(0), message) {
            (0, "") => None,
            (0, message) => Some(message.to_owned()),
            (status, "") => Some(format!("exit status {status}")),
            (status, message) => Some(format!("exit status {status}: {message}")),
        }
    }
}

/// The output of one sample.
#[derive(Debug, Default)]
pub(super) struct Sample {
    /// `--query-gpu`
    pub(super) gpus: Run,
    /// `--query-compute-apps`
    pub(super) apps: Run,
    /// `/proc/PID/stat` of the processes.
    pub(super) processes: Vec<String>,
    /// `ps` of the processes.
    pub(super) users: Vec<String>,
    /// Lines of files in `/proc`, each after its key.
    pub(super) host: Vec<String>,
}

/// The values of earlier samples that later ones need.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// The PCI addresses of all GPUs in ascending order, which is the order of the indexes. Empty if unknown.
    pub(super) addresses: Vec<PciAddress>,
    /// The GPUs of the last sample that listed one.
    gpus: Vec<GpuInfo>,
    driver_version: Option<SafeText>,
    /// Time of the last sample, in seconds of the controller's clock.
    at_seconds: f64,
    cpu: Option<CpuTimes>,
    /// CPU time of each process.
    process_seconds: HashMap<(u32, u64), f64>,
    /// GPU, pid and start time of the last listed processes.
    listed: Vec<(SafeText, u32, Option<u64>)>,
}

/// One sample as wire types.
#[derive(Debug, Default)]
pub(super) struct Readings {
    pub(super) inventory: Inventory,
    pub(super) host: HostReading,
    pub(super) gpus: GpuColumns,
    pub(super) gpu_processes: GpuProcessColumns,
    pub(super) processes: ProcessColumns,
    pub(super) facts: Vec<ProcessFacts>,
    pub(super) processes_left_out: u32,
    /// Why no GPU can be read, although GPUs could be before.
    pub(super) driver_error: Option<DriverError>,
    pub(super) notes: Vec<SafeText>,
}

/// Parses the `hello` section. Returns the addresses of the GPUs as well.
pub(super) fn hello(lines: &[String]) -> (Hello, Vec<PciAddress>) {
    let values = |key: &'static str| {
        lines.iter().filter_map(move |line| line.strip_prefix(key)?.strip_prefix(' ')).filter(|value| !value.is_empty())
    };
    let text = |key| values(key).next().map(SafeText::new);
    let number = |key| values(key).next().and_then(|number| number.parse().ok());
    let mut addresses: Vec<PciAddress> = values("gpu").filter_map(PciAddress::parse).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let hello = Hello {
        protocol: PROTOCOL,
        probe_version: env!("CARGO_PKG_VERSION").into(),
        boot_id: text("boot_id"),
        host_name: text("host_name"),
        login_user: text("login_user"),
        login_uid: number("login_uid"),
        kernel: text("kernel"),
        arch: text("arch"),
        cpu_count: number("cpu_count"),
        memory_total_bytes: None,
        scope: None,
        source: Some(crate::wire::ReadingSource::NvidiaSmi),
        probe_pid: None,
        probe_sha256: None,
    };
    (hello, addresses)
}

/// A GPU of one sample.
#[derive(Debug, Default)]
struct ListedGpu {
    index: Option<u32>,
    address: Option<PciAddress>,
    info: GpuInfo,
    reading: GpuReading,
}

impl ListedGpu {
    fn is(&self, named: &NamedGpu) -> bool {
        (named.address.is_some() && self.address == named.address)
            || (named.index.is_some() && self.index == named.index)
    }

    /// Whether the row does not tell which GPU it describes.
    fn is_anonymous(&self) -> bool {
        self.index.is_none() && self.address.is_none() && self.info.uuid.is_none()
    }

    /// Adds the index and the facts that an earlier sample gave for the same GPU.
    fn complete(&mut self, known: &[GpuInfo]) {
        let address = |info: &GpuInfo| info.pci_bus_id.as_deref().and_then(PciAddress::parse);
        let is_same = |info: &&GpuInfo| match (&self.info.uuid, self.address, self.index) {
            (Some(uuid), ..) => info.uuid.as_ref() == Some(uuid),
            (None, Some(own), _) => address(info) == Some(own),
            (None, None, Some(index)) => info.index == index,
            (None, None, None) => false,
        };
        let Some(known) = known.iter().find(is_same) else { return };
        (self.index, self.address) = (self.index.or(Some(known.index)), self.address.or(address(known)));
        let own = std::mem::take(&mut self.info);
        self.info = GpuInfo {
            index: own.index,
            uuid: own.uuid.or_else(|| known.uuid.clone()),
            name: own.name.or_else(|| known.name.clone()),
            pci_bus_id: own.pci_bus_id.or_else(|| known.pci_bus_id.clone()),
            memory_total_bytes: own.memory_total_bytes.or(known.memory_total_bytes),
            power_limit_watts: own.power_limit_watts.or(known.power_limit_watts),
            power_limit_max_watts: own.power_limit_max_watts.or(known.power_limit_max_watts),
            clock_graphics_max_mhz: own.clock_graphics_max_mhz.or(known.clock_graphics_max_mhz),
            clock_sm_max_mhz: own.clock_sm_max_mhz.or(known.clock_sm_max_mhz),
            clock_memory_max_mhz: own.clock_memory_max_mhz.or(known.clock_memory_max_mhz),
            mig_enabled: own.mig_enabled.or(known.mig_enabled),
            ..own
        };
    }
}

impl Sample {
    /// Whether `nvidia-smi` refused the list of fields.
    pub(super) fn is_refused(&self, fields: &FieldList) -> bool {
        let has_rows = self.gpus.lines.iter().any(|line| Row::parse(line, fields).is_some());
        !has_rows && (self.gpus.status == Some(2) || self.gpus.lines.iter().any(|line| refused_field(line).is_some()))
    }

    /// The pids whose `/proc` is to be read, ascending: those on a GPU, and those that were on one if the list is not
    /// complete now.
    pub(super) fn pids(&self, known: &Known) -> Vec<u32> {
        let mut pids: Vec<u32> = self.apps.lines.iter().filter_map(|line| AppRow::parse(line)?.pid).collect();
        if !self.has_all_processes() {
            pids.extend(known.listed.iter().map(|(_, pid, _)| *pid));
        }
        pids.sort_unstable();
        pids.dedup();
        // Twice as many, so that the number of those left out is known.
        pids.truncate(2 * MAX_PROCESSES);
        pids
    }

    /// Whether the list of processes is complete. An empty list of a run that failed is not.
    fn has_all_processes(&self) -> bool {
        let has_rows = || self.apps.lines.iter().any(|line| AppRow::parse(line).is_some());
        match self.apps.status {
            Some(0) => has_rows() || self.apps.lines.iter().all(|line| is_empty_list(line)),
            Some(CORRUPTED_INFOROM) => has_rows(),
            _ => false,
        }
    }

    /// Converts the sample to wire types. `at_seconds` is the clock of the controller; rates cover the time since the
    /// last sample in `known`, which this call updates.
    pub(super) fn readings(&self, fields: &FieldList, at_seconds: f64, known: &mut Known) -> Readings {
        let rows: Vec<Row<'_>> = self.gpus.lines.iter().filter_map(|line| Row::parse(line, fields)).collect();
        let (gpus, message) = self.list_gpus(fields, &rows, known);
        let problem = self.gpus.problem(&message);
        let mut readings = Readings::default();
        let mut columns: Vec<GpuReading> = Vec::new();
        if gpus.is_empty() {
            let error = self.driver_error(&message);
            readings.inventory = Inventory {
                driver_version: known.driver_version.clone(),
                gpus: known.gpus.clone(),
                ..Inventory::default()
            };
            if known.gpus.is_empty() {
                readings.inventory.error = Some(error);
            } else {
                readings.driver_error = Some(error);
            }
        } else {
            readings.notes.extend(problem.map(|problem| SafeText::from(format!("nvidia-smi: {problem}"))));
            known.driver_version =
                rows.iter().find_map(|row| row.text("driver_version")).or(known.driver_version.take());
            known.gpus = gpus.iter().map(|gpu| gpu.info.clone()).collect();
            columns = gpus.into_iter().map(|gpu| gpu.reading).collect();
            readings.inventory = Inventory {
                driver_version: known.driver_version.clone(),
                gpus: known.gpus.clone(),
                ..Inventory::default()
            };
        }
        let stats = self.stats();
        let is_complete = self.has_all_processes();
        if !is_complete && !columns.is_empty() {
            columns.iter_mut().filter(|gpu| gpu.error.is_none()).for_each(|gpu| gpu.processes_unknown = Some(true));
            readings.notes.push(self.why_incomplete());
        }
        let gpu_processes = self.gpu_processes(&known.gpus, &stats, &known.listed, is_complete);
        readings.gpus = GpuColumns::from_rows(&columns);
        readings.processes_left_out = u32::try_from(stats.len().saturating_sub(MAX_PROCESSES)).unwrap_or(u32::MAX);
        let stats = &stats[..stats.len().min(MAX_PROCESSES)];
        readings.host = self.host(known);
        let processes = read_processes(stats, &readings.host, at_seconds, known);
        readings.processes = ProcessColumns::from_rows(&processes);
        readings.facts = self.facts(stats);
        known.at_seconds = at_seconds;
        known.process_seconds = stats.iter().map(|stat| ((stat.pid, stat.start_ticks), stat.cpu_seconds)).collect();
        if readings.driver_error.is_none() {
            let starts: HashMap<u32, u64> = stats.iter().map(|stat| (stat.pid, stat.start_ticks)).collect();
            let listed = gpu_processes.iter().filter_map(|row| {
                let uuid = known.gpus.get(usize::from(row.gpu?))?.uuid.clone()?;
                Some((uuid, row.pid?, starts.get(&row.pid?).copied()))
            });
            known.listed = listed.collect();
            readings.gpu_processes = GpuProcessColumns::from_rows(&gpu_processes);
        }
        readings
    }

    /// The GPUs by ascending index, and the text that is neither a row nor empty.
    fn list_gpus(&self, fields: &FieldList, rows: &[Row<'_>], known: &Known) -> (Vec<ListedGpu>, String) {
        let mut gpus: Vec<ListedGpu> = rows.iter().take(MAX_GPUS).map(Row::gpu).collect();
        for gpu in &mut gpus {
            gpu.complete(&known.gpus);
        }
        let from_rows = gpus.len();
        let other = self.gpus.lines.iter().filter(|line| Row::parse(line, fields).is_none());
        let message = join_messages(other.clone().map(String::as_str));
        // The errors come in the order of the rows without a value, before, between or after them.
        for named in other.filter_map(|line| NamedGpu::parse(line)).take(MAX_GPUS) {
            let at = gpus.iter().position(|gpu| gpu.is(&named));
            let at = at.or_else(|| gpus.iter().position(|gpu| gpu.is_anonymous() && gpu.reading.error.is_some()));
            let at = at.unwrap_or_else(|| {
                gpus.push(ListedGpu { reading: failed(named.error.clone()), ..ListedGpu::default() });
                gpus.len() - 1
            });
            let gpu = &mut gpus[at];
            (gpu.index, gpu.address) = (gpu.index.or(named.index), gpu.address.or(named.address));
            if gpu.reading.error.is_some() {
                gpu.reading = failed(named.error);
            }
            gpu.complete(&known.gpus);
        }
        for gpu in &mut gpus {
            let rank = || known.addresses.iter().position(|address| Some(*address) == gpu.address);
            gpu.index = gpu.index.or_else(|| u32::try_from(rank()?).ok());
        }
        // A row without an index has its place among the others. If there are no rows, the index of a GPU that only an
        // error names is unknown.
        let mut taken: HashSet<u32> = gpus.iter().filter_map(|gpu| gpu.index).collect();
        let mut next = 0;
        for (position, gpu) in gpus.iter_mut().enumerate().filter(|_| from_rows > 0) {
            if gpu.index.is_none() {
                let first = if position < from_rows { next } else { 0 };
                gpu.index = (first..=u32::MAX).chain(0..first).find(|index| !taken.contains(index));
                taken.extend(gpu.index);
            }
            next = gpu.index.map_or(next, |index| index.saturating_add(1));
        }
        gpus.retain(|gpu| gpu.index.is_some());
        gpus.truncate(MAX_GPUS);
        gpus.sort_by_key(|gpu| gpu.index);
        for gpu in &mut gpus {
            gpu.info.index = gpu.index.unwrap_or_default();
            let address = gpu.address.map(|address| SafeText::new(&address.to_string()));
            gpu.info.pci_bus_id = gpu.info.pci_bus_id.take().or(address);
        }
        (gpus, message)
    }

    /// The error of a driver that shows no GPU.
    fn driver_error(&self, message: &str) -> DriverError {
        let status = self.gpus.status.unwrap_or(0);
        let lower = message.to_lowercase();
        let has = |words: &[&str]| words.iter().any(|words| lower.contains(words));
        let kind = match status {
            _ if has(&["version mismatch"]) => DriverErrorKind::VersionMismatch,
            _ if has(&["insufficient permissions", "permission denied", "do not have permission"]) => {
                DriverErrorKind::NoPermission
            }
            _ if has(&["couldn't communicate with the nvidia driver", "driver not loaded"]) => {
                DriverErrorKind::DriverNotLoaded
            }
            _ if has(&["couldn't find libnvidia-ml", "library not found"]) => DriverErrorKind::NoLibrary,
            _ if has(&["requires reset"]) => DriverErrorKind::ResetRequired,
            _ if has(&["gpu is lost", "unable to determine the device handle"]) => DriverErrorKind::GpuLost,
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
        let message = match (status, message) {
            // The loader ends with this status, too: `error while loading shared libraries`.
            (127, _) if !has(&["shared librar"]) => "there is no nvidia-smi on this host".to_owned(),
            (status, "") => format!("nvidia-smi ended with exit status {status}"),
            (_, message) => message.to_owned(),
        };
        DriverError { kind, code: (status < 126).then_some(status), message: message.into() }
    }

    /// Describes why processes may be missing.
    fn why_incomplete(&self) -> SafeText {
        let other = self.apps.lines.iter().filter(|line| AppRow::parse(line).is_none());
        let problem = self.apps.problem(&join_messages(other.map(String::as_str)));
        let why = match (&problem, self.apps.status) {
            (Some(problem), _) => problem.as_str(),
            (None, Some(_)) => "nothing was printed",
            (None, None) => "it was not queried",
        };
        SafeText::from(format!("nvidia-smi: the list of processes may be incomplete: {why}"))
    }

    pub(super) fn host(&self, known: &mut Known) -> HostReading {
        let after = |key: &str| self.host.iter().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let bytes = |key| after(key).and_then(|value| value.parse::<u64>().ok()).map(|kib| kib.saturating_mul(1024));
        let arc = |key| after(key).and_then(|value| value.parse::<u64>().ok());
        // The kernel does not count the cache of ZFS as available.
        let reclaimable_arc_bytes =
            arc("arc size").zip(arc("arc c_min")).map_or(0, |(size, least)| size.saturating_sub(least));
        let mut loads = after("/proc/loadavg").unwrap_or_default().split(' ').map(|load| load.parse().ok());
        let cpu = after("/proc/stat").and_then(CpuTimes::parse);
        let spans = known.cpu.zip(cpu).and_then(|(before, now)| {
            let all = now.all.checked_sub(before.all).filter(|all| *all > 0)? as f32;
            let waited = now.io_wait.saturating_sub(before.io_wait) as f32;
            Some((100.0 * (all - now.idle.saturating_sub(before.idle) as f32 - waited) / all, 100.0 * waited / all))
        });
        known.cpu = cpu;
        HostReading {
            cpu_percent: spans.map(|(busy, _)| busy.clamp(0.0, 100.0)),
            io_wait_percent: spans.map(|(_, waited)| waited.clamp(0.0, 100.0)),
            load_1: loads.next().flatten(),
            load_5: loads.next().flatten(),
            load_15: loads.next().flatten(),
            memory_total_bytes: bytes("MemTotal:"),
            memory_available_bytes: bytes("MemAvailable:").map(|bytes| bytes.saturating_add(reclaimable_arc_bytes)),
            swap_total_bytes: bytes("SwapTotal:"),
            swap_free_bytes: bytes("SwapFree:"),
            uptime_seconds: after("/proc/uptime").and_then(|text| text.split(' ').next()?.parse().ok()),
            ..HostReading::default()
        }
    }

    /// The processes that exist, each once, since a process is listed once per GPU.
    fn stats(&self) -> Vec<Stat<'_>> {
        let mut seen = HashSet::new();
        let mut stats: Vec<Stat<'_>> = self.processes.iter().filter_map(|line| Stat::parse(line)).collect();
        stats.retain(|stat| seen.insert(stat.pid));
        stats
    }

    /// The processes on GPUs. If the list is not complete, earlier ones that still exist are part of it, without their
    /// memory.
    fn gpu_processes(
        &self,
        gpus: &[GpuInfo],
        stats: &[Stat<'_>],
        listed: &[(SafeText, u32, Option<u64>)],
        is_complete: bool,
    ) -> Vec<GpuProcessReading> {
        let positions: HashMap<&str, u16> =
            gpus.iter().zip(0..).filter_map(|(gpu, position)| Some((gpu.uuid.as_deref()?, position))).collect();
        let row = |app: AppRow<'_>| {
            Some(GpuProcessReading {
                pid: app.pid,
                gpu: Some(*positions.get(app.uuid)?),
                kind: Some(GpuProcessKind::Compute),
                gpu_memory_bytes: app.memory_bytes,
                ..GpuProcessReading::default()
            })
        };
        let apps = self.apps.lines.iter().filter_map(|line| row(AppRow::parse(line)?));
        let mut rows: Vec<GpuProcessReading> = apps.take(MAX_PROCESSES).collect();
        if is_complete {
            return rows;
        }
        let starts: HashMap<u32, u64> = stats.iter().map(|stat| (stat.pid, stat.start_ticks)).collect();
        let still_runs =
            |pid: u32, start: Option<u64>| starts.get(&pid).is_some_and(|now| start.is_none_or(|start| start == *now));
        let printed: HashSet<(Option<u32>, Option<u16>)> = rows.iter().map(|row| (row.pid, row.gpu)).collect();
        let earlier = listed.iter().filter(|(_, pid, start)| still_runs(*pid, *start)).filter_map(|(uuid, pid, _)| {
            row(AppRow { uuid, pid: Some(*pid), memory_bytes: None })
                .filter(|row| !printed.contains(&(row.pid, row.gpu)))
        });
        rows.extend(earlier.take(MAX_PROCESSES.saturating_sub(printed.len())));
        rows
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

fn read_processes(stats: &[Stat<'_>], host: &HostReading, at_seconds: f64, known: &Known) -> Vec<ProcessReading> {
    let span = at_seconds - known.at_seconds;
    let process = |stat: &Stat<'_>| {
        let earlier = known.process_seconds.get(&(stat.pid, stat.start_ticks)).filter(|_| span > 0.0);
        let age = |uptime: f64| (uptime - stat.start_ticks as f64 / TICKS_PER_SECOND).max(0.0);
        ProcessReading {
            pid: Some(stat.pid),
            start_ticks: Some(stat.start_ticks),
            presence: Some(Presence::Visible),
            state: Some(stat.state),
            cpu_percent: earlier.map(|earlier| ((stat.cpu_seconds - earlier).max(0.0) / span * 100.0) as f32),
            cpu_seconds: Some(stat.cpu_seconds),
            rss_bytes: Some(stat.rss_bytes),
            threads: Some(stat.threads),
            age_seconds: host.uptime_seconds.map(age),
            ..ProcessReading::default()
        }
    };
    stats.iter().map(process).collect()
}

/// Joins the lines of a message, without repetitions, up to a limit.
fn join_messages<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let mut message = String::new();
    let mut seen = HashSet::new();
    for line in lines.map(str::trim).filter(|line| !line.is_empty() && seen.insert(*line)) {
        if message.chars().count() >= MAX_MESSAGE_CHARACTERS {
            break;
        }
        message += if message.is_empty() { "" } else { "; " };
        message.extend(line.chars().take(MAX_MESSAGE_CHARACTERS));
    }
    message
}

/// A line that stands for a list without processes.
fn is_empty_list(line: &str) -> bool {
    let line = line.trim().to_lowercase();
    line.is_empty() || line.starts_with("no running") || line.starts_with("warning:")
}

/// The reading of a GPU that cannot be read.
fn failed(error: DeviceError) -> GpuReading {
    GpuReading { error: Some(error), ..GpuReading::default() }
}

/// A line of `--query-compute-apps=gpu_uuid,pid,used_gpu_memory`.
struct AppRow<'a> {
    uuid: &'a str,
    /// `None` if the driver hides it: `[Insufficient Permissions]`.
    pid: Option<u32>,
    memory_bytes: Option<u64>,
}

impl<'a> AppRow<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut cells = line.split(", ").map(str::trim);
        let uuid = cells.next().filter(|uuid| uuid.starts_with("GPU-") || uuid.starts_with("MIG-"))?;
        let pid = cells.next()?;
        let pid = match pid.parse().ok().filter(|pid| *pid > 0) {
            None if !pid.starts_with('[') => return None,
            pid => pid,
        };
        let memory = cells.next().and_then(|mib| mib.parse::<u64>().ok());
        Some(Self { uuid, pid, memory_bytes: memory.map(|mib| mib.saturating_mul(MIB)) })
    }
}

/// A line of `--query-gpu`.
struct Row<'a> {
    fields: &'a FieldList,
    cells: Vec<&'a str>,
}

impl<'a> Row<'a> {
    /// Parses a line with a value for each field.
    fn parse(line: &'a str, fields: &'a FieldList) -> Option<Self> {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        (cells.len() == fields.len() && cells.len() > 1).then_some(Self { fields, cells })
    }

    /// The value of a field, if it is known and was queried.
    fn cell(&self, field: &str) -> Option<&'a str> {
        let cell = self.cells.get(self.fields.column(field)?).copied()?;
        // Unknown values are in brackets: [N/A], [Not Supported], [Unknown Error], [GPU is lost].
        (!cell.starts_with('[') && !["", "N/A", "ERR!", "Unknown Error", "Not Supported"].contains(&cell))
            .then_some(cell)
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

    fn gpu(&self) -> ListedGpu {
        let reading = self.reading();
        ListedGpu {
            index: self.number("index"),
            address: self.cell("pci.bus_id").and_then(PciAddress::parse),
            info: self.info(),
            reading: match self.error(&reading) {
                Some(error) => failed(error),
                None => reading,
            },
        }
    }

    /// The facts, without the index.
    fn info(&self) -> GpuInfo {
        GpuInfo {
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
        let reasons = self.cell("clocks_event_reasons.active").or_else(|| self.cell("clocks_throttle_reasons.active"));
        GpuReading {
            utilization_percent: self.number("utilization.gpu"),
            memory_utilization_percent: self.number("utilization.memory"),
            memory_used_bytes: self.mib("memory.used"),
            memory_reserved_bytes: self.mib("memory.reserved"),
            temperature_celsius: self.number("temperature.gpu"),
            memory_temperature_celsius: self.number("temperature.memory"),
            // R580 gives only the power of this moment for some boards.
            power_watts: self.number("power.draw").or_else(|| self.number("power.draw.instant")),
            clock_graphics_mhz: self.number("clocks.gr"),
            clock_sm_mhz: self.number("clocks.sm"),
            clock_memory_mhz: self.number("clocks.mem"),
            fan_percent: self.number("fan.speed"),
            performance_state: self.cell("pstate").and_then(|state| state.strip_prefix('P')?.parse().ok()),
            clocks_event_reasons: reasons.and_then(|mask| u64::from_str_radix(mask.strip_prefix("0x")?, 16).ok()),
            pcie_generation: self.number("pcie.link.gen.current"),
            pcie_width: self.number("pcie.link.width.current"),
            ..GpuReading::default()
        }
    }

    /// The error of a GPU that is lost or needs a reset. A single value of a healthy GPU may read `[Unknown Error]`, so
    /// these words count only if the GPU gives none of its main readings.
    fn error(&self, reading: &GpuReading) -> Option<DeviceError> {
        let find = |words: &[&str]| {
            let has = |cell: &&&str| words.iter().any(|words| cell.to_lowercase().contains(words));
            self.cells.iter().find(has).map(|cell| cell.trim_matches(['[', ']']))
        };
        let is_mute = reading.utilization_percent.is_none()
            && reading.memory_used_bytes.is_none()
            && reading.temperature_celsius.is_none()
            && reading.power_watts.is_none();
        let (kind, words) = match (find(&["gpu is lost"]), find(&["requires reset", "reset required"])) {
            (Some(words), _) => (DriverErrorKind::GpuLost, words),
            (None, Some(words)) => (DriverErrorKind::ResetRequired, words),
            (None, None) => (DriverErrorKind::GpuLost, find(&["unknown error", "err!"]).filter(|_| is_mute)?),
        };
        Some(DeviceError { kind, code: None, message: SafeText::from(format!("nvidia-smi says \"{words}\"")) })
    }
}

/// Reads two equal samples. A line that begins with `=` names the section of the lines after it. The snapshot is within the
/// limits of the wire.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    use super::lines::Section;
    use crate::wire::codec::{MAX_LINE_BYTES, decode, encode};
    use crate::wire::{Message, Snapshot};
    let text = String::from_utf8_lossy(data);
    let (mut section, mut sample, mut lines) = ("", Sample::default(), Section::default());
    let (mut fields, mut known) = (FieldList::default(), Known::default());
    sample.apps.status = Some(0);
    for line in text.lines().chain(["=end"]) {
        let Some(next) = line.strip_prefix('=') else {
            lines.push(line);
            continue;
        };
        let read = std::mem::take(&mut lines).finish();
        match section {
            "hello" => known.addresses = hello(&read).1,
            "basic" => fields = FieldList::basic(),
            "refuse" => drop(fields.refuse(&read)),
            "gpus" => sample.gpus.lines = read,
            "apps" => sample.apps.lines = read,
            "unlisted" => sample.apps.status = None,
            "processes" => sample.processes = read,
            "users" => sample.users = read,
            "host" => sample.host = read,
            _ => sample.gpus.status = section.parse().ok().or(sample.gpus.status),
        }
        section = next;
    }
    drop(sample.pids(&known));
    for at_seconds in [1.0, 3.0] {
        let readings = sample.readings(&fields, at_seconds, &mut known);
        let snapshot = Snapshot {
            host: readings.host,
            gpus: readings.gpus,
            gpu_processes: readings.gpu_processes,
            processes: readings.processes,
            facts: readings.facts,
            driver_error: readings.driver_error,
            notes: readings.notes,
            ..Snapshot::default()
        };
        for message in [Message::Inventory(readings.inventory), Message::Snapshot(Box::new(snapshot))] {
            let Ok(line) = encode(&message) else { panic!("{message:?} cannot be encoded") };
            assert!(line.len() <= MAX_LINE_BYTES, "{} bytes", line.len());
            let decoded = decode(line.trim_ascii_end());
            assert!(decoded.is_ok(), "{decoded:?}");
        }
    }
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
