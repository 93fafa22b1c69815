//! The adapter with the real shell, `/proc` and `ps` of this machine and a fake `nvidia-smi`.

use super::*;
use crate::wire::codec::decode;
use crate::wire::{ReadingSource, Signal};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use tokio::process::Command;
use tokio::time::timeout;

const NONCE: &str = "00112233445566778899aabbccddeeff";

/// Supports only the old fields, and lists this test as a process.
const OLD_NVIDIA_SMI: &str = r#"#!/bin/sh
case $1 in
  *memory.reserved*) echo 'Field "memory.reserved" is not a valid field to query.'; exit 2 ;;
  --query-gpu=*) echo '0, GPU-aaaa, Tesla V100, 00000000:1B:00.0, 470.82, 32510, 1201, 97, 41, 68, 250.5, 300.00, [N/A], P0' ;;
  --query-compute-apps=*) echo "GPU-aaaa, PID, 1200" ;;
esac
"#;

const BROKEN_NVIDIA_SMI: &str =
    "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n";

/// The messages of a shell with this script as `nvidia-smi`.
struct Harness {
    remote: RemoteCommand,
    _directory: tempfile::TempDir,
}

impl Harness {
    async fn new(nvidia_smi: &str) -> Self {
        Self::with_reason(nvidia_smi, None).await
    }

