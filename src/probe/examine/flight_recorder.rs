//! The dump of PyTorch's Flight Recorder: a file that PyTorch writes when a collective operation times out, or on request.
//!
//! The format is that of `torch/csrc/distributed/c10d/FlightRecorder.hpp`, versions 2.4 (PyTorch 2.6) to 2.10 (PyTorch 2.15).

use super::cut::{beginning, end, take_greatest};
use super::memory_facts::environment;
use super::pickle::{Unreadable, Value, read_pickle};
use super::stacks::with_tilde;
use crate::probe::procfs::{
    FileReader, NEEDS_OPENAT2, environment_variable, open_as_process, started_at, unix_seconds,
};
use crate::wire::{
    ExaminationPart, ExaminationRefusal, FlightRecorderDump, Frame, RecordedGroup, RecordedOperation, SafeText, limits,
};
use rustix::fs::fstat;
use rustix::io::Errno;
use std::fs::File;
use std::io::{BufReader, Read};

/// Maximum size of a dump. One with 2000 operations, the default, has about 500 kB.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Maximum number of process groups that are compared. A rank is in about ten.
const MAX_GROUPS: usize = 64;
/// Maximum number of frames of an operation.
const MAX_OPERATION_FRAMES: usize = 8;
/// Maximum number of bytes of a name, and of a path.
const MAX_NAME_BYTES: usize = 64;
const MAX_PATH_BYTES: usize = 128;

/// The tolerance for the start of a process, which is known to a tick, and for steps of the clock.
const START_SLACK_SECONDS: f64 = 5.0;

/// The variables that name the file, without the rank at its end. Versions before 2.8 know only the second one.
const FILE_VARIABLES: [&str; 2] = ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"];
/// With this variable, since PyTorch 2.10, the value that the first of them has at the time of the dump is the whole name
/// (`DebugInfoWriter::write` in FlightRecorder.cpp). A program changes it while it runs, which `/proc/PID/environ` does not show.
const DYNAMIC_NAME: &str = "TORCH_FR_DUMP_DYNAMIC_FILE_NAME";
/// The default names in the cache directory: since PyTorch 2.9, and before.
const CACHED_FILES: [&str; 2] = ["torch/comm_lib_trace_rank_", "torch/nccl_trace_rank_"];
/// The default name in older versions.
const OLDEST_FILE: &str = "/tmp/nccl_trace_rank_";

/// The result of [`open_own`] for a path.
type OpenFile<'a> = dyn Fn(&str) -> Result<Option<(f64, File)>, Errno> + 'a;

/// Reads the dump of a process. May block.
pub(super) fn examine_flight_recorder(pid: u32) -> Result<FlightRecorderDump, ExaminationRefusal> {
    read_dump_of(pid, &|path| open_own(pid, path))
}

