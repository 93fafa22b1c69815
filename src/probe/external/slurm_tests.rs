//! Tests of the queries of the node and its jobs, and of the ends of jobs.

use super::super::child::write_script;
use super::super::slurm_ends::{SlurmEnds, shown};
use super::*;
use crate::probe::blocking::{MAX_THREADS, block};
use std::time::{Duration, Instant};

/// Output of Slurm 23.11 for a node with eight H100, shortened (scontrol(1), https://slurm.schedmd.com/gres.html).
const NODE: &str = "NodeName=hgx-01 Arch=x86_64 CoresPerSocket=56 CPUAlloc=32 CPUTot=224 Gres=gpu:h100:8(S:0-1) \
    GresDrain=N/A GresUsed=gpu:h100:3(IDX:0-1,5),mps:0 NodeAddr=hgx-01 State=MIXED\n";

#[test]
fn allocated_gpu_indices_are_parsed() {
    assert_eq!(allocated_gpus(NODE), Some(vec![0, 1, 5]));
    for (gres_used, expected) in [
        ("gpu:h100:0(IDX:N/A)", vec![]),
        ("gpu:2(IDX:0,3)", vec![0, 3]),
        ("gpu:a100:1(IDX:0),gpu:v100:2(IDX:2-3),shard:a100:4(IDX:1)", vec![0, 2, 3]),
        ("gpu:h100:8(IDX:0-4294967295)", vec![]),
        ("gpu:h100:8(IDX:3-", vec![]),
        ("gpu:h100:8", vec![]),
        ("", vec![]),
    ] {
        assert_eq!(
            allocated_gpus(&format!("NodeName=x GresUsed={gres_used} State=IDLE")),
            Some(expected),
            "{gres_used}"
        );
    }
    assert_eq!(allocated_gpus("NodeName=x State=IDLE"), None);
}

/// Output of Slurm 23.11 for a job on three nodes, shortened (slurm, src/api/job_info.c).
const JOB: &str = "JobId=3385 JobName=train UserId=ann(1000) GroupId=ann(1000) JobState=RUNNING NodeList=hgx-[01-03] \
    JOB_GRES=gpu:h100:7 Nodes=hgx-[01-02] CPU_IDs=0-31 Mem=512000 GRES=gpu:h100:3(IDX:0-1,5) \
    Nodes=hgx-03 CPU_IDs=0-15 Mem=256000 GRES=gpu:h100:1(IDX:7) MinCPUsNode=16 Features=(null)\n";

#[test]
fn the_gpus_of_a_job_on_this_node_are_parsed() {
    for (node, expected) in [
        ("hgx-01", &[0, 1, 5][..]),
        ("hgx-02", &[0, 1, 5]),
        ("hgx-03", &[7]),
        ("hgx-04", &[]),
        ("hgx-0", &[]),
        ("", &[]),
    ] {
        assert_eq!(job_gpus(JOB, "3385", node), expected, "{node}");
    }
    let none = Vec::<u32>::new();
    let line = "JobId=7 Nodes=a CPU_IDs=0 Mem=0 GRES= Nodes=b CPU_IDs=1 GRES=gpu:1(IDX:4)";
    assert_eq!(job_gpus(line, "7", "a"), none);
    let name = "JobId=7 JobName=x Nodes=a GRES=gpu:1(IDX:4)";
    assert_eq!(job_gpus(name, "7", "a"), none, "a job whose name looks like a group of nodes");
    let tasks = "JobId=7 Nodes=a CPU_IDs=0 GRES=gpu:1(IDX:0)\nJobId=8 Nodes=a CPU_IDs=1 GRES=gpu:1(IDX:1)";
    assert_eq!(job_gpus(tasks, "7", "a"), [0], "another task of the array");
    let name = "JobId=7 JobName=two\nlines UserId=ann(1000) Nodes=a CPU_IDs=0 GRES=gpu:1(IDX:2)\nJobId=8 Nodes=a CPU_IDs=1 GRES=gpu:1(IDX:1)";
    assert_eq!(job_gpus(name, "7", "a"), [2], "a line break in the name of the job");
    let endless = format!("n{}z", "[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]".repeat(12));
    assert!(!hostlist_contains(&endless, "n000000000000"), "it ends");
}

