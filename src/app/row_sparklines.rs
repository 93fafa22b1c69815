//! The recent SM share of the rows on the screen: worked out when data arrives, not while drawing.

use crate::fleet::{Fleet, HostId, JobRows, Moment, ProcessKey, ProcessMetric, Row, RowCache, RowKey, SeriesKey};
use std::collections::HashMap;
use std::time::Duration;

/// Points of a row's history: two for each column of the widest one.
const POINTS: usize = 24;
/// What all of them cover.
const SPAN: Duration = Duration::from_secs(120);
/// The history of a job is the mean of so many of its processes at most.
const MAX_PROCESSES: usize = 16;

/// The histories, by row.
#[derive(Debug, Default)]
pub(super) struct RowSparklines {
    by_row: HashMap<RowKey, Vec<Option<f32>>>,
}

impl RowSparklines {
    /// The history of a row, if it was on the screen.
    pub(super) fn get(&self, key: &RowKey) -> Option<&[Option<f32>]> {
        self.by_row.get(key).map(Vec::as_slice)
    }

    /// Works them out for the rows that are shown.
    pub(super) fn refresh<'a>(
        &mut self,
        fleet: &Fleet,
        view: &RowCache,
        shown: impl Iterator<Item = &'a Row>,
        now: Moment,
    ) {
        self.by_row.clear();
        // What has ended has no history, and rows above several jobs are sums of unlike things.
        for row in shown.filter(|row| row.ended_at.is_none() && row.group_summary.is_none()) {
            let processes = processes(view.jobs(row.key.host), row);
            if let Some(points) = mean(fleet, row.key.host, &processes, now) {
                self.by_row.insert(row.key.clone(), points);
            }
        }
    }
}

fn processes<'a>(jobs: &'a [JobRows], row: &'a Row) -> Vec<&'a ProcessKey> {
    if !row.key.is_job {
        return vec![&row.key.process];
    }
    let job = jobs.iter().find(|job| job.row.key == row.key);
    // Those that have ended have no history.
    job.iter().flat_map(|job| job.process_keys()).take(MAX_PROCESSES).collect()
}

/// The mean of several histories; a point without any reading stays a gap.
fn mean(fleet: &Fleet, host: HostId, processes: &[&ProcessKey], now: Moment) -> Option<Vec<Option<f32>>> {
    let history = fleet.host(host)?.history();
    let mut sums = [(0.0f32, 0u32); POINTS];
    for process in processes {
        let points = history.points(SeriesKey::Process(process, ProcessMetric::Sm), now, SPAN, POINTS);
        for (sum, point) in sums.iter_mut().zip(points) {
            if let Some(percent) = point {
                *sum = (sum.0 + percent, sum.1 + 1);
            }
        }
    }
    let points: Vec<Option<f32>> = sums.iter().map(|(sum, count)| (*count > 0).then(|| sum / *count as f32)).collect();
    points.iter().any(Option::is_some).then_some(points)
}
