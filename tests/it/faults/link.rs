//! A link that can be cut, healed and slowed down: a TCP proxy in front of a server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// How the link is now.
#[derive(Debug, Clone, Copy)]
struct State {
    /// Nothing passes; what is on the way stays there, as TCP keeps it.
    is_cut: bool,
    /// One way.
    delay: Duration,
    /// Bytes a second, one way, for all connections together.
    rate: Option<u32>,
    /// Connections that were made before the last loss never pass anything again.
    losses: u32,
}

/// When the next bytes may pass, one way.
type Turn = Arc<Mutex<Instant>>;

/// The proxy; it ends when dropped.
pub(crate) struct Link {
    port: u16,
    state: watch::Sender<State>,
    accepting: JoinHandle<()>,
}

impl Link {
    pub(crate) async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (state, watched) = watch::channel(State { is_cut: false, delay: Duration::ZERO, rate: None, losses: 0 });
        let turns = [(); 2].map(|()| Turn::new(Mutex::new(Instant::now())));
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (watched, [up, down]) = (watched.clone(), turns.clone());
                tokio::spawn(async move {
                    let Ok(far) = TcpStream::connect(server).await else { return };
                    let _ = (near.set_nodelay(true), far.set_nodelay(true));
                    let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
                    tokio::join!(
                        carry(from_near, to_far, watched.clone(), up),
                        carry(from_far, to_near, watched, down)
                    );
                });
            }
        });
        Self { port, state, accepting }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn cut(&self) {
        self.state.send_modify(|state| state.is_cut = true);
    }

    pub(crate) fn heal(&self) {
        self.state.send_modify(|state| state.is_cut = false);
    }

    /// From now on so many bytes a second pass, each way.
    pub(crate) fn slow_down(&self, rate: u32) {
        self.state.send_modify(|state| state.rate = Some(rate));
    }

    /// Loses all connections without a word, as a laptop that slept has; new ones are carried.
    pub(crate) fn lose(&self) {
        self.state.send_modify(|state| state.losses += 1);
    }

    pub(crate) fn delay(&self, delay: Duration) {
        self.state.send_modify(|state| state.delay = delay);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// One direction: what is read is due after the delay, and waits while the link is cut.
async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut state: watch::Receiver<State>, turn: Turn) {
    let losses = state.borrow().losses;
    let (sender, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(1024);
    let delays = state.clone();
    let reading = async move {
        let mut chunk = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut chunk).await {
            let at = Instant::now() + delays.borrow().delay;
            if sender.send((at, chunk[..count].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let writing = async move {
        while let Some((at, bytes)) = due.recv().await {
            sleep_until(at).await;
            for piece in bytes.chunks(256) {
                let Ok(rate) =
                    state.wait_for(|state| !state.is_cut && state.losses == losses).await.map(|state| state.rate)
                else {
                    return;
                };
                if let Some(rate) = rate {
                    let passes_at = {
                        let mut turn = turn.lock().await;
                        *turn =
                            Instant::now().max(*turn) + Duration::from_secs_f64(piece.len() as f64 / f64::from(rate));
                        *turn
                    };
                    sleep_until(passes_at).await;
                }
                if to.write_all(piece).await.is_err() {
                    return;
                }
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(reading, writing);
}
