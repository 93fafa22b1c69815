//! How a Slurm job ended, in words.

use crate::wire::SlurmJobEnd;

/// Returns the words for the end of a job: `Slurm: failed with exit status 1`.
pub fn slurm_end_text(end: &SlurmJobEnd) -> String {
    let state = match &*end.state {
        "COMPLETED" => "completed",
        "FAILED" => "failed",
        "CANCELLED" => "cancelled",
        "TIMEOUT" => "ended at its time limit",
        "DEADLINE" => "ended at its deadline",
        "OUT_OF_MEMORY" => "ran out of memory",
        "PREEMPTED" => "preempted by another job",
        "NODE_FAIL" => "ended because a node failed",
        "BOOT_FAIL" => "ended because a node did not boot",
        "PENDING" | "REQUEUED" | "REQUEUE_HOLD" => "put back into the queue",
        other => other,
    };
    let code = match (&*end.state, end.signal, end.exit_status) {
        ("FAILED" | "CANCELLED" | "TIMEOUT" | "NODE_FAIL", Some(signal), _) => format!(" by signal {signal}"),
        ("FAILED", None, Some(status)) if status > 0 => format!(" with exit status {status}"),
        _ => String::new(),
    };
    format!("Slurm: {state}{code}")
}

/// Whether a job neither completed nor was cancelled by a person.
pub fn slurm_end_is_failure(end: &SlurmJobEnd) -> bool {
    matches!(
        &*end.state,
        "FAILED"
            | "TIMEOUT"
            | "DEADLINE"
            | "OUT_OF_MEMORY"
            | "PREEMPTED"
            | "NODE_FAIL"
            | "BOOT_FAIL"
            | "PENDING"
            | "REQUEUED"
            | "REQUEUE_HOLD"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_words() {
        let end = |state: &str, exit_status, signal| SlurmJobEnd {
            job: "3385".into(),
            state: state.into(),
            exit_status: Some(exit_status),
            signal,
        };
        for (state, exit_status, signal, text, is_failure) in [
            ("COMPLETED", 0, None, "Slurm: completed", false),
            ("FAILED", 1, None, "Slurm: failed with exit status 1", true),
            ("FAILED", 0, Some(9), "Slurm: failed by signal 9", true),
            ("FAILED", 0, None, "Slurm: failed", true),
            ("CANCELLED", 0, Some(15), "Slurm: cancelled by signal 15", false),
            ("TIMEOUT", 0, None, "Slurm: ended at its time limit", true),
            ("OUT_OF_MEMORY", 0, Some(125), "Slurm: ran out of memory", true),
            ("PREEMPTED", 0, None, "Slurm: preempted by another job", true),
            ("NODE_FAIL", 0, None, "Slurm: ended because a node failed", true),
            ("PENDING", 0, None, "Slurm: put back into the queue", true),
            ("EXPEDITING", 0, None, "Slurm: EXPEDITING", false),
        ] {
            let end = end(state, exit_status, signal);
            assert_eq!((slurm_end_text(&end).as_str(), slurm_end_is_failure(&end)), (text, is_failure), "{state}");
        }
    }
}
