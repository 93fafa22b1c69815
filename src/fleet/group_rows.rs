//! Rows that stand above several jobs: a job on several hosts, a user, a host.

use super::list::compare;
use super::process::sum;
use super::rows::worst_trouble;
use super::{BusyRank, DistributedJob, Group, GroupKey, GroupSummary, HostId, JobKey, JobRows, ListOrder, Row, RowKey};
use crate::wire::SafeText;
use std::collections::{HashMap, HashSet};

/// A job, and how much it needs a person.
type RankedJob<'a> = (Option<u8>, &'a JobRows);

/// The jobs under their group_rows, in the order of the list; a job without a head stands by itself. `jobs` are sorted.
pub(super) fn group_rows<'a>(
    jobs: Vec<RankedJob<'a>>,
    order: ListOrder,
    distributed: &[DistributedJob],
) -> Vec<(Option<Row>, Vec<&'a JobRows>)> {
    let parts: HashMap<(HostId, &JobKey), usize> = distributed
        .iter()
        .enumerate()
        .flat_map(|(place, job)| job.parts.iter().map(move |(host, key)| ((*host, key), place)))
        .collect();
    let mut group_indexes: HashMap<GroupId, usize> = HashMap::new();
    let mut groups: Vec<(GroupId, Vec<RankedJob<'a>>)> = Vec::new();
    for job in jobs {
        let row = &job.1.row;
        let place = match order.group {
            Group::User => GroupId::User(row.who.clone()),
            Group::Host => GroupId::Host(row.key.host),
            _ => match parts.get(&(row.key.host, &row.job)) {
                Some(place) => GroupId::DistributedJob(*place),
                None => GroupId::Single(groups.len()),
            },
        };
        let at = *group_indexes.entry(place.clone()).or_insert_with(|| {
            groups.push((place, Vec::new()));
            groups.len() - 1
        });
        groups[at].1.push(job);
    }
    let mut group_rows: Vec<(Option<u8>, Row, bool, Vec<&JobRows>)> = groups
        .into_iter()
        .filter_map(|(place, members)| {
            let rank = members.iter().filter_map(|(rank, _)| *rank).min();
            let jobs: Vec<&JobRows> = members.into_iter().map(|(_, job)| job).collect();
            let is_likely = match &place {
                GroupId::DistributedJob(place) => distributed.get(*place).is_some_and(|job| job.is_likely),
                _ => false,
            };
            // What is left of a job on several hosts when a filter has taken the others away is a job on one.
            let has_group_row = match place {
                GroupId::DistributedJob(_) => jobs.len() > 1,
                GroupId::Single(_) => false,
                GroupId::User(_) | GroupId::Host(_) => true,
            };
            let row = if has_group_row { group_row(&place, &jobs, is_likely)? } else { Row::clone(&jobs.first()?.row) };
            Some((rank, row, has_group_row, jobs))
        })
        .collect();
    group_rows.sort_by(|a, b| compare((a.0, &a.1), (b.0, &b.1), order));
    group_rows.into_iter().map(|(_, row, has_group_row, jobs)| (has_group_row.then_some(row), jobs)).collect()
}

/// What a job is put under.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum GroupId {
    DistributedJob(usize),
    Single(usize),
    User(SafeText),
    Host(HostId),
}

