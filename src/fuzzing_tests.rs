//! Replays the corpus and random mutations of it.

use super::{TARGETS, Target};
use fastrand::Rng;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long each target is mutated in an ordinary run.
const ORDINARY: Duration = Duration::from_millis(250);

/// The environment variable with the seconds for which each target is mutated; `tests/fuzz` sets it.
const SECONDS: &str = "GPUFLEET_FUZZ_SECONDS";
/// The environment variable with the seed of the mutations. Default: random in `tests/fuzz`, and printed.
const SEED: &str = "GPUFLEET_FUZZ_SEED";

/// Words that lead to branches which random bytes do not reach.
const WORDS: [&str; 44] = [
    "null",
    "true",
    "false",
    "{}",
    "[]",
    "[[[[[[[[",
    "\"\"",
    "0",
    "-0",
    "1",
    "-1",
    "255",
    "256",
    "65535",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "1e308",
    "-1e308",
    "1e-400",
    "1e39",
    "0.1",
    "NaN",
    "\u{1b}]0;x\u{7}",
    "\u{202e}",
    "\u{0}",
    "\u{e9}",
    "\u{1f468}\u{200d}\u{1f469}",
    "e\u{301}",
    "大",
    "\"\\ud800\"",
    "\"\\u0000\"",
    ",",
    "\n",
    " ",
    "@revoked ",
    "@cert-authority ",
    "*",
    "!",
    "none",
    "\n>1⏎⇥?35\n+3600\n",
];

/// Keys that repeat often enough to be worth removing or repeating: a line, a word.
fn span(data: &[u8], rng: &mut Rng) -> std::ops::Range<usize> {
    if data.is_empty() {
        return 0..0;
    }
    let start = rng.usize(..data.len());
    let is_border = |byte: &u8| b"\n ,:[]{}\"=|".contains(byte);
    match rng.u8(..4) {
        // To the end of the line.
        0 => {
            start..data[start..].iter().position(|byte| *byte == b'\n').map_or(data.len(), |length| start + length + 1)
        }
        // A token.
        1 | 2 => {
            let first = data[..start].iter().rposition(is_border).map_or(0, |at| at + 1);
            let last = data[start..].iter().position(is_border).map_or(data.len(), |at| start + at);
            first..last.max(first)
        }
        _ => start..(start + rng.usize(..64)).min(data.len()),
    }
}

/// Changes the data in one place or several.
fn mutate(data: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
    // Half of the changes are alone, so that the rest of the input stays valid.
    let changes = if rng.bool() { 1 } else { rng.usize(2..9) };
    for _ in 0..changes {
        let range = span(data, rng);
        match rng.u8(..8) {
            0 => drop(data.splice(range, [])),
            1 | 2 => drop(data.splice(range, rng.choice(WORDS).unwrap_or_default().bytes())),
            3 => {
                let copy = data[range.clone()].to_vec();
                let times = 1 << rng.u8(..8);
                // Not beyond a size at which one run takes seconds.
                if copy.len() * times < 64 * 1024 {
                    data.splice(range.end..range.end, copy.repeat(times));
                }
            }
            4 => {
                let other = &corpus[rng.usize(..corpus.len())];
                let theirs = span(other, rng);
                data.splice(range, other[theirs].iter().copied());
            }
            5 => {
                if let Some(byte) = data.get_mut(range.start) {
                    *byte ^= 1 << rng.u8(..8);
                }
            }
            6 => {
                // Another number in place of this one.
                let digits = range.clone().filter(|at| data[*at].is_ascii_digit()).collect::<Vec<_>>();
                for at in digits {
                    data[at] = b'0' + rng.u8(..10);
                }
            }
            _ => {
                let mut bytes = [0; 4];
                rng.fill(&mut bytes);
                let kept = rng.usize(1..5);
                data.splice(range.start..range.start, bytes[..kept].iter().copied());
            }
        }
    }
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(target);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} has seeds", folder.display());
    files.into_iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Runs the target. Input with which it panics is kept in a file.
fn run(name: &str, target: Target, data: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(data))) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/artifacts").join(name);
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("crash-{:016x}", fastrand::u64(..)));
        fs::write(&path, data).unwrap();
        println!("{name} panics with {}; add it to tests/corpus/{name} with the correction", path.display());
        resume_unwind(panic);
    }
}

#[track_caller]
fn fuzz(name: &str) {
    let (_, target) = *TARGETS.iter().find(|(known, _)| *known == name).expect("a target");
    let corpus = corpus(name);
    for data in &corpus {
        run(name, target, data);
    }
    let seconds = std::env::var(SECONDS).ok().map(|text| Duration::from_secs_f64(text.parse().expect(SECONDS)));
    // The ordinary run repeats the same mutations, so that it fails only for those who broke something.
    let any_seed = || if seconds.is_some() { fastrand::u64(..) } else { 0 };
    let seed = std::env::var(SEED).map_or_else(|_| any_seed(), |text| text.parse().expect(SEED));
    let mut rng = Rng::with_seed(seed);
    let mut runs = 0;
    let end = Instant::now() + seconds.unwrap_or(ORDINARY);
    while Instant::now() < end {
        let mut data = corpus[rng.usize(..corpus.len())].clone();
        mutate(&mut data, &corpus, &mut rng);
        data.truncate(1 << 20);
        run(name, target, &data);
        runs += 1;
    }
    println!("{name}: {} seeds, {runs} mutations, {SEED}={seed}", corpus.len());
    assert!(runs > 0);
}

#[test]
fn every_target_has_a_program_seeds_and_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tests = include_str!("fuzzing_tests.rs");
    for (name, _) in TARGETS {
        assert!(!corpus(name).is_empty());
        assert!(tests.contains(&format!("fuzz(\"{name}\")")), "{name} has no test");
        // A package of crates.io has no folder `fuzz`, because it is a package too.
        if root.join("fuzz").exists() {
            let program = fs::read_to_string(root.join(format!("fuzz/fuzz_targets/{name}.rs"))).expect(name);
            assert!(program.contains(&format!("gpufleet::fuzzing::{name}(data)")), "{program}");
            assert!(fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap().contains(&format!("name = \"{name}\"")));
        }
    }
}

#[test]
fn wire() {
    fuzz("wire");
}

#[test]
fn screen() {
    fuzz("screen");
}

#[test]
fn known_hosts() {
    fuzz("known_hosts");
}

#[test]
fn ssh_config() {
    fuzz("ssh_config");
}

#[test]
fn hosts_toml() {
    fuzz("hosts_toml");
}

#[test]
fn settings_toml() {
    fuzz("settings_toml");
}

#[test]
fn nvidia_smi() {
    fuzz("nvidia_smi");
}

#[test]
fn filter() {
    fuzz("filter");
}

#[test]
fn recording() {
    fuzz("recording");
}

#[test]
fn saved_state() {
    fuzz("saved_state");
}

#[test]
fn view_state() {
    fuzz("view_state");
}

#[test]
fn nccl_ras() {
    fuzz("nccl_ras");
}

#[test]
fn flight_recorder() {
    fuzz("flight_recorder");
}
