//! One process of a case: its phases and counters, and its readings from `/proc` and from the driver.

use super::case_file::{Job, Step, seconds};
use super::gpu_model::{GpuModel, Load, PhaseContext, load};
use super::rng::Rng;
use gpufleet::wire::{
    Ancestor, GpuProcessKind, GpuProcessReading, Owner, Presence, ProcessFacts, ProcessReading, ProcessState, SafeText,
};

/// Kernel clock ticks per second.
const TICKS: f64 = 100.0;
pub(crate) const GIB: f64 = (1_u64 << 30) as f64;
/// The account of the probe. Readings that only the owner may see exist for processes of this user.
pub(crate) const PROBE_USER: &str = "alice";

/// One process after its last sample.
#[derive(Debug)]
pub(crate) struct Process {
    job: Job,
    pub(crate) rank: usize,
    pub(crate) gpus: Vec<usize>,
    steps: Vec<Step>,
    pid: u32,
    session: u32,
    /// Start time in seconds after boot.
    started: f64,
    /// Offset of the job clock, equal for all processes of the job.
    clock_offset: f64,
    phase: Option<usize>,
    now: LastSample,
    cpu_seconds: f64,
    written: f64,
    read: f64,
    walk: f64,
    log_age: f64,
    /// Bytes written, bytes read and log age at the last slow refresh.
    slow_readings: (u64, u64, f64),
    /// Start of the current uninterruptible sleep.
    waiting_since: Option<f64>,
}

/// Values of the last sample.
#[derive(Debug, Clone, Copy, Default)]
struct LastSample {
    time: f64,
    into: f64,
    cpus: f64,
    is_waiting: bool,
    helpers: f64,
    helper_cpus: f64,
    helpers_waiting: f64,
    memory: f64,
    sm: f64,
}

impl Process {
    /// Creates the processes of a job on one host, which has been up for `up` seconds when the case begins.
    pub(crate) fn of_job(job: &Job, number: usize, gpus: &[usize], up: f64, rng: &mut Rng) -> Vec<Self> {
        let ranks: Vec<Vec<usize>> =
            if job.single { vec![gpus.to_vec()] } else { gpus.iter().map(|gpu| vec![*gpu]).collect() };
        let session = 3000 + 4000 * number as u32 + (rng.next() % 900) as u32;
        let age = seconds(&job.age);
        let clock_offset = rng.between(200.0, 1500.0);
        let process = |(rank, gpus): (usize, Vec<usize>)| {
            let work = job.ranks.get(&rank.to_string()).unwrap_or(&job.work);
            let steps: Vec<Step> = work.iter().map(|step| Step::parse(step)).collect();
            // A process whose first phase is later than 0 starts with that phase.
            let first = steps.first().map_or(0.0, |step| step.at);
            let started = if first > 0.0 { up + first } else { up - age };
            Self {
                job: job.clone(),
                rank,
                gpus,
                steps,
                pid: session + 60 + rank as u32,
                session,
                started: started + 0.04 * rank as f64,
                clock_offset,
                phase: None,
                now: LastSample::default(),
                cpu_seconds: if first > 0.0 { 0.0 } else { 0.7 * age },
                written: 2e6,
                read: 8e9,
                walk: 0.0,
                log_age: 4.0,
                slow_readings: (0, 0, 4.0),
                waiting_since: None,
            }
        };
        ranks.into_iter().enumerate().map(process).collect()
    }

