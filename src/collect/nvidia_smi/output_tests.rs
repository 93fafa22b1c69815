//! Output as `nvidia-smi` prints it. The error texts are from reports of users and from the man page.

use super::*;
use crate::wire::ProcessState;

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn run(status: i32, text: &str) -> Run {
    Run { status: Some(status), lines: lines(text) }
}

/// An H100 and a lost GPU with all fields, two processes on the first one, and one of them in `/proc`.
fn sample() -> Sample {
    Sample {
        gpus: run(
            0,
            "0, GPU-aaaa, NVIDIA H100 80GB HBM3, 00000000:1B:00.0, 570.86.15, 81559, 61234, 97, 41, 68, 612.31, 700.00, [N/A], P0, \
             74, 700.00, 1755, 1755, 2619, 1980, 1980, 2619, 5, 16, 0x0000000000000004, Disabled, 551, 640.00, 0x0000000000000004\n\
             1, GPU-bbbb, NVIDIA H100 80GB HBM3, 00000000:43:00.0, 570.86.15, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], \
             [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], \
             [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A]",
        ),
        apps: run(0, "GPU-aaaa, 4312, 61200\nGPU-zzzz, 9, 1\nGPU-aaaa, 77, [N/A]\n"),
        processes: lines(
            "4312 (pt) main (x)) R 4300 4312 4200 0 -1 4194304 1 0 0 0 1000 500 0 0 20 0 64 0 360000 99 262144 1",
        ),
        users: lines(" 4312  1001 alice                            python train.py --api-key s3cr3t --lr 3e-4"),
        host: lines(
            "/proc/stat cpu  100 0 100 700 100 0 0 0 0 0\n/proc/loadavg 1.50 2.25 3.00 2/900 4711\n\
             /proc/uptime 7200.50 99\nMemTotal: 1048576\nMemAvailable: 524288",
        ),
    }
}

fn read(sample: &Sample) -> Readings {
    sample.readings(&FieldList::default(), 1.0, &mut Known::default())
}

/// A row with the basic fields: index, UUID and address of an idle GPU.
fn row(index: u32) -> String {
    format!(
        "{index}, GPU-{index}, NVIDIA A100-SXM4-80GB, 00000000:{:02X}:00.0, 535.161.08, 81920, 3, 0, 0, 31, 62.10, 400.00, [N/A], P0",
        0x10 + index
    )
}

/// A row without any value, as R535 prints it for a GPU that fell off the bus.
fn mute(word: &str) -> String {
    [word; 14].join(", ")
}

/// Reads this output of `--query-gpu` with the basic fields.
fn read_gpus(status: i32, text: &str, known: &mut Known) -> Readings {
    let sample = Sample { gpus: run(status, text), apps: run(0, ""), ..Sample::default() };
    sample.readings(&FieldList::basic(), 1.0, known)
}

/// Index, address and kind of error of each GPU.
fn listed(readings: &Readings) -> Vec<(u32, &str, Option<DriverErrorKind>)> {
    let gpus = readings.inventory.gpus.iter().enumerate();
    gpus.map(|(position, info)| {
        let error = readings.gpus.row(position).error.map(|error| error.kind);
        (info.index, info.pci_bus_id.as_deref().unwrap_or_default(), error)
    })
    .collect()
}

const LOST: Option<DriverErrorKind> = Some(DriverErrorKind::GpuLost);

