//! Names of containers: from Docker if its socket is writable, from podman for the user's own containers, and from the
//! kubelet's log directory for pods. Each unknown container is looked up once.

use super::child::{ChildProcess, ChildStatus, ProgramPath, find_program};
use crate::probe::blocking::{BlockingPool, Pending};
use crate::wire::{Owner, SafeText};
use rustix::fs::{Access, access};
use std::path::{Path, PathBuf};

/// Minimum time between two queries of an engine.
const QUERY_SECONDS: f64 = 30.0;
/// Timeout of a query. podman locks its storage while it starts a container.
const TIMEOUT_SECONDS: f64 = 20.0;
/// Maximum number of names kept.
const MAX_NAMES: usize = 1024;
/// The kubelet's log directory has one subdirectory per pod, `NAMESPACE_NAME_UID`.
const POD_LOGS: &str = "/var/log/pods";
const DOCKER_SOCKETS: [&str; 2] = ["/run/docker.sock", "/var/run/docker.sock"];
const LIST_ARGUMENTS: [&str; 4] = ["ps", "--no-trunc", "--format", "{{.ID}} {{.Names}}"];

/// Known names and the queries in progress.
#[derive(Debug)]
pub(crate) struct Containers {
    pool: BlockingPool,
    docker: ContainerEngine,
    podman: ContainerEngine,
    pod_logs: PathBuf,
    /// The lookup of a pod name in progress.
    pod_lookup: Option<Pending<(SafeText, Option<SafeText>)>>,
    /// Container id or pod uid, and its name; `None` if no source knows it.
    names: Vec<(SafeText, Option<SafeText>)>,
}

#[derive(Debug)]
struct ContainerEngine {
    program: ProgramPath,
    child: Option<ChildProcess>,
    queried_at: Option<f64>,
    /// Containers whose names are wanted.
    unresolved: Vec<SafeText>,
}

impl Containers {
    pub(crate) fn new(pool: BlockingPool) -> Self {
        Self {
            pool,
            docker: ContainerEngine::new(find_docker),
            podman: ContainerEngine::new(|| find_engine("podman")),
            pod_logs: POD_LOGS.into(),
            pod_lookup: None,
            names: Vec::new(),
        }
    }

    /// Returns the name of the container or pod if it is known, else starts a lookup. `is_own`: the process belongs to
    /// the login user.
    pub(crate) fn name(&mut self, owner: &Owner, is_own: bool) -> Option<SafeText> {
        let id = match owner {
            Owner::Container { id, .. } => id,
            Owner::Pod { uid, .. } => uid,
            _ => return None,
        };
        if let Some((_, name)) = self.names.iter().find(|(known, _)| known == id) {
            return name.clone();
        }
        match owner {
            Owner::Container { runtime, .. } if *runtime == "docker" => self.docker.request_name(id),
            // The containers of other users are in their own storage.
            Owner::Container { runtime, .. } if *runtime == "podman" && is_own => self.podman.request_name(id),
            Owner::Pod { uid, .. } if self.pod_lookup.is_none() => {
                let (logs, uid) = (self.pod_logs.clone(), uid.clone());
                self.pod_lookup = self.pool.run(move || {
                    let name = pod_name(&logs, &uid);
                    (uid, name)
                });
            }
            _ => {}
        }
        None
    }

    /// Queries the engines for unknown containers and collects the answers.
    pub(crate) fn advance(&mut self, now: f64) {
        let mut answers = self.docker.advance(&self.pool, now);
        answers.extend(self.podman.advance(&self.pool, now));
        answers.extend(Pending::take(&mut self.pod_lookup));
        for (id, name) in answers {
            self.record_name(id, name);
        }
    }

    /// Returns a query in progress.
    pub(super) fn child(&self) -> Option<&ChildProcess> {
        self.docker.child.as_ref().or(self.podman.child.as_ref())
    }

    fn record_name(&mut self, id: SafeText, name: Option<SafeText>) {
        // The oldest container has most likely ended.
        if self.names.len() >= MAX_NAMES {
            self.names.remove(0);
        }
        self.names.push((id, name));
    }
}

impl ContainerEngine {
    fn new(find: fn() -> Option<PathBuf>) -> Self {
        Self { program: ProgramPath::new(find), child: None, queried_at: None, unresolved: Vec::new() }
    }

    fn request_name(&mut self, id: &SafeText) {
        if !self.unresolved.contains(id) && self.unresolved.len() < MAX_NAMES {
            self.unresolved.push(id.clone());
        }
    }

