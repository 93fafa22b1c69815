//! The recordings of real hangs in `tests/gloo_hangs`, for tests.

use super::flight_recorder::read_dump;
use super::stacks::parse_output;
use crate::wire::{Examination, FlightRecorderDump, ProcessExamination, ProcessState, StackDump, ThreadReading};
use std::path::{Path, PathBuf};

pub(super) fn path(kind: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gloo_hangs").join(kind).join(name)
}

/// The pid of a rank, and the kernel function in which it waited.
pub(super) fn wait_channel(kind: &str, rank: u32) -> (u32, String) {
    let lines = std::fs::read_to_string(path(kind, "wait_channels")).unwrap();
    let mut words = lines.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let words = words.find(|words| words[0] == rank.to_string()).unwrap();
    (words[1].parse().unwrap(), words[2].to_owned())
}

pub(super) fn recorded_stacks(kind: &str, rank: u32) -> StackDump {
    let output = std::fs::read(path(kind, &format!("stacks_{rank}.json"))).unwrap();
    parse_output(&output, Path::new("py-spy"), wait_channel(kind, rank).0, "").unwrap()
}

/// The examination of a rank as the probe would have sent it some seconds after the dump. The main thread was asleep both times.
pub(crate) fn recorded_examination(kind: &str, rank: u32) -> Examination {
    let (pid, wait_channel) = wait_channel(kind, rank);
    let main = ThreadReading {
        state: Some(ProcessState::Sleeping),
        wait_channel: Some(wait_channel.into()),
        user_ms: Some(0),
        system_ms: Some(0),
        voluntary_switches: Some(0),
        involuntary_switches: Some(0),
        ..ThreadReading::default()
    };
    let process = ProcessExamination {
        ns_pid: Some(pid),
        seconds: 1.0,
        main_thread: Some(main),
        cpu_ms: Some(0),
        written_bytes: Some(0),
        variables: vec![format!("RANK={rank}").into(), "WORLD_SIZE=3".into()],
        ..ProcessExamination::default()
    };
    Examination {
        process: Some(Box::new(process)),
        stacks: Some(Box::new(recorded_stacks(kind, rank))),
        flight_recorder: Some(Box::new(recorded_dump(kind, rank))),
        ..Examination::default()
    }
}

/// The dump of a rank. It was written 90 s after the hang began: the last operation that began is at most a second older.
pub(super) fn recorded_dump(kind: &str, rank: u32) -> FlightRecorderDump {
    let bytes = std::fs::read(path(kind, &format!("flight_recorder_{rank}"))).unwrap();
    let first = read_dump(&mut &bytes[..], 4e9, "").unwrap();
    let last = first.groups[0].waiting.first().or(first.groups[0].last_ended.as_ref()).unwrap();
    let written = 4e9 - last.waited_seconds.unwrap() + 90.0;
    let dump = read_dump(&mut &bytes[..], written, "").unwrap();
    FlightRecorderDump { file: format!("~/.cache/torch/comm_lib_trace_rank_{rank}").into(), age_seconds: 20.0, ..dump }
}
