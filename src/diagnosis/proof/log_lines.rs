//! Recognises lines of a log that say that a job hangs, waits or has ended, and why.
//!
//! The texts are those of libtorch 2.15 (ProcessGroupNCCL.cpp, TraceUtils.h) and older, vLLM, XLA, Ray and the NVIDIA
//! driver.

use crate::wire::SafeText;
use std::time::Duration;

/// The meaning of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LogSign {
    /// PyTorch's watchdog gave up on an operation. The rank that writes this has waited; it need not be the culprit.
    WatchdogTimeout {
        /// The operation and its sequence number: `ALLREDUCE 2398459`.
        operation: SafeText,
        /// How long the operation had run.
        ran_for: Option<Duration>,
    },
    /// The last work of a process group on one rank, written after a timeout.
    WorkStatus {
        /// The process group: `0(default_pg)`. Empty in older versions.
        group: SafeText,
        /// Sequence number of the last work that the rank enqueued.
        last_enqueued: u64,
        /// Sequence number of the last work that ended.
        last_completed: Option<u64>,
    },
    /// PyTorch's own verdict (`TORCH_NCCL_DESYNC_DEBUG=1`): these ranks caused the desynchronisation.
    Desync {
        /// The ranks.
        ranks: Vec<u32>,
        /// The rest of the line about them: `joined but didn't finish collective #730`.
        text: SafeText,
    },
    /// The watchdog thread itself made no progress: a CUDA call or the global interpreter lock hangs.
    WatchdogStuck,
    /// PyTorch ends the process after a failed operation.
    TakenDown,
    /// The inference engine gave up (vLLM).
    EngineDead,
    /// Memory ran out, on the GPU or on the host.
    OutOfMemory,
    /// A process of the job died (Ray).
    ProcessDied,
    /// The driver reports an error of a GPU.
    Xid,
    /// A warning of NCCL, mostly about the network.
    NcclWarning,
    /// Something is waited for. It may as well be compiled or loaded, so this proves nothing.
    Waits,
}

/// A recognised line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundSign {
    /// Its meaning.
    pub sign: LogSign,
    /// The rank in the whole job that wrote it, from a prefix such as `[rank118]:`.
    pub rank: Option<u32>,
    /// The line.
    pub line: SafeText,
}

const DESYNC_HEAD: &str = "ranks that caused the desync are:";

/// Drops the reports of timeouts that an earlier run left in the log: their operations ran for longer than `process_age`. Keeps all if
/// the age is unknown.
pub(super) fn signs_of_this_run(mut signs: Vec<FoundSign>, process_age: Option<Duration>) -> Vec<FoundSign> {
    let is_earlier = |found: &FoundSign| match (&found.sign, process_age) {
        (LogSign::WatchdogTimeout { ran_for: Some(ran), .. }, Some(age)) => *ran > age,
        _ => false,
    };
    let Some(last) = signs.iter().rposition(is_earlier) else { return signs };
    // Everything before the last of these timeouts is from that run, and so are the lines of its report that follow.
    let mut later = signs.split_off(last + 1);
    let mut is_report = true;
    later.retain(|found| {
        is_report &= !matches!(found.sign, LogSign::WatchdogTimeout { .. });
        !is_report || !matches!(found.sign, LogSign::WorkStatus { .. } | LogSign::Desync { .. } | LogSign::TakenDown)
    });
    later
}

/// Finds the lines that say something, in their order.
pub(super) fn find_signs(lines: &[SafeText]) -> Vec<FoundSign> {
    let mut found = Vec::new();
    // The lines after the head of a desync report name its ranks.
    let mut in_desync = false;
    for line in lines {
        let rank = writing_rank(line);
        let mut push = |sign| found.push(FoundSign { sign, rank, line: line.clone() });
        if in_desync {
            if let Some((ranks, text)) = desync_ranks(line) {
                push(LogSign::Desync { ranks, text });
                continue;
            }
            in_desync = false;
        }
        if line.contains(DESYNC_HEAD) {
            in_desync = true;
            continue;
        }
        if let Some(sign) = sign_of(line) {
            push(sign);
        }
        // Some versions write the timeout and the status in one line.
        if let Some(status) = work_status(line) {
            push(status);
        }
    }
    found
}

