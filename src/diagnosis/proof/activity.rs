//! The activity of one rank: whether its GPU computes or spins, and whether its process works on the host, moves or stands still.

use super::evidence::{MIN_APART, RankEvidence, RankGpu, RankReading};
use super::log_lines::only_repeats;
use crate::wire::{Frame, ProcessState, StackDump, ThreadReading, ThreadStack};
use std::time::Duration;

/// A GPU is at least this busy while a kernel of NCCL waits on it. Percent.
const SPIN_UTILIZATION: u8 = 90;
/// A GPU that is busier than this does something. Percent.
const IDLE_UTILIZATION: u8 = 2;
/// The largest share of the power limit at which a GPU was seen to wait; healthy work was seen from 0.36.
const SPIN_SHARE_OF_LIMIT: f32 = 0.296;
/// The largest share of the healthy power of a job at which its GPU waits, where no limit is known.
const SPIN_SHARE_OF_HEALTHY: f32 = 0.5;
/// Tensor cores and memory of a GPU that waits. Percent.
const SPIN_ACTIVITY: (f32, f32) = (1.0, 2.0);
/// Tensor cores or memory of a GPU that computes, whatever its power. Percent.
const WORK_ACTIVITY: (f32, f32) = (5.0, 10.0);
/// NVLink and PCIe traffic of a GPU that waits, at most.
const SPIN_BYTES_PER_SECOND: f64 = 1e8;
/// A process that writes less than this between two readings writes only its log.
const WRITES_BYTES: u64 = 1 << 20;
/// A process that reads less than this between two readings loads nothing.
const READS_BYTES: u64 = 16 << 20;
/// CPU utilization below which a process does nothing, above the threads of a watchdog. 100 is one CPU.
const IDLE_CPU_PERCENT: f32 = 10.0;
/// CPU utilization from which a process or its descendants work.
const BUSY_CPU_PERCENT: f32 = 50.0;
/// Share of the time from which a main thread that is ready to run and has no CPU is starved. Percent.
const STARVED_PERCENT: f32 = 50.0;
/// Voluntary context switches a second from which a main thread may work although it uses little CPU time: it takes data from
/// a socket or a queue, or polls. A thread that waits in one place wakes for its timers only.
const OFTEN_WOKEN: f32 = 50.0;

/// The activity of the GPUs of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GpuActivity {
    /// A kernel runs and neither computes nor uses memory.
    Spins,
    /// It computes.
    Works,
    /// No kernel runs.
    Idle,
    /// The readings are missing.
    Unknown,
}

/// Judges the GPUs of a rank.
pub(super) fn gpu_activity(rank: &RankEvidence) -> GpuActivity {
    let activities: Vec<GpuActivity> = rank.gpus.iter().map(activity_of_gpu).collect();
    let all = |activity| !activities.is_empty() && activities.iter().all(|one| *one == activity);
    if activities.contains(&GpuActivity::Works) {
        GpuActivity::Works
    } else if activities.contains(&GpuActivity::Unknown) {
        GpuActivity::Unknown
    } else if activities.contains(&GpuActivity::Spins) {
        GpuActivity::Spins
    } else if all(GpuActivity::Idle) {
        GpuActivity::Idle
    } else {
        GpuActivity::Unknown
    }
}

