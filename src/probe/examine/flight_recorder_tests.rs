//! Tests of [`super`], with the dumps in `tests/gloo_hangs` and with dumps in the format of NCCL.

use super::super::recorded_hangs::{path, recorded_dump};
use super::super::test_process::TestProcess;
use super::*;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

fn frame(function: &str, line: u32) -> Frame {
    Frame { function: function.into(), file: "/tmp/hangs/train.py".into(), line: Some(line) }
}

#[test]
fn a_recorded_dump_shows_the_last_operation_of_each_rank() {
    for kind in ["sleep", "data"] {
        for rank in [0, 2] {
            let dump = recorded_dump(kind, rank);
            assert_eq!((&*dump.version, dump.operations, dump.is_overwritten), ("2.10", 6, false));
            let [group] = &dump.groups[..] else { panic!("{dump:?}") };
            assert_eq!((&*group.name, &*group.description), ("0", "default_pg"));
            assert_eq!((group.last_scheduled, group.last_completed), (Some(6), Some(5)));
            let [waiting] = &group.waiting[..] else { panic!("{group:?}") };
            assert_eq!((waiting.sequence, &*waiting.name, waiting.is_point_to_point), (6, "gloo:all_reduce", false));
            assert!((waiting.waited_seconds.unwrap() - 90.0).abs() < 0.001, "{waiting:?}");
            assert_eq!(waiting.frames.len(), 5);
            assert!(waiting.frames[0].file.ends_with("/torch/distributed/distributed_c10d.py"), "{waiting:?}");
            assert_eq!(waiting.frames[2], frame("train_step", 44));
            assert_eq!(group.last_ended, None);
        }
        let dump = recorded_dump(kind, 1);
        let [group] = &dump.groups[..] else { panic!("{dump:?}") };
        assert_eq!((group.last_scheduled, group.last_completed, group.waiting.len()), (Some(5), Some(5), 0));
        assert_eq!(group.last_ended.as_ref().unwrap().sequence, 5);
    }
    let other = recorded_dump("mismatch", 1);
    let waiting = &other.groups[0].waiting[0];
    assert_eq!((waiting.sequence, &*waiting.name), (6, "gloo:all_gather"));
    assert_eq!(waiting.frames[2..4], [frame("evaluate", 49), frame("train_step", 43)]);
}

#[test]
fn every_beginning_of_a_dump_is_refused() {
    let bytes = std::fs::read(path("mismatch", "flight_recorder_1")).unwrap();
    for length in 0..bytes.len() {
        assert_eq!(read_dump(&mut &bytes[..length], 0.0, ""), Err(Unreadable::Malformed), "{length}");
    }
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            if let Ok(dump) = read_dump(&mut &changed[..], 0.0, "") {
                assert!(dump.groups.len() <= limits::MAX_RECORDED_GROUPS);
            }
        }
    }
}

#[test]
fn a_link_in_a_container_needs_linux_5_6() {
    let mut command = Command::new("sleep");
    command.arg("600").env_clear().env("RANK", "3").env("HOME", "/home/ann");
    command.env("TORCH_FR_DUMP_TEMP_FILE", "/home/ann/fr/dump_");
    let job = TestProcess::start(&mut command);
    let refused = |error: &dyn Fn(&str) -> Errno| read_dump_of(job.pid(), &|path| Err(error(path))).unwrap_err();
    let refusal = refused(&|path| if path == "/home/ann/fr/dump_3" { NEEDS_OPENAT2 } else { Errno::NOENT });
    assert_eq!(refusal.part, ExaminationPart::FlightRecorder);
    assert_eq!(refusal.reason, "~/fr/dump_3 has a symbolic link or `..` inside a container: needs Linux 5.6");
    assert_eq!(refusal.remedy, "TORCH_FR_DUMP_TEMP_FILE with a path without links before the next start");
    let other = refused(&|_| Errno::NOENT);
    assert!(!other.reason.contains("5.6"), "{other:?}");
}

/// Writes pickles as `torch::jit::Pickler` does, without references to earlier values.
#[derive(Default)]
struct Pickle(Vec<u8>);

