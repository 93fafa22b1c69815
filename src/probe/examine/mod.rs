//! Examines one process of the login user on request, for a job that looks hung.
//!
//! Each requested part is read on a separate thread with a time limit: `process` reads its threads, environment and sockets,
//! `memory_facts` those of them that may block, `stacks` its Python stacks through py-spy, `flight_recorder` PyTorch's dump of its
//! operations, `links` the InfiniBand ports of the host, and [`super::ras`] queries NCCL RAS. A part that cannot be read is refused with a remedy, and a thread that does not
//! return is left behind. `cut` keeps the answer below 64 KiB. Nothing here runs in ordinary sampling.

mod cut;
mod flight_recorder;
mod links;
mod memory_facts;
mod pickle;
mod process;
#[cfg(test)]
mod recorded_hangs;
mod stacks;
#[cfg(test)]
mod test_process;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use flight_recorder::fuzz as fuzz_flight_recorder;
#[cfg(test)]
pub(crate) use recorded_hangs::recorded_examination;

pub(super) use process::variables as job_variables;

use super::answer_slot::AnswerSlot;
use super::blocking::ThreadLimit;
use super::policy::Policy;
use super::process_requests::{ProcessIdentity, check_own_process, environment, log_tail};
use super::procfs::FileReader;
use super::ras::{RasTarget, read_report};
use crate::wire::{Examination, ExaminationPart, ExaminationRefusal, Message, NOT_IN_PROC, ReplyOutcome, SafeText};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of requests at a time.
const MAX_EXAMINATIONS: usize = 8;
/// Maximum number of threads that read for them: five parts, and one more for the facts of a process that may block.
const MAX_READERS: usize = 6 * MAX_EXAMINATIONS;
/// Time between two readings.
const PAUSE: Duration = Duration::from_secs(1);

/// A request to read something of a process, which may block.
#[derive(Debug, Clone)]
pub(crate) struct ExamineRequest {
    /// Id of the reply.
    pub(crate) id: u64,
    pub(crate) boot_id: SafeText,
    pub(crate) pid: u32,
    pub(crate) start_ticks: u64,
    pub(crate) reading: RequestedReading,
}

/// The readings that a request can ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestedReading {
    /// The parts of an examination.
    Examination {
        parts: Vec<ExaminationPart>,
        /// Query NCCL RAS even if that may crash the job.
        accept_ras_risk: bool,
    },
    /// The variables of its job.
    Environment,
    /// The end of its log.
    LogTail,
}

/// The examinations in progress.
#[derive(Debug)]
pub(crate) struct Examinations {
    running: ThreadLimit,
    readers: ThreadLimit,
}

impl Examinations {
    pub(crate) fn new() -> Self {
        Self { running: ThreadLimit::new(MAX_EXAMINATIONS), readers: ThreadLimit::new(MAX_READERS) }
    }

    /// Starts an examination. A separate thread passes the reply to `send` when it is complete. `boot_id` is that of this
    /// host.
    ///
    /// # Errors
    /// The outcome to reply at once if the policy forbids it or too many are in progress.
    pub(crate) fn start(
        &self,
        request: ExamineRequest,
        policy: &Policy,
        boot_id: Option<&str>,
        send: Box<dyn FnOnce(Message) + Send>,
    ) -> Result<(), ReplyOutcome> {
        if policy.forbids_examine && matches!(request.reading, RequestedReading::Examination { .. }) {
            let reason = "the administrator of this host forbids it (allow_examine in policy.json)";
            return Err(ReplyOutcome::Refused(reason.into()));
        }
        let (forbids_ras, readers, boot_id) = (policy.forbids_ras, self.readers.clone(), boot_id.map(str::to_owned));
        let work = move || {
            let target =
                ProcessIdentity { boot_id: &request.boot_id, pid: request.pid, start_ticks: request.start_ticks };
            let boot_id = boot_id.as_deref();
            let outcome = match &request.reading {
                RequestedReading::Examination { parts, accept_ras_risk } => {
                    let wanted = Wanted { parts, accept_ras_risk: *accept_ras_risk, forbids_ras };
                    examine(target, &wanted, boot_id, &readers, &SOURCES)
                }
                RequestedReading::Environment => environment(target, boot_id, &readers),
                RequestedReading::LogTail => log_tail(target, boot_id, &readers),
            };
            send(cut::reply_that_fits(request.id, outcome));
        };
        if self.running.spawn(Box::new(work)) {
            return Ok(());
        }
        let reason = format!("{MAX_EXAMINATIONS} examinations are in progress on this host: try again in 20 s");
        Err(ReplyOutcome::Refused(reason.into()))
    }
}

