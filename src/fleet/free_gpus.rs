//! Free GPUs: which there are, which meet the user's requirements, and how to use them.

use super::{GpuState, Host, HostId, Moment};
use crate::config::shell_word;
use crate::wire::SafeText;
use std::cmp::Reverse;

/// A free GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeGpu {
    /// The position in the host's inventory.
    pub position: usize,
    /// The index in `nvidia-smi`. CUDA may use a different order.
    pub index: u32,
    /// The UUID, which CUDA accepts as well.
    pub uuid: Option<SafeText>,
    /// The model.
    pub name: Option<SafeText>,
    /// The memory in bytes.
    pub memory_total_bytes: Option<u64>,
    /// The unused memory in bytes.
    pub memory_free_bytes: Option<u64>,
    /// Whether it is a MIG instance.
    pub is_instance: bool,
}

/// The free GPUs of one host, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeHost {
    /// The host.
    pub host: HostId,
    /// The free GPUs in inventory order.
    pub gpus: Vec<FreeGpu>,
}

/// The requirements for a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuRequirements {
    /// Minimum of unused memory in bytes. A GPU with unknown memory does not match.
    pub memory_bytes: Option<u64>,
    /// A part of the model name, case-insensitive.
    pub model: Option<String>,
}

impl GpuRequirements {
    fn matches(&self, gpu: &FreeGpu) -> bool {
        let has_memory =
            self.memory_bytes.is_none_or(|wanted| gpu.memory_free_bytes.is_some_and(|bytes| bytes >= wanted));
        let is_model = self.model.as_ref().is_none_or(|wanted| {
            let name = gpu.name.as_ref().map(|name| name.to_lowercase()).unwrap_or_default();
            name.contains(&wanted.to_lowercase())
        });
        has_memory && is_model
    }
}

/// Returns the free GPUs of a host that match, or `None` if there are none or the readings are not current. `states`
/// are the GPU states in inventory order; reserved GPUs and GPUs allocated by Slurm are not [`GpuState::Free`].
pub fn free_gpus(
    host: &Host,
    states: &[(GpuState, Option<Moment>)],
    requirements: &GpuRequirements,
    now: Moment,
) -> Option<FreeHost> {
    if !host.is_fresh(now) {
        return None;
    }
    let gpus = host.gpus().enumerate().filter_map(|(position, (info, reading))| {
        let is_free = states.get(position).is_some_and(|(state, _)| *state == GpuState::Free);
        // In MIG mode only the instances can be used, not the whole GPU.
        let is_mig_parent = info.mig_enabled == Some(true) && info.mig_parent_uuid.is_none();
        let gpu = FreeGpu {
            position,
            index: info.index,
            uuid: info.uuid.clone(),
            name: info.name.clone(),
            memory_total_bytes: info.memory_total_bytes,
            memory_free_bytes: info
                .memory_total_bytes
                .zip(reading.memory_used_bytes)
                .map(|(total, used)| total.saturating_sub(used)),
            is_instance: info.mig_parent_uuid.is_some(),
        };
        (is_free && !is_mig_parent && requirements.matches(&gpu)).then_some(gpu)
    });
    let gpus: Vec<FreeGpu> = gpus.collect();
    (!gpus.is_empty()).then_some(FreeHost { host: host.id, gpus })
}

/// Chooses `count` GPUs. Prefers one host, and of several the one with the fewest free GPUs, so that larger blocks
/// remain for larger jobs. If no host has enough and `same_host` is false, chooses as few hosts as possible. Returns
/// `None` if there are not enough GPUs.
pub fn choose_gpus(free: &[FreeHost], count: usize, same_host: bool) -> Option<Vec<FreeHost>> {
    let first = |host: &FreeHost, count: usize| FreeHost {
        host: host.host,
        gpus: host.gpus.iter().take(count).cloned().collect(),
    };
    let enough = free.iter().filter(|host| host.gpus.len() >= count);
    if let Some(host) = enough.min_by_key(|host| host.gpus.len()) {
        return Some(vec![first(host, count)]);
    }
    if same_host {
        return None;
    }
    let mut hosts: Vec<&FreeHost> = free.iter().collect();
    hosts.sort_by_key(|host| Reverse(host.gpus.len()));
    let mut wanted = count;
    let mut chosen = Vec::new();
    for host in hosts {
        if wanted == 0 {
            break;
        }
        let taken = first(host, wanted);
        wanted -= taken.gpus.len();
        chosen.push(taken);
    }
    (wanted == 0).then_some(chosen)
}

/// The environment variables that restrict CUDA to these GPUs. Uses UUIDs, because CUDA orders GPUs by speed and
/// `nvidia-smi` by PCI bus id. If a UUID is missing, uses indexes and sets the order of `nvidia-smi`.
pub fn cuda_environment(gpus: &[FreeGpu]) -> String {
    let uuids: Option<Vec<&str>> = gpus.iter().map(|gpu| gpu.uuid.as_deref()).collect();
    if let Some(uuids) = uuids {
        return format!("CUDA_VISIBLE_DEVICES={}", shell_word(&uuids.join(",")));
    }
    let indexes: Vec<String> = gpus.iter().map(|gpu| gpu.index.to_string()).collect();
    format!("CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={}", indexes.join(","))
}

#[cfg(test)]
mod tests {
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
    fn only_free_gpus_with_current_readings_are_returned() {
        let host = host(0, &[0, 0, 0]);
        let states = [FREE, BUSY, (GpuState::Unused, None)];
        let free = free_gpus(&host, &states, &GpuRequirements::default(), at(2.0)).expect("one is free");
        assert_eq!(positions(&free), [0]);
        assert_eq!(free.gpus[0].uuid.as_deref(), Some("GPU-0"));
        assert_eq!(free_gpus(&host, &[BUSY; 3], &GpuRequirements::default(), at(2.0)), None);
        assert_eq!(free_gpus(&host, &states, &GpuRequirements::default(), at(60.0)), None, "the readings are old");
    }

    #[test]
    fn gpus_that_do_not_meet_the_requirements_are_left_out() {
        let host = host(0, &[0, 50]);
        let states = [FREE; 2];
        let matching = |memory_gib: Option<u64>, model: Option<&str>| {
            let requirements =
                GpuRequirements { memory_bytes: memory_gib.map(|gib| gib << 30), model: model.map(str::to_owned) };
            free_gpus(&host, &states, &requirements, at(2.0)).map_or_else(Vec::new, |free| positions(&free))
        };
        assert_eq!(matching(None, Some("h100")), [0, 1]);
        assert_eq!(matching(Some(40), None), [0]);
        assert_eq!(matching(Some(81), None), Vec::<usize>::new());
        assert_eq!(matching(None, Some("A100")), Vec::<usize>::new());
    }

    #[test]
    fn in_mig_mode_only_the_instances_are_free() {
        let mut infos = gpus(0..3);
        infos[0].mig_enabled = Some(true);
        infos[1].mig_parent_uuid = Some("GPU-0".into());
        infos[2].mig_parent_uuid = Some("GPU-0".into());
        let mut host = TestHost::new(0, infos);
        host.send_snapshot(1.0, &[reading(0, 0), reading(0, 0), reading(0, 0)], &[]);
        let free =
            free_gpus(&host.host, &[FREE, FREE, BUSY], &GpuRequirements::default(), at(2.0)).expect("an instance");
        assert_eq!(positions(&free), [1]);
        assert!(free.gpus[0].is_instance);
    }

    #[test]
    fn the_smallest_sufficient_block_is_chosen() {
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
}
