//! Jobs that run on several hosts, found by Slurm job id, by rendezvous or by likeness.

use super::{Fleet, HostId, JobKey, Process};
use crate::wire::SafeText;
use std::collections::{HashMap, HashSet};

/// Maximum difference of the start times of two parts, in seconds.
const MAX_START_SKEW_SECONDS: f64 = 120.0;

/// A job that runs on several hosts.
#[derive(Debug, Clone, PartialEq)]
pub struct DistributedJob {
    /// The parts, one per host, in the order of the fleet.
    pub parts: Vec<(HostId, JobKey)>,
    /// Whether the parts are only likely to be one job: equal user and command, similar start time.
    pub is_likely: bool,
}

/// The start of a part in seconds since 1970, its host, and its job on that host.
type JobPart = (f64, HostId, JobKey);

/// Returns the jobs that run on more than one host. Parts belong together if they have the same Slurm job id and user, or
/// the same user, command line and rendezvous. They are likely to belong together if neither names a rendezvous, user and
/// command line are equal and they started within two minutes; in containers, a launcher must have started them. Ports,
/// addresses and the numbers of ranks and nodes do not count as part of the command line.
pub fn distributed_jobs(fleet: &Fleet) -> Vec<DistributedJob> {
    joined_parts(fleet, Containers::WithLauncher)
}

/// Returns the jobs that may run on more than one host, for an examination that reads where their ranks meet:
/// [`distributed_jobs`], and containers without a launcher, as those of a PyTorchJob of Kubeflow.
pub fn possibly_distributed_jobs(fleet: &Fleet) -> Vec<DistributedJob> {
    joined_parts(fleet, Containers::All)
}

/// The containers that are likely parts of one job if they are alike.
#[derive(Clone, Copy, PartialEq)]
enum Containers {
    WithLauncher,
    All,
}

