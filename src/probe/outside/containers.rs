//! Names of containers, from whoever will tell this login: Docker where its socket may be written to, podman for the
//! user's own containers, the kubelet's folder of logs. Each unknown container is asked about once.

use super::child::{Answer, Asked, Program, find};
use crate::probe::blocking::{BlockingPool, Pending};
use crate::wire::{Owner, SafeText};
use rustix::fs::{Access, access};
use std::path::{Path, PathBuf};

/// From one question to the next, when containers have come meanwhile.
const ASK_SECONDS: f64 = 30.0;
/// How long an engine may take. podman locks its storage while it starts a container.
const LIMIT_SECONDS: f64 = 20.0;
/// The most names that are remembered.
const MAX_NAMES: usize = 1024;
/// One folder a pod, `NAMESPACE_NAME_UID`.
const POD_LOGS: &str = "/var/log/pods";
const SOCKETS: [&str; 2] = ["/run/docker.sock", "/var/run/docker.sock"];
const LIST: [&str; 4] = ["ps", "--no-trunc", "--format", "{{.ID}} {{.Names}}"];

/// What is known, and who is asked.
#[derive(Debug)]
pub(crate) struct Containers {
    pool: BlockingPool,
    docker: Engine,
    podman: Engine,
    pod_logs: PathBuf,
    /// The pod whose name is looked for.
    pod: Option<Pending<(SafeText, Option<SafeText>)>>,
    /// Container or pod, and its name; without one where nobody knows it.
    names: Vec<(SafeText, Option<SafeText>)>,
}

#[derive(Debug)]
struct Engine {
    program: Program,
    child: Option<Asked>,
    asked_at: Option<f64>,
    /// Containers whose names are wanted.
    unknown: Vec<SafeText>,
}

impl Containers {
    pub(crate) fn new(pool: BlockingPool) -> Self {
        Self {
            pool,
            docker: Engine::new(docker),
            podman: Engine::new(|| locate("podman")),
            pod_logs: POD_LOGS.into(),
            pod: None,
            names: Vec::new(),
        }
    }

    /// The name of what a process runs in, where it is known. `is_own`: the process belongs to the login user.
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
            Owner::Container { runtime, .. } if *runtime == "docker" => self.docker.want(id),
            // Those of others are in their own storage.
            Owner::Container { runtime, .. } if *runtime == "podman" && is_own => self.podman.want(id),
            Owner::Pod { uid, .. } if self.pod.is_none() => {
                let (logs, uid) = (self.pod_logs.clone(), uid.clone());
                self.pod = self.pool.run(move || {
                    let name = pod_name(&logs, &uid);
                    (uid, name)
                });
            }
            _ => {}
        }
        None
    }

    /// Asks the engines for what is unknown, and takes in what they say.
    pub(crate) fn step(&mut self, now: f64) {
        let mut answers = self.docker.step(&self.pool, now);
        answers.extend(self.podman.step(&self.pool, now));
        answers.extend(Pending::take(&mut self.pod));
        for (id, name) in answers {
            self.learn(id, name);
        }
    }

    /// A child that is asked.
    pub(super) fn child(&self) -> Option<&Asked> {
        self.docker.child.as_ref().or(self.podman.child.as_ref())
    }

    fn learn(&mut self, id: SafeText, name: Option<SafeText>) {
        // Who came first has most likely gone first.
        if self.names.len() >= MAX_NAMES {
            self.names.remove(0);
        }
        self.names.push((id, name));
    }
}

impl Engine {
    fn new(find: fn() -> Option<PathBuf>) -> Self {
        Self { program: Program::new(find), child: None, asked_at: None, unknown: Vec::new() }
    }

    fn want(&mut self, id: &SafeText) {
        if !self.unknown.contains(id) && self.unknown.len() < MAX_NAMES {
            self.unknown.push(id.clone());
        }
    }

    /// The containers that were asked about, each with its name if the engine knows it.
    fn step(&mut self, pool: &BlockingPool, now: f64) -> Vec<(SafeText, Option<SafeText>)> {
        if let Some(child) = &mut self.child {
            let text = match child.look(now) {
                Answer::Pending | Answer::Late => return Vec::new(),
                Answer::Said(text) => text,
                Answer::Failed => String::new(),
            };
            self.child = None;
            let unknown = std::mem::take(&mut self.unknown);
            return unknown.into_iter().map(|id| (id.clone(), listed(&text, &id))).collect();
        }
        if self.unknown.is_empty() || self.asked_at.is_some_and(|then| now - then < ASK_SECONDS) {
            return Vec::new();
        }
        self.asked_at = Some(now);
        self.child = Asked::start(pool, &self.program, &LIST, now, LIMIT_SECONDS);
        if self.child.is_some() {
            return Vec::new();
        }
        std::mem::take(&mut self.unknown).into_iter().map(|id| (id, None)).collect()
    }
}