/// A part to read.
struct PartRequest {
    part: ExaminationPart,
    pid: u32,
    accept_ras_risk: bool,
    readers: ThreadLimit,
}

/// How parts are read.
struct Sources {
    /// Reads one part. May block.
    read: fn(&PartRequest) -> Examination,
    /// The time limit of a part.
    limit: fn(ExaminationPart) -> Duration,
}

const SOURCES: Sources = Sources { read: read_part, limit: time_limit };

/// The time limit of a part. The two readings take one second. py-spy has three seconds after it was found. NCCL RAS limits
/// its connections itself.
fn time_limit(part: ExaminationPart) -> Duration {
    Duration::from_secs(match part {
        ExaminationPart::Ras => 20,
        ExaminationPart::Stacks | ExaminationPart::FlightRecorder => 5,
        ExaminationPart::Process | ExaminationPart::Links | ExaminationPart::Unknown => 3,
    })
}

/// The parts of an examination, and what it may do.
struct Wanted<'a> {
    parts: &'a [ExaminationPart],
    accept_ras_risk: bool,
    forbids_ras: bool,
}

/// Reads the requested parts at the same time. `boot_id` is that of this host.
fn examine(
    target: ProcessIdentity<'_>,
    wanted: &Wanted<'_>,
    boot_id: Option<&str>,
    readers: &ThreadLimit,
    sources: &Sources,
) -> ReplyOutcome {
    let (pid, accept_ras_risk) = (target.pid, wanted.accept_ras_risk);
    let mut reader = FileReader::default();
    if let Err(refusal) = check_own_process(target, boot_id, &mut reader) {
        return refusal;
    }
    let started = Instant::now();
    let mut examination = Examination::default();
    let mut pending = Vec::new();
    for (at, &part) in wanted.parts.iter().enumerate() {
        if wanted.parts[..at].contains(&part) {
            continue;
        }
        if wanted.forbids_ras && part == ExaminationPart::Ras {
            let reason = "the administrator of this host forbids queries of NCCL RAS (allow_ras in policy.json)";
            examination.refused.push(ExaminationRefusal::new(part, reason, "ask the administrator of the host"));
            continue;
        }
        let slot = Arc::new(AnswerSlot::default());
        let (answer_slot, read) = (Arc::clone(&slot), sources.read);
        let part_request = PartRequest { part, pid, accept_ras_risk, readers: readers.clone() };
        if readers.spawn(Box::new(move || answer_slot.put(read(&part_request)))) {
            pending.push((part, slot));
        } else {
            let reason = "no thread can be started: those of earlier examinations may hang in the kernel";
            examination.refused.push(ExaminationRefusal::new(part, reason, "connect to the host again"));
        }
    }
    for (part, slot) in pending {
        let limit = (sources.limit)(part);
        match slot.take(limit.saturating_sub(started.elapsed())) {
            Some(found) => merge(&mut examination, found),
            None => examination.refused.push(late(part, limit)),
        }
    }
    // Check again, since the pid may have been reused meanwhile.
    match check_own_process(target, boot_id, &mut reader) {
        Ok(()) => ReplyOutcome::Examined(Box::new(examination)),
        Err(refusal) => refusal,
    }
}

