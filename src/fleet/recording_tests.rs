use super::*;
use crate::config::HostConfig;
use crate::wire::{Ancestor, Filesystem, HostReading, PROTOCOL, Reply, ReplyOutcome};
use std::collections::BTreeSet;
use std::sync::Arc;

fn recording() -> Vec<Line> {
    let host = |t, event| Line::Host(HostLine { t, host: "hgx-01".into(), event });
    let error = LinkError::new(LinkErrorKind::Timeout, "no answer within 10 s").with_hint("ssh hgx-01");
    vec![
        Line::Start { started: "2026-03-01T13:44:00Z".into() },
        host(0.0, RecordedEvent::Link(RecordedLinkState::Connecting, None)),
        host(0.4, RecordedEvent::Link(RecordedLinkState::Live, None)),
        host(0.5, RecordedEvent::Wire(Message::Echo { id: 4 })),
        host(0.5, RecordedEvent::Wire(Message::Snapshot(Box::new(Snapshot { sequence: 3, ..Snapshot::default() })))),
        host(4.0, RecordedEvent::Link(RecordedLinkState::Stale, None)),
        host(4.5, RecordedEvent::Misbehaves(RecordedLinkState::Stale, Misbehavior::SendsTooMuch)),
        host(11.25, RecordedEvent::Link(RecordedLinkState::Down, Some(RecordedError::from(&error)))),
    ]
}

fn written() -> Vec<u8> {
    recording().iter().flat_map(|line| encode(line).expect("encodes")).collect()
}

fn errors(text: &str) -> Vec<String> {
    lines(text.as_bytes()).filter_map(Result::err).map(|error| error.to_string()).collect()
}

#[test]
fn a_recording_round_trips() {
    let bytes = written();
    let read: Result<Vec<Line>, _> = lines(&bytes).collect();
    assert_eq!(read, Ok(recording()));
}