fn activity_of_gpu(gpu: &RankGpu) -> GpuActivity {
    let Some(utilization) = gpu.utilization_percent else {
        // A single reading may be missing; the rule has judged minutes of them.
        return if gpu.waits_by_rule { GpuActivity::Spins } else { GpuActivity::Unknown };
    };
    if utilization <= IDLE_UTILIZATION {
        return GpuActivity::Idle;
    }
    let is_over = |value: Option<f32>, most: f32| value.is_some_and(|value| value > most);
    if is_over(gpu.tensor_percent, WORK_ACTIVITY.0) || is_over(gpu.dram_percent, WORK_ACTIVITY.1) {
        return GpuActivity::Works;
    }
    if gpu.waits_by_rule {
        return GpuActivity::Spins;
    }
    if utilization < SPIN_UTILIZATION {
        return GpuActivity::Works;
    }
    let limit = gpu.power_limit_watts.filter(|limit| *limit > 0.0).map(|limit| limit * SPIN_SHARE_OF_LIMIT);
    let most_watts = limit
        .or_else(|| gpu.healthy_power_watts.filter(|watts| *watts > 0.0).map(|watts| watts * SPIN_SHARE_OF_HEALTHY));
    let by_power = gpu.power_watts.zip(most_watts).map(|(watts, most)| watts <= most);
    let by_activity = gpu.tensor_percent.zip(gpu.dram_percent).map(|(tensor, dram)| {
        let is_quiet = |traffic: Option<f64>| traffic.is_none_or(|traffic| traffic <= SPIN_BYTES_PER_SECOND);
        tensor <= SPIN_ACTIVITY.0
            && dram <= SPIN_ACTIVITY.1
            && is_quiet(gpu.nvlink_bytes_per_second)
            && is_quiet(gpu.pcie_bytes_per_second)
    });
    match (by_power, by_activity) {
        (Some(true), _) | (_, Some(true)) => GpuActivity::Spins,
        (None, None) => GpuActivity::Unknown,
        _ => GpuActivity::Works,
    }
}

/// Two readings of one value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Twice<T> {
    /// The earlier value.
    pub first: T,
    /// The latest value.
    pub last: T,
    /// The time between them.
    pub apart: Duration,
}

impl<T> Twice<T> {
    /// Whether the readings are far enough apart to show that nothing moves.
    pub(super) fn is_far_apart(&self) -> bool {
        self.apart >= MIN_APART
    }
}

/// The latest value of a rank and an earlier one: the latest of those at least [`MIN_APART`] before, else the first.
pub(super) fn twice<'a, T>(rank: &'a RankEvidence, value: impl Fn(&'a RankReading) -> Option<T>) -> Option<Twice<T>> {
    let mut values: Vec<_> =
        rank.readings.iter().filter_map(|reading| value(reading).map(|value| (reading.at, value))).collect();
    values.sort_by_key(|(at, _)| *at);
    let (last_at, last) = values.pop()?;
    let far = values.iter().rposition(|(at, _)| last_at.since(*at) >= MIN_APART).unwrap_or(0);
    let (first_at, first) = values.into_iter().nth(far)?;
    Some(Twice { first, last, apart: last_at.since(first_at) })
}

/// The time from the first reading of a rank to the last one.
pub(super) fn observed(rank: &RankEvidence) -> Option<Duration> {
    twice(rank, |reading| Some(reading.at)).map(|twice| twice.apart)
}

/// The stack of the main thread.
pub(super) fn main_stack(stacks: &StackDump) -> Option<&ThreadStack> {
    stacks.threads.first().filter(|thread| !thread.frames.is_empty())
}

/// The two latest stacks of the main thread of a rank.
pub(super) fn stacks(rank: &RankEvidence) -> Option<Twice<&ThreadStack>> {
    twice(rank, |reading| reading.examination.stacks.as_deref().and_then(main_stack))
}

/// The latest stack of the main thread of a rank.
pub(super) fn latest_stack(rank: &RankEvidence) -> Option<&ThreadStack> {
    let readings = rank.readings.iter();
    let stacks = readings.filter_map(|reading| {
        reading.examination.stacks.as_deref().and_then(main_stack).map(|stack| (reading.at, stack))
    });
    stacks.max_by_key(|(at, _)| *at).map(|(_, stack)| stack)
}

/// The difference between two stacks of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StackChange {
    /// They are equal.
    Same,
    /// Only the innermost calls differ, as in a loop that polls: that shows no progress, and no standstill.
    Innermost,
    /// The program is elsewhere.
    Moved,
}