/// Reads one part. The result has only this part.
fn read_part(request: &PartRequest) -> Examination {
    let mut examination = Examination::default();
    let pid = request.pid;
    let result = match request.part {
        ExaminationPart::Process => match process::examine_process(pid, &request.readers, &pause) {
            Some(process) => {
                examination.process = Some(Box::new(process));
                Ok(())
            }
            None => Err(ExaminationRefusal::new(request.part, NOT_IN_PROC, "")),
        },
        ExaminationPart::Stacks => {
            stacks::examine_stacks(pid).map(|stacks| examination.stacks = Some(Box::new(stacks)))
        }
        ExaminationPart::Ras => {
            let report = read_report(&ras_target(pid), request.accept_ras_risk);
            report.map(|report| examination.ras = Some(Box::new(report)))
        }
        ExaminationPart::Links => {
            (examination.links, examination.links_left_out) = links::examine_links(links::ROOT, &pause);
            Ok(())
        }
        ExaminationPart::FlightRecorder => {
            flight_recorder::examine_flight_recorder(pid).map(|dump| examination.flight_recorder = Some(Box::new(dump)))
        }
        ExaminationPart::Unknown => Err(ExaminationRefusal::new(
            request.part,
            "the probe on this host does not know this part",
            "install a newer probe",
        )),
    };
    examination.refused.extend(result.err());
    examination
}

fn pause() {
    std::thread::sleep(PAUSE);
}

/// Reads the facts on which a query of NCCL RAS depends. May block.
fn ras_target(pid: u32) -> RasTarget {
    let mut reader = FileReader::default();
    let facts = memory_facts::MemoryFacts::read(pid);
    let configuration = memory_facts::nccl_configuration(pid, &facts.environment, &mut reader);
    RasTarget {
        pid,
        nccl_version: facts.nccl_version,
        has_nccl: facts.has_nccl,
        ns_pid: process::ns_pid(pid, &mut reader),
        same_network: process::same_network(pid, &mut reader),
        environment: facts.environment,
        configuration,
    }
}

/// Adds the part of `other`.
fn merge(examination: &mut Examination, other: Examination) {
    examination.process = examination.process.take().or(other.process);
    examination.stacks = examination.stacks.take().or(other.stacks);
    examination.ras = examination.ras.take().or(other.ras);
    examination.links.extend(other.links);
    examination.links_left_out += other.links_left_out;
    examination.flight_recorder = examination.flight_recorder.take().or(other.flight_recorder);
    examination.refused.extend(other.refused);
}

fn late(part: ExaminationPart, limit: Duration) -> ExaminationRefusal {
    let seconds = limit.as_secs();
    let reason = format!("it was not read within {seconds} s: the process or a file system may hang in the kernel");
    ExaminationRefusal::new(part, reason, "")
}

#[cfg(test)]
mod tests {
    use super::test_process::{BOOT, TestProcess};
    use super::*;
    use crate::probe::procfs::real_uid;
    use crate::wire::{LinkReading, Reply};
    use std::process::Command;
    use std::sync::mpsc::channel;
    use std::sync::{Mutex, PoisonError};

    /// Reads each part at once.
    fn read_quickly(request: &PartRequest) -> Examination {
        let mut examination = Examination::default();
        match request.part {
            ExaminationPart::Links => examination.links.push(LinkReading { port: 1, ..LinkReading::default() }),
            part => examination.refused.push(ExaminationRefusal::new(part, format!("pid {}", request.pid), "")),
        }
        examination
    }

    fn quick_limit(_: ExaminationPart) -> Duration {
        Duration::from_secs(20)
    }

    const QUICK: Sources = Sources { read: read_quickly, limit: quick_limit };

    fn outcome(request: &ExamineRequest, forbids_ras: bool, sources: &Sources) -> ReplyOutcome {
        outcome_with(request, forbids_ras, &ThreadLimit::new(MAX_READERS), sources)
    }

    fn outcome_with(
        request: &ExamineRequest,
        forbids_ras: bool,
        readers: &ThreadLimit,
        sources: &Sources,
    ) -> ReplyOutcome {
        let RequestedReading::Examination { parts, accept_ras_risk } = &request.reading else { panic!("{request:?}") };
        let target = ProcessIdentity { boot_id: &request.boot_id, pid: request.pid, start_ticks: request.start_ticks };
        let wanted = Wanted { parts, accept_ras_risk: *accept_ras_risk, forbids_ras };
        examine(target, &wanted, Some(BOOT), readers, sources)
    }

    fn examined(outcome: ReplyOutcome) -> Examination {
        let ReplyOutcome::Examined(examination) = outcome else { panic!("{outcome:?}") };
        *examination
    }

