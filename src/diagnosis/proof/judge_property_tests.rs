//! Arbitrary examinations: the verdict table never panics, and proves nothing without a proof.

use super::super::evidence::LogTail;
use super::super::testing::{WAITS, at, communicator, named, stack};
use super::super::verdict::Says;
use super::*;
use crate::wire::{Communicator, NamedRank, RankAbsence};
use proptest::prelude::*;
use std::time::Duration;

fn any_option<T: std::fmt::Debug + Clone + 'static>(values: Vec<T>) -> impl Strategy<Value = Option<T>> {
    proptest::option::of(proptest::sample::select(values))
}

fn any_named() -> impl Strategy<Value = NamedRank> {
    let absences = vec![RankAbsence::Left, RankAbsence::Unresponsive, RankAbsence::Dead, RankAbsence::Unknown];
    let parts =
        (0..5_u32, any_option(vec![0_u64, 5, u64::MAX]), any_option(vec![0_i64, 2, 6, 7, -1]), any_option(absences));
    (parts, any_option(vec![1000, 1001, 1])).prop_map(|((rank, count, async_error, absence), pid)| NamedRank {
        pid,
        count,
        async_error,
        absence,
        ..named(rank, 0)
    })
}

fn any_communicator() -> impl Strategy<Value = Communicator> {
    let counts = || proptest::collection::vec(proptest::sample::select(vec![0, 4, 5, u64::MAX]), 0..5);
    let lists = || proptest::collection::vec(any_named(), 0..3);
    let flags = (0..2_u32, 0..2_u32, 0..3_u32, any_option(vec![1_u64, 2]));
    (counts(), counts(), lists(), lists(), lists(), flags).prop_map(|(first, second, failed, missing, more, flags)| {
        let mut one = communicator(&[("AllReduce", &first), ("Broadcast", &second)]);
        (one.initialising, one.finalising) = (flags.0 / 2, flags.1 / 2);
        one.operations[0].named_left_out = flags.2 * (u32::MAX / 2);
        one.operations[1].fingerprint = flags.3;
        one.operations[1].named.extend(more);
        (one.failed_ranks, one.missing_ranks) = (failed, missing);
        one
    })
}

fn any_rank() -> impl Strategy<Value = RankEvidence> {
    let frames = vec![WAITS, "load_batch@data.py:1", "save@torch/serialization.py:2", "f@g.py:3", "forward@model.py:4"];
    let lines = vec![
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6, OpType=ALLREDUCE)",
        "[rank1]: last enqueued work: 18446744073709551615, last completed work: 7",
        "CUDA out of memory. Tried to allocate",
        "step 1",
        "No available shared memory broadcast block found in 60 seconds.",
    ];
    let utilization = proptest::option::of(0..=100_u8);
    let power = any_option(vec![0.0_f32, 104.0, 600.0, f32::NAN, f32::INFINITY, -1.0]);
    let reading = (
        0..3_u32,
        proptest::collection::vec(proptest::sample::select(frames), 0..3),
        proptest::option::of(proptest::collection::vec(any_communicator(), 0..3)),
        any_option(vec![0_u64, 1 << 30, u64::MAX]),
        any::<bool>(),
    );
    let readings = proptest::collection::vec(reading, 0..3);
    let log = proptest::option::of(proptest::collection::vec(proptest::sample::select(lines), 0..3));
    (0..4_u32, utilization, power, readings, log, any::<bool>()).prop_map(
        |(number, utilization, power, readings, log, is_mine)| {
            let mut rank = super::super::testing::waiting_rank(number, 4);
            let template = rank.readings[0].clone();
            rank.is_mine = is_mine;
            (rank.gpus[0].utilization_percent, rank.gpus[0].power_watts) = (utilization, power);
            rank.readings = readings
                .into_iter()
                .map(|(index, frames, ras, bytes, has_process)| {
                    let mut reading = template.clone();
                    reading.at = at(index);
                    reading.write_bytes = bytes;
                    reading.examination.stacks = Some(Box::new(stack(&frames)));
                    reading.examination.process = reading.examination.process.filter(|_| has_process);
                    reading.examination.ras = ras.map(|communicators| {
                        Box::new(crate::wire::RasReport { is_json: true, communicators, ..Default::default() })
                    });
                    reading
                })
                .collect();
            rank.log = log.map(|lines| LogTail {
                path: "/log".into(),
                lines: lines.into_iter().map(SafeText::new).collect(),
                age: Some(Duration::ZERO),
                process_age: None,
            });
            rank
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn arbitrary_examinations_never_panic_and_prove_nothing_without_a_proof(
        ranks in proptest::collection::vec(any_rank(), 0..5),
        serves_models in any::<bool>(),
    ) {
        let job = JobEvidence { name: "j".into(), serves_models, ranks, ..JobEvidence::default() };
        let verdict = judge(&job);
        if verdict.outcome == Outcome::Proven {
            let has_ras = job.ranks.iter().flat_map(|rank| &rank.readings).any(|reading| reading.examination.ras.is_some());
            let mut lines = job.ranks.iter().filter_map(|rank| rank.log.as_ref()).flat_map(|log| &log.lines);
            let has_timeout = lines.any(|line| line.contains("Watchdog caught") || line.contains("last enqueued"));
            prop_assert!(verdict.evidence.iter().any(|line| line.says == Says::Proven), "{:#?}", verdict);
            match verdict.culprit.as_ref().map(|culprit| culprit.reason) {
                Some(CulpritReason::Log) => prop_assert!(has_timeout),
                None => prop_assert!(has_timeout || has_ras),
                Some(
                    CulpritReason::Dead | CulpritReason::Unresponsive | CulpritReason::AsyncError | CulpritReason::Behind
                    | CulpritReason::OtherPath,
                ) => prop_assert!(has_ras),
                Some(weak) => prop_assert!(false, "{:?} proves nothing", weak),
            }
        }
        if verdict.outcome == Outcome::NotHung {
            prop_assert_eq!(verdict.culprit, None);
        }
    }
}
