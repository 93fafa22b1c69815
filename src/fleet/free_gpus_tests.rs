use super::*;
use crate::fleet::fixture::{TestHost, at, gpus, reading};

const FREE: (GpuState, Option<Moment>) = (GpuState::Free, None);
const BUSY: (GpuState, Option<Moment>) = (GpuState::InUse, None);

fn host(id: u32, used_gib: &[u64]) -> Host {
    let mut infos = gpus(0..used_gib.len() as u32);
    for info in &mut infos {
        info.name = Some("NVIDIA H100 80GB HBM3".into());
    }
    let mut host = TestHost::new(id, infos);
    let readings: Vec<_> = used_gib.iter().map(|used| reading(0, *used)).collect();
    host.send_snapshot(1.0, &readings, &[]);
    host.host
}

fn positions(free: &FreeHost) -> Vec<usize> {
    free.gpus.iter().map(|gpu| gpu.position).collect()
}

#[test]
fn only_what_is_free_and_fresh_is_offered() {
    let host = host(0, &[0, 0, 0]);
    let states = [FREE, BUSY, (GpuState::Unused, None)];
    let free = free_gpus(&host, &states, &GpuRequirements::default(), at(2.0)).expect("one is free");
    assert_eq!(positions(&free), [0]);
    assert_eq!(free.gpus[0].uuid.as_deref(), Some("GPU-0"));
    assert_eq!(free_gpus(&host, &[BUSY; 3], &GpuRequirements::default(), at(2.0)), None);
    assert_eq!(free_gpus(&host, &states, &GpuRequirements::default(), at(60.0)), None, "the readings are old");
}

#[test]
fn a_wish_leaves_out_what_is_too_small_or_another_model() {
    let host = host(0, &[0, 50]);
    let states = [FREE; 2];
    let offered = |memory_gib: Option<u64>, model: Option<&str>| {
        let requirements =
            GpuRequirements { memory_bytes: memory_gib.map(|gib| gib << 30), model: model.map(str::to_owned) };
        free_gpus(&host, &states, &requirements, at(2.0)).map_or_else(Vec::new, |free| positions(&free))
    };
    assert_eq!(offered(None, Some("h100")), [0, 1]);
    assert_eq!(offered(Some(40), None), [0]);
    assert_eq!(offered(Some(81), None), Vec::<usize>::new());
    assert_eq!(offered(None, Some("A100")), Vec::<usize>::new());
}

#[test]
fn a_gpu_that_is_cut_up_is_not_free_and_its_instances_are() {
    let mut infos = gpus(0..3);
    infos[0].mig_enabled = Some(true);
    infos[1].mig_parent_uuid = Some("GPU-0".into());
    infos[2].mig_parent_uuid = Some("GPU-0".into());
    let mut host = TestHost::new(0, infos);
    host.send_snapshot(1.0, &[reading(0, 0), reading(0, 0), reading(0, 0)], &[]);
    let free = free_gpus(&host.host, &[FREE, FREE, BUSY], &GpuRequirements::default(), at(2.0)).expect("an instance");
    assert_eq!(positions(&free), [1]);
    assert!(free.gpus[0].is_instance);
}

#[test]
fn the_smallest_block_that_is_enough_is_taken() {
    let free = |counts: &[usize]| -> Vec<FreeHost> {
        let host = |(id, count): (usize, &usize)| {
            let host = host(id as u32, &vec![0; *count]);
            free_gpus(&host, &vec![FREE; *count], &GpuRequirements::default(), at(2.0)).expect("free")
        };
        counts.iter().enumerate().map(host).collect()
    };
    let chosen = |counts: &[usize], count, same_host| {
        choose_gpus(&free(counts), count, same_host)
            .map(|hosts| hosts.iter().map(|host| (host.host.0, host.gpus.len())).collect::<Vec<_>>())
    };
    assert_eq!(chosen(&[8, 2, 4], 2, false), Some(vec![(1, 2)]));
    assert_eq!(chosen(&[8, 2, 4], 3, false), Some(vec![(2, 3)]));
    assert_eq!(chosen(&[3, 2, 4], 6, false), Some(vec![(2, 4), (0, 2)]), "as few hosts as possible");
    assert_eq!(chosen(&[3, 2, 4], 6, true), None);
    assert_eq!(chosen(&[3, 2, 4], 10, false), None);
    assert_eq!(chosen(&[], 1, false), None);
}
