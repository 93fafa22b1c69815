//! The owner of a process besides its user (Slurm job, pod, container, service or session), derived from
//! `/proc/PID/cgroup`, which every user may read; and the scope of the probe itself.

use crate::wire::{Ancestor, Owner, SafeText, Scope};
use std::path::Path;

/// The number of hexadecimal digits of a container id that are shown, as in `docker ps`.
const SHORT_ID_LENGTH: usize = 12;

/// Returns the owner by cgroup and ancestors, most specific first: a Slurm job, a pod, a container, a service, a login
/// session. `cgroup` is the content of `/proc/PID/cgroup` (cgroups(7)): lines of `N:controllers:/path`.
pub(crate) fn owner(cgroup: &str, ancestors: &[Ancestor]) -> Option<Owner> {
    let first = |rule: fn(&[&str]) -> Option<Owner>| paths(cgroup).find_map(|path| rule(&components(path)));
    first(slurm)
        .or_else(|| slurm_by_ancestors(ancestors))
        .or_else(|| first(slurm_by_sluid))
        .or_else(|| first(pod))
        .or_else(|| first(container))
        .or_else(|| apptainer(ancestors))
        .or_else(|| first(service))
        .or_else(|| first(session))
}

/// Returns the path of the cgroup that Slurm 26.05 and newer name by a SLUID (`s` and 13 Crockford base32 characters).
/// It does not contain the job id. [`slurmstepd_job`] reads the id from the title of slurmstepd,
/// [`slurm_in_environment`] from the environment, and `external::slurm_job_ids::SlurmJobs` asks `scontrol`.
pub(crate) fn sluid_path(cgroup: &str) -> Option<&str> {
    paths(cgroup).find_map(|path| {
        let mut end = 0;
        path.split('/').find_map(|part| {
            let start = end;
            end = start + part.len() + 1;
            is_sluid(part).then(|| &path[..start + part.len()])
        })
    })
}

/// Parses job and step in the title of a slurmstepd: `slurmstepd: [3385.0]`.
pub(crate) fn slurmstepd_job(title: &str) -> Option<Owner> {
    let inner = title.strip_prefix("slurmstepd: [")?.split(']').next()?;
    let (job, step) = inner.split_once('.').map_or((inner, None), |(job, step)| (job, Some(step)));
    is_number(job).then(|| Owner::Slurm { job: job.into(), step: step.map(Into::into) })
}

/// The job of a cluster that makes no cgroups (`ProctrackType=proctrack/linuxproc` or `pgid`). Only root's title counts, since
/// everybody can give a process a name.
fn slurm_by_ancestors(ancestors: &[Ancestor]) -> Option<Owner> {
    let stepd = ancestors.iter().find(|ancestor| ancestor.uid == Some(0) && ancestor.name == "slurmstepd")?;
    slurmstepd_job(stepd.argv.first()?)
}

fn paths(cgroup: &str) -> impl Iterator<Item = &str> {
    cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2))
}

fn components(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !part.is_empty()).collect()
}

/// cgroup v1: `/slurm/uid_U/job_J/step_S`, with the node name after `slurm_` if several slurmd run on one host. cgroup
/// v2 before 26.05: `.../slurmstepd.scope/job_J/step_S/...`, in a slice with a configurable name.
fn slurm(parts: &[&str]) -> Option<Owner> {
    let index = parts.windows(2).position(|pair| {
        let parent = pair[0];
        let is_slurm = parent.strip_prefix("uid_").is_some_and(is_number) || parent.ends_with("slurmstepd.scope");
        is_slurm && pair[1].strip_prefix("job_").is_some_and(is_number)
    })?;
    let job = parts[index + 1].strip_prefix("job_")?;
    let step = parts.get(index + 2).and_then(|part| part.strip_prefix("step_"));
    Some(Owner::Slurm { job: job.into(), step: step.map(Into::into) })
}

