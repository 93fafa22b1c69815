use super::super::fixture::{TestHost, TestProcess, at, gpus, process, reading};
use super::*;
use crate::fleet::ProcessTrouble;
use crate::wire::{Ancestor, Presence, ProcessState};

const NO_STATES: &[(GpuState, Option<Moment>)] = &[];

fn of_user(mut process: TestProcess, uid: u32, user: &str) -> TestProcess {
    process.facts.uid = Some(uid);
    process.facts.user = Some(user.into());
    process
}

fn worker(pid: u32, gpu: u16) -> TestProcess {
    let mut worker = process(pid, "python train.py", &[(gpu, 10)]);
    worker.facts.ancestors = vec![Ancestor {
        pid: 500,
        start_ticks: 5,
        uid: Some(1000),
        name: "torchrun".into(),
        argv: vec!["torchrun".into()],
    }];
    worker
}

/// Two hosts: alice's job of two workers and her notebook on the first, three processes of bob on the second.
fn hosts() -> Vec<TestHost> {
    let mut first = TestHost::new(0, gpus(0..4));
    let notebook = process(600, "ipykernel", &[(3, 30)]);
    first.send_snapshot(1.0, &vec![reading(97, 30); 4], &[worker(501, 0), worker(502, 1), notebook]);
    let mut second = TestHost::new(1, gpus(0..4));
    let mut silent = of_user(process(70, "silent", &[(1, 0)]), 1001, "bob");
    silent.gpus[0].gpu_memory_bytes = None;
    silent.gpus[0].sm_percent = None;
    silent.reading = crate::wire::ProcessReading { pid: Some(70), ..Default::default() };
    silent.facts.user = None;
    silent.facts.uid = None;
    let mut stopped = of_user(process(80, "stopped", &[(2, 1)]), 1001, "bob");
    stopped.reading.state = Some(ProcessState::Stopped);
    let big = of_user(process(90, "big", &[(0, 70)]), 1001, "bob");
    second.send_snapshot(1.0, &vec![reading(97, 30); 4], &[silent, stopped, big]);
    vec![first, second]
}

fn view() -> RowCache {
    let mut view = RowCache::default();
    for host in hosts() {
        view.update(&host.host, NO_STATES, at(1.0));
    }
    view
}

fn commands(rows: &[ListRow]) -> Vec<&str> {
    rows.iter().map(|row| row.command.as_str()).collect()
}

fn sorted(key: SortKey, is_descending: bool) -> Vec<String> {
    let order = ListOrder { key, is_descending, group: Group::Job };
    let rows = view().rows(order, &HashSet::new(), |_| true, |_| None);
    rows.iter().map(|row| row.command.to_string()).collect()
}

#[test]
fn the_default_order_is_trouble_then_own_rows_then_memory() {
    let rows = view().rows(ListOrder::default(), &HashSet::new(), |_| true, |_| None);
    assert_eq!(commands(&rows), ["stopped", "ipykernel", "torchrun", "big", "silent"]);
}

#[test]
fn the_order_of_trouble_can_be_reversed() {
    assert_eq!(sorted(SortKey::Trouble, true), ["stopped", "big", "silent", "torchrun", "ipykernel"]);
}

#[test]
fn a_hung_gpu_comes_first() {
    let mut view = view();
    let states = [(GpuState::InUse, None), (GpuState::InUse, None), (GpuState::InUse, None), (GpuState::Hung, None)];
    view.update(&hosts()[0].host, &states, at(1.0));
    let rows = view.rows(ListOrder::default(), &HashSet::new(), |_| true, |_| None);
    assert_eq!(commands(&rows)[..2], ["ipykernel", "stopped"]);
}

