use super::super::evidence::LogTail;
use super::super::testing::{
    WAITS, add_flat_links, add_log, add_reports, at, communicator, gpu, hanging_job, laggard, named, sleeps, stack,
    with_counts,
};
use super::super::verdict::{EvidenceLine, Missing, Says};
use super::*;
use crate::wire::{
    Communicator, ExaminationPart, ExaminationRefusal, LinkErrorCount, NO_LOG_FILE, NOT_IN_PROC, NOT_PYTHON, NamedRank,
    ProcessState, RankAbsence, SafeText, WITHOUT_NCCL,
};
use std::time::Duration;

const SAME: [u64; 8] = [64; 8];
const RANK_7_BEHIND: [u64; 8] = [64, 64, 64, 64, 64, 64, 64, 60];

#[track_caller]
fn check(job: &JobEvidence, outcome: Outcome, sentence: &str) -> Verdict {
    let verdict = judge(job);
    assert_eq!((verdict.outcome, verdict.sentence.as_str()), (outcome, sentence), "{verdict:#?}");
    verdict
}

fn reason(verdict: &Verdict) -> Option<CulpritReason> {
    verdict.culprit.as_ref().map(|culprit| culprit.reason)
}

fn evidence_text(verdict: &Verdict) -> Vec<String> {
    let text = |line: &EvidenceLine| format!("{} | {} | {}", line.source, line.text, line.says.text());
    verdict.evidence.iter().map(text).collect()
}

/// Removes the Python stacks, as without py-spy.
fn without_stacks(mut job: JobEvidence) -> JobEvidence {
    for reading in job.ranks.iter_mut().flat_map(|rank| &mut rank.readings) {
        reading.examination.stacks = None;
    }
    job
}

fn reports(job: &mut JobEvidence) -> impl Iterator<Item = &mut Communicator> {
    let readings = job.ranks.iter_mut().flat_map(|rank| &mut rank.readings);
    readings.filter_map(|reading| reading.examination.ras.as_mut()).flat_map(|ras| &mut ras.communicators)
}

// Rows of the table.

#[test]
fn a_frozen_rank_that_is_behind_and_idle_is_proven() {
    let verdict = check(
        &laggard(),
        Outcome::Proven,
        "rank 7 (pid 4007 on node2, GPU 3) never launched AllReduce 61 to 64, which 7 other ranks did",
    );
    let culprit = verdict.culprit.as_ref().expect("a culprit");
    assert_eq!((culprit.reason, culprit.frame.as_deref()), (CulpritReason::Behind, Some("load_batch (data.py:211)")));
    let rank = &culprit.ranks[0];
    assert_eq!((rank.rank, rank.world_rank, rank.pid, rank.gpu), (Some(7), Some(7), Some(4007), Some(3)));
    assert_eq!(rank.host.as_deref(), Some("node2"));
    assert_eq!(
        evidence_text(&verdict),
        [
            "NCCL RAS, twice, 60 s apart | AllReduce: 7 ranks at 64, rank 7 at 60, none moved | proven",
            "py-spy, rank 7 | load_batch (data.py:211), same 60 s later | likely",
            "/proc, rank 7 | CPU 0 %, main thread waits in hrtimer_nanosleep, writes nothing | likely",
            "GPU of rank 7 | 0 %, 70 of 700 W, tensor 0 %, DRAM 0 %, NVLink 0 B/s | says: nothing alone",
            "py-spy, the others | all_reduce (distributed_c10d.py:2806), unmoved | likely",
            "GPUs of the others | 100 %, 104 of 700 W, tensor 0 %, DRAM 0 %, NVLink 0 B/s | likely",
        ]
    );
    assert_eq!(verdict.missing, []);
}

#[test]
fn stacks_are_not_needed_for_a_proof_by_counts() {
    assert_eq!(judge(&without_stacks(laggard())).outcome, Outcome::Proven);
}

#[test]
fn a_dead_rank_is_proven_if_the_others_spin() {
    let absent = |absence| {
        let mut one = communicator(&[("AllReduce", &SAME)]);
        (one.ranks, one.missing_ranks) = (7, vec![NamedRank { absence: Some(absence), count: None, ..named(6, 0) }]);
        one
    };
    let mut job = hanging_job(8);
    job.ranks.remove(6);
    add_reports(&mut job, [communicator(&[("AllReduce", &SAME)]), absent(RankAbsence::Dead)]);
    let dead = "rank 6 (pid 1006 on 10.0.0.2, GPU 2) is dead, and the others wait for it";
    assert_eq!(reason(&check(&job, Outcome::Proven, dead)), Some(CulpritReason::Dead));
    // Without a spin it may be the end of the job.
    for rank in &mut job.ranks {
        rank.gpus = vec![gpu(0, 60.0, 700.0)];
    }
    check(&job, Outcome::Likely, "rank 6 (pid 1006 on 10.0.0.2, GPU 2) is dead");

    let mut job = hanging_job(8);
    add_reports(&mut job, [absent(RankAbsence::Unresponsive), absent(RankAbsence::Unresponsive)]);
    for reading in &mut job.ranks[6].readings {
        let process = reading.examination.process.as_mut().expect("a process");
        process.main_thread.as_mut().expect("a thread").state = Some(ProcessState::Stopped);
    }
    let stopped = "rank 6 (pid 4006 on node2, GPU 2) is stopped, and the others wait for it";
    assert_eq!(reason(&check(&job, Outcome::Proven, stopped)), Some(CulpritReason::Unresponsive));

    // Once unresponsive is no proof, and a rank that has left is no fault.
    for first in [RankAbsence::Left, RankAbsence::Unknown] {
        let mut job = hanging_job(8);
        add_reports(&mut job, [absent(first), absent(RankAbsence::Unresponsive)]);
        assert_eq!(judge(&job).outcome, Outcome::Suspected);
    }
    let mut job = hanging_job(8);
    add_reports(&mut job, [absent(RankAbsence::Left), absent(RankAbsence::Left)]);
    assert_eq!(judge(&job).outcome, Outcome::Suspected);
}