#[test]
fn a_sample_reads_as_the_wire_has_it() {
    let (fields, mut known) = (FieldList::default(), Known::default());
    let first = sample().readings(&fields, 10.0, &mut known);
    assert_eq!(first.inventory.driver_version.as_deref(), Some("570.86.15"));
    assert_eq!((first.inventory.error, first.driver_error, first.notes.len()), (None, None, 0));
    let gpu = first.gpus.row(0);
    assert_eq!((gpu.utilization_percent, gpu.power_watts, gpu.fan_percent), (Some(97), Some(612.31), None));
    assert_eq!((gpu.performance_state, gpu.clocks_event_reasons), (Some(0), Some(4)));
    assert_eq!((gpu.memory_used_bytes, gpu.memory_reserved_bytes), (Some(61234 * MIB), Some(551 * MIB)));
    assert_eq!(gpu.processes_unknown, None);
    let lost = first.gpus.row(1);
    assert_eq!(lost.error.map(|error| error.kind), LOST);
    assert_eq!(lost.memory_used_bytes, None);
    assert_eq!(first.gpu_processes.len(), 2, "an unknown GPU has no rows");
    assert_eq!(first.gpu_processes.row(1).gpu_memory_bytes, None);
    let process = first.processes.row(0);
    assert_eq!((process.start_ticks, process.state), (Some(360_000), Some(ProcessState::Running)));
    assert_eq!((process.cpu_percent, process.cpu_seconds), (None, Some(15.0)));
    assert_eq!(process.age_seconds, Some(3600.5));
    assert_eq!(first.facts[0].name.as_deref(), Some("pt) main (x)"));
    assert_eq!(first.facts[0].argv.last().map(|word| &**word), Some("3e-4"));
    assert!(!first.facts[0].argv.iter().any(|word| word.contains("s3cr3t")));
    assert_eq!(first.host.cpu_percent, None);
    assert_eq!((first.host.load_5, first.host.memory_available_bytes), (Some(2.25), Some(512 << 20)));

    let mut next = sample();
    next.processes[0] = next.processes[0].replace(" 1000 500 ", " 1200 500 ");
    next.host[0] = "/proc/stat cpu  150 0 100 740 110 0 0 0 0 0".to_owned();
    let second = next.readings(&fields, 12.0, &mut known);
    assert_eq!(second.processes.row(0).cpu_percent, Some(100.0));
    assert_eq!(second.host.cpu_percent, Some(50.0));
    assert_eq!(second.host.io_wait_percent, Some(10.0));

    next.host.extend(["arc c_min 67108864".to_owned(), "arc size 134217728".to_owned()]);
    let with_zfs = next.readings(&fields, 14.0, &mut known);
    assert_eq!(with_zfs.host.memory_available_bytes, Some((512 + 64) << 20));
}

#[test]
fn the_power_of_this_moment_stands_in_for_the_mean_one() {
    let mut sample = sample();
    sample.gpus.lines[0] = sample.gpus.lines[0].replace("612.31", "[N/A]");
    assert_eq!(read(&sample).gpus.row(0).power_watts, Some(640.0));
    sample.gpus.lines[0] = sample.gpus.lines[0].replace("640.00", "[N/A]");
    assert_eq!(read(&sample).gpus.row(0).power_watts, None);
}

#[test]
fn an_old_nvidia_smi_gives_the_basic_fields() {
    let text = "0, GPU-a, Tesla P4, 0000:01:00.0, 390.1, 7611, 0, 0, 0, 30, 6.10, 75.00, 33, P8";
    let readings = read_gpus(0, text, &mut Known::default());
    assert_eq!((readings.gpus.row(0).fan_percent, readings.gpus.row(0).clocks_event_reasons), (Some(33), None));
}