/// The row above these jobs: figures are added, or taken from the worst, or from the oldest.
fn group_row(place: &GroupId, jobs: &[&JobRows], is_likely: bool) -> Option<Row> {
    // The order of the list changes; the identity of the row must not.
    let first = jobs.iter().map(|job| &*job.row).min_by(|a, b| a.key.cmp(&b.key))?;
    let rows = || jobs.iter().map(|job| &*job.row);
    let kind = match place {
        GroupId::User(who) => GroupKey::User(who.clone()),
        GroupId::Host(_) => GroupKey::Host,
        GroupId::DistributedJob(_) | GroupId::Single(_) => GroupKey::DistributedJob,
    };
    let key = match &kind {
        GroupKey::DistributedJob => RowKey { group: Some(kind.clone()), ..first.key.clone() },
        GroupKey::User(_) => {
            RowKey { host: HostId(0), process: no_process(), is_job: false, group: Some(kind.clone()) }
        }
        GroupKey::Host => {
            RowKey { host: first.key.host, process: no_process(), is_job: false, group: Some(kind.clone()) }
        }
    };
    let live = || rows().filter(|row| row.ended_at.is_none());
    let counted: Vec<&Row> = if live().next().is_some() { live().collect() } else { rows().collect() };
    let hosts: HashSet<HostId> = counted.iter().map(|row| row.key.host).collect();
    let gpus: HashSet<(HostId, u32)> =
        counted.iter().flat_map(|row| row.gpu_indexes.iter().map(|index| (row.key.host, *index))).collect();
    let users: HashSet<&SafeText> = counted.iter().map(|row| &row.who).collect();
    let processes: Vec<_> = jobs.iter().map(|job| job.processes()).collect();
    let ranks = || processes.iter().flat_map(|rows| rows.iter()).filter(|row| row.ended_at.is_none());
    let least = ranks().filter_map(|row| busy_rank(row, |(least, _)| least)).min_by_key(|rank| rank.sm_percent);
    let most = ranks().filter_map(|row| busy_rank(row, |(_, most)| most)).max_by_key(|rank| rank.sm_percent);
    let is_one_host = hosts.len() == 1;
    let mut row = Row {
        key,
        gpu_indexes: if is_one_host { indexes(&gpus) } else { Vec::new() },
        gpu_memory_bytes: sum(counted.iter().map(|row| row.gpu_memory_bytes)),
        // Of how many GPUs' memory it would be a share is another number in every group.
        gpu_memory_percent: None,
        sm_percent: counted.iter().filter_map(|row| row.sm_percent).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))),
        cpu_percent: sum(counted.iter().map(|row| row.cpu_percent)),
        rss_bytes: sum(counted.iter().map(|row| row.rss_bytes)),
        age_seconds: counted.iter().filter_map(|row| row.age_seconds).reduce(f64::max),
        state: counted.iter().filter_map(|row| row.state).min(),
        workers: counted.iter().map(|row| row.workers).sum(),
        is_mine: counted.iter().any(|row| row.is_mine),
        is_stale: counted.iter().any(|row| row.is_stale),
        ended_at: if live().next().is_some() { None } else { rows().filter_map(|row| row.ended_at).max() },
        group_summary: None,
        ..first.clone()
    };
    let worst = worst_trouble(counted.iter().copied());
    row.trouble = worst.and_then(|row| row.trouble);
    row.trouble_since = worst.and_then(|row| row.trouble_since);
    if let Some(worst) = worst {
        row.process_state = worst.process_state;
    }
    if hosts.len() > 1 {
        let others = hosts.len() - 1;
        row.host_name = SafeText::new(&format!("{} +{others}", first.host_name));
    }
    if users.len() > 1 {
        row.who = SafeText::new(&format!("{} users", users.len()));
    }
    if kind != GroupKey::DistributedJob {
        row.pid = None;
        row.process_state = None;
        let plural = if counted.len() == 1 { "" } else { "s" };
        row.command = SafeText::new(&format!("{} job{plural}", counted.len()));
    }
    row.group_summary = Some(Box::new(GroupSummary {
        jobs: counted.len() as u32,
        hosts: hosts.len() as u32,
        gpus: gpus.len() as u32,
        is_likely,
        least_busy: least.filter(|least| Some(least.sm_percent) != most.as_ref().map(|most| most.sm_percent)),
        most_busy: most,
    }));
    Some(row)
}

fn no_process() -> super::ProcessKey {
    super::ProcessKey { boot_id: None, pid: 0, start_ticks: None }
}

fn indexes(gpus: &HashSet<(HostId, u32)>) -> Vec<u32> {
    let mut indexes: Vec<u32> = gpus.iter().map(|(_, index)| *index).collect();
    indexes.sort_unstable();
    indexes
}

