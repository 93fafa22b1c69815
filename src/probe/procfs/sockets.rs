//! The TCP sockets of a process of the probe's user: the ports on which it listens, and its connections.
//!
//! `/proc/PID/fd` gives the inodes of its sockets, and sock_diag(7) those of its network namespace; where that may not be entered,
//! `/proc/PID/net/tcp` does (proc_pid_net(5)). The kernel walks through the hash table of all connections for both, which takes
//! milliseconds on a large server: processes in one namespace share one read. Everything here runs on a
//! [`crate::probe::blocking::BlockingPool`].

use super::files::{FileReader, environment_variable};
use super::sock_diag::{MAX_SOCKETS, Socket, list_sockets};
use crate::probe::blocking::{BlockingPool, Pending};
use crate::wire::ProcessFacts;
use rustix::fs::{RawDir, readlinkat};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of descriptors of a process that are looked at.
const MAX_DESCRIPTORS: usize = 1024;
/// Maximum size of a table. Listening sockets come first.
const MAX_TABLE_BYTES: usize = 4 << 20;
/// Maximum number of children of a parent, and of its threads, that are looked at.
const MAX_CHILDREN: usize = 64;
/// Maximum number of sockets of a process, or of all of its relatives together. Clients on further ones are not counted.
const MAX_INODES: usize = 8192;
/// Maximum number of sockets of a child for its list to be kept. A worker has few, and a server with many is read once a minute.
const MAX_KEPT_INODES: usize = 64;
/// Maximum number of ports that are kept.
const MAX_PORTS: usize = 8;
/// Maximum size of an environment that is searched for the rendezvous port.
const MAX_ENVIRONMENT_BYTES: usize = 64 * 1024;
/// How long a table is used, and the period of a process in seconds: a minute, as for its other descriptors, less a margin
/// because samples may come some milliseconds early.
const TABLE_AGE: Duration = Duration::from_secs(25);
const PERIOD_SECONDS: f64 = 59.5;
/// How long the waiting clients of one read are reported, in seconds.
const WAITING_AGE_SECONDS: f64 = 150.0;
/// Maximum number of network namespaces whose table is kept.
const MAX_TABLES: usize = 16;

/// The TCP sockets of one process.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct TcpSockets {
    /// Ascending.
    listening_ports: Vec<u16>,
    /// `None` if a table is longer than the limits, so that connections may be missing.
    connections: Option<u32>,
    /// `None` if neither the process nor its front end listens, or if the kernel does not tell.
    waiting: Option<WaitingClients>,
}

/// The clients of a server that wait for an answer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct WaitingClients {
    pub(super) count: u32,
    /// The longest wait, when it was read.
    pub(super) longest: Duration,
}

impl TcpSockets {
    /// Adds a port in its place. The code of a sort is three kilobytes larger.
    fn add_port(&mut self, port: u16) {
        let place = self.listening_ports.iter().position(|other| *other >= port).unwrap_or(self.listening_ports.len());
        if self.listening_ports.get(place) != Some(&port) && self.listening_ports.len() < MAX_PORTS {
            self.listening_ports.insert(place, port);
        }
    }
}

/// Reads the sockets of one process from time to time.
#[derive(Debug, Default)]
pub(super) struct SocketReader {
    pending: Option<Pending<Option<TcpSockets>>>,
    started_at: Option<f64>,
    connections: Option<u32>,
    /// The waiting clients, and when they were read.
    waiting: Option<(WaitingClients, f64)>,
}

impl SocketReader {
    /// Starts a read if it is due. A read that does not return is not repeated. `front_end` are the ancestors that may answer
    /// its clients.
    pub(super) fn start(
        &mut self,
        pid: u32,
        front_end: impl Iterator<Item = u32>,
        now: f64,
        tables: &SocketTables,
        pool: &BlockingPool,
    ) {
        let is_due = self.started_at.is_none_or(|started_at| now - started_at >= PERIOD_SECONDS);
        if is_due && self.pending.is_none() {
            let (tables, front_end) = (tables.clone(), front_end.collect::<Vec<_>>());
            self.pending = pool.run(move || read(pid, &front_end, &tables));
            self.started_at = Some(now);
        }
    }