    async fn with_reason(nvidia_smi: &str, why: Option<&str>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nvidia-smi");
        std::fs::write(&path, nvidia_smi.replace("PID", &std::process::id().to_string())).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        let mut child = Command::new("/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (_, exit) = oneshot::channel();
        let mut shell = RemoteCommand::new(Channel {
            stdin: Box::pin(child.stdin.take().unwrap()),
            stdout: Box::pin(child.stdout.take().unwrap()),
            stderr: Box::pin(child.stderr.take().unwrap()),
            exit,
            guard: Box::new(child),
        });
        // An alias precedes every directory of PATH, so that a real nvidia-smi is not used.
        shell.stdin.write_all(format!("alias nvidia-smi={}\n", path.display()).as_bytes()).await.unwrap();
        Self {
            remote: adapt(shell, NONCE.to_owned(), Duration::from_secs(2), why.map(Into::into)),
            _directory: directory,
        }
    }

    async fn message(&mut self) -> Message {
        let line = timeout(Duration::from_secs(20), self.remote.stdout.line()).await.expect("in time");
        decode(&line.unwrap().expect("a line")).unwrap()
    }

    async fn ask(&mut self, request: &Request) {
        self.remote.stdin.write_all(&encode(request).unwrap()).await.unwrap();
    }
}

#[tokio::test]
async fn an_old_nvidia_smi_speaks_the_probes_protocol() {
    let mut harness = Harness::new(OLD_NVIDIA_SMI).await;
    let Message::Hello(hello) = harness.message().await else { panic!("a hello") };
    assert_eq!(hello.source, Some(ReadingSource::NvidiaSmi));
    assert_eq!(hello.arch.as_deref(), Some(std::env::consts::ARCH));
    assert!(hello.boot_id.is_some() && hello.login_uid.is_some() && hello.cpu_count.is_some(), "{hello:?}");
    let Message::Inventory(inventory) = harness.message().await else { panic!("an inventory") };
    assert_eq!((inventory.generation, inventory.gpus.len(), inventory.error), (1, 1, None));
    let Message::Snapshot(first) = harness.message().await else { panic!("a snapshot") };
    let own = std::process::id();
    assert_eq!(first.gpus.row(0).power_watts, Some(250.5));
    assert_eq!(first.gpu_processes.row(0).pid, Some(own));
    assert_eq!(first.processes.row(0).pid, Some(own));
    assert!(first.host.memory_total_bytes.is_some() && first.host.load_1.is_some(), "{:?}", first.host);
    let facts = first.facts.first().expect("facts of this process");
    assert!(facts.user.is_some() && !facts.argv.is_empty(), "{facts:?}");

    harness.ask(&Request::Heartbeat { id: 9, last_sequence: Some(1) }).await;
    let signal = Request::Signal {
        id: 3,
        boot_id: "b".into(),
        pid: own,
        start_ticks: 1,
        name: "".into(),
        argv: Vec::new(),
        signal: Signal::Kill,
    };
    harness.ask(&signal).await;
    let (mut echoed, mut refused, mut sampled) = (false, false, false);
    while !(echoed && refused && sampled) {
        match harness.message().await {
            Message::Echo { id: 9 } => echoed = true,
            Message::Reply(Reply { id: 3, outcome: ReplyOutcome::Refused(_) }) => refused = true,
            Message::Snapshot(second) => {
                assert_eq!((second.sequence, second.generation), (2, 1));
                assert!(second.host.cpu_percent.is_some() && second.processes.row(0).cpu_percent.is_some());
                assert_eq!(second.facts, [], "facts travel once");
                sampled = true;
            }
            other => panic!("unexpected: {other:?}"),
        }
    }
    harness.ask(&Request::Resend).await;
    let Message::Inventory(again) = harness.message().await else { panic!("the inventory again") };
    assert_eq!(again.generation, 1);
}

#[tokio::test]
async fn a_driver_that_does_not_match_leaves_the_host_readable() {
    let mut harness = Harness::new(BROKEN_NVIDIA_SMI).await;
    assert!(matches!(harness.message().await, Message::Hello(_)));
    let Message::Inventory(inventory) = harness.message().await else { panic!("an inventory") };
    let error = inventory.error.expect("an error");
    assert_eq!((error.kind, error.code), (DriverErrorKind::VersionMismatch, Some(18)));
    assert_eq!(error.message, "Failed to initialize NVML: Driver/library version mismatch");
    let Message::Snapshot(snapshot) = harness.message().await else { panic!("a snapshot") };
    assert!(snapshot.host.load_1.is_some());
}

#[tokio::test]
async fn why_there_is_no_probe_is_said_and_without_nvidia_smi_both_are_named() {
    let why = "no directory for the probe: /tmp: No space left on device";
    let mut harness = Harness::with_reason(OLD_NVIDIA_SMI, Some(why)).await;
    let snapshot = loop {
        match harness.message().await {
            Message::Snapshot(snapshot) => break snapshot,
            Message::Inventory(inventory) => assert_eq!(inventory.error, None),
            Message::Hello(hello) => assert_eq!(hello.source, Some(ReadingSource::NvidiaSmi)),
            other => panic!("unexpected: {other:?}"),
        }
    };
    assert_eq!(snapshot.notes, [&*format!("via nvidia-smi: {why}")]);
    let mut harness = Harness::with_reason("#!/bin/sh\nexit 127\n", Some(why)).await;
    assert!(matches!(harness.message().await, Message::Hello(_)));
    let Message::Inventory(inventory) = harness.message().await else { panic!("an inventory") };
    let error = inventory.error.expect("an error");
    assert_eq!(error.kind, DriverErrorKind::NoLibrary);
    assert_eq!(*error.message, format!("there is no nvidia-smi on this host, and no probe: {why}"));
}

#[test]
fn a_section_without_end_is_kept_up_to_its_limits() {
    let mut section = Section::default();
    (0..SECTION_LINES + 10).for_each(|_| section.push("x"));
    section.push("");
    assert_eq!((section.lines.len(), section.bytes), (SECTION_LINES, SECTION_LINES));
    let mut section = Section::default();
    (0..100).for_each(|_| section.push(&"x".repeat(SECTION_BYTES / 8)));
    assert_eq!((section.lines.len(), section.bytes), (8, SECTION_BYTES));
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn sample() -> Sample {
    Sample {
        status: 0,
        gpus: lines(
            "0, GPU-aaaa, NVIDIA H100 80GB HBM3, 00000000:1B:00.0, 570.86.15, 81559, 61234, 97, 41, 68, 612.31, 700.00, [N/A], P0, \
             551, 74, 700.00, 1755, 1755, 2619, 1980, 1980, 2619, 5, 16, Disabled, 0x0000000000000004\n\
             1, GPU-bbbb, NVIDIA H100 80GB HBM3, 00000000:43:00.0, 570.86.15, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], \
             [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], \
             [N/A], [N/A], [N/A], [N/A], [N/A], [N/A]",
        ),
        apps: lines("GPU-aaaa, 4312, 61200\nGPU-zzzz, 9, 1\nGPU-aaaa, 77, [N/A]\n"),
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

#[test]
fn a_sample_reads_as_the_wire_has_it() {
    let mut before = PreviousSample::default();
    let first = sample().readings(10.0, &mut before);
    assert_eq!(first.inventory.driver_version.as_deref(), Some("570.86.15"));
    assert_eq!(first.inventory.error, None);
    let gpu = first.gpus.row(0);
    assert_eq!((gpu.utilization_percent, gpu.power_watts, gpu.fan_percent), (Some(97), Some(612.31), None));
    assert_eq!((gpu.performance_state, gpu.clocks_event_reasons), (Some(0), Some(4)));
    assert_eq!(gpu.memory_used_bytes, Some(61234 * MIB));
    let lost = first.gpus.row(1);
    assert_eq!(lost.error.map(|error| error.kind), Some(DriverErrorKind::GpuLost));
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
    assert_eq!(first.host.load_5, Some(2.25));

    let mut next = sample();
    next.processes[0] = next.processes[0].replace(" 1000 500 ", " 1200 500 ");
    next.host[0] = "/proc/stat cpu  150 0 100 740 110 0 0 0 0 0".to_owned();
    let second = next.readings(12.0, &mut before);
    assert_eq!(second.processes.row(0).cpu_percent, Some(100.0));
    assert_eq!(second.host.cpu_percent, Some(50.0));
    assert_eq!(second.host.io_wait_percent, Some(10.0));
}

#[test]
fn an_old_nvidia_smi_gives_the_basic_fields() {
    let mut sample = sample();
    sample.gpus = lines("0, GPU-a, Tesla P4, 0000:01:00.0, 390.1, 7611, 0, 0, 0, 30, 6.10, 75.00, 33, P8");
    let readings = sample.readings(1.0, &mut PreviousSample::default());
    assert_eq!(readings.gpus.row(0).fan_percent, Some(33));
    assert_eq!(readings.gpus.row(0).clocks_event_reasons, None);
    assert_eq!(basic_fields().split(',').count(), BASIC.len());
    assert!(full_fields().starts_with(&basic_fields()));
}

#[test]
fn a_failing_nvidia_smi_is_a_driver_error_and_the_host_stays_readable() {
    for (status, output, kind) in [
        (18, "Failed to initialize NVML: Driver/library version mismatch", DriverErrorKind::VersionMismatch),
        (9, "NVIDIA-SMI has failed because it couldn't communicate with the driver.", DriverErrorKind::DriverNotLoaded),
        (6, "No devices were found", DriverErrorKind::NoGpus),
        (127, "/bin/sh: 1: nvidia-smi: not found", DriverErrorKind::NoLibrary),
        (3, "", DriverErrorKind::Unknown),
    ] {
        let sample = Sample { status, gpus: lines(output), ..sample() };
        let readings = sample.readings(1.0, &mut PreviousSample::default());
        let error = readings.inventory.error.expect("an error");
        assert_eq!(error.kind, kind);
        assert!(!error.message.is_empty());
        assert_eq!(readings.host.load_1, Some(1.5));
    }
}

#[test]
fn odd_lines_are_left_out() {
    for line in ["", "x", "1 (a", "1 (a) R", "1 (a) R 1 2 x 0 0 0 0"] {
        assert!(Stat::parse(line).is_none(), "{line}");
    }
    let hello = hello(&lines("boot_id b-1\nhost_name \nlogin_uid 1001\nkernel 6.1\u{1b}"));
    assert_eq!((hello.login_uid, hello.host_name), (Some(1001), None));
    assert_eq!(hello.kernel.as_deref(), Some("6.1␛"));
}

/// Builds a line of `/proc/PID/stat`.
fn stat(pid: usize) -> String {
    format!("{pid} (python) R 4300 4312 4200 0 -1 4194304 1 0 0 0 1000 500 0 0 20 0 64 0 360000 99 262144 1")
}

#[test]
fn a_host_that_lists_too_much_is_read_as_far_as_one_snapshot_holds_it() {
    let one = |line: &str| line.lines().next().map(str::to_owned);
    let gpu = one(&sample().gpus[0]).unwrap();
    let command = "x\\".repeat(MAX_COMMAND_BYTES);
    let huge = Sample {
        gpus: (0..3 * MAX_GPUS).map(|index| gpu.replace("GPU-aaaa", &format!("GPU-{index}"))).collect(),
        apps: (0..20_000).map(|pid| format!("GPU-{}, {}, 1", pid % MAX_GPUS, pid + 1)).collect(),
        processes: (0..3 * MAX_PROCESSES).flat_map(|pid| [stat(pid + 1), stat(pid + 1)]).collect(),
        users: (0..3 * MAX_PROCESSES).map(|pid| format!("{} 1001 alice {command}", pid + 1)).collect(),
        ..sample()
    };
    let readings = huge.readings(10.0, &mut PreviousSample::default());
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
fn numbers_beyond_what_can_be_is_no_overflow() {
    let most = u64::MAX.to_string();
    let all = |lines: &[String]| lines.iter().map(|line| line.replace("61234", &most)).collect::<Vec<_>>();
    let hostile = Sample {
        gpus: all(&sample().gpus),
        apps: vec![format!("GPU-aaaa, 4312, {most}")],
        processes: vec![stat(4312).replace("1000 500", &format!("{most} {most}"))],
        host: vec![format!("/proc/stat cpu {most} {most} 1 1 1 1 1 1"), format!("MemTotal: {most}")],
        ..sample()
    };
    let readings = hostile.readings(10.0, &mut PreviousSample::default());
    assert_eq!(readings.gpus.row(0).memory_used_bytes, Some(u64::MAX));
    assert_eq!(readings.gpu_processes.row(0).gpu_memory_bytes, Some(u64::MAX));
    assert_eq!(readings.host.memory_total_bytes, Some(u64::MAX));
}

#[tokio::test]
async fn an_nvidia_smi_that_prints_without_end_is_left() {
    let mut harness = Harness::new("#!/bin/sh\nexec yes\n").await;
    assert!(matches!(harness.message().await, Message::Hello(_)));
    let Message::Farewell { reason } = harness.message().await else { panic!("a farewell") };
    assert_eq!(reason, "nvidia-smi printed more than 8 MiB");
}

#[tokio::test(start_paused = true)]
async fn a_sample_that_was_not_requested_is_dropped() {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (mut requests, mut answers) = tokio::io::split(theirs);
    let (requested, mut requests_seen) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut text = String::new();
        let mut chunk = [0; 4096];
        while let Ok(count @ 1..) = requests.read(&mut chunk).await {
            text.push_str(&String::from_utf8_lossy(&chunk[..count]));
            while let Some(at) =
                text.find("sample\n").filter(|_| !text.contains("main\n") || text.ends_with("sample\n"))
            {
                text.drain(..at + 7);
                let _ = requested.send(());
            }
        }
    });
    tokio::spawn(async move {
        answers.write_all(b"n hello\nkernel 6.1\nn end\n").await.unwrap();
        while answers.write_all(b"n gpus\nn status 6\nn host\nn end\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let shell = RemoteCommand::new(super::super::remote_command::channel_from_stream(ours));
    let mut remote = adapt(shell, "n".to_owned(), SHORTEST_INTERVAL, None);
    let end = Instant::now() + Duration::from_secs(20);
    let (mut snapshots, mut sent) = (0, 0);
    while let Ok(line) = tokio::time::timeout_at(end, remote.stdout.line()).await {
        let line = line.unwrap().expect("the adapter runs");
        snapshots += usize::from(matches!(crate::wire::codec::decode(&line), Ok(Message::Snapshot(_))));
    }
    while requests_seen.try_recv().is_ok() {
        sent += 1;
    }
    assert!((9..=12).contains(&snapshots), "{snapshots} snapshots in 20 s");
    assert!(sent >= snapshots, "{sent} requests, {snapshots} snapshots");
}
