//! Time to connect to a host, compared with plain russh and the `ssh` program, and memory per connection.
//!
//! `cargo bench --bench ssh` prints a table; `-- --save` also writes it to benches/results/ssh.md.
//!
//! gpufleet's time runs until the first snapshot: `ssh -G`, TCP, key exchange, host key, login, the remote script, check
//! and start of the cached probe. The others connect, log in and run `true`. The host has no driver, so that the start of
//! NVML does not count.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark fails by panicking")]
#![allow(clippy::print_stdout, reason = "the table goes to standard output")]

#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../tests/it/sshd.rs"]
mod sshd;

use gpufleet::collect::{HostTasks, HostUpdates, OpenChannel, Source};
use gpufleet::config::{Backend, HostConfig};
use gpufleet::fleet::{Clock, HostUpdate};
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
use tokio::task::JoinSet;

/// Rounds with one host; each measures all three programs in turn.
const ROUNDS: usize = 41;
/// Rounds with many hosts at once.
const MANY_ROUNDS: usize = 5;
const MANY: usize = 64;
/// Deadline for the first snapshots.
const LIMIT: Duration = Duration::from_secs(60);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    // `ssh` starts this binary as its askpass program, or to get a new session.
    if gpufleet::ssh::run_helper_role().is_some() {
        return;
    }
    if let Some(place) = arguments.iter().position(|argument| argument == "--memory") {
        return println!("{}", memory(&arguments[place + 1..]));
    }
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &["MaxStartups 500"]);
    let runtime = runtime();
    // Installs the probe and fills the page cache.
    runtime.block_on(async { connect_gpufleet(&sshd, 1).await });
    let one = one_host(&runtime, &sshd);
    let many = many_hosts(&runtime, &sshd);
    let dropped = dropped_connections(&runtime);
    let memory = memory_per_connection(&sshd);
    let table = table(&one, &many, dropped, memory);
    println!("{table}");
    if arguments.iter().any(|argument| argument == "--save") {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/results/ssh.md");
        std::fs::write(path, table).expect("writes the result");
    }
}

/// A runtime like that of the program.
fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Seconds of gpufleet, plain russh and `ssh`, per round.
#[derive(Default)]
struct Times {
    gpufleet: Vec<f64>,
    russh: Vec<f64>,
    ssh: Vec<f64>,
}

fn one_host(runtime: &Runtime, sshd: &Sshd) -> Times {
    let mut times = Times::default();
    for _ in 0..ROUNDS {
        times
            .russh
            .push(seconds_of(|| runtime.block_on(connect_russh(sshd.address(), sshd.client_key(), sshd.user()))));
        times.gpufleet.push(seconds_of(|| drop(runtime.block_on(connect_gpufleet(sshd, 1)))));
        times.ssh.push(seconds_of(|| run_ssh(sshd)));
    }
    times
}

fn many_hosts(runtime: &Runtime, sshd: &Sshd) -> Times {
    let mut times = Times::default();
    for _ in 0..MANY_ROUNDS {
        times.russh.push(seconds_of(|| {
            runtime.block_on(async {
                let mut all = JoinSet::new();
                for _ in 0..MANY {
                    all.spawn(connect_russh(sshd.address(), sshd.client_key(), sshd.user()));
                }
                all.join_all().await;
            });
        }));
        times.gpufleet.push(seconds_of(|| drop(runtime.block_on(connect_gpufleet(sshd, MANY)))));
    }
    times
}

/// Returns how many connections to 64 hosts a server with the default limit drops.
fn dropped_connections(runtime: &Runtime) -> usize {
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &["MaxStartups 10:30:100"]);
    drop(runtime.block_on(connect_gpufleet(&sshd, MANY)));
    sshd.log().matches("MaxStartups").count()
}

fn seconds_of(act: impl FnOnce()) -> f64 {
    let began = Instant::now();
    act();
    began.elapsed().as_secs_f64()
}