/// Compares two stacks of one thread.
pub(super) fn stack_change(first: &ThreadStack, last: &ThreadStack) -> StackChange {
    /// Number of innermost frames that may differ while a loop polls.
    const POLLING: usize = 2;
    if first.frames == last.frames && first.frames_left_out == last.frames_left_out {
        return StackChange::Same;
    }
    // The frames are counted from the outermost one, which may be left out.
    let depth = |stack: &ThreadStack| stack.frames.len() + stack.frames_left_out as usize;
    let at = |stack: &'_ ThreadStack, level: usize| -> Option<Frame> {
        stack.frames.get(depth(stack).checked_sub(level + 1)?).cloned()
    };
    let start = first.frames_left_out.max(last.frames_left_out) as usize;
    let shallow = depth(first).min(depth(last));
    let deep = depth(first).max(depth(last));
    let Some(level) = (start..shallow).find(|level| at(first, *level) != at(last, *level)) else {
        // One stack is the other one with more calls.
        return if deep.saturating_sub(shallow) <= POLLING { StackChange::Innermost } else { StackChange::Moved };
    };
    let has_function = |first: Option<Frame>, last: Option<Frame>| match (first, last) {
        (Some(first), Some(last)) => first.function == last.function && first.file == last.file,
        // One of them calls nothing there.
        _ => true,
    };
    let is_innermost = deep.saturating_sub(level) <= POLLING;
    let same_calls = (level..deep).all(|level| has_function(at(first, level), at(last, level)));
    if is_innermost && same_calls { StackChange::Innermost } else { StackChange::Moved }
}

/// The kind of code in which a stack stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum StackClass {
    /// Waits for other ranks or for the GPU.
    Collective,
    /// Forward and backward passes and the optimizer, which launch work on the GPU.
    Compute,
    /// Loads data.
    Data,
    /// Saves or loads a checkpoint.
    Checkpoint,
    /// Compiles.
    Compile,
    /// Handles an exception, or exits.
    Exception,
    /// Waits for requests.
    Requests,
    /// None of these.
    Other,
}

impl StackClass {
    /// The words for a sentence.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Collective => "waits for other ranks or the GPU",
            Self::Compute => "computes",
            Self::Data => "loads data",
            Self::Checkpoint => "saves or loads a checkpoint",
            Self::Compile => "compiles",
            Self::Exception => "handles an exception or exits",
            Self::Requests => "waits for requests",
            Self::Other => "runs other code",
        }
    }
}

/// Finds the kind of code by the names of functions and files, the innermost frame first.
pub(super) fn stack_class(stack: &ThreadStack) -> StackClass {
    const CLASSES: [(StackClass, &[&str]); 7] = [
        (StackClass::Exception, &["excepthook", "print_exception", "traceback.py", "atexit", "_shutdown", "pdb.py"]),
        (
            StackClass::Checkpoint,
            &["checkpoint", "save_pretrained", "torch/serialization.py", "state_dict", "save_model"],
        ),
        (StackClass::Compile, &["_inductor/", "_dynamo/", "triton/compiler", "torch/utils/cpp_extension", "ninja"]),
        (
            StackClass::Data,
            &[
                "dataloader",
                "_next_data",
                "load_batch",
                "next_batch",
                "get_batch",
                "dataset",
                "__getitem__",
                "webdataset",
            ],
        ),
        (
            StackClass::Requests,
            &["zmq/", "get_request", "recv_requests", "recv_req", "input_queue", "asyncio/", "uvloop"],
        ),
        (
            StackClass::Collective,
            &[
                "distributed_c10d",
                "all_reduce",
                "allreduce",
                "all_gather",
                "reduce_scatter",
                "broadcast",
                "barrier",
                "synchronize",
                "torch/distributed",
                "all_to_all",
                "nccl",
                "collective",
            ],
        ),
        (StackClass::Compute, &["forward", "backward", "optim", "torch/nn/", "autograd", "_call_impl", "train_step"]),
    ];
    for frame in &stack.frames {
        let place = format!("{} {}", frame.file, frame.function).to_lowercase();
        if let Some((class, _)) = CLASSES.iter().find(|(_, words)| words.iter().any(|word| place.contains(word))) {
            return *class;
        }
    }
    StackClass::Other
}

