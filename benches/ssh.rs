//! How long the way to a host takes, beside raw russh and the `ssh` program in the same run, and what a connection holds
//! in memory. `cargo bench --bench ssh` prints a table; with `-- --save` it also stands in benches/results/ssh.md.
//!
//! Ours is the whole way: `ssh -G`, TCP, key exchange, host key, login, the remote script, the cached probe checked and
//! started, its first snapshot. The others connect, log in and run `true`. Without a driver on the host: how long NVML
//! takes to wake up is no matter of SSH.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench fails by panicking")]
#![allow(clippy::print_stdout, reason = "it prints its table")]

#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../tests/it/sshd.rs"]
mod sshd;

use gpufleet::collect::{Collector, OpenChannel, Source};
use gpufleet::config::{Backend, HostConfig};
use gpufleet::fleet::{Clock, HostId, HostUpdate};
use gpufleet::ssh::{Context, Interaction, Options};
use russh::keys::{PrivateKeyWithHashAlg, PublicKeyOrCertificate, load_secret_key};
use sshd::Sshd;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Rounds of the way to one host; each measures all three, one after the other.
const ROUNDS: usize = 41;
/// Rounds of all hosts at once.
const MANY_ROUNDS: usize = 5;
const MANY: usize = 64;
/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    // As the askpass of an `ssh`, or what gives it a session, this is another program.
    if gpufleet::ssh::run_helper_role().is_some() {
        return;
    }
    if let Some(place) = arguments.iter().position(|argument| argument == "--memory") {
        return println!("{}", memory(&arguments[place + 1..]));
    }
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &["MaxStartups 500"]);
    let runtime = runtime();
    // The probe is put there, and everything is in the page cache.
    runtime.block_on(async { ours(&sshd, 1).await });
    let one = one_host(&runtime, &sshd);
    let many = many_hosts(&runtime, &sshd);
    let lost = lost(&runtime);
    let each = measured_alone(&sshd);
    let table = table(&one, &many, lost, each);
    println!("{table}");
    if arguments.iter().any(|argument| argument == "--save") {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/results/ssh.md");
        std::fs::write(path, table).expect("writes the result");
    }
}

/// As the program makes its own.
fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Times of ours, raw russh and `ssh`.
#[derive(Default)]
struct Times {
    ours: Vec<f64>,
    raw: Vec<f64>,
    program: Vec<f64>,
}

fn one_host(runtime: &Runtime, sshd: &Sshd) -> Times {
    let mut times = Times::default();
    for _ in 0..ROUNDS {
        times.raw.push(timed(|| runtime.block_on(raw(sshd.address(), sshd.client_key(), sshd.user()))));
        times.ours.push(timed(|| drop(runtime.block_on(ours(sshd, 1)))));
        times.program.push(timed(|| program(sshd)));
    }
    times
}

fn many_hosts(runtime: &Runtime, sshd: &Sshd) -> Times {
    let mut times = Times::default();
    for _ in 0..MANY_ROUNDS {
        times.raw.push(timed(|| {
            runtime.block_on(async {
                let mut all = JoinSet::new();
                for _ in 0..MANY {
                    all.spawn(raw(sshd.address(), sshd.client_key(), sshd.user()));
                }
                all.join_all().await;
            });
        }));
        times.ours.push(timed(|| drop(runtime.block_on(ours(sshd, MANY)))));
    }
    times
}

/// How many connections of 64 hosts a server with the usual limits drops.
fn lost(runtime: &Runtime) -> usize {
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &["MaxStartups 10:30:100"]);
    drop(runtime.block_on(ours(&sshd, MANY)));
    sshd.log().matches("MaxStartups").count()
}

fn timed(act: impl FnOnce()) -> f64 {
    let began = Instant::now();
    act();
    began.elapsed().as_secs_f64()
}