    /// Advances to a time. Returns the load on each GPU, or `None` while the process does not run.
    pub(crate) fn advance(
        &mut self,
        time: f64,
        step: f64,
        up: f64,
        model: &GpuModel,
        (noise, offset): (f64, f64),
        rng: &mut Rng,
    ) -> Option<Load> {
        let place = self.steps.iter().rposition(|phase| phase.at <= time)?;
        if self.phase != Some(place) {
            self.phase = Some(place);
            self.waiting_since = None;
            if self.steps[place].has("restarted") {
                self.started = up + self.steps[place].at;
                self.cpu_seconds = 1.0;
            }
        }
        let phase = self.steps[place].clone();
        let into = time - phase.at;
        let at =
            PhaseContext { model, phase: &phase, rank: self.rank, job_time: time + self.clock_offset, noise, offset };
        let mut load = load(&at, rng);
        if phase.has("state") {
            load.cpus = 0.0;
        }
        self.cpu_seconds += load.cpus * step;
        self.written += load.writes * step;
        self.read += load.reads * step;
        self.walk += rng.normal() * phase.number("walk").unwrap_or(0.0) * (step / 60.0).sqrt();
        self.log_age = if phase.text("log") == Some("stops") { self.log_age + step } else { rng.between(0.2, 9.0) };
        let is_waiting = phase.text("state") == Some("D") || rng.chance(load.waits);
        self.waiting_since = if is_waiting { self.waiting_since.or(Some(time)) } else { None };
        self.now = LastSample {
            time,
            into,
            cpus: load.cpus,
            is_waiting,
            helpers: load.helpers,
            helper_cpus: load.helper_cpus,
            helpers_waiting: load.helpers_waiting,
            memory: 0.0,
            sm: load.utilization,
        };
        self.now.memory = self.memory(&phase, into, rng);
        self.is_running().then_some(load)
    }

    /// Updates the readings that the probe takes only in some samples, if they are due.
    pub(crate) fn refresh_slow_readings(&mut self, is_due: bool) {
        if is_due {
            self.slow_readings = (self.written as u64, self.read as u64, self.log_age.trunc());
        }
    }

    fn phase(&self) -> Option<&Step> {
        self.phase.and_then(|place| self.steps.get(place))
    }

    fn is_running(&self) -> bool {
        self.phase().is_some_and(|phase| phase.word != "gone")
    }

    /// Whether the driver lists the process.
    pub(crate) fn is_listed(&self) -> bool {
        self.is_running() && self.phase().is_some_and(|phase| !phase.has("unlisted"))
    }

    /// Bytes of memory on each GPU.
    pub(crate) fn gpu_memory_bytes(&self) -> u64 {
        if self.is_running() { (self.now.memory * GIB) as u64 } else { 0 }
    }

    /// GiB on each GPU: the base value of the phase plus its shapes.
    fn memory(&self, phase: &Step, into: f64, rng: &mut Rng) -> f64 {
        let number = |key| phase.number(key).unwrap_or(0.0);
        let every = |key| phase.time(key).unwrap_or(600.0);
        // A shape may continue from an earlier phase.
        let into = phase.time("since").map_or(into, |since| self.now.time - since);
        let shape = number("grows") * into / 3600.0
            + number("stairs") / 6.0 * (into / 600.0).floor()
            + number("saturates") * (1.0 - (-into / every("tau")).exp())
            + number("saw") * (into / every("period")).fract()
            + if phase.has("jump") && into > every("jump_at") { number("jump") } else { 0.0 }
            + number("steps") * (into / every("step_every")).floor().min(number("step_count"));
        let noise = if phase.has("noise") { number("noise") * rng.normal() } else { 0.0 };
        (phase.number("memory").unwrap_or(self.job.memory) + shape + self.walk + noise).max(0.3)
    }

    fn start_ticks(&self) -> u64 {
        (self.started.max(0.0) * TICKS) as u64
    }

    fn presence(&self) -> Presence {
        match self.phase().and_then(|phase| phase.text("presence")) {
            Some("hidden") => Presence::Hidden,
            Some("gone") => Presence::Gone,
            _ => Presence::Visible,
        }
    }

    /// Identity of the process facts: the probe sends them again when it changes.
    pub(crate) fn facts_identity(&self) -> (u32, u64, bool) {
        (self.pid, self.start_ticks(), self.is_orphan())
    }

    fn is_orphan(&self) -> bool {
        self.phase().is_some_and(|phase| phase.has("orphan"))
    }

