//! Who runs a process beyond its user, read off its cgroup. Everybody may read `/proc/PID/cgroup`.

use crate::wire::{Ancestor, Owner};

/// How many hexadecimal digits of a container's id are shown, as `docker ps` does.
const SHOWN_DIGITS: usize = 12;

/// The owner that a process's cgroups and parents tell, most telling first: a Slurm job, a pod, a container, a
/// service, a login session. `cgroup` is the text of `/proc/PID/cgroup` (cgroups(7)): `N:controllers:/path` lines.
pub(crate) fn owner(cgroup: &str, ancestors: &[Ancestor]) -> Option<Owner> {
    let first = |rule: fn(&[&str]) -> Option<Owner>| paths(cgroup).find_map(|path| rule(&parts(path)));
    first(slurm)
        .or_else(|| first(pod))
        .or_else(|| first(container))
        .or_else(|| apptainer(ancestors))
        .or_else(|| first(service))
        .or_else(|| first(session))
}

/// The path of the cgroup that Slurm 26.05 and newer names by a SLUID (`s` and 13 Crockford base32 characters). The
/// job id is not in it: [`slurmstepd_job`] finds it in the title of the step's daemon.
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

/// Job and step in the title of a `slurmstepd`: `slurmstepd: [3385.0]`.
pub(crate) fn slurmstepd_job(title: &str) -> Option<Owner> {
    let inner = title.strip_prefix("slurmstepd: [")?.split(']').next()?;
    let (job, step) = inner.split_once('.').map_or((inner, None), |(job, step)| (job, Some(step)));
    is_number(job).then(|| Owner::Slurm { job: job.into(), step: step.map(Into::into) })
}

fn paths(cgroup: &str) -> impl Iterator<Item = &str> {
    cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2))
}

fn parts(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !part.is_empty()).collect()
}

/// cgroup v1: `/slurm/uid_U/job_J/step_S`, with the node's name behind `slurm_` where several run on one host.
/// cgroup v2 before 26.05: `.../slurmstepd.scope/job_J/step_S/...`, in a slice whose name can be configured.
fn slurm(parts: &[&str]) -> Option<Owner> {
    let place = parts.windows(2).position(|pair| {
        let above = pair[0];
        let is_slurm = above.strip_prefix("uid_").is_some_and(is_number) || above.ends_with("slurmstepd.scope");
        is_slurm && pair[1].strip_prefix("job_").is_some_and(is_number)
    })?;
    let job = parts[place + 1].strip_prefix("job_")?;
    let step = parts.get(place + 2).and_then(|part| part.strip_prefix("step_"));
    Some(Owner::Slurm { job: job.into(), step: step.map(Into::into) })
}

/// `/kubepods/burstable/pod<uid>/<id>`, or with systemd
/// `kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope`, in which the uid's `-` are written `_`.
fn pod(parts: &[&str]) -> Option<Owner> {
    parts.iter().find(|part| part.starts_with("kubepods"))?;
    let (place, uid) = parts.iter().enumerate().find_map(|(place, part)| {
        let uid = part.rsplit_once("pod")?.1.trim_end_matches(".slice").replace('_', "-");
        // A static pod's uid is a bare hash.
        let digits = uid.bytes().filter(u8::is_ascii_hexdigit).count();
        let is_uid = digits == 32 && (uid.len() == 32 || uid.len() == 36);
        is_uid.then_some((place, uid))
    })?;
    let container = parts.get(place + 1).and_then(|part| {
        let id = part.trim_end_matches(".scope");
        let id =
            ["cri-containerd-", "crio-", "docker-"].iter().find_map(|prefix| id.strip_prefix(prefix)).unwrap_or(id);
        is_long_id(id).then(|| id.into())
    });
    Some(Owner::Pod { uid: uid.into(), container })
}

fn container(parts: &[&str]) -> Option<Owner> {
    let owner = |runtime: &str, id: &str| Some(Owner::Container { runtime: runtime.into(), id: id.into() });
    // The innermost container is the one that the process knows itself to be in.
    parts.iter().enumerate().rev().find_map(|(place, part)| {
        let scope = part.strip_suffix(".scope").unwrap_or(part);
        let above = place.checked_sub(1).map(|above| parts[above]);
        if let Some(id) = scope.strip_prefix("docker-").filter(|id| is_long_id(id)) {
            return owner("docker", &id[..SHOWN_DIGITS]);
        }
        if above == Some("docker") && is_long_id(part) {
            return owner("docker", &part[..SHOWN_DIGITS]);
        }
        if let Some(id) = scope.strip_prefix("libpod-").filter(|id| is_long_id(id)) {
            return owner("podman", &id[..SHOWN_DIGITS]);
        }
        if let Some(name) = part.strip_prefix("lxc.payload.").or(if above == Some("lxc") { Some(part) } else { None }) {
            return owner("lxc", name);
        }
        // Virtual machines register under the same prefix; their processes are not in a container.
        let machine = part.strip_prefix("machine-").and_then(|name| name.strip_suffix(".scope")).map(unescaped);
        machine.filter(|name| !name.starts_with("qemu-")).and_then(|name| owner("nspawn", &name))
    })
}

/// Apptainer leaves the cgroup as it is; a parent of the process carries its title.
fn apptainer(ancestors: &[Ancestor]) -> Option<Owner> {
    let parent = ancestors
        .iter()
        .find(|ancestor| ancestor.argv.first().is_some_and(|title| title.starts_with("Apptainer runtime parent")))?;
    Some(Owner::Container { runtime: "apptainer".into(), id: parent.pid.to_string().into() })
}