/// Slurm 26.05 and newer: `.../slurmstepd.scope/SLUID/step_S/...`. The SLUID stands for the job until the job id is
/// known: it is the same for all processes of the job on every host.
fn slurm_by_sluid(parts: &[&str]) -> Option<Owner> {
    let index = parts.iter().position(|part| is_sluid(part))?;
    let step = parts.get(index + 1).and_then(|part| part.strip_prefix("step_"));
    Some(Owner::Slurm { job: parts[index].into(), step: step.map(Into::into) })
}

/// `/kubepods/burstable/pod<uid>/<id>`, or with systemd `kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope`,
/// where `_` replaces the `-` of the uid. If kubelet and containerd use different cgroup drivers:
/// `kubepods-burstable-pod<uid>.slice:cri-containerd:<id>`.
fn pod(parts: &[&str]) -> Option<Owner> {
    parts.iter().find(|part| part.starts_with("kubepods") || part.contains("-kubepods"))?;
    let (index, uid) = parts.iter().enumerate().find_map(|(index, part)| {
        let uid = part.split(".slice").next()?.rsplit_once("pod")?.1.replace('_', "-");
        // The uid of a static pod is a hash without dashes.
        let digits = uid.bytes().filter(u8::is_ascii_hexdigit).count();
        let is_uid = digits == 32 && (uid.len() == 32 || uid.len() == 36);
        is_uid.then_some((index, uid))
    })?;
    let inline = parts[index].rsplit_once(':').map(|(_, id)| id);
    let container = inline.or_else(|| parts.get(index + 1).copied()).and_then(|part| {
        let id = part.trim_end_matches(".scope");
        let id =
            ["cri-containerd-", "crio-", "docker-"].iter().find_map(|prefix| id.strip_prefix(prefix)).unwrap_or(id);
        is_long_id(id).then(|| id.into())
    });
    Some(Owner::Pod { uid: uid.into(), container })
}

/// Prefixes of container scopes and their runtimes.
const SCOPE_PREFIXES: [(&str, &str); 4] =
    [("docker-", "docker"), ("libpod-", "podman"), ("nerdctl-", "nerdctl"), ("cri-containerd-", "containerd")];

fn container(parts: &[&str]) -> Option<Owner> {
    // The innermost container is the one that the process sees itself in.
    parts.iter().enumerate().rev().find_map(|(index, part)| {
        let parent = index.checked_sub(1).map(|parent| parts[parent]);
        container_by_id(part, parent).or_else(|| container_by_name(part, parent))
    })
}

fn container_owner(runtime: &str, id: &str) -> Owner {
    Owner::Container { runtime: runtime.into(), id: id.into() }
}

/// Containers with an id of 64 digits.
fn container_by_id(part: &str, parent: Option<&str>) -> Option<Owner> {
    let scope = part.strip_suffix(".scope").unwrap_or(part);
    let prefixed = SCOPE_PREFIXES.iter().find_map(|(prefix, runtime)| Some((*runtime, scope.strip_prefix(prefix)?)));
    // Without a prefix, the parent may name the runtime. Amazon ECS and others do not.
    let (runtime, id) = prefixed.unwrap_or((if parent == Some("docker") { "docker" } else { "container" }, part));
    is_long_id(id).then(|| container_owner(runtime, &id[..SHORT_ID_LENGTH]))
}

