//! The fault matrix: what a host task tells when something breaks, how soon, and how soon it is back. `tests/faults`
//! prints it with the times of a run.

pub(crate) mod link;
mod loss;
mod machines;
mod sleep;

use crate::lab::{Lab, wait_gone};
use crate::pty::{Pty, signal};
use crate::sshd::Sshd;
use crate::watching::{Watch, host, is_down, is_snapshot, nothing};
use gpufleet::collect::Command;
use gpufleet::config::HostConfig;
use gpufleet::fleet::{Fleet, HostId, HostUpdate, LinkErrorKind};
use link::Link;
use std::fmt::Write as _;
use std::fs;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::TcpSocket;
use tokio::time::Instant;

/// A line of the matrix, for `tests/faults`.
fn report(fault: &str, noticed: Duration, back: Option<Duration>) {
    let back = back.map_or("-".to_owned(), |back| format!("{:.1} s", back.as_secs_f64()));
    println!("FAULT\t{fault}\t{:.1} s\t{back}", noticed.as_secs_f64());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_is_cut_without_a_word() {
    let lab = Lab::start(&["hgx-01"]);
    let link = Link::to(lab.hosts[0].sshd.address()).await;
    let mut watch = Watch::start(vec![host(&lab, Some(link.port()))]);
    watch.live().await;
    link.cut();
    let (stale, _) = watch.until("silence", |update| matches!(update, HostUpdate::Silent), is_down).await;
    assert!(stale >= Duration::from_secs(2) && stale < Duration::from_secs(5), "stale after {stale:?}");
    let (dropped, update) = watch.until("the end", is_down, is_snapshot).await;
    let noticed = stale + dropped;
    assert!(noticed > Duration::from_secs(9) && noticed < Duration::from_secs(13), "dropped after {noticed:?}");
    let HostUpdate::Down { error, .. } = update else { unreachable!() };
    assert_eq!((error.kind, &*error.message), (LinkErrorKind::Silent, "no data received for 10 s"));
    link.heal();
    let back = watch.live().await;
    assert!(back < Duration::from_secs(5), "back after {back:?}");
    report("network cut midway, no RST", stale, Some(back));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latency_of_two_seconds() {
    let lab = Lab::start(&["hgx-01"]);
    let link = Link::to(lab.hosts[0].sshd.address()).await;
    let mut watch = Watch::start(vec![host(&lab, Some(link.port()))]);
    watch.live().await;
    link.delay(Duration::from_secs(1));
    let slow = |update: &HostUpdate| matches!(update, HostUpdate::RoundTrip(time) if *time >= Duration::from_secs(2));
    let (noticed, _) = watch.until("a long round trip", slow, is_down).await;
    let seen = watch.during(Duration::from_secs(10)).await;
    assert!(!seen.iter().any(|update| is_down(update) || matches!(update, HostUpdate::Silent)), "it flaps: {seen:?}");
    let snapshots = seen.iter().filter(|update| is_snapshot(update)).count();
    assert!(snapshots >= 4, "{snapshots} snapshots in 10 s");
    report("2 s latency", noticed, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_first_packet_is_dropped() {
    let lab = Lab::start(&["hgx-01"]);
    // A listener whose queue is full: Linux drops what comes then, as a firewall would.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut queue = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&listener.local_addr().unwrap(), Duration::from_millis(300)) {
        queue.push(stream);
    }
    let mut watch = Watch::start(vec![host(&lab, Some(port))]);
    let (noticed, update) = watch.until("the end of patience", is_down, is_snapshot).await;
    let HostUpdate::Down { error, .. } = update else { unreachable!() };
    assert_eq!(&*error.message, &format!("no answer from 127.0.0.1 port {port} within 5 s"));
    assert!(noticed < Duration::from_secs(7), "{noticed:?}");
    report("SYN dropped", noticed, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_that_an_administrator_ends_stays_away_for_ten_minutes() {
    let lab = Lab::start(&["hgx-01"]);
    let mut watch = Watch::start(vec![host(&lab, None)]);
    watch.live().await;
    let [probe] = lab.probes()[..] else { panic!("{:?}", lab.probes()) };
    signal(probe, "TERM");
    let (noticed, update) = watch.until("its end", is_down, nothing).await;
    let HostUpdate::Down { error, retry_at, .. } = update else { unreachable!() };
    assert_eq!(&*error.message, "the probe was ended by TERM, as by an administrator");
    assert_eq!(error.hint.as_deref(), Some("r tries again"));
    let away = retry_at.expect("a time").since(watch.clock.now());
    assert!(away > Duration::from_secs(590) && away <= Duration::from_secs(660), "{away:?}");
    assert!(noticed < Duration::from_secs(3), "{noticed:?}");
    let seen = watch.during(Duration::from_secs(3)).await;
    assert!(seen.is_empty() && lab.probes().is_empty(), "it came back unasked: {seen:?}");
    // A person may want it back at once.
    assert!(watch.collector.command(HostId(0), Command::Retry));
    let back = watch.live().await;
    report("probe ended by SIGTERM (r reconnects)", noticed, Some(back));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_that_is_killed_comes_back_after_five_seconds_and_the_second_time_not() {
    let lab = Lab::start(&["hgx-01"]);
    let mut watch = Watch::start(vec![host(&lab, None)]);
    watch.live().await;
    signal(lab.probes()[0], "KILL");
    let (noticed, update) = watch.until("its end", is_down, nothing).await;
    let HostUpdate::Down { error, .. } = update else { unreachable!() };
    assert_eq!(&*error.message, "the probe was killed (9)");
    let back = watch.live().await;
    assert!(back >= Duration::from_secs(4) && back < Duration::from_secs(9), "{back:?}");
    signal(lab.probes()[0], "KILL");
    let (_, update) = watch.until("its end", is_down, nothing).await;
    let HostUpdate::Down { error, retry_at, .. } = update else { unreachable!() };
    assert_eq!(&*error.message, "the probe was killed (9) twice within 10 minutes, as by an administrator");
    assert!(retry_at.expect("a time").since(watch.clock.now()) > Duration::from_secs(590));
    report("probe killed by SIGKILL", noticed, Some(back));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_loses_power_and_comes_back() {
    let mut lab = Lab::start(&["hgx-01"]);
    let mut watch = Watch::start(vec![host(&lab, None)]);
    watch.live().await;
    lab.hosts[0].sshd.stop();
    let (noticed, _) = watch.until("its end", is_down, nothing).await;
    let refused =
        |update: &HostUpdate| matches!(update, HostUpdate::Down { error, .. } if error.kind == LinkErrorKind::Refused);
    watch.until("the refusal", refused, is_snapshot).await;
    lab.hosts[0].sshd.restart();
    let back = watch.live().await;
    assert!(back < Duration::from_secs(10), "{back:?}");
    report("host dies and comes back", noticed, Some(back));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_hosts_behind_one_sshd_lose_none() {
    let sshd = Sshd::start_at(std::net::Ipv4Addr::LOCALHOST, &["MaxStartups 10:30:100"]);
    let lab = Lab::start(&["hgx-01"]);
    let mut one = host(&lab, None);
    one.port = Some(sshd.port());
    one.identity_file = Some(sshd.client_key());
    one.known_hosts = Some(sshd.known_hosts());
    one.probe = gpufleet::config::ProbeChoice::NvidiaSmi;
    let hosts = (0..64).map(|number| HostConfig { name: format!("gpu{number:02}").into(), ..one.clone() }).collect();
    let began = Instant::now();
    let mut watch = Watch::start(hosts);
    for _ in 0..64 {
        watch.until("every host", |update| matches!(update, HostUpdate::Hello(_)), is_down).await;
    }
    assert!(!sshd.log().contains("MaxStartups"), "{}", sshd.log());
    assert_eq!(sshd.log().matches("Accepted publickey").count(), 64, "one connection a host");
    report("64 hosts behind one sshd (MaxStartups 10:30:100)", began.elapsed(), None);
}

#[test]
fn without_an_ssh_program_it_is_said_and_hosts_toml_does_alone() {
    let lab = Lab::start(&["hgx-01"]);
    let good = lab.hosts_toml("");
    let run = |path: &str| {
        std::process::Command::new(env!("CARGO_BIN_EXE_gpufleet"))
            .args(["status", "--json", path])
            .env("PATH", "/nonexistent")
            .env("SSH_AUTH_SOCK", "")
            .env("USER", lab.hosts[0].sshd.user())
            .output()
            .unwrap()
    };
    let report: serde_json::Value = serde_json::from_slice(&run(&good).stdout).unwrap();
    assert_eq!(report["hosts"][0]["state"], "live", "{report:#}");
    let text = fs::read_to_string(&good).unwrap();
    let by_system = lab.write("system.toml", &text.replace("interval =", "backend = \"system\"\ninterval ="));
    let report: serde_json::Value = serde_json::from_slice(&run(&by_system).stdout).unwrap();
    assert_eq!(report["hosts"][0]["error"]["message"], "there is no ssh program on this machine", "{report:#}");
    let closed = lab.write("closed.toml", "[[hosts]]\nname = \"x\"\naddress = \"127.0.0.1\"\nport = 1\n");
    let report: serde_json::Value = serde_json::from_slice(&run(&closed).stdout).unwrap();
    assert_eq!(
        report["hosts"][0]["error"]["message"],
        "nothing listens on 127.0.0.1 port 1 (there is no ssh program, so ~/.ssh/config was not read)"
    );
}

/// A long run takes the full number.
fn many(usual: usize, all: usize) -> usize {
    if std::env::var_os("GPUFLEET_TESTS_ALL").is_some() { all } else { usual }
}

/// The host of a lab under so many names.
fn copies(lab: &Lab, port: Option<u16>, count: usize) -> Vec<HostConfig> {
    let one = host(lab, port);
    (0..count).map(|number| HostConfig { name: format!("gpu{number:02}").into(), ..one.clone() }).collect()
}

async fn all_live(watch: &mut Watch, count: usize) {
    let mut seen = std::collections::HashSet::new();
    while seen.len() < count {
        if let (id, HostUpdate::Snapshot(_)) = watch.next("every host").await {
            seen.insert(id);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_vanishes_without_a_fin_leaves_no_probe_after_30_s() {
    let count = many(5, 100);
    let lab = Lab::start(&["hgx-01"]);
    let link = Link::to(lab.hosts[0].sshd.address()).await;
    let mut watch = Watch::start(copies(&lab, Some(link.port()), count));
    all_live(&mut watch, count).await;
    let probes = lab.probes();
    assert_eq!(probes.len(), count);
    link.cut();
    drop(watch);
    let gone = wait_gone(&probes, Duration::from_secs(60));
    assert!(gone > Duration::from_secs(20) && gone < Duration::from_secs(34), "{gone:?}");
    report("controller vanishes without FIN", gone, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_that_is_dropped_ends_its_probe_at_once() {
    let lab = Lab::start(&["hgx-01"]);
    for _ in 0..many(5, 100) {
        let mut watch = Watch::start(vec![host(&lab, None)]);
        watch.live().await;
        let probes = lab.probes();
        assert_eq!(probes.len(), 1);
        drop(watch);
        let gone = wait_gone(&probes, Duration::from_secs(20));
        assert!(gone < Duration::from_secs(2), "{gone:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_of_3_kb_a_second_for_six_hosts_is_slow_and_never_older_than_it_says() {
    const SECONDS: u64 = 45;
    let lab = Lab::start(&["hgx-01"]);
    let link = Link::to(lab.hosts[0].sshd.address()).await;
    let configs: Vec<Arc<HostConfig>> = copies(&lab, Some(link.port()), 6).into_iter().map(Arc::new).collect();
    let mut watch = Watch::start(configs.iter().map(|config| HostConfig::clone(config)).collect());
    let clock = watch.clock;
    let mut fleet = Fleet::new(&configs, false, clock.now());
    let mut before = [0; 6];
    while before.iter().any(|count| *count < 3) {
        let (id, update) = watch.next("a fast link").await;
        before[id.0 as usize] += usize::from(is_snapshot(&update));
        fleet.apply(id, update, clock.now());
    }
    link.slow_down(3000);
    let end = Instant::now() + Duration::from_secs(SECONDS);
    let (mut after, mut oldest) = ([0; 6], Duration::ZERO);
    while Instant::now() < end {
        let (id, update) = watch.next("a slow link").await;
        assert!(!is_down(&update), "{update:?}");
        let taken = match &update {
            HostUpdate::Snapshot(snapshot) => Some(Duration::from_millis(snapshot.wall_unix_ms as u64)),
            _ => None,
        };
        let now = clock.now();
        fleet.apply(id, update, now);
        let Some(taken) = taken else { continue };
        let age = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().saturating_sub(taken);
        let said = fleet.host(id).unwrap().age(now).unwrap();
        assert!(said + Duration::from_secs(1) > age, "{said:?} is said, and it is {age:?}");
        oldest = oldest.max(age);
        after[id.0 as usize] += 1;
    }
    assert!(after.iter().all(|count| *count >= 2), "{after:?} snapshots in {SECONDS} s");
    assert!(oldest > Duration::from_secs(3), "the link was not slow: {oldest:?}");
    report("3 kB/s for 6 hosts (oldest readings)", oldest, None);
}

/// The source of a library that moves the wall clock by the seconds in the file that `TEST_SLEPT` names.
const CLOCK: &str = "\
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *now) {
  int result = syscall(SYS_clock_gettime, id, now);
  const char *path = getenv(\"TEST_SLEPT\");
  int file = result == 0 && id == CLOCK_REALTIME && path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  char text[32] = {0};
  if (file >= 0 && read(file, text, sizeof text - 1) > 0) now->tv_sec += atol(text);
  if (file >= 0) close(file);
  return result;
}
";

/// That library, built, for `LD_PRELOAD`.
fn clock_library(lab: &Lab) -> String {
    let source = lab.write("clock.c", CLOCK);
    let library = lab.path("clock.so").display().to_string();
    let built = std::process::Command::new("cc").args(["-shared", "-fPIC", "-o", &library, &source]).status().unwrap();
    assert!(built.success(), "these tests need a C compiler: apt-get install build-essential");
    library
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_laptop_that_slept_says_so_and_has_every_host_back_soon() {
    let lab = Lab::start(&["hgx-01", "hgx-02"]);
    let library = clock_library(&lab);
    let (mut text, mut links) = (String::new(), Vec::new());
    for host in &lab.hosts {
        let link = Link::to(host.sshd.address()).await;
        let known = format!("[127.0.0.1]:{} {}\n", link.port(), host.sshd.host_key("ed25519"));
        let _ = write!(
            text,
            "[[hosts]]\nname = \"{}\"\naddress = \"127.0.0.1\"\nport = {}\nidentity_file = \"{}\"\nknown_hosts = \
             \"{}\"\nnvml_library = \"{}\"\n",
            host.name,
            link.port(),
            host.sshd.client_key().display(),
            lab.write(&format!("known-{}", host.name), &known),
            host.driver.library().display()
        );
        links.push(link);
    }
    let hosts = lab.write("hosts.toml", &text);
    let slept = lab.write("slept", "0");
    let environment = [("LD_PRELOAD", library.as_str()), ("TEST_SLEPT", &slept), ("SSH_AUTH_SOCK", "")];
    let pty = Pty::gpufleet((120, 40), &[&hosts], &environment);
    let is_live = |text: &str| {
        text.contains("8 GPUs") && text.matches("97%").count() >= 4 && !text.contains("STALE") && !text.contains("DOWN")
    };
    pty.wait("both hosts", is_live);
    // While it slept the servers' side of the connections was lost; nobody told it.
    for link in &links {
        link.lose();
    }
    fs::write(&slept, "7200").unwrap();
    let woke = Instant::now();
    pty.wait_for("resumed");
    let noticed = woke.elapsed();
    assert!(noticed < Duration::from_secs(2), "{noticed:?}");
    pty.wait("what is old is not shown as fresh", |text| text.contains("STALE") || text.contains("connecting"));
    pty.wait("both hosts again", is_live);
    let back = woke.elapsed();
    assert!(back < Duration::from_secs(15), "{back:?}");
    report("laptop sleeps", noticed, Some(back));
}

#[test]
fn a_low_limit_of_open_files_is_raised_or_told() {
    let lab = Lab::start(&["hgx-01"]);
    let port = crate::sshd::free_port(std::net::Ipv4Addr::LOCALHOST);
    let hosts =
        lab.write("hosts.toml", &format!("[[hosts]]\nname = \"127.0.1.[1-200]\"\nport = {port}\nuser = \"x\"\n"));
    let run = |limit: &str| {
        let command = format!("ulimit {limit}; exec \"$0\" status --json \"$1\"");
        std::process::Command::new("/bin/sh")
            .args(["-c", &command, env!("CARGO_BIN_EXE_gpufleet"), &hosts])
            .env("XDG_STATE_HOME", lab.path("state"))
            .output()
            .unwrap()
    };
    let raised = run("-Sn 64");
    let report: serde_json::Value = serde_json::from_slice(&raised.stdout).unwrap();
    let refused = report["hosts"].as_array().unwrap().iter().filter(|host| host["error"]["kind"] == "refused").count();
    assert_eq!(refused, 200, "{}", String::from_utf8_lossy(&raised.stderr));
    let told = run("-n 256");
    assert_eq!((told.status.code(), told.stdout.len()), (Some(1), 0));
    assert_eq!(
        String::from_utf8_lossy(&told.stderr),
        "gpufleet: only 256 files may be open at once, which is enough for 108 of 200 hosts\n  hint: \
         run `ulimit -n 440`, or watch fewer hosts\n"
    );
}