/// Reads the dump of a process. `open_file` opens a file as the process would, and returns the time of the last write with it.
fn read_dump_of(pid: u32, open_file: &OpenFile<'_>) -> Result<FlightRecorderDump, ExaminationRefusal> {
    let mut reader = FileReader::default();
    let environment = environment(pid, &mut reader);
    let variable = |name| environment_variable(&environment, name).and_then(|value| std::str::from_utf8(value).ok());
    let Some(rank) = variable("RANK").and_then(|rank| rank.parse::<u32>().ok()) else {
        return Err(refusal("PyTorch names the file by RANK, which its environment lacks", ""));
    };
    let started = started_at(pid, &mut reader).ok_or_else(|| refusal("/proc does not show the process", ""))?;
    let mut older = None;
    let mut newest: Option<(f64, String, File)> = None;
    let paths = paths(&environment, rank);
    if paths.is_empty() {
        return Err(refusal(
            format!("the program names the file while it runs ({DYNAMIC_NAME}), and PyTorch adds no rank to it"),
            format!("{} with the rank at its end before the next start, or no {DYNAMIC_NAME}", FILE_VARIABLES[0]),
        ));
    }
    let mut needs_openat2 = None;
    for path in paths {
        let (written, file) = match open_file(&path) {
            Ok(Some(own)) => own,
            Ok(None) => continue,
            Err(error) => {
                needs_openat2 = needs_openat2.or((error == NEEDS_OPENAT2).then_some(path));
                continue;
            }
        };
        if written < started {
            older = Some(path);
        } else if newest.as_ref().is_none_or(|(known, ..)| *known < written) {
            newest = Some((written, path, file));
        }
    }
    let home = variable("HOME").unwrap_or_default();
    let Some((written, path, file)) = newest else {
        let pipe = variable("TORCH_NCCL_DEBUG_INFO_PIPE_FILE").filter(|stem| !stem.is_empty());
        if let Some(path) = needs_openat2 {
            let path = end(&with_tilde(&path, home), MAX_PATH_BYTES);
            return Err(refusal(
                format!("{path} has a symbolic link or `..` inside a container: needs Linux 5.6"),
                format!("{} with a path without links before the next start", FILE_VARIABLES[0]),
            ));
        }
        let older = older.map(|path| with_tilde(&path, home));
        return Err(not_written(older.as_deref(), pipe, rank));
    };
    let mut reader = BufReader::new(file.take(MAX_FILE_BYTES));
    let mut dump = read_dump(&mut reader, written, home).map_err(unreadable)?;
    dump.file = end(&with_tilde(&path, home), MAX_PATH_BYTES);
    dump.age_seconds = (unix_seconds() - written).max(0.0);
    // The program may have changed a dynamic name, and another job of the account may write to the one that it started with.
    dump.is_default_path = variable(DYNAMIC_NAME).is_some_and(is_true)
        || FILE_VARIABLES.iter().all(|name| variable(name).is_none_or(str::is_empty));
    // Another job of the account may use the same path.
    let waits = dump.groups.iter().flat_map(|group| &group.waiting).filter_map(|operation| operation.waited_seconds);
    if waits.fold(0.0, f64::max) > written - started + START_SLACK_SECONDS {
        return Err(refusal(format!("{} has operations from before the start of the process", dump.file), ""));
    }
    Ok(dump)
}

/// The paths at which the dump of a rank may be. PyTorch takes one of them, which depends on its version. Empty if only the
/// program knows it.
fn paths(environment: &[u8], rank: u32) -> Vec<String> {
    let variable = |name: &str| {
        let value = environment_variable(environment, name).and_then(|value| std::str::from_utf8(value).ok());
        value.filter(|value| !value.is_empty())
    };
    if variable(DYNAMIC_NAME).is_some_and(is_true) {
        // Ranks that share a name overwrite the dumps of each other.
        let path = variable(FILE_VARIABLES[0]).filter(|path| number_at_end(path) == Some(rank));
        return path.into_iter().map(str::to_owned).collect();
    }
    let mut paths = Vec::new();
    for name in FILE_VARIABLES {
        paths.extend(variable(name).map(|stem| format!("{stem}{rank}")));
    }
    if !paths.is_empty() {
        return paths;
    }
    // The first versions with a cache directory do not know XDG_CACHE_HOME.
    let home = variable("HOME").unwrap_or("/tmp");
    for cache in [variable("XDG_CACHE_HOME").map(str::to_owned), Some(format!("{home}/.cache"))].into_iter().flatten() {
        for name in CACHED_FILES {
            paths.push(format!("{cache}/{name}{rank}"));
        }
    }
    paths.push(format!("{OLDEST_FILE}{rank}"));
    paths
}

/// Whether PyTorch takes the value of a variable as true: `getCvarBool` in c10d/Utils.hpp.
fn is_true(value: &str) -> bool {
    ["1", "y", "yes", "t", "true"].iter().any(|word| value.eq_ignore_ascii_case(word))
}

/// The number at the end of a name. It is a rank in `fr_3` and a version in `dump_v3`, so that such a dump proves nothing.
fn number_at_end(path: &str) -> Option<u32> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let rest = name.trim_end_matches(|character: char| character.is_ascii_digit());
    name[rest.len()..].parse().ok()
}