#[test]
fn the_text_of_a_failing_nvidia_smi_is_the_error_and_the_host_stays_readable() {
    let mismatch = "Failed to initialize NVML: Driver/library version mismatch";
    let no_driver = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the \
                     latest NVIDIA driver is installed and running.";
    let no_library = "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA \
                      Display Driver is properly installed and present in your system.";
    let advice = "Please also try adding directory that contains libnvidia-ml.so to your system PATH.";
    for (status, output, kind, message) in [
        (18, mismatch.to_owned(), DriverErrorKind::VersionMismatch, mismatch.to_owned()),
        (
            18,
            format!("{mismatch}\nNVML library version: 535.161\n"),
            DriverErrorKind::VersionMismatch,
            format!("{mismatch}; NVML library version: 535.161"),
        ),
        (
            1,
            format!("{mismatch}\nNVML library version: 535.161\n"),
            DriverErrorKind::VersionMismatch,
            format!("{mismatch}; NVML library version: 535.161"),
        ),
        (9, format!("{no_driver}\n\n"), DriverErrorKind::DriverNotLoaded, no_driver.to_owned()),
        (255, no_driver.to_owned(), DriverErrorKind::DriverNotLoaded, no_driver.to_owned()),
        (12, format!("{no_library}\n{advice}"), DriverErrorKind::NoLibrary, format!("{no_library}; {advice}")),
        (
            4,
            "Failed to initialize NVML: Insufficient Permissions".to_owned(),
            DriverErrorKind::NoPermission,
            "Failed to initialize NVML: Insufficient Permissions".to_owned(),
        ),
        (
            6,
            "Failed to initialize NVML: Insufficient Permissions".to_owned(),
            DriverErrorKind::NoPermission,
            "Failed to initialize NVML: Insufficient Permissions".to_owned(),
        ),
        (6, "No devices were found".to_owned(), DriverErrorKind::NoGpus, "No devices were found".to_owned()),
        (
            127,
            "/bin/sh: 1: nvidia-smi: not found".to_owned(),
            DriverErrorKind::NoLibrary,
            "there is no nvidia-smi on this host".to_owned(),
        ),
        (
            127,
            "nvidia-smi: error while loading shared libraries: libnvidia-ml.so.1: cannot open shared object file"
                .to_owned(),
            DriverErrorKind::NoLibrary,
            "nvidia-smi: error while loading shared libraries: libnvidia-ml.so.1: cannot open shared object file"
                .to_owned(),
        ),
        (
            255,
            "Failed to initialize NVML: Unknown Error".to_owned(),
            DriverErrorKind::Unknown,
            "Failed to initialize NVML: Unknown Error".to_owned(),
        ),
        (
            15,
            "GPU is lost.  Reboot the system to recover this GPU".to_owned(),
            DriverErrorKind::GpuLost,
            "GPU is lost.  Reboot the system to recover this GPU".to_owned(),
        ),
        (3, String::new(), DriverErrorKind::Unknown, "nvidia-smi ended with exit status 3".to_owned()),
    ] {
        let readings = read(&Sample { gpus: run(status, &output), ..sample() });
        let error = readings.inventory.error.expect("an error");
        assert_eq!((error.kind, &*error.message), (kind, &*message));
        assert_eq!(readings.host.load_1, Some(1.5));
    }
}

#[test]
fn a_driver_that_fails_later_keeps_the_inventory() {
    let mut known = Known::default();
    let before = read_gpus(0, &row(0), &mut known);
    let text = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161";
    let readings = read_gpus(18, text, &mut known);
    assert_eq!(readings.inventory, before.inventory);
    assert_eq!(readings.driver_error.map(|error| error.kind), Some(DriverErrorKind::VersionMismatch));
    assert!(readings.gpus.is_empty());
}

#[test]
fn rows_count_whatever_the_exit_status_is() {
    let warning = "WARNING: infoROM is corrupted at gpu 0000:10:00.0";
    for (status, text, note) in [
        (14, warning, format!("nvidia-smi: exit status 14: {warning}")),
        (0, warning, format!("nvidia-smi: {warning}")),
        (255, "", "nvidia-smi: exit status 255".to_owned()),
    ] {
        let readings = read_gpus(status, &format!("{}\n{}\n{text}", row(0), row(1)), &mut Known::default());
        assert_eq!(listed(&readings), [(0, "00000000:10:00.0", None), (1, "00000000:11:00.0", None)], "{status}");
        assert_eq!((readings.inventory.error, readings.driver_error), (None, None));
        assert_eq!(readings.notes, [&*note]);
    }
}

