//! Speaks the client protocol of NCCL RAS (nccl:src/ras/client.cc, and `rasClientEventLoop` in client_support.cc).
//!
//! Only [`HANDSHAKE`], [`TIMEOUT`], [`SET_FORMAT`], [`STATUS`] and [`VERBOSE_STATUS`] are ever sent. Others change the job (`CONTROL`), make it queue without bound
//! (`MONITOR`) or ask the driver of every rank (`DIAGNOSTICS`).

use super::gate::{RasTarget, check, refusal, risk};
use super::json::JsonReader;
use super::reduction::Reduced;
use super::sockets::{Listeners, OWN_PORT, RUNNING, find};
use super::text::TextReader;
use crate::wire::examination::{ExaminationRefusal, RasReport};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Names the version of the protocol, which is 2 in all versions of NCCL.
const HANDSHAKE: &str = "CLIENT PROTOCOL 2\n";
/// Limits the collection to 5 s. A limit of 0 would be none.
const TIMEOUT: &str = "TIMEOUT 5\n";
/// Requests JSON.
const SET_FORMAT: &str = "SET FORMAT json\n";
/// Requests the report.
const STATUS: &str = "STATUS\n";
/// Requests the report with more ranks named, which makes a difference for text.
const VERBOSE_STATUS: &str = "VERBOSE STATUS\n";

/// Maximum length of an answer to a command.
const MAX_ANSWER_BYTES: usize = 256;
/// Size of the buffer for a report.
const BUFFER_BYTES: usize = 16 * 1024;

/// The limits of a query.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// For connecting to one address. A full queue of connections is not answered.
    connect: Duration,
    /// For the answers to all commands but the last. NVIDIA's client waits as long for each.
    handshake: Duration,
    /// For one report. NCCL collects for 5 s and at most for 10 s.
    report: Duration,
    /// For everything.
    total: Duration,
    /// Size of a report: 16 MiB are 30,000 ranks of communicators at 558 bytes.
    report_bytes: usize,
    connections: u32,
}

const LIMITS: Limits = Limits {
    connect: Duration::from_millis(200),
    handshake: Duration::from_secs(1),
    report: Duration::from_secs(12),
    total: Duration::from_secs(14),
    report_bytes: 16 << 20,
    connections: 4,
};

/// Queries the NCCL RAS of a process. Without `accept_risk`, only if no process that could answer is known to crash. Blocks
/// for up to 14 s.
pub(crate) fn read_report(target: &RasTarget, accept_risk: bool) -> Result<RasReport, ExaminationRefusal> {
    query(target, accept_risk, LIMITS, &find)
}

/// Finds the sockets that may answer for a process. [`find`], or a test.
type FindListeners<'a> = &'a dyn Fn(u32, u16, bool) -> Result<Listeners, ExaminationRefusal>;

/// A connection that yielded no report, but another may.
enum Miss {
    /// There was no answer to the handshake: a stopped process accepts connections.
    Silent,
    /// Another program answered.
    OtherProgram,
    /// Another job with an older NCCL answered, which was not queried.
    OlderNccl,
    /// The report is about another job.
    OtherJob,
}

fn query(
    target: &RasTarget,
    accept_risk: bool,
    limits: Limits,
    find: FindListeners<'_>,
) -> Result<RasReport, ExaminationRefusal> {
    let port = check(target, accept_risk)?;
    let listeners = find(target.pid, port, accept_risk)?;
    let end = Instant::now() + limits.total;
    let mut last = Miss::Silent;
    for _ in 0..limits.connections {
        let started = Instant::now();
        if started >= end {
            break;
        }
        let mut stream = connect(&listeners.own, limits.connect)
            .map_err(|error| refusal(&format!("NCCL RAS on port {port} accepts no connection: {error}"), RUNNING))?;
        let is_json = match shake_hands(&mut stream, end.min(started + limits.handshake)) {
            Ok(is_json) => is_json,
            Err(miss) => {
                last = miss;
                continue;
            }
        };
        if !is_json && !accept_risk {
            last = Miss::OlderNccl;
            continue;
        }
        let deadline = end.min(Instant::now() + limits.report);
        let reader = if is_json {
            Reader::Json(JsonReader::new(target.reported_pid()))
        } else {
            Reader::Text(TextReader::new(target.reported_pid()))
        };
        let reduced = receive(&mut stream, reader, port, deadline, &limits)?;
        if is_about(&reduced, &listeners) {
            let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            return Ok(RasReport { took_ms, ..reduced.report });
        }
        last = Miss::OtherJob;
    }
    Err(describe(&last, port, target.reported_pid()))
}

/// Whether the report is about the job of the wanted process. A text names few processes, so the number of sockets
/// decides: with another job on this host, there are more than the processes of one.
fn is_about(reduced: &Reduced, listeners: &Listeners) -> bool {
    let sockets = listeners.own.len() + listeners.others;
    reduced.has_process
        || listeners.others == 0
        || reduced.processes_per_host.is_some_and(|processes| sockets <= processes as usize)
}