fn program(sshd: &Sshd) {
    let known_hosts = format!("UserKnownHostsFile={}", sshd.known_hosts().display());
    let status = Command::new("ssh")
        .args(["-F", "/dev/null", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", &known_hosts, "-i"])
        .arg(sshd.client_key())
        .args(["-p", &sshd.port().to_string(), "-l", &sshd.user(), &sshd.ip(), "true"])
        .env_remove("SSH_AUTH_SOCK")
        .stdin(Stdio::null())
        .status();
    assert!(status.expect("ssh runs").success());
}

struct AnyKey;

impl russh::client::Handler for AnyKey {
    type Error = russh::Error;

    async fn check_server_key(&mut self, _: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        Ok(true)
    }
}

async fn raw(address: SocketAddr, key: PathBuf, user: String) {
    let config = Arc::new(russh::client::Config { nodelay: true, ..russh::client::Config::default() });
    let key = load_secret_key(key, None).expect("a key");
    let mut session = russh::client::connect(config, address, AnyKey).await.expect("connects");
    let key = PrivateKeyWithHashAlg::new(Arc::new(key), None);
    assert!(session.authenticate_publickey(user, key).await.expect("an answer").success());
    let mut channel = session.channel_open_session().await.expect("a channel");
    channel.exec(true, "true").await.expect("runs");
    while channel.wait().await.is_some() {}
}

/// Connections that live as long as this.
struct Live {
    _collector: Collector,
    _updates: mpsc::Receiver<(HostId, HostUpdate)>,
}

/// So many hosts, until each has sent its first snapshot.
async fn ours(sshd: &Sshd, hosts: usize) -> Live {
    let host = HostConfig {
        address: Some(sshd.ip()),
        port: Some(sshd.port()),
        user: Some(sshd.user()),
        identity_file: Some(sshd.client_key()),
        known_hosts: Some(sshd.known_hosts()),
        ..watched()
    };
    watch(&host, hosts).await
}

fn watched() -> HostConfig {
    HostConfig {
        nvml_library: Some("/nonexistent/libnvidia-ml.so.1".to_owned()),
        backend: Backend::Auto,
        ..HostConfig::named("gpu")
    }
}

async fn watch(host: &HostConfig, count: usize) -> Live {
    let options = Options {
        agent_socket: None,
        ssh_config: Some("/dev/null".into()),
        ..Options::from_environment(Interaction::Refuse)
    };
    let (context, _) = Context::with_options(options);
    let hosts: Vec<_> =
        (0..count).map(|number| Arc::new(HostConfig { name: format!("gpu{number}").into(), ..host.clone() })).collect();
    let source = Source::Ssh(context as Arc<dyn OpenChannel>);
    let (collector, mut updates) = Collector::start(&hosts, source, Clock::start(1.0));
    let mut seen = HashSet::new();
    while seen.len() < count {
        let next = tokio::time::timeout(LIMIT, updates.recv()).await.expect("in time");
        match next.expect("the tasks live") {
            (id, HostUpdate::Snapshot(_)) => {
                seen.insert(id);
            }
            (_, HostUpdate::Down { error, .. } | HostUpdate::NeedsUser(error)) => panic!("{error:?}"),
            _ => {}
        }
    }
    Live { _collector: collector, _updates: updates }
}

/// The memory of a connection, in bytes, measured in a process that has done nothing else.
fn measured_alone(sshd: &Sshd) -> u64 {
    let output = Command::new(std::env::current_exe().expect("a path"))
        .arg("--memory")
        .args([sshd.ip(), sshd.port().to_string(), sshd.user()])
        .args([sshd.client_key(), sshd.known_hosts()])
        .output()
        .expect("runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.trim().parse().unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// What each of 64 connections adds to the resident memory, after one that stands already.
fn memory(arguments: &[String]) -> u64 {
    let [ip, port, user, key, known_hosts] = arguments else { panic!("five arguments") };
    let host = HostConfig {
        address: Some(ip.clone()),
        port: port.parse().ok(),
        user: Some(user.clone()),
        identity_file: Some(key.into()),
        known_hosts: Some(known_hosts.into()),
        ..watched()
    };
    runtime().block_on(async {
        let _first = watch(&host, 1).await;
        let before = resident();
        let _others = watch(&host, MANY).await;
        (resident().saturating_sub(before)) / MANY as u64
    })
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Median, least and most.
fn milliseconds(times: &[f64]) -> String {
    let (least, most) =
        times.iter().fold((f64::MAX, 0.0_f64), |(least, most), time| (least.min(*time), most.max(*time)));
    format!("{:.0} ms ({:.0} to {:.0})", median(times) * 1e3, least * 1e3, most * 1e3)
}

fn table(one: &Times, many: &Times, lost: usize, each: u64) -> String {
    let version = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output().expect("runs");
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned()
    };
    let mut text = format!(
        "gpufleet {}, {}, {} cores, Linux {}. Median (least to most) of {ROUNDS} rounds, {MANY_ROUNDS} of {MANY} hosts.\n\n",
        env!("CARGO_PKG_VERSION"),
        version("ssh", "-V"),
        std::thread::available_parallelism().map_or(0, usize::from),
        version("uname", "-r"),
    );
    text += "| | gpufleet, to the first snapshot | raw russh, `true` | `ssh HOST true` |\n|---|---|---|---|\n";
    let _ = writeln!(
        text,
        "| 1 host | {} | {} | {} |",
        milliseconds(&one.ours),
        milliseconds(&one.raw),
        milliseconds(&one.program)
    );
    let _ = writeln!(
        text,
        "| {MANY} hosts behind one sshd | {} | {} | - |\n",
        milliseconds(&many.ours),
        milliseconds(&many.raw)
    );
    let mut figure = |what: &str, value: String, limit: &str, is_met: bool| {
        let _ = writeln!(text, "- {what}: {value}, at most {limit}{}", if is_met { "" } else { ": **missed**" });
    };
    let ratio = |left: &[f64], right: &[f64]| median(left) / median(right);
    let raw = ratio(&one.ours, &one.raw);
    figure("gpufleet / raw russh, 1 host", format!("{raw:.2}"), "1.5", raw <= 1.5);
    let program = ratio(&one.ours, &one.program);
    figure("gpufleet / `ssh HOST true`, 1 host", format!("{program:.2}"), "0.8", program <= 0.8);
    let at_once = ratio(&many.ours, &many.raw);
    figure(&format!("gpufleet / raw russh, {MANY} hosts"), format!("{at_once:.2}"), "2.0", at_once <= 2.0);
    figure("memory of a connection", format!("{:.0} kB", each as f64 / 1e3), "150 kB", each <= 150_000);
    figure("connections that MaxStartups 10:30:100 drops", lost.to_string(), "0", lost == 0);
    text
}