#[test]
fn host_lists_are_matched() {
    for (list, inside, outside) in [
        ("hgx-01", "hgx-01", "hgx-1"),
        ("a,b[1,3-4],c", "b3", "b2"),
        ("a,b[1,3-4],c", "c", "d"),
        ("n[9-11]", "n10", "n010"),
        ("n[009-011]", "n010", "n10"),
        ("rack[1-2]node[01-04]", "rack2node03", "rack3node03"),
        ("n[1-2]-ib", "n2-ib", "n2"),
    ] {
        assert!(hostlist_contains(list, inside), "{list} {inside}");
        assert!(!hostlist_contains(list, outside), "{list} {outside}");
    }
    for broken in ["n[1-2", "n]1[", "[", "n[-]", "n[1-]", "ñ[1-2]", ""] {
        assert!(!hostlist_contains(broken, "n1"), "{broken}");
    }
}

#[test]
fn running_jobs_are_parsed_and_limited() {
    let text = "3385 3385 ann\n x\nCLUSTER: lab\n3386  3380_5  bob \n7 \n8 ann\n9 --all ann\n10 10+0 ann\n";
    let jobs = running_jobs(text);
    let names: Vec<_> = jobs.iter().map(|listed| (&*listed.job.job, &*listed.id, listed.job.user.as_deref())).collect();
    assert_eq!(names, [("3385", "3385", Some("ann")), ("3386", "3380_5", Some("bob")), ("10", "10+0", Some("ann"))]);
    assert_eq!(running_jobs(&"7 7 ann\n".repeat(2000)).len(), MAX_NODE_JOBS);
}

#[test]
fn the_cluster_name_is_parsed() {
    let config = "Configuration data as of 2025-01-01\nAccountingStorageHost   = db\nClusterName             = lab\n";
    assert_eq!(cluster_name(config).as_deref(), Some("lab"));
    assert_eq!(cluster_name("ClusterName = (null)\n"), None);
}

/// Prints the file `jobs` beside it, and fails without one.
const SQUEUE: &str = "case $* in '-h -t RUNNING -o %A %i %u -w hgx-01') cat \"${0%/*}/jobs\" ;; *) exit 1 ;; esac";

/// Uses this script as `scontrol`.
fn with_scontrol(text: &str, node_names: &[&str]) -> (Slurm, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let program = write_script(folder.path(), "scontrol", text);
    let node_names = node_names.iter().map(|name| (*name).to_owned()).collect();
    let squeue = ProgramPath::at(Some(write_script(folder.path(), "squeue", SQUEUE)));
    let program = ProgramPath::at(Some(program));
    // A phase of a half is a wait of one period.
    let (ends, slurm) = (SlurmEnds::new(0.0), Slurm::new(BlockingPool::new(), 0.5));
    let slurm = Slurm { program, node_names, squeue, ends, ..slurm };
    (slurm, folder)
}

/// Advances until the next query is not due. Returns all updates.
fn run_until_idle(slurm: &mut Slurm, now: f64) -> SlurmUpdate {
    let (deadline, mut all) = (Instant::now() + Duration::from_secs(30), SlurmUpdate::default());
    while Instant::now() < deadline {
        let update = slurm.advance(now, false);
        all.cluster = update.cluster.or(all.cluster);
        all.allocated = update.allocated.or(all.allocated);
        all.jobs = update.jobs.or(all.jobs);
        all.ends.extend(update.ends);
        if matches!(&slurm.state, State::Idle { due } if *due > now) {
            return all;
        }
        std::thread::yield_now();
    }
    panic!("the query does not end: {slurm:?}")
}

#[test]
fn the_node_is_queried_every_minute_and_the_cluster_once() {
    let script = format!(
        "case $* in 'show config') echo 'ClusterName = lab' ;; '-d -o show node hgx-01') echo '{NODE}' ;; \
         *) exit 1 ;; esac; echo \"$*\" >>\"$0.calls\""
    );
    let (mut slurm, folder) = with_scontrol(&script, &["elsewhere", "hgx-01"]);
    let update = run_until_idle(&mut slurm, 1.0);
    assert_eq!((update.cluster.as_deref(), update.allocated), (Some("lab"), Some(vec![0, 1, 5])));
    assert_eq!(slurm.advance(60.0, false), SlurmUpdate::default());
    assert_eq!(slurm.advance(60.0, true).allocated, Some(vec![0, 1, 5]));
    assert_eq!(run_until_idle(&mut slurm, 61.0), SlurmUpdate::default(), "nothing has changed");
    let arguments = std::fs::read_to_string(folder.path().join("scontrol.calls")).unwrap();
    assert_eq!(arguments, "show config\n-d -o show node hgx-01\n-d -o show node hgx-01\n");
}

