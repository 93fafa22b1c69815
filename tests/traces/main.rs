//! Measures diagnosis on labelled traces: precision, recall, time to detect, and false findings on healthy days.
//!
//! `tests/diagnosis-report --help` lists the options; README.md describes the case files. `cargo test` runs the cases as
//! assertions (the tests below).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a tool for developers, which panics if its case files are wrong"
)]

mod case_file;
mod case_recording;
mod evaluate;
mod healthy;
mod report;
mod verdicts;

fn main() {
    report::run();
}

#[cfg(test)]
mod tests {
    //! Every case in every variant, as assertions, with a fixed seed; `tests/diagnosis-report` accepts other seeds.

    use super::case_file::{FILES, cases, cases_of};
    use super::case_recording::{CaseRecording, Variant};
    use super::evaluate::{evaluate, runs_in};
    use gpufleet::cli::replay::{Replay, ReplayError};
    use gpufleet::fleet::recording::{Line, encode, lines};
    use std::collections::BTreeSet;
    use std::sync::Arc;

    /// Asserts that the cases of one file have no problems in any variant.
    fn assert_cases(file: &str) {
        let mut problems = Vec::new();
        for case in cases_of(file) {
            for variant in Variant::ALL.into_iter().filter(|variant| runs_in(&case, *variant)) {
                let result = evaluate(&case, variant, 1);
                if !result.problems.is_empty() {
                    problems.push(format!("{} ({variant})\n  {}", case.name, result.problems.join("\n  ")));
                }
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn spinning_jobs_and_lookalikes() {
        assert_cases("spin");
    }

    #[test]
    fn waiting_and_idle_jobs() {
        assert_cases("waste");
    }

    #[test]
    fn stopped_dead_and_orphaned_processes() {
        assert_cases("processes");
    }

    #[test]
    fn growing_gpu_memory() {
        assert_cases("memory");
    }

    #[test]
    fn gpu_and_driver_faults() {
        assert_cases("driver");
    }

    #[test]
    fn host_and_network_faults() {
        assert_cases("host");
    }

    #[test]
    fn everyday_use_and_unusual_trouble() {
        assert_cases("lookalikes");
    }

    #[test]
    fn more_than_200_runs_cover_every_trace_of_the_design() {
        let cases = cases();
        let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), cases.len(), "names are unique");
        let runs = cases.iter().flat_map(|case| Variant::ALL.into_iter().filter(|variant| runs_in(case, *variant)));
        let runs = runs.count();
        assert!(runs > 200, "{runs}");
        let traces: BTreeSet<u32> = cases.iter().map(|case| case.trace).filter(|trace| *trace > 0).collect();
        assert_eq!(traces, (1..=37).collect());
        let bytes: usize = FILES.iter().map(|(_, text)| text.len()).sum();
        assert!(bytes < 1 << 20, "{bytes}");
    }

    #[test]
    fn lines_depend_only_on_the_seed() {
        let case = &cases()[0];
        let take = |seed| CaseRecording::new(case, Variant::Drops, seed).take(40).flatten().collect::<Vec<Line>>();
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
    }

    /// A recording written with `--write` gives the same transitions as the case itself.
    #[test]
    fn a_written_case_replays_with_the_same_transitions() {
        let cases = cases();
        for name in ["hang-h100", "bastion"] {
            let case = cases.iter().find(|case| case.name == name).expect("a case");
            let played: Vec<Line> = CaseRecording::new(case, Variant::Plain, 1).flatten().collect();
            let bytes: Vec<u8> = played.iter().flat_map(|line| encode(line).expect("encodes")).collect();
            let read: Vec<Line> = lines(&bytes).collect::<Result<_, _>>().expect("decodes");
            assert_eq!(read.len(), played.len());
            let (mut direct, mut through) = (Vec::new(), Vec::new());
            let mut replay = Replay::new(Arc::default());
            for line in played {
                direct.extend(replay.take(line));
            }
            let mut replay = Replay::new(Arc::default());
            let ended = replay.play(bytes.as_slice(), |_, transition| {
                through.push(transition.clone());
                Ok::<(), ReplayError>(())
            });
            assert!(ended.is_ok(), "{ended:?}");
            assert!(!direct.is_empty());
            assert_eq!(direct, through);
        }
    }
}
