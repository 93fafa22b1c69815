//! Sources that only another program can read: file servers that may not answer, Slurm and the container engines.
//!
//! Each query is a child process that starts in the background and that gpufleet abandons if it does not end. Nothing
//! here waits, except [`ExternalSources::wait_until_idle`] for the one snapshot that a person requests by hand.

mod child;
mod containers;
mod filesystems;
mod slurm;
mod sources;

pub(crate) use sources::ExternalSources;