fn joined_parts(fleet: &Fleet, containers: Containers) -> Vec<DistributedJob> {
    let mut slurm: HashMap<(&SafeText, &SafeText), Vec<(HostId, JobKey)>> = HashMap::new();
    let mut candidates: HashMap<(&SafeText, String, Option<String>), Vec<JobPart>> = HashMap::new();
    for host in fleet.hosts() {
        let mut seen: HashSet<&JobKey> = HashSet::new();
        for process in host.processes() {
            let (info, job) = (&process.info, &process.info.job);
            if !seen.insert(job) {
                continue;
            }
            match job {
                JobKey::Slurm { job: number, .. } => {
                    slurm.entry((number, &info.who)).or_default().push((host.id, job.clone()));
                }
                // Container ids differ from host to host, and a container without a launcher of ranks is mostly a replica
                // of a server.
                JobKey::Container { .. } if info.launcher.is_none() && containers == Containers::WithLauncher => {}
                JobKey::Container { .. } | JobKey::Launcher(_) | JobKey::Session { .. } => {
                    if let (Some(command), Some(started)) = (command_without_ranks(process), started(process)) {
                        let key = (&info.who, command, rendezvous(process));
                        candidates.entry(key).or_default().push((started, host.id, job.clone()));
                    }
                }
            }
        }
    }
    let mut distributed: Vec<DistributedJob> =
        slurm.into_values().map(|parts| DistributedJob { parts, is_likely: false }).collect();
    for ((_, _, rendezvous), mut parts) in candidates {
        if rendezvous.is_some() {
            let parts = parts.into_iter().map(|(_, host, job)| (host, job)).collect();
            distributed.push(DistributedJob { parts, is_likely: false });
            continue;
        }
        parts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut rest = parts.as_slice();
        while let [first, ..] = rest {
            let length = rest.iter().take_while(|part| part.0 - first.0 <= MAX_START_SKEW_SECONDS).count();
            let (together, later) = rest.split_at(length);
            distributed.push(DistributedJob {
                parts: together.iter().map(|(_, host, job)| (*host, job.clone())).collect(),
                is_likely: true,
            });
            rest = later;
        }
    }
    for job in &mut distributed {
        job.parts.sort();
        // If one host has two candidates, it is unknown which of them belongs to the other hosts.
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

/// The start of a process in seconds since 1970.
fn started(process: &Process) -> Option<f64> {
    process.facts()?.start_unix_seconds.map(|seconds| seconds as f64)
}

/// Where the ranks of the job meet, and its id there, as the command line of the process or of its launcher says; `None`
/// without any, or if the ranks meet on their own host.
fn rendezvous(process: &Process) -> Option<String> {
    const OPTIONS: [&str; 5] = ["rdzv_endpoint", "rdzv_id", "master_addr", "main_process_ip", "master_port"];
    const LOCAL: [&str; 7] = ["localhost", "127.", "0.0.0.0", "[::1]", "::1", "none", "$"];
    let facts = process.facts()?;
    let lines = std::iter::once(&facts.argv).chain(facts.ancestors.iter().map(|parent| &parent.argv));
    let mut found = [const { None::<&str> }; OPTIONS.len()];
    for line in lines {
        for (place, argument) in line.iter().enumerate() {
            let (flag, value) = argument.split_once('=').unwrap_or((argument, ""));
            if !flag.starts_with('-') {
                continue;
            }
            let name = flag.trim_start_matches('-').replace('-', "_");
            let Some(option) = OPTIONS.iter().position(|option| *option == name) else { continue };
            let next = || line.get(place + 1).filter(|next| !next.starts_with('-')).map_or("", |next| next.as_str());
            let value = if value.is_empty() { next() } else { value };
            if !value.is_empty() && !LOCAL.iter().any(|local| value.starts_with(local)) {
                found[option] = found[option].or(Some(value));
            }
        }
    }
    // A port alone says nothing: it is usually the default one.
    let is_named = found[..4].iter().any(Option::is_some);
    is_named.then(|| found.map(Option::unwrap_or_default).join(" "))
}

/// The command line without arguments that differ between the ranks of one job; `None` if it is empty.
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

/// Whether the value of this option differs between ranks.
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
mod tests {
    use super::*;
    use crate::fleet::fixture::{TestProcess, fleet, process};
    use crate::wire::Owner;

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
    fn parts_with_one_slurm_job_id_are_one_job() {
        let fleet = fleet(vec![vec![slurm(7, "3385")], vec![slurm(9, "3386")], vec![slurm(8, "3385")]]);
        assert_eq!(hosts(&distributed_jobs(&fleet)), [(vec![0, 2], false)]);
    }

    #[test]
    fn commands_that_differ_only_in_rank_numbers_are_likely_one_job() {
        let rank = |pid, rank: u32, at| {
            let command =
                format!("python train.py --node_rank={rank} --master-port 2950{rank} --lr 1 10.0.0.{rank}:29500");
            started(process(pid, &command, &[(0, 40)]), at)
        };
        let fleet = fleet(vec![vec![rank(7, 0, 0)], vec![rank(8, 1, 100)], vec![rank(9, 2, 300)]]);
        assert_eq!(hosts(&distributed_jobs(&fleet)), [(vec![0, 1], true)], "the third began five minutes later");
    }

    #[test]
    fn ranks_that_meet_at_one_address_are_certainly_one_job() {
        let rank = |pid, options: &str, at| {
            let mut rank = started(process(pid, "python train.py", &[(0, 40)]), at);
            let argv = format!("torchrun --nnodes 2 {options} train.py");
            let torchrun = crate::wire::Ancestor {
                pid: pid + 100,
                uid: Some(1000),
                name: "torchrun".into(),
                argv: argv.split(' ').map(SafeText::new).collect(),
                ..crate::wire::Ancestor::default()
            };
            rank.facts.ancestors = vec![torchrun];
            rank
        };
        let of = |options: [&str; 2]| {
            let parts = (7..).zip(options).map(|(pid, options)| vec![rank(pid, options, i64::from(pid - 7) * 900)]);
            hosts(&distributed_jobs(&fleet(parts.collect())))
        };
        let same = "--node_rank=0 --rdzv-endpoint=node7:29500";
        assert_eq!(of([same, "--node_rank=1 --rdzv_endpoint node7:29500"]), [(vec![0, 1], false)], "15 min apart");
        assert_eq!(of([same, "--rdzv-endpoint=node8:29500"]), []);
        let local = "--master_addr 127.0.0.1 --master_port 29500";
        assert_eq!(of([local, local]), [], "each on its own host, and started 15 min apart");
    }

    #[test]
    fn containers_are_likely_one_job_if_a_launcher_started_their_ranks() {
        let of = |ancestors: &[crate::wire::Ancestor], find: fn(&Fleet) -> Vec<DistributedJob>| {
            let rank = |pid: u32, container: &str| {
                let mut rank = started(process(pid, "python train.py", &[(0, 40)]), i64::from(pid));
                rank.facts.owner = Some(Owner::Pod { uid: container.into(), container: Some(container.into()) });
                rank.facts.ancestors = ancestors.to_vec();
                rank
            };
            hosts(&find(&fleet(vec![vec![rank(7, "3f1c")], vec![rank(8, "a07b")]])))
        };
        let torchrun = crate::wire::Ancestor {
            pid: 5,
            uid: Some(1000),
            name: "torchrun".into(),
            ..crate::wire::Ancestor::default()
        };
        assert_eq!(of(&[torchrun], distributed_jobs), [(vec![0, 1], true)]);
        assert_eq!(of(&[], distributed_jobs), [], "replicas of a server");
        assert_eq!(of(&[], possibly_distributed_jobs), [(vec![0, 1], true)], "an examination tells them apart");
    }

    #[test]
    fn different_commands_users_and_ambiguous_parts_are_not_joined() {
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
}
