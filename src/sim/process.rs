//! One process of a simulated host: its phases and counters, and its readings from `/proc` and from the driver.

use super::gpu_model::{GpuModel, Load, PhaseContext, load};
use super::rng::Rng;
use super::script::{Job, Seconds, Step};
use crate::wire::{
    Ancestor, GpuProcessKind, GpuProcessReading, Owner, Presence, ProcessFacts, ProcessReading, ProcessState, SafeText,
};
use std::sync::Arc;

/// Kernel clock ticks per second.
const TICKS: f64 = 100.0;
pub(super) const GIB: f64 = (1_u64 << 30) as f64;
/// The people of the lab: login, full name and uid.
pub(super) const PEOPLE: [(&str, &str, u32); 8] = [
    ("alice", "Alice Moreau", 1001),
    ("bob", "Bob Okafor", 1002),
    ("carol", "Carol Lindqvist", 1003),
    ("dmitri", "Dmitri Volkov", 1004),
    ("erika", "Erika Satō", 1005),
    ("fumi", "Fumi Tanaka", 1006),
    ("gustav", "Gustav Meyer", 1007),
    ("hana", "Hana Nováková", 1008),
];

/// One process after its last sample.
#[derive(Debug)]
pub(super) struct Process {
    job: Arc<Job>,
    /// Number of its job.
    pub(super) number: usize,
    pub(super) rank: usize,
    pub(super) gpus: Vec<usize>,
    steps: Arc<[Step]>,
    /// Whether the probe runs as the user of the process.
    pub(super) is_own: bool,
    /// Pid of the session of the first run.
    first_session: u32,
    /// How often the job has begun again.
    run: u32,
    /// The run that a signal has ended.
    ended_run: Option<u32>,
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

/// Pid, start time, whether it is an orphan, and the port on which it listens.
pub(super) type FactsIdentity = (u32, u64, bool, Option<u16>);

/// Values of the last sample.
#[derive(Debug, Clone, Copy, Default)]
struct LastSample {
    time: f64,
    /// Seconds since the phase began.
    into: f64,
    is_waiting: bool,
    memory: f64,
    load: Load,
}

impl Process {
    /// Creates the processes of a job, on a host that has been up for `up` seconds when the script begins.
    pub(super) fn of_job(
        job: &Arc<Job>,
        number: usize,
        gpu_count: usize,
        login: &str,
        up: f64,
        rng: &mut Rng,
    ) -> Vec<Self> {
        let gpus = job.gpus.below(gpu_count);
        let ranks: Vec<Vec<usize>> =
            if job.single { vec![gpus] } else { gpus.into_iter().map(|gpu| vec![gpu]).collect() };
        let first_session = 3000 + 4000 * number as u32 + (rng.bits() % 900) as u32;
        let Seconds(age) = job.age;
        let clock_offset = rng.between(200.0, 1500.0);
        let work: Arc<[Step]> = job.work.as_slice().into();
        let process = |(rank, gpus): (usize, Vec<usize>)| {
            let own = job.ranks.get(&rank.to_string()).map(|steps| steps.as_slice().into());
            let steps = own.unwrap_or_else(|| Arc::clone(&work));
            // A process whose first phase is later than 0 starts with that phase.
            let first = steps.first().map_or(0.0, |step| step.at);
            let started = if first > 0.0 { up + first } else { up - age };
            let cpu_seconds = job.cpu_time.map_or(0.7 * age, |Seconds(cpu_time)| cpu_time);
            // A log that stopped before the beginning is as old as its phase.
            let log_age = 4.0 - first.min(0.0);
            Self {
                job: Arc::clone(job),
                number,
                rank,
                gpus,
                steps,
                is_own: job.user == login,
                first_session,
                run: 0,
                ended_run: None,
                started: started + 0.04 * rank as f64,
                clock_offset,
                phase: None,
                now: LastSample::default(),
                cpu_seconds: if first > 0.0 { 0.0 } else { cpu_seconds },
                written: 2e6,
                read: 8e9,
                walk: 0.0,
                log_age,
                slow_readings: (0, 0, log_age),
                waiting_since: None,
            }
        };
        ranks.into_iter().enumerate().map(process).collect()
    }