#[test]
fn the_boot_id_gives_the_phase_of_a_host() {
    for (boot_id, expected) in [
        (Some("00000000-1111-4111-8111-111111111111"), 0.0),
        (Some("40000000-1111-4111-8111-111111111111"), 0.25),
        (Some("no boot id"), 0.5),
        (Some("7"), 0.5),
        (None, 0.5),
    ] {
        assert!((phase(boot_id) - expected).abs() < 1e-9, "{boot_id:?}");
    }
    let last = phase(Some("ffffffff-1111-4111-8111-111111111111"));
    assert!(last > 0.99 && last < 1.0);
}

#[test]
fn hosts_that_start_together_query_at_different_times_from_then_on() {
    let first_due = |script: &str, phase: f64| {
        let (slurm, _folder) = with_scontrol(script, &["hgx-01"]);
        let mut slurm = Slurm { phase: Some(phase), ..slurm };
        run_until_idle(&mut slurm, 1.0);
        let State::Idle { due } = slurm.state else { panic!("{slurm:?}") };
        // The second wait takes one period.
        run_until_idle(&mut slurm, due);
        let State::Idle { due: second } = slurm.state else { panic!("{slurm:?}") };
        (due, second - due)
    };
    let answers =
        "case $* in 'show config') echo 'ClusterName = lab' ;; *) echo 'GresUsed=gpu:h100:0(IDX:N/A)' ;; esac";
    for (phase, first) in [(0.0, 31.0), (0.25, 46.0), (0.75, 76.0)] {
        assert_eq!(first_due(answers, phase), (first, QUERY_SECONDS));
        assert_eq!(first_due("exit 1", phase), ((first - 1.0) * 10.0 + 1.0, RETRY_SECONDS));
    }
}

#[test]
fn jobs_are_listed_when_the_allocation_changes_and_each_is_queried_once() {
    let script = format!(
        "case $* in 'show config') echo 'ClusterName = lab' ;; '-d -o show node hgx-01') cat \"$0.node\" ;; \
         '-d -o show job 3385') echo '{JOB}' ;; \
         '-d -o show job 3390') echo 'JobId=3390 Nodes=hgx-01 CPU_IDs=32 Mem=1 GRES=gpu:h100:1(IDX:2)' ;; \
         *) exit 1 ;; esac; echo \"$*\" >>\"$0.calls\""
    );
    let (mut slurm, folder) = with_scontrol(&script, &["hgx-01"]);
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let calls = || {
        let calls = std::fs::read_to_string(folder.path().join("scontrol.calls")).unwrap_or_default();
        calls.lines().filter(|line| line.contains("job")).count()
    };
    let job = |job: &str, user: &str, gpus: &[u32]| SlurmJob {
        job: job.into(),
        user: Some(user.into()),
        gpus: gpus.to_vec(),
    };
    write("scontrol.node", "GresUsed=gpu:h100:3(IDX:0-1,5)");
    // The first job has ended when it is queried.
    write("jobs", "3386 3386 bob\n3385 3385 ann\n");
    let ann = job("3385", "ann", &[0, 1, 5]);
    assert_eq!(run_until_idle(&mut slurm, 1.0).jobs, Some(vec![ann.clone()]));
    assert_eq!(run_until_idle(&mut slurm, 61.0), SlurmUpdate::default());
    assert_eq!(calls(), 1, "an unchanged node is not listed again");
    write("scontrol.node", "GresUsed=gpu:h100:4(IDX:0-2,5)");
    write("jobs", "3385 3385 ann\n3390 3390 bob\n");
    let both = vec![ann, job("3390", "bob", &[2])];
    assert_eq!(run_until_idle(&mut slurm, 121.0).jobs, Some(both.clone()));
    assert_eq!(calls(), 2, "the known job is not queried again");
    assert_eq!(slurm.advance(122.0, true).jobs, Some(both));
    // Ten minutes later they are listed again.
    write("jobs", "3390 3390 bob\n");
    assert_eq!(run_until_idle(&mut slurm, 721.0).jobs, Some(vec![job("3390", "bob", &[2])]));
    // A node without allocated GPUs has no jobs with GPUs, and no query is needed to know it.
    write("scontrol.node", "GresUsed=gpu:h100:0(IDX:N/A)");
    std::fs::remove_file(folder.path().join("jobs")).unwrap();
    assert_eq!(run_until_idle(&mut slurm, 781.0).jobs, Some(vec![]));
    // If squeue fails, the jobs are unknown and the allocation is not.
    write("scontrol.node", "GresUsed=gpu:h100:1(IDX:4)");
    assert_eq!(run_until_idle(&mut slurm, 841.0).allocated, Some(vec![4]));
    assert_eq!((slurm.jobs, slurm.allocated), (None, Some(vec![4])));
}

