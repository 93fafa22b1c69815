//! The processes on the GPUs, as the host knows them: readings in every sample, facts when they are new.

mod descendants;
mod list;
mod own;
mod round;
mod threads;
mod tracked;
mod walk;

pub(crate) use list::{Moment, Processes};
pub(crate) use own::is_file;
