//! Which jobs of different hosts are one job: the same Slurm job, else likeness.

use super::{Fleet, HostId, JobKey, Process};
use crate::wire::SafeText;
use std::collections::HashMap;

/// Parts of one job may start this many seconds apart.
const MAX_START_SKEW_SECONDS: f64 = 120.0;

/// A job that runs on several hosts.
#[derive(Debug, Clone, PartialEq)]
pub struct DistributedJob {
    /// Its parts, a host each, in the order of the fleet.
    pub parts: Vec<(HostId, JobKey)>,
    /// A guess: the same user, the same command, about the same start. To be shown as "likely the same job".
    pub is_likely: bool,
}

/// When a part of a job began, where it runs, and its name there.
type JobPart = (f64, HostId, JobKey);

/// The jobs that run on more than one host: the same Slurm job of the same user; else the same user and command line
/// (without ports, addresses, and the numbers of ranks and nodes), started within two minutes.
pub fn distributed_jobs(fleet: &Fleet) -> Vec<DistributedJob> {
    let mut slurm: HashMap<(&SafeText, &SafeText), Vec<(HostId, JobKey)>> = HashMap::new();
    let mut alike: HashMap<(&SafeText, String), Vec<JobPart>> = HashMap::new();
    for host in fleet.hosts() {
        let mut seen: Vec<&JobKey> = Vec::new();
        for process in host.processes() {
            let (about, job) = (&process.info, &process.info.job);
            if seen.contains(&job) {
                continue;
            }
            seen.push(job);
            match job {
                JobKey::Slurm { job: number, .. } => {
                    slurm.entry((number, &about.who)).or_default().push((host.id, job.clone()));
                }
                // A container has its own name on every host, and what runs in it need not be a job.
                JobKey::Container { .. } => {}
                JobKey::Launcher(_) | JobKey::Session { .. } => {
                    if let (Some(command), Some(started)) = (command_without_ranks(process), started(process)) {
                        alike.entry((&about.who, command)).or_default().push((started, host.id, job.clone()));
                    }
                }
            }
        }
    }
    let mut distributed: Vec<DistributedJob> =
        slurm.into_values().map(|parts| DistributedJob { parts, is_likely: false }).collect();
    for mut parts in alike.into_values() {
        parts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut rest = parts.as_slice();
        while let [first, ..] = rest {
            let length = rest.iter().take_while(|part| part.0 - first.0 <= MAX_START_SKEW_SECONDS).count();
            let (near, later) = rest.split_at(length);
            distributed.push(DistributedJob {
                parts: near.iter().map(|(_, host, job)| (*host, job.clone())).collect(),
                is_likely: true,
            });
            rest = later;
        }
    }
    for job in &mut distributed {
        job.parts.sort();
        // Two alike on one host are two jobs: which of them belongs to the other hosts is not known.
        let hosts = || job.parts.iter().map(|(host, _)| host);
        let is_unclear = job.is_likely && hosts().zip(hosts().skip(1)).any(|(one, next)| one == next);
        if is_unclear {
            job.parts.clear();
        }
        job.parts.dedup_by_key(|(host, _)| *host);
    }
    distributed.retain(|job| job.parts.len() > 1);
    distributed.sort_by(|a, b| a.parts.cmp(&b.parts));
    distributed
}

/// When a process began, in seconds since 1970.
fn started(process: &Process) -> Option<f64> {
    process.facts()?.start_unix_seconds.map(|seconds| seconds as f64)
}

/// The command line of a process without what differs between the ranks of one job; `None` where there is none.
fn command_without_ranks(process: &Process) -> Option<String> {
    let facts = process.facts()?;
    let mut command = String::new();
    let mut skips_value = false;
    for argument in &facts.argv {
        if std::mem::take(&mut skips_value) && !argument.starts_with('-') {
            continue;
        }
        let (flag, value) = argument.split_once('=').unwrap_or((argument, ""));
        if flag.starts_with('-') && is_rank_option(flag) {
            skips_value = value.is_empty();
            command.push_str(flag);
        } else if !is_address(argument) {
            command.push_str(argument);
        }
        command.push(' ');
    }
    (!command.is_empty()).then_some(command)
}

/// Options whose value is a rank's own.
fn is_rank_option(flag: &str) -> bool {
    const FLAGS: [&str; 17] = [
        "rank",
        "local_rank",
        "node_rank",
        "machine_rank",
        "global_rank",
        "nodeid",
        "node_id",
        "worker_id",
        "port",
        "master_port",
        "main_process_port",
        "master_addr",
        "main_process_ip",
        "rdzv_endpoint",
        "rdzv_id",
        "host",
        "hostname",
    ];
    let name = flag.trim_start_matches('-').replace('-', "_");
    FLAGS.contains(&name.as_str())
}

/// `10.0.0.3`, `10.0.0.3:29500`, `node7:29500`, `tcp://node7:29500`.
fn is_address(word: &str) -> bool {
    let word = word.split_once("://").map_or(word, |(_, rest)| rest);
    let (name, port) = word.rsplit_once(':').unwrap_or((word, ""));
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    is_port && !name.contains('/') || name.parse::<std::net::IpAddr>().is_ok()
}

#[cfg(test)]
#[path = "distributed_jobs_tests.rs"]
mod tests;