fn busy_rank(row: &Row, share: impl Fn((u8, u8)) -> u8) -> Option<BusyRank> {
    let sm_percent = share(row.sm_percent?);
    Some(BusyRank { host_name: row.host_name.clone(), gpu_index: row.gpu_indexes.first().copied(), sm_percent })
}

#[cfg(test)]
mod tests {
    use super::super::RowCache;
    use super::super::fixture::{TestHost, at, gpus, process, reading};
    use super::*;
    use crate::fleet::{FoldState, GpuState, ListRow, ProcessTrouble, SortKey};
    use crate::wire::{Presence, ProcessState};

    fn training(pid: u32, gpu: u16, sm: u8) -> super::super::fixture::TestProcess {
        let mut process = process(pid, "python train.py", &[(gpu, 60)]);
        process.gpus[0].sm_percent = Some(sm);
        process
    }

    /// A job on two hosts, alice's; a notebook of bob's on the first host.
    fn view() -> (RowCache, Vec<DistributedJob>) {
        let mut view = RowCache::default();
        let mut parts = Vec::new();
        for (id, sm) in [(0, 97), (1, 3)] {
            let mut host = TestHost::new(id, gpus(0..4));
            let mut processes = vec![training(500 + id, 2, sm)];
            if id == 0 {
                let mut notebook = process(80, "ipykernel", &[(1, 9)]);
                notebook.facts.user = Some("bob".into());
                notebook.facts.uid = Some(1001);
                processes.insert(0, notebook);
            }
            host.send_snapshot(1.0, &vec![reading(97, 60); 4], &processes);
            view.update(&host.host, &[], at(1.0));
            let job = view.jobs(HostId(id)).iter().find(|job| job.row.command.contains("train")).expect("a job");
            parts.push((HostId(id), job.row.job.clone()));
        }
        (view, vec![DistributedJob { parts, is_likely: true }])
    }

    fn order(group: Group) -> ListOrder {
        ListOrder::default_for(SortKey::GpuMemory, group)
    }

    fn shape(rows: &[ListRow]) -> Vec<(u8, String, String, String)> {
        rows.iter()
            .map(|row| (row.depth, row.host_name.to_string(), row.who.to_string(), row.command.to_string()))
            .collect()
    }

    fn expected_row(depth: u8, host: &str, who: &str, command: &str) -> (u8, String, String, String) {
        (depth, host.into(), who.into(), command.into())
    }

    #[test]
    fn a_job_on_several_hosts_is_one_row_with_its_least_and_most_busy_rank() {
        let (view, distributed) = view();
        let folded = view.list(order(Group::DistributedJob), &HashSet::new(), &distributed, |_| true, |_| None);
        assert_eq!((folded.matched, folded.total), (3, 3));
        assert_eq!(
            shape(&folded.rows),
            [expected_row(0, "hgx-00 +1", "alice", "python train.py"), expected_row(0, "hgx-00", "bob", "ipykernel")]
        );
        let row = &folded.rows[0];
        let head = row.group_summary.as_ref().expect("a head");
        assert!(head.is_likely);
        assert_eq!((head.hosts, head.gpus, row.workers), (2, 2, 2));
        assert_eq!((row.gpu_memory_bytes, row.sm_percent), (Some(120 << 30), Some((3, 97))));
        let rank = |host: &str, sm_percent| Some(BusyRank { host_name: host.into(), gpu_index: Some(2), sm_percent });
        assert_eq!((head.least_busy.clone(), head.most_busy.clone()), (rank("hgx-01", 3), rank("hgx-00", 97)));
        let open = HashSet::from([row.key.clone()]);
        let rows = view.list(order(Group::DistributedJob), &open, &distributed, |_| true, |_| None).rows;
        assert_eq!(
            rows.iter().map(|row| (row.depth, row.fold_state)).collect::<Vec<_>>()[..3],
            [(0, FoldState::Open), (1, FoldState::Leaf), (1, FoldState::Leaf)]
        );
    }

