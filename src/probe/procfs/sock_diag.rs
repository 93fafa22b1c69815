//! The TCP sockets of a network namespace, and which clients of a server wait for its answer (sock_diag(7)).
//!
//! The kernel lists its sockets in a fifth of the time that it takes to print `/proc/net/tcp`: 0.8 instead of 4.5 ms where nothing
//! is connected, for a hash table of 262,144 entries.
//!
//! A client waits if its connection received data after the last data were sent on it, or if nothing was sent on it yet.
//! `tcp_info` has the times of both (`include/uapi/linux/tcp.h`, since Linux 4.2), for the sockets of all users. A server in a
//! container has its own network namespace, which only root may enter (setns(2)).

use super::files::FileReader;
use crate::probe::blocking::STACK_BYTES;
use rustix::fs::{Mode, OFlags, open};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// A TCP socket that listens or is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Socket {
    /// Inode of the socket; 0 before the server has accepted the connection.
    pub(super) inode: u64,
    /// The local port.
    pub(super) port: u16,
    pub(super) is_listening: bool,
    /// If the other end waits for an answer: the time since its last data.
    pub(super) waited: Option<Duration>,
}

/// Data that arrive this soon after an answer are not a request: clients of HTTP/2 and TLS acknowledge answers.
const ACKNOWLEDGEMENT_MS: u32 = 200;
/// Maximum number of sockets of a namespace.
pub(super) const MAX_SOCKETS: usize = 8192;
/// Limit for one message of the kernel, which answers at once.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum size of a list. Others wait for it.
const MAX_LIST_BYTES: usize = 4 << 20;

/// Header of a netlink message (netlink(7)): length, type, flags, sequence number, port.
const HEADER_BYTES: usize = 16;
/// `SOCK_DIAG_BY_FAMILY` (linux/sock_diag.h).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST | NLM_F_ROOT | NLM_F_MATCH`: list all sockets.
const REQUEST_ALL: u16 = 0x301;
/// `NLMSG_DONE`, the end of a list.
const DONE: u16 = 3;
/// `IPPROTO_TCP`.
const TCP: u8 = 6;
/// The bit of `INET_DIAG_INFO`, which asks for `tcp_info`; its attribute has the type 2.
const WITH_INFO: u8 = 1 << 1;
const INFO: u16 = 2;
/// Size of `tcp_info` up to and including `tcpi_bytes_received`.
const INFO_BYTES: usize = 136;
/// The state `TCP_LISTEN` (`include/net/tcp_states.h`), and the bits of it and `TCP_ESTABLISHED`.
const LISTEN: u8 = 10;
const STATES: u32 = 1 << 1 | 1 << LISTEN;
/// Size of `inet_diag_req_v2`.
const REQUEST_BYTES: usize = 56;
/// Size of `inet_diag_msg`, after which attributes follow.
const MESSAGE_BYTES: usize = 72;

/// Lists the sockets in the network namespace of a process. `None` if it may not be entered, if the kernel does not answer, or if
/// there are too many sockets. Call it on a thread that may block.
pub(super) fn list_sockets(pid: u32, reader: &mut FileReader) -> Option<Vec<Socket>> {
    let namespace = reader.read_link(pid, "ns/net")?;
    let is_own =
        std::fs::read_link("/proc/self/ns/net").is_ok_and(|own| own.as_os_str().as_encoded_bytes() == namespace);
    let socket = if is_own {
        open_socket()?
    } else {
        // Only this thread enters the namespace, and it ends afterwards. The socket stays in that namespace.
        let thread = std::thread::Builder::new().name("gpufleet-netns".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || open_socket_in_namespace(pid)).ok()?.join().ok()??
    };
    let mut sockets = Vec::new();
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        list(&socket, family.as_raw() as u8, &mut sockets)?;
    }
    Some(sockets)
}

fn open_socket_in_namespace(pid: u32) -> Option<OwnedFd> {
    let namespace = open(format!("/proc/{pid}/ns/net"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).ok()?;
    open_socket()
}

fn open_socket() -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(netlink::SOCK_DIAG)).ok()?;
    set_socket_timeout(&socket, Timeout::Recv, Some(RECEIVE_TIMEOUT)).ok()?;
    Some(socket)
}

/// Adds the sockets of one address family.
fn list(socket: &OwnedFd, family: u8, sockets: &mut Vec<Socket>) -> Option<()> {
    send(socket, &request(family), SendFlags::empty()).ok()?;
    // The kernel fills at most this much if a program reads no more at once (NLMSG_GOODSIZE in linux/netlink.h).
    let mut buffer = [0; 8192];
    let mut listed = 0;
    while listed < MAX_LIST_BYTES && sockets.len() < MAX_SOCKETS {
        let (_, received) = recv(socket, buffer.as_mut_slice(), RecvFlags::empty()).ok()?;
        if read_messages(buffer.get(..received)?, sockets)? {
            return Some(());
        }
        listed += received;
    }
    None
}

