//! What only another program can tell: a file server that may never answer, Slurm, the container engines.
//!
//! Each is asked by a child that is started in the background and left behind when it does not come back. Nothing here
//! ever waits, but for the one snapshot that a person asks for by hand.

mod child;
mod containers;
mod everybody;
mod filesystems;
mod jobs;
mod mounts;
mod slurm;

use containers::Containers;
pub(crate) use everybody::Outside;
use filesystems::Filesystems;
use jobs::Jobs;
use slurm::Slurm;
