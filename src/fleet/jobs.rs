//! Which processes belong together on one host.

use super::ProcessKey;
use crate::wire::{Ancestor, Owner, ProcessFacts, SafeText};
use std::fmt;

/// What makes several processes of one host one job.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum JobKey {
    /// A Slurm job.
    Slurm {
        /// The cluster, where several have the same job ids; the cgroup does not tell it.
        cluster: Option<SafeText>,
        /// The job id.
        job: SafeText,
    },
    /// A container or a pod's container.
    Container {
        /// `docker`, `podman`, `lxc`, `nspawn`, `apptainer`, `pod`.
        runtime: SafeText,
        /// The container's id or name; for a pod whose container is not known, the pod's uid.
        id: SafeText,
    },
    /// The topmost ancestor of the same user that is no shell, tmux, screen or sshd; often the process itself.
    Launcher(ProcessKey),
    /// The session of processes whose parents are gone.
    Session {
        /// The host's boot id.
        boot_id: Option<SafeText>,
        /// The session id (setsid(2)): the pid of its first process.
        session: u32,
    },
}

impl JobKey {
    /// The job of a process, from its facts; without facts a process is a job of its own.
    pub fn of_process(process: &ProcessKey, facts: Option<&ProcessFacts>) -> Self {
        let Some(facts) = facts else { return Self::Launcher(process.clone()) };
        match &facts.owner {
            Some(Owner::Slurm { job, .. }) => return Self::Slurm { cluster: None, job: job.clone() },
            Some(Owner::Pod { uid, container }) => {
                return Self::Container { runtime: "pod".into(), id: container.as_ref().unwrap_or(uid).clone() };
            }
            Some(Owner::Container { runtime, id }) => {
                return Self::Container { runtime: runtime.clone(), id: id.clone() };
            }
            Some(Owner::Service(_) | Owner::Session(_) | Owner::Unknown) | None => {}
        }
        if let Some(launcher) = launcher(facts) {
            return Self::Launcher(ProcessKey {
                boot_id: process.boot_id.clone(),
                pid: launcher.pid,
                start_ticks: Some(launcher.start_ticks),
            });
        }
        match facts.session {
            Some(session) if is_orphaned(facts) => Self::Session { boot_id: process.boot_id.clone(), session },
            _ => Self::Launcher(process.clone()),
        }
    }
}

/// The word that JSON carries: `slurm:3385`, `container:docker/0123456789ab`, `launcher:5061`, `session:4211`.
impl fmt::Display for JobKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slurm { cluster: Some(cluster), job } => write!(formatter, "slurm:{cluster}/{job}"),
            Self::Slurm { cluster: None, job } => write!(formatter, "slurm:{job}"),
            Self::Container { runtime, id } => write!(formatter, "container:{runtime}/{id}"),
            Self::Launcher(process) => write!(formatter, "launcher:{}", process.pid),
            Self::Session { session, .. } => write!(formatter, "session:{session}"),
        }
    }
}

/// The ancestor that started this process and its siblings: the topmost one of the same user below the first shell,
/// multiplexer, login or init. `None` where the process stands directly below one of those.
///
/// What lies above such a shell is not looked at: an editor's terminal or a notebook server would make one job of
/// everything that was ever typed into it.
pub fn launcher(facts: &ProcessFacts) -> Option<&Ancestor> {
    let uid = facts.uid?;
    facts.ancestors.iter().take_while(|ancestor| ancestor.uid == Some(uid) && !is_boundary(ancestor)).last()
}

/// Whether nothing is known above the process: its parents have ended and init, or a subreaper, has taken it over.
fn is_orphaned(facts: &ProcessFacts) -> bool {
    facts.ancestors.first().is_none_or(|parent| parent.pid == 1 || is_init(&parent.name))
}

/// Whether a process is where a person sits, or what runs jobs for others, and not a part of a job.
fn is_boundary(ancestor: &Ancestor) -> bool {
    const LOGINS: [&str; 9] =
        ["sshd", "sshd-session", "dropbear", "mosh-server", "login", "su", "screen", "SCREEN", "zellij"];
    /// They run as root, as do the processes of many containers. Linux keeps 15 characters of a name.
    const RUNTIMES: [&str; 9] = [
        "containerd-shim",
        "conmon",
        "runc",
        "crun",
        "docker-init",
        "lxc-start",
        "systemd-nspawn",
        "slurmstepd",
        "slurm_script",
    ];
    let name: &str = &ancestor.name;
    // A script has its own name, but its first argument is the shell that runs it.
    let program = ancestor.argv.first().map_or("", |program| program.rsplit('/').next().unwrap_or_default());
    is_shell(name)
        || is_shell(program.trim_start_matches('-'))
        || LOGINS.contains(&name)
        || RUNTIMES.contains(&name)
        || name == "tmux"
        || name.starts_with("tmux: ")
        || is_init(name)
}

fn is_shell(name: &str) -> bool {
    const SHELLS: [&str; 15] = [
        "sh", "bash", "zsh", "fish", "dash", "ash", "ksh", "ksh93", "mksh", "csh", "tcsh", "nu", "xonsh", "elvish",
        "pwsh",
    ];
    SHELLS.contains(&name)
}

