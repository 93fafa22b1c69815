//! Which thresholds have cases on both sides: replays recordings with each threshold at other values and looks for one whose
//! findings change.

use gpufleet::cli::replay::{Replay, ReplayError};
use gpufleet::config::Thresholds;
use gpufleet::config::thresholds::{PARAMETERS, Parameter};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The value of a case divided by the threshold: on both sides of it, near and far.
const SIDES: [f64; 4] = [0.8, 0.95, 1.05, 1.2];
/// For each threshold, at most this many recordings in which its rule says something, and about this many others.
const RECORDINGS: (usize, usize) = (60, 20);
/// Of those that change far from a threshold, so many are tried near it.
const CHANGED: usize = 12;

/// A change of a finding: its time, its fingerprint, its phase and its severity.
type Change = (u128, String, u8, u8);

/// A recording and what all rules say about it with their own thresholds.
struct Recording {
    bytes: Vec<u8>,
    rules: Vec<&'static str>,
    changes: Vec<Change>,
}

/// Replays the recordings of a folder with each threshold at the values for [`SIDES`] and prints the thresholds for which no finding
/// changes on one of the sides. Returns whether there are none.
pub(crate) fn run(folder: &Path) -> bool {
    let recordings = each(&paths(folder), |path| read(path));
    println!("{} recordings, {} thresholds at {SIDES:?} of the value of a case", recordings.len(), PARAMETERS.len());
    let found = each(PARAMETERS, |parameter| sides(parameter, &recordings));
    let mut whole = 0;
    for (parameter, sides) in PARAMETERS.iter().zip(&found) {
        if sides.iter().all(|has_case| *has_case) {
            whole += 1;
            continue;
        }
        let without: Vec<String> =
            SIDES.iter().zip(sides).filter(|(_, has_case)| !**has_case).map(|(side, _)| side.to_string()).collect();
        println!("  {}.{} has no case at {}", parameter.rule, parameter.key, without.join(", "));
    }
    println!("{whole} of {} thresholds have cases on all sides", PARAMETERS.len());
    whole == PARAMETERS.len()
}

fn paths(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> Recording {
    let bytes = fs::read(path).expect("a recording");
    let (changes, mut rules) = replay(&bytes, Thresholds::default());
    rules.sort_unstable();
    rules.dedup();
    Recording { bytes, rules, changes }
}

/// What all rules say about a recording, and which do.
fn replay(bytes: &[u8], thresholds: Thresholds) -> (Vec<Change>, Vec<&'static str>) {
    let (mut changes, mut rules) = (Vec::new(), Vec::new());
    let ended = Replay::new(Arc::new(thresholds)).play(bytes, |_, change| {
        let at = change.at.since_start().as_millis();
        changes.push((at, change.id.to_string(), change.to as u8, change.severity as u8));
        rules.push(change.rule.word());
        Ok::<(), ReplayError>(())
    });
    ended.unwrap_or_else(|error| panic!("{error:?}"));
    (changes, rules)
}

/// Whether some recording changes its findings on each side of a threshold. Those that do not change far from it do not change near it.
fn sides(parameter: &Parameter, recordings: &[Recording]) -> [bool; SIDES.len()] {
    let has_rule = |recording: &&Recording| recording.rules.contains(&parameter.rule);
    let step = (recordings.len() / RECORDINGS.1).max(1);
    let others = recordings.iter().step_by(step).filter(|recording| !has_rule(recording));
    let chosen: Vec<&Recording> = recordings.iter().filter(has_rule).take(RECORDINGS.0).chain(others).collect();
    let changes = |side: f64, recording: &Recording| {
        let mut thresholds = Thresholds::default();
        let value = thresholds.value_mut(parameter.rule, parameter.key).expect("a threshold");
        *value = parameter.default / side;
        replay(&recording.bytes, thresholds).0 != recording.changes
    };
    let both = |far: f64, near: f64| {
        let changed: Vec<&Recording> = chosen.iter().copied().filter(|one| changes(far, one)).take(CHANGED).collect();
        (!changed.is_empty(), changed.iter().any(|recording| changes(near, recording)))
    };
    let [low, below, above, high] = SIDES;
    let (low, below) = both(low, below);
    let (high, above) = both(high, above);
    [low, below, above, high]
}

/// Does the same with each item, on all CPUs.
fn each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { return };
                    let result = work(item);
                    done.lock().expect("no thread panics").push((index, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no thread panics");
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}
