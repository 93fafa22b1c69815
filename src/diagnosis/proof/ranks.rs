//! Which process is which rank: the ranks of a job in a fixed order, and the process that NCCL RAS means by an address and a
//! pid.

use super::evidence::{JobEvidence, RankEvidence};
use super::verdict::CulpritRank;
use crate::wire::{Communicator, NamedRank, SafeText};
use std::collections::HashMap;

/// The ranks of a job, sorted by rank, host and pid.
pub(super) struct Ranks<'a> {
    /// The ranks.
    pub list: Vec<Rank<'a>>,
    /// The number of ranks of the whole job, also on hosts that are not watched. `WORLD_SIZE`.
    pub world_size: Option<u32>,
}

/// One rank of a job.
#[allow(clippy::struct_field_names, reason = "world rank is the term")]
pub(super) struct Rank<'a> {
    /// Its readings.
    pub evidence: &'a RankEvidence,
    /// Its rank in the whole job: `RANK`, else `SLURM_PROCID`. `None` if another process has the same.
    pub world_rank: Option<u32>,
    /// Its pid in the pid namespace of the job.
    pub ns_pid: Option<u32>,
}

impl<'a> Ranks<'a> {
    /// Reads the variables of each rank.
    pub(super) fn new(evidence: &'a JobEvidence) -> Self {
        let mut list: Vec<Rank<'a>> = evidence.ranks.iter().map(Rank::new).collect();
        // Under torchrun a Slurm task is a whole node, so that SLURM_PROCID is equal for the ranks of a node.
        let mut count: HashMap<u32, u32> = HashMap::new();
        for rank in list.iter().filter_map(|rank| rank.world_rank) {
            *count.entry(rank).or_default() += 1;
        }
        for rank in &mut list {
            rank.world_rank = rank.world_rank.filter(|rank| count.get(rank) == Some(&1));
        }
        list.sort_by_key(|rank| {
            (
                rank.world_rank.is_none(),
                rank.world_rank,
                rank.evidence.host,
                rank.evidence.pid,
                rank.evidence.key.clone(),
            )
        });
        let world_size = list.iter().filter_map(|rank| number(rank.evidence, "WORLD_SIZE")).max();
        Self { list, world_size }
    }

    /// The position in `list` of the process that a report names. `None` if no watched process fits, or more than one does.
    ///
    /// Processes of several containers may have the same pid, so the address, the rank in the communicator of all ranks and
    /// the GPU decide between them. An index of a GPU alone excludes nothing: each container numbers its GPUs from 0.
    pub(super) fn find(&self, named: &NamedRank, communicator: &Communicator) -> Option<usize> {
        let is_world = self.is_world(communicator);
        let mut fits: Vec<usize> = (0..self.list.len())
            .filter(|position| {
                let rank = &self.list[*position];
                let same_pid = match (named.pid, rank.ns_pid) {
                    (Some(named), Some(own)) => named == own,
                    // Without a pid only the rank in the whole job identifies a process.
                    (None, _) | (_, None) => is_world && rank.world_rank == Some(named.rank),
                };
                let contradicts = is_world && rank.world_rank.is_some_and(|own| own != named.rank);
                same_pid && !contradicts
            })
            .collect();
        let mut prefer = |is_better: &dyn Fn(&Rank<'_>) -> bool| {
            let better: Vec<usize> = fits.iter().copied().filter(|at| is_better(&self.list[*at])).collect();
            if !better.is_empty() {
                fits = better;
            }
        };
        if let Some(address) = &named.host {
            prefer(&|rank| self.has_address(rank.evidence, address));
        }
        prefer(&|rank| is_world && rank.world_rank == Some(named.rank));
        prefer(&|rank| named.gpu.is_some() && rank.evidence.gpus.iter().any(|gpu| Some(gpu.index) == named.gpu));
        match fits[..] {
            [only] if self.is_sure(&self.list[only], named, is_world) => Some(only),
            _ => None,
        }
    }

    /// Whether a process with the pid that a report names is the process that it means. The processes of two containers often have
    /// the same pid, and the other one may be on a host that is not watched.
    fn is_sure(&self, rank: &Rank<'_>, named: &NamedRank, is_world: bool) -> bool {
        let is_named_by_rank = is_world && rank.world_rank == Some(named.rank);
        let is_at_address = named.host.as_ref().is_none_or(|address| self.has_address(rank.evidence, address));
        let is_pid_of_host = rank.ns_pid == Some(rank.evidence.pid);
        let are_all_watched = self.world_size.is_some_and(|size| size as usize <= self.list.len());
        is_named_by_rank || is_at_address || is_pid_of_host || are_all_watched
    }

    /// The rank with this number in the whole job.
    pub(super) fn with_world_rank(&self, world_rank: u32) -> Option<usize> {
        self.list.iter().position(|rank| rank.world_rank == Some(world_rank))
    }

    /// Whether a communicator has all ranks of the job, so that its rank numbers are those of the job.
    fn is_world(&self, communicator: &Communicator) -> bool {
        self.world_size == Some(communicator.size) && communicator.size > 0
    }

    /// Whether an address or a name is known to be that of the host. The host of rank 0 has the address `MASTER_ADDR`.
    fn has_address(&self, evidence: &RankEvidence, address: &SafeText) -> bool {
        let is_first = |rank: &Rank<'_>| rank.world_rank == Some(0) && rank.evidence.host == evidence.host;
        evidence.host_name == *address
            || evidence.host_addresses.contains(address)
            || self
                .list
                .iter()
                .filter(|rank| is_first(rank))
                .any(|rank| variable(rank.evidence, "MASTER_ADDR") == Some(address.as_str()))
    }

