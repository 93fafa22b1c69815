use super::super::fixtures::{JsonCommunicator, JsonRank, json, rank};
use super::*;
use crate::wire::SafeText;
use crate::wire::examination::{OperationCounts, RanksAtCount, RasReport};

fn read(text: &str) -> Option<Reduced> {
    let mut reader = JsonReader::new(1_650_386);
    reader.push(text.as_bytes());
    reader.finish()
}

fn report(communicators: &[JsonCommunicator]) -> RasReport {
    read(&json("2.30.7", communicators)).expect("a report").report
}

/// A communicator whose ranks have launched these numbers of AllReduce.
fn communicator(counts: &[u64]) -> JsonCommunicator {
    let ranks = (0..).zip(counts).map(|(number, count)| rank(number, [3, 0, 0, 0, *count])).collect();
    JsonCommunicator { ranks, missing: Vec::new() }
}

fn operation<'a>(communicator: &'a Communicator, name: &str) -> &'a OperationCounts {
    communicator.operations.iter().find(|operation| operation.name == name).expect(name)
}

fn counts(operation: &OperationCounts) -> Vec<(u64, u32)> {
    operation.counts.iter().map(|entry| (entry.count, entry.ranks)).collect()
}

fn named(operation: &OperationCounts) -> Vec<u32> {
    operation.named.iter().map(|rank| rank.rank).collect()
}

/// The sample in the user guide of NCCL (troubleshooting/ras), closed up.
const GUIDE: &str = r#"{"nccl_version":"2.29.1","cuda_runtime_version":13000,"cuda_driver_version":13000,
"timestamp":"2025-12-19 13:06:53","communicators_count":1,"communicators":[{"hash":"0xae94423cfbb2ef4a",
"secondary_hash":"0xb7e7187447156001:0xb8242ed28a71381e","size":2,"ranks_count":1,"missing_ranks_count":1,
"ranks":[{"rank":0,"host":"172.16.64.245","pid":1524344,"cuda_dev":0,"nvml_dev":0,
"status":{"init_state":0,"async_error":0,"finalize_called":false,"destroy_flag":false,"abort_flag":false},
"collective_counts":{"Broadcast":0,"Reduce":0,"AllGather":0,"ReduceScatter":0,"AllReduce":0}}],
"missing_ranks":[{"rank":1,"host":"172.16.64.245","pid":1524345,"cuda_dev":1,"nvml_dev":1,
"status":{"unresponsive":true,"considered_dead":false}}]}],"ras":{"collection_time_sec":0.000,"timeouts_count":0}}"#;

#[test]
fn the_sample_of_the_user_guide_is_read_in_any_layout() {
    let reduced = read(GUIDE).expect("a report");
    assert!(!reduced.has_process);
    let report = reduced.report;
    assert_eq!(report.nccl_version.as_deref(), Some("2.29.1"));
    assert!(report.is_json);
    assert_eq!((report.timeouts, report.communicators.len(), report.communicators_left_out), (0, 1, 0));
    let communicator = &report.communicators[0];
    assert_eq!(communicator.hash, "0xae94423cfbb2ef4a");
    assert_eq!(communicator.secondary_hash, "0xb7e7187447156001:0xb8242ed28a71381e");
    assert_eq!((communicator.size, communicator.ranks), (2, 1));
    assert_eq!(communicator.operations.len(), 5);
    assert_eq!(
        communicator.missing_ranks,
        [NamedRank {
            rank: 1,
            host: Some("172.16.64.245".into()),
            pid: Some(1_524_345),
            gpu: Some(1),
            absence: Some(RankAbsence::Unresponsive),
            ..NamedRank::default()
        }]
    );
    let spaced = GUIDE.replace(':', " : ").replace(',', "\r\n\t,").replace('{', "{\n\n");
    // Times and hashes contain colons too.
    let spaced = spaced.replace("13 : 06 : 53", "13:06:53").replace("6001 : 0x", "6001:0x");
    assert_eq!(read(&spaced).expect("a report").report, report);
}

#[test]
fn equal_counts_name_no_rank() {
    let report = report(&[communicator(&[64; 8])]);
    let communicator = &report.communicators[0];
    assert_eq!((communicator.size, communicator.ranks, communicator.initialising), (8, 8, 0));
    let all_reduce = operation(communicator, "AllReduce");
    assert_eq!(all_reduce.counts, [RanksAtCount { count: 64, ranks: 8 }]);
    assert_eq!((all_reduce.named.len(), all_reduce.left_out, all_reduce.named_left_out), (0, 0, 0));
    assert!(all_reduce.fingerprint.is_some());
}

