//! Two readings of a process: its threads, CPU time, environment, sockets and NCCL library.

use super::cut::{beginning, take_greatest};
use super::memory_facts::MemoryFacts;
use crate::probe::answer_slot::AnswerSlot;
use crate::probe::blocking::ThreadLimit;
use crate::probe::procfs::{
    FileReader, SocketList, Stat, TICKS_PER_SECOND, environment_variable, rendezvous_port, socket_list, status_field,
};
use crate::wire::redact::redact;
use crate::wire::{
    Peer, ProcessExamination, ProcessState, SafeText, ThreadGroup, ThreadReading, job_variables, limits,
};
use rustix::fs::RawDir;
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of threads that are read.
const MAX_THREADS: usize = 512;
/// How long the second reading waits for facts that need the memory lock of the process.
const MEMORY_FACTS_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of bytes of a variable.
const MAX_VARIABLE_BYTES: usize = 192;
/// The port on which `torch.distributed.debug.start_debug_server` listens by default.
const DEBUG_SERVER_PORT: u16 = 25999;
/// The signals that Python's `faulthandler` catches: SIGILL, SIGABRT, SIGBUS, SIGFPE and SIGSEGV, each as bit number minus
/// one.
const FAULT_SIGNALS: u64 = 0x4e8;

/// Reads a process twice, with a call of `pause` in between. Returns `None` if it does not exist.
pub(super) fn examine_process(pid: u32, readers: &ThreadLimit, pause: &dyn Fn()) -> Option<ProcessExamination> {
    let mut reader = FileReader::default();
    let memory_facts = start_memory_facts(pid, readers);
    let started = Instant::now();
    let first = Reading::take(pid, &mut reader)?;
    pause();
    let second = Reading::take(pid, &mut reader)?;
    let seconds = started.elapsed().as_secs_f32();

    let (threads, threads_left_out) = thread_groups(pid, &first, &second, &mut reader);
    let mut examination = ProcessExamination {
        ns_pid: ns_pid(pid, &mut reader),
        same_network: same_network(pid, &mut reader),
        seconds,
        main_thread: main_thread(pid, &first, &second, &mut reader),
        cpu_ms: Some(milliseconds(second.cpu_ticks.saturating_sub(first.cpu_ticks))),
        written_bytes: difference(first.written_bytes, second.written_bytes),
        threads,
        threads_left_out,
        has_faulthandler: reader.read_process(pid, "status", 4096).is_ok_and(catches_faults),
        may_attach: may_attach(pid, &mut reader),
        ..ProcessExamination::default()
    };
    let sockets = socket_list(pid, &mut reader).unwrap_or_default();
    examination.has_debug_server = sockets.listening_ports.contains(&DEBUG_SERVER_PORT);
    let facts = memory_facts.and_then(|slot| slot.take(MEMORY_FACTS_TIMEOUT)).unwrap_or_default();
    (examination.peers, examination.peers_left_out) = peers(sockets, rendezvous_port(&facts.environment));
    examination.variables = variables(&facts.environment);
    (examination.has_nccl, examination.nccl_version) = (facts.has_nccl, facts.nccl_version);
    Some(examination)
}

/// Starts to read the facts that need the memory lock of the process, on a thread that is left behind if it blocks.
fn start_memory_facts(pid: u32, readers: &ThreadLimit) -> Option<Arc<AnswerSlot<MemoryFacts>>> {
    let slot = Arc::new(AnswerSlot::default());
    let answer_slot = Arc::clone(&slot);
    readers.spawn(Box::new(move || answer_slot.put(MemoryFacts::read(pid)))).then_some(slot)
}

/// The values of one reading. CPU times are in clock ticks.
struct Reading {
    /// CPU time of all threads, with those that have ended.
    cpu_ticks: u64,
    /// Number of threads.
    thread_count: u32,
    written_bytes: Option<u64>,
    voluntary_switches: Option<u64>,
    involuntary_switches: Option<u64>,
    /// Time that the main thread was ready to run and had no CPU, in nanoseconds.
    queued_ns: Option<u64>,
    /// At most [`MAX_THREADS`], in the order of `/proc/PID/task`: the main thread comes first.
    threads: Vec<ThreadTimes>,
}

/// One thread of a reading.
struct ThreadTimes {
    thread: u32,
    name: SafeText,
    state: ProcessState,
    user_ticks: u64,
    cpu_ticks: u64,
}