#[test]
fn ranks_that_took_different_paths_are_both_named() {
    let mut job = with_counts(hanging_job(4), &[("AllReduce", &[64, 64, 64, 63]), ("Broadcast", &[4, 4, 4, 5])]);
    let paths = "ranks 0-3 on node1 took different paths: rank 3 without AllReduce 64, the others without Broadcast 5";
    let verdict = check(&job, Outcome::Proven, paths);
    let culprit = verdict.culprit.as_ref().expect("a culprit");
    assert_eq!(culprit.reason, CulpritReason::OtherPath);
    let operations: Vec<_> = culprit.ranks.iter().map(|rank| (rank.rank, rank.operation.as_deref())).collect();
    let expected = [(3, "AllReduce 64"), (0, "Broadcast 5"), (1, "Broadcast 5"), (2, "Broadcast 5")];
    assert_eq!(operations, expected.map(|(rank, operation)| (Some(rank), Some(operation))));
    // If the GPUs of all ranks seem to compute, nobody waits for them.
    job.ranks.iter_mut().for_each(|rank| rank.gpus = vec![gpu(60, 500.0, 700.0)]);
    check(&job, Outcome::Likely, paths);
}

#[test]
fn a_rank_behind_that_works_is_waited_for() {
    let works = |change: &dyn Fn(&mut RankEvidence), text: &str| {
        let mut job = laggard();
        change(&mut job.ranks[7]);
        let verdict = judge(&job);
        assert_eq!(verdict.outcome, Outcome::WaitsForRank, "{text}: {verdict:#?}");
        assert!(verdict.sentence.ends_with(text), "{}", verdict.sentence);
        assert_eq!(reason(&verdict), Some(CulpritReason::Works));
    };
    works(&|rank| rank.readings[1].write_bytes = Some(2 << 30), "wrote 2 GB");
    works(&|rank| rank.readings[1].read_bytes = Some(2 << 30), "read 1 GB");
    works(&|rank| rank.readings[1].descendants_cpu_percent = Some(800.0), "its worker processes use 8.0 cores");
    works(&|rank| rank.gpus = vec![gpu(60, 500.0, 700.0)], "its GPU computes");
    let saves = ["save@torch/serialization.py:9", "main@train.py:300"];
    works(
        &|rank| rank.readings[1].examination.stacks = Some(Box::new(stack(&saves))),
        "its Python stack moved, now save (serialization.py:9)",
    );
    let busy = |rank: &mut RankEvidence| {
        for reading in &mut rank.readings {
            let process = reading.examination.process.as_mut().expect("a process");
            process.main_thread.as_mut().expect("a thread").user_ms = Some(990);
        }
    };
    works(&busy, "its main thread uses 1.0 cores");
}

#[test]
fn counts_that_differ_are_only_likely_without_one_condition() {
    let sentence = "rank 7 (pid 4007 on node2, GPU 3) never launched AllReduce 61 to 64, which 7 other ranks did";
    // Nobody spins.
    let mut job = laggard();
    job.ranks.iter_mut().for_each(|rank| rank.gpus = vec![]);
    check(&job, Outcome::Likely, sentence);
    // One report only.
    let mut job = laggard();
    job.ranks[0].readings[0].examination.ras = None;
    let missing = check(&job, Outcome::Likely, sentence).missing;
    assert_eq!(
        (missing[0].what.as_str(), missing[0].reason.as_str()),
        ("whether the counts of NCCL move", "there is one report")
    );
    // The reports are too close together.
    let mut job = laggard();
    for rank in &mut job.ranks {
        rank.readings[0].at = rank.readings[1].at.minus(Duration::from_secs(59));
    }
    check(&job, Outcome::Likely, sentence);
    // The host of the rank behind is not watched.
    let mut job = laggard();
    job.ranks.remove(7);
    check(
        &job,
        Outcome::Likely,
        "rank 7 (pid 1007 on 10.0.0.2, GPU 3) never launched AllReduce 61 to 64, which 7 other ranks did",
    );
    // The rank behind was examined once.
    let mut job = laggard();
    job.ranks[7].readings.remove(0);
    check(&job, Outcome::Likely, sentence);
    // Communicators were left out, and one rank does not spin.
    let mut job = laggard();
    job.ranks[2].gpus.clear();
    check(&job, Outcome::Proven, sentence);
    for reading in &mut job.ranks[0].readings {
        reading.examination.ras.as_mut().expect("a report").communicators_left_out = 5;
    }
    check(&job, Outcome::Likely, sentence);
}

#[test]
fn an_asynchronous_error_is_proven() {
    let with_error = |error| {
        let mut one = communicator(&[("AllReduce", &SAME)]);
        one.failed_ranks = vec![
            NamedRank { async_error: Some(6), count: None, ..named(2, 0) },
            NamedRank { async_error: Some(error), count: None, ..named(5, 0) },
        ];
        let mut job = hanging_job(8);
        add_reports(&mut job, [communicator(&[("AllReduce", &SAME)]), one]);
        job
    };
    let verdict =
        check(&with_error(2), Outcome::Proven, "rank 5 (pid 4005 on node2, GPU 1) has NCCL error 2 (system error)");
    assert_eq!(reason(&verdict), Some(CulpritReason::AsyncError));
    for harmless in [0, 7] {
        let mut job = with_error(harmless);
        reports(&mut job).for_each(|one| one.failed_ranks.retain(|rank| rank.rank == 5));
        let verdict = judge(&job);
        assert_eq!((verdict.outcome, verdict.culprit), (Outcome::Likely, None), "{harmless}: the counts are equal");
    }
}

