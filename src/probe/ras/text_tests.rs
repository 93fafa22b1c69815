use super::super::fixtures::{TABLE, text_head, text_healthy, text_incomplete, text_mismatch};
use super::*;
use crate::wire::examination::{RanksAtCount, RasReport};

fn read(text: &str) -> Option<Reduced> {
    let mut reader = TextReader::new(1_650_386);
    reader.push(text.as_bytes());
    reader.finish()
}

fn report(text: &str) -> RasReport {
    read(text).expect("a report").report
}

/// A report with these rows and warnings.
fn with_warnings(rows: &str, warnings: &str) -> RasReport {
    let head = text_head("2.28.3", 4);
    report(&format!("{head}{TABLE}{rows}\nErrors\n======\n\nWarnings\n========\n\n{warnings}"))
}

fn ranks(list: &[NamedRank]) -> Vec<u32> {
    list.iter().map(|rank| rank.rank).collect()
}

#[test]
fn a_healthy_job_is_one_entry_for_each_group() {
    for version in ["2.24.3", "2.26.2", "2.28.3", "2.30.7"] {
        let reduced = read(&text_healthy(version)).expect("a report");
        assert!(!reduced.has_process);
        assert_eq!(reduced.processes_per_host, Some(4));
        let report = reduced.report;
        assert_eq!(report.nccl_version.as_deref(), Some(version));
        assert!(!report.is_json);
        let sizes: Vec<(u32, u32)> = report.communicators.iter().map(|one| (one.size, one.ranks)).collect();
        assert_eq!(sizes, [(8, 8), (1, 1)]);
        // The second group has eight communicators.
        assert_eq!(report.communicators_left_out, 7);
        assert!(report.communicators.iter().all(|one| one.hash.is_empty() && one.operations.is_empty()));
    }
}

#[test]
fn the_rank_behind_is_named() {
    let reduced = read(&text_mismatch("2.28.3")).expect("a report");
    assert!(reduced.has_process);
    let communicator = &reduced.report.communicators[0];
    assert_eq!((&*communicator.hash, communicator.size, communicator.ranks), ("78db921d1c117b4a", 8, 8));
    let operation = &communicator.operations[0];
    assert_eq!(operation.name, "AllReduce");
    assert_eq!(operation.counts, [RanksAtCount { count: 64, ranks: 7 }, RanksAtCount { count: 60, ranks: 1 }]);
    assert_eq!(operation.fingerprint, None);
    let expected = NamedRank {
        rank: 7,
        host: Some("172.16.64.212".into()),
        pid: Some(1_650_386),
        gpu: Some(3),
        count: Some(60),
        ..NamedRank::default()
    };
    assert_eq!(operation.named, [expected]);
    assert_eq!((reduced.report.communicators.len(), reduced.report.communicators_left_out), (1, 0));
}

#[test]
fn several_ranks_and_operations_that_differ_are_named() {
    // The values of the user guide of NCCL, and a second operation that nobody but rank 3 has launched.
    let report = with_warnings(
        "    0         1         4         8        32        32   RUNNING  MISMATCH\n",
        "#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  28 ranks have launched up to operation 6650
  4 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 2 -- GPU 2 (NVML 6) managed by process 483074 on node 172.16.64.210
  Rank 3 -- GPU 3 managed by process 483075 on node 172.16.64.210
  Rank 4 -- [process information not found]

  Communicator ranks have different AllGather operation counts
  31 ranks have not launched any operations
  Rank 3 has launched up to operation 2 -- GPU 3 managed by process 483075 on node 172.16.64.210

",
    );
    let operations = &report.communicators[0].operations;
    assert_eq!(operations[0].counts, [RanksAtCount { count: 6650, ranks: 28 }, RanksAtCount { count: 6649, ranks: 4 }]);
    assert_eq!(ranks(&operations[0].named), [0, 2, 3, 4]);
    assert!(operations[0].named.iter().all(|rank| rank.count == Some(6649)));
    assert_eq!((operations[0].named[1].gpu, operations[0].named[3].pid), (Some(6), None));
    // NCCL names the minority, which is ahead.
    assert_eq!(operations[1].counts, [RanksAtCount { count: 2, ranks: 1 }, RanksAtCount { count: 0, ranks: 31 }]);
    assert_eq!((operations[1].named[0].rank, operations[1].named[0].count), (3, Some(2)));
}

