//! The verdicts about the recordings of real hangs in `tests/gloo_hangs`.

use super::judge;
use super::testing::{at, waiting_rank};
use super::{JobEvidence, Outcome, RankReading, Says, Verdict};
use crate::probe::recorded_examination;
use crate::wire::{Examination, SafeText};
use std::time::Duration;

/// A recorded hang that a finding has named for three minutes. Gloo uses no GPU. Rank and pid are those of the recording.
fn recorded(kind: &str) -> JobEvidence {
    let rank = |number| {
        let mut rank = waiting_rank(number, 3);
        rank.gpus.clear();
        rank.readings = (0..2)
            .map(|index| RankReading {
                at: at(index),
                examination: recorded_examination(kind, number),
                ..RankReading::default()
            })
            .collect();
        rank
    };
    JobEvidence {
        name: "train.py".into(),
        at: at(1),
        lasted: Some(Duration::from_secs(180)),
        ranks: (0..3).map(rank).collect(),
        ..JobEvidence::default()
    }
}

fn verdict(job: &JobEvidence) -> (Outcome, String) {
    let verdict = judge(job);
    (verdict.outcome, verdict.sentence.to_string())
}

/// The line of the Flight Recorder: text and conclusion.
fn recorder_line(verdict: &Verdict) -> (String, String, Says) {
    let line = verdict.evidence.iter().find(|line| line.source.starts_with("Flight Recorder")).expect("a line");
    (line.source.to_string(), line.text.to_string(), line.says)
}

/// Changes every examination.
fn change(job: &mut JobEvidence, change: impl Fn(&mut Examination)) {
    for rank in &mut job.ranks {
        for reading in &mut rank.readings {
            change(&mut reading.examination);
        }
    }
}

#[test]
fn dumps_prove_which_rank_never_scheduled_the_operation() {
    for kind in ["sleep", "data"] {
        let verdict = judge(&recorded(kind));
        assert_eq!(verdict.outcome, Outcome::Proven, "{kind}");
        let sentence = "rank 1 (pid 4001 on node1) never scheduled all_reduce 6, in which ranks 0, 2 wait";
        assert_eq!(verdict.sentence, sentence, "{kind}");
        let culprit = verdict.culprit.clone().expect("a culprit");
        let frame =
            if kind == "sleep" { "train_step (train.py:41)" } else { "_PollLikeSelector.select (selectors.py:415)" };
        assert_eq!((culprit.reason.word(), culprit.frame.as_deref()), ("behind", Some(frame)));
        assert_eq!(
            recorder_line(&verdict),
            (
                "Flight Recorder, 20 s old".to_owned(),
                "ranks 0, 2 wait in all_reduce 6 of default_pg at train_step (train.py:44) for 90 s, rank 1 scheduled up to \
                 5 at train_step (train.py:44)"
                    .to_owned(),
                Says::Proven
            )
        );
        assert!(verdict.evidence[0].source.starts_with("Flight Recorder"), "{:#?}", verdict.evidence);
        let of_process = verdict.evidence.iter().find(|line| line.source == "/proc, rank 1").expect("a line");
        let channel = if kind == "sleep" { "hrtimer_nanosleep" } else { "poll_schedule_timeout.constprop.0" };
        let expected = format!("CPU 0 %, main thread waits in {channel}, no context switch, writes nothing");
        assert_eq!(of_process.text, *expected);
    }
}

#[test]
fn dumps_prove_which_rank_called_another_operation() {
    let verdict = judge(&recorded("mismatch"));
    assert_eq!(verdict.outcome, Outcome::Proven);
    assert_eq!(
        verdict.sentence,
        "rank 1 (pid 4001 on node1) took different paths: rank 1 in all_gather 6 at evaluate (train.py:49), ranks 0, 2 in \
         all_reduce 6 at train_step (train.py:44)"
    );
    assert_eq!(verdict.culprit.as_ref().map(|culprit| culprit.reason.word()), Some("other_path"));
    let (_, text, says) = recorder_line(&verdict);
    let expected =
        "rank 1 in all_gather 6 at evaluate (train.py:49), ranks 0, 2 in all_reduce 6 at train_step (train.py:44)";
    assert_eq!((text.as_str(), says), (expected, Says::Proven));
}

#[test]
fn without_dumps_stacks_name_only_a_rank_in_other_code() {
    let without = |kind| {
        let mut job = recorded(kind);
        change(&mut job, |examination| examination.flight_recorder = None);
        verdict(&job)
    };
    let loads =
        "rank 1 (pid 4001 on node1) loads data, in _PollLikeSelector.select (selectors.py:415), while the others wait";
    assert_eq!(without("data"), (Outcome::Likely, loads.to_owned()));
    // The functions of the program have no telling names, and every rank waits in the same kind of code.
    assert_eq!(without("mismatch").0, Outcome::Suspected);
    assert_eq!(without("sleep").0, Outcome::Suspected);
}