/// A frame as text: `load_batch (data.py:211)`.
pub(super) fn frame_text(frame: &Frame) -> String {
    let file = frame.file.rsplit('/').next().unwrap_or_default();
    match (file, frame.line) {
        ("", _) => frame.function.to_string(),
        (file, Some(line)) => format!("{} ({file}:{line})", frame.function),
        (file, None) => format!("{} ({file})", frame.function),
    }
}

/// The work of a process on its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HostWork {
    /// No CPU time, no bytes, and the stack stands still where it is known.
    Idle,
    /// It works, with the evidence: `writes 40 MB/s`.
    Works(String),
    /// It was not examined twice, or the readings do not decide.
    Unclear(String),
}

/// Judges the process of a rank. Signs of work count also if the readings are close together; a standstill needs
/// [`MIN_APART`].
pub(super) fn host_work(rank: &RankEvidence) -> HostWork {
    if let Some(text) = moves(rank) {
        return HostWork::Works(text);
    }
    let gpu = gpu_activity(rank);
    if gpu == GpuActivity::Works {
        return HostWork::Works("its GPU computes".to_owned());
    }
    let Some(process) = twice(rank, |reading| reading.examination.process.as_deref()) else {
        let reason = if rank.is_mine { "it was not examined twice" } else { "it belongs to another user" };
        return HostWork::Unclear(reason.to_owned());
    };
    let largest = |value: &dyn Fn(&RankReading) -> Option<f32>| rank.readings.iter().filter_map(value).reduce(f32::max);
    let workers = largest(&|reading| reading.descendants_cpu_percent);
    if let Some(percent) = workers.filter(|percent| *percent >= BUSY_CPU_PERCENT) {
        return HostWork::Works(format!("its worker processes use {:.1} cores", percent / 100.0));
    }
    let share = |milliseconds: Option<u64>, seconds: f32| {
        milliseconds.filter(|_| seconds > 0.0).map(|milliseconds| milliseconds as f32 / seconds / 10.0)
    };
    let main = largest(&|reading| {
        let process = reading.examination.process.as_deref()?;
        share(cpu_ms(process.main_thread.as_ref()?), process.seconds)
    });
    let all = largest(&|reading| {
        let process = reading.examination.process.as_deref()?;
        share(process.cpu_ms, process.seconds).or(reading.cpu_percent)
    });
    let is_in = |state| process.last.main_thread.as_ref().is_some_and(|thread| thread.state == Some(state));
    if is_in(ProcessState::DiskSleep) {
        return HostWork::Unclear("it waits for storage".to_owned());
    }
    // A thread that hangs is not ready to run. One that waits for its GPU in a loop is, without an effect on the job.
    let queued = largest(&|reading| {
        let process = reading.examination.process.as_deref()?;
        share(process.main_thread.as_ref()?.queued_ms, process.seconds)
    });
    if let Some(percent) = queued.filter(|percent| *percent >= STARVED_PERCENT && gpu != GpuActivity::Spins) {
        return HostWork::Works(format!("its main thread is ready to run and has no CPU {percent:.0} % of the time"));
    }
    let woken = largest(&|reading| {
        let process = reading.examination.process.as_deref().filter(|process| process.seconds > 0.0)?;
        Some(process.main_thread.as_ref()?.voluntary_switches? as f32 / process.seconds)
    });
    let is_unmoved =
        stacks(rank).is_some_and(|it| it.is_far_apart() && stack_change(it.first, it.last) == StackChange::Same);
    // A rank that waits for its own GPU uses a whole CPU in the driver, and one more in the proxy thread of NCCL.
    let waits_for_gpu = gpu == GpuActivity::Spins && stacks(rank).is_none_or(|_| is_unmoved);
    match (main, all) {
        _ if !process.is_far_apart() => HostWork::Unclear("it was not examined twice a minute apart".to_owned()),
        (None, None) => HostWork::Unclear("its CPU time is not known".to_owned()),
        _ if waits_for_gpu => HostWork::Idle,
        _ if gpu == GpuActivity::Spins => HostWork::Unclear("it waits for its GPU in a loop".to_owned()),
        (Some(main), _) if main >= BUSY_CPU_PERCENT => {
            HostWork::Works(format!("its main thread uses {:.1} cores", main / 100.0))
        }
        (_, Some(all)) if all >= BUSY_CPU_PERCENT => HostWork::Unclear(format!("it uses {:.1} cores", all / 100.0)),
        (Some(main), _) if main > IDLE_CPU_PERCENT => {
            HostWork::Unclear("its main thread uses some CPU time".to_owned())
        }
        _ if workers.is_some_and(|percent| percent > IDLE_CPU_PERCENT) => {
            HostWork::Unclear("its worker processes use some CPU time".to_owned())
        }
        _ if woken.is_some_and(|rate| rate >= OFTEN_WOKEN) => {
            HostWork::Unclear(format!("its main thread wakes {:.0} times a second", woken.unwrap_or_default()))
        }
        // Without the main thread alone, the threads of a watchdog may hide little work.
        (None, Some(all)) if all > IDLE_CPU_PERCENT => HostWork::Unclear("it uses some CPU time".to_owned()),
        _ => HostWork::Idle,
    }
}

