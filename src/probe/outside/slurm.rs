//! What Slurm has given away on this host, where `scontrol` answers: a GPU that a job holds is not free, used or not.
//!
//! One question about this node alone, once a minute, by a child with a deadline. `scontrol` is looked for
//! once.
//!
//! Each host asks for itself, though one of a cluster could ask for all. A node is one record, so that all nodes that
//! are watched cost the controller no more this way than a list of them asked for by one, while "all nodes" is every
//! node of the cluster, watched or not; and no host goes blind because the one that asks is away, is not permitted, or
//! belongs to another cluster than its name says.

use super::child::{Answer, Asked, Program, find};
use crate::probe::blocking::BlockingPool;
use crate::wire::SafeText;
use std::path::PathBuf;

/// From one question to the next.
const ASK_SECONDS: f64 = 60.0;
/// The same after a question that had no answer: the controller is down, or this host is no node.
const ASK_AGAIN_SECONDS: f64 = 600.0;
/// A controller under load answers within seconds.
const LIMIT_SECONDS: f64 = 10.0;
/// Where installations by hand keep it.
const PLACES: [&str; 4] = ["/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin"];
/// The most GPUs of a node that are taken in.
const MAX_GPUS: u32 = 512;

/// Where the asking stands.
#[derive(Debug)]
pub(crate) struct Slurm {
    pool: BlockingPool,
    program: Program,
    state: State,
    /// The names by which the node may be known, most likely first.
    names: Vec<String>,
    /// Which of them is asked by.
    name: usize,
    cluster: Option<SafeText>,
    allocated: Option<Vec<u32>>,
}

#[derive(Debug)]
enum State {
    /// Until the next question.
    Resting { due: f64 },
    /// A child is asked: for the cluster's name first, then for the node.
    Asking { child: Asked, config: bool },
}

/// What is known, where something is new or to be said again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SlurmNews {
    pub(crate) cluster: Option<SafeText>,
    pub(crate) allocated: Option<Vec<u32>>,
}

impl Slurm {
    /// For the node of this name.
    pub(crate) fn new(pool: BlockingPool) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let short = host.split('.').next().unwrap_or_default().to_owned();
        let mut names: Vec<String> = std::env::var("SLURMD_NODENAME").into_iter().chain([short, host]).collect();
        names.retain(|name| !name.is_empty() && !name.starts_with('-'));
        names.dedup();
        let program = Program::new(scontrol);
        Self { pool, program, state: State::Resting { due: 0.0 }, names, name: 0, cluster: None, allocated: None }
    }

    /// Goes on asking; what is new, or all that is known when `resend` asks for it.
    pub(crate) fn step(&mut self, now: f64, resend: bool) -> SlurmNews {
        let known = (self.cluster.clone(), self.allocated.clone());
        self.state = match std::mem::replace(&mut self.state, State::Resting { due: now }) {
            State::Resting { due } if now >= due => self.ask(self.cluster.is_none(), now),
            resting @ State::Resting { .. } => resting,
            State::Asking { mut child, config } => match child.look(now) {
                Answer::Pending | Answer::Late => State::Asking { child, config },
                Answer::Said(text) if config => {
                    self.cluster = cluster_name(&text);
                    self.ask(false, now)
                }
                Answer::Said(text) => {
                    self.allocated = allocated_gpus(&text);
                    State::Resting { due: now + ASK_SECONDS }
                }
                // Perhaps it is known by another name.
                Answer::Failed if !config && self.name + 1 < self.names.len() => {
                    self.name += 1;
                    self.ask(false, now)
                }
                Answer::Failed => {
                    self.name = 0;
                    self.allocated = None;
                    State::Resting { due: now + ASK_AGAIN_SECONDS }
                }
            },
        };
        let new = |is_new: bool| is_new || resend;
        SlurmNews {
            cluster: self.cluster.clone().filter(|_| new(self.cluster != known.0)),
            allocated: self.allocated.clone().filter(|_| new(self.allocated != known.1)),
        }
    }

    /// The child that is asked.
    pub(super) fn child(&self) -> Option<&Asked> {
        match &self.state {
            State::Asking { child, .. } => Some(child),
            State::Resting { .. } => None,
        }
    }

    fn ask(&self, config: bool, now: f64) -> State {
        let node = self.names.get(self.name).map_or("", String::as_str);
        let arguments: &[&str] = if config { &["show", "config"] } else { &["-d", "-o", "show", "node", node] };
        match Asked::start(&self.pool, &self.program, arguments, now, LIMIT_SECONDS) {
            Some(child) => State::Asking { child, config },
            None => State::Resting { due: now + ASK_AGAIN_SECONDS },
        }
    }
}

