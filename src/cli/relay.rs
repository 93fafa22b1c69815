//! `gpufleet relay`: connects standard input and output to the socket of the collector on this machine. A viewer runs it
//! over SSH: `gpufleet --collector HOST`.

use super::CommandError;
use super::arguments::RelayArgs;
use super::exit::write_out;
use crate::share::{ConnectError, Frame, RefusalKind, SilentCollector, connect, encode, socket_candidates};
use crate::store::Directories;
use crate::wire::SafeText;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

/// Without a byte from the viewer for this long, the viewer is gone: it sends one every 10 s. sshd notices the loss of a
/// network only after hours.
const VIEWER_LIMIT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Without a byte from the collector for this long, it does not answer: it sends one every 2 s, and closes a connection on which
/// the viewer says nothing for 5 s.
const COLLECTOR_LIMIT: Timespec = Timespec { tv_sec: 6, tv_nsec: 0 };

/// Copies until either side ends.
pub fn run(arguments: &RelayArgs) -> Result<ExitCode, CommandError> {
    let paths = match &arguments.socket {
        Some(path) => vec![path.clone()],
        None => socket_candidates(&Directories::find()),
    };
    let stream = match connect(&paths) {
        Ok(stream) => stream,
        Err(error) => {
            let (kind, hint) = refusal(&error);
            return refuse(kind, &error.to_string(), hint);
        }
    };
    let failed = |error: io::Error| CommandError::failed(format!("cannot relay: {error}"));
    let to_collector = stream.try_clone().map_err(failed)?;
    // It ends with the process.
    std::thread::spawn(move || {
        copy_input(&to_collector);
        let _ = to_collector.shutdown(Shutdown::Both);
    });
    let mut output = io::stdout().lock();
    let mut chunk = vec![0; 64 * 1024];
    let mut stream = stream;
    let mut is_line_start = true;
    loop {
        match poll(&mut [PollFd::new(&stream, PollFlags::IN)], Some(&COLLECTOR_LIMIT)) {
            Ok(0) => {
                drop(output);
                if !is_line_start {
                    // The refusal would be a part of the line.
                    return Ok(ExitCode::FAILURE);
                }
                let silent = SilentCollector::find(&stream);
                return refuse(RefusalKind::NotAnswering, &silent.to_string(), &silent.hint());
            }
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(failed(error.into())),
        }
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(ExitCode::SUCCESS),
            Ok(count) => {
                is_line_start = chunk[count - 1] == b'\n';
                if output.write_all(&chunk[..count]).and_then(|()| output.flush()).is_err() {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Copies standard input until it ends or falls silent.
fn copy_input(mut to_collector: &UnixStream) {
    let stdin = io::stdin();
    let mut chunk = [0; 4096];
    loop {
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&VIEWER_LIMIT)) {
            Ok(0) => return,
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        }
        match rustix::io::read(&stdin, &mut chunk) {
            Ok(0) | Err(_) => return,
            Ok(count) if to_collector.write_all(&chunk[..count]).is_err() => return,
            Ok(_) => {}
        }
    }
}

/// The reason and the way out.
fn refusal(error: &ConnectError) -> (RefusalKind, &'static str) {
    match error {
        ConnectError::NoCollector(_) => (RefusalKind::NoCollector, "start it there: gpufleet collect"),
        error if error.is_not_permitted() => (
            RefusalKind::NotPermitted,
            "the account that runs the collector can share it with a group: gpufleet collect --socket-group NAME",
        ),
        ConnectError::Failed(..) => (RefusalKind::Other, "restart the collector there"),
    }
}

/// Tells the viewer why there is no connection: as a line of the protocol, or as an error on a terminal.
fn refuse(kind: RefusalKind, error: &str, hint: &str) -> Result<ExitCode, CommandError> {
    if io::stdout().is_terminal() {
        return Err(CommandError::failed(format!("{error}\n  hint: {hint}")));
    }
    let refused = Frame::Refused { kind, reason: SafeText::from(format!("{error}; {hint}")) };
    if let Some(line) = encode(&refused) {
        write_out(&String::from_utf8_lossy(&line))?;
    }
    Ok(ExitCode::FAILURE)
}