    /// Advances to a time. Returns the load on each GPU, or `None` while the process does not run.
    pub(super) fn advance(
        &mut self,
        time: f64,
        step: f64,
        up: f64,
        model: &GpuModel,
        (noise, offset): (f64, f64),
        rng: &mut Rng,
    ) -> Option<Load> {
        let begin = self.begin_run(time, up);
        let steps = Arc::clone(&self.steps);
        // The past of the first snapshot, before the script begins, shows its first phases.
        let elapsed = time.max(0.0) - begin;
        let place = steps.iter().rposition(|phase| phase.at <= elapsed)?;
        let phase = &steps[place];
        if self.phase != Some(place) {
            self.phase = Some(place);
            self.waiting_since = None;
            if phase.has("restarted") {
                self.started = up + phase.at;
                self.cpu_seconds = 1.0;
            }
        }
        let into = elapsed - phase.at;
        let at = PhaseContext { model, phase, rank: self.rank, job_time: time + self.clock_offset, noise, offset };
        let mut load = load(&at, rng);
        if phase.has("state") {
            load.cpus = 0.0;
        }
        self.cpu_seconds += load.cpus * step;
        self.written += load.writes * step;
        self.read += load.reads * step;
        self.walk += rng.normal() * phase.number("walk").unwrap_or(0.0) * (step / 60.0).sqrt();
        // A process that waits in a collective, or for nothing, writes no log.
        let is_silent = matches!(phase.word.as_str(), "spin" | "idle");
        self.log_age = match phase.text("log") {
            Some("stops") => self.log_age + step,
            _ => Some(rng.between(0.2, 9.0)).filter(|_| !is_silent).unwrap_or(self.log_age + step),
        };
        let is_waiting = phase.text("state") == Some("D") || rng.chance(load.waits);
        self.waiting_since = if is_waiting { self.waiting_since.or(Some(time)) } else { None };
        self.now = LastSample { time, into, is_waiting, memory: 0.0, load };
        self.now.memory = self.memory(phase, into, rng);
        self.is_running().then_some(load)
    }

    /// Starts the next run of a job that repeats. Returns the beginning of the current run.
    fn begin_run(&mut self, time: f64, up: f64) -> f64 {
        let (Some(Seconds(every)), Some(first)) = (self.job.every, self.steps.first()) else { return 0.0 };
        let run = ((time - first.at) / every).floor().max(0.0);
        let begin = run * every;
        if self.run != run as u32 {
            self.run = run as u32;
            self.phase = None;
            self.started = up + begin + first.at + 0.04 * self.rank as f64;
            (self.cpu_seconds, self.written, self.read) = (0.0, 2e6, 0.0);
        }
        begin
    }

    /// Ends the process, as a signal does.
    pub(super) fn end(&mut self) {
        self.ended_run = Some(self.run);
    }

    /// Updates the readings that the probe takes only in some samples, if they are due.
    pub(super) fn refresh_slow_readings(&mut self, is_due: bool) {
        if is_due {
            self.slow_readings = (self.written as u64, self.read as u64, self.log_age.trunc());
        }
    }

    /// Returns the number of its GPUs that the process uses; it holds the others without work.
    pub(super) fn used_gpus(&self) -> usize {
        if self.is_off_gpu() {
            return 0;
        }
        self.phase().and_then(|phase| phase.number("uses")).map_or(usize::MAX, |uses| uses as usize)
    }

    /// Whether the process is on no GPU.
    fn is_off_gpu(&self) -> bool {
        self.phase().is_some_and(|phase| phase.has("off_gpu"))
    }

    pub(super) fn phase(&self) -> Option<&Step> {
        self.phase.and_then(|place| self.steps.get(place))
    }

    fn is_running(&self) -> bool {
        self.ended_run != Some(self.run) && self.phase().is_some_and(|phase| phase.word != "gone")
    }

    /// Whether the driver lists the process.
    pub(super) fn is_listed(&self) -> bool {
        self.is_running() && self.phase().is_some_and(|phase| !phase.has("unlisted"))
    }

    /// Bytes of memory on each GPU.
    pub(super) fn gpu_memory_bytes(&self) -> u64 {
        if self.is_running() && !self.is_off_gpu() { (self.now.memory * GIB) as u64 } else { 0 }
    }

    /// GiB on each GPU: the base value of the phase plus its shapes.
    fn memory(&self, phase: &Step, into: f64, rng: &mut Rng) -> f64 {
        let number = |key| phase.number(key).unwrap_or(0.0);
        let every = |key| phase.number(key).unwrap_or(600.0);
        // A shape may continue from an earlier phase.
        let into = phase.number("since").map_or(into, |since| self.now.time - since);
        let shape = number("grows") * into / 3600.0
            + number("stairs") / 6.0 * (into / 600.0).floor()
            + number("saturates") * (1.0 - (-into / every("tau")).exp())
            + number("saw") * (into / every("period")).fract()
            + if phase.has("jump") && into > every("jump_at") { number("jump") } else { 0.0 }
            + number("steps") * (into / every("step_every")).floor().min(number("step_count"));
        let noise = if phase.has("noise") { number("noise") * rng.normal() } else { 0.0 };
        (phase.number("memory").unwrap_or(self.job.memory) + shape + self.walk + noise).max(0.3)
    }