#[test]
fn every_column_sorts_in_both_directions() {
    for (key, ascending) in [
        (SortKey::Host, ["torchrun", "ipykernel", "silent", "stopped", "big"]),
        (SortKey::Gpu, ["big", "torchrun", "silent", "stopped", "ipykernel"]),
        (SortKey::Pid, ["silent", "stopped", "big", "torchrun", "ipykernel"]),
        (SortKey::GpuMemory, ["stopped", "torchrun", "ipykernel", "big", "silent"]),
        (SortKey::GpuMemoryPercent, ["stopped", "torchrun", "ipykernel", "big", "silent"]),
        (SortKey::Cpu, ["ipykernel", "stopped", "big", "torchrun", "silent"]),
        (SortKey::Rss, ["ipykernel", "stopped", "big", "torchrun", "silent"]),
        (SortKey::Time, ["stopped", "big", "torchrun", "ipykernel", "silent"]),
        (SortKey::Command, ["big", "ipykernel", "silent", "stopped", "torchrun"]),
    ] {
        assert_eq!(sorted(key, false), ascending, "{key:?}");
    }
    assert_eq!(sorted(SortKey::GpuMemory, true), ["big", "ipykernel", "torchrun", "stopped", "silent"]);
    assert_eq!(sorted(SortKey::Command, true), ["torchrun", "stopped", "silent", "ipykernel", "big"]);
    assert_eq!(sorted(SortKey::Host, true), ["silent", "stopped", "big", "torchrun", "ipykernel"]);
}

#[test]
fn unknown_values_come_last_in_both_directions() {
    for key in SortKey::ALL {
        if matches!(key, SortKey::Host | SortKey::Gpu | SortKey::Pid | SortKey::Command) {
            continue; // known for every row
        }
        for is_descending in [false, true] {
            if key == SortKey::Trouble && is_descending {
                continue; // then one's own rows come last, known or not
            }
            assert_eq!(
                sorted(key, is_descending).last().map(String::as_str),
                match key {
                    SortKey::State => Some("big"),
                    _ => Some("silent"),
                },
                "{key:?} {is_descending}"
            );
        }
    }
}

#[test]
fn equal_rows_keep_their_order_in_both_directions() {
    assert_eq!(sorted(SortKey::User, false), ["torchrun", "ipykernel", "stopped", "big", "silent"]);
    assert_eq!(sorted(SortKey::User, true), ["stopped", "big", "torchrun", "ipykernel", "silent"]);
}

#[test]
fn sm_utilization_sorts_by_the_highest_then_the_lowest() {
    let mut host = TestHost::new(0, gpus(0..2));
    let with = |pid, shares: [u8; 2]| {
        let mut process = process(pid, &format!("p{pid}"), &[(0, 1), (1, 1)]);
        for (usage, share) in process.gpus.iter_mut().zip(shares) {
            usage.sm_percent = Some(share);
        }
        process
    };
    host.send_snapshot(
        1.0,
        &[reading(97, 3), reading(97, 3)],
        &[with(1, [10, 90]), with(2, [50, 90]), with(3, [99, 0])],
    );
    let mut view = RowCache::default();
    view.update(&host.host, NO_STATES, at(1.0));
    let rows = view.rows(ListOrder::default_for(SortKey::Sm, Group::None), &HashSet::new(), |_| true, |_| None);
    assert_eq!(commands(&rows), ["p3", "p2", "p1"]);
}

#[test]
fn an_open_job_is_followed_by_its_processes() {
    let view = view();
    let folded = view.rows(ListOrder::default(), &HashSet::new(), |_| true, |_| None);
    let job = folded.iter().find(|row| row.fold_state == FoldState::Folded).expect("torchrun");
    let open = HashSet::from([job.key.clone()]);
    let rows =
        view.rows(ListOrder { key: SortKey::Pid, is_descending: true, group: Group::Job }, &open, |_| true, |_| None);
    let shape: Vec<_> = rows.iter().map(|row| (row.pid, row.fold_state)).collect();
    assert_eq!(
        shape,
        [
            (Some(600), FoldState::Leaf),
            (Some(500), FoldState::Open),
            (Some(502), FoldState::Child),
            (Some(501), FoldState::Child),
            (Some(90), FoldState::Leaf),
            (Some(80), FoldState::Leaf),
            (Some(70), FoldState::Leaf),
        ]
    );
}

#[test]
fn ungrouped_every_process_is_a_leaf() {
    let rows = view().rows(ListOrder::default_for(SortKey::Pid, Group::None), &HashSet::new(), |_| true, |_| None);
    let shape: Vec<_> = rows.iter().map(|row| (row.pid, row.fold_state)).collect();
    assert_eq!(shape, [70, 80, 90, 501, 502, 600].map(|pid| (Some(pid), FoldState::Leaf)));
}