#[test]
fn lines_of_the_watchdog_are_a_proof() {
    let timeout = "[rank0]:[E] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=64, OpType=ALLREDUCE, \
                   Timeout(ms)=600000) ran for 600012 milliseconds before timing out.";
    let mut job = hanging_job(8);
    add_log(&mut job, &[timeout]);
    let verdict =
        check(&job, Outcome::Proven, "PyTorch's watchdog gave up on ALLREDUCE 64; the log does not name the culprit");
    assert_eq!(verdict.evidence[0].source, "log of rank 0");
    assert_eq!(verdict.evidence[0].says, Says::Proven);

    add_log(
        &mut job,
        &[
            timeout,
            "[rank0]: last enqueued work: 64, last completed work: 63",
            "[rank3]: last enqueued work: 62, last completed work: 62",
        ],
    );
    check(
        &job,
        Outcome::Proven,
        "PyTorch's watchdog gave up on ALLREDUCE 64: rank 3 (pid 4003 on node1, GPU 3) enqueued 62 operations, while others \
         enqueued 64",
    );

    // The lines may be those of an earlier run in the same file: a rank that writes goes on.
    let mut writes = job.clone();
    for (reading, bytes) in writes.ranks[2].readings.iter_mut().zip([0, 1 << 30]) {
        reading.write_bytes = Some(bytes);
    }
    assert_eq!(judge(&writes).outcome, Outcome::WaitsForRank);
    // The processes are younger than the wait that the lines report, or than the last line. The age of a log is in whole
    // seconds, so that of a line which a process wrote at its start may be a second more than its own.
    for (written_seconds, process_seconds, is_of_this_run) in
        [(10.0, 60.0, false), (90.0, 60.0, false), (7201.0, 7199.9, true), (7202.0, 7200.8, false)]
    {
        let mut young = job.clone();
        for log in young.ranks.iter_mut().filter_map(|rank| rank.log.as_mut()) {
            log.age = Some(Duration::from_secs_f64(written_seconds));
            log.process_age = Some(Duration::from_secs_f64(process_seconds));
        }
        let verdict = judge(&young);
        assert_eq!(verdict.sentence.contains("watchdog"), is_of_this_run, "{written_seconds} s: {verdict:?}");
    }

    // Rank 7 completed what it enqueued and wrote no line. The others wait for it.
    add_log(
        &mut job,
        &[
            timeout,
            "[rank0]: last enqueued work: 70, last completed work: 63",
            "[rank1]: last enqueued work: 68, last completed work: 63",
        ],
    );
    check(&job, Outcome::Proven, "PyTorch's watchdog gave up on ALLREDUCE 64; the log does not name the culprit");

    add_log(
        &mut job,
        &[
            timeout,
            " - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:",
            "   - [5] finished collective #63, but didn't join collective #64 (count from 1)",
        ],
    );
    let verdict = check(
        &job,
        Outcome::Proven,
        "PyTorch's watchdog gave up on ALLREDUCE 64: rank 5 (pid 4005 on node2, GPU 1) finished collective #63, but didn't \
         join collective #64",
    );
    assert_eq!(reason(&verdict), Some(CulpritReason::Log));

    // A job that computes has survived its timeout.
    job.ranks[0].gpus = vec![gpu(100, 600.0, 700.0)];
    assert_ne!(judge(&job).outcome, Outcome::Proven);
}

#[test]
fn a_waiting_line_alone_proves_nothing() {
    let mut job = without_stacks(hanging_job(2));
    add_log(&mut job, &["No available shared memory broadcast block found in 60 seconds."]);
    let verdict = check(&job, Outcome::Suspected, "the readings fit a hang and also a healthy job");
    assert_eq!(verdict.evidence[0].says, Says::Nothing);
}

#[test]
fn equal_frozen_counts_with_equal_stacks_and_flat_links_prove_that_nothing_moves() {
    let mut job = with_counts(hanging_job(8), &[("AllReduce", &SAME)]);
    add_flat_links(&mut job);
    let nothing_moves = "nothing moves: every rank waits in the same operation; the culprit is not known, probably the \
                         network, the driver or NCCL";
    let verdict = check(&job, Outcome::Proven, nothing_moves);
    assert_eq!(verdict.culprit, None);
    // Without links.
    let without_links = with_counts(hanging_job(8), &[("AllReduce", &SAME)]);
    let probably = "every rank waits in the same operation; the culprit is not known, probably the network";
    check(&without_links, Outcome::Likely, probably);
    // Another job's traffic, or an error counter.
    for reading in job.ranks.iter_mut().flat_map(|rank| &mut rank.readings) {
        reading.examination.links.iter_mut().for_each(|link| link.sent_bytes = Some(400_000_000));
    }
    check(&job, Outcome::Likely, probably);
}

/// A job on two hosts in which all ranks wait, and whose ports counted these errors in the second examination.
fn with_link_errors(errors: &[(&str, u64)]) -> JobEvidence {
    let mut job = hanging_job(8);
    add_flat_links(&mut job);
    for link in &mut job.ranks[4].readings[1].examination.links {
        let error = |(name, count): &(&str, u64)| LinkErrorCount { name: SafeText::new(name), count: *count };
        link.errors = errors.iter().map(error).collect();
    }
    job
}

#[test]
fn a_network_that_loses_packets_is_likely_without_nccl_ras() {
    let fits = "the readings fit a hang and also a healthy job";
    check(&with_link_errors(&[]), Outcome::Suspected, fits);
    let lost = with_link_errors(&[("local_ack_timeout_err", 1)]);
    let sentence = "every rank waits, and the network loses packets at mlx5_0 on node2 (local_ack_timeout_err +1): its \
                    link, or the host at the other end";
    let verdict = check(&lost, Outcome::Likely, sentence);
    assert_eq!(verdict.culprit, None);
    assert!(evidence_text(&verdict).iter().any(|line| line.starts_with("links | ") && line.ends_with("the network")));
    // A packet is sent again every few seconds, and an examination lasts one.
    let mut earlier = lost.clone();
    earlier.ranks[4].readings.swap(0, 1);
    let moments = [at(0), at(1)];
    earlier.ranks[4].readings.iter_mut().zip(moments).for_each(|(reading, at)| reading.at = at);
    check(&earlier, Outcome::Likely, sentence);
    let both = with_link_errors(&[("symbol_error", 9), ("local_ack_timeout_err", 12), ("link_downed", 1)]);
    let sentence = "every rank waits, and the network loses packets at mlx5_0 on node2 (link_downed +1) and 1 \
                    more: its link, or the host at the other end";
    check(&both, Outcome::Likely, sentence);
    // Equal counts of NCCL RAS say less about the culprit.
    let counted = with_counts(both, &[("AllReduce", &SAME)]);
    check(&counted, Outcome::Likely, sentence);
    // A job that computes uses a network with retries.
    let mut computes = lost.clone();
    computes.ranks[0].gpus = vec![gpu(100, 600.0, 700.0)];
    assert_ne!(judge(&computes).outcome, Outcome::Likely);
    let mut on_one_host = lost;
    on_one_host.ranks.drain(..4);
    check(&on_one_host, Outcome::Suspected, fits);
}