fn sign_of(line: &str) -> Option<LogSign> {
    let has = |text: &str| line.contains(text);
    if has("Watchdog caught collective operation timeout") {
        let operation = after(line, "OpType=").map(|rest| word(rest).to_owned()).unwrap_or_default();
        let sequence = after(line, "SeqNum=").and_then(number);
        return Some(LogSign::WatchdogTimeout {
            operation: match sequence {
                Some(sequence) if !operation.is_empty() => SafeText::from(format!("{operation} {sequence}")),
                _ => SafeText::from(operation),
            },
            ran_for: after(line, "ran for ")
                .filter(|rest| rest.contains("milliseconds"))
                .and_then(number)
                .map(Duration::from_millis),
        });
    }
    if has("watchdog got stuck for") {
        return Some(LogSign::WatchdogStuck);
    }
    if has("we are taking the entire process down") || has("Some NCCL operations have failed or timed out") {
        return Some(LogSign::TakenDown);
    }
    if has("EngineDeadError") || (has("RPC call to") && has("timed out")) {
        return Some(LogSign::EngineDead);
    }
    if has("CUDA out of memory. Tried to allocate")
        || has("RESOURCE_EXHAUSTED: Out of memory")
        || has("Out of memory: Killed process")
        || has("oom-kill")
    {
        return Some(LogSign::OutOfMemory);
    }
    if has("The actor died unexpectedly") {
        return Some(LogSign::ProcessDied);
    }
    if has("NVRM: Xid") {
        return Some(LogSign::Xid);
    }
    if has("NCCL WARN") {
        return Some(LogSign::NcclWarning);
    }
    if has("No available shared memory broadcast block found")
        || (has("This thread has been waiting for") && has("may be stuck"))
    {
        return Some(LogSign::Waits);
    }
    None
}

/// `last enqueued work: 10, last completed work: 7`, in older versions `last enqueued NCCL work: 10, ...`.
fn work_status(line: &str) -> Option<LogSign> {
    let value = |name: &str| {
        after(line, &format!("last {name} work: "))
            .or_else(|| after(line, &format!("last {name} NCCL work: ")))
            .and_then(number)
    };
    let group = after(line, "PG GUID ").map(word).unwrap_or_default();
    Some(LogSign::WorkStatus {
        group: SafeText::new(group),
        last_enqueued: value("enqueued")?,
        last_completed: value("completed"),
    })
}

/// `[0, 1] joined but didn't finish collective #730 (count from 1)`
fn desync_ranks(line: &str) -> Option<(Vec<u32>, SafeText)> {
    let end = line.find("] joined but didn't finish").or_else(|| line.find("] finished collective"))?;
    let start = line[..end].rfind('[')?;
    let ranks: Vec<u32> = line[start + 1..end].split(',').filter_map(|rank| rank.trim().parse().ok()).collect();
    let text = line[end + 1..].trim();
    let text = text.strip_suffix("(count from 1)").unwrap_or(text).trim_end();
    (!ranks.is_empty()).then(|| (ranks, SafeText::new(text)))
}

/// The rank in the prefix of a line: `[rank118]:`, of PyTorch's logger, or `[Rank 118]`, of older versions. `Rank 1]` after
/// the name of a process group is a rank in that group, so it is used for the default group only.
fn writing_rank(line: &str) -> Option<u32> {
    let of_logger = after(line, "[rank").and_then(number);
    let of_message = || after(line, "[Rank ").and_then(number);
    let of_group = || after(line, "default_pg) Rank ").and_then(number);
    of_logger.or_else(of_message).or_else(of_group).and_then(|rank| u32::try_from(rank).ok())
}

/// Whether the last lines only repeat a message about waiting: the last line is such a message, or it is equal to the one
/// before except for a time at its beginning.
pub(super) fn only_repeats(lines: &[SafeText]) -> bool {
    let mut last = lines.iter().rev().filter(|line| !line.trim().is_empty());
    let Some(line) = last.next() else { return false };
    if sign_of(line).is_some() || work_status(line).is_some() {
        return true;
    }
    last.next().is_some_and(|before| without_time(before) == without_time(line))
}