/// Where `scontrol` is.
pub(super) fn scontrol() -> Option<PathBuf> {
    find("scontrol", &PLACES)
}

/// `ClusterName             = lab` in what `scontrol show config` says.
fn cluster_name(text: &str) -> Option<SafeText> {
    let line = text.lines().find(|line| line.starts_with("ClusterName"))?;
    let name = line.split_once('=')?.1.trim();
    (!name.is_empty() && name != "(null)").then(|| SafeText::new(name))
}

/// The indices in `GresUsed=gpu:h100:3(IDX:0-1,5)` of what `scontrol -d -o show node` says; there may be several kinds
/// of GPU, and other resources between them. `None` where the node says nothing of the sort.
fn allocated_gpus(text: &str) -> Option<Vec<u32>> {
    let used = text.split_whitespace().find_map(|word| word.strip_prefix("GresUsed="))?;
    let mut gpus = Vec::new();
    let mut rest = used;
    while let Some(start) = rest.find("gpu:") {
        // `mps:gpu:` and the like are none; a kind stands at the beginning or behind a comma.
        let is_kind = start == 0 || rest.as_bytes().get(start - 1) == Some(&b',');
        rest = &rest[start + 4..];
        let Some((kind, behind)) = rest.split_once('(') else { break };
        if !is_kind || kind.contains(',') {
            continue;
        }
        let (list, behind) = behind.split_once(')').unwrap_or((behind, ""));
        if let Some(list) = list.strip_prefix("IDX:") {
            gpus.extend(indices(list));
        }
        rest = behind;
    }
    Some(gpus)
}

