//! The limit of every list in a message.
//!
//! Lists are checked while their line is decoded: an entry such as `{}` takes up to 32 times its length in memory, so
//! without limits a line of the maximum length could fill gigabytes. The limits are far above the numbers that the
//! probe sends. A longer list is a protocol violation that names the list.

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// Maximum number of processes in a snapshot. The sender keeps those with the most GPU memory and counts the rest.
pub const MAX_PROCESSES: usize = 2048;
/// Maximum number of GPUs, MIG instances included, in an inventory.
pub const MAX_GPUS: usize = 512;
/// Maximum number of ancestors of a process. The probe sends at most 24.
pub const MAX_ANCESTORS: usize = 64;
/// Maximum number of arguments of a process or an ancestor. The probe sends at most 4 KiB of arguments.
pub const MAX_ARGUMENTS: usize = 4096;
/// Maximum number of ports on which a process listens. The probe sends at most 8.
pub const MAX_PORTS: usize = 64;
/// Maximum number of file systems. The probe sends at most 16.
pub const MAX_FILESYSTEMS: usize = 64;
/// Maximum number of GPUs that Slurm has allocated. The probe sends at most 512 per kind of GPU.
pub const MAX_SLURM_GPUS: usize = 4096;
/// Maximum number of Slurm jobs with GPUs on the host. The probe sends at most 64.
pub const MAX_SLURM_JOBS: usize = 512;
/// Maximum number of ended Slurm jobs in a snapshot. The probe sends at most 32.
pub const MAX_SLURM_ENDS: usize = 128;
/// Maximum number of Slurm jobs of an earlier connection in a request. The controller sends at most 32.
pub const MAX_EARLIER_SLURM_JOBS: usize = 128;
/// Maximum number of Xids in a snapshot. The probe sends at most 64 per sample and counts the rest.
pub const MAX_XID_EVENTS: usize = 1024;
/// Maximum number of values in each list of [`super::RecentPast`]. The probe sends at most 60.
pub const MAX_PAST_VALUES: usize = 1024;
/// Maximum number of remarks in a snapshot. The probe sends about ten.
pub const MAX_NOTES: usize = 256;
/// Maximum number of environment variables, or of log lines, in a reply. The probe sends at most 64 variables, and 4 KiB of a
/// log; older probes send up to 1024 variables.
pub const MAX_REPLY_LINES: usize = 8192;
/// Maximum number of parts that an examination can request or refuse.
pub const MAX_EXAMINATION_PARTS: usize = 16;
/// Maximum number of ports in an examination.
pub const MAX_LINKS: usize = 64;
/// Maximum number of error counters of one port.
pub const MAX_LINK_ERRORS: usize = 16;
/// Maximum number of groups of threads in an examination.
pub const MAX_THREAD_GROUPS: usize = 48;
/// Maximum number of environment variables in an examination.
pub const MAX_VARIABLES: usize = 64;
/// Maximum number of TCP peers in an examination.
pub const MAX_PEERS: usize = 64;
/// Maximum number of Python stacks in an examination.
pub const MAX_STACKS: usize = 16;
/// Maximum number of frames of one Python stack.
pub const MAX_FRAMES: usize = 24;
/// Maximum number of NCCL communicators in an examination.
pub const MAX_COMMUNICATORS: usize = 64;
/// Maximum number of kinds of operation of one communicator. NCCL counts five.
pub const MAX_OPERATIONS: usize = 16;
/// Maximum number of different counts of one operation.
pub const MAX_COUNTS: usize = 8;
/// Maximum number of ranks in each list of a communicator.
pub const MAX_NAMED_RANKS: usize = 16;
/// Maximum number of process groups in a dump of PyTorch's Flight Recorder.
pub const MAX_RECORDED_GROUPS: usize = 16;
/// Maximum number of operations of one such group that have not ended.
pub const MAX_RECORDED_OPERATIONS: usize = 4;

/// Declares functions for `#[serde(deserialize_with)]`, each with the limit of a list and the words for its entries.
macro_rules! limited_lists {
    ($($list:ident: $limit:ident, $items:literal;)*) => {$(
        pub(super) fn $list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
            List::new($limit, $items).deserialize(deserializer)
        }
    )*};
}