    /// The driver's readings, one per GPU.
    pub(crate) fn on_gpus(&self) -> Vec<GpuProcessReading> {
        let has_memory = self.phase().is_none_or(|phase| !phase.has("untold"));
        let is_dead = self.presence() != Presence::Visible;
        let is_client = self.phase().is_some_and(|phase| phase.has("mps"));
        let reading = |gpu: &usize| GpuProcessReading {
            pid: Some(self.pid),
            gpu: Some(*gpu as u16),
            kind: Some(if is_client { GpuProcessKind::Mps } else { GpuProcessKind::Compute }),
            gpu_memory_bytes: has_memory.then(|| self.gpu_memory_bytes()),
            sm_percent: (!is_dead).then(|| self.now.sm.clamp(0.0, 100.0) as u8),
            ..GpuProcessReading::default()
        };
        self.gpus.iter().map(reading).collect()
    }

    /// The readings from `/proc`. Rates need an earlier sample.
    pub(crate) fn on_host(&self, up: f64, has_rates: bool) -> ProcessReading {
        let presence = self.presence();
        if presence != Presence::Visible {
            return ProcessReading { pid: Some(self.pid), presence: Some(presence), ..ProcessReading::default() };
        }
        let phase = self.phase();
        let text = |key| phase.and_then(|phase| phase.text(key));
        let state = match text("state") {
            Some("D") => ProcessState::DiskSleep,
            Some("T") => ProcessState::Stopped,
            Some("t") => ProcessState::Traced,
            Some("Z") => ProcessState::Zombie,
            _ if self.now.is_waiting => ProcessState::DiskSleep,
            _ if self.now.cpus > 0.7 => ProcessState::Running,
            _ => ProcessState::Sleeping,
        };
        let is_zombie = state == ProcessState::Zombie;
        let live = phase.and_then(|phase| phase.number("live"));
        // In a zombie the leader has exited, so another thread waits.
        let stuck_thread = (text("state") == Some("D")).then_some(0).or(live.filter(|live| *live > 0.0).map(|_| 3));
        let waits = stuck_thread.or(self.now.is_waiting.then_some(0));
        let is_own = self.job.user == PROBE_USER && !is_zombie;
        let is_orphan = self.is_orphan();
        ProcessReading {
            pid: Some(self.pid),
            start_ticks: Some(self.start_ticks()),
            presence: Some(presence),
            state: Some(state),
            cpu_percent: has_rates.then_some(self.now.cpus as f32 * 100.0),
            cpu_seconds: Some((self.cpu_seconds * TICKS).floor() / TICKS),
            rss_bytes: Some(if is_zombie { 0 } else { 11 << 30 }),
            threads: Some(if is_zombie { 1 + live.unwrap_or(0.0) as u32 } else { 96 }),
            age_seconds: Some(up + self.now.time - self.started),
            parent_pid: Some(if is_orphan { 1 } else { self.parent() }),
            threads_live: if is_zombie { Some(live.unwrap_or(0.0) as u32) } else { None },
            blocked_thread: waits.map(|thread| self.pid + thread),
            blocked_seconds: waits.map(|_| match stuck_thread {
                Some(_) => self.now.into as f32,
                None => self.waiting_since.map_or(0.3, |since| 0.3 + (self.now.time - since) as f32 * 0.05),
            }),
            threads_blocked: Some(u32::from(waits.is_some())),
            descendants: Some(self.now.helpers as u32),
            descendants_cpu_percent: has_rates.then_some((self.now.helpers * self.now.helper_cpus * 100.0) as f32),
            descendants_blocked: Some(self.now.helpers_waiting as u32),
            write_bytes: is_own.then_some(self.slow_readings.0),
            read_characters: is_own.then_some(self.slow_readings.1),
            log_age_seconds: (is_own && text("log") != Some("none")).then_some(self.slow_readings.2),
            ..ProcessReading::default()
        }
    }

    fn parent(&self) -> u32 {
        match self.job.under.split(' ').next() {
            _ if !self.job.launcher.is_empty() => self.session + 50,
            Some("nohup" | "service") => 1,
            _ => self.session,
        }
    }