fn run_ssh(sshd: &Sshd) {
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

async fn connect_russh(address: SocketAddr, key: PathBuf, user: String) {
    let config = Arc::new(russh::client::Config { nodelay: true, ..russh::client::Config::default() });
    let key = load_secret_key(key, None).expect("a key");
    let mut session = russh::client::connect(config, address, AnyKey).await.expect("connects");
    let key = PrivateKeyWithHashAlg::new(Arc::new(key), None);
    assert!(session.authenticate_publickey(user, key).await.expect("an answer").success());
    let mut channel = session.channel_open_session().await.expect("a channel");
    channel.exec(true, "true").await.expect("runs");
    while channel.wait().await.is_some() {}
}

/// Keeps the connections open until it is dropped.
struct Connections {
    _host_tasks: HostTasks,
    _updates: HostUpdates,
}

/// Connects to `hosts` hosts with gpufleet and waits for the first snapshot of each.
async fn connect_gpufleet(sshd: &Sshd, hosts: usize) -> Connections {
    let host = HostConfig {
        address: Some(sshd.ip()),
        port: Some(sshd.port()),
        user: Some(sshd.user()),
        identity_file: Some(sshd.client_key()),
        known_hosts: Some(sshd.known_hosts()),
        ..host_without_driver()
    };
    wait_for_snapshots(&host, hosts).await
}

fn host_without_driver() -> HostConfig {
    HostConfig {
        nvml_library: Some("/nonexistent/libnvidia-ml.so.1".to_owned()),
        backend: Backend::Auto,
        ..HostConfig::named("gpu")
    }
}

async fn wait_for_snapshots(host: &HostConfig, count: usize) -> Connections {
    let options = Options {
        agent_socket: None,
        ssh_config: Some("/dev/null".into()),
        ..Options::from_environment(Interaction::Refuse)
    };
    let (context, _) = Context::with_options(options);
    let hosts: Vec<_> =
        (0..count).map(|number| Arc::new(HostConfig { name: format!("gpu{number}").into(), ..host.clone() })).collect();
    let source = Source::Ssh(context as Arc<dyn OpenChannel>);
    let (host_tasks, mut updates) = HostTasks::start(&hosts, source, Clock::start(1.0));
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
    Connections { _host_tasks: host_tasks, _updates: updates }
}

/// Bytes of memory per connection, measured in a new process.
fn memory_per_connection(sshd: &Sshd) -> u64 {
    let output = Command::new(std::env::current_exe().expect("a path"))
        .arg("--memory")
        .args([sshd.ip(), sshd.port().to_string(), sshd.user()])
        .args([sshd.client_key(), sshd.known_hosts()])
        .output()
        .expect("runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.trim().parse().unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// Bytes that each of 64 connections adds to the resident memory, after a first connection.
fn memory(arguments: &[String]) -> u64 {
    let [ip, port, user, key, known_hosts] = arguments else { panic!("five arguments") };
    let host = HostConfig {
        address: Some(ip.clone()),
        port: port.parse().ok(),
        user: Some(user.clone()),
        identity_file: Some(key.into()),
        known_hosts: Some(known_hosts.into()),
        ..host_without_driver()
    };
    runtime().block_on(async {
        let _first = wait_for_snapshots(&host, 1).await;
        let before = resident();
        let _others = wait_for_snapshots(&host, MANY).await;
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

/// Formats the median, the minimum and the maximum.
fn milliseconds(times: &[f64]) -> String {
    let (least, most) =
        times.iter().fold((f64::MAX, 0.0_f64), |(least, most), time| (least.min(*time), most.max(*time)));
    format!("{:.0} ms ({:.0} to {:.0})", median(times) * 1e3, least * 1e3, most * 1e3)
}

fn table(one: &Times, many: &Times, dropped: usize, memory: u64) -> String {
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
        milliseconds(&one.gpufleet),
        milliseconds(&one.russh),
        milliseconds(&one.ssh)
    );
    let _ = writeln!(
        text,
        "| {MANY} hosts behind one sshd | {} | {} | - |\n",
        milliseconds(&many.gpufleet),
        milliseconds(&many.russh)
    );
    let mut figure = |name: &str, value: String, limit: &str, is_met: bool| {
        let _ = writeln!(text, "- {name}: {value}, at most {limit}{}", if is_met { "" } else { ": **missed**" });
    };
    let ratio = |left: &[f64], right: &[f64]| median(left) / median(right);
    let ratio_russh = ratio(&one.gpufleet, &one.russh);
    figure("gpufleet / raw russh, 1 host", format!("{ratio_russh:.2}"), "1.5", ratio_russh <= 1.5);
    let ratio_ssh = ratio(&one.gpufleet, &one.ssh);
    figure("gpufleet / `ssh HOST true`, 1 host", format!("{ratio_ssh:.2}"), "0.8", ratio_ssh <= 0.8);
    let ratio_many = ratio(&many.gpufleet, &many.russh);
    figure(&format!("gpufleet / raw russh, {MANY} hosts"), format!("{ratio_many:.2}"), "2.0", ratio_many <= 2.0);
    figure("memory of a connection", format!("{:.0} kB", memory as f64 / 1e3), "150 kB", memory <= 150_000);
    figure("connections that MaxStartups 10:30:100 drops", dropped.to_string(), "0", dropped == 0);
    text
}