    /// Whether it or its front end is a server. Its clients change also while the process itself does not run.
    pub(super) fn is_server(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether a read has returned.
    pub(super) fn is_ready(&self) -> bool {
        self.pending.as_ref().is_some_and(Pending::is_ready)
    }

    /// Takes the result of a read. Returns whether the facts changed.
    pub(super) fn collect(&mut self, facts: &mut ProcessFacts) -> bool {
        let Some(sockets) = Pending::take(&mut self.pending) else { return false };
        self.connections = sockets.as_ref().and_then(|sockets| sockets.connections);
        self.waiting = sockets.as_ref().and_then(|sockets| sockets.waiting).zip(self.started_at);
        let ports = sockets.map(|sockets| sockets.listening_ports).unwrap_or_default();
        let is_changed = facts.listening_ports != ports;
        facts.listening_ports = ports;
        is_changed
    }

    pub(super) fn connections(&self) -> Option<u32> {
        self.connections
    }

    /// The clients that waited when it was read, and the longest wait until now in seconds.
    pub(super) fn waiting(&self, now: f64) -> Option<(u32, f64)> {
        let (waiting, read_at) = self.waiting?;
        let passed = (now - read_at).max(0.0);
        // If the next read never returns, this one must not count for ever.
        (passed <= WAITING_AGE_SECONDS).then_some((waiting.count, waiting.longest.as_secs_f64() + passed))
    }
}

/// The tables of the network namespaces, shared by the reads of all processes.
#[derive(Debug, Clone, Default)]
pub(super) struct SocketTables(Arc<Mutex<Vec<SocketTable>>>);

#[derive(Debug)]
struct SocketTable {
    /// Target of `/proc/PID/ns/net`.
    namespace: Vec<u8>,
    read_at: Instant,
    sockets: Vec<Socket>,
    is_complete: bool,
    /// The kernel told which clients wait.
    tells_waits: bool,
    /// The front end that was looked at last, and the children of a parent. The ranks of a job have the same ones.
    relatives: [Relatives; 2],
    /// The inodes of each of these children. Most children of a launcher are ranks on a GPU, whose own sockets are read as well.
    children: Vec<(u32, Vec<u64>)>,
}

/// The sockets of processes that may answer the clients of another one.
#[derive(Debug, Default)]
struct Relatives {
    /// The ancestors, or the parent of the children.
    of: Vec<u32>,
    inodes: Vec<u64>,
    listening_ports: Vec<u16>,
}

impl SocketTable {
    fn read(pid: u32, namespace: Vec<u8>, reader: &mut FileReader) -> Self {
        let listed = list_sockets(pid, reader);
        let tells_waits = listed.is_some();
        let (sockets, is_complete) = listed.map_or_else(|| read_tables(pid, reader), |sockets| (sockets, true));
        Self {
            namespace,
            read_at: Instant::now(),
            sockets,
            is_complete,
            tells_waits,
            relatives: Default::default(),
            children: Vec::new(),
        }
    }
}

/// Reads the sockets from the tables in /proc, and returns whether these are all.
fn read_tables(pid: u32, reader: &mut FileReader) -> (Vec<Socket>, bool) {
    let (mut sockets, mut is_complete) = (Vec::new(), true);
    for name in ["net/tcp", "net/tcp6"] {
        let read = reader.each_line(pid, name, MAX_TABLE_BYTES, &mut |line| {
            if sockets.len() < MAX_SOCKETS {
                sockets.extend(socket(line));
            }
        });
        // A host without IPv6 has no tcp6.
        is_complete &= read != Ok(false) && sockets.len() < MAX_SOCKETS;
    }
    (sockets, is_complete)
}

impl SocketTables {
    /// Calls `look` with the table of the namespace of a process, unless that is unknown.
    fn with<T>(
        &self,
        pid: u32,
        namespace: Option<&[u8]>,
        reader: &mut FileReader,
        look: impl FnOnce(&mut SocketTable, &mut FileReader) -> T,
    ) -> Option<T> {
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let table = Self::find(&mut tables, pid, namespace?, reader)?;
        Some(look(table, reader))
    }

