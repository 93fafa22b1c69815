use super::super::fixture::{TestHost, TestProcess, at, gpus, process, reading};
use super::*;
use crate::fleet::UNKNOWN_USER;
use crate::wire::{Ancestor, Owner, Presence, ProcessState};

const NO_STATES: &[(GpuState, Option<Moment>)] = &[];

fn below(mut process: TestProcess, launcher_pid: u32, argv: &[&str]) -> TestProcess {
    process.facts.ancestors = vec![
        Ancestor {
            pid: launcher_pid,
            start_ticks: u64::from(launcher_pid) * 100,
            uid: Some(1000),
            name: argv[0].into(),
            argv: argv.iter().map(|argument| SafeText::new(argument)).collect(),
        },
        Ancestor { pid: 2, start_ticks: 2, uid: Some(1000), name: "bash".into(), argv: Vec::new() },
    ];
    process
}

fn owned(mut process: TestProcess, uid: u32, user: &str, owner: Owner) -> TestProcess {
    process.facts.uid = Some(uid);
    process.facts.user = Some(user.into());
    process.facts.owner = Some(owner);
    process
}

fn host_with(readings: usize, processes: &[TestProcess]) -> TestHost {
    let mut host = TestHost::new(0, gpus(0..readings as u32));
    host.send_snapshot(1.0, &vec![reading(97, 40); readings], processes);
    host
}

fn rows(host: &TestHost, seconds: f64) -> Vec<JobRows> {
    host_rows(&host.host, NO_STATES, at(seconds))
}

fn torchrun(workers: u32) -> Vec<TestProcess> {
    let worker =
        |rank| below(process(501 + rank, "python train.py", &[(rank as u16, 40)]), 500, &["torchrun", "train.py"]);
    (0..workers).map(worker).collect()
}

#[test]
fn the_workers_of_a_launcher_are_one_row() {
    let mut workers = torchrun(4);
    workers[2].gpus[0].sm_percent = Some(12);
    let jobs = rows(&host_with(4, &workers), 1.0);
    let [job] = jobs.as_slice() else { panic!("{jobs:?}") };
    let (row, processes) = (&job.row, job.processes());
    assert_eq!((row.workers, row.pid, row.command.as_str()), (4, Some(500), "torchrun train.py"));
    assert_eq!(row.gpu_indexes, [0, 1, 2, 3]);
    assert_eq!((row.gpu_memory_bytes, row.gpu_memory_percent), (Some(160 << 30), Some(50.0)));
    assert_eq!((row.sm_percent, row.cpu_percent, row.rss_bytes), (Some((12, 90)), Some(400.0), Some(4 << 30)));
    assert_eq!((row.age_seconds, row.who.as_str(), row.is_mine), (Some(504.0), "alice", true));
    assert_eq!((job.is_expandable(), row.key.is_job), (true, true));
    assert_eq!(row.key.process.start_ticks, Some(50_000));
    let pids: Vec<_> = processes.iter().map(|row| (row.pid, row.workers)).collect();
    assert_eq!(pids, [501, 502, 503, 504].map(|pid| (Some(pid), 1)));
}

#[test]
fn the_row_of_a_job_keeps_its_key_when_workers_change() {
    let key = |workers| rows(&host_with(4, &torchrun(workers)), 1.0)[0].row.key.clone();
    assert_eq!(key(1), key(4));
}

#[test]
fn a_job_of_one_process_is_not_expandable() {
    let jobs = rows(&host_with(1, &[process(7, "python train.py", &[(0, 40)])]), 1.0);
    let row = &jobs[0].row;
    assert!(!jobs[0].is_expandable());
    assert_eq!((row.pid, row.command.as_str()), (Some(7), "python train.py"));
}

#[test]
fn a_launcher_on_a_gpu_represents_its_children() {
    let main = process(500, "python main.py", &[(0, 10)]);
    let child = below(process(501, "python -c spawn_main()", &[(1, 10)]), 500, &["python", "main.py"]);
    let jobs = rows(&host_with(2, &[main, child]), 1.0);
    assert_eq!(jobs.len(), 1);
    assert_eq!((jobs[0].row.pid, jobs[0].row.workers, jobs[0].row.command.as_str()), (Some(500), 2, "python main.py"));
}

#[test]
fn a_slurm_job_without_a_launcher_is_represented_by_its_first_worker() {
    let owner = Owner::Slurm { job: "3385".into(), step: Some("0".into()) };
    let worker = |pid| owned(process(pid, "python train.py", &[(0, 10)]), 1001, "bob", owner.clone());
    let jobs = rows(&host_with(1, &[worker(11), worker(10)]), 1.0);
    let [JobRows { row, .. }] = jobs.as_slice() else { panic!("{jobs:?}") };
    assert_eq!((row.pid, row.who.as_str(), row.is_mine), (Some(10), "bob", false));
    assert_eq!(row.job.to_string(), "slurm:3385");
}

#[test]
fn root_is_shown_as_its_slurm_job_pod_or_container() {
    let who = |uid, user: &str, owner| {
        let jobs = rows(&host_with(1, &[owned(process(7, "python", &[(0, 1)]), uid, user, owner)]), 1.0);
        jobs[0].row.who.to_string()
    };
    let docker = || Owner::Container { runtime: "docker".into(), id: "0123456789abcdef".into() };
    assert_eq!(who(0, "root", docker()), "docker 0123456789ab");
    assert_eq!(who(0, "root", Owner::Slurm { job: "7".into(), step: None }), "slurm 7");
    assert_eq!(who(0, "root", Owner::Pod { uid: "9d2f-11".into(), container: None }), "pod 9d2f-11");
    assert_eq!(who(0, "root", Owner::Service("ollama.service".into())), "root");
    assert_eq!(who(1001, "bob", docker()), "bob");
}

