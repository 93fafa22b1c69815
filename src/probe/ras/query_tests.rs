use super::super::fixtures::{JsonCommunicator, json, rank, text_healthy, text_incomplete, text_mismatch};
use super::*;
use crate::counted_memory::most_used_by;
use crate::wire::SafeText;
use proptest::prelude::*;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Limits that only a broken test reaches.
const AMPLE: Limits = Limits {
    connect: Duration::from_secs(30),
    handshake: Duration::from_secs(30),
    report: Duration::from_secs(30),
    total: Duration::from_secs(60),
    ..LIMITS
};

/// The pid of rank 7 in the fixtures.
const WANTED: u32 = 1_650_386;

/// One connection to the fake server.
#[derive(Clone)]
enum Connection {
    /// NCCL 2.28.7 and newer.
    Json(String),
    /// Older versions: they do not know `SET FORMAT`.
    Text(String),
    /// Accepts and never answers, like a stopped process.
    Silent,
    /// Closes at once.
    Closed,
    /// Another program.
    Other,
    /// Sends this and then nothing more, but does not close the connection.
    Stalled(String),
}

/// A server that speaks the protocol as `rasClientEventLoop` in nccl:src/ras/client_support.cc does.
struct FakeRas {
    address: SocketAddr,
    received: Arc<Mutex<Vec<String>>>,
    stops: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl FakeRas {
    /// Starts it on the IPv4 loopback address. The last connection is repeated.
    fn start(connections: Vec<Connection>) -> Self {
        Self::start_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds"), connections)
    }

    fn start_on(listener: TcpListener, connections: Vec<Connection>) -> Self {
        let address = listener.local_addr().expect("an address");
        let (received, stops) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (lines, is_stopped) = (Arc::clone(&received), Arc::clone(&stops));
        let thread = std::thread::spawn(move || {
            for (index, stream) in listener.incoming().enumerate() {
                if is_stopped.load(Ordering::SeqCst) {
                    return;
                }
                let connection = connections[index.min(connections.len() - 1)].clone();
                lines.lock().expect("not poisoned").push("connected".to_owned());
                // A client that leaves early ends only its own connection.
                let _end = serve(&stream.expect("accepts"), &connection, &lines);
            }
        });
        Self { address, received, stops, thread }
    }

    /// Ends it and returns the lines that it received. None is beyond the four commands.
    fn finish(self) -> Vec<String> {
        self.stops.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address).expect("connects"));
        self.thread.join().expect("it ends");
        let received = self.received.lock().expect("not poisoned").clone();
        let allowed = ["connected", "CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "STATUS", "VERBOSE STATUS"];
        assert!(received.iter().all(|line| allowed.contains(&line.as_str())), "{received:?}");
        received
    }

    fn query(&self, version: &str, accept_risk: bool) -> Result<RasReport, ExaminationRefusal> {
        query(&self.target(version), accept_risk, AMPLE, &find)
    }

    /// Queries it as if another process listened on the port too.
    fn query_shared(&self, accept_risk: bool, limits: Limits) -> Result<RasReport, ExaminationRefusal> {
        let find = |_, _, _| Ok(Listeners { own: vec![self.address], others: 7 });
        query(&self.target("2.30.7"), accept_risk, limits, &find)
    }

    /// This process, which owns the socket of the server.
    fn target(&self, version: &str) -> RasTarget {
        RasTarget {
            pid: std::process::id(),
            nccl_version: Some(SafeText::new(version)),
            has_nccl: Some(true),
            ns_pid: Some(WANTED),
            same_network: Some(true),
            environment: format!("RANK=7\0NCCL_RAS_ADDR=localhost:{}\0", self.address.port()).into_bytes(),
            configuration: Vec::new(),
        }
    }
}