    fn session(&self) -> u32 {
        self.first_session + self.run * 131 % 2900
    }

    pub(super) fn pid(&self) -> u32 {
        self.session() + 60 + self.rank as u32
    }

    pub(super) fn start_ticks(&self) -> u64 {
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
    pub(super) fn facts_identity(&self) -> FactsIdentity {
        (self.pid(), self.start_ticks(), self.is_orphan(), self.listening_port())
    }

    /// The port on which it listens, which the probe sees only for its own user.
    fn listening_port(&self) -> Option<u16> {
        self.phase().filter(|_| self.is_own)?.number("listens").map(|port| port as u16)
    }

    fn is_orphan(&self) -> bool {
        self.phase().is_some_and(|phase| phase.has("orphan"))
    }

    /// The driver's readings, one per GPU.
    pub(super) fn on_gpus(&self) -> Vec<GpuProcessReading> {
        let has_memory = self.phase().is_none_or(|phase| !phase.has("untold"));
        let is_dead = self.presence() != Presence::Visible;
        let is_client = self.phase().is_some_and(|phase| phase.has("mps"));
        let reading = |gpu: &usize| GpuProcessReading {
            pid: Some(self.pid()),
            gpu: Some(*gpu as u16),
            kind: Some(if is_client { GpuProcessKind::Mps } else { GpuProcessKind::Compute }),
            gpu_memory_bytes: has_memory.then(|| self.gpu_memory_bytes()),
            sm_percent: (!is_dead).then(|| self.now.load.utilization.clamp(0.0, 100.0) as u8),
            memory_percent: (!is_dead).then(|| self.now.load.memory_activity.clamp(0.0, 100.0) as u8),
            ..GpuProcessReading::default()
        };
        self.gpus.iter().filter(|_| !self.is_off_gpu()).map(reading).collect()
    }

    /// The start time of this process or of its ancestor with this pid.
    pub(super) fn start_of(&self, pid: u32) -> Option<u64> {
        if !self.is_listed() {
            return None;
        }
        let facts = self.facts(0.0)?;
        let own = std::iter::once((facts.pid, self.start_ticks()));
        let parents = facts.ancestors.iter().filter(|parent| parent.pid > 1);
        own.chain(parents.map(|parent| (parent.pid, parent.start_ticks)))
            .find(|(known, _)| *known == pid)
            .map(|(_, start)| start)
    }

    /// The readings from `/proc`. Rates need an earlier sample.
    pub(super) fn on_host(&self, up: f64, has_rates: bool) -> ProcessReading {
        let presence = self.presence();
        if presence != Presence::Visible {
            return ProcessReading { pid: Some(self.pid()), presence: Some(presence), ..ProcessReading::default() };
        }
        let phase = self.phase();
        let text = |key| phase.and_then(|phase| phase.text(key));
        let state = match text("state") {
            Some("D") => ProcessState::DiskSleep,
            Some("T") => ProcessState::Stopped,
            Some("t") => ProcessState::Traced,
            Some("Z") => ProcessState::Zombie,
            _ if self.now.is_waiting => ProcessState::DiskSleep,
            _ if self.now.load.cpus > 0.7 => ProcessState::Running,
            _ => ProcessState::Sleeping,
        };
        let is_zombie = state == ProcessState::Zombie;
        let rss = phase.and_then(|phase| phase.number("rss")).unwrap_or(11.0);
        let live = phase.and_then(|phase| phase.number("live"));
        // In a zombie the leader has exited, so another thread waits.
        let stuck_thread = (text("state") == Some("D")).then_some(0).or(live.filter(|live| *live > 0.0).map(|_| 3));
        let waits = stuck_thread.or(self.now.is_waiting.then_some(0));
        let is_own = self.is_own && !is_zombie;
        let is_orphan = self.is_orphan();
        let waiting = phase.and_then(|phase| phase.number("waiting")).unwrap_or(0.0);
        ProcessReading {
            pid: Some(self.pid()),
            start_ticks: Some(self.start_ticks()),
            presence: Some(presence),
            state: Some(state),
            cpu_percent: has_rates.then_some(self.now.load.cpus as f32 * 100.0),
            cpu_seconds: Some((self.cpu_seconds * TICKS).floor() / TICKS),
            rss_bytes: Some(if is_zombie { 0 } else { (rss * GIB) as u64 }),
            threads: Some(if is_zombie { 1 + live.unwrap_or(0.0) as u32 } else { 96 }),
            age_seconds: Some(up + self.now.time - self.started),
            parent_pid: Some(if is_orphan { 1 } else { self.parent() }),
            threads_live: if is_zombie { Some(live.unwrap_or(0.0) as u32) } else { None },
            blocked_thread: waits.map(|thread| self.pid() + thread),
            blocked_seconds: waits.map(|_| match stuck_thread {
                Some(_) => self.now.into as f32,
                None => self.waiting_since.map_or(0.3, |since| 0.3 + (self.now.time - since) as f32 * 0.05),
            }),
            threads_blocked: Some(u32::from(waits.is_some())),
            descendants: Some(self.now.load.helpers as u32),
            descendants_cpu_percent: has_rates
                .then_some((self.now.load.helpers * self.now.load.helper_cpus * 100.0) as f32),
            descendants_blocked: Some(self.now.load.helpers_waiting as u32),
            write_bytes: is_own.then_some(self.slow_readings.0),
            read_characters: is_own.then_some(self.slow_readings.1),
            log_age_seconds: (is_own && text("log") != Some("none")).then_some(self.slow_readings.2),
            established_connections: is_own
                .then(|| phase.and_then(|phase| phase.number("connections")).unwrap_or(0.0) as u32),
            waiting_clients: (is_own && text("listens").is_some()).then_some(waiting as u32),
            longest_wait_seconds: (is_own && waiting >= 1.0).then_some(self.now.into),
            ..ProcessReading::default()
        }
    }

    fn parent(&self) -> u32 {
        match self.job.under.split(' ').next() {
            _ if !self.job.launcher.is_empty() => self.session() + 50,
            Some("nohup" | "service") => 1,
            _ => self.session(),
        }
    }

    /// The process facts; `None` if `/proc` does not show the process.
    pub(super) fn facts(&self, boot_unix: f64) -> Option<ProcessFacts> {
        if self.presence() != Presence::Visible {
            return None;
        }
        let argv = words(&self.job.command.replace("{rank}", &self.rank.to_string()));
        let (uid, full_name) = person(&self.job.user);
        let init = || Ancestor { pid: 1, start_ticks: 1, uid: Some(0), name: "systemd".into(), ..Ancestor::default() };
        let ancestors = if self.is_orphan() { vec![init()] } else { self.ancestors(uid, init()) };
        let log_path = SafeText::new(&format!("/home/{}/runs/out-{}.log", self.job.user, self.session()));
        let directory = SafeText::new(&format!("/home/{}/work", self.job.user));
        Some(ProcessFacts {
            pid: self.pid(),
            start_ticks: Some(self.start_ticks()),
            start_unix_seconds: Some((boot_unix + self.started) as i64),
            uid: Some(uid),
            user: Some(self.job.user.as_str().into()),
            full_name: full_name.map(Into::into),
            name: argv.first().map(|program| SafeText::new(short_name(program))),
            argv,
            ancestors,
            session: Some(self.session()),
            ignores_hangup: (self.job.under == "nohup").then_some(true),
            working_directory: self.is_own.then_some(directory),
            log_path: self.is_own.then_some(log_path),
            listening_ports: self.listening_port().into_iter().collect(),
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
            ancestors.push(parent(self.session() + 50, 2.0 + 0.04 * self.rank as f64, uid, &self.job.launcher));
        }
        match self.job.under.split(' ').next() {
            Some("slurm") => ancestors.push(parent(self.session() - 1, 4.0, 0, "slurmstepd:")),
            Some("docker") => ancestors.push(parent(self.session() - 1, 4.0, 0, "containerd-shim-runc-v2")),
            // After a logout, a process started by nohup is a child of init.
            Some("service" | "nohup") => ancestors.push(init),
            _ => ancestors.push(parent(self.session(), 5.0, uid, "-bash")),
        }
        ancestors
    }

    fn owner(&self) -> Option<Owner> {
        let (kind, name) = self.job.under.split_once(' ').unwrap_or((&self.job.under, ""));
        match kind {
            "slurm" => Some(Owner::Slurm { job: self.slurm_job(name), step: Some("0".into()) }),
            "docker" => Some(Owner::Container { runtime: "docker".into(), id: name.into() }),
            "service" => Some(Owner::Service(name.into())),
            "session" => Some(Owner::Session(name.into())),
            _ => None,
        }
    }

    /// Returns the id of the job, which is another one in each run.
    fn slurm_job(&self, first: &str) -> SafeText {
        match first.parse::<u32>() {
            Ok(first) if self.run > 0 => SafeText::from((first + 13 * self.run).to_string()),
            _ => first.into(),
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

/// Returns the uid and the full name of a user.
pub(super) fn person(login: &str) -> (u32, Option<&'static str>) {
    match PEOPLE.iter().find(|(known, ..)| *known == login) {
        Some((_, full_name, uid)) => (*uid, Some(full_name)),
        None if login == "root" => (0, Some("root")),
        None => (1100 + login.bytes().map(u32::from).sum::<u32>() % 500, None),
    }
}
