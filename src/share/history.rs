//! Answers queries for the history of a host from the store, for viewers and for the screen of this machine.

use crate::fleet::{HistoryQuery, HistoryReply, StoredGpu, StoredHistory};
use crate::store::rollup::GpuRow;
use crate::store::{HistoryError, HistoryReader};
use crate::wire::SafeText;
use crate::wire::limits::MAX_GPUS;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How long a viewer waits for the store.
const READ_LIMIT: Duration = Duration::from_secs(20);
/// Threads that read the store at once.
const MAX_READERS: usize = 2;

/// Answers a query from the store, at this time in seconds since 1970. Blocks.
pub fn answer(path: &Path, query: &HistoryQuery, unix: Duration) -> HistoryReply {
    let result = if query.is_valid() {
        read(path, query, unix).map_err(|error| SafeText::new(&error.to_string()))
    } else {
        Err("the collector cannot divide its history like this; install the same version on both machines".into())
    };
    HistoryReply { id: query.id, result }
}

fn read(path: &Path, query: &HistoryQuery, unix: Duration) -> Result<StoredHistory, HistoryError> {
    let reader = HistoryReader::open(path)?;
    let (from, until) = query.period(unix.as_secs());
    let step = query.step_seconds;
    let totals = reader.host_gpu_totals(&query.host, from, until, step)?;
    let points = ((until - from) / step) as usize;
    let mut gpus: BTreeMap<(u32, SafeText), StoredGpu> = BTreeMap::new();
    for (start, total) in totals {
        let name = total.gpu;
        let gpu = gpus.entry((name.index, name.uuid.clone())).or_insert_with(|| StoredGpu {
            index: name.index,
            uuid: name.uuid,
            model: name.model,
            memory_total_mib: name.memory_mib,
            utilization_permille: vec![None; points],
            held_permille: vec![None; points],
            faulty_permille: vec![None; points],
            memory_mib: vec![None; points],
            power_watts: vec![None; points],
            temperature_celsius: vec![None; points],
            ..StoredGpu::default()
        });
        add_row(gpu, (start.saturating_sub(from) / step) as usize, &total.row);
    }
    let begins = Duration::from_secs(from);
    let watched = unix.saturating_sub(begins).as_secs();
    let finish = |mut gpu: StoredGpu| {
        let known = gpu.known_seconds();
        gpu.unknown_seconds = watched.saturating_sub(known);
        // Until here it is the sum of utilization times seconds.
        gpu.mean_utilization_permille = gpu.mean_utilization_permille.filter(|_| known > 0).map(|sum| sum / known);
        gpu
    };
    let age_seconds = unix.saturating_sub(begins).as_secs_f64();
    Ok(StoredHistory { step_seconds: step, age_seconds, gpus: gpus.into_values().take(MAX_GPUS).map(finish).collect() })
}

/// Writes the values of a period to its point.
fn add_row(gpu: &mut StoredGpu, point: usize, row: &GpuRow) {
    let states = row.states;
    let known = states.known();
    if known == 0 {
        return;
    }
    let set = |points: &mut Vec<Option<i32>>, value: Option<u64>| {
        if let Some(slot) = points.get_mut(point) {
            *slot = value.map(|value| i32::try_from(value).unwrap_or(i32::MAX));
        }
    };
    set(&mut gpu.utilization_permille, row.utilization_permille);
    // A faulty GPU counts as held, as in reports.
    set(&mut gpu.held_permille, Some((known - states.free) * 1000 / known));
    set(&mut gpu.faulty_permille, Some(states.faulty * 1000 / known));
    set(&mut gpu.memory_mib, row.memory_mib);
    set(&mut gpu.power_watts, row.energy_joules.map(|joules| (joules + known / 2) / known));
    if let Some(slot) = gpu.temperature_celsius.get_mut(point) {
        *slot = row.temperature_max_celsius.and_then(|celsius| i32::try_from(celsius).ok());
    }
    gpu.busy_seconds += states.busy;
    gpu.idle_held_seconds += states.idle_held;
    gpu.free_seconds += states.free;
    gpu.faulty_seconds += states.faulty;
    if let Some(permille) = row.utilization_permille {
        *gpu.mean_utilization_permille.get_or_insert(0) += permille * known;
    }
}

/// Answers the queries of viewers on threads, a few at once.
#[derive(Debug, Clone)]
pub struct HistoryService {
    path: PathBuf,
    /// Shared by all viewers.
    readers: Arc<Semaphore>,
}