/// Containers and machines with a name.
fn container_by_name(part: &str, parent: Option<&str>) -> Option<Owner> {
    let in_lxc = matches!(parent, Some("lxc" | "lxc.payload"));
    if let Some(name) = part.strip_prefix("lxc.payload.").or(in_lxc.then_some(part)) {
        return Some(container_owner("lxc", name));
    }
    if let Some(name) = part.strip_prefix("systemd-nspawn@").and_then(|name| name.strip_suffix(".service")) {
        return Some(container_owner("nspawn", &systemd_unescape(name)));
    }
    if let Some(id) = part.strip_prefix("apptainer-").and_then(|id| id.strip_suffix(".scope")) {
        return Some(container_owner("apptainer", id));
    }
    // libvirt puts a number before the name of a container, with and without systemd.
    let libvirt =
        |name: &str| name.split_once('-').filter(|(number, _)| is_number(number)).map(|(_, name)| name.to_owned());
    if let Some(name) = part.strip_suffix(".libvirt-lxc").and_then(|name| libvirt(name.strip_prefix("lxc-")?)) {
        return Some(container_owner("lxc", &name));
    }
    let machine = part.strip_prefix("machine-").and_then(|name| name.strip_suffix(".scope")).map(systemd_unescape)?;
    if let Some(name) = machine.strip_prefix("lxc-").and_then(libvirt) {
        return Some(container_owner("lxc", &name));
    }
    // Virtual machines have the same prefix, but their processes are not in a container.
    (!machine.starts_with("qemu-")).then(|| container_owner("nspawn", &machine))
}

/// Returns the container of a process whose cgroup does not name it. Container engines mount `/etc/hostname` and
/// similar files from a directory that is named by the container id. `mountinfo` is the content of
/// `/proc/PID/mountinfo`, which every user may read.
pub(crate) fn owner_by_mounts(mountinfo: &str) -> Option<Owner> {
    mountinfo.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        if !matches!(point, "/etc/hosts" | "/etc/hostname" | "/etc/resolv.conf") {
            return None;
        }
        let parts = components(root);
        let after = |directory: &str| {
            let index = parts.iter().position(|part| *part == directory)?;
            parts.get(index + 1).copied()
        };
        let container = |runtime, id: &str| is_long_id(id).then(|| container_owner(runtime, &id[..SHORT_ID_LENGTH]));
        after("overlay-containers")
            .and_then(|id| container("podman", id))
            .or_else(|| after("pods").map(|uid| Owner::Pod { uid: uid.into(), container: None }))
            .or_else(|| after("containers").and_then(|id| container("docker", id)))
    })
}

/// Returns the Slurm job in the environment of a process, for cgroups that do not name the job.
pub(crate) fn slurm_in_environment(environ: &[u8]) -> Option<Owner> {
    let value = |name: &[u8]| {
        let value = environ.split(|&byte| byte == 0).find_map(|variable| variable.strip_prefix(name))?;
        std::str::from_utf8(value).ok().filter(|value| !value.is_empty())
    };
    let job = value(b"SLURM_JOB_ID=").filter(|job| is_number(job))?;
    let step = value(b"SLURM_STEP_ID=").filter(|step| is_number(step));
    Some(Owner::Slurm { job: job.into(), step: step.map(Into::into) })
}

/// Apptainer does not create a cgroup, but an ancestor of the process has its title.
fn apptainer(ancestors: &[Ancestor]) -> Option<Owner> {
    let is_runtime = |ancestor: &&Ancestor| ancestor.argv.first().is_some_and(|title| is_apptainer(title));
    ancestors.iter().find(is_runtime).map(|parent| apptainer_owner(parent.pid))
}

/// Whether this is the title of an Apptainer (formerly Singularity) runtime.
pub(crate) fn is_apptainer(title: &str) -> bool {
    title.starts_with("Apptainer runtime parent") || title.starts_with("Singularity runtime parent")
}

/// The owner for an Apptainer container, which has no name other than the pid of its runtime.
pub(crate) fn apptainer_owner(pid: u32) -> Owner {
    container_owner("apptainer", &pid.to_string())
}

fn service(parts: &[&str]) -> Option<Owner> {
    let name = parts.iter().rev().find(|part| part.ends_with(".service"))?;
    // `user@` is the per-user manager: everything that was started from a desktop is below it.
    (!name.starts_with("user@")).then(|| Owner::Service(systemd_unescape(name).into()))
}

