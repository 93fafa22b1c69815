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

pub(super) use gate::{ConfigurationFile, RasTarget};
pub(super) use query::read_report;
