//! The recordings of real hangs in `tests/gloo_hangs`, for tests.

use super::stacks::parse_output;
use crate::wire::StackDump;
use std::path::{Path, PathBuf};

pub(super) fn path(kind: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gloo_hangs").join(kind).join(name)
}

/// The pid of a rank, and the kernel function in which it waited.
pub(super) fn wait_channel(kind: &str, rank: u32) -> (u32, String) {
    let lines = std::fs::read_to_string(path(kind, "wait_channels")).unwrap();
    let mut words = lines.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let words = words.find(|words| words[0] == rank.to_string()).unwrap();
    (words[1].parse().unwrap(), words[2].to_owned())
}

pub(super) fn recorded_stacks(kind: &str, rank: u32) -> StackDump {
    let output = std::fs::read(path(kind, &format!("stacks_{rank}.json"))).unwrap();
    parse_output(&output, Path::new("py-spy"), wait_channel(kind, rank).0, "").unwrap()
}
