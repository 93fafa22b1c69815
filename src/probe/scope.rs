//! How much of the machine this login sees.

use super::owner::{is_sluid, owner};
use crate::wire::{Owner, SafeText, Scope};
use std::path::Path;

/// The signs of a container, as far as the process itself can see them.
#[derive(Debug, Default)]
pub(crate) struct ScopeEvidence {
    /// `/proc/self/cgroup`.
    pub(crate) cgroup: String,
    /// `/.dockerenv` is there.
    pub(crate) dockerenv: bool,
    /// `/run/.containerenv` is there.
    pub(crate) containerenv: bool,
    /// `/run/systemd/container`, or the variable `container`: what manages a whole system in a container says here
    /// what it is.
    pub(crate) container_manager: Option<String>,
    /// `APPTAINER_NAME` or `SINGULARITY_NAME`.
    pub(crate) apptainer: Option<String>,
    /// `SLURM_JOB_ID`.
    pub(crate) slurm_job: Option<String>,
    /// `KUBERNETES_SERVICE_HOST` is set.
    pub(crate) kubernetes: bool,
}

impl ScopeEvidence {
    pub(crate) fn read() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let container_manager =
            std::fs::read_to_string("/run/systemd/container").ok().map(|text| text.trim().to_owned());
        Self {
            cgroup: std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default(),
            dockerenv: Path::new("/.dockerenv").exists(),
            containerenv: Path::new("/run/.containerenv").exists(),
            container_manager: container_manager.filter(|text| !text.is_empty()).or_else(|| variable("container")),
            apptainer: variable("APPTAINER_NAME").or_else(|| variable("SINGULARITY_NAME")),
            slurm_job: variable("SLURM_JOB_ID"),
            kubernetes: variable("KUBERNETES_SERVICE_HOST").is_some(),
        }
    }

    /// A Slurm job first, since it bounds what a container in it could see.
    pub(crate) fn scope(&self) -> Scope {
        let by_cgroup = match owner(&self.cgroup, &[]) {
            Some(Owner::Slurm { job, .. }) => {
                let number = self.slurm_job.as_deref().filter(|_| is_sluid(&job)).map(SafeText::new);
                return Scope::SlurmJob(number.unwrap_or(job));
            }
            Some(Owner::Pod { uid, .. }) => Some(format!("Kubernetes pod {uid}")),
            Some(Owner::Container { runtime, id }) => Some(format!("{runtime} {id}")),
            _ => None,
        };
        // Inside a cgroup namespace the path is `/` and tells nothing; then the signs in the file system count.
        let name = by_cgroup
            .or_else(|| self.apptainer.as_ref().map(|name| format!("apptainer {name}")))
            .or_else(|| self.kubernetes.then(|| "Kubernetes pod".to_owned()))
            .or_else(|| self.container_manager.clone())
            .or_else(|| self.dockerenv.then(|| "docker".to_owned()))
            .or_else(|| self.containerenv.then(|| "podman".to_owned()));
        name.map_or(Scope::Host, |name| Scope::Container(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(cgroup: &str) -> ScopeEvidence {
        ScopeEvidence { cgroup: cgroup.to_owned(), ..ScopeEvidence::default() }
    }

    #[test]
    fn an_ordinary_login_sees_the_host() {
        assert_eq!(evidence("0::/user.slice/user-1000.slice/session-3.scope\n").scope(), Scope::Host);
    }

    #[test]
    fn a_login_adopted_by_a_job_sees_the_job() {
        let adopted = evidence("0::/system.slice/slurmstepd.scope/job_3385/step_extern/user/task_special\n");
        assert_eq!(ScopeEvidence { dockerenv: true, ..adopted }.scope(), Scope::SlurmJob("3385".into()));
        let newer = || evidence("0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_extern/user/task_special\n");
        assert_eq!(newer().scope(), Scope::SlurmJob("s5K1KKYAYG5D00".into()));
        let with_job_id = ScopeEvidence { slurm_job: Some("3385".into()), ..newer() };
        assert_eq!(with_job_id.scope(), Scope::SlurmJob("3385".into()));
    }

    #[test]
    fn containers_are_recognized_by_cgroup_or_marker_file() {
        assert_eq!(evidence("0::/lxc.payload.web\n").scope(), Scope::Container("lxc web".into()));
        assert_eq!(ScopeEvidence { dockerenv: true, ..evidence("0::/\n") }.scope(), Scope::Container("docker".into()));
        assert_eq!(
            ScopeEvidence { containerenv: true, ..evidence("0::/\n") }.scope(),
            Scope::Container("podman".into())
        );
        let nspawn = ScopeEvidence { container_manager: Some("systemd-nspawn".into()), ..evidence("0::/\n") };
        assert_eq!(nspawn.scope(), Scope::Container("systemd-nspawn".into()));
        let pod = ScopeEvidence { kubernetes: true, dockerenv: true, ..evidence("0::/\n") };
        assert_eq!(pod.scope(), Scope::Container("Kubernetes pod".into()));
    }
}