fn cpu_ms(thread: &ThreadReading) -> Option<u64> {
    Some(thread.user_ms?.saturating_add(thread.system_ms?))
}

/// The sign that a process made progress between its readings: bytes or its Python stack. `None` without one.
pub(super) fn moves(rank: &RankEvidence) -> Option<String> {
    let grew = |bytes: Option<Twice<u64>>, least: u64| {
        bytes.map(|it| it.last.saturating_sub(it.first)).filter(|bytes| *bytes >= least)
    };
    if let Some(bytes) = grew(twice(rank, |reading| reading.write_bytes), WRITES_BYTES) {
        return Some(format!("wrote {}", bytes_text(bytes)));
    }
    let in_examination =
        rank.readings.iter().filter_map(|reading| reading.examination.process.as_deref()?.written_bytes);
    if let Some(bytes) = in_examination.max().filter(|bytes| *bytes >= WRITES_BYTES) {
        return Some(format!("wrote {} in a second", bytes_text(bytes)));
    }
    if let Some(it) = stacks(rank).filter(|it| stack_change(it.first, it.last) == StackChange::Moved) {
        let place = it.last.frames.first().map(frame_text).unwrap_or_default();
        return Some(format!("its Python stack moved, now {place}"));
    }
    if let Some(bytes) = grew(twice(rank, |reading| reading.read_bytes), READS_BYTES) {
        return Some(format!("read {}", bytes_text(bytes)));
    }
    None
}

/// The age of a log is read some seconds before the rest of the last reading. A line written up to so long after the first reading
/// does not count.
const LOG_READ_EARLIER: Duration = Duration::from_secs(10);

/// Whether the log of a rank was written between its readings, by more than a line about waiting. Needs the end of the log.
pub(super) fn log_moves(rank: &RankEvidence) -> bool {
    let Some((log, observed)) = rank.log.as_ref().zip(observed(rank)) else { return false };
    let age = log.age.or_else(|| rank.readings.iter().max_by_key(|reading| reading.at).and_then(|last| last.log_age));
    age.is_some_and(|age| age + LOG_READ_EARLIER < observed) && !log.lines.is_empty() && !only_repeats(&log.lines)
}

/// Decimal units, as storage and networks use: `40 MB`.
pub(super) fn bytes_text(bytes: u64) -> String {
    let bytes = bytes as f64;
    for (unit, name) in [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")] {
        if bytes >= unit {
            return format!("{:.0} {name}", bytes / unit);
        }
    }
    format!("{bytes:.0} B")
}

#[cfg(test)]
mod tests {
    use super::super::testing::{add_log, gpu, hanging_job, sleeps, spinning_gpu, stack};
    use super::*;