#[test]
fn congestion_is_no_loss_and_blames_the_network_only_where_no_data_flows() {
    let says = |job: &JobEvidence| {
        let verdict = judge(job);
        assert_eq!(verdict.outcome, Outcome::Suspected, "{verdict:#?}");
        verdict.evidence.iter().find(|line| line.source == "links").unwrap().says
    };
    for (errors, silent, busy) in [
        (("port_xmit_wait", 9), Says::Network, Says::Nothing),
        (("np_cnp_sent", 9), Says::Network, Says::Nothing),
        (("symbol_error", 9), Says::Network, Says::Network),
    ] {
        let mut job = with_link_errors(&[errors]);
        assert_eq!(says(&job), silent, "{errors:?}");
        for reading in &mut job.ranks[0].readings {
            reading.examination.links.iter_mut().for_each(|link| link.sent_bytes = Some(400_000_000));
        }
        assert_eq!(says(&job), busy, "{errors:?}");
    }
    // Two ports with little more than half of the traffic of a flat one each.
    let mut job = with_link_errors(&[("port_xmit_wait", 9)]);
    for reading in job.ranks.iter_mut().flat_map(|rank| &mut rank.readings) {
        for link in &mut reading.examination.links {
            (link.seconds, link.sent_bytes, link.received_bytes) = (1.0, Some(600_000), Some(0));
        }
    }
    assert_eq!(says(&job), Says::Network, "every port is flat");
}

#[test]
fn equal_frozen_counts_stay_suspected_where_cuda_graphs_are_possible() {
    let graphs = "all ranks have launched the same operations and launch no more, which a healthy job that replays CUDA \
                  graphs shows too";
    let mut job = with_counts(hanging_job(4), &[("AllReduce", &[64; 4])]);
    assert_eq!(judge(&job).outcome, Outcome::Proven, "ranks on one host need no links");
    check(&without_stacks(job.clone()), Outcome::Suspected, graphs);
    check(&with_counts(hanging_job(4), &[("AllReduce", &[0; 4])]), Outcome::Suspected, graphs);
    job.serves_models = true;
    check(&job, Outcome::Suspected, graphs);
}

#[test]
fn one_rank_in_other_code_twice_is_likely() {
    let mut job = hanging_job(4);
    sleeps(&mut job.ranks[2], &["load_batch@data.py:211", "main@train.py:119"]);
    let odd = "rank 2 (pid 4002 on node1, GPU 2) loads data, in load_batch (data.py:211), while the others wait";
    let verdict = check(&job, Outcome::Likely, odd);
    assert_eq!(reason(&verdict), Some(CulpritReason::Stack));
    // Once.
    job.ranks.iter_mut().for_each(|rank| drop(rank.readings.remove(0)));
    check(&job, Outcome::Suspected, odd);
    // Each rank at its next launch, in code of the model: victims.
    let mut job = hanging_job(4);
    for (index, rank) in job.ranks.iter_mut().enumerate() {
        let frame = ["forward@model.py:1", "backward@model.py:2", "rope@kernels.py:3", "forward@model.py:9"][index];
        rank.readings.iter_mut().for_each(|reading| reading.examination.stacks = Some(Box::new(stack(&[frame]))));
    }
    check(&job, Outcome::Suspected, "the readings fit a hang and also a healthy job");
}

#[test]
fn one_rank_with_another_wait_channel_and_an_idle_gpu_is_likely() {
    let mut job = without_stacks(hanging_job(3));
    sleeps(&mut job.ranks[1], &[WAITS]);
    let job = without_stacks(job);
    let sentence =
        "rank 1 (pid 4001 on node1, GPU 1) waits in hrtimer_nanosleep while its GPU does nothing, unlike the others";
    assert_eq!(reason(&check(&job, Outcome::Likely, sentence)), Some(CulpritReason::WaitChannel));
    let mut once = job.clone();
    once.ranks.iter_mut().for_each(|rank| drop(rank.readings.remove(0)));
    assert_eq!(judge(&once).outcome, Outcome::Suspected);
    let mut all_idle = job;
    all_idle.ranks.iter_mut().for_each(|rank| rank.gpus = vec![gpu(0, 60.0, 700.0)]);
    assert_eq!(judge(&all_idle).outcome, Outcome::Suspected);
}

#[test]
fn a_stopped_process_is_likely_the_culprit() {
    let mut job = without_stacks(hanging_job(4));
    for reading in &mut job.ranks[3].readings {
        let process = reading.examination.process.as_mut().expect("a process");
        process.main_thread.as_mut().expect("a thread").state = Some(ProcessState::Stopped);
    }
    check(&job, Outcome::Likely, "rank 3 (pid 4003 on node1, GPU 3) is stopped");
}

