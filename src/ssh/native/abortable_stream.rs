//! A TCP stream that can be cut from outside.
//!
//! russh sets no limits of its own: a server that stalls after its identification keeps a dropped connection's task
//! and socket alive for ever. Cutting makes its next read fail at once.

use futures::task::AtomicWaker;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};

/// Room for what is read at once. russh asks for each packet's length first, and then for the rest: two calls of the
/// kernel for a snapshot, and a third to learn that nothing more is there.
const READ_BYTES: usize = 8 * 1024;
/// How much of what the server says first is kept, for errors.
const FIRST_BYTES_LIMIT: usize = 512;

/// A stream and what it shares with its [`AbortHandle`].
#[derive(Debug)]
pub(super) struct AbortableStream<S> {
    inner: BufReader<S>,
    shared: Arc<Shared>,
}

/// Cuts the stream when dropped.
#[derive(Debug)]
pub(super) struct AbortHandle {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    aborted: AtomicBool,
    reader: AtomicWaker,
    writer: AtomicWaker,
    head: Mutex<Vec<u8>>,
}

/// `stream`, and the guard that ends it.
pub(super) fn abortable<S: AsyncRead>(stream: S) -> (AbortableStream<S>, AbortHandle) {
    let shared = Arc::new(Shared::default());
    let inner = BufReader::with_capacity(READ_BYTES, stream);
    (AbortableStream { inner, shared: Arc::clone(&shared) }, AbortHandle { shared })
}

impl AbortHandle {
    /// The first bytes that arrived.
    pub(super) fn first_bytes(&self) -> Vec<u8> {
        self.shared.head.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for AbortHandle {
    fn drop(&mut self) {
        self.shared.aborted.store(true, Ordering::Release);
        self.shared.reader.wake();
        self.shared.writer.wake();
    }
}

impl Shared {
    /// An error once cut; else `waker` will be woken by the cut.
    fn check(&self, waker: &AtomicWaker, context: &Context<'_>) -> io::Result<()> {
        waker.register(context.waker());
        if self.aborted.load(Ordering::Acquire) {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "given up"));
        }
        Ok(())
    }

    fn record_first_bytes(&self, bytes: &[u8]) {
        let mut head = self.head.lock().unwrap_or_else(PoisonError::into_inner);
        let room = FIRST_BYTES_LIMIT.saturating_sub(head.len()).min(bytes.len());
        head.extend_from_slice(&bytes[..room]);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AbortableStream<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.shared.check(&this.shared.reader, context)?;
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.inner).poll_read(context, buffer);
        if polled.is_ready() {
            this.shared.record_first_bytes(&buffer.filled()[before..]);
        }
        polled
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for AbortableStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.shared.check(&this.shared.writer, context)?;
        Pin::new(&mut this.inner).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.shared.check(&this.shared.writer, context)?;
        Pin::new(&mut this.inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn cutting_ends_a_read_and_a_write_that_wait() {
        let (near, mut far) = tokio::io::duplex(4);
        let (stream, abort_handle) = abortable(near);
        far.write_all(b"SSH").await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut bytes = [0; 3];
        reader.read_exact(&mut bytes).await.unwrap();
        assert_eq!(abort_handle.first_bytes(), b"SSH");
        let reading = tokio::spawn(async move { reader.read_u8().await });
        let writing = tokio::spawn(async move { writer.write_all(&[0; 100]).await });
        tokio::task::yield_now().await;
        drop(abort_handle);
        assert_eq!(reading.await.unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        assert_eq!(writing.await.unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }
}
