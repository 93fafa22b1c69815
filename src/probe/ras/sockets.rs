//! Finds out which processes would answer a query of NCCL RAS.
//!
//! NCCL sets `SO_REUSEPORT` (nccl:src/ras/client_support.cc, `rasClientInitSocket`), so all processes of a user can listen
//! on the port, and the kernel picks one of them for each connection.

use super::gate::{refusal, risk};
use crate::probe::procfs::{FileReader, socket_inodes, table_line};
use crate::wire::examination::ExaminationRefusal;
use rustix::fs::{Mode, OFlags, RawDir, open};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Maximum number of descriptors of a process that are looked at.
const MAX_DESCRIPTORS: usize = 16 * 1024;
/// Maximum size of the table of a network namespace. Listening sockets come first.
const MAX_TABLE_BYTES: usize = 256 * 1024;
/// Maximum size of `/proc/PID/maps`. A process with PyTorch has some thousand lines of about 100 bytes.
const MAX_MAPS_BYTES: usize = 4 << 20;

/// The sockets that may accept a connection to the RAS of a process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listeners {
    /// The addresses on which the process itself listens, as one connects to them.
    pub(super) own: Vec<SocketAddr>,
    /// Number of sockets at these addresses that belong to other processes.
    pub(super) others: usize,
}

/// A listening socket of the probe's user.
#[derive(Debug, PartialEq, Eq)]
struct ListeningSocket {
    address: SocketAddr,
    uid: u32,
    inode: u64,
}

/// Finds the sockets of this user that listen on `port` in the network namespace of the process. Without `accept_risk`,
/// every process that may answer must have the NCCL library of `pid`, because an older one could crash.
pub(super) fn find(pid: u32, port: u16, accept_risk: bool) -> Result<Listeners, ExaminationRefusal> {
    let mut reader = FileReader::default();
    let Some(inodes) = socket_inodes(pid, MAX_DESCRIPTORS, &mut reader) else {
        let reason = "NCCL RAS was not queried: the descriptors of the process cannot be read";
        return Err(refusal(reason, RUNNING));
    };
    let uid = rustix::process::getuid().as_raw();
    let mut sockets = Vec::new();
    for name in ["net/tcp", "net/tcp6"] {
        if let Ok(table) = reader.read_long(pid, name, MAX_TABLE_BYTES) {
            let listening = table.split(|&byte| byte == b'\n').filter_map(listening_socket);
            sockets.extend(listening.filter(|socket| socket.address.port() == port && socket.uid == uid));
        }
    }
    let (listeners, others) = divide(&sockets, &inodes);
    if listeners.own.is_empty() {
        let reason = format!(
            "NCCL RAS was not queried: the process does not listen on port {port}, because it has no communicator or \
             another user holds the port"
        );
        return Err(refusal(&reason, OWN_PORT));
    }
    if !accept_risk {
        let own_sockets = sockets.iter().filter(|socket| inodes.contains(&socket.inode)).count();
        if own_sockets > listeners.own.len() {
            return Err(shared_port("a second NCCL library of the process"));
        }
        check_library(pid, others, &mut reader)?;
    }
    Ok(listeners)
}

/// The way out if the process may have ended.
pub(super) const RUNNING: &str = "look whether the job still runs";
/// The way out if several jobs share the port.
pub(super) const OWN_PORT: &str = "start each job with its own port: NCCL_RAS_ADDR=localhost:PORT";

/// Divides sockets at one port into those of the process and the inodes of others at the same addresses.
fn divide(sockets: &[ListeningSocket], own_inodes: &[u64]) -> (Listeners, Vec<u64>) {
    let is_own = |socket: &&ListeningSocket| own_inodes.contains(&socket.inode);
    let mut own: Vec<SocketAddr> = Vec::new();
    for socket in sockets.iter().filter(is_own) {
        if !own.contains(&socket.address) {
            own.push(socket.address);
        }
    }
    let shares = |socket: &&ListeningSocket| !is_own(socket) && own.contains(&socket.address);
    let others: Vec<u64> = sockets.iter().filter(shares).map(|socket| socket.inode).collect();
    for address in &mut own {
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
                SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
            });
        }
    }
    (Listeners { own, others: others.len() }, others)
}