#[test]
fn the_ranks_behind_are_named_with_host_and_pid() {
    let report = report(&[communicator(&[64, 64, 64, 64, 64, 64, 64, 60])]);
    let all_reduce = operation(&report.communicators[0], "AllReduce");
    assert_eq!(counts(all_reduce), [(64, 7), (60, 1)]);
    let expected = NamedRank {
        rank: 7,
        host: Some("172.16.64.210".into()),
        pid: Some(1_650_386),
        gpu: Some(7),
        count: Some(60),
        ..NamedRank::default()
    };
    assert_eq!(all_reduce.named, [expected]);
    assert_eq!(counts(operation(&report.communicators[0], "Broadcast")), [(3, 8)]);

    let four = self::report(&[communicator(&[64, 60, 64, 60, 64, 60, 64, 60])]);
    assert_eq!(named(operation(&four.communicators[0], "AllReduce")), [1, 3, 5, 7]);
}

#[test]
fn a_minority_ahead_leaves_the_majority_named_as_far_as_there_is_room() {
    // nccl#1911: 30 ranks at 640, 2 at 641.
    let mut ahead = [640; 32];
    ahead[3] = 641;
    ahead[17] = 641;
    let report = report(&[communicator(&ahead)]);
    let all_reduce = operation(&report.communicators[0], "AllReduce");
    assert_eq!(counts(all_reduce), [(641, 2), (640, 30)]);
    assert_eq!((all_reduce.named.len(), all_reduce.named_left_out), (16, 14));
    assert!(all_reduce.named.iter().all(|rank| rank.count == Some(640)));
}

#[test]
fn two_operations_that_differ_name_both_sides() {
    let mut ranks: Vec<JsonRank> = (0..4).map(|number| rank(number, [0, 0, 8, 0, 64])).collect();
    ranks[1].counts = [0, 0, 9, 0, 63];
    let report = report(&[JsonCommunicator { ranks, missing: Vec::new() }]);
    let communicator = &report.communicators[0];
    assert_eq!(named(operation(communicator, "AllGather")), [0, 2, 3]);
    assert_eq!(named(operation(communicator, "AllReduce")), [1]);
}

#[test]
fn a_fingerprint_changes_when_a_rank_moves() {
    let fingerprint = |counts: &[u64]| {
        operation(&report(&[communicator(counts)]).communicators[0], "AllReduce").fingerprint.expect("a fingerprint")
    };
    assert_eq!(fingerprint(&[64, 60]), fingerprint(&[64, 60]));
    assert_ne!(fingerprint(&[64, 60]), fingerprint(&[60, 64]));
    assert_ne!(fingerprint(&[64, 60]), fingerprint(&[64, 61]));
}

#[test]
fn missing_ranks_say_why_in_every_version() {
    let missing = vec![(1, true, false), (2, true, true), (3, false, false)];
    let communicator = JsonCommunicator { ranks: vec![rank(0, [1; 5])], missing };
    // 2.28.7 and 2.28.9 omit a comma here.
    for version in ["2.28.9", "2.29.7"] {
        let report = read(&json(version, std::slice::from_ref(&communicator))).expect(version).report;
        let absences: Vec<Option<RankAbsence>> =
            report.communicators[0].missing_ranks.iter().map(|rank| rank.absence).collect();
        assert_eq!(absences, [RankAbsence::Unresponsive, RankAbsence::Dead, RankAbsence::Left].map(Some));
        assert_eq!((report.timeouts, report.communicators[0].ranks, report.communicators[0].size), (1, 1, 4));
    }
}

#[test]
fn the_state_of_ranks_is_counted_and_errors_are_named() {
    let mut ranks: Vec<JsonRank> = (0..6).map(|number| rank(number, [0; 5])).collect();
    ranks[1].init_state = 7;
    ranks[2].is_finalising = true;
    ranks[3].async_error = 6;
    ranks[4].init_state = 3;
    ranks[5].async_error = 7;
    let report = report(&[JsonCommunicator { ranks, missing: Vec::new() }]);
    let communicator = &report.communicators[0];
    assert_eq!((communicator.initialising, communicator.finalising), (1, 1));
    let errors: Vec<(u32, Option<i64>)> =
        communicator.failed_ranks.iter().map(|rank| (rank.rank, rank.async_error)).collect();
    assert_eq!(errors, [(3, Some(6)), (4, Some(3))]);
}