impl Pickle {
    fn text(&mut self, text: &str) -> &mut Self {
        self.0.push(b'X');
        self.0.extend_from_slice(&(text.len() as u32).to_le_bytes());
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    fn number(&mut self, number: i64) -> &mut Self {
        self.0.extend_from_slice(&[0x8a, 8]);
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn dict(&mut self, content: impl FnOnce(&mut Self)) -> &mut Self {
        self.0.extend_from_slice(b"}(");
        content(self);
        self.0.push(b'u');
        self
    }

    fn list(&mut self, content: impl FnOnce(&mut Self)) -> &mut Self {
        self.0.extend_from_slice(b"](");
        content(self);
        self.0.push(b'e');
        self
    }
}

/// An operation: number of the group, sequence number, state, retired.
type Operation<'a> = (i64, i64, &'a str, bool);

/// A dump of NCCL with groups that have a status: last completed operation.
fn nccl_dump(groups: &[(&str, i64)], first_record: i64, operations: &[Operation<'_>]) -> Vec<u8> {
    let mut pickle = Pickle(b"\x80\x02".to_vec());
    pickle.dict(|dump| {
        dump.text("version").text("2.9").text("pg_config").dict(|configuration| {
            for (name, _) in groups {
                configuration.text(name).dict(|group| {
                    group.text("name").text(name).text("desc").text("group");
                });
            }
        });
        dump.text("pg_status").dict(|statuses| {
            for (at, (_, last)) in groups.iter().enumerate() {
                statuses.text(&at.to_string()).dict(|status| {
                    status.text("last_completed_collective").number(*last);
                });
            }
        });
        dump.text("entries").list(|entries| {
            for (at, (group, sequence, state, is_retired)) in operations.iter().enumerate() {
                entries.dict(|entry| {
                    entry.text("record_id").number(first_record + at as i64).text("pg_id").number(*group);
                    entry.text("process_group").text(groups[*group as usize].0).text("group").0.push(0x86);
                    entry.text("collective_seq_id").number(*sequence).text("profiling_name").text("nccl:all_reduce");
                    entry.text("state").text(state).text("time_created_ns").number(1_000_000_000 * sequence);
                    entry.text("retired").0.push(if *is_retired { 0x88 } else { 0x89 });
                });
            }
        });
    });
    pickle.0.push(b'.');
    pickle.0
}

fn read(bytes: &[u8]) -> FlightRecorderDump {
    read_dump(&mut &bytes[..], 100.0, "").unwrap()
}

#[test]
fn an_operation_waits_if_it_comes_after_the_last_completed_one() {
    let operations = [(0, 7, "completed", true), (0, 8, "started", true), (0, 9, "scheduled", false)];
    let dump = read(&nccl_dump(&[("tp", 7)], 0, &operations));
    let waiting: Vec<(u64, Option<f64>)> =
        dump.groups[0].waiting.iter().map(|one| (one.sequence, one.waited_seconds)).collect();
    assert_eq!(waiting, [(8, Some(92.0)), (9, Some(91.0))], "NCCL also retires an operation that has timed out");
    assert_eq!(dump.groups[0].last_scheduled, Some(9));
    // PyTorch writes -1 while no operation has ended.
    let dump = read(&nccl_dump(&[("tp", -1)], 0, &[(0, 1, "started", false)]));
    assert_eq!((dump.groups[0].last_completed, dump.groups[0].waiting.len()), (None, 1));
}

#[test]
fn a_group_without_operations_is_known_unless_they_were_overwritten() {
    let groups = [("tp", 3), ("dp", -1)];
    let names = |first_record| {
        let dump = read(&nccl_dump(&groups, first_record, &[(0, 3, "completed", true)]));
        let names: Vec<_> = dump.groups.iter().map(|group| (group.name.to_string(), group.last_scheduled)).collect();
        (dump.is_overwritten, names)
    };
    assert_eq!(names(0), (false, vec![("tp".to_owned(), Some(3)), ("dp".to_owned(), None)]));
    assert_eq!(names(1000), (true, vec![("tp".to_owned(), Some(3))]));
}

#[test]
fn lists_are_cut_and_groups_that_wait_come_first() {
    let names: Vec<String> = (0..100).map(|number| format!("group{number}")).collect();
    let groups: Vec<(&str, i64)> = names.iter().map(|name| (name.as_str(), 0)).collect();
    let mut operations: Vec<Operation<'_>> = (0..100).map(|group| (group, 0, "completed", true)).collect();
    operations.extend((1..10).map(|sequence| (63, sequence, "scheduled", false)));
    let dump = read(&nccl_dump(&groups, 0, &operations));
    assert_eq!((dump.groups.len(), dump.groups_left_out), (limits::MAX_RECORDED_GROUPS, 49));
    assert_eq!(
        (&*dump.groups[0].name, dump.groups[0].waiting.len(), dump.groups[0].waiting_left_out),
        ("group63", 4, 5)
    );
    assert_eq!(dump.groups[0].last_scheduled, Some(9));
    let oldest: Vec<u64> = dump.groups[0].waiting.iter().map(|one| one.sequence).collect();
    assert_eq!(oldest, [1, 2, 3, 4]);
}

#[test]
fn the_variables_or_the_defaults_name_the_file() {
    for (environment, expected) in [
        ("TORCH_FR_DUMP_TEMP_FILE=/logs/fr_", vec!["/logs/fr_3"]),
        ("A=1\0TORCH_NCCL_DEBUG_INFO_TEMP_FILE=fr_", vec!["fr_3"]),
        (
            "TORCH_FR_DUMP_TEMP_FILE=/logs/fr_\0TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/logs/nccl_",
            vec!["/logs/fr_3", "/logs/nccl_3"],
        ),
        (
            "TORCH_FR_DUMP_TEMP_FILE=\0",
            vec![
                "/tmp/.cache/torch/comm_lib_trace_rank_3",
                "/tmp/.cache/torch/nccl_trace_rank_3",
                "/tmp/nccl_trace_rank_3",
            ],
        ),
        (
            "HOME=/home/ann",
            vec![
                "/home/ann/.cache/torch/comm_lib_trace_rank_3",
                "/home/ann/.cache/torch/nccl_trace_rank_3",
                "/tmp/nccl_trace_rank_3",
            ],
        ),
        (
            "HOME=/home/ann\0XDG_CACHE_HOME=/scratch",
            vec![
                "/scratch/torch/comm_lib_trace_rank_3",
                "/scratch/torch/nccl_trace_rank_3",
                "/home/ann/.cache/torch/comm_lib_trace_rank_3",
                "/home/ann/.cache/torch/nccl_trace_rank_3",
                "/tmp/nccl_trace_rank_3",
            ],
        ),
        ("TORCH_FR_DUMP_DYNAMIC_FILE_NAME=0\0TORCH_FR_DUMP_TEMP_FILE=fr_", vec!["fr_3"]),
        ("TORCH_FR_DUMP_DYNAMIC_FILE_NAME=1\0TORCH_FR_DUMP_TEMP_FILE=/logs/7/fr_3", vec!["/logs/7/fr_3"]),
        (
            "TORCH_FR_DUMP_DYNAMIC_FILE_NAME=True\0TORCH_FR_DUMP_TEMP_FILE=/logs/step12_rank3",
            vec!["/logs/step12_rank3"],
        ),
        ("TORCH_FR_DUMP_DYNAMIC_FILE_NAME=1\0TORCH_FR_DUMP_TEMP_FILE=/logs/fr-3.pkl", vec![]),
        ("TORCH_FR_DUMP_DYNAMIC_FILE_NAME=1\0TORCH_FR_DUMP_TEMP_FILE=/logs/fr_3_", vec![]),
        ("TORCH_FR_DUMP_DYNAMIC_FILE_NAME=y\0TORCH_FR_DUMP_TEMP_FILE=/logs/fr_13", vec![]),
        ("TORCH_FR_DUMP_DYNAMIC_FILE_NAME=y\0TORCH_FR_DUMP_TEMP_FILE=/logs/3/fr", vec![]),
        ("TORCH_FR_DUMP_DYNAMIC_FILE_NAME=1\0HOME=/home/ann", vec![]),
    ] {
        assert_eq!(paths(environment.as_bytes(), 3), expected, "{environment}");
    }
}

#[test]
fn a_name_that_only_the_program_knows_is_refused_unless_it_names_the_rank() {
    let folder = tempfile::tempdir().unwrap();
    let dynamic = ("TORCH_FR_DUMP_DYNAMIC_FILE_NAME", "1");
    let job = rank(folder.path(), &[dynamic, ("TORCH_FR_DUMP_TEMP_FILE", "rank_1")]);
    std::fs::copy(path("sleep", "flight_recorder_1"), folder.path().join("rank_1")).unwrap();
    let dump = examine_flight_recorder(job.pid()).unwrap();
    assert_eq!((&*dump.file, dump.is_default_path), ("rank_1", true));
    let job = rank(folder.path(), &[dynamic, ("TORCH_FR_DUMP_TEMP_FILE", "rank_")]);
    let refusal = examine_flight_recorder(job.pid()).expect_err("refused");
    let reason =
        "the program names the file while it runs (TORCH_FR_DUMP_DYNAMIC_FILE_NAME), and PyTorch adds no rank to it";
    let remedy =
        "TORCH_FR_DUMP_TEMP_FILE with the rank at its end before the next start, or no TORCH_FR_DUMP_DYNAMIC_FILE_NAME";
    assert_eq!((&*refusal.reason, &*refusal.remedy), (reason, remedy));
}

/// A process of rank 1 whose dumps are in a folder.
fn rank(folder: &Path, variables: &[(&str, &str)]) -> TestProcess {
    let mut command = Command::new("sleep");
    command.arg("600").env_clear().env("RANK", "1").envs(variables.iter().copied()).current_dir(folder);
    TestProcess::start(&mut command)
}

#[test]
fn the_dump_of_a_process_is_read_from_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().to_str().unwrap();
    for variables in [&[("TORCH_FR_DUMP_TEMP_FILE", "fr_")][..], &[("HOME", home)]] {
        let job = rank(folder.path(), variables);
        let file = if variables[0].0 == "HOME" { ".cache/torch/comm_lib_trace_rank_1" } else { "fr_1" };
        let file = folder.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::copy(path("sleep", "flight_recorder_1"), &file).unwrap();
        let dump = examine_flight_recorder(job.pid()).unwrap();
        assert_eq!((dump.operations, dump.groups[0].last_scheduled), (6 - 1, Some(5)));
        assert!(dump.age_seconds < 60.0, "{}", dump.age_seconds);
        let shown = if variables[0].0 == "HOME" { "~/.cache/torch/comm_lib_trace_rank_1" } else { "fr_1" };
        assert_eq!(dump.file, shown);
    }
}

#[test]
fn files_that_prove_nothing_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fr_1");
    let variables = [("TORCH_FR_DUMP_TEMP_FILE", file.to_str().unwrap().strip_suffix('1').unwrap())];
    let refused = |job: &TestProcess| {
        let refusal = examine_flight_recorder(job.pid()).expect_err("refused");
        assert_eq!((refusal.part, refusal.is_risk), (ExaminationPart::FlightRecorder, false));
        (refusal.reason.to_string(), refusal.remedy.to_string())
    };
    std::fs::copy(path("sleep", "flight_recorder_1"), &file).unwrap();
    let older = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    std::fs::File::options().write(true).open(&file).unwrap().set_modified(older).unwrap();
    let job = rank(folder.path(), &variables);
    let request = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/dump_ before the next start, to request one";
    assert_eq!(refused(&job), (format!("{} is older than the process", file.display()), request.to_owned()));
    std::fs::remove_file(&file).unwrap();
    let none = "PyTorch has written no dump: it does so when an operation of NCCL times out";
    assert_eq!(refused(&job), (none.into(), request.into()));
    let with_pipe = rank(folder.path(), &[variables[0], ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "/tmp/dump_")]);
    assert_eq!(refused(&with_pipe), (none.into(), "request one: `echo > /tmp/dump_1.pipe`".into()));
    std::fs::write(&file, b"\x80\x02cposix\nsystem\n").unwrap();
    let call = "the dump has an instruction that may call a function (0x63), so it is not read";
    assert_eq!(refused(&job), (call.into(), String::new()));
    std::fs::write(&file, b"\x80\x02}").unwrap();
    let midway = "the dump ends midway, or has an unknown format";
    assert_eq!(refused(&job), (midway.into(), "try again in a minute".into()));
    std::fs::write(&file, b"](".repeat(100)).unwrap();
    let large = "the dump is larger than gpufleet reads";
    assert_eq!(refused(&job), (large.into(), "a smaller TORCH_FR_BUFFER_SIZE".into()));
    // Any account could have written this one.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(refused(&job).0, none);
    std::fs::remove_file(&file).unwrap();
    // Nothing waits for the writer of a pipe.
    rustix::fs::mkfifoat(rustix::fs::CWD, &file, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    assert_eq!(refused(&job).0, none);
    let other = TestProcess::start(Command::new("sleep").arg("600").env_clear());
    assert_eq!(refused(&other), ("PyTorch names the file by RANK, which its environment lacks".into(), String::new()));
}