#[test]
fn jobs_are_queried_until_the_job_of_each_allocated_gpu_is_known() {
    // Many jobs without GPUs, then a task of an array with one, then a job that nobody needs to query.
    let script = "case $* in 'show config') echo 'ClusterName = lab' ;; \
         '-d -o show node hgx-01') echo 'GresUsed=gpu:h100:1(IDX:4)' ;; \
         '-d -o show job 100_7') echo 'JobId=507 ArrayJobId=100 Nodes=hgx-01 CPU_IDs=1 Mem=1 GRES=gpu:h100:1(IDX:4)' ;; \
         '-d -o show job '*) echo \"JobId=${5} Nodes=hgx-01 CPU_IDs=0 Mem=1 GRES=\" ;; esac; echo \"$*\" >>\"$0.calls\"";
    let (mut slurm, folder) = with_scontrol(script, &["hgx-01"]);
    let without_gpus: String = (1..=70).map(|job| format!("{job} {job} bob\n")).collect();
    std::fs::write(folder.path().join("jobs"), without_gpus + "507 100_7 ann\n508 508 bob\n").unwrap();
    let task = SlurmJob { job: "507".into(), user: Some("ann".into()), gpus: vec![4] };
    assert_eq!(run_until_idle(&mut slurm, 1.0).jobs, Some(vec![task]));
    let calls = std::fs::read_to_string(folder.path().join("scontrol.calls")).unwrap();
    assert_eq!(calls.lines().filter(|line| line.contains("job")).count(), 71);
    // Ten minutes later, the list is the same.
    assert_eq!(run_until_idle(&mut slurm, 601.0), SlurmUpdate::default());
    let calls = std::fs::read_to_string(folder.path().join("scontrol.calls")).unwrap();
    assert_eq!(calls.lines().filter(|line| line.contains("job")).count(), 71);
}

#[test]
fn all_jobs_are_queried_at_a_long_interval() {
    let script = "case $* in 'show config') echo 'ClusterName = lab' ;; \
         '-d -o show node hgx-01') echo 'GresUsed=gpu:h100:8(IDX:0-7)' ;; \
         '-d -o show job '*) echo \"JobId=${5} Nodes=hgx-01 CPU_IDs=0 Mem=1 GRES=gpu:h100:1(IDX:${5})\" ;; esac";
    let (mut slurm, folder) = with_scontrol(script, &["hgx-01"]);
    std::fs::write(folder.path().join("jobs"), (0..8).map(|job| format!("{job} {job} bob\n")).collect::<String>())
        .unwrap();
    let query = |slurm: &Slurm| match &slurm.state {
        State::Querying { query, .. } => format!("{query:?}"),
        State::Idle { .. } => String::new(),
    };
    let (deadline, mut jobs) = (Instant::now() + Duration::from_secs(30), None);
    for sample in 0..40 {
        let before = query(&slurm);
        // Each program ends between two samples.
        while query(&slurm) == before && Instant::now() < deadline {
            jobs = slurm.advance(f64::from(sample) * 5.0, false).jobs.or(jobs);
            if matches!(slurm.state, State::Idle { .. }) {
                break;
            }
            std::thread::yield_now();
        }
    }
    assert_eq!(jobs.map(|jobs| jobs.len()), Some(8), "{slurm:?}");
}

