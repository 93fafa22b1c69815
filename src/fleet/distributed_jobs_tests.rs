use super::*;
use crate::config::HostConfig;
use crate::fleet::HostUpdate;
use crate::fleet::fixture::{TestHost, TestProcess, at, gpus, process};
use crate::wire::Owner;
use std::sync::Arc;

/// A fleet of one GPU a host, with these processes.
fn fleet(hosts: Vec<Vec<TestProcess>>) -> Fleet {
    let configs: Vec<Arc<HostConfig>> =
        (0..hosts.len()).map(|id| Arc::new(HostConfig::named(format!("hgx-{id:02}")))).collect();
    let mut fleet = Fleet::new(&configs, false, at(0.0));
    for (id, processes) in (0..).zip(hosts) {
        let mut source = TestHost::new(id, gpus(0..1));
        let hello = source.host.hello.clone().expect("said");
        let inventory = source.host.inventory.clone().expect("told");
        let snapshot = source.snapshot(1.0, &[], &processes);
        for update in [
            HostUpdate::Hello(Box::new(hello)),
            HostUpdate::Inventory(Box::new(inventory)),
            HostUpdate::Snapshot(Box::new(snapshot)),
        ] {
            fleet.apply(HostId(id), update, at(1.0));
        }
    }
    fleet
}

fn started(mut process: TestProcess, seconds: i64) -> TestProcess {
    process.facts.start_unix_seconds = Some(1_700_000_000 + seconds);
    process
}

fn hosts(distributed: &[DistributedJob]) -> Vec<(Vec<u32>, bool)> {
    distributed.iter().map(|job| (job.parts.iter().map(|(host, _)| host.0).collect(), job.is_likely)).collect()
}

fn slurm(pid: u32, job: &str) -> TestProcess {
    let mut process = process(pid, "python train.py", &[(0, 40)]);
    process.facts.owner = Some(Owner::Slurm { job: job.into(), step: None });
    process
}

#[test]
fn the_same_slurm_job_is_one_job() {
    let fleet = fleet(vec![vec![slurm(7, "3385")], vec![slurm(9, "3386")], vec![slurm(8, "3385")]]);
    assert_eq!(hosts(&distributed_jobs(&fleet)), [(vec![0, 2], false)]);
}

#[test]
fn ranks_that_differ_only_in_their_numbers_are_likely_one_job() {
    let rank = |pid, rank: u32, at| {
        let command = format!("python train.py --node_rank={rank} --master-port 2950{rank} --lr 1 10.0.0.{rank}:29500");
        started(process(pid, &command, &[(0, 40)]), at)
    };
    let fleet = fleet(vec![vec![rank(7, 0, 0)], vec![rank(8, 1, 100)], vec![rank(9, 2, 300)]]);
    assert_eq!(hosts(&distributed_jobs(&fleet)), [(vec![0, 1], true)], "the third began five minutes later");
}

#[test]
fn other_commands_other_users_and_two_alike_on_a_host_are_not() {
    let run = |pid, command: &str| started(process(pid, command, &[(0, 40)]), 0);
    let mut of_bob = run(8, "python a.py");
    of_bob.facts.user = Some("bob".into());
    assert!(distributed_jobs(&fleet(vec![vec![run(7, "python a.py")], vec![of_bob]])).is_empty());
    assert!(
        distributed_jobs(&fleet(vec![vec![run(7, "python a.py --lr 1")], vec![run(8, "python a.py --lr 2")]]))
            .is_empty()
    );
    let twice = vec![run(7, "python a.py"), run(9, "python a.py")];
    assert!(distributed_jobs(&fleet(vec![twice, vec![run(8, "python a.py")]])).is_empty());
    assert!(
        distributed_jobs(&fleet(vec![vec![process(7, "python a.py", &[(0, 1)])], vec![run(8, "python a.py")]]))
            .is_empty()
    );
}
