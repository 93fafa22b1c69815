//! How well the rules judge: precision, recall, time to detect, and false findings on healthy days.
//!
//! `tests/diagnosis-report --help` says what it takes; README.md describes the case files. `cargo test` runs the same
//! cases as assertions (`tests.rs`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a tool for developers: it ends with a panic where its own files are wrong"
)]

mod case_file;
mod case_recording;
mod evaluate;
mod gpu_model;
mod healthy;
mod process;
mod report;
mod rng;
mod sim_host;

fn main() {
    report::run();
}

#[cfg(test)]
mod tests {
    //! Every case in every variant, as assertions. Which seed a run has is fixed here; `tests/diagnosis-report` takes others.

    use super::case_file::{FILES, cases, cases_of};
    use super::case_recording::{CaseRecording, Variant};
    use super::evaluate::{evaluate, is_played};
    use gpufleet::cli::replay::{Replay, ReplayError};
    use gpufleet::fleet::recording::{Line, encode, lines};
    use std::collections::BTreeSet;
    use std::sync::Arc;

    /// Cases in all variants with one seed.
    fn check(file: &str) {
        let mut problems = Vec::new();
        for case in cases_of(file) {
            for variant in Variant::ALL.into_iter().filter(|variant| is_played(&case, *variant)) {
                let result = evaluate(&case, variant, 1);
                if !result.problems.is_empty() {
                    problems.push(format!("{} ({variant})\n  {}", case.name, result.problems.join("\n  ")));
                }
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn jobs_that_spin_and_what_looks_like_it() {
        check("spin");
    }

    #[test]
    fn jobs_that_wait_or_idle() {
        check("waste");
    }

    #[test]
    fn processes_in_trouble() {
        check("processes");
    }

    #[test]
    fn memory_that_runs_out() {
        check("memory");
    }

    #[test]
    fn gpus_and_drivers() {
        check("driver");
    }

    #[test]
    fn hosts_and_networks() {
        check("host");
    }

    #[test]
    fn what_people_do_all_day_and_odd_trouble() {
        check("lookalikes");
    }

    #[test]
    fn there_are_more_than_200_runs_and_each_trace_of_the_sheet_has_one() {
        let cases = cases();
        let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), cases.len(), "names are unique");
        let runs = cases.iter().flat_map(|case| Variant::ALL.into_iter().filter(|variant| is_played(case, *variant)));
        let runs = runs.count();
        assert!(runs > 200, "{runs}");
        let traces: BTreeSet<u32> = cases.iter().map(|case| case.trace).filter(|trace| *trace > 0).collect();
        assert_eq!(traces, (1..=37).collect());
        let bytes: usize = FILES.iter().map(|(_, text)| text.len()).sum();
        assert!(bytes < 1 << 20, "{bytes}");
    }

    #[test]
    fn the_same_seed_gives_the_same_lines_and_another_gives_others() {
        let case = &cases()[0];
        let take = |seed| CaseRecording::new(case, Variant::Drops, seed).take(40).flatten().collect::<Vec<Line>>();
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
    }

    /// What is written with `--write` is what the tests judge: through the file's text the transitions are the same.
    #[test]
    fn a_written_case_replays_as_it_was_judged() {
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