    /// Returns the containers that were looked up, each with its name if the engine knows it.
    fn advance(&mut self, pool: &BlockingPool, now: f64) -> Vec<(SafeText, Option<SafeText>)> {
        if let Some(child) = &mut self.child {
            let text = match child.poll(now) {
                ChildStatus::Running | ChildStatus::TimedOut => return Vec::new(),
                ChildStatus::Finished(text) => text,
                ChildStatus::Failed => String::new(),
            };
            self.child = None;
            let unresolved = std::mem::take(&mut self.unresolved);
            return unresolved.into_iter().map(|id| (id.clone(), name_in_listing(&text, &id))).collect();
        }
        if self.unresolved.is_empty() || self.queried_at.is_some_and(|then| now - then < QUERY_SECONDS) {
            return Vec::new();
        }
        self.queried_at = Some(now);
        self.child = ChildProcess::start(pool, &self.program, &LIST_ARGUMENTS, now, TIMEOUT_SECONDS);
        if self.child.is_some() {
            return Vec::new();
        }
        std::mem::take(&mut self.unresolved).into_iter().map(|id| (id, None)).collect()
    }
}

/// Finds Docker if its socket is writable.
fn find_docker() -> Option<PathBuf> {
    let is_accessible = DOCKER_SOCKETS.iter().any(|socket| access(*socket, Access::WRITE_OK).is_ok());
    is_accessible.then(|| find_engine("docker")).flatten()
}

fn find_engine(name: &str) -> Option<PathBuf> {
    find_program(name, &["/usr/bin", "/usr/local/bin"])
}

/// Finds the name of the container whose long id starts with `id` in lines of `ID NAME`.
fn name_in_listing(text: &str, id: &str) -> Option<SafeText> {
    let line = text.lines().find(|line| !id.is_empty() && line.starts_with(id))?;
    let name = line.split_once(' ')?.1.trim();
    (!name.is_empty()).then(|| SafeText::new(name))
}

/// Returns `NAMESPACE/NAME` of the pod from the name of its log directory.
fn pod_name(logs: &Path, uid: &str) -> Option<SafeText> {
    std::fs::read_dir(logs).ok()?.flatten().find_map(|entry| {
        let folder = entry.file_name().into_string().ok()?;
        let (namespace, name) = folder.strip_suffix(uid)?.strip_suffix('_')?.split_once('_')?;
        Some(SafeText::from(format!("{namespace}/{name}")))
    })
}

#[cfg(test)]
mod tests {
    use super::super::child::write_script;
    use super::*;
    use std::time::{Duration, Instant};

    fn containers() -> Containers {
        Containers::new(BlockingPool::new())
    }

    fn in_docker(id: &str) -> Owner {
        Owner::Container { runtime: "docker".into(), id: id.into() }
    }

    #[test]
    fn docker_is_queried_once_for_an_unresolved_id() {
        let folder = tempfile::tempdir().unwrap();
        let text = "echo \"$*\" >>\"$0.calls\"\necho 4f0c8f5e6a1b2c3d4e5f60718293a4b5 trainer";
        let program = write_script(folder.path(), "docker", text);
        let mut containers = containers();
        containers.docker.program = ProgramPath::at(Some(program));
        let (known, unresolved) = (in_docker("4f0c8f5e6a1b"), in_docker("000000000000"));
        assert_eq!((containers.name(&known, false), containers.name(&unresolved, false)), (None, None));
        let deadline = Instant::now() + Duration::from_secs(30);
        while containers.name(&known, false).is_none() && Instant::now() < deadline {
            containers.advance(1.0);
            std::thread::yield_now();
        }
        assert_eq!(containers.name(&known, false).as_deref(), Some("trainer"));
        containers.advance(100.0);
        assert_eq!(containers.name(&unresolved, false), None, "no second lookup");
        assert!(containers.docker.unresolved.is_empty());
        let arguments = std::fs::read_to_string(folder.path().join("docker.calls")).unwrap();
        assert_eq!(arguments, "ps --no-trunc --format {{.ID}} {{.Names}}\n");
    }

    #[test]
    fn an_engine_without_access_is_not_queried() {
        let mut containers = containers();
        containers.docker.program = ProgramPath::at(None);
        let owner = in_docker("4f0c8f5e6a1b");
        assert_eq!(containers.name(&owner, true), None);
        containers.advance(1.0);
        assert!(containers.docker.child.is_none() && containers.names.len() == 1);
        let others = Owner::Container { runtime: "podman".into(), id: "4f0c8f5e6a1c".into() };
        assert_eq!(containers.name(&others, false), None);
        assert!(containers.podman.unresolved.is_empty());
    }

    #[test]
    fn pod_names_come_from_their_log_directory() {
        let folder = tempfile::tempdir().unwrap();
        let uid = "8f2c1c64-57cc-4b2e-9f0e-2f1d6a3c9b10";
        std::fs::create_dir(folder.path().join(format!("ml_trainer-0_{uid}"))).unwrap();
        let mut containers = Containers { pod_logs: folder.path().into(), ..containers() };
        let pod = |uid: &str| Owner::Pod { uid: uid.into(), container: None };
        assert_eq!(containers.name(&pod(uid), false), None);
        containers.pool.wait_until_idle(Instant::now() + Duration::from_secs(30));
        containers.advance(1.0);
        assert_eq!(containers.name(&pod(uid), false).as_deref(), Some("ml/trainer-0"));
        assert_eq!(pod_name(folder.path(), "other"), None);
        assert_eq!(containers.name(&Owner::Session("3".into()), true), None);
    }
}
