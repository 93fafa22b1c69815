//! Restores the terminal when the program aborts, for example because an allocation failed or a destructor panicked.
//!
//! abort(3) raises SIGABRT and ends the process as soon as its handlers have returned, and a handler may do next to
//! nothing. So the handlers of SIGABRT are two writes to pipes: the first wakes a thread, and the second waits, because its
//! pipe is full, until that thread has restored the terminal and closes the pipe.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::Signal;
use signal_hook::low_level::pipe::register;
use std::io::{self, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

/// Calls `restore` on SIGABRT, at most once. `restore` must not wait for a lock, because the thread that aborts may hold it.
///
/// # Errors
/// There are no file descriptors, threads or signal handlers left.
pub(super) fn install(restore: fn()) -> io::Result<()> {
    let (mut woken, wake) = io::pipe()?;
    let (release, mut full) = io::pipe()?;
    let blocking = full.try_clone()?;
    set_blocking(&full, false)?;
    fill(&mut full);
    // If this fails, `release` is dropped with the closure, and nobody waits.
    thread::Builder::new().name("abort".to_owned()).spawn(move || {
        if woken.read_exact(&mut [0]).is_ok() {
            restore();
        }
        drop(release);
    })?;
    let abort = Signal::ABORT.as_raw();
    register(abort, OwnedFd::from(wake))?;
    register(abort, OwnedFd::from(full))?;
    // The registration has made it non-blocking.
    set_blocking(&blocking, true)
}

fn set_blocking(pipe: &impl AsFd, is_blocking: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(pipe)?;
    flags.set(OFlags::NONBLOCK, !is_blocking);
    fcntl_setfl(pipe, flags)?;
    Ok(())
}

/// Fills a non-blocking pipe.
fn fill(pipe: &mut PipeWriter) {
    // First whole pages, then the rest of the last page.
    for chunk in [&[0; 4096][..], &[0]] {
        while pipe.write(chunk).is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn a_full_pipe_blocks_its_writer_until_the_reader_is_closed() {
        let (reader, mut writer) = io::pipe().expect("a pipe");
        set_blocking(&writer, false).expect("sets a flag");
        fill(&mut writer);
        assert_eq!(writer.write(&[0]).expect_err("is full").kind(), io::ErrorKind::WouldBlock);
        set_blocking(&writer, true).expect("sets a flag");
        let (sender, written) = channel();
        let thread = thread::spawn(move || sender.send(writer.write(&[0]).map_err(|error| error.kind())));
        assert!(written.recv_timeout(Duration::from_millis(50)).is_err(), "it waits");
        drop(reader);
        assert_eq!(written.recv(), Ok(Err(io::ErrorKind::BrokenPipe)));
        thread.join().expect("ends").expect("is received");
    }
}