#[test]
fn a_job_that_moves_does_not_hang() {
    // Counts.
    let mut job = hanging_job(8);
    add_reports(
        &mut job,
        [
            communicator(&[("AllReduce", &RANK_7_BEHIND)]),
            communicator(&[("AllReduce", &[65, 65, 65, 65, 65, 65, 65, 64])]),
        ],
    );
    let verdict = check(&job, Outcome::NotHung, "the job moves: ranks launch operations");
    assert_eq!((verdict.culprit, verdict.evidence[0].says), (None, Says::Moves));
    // Only the rank behind, so that the highest count stays.
    let mut job = laggard();
    add_reports(
        &mut job,
        [
            communicator(&[("AllReduce", &RANK_7_BEHIND)]),
            communicator(&[("AllReduce", &[64, 64, 64, 64, 64, 64, 64, 61])]),
        ],
    );
    assert_eq!(judge(&job).outcome, Outcome::NotHung);
    // Written bytes of most ranks.
    let mut job = hanging_job(2);
    job.ranks.iter_mut().for_each(|rank| rank.readings[1].write_bytes = Some(9_000_000));
    check(&job, Outcome::NotHung, "the job moves: ranks 0, 1: wrote 9 MB");
    // A stack.
    let mut job = hanging_job(1);
    let elsewhere = stack(&["forward@model.py:7", "step@train.py:80", "main@train.py:120"]);
    job.ranks[0].readings[1].examination.stacks = Some(Box::new(elsewhere));
    check(&job, Outcome::NotHung, "the job moves: rank 0: its Python stack moved, now forward (model.py:7)");
    // A log, also in spite of a laggard.
    for mut job in [hanging_job(8), laggard()] {
        add_log(&mut job, &["step 100 loss 2.1", "step 101 loss 2.0"]);
        check(&job, Outcome::NotHung, "the job moves: its log grows");
        add_log(&mut job, &["12:00 still waiting", "12:01 still waiting"]);
        assert_ne!(judge(&job).outcome, Outcome::NotHung);
    }
}

#[test]
fn a_loop_that_polls_is_no_movement() {
    let mut job = laggard();
    let polls =
        |line| Some(Box::new(stack(&[&format!("wait@store.py:{line}"), "step@train.py:88", "main@train.py:120"])));
    job.ranks[0].readings[0].examination.stacks = polls(5);
    job.ranks[0].readings[1].examination.stacks = polls(7);
    assert_eq!(judge(&job).outcome, Outcome::Proven);
}

#[test]
fn one_rank_that_works_without_counts_is_waited_for() {
    let mut job = hanging_job(4);
    sleeps(&mut job.ranks[0], &["save@torch/serialization.py:9", "main@train.py:300"]);
    job.ranks[0].readings[1].write_bytes = Some(5_000_000_000);
    let sentence = "the job waits for rank 0 (pid 4000 on node1, GPU 0), which saves or loads a checkpoint: wrote 5 GB";
    check(&job, Outcome::WaitsForRank, sentence);
}

#[test]
fn nothing_is_known_without_an_examination() {
    let mut job = hanging_job(2);
    for rank in &mut job.ranks {
        (rank.is_mine, rank.user) = (false, Some("bob".into()));
        rank.gpus = vec![gpu(0, 60.0, 700.0)];
        rank.readings.clear();
    }
    let verdict = check(&job, Outcome::NothingKnown, "nothing could be read that says more");
    let expected = Missing {
        what: "examination of 2 processes".into(),
        reason: "bob owns the job, and only its owner may examine it".into(),
        remedy: "ask bob to run `gpufleet why node1:4000`".into(),
        is_risk: false,
    };
    assert_eq!(verdict.missing, [expected]);
    check(&JobEvidence::default(), Outcome::NothingKnown, "nothing could be read that says more");
}

// Readings of section 5 of the design that are no hang, and other reports that must stay unproven.

#[test]
fn healthy_readings_stay_unproven() {
    let readings = [
        ("V100 in good training", gpu(100, 77.0, 300.0)),
        ("GB10, bound by launches, no limit known", gpu(96, 16.0, 0.0)),
        ("GB10 with a healthy median near it", RankGpuWithMedian(gpu(96, 16.0, 0.0), 18.0).into()),
        ("GB10, bound by launches", gpu(96, 16.0, 140.0)),
        ("H100, inference", gpu(30, 180.0, 700.0)),
        ("H100 at 250 W", gpu(100, 250.0, 700.0)),
        ("A100 at 150 W", gpu(100, 150.0, 400.0)),
        ("A100 at 194 W", gpu(98, 194.0, 300.0)),
        ("V100, decode", gpu(100, 190.0, 300.0)),
        ("H100, idle context", gpu(0, 120.0, 700.0)),
        ("RTX 3090 that computes", gpu(100, 267.0, 350.0)),
    ];
    for (name, reading) in readings {
        for size in [1, 2, 8] {
            // GPUs alone.
            let mut job = hanging_job(size);
            for rank in &mut job.ranks {
                rank.gpus = vec![reading.clone()];
                rank.readings.clear();
            }
            assert!(judge(&job).culprit.is_none() && judge(&job).outcome != Outcome::Proven, "{name}");
            // With equal counts and no stacks.
            let mut job = without_stacks(with_counts(hanging_job(size), &[("AllReduce", &vec![64; size as usize])]));
            job.ranks.iter_mut().for_each(|rank| rank.gpus = vec![reading.clone()]);
            let verdict = judge(&job);
            assert!(matches!(verdict.outcome, Outcome::Suspected | Outcome::NothingKnown), "{name}: {verdict:#?}");
            // With counts that move slowly, as on unlike GPUs.
            let counts: Vec<Vec<u64>> = (0..2).map(|step| vec![64 + step; size as usize]).collect();
            add_reports(
                &mut job,
                [communicator(&[("AllReduce", &counts[0])]), communicator(&[("AllReduce", &counts[1])])],
            );
            assert_eq!(judge(&job).outcome, Outcome::NotHung, "{name}");
        }
    }
}

/// A GPU without a power limit and with the median of its healthy power.
struct RankGpuWithMedian(super::super::evidence::RankGpu, f32);

impl From<RankGpuWithMedian> for super::super::evidence::RankGpu {
    fn from(RankGpuWithMedian(gpu, healthy): RankGpuWithMedian) -> Self {
        Self { healthy_power_watts: Some(healthy), ..gpu }
    }
}