    /// The part of [`Self::with`] that the compiler need not repeat for each closure.
    fn find<'a>(
        tables: &'a mut Vec<SocketTable>,
        pid: u32,
        namespace: &[u8],
        reader: &mut FileReader,
    ) -> Option<&'a mut SocketTable> {
        tables.retain(|table| table.read_at.elapsed() < TABLE_AGE);
        let at = tables.iter().position(|table| table.namespace == namespace).unwrap_or_else(|| {
            tables.truncate(MAX_TABLES - 1);
            tables.push(SocketTable::read(pid, namespace.to_vec(), reader));
            tables.len() - 1
        });
        tables.get_mut(at)
    }

    /// The inodes of the sockets of a process that was looked at as the child of a launcher, when the table was read.
    fn known_inodes(&self, pid: u32, namespace: Option<&[u8]>) -> Option<Vec<u64>> {
        let tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current =
            |table: &&SocketTable| Some(table.namespace.as_slice()) == namespace && table.read_at.elapsed() < TABLE_AGE;
        let (_, inodes) = tables.iter().find(is_current)?.children.iter().find(|(child, _)| *child == pid)?;
        Some(inodes.clone())
    }
}

impl SocketTable {
    /// Adds the sockets with these inodes, which are in order: a server has thousands.
    fn count(&self, inodes: &[u64], sockets: &mut TcpSockets) {
        let mut connections = 0;
        for socket in self.sockets.iter().filter(|socket| inodes.binary_search(&socket.inode).is_ok()) {
            if socket.is_listening {
                sockets.add_port(socket.port);
            } else {
                connections += 1;
            }
        }
        sockets.connections = Some(connections).filter(|_| self.is_complete);
    }

    /// Looks at the sockets of the front end of a process, or at those of the children of its parent, which is the first of
    /// `front_end`.
    fn relatives(&mut self, are_children: bool, front_end: &[u32], reader: &mut FileReader) -> &Relatives {
        let of = if are_children { &front_end[..front_end.len().min(1)] } else { front_end };
        let place = usize::from(are_children);
        if self.relatives[place].of != of {
            let pids = match of {
                [parent] if are_children => children(*parent, reader),
                _ => of.to_vec(),
            };
            let mut inodes = Vec::new();
            if are_children {
                self.children.clear();
            }
            for pid in pids {
                let Some(found) = socket_inodes(pid, MAX_DESCRIPTORS, reader) else { continue };
                for inode in &found {
                    insert(&mut inodes, *inode);
                }
                if are_children && found.len() <= MAX_KEPT_INODES {
                    self.children.push((pid, found));
                }
            }
            let mut sockets = TcpSockets::default();
            self.count(&inodes, &mut sockets);
            self.relatives[place] = Relatives { of: of.to_vec(), inodes, listening_ports: sockets.listening_ports };
        }
        &self.relatives[place]
    }

    /// The waiting clients of a server with these sockets, whose inodes are in order in each list, and ports. A connection without
    /// an inode was not accepted yet.
    fn waiting(&self, inodes: &[Vec<u64>], ports: &[u16]) -> Option<WaitingClients> {
        let passed = self.read_at.elapsed();
        let mut waiting = WaitingClients::default();
        for socket in &self.sockets {
            let is_listed = || inodes.iter().any(|list| list.binary_search(&socket.inode).is_ok());
            let is_own = ports.contains(&socket.port) && (socket.inode == 0 || is_listed());
            if let Some(waited) = socket.waited.filter(|_| is_own) {
                waiting.count += 1;
                waiting.longest = waiting.longest.max(waited + passed);
            }
        }
        self.tells_waits.then_some(waiting)
    }
}

