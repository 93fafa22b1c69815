use super::*;
use crate::fleet::fixture::{TestHost, TestProcess, at, gpus, process, reading};

fn of(user: &str, uid: u32, mut process: TestProcess) -> TestProcess {
    process.facts.user = Some(user.into());
    process.facts.uid = Some(uid);
    process
}

fn uses(id: u32, states: &[GpuState], processes: &[TestProcess]) -> Vec<HostUsage> {
    let mut host = TestHost::new(id, gpus(0..states.len() as u32));
    host.send_snapshot(10.0, &vec![reading(50, 40); states.len()], processes);
    let states: Vec<_> = states.iter().map(|state| (*state, Some(at(4.0)))).collect();
    let users = host_users(&host.host, &states);
    assert_eq!(users.held + users.unheld(), states.len() as u32, "every GPU is held or not");
    users.users
}

#[test]
fn gpus_are_counted_once_a_user_and_those_with_several_are_shared() {
    use GpuState::{Free, Idle, InUse};
    let bob = |pid, on: &[(u16, u64)]| of("bob", 1001, process(pid, "python b.py", on));
    let uses = uses(
        0,
        &[InUse, Idle, InUse, Free],
        &[
            process(100, "python a.py", &[(0, 30), (1, 20)]),
            bob(200, &[(0, 10)]),
            bob(201, &[(0, 5)]),
            bob(202, &[(2, 7)]),
        ],
    );
    let names: Vec<&str> = uses.iter().map(|one| one.who.as_str()).collect();
    assert_eq!(names, ["alice", "bob"]);
    let (alice, bob) = (&uses[0], &uses[1]);
    assert_eq!((alice.gpus, alice.shared, alice.is_mine), (2, 1, true));
    assert_eq!((alice.in_state(InUse), alice.in_state(Idle)), (1, 1));
    assert_eq!((alice.memory_bytes, alice.idle_memory_bytes), (Some(50 << 30), 20 << 30));
    assert_eq!(alice.idle_since, Some(at(4.0)));
    assert_eq!((bob.gpus, bob.shared, bob.is_mine, bob.memory_bytes), (2, 1, false, Some(22 << 30)));
}

#[test]
fn instances_count_as_the_gpu_that_they_are_parts_of() {
    let mut infos = gpus(0..3);
    infos[0].mig_enabled = Some(true);
    infos[1].mig_parent_uuid = Some("GPU-0".into());
    infos[2].mig_parent_uuid = Some("GPU-0".into());
    let mut host = TestHost::new(0, infos);
    let processes = [process(1, "a", &[(1, 5)]), of("bob", 1001, process(2, "b", &[(2, 6)]))];
    host.send_snapshot(10.0, &[reading(0, 11), reading(0, 5), reading(0, 6)], &processes);
    let states = [(GpuState::InUse, None); 3];
    let users = host_users(&host.host, &states);
    assert_eq!((users.held, users.unheld()), (1, 0));
    let uses = users.users;
    assert_eq!(uses.iter().map(|one| (one.gpus, one.shared)).collect::<Vec<_>>(), [(1, 1), (1, 1)]);
}

#[test]
fn users_are_summed_over_hosts_and_the_most_comes_first() {
    use GpuState::{Hung, InUse};
    let bob = |pid, on: &[(u16, u64)]| of("bob", 1001, process(pid, "python b.py", on));
    let first = uses(0, &[InUse, InUse], &[process(1, "a", &[(0, 1)]), bob(2, &[(1, 1)])]);
    let second = uses(1, &[Hung, InUse], &[bob(3, &[(0, 2), (1, 2)])]);
    let hosts = [(HostId(0), first.as_slice()), (HostId(1), second.as_slice())];
    let users = users(hosts.into_iter(), &UsageLedger::default());
    assert_eq!(users.iter().map(|user| user.sum.who.as_str()).collect::<Vec<_>>(), ["bob", "alice"]);
    assert_eq!((users[0].sum.gpus, users[0].sum.in_state(Hung)), (3, 1));
    assert_eq!(users[0].hosts, [(HostId(1), 2), (HostId(0), 1)]);
    assert_eq!(users[0].sum.memory_bytes, Some(5 << 30));
}

#[test]
fn hours_are_counted_while_gpus_are_held_and_not_over_a_sleep() {
    use GpuState::{Idle, InUse};
    let held = uses(0, &[InUse, Idle], &[process(1, "a", &[(0, 1), (1, 1)])]);
    let mut ledger = UsageLedger::default();
    for second in 0..=3600 {
        ledger.tick([held.as_slice()].into_iter(), at(f64::from(second)));
    }
    let spent = ledger.gpu_hours(&"alice".into());
    assert!((spent.held_hours - 2.0).abs() < 1e-9 && (spent.used_hours - 1.0).abs() < 1e-9, "{spent:?}");
    ledger.tick([held.as_slice()].into_iter(), at(30_000.0));
    assert_eq!(ledger.gpu_hours(&"alice".into()), spent, "the machine slept");
    let gone = users([(HostId(0), &[][..])].into_iter(), &ledger);
    assert_eq!((gone.len(), gone[0].sum.gpus, gone[0].gpu_hours), (1, 0, spent), "who has left is still told");
}
