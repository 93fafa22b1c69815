//! Encodes one message per line of JSON and decodes lines with limits: a remote cannot make the reader hold more than
//! one line.

use super::columns::MAX_ROWS;
pub use super::limits::{MAX_GPUS, MAX_PROCESSES};
use super::{Message, PROTOCOL, SafeText, Snapshot};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum length of a line without its newline.
pub const MAX_LINE_BYTES: usize = 1 << 20;

// A repeated column expands to more rows than any limit, so that `check_limits` still finds too many.
const _: () = assert!(MAX_ROWS > 2 * MAX_PROCESSES && MAX_ROWS > MAX_GPUS);

/// Why a line was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CodecError {
    /// No newline within [`MAX_LINE_BYTES`].
    LineTooLong,
    /// The line is not the JSON of a message.
    Malformed {
        /// The error of the decoder.
        reason: SafeText,
        /// The beginning of the line.
        line_prefix: SafeText,
    },
    /// The probe uses another version of the protocol.
    UnsupportedProtocol {
        /// Version of the probe.
        received: u32,
    },
    /// Columns have more rows than allowed.
    TooMany {
        /// Name of the rows.
        items: &'static str,
        /// Number of rows.
        count: usize,
        /// Maximum number of rows.
        limit: usize,
    },
}

impl fmt::Display for CodecError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LineTooLong => write!(formatter, "protocol violation: a line of more than {MAX_LINE_BYTES} bytes"),
            Self::Malformed { reason, line_prefix } => {
                write!(formatter, "protocol violation: {reason}, in the line that begins `{line_prefix}`")
            }
            Self::UnsupportedProtocol { received } => {
                write!(formatter, "the probe speaks protocol {received}, this gpufleet speaks {PROTOCOL}")
            }
            Self::TooMany { items, count, limit } => {
                write!(formatter, "protocol violation: {count} {items}, at most {limit} are allowed")
            }
        }
    }
}

impl std::error::Error for CodecError {}

/// Encodes a message or request as one line with its newline.
///
/// # Errors
/// If a value cannot be encoded as JSON, which does not happen with the types of this module.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, serde_json::Error> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