impl HistoryService {
    /// Creates a service for the history in this file.
    pub fn new(path: PathBuf) -> Self {
        Self { path, readers: Arc::new(Semaphore::new(MAX_READERS)) }
    }

    /// Answers a query. Must be called within a tokio runtime.
    pub async fn answer(&self, query: HistoryQuery, unix: Duration) -> HistoryReply {
        let id = query.id;
        let read = async {
            let permit = Arc::clone(&self.readers).acquire_owned().await.ok()?;
            let path = self.path.clone();
            // The thread keeps its place also if nobody waits any more.
            let reading = move || {
                let _permit = permit;
                answer(&path, &query, unix)
            };
            tokio::task::spawn_blocking(reading).await.ok()
        };
        let late = || format!("the history did not answer within {} s; try a shorter span", READ_LIMIT.as_secs());
        match timeout(READ_LIMIT, read).await {
            Ok(Some(reply)) => reply,
            Ok(None) | Err(_) => HistoryReply { id, result: Err(late().into()) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::History;
    use crate::store::history::{Batch, GpuName, HostRow};
    use crate::store::rollup::{GpuAccumulator, GpuSample, HistoryState};

    const T: u64 = 1_800_000_000;

    fn row(state: HistoryState, utilization: f64) -> GpuRow {
        let mut minute = GpuAccumulator::default();
        let sample = GpuSample {
            state,
            utilization_percent: Some(utilization),
            memory_bytes: Some(40 << 30),
            power_watts: Some(300.0),
            temperature_celsius: Some(64),
            sm_activity_percent: None,
            is_throttled: false,
        };
        minute.add(&sample, 60.0);
        minute.row(60)
    }

    fn store(folder: &Path) -> PathBuf {
        let path = folder.join("history.db");
        let (mut history, _) = History::open(&path).expect("opens");
        let name = GpuName {
            host: "hgx-01".into(),
            uuid: "GPU-1".into(),
            index: 3,
            model: Some("H100".into()),
            memory_mib: Some(81_559),
        };
        for (minute, gpu) in [(0, row(HistoryState::Busy, 90.0)), (2, row(HistoryState::Free, 0.0))] {
            let batch = Batch {
                start: T + minute * 60,
                gpus: vec![(name.clone(), gpu)],
                hosts: vec![("hgx-01".into(), HostRow::default())],
                ..Batch::default()
            };
            history.write(&batch).expect("writes");
        }
        path
    }

    fn query(host: &str, step_seconds: u64) -> HistoryQuery {
        HistoryQuery { id: 7, host: host.into(), span_seconds: 240, step_seconds }
    }

    #[test]
    fn the_points_of_a_host_have_gaps_where_nothing_was_seen() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = store(folder.path());
        let unix = Duration::from_secs(T + 190);
        let reply = answer(&path, &query("hgx-01", 60), unix);
        let history = reply.result.expect("a history");
        assert_eq!((reply.id, history.step_seconds, history.age_seconds), (7, 60, 250.0));
        let [gpu] = &history.gpus[..] else { panic!("{history:?}") };
        assert_eq!((gpu.index, gpu.uuid.as_str(), gpu.model.as_deref()), (3, "GPU-1", Some("H100")));
        assert_eq!(gpu.utilization_permille, [None, Some(900), None, Some(0), None], "from T - 60 to T + 240");
        assert_eq!(gpu.held_permille, [None, Some(1000), None, Some(0), None]);
        assert_eq!(
            (gpu.power_watts[1], gpu.memory_mib[1], gpu.temperature_celsius[3]),
            (Some(300), Some(40 << 10), Some(64))
        );
        assert_eq!((gpu.busy_seconds, gpu.free_seconds, gpu.unknown_seconds), (60, 60, 130));
        assert_eq!(gpu.mean_utilization_permille, Some(450));
        assert_eq!(answer(&path, &query("hgx-02", 60), unix).result.expect("a history").gpus, []);
    }

    #[tokio::test]
    async fn what_cannot_be_answered_has_a_cause() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = folder.path().join("none.db");
        let unix = Duration::from_secs(T);
        let reply = HistoryService::new(missing.clone()).answer(query("hgx-01", 60), unix).await;
        let text = format!(
            "there is no history {}: `gpufleet collect` writes it; name another file with --store",
            missing.display()
        );
        assert_eq!(reply, HistoryReply { id: 7, result: Err(text.into()) });
        assert_eq!(
            answer(&missing, &query("hgx-01", 61), unix).result.expect_err("a cause"),
            "the collector cannot divide its history like this; install the same version on both machines"
        );
    }
}
