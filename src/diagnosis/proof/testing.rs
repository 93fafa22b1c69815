//! Jobs for tests: ranks that were examined twice, 60 s apart, and reports of NCCL RAS.

use super::evidence::{JobEvidence, LogTail, RankEvidence, RankGpu, RankReading};
use crate::fleet::{HostId, Moment, ProcessKey};
use crate::wire::{
    Communicator, Examination, Frame, LinkReading, NamedRank, OperationCounts, ProcessExamination, ProcessState,
    RanksAtCount, RasReport, SafeText, StackDump, ThreadReading, ThreadStack,
};
use std::time::Duration;

pub(super) const WAITS: &str = "all_reduce@torch/distributed/distributed_c10d.py:2806";

/// The moment of the reading with this index: one a minute.
pub(super) fn at(index: u32) -> Moment {
    Moment::new(
        Duration::from_secs(1000 + 60 * u64::from(index)),
        Duration::from_secs(1_000_000 + 60 * u64::from(index)),
    )
}

/// A job of `size` ranks, four on a host, of which all wait in an all-reduce and spin on their GPU. No report of RAS.
pub(super) fn hanging_job(size: u32) -> JobEvidence {
    JobEvidence {
        name: "job 3385".into(),
        ranks: (0..size).map(|rank| waiting_rank(rank, size)).collect(),
        ..JobEvidence::default()
    }
}

/// A rank that waits in an all-reduce and spins on its GPU.
pub(super) fn waiting_rank(rank: u32, size: u32) -> RankEvidence {
    let host = rank / 4;
    let reading = |index| RankReading {
        at: at(index),
        examination: Examination {
            process: Some(Box::new(ProcessExamination {
                ns_pid: Some(1000 + rank),
                seconds: 1.0,
                main_thread: Some(ThreadReading {
                    state: Some(ProcessState::Running),
                    user_ms: Some(1000),
                    system_ms: Some(0),
                    ..ThreadReading::default()
                }),
                cpu_ms: Some(1010),
                written_bytes: Some(0),
                variables: vec![
                    SafeText::from(format!("RANK={rank}")),
                    SafeText::from(format!("WORLD_SIZE={size}")),
                    "MASTER_ADDR=10.0.0.1".into(),
                ],
                nccl_version: Some("2.29.7".into()),
                ..ProcessExamination::default()
            })),
            stacks: Some(Box::new(stack(&[WAITS, "step@train.py:88", "main@train.py:120"]))),
            ..Examination::default()
        },
        cpu_percent: Some(101.0),
        descendants_cpu_percent: Some(0.0),
        write_bytes: Some(4096),
        read_bytes: Some(1 << 30),
        log_age: None,
    };
    RankEvidence {
        host: HostId(host),
        host_name: SafeText::from(format!("node{}", host + 1)),
        host_addresses: vec![SafeText::from(format!("10.0.0.{}", host + 1))],
        key: ProcessKey { boot_id: Some("boot".into()), pid: 4000 + rank, start_ticks: Some(7) },
        pid: 4000 + rank,
        is_mine: true,
        user: Some("ann".into()),
        gpus: vec![spinning_gpu(rank % 4)],
        readings: vec![reading(0), reading(1)],
        log: None,
        log_refusal: SafeText::default(),
    }
}

/// An H100 in which a kernel of NCCL waits.
pub(super) fn spinning_gpu(index: u32) -> RankGpu {
    RankGpu {
        index,
        utilization_percent: Some(100),
        power_watts: Some(104.0),
        power_limit_watts: Some(700.0),
        tensor_percent: Some(0.0),
        dram_percent: Some(0.2),
        nvlink_bytes_per_second: Some(0.0),
        ..RankGpu::default()
    }
}

/// A GPU with only utilization, power and its limit.
pub(super) fn gpu(utilization: u8, watts: f32, limit: f32) -> RankGpu {
    RankGpu {
        utilization_percent: Some(utilization),
        power_watts: Some(watts),
        power_limit_watts: Some(limit).filter(|limit| *limit > 0.0),
        ..RankGpu::default()
    }
}

/// A stack of frames `function@file:line`, innermost first.
pub(super) fn stack(frames: &[&str]) -> StackDump {
    let frame = |text: &&str| {
        let (function, place) = text.split_once('@').expect("a function");
        let (file, line) = place.split_once(':').expect("a line");
        Frame { function: function.into(), file: file.into(), line: line.parse().ok() }
    };
    let thread = ThreadStack { frames: frames.iter().map(frame).collect(), ..ThreadStack::default() };
    StackDump { tool: "py-spy".into(), threads: vec![thread], threads_left_out: 0 }
}