#[test]
fn a_model_server_at_rest_is_not_proven() {
    let mut job = with_counts(hanging_job(4), &[("Broadcast", &[9, 10, 10, 10])]);
    job.serves_models = true;
    sleeps(&mut job.ranks[0], &["recv@zmq/sugar/socket.py:9", "recv_requests@scheduler.py:80"]);
    let verdict = check(
        &job,
        Outcome::Suspected,
        "rank 0 (pid 4000 on node1, GPU 0) never launched Broadcast 10, which 3 other ranks did; it waits for requests",
    );
    assert_eq!(reason(&verdict), Some(CulpritReason::Behind));
    // Without a stack it may be at rest.
    assert_eq!(judge(&without_stacks(job.clone())).outcome, Outcome::Likely);
    // Without counts.
    job.ranks[0].readings.iter_mut().for_each(|reading| reading.examination.ras = None);
    assert_eq!(judge(&job).outcome, Outcome::Suspected);
}

#[test]
fn reports_that_cannot_be_compared_prove_nothing() {
    type Change = fn(&mut Communicator);
    let changes: [(&str, Change); 6] = [
        ("is being made", |one| one.initialising = 1),
        ("is torn down", |one| one.finalising = 1),
        ("other ranks sent data", |one| one.ranks = 7),
        ("other ranks are missing", |one| one.missing_ranks = vec![named(2, 0)]),
        ("another communicator", |one| one.secondary_hash = "0x3:0x4".into()),
        ("no fingerprint", |one| one.operations[0].fingerprint = None),
    ];
    for (name, change) in changes {
        let mut job = laggard();
        change(reports(&mut job).next().expect("a report"));
        assert_ne!(judge(&job).outcome, Outcome::Proven, "{name}");
    }
    // Two communicators with the same identity.
    let mut job = laggard();
    for reading in &mut job.ranks[0].readings {
        let ras = reading.examination.ras.as_mut().expect("a report");
        ras.communicators.push(ras.communicators[0].clone());
    }
    assert_ne!(judge(&job).outcome, Outcome::Proven);
}

/// NCCL 2.30.7 after SIGSTOP for 100 s and SIGCONT, asked on the side of the continued process: the others count as dead.
#[test]
fn ranks_that_count_as_dead_but_run_are_not_blamed() {
    let mut job = hanging_job(8);
    let mut one = communicator(&[("AllReduce", &SAME)]);
    let dead = |rank| NamedRank { absence: Some(RankAbsence::Dead), count: None, ..named(rank, 0) };
    (one.ranks, one.missing_ranks) = (5, vec![dead(4), dead(5), dead(6)]);
    add_reports(&mut job, [one.clone(), one]);
    let verdict = judge(&job);
    assert_ne!(reason(&verdict), Some(CulpritReason::Dead), "{verdict:#?}");
    let line = "NCCL RAS, twice, 60 s apart | process 1004 on 10.0.0.2, rank 4, counts as dead but runs: it was stopped, or the \
                network was cut, for a minute or two | says: nothing alone";
    assert!(evidence_text(&verdict).iter().any(|one| one == line), "{:#?}", evidence_text(&verdict));
    // A stopped process can be continued.
    for reading in &mut job.ranks[4].readings {
        let process = reading.examination.process.as_mut().expect("a process");
        process.main_thread.as_mut().expect("a thread").state = Some(ProcessState::Stopped);
    }
    let verdict = judge(&job);
    assert_eq!(reason(&verdict), Some(CulpritReason::Unresponsive));
    assert!(verdict.sentence.contains("is stopped"), "{}", verdict.sentence);
    let line = "NCCL RAS, twice, 60 s apart | process 1004 on 10.0.0.2, rank 4, is stopped | proven";
    assert!(evidence_text(&verdict).iter().any(|one| one == line), "{:#?}", evidence_text(&verdict));
    // A zombie does not run.
    for reading in &mut job.ranks[5].readings {
        let process = reading.examination.process.as_mut().expect("a process");
        process.main_thread.as_mut().expect("a thread").state = Some(ProcessState::Zombie);
    }
    let culprit = judge(&job).culprit.expect("a culprit");
    assert_eq!((culprit.reason, culprit.ranks.len()), (CulpritReason::Dead, 1));
    assert_eq!(culprit.ranks[0].rank, Some(5));
}

/// NCCL 2.30.7 while rank 3 skips `ncclCommSplit`, in which the others wait: RAS does not know the new communicator.
#[test]
fn most_ranks_behind_one_that_went_on_are_not_blamed() {
    let mut job = with_counts(hanging_job(4), &[("AllReduce", &[0, 0, 0, 3])]);
    for rank in &mut job.ranks[..3] {
        sleeps(rank, &["new_group@distributed_c10d.py:4870"]);
    }
    let text = "ranks took different paths: rank 3 launched AllReduce 1 to 3, which the other 3 never did";
    assert_eq!(check(&without_stacks(job.clone()), Outcome::Likely, text).culprit, None);
    // Nobody watches their host.
    let mut unseen = job.clone();
    unseen.ranks.drain(..3);
    add_reports(&mut unseen, [0, 0].map(|_| communicator(&[("AllReduce", &[0, 0, 0, 3])])));
    check(&unseen, Outcome::Likely, text);
    // Ranks at other counts, or a report that does not name all of them.
    let counts = "ranks took different paths: 3 of 5 never launched AllReduce 1 to 3";
    let several = without_stacks(with_counts(hanging_job(5), &[("AllReduce", &[0, 0, 0, 2, 3])]));
    assert_eq!(check(&several, Outcome::Likely, counts).culprit, None);
    let mut huge = without_stacks(job.clone());
    reports(&mut huge).for_each(|one| (one.size, one.operations[0].counts[1].ranks) = (u32::MAX, u32::MAX - 1));
    assert_eq!(judge(&huge).culprit, None);
    let two = without_stacks(with_counts(hanging_job(5), &[("AllReduce", &[0, 0, 0, 3, 3])]));
    check(
        &two,
        Outcome::Likely,
        "ranks took different paths: ranks 3, 4 launched AllReduce 1 to 3, which the other 3 never did",
    );
    // Stacks show that they do something else than wait for other ranks.
    for rank in &mut job.ranks[..3] {
        sleeps(rank, &["load_batch@/home/ann/data.py:211", "main@train.py:119"]);
    }
    let verdict = judge(&job);
    assert_eq!((verdict.outcome, reason(&verdict)), (Outcome::Proven, Some(CulpritReason::Behind)), "{verdict:#?}");
}