    /// The rank as a culprit, joined to a watched process if there is one. `largest` is the size of the largest communicator:
    /// its rank numbers are those of the job if the job does not name its size.
    pub(super) fn culprit_of(&self, named: &NamedRank, communicator: &Communicator, largest: u32) -> CulpritRank {
        let is_world = self.world_size.is_none_or(|size| size == communicator.size) && communicator.size == largest;
        match self.find(named, communicator) {
            Some(position) => {
                let mut culprit = self.culprit_at(position);
                culprit.rank = Some(named.rank);
                culprit.world_rank = culprit.world_rank.or(is_world.then_some(named.rank));
                culprit.gpu = culprit.gpu.or(named.gpu);
                culprit
            }
            None => CulpritRank {
                rank: Some(named.rank),
                world_rank: is_world.then_some(named.rank),
                pid: named.pid,
                host: named.host.clone(),
                gpu: named.gpu,
                ..CulpritRank::default()
            },
        }
    }

    /// The watched rank at a position, as a culprit.
    pub(super) fn culprit_at(&self, position: usize) -> CulpritRank {
        let rank = &self.list[position];
        CulpritRank {
            rank: None,
            world_rank: rank.world_rank,
            pid: Some(rank.evidence.pid),
            host: Some(rank.evidence.host_name.clone()),
            host_id: Some(rank.evidence.host),
            key: Some(rank.evidence.key.clone()),
            gpu: rank.evidence.gpus.first().map(|gpu| gpu.index),
            operation: None,
        }
    }

    /// The names of ranks in a sentence: `ranks 0, 3 and 5 more`.
    pub(super) fn names(&self, positions: &[usize]) -> String {
        let ranks: Option<Vec<u32>> = positions.iter().map(|position| self.list[*position].world_rank).collect();
        match (positions, ranks) {
            ([], _) => "no rank".to_owned(),
            ([only], _) => self.list[*only].name(),
            (_, Some(ranks)) => format!("ranks {}", number_list(&ranks)),
            (_, None) => format!("{} processes", positions.len()),
        }
    }
}

/// Numbers with runs joined, at most six parts: `0-3, 7 and 5 more`.
pub(super) fn number_list(numbers: &[u32]) -> String {
    const MOST: usize = 6;
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in sorted {
        match runs.last_mut() {
            Some((_, end)) if end.checked_add(1) == Some(number) => *end = number,
            _ => runs.push((number, number)),
        }
    }
    let left_out: u64 = runs.iter().skip(MOST).map(|(start, end)| u64::from(end - start) + 1).sum();
    let parts: Vec<String> = runs
        .iter()
        .take(MOST)
        .map(|(start, end)| match end - start {
            0 => start.to_string(),
            1 => format!("{start}, {end}"),
            _ => format!("{start}-{end}"),
        })
        .collect();
    let more = if left_out > 0 { format!(" and {left_out} more") } else { String::new() };
    parts.join(", ") + &more
}

impl<'a> Rank<'a> {
    fn new(evidence: &'a RankEvidence) -> Self {
        let process = evidence.readings.iter().rev().find_map(|reading| reading.examination.process.as_ref());
        Self {
            evidence,
            world_rank: number(evidence, "RANK").or_else(|| number(evidence, "SLURM_PROCID")),
            ns_pid: process.map(|process| process.ns_pid.unwrap_or(evidence.pid)),
        }
    }

    /// The name in a sentence: `rank 7`, else `pid 4312 on node2`.
    pub(super) fn name(&self) -> String {
        match self.world_rank {
            Some(rank) => format!("rank {rank}"),
            None => format!("pid {} on {}", self.evidence.pid, self.evidence.host_name),
        }
    }
}

/// A variable of the environment of a rank, from its latest examination that has it.
pub(super) fn variable<'a>(evidence: &'a RankEvidence, name: &str) -> Option<&'a str> {
    let mut processes = evidence.readings.iter().rev().filter_map(|reading| reading.examination.process.as_ref());
    processes.find_map(|process| process.variable(name))
}

fn number(evidence: &RankEvidence, name: &str) -> Option<u32> {
    variable(evidence, name)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::testing::hanging_job;
    use super::*;

    #[test]
    fn numbers_are_joined_to_runs() {
        assert_eq!(number_list(&[]), "");
        assert_eq!(number_list(&[7, 3, 3]), "3, 7");
        assert_eq!(number_list(&[0, 1, 5, 4, 6]), "0, 1, 4-6");
        assert_eq!(number_list(&[0, 2, 4, 6, 8, 10, 12, 13, u32::MAX]), "0, 2, 4, 6, 8, 10 and 3 more");
    }

    #[test]
    fn a_pid_in_a_container_names_no_process_while_other_hosts_are_not_watched() {
        let named = NamedRank { rank: 1, pid: Some(1003), host: Some("10.0.0.2".into()), ..NamedRank::default() };
        let group = Communicator { size: 2, ..Communicator::default() };
        let find = |job: &JobEvidence| Ranks::new(job).find(&named, &group);
        let mut job = hanging_job(8);
        job.ranks.truncate(4);
        assert_eq!(find(&job), None, "rank 3 has this pid in its container, on another host");
        for (pid, rank) in (1000..).zip(&mut job.ranks) {
            rank.pid = pid;
        }
        assert_eq!(find(&job), Some(3), "pids of hosts rarely coincide");
    }
}