#[test]
fn lines_look_as_documented() {
    let text = String::from_utf8(written()).expect("UTF-8");
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(r#"{"recording":1,"started":"2026-03-01T13:44:00Z"}"#));
    assert_eq!(lines.next(), Some(r#"{"t":0.0,"host":"hgx-01","link":"connecting"}"#));
    assert_eq!(lines.nth(1), Some(r#"{"t":0.5,"host":"hgx-01","wire":{"echo":{"id":4}}}"#));
    assert_eq!(lines.nth(2), Some(r#"{"t":4.5,"host":"hgx-01","link":"stale","misbehavior":"sends_too_much"}"#));
    assert_eq!(
        lines.last(),
        Some(concat!(
            r#"{"t":11.25,"host":"hgx-01","link":"down","error":{"kind":"timeout","#,
            r#""message":"no answer within 10 s","hint":"ssh hgx-01"}}"#
        ))
    );
}

#[test]
fn an_incomplete_last_line_is_skipped() {
    let bytes = written();
    let last = bytes[..bytes.len() - 1].iter().rposition(|byte| *byte == b'\n').expect("lines") + 1;
    for end in last..bytes.len() - 1 {
        let read: Result<Vec<Line>, _> = lines(&bytes[..end]).collect();
        assert_eq!(read.expect("readable").len(), recording().len() - 1, "cut at byte {end} of {}", bytes.len());
    }
    let without_newline: Result<Vec<Line>, _> = lines(&bytes[..bytes.len() - 1]).collect();
    assert_eq!(without_newline, Ok(recording()), "only the newline is missing");
}

#[test]
fn errors_name_the_line_and_the_cause() {
    assert_eq!(errors("{\"t\":1}\n"), ["line 1: not a recording: the first line should begin with {\"recording\":1"]);
    assert_eq!(errors("hello"), ["line 1: not a recording: the first line should begin with {\"recording\":1"]);
    assert_eq!(
        errors("{\"recording\":9,\"new\":[]}\n"),
        ["line 1: recording version 9 is unknown, this gpufleet reads version 1"]
    );
    let start = "{\"recording\":1,\"started\":\"\"}\n";
    for (line, error) in [
        ("{\"host\":\"a\",\"link\":\"live\"}", "line 2: `t` must be the seconds since the start"),
        ("{\"t\":-1,\"host\":\"a\",\"link\":\"live\"}", "line 2: `t` must be the seconds since the start"),
        ("{\"t\":1,\"link\":\"live\"}", "line 2: `host` is missing"),
        ("{\"t\":1,\"host\":\"a\"}", "line 2: a line has either `wire` or `link`"),
        (
            "{\"t\":1,\"host\":\"a\",\"wire\":{\"hello\":{\"protocol\":7,\"probe_version\":\"9\"}}}",
            "line 2: the probe speaks protocol 7, this gpufleet speaks 1",
        ),
    ] {
        assert_eq!(errors(&format!("{start}{line}\n")), [error]);
    }
    assert_eq!(errors(&format!("{start}\n\nnoise\n")).len(), 1, "empty lines are skipped");
}

#[test]
fn a_message_has_the_limits_of_the_wire_protocol() {
    let pids = vec!["1"; codec::MAX_PROCESSES + 1].join(",");
    let snapshot = format!("{{\"snapshot\":{{\"processes\":{{\"pid\":[{pids}]}}}}}}");
    let text = format!("{{\"recording\":1}}\n{{\"t\":0,\"host\":\"a\",\"wire\":{snapshot}}}\n");
    assert_eq!(errors(&text), ["line 2: protocol violation: 2049 processes, at most 2048 are allowed"]);
}

#[test]
fn link_errors_round_trip() {
    let error = LinkError::new(LinkErrorKind::HostKeyChanged, "the host key changed").with_hint("ask");
    assert_eq!(LinkError::from(RecordedError::from(&error)), error);
    let unknown = RecordedError { kind: "teapot".into(), message: "short and stout".into(), hint: None };
    assert_eq!(LinkError::from(unknown), LinkError::new(LinkErrorKind::Closed, "short and stout"));
}

fn at(seconds: f64) -> Moment {
    Moment::new(Duration::from_secs_f64(seconds), Duration::ZERO)
}

fn text(recorder: &mut Recorder, seconds: f64, update: HostUpdate) -> String {
    let lines = recorder.take(HostId(0), &"a".into(), update, at(seconds));
    let bytes: Vec<u8> = lines.iter().flat_map(|line| encode(line).expect("encodes")).collect();
    String::from_utf8(bytes).expect("UTF-8")
}

fn down(kind: LinkErrorKind) -> HostUpdate {
    let error = LinkError::new(kind, "no answer from bob@a").with_hint("ssh bob@a");
    HostUpdate::Down { error, retry_at: None, attempt: 1 }
}

#[test]
fn a_link_is_recorded_when_it_changes() {
    let mut recorder = Recorder::new(at(100.0), None);
    let connecting = |attempt, phase| HostUpdate::Connecting { attempt, phase };
    let mut take = |seconds, update| text(&mut recorder, seconds, update);
    assert_eq!(
        take(100.0, connecting(1, ConnectPhase::Queued)),
        "{\"t\":0.0,\"host\":\"a\",\"link\":\"connecting\"}\n"
    );
    assert_eq!(take(100.1, connecting(1, ConnectPhase::Login)), "");
    let snapshot = HostUpdate::Snapshot(Box::<Snapshot>::default());
    let lines = take(100.25, snapshot.clone());
    assert_eq!(lines.lines().next(), Some("{\"t\":0.25,\"host\":\"a\",\"link\":\"live\"}"));
    assert!(
        lines.lines().nth(1).is_some_and(|line| line.starts_with("{\"t\":0.25,\"host\":\"a\",\"wire\":{\"snapshot\":"))
    );
    assert_eq!(take(102.0, snapshot).lines().count(), 1);
    assert_eq!(take(102.1, HostUpdate::RoundTrip(Duration::ZERO)), "");
    assert_eq!(take(105.0, HostUpdate::Silent), "{\"t\":5.0,\"host\":\"a\",\"link\":\"stale\"}\n");
    assert_eq!(take(105.5, HostUpdate::RoundTrip(Duration::ZERO)), "{\"t\":5.5,\"host\":\"a\",\"link\":\"live\"}\n");
    assert!(take(110.0, down(LinkErrorKind::Silent)).contains("\"hint\":\"ssh bob@a\""));
    assert_eq!(take(110.1, down(LinkErrorKind::Silent)), "", "nothing new");
    assert!(take(111.0, down(LinkErrorKind::Timeout)).contains("\"kind\":\"timeout\""));
}

#[test]
fn misbehavior_is_recorded_beside_the_link_and_replayed() {
    let mut recorder = Recorder::new(at(0.0), None);
    let misbehaves = |misbehavior| HostUpdate::Misbehaves(misbehavior);
    assert_eq!(
        text(&mut recorder, 0.5, misbehaves(Misbehavior::SendsTooMuch)),
        "{\"t\":0.5,\"host\":\"a\",\"link\":\"connecting\",\"misbehavior\":\"sends_too_much\"}\n"
    );
    text(&mut recorder, 1.0, HostUpdate::Snapshot(Box::default()));
    for seconds in [2.0, 12.0] {
        assert_eq!(
            text(&mut recorder, seconds, misbehaves(Misbehavior::ControlCharacters)),
            format!("{{\"t\":{seconds:.1},\"host\":\"a\",\"link\":\"live\",\"misbehavior\":\"control_characters\"}}\n")
        );
    }
    let mut host = Host::new(HostId(0), Arc::new(HostConfig::named("a")), Moment::default());
    let mut replay = HostReplay::default();
    let mut play = |event, seconds: f64| {
        if let Some(update) = replay.update(&host, event) {
            host.apply(update, at(seconds));
        }
        (host.misbehavior(at(seconds)), host.link.word())
    };
    let snapshot = || RecordedEvent::Wire(Message::Snapshot(Box::default()));
    assert_eq!(play(snapshot(), 1.0), (None, "live"));
    let misbehavior = Misbehavior::ImpossibleNumbers;
    assert_eq!(play(RecordedEvent::Misbehaves(RecordedLinkState::Live, misbehavior), 2.0), (Some(misbehavior), "live"));
    assert_eq!(play(snapshot(), 30.0), (None, "live"));
    // A later version may know other kinds.
    let line = br#"{"t":1,"host":"a","link":"live","misbehavior":"from_the_future"}"#;
    let Ok(Line::Host(line)) = decode(line, 2) else { panic!("decodes") };
    assert_eq!(line.event, RecordedEvent::Link(RecordedLinkState::Live, None));
}

#[test]
fn replies_are_never_recorded() {
    let mut recorder = Recorder::new(at(0.0), None);
    let reply = Reply { id: 1, outcome: ReplyOutcome::Environment(vec!["TOKEN=x".into()]) };
    assert_eq!(text(&mut recorder, 1.0, HostUpdate::Reply(reply)), "");
}

#[test]
fn a_redacted_error_has_its_kind_only() {
    let mut recorder = Recorder::new(at(0.0), Some(Redactor::default()));
    let line = text(&mut recorder, 1.0, down(LinkErrorKind::Timeout));
    let error = "{\"kind\":\"timeout\",\"message\":\"timeout\",\"hint\":null}";
    assert_eq!(line, format!("{{\"t\":1.0,\"host\":\"a\",\"link\":\"down\",\"error\":{error}}}\n"));
}

fn words(line: &str) -> Vec<SafeText> {
    line.split('|').map(SafeText::new).collect()
}

fn facts(user: &str) -> ProcessFacts {
    ProcessFacts {
        pid: 5,
        uid: Some(1001),
        user: Some(user.into()),
        full_name: Some("Alice Moreau".into()),
        name: Some("python".into()),
        argv: words("/home/alice/.venv/bin/python|train.py|--name|alice-secret"),
        ancestors: vec![Ancestor { pid: 4, argv: words("torchrun --for alice"), ..Ancestor::default() }],
        working_directory: Some("/home/alice/work".into()),
        log_path: Some("/home/alice/out.log".into()),
        container_name: Some("alice-dev".into()),
        ..ProcessFacts::default()
    }
}

fn snapshot(users: &[&str]) -> Message {
    let filesystem = |path: &str| Filesystem { mount_point: path.into(), ..Filesystem::default() };
    Message::Snapshot(Box::new(Snapshot {
        facts: users.iter().map(|user| facts(user)).collect(),
        host: HostReading {
            filesystems: vec![filesystem("/home/alice"), filesystem("/data/bob/x"), filesystem("/")],
            ..HostReading::default()
        },
        notes: vec!["alice was here".into()],
        ..Snapshot::default()
    }))
}

#[test]
fn redaction_removes_names_and_arguments() {
    let mut redactor = Redactor::default();
    let hello = format!("{{\"hello\":{{\"protocol\":{PROTOCOL},\"probe_version\":\"0\",\"login_user\":\"bob\"}}}}");
    let mut hello = codec::decode(hello.as_bytes()).expect("decodes");
    redactor.redact(&mut hello);
    let mut message = snapshot(&["alice", "root", "bob"]);
    redactor.redact(&mut message);
    let text = String::from_utf8(codec::encode(&message).expect("encodes")).expect("UTF-8");
    for word in ["alice", "Alice", "bob", "train.py", "secret"] {
        assert!(!text.contains(word), "{word} in {text}");
    }
    let Message::Snapshot(snapshot) = message else { panic!("a snapshot") };
    let users: Vec<&str> = snapshot.facts.iter().filter_map(|facts| facts.user.as_deref()).collect();
    assert_eq!(users, ["user2", "root", "user1"], "the login user came first");
    assert_eq!(snapshot.facts[0].argv, words("python|***"));
    assert_eq!(snapshot.facts[0].ancestors[0].argv, words("torchrun|***"));
    let mounts: Vec<&str> = snapshot.host.filesystems.iter().map(|it| it.mount_point.as_str()).collect();
    assert_eq!(mounts, ["/mount1", "/mount2", "/"]);
}

#[test]
fn a_title_is_reduced_to_the_program() {
    for (argv, kept) in [
        ("worker --out /home/alice/secret", "worker|***"),
        ("/home/alice/bin/worker", "worker"),
        ("sshd: alice@pts/0", "sshd:|***"),
        ("/opt/x/python3|/home/alice/train.py", "python3|***"),
    ] {
        let mut argv = words(argv);
        program_only(&mut argv);
        assert_eq!(argv, words(kept));
    }
}

/// The texts of the wire protocol that a redacted recording contains, and the reason.
const KEPT: [(&str, &str); 25] = [
    ("Hello.probe_version", "a version"),
    ("Hello.probe_sha256", "the hash of a program"),
    ("Hello.boot_id", "a random number, part of the identity of processes"),
    ("Hello.host_name", "host names stay"),
    ("Hello.kernel", "a version"),
    ("Hello.arch", "an architecture"),
    ("ReadingSource.Other", "the name of a program"),
    ("Scope.SlurmJob", "job ids stay"),
    ("Inventory.driver_version", "a version"),
    ("Inventory.cuda_version", "a version"),
    ("GpuInfo.uuid", "UUIDs of GPUs stay"),
    ("GpuInfo.name", "a product"),
    ("GpuInfo.pci_bus_id", "an address within the host"),
    ("GpuInfo.mig_parent_uuid", "UUIDs of GPUs stay"),
    ("ProcessColumns.wait_channel", "a kernel function"),
    ("ProcessFacts.name", "process names stay"),
    ("ProcessFacts.runs_in", "the name of a program"),
    ("Ancestor.name", "process names stay"),
    ("Owner.Slurm.job", "job ids stay"),
    ("SlurmJob.job", "job ids stay"),
    ("SlurmJobEnd.job", "job ids stay"),
    ("SlurmJobEnd.state", "a state of Slurm"),
    ("Owner.Slurm.step", "a number or a fixed word"),
    ("Owner.Container.runtime", "the name of a program"),
    ("Filesystem.kind", "a type of file system"),
];

/// The texts that no recording contains, because replies and requests are not recorded.
const NOT_RECORDED: [&str; 38] = [
    "Request.Interval.earlier_slurm_jobs",
    "Request.Signal.argv",
    "Request.Signal.name",
    "Request.Signal.boot_id",
    "Request.Environment.boot_id",
    "Request.LogTail.boot_id",
    "ReplyOutcome.Environment",
    "ReplyOutcome.LogTail.path",
    "ReplyOutcome.LogTail.lines",
    "ReplyOutcome.Refused",
    "Communicator.hash",
    "Communicator.secondary_hash",
    "ExaminationRefusal.reason",
    "ExaminationRefusal.remedy",
    "FlightRecorderDump.file",
    "FlightRecorderDump.version",
    "Frame.file",
    "Frame.function",
    "LinkErrorCount.name",
    "LinkReading.device",
    "LinkReading.layer",
    "LinkReading.rate",
    "LinkReading.state",
    "NamedRank.host",
    "OperationCounts.name",
    "Peer.address",
    "ProcessExamination.nccl_version",
    "ProcessExamination.variables",
    "RasReport.nccl_version",
    "RecordedGroup.description",
    "RecordedGroup.name",
    "RecordedOperation.name",
    "Request.Examine.boot_id",
    "StackDump.tool",
    "ThreadGroup.name",
    "ThreadGroup.wait_channel",
    "ThreadReading.wait_channel",
    "ThreadStack.name",
];

/// Messages in which every text is the name of its field in angle brackets.
const MARKED: [&str; 5] = [
    r#"{"hello":{"protocol":1,"probe_version":"<Hello.probe_version>","probe_sha256":"<Hello.probe_sha256>","boot_id":"<Hello.boot_id>",
        "host_name":"<Hello.host_name>","login_user":"<Hello.login_user>","kernel":"<Hello.kernel>",
        "arch":"<Hello.arch>","scope":{"slurm_job":"<Scope.SlurmJob>"},"source":"<ReadingSource.Other>"}}"#,
    r#"{"hello":{"protocol":1,"probe_version":"","scope":{"container":"<Scope.Container>"}}}"#,
    r#"{"inventory":{"driver_version":"<Inventory.driver_version>","cuda_version":"<Inventory.cuda_version>",
        "nvml_path":"/<Inventory.nvml_path>","gpus":[{"uuid":"<GpuInfo.uuid>","name":"<GpuInfo.name>",
        "pci_bus_id":"<GpuInfo.pci_bus_id>","mig_parent_uuid":"<GpuInfo.mig_parent_uuid>"}],
        "error":{"kind":"unknown","message":"<DriverError.message>"}}}"#,
    r#"{"snapshot":{"host":{"slurm_cluster":"<HostReading.slurm_cluster>",
        "slurm_jobs":[{"job":"<SlurmJob.job>","user":"<SlurmJob.user>","gpus":[]}],
        "slurm_ends":[{"job":"<SlurmJobEnd.job>","state":"<SlurmJobEnd.state>"}],
        "filesystems":[{"mount_point":"/<Filesystem.mount_point>","kind":"<Filesystem.kind>"}]},
        "gpus":{"rows":1,"error":[{"kind":"unknown","message":"<DeviceError.message>"}]},
        "processes":{"rows":1,"wait_channel":"<ProcessColumns.wait_channel>"},
        "facts":[{"user":"<ProcessFacts.user>","full_name":"<ProcessFacts.full_name>","name":"<ProcessFacts.name>",
        "argv":["program","<ProcessFacts.argv>"],"ancestors":[{"name":"<Ancestor.name>",
        "argv":["program","<Ancestor.argv>"]}],"working_directory":"/<ProcessFacts.working_directory>",
        "log_path":"/<ProcessFacts.log_path>","container_name":"<ProcessFacts.container_name>",
        "runs_in":"<ProcessFacts.runs_in>","owner":{"slurm":{"job":"<Owner.Slurm.job>","step":"<Owner.Slurm.step>"}}},
        {"owner":{"pod":{"uid":"<Owner.Pod.uid>","container":"<Owner.Pod.container>"}}},
        {"owner":{"container":{"runtime":"<Owner.Container.runtime>","id":"<Owner.Container.id>"}}},
        {"owner":{"service":"<Owner.Service>"}},{"owner":{"session":"<Owner.Session>"}}],
        "driver_error":{"kind":"unknown","message":"<DriverError.message>"},"notes":["<Snapshot.notes>"]}}"#,
    r#"{"farewell":{"reason":"<Message.Farewell.reason>"}}"#,
];