limited_lists! {
    gpus: MAX_GPUS, "GPUs";
    xid_events: MAX_XID_EVENTS, "Xid events";
    recent_past: MAX_GPUS, "GPUs with earlier samples";
    past_values: MAX_PAST_VALUES, "earlier samples of one GPU";
    facts: MAX_PROCESSES, "process facts";
    arguments: MAX_ARGUMENTS, "arguments of one process";
    ancestors: MAX_ANCESTORS, "ancestors of one process";
    ports: MAX_PORTS, "ports of one process";
    filesystems: MAX_FILESYSTEMS, "file systems";
    slurm_job_gpus: MAX_GPUS, "GPUs of one Slurm job";
    slurm_ends: MAX_SLURM_ENDS, "ended Slurm jobs";
    earlier_slurm_jobs: MAX_EARLIER_SLURM_JOBS, "Slurm jobs of an earlier connection";
    notes: MAX_NOTES, "notes";
    reply_lines: MAX_REPLY_LINES, "lines in a reply";
    examination_parts: MAX_EXAMINATION_PARTS, "parts of an examination";
    refusals: MAX_EXAMINATION_PARTS, "refusals of an examination";
    links: MAX_LINKS, "ports";
    link_errors: MAX_LINK_ERRORS, "error counters of one port";
    thread_groups: MAX_THREAD_GROUPS, "groups of threads";
    variables: MAX_VARIABLES, "variables of one process";
    peers: MAX_PEERS, "peers of one process";
    stacks: MAX_STACKS, "stacks";
    frames: MAX_FRAMES, "frames of one stack";
    communicators: MAX_COMMUNICATORS, "communicators";
    operations: MAX_OPERATIONS, "operations of one communicator";
    counts: MAX_COUNTS, "counts of one operation";
    named_ranks: MAX_NAMED_RANKS, "named ranks";
    recorded_groups: MAX_RECORDED_GROUPS, "process groups";
    recorded_operations: MAX_RECORDED_OPERATIONS, "operations of one process group";
}

/// For `#[serde(deserialize_with)]` outside of the wire protocol: a list of at most `N` entries.
#[cfg(feature = "controller")]
pub(crate) fn at_most<'de, const N: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    List::new(N, "entries in a list").deserialize(deserializer)
}

/// For `#[serde(deserialize_with)]`: a list of GPUs that may be `null`.
pub(super) fn slurm_gpus<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u32>>, D::Error> {
    deserializer.deserialize_option(OptionalList(List::new(MAX_SLURM_GPUS, "GPUs allocated by Slurm")))
}

/// For `#[serde(deserialize_with)]`: a list of Slurm jobs that may be `null`.
pub(super) fn slurm_jobs<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    deserializer.deserialize_option(OptionalList(List::new(MAX_SLURM_JOBS, "Slurm jobs")))
}

struct OptionalList<T>(List<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OptionalList<T> {
    type Value = Option<Vec<T>>;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("option")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        self.0.deserialize(deserializer).map(Some)
    }
}

/// Deserializes a list of at most `limit` entries.
struct List<T> {
    limit: usize,
    items: &'static str,
    entries: PhantomData<T>,
}