fn session(parts: &[&str]) -> Option<Owner> {
    let id = parts.iter().find_map(|part| part.strip_prefix("session-")?.strip_suffix(".scope"))?;
    Some(Owner::Session(id.into()))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_long_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether `part` is a SLUID. A job id never is.
pub(crate) fn is_sluid(part: &str) -> bool {
    // Crockford's base32 lacks I, L, O and U.
    let in_alphabet = |byte: u8| byte.is_ascii_alphanumeric() && !b"ILOU".contains(&byte.to_ascii_uppercase());
    part.len() == 14 && part.starts_with('s') && part.bytes().skip(1).all(in_alphabet)
}

/// Reverses the escapes of systemd (`\x2d`, systemd-escape(1)).
fn systemd_unescape(name: &str) -> String {
    let mut pieces = name.split("\\x");
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let byte = piece.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(u8::is_ascii);
        if let Some(byte) = byte {
            text.push(char::from(byte));
            text.push_str(&piece[2..]);
        } else {
            text.push_str("\\x");
            text.push_str(piece);
        }
    }
    text
}

/// The signs of a Slurm job or container that the probe can see from inside.
#[derive(Debug, Default)]
pub(crate) struct ScopeEvidence {
    /// `/proc/self/cgroup`.
    pub(crate) cgroup: String,
    /// `/.dockerenv` exists.
    pub(crate) dockerenv: bool,
    /// `/run/.containerenv` exists.
    pub(crate) containerenv: bool,
    /// `/run/systemd/container` or the variable `container`, where a container manager writes its name.
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

    /// The scope of the probe. A Slurm job comes first, since it limits what a container in it can see.
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
        // In a cgroup namespace the path is `/`, so use the other signs.
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
    use proptest::prelude::*;

    const ID: &str = "4f0c8f5e6a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5";

    fn owner_of_cgroup(cgroup: &str) -> Option<Owner> {
        owner(cgroup, &[])
    }

    /// Formats an owner as in the fixtures.
    fn describe(owner: Option<Owner>) -> String {
        match owner {
            None => "none".to_owned(),
            Some(Owner::Slurm { job, step }) => format!("slurm {job} {}", step.unwrap_or_else(|| "-".into())),
            Some(Owner::Pod { uid, container }) => {
                format!("pod {uid} {}", container.map_or("-".to_owned(), |id| id[..SHORT_ID_LENGTH].to_owned()))
            }
            Some(Owner::Container { runtime, id }) => format!("container {runtime} {id}"),
            Some(Owner::Service(name)) => format!("service {name}"),
            Some(Owner::Session(id)) => format!("session {id}"),
            Some(Owner::Unknown) => "unknown".to_owned(),
        }
    }

    #[test]
    fn cgroup_fixtures_give_their_owner() {
        let fixtures = include_str!("../../tests/cgroups.txt");
        let mut count = 0;
        for block in fixtures.split("\n\n").skip(1) {
            let mut lines = block.trim().lines();
            let source = lines.next().expect("a source");
            let expected = lines.next().and_then(|line| line.strip_prefix("= ")).expect("an owner");
            let cgroup: Vec<_> = lines.collect();
            assert!(source.starts_with("# ") && !cgroup.is_empty(), "{block}");
            assert_eq!(describe(owner_of_cgroup(&cgroup.join("\n"))), expected, "{source}");
            count += 1;
        }
        assert!(count > 30, "{count} blocks");
    }

    #[test]
    fn a_service_named_like_a_job_is_not_a_job() {
        assert_eq!(describe(owner_of_cgroup("0::/system.slice/backup.service/job_9/step_0")), "service backup.service");
        assert_eq!(owner_of_cgroup("noise"), None);
    }