fn serve(stream: &TcpStream, connection: &Connection, received: &Mutex<Vec<String>>) -> io::Result<()> {
    let (mut lines, mut stream) = (BufReader::new(stream.try_clone()?), stream);
    if matches!(connection, Connection::Closed) {
        return Ok(());
    }
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        let command = std::mem::take(&mut line);
        let command = command.trim_end();
        received.lock().expect("not poisoned").push(command.to_owned());
        match (connection, command) {
            (Connection::Silent, _) => {}
            (Connection::Other, _) => stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")?,
            (_, "CLIENT PROTOCOL 2") => stream.write_all(b"SERVER PROTOCOL 2\n")?,
            (Connection::Text(_), "SET FORMAT json") => {
                stream.write_all(b"ERROR: Unknown command SET FORMAT json\n")?;
            }
            (_, "TIMEOUT 5" | "SET FORMAT json") => stream.write_all(b"OK\n")?,
            (Connection::Json(report), "STATUS") | (Connection::Text(report), "VERBOSE STATUS") => {
                // The text arrives in pieces.
                for piece in report.as_bytes().chunks(1000) {
                    stream.write_all(piece)?;
                }
                return Ok(());
            }
            (Connection::Stalled(report), "STATUS") => stream.write_all(report.as_bytes())?,
            _ => panic!("{command}"),
        }
    }
    Ok(())
}

/// A job in which rank `behind` has launched fewer operations.
fn job(ranks: u32, behind: u32) -> Vec<JsonCommunicator> {
    let ranks = (0..ranks).map(|number| rank(number, [0, 0, 0, 0, if number == behind { 60 } else { 64 }]));
    vec![JsonCommunicator { ranks: ranks.collect(), missing: Vec::new() }]
}

/// A report on another job, in which no rank is the wanted process.
fn other_job() -> Connection {
    Connection::Json(json("2.30.7", &job(4, 0)))
}

fn wanted_job() -> Connection {
    Connection::Json(json("2.30.7", &job(8, 7)))
}