/// Makes a rank sleep on its host with an idle GPU, in this stack both times.
pub(super) fn sleeps(rank: &mut RankEvidence, frames: &[&str]) {
    for gpu in &mut rank.gpus {
        (gpu.utilization_percent, gpu.power_watts) = (Some(0), Some(70.0));
    }
    for reading in &mut rank.readings {
        reading.cpu_percent = Some(0.0);
        reading.examination.stacks = Some(Box::new(stack(frames)));
        let process = reading.examination.process.as_mut().expect("a process");
        process.cpu_ms = Some(0);
        process.main_thread = Some(ThreadReading {
            state: Some(ProcessState::Sleeping),
            wait_channel: Some("hrtimer_nanosleep".into()),
            user_ms: Some(0),
            system_ms: Some(0),
            ..ThreadReading::default()
        });
    }
}

/// A communicator of all ranks with these counts for each rank.
pub(super) fn communicator(operations: &[(&str, &[u64])]) -> Communicator {
    let size = operations.first().map_or(0, |(_, counts)| counts.len()) as u32;
    let operation = |(name, counts): &(&str, &[u64])| {
        let mut values: Vec<u64> = counts.to_vec();
        values.sort_unstable_by(|a, b| b.cmp(a));
        values.dedup();
        let ranks = |count: u64| counts.iter().filter(|one| **one == count).count() as u32;
        let lowest = values.last().copied().unwrap_or(0);
        let behind = |(rank, count): (usize, &u64)| named(rank as u32, *count);
        OperationCounts {
            name: (*name).into(),
            counts: values.iter().map(|count| RanksAtCount { count: *count, ranks: ranks(*count) }).collect(),
            fingerprint: Some(counts.iter().enumerate().fold(7, |hash: u64, (rank, count)| {
                hash.wrapping_mul(0x100_0000_01B3).wrapping_add(rank as u64).wrapping_mul(31).wrapping_add(*count)
            })),
            named: if values.len() > 1 {
                counts.iter().enumerate().filter(|(_, count)| **count == lowest).map(behind).collect()
            } else {
                Vec::new()
            },
            ..OperationCounts::default()
        }
    };
    Communicator {
        hash: "0xae94423cfbb2ef4a".into(),
        secondary_hash: "0x1:0x2".into(),
        size,
        ranks: size,
        operations: operations.iter().map(operation).collect(),
        ..Communicator::default()
    }
}

/// A rank of [`hanging_job`] as RAS names it.
pub(super) fn named(rank: u32, count: u64) -> NamedRank {
    NamedRank {
        rank,
        host: Some(SafeText::from(format!("10.0.0.{}", rank / 4 + 1))),
        pid: Some(1000 + rank),
        gpu: Some(rank % 4),
        count: Some(count),
        ..NamedRank::default()
    }
}

/// Gives the first rank these two reports.
pub(super) fn add_reports(job: &mut JobEvidence, reports: [Communicator; 2]) {
    for (reading, communicator) in job.ranks[0].readings.iter_mut().zip(reports) {
        let report = RasReport { is_json: true, communicators: vec![communicator], ..RasReport::default() };
        reading.examination.ras = Some(Box::new(report));
    }
}

/// The job with the same report twice.
pub(super) fn with_counts(mut job: JobEvidence, operations: &[(&str, &[u64])]) -> JobEvidence {
    add_reports(&mut job, [communicator(operations), communicator(operations)]);
    job
}

/// Eight ranks of which rank 7 is four operations behind and sleeps in a data loader.
pub(super) fn laggard() -> JobEvidence {
    let mut job = with_counts(hanging_job(8), &[("AllReduce", &[64, 64, 64, 64, 64, 64, 64, 60])]);
    sleeps(&mut job.ranks[7], &["load_batch@/home/ann/data.py:211", "main@train.py:119"]);
    job
}

/// Gives the first rank of each host a port without traffic.
pub(super) fn add_flat_links(job: &mut JobEvidence) {
    for rank in job.ranks.iter_mut().step_by(4) {
        for reading in &mut rank.readings {
            reading.examination.links = vec![LinkReading {
                device: "mlx5_0".into(),
                port: 1,
                state: Some("ACTIVE".into()),
                seconds: 1.0,
                sent_bytes: Some(0),
                received_bytes: Some(0),
                ..LinkReading::default()
            }];
        }
    }
}

/// Gives every rank the same log, written after the first reading.
pub(super) fn add_log(job: &mut JobEvidence, lines: &[&str]) {
    let lines: Vec<SafeText> = lines.iter().map(|line| SafeText::new(line)).collect();
    for rank in &mut job.ranks {
        let log = LogTail {
            path: "/home/ann/out.log".into(),
            lines: lines.clone(),
            age: Some(Duration::from_secs(10)),
            process_age: None,
        };
        rank.log = Some(log);
    }
}
