//! TCP proxies in front of a server: one that can be cut, delayed and throttled, and one that loses packets.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// The current state of the link.
#[derive(Debug, Clone, Copy)]
struct State {
    /// No data passes; pending data stays in the proxy, as TCP would keep it.
    is_cut: bool,
    /// Delay in each direction.
    delay: Duration,
    /// Bytes per second in each direction, for all connections together.
    rate: Option<u32>,
    /// Connections from before the last loss never pass data again.
    losses: u32,
}

/// When the next bytes may pass in one direction.
type NextSlot = Arc<Mutex<Instant>>;

/// A proxy whose link state a test can change. Dropping it ends it.
pub(crate) struct Link {
    port: u16,
    state: watch::Sender<State>,
    accepting: JoinHandle<()>,
}

impl Link {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (state, watched) = watch::channel(State { is_cut: false, delay: Duration::ZERO, rate: None, losses: 0 });
        let next_slots = [(); 2].map(|()| NextSlot::new(Mutex::new(Instant::now())));
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (watched, [up, down]) = (watched.clone(), next_slots.clone());
                tokio::spawn(async move {
                    let Ok(far) = TcpStream::connect(server).await else { return };
                    let _ = (near.set_nodelay(true), far.set_nodelay(true));
                    let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
                    tokio::join!(
                        forward(from_near, to_far, watched.clone(), up),
                        forward(from_far, to_near, watched, down)
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

    /// Limits the rate in bytes per second, in each direction.
    pub(crate) fn limit_rate(&self, rate: u32) {
        self.state.send_modify(|state| state.rate = Some(rate));
    }

    /// Silently drops all connections, as happens during sleep; new connections work.
    pub(crate) fn drop_connections(&self) {
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

/// Forwards one direction: data is due after the delay, and waits while the link is cut.
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<State>,
    next_slot: NextSlot,
) {
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
                        let mut next_slot = next_slot.lock().await;
                        *next_slot = Instant::now().max(*next_slot)
                            + Duration::from_secs_f64(piece.len() as f64 / f64::from(rate));
                        *next_slot
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

/// A proxy that drops packets (`lossy_proxy.py`): many kernels lack netem. Dropping it ends it.
pub(super) struct LossyProxy {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    pub(super) port: u16,
}

impl LossyProxy {
    pub(super) fn start(server: SocketAddr, percent: u8) -> Self {
        let mut process = Command::new("python3")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/faults/lossy_proxy.py"))
            .args([server.ip().to_string(), server.port().to_string(), percent.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("these tests need python3");
        let (stdin, stdout) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let mut proxy = Self { process, stdin, stdout, port: 0 };
        proxy.port = proxy.read_number() as u16;
        proxy
    }

    pub(super) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The number of packets dropped so far.
    pub(super) fn dropped_packets(&mut self) -> u32 {
        self.stdin.write_all(b"lost\n").unwrap();
        self.read_number()
    }

    fn read_number(&mut self) -> u32 {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim().parse().unwrap_or_else(|_| panic!("the proxy prints {line:?}"))
    }
}

impl Drop for LossyProxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