/// Checks that the owners of these sockets have the same NCCL library as `pid`.
fn check_library(pid: u32, mut inodes: Vec<u64>, reader: &mut FileReader) -> Result<(), ExaminationRefusal> {
    if inodes.is_empty() {
        return Ok(());
    }
    let library = nccl_library(pid, reader);
    let Ok(directory) = open("/proc", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) else {
        return Err(shared_port("another process"));
    };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&directory, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let Some(other) = entry.file_name().to_str().ok().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // Processes of other users cannot be read, and cannot share the address.
        let Some(held) = socket_inodes(other, MAX_DESCRIPTORS, reader) else { continue };
        if !inodes.iter().any(|inode| held.contains(inode)) {
            continue;
        }
        // A worker that a rank forked holds the socket too. The rank has the lower pid, so it comes first. A program
        // without NCCL only inherited the socket.
        match nccl_library(other, reader) {
            None => {}
            found if found == library => inodes.retain(|inode| !held.contains(inode)),
            Some(_) => return Err(shared_port(&format!("process {other}"))),
        }
        if inodes.is_empty() {
            return Ok(());
        }
    }
    Err(shared_port("another process"))
}

fn shared_port(owner: &str) -> ExaminationRefusal {
    let reason = format!(
        "NCCL RAS was not queried: {owner} listens on the same port and would get some of the queries, and its NCCL library \
         is not known to be safe"
    );
    risk(&reason, OWN_PORT)
}

/// Device, inode and path of the NCCL library that a process has mapped.
fn nccl_library(pid: u32, reader: &mut FileReader) -> Option<Vec<u8>> {
    let maps = reader.read_long(pid, "maps", MAX_MAPS_BYTES).ok()?;
    maps.split(|&byte| byte == b'\n').find_map(mapped_library).map(<[u8]>::to_vec)
}

/// Returns the end of a line of `/proc/PID/maps` (proc_pid_maps(5): address, permissions, offset, device, inode, path) if
/// it maps `libnccl.so`.
fn mapped_library(line: &[u8]) -> Option<&[u8]> {
    let name = line.rsplit(|&byte| byte == b'/').next()?;
    if name.len() == line.len() || !name.starts_with(b"libnccl.so") {
        return None;
    }
    line.splitn(4, |&byte| byte == b' ').nth(3)
}

