//! What is remembered of a host itself.

use crate::fleet::JobKey;
use crate::wire::SafeText;
use std::collections::VecDeque;

/// Events that are kept, of each kind.
const MAX_EVENTS: usize = 64;

/// A job, or a part of one, that has ended.
#[derive(Debug, Clone)]
pub(in crate::diagnosis) struct EndedJob {
    pub(in crate::diagnosis) job: JobKey,
    /// It ended after this, and before `missed_at`.
    pub(in crate::diagnosis) last_seen: f64,
    pub(in crate::diagnosis) missed_at: f64,
    /// What it is called, whose it is, its pid.
    pub(in crate::diagnosis) label: String,
    pub(in crate::diagnosis) user: Option<SafeText>,
    pub(in crate::diagnosis) is_mine: bool,
    /// Seconds that it ran, where that is known.
    pub(in crate::diagnosis) age: Option<f64>,
    pub(in crate::diagnosis) most_memory: u64,
    pub(in crate::diagnosis) positions: Vec<usize>,
    pub(in crate::diagnosis) log_path: Option<SafeText>,
    pub(in crate::diagnosis) by_reboot: bool,
}

/// What is remembered of a host itself.
#[derive(Debug, Clone, Default)]
pub(in crate::diagnosis) struct HostTrack {
    pub(in crate::diagnosis) boot_id: Option<SafeText>,
    /// Samples seen.
    pub(in crate::diagnosis) samples: u64,
    /// When the last sample came.
    pub(in crate::diagnosis) sampled_at: Option<f64>,
    pub(in crate::diagnosis) first_at: Option<f64>,
    pub(in crate::diagnosis) oom_kills: Option<u64>,
    /// When the kernel killed for memory, and how many.
    pub(in crate::diagnosis) oom_events: VecDeque<(f64, u64)>,
    /// When which GPU reported which Xid.
    pub(in crate::diagnosis) xids: VecDeque<(f64, SafeText, u64)>,
    pub(in crate::diagnosis) ended: VecDeque<EndedJob>,
    /// Whole GPUs that this boot has shown.
    pub(in crate::diagnosis) known_gpus: Vec<SafeText>,
    /// Samples in a row with fewer GPUs than there should be.
    pub(in crate::diagnosis) missing_gpu_samples: u32,
    /// How many there should be.
    pub(in crate::diagnosis) expected_gpus: usize,
    /// Since when the driver has not answered, of a host that never told its GPUs.
    pub(in crate::diagnosis) waiting_since: Option<f64>,
}

/// Adds an event and forgets the oldest when there are too many.
pub(in crate::diagnosis) fn push_bounded<T>(events: &mut VecDeque<T>, event: T) {
    if events.len() >= MAX_EVENTS {
        events.pop_front();
    }
    events.push_back(event);
}
