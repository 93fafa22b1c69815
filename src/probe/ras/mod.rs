//! The query of NCCL RAS, the reliability, availability and serviceability subsystem of NCCL.
//!
//! Every process with an NCCL communicator runs a RAS thread that listens on `localhost:28028` and reports on all ranks of
//! its job. Older versions can crash the job when they are queried, so `gate` decides whether a process may be queried,
//! and `sockets` which process would answer. `query` speaks the protocol. `json` and `text` reduce the two formats to a
//! [`RasReport`](crate::wire::examination::RasReport) while it arrives, with the rules of `reduction`; a report of
//! megabytes is never kept.
//!
//! Facts about NCCL were read in its repository, NVIDIA/nccl, from v2.24.3-1 to v2.30.7-1: the server in
//! `src/ras/client_support.cc`, NVIDIA's client in `src/ras/client.cc`.

mod gate;
mod json;
mod query;
mod reduction;
mod sockets;
mod text;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod record_tests;

pub(super) use gate::{ConfigurationFile, RasTarget};
pub(super) use query::read_report;

/// A fuzz target: reads any bytes as a report in both formats. Returns the reductions, which do not depend on the pieces in which
/// the bytes arrive.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) -> Vec<crate::wire::RasReport> {
    let json = |size: usize| {
        let mut reader = json::JsonReader::new(7);
        data.chunks(size).for_each(|piece| reader.push(piece));
        reader.finish().map(|reduced| reduced.report)
    };
    let text = |size: usize| {
        let mut reader = text::TextReader::new(7);
        data.chunks(size).for_each(|piece| reader.push(piece));
        reader.finish().map(|reduced| reduced.report)
    };
    let (whole, pieces) = (data.len().max(1), 1 + data.len() / 7);
    let (as_json, as_text) = (json(whole), text(whole));
    assert_eq!(as_json, json(pieces));
    assert_eq!(as_text, text(pieces));
    as_json.into_iter().chain(as_text).collect()
}