/// The numbers in `0-1,5`; none in `N/A`.
fn indices(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        (last < MAX_GPUS).then_some(first..=last)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::super::child::script;
    use super::*;
    use crate::probe::blocking::{MAX_THREADS, block};
    use std::time::{Duration, Instant};

    /// As Slurm 23.11 prints it on a node with eight H100, shortened (man page of scontrol, and schedmd's gres.html).
    const NODE: &str = "NodeName=hgx-01 Arch=x86_64 CoresPerSocket=56 CPUAlloc=32 CPUTot=224 Gres=gpu:h100:8(S:0-1) \
        GresDrain=N/A GresUsed=gpu:h100:3(IDX:0-1,5),mps:0 NodeAddr=hgx-01 State=MIXED\n";

    #[test]
    fn indices_of_given_gpus_are_read() {
        assert_eq!(allocated_gpus(NODE), Some(vec![0, 1, 5]));
        for (used, expected) in [
            ("gpu:h100:0(IDX:N/A)", vec![]),
            ("gpu:2(IDX:0,3)", vec![0, 3]),
            ("gpu:a100:1(IDX:0),gpu:v100:2(IDX:2-3),shard:a100:4(IDX:1)", vec![0, 2, 3]),
            ("gpu:h100:8(IDX:0-4294967295)", vec![]),
            ("gpu:h100:8(IDX:3-", vec![]),
            ("gpu:h100:8", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(allocated_gpus(&format!("NodeName=x GresUsed={used} State=IDLE")), Some(expected), "{used}");
        }
        assert_eq!(allocated_gpus("NodeName=x State=IDLE"), None);
    }

    #[test]
    fn the_cluster_has_a_name() {
        let config =
            "Configuration data as of 2025-01-01\nAccountingStorageHost   = db\nClusterName             = lab\n";
        assert_eq!(cluster_name(config).as_deref(), Some("lab"));
        assert_eq!(cluster_name("ClusterName = (null)\n"), None);
    }

    /// With a `scontrol` that is this script.
    fn with_scontrol(text: &str, names: &[&str]) -> (Slurm, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let program = script(folder.path(), "scontrol", text);
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let program = Program::at(Some(program));
        let slurm = Slurm { program, names, ..Slurm::new(BlockingPool::new()) };
        (slurm, folder)
    }

    /// Steps until it rests; everything that was said on the way.
    fn rest(slurm: &mut Slurm, now: f64) -> SlurmNews {
        let (deadline, mut all) = (Instant::now() + Duration::from_secs(30), SlurmNews::default());
        while Instant::now() < deadline {
            let news = slurm.step(now, false);
            all.cluster = news.cluster.or(all.cluster);
            all.allocated = news.allocated.or(all.allocated);
            if matches!(&slurm.state, State::Resting { due } if *due > now) {
                return all;
            }
            std::thread::yield_now();
        }
        panic!("it never rests: {slurm:?}")
    }

    #[test]
    fn the_node_is_asked_once_a_minute_and_the_cluster_once() {
        let script = format!(
            "case $* in 'show config') echo 'ClusterName = lab' ;; '-d -o show node hgx-01') echo '{NODE}' ;; \
             *) exit 1 ;; esac; echo \"$*\" >>\"$0.asked\""
        );
        let (mut slurm, folder) = with_scontrol(&script, &["elsewhere", "hgx-01"]);
        let news = rest(&mut slurm, 1.0);
        assert_eq!((news.cluster.as_deref(), news.allocated), (Some("lab"), Some(vec![0, 1, 5])));
        assert_eq!(slurm.step(60.0, false), SlurmNews::default());
        assert_eq!(slurm.step(60.0, true).allocated, Some(vec![0, 1, 5]));
        assert_eq!(rest(&mut slurm, 61.0), SlurmNews::default(), "nothing has changed");
        let asked = std::fs::read_to_string(folder.path().join("scontrol.asked")).unwrap();
        assert_eq!(asked, "show config\n-d -o show node hgx-01\n-d -o show node hgx-01\n");
    }

    #[test]
    fn a_controller_that_does_not_answer_is_left_alone_for_a_while() {
        let (mut slurm, _folder) = with_scontrol("exit 1", &["hgx-01"]);
        assert_eq!(rest(&mut slurm, 1.0), SlurmNews::default());
        assert!(matches!(slurm.state, State::Resting { due } if due >= 601.0));
        let (mut slurm, _folder) = with_scontrol("exec sleep 600", &["hgx-01"]);
        slurm.step(1.0, false);
        slurm.pool.settle(Instant::now() + Duration::from_secs(30));
        assert!(matches!(slurm.state, State::Asking { .. }));
        assert_eq!(rest(&mut slurm, 12.0), SlurmNews::default());
    }

    #[test]
    fn a_scontrol_whose_file_server_hangs_is_asked_once() {
        let (mut slurm, folder) = with_scontrol("echo x >>\"$0.asked\"; exit 1", &["hgx-01"]);
        let release = block(&slurm.pool, MAX_THREADS);
        for now in 0..10_000 {
            assert_eq!(slurm.step(f64::from(now) / 1e4, true), SlurmNews::default());
        }
        drop(release);
        rest(&mut slurm, 1.0);
        let asked = std::fs::read_to_string(folder.path().join("scontrol.asked")).unwrap();
        assert_eq!(asked.lines().count(), 1);
    }
}
