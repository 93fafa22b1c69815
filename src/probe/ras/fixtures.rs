//! Reports for the tests. They are written here in the format that the named function of nccl:src/ras/client_support.cc
//! prints; the values come from the user guide of NCCL (troubleshooting/ras) and from reports of users.

use std::fmt::Write;

/// A rank in a JSON report.
#[derive(Debug, Clone)]
pub(super) struct JsonRank {
    pub(super) rank: u32,
    pub(super) host: &'static str,
    pub(super) pid: i64,
    pub(super) init_state: u32,
    pub(super) async_error: u32,
    pub(super) is_finalising: bool,
    /// Of `ncclFuncStr`: Broadcast, Reduce, AllGather, ReduceScatter, AllReduce.
    pub(super) counts: [u64; 5],
}

pub(super) const OPERATIONS: [&str; 5] = ["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"];

/// A rank of the first host, 8 on each, which has launched these numbers of operations.
pub(super) fn rank(rank: u32, counts: [u64; 5]) -> JsonRank {
    let host = if rank < 8 { "172.16.64.210" } else { "172.16.64.212" };
    let pid = i64::from(1_650_379 + rank);
    JsonRank { rank, host, pid, init_state: 0, async_error: 0, is_finalising: false, counts }
}

/// A communicator in a JSON report.
#[derive(Debug, Clone, Default)]
pub(super) struct JsonCommunicator {
    pub(super) ranks: Vec<JsonRank>,
    /// Rank, unresponsive, considered dead.
    pub(super) missing: Vec<(u32, bool, bool)>,
}

/// `rasDumpCommsToJSON`. Before 2.29.2, there is no comma after `nvml_dev` of a missing rank.
pub(super) fn json(version: &str, communicators: &[JsonCommunicator]) -> String {
    let mut text = format!(
        "{{\n  \"nccl_version\": \"{version}\",\n  \"cuda_runtime_version\": 13000,\n  \"cuda_driver_version\": 13000,\n  \
         \"timestamp\": \"2025-12-19 13:06:53\",\n  \"communicators_count\": {},\n  \"communicators\": [\n",
        communicators.len()
    );
    for (index, communicator) in communicators.iter().enumerate() {
        if index > 0 {
            text.push_str(",\n");
        }
        let (ranks, missing) = (communicator.ranks.len(), communicator.missing.len());
        write!(
            text,
            "    {{\n      \"hash\": \"0xae94423cfbb2ef{index:02x}\",\n      \"secondary_hash\": \
             \"0xb7e7187447156001:0xb8242ed28a71381e\",\n      \"size\": {},\n      \"ranks_count\": {ranks},\n      \
             \"missing_ranks_count\": {missing},\n      \"ranks\": [\n",
            ranks + missing
        )
        .unwrap();
        let ranks: Vec<String> = communicator.ranks.iter().map(json_rank).collect();
        let missing: Vec<String> = communicator.missing.iter().map(|missing| json_missing(version, *missing)).collect();
        write!(
            text,
            "{}\n      ],\n      \"missing_ranks\": [\n{}\n      ]\n    }}",
            ranks.join(",\n"),
            missing.join(",\n")
        )
        .unwrap();
    }
    let timeouts = communicators.iter().filter(|communicator| !communicator.missing.is_empty()).count();
    text + &format!(
        "\n  ],\n  \"ras\": {{\n    \"collection_time_sec\": 0.002,\n    \"timeouts_count\": {timeouts}\n  }}\n}}\n"
    )
}

/// `jsonWriteRankData`.
fn json_rank(rank: &JsonRank) -> String {
    let device = rank.rank % 8;
    let counts: Vec<String> =
        OPERATIONS.iter().zip(rank.counts).map(|(name, count)| format!("            \"{name}\": {count}")).collect();
    format!(
        "        {{\n          \"rank\": {},\n          \"host\": \"{}\",\n          \"pid\": {},\n          \
         \"cuda_dev\": {device},\n          \"nvml_dev\": {device},\n          \"status\": {{\n            \
         \"init_state\": {},\n            \"async_error\": {},\n            \"finalize_called\": {},\n            \
         \"destroy_flag\": false,\n            \"abort_flag\": false\n          }},\n          \
         \"collective_counts\": {{\n{}\n          }}\n        }}",
        rank.rank,
        rank.host,
        rank.pid,
        rank.init_state,
        rank.async_error,
        rank.is_finalising,
        counts.join(",\n")
    )
}

/// `jsonWriteMissingRank`.
fn json_missing(version: &str, (number, unresponsive, dead): (u32, bool, bool)) -> String {
    let rank = rank(number, [0; 5]);
    let comma = if version.starts_with("2.28.") { "" } else { "," };
    format!(
        "        {{\n          \"rank\": {number},\n          \"host\": \"{}\",\n          \"pid\": {},\n          \
         \"cuda_dev\": {device},\n          \"nvml_dev\": {device}{comma}\n          \"status\": {{\n            \
         \"unresponsive\": {unresponsive},\n            \"considered_dead\": {dead}\n          }}\n        }}",
        rank.host,
        rank.pid,
        device = number % 8,
    )
}

/// The start of a text report, up to the table. `rasClientRunInit`.
pub(super) fn text_head(version: &str, per_host: u32) -> String {
    format!(
        "NCCL version {version} compiled with CUDA 12.8\nCUDA runtime version 12080, driver version 13000\n\nJob \
         summary\n===========\n\n  Nodes  Processes         GPUs  Processes     GPUs\n(total)   per node  per process    \
         (total)  (total)\n      2  {per_host:9}            1  {:9}  {:7}\n\nCommunicators... (0.002s)\n=============\n\n",
        2 * per_host,
        2 * per_host,
    )
}

/// The heading of the table of groups. `rasClientRunComms`.
pub(super) const TABLE: &str = "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
";

/// A healthy job. `rasClientRunComms`, all versions.
pub(super) fn text_healthy(version: &str) -> String {
    text_head(version, 4)
        + TABLE
        + "    0         1         2         4         8         8   RUNNING      OK
    1         8         1         1         1         8   RUNNING      OK

Errors
======

Warnings
========

"
}

/// A job in which rank 7 is behind. `rasClientRunComms`, 2.26.2 and newer.
pub(super) fn text_mismatch(version: &str) -> String {
    text_head(version, 4)
        + TABLE
        + "    0         1         2         4         8         8   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (78db921d1c117b4a) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 64
  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1650386 on node 172.16.64.212

"
}

/// A job with a process that does not answer, and another that is dead. `rasClientRunComms`, 2.26.2 and newer.
pub(super) fn text_incomplete(version: &str) -> String {
    text_head(version, 16)
        + TABLE
        + "    0         1         4       6-8        32        32   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487985 on node 172.16.64.213 managing GPU 6

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 2 ranks
  Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213
  Rank 22 -- GPU 6 (NVML 2) managed by process 3487985 on node 172.16.64.213

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

"
}