#[test]
fn a_slurmctld_that_hangs_ends_the_queries_of_a_list_until_the_next_minute() {
    let script = format!(
        "case $* in 'show config') echo 'ClusterName = lab' ;; '-d -o show node hgx-01') echo '{NODE}' ;; \
         *) [ -e \"$0.hangs\" ] && exec sleep 600; echo '{JOB}' ;; esac"
    );
    let (mut slurm, folder) = with_scontrol(&script, &["hgx-01"]);
    std::fs::write(folder.path().join("jobs"), "3385 3385 ann\n3386 3386 bob\n").unwrap();
    let hangs = folder.path().join("scontrol.hangs");
    std::fs::write(&hangs, "").unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !matches!(slurm.state, State::Querying { query: Query::Job { .. }, .. }) && Instant::now() < deadline {
        slurm.advance(1.0, false);
        std::thread::yield_now();
    }
    slurm.pool.wait_until_idle(deadline);
    assert_eq!(run_until_idle(&mut slurm, 12.0).jobs, Some(vec![]), "neither job is known");
    assert!(matches!(slurm.state, State::Idle { due } if (71.5..72.5).contains(&due)), "{slurm:?}");
    std::fs::remove_file(hangs).unwrap();
    let job = SlurmJob { job: "3385".into(), user: Some("ann".into()), gpus: vec![0, 1, 5] };
    assert_eq!(run_until_idle(&mut slurm, 72.0).jobs, Some(vec![job]));
}

/// Answers about the end of job 3385 with the file `end` beside it.
const END_SCRIPT: &str = "case $* in 'show config') echo 'ClusterName = lab' ;; '-d -o show node hgx-01') cat \"$0.node\" ;; \
     '-d -o show job 3385') echo 'JobId=3385 Nodes=hgx-01 CPU_IDs=32 Mem=1 GRES=gpu:h100:1(IDX:2)' ;; \
     'show job 3385') echo x >>\"$0.calls\"; cat \"$0.end\" ;; *) exit 1 ;; esac";

#[test]
fn a_job_that_left_the_gpus_is_queried_until_its_epilog_has_run() {
    let (mut slurm, folder) = with_scontrol(END_SCRIPT, &["hgx-01"]);
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let calls = || std::fs::read_to_string(folder.path().join("scontrol.calls")).unwrap_or_default().lines().count();
    write("scontrol.node", "GresUsed=gpu:h100:0(IDX:N/A)");
    run_until_idle(&mut slurm, 1.0);
    // The query of the node may come first.
    let ends =
        |slurm: &mut Slurm, now: f64| [run_until_idle(slurm, now).ends, run_until_idle(slurm, now).ends].concat();
    // It left the GPUs and runs on. Its next step may leave them a minute later.
    write("scontrol.end", &shown("RUNNING Reason=None", "0:0"));
    for (now, queries) in [(2.0, 1), (9.0, 1), (100.0, 2)] {
        slurm.ends.note_left(&"3385".into(), now);
        assert_eq!((ends(&mut slurm, now + 6.0), calls()), (vec![], queries));
    }
    write("scontrol.end", &shown("COMPLETING Reason=NonZeroExitCode", "1:0"));
    slurm.ends.note_left(&"3385".into(), 200.0);
    assert_eq!((ends(&mut slurm, 205.0), calls()), (vec![], 3));
    assert_eq!((ends(&mut slurm, 214.0), calls()), (vec![], 3), "ten seconds later");
    write("scontrol.end", &shown("FAILED Reason=NonZeroExitCode", "1:0"));
    let end = SlurmJobEnd { job: "3385".into(), state: "FAILED".into(), exit_status: Some(1), signal: None };
    assert_eq!(ends(&mut slurm, 215.0), std::slice::from_ref(&end));
    slurm.ends.note_left(&"3385".into(), 300.0);
    assert_eq!((slurm.advance(310.0, false).ends, calls()), (vec![], 4), "it is sent and queried once");
    run_until_idle(&mut slurm, 310.0);
    assert_eq!(slurm.advance(311.0, true).ends, std::slice::from_ref(&end));
    // It was put back into the queue, runs and ends again.
    slurm.ends.note_on_gpus([SafeText::from("3386")].iter());
    assert_eq!(slurm.advance(312.0, true).ends, [end], "another job");
    slurm.ends.note_on_gpus([SafeText::from("3385")].iter());
    write("scontrol.end", &shown("COMPLETED Reason=None", "0:0"));
    slurm.ends.note_left(&"3385".into(), 320.0);
    let states: Vec<_> = ends(&mut slurm, 326.0).into_iter().map(|end| end.state.to_string()).collect();
    assert_eq!((states, calls()), (vec!["COMPLETED".to_owned()], 5));
}