fn request(family: u8) -> [u8; HEADER_BYTES + REQUEST_BYTES] {
    let mut bytes = [0; HEADER_BYTES + REQUEST_BYTES];
    let length = (HEADER_BYTES + REQUEST_BYTES) as u32;
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&REQUEST_ALL.to_ne_bytes());
    bytes[16..19].copy_from_slice(&[family, TCP, WITH_INFO]);
    bytes[20..24].copy_from_slice(&STATES.to_ne_bytes());
    bytes
}

/// Reads the messages of one datagram. Returns whether the list ends here, or `None` if the kernel reports an error.
fn read_messages(mut bytes: &[u8], sockets: &mut Vec<Socket>) -> Option<bool> {
    while !bytes.is_empty() {
        let length = number(bytes, 0)? as usize;
        let kind = u16::from_ne_bytes([*bytes.get(4)?, *bytes.get(5)?]);
        if kind == DONE {
            // An error of the list, such as a missing kernel module, is a negative number.
            return (number(bytes, HEADER_BYTES)? as i32 >= 0).then_some(true);
        }
        if kind != SOCK_DIAG_BY_FAMILY {
            return None;
        }
        sockets.push(read_socket(bytes.get(HEADER_BYTES..length)?)?);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(false)
}

/// Reads one socket: `inet_diag_msg` and its attributes (linux/inet_diag.h).
fn read_socket(message: &[u8]) -> Option<Socket> {
    let port = u16::from_be_bytes([*message.get(4)?, *message.get(5)?]);
    let is_listening = *message.get(1)? == LISTEN;
    let waited = if is_listening { None } else { waited(message.get(MESSAGE_BYTES..)?) };
    Some(Socket { inode: u64::from(number(message, 68)?), port, is_listening, waited })
}

/// How long the client of a connection with these attributes has waited.
fn waited(mut attributes: &[u8]) -> Option<Duration> {
    loop {
        let length = usize::from(u16::from_ne_bytes([*attributes.first()?, *attributes.get(1)?]));
        let kind = u16::from_ne_bytes([*attributes.get(2)?, *attributes.get(3)?]);
        let value = attributes.get(4..length)?;
        if kind == INFO {
            return wait(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

/// How long a client has waited, by its `tcp_info`: the time since its last data, if nothing was sent since.
fn wait(info: &[u8]) -> Option<Duration> {
    let info = info.get(..INFO_BYTES)?;
    let (sent_ms_ago, received_ms_ago) = (number(info, 44)?, number(info, 52)?);
    let is_any = |at: usize| Some(number(info, at)? != 0 || number(info, at + 4)? != 0);
    let (has_acknowledged, has_received) = (is_any(120)?, is_any(128)?);
    let waited = Duration::from_millis(u64::from(received_ms_ago));
    // Without data, the time of the last sent data is that of the connection.
    let lead = sent_ms_ago.checked_sub(received_ms_ago)?;
    let waits = has_received && (!has_acknowledged || lead >= ACKNOWLEDGEMENT_MS);
    waits.then_some(waited)
}

/// Reads a number of 32 bits in the byte order of the host.
fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// The beginning of `tcp_info`.
    fn info(sent_ms_ago: u32, received_ms_ago: u32, acknowledged: u64, received: u64) -> Vec<u8> {
        let mut bytes = vec![0; INFO_BYTES];
        bytes[44..48].copy_from_slice(&sent_ms_ago.to_ne_bytes());
        bytes[52..56].copy_from_slice(&received_ms_ago.to_ne_bytes());
        bytes[120..128].copy_from_slice(&acknowledged.to_ne_bytes());
        bytes[128..136].copy_from_slice(&received.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_client_waits_from_its_last_data_until_something_is_sent() {
        let waits = |sent, received, acknowledged, bytes| wait(&info(sent, received, acknowledged, bytes));
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(waits(90_000, 60_000, 0, 300), seconds(60), "the first request");
        assert_eq!(waits(60_000, 60_000, 0, 300), seconds(60), "data that came with the connection");
        assert_eq!(waits(90_000, 60_000, 5000, 300), seconds(60), "the second request");
        assert_eq!(waits(60_100, 60_000, 5000, 300), None, "an acknowledgement of the answer");
        assert_eq!(waits(5_000, 60_000, 5000, 300), None, "an answer, or a part of one");
        assert_eq!(waits(5_000, 60_000, 0, 300), None, "an answer that the client has not acknowledged");
        assert_eq!(waits(60_000, 60_000, 0, 0), None, "a connection without a request");
        assert_eq!(wait(&info(90_000, 60_000, 0, 1 << 32)), seconds(60), "many bytes");
        assert_eq!(wait(&info(90_000, 60_000, 0, 300)[..INFO_BYTES - 1]), None, "Linux before 4.2");
    }

    /// A message about a connection to port 8000.
    fn message(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + MESSAGE_BYTES];
        bytes[HEADER_BYTES + 4..HEADER_BYTES + 6].copy_from_slice(&8000_u16.to_be_bytes());
        bytes[HEADER_BYTES + 68..HEADER_BYTES + 72].copy_from_slice(&4711_u32.to_ne_bytes());
        for (kind, value) in attributes {
            bytes.extend(((4 + value.len()) as u16).to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(*value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        bytes
    }

    #[test]
    fn messages_of_the_kernel_are_read_and_others_end_the_list() {
        let silent = Socket { inode: 4711, port: 8000, is_listening: false, waited: None };
        let waiting = Socket { waited: Some(Duration::from_secs(60)), ..silent };
        let read = |bytes: &[u8]| {
            let mut sockets = Vec::new();
            let ends = read_messages(bytes, &mut sockets);
            (ends, sockets)
        };
        let info = info(90_000, 60_000, 0, 300);
        // The kernel sends the shutdown state (type 8) of each socket, too.
        let first = message(&[(8, &[0]), (INFO, &info)]);
        let second = message(&[(INFO, &info)]);
        let without = message(&[(8, &[0])]);
        let mut listens = second.clone();
        listens[HEADER_BYTES + 1] = LISTEN;
        let all = [first.clone(), without, second, listens].concat();
        let listening = Socket { is_listening: true, ..silent };
        assert_eq!(read(&all), (Some(false), vec![waiting, silent, waiting, listening]));
        let mut done = first.clone();
        done[4..6].copy_from_slice(&DONE.to_ne_bytes());
        assert_eq!(read(&[first.as_slice(), &done].concat()), (Some(true), vec![waiting]));
        let mut failed = done.clone();
        failed[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&(-2_i32).to_ne_bytes());
        assert_eq!(read(&failed), (None, Vec::new()), "ENOENT");
        let mut error = first.clone();
        error[4] = 2;
        assert_eq!(read(&error).0, None);
        // A length of 0 would repeat one message forever.
        let mut endless = first.clone();
        endless[..4].fill(0);
        assert_eq!(read(&endless), (None, Vec::new()));
        for length in 1..first.len() {
            let (ends, sockets) = read(&first[..length]);
            assert_eq!((ends, sockets.len()), (None, 0), "{length} bytes");
        }
    }

    #[test]
    fn the_kernel_tells_which_clients_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let port = listener.local_addr().expect("an address").port();
        let connect = || TcpStream::connect(("127.0.0.1", port)).expect("connects");
        let (mut waits, mut answered, silent) = (connect(), connect(), connect());
        waits.write_all(b"GET / HTTP/1.1").expect("sends");
        answered.write_all(b"GET / HTTP/1.1").expect("sends");
        let accepted: Vec<TcpStream> = (0..2).map(|_| listener.accept().expect("accepts").0).collect();
        let mut request = [0; 14];
        (&accepted[1]).read_exact(&mut request).expect("a request");
        (&accepted[1]).write_all(b"HTTP/1.1 200 OK").expect("answers");
        answered.read_exact(&mut request).expect("an answer");
        let listed = || {
            let sockets = list_sockets(std::process::id(), &mut FileReader::default()).expect("the kernel answers");
            sockets.into_iter().filter(|socket| socket.port == port).collect::<Vec<_>>()
        };
        let waiting = |sockets: &[Socket]| sockets.iter().filter(|socket| socket.waited.is_some()).count();
        let own = listed();
        assert_eq!((waiting(&own), own.iter().filter(|socket| socket.is_listening).count()), (1, 1), "{own:?}");
        assert!(own.iter().filter(|socket| socket.waited.is_some()).all(|socket| socket.inode != 0), "{own:?}");
        // A connection that the server has not accepted has no inode.
        (&silent).write_all(b"GET / HTTP/1.1").expect("sends");
        let own = listed();
        let is_unaccepted = |socket: &&Socket| socket.inode == 0;
        assert_eq!((waiting(&own), own.iter().filter(is_unaccepted).count()), (2, 1), "{own:?}");
        assert_eq!(list_sockets(u32::MAX, &mut FileReader::default()), None);
    }
}