#[test]
fn a_job_stays_while_one_of_its_processes_is_kept() {
    let view = view();
    let only = |row: &Row| row.pid == Some(502);
    let rows = view.rows(ListOrder::default(), &HashSet::new(), only, |_| None);
    assert_eq!(commands(&rows), ["torchrun"]);
    let open = HashSet::from([rows[0].key.clone()]);
    let rows = view.rows(ListOrder::default(), &open, only, |_| None);
    assert_eq!(rows.iter().map(|row| row.pid).collect::<Vec<_>>(), [Some(500), Some(502)]);
    assert_eq!(view.rows(ListOrder::default_for(SortKey::Pid, Group::None), &HashSet::new(), only, |_| None).len(), 1);
}

#[test]
fn ended_rows_come_last_in_the_order_of_trouble() {
    let mut host = TestHost::new(0, gpus(0..2));
    let (large, small) = (process(7, "large", &[(0, 70)]), process(8, "small", &[(1, 1)]));
    host.send_snapshot(1.0, &[reading(97, 70), reading(97, 1)], &[large, small.clone()]);
    host.send_snapshot(3.0, &[reading(0, 0), reading(97, 1)], &[small]);
    let mut view = RowCache::default();
    view.update(&host.host, NO_STATES, at(3.0));
    assert_eq!(commands(&view.rows(ListOrder::default(), &HashSet::new(), |_| true, |_| None)), ["small", "large"]);
}

#[test]
fn a_tick_recomputes_only_rows_that_time_changed() {
    let mut host = TestHost::new(0, gpus(0..1));
    host.send_snapshot(1.0, &[reading(97, 10)], &[process(7, "python", &[(0, 10)]), process(8, "python", &[(0, 1)])]);
    host.send_snapshot(3.0, &[reading(97, 10)], &[process(7, "python", &[(0, 10)])]);
    let mut view = RowCache::default();
    let states = [(GpuState::InUse, Some(at(1.0)))];
    view.update(&host.host, &states, at(3.0));
    assert!(!view.tick(&host.host, &states, at(4.0)));
    assert!(view.tick(&host.host, &[(GpuState::Idle, Some(at(1.0)))], at(4.0)), "a state changed");
    assert!(view.tick(&host.host, &states, at(20.0)), "stale");
    assert!(view.rows(ListOrder::default(), &HashSet::new(), |_| true, |_| None).iter().all(|row| row.is_stale));
    assert!(!view.tick(&host.host, &states, at(602.0)));
    assert!(view.tick(&host.host, &states, at(603.0)), "the ended row expires");
    assert!(!view.tick(&host.host, &states, at(604.0)));
    assert_eq!(view.jobs(HostId(0)).len(), 1);
}

#[test]
fn jobs_returns_the_jobs_of_one_host() {
    let view = view();
    let jobs = view.jobs(HostId(0)).iter().map(|job| job.row.job.clone()).collect::<Vec<JobKey>>();
    assert_eq!(jobs.iter().map(ToString::to_string).collect::<Vec<_>>(), ["launcher:500", "launcher:600"]);
    assert_eq!(view.jobs(HostId(9)), []);
}

fn training(pid: u32, gpu: u16, sm: u8) -> TestProcess {
    let mut process = process(pid, "python train.py", &[(gpu, 60)]);
    process.gpus[0].sm_percent = Some(sm);
    process
}

