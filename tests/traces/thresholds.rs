//! Finds thresholds without cases on both sides: replays recordings with each threshold at other values and checks whether the
//! findings change.

use gpufleet::cli::replay::{Replay, ReplayError};
use gpufleet::config::Thresholds;
use gpufleet::config::thresholds::{PARAMETERS, Parameter};
use gpufleet::diagnosis::Transition;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The value of a case divided by the threshold: on both sides of it, near and far.
const SIDES: [f64; 4] = [0.8, 0.95, 1.05, 1.2];
/// The recordings that are tried for a threshold: at most so many with findings of its rule, and about so many others.
const RECORDINGS: (usize, usize) = (60, 20);
/// The recordings that are tried near a threshold: at most so many of those whose findings change far from it.
const CHANGED: usize = 12;

/// A recording and its findings with the default thresholds.
struct Recording {
    bytes: Vec<u8>,
    findings: Vec<Transition>,
}

/// Replays the recordings of a folder with each threshold at the values for [`SIDES`], and prints the thresholds without a case on
/// one of the sides. Returns whether every threshold has cases on all sides.
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
    let findings = replay(&bytes, Thresholds::default());
    Recording { bytes, findings }
}

/// Replays a recording and returns every change of a finding.
fn replay(bytes: &[u8], thresholds: Thresholds) -> Vec<Transition> {
    let mut findings = Vec::new();
    let ended = Replay::new(Arc::new(thresholds)).play(bytes, |_, transition| {
        findings.push(transition.clone());
        Ok::<(), ReplayError>(())
    });
    ended.unwrap_or_else(|error| panic!("{error:?}"));
    findings
}

/// Whether the findings of a recording change on each side of a threshold. Near it, only recordings that change far from it are tried.
fn sides(parameter: &Parameter, recordings: &[Recording]) -> [bool; SIDES.len()] {
    let has_rule = |one: &&Recording| one.findings.iter().any(|finding| finding.rule.word() == parameter.rule);
    let step = (recordings.len() / RECORDINGS.1).max(1);
    let others = recordings.iter().step_by(step).filter(|recording| !has_rule(recording));
    let chosen: Vec<&Recording> = recordings.iter().filter(has_rule).take(RECORDINGS.0).chain(others).collect();
    let changes = |side: f64, recording: &Recording| {
        let mut thresholds = Thresholds::default();
        let value = thresholds.value_mut(parameter.rule, parameter.key).expect("a threshold");
        *value = parameter.default / side;
        replay(&recording.bytes, thresholds) != recording.findings
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

/// Calls `work` for each item, on all CPUs, and returns the results in order.
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