#[test]
fn a_lost_gpu_keeps_its_index_and_its_address() {
    let error = "Unable to determine the device handle for GPU0000:12:00.0: Unknown Error";
    let expected = [
        (0, "00000000:10:00.0", None),
        (1, "00000000:11:00.0", None),
        (2, "00000000:12:00.0", LOST),
        (3, "00000000:13:00.0", None),
    ];
    let mute = mute("[Unknown Error]");
    for text in [
        // In the place of its row, before all rows (standard error comes first), and without a row.
        format!("{}\n{}\n{error}\n{mute}\n{}\n", row(0), row(1), row(3)),
        format!("{error}\n{}\n{}\n{mute}\n{}\n", row(0), row(1), row(3)),
        format!("{error}\n{}\n{}\n{}\n", row(0), row(1), row(3)),
    ] {
        let readings = read_gpus(255, &text, &mut Known::default());
        assert_eq!(listed(&readings), expected, "{text}");
        assert_eq!(readings.gpus.row(2).error.map(|error| error.message), Some(error.into()));
        assert_eq!(readings.inventory.error, None);
    }
    // A driver of 2024 names the index as well, and ends with 0.
    let named = "Unable to determine the device handle for GPU3: 0000:13:00.0: Unknown Error";
    let readings = read_gpus(0, &format!("{named}\n{}\n{}\n{}", row(0), row(1), row(2)), &mut Known::default());
    assert_eq!(listed(&readings)[3], (3, "00000000:13:00.0", LOST));
    // Without any name, the place of the row is its index.
    for word in ["[Unknown Error]", "ERR!", "[GPU is lost]", "Unknown Error"] {
        let text = format!("{}\n{}\n{}", row(0), self::mute(word), row(2));
        assert_eq!(listed(&read_gpus(0, &text, &mut Known::default()))[1], (1, "", LOST), "{word}");
    }
}

#[test]
fn a_lost_gpu_is_the_one_of_earlier_samples() {
    let mut known = Known::default();
    let all: Vec<String> = (0..3).map(row).collect();
    let before = read_gpus(0, &all.join("\n"), &mut known);
    let error = "Unable to determine the device handle for GPU 0000:11:00.0: GPU is lost.  Reboot the system to recover this GPU";
    // An old nvidia-smi ends at the first GPU that fails.
    for text in [format!("{}\n{error}\n{}", row(0), row(2)), format!("{error}\n{}\n{}", row(0), row(2))] {
        let readings = read_gpus(15, &text, &mut known);
        assert_eq!(readings.inventory, before.inventory, "the same UUID, index and facts");
        assert_eq!(listed(&readings)[1], (1, "00000000:11:00.0", LOST));
    }
    let readings = read_gpus(15, error, &mut known);
    assert_eq!(listed(&readings), [(1, "00000000:11:00.0", LOST)]);
    assert_eq!(readings.inventory.gpus[0].uuid.as_deref(), Some("GPU-1"));
}

#[test]
fn the_kernels_list_of_gpus_gives_the_index_of_a_lost_one() {
    let (_, addresses) = hello(&lines("gpu 0000:9b:00.0\ngpu 0000:1b:00.0\ngpu 0000:3b:00.0\ngpu *"));
    let error = "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error";
    let mut known = Known { addresses, ..Known::default() };
    assert_eq!(listed(&read_gpus(255, error, &mut known)), [(1, "00000000:3B:00.0", LOST)]);
    // Without that list, the index is unknown: the message is the error of the driver.
    let readings = read_gpus(255, error, &mut Known::default());
    assert_eq!(listed(&readings), []);
    let expected = DriverError { kind: DriverErrorKind::GpuLost, code: None, message: error.into() };
    assert_eq!(readings.inventory.error, Some(expected));
    // The message of other versions has an index.
    let error = "Unable to determine the device handle for GPU5: 0000:3B:00.0: Unknown Error";
    assert_eq!(listed(&read_gpus(255, error, &mut Known::default())), [(5, "00000000:3B:00.0", LOST)]);
}

#[test]
fn a_single_unknown_value_is_not_a_lost_gpu() {
    // RTX A6000, from a telemetry log: single values are `[Unknown Error]` now and then.
    let text = "0, GPU-0, NVIDIA RTX A6000, 00000000:10:00.0, 525.1, 49140, 6, 0, 0, [Unknown Error], [Unknown Error], 300.00, 30, P8";
    let readings = read_gpus(0, text, &mut Known::default());
    assert_eq!((readings.gpus.row(0).error, readings.gpus.row(0).memory_used_bytes), (None, Some(6 * MIB)));
    // Unified memory and vGPU: nothing is wrong with values that are not available.
    let readings = read_gpus(
        0,
        &format!("0, GPU-0, NVIDIA GB10, 0000000F:01:00.0{}", ", [N/A]".repeat(10)),
        &mut Known::default(),
    );
    assert_eq!((readings.inventory.gpus.len(), readings.gpus.row(0).error), (1, None));
}