    #[test]
    fn each_requested_part_is_read_once() {
        let job = TestProcess::sleep();
        let parts = [ExaminationPart::Links, ExaminationPart::Stacks, ExaminationPart::Links];
        let examination = examined(outcome(&job.request(&parts), false, &QUICK));
        assert_eq!(examination.links.len(), 1);
        assert_eq!(
            examination.refused,
            [ExaminationRefusal::new(ExaminationPart::Stacks, format!("pid {}", job.pid()), "")]
        );
        assert_eq!(examined(outcome(&job.request(&[]), false, &QUICK)), Examination::default());
    }

    #[test]
    fn a_part_that_hangs_is_refused_and_the_others_are_returned() {
        static HANGS: Mutex<()> = Mutex::new(());
        fn hang_or_read(request: &PartRequest) -> Examination {
            if request.part == ExaminationPart::Stacks {
                drop(HANGS.lock().unwrap_or_else(PoisonError::into_inner));
            }
            read_quickly(request)
        }
        fn short_limit(part: ExaminationPart) -> Duration {
            if part == ExaminationPart::Stacks { Duration::from_millis(1) } else { quick_limit(part) }
        }
        let job = TestProcess::sleep();
        let held = HANGS.lock();
        let sources = Sources { read: hang_or_read, limit: short_limit };
        let request = job.request(&[ExaminationPart::Stacks, ExaminationPart::Links]);
        let examination = examined(outcome(&request, false, &sources));
        assert_eq!(examination.links.len(), 1);
        assert_eq!(examination.refused, [late(ExaminationPart::Stacks, Duration::ZERO)]);
        drop(held);
        let refusal = late(ExaminationPart::Process, time_limit(ExaminationPart::Process));
        let expected = "it was not read within 3 s: the process or a file system may hang in the kernel";
        assert_eq!((&*refusal.reason, &*refusal.remedy), (expected, ""));
    }

    #[test]
    fn threads_that_hang_are_limited() {
        let job = TestProcess::sleep();
        let request = job.request(&[ExaminationPart::Links]);
        let examination = examined(outcome_with(&request, false, &ThreadLimit::new(0), &QUICK));
        let [refused] = &examination.refused[..] else { panic!("{examination:?}") };
        assert_eq!(&*refused.reason, "no thread can be started: those of earlier examinations may hang in the kernel");
        assert_eq!(&*refused.remedy, "connect to the host again");
    }

    #[test]
    fn an_unknown_part_is_refused() {
        let job = TestProcess::sleep();
        let examination = examined(outcome(&job.request(&[ExaminationPart::Unknown]), false, &SOURCES));
        let expected = ExaminationRefusal::new(
            ExaminationPart::Unknown,
            "the probe on this host does not know this part",
            "install a newer probe",
        );
        assert_eq!(examination.refused, [expected]);
    }

    #[test]
    fn another_identity_is_not_examined() {
        let job = TestProcess::sleep();
        let request = job.request(&ExaminationPart::ALL);
        let mut later = request.clone();
        later.start_ticks += 1;
        assert_eq!(outcome(&later, false, &QUICK), ReplyOutcome::Reused);
        let rebooted = ExamineRequest { boot_id: "other".into(), ..request.clone() };
        assert_eq!(outcome(&rebooted, false, &QUICK), ReplyOutcome::Reused);
        let gone = ExamineRequest { pid: 4_194_305, ..request.clone() };
        assert_eq!(outcome(&gone, false, &QUICK), ReplyOutcome::Gone);
        let init = ExamineRequest { pid: 1, ..request };
        assert_eq!(outcome(&init, false, &QUICK), ReplyOutcome::Refused("pid 1 cannot be inspected".into()));
    }

    #[test]
    fn a_process_that_ends_meanwhile_is_gone() {
        static JOB: Mutex<Option<TestProcess>> = Mutex::new(None);
        fn end_it(_: &PartRequest) -> Examination {
            drop(JOB.lock().unwrap().take());
            Examination::default()
        }
        let job = TestProcess::sleep();
        let request = job.request(&[ExaminationPart::Links]);
        *JOB.lock().unwrap() = Some(job);
        let sources = Sources { read: end_it, limit: quick_limit };
        assert_eq!(outcome(&request, false, &sources), ReplyOutcome::Gone);
    }