/// Docker, where its socket may be written to.
fn docker() -> Option<PathBuf> {
    let may_ask = SOCKETS.iter().any(|socket| access(*socket, Access::WRITE_OK).is_ok());
    may_ask.then(|| locate("docker")).flatten()
}

fn locate(name: &str) -> Option<PathBuf> {
    find(name, &["/usr/bin", "/usr/local/bin"])
}

/// The name behind the long id that begins with `id`, in lines of `ID NAME`.
fn listed(text: &str, id: &str) -> Option<SafeText> {
    let line = text.lines().find(|line| !id.is_empty() && line.starts_with(id))?;
    let name = line.split_once(' ')?.1.trim();
    (!name.is_empty()).then(|| SafeText::new(name))
}

/// `NAMESPACE/NAME` from the folder of this pod's logs; where the folder may be read, most often everybody may.
fn pod_name(logs: &Path, uid: &str) -> Option<SafeText> {
    std::fs::read_dir(logs).ok()?.flatten().find_map(|entry| {
        let folder = entry.file_name().into_string().ok()?;
        let (namespace, name) = folder.strip_suffix(uid)?.strip_suffix('_')?.split_once('_')?;
        Some(SafeText::from(format!("{namespace}/{name}")))
    })
}

#[cfg(test)]
mod tests {
    use super::super::child::script;
    use super::*;
    use std::time::{Duration, Instant};

    fn containers() -> Containers {
        Containers::new(BlockingPool::new())
    }

    fn in_docker(id: &str) -> Owner {
        Owner::Container { runtime: "docker".into(), id: id.into() }
    }

    #[test]
    fn docker_is_asked_once_about_what_is_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let text = "echo \"$*\" >>\"$0.asked\"\necho 4f0c8f5e6a1b2c3d4e5f60718293a4b5 trainer";
        let program = script(folder.path(), "docker", text);
        let mut containers = containers();
        containers.docker.program = Program::at(Some(program));
        let (known, unknown) = (in_docker("4f0c8f5e6a1b"), in_docker("000000000000"));
        assert_eq!((containers.name(&known, false), containers.name(&unknown, false)), (None, None));
        let deadline = Instant::now() + Duration::from_secs(30);
        while containers.name(&known, false).is_none() && Instant::now() < deadline {
            containers.step(1.0);
            std::thread::yield_now();
        }
        assert_eq!(containers.name(&known, false).as_deref(), Some("trainer"));
        containers.step(100.0);
        assert_eq!(containers.name(&unknown, false), None, "it stays unknown, and is not asked about again");
        assert!(containers.docker.unknown.is_empty());
        let asked = std::fs::read_to_string(folder.path().join("docker.asked")).unwrap();
        assert_eq!(asked, "ps --no-trunc --format {{.ID}} {{.Names}}\n");
    }

    #[test]
    fn who_may_not_ask_does_not() {
        let mut containers = containers();
        containers.docker.program = Program::at(None);
        let owner = in_docker("4f0c8f5e6a1b");
        assert_eq!(containers.name(&owner, true), None);
        containers.step(1.0);
        assert!(containers.docker.child.is_none() && containers.names.len() == 1);
        let others = Owner::Container { runtime: "podman".into(), id: "4f0c8f5e6a1c".into() };
        assert_eq!(containers.name(&others, false), None);
        assert!(containers.podman.unknown.is_empty());
    }

    #[test]
    fn pods_have_a_folder_of_logs() {
        let folder = tempfile::tempdir().unwrap();
        let uid = "8f2c1c64-57cc-4b2e-9f0e-2f1d6a3c9b10";
        std::fs::create_dir(folder.path().join(format!("ml_trainer-0_{uid}"))).unwrap();
        let mut containers = Containers { pod_logs: folder.path().into(), ..containers() };
        let pod = |uid: &str| Owner::Pod { uid: uid.into(), container: None };
        assert_eq!(containers.name(&pod(uid), false), None);
        containers.pool.settle(Instant::now() + Duration::from_secs(30));
        containers.step(1.0);
        assert_eq!(containers.name(&pod(uid), false).as_deref(), Some("ml/trainer-0"));
        assert_eq!(pod_name(folder.path(), "other"), None);
        assert_eq!(containers.name(&Owner::Session("3".into()), true), None);
    }
}