#[test]
fn an_unknown_process_has_no_host_and_no_pid() {
    let unknown = JsonRank { host: "unknown", pid: -1, ..rank(0, [1; 5]) };
    let report = report(&[JsonCommunicator { ranks: vec![unknown, rank(1, [2; 5])], missing: Vec::new() }]);
    let rank = &operation(&report.communicators[0], "Reduce").named[0];
    assert_eq!((rank.rank, &rank.host, rank.pid), (0, &None, None));
}

#[test]
fn a_list_without_communicators_is_a_report() {
    let reduced = read(&json("2.30.7", &[])).expect("a report");
    assert!(!reduced.has_process);
    assert_eq!(reduced.report.communicators, []);
    assert_eq!(reduced.report.nccl_version.as_deref(), Some("2.30.7"));
}

#[test]
fn the_wanted_process_is_found_among_ranks_and_missing_ranks() {
    let with = json("2.30.7", &[communicator(&[1; 8])]);
    let without = json("2.30.7", &[communicator(&[1; 7])]);
    let missing = JsonCommunicator { ranks: vec![rank(0, [1; 5])], missing: vec![(7, true, true)] };
    assert!(read(&with).expect("a report").has_process);
    assert!(!read(&without).expect("a report").has_process);
    assert!(read(&json("2.30.7", &[missing])).expect("a report").has_process);
}

#[test]
fn an_incomplete_or_broken_report_is_none() {
    let whole = json("2.30.7", &[communicator(&[64, 60])]);
    let end = whole.trim_end().len();
    for length in 0..end {
        assert!(read(&whole[..length]).is_none(), "{}", &whole[..length]);
    }
    assert!(read(&whole[..end]).is_some());
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(16), "]".repeat(16));
    let extra = format!("{whole}x");
    for broken in [
        "",
        "[]",
        "1",
        "\"a\"",
        "{]",
        "{\"a\"}",
        "{1}",
        "{{}}",
        "{\"a\" \"b\" \"c\"}",
        "{} {}",
        "{\"a\":[\"b\":}",
        "<html>",
        &deep,
        &extra,
    ] {
        assert!(read(broken).is_none(), "{broken}");
    }
    for accepted in
        ["{}", "{\"a\":null,\"b\":[1,[2],{\"c\":\"\\\"}\"}]}", "{\"communicators\":{\"ranks\":[]},\"ras\":[]}"]
    {
        assert!(read(accepted).is_some(), "{accepted}");
    }
}

#[test]
fn texts_are_safe_and_short() {
    let report = json("2.30.7\u{1b}[2J", &[communicator(&[64, 60])])
        .replace("172.16.64.210", &"h\u{1b}".repeat(1000))
        .replace("AllReduce", &"AllReduce".repeat(100));
    let report = read(&report).expect("a report").report;
    let name = &report.communicators[0].operations[4].name;
    assert_eq!(name.len(), MAX_TEXT_BYTES);
    let host = report.communicators[0].operations[4].named[0].host.clone().expect("a host");
    assert!(host.starts_with("h\u{241b}h") && host.len() <= 2 * MAX_TEXT_BYTES, "{host}");
    assert_eq!(report.nccl_version, Some(SafeText::new("2.30.7\u{1b}[2J")));
}

#[test]
fn a_large_report_is_reduced_to_a_small_one() {
    // 512 ranks in 64 communicators are 18 MB; every rank is at another count.
    let one = communicator(&(0..512).collect::<Vec<u64>>());
    let text = json("2.30.7", &[one]);
    let (head, tail) = (text.find("    {\n      \"hash\"").expect("one"), text.find("\n  ],\n  \"ras\"").expect("end"));
    let mut reader = JsonReader::new(1);
    reader.push(&text.as_bytes()[..head]);
    for _ in 0..64 {
        reader.push(&text.as_bytes()[head..tail]);
        assert!(reader.text.len() <= MAX_TEXT_BYTES && reader.key.len() <= MAX_TEXT_BYTES);
    }
    reader.push(&text.as_bytes()[tail..]);
    let report = reader.finish().expect("a report").report;
    assert_eq!(report.communicators.len(), 64);
    let all_reduce = operation(&report.communicators[0], "AllReduce");
    assert_eq!((all_reduce.counts.len(), all_reduce.left_out), (8, 504));
    assert_eq!(named(all_reduce), [0]);
    let bytes = serde_json::to_string(&report).expect("encodes").len();
    assert!(bytes < 64 * 1024, "{bytes} bytes");
}
