//! Reads the answers of real NCCL RAS that `tests/nccl/data` has.

use super::json::JsonReader;
use super::reduction::Reduced;
use super::text::TextReader;
use crate::wire::RankAbsence;
use crate::wire::examination::{Communicator, NamedRank, OperationCounts};
use std::fmt::Write as _;
use std::path::Path;

fn read(path: &Path) -> Option<Reduced> {
    let bytes = std::fs::read(path).expect("a record");
    if path.extension().is_some_and(|extension| extension == "json") {
        let mut reader = JsonReader::new(0);
        reader.push(&bytes);
        assert!(!reader.is_malformed(), "{}", path.display());
        reader.finish()
    } else {
        let mut reader = TextReader::new(0);
        reader.push(&bytes);
        reader.finish()
    }
}

fn ranks(list: &[NamedRank]) -> String {
    let absence = |rank: &NamedRank| match rank.absence {
        Some(RankAbsence::Dead) => " dead",
        Some(RankAbsence::Unresponsive) => " silent",
        _ => "",
    };
    list.iter().map(|rank| format!("{}{}", rank.rank, absence(rank))).collect::<Vec<_>>().join(",")
}

/// `AllReduce 3x24 1x20 (3)`: three ranks at 24, and one at 20, which is rank 3.
fn describe_operation(operation: &OperationCounts) -> String {
    let mut text = format!(" {}", operation.name);
    for count in &operation.counts {
        let _ = write!(text, " {}x{}", count.ranks, count.count);
    }
    if !operation.named.is_empty() {
        let _ = write!(text, " ({})", ranks(&operation.named));
    }
    text
}

fn describe(communicator: &Communicator) -> String {
    let mut text = format!("{} of {}", communicator.ranks, communicator.size);
    for (count, word) in [(communicator.initialising, "starting"), (communicator.finalising, "ending")] {
        if count > 0 {
            let _ = write!(text, ", {count} {word}");
        }
    }
    if !communicator.missing_ranks.is_empty() {
        let _ = write!(text, ", missing {}", ranks(&communicator.missing_ranks));
    }
    let was_launched = |operation: &&OperationCounts| operation.counts.iter().any(|count| count.count > 0);
    text + &communicator.operations.iter().filter(was_launched).map(describe_operation).collect::<String>()
}

/// The names of the records say what happened to the job; `tests/nccl/record` has the scenarios.
#[test]
fn answers_of_real_nccl() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nccl/data");
    let mut text = String::new();
    let sorted = |folder: &Path| {
        let mut paths: Vec<_> =
            std::fs::read_dir(folder).expect("records").map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        paths
    };
    for version in sorted(&root) {
        for path in sorted(&version) {
            let name = path.strip_prefix(&root).expect("a record").display().to_string();
            let what = match read(&path) {
                None => "no report".to_owned(),
                Some(reduced) if reduced.is_damaged => "damaged".to_owned(),
                Some(reduced) => reduced.report.communicators.iter().map(describe).collect::<Vec<_>>().join(" | "),
            };
            let _ = writeln!(text, "{name}: {what}");
        }
    }
    insta::assert_snapshot!(text);
}