/// Returns the names in angle brackets.
fn markers(text: &str) -> BTreeSet<String> {
    text.split('<').skip(1).filter_map(|rest| Some(rest.split_once('>')?.0.to_owned())).collect()
}

/// Returns the fields of the wire protocol that contain text, as `Struct.field`, `Enum.Variant` or `Enum.Variant.field`.
fn text_fields_of_the_wire() -> BTreeSet<String> {
    struct HasText(bool);
    impl<'ast> syn::visit::Visit<'ast> for HasText {
        fn visit_ident(&mut self, ident: &'ast syn::Ident) {
            self.0 |= ["SafeText", "String", "str", "Value"].iter().any(|text| ident == text);
        }
    }
    let add = |prefix: &str, fields: &syn::Fields, found: &mut BTreeSet<String>| {
        for field in fields {
            let mut has_text = HasText(false);
            syn::visit::Visit::visit_type(&mut has_text, &field.ty);
            if has_text.0 {
                let name = field.ident.as_ref().map_or_else(String::new, |name| format!(".{name}"));
                found.insert(format!("{prefix}{name}"));
            }
        }
    };
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/wire")).expect("the folder of wire") {
        let source = std::fs::read_to_string(entry.expect("an entry").path()).expect("a source file");
        for item in syn::parse_file(&source).expect("Rust").items {
            match item {
                syn::Item::Struct(item) if is_on_the_wire(&item.attrs) => {
                    add(&item.ident.to_string(), &item.fields, &mut found);
                }
                syn::Item::Enum(item) if is_on_the_wire(&item.attrs) => {
                    for variant in &item.variants {
                        add(&format!("{}.{}", item.ident, variant.ident), &variant.fields, &mut found);
                    }
                }
                syn::Item::Macro(item) if item.mac.path.is_ident("columns") => {
                    let tokens = item.mac.tokens.to_string();
                    let columns = tokens.split("columns ").nth(1).and_then(|rest| rest.split_once(';'));
                    let (name, fields) = columns.expect("a name of the columns");
                    for field in fields.split(',').filter(|field| field.trim_end().ends_with(": SafeText")) {
                        let field = field.rsplit(':').nth(1).and_then(|field| field.split_whitespace().last());
                        found.insert(format!("{}.{}", name.trim(), field.expect("a name of a column")));
                    }
                }
                _ => {}
            }
        }
    }
    found
}

