//! A server in this process, for what a real sshd does only with PAM: passwords and questions.

use russh::keys::PrivateKey;
use russh::keys::ssh_key::private::Ed25519Keypair;
use russh::server::{Auth, Config, Handler, Msg, PublicKeyOffer, Response, Session};
use russh::{Channel, ChannelId, MethodKind, MethodSet};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// What opens the account.
pub(crate) const PASSWORD: &str = "pass word";
/// The code that is asked for after the password, where questions are asked.
pub(crate) const CODE: &str = "424242";

/// How the server lets in.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    Password,
    Questions,
    /// Without any proof, as Tailscale SSH does.
    None,
    /// Never; and it shows a banner, as pam_slurm_adopt does.
    Never,
}

/// A server on loopback; it ends when dropped.
pub(crate) struct Server {
    pub(crate) port: u16,
    accepting: JoinHandle<()>,
    connections: Arc<AtomicUsize>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Server {
    pub(crate) async fn start(way: Way) -> Self {
        let mut methods = MethodSet::empty();
        methods.push(match way {
            Way::Password => MethodKind::Password,
            Way::Questions => MethodKind::KeyboardInteractive,
            Way::None | Way::Never => MethodKind::PublicKey,
        });
        let config = Arc::new(Config {
            keys: vec![host_key()],
            methods,
            auth_rejection_time: Duration::ZERO,
            ..Config::default()
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&connections);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let config = Arc::clone(&config);
                tokio::spawn(async move {
                    if let Ok(session) = russh::server::run_stream(config, stream, Account { way, asked: 0 }).await {
                        let _ = session.await;
                    }
                });
            }
        });
        Self { port, accepting, connections }
    }

    /// How many connections there were.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The line of a known_hosts file that names it.
    pub(crate) fn known_hosts_line(&self) -> String {
        Self::known_hosts_line_at(self.port)
    }

    /// The same where another port leads to it.
    pub(crate) fn known_hosts_line_at(port: u16) -> String {
        format!("[127.0.0.1]:{port} {}\n", host_key().public_key().to_openssh().unwrap())
    }
}

fn host_key() -> PrivateKey {
    PrivateKey::from(Ed25519Keypair::from_seed(&[42; 32]))
}

struct Account {
    way: Way,
    /// How many rounds of questions were asked.
    asked: u32,
}

/// As sshd does: a method that failed may be tried again.
fn refuse_password() -> Auth {
    let methods = MethodSet::from(&[MethodKind::Password][..]);
    Auth::Reject { proceed_with_methods: Some(methods), partial_success: false }
}

fn refuse() -> Auth {
    Auth::Reject { proceed_with_methods: None, partial_success: false }
}

impl Handler for Account {
    type Error = russh::Error;

    async fn authentication_banner(&mut self) -> Result<Option<String>, russh::Error> {
        Ok(matches!(self.way, Way::Never).then(|| "no job of yours runs here\n".to_owned()))
    }

    async fn auth_none(&mut self, _: &str) -> Result<Auth, russh::Error> {
        Ok(if matches!(self.way, Way::None) { Auth::Accept } else { refuse() })
    }

    async fn auth_publickey_offered(&mut self, _: &str, _: PublicKeyOffer<'_>) -> Result<Auth, russh::Error> {
        Ok(refuse())
    }

    async fn auth_password(&mut self, _: &str, password: &str) -> Result<Auth, russh::Error> {
        Ok(if matches!(self.way, Way::Password) && password == PASSWORD { Auth::Accept } else { refuse_password() })
    }

    async fn auth_keyboard_interactive<'a>(
        &'a mut self,
        _: &str,
        _: &str,
        response: Option<Response<'a>>,
    ) -> Result<Auth, russh::Error> {
        let answers: Vec<String> = response
            .map(|response| response.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect())
            .unwrap_or_default();
        self.asked += 1;
        Ok(match (self.asked, &answers[..]) {
            (1, _) => question("Password: ", false),
            (2, [password]) if password == PASSWORD => question("Verification code: ", true),
            (3, [code]) if code == CODE => Auth::Accept,
            _ => {
                self.asked = 0;
                refuse()
            }
        })
    }

    async fn channel_open_session(
        &mut self,
        _: Channel<Msg>,
        reply: russh::server::ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        reply.accept().await;
        Ok(())
    }

    /// Leads on, as a jump host does.
    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _: &str,
        _: u32,
        reply: russh::server::ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        let Ok(mut peer) = tokio::net::TcpStream::connect((host, port as u16)).await else { return Ok(()) };
        reply.accept().await;
        tokio::spawn(async move {
            let _ = tokio::io::copy_bidirectional(&mut peer, &mut channel.into_stream()).await;
        });
        Ok(())
    }

    async fn exec_request(&mut self, id: ChannelId, _: &[u8], session: &mut Session) -> Result<(), russh::Error> {
        session.channel_success(id)?;
        session.data(id, b"in\n".as_slice())?;
        session.exit_status_request(id, 0)?;
        session.eof(id)?;
        session.close(id)
    }
}

fn question(text: &'static str, echo: bool) -> Auth {
    Auth::Partial {
        name: Cow::Borrowed(""),
        instructions: Cow::Borrowed("Two steps."),
        prompts: Cow::Owned(vec![(Cow::Borrowed(text), echo)]),
    }
}