    #[test]
    fn a_line_in_the_log_counts_from_ten_seconds_after_the_first_reading_on() {
        // The readings are 60 s apart.
        for (age, moves) in [(45, true), (49, true), (50, false), (59, false), (61, false)] {
            let mut job = hanging_job(1);
            add_log(&mut job, &["step 4"]);
            let rank = &mut job.ranks[0];
            rank.log.as_mut().expect("a log").age = Some(Duration::from_secs(age));
            assert_eq!(log_moves(rank), moves, "{age}");
        }
    }

    #[test]
    fn reported_hangs_spin_and_reported_work_does_not() {
        for (name, reading) in [
            ("H100", gpu(100, 100.0, 700.0)),
            ("H20", gpu(100, 118.0, 400.0)),
            ("V100", gpu(100, 76.0, 300.0)),
            ("A100", gpu(100, 69.0, 300.0)),
            ("RTX PRO 6000", gpu(100, 120.0, 600.0)),
        ] {
            assert_eq!(activity_of_gpu(&reading), GpuActivity::Spins, "{name}");
        }
        for (name, reading) in [
            ("H100", gpu(100, 250.0, 700.0)),
            ("A100", gpu(100, 150.0, 400.0)),
            ("V100, decode", gpu(100, 180.0, 300.0)),
            ("H100, inference", gpu(24, 159.0, 700.0)),
            ("RTX 3090, which shows only its power", gpu(100, 267.0, 350.0)),
        ] {
            assert_eq!(activity_of_gpu(&reading), GpuActivity::Works, "{name}");
        }
        assert_eq!(activity_of_gpu(&gpu(0, 109.0, 700.0)), GpuActivity::Idle);
        assert_eq!(activity_of_gpu(&RankGpu::default()), GpuActivity::Unknown);
        let utilization = RankGpu { utilization_percent: Some(100), ..RankGpu::default() };
        assert_eq!(activity_of_gpu(&utilization), GpuActivity::Unknown);
    }

    #[test]
    fn gpm_shows_a_spin_whatever_the_power_and_work_at_low_power() {
        let hot = RankGpu { power_watts: Some(267.0), power_limit_watts: Some(350.0), ..spinning_gpu(0) };
        assert_eq!(activity_of_gpu(&hot.clone()), GpuActivity::Spins);
        assert_eq!(
            activity_of_gpu(&RankGpu { nvlink_bytes_per_second: Some(2e10), ..hot.clone() }),
            GpuActivity::Works
        );
        assert_eq!(activity_of_gpu(&RankGpu { dram_percent: Some(3.0), ..hot.clone() }), GpuActivity::Works);
        let by_rule = RankGpu { waits_by_rule: true, dram_percent: Some(3.0), ..hot };
        assert_eq!(activity_of_gpu(&by_rule), GpuActivity::Spins, "below its own power at work, for minutes");
        assert_eq!(activity_of_gpu(&RankGpu { dram_percent: Some(12.0), ..by_rule.clone() }), GpuActivity::Works);
        assert_eq!(activity_of_gpu(&RankGpu { utilization_percent: None, ..by_rule }), GpuActivity::Spins);
        assert_eq!(activity_of_gpu(&RankGpu { tensor_percent: Some(20.0), ..spinning_gpu(0) }), GpuActivity::Works);
    }

    #[test]
    fn without_a_limit_the_healthy_power_of_the_job_decides() {
        let gb10 = |watts| RankGpu { healthy_power_watts: Some(45.0), ..gpu(96, watts, 0.0) };
        assert_eq!(activity_of_gpu(&gb10(21.0)), GpuActivity::Spins);
        assert_eq!(activity_of_gpu(&gb10(40.0)), GpuActivity::Works);
        assert_eq!(activity_of_gpu(&gpu(96, 15.0, 0.0)), GpuActivity::Unknown);
    }