#[test]
fn a_text_report_that_names_the_minority_ahead_blames_nobody() {
    let mut job = hanging_job(8);
    let mut one = communicator(&[("AllReduce", &[641, 640, 640, 640, 640, 640, 640, 640])]);
    one.secondary_hash = "".into();
    let operation = &mut one.operations[0];
    (operation.fingerprint, operation.named) = (None, vec![named(0, 641)]);
    add_reports(&mut job, [one.clone(), one]);
    for reading in &mut job.ranks[0].readings {
        reading.examination.ras.as_mut().expect("a report").is_json = false;
    }
    let verdict = check(
        &job,
        Outcome::Likely,
        "7 of 8 ranks never launched AllReduce 641, which rank 0 did; the report does not name them",
    );
    assert_eq!(verdict.culprit, None);
    assert_eq!(
        evidence_text(&verdict)[0],
        "NCCL RAS, twice, 60 s apart | AllReduce: rank 0 at 641, 7 ranks at 640, none moved | likely"
    );
}

#[test]
fn a_text_report_that_names_the_laggard_is_a_proof() {
    let mut job = laggard();
    for reading in &mut job.ranks[0].readings {
        let ras = reading.examination.ras.as_mut().expect("a report");
        ras.is_json = false;
        ras.communicators[0].operations[0].fingerprint = None;
        ras.communicators[0].secondary_hash = "".into();
    }
    assert_eq!(judge(&job).outcome, Outcome::Proven);
}

// Who is who.

#[test]
fn equal_pids_in_containers_are_told_apart() {
    let mut job = laggard();
    for rank in &mut job.ranks {
        for reading in &mut rank.readings {
            reading.examination.process.as_mut().expect("a process").ns_pid = Some(100 + rank.pid % 4);
        }
    }
    reports(&mut job).for_each(|one| one.operations[0].named[0].pid = Some(103));
    let pid = |job: &JobEvidence| judge(job).culprit.expect("a culprit").ranks[0].pid;
    assert_eq!(pid(&job), Some(4007), "by its rank");
    let variables = |job: &mut JobEvidence, kept: &str| {
        for reading in job.ranks.iter_mut().flat_map(|rank| &mut rank.readings) {
            let process = reading.examination.process.as_mut().expect("a process");
            process.variables.retain(|variable| variable.starts_with(kept));
        }
    };
    variables(&mut job, "NOTHING");
    assert_eq!(pid(&job), Some(4007), "by its address");
    job.ranks.iter_mut().for_each(|rank| rank.host_addresses.clear());
    let verdict = judge(&job);
    let rank = &verdict.culprit.as_ref().expect("a culprit").ranks[0];
    assert_eq!((rank.pid, rank.host.as_deref(), rank.host_id), (Some(103), Some("10.0.0.2"), None), "as RAS names it");
    assert_eq!((verdict.outcome, rank.world_rank), (Outcome::Likely, Some(7)));
}

#[test]
fn a_slurm_rank_counts_where_it_is_unique() {
    let mut job = laggard();
    for rank in &mut job.ranks {
        let number = rank.pid - 4000;
        for reading in &mut rank.readings {
            let process = reading.examination.process.as_mut().expect("a process");
            process.variables = vec![SafeText::from(format!("SLURM_PROCID={number}"))];
        }
    }
    assert!(judge(&job).sentence.starts_with("rank 7 (pid 4007"));
    for reading in job.ranks.iter_mut().flat_map(|rank| &mut rank.readings) {
        let process = reading.examination.process.as_mut().expect("a process");
        process.variables = vec!["SLURM_PROCID=0".into()];
    }
    assert_eq!(judge(&job).culprit.expect("a culprit").ranks[0].world_rank, Some(7), "by the largest communicator");
}

#[test]
fn what_the_program_offers_for_debugging_is_named() {
    let mut job = laggard();
    for process in
        job.ranks.iter_mut().flat_map(|rank| &mut rank.readings).filter_map(|one| one.examination.process.as_mut())
    {
        process.has_faulthandler = true;
    }
    if let Some(process) = job.ranks[0].readings[0].examination.process.as_mut() {
        process.has_debug_server = true;
    }
    let offers = |job: JobEvidence| {
        let lines = evidence_text(&judge(&job));
        lines.into_iter().filter(|line| line.starts_with("PyTorch") || line.starts_with("fault")).collect::<Vec<_>>()
    };
    let server = "PyTorch debug server | rank 0 listens on node1: curl localhost:25999/stacks | says: nothing alone";
    assert_eq!(offers(job.clone()), [server], "py-spy has the stacks");
    let handler = "faulthandler | ranks 0-7: SIGABRT prints the Python stacks to standard error, and ends it | says: nothing alone";
    assert_eq!(offers(without_stacks(job)), [server, handler]);
}

// Logs that say why a job ended, and facts that are missing.

#[test]
fn a_log_says_why_a_rank_ended() {
    let mut job = without_stacks(hanging_job(4));
    add_log(&mut job, &["[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."]);
    let verdict = check(&job, Outcome::Likely, "rank 2 (pid 4002 on node1, GPU 2) ran out of memory");
    assert_eq!(
        evidence_text(&verdict)[0],
        "log of rank 2 | [rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. | says: why it ended"
    );
    for (line, sentence) in [
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
            "the log says: a rank has a GPU with an error of the driver (Xid)",
        ),
        ("EngineDeadError: EngineCore encountered an issue.", "the log says: the inference engine gave up"),
        ("we are taking the entire process down", "the log says: PyTorch ends the process after a failed operation"),
        ("The actor died unexpectedly", "the log says: a process of the job died"),
    ] {
        add_log(&mut job, &[line]);
        check(&job, Outcome::Likely, sentence);
    }
    // A log that one rank alone writes is about that rank.
    job.ranks.iter_mut().for_each(|rank| rank.log = None);
    job.ranks[1].log = Some(LogTail {
        path: "/logs/1.err".into(),
        lines: vec!["ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress".into()],
        age: Some(Duration::from_secs(300)),
        ..LogTail::default()
    });
    check(
        &job,
        Outcome::Likely,
        "rank 1 (pid 4001 on node1, GPU 1): PyTorch's watchdog thread is stuck, in a CUDA call or the interpreter lock",
    );
}