/// A node on which job 3385 runs, and the folder of `scontrol`.
fn with_running_job() -> (Slurm, tempfile::TempDir) {
    let (mut slurm, folder) = with_scontrol(END_SCRIPT, &["hgx-01"]);
    std::fs::write(folder.path().join("scontrol.node"), "GresUsed=gpu:h100:1(IDX:2)").unwrap();
    std::fs::write(folder.path().join("jobs"), "3385 3385 ann\n").unwrap();
    assert_eq!(run_until_idle(&mut slurm, 1.0).jobs.map(|jobs| jobs.len()), Some(1));
    (slurm, folder)
}

#[test]
fn a_job_that_is_no_longer_listed_has_ended() {
    let (mut slurm, folder) = with_running_job();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("scontrol.node", "GresUsed=gpu:h100:0(IDX:N/A)");
    write("scontrol.end", &shown("PREEMPTED Reason=None", "0:15"));
    assert_eq!(run_until_idle(&mut slurm, 61.0).ends, []);
    let ends = run_until_idle(&mut slurm, 66.0).ends;
    assert_eq!(ends.iter().map(|end| &*end.state).collect::<Vec<_>>(), ["PREEMPTED"]);
}

#[test]
fn a_job_whose_script_goes_on_after_its_process_is_queried_when_it_is_no_longer_listed() {
    let (mut slurm, folder) = with_running_job();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("scontrol.end", &shown("RUNNING Reason=None", "0:0"));
    slurm.ends.note_left(&"3385".into(), 40.0);
    assert_eq!(run_until_idle(&mut slurm, 45.0).ends, []);
    write("scontrol.node", "GresUsed=gpu:h100:0(IDX:N/A)");
    write("scontrol.end", &shown("FAILED Reason=NonZeroExitCode", "1:0"));
    assert_eq!(run_until_idle(&mut slurm, 61.0).ends, []);
    assert_eq!(slurm.ends.due_at("3385"), Some(66.0));
}

#[test]
fn a_query_of_an_end_that_cannot_start_delays_only_that_end() {
    let (mut slurm, folder) = with_scontrol(END_SCRIPT, &["hgx-01"]);
    std::fs::write(folder.path().join("scontrol.node"), "GresUsed=gpu:h100:0(IDX:N/A)").unwrap();
    run_until_idle(&mut slurm, 1.0);
    slurm.ends.note_left(&"3385".into(), 1.0);
    let release = block(&slurm.pool, MAX_THREADS);
    // Fills the queue, too.
    while slurm.pool.run(|| ()).is_some() {}
    slurm.advance(7.0, false);
    assert!(matches!(slurm.state, State::Idle { due } if (60.5..61.5).contains(&due)), "{slurm:?}");
    assert_eq!(slurm.ends.due_at("3385"), Some(17.0));
    drop(release);
}

#[test]
fn jobs_that_end_together_are_all_queried_although_samples_are_rare() {
    let script = "case $* in 'show config') echo 'ClusterName = lab' ;; '-d -o show node hgx-01') cat \"$0.node\" ;; \
                  *) echo \"JobId=$3 JobName=x\"; echo '   JobState=FAILED Reason=x'; echo '   Requeue=1 ExitCode=1:0' ;; esac";
    let (mut slurm, folder) = with_scontrol(script, &["hgx-01"]);
    std::fs::write(folder.path().join("scontrol.node"), "GresUsed=gpu:h100:0(IDX:N/A)").unwrap();
    run_until_idle(&mut slurm, 1.0);
    for job in 1..=8 {
        slurm.ends.note_left(&SafeText::new(&format!("33{job}")), 10.0);
    }
    let queried = |slurm: &Slurm| match &slurm.state {
        State::Querying { query: Query::End { job, .. }, .. } => Some(job.clone()),
        _ => None,
    };
    let (deadline, mut ends) = (Instant::now() + Duration::from_secs(30), Vec::new());
    for sample in 1..=9 {
        // A program ends before the next sample, which comes before its timeout.
        let before = queried(&slurm);
        while queried(&slurm) == before && Instant::now() < deadline {
            ends.extend(slurm.advance(9.0 * f64::from(sample) + 10.0, false).ends);
        }
    }
    assert_eq!(ends.len(), 8, "{slurm:?}");
}

