//! The merged state of all hosts: pure data and pure functions over it.
//!
//! [`Fleet::apply`] takes what a host sent; everything else reads. Nothing here knows SSH, a terminal or a clock:
//! time comes in as a [`Moment`].

mod across;
mod filter;
#[cfg(test)]
pub(crate) mod fixture;
mod fleet;
mod free;
mod gpu_list;
mod gpu_state;
mod heads;
pub mod history;
mod host;
mod host_log;
mod jobs;
mod link;
mod list;
mod moment;
mod process;
mod processes;
mod program;
mod ranges;
pub mod recording;
mod rows;
mod totals;
mod users;

pub use across::{JobAcross, jobs_across};
pub use filter::{Filter, FilterError, RowFacts, SYNTAX as FILTER_SYNTAX, Subject};
pub use fleet::Fleet;
pub use free::{FreeGpu, FreeHost, FreeWish, choose, cuda_environment, free_gpus};
pub use gpu_list::{GpuListStyle, format_gpu_list, gpu_list};
pub use gpu_state::GpuState;
pub use history::{GpuMetric, History, ProcessMetric, Series};
pub use host::{Applied, Host, HostId, HostUpdate};
pub use host_log::{HostLog, LogLine};
pub use jobs::{JobKey, launcher};
pub use link::{Link, LinkError, LinkErrorKind, Phase, Retry};
pub use list::{Group, ListOrder, ListRow, Listed, RowsView, SortKey, Unfold};
pub use moment::{Clock, Moment};
pub use process::{DISK_WAIT_AFTER, EndedProcess, Launcher, NOBODY, Process, ProcessAbout, ProcessKey, ProcessTrouble};
pub use program::{program_and_arguments, program_name};
pub use rows::{BusyRank, ENDED_ROWS_STAY, Head, HeadKey, JobRows, Row, RowKey, host_rows};
pub use totals::Totals;
pub use users::{HostUse, HostUsers, Spent, UsageLedger, UserUse, host_users, users};