fn is_on_the_wire(attributes: &[syn::Attribute]) -> bool {
    let mut is_encoded = false;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("derive")) {
        let parsed = attribute.parse_nested_meta(|meta| {
            is_encoded |= meta.path.is_ident("Serialize") || meta.path.is_ident("Deserialize");
            Ok(())
        });
        parsed.expect("a list of traits");
    }
    is_encoded
}

#[test]
fn every_text_of_the_wire_is_redacted_or_kept_for_a_reason() {
    let mut redactor = Redactor::default();
    let mut given = BTreeSet::new();
    let mut written = BTreeSet::new();
    for line in MARKED {
        given.extend(markers(line));
        let mut message = codec::decode(line.replace('\n', "").as_bytes()).expect("decodes");
        // Every text is read into its field.
        let unredacted = String::from_utf8(codec::encode(&message).expect("encodes")).expect("UTF-8");
        assert_eq!(markers(&unredacted), markers(line));
        redactor.redact(&mut message);
        written.extend(markers(&String::from_utf8(codec::encode(&message).expect("encodes")).expect("UTF-8")));
    }
    assert_eq!(written, KEPT.iter().map(|(field, _)| (*field).to_owned()).collect());
    let decided: BTreeSet<String> = given.into_iter().chain(NOT_RECORDED.map(str::to_owned)).collect();
    assert_eq!(decided, text_fields_of_the_wire(), "a text of the wire protocol has no decision");
}