#[test]
fn unanswered_queries_between_answers_do_not_add_up() {
    let (mut slurm, _folder) = with_scontrol(END_SCRIPT, &["hgx-01"]);
    for now in [100.0, 200.0, 300.0, 400.0] {
        slurm.take_failure(Query::Jobs, false, now);
        slurm.take_answer(Query::Node, "GresUsed=gpu:h100:0(IDX:N/A)", now + 60.0);
    }
    slurm.ends.note_left(&"3385".into(), 400.0);
    assert!(slurm.ends.due(420.0).is_some(), "a pause of 20 s");
}

#[test]
fn a_query_without_an_answer_delays_all_ends() {
    let (mut slurm, _folder) = with_scontrol(END_SCRIPT, &["hgx-01"]);
    slurm.ends.note_left(&"3385".into(), 1.0);
    slurm.ends.note_left(&"3386".into(), 1.0);
    let query = Query::End { job: "3385".into(), node_due: 61.0 };
    assert!(matches!(slurm.take_failure(query, false, 20.0), State::Idle { due } if (60.9..61.1).contains(&due)));
    assert_eq!((slurm.ends.due_at("3385"), slurm.ends.due(39.0)), (Some(40.0), None));
    assert_eq!(slurm.ends.due(40.0).map(|(_, job)| job), Some("3386".into()), "another one");
    slurm.take_failure(Query::Node, false, 40.0);
    assert_eq!(slurm.ends.due(79.0), None);
    assert!(slurm.ends.due(80.0).is_some());
}

#[test]
fn the_end_of_a_job_is_known_although_the_first_query_hangs() {
    let script = END_SCRIPT.replace("echo x", "[ -e \"$0.hangs\" ] && exec sleep 600; echo x");
    let (mut slurm, folder) = with_scontrol(&script, &["hgx-01"]);
    std::fs::write(folder.path().join("scontrol.node"), "GresUsed=gpu:h100:0(IDX:N/A)").unwrap();
    std::fs::write(folder.path().join("scontrol.end"), shown("OUT_OF_MEMORY Reason=OutOfMemory", "0:125")).unwrap();
    let hangs = folder.path().join("scontrol.hangs");
    std::fs::write(&hangs, "").unwrap();
    run_until_idle(&mut slurm, 1.0);
    slurm.ends.note_left(&"3385".into(), 1.0);
    slurm.advance(6.0, false);
    assert!(matches!(slurm.state, State::Querying { query: Query::End { .. }, .. }), "{slurm:?}");
    slurm.pool.wait_until_idle(Instant::now() + Duration::from_secs(30));
    assert_eq!(run_until_idle(&mut slurm, 30.0).ends, []);
    std::fs::remove_file(hangs).unwrap();
    slurm.advance(49.0, false);
    assert!(matches!(slurm.state, State::Idle { .. }), "it waits");
    slurm.advance(50.0, false);
    let ends = run_until_idle(&mut slurm, 50.0).ends;
    assert_eq!(ends.iter().map(|end| &*end.state).collect::<Vec<_>>(), ["OUT_OF_MEMORY"]);
}

#[test]
fn a_job_that_slurmctld_has_forgotten_is_queried_once() {
    let (mut slurm, folder) = with_scontrol(END_SCRIPT, &["hgx-01"]);
    std::fs::write(folder.path().join("scontrol.node"), "GresUsed=gpu:h100:0(IDX:N/A)").unwrap();
    run_until_idle(&mut slurm, 1.0);
    slurm.ends.note_left(&"3385".into(), 1.0);
    for now in [7.0, 20.0, 50.0] {
        assert_eq!(run_until_idle(&mut slurm, now).ends, []);
    }
    let calls = std::fs::read_to_string(folder.path().join("scontrol.calls")).unwrap();
    assert_eq!(calls.lines().count(), 1);
}