#[test]
fn refusals_change_no_verdict_and_are_shown_once() {
    let mut job = without_stacks(laggard());
    let before = judge(&job);
    for reading in job.ranks.iter_mut().flat_map(|rank| &mut rank.readings) {
        let refusal = |part, reason: &str, remedy: &str, is_risk| ExaminationRefusal {
            part,
            reason: reason.into(),
            remedy: remedy.into(),
            is_risk,
        };
        reading.examination.refused = vec![
            refusal(
                ExaminationPart::Ras,
                "NCCL 2.27.5 may crash",
                "use PyTorch 2.12 or newer, or `gpufleet why --ask-ras`",
                true,
            ),
            refusal(
                ExaminationPart::Stacks,
                "py-spy is not installed",
                "run `pip install py-spy` in the environment of the job",
                false,
            ),
            refusal(ExaminationPart::Links, "no InfiniBand", "", false),
        ];
        reading.examination.process.as_mut().expect("a process").nccl_version = Some("2.27.5".into());
    }
    let after = judge(&job);
    assert_eq!((after.outcome, &after.culprit, &after.sentence), (before.outcome, &before.culprit, &before.sentence));
    let text = |missing: &Missing| format!("{}: {} ({})", missing.what, missing.reason, missing.remedy);
    let expected = [
        "stacks of ranks 0-7: py-spy is not installed (run `pip install py-spy` in the environment of the job)",
        "links: no InfiniBand ()",
        "Flight Recorder: off in this job (TORCH_FR_BUFFER_SIZE=2000 before the next start)",
    ];
    assert_eq!(after.missing.iter().map(text).collect::<Vec<_>>(), expected, "another rank gave the report of RAS");

    job.ranks[0].readings.iter_mut().for_each(|reading| reading.examination.ras = None);
    let verdict = judge(&job);
    assert_eq!(
        text(&verdict.missing[0]),
        "NCCL RAS: NCCL 2.27.5 may crash (use PyTorch 2.12 or newer, or `gpufleet why --ask-ras`)"
    );
    assert!(verdict.missing[0].is_risk);
}

#[test]
fn each_refusal_has_a_remedy_and_a_job_without_nccl_lacks_no_report_of_it() {
    let mut job = without_stacks(laggard());
    for reading in job.ranks.iter_mut().flat_map(|rank| &mut rank.readings) {
        let refusal = |part, reason: &str| ExaminationRefusal {
            part,
            reason: reason.into(),
            remedy: SafeText::default(),
            is_risk: false,
        };
        (reading.examination.process, reading.examination.ras) = (None, None);
        reading.examination.refused = vec![
            refusal(ExaminationPart::Ras, WITHOUT_NCCL),
            refusal(ExaminationPart::Stacks, NOT_PYTHON),
            refusal(ExaminationPart::Process, NOT_IN_PROC),
        ];
    }
    let missing = judge(&job).missing;
    let shown: Vec<_> = missing.iter().map(|one| (one.what.as_str(), one.remedy.as_str())).collect();
    let stacks = ("stacks of 8 processes", "on node1: gdb -p 4000 --batch -ex 'thread apply all bt'");
    assert!(shown.contains(&stacks), "{shown:?}");
    assert!(shown.contains(&("/proc of 8 processes", "it has ended: examine another process of the job")), "{shown:?}");
    assert!(!shown.iter().any(|(what, _)| *what == "NCCL RAS"), "{shown:?}");
    assert!(shown.iter().all(|(_, remedy)| !remedy.is_empty()), "{shown:?}");
}

#[test]
fn a_log_is_missing_if_no_rank_has_one() {
    let mut job = laggard();
    job.ranks[2].log_refusal = NO_LOG_FILE.into();
    let missing = |job: &JobEvidence| {
        judge(job)
            .missing
            .into_iter()
            .find(|missing| missing.what == "log")
            .map(|missing| (missing.reason, missing.remedy))
    };
    let remedy = "write the output of the next start to a file, as with `>train.log 2>&1`";
    assert_eq!(missing(&job), Some((NO_LOG_FILE.into(), remedy.into())));
    job.ranks[2].log_refusal = "the log could not be read within 3 s: its file system hangs".into();
    let remedy = "read it on node1, or see whether its file system answers: df";
    assert_eq!(missing(&job), Some((job.ranks[2].log_refusal.clone(), remedy.into())));
    job.ranks[2].is_mine = false;
    assert_eq!(missing(&job), None, "only its owner may examine it");
    job.ranks[2].is_mine = true;
    job.ranks[5].log = Some(LogTail::default());
    assert_eq!(missing(&job), None);
}

#[test]
fn ranks_on_other_hosts_are_missing() {
    let mut job = laggard();
    job.ranks.truncate(4);
    let missing = judge(&job).missing;
    assert_eq!(
        (missing[0].what.as_str(), missing[0].remedy.as_str()),
        ("4 of 8 ranks", "add the other hosts of the job to hosts.toml")
    );
}

#[test]
fn the_order_of_the_ranks_does_not_matter() {
    let mut log = hanging_job(8);
    add_log(&mut log, &["[rank3]: CUDA out of memory. Tried to allocate 1 GiB", "[rank5]: NCCL WARN timeout"]);
    let mut odd = hanging_job(8);
    sleeps(&mut odd.ranks[4], &["load_batch@data.py:211", "main@train.py:119"]);
    let mut flat = with_counts(hanging_job(8), &[("AllReduce", &SAME)]);
    add_flat_links(&mut flat);
    for job in [laggard(), log, odd, flat, without_stacks(laggard())] {
        let expected = judge(&job);
        let mut shuffled = job;
        for step in 0..8 {
            shuffled.ranks.rotate_left(3);
            shuffled.ranks.swap(step % 8, (step * 5 + 1) % 8);
            assert_eq!(judge(&shuffled), expected);
        }
    }
}