fn service(parts: &[&str]) -> Option<Owner> {
    let name = parts.iter().rev().find(|part| part.ends_with(".service"))?;
    // The per-user manager is nobody's work: whatever a person started from a desktop is below it.
    (!name.starts_with("user@")).then(|| Owner::Service(unescaped(name).into()))
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

fn is_sluid(part: &str) -> bool {
    // Crockford's alphabet leaves out I, L, O and U.
    let in_alphabet = |byte: u8| byte.is_ascii_alphanumeric() && !b"ILOU".contains(&byte.to_ascii_uppercase());
    part.len() == 14 && part.starts_with('s') && part.bytes().skip(1).all(in_alphabet)
}

/// Undoes systemd's escapes (`\x2d`, systemd-escape(1)).
fn unescaped(name: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "4f0c8f5e6a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5";

    fn of(cgroup: &str) -> Option<Owner> {
        owner(cgroup, &[])
    }

    fn slurm_job(job: &str, step: Option<&str>) -> Owner {
        Owner::Slurm { job: job.into(), step: step.map(Into::into) }
    }

    fn in_container(runtime: &str, id: &str) -> Owner {
        Owner::Container { runtime: runtime.into(), id: id.into() }
    }

    #[test]
    fn slurm_jobs_under_both_cgroup_versions() {
        let v1 = "11:memory:/slurm/uid_1000/job_3385/step_0/task_0\n2:freezer:/slurm/uid_1000/job_3385/step_0\n";
        assert_eq!(of(v1), Some(slurm_job("3385", Some("0"))));
        assert_eq!(of("4:cpuset:/slurm_hgx-01/uid_1000/job_77/step_batch"), Some(slurm_job("77", Some("batch"))));
        let v2 = "0::/system.slice/slurmstepd.scope/job_3385/step_extern/user/task_special";
        assert_eq!(of(v2), Some(slurm_job("3385", Some("extern"))));
        assert_eq!(of("0::/gpu.slice/hgx-01_slurmstepd.scope/job_9"), Some(slurm_job("9", None)));
        assert_eq!(of("0::/system.slice/backup.service/job_9/step_0"), Some(Owner::Service("backup.service".into())));
    }

    #[test]
    fn a_sluid_leads_to_the_step_daemon() {
        let cgroup = "0::/system.slice/slurmstepd.scope/sZ3KQ8M2TV9XYA/step_0/user/task_0\n";
        assert_eq!(sluid_path(cgroup), Some("/system.slice/slurmstepd.scope/sZ3KQ8M2TV9XYA"));
        assert_eq!(sluid_path("0::/system.slice/ssh.service"), None);
        assert_eq!(slurmstepd_job("slurmstepd: [3385.0]"), Some(slurm_job("3385", Some("0"))));
        assert_eq!(slurmstepd_job("slurmstepd: [3385.extern]"), Some(slurm_job("3385", Some("extern"))));
        assert_eq!(slurmstepd_job("slurmstepd infinity"), None);
    }

    #[test]
    fn pods_and_their_containers() {
        let uid = "8f2c1c64-57cc-4b2e-9f0e-2f1d6a3c9b10";
        let pod = |container: Option<&str>| Some(Owner::Pod { uid: uid.into(), container: container.map(Into::into) });
        let plain = format!("12:pids:/kubepods/burstable/pod{uid}/{ID}\n");
        assert_eq!(of(&plain), pod(Some(ID)));
        let escaped = uid.replace('-', "_");
        let systemd = format!(
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{escaped}.slice/cri-containerd-{ID}.scope"
        );
        assert_eq!(of(&systemd), pod(Some(ID)));
        assert_eq!(of(&format!("0::/kubepods/pod{uid}")), pod(None));
    }

    #[test]
    fn containers_by_runtime() {
        assert_eq!(of(&format!("0::/system.slice/docker-{ID}.scope")), Some(in_container("docker", "4f0c8f5e6a1b")));
        assert_eq!(of(&format!("3:cpu:/docker/{ID}")), Some(in_container("docker", "4f0c8f5e6a1b")));
        let podman = format!("0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container");
        assert_eq!(of(&podman), Some(in_container("podman", "4f0c8f5e6a1b")));
        assert_eq!(of("0::/lxc.payload.web/init.scope"), Some(in_container("lxc", "web")));
        assert_eq!(of("4:cpu:/lxc/web"), Some(in_container("lxc", "web")));
        assert_eq!(of("0::/machine.slice/machine-deb\\x2d12.scope/payload"), Some(in_container("nspawn", "deb-12")));
        assert_eq!(of("0::/machine.slice/machine-qemu\\x2d1\\x2dvm.scope"), None);
    }

    #[test]
    fn apptainer_is_known_by_a_parent() {
        let parent = Ancestor { pid: 40, argv: vec!["Apptainer runtime parent".into()], ..Ancestor::default() };
        assert_eq!(owner("0::/user.slice/session-3.scope", &[parent]), Some(in_container("apptainer", "40")));
    }

    #[test]
    fn services_and_sessions() {
        assert_eq!(of("0::/system.slice/ollama.service"), Some(Owner::Service("ollama.service".into())));
        assert_eq!(of("0::/user.slice/user-1000.slice/session-12.scope"), Some(Owner::Session("12".into())));
        assert_eq!(of("0::/user.slice/user-1000.slice/user@1000.service/tmux-spawn-1.scope"), None);
        assert_eq!(of("0::/\n"), None);
        assert_eq!(of("noise"), None);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[0-9a-z:/_.\\\\xäpod-]{0,200}") {
            let _ = (of(&text), sluid_path(&text), slurmstepd_job(&text));
        }
    }
}