#[test]
fn a_user_without_a_name_is_shown_as_uid_and_an_unknown_one_as_dash() {
    let mut nameless = process(7, "python", &[(0, 1)]);
    nameless.facts.user = None;
    nameless.facts.uid = Some(70_001);
    assert_eq!(rows(&host_with(1, &[nameless]), 1.0)[0].row.who, "70001");
    let mut host = TestHost::new(0, gpus(0..1));
    let mut snapshot = host.snapshot(1.0, &[reading(0, 1)], &[process(7, "", &[(0, 1)])]);
    snapshot.facts.clear();
    host.apply(1.0, snapshot);
    assert_eq!(rows(&host, 1.0)[0].row.who, UNKNOWN_USER);
}

#[test]
fn unknown_values_are_none() {
    let mut hidden = process(7, "", &[(0, 1)]);
    hidden.gpus[0].gpu_memory_bytes = None;
    hidden.gpus[0].sm_percent = None;
    hidden.reading = crate::wire::ProcessReading {
        pid: Some(7),
        presence: Some(Presence::Hidden),
        ..crate::wire::ProcessReading::default()
    };
    let mut host = TestHost::new(0, gpus(0..1));
    let mut snapshot = host.snapshot(1.0, &[reading(0, 1)], &[hidden]);
    snapshot.facts.clear();
    host.apply(1.0, snapshot);
    let row = &rows(&host, 1.0)[0].row;
    assert_eq!((row.gpu_memory_bytes, row.gpu_memory_percent, row.sm_percent), (None, None, None));
    assert_eq!((row.cpu_percent, row.rss_bytes, row.age_seconds), (None, None, None));
    assert_eq!((row.trouble, row.command.as_str()), (Some(ProcessTrouble::Hidden), "(hidden by the host)"));
}

#[test]
fn the_row_of_a_job_shows_the_worst_state_and_trouble() {
    let mut workers = torchrun(2);
    workers[1].reading.state = Some(ProcessState::Stopped);
    let host = host_with(2, &workers);
    let states = [(GpuState::InUse, Some(at(0.5))), (GpuState::Hung, Some(at(0.25)))];
    let jobs = host_rows(&host.host, &states, at(1.0));
    let row = &jobs[0].row;
    assert_eq!(row.state, Some(states[1]));
    assert_eq!((row.trouble, row.trouble_since), (Some(ProcessTrouble::Stopped), Some(at(1.0))));
    assert_eq!(row.process_state, Some(ProcessState::Stopped));
    assert_eq!(jobs[0].processes()[0].state, Some(states[0]));
}

#[test]
fn a_job_with_a_hidden_worker_shows_the_worst_known_trouble() {
    for order in [[0, 1], [1, 0]] {
        let mut workers = torchrun(2);
        workers[order[0]].reading.presence = Some(Presence::Hidden);
        workers[order[1]].reading.state = Some(ProcessState::Zombie);
        let jobs = rows(&host_with(2, &workers), 1.0);
        assert_eq!(jobs[0].row.trouble, Some(ProcessTrouble::Zombie));
        assert_eq!(jobs[0].row.process_state, Some(ProcessState::Zombie));
    }
}

#[test]
fn ended_workers_stay_in_their_job_but_do_not_count() {
    let mut host = host_with(2, &torchrun(2));
    host.send_snapshot(3.0, &[reading(97, 40), reading(97, 0)], &torchrun(1));
    let jobs = rows(&host, 3.0);
    assert_eq!((jobs[0].row.workers, jobs[0].row.ended_at), (1, None));
    assert_eq!(jobs[0].row.gpu_memory_bytes, Some(40 << 30));
    assert_eq!(jobs[0].processes().iter().map(|row| row.ended_at).collect::<Vec<_>>(), [None, Some(at(3.0))]);
}

#[test]
fn an_ended_job_stays_for_ten_minutes() {
    let mut host = host_with(2, &torchrun(2));
    host.send_snapshot(3.0, &[reading(97, 0), reading(97, 0)], &[]);
    let row = &rows(&host, 602.0)[0].row;
    assert_eq!((row.ended_at, row.workers, row.state), (Some(at(3.0)), 2, None));
    assert_eq!(rows(&host, 603.0), []);
}

#[test]
fn rows_without_current_readings_are_stale() {
    let host = host_with(1, &[process(7, "python", &[(0, 1)])]);
    assert!(!rows(&host, 7.0)[0].row.is_stale);
    assert!(rows(&host, 7.5)[0].row.is_stale);
}

#[test]
fn troubles_are_ranked_and_a_hidden_process_has_no_rank() {
    let ranks = [
        ProcessTrouble::MemoryNotReleased,
        ProcessTrouble::Zombie,
        ProcessTrouble::Stopped,
        ProcessTrouble::Traced,
        ProcessTrouble::DiskWait,
        ProcessTrouble::Hidden,
    ]
    .map(ProcessTrouble::rank);
    assert!(ranks.iter().flatten().all(|rank| *rank > Row::STUCK_WARNING_RANK), "a stuck job ranks before them");
    assert_eq!(ranks, [Some(3), Some(4), Some(5), Some(5), Some(6), None]);
}
