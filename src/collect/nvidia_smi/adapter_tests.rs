//! The adapter with the real shell, `/proc` and `ps` of this machine and a fake `nvidia-smi`, and with a script in this
//! process whose clock is paused.

use super::*;
use crate::collect::remote_command::channel_from_stream;
use crate::wire::codec::decode;
use crate::wire::{ReadingSource, Signal};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use tokio::process::Command;
use tokio::time::timeout;

const NONCE: &str = "00112233445566778899aabbccddeeff";

/// Supports only the old fields and names no unknown one, and lists this test as a process.
const OLD_NVIDIA_SMI: &str = r#"#!/bin/sh
case $1 in
  *clocks.gr*) echo 'Invalid combination of input arguments. Please run "nvidia-smi -h" for help.'; exit 2 ;;
  --query-gpu=*) echo '0, GPU-aaaa, Tesla V100, 00000000:1B:00.0, 470.82, 32510, 1201, 97, 41, 68, 250.5, 300.00, [N/A], P0' ;;
  --query-compute-apps=*) echo "GPU-aaaa, PID, 1200" ;;
esac
"#;

/// Prints the name of each field as its value, and does not know two of them.
const STRICT_NVIDIA_SMI: &str = r#"#!/bin/sh
case $1 in
  *,clocks_event_reasons.active*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2 ;;
  *,power.draw.instant*) echo 'Field "power.draw.instant" is not a valid field to query.' >&2; exit 6 ;;
  --query-gpu=*) fields=${1#*=} IFS=,
    for field in $fields; do
      case $field in
        index) printf 0 ;;
        mig.mode.current) printf ', Enabled' ;;
        clocks_throttle_reasons.active) printf ', 0x4' ;;
        *) printf ', 7' ;;
      esac
    done; echo ;;
esac
"#;

/// Lists the processes of one GPU in the first sample, and then a lost GPU and no process.
const FAILING_NVIDIA_SMI: &str = r#"#!/bin/sh
lost='Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error'
[ -e FOLDER/lost ] && code=255 || code=0
case $1 in
  *clocks.gr*) echo 'Invalid combination of input arguments.'; exit 2 ;;
  --query-gpu=*) echo '0, GPU-aaaa, Tesla V100, 00000000:1B:00.0, 470.82, 32510, 31201, 97, 41, 68, 250.5, 300.00, [N/A], P0'
    if [ "$code" = 0 ]; then
      echo '1, GPU-bbbb, Tesla V100, 00000000:3B:00.0, 470.82, 32510, 1201, 97, 41, 68, 250.5, 300.00, [N/A], P0'
    else echo "$lost"
    fi ;;
  --query-compute-apps=*) if [ "$code" = 0 ]; then echo "GPU-aaaa, PID, 31200"; : >FOLDER/lost; else echo "$lost"; fi ;;
esac
exit "$code"
"#;

const BROKEN_NVIDIA_SMI: &str =
    "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n";

/// The messages of a shell with this script as `nvidia-smi`.
struct Harness {
    remote: RemoteCommand,
    directory: tempfile::TempDir,
}

impl Harness {
    async fn new(nvidia_smi: &str) -> Self {
        Self::with_reason(nvidia_smi, None).await
    }