/// A job of alice on two hosts, and a notebook of bob on the first.
fn distributed_view() -> (RowCache, Vec<DistributedJob>) {
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
fn a_distributed_job_is_one_row_with_its_least_and_most_busy_rank() {
    let (view, distributed) = distributed_view();
    let folded = view.list(order(Group::DistributedJob), &HashSet::new(), &distributed, |_| true, |_| None);
    assert_eq!((folded.matched, folded.total), (3, 3));
    assert_eq!(
        shape(&folded.rows),
        [expected_row(0, "hgx-00 +1", "alice", "python train.py"), expected_row(0, "hgx-00", "bob", "ipykernel")]
    );
    let row = &folded.rows[0];
    let summary = row.group_summary.as_ref().expect("a group row");
    assert!(summary.is_likely);
    assert_eq!((summary.hosts, summary.gpus, row.workers), (2, 2, 2));
    assert_eq!((row.gpu_memory_bytes, row.sm_percent), (Some(120 << 30), Some((3, 97))));
    let rank = |host: &str, sm_percent| Some(BusyRank { host_name: host.into(), gpu_index: Some(2), sm_percent });
    assert_eq!((summary.least_busy.clone(), summary.most_busy.clone()), (rank("hgx-01", 3), rank("hgx-00", 97)));
    let open = HashSet::from([row.key.clone()]);
    let rows = view.list(order(Group::DistributedJob), &open, &distributed, |_| true, |_| None).rows;
    assert_eq!(
        rows.iter().map(|row| (row.depth, row.fold_state)).collect::<Vec<_>>()[..3],
        [(0, FoldState::Open), (1, FoldState::Leaf), (1, FoldState::Leaf)]
    );
}

#[test]
fn a_single_remaining_part_of_a_distributed_job_has_no_group_row() {
    let (view, distributed) = distributed_view();
    let first = |row: &Row| row.key.host == HostId(0);
    let listed = view.list(order(Group::DistributedJob), &HashSet::new(), &distributed, first, |_| None);
    assert!(listed.rows.iter().all(|row| row.group_summary.is_none()));
    assert_eq!((listed.matched, listed.total), (2, 3));
}

#[test]
fn users_and_hosts_have_group_rows() {
    let (view, distributed) = distributed_view();
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
    assert_eq!(by_user[0].gpu_indexes, [0u32; 0], "indexes of several hosts are not comparable");
    let open: HashSet<RowKey> = [by_host[1].key.clone()].into();
    let rows = view.list(order(Group::Host), &open, &distributed, |_| true, |_| None).rows;
    assert_eq!(rows.iter().map(|row| row.depth).collect::<Vec<_>>(), [0, 0, 1]);
}

#[test]
fn every_grouping_has_the_same_totals() {
    let (view, distributed) = distributed_view();
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
    assert_eq!((rows[0].trouble, rows[0].process_state), (Some(ProcessTrouble::Zombie), Some(ProcessState::Zombie)));
    assert_eq!(rows[0].state, Some((GpuState::Hung, None)));
}

#[test]
fn a_group_row_has_the_rank_of_its_worst_job() {
    let (view, distributed) = distributed_view();
    let order = ListOrder { key: SortKey::Trouble, is_descending: false, group: Group::User };
    let bobs = |row: &Row| (row.who == "bob").then_some(3);
    let rows = view.list(order, &HashSet::new(), &distributed, |_| true, bobs).rows;
    assert_eq!(rows[0].who, "bob");
}

#[test]
fn rows_with_nearly_equal_memory_keep_their_order() {
    let jobs = |first: u64, second: u64| {
        let one = process(10, "one", &[(0, 0)]);
        let two = process(20, "two", &[(1, 0)]);
        [(one, first), (two, second)].map(|(mut process, mib)| {
            process.gpus[0].gpu_memory_bytes = Some(mib << 20);
            process
        })
    };
    let mut host = TestHost::new(0, gpus(0..2));
    let mut cache = RowCache::default();
    let mut order = |t: f64, first: u64, second: u64| {
        host.send_snapshot(t, &[reading(97, 30), reading(97, 30)], &jobs(first, second));
        cache.update(&host.host, NO_STATES, at(t));
        let keys = [SortKey::Trouble, SortKey::GpuMemory];
        keys.map(|key| {
            let order = ListOrder::default_for(key, Group::Job);
            let rows = cache.rows(order, &HashSet::new(), |_| true, |_| None);
            commands(&rows).join(" ")
        })
    };
    assert_eq!(order(1.0, 20_100, 20_000), ["one two", "one two"]);
    for (second, more) in [(3.0, 150), (5.0, 300), (7.0, 0), (9.0, 400)] {
        assert_eq!(order(second, 20_000, 20_000 + more), ["one two", "one two"], "{more} MiB more");
    }
    assert_eq!(order(11.0, 20_000, 24_000), ["two one", "two one"], "a real difference counts");
}