impl Reading {
    fn take(pid: u32, reader: &mut FileReader) -> Option<Self> {
        let stat = Stat::parse(reader.read_process(pid, "stat", 4096).ok()?)?;
        let (cpu_ticks, thread_count) = (stat.cpu_ticks, stat.threads);
        let io = reader.read_process(pid, "io", 512).unwrap_or_default();
        let written_bytes = number(io, b"write_bytes:");
        let status = reader.read_thread(pid, pid, "status", 4096).unwrap_or_default();
        let voluntary_switches = number(status, b"voluntary_ctxt_switches:");
        let involuntary_switches = number(status, b"nonvoluntary_ctxt_switches:");
        let queued_ns = reader.read_thread(pid, pid, "schedstat", 128).ok().and_then(queued_ns);
        let threads = threads(pid, reader);
        Some(Self {
            cpu_ticks,
            thread_count,
            written_bytes,
            voluntary_switches,
            involuntary_switches,
            queued_ns,
            threads,
        })
    }

    fn thread(&self, thread: u32) -> Option<&ThreadTimes> {
        self.threads.iter().find(|times| times.thread == thread)
    }
}

/// Reads the threads of a process.
fn threads(pid: u32, reader: &mut FileReader) -> Vec<ThreadTimes> {
    let mut threads = Vec::new();
    let Ok(directory) = reader.open_process(pid, "task") else { return threads };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&directory, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let Some(thread) = entry.file_name().to_str().ok().and_then(|name| name.parse().ok()) else { continue };
        if threads.len() == MAX_THREADS {
            break;
        }
        let stat = reader.read_thread_in(&directory, thread, "stat", 1024).ok().and_then(Stat::parse);
        threads.extend(stat.map(|stat| ThreadTimes {
            thread,
            name: SafeText::from_bytes(without_number(stat.name)),
            state: stat.state,
            user_ticks: stat.user_ticks,
            cpu_ticks: stat.cpu_ticks,
        }));
    }
    threads
}

/// Returns a name without digits at its end, unless it has only digits.
fn without_number(name: &[u8]) -> &[u8] {
    let length = name.iter().rposition(|byte| !byte.is_ascii_digit()).map_or(name.len(), |last| last + 1);
    &name[..length]
}

/// Groups the threads of the second reading by name and wait channel. Returns the largest groups and the number of threads
/// that are in no group.
fn thread_groups(pid: u32, first: &Reading, second: &Reading, reader: &mut FileReader) -> (Vec<ThreadGroup>, u32) {
    let mut groups: Vec<ThreadGroup> = Vec::new();
    for times in &second.threads {
        let wait_channel = wait_channel(pid, times.thread, reader).unwrap_or_default();
        let cpu_ticks = first.thread(times.thread).map_or(0, |before| times.cpu_ticks.saturating_sub(before.cpu_ticks));
        let known = groups.iter_mut().find(|group| group.name == times.name && group.wait_channel == wait_channel);
        if let Some(group) = known {
            group.count += 1;
            group.cpu_ms += milliseconds(cpu_ticks);
        } else {
            let (name, cpu_ms) = (times.name.clone(), milliseconds(cpu_ticks));
            groups.push(ThreadGroup { name, wait_channel, count: 1, cpu_ms });
        }
    }
    let groups = take_greatest(&mut groups, limits::MAX_THREAD_GROUPS, &|group| u64::from(group.count));
    let shown: u32 = groups.iter().map(|group| group.count).sum();
    (groups, second.thread_count.saturating_sub(shown))
}

fn main_thread(pid: u32, first: &Reading, second: &Reading, reader: &mut FileReader) -> Option<ThreadReading> {
    let (before, now) = (first.thread(pid)?, second.thread(pid)?);
    let user_ticks = now.user_ticks.saturating_sub(before.user_ticks);
    let cpu_ticks = now.cpu_ticks.saturating_sub(before.cpu_ticks);
    Some(ThreadReading {
        state: Some(now.state),
        wait_channel: wait_channel(pid, pid, reader),
        syscall: reader.read_thread(pid, pid, "syscall", 256).ok().and_then(syscall_number),
        user_ms: Some(milliseconds(user_ticks)),
        system_ms: Some(milliseconds(cpu_ticks.saturating_sub(user_ticks))),
        voluntary_switches: difference(first.voluntary_switches, second.voluntary_switches),
        involuntary_switches: difference(first.involuntary_switches, second.involuntary_switches),
        queued_ms: difference(first.queued_ns, second.queued_ns).map(|nanoseconds| nanoseconds / 1_000_000),
    })
}