/// Opens a file of this user as process `pid` would. Returns it with the time of the last write, in seconds since 1970. Any account
/// may write to `/tmp`, so that a file of another user proves nothing: it gives `None`.
fn open_own(pid: u32, path: &str) -> Result<Option<(f64, File)>, Errno> {
    let file = open_as_process(pid, path)?;
    let status = fstat(&file)?;
    let is_own = status.st_uid == rustix::process::getuid().as_raw() && status.st_mode & 0o002 == 0;
    Ok(is_own.then(|| (status.st_mtime as f64 + status.st_mtime_nsec as f64 / 1e9, File::from(file))))
}

/// A process group while the dump is read.
struct Group {
    reading: RecordedGroup,
    /// Its number in this process, by which `pg_status` names it.
    id: i64,
}

/// Reads a dump that was written at this time, in seconds since 1970.
pub(super) fn read_dump(source: &mut dyn Read, written: f64, home: &str) -> Result<FlightRecorderDump, Unreadable> {
    let mut dump = FlightRecorderDump::default();
    let mut groups: Vec<Group> = Vec::new();
    let whole = read_pickle(source, &mut |known, key, entry| {
        if key != "entries" {
            return;
        }
        if dump.operations == 0 {
            dump.is_overwritten = entry.get("record_id").and_then(Value::number) != Some(0);
        }
        dump.operations += 1;
        let Some(group) = group_of(&mut groups, entry) else {
            dump.groups_left_out = 1;
            return;
        };
        add_operation(group, entry, last_completed(known, group.id), written, home);
    })?;
    let Some(version) = whole.get("version").and_then(Value::text) else { return Err(Unreadable::Malformed) };
    dump.version = beginning(version, MAX_NAME_BYTES);
    // A group without an operation has scheduled none, unless its operations were overwritten.
    if let Some(Value::Dict(configuration)) = whole.get("pg_config").filter(|_| !dump.is_overwritten) {
        for pair in configuration.chunks_exact(2) {
            let part = |name| beginning(pair[1].get(name).and_then(Value::text).unwrap_or_default(), MAX_NAME_BYTES);
            let (name, description) = (part("name"), part("desc"));
            let is_known = groups.iter().any(|group| group.reading.name == name);
            if !name.is_empty() && !is_known && groups.len() < MAX_GROUPS {
                groups.push(Group { reading: RecordedGroup { name, description, ..RecordedGroup::default() }, id: -1 });
            }
        }
    }
    let mut groups: Vec<RecordedGroup> = groups.into_iter().map(|group| group.reading).collect();
    let taken = take_greatest(&mut groups, limits::MAX_RECORDED_GROUPS, &|group| u64::from(!group.waiting.is_empty()));
    (dump.groups, dump.groups_left_out) = (taken, dump.groups_left_out + groups.len() as u32);
    Ok(dump)
}

/// A fuzz target: reads any bytes as a dump.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) -> Option<FlightRecorderDump> {
    read_dump(&mut &data[..], 2e9, "/root").ok()
}

/// Returns the group of an operation. `None` if there are too many.
fn group_of<'a>(groups: &'a mut Vec<Group>, entry: &Value) -> Option<&'a mut Group> {
    let names = entry.get("process_group").map(Value::items).unwrap_or_default();
    let part = |at: usize| beginning(names.get(at).and_then(Value::text).unwrap_or_default(), MAX_NAME_BYTES);
    let (name, description) = (part(0), part(1));
    let known = groups.iter().position(|group| group.reading.name == name && group.reading.description == description);
    if known.is_none() && groups.len() < MAX_GROUPS {
        let id = entry.get("pg_id").and_then(Value::number).unwrap_or(-1);
        groups.push(Group { reading: RecordedGroup { name, description, ..RecordedGroup::default() }, id });
        return groups.last_mut();
    }
    groups.get_mut(known?)
}

/// The last operation of a group that has ended: `pg_status`, which comes before the operations. PyTorch writes -1 if there is
/// none.
fn last_completed(known: &[Value], group: i64) -> Option<i64> {
    let mut pairs = known.chunks_exact(2);
    let status = pairs.find_map(|pair| (pair[0].text() == Some("pg_status")).then_some(&pair[1]))?;
    status.get(&group.to_string())?.get("last_completed_collective")?.number()
}