#[test]
fn the_first_versions_count_all_operations_together() {
    // 2.24.3 and 2.25.1: "different collective operation counts".
    let report = with_warnings(
        "    0         1         2         4         8         8   RUNNING  MISMATCH\n",
        "#0-0 (78db921d1c117b4a) MISMATCH
  Communicator ranks have different collective operation counts
  7 ranks have launched up to operation 64
  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1650386 on node 172.16.64.212

",
    );
    assert_eq!(report.communicators[0].operations[0].name, "collective");
    assert_eq!(ranks(&report.communicators[0].operations[0].named), [7]);
}

#[test]
fn stopped_and_dead_processes_are_missing_ranks() {
    let report = report(&text_incomplete("2.28.3"));
    assert_eq!(report.timeouts, 2);
    let communicator = &report.communicators[0];
    assert_eq!((communicator.size, communicator.ranks, communicator.missing_left_out), (32, 30, 0));
    let missing: Vec<_> =
        communicator.missing_ranks.iter().map(|rank| (rank.rank, rank.pid, rank.gpu, rank.absence)).collect();
    assert_eq!(
        missing,
        [
            (21, Some(3_487_984), Some(5), Some(RankAbsence::Unresponsive)),
            (22, Some(3_487_985), Some(2), Some(RankAbsence::Dead)),
        ]
    );
}

#[test]
fn the_first_versions_name_missing_ranks_by_number_only() {
    // 2.24.3: "The missing ranks: ...".
    let text = text_incomplete("2.24.3")
        .replace(
            "  Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213\n",
            "  The missing ranks: 21,22\n",
        )
        .replace("  Rank 22 -- GPU 6 (NVML 2) managed by process 3487985 on node 172.16.64.213\n", "");
    let report = report(&text);
    assert_eq!(ranks(&report.communicators[0].missing_ranks), [21, 22]);
    assert!(report.communicators[0].missing_ranks.iter().all(|rank| rank.absence == Some(RankAbsence::Unknown)));
}

#[test]
fn ranks_that_start_leave_or_have_left_are_counted() {
    // The user guide of NCCL, in the words of 2.26 and newer.
    let report = with_warnings(
        "    0         1         4       1-2        32        32  FINALIZE  MISMATCH
    1         7         4         1         4        28   RUNNING      OK
    2         1         4         1         4         4      INIT      OK
",
        "#0-0 (9e17999afaa87dbb) MISMATCH
  Communicator ranks have different status
  28 ranks have status NOCOMM
  2 ranks have status RUNNING
  Rank 0 -- GPU 0 managed by process 507285 on node 172.16.64.210
  Rank 8 -- GPU 0 managed by process 1598388 on node 172.16.64.212
  Rank 4 has status FINALIZE -- GPU 4 managed by process 507289 on node 172.16.64.210
  Rank 20 has status NOCOMM -- GPU 4 managed by process 3500075 on node 172.16.64.213
",
    );
    let [ended, starting, running] = &report.communicators[..] else { panic!("{report:?}") };
    assert_eq!((ended.size, ended.ranks, ended.finalising, ended.missing_left_out), (32, 3, 1, 28));
    assert_eq!(ranks(&ended.missing_ranks), [20]);
    assert_eq!(ended.missing_ranks[0].absence, Some(RankAbsence::Left));
    assert_eq!((starting.size, starting.initialising), (4, 4));
    assert_eq!((running.size, running.initialising, running.finalising), (4, 0, 0));
    assert_eq!(report.communicators_left_out, 6);
}

#[test]
fn errors_are_named_by_number() {
    let head = text_head("2.28.3", 4);
    let rows = "    0         1         2         4         8         8   RUNNING   ERROR\n";
    let report = report(&format!(
        "{head}{TABLE}{rows}\nErrors\n======\n
#0-0 (78db921d1c117b4a) ERROR
  Initialization error on 1 rank
  Rank 2 reported Internal error -- GPU 2 managed by process 483074 on node 172.16.64.210
  Asynchronous errors on 3 ranks
  2 ranks reported Remote process error
  Rank 4 -- GPU 4 managed by process 507289 on node 172.16.64.210
  Rank 5 -- GPU 5 managed by process 507290 on node 172.16.64.210
  Rank 2 reported System error -- GPU 2 managed by process 483074 on node 172.16.64.210

Warnings\n========\n\n"
    ));
    let communicator = &report.communicators[0];
    let errors: Vec<_> = communicator.failed_ranks.iter().map(|rank| (rank.rank, rank.async_error)).collect();
    assert_eq!(errors, [(2, Some(3)), (4, Some(6)), (5, Some(6))]);
    assert_eq!(communicator.failed_left_out, 0);
}