#[test]
fn a_slurmctld_that_refuses_connections_has_not_forgotten_a_job() {
    let script = END_SCRIPT
        .replace("cat \"$0.end\"", "if [ -e \"$0.down\" ]; then cat \"$0.down\" >&2; exit 1; fi; cat \"$0.end\"");
    let end = SlurmJobEnd { job: "3385".into(), state: "TIMEOUT".into(), exit_status: Some(0), signal: Some(1) };
    for (message, expected) in [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", Some(end.clone())),
        ("scontrol: error: connect to 10.0.0.1:6817: Connection refused\n", Some(end.clone())),
        ("slurm_load_jobs error: Socket timed out on send/recv operation\n", Some(end.clone())),
        ("slurm_load_jobs error: Rate limit exceeded, please retry momentarily\n", Some(end)),
        ("slurm_load_jobs error: Invalid job id specified\n", None),
        ("slurm_load_jobs error: Access/permission denied\n", None),
    ] {
        let (mut slurm, folder) = with_scontrol(&script, &["hgx-01"]);
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("scontrol.node", "GresUsed=gpu:h100:0(IDX:N/A)");
        write("scontrol.end", &shown("TIMEOUT Reason=TimeLimit", "0:1"));
        write("scontrol.down", message);
        run_until_idle(&mut slurm, 1.0);
        slurm.ends.note_left(&"3385".into(), 1.0);
        assert_eq!(run_until_idle(&mut slurm, 7.0).ends, [], "{message}");
        std::fs::remove_file(folder.path().join("scontrol.down")).unwrap();
        assert_eq!(run_until_idle(&mut slurm, 26.0).ends, [], "it waits for 20 s: {message}");
        assert_eq!(run_until_idle(&mut slurm, 27.0).ends, Vec::from_iter(expected), "{message}");
    }
}

#[test]
fn a_slurmctld_that_refuses_connections_ends_the_queries_of_a_list_until_the_next_minute() {
    let script = format!(
        "case $* in 'show config') echo 'ClusterName = lab' ;; '-d -o show node hgx-01') echo '{NODE}' ;; *) echo x >>\"$0.calls\"; \
         [ -e \"$0.down\" ] && {{ echo 'Unable to contact slurm controller' >&2; exit 1; }}; echo '{JOB}' ;; esac"
    );
    let (mut slurm, folder) = with_scontrol(&script, &["hgx-01"]);
    std::fs::write(folder.path().join("jobs"), "3385 3385 ann\n3386 3386 bob\n").unwrap();
    let down = folder.path().join("scontrol.down");
    std::fs::write(&down, "").unwrap();
    assert_eq!(run_until_idle(&mut slurm, 1.0).jobs, Some(vec![]), "neither job is known");
    let calls = std::fs::read_to_string(folder.path().join("scontrol.calls")).unwrap();
    assert_eq!(calls.lines().count(), 1, "the second job is not queried");
    assert!(matches!(slurm.state, State::Idle { due } if (60.5..61.5).contains(&due)), "{slurm:?}");
    std::fs::remove_file(down).unwrap();
    let job = SlurmJob { job: "3385".into(), user: Some("ann".into()), gpus: vec![0, 1, 5] };
    assert_eq!(run_until_idle(&mut slurm, 61.0).jobs, Some(vec![job]));
}

#[test]
fn a_failing_slurmctld_is_retried_later() {
    let (mut slurm, _folder) = with_scontrol("exit 1", &["hgx-01"]);
    assert_eq!(run_until_idle(&mut slurm, 1.0), SlurmUpdate::default());
    assert!(matches!(slurm.state, State::Idle { due } if due >= 601.0));
    let (mut slurm, _folder) = with_scontrol("exec sleep 600", &["hgx-01"]);
    slurm.advance(1.0, false);
    slurm.pool.wait_until_idle(Instant::now() + Duration::from_secs(30));
    assert!(matches!(slurm.state, State::Querying { .. }));
    assert_eq!(run_until_idle(&mut slurm, 12.0), SlurmUpdate::default());
}

#[test]
fn a_scontrol_that_cannot_start_is_queried_once() {
    let (mut slurm, folder) = with_scontrol("echo x >>\"$0.calls\"; exit 1", &["hgx-01"]);
    let release = block(&slurm.pool, MAX_THREADS);
    for now in 0..10_000 {
        assert_eq!(slurm.advance(f64::from(now) / 1e4, true), SlurmUpdate::default());
    }
    drop(release);
    run_until_idle(&mut slurm, 1.0);
    let arguments = std::fs::read_to_string(folder.path().join("scontrol.calls")).unwrap();
    assert_eq!(arguments.lines().count(), 1);
}