/// The line without words of digits and separators at its beginning, which are a date, a time or a counter of a logger.
fn without_time(line: &str) -> &str {
    let mut rest = line.trim();
    while let Some((first, after)) = rest.split_once(' ') {
        let is_time = first.contains(':') || first.contains('-') || first.starts_with('[');
        if !is_time || !first.bytes().all(|byte| byte.is_ascii_digit() || b"[]:.,-TZ+".contains(&byte)) {
            break;
        }
        rest = after.trim_start();
    }
    rest
}

fn after<'a>(line: &'a str, text: &str) -> Option<&'a str> {
    line.find(text).map(|start| &line[start + text.len()..])
}

/// The digits at the beginning.
fn number(text: &str) -> Option<u64> {
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// The text up to a space, a comma or a closing bracket.
fn word(text: &str) -> &str {
    let end = text.find([' ', ',', ']']).unwrap_or(text.len());
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signs(lines: &[&str]) -> Vec<FoundSign> {
        find_signs(&lines.iter().map(|line| SafeText::new(line)).collect::<Vec<_>>())
    }

    fn only_sign(line: &str) -> (LogSign, Option<u32>) {
        let mut found = signs(&[line]);
        assert_eq!(found.len(), 1, "{line}: {found:?}");
        let found = found.remove(0);
        assert_eq!(found.line, line);
        (found.sign, found.rank)
    }

    #[test]
    fn a_timeout_of_the_watchdog_names_operation_and_rank() {
        let line = "[rank118]:[E603 21:33:49.1 ProcessGroupNCCL.cpp:632] [Rank 118] Watchdog caught collective operation \
                    timeout: WorkNCCL(SeqNum=2398459, OpType=ALLREDUCE, NumelIn=8652160, NumelOut=8652160, \
                    Timeout(ms)=1800000) ran for 1800068 milliseconds before timing out.";
        let (operation, ran_for) = ("ALLREDUCE 2398459".into(), Some(Duration::from_millis(1_800_068)));
        assert_eq!(only_sign(line), (LogSign::WatchdogTimeout { operation, ran_for }, Some(118)));
        let older = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(OpType=BROADCAST, Timeout(ms)=1800000) \
                     ran for 1800068 milliseconds before timing out.";
        let operation = "BROADCAST".into();
        assert_eq!(only_sign(older), (LogSign::WatchdogTimeout { operation, ran_for }, Some(3)));
        let oldest = "Watchdog caught collective operation timeout";
        assert_eq!(only_sign(oldest), (LogSign::WatchdogTimeout { operation: "".into(), ran_for: None }, None));
    }

    #[test]
    fn a_timeout_longer_than_the_process_has_run_is_of_an_earlier_run() {
        let timeout = |rank: u32, ran_ms: u32| {
            format!(
                "[rank{rank}]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, \
                 Timeout(ms)=600000) ran for {ran_ms} milliseconds before timing out."
            )
        };
        let status = "[rank1]: PG GUID 0(default_pg) last enqueued work: 10, last completed work: 7";
        let down = "To avoid data inconsistency, we are taking the entire process down.";
        let memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB";
        let (first, second, this) = (timeout(0, 600_050), timeout(1, 600_020), timeout(1, 60_000));
        let lines = [&*first, status, &*second, status, down, memory, "starts", &*this, status];
        let kept = |age: Option<u64>| signs_of_this_run(signs(&lines), age.map(Duration::from_secs));
        assert_eq!(kept(None), signs(&lines));
        assert_eq!(kept(Some(601)), signs(&lines));
        assert_eq!(kept(Some(300)), signs(&[memory, &*this, status]));
        assert_eq!(kept(Some(59)), signs(&[]), "every timeout is too long");
        assert_eq!(signs_of_this_run(signs(&[status, down]), Some(Duration::ZERO)), signs(&[status, down]));
    }

    #[test]
    fn the_status_of_a_process_group_is_read_in_old_and_new_words() {
        let new = "[rank1]:[E112 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 1] failure detected by \
                   watchdog at work sequence id: 64 PG status: last enqueued work: 64, last completed work: 63";
        let status = |group: &str, last_enqueued, last_completed| LogSign::WorkStatus {
            group: group.into(),
            last_enqueued,
            last_completed,
        };
        assert_eq!(only_sign(new), (status("0(default_pg)", 64, Some(63)), Some(1)));
        let old = "[Rank 2] last enqueued NCCL work: 10, last completed NCCL work: 7";
        assert_eq!(only_sign(old), (status("", 10, Some(7)), Some(2)));
        let group_rank = "[PG ID 3 PG GUID 5(tp) Rank 1] last enqueued work: 10, last completed work: 7";
        assert_eq!(only_sign(group_rank).1, None, "a rank in a group is no rank in the job");
        let default_group = "[PG ID 0 PG GUID 0(default_pg) Rank 1] last enqueued work: 10, last completed work: 7";
        assert_eq!(only_sign(default_group).1, Some(1));
    }

    #[test]
    fn a_desync_report_names_its_ranks() {
        let found = signs(&[
            "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:",
            "\t   - [0, 1] joined but didn't finish collective #730 (count from 1)",
            "\t   - [7] finished collective #728, but didn't join collective #729 (count from 1)",
            "\t - Snapshot of ranks' latest states:",
            "\t   - [2] joined but didn't finish collective #730",
        ]);
        let expected = [
            LogSign::Desync { ranks: vec![0, 1], text: "joined but didn't finish collective #730".into() },
            LogSign::Desync {
                ranks: vec![7],
                text: "finished collective #728, but didn't join collective #729".into(),
            },
        ];
        assert_eq!(found.into_iter().map(|found| found.sign).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn other_lines_are_recognised() {
        for (line, sign) in [
            ("ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress", LogSign::WatchdogStuck),
            ("[rank0]: Some NCCL operations have failed or timed out. Due to the async nature", LogSign::TakenDown),
            ("To avoid data inconsistency, we are taking the entire process down.", LogSign::TakenDown),
            ("gpu1:1:1 [0] NCCL WARN Connect to 10.0.0.1<4711> failed", LogSign::NcclWarning),
            ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", LogSign::Xid),
            ("No available shared memory broadcast block found in 60 seconds.", LogSign::Waits),
            ("TimeoutError: RPC call to sample_tokens timed out.", LogSign::EngineDead),
            ("EngineDeadError: EngineCore encountered an issue.", LogSign::EngineDead),
            (
                "This thread has been waiting for `x` for 10 seconds and may be stuck. Expected 8 threads to join",
                LogSign::Waits,
            ),
            ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", LogSign::OutOfMemory),
            ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate", LogSign::OutOfMemory),
            ("ray.exceptions.ActorDiedError: The actor died unexpectedly before", LogSign::ProcessDied),
        ] {
            assert_eq!(only_sign(line).0, sign, "{line}");
        }
        for line in ["", "step 300 loss 2.1", "[rank", "last enqueued work: x", "SeqNum=", "] joined but didn't finish"]
        {
            assert_eq!(signs(&[line]), [], "{line}");
        }
    }

    #[test]
    fn a_log_that_only_repeats_its_waiting_line_is_recognised() {
        let repeats = |lines: &[&str]| only_repeats(&lines.iter().map(|line| SafeText::new(line)).collect::<Vec<_>>());
        assert!(repeats(&["loaded", "No available shared memory broadcast block found in 60 seconds."]));
        assert!(repeats(&["12:00:01 waiting for the others", "12:01:01 waiting for the others", " "]));
        assert!(repeats(&["[2026-11-23 12:00:01] still here", "[2026-11-23 12:01:01] still here"]));
        assert!(!repeats(&["step 100 loss 2.1", "step 101 loss 2.1"]));
        assert!(!repeats(&["epoch 1"]));
        assert!(!repeats(&[]));
    }
}