/// Reads the sockets of a process, and the clients that wait for it or for its front end. Returns `None` if its descriptors may
/// not be listed. May block: the kernel takes the memory lock of the process to read its environment.
fn read(pid: u32, front_end: &[u32], tables: &SocketTables) -> Option<TcpSockets> {
    let mut reader = FileReader::default();
    let namespace = reader.read_link(pid, "ns/net");
    let namespace = namespace.as_deref();
    let known = tables.known_inodes(pid, namespace);
    let own = known.or_else(|| socket_inodes(pid, MAX_DESCRIPTORS, &mut reader))?;
    let mut sockets = TcpSockets { connections: Some(0), ..TcpSockets::default() };
    if !own.is_empty() {
        sockets.connections = None;
        tables.with(pid, namespace, &mut reader, |table, _| table.count(&own, &mut sockets));
    }
    let mut inodes = vec![own];
    let mut server = TcpSockets { listening_ports: sockets.listening_ports.clone(), ..TcpSockets::default() };
    for are_children in [false, true] {
        // A router answers for the workers that its launcher started beside it.
        if !front_end.is_empty() && (!are_children || server.listening_ports.is_empty()) {
            tables.with(pid, namespace, &mut reader, |table, reader| {
                let relatives = table.relatives(are_children, front_end, reader);
                relatives.listening_ports.iter().for_each(|port| server.add_port(*port));
                inodes.push(relatives.inodes.clone());
            });
        }
    }
    if !server.listening_ports.is_empty() {
        let environment = reader.read_process(pid, "environ", MAX_ENVIRONMENT_BYTES).ok();
        let rendezvous = environment.and_then(rendezvous_port);
        for ports in [&mut sockets.listening_ports, &mut server.listening_ports] {
            ports.retain(|port| Some(*port) != rendezvous);
        }
    }
    if !server.listening_ports.is_empty() {
        let waiting =
            tables.with(pid, namespace, &mut reader, |table, _| table.waiting(&inodes, &server.listening_ports));
        sockets.waiting = waiting.flatten();
    }
    Some(sockets)
}

/// The pids of the first children that a process has started (`/proc/PID/task/TID/children`, with CONFIG_PROC_CHILDREN).
fn children(pid: u32, reader: &mut FileReader) -> Vec<u32> {
    let mut children = Vec::new();
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return children };
    for thread in threads.flatten().take(MAX_CHILDREN) {
        let Some(thread) = thread.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let list = reader.read_thread(pid, thread, "children", 4096).ok();
        let list = list.and_then(|list| std::str::from_utf8(list).ok()).unwrap_or_default();
        children.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    children.truncate(MAX_CHILDREN);
    children
}

/// The inodes of the sockets among the first `max_descriptors` of a process, in ascending order.
pub(crate) fn socket_inodes(pid: u32, max_descriptors: usize, reader: &mut FileReader) -> Option<Vec<u64>> {
    let directory = reader.open_process(pid, "fd").ok()?;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&directory, &mut buffer);
    let mut inodes = Vec::new();
    let mut link = Vec::new();
    for _ in 0..max_descriptors {
        let Some(Ok(entry)) = entries.next() else { break };
        let Ok(target) = readlinkat(&directory, entry.file_name(), link) else {
            link = Vec::new();
            continue;
        };
        link = target.into_bytes();
        if let Some(inode) = socket_inode(&link) {
            insert(&mut inodes, inode);
        }
    }
    Some(inodes)
}

/// Inserts an inode in ascending order. Most come in order, and a sort would take four kilobytes more of code.
fn insert(inodes: &mut Vec<u64>, inode: u64) {
    if let (Err(place), true) = (inodes.binary_search(&inode), inodes.len() < MAX_INODES) {
        inodes.insert(place, inode);
    }
}

/// Parses `socket:[4711]`.
fn socket_inode(link: &[u8]) -> Option<u64> {
    std::str::from_utf8(link).ok()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// State of an established connection in a table (`include/net/tcp_states.h`).
const ESTABLISHED: &str = "01";
/// State of a listening socket.
const LISTEN: &str = "0A";

/// Fields of a line of `/proc/net/tcp`, in which addresses, ports and states are hexadecimal.
pub(crate) struct TableLine<'a> {
    local: &'a str,
    remote: &'a str,
    state: &'a str,
    /// The user that owns the socket.
    pub(crate) uid: u32,
    pub(crate) inode: u64,
}

impl TableLine<'_> {
    /// Returns the address and the port on which the socket listens, or `None` if it is connected.
    pub(crate) fn listening_address(&self) -> Option<(IpAddr, u16)> {
        if self.state == LISTEN { address(self.local) } else { None }
    }
}

/// Parses a line of `/proc/net/tcp`: `sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode`. Other
/// states than LISTEN and ESTABLISHED are left out.
pub(crate) fn table_line(line: &[u8]) -> Option<TableLine<'_>> {
    let mut fields = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let (local, remote, state) = (fields.nth(1)?, fields.next()?, fields.next()?);
    if !matches!(state, LISTEN | ESTABLISHED) {
        return None;
    }
    let (uid, inode) = (fields.nth(3)?.parse().ok()?, fields.nth(1)?.parse().ok()?);
    Some(TableLine { local, remote, state, uid, inode })
}