    #[test]
    fn of_a_job_on_several_hosts_one_part_alone_has_no_head() {
        let (view, distributed) = view();
        let first = |row: &Row| row.key.host == HostId(0);
        let listed = view.list(order(Group::DistributedJob), &HashSet::new(), &distributed, first, |_| None);
        assert!(listed.rows.iter().all(|row| row.group_summary.is_none()));
        assert_eq!((listed.matched, listed.total), (2, 3));
    }

    #[test]
    fn users_and_hosts_head_their_jobs() {
        let (view, distributed) = view();
        let by_user = view.list(order(Group::User), &HashSet::new(), &distributed, |_| true, |_| None).rows;
        assert_eq!(
            shape(&by_user),
            [expected_row(0, "hgx-00 +1", "alice", "2 jobs"), expected_row(0, "hgx-00", "bob", "1 job")]
        );
        let by_host = view.list(order(Group::Host), &HashSet::new(), &distributed, |_| true, |_| None).rows;
        assert_eq!(
            shape(&by_host),
            [expected_row(0, "hgx-00", "2 users", "2 jobs"), expected_row(0, "hgx-01", "alice", "1 job")]
        );
        assert_eq!(by_host[0].gpu_indexes, [1, 2]);
        assert_eq!(by_user[0].gpu_indexes, [0u32; 0], "indexes of several hosts say nothing");
        let open: HashSet<RowKey> = [by_host[1].key.clone()].into();
        let rows = view.list(order(Group::Host), &open, &distributed, |_| true, |_| None).rows;
        assert_eq!(rows.iter().map(|row| row.depth).collect::<Vec<_>>(), [0, 0, 1]);
    }

    #[test]
    fn the_figures_of_every_group_add_up_to_the_same() {
        let (view, distributed) = view();
        for group in Group::ALL {
            let rows = view.list(order(group), &HashSet::new(), &distributed, |_| true, |_| None).rows;
            let memory: u64 = rows.iter().filter_map(|row| row.gpu_memory_bytes).sum();
            let workers: u32 = rows.iter().map(|row| row.workers).sum();
            assert_eq!((memory, workers), (129 << 30, 3), "{}", group.word());
        }
    }

    #[test]
    fn a_group_row_shows_the_most_urgent_trouble_of_its_jobs() {
        let mut view = RowCache::default();
        for id in 0..2 {
            let mut host = TestHost::new(id, gpus(0..1));
            let mut process = training(500 + id, 0, 90);
            match id {
                0 => process.reading.presence = Some(Presence::Hidden),
                _ => process.reading.state = Some(ProcessState::Zombie),
            }
            host.send_snapshot(1.0, &[reading(97, 60)], &[process]);
            // The hidden process is on a hung GPU: the state of a GPU does not decide which trouble is the worst.
            let states = [(if id == 0 { GpuState::Hung } else { GpuState::InUse }, None)];
            view.update(&host.host, &states, at(1.0));
        }
        let parts = [0, 1].map(|id| (HostId(id), view.jobs(HostId(id))[0].row.job.clone())).to_vec();
        let distributed = [DistributedJob { parts, is_likely: false }];
        let rows = view.list(order(Group::DistributedJob), &HashSet::new(), &distributed, |_| true, |_| None).rows;
        assert_eq!(rows.len(), 1);
        assert_eq!(
            (rows[0].trouble, rows[0].process_state),
            (Some(ProcessTrouble::Zombie), Some(ProcessState::Zombie))
        );
        assert_eq!(rows[0].state, Some((GpuState::Hung, None)));
    }

    #[test]
    fn a_head_takes_its_rank_from_the_worst_below_it() {
        let (view, distributed) = view();
        let order = ListOrder { key: SortKey::Trouble, is_descending: false, group: Group::User };
        let bobs = |row: &Row| (row.who == "bob").then_some(3);
        let rows = view.list(order, &HashSet::new(), &distributed, |_| true, bobs).rows;
        assert_eq!(rows[0].who, "bob");
    }
}
