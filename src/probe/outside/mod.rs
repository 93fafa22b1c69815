//! What only another program can tell: a file server that may never answer, Slurm, the container engines.
//!
//! Each is asked by a child that is left behind when it does not come back. Nothing here ever waits.

mod child;
mod containers;
mod filesystems;
mod mounts;
mod slurm;

pub(crate) use containers::Containers;
pub(crate) use filesystems::Filesystems;
pub(crate) use slurm::Slurm;