    #[test]
    fn stacks_are_compared_from_the_outermost_frame() {
        let change = |first: &[&str], last: &[&str]| {
            let (first, last) = (stack(first), stack(last));
            stack_change(&first.threads[0], &last.threads[0])
        };
        let outer = ["step@t.py:8", "main@t.py:9"];
        let with = |inner: &[&'static str]| [inner, &outer].concat();
        assert_eq!(change(&with(&["f@a.py:1"]), &with(&["f@a.py:1"])), StackChange::Same);
        assert_eq!(change(&with(&["f@a.py:1"]), &with(&["f@a.py:2"])), StackChange::Innermost);
        assert_eq!(change(&with(&["f@a.py:1"]), &with(&[])), StackChange::Innermost);
        assert_eq!(change(&with(&["f@a.py:1"]), &with(&["g@a.py:2"])), StackChange::Moved);
        assert_eq!(change(&with(&["f@a.py:1"]), &["f@a.py:1", "step@t.py:8", "main@t.py:12"]), StackChange::Moved);
        let mut cut = stack(&["f@a.py:1", "step@t.py:8"]).threads.remove(0);
        cut.frames_left_out = 1;
        let whole = stack(&["f@a.py:3", "step@t.py:8", "main@t.py:9"]).threads.remove(0);
        assert_eq!(stack_change(&cut, &whole), StackChange::Innermost);
    }

    #[test]
    fn stack_classes_follow_the_innermost_known_frame() {
        let class = |frames: &[&str]| stack_class(&stack(frames).threads[0]);
        assert_eq!(
            class(&["wait@torch/distributed/distributed_c10d.py:1", "save@checkpoint.py:2"]),
            StackClass::Collective
        );
        assert_eq!(class(&["write@io.py:1", "save_checkpoint@train.py:2"]), StackClass::Checkpoint);
        assert_eq!(class(&["get@queues.py:1", "_next_data@torch/utils/data/dataloader.py:2"]), StackClass::Data);
        assert_eq!(class(&["print_exception@x.py:1"]), StackClass::Exception);
        assert_eq!(class(&["f@g.py:1"]), StackClass::Other);
    }

    /// A rank with an idle GPU whose main thread has these values in a second of the second examination.
    fn resting(queued_ms: u64, voluntary_switches: u64) -> RankEvidence {
        let mut rank = hanging_job(1).ranks.remove(0);
        sleeps(&mut rank, &["load_batch@data.py:211"]);
        let process = rank.readings[1].examination.process.as_mut().unwrap();
        let thread = process.main_thread.as_mut().unwrap();
        (thread.queued_ms, thread.voluntary_switches) = (Some(queued_ms), Some(voluntary_switches));
        rank
    }

    #[test]
    fn a_main_thread_without_a_cpu_works() {
        assert_eq!(host_work(&resting(499, 0)), HostWork::Idle);
        let starved = HostWork::Works("its main thread is ready to run and has no CPU 50 % of the time".to_owned());
        assert_eq!(host_work(&resting(500, 0)), starved);
        let mut spinning = resting(900, 0);
        spinning.gpus = vec![spinning_gpu(0)];
        assert_eq!(host_work(&spinning), HostWork::Idle, "it waits for its GPU in a loop");
    }

    #[test]
    fn a_main_thread_that_wakes_often_may_work() {
        assert_eq!(host_work(&resting(0, 49)), HostWork::Idle);
        let often = HostWork::Unclear("its main thread wakes 50 times a second".to_owned());
        assert_eq!(host_work(&resting(0, 50)), often);
        let mut unknown = resting(0, 0);
        let process = unknown.readings[1].examination.process.as_mut().unwrap();
        let thread = process.main_thread.as_mut().unwrap();
        (thread.queued_ms, thread.voluntary_switches) = (None, None);
        assert_eq!(host_work(&unknown), HostWork::Idle, "an older probe, or a kernel without schedstat");
    }

    #[test]
    fn a_rank_that_waits_for_its_gpu_with_a_whole_cpu_is_idle() {
        assert_eq!(host_work(&hanging_job(1).ranks[0]), HostWork::Idle);
        let mut other = hanging_job(1).ranks.remove(0);
        other.is_mine = false;
        other.readings.clear();
        assert_eq!(host_work(&other), HostWork::Unclear("it belongs to another user".to_owned()));
    }
}