#[test]
fn a_gpu_that_requires_a_reset_says_so() {
    let text = row(0).replace(", 31, 62.10", ", [GPU requires reset], [GPU requires reset]");
    let readings = read_gpus(0, &text, &mut Known::default());
    assert_eq!(listed(&readings), [(0, "00000000:10:00.0", Some(DriverErrorKind::ResetRequired))]);
}

#[test]
fn an_unknown_list_of_processes_is_not_an_empty_one() {
    let fields = FieldList::default();
    for (apps, is_unknown) in [
        (run(0, ""), None),
        (run(0, "No running processes found"), None),
        (run(14, "GPU-aaaa, 4312, 61200\nWARNING: infoROM is corrupted at gpu 0000:1B:00.0"), None),
        (run(14, "WARNING: infoROM is corrupted at gpu 0000:1B:00.0"), Some(true)),
        (
            run(15, "GPU-aaaa, 4312, 61200\nUnable to determine the device handle for GPU0000:43:00.0: GPU is lost."),
            Some(true),
        ),
        (run(255, ""), Some(true)),
        (run(0, "[Not Supported]"), Some(true)),
        (Run::default(), Some(true)),
    ] {
        let readings = read(&Sample { apps, ..sample() });
        assert_eq!(readings.gpus.row(0).processes_unknown, is_unknown, "{:?}", readings.notes);
        assert_eq!(readings.gpus.row(1).processes_unknown, None, "the error of the lost GPU says enough");
        assert_eq!(readings.notes.len(), usize::from(is_unknown.is_some()));
    }
    // Earlier processes stay while they exist.
    let mut known = Known::default();
    sample().readings(&fields, 1.0, &mut known);
    let failed = || Sample { apps: run(255, ""), ..sample() };
    assert_eq!(failed().pids(&known), [77, 4312]);
    let readings = failed().readings(&fields, 3.0, &mut known);
    let rows: Vec<_> = (0..readings.gpu_processes.len()).map(|at| readings.gpu_processes.row(at)).collect();
    assert_eq!(
        rows.iter().map(|row| (row.pid, row.gpu, row.gpu_memory_bytes)).collect::<Vec<_>>(),
        [(Some(4312), Some(0), None)]
    );
    let mut reused = failed();
    reused.processes[0] = reused.processes[0].replace(" 360000 ", " 777777 ");
    assert_eq!(reused.readings(&fields, 5.0, &mut known).gpu_processes.len(), 0, "another process with its pid");
    assert!(failed().pids(&known).is_empty());
}

#[test]
fn a_process_without_a_visible_pid_is_listed() {
    let readings =
        read(&Sample { apps: run(0, "GPU-aaaa, [Insufficient Permissions], 900\nGPU-aaaa, x, 1"), ..sample() });
    let process = readings.gpu_processes.row(0);
    assert_eq!((readings.gpu_processes.len(), process.pid, process.gpu_memory_bytes), (1, None, Some(900 * MIB)));
}

#[test]
fn only_a_list_without_rows_is_refused() {
    let fields = FieldList::default();
    let refused = |status: i32, text: &str| Sample { gpus: run(status, text), ..Sample::default() }.is_refused(&fields);
    assert!(refused(2, "Field \"memory.reserved\" is not a valid field to query.\n"));
    assert!(refused(6, "Field \"memory.reserved\" is not a valid field to query.\n"));
    assert!(refused(2, "Invalid combination of input arguments."));
    assert!(!refused(6, "No devices were found") && !refused(9, ""));
    assert!(!sample().is_refused(&fields));
}

#[test]
fn a_hello_without_values_is_read() {
    let (hello, addresses) = hello(&lines("boot_id b-1\nhost_name \nlogin_uid 1001\nkernel 6.1\u{1b}\ngpu *"));
    assert_eq!((hello.login_uid, hello.host_name), (Some(1001), None));
    assert_eq!(hello.kernel.as_deref(), Some("6.1␛"));
    assert_eq!(addresses, []);
}

/// Builds a line of `/proc/PID/stat`.
fn stat(pid: usize) -> String {
    format!("{pid} (python) R 4300 4312 4200 0 -1 4194304 1 0 0 0 1000 500 0 0 20 0 64 0 360000 99 262144 1")
}