    #[test]
    fn sluids_and_slurmstepd_titles_are_parsed() {
        let cgroup = "0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0\n";
        assert_eq!(sluid_path(cgroup), Some("/system.slice/slurmstepd.scope/s5K1KKYAYG5D00"));
        assert_eq!(sluid_path("0::/system.slice/ssh.service"), None);
        assert_eq!(describe(slurmstepd_job("slurmstepd: [3385.0]")), "slurm 3385 0");
        assert_eq!(describe(slurmstepd_job("slurmstepd: [3385.extern]")), "slurm 3385 extern");
        assert_eq!(slurmstepd_job("slurmstepd infinity"), None);
    }

    #[test]
    fn without_cgroups_the_title_of_roots_slurmstepd_names_the_job() {
        let stepd = |uid: u32, name: &str| Ancestor {
            pid: 40,
            uid: Some(uid),
            name: name.into(),
            argv: vec!["slurmstepd: [3385.batch]".into()],
            ..Ancestor::default()
        };
        let by =
            |ancestor: Ancestor| describe(owner("0::/system.slice/slurmd.service\n", &[Ancestor::default(), ancestor]));
        assert_eq!(by(stepd(0, "slurmstepd")), "slurm 3385 batch");
        assert_eq!(by(stepd(1000, "slurmstepd")), "service slurmd.service", "everybody can give a process this name");
        assert_eq!(by(stepd(0, "python3")), "service slurmd.service");
    }

    #[test]
    fn an_environment_names_the_job() {
        let environ = b"HOME=/home/alice\0SLURM_JOB_ID=3385\0SLURM_STEP_ID=2\0";
        assert_eq!(describe(slurm_in_environment(environ)), "slurm 3385 2");
        assert_eq!(describe(slurm_in_environment(b"SLURM_JOB_ID=3385\0SLURM_STEP_ID=\0")), "slurm 3385 -");
        assert_eq!(slurm_in_environment(b"SLURM_JOB_ID=x\0"), None);
        assert_eq!(slurm_in_environment(b""), None);
    }

    #[test]
    fn mounts_give_the_container_if_the_cgroup_does_not() {
        let owner_of_cgroup = |root: &str, point: &str| {
            let line = format!("700 650 8:1 {root} {point} rw,relatime - ext4 /dev/sda1 rw\n");
            describe(owner_by_mounts(&line))
        };
        let docker = format!("/var/lib/docker/containers/{ID}/hostname");
        assert_eq!(owner_of_cgroup(&docker, "/etc/hostname"), "container docker 4f0c8f5e6a1b");
        let podman = format!("/home/a/.local/share/containers/storage/overlay-containers/{ID}/userdata/hosts");
        assert_eq!(owner_of_cgroup(&podman, "/etc/hosts"), "container podman 4f0c8f5e6a1b");
        let uid = "8f2c1c64-57cc-4b2e-9f0e-2f1d6a3c9b10";
        assert_eq!(
            owner_of_cgroup(&format!("/var/lib/kubelet/pods/{uid}/etc-hosts"), "/etc/hosts"),
            format!("pod {uid} -")
        );
        // On the host the same directories are mounted elsewhere.
        assert_eq!(owner_of_cgroup(&docker, "/mnt"), "none");
        assert_eq!(owner_of_cgroup("/", "/etc/hosts"), "none");
    }

    #[test]
    fn apptainer_is_recognized_by_an_ancestor() {
        for title in ["Apptainer runtime parent", "Singularity runtime parent"] {
            let parent = Ancestor { pid: 40, argv: vec![title.into()], ..Ancestor::default() };
            assert_eq!(describe(owner("0::/user.slice/session-3.scope", &[parent])), "container apptainer 40");
        }
    }

    proptest! {
        #[test]
        fn parsers_never_panic(text in "[0-9a-z:/_.\\\\xäpod-]{0,200}") {
            let _ = (owner_of_cgroup(&text), sluid_path(&text), slurmstepd_job(&text), owner_by_mounts(&text));
        }
    }

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