fn describe(miss: &Miss, port: u16, pid: u32) -> ExaminationRefusal {
    match miss {
        Miss::Silent => refusal(
            &format!("NCCL RAS on port {port} does not answer: its process is stopped or hangs"),
            "look for a rank in state T (stopped), and continue it with kill -CONT",
        ),
        Miss::OtherProgram => refusal(
            &format!("another program than NCCL RAS answers on port {port}, or an unknown version of it"),
            OWN_PORT,
        ),
        Miss::OlderNccl => risk(
            &format!(
                "NCCL RAS was not queried: a job with an older NCCL, which a query can crash, answers on port {port}"
            ),
            OWN_PORT,
        ),
        Miss::OtherJob => {
            refusal(&format!("NCCL RAS on port {port} reports on other jobs only: none has a process {pid}"), OWN_PORT)
        }
    }
}

/// Connects to the first address that accepts.
fn connect(addresses: &[SocketAddr], limit: Duration) -> io::Result<TcpStream> {
    let mut result = Err(ErrorKind::AddrNotAvailable.into());
    for address in addresses {
        result = TcpStream::connect_timeout(address, limit);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// Sends all commands before the request for a report. Returns whether that will be JSON.
fn shake_hands(stream: &mut TcpStream, deadline: Instant) -> Result<bool, Miss> {
    let mut answer = |command: &str| ask(stream, command, deadline).map_err(|_| Miss::Silent);
    if !starts_with(&answer(HANDSHAKE)?, b"SERVER PROTOCOL ") || !starts_with(&answer(TIMEOUT)?, b"OK") {
        return Err(Miss::OtherProgram);
    }
    // Before 2.28.7: "ERROR: Unknown command SET FORMAT json".
    let answer = answer(SET_FORMAT)?;
    let is_json = starts_with(&answer, b"OK");
    if is_json || starts_with(&answer, b"ERROR") { Ok(is_json) } else { Err(Miss::OtherProgram) }
}

fn starts_with(answer: &[u8], prefix: &[u8]) -> bool {
    answer.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// Sends a command and reads its answer, one line.
fn ask(stream: &mut TcpStream, command: &str, deadline: Instant) -> io::Result<Vec<u8>> {
    stream.write_all(command.as_bytes())?;
    let mut answer = vec![0; MAX_ANSWER_BYTES];
    let mut filled = 0;
    while filled < answer.len() && !answer[..filled].ends_with(b"\n") {
        match read_until(stream, &mut answer[filled..], deadline)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => filled += count,
        }
    }
    answer.truncate(filled);
    Ok(answer)
}

/// Reads some bytes before the deadline.
fn read_until(stream: &mut TcpStream, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
    loop {
        let rest = deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(rest))?;
        match stream.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// A reader of either format.
enum Reader {
    Json(JsonReader),
    Text(TextReader),
}

/// Requests the report and reads it to its end: a client that leaves early makes the RAS thread spin until the collection
/// ends, because `poll` returns at once.
fn receive(
    stream: &mut TcpStream,
    mut reader: Reader,
    port: u16,
    deadline: Instant,
    limits: &Limits,
) -> Result<Reduced, ExaminationRefusal> {
    const AGAIN: &str = "try again in a minute";
    let ended = || refusal("the report of NCCL RAS ended midway: its process ended or lost a connection", AGAIN);
    let command = if matches!(reader, Reader::Json(_)) { STATUS } else { VERBOSE_STATUS };
    stream.write_all(command.as_bytes()).map_err(|_| ended())?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut total = 0;
    loop {
        match read_until(stream, &mut buffer, deadline) {
            Ok(0) => break,
            Ok(count) => {
                total += count;
                if total > limits.report_bytes {
                    let megabytes = limits.report_bytes >> 20;
                    return Err(refusal(
                        &format!("the report of NCCL RAS is larger than {megabytes} MiB"),
                        &format!("on its host: echo status | nc localhost {port} >report.txt"),
                    ));
                }
                match &mut reader {
                    Reader::Json(json) => json.push(&buffer[..count]),
                    Reader::Text(text) => text.push(&buffer[..count]),
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
                let seconds = limits.report.as_secs();
                return Err(refusal(&format!("NCCL RAS did not finish its report within {seconds} s"), AGAIN));
            }
            Err(_) => return Err(ended()),
        }
    }
    let reduced = match reader {
        Reader::Json(json) if json.is_malformed() => {
            return Err(refusal("the report of NCCL RAS has an unknown format", "use a newer gpufleet"));
        }
        Reader::Json(json) => json.finish(),
        Reader::Text(text) => text.finish(),
    };
    match reduced {
        Some(reduced) if reduced.is_damaged => Err(refusal(
            "the report of NCCL RAS contradicts itself, a known fault (NVIDIA/nccl#1762)",
            "use NCCL 2.29.2 or newer (PyTorch 2.12)",
        )),
        reduced => reduced.ok_or_else(ended),
    }
}

#[cfg(test)]
#[path = "query_tests.rs"]
mod tests;