    async fn with_reason(nvidia_smi: &str, why: Option<&str>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nvidia-smi");
        let folder = directory.path().display().to_string();
        let program = nvidia_smi.replace("PID", &std::process::id().to_string()).replace("FOLDER", &folder);
        std::fs::write(&path, program).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        let mut child = Command::new("/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
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
        Self { remote: adapt(shell, NONCE.to_owned(), Duration::from_secs(2), why.map(Into::into)), directory }
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
async fn the_reason_without_a_probe_is_a_note_and_part_of_the_error_without_nvidia_smi() {
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

impl Harness {
    /// The next snapshot, and the inventories before it.
    async fn snapshot(&mut self) -> (Box<Snapshot>, Vec<Inventory>) {
        let mut inventories = Vec::new();
        loop {
            match self.message().await {
                Message::Snapshot(snapshot) => return (snapshot, inventories),
                Message::Inventory(inventory) => inventories.push(inventory),
                Message::Hello(_) | Message::Echo { .. } => {}
                other => panic!("unexpected: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn fields_that_nvidia_smi_does_not_know_are_left_out_one_by_one() {
    let mut harness = Harness::new(STRICT_NVIDIA_SMI).await;
    let (snapshot, inventories) = harness.snapshot().await;
    let gpu = snapshot.gpus.row(0);
    assert_eq!((gpu.memory_reserved_bytes, gpu.clock_sm_mhz, gpu.fan_percent), (Some(7 << 20), Some(7), Some(7)));
    assert_eq!((gpu.power_watts, gpu.clocks_event_reasons, gpu.error), (Some(7.0), Some(4), None));
    assert_eq!((inventories[0].gpus[0].mig_enabled, inventories[0].error.as_ref()), (Some(true), None));
    assert_eq!(gpu.processes_unknown, None, "an empty list of a run that succeeded is complete");
}

#[tokio::test]
async fn a_lost_gpu_leaves_the_other_gpus_and_the_processes() {
    let mut harness = Harness::new(FAILING_NVIDIA_SMI).await;
    let (first, _) = harness.snapshot().await;
    assert_eq!((first.gpu_processes.len(), first.gpus.row(0).processes_unknown), (1, None));
    let (second, inventories) = harness.snapshot().await;
    assert_eq!(inventories, [], "the inventory is the same");
    assert_eq!((second.generation, second.gpus.len(), second.driver_error.as_ref()), (1, 2, None));
    assert_eq!((second.gpus.row(0).utilization_percent, second.gpus.row(0).processes_unknown), (Some(97), Some(true)));
    assert_eq!(second.gpus.row(1).error.map(|error| error.kind), Some(DriverErrorKind::GpuLost));
    let process = second.gpu_processes.row(0);
    assert_eq!((process.pid, process.gpu_memory_bytes), (Some(std::process::id()), None), "its memory is unknown now");
    assert!(second.processes.row(0).rss_bytes.is_some());
    let lost = "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error";
    assert_eq!(
        second.notes,
        [
            format!("nvidia-smi: exit status 255: {lost}").as_str(),
            format!("nvidia-smi: the list of processes may be incomplete: exit status 255: {lost}").as_str()
        ]
    );
}

#[tokio::test]
async fn an_nvidia_smi_that_prints_without_end_is_left() {
    // Short lines would take a debug build many seconds.
    let line = "y".repeat(200);
    let mut harness = Harness::new(&format!("#!/bin/sh\nexec yes {line}\n")).await;
    assert!(matches!(harness.message().await, Message::Hello(_)));
    let Message::Farewell { reason } = harness.message().await else { panic!("a farewell") };
    assert_eq!(reason, "nvidia-smi printed more than 8 MiB");
}

#[tokio::test]
async fn heartbeats_are_answered_and_the_program_is_ended_while_it_hangs() {
    let mut harness =
        Harness::new("#!/bin/sh\necho $$ >FOLDER/pid.new; mv FOLDER/pid.new FOLDER/pid; exec sleep 600\n").await;
    assert!(matches!(harness.message().await, Message::Hello(_)));
    harness.ask(&Request::Heartbeat { id: 5, last_sequence: None }).await;
    assert!(matches!(harness.message().await, Message::Echo { id: 5 }));
    let file = harness.directory.path().join("pid");
    let pid = timeout(Duration::from_secs(20), async {
        loop {
            if let Ok(pid) = std::fs::read_to_string(&file) {
                return pid.trim().parse::<i32>().unwrap();
            }
            tokio::task::yield_now().await;
        }
    });
    let pid = rustix::process::Pid::from_raw(pid.await.expect("it starts")).unwrap();
    // The end of the input ends the script, which ends its program.
    drop(harness);
    let ended = timeout(Duration::from_secs(20), async {
        while rustix::process::test_kill_process(pid).is_ok() {
            tokio::task::yield_now().await;
        }
    });
    ended.await.expect("it is killed");
}

/// A script in this process that answers the requests of the adapter.
struct FakeScript {
    remote: RemoteCommand,
    requests: tokio::sync::mpsc::UnboundedReceiver<String>,
    answers: tokio::io::WriteHalf<DuplexStream>,
}

impl FakeScript {
    async fn new() -> Self {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let (input, mut answers) = tokio::io::split(theirs);
        let (sender, requests) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(input));
            let mut has_started = false;
            while let Ok(Some(line)) = lines.next_line().await {
                if has_started {
                    let _ = sender.send(line);
                } else {
                    has_started = line == "main";
                }
            }
        });
        answers.write_all(b"\nn hello\nkernel 6.1\n\nn end\n").await.unwrap();
        let shell = RemoteCommand::new(channel_from_stream(ours));
        Self { remote: adapt(shell, "n".to_owned(), SHORTEST_INTERVAL, None), requests, answers }
    }

    async fn request(&mut self) -> String {
        self.requests.recv().await.expect("the adapter runs")
    }

    async fn answer(&mut self, text: &str) {
        self.answers.write_all(text.as_bytes()).await.unwrap();
    }

    async fn message(&mut self) -> Message {
        decode(&self.remote.stdout.line().await.unwrap().expect("the adapter runs")).unwrap()
    }
}

const HOST: &str = "\nn host /proc/loadavg 1.50 2 3\n\nn host\n";
const GPUS: &str = "\nn gpus\n0, GPU-a, T4, 00000000:1B:00.0, 470.82, 15109, 0, 0, 0, 30, 9.0, 70.00, [N/A], P8\n\nn status 0\n\
                    \nn apps\n\nn status 0\n\nn end\n";

#[tokio::test(start_paused = true)]
async fn a_driver_that_hangs_is_reported_and_nvidia_smi_is_not_started_again() {
    let mut script = FakeScript::new().await;
    assert!(matches!(script.message().await, Message::Hello(_)));
    let began = Instant::now();
    assert_eq!(script.request().await, "host");
    assert!(script.request().await.starts_with("gpus index,uuid,"));
    script.answer(HOST).await;
    // Nothing is sent as long as the program may be slow.
    assert_eq!(script.request().await, "host");
    assert_eq!(began.elapsed().as_secs(), 6);
    script.answer(HOST).await;
    let Message::Snapshot(first) = script.message().await else { panic!("a snapshot") };
    let error = first.driver_error.expect("an error");
    assert_eq!(error.kind, DriverErrorKind::Blocked);
    assert!(error.message.starts_with("nvidia-smi hangs: the NVIDIA driver has not answered for 6 s"), "{error:?}");
    assert_eq!((first.host.load_1, first.sequence), (Some(1.5), 1));
    // The host readings go on until the program is to be killed.
    while began.elapsed() < KILLED_AFTER.saturating_sub(Duration::from_secs(3)) {
        assert_eq!(script.request().await, "host");
        script.answer(HOST).await;
        let Message::Snapshot(next) = script.message().await else { panic!("a snapshot") };
        assert_eq!(next.driver_error.map(|error| error.kind), Some(DriverErrorKind::Blocked));
    }
    let mut request = script.request().await;
    while request == "host" {
        script.answer(HOST).await;
        request = script.request().await;
    }
    assert_eq!((request.as_str(), began.elapsed().as_secs()), ("stop", KILLED_AFTER.as_secs()));
    // It hangs in the kernel, so that the signal has no effect yet.
    for _ in 0..30 {
        assert_eq!(script.request().await, "host", "no second program");
        script.answer(HOST).await;
    }
    script.answer("\nn gone\n").await;
    assert_eq!(script.request().await, "host");
    assert!(script.request().await.starts_with("gpus "));
    script.answer(HOST).await;
    // The parser has its list of fields from `nvidia-smi` itself.
    script.answer("\nn gpus\nInvalid combination of input arguments.\n\nn status 2\n\nn end\n").await;
    assert!(script.request().await.starts_with("gpus "));
    script.answer("\nn gpus\nInvalid combination of input arguments.\n\nn status 2\n\nn end\n").await;
    assert!(script.request().await.starts_with("gpus "));
    script.answer(GPUS).await;
    loop {
        match script.message().await {
            Message::Snapshot(snapshot) if snapshot.driver_error.is_none() => {
                assert_eq!((snapshot.gpus.len(), snapshot.gpus.row(0).power_watts), (1, Some(9.0)));
                break;
            }
            Message::Snapshot(_) | Message::Inventory(_) => {}
            other => panic!("unexpected: {other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_driver_is_given_more_time() {
    let mut script = FakeScript::new().await;
    assert!(matches!(script.message().await, Message::Hello(_)));
    for seconds in [5, 1] {
        assert_eq!(script.request().await, "host");
        assert!(script.request().await.starts_with("gpus "));
        script.answer(HOST).await;
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        script.answer("\nn gpus\nNo devices were found\n\nn status 6\n\nn apps\n\nn status 6\n\nn end\n").await;
        let mut message = script.message().await;
        if matches!(message, Message::Inventory(_)) {
            message = script.message().await;
        }
        assert!(matches!(message, Message::Snapshot(_)), "{message:?}");
    }
    assert_eq!(script.request().await, "host");
    let began = Instant::now();
    assert!(script.request().await.starts_with("gpus "));
    script.answer(HOST).await;
    assert_eq!(script.request().await, "host");
    assert_eq!(began.elapsed().as_secs(), 12, "after a run of 5 s");
}

#[tokio::test(start_paused = true)]
async fn a_ps_that_hangs_leaves_the_readings_of_the_gpus() {
    let mut script = FakeScript::new().await;
    let app = GPUS.replace("n apps\n", "n apps\nGPU-a, 77, 1200\n");
    assert_eq!(script.request().await, "host");
    assert!(script.request().await.starts_with("gpus "));
    script.answer(HOST).await;
    for _ in 0..2 {
        script.answer("\nn gpus\nInvalid combination of input arguments.\n\nn status 2\n\nn end\n").await;
        assert!(script.request().await.starts_with("gpus "));
    }
    script.answer(&app).await;
    assert_eq!(script.request().await, "processes 77");
    let stat = "77 (python) R 1 77 77 0 -1 0 0 0 0 0 9 9 0 0 20 0 1 0 5 1 1";
    script.answer(&format!("\nn processes\n{stat}\n\nn users\n")).await;
    assert_eq!(script.request().await, "stop");
    assert!(matches!(script.message().await, Message::Hello(_)));
    assert!(matches!(script.message().await, Message::Inventory(_)));
    let Message::Snapshot(snapshot) = script.message().await else { panic!("a snapshot") };
    assert_eq!((snapshot.gpus.len(), snapshot.gpu_processes.len(), snapshot.processes.len()), (1, 1, 1));
    assert_eq!(snapshot.driver_error, None);
    script.answer("\nn gone\n").await;
    assert_eq!(script.request().await, "host");
    assert!(script.request().await.starts_with("gpus "), "the next sample");
}

#[tokio::test(start_paused = true)]
async fn a_sample_that_was_not_requested_is_dropped() {
    let mut script = FakeScript::new().await;
    let mut answers = script.answers;
    tokio::spawn(async move {
        let sample = format!("{HOST}\nn gpus\n\nn status 6\n\nn end\n");
        while answers.write_all(sample.as_bytes()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let end = Instant::now() + Duration::from_secs(20);
    let (mut snapshots, mut requested) = (0, 0);
    while let Ok(line) = tokio::time::timeout_at(end, script.remote.stdout.line()).await {
        let line = line.unwrap().expect("the adapter runs");
        snapshots += usize::from(matches!(decode(&line), Ok(Message::Snapshot(_))));
    }
    while let Ok(request) = script.requests.try_recv() {
        requested += usize::from(request.starts_with("gpus "));
    }
    assert!((9..=12).contains(&snapshots), "{snapshots} snapshots in 20 s");
    assert!(requested >= snapshots, "{requested} requests, {snapshots} snapshots");
}