/// ProcessTable that adopt orphans: pid 1 under its usual names, and a user's own systemd.
fn is_init(name: &str) -> bool {
    matches!(name, "init" | "systemd" | "tini" | "dumb-init" | "catatonit" | "runit")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: u32 = 1000;

    fn ancestor(pid: u32, uid: u32, name: &str) -> Ancestor {
        Ancestor { pid, start_ticks: u64::from(pid) * 10, uid: Some(uid), name: name.into(), argv: Vec::new() }
    }

    fn key(pid: u32) -> ProcessKey {
        ProcessKey { boot_id: Some("boot".into()), pid, start_ticks: Some(u64::from(pid) * 10) }
    }

    fn facts(pid: u32, uid: u32, ancestors: Vec<Ancestor>) -> ProcessFacts {
        ProcessFacts { pid, uid: Some(uid), ancestors, ..ProcessFacts::default() }
    }

    fn job(pid: u32, uid: u32, ancestors: Vec<Ancestor>) -> String {
        let key = JobKey::of_process(&key(pid), Some(&facts(pid, uid, ancestors)));
        key.to_string()
    }

    #[test]
    fn workers_of_one_torchrun_are_one_job() {
        let parents = || vec![ancestor(500, ALICE, "torchrun"), ancestor(400, ALICE, "bash")];
        assert_eq!(
            JobKey::of_process(&key(501), Some(&facts(501, ALICE, parents()))),
            JobKey::of_process(&key(502), Some(&facts(502, ALICE, parents()))),
        );
        assert_eq!(JobKey::of_process(&key(501), Some(&facts(501, ALICE, parents()))), JobKey::Launcher(key(500)));
    }

    #[test]
    fn the_topmost_launcher_counts() {
        let parents = vec![
            ancestor(503, ALICE, "python3.11"),
            ancestor(502, ALICE, "accelerate"),
            ancestor(501, ALICE, "uv"),
            ancestor(400, ALICE, "tmux: server"),
        ];
        assert_eq!(job(510, ALICE, parents), "launcher:501");
    }

    #[test]
    fn shells_multiplexers_and_logins_end_the_chain() {
        for boundary in ["bash", "zsh", "tmux: server", "SCREEN", "sshd", "sshd-session", "systemd"] {
            let parents = vec![ancestor(400, ALICE, boundary), ancestor(300, ALICE, "code-server")];
            assert_eq!(job(510, ALICE, parents), "launcher:510", "{boundary}");
        }
    }

    #[test]
    fn a_script_is_a_shell_under_another_name() {
        let script =
            Ancestor { argv: ["/bin/bash", "./run.sh"].map(SafeText::new).to_vec(), ..ancestor(500, ALICE, "run.sh") };
        assert_eq!(job(510, ALICE, vec![script, ancestor(400, ALICE, "bash")]), "launcher:510");
    }

    #[test]
    fn what_runs_containers_and_jobs_is_no_launcher() {
        for runtime in ["containerd-shim", "conmon", "slurmstepd", "slurm_script"] {
            let parents = vec![ancestor(500, 0, "torchrun"), ancestor(400, 0, runtime), ancestor(300, 0, "python")];
            let facts = facts(510, 0, parents);
            assert_eq!(launcher(&facts).map(|launcher| launcher.pid), Some(500), "{runtime}");
        }
    }

    #[test]
    fn two_commands_of_one_shell_are_two_jobs() {
        let shell = || vec![ancestor(400, ALICE, "bash"), ancestor(300, 0, "sshd")];
        assert_ne!(job(510, ALICE, shell()), job(511, ALICE, shell()));
    }

    #[test]
    fn another_users_parent_is_no_launcher() {
        let parents = vec![ancestor(500, 0, "sudo"), ancestor(400, ALICE, "bash")];
        assert_eq!(job(510, 1001, parents.clone()), "launcher:510");
        assert_eq!(job(510, 0, parents), "launcher:500");
    }

    #[test]
    fn orphans_are_held_together_by_their_session() {
        let orphan = |pid| {
            let facts = ProcessFacts { session: Some(400), ..facts(pid, ALICE, vec![ancestor(1, 0, "systemd")]) };
            JobKey::of_process(&key(pid), Some(&facts))
        };
        assert_eq!(orphan(510), orphan(511));
        assert_eq!(orphan(510).to_string(), "session:400");
    }

    #[test]
    fn the_session_says_nothing_while_a_parent_is_known() {
        let facts = ProcessFacts { session: Some(400), ..facts(510, ALICE, vec![ancestor(400, ALICE, "bash")]) };
        assert_eq!(JobKey::of_process(&key(510), Some(&facts)), JobKey::Launcher(key(510)));
    }

    #[test]
    fn slurm_and_containers_go_before_parents() {
        let owned = |owner| {
            let facts = ProcessFacts { owner: Some(owner), ..facts(510, 0, vec![ancestor(500, 0, "python")]) };
            JobKey::of_process(&key(510), Some(&facts)).to_string()
        };
        assert_eq!(owned(Owner::Slurm { job: "3385".into(), step: Some("0".into()) }), "slurm:3385");
        assert_eq!(owned(Owner::Container { runtime: "docker".into(), id: "abc".into() }), "container:docker/abc");
        assert_eq!(owned(Owner::Pod { uid: "u".into(), container: Some("c".into()) }), "container:pod/c");
        assert_eq!(owned(Owner::Pod { uid: "u".into(), container: None }), "container:pod/u");
        assert_eq!(owned(Owner::Service("ollama.service".into())), "launcher:500");
    }

    #[test]
    fn without_facts_a_process_is_its_own_job() {
        assert_eq!(JobKey::of_process(&key(510), None), JobKey::Launcher(key(510)));
        let unknown_user = ProcessFacts { uid: None, ..facts(510, 0, vec![ancestor(500, 0, "python")]) };
        assert_eq!(JobKey::of_process(&key(510), Some(&unknown_user)), JobKey::Launcher(key(510)));
    }
}