/// Reads the kernel function in which a thread waits. The kernel writes `0` if it does not wait.
fn wait_channel(pid: u32, thread: u32, reader: &mut FileReader) -> Option<SafeText> {
    let channel = reader.read_thread(pid, thread, "wchan", 64).ok()?.trim_ascii();
    (!channel.is_empty() && channel != b"0").then(|| SafeText::from_bytes(channel))
}

/// Returns the number at the beginning of `syscall` (proc_pid_syscall(5)). The file contains `running` if the thread runs,
/// and a negative number if it waits outside a system call.
fn syscall_number(text: &[u8]) -> Option<i64> {
    let number = std::str::from_utf8(text).ok()?.split_ascii_whitespace().next()?.parse().ok()?;
    (number >= 0).then_some(number)
}

/// Returns the second number of `schedstat`: the nanoseconds in which the thread was ready to run and had no CPU, also because
/// of the CPU limit of its cgroup (Documentation/scheduler/sched-stats.rst of the kernel).
fn queued_ns(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Returns whether this process may attach to another as a debugger does. `/proc/PID/syscall` can then be read
/// (PTRACE_MODE_ATTACH, proc_pid_syscall(5)); opening it proves nothing. Returns `None` if the kernel does not have the file.
pub(super) fn may_attach(pid: u32, reader: &mut FileReader) -> Option<bool> {
    match reader.read_process(pid, "syscall", 256) {
        Ok(_) => Some(true),
        Err(Errno::PERM | Errno::ACCESS) => Some(false),
        Err(_) => None,
    }
}

/// Returns the pid in the innermost pid namespace of the process: the last number of `NSpid` (proc_pid_status(5)).
pub(super) fn ns_pid(pid: u32, reader: &mut FileReader) -> Option<u32> {
    let status = reader.read_process(pid, "status", 4096).ok()?;
    status_field(status, b"NSpid:")?.split_ascii_whitespace().next_back()?.parse().ok()
}

/// Returns whether a process is in the network namespace of the probe.
pub(super) fn same_network(pid: u32, reader: &mut FileReader) -> Option<bool> {
    Some(reader.read_link(pid, "ns/net")? == reader.read_link(std::process::id(), "ns/net")?)
}

/// Whether all fatal signals are caught, as `SigCgt` in `/proc/PID/status` says.
fn catches_faults(status: &[u8]) -> bool {
    let caught = status_field(status, b"SigCgt:").and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    caught.is_some_and(|caught| caught & FAULT_SIGNALS == FAULT_SIGNALS)
}

/// Returns the variables of the job ([`job_variables`]), with secrets redacted.
pub(in crate::probe) fn variables(environment: &[u8]) -> Vec<SafeText> {
    let mut shown = Vec::new();
    let mut show = |variable: &[u8]| {
        if shown.len() < limits::MAX_VARIABLES {
            // Redact each variable alone, as a whole: a part of a secret may not be recognised.
            let redacted = redact(&[String::from_utf8_lossy(variable)]).concat();
            shown.push(beginning(&redacted, MAX_VARIABLE_BYTES));
        }
    };
    for name in job_variables::names() {
        if let Some(value) = environment_variable(environment, name) {
            show(&[name.as_bytes(), b"=", value].concat());
        }
    }
    for prefix in job_variables::PREFIXES {
        for variable in environment.split(|&byte| byte == 0) {
            if variable.starts_with(prefix.as_bytes()) && variable.contains(&b'=') {
                show(variable);
            }
        }
    }
    shown
}

/// Groups connections by peer. Returns the peers with the port of the job's rendezvous first, then those on other hosts,
/// and the number of peers left out.
fn peers(sockets: SocketList, master_port: Option<u16>) -> (Vec<Peer>, u32) {
    let mut counts: Vec<(IpAddr, u16, u32)> = Vec::new();
    for (address, port) in sockets.peers {
        match counts.iter_mut().find(|known| (known.0, known.1) == (address, port)) {
            Some((_, _, count)) => *count += 1,
            None => counts.push((address, port, 1)),
        }
    }
    let taken = take_greatest(&mut counts, limits::MAX_PEERS, &|(address, port, count)| {
        let (is_master, is_remote) = (Some(*port) == master_port, !address.is_loopback());
        u64::from(is_master) << 40 | u64::from(is_remote) << 39 | u64::from(*count)
    });
    let peer = |(address, port, count): (IpAddr, u16, u32)| Peer { address: address.to_string().into(), port, count };
    (taken.into_iter().map(peer).collect(), counts.len() as u32)
}

/// Returns the number behind a name.
fn number(text: &[u8], name: &[u8]) -> Option<u64> {
    status_field(text, name)?.trim().parse().ok()
}

fn difference(first: Option<u64>, second: Option<u64>) -> Option<u64> {
    second?.checked_sub(first?)
}

/// Converts clock ticks.
fn milliseconds(ticks: u64) -> u64 {
    ticks.saturating_mul(1000 / TICKS_PER_SECOND as u64)
}

#[cfg(test)]
mod tests {
    use super::super::test_process::TestProcess;
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::process::Command;
    use std::sync::mpsc::channel;

    fn examined(pid: u32, pause: &dyn Fn()) -> Option<ProcessExamination> {
        examine_process(pid, &ThreadLimit::new(1), pause)
    }

    #[test]
    fn a_sleeping_process_waits_and_uses_no_cpu_time() {
        let mut command = Command::new("sleep");
        command.arg("600").env_clear().env("RANK", "3").env("NCCL_DEBUG", "INFO").env("HOME", "/root");
        let job = TestProcess::start(&mut command);
        job.wait_until(|stat| stat.state == ProcessState::Sleeping);
        let process = examined(job.pid(), &|| {}).unwrap();
        let main = process.main_thread.clone().unwrap();
        assert_eq!((main.state, main.user_ms, main.system_ms), (Some(ProcessState::Sleeping), Some(0), Some(0)));
        assert_eq!((main.voluntary_switches, main.involuntary_switches), (Some(0), Some(0)));
        // Kernels without CONFIG_SCHED_INFO have no schedstat.
        assert_eq!(main.queued_ms.unwrap_or(0), 0);
        assert_eq!((process.cpu_ms, process.written_bytes), (Some(0), Some(0)));
        let [group] = &process.threads[..] else { panic!("{:?}", process.threads) };
        assert_eq!((&*group.name, group.count, group.cpu_ms), ("sleep", 1, 0));
        // Some sandboxes have no wait channels and no system calls in /proc.
        assert_eq!(main.wait_channel.clone().unwrap_or_default(), group.wait_channel);
        if process.may_attach == Some(true) {
            assert!(main.syscall.is_some(), "{main:?}");
        }
        assert_eq!(process.variables, ["RANK=3", "NCCL_DEBUG=INFO"]);
        assert_eq!((process.ns_pid, process.same_network), (Some(job.pid()), Some(true)));
        assert_eq!((process.has_nccl, process.nccl_version), (Some(false), None));
        assert!(!process.has_debug_server && !process.has_faulthandler && process.peers.is_empty());
    }

    /// Returns a child of this process.
    fn child_of(parent: u32) -> Option<u32> {
        let mut reader = FileReader::default();
        let mut pids =
            std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.find(|&pid| {
            let stat = reader.read_process(pid, "stat", 4096).ok().and_then(Stat::parse);
            stat.is_some_and(|stat| stat.parent == parent && stat.name == b"sleep")
        })
    }

    #[test]
    fn a_process_in_a_container_has_another_pid_and_network_there() {
        // As root of a user namespace, every user may create the other ones.
        let own_users: &[&str] = if rustix::process::getuid().is_root() { &[] } else { &["--user", "--map-root-user"] };
        let namespaces = [own_users, &["--pid", "--net", "--fork", "--kill-child"]].concat();
        let status = Command::new("unshare").args(&namespaces).arg("true").status();
        assert!(
            status.as_ref().is_ok_and(std::process::ExitStatus::success),
            "unshare of util-linux failed ({status:?}): the test needs namespaces, which a container may forbid; run it as root, or allow \
             them with `sysctl kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu) or `sysctl kernel.unprivileged_userns_clone=1` (Debian)"
        );
        let container = TestProcess::start(Command::new("unshare").args(&namespaces).args(["sleep", "600"]));
        let pid = loop {
            if let Some(pid) = child_of(container.pid()) {
                break pid;
            }
        };
        let process = examined(pid, &|| {}).unwrap();
        assert_eq!((process.ns_pid, process.same_network), (Some(1), Some(false)));
    }

    #[test]
    fn a_spinning_process_uses_cpu_time() {
        let job = TestProcess::start(Command::new("sh").args(["-c", "while :; do :; done"]));
        let ticks = |wanted: u64| job.wait_until(|stat| stat.cpu_ticks >= wanted);
        ticks(5);
        let process = examined(job.pid(), &|| ticks(100)).unwrap();
        let main = process.main_thread.unwrap();
        let used = main.user_ms.unwrap() + main.system_ms.unwrap();
        assert!((500..60_000).contains(&used) && main.user_ms > Some(0), "{main:?}");
        assert_eq!(process.threads[0].count, 1);
        let total = process.cpu_ms.unwrap();
        assert!(total.abs_diff(process.threads[0].cpu_ms) <= 500, "{total} {:?}", process.threads);
    }

    #[test]
    fn threads_are_grouped_by_name_and_wait_channel() {
        let (stop, stopped) = channel::<()>();
        let stopped = Arc::new(std::sync::Mutex::new(stopped));
        let started: Vec<_> = (0..5)
            .map(|number| {
                let stopped = Arc::clone(&stopped);
                let waits = move || drop(stopped.lock().map(|stopped| stopped.recv()));
                std::thread::Builder::new().name(format!("pt_examined_{number}")).spawn(waits).unwrap()
            })
            .collect();
        // Some sandboxes have no wait channels in /proc.
        let sleeping = TestProcess::sleep();
        let has_channels = examined(sleeping.pid(), &|| {}).unwrap().main_thread.unwrap().wait_channel.is_some();
        // A thread sets its own name after it has started, and then waits for a futex.
        let group = loop {
            let threads = examined(std::process::id(), &|| {}).unwrap().threads;
            let group = threads.into_iter().find(|group| group.name == "pt_examined_" && group.count == 5);
            if let Some(group) = group.filter(|group| !has_channels || !group.wait_channel.is_empty()) {
                break group;
            }
        };
        assert!(!has_channels || group.wait_channel.starts_with("futex"), "{group:?}");
        drop(stop);
        for thread in started {
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_process_that_waits_for_epoll_has_that_wait_channel() {
        // The event loop of Python waits in epoll_wait(2), as a server does.
        let mut python = Command::new("python3");
        let child = TestProcess::start(python.args(["-c", "import asyncio; asyncio.run(asyncio.sleep(600))"]));
        let sleeping = TestProcess::sleep();
        let main_thread = |pid| examined(pid, &|| {}).unwrap().main_thread.unwrap();
        // Some sandboxes have no wait channels in /proc.
        let has_channels = main_thread(sleeping.pid()).wait_channel.is_some();
        loop {
            let waiting = main_thread(child.pid());
            let channel = waiting.wait_channel.as_ref().map_or("", SafeText::as_str);
            // The name differs between kernels.
            if ["ep_poll", "do_epoll_wait"].contains(&channel)
                || (!has_channels && waiting.state == Some(ProcessState::Sleeping))
            {
                break;
            }
        }
    }

    fn reading(threads: u32) -> Reading {
        let thread = |thread: u32| ThreadTimes {
            thread,
            name: SafeText::from(format!("t{}", thread % 100)),
            state: ProcessState::Sleeping,
            user_ticks: 0,
            cpu_ticks: 7,
        };
        let threads: Vec<ThreadTimes> = (1..=threads).map(thread).collect();
        let thread_count = threads.len() as u32 + 88;
        Reading {
            cpu_ticks: 0,
            thread_count,
            written_bytes: None,
            voluntary_switches: None,
            involuntary_switches: None,
            queued_ns: None,
            threads,
        }
    }

    #[test]
    fn threads_beyond_the_limits_are_counted() {
        // Pids of this size do not exist, so that the threads have no wait channel.
        let (groups, left_out) = thread_groups(u32::MAX, &reading(500), &reading(512), &mut FileReader::default());
        assert_eq!(groups.len(), limits::MAX_THREAD_GROUPS);
        assert_eq!((groups[0].count, groups[12].count), (6, 5));
        assert_eq!(left_out + groups.iter().map(|group| group.count).sum::<u32>(), 600);
        assert!(groups.iter().all(|group| group.cpu_ms == 0), "a new thread has no first reading");
    }

    #[test]
    fn numbers_at_the_end_of_a_name_are_removed() {
        for (name, expected) in [("pt_autograd_12", "pt_autograd_"), ("cuda0", "cuda"), ("42", "42"), ("", "")] {
            assert_eq!(without_number(name.as_bytes()), expected.as_bytes());
        }
    }

    #[test]
    fn the_second_number_of_schedstat_is_the_time_without_a_cpu() {
        for (text, expected) in
            [("1520034 88000000 71\n", Some(88_000_000)), ("0 0 0", Some(0)), ("12", None), ("", None), ("1 x 2", None)]
        {
            assert_eq!(queued_ns(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn a_system_call_has_a_number_if_the_thread_waits_in_one() {
        for (text, expected) in [
            ("202 0x7f 0x80 0x0 0x0 0x0 0x0 0x7ffd 0x7f", Some(202)),
            ("0 0x3 0x1 0x1 0x0 0x0 0x0 0x7ffd 0x7f\n", Some(0)),
            ("running\n", None),
            ("-1 0x7ffd 0x7f\n", None),
            ("", None),
        ] {
            assert_eq!(syscall_number(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn a_faulthandler_catches_all_fatal_signals() {
        assert!(catches_faults(b"SigIgn:\t0\nSigCgt:\t00000001000004e8\n"));
        for status in ["SigCgt:\t0000000100000468\n", "SigCgt:\t0000000000000200\n", "SigIgn:\t4e8\n", ""] {
            assert!(!catches_faults(status.as_bytes()), "{status}");
        }
    }

    #[test]
    fn variables_of_the_job_come_in_the_order_of_their_importance() {
        let environment = b"PATH=/bin\0NCCL_DEBUG=INFO\0TORCH_API_KEY=abc\0MASTER_PORT=29500\0NCCL_=\0RANK=0\0\
            MY_RANK=4\0NCCL_IB_HCA=mlx5\x1b[0m\0NCCLX=1\0TORCH_X\0WANDB_API_KEY=abc\0";
        let expected =
            ["RANK=0", "MASTER_PORT=29500", "NCCL_DEBUG=INFO", "NCCL_=", "NCCL_IB_HCA=mlx5␛[0m", "TORCH_API_KEY=***"];
        assert_eq!(variables(environment), expected);
        let many: Vec<u8> =
            (0..200).flat_map(|number| format!("NCCL_{number}={}\0", "x".repeat(500)).into_bytes()).collect();
        let many = variables(&[&many, b"RANK=1".as_slice()].concat());
        assert_eq!((many.len(), &*many[0]), (limits::MAX_VARIABLES, "RANK=1"));
        assert!(many.iter().all(|variable| variable.len() <= MAX_VARIABLE_BYTES) && many[1].ends_with('…'));
    }

    #[test]
    fn the_peer_of_the_rendezvous_comes_first() {
        let remote = |last: u8| IpAddr::from([10, 0, 0, last]);
        let mut sockets = SocketList::default();
        sockets.peers.extend((0..100).map(|_| (IpAddr::from([127, 0, 0, 1]), 40000)));
        sockets.peers.extend((0..100).map(|number| (remote(number), 50000)));
        sockets.peers.extend([(remote(7), 50000), (remote(200), 29500)]);
        let (peers, left_out) = peers(sockets, Some(29500));
        assert_eq!((peers.len(), left_out), (limits::MAX_PEERS, 38));
        assert_eq!(peers[0], Peer { address: "10.0.0.200".into(), port: 29500, count: 1 });
        assert_eq!(peers[1], Peer { address: "10.0.0.7".into(), port: 50000, count: 2 });
        assert!(peers.iter().all(|peer| peer.address != "127.0.0.1"));
    }

    #[test]
    fn connections_of_a_process_are_its_peers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let _client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let process = examined(std::process::id(), &|| {}).unwrap();
        let expected = Peer { address: "127.0.0.1".into(), port, count: 1 };
        // Other tests of this program may fill the list.
        assert!(process.peers.contains(&expected) || process.peers_left_out > 0, "{:?}", process.peers);
    }

    #[test]
    fn a_process_that_does_not_exist_has_no_examination() {
        assert_eq!(examined(u32::MAX, &|| {}), None);
    }
}
