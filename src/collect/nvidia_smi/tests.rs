//! The adapter against the real shell, /proc and `ps` of this machine, with an `nvidia-smi` of the test's own.

use super::*;
use crate::wire::codec::decode;
use crate::wire::{ReadingSource, Signal};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use tokio::process::Command;
use tokio::time::timeout;

const NONCE: &str = "00112233445566778899aabbccddeeff";

/// Knows the old fields only, and lists this test among its processes.
const OLD_NVIDIA_SMI: &str = r#"#!/bin/sh
case $1 in
  *memory.reserved*) echo 'Field "memory.reserved" is not a valid field to query.'; exit 2 ;;
  --query-gpu=*) echo '0, GPU-aaaa, Tesla V100, 00000000:1B:00.0, 470.82, 32510, 1201, 97, 41, 68, 250.5, 300.00, [N/A], P0' ;;
  --query-compute-apps=*) echo "GPU-aaaa, PID, 1200" ;;
esac
"#;

const BROKEN_NVIDIA_SMI: &str =
    "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n";

/// A stream of messages from a shell in which `nvidia-smi` is this script.
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
        // An alias goes before every directory of PATH, so that a real nvidia-smi of this machine is not asked.
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
    let signal = Request::Signal { id: 3, boot_id: "b".into(), pid: own, start_ticks: 1, signal: Signal::Kill };
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
            other => panic!("out of turn: {other:?}"),
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
            other => panic!("out of turn: {other:?}"),
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
