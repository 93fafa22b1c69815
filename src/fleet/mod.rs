//! The merged state of all hosts: pure data and pure functions, without SSH, terminal or clock.
//!
//! [`Fleet::apply`] applies a [`HostUpdate`] at a [`Moment`]; all other functions only read. A [`Host`] joins the columns
//! of a snapshot to GPU readings and [`Process`]es and keeps their [`History`]. [`host_rows`] builds the rows of its jobs
//! and processes, [`RowCache`] the sorted and grouped list of all hosts, and a [`Filter`] selects rows of it.
//! [`recording`] writes and replays the updates of all hosts.

mod connection;
mod distributed_jobs;
mod filter;
#[cfg(test)]
pub(crate) mod fixture;
mod free_gpus;
mod gpus;
pub mod history;
mod host;
mod list;
mod moment;
mod process;
mod process_table;
mod quantized_series;
pub mod recording;
mod rows;
mod sanitize;
mod slurm_end;
mod stored_history;
mod users;

pub use connection::{
    ConnectPhase, ConnectionLog, HostUpdate, Link, LinkError, LinkErrorKind, LogLine, MAX_BYTES_PER_SECOND,
    MAX_FACTS_PER_SECOND, MAX_GPUS_PER_SECOND, MAX_PROCESSES_PER_SECOND, MAX_SNAPSHOTS_PER_SECOND, Misbehavior,
    RetryPolicy, limited_text,
};
pub use distributed_jobs::{DistributedJob, distributed_jobs, possibly_distributed_jobs};
pub use filter::{Filter, FilterError, FilterInput, RowFacts, SYNTAX as FILTER_SYNTAX};
pub use free_gpus::{FreeGpu, FreeHost, GpuRequirements, choose_gpus, cuda_environment, free_gpus};
pub use gpus::{GpuListStyle, GpuState, Totals, format_gpu_list, gpu_list};
pub use history::{GpuMetric, History, ProcessMetric, SeriesKey};
pub use host::{Fleet, Host, HostChange, HostId};
pub use list::{FilteredRows, FoldState, Group, ListOrder, ListRow, RowCache, SortKey};
pub use moment::{Clock, Moment};
pub use process::{
    DISK_WAIT_THRESHOLD, EndedProcess, JobKey, Launcher, Process, ProcessInfo, ProcessKey, ProcessTrouble,
    UNKNOWN_USER, launcher, program_and_arguments, program_name,
};
pub use process_table::ENDED_ROW_RETENTION;
pub use rows::{BusyRank, GroupKey, GroupSummary, JobRows, Row, RowKey, SortFigures, host_rows};
pub use slurm_end::{slurm_end_is_failure, slurm_end_text};
pub use stored_history::{
    DatedHistory, HistoryQuery, HistoryReply, MAX_POINTS, StoredGpu, StoredHistory, StoredMetric,
};
pub use users::{GpuHours, HostUsage, HostUsers, UsageLedger, UserSort, UserUsage, host_users, users};