const JSON_DIALOGUE: [&str; 5] = ["connected", "CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "STATUS"];
const TEXT_DIALOGUE: [&str; 5] = ["connected", "CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "VERBOSE STATUS"];

fn text(refusal: &ExaminationRefusal) -> (&str, &str, bool) {
    (&refusal.reason, &refusal.remedy, refusal.is_risk)
}

#[test]
fn newer_versions_answer_in_json_without_consent() {
    for version in ["2.29.2", "2.29.7", "2.30.7"] {
        let server = FakeRas::start(vec![Connection::Json(json(version, &job(8, 7)))]);
        let report = server.query(version, false).expect("a report");
        assert!(report.is_json);
        assert_eq!(report.nccl_version.as_deref(), Some(version));
        assert_eq!(report.communicators[0].operations[4].named[0].pid, Some(WANTED));
        assert_eq!(server.finish(), JSON_DIALOGUE);
    }
}

#[test]
fn older_versions_answer_with_consent_only() {
    let reports = [
        ("2.24.3", Connection::Text(text_healthy("2.24.3"))),
        ("2.26.2", Connection::Text(text_mismatch("2.26.2"))),
        ("2.28.3", Connection::Text(text_incomplete("2.28.3"))),
        ("2.28.9", Connection::Json(json("2.28.9", &job(8, 7)))),
    ];
    for (version, connection) in reports {
        let is_json = matches!(connection, Connection::Json(_));
        let server = FakeRas::start(vec![connection]);
        assert!(server.query(version, false).expect_err("refused").is_risk);
        let report = server.query(version, true).expect("a report");
        assert_eq!((report.nccl_version.as_deref(), report.is_json), (Some(version), is_json));
        assert!(!report.communicators.is_empty());
        // There was no connection before the consent.
        assert_eq!(server.finish(), if is_json { JSON_DIALOGUE } else { TEXT_DIALOGUE });
    }
}

/// The text is that of real NCCL after a rank was killed.
#[test]
fn a_report_with_an_invented_communicator_is_refused() {
    let record = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nccl/data/2.27.7/split-killed.txt");
    let text_report = Connection::Text(std::fs::read_to_string(record).expect("a record"));
    let without_ranks = JsonCommunicator { ranks: Vec::new(), missing: Vec::new() };
    for (version, connection) in
        [("2.27.7", text_report), ("2.28.9", Connection::Json(json("2.28.9", &[without_ranks])))]
    {
        let server = FakeRas::start(vec![connection]);
        let refusal = server.query(version, true).expect_err("refused");
        let reason = "the report of NCCL RAS contradicts itself, a known fault (NVIDIA/nccl#1762)";
        assert_eq!(text(&refusal), (reason, "use NCCL 2.29.2 or newer (PyTorch 2.12)", false), "{version}");
        server.finish();
    }
}

#[test]
fn a_stopped_and_a_dead_rank_are_reported() {
    let missing = vec![(6, true, true), (7, true, false)];
    let communicator = JsonCommunicator { ranks: (0..6).map(|number| rank(number, [1; 5])).collect(), missing };
    let server = FakeRas::start(vec![Connection::Json(json("2.30.7", &[communicator]))]);
    let report = server.query("2.30.7", false).expect("a report");
    assert_eq!((report.timeouts, report.communicators[0].missing_ranks.len()), (1, 2));
    server.finish();
}

#[test]
fn a_report_without_communicators_is_accepted_from_the_only_socket() {
    let server = FakeRas::start(vec![Connection::Json(json("2.30.7", &[]))]);
    assert_eq!(server.query("2.30.7", false).expect("a report").communicators, []);
    // With several sockets, it is not known whose report it is.
    assert!(server.query_shared(false, AMPLE).is_err());
    server.finish();
}

#[test]
fn the_query_is_repeated_until_the_wanted_job_answers() {
    let server = FakeRas::start(vec![other_job(), other_job(), wanted_job()]);
    let report = server.query_shared(false, AMPLE).expect("a report");
    assert_eq!(report.communicators[0].size, 8);
    assert_eq!(server.finish(), JSON_DIALOGUE.repeat(3));

    let server = FakeRas::start(vec![other_job()]);
    let refusal = server.query_shared(false, AMPLE).expect_err("other jobs");
    let reason =
        format!("NCCL RAS on port {} reports on other jobs only: none has a process 1650386", server.address.port());
    assert_eq!(text(&refusal), (&*reason, "start each job with its own port: NCCL_RAS_ADDR=localhost:PORT", false));
    assert_eq!(server.finish(), JSON_DIALOGUE.repeat(4));
}

#[test]
fn a_text_report_belongs_to_the_job_if_it_explains_all_sockets() {
    // The job has four processes on each host.
    for (others, is_accepted) in [(0, true), (3, true), (4, false), (7, false)] {
        let server = FakeRas::start(vec![Connection::Text(text_healthy("2.28.3"))]);
        let find = |_, _, _| Ok(Listeners { own: vec![server.address], others });
        let result = query(&server.target("2.28.3"), true, AMPLE, &find);
        assert_eq!(result.is_ok(), is_accepted, "{others}");
        server.finish();
    }
    // It names the wanted process.
    let server = FakeRas::start(vec![Connection::Text(text_mismatch("2.28.3"))]);
    assert!(server.query_shared(true, AMPLE).is_ok());
    server.finish();
}

#[test]
fn a_job_with_an_older_nccl_on_the_same_port_is_not_queried() {
    let old = Connection::Text(text_healthy("2.27.5"));
    let server = FakeRas::start(vec![old.clone(), wanted_job()]);
    assert!(server.query_shared(false, AMPLE).is_ok());
    let received = server.finish();
    assert_eq!(received[..4], TEXT_DIALOGUE[..4]);
    assert_eq!(received[4..], JSON_DIALOGUE);

    let server = FakeRas::start(vec![old]);
    let refusal = server.query_shared(false, AMPLE).expect_err("older");
    let reason = format!(
        "NCCL RAS was not queried: a job with an older NCCL, which a query can crash, answers on port {}",
        server.address.port()
    );
    let remedy = "start each job with its own port: NCCL_RAS_ADDR=localhost:PORT, or accept the risk with --ask-ras";
    assert_eq!(text(&refusal), (&*reason, remedy, true));
    assert_eq!(server.finish(), TEXT_DIALOGUE[..4].repeat(4));
}

#[test]
fn a_process_that_never_answers_is_tried_four_times() {
    let limits = Limits { handshake: Duration::from_millis(20), ..AMPLE };
    let server = FakeRas::start(vec![Connection::Silent]);
    let refusal = server.query_shared(false, limits).expect_err("silent");
    let reason = format!("NCCL RAS on port {} does not answer: its process is stopped or hangs", server.address.port());
    let remedy = "look for a rank in state T (stopped), and continue it with kill -CONT";
    assert_eq!(text(&refusal), (&*reason, remedy, false));
    assert_eq!(server.finish(), JSON_DIALOGUE[..2].repeat(4));

    // Another rank may answer.
    let server = FakeRas::start(vec![Connection::Closed, Connection::Silent, wanted_job()]);
    let limits = Limits { handshake: Duration::from_secs(2), ..AMPLE };
    assert!(server.query_shared(false, limits).is_ok());
    server.finish();
}

#[test]
fn all_connections_together_have_a_limit() {
    let limits = Limits { total: Duration::from_millis(20), ..AMPLE };
    let server = FakeRas::start(vec![Connection::Silent]);
    assert!(server.query_shared(false, limits).is_err());
    assert_eq!(server.finish(), JSON_DIALOGUE[..2]);
}

#[test]
fn another_program_on_the_port_gets_one_line() {
    let server = FakeRas::start(vec![Connection::Other]);
    let refusal = server.query_shared(false, AMPLE).expect_err("another program");
    let reason =
        format!("another program than NCCL RAS answers on port {}, or an unknown version of it", server.address.port());
    assert_eq!(text(&refusal), (&*reason, "start each job with its own port: NCCL_RAS_ADDR=localhost:PORT", false));
    assert_eq!(server.finish(), JSON_DIALOGUE[..2].repeat(4));
}

#[test]
fn a_slow_report_is_given_up() {
    let report = json("2.30.7", &job(8, 7));
    let server = FakeRas::start(vec![Connection::Stalled(report[..report.len() / 2].to_owned())]);
    let limits = Limits { report: Duration::from_millis(20), ..AMPLE };
    let refusal = server.query_shared(false, limits).expect_err("slow");
    assert_eq!(text(&refusal), ("NCCL RAS did not finish its report within 0 s", "try again in a minute", false));
    assert_eq!(server.finish(), JSON_DIALOGUE, "it is not queried again");
}

#[test]
fn a_report_that_ends_midway_is_refused() {
    let report = json("2.30.7", &job(8, 7));
    for part in ["", &report[..report.len() / 2]] {
        let server = FakeRas::start(vec![Connection::Json(part.to_owned())]);
        let refusal = server.query("2.30.7", false).expect_err("incomplete");
        assert_eq!(
            text(&refusal),
            (
                "the report of NCCL RAS ended midway: its process ended or lost a connection",
                "try again in a minute",
                false
            )
        );
        assert_eq!(server.finish(), JSON_DIALOGUE);
    }
}

#[test]
fn an_unknown_format_is_refused() {
    let server = FakeRas::start(vec![Connection::Json("<html></html>".to_owned())]);
    let refusal = server.query("2.30.7", false).expect_err("unknown");
    assert_eq!(text(&refusal), ("the report of NCCL RAS has an unknown format", "use a newer gpufleet", false));
    server.finish();
}

#[test]
fn a_report_of_20_mebibytes_is_refused() {
    let mut report = json("2.30.7", &job(8, 7));
    report.insert_str(1, &" ".repeat(20 << 20));
    let server = FakeRas::start(vec![Connection::Json(report)]);
    let refusal = server.query("2.30.7", false).expect_err("large");
    let remedy = format!("on its host: echo status | nc localhost {} >report.txt", server.address.port());
    assert_eq!(text(&refusal), ("the report of NCCL RAS is larger than 16 MiB", &*remedy, false));
    server.finish();
}

#[test]
fn a_server_that_listens_on_ipv6_alone_is_found() {
    // A host may have no IPv6.
    let Ok(listener) = TcpListener::bind("[::1]:0") else { return };
    let server = FakeRas::start_on(listener, vec![wanted_job()]);
    assert!(server.query("2.30.7", false).is_ok());
    assert_eq!(server.finish(), JSON_DIALOGUE);
}

#[test]
fn a_port_that_accepts_no_connection_is_refused() {
    let server = FakeRas::start(vec![wanted_job()]);
    let (target, address) = (server.target("2.30.7"), server.address);
    server.finish();
    let find = |_, _, _| Ok(Listeners { own: vec![address], others: 0 });
    let refusal = query(&target, false, AMPLE, &find).expect_err("closed");
    let reason =
        format!("NCCL RAS on port {} accepts no connection: Connection refused (os error 111)", address.port());
    assert_eq!(text(&refusal), (&*reason, "look whether the job still runs", false));
}

/// One of five reports of real versions.
fn fixture(number: usize) -> String {
    let missing = vec![(2, true, true), (3, false, false)];
    let mut job = job(2, 1);
    job.push(JsonCommunicator { ranks: vec![rank(9, [u64::MAX; 5])], missing });
    match number {
        0 => json("2.30.7", &job),
        1 => json("2.28.9", &job),
        2 => text_healthy("2.28.3"),
        3 => text_mismatch("2.28.3"),
        _ => text_incomplete("2.28.3"),
    }
}

/// The most memory that a reader may use for a report of any length.
const MAX_READER_BYTES: isize = 256 * 1024;

/// Reads bytes as both formats, in pieces. A report is within the limits of the wire.
fn read_any(bytes: &[u8], piece: usize) {
    let (of_json, json) = most_used_by(|| {
        let mut reader = JsonReader::new(WANTED);
        bytes.chunks(piece).for_each(|piece| reader.push(piece));
        reader.finish()
    });
    let (of_text, text) = most_used_by(|| {
        let mut reader = TextReader::new(WANTED);
        bytes.chunks(piece).for_each(|piece| reader.push(piece));
        reader.finish()
    });
    assert!(of_json.max(of_text) < MAX_READER_BYTES, "{of_json} and {of_text} bytes for {}", bytes.len());
    for reduced in [json, text].into_iter().flatten() {
        let line = serde_json::to_string(&reduced.report).expect("encodes");
        assert!(line.len() < 1 << 20, "{} bytes", line.len());
        let again: RasReport = serde_json::from_str(&line).expect("within the limits");
        assert_eq!(again, reduced.report);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Reports that go on and on, after a beginning that is a real one.
    #[test]
    fn endless_reports_use_no_more_memory(
        pattern in proptest::collection::vec(any::<u8>(), 1..200),
        of_pattern in 0..5_usize,
        from in any::<proptest::sample::Index>(),
        length in any::<proptest::sample::Index>(),
    ) {
        let report = fixture(of_pattern).into_bytes();
        let from = from.index(report.len());
        let part = &report[from..from + 1 + length.index(report.len() - from)];
        for pattern in [&pattern, part] {
            let mut bytes = report[..from].to_vec();
            bytes.extend(pattern.iter().copied().cycle().take(128 * 1024));
            read_any(&bytes, BUFFER_BYTES);
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_report_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..2000), piece in 1..100_usize) {
        read_any(&bytes, piece);
    }

    /// Changes bytes, and removes, repeats and moves parts of real reports.
    #[test]
    fn changed_reports_are_a_report_or_none(
        number in 0..5_usize,
        changes in proptest::collection::vec((any::<u32>(), any::<u32>(), any::<u8>(), 0..5_u8), 1..12),
        piece in 1..5000_usize,
    ) {
        let mut bytes = fixture(number).into_bytes();
        for (start, length, byte, kind) in changes {
            if bytes.is_empty() {
                break;
            }
            let start = start as usize % bytes.len();
            let end = (start + length as usize % 200).min(bytes.len());
            match kind {
                0 => bytes[start] = byte,
                1 => drop(bytes.drain(start..end)),
                2 => {
                    let part = bytes[start..end].to_vec();
                    bytes.splice(start..start, part);
                }
                3 => {
                    let part: Vec<u8> = bytes.drain(start..end).collect();
                    let place = byte as usize % (bytes.len() + 1);
                    bytes.splice(place..place, part);
                }
                _ => drop(bytes.splice(start..start, *b"99999999999999999999")),
            }
        }
        read_any(&bytes, piece);
    }
}