impl<T> List<T> {
    fn new(limit: usize, items: &'static str) -> Self {
        Self { limit, items, entries: PhantomData }
    }
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for List<T> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
    type Value = Vec<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<T>, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = sequence.next_element()? {
            if entries.len() >= self.limit {
                return Err(A::Error::custom(format_args!("more than {} {}", self.limit, self.items)));
            }
            entries.push(entry);
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::codec::{MAX_LINE_BYTES, decode};
    use crate::wire::{Message, ProcessFacts};

    /// Every list that is not a column: the line with `LIST` in its place, an entry, the limit and the words of the error.
    const LISTS: [(&str, &str, usize, &str); 20] = [
        (r#"{"inventory":{"gpus":LIST}}"#, "{}", MAX_GPUS, "GPUs"),
        (r#"{"snapshot":{"host":{"filesystems":LIST}}}"#, "{}", MAX_FILESYSTEMS, "file systems"),
        (r#"{"snapshot":{"host":{"slurm_allocated_gpus":LIST}}}"#, "0", MAX_SLURM_GPUS, "GPUs allocated by Slurm"),
        (r#"{"snapshot":{"host":{"slurm_jobs":LIST}}}"#, "{}", MAX_SLURM_JOBS, "Slurm jobs"),
        (r#"{"snapshot":{"host":{"slurm_ends":LIST}}}"#, "{}", MAX_SLURM_ENDS, "ended Slurm jobs"),
        (r#"{"snapshot":{"host":{"slurm_jobs":[{"gpus":LIST}]}}}"#, "0", MAX_GPUS, "GPUs of one Slurm job"),
        (r#"{"snapshot":{"xid_events":LIST}}"#, r#"{"xid":1,"monotonic_seconds":0}"#, MAX_XID_EVENTS, "Xid events"),
        (r#"{"snapshot":{"recent_past":LIST}}"#, "{}", MAX_GPUS, "GPUs with earlier samples"),
        (r#"{"snapshot":{"recent_past":[{"utilization_percent":LIST}]}}"#, "0", MAX_PAST_VALUES, PAST),
        (r#"{"snapshot":{"recent_past":[{"memory_utilization_percent":LIST}]}}"#, "0", MAX_PAST_VALUES, PAST),
        (r#"{"snapshot":{"recent_past":[{"power_watts":LIST}]}}"#, "0", MAX_PAST_VALUES, PAST),
        (r#"{"snapshot":{"facts":LIST}}"#, "{}", MAX_PROCESSES, "process facts"),
        (r#"{"snapshot":{"facts":[{"argv":LIST}]}}"#, r#""""#, MAX_ARGUMENTS, "arguments of one process"),
        (r#"{"snapshot":{"facts":[{"ancestors":LIST}]}}"#, "{}", MAX_ANCESTORS, "ancestors of one process"),
        (r#"{"snapshot":{"facts":[{"listening_ports":LIST}]}}"#, "80", MAX_PORTS, "ports of one process"),
        (
            r#"{"snapshot":{"facts":[{"ancestors":[{"argv":LIST}]}]}}"#,
            r#""""#,
            MAX_ARGUMENTS,
            "arguments of one process",
        ),
        (r#"{"snapshot":{"notes":LIST}}"#, r#""""#, MAX_NOTES, "notes"),
        (r#"{"reply":{"id":1,"outcome":{"environment":LIST}}}"#, r#""""#, MAX_REPLY_LINES, LINES),
        (r#"{"reply":{"id":1,"outcome":{"log_tail":{"path":"","lines":LIST}}}}"#, r#""""#, MAX_REPLY_LINES, LINES),
        // The rows of columns are counted by the codec, which only needs them to be bounded.
        (r#"{"snapshot":{"gpus":{"fan_percent":LIST}}}"#, "0", super::super::columns::MAX_ROWS, "rows"),
    ];
    const PAST: &str = "earlier samples of one GPU";
    const LINES: &str = "lines in a reply";

    fn line(form: &str, entry: &str, count: usize) -> String {
        form.replace("LIST", &format!("[{}]", vec![entry; count].join(",")))
    }

    #[test]
    fn a_list_over_its_limit_is_refused_by_name() {
        for (form, entry, limit, items) in LISTS {
            let error = decode(line(form, entry, limit + 1).as_bytes()).expect_err(form).to_string();
            let expected = format!("protocol violation: more than {limit} {items} at line 1 column ");
            assert!(error.starts_with(&expected), "{form}: {error}");
        }
    }

    #[test]
    fn a_list_of_the_maximum_length_is_accepted() {
        for (form, entry, limit, _) in &LISTS[..16] {
            let decoded = decode(line(form, entry, *limit).as_bytes());
            assert!(decoded.is_ok(), "{form}: {decoded:?}");
        }
    }

    #[test]
    fn an_absent_and_a_null_list_differ_from_an_empty_one() {
        for (list, expected) in [("null", None), ("[]", Some(vec![])), ("[3]", Some(vec![3]))] {
            let line = format!(r#"{{"snapshot":{{"host":{{"slurm_allocated_gpus":{list}}}}}}}"#);
            let Ok(Message::Snapshot(snapshot)) = decode(line.as_bytes()) else { panic!("{line}") };
            assert_eq!(snapshot.host.slurm_allocated_gpus, expected);
        }
        assert!(decode(br#"{"snapshot":{"notes":null}}"#).is_err());
    }

    /// The memory of process facts, without the empty texts, which are shared.
    fn bytes(facts: &[ProcessFacts]) -> usize {
        let arguments = |argv: &[crate::wire::SafeText]| {
            argv.iter().map(|text| size_of_val(text) + if text.is_empty() { 0 } else { 32 + text.len() }).sum::<usize>()
        };
        facts
            .iter()
            .map(|facts| {
                let ancestors = facts.ancestors.iter().map(|parent| size_of_val(parent) + arguments(&parent.argv));
                size_of_val(facts) + arguments(&facts.argv) + ancestors.sum::<usize>()
            })
            .sum()
    }

    #[test]
    fn a_hostile_line_takes_a_bounded_amount_of_memory() {
        let ancestors = format!(r#"{{"ancestors":[{}]}}"#, vec!["{}"; MAX_ANCESTORS].join(","));
        let arguments = |text: &str| format!(r#"{{"argv":[{}]}}"#, vec![text; MAX_ARGUMENTS].join(","));
        for facts in ["{}", &ancestors, &arguments(r#""""#), &arguments(r#""a""#)] {
            let count = (MAX_LINE_BYTES - 100) / (facts.len() + 1);
            let line = format!(r#"{{"snapshot":{{"facts":[{}]}}}}"#, vec![facts; count.min(MAX_PROCESSES)].join(","));
            let Ok(Message::Snapshot(snapshot)) = decode(line.as_bytes()) else { panic!("{facts}") };
            let bytes = bytes(&snapshot.facts);
            assert!(bytes <= 24 << 20, "{facts}: {bytes} bytes");
        }
    }
}