fn add_operation(group: &mut Group, entry: &Value, last_completed: Option<i64>, written: f64, home: &str) {
    let number = |key| entry.get(key).and_then(Value::number);
    let Some(sequence) = number("collective_seq_id").and_then(|number| u64::try_from(number).ok()) else { return };
    let is_point_to_point = entry.get("is_p2p") == Some(&Value::Flag(true));
    let reading = &mut group.reading;
    reading.last_completed = last_completed.and_then(|number| u64::try_from(number).ok());
    if !is_point_to_point {
        reading.last_scheduled = reading.last_scheduled.max(Some(sequence));
    }
    // gloo never writes `completed`, and NCCL also calls an operation retired that has timed out.
    let has_ended = entry.get("state").and_then(Value::text) == Some("completed")
        || match last_completed {
            Some(last) if !is_point_to_point => i64::try_from(sequence).is_ok_and(|sequence| sequence <= last),
            _ => entry.get("retired") == Some(&Value::Flag(true)),
        };
    if !has_ended && reading.waiting.len() == limits::MAX_RECORDED_OPERATIONS {
        reading.waiting_left_out += 1;
        return;
    }
    let name = entry.get("profiling_name").and_then(Value::text).unwrap_or_default();
    let waited = number("time_created_ns").map(|created| written - created as f64 / 1e9);
    let operation = RecordedOperation {
        sequence,
        is_point_to_point,
        name: beginning(name, MAX_NAME_BYTES),
        waited_seconds: waited.filter(|seconds| *seconds >= 0.0),
        frames: frames(entry, home),
    };
    if has_ended {
        reading.last_ended = Some(operation);
    } else {
        reading.last_ended = None;
        reading.waiting.push(operation);
    }
}

fn frames(entry: &Value, home: &str) -> Vec<Frame> {
    let frames = entry.get("frames").map(Value::items).unwrap_or_default();
    let frame = |frame: &Value| Frame {
        function: beginning(frame.get("name").and_then(Value::text).unwrap_or_default(), MAX_NAME_BYTES),
        file: end(&with_tilde(frame.get("filename").and_then(Value::text).unwrap_or_default(), home), MAX_PATH_BYTES),
        line: frame.get("line").and_then(Value::number).and_then(|line| u32::try_from(line).ok()).filter(|it| *it > 0),
    };
    frames.iter().take(MAX_OPERATION_FRAMES).map(frame).collect()
}

fn refusal(reason: impl Into<SafeText>, remedy: impl Into<SafeText>) -> ExaminationRefusal {
    ExaminationRefusal::new(ExaminationPart::FlightRecorder, reason, remedy)
}

/// The refusal if there is no dump of this process. `older` is the path of one that an earlier process wrote, and `pipe` the
/// beginning of the name of the pipe that requests one (`DumpPipe` in ProcessGroupNCCL.hpp).
fn not_written(older: Option<&str>, pipe: Option<&str>, rank: u32) -> ExaminationRefusal {
    let reason = match older {
        Some(path) => format!("{} is older than the process", end(path, MAX_PATH_BYTES)),
        None => "PyTorch has written no dump: it does so when an operation of NCCL times out".to_owned(),
    };
    let remedy = match pipe {
        Some(stem) => format!("request one: `echo > {stem}{rank}.pipe`"),
        None => "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/dump_ before the next start, to request one".to_owned(),
    };
    refusal(reason, beginning(&remedy, 2 * MAX_PATH_BYTES))
}

fn unreadable(error: Unreadable) -> ExaminationRefusal {
    match error {
        Unreadable::Malformed => refusal("the dump ends midway, or has an unknown format", "try again in a minute"),
        Unreadable::OtherInstruction(opcode) => refusal(
            format!("the dump has an instruction that may call a function (0x{opcode:02x}), so it is not read"),
            "",
        ),
        Unreadable::TooLarge => refusal("the dump is larger than gpufleet reads", "a smaller TORCH_FR_BUFFER_SIZE"),
    }
}

#[cfg(test)]
#[path = "flight_recorder_tests.rs"]
mod tests;
