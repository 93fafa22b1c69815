//! The processes on the GPUs, as the host knows them: readings in every sample, facts when they are new.

mod descendants;
mod own_process;
mod proc_scan;
mod process_sampler;
mod refresh_budget;
mod threads;
mod tracked_process;

pub(crate) use own_process::is_file_path;
pub(crate) use process_sampler::{ProcessSampler, SampleContext};