/// Parses a line of `/proc/net/tcp`.
fn socket(line: &[u8]) -> Option<Socket> {
    let line = table_line(line)?;
    let (_, port) = address(line.local)?;
    Some(Socket { inode: line.inode, port, is_listening: line.state == LISTEN, waited: None })
}

/// Parses `0100007F:1F90`, or the same with 32 digits for IPv6. The kernel prints the address as 32-bit numbers in the
/// byte order of the host.
fn address(text: &str) -> Option<(IpAddr, u16)> {
    let (digits, port) = text.split_once(':')?;
    let mut bytes = [0; 16];
    let words = bytes.chunks_exact_mut(4).zip(0..);
    for (word, at) in words.take(digits.len().div_ceil(8)) {
        let number = u32::from_str_radix(digits.get(8 * at..8 * at + 8)?, 16).ok()?;
        word.copy_from_slice(&number.to_ne_bytes());
    }
    let ip = match digits.len() {
        8 => IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]]),
        32 => Ipv6Addr::from(bytes).to_canonical(),
        _ => return None,
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?))
}

/// Maximum size of a table that [`socket_list`] reads.
const MAX_LISTED_BYTES: usize = 4 << 20;

/// The TCP sockets of one process, for an examination.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketList {
    /// Ports on which it listens.
    pub(crate) listening_ports: Vec<u16>,
    /// The other end of each established connection: address and port.
    pub(crate) peers: Vec<(IpAddr, u16)>,
}

/// Reads the TCP sockets of a process. Returns `None` if its descriptors may not be listed.
pub(crate) fn socket_list(pid: u32, reader: &mut FileReader) -> Option<SocketList> {
    let inodes = socket_inodes(pid, MAX_DESCRIPTORS, reader)?;
    let mut sockets = SocketList::default();
    for table in ["net/tcp", "net/tcp6"] {
        // A host without IPv6 has no tcp6.
        let _absent = reader.each_line(pid, table, MAX_LISTED_BYTES, &mut |line| {
            let Some(line) = table_line(line).filter(|line| inodes.binary_search(&line.inode).is_ok()) else { return };
            if line.state == LISTEN {
                sockets.listening_ports.extend(line.listening_address().map(|(_, port)| port));
            } else {
                sockets.peers.extend(address(line.remote));
            }
        });
    }
    Some(sockets)
}

