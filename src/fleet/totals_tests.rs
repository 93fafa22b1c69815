use super::super::fixture::{TestHost, at, gpus, process, reading};
use super::*;
use crate::fleet::{Group, HostUpdate, LinkError, LinkErrorKind, ListOrder, RowCache, SortKey};
use crate::wire::{DriverError, DriverErrorKind, GpuInfo, GpuReading, SafeText};
use std::collections::HashSet;

fn states(of: &[GpuState]) -> Vec<(GpuState, Option<Moment>)> {
    of.iter().map(|state| (*state, None)).collect()
}

#[test]
fn a_host_is_summed() {
    let mut host = TestHost::new(0, gpus(0..3));
    host.send_snapshot(1.0, &[reading(100, 40), reading(0, 30), GpuReading::default()], &[]);
    let states = states(&[GpuState::InUse, GpuState::Idle, GpuState::Unknown]);
    let totals = Totals::of_host(&host.host, &states, at(1.0));
    assert_eq!((totals.hosts, totals.hosts_covered, totals.gpus), (1, 1, 3));
    assert_eq!((totals.memory_used_bytes, totals.memory_total_bytes), (Some(70 << 30), Some(160 << 30)));
    assert_eq!((totals.power_watts, totals.power_limit_watts), (Some(700.0), Some(1400.0)));
    let counts = GpuState::ALL.map(|state| totals.in_state(state));
    assert_eq!(counts, [0, 0, 1, 1, 0, 1, 0, 0]);
}

#[test]
fn what_nobody_knows_stays_unknown() {
    let totals = Totals::of_host(&TestHost::new(0, gpus(0..2)).host, &[], at(0.0));
    assert_eq!((totals.gpus, totals.in_state(GpuState::Unknown)), (2, 2));
    assert_eq!((totals.memory_used_bytes, totals.power_watts, totals.hosts_covered), (None, None, 0));
}

#[test]
fn hosts_without_fresh_data_are_counted_apart() {
    let mut fleet = Totals::default();
    let mut live = TestHost::new(0, gpus(0..2));
    live.send_snapshot(1.0, &[reading(100, 40), reading(0, 0)], &[]);
    let mut down = TestHost::new(1, gpus(0..2));
    down.send_snapshot(1.0, &[reading(100, 40), reading(0, 0)], &[]);
    let error = LinkError::new(LinkErrorKind::Closed, "the connection was closed");
    down.host.apply(HostUpdate::Down { error, retry_at: None, attempt: 1 }, at(2.0));
    let mut blocked = TestHost::new(2, gpus(0..2));
    let mut snapshot = blocked.snapshot(1.0, &[], &[]);
    snapshot.driver_error =
        Some(DriverError { kind: DriverErrorKind::Blocked, code: None, message: SafeText::default() });
    blocked.apply(1.0, snapshot);
    for host in [&live, &down, &blocked] {
        fleet.add(&Totals::of_host(&host.host, &states(&[GpuState::InUse, GpuState::Free]), at(2.0)));
    }
    assert_eq!((fleet.gpus, fleet.hosts_covered, fleet.hosts), (2, 1, 3), "2 GPUs on 1 of 3 hosts");
    assert_eq!((fleet.memory_used_bytes, fleet.in_state(GpuState::Free)), (Some(40 << 30), 1));
}

#[test]
fn mig_instances_are_parts_of_their_gpu() {
    let mut all = gpus(0..1);
    all[0].mig_enabled = Some(true);
    for instance in 0..2 {
        all.push(GpuInfo {
            uuid: Some(format!("MIG-{instance}").into()),
            memory_total_bytes: Some(40 << 30),
            mig_parent_uuid: all[0].uuid.clone(),
            ..GpuInfo::default()
        });
    }
    let mut host = TestHost::new(0, all);
    host.send_snapshot(1.0, &[reading(0, 30), reading(0, 10), reading(0, 20)], &[]);
    let totals = Totals::of_host(&host.host, &states(&[GpuState::InUse; 3]), at(1.0));
    assert_eq!((totals.gpus, totals.in_state(GpuState::InUse)), (1, 1));
    assert_eq!((totals.memory_used_bytes, totals.memory_total_bytes), (Some(30 << 30), Some(80 << 30)));
}

#[test]
fn rows_panes_and_header_agree() {
    let mut header = Totals::default();
    let mut view = RowCache::default();
    let mut panes = (0_u32, 0_u64, 0_u64);
    for id in 0..5 {
        let mut host = TestHost::new(id, gpus(0..4));
        let used = [10 + u64::from(id), 20, 30, 0];
        let readings: Vec<GpuReading> =
            used.iter().map(|gib| GpuReading { memory_used_bytes: Some(gib << 30), ..reading(90, 0) }).collect();
        let processes =
            [process(7, "python a.py", &[(0, used[0]), (1, used[1])]), process(8, "python b.py", &[(2, 30)])];
        host.send_snapshot(1.0, &readings, &processes);
        let states = states(&[GpuState::InUse, GpuState::InUse, GpuState::Idle, GpuState::Free]);
        view.update(&host.host, &states, at(1.0));
        let pane = Totals::of_host(&host.host, &states, at(1.0));
        assert_eq!(GpuState::ALL.map(|state| pane.in_state(state)).iter().sum::<u32>(), pane.gpus);
        panes.0 += pane.gpus;
        panes.1 += pane.memory_used_bytes.expect("known");
        panes.2 += pane.memory_total_bytes.expect("known");
        header.add(&pane);
    }
    assert_eq!((header.gpus, header.hosts_covered), (panes.0, 5));
    assert_eq!((header.memory_used_bytes, header.memory_total_bytes), (Some(panes.1), Some(panes.2)));
    assert_eq!(GpuState::ALL.map(|state| header.in_state(state)).iter().sum::<u32>(), header.gpus);
    for group in [Group::Job, Group::None] {
        let rows = view.rows(ListOrder::default_for(SortKey::GpuMemory, group), &HashSet::new(), |_| true, |_| None);
        let held: u64 = rows.iter().filter_map(|row| row.gpu_memory_bytes).sum();
        assert_eq!(Some(held), header.memory_used_bytes, "{group:?}");
        let in_use: usize = rows
            .iter()
            .filter(|row| row.state.is_some_and(|(state, _)| state == GpuState::InUse))
            .map(|row| row.gpu_indexes.len())
            .sum();
        assert_eq!(in_use as u32, header.in_state(GpuState::InUse), "{group:?}");
    }
}