#[test]
fn dumps_of_an_earlier_hang_prove_nothing() {
    let mut job = recorded("sleep");
    change(&mut job, |examination| {
        examination.flight_recorder.as_mut().expect("a dump").age_seconds = 1000.0;
    });
    assert_eq!(verdict(&job).0, Outcome::Suspected);
    let (source, text, says) = recorder_line(&judge(&job));
    assert_eq!(source, "Flight Recorder, 16 min old");
    assert_eq!((text.as_str(), says), ("written before the hang began", Says::Nothing));
    // The hang may have begun before gpufleet looked.
    job.lasted_is_at_least = true;
    assert_eq!(verdict(&job).0, Outcome::Likely);
    (job.lasted, job.lasted_is_at_least) = (None, false);
    assert_eq!(verdict(&job).0, Outcome::Likely, "nobody knows when it began");
}

#[test]
fn a_dump_written_before_the_others_waited_does_not_blame_its_rank() {
    let mut job = recorded("sleep");
    for reading in &mut job.ranks[1].readings {
        reading.examination.flight_recorder.as_mut().expect("a dump").age_seconds += 80.0;
    }
    assert_eq!(verdict(&job).0, Outcome::Suspected, "the others had waited for ten seconds then");
}

#[test]
fn a_dump_at_a_path_that_other_jobs_use_proves_nothing() {
    let mut job = recorded("sleep");
    change(&mut job, |examination| {
        examination.flight_recorder.as_mut().expect("a dump").is_default_path = true;
    });
    assert_eq!(verdict(&job).0, Outcome::Likely);
}

#[test]
fn an_overwritten_dump_without_operations_of_a_group_does_not_blame_its_rank() {
    let mut job = recorded("sleep");
    for reading in &mut job.ranks[1].readings {
        let dump = reading.examination.flight_recorder.as_mut().expect("a dump");
        dump.is_overwritten = true;
        dump.groups.iter_mut().for_each(|group| group.last_scheduled = None);
    }
    assert_eq!(verdict(&job).0, Outcome::Suspected);
}

#[test]
fn dumps_of_a_job_that_moves_prove_nothing() {
    // An operation of a second, as in any job.
    let mut short = recorded("sleep");
    change(&mut short, |examination| {
        for group in &mut examination.flight_recorder.as_mut().expect("a dump").groups {
            for operation in &mut group.waiting {
                operation.waited_seconds = Some(1.0);
            }
        }
    });
    assert_eq!(verdict(&short).0, Outcome::Suspected);
    let nothing = "no rank waits for an operation that another one did not schedule";
    assert_eq!(recorder_line(&judge(&short)).1, nothing);
    let mut writes = recorded("sleep");
    writes.ranks[1].readings[1].examination.process.as_mut().expect("a process").written_bytes = Some(40 << 20);
    assert_eq!(verdict(&writes).0, Outcome::WaitsForRank, "rank 1 saves a checkpoint");
    let mut one = recorded("sleep");
    for rank in &mut one.ranks[1..] {
        for reading in &mut rank.readings {
            reading.examination.flight_recorder = None;
        }
    }
    assert_eq!(verdict(&one).0, Outcome::Suspected, "the other ranks may not have waited");
}

#[test]
fn a_rank_that_waits_in_another_group_is_not_the_cause() {
    // Ranks 0 and 1 wait in the default group, rank 2 has not come because it waits for rank 1 in its own group.
    let mut job = recorded("sleep");
    let group = |job: &JobEvidence, rank: usize| {
        let dump = job.ranks[rank].readings[0].examination.flight_recorder.clone().expect("a dump");
        dump.groups[0].clone()
    };
    let (waits, behind) = (group(&job, 0), group(&job, 1));
    let own_group = |from: &crate::wire::RecordedGroup| crate::wire::RecordedGroup {
        name: SafeText::from("5"),
        description: SafeText::from("tp"),
        ..from.clone()
    };
    let groups =
        [vec![waits.clone()], vec![behind.clone(), own_group(&behind)], vec![behind.clone(), own_group(&waits)]];
    for (rank, groups) in job.ranks.iter_mut().zip(groups) {
        for reading in &mut rank.readings {
            reading.examination.flight_recorder.as_mut().expect("a dump").groups = groups.clone();
        }
    }
    let (outcome, sentence) = verdict(&job);
    assert_eq!(outcome, Outcome::Proven);
    assert_eq!(sentence, "rank 1 (pid 4001 on node1) never scheduled all_reduce 6, in which rank 0 waits");
    // If rank 1 waits in a third group, all wait for each other, or for a rank without a dump.
    for reading in &mut job.ranks[1].readings {
        let dump = reading.examination.flight_recorder.as_mut().expect("a dump");
        dump.groups.push(crate::wire::RecordedGroup { name: SafeText::from("6"), ..waits.clone() });
    }
    let (outcome, sentence) = verdict(&job);
    assert_eq!(outcome, Outcome::Likely);
    assert_eq!(
        sentence,
        "ranks 1, 2 on node1 never scheduled all_reduce 6 of default_pg, and wait in another process group"
    );
}

#[test]
fn a_moment_later_the_dumps_are_older() {
    let mut job = recorded("sleep");
    job.at = at(1).plus(Duration::from_secs(120));
    job.lasted = Some(Duration::from_secs(300));
    assert_eq!(recorder_line(&judge(&job)).0, "Flight Recorder, 2 min old");
}