/// The port in `MASTER_PORT`, on which rank 0 of a distributed job listens for the others.
pub(crate) fn rendezvous_port(environment: &[u8]) -> Option<u16> {
    std::str::from_utf8(environment_variable(environment, "MASTER_PORT")?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    const HEADER: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";

    #[test]
    fn listening_and_established_sockets_are_read_from_a_table() {
        let listens = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100 0 0 10 0";
        let connected = "   1: 0100007F:1F90 0100007F:CCCA 01 00000000:00000000 02:000A7214 00000000  1000        0 4712 2 0 20 4 30 10 -1";
        let closing =
            "   2: 0100007F:1F90 0100007F:CCCB 06 00000000:00000000 03:00001214 00000000     0        0 0 3 0";
        let six = "   0: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 00000000:00000000 \
                   00:00000000 00000000     0        0 18446744073709551615 1 0 100 0 0 10 0";
        let read = |line: &str| socket(line.as_bytes()).map(|socket| (socket.inode, socket.port, socket.is_listening));
        assert_eq!(read(listens), Some((4711, 8080, true)));
        assert_eq!(read(connected), Some((4712, 8080, false)));
        assert_eq!(read(six), Some((u64::MAX, 22, true)));
        for line in [HEADER, closing, "", "0: 1 2", "0: x:y 0:0 0A a b c d e f", &listens[..60]] {
            assert_eq!(read(line), None, "{line}");
        }
    }

    #[test]
    fn addresses_are_in_the_byte_order_of_the_host() {
        let hex = |bytes: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(bytes));
        let four = format!("{}:7148", hex([10, 0, 0, 5]));
        assert_eq!(address(&four), Some(("10.0.0.5".parse().unwrap(), 29000)));
        let six = |words: [[u8; 4]; 4]| words.map(hex).concat() + ":0016";
        let global = six([[0x20, 1, 0x0d, 0xb8], [0; 4], [0; 4], [0, 0, 0, 7]]);
        assert_eq!(address(&global), Some(("2001:db8::7".parse().unwrap(), 22)));
        let mapped = six([[0; 4], [0; 4], [0, 0, 0xff, 0xff], [10, 0, 0, 5]]);
        assert_eq!(address(&mapped), Some(("10.0.0.5".parse().unwrap(), 22)), "an IPv4 peer of an IPv6 socket");
        for text in ["", "0100007F", "0100007:1F90", "0100007F:x", "ö100007F:1F90", &"0".repeat(40), &four[1..]] {
            assert_eq!(address(text), None, "{text}");
        }
    }

    #[test]
    fn peers_of_a_process_are_listed() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let port = listener.local_addr().expect("an address").port();
        let client = TcpStream::connect(("127.0.0.1", port)).expect("connects");
        let (_server, _) = listener.accept().expect("accepts");
        let sockets = socket_list(std::process::id(), &mut FileReader::default()).expect("own descriptors");
        assert!(sockets.listening_ports.contains(&port), "{sockets:?}");
        let local = client.local_addr().expect("an address").port();
        for peer in [port, local] {
            assert!(sockets.peers.contains(&(IpAddr::from([127, 0, 0, 1]), peer)), "{peer}: {sockets:?}");
        }
        assert_eq!(socket_list(u32::MAX, &mut FileReader::default()), None);
    }

    #[test]
    fn links_to_sockets_have_an_inode() {
        assert_eq!(socket_inode(b"socket:[4711]"), Some(4711));
        for link in [b"/dev/null".as_slice(), b"pipe:[4711]", b"socket:[]", b"socket:[1", b"anon_inode:[eventpoll]"] {
            assert_eq!(socket_inode(link), None);
        }
    }

    #[test]
    fn the_rendezvous_port_is_in_the_environment() {
        assert_eq!(rendezvous_port(b"HOME=/root\0MASTER_PORT=29500\0RANK=0\0"), Some(29500));
        assert_eq!(rendezvous_port(b"MY_MASTER_PORT=1\0MASTER_PORT=auto\0"), None);
        assert_eq!(rendezvous_port(b""), None);
    }

    /// The sockets of this test itself, of which other tests have some, too.
    fn own() -> TcpSockets {
        read(std::process::id(), &[], &SocketTables::default()).expect("own descriptors")
    }

    #[test]
    fn sockets_of_a_process_are_found_until_they_are_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let six = TcpListener::bind("[::1]:0").ok();
        let port = listener.local_addr().expect("an address").port();
        let client = TcpStream::connect(("127.0.0.1", port)).expect("connects");
        let (server, _) = listener.accept().expect("accepts");
        let found = own();
        // Other tests of this program may fill the list.
        assert!(found.listening_ports.contains(&port) || found.listening_ports.len() == MAX_PORTS, "{found:?}");
        // A machine with very many sockets has no count.
        assert!(found.connections.is_none_or(|connections| connections >= 2), "{found:?}");
        if let Some(six) = six {
            let port = six.local_addr().expect("an address").port();
            assert!(found.listening_ports.contains(&port) || found.listening_ports.len() == MAX_PORTS, "{found:?}");
        }
        drop((listener, client, server));
        assert!(!own().listening_ports.contains(&port));
    }

    #[test]
    fn the_kernel_lists_the_sockets_of_the_tables() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let port = listener.local_addr().expect("an address").port();
        let client = TcpStream::connect(("127.0.0.1", port)).expect("connects");
        let (server, _) = listener.accept().expect("accepts");
        let (pid, mut reader) = (std::process::id(), FileReader::default());
        // Sockets of other tests may have the same ports.
        let inodes = [rustix::fs::fstat(&listener), rustix::fs::fstat(&client), rustix::fs::fstat(&server)];
        let inodes = inodes.map(|file| file.expect("a descriptor").st_ino);
        let own = |sockets: Vec<Socket>| {
            let own = sockets.into_iter().filter(|socket| inodes.contains(&socket.inode));
            let mut own: Vec<_> = own.map(|socket| (socket.inode, socket.port, socket.is_listening)).collect();
            own.sort_unstable();
            own
        };
        let (printed, _) = read_tables(pid, &mut reader);
        let listed = own(list_sockets(pid, &mut reader).expect("the kernel answers"));
        assert_eq!((listed.len(), &listed), (3, &own(printed)));
    }

    #[test]
    fn processes_in_one_namespace_share_a_table_for_a_while() {
        let tables = SocketTables::default();
        let pid = std::process::id();
        // Without a socket, no table is read.
        let _socket = TcpListener::bind("127.0.0.1:0").expect("binds");
        read(pid, &[], &tables).expect("own descriptors");
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        read(pid, &[], &tables).expect("own descriptors");
        assert_eq!(tables.0.lock().expect("not poisoned").len(), 1);
        let port = listener.local_addr().expect("an address").port();
        let knows = |tables: &SocketTables| {
            let tables = tables.0.lock().expect("not poisoned");
            tables.iter().any(|table| table.sockets.iter().any(|socket| socket.port == port))
        };
        assert!(!knows(&tables), "the table is older than the socket");
        tables.0.lock().expect("not poisoned")[0].read_at -= TABLE_AGE;
        read(pid, &[], &tables).expect("own descriptors");
        assert!(knows(&tables));
    }

    #[test]
    fn the_descriptors_of_ranks_with_one_launcher_are_listed_once() {
        let (socket, _other_end) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let inode = rustix::fs::fstat(&socket).expect("a descriptor").st_ino;
        let script = "sleep 600 & echo $!; sleep 600 & echo $!; wait";
        let mut launcher = std::process::Command::new("/bin/sh")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::os::fd::OwnedFd::from(socket))
            .spawn()
            .expect("starts");
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(launcher.stdout.take().expect("piped")));
        let mut rank = || lines.next().expect("two").expect("a line").parse::<u32>().expect("a pid");
        let (first, second) = (rank(), rank());
        let tables = SocketTables::default();
        let namespace = FileReader::default().read_link(first, "ns/net");
        let known = |pid: u32| tables.known_inodes(pid, namespace.as_deref());
        let before = [first, second].map(known);
        read(first, &[launcher.id()], &tables).expect("its descriptors");
        let after = [first, second, launcher.id()].map(known);
        tables.0.lock().expect("not poisoned")[0].read_at -= TABLE_AGE;
        let later = known(second);
        for pid in [first, second] {
            let _ = rustix::process::kill_process(
                rustix::process::Pid::from_raw(pid as i32).expect("a pid"),
                rustix::process::Signal::KILL,
            );
        }
        launcher.wait().expect("ends");
        assert_eq!(before, [None, None]);
        assert_eq!(after, [Some(vec![inode]), Some(vec![inode]), None]);
        assert_eq!(later, None, "the table is too old");
    }

    #[test]
    fn a_read_is_repeated_after_its_period() {
        let (pool, tables) = (BlockingPool::new(), SocketTables::default());
        let (mut sockets, mut facts) = (SocketReader::default(), ProcessFacts::default());
        let mut look = |now: f64| {
            sockets.start(std::process::id(), std::iter::empty(), now, &tables, &pool);
            let is_started = sockets.pending.is_some();
            pool.wait_until_idle(Instant::now() + Duration::from_secs(30));
            sockets.collect(&mut facts);
            (is_started, sockets.connections().is_some())
        };
        assert_eq!(
            [0.0, 10.0, 59.0, 60.0, 61.0].map(&mut look),
            [(true, true), (false, true), (false, true), (true, true), (false, true)]
        );
    }

    #[test]
    fn a_wait_goes_on_between_two_reads_and_ends_if_no_read_returns() {
        let waiting = WaitingClients { count: 2, longest: Duration::from_secs(30) };
        let mut sockets =
            SocketReader { started_at: Some(100.0), waiting: Some((waiting, 100.0)), ..SocketReader::default() };
        assert_eq!(sockets.waiting(130.0), Some((2, 60.0)));
        sockets.started_at = Some(160.0);
        assert_eq!(sockets.waiting(161.0), Some((2, 91.0)), "the next read has begun");
        assert_eq!(sockets.waiting(260.0), None);
    }

    #[test]
    fn sockets_of_a_process_without_readable_descriptors_are_unknown() {
        assert_eq!(read(u32::MAX, &[], &SocketTables::default()), None);
    }
}