/// Replays events on one host and returns the state of the link after each.
fn link_words(lines: Vec<RecordedEvent>) -> Vec<&'static str> {
    let config = Arc::new(HostConfig::named("a"));
    let mut host = Host::new(HostId(0), config, Moment::default());
    let mut replay = HostReplay::default();
    let play = lines.into_iter().map(|line| {
        if let Some(update) = replay.update(&host, line) {
            host.apply(update, Moment::default());
        }
        host.link.word()
    });
    play.collect()
}

fn down_event(kind: LinkErrorKind) -> RecordedEvent {
    RecordedEvent::Link(RecordedLinkState::Down, Some(RecordedError::from(&LinkError::new(kind, "no"))))
}

#[test]
fn a_replay_follows_the_recorded_links() {
    let snapshot = || RecordedEvent::Wire(Message::Snapshot(Box::<Snapshot>::default()));
    let link = |word| RecordedEvent::Link(word, None);
    let lines = vec![
        link(RecordedLinkState::Connecting),
        link(RecordedLinkState::Live),
        snapshot(),
        link(RecordedLinkState::Stale),
        RecordedEvent::Wire(Message::Echo { id: 1 }),
        link(RecordedLinkState::Stale),
        link(RecordedLinkState::Live),
        link(RecordedLinkState::Down),
        link(RecordedLinkState::Live),
        snapshot(),
        down_event(LinkErrorKind::Authentication),
    ];
    assert_eq!(
        link_words(lines),
        [
            "connecting",
            "connecting",
            "live",
            "stale",
            "live",
            "stale",
            "live",
            "down",
            "connecting",
            "live",
            "needs_user"
        ]
    );
}

#[test]
fn a_replay_counts_attempts_until_readings_arrive() {
    let config = Arc::new(HostConfig::named("a"));
    let mut host = Host::new(HostId(0), config, Moment::default());
    let mut replay = HostReplay::default();
    let mut attempt = |line| match replay.update(&host, line) {
        Some(update) => {
            host.apply(update, Moment::default());
            match &host.link {
                Link::Down { attempt, .. } | Link::Connecting { attempt, .. } => Some(*attempt),
                _ => None,
            }
        }
        None => None,
    };
    assert_eq!(attempt(down_event(LinkErrorKind::Timeout)), Some(1));
    assert_eq!(attempt(RecordedEvent::Link(RecordedLinkState::Connecting, None)), Some(2));
    assert_eq!(attempt(down_event(LinkErrorKind::Timeout)), Some(2));
    assert_eq!(attempt(RecordedEvent::Wire(Message::Snapshot(Box::default()))), None);
    assert_eq!(attempt(down_event(LinkErrorKind::Timeout)), Some(1));
}
