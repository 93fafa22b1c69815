//! Proves a suspected hang of one job and names its culprit, from examinations of its ranks.
//!
//! The caller examines each rank twice, at least [`MIN_APART`] apart, and fills a [`JobEvidence`]. [`judge`] is a pure
//! function of it and returns a [`Verdict`]: the outcome, the ranks that hold the job up, the evidence, and the facts that
//! could not be read, each with a remedy.
//!
//! Layers, bottom to top: `evidence` and `verdict` (types), `log_lines`, `ranks` (which process is a rank), `activity` (what
//! one rank does), `ras` (two reports compared), `flight_recorder` (dumps compared), `facts`, `evidence_lines`, `judge`.
//! `investigation` fills the evidence: which requests to send, and the readings made of the replies. `investigations` examines
//! every job that looks hung. `job_details` selects what is shown beside the verdict.

mod activity;
mod evidence;
mod evidence_lines;
mod facts;
mod flight_recorder;
// The probe, which reads the recordings, is for Linux.
#[cfg(test)]
#[cfg(all(feature = "probe", target_os = "linux"))]
mod gloo_hang_tests;
pub mod investigation;
pub mod investigations;
pub mod job_details;
mod judge;
mod log_lines;
mod ranks;
mod ras;
#[cfg(test)]
mod testing;
mod verdict;

pub use evidence::{JobEvidence, LogTail, MIN_APART, RankEvidence, RankGpu, RankReading};
pub use judge::judge;
pub use verdict::{
    Culprit, CulpritRank, CulpritReason, EvidenceLine, MAX_CULPRIT_RANKS, Missing, Outcome, Says, Verdict,
};
