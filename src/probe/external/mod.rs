//! Sources that only another program can read: file servers that may not answer, Slurm and container engines.
//!
//! Each query is a child process that starts in the background and is abandoned if it does not end. Nothing here waits,
//! except [`ExternalSources::wait_until_idle`], which serves the one snapshot that a person requests by hand.

mod child;
mod containers;
mod filesystems;
mod slurm;
mod slurm_ends;
mod slurm_job_ids;
mod sources;

pub(crate) use slurm::phase;
pub(crate) use sources::ExternalSources;