/// Decodes one message from a line without its newline and checks its limits.
pub fn decode(line: &[u8]) -> Result<Message, CodecError> {
    #[derive(Deserialize)]
    struct HelloHeader {
        hello: ProtocolHeader,
    }
    #[derive(Deserialize)]
    struct ProtocolHeader {
        protocol: u32,
    }
    // Check the version first, so that a `Hello` of another form gives the right error.
    if line.starts_with(br#"{"hello""#)
        && let Ok(HelloHeader { hello }) = serde_json::from_slice(line)
        && hello.protocol != PROTOCOL
    {
        return Err(CodecError::UnsupportedProtocol { received: hello.protocol });
    }
    let message: Message = decode_json(line)?;
    check_limits(&message)?;
    Ok(message)
}

/// Checks the protocol and the number of rows of a message that was decoded as part of something else. Decoding has
/// checked the lists already.
pub fn check_limits(message: &Message) -> Result<(), CodecError> {
    match message {
        Message::Hello(hello) if hello.protocol != PROTOCOL => {
            Err(CodecError::UnsupportedProtocol { received: hello.protocol })
        }
        Message::Snapshot(snapshot) => check_snapshot(snapshot),
        _ => Ok(()),
    }
}

/// Decodes one value; the error quotes the beginning of the line.
pub fn decode_json<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, CodecError> {
    serde_json::from_slice(line).map_err(|error| CodecError::Malformed {
        reason: SafeText::new(&error.to_string()),
        line_prefix: SafeText::from_bytes(&line[..line.len().min(80)]),
    })
}

fn check_snapshot(snapshot: &Snapshot) -> Result<(), CodecError> {
    check_count("GPU readings", snapshot.gpus.len(), MAX_GPUS)?;
    check_count("GPU health readings", snapshot.health.len(), MAX_GPUS)?;
    check_count("processes", snapshot.processes.len(), MAX_PROCESSES)?;
    check_count("processes on GPUs", snapshot.gpu_processes.len(), 2 * MAX_PROCESSES)
}

fn check_count(items: &'static str, count: usize, limit: usize) -> Result<(), CodecError> {
    if count > limit { Err(CodecError::TooMany { items, count, limit }) } else { Ok(()) }
}

/// Capacity that an empty buffer keeps: more than a usual snapshot, less than the first one with its facts.
const MAX_IDLE_CAPACITY_BYTES: usize = 8 * 1024;

/// Splits a stream of bytes into lines. It never holds more than one line.
#[derive(Debug)]
pub struct LineBuffer {
    bytes: Vec<u8>,
    /// The maximum length of a line.
    limit: usize,
    /// Number of bytes searched for a newline, so that a line that arrives in pieces is searched once.
    scanned: usize,
    consumed: usize,
}

impl Default for LineBuffer {
    fn default() -> Self {
        Self::with_limit(MAX_LINE_BYTES)
    }
}

impl LineBuffer {
    /// A buffer for lines of at most `limit` bytes, instead of [`MAX_LINE_BYTES`].
    pub fn with_limit(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit, scanned: 0, consumed: 0 }
    }

    /// Appends bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.consumed > 0 {
            self.bytes.drain(..self.consumed);
            self.scanned -= self.consumed;
            self.consumed = 0;
            if self.bytes.is_empty() && self.bytes.capacity() > MAX_IDLE_CAPACITY_BYTES {
                self.bytes = Vec::new();
            }
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next line without its newline and carriage return, or `None` if it is not complete.
    ///
    /// # Errors
    /// [`CodecError::LineTooLong`] if there is no newline within the limit.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, CodecError> {
        let start = self.consumed;
        match self.bytes[self.scanned..].iter().position(|&byte| byte == b'\n') {
            Some(offset) => {
                let end = self.scanned + offset;
                if end - start > self.limit {
                    return Err(CodecError::LineTooLong);
                }
                self.consumed = end + 1;
                self.scanned = end + 1;
                let line = &self.bytes[start..end];
                Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
            }
            None if self.bytes.len() - start > self.limit => Err(CodecError::LineTooLong),
            None => {
                self.scanned = self.bytes.len();
                Ok(None)
            }
        }
    }

    /// Returns the bytes after the last complete line, for example to pass them to another reader.
    pub fn remaining(&self) -> &[u8] {
        &self.bytes[self.consumed..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::limits::MAX_EARLIER_SLURM_JOBS;
    use crate::wire::{
        Ancestor, ComputeMode, DeviceError, DriverError, DriverErrorKind, Filesystem, GpuColumns, GpuHealth,
        GpuHealthColumns, GpuInfo, GpuProcessColumns, GpuProcessKind, GpuProcessReading, GpuReading, Hello,
        HostReading, Inventory, Owner, Presence, ProbeCost, ProcessColumns, ProcessFacts, ProcessReading, ProcessState,
        RecentPast, RecoveryAction, Reply, ReplyOutcome, Request, Scope, Signal, XidEvent,
    };
    use proptest::prelude::*;

    fn hello() -> Hello {
        Hello {
            protocol: PROTOCOL,
            probe_version: "0.1.0".into(),
            boot_id: Some("b".into()),
            host_name: Some("hgx-01".into()),
            login_user: Some("alice".into()),
            login_uid: Some(1000),
            kernel: Some("6.1".into()),
            arch: Some("x86_64".into()),
            cpu_count: Some(112),
            memory_total_bytes: Some(1 << 40),
            scope: Some(Scope::SlurmJob("3385".into())),
            source: None,
            probe_pid: Some(77),
            probe_sha256: None,
        }
    }

    fn snapshot() -> Snapshot {
        Snapshot {
            sequence: 9,
            generation: 2,
            monotonic_seconds: 12.25,
            wall_unix_ms: 1_763_000_000_123,
            interval_seconds: Some(2.0),
            host: HostReading {
                cpu_percent: Some(13.5),
                oom_kills: Some(0),
                filesystems: vec![Filesystem {
                    mount_point: "/home".into(),
                    kind: "nfs4".into(),
                    silent_seconds: Some(12.0),
                    timeouts: Some(2),
                    ..Filesystem::default()
                }],
                slurm_allocated_gpus: Some(vec![]),
                ..HostReading::default()
            },
            gpus: GpuColumns::from_rows(&[
                GpuReading { utilization_percent: Some(0), power_watts: Some(61.5), ..GpuReading::default() },
                GpuReading {
                    error: Some(DeviceError {
                        kind: DriverErrorKind::GpuLost,
                        code: Some(15),
                        message: "GPU is lost".into(),
                    }),
                    ..GpuReading::default()
                },
            ]),
            health: GpuHealthColumns::from_rows(&[
                GpuHealth {
                    ecc_uncorrectable_volatile: Some(2),
                    row_remap_failed: Some(true),
                    recovery_action: Some(RecoveryAction::DrainAndReset),
                    compute_mode: Some(ComputeMode::ExclusiveProcess),
                    nvlinks_active: Some(0x3_FFFF),
                    ..GpuHealth::default()
                },
                GpuHealth::default(),
            ]),
            xid_events: vec![XidEvent { gpu: Some(1), xid: 79, monotonic_seconds: 11.5 }],
            recent_past: vec![RecentPast {
                gpu: 0,
                end_monotonic_seconds: 0.25,
                utilization_percent: vec![Some(97), None, Some(100)],
                power_watts: vec![Some(560.5)],
                ..RecentPast::default()
            }],
            gpu_processes: GpuProcessColumns::from_rows(&[GpuProcessReading {
                pid: Some(4312),
                gpu: Some(0),
                kind: Some(GpuProcessKind::ComputeAndGraphics),
                gpu_memory_bytes: Some(1 << 30),
                sm_percent: Some(97),
                ..GpuProcessReading::default()
            }]),
            processes: ProcessColumns::from_rows(&[ProcessReading {
                pid: Some(4312),
                start_ticks: Some(u64::MAX),
                presence: Some(Presence::Visible),
                state: Some(ProcessState::DiskSleep),
                cpu_percent: Some(768.0),
                ..ProcessReading::default()
            }]),
            facts: vec![ProcessFacts {
                pid: 4312,
                start_ticks: Some(u64::MAX),
                argv: vec!["python".into(), "train.py".into()],
                ancestors: vec![Ancestor { pid: 1, name: "systemd".into(), ..Ancestor::default() }],
                owner: Some(Owner::Slurm { job: "3385".into(), step: None }),
                ..ProcessFacts::default()
            }],
            processes_left_out: 3,
            driver_error: Some(DriverError {
                kind: DriverErrorKind::Blocked,
                code: None,
                message: "no answer for 12 s".into(),
            }),
            notes: vec!["clamped".into()],
            cost: Some(ProbeCost { cpu_seconds: 0.5, rss_bytes: Some(1), sample_ms: 0.4, probes_on_host: Some(1) }),
        }
    }

    #[test]
    fn every_message_round_trips() {
        let inventory = Inventory {
            generation: 2,
            driver_version: Some("570.86".into()),
            gpus: vec![GpuInfo { index: 3, uuid: Some("GPU-1".into()), ..GpuInfo::default() }],
            error: Some(DriverError {
                kind: DriverErrorKind::VersionMismatch,
                code: Some(18),
                message: "reboot".into(),
            }),
            ..Inventory::default()
        };
        for message in [
            Message::Hello(hello()),
            Message::Inventory(inventory),
            Message::Snapshot(Box::new(snapshot())),
            Message::Snapshot(Box::default()),
            Message::Echo { id: u64::MAX },
            Message::Reply(Reply { id: 4, outcome: ReplyOutcome::Refused("no pidfd before Linux 5.1".into()) }),
            Message::Reply(Reply { id: 5, outcome: ReplyOutcome::NotPermitted }),
            Message::Reply(Reply { id: 6, outcome: ReplyOutcome::Environment(vec!["RANK=3".into()]) }),
            Message::Reply(Reply {
                id: 7,
                outcome: ReplyOutcome::LogTail { path: "/home/a/out.log".into(), lines: vec!["step 4".into()] },
            }),
            Message::Farewell { reason: "stdin closed".into() },
        ] {
            let line = encode(&message).expect("encodes");
            assert_eq!(decode(line.strip_suffix(b"\n").expect("a line")).expect("decodes"), message);
        }
    }

    #[test]
    fn every_request_round_trips() {
        for request in [
            Request::Heartbeat { id: 1, last_sequence: Some(7) },
            Request::Interval { seconds: 0.25, shift_seconds: None, earlier_slurm_jobs: vec![] },
            Request::Interval { seconds: 1.0, shift_seconds: Some(-0.125), earlier_slurm_jobs: vec!["3385".into()] },
            Request::Resend,
            Request::Signal {
                id: 2,
                boot_id: "b".into(),
                pid: 9,
                start_ticks: 1,
                name: "python".into(),
                argv: vec!["python".into(), "train.py".into()],
                signal: Signal::Kill,
            },
            Request::Environment { id: 3, boot_id: "b".into(), pid: 9, start_ticks: 1 },
            Request::LogTail { id: 4, boot_id: "b".into(), pid: 9, start_ticks: 1 },
        ] {
            let line = encode(&request).expect("encodes");
            assert_eq!(decode_json::<Request>(&line).expect("decodes"), request);
        }
    }

    #[test]
    fn a_signal_request_of_another_version_is_understood() {
        let line =
            br#"{"signal":{"id":2,"boot_id":"b","pid":9,"start_ticks":1,"signal":"KILL","from_the_future":[1]}}"#;
        let request = decode_json::<Request>(line).expect("decodes");
        let Request::Signal { name, argv, .. } = request else { panic!("{request:?}") };
        assert!(name.is_empty() && argv.is_empty());
    }

    #[test]
    fn an_interval_request_of_another_version_is_understood_and_its_list_is_limited() {
        let request = decode_json::<Request>(br#"{"interval":{"seconds":2,"from_the_future":[1]}}"#);
        assert_eq!(
            request.expect("decodes"),
            Request::Interval { seconds: 2.0, shift_seconds: None, earlier_slurm_jobs: vec![] }
        );
        let of = |jobs: usize| {
            let jobs = vec![r#""3385""#; jobs].join(",");
            decode_json::<Request>(
                format!(r#"{{"interval":{{"seconds":2,"earlier_slurm_jobs":[{jobs}]}}}}"#).as_bytes(),
            )
        };
        assert!(of(MAX_EARLIER_SLURM_JOBS).is_ok());
        let error = of(MAX_EARLIER_SLURM_JOBS + 1).expect_err("is refused").to_string();
        assert!(error.contains("more than 128 Slurm jobs of an earlier connection"), "{error}");
    }

    #[test]
    fn an_unsupported_protocol_is_reported_even_if_its_hello_differs() {
        let error = decode(br#"{"hello":{"protocol":7,"who":[]}}"#).expect_err("refused");
        assert_eq!(error.to_string(), "the probe speaks protocol 7, this gpufleet speaks 1");
    }

    #[test]
    fn a_malformed_line_is_quoted_as_safe_text() {
        let error = decode(b"\x1b[31mWelcome to hgx-01!").expect_err("refused");
        assert_eq!(
            error.to_string(),
            "protocol violation: expected value at line 1 column 1, in the line that begins `␛[31mWelcome to hgx-01!`"
        );
    }

    #[test]
    fn row_limits_are_checked() {
        let pids = vec!["1"; MAX_PROCESSES + 1].join(",");
        let line = format!(r#"{{"snapshot":{{"processes":{{"pid":[{pids}]}}}}}}"#);
        let error = decode(line.as_bytes()).expect_err("refused");
        assert_eq!(error.to_string(), "protocol violation: 2049 processes, at most 2048 are allowed");
        let deep = [b"{\"hello\":".as_slice(), &[b'['; 1000]].concat();
        assert!(matches!(decode(&deep), Err(CodecError::Malformed { .. })));
    }

    #[test]
    fn a_line_over_the_limit_is_refused_before_it_ends() {
        let mut buffer = LineBuffer::default();
        buffer.push(b"{}\r\nabc");
        assert_eq!(buffer.next_line(), Ok(Some(b"{}".as_slice())));
        assert_eq!(buffer.next_line(), Ok(None));
        assert_eq!(buffer.remaining(), b"abc");
        for _ in 0..(MAX_LINE_BYTES / 1024) {
            buffer.push(&[b'x'; 1024]);
        }
        assert_eq!(buffer.next_line(), Err(CodecError::LineTooLong));
    }

    #[test]
    fn the_memory_of_a_long_line_is_freed() {
        let mut buffer = LineBuffer::default();
        buffer.push(&vec![b'x'; 100_000]);
        buffer.push(b"\n");
        assert_eq!(buffer.next_line().map(|line| line.map(<[u8]>::len)), Ok(Some(100_000)));
        buffer.push(b"{}\n");
        assert!(buffer.bytes.capacity() <= MAX_IDLE_CAPACITY_BYTES);
        assert_eq!(buffer.next_line(), Ok(Some(b"{}".as_slice())));
    }

    proptest! {
        #[test]
        fn the_decoder_never_panics(bytes: Vec<u8>, cuts in proptest::collection::vec(0usize..64, 0..8)) {
            let mut buffer = LineBuffer::default();
            let mut rest = bytes.as_slice();
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                buffer.push(now);
                rest = later;
                while let Ok(Some(line)) = buffer.next_line() {
                    let _ = decode(line);
                }
            }
        }

        #[test]
        fn lines_are_split_at_every_chunk_size(lines in proptest::collection::vec("[a-z]{0,20}", 0..20), chunk in 1usize..9) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let mut buffer = LineBuffer::default();
            let mut seen = Vec::new();
            for bytes in text.as_bytes().chunks(chunk) {
                buffer.push(bytes);
                while let Ok(Some(line)) = buffer.next_line() {
                    seen.push(String::from_utf8(line.to_vec()).expect("ascii"));
                }
            }
            prop_assert_eq!(seen, lines);
        }
    }
}