    /// The process facts; `None` if `/proc` does not show the process.
    pub(crate) fn facts(&self, boot_unix: f64) -> Option<ProcessFacts> {
        if self.presence() != Presence::Visible {
            return None;
        }
        let is_own = self.job.user == PROBE_USER;
        let argv = words(&self.job.command);
        let uid = uid(&self.job.user);
        let init = || Ancestor { pid: 1, start_ticks: 1, uid: Some(0), name: "systemd".into(), ..Ancestor::default() };
        let ancestors = if self.is_orphan() { vec![init()] } else { self.ancestors(uid, init()) };
        let log_path = SafeText::new(&format!("/home/{}/runs/out-{}.log", self.job.user, self.session));
        let directory = SafeText::new(&format!("/home/{}/work", self.job.user));
        Some(ProcessFacts {
            pid: self.pid,
            start_ticks: Some(self.start_ticks()),
            start_unix_seconds: Some((boot_unix + self.started) as i64),
            uid: Some(uid),
            user: Some(self.job.user.as_str().into()),
            name: argv.first().map(|program| SafeText::new(short_name(program))),
            argv,
            ancestors,
            session: Some(self.session),
            ignores_hangup: (self.job.under == "nohup").then_some(true),
            working_directory: is_own.then_some(directory),
            log_path: is_own.then_some(log_path),
            runs_in: (self.job.under == "tmux").then(|| "tmux".into()),
            owner: self.owner(),
            ..ProcessFacts::default()
        })
    }

    fn ancestors(&self, uid: u32, init: Ancestor) -> Vec<Ancestor> {
        let parent = |pid: u32, back: f64, uid: u32, line: &str| {
            let argv = words(line);
            Ancestor {
                pid,
                start_ticks: ((self.started - back).max(0.0) * TICKS) as u64,
                uid: Some(uid),
                name: argv.first().map(|program| SafeText::new(short_name(program))).unwrap_or_default(),
                argv,
            }
        };
        let mut ancestors = Vec::new();
        if !self.job.launcher.is_empty() {
            // All ranks must compute one start time; they start 0.04 s apart.
            ancestors.push(parent(self.session + 50, 2.0 + 0.04 * self.rank as f64, uid, &self.job.launcher));
        }
        match self.job.under.split(' ').next() {
            Some("slurm") => ancestors.push(parent(self.session - 1, 4.0, 0, "slurmstepd: [3385.0]")),
            Some("docker") => ancestors.push(parent(self.session - 1, 4.0, 0, "containerd-shim-runc-v2")),
            // After a logout, a process started by nohup is a child of init.
            Some("service" | "nohup") => ancestors.push(init),
            _ => ancestors.push(parent(self.session, 5.0, uid, "-bash")),
        }
        ancestors
    }

    fn owner(&self) -> Option<Owner> {
        let (kind, name) = self.job.under.split_once(' ').unwrap_or((&self.job.under, ""));
        match kind {
            "slurm" => Some(Owner::Slurm { job: name.into(), step: Some("0".into()) }),
            "docker" => Some(Owner::Container { runtime: "docker".into(), id: name.into() }),
            "service" => Some(Owner::Service(name.into())),
            _ => None,
        }
    }
}

/// Splits a command line at `|` if it contains one, otherwise at spaces.
fn words(line: &str) -> Vec<SafeText> {
    let split: Vec<&str> = if line.contains('|') { line.split('|').collect() } else { line.split(' ').collect() };
    split.into_iter().map(SafeText::new).collect()
}

/// The name in `/proc/PID/stat`: the kernel keeps 15 characters.
fn short_name(program: &str) -> &str {
    let name = program.rsplit('/').next().unwrap_or(program).trim_start_matches('-');
    name.get(..15).unwrap_or(name)
}

/// Returns the uid of a login name: 1001 for the user of the probe, higher ones for others.
pub(crate) fn uid(user: &str) -> u32 {
    match user {
        "root" => 0,
        PROBE_USER => 1001,
        other => 1002 + other.bytes().map(u32::from).sum::<u32>() % 500,
    }
}