#[test]
fn a_host_that_lists_too_much_is_read_as_far_as_one_snapshot_holds_it() {
    let gpu = sample().gpus.lines[0].clone();
    let command = "x\\".repeat(MAX_COMMAND_BYTES);
    let gpus = (0..3 * MAX_GPUS).map(|index| gpu.replace("GPU-aaaa", &format!("GPU-{index}"))).collect();
    let apps = (0..20_000).map(|pid| format!("GPU-{}, {}, 1", pid % MAX_GPUS, pid + 1)).collect();
    let huge = Sample {
        gpus: Run { status: Some(0), lines: gpus },
        apps: Run { status: Some(0), lines: apps },
        processes: (0..3 * MAX_PROCESSES).flat_map(|pid| [stat(pid + 1), stat(pid + 1)]).collect(),
        users: (0..3 * MAX_PROCESSES).map(|pid| format!("{} 1001 alice {command}", pid + 1)).collect(),
        ..sample()
    };
    assert_eq!(huge.pids(&Known::default()).len(), 2 * MAX_PROCESSES);
    let readings = read(&huge);
    assert_eq!((readings.inventory.gpus.len(), readings.gpus.len()), (MAX_GPUS, MAX_GPUS));
    assert_eq!((readings.processes.len(), readings.gpu_processes.len()), (MAX_PROCESSES, MAX_PROCESSES));
    assert_eq!(readings.processes_left_out as usize, 2 * MAX_PROCESSES, "each process counts once");
    assert_eq!(readings.gpu_processes.row(513).gpu, Some(1));
    assert!(!readings.facts[0].argv.is_empty() && readings.facts[MAX_PROCESSES - 1].argv.is_empty());
    let snapshot = crate::wire::Snapshot {
        gpus: readings.gpus,
        gpu_processes: readings.gpu_processes,
        processes: readings.processes,
        facts: readings.facts,
        ..crate::wire::Snapshot::default()
    };
    let line = crate::wire::codec::encode(&crate::wire::Message::Snapshot(Box::new(snapshot))).unwrap();
    assert!(line.len() <= crate::wire::codec::MAX_LINE_BYTES, "{} bytes", line.len());
}

#[test]
fn numbers_beyond_their_range_do_not_overflow() {
    let most = u64::MAX.to_string();
    let all = |lines: &[String]| lines.iter().map(|line| line.replace("61234", &most)).collect::<Vec<_>>();
    let hostile = Sample {
        gpus: Run { status: Some(0), lines: all(&sample().gpus.lines) },
        apps: run(0, &format!("GPU-aaaa, 4312, {most}")),
        processes: vec![stat(4312).replace("1000 500", &format!("{most} {most}"))],
        host: vec![format!("/proc/stat cpu {most} {most} 1 1 1 1 1 1"), format!("MemTotal: {most}")],
        ..sample()
    };
    let readings = read(&hostile);
    assert_eq!(readings.gpus.row(0).memory_used_bytes, Some(u64::MAX));
    assert_eq!(readings.gpu_processes.row(0).gpu_memory_bytes, Some(u64::MAX));
    assert_eq!(readings.host.memory_total_bytes, Some(u64::MAX));
    let last = row(0).replace("0, GPU-0", &format!("{}, GPU-0", u32::MAX));
    let readings = read_gpus(0, &format!("{last}\n{}", mute("ERR!")), &mut Known::default());
    assert_eq!(listed(&readings), [(0, "", LOST), (u32::MAX, "00000000:10:00.0", None)]);
}

#[test]
fn a_long_message_is_cut() {
    let error = read(&Sample { gpus: run(255, &"x\n".repeat(5000)), ..sample() }).inventory.error.unwrap();
    assert_eq!(error.message, "x", "repeated lines are one");
    let text: String = (0..5000).map(|number| format!("line {number}\n")).collect();
    let error = read(&Sample { gpus: run(255, &text), ..sample() }).inventory.error.unwrap();
    assert!(error.message.len() <= 2 * MAX_MESSAGE_CHARACTERS + 2, "{}", error.message.len());
}