    #[test]
    fn a_process_of_another_user_is_not_examined() {
        // Root becomes another user. For everyone else, kernel process 2 belongs to another user.
        let own = rustix::process::getuid();
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--clear-groups", "sleep", "600"]);
        let job = own.is_root().then(|| TestProcess::start(&mut command));
        let pid = job.as_ref().map_or(2, TestProcess::pid);
        let mut reader = FileReader::default();
        while reader.read_process(pid, "status", 4096).ok().and_then(real_uid) == Some(own.as_raw()) {
            std::thread::yield_now();
        }
        let stat = reader.read_process(pid, "stat", 4096).ok().and_then(super::super::procfs::Stat::parse).unwrap();
        let request = ExamineRequest {
            id: 7,
            boot_id: BOOT.into(),
            pid,
            start_ticks: stat.start_ticks,
            reading: RequestedReading::Examination { parts: ExaminationPart::ALL.to_vec(), accept_ras_risk: false },
        };
        assert_eq!(outcome(&request, false, &QUICK), ReplyOutcome::NotPermitted);
    }

    #[test]
    fn the_policy_forbids_examinations_or_only_queries_of_nccl_ras() {
        let job = TestProcess::sleep();
        let request = job.request(&[ExaminationPart::Ras, ExaminationPart::Links]);
        let examination = examined(outcome(&request, true, &QUICK));
        let reason = "the administrator of this host forbids queries of NCCL RAS (allow_ras in policy.json)";
        assert_eq!(
            examination.refused,
            [ExaminationRefusal::new(ExaminationPart::Ras, reason, "ask the administrator of the host")]
        );
        assert_eq!(examination.links.len(), 1);
        let policy = Policy { forbids_examine: true, ..Policy::default() };
        let send = Box::new(|_| panic!("it is refused at once"));
        let refused = Examinations::new().start(request, &policy, Some(BOOT), send);
        let reason = "the administrator of this host forbids it (allow_examine in policy.json)";
        assert_eq!(refused, Err(ReplyOutcome::Refused(reason.into())));
    }

    #[test]
    fn a_ninth_examination_is_refused() {
        let examinations = Examinations::new();
        let (replies, received) = channel();
        let (release, blocked) = channel::<()>();
        let blocked = Arc::new(Mutex::new(blocked));
        let gone = ExamineRequest {
            id: 1,
            boot_id: BOOT.into(),
            pid: 4_194_305,
            start_ticks: 0,
            reading: RequestedReading::LogTail,
        };
        let start = |id: u64| {
            let (replies, blocked) = (replies.clone(), Arc::clone(&blocked));
            let send = Box::new(move |message| {
                // A full pipe blocks like this.
                let _closed = blocked.lock().unwrap_or_else(PoisonError::into_inner).recv();
                replies.send(message).unwrap();
            });
            examinations.start(ExamineRequest { id, ..gone.clone() }, &Policy::default(), Some(BOOT), send)
        };
        for id in 1..=8 {
            assert_eq!(start(id), Ok(()));
        }
        let reason = "8 examinations are in progress on this host: try again in 20 s";
        assert_eq!(start(9), Err(ReplyOutcome::Refused(reason.into())));
        drop(release);
        let mut ids: Vec<u64> = (0..8)
            .map(|_| {
                let Message::Reply(Reply { id, outcome: ReplyOutcome::Gone }) = received.recv().unwrap() else {
                    panic!()
                };
                id
            })
            .collect();
        ids.sort_unstable();
        assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7, 8]);
        while start(10) != Ok(()) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_sleeping_process_is_examined_completely() {
        let job = TestProcess::sleep();
        let examination = examined(outcome(&job.request(&ExaminationPart::ALL), false, &SOURCES));
        let process = examination.process.expect("own processes are readable");
        assert!(process.seconds >= 1.0 && process.main_thread.is_some_and(|main| main.user_ms == Some(0)));
        let stacks = examination.refused.iter().find(|refusal| refusal.part == ExaminationPart::Stacks).unwrap();
        assert_eq!((&*stacks.reason, &*stacks.remedy), ("it is not a Python process", ""));
        assert!(examination.refused.iter().any(|refusal| refusal.part == ExaminationPart::Ras));
    }
}
