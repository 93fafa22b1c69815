//! The merged state of all hosts: pure data and pure functions over it.
//!
//! [`Fleet::apply`] takes what a host sent; everything else reads. Nothing here knows SSH, a terminal or a clock:
//! time comes in as a [`Moment`].

mod connection;
mod connection_log;
mod distributed_jobs;
mod filter;
#[cfg(test)]
pub(crate) mod fixture;
mod fleet;
mod free_gpus;
mod gpu_list;
mod gpu_state;
mod group_rows;
pub mod history;
mod host;
mod jobs;
mod list;
mod moment;
mod process;
mod processes;
mod program;
pub mod recording;
mod rows;
mod sanitize;
mod totals;
mod users;

pub use connection::{ConnectPhase, Link, LinkError, LinkErrorKind, RetryPolicy};
pub use connection_log::{ConnectionLog, LogLine};
pub use distributed_jobs::{DistributedJob, distributed_jobs};
pub use filter::{Filter, FilterError, FilterInput, RowFacts, SYNTAX as FILTER_SYNTAX};
pub use fleet::Fleet;
pub use free_gpus::{FreeGpu, FreeHost, GpuRequirements, choose_gpus, cuda_environment, free_gpus};
pub use gpu_list::{GpuListStyle, format_gpu_list, gpu_list};
pub use gpu_state::GpuState;
pub use history::{GpuMetric, History, ProcessMetric, SeriesKey};
pub use host::{Host, HostChange, HostId, HostUpdate};
pub use jobs::{JobKey, launcher};
pub use list::{FilteredRows, FoldState, Group, ListOrder, ListRow, RowCache, SortKey};
pub use moment::{Clock, Moment};
pub use process::{
    DISK_WAIT_THRESHOLD, EndedProcess, Launcher, Process, ProcessInfo, ProcessKey, ProcessTrouble, UNKNOWN_USER,
};
pub use program::{program_and_arguments, program_name};
pub use rows::{BusyRank, ENDED_ROW_RETENTION, GroupKey, GroupSummary, JobRows, Row, RowKey, host_rows};
pub use totals::Totals;
pub use users::{GpuHours, HostUsage, HostUsers, UsageLedger, UserUsage, host_users, users};