#[test]
fn a_communicator_with_several_faults_is_one_entry() {
    let head = text_head("2.28.3", 4);
    let rows = "    0         2         2       3-4         8         8   RUNNING  INCOMPLETE,MISMATCH\n";
    let report = report(&format!(
        "{head}{TABLE}{rows}\nErrors\n======\n
#0-0 (78db921d1c117b4a) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 2 -- GPU 2 managed by process 483074 on node 172.16.64.210

#0-1 (78db921d1c117b4b) INCOMPLETE
  Missing communicator data from 20 ranks

Warnings\n========\n
#0-0 (78db921d1c117b4a) MISMATCH
  Communicator ranks have different Reduce operation counts
  6 ranks have launched up to operation 3
  Rank 1 has not launched any operations -- GPU 1 managed by process 483073 on node 172.16.64.210

"
    ));
    let [both, other] = &report.communicators[..] else { panic!("{report:?}") };
    assert_eq!((&*both.hash, both.size, both.ranks), ("78db921d1c117b4a", 8, 7));
    assert_eq!((ranks(&both.missing_ranks), ranks(&both.operations[0].named)), (vec![2], vec![1]));
    assert_eq!((other.missing_ranks.len(), other.missing_left_out, other.ranks), (0, 20, 0));
}

#[test]
fn a_job_without_communicators_is_an_empty_report() {
    let head = text_head("2.28.3", 4);
    let report = report(&format!("{head}No communicator data collected!\n\nErrors\n======\n\nWarnings\n========\n\n"));
    assert_eq!(report.communicators, []);
    assert_eq!(report.nccl_version.as_deref(), Some("2.28.3"));
}

#[test]
fn a_report_that_ends_early_is_none() {
    let text = text_mismatch("2.28.3");
    let last_section = text.find("Warnings\n").expect("the section") + "Warnings\n".len();
    for length in 0..last_section {
        assert!(read(&text[..length]).is_none(), "{}", &text[..length]);
    }
    assert!(read(&text[..text.len() - 3]).is_none());
    assert!(read(&text).is_some());
}

#[test]
fn hosts_with_unequal_numbers_of_processes_are_not_taken_for_equal() {
    // `rasClientRunInit`, consistentNPeersGlobal false.
    let text = text_mismatch("2.28.3").replace(
        "      2          4            1          8        8\n",
        "      1          8            1\n      1          4            1\n\n  Nodes  Processes         GPUs\n(total)    \
         (total)      (total)\n      2         12           12\n",
    );
    assert!(text.contains("12           12"));
    assert_eq!(read(&text).expect("a report").processes_per_host, None);
}

#[test]
fn long_lines_and_many_entries_are_cut() {
    let row = |group: u32| format!("{group:5}         1         2         4         8         8   RUNNING  MISMATCH\n");
    let rank = |rank: u32| {
        format!("  Rank {rank} has launched up to operation {rank} -- GPU 0 managed by process 1 on node n\n")
    };
    let ranks: String = (0..40).map(rank).collect();
    let communicator = |group: u32| {
        let counts = "  Communicator ranks have different AllReduce operation counts\n";
        format!("#{group}-0 ({group:016x}) MISMATCH\n{counts}{ranks}")
    };
    let (rows, communicators): (String, String) = ((0..1000).map(row).collect(), (0..1000).map(communicator).collect());
    let long = "x".repeat(1 << 20);
    let text = format!("{}{TABLE}{rows}{long}\nWarnings\n{communicators}", text_head("2.28.3", 4));
    let mut reader = TextReader::new(1);
    reader.push(text.as_bytes());
    assert!(reader.line.capacity() <= 2 * MAX_LINE_BYTES);
    assert_eq!((reader.groups.len(), reader.communicators.len()), (MAX_GROUPS, MAX_COMMUNICATORS));
    let report = reader.finish().expect("a report").report;
    assert_eq!((report.communicators.len(), report.communicators_left_out), (64, 936));
    assert!(serde_json::to_string(&report).expect("encodes").len() < 64 * 1024);
}