/// Parses a line of `/proc/net/tcp` or `tcp6` if it is a listening socket.
fn listening_socket(line: &[u8]) -> Option<ListeningSocket> {
    let line = table_line(line)?;
    let address = SocketAddr::from(line.listening_address()?);
    Some(ListeningSocket { address, uid: line.uid, inode: line.inode })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::OwnedFd;
    use std::io::ErrorKind;
    use std::net::TcpListener;
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::process::{Child, Command};

    fn socket(address: &str, inode: u64) -> ListeningSocket {
        ListeningSocket { address: address.parse().expect(address), uid: 1000, inode }
    }

    #[test]
    fn listening_sockets_are_read_from_a_table() {
        let four = b"   0: 0100007F:6D7C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100 0 0 10 0";
        assert_eq!(listening_socket(four), Some(socket("127.0.0.1:28028", 4711)));
        let six = b"   0: 00000000000000000000000001000000:6D7C 00000000000000000000000000000000:0000 0A \
                    00000000:00000000 00:00000000 00000000  1000        0 4712 1 0 100 0 0 10 0";
        assert_eq!(listening_socket(six), Some(socket("[::1]:28028", 4712)));
        let connected = b"   1: 0100007F:6D7C 0100007F:CCCA 01 00000000:00000000 02:000A7214 00000000  1000        0 4713 2 0 20 4 30 10 -1";
        let cut = &four[..50];
        let short = b"0: 00007F:6D7C 0:0 0A a b c 1 0 1".as_slice();
        let foreign = "0: \u{e9}\u{e9}\u{e9}\u{e9}:6D7C 0:0 0A a b c 1 0 1".as_bytes();
        for line in [connected.as_slice(), cut, short, foreign, b"", b"  sl  local_address rem_address   st"] {
            assert_eq!(listening_socket(line), None);
        }
    }

    #[test]
    fn sockets_at_the_same_address_may_answer_too() {
        let sockets = [
            socket("127.0.0.1:28028", 1),
            socket("127.0.0.1:28028", 2),
            socket("127.0.0.1:28028", 3),
            socket("[::1]:28028", 4),
            socket("0.0.0.0:28028", 5),
        ];
        let address = |text: &str| text.parse::<SocketAddr>().expect(text);
        let (listeners, others) = divide(&sockets, &[2, 99]);
        assert_eq!(listeners, Listeners { own: vec![address("127.0.0.1:28028")], others: 2 });
        assert_eq!(others, [1, 3]);
        // One connects to the loopback address if it listens on all.
        assert_eq!(divide(&sockets, &[5]).0, Listeners { own: vec![address("127.0.0.1:28028")], others: 0 });
        assert_eq!(divide(&sockets, &[4]).0, Listeners { own: vec![address("[::1]:28028")], others: 0 });
        assert_eq!(divide(&sockets, &[]).0, Listeners::default());
    }

    #[test]
    fn the_nccl_library_is_found_in_the_maps() {
        let line = b"7f10a0000000-7f10a8000000 r--p 00000000 08:01 4711                       /venv/lib/libnccl.so.2";
        assert_eq!(mapped_library(line), Some(b"08:01 4711                       /venv/lib/libnccl.so.2".as_slice()));
        for line in [
            b"7f10a0000000-7f10a8000000 r--p 00000000 08:01 4711 /venv/lib/libnccl-net.so".as_slice(),
            b"7f10a0000000-7f10a8000000 r--p 00000000 08:01 4711 /libnccl.so.2/libcudart.so",
            b"7f10a0000000-7f10a8000000 r--p 00000000 00:00 0",
            b"libnccl.so.2",
            b"",
        ] {
            assert_eq!(mapped_library(line), None);
        }
    }

    #[test]
    fn the_sockets_of_a_process_are_found_until_they_are_closed() {
        let pid = std::process::id();
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = listener.local_addr().expect("an address");
        assert_eq!(find(pid, address.port(), false), Ok(Listeners { own: vec![address], others: 0 }));
        drop(listener);
        let refusal = find(pid, address.port(), false).expect_err("closed");
        assert_eq!(
            *refusal.reason,
            *format!(
                "NCCL RAS was not queried: the process does not listen on port {}, because it has no communicator or \
                 another user holds the port",
                address.port()
            )
        );
        assert_eq!(refusal.remedy, "start each job with its own port: NCCL_RAS_ADDR=localhost:PORT");
        assert!(!refusal.is_risk);
    }

    /// A program that runs from a file named like the library of NCCL, and holds a socket.
    struct FakeRank(Child);

    impl FakeRank {
        fn start(library: &Path, socket: &TcpListener) -> Self {
            let child = loop {
                let stdin = OwnedFd::from(socket.try_clone().expect("a descriptor"));
                // `sleep` may be one of many names of a program.
                match Command::new(library).arg0("sleep").arg("600").stdin(stdin).spawn() {
                    // Another test forked while the file was written.
                    Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                    child => break child.expect("starts"),
                }
            };
            let rank = Self(child);
            let mut reader = FileReader::default();
            // The file is mapped a moment after the parent continues.
            while nccl_library(rank.0.id(), &mut reader).is_none() {
                std::thread::yield_now();
            }
            rank
        }
    }

    impl Drop for FakeRank {
        fn drop(&mut self) {
            self.0.kill().expect("it runs");
            self.0.wait().expect("it ends");
        }
    }

    #[test]
    fn another_process_on_the_port_must_have_the_same_library() {
        let folder = tempfile::tempdir().expect("a folder");
        let libraries = ["new", "old"].map(|name| {
            let path = folder.path().join(name).join("libnccl.so.2");
            std::fs::create_dir(path.parent().expect("a folder")).expect("is created");
            std::fs::copy("/bin/sleep", &path).expect("is copied");
            path
        });
        let bind = || TcpListener::bind("127.0.0.1:0").expect("binds");
        let ranks = [&libraries[0], &libraries[0], &libraries[1]].map(|library| FakeRank::start(library, &bind()));
        let mut reader = FileReader::default();
        let [own, same, other] = ranks.each_ref().map(|rank| {
            let inodes = socket_inodes(rank.0.id(), MAX_DESCRIPTORS, &mut FileReader::default());
            (rank.0.id(), *inodes.expect("descriptors").first().expect("a socket"))
        });
        assert_eq!(check_library(own.0, vec![same.1], &mut reader), Ok(()));
        let refusal = check_library(own.0, vec![same.1, other.1], &mut reader).expect_err("another library");
        let expected = format!(
            "NCCL RAS was not queried: process {} listens on the same port and would get some of the queries, and its NCCL \
             library is not known to be safe",
            other.0
        );
        assert_eq!((&*refusal.reason, refusal.is_risk), (&*expected, true));
    }

    #[test]
    fn a_process_that_is_gone_is_refused() {
        let refusal = find(u32::MAX, 28028, false).expect_err("no process");
        assert_eq!(refusal.reason, "NCCL RAS was not queried: the descriptors of the process cannot be read");
        assert_eq!(refusal.remedy, "look whether the job still runs");
    }

    #[test]
    fn a_socket_without_a_known_owner_is_a_risk() {
        let mut reader = FileReader::default();
        assert_eq!(check_library(std::process::id(), Vec::new(), &mut reader), Ok(()));
        let refusal = check_library(std::process::id(), vec![u64::MAX], &mut reader).expect_err("no owner");
        assert_eq!(
            refusal.reason,
            "NCCL RAS was not queried: another process listens on the same port and would get some of the queries, and its \
             NCCL library is not known to be safe"
        );
        assert_eq!(
            refusal.remedy,
            "start each job with its own port: NCCL_RAS_ADDR=localhost:PORT, or accept the risk with --ask-ras"
        );
        assert!(refusal.is_risk);
    }
}
