//! What only another program can tell: a file server that may never answer, Slurm, the container engines.
//!
//! Each is asked by a child that is started in the background and left behind when it does not come back. Nothing here
//! ever waits, but for the one snapshot that a person asks for by hand.

mod child;
mod containers;
mod filesystems;
mod mounts;
mod slurm;
mod slurm_jobs;
mod sources;

use containers::Containers;
use filesystems::Filesystems;
use slurm::Slurm;
use slurm_jobs::SlurmJobs;
pub(crate) use sources::ExternalSources;
